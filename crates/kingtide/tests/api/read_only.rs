//! Opening for reading only: no byte changes, whatever a writer does meanwhile is no error, and catching up sees it.

use super::whole_contents::{Content, content};
use kingtide::vfs::{FaultFs, Fs, MemFs, Op, OpenMode, Survival};
use kingtide::{Db, ErrorKind, FamilyOptions, IngestOptions, Isolation, Options, SortedFileWriter, WriteBatch};
use kingtide_base::rare;
use kingtide_base::rng::Rng;
use kingtide_testkit::killed::{BEGIN, DIR, acknowledge, parse, spawn};
#[allow(dead_code)] // this test needs a part of it
use kingtide_testkit::test_name;
use kingtide_testkit::{RaiseOnDrop, Scratch};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

fn options_on(fs: &MemFs, manual: bool) -> Options {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    small(Options::new().fs(fs).manual_jobs(manual))
}

/// Segments, memtables and files so small that all of them come and go.
fn small(mut options: Options) -> Options {
    let sizes = [("wal_segment_size", "65536"), ("memtable_size", "65536"), ("value_threshold", "300")];
    sizes.iter().for_each(|(name, value)| options.set(name, value).unwrap());
    options
}

fn reader(fs: &MemFs) -> Db {
    Db::open_read_only("db", options_on(fs, false)).unwrap()
}

/// Every byte of the database's directory.
fn bytes(fs: &MemFs) -> BTreeMap<String, Vec<u8>> {
    let read = |name: &String| {
        let file = fs.open(&Path::new("db").join(name), OpenMode::Read).unwrap();
        let mut all = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut all, 0).unwrap();
        all
    };
    fs.list(Path::new("db")).unwrap().iter().map(|n| (n.clone(), read(n))).collect()
}

fn write(db: &Db, rng: &mut Rng, n: usize) {
    for _ in 0..n {
        let key = rng.below(400).to_be_bytes();
        let mut value = vec![0; (if rng.one_in(6) { 300 + rng.below(900) } else { rng.below(60) }) as usize];
        rng.fill(&mut value);
        match rng.below(12) {
            0 => db.delete(key).unwrap(),
            1 => db.delete_range(key..(rng.below(5) + u64::from_be_bytes(key)).to_be_bytes()).unwrap(),
            _ => db.put(key, value).unwrap(),
        };
    }
}

