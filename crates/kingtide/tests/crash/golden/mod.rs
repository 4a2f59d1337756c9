//! Databases of every released format are read, written and verified for ever; what a newer format wrote is refused with
//! `NewerFormat` and left as it is.
//!
//! `tests/crash/golden/<set>/<name>` is a directory as a build left it, beside listings of its content (`<name>.0`, ...). Set 1 is of
//! builds whose logs have version 1; those of set 2 write large values once, and their logs have version 2 where they point to such. Set 3
//! has key logs of version 2, whose blocks have restart points, a log of version 3 that names ingested files, and one of version 4 that
//! prepares transactions with staged values. All other formats have version 1 in all sets. They were made by
//!
//! ```text
//! KINGTIDE_GOLDEN=<directory> cargo test -p kingtide-tests --test engine crash::golden:: -- --ignored make
//! ```

mod make;
mod newer;

use kingtide::backup::{Backup, BackupOptions};
use kingtide::vfs::{Fs, MemFs, OpenMode};
use kingtide::{CustomOrder, Db, ManualClock, Options};
use kingtide_base::checksum::crc;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const DIR: &str = "db";
/// When they are looked at, Unix milliseconds.
pub const NOW: u64 = 1_800_000_000_000;

/// Files and their bytes.
pub type Disk = BTreeMap<PathBuf, Vec<u8>>;

/// An order that only its user knows.
pub struct Backwards;

impl CustomOrder for Backwards {
    fn name(&self) -> &str {
        "golden.backwards"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        b.cmp(a)
    }
}

pub fn options(fs: &MemFs) -> Options {
    let mut o = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
    o.clock = Some(ManualClock::at_unix_ms(NOW));
    o.custom_orders.push(Arc::new(Backwards));
    o.db.wal_segment_size = 64 << 10;
    o.family.block_size = 512;
    o.family.target_file_size = 64 << 10;
    o.family.memtable_size = 64 << 10;
    o.family.value_threshold = 200;
    o
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}

/// What a database shows: of each family its order and every entry, a value by its length and checksum; then the
/// transactions in doubt.
pub fn list(db: &Db) -> String {
    let mut text = String::new();
    for name in db.families() {
        let family = db.family(&name).unwrap();
        let _ = writeln!(text, "family {name}");
        let mut it = family.cursor(..).unwrap();
        it.seek_to_first();
        while it.valid() {
            let (key, value) = (it.key().to_vec(), it.value().unwrap().to_vec());
            let _ = writeln!(text, "{} {} {:08x}", hex(&key), value.len(), crc(&value));
            let found = family.get(&key).unwrap();
            assert_eq!(found.as_deref(), Some(&value[..]), "a get and an iterator disagree");
            it.next();
        }
        it.status().unwrap();
    }
    for t in db.recover_prepared() {
        let _ = writeln!(text, "in doubt {} {} {} operations", hex(&t.xid), t.isolation, t.operations);
    }
    text
}

/// All files below a directory in memory.
pub fn disk_of(fs: &MemFs, dir: &Path) -> Disk {
    let mut all = Disk::new();
    for name in fs.list(dir).unwrap() {
        let path = dir.join(name);
        match fs.open(&path, OpenMode::Read).and_then(|f| f.len().map(|len| (f, len))) {
            Ok((file, len)) => {
                let mut bytes = vec![0; len as usize];
                file.read_exact_at(&mut bytes, 0).unwrap();
                all.insert(path, bytes);
            }
            Err(_) => all.extend(disk_of(fs, &path)), // a directory
        }
    }
    all
}

pub fn put_file(fs: &MemFs, path: &Path, bytes: &[u8]) {
    fs.create_dir_all(path.parent().unwrap()).unwrap();
    let file = fs.open(path, OpenMode::Overwrite).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync_data().unwrap();
    fs.sync_dir(path.parent().unwrap()).unwrap();
}

/// A directory of the repository, in memory under another name. `NAME@LENGTH` is a file without the zeros at its end.
fn load(from: &Path, to: &Path, fs: &MemFs) {
    for entry in std::fs::read_dir(from).unwrap().map(|e| e.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        if entry.metadata().unwrap().is_dir() {
            load(&entry.path(), &to.join(name), fs);
            continue;
        }
        let mut bytes = std::fs::read(entry.path()).unwrap();
        let (name, len) = name.split_once('@').unwrap_or((&name, ""));
        bytes.resize(len.parse().unwrap_or(bytes.len()), 0);
        put_file(fs, &to.join(name), &bytes);
    }
}

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crash/golden")
}

/// A golden directory in memory.
pub fn golden(version: &str, name: &str, dir: &str) -> MemFs {
    let fs = MemFs::new();
    load(&goldens().join(version).join(name), Path::new(dir), &fs);
    fs
}

