//! Ctrl-C: the first one ends a run as if its time were up, with a report of what is finished; a second one, a moment later, ends
//! the process. Two at once are one: `timeout`, for one, sends its signal to the process and then to the whole group.

use crate::error::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// How long after the first a signal still belongs to it.
const ONE_REQUEST: Duration = Duration::from_millis(500);

/// How often the request is looked for; it delays nothing but the second signal's effect.
const LOOK: Duration = Duration::from_millis(100);

/// From now on SIGINT and SIGTERM ask for the end instead of being it, once.
pub fn watch() -> Result<()> {
    let requested = REQUESTED.get_or_init(Arc::default);
    let again = Arc::new(AtomicBool::new(false));
    let failed = |e| Error::failed(format!("cannot watch for ctrl-C: {e}"));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, i32::from(Error::Interrupted.exit_code()), Arc::clone(&again))
            .and_then(|_| flag::register(signal, Arc::clone(requested)))
            .map_err(failed)?;
    }
    let look = move || {
        while !self::requested() {
            std::thread::sleep(LOOK);
        }
        std::thread::sleep(ONE_REQUEST);
        // Relaxed: a flag that comes with no other data.
        again.store(true, Ordering::Relaxed);
    };
    // It ends with the process.
    std::thread::Builder::new().name("ctrl-c".into()).spawn(look).map(drop).map_err(failed)
}

/// From now on a write beyond the limit for the sizes of files (`ulimit -f`) fails like any other, where its signal would end the
/// process without a word.
pub fn outlive_file_limit() {
    // It is enough that the signal is caught. Where that fails, it ends the process as before.
    let _ = flag::register(rustix::process::Signal::XFSZ.as_raw(), Arc::default());
}

/// Whether a stop was requested.
pub fn requested() -> bool {
    // Relaxed: a request that comes with no other data.
    REQUESTED.get().is_some_and(|r| r.load(Ordering::Relaxed))
}

/// Whether a child process ended because a stop was requested: a terminal sends the signal to the children as well, and they
/// may be gone before this process gets it.
pub fn explains(status: ExitStatus) -> bool {
    requested() || matches!(status.signal(), Some(SIGINT | SIGTERM))
}

/// For a child process: it ends when its parent does, whatever ends that.
pub fn die_with_parent() {
    // Where it is refused, an orphan goes on until it writes to a pipe that no process reads.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}
