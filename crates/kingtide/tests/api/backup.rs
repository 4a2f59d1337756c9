//! Backups: incremental, checked, restorable, and safe from being cut short.

use super::whole_contents::content;
use kingtide::backup::{Backup, BackupOptions, BackupProgress};
use kingtide::vfs::{Boundary, Fault, FaultFs, Fs, MemFs, Op, OpenMode, Rule, Survival, WriteOp};
use kingtide::{Compression, Db, ErrorKind, FamilyOptions, Isolation, Options};
use kingtide_base::rng::Rng;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

fn open_on(fs: &MemFs, dir: &str) -> kingtide::Result<Db> {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    let mut options = Options::new().fs(fs).manual_jobs(true);
    for (name, value) in [("wal_segment_size", "65536"), ("memtable_size", "65536"), ("value_threshold", "512")] {
        options.set(name, value).unwrap();
    }
    Db::open(dir, options)
}

/// With tables whose lengths do not depend on what is in them.
fn open_uncompressed(fs: &MemFs, dir: &str) -> Db {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    let mut options = Options::new().fs(fs).manual_jobs(true);
    for (name, value) in [("wal_segment_size", "65536"), ("memtable_size", "65536"), ("value_threshold", "512")] {
        options.set(name, value).unwrap();
    }
    options.family.compression = Compression::None;
    Db::open(dir, options).unwrap()
}

fn open(fs: &MemFs, dir: &str) -> Db {
    open_on(fs, dir).unwrap()
}

fn write(db: &Db, rng: &mut Rng, n: usize) {
    let other = db.family("other").or_else(|_| db.create_family("other", FamilyOptions::default())).unwrap();
    for _ in 0..n {
        let key = rng.below(2000).to_be_bytes();
        let mut value = vec![0; (if rng.one_in(6) { 600 + rng.below(1000) } else { rng.below(80) }) as usize];
        rng.fill(&mut value);
        match rng.below(8) {
            0 => db.delete(key).unwrap(),
            1 => other.put(key, value).unwrap(),
            _ => db.put(key, value).unwrap(),
        };
    }
}

fn pool_bytes(fs: &MemFs) -> u64 {
    let pool = Path::new("backups/pool");
    let names = fs.list(pool).unwrap();
    names.iter().map(|n| fs.open(&pool.join(n), OpenMode::Read).unwrap().len().unwrap()).sum()
}

fn flip(fs: &MemFs, path: &Path, at: u64) {
    let file = fs.open(path, OpenMode::Write).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_at(&[byte[0] ^ 0x10], at).unwrap();
}

