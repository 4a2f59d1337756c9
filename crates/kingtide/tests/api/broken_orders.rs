//! Key orders of the caller's that are none: they contradict themselves, change over time, or panic. Answers may be wrong then and
//! calls may fail, but every call returns.

use kingtide::backup::{Backup, BackupOptions};
use kingtide::vfs::MemFs;
use kingtide::{
    ColumnFamily, CustomOrder, Db, Entries, ErrorKind, FamilyOptions, IngestOptions, Isolation, KeyOrder, LockMode,
    Options, Result, SortedFileWriter, SystemClock, TransactionOptions, WriteBatch,
};
use kingtide_base::hash::mix64;
use std::cmp::Ordering;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A call that takes longer hangs. The longest of them takes some seconds, with other work on the machine.
const HANGS: Duration = Duration::from_secs(100);

const KEYS: u64 = 3000;

/// What is wrong with an order.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    AlwaysLess,
    AlwaysGreater,
    AlwaysEqual,
    Random,
    /// Scissors, stone, paper.
    Cycle,
    /// A right order, but heads that say the opposite.
    HeadsBackwards,
    RandomHeads,
    /// An order, but another one.
    Backwards,
    Panics,
}

const FLAWS: [Flaw; 9] = [
    Flaw::AlwaysLess,
    Flaw::AlwaysGreater,
    Flaw::AlwaysEqual,
    Flaw::Random,
    Flaw::Cycle,
    Flaw::HeadsBackwards,
    Flaw::RandomHeads,
    Flaw::Backwards,
    Flaw::Panics,
];

/// By bytes, until it breaks.
struct Broken {
    flaw: Flaw,
    breaks: AtomicBool,
    asked: AtomicU64,
}

impl CustomOrder for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        if !self.breaks.load(Relaxed) {
            return a.cmp(b);
        }
        let n = self.asked.fetch_add(1, Relaxed);
        let third = |key: &[u8]| u32::from(*key.last().unwrap_or(&0)) % 3;
        match self.flaw {
            Flaw::AlwaysLess => Ordering::Less,
            Flaw::AlwaysGreater => Ordering::Greater,
            Flaw::AlwaysEqual => Ordering::Equal,
            Flaw::Random => [Ordering::Less, Ordering::Equal, Ordering::Greater][(mix64(n) % 3) as usize],
            Flaw::Cycle => match (3 + third(a) - third(b)) % 3 {
                0 => a.cmp(b),
                1 => Ordering::Greater,
                _ => Ordering::Less,
            },
            Flaw::Backwards => b.cmp(a),
            Flaw::Panics if n % 997 == 996 => std::panic::resume_unwind(Box::new("told to")),
            Flaw::HeadsBackwards | Flaw::RandomHeads | Flaw::Panics => a.cmp(b),
        }
    }

    fn head(&self, key: &[u8]) -> u64 {
        let mut first = [0; 8];
        let len = key.len().min(8);
        first[..len].copy_from_slice(&key[..len]);
        let right = u64::from_be_bytes(first);
        match self.flaw {
            _ if !self.breaks.load(Relaxed) => right,
            Flaw::HeadsBackwards => !right,
            Flaw::RandomHeads => mix64(self.asked.fetch_add(1, Relaxed)),
            _ => right,
        }
    }
}

/// When the order breaks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    AtFirst,
    /// The family has tables, and a memtable.
    Filled,
    /// The database is opened again, with what the log holds.
    Reopened,
}

fn key(i: u64) -> Vec<u8> {
    format!("key{:05}", i % KEYS).into_bytes()
}

fn value(i: u64) -> Vec<u8> {
    vec![i as u8; (mix64(i) % 300) as usize]
}

