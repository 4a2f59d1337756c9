//! Ctrl-C: the first one ends a run as if its time were up, with a report of what is finished; the second ends the process.

use crate::error::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The exit code of a process that was interrupted, as shells have it: 128 and the number of SIGINT.
pub const EXIT_CODE: u8 = 130;

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on SIGINT and SIGTERM ask for the end instead of being it, once.
pub fn watch() -> Result<()> {
    let requested = REQUESTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first to come finds the flag unset, so only the second ends the process.
        flag::register_conditional_shutdown(signal, i32::from(EXIT_CODE), Arc::clone(requested))
            .and_then(|_| flag::register(signal, Arc::clone(requested)))
            .map_err(|e| Error::failed(format!("cannot watch for ctrl-C: {e}")))?;
    }
    Ok(())
}

/// Whether someone asked for the end.
pub fn requested() -> bool {
    // Relaxed: a request that comes with no other data.
    REQUESTED.get().is_some_and(|r| r.load(Ordering::Relaxed))
}

/// Whether a child process ended because someone asked for the end: a terminal asks the children as well, and they may be
/// gone before this process has heard of it.
pub fn explains(status: ExitStatus) -> bool {
    requested() || matches!(status.signal(), Some(SIGINT | SIGTERM))
}

/// For a child process: it ends when its parent does, whatever ends that.
pub fn die_with_parent() {
    // Where it is refused, an orphan goes on until it has something to tell to nobody.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}
