//! Random histories, laid out over memtables and tables as the engine would, and the answers that they must give.

use crate::family::ReadContext;
use crate::family::tables::TableCache;
use crate::family::view::View;
use crate::memtable::FamilyMemtable;
use kingtide_base::budget::Budget;
use kingtide_base::clock::ManualClock;
use kingtide_base::key::CustomOrder;
use kingtide_base::names::{klog_path, vlog_path};
use kingtide_base::options::Compression;
use kingtide_base::rng::Rng;
use kingtide_base::stats::Stats;
use kingtide_base::{KeyOrder, Kind, SeqNo, Tag};
use kingtide_mem::ArenaPool;
use kingtide_mem::cache::BlockCache;
use kingtide_table::{TableOptions, TableWriter, VlogWriter};
use kingtide_versions::{FileMeta, Version};
use kingtide_vfs::{Fs, MemFs, OpenMode};
use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const START_MS: u64 = 1_000_000;

/// One operation of a history.
#[derive(Clone, Debug)]
pub struct Op {
    pub seq: SeqNo,
    pub key: Vec<u8>,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    Put {
        value: Vec<u8>,
        expiry: Option<u64>,
    },
    Delete,
    SingleDelete,
    /// From the key to here.
    RangeDelete(Vec<u8>),
}

/// Compares keys from their last byte to their first; has no head.
pub struct Backward;

impl CustomOrder for Backward {
    fn name(&self) -> &str {
        "backward"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.iter().rev().cmp(b.iter().rev())
    }
}

pub fn all_orders() -> Vec<KeyOrder> {
    let custom = KeyOrder::Custom(Arc::new(Backward));
    vec![KeyOrder::Bytewise, KeyOrder::Reverse, KeyOrder::U64, KeyOrder::I64, KeyOrder::CaseInsensitive, custom]
}

/// A family, its context, and its history.
pub struct Fixture {
    pub order: KeyOrder,
    pub view: Arc<View>,
    pub ctx: Arc<ReadContext>,
    pub clock: Arc<ManualClock>,
    pub history: Vec<Op>,
    pub last_seq: SeqNo,
    pub fs: Arc<dyn Fs>,
    pub dir: PathBuf,
    pub stats: Arc<Stats>,
}

/// What a history is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub ops: u64,
    pub range_deletes: bool,
    pub expiry: bool,
    /// Values from this length on go to value logs.
    pub value_threshold: usize,
    pub max_open_files: u64,
}

/// No random operations, all values inline.
pub const EMPTY: Shape =
    Shape { ops: 0, range_deletes: false, expiry: false, value_threshold: usize::MAX, max_open_files: 1000 };

/// A key that is likely to be hit again, to share a long prefix with others, and to tie with them in its head.
pub fn random_key(order: &KeyOrder, rng: &mut Rng) -> Vec<u8> {
    match order {
        KeyOrder::U64 | KeyOrder::I64 if !rng.one_in(10) => {
            let n = rng.below(300) as i64 - 100;
            n.to_le_bytes().to_vec()
        }
        KeyOrder::CaseInsensitive => {
            let len = 1 + rng.below(4) as usize;
            (0..len).map(|_| b"abABcC@[z"[rng.below(9) as usize]).collect()
        }
        _ => {
            let mut key = if rng.one_in(2) { b"common/prefix/".to_vec() } else { Vec::new() };
            let len = 1 + rng.below(4) as usize;
            key.extend((0..len).map(|_| [0, b'a', b'b', b'c', 0xff][rng.below(5) as usize]));
            key
        }
    }
}

fn random_op(order: &KeyOrder, shape: &Shape, seq: SeqNo, rng: &mut Rng) -> Op {
    let key = random_key(order, rng);
    let what = match rng.below(20) {
        0 | 1 => What::Delete,
        2 => What::SingleDelete,
        3 if shape.range_deletes && rng.one_in(4) => {
            let other = random_key(order, rng);
            return match order.compare(&key, &other) {
                Ordering::Greater => Op { seq, key: other, what: What::RangeDelete(key) },
                _ => Op { seq, key, what: What::RangeDelete(other) },
            };
        }
        _ => {
            let len = if rng.one_in(8) { rng.below(600) } else { rng.below(40) } as usize;
            let mut value = vec![0; len];
            rng.fill(&mut value);
            let expiry = (shape.expiry && rng.one_in(3)).then(|| START_MS + rng.below(2_000));
            What::Put { value, expiry }
        }
    };
    Op { seq, key, what }
}

