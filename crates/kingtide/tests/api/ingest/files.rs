//! The writer of sorted files, and what an ingest takes and refuses.

use super::world::*;
use kingtide::vfs::{Fs, MemFs, OpenMode};
use kingtide::{Db, ErrorKind, FamilyOptions, IngestOptions, KeyOrder, SortedFileWriter};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

const MOVE: IngestOptions = IngestOptions::new().move_files(true).verify(true);

#[test]
fn a_file_says_what_it_holds_and_becomes_part_of_the_family() {
    let fs = MemFs::new();
    let db = open(&fs);
    let family = db.default_family().clone();
    db.put(key(5), b"old").unwrap();
    db.put(key(7), b"old").unwrap();
    db.put(key(20), b"other").unwrap();
    let mut w = SortedFileWriter::create("files/a", &family).unwrap();
    w.delete(&key(5)).unwrap();
    w.put(&key(6), &[6; 5000]).unwrap();
    w.delete_range(&key(0)..&key(9)).unwrap();
    w.put(&key(8), b"in the file's own range").unwrap();
    assert_eq!(w.entries(), 3);
    let file = w.finish().unwrap();
    assert_eq!((file.entries, file.range_deletes), (3, 1));
    assert_eq!((file.smallest, file.largest), (key(0), key(9)));
    assert_eq!(fs.open(Path::new("files/a"), OpenMode::Read).unwrap().len().unwrap(), file.bytes);
    let before = db.snapshot();
    let seq = family.ingest(&["files/a"], &IngestOptions::default()).unwrap();
    assert_eq!(seq, db.latest_sequence());
    let expected = |db: &Db| {
        let got = contents(db.default_family(), None);
        assert_eq!(got.keys().cloned().collect::<Vec<_>>(), [key(6), key(8), key(20)]);
        assert_eq!(got[&key(6)], [6; 5000]);
    };
    expected(&db);
    assert_eq!(contents(&family, Some(&before)).into_keys().collect::<Vec<_>>(), [key(5), key(7), key(20)]);
    assert!(fs.exists(Path::new("files/a")).unwrap());
    drop(before);
    db.compact().unwrap();
    expected(&db);
    drop((family, db));
    let db = open(&fs);
    expected(&db);
    assert!(db.verify().unwrap().problems.is_empty());
}

#[test]
fn keys_out_of_order_are_refused_by_name_and_nothing_stays() {
    let fs = MemFs::new();
    let db = open(&fs);
    let mut w = SortedFileWriter::create("files/a", db.default_family()).unwrap();
    w.put(b"m", b"1").unwrap();
    for (bad, names) in [(&b"m"[..], "'m' comes twice"), (b"a", "'a' comes after 'm'")] {
        let e = w.put(bad, b"2").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.to_string().contains(names), "{e}");
        assert!(w.delete(bad).is_err());
    }
    assert!(w.put(b"", b"").is_err() && w.delete_range(b"z"..b"a").is_err() && w.delete_range("".."a").is_err());
    w.delete_range(b"a"..b"a").unwrap(); // deletes nothing
    w.put(b"n", b"3").unwrap();
    assert_eq!(SortedFileWriter::create("files/a", db.default_family()).unwrap_err().kind(), ErrorKind::Exists);
    drop(w);
    assert!(fs.list(Path::new("files")).unwrap().is_empty());
    let empty = SortedFileWriter::create("files/a", db.default_family()).unwrap();
    assert_eq!(empty.finish().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(fs.list(Path::new("files")).unwrap().is_empty());
}

#[test]
fn of_a_key_in_several_files_the_last_counts() {
    let fs = MemFs::new();
    let db = open(&fs);
    let family = db.default_family();
    sorted_file(family, "files/a", 0..100, b"first");
    sorted_file(family, "files/b", (50..150).step_by(2), b"second");
    sorted_file(family, "files/c", [60, 300], b"third");
    let mut w = SortedFileWriter::create("files/d", family).unwrap();
    w.delete_range(&key(90)..&key(110)).unwrap();
    w.finish().unwrap();
    family.ingest(&["files/a", "files/b", "files/c", "files/d"], &MOVE).unwrap();
    assert!(fs.list(Path::new("files")).unwrap().is_empty(), "they were moved");
    let check = |db: &Db| {
        let got = contents(db.default_family(), None);
        let of = |i: u64| got.get(&key(i)).map(|v| String::from_utf8(v.clone()).unwrap());
        assert_eq!(of(49).as_deref(), Some("first"));
        assert_eq!(of(50).as_deref(), Some("second"));
        assert_eq!(of(60).as_deref(), Some("third"));
        assert_eq!((of(90), of(108), of(111)), (None, None, None));
        assert_eq!(of(110).as_deref(), Some("second"));
    };
    check(&db);
    db.compact().unwrap();
    check(&db);
}

