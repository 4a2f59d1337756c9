//! The power is cut, or the process killed, before every write operation of a scenario. Whatever the disk kept of what was
//! not synced, recovery must succeed and yield an exact prefix of the events, over all families together, that misses
//! nothing acknowledged; and so again when it is cut itself.

use crate::sim::clock::LATER;
use crate::sim::copies::check_copies;
use crate::sim::draws::options;
use crate::sim::history::{Found, History, Op, Progress, Tables};
use crate::sim::plan::Plan;
use crate::sim::watchdog::watch;
use crate::sim::world::{DIR, LOOKS_FOR_SPACE, World, families_found, read};
use crate::sim::{cases, env, full, is_whole};
use kingtide::vfs::{MemFs, Survival, WriteOp};
use kingtide::{Db, Durability, ManualClock, WriteBatch, WriteOptions};
use kingtide_base::rare;
use kingtide_base::rare::excuses::CUTS;
use kingtide_base::rng::Rng;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Cuts whose disks are held in memory at once.
const CHUNK: u64 = 1500;

/// The disk before a write operation, and what the caller had been told by then.
struct Cut {
    number: u64,
    /// Whether it comes before, within, or right after the single write of a record.
    at_record: bool,
    disk: MemFs,
    progress: Progress,
}

/// Runs a scenario and returns its history, the disk before each of its write operations in `range`, and their number.
fn record(plan: &Arc<Plan>, seed: u64, steps: u64, range: Range<u64>) -> (History, Vec<Cut>, u64) {
    let mut world = World::new(plan, seed);
    let cuts: Arc<Mutex<Vec<Cut>>> = Arc::default();
    let count = Arc::new(AtomicU64::new(0));
    let (keep, progress, counter) = (cuts.clone(), world.progress.clone(), count.clone());
    world.watch = Some(Box::new(move || {
        let (keep, progress, counter, range) = (keep.clone(), progress.clone(), counter.clone(), range.clone());
        let mut was_record = false;
        Box::new(move |boundary| {
            let number = counter.fetch_add(1, Ordering::Relaxed);
            let is_record = boundary.op == WriteOp::Record;
            let at_record = std::mem::replace(&mut was_record, is_record) || is_record;
            if range.contains(&number) {
                let progress = progress.lock().expect("progress").clone();
                keep.lock().expect("cuts").push(Cut { number, at_record, disk: boundary.kill_clone(), progress });
            }
        })
    }));
    world.mount(MemFs::new());
    world.open();
    (0..steps).for_each(|_| world.step());
    assert!(world.clock_ms() < LATER[0], "the scenario took too long for what expires");
    if let Err(e) = world.db().close() {
        world.tolerate(e);
    }
    world.disk.on_write(None);
    let history = std::mem::take(&mut world.history);
    drop(world);
    let cuts = std::mem::take(&mut *cuts.lock().expect("cuts"));
    (history, cuts, count.load(Ordering::Relaxed))
}

#[derive(Default)]
struct Counts {
    cuts: AtomicU64,
    at_records: AtomicU64,
    behind_interval: AtomicU64,
    disks: AtomicU64,
    opens: AtomicU64,
    second_cuts: AtomicU64,
    verified: AtomicU64,
    in_doubt: AtomicU64,
    copies: AtomicU64,
}

impl Counts {
    fn add(&self, counter: impl Fn(&Counts) -> &AtomicU64, n: u64) {
        counter(self).fetch_add(n, Ordering::Relaxed);
    }

    fn print(&self) {
        let n = |c: &AtomicU64| c.load(Ordering::Relaxed);
        println!(
            "{} cuts, {} of them at the single write of a record, {} behind a commit's own Interval, {} disks, {} second cuts, {} recoveries, {} with transactions in doubt, {} verified, {} copies",
            n(&self.cuts),
            n(&self.at_records),
            n(&self.behind_interval),
            n(&self.disks),
            n(&self.second_cuts),
            n(&self.opens),
            n(&self.in_doubt),
            n(&self.verified),
            n(&self.copies)
        );
    }
}

