//! Errors from the disk at every place of a scenario: no panic, no hang, nothing acknowledged is lost, nothing that was
//! refused comes back, reads stay right, and once there is space again writes go on.

use crate::sim::clock::LATER;
use crate::sim::cuts::on_two_threads;
use crate::sim::draws::options;
use crate::sim::history::{FOREVER, Op, Progress};
use crate::sim::plan::{Part, Plan};
use crate::sim::watchdog::watch;
use crate::sim::world::{DIR, LOOKS_FOR_SPACE, World, families_found, read};
use crate::sim::{cases, env, full, is_whole};
use kingtide::vfs::{Fault, MemFs, Op as FsOp, Rule, Survival};
use kingtide::{Db, Durability, ErrorKind, ManualClock};
use kingtide_base::rare;
use kingtide_base::rare::excuses::FAULTS;
use kingtide_base::rng::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which faults make sense on which operation. `None`: the sync fails and the system marks what it held clean.
pub const KINDS: [(FsOp, &[Option<Fault>]); 8] = {
    use Fault::{DoneEio, Edquot, Eintr, Eio, Emfile, Enospc, ShortRead, ShortWrite};
    [
        (FsOp::Open, &[Some(Eio), Some(Enospc), Some(Edquot), Some(Emfile), Some(Eintr)]),
        (FsOp::Read, &[Some(Eio), Some(Eintr), Some(ShortRead)]),
        (FsOp::Write, &[Some(Eio), Some(Enospc), Some(Edquot), Some(Eintr), Some(ShortWrite)]),
        (FsOp::Sync, &[Some(Eio), Some(Enospc), Some(Edquot), Some(Eintr), None]),
        (FsOp::SyncDir, &[Some(Eio), Some(Eintr)]),
        (FsOp::Rename, &[Some(Eio), Some(Enospc), Some(Edquot), Some(DoneEio)]),
        (FsOp::Remove, &[Some(Eio), Some(Eintr)]),
        (FsOp::Allocate, &[Some(Eio), Some(Enospc), Some(Edquot), Some(Eintr)]),
    ]
};

/// One injected trouble.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    op: FsOp,
    fault: Option<Fault>,
    /// Which operation of its kind; without a fault, which step.
    nth: u64,
    sticky: bool,
}

impl Trouble {
    fn all() -> impl Iterator<Item = Trouble> {
        let kinds = KINDS.iter().flat_map(|(op, faults)| faults.iter().map(|fault| (*op, *fault)));
        kinds.flat_map(|(op, fault)| [false, true].map(|sticky| Trouble { op, fault, nth: 0, sticky }))
    }

    /// Whether writes have to go on by themselves once the trouble is over.
    fn must_resume(&self) -> bool {
        matches!(self.fault, Some(Fault::Enospc | Fault::Edquot))
            && matches!(self.op, FsOp::Write | FsOp::Allocate | FsOp::Open)
    }
}

/// A scenario for a disk that fails: whatever it does, what it has acknowledged can be told.
fn for_faults(plan: &Plan) -> Arc<Plan> {
    let mut plan = plan.clone();
    plan.mix.unlogged = 0; // may go with a close that fails
    plan.live.iter_mut().filter(|l| l.0 == "durability").for_each(|l| l.1.retain(|value| value != "none"));
    plan.weights.retain(|w| !matches!(w.0, Part::Kill | Part::Cut | Part::Trouble | Part::Panic));
    plan.faults.clear();
    plan.disk.clear();
    Arc::new(plan)
}

fn begin(plan: &Arc<Plan>, seed: u64) -> World {
    let mut world = World::new(plan, seed);
    world.faulty = true;
    world.mount(MemFs::new());
    world
}

