//! The cap on dead space of value logs, under everything that makes values dead: it holds at every moment, up to the slack that
//! `docs/dead-space.md` states.

use kingtide::vfs::{MemFs, OpenMode};
use kingtide::{Clock, Compression, Db, ErrorKind, FamilyOptions, Isolation, ManualClock, Options};
use kingtide_base::rng::Rng;
use kingtide_testkit::{RaiseOnDrop, full};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const KEYS: u64 = 1000;
/// Bytes of values that a memtable points to.
const MEMTABLE: u64 = 64 << 10;
const TABLE: u64 = 64 << 10;
/// Bytes at which a value log ends.
const VLOG: u64 = 8 * TABLE;
/// What a value log stores beside a value of one chunk.
const HEADER: u64 = 14;
/// Lengths of values.
const LEAST: u64 = 4000;
const MOST: u64 = 6000;
/// What the entries of memtables hide at most: of the one that is filled, and of four that wait for a flush.
const IN_MEMTABLES: u64 = 5 * (MEMTABLE / LEAST + 1) * MOST;

fn options(cap: f64, direct: u64) -> Options {
    let mut o = Options::new().fs(MemFs::shared());
    o.db.block_cache_size = 0;
    o.family = FamilyOptions::new()
        .compression(Compression::None)
        .memtable_size(MEMTABLE)
        .target_file_size(TABLE)
        .direct_value_threshold(direct)
        .value_chunk_size(4096)
        .vlog_dead_ratio(cap);
    o.tuning.direct_memtable_bytes = Some(MEMTABLE);
    o
}

/// The caller runs the jobs, and waits take no time.
fn manual(cap: f64, direct: u64) -> (Db, Arc<ManualClock>) {
    let clock = ManualClock::at_unix_ms(1_800_000_000_000);
    let options = options(cap, direct).manual_jobs(true).clock(clock.clone());
    (Db::open("db", options).unwrap(), clock)
}

/// What the default family takes.
struct Space {
    /// Bytes of value logs, of those that are dead, and of those that newer entries of tables hide.
    stored: u64,
    dead: u64,
    hidden: u64,
    tables: u64,
}

impl Space {
    fn of(db: &Db) -> Space {
        let stats = db.stats();
        let family = stats.families.iter().find(|f| f.name == "default").expect("it has one");
        let tables = family.levels.iter().map(|l| l.bytes).sum();
        Space { stored: family.vlog_bytes, dead: family.vlog_dead_bytes, hidden: family.vlog_hidden_bytes, tables }
    }

    /// The most that may be dead, hidden values included, according to `docs/dead-space.md`: the cap; the slack, where writers are
    /// held; what moves make dead on their way; the bytes of tables; and what memtables bring that were filled already.
    fn most_dead(&self, cap: f64) -> u64 {
        let slack = MEMTABLE + VLOG;
        (cap * self.stored as f64) as u64 + slack + 2 * VLOG + self.tables + IN_MEMTABLES
    }

    /// By how much of its room `garbage` passes the cap.
    fn used(&self, cap: f64, garbage: u64) -> f64 {
        let allowed = (cap * self.stored as f64) as u64;
        garbage.saturating_sub(allowed) as f64 / (self.most_dead(cap) - allowed) as f64
    }
}

/// Bytes of the default family's value logs, and of those that are dead.
fn space(db: &Db) -> (u64, u64) {
    let space = Space::of(db);
    (space.stored, space.dead)
}

#[track_caller]
fn check(db: &Db, cap: f64, worst: &mut f64, what: &str) -> Space {
    let space = Space::of(db);
    let dead = space.dead + space.hidden;
    assert!(dead <= space.most_dead(cap), "{what}: {dead} of {} are dead, {:?}", space.stored, db.stats());
    if space.stored > 4 << 20 {
        *worst = worst.max(dead as f64 / space.stored as f64);
    }
    space
}

/// Half of the draws are a few keys.
fn skewed(rng: &mut Rng) -> u64 {
    let bits = rng.below(11);
    rng.below(KEYS) >> bits.min(9)
}

/// What the values of a family are, and how much they take.
struct World {
    db: Db,
    clock: Arc<ManualClock>,
    rng: Rng,
    lengths: BTreeMap<u64, usize>,
    cap: f64,
    worst: f64,
    /// Jobs that are run for every 32 overwrites, of which two or three are flushes.
    jobs: u32,
}

