//! When writes cannot go on: a sync of the log failed, or a key order panicked amid a commit. Reads go on with what is
//! visible, and whatever happens then, closing included, the next open finds an exact prefix of the commits.

use kingtide::vfs::{Fault, FaultFs, Fs, MemFs, Op, Rule, Survival};
use kingtide::{
    ColumnFamily, CustomOrder, Db, Durability, ErrorKind, FamilyOptions, Isolation, KeyOrder, Options, WriteBatch,
    WriteOptions,
};
use kingtide_base::rng::Rng;
use std::cmp::Ordering as Cmp;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn options(fs: Arc<dyn Fs>) -> Options {
    let mut o = Options::new().fs(fs).manual_jobs(true);
    o.db.wal_segment_size = 64 << 10;
    o.db.block_cache_size = 1 << 20;
    o
}

fn write(db: &Db, batch: WriteBatch, durability: Durability) -> kingtide::Result<()> {
    let mut batch = batch;
    db.write_with(&mut batch, &WriteOptions::new().durability(durability)).map(|_| ())
}

/// An order whose comparisons panic after so many; never, if negative.
struct Panicky(AtomicI64);

impl CustomOrder for Panicky {
    fn name(&self) -> &str {
        "panicky"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Cmp {
        if self.0.fetch_sub(1, Ordering::SeqCst) == 0 {
            std::panic::resume_unwind(Box::new("told to")); // without a message, which takes long
        }
        a.cmp(b)
    }

    fn head(&self, _: &[u8]) -> u64 {
        0
    }
}

struct Sorted {
    fs: MemFs,
    order: Arc<Panicky>,
    db: Db,
    plain: ColumnFamily,
    panicky: ColumnFamily,
}

impl Sorted {
    fn open(fs: &MemFs) -> Sorted {
        let order = Arc::new(Panicky(AtomicI64::new(-1)));
        let mut o = options(Arc::new(fs.clone()));
        o.custom_orders.push(order.clone());
        let db = Db::open("db", o).unwrap();
        let custom = || KeyOrder::Custom(order.clone());
        let panicky = db
            .family("panicky")
            .or_else(|_| db.create_family_ordered("panicky", FamilyOptions::default(), custom()))
            .unwrap();
        Sorted { fs: fs.clone(), order, plain: db.default_family().clone(), panicky, db }
    }

    fn new() -> Sorted {
        let s = Sorted::open(&MemFs::new());
        for key in 0..20u8 {
            s.plain.put([key], b"old").unwrap();
            s.panicky.put([key], b"old").unwrap();
        }
        s
    }

    /// Runs `work` with an order that panics at the comparison after so many. Whether it did.
    fn broken_off(&self, after: i64, work: impl FnOnce()) -> bool {
        self.order.0.store(after, Ordering::SeqCst);
        let broken_off = catch_unwind(AssertUnwindSafe(work)).is_err();
        self.order.0.store(-1, Ordering::SeqCst);
        broken_off
    }

