//! The write-ahead log and recovery.

use super::{
    Contents, DIR, bytes_of, contents, crashes, cut, files, find, key, open, options, patch, put_durably, value,
};
use kingtide::vfs::{Fault, FaultFs, MemFs, Op, Rule, Survival};
use kingtide::{CustomOrder, Db, ErrorKind, KeyOrder, WriteBatch};
use kingtide_base::rng::Rng;
use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Bytes, but a thread that compares the key `stop` while it is armed waits to be let go: a thread can be held in the midst
/// of inserting an entry.
struct Holding {
    armed: AtomicBool,
    arrived: Mutex<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
}

impl CustomOrder for Holding {
    fn name(&self) -> &str {
        "holding"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Order {
        if (a == b"stop" || b == b"stop") && self.armed.swap(false, Ordering::SeqCst) {
            self.arrived.lock().unwrap().send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
        }
        a.cmp(b)
    }
}

/// A database in which a put of the key `stop` is held in the midst of its insertion.
struct Held {
    fs: MemFs,
    order: Arc<Holding>,
    arrived: Receiver<()>,
    go_on: Sender<()>,
}

impl Held {
    fn new() -> Held {
        let (arrived_in, arrived) = channel();
        let (go_on, go_on_out) = channel();
        let order =
            Holding { armed: AtomicBool::new(false), arrived: Mutex::new(arrived_in), go_on: Mutex::new(go_on_out) };
        Held { fs: MemFs::new(), order: Arc::new(order), arrived, go_on }
    }

    fn open(&self) -> Db {
        let mut o = options(&self.fs);
        o.order = KeyOrder::Custom(self.order.clone());
        Db::open(DIR, o).unwrap()
    }

