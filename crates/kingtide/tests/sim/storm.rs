//! What makes life harder: trouble with the disk that comes and goes, also across kills and power cuts, and clocks that go
//! back; and a second look at the files beside the open database.

use crate::faults::KINDS;
use crate::history::hash_of;
use crate::plan::Plan;
use crate::world::{DIR, World, families_found, options, read};
use kingtide::vfs::{Fault, Rule};
use kingtide::{Db, ManualClock};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Steps that trouble lasts at most.
const LASTS: u64 = 25;

/// Trouble with the disk.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// What fails. `None`: the disk is full, or a sync loses what it should have stored.
    pub rule: Option<Rule>,
    full: bool,
    until: u64,
}

impl World {
    /// Some kind of fault begins, or the one that there is ends.
    pub fn begin_trouble(&mut self) {
        if self.trouble.is_some() {
            return self.end_trouble();
        }
        let until = self.steps + 1 + self.rng.below(LASTS);
        let full = self.rng.one_in(6);
        let (op, faults) = KINDS[self.rng.below(KINDS.len() as u64) as usize];
        let fault = faults[self.rng.below(faults.len() as u64) as usize].filter(|_| !full);
        let rule = fault.map(|fault| {
            let mut rule = Rule::new(op, fault).nth(1 + self.rng.below(12));
            if self.rng.one_in(3) {
                rule = rule.sticky();
            }
            match self.rng.below(6) {
                0 | 1 => rule.path("MANIFEST"),
                2 => rule.path(".wal"),
                _ => rule,
            }
        });
        self.short_reads |= fault == Some(Fault::ShortRead);
        if full {
            self.disk.set_capacity(Some(1));
        } else if rule.is_none() {
            self.disk.fail_syncs(1 + self.rng.below(3));
        }
        self.counts.troubles += 1;
        self.trouble = Some(Trouble { rule, full, until });
        self.set_faults();
    }

    pub fn end_trouble_when_due(&mut self) {
        if self.trouble.as_ref().is_some_and(|t| t.until <= self.steps) {
            self.end_trouble();
        }
    }

    fn end_trouble(&mut self) {
        let Some(trouble) = self.trouble.take() else { return };
        self.disk.fail_syncs(0);
        self.disk.set_capacity(None);
        self.set_faults();
        if trouble.full && self.plan.faults.is_empty() && self.db().stats().writes_stopped.is_none() {
            self.writes_resume();
        }
    }

    /// The clocks go back, each by its own, or tremble, or show the right time again.
    pub fn move_clocks(&mut self) {
        let back = |world: &mut World, most_ms: u64| match world.rng.below(3) {
            0 => Duration::ZERO,
            1 => Duration::from_millis(world.rng.below(20)),
            _ => Duration::from_millis(world.rng.below(most_ms)),
        };
        let (monotonic, wall) = (back(self, 60_000), back(self, 3_600_000));
        let jitter = if self.rng.one_in(2) { Duration::from_millis(5) } else { Duration::ZERO };
        self.clock.set_back(monotonic, wall, jitter);
    }

    /// What a recovery of the same files finds now is what memory has: families with their options and files, sequence
    /// numbers, transactions in doubt, and every entry. What only an unlogged commit wrote may be missing.
    pub fn shadow(&mut self) {
        // Where a write to the manifest failed, its end is in doubt until the next one.
        if self.trouble.is_some() || self.refused > 0 || self.edit(|p| p.changing.is_some()) {
            return self.check_reads();
        }
        let disk = Arc::new(self.disk.kill_clone());
        let now = self.clock_ms();
        let opens = |plan: &Plan| options(plan, disk.clone(), ManualClock::at_unix_ms(now));
        let all_logged = self.plan.mix.unlogged == 0;
        let (shadow, differences) = self.db().shadow(opens(&self.plan)).expect("recovery beside the open database");
        assert!(differences.is_empty(), "memory and a recovery of its files: {differences:#?}");
        let progress = self.edit(|p| p.clone());
        let families = families_found(&shadow, &progress);
        let found = read(&shadow, &families);
        if all_logged {
            assert_eq!(shadow.latest_sequence(), self.db().latest_sequence(), "the last sequence number");
            for (name, (no, _)) in &self.families {
                assert!(found.contents[no] == self.now[no].visible(now), "family {name} in the shadow");
            }
        } else {
            assert!(shadow.latest_sequence() <= self.db().latest_sequence(), "the last sequence number");
        }
        let tables = self.history.tables(progress.epoch, now);
        let at_least = progress.process.max(progress.power);
        if self.history.recovered(&tables, &found, at_least, &progress).is_none() {
            self.history.explain(&tables, &found, at_least, &progress);
        }
        drop(shadow);
        // An open for writing finds the same.
        let again = Db::open(Path::new(DIR), opens(&self.plan)).expect("recovery of a clone");
        let written = read(&again, &families_found(&again, &progress));
        let hashes = |f: &crate::history::Found| f.contents.iter().map(|(no, c)| (*no, hash_of(c))).collect::<Vec<_>>();
        assert_eq!(hashes(&written), hashes(&found), "opened for reading only, and for writing");
        assert_eq!(written.in_doubt, found.in_doubt, "opened for reading only, and for writing");
        self.counts.shadows += 1;
    }
}