#[test]
fn it_changes_no_byte_and_refuses_to() {
    let fs = MemFs::new();
    assert_eq!(Db::open_read_only("db", options_on(&fs, false)).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!fs.exists(Path::new("db")).unwrap());
    let mut rng = Rng::new(1);
    let db = Db::open("db", options_on(&fs, true)).unwrap();
    write(&db, &mut rng, 3000);
    db.flush().unwrap();
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put(db.default_family(), b"x", b"y").unwrap();
    txn.prepare(b"in doubt").unwrap();
    write(&db, &mut rng, 300);
    fs.open(Path::new("db/99999999.klog"), OpenMode::Create).unwrap(); // an orphan that a writer's open would remove
    let (before, ops) = (bytes(&fs), fs.write_ops());
    let ro = reader(&fs);
    assert!(ro.is_read_only() && !db.is_read_only());
    assert_eq!(content(&ro), content(&db));
    assert_eq!(ro.recover_prepared(), db.recover_prepared());
    assert_eq!(ro.latest_sequence(), db.latest_sequence());
    let f = ro.default_family();
    let mut batch = WriteBatch::new();
    batch.put(f, b"k", b"v").unwrap();
    let refused = [
        ro.put(b"k", b"v").unwrap_err(),
        ro.delete(b"k").unwrap_err(),
        ro.delete_range(b"k"..b"l").unwrap_err(),
        ro.write(batch).unwrap_err(),
        ro.write(WriteBatch::new()).unwrap_err(),
        ro.flush().unwrap_err(),
        ro.compact().unwrap_err(),
        ro.sync().unwrap_err(),
        ro.create_family("new", FamilyOptions::default()).unwrap_err(),
        ro.drop_family("default2").unwrap_err(),
        ro.rename_family("a", "b").unwrap_err(),
        f.set_option("ttl_ms", "5").unwrap_err(),
        ro.begin(Isolation::Snapshot).unwrap_err(),
        ro.commit_prepared(b"in doubt").unwrap_err(),
        ro.rollback_prepared(b"in doubt").unwrap_err(),
        ro.checkpoint("copy").unwrap_err(),
        ro.changes_since(0).unwrap_err(),
    ];
    for (i, e) in refused.iter().enumerate() {
        assert_eq!(e.kind(), ErrorKind::ReadOnly, "number {i}: {e}");
    }
    ro.set_option("block_cache_size", "1048576").unwrap();
    assert!(!ro.run_one_job().unwrap());
    ro.wait_for_background().unwrap();
    let _ = (ro.stats(), ro.prometheus());
    assert_eq!(ro.try_catch_up().unwrap(), ro.latest_sequence());
    assert_eq!(content(&ro), content(&db));
    ro.close().unwrap();
    assert_eq!(ro.try_catch_up().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(db.try_catch_up().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(bytes(&fs) == before && fs.write_ops() == ops, "no byte changed");
}

/// One thread writes, flushes, merges; readers are opened in between, must see exactly what is there, keep it however old
/// they get, and see the present when they catch up.
#[test]
fn every_reader_sees_its_moment_and_catches_up() {
    let rounds = if kingtide_testkit::full() { 600 } else { 60 };
    let fs = MemFs::new();
    let mut rng = Rng::new(2);
    let mut db = Db::open("db", options_on(&fs, true)).unwrap();
    let mut readers: Vec<(Db, Content)> = Vec::new();
    for round in 0..rounds {
        let (n, name) = (rng.below(600) as usize, format!("family{}", rng.below(3)));
        write(&db, &mut rng, n);
        match rng.below(10) {
            0 => drop(db.drop_family(&name)),
            1 => drop(db.rename_family(&name, "renamed")),
            2 | 3 => {
                let made = db.create_family(&name, FamilyOptions::default());
                made.or_else(|_| db.family(&name)).unwrap().put(round.to_string(), b"v").unwrap();
            }
            4 => db.flush().unwrap(),
            5 => db.compact().unwrap(),
            6 => {
                db.close().unwrap();
                db = Db::open("db", options_on(&fs, true)).unwrap();
            }
            _ => while rng.below(4) > 0 && db.run_one_job().unwrap() {},
        }
        let now = content(&db);
        let new = reader(&fs);
        assert_eq!(content(&new), now, "round {round}: a new reader");
        readers.push((new, now.clone()));
        for (i, (reader, then)) in readers.iter_mut().enumerate() {
            if rng.one_in(3) {
                let snapshot = reader.snapshot();
                let was = reader.latest_sequence();
                let mut it = reader.cursor(..).unwrap();
                assert_eq!(reader.try_catch_up().unwrap(), db.latest_sequence());
                it.seek_to_first();
                let first = then["default"].first_key_value();
                assert_eq!(it.valid().then(|| it.key().to_vec()).as_ref(), first.map(|(k, _)| k));
                let at_snapshot = snapshot.of(reader.default_family()).get(b"k");
                if reader.latest_sequence() > was {
                    assert_eq!(at_snapshot.unwrap_err().kind(), ErrorKind::TooOld);
                    assert_eq!(reader.snapshot_at(was).unwrap_err().kind(), ErrorKind::TooOld);
                } else {
                    at_snapshot.unwrap();
                }
                *then = now.clone();
            }
            assert_eq!(content(reader), *then, "round {round}: reader {i}");
        }
        if readers.len() > 6 {
            readers.remove(rng.below(6) as usize);
        }
    }
}

/// Every batch puts one number under a key of its own and under one key of two families. A reader that is opened or
/// catches up while four threads write, and jobs run, sees every batch whole and all that were acknowledged before.
#[test]
fn beside_writers_at_full_speed_nothing_is_missing_or_torn() {
    let rounds = if kingtide_testkit::full() { 2000 } else { 150 };
    let fs = MemFs::new();
    let db = Db::open("db", options_on(&fs, false)).unwrap();
    let other = db.create_family("other", FamilyOptions::default()).unwrap();
    let stop = AtomicBool::new(false);
    let done: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|s| {
        let end = RaiseOnDrop(&stop);
        for (t, done) in done.iter().enumerate() {
            let (db, other, stop) = (&db, &other, &stop);
            s.spawn(move || {
                for n in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    put_round(db, other, t as u64, n);
                    done.store(n, Ordering::Release);
                }
            });
        }
        let follower = reader(&fs);
        for round in 0..rounds {
            let before: Vec<u64> = done.iter().map(|d| d.load(Ordering::Acquire)).collect();
            if round % 3 == 0 {
                check_rounds(&reader(&fs), &before);
            } else {
                follower.try_catch_up().unwrap();
                check_rounds(&follower, &before);
            }
            if round % 20 == 0 {
                let report = follower.verify().unwrap();
                assert!(report.is_clean(), "{report:?}");
            }
        }
        drop(end);
    });
}