/// Opens what is on the disk without the trouble.
fn check_disk(world: &World, progress: &Progress, disk: MemFs, at_least: usize, what: &str) {
    let clock = ManualClock::at_unix_ms(LATER[0]);
    let db = Db::open(Path::new(DIR), options(&world.plan, Arc::new(disk), clock, at_least as u64))
        .unwrap_or_else(|e| panic!("open after {what}: {e:?}"));
    let found = read(&db, &families_found(&db, progress));
    let tables = world.history.tables(progress.epoch, LATER[0]);
    if world.history.recovered(&tables, &found, at_least, progress).is_none() {
        println!("after {what}:");
        world.history.explain(&tables, &found, at_least, progress);
    }
}

fn check_disks(world: &World, seed: u64, what: &str) {
    let progress = world.edit(|p| p.clone());
    let mut rng = Rng::new(seed);
    check_disk(
        world,
        &progress,
        world.disk.kill_clone(),
        progress.process.max(progress.power),
        &format!("{what}, a kill"),
    );
    for model in Survival::ALL {
        let disk = world.disk.crash_clone(model, &mut rng);
        check_disk(world, &progress, disk, progress.power, &format!("{what}, a power cut, {model:?}"));
    }
}

/// The trouble ends while the database is open.
fn end_trouble(world: &mut World, trouble: &Trouble) {
    world.faults.clear();
    world.disk.fail_syncs(0);
    let put = Op::Put(0, b"after".to_vec(), b"the trouble".to_vec(), FOREVER);
    (0..LOOKS_FOR_SPACE).for_each(|_| _ = world.db().run_one_job());
    let done = world.commit_ops(vec![put], Some(Durability::Power)).and_then(|()| world.flush());
    if let Err(e) = done {
        assert!(!trouble.must_resume(), "after the disk had space again: {e:?}");
        world.tolerate(e);
    }
    world.check_reads();
}

/// Returns how many calls were refused, how many operations were made to fail, and how many records were written at once.
fn run(plan: &Arc<Plan>, seed: u64, steps: u64, trouble: Trouble) -> [u64; 3] {
    let mut world = begin(plan, seed);
    if let Some(fault) = trouble.fault {
        let rule = Rule::new(trouble.op, fault).nth(trouble.nth);
        world.faults.add(if trouble.sticky { rule.sticky() } else { rule });
    }
    world.open();
    for n in 0..steps {
        if trouble.fault.is_none() && n == trouble.nth {
            world.disk.fail_syncs(if trouble.sticky { u64::MAX } else { 1 });
        }
        world.step();
        if n == steps / 2 {
            world.check_reads();
        }
    }
    world.check_reads();
    if trouble.nth.is_multiple_of(2) {
        end_trouble(&mut world, &trouble);
    }
    check_disks(&world, seed ^ trouble.nth, "trouble");
    if let Err(e) = world.db().close() {
        world.tolerate(e);
    }
    let progress = world.edit(|p| p.clone());
    check_disk(&world, &progress, world.disk.kill_clone(), progress.process.max(progress.power), "closing");
    let lost_syncs = u64::from(trouble.fault.is_none());
    [world.refused, world.faults.stats().injected() + lost_syncs, world.records.load(Ordering::Relaxed)]
}

/// The number of operations of each kind that the scenario does on a healthy disk.
fn operations(plan: &Arc<Plan>, seed: u64, steps: u64) -> impl Fn(&Trouble) -> u64 + use<> {
    let mut world = begin(plan, seed);
    world.open();
    (0..steps).for_each(|_| world.step());
    assert_eq!(world.refused, 0, "{}: refused on a healthy disk", plan.name);
    let stats = world.faults.stats();
    move |trouble| if trouble.fault.is_some() { stats.count(trouble.op) } else { steps }
}