/// Tag and stored value of a point operation whose value is inline.
fn stored(op: &Op) -> (Tag, Vec<u8>) {
    match &op.what {
        What::Put { value, expiry: None } => (Tag::new(op.seq, Kind::Put), value.clone()),
        What::Put { value, expiry: Some(ms) } => {
            (Tag::with_expiry(op.seq, Kind::Put), [&ms.to_le_bytes()[..], value].concat())
        }
        What::Delete => (Tag::new(op.seq, Kind::Delete), Vec::new()),
        What::SingleDelete => (Tag::new(op.seq, Kind::SingleDelete), Vec::new()),
        What::RangeDelete(_) => unreachable!("not a point operation"),
    }
}

struct Builder<'a> {
    order: &'a KeyOrder,
    shape: &'a Shape,
    fs: Arc<dyn Fs>,
    dir: &'a Path,
    next_id: u64,
}

impl Builder<'_> {
    /// Writes operations as one run of several files; range tombstones are cut at the files' bounds.
    fn run(&mut self, run: u64, ops: &[Op], rng: &mut Rng) -> Vec<Arc<FileMeta>> {
        let mut points: Vec<&Op> = ops.iter().filter(|o| !matches!(o.what, What::RangeDelete(_))).collect();
        points.sort_by(|a, b| self.order.compare(&a.key, &b.key).then(b.seq.cmp(&a.seq)));
        let mut files: Vec<Vec<&Op>> = vec![Vec::new()];
        for op in points {
            let same_key = |f: &Vec<&Op>| f.last().is_some_and(|l| self.order.compare(&l.key, &op.key).is_eq());
            match files.last_mut() {
                Some(f) if f.is_empty() || same_key(f) || !rng.one_in(30) => f.push(op),
                _ => files.push(vec![op]),
            }
        }
        let cuts: Vec<Option<Vec<u8>>> = files.iter().map(|f| f.first().map(|o| o.key.clone())).collect();
        let mut metas = Vec::new();
        for (i, file) in files.iter().enumerate() {
            let lo = if i == 0 { None } else { cuts[i].as_deref() };
            let hi = cuts.get(i + 1).and_then(|c| c.as_deref());
            metas.extend(self.file(run, file, ops, lo, hi, rng));
        }
        metas
    }

    fn file(
        &mut self,
        run: u64,
        points: &[&Op],
        ops: &[Op],
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
        rng: &mut Rng,
    ) -> Option<Arc<FileMeta>> {
        let ranges: Vec<(&[u8], &[u8], SeqNo)> = (ops.iter())
            .filter_map(|o| match &o.what {
                What::RangeDelete(end) => Some((&o.key[..], &end[..], o.seq)),
                _ => None,
            })
            .map(|(start, end, seq)| {
                let start = lo.map_or(start, |lo| if self.order.compare(lo, start).is_gt() { lo } else { start });
                let end = hi.map_or(end, |hi| if self.order.compare(hi, end).is_lt() { hi } else { end });
                (start, end, seq)
            })
            .filter(|(start, end, _)| self.order.compare(start, end).is_lt())
            .collect();
        if points.is_empty() && ranges.is_empty() {
            return None;
        }
        let id = self.next_id;
        let vlog_id = id + 1;
        self.next_id += 2;
        let mut vlog = None;
        let options = TableOptions {
            order: self.order.clone(),
            block_size: [128, 512, 4096][rng.below(3) as usize],
            restart_interval: 1 << rng.below(5),
            compression: if rng.one_in(2) { Compression::Lz4 } else { Compression::None },
            filter_fp: if rng.one_in(4) { 0.0 } else { 0.1 },
            index_sampling: 1 + rng.below(3) as usize,
            index_prefix_len: if rng.one_in(3) { 4 } else { 0 },
            expected_entries: points.len(),
            ..TableOptions::default()
        };
        let file = self.fs.open(&klog_path(self.dir, id), OpenMode::Create).unwrap();
        let mut table = TableWriter::new(file, id, options);
        for op in points {
            let (mut tag, mut value) = stored(op);
            if let What::Put { value: raw, .. } = &op.what
                && raw.len() >= self.shape.value_threshold
            {
                let vlog = vlog.get_or_insert_with(|| {
                    let file = self.fs.open(&vlog_path(self.dir, vlog_id), OpenMode::Create).unwrap();
                    VlogWriter::new(file, vlog_id, Compression::Lz4, 4096)
                });
                let pointer = vlog.append(raw).unwrap();
                value.truncate(value.len() - raw.len());
                pointer.encode(&mut value);
                tag = Tag(tag.0 & !0x7f | Kind::PutPointer as u64);
            }
            table.add(&op.key, tag, &value).unwrap();
        }
        for (start, end, seq) in ranges {
            table.add_range_tombstone(start, end, seq).unwrap();
        }
        if let Some(vlog) = vlog {
            vlog.finish().unwrap();
        }
        let info = table.finish().unwrap();
        Some(Arc::new(FileMeta {
            id,
            run,
            size: info.file_size,
            entries: info.entries,
            tombstones: info.tombstones,
            range_tombstones: info.range_tombstones,
            raw_bytes: info.raw_bytes,
            min_key: info.min_key,
            max_key: info.max_key,
            min_seq: info.min_seq,
            max_seq: info.max_seq,
            min_expiry_ms: info.min_expiry_ms,
            created_ms: START_MS,
            vlog_refs: info.vlog_refs.clone(),
            written_as: id,
            sequence: 0,
            hides: 0,
        }))
    }
}