/// What the checks of one cut share.
struct Check<'a> {
    plan: &'a Plan,
    history: &'a History,
    tables: &'a Tables,
    progress: &'a Progress,
    at_least: usize,
    counts: &'a Counts,
    /// What the next open's options are drawn from.
    draw: Cell<u64>,
}

impl Check<'_> {
    fn open(&self, disk: &MemFs) -> (Db, Found) {
        let clock = ManualClock::at_unix_ms(self.tables.now);
        self.draw.set(self.draw.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let options = options(self.plan, Arc::new(disk.clone()), clock, self.draw.get());
        let db = Db::open(Path::new(DIR), options).expect("recovery");
        let found = read(&db, &families_found(&db, self.progress));
        self.counts.add(|c| &c.opens, 1);
        (db, found)
    }

    /// What is found must be a state that the history allows.
    fn fits(&self, found: &Found, at_least: usize) {
        if self.history.recovered(self.tables, found, at_least, self.progress).is_none() {
            self.history.explain(self.tables, found, at_least, self.progress);
        }
    }

    /// Opens what a cut left, compares it, goes on with it, and compares again.
    fn run(&self, disk: &MemFs, rng: &mut Rng) {
        if rng.one_in(30) {
            self.cut_during_recovery(disk, rng);
        }
        let created = !self.progress.families.is_empty();
        if created && rng.one_in(16) {
            self.verify(disk, "before recovery");
        }
        if rng.one_in(6) {
            let copies = check_copies(self.plan, self.history, self.progress, disk, self.tables.now);
            self.counts.add(|c| &c.copies, copies);
        }
        let (db, found) = self.open(disk); // on a full disk too
        disk.set_capacity(None);
        self.fits(&found, self.at_least);
        self.counts.add(|c| &c.in_doubt, u64::from(!found.in_doubt.is_empty()));
        if rng.one_in(4) {
            // What recovery has shown stays, even without a later write.
            let again = disk.crash_clone(Survival::AllLost, rng);
            assert!(self.open(&again).1 == found, "shown, then lost by a power cut");
        }
        (0..LOOKS_FOR_SPACE).for_each(|_| _ = db.run_one_job());
        let expected = self.go_on(&db, found, rng);
        let closed = match rng.below(3) {
            0 => {
                db.close().expect("close");
                true
            }
            1 => {
                db.flush().expect("flush");
                false
            }
            _ => false,
        };
        let end = match rng.below(3) {
            0 => disk.kill_clone(),
            1 => disk.crash_clone(Survival::AllLost, rng),
            _ => disk.crash_clone(Survival::RandomBlocks, rng),
        };
        drop(db);
        if closed && rng.one_in(5) {
            self.verify(&end, "after closing");
        }
        let (_, found) = self.open(&end);
        assert!(found == expected, "after going on and opening again");
    }

    /// Nothing is wrong with what a crash left: torn tails are no damage, and orphans wait for the next open.
    fn verify(&self, disk: &MemFs, when: &str) {
        let disk = Arc::new(disk.kill_clone());
        let clock = ManualClock::at_unix_ms(self.tables.now);
        let report = kingtide::verify(Path::new(DIR), &options(self.plan, disk, clock, 0));
        let report = report.unwrap_or_else(|e| panic!("verify {when}: {e:?}"));
        let orphan = |p: &kingtide::Problem| p.kind == kingtide::ProblemKind::Orphan;
        let unexpected: Vec<String> = report
            .problems
            .iter()
            .filter(|p| p.severity != kingtide::Severity::Info && !orphan(p))
            .map(|p| p.to_string())
            .collect();
        assert!(unexpected.is_empty(), "verify {when}: {unexpected:#?}");
        self.counts.add(|c| &c.verified, 1);
    }

    /// Commits something to every family, durably, ends some of what is in doubt, and returns what is there then.
    fn go_on(&self, db: &Db, found: Found, rng: &mut Rng) -> Found {
        let mut expected = found;
        for xid in expected.in_doubt.keys().copied().collect::<Vec<_>>() {
            let outcome = rng.below(3);
            if outcome == 2 {
                continue; // not yet
            }
            match outcome {
                0 => drop(db.commit_prepared(&xid.to_be_bytes()).expect("commit")),
                _ => db.rollback_prepared(&xid.to_be_bytes()).expect("roll back"),
            }
            expected.in_doubt.remove(&xid);
            if outcome == 0 {
                self.history.prepared(xid).iter().for_each(|op| self.write(&mut expected, op));
            }
        }
        for round in 0..2 {
            let mut batch = WriteBatch::new();
            for (name, no) in families_found(db, self.progress) {
                let family = db.family(&name).expect("family");
                let value = vec![round; rng.below(500) as usize];
                batch.put(&family, b"after", &value).expect("put");
                batch.delete(&family, b"after all").expect("delete");
                let contents = expected.contents.get_mut(&no).expect("family");
                contents.insert(b"after".to_vec(), value);
            }
            let durable = WriteOptions::new().durability(Durability::Power);
            db.write_with(&mut batch, &durable).expect("write");
        }
        expected
    }

    fn write(&self, found: &mut Found, op: &Op) {
        let Some(contents) = found.contents.get_mut(&op.family()) else { return };
        match op {
            Op::Put(_, key, value, expiry) if *expiry > self.tables.now => {
                drop(contents.insert(key.clone(), value.clone()))
            }
            Op::Put(_, key, ..) | Op::Delete(_, key) | Op::SingleDelete(_, key) => drop(contents.remove(key)),
            Op::DeleteRange(_, from, to) | Op::DeletePrefix(_, from, to) => {
                contents.retain(|key, _| !(from..to).contains(&key));
            }
        }
    }

    /// Cuts the power again, or kills the process, at some of the write operations of recovery itself.
    fn cut_during_recovery(&self, disk: &MemFs, rng: &mut Rng) {
        let disk = disk.kill_clone();
        let boundaries: Arc<Mutex<Vec<MemFs>>> = Arc::default();
        let keep = boundaries.clone();
        disk.on_write(Some(Box::new(move |b| keep.lock().expect("clones").push(b.kill_clone()))));
        let (db, undisturbed) = self.open(&disk);
        disk.on_write(None);
        drop(db);
        let boundaries = std::mem::take(&mut *boundaries.lock().expect("clones"));
        for before in boundaries.iter().filter(|_| rng.one_in(3)).collect::<Vec<_>>() {
            // A kill during recovery changes nothing of what the next one finds.
            let (_, found) = self.open(&before.kill_clone());
            assert!(found == undisturbed, "a kill during recovery changed what is found");
            let model = Survival::ALL[rng.below(Survival::ALL.len() as u64) as usize];
            let (_, found) = self.open(&before.crash_clone(model, rng));
            self.fits(&found, self.progress.power);
            self.counts.add(|c| &c.second_cuts, 2);
        }
    }
}