fn listing(version: &str, name: &str, n: usize) -> String {
    std::fs::read_to_string(goldens().join(version).join(format!("{name}.{n}"))).unwrap()
}

/// The versions in the repository, oldest first.
fn versions() -> Vec<String> {
    let entries = std::fs::read_dir(goldens()).unwrap().map(|e| e.unwrap());
    let mut all: Vec<_> = entries
        .filter(|e| e.metadata().unwrap().is_dir())
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    all.sort_by_key(|v| v.parse::<u32>().unwrap());
    all
}

/// Reads, verifies, writes, merges and reads again.
fn use_database(fs: &MemFs, expected: &str, what: &str) {
    assert_eq!(list(&Db::open_read_only(DIR, options(fs)).unwrap()), expected, "{what}, read only");
    let report = kingtide::verify(DIR, &options(fs)).unwrap();
    // A kill may leave value logs that only the log points to, until the next open.
    assert!(!report.is_damaged(), "{what}: {report:?}");
    let db = Db::open(DIR, options(fs)).unwrap();
    assert_eq!(list(&db), expected, "{what}");
    for t in db.recover_prepared() {
        db.rollback_prepared(&t.xid).unwrap();
    }
    let expected: Vec<&str> = expected.lines().filter(|l| !l.starts_with("in doubt")).collect();
    let extra = db.create_family("written by a later build", options(fs).family).unwrap();
    (0..300u64).for_each(|i| {
        extra.put(i.to_be_bytes(), [i as u8; 250]).unwrap();
    });
    let same = |db: &Db, when: &str| {
        let now = list(db);
        let old: Vec<&str> = now.lines().collect();
        let rest = expected.iter().all(|l| old.contains(l)) && old.len() == expected.len() + 301;
        assert!(rest, "{what}, {when}: {now}");
    };
    same(&db, "written");
    db.close().unwrap();
    let db = Db::open(DIR, options(fs)).unwrap();
    same(&db, "reopened");
    db.compact().unwrap();
    same(&db, "merged");
    assert!(db.verify().unwrap().is_clean(), "{what}");
    db.close().unwrap();
    let report = kingtide::verify(DIR, &options(fs)).unwrap();
    assert!(report.is_clean(), "{what}: {report:?}");
}

fn use_backups(version: &str, fs: MemFs) {
    let fs: Arc<dyn Fs> = Arc::new(fs);
    let backup = Backup::on(fs.clone(), "backups");
    let ids = backup.ids().unwrap();
    assert_eq!(ids.len(), 2);
    for (n, id) in ids.iter().enumerate() {
        backup.verify(*id, BackupOptions::default()).unwrap();
        let target = MemFs::new();
        let target_fs: Arc<dyn Fs> = Arc::new(target.clone());
        backup.restore_to(*id, &target_fs, DIR, BackupOptions::default()).unwrap();
        use_database(&target, &listing(version, "backups", n), &format!("version {version}, backup {id}"));
        // And another beside them.
        backup.create(&Db::open(DIR, options(&target)).unwrap(), BackupOptions::default()).unwrap();
    }
    assert_eq!(backup.ids().unwrap().len(), 4);
    backup.delete(ids[0]).unwrap();
    backup.verify(ids[1], BackupOptions::default()).unwrap();
}

#[test]
fn databases_of_every_released_format_are_usable() {
    let mut n = 0;
    for version in versions() {
        for (name, _) in make::ALL.into_iter().filter(|(name, _)| make::is_in(&version, name)) {
            println!("version {version}: {name}");
            match name {
                "backups" => use_backups(&version, golden(&version, name, name)),
                _ => {
                    let what = format!("version {version}, {name}");
                    use_database(&golden(&version, name, DIR), &listing(&version, name, 0), &what);
                }
            }
            n += 1;
        }
    }
    println!("{n} golden directories");
    assert!(n >= 32);
}

/// What set 2 is there for.
#[test]
fn the_second_set_has_logs_that_point_to_values() {
    let fs = golden("2", "written-once", DIR);
    let all = disk_of(&fs, Path::new(DIR));
    let of =
        |part: &str| all.iter().filter(|(path, _)| path.extension().is_some_and(|e| e == part)).collect::<Vec<_>>();
    let versions: Vec<u8> = of("wal").iter().map(|(_, bytes)| bytes[4]).collect();
    assert!(versions.contains(&2), "versions of the segments: {versions:?}");
    assert!(of("vlog").len() >= 5 && !of("klog").is_empty());
    let db = Db::open(DIR, options(&fs)).unwrap();
    assert_eq!(db.recover_prepared().len(), 1);
    assert_eq!(db.get(b"key-00020").unwrap().map(|v| v.len()), Some(1_500_000));
    assert!(db.get(b"key-00041").unwrap().is_none(), "it expired an hour ago");
    assert!(db.get(b"key-00003").unwrap().is_none(), "its range was deleted");
}