fn memtable(order: &KeyOrder, pool: &Arc<ArenaPool>, first_seq: SeqNo, ops: &[Op]) -> Arc<FamilyMemtable> {
    let m = FamilyMemtable::new(order.clone(), pool, first_seq);
    for op in ops {
        match &op.what {
            What::RangeDelete(end) => m.insert_range(&op.key, end, op.seq),
            _ => {
                let (tag, value) = stored(op);
                m.writer().insert(&op.key, tag, &value);
            }
        }
    }
    m
}

impl Fixture {
    /// A history of random operations, cut into runs and memtables at random places.
    pub fn random(order: KeyOrder, shape: Shape, rng: &mut Rng) -> Fixture {
        let history: Vec<Op> = (1..=shape.ops).map(|seq| random_op(&order, &shape, seq, rng)).collect();
        Fixture::build(order, shape, history, rng)
    }

    pub fn build(order: KeyOrder, shape: Shape, history: Vec<Op>, rng: &mut Rng) -> Fixture {
        let (runs, immutable) = (rng.below(6), rng.below(3));
        let mut cuts: Vec<usize> =
            (0..runs + immutable).map(|_| rng.below(history.len() as u64 + 1) as usize).collect();
        cuts.sort_unstable();
        let dir = PathBuf::from("db");
        let fs: Arc<dyn Fs> = MemFs::shared();
        fs.create_dir_all(&dir).unwrap();
        let stats = Arc::new(Stats::default());
        let cache = BlockCache::new(if rng.one_in(2) { 1 << 16 } else { 0 }, 1, stats.clone());
        let tables = TableCache::new(fs.clone(), dir.clone(), cache, stats.clone(), shape.max_open_files);
        let mut builder = Builder { order: &order, shape: &shape, fs: fs.clone(), dir: &dir, next_id: 1 };
        let mut version = Version::default();
        let mut start = 0;
        for (i, end) in cuts[..runs as usize].iter().enumerate() {
            // The oldest go deepest; several runs may share a level.
            let level = (runs as usize - 1 - i) / 2;
            for meta in builder.run(i as u64 + 1, &history[start..*end], rng) {
                version.add(&order, level, meta);
            }
            start = *end;
        }
        version.check(&order).unwrap();
        let pool = ArenaPool::new(Budget::new(1 << 30));
        let mut memtables = Vec::new();
        for end in cuts[runs as usize..].iter().copied().chain([history.len()]) {
            let first_seq = start.checked_sub(1).map_or(1, |last| history[last].seq + 1);
            memtables.insert(0, memtable(&order, &pool, first_seq, &history[start..end]));
            start = end;
        }
        let clock = ManualClock::at_unix_ms(START_MS);
        let active = memtables.remove(0);
        let view = View::new(order.clone(), active, memtables, Arc::new(version), &tables, None);
        let ctx = Arc::new(ReadContext::new(stats.clone(), tables, clock.clone()));
        let last_seq = history.last().map_or(0, |o| o.seq);
        Fixture { order, view: Arc::new(view), ctx, clock, history, last_seq, fs, dir, stats }
    }

    /// All keys and values visible at `snapshot` when the clock shows `now_ms`, in key order.
    pub fn visible(&self, snapshot: SeqNo, now_ms: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
        let seen: Vec<&Op> = self.history.iter().filter(|o| o.seq <= snapshot).collect();
        let mut points: Vec<&Op> = seen.iter().filter(|o| !matches!(o.what, What::RangeDelete(_))).copied().collect();
        points.sort_by(|a, b| self.order.compare(&a.key, &b.key).then(b.seq.cmp(&a.seq)));
        points.dedup_by(|later, kept| self.order.compare(&later.key, &kept.key).is_eq());
        let deleted = |op: &Op| {
            seen.iter().any(|r| match &r.what {
                What::RangeDelete(end) => {
                    r.seq > op.seq
                        && self.order.compare(&r.key, &op.key).is_le()
                        && self.order.compare(&op.key, end).is_lt()
                }
                _ => false,
            })
        };
        (points.into_iter())
            .filter_map(|op| match &op.what {
                What::Put { value, expiry } if !deleted(op) && expiry.is_none_or(|at| at > now_ms) => {
                    Some((op.key.clone(), value.clone()))
                }
                _ => None,
            })
            .collect()
    }
}
