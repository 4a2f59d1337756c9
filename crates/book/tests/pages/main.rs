//! The pages of the book: their Rust blocks, the programs of docs/programs.md, and the pages that are made. The program changes its
//! working directory, as programs of pages open databases by relative paths.
#![allow(clippy::disallowed_methods, missing_docs)] // pages show programs, tests start threads

mod blocks;
#[path = "../../src/main.rs"]
#[allow(dead_code)] // its `main`
mod made;
mod programs;
