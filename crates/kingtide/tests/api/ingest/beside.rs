//! Commits while an ingest waits for the disk: it holds none of them up but those between the keys of its files, and whatever
//! happens it is one commit among them: what survives a power cut is the state behind one of them.

use super::world::*;
use kingtide::vfs::{Boundary, Fault, FaultFs, MemFs, Op, Rule, Survival};
use kingtide::{ColumnFamily, Db, ErrorKind, IngestOptions, ManualClock, Options, verify};
use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// The name of threads that put.
const BESIDE: &str = "beside";
/// After which a put hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A database on a disk whose operations can be held, with a sorted file of the keys 100..200 beside it.
struct World {
    disk: MemFs,
    faulty: Arc<FaultFs>,
    clock: Arc<ManualClock>,
    db: Db,
}

impl World {
    fn new() -> World {
        let disk = MemFs::new();
        let faulty = Arc::new(FaultFs::new(Arc::new(disk.clone()), 1));
        kingtide::vfs::Fs::create_dir_all(&disk, Path::new("files")).unwrap();
        let clock = ManualClock::at_unix_ms(1_800_000_000_000);
        let mut options = options_on(faulty.clone(), true);
        options.clock = Some(clock.clone());
        let db = Db::open("db", options).unwrap();
        sorted_file(db.default_family(), "files/a", 100..200, b"ingested");
        sorted_file(db.default_family(), "files/b", 120..130, b"newer");
        db.put(key(1), b"before").unwrap();
        World { disk, faulty, clock, db }
    }

    fn family(&self) -> &ColumnFamily {
        self.db.default_family()
    }

    fn ingest(&self) -> kingtide::Result<u64> {
        self.family().ingest(&["files/a"], &IngestOptions::new())
    }

    /// Calls `then` before each operation of a kind on a file whose path has `part` in it, with how many came before.
    fn before_each(&self, op: Op, part: &'static str, then: impl Fn(u64) + Send + Sync + 'static) {
        let count = AtomicU64::new(0);
        self.faulty.before_each(Some(Arc::new(move |o, path: &Path| {
            if o == op && path.to_string_lossy().contains(part) {
                then(count.fetch_add(1, Ordering::SeqCst));
            }
        })));
    }

    fn before_none(&self) {
        self.faulty.before_each(None);
    }

    /// Opens what a kill leaves, and looks for contradictions.
    fn reopen(self) -> (MemFs, Db) {
        self.before_none();
        let disk = self.disk.kill_clone();
        let report = verify("db", &options_on(Arc::new(disk.clone()), true)).unwrap();
        let serious = |p: &&kingtide::Problem| p.severity == kingtide::Severity::Error;
        assert_eq!(report.problems.iter().find(serious), None);
        let db = open(&disk);
        assert_eq!(db.verify().unwrap().problems, []);
        (disk, db)
    }
}

fn put_beside(db: &Db, k: Vec<u8>, value: &'static [u8]) -> u64 {
    put_beside_in(db, db.default_family(), k, value)
}

/// Puts on another thread. Fails if that hangs: the thread that calls may hold what the put waits for.
fn put_beside_in(db: &Db, family: &ColumnFamily, k: Vec<u8>, value: &'static [u8]) -> u64 {
    let (db, family, (tell, told)) = (db.clone(), family.clone(), mpsc::channel());
    let put = move || {
        let put = family.put(k, value);
        drop(db);
        drop(tell.send(put))
    };
    std::thread::Builder::new().name(BESIDE.to_owned()).spawn(put).unwrap();
    told.recv_timeout(PATIENCE).expect("a put waits for the disk of an ingest").unwrap()
}