/// The tables of the last epoch asked for: cuts come in order.
#[derive(Default)]
struct TableCache(BTreeMap<u64, Arc<Tables>>);

impl TableCache {
    fn get(&mut self, history: &History, epoch: u64, now: u64) -> Arc<Tables> {
        self.0.retain(|_, t| t.epoch == epoch);
        self.0.entry(now).or_insert_with(|| Arc::new(history.tables(epoch, now))).clone()
    }
}

/// Checks a cut under every model, and a kill.
fn check_cut(
    plan: &Plan,
    seed: u64,
    history: &History,
    cut: &Cut,
    tables: &mut TableCache,
    counts: &Counts,
) -> Result<(), String> {
    counts.add(|c| &c.cuts, 1);
    counts.add(|c| &c.at_records, u64::from(cut.at_record));
    let own = cut.progress.own_interval > 0 && cut.progress.own_interval == cut.progress.power;
    counts.add(|c| &c.behind_interval, u64::from(own));
    for model in [None].into_iter().chain(Survival::ALL.map(Some)) {
        let mut rng = Rng::new(seed ^ cut.number << 8 ^ model.map_or(9, |m| m as u64));
        let (disk, at_least) = match model {
            None => (cut.disk.kill_clone(), cut.progress.process.max(cut.progress.power)),
            Some(m) => (cut.disk.crash_clone(m, &mut rng), cut.progress.power),
        };
        let model = model.map_or("a kill".to_owned(), |m| format!("{m:?}"));
        let case =
            format!("KINGTIDE_SCENARIO={} KINGTIDE_SEED={seed} KINGTIDE_CUT={} under {model}", plan.name, cut.number);
        let _watched = watch(case.clone());
        let now = LATER[usize::from(rng.one_in(4))];
        let tables = tables.get(history, cut.progress.epoch, now);
        let check = Check {
            plan,
            history,
            tables: &tables,
            progress: &cut.progress,
            at_least,
            counts,
            draw: Cell::new(rng.next_u64()),
        };
        if catch_unwind(AssertUnwindSafe(|| check.run(&disk, &mut rng))).is_err() {
            return Err(case);
        }
        counts.add(|c| &c.disks, 1);
    }
    Ok(())
}

