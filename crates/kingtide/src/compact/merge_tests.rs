//! Random histories, flushed, merged to levels and split, against a model: what every snapshot sees must stay the same.

use super::context::{FlushInput, MergeContext, MergeOutput};
use super::merge::{run_flush, run_merge};
use crate::family::ReadContext;
use crate::family::View;
use crate::family::tables::TableCache;
use crate::memtable::FamilyMemtable;
use crate::rangedel::RangeTombstone;
use crate::read::newest::{changed_since, range_changed_since};
use kingtide_base::clock::ManualClock;
use kingtide_base::key::split_expiry;
use kingtide_base::names::{klog_path, vlog_path};
use kingtide_base::options::FamilyOptions;
use kingtide_base::rng::Rng;
use kingtide_base::stats::Stats;
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kingtide_base::{ErrorKind, KeyOrder, Kind, SeqNo, Tag, budget::Budget};
use kingtide_mem::cache::BlockCache;
use kingtide_mem::{ArenaPool, Memtable};
use kingtide_table::{IterOptions, Table, ValuePointer, Vlog};
use kingtide_versions::{CompactionRange, FileMeta, Job, JobKind, Version, check_job};
use kingtide_vfs::{Fault, FaultFs, Fs, MemFs, Op as FileOp, OpenMode, Rule};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

const NOW_MS: u64 = 1_000_000;
const DIR: &str = "db";

#[derive(Clone, Debug)]
enum Op {
    Put(Vec<u8>, Option<u64>, Vec<u8>),
    Delete(Vec<u8>),
    SingleDelete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

struct World {
    fs: Arc<dyn Fs>,
    order: KeyOrder,
    options: FamilyOptions,
    next_file: AtomicU64,
    version: Version,
    cache: Arc<BlockCache>,
    stats: Arc<Stats>,
    pool: Arc<ArenaPool>,
    cancelled: AtomicBool,
    /// Operation `i` has sequence number `i + 1`.
    ops: Vec<Op>,
    raised_below: SeqNo,
    raise_flushes: bool,
}

impl World {
    fn new(order: KeyOrder, fs: Arc<dyn Fs>) -> World {
        fs.create_dir_all(Path::new(DIR)).unwrap();
        let stats = Arc::new(Stats::default());
        World {
            fs,
            order,
            options: FamilyOptions::new().value_threshold(24).target_file_size(700).block_size(512),
            next_file: AtomicU64::new(100),
            version: Version::default(),
            cache: BlockCache::new(1 << 20, 1, stats.clone()),
            stats,
            pool: ArenaPool::new(Budget::new(1 << 40)),
            cancelled: AtomicBool::new(false),
            ops: Vec::new(),
            raised_below: 0,
            raise_flushes: false,
        }
    }

    fn open_table(&self, f: &FileMeta) -> kingtide_base::Result<Arc<Table>> {
        let file = self.fs.open(&klog_path(Path::new(DIR), f.id), OpenMode::Read)?;
        Table::open(file, f.id, self.order.clone(), self.cache.clone(), self.stats.clone())
    }

    fn open_vlog(&self, id: u64) -> kingtide_base::Result<Arc<Vlog>> {
        Vlog::open(self.fs.open(&vlog_path(Path::new(DIR), id), OpenMode::Read)?, id)
    }