/// What set 3 is there for.
#[test]
fn the_third_set_has_key_logs_of_version_2() {
    for (set, version) in [("1", 1), ("2", 1), ("3", 2)] {
        let all = disk_of(&golden(set, "closed", DIR), Path::new(DIR));
        let tables: Vec<_> = all.iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "klog")).collect();
        assert!(!tables.is_empty());
        tables.iter().for_each(|(path, bytes)| assert_eq!(bytes[bytes.len() - 16], version, "set {set}, {path:?}"));
    }
}

/// A table of the third set has a dictionary, which begins as all of Zstandard do.
#[test]
fn the_third_set_has_a_dictionary() {
    let begins = zstd_dictionary_magic();
    let tables = |set: &str| {
        let all = disk_of(&golden(set, "compressions", DIR), Path::new(DIR));
        let tables = all.iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "klog"));
        tables.filter(|(_, bytes)| bytes.windows(4).any(|w| w == begins)).count()
    };
    assert_eq!(["1", "2", "3"].map(tables), [0, 0, 1]);
}

/// A log of the third set has a record of files, which makes it one of version 3, and the manifest has not heard of them.
#[test]
fn the_third_set_has_files_that_only_the_log_names() {
    let all = disk_of(&golden("3", "ingested", DIR), Path::new(DIR));
    let logs = all
        .iter()
        .filter(|(path, bytes)| path.extension().is_some_and(|e| e == "wal") && bytes.iter().any(|b| *b != 0));
    assert!(logs.into_iter().any(|(_, bytes)| bytes[4] == 3));
    let expected = listing("3", "ingested", 0);
    let (told, untold) = (golden("3", "ingested", DIR), golden("3", "ingested", DIR));
    assert_eq!(list(&Db::open(DIR, options(&told)).unwrap()), expected);
    for (path, _) in all.iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "wal")) {
        untold.remove(path).unwrap();
    }
    // Without the log it is refused, or shows less.
    assert!(Db::open(DIR, options(&untold)).map_or(true, |db| list(&db) != expected));
}

/// A log of the third set prepares transactions with pointers, which makes it one of version 4, and they can be committed.
#[test]
fn the_third_set_has_prepared_values_that_only_the_log_names() {
    let fs = golden("3", "in-doubt-staged", DIR);
    let all = disk_of(&fs, Path::new(DIR));
    assert!(all.iter().any(|(path, bytes)| path.extension().is_some_and(|e| e == "wal") && bytes[4] == 4));
    let db = Db::open(DIR, options(&fs)).unwrap();
    let xids: Vec<_> = db.recover_prepared().into_iter().map(|t| t.xid).collect();
    assert_eq!(xids, [&b"in doubt"[..], b"in doubt, too"]);
    let before = list(&db).lines().count();
    for xid in &xids {
        db.commit_prepared(xid).unwrap();
    }
    assert_eq!(list(&db).lines().count(), before - 2 + 4);
    assert!(db.verify().unwrap().is_clean());
}

fn zstd_dictionary_magic() -> [u8; 4] {
    0xec30_a437_u32.to_le_bytes()
}

/// The next manifest says where the log begins, so a kill right behind it is no worse than one before.
#[test]
fn a_log_start_that_fell_is_put_right_by_the_next_write() {
    let fs = golden("1", "log-start-fell", DIR);
    let db = Db::open(DIR, options(&fs)).unwrap();
    db.put(b"written", b"by a later build").unwrap();
    let (expected, killed) = (list(&db), fs.kill_clone());
    drop(db);
    assert_eq!(list(&Db::open_read_only(DIR, options(&killed)).unwrap()), expected);
    assert_eq!(list(&Db::open(DIR, options(&killed)).unwrap()), expected);
}

#[test]
#[ignore = "makes the golden databases of a new format version in the directory KINGTIDE_GOLDEN"]
fn make() {
    let Some(to) = std::env::var_os("KINGTIDE_GOLDEN").map(PathBuf::from) else { return };
    for (name, scenario) in make::ALL.into_iter().filter(|(name, _)| make::is_in("new", name)) {
        let made = scenario();
        let disk = disk_of(&made.disk, Path::new(made.dir));
        let bytes: usize = disk.values().map(Vec::len).sum();
        println!("{name}: {} files, {bytes} bytes", disk.len());
        make::write_out(&disk, Path::new(made.dir), &to.join(name));
        for (n, text) in made.listings.iter().enumerate() {
            std::fs::write(to.join(format!("{name}.{n}")), text).unwrap();
        }
    }
}
