//! Progress of long work, on standard error if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A bar with a known end, or a spinner without one. Hidden if standard error is not a terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Begins to show `what`, counted in `unit` up to `goal` if that is known.
    pub fn start(what: &str, unit: &str, goal: Option<u64>) -> Progress {
        let target =
            if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(goal, target);
        let form = match goal {
            Some(_) => format!("{what} [{{bar:30}}] {{pos}}/{{len}} {unit}, {{eta}} left"),
            None => format!("{{spinner}} {what} {{pos}} {unit} {{elapsed}}"),
        };
        bar.set_style(ProgressStyle::with_template(&form).unwrap_or_else(|_| ProgressStyle::default_bar()));
        if goal.is_none() && !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Progress { bar }
    }

    /// The same beside results on standard output: hidden if they go to a terminal, where both would mix.
    pub fn beside_output(what: &str, unit: &str) -> Progress {
        match std::io::stdout().is_terminal() {
            true => Progress { bar: ProgressBar::hidden() },
            false => Progress::start(what, unit, None),
        }
    }

    /// A bar of bytes, whose goal is set later.
    pub fn bytes(what: &str) -> Progress {
        let progress = Progress::start(what, "bytes", Some(0));
        let form = format!("{what} [{{bar:30}}] {{bytes}}/{{total_bytes}}, {{eta}} left");
        progress.bar.set_style(ProgressStyle::with_template(&form).unwrap_or_else(|_| ProgressStyle::default_bar()));
        progress
    }

    /// Does `work`, and shows what `look` tells of it meanwhile: how much is done, of how much.
    pub fn watch<R>(&self, look: impl Fn() -> (u64, u64) + Sync, work: impl FnOnce() -> R) -> R {
        if self.bar.is_hidden() {
            return work();
        }
        let ended = AtomicBool::new(false);
        std::thread::scope(|s| {
            let watch = || {
                while !ended.load(Ordering::Acquire) {
                    let (done, goal) = look();
                    self.set_of(done, goal);
                    std::thread::park_timeout(Duration::from_millis(100));
                }
            };
            // The work matters more than its progress.
            let spawn = |()| std::thread::Builder::new().spawn_scoped(s, watch);
            let watcher = kingtide_vfs::room_for_a_thread().and_then(spawn);
            let _end = OnDrop(|| {
                ended.store(true, Ordering::Release);
                if let Ok(watcher) = &watcher {
                    watcher.thread().unpark();
                }
            });
            work()
        })
    }

    /// So many units are done of so many.
    pub fn set_of(&self, done: u64, goal: u64) {
        self.bar.set_length(goal);
        self.bar.set_position(done);
    }

    /// So many units are done in all.
    pub fn set(&self, done: u64) {
        self.bar.set_position(done);
    }
}

/// Runs at the end of its scope, also when a panic ends it.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
