//! Checkpoints: the copy is the database as of one moment, whatever goes on meanwhile and whenever it is cut short.

use super::whole_contents::content;
use kingtide::vfs::{Boundary, Fault, FaultFs, Fs, MemFs, Op, Rule, Survival, WriteOp};
use kingtide::{Db, Durability, ErrorKind, FamilyOptions, Isolation, Options, WriteBatch, WriteOptions};
use kingtide_base::rng::Rng;
use kingtide_testkit::RaiseOnDrop;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

fn options_on(fs: Arc<dyn Fs>, manual: bool) -> Options {
    let mut options = Options::new().fs(fs).manual_jobs(manual);
    for (name, value) in [("wal_segment_size", "65536"), ("memtable_size", "65536"), ("value_threshold", "512")] {
        options.set(name, value).unwrap();
    }
    options
}

fn open(fs: &MemFs, dir: &str) -> Db {
    Db::open(dir, options_on(Arc::new(fs.clone()), true)).unwrap()
}

fn value(rng: &mut Rng) -> Vec<u8> {
    let len = if rng.one_in(8) { 700 + rng.below(2000) } else { rng.below(60) };
    let mut v = vec![0; len as usize];
    rng.fill(&mut v);
    v
}

/// Some of everything: two families, tables on two levels, value logs, memtables, unlogged commits, tombstones.
fn fill(db: &Db, rng: &mut Rng, rounds: usize) {
    let other = db.family("other").or_else(|_| db.create_family("other", FamilyOptions::default())).unwrap();
    for round in 0..rounds {
        for _ in 0..100 {
            let key = rng.below(500).to_be_bytes();
            match rng.below(10) {
                0 => {
                    db.delete(key).unwrap();
                }
                1 => {
                    other.delete(key).unwrap();
                }
                2 => {
                    other.put(key, value(rng)).unwrap();
                }
                3 => {
                    let mut b = WriteBatch::new();
                    b.put(db.default_family(), &key, &value(rng)).unwrap();
                    let unlogged = WriteOptions::new().durability(Durability::None);
                    db.write_with(&mut b, &unlogged).unwrap();
                }
                4 if rng.one_in(10) => {
                    let from = rng.below(490);
                    db.delete_range(from.to_be_bytes()..(from + 10).to_be_bytes()).unwrap();
                }
                _ => {
                    db.put(key, value(rng)).unwrap();
                }
            }
        }
        match round % 4 {
            1 => db.flush().unwrap(),
            2 => while db.run_one_job().unwrap() {},
            _ => {}
        }
    }
}

#[test]
fn a_checkpoint_holds_what_was_visible_and_goes_its_own_way() {
    let fs = MemFs::new();
    let db = open(&fs, "db");
    let mut rng = Rng::new(1);
    let mut last = None;
    for n in 0..6 {
        fill(&db, &mut rng, 5);
        let expected = content(&db);
        let dir = format!("copies/{n}");
        let info = db.checkpoint(&dir).unwrap();
        assert_eq!(info.sequence, db.latest_sequence());
        assert!(info.linked_files > 0 && info.copied_files == 0, "{info:?}");
        let copy = open(&fs, &dir);
        assert_eq!(copy.latest_sequence(), info.sequence);
        assert_eq!(content(&copy), expected, "checkpoint {n}");
        fill(&copy, &mut rng, 3);
        copy.compact().unwrap();
        let changed = content(&copy);
        drop(copy);
        assert_eq!(content(&open(&fs, &dir)), changed, "it is a database like any other");
        assert_eq!(content(&db), expected, "what is done to the copy does not touch the database");
        assert_eq!(db.checkpoint(&dir).unwrap_err().kind(), ErrorKind::Exists);
        last = Some((dir, changed));
    }
    db.compact().unwrap();
    drop(db);
    let (dir, changed) = last.unwrap();
    assert_eq!(content(&open(&fs, &dir)), changed, "merges of the database do not touch the copy");
}

