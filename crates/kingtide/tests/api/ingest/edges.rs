//! Ingests where something is odd: the files, the paths to them, or the state that the database is in.

use super::world::*;
use kingtide::vfs::{Fault, FaultFs, Fs, MemFs, Op, OpenMode, Rule, Survival};
use kingtide::{Db, ErrorKind, FamilyOptions, IngestOptions, Options, SortedFileWriter};
use kingtide_base::rng::Rng;
use kingtide_base::{Kind, Tag};
use kingtide_table::{TableOptions, TableWriter, UNSEQUENCED};
use kingtide_testkit::Scratch;
use std::path::Path;
use std::sync::Arc;

const MOVE: IngestOptions = IngestOptions::new().move_files(true);

/// Nothing of the ingest is left in any file, and a new manifest took the place of the one that named it.
#[test]
fn the_number_of_an_ingest_is_not_given_again() {
    let fs = MemFs::new();
    let faulty = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
    fs.create_dir_all(Path::new("files")).unwrap();
    let db = Db::open("db", options_on(faulty.clone(), true)).unwrap();
    let family = db.default_family();
    db.put(key(1), b"v").unwrap();
    family.flush().unwrap();
    // It keeps the log, so that the number of the ingest is not known from where the log starts.
    db.create_family("unflushed", family.options()).unwrap().put(b"in memory", b"v").unwrap();
    let mut w = SortedFileWriter::create("files/a", family).unwrap();
    w.delete(&key(5)).unwrap();
    w.finish().unwrap();
    let seq = family.ingest(&["files/a"], &MOVE).unwrap();
    family.compact_range(..).unwrap();
    faulty.add(Rule::new(Op::Write, Fault::Eio).path("MANIFEST").nth(1));
    family.set_option("l0_trigger", "3").unwrap_err();
    faulty.clear();
    family.set_option("l0_trigger", "4").unwrap();
    let again = open(&fs.kill_clone());
    assert_eq!(again.latest_sequence(), seq);
    assert_eq!(contents(again.default_family(), None).len(), 1);
}

#[test]
fn a_file_that_was_never_synced_is_durable_when_it_is_taken() {
    let fs = MemFs::new();
    let db = open(&fs);
    sorted_file(db.default_family(), "files/a", 0..300, b"v");
    for move_files in [true, false] {
        let synced = fs.open(Path::new("files/a"), OpenMode::Read).unwrap();
        let mut bytes = vec![0; synced.len().unwrap() as usize];
        synced.read_exact_at(&mut bytes, 0).unwrap();
        fs.open(Path::new("files/b"), OpenMode::Overwrite).unwrap().write_at(&bytes, 0).unwrap();
        db.default_family().ingest(&["files/b"], &MOVE.move_files(move_files)).unwrap();
        for model in Survival::ALL {
            let again = open(&fs.crash_clone(model, &mut Rng::new(1)));
            assert_eq!(contents(again.default_family(), None).len(), 300, "{model:?}");
            assert!(again.verify().unwrap().problems.is_empty(), "{model:?}");
        }
    }
}

/// An open would take it for a table of the database, whose entries have the numbers that it says.
#[test]
fn entries_without_numbers_in_a_file_that_is_not_marked_are_refused() {
    let fs = MemFs::new();
    let db = open(&fs);
    let file = fs.open(Path::new("files/a"), OpenMode::Create).unwrap();
    let mut w = TableWriter::new_unsequenced(file, 7, TableOptions::default());
    w.add(b"k", Tag(UNSEQUENCED << 8 | Kind::Put as u64), b"v").unwrap();
    w.finish().unwrap();
    let e = db.default_family().ingest(&["files/a"], &MOVE).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    assert!(contents(db.default_family(), None).is_empty());
}