/// The spare segment: it has a name, and no header yet.
fn spare(fs: &MemFs) -> Option<String> {
    bytes(fs).into_iter().find(|(name, b)| name.ends_with(".wal") && !b.starts_with(b"KWAL")).map(|(name, _)| name)
}

/// A spare segment that comes into use while a reader reads the log changes neither the names of files nor the manifest, and
/// what stood behind its missing header was taken for damage, if the writer did nothing else and was killed then.
#[test]
fn a_spare_segment_that_comes_into_use_meanwhile_is_no_damage() {
    let fs = MemFs::new();
    let mut options = options_on(&fs, true);
    options.family.memtable_size = 8 << 20;
    let db = Db::open("db", options).unwrap();
    db.put(b"flushed", b"before").unwrap(); // the one operation that a reader skips
    db.flush().unwrap();
    while db.run_one_job().unwrap() {}
    let (writer, disk, begun) = (db.clone(), fs.clone(), Arc::new(AtomicU64::new(0)));
    let tries = begun.clone();
    rare::on_this_thread(Some(Box::new(move |name| {
        if name != "recovery-skipped-flushed" || tries.fetch_add(1, Ordering::SeqCst) >= 4 {
            return;
        }
        let next = spare(&disk).expect("a spare segment");
        for i in 0..200_u32 {
            writer.put(i.to_be_bytes(), [7; 1000]).unwrap();
            if spare(&disk).as_ref() != Some(&next) {
                break;
            }
        }
        if tries.load(Ordering::SeqCst) < 4 {
            while writer.run_one_job().unwrap() {} // makes the next spare
        }
    })));
    let ro = Db::open_read_only("db", options_on(&fs, false));
    rare::on_this_thread(None);
    let ro = ro.unwrap();
    assert!(begun.load(Ordering::SeqCst) > 4, "the reader was not overtaken");
    assert_eq!(content(&ro), content(&db));
}

/// A reader whose file system calls `overtake` between its reads of the manifest and of the log, each time that it reads them. The
/// first call has the number 1. An open reads the manifest more than once.
fn overtaken_reader(
    fs: &MemFs,
    overtake: impl Fn(u64) + Send + Sync + 'static,
) -> (kingtide::Result<Db>, Arc<AtomicU64>) {
    let faults = FaultFs::new(Arc::new(fs.clone()), 1);
    let (read_manifest, calls) = (AtomicBool::new(false), Arc::new(AtomicU64::new(0)));
    let count = calls.clone();
    faults.before_each(Some(Arc::new(move |op, path| {
        let is = |part| path.to_string_lossy().contains(part);
        if op == Op::Open && is("CURRENT") {
            read_manifest.store(false, Ordering::SeqCst);
        } else if op == Op::Read && is("MANIFEST") {
            read_manifest.store(true, Ordering::SeqCst);
        } else if op == Op::Open && is(".wal") && read_manifest.swap(false, Ordering::SeqCst) {
            overtake(count.fetch_add(1, Ordering::SeqCst) + 1);
        }
    })));
    (Db::open_read_only("db", options_on(fs, false).fs(Arc::new(faults))), calls)
}

/// Whether a reader on this thread finds its manifest too old for the log, from now on.
fn read_again() -> Arc<AtomicBool> {
    let again = Arc::new(AtomicBool::new(false));
    let seen = again.clone();
    rare::on_this_thread(Some(Box::new(move |name| {
        seen.fetch_or(name == "read-only-older-manifest", Ordering::SeqCst);
    })));
    again
}

/// Ingests both keys with a value.
fn ingest(db: &Db, value: &str) {
    let mut file = SortedFileWriter::create("sorted", db.default_family()).unwrap();
    ["head", "key"].iter().for_each(|key| file.put(key.as_bytes(), value.as_bytes()).unwrap());
    file.finish().unwrap();
    db.default_family().ingest(&["sorted"], &IngestOptions::new().move_files(true)).unwrap();
}