    /// Puts `stop`, and calls `meanwhile` while the insertion is held; it must call the argument to let it go.
    fn put(&self, db: &Db, meanwhile: impl FnOnce(&dyn Fn())) {
        std::thread::scope(|s| {
            self.order.armed.store(true, Ordering::SeqCst);
            let writer = s.spawn(|| db.put(b"stop", b"acknowledged").unwrap());
            self.arrived.recv().unwrap();
            meanwhile(&|| self.go_on.send(()).unwrap());
            writer.join().unwrap();
        });
    }
}

/// TidesDB 10.2.1 lost keys that concurrent writers had been told were stored, in every run: an entry went into a memtable
/// that another thread had just sealed and flushed, so its table lacked it, and the log that had it was given up. Here
/// insertion and rotation happen under one lock.
#[test]
fn an_entry_that_races_a_memtable_rotation_is_not_lost() {
    let held = Held::new();
    let db = held.open();
    db.put(b"a", b"1").unwrap();
    held.put(&db, |let_go| {
        std::thread::scope(|s| {
            // Freezes and flushes the memtable that the held entry is on its way into, if it can.
            let flusher = s.spawn(|| db.flush().unwrap());
            std::thread::sleep(Duration::from_millis(100));
            let_go();
            flusher.join().unwrap();
        });
    });
    db.put(b"z", b"1").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    let db = held.open();
    assert_eq!(db.get(b"stop").unwrap().as_deref(), Some(&b"acknowledged"[..]), "after a close and a reopen");
    assert_eq!(contents(db.default_family()).len(), 3);
}

/// A sequence number that is published before its entry is inserted gives a snapshot that changes under its reader.
#[test]
fn nothing_is_visible_before_it_is_inserted() {
    let held = Held::new();
    let db = held.open();
    db.put(b"a", b"1").unwrap();
    let mut seen = None;
    held.put(&db, |let_go| {
        seen = Some(db.snapshot());
        let_go();
    });
    let snapshot = seen.unwrap();
    assert_eq!(snapshot.of(db.default_family()).get(b"stop").unwrap().as_deref(), None, "a snapshot changed");
    assert!(db.get(b"stop").unwrap().is_some());
}

/// Engines that cut the log at the first thing they do not understand, or begin a new one on open, lost what a killed process
/// had logged. Here opening changes no byte of what was logged, however often the process is killed again.
#[test]
fn the_log_is_not_truncated_on_reopen_after_a_kill() {
    let mut fs = MemFs::new();
    let mut all = Contents::new();
    for round in 0..8 {
        let db = open(&fs);
        assert_eq!(contents(db.default_family()), all, "after {round} kills");
        for i in 0..round % 3 * 20 {
            let i = round * 100 + i;
            db.put(key(i), value(i)).unwrap();
            all.insert(key(i), value(i));
        }
        fs = fs.kill_clone();
    }
    // What recovery has shown is durable, even without a later write.
    let db = open(&fs);
    assert_eq!(contents(db.default_family()), all);
    assert_eq!(contents(open(&cut(&fs)).default_family()), all, "shown, then lost by a power cut");
}

/// The log of a killed or cut database with ten durable commits, and where the fifth is in it.
fn ten_commits(power_cut: bool) -> (MemFs, usize) {
    let fs = MemFs::new();
    let db = open(&fs);
    for i in 0..10 {
        put_durably(db.default_family(), &db, &key(i), &value(i)).unwrap();
    }
    let fs = if power_cut { cut(&fs) } else { fs.kill_clone() };
    let at = find(&fs, &files(&fs, ".wal")[0], &value(4)).unwrap();
    (fs, at)
}

fn must_be_refused(fs: &MemFs, what: &str) {
    let e = Db::open(DIR, options(fs)).map(|db| contents(db.default_family()).len()).expect_err(what);
    assert_eq!(e.kind(), ErrorKind::Corruption, "{what}: {e:?}");
    assert!(e.offset().is_some() && e.path().is_some_and(|p| p.extension().is_some_and(|e| e == "wal")), "{e:?}");
}

/// A hole of zeros in the midst of the log was taken for its end, and acknowledged records behind it were dropped in silence.
/// Here records behind it say that they were synced, or that no power cut can have made the hole: it is an error.
#[test]
fn a_zero_filled_hole_does_not_hide_later_acknowledged_records() {
    for power_cut in [false, true] {
        let (fs, at) = ten_commits(power_cut);
        patch(&fs, &files(&fs, ".wal")[0], at - 48, &[0; 64]);
        must_be_refused(&fs, "a hole in the log");
    }
}

/// Damage in the midst of a log was taken for the torn tail of the last write, which may be dropped. The two are told apart
/// by what lies behind, and by what later records say was synced.
#[test]
fn damage_in_the_middle_of_a_log_is_not_taken_for_a_torn_tail() {
    for power_cut in [false, true] {
        let (fs, at) = ten_commits(power_cut);
        let path = &files(&fs, ".wal")[0];
        let whole = bytes_of(&fs, path);
        // In the value, in the key, and in each field of the record's header.
        let header = (find(&fs, path, &key(4)).unwrap() - 32) & !7; // records are aligned
        for place in [at, at + 10, at - 1].into_iter().chain((header..header + 32).step_by(4)) {
            patch(&fs, path, place, &[whole[place] ^ 0x10]);
            must_be_refused(&fs, &format!("damage at {place}, power cut: {power_cut}"));
            patch(&fs, path, place, &whole[place..place + 1]);
        }
        assert_eq!(contents(open(&fs).default_family()).len(), 10);
    }
}

/// A log that was closed whole, and a segment begun after it whose header is damaged: the open took the log for complete.
#[test]
fn a_damaged_header_behind_a_closed_log_is_not_taken_for_a_spare() {
    for power_cut in [false, true] {
        let fs = MemFs::new();
        let db = open(&fs);
        db.put(key(100), value(100)).unwrap();
        db.close().unwrap();
        let before = files(&fs, ".wal");
        let db = open(&fs);
        for i in 0..10 {
            put_durably(db.default_family(), &db, &key(i), &value(i)).unwrap();
        }
        let disk = if power_cut { cut(&fs) } else { fs.kill_clone() };
        assert_eq!(contents(open(&disk.kill_clone()).default_family()).len(), 11);
        let begun = files(&disk, ".wal").into_iter().find(|f| !before.contains(f)).expect("a segment was begun");
        patch(&disk, &begun, 0, &[0xff; 8]);
        must_be_refused(&disk, &format!("a damaged header behind a closed log, power cut: {power_cut}"));
    }
}

/// A write that stored half of its bytes left a hole, and what was appended behind it was lost at the next open. Here the
/// next record takes the place of the one that failed.
#[test]
fn a_short_write_does_not_hide_later_acknowledged_records() {
    for fault in [Fault::ShortWrite, Fault::Eio, Fault::Enospc] {
        for nth in 1..=4 {
            let disk = MemFs::new();
            let fs = FaultFs::new(Arc::new(disk.clone()), 1);
            let db = open(&fs);
            let mut stored = Contents::new();
            db.put(key(0), value(0)).unwrap();
            stored.insert(key(0), value(0));
            fs.add(Rule::new(Op::Write, fault).path(".wal").nth(nth));
            let mut failed = 0;
            for i in 1..20 {
                match db.put(key(i), value(i)).map(drop) {
                    Ok(()) => drop(stored.insert(key(i), value(i))),
                    Err(_) => failed += 1,
                }
            }
            assert_eq!(failed, 1, "{fault:?} at write {nth}");
            assert_eq!(contents(db.default_family()), stored);
            db.sync().unwrap();
            assert_eq!(contents(open(&disk.kill_clone()).default_family()), stored, "{fault:?} at write {nth}, killed");
            assert_eq!(contents(open(&cut(&disk)).default_family()), stored, "{fault:?} at write {nth}, cut");
        }
    }
}

/// A batch whose write failed in the middle left a part of itself in the log; after a later, synced commit recovery applied
/// that part. Here a batch is one record with one checksum, and a header that may have been written is blotted out.
#[test]
fn a_failed_batch_leaves_no_part_before_later_synced_ones() {
    for nth in 1..=3 {
        for sticky in [false, true] {
            let disk = MemFs::new();
            let fs = FaultFs::new(Arc::new(disk.clone()), 1);
            let db = open(&fs);
            put_durably(db.default_family(), &db, b"first", b"1").unwrap();
            let rule = Rule::new(Op::Write, Fault::ShortWrite).path(".wal").nth(nth);
            fs.add(if sticky { rule.sticky() } else { rule });
            let mut failed = Vec::new();
            for round in 0..2 {
                let mut batch = WriteBatch::new();
                let keys: Vec<_> = (0..20).map(|i| key(round * 100 + i)).collect();
                keys.iter().for_each(|k| batch.put(db.default_family(), k, &value(7)).unwrap());
                if db.write(batch).is_err() {
                    failed.extend(keys);
                }
            }
            fs.clear();
            assert!(!failed.is_empty());
            put_durably(db.default_family(), &db, b"last", b"2").unwrap();
            for disk in [disk.kill_clone(), cut(&disk), disk.crash_clone(Survival::AllKept, &mut Rng::new(nth))] {
                let found = contents(open(&disk).default_family());
                assert!(found.contains_key(&b"first"[..]) && found.contains_key(&b"last"[..]));
                let part = failed.iter().filter(|k| found.contains_key(*k)).count();
                assert_eq!(part, 0, "part of a failed batch, fault at write {nth}, sticky {sticky}");
            }
        }
    }
}

/// After a write or a sync had failed the engine synced again, the system said yes (it had marked the pages clean), and a
/// commit that was nowhere was acknowledged. Here a failed sync stops the log for good.
#[test]
fn a_sync_that_succeeds_after_one_that_failed_acknowledges_nothing() {
    let fs = MemFs::new();
    let db = open(&fs);
    put_durably(db.default_family(), &db, b"before", b"1").unwrap();
    fs.fail_syncs(1);
    let e = put_durably(db.default_family(), &db, b"lost", b"2").unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Io | ErrorKind::Poisoned), "{e:?}");
    for attempt in 0..3 {
        let e = put_durably(db.default_family(), &db, b"after", b"3").expect_err("acknowledged after a failed sync");
        assert_eq!(e.kind(), ErrorKind::Poisoned, "attempt {attempt}: {e:?}");
        assert_eq!(db.sync().unwrap_err().kind(), ErrorKind::Poisoned);
    }
    assert!(db.get(b"before").unwrap().is_some(), "reads go on");
    let found = contents(open(&cut(&fs)).default_family());
    assert!(found.contains_key(&b"before"[..]) && !found.contains_key(&b"after"[..]));
}

