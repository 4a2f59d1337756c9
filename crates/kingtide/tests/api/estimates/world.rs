//! A family whose keys are known, in all states that a tree goes through.

use kingtide::vfs::MemFs;
use kingtide::{ColumnFamily, Db, FamilyOptions, KeyOrder, Options, WriteBatch};
use kingtide_base::rng::Rng;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

/// What keys look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Ascending,
    Random,
    Text,
    /// A number of the table and of the row, as a SQL engine writes them.
    Rows,
    Reverse,
    Numbers,
}

impl Shape {
    pub const ALL: [Shape; 6] =
        [Shape::Ascending, Shape::Random, Shape::Text, Shape::Rows, Shape::Reverse, Shape::Numbers];

    fn order(self) -> KeyOrder {
        match self {
            Shape::Reverse => KeyOrder::Reverse,
            Shape::Numbers => KeyOrder::U64,
            _ => KeyOrder::Bytewise,
        }
    }

    fn key(self, i: u64) -> Vec<u8> {
        let scattered = kingtide_base::hash::mix64(i);
        match self {
            Shape::Ascending | Shape::Reverse => i.to_be_bytes().to_vec(),
            Shape::Random => scattered.to_be_bytes().to_vec(),
            Shape::Text => format!("user:{:06}:name", scattered % 1_000_000).into_bytes(),
            Shape::Rows => [&((i % 3) as u32).to_be_bytes()[..], &(i / 3).to_be_bytes()].concat(),
            Shape::Numbers => (scattered % 1_000_000).to_le_bytes().to_vec(),
        }
    }
}

/// Where the entries are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// All in memtables.
    Memtable,
    /// Half in tables.
    Mixed,
    /// All in tables, in several runs.
    Flushed,
    /// In one run.
    Merged,
    /// A range and every tenth key deleted, not merged.
    Holes,
    /// Keys written again, some of them deleted, not merged.
    Updated,
}

pub struct World {
    pub db: Db,
    pub family: ColumnFamily,
    shape: Shape,
    options: &'static str,
    state: State,
    seed: u64,
    size: u64,
    /// Present keys, sorted in the family's order.
    keys: Vec<Vec<u8>>,
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} keys, {:?}, '{}', KINGTIDE_SEED={}", self.shape, self.state, self.options, self.seed)
    }
}

/// Shapes and option sets.
pub fn runs() -> impl Iterator<Item = (Shape, &'static str)> {
    const SETS: [&str; 5] = [
        "",
        "index_sampling=4 compression=none",
        "value_threshold=16",
        "target_file_size=65536 block_size=512",
        "index_prefix_len=11 block_size=2048",
    ];
    Shape::ALL.into_iter().flat_map(|shape| SETS.into_iter().map(move |set| (shape, set)))
}

const VALUE: usize = 40;

impl World {
    pub fn new(shape: Shape, options: &'static str, seed: u64, size: u64) -> World {
        let mut open = Options::new().fs(Arc::new(MemFs::new())).manual_jobs(true).seed(seed);
        let mut family = FamilyOptions::new().block_size(1024);
        for (name, value) in options.split_whitespace().filter_map(|o| o.split_once('=')) {
            family.set(name, value).unwrap();
        }
        open.family = family.clone();
        let db = Db::open("/db", open).unwrap();
        let family = db.create_family_ordered("f", family, shape.order()).unwrap();
        let mut world = World { db, family, shape, options, state: State::Memtable, seed, size, keys: Vec::new() };
        world.insert(0, size / 2);
        world
    }

    /// Entries that a block has at most.
    pub fn entries_a_block(&self) -> f64 {
        let stored = if self.options.contains("value_threshold=16") { 12 } else { VALUE };
        let sampling = if self.options.contains("sampling") || self.options.contains("prefix_len") { 4.0 } else { 1.0 };
        sampling * self.family.options().block_size as f64 / stored as f64
    }