    /// How many keys have the old value and how many the new one. Each family is read in two ways.
    fn contents(&self) -> (usize, usize) {
        let mut values = Vec::new();
        for family in [&self.plain, &self.panicky] {
            let mut it = family.cursor(..).unwrap();
            it.seek_to_first();
            while it.valid() {
                let value = it.value().unwrap().to_vec();
                assert_eq!(family.get(it.key()).unwrap().as_deref(), Some(&value[..]));
                values.push(value);
                it.next();
            }
            it.status().unwrap();
        }
        let count = |what: &[u8]| values.iter().filter(|v| v[..] == *what).count();
        (count(b"old"), count(b"new"))
    }
}

/// A commit to two families that a panic breaks off at any comparison happened in whole or not at all, and before the next
/// open it did not happen.
#[test]
fn a_panic_amid_a_commit_leaves_no_part_of_it() {
    let mut broken_off = 0;
    for durability in [Durability::Power, Durability::None] {
        for after in 0.. {
            let s = Sorted::new();
            let before = s.contents();
            let mut batch = WriteBatch::new();
            for key in [5u8, 30, 1, 18] {
                if durability != Durability::None {
                    batch.put(&s.plain, &[key], b"new").unwrap();
                }
                batch.put(&s.panicky, &[key], b"new").unwrap();
            }
            batch.delete_range(&s.panicky, &[7]..&[9]).unwrap();
            if !s.broken_off(after, || write(&s.db, batch, durability).unwrap()) {
                break;
            }
            broken_off += 1;
            assert_eq!(s.contents(), before);
            for durability in [Durability::Process, Durability::None] {
                let mut one = WriteBatch::new();
                one.put(&s.plain, b"one more", b"").unwrap();
                let e = write(&s.db, one, durability).unwrap_err();
                assert!(e.kind() == ErrorKind::Poisoned && e.message().contains("panic"), "{e}");
            }
            assert_eq!(s.contents(), before);
            assert_eq!(s.db.flush().unwrap_err().kind(), ErrorKind::Poisoned);
            assert_eq!(s.db.checkpoint("copy").unwrap_err().kind(), ErrorKind::Poisoned);
            let disks = [s.fs.kill_clone(), s.fs.crash_clone(Survival::AllLost, &mut Rng::new(1))];
            assert_eq!(s.db.close().unwrap_err().kind(), ErrorKind::Poisoned);
            for (disk, cut_power) in [(&disks[0], false), (&disks[1], true), (&s.fs, false)] {
                let found = Sorted::open(disk).contents();
                let whole = if durability == Durability::None { before } else { (32, 8) };
                let expected = if cut_power { [(0, 0), before] } else { [whole, whole] };
                assert!(expected.contains(&found), "{found:?} after {after} comparisons, {durability:?}");
            }
        }
    }
    println!("{broken_off} commits broken off");
    assert!(broken_off > 10);
}

/// A panic amid a prepare leaves the name free, and one amid the commit by name leaves the transaction in doubt.
#[test]
fn a_panic_amid_a_prepare_gives_the_name_back() {
    let (mut prepares, mut commits) = (0, 0);
    for after in 0.. {
        let s = Sorted::new();
        let mut txn = s.db.begin(Isolation::Serializable).unwrap();
        txn.get(&s.panicky, &[3u8]).unwrap();
        txn.put(&s.panicky, &[4u8], b"new").unwrap();
        txn.put(&s.panicky, &[2u8], b"new").unwrap();
        if !s.broken_off(after, || txn.prepare(b"xid").unwrap()) {
            break;
        }
        prepares += 1;
        drop(txn);
        let mut again = s.db.begin(Isolation::Serializable).unwrap();
        again.put(&s.panicky, &[4u8], b"new").unwrap();
        again.prepare(b"xid").unwrap_or_else(|e| panic!("after {after} comparisons: {e}"));
        again.commit().unwrap();
    }
    for after in 0.. {
        let s = Sorted::new();
        let mut txn = s.db.begin(Isolation::ReadCommitted).unwrap();
        txn.put(&s.panicky, &[4u8], b"new").unwrap();
        txn.put(&s.panicky, &[2u8], b"new").unwrap();
        txn.prepare(b"xid").unwrap();
        drop(txn);
        if !s.broken_off(after, || _ = s.db.commit_prepared(b"xid").unwrap()) {
            break;
        }
        commits += 1;
        if s.db.commit_prepared(b"xid").is_err() {
            // Its end is in the log: the next open finds it committed.
            let found = Sorted::open(&s.fs.kill_clone());
            assert!(found.db.recover_prepared().is_empty());
            assert_eq!(found.contents(), (38, 2));
        } else {
            assert_eq!(s.contents(), (38, 2));
        }
    }
    println!("{prepares} prepares and {commits} commits by name broken off");
    assert!(prepares > 0 && commits > 0);
}

/// Flushes may be refused from then on, so that what no log holds would be lost at the close.
#[test]
fn after_a_failed_sync_no_write_is_taken_whatever_it_asked_for() {
    let disk = MemFs::new();
    let faults = FaultFs::new(Arc::new(disk.clone()), 1);
    let db = Db::open("db", options(Arc::new(faults.clone())).direct_value_threshold(1000)).unwrap();
    let other = db.create_family("other", FamilyOptions::default()).unwrap();
    let put = |family: &ColumnFamily, length: usize, durability| {
        let mut batch = WriteBatch::new();
        batch.put(family, b"key", &vec![7; length]).unwrap();
        write(&db, batch, durability)
    };
    put(&other, 10, Durability::Process).unwrap();
    faults.add(Rule::new(Op::Sync, Fault::Eio).path(".wal"));
    assert_eq!(put(&other, 10, Durability::Power).unwrap_err().kind(), ErrorKind::Poisoned);
    faults.clear();
    let levels =
        [Durability::None, Durability::Process, Durability::Interval(Duration::from_millis(5)), Durability::Power];
    for durability in levels {
        for length in [10, 20_000] {
            let e = put(db.default_family(), length, durability).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Poisoned, "{durability:?}: {e}");
        }
    }
    assert!(db.get("key").unwrap().is_none() && other.get("key").unwrap().is_some());
}

