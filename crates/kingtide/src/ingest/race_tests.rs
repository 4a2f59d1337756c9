//! Ingests at the worst moment, which here is not left to chance.

use super::install::Part;
use super::{Brought, Path};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::txn::read_set::{ReadRange, ReadSet};
use crate::txn::read_set::{Round, Validation};
use crate::txn::validate::Verdict;
use crate::{ColumnFamily, Db, ErrorKind, IngestOptions, Options, SortedFileWriter, WriteBatch};
use kingtide_base::SeqNo;
use kingtide_vfs::{Fault, FaultFs, Fs, MemFs, Op, Rule};
use std::ops::Bound;
use std::sync::Arc;

fn open() -> Db {
    Db::open("db", Options { fs: Some(Arc::new(MemFs::new())), manual_jobs: true, ..Options::default() }).unwrap()
}

fn ingest(family: &ColumnFamily, key: &[u8]) -> SeqNo {
    let mut w = SortedFileWriter::create("file", family).unwrap();
    w.put(key, b"ingested").unwrap();
    w.finish().unwrap();
    family.ingest(&["file"], &IngestOptions { move_files: true, ..IngestOptions::default() }).unwrap()
}

/// A reader that took the view before an ingest and would get the ingest's number takes the view again.
#[test]
fn a_view_is_not_older_than_its_number() {
    let db = open();
    let family = db.default_family();
    let first = AtomicBool::new(true);
    let number = || {
        if first.swap(false, Ordering::Relaxed) {
            ingest(family, b"k");
        }
        Ok(db.latest_sequence())
    };
    let (view, seq) = family.inner().acquire_view(|v| v.load_full(), number).unwrap();
    assert_eq!((view.version.files().count() as u64, seq), (1, 1));
}

/// Between the look outside the commit lock and the one under it, an ingest is among what was written since.
#[test]
fn an_ingest_during_the_validation_of_a_range_is_a_conflict() {
    for (key, conflict) in [(b"m", true), (b"x", false)] {
        let db = open();
        db.put(b"before", b"v").unwrap();
        let (family, engine) = (db.default_family(), db.inner());
        let range = ReadRange {
            family: family.inner().clone(),
            lower: Bound::Included(b"k".to_vec()),
            upper: Bound::Excluded(b"p".to_vec()),
            seq: db.latest_sequence(),
        };
        let (reads, batch) = (ReadSet::default(), WriteBatch::new());
        let v = Validation { txn: 1, writes_since: None, writes: None, reads: &reads, ranges: vec![range] };
        engine.commit.lock().recent.watch(db.latest_sequence());
        let checked = engine.validate_outside(&v, &batch, 0).unwrap();
        ingest(family, key);
        let mut c = engine.commit.lock();
        let quick = engine.validate_locked(&v, &batch, &c.recent, Round { checked, tables: false });
        assert!(matches!(quick, Ok(Verdict::LookOutside)), "what was ingested is only in tables");
        let outcome = engine.validate_locked(&v, &batch, &c.recent, Round { checked, tables: true });
        assert_eq!(outcome.err().map(|e| e.kind()), conflict.then_some(ErrorKind::Conflict));
        c.recent.unwatch();
    }
}

/// What others wrote into a file's keys at the last moment is flushed under the locks. When the manifest cannot be written
/// then, nothing of either stays on the disk, and all is as before.
#[test]
fn a_flush_for_an_ingest_that_fails_leaves_no_file() {
    let fs = MemFs::new();
    let faulty = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
    let options = || Options { fs: Some(faulty.clone()), manual_jobs: true, ..Options::default() };
    let db = Db::open("db", options()).unwrap();
    let (family, engine) = (db.default_family(), db.inner());
    let files = || fs.list(Path::new("db")).unwrap().iter().filter(|n| n.ends_with("log")).count();
    let mut w = SortedFileWriter::create("file", family).unwrap();
    w.put(b"k", b"ingested").unwrap();
    w.finish().unwrap();
    db.put(b"k", vec![1; 100_000]).unwrap();
    let before = files();
    for fails in [true, false] {
        let mut brought = Brought { db: engine, created: Vec::new() };
        let (id, file) = brought.bring(Path::new("file"), true).unwrap();
        let meta = engine.inspect(id, file, family.order(), true).unwrap();
        let mut parts = [Part { family: family.inner().clone(), files: vec![meta] }];
        if fails {
            faulty.add(Rule::new(Op::Write, Fault::Eio).path("MANIFEST").nth(1));
        }
        let (mut catalog, mut c) = (engine.catalog.lock(), engine.commit.lock());
        let outcome = engine.install_locked(&mut catalog, &mut c, &mut parts).map(drop);
        drop((c, catalog));
        faulty.clear();
        assert_eq!(outcome.is_err(), fails);
        assert_eq!(brought.settle(outcome).is_err(), fails);
        assert_eq!(db.get(b"k").unwrap().unwrap().len(), if fails { 100_000 } else { 8 });
        if fails {
            assert_eq!(files(), before);
        }
    }
    drop(db);
    let db = Db::open("db", options()).unwrap();
    assert_eq!(db.get(b"k").unwrap().as_deref(), Some(&b"ingested"[..]));
    assert!(db.verify().unwrap().problems.is_empty());
}
