//! Reads a hostile database in every way that there is, and compares what it says with what is true.

use crate::edit::Trust;
use crate::must;
use crate::sample::{DIR, Data, IN_DOUBT, Sample, options};
use kingtide::internal::DumpedRecord;
use kingtide::vfs::{Fs, MemFs, OpenMode};
use kingtide::{ChangeStreamOptions, ColumnFamily, Db, Error, ErrorKind, KeyOrder};
use kingtide_base::stats::Stats;
use kingtide_mem::cache::BlockCache;
use kingtide_table::salvage::{BlockScan, read_traits};
use kingtide_table::{ReadScratch, Table, Vlog};
use kingtide_versions::ManifestScan;
use kingtide_wal::{SegmentPart, dump_segment};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// More entries than any file here can hold, however well it compresses.
const ENDLESS: u64 = 8 << 20;

/// What is read, and how much of it may be wrong.
#[derive(Clone, Copy)]
pub struct Examination<'a> {
    /// What is true.
    pub sample: &'a Sample,
    /// Whether it must be told.
    pub trust: Trust,
    /// The damage is in the log, whose end may look like a commit that was never finished.
    pub torn: bool,
}

/// A loop that must end.
struct Steps(u64);

impl Steps {
    fn step(&mut self, what: &str) {
        self.0 += 1;
        assert!(self.0 < ENDLESS, "{what} does not end");
    }
}

impl Examination<'_> {
    fn is_damaged(&self) -> bool {
        self.trust == Trust::Damaged
    }

    /// Of checksummed damage, errors say where it is.
    pub fn located(&self, e: &Error) {
        if self.is_damaged() {
            assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NewerFormat), "{e:?}");
            assert!(e.path().is_some(), "no file in {e:?}");
            let missing = e.message().contains("missing");
            assert!(missing || e.offset().is_some(), "no offset in {e:?}");
        }
    }

    /// Shows a single file as `kt dump` does.
    pub fn dump(&self, fs: &MemFs, path: &Path) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let id = crate::forge::file_number(path);
        let mut steps = Steps(0);
        if name.ends_with(".wal") {
            let _ = dump_segment(fs, path, &mut |part| {
                steps.step("a dump");
                if let SegmentPart::Record { payload, count, .. } = part {
                    let _ = DumpedRecord::read(payload, count).map(|r| r.writes().count());
                }
                Ok(())
            });
        } else if name.starts_with("MANIFEST") {
            let _ = ManifestScan::read_one(fs, path);
        } else if name.ends_with(".klog") {
            dump_klog(fs, path, id);
        } else if name.ends_with(".vlog") {
            dump_vlog(fs, path, id);
        }
    }

    /// Verifies the closed database.
    pub fn verify(&self, fs: &MemFs) {
        let fs = fs.kill_clone();
        if let Ok(report) = kingtide::verify(DIR, &options(&fs)) {
            std::hint::black_box(report);
        }
    }

    /// Opens it and reads everything; `compact`: then merges everything and reads it again.
    pub fn open(&self, fs: &MemFs, compact: bool) {
        let fs = fs.kill_clone();
        let db = match Db::open(DIR, options(&fs)) {
            Ok(db) => db,
            Err(e) => return self.located(&e),
        };
        self.read(&db);
        if let Ok(mut stream) = db.changes_with(0, ChangeStreamOptions::new().show_unlogged(true)) {
            let mut steps = Steps(0);
            while let Ok(Some(record)) = stream.next() {
                steps.step("a change stream");
                record.operations().for_each(drop);
            }
        }
        for prepared in db.recover_prepared() {
            let _ = db.commit_prepared(&prepared.xid);
        }
        std::hint::black_box(db.stats());
        if compact {
            let _ = db.flush();
            for name in db.families() {
                let _ = db.family(&name).and_then(|f| f.compact_range(..));
            }
            self.read(&db);
            let _ = db.close();
        }
    }

    /// The same for reading only.
    pub fn open_read_only(&self, fs: &MemFs) {
        let fs = fs.kill_clone();
        match Db::open_read_only(DIR, options(&fs)) {
            Ok(db) => self.read(&db),
            Err(e) => self.located(&e),
        }
    }

    /// Repairs it; of what is salvaged, no value may be another than one that was put.
    pub fn repair(&self, fs: &MemFs, from: &Path) {
        let fs = fs.kill_clone();
        let into = "repaired";
        if kingtide::repair(from, into, &options(&fs)).is_err() {
            return;
        }
        let Ok(db) = Db::open(into, options(&fs)) else { return };
        for name in db.families() {
            let Ok(family) = db.family(&name) else { continue };
            let found = scan(&family, true).0;
            if let (true, Some(ever)) = (self.is_damaged(), self.sample.ever.get(&name)) {
                for (k, v) in found.iter().filter(|(k, _)| *k != IN_DOUBT) {
                    assert_eq!(ever.get(k), Some(v), "repair made {:?} up", String::from_utf8_lossy(k));
                }
            }
        }
    }

    /// Reads everything, of an open database.
    pub fn read(&self, db: &Db) {
        let mut lost = Vec::new();
        for (name, data) in &self.sample.data {
            let Ok(family) = db.family(name) else {
                assert!(!self.is_damaged(), "family {name} is silently missing");
                continue;
            };
            self.read_family(name, &family, data, &mut lost);
        }
        for name in db.families().iter().filter(|n| !self.sample.data.contains_key(*n)) {
            assert!(!self.is_damaged(), "family {name} was never made");
            if let Ok(family) = db.family(name) {
                let _ = (scan(&family, true), scan(&family, false));
            }
        }
        // What is missing is the end of the log.
        let first = self.sample.logged.iter().position(|k| lost.contains(k));
        if let Some(first) = first.filter(|_| self.is_damaged()) {
            let rest = &self.sample.logged[first..];
            assert!(rest.iter().all(|k| lost.contains(k)), "lost {lost:?}, but not all after it");
        }
    }

    fn read_family(&self, name: &str, family: &ColumnFamily, data: &Data, lost: &mut Vec<(String, Vec<u8>)>) {
        let keys: Vec<&[u8]> = data.keys().map(|k| &k[..]).collect();
        let together = family.multi_get(&keys);
        for ((k, v), multi) in data.iter().zip(together) {
            for got in [family.get(k), multi] {
                let Some(got) = got.inspect_err(|e| self.located(e)).ok().filter(|_| self.is_damaged()) else {
                    continue;
                };
                let logged = (name.to_owned(), k.clone());
                if got.is_none() && self.torn && self.sample.logged.contains(&logged) {
                    lost.push(logged);
                    continue;
                }
                assert_eq!(got.as_deref(), Some(&v[..]), "get of {:?}", String::from_utf8_lossy(k));
            }
        }
        let _ = family.get(b"key-0104").map(|v| assert!(!self.is_damaged() || name != "other" || v.is_none()));
        for forward in [true, false] {
            let (found, end) = scan(family, forward);
            if !self.is_damaged() {
                continue;
            }
            for (k, v) in found.iter().filter(|(k, _)| *k != IN_DOUBT) {
                assert_eq!(data.get(k), Some(v), "a scan shows {:?}", String::from_utf8_lossy(k));
            }
            match end {
                Err(e) => self.located(&e),
                Ok(()) => {
                    let is_lost = |k: &Vec<u8>| lost.iter().any(|(f, l)| f == name && l == k);
                    let missing = data.keys().find(|k| !found.contains_key(*k) && !is_lost(k));
                    assert_eq!(missing, None, "a scan leaves a key out");
                }
            }
        }
    }
}

