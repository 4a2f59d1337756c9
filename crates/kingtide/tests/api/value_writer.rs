//! Values written in pieces: the same bytes as a put of the whole, and nothing left of one that is given up.

use kingtide::vfs::{Fault, FaultFs, Fs, MemFs, Op, Rule, Survival, SystemFs};
use kingtide::{
    ColumnFamily, Compression, Db, Durability, ErrorKind, Isolation, Options, StagedValue, WriteBatch, WriteOptions,
};
use kingtide_base::rng::Rng;
use kingtide_testkit::Scratch;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Kept in memory: up to 3000 bytes. One chunk: 4096.
const LENGTHS: [usize; 9] = [0, 1, 511, 3000, 3001, 4096, 8193, 60_000, 700_001];

pub fn options(fs: &MemFs) -> Options {
    let mut o = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
    o.family.value_chunk_size = 4096;
    o.family.compression = Compression::Lz4;
    o.tuning.staged_from = 3000;
    o
}

pub fn open(fs: &MemFs) -> Db {
    Db::open("db", options(fs)).unwrap()
}

/// Opens a database on a disk that fails where the test says so.
pub(super) fn open_with_faults(fs: &MemFs) -> (Arc<FaultFs>, Db) {
    let faults = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
    let shared: Arc<dyn Fs> = faults.clone();
    (faults, Db::open("db", options(fs).fs(shared)).unwrap())
}

/// Half of it compresses.
pub fn value(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![seed as u8; len];
    let mut rng = Rng::new(seed);
    for piece in bytes.chunks_mut(1500).step_by(2) {
        rng.fill(piece);
    }
    bytes
}

fn key(len: usize) -> String {
    format!("value-{len:07}")
}

/// Writes a value in pieces of random lengths.
pub fn stage(family: &ColumnFamily, value: &[u8], rng: &mut Rng) -> StagedValue {
    let mut writer = family.value_writer().unwrap();
    let mut rest = value;
    while !rest.is_empty() {
        let most = [10, 5000, 300_000][rng.below(3) as usize];
        let (piece, more) = rest.split_at(rest.len().min(rng.below(most) as usize));
        writer.write_all(piece).unwrap();
        rest = more;
    }
    writer.flush().unwrap();
    assert_eq!((writer.len(), writer.is_empty()), (value.len() as u64, value.is_empty()));
    let staged = writer.finish().unwrap();
    assert_eq!((staged.len(), staged.is_empty()), (value.len() as u64, value.is_empty()));
    staged
}

fn put_all(family: &ColumnFamily, seed: u64) {
    let mut rng = Rng::new(seed);
    for len in LENGTHS {
        family.put_staged(key(len), &stage(family, &value(len, seed), &mut rng)).unwrap();
    }
}

/// Reads the family in every way.
fn check(family: &ColumnFamily, seed: u64, what: &str) {
    for len in LENGTHS {
        let want = value(len, seed);
        assert!(family.get(key(len)).unwrap().expect("it was put") == want, "{what}: get of {len}");
        let mut read = Vec::new();
        family.get_reader(key(len)).unwrap().unwrap().read_to_end(&mut read).unwrap();
        assert!(read == want, "{what}: a reader of {len}");
    }
    let entries: Vec<_> = family.iter().map(Result::unwrap).collect();
    assert_eq!(entries.iter().map(|e| e.value.len()).collect::<Vec<_>>(), LENGTHS, "{what}: a scan");
    assert!(entries.iter().all(|e| e.value[..] == value(e.value.len(), seed)), "{what}: a scan");
}

pub fn value_logs(fs: &MemFs) -> usize {
    fs.list(Path::new("db")).unwrap().iter().filter(|n| n.ends_with(".vlog")).count()
}

pub fn run_jobs(db: &Db) {
    while db.run_one_job().unwrap() {}
}