#[test]
fn later_backups_store_little_and_every_one_can_be_restored() {
    let (fs, vault) = (MemFs::new(), MemFs::new());
    let shared: Arc<dyn Fs> = Arc::new(vault.clone());
    let backup = Backup::on(shared.clone(), "backups");
    assert!(backup.list().unwrap().is_empty());
    assert_eq!(backup.purge(0).unwrap(), 0);
    assert_eq!(backup.delete(1).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!vault.exists(Path::new("backups")).unwrap(), "the first backup makes it");
    let db = open(&fs, "db");
    let mut rng = Rng::new(1);
    write(&db, &mut rng, 8000);
    db.compact().unwrap();
    let mut expected = Vec::new();
    for round in 0..5 {
        if round > 0 {
            write(&db, &mut rng, 100);
        }
        let (before, trust_names, flush) =
            (expected.last().map_or(0, |_| pool_bytes(&vault)), round % 2 == 1, round != 3);
        let mut read = 0;
        let mut told = |p: BackupProgress| {
            assert!(p.done_bytes <= p.total_bytes);
            read = p.done_bytes;
            ControlFlow::Continue(())
        };
        let options = BackupOptions::new().trust_names(trust_names).flush(flush).progress(&mut told);
        let info = backup.create(&db, options).unwrap();
        assert_eq!((info.id, info.sequence), (round + 1, db.latest_sequence()));
        assert_eq!(pool_bytes(&vault) - before, info.new_bytes);
        if round > 0 {
            assert!(info.new_bytes * 10 < info.bytes, "{info:?}");
            assert!(!trust_names || read * 10 < info.bytes, "read {read} of {info:?}");
        }
        expected.push(content(&db));
    }
    assert_eq!(backup.ids().unwrap(), [1, 2, 3, 4, 5]);
    for info in backup.list().unwrap() {
        backup.verify(info.id, BackupOptions::default()).unwrap();
        let target = MemFs::new();
        let target_fs: Arc<dyn Fs> = Arc::new(target.clone());
        backup.restore_to(info.id, &target_fs, "restored", BackupOptions::default()).unwrap();
        let e = backup.restore_to(info.id, &target_fs, "restored", BackupOptions::default()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Exists);
        let restored = open(&target.crash_clone(Survival::AllLost, &mut rng), "restored");
        assert_eq!(restored.latest_sequence(), info.sequence);
        assert_eq!(content(&restored), expected[info.id as usize - 1], "backup {}", info.id);
    }
    for inside in ["backups/pool/new", "backups/new", "missing/../backups/new"] {
        let e = backup.restore_to(1, &shared, inside, BackupOptions::default()).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("directory of backups"), "{e}");
    }
    assert_eq!(
        backup.restore_to(1, &shared, "backups", BackupOptions::default()).unwrap_err().kind(),
        ErrorKind::Exists
    );
    assert!(!vault.exists(Path::new("backups/new")).unwrap() && !vault.exists(Path::new("missing")).unwrap());
    backup.delete(3).unwrap();
    assert_eq!(backup.delete(3).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(backup.purge(2).unwrap(), 2);
    assert_eq!(backup.ids().unwrap(), [4, 5]);
    let held: u64 = pool_bytes(&vault);
    let (last, all) = (backup.info(5).unwrap().bytes, backup.info(4).unwrap().bytes + backup.info(5).unwrap().bytes);
    assert!(last <= held && held < all, "{held} bytes in the pool, {last} of the last backup");
    [4, 5].iter().for_each(|id| backup.verify(*id, BackupOptions::default()).unwrap());
    backup.purge(0).unwrap();
    assert_eq!(pool_bytes(&vault), 0);
}

#[test]
fn a_restored_database_is_backed_up_to_the_same_place_and_nothing_is_mixed_up() {
    let fs = MemFs::new();
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let backup = Backup::on(shared.clone(), "backups");
    let mut rng = Rng::new(2);
    let db = open(&fs, "db");
    write(&db, &mut rng, 3000);
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put(db.default_family(), b"x", b"y").unwrap();
    txn.prepare(b"in doubt").unwrap();
    backup.create(&db, BackupOptions::default()).unwrap();
    backup.restore_to(1, &shared, "twin", BackupOptions::default()).unwrap();
    let twin = open(&fs, "twin");
    assert_eq!((content(&twin), twin.recover_prepared()), (content(&db), db.recover_prepared()));
    // From here both give the same numbers to different files.
    let mut expected = Vec::new();
    for _ in 0..3 {
        for db in [&db, &twin] {
            write(db, &mut rng, 300);
            let options = BackupOptions::new().trust_names(true);
            backup.create(db, options).unwrap();
            expected.push(content(db));
        }
        db.compact().unwrap();
        twin.compact().unwrap();
    }
    for (i, expected) in expected.iter().enumerate() {
        let dir = format!("restored{i}");
        backup.restore_to(i as u64 + 2, &shared, &dir, BackupOptions::default()).unwrap();
        assert_eq!(content(&open(&fs, &dir)), *expected, "backup {}", i + 2);
    }
}

/// Tables and value logs of a database: lengths and names.
fn immutable(fs: &MemFs, dir: &str) -> Vec<(u64, String)> {
    let names = fs.list(Path::new(dir)).unwrap().into_iter();
    let names = names.filter(|n| n.ends_with(".klog") || n.ends_with(".vlog"));
    names.map(|n| (fs.open(&Path::new(dir).join(&n), OpenMode::Read).unwrap().len().unwrap(), n)).collect()
}