    /// Whether keys have several versions.
    pub fn overwrites(&self) -> bool {
        self.state == State::Updated
    }

    fn insert(&mut self, from: u64, to: u64) {
        let keys: Vec<Vec<u8>> = (from..to).map(|i| self.shape.key(i)).collect();
        self.put(&keys);
        self.keys.extend(keys);
        self.sort();
    }

    fn sort(&mut self) {
        let order = self.shape.order();
        self.keys.sort_by(|a, b| order.compare(a, b));
        self.keys.dedup();
    }

    fn put(&self, keys: &[Vec<u8>]) {
        for chunk in keys.chunks(500) {
            let mut batch = WriteBatch::new();
            chunk.iter().for_each(|k| batch.put(&self.family, k, &[k[k.len() / 2]; VALUE]).unwrap());
            self.db.write(batch).unwrap();
        }
    }

    pub fn insert_all(&mut self) {
        self.keys.clear();
        self.insert(0, self.size);
    }

    pub fn delete_all(&mut self) {
        let (first, last) = (self.keys[0].clone(), self.keys[self.keys.len() - 1].clone());
        self.family.delete_range(first..=last).unwrap();
        self.keys.clear();
    }

    pub fn go_to(&mut self, state: State, rng: &mut Rng) {
        match state {
            State::Memtable => {}
            State::Mixed => {
                self.family.flush().unwrap();
                self.insert(self.size / 2, self.size);
            }
            State::Flushed => self.family.flush().unwrap(),
            State::Merged => self.family.compact_range(..).unwrap(),
            State::Holes => {
                let i = rng.below(self.keys.len() as u64 / 2) as usize;
                let gone = i..i + self.keys.len() / 4;
                self.family.delete_range(&self.keys[gone.start]..&self.keys[gone.end]).unwrap();
                self.keys.drain(gone);
                let n = std::cell::Cell::new(0u64);
                let deleted = self.keys.extract_if(.., |_| n.replace(n.get() + 1).is_multiple_of(10));
                deleted.for_each(|k| {
                    self.family.delete(k).unwrap();
                });
            }
            State::Updated => {
                let again: Vec<Vec<u8>> = self.keys.iter().filter(|_| rng.one_in(5)).cloned().collect();
                self.put(&again);
                self.family.flush().unwrap();
                self.put(&again);
            }
        }
        self.state = state;
    }

    /// Keys within the bounds.
    pub fn count(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> u64 {
        let order = self.shape.order();
        let before = match lower {
            Bound::Included(k) => self.keys.partition_point(|x| order.compare(x, k).is_lt()),
            Bound::Excluded(k) => self.keys.partition_point(|x| order.compare(x, k).is_le()),
            Bound::Unbounded => 0,
        };
        let up_to = match upper {
            Bound::Included(k) => self.keys.partition_point(|x| order.compare(x, k).is_le()),
            Bound::Excluded(k) => self.keys.partition_point(|x| order.compare(x, k).is_lt()),
            Bound::Unbounded => self.keys.len(),
        };
        up_to.saturating_sub(before) as u64
    }

    /// Bounds: long and short ranges, present keys and absent ones, now and then the wrong way round.
    pub fn draw_range(&self, rng: &mut Rng) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let n = self.keys.len() as u64;
        let at = rng.below(n.max(1));
        let length = [0, 1, 5, 50, 500, n][rng.below(6) as usize];
        let key = |i: u64, rng: &mut Rng| match self.keys.get(i as usize) {
            Some(key) if !rng.one_in(5) => key.clone(),
            _ => self.shape.key(rng.below(self.size * 2)),
        };
        let bound = |key: Vec<u8>, rng: &mut Rng| match rng.below(7) {
            0..3 => Bound::Included(key),
            3..6 => Bound::Excluded(key),
            _ => Bound::Unbounded,
        };
        let (from, to) = (key(at, rng), key(at + length, rng));
        (bound(from, rng), bound(to, rng))
    }
}