/// Tells the watchdog which call comes next, and lets it panic.
struct Calls(Sender<&'static str>);

impl Calls {
    fn call<T>(&self, name: &'static str, work: impl FnOnce() -> T) -> Option<T> {
        self.0.send(name).expect("the watchdog is there");
        catch_unwind(AssertUnwindSafe(work)).ok()
    }
}

struct Scene {
    fs: MemFs,
    order: Arc<Broken>,
    manual_jobs: bool,
}

impl Scene {
    fn options(&self) -> Options {
        Options::new()
            .fs(Arc::new(self.fs.clone()))
            .lock_timeout(Duration::from_millis(2)) // locks may stay behind that are not found again to be released
            .manual_jobs(self.manual_jobs)
            .memtable_size(64 << 10)
            .block_size(1024)
            .target_file_size(64 << 10)
            .l0_trigger(2)
            .value_threshold(200)
            .custom_order(self.order.clone())
    }

    fn open(&self) -> Result<(Db, ColumnFamily)> {
        let db = Db::open("db", self.options())?;
        let family = match db.family("f") {
            Ok(family) => family,
            Err(_) => db.create_family_ordered("f", self.options().family, KeyOrder::Custom(self.order.clone()))?,
        };
        Ok((db, family))
    }
}

/// Puts in batches, with range deletes, until something fails.
fn fill(db: &Db, f: &ColumnFamily, from: u64, n: u64) -> Result<()> {
    for i in from..from + n / 20 {
        let mut batch = WriteBatch::new();
        for j in 0..20 {
            batch.put(f, &key((i * 20 + j) * 7919), &value(i + j))?;
        }
        if i % 20 == 0 {
            batch.delete(f, &key(i))?;
            f.delete_range(&key(i * 31)[..]..&key(i * 31 + 40)[..]).ok();
        }
        db.write(batch)?;
    }
    Ok(())
}

fn drain(entries: Entries) -> usize {
    entries.take_while(Result::is_ok).count()
}

fn read(calls: &Calls, db: &Db, f: &ColumnFamily) {
    let between = || (key(100), key(KEYS - 100));
    calls.call("get", || (0..200).for_each(|i| drop(f.get(key(i * 13)))));
    calls.call("multi_get", || f.multi_get(&(0..200).map(|i| key(i * 17)).collect::<Vec<_>>()));
    calls.call("iter", || drain(f.iter()));
    calls.call("iter backwards", || f.iter().rev().take_while(Result::is_ok).count());
    calls.call("range", || drain(f.range(&between().0[..]..&between().1[..])));
    calls.call("range from both ends", || {
        let mut both = f.range(&between().0[..]..&between().1[..]);
        while both.next().is_some_and(|e| e.is_ok()) && both.next_back().is_some_and(|e| e.is_ok()) {}
    });
    calls.call("first and last", || (f.first().map(drop), f.last().map(drop)));
    calls.call("cursor", || {
        let Ok(mut c) = f.cursor(&between().0[..]..) else { return };
        for i in 0..200 {
            if i % 2 == 0 {
                c.seek(&key(i * 29))
            } else {
                c.seek_for_prev(&key(i * 29))
            }
            for step in 0..20 {
                match (i + step / 5) % 3 {
                    0 => c.prev(),
                    _ => c.next(),
                }
            }
        }
        c.seek_to_first();
        c.walk(true, |_, _, _| true);
        c.seek_to_last();
        c.walk(false, |_, _, _| true);
    });
    calls.call("estimates", || {
        f.range_stats(&between().0[..]..&between().1[..]).ok();
        f.split_points(.., 7).ok();
        f.cardinality(.., 3, 20, |a, b| a.iter().zip(b).take_while(|(x, y)| x == y).count()).ok();
    });
    calls.call("snapshot", || drain(db.snapshot().iter(f)));
    calls.call("changes", || -> Result<()> {
        let mut changes = db.changes_since(db.oldest_change_sequence())?;
        while changes.next()?.is_some() {}
        Ok(())
    });
}

fn transactions(calls: &Calls, db: &Db, f: &ColumnFamily) {
    for isolation in [Isolation::ReadCommitted, Isolation::Snapshot, Isolation::Serializable] {
        for locking in [false, true] {
            calls.call("transaction", || -> Result<()> {
                let mut t = db.begin_with(TransactionOptions::new(isolation).locking(locking))?;
                for i in 0..100 {
                    t.put(f, &key(i * 31), &value(i)).ok();
                    t.delete(f, &key(i * 37)).ok();
                    t.get(f, &key(i * 41)).ok();
                }
                if locking {
                    t.get_for_update(f, &key(5)).ok();
                    t.multi_get_for_update(f, &(0..50).map(|i| key(i * 43)).collect::<Vec<_>>());
                    for i in 0..10 {
                        t.lock_range(f, &key(i * 50)[..]..&key(i * 50 + 200)[..], LockMode::Exclusive).ok();
                        t.lock_range(f, &key(i * 50 + 30)[..].., LockMode::Shared).ok();
                    }
                }
                t.set_savepoint("here")?;
                t.delete_range(f, &key(7)[..]..&key(70)[..]).ok();
                drain(t.iter(f));
                t.iter(f).rev().take_while(Result::is_ok).count();
                t.rollback_to_savepoint("here")?;
                t.delete_range(f, &key(300)[..]..&key(350)[..]).ok();
                if isolation == Isolation::Snapshot {
                    t.prepare(b"in doubt")?;
                }
                t.commit().map(drop)
            });
            calls.call("commit_prepared", || db.commit_prepared(b"in doubt").map(drop));
        }
    }
    calls.call("transact", || db.transact(|t| t.put(f, &key(9), b"nine")));
    calls.call("compare_and_swap", || f.compare_and_swap(key(9), Some(b"nine"), Some(b"ten")).map(drop));
}

fn maintain(calls: &Calls, scene: &Scene, db: &Db, f: &ColumnFamily) {
    calls.call("ingest", || -> Result<()> {
        let mut file = SortedFileWriter::create("sorted", f)?;
        for i in 0..300 {
            file.put(&key(i * 3), b"ingested").ok();
        }
        file.finish()?;
        f.ingest(&["sorted"], &IngestOptions::new()).map(drop)
    });
    calls.call("reclaim_range", || f.reclaim_range(&key(500)[..]..&key(900)[..]));
    calls.call("run_one_job", || {
        if scene.manual_jobs {
            (0..50).for_each(|_| drop(db.run_one_job()))
        }
    });
    calls.call("compact_range", || f.compact_range(&key(1000)[..]..&key(1500)[..]));
    calls.call("flush", || f.flush());
    calls.call("compact", || db.compact());
    calls.call("wait_for_background", || db.wait_for_background());
    calls.call("clone_family", || db.clone_family("f", "clone").map(drop));
    calls.call("export", || f.export("exported").map(drop));
    calls.call("import_family", || db.import_family("imported", "exported").map(drop));
    calls.call("checkpoint", || db.checkpoint("checkpoint").map(drop));
    let backup = Backup::on(Arc::new(scene.fs.clone()), "backups");
    calls.call("backup", || backup.create(db, BackupOptions::new()).map(drop));
    calls.call("restore", || backup.restore(backup.list()?.first().map_or(0, |b| b.id), "restored"));
    calls.call("verify", || db.verify().map(drop));
}

fn play(calls: &Calls, scene: &Scene, when: When) {
    let broken = || scene.order.breaks.store(true, Relaxed);
    if when == When::AtFirst {
        broken();
    }
    let Some(Ok((db, f))) = calls.call("open", || scene.open()) else { return };
    calls.call("write", || fill(&db, &f, 0, 3000));
    if when != When::AtFirst {
        db.flush().unwrap();
        fill(&db, &f, 1000, 2000).unwrap();
        db.compact().unwrap();
        fill(&db, &f, 2000, 600).unwrap();
    }
    if when == When::Filled {
        broken();
    }
    if when != When::Reopened {
        read(calls, &db, &f);
        transactions(calls, &db, &f);
        calls.call("write more", || fill(&db, &f, 3000, 1000));
        read(calls, &db, &f);
        maintain(calls, scene, &db, &f);
        read(calls, &db, &f);
        calls.call("close", || db.close());
    }
    drop((f, db));
    broken();
    calls.call("verify when closed", || kingtide::verify("db", &scene.options()).map(drop));
    calls.call("open_read_only", || {
        let reader = Db::open_read_only("db", scene.options())?;
        drain(reader.family("f")?.iter());
        reader.try_catch_up().map(drop)
    });
    let again = calls.call("open again", || scene.open());
    if let Some(Ok((db, f))) = &again {
        read(calls, db, f);
        calls.call("write", || fill(db, f, 4000, 1000));
        transactions(calls, db, f);
        maintain(calls, scene, db, f);
        read(calls, db, f);
        calls.call("close", || db.close());
    }
    calls.call("drop", || drop(again));
    calls.call("repair", || kingtide::repair("db", "repaired", &scene.options()).map(drop));
}

/// Plays all of it, and names the call that does not return.
fn watch(flaw: Flaw, when: When, manual_jobs: bool) {
    let scene = Scene {
        fs: MemFs::new(),
        order: Arc::new(Broken { flaw, breaks: false.into(), asked: 0.into() }),
        manual_jobs,
    };
    let (tell, told) = channel();
    std::thread::spawn(move || play(&Calls(tell), &scene, when));
    let mut call = "nothing";
    loop {
        match told.recv_timeout(HANGS) {
            Ok(next) => call = next,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{flaw:?}, {when:?}, manual jobs {manual_jobs}: '{call}' has not returned for {HANGS:?}")
            }
            // The last call was made, or its thread has panicked outside of one.
            Err(RecvTimeoutError::Disconnected) if call == "repair" || call == "open" => return,
            Err(RecvTimeoutError::Disconnected) => panic!("{flaw:?}, {when:?}: nothing was called after '{call}'"),
        }
    }
}

