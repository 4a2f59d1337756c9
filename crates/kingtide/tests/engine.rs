//! The engine through its public API, in one program: a change to the engine links it once, and no core idles while another program
//! ends. What needs a process of its own is in the program `process`.
#![allow(clippy::disallowed_methods, missing_docs)] // tests use threads, files and clocks of the machine

mod api;
mod concurrency;
mod conformance;
mod crash;
mod model;
mod sim;
mod transactions;
