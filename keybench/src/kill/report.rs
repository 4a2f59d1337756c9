//! What is printed about the cycles, one by one and in the end.

use super::model::Verdict;
use crate::error::{Error, Result};
use crate::measure::{median, show_count};
use crate::say::say;
use serde::Serialize;
use std::time::Duration;

/// Findings that are printed; more are only counted.
const TOLD: usize = 20;

/// What a process was doing when it was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Loading the data set.
    Load,
    /// Running the workload.
    Work,
    /// Opening the store.
    Recovery,
    /// Neither: it had just opened the store.
    Idle,
}

/// One kill.
#[derive(Clone, Copy, Debug)]
pub struct Cycle {
    /// When it came.
    pub stage: Stage,
    /// Seconds that the process had worked, or had been opening the store.
    pub life: f64,
    /// Seconds that opening the store had taken.
    pub recovery: Option<f64>,
    /// Seconds that verification took, where there is any.
    pub verify: Option<f64>,
    /// Operations that were acknowledged since the last check.
    pub pending: u64,
}

/// Something that is wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// `lost`, `wrong`, `torn`, `damage`, `failed`.
    pub kind: &'static str,
    /// In words.
    pub what: String,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    workload: String,
    engine: String,
    seed: u64,
    /// Seconds from the first start to the end.
    pub seconds: f64,
    /// SIGKILLs.
    pub kills: u64,
    kills_in_load: u64,
    kills_in_recovery: u64,
    /// Times that the contents were compared.
    checks: u64,
    keys_compared: u64,
    /// Operations and mutations that were acknowledged and checked.
    operations_acknowledged: u64,
    mutations_acknowledged: u64,
    /// Mutations that were in flight at kills, and how many of them had taken effect.
    in_flight: u64,
    in_flight_shown: u64,
    /// Unfinished files that kills left behind.
    pub orphans: u64,
    lost: u64,
    wrong: u64,
    torn: u64,
    verify_damage: u64,
    recovery_ms_median: f64,
    recovery_ms_max: f64,
    verify_ms_median: f64,
    /// The first of what was found.
    pub findings: Vec<Found>,
    #[serde(skip)]
    recoveries: Vec<f64>,
    #[serde(skip)]
    verifies: Vec<f64>,
}

impl Summary {
    /// Of nothing yet.
    pub fn new(workload: &str, engine: &str, seed: u64) -> Summary {
        Summary {
            workload: workload.to_owned(),
            engine: engine.to_owned(),
            seed,
            seconds: 0.0,
            kills: 0,
            kills_in_load: 0,
            kills_in_recovery: 0,
            checks: 0,
            keys_compared: 0,
            operations_acknowledged: 0,
            mutations_acknowledged: 0,
            in_flight: 0,
            in_flight_shown: 0,
            orphans: 0,
            lost: 0,
            wrong: 0,
            torn: 0,
            verify_damage: 0,
            recovery_ms_median: 0.0,
            recovery_ms_max: 0.0,
            verify_ms_median: 0.0,
            findings: Vec::new(),
            recoveries: Vec::new(),
            verifies: Vec::new(),
        }
    }

    /// Notes something that is wrong.
    pub fn find(&mut self, kind: &'static str, what: String) {
        match kind {
            "lost" => self.lost += 1,
            "wrong" => self.wrong += 1,
            "torn" => self.torn += 1,
            "damage" => self.verify_damage += 1,
            _ => {}
        }
        if self.findings.len() < TOLD {
            self.findings.push(Found { kind, what });
        }
    }

    /// Notes a comparison of `keys` keys after a recovery of so many seconds.
    pub fn checked(&mut self, verdict: &Verdict, keys: u64, recovery: f64) {
        self.checks += 1;
        self.keys_compared += keys;
        self.operations_acknowledged += verdict.operations;
        self.mutations_acknowledged += verdict.acknowledged;
        self.in_flight += verdict.in_flight;
        self.in_flight_shown += verdict.shown;
        self.recoveries.push(recovery);
        self.recovery_ms_median = median(self.recoveries.iter().map(|s| s * 1e3));
        self.recovery_ms_max = self.recovery_ms_max.max(recovery * 1e3);
    }

    /// Notes a kill.
    pub fn killed(&mut self, cycle: &Cycle) {
        self.kills += 1;
        self.kills_in_load += u64::from(cycle.stage == Stage::Load);
        self.kills_in_recovery += u64::from(cycle.stage == Stage::Recovery);
        self.verifies.extend(cycle.verify);
        self.verify_ms_median = median(self.verifies.iter().map(|s| s * 1e3));
    }

    /// Seconds of the last recovery.
    pub fn last_recovery(&self) -> f64 {
        self.recoveries.last().copied().unwrap_or(0.0)
    }

    /// A line for a kill that was just noted.
    pub fn line(&self, cycle: &Cycle, elapsed: Duration) -> String {
        let what = match cycle.stage {
            Stage::Load => "killed while loading",
            Stage::Work => "killed at work",
            Stage::Recovery => "killed in recovery",
            Stage::Idle => "killed after recovery",
        };
        let seconds = elapsed.as_secs();
        let ms = |s: Option<f64>| s.map_or("-".to_owned(), |s| format!("{:.0} ms", s * 1e3));
        format!(
            "{:>5}  {:>3}:{:02}  {what:<21} at {:.3} s, {} acknowledged, recovered in {}, verified in {}",
            self.kills,
            seconds / 60,
            seconds % 60,
            cycle.life,
            show_count((self.operations_acknowledged + cycle.pending) as f64),
            ms(cycle.recovery),
            ms(cycle.verify),
        )
    }

    /// Prints it.
    pub fn print(&self, json: bool) -> Result<()> {
        if json {
            let text = serde_json::to_string_pretty(self);
            say!("{}", text.map_err(|e| Error::failed(format!("cannot write the summary: {e}")))?);
            return Ok(());
        }
        for found in &self.findings {
            say!("{}: {}", found.kind, found.what);
        }
        let n = |n: u64| show_count(n as f64);
        say!("{} on {}, seed {}, {:.0} s", self.workload, self.engine, self.seed, self.seconds);
        say!(
            "{} kills, {} of them while loading and {} in recovery; {} recoveries compared, {} keys",
            n(self.kills),
            n(self.kills_in_load),
            n(self.kills_in_recovery),
            n(self.checks),
            n(self.keys_compared)
        );
        say!(
            "{} operations acknowledged in {} mutations; {} mutations in flight at kills, of which {} had taken effect",
            n(self.operations_acknowledged),
            n(self.mutations_acknowledged),
            n(self.in_flight),
            n(self.in_flight_shown)
        );
        say!(
            "lost {}, wrong {}, torn {}, verify damage {}; {} unfinished files left and removed",
            self.lost,
            self.wrong,
            self.torn,
            self.verify_damage,
            self.orphans
        );
        say!(
            "recovery median {:.1} ms, longest {:.1} ms; verify median {:.1} ms",
            self.recovery_ms_median,
            self.recovery_ms_max,
            self.verify_ms_median
        );
        Ok(())
    }
}