/// A backup that trusts names: it does not read what an earlier one took from the same database.
fn create_trusting(backup: &Backup, db: &Db, flush: bool) -> u64 {
    backup.create(db, BackupOptions::new().trust_names(true).flush(flush)).unwrap().id
}

/// Two databases that were restored from one backup give the same numbers to different files, as after a restore that is made
/// again because the first one went wrong.
#[test]
fn databases_that_are_restored_from_one_backup_are_told_apart() {
    let fs = MemFs::new();
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let backup = Backup::on(shared.clone(), "backups");
    let db = open(&fs, "db");
    write(&db, &mut Rng::new(6), 500);
    backup.create(&db, BackupOptions::default()).unwrap();
    let (mut expected, mut files) = (Vec::new(), Vec::new());
    for (dir, seed) in [("one", 1), ("other", 2)] {
        backup.restore_to(1, &shared, dir, BackupOptions::default()).unwrap();
        let (twin, mut rng) = (open_uncompressed(&fs, dir), Rng::new(seed));
        for i in 0..100u32 {
            let mut value = [0; 30];
            rng.fill(&mut value);
            twin.put(i.to_be_bytes(), value).unwrap();
        }
        twin.flush().unwrap();
        create_trusting(&backup, &twin, true);
        expected.push(content(&twin));
        files.push(immutable(&fs, dir));
    }
    assert!(files[0] == files[1], "names and lengths differ: {files:?}");
    for (i, expected) in expected.iter().enumerate() {
        let dir = format!("restored{i}");
        backup.restore_to(i as u64 + 2, &shared, &dir, BackupOptions::default()).unwrap();
        assert_eq!(content(&open(&fs, &dir)), *expected, "backup {}", i + 2);
    }
}

/// A backup writes memtables into tables of its own. After a kill the database gives their numbers to other tables.
#[test]
fn what_a_backup_wrote_itself_is_not_taken_for_a_file_of_the_database() {
    let fs = MemFs::new();
    let db = open(&fs, "db");
    let names = ["default", "b", "c", "d"];
    names[1..].iter().for_each(|n| drop(db.create_family(n, FamilyOptions::default()).unwrap()));
    let fill = |db: &Db, seed: u64| {
        let mut rng = Rng::new(seed);
        for name in names {
            let family = db.family(name).unwrap();
            for i in 0..100u32 {
                let mut value = [0; 30];
                rng.fill(&mut value);
                family.put(i.to_be_bytes(), value).unwrap();
            }
        }
    };
    fill(&db, 1);
    db.flush().unwrap();
    fill(&db, 2);
    create_trusting(&Backup::on(Arc::new(fs.clone()), "backups"), &db, false);
    let killed = fs.crash_clone(Survival::AllKept, &mut Rng::new(1));
    let (mut same, known) = (0, immutable(&killed, "db"));
    for flushes in 0..8 {
        let disk = killed.crash_clone(Survival::AllKept, &mut Rng::new(1));
        let shared: Arc<dyn Fs> = Arc::new(disk.clone());
        let backup = Backup::on(shared.clone(), "backups");
        let db = open(&disk, "db");
        let padding = db.create_family("padding", FamilyOptions::default()).unwrap();
        for _ in 0..flushes {
            padding.put("key", "value").unwrap();
            padding.flush().unwrap();
        }
        fill(&db, 3);
        db.flush().unwrap();
        let pool = disk.list(Path::new("backups/pool")).unwrap();
        let in_pool = |(len, name): &(u64, String)| pool.iter().any(|p| p.ends_with(&format!("-{len}-{name}")));
        same += immutable(&disk, "db").iter().filter(|f| !known.contains(f) && in_pool(f)).count();
        let id = create_trusting(&backup, &db, true);
        backup.restore_to(id, &shared, "restored", BackupOptions::default()).unwrap();
        assert_eq!(content(&open(&disk, "restored")), content(&db), "after {flushes} flushes");
    }
    assert!(same > 0, "no table of the database has name and length of one that the backup wrote");
}