#[test]
fn every_call_returns_whatever_a_key_order_says() {
    std::thread::scope(|scope| {
        for flaw in FLAWS {
            scope.spawn(move || {
                watch(flaw, When::AtFirst, flaw == Flaw::AlwaysLess);
                watch(flaw, When::Filled, true);
                watch(flaw, When::Filled, false);
                watch(flaw, When::Reopened, flaw != Flaw::AlwaysLess);
            });
        }
    });
}

/// By bytes. It panics over keys that begin with `!`, and in every comparison while `panics` is set.
#[derive(Default)]
struct Fussy {
    panics: AtomicBool,
}

impl CustomOrder for Fussy {
    fn name(&self) -> &str {
        "fussy"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        if self.panics.load(Relaxed) {
            std::panic::resume_unwind(Box::new("told to"));
        }
        a.cmp(b)
    }

    fn head(&self, key: &[u8]) -> u64 {
        if key.starts_with(b"!") {
            std::panic::resume_unwind(Box::new("a key that it does not know"));
        }
        0
    }
}

fn fussy(fs: &MemFs, order: &Arc<Fussy>) -> Db {
    let options = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true).custom_order(order.clone());
    Db::open("db", options).unwrap()
}

fn contents(f: &ColumnFamily) -> Vec<(Vec<u8>, Vec<u8>)> {
    f.iter().map(|entry| entry.unwrap().into()).collect()
}