/// An ingest is visible when it is in the log, before the log is synced. A put that comes after that is a later commit.
#[test]
fn an_ingest_is_a_commit_before_the_log_is_synced() {
    let w = World::new();
    let (db, seen) = (w.db.clone(), Arc::new(Mutex::new(Vec::new())));
    let told = seen.clone();
    w.before_each(Op::Sync, ".wal", move |n| {
        let put = put_beside(&db, key(500 + n), b"beside");
        told.lock().unwrap().push((put, db.get(key(150)).unwrap().is_some(), db.snapshot()));
    });
    let ingested = w.ingest().unwrap();
    w.before_none();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let visible: Vec<bool> = seen.iter().map(|s| s.1).collect();
    assert!(
        visible.len() > 1 && !visible[0] && visible[1..].iter().all(|v| *v),
        "{visible:?}: at first before the record"
    );
    for (n, (put, visible, snapshot)) in seen.iter().enumerate() {
        assert_eq!(*visible, *put > ingested);
        assert_eq!(contents(w.family(), Some(snapshot)).len(), 2 + n + if *visible { 100 } else { 0 });
    }
    assert!(w.db.put(key(150), b"later").unwrap() > ingested);
    let all = contents(w.family(), None);
    let then: Vec<_> = seen.iter().map(|s| contents(w.family(), Some(&s.2))).collect();
    w.db.flush().unwrap();
    w.db.compact().unwrap();
    for ((_, _, snapshot), then) in seen.iter().zip(then) {
        assert_eq!(contents(w.family(), Some(snapshot)), then);
    }
    drop(seen);
    let (_, db) = w.reopen();
    assert_eq!(contents(db.default_family(), None), all);
    assert!(db.latest_sequence() > ingested, "no number is given out twice");
}

/// The log's end is written under the commit lock, as for any commit, and every now and then a segment is begun there.
fn may_be_under_the_commit_lock(op: Op, path: &Path) -> bool {
    op != Op::Sync && path.to_string_lossy().contains(".wal")
}

/// Puts complete at every operation on a file that an ingest, a clone or an import waits for: at none of them it holds the commit lock.
/// Only the append to the log is made under it.
#[test]
fn puts_complete_at_every_operation_on_a_file() {
    for act in ACTS {
        let mut syncs = 0;
        for op in Op::ALL {
            let w = World::new();
            w.db.put(key(150), b"overlapped").unwrap();
            if act == Act::Import {
                w.family().export("exported").unwrap();
            }
            let (db, puts) = (w.db.clone(), Arc::new(AtomicU64::new(0)));
            let count = puts.clone();
            w.faulty.before_each(Some(Arc::new(move |o, path: &Path| {
                if o == op && !may_be_under_the_commit_lock(o, path) && std::thread::current().name() != Some(BESIDE) {
                    put_beside(&db, key(500 + count.fetch_add(1, Ordering::SeqCst)), b"beside");
                }
            })));
            act.run(&w.db).unwrap();
            w.before_none();
            let puts = puts.load(Ordering::SeqCst);
            syncs += if matches!(op, Op::Sync | Op::SyncDir) { puts } else { 0 };
            assert_eq!(contents(w.family(), None).keys().filter(|k| **k >= key(500)).count() as u64, puts);
        }
        assert!(syncs >= 4, "{act:?}: {syncs}: a file and its name, the log, the manifest");
    }
}