impl World {
    /// Overwrites `count` values, each with a key that `draw` draws. The most of the room beyond the cap that was taken by what is
    /// not live.
    fn overwrite(&mut self, count: u64, mut draw: impl FnMut(&mut Rng) -> u64) -> f64 {
        let mut wasted: f64 = 0.0;
        for n in 0..count {
            let key = draw(&mut self.rng);
            self.put(key, None);
            if n % 32 == 0 {
                for _ in 0..self.jobs {
                    self.db.run_one_job().unwrap();
                    check(&self.db, self.cap, &mut self.worst, "a job");
                }
            }
            // What is no value of any key, whatever the engine says of it; headers of values and files included.
            let space = Space::of(&self.db);
            let garbage = space.stored.saturating_sub(self.live());
            assert!(garbage <= space.most_dead(self.cap), "{garbage} of {} hold no value", space.stored);
            wasted = wasted.max(space.used(self.cap, garbage));
        }
        wasted
    }

    fn put(&mut self, key: u64, ttl: Option<Duration>) {
        let len = (LEAST + self.rng.below(MOST - LEAST)) as usize;
        let mut value = vec![key as u8; len];
        self.rng.fill(&mut value[..16]);
        match ttl {
            None => self.db.put(key.to_be_bytes(), &value).unwrap(),
            Some(ttl) => self.db.put_ttl(key.to_be_bytes(), &value, ttl).unwrap(),
        };
        if ttl.is_none() {
            self.lengths.insert(key, len);
        }
        check(&self.db, self.cap, &mut self.worst, "a put");
    }

    fn delete(&mut self, key: u64) {
        self.db.delete(key.to_be_bytes()).unwrap();
        self.lengths.remove(&key);
        check(&self.db, self.cap, &mut self.worst, "a delete");
    }

    fn live(&self) -> u64 {
        self.lengths.values().map(|len| *len as u64).sum()
    }

    fn all_there(&self) {
        for key in 0..KEYS {
            let found = self.db.get(key.to_be_bytes()).unwrap().map(|v| v.len());
            assert_eq!(found, self.lengths.get(&key).copied(), "{key}");
        }
    }

    fn settle(&mut self, what: &str) {
        self.db.flush().unwrap();
        while self.db.run_one_job().unwrap() {
            check(&self.db, self.cap, &mut self.worst, what);
        }
        let (stored, dead) = space(&self.db);
        assert!(dead as f64 <= self.cap * stored as f64, "{what}, at rest: {dead} of {stored}");
    }
}

/// A flush looks up what its entries hide: exactly, and the manifest keeps it.
#[test]
fn what_a_flush_hides_is_exact() {
    let fs = Arc::new(MemFs::new());
    let open = |fs: Arc<MemFs>| {
        let mut o = options(0.9, 1000).fs(fs).manual_jobs(true);
        o.tuning.direct_memtable_bytes = Some(1 << 20);
        o.family = o.family.memtable_size(1 << 20);
        Db::open("db", o).unwrap()
    };
    let hidden = |db: &Db| Space::of(db).hidden;
    let put = |db: &Db, key: u64, len: usize| _ = db.put(key.to_be_bytes(), vec![3; len]).unwrap();
    let db = open(fs.clone());
    (0..100).for_each(|key| put(&db, key, 1000 + key as usize));
    db.flush().unwrap();
    assert_eq!(hidden(&db), 0, "nothing is older");
    // A longer value, a shorter one, a small one that is in the table, a delete, and keys that are new.
    put(&db, 7, 3500);
    put(&db, 8, 1000);
    put(&db, 9, 10);
    db.delete(10u64.to_be_bytes()).unwrap();
    put(&db, 200, 4000);
    db.delete(201u64.to_be_bytes()).unwrap();
    db.flush().unwrap();
    let first = 1007 + 1008 + 1009 + 1010 + 4 * HEADER;
    assert_eq!(hidden(&db), first);
    // Of these, one hides a value of the run before, one a value that is in no value log, and one a tombstone.
    (7..11).for_each(|key| put(&db, key, 2000));
    db.flush().unwrap();
    let all = first + 3500 + 1000 + 2 * HEADER;
    assert_eq!(hidden(&db), all);
    drop(db);
    let db = open(fs.clone());
    assert_eq!((hidden(&db), Space::of(&db).dead), (all, 0), "the manifest keeps it");
    // What is in the log alone is looked up after a crash too.
    put(&db, 11, 3000);
    let after = open(Arc::new(fs.kill_clone()));
    after.flush().unwrap();
    assert_eq!(hidden(&after), all + 1011 + HEADER);
    db.compact().unwrap();
    assert_eq!(hidden(&db), 0, "a compaction has met all of them");
}