/// Commit `i` is the key `i`, in one of `n` families or in two.
fn families_of(commit: u32, n: usize) -> impl Iterator<Item = usize> {
    let first = commit as usize % n;
    std::iter::once(first).chain(commit.is_multiple_of(5).then_some((first + 1) % n))
}

/// How many commits are there; fails if that is no prefix of them.
fn prefix(disk: &MemFs, families: usize, commits: u32, what: &str) -> u32 {
    let db = Db::open("db", options(Arc::new(disk.clone()))).unwrap_or_else(|e| panic!("{what}: {e}"));
    let there = |i: u32| {
        let found: Vec<bool> = families_of(i, families)
            .map(|f| db.family(&format!("f{f}")).unwrap().get(i.to_be_bytes()).unwrap().is_some())
            .collect();
        assert!(found.iter().all(|f| *f == found[0]), "{what}: a part of commit {i}");
        found[0]
    };
    let n = (0..commits).take_while(|i| there(*i)).count() as u32;
    assert!(!(n..commits).any(there), "{what}: commit {n} is missing, and a later one is there");
    n
}

/// After a failed sync of the log nothing is flushed, at the close neither, that older commits to other families could
/// be missing beside.
#[test]
fn what_survives_a_log_that_cannot_be_synced_is_a_prefix() {
    let full = kingtide_testkit::full();
    let (mut cuts, mut flushed) = (0, 0);
    for seed in 0..if full { 400 } else { 20 } {
        let mut rng = Rng::new(seed);
        let disk = MemFs::new();
        let faults = FaultFs::new(Arc::new(disk.clone()), seed);
        let db = Db::open("db", options(Arc::new(faults.clone()))).unwrap();
        let number = if seed % 4 == 0 { 1 } else { 3 };
        let families: Vec<_> =
            (0..number).map(|f| db.create_family(&format!("f{f}"), FamilyOptions::default()).unwrap()).collect();
        let (mut commits, mut durable) = (0u32, 0);
        let mut commit = |durability| {
            let mut batch = WriteBatch::new();
            families_of(commits, number)
                .for_each(|f| batch.put(&families[f], &commits.to_be_bytes(), b"value").unwrap());
            let done = write(&db, batch, durability);
            commits += 1;
            (commits, done)
        };
        for _ in 0..rng.below(40) {
            commit(Durability::Process).1.unwrap();
            if rng.one_in(10) {
                db.flush().unwrap();
                durable = commit(Durability::Power).0;
            }
        }
        faults.add(Rule::new(Op::Sync, Fault::Eio).path(".wal"));
        for _ in 0..rng.below(6) {
            commit(Durability::Process).1.unwrap();
        }
        let (commits, failed) = commit(Durability::Power);
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Poisoned);
        faults.clear();

        let disks: Arc<Mutex<Vec<MemFs>>> = Arc::default();
        let keep = disks.clone();
        disk.on_write(Some(Box::new(move |at| keep.lock().unwrap().push(at.kill_clone()))));
        if rng.one_in(2) {
            let _ = db.flush();
        }
        flushed += u32::from(db.close().is_ok());
        disk.on_write(None);
        let mut disks = std::mem::take(&mut *disks.lock().unwrap());
        disks.push(disk.kill_clone());
        for (n, before) in disks.iter().enumerate() {
            for model in Survival::ALL {
                let what = format!("seed {seed}, write {n} of the close, {model:?}");
                let found = prefix(&before.crash_clone(model, &mut rng), number, commits, &what);
                assert!(found >= durable, "{what}: {found} commits of {durable} that were durable");
                cuts += 1;
            }
            assert_eq!(prefix(before, number, commits, &format!("seed {seed}, kill at write {n}")), commits);
        }
    }
    println!("{cuts} cuts, {flushed} closes that could flush everything");
    assert!(flushed > 2);
}

