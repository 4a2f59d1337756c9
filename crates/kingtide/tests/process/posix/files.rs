//! Permissions of what is created, and links and leftovers in its place.

use kingtide::backup::{Backup, BackupOptions};
use kingtide::{Db, ErrorKind, IngestOptions, Options, SortedFileWriter};
use kingtide_base::rng::Rng;
use kingtide_testkit::child::{child, child_dir};
use kingtide_testkit::{Scratch, test_name};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

fn options() -> Options {
    let mut options = Options::default();
    for (name, value) in [("background_threads", "2"), ("wal_segment_size", "1M"), ("memtable_size", "1M")] {
        options.set(name, value).unwrap();
    }
    options.tuning.reserve_below = u64::MAX;
    options
}

/// Enough for tables, value logs, several log segments and a reserve.
fn fill(db: &Db, seed: u64) {
    let mut rng = Rng::new(seed);
    for n in 0..180u64 {
        let mut value = vec![0; 100 << 10];
        rng.fill(&mut value);
        db.put(n.to_be_bytes(), value).unwrap();
        db.put((1000 + n).to_be_bytes(), b"short").unwrap();
    }
    db.flush().unwrap();
    db.wait_for_background().unwrap();
}

/// All files and directories below a directory, and itself.
fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut all = vec![dir.to_owned()];
    let mut next = 0;
    while let Some(at) = all.get(next).cloned() {
        next += 1;
        if fs::symlink_metadata(&at).unwrap().is_dir() {
            all.extend(fs::read_dir(&at).unwrap().map(|e| e.unwrap().path()));
        }
    }
    all
}

fn umask() -> u32 {
    let said = std::process::Command::new("sh").args(["-c", "umask"]).output().unwrap().stdout;
    u32::from_str_radix(String::from_utf8(said).unwrap().trim(), 8).unwrap()
}

#[test]
fn everything_that_is_created_has_the_mode() {
    for (mode, file, sub) in [(None, 0o600, 0o700), (Some("0640"), 0o640, 0o750)] {
        let dir = Scratch::new(&format!("mode-{file:o}"));
        fs::set_permissions(&dir.0, fs::Permissions::from_mode(sub & !umask())).unwrap();
        let at = |name: &str| dir.0.join(name);
        let mut options = options();
        mode.into_iter().for_each(|m| options.set("file_mode", m).unwrap());
        let db = Db::open(at("db"), options.clone()).unwrap();
        fill(&db, 1);
        let mut sorted = SortedFileWriter::create(at("sorted"), db.default_family()).unwrap();
        sorted.put(b"k", b"v").unwrap();
        sorted.finish().unwrap();
        db.checkpoint(at("checkpoint")).unwrap();
        let backup = Backup::at(at("backup"));
        backup.create(&db, BackupOptions::default()).unwrap();
        db.default_family().export(at("above/export")).unwrap();
        db.put(b"more", b"rows").unwrap();
        // While it is open: its lock, its log and its reserve are there too.
        let found = walk(&dir.0);
        for name in ["LOCK", "CURRENT", "RESERVE.tmp"] {
            assert!(found.contains(&at("db").join(name)), "{name} is there to look at");
        }
        for path in found {
            let meta = fs::symlink_metadata(&path).unwrap();
            let wanted = if meta.is_dir() { sub } else { file };
            assert_eq!(meta.permissions().mode() & 0o7777, wanted & !umask(), "{}", path.display());
        }
        db.close().unwrap();
    }
}

#[test]
fn planted_links_do_not_lead_the_database_elsewhere() {
    let dir = Scratch::new("planted");
    let at = |name: &str| dir.0.join(name);
    let home = at("db");
    drop(Db::open(&home, options()).unwrap());
    fs::write(at("victim"), b"precious").unwrap();
    let plant = |name: &str| {
        // Half of them lead to a file, half to nothing: one would be overwritten, the other created.
        for (target, name) in [("victim", name.to_owned()), ("absent", name.replace("00", "01"))] {
            let link = home.join(name);
            if fs::symlink_metadata(&link).is_err() {
                symlink(at(target), link).unwrap();
            }
        }
    };
    for round in 0..2 {
        ["CURRENT.tmp", "RESERVE.tmp", "INCOMPLETE.tmp"].into_iter().for_each(plant);
        for n in 1..40 {
            plant(&format!("MANIFEST-{n:06}"));
            plant(&format!("{n:08}.klog"));
            plant(&format!("{n:08}.vlog"));
        }
        let db = Db::open(&home, options()).unwrap();
        // Now those that an open would have swept away.
        ["CURRENT.tmp", "RESERVE.tmp"].into_iter().for_each(plant);
        fill(&db, round);
        for n in 0..700 {
            db.default_family().set_option("ttl_ms", &(n % 2 * 86_400_000).to_string()).unwrap(); // rewrites the manifest
        }
        db.close().unwrap();
        assert_eq!(fs::read(at("victim")).unwrap(), b"precious", "round {round}");
        assert!(fs::symlink_metadata(at("absent")).is_err(), "round {round}: created through a link");
    }
    let db = Db::open(&home, options()).unwrap();
    assert!(db.get(7u64.to_be_bytes()).unwrap().is_some());
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_link_in_place_of_lock_or_log_is_refused_by_name() {
    let dir = Scratch::absent("refused");
    let at = |name: &str| dir.0.join(name);
    let home = at("db");
    fs::create_dir_all(&home).unwrap();
    for target in ["victim", "absent"] {
        fs::write(at("victim"), b"precious").unwrap();
        symlink(at(target), home.join("LOCK")).unwrap();
        let e = Db::open(&home, options()).unwrap_err();
        assert!(e.message().contains("symbolic link") && e.path() == Some(&home.join("LOCK")), "{e}");
        fs::remove_file(home.join("LOCK")).unwrap();
        assert_eq!(fs::read(at("victim")).unwrap(), b"precious");
        assert!(fs::symlink_metadata(at("absent")).is_err());
    }
    // Segments that the log comes to next.
    let db = Db::open(&home, options()).unwrap();
    for n in 1..60 {
        // The database makes segments meanwhile.
        match symlink(at(if n % 2 == 0 { "victim" } else { "absent" }), home.join(format!("{n:06}.wal"))) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => panic!("{e}"),
            _ => {}
        }
    }
    let mut refused = 0;
    for n in 0..4000u64 {
        if let Err(e) = db.put(n.to_be_bytes(), vec![7; 1000]) {
            assert!(e.to_string().contains("symbolic link"), "{e}");
            refused += 1;
            if refused > 3 {
                break;
            }
        }
    }
    let _ = db.close(); // may say why the log cannot go on
    assert_eq!(fs::read(at("victim")).unwrap(), b"precious");
    assert!(fs::symlink_metadata(at("absent")).is_err());
}

