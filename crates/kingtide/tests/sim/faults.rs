//! Errors from the disk at every place of a scenario: no panic, no hang, nothing acknowledged is lost, nothing that was
//! refused comes back, and reads stay right.

use crate::history::{Op, Progress};
use crate::scenario::{DIR, KINDS, Kind, Scenario, options};
use crate::{env, full, read};
use kingtide::vfs::{Fault, FaultFs, MemFs, Op as FsOp, Rule, Survival};
use kingtide::{Db, Durability, ErrorKind, ManualClock};
use kingtide_base::rng::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// One injected trouble.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    op: FsOp,
    fault: Fault,
    nth: u64,
    sticky: bool,
}

/// A scenario on a disk that fails.
struct Run {
    scenario: Scenario,
    disk: MemFs,
    fs: FaultFs,
    refused: u64,
}

impl Run {
    fn new(kind: Kind, seed: u64) -> Run {
        let disk = MemFs::new();
        let fs = FaultFs::new(Arc::new(disk.clone()), seed);
        Run { scenario: Scenario::new(kind, seed, Arc::new(fs.clone())), disk, fs, refused: 0 }
    }

    fn progress(&self) -> Progress {
        self.scenario.progress.lock().expect("progress").clone()
    }

    /// Opens; when that is refused the trouble is taken away and it must succeed.
    fn open(&mut self) {
        if let Err(e) = self.scenario.open() {
            self.refusal(&e);
            self.fs.clear();
            self.scenario.open().expect("open on a healthy disk");
        }
    }

    fn refusal(&mut self, e: &kingtide::Error) {
        self.refused += 1;
        let expected = [ErrorKind::Io, ErrorKind::NoSpace, ErrorKind::Poisoned, ErrorKind::Busy];
        assert!(expected.contains(&e.kind()), "unexpected kind of error: {e:?}");
    }

    fn step(&mut self) {
        let begun = self.progress().begun;
        let before = self.scenario.db().latest_sequence();
        let Err(e) = self.scenario.step() else { return };
        self.refusal(&e);
        if self.scenario.db.is_none() {
            return self.open();
        }
        // Refused before it became visible: it never happened. Visible but not synced: nobody knows.
        if self.progress().begun > begun && self.scenario.db().latest_sequence() == before {
            self.scenario.history.commits.pop();
            self.scenario.progress.lock().expect("progress").begun = begun;
        }
    }

    /// Reads show all that is visible.
    fn check_reads(&self) {
        self.fs.set_enabled(false);
        let families = self.scenario.families.iter().map(|(name, f)| (name.clone(), f.0)).collect();
        let all = self.scenario.history.commits.len();
        for (family, contents) in read(self.scenario.db(), &families) {
            assert!(contents == self.scenario.history.contents(family, all, all), "reads of family {family}");
        }
        self.fs.set_enabled(true);
    }

    /// Opens what is on the disk without the trouble.
    fn check_disk(&self, disk: MemFs, at_least: usize, what: &str) {
        let clock = ManualClock::at_unix_ms(1_800_000_000_000);
        let db = Db::open(Path::new(DIR), options(&self.scenario.kind, Arc::new(disk), &clock))
            .unwrap_or_else(|e| panic!("open after {what}: {e:?}"));
        let (progress, names) = (self.progress(), db.families());
        let families = [Some(&progress.families), progress.changing.as_ref()]
            .into_iter()
            .flatten()
            .find(|f| f.keys().eq(names.iter()))
            .unwrap_or_else(|| panic!("families {names:?} after {what}: {progress:?}"));
        let found = read(&db, families);
        let recovered = self.scenario.history.recovered(&found, at_least, &progress);
        if recovered.is_none() {
            crate::explain(&self.scenario.history, &found, at_least, &progress);
        }
    }
}

/// Whether writes have to go on by themselves once the trouble is over.
fn must_resume(trouble: &Trouble) -> bool {
    trouble.fault == Fault::Enospc && matches!(trouble.op, FsOp::Write | FsOp::Allocate | FsOp::Open)
}

