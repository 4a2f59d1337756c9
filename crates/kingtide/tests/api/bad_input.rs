//! Misuse, full disks, and limits: each mistake is an error of the right kind that says what was wrong, and what was there
//! before stays readable.

use kingtide::vfs::MemFs;
use kingtide::{
    ColumnFamily, CustomOrder, Db, Error, ErrorKind, FamilyOptions, KeyOrder, Options, ReadOptions, Result, Severity,
    WriteBatch, WriteOptions,
};
use kingtide_base::hash::mix64;
use kingtide_base::rng::Rng;
use kingtide_testkit::Scratch;
use kingtide_testkit::child::{CHILD, child, child_dir};
use kingtide_testkit::test_name;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn on(fs: &MemFs) -> Options {
    Options::new().fs(Arc::new(fs.clone()))
}

fn memory_db() -> (MemFs, Db) {
    let fs = MemFs::new();
    let db = Db::open("db", on(&fs)).unwrap();
    (fs, db)
}

#[track_caller]
fn refused<T: Debug>(result: Result<T>, kind: ErrorKind, says: &str) {
    let e = result.expect_err("this must be refused");
    assert_eq!(e.kind(), kind, "{e}");
    assert!(e.to_string().contains(says), "'{e}' does not say '{says}'");
}

#[test]
fn options_that_cannot_be_right() {
    use ErrorKind::InvalidArgument as Invalid;
    let mut o = Options::default();
    refused(o.set("memtable_sice", "1M"), Invalid, "unknown option 'memtable_sice'");
    refused(o.set("memtable_size", "1"), Invalid, "out of range");
    refused(o.set("memtable_size", "lots"), Invalid, "memtable_size");
    let mut o = on(&MemFs::new());
    o.family.block_size = 7;
    refused(Db::open("db", o), Invalid, "block_size");
    let mut o = on(&MemFs::new());
    o.db.max_open_files = 1;
    refused(Db::open("db", o), Invalid, "max_open_files");

    let (_, db) = memory_db();
    refused(db.set_option("nonsense", "1"), Invalid, "unknown option");
    refused(db.set_option("wal_segment_size", "1M"), Invalid, "cannot be changed while the database is open");
    refused(db.set_option("max_open_files", "3"), Invalid, "out of range");
    refused(db.default_family().set_option("block_size", "8K"), Invalid, "cannot be changed");
    refused(db.default_family().set_option("l0_trigger", "0"), Invalid, "out of range");
    let bad = FamilyOptions::new().filter_fp(2.0);
    refused(db.create_family("f", bad), Invalid, "filter_fp");
    assert_eq!(db.families(), ["default"]);
}

