//! When a child is killed.

use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::time::Duration;

/// How a round ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kill {
    /// So many milliseconds after the nth time that the child says that something begins.
    After(&'static str, u64, u64),
    /// At a rare path that is taken for the nth time.
    Rare(String, u64),
    /// Not at all: it closes and ends.
    Never,
    /// Not at all: it opens, verifies and closes.
    Verify,
}

/// Rare paths that kills are aimed at because what stands half-done there is large: what a kill there is amid, for counting.
pub const MOMENTS: [(&str, &str); 6] = [
    ("staged-value-growing", "amid a streamed value"),
    ("staged-value-ended", "between a streamed value and its commit"),
    ("staged-value-given-up", "amid a transaction or value that was given up"),
    ("value-moved", "amid a value-log rewrite"),
    ("value-log-retired", "between a value-log rewrite and the end of the old file"),
    ("direct-log-rotated", "amid a commit whose values are written once"),
];

/// What a round does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub kill: Kill,
    pub none: bool,
    pub close_after: Option<u64>,
}

impl Plan {
    /// Draws one. `rare` are the rare paths that were met so far.
    pub fn draw(rng: &mut Rng, rare: &BTreeMap<String, u64>) -> Plan {
        let mut plan = Plan { kill: Kill::Never, none: rng.one_in(5), close_after: None };
        plan.kill = match rng.below(100) {
            0..18 => {
                let most = [8, 25, 60, 150][rng.below(4) as usize];
                Kill::After("open", 1, rng.below(most))
            }
            18..26 => {
                let (name, _) = MOMENTS[rng.below(MOMENTS.len() as u64) as usize];
                let most = 1 << rng.below(4);
                Kill::Rare(name.to_owned(), 1 + rng.below(most))
            }
            26..50 => {
                let most = [100, 300, 300, 800, 800, 3_000][rng.below(6) as usize];
                Kill::After("verified", 1, 50 + rng.below(most))
            }
            50..56 => Kill::After("verified", 1, rng.below(50)),
            56..62 => Kill::After("flush", 1 + rng.below(3), rng.below(20)),
            62..68 => Kill::After("compact", 1 + rng.below(3), rng.below(30)),
            68..75 => Kill::After("change", 1 + rng.below(4), rng.below(6)),
            75..81 => Kill::After("copy", 1, rng.below(60)),
            81..84 => Kill::After("ingest", 1 + rng.below(5), rng.below(5)),
            84..92 => {
                plan.close_after = Some(rng.below(400));
                Kill::After("close", 1, rng.below(40))
            }
            92..96 => {
                plan.close_after = Some(rng.below(600));
                Kill::Never
            }
            _ => {
                let (at, most) = (rng.below(rare.len() as u64) as usize, 1 << rng.below(6));
                match rare.keys().nth(at) {
                    Some(name) => Kill::Rare(name.clone(), 1 + rng.below(most)),
                    None => Kill::After("verified", 1, rng.below(300)),
                }
            }
        };
        plan
    }

    /// The event that is waited for, how many times, and how long after it.
    pub fn trigger(&self) -> (&'static str, u64, Duration) {
        match &self.kill {
            Kill::After(event, nth, ms) => (event, *nth, Duration::from_millis(*ms)),
            Kill::Rare(..) => ("verified", 1, Duration::from_millis(1_000)),
            Kill::Never | Kill::Verify => ("", 0, Duration::ZERO),
        }
    }

    /// Whether the child ends by itself.
    pub fn waits_long(&self) -> bool {
        matches!(self.kill, Kill::Never | Kill::Verify) || matches!(self.kill, Kill::After("verified" | "close", ..))
    }

    /// For counting.
    pub fn name(&self) -> String {
        let none = if self.none { ", without log" } else { "" };
        match &self.kill {
            Kill::After("open", ..) => format!("in recovery or soon after{none}"),
            Kill::After("verified", ..) => format!("at work{none}"),
            Kill::After("change", ..) => format!("amid a change of families{none}"),
            Kill::After(event, ..) => format!("amid a {event}{none}"),
            Kill::Rare(..) => "rare path not met in time".to_owned(),
            Kill::Never | Kill::Verify => "(not killed)".to_owned(),
        }
    }
}