    fn with_context<T>(&self, snapshots: &[SeqNo], run: impl FnOnce(&MergeContext<'_>) -> T) -> T {
        let open_table = |f: &FileMeta| self.open_table(f);
        let open_vlog = |id: u64| self.open_vlog(id);
        run(&MergeContext {
            fs: self.fs.clone(),
            dir: Path::new(DIR),
            order: self.order.clone(),
            options: &self.options,
            next_file: &self.next_file,
            snapshots: snapshots.to_vec(),
            now_ms: NOW_MS,
            version: Arc::new(self.version.clone()),
            open_table: &open_table,
            open_vlog: &open_vlog,
            limiter: None,
            memory: None,
            cancelled: &self.cancelled,
            may_cancel: true,
            poll_interval: 4096,
            restart_interval: 4,
            raised_below: self.raised_below,
            keeps_from: u64::MAX,
        })
    }

    /// Operations `from..to` through memtables, as one run.
    fn flush_input(&self, from: usize, to: usize) -> FlushInput<'static> {
        let table = Arc::new(Memtable::new(self.order.clone(), &self.pool));
        let mut tombstones = Vec::new();
        let mut writer = table.writer();
        for (i, op) in self.ops[from..to].iter().enumerate() {
            let seq = (from + i) as SeqNo + 1;
            match op {
                Op::Put(k, None, v) => writer.insert(k, Tag::new(seq, Kind::Put), v),
                Op::Put(k, Some(ms), v) => {
                    let value = [&ms.to_le_bytes()[..], v].concat();
                    writer.insert(k, Tag::with_expiry(seq, Kind::Put), &value);
                }
                Op::Delete(k) => writer.insert(k, Tag::new(seq, Kind::Delete), b""),
                Op::SingleDelete(k) => writer.insert(k, Tag::new(seq, Kind::SingleDelete), b""),
                Op::DeleteRange(a, b) => tombstones.push(RangeTombstone { start: a.clone(), end: b.clone(), seq }),
            }
        }
        drop(writer);
        let run = self.next_file.load(Ordering::SeqCst);
        FlushInput {
            memtables: vec![table.iter()],
            tombstones: vec![Arc::new(tombstones)],
            run,
            last: if self.raise_flushes { to as SeqNo } else { 0 },
            relocate: BTreeSet::new(),
            hidden: None,
        }
    }

    fn flush(&mut self, from: usize, to: usize, snapshots: &[SeqNo]) {
        let input = self.flush_input(from, to);
        let out = self.with_context(snapshots, |ctx| run_flush(ctx, input)).unwrap();
        self.install(&[], out);
    }

    fn install(&mut self, inputs: &[(usize, Arc<FileMeta>)], out: MergeOutput) {
        for (level, f) in inputs {
            assert!(self.version.remove(*level, f.id));
        }
        for (level, meta) in out.added {
            self.version.add(&self.order, level, Arc::new(meta));
        }
        self.version.check(&self.order).unwrap();
    }

    /// A job over all files of levels `top..=bottom`.
    fn job(&self, top: usize, bottom: usize, relocate: bool, rng: &mut Rng, keys: &[Vec<u8>]) -> Option<Job> {
        let inputs: Vec<_> =
            self.version.files().filter(|(l, _)| (top..=bottom).contains(l)).map(|(l, f)| (l, f.clone())).collect();
        if inputs.is_empty() {
            return None;
        }
        let vlogs: BTreeSet<u64> = inputs.iter().flat_map(|(_, f)| f.vlog_refs.iter().map(|r| r.file_id)).collect();
        let mut boundaries: Vec<Vec<u8>> =
            (0..rng.below(4)).map(|_| keys[rng.below(keys.len() as u64) as usize].clone()).collect();
        boundaries.sort_by(|a, b| self.order.compare(a, b));
        let known = self.version.open_ends(&self.order);
        let job = Job {
            kind: JobKind::FullPreemptive,
            output_level: bottom,
            output_run: self.version.levels[bottom].first().map_or(bottom as u64, |r| r.id),
            drop_tombstones: self.version.levels[bottom + 1..].iter().all(Vec::is_empty) && rng.one_in(2),
            boundaries,
            relocate_vlogs: if relocate { vlogs } else { BTreeSet::new() },
            open_ends: inputs.iter().map(|(_, f)| f.id).filter(|id| known.contains(id)).collect(),
            inputs,
        };
        check_job(&self.order, &self.version, &[], &job).unwrap();
        Some(job)
    }

    /// Runs a job in pieces cut at `cuts`.
    fn run(&mut self, job: &Job, cuts: &[Vec<u8>], snapshots: &[SeqNo]) {
        let mut ranges = Vec::new();
        let mut lo = None;
        for cut in cuts {
            ranges.push(CompactionRange { lo: lo.replace(cut.clone()), hi: Some(cut.clone()) });
        }
        ranges.push(CompactionRange { lo, hi: None });
        let mut out = MergeOutput::default();
        for range in ranges {
            out.append(self.with_context(snapshots, |ctx| run_merge(ctx, job, &range)).unwrap());
        }
        if !job.relocate_vlogs.is_empty() {
            let left =
                out.added.iter().flat_map(|(_, f)| &f.vlog_refs).find(|r| job.relocate_vlogs.contains(&r.file_id));
            assert_eq!(left, None, "a value was not moved");
        }
        for vlog in &out.vlogs {
            let refs = out.added.iter().flat_map(|(_, f)| &f.vlog_refs).filter(|r| r.file_id == vlog.id);
            assert_eq!(refs.map(|r| r.bytes).sum::<u64>(), vlog.stored_bytes, "live bytes are exact");
        }
        self.install(&job.inputs, out);
    }