#[test]
fn a_failing_disk_loses_nothing_acknowledged() {
    let (seeds, samples, steps, every) = if full() { (3, 8, 80, 1) } else { (1, 1, 50, 5) };
    let [cases_run, refused, injected, records] = [const { AtomicU64::new(0) }; 4];
    let start = std::time::Instant::now();
    let all: Vec<(usize, (Arc<Plan>, u64))> = cases(seeds).into_iter().enumerate().collect();
    let failures = on_two_threads(&all, |(index, (plan, seed))| {
        let plan = for_faults(plan);
        let count = {
            let _watched = watch(format!("KINGTIDE_SCENARIO={} KINGTIDE_SEED={seed} on a healthy disk", plan.name));
            operations(&plan, *seed, steps)
        };
        let mut failures = Vec::new();
        let mut rng = Rng::new(*seed);
        for (kind, mut trouble) in Trouble::all().enumerate().filter(|(kind, _)| (kind + index).is_multiple_of(every)) {
            for sample in 0..samples {
                trouble.nth = 1 + rng.below(count(&trouble).max(1));
                let number = kind as u64 * 100 + sample;
                if env("KINGTIDE_FAULT").is_some_and(|n| n != number) {
                    continue;
                }
                let case = format!("KINGTIDE_SCENARIO={} KINGTIDE_SEED={seed} KINGTIDE_FAULT={number}", plan.name);
                let _watched = watch(case.clone());
                match catch_unwind(AssertUnwindSafe(|| run(&plan, *seed, steps, trouble))) {
                    Ok(counts) => {
                        cases_run.fetch_add(1, Ordering::Relaxed);
                        for (total, n) in [&refused, &injected, &records].into_iter().zip(counts) {
                            total.fetch_add(n, Ordering::Relaxed);
                        }
                    }
                    Err(_) => failures.push(format!("{case} {trouble:?}")),
                }
            }
        }
        if full() {
            let n = cases_run.load(Ordering::Relaxed);
            println!("{:?} {} seed {seed} done, {n} troubles", start.elapsed(), plan.name);
        }
        failures
    });
    let [cases_run, refused, injected, records] = [cases_run, refused, injected, records].map(AtomicU64::into_inner);
    println!(
        "{cases_run} troubles, {injected} operations made to fail, {refused} calls refused, {records} records written at once"
    );
    println!("{}", FAULTS.report(&rare::counts()));
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(records > 0, "no record was written at once");
    if is_whole() {
        FAULTS.check(&rare::counts()).unwrap_or_else(|never| panic!("{never}"));
    }
}

fn plain() -> Arc<Plan> {
    for_faults(&Plan::parse("plain", "[workload]\nbatch = 90\nflush = 3\nmerge = 2\n"))
}

/// A failed sync of the log stops writes, with an error that says why, as the statistics do; reads go on, and the next
/// open has all that was synced before.
#[test]
fn a_failed_log_sync_stops_writes_but_not_reads() {
    let mut world = begin(&plain(), 1);
    world.open();
    let put = |n: u8| vec![Op::Put(0, vec![n], vec![n; 10], FOREVER)];
    world.commit_ops(put(1), Some(Durability::Power)).expect("healthy");
    assert_eq!(world.db().stats().writes_stopped, None);
    world.disk.fail_syncs(1);
    let e = world.commit_ops(put(2), Some(Durability::Power)).expect_err("a failed sync");
    assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}");
    for durability in [Durability::Power, Durability::Process] {
        let e = world.commit_ops(put(3), Some(durability)).expect_err("stopped");
        assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}");
        let told = world.db().stats().writes_stopped.expect("stopped");
        assert!(told.contains("sync") && told.contains(".wal"), "{told}");
        assert!(world.db().stats().to_string().contains(&told), "shown");
    }
    world.check_reads();
    assert_eq!(world.edit(|p| p.power), 1);
    check_disks(&world, 1, "a failed sync");
}