/// A write between the keys of the files is ordered behind the ingest, or a read would find the older of the two. It waits while
/// memtables are flushed, until the files are visible.
#[test]
fn a_write_between_the_keys_of_the_files_waits() {
    let w = World::new();
    w.db.put(key(150), b"overlapped").unwrap();
    w.db.set_option("lock_timeout_ms", "1").unwrap(); // which is about transactions
    let (clock, waits) = (w.clock.clone(), w.db.stats().get("lock_waits").unwrap());
    let (db, writers) = (w.db.clone(), Arc::new(Mutex::new(Vec::new())));
    let begun = writers.clone();
    w.before_each(Op::Sync, ".klog", move |n| {
        // The first is that of the file, the second that of the flush.
        if n != 1 {
            return;
        }
        let spawn = |f: Box<dyn FnOnce(Db) + Send>| {
            let db = db.clone();
            begun.lock().unwrap().push(std::thread::spawn(move || f(db)));
        };
        spawn(Box::new(|db| _ = db.put(key(150), b"later").unwrap()));
        spawn(Box::new(|db| _ = db.default_family().delete_range(&key(180)..&key(300)).unwrap()));
        while db.lock_waits().len() < 2 && !begun.lock().unwrap().iter().any(|t| t.is_finished()) {
            std::thread::yield_now();
        }
        assert_eq!(db.lock_waits().len(), 2, "a write went in between");
        let held = db.locks();
        assert_eq!(held.len(), 1, "{held:?}");
        let now = kingtide::WriteOptions::new().no_wait(true);
        let mut batch = kingtide::WriteBatch::new();
        batch.put(db.default_family(), &key(150), b"now").unwrap();
        assert_eq!(db.write_with(&mut batch, &now).unwrap_err().kind(), ErrorKind::Conflict);
        // Each looks again what it waits for, and then waits on.
        clock.advance(Duration::from_secs(2));
        while db.stats().get("lock_waits").unwrap() < waits + 4 {
            std::thread::yield_now();
        }
    });
    w.ingest().unwrap();
    assert_eq!(w.db.stats().get("lock_timeouts"), Some(0));
    let begun = std::mem::take(&mut *writers.lock().unwrap());
    assert_eq!(begun.len(), 2, "there was a flush");
    begun.into_iter().for_each(|t| t.join().unwrap());
    assert!(w.db.locks().is_empty());
    let all = contents(w.family(), None);
    assert_eq!(all[&key(150)], b"later");
    assert_eq!(all.len(), 1 + 80);
}

/// A prepare of keys between those of the files waits for the ingest, as a commit does. It conflicts only if it was told not to wait.
#[test]
fn a_prepare_between_the_keys_of_the_files_waits() {
    let (inside, outside) = ([&key(150)[..], b"+"].concat(), key(900));
    for (reads, no_wait, conflict) in
        [(false, false, false), (true, false, false), (false, true, true), (true, true, true)]
    {
        let w = World::new();
        w.db.put(key(150), b"overlapped").unwrap();
        let (db, preparing) = (w.db.clone(), Arc::new(Mutex::new(None)));
        let (begun, inside, outside) = (preparing.clone(), inside.clone(), outside.clone());
        let clock = w.clock.clone();
        w.before_each(Op::Sync, ".klog", move |n| {
            // The first sync is that of the file, the second that of the flush.
            if n != 1 {
                return;
            }
            let (of, inside, outside) = (db.clone(), inside.clone(), outside.clone());
            let prepare = std::thread::spawn(move || {
                let family = of.default_family();
                let options = kingtide::TransactionOptions::new(kingtide::Isolation::Serializable).no_wait(no_wait);
                let mut txn = of.begin_with(options).unwrap();
                if reads {
                    assert_eq!(txn.get(family, &inside).unwrap(), None);
                    txn.put(family, &outside, b"prepared").unwrap();
                } else {
                    txn.put(family, &inside, b"prepared").unwrap();
                }
                let prepared = txn.prepare(b"beside");
                drop(txn);
                prepared
            });
            while db.lock_waits().is_empty() && !prepare.is_finished() {
                std::thread::yield_now();
            }
            assert_eq!(prepare.is_finished(), no_wait, "an ingest is waited for, if that is allowed");
            let waits = db.stats().get("lock_waits").unwrap();
            clock.advance(Duration::from_secs(2));
            while !no_wait && db.stats().get("lock_waits").unwrap() <= waits {
                std::thread::yield_now();
            }
            *begun.lock().unwrap() = Some(prepare);
        });
        w.ingest().unwrap();
        assert_eq!(w.db.stats().get("lock_timeouts"), Some(0));
        let prepare = preparing.lock().unwrap().take().expect("there was a flush");
        let prepared = prepare.join().unwrap();
        assert_eq!(prepared.err().map(|e| e.kind()), conflict.then_some(ErrorKind::Conflict));
        w.before_none();
        if !conflict {
            w.db.commit_prepared(b"beside").unwrap();
            let written = if reads { key(900) } else { [&key(150)[..], b"+"].concat() };
            assert_eq!(contents(w.family(), None)[&written], b"prepared");
        }
        assert!(w.db.locks().is_empty());
    }
}