    /// What a snapshot sees, from the operations.
    fn model(&self, snapshot: SeqNo) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut state: Vec<(Vec<u8>, Option<u64>, Vec<u8>)> = Vec::new();
        let order = &self.order;
        for op in &self.ops[..snapshot as usize] {
            match op {
                Op::Put(k, expiry, v) => {
                    state.retain(|e| order.compare(&e.0, k).is_ne());
                    state.push((k.clone(), *expiry, v.clone()));
                }
                Op::Delete(k) | Op::SingleDelete(k) => state.retain(|e| order.compare(&e.0, k).is_ne()),
                Op::DeleteRange(a, b) => {
                    state.retain(|e| order.compare(&e.0, a).is_lt() || order.compare(&e.0, b).is_ge());
                }
            }
        }
        state.retain(|e| e.1.is_none_or(|ms| ms > NOW_MS));
        state.sort_by(|a, b| order.compare(&a.0, &b.0));
        state.into_iter().map(|(k, _, v)| (k, v)).collect()
    }

    /// Everything in the files, newest run first: entries with their values, and range tombstones.
    #[allow(clippy::type_complexity)]
    fn dump(&self) -> (Vec<(Vec<u8>, Tag, Vec<u8>)>, Vec<RangeTombstone>) {
        let (mut entries, mut ranges) = (Vec::new(), Vec::new());
        for (_, f) in self.version.files() {
            let table = self.open_table(f).unwrap();
            let mut iter = table.iter(IterOptions::default());
            iter.first().unwrap();
            while iter.valid() {
                let key = iter.key();
                assert!(self.order.compare(&f.min_key, key).is_le() && self.order.compare(key, &f.max_key).is_le());
                let (expiry, inner) = split_expiry(iter.tag(), iter.value()).unwrap();
                let mut value = inner.to_vec();
                if iter.tag().kind() == Some(Kind::PutPointer) {
                    let pointer = ValuePointer::decode(inner).unwrap();
                    self.open_vlog(pointer.file_id).unwrap().read(&pointer, &mut value).unwrap();
                }
                let gone = iter.tag().is_tombstone() || expiry.is_some_and(|ms| ms <= NOW_MS);
                let tag = if gone { Tag::new(iter.tag().seq(), Kind::Delete) } else { iter.tag() };
                entries.push((key.to_vec(), tag, value));
                iter.next().unwrap();
            }
            ranges.extend(table.range_tombstones().iter().map(|t| RangeTombstone {
                start: t.start.clone(),
                end: t.end.clone(),
                seq: t.seq,
            }));
        }
        self.check_runs_hold_a_key_in_one_file();
        entries.sort_by(|a, b| self.order.compare(&a.0, &b.0).then(b.1.cmp(&a.1)));
        (entries, ranges)
    }

    fn check_runs_hold_a_key_in_one_file(&self) {
        for (_, run) in self.version.runs() {
            let mut last: Option<Vec<u8>> = None;
            for f in &run.files {
                let mut iter = self.open_table(f).unwrap().iter(IterOptions::default());
                iter.first().unwrap();
                if iter.valid() {
                    assert!(
                        last.is_none_or(|l| self.order.compare(&l, iter.key()).is_lt()),
                        "file {} cuts a key",
                        f.id
                    );
                }
                iter.last().unwrap();
                last = iter.valid().then(|| iter.key().to_vec());
            }
        }
    }