#[test]
fn keys_and_ranges_that_cannot_be_right() {
    use ErrorKind::InvalidArgument as Invalid;
    let (_, db) = memory_db();
    db.put(b"k", b"v").unwrap();
    refused(db.put(b"", b"v"), Invalid, "empty key");
    refused(db.delete(b""), Invalid, "empty key");
    refused(db.single_delete(b""), Invalid, "empty key");
    refused(db.put_ttl(b"", b"v", Duration::from_secs(1)), Invalid, "empty key");
    refused(db.delete_range(b"b"..b"a"), Invalid, "sorts after");
    refused(db.delete_range("".."a"), Invalid, "empty");
    refused(db.delete_range("a"..""), Invalid, "empty");
    db.delete_range(b"k"..b"k").unwrap(); // nothing is in it
    assert_eq!(db.get(b"").unwrap().as_deref(), None);
    assert_eq!(db.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    db.put_ttl(b"t", b"v", Duration::MAX).unwrap();
    assert!(db.get(b"t").unwrap().is_some(), "for ever is not the past");
    let mut batch = WriteBatch::new();
    assert!(batch.put(db.default_family(), b"", b"v").is_err());
    assert!(batch.is_empty(), "a refused operation leaves nothing in the batch");
    assert_eq!(db.write(batch).unwrap(), 0);
    // Bounds the wrong way round show nothing.
    let mut it = db.cursor(&b"z"[..]..&b"a"[..]).unwrap();
    it.seek_to_first();
    assert!(!it.valid());
    it.seek_to_last();
    assert!(!it.valid());
    it.next();
    it.prev();
    assert!(!it.valid());
    it.status().unwrap();
}

#[test]
fn families_that_cannot_be() {
    use ErrorKind::{Closed, Exists, InvalidArgument as Invalid, NotFound};
    let (fs, db) = memory_db();
    let options = FamilyOptions::default;
    refused(db.create_family("", options()), Invalid, "empty");
    refused(db.create_family(&"x".repeat(256), options()), Invalid, "256");
    refused(db.create_family("a\0b", options()), Invalid, "NUL");
    db.create_family(&"x".repeat(255), options()).unwrap();
    refused(db.create_family("default", options()), Exists, "default");
    refused(db.family("nobody"), NotFound, "nobody");
    refused(db.drop_family("nobody"), NotFound, "nobody");
    refused(db.drop_family("default"), Invalid, "default");
    refused(db.rename_family("default", "other"), Invalid, "default");
    refused(db.rename_family("nobody", "other"), NotFound, "nobody");
    let a = db.create_family("a", options()).unwrap();
    db.create_family("b", options()).unwrap();
    refused(db.rename_family("a", "b"), Exists, "'b'");
    refused(db.rename_family("a", ""), Invalid, "empty");
    a.put(b"k", b"v").unwrap();
    let mut it = a.cursor(..).unwrap();
    it.seek_to_first();
    let mut batch = WriteBatch::new();
    batch.put(&a, b"later", b"v").unwrap();
    batch.put(db.default_family(), b"later", b"v").unwrap();
    db.drop_family("a").unwrap();
    refused(a.put(b"k", b"v"), Closed, "'a' was dropped");
    refused(a.get(b"k"), Closed, "'a' was dropped");
    refused(a.cursor(..), Closed, "dropped");
    refused(a.set_option("l0_trigger", "5"), Closed, "dropped");
    refused(a.compact_range(..), Closed, "dropped");
    refused(db.write(batch), Closed, "'a' was dropped");
    assert_eq!(db.get(b"later").unwrap().as_deref(), None, "no part of a refused batch is there");
    assert_eq!((it.valid(), it.key()), (true, &b"k"[..]), "an iterator that was open finishes");
    // The same name again is another family, now and after a crash; nothing of the old one comes back.
    let again = db.create_family("a", options()).unwrap();
    assert_eq!(again.get(b"k").unwrap().as_deref(), None);
    let found = Db::open("db", on(&fs.kill_clone())).unwrap();
    assert_eq!(found.family("a").unwrap().get(b"k").unwrap().as_deref(), None);
}

/// A family id that a rewritten manifest has forgotten must not bring a dropped family's log entries back.
#[test]
fn a_dropped_family_does_not_come_back_under_its_id() {
    let (mut fs, mut db) = memory_db();
    for round in 0..40u32 {
        let f = db.create_family("f", FamilyOptions::default()).unwrap();
        assert_eq!(f.get(b"k").unwrap().as_deref(), None, "round {round}");
        f.put(b"k", round.to_le_bytes()).unwrap();
        for i in 0..300 {
            // Long names fill the manifest until it is rewritten.
            if round % 8 == 7 {
                db.rename_family("f", &format!("{:0>250}", i)).unwrap();
                db.rename_family(&format!("{:0>250}", i), "f").unwrap();
            }
        }
        db.drop_family("f").unwrap();
        if round % 2 == 1 {
            fs = fs.kill_clone();
            db = Db::open("db", on(&fs)).unwrap();
        }
    }
}

#[test]
fn things_of_another_database_are_refused() {
    use ErrorKind::InvalidArgument as Invalid;
    let ((_, a), (_, b)) = (memory_db(), memory_db());
    let mut batch = WriteBatch::new();
    batch.put(a.default_family(), b"k", b"v").unwrap();
    batch.put(b.default_family(), b"k", b"v").unwrap();
    refused(a.write_with(&mut batch, &WriteOptions::default()), Invalid, "another database");
    refused(b.write_with(&mut batch, &WriteOptions::default()), Invalid, "another database");
    assert_eq!(a.get(b"k").unwrap().as_deref(), None);
    assert_eq!(b.get(b"k").unwrap().as_deref(), None);
    let snapshot = b.snapshot();
    refused(snapshot.of(a.default_family()).get(b"k"), Invalid, "another database");
    let read = ReadOptions::new().snapshot(&snapshot);
    refused(a.default_family().cursor_with(read), Invalid, "another database");
    let other = a.create_family("other", FamilyOptions::default()).unwrap();
    let mut it = other.cursor(..).unwrap();
    refused(a.default_family().refresh(&mut it), Invalid, "another column family");
}

#[test]
fn use_after_close_and_what_outlives_the_database() {
    let (_, db) = memory_db();
    for i in 0..100u32 {
        db.put(i.to_be_bytes(), vec![1; 2000]).unwrap();
        if i == 50 {
            db.flush().unwrap();
        }
    }
    let family = db.default_family().clone();
    let (snapshot, clone) = (db.snapshot(), db.clone());
    let mut it = db.cursor(..).unwrap();
    let pinned = db.get(3u32.to_be_bytes()).unwrap().unwrap();
    db.close().unwrap();
    db.close().unwrap(); // again is no mistake
    use ErrorKind::Closed;
    for db in [&db, &clone] {
        refused(db.put(b"k", b"v"), Closed, "closed");
        refused(db.get(b"k"), Closed, "closed");
        refused(db.cursor(..), Closed, "closed");
        refused(db.create_family("f", FamilyOptions::default()), Closed, "closed");
        refused(db.drop_family("f"), Closed, "closed");
        refused(db.rename_family("f", "g"), Closed, "closed");
        refused(db.family("default"), Closed, "closed");
        refused(db.write(WriteBatch::new()), Closed, "closed");
        refused(db.flush(), Closed, "closed");
        refused(db.compact(), Closed, "closed");
        refused(db.sync(), Closed, "closed");
        refused(db.wait_for_background(), Closed, "closed");
        refused(db.set_option("max_open_files", "100"), Closed, "closed");
        assert!(db.multi_get(&[b"k"])[0].as_ref().is_err_and(|e| e.kind() == Closed));
    }
    refused(family.put(b"k", b"v"), Closed, "closed");
    drop((db, clone, family));
    it.seek_to_first();
    let mut n = 0;
    while it.valid() {
        assert_eq!(it.value().unwrap().len(), 2000);
        n += 1;
        it.next();
    }
    it.status().unwrap();
    assert_eq!((n, pinned.len()), (100, 2000));
    drop(snapshot);
}

#[test]
fn directories_that_cannot_be_opened() {
    use ErrorKind::{Exists, Incompatible, Locked, NotFound};
    let dir = Scratch::new("open");
    let file = dir.0.join("file");
    std::fs::write(&file, b"not a database").unwrap();
    let e = Db::open(&file, Options::default()).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Io | Exists) && e.path().is_some(), "{e:?}");
    assert_eq!(std::fs::read(&file).unwrap(), b"not a database");
    refused(Db::open(file.join("below"), Options::default()).map_err(named), ErrorKind::Io, "file");

    let path = dir.0.join("db");
    let with = |create: bool, error_if_exists: bool| {
        let mut o = Options::default();
        (o.db.create_if_missing, o.db.error_if_exists) = (create, error_if_exists);
        Db::open(&path, o)
    };
    refused(with(false, false), NotFound, "create_if_missing");
    assert!(!path.exists(), "a refused open leaves nothing");
    let db = with(true, true).unwrap();
    db.put(b"k", b"v").unwrap();
    refused(Db::open(&path, Options::default()), Locked, "this process");
    let said = child(&test_name!("open_locked"), &path, "");
    assert!(said.contains("LOCKED: ") && said.contains("another process"), "{said}");
    db.close().unwrap();
    refused(with(true, true), Exists, "error_if_exists");
    let other = Options::new().order(KeyOrder::U64);
    refused(Db::open(&path, other), Incompatible, "u64");
    assert_eq!(Db::open(&path, Options::default()).unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

/// Whatever kind the system gives for a path below a file.
fn named(e: Error) -> Error {
    assert!(e.path().is_some(), "{e:?}");
    Error::new(ErrorKind::Io, e.to_string())
}

struct Backwards;

impl CustomOrder for Backwards {
    fn name(&self) -> &str {
        "test.backwards"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        b.cmp(a)
    }
}

#[test]
fn a_key_order_must_be_given_again() {
    let fs = MemFs::new();
    {
        let db = Db::open("db", on(&fs)).unwrap();
        let order = KeyOrder::Custom(Arc::new(Backwards));
        let f = db.create_family_ordered("f", FamilyOptions::default(), order).unwrap();
        for i in 0..50u8 {
            f.put([i + 1], [i]).unwrap();
        }
    }
    refused(Db::open("db", on(&fs)), ErrorKind::Incompatible, "'test.backwards'");
    // What cannot be checked does not pass for whole, nor for damaged.
    let without = kingtide::verify("db", &on(&fs)).unwrap();
    let told: Vec<_> = without.problems.iter().filter(|p| p.severity > Severity::Info).collect();
    assert!(matches!(&told[..], [w] if w.message.contains("'test.backwards'")), "{told:?}");
    assert!(!without.is_clean() && !without.is_damaged());
    let with = kingtide::verify("db", &on(&fs).custom_order(Arc::new(Backwards))).unwrap();
    assert!(with.is_clean(), "{:?}", with.problems);
    let db = Db::open("db", on(&fs).custom_order(Arc::new(Backwards))).unwrap();
    let mut it = db.family("f").unwrap().cursor(..).unwrap();
    it.seek_to_first();
    assert_eq!(it.key(), [50]);
}

struct Forwards;

impl CustomOrder for Forwards {
    fn name(&self) -> &str {
        Backwards.name()
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.cmp(b)
    }
}

#[test]
fn another_order_of_the_same_name_is_noticed_where_tables_contradict_it() {
    let fs = MemFs::new();
    let db = Db::open("db", on(&fs).order(KeyOrder::Custom(Arc::new(Backwards)))).unwrap();
    (1..50u8).for_each(|i| _ = db.put([i], [i]).unwrap());
    db.close().unwrap();
    let changed = || on(&fs).order(KeyOrder::Custom(Arc::new(Forwards)));
    refused(Db::open("db", changed()), ErrorKind::Corruption, "the key order may not be the one");
    refused(Db::open_read_only("db", changed()), ErrorKind::Corruption, "the key order may not be the one");
    assert!(kingtide::verify("db", &changed()).unwrap().problems.iter().any(|p| p.message.contains("key order")));
    let db = Db::open("db", on(&fs).order(KeyOrder::Custom(Arc::new(Backwards)))).unwrap();
    assert_eq!(db.iter().count(), 49);
}

struct Named(&'static str);

impl CustomOrder for Named {
    fn name(&self) -> &str {
        self.0
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        b.cmp(a)
    }
}

/// The next open would take the built-in order in its place, and miss keys.
#[test]
fn a_custom_order_has_a_name_of_its_own() {
    let fs = MemFs::new();
    for (name, says) in [("bytewise", "'bytewise'"), ("case-insensitive", "built-in"), ("", "empty")] {
        let order: Arc<dyn CustomOrder> = Arc::new(Named(name));
        let custom = KeyOrder::Custom(order.clone());
        let new = || Options::new().fs(MemFs::shared());
        refused(Db::open("new", new().order(custom.clone())), ErrorKind::InvalidArgument, says);
        refused(Db::open("new", new().custom_order(order)), ErrorKind::InvalidArgument, says);
        let db = Db::open("db", on(&fs)).unwrap();
        let made = db.create_family_ordered("f", FamilyOptions::default(), custom);
        refused(made, ErrorKind::InvalidArgument, says);
    }
}

#[test]
fn the_order_of_a_family_that_was_dropped_need_not_be_known() {
    let fs = MemFs::new();
    let db = Db::open("db", on(&fs)).unwrap();
    let order = KeyOrder::Custom(Arc::new(Backwards));
    let f = db.create_family_ordered("f", FamilyOptions::default(), order).unwrap();
    for i in 0..50u8 {
        f.put([i + 1], [i]).unwrap();
        if i % 20 == 0 {
            f.flush().unwrap();
        }
    }
    db.put("k", "v").unwrap();
    db.drop_family("f").unwrap();
    let problems = db.verify().unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
    db.close().unwrap();
    let problems = kingtide::verify("db", &on(&fs)).unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
    let db = Db::open("db", on(&fs)).unwrap();
    assert_eq!((db.families().len(), db.get("k").unwrap().as_deref()), (1, Some(&b"v"[..])));
}

// Full disks.

fn value(i: u64) -> Vec<u8> {
    let mut value = vec![0; 400];
    Rng::new(i).fill(&mut value);
    value
}

fn small(o: &mut Options) {
    o.family.memtable_size = 128 << 10;
    o.family.target_file_size = 128 << 10;
    o.db.wal_segment_size = 128 << 10;
}

/// Puts until the disk is full. Returns how many were acknowledged.
fn fill(family: &ColumnFamily, from: u64) -> u64 {
    for i in from..from + 200_000 {
        if let Err(e) = family.put(i.to_be_bytes(), value(i)) {
            assert_eq!(e.kind(), ErrorKind::NoSpace, "{e:?}");
            assert!(e.is_retryable());
            return i;
        }
    }
    panic!("the disk does not fill up");
}

fn check(family: &ColumnFamily, keys: u64) {
    for i in 0..keys {
        assert_eq!(family.get(i.to_be_bytes()).unwrap().as_deref(), Some(&value(i)[..]), "key {i} of {keys}");
    }
    assert!(family.get(keys.to_be_bytes()).unwrap().is_none(), "a put that failed is visible");
    let mut it = family.cursor(..).unwrap();
    it.seek_to_first();
    let mut n = 0;
    while it.valid() {
        n += 1;
        it.next();
    }
    it.status().unwrap();
    assert_eq!(n, keys);
}

#[test]
fn a_full_disk_refuses_writes_and_nothing_else() {
    let fs = MemFs::new();
    let mut options = on(&fs);
    small(&mut options);
    fs.set_capacity(Some(4 << 20));
    let db = Db::open("db", options.clone()).unwrap();
    let mut keys = 0u64;
    for megabytes in [4, 8, 16] {
        fs.set_capacity(Some(megabytes << 20));
        // Space came back: writes go on by themselves, once a retried flush made room in memory.
        let start = Instant::now();
        while let Err(e) = db.put(keys.to_be_bytes(), value(keys)) {
            assert_eq!(e.kind(), ErrorKind::NoSpace, "{e:?}");
            assert!(start.elapsed() < Duration::from_secs(20), "writes do not resume: {e}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let full_at = fill(db.default_family(), keys + 1);
        assert!(full_at > keys);
        keys = full_at;
        check(db.default_family(), keys);
        // A process that finds the disk full can open and read.
        let clone = fs.kill_clone();
        clone.set_capacity(Some(megabytes << 20));
        let mut there = options.clone();
        there.fs = Some(Arc::new(clone));
        check(Db::open("db", there).unwrap().default_family(), keys);
    }
    fs.set_capacity(None);
    let _ = db.close();
    check(Db::open("db", options).unwrap().default_family(), keys);
    println!("{keys} keys through three full disks");
}

// Bodies that run in a process of their own.

#[test]
#[ignore = "run by another, as a process of its own"]
fn open_locked() {
    let Some(dir) = child_dir() else { return };
    let e = Db::open(dir, Options::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Locked);
    println!("LOCKED: {e}");
}

#[test]
#[ignore = "run by another, as a process of its own"]
fn fill_a_real_disk() {
    let Some(dir) = child_dir() else { return };
    let mut options = Options::default();
    small(&mut options);
    let path = dir.join("db");
    let db = Db::open(&path, options.clone()).unwrap();
    let keys = fill(db.default_family(), 0);
    check(db.default_family(), keys);
    let _ = db.close(); // it may not be able to flush
    drop(db);
    check(Db::open(&path, options).unwrap().default_family(), keys);
    println!("FULL: {keys} keys");
}

#[test]
#[ignore = "run by another, as a process of its own"]
fn open_read_only() {
    let Some(dir) = child_dir() else { return };
    for path in [dir.join("db"), dir.join("new")] {
        let e = Db::open(&path, Options::default()).unwrap_err();
        assert!(e.path().is_some(), "{e:?}");
        println!("READ-ONLY: {e}");
    }
}

fn may_mount() -> bool {
    Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|s| s.success())
}

#[test]
fn a_real_full_disk_and_a_read_only_one() {
    if !may_mount() {
        println!("skipped: no permission to mount");
        return;
    }
    let dir = Scratch::new("tmpfs");
    let exec = "exec unshare -m sh -c 'mount -t tmpfs -o size=4m kingtide \"$0\" || exit 1; ";
    let inner = |then: &str| {
        format!(
            "{exec} {then} exec \"$1\" \"$2\" --exact --ignored --nocapture --test-threads=1' \"${CHILD}\" \"$0\" \"$1\"; #"
        )
    };
    let said = child(&test_name!("fill_a_real_disk"), &dir.0, &inner(""));
    assert!(said.contains("FULL: "), "{said}");
    let said = child(
        &test_name!("open_read_only"),
        &dir.0,
        &inner(&format!(
            "\"$1\" {} --exact --ignored; mount -o remount,ro \"$0\" || exit 1;",
            test_name!("fill_a_real_disk")
        )),
    );
    assert!(said.contains("READ-ONLY: "), "{said}");
    println!("{said}");
}

// Limits.

#[test]
#[ignore = "run by another, as a process of its own"]
fn many_tables_and_few_files() {
    let Some(dir) = child_dir() else { return };
    let mut options = Options::default();
    small(&mut options);
    options.family.target_file_size = 64 << 10;
    options.family.value_threshold = 300;
    options.db.max_open_files = 16;
    options.db.background_threads = 2;
    let keys = 40_000u64;
    let db = Db::open(&dir, options.clone()).unwrap();
    for i in 0..keys {
        db.put(mix64(i).to_be_bytes(), if i % 3 == 0 { value(i) } else { value(i)[..200].to_vec() }).unwrap();
    }
    db.flush().unwrap();
    let read = |db: &Db| {
        for i in (0..keys).step_by(7) {
            let v = db.get(mix64(i).to_be_bytes()).unwrap().expect("a key is missing");
            assert_eq!(v[..200], value(i)[..200]);
        }
        let mut it = db.cursor(..).unwrap();
        it.seek_to_first();
        let mut n = 0;
        while it.valid() {
            it.value().unwrap();
            n += 1;
            it.next();
        }
        it.status().unwrap();
        assert_eq!(n, keys);
    };
    read(&db);
    let tables: usize = db.stats().families.iter().flat_map(|f| &f.levels).map(|l| l.files).sum();
    println!("TABLES: {tables}, open {:?}", db.stats().get("open_tables"));
    db.close().unwrap();
    drop(db);
    let db = Db::open(&dir, options).unwrap();
    read(&db);
    db.compact().unwrap();
    read(&db);
}

#[cfg(unix)] // the limit is set by a shell
#[test]
fn sixty_four_file_descriptors_are_enough() {
    let dir = Scratch::new("nofile");
    println!("{}", child(&test_name!("many_tables_and_few_files"), &dir.0, "ulimit -n 64;"));
}

/// Four writers, and iterators that hold on to old memtables: the budget is kept within a tenth.
#[test]
fn memtables_stay_within_their_budget() {
    let fs = MemFs::new();
    let mut options = on(&fs);
    options.family.memtable_size = 2 << 20;
    options.db.memtable_budget = 6 << 20;
    let db = Db::open("db", options).unwrap();
    let mut most = 0;
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..4u64)
            .map(|w| {
                let db = &db;
                s.spawn(move || {
                    for i in 0..40_000u64 {
                        db.put(mix64(w << 32 | i).to_be_bytes(), value(i)).unwrap();
                    }
                })
            })
            .collect();
        while writers.iter().any(|w| !w.is_finished()) {
            most = most.max(db.stats().get("memtable_bytes").unwrap());
            std::thread::yield_now();
        }
    });
    println!("budget 6 MiB, at most {most} bytes held");
    assert!(most <= (6 << 20) * 11 / 10, "{most}");
    assert!(most > 2 << 20);
}