/// What a failed sync lost can be read until the machine restarts. The next open stores it again, or what is acknowledged
/// later would lie behind a hole.
#[test]
fn what_a_failed_sync_lost_is_stored_by_the_next_open() {
    for manifest in [false, true] {
        let mut world = begin(&plain(), 1);
        world.open();
        let put = |n: u8| vec![Op::Put(0, vec![n], vec![n; 10], FOREVER)];
        world.commit_ops(put(1), Some(Durability::Power)).expect("healthy");
        world.disk.fail_syncs(1);
        if manifest {
            let family = world.db().default_family().clone();
            family.set_option("l0_trigger", "3").expect_err("a failed sync");
        } else {
            world.commit_ops(put(2), Some(Durability::Power)).expect_err("a failed sync");
        }
        if let Err(e) = world.reopen() {
            world.tolerate(e);
            world.open();
        }
        world.commit_ops(put(3), Some(Durability::Power)).expect("healthy again");
        world.db().default_family().set_option("l0_trigger", "2").expect("healthy again");
        world.check_reads();
        check_disks(&world, 1, "a failed sync and an open");
    }
}

/// A log segment whose beginning the manifest failed to note has a header and no record. It is not synced before the mark
/// that closes it is written; if the sync of the mark fails, the header goes with it, although the log says it was closed.
#[test]
fn the_header_of_an_empty_segment_is_stored_by_the_open_after_a_close_that_failed() {
    let mut world = begin(&plain(), 1);
    world.open();
    let put = |n: u8| vec![Op::Put(0, vec![n], vec![n; 10], FOREVER)];
    world.commit_ops(put(1), Some(Durability::Power)).expect("healthy");
    world.reopen().expect("healthy");
    world.disk.fail_syncs(u64::MAX);
    let e = world.commit_ops(put(2), Some(Durability::Process)).expect_err("the manifest's sync fails");
    world.tolerate(e);
    let e = world.reopen().expect_err("the sync of the mark fails");
    world.tolerate(e);
    world.disk.fail_syncs(0);
    world.open();
    world.commit_ops(put(3), Some(Durability::Power)).expect("healthy again");
    world.check_reads();
    check_disks(&world, 1, "a close that failed");
}

/// A family that gets the id of a dropped one, because the manifest was rewritten in between, finds nothing of it in the
/// log.
#[test]
fn a_new_family_finds_nothing_of_a_dropped_one() {
    let mut world = begin(&plain(), 1);
    world.open();
    let db = world.db().clone();
    let old = db.create_family("old", kingtide::FamilyOptions::default()).expect("create");
    old.put(b"key", b"of the old one").expect("put");
    db.drop_family("old").expect("drop");
    world.faults.add(Rule::new(FsOp::Sync, Fault::Eio).path("MANIFEST"));
    db.default_family().set_option("l0_trigger", "3").expect_err("the manifest's sync fails");
    db.default_family().set_option("l0_trigger", "2").expect("rewrites the manifest");
    let clock = ManualClock::at_unix_ms(LATER[0]);
    let reopen = |disk: &MemFs| {
        Db::open(Path::new(DIR), options(&world.plan, Arc::new(disk.clone()), clock.clone(), 0)).expect("open")
    };
    let disk = world.disk.kill_clone();
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
    let mut total = 0;
    for (plan, seed) in cases(1) {
        let _watched = watch(format!("KINGTIDE_SCENARIO={} KINGTIDE_SEED={seed}, a full disk", plan.name));
        let mut plan = (*for_faults(&plan)).clone();
        plan.weights.retain(|w| w.0 != Part::Reopen); // which takes the trouble away
        let mut world = begin(&Arc::new(plan), seed);
        world.open();
        (0..30).for_each(|_| world.step());
        assert_eq!(world.refused, 0);
        world.disk.set_capacity(Some(1));
        (0..100).for_each(|_| world.step());
        world.check_reads();
        world.disk.set_capacity(None);
        world.writes_resume();
        world.check_reads();
        total += world.refused;
        check_disks(&world, seed, "a full disk");
    }
    println!("{total} calls refused");
    assert!(total > 0, "nothing was refused");
}