/// A file of the database is not taken away from it, whatever way it is named in.
#[test]
fn the_databases_own_files_are_refused_by_any_path() {
    let scratch = Scratch::new("ingest-own");
    let dir = scratch.0.join("db");
    let db = Db::open(&dir, Options::default()).unwrap();
    let file = scratch.0.join("a");
    let mut w = SortedFileWriter::create(&file, db.default_family()).unwrap();
    w.put(b"k", b"v").unwrap();
    w.finish().unwrap();
    db.default_family().ingest(&[&file], &MOVE).unwrap();
    let names = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name());
    let table = names.into_iter().find(|n| n.to_string_lossy().ends_with(".klog")).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(&dir, scratch.0.join("link")).unwrap();
    // Another system's links need rights that few have.
    for way in ["db", "db/.", "db/../db", if cfg!(unix) { "link" } else { "db" }] {
        let e = db.default_family().ingest(&[scratch.0.join(way).join(&table)], &MOVE).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{way}: {e}");
        assert!(dir.join(&table).exists(), "{way}");
    }
    drop(db);
    let db = Db::open(&dir, Options::default()).unwrap();
    assert_eq!(db.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

/// What is taken is the file, not the symbolic link that led to it: the target may go.
#[cfg(unix)]
#[test]
fn a_file_behind_a_symbolic_link_is_copied() {
    let scratch = Scratch::new("ingest-link");
    let db = Db::open(scratch.0.join("db"), Options::default()).unwrap();
    let (file, link) = (scratch.0.join("a"), scratch.0.join("b"));
    let mut w = SortedFileWriter::create(&file, db.default_family()).unwrap();
    w.put(b"k", b"v").unwrap();
    w.finish().unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    db.default_family().ingest(&[&link], &MOVE).unwrap();
    assert!(!link.exists() && std::fs::symlink_metadata(&link).is_err());
    std::fs::remove_file(&file).unwrap();
    drop(db);
    let db = Db::open(scratch.0.join("db"), Options::default()).unwrap();
    assert_eq!(db.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn a_database_that_cannot_be_written_ingests_nothing() {
    let fs = MemFs::new();
    let faulty = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
    fs.create_dir_all(Path::new("files")).unwrap();
    let db = Db::open("db", options_on(faulty.clone(), true)).unwrap();
    let family = db.default_family().clone();
    db.put(key(1), b"v").unwrap();
    sorted_file(&family, "files/a", 10..20, b"v");
    let other = db.create_family("other", FamilyOptions::default()).unwrap();
    db.drop_family("other").unwrap();
    let klogs = || fs.list(Path::new("db")).unwrap().iter().filter(|n| n.ends_with(".klog")).count();
    let before = klogs();
    let refused = |what: &str, outcome: kingtide::Result<u64>, kind: ErrorKind| {
        let e = outcome.unwrap_err();
        assert_eq!(e.kind(), kind, "{what}: {e}");
        assert_eq!(contents(&family, None).len(), 1, "{what}");
        assert!(fs.exists(Path::new("files/a")).unwrap(), "{what}");
        assert_eq!(klogs(), before, "{what}");
    };
    refused("dropped", other.ingest(&["files/a"], &MOVE), ErrorKind::Closed);
    let both: [(_, &[&str]); 2] = [(&family, &["files/a"]), (&other, &["files/a"])];
    refused("one of two dropped", db.ingest(&both, &MOVE), ErrorKind::Closed);
    faulty.add(Rule::new(Op::Sync, Fault::Eio).path(".wal").sticky());
    db.sync().unwrap_err();
    faulty.clear();
    refused("poisoned", family.ingest(&["files/a"], &MOVE), ErrorKind::Poisoned);
    let e = db.clone_family("default", "clone").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}");
    assert_eq!((klogs(), db.families().len()), (before, 1));
}

/// Large keys, a tiny limit of open files, and ranges deleted in one file that an older snapshot still sees.
#[test]
fn large_keys_and_few_open_files_do_not_matter() {
    let fs = MemFs::new();
    let mut options = options_on(Arc::new(fs.clone()), true);
    options.set("max_open_files", "16").unwrap();
    fs.create_dir_all(Path::new("files")).unwrap();
    let db = Db::open("db", options).unwrap();
    let family = db.default_family();
    let large = |i: u64| [key(i), vec![b'x'; 60_000]].concat();
    let before = db.snapshot();
    for i in 0..40 {
        let path = format!("files/{i}");
        let mut w = SortedFileWriter::create(&path, family).unwrap();
        w.put(&large(i), b"v").unwrap();
        if i % 10 == 9 {
            w.delete_range(&large(i - 5)..&large(i)).unwrap();
        }
        w.finish().unwrap();
        family.ingest(&[path], &MOVE).unwrap();
    }
    let check = |at: &str| {
        let now = contents(family, None);
        assert_eq!(now.len(), 20, "{at}");
        assert!((0..40).all(|i| now.contains_key(&large(i)) == (i % 10 < 4 || i % 10 == 9)), "{at}");
        assert!(contents(family, Some(&before)).is_empty(), "{at}");
    };
    check("ingested");
    family.compact_range(..).unwrap();
    check("merged");
    assert!(db.verify().unwrap().problems.is_empty());
}

/// The log of commits that are in no table is kept, even when an ingest asks to release it.
#[test]
fn the_log_is_kept_over_an_ingest() {
    let fs = MemFs::new();
    let db = open(&fs);
    (0..400).for_each(|i| {
        db.put(key(i), [7; 500]).unwrap();
    });
    let expected = contents(db.default_family(), None).len() + 10;
    sorted_file(db.default_family(), "files/a", 900..910, b"v");
    db.default_family().ingest(&["files/a"], &MOVE).unwrap();
    db.set_option("change_retention", "0").unwrap();
    let again = open(&fs.kill_clone());
    assert_eq!(contents(again.default_family(), None).len(), expected);
}