/// Nothing is left of an ingest that the log takes no record of, and a commit beside it stays.
#[test]
fn an_ingest_that_the_log_does_not_take_leaves_nothing() {
    let mut refused = 0;
    for n in 1.. {
        let w = World::new();
        let db = w.db.clone();
        w.before_each(Op::Sync, ".klog", move |n| {
            if n == 0 {
                put_beside(&db, key(500), b"beside");
            }
        });
        // Of payload or header.
        w.faulty.add(Rule::new(Op::Write, Fault::Eio).path(".wal").nth(n));
        w.faulty.set_enabled(false);
        let (faulty, file) = (w.faulty.clone(), w.faulty.clone());
        w.before_each(Op::SyncDir, "db", move |_| faulty.set_enabled(true));
        let outcome = w.ingest();
        file.set_enabled(true);
        w.faulty.clear();
        if outcome.is_ok() {
            break;
        }
        refused += 1;
        assert_eq!(contents(w.family(), None).len(), 1);
        assert!(w.db.locks().is_empty());
        w.db.put(key(600), b"it goes on").unwrap();
        w.ingest().unwrap();
        let (_, db) = w.reopen();
        assert_eq!(contents(db.default_family(), None).len(), 102);
    }
    assert!(refused >= 2, "{refused}");
}

