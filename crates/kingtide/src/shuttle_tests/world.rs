//! A small database in memory, and what scenarios do with it.

use crate::{
    ColumnFamily, Compression, Cursor, Db, Durability, Error, ErrorKind, FamilyOptions, ManualClock, Options,
    WriteBatch, WriteOptions,
};
use kingtide_vfs::MemFs;
use shuttle::thread::JoinHandle;
use std::collections::BTreeMap;
use std::sync::Arc;

const DIR: &str = "/db";

/// A file system and a database in it.
pub(super) struct World {
    pub fs: MemFs,
    pub clock: Arc<ManualClock>,
    pub db: Db,
}

/// Options under which everything happens early: every flush makes a merge due, and values of 8 bytes go to value logs.
fn options(fs: &MemFs) -> Options {
    let mut o = Options::new();
    o.fs = Some(Arc::new(fs.clone()));
    o.clock = Some(ManualClock::at_unix_ms(1_800_000_000_000));
    o.manual_jobs = true;
    o.db.block_cache_size = 1 << 16;
    o.db.cache_shards = 1;
    o.db.wal_segment_size = 1 << 16;
    o.family = family_options();
    o
}

pub(super) fn family_options() -> FamilyOptions {
    FamilyOptions::new().memtable_size(1 << 16).compression(Compression::None).value_threshold(8).l0_trigger(2)
}

impl World {
    pub fn new() -> World {
        World::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Options)) -> World {
        let fs = MemFs::new();
        let mut options = options(&fs);
        let clock = ManualClock::at_unix_ms(1_800_000_000_000);
        options.clock = Some(clock.clone());
        change(&mut options);
        let db = Db::open(DIR, options).expect("open");
        World { fs, clock, db }
    }

    /// What a new process would find now.
    pub fn killed(&self) -> Db {
        reopen(&self.fs.kill_clone())
    }
}

/// Opens what is in a file system.
pub(super) fn reopen(fs: &MemFs) -> Db {
    Db::open(DIR, options(fs)).expect("reopen")
}

/// The value that stands for a number: short ones stay in the key log, long ones go to a value log.
pub(super) fn value(n: u32) -> Vec<u8> {
    let mut v = n.to_string().into_bytes();
    if n.is_multiple_of(2) {
        v.extend_from_slice(b"..........");
    }
    v
}

/// The number that a value stands for.
pub(super) fn meaning(value: &[u8]) -> u32 {
    let digits = value.split(|b| *b == b'.').next().unwrap_or_default();
    std::str::from_utf8(digits).ok().and_then(|d| d.parse().ok()).unwrap_or_else(|| panic!("value {value:?}"))
}

/// The number under a key; 0 when it is absent.
pub(super) fn get(family: &ColumnFamily, key: &str) -> u32 {
    family.get(key).expect("get").map_or(0, |v| meaning(&v))
}

/// Everything that an iterator shows.
pub(super) fn contents(mut it: Cursor) -> BTreeMap<String, u32> {
    let mut all = BTreeMap::new();
    it.seek_to_first();
    while it.valid() {
        let key = String::from_utf8(it.key().to_vec()).expect("key");
        let n = meaning(it.value().expect("value"));
        assert!(all.insert(key, n).is_none(), "a key twice");
        it.next();
    }
    it.status().expect("status");
    all
}

/// Writes that survive a power cut when they are acknowledged.
pub(super) fn durable() -> WriteOptions {
    WriteOptions { durability: Some(Durability::Power), no_wait: false }
}

/// A batch that sets keys of several families.
pub(super) fn batch(sets: &[(&ColumnFamily, &str, u32)]) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for (family, key, n) in sets {
        batch.put(family, key.as_bytes(), &value(*n)).expect("put");
    }
    batch
}

/// Seals the memtables of all families, as a writer does that fills them.
pub(super) fn rotate(db: &Db) {
    let inner = db.inner();
    let mut c = inner.commit.lock();
    let families = c.families.clone();
    families.iter().for_each(|f| inner.seal_memtable(&mut c, f));
}

/// Runs background jobs, at most so many.
pub(super) fn jobs(db: &Db, most: usize) {
    for _ in 0..most {
        if !db.run_one_job().expect("job") {
            return;
        }
    }
}

/// Starts a thread that does background work: freezes and flushes and merges, `rounds` times.
pub(super) fn churn(db: &Db, rounds: usize) -> JoinHandle<()> {
    let db = db.clone();
    shuttle::thread::spawn(move || {
        for _ in 0..rounds {
            rotate(&db);
            jobs(&db, 3);
        }
    })
}

/// Waits for threads; a panic of one is the test's.
pub(super) fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|t| t.join().expect("thread"));
}

/// From here on timed waits of this test end only when they are notified, so that a lost wake-up is a deadlock.
pub(super) fn never_time_out(never: bool) {
    kingtide_base::sync::never_time_out(never);
}

/// Whether an operation was refused because the database or the family is closed.
pub(super) fn is_closed(e: &Error) -> bool {
    e.kind() == ErrorKind::Closed
}