/// So does recovery, where the log holds more than a memtable.
#[test]
fn what_recovery_flushes_hides_as_much() {
    let fs = Arc::new(MemFs::new());
    let open = |fs: Arc<MemFs>, memtable: u64| {
        let mut o = options(0.9, 0).fs(fs).manual_jobs(true);
        o.family = o.family.memtable_size(memtable);
        Db::open("db", o).unwrap()
    };
    let db = open(fs.clone(), 8 << 20);
    let put = |key: u64, len: usize| _ = db.put(key.to_be_bytes(), vec![3; len]).unwrap();
    (0..100).for_each(|key| put(key, 2000));
    db.flush().unwrap();
    (0..100).for_each(|key| put(key, 1000));
    let killed = open(Arc::new(fs.kill_clone()), MEMTABLE);
    killed.flush().unwrap();
    assert_eq!(Space::of(&killed).hidden, 100 * (2000 + HEADER));
}

/// Jobs run too seldom to keep up, except for those that a waiting writer runs: so flow control must keep the cap.
#[test]
fn the_cap_holds_although_compactions_fall_behind() {
    for (cap, direct) in [(0.25, 1000), (0.1, 1000), (0.6, 1000), (0.25, 0)] {
        let (db, clock) = manual(cap, direct);
        let rng = Rng::new(17);
        let mut w = World { db, clock, rng, lengths: BTreeMap::new(), cap, worst: 0.0, jobs: 4 };
        (0..KEYS).for_each(|key| w.put(key, None));
        w.settle("the load");
        let rounds = if full() { 20_000 } else { 3000 };
        let uniform = (w.overwrite(rounds, |rng| rng.below(KEYS)), std::mem::take(&mut w.worst));
        let zipf = (w.overwrite(rounds, skewed), w.worst);
        w.all_there();
        let written = w.db.stats().get("vlog_moved_bytes").unwrap();
        let held = w.db.stats().get("stalls").unwrap();
        println!(
            "cap {cap}, direct {direct}: room used, worst share {uniform:.3?}, skewed {zipf:.3?}, moved {written}, stalls {held}"
        );
    }
}

/// Only writers that are held run jobs: without that, nothing would ever be compacted.
#[test]
fn the_cap_holds_although_only_held_writers_run_jobs() {
    let cap = 0.25;
    let (db, clock) = manual(cap, 1000);
    let mut w = World { db, clock, rng: Rng::new(3), lengths: BTreeMap::new(), cap, worst: 0.0, jobs: 0 };
    (0..KEYS).for_each(|key| w.put(key, None));
    w.settle("the load");
    let used = w.overwrite(3000, |rng| rng.below(KEYS));
    w.all_there();
    println!("room used {used:.3}, worst share {:.3}", w.worst);
}

/// Only writers that are held run compactions, and these are writers of the family.
#[test]
fn writers_to_other_families_are_neither_slowed_nor_held() {
    let (db, clock) = manual(0.25, 1000);
    let other = db.create_family("other", options(0.25, 1000).family).unwrap();
    let mut w = World { db, clock, rng: Rng::new(7), lengths: BTreeMap::new(), cap: 0.25, worst: 0.0, jobs: 0 };
    (0..KEYS).for_each(|key| w.put(key, None));
    w.settle("the load");
    let merges = |w: &World| w.db.stats().get("compactions").unwrap();
    let mut held = 0;
    for n in 0..2000u64 {
        let before = merges(&w);
        let key = w.rng.below(KEYS);
        w.put(key, None);
        held += u32::from(merges(&w) > before);
        while w.db.stats().families.iter().any(|f| f.immutable_memtables > 0) {
            w.db.run_one_job().unwrap(); // a flush, since these come first
        }
        let (before, now) = (merges(&w), w.clock.monotonic_ns());
        other.put((n % 8).to_be_bytes(), [1; 100]).unwrap();
        let waited = w.clock.monotonic_ns() - now;
        assert_eq!(merges(&w), before, "{n}: held {held} times before");
        assert!(waited <= 1_000_000, "{n}: {waited} ns, where level 0 may be long, and dead space takes up to 50 ms");
    }
    assert!(held >= 5, "{held} of 2000 writers were held");
    w.all_there();
}

