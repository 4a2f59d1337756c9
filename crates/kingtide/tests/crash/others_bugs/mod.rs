//! Bugs that other engines had, and ours must not: one small test for each, which brings about the very situation in which
//! the bug showed, and not by chance. Where another test looks wider, this one says by its name what went wrong.
//!
//! Whose bug it was is said where it is known; the others come from the issue trackers of embedded key-value engines.

mod families;
mod log;
mod manifest;
mod merges;
mod own;
mod reads;
mod space;
mod transactions;

use kingtide::vfs::{Fs, MemFs, OnWrite, OpenMode, Survival};
use kingtide::{ColumnFamily, Db, Durability, FamilyOptions, Options, Result, SeqNo, WriteBatch, WriteOptions};
use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const DIR: &str = "db";

/// What a family holds.
type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// Everything small, and background jobs only when asked for.
fn options(fs: &(impl Fs + Clone + 'static)) -> Options {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    let mut o = Options::new().fs(fs).manual_jobs(true);
    o.db.wal_segment_size = 64 << 10;
    o.db.block_cache_size = 1 << 20;
    o.family = small();
    o
}

fn small() -> FamilyOptions {
    FamilyOptions::new().memtable_size(64 << 10).target_file_size(64 << 10).block_size(512).value_threshold(256)
}

fn open(fs: &(impl Fs + Clone + 'static)) -> Db {
    Db::open(DIR, options(fs)).unwrap_or_else(|e| panic!("open: {e:?}"))
}

fn key(i: u64) -> Vec<u8> {
    format!("key-{i:05}").into_bytes()
}

fn value(i: u64) -> Vec<u8> {
    format!("value-{i:05}-{}", "v".repeat(i as usize % 40)).into_bytes()
}

/// One that goes to a value log.
fn large(i: u64) -> Vec<u8> {
    let mut v = value(i);
    v.resize(600 + i as usize % 100, (i % 251) as u8);
    v
}

fn power() -> WriteOptions {
    WriteOptions::new().durability(Durability::Power)
}

/// Puts so that it survives a power cut.
fn put_durably(family: &ColumnFamily, db: &Db, key: &[u8], value: &[u8]) -> Result<SeqNo> {
    let mut batch = WriteBatch::new();
    batch.put(family, key, value)?;
    db.write_with(&mut batch, &power())
}

/// All that a scan shows, each of it found by a get as well.
fn contents(family: &ColumnFamily) -> Contents {
    let mut all = Contents::new();
    let mut it = family.cursor(..).unwrap();
    it.seek_to_first();
    while it.valid() {
        let (key, value) = it.entry().map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap();
        assert_eq!(family.get(&key).unwrap().as_deref(), Some(&value[..]), "get of {}", key.escape_ascii());
        assert!(all.insert(key, value).is_none(), "a key twice");
        it.next();
    }
    it.status().unwrap();
    all
}

/// What is left when the machine loses all that was not synced.
fn cut(fs: &MemFs) -> MemFs {
    fs.crash_clone(Survival::AllLost, &mut Rng::new(1))
}

fn files(fs: &MemFs, extension: &str) -> Vec<PathBuf> {
    let names = fs.list(Path::new(DIR)).unwrap();
    names.iter().filter(|n| n.contains(extension)).map(|n| Path::new(DIR).join(n)).collect()
}

fn bytes_of(fs: &MemFs, path: &Path) -> Vec<u8> {
    let file = fs.open(path, OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Overwrites part of a file, durably.
fn patch(fs: &MemFs, path: &Path, at: usize, bytes: &[u8]) {
    let file = fs.open(path, OpenMode::Write).unwrap();
    file.write_at(bytes, at as u64).unwrap();
    file.sync_data().unwrap();
}

/// Where `needle` is in a file.
fn find(fs: &MemFs, path: &Path, needle: &[u8]) -> Option<usize> {
    bytes_of(fs, path).windows(needle.len()).position(|w| w == needle)
}

/// A crash at each write operation of `work`: the file system as a killed process leaves it and as a power cut does, with
/// what `progress` said at that moment.
fn crashes<P: Send + 'static>(
    fs: &MemFs,
    progress: impl Fn() -> P + Send + 'static,
    work: impl FnOnce(),
) -> Vec<(MemFs, P)> {
    let found = Arc::new(Mutex::new(Vec::new()));
    let kept = found.clone();
    let callback: OnWrite = Box::new(move |boundary| {
        let mut rng = Rng::new(boundary.number);
        let mut found = kept.lock().unwrap();
        found.push((boundary.kill_clone(), progress()));
        for model in Survival::ALL {
            found.push((boundary.crash_clone(model, &mut rng), progress()));
        }
    });
    fs.on_write(Some(callback));
    work();
    fs.on_write(None);
    let mut found = found.lock().unwrap();
    std::mem::take(&mut *found)
}
