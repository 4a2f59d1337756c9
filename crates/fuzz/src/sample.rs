//! The good database that inputs edit: small, made by the engine itself, and with a file of every kind. Its contents are
//! known.

use crate::must;
use kingtide::vfs::{Fs, MemFs, OpenMode};
use kingtide::{ColumnFamily, Compression, Db, FamilyOptions, Isolation, ManualClock, Options, WriteBatch};
use kingtide_base::hash::mix64;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Where it is.
pub const DIR: &str = "db";

/// What a transaction in doubt puts, which [`Sample::data`] is without.
pub const IN_DOUBT: &[u8] = b"in doubt";

/// Data of one family.
pub type Data = BTreeMap<Vec<u8>, Vec<u8>>;

/// A database and what it holds.
pub struct Sample {
    fs: MemFs,
    /// What it holds, by family.
    pub data: BTreeMap<String, Data>,
    /// All that was ever put, by family: what a repair may find.
    pub ever: BTreeMap<String, Data>,
    /// Keys that only the log holds, with their families, in the order of their commits.
    pub logged: Vec<(String, Vec<u8>)>,
}

/// Options under which what a database allocates by itself is small.
pub fn options(fs: &MemFs) -> Options {
    let mut o = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
    o.db.wal_segment_size = 64 << 10;
    o.db.max_wal_size = 1 << 20;
    o.db.block_cache_size = 64 << 10;
    o.db.cache_shards = 1;
    o.db.background_threads = 1;
    o.db.max_subcompactions = 1;
    o.family = family_options(Compression::None);
    o
}

fn family_options(compression: Compression) -> FamilyOptions {
    FamilyOptions::new()
        .memtable_size(64 << 10)
        .block_size(512)
        .target_file_size(64 << 10)
        .value_threshold(150)
        .value_chunk_size(4096)
        .compression(compression)
}

fn value(i: u64) -> Vec<u8> {
    let len = match i % 8 {
        3 => 200,
        5 => 1500, // large enough to be packed in the log
        7 => 4500,
        _ => 20,
    };
    // Half of each value compresses.
    (0..len).map(|at| if at % 64 < 32 { b'.' } else { (mix64(i) >> (at % 8 * 8)) as u8 ^ at as u8 }).collect()
}

/// A database that was closed, and one whose process was killed.
pub fn get(killed: bool) -> &'static Sample {
    static BOTH: [OnceLock<Sample>; 2] = [const { OnceLock::new() }; 2];
    BOTH[killed as usize].get_or_init(|| Sample::make(killed))
}

impl Sample {
    fn make(killed: bool) -> Sample {
        let fs = MemFs::new();
        let mut o = options(&fs);
        o.clock = Some(ManualClock::at_unix_ms(1_700_000_000_000));
        let db = must(Db::open(DIR, o), "the sample");
        let packed = must(db.create_family("packed", family_options(Compression::Lz4)), "a family");
        let other = must(db.create_family("other", family_options(Compression::Zstd)), "a family");
        let mut s = Sample { fs: fs.clone(), data: BTreeMap::new(), ever: BTreeMap::new(), logged: Vec::new() };
        for part in 0..2u64 {
            for family in [db.default_family(), &packed, &other] {
                s.put(&db, family, part * 100..part * 100 + 16);
            }
            let (from, to) = (key(part * 100 + 4), key(part * 100 + 7));
            must(other.delete_range(&from..&to), "a range");
            must(db.delete(key(part * 100 + 2)), "a delete");
            let remove = |s: &mut Sample, family: &str, k: u64| s.data.get_mut(family).map(|d| d.remove(&key(k)));
            (part * 100 + 4..part * 100 + 7).for_each(|k| drop(remove(&mut s, "other", k)));
            remove(&mut s, "default", part * 100 + 2);
            must(db.flush(), "flush");
        }
        for i in 0..8 {
            let family = if i % 2 == 0 { &packed } else { db.default_family() };
            s.put(&db, family, 300 + i * 10..302 + i * 10);
            s.logged.extend((0..2).map(|k| (family.name(), key(300 + i * 10 + k))));
        }
        if killed {
            let mut txn = must(db.begin(Isolation::Serializable), "a transaction");
            must(txn.put(&packed, IN_DOUBT, b"perhaps"), "its write");
            must(txn.prepare(b"xid-1"), "prepare");
            drop(txn);
        } else {
            must(db.close(), "close");
            s.logged.clear();
        }
        s.fs = fs.kill_clone();
        s
    }