/// If the cap is raised while writers are held, they go on at once, although nothing is flushed or compacted.
#[test]
fn no_writer_is_held_for_a_cap_that_was_raised() {
    let mut options = options(0.1, 1000).manual_jobs(true).clock(ManualClock::at_unix_ms(1_800_000_000_000));
    options.family = options.family.l0_trigger(64); // so that writers do not wait for level 0
    let db = Db::open("db", options).unwrap();
    let put = |key: u64| {
        let mut batch = kingtide::WriteBatch::new();
        batch.put(db.default_family(), &key.to_be_bytes(), &[1; 5000]).unwrap();
        db.write_with(&mut batch, &kingtide::WriteOptions::new().no_wait(true)).map(drop)
    };
    let held = (0..20_000).find_map(|n| {
        while db.stats().families.iter().any(|f| f.immutable_memtables > 0) {
            db.run_one_job().unwrap(); // a flush, since these come first
        }
        put(n % 50).err()
    });
    assert_eq!(held.map(|e| e.kind()), Some(kingtide::ErrorKind::Busy));
    assert_eq!(put(0).unwrap_err().kind(), kingtide::ErrorKind::Busy);
    db.default_family().set_option("vlog_dead_ratio", "1").unwrap();
    put(0).unwrap();
}

/// Half of all values are dead at once, many times the slack. A writer then waits for a moment, not for compactions.
#[test]
fn no_writer_is_held_until_what_deletes_left_is_given_back() {
    let cap = 0.1;
    let (db, clock) = manual(cap, 1000);
    let mut w = World { db, clock, rng: Rng::new(9), lengths: BTreeMap::new(), cap, worst: 0.0, jobs: 0 };
    (0..KEYS).for_each(|key| w.put(key, None));
    w.settle("the load");
    (0..KEYS).step_by(2).for_each(|key| w.delete(key));
    w.db.flush().unwrap();
    let merges = |w: &World| w.db.stats().get("compactions").unwrap();
    let dead = |w: &World| Space::of(&w.db).dead + Space::of(&w.db).hidden;
    assert!(dead(&w) > 3 * (MEMTABLE + VLOG), "{} bytes are more than the slack", dead(&w));
    for key in 0..8u64 {
        let (before, now) = (merges(&w), w.clock.monotonic_ns());
        w.db.put(key.to_be_bytes(), [1; 2000]).unwrap();
        assert_eq!(merges(&w), before, "the writer was held until a compaction was done");
        assert!(w.clock.monotonic_ns() - now <= 50_000_000);
    }
    while w.db.run_one_job().unwrap() {}
    let (stored, dead) = space(&w.db);
    assert!(dead as f64 <= cap * stored as f64, "at rest: {dead} of {stored}");
}