    /// Every change after the oldest of the snapshots must have left a trace, and nothing else may look like one: from any
    /// moment since then.
    fn check_traces(&self, keys: &[Vec<u8>], snapshots: &[SeqNo], flushed: usize, what: &str) {
        let tables = TableCache::new(self.fs.clone(), DIR.into(), self.cache.clone(), self.stats.clone(), 1000);
        let active = FamilyMemtable::new(self.order.clone(), &self.pool, flushed as SeqNo + 1);
        let version = Arc::new(self.version.clone());
        let view = View::new(self.order.clone(), active, Vec::new(), version, &tables, None);
        let ctx = ReadContext::new(self.stats.clone(), tables, ManualClock::at_unix_ms(NOW_MS));
        let touches = |op: &Op, key: &[u8]| match op {
            Op::Put(k, ..) | Op::Delete(k) | Op::SingleDelete(k) => self.order.compare(k, key).is_eq(),
            Op::DeleteRange(a, b) => self.order.compare(a, key).is_le() && self.order.compare(key, b).is_lt(),
        };
        // A share of the moments, another one each time: the test is to stay short.
        let moments =
            (snapshots[0]..=flushed as SeqNo).filter(|s| (s + self.version.files().count() as u64).is_multiple_of(6));
        for since in moments.chain(snapshots.iter().copied()) {
            let later = &self.ops[since as usize..flushed];
            for key in keys {
                let want = later.iter().any(|op| touches(op, key));
                let what = format!("{what}: {} since {since} of {snapshots:?}", key.escape_ascii());
                assert_eq!(changed_since(&view, key, since, &ctx).unwrap(), want, "{what}");
                let only = Bound::Included(&key[..]);
                assert_eq!(range_changed_since(&view, only, only, since, &ctx).unwrap(), want, "range, {what}");
            }
        }
    }

    /// Whatever a run holds of a key must be older than all of it in newer runs.
    fn check_order_of_runs(&self, what: &str) {
        let mut oldest: BTreeMap<Vec<u8>, SeqNo> = BTreeMap::new();
        for (_, run) in self.version.runs() {
            let above = oldest.clone();
            for f in &run.files {
                let mut iter = self.open_table(f).unwrap().iter(IterOptions::default());
                iter.first().unwrap();
                while iter.valid() {
                    let (key, seq) = (iter.key().to_vec(), iter.tag().seq());
                    let newer = above.get(&key);
                    assert!(
                        newer.is_none_or(|s| seq < *s),
                        "{what}: {seq} of {} is below {newer:?}",
                        key.escape_ascii()
                    );
                    assert!((f.min_seq..=f.max_seq).contains(&seq), "{what}: {seq} in file {}", f.id);
                    oldest.insert(key, seq);
                    iter.next().unwrap();
                }
            }
        }
    }

    fn check(&self, snapshots: impl IntoIterator<Item = SeqNo>, what: &str) {
        let (entries, ranges) = self.dump();
        self.check_order_of_runs(what);
        for snapshot in snapshots {
            let mut seen: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            let mut last: Option<&[u8]> = None;
            for (key, tag, value) in entries.iter().filter(|e| e.1.seq() <= snapshot) {
                if last.is_some_and(|l| self.order.compare(l, key).is_eq()) {
                    continue;
                }
                last = Some(key);
                let covers = |f: &RangeTombstone| {
                    f.seq > tag.seq()
                        && f.seq <= snapshot
                        && self.order.compare(&f.start, key).is_le()
                        && self.order.compare(key, &f.end).is_lt()
                };
                if !tag.is_tombstone() && !ranges.iter().any(covers) {
                    seen.push((key.clone(), value.clone()));
                }
            }
            assert_eq!(seen, self.model(snapshot), "{what}: snapshot {snapshot}");
        }
    }
}

fn random_keys(order: &KeyOrder, rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = (0..24u64)
        .map(|i| match rng.below(3) {
            0 => i.to_le_bytes().to_vec(),
            1 => format!("Key{i:05}").into_bytes(),
            _ => vec![b'a' + (i % 26) as u8; 1 + rng.below(3) as usize],
        })
        .collect();
    keys.sort_by(|a, b| order.compare(a, b));
    keys.dedup_by(|a, b| order.compare(a, b).is_eq());
    keys
}

