//! What makes life harder: trouble with the disk that comes and goes, also across kills and power cuts, and clocks that go
//! back; and a second look at the files beside the open database.

use crate::sim::clock::JITTER;
use crate::sim::draws::{options, set_fuse};
use crate::sim::faults::KINDS;
use crate::sim::history::{Progress, hash_of};
use crate::sim::plan::Plan;
use crate::sim::world::{DIR, World, families_found, read};
use kingtide::vfs::{MemFs, Rule, Survival};
use kingtide::{Db, ErrorKind, ManualClock};
use kingtide_base::rare;
use kingtide_base::rng::Rng;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
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
        let jitter = if self.rng.one_in(2) { JITTER } else { Duration::ZERO };
        self.clock.set_back(monotonic, wall, jitter);
        self.clock_was_set();
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
        let draw = self.rng.next_u64();
        let opens = |plan: &Plan| options(plan, disk.clone(), ManualClock::at_unix_ms(now), draw);
        let all_logged = self.plan.mix.unlogged == 0;
        let (shadow, mut differences) = self.db().shadow(opens(&self.plan)).expect("recovery beside the open database");
        // An open on a full disk goes on without storing the default family's options: the next manifest that is written as a whole has them.
        let unstored = |d: &String| d.starts_with("stored options of the default family");
        differences.retain(|d| !unstored(d) || !self.opened_on_full_disk);
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
        let at_least = progress.process.max(progress.power);
        let tables = (!all_logged).then(|| self.history.tables(progress.epoch, now));
        if let Some(tables) = tables
            && self.history.recovered(&tables, &found, at_least, &progress).is_none()
        {
            self.history.explain(&tables, &found, at_least, &progress);
        }
        drop(shadow);
        // An open for writing finds the same.
        let again = Db::open(Path::new(DIR), opens(&self.plan)).expect("recovery of a clone");
        let written = read(&again, &families_found(&again, &progress));
        let hashes =
            |f: &crate::sim::history::Found| f.contents.iter().map(|(no, c)| (*no, hash_of(c))).collect::<Vec<_>>();
        assert_eq!(hashes(&written), hashes(&found), "opened for reading only, and for writing");
        assert_eq!(written.in_doubt, found.in_doubt, "opened for reading only, and for writing");
        self.counts.shadows += 1;
    }
}

/// A death in a rare path: the disk as it was then, and what had been acknowledged by then.
pub struct Death {
    disk: MemFs,
    progress: Progress,
}

/// Looks at every rare path that this thread takes, and decides where to die. What the engine does behind that place is
/// done for nothing: the next open gets the disk of the moment of death.
pub struct Doom(Rc<RefCell<Inner>>);

struct Inner {
    rng: Rng,
    /// Dies here more often than elsewhere.
    favourite: &'static str,
    deaths: BTreeMap<&'static str, u64>,
    disk: MemFs,
    progress: Arc<Mutex<Progress>>,
    death: Option<Death>,
}

/// How often the simulation died in each rare path.
pub static DEATHS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

impl Doom {
    pub fn new(seed: u64, world: &World) -> Doom {
        let mut rng = Rng::new(seed ^ 0xd00d);
        let favourite = rare::PATHS[rng.below(rare::PATHS.len() as u64) as usize].name;
        let (disk, progress) = (world.disk.clone(), world.progress.clone());
        let inner =
            Rc::new(RefCell::new(Inner { rng, favourite, deaths: BTreeMap::new(), disk, progress, death: None }));
        let hook = inner.clone();
        rare::on_this_thread(Some(Box::new(move |name| hook.borrow_mut().visit(name))));
        Doom(inner)
    }
}

impl Drop for Doom {
    fn drop(&mut self) {
        rare::on_this_thread(None);
    }
}

impl Inner {
    fn visit(&mut self, name: &'static str) {
        let (chance, most) = if name == self.favourite { (3, 8) } else { (40, 1) };
        let before = self.deaths.get(name).copied().unwrap_or(0);
        if self.death.is_none() && before < most && self.rng.one_in(chance) {
            self.deaths.insert(name, before + 1);
            *DEATHS.lock().expect("deaths").entry(name).or_default() += 1;
            let progress = self.progress.lock().expect("progress").clone();
            self.death = Some(Death { disk: self.disk.kill_clone(), progress });
        }
    }
}

impl World {
    /// Tells the doom of another disk, where it may die from now on.
    pub fn doom_sees(&self, disk: &MemFs) {
        if let Some(doom) = &self.doom {
            doom.0.borrow_mut().disk = disk.clone();
        }
    }

    /// The death that the last step met.
    pub fn death(&mut self) -> Option<Death> {
        self.doom.as_ref().and_then(|doom| doom.0.borrow_mut().death.take())
    }

    /// Goes on from a death: what came after it never happened.
    pub fn die(&mut self, death: Death) {
        self.counts.deaths += 1;
        let Death { disk, progress } = death;
        let model = (self.rng.one_in(3)).then(|| Survival::ALL[self.rng.below(Survival::ALL.len() as u64) as usize]);
        let disk = model.map_or_else(|| disk.kill_clone(), |m| disk.crash_clone(m, &mut self.rng));
        self.disk.on_write(None);
        self.let_go();
        self.db = None;
        self.history.events.truncate(progress.begun);
        for event in &mut self.history.events {
            event.void_from = event.void_from.filter(|from| *from <= progress.epoch);
        }
        self.edit(|p| *p = Progress { copying: None, ..progress });
        // Whatever the abandoned process met on its way to the end.
        drop(self.death());
        let at_least = self.survives(model.is_some());
        self.mount(disk);
        self.open();
        self.take_up(at_least);
        // One that died while it recovered from a death dies a second time.
        if let Some(again) = self.death() {
            self.die(again);
        }
    }

    /// A background job panics, somewhere: it must become an error that stops writes and shows in the statistics, a close
    /// must return, and the next open must be a good one.
    pub fn panic_in_job(&mut self) {
        if self.trouble.is_some() || !self.plan.faults.is_empty() || !self.plan.disk.is_empty() {
            return; // one cause at a time
        }
        let most = 1 << self.rng.below(9);
        set_fuse(Some(self.rng.below(most)));
        let mut result = Ok(());
        for _ in 0..8 {
            result = match self.rng.below(3) {
                0 => self.db().flush(),
                _ => self.run_job().map(drop),
            };
            if result.is_err() {
                break;
            }
        }
        set_fuse(None);
        // A flush does not fail because the log could not shrink behind it, but the panic stops writes all the same.
        if result.is_ok() && self.db().stats().writes_stopped.is_some() {
            result = self.db().flush();
        }
        let Err(e) = result else { return };
        if e.kind() != ErrorKind::Poisoned || !e.to_string().contains("panicked (injected: ") {
            return self.tolerate(e); // another trouble
        }
        self.counts.panics += 1;
        let stats = self.db().stats();
        assert!(
            stats.background_error.is_some_and(|t| t.contains("panicked (injected: ")),
            "the statistics do not show a panic"
        );
        assert!(stats.writes_stopped.is_some(), "a panic did not stop writes");
        let (_, family) = self.any_family();
        let refused = family.put(b"key", b"after a panic").expect_err("writes are stopped");
        assert_eq!(refused.kind(), ErrorKind::Poisoned, "{refused}");
        self.check_reads();
        let at_least = self.survives(false);
        let db = self.db.take().expect("open");
        let closed = db.close();
        assert!(closed.is_err(), "a close after a panic reports nothing");
        self.let_go();
        drop(db);
        drop(self.death());
        self.open();
        self.take_up(at_least);
    }
}
