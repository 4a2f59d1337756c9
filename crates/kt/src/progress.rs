//! Progress of long work, on standard error when that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// A bar with a known end or a spinner without; nothing where nobody looks.
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
        if goal.is_none() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Progress { bar }
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

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