/// Panics when `armed`, in the engine's own threads only.
struct PanicsInBackground(std::sync::atomic::AtomicBool);

impl CustomOrder for PanicsInBackground {
    fn name(&self) -> &str {
        "panics in background"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Cmp {
        let ours = std::thread::current().name().is_some_and(|n| n.starts_with("kingtide-"));
        if ours && self.0.load(Ordering::SeqCst) {
            std::panic::resume_unwind(Box::new("told to"));
        }
        a.cmp(b)
    }
}

/// A panic in a background thread ended the thread silently: its waiters waited for ever, `close` too, and
/// no error was counted.
#[test]
fn a_panic_in_a_background_thread_stops_writes_and_leaves_no_thread_waiting() {
    for rounds in 0..4 {
        let fs = MemFs::new();
        let order = Arc::new(PanicsInBackground(false.into()));
        let mut o = options(Arc::new(fs.clone()));
        o.manual_jobs = false;
        o.db.background_threads = 2 + rounds;
        o.family.l0_trigger = 2;
        o.order = KeyOrder::Custom(order.clone());
        let db = Db::open("db", o.clone()).unwrap();
        for round in 0..3u64 {
            (0..200u64).for_each(|i| {
                db.put((i * 7 % 200 + round).to_be_bytes(), [round as u8; 50]).unwrap();
            });
            db.flush().unwrap();
        }
        order.0.store(true, Ordering::SeqCst);
        db.delete_range(b"\0"..b"\xff").unwrap();
        db.put(b"last", b"acknowledged").unwrap();
        let waited = db.compact().unwrap_err();
        assert_eq!(waited.kind(), ErrorKind::Poisoned, "{waited}");
        assert!(waited.to_string().contains("told to") && waited.to_string().contains("opened again"), "{waited}");
        for refused in
            [db.put(b"x", b"y").map(drop), db.flush(), db.create_family("f", FamilyOptions::default()).map(|_| ())]
        {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Poisoned);
        }
        assert!(
            db.begin(Isolation::Snapshot)
                .and_then(|mut t| {
                    t.put(db.default_family(), b"x", b"y")?;
                    t.commit()
                })
                .is_err()
        );
        assert!(db.stats().get("background_errors").is_some_and(|n| n > 0));
        assert_eq!(db.get(b"last").unwrap().as_deref(), Some(&b"acknowledged"[..]), "reads go on");
        assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Poisoned);
        order.0.store(false, Ordering::SeqCst);
        let db = Db::open("db", o).unwrap();
        assert_eq!(db.get(b"last").unwrap().as_deref(), Some(&b"acknowledged"[..]));
        assert!(db.get(7u64.to_be_bytes()).unwrap().is_none(), "the range was deleted");
        db.compact().unwrap();
        db.close().unwrap();
    }
}

/// Without threads, wherever in the engine it comes from: at each rare path that a job can take.
#[test]
fn a_panic_in_a_job_that_the_caller_runs_is_its_error() {
    for path in ["log-segment-released", "compaction-moved-file", "manifest-rewritten", "value-log-retired"] {
        let fs = MemFs::new();
        let mut o = options(Arc::new(fs.clone()));
        o.tuning.manifest_rewrite = 256;
        o.db.close_timeout = Duration::from_millis(1); // where the panic is forgotten, close waits for a flush that never ends
        o.family.memtable_size = 64 << 10;
        o.family.value_threshold = 64;
        let db = Db::open("db", o.clone()).unwrap();
        kingtide_base::rare::on_this_thread(Some(Box::new(move |taken| {
            if taken == path {
                std::panic::resume_unwind(Box::new(format!("at {taken}")));
            }
        })));
        let mut told = None;
        for i in 0..20_000u64 {
            let written = db.put((i % 500 + i / 100).to_be_bytes(), [i as u8; 100]);
            let ran = written.map(|_| ()).and_then(|()| db.run_one_job().map(drop));
            if let Err(e) = ran {
                told = Some(e);
                break;
            }
        }
        kingtide_base::rare::on_this_thread(None);
        let told = told.unwrap_or_else(|| panic!("{path} was not taken"));
        assert!(told.kind() == ErrorKind::Poisoned && told.to_string().contains(path), "{path}: {told}");
        assert_eq!(db.put(b"x", b"y").unwrap_err().kind(), ErrorKind::Poisoned, "{path}");
        assert!(db.close().is_err());
        let db = Db::open("db", o).unwrap_or_else(|e| panic!("{path}: {e}"));
        db.put(b"x", b"y").unwrap();
        assert!(db.verify().unwrap().is_clean());
        db.close().unwrap();
    }
}