/// Operations in which a single delete always follows at most one put since the last delete of any sort.
fn random_ops(order: &KeyOrder, keys: &[Vec<u8>], n: usize, rng: &mut Rng) -> Vec<Op> {
    let mut puts: BTreeMap<usize, u32> = BTreeMap::new();
    let mut ops = Vec::new();
    while ops.len() < n {
        let i = rng.below(keys.len() as u64) as usize;
        let key = keys[i].clone();
        match rng.below(12) {
            0..=1 => {
                puts.remove(&i);
                ops.push(Op::Delete(key));
            }
            2..=4 if puts.get(&i).is_none_or(|n| *n <= 1) => {
                puts.remove(&i);
                ops.push(Op::SingleDelete(key));
            }
            5 if rng.one_in(3) => {
                let j = rng.below(keys.len() as u64) as usize;
                let (a, b) = (i.min(j), i.max(j));
                if order.compare(&keys[a], &keys[b]).is_lt() {
                    puts.retain(|k, _| *k < a || *k >= b);
                    ops.push(Op::DeleteRange(keys[a].clone(), keys[b].clone()));
                }
            }
            _ => {
                *puts.entry(i).or_default() += 1;
                let expiry = rng.one_in(4).then(|| if rng.one_in(2) { NOW_MS - 5 } else { NOW_MS + 5 });
                let value = format!("{}-{}", ops.len(), "v".repeat(rng.below(60) as usize));
                ops.push(Op::Put(key, expiry, value.into_bytes()));
            }
        }
    }
    ops
}

fn random_cuts(order: &KeyOrder, keys: &[Vec<u8>], rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut cuts: Vec<Vec<u8>> =
        (0..rng.below(3)).map(|_| keys[rng.below(keys.len() as u64) as usize].clone()).collect();
    cuts.sort_by(|a, b| order.compare(a, b));
    cuts.dedup();
    cuts
}

fn one_history(seed: u64) {
    let mut rng = Rng::new(seed);
    let orders = [KeyOrder::Bytewise, KeyOrder::Reverse, KeyOrder::U64, KeyOrder::I64, KeyOrder::CaseInsensitive];
    let order = if rng.one_in(2) { KeyOrder::Bytewise } else { orders[rng.below(5) as usize].clone() };
    let mut world = World::new(order.clone(), MemFs::shared());
    let keys = random_keys(&order, &mut rng);
    world.raise_flushes = rng.one_in(2);
    let n = 40 + rng.below(160) as usize;
    world.ops = random_ops(&order, &keys, n, &mut rng);
    let last = n as SeqNo;
    let mut named: Vec<SeqNo> = (0..rng.below(4)).map(|_| 1 + rng.below(last)).collect();
    named.sort_unstable();
    named.dedup();

    // Flushes. Sometimes the visible sequence number lags behind, and everything from there on is still to be seen.
    let mut at = 0;
    while at < n {
        let to = n.min(at + 1 + rng.below(60) as usize);
        let visible = if rng.one_in(3) { at as SeqNo + rng.below((to - at) as u64) } else { to as SeqNo };
        let mut snapshots: Vec<SeqNo> = named.iter().copied().filter(|s| *s <= visible).chain([visible]).collect();
        snapshots.dedup();
        world.flush(at, to, &snapshots);
        // What is not flushed yet is in memtables. Sometimes that is not known.
        world.raised_below = if rng.one_in(5) { 0 } else { to as SeqNo + 1 };
        world.ops.truncate(n);
        let upto: Vec<SeqNo> = snapshots.iter().copied().chain(visible..=to as SeqNo).collect();
        world.check(upto, &format!("seed {seed} flush {at}..{to}"));
        world.check_traces(&keys, &snapshots, to, &format!("seed {seed} flush {at}..{to}"));
        at = to;
        let levels = [(0, 1), (0, 2), (1, 2), (0, 3), (1, 1), (3, 3)];
        for _ in 0..rng.below(3) {
            let (top, bottom) = levels[rng.below(levels.len() as u64) as usize];
            let relocate = rng.one_in(3);
            if let Some(job) = world.job(top, bottom, relocate, &mut rng, &keys) {
                let cuts = random_cuts(&order, &keys, &mut rng);
                let mut all: Vec<SeqNo> =
                    named.iter().copied().filter(|s| *s <= to as SeqNo).chain([to as SeqNo]).collect();
                all.dedup();
                world.run(&job, &cuts, &all);
                let what = format!("seed {seed} merge {top}..{bottom} after {to} cut at {cuts:?}");
                world.check_traces(&keys, &all, to, &what);
                world.check(all, &what);
            }
        }
    }
    // Without snapshots the bottom holds nothing but what is seen.
    if let Some(mut job) = world.job(0, 7, true, &mut rng, &keys) {
        job.drop_tombstones = true;
        let cuts = random_cuts(&order, &keys, &mut rng);
        world.run(&job, &cuts, &[last]);
        world.check([last], &format!("seed {seed} bottom"));
        let (entries, ranges) = world.dump();
        assert!(
            ranges.is_empty() && entries.iter().all(|e| !e.1.is_tombstone()),
            "seed {seed}: {entries:?} {ranges:?}"
        );
        assert_eq!(entries.len(), world.model(last).len(), "seed {seed}");
    }
}