/// A record that the log reports as failed may be there after a power cut: what it names is, too.
#[test]
fn a_refused_record_finds_its_files_after_a_power_cut() {
    let mut doubtful = 0;
    for n in 1..=4 {
        let w = World::new();
        w.db.flush().unwrap();
        w.db.put(key(600), b"unsynced").unwrap();
        let cuts = Arc::new(Mutex::new(Vec::new()));
        let keep = cuts.clone();
        w.disk.on_write(Some(Box::new(move |b: &Boundary<'_>| keep.lock().unwrap().push(b.kill_clone()))));
        // Half of it is written: the header's checksum is in the first half, its last bytes may be zeros anyway.
        w.faulty.add(Rule::new(Op::Write, Fault::ShortWrite).path(".wal").nth(n));
        let outcome = w.ingest();
        w.faulty.clear();
        w.disk.on_write(None);
        if let Err(e) = &outcome {
            doubtful += u32::from(e.to_string().contains("next open"));
        }
        cuts.lock().unwrap().push(w.disk.kill_clone());
        for (i, cut) in std::mem::take(&mut *cuts.lock().unwrap()).iter().enumerate() {
            for (j, model) in Survival::ALL.into_iter().enumerate() {
                let db = open(&cut.crash_clone(model, &mut Rng::new((i << 8 | j) as u64)));
                let found = contents(db.default_family(), None).len();
                assert!([1, 2, 102].contains(&found), "write {n}, cut {i}, {model:?}: {found}");
                db.compact().unwrap();
                assert!(db.verify().unwrap().problems.is_empty());
            }
        }
    }
    assert!(doubtful > 0, "no header was written in part");
}

/// What an ingest is to the log is what a commit is to it.
#[test]
fn an_ingest_whose_sync_fails_is_done_and_may_not_survive() {
    let w = World::new();
    w.db.sync().unwrap();
    let before = contents(w.family(), None);
    w.faulty.add(Rule::new(Op::Sync, Fault::Eio).path(".wal"));
    let e = w.ingest().unwrap_err();
    assert!(e.kind() == ErrorKind::Poisoned && e.to_string().contains("it was done"), "{e}");
    let all = contents(w.family(), None);
    assert_eq!(all.len(), 101);
    assert_eq!(w.db.put(b"k", b"v").unwrap_err().kind(), ErrorKind::Poisoned);
    // Nothing may tell the manifest of the files from here on: the commits before them may be lost.
    let _ = (w.db.compact(), w.db.set_option("max_wal_size", "1M"));
    let _ = w.family().set_option("ttl_ms", "1000000");
    let lost = w.disk.crash_clone(Survival::AllLost, &mut Rng::new(1));
    assert_eq!(contents(open(&lost).default_family(), None), before);
    assert_eq!(contents(open(&w.disk.kill_clone()).default_family(), None), all);
    drop(w.db);
    assert_eq!(contents(open(&w.disk).default_family(), None), all);
}

/// From the log's sync on an ingest survives, whatever happens to the manifest, which gets it later.
#[test]
fn an_ingest_that_the_manifest_does_not_take_survives() {
    for (op, fault) in
        [(Op::Write, Fault::Eio), (Op::Write, Fault::ShortWrite), (Op::Sync, Fault::Eio), (Op::Open, Fault::Eio)]
    {
        for for_good in [false, true] {
            let w = World::new();
            w.db.put(key(150), b"overlapped").unwrap();
            w.db.flush().unwrap();
            let rule = Rule::new(op, fault).path("MANIFEST");
            w.faulty.add(if for_good { rule.sticky() } else { rule });
            w.ingest().unwrap();
            let what = format!("{op:?} {fault:?} {for_good}");
            let all = contents(w.family(), None);
            assert_eq!(all.len(), 101, "{what}");
            sorted_file(w.family(), "files/c", 300..310, b"second");
            let second = w.family().ingest(&["files/c"], &IngestOptions::new());
            let all = if second.is_ok() { contents(w.family(), None) } else { all };
            // Two times, because what a recovery took from the log only the log has still.
            for model in Survival::ALL {
                let mut disk = w.disk.crash_clone(model, &mut Rng::new(7));
                for _ in 0..2 {
                    let report = verify("db", &options_on(Arc::new(disk.clone()), true)).unwrap();
                    let serious = |p: &&kingtide::Problem| p.severity == kingtide::Severity::Error;
                    assert_eq!(report.problems.iter().find(serious), None, "{what}, {model:?}");
                    let reader = Db::open_read_only("db", options_on(Arc::new(disk.clone()), true)).unwrap();
                    assert_eq!(contents(reader.default_family(), None), all, "{what}, {model:?}");
                    drop(reader);
                    let db = open(&disk);
                    assert_eq!(contents(db.default_family(), None), all, "{what}, {model:?}");
                    assert_eq!(db.verify().unwrap().problems.iter().find(serious), None, "{what}, {model:?}");
                    disk = disk.crash_clone(model, &mut Rng::new(8));
                }
                let db = open(&disk);
                db.put(key(700), b"after").unwrap();
                db.compact().unwrap();
                assert!(db.verify().unwrap().problems.is_empty());
                drop(db);
                assert_eq!(contents(open(&disk).default_family(), None).len(), all.len() + 1, "{what}, {model:?}");
            }
            w.faulty.clear();
            w.db.put(key(600), b"it goes on").unwrap();
            w.db.compact().unwrap();
            let (_, db) = w.reopen();
            assert_eq!(contents(db.default_family(), None).len(), all.len() + 1, "{what}");
        }
    }
}

/// A recovery that flushes what came before an ingest does not give that flush the run of the ingest's file, which only the log
/// names. Two such files of one run would overlap.
#[test]
fn what_recovery_flushes_joins_no_run_of_an_ingest() {
    let w = World::new();
    w.ingest().unwrap(); // begins a segment of the log, which the next one needs no more
    w.db.flush().unwrap();
    w.db.put(key(50), b"on one side").unwrap();
    for i in 0..500 {
        w.db.put(key(250 + i), [7; 150]).unwrap();
    }
    let left = Arc::new(Mutex::new(None));
    let (disk, kept) = (w.disk.clone(), left.clone());
    w.before_each(Op::Write, "MANIFEST", move |n| {
        if n == 0 {
            *kept.lock().unwrap() = Some(disk.kill_clone());
        }
    });
    w.family().ingest(&["files/b"], &IngestOptions::new()).unwrap();
    w.before_none();
    let all = contents(w.family(), None);
    let disk = left.lock().unwrap().take().expect("the manifest was written");
    let mut options = options_on(Arc::new(disk), true);
    options.set("memtable_budget", "128K").unwrap();
    let db = Db::open("db", options).unwrap();
    assert!(db.stats().families[0].levels[0].files > 2, "recovery flushed");
    assert_eq!(contents(db.default_family(), None), all);
    assert!(db.verify().unwrap().problems.is_empty());
    db.compact().unwrap();
    assert_eq!(contents(db.default_family(), None), all);
}

/// A file that only the log names, and that is missing or has another size, is named by the error.
#[test]
fn a_missing_file_of_a_logged_ingest_is_damage() {
    let w = World::new();
    w.faulty.add(Rule::new(Op::Write, Fault::Eio).path("MANIFEST").sticky());
    w.ingest().unwrap();
    let tables = |disk: &MemFs| {
        let names = kingtide::vfs::Fs::list(disk, Path::new("db")).unwrap();
        names.into_iter().filter(|n| n.ends_with(".klog")).collect::<Vec<_>>()
    };
    let [table] = &tables(&w.disk)[..] else { panic!("one file was ingested") };
    for truncated in [false, true] {
        let disk = w.disk.kill_clone();
        let path = Path::new("db").join(table);
        match truncated {
            true => {
                kingtide::vfs::Fs::open(&disk, &path, kingtide::vfs::OpenMode::Write).unwrap().truncate(40).unwrap()
            }
            false => kingtide::vfs::Fs::remove(&disk, &path).unwrap(),
        }
        let options = || options_on(Arc::new(disk.clone()), true);
        for opened in [Db::open("db", options()), Db::open_read_only("db", options())] {
            let e = opened.expect_err("a file is damaged");
            assert_eq!((e.kind(), e.path()), (ErrorKind::Corruption, Some(&*path)), "{e}");
        }
        let report = verify("db", &options()).unwrap();
        assert!(report.problems.iter().any(|p| p.path.as_deref() == Some(&*path)), "{:?}", report.problems);
        let repaired = kingtide::repair("db", "repaired", &options()).unwrap();
        assert!(repaired.unreadable.iter().any(|f| f.path == path), "{repaired:?}");
    }
    // With it, a repair finds all.
    let disk = w.disk.kill_clone();
    let options: Options = options_on(Arc::new(disk.clone()), true);
    let repaired = kingtide::repair("db", "repaired", &options).unwrap();
    assert!(repaired.unreadable.is_empty() && repaired.notes.is_empty(), "{repaired:?}");
    assert_eq!(contents(Db::open("repaired", options).unwrap().default_family(), None), contents(w.family(), None));
}

/// How files become part of a database.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Ingest,
    Clone,
    Import,
}

const ACTS: [Act; 3] = [Act::Ingest, Act::Clone, Act::Import];

impl Act {
    fn run(self, db: &Db) -> kingtide::Result<()> {
        match self {
            Act::Ingest => db.default_family().ingest(&["files/a", "files/b"], &IngestOptions::new()).map(drop),
            Act::Clone => db.clone_family("default", "made").map(drop),
            Act::Import => db.import_family("made", "exported").map(drop),
        }
    }
}

type All = BTreeMap<String, Contents>;

fn all(db: &Db) -> All {
    db.families().into_iter().map(|name| (name.clone(), contents(&db.family(&name).unwrap(), None))).collect()
}

/// Puts are made at every operation on a file that the act does, but those under the commit lock, and after every sync of the log,
/// so that one comes between the first of these and the record; and the power is cut behind each write. What is found is always the state behind one of the commits, and once the act has returned, one behind it. A put of a
/// family beside the others is made too.
#[test]
fn power_cuts_show_a_prefix_of_the_commits_with_the_files_among_them() {
    for act in ACTS {
        let (mut found_at, mut cuts_in_all) = (BTreeMap::<usize, u32>::new(), 0);
        let mut at_of_act = 0;
        for (round, flushed) in [false, true].into_iter().enumerate() {
            let w = World::new();
            let beside = w.db.create_family("beside", w.family().options()).unwrap();
            w.db.put(key(150), b"overlapped").unwrap();
            w.family().export("exported").unwrap();
            if flushed {
                w.db.flush().unwrap();
            }
            w.db.sync().unwrap();
            let start = all(&w.db);
            let puts = Arc::new(Mutex::new(Vec::new()));
            let (db, keep, other) = (w.db.clone(), puts.clone(), beside.clone());
            let put = Arc::new(move || {
                let mut puts = keep.lock().unwrap();
                let n = puts.len() as u64;
                let seq = match n % 3 {
                    0 => put_beside_in(&db, &other, key(500 + n), b"beside"),
                    _ => put_beside(&db, key(500 + n), b"beside"),
                };
                puts.push((seq, n.is_multiple_of(3), key(500 + n)));
            });
            let of_a_put = || std::thread::current().name() == Some(BESIDE);
            let before = put.clone();
            w.faulty.before_each(Some(Arc::new(move |o, path: &Path| {
                if o != Op::Read && !may_be_under_the_commit_lock(o, path) && !of_a_put() {
                    before();
                }
            })));
            w.faulty.after_syncs(Some(Arc::new(move |path: &Path| {
                if path.to_string_lossy().contains(".wal") && !of_a_put() {
                    put();
                }
            })));
            let cuts = Arc::new(Mutex::new(Vec::new()));
            let keep = cuts.clone();
            w.disk.on_write(Some(Box::new(move |b: &Boundary<'_>| keep.lock().unwrap().push(b.kill_clone()))));
            act.run(&w.db).unwrap();
            w.before_none();
            w.faulty.after_syncs(None);
            let acknowledged = cuts.lock().unwrap().len();
            let last = w.db.put(key(900), b"after").unwrap();
            w.disk.on_write(None);
            let mut puts = std::mem::take(&mut *puts.lock().unwrap());
            puts.push((last, false, key(900)));
            assert!(puts.is_sorted(), "{puts:?}");
            // The numbers that no put took are those of the files.
            let gap = puts.windows(2).find(|w| w[1].0 > w[0].0 + 1).map(|w| w[0].0).expect("the files took numbers");
            let made = all(&w.db);
            let mut states = vec![start];
            for (seq, in_other, k) in &puts {
                let mut next = states.last().unwrap().clone();
                let name = if *in_other { "beside" } else { "default" };
                let value: &[u8] = if *seq == last { b"after" } else { b"beside" };
                next.get_mut(name).unwrap().insert(k.clone(), value.to_vec());
                states.push(next.clone());
                if *seq == gap {
                    match act {
                        Act::Ingest => {
                            let family = next.get_mut("default").unwrap();
                            family.extend((100..200).map(|i| (key(i), b"ingested".to_vec())));
                            family.extend((120..130).map(|i| (key(i), b"newer".to_vec())));
                        }
                        _ => _ = next.insert("made".to_owned(), made["made"].clone()),
                    }
                    at_of_act = states.len();
                    states.push(next);
                }
            }
            assert_eq!(states.last(), Some(&made));
            let cuts = std::mem::take(&mut *cuts.lock().unwrap());
            for (i, model) in Survival::ALL.into_iter().enumerate() {
                let step = if full() || matches!(model, Survival::AllLost) { 1 } else { 3 };
                for (j, cut) in cuts.iter().enumerate().skip(i % step).step_by(step) {
                    let disk = cut.crash_clone(model, &mut Rng::new((round << 16 | i << 8 | j) as u64));
                    let what = format!("{act:?}, flushed {flushed}, cut {j} of {}, {model:?}", cuts.len());
                    let db = open(&disk);
                    let found = all(&db);
                    let at = states.iter().rposition(|s| *s == found);
                    let at = at.unwrap_or_else(|| panic!("{what}: no state between two commits: {found:?}"));
                    assert!(j < acknowledged || at >= at_of_act, "{what}: acknowledged");
                    *found_at.entry(at).or_default() += 1;
                    cuts_in_all += 1;
                    if at % 4 == 0 {
                        db.put(b"after", b"it goes on").unwrap();
                        db.compact().unwrap();
                        assert!(db.verify().unwrap().problems.is_empty(), "{what}");
                    }
                }
            }
        }
        println!("{act:?}, number {at_of_act} of the commits: {cuts_in_all} cuts, {found_at:?}");
        assert!(found_at.keys().filter(|at| **at < at_of_act).count() > 2 && found_at.contains_key(&at_of_act));
        assert!(found_at.keys().any(|at| *at > at_of_act));
    }
}