/// Merges that fail free no memory and hold none: writers that wait for memory wait for flushes.
#[test]
fn writers_that_wait_for_memory_do_not_hear_of_merges_that_fail() {
    let faulty = Arc::new(FaultFs::new(MemFs::shared(), 1));
    let mut o = options(faulty.clone());
    o.manual_jobs = false;
    o.db.memtable_budget = 128 << 10;
    o.family.memtable_size = 64 << 10;
    o.family.l0_trigger = 2;
    let db = Db::open("db", o).unwrap();
    faulty.add(Rule::new(Op::Read, Fault::Eio).path(".klog").sticky());
    let told = |name| db.stats().get(name).unwrap();
    for i in 0..20_000u64 {
        db.put((i * 7919 % 20_000).to_be_bytes(), [i as u8; 100]).unwrap();
        // Not after each put: a report takes longer than the put, and the writer would not be ahead of the flushes.
        if i % 512 == 511 && told("stall_memory_micros") > 0 && told("background_errors") > 2 && i > 8000 {
            break;
        }
    }
    assert!(told("stall_memory_micros") > 0, "no writer waited");
    assert!(told("background_errors") > 2, "no merge failed");
    faulty.clear();
    db.compact().unwrap();
    assert!(db.verify().unwrap().is_clean());
    db.close().unwrap();
}