/// Runs a scenario and checks one in `every` of its cuts. Returns what failed.
fn check_scenario(plan: &Arc<Plan>, seed: u64, steps: u64, every: u64, counts: &Counts) -> Vec<String> {
    let only = env("KINGTIDE_CUT");
    let mut failures = Vec::new();
    let mut tables = TableCache::default();
    let (mut from, mut total) = (only.unwrap_or(0), u64::MAX);
    while from < total && failures.len() < 3 {
        let until = only.map_or(from + CHUNK, |n| n + 1);
        let recorded = {
            let _watched = watch(format!("KINGTIDE_SCENARIO={} KINGTIDE_SEED={seed}, recording", plan.name));
            catch_unwind(AssertUnwindSafe(|| record(plan, seed, steps, from..until)))
        };
        let Ok((history, cuts, count)) = recorded else {
            return vec![format!("KINGTIDE_SCENARIO={} KINGTIDE_SEED={seed} while it ran", plan.name)];
        };
        total = only.map_or(count, |_| 0);
        for cut in &cuts {
            let chosen = only.is_some() || (cut.number + seed).is_multiple_of(every * plan.mix.sample);
            if chosen && failures.len() < 3 {
                failures.extend(check_cut(plan, seed, &history, cut, &mut tables, counts).err());
            }
        }
        from = until;
    }
    failures
}

/// Checks cases on two threads, or on `KINGTIDE_THREADS`.
pub fn on_two_threads<T: Sync>(cases: &[T], work: impl Fn(&T) -> Vec<String> + Sync) -> Vec<String> {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|s| {
        for _ in 0..env("KINGTIDE_THREADS").unwrap_or(2) {
            s.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = work(case);
                    failures.lock().expect("failures").extend(found);
                }
            });
        }
    });
    failures.into_inner().expect("failures")
}

#[test]
fn every_power_cut_leaves_a_prefix_with_all_that_was_acknowledged() {
    let (seeds, steps, every) = if full() { (8, 350, 1) } else { (1, 120, 40) };
    let counts = Counts::default();
    let start = std::time::Instant::now();
    let failures = on_two_threads(&cases(seeds), |(plan, seed)| {
        let failures = check_scenario(plan, *seed, steps, every, &counts);
        if full() {
            println!("{:?} {} seed {seed} done", start.elapsed(), plan.name);
            counts.print();
        }
        failures
    });
    counts.print();
    println!("{}", CUTS.report(&rare::counts()));
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(env("KINGTIDE_CUT").is_some() || counts.at_records.into_inner() > 0, "no record was written at once");
    if is_whole() {
        CUTS.check(&rare::counts()).unwrap_or_else(|never| panic!("{never}"));
    }
}