#[test]
fn an_empty_database_and_a_closed_one() {
    let fs = MemFs::new();
    let db = open(&fs, "db");
    assert_eq!(db.checkpoint("a").unwrap().sequence, 0);
    let copy = open(&fs, "a");
    copy.put(b"k", b"v").unwrap();
    drop(copy);
    assert_eq!(open(&fs, "a").get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    db.close().unwrap();
    assert_eq!(db.checkpoint("b").unwrap_err().kind(), ErrorKind::Closed);
    assert!(!fs.exists(Path::new("b")).unwrap());
}

#[test]
fn transactions_in_doubt_are_in_doubt_in_the_copy() {
    let fs = MemFs::new();
    let db = open(&fs, "db");
    let mut rng = Rng::new(3);
    fill(&db, &mut rng, 2);
    for xid in [b"one", b"two", b"six"] {
        let mut txn = db.begin(Isolation::Serializable).unwrap();
        txn.put(db.default_family(), xid, b"prepared").unwrap();
        txn.prepare(xid).unwrap();
        fill_plain(&db, &mut rng);
    }
    db.rollback_prepared(b"two").unwrap();
    db.flush().unwrap();
    let (expected, in_doubt) = (content(&db), db.recover_prepared());
    assert_eq!(in_doubt.len(), 2);
    db.checkpoint("copy").unwrap();
    db.commit_prepared(b"one").unwrap();
    let copy = open(&fs, "copy");
    assert_eq!((content(&copy), copy.recover_prepared()), (expected, in_doubt));
    copy.commit_prepared(b"six").unwrap();
    copy.rollback_prepared(b"one").unwrap();
    drop(copy);
    let copy = open(&fs, "copy");
    assert_eq!(copy.get(b"six").unwrap().as_deref(), Some(&b"prepared"[..]));
    assert!(copy.get(b"one").unwrap().is_none() && copy.recover_prepared().is_empty());
}

fn fill_plain(db: &Db, rng: &mut Rng) {
    (0..200u64).for_each(|i| {
        db.put((1000 + i).to_be_bytes(), value(rng)).unwrap();
    });
}

/// Four threads write batches over two families; a batch's sequence number says which commits a checkpoint must hold.
#[test]
fn under_four_writers_it_is_the_commits_up_to_its_number() {
    let rounds = if kingtide_testkit::full() { 60 } else { 8 };
    let fs = MemFs::new();
    let db = Db::open("db", options_on(Arc::new(fs.clone()), false)).unwrap();
    let other = db.create_family("other", FamilyOptions::default()).unwrap();
    let stop = AtomicBool::new(false);
    type Commit = (u64, Vec<u8>, Vec<u8>);
    let log: Mutex<Vec<Commit>> = Mutex::new(Vec::new());
    let mut taken = Vec::new();
    std::thread::scope(|s| {
        let end = RaiseOnDrop(&stop);
        for t in 0..4 {
            let (db, other, stop, log) = (&db, &other, &stop, &log);
            s.spawn(move || {
                let mut rng = Rng::new(t);
                while !stop.load(Ordering::Relaxed) {
                    let (key, v) = (rng.below(300).to_be_bytes().to_vec(), value(&mut rng));
                    let mut b = WriteBatch::new();
                    b.put(db.default_family(), &key, &v).unwrap();
                    b.put(other, &key, &v).unwrap();
                    let durability = [Durability::Process, Durability::None][rng.below(2) as usize];
                    let how = WriteOptions::new().durability(durability);
                    let seq = db.write_with(&mut b, &how).unwrap();
                    log.lock().unwrap().push((seq, key, v));
                }
            });
        }
        for n in 0..rounds {
            let info = db.checkpoint(format!("copy{n}")).unwrap();
            taken.push(info.sequence);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        drop(end);
    });
    let mut log = log.into_inner().unwrap();
    log.sort();
    for (n, sequence) in taken.iter().enumerate() {
        let commits = log.iter().filter(|(seq, ..)| seq <= sequence);
        let expected: BTreeMap<Vec<u8>, Vec<u8>> = commits.map(|(_, k, v)| (k.clone(), v.clone())).collect();
        let found = content(&open(&fs, &format!("copy{n}")));
        assert!(found["default"] == expected && found["other"] == expected, "checkpoint {n} at {sequence}");
    }
}

/// The machine stops before each write operation of a checkpoint, in every way: the database is unharmed, the copy is
/// whole or refused, and a second try to the same place succeeds.
#[test]
fn a_power_cut_at_any_point_leaves_the_copy_whole_or_refused() {
    let fs = MemFs::new();
    let db = open(&fs, "db");
    let mut rng = Rng::new(7);
    fill(&db, &mut rng, 6);
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put(db.default_family(), b"x", b"y").unwrap();
    txn.prepare(b"in doubt").unwrap();
    db.flush().unwrap();
    fill_plain(&db, &mut rng);
    db.sync().unwrap();
    let expected = content(&db);
    let cuts = Arc::new(Mutex::new(Vec::new()));
    let keep = cuts.clone();
    let every = if kingtide_testkit::full() { 1 } else { 4 };
    fs.on_write(Some(Box::new(move |b: &Boundary<'_>| {
        if !matches!(b.op, WriteOp::Write | WriteOp::Record) || b.number.is_multiple_of(every) {
            keep.lock().unwrap().push(b.kill_clone());
        }
    })));
    db.checkpoint("copy").unwrap();
    fs.on_write(None);
    let cuts = std::mem::take(&mut *cuts.lock().unwrap());
    assert!(cuts.len() > 20, "{}", cuts.len());
    let (mut whole, mut refused) = (0, 0);
    for (i, cut) in cuts.iter().enumerate() {
        let model = Survival::ALL[i % 4];
        let disk = cut.crash_clone(model, &mut Rng::new(i as u64));
        let again = open(&disk, "db");
        assert_eq!(content(&again), expected, "cut {i} {model:?}: the database");
        assert_eq!(again.recover_prepared().len(), 1);
        match Db::open("copy", options_on(Arc::new(disk.clone()), true)) {
            Ok(copy) if copy.latest_sequence() == 0 => {
                assert!(i < 8, "cut {i}: a database where there should be none")
            }
            Ok(copy) => {
                assert_eq!(content(&copy), expected, "cut {i} {model:?}: the copy");
                assert_eq!(copy.recover_prepared().len(), 1);
                whole += 1;
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                refused += 1;
                again.checkpoint("copy").unwrap_or_else(|e| panic!("cut {i} {model:?}: {e}"));
                assert_eq!(content(&open(&disk, "copy")), expected, "cut {i} {model:?}: the second try");
            }
        }
    }
    assert!(whole > 0 && refused > 10, "{whole} whole, {refused} refused");
}

#[test]
fn where_files_cannot_be_linked_they_are_copied_and_failures_leave_nothing() {
    let fs = MemFs::new();
    let faulty = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
    let db = Db::open("db", options_on(faulty.clone(), true)).unwrap();
    let mut rng = Rng::new(9);
    fill(&db, &mut rng, 6);
    db.flush().unwrap();
    let expected = content(&db);
    for kind in [".klog", ".vlog"] {
        faulty.add(Rule::new(Op::Rename, Fault::Eio).path(kind).sticky());
    }
    let info = db.checkpoint("copy").unwrap();
    assert!(info.linked_files == 0 && info.copied_files > 0 && info.copied_bytes > 1000, "{info:?}");
    assert_eq!(content(&open(&fs, "copy")), expected);
    faulty.clear();
    fs.create_dir_all(Path::new("full")).unwrap();
    fs.open(Path::new("full/notes.txt"), kingtide::vfs::OpenMode::Create).unwrap();
    assert_eq!(db.checkpoint("full").unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(db.checkpoint("db").unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(fs.list(Path::new("full")).unwrap(), ["notes.txt"]);
}

fn remove_all(fs: &MemFs, dir: &Path) {
    for name in fs.list(dir).unwrap_or_default() {
        let path = dir.join(name);
        if fs.remove(&path).is_err() {
            remove_all(fs, &path);
        }
    }
    let _ = fs.remove_dir(dir);
}

/// Nor a directory, unless it was there before.
#[test]
fn a_copy_that_fails_leaves_no_directory() {
    use kingtide::backup::{Backup, BackupOptions};
    let fs = MemFs::new();
    let faulty = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
    let shared: Arc<dyn Fs> = faulty.clone();
    let db = Db::open("db", options_on(shared.clone(), true)).unwrap();
    fill(&db, &mut Rng::new(9), 2);
    db.flush().unwrap();
    let earlier = Backup::on(shared.clone(), "earlier");
    let id = earlier.create(&db, BackupOptions::new()).unwrap().id;
    fill_plain(&db, &mut Rng::new(9)); // so that a copy writes tables of its own
    let (root, place) = (Path::new(""), Path::new("copies/of/it"));
    let kinds: [(&str, &dyn Fn() -> kingtide::Result<()>); 4] = [
        ("checkpoint", &|| db.checkpoint(place).map(drop)),
        ("export", &|| db.default_family().export(place).map(drop)),
        ("backup", &|| Backup::on(shared.clone(), place).create(&db, BackupOptions::new().flush(false)).map(drop)),
        ("restore", &|| earlier.restore_to(id, &shared, place, BackupOptions::new())),
    ];
    let before = fs.list(root).unwrap();
    let mut failed = 0;
    for (what, copy) in kinds {
        for (op, exists) in [Op::Open, Op::Write, Op::Sync].into_iter().flat_map(|op| [(op, false), (op, true)]) {
            for nth in 1.. {
                if exists {
                    fs.create_dir_all(place).unwrap();
                }
                faulty.add(Rule::new(op, Fault::Enospc).path("copies").nth(nth));
                let copied = copy();
                faulty.clear();
                if copied.is_ok() {
                    remove_all(&fs, Path::new("copies"));
                    break;
                }
                failed += 1;
                match exists {
                    true => assert!(fs.list(place).unwrap().is_empty(), "{what}, {op:?} {nth}: {:?}", fs.list(place)),
                    false => assert_eq!(fs.list(root).unwrap(), before, "{what}, {op:?} {nth}"),
                }
            }
        }
    }
    assert!(failed > 50, "{failed}");
}

/// The names of all files in a directory and those below it.
#[cfg(unix)]
fn files_below(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        found.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            found.extend(files_below(&entry.path()));
        }
    }
    found.sort();
    found
}

/// However the path is written. The database could take the copy's files for its own, and they would be lost with its directory.
#[cfg(unix)]
#[test]
fn no_copy_is_made_inside_the_database() {
    use kingtide::backup::{Backup, BackupOptions};
    let scratch = kingtide_testkit::Scratch::new("copy-inside");
    let (dir, link) = (scratch.0.join("db"), scratch.0.join("link"));
    let options = Options::new().manual_jobs(true);
    let mut db = Db::open(&dir, options.clone()).unwrap();
    db.put("key", "value").unwrap();
    db.flush().unwrap();
    std::fs::create_dir_all(dir.join("sub/deep")).unwrap();
    std::fs::create_dir(scratch.0.join("beside")).unwrap();
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    std::os::unix::fs::symlink(dir.join("sub"), scratch.0.join("sub")).unwrap();
    let before = files_below(&dir);
    #[rustfmt::skip]
    let inside = [
        "db/new", "db/sub", "db/sub/new", "db/sub/deep", "beside/../db/new", "link/new", "link/sub", "sub", "sub/new",
        "missing/../db/new", "missing/parts/../../db/sub", "db/missing/../new", "missing/../link/new",
    ];
    for path in inside {
        let to = scratch.0.join(path);
        let refused = |what: &str, e: kingtide::Error| {
            let text = format!("{what} to {path}: {e}");
            assert!(
                e.kind() == ErrorKind::InvalidArgument && e.message().contains("inside the database's own directory"),
                "{text}"
            );
            assert!(e.path() == Some(&to), "{text}");
        };
        refused("checkpoint", db.checkpoint(&to).unwrap_err());
        refused("export", db.default_family().export(&to).unwrap_err());
        refused("backup", Backup::at(&to).create(&db, BackupOptions::new()).unwrap_err());
        db.close().unwrap();
        let closed = files_below(&dir);
        refused("repair", kingtide::repair(&dir, &to, &options).unwrap_err());
        refused("repair by a link", kingtide::repair(&link, &to, &options).unwrap_err());
        assert_eq!(files_below(&dir), closed);
        db = Db::open(&dir, options.clone()).unwrap();
    }
    let e = Backup::at(&dir).create(&db, BackupOptions::new()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    let subdirectories = |files: Vec<std::path::PathBuf>| files.into_iter().filter(|f| f.is_dir()).collect::<Vec<_>>();
    assert_eq!(subdirectories(files_below(&dir)), subdirectories(before), "nothing was made");
    assert!(!scratch.0.join("missing").exists());
    // Copies beside and above the database are still allowed.
    for path in ["db2", "beside", "db/../beside2", "link/../beside3", "absent/../beside4"] {
        db.checkpoint(scratch.0.join(path)).unwrap();
    }
    Backup::at(&scratch.0).create(&db, BackupOptions::new()).unwrap();
}