/// A full disk makes the engine delete what it can spare. A file system of the caller's that panics at that ends no thread of the
/// engine's, and the database can be closed.
#[test]
fn a_panic_while_space_is_given_back_stops_writes_and_lets_close_return() {
    let fs = Arc::new(FaultFs::new(MemFs::shared(), 1));
    let db = Db::open("db", options(fs.clone())).unwrap();
    for _ in 0..2 {
        (0..400u32).for_each(|n| _ = db.put(n.to_be_bytes(), [7; 2000]).unwrap());
        db.flush().unwrap();
    }
    let reader = db.range(..);
    db.compact().unwrap();
    drop(reader); // no view has the inputs any more: their files can be spared
    db.put(b"more", b"1").unwrap();
    fs.add(Rule::new(Op::Write, Fault::Enospc).path("klog").sticky());
    fs.add(Rule::new(Op::Remove, Fault::Panic).sticky());
    let e = db.flush().expect_err("no space, and then a panic");
    assert!(e.kind() == ErrorKind::Poisoned && e.message().contains("panicked"), "{e}");
    fs.clear();
    assert_eq!(db.put(b"more", b"2").unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(db.get(b"more").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Poisoned);
    drop(db);
    let db = Db::open("db", options(fs)).unwrap();
    assert_eq!(db.get(b"more").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(db.range(..).count(), 401);
}

/// A file system of the caller's that panics while a flush removes what it wrote, on its way out of a panic of the same kind, does not
/// end the process.
#[test]
fn a_panic_while_the_files_of_a_panicked_flush_are_removed_is_the_flushs_error() {
    let fs = Arc::new(FaultFs::new(MemFs::shared(), 1));
    let db = Db::open("db", options(fs.clone())).unwrap();
    db.put(b"key", b"value").unwrap();
    let mut begun = db.begin(Isolation::RepeatableRead).unwrap();
    fs.add(Rule::new(Op::Write, Fault::Panic).path("klog").sticky());
    fs.add(Rule::new(Op::Remove, Fault::Panic).sticky());
    let e = db.flush().unwrap_err();
    assert!(e.kind() == ErrorKind::Poisoned && e.message().contains("panicked"), "{e}");
    fs.clear();
    // No transaction can be begun or reset any more.
    assert_eq!(db.begin(Isolation::RepeatableRead).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(begun.reset().unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Poisoned);
    drop(db);
    let db = Db::open("db", options(fs)).unwrap();
    assert_eq!(db.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

/// A flush runs on the caller's thread and ends with a shorter log. A file system of the caller's that panics at any step of this
/// halts the database, and the panic does not reach the caller.
#[test]
fn a_panic_of_the_file_system_at_any_step_of_a_flush_does_not_reach_the_caller() {
    let mut halted = 0;
    for op in [Op::Open, Op::Read, Op::Write, Op::Sync, Op::SyncDir, Op::Rename, Op::Remove, Op::Allocate] {
        for nth in 1.. {
            let fs = Arc::new(FaultFs::new(MemFs::shared(), 1));
            let mut growing = options(fs.clone());
            (growing.db.wal_segment_size, growing.tuning.first_segment) = (1 << 20, 4096);
            let db = Db::open("db", growing).unwrap();
            for n in 0..100u32 {
                db.put(n.to_be_bytes(), [7; 2000]).unwrap(); // several segments, each larger than the one before
            }
            fs.add(Rule::new(op, Fault::Panic).nth(nth));
            let what = format!("{op:?} {nth}");
            let flushed = catch_unwind(AssertUnwindSafe(|| db.flush()));
            assert!(flushed.is_ok(), "{what}: the panic reached the caller");
            fs.clear();
            if fs.stats().injected() == 0 {
                break;
            }
            halted += 1;
            assert_eq!(db.put(b"more", b"1").unwrap_err().kind(), ErrorKind::Poisoned, "{what}");
            assert_eq!(db.get(7u32.to_be_bytes()).unwrap().as_deref(), Some(&[7; 2000][..]), "{what}");
            let _ = db.close();
            drop(db);
            let db = Db::open("db", options(fs)).unwrap();
            assert_eq!(db.range(..).count(), 100, "{what}");
        }
    }
    println!("{halted} steps");
    assert!(halted > 20, "only {halted} steps");
}

/// What seals a memtable runs on the caller's thread too, and calls no key order of the caller's: not in debug builds, and not
/// past the open-file budget either, where views are made anew.
#[test]
fn a_panic_of_the_key_order_at_any_comparison_of_a_flush_does_not_reach_the_caller() {
    for (keys, max_open_files) in [(300u16, 1000), (1500, 16)] {
        let mut halted = 0;
        for after in 0.. {
            let fs = MemFs::new();
            let order = Arc::new(Panicky(AtomicI64::new(-1)));
            let mut o = options(Arc::new(fs.clone()));
            o.db.max_open_files = max_open_files;
            let db = Db::open("db", o).unwrap();
            let family_options = FamilyOptions::new().target_file_size(65_536).value_threshold(1 << 20);
            let custom = KeyOrder::Custom(order.clone());
            let family = db.create_family_ordered("panicky", family_options, custom).unwrap();
            let mut value = vec![0; 1000];
            for key in 0..keys {
                Rng::new(u64::from(key)).fill(&mut value);
                family.put(key.to_be_bytes(), &value).unwrap();
            }
            family.compact().unwrap(); // into a run of several files, which a check compares
            (0..3u16).for_each(|key| _ = family.put((key * 70).to_be_bytes(), b"new").unwrap());
            order.0.store(after, Ordering::SeqCst);
            let flushed = catch_unwind(AssertUnwindSafe(|| db.flush()));
            let all_made = order.0.swap(-1, Ordering::SeqCst) >= 0;
            let what = format!("{max_open_files} files, comparison {after}");
            let flushed = flushed.unwrap_or_else(|_| panic!("{what}: the panic reached the caller"));
            if all_made {
                flushed.unwrap();
                break;
            }
            halted += 1;
            assert_eq!(flushed.unwrap_err().kind(), ErrorKind::Poisoned, "{what}");
        }
        println!("{halted} comparisons");
        assert!(halted > 3, "only {halted} comparisons");
    }
}