/// What else lies among the manifests is no backup and keeps none from being listed and deleted.
#[test]
fn other_files_among_the_manifests_are_no_backups() {
    let fs = MemFs::new();
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let backup = Backup::on(shared.clone(), "backups");
    let db = open(&fs, "db");
    db.put("ebb", "low").unwrap();
    backup.create(&db, BackupOptions::default()).unwrap();
    let put = |name: &str| drop(fs.open(&Path::new("backups/backups").join(name), OpenMode::Create).unwrap());
    ["7.backup", "+00008.backup", "0000009.backup", "x.backup"].iter().for_each(|n| put(n));
    assert_eq!(backup.list().unwrap().len(), 1);
    assert_eq!(backup.create(&db, BackupOptions::default()).unwrap().id, 2);
    assert_eq!(backup.purge(1).unwrap(), 1);
    put(&format!("{}.backup", u64::MAX));
    let e = backup.create(&db, BackupOptions::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    backup.delete(u64::MAX).unwrap();
    assert_eq!(backup.create(&db, BackupOptions::default()).unwrap().id, 3);
}

/// Name and length of a file say nothing about what is in it: two databases wrote the same keys, and values of one length.
#[test]
fn files_of_one_name_and_length_are_told_apart_by_their_contents() {
    let fs = MemFs::new();
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let backup = Backup::on(shared.clone(), "backups");
    let mut expected = Vec::new();
    let mut files = Vec::new();
    for (dir, seed) in [("one", 1), ("other", 2)] {
        let db = open_uncompressed(&fs, dir);
        let mut rng = Rng::new(seed);
        for i in 0..100u32 {
            let mut value = vec![0; if i % 10 == 0 { 800 } else { 30 }];
            rng.fill(&mut value);
            db.put(i.to_be_bytes(), value).unwrap();
        }
        db.flush().unwrap();
        backup.create(&db, BackupOptions::default()).unwrap();
        expected.push(content(&db));
        files.push(immutable(&fs, dir));
    }
    assert!(files[0] == files[1] && files[0].len() == 2, "names and lengths differ: {files:?}");
    for (i, expected) in expected.iter().enumerate() {
        let dir = format!("restored{i}");
        backup.restore_to(i as u64 + 1, &shared, &dir, BackupOptions::default()).unwrap();
        assert_eq!(content(&open(&fs, &dir)), *expected, "backup {}", i + 1);
    }
}

#[test]
fn damage_is_found_and_not_restored() {
    let fs = MemFs::new();
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let backup = Backup::on(shared.clone(), "backups");
    let mut rng = Rng::new(3);
    let db = open(&fs, "db");
    write(&db, &mut rng, 2000);
    backup.create(&db, BackupOptions::default()).unwrap();
    let pool = PathBuf::from("backups/pool");
    for name in fs.list(&pool).unwrap() {
        let path = pool.join(&name);
        let len = fs.open(&path, OpenMode::Read).unwrap().len().unwrap();
        let at = rng.below(len);
        flip(&fs, &path, at);
        let refused = |what: &str| {
            for e in [
                backup.verify(1, BackupOptions::default()).unwrap_err(),
                backup.restore_to(1, &shared, "restored", BackupOptions::default()).unwrap_err(),
            ] {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{what} {name}: {e}");
                assert!(e.to_string().contains(&name), "{e}");
            }
            assert!(!fs.exists(Path::new("restored")).unwrap(), "what was copied is removed");
        };
        refused("a bit of");
        flip(&fs, &path, at);
        fs.rename(&path, Path::new("backups/elsewhere")).unwrap();
        refused("all of");
        fs.rename(Path::new("backups/elsewhere"), &path).unwrap();
    }
    backup.verify(1, BackupOptions::default()).unwrap();
    // A damaged manifest: nothing of the pool is removed on its account, and it can be deleted.
    backup.create(&db, BackupOptions::default()).unwrap();
    flip(&fs, Path::new("backups/backups/000001.backup"), 30);
    assert_eq!(backup.info(1).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(backup.list().unwrap_err().kind(), ErrorKind::Corruption);
    let before = pool_bytes(&fs);
    backup.create(&db, BackupOptions::default()).unwrap();
    assert_eq!(backup.delete(2).unwrap_err().kind(), ErrorKind::Corruption);
    assert!(pool_bytes(&fs) >= before);
    assert_eq!(backup.ids().unwrap(), [1, 3]);
    backup.delete(1).unwrap();
    backup.verify(3, BackupOptions::default()).unwrap();
    assert_eq!(backup.verify(2, BackupOptions::default()).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn it_can_be_cancelled_and_one_at_a_time_changes_the_directory() {
    let fs = MemFs::new();
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let backup = Backup::on(shared.clone(), "backups");
    let mut rng = Rng::new(4);
    let db = open(&fs, "db");
    write(&db, &mut rng, 2000);
    for stop_after in 0..4 {
        let mut steps = 0;
        let mut told = |_: BackupProgress| {
            steps += 1;
            if steps == 1 {
                let other = Backup::on(shared.clone(), "backups");
                assert_eq!(other.purge(0).unwrap_err().kind(), ErrorKind::Locked);
            }
            if steps > stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let options = BackupOptions::new().progress(&mut told);
        assert_eq!(backup.create(&db, options).unwrap_err().kind(), ErrorKind::Cancelled);
        assert!(backup.ids().unwrap().is_empty());
    }
    backup.create(&db, BackupOptions::default()).unwrap();
    let mut stop = |_: BackupProgress| ControlFlow::Break(());
    let options = BackupOptions::new().progress(&mut stop);
    let e = backup.restore_to(1, &shared, "restored", options).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Cancelled);
    backup.restore_to(1, &shared, "restored", BackupOptions::default()).unwrap();
    assert_eq!(content(&open(&fs, "restored")), content(&db));
}

/// Keeps the disk before the operations of `work` that make a difference, and some of its writes.
fn cuts_of(fs: &MemFs, work: impl FnOnce()) -> Vec<MemFs> {
    let every = if kingtide_testkit::full() { 1 } else { 5 };
    let cuts = Arc::new(Mutex::new(Vec::new()));
    let keep = cuts.clone();
    fs.on_write(Some(Box::new(move |b: &Boundary<'_>| {
        if !matches!(b.op, WriteOp::Write | WriteOp::Record) || b.number.is_multiple_of(every) {
            keep.lock().unwrap().push(b.kill_clone());
        }
    })));
    work();
    fs.on_write(None);
    std::mem::take(&mut *cuts.lock().unwrap())
}

/// A backup whose manifest cannot be read now, for want of descriptors or because a newer build wrote it, keeps its files.
#[test]
fn a_backup_that_cannot_be_read_for_a_while_stays_whole_over_cuts() {
    let fs = MemFs::new();
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let backup = Backup::on(shared, "backups");
    let db = open(&fs, "db");
    write(&db, &mut Rng::new(11), 2000);
    backup.create(&db, BackupOptions::default()).unwrap();
    let manifest = Path::new("backups/backups/000001.backup");
    flip(&fs, manifest, 30);
    let mut cuts = cuts_of(&fs, || assert_eq!(backup.create(&db, BackupOptions::default()).unwrap().id, 2));
    cuts.push(fs);
    for (i, cut) in cuts.iter().enumerate() {
        let backup = Backup::on(Arc::new(cut.clone()), "backups");
        flip(cut, manifest, 30);
        backup.verify(1, BackupOptions::default()).unwrap_or_else(|e| panic!("cut {i}: {e}"));
    }
}

#[test]
fn a_power_cut_at_any_point_leaves_earlier_backups_whole() {
    let fs = MemFs::new();
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let backup = Backup::on(shared.clone(), "backups");
    let mut rng = Rng::new(5);
    let db = open(&fs, "db");
    write(&db, &mut rng, 1500);
    backup.create(&db, BackupOptions::default()).unwrap();
    let first = content(&db);
    write(&db, &mut rng, 300);
    let second = content(&db);
    db.compact().unwrap();
    let cuts = cuts_of(&fs, || assert_eq!(backup.create(&db, BackupOptions::default()).unwrap().id, 2));
    let mut complete = 0;
    for (i, cut) in cuts.iter().flat_map(|cut| [cut; 4]).enumerate() {
        let disk = cut.crash_clone(Survival::ALL[i % 4], &mut Rng::new(i as u64));
        let on: Arc<dyn Fs> = Arc::new(disk.clone());
        let backup = Backup::on(on.clone(), "backups");
        let ids = backup.ids().unwrap();
        assert!(ids == [1] || ids == [1, 2], "cut {i}: {ids:?}");
        complete += ids.len() - 1;
        for id in &ids {
            backup.verify(*id, BackupOptions::default()).unwrap_or_else(|e| panic!("cut {i}, backup {id}: {e}"));
        }
        // The next one succeeds over the remains, and then only what is needed is left.
        let again = open(&disk, "db");
        backup.create(&again, BackupOptions::default()).unwrap();
        let newest = *backup.ids().unwrap().last().unwrap();
        backup.restore_to(newest, &on, "restored", BackupOptions::default()).unwrap();
        assert_eq!(content(&open(&disk, "restored")), second, "cut {i}");
        backup.purge(1).unwrap();
        assert_eq!(pool_bytes(&disk), backup.info(newest).unwrap().bytes, "cut {i}: no remains");
    }
    assert!(complete > 0 && cuts.len() > 20, "{complete} of {}", cuts.len());
    // Deleting, and restoring.
    let cuts = cuts_of(&fs, || backup.delete(2).unwrap());
    let more = cuts_of(&fs, || backup.restore_to(1, &shared, "restored", BackupOptions::default()).unwrap());
    for (i, cut) in cuts.iter().chain(&more).enumerate() {
        let disk = cut.crash_clone(Survival::ALL[i % 4], &mut Rng::new(i as u64));
        let on: Arc<dyn Fs> = Arc::new(disk.clone());
        let backup = Backup::on(on.clone(), "backups");
        for id in backup.ids().unwrap() {
            backup.verify(id, BackupOptions::default()).unwrap_or_else(|e| panic!("cut {i}, backup {id}: {e}"));
        }
        match backup.restore_to(1, &on, "restored", BackupOptions::default()) {
            Err(e) if e.kind() == ErrorKind::Exists => {} // it was complete
            done => done.unwrap(),
        }
        assert_eq!(content(&open(&disk, "restored")), first, "cut {i}");
    }
}

/// The log in a backup, which tells of transactions in doubt, has its length for good. Where a transaction points to values, it has two
/// segments.
#[test]
fn a_power_cut_leaves_a_backup_of_transactions_in_doubt_whole() {
    for staged in [false, true] {
        let disk = MemFs::new();
        let mut options = Options::new().fs(Arc::new(disk.clone())).manual_jobs(true);
        options.tuning.staged_from = 1000;
        let db = Db::open("db", options).unwrap();
        let mut txn = db.begin(Isolation::Snapshot).unwrap();
        txn.put(db.default_family(), b"key", b"value").unwrap();
        if staged {
            let mut writer = db.value_writer().unwrap();
            writer.append(&[7; 5000]).unwrap();
            txn.put_staged(db.default_family(), b"large", &writer.finish().unwrap()).unwrap();
        }
        txn.prepare(b"in doubt").unwrap();
        let backups = Backup::on(Arc::new(disk.clone()), "backups");
        let id = backups.create(&db, BackupOptions::default()).unwrap().id;
        let logs = disk.list(Path::new("backups/pool")).unwrap().iter().filter(|n| n.ends_with(".wal")).count();
        assert_eq!(logs, 1 + usize::from(staged));
        for model in Survival::ALL {
            let found: Arc<dyn Fs> = Arc::new(disk.crash_clone(model, &mut Rng::new(1)));
            let backups = Backup::on(found, "backups");
            backups.verify(id, BackupOptions::default()).unwrap_or_else(|e| panic!("{model:?}, staged {staged}: {e}"));
        }
    }
}

/// A sync of the pool that failed may have forgotten the names of files that a later backup would share.
#[test]
fn a_later_backup_does_not_rely_on_names_that_a_failed_sync_forgot() {
    let mut failures = 0;
    for nth in 1.. {
        let fs = MemFs::new();
        let shared: Arc<dyn Fs> = Arc::new(fs.clone());
        let backup = Backup::on(shared.clone(), "backups");
        let db = open(&fs, "db");
        let mut rng = Rng::new(nth);
        write(&db, &mut rng, 300);
        db.flush().unwrap();
        fs.fail_dir_sync(nth);
        let done = backup.create(&db, BackupOptions::new());
        if done.is_ok() {
            break;
        }
        fs.fail_dir_sync(0);
        failures += 1;
        let what = format!("sync {nth}: {:?}", done.unwrap_err());
        // Another object, as a later request in the same process has.
        let backup = Backup::on(shared, "backups");
        assert_eq!(backup.ids().unwrap(), [0u64; 0], "{what}: the failed backup counts");
        let expected = content(&db);
        let id = backup.create(&db, BackupOptions::new()).unwrap_or_else(|e| panic!("{what}: {e}")).id;
        let cut = fs.crash_clone(Survival::AllLost, &mut rng);
        let left: Arc<dyn Fs> = Arc::new(cut.clone());
        let left_backup = Backup::on(left.clone(), "backups");
        left_backup.verify(id, BackupOptions::new()).unwrap_or_else(|e| panic!("{what}: {e}"));
        left_backup.restore_to(id, &left, "restored", BackupOptions::new()).unwrap();
        assert_eq!(content(&open(&cut, "restored")), expected, "{what}");
    }
    println!("{failures} failed syncs");
    assert!(failures > 5, "only {failures}");
}

/// A damaged file of the pool is not shared by later backups, as far as its size tells; otherwise `verify` names it.
#[test]
fn a_file_of_the_pool_that_lost_its_end_is_replaced_by_the_next_backup() {
    for trust_names in [false, true] {
        let fs = MemFs::new();
        let backup = Backup::on(Arc::new(fs.clone()), "backups");
        let db = open(&fs, "db");
        write(&db, &mut Rng::new(1), 300);
        db.flush().unwrap();
        let options = || BackupOptions::new().trust_names(trust_names);
        let first = backup.create(&db, options()).unwrap().id;
        let pool = Path::new("backups/pool");
        let is_table = |name: &String| name.ends_with(".klog");
        let path = pool.join(fs.list(pool).unwrap().iter().find(|n| is_table(n)).unwrap());
        let file = fs.open(&path, OpenMode::Write).unwrap();
        let size = file.len().unwrap();
        file.truncate(size - 100).unwrap();
        assert_eq!(backup.verify(first, options()).unwrap_err().kind(), ErrorKind::Corruption);
        let second = backup.create(&db, options()).unwrap().id;
        for id in [first, second] {
            backup.verify(id, options()).unwrap_or_else(|e| panic!("backup {id}: {e}"));
        }
        flip(&fs, &path, 100);
        let third = backup.create(&db, options()).unwrap().id;
        let e = backup.verify(third, options()).unwrap_err();
        assert_eq!((e.kind(), e.path()), (ErrorKind::Corruption, Some(&*path)));
    }
}

/// The last step of a copy removes a marker that means nothing any more.
#[test]
fn a_copy_that_is_complete_has_not_failed() {
    let fs = MemFs::new();
    let faults = FaultFs::new(Arc::new(fs.clone()), 1);
    let shared: Arc<dyn Fs> = Arc::new(faults.clone());
    let db = Db::open("db", Options::new().fs(shared.clone()).manual_jobs(true)).unwrap();
    write(&db, &mut Rng::new(12), 100);
    let backup = Backup::on(shared.clone(), "backups");
    backup.create(&db, BackupOptions::default()).unwrap();
    faults.add(Rule::new(Op::Remove, Fault::Eio).path("INCOMPLETE").sticky());
    backup.restore_to(1, &shared, "restored", BackupOptions::default()).unwrap();
    db.checkpoint("copy").unwrap();
    for dir in ["restored", "copy"] {
        assert_eq!(content(&open(&fs, dir)), content(&db), "{dir}");
    }
}

/// What was deleted is not damaged.
#[test]
fn a_backup_that_is_deleted_while_it_is_read_is_not_found() {
    for same_number in [false, true] {
        for restore in [false, true] {
            let fs = MemFs::new();
            let db = open(&fs, "db");
            let backups = Backup::on(Arc::new(fs.clone()), "backups");
            let mut rng = Rng::new(1);
            write(&db, &mut rng, 300);
            let id = backups.create(&db, BackupOptions::new()).unwrap().id;
            let mut deleted = false;
            let mut progress = |_: BackupProgress| {
                if !std::mem::replace(&mut deleted, true) {
                    assert_eq!(backups.purge(0).unwrap(), 1);
                    if same_number {
                        write(&db, &mut rng, 300);
                        db.compact().unwrap();
                        assert_eq!(backups.create(&db, BackupOptions::new()).unwrap().id, id);
                    }
                }
                ControlFlow::Continue(())
            };
            let options = BackupOptions::new().progress(&mut progress);
            let shared: Arc<dyn Fs> = Arc::new(fs.clone());
            let e = match restore {
                true => backups.restore_to(id, &shared, "copy", options).unwrap_err(),
                false => backups.verify(id, options).unwrap_err(),
            };
            assert!(e.kind() == ErrorKind::NotFound && e.to_string().contains("deleted"), "{e}");
        }
    }
}

/// Names are listed first, and manifests are read after that: a backup may be deleted in between.
#[test]
fn a_list_beside_a_deletion_has_the_backups_that_are_left() {
    for gone in 1..=3 {
        let fs = MemFs::new();
        let db = open(&fs, "db");
        let backups = Backup::on(Arc::new(fs.clone()), "backups");
        let mut rng = Rng::new(gone);
        for _ in 0..3 {
            write(&db, &mut rng, 50);
            backups.create(&db, BackupOptions::new()).unwrap();
        }
        let faults = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
        let done = std::sync::atomic::AtomicBool::new(false);
        faults.before_each(Some(Arc::new(move |op, path: &Path| {
            let is_manifest = path.extension().is_some_and(|e| e == "backup");
            if op == Op::Open && is_manifest && !done.swap(true, std::sync::atomic::Ordering::Relaxed) {
                backups.delete(gone).unwrap();
            }
        })));
        let listed = Backup::on(faults, "backups").list().unwrap();
        let left: Vec<u64> = (1..=3).filter(|id| *id != gone).collect();
        assert_eq!(listed.iter().map(|info| info.id).collect::<Vec<_>>(), left);
    }
}

/// Another opens the database then, and removes files that the copy still needs.
#[test]
fn a_copy_beside_a_close_says_that_the_database_is_closed() {
    for backup in [false, true] {
        let fs = MemFs::new();
        let faults = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
        let shared: Arc<dyn Fs> = faults.clone();
        let db = Db::open("db", Options::new().fs(shared).manual_jobs(true)).unwrap();
        db.put("k", "v").unwrap();
        db.flush().unwrap();
        let (closing, under) = (db.clone(), fs.clone());
        let done = std::sync::atomic::AtomicBool::new(false);
        faults.before_each(Some(Arc::new(move |op, path: &Path| {
            let first = if backup { op == Op::Open } else { op == Op::Rename };
            let is_table = path.extension().is_some_and(|e| e == "klog");
            if first && is_table && !done.swap(true, std::sync::atomic::Ordering::Relaxed) {
                closing.close().unwrap();
                let other = open(&under, "db");
                other.delete_range(.."z").unwrap();
                other.compact().unwrap();
                while other.run_one_job().unwrap() {}
                other.close().unwrap();
            }
        })));
        let e = match backup {
            true => Backup::on(Arc::new(fs.clone()), "backups").create(&db, BackupOptions::new()).unwrap_err(),
            false => db.checkpoint("copy").unwrap_err(),
        };
        faults.before_each(None);
        assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
    }
}