/// Deletes, ranges, expiry and snapshots, with the jobs that there are run now and then.
#[test]
fn the_cap_holds_under_deletes_ranges_expiry_and_snapshots() {
    let cap = 0.25;
    let (db, clock) = manual(cap, 1000);
    let mut w = World { db, clock, rng: Rng::new(5), lengths: BTreeMap::new(), cap, worst: 0.0, jobs: 4 };
    (0..KEYS).for_each(|key| w.put(key, None));
    w.settle("the load");
    for round in 0..6 {
        for key in 0..KEYS / 2 {
            if w.rng.one_in(2) {
                w.delete(key);
            }
            if key % 16 == 0 {
                w.db.run_one_job().unwrap();
                check(&w.db, cap, &mut w.worst, "a job amid deletes");
            }
        }
        w.settle("deletes");
        let from = w.rng.below(KEYS / 2);
        w.db.delete_range(from.to_be_bytes()..(from + KEYS / 4).to_be_bytes()).unwrap();
        w.lengths.retain(|key, _| !(from..from + KEYS / 4).contains(key));
        w.settle("a range");
        for key in KEYS..KEYS + 500 {
            w.put(key, Some(Duration::from_secs(10)));
        }
        w.settle("values that expire");
        w.clock.advance(Duration::from_secs(60));
        w.settle("expiry");
        // What a snapshot sees is not dead. Once it is gone it becomes so, as compactions find it.
        let snapshot = w.db.snapshot();
        let before = w.live();
        (0..KEYS).for_each(|key| w.put(key, None));
        w.settle("overwritten under a snapshot");
        let (stored, dead) = space(&w.db);
        assert!(stored - dead >= before + w.live(), "the snapshot's values are live");
        drop(snapshot);
        // What a cursor reads is given up by the version, and is counted apart until the cursor goes.
        let pinned = |w: &World| w.db.stats().get("vlog_pinned_bytes").unwrap();
        assert_eq!(pinned(&w), 0);
        let cursor = w.db.cursor(..).unwrap();
        (0..KEYS).for_each(|key| w.put(key, None));
        w.settle("without it");
        assert!(pinned(&w) >= before, "{} of {before}", pinned(&w));
        drop(cursor);
        assert_eq!(pinned(&w), 0);
        while w.db.run_one_job().unwrap() {}
        w.all_there();
        println!("round {round}: worst {:.3}, at rest {:?} for {} live", w.worst, space(&w.db), w.live());
    }
}

/// Several writers, threads that do the jobs, and one that looks all the time.
#[test]
fn the_cap_holds_under_threads() {
    for (seed, cap) in [(1, 0.25), (2, 0.1)] {
        let db = Db::open("db", options(cap, 1000)).unwrap();
        let done = AtomicBool::new(false);
        let (rounds, looks) = (if full() { 30_000 } else { 2000 }, &AtomicBool::new(false));
        let worst = std::thread::scope(|s| {
            let end = RaiseOnDrop(&done);
            let watcher = s.spawn(|| {
                let (mut worst, mut used, mut count) = (0.0, 0.0_f64, 0);
                while !done.load(Ordering::Relaxed) {
                    let space = check(&db, cap, &mut worst, "a look");
                    used = used.max(space.used(cap, space.dead + space.hidden));
                    count += 1;
                    looks.store(true, Ordering::Relaxed);
                    std::thread::yield_now();
                }
                (worst, used, count)
            });
            let writers: Vec<_> = (0..3u64)
                .map(|t| {
                    let db = db.clone();
                    s.spawn(move || {
                        let mut rng = Rng::new(seed * 10 + t);
                        for n in 0..rounds {
                            let key = if t == 0 { rng.below(KEYS) } else { skewed(&mut rng) };
                            let value = vec![n as u8; (LEAST + rng.below(MOST - LEAST)) as usize];
                            match n % 50 {
                                0 => db.delete(key.to_be_bytes()).unwrap(),
                                _ => db.put(key.to_be_bytes(), value).unwrap(),
                            };
                        }
                    })
                })
                .collect();
            writers.into_iter().for_each(|t| t.join().unwrap());
            drop(end);
            watcher.join().unwrap()
        });
        assert!(looks.load(Ordering::Relaxed));
        db.flush().unwrap();
        db.wait_for_background().unwrap();
        let (stored, dead) = space(&db);
        assert!(dead as f64 <= cap * stored as f64, "at rest: {dead} of {stored}");
        assert!(db.verify().unwrap().is_clean());
        println!("seed {seed}, cap {cap}: worst share, room used, looks {worst:?}, at rest {dead} of {stored}");
        db.close().unwrap();
    }
}

/// Values of commits that failed are dead from the beginning. A memtable whose value logs are full of them is flushed as one with as many
/// values is, so that the logs go or are emptied.
#[test]
fn values_of_failed_commits_do_not_pile_up() {
    let fs = MemFs::shared();
    let db = Db::open("db", options(0.25, 100).fs(fs.clone()).manual_jobs(true)).unwrap();
    let (family, value) = (db.default_family().clone(), vec![7; 4000]);
    let mut most = 0;
    for round in 0..40u64 {
        for _ in 0..40 {
            let mut txn = db.begin(Isolation::Snapshot).unwrap();
            txn.put(&family, b"wanted by many", &value).unwrap();
            family.put(b"wanted by many", b"small").unwrap();
            assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Conflict);
        }
        family.put(round.to_be_bytes(), &value).unwrap();
        while db.run_one_job().unwrap() {}
        let names = fs.list(Path::new("db")).unwrap().into_iter().filter(|name| name.ends_with(".vlog"));
        let len = |name| fs.open(&Path::new("db").join(name), OpenMode::Read).unwrap().len().unwrap();
        most = most.max(names.map(len).sum::<u64>());
    }
    assert!(most < 1 << 20, "{most} bytes of value logs, for at most {} of values", 40 * value.len());
}

