//! Fuzz targets: what the engine does with forged files and invalid arguments.
//!
//! Each target takes bytes and must neither panic, nor hang, nor allocate much more than the input has bytes, nor give a
//! wrong answer. Targets of files read the bytes as edits of a good file ([`edit`]), so that a fuzzer need not invent a
//! database first, or as the file itself. With [`edit::FORGE`] all checksums are made right again behind the edits
//! ([`forge`]), which leads a fuzzer past them; such a file may say anything, and only panics, endless loops and
//! allocations count. Without, what is read must be what was written, or an error.
//!
//! `cargo xtask fuzz` runs them under libFuzzer, and `tests/replay.rs` runs the committed inputs and mutations of them
//! on the stable toolchain.

pub mod arguments;
pub mod backup;
pub mod capi;
pub mod claims;
pub mod edit;
pub mod examine;
pub mod files;
pub mod forge;
pub mod ingest;
pub mod ops;
pub mod options;
pub mod sample;

pub use arguments::arguments;
pub use backup::backup;
pub use capi::capi;
pub use files::{klog, manifest, vlog, wal};
pub use ingest::ingest;
pub use ops::ops;
pub use options::options;

/// A target: must return for all bytes.
pub type Target = fn(&[u8]);

/// All targets, by name.
pub const TARGETS: [(&str, Target); 10] = [
    ("wal", wal),
    ("klog", klog),
    ("vlog", vlog),
    ("manifest", manifest),
    ("options", options),
    ("arguments", arguments),
    ("ops", ops),
    ("backup", backup),
    ("ingest", ingest),
    ("capi", capi),
];

/// What a target relies on: a failure is its finding.
#[track_caller]
pub(crate) fn must<T, E: std::fmt::Debug>(result: Result<T, E>, what: &str) -> T {
    result.unwrap_or_else(|e| panic!("{what}: {e:?}"))
}
