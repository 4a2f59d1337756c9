//! What the tests of several crates share.
//!
//! * [`Scratch`]: a directory that a test may fill;
//! * [`full`], [`number`], [`seed_of_the_day`]: what the environment asks of a test;
//! * [`RaiseOnDrop`]: ends the threads beside a test, also when it fails;
//! * [`child`]: bodies of tests that run in a process of their own, under limits;
//! * [`killed`]: processes that are killed, and what they acknowledged before;
//! * `schedules`: exploration of schedules of threads, in builds with `--cfg shuttle`.
#![allow(clippy::disallowed_methods)] // tests use threads, files and the clock of the machine

pub mod child;
pub mod killed;
#[cfg(shuttle)]
pub mod schedules;
mod scratch;

pub use scratch::Scratch;

use std::sync::atomic::{AtomicBool, Ordering};

/// Raises a flag when it is dropped. A scope of threads waits for those that work until a flag is raised; if an assertion fails before
/// that, the scope must not wait for ever.
pub struct RaiseOnDrop<'a>(pub &'a AtomicBool);

impl Drop for RaiseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Whether a test is to run at its full count (`KINGTIDE_FULL`) instead of as a sample.
pub fn full() -> bool {
    std::env::var_os("KINGTIDE_FULL").is_some()
}

/// Whether a sanitizer watches (`cargo xtask sanitize` says so). It reserves terabytes of addresses and keeps freed memory for a
/// while, so limits of addresses and measures of memory mean nothing under it.
pub fn sanitized() -> bool {
    std::env::var_os("KINGTIDE_SANITIZED").is_some()
}

/// The number in an environment variable; `None` if there is none.
pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|v| v.parse().ok())
}

/// `KINGTIDE_SEED`, or else a number that stays the same for a day. It is printed with the test's name, so that a failure can
/// be repeated.
pub fn seed_of_the_day(test: &str) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    let seed = number("KINGTIDE_SEED").unwrap_or(now.map_or(0, |d| d.as_secs() / 86_400));
    println!("{test}: KINGTIDE_SEED={seed}");
    seed
}

/// The full name of a test of the calling module, as the test harness knows it: `bank::child` for `child`.
#[macro_export]
macro_rules! test_name {
    ($name:expr) => {
        match module_path!().split_once("::") {
            Some((_, module)) => format!("{module}::{}", $name),
            None => $name.to_string(),
        }
    };
}