/// The sequence numbers of all entries, by key.
fn numbers(world: &World) -> Vec<SeqNo> {
    world.dump().0.iter().map(|(_, tag, _)| tag.seq()).collect()
}

fn world_of_puts(n: usize) -> World {
    let mut world = World::new(KeyOrder::Bytewise, MemFs::shared());
    world.ops =
        (0..n).map(|i| Op::Put(format!("key{}", i % 4).into_bytes(), None, format!("v{i}").into_bytes())).collect();
    world
}

/// Merges all tables into level 1, for readers at `snapshots` and memtables that begin with `raised_below`.
fn merge_all(world: &mut World, snapshots: &[SeqNo], raised_below: SeqNo) {
    world.raised_below = raised_below;
    let mut rng = Rng::new(1);
    let job = world.job(0, 1, false, &mut rng, &[b"key2".to_vec()]).unwrap();
    world.run(&job, &[], snapshots);
}

#[test]
fn puts_that_no_reader_can_tell_apart_get_one_number() {
    let merged = |snapshots: &[SeqNo], raised_below| {
        let mut world = world_of_puts(8);
        world.flush(0, 4, snapshots);
        world.flush(4, 8, snapshots);
        merge_all(&mut world, snapshots, raised_below);
        world.check(snapshots.iter().copied(), "after the merge");
        numbers(&world)
    };
    assert_eq!(merged(&[8], 9), [8, 8, 8, 8]);
    // Not beyond the oldest snapshot: what changed after it goes on having changed then.
    assert_eq!(merged(&[3, 8], 9), [5, 3, 6, 3, 7, 3, 8]);
    assert_eq!(merged(&[0, 8], 9), [5, 6, 7, 8]);
    // Nor as far as the memtables, which may begin before the numbers of a table that was ingested.
    assert_eq!(merged(&[8], 8), [7, 7, 7, 8]);
    assert_eq!(merged(&[8], 0), [5, 6, 7, 8]);
}

#[test]
fn a_raised_number_stays_below_those_of_newer_tables() {
    let mut world = world_of_puts(8);
    world.ops[5] = Op::Put(b"key9".to_vec(), None, b"v".to_vec());
    // An ingested table with a larger number may lie below a newer one of other keys.
    world.flush(0, 4, &[4]);
    world.flush(6, 8, &[8]);
    merge_all(&mut world, &[8], 0);
    world.flush(4, 6, &[8]);
    world.raised_below = 9;
    let mut job = world.job(1, 1, false, &mut Rng::new(1), &[b"key2".to_vec()]).unwrap();
    job.drop_tombstones = true;
    world.run(&job, &[], &[8]);
    world.check_order_of_runs("rewritten below a newer table");
    assert_eq!(numbers(&world), [5, 4, 4, 7, 8, 6]);
}

#[test]
fn a_flush_raises_numbers_as_far_as_the_oldest_snapshot() {
    let flushed = |snapshots: &[SeqNo]| {
        let mut world = world_of_puts(4);
        world.raise_flushes = true;
        world.flush(0, 4, snapshots);
        world.check(snapshots.iter().map(|s| *s.min(&4)), "after the flush");
        numbers(&world)
    };
    assert_eq!(flushed(&[4]), [4, 4, 4, 4]);
    assert_eq!(flushed(&[2, 4]), [2, 2, 3, 4]);
    assert_eq!(flushed(&[9]), [4, 4, 4, 4], "not beyond what it holds");
}

#[test]
fn pointers_keep_their_numbers() {
    let mut world = world_of_puts(4);
    world.ops[1] = Op::Put(b"key1".to_vec(), None, vec![b'v'; 40]);
    world.flush(0, 4, &[4]);
    merge_all(&mut world, &[4], 5);
    assert_eq!(numbers(&world), [4, 2, 4, 4]);
}