/// Where nothing older has keys of the files, the older manifest is as good.
#[test]
fn other_files_ingested_meanwhile_are_no_reason_to_read_again() {
    let fs = MemFs::new();
    let db = Db::open("db", options_on(&fs, true)).unwrap();
    db.put("a", "in a table").unwrap();
    db.flush().unwrap();
    db.put("z", "in the log").unwrap();
    let writer = db.clone();
    let again = read_again();
    let (ro, calls) = overtaken_reader(&fs, move |_| ingest(&writer, "new"));
    rare::on_this_thread(None);
    assert_eq!(content(&ro.unwrap()), content(&db));
    assert!(calls.load(Ordering::SeqCst) > 0 && !again.load(Ordering::SeqCst));
}

/// A reader that is overtaken like this each time fails, and shows nothing that never was.
#[test]
fn a_reader_that_is_always_overtaken_says_so() {
    let fs = MemFs::new();
    let db = Db::open("db", options_on(&fs, true)).unwrap();
    db.put("head", "old").unwrap();
    let writer = db.clone();
    let (ro, calls) = overtaken_reader(&fs, move |_| {
        ingest(&writer, "new");
        writer.put("head", "newer").unwrap();
    });
    assert_eq!(ro.unwrap_err().kind(), ErrorKind::Busy);
    assert!(calls.load(Ordering::SeqCst) > 100);
}

/// Clean is what the reader shows, whatever the writer has done since: it moved on in its manifest, and removed files.
#[test]
fn what_a_reader_shows_can_be_verified_beside_the_writer() {
    let fs = MemFs::new();
    let db = Db::open("db", options_on(&fs, true)).unwrap();
    let mut rng = Rng::new(7);
    let clean = |ro: &Db, when: &str| {
        let report = ro.verify().unwrap();
        assert!(report.is_clean(), "{when}: {report:?}");
        assert!(report.counts.entries > 100, "{when}: {report:?}");
    };
    for _ in 0..3 {
        write(&db, &mut rng, 400);
        db.flush().unwrap();
    }
    let ro = reader(&fs);
    let shown = content(&ro);
    clean(&ro, "at once");
    let data = |fs: &MemFs| bytes(fs).into_keys().filter(|n| n.ends_with("log")).collect::<Vec<_>>();
    let before = data(&fs);
    write(&db, &mut rng, 400);
    db.create_family("later", FamilyOptions::default()).unwrap();
    db.flush().unwrap();
    clean(&ro, "after a flush");
    db.compact().unwrap();
    while db.run_one_job().unwrap() {}
    let after = data(&fs);
    assert!(before.iter().any(|n| !after.contains(n)), "{before:?} {after:?}");
    clean(&ro, "after a compaction");
    assert_eq!(content(&ro), shown);
    db.close().unwrap();
    drop(db);
    drop(Db::open("db", options_on(&fs, true)).unwrap());
    clean(&ro, "after another open");
    ro.try_catch_up().unwrap();
    clean(&ro, "after catching up");
    let name = data(&fs).into_iter().find(|n| n.ends_with(".klog")).unwrap();
    let file = fs.open(&Path::new("db").join(name), OpenMode::Write).unwrap();
    file.write_at(b"damage", 20).unwrap();
    assert!(ro.verify().unwrap().is_damaged());
}

fn put_round(db: &Db, other: &kingtide::ColumnFamily, thread: u64, n: u64) {
    let mut b = WriteBatch::new();
    let value = n.to_be_bytes().repeat(if n.is_multiple_of(10) { 60 } else { 4 });
    b.put(db.default_family(), &thread.to_be_bytes(), &value).unwrap();
    b.put(db.default_family(), &[thread.to_be_bytes(), (n % 500).to_be_bytes()].concat(), &value).unwrap();
    b.put(other, &thread.to_be_bytes(), &value).unwrap();
    db.write(b).unwrap();
}

fn check_rounds(ro: &Db, acknowledged: &[u64]) {
    let other = ro.family("other").unwrap();
    for (t, at_least) in acknowledged.iter().enumerate() {
        let key = (t as u64).to_be_bytes();
        let number =
            |v: Option<kingtide::PinnedValue>| v.map_or(0, |v| u64::from_be_bytes(v.to_vec()[..8].try_into().unwrap()));
        let n = number(ro.get(key).unwrap());
        assert!(n >= *at_least, "thread {t}: {n}, but {at_least} was acknowledged before");
        assert_eq!(n, number(other.get(key).unwrap()), "a batch is torn");
        for back in 0..n.min(20) {
            let sub = [key, ((n - back) % 500).to_be_bytes()].concat();
            assert_eq!(number(ro.get(sub).unwrap()), n - back, "thread {t}");
        }
    }
}