#[test]
fn what_is_no_sorted_file_of_the_order_is_refused_and_leaves_nothing() {
    let fs = MemFs::new();
    let db = open(&fs);
    let reverse = db.create_family_ordered("reverse", FamilyOptions::default(), KeyOrder::Reverse).unwrap();
    let family = db.default_family();
    db.put(key(1), b"1").unwrap();
    db.flush().unwrap();
    sorted_file(family, "files/good", 0..500, b"v");
    let names = || fs.list(Path::new("db")).unwrap();
    let before: Vec<String> = names().into_iter().filter(|n| n.ends_with(".klog")).collect();
    let refused = |path: &str, kind: ErrorKind| {
        for options in [MOVE, IngestOptions::default()] {
            let e = family.ingest(&["files/good", path], &options).unwrap_err();
            assert_eq!((e.kind(), e.path()), (kind, Some(Path::new(path))), "{path}: {e}");
        }
        assert!(fs.exists(Path::new("files/good")).unwrap());
        let now: Vec<String> = names().into_iter().filter(|n| n.ends_with(".klog")).collect();
        assert_eq!(now, before, "{path}");
        assert_eq!(contents(family, None).len(), 1);
    };
    let table = before[0].clone();
    fs.hard_link(&Path::new("db").join(&table), Path::new("files/table")).unwrap();
    refused("files/table", ErrorKind::InvalidArgument);
    refused(&format!("db/{table}"), ErrorKind::InvalidArgument);
    refused("files/none", ErrorKind::NotFound);
    fs.open(Path::new("files/empty"), OpenMode::Create).unwrap();
    refused("files/empty", ErrorKind::Corruption);
    let e = reverse.ingest(&["files/good"], &MOVE).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Incompatible, "{e}");
    // A flipped bit in a block: found by a verification, or by the next read of the block.
    let good = fs.open(Path::new("files/good"), OpenMode::Read).unwrap();
    let mut bytes = vec![0; good.len().unwrap() as usize];
    good.read_exact_at(&mut bytes, 0).unwrap();
    bytes[100] ^= 1;
    fs.open(Path::new("files/bad"), OpenMode::Create).unwrap().write_at(&bytes, 0).unwrap();
    let verify = IngestOptions::new().verify(true);
    let e = family.ingest(&["files/bad"], &verify).unwrap_err();
    assert_eq!((e.kind(), e.path()), (ErrorKind::Corruption, Some(Path::new("files/bad"))), "{e}");
    assert!(e.offset().is_some() && !e.to_string().contains(".klog"), "{e}");
    family.ingest(&["files/bad"], &IngestOptions::default()).unwrap();
    assert_eq!(family.get(key(0)).unwrap_err().kind(), ErrorKind::Corruption);
    let other = Db::open("other", options_on(Arc::new(fs.clone()), true)).unwrap();
    let foreign: [(_, &[&str]); 1] = [(other.default_family(), &["files/good"])];
    assert_eq!(db.ingest(&foreign, &MOVE).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// The same file taken twice and by two families: its checksums are bound to the id that it was written under.
#[test]
fn a_file_can_be_ingested_many_times() {
    let fs = MemFs::new();
    let db = open(&fs);
    let other = db.create_family("other", FamilyOptions::default()).unwrap();
    sorted_file(db.default_family(), "files/a", 0..300, b"v");
    for _ in 0..3 {
        let both: [(_, &[&str]); 2] = [(db.default_family(), &["files/a"]), (&other, &["files/a"])];
        db.ingest(&both, &IngestOptions::default()).unwrap();
        db.delete(key(7)).unwrap();
    }
    for family in [db.default_family(), &other] {
        let there = contents(family, None);
        assert_eq!(there.contains_key(&key(7)), family.name() == "other");
        assert!(there.len() >= 299);
    }
    drop((other, db));
    let db = open(&fs);
    assert_eq!(contents(db.default_family(), None).len(), 299);
    assert!(db.verify().unwrap().problems.is_empty());
    db.compact().unwrap();
    assert_eq!(contents(db.default_family(), None).len(), 299);
}

#[test]
fn entries_expire_in_sorted_files_too() {
    let fs = MemFs::new();
    let clock = kingtide::ManualClock::at_unix_ms(1_800_000_000_000);
    let mut options = options_on(Arc::new(fs.clone()), true);
    options.clock = Some(clock.clone());
    fs.create_dir_all(Path::new("files")).unwrap();
    let db = Db::open("db", options).unwrap();
    let ttl = FamilyOptions::new().ttl(Some(Duration::from_secs(5)));
    let family = db.create_family("short", ttl).unwrap();
    let mut w = SortedFileWriter::create("files/a", &family).unwrap();
    w.put(b"default", b"5 s").unwrap();
    w.put_ttl(b"long", &[1; 3000], Duration::from_secs(60)).unwrap();
    w.put_until(b"past", b"gone", UNIX_EPOCH).unwrap();
    w.finish().unwrap();
    family.ingest(&["files/a"], &MOVE).unwrap();
    let keys = || contents(&family, None).into_keys().map(|k| String::from_utf8(k).unwrap()).collect::<Vec<_>>();
    assert_eq!(keys(), ["default", "long"]);
    clock.advance(Duration::from_secs(6));
    assert_eq!(keys(), ["long"]);
    family.compact_range(..).unwrap();
    assert_eq!(keys(), ["long"]);
    clock.advance(Duration::from_secs(60));
    assert!(keys().is_empty());
}