#[test]
fn pieces_make_the_same_value_as_a_slice() {
    for (compression, direct) in
        [(Compression::Lz4, 0), (Compression::None, 32 << 10), (Compression::Zstd, 64), (Compression::None, 0)]
    {
        let what = format!("{compression:?}, direct from {direct}");
        let fs = MemFs::new();
        let mut options = options(&fs);
        (options.family.compression, options.family.direct_value_threshold) = (compression, direct);
        let db = Db::open("db", options.clone()).unwrap();
        let family = db.default_family();
        put_all(family, 1);
        check(family, 1, &format!("{what}, in the memtable"));
        let direct_values = db.stats().get("direct_values").unwrap();
        assert!(direct_values >= 5 && (direct > 0 || direct_values == 5), "{what}: {direct_values}");
        let old = db.snapshot();
        put_all(family, 2);
        check(family, 2, &format!("{what}, overwritten"));
        assert!(old.of(family).get(key(60_000)).unwrap().unwrap() == value(60_000, 1), "{what}: at a snapshot");
        db.flush().unwrap();
        check(family, 2, &format!("{what}, in tables"));
        assert!(db.verify().unwrap().is_clean(), "{what}: {:?}", db.verify().unwrap());
        drop(old);
        put_all(family, 3);
        db.compact().unwrap();
        run_jobs(&db);
        check(family, 3, &format!("{what}, compacted"));
        assert!(db.verify().unwrap().is_clean(), "{what}: {:?}", db.verify().unwrap());
        put_all(family, 4);
        let killed = fs.kill_clone();
        let reader = Db::open_read_only("db", options.clone()).unwrap();
        check(reader.default_family(), 4, &format!("{what}, a reader beside the writer"));
        drop(reader);
        db.close().unwrap();
        drop(db);
        let report = kingtide::verify("db", &options).unwrap();
        assert!(report.is_clean(), "{what}, a close leaves no orphan: {report:?}");
        check(open(&fs).default_family(), 4, &format!("{what}, opened again"));
        // After a kill the first flush moves the values, in pieces too.
        let again = open(&killed);
        check(again.default_family(), 4, &format!("{what}, recovered"));
        again.flush().unwrap();
        run_jobs(&again);
        check(again.default_family(), 4, &format!("{what}, recovered and flushed"));
        assert!(again.verify().unwrap().is_clean(), "{what}: {:?}", again.verify().unwrap());
    }
}

