//! Directories for tests.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// An empty directory that goes with the test, unless the test fails: then it is kept as evidence.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// A directory for a test of that name, which no other test or process uses.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn new(name: &str) -> Scratch {
        let scratch = Scratch::absent(name);
        std::fs::create_dir_all(&scratch.0).expect("a directory for the test");
        scratch
    }

    /// The same, but the directory does not exist yet.
    pub fn absent(name: &str) -> Scratch {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("kingtide-{name}-{}-{n}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kept: {}", self.0.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.0);
            let _ = std::fs::remove_file(crate::killed::complaints(&self.0));
        }
    }
}