/// What an open iterator holds is not what writers wait for.
#[test]
fn open_iterators_do_not_turn_commits_into_flushes() {
    let fs = MemFs::new();
    let mut options = on(&fs);
    options.family.memtable_size = 256 << 10;
    let db = Db::open("db", options).unwrap();
    let mut held = Vec::new();
    let mut expected = BTreeMap::new();
    let (keys, bytes) = (20_000u64, 20_000 * 420);
    for i in 0..keys {
        if i % 200 == 0 {
            held.push((db.cursor(..).unwrap(), expected.len()));
        }
        db.put(mix64(i).to_be_bytes(), value(i)).unwrap();
        expected.insert(mix64(i), i);
    }
    let rotations = db.stats().get("memtable_rotations").unwrap();
    assert!(rotations <= 2 * bytes / (256 << 10), "{rotations} memtables for {bytes} bytes");
    for (it, n) in held.iter_mut().step_by(20) {
        it.seek_to_first();
        let mut seen = 0;
        while it.valid() {
            seen += 1;
            it.next();
        }
        assert_eq!(seen, *n, "an iterator shows what was there when it was made");
    }
    drop(held);
    db.flush().unwrap();
    assert!(db.stats().get("memtable_bytes").unwrap() < 1 << 20, "everything is given back");
}