#[test]
fn a_torn_tail_is_read_as_recovery_reads_it_and_stays() {
    let cuts = if kingtide_testkit::full() { 400 } else { 60 };
    let fs = MemFs::new();
    let mut rng = Rng::new(4);
    let db = Db::open("db", options_on(&fs, true)).unwrap();
    let mut torn = 0;
    for cut in 0..cuts {
        write(&db, &mut rng, 40);
        if rng.one_in(4) {
            db.sync().unwrap();
        }
        if rng.one_in(10) {
            db.flush().unwrap();
        }
        let disk = fs.crash_clone(Survival::ALL[cut % 4], &mut rng);
        let (before, ops) = (bytes(&disk), disk.write_ops());
        let seen = content(&reader(&disk));
        assert!(bytes(&disk) == before && disk.write_ops() == ops, "cut {cut}: no byte changed");
        let recovered = Db::open("db", options_on(&disk, true)).unwrap();
        assert_eq!(seen, content(&recovered), "cut {cut}");
        torn += usize::from(recovered.latest_sequence() < db.latest_sequence());
    }
    assert!(torn > 5, "{torn}");
}

#[test]
fn damage_a_lost_manifest_and_another_database_are_errors() {
    let fs = MemFs::new();
    let mut rng = Rng::new(5);
    let db = Db::open("db", options_on(&fs, true)).unwrap();
    write(&db, &mut rng, 2000);
    db.flush().unwrap();
    db.checkpoint("copy").unwrap();
    let ro = reader(&fs);
    let expected = content(&ro);
    for name in fs.list(Path::new("db")).unwrap() {
        let disk = fs.kill_clone();
        let path = Path::new("db").join(&name);
        if name.ends_with(".klog") || name.ends_with(".vlog") || name.starts_with("MANIFEST") {
            disk.remove(&path).unwrap();
            let e = Db::open_read_only("db", options_on(&disk, false)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
            assert!(e.to_string().contains(&name), "{e}");
        }
    }
    drop(db);
    for name in fs.list(Path::new("db")).unwrap() {
        fs.remove(&Path::new("db").join(name)).unwrap();
    }
    assert_eq!(content(&ro), expected, "what is open stays readable");
    assert!(ro.try_catch_up().is_err());
    for name in fs.list(Path::new("copy")).unwrap() {
        fs.rename(&Path::new("copy").join(&name), &Path::new("db").join(&name)).unwrap();
    }
    assert_eq!(ro.try_catch_up().unwrap_err().kind(), ErrorKind::Incompatible);
    assert_eq!(content(&ro), expected);
}

/// A writer in another process, on a real disk, at full speed: what it acknowledged is there.
#[test]
fn beside_another_process_everything_acknowledged_is_seen() {
    let rounds = if kingtide_testkit::full() { 500 } else { 40 };
    let dir = Scratch::new("read-only");
    let mut child = spawn(&test_name!("child"), &dir.0, 1, "write");
    let mut pipe = child.stdout.take().unwrap();
    let output = Arc::new(Mutex::new(Vec::new()));
    let keep = output.clone();
    let listener = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(n) = pipe.read(&mut piece) {
            if n == 0 {
                break;
            }
            keep.lock().unwrap().extend_from_slice(&piece[..n]);
        }
    });
    let acknowledged = || parse(&output.lock().unwrap()).map(|(_, n)| n).max().unwrap_or(0);
    while acknowledged() == 0 {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let open = || Db::open_read_only(dir.0.join("db"), small(Options::default())).unwrap();
    let follower = open();
    for round in 0..rounds {
        let before = [acknowledged()];
        if round % 4 == 0 {
            check_rounds(&open(), &before);
        } else {
            follower.try_catch_up().unwrap();
            check_rounds(&follower, &before);
        }
    }
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    listener.join().unwrap();
    follower.try_catch_up().unwrap();
    check_rounds(&follower, &[acknowledged()]);
}

#[test]
#[ignore = "the other process of the test above"]
fn child() {
    let dir = std::env::var_os(DIR).unwrap();
    let db = Db::open(Path::new(&dir).join("db"), small(Options::default())).unwrap();
    let other = db.create_family("other", FamilyOptions::default()).unwrap();
    let out = Mutex::new(std::io::stdout());
    out.lock().unwrap().write_all(BEGIN).unwrap();
    for n in 1.. {
        put_round(&db, &other, 0, n);
        acknowledge(&out, 0, n);
    }
}
