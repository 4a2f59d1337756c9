//! Databases to damage, and what they must answer.

use kingtide::vfs::{Fs, MemFs, OpenMode};
use kingtide::{Compression, CustomOrder, Db, FamilyOptions, KeyOrder, Options, WriteBatch};
use kingtide_base::hash::mix64;
use kingtide_base::rng::Rng;
pub use kingtide_testkit::full;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const DIR: &str = "db";

/// Data of one family.
pub type Data = BTreeMap<Vec<u8>, Vec<u8>>;
/// Data of all families.
pub type State = BTreeMap<String, Data>;

/// Shorter keys first.
struct ShortLex;

impl CustomOrder for ShortLex {
    fn name(&self) -> &str {
        "shortlex"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.len().cmp(&b.len()).then_with(|| a.cmp(b))
    }
}

/// How a sample is made.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    pub compression: Compression,
    pub value_threshold: u64,
    pub filter_fp: f64,
    /// Of the family `ordered`.
    order: fn() -> KeyOrder,
}

fn shortlex() -> KeyOrder {
    KeyOrder::Custom(Arc::new(ShortLex))
}

/// One for each compression, with the other options spread over them.
pub const KINDS: [Kind; 4] = [
    Kind { name: "none", compression: Compression::None, value_threshold: 200, filter_fp: 0.01, order: shortlex },
    Kind {
        name: "lz4",
        compression: Compression::Lz4,
        value_threshold: 100,
        filter_fp: 0.01,
        order: || KeyOrder::Reverse,
    },
    Kind {
        name: "zstd",
        compression: Compression::Zstd,
        value_threshold: 1,
        filter_fp: 0.01,
        order: || KeyOrder::CaseInsensitive,
    },
    Kind { name: "snappy", compression: Compression::Snappy, value_threshold: 0, filter_fp: 0.0, order: shortlex },
];

impl Kind {
    pub fn options(&self, fs: &MemFs) -> Options {
        let mut o = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
        o.db.wal_segment_size = 64 << 10;
        o.db.max_wal_size = 256 << 10;
        o.db.block_cache_size = 1 << 20;
        o.family.block_size = 1024;
        o.family.value_threshold = self.value_threshold;
        o.family.value_chunk_size = 4096;
        o.family.compression = self.compression;
        o.family.zstd_dictionary = 512; // of the kind that is compressed with Zstandard
        o.family.filter_fp = self.filter_fp;
        o.custom_orders = vec![Arc::new(ShortLex)];
        o
    }

    fn family(&self, fs: &MemFs) -> FamilyOptions {
        self.options(fs).family
    }
}

/// Mostly small; some that go to a value log, compressed before that, and some of several chunks.
fn value(i: u64) -> Vec<u8> {
    let len: usize = match i % 25 {
        3 => 9000,
        7 | 12 => 1500,
        n if n % 5 == 0 => 300,
        _ => 40,
    };
    let compressible = i.is_multiple_of(3);
    if compressible {
        return mix64(i).to_le_bytes().repeat(len.div_ceil(8))[..len].to_vec();
    }
    let mut value = vec![0; len];
    Rng::new(i).fill(&mut value);
    value
}

/// A database with tables and value logs of four families, and commits that are only in the log.
pub struct Sample {
    pub kind: &'static Kind,
    pub closed: bool,
    pub fs: MemFs,
    /// A checkpoint of it, in a place of its own.
    pub checkpoint: bool,
    /// What is there after so many of the commits that are in the log alone; the last one is all.
    pub states: Vec<State>,
    /// All values that a key ever had.
    pub ever: HashSet<(String, Vec<u8>, Vec<u8>)>,
    /// What files held earlier, recycled log segments too.
    pub earlier: Vec<(PathBuf, Vec<u8>)>,
}

struct Maker {
    fs: MemFs,
    db: Db,
    state: State,
    ever: HashSet<(String, Vec<u8>, Vec<u8>)>,
    round: u64,
}

pub const FAMILIES: [&str; 4] = ["default", "other", "ranges", "ordered"];

impl Maker {
    fn put(&mut self, family: &str, keys: std::ops::Range<u64>) {
        let handle = self.db.family(family).unwrap();
        let mut batch = WriteBatch::new();
        for i in keys {
            let key = format!("key-{i:05}").into_bytes();
            let value = value(i + self.round * 1000);
            batch.put(&handle, &key, &value).unwrap();
            self.ever.insert((family.to_owned(), key.clone(), value.clone()));
            self.state.entry(family.to_owned()).or_default().insert(key, value);
        }
        self.db.write(batch).unwrap();
    }

    fn delete_range(&mut self, family: &str, keys: std::ops::Range<u64>) {
        let handle = self.db.family(family).unwrap();
        let [lo, hi] = [keys.start, keys.end].map(|i| format!("key-{i:05}"));
        if handle.order().compare(lo.as_bytes(), hi.as_bytes()).is_lt() {
            handle.delete_range(&lo..&hi).unwrap();
            let data = self.state.get_mut(family).unwrap();
            data.retain(|k, _| &k[..] < lo.as_bytes() || &k[..] >= hi.as_bytes());
        }
    }
}

