//! What a person sees while a run is under way: a bar on a terminal, a line a second elsewhere.

use crate::measure::show_count;
use crate::say::note;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Instant;

/// How much there is to do.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// So many units.
    Units(u64),
    /// So many seconds.
    Seconds(f64),
    /// It is not known.
    Unknown,
    /// Progress is not shown.
    Unseen,
}

/// Progress of one phase, on standard error.
pub struct Progress {
    what: String,
    unit: &'static str,
    goal: Goal,
    start: Instant,
    last: (Instant, u64),
    bar: Option<ProgressBar>,
}

/// Parts that a bar is divided into, whatever is counted.
const PARTS: u64 = 1_000;

impl Progress {
    /// Starts showing `what`, counted in `unit`.
    pub fn start(what: String, unit: &'static str, goal: Goal) -> Progress {
        let shown = std::io::stderr().is_terminal() && !matches!(goal, Goal::Unseen);
        let bar = shown.then(|| {
            let bar = ProgressBar::with_draw_target(Some(PARTS), ProgressDrawTarget::stderr());
            let form = match goal {
                Goal::Unknown => "{spinner} {prefix} {msg}",
                _ => "{prefix} [{bar:30}] {msg}",
            };
            bar.set_style(ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(what.clone());
            bar
        });
        let now = Instant::now();
        Progress { what, unit, goal, start: now, last: (now, 0), bar }
    }

    /// Shows that `done` units are done. Returns the rate since the last call, per second.
    pub fn update(&mut self, done: u64) -> f64 {
        let now = Instant::now();
        let (then, before) = std::mem::replace(&mut self.last, (now, done));
        let span = (now - then).as_secs_f64();
        let rate = if span > 0.0 { done.saturating_sub(before) as f64 / span } else { 0.0 };
        let elapsed = (now - self.start).as_secs_f64();
        let share = match self.goal {
            Goal::Units(n) => done as f64 / n.max(1) as f64,
            Goal::Seconds(s) => elapsed / s.max(1e-9),
            Goal::Unknown | Goal::Unseen => 0.0,
        };
        let mut message = format!("{} {} ({}/s), {elapsed:.0} s", show_count(done as f64), self.unit, show_count(rate));
        if share > 0.0 && share < 1.0 {
            message.push_str(&format!(", {:.0} s left", elapsed * (1.0 - share) / share));
        }
        match &self.bar {
            Some(bar) => {
                bar.set_position((share.min(1.0) * PARTS as f64) as u64);
                bar.set_message(message);
                bar.tick();
            }
            None if matches!(self.goal, Goal::Unseen) => {}
            None => note!("{}: {message}", self.what),
        }
        rate
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