fn run(kind: Kind, seed: u64, steps: u64, trouble: Trouble) -> u64 {
    let mut run = Run::new(kind, seed);
    let mut rule = Rule::new(trouble.op, trouble.fault).nth(trouble.nth);
    if trouble.sticky {
        rule = rule.sticky();
    }
    run.fs.add(rule);
    run.open();
    for n in 0..steps {
        run.step();
        if n == steps / 2 {
            run.check_reads();
        }
    }
    run.check_reads();
    if trouble.nth.is_multiple_of(2) {
        // The trouble ends while the database is open.
        run.fs.clear();
        let put = Op::Put(0, b"after".to_vec(), b"the trouble".to_vec());
        let before = run.scenario.db().latest_sequence();
        match run.scenario.commit_ops(vec![put], Durability::Power).and_then(|()| run.scenario.db().flush()) {
            Ok(()) => {}
            Err(e) => {
                assert!(!must_resume(&trouble), "after the disk had space again: {e:?}");
                run.refusal(&e);
                if run.scenario.db().latest_sequence() == before {
                    run.scenario.history.commits.pop();
                    let begun = run.scenario.history.commits.len();
                    run.scenario.progress.lock().expect("progress").begun = begun;
                }
            }
        }
        run.check_reads();
    }
    let mut rng = Rng::new(seed ^ trouble.nth);
    run.scenario.history.freeze();
    let progress = run.progress();
    run.check_disk(run.disk.kill_clone(), progress.process.max(progress.power), "a kill");
    for model in Survival::ALL {
        run.check_disk(run.disk.crash_clone(model, &mut rng), progress.power, "a power cut");
    }
    if let Err(e) = run.scenario.db().close() {
        run.refusal(&e);
    }
    run.check_disk(run.disk.kill_clone(), progress.process.max(progress.power), "closing");
    run.refused
}

/// The number of operations of each kind that the scenario does on a healthy disk.
fn operations(kind: Kind, seed: u64, steps: u64) -> impl Fn(FsOp) -> u64 {
    let mut run = Run::new(kind, seed);
    run.open();
    (0..steps).for_each(|_| run.step());
    let stats = run.fs.stats();
    assert_eq!(run.refused, 0);
    move |op| stats.count(op)
}

#[test]
fn a_failing_disk_loses_nothing_acknowledged() {
    let (seeds, samples, steps) = if full() { (2, 25, 100) } else { (1, 6, 60) };
    let only = env("KINGTIDE_FAULT");
    let (mut cases, mut refused, mut failures) = (0u64, 0, Vec::new());
    // What is not logged may go with a close that fails, which would leave nothing to compare reads with.
    for kind in KINDS.map(|kind| Kind { unlogged: 0, ..kind }) {
        for seed in 1..=seeds {
            let count = operations(kind, seed, steps);
            for op in FsOp::ALL {
                let faults = [Fault::Eio, Fault::Enospc, Fault::ShortWrite];
                for (fault, sticky) in faults.into_iter().flat_map(|f| [(f, false), (f, true)]) {
                    if fault == Fault::ShortWrite && op != FsOp::Write {
                        continue;
                    }
                    let stride = count(op).div_ceil(samples).max(1);
                    for nth in (1 + seed % stride..=count(op)).step_by(stride as usize) {
                        cases += 1;
                        if only.is_some_and(|n| n != cases) {
                            continue;
                        }
                        let trouble = Trouble { op, fault, nth, sticky };
                        match catch_unwind(AssertUnwindSafe(|| run(kind, seed, steps, trouble))) {
                            Ok(n) => refused += n,
                            Err(_) => {
                                failures.push(format!("KINGTIDE_FAULT={cases} {} seed {seed} {trouble:?}", kind.name))
                            }
                        }
                    }
                }
            }
        }
    }
    println!("{cases} troubles, {refused} calls refused, {} failures", failures.len());
    assert!(failures.is_empty(), "{failures:#?}");
}

