//! Every Rust block of README.md and of the book does what it says: `build.rs` makes a test of each.
use kingtide_testkit::Scratch;
use std::sync::Mutex;

/// What a program of a page ends with.
trait Outcome {
    fn check(self, page: &str);
}

impl Outcome for () {
    fn check(self, _page: &str) {}
}

impl Outcome for kingtide::Result<()> {
    fn check(self, page: &str) {
        if let Err(e) = self {
            panic!("{page}: {e}");
        }
    }
}

/// Programs open databases by relative paths, and a process has one working directory.
static ONE: Mutex<()> = Mutex::new(());

/// Runs a block in an empty directory.
fn check<R: Outcome>(page: &str, runs: bool, main: fn() -> R) {
    if !runs {
        return;
    }
    let _one = ONE.lock().unwrap_or_else(|failed| failed.into_inner());
    let scratch = Scratch::new("book");
    std::env::set_current_dir(&scratch.0).expect("the directory is there");
    main().check(page);
    std::env::set_current_dir(std::env::temp_dir()).expect("a directory that stays");
}

include!(concat!(env!("OUT_DIR"), "/blocks.rs"));