#[test]
fn a_reader_is_put_whole_or_not_at_all() {
    let fs = MemFs::new();
    let db = open(&fs);
    for len in LENGTHS {
        assert_eq!(db.put_reader(key(len), &value(len, 1)[..]).unwrap(), len as u64);
    }
    check(db.default_family(), 1, "put_reader");
    struct Failing(usize);
    impl Read for Failing {
        fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
            self.0 += 1;
            match self.0 {
                1 => Err(std::io::ErrorKind::Interrupted.into()),
                2..9 => Ok(buf.len()),
                _ => Err(std::io::Error::other("the tape is torn")),
            }
        }
    }
    let before = value_logs(&fs);
    let e = db.put_reader(b"torn", Failing(0)).unwrap_err();
    assert!(e.kind() == ErrorKind::Io && e.to_string().contains("the tape is torn"), "{e}");
    assert_eq!(db.get(b"torn").unwrap(), None);
    assert_eq!(db.put_reader(b"", Failing(0)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    run_jobs(&db);
    assert_eq!(value_logs(&fs), before, "what was written of it is removed");
    // From a value to another, in pieces.
    let from = db.default_family().get_reader(key(700_001)).unwrap().unwrap();
    assert_eq!(db.put_reader(b"copy", from).unwrap(), 700_001);
    assert!(db.get(b"copy").unwrap().unwrap() == value(700_001, 1));
}

#[test]
fn what_is_given_up_leaves_no_file() {
    let fs = MemFs::new();
    let db = open(&fs);
    let family = db.default_family().clone();
    let mut rng = Rng::new(1);
    let big = value(60_000, 1);
    let none = |what: &str| {
        run_jobs(&db);
        assert_eq!(value_logs(&fs), 0, "{what}");
    };
    let mut writer = family.value_writer().unwrap();
    writer.write_all(&big).unwrap();
    assert_eq!(value_logs(&fs), 1);
    drop(writer);
    none("a writer");
    drop(stage(&family, &big, &mut rng));
    none("a staged value");
    let mut batch = WriteBatch::new();
    batch.put_staged(&family, b"k", &stage(&family, &big, &mut rng)).unwrap();
    assert!(batch.bytes() < 100, "{}", batch.bytes());
    batch.clear();
    none("a cleared batch");
    batch.put_staged(&family, b"k", &stage(&family, &big, &mut rng)).unwrap();
    drop(batch);
    none("a batch");
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.set_savepoint("s").unwrap();
    txn.put_staged(&family, b"k", &stage(&family, &big, &mut rng)).unwrap();
    txn.rollback_to_savepoint("s").unwrap();
    none("a savepoint");
    assert_eq!(txn.get(&family, b"k").unwrap(), None);
    txn.put_staged(&family, b"k", &stage(&family, &big, &mut rng)).unwrap();
    txn.rollback().unwrap();
    none("a transaction");
    // What a crash leaves of one, the next open removes.
    let mut writer = family.value_writer().unwrap();
    writer.write_all(&big).unwrap();
    db.put("other", "value").unwrap();
    for (n, left) in [fs.kill_clone(), fs.crash_clone(Survival::AllKept, &mut rng)].into_iter().enumerate() {
        assert_eq!(value_logs(&left), 1);
        let again = open(&left);
        assert_eq!((value_logs(&left), again.get("k").unwrap()), (0, None), "crash {n}");
        assert!(again.get("other").unwrap().is_some());
    }
    // Dropped or closed beneath it.
    let other = db.create_family("other", options(&fs).family).unwrap();
    let mut orphan = other.value_writer().unwrap();
    orphan.write_all(&big).unwrap();
    let staged = stage(&other, &big, &mut rng);
    let mut small = other.value_writer().unwrap();
    small.append(b"a few bytes").unwrap();
    db.drop_family("other").unwrap();
    assert_eq!(small.append(b"more").unwrap_err().kind(), ErrorKind::Closed);
    let failed = orphan.write_all(&big).unwrap_err();
    let failed = failed.get_ref().and_then(|e| e.downcast_ref::<kingtide::Error>()).unwrap();
    assert_eq!(failed.kind(), ErrorKind::Closed);
    assert_eq!(orphan.append(b"x").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(orphan.finish().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(other.put_staged(b"k", &staged).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(other.value_writer().unwrap_err().kind(), ErrorKind::Closed);
    drop(staged);
    db.close().unwrap();
    assert_eq!(writer.append(b"x").unwrap_err().kind(), ErrorKind::Closed);
    drop(writer);
    drop(db);
    open(&fs);
    assert_eq!(value_logs(&fs), 0);
}

#[test]
fn a_staged_value_is_committed_once() {
    let fs = MemFs::new();
    let db = open(&fs);
    let family = db.default_family().clone();
    let other = db.create_family("other", options(&fs).family).unwrap();
    let mut rng = Rng::new(1);
    let big = value(60_000, 1);
    let staged = stage(&family, &big, &mut rng);
    let invalid = |e: kingtide::Error| assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    let mut batch = WriteBatch::new();
    invalid(batch.put_staged(&other, b"a", &staged).unwrap_err());
    invalid(batch.put_staged(&family, b"", &staged).unwrap_err());
    batch.put_staged(&family, b"a", &staged).unwrap();
    invalid(batch.put_staged(&family, b"b", &staged).unwrap_err());
    assert_eq!(batch.len(), 1);
    let mut second = WriteBatch::new();
    second.put_staged(&family, b"b", &staged).unwrap();
    second.put(&family, b"c", b"not alone").unwrap();
    let plain = WriteOptions::default();
    db.write_with(&mut batch, &plain).unwrap();
    invalid(db.write_with(&mut batch, &plain).unwrap_err());
    invalid(db.write_with(&mut second, &plain).unwrap_err());
    invalid(family.put_staged(b"b", &staged).unwrap_err());
    db.flush().unwrap();
    invalid(db.write_with(&mut second, &plain).unwrap_err());
    assert!(family.get(b"a").unwrap().unwrap() == big);
    assert_eq!((family.get(b"b").unwrap(), family.get(b"c").unwrap()), (None, None));
    drop((staged, batch, second));
    assert!(db.verify().unwrap().is_clean(), "{:?}", db.verify().unwrap());
    // Of another database.
    let elsewhere = Db::open("elsewhere", options(&fs)).unwrap();
    invalid(elsewhere.default_family().put_staged(b"a", &stage(&family, &big, &mut rng)).unwrap_err());
}

#[test]
fn batches_and_transactions_commit_staged_values_with_others() {
    let fs = MemFs::new();
    let mut options = options(&fs);
    options.family.direct_value_threshold = 2000;
    let db = Db::open("db", options.clone()).unwrap();
    let family = db.default_family().clone();
    let ttl = db.create_family("ttl", options.family.clone()).unwrap();
    let mut rng = Rng::new(5);
    let (big, bigger) = (value(60_000, 1), value(90_000, 2));

    let mut batch = WriteBatch::new();
    batch.put(&family, b"a", &value(2500, 3)).unwrap();
    batch.put_staged(&family, b"b", &stage(&family, &big, &mut rng)).unwrap();
    batch.put_staged_ttl(&ttl, b"b", &stage(&ttl, &bigger, &mut rng), std::time::Duration::from_secs(1000)).unwrap();
    batch.put(&ttl, b"c", b"small").unwrap();
    batch.delete(&family, b"z").unwrap();
    db.write(batch).unwrap();
    let whole = |db: &Db| {
        let ttl = db.family("ttl").unwrap();
        assert!(db.get(b"a").unwrap().unwrap() == value(2500, 3));
        assert!(db.get(b"b").unwrap().unwrap() == big);
        assert!(ttl.get(b"b").unwrap().unwrap() == bigger);
        assert_eq!(ttl.get(b"c").unwrap().unwrap(), b"small");
    };
    whole(&db);
    whole(&Db::open("db", options.clone().fs(Arc::new(fs.kill_clone()))).unwrap());

    for isolation in [Isolation::ReadUncommitted, Isolation::Snapshot, Isolation::Serializable] {
        let mut txn = db.begin(isolation).unwrap();
        let staged = stage(&family, &bigger, &mut rng);
        txn.put_staged(&family, b"b", &staged).unwrap();
        assert!(txn.get(&family, b"b").unwrap().unwrap() == bigger, "its own write");
        assert!(txn.multi_get(&family, &[b"a", b"b"])[1].as_ref().unwrap().as_ref().unwrap() == &bigger);
        let mut cursor = txn.cursor(&family, ..).unwrap();
        cursor.seek_to_last();
        assert!(cursor.valid() && cursor.key() == b"b" && cursor.value().unwrap() == bigger);
        assert!(db.get(b"b").unwrap().unwrap() == big, "not committed");
        let mut weak = db.begin(Isolation::ReadUncommitted).unwrap();
        assert!(weak.get(&family, b"b").unwrap().unwrap() == bigger);
        weak.rollback().unwrap();
        drop(staged);
        txn.commit().unwrap();
        assert!(db.get(b"b").unwrap().unwrap() == bigger);
        db.put(b"b", &big).unwrap();
    }
    // A conflict: the value is not lost.
    let staged = stage(&family, &bigger, &mut rng);
    let mut attempts = 0;
    db.transact(|tx| {
        let before = tx.get(&family, b"b")?.unwrap();
        attempts += 1;
        if attempts == 1 {
            db.put(b"b", &big)?;
        }
        assert!(before == big);
        tx.put_staged(&family, b"b", &staged)?;
        tx.put(&family, b"d", b"with it")
    })
    .unwrap();
    assert_eq!(attempts, 2);
    assert!(db.get(b"b").unwrap().unwrap() == bigger);
    db.flush().unwrap();
    assert!(db.get(b"b").unwrap().unwrap() == bigger);
    drop(staged);
    assert!(db.verify().unwrap().is_clean(), "{:?}", db.verify().unwrap());
}

#[test]
fn hooks_and_change_streams_have_the_values() {
    let fs = MemFs::new();
    let db = open(&fs);
    let family = db.default_family().clone();
    let big = value(60_000, 1);
    let seen: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    struct Hook(Arc<Mutex<Vec<Vec<u8>>>>);
    impl kingtide::CommitHook for Hook {
        fn committed(&self, commit: &kingtide::CommittedWrites<'_>) {
            self.0.lock().unwrap().extend(commit.operations().map(|c| c.value.to_vec()));
        }
    }
    family.set_commit_hook(Some(Arc::new(Hook(seen.clone())))).unwrap();
    family.put_reader(b"k", &big[..]).unwrap();
    assert!(*seen.lock().unwrap() == std::slice::from_ref(&big));
    let mut stream = db.changes_since(0).unwrap();
    let record = stream.next().unwrap().unwrap();
    let values: Vec<_> = record.operations().map(|c| c.value.to_vec()).collect();
    assert!(values == std::slice::from_ref(&big));
    // Where the log is kept for streams, it holds all values.
    let staged = db.stats().get("direct_values");
    db.set_option("change_retention", "1M").unwrap();
    family.put_reader(b"l", &big[..]).unwrap();
    assert_eq!(db.stats().get("direct_values"), staged);
    assert!(db.get(b"l").unwrap().unwrap() == big);
    db.set_option("change_retention", "0").unwrap();
    // As does a family without value logs.
    let family = options(&fs).family.value_threshold(0);
    let tables = db.create_family("tables", family).unwrap();
    tables.put_reader(b"m", &big[..]).unwrap();
    assert_eq!(db.stats().get("direct_values"), staged);
    db.flush().unwrap();
    assert!(tables.get(b"m").unwrap().unwrap() == big);
}

#[test]
fn what_was_committed_survives_what_its_durability_says() {
    for seed in 0..10 {
        let fs = MemFs::new();
        let db = open(&fs);
        let family = db.default_family();
        let mut rng = Rng::new(seed);
        let mut durable = 0;
        let mut cuts = Vec::new();
        for n in 1..=12u64 {
            let durability = if rng.one_in(3) { Durability::Power } else { Durability::Process };
            let mut batch = WriteBatch::new();
            let staged = stage(family, &value(3001 + rng.below(90_000) as usize, n), &mut rng);
            let in_between = fs.crash_clone(Survival::Torn, &mut rng);
            cuts.push((in_between, durable, n - 1));
            batch.put_staged(family, &n.to_be_bytes(), &staged).unwrap();
            batch.put(family, b"n", &n.to_be_bytes()).unwrap();
            db.write_with(&mut batch, &WriteOptions::new().durability(durability)).unwrap();
            drop((staged, batch));
            durable = if durability == Durability::Power { n } else { durable };
            if rng.one_in(5) {
                db.flush().unwrap();
                durable = n;
            }
            let survival = [Survival::AllLost, Survival::RandomBlocks, Survival::AllKept][rng.below(3) as usize];
            cuts.push((fs.crash_clone(survival, &mut rng), durable, n));
            cuts.push((fs.kill_clone(), n, n));
        }
        for (at, (cut, at_least, at_most)) in cuts.into_iter().enumerate() {
            let what = format!("seed {seed}, crash {at}");
            let db = Db::open("db", options(&cut)).unwrap_or_else(|e| panic!("{what}: {e}"));
            let check = |db: &Db| {
                let n = db.get(b"n").unwrap().map_or(0, |n| u64::from_be_bytes(n[..].try_into().unwrap()));
                assert!((at_least..=at_most).contains(&n), "{what}: {n} of {at_least} to {at_most}");
                for i in 1..=12u64 {
                    let found = db.get(i.to_be_bytes()).unwrap();
                    assert_eq!(found.is_some(), i <= n, "{what}: {i}");
                    assert!(found.is_none_or(|v| v == value(v.len(), i)), "{what}: {i}");
                }
            };
            check(&db);
            db.flush().unwrap();
            run_jobs(&db);
            check(&db);
            db.close().unwrap();
            assert!(kingtide::verify("db", &options(&cut)).unwrap().is_clean(), "{what}");
        }
    }
}

#[test]
fn a_full_disk_is_told_and_loses_nothing() {
    let fs = MemFs::new();
    let (faults, db) = open_with_faults(&fs);
    db.put_reader(b"old", &value(60_000, 1)[..]).unwrap();
    db.flush().unwrap();
    let before = value_logs(&fs);
    for nth in [1, 2, 9] {
        faults.add(Rule::new(Op::Write, Fault::Enospc).path(".vlog").nth(nth));
        let mut writer = db.value_writer().unwrap();
        let mut rng = Rng::new(nth);
        let mut noise = vec![0; 100_000];
        rng.fill(&mut noise);
        let e = writer.append(&noise).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
        assert_eq!(writer.append(b"more").unwrap_err().kind(), ErrorKind::NoSpace, "it is given up");
        assert_eq!(writer.finish().unwrap_err().kind(), ErrorKind::NoSpace);
        faults.clear();
        run_jobs(&db);
        assert_eq!(value_logs(&fs), before);
    }
    // The end of the value does not fit, or a sync of it fails.
    for rule in [Rule::new(Op::Write, Fault::Enospc).path(".vlog"), Rule::new(Op::Sync, Fault::Eio).path(".vlog")] {
        db.set_option("durability", "power").unwrap();
        let mut writer = db.value_writer().unwrap();
        writer.append(&value(60_000, 3)).unwrap();
        faults.add(rule.nth(1));
        writer.finish().unwrap_err();
        faults.clear();
        run_jobs(&db);
        assert_eq!(value_logs(&fs), before);
    }
    db.put_reader(b"new", &value(60_000, 2)[..]).unwrap();
    for (key, seed) in [("old", 1), ("new", 2)] {
        assert!(db.get(key).unwrap().unwrap() == value(60_000, seed));
    }
}

/// A quarter of the open-file budget is for value logs that are written.
#[test]
fn many_writers_use_up_files_and_are_told_so() {
    let fs = MemFs::new();
    let mut options = options(&fs);
    options.db.max_open_files = 16;
    let db = Db::open("db", options).unwrap();
    // Committed ones are closed by a flush, which comes by itself.
    for n in 0..20u64 {
        db.put_reader(n.to_be_bytes(), &value(10_000, n)[..]).unwrap();
    }
    assert_eq!(db.stats().get("direct_values"), Some(20));
    let mut writers = Vec::new();
    let e = loop {
        let mut writer = db.value_writer().unwrap();
        match writer.append(&value(10_000, 1)) {
            Ok(()) => writers.push(writer),
            Err(e) => break e,
        }
    };
    assert_eq!((writers.len(), e.kind()), (4, ErrorKind::Busy), "{e}");
    writers.pop();
    db.put_reader(b"more", &value(10_000, 1)[..]).unwrap();
    for n in 0..20u64 {
        assert!(db.get(n.to_be_bytes()).unwrap().unwrap() == value(10_000, n), "{n}");
    }
}

#[test]
fn several_threads_write_values_to_a_real_directory() {
    let dir = Scratch::new("value-writers");
    let mut options = Options::new().fs(SystemFs::shared());
    options.family.memtable_size = 256 << 10;
    let db = Db::open(dir.0.join("db"), options.clone()).unwrap();
    let keys = |t: u64| (0..6u64).map(move |n| t * 100 + n);
    std::thread::scope(|s| {
        for t in 0..4 {
            let db = &db;
            s.spawn(move || {
                let mut rng = Rng::new(t);
                for n in keys(t) {
                    let staged = stage(db.default_family(), &value(1_200_000 + n as usize, n), &mut rng);
                    match n % 2 {
                        0 => {
                            db.default_family().put_staged(n.to_be_bytes(), &staged).unwrap();
                        }
                        _ => db.transact(|tx| tx.put_staged(db.default_family(), &n.to_be_bytes(), &staged)).unwrap(),
                    }
                    if n % 3 == 0 {
                        drop(db.value_writer().map(|mut w| w.write_all(&value(2_000_000, n))));
                    }
                }
            });
        }
    });
    let check = |db: &Db| {
        for n in (0..4).flat_map(keys) {
            assert!(db.get(n.to_be_bytes()).unwrap().unwrap() == value(1_200_000 + n as usize, n), "{n}");
        }
    };
    check(&db);
    db.compact().unwrap();
    check(&db);
    db.close().unwrap();
    drop(db);
    assert!(kingtide::verify(dir.0.join("db"), &options).unwrap().is_clean());
    check(&Db::open(dir.0.join("db"), options).unwrap());
}