/// A simulated disk: what flushes and compactions write takes time of a clock that nothing else advances.
struct Disk {
    clock: Arc<ManualClock>,
    bytes_per_second: u64,
    busy_until: AtomicU64,
    is_on: AtomicBool,
}

impl Disk {
    fn write(&self, bytes: u64) {
        if self.is_on.load(Ordering::Relaxed) {
            let from = self.busy_until.load(Ordering::Relaxed).max(self.clock.monotonic_ns());
            let takes = bytes * 1_000_000_000 / self.bytes_per_second + 20_000;
            self.busy_until.store(from + takes, Ordering::Relaxed);
        }
    }

    /// Runs the jobs that the disk has time for.
    fn work(&self, db: &Db) {
        while self.busy_until.load(Ordering::Relaxed) <= self.clock.monotonic_ns() && db.run_one_job().unwrap() {}
    }
}

impl kingtide::EventListener for Disk {
    /// A writer that is held runs a job at once: it waits for the disk first.
    fn compaction_begun(&self, _: &kingtide::CompactionInfo) {
        if self.is_on.load(Ordering::Relaxed) {
            let waits = self.busy_until.load(Ordering::Relaxed).saturating_sub(self.clock.monotonic_ns());
            self.clock.advance(Duration::from_nanos(waits));
        }
    }

    fn compaction_ended(&self, info: &kingtide::CompactionInfo) {
        self.write(info.output_bytes);
    }

    fn flush_ended(&self, info: &kingtide::FlushInfo) {
        self.write(info.written_bytes);
    }
}

/// Overwrites values while the cap is lowered from 0.9. How many of the writes after that were held until a compaction was done.
fn held_after_lowering(cap: f64, bytes_per_second: u64) -> u32 {
    let clock = ManualClock::at_unix_ms(1_800_000_000_000);
    let (busy_until, is_on) = (AtomicU64::new(0), AtomicBool::new(false));
    let disk = Arc::new(Disk { clock: clock.clone(), bytes_per_second, busy_until, is_on });
    let db = Db::open("db", options(0.9, 1000).manual_jobs(true).clock(clock.clone()).listener(disk.clone())).unwrap();
    let (mut rng, value) = (Rng::new(17), vec![7; 5000]);
    (0..KEYS).for_each(|key| _ = db.put(key.to_be_bytes(), &value).unwrap());
    for n in 0..4 * KEYS {
        db.put(rng.below(KEYS).to_be_bytes(), &value).unwrap();
        if n % 32 == 0 {
            (0..4).for_each(|_| _ = db.run_one_job().unwrap());
        }
    }
    disk.is_on.store(true, Ordering::Relaxed);
    disk.busy_until.store(clock.monotonic_ns(), Ordering::Relaxed);
    db.default_family().set_option("vlog_dead_ratio", &cap.to_string()).unwrap();
    let space = Space::of(&db);
    let garbage = (space.dead + space.hidden) as f64;
    assert!(garbage > cap * space.stored as f64 + 10.0 * (MEMTABLE + VLOG) as f64, "many times the slack");
    let merges = || db.stats().get("compactions").unwrap();
    let mut held = 0;
    for _ in 0..600 {
        let before = merges();
        db.put(rng.below(KEYS).to_be_bytes(), &value).unwrap();
        held += u32::from(merges() > before);
        clock.advance(Duration::from_micros(30));
        disk.work(&db);
    }
    held
}

/// What compactions move while they reclaim what a lower cap left holds no writer, if the disk is not much slower than these writers are.
#[test]
fn no_writer_is_held_after_the_cap_was_lowered() {
    for (cap, mib_per_second) in [(0.1, 200), (0.25, 50)] {
        let held = held_after_lowering(cap, mib_per_second << 20);
        assert_eq!(held, 0, "of 600 writers, with a cap of {cap} and a disk of {mib_per_second} MiB/s");
    }
}
