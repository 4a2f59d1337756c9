//! The harness's error: what a user did wrong, what is not on this machine, and what an engine failed at.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The harness's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Error {
    /// A mistake in flags, configuration or a script: the message says what would be right.
    Usage(String),
    /// The engine is not on this machine: its column is skipped, the others run.
    Unavailable(String),
    /// The engine has no such operation.
    Unsupported(String),
    /// An engine, the operating system or a child process failed.
    Failed(String),
    /// A stop was requested.
    Interrupted,
}

impl Error {
    /// A mistake of the user's.
    pub fn usage(message: impl Into<String>) -> Error {
        Error::Usage(message.into())
    }

    /// A failure, with what was being done.
    pub fn failed(message: impl Into<String>) -> Error {
        Error::Failed(message.into())
    }

    /// A failed operating-system call.
    pub fn io(doing: &str, path: &std::path::Path, e: std::io::Error) -> Error {
        Error::Failed(format!("cannot {doing} {}: {e}", path.display()))
    }

    /// Puts `what: ` before the message, keeping the kind.
    pub fn context(self, what: impl fmt::Display) -> Error {
        match self {
            Error::Usage(m) => Error::Usage(format!("{what}: {m}")),
            Error::Unavailable(m) => Error::Unavailable(format!("{what}: {m}")),
            Error::Unsupported(m) => Error::Unsupported(format!("{what}: {m}")),
            Error::Failed(m) => Error::Failed(format!("{what}: {m}")),
            Error::Interrupted => Error::Interrupted,
        }
    }

    /// The process's exit code: 2 for a mistake of the user's, 1 for everything else; after ctrl-C that which shells have for a process
    /// that was interrupted, 128 and the number of SIGINT.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Interrupted => 130,
            _ => 1,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(m) | Error::Unavailable(m) | Error::Unsupported(m) | Error::Failed(m) => f.write_str(m),
            Error::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Error {}