impl Sample {
    pub fn new(kind: &'static Kind, closed: bool) -> Sample {
        let fs = MemFs::new();
        let db = Db::open(DIR, kind.options(&fs)).unwrap();
        for name in &FAMILIES[1..3] {
            db.create_family(name, kind.family(&fs)).unwrap();
        }
        db.create_family_ordered(FAMILIES[3], kind.family(&fs), (kind.order)()).unwrap();
        let mut m = Maker { fs, db, state: State::new(), ever: HashSet::new(), round: 0 };
        let mut earlier = Vec::new();
        // Enough to recycle segments of the log; then a compaction drops it.
        for round in 0..6 {
            m.round = round;
            m.put("default", 1000..1040);
            earlier.extend(images(&m.fs));
            m.db.flush().unwrap();
        }
        m.db.compact().unwrap();
        for part in 0..3 {
            m.round += 1;
            m.put("default", part * 100..part * 100 + 40);
            for family in &FAMILIES[1..] {
                m.put(family, part * 100..part * 100 + 20);
            }
            m.delete_range("ranges", part * 100 + 5..part * 100 + 9);
            m.delete_range("ordered", part * 100 + 12..part * 100 + 14);
            m.db.flush().unwrap();
            earlier.extend(images(&m.fs));
        }
        let mut states = vec![m.state.clone()];
        for i in 0..12 {
            m.put(FAMILIES[i as usize % 2], 400 + i * 10..406 + i * 10);
            states.push(m.state.clone());
        }
        let fs = m.fs.clone();
        let fs = if closed {
            m.db.close().unwrap();
            states.drain(..states.len() - 1);
            fs
        } else {
            fs.kill_clone()
        };
        Sample { kind, closed, checkpoint: false, fs: fs.kill_clone(), states, ever: m.ever, earlier }
    }

    /// A checkpoint of a database that was killed, with all that was in its log.
    pub fn checkpointed(kind: &'static Kind) -> Sample {
        let mut sample = Sample::new(kind, false);
        let db = Db::open(DIR, kind.options(&sample.fs)).unwrap();
        db.checkpoint("copy").unwrap();
        drop(db);
        let alone = MemFs::new();
        alone.create_dir_all(Path::new(DIR)).unwrap();
        for name in sample.fs.list(Path::new("copy")).unwrap() {
            let bytes = bytes_of(&sample.fs, &Path::new("copy").join(&name));
            let path = Path::new(DIR).join(&name);
            replace(&alone, &path, &bytes);
        }
        alone.sync_dir(Path::new(DIR)).unwrap();
        sample.states.drain(..sample.states.len() - 1);
        Sample { closed: true, checkpoint: true, fs: alone.kill_clone(), ..sample }
    }

    pub fn all(&self) -> &State {
        self.states.last().unwrap()
    }

    pub fn options(&self, fs: &MemFs) -> Options {
        self.kind.options(fs)
    }

    pub fn files(&self, extension: &str) -> Vec<PathBuf> {
        let names = self.fs.list(Path::new(DIR)).unwrap();
        let fits = |n: &&String| n.contains(extension) && (extension != ".wal" || !n.ends_with("free"));
        names.iter().filter(fits).map(|n| Path::new(DIR).join(n)).collect()
    }

    /// The family whose table or value log a file is. `None` for files of the whole database.
    pub fn owner(&self, path: &Path) -> Option<String> {
        if !path.extension().is_some_and(|e| e == "klog" || e == "vlog") {
            return None;
        }
        // Remove it and see whose reads fail.
        let fs = self.fs.kill_clone();
        fs.remove(path).unwrap();
        let db = Db::open(DIR, self.options(&fs)).unwrap();
        let owner = self.all().iter().find(|(name, data)| {
            let f = db.family(name).unwrap();
            // What it holds may all be overwritten: then only a scan meets it.
            data.keys().any(|k| f.get(k).is_err()) || f.iter().any(|e| e.is_err())
        });
        Some(owner.unwrap_or_else(|| panic!("no family needs {}", path.display())).0.clone())
    }
}

fn images(fs: &MemFs) -> Vec<(PathBuf, Vec<u8>)> {
    let names = fs.list(Path::new(DIR)).unwrap();
    let kept = names.iter().filter(|n| n.contains(".wal") || n.contains("MANIFEST"));
    kept.map(|n| Path::new(DIR).join(n)).map(|p| (p.clone(), bytes_of(fs, &p))).collect()
}

pub fn bytes_of(fs: &MemFs, path: &Path) -> Vec<u8> {
    let file = fs.open(path, OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

pub fn replace(fs: &MemFs, path: &Path, bytes: &[u8]) {
    let file = fs.open(path, OpenMode::Overwrite).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync_data().unwrap();
}

pub fn directory(fs: &MemFs) -> BTreeMap<String, Vec<u8>> {
    let names = fs.list(Path::new(DIR)).unwrap();
    names.into_iter().map(|n| (n.clone(), bytes_of(fs, &Path::new(DIR).join(n)))).collect()
}