    /// A killed database whose files have some hundred KiB each, as few as make a multiple of them stand out. What it
    /// holds is not told.
    pub fn large() -> Sample {
        let fs = MemFs::new();
        let db = must(Db::open(DIR, options(&fs)), "the sample");
        let all = [Compression::None, Compression::Lz4, Compression::Zstd, Compression::Snappy];
        let families = all.map(|c| {
            let o = family_options(c).memtable_size(4 << 20).target_file_size(4 << 20);
            must(db.create_family(&format!("{c:?}"), o), "a family")
        });
        let fill = |family: &ColumnFamily, keys: std::ops::Range<u64>| {
            let mut batch = WriteBatch::new();
            for i in keys {
                must(
                    batch.put(
                        family,
                        format!("a-longer-key-{i:020}").as_bytes(),
                        &value(if i % 64 == 3 { i } else { 8 }),
                    ),
                    "a put",
                );
            }
            must(batch.delete_range(family, b"b"..b"c"), "a range");
            must(db.write(batch), "a commit");
        };
        for family in &families {
            fill(family, 0..6000);
            must(family.put(b"large", value(7).repeat(60)), "a put");
            must(family.flush(), "flush");
        }
        for i in 0..200 {
            must(families[0].set_option("level_ratio", &(2 + i % 90).to_string()), "an option");
        }
        fill(&families[1], 6000..12_000);
        let mut txn = must(db.begin(Isolation::Serializable), "a transaction");
        for i in 0..3000u32 {
            must(txn.put(&families[2], &i.to_be_bytes(), b"perhaps"), "its write");
        }
        must(txn.prepare(b"xid-2"), "prepare");
        drop(txn);
        Sample { fs: fs.kill_clone(), data: BTreeMap::new(), ever: BTreeMap::new(), logged: Vec::new() }
    }

    fn put(&mut self, db: &Db, family: &ColumnFamily, keys: std::ops::Range<u64>) {
        let mut batch = WriteBatch::new();
        for i in keys {
            must(batch.put(family, &key(i), &value(i)), "a put");
            for data in [&mut self.data, &mut self.ever] {
                data.entry(family.name()).or_default().insert(key(i), value(i));
            }
        }
        must(db.write(batch), "a commit");
    }

    /// The same, to hold something else.
    pub fn to_vary(&self) -> Sample {
        let (data, ever) = (self.data.clone(), self.ever.clone());
        Sample { fs: self.copy(), data, ever, logged: self.logged.clone() }
    }

    /// A copy whose files can be changed.
    pub fn copy(&self) -> MemFs {
        self.fs.kill_clone()
    }

    /// The files that have this in their name, sorted.
    pub fn files(&self, part: &str) -> Vec<PathBuf> {
        let names = must(self.fs.list(Path::new(DIR)), "list");
        names.iter().filter(|n| n.contains(part)).map(|n| Path::new(DIR).join(n)).collect()
    }

    /// The bytes of a file; of a log segment without most of the zeros behind what was written.
    pub fn bytes(&self, path: &Path) -> Vec<u8> {
        let mut bytes = read(&self.fs, path);
        if path.extension().is_some_and(|e| e == "wal") {
            let written = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
            bytes.truncate((written.next_multiple_of(8) + 64).min(bytes.len()));
        }
        bytes
    }
}

/// Key number `i`.
pub fn key(i: u64) -> Vec<u8> {
    format!("key-{i:04}").into_bytes()
}

/// All bytes of a file.
pub fn read(fs: &MemFs, path: &Path) -> Vec<u8> {
    let file = must(fs.open(path, OpenMode::Read), "open");
    let mut bytes = vec![0; must(file.len(), "length") as usize];
    must(file.read_exact_at(&mut bytes, 0), "read");
    bytes
}

/// Gives a file other contents. A log segment keeps its length if it was cut by [`Sample::bytes`] only.
pub fn replace(fs: &MemFs, path: &Path, bytes: &[u8]) {
    let file = must(fs.open(path, OpenMode::Overwrite), "open");
    must(file.write_at(bytes, 0), "write");
    must(file.sync_data(), "sync");
}