/// The write of a table failed unnoticed, and the sync after it succeeded: the table was installed with a hole and the
/// log given up.
#[test]
fn a_table_whose_write_failed_is_not_installed_because_its_sync_succeeds() {
    for what in [".klog", ".vlog"] {
        for nth in 1..=2 {
            let disk = MemFs::new();
            let fs = FaultFs::new(Arc::new(disk.clone()), 1);
            let db = open(&fs);
            let mut stored = Contents::new();
            for i in 0..60 {
                let v = if i % 2 == 0 { super::large(i) } else { value(i) };
                put_durably(db.default_family(), &db, &key(i), &v).unwrap();
                stored.insert(key(i), v);
            }
            fs.add(Rule::new(Op::Write, Fault::ShortWrite).path(what).nth(nth));
            let before = fs.stats().injected();
            let _ = db.flush();
            assert!(fs.stats().injected() > before || nth > 1, "no write of a {what} met the fault");
            for disk in [disk.kill_clone(), cut(&disk)] {
                assert_eq!(contents(open(&disk).default_family()), stored, "{what}, write {nth}");
            }
            db.flush().unwrap();
            assert_eq!(contents(db.default_family()), stored);
            assert_eq!(contents(open(&cut(&disk)).default_family()), stored, "{what}, write {nth}, flushed again");
        }
    }
}

