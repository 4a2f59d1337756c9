//! Output for people, on standard output and standard error. Either may be a pipe whose reader has left, or a full disk, where
//! `println!` and `eprintln!` would panic. Hours of measuring must not end like that.

use crate::error::{Error, Result};
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

/// The first failure of standard output, except that its reader has left.
static FAILED: OnceLock<String> = OnceLock::new();

/// Prints a line on standard output.
macro_rules! say {
    ($($text:tt)*) => { $crate::say::out(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints on standard output, without a line end.
macro_rules! say_part {
    ($($text:tt)*) => { $crate::say::out(format_args!($($text)*)) };
}

/// Prints a line on standard error.
macro_rules! note {
    ($($text:tt)*) => { $crate::say::err(format_args!($($text)*)) };
}

pub(crate) use {note, say, say_part};

/// Standard output, for code that takes a writer. It reports no failure; [`end`] does.
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        keep(std::io::stdout().write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        keep(std::io::stdout().flush());
        Ok(())
    }
}

/// Writes to standard output.
pub fn out(text: Arguments<'_>) {
    keep(std::io::stdout().write_fmt(text));
}

/// Writes a line to standard error. If that fails, there is no other place to report it.
pub fn err(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Remembers a failure for [`end`]. A reader that has left has what it wanted.
fn keep(done: std::io::Result<()>) {
    if let Err(e) = done
        && e.kind() != ErrorKind::BrokenPipe
    {
        FAILED.get_or_init(|| e.to_string());
    }
}

/// Writes out what is left, and says whether all of standard output was written.
pub fn end() -> Result<()> {
    keep(std::io::stdout().flush());
    FAILED.get().map_or(Ok(()), |e| Err(Error::failed(format!("cannot write to standard output: {e}"))))
}