#[test]
fn leftovers_of_a_killed_process_are_replaced_whatever_their_permissions() {
    let dir = Scratch::absent("leftovers");
    let db = Db::open(&dir.0, options()).unwrap();
    db.put(b"a", b"1").unwrap();
    db.close().unwrap();
    drop(db);
    let names = ["CURRENT.tmp", "RESERVE.tmp", "INCOMPLETE.tmp", "MANIFEST-000900", "00000901.klog", "00000902.vlog"];
    for name in names {
        fs::write(dir.0.join(name), b"half of what it was to be").unwrap();
        fs::set_permissions(dir.0.join(name), fs::Permissions::from_mode(0o400)).unwrap();
    }
    let db = Db::open(&dir.0, options()).unwrap();
    fill(&db, 3);
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    db.close().unwrap();
    for name in names {
        assert!(!dir.0.join(name).exists(), "{name}");
    }
}

#[test]
fn copies_do_not_follow_planted_links_either() {
    let dir = Scratch::new("copies");
    let at = |name: &str| dir.0.join(name);
    let db = Db::open(at("db"), options()).unwrap();
    fill(&db, 5);
    fs::write(at("victim"), b"precious").unwrap();
    // In a directory of backups, by every name that the next backup uses on the way.
    let backup = Backup::at(at("backup"));
    backup.create(&db, BackupOptions::default()).unwrap();
    db.put(b"more", b"rows").unwrap();
    db.flush().unwrap();
    for path in walk(&at("db")).into_iter().filter(|p| p.is_file()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        symlink(at("victim"), at("backup/pool").join(format!("{name}.tmp"))).unwrap();
        symlink(at("victim"), at("backup/staging").join(name)).unwrap();
    }
    symlink(at("victim"), at("backup/backups/000002.tmp")).unwrap();
    symlink(at("victim"), at("backup/backups/000002.backup")).unwrap();
    let made = backup.create(&db, BackupOptions::default()).unwrap();
    backup.verify(made.id, BackupOptions::default()).unwrap();
    // In the target of an export.
    fs::create_dir_all(at("export")).unwrap();
    for name in ["00000001.sorted", "FAMILY.tmp"] {
        symlink(at("victim"), at("export").join(name)).unwrap();
    }
    db.default_family().export(at("export")).unwrap();
    assert_eq!(fs::read(at("victim")).unwrap(), b"precious");
    db.close().unwrap();
}

#[test]
#[ignore = "run by another, as a process of its own"]
fn take_files_that_may_only_be_read() {
    let Some(dir) = child_dir() else { return };
    let db = Db::open(dir.join("db"), options()).unwrap();
    let tables = || fs::read_dir(dir.join("db")).unwrap().filter(|f| is_table(&f.as_ref().unwrap().path())).count();
    let taken = IngestOptions::new().move_files(true);
    for (n, mode) in [0o400, 0o600, 0].into_iter().enumerate() {
        let path = dir.join("file");
        let mut file = SortedFileWriter::create(&path, db.default_family()).unwrap();
        file.put(&[n as u8], b"value").unwrap();
        file.finish().unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let ingested = db.default_family().ingest(&[&path], &taken);
        if mode == 0 {
            let e = ingested.unwrap_err();
            assert!(e.kind() == ErrorKind::Io && e.to_string().contains(path.to_str().unwrap()), "{e}");
            assert!(path.exists());
        } else {
            ingested.unwrap_or_else(|e| panic!("mode {mode:o}: {e}"));
            assert!(!path.exists(), "mode {mode:o}");
        }
    }
    assert_eq!((tables(), db.iter().count()), (2, 2));
    db.close().unwrap();
    assert!(kingtide::verify(dir.join("db"), &options()).unwrap().is_clean());
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "klog")
}

/// One that its owner may only read, as backups are, is copied where it cannot be taken.
#[test]
fn files_that_may_only_be_read_are_ingested() {
    let dir = Scratch::new("read-only-files");
    // Nothing is forbidden to root.
    let before = match fs::read_to_string("/proc/self/status").unwrap_or_default().contains("\nUid:\t0\t") {
        true => "exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$0\" \"$@\"; #",
        false => "",
    };
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o777)).unwrap();
    child(&test_name!("take_files_that_may_only_be_read"), &dir.0, before);
}