/// A second crash, during the recovery from the first, undid commits that had been durable: recovery had cut the log or
/// recorded a flush before its table was safe. Here the power is cut at each write of a recovery that flushes and starts logs.
#[test]
fn a_crash_during_recovery_undoes_no_durable_commit() {
    let fs = MemFs::new();
    let db = open(&fs);
    let other = db.create_family("other", super::small()).unwrap();
    let mut stored = Contents::new();
    for i in 0..400 {
        let family = if i % 3 == 0 { &other } else { db.default_family() };
        family.put(key(i), super::large(i)).unwrap();
        stored.insert(key(i), super::large(i));
    }
    db.sync().unwrap();
    let before = cut(&fs);
    let recover = |fs: &MemFs| {
        let mut o = options(fs);
        o.db.memtable_budget = 128 << 10; // less than the log holds: recovery has to flush
        let db = Db::open(DIR, o).unwrap();
        let mut found = contents(db.default_family());
        found.extend(contents(&db.family("other").unwrap()));
        assert_eq!(found, stored);
    };
    let found = crashes(&before, || (), || recover(&before));
    println!("{} crashes during recovery", found.len());
    assert!(found.len() > 50, "{}", found.len());
    found.iter().for_each(|(fs, ())| recover(fs));
}

/// The log was given up when a flush began, or when one family of several had flushed. Here a busy family is flushed over and
/// over beside a quiet one whose few operations are nowhere but in the log; a kill at any time finds all of both.
#[test]
fn the_log_is_kept_until_all_that_it_holds_is_in_tables() {
    let fs = MemFs::new();
    let db = open(&fs);
    let quiet = db.create_family("quiet", super::small()).unwrap();
    let (mut busy_has, mut quiet_has) = (Contents::new(), Contents::new());
    for i in 0..700 {
        let v = incompressible(i, 700);
        db.put(key(i % 150), &v).unwrap();
        busy_has.insert(key(i % 150), v);
        if i % 60 == 1 {
            quiet.put(key(i), value(i)).unwrap();
            quiet_has.insert(key(i), value(i));
        }
        if i % 190 == 189 {
            db.default_family().flush().unwrap();
        }
        if i % 25 == 24 {
            assert_eq!(contents(db.default_family()), busy_has, "after {i} puts");
            let killed = open(&fs.kill_clone());
            assert_eq!(contents(killed.default_family()), busy_has, "killed after {i} puts");
            assert_eq!(contents(&killed.family("quiet").unwrap()), quiet_has, "killed after {i} puts");
        }
    }
    assert!(db.stats().get("memtable_rotations").unwrap() > 3);
}

/// What a recycled log segment had held before was taken for records of its new life. Here the checksum of a record depends on
/// its segment; records of one size put old ones exactly where the next new one would be.
#[test]
fn a_recycled_segment_does_not_bring_old_records_back() {
    let fs = MemFs::new();
    let db = open(&fs);
    let mut stored = Contents::new();
    for i in 0..500 {
        let v = incompressible(i, 900);
        db.put(key(i % 40), &v).unwrap();
        stored.insert(key(i % 40), v);
        if i % 64 == 63 {
            db.default_family().flush().unwrap(); // unlike `Db::flush` it keeps the log's free segments
        }
        if i % 7 == 6 {
            assert_eq!(contents(open(&fs.kill_clone()).default_family()), stored, "killed after {i} puts");
        }
    }
    assert!(db.stats().get("wal_segments_recycled").unwrap() > 2, "no segment was used twice");
}

fn incompressible(seed: u64, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    Rng::new(seed).fill(&mut v);
    v
}
