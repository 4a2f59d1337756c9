//! Many threads at once: nothing is lost, no level allows more than it says, waits end.

mod contended;
mod dead_space;
mod dropped_amid;
mod history;
mod interrupts;
mod no_lost_keys;
mod slowed_commit;
