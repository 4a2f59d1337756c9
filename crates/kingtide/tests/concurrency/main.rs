//! Many threads at once: nothing is lost, no level allows more than it says, waits end.
#![allow(clippy::disallowed_methods, missing_docs)] // tests start threads

mod contended;
mod dead_space;
mod dropped_amid;
mod history;
mod interrupts;
mod no_lost_keys;
mod slowed_commit;
