//! The tool's error: one line for a person, one object for a program, and an exit code.

use kingtide::{Error, ErrorKind};
use kingtide_base::names::{COPY_MARKER, CURRENT};
use serde_json::{Map, Value, json};
use std::fmt;

/// The tool's result.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Exit code: something failed.
pub const FAILED: u8 = 1;
/// Exit code: usage error, or `--yes` is required.
pub const USAGE: u8 = 2;
/// Exit code: no such database, family, key, file or transaction.
pub const NOT_FOUND: u8 = 3;
/// Exit code: stored bytes are damaged.
pub const DAMAGE: u8 = 4;
/// Exit code: another process has the database open.
pub const LOCKED: u8 = 5;

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    kind: String,
    message: String,
    /// What is said behind message, file, offset and cause.
    after: String,
    /// The engine's error, for file and offset.
    cause: Option<Error>,
    /// Print nothing: the reader of the output has gone, or the error was already reported.
    quiet: bool,
}

impl Failure {
    fn new(code: u8, kind: &str, message: impl Into<String>) -> Failure {
        Failure { code, kind: kind.into(), message: message.into(), after: String::new(), cause: None, quiet: false }
    }

    /// The caller's mistake.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(USAGE, "usage", message)
    }

    /// Something that was named is not there.
    pub fn not_found(message: impl Into<String>) -> Failure {
        Failure::new(NOT_FOUND, "not_found", message)
    }

    /// Something else has the place or the name that is needed.
    pub fn exists(message: impl Into<String>) -> Failure {
        Failure::new(FAILED, "exists", message)
    }

    /// Anything else.
    pub fn failed(message: impl Into<String>) -> Failure {
        Failure::new(FAILED, "failed", message)
    }

    /// The contents of a file that was handed over are not what they should be.
    pub fn bad_data(message: impl Into<String>) -> Failure {
        Failure::new(FAILED, "bad_data", message)
    }

    /// Stored bytes are damaged, as the output told.
    pub fn damaged(message: impl Into<String>) -> Failure {
        Failure::new(DAMAGE, "corruption", message)
    }

    /// A failed operating-system call.
    pub fn io(doing: &str, what: impl fmt::Display, e: &std::io::Error) -> Failure {
        let code = if e.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { FAILED };
        let kind = if code == NOT_FOUND { "not_found" } else { "io" };
        Failure::new(code, kind, format!("cannot {doing} {what}: {e}"))
    }

    /// Puts `what: ` before the message.
    pub fn context(mut self, what: impl fmt::Display) -> Failure {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Says `; what` at the end, behind file and cause.
    pub fn then(mut self, what: impl fmt::Display) -> Failure {
        self.after.push_str(&format!("; {what}"));
        self
    }

    /// Says what kept the details from being printed, if anything but a reader that stopped early. The failure itself stays: a report
    /// of damage must not depend on how much of it is read.
    pub fn printed(self, printed: Result<()>) -> Failure {
        match printed {
            Err(e) if !e.quiet => self.then(e.text()),
            _ => self,
        }
    }

    /// Replaces the message; file and offset stay.
    pub fn says(mut self, message: impl Into<String>) -> Failure {
        self.message = message.into();
        self
    }

    /// The same about a file's contents: not the fault of the command line.
    pub fn of_data(mut self) -> Failure {
        if self.code == USAGE {
            (self.code, self.kind) = (FAILED, "bad_data".into()); // as `bad_data` has them
        }
        self
    }

    /// Whether the system did not let a file be written to.
    pub fn is_unwritable(&self, name: &str) -> bool {
        let cause = self.cause.as_ref().and_then(std::error::Error::source);
        let kind = cause.and_then(|e| e.downcast_ref::<std::io::Error>()).map(std::io::Error::kind);
        let denied =
            matches!(kind, Some(std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem));
        denied && self.cause.as_ref().and_then(Error::path).is_some_and(|path| path.ends_with(name))
    }

    /// Whether the error is about an interrupted copy, which must be made again or removed, not repaired.
    fn is_unfinished_copy(&self) -> bool {
        let dir = self.cause.as_ref().and_then(Error::path);
        dir.is_some_and(|dir| dir.join(COPY_MARKER).exists() && !dir.join(CURRENT).exists())
    }

    /// Says what to do about damage that a command met which is not there to look for it.
    pub fn of_damage_met(self) -> Failure {
        match self.code {
            DAMAGE if self.is_unfinished_copy() => self,
            DAMAGE => self.then("kt verify reports all damage, kt repair salvages what can be read"),
            _ => self,
        }
    }

    /// Whether stored bytes are damaged.
    pub fn is_damage(&self) -> bool {
        self.code == DAMAGE
    }

    /// The process's exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Says it on standard error.
    pub fn report(&self, json: bool) {
        use std::io::Write;
        if self.quiet {
            return;
        }
        let line = match json {
            true => json!({ "error": self.object() }).to_string(),
            false => format!("kt: {}", crate::plain::plain(&self.text())),
        };
        let _ = writeln!(std::io::stderr(), "{line}"); // a failure to report a failure cannot be reported
    }

    /// The message on one line, file and offset included.
    pub fn text(&self) -> String {
        let mut text = self.message.clone();
        if let Some(e) = &self.cause {
            let (whole, own) = (e.to_string(), e.message());
            let rest = whole.strip_prefix(own).unwrap_or_default();
            let is_failed_call = own.rsplit(": ").next().is_some_and(|last| last.starts_with("cannot "));
            match (e.path(), std::error::Error::source(e)) {
                // A failed call of the system's: its file belongs into the sentence.
                (Some(path), Some(cause)) if self.message.ends_with(own) && is_failed_call => {
                    let at = e.offset().filter(|n| *n > 0).map(|n| format!(" at byte {n}")).unwrap_or_default();
                    text.push_str(&format!(" {}{at}: {cause}", path.display()));
                }
                // The file is in the sentence already.
                (Some(path), None) if e.offset().is_none() && names(&text, &path.display().to_string()) => {}
                _ => text.push_str(rest),
            }
        }
        text.push_str(&self.after);
        text.replace('\n', " ")
    }

    /// The error as `--json` shows it.
    pub fn object(&self) -> Value {
        let mut object = Map::new();
        object.insert("kind".into(), self.kind.clone().into());
        object.insert("message".into(), self.text().into());
        if let Some(path) = self.cause.as_ref().and_then(Error::path) {
            object.insert("path".into(), path.display().to_string().into());
        }
        if let Some(offset) = self.cause.as_ref().and_then(Error::offset) {
            object.insert("offset".into(), offset.into());
        }
        object.insert("exit_code".into(), self.code.into());
        Value::Object(object)
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        let code = match e.kind() {
            ErrorKind::NotFound => NOT_FOUND,
            ErrorKind::Corruption => DAMAGE,
            ErrorKind::Locked => LOCKED,
            ErrorKind::InvalidArgument => USAGE,
            _ => FAILED,
        };
        let message = e.message().to_owned();
        // The engine's message cannot name a command of the tool.
        let is_mistyped = message.starts_with("unknown option '") && !message.contains("did you mean");
        Failure {
            code,
            kind: snake(&format!("{:?}", e.kind())),
            message,
            after: if is_mistyped { "; kt options lists all".to_owned() } else { String::new() },
            cause: Some(e),
            quiet: false,
        }
    }
}

/// Of writing to standard output.
impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        let mut failure = Failure::io("write to", "standard output", &e);
        if e.kind() == std::io::ErrorKind::BrokenPipe {
            (failure.code, failure.quiet) = (0, true);
        }
        failure
    }
}

/// Whether a message names a path: as a word of its own, since a short path may also be a part of one, and a path of one letter a
/// word of the language.
fn names(text: &str, path: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    path.chars().count() > 1
        && text.match_indices(path).any(|(at, _)| {
            let (before, behind) = (&text[..at], &text[at + path.len()..]);
            !before.ends_with(joins) && !behind.starts_with(joins)
        })
}

/// `NotFound` as `not_found`.
pub fn snake(camel: &str) -> String {
    let mut name = String::new();
    for c in camel.chars() {
        if c.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}