/// A failed sync of the log stops writes, with an error that says why; reads go on, and the next open has all that was
/// synced before.
#[test]
fn a_failed_log_sync_stops_writes_but_not_reads() {
    let mut run = Run::new(KINDS[0], 1);
    run.open();
    let put = |n: u8| vec![Op::Put(0, vec![n], vec![n; 10])];
    run.scenario.commit_ops(put(1), Durability::Power).expect("healthy");
    run.disk.fail_syncs(1);
    let e = run.scenario.commit_ops(put(2), Durability::Power).expect_err("a failed sync");
    assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}");
    for durability in [Durability::Power, Durability::Process] {
        let e = run.scenario.commit_ops(put(3), durability).expect_err("stopped");
        assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}");
        run.scenario.history.commits.pop();
    }
    run.scenario.progress.lock().expect("progress").begun = 2;
    run.check_reads();
    run.scenario.history.freeze();
    let progress = run.progress();
    assert_eq!(progress.power, 1);
    for model in Survival::ALL {
        run.check_disk(run.disk.crash_clone(model, &mut Rng::new(1)), 1, "a failed sync");
    }
    run.check_disk(run.disk.kill_clone(), 1, "a failed sync and a kill");
}

/// A family that gets the id of a dropped one, because the manifest was rewritten in between, finds nothing of it in the
/// log.
#[test]
fn a_new_family_finds_nothing_of_a_dropped_one() {
    let mut run = Run::new(KINDS[0], 1);
    run.open();
    let rewrite = |run: &Run| {
        run.fs.add(Rule::new(FsOp::Sync, Fault::Eio).path("MANIFEST"));
        let family = run.scenario.db().default_family().clone();
        family.set_option("l0_trigger", "3").expect_err("the manifest's sync fails");
        family.set_option("l0_trigger", "2").expect("rewrites the manifest");
    };
    let db = run.scenario.db().clone();
    let old = db.create_family("old", kingtide::FamilyOptions::default()).expect("create");
    old.put(b"key", b"of the old one").expect("put");
    db.drop_family("old").expect("drop");
    rewrite(&run);
    drop((old, db));
    let disk = run.disk.kill_clone();
    let clock = ManualClock::at_unix_ms(1_800_000_000_000);
    let reopen =
        |disk: &MemFs| Db::open(Path::new(DIR), options(&KINDS[0], Arc::new(disk.clone()), &clock)).expect("open");
    let db = reopen(&disk);
    let new = db.create_family("new", kingtide::FamilyOptions::default()).expect("create");
    new.put(b"other", b"value").expect("put");
    let db = reopen(&disk.kill_clone());
    let new = db.family("new").expect("family");
    assert_eq!(new.get(b"key").expect("get").as_deref(), None);
    assert_eq!(new.get(b"other").expect("get").as_deref(), Some(&b"value"[..]));
}

/// On a disk that is full writes are refused with `NoSpace`, reads go on, and when there is space again writes go on
/// without a reopen.
#[test]
fn a_full_disk_refuses_writes_until_there_is_space() {
    for (kind, seed) in KINDS.into_iter().map(|kind| Kind { unlogged: 0, rare: [30, 15, 0, 0], ..kind }).zip(1..) {
        let mut run = Run::new(kind, seed);
        run.open();
        (0..30).for_each(|_| run.step());
        assert_eq!(run.refused, 0);
        run.disk.set_capacity(Some(1));
        (0..200).for_each(|_| run.step());
        assert!(run.refused > 0, "{}: nothing was refused", kind.name);
        run.check_reads();
        run.disk.set_capacity(None);
        let put = Op::Put(0, b"after".to_vec(), b"the trouble".to_vec());
        run.scenario.commit_ops(vec![put], Durability::Power).expect("there is space");
        run.scenario.db().flush().expect("there is space");
        run.check_reads();
        run.scenario.history.freeze();
        let progress = run.progress();
        run.check_disk(run.disk.crash_clone(Survival::AllLost, &mut Rng::new(seed)), progress.power, "a full disk");
    }
}
