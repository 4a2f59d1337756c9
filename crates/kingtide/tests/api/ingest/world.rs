//! Databases in memory, and sorted files for them.

use kingtide::vfs::{Fs, MemFs};
use kingtide::{ColumnFamily, Db, ManualClock, Options, ReadOptions, Snapshot, SortedFile, SortedFileWriter};
use kingtide_base::rng::Rng;
pub use kingtide_testkit::full;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

pub fn options_on(fs: Arc<dyn Fs>, manual: bool) -> Options {
    let mut options = Options::new().fs(fs).manual_jobs(manual);
    if manual {
        options.clock = Some(ManualClock::at_unix_ms(1_800_000_000_000));
    }
    let small = "wal_segment_size=65536 memtable_size=65536 memtable_budget=1M target_file_size=65536 value_threshold=200 \
                 l0_trigger=2 level_ratio=2 block_size=1024";
    for text in small.split_whitespace() {
        let (name, value) = text.split_once('=').unwrap();
        options.set(name, value).unwrap();
    }
    options
}

pub fn open(fs: &MemFs) -> Db {
    fs.create_dir_all(Path::new("files")).unwrap();
    Db::open("db", options_on(Arc::new(fs.clone()), true)).unwrap()
}

pub fn contents(family: &ColumnFamily, snapshot: Option<&Snapshot>) -> Contents {
    let mut it = family.cursor_with(ReadOptions::new().snapshot(snapshot)).unwrap();
    let mut all = Contents::new();
    it.seek_to_first();
    while it.valid() {
        let key = it.key().to_vec();
        all.insert(key, it.value().unwrap().to_vec());
        it.next();
    }
    it.status().unwrap();
    all
}

pub fn key(i: u64) -> Vec<u8> {
    format!("key-{i:05}").into_bytes()
}

/// Mostly short; some are larger than the value threshold.
pub fn value(rng: &mut Rng) -> Vec<u8> {
    let len = if rng.one_in(6) { 200 + rng.below(600) } else { rng.below(40) };
    let mut v = vec![0; len as usize];
    rng.fill(&mut v);
    v
}

/// Writes a file with `put(i)` for each of the keys.
pub fn sorted_file(family: &ColumnFamily, path: &str, keys: impl IntoIterator<Item = u64>, value: &[u8]) -> SortedFile {
    let mut w = SortedFileWriter::create(path, family).unwrap();
    for i in keys {
        w.put(&key(i), value).unwrap();
    }
    w.finish().unwrap()
}