#[test]
fn every_snapshot_sees_the_same_before_and_after() {
    for seed in 0..250 {
        one_history(seed);
    }
}

/// Two writers put ascending keys into a region each, and a range that reaches over both is deleted on their way. A file ends
/// with each region, though it is far from full, and what is deleted stays so.
#[test]
fn files_end_where_streams_of_keys_do() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut world = World::new(KeyOrder::Bytewise, MemFs::shared());
        world.options = world.options.target_file_size(64 << 10).value_threshold(0);
        let mut next = [0u64; 2];
        while world.ops.len() < 3000 {
            let region = rng.below(2) as usize;
            let key = format!("{}{:05}", ["a", "b"][region], next[region]).into_bytes();
            match rng.below(400) {
                0 => {
                    let (lo, hi) = (next[0].saturating_sub(rng.below(50)), rng.below(50));
                    let range = (format!("a{lo:05}"), format!("b{hi:05}"));
                    world.ops.push(Op::DeleteRange(range.0.into_bytes(), range.1.into_bytes()));
                }
                1 => world.ops.push(Op::Delete(key)),
                2..20 => {
                    // The key is put twice: both versions are for a snapshot, and go to one file.
                    world.ops.push(Op::Put(key.clone(), None, b"first".to_vec()));
                    world.ops.push(Op::Put(key, None, b"second".to_vec()));
                    next[region] += 1;
                }
                _ => {
                    world.ops.push(Op::Put(key, None, vec![b'v'; rng.below(60) as usize]));
                    next[region] += 1;
                }
            }
        }
        let keys: Vec<Vec<u8>> = (0..50).map(|i| format!("{}{:05}", ["a", "b"][i % 2], i * 24).into_bytes()).collect();
        for (from, to) in [(0, 1000), (1000, 2000), (2000, 3000)] {
            let snapshots: Vec<SeqNo> =
                [500, 1500, 2500].into_iter().filter(|s| *s <= to as SeqNo).chain([to as SeqNo]).collect();
            world.flush(from, to, &snapshots);
            let what = format!("seed {seed} flush {from}..{to}");
            world.check(snapshots.iter().copied(), &what);
            world.check_traces(&keys, &snapshots, to, &what);
        }
        for (_, f) in world.version.files() {
            let table = world.open_table(f).unwrap();
            let mut iter = table.iter(IterOptions::default());
            iter.first().unwrap();
            let first = iter.key()[0];
            iter.last().unwrap();
            assert_eq!(first, iter.key()[0], "seed {seed}: file {} holds keys of both", f.id);
        }
        assert_eq!(world.version.files().count(), 6, "seed {seed}");
    }
}

#[test]
fn failures_leave_no_files() {
    for nth in 0..30 {
        let faults = Arc::new(FaultFs::new(MemFs::shared(), 1));
        let mut world = World::new(KeyOrder::Bytewise, faults.clone());
        let mut rng = Rng::new(nth);
        let keys = random_keys(&world.order, &mut rng);
        world.ops = random_ops(&world.order, &keys, 200, &mut rng);
        world.flush(0, 100, &[100]);
        world.flush(100, 200, &[200]);
        let before: Vec<String> = world.fs.list(Path::new(DIR)).unwrap();
        let job = world.job(0, 1, true, &mut rng, &keys).unwrap();
        let op = [FileOp::Write, FileOp::Sync, FileOp::Open, FileOp::Read][nth as usize % 4];
        faults.add(
            Rule::new(op, [Fault::Eio, Fault::ShortWrite, Fault::Enospc][nth as usize % 3]).nth(nth / 4 + 1).sticky(),
        );
        let result = world.with_context(&[200], |ctx| run_merge(ctx, &job, &CompactionRange::default()));
        faults.clear();
        if result.is_err() {
            let mut after = world.fs.list(Path::new(DIR)).unwrap();
            let mut before = before;
            after.sort();
            before.sort();
            assert_eq!(before, after, "failure {nth} of {op:?}");
        }
        world.check([200], "after a failure");
        world.cancelled.store(true, Ordering::SeqCst);
        let e = world.with_context(&[200], |ctx| run_merge(ctx, &job, &CompactionRange::default())).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Cancelled);
    }
}
