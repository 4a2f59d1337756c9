//! Ingests at the worst moment, which here is not left to chance.

use crate::txn::read_set::{ReadRange, ReadSet};
use crate::txn::read_set::{Round, Validation};
use crate::txn::validate::Verdict;
use crate::{ColumnFamily, Db, ErrorKind, IngestOptions, Options, SortedFileWriter, WriteBatch};
use kingtide_base::SeqNo;
use kingtide_base::sync::atomic::{AtomicBool, Ordering};
use kingtide_vfs::MemFs;
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
