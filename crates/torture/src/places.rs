//! What the programs that take turns find in the directory of one worker.

use std::path::{Path, PathBuf};

/// The database.
pub fn database(dir: &Path) -> PathBuf {
    dir.join("db")
}

/// The database as the round found it.
pub fn before(dir: &Path) -> PathBuf {
    dir.join("before")
}

/// What another build wrote through `kt`: lines of slot and value.
pub fn foreign(dir: &Path) -> PathBuf {
    dir.join("foreign")
}