/// What a thread or a batch puts after a put that panicked is what the log has, no more and no less.
#[test]
fn a_put_that_panics_is_in_no_later_commit() {
    let (fs, order) = (MemFs::new(), Arc::<Fussy>::default());
    let db = fussy(&fs, &order);
    let f = db.create_family_ordered("f", Default::default(), KeyOrder::Custom(order.clone())).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| f.put("!", "lost"))).is_err());
    f.put("put", "1").unwrap();
    let mut batch = WriteBatch::new();
    batch.put(&f, b"batch 1", b"2").unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| batch.put(&f, b"!", b"lost"))).is_err());
    batch.put(&f, b"batch 2", b"3").unwrap();
    db.write(batch).unwrap();
    db.transact(|t| {
        assert!(catch_unwind(AssertUnwindSafe(|| t.put(&f, b"!", b"lost"))).is_err());
        t.put(&f, b"transaction", b"4")
    })
    .unwrap();
    let kept = contents(&f);
    assert_eq!(kept.len(), 4, "{kept:?}");
    let db = fussy(&fs.kill_clone(), &order);
    assert_eq!(contents(&db.family("f").unwrap()), kept);
}

/// The same where the commit itself panics, before it has done anything.
#[test]
fn a_commit_that_panics_is_in_no_later_one() {
    let (fs, order) = (MemFs::new(), Arc::<Fussy>::default());
    let db = fussy(&fs, &order);
    let f = db.create_family_ordered("f", Default::default(), KeyOrder::Custom(order.clone())).unwrap();
    let mut locker = db.begin_with(TransactionOptions::new(Isolation::ReadCommitted).locking(true)).unwrap();
    locker.lock(&f, b"lock", LockMode::Exclusive).unwrap();
    order.panics.store(true, Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| f.put("panicked", "1"))).is_err(), "it compares with the lock's key");
    order.panics.store(false, Relaxed);
    locker.rollback().unwrap();
    f.put("put", "2").unwrap();
    assert_eq!(contents(&f), [(b"put".to_vec(), b"2".to_vec())]);
}

/// By bytes, but every second answer is that both keys are one.
#[derive(Default)]
struct Wavering(AtomicBool);

impl CustomOrder for Wavering {
    fn name(&self) -> &str {
        "wavering"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        if self.0.fetch_xor(true, Relaxed) { Ordering::Equal } else { a.cmp(b) }
    }
}

#[test]
fn a_range_that_a_sorted_file_refuses_is_not_counted() {
    let fs = MemFs::shared();
    let order = KeyOrder::Custom(Arc::<Wavering>::default());
    let mut w =
        SortedFileWriter::create_on(fs, "file", order, &FamilyOptions::default(), SystemClock::shared()).unwrap();
    w.delete_range("a".."b").unwrap_err();
    let e = w.finish().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
}