/// What a scan shows before its end or its first error.
fn scan(family: &ColumnFamily, forward: bool) -> (BTreeMap<Vec<u8>, Vec<u8>>, Result<(), Error>) {
    let mut found = BTreeMap::new();
    let mut it = match family.cursor(..) {
        Ok(it) => it,
        Err(e) => return (found, Err(e)),
    };
    if forward {
        it.seek_to_first();
    } else {
        it.seek_to_last();
    }
    let mut unread = Ok(());
    let mut steps = Steps(0);
    while it.valid() {
        steps.step("a scan");
        let k = it.key().to_vec();
        match it.value() {
            Ok(v) => {
                let v = v.to_vec();
                if found.len() < 10_000 {
                    found.insert(k, v);
                }
            }
            Err(e) => unread = Err(e),
        }
        if forward { it.next() } else { it.prev() }
    }
    let end = it.status();
    (found, end.and(unread))
}

fn dump_klog(fs: &MemFs, path: &Path, id: u64) {
    let Ok(file) = fs.open(path, OpenMode::Read) else { return };
    let _ = read_traits(&*file, id);
    let stats = Arc::new(Stats::default());
    let cache = BlockCache::new(0, 1, stats.clone());
    let mut scratch = ReadScratch::new();
    let show = |scratch: &ReadScratch| {
        for i in 0..scratch.entries() {
            let _ = scratch.entry(i).map(|e| (e.key(scratch.bytes()).len(), e.value(scratch.bytes()).len()));
        }
    };
    match Table::open_damaged(file.clone(), id, KeyOrder::Bytewise, cache, stats) {
        Ok((table, _)) => {
            for i in 0..table.blocks() {
                if table.read_block(i, &mut scratch).is_ok() {
                    show(&scratch);
                }
            }
        }
        Err(_) => {
            let mut walk = must(BlockScan::new(file, id), "a scan of blocks");
            let mut steps = Steps(0);
            while let Ok(Some(_)) = walk.next(&mut scratch) {
                steps.step("a scan of blocks");
                show(&scratch);
            }
        }
    }
}

fn dump_vlog(fs: &MemFs, path: &Path, id: u64) {
    let Ok(file) = fs.open(path, OpenMode::Read) else { return };
    let Ok((vlog, _)) = Vlog::open_damaged(file, id) else { return };
    let _ = vlog.verify();
    let mut records = vlog.records();
    let (mut value, mut part, mut steps) = (Vec::new(), Vec::new(), Steps(0));
    loop {
        steps.step("a walk over a value log");
        match records.next_value(&mut value) {
            Ok(None) => return,
            Ok(Some(p)) => {
                let Ok(mut reader) = vlog.reader(p) else { continue };
                for range in [0..1, p.raw_len / 2..p.raw_len, 0..p.raw_len] {
                    let _ = reader.read_range(range, &mut part);
                }
            }
            Err(_) if records.skip_damage().is_ok_and(|next| next.is_some()) => {}
            Err(_) => return,
        }
    }
}
