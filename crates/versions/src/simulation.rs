//! Loads simulated on file metadata alone: flushes and merges as the planner wants them, several at a time and
//! finishing in any order. After every step the invariants are checked key by key.

use crate::job::{CompactionRange, Job, JobKind, check_job};
use crate::planner::{Manual, Plan, PlanInput, Rewrite, level0_pressure, plan};
use crate::streams::Streams;
use crate::version::{FileMeta, LEVELS, Version};
use kingtide_base::KeyOrder;
use kingtide_base::options::FamilyOptions;
use kingtide_base::rng::Rng;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

const ENTRY: u64 = 1 << 10;

type Entries = Vec<(u32, u64)>;

struct Simulation {
    seed: u64,
    rng: Rng,
    options: FamilyOptions,
    version: Version,
    contents: HashMap<u64, Entries>,
    running: Vec<Job>,
    draining: bool,
    /// Everything is asked to be compacted, at that sequence number.
    asked: Option<u64>,
    next_id: u64,
    seq: u64,
    live: BTreeMap<u32, u64>,
    flushed: u64,
    written: u64,
    merges: u64,
    moves: u64,
    most_runs: usize,
    peak_space: f64,
}

impl Simulation {
    fn new(seed: u64, options: FamilyOptions) -> Simulation {
        Simulation {
            seed,
            rng: Rng::new(seed),
            options,
            version: Version::default(),
            contents: HashMap::new(),
            running: Vec::new(),
            draining: false,
            asked: None,
            next_id: 100,
            seq: 0,
            live: BTreeMap::new(),
            flushed: 0,
            written: 0,
            merges: 0,
            moves: 0,
            most_runs: 0,
            peak_space: 0.0,
        }
    }

    fn small_options() -> FamilyOptions {
        FamilyOptions::new().memtable_size(64 * ENTRY).target_file_size(16 * ENTRY).level_ratio(4)
    }

    fn add_file(&mut self, level: usize, run: u64, entries: Entries) {
        let id = self.next_id;
        self.next_id += 1;
        let key = |e: Option<&(u32, u64)>| e.unwrap().0.to_be_bytes().to_vec();
        let meta = FileMeta {
            id,
            run,
            size: entries.len() as u64 * ENTRY,
            entries: entries.len() as u64,
            tombstones: 0,
            range_tombstones: 0,
            raw_bytes: entries.len() as u64 * ENTRY,
            min_key: key(entries.first()),
            max_key: key(entries.last()),
            min_seq: entries.iter().map(|e| e.1).min().unwrap(),
            max_seq: entries.iter().map(|e| e.1).max().unwrap(),
            min_expiry_ms: 0,
            created_ms: 0,
            vlog_refs: Vec::new(),
            written_as: id,
            sequence: 0,
            hides: 0,
        };
        self.written += meta.size;
        self.contents.insert(id, entries);
        self.version.add(&KeyOrder::Bytewise, level, Arc::new(meta));
    }

    /// Cuts entries into files of a run, at boundaries once a file is half full, and where streams of keys end: as the executor
    /// does.
    fn add_run(&mut self, level: usize, run: u64, entries: impl IntoIterator<Item = (u32, u64)>, cuts: &[Vec<u8>]) {
        let mut file = Entries::new();
        let mut streams = Streams::new(self.options.target_file_size, u64::MAX);
        let target = (self.options.target_file_size / ENTRY) as usize;
        for (key, seq) in entries {
            let crossed =
                |last: &u32| cuts.iter().any(|c| last.to_be_bytes()[..] < c[..] && c[..] <= key.to_be_bytes()[..]);
            let cut = file.last().is_some_and(|(last, _)| file.len() * 2 >= target && crossed(last));
            let ended = streams.step(seq);
            let entries = file.len() as u64;
            let cut = cut || streams.end_file(ended, entries, entries * ENTRY);
            if cut || file.len() >= target + target / 2 * usize::from(!cuts.is_empty()) {
                self.add_file(level, run, std::mem::take(&mut file));
            }
            file.push((key, seq));
        }
        if !file.is_empty() {
            self.add_file(level, run, file);
        }
    }

    fn flush(&mut self, keys: impl IntoIterator<Item = u32>) {
        let mut entries = BTreeMap::new();
        for key in keys {
            self.seq += 1;
            entries.insert(key, self.seq);
            self.live.insert(key, self.seq);
        }
        self.flushed += entries.len() as u64 * ENTRY;
        let run = self.next_id;
        self.add_run(0, run, entries, &[]);
    }

    fn plan(&mut self, idle: bool, slots: usize) -> Plan {
        let order = KeyOrder::Bytewise;
        let running: Vec<_> = self.running.iter().flat_map(|j| j.footprints(&order)).collect();
        let (range, rewrite) = (CompactionRange::default(), Rewrite::default());
        let input = PlanInput {
            version: &self.version,
            options: &self.options,
            order: &order,
            running: &running,
            oldest_snapshot: self.seq,
            now_ms: 0,
            vlogs: &[],
            dead_slack: u64::MAX,
            covered: &BTreeMap::new(),
            read_hint: false,
            idle,
            draining: self.draining,
            manual: self.asked.map(|since| Manual { range: &range, since, rewrite: &rewrite }),
            slots,
            room: u64::MAX,
            collects_only: false,
        };
        let plan = plan(&input);
        self.draining = plan.draining;
        self.asked = self.asked.filter(|_| !plan.manual_done);
        let mut seen = running;
        for job in &plan.jobs {
            check_job(&order, &self.version, &seen, job).unwrap_or_else(|e| panic!("seed {}: {e}: {job:?}", self.seed));
            seen.extend(job.footprints(&order));
        }
        plan
    }

    fn start(&mut self, jobs: Vec<Job>) {
        for job in jobs {
            let moved = job.moved();
            if job.kind != JobKind::TrivialMove {
                self.merges += 1;
                self.running.push(job);
                continue;
            }
            self.moves += moved.len() as u64;
            for ((level, f), (to, meta)) in job.inputs.iter().zip(moved) {
                assert!(self.version.remove(*level, f.id));
                self.version.add(&KeyOrder::Bytewise, to, Arc::new(meta));
            }
        }
    }

    fn finish(&mut self, job: Job) {
        let mut merged: BTreeMap<u32, u64> = BTreeMap::new();
        for (level, f) in &job.inputs {
            for (key, seq) in self.contents.remove(&f.id).unwrap() {
                let newest = merged.entry(key).or_default();
                *newest = seq.max(*newest);
            }
            assert!(self.version.remove(*level, f.id), "seed {}: input {} is gone", self.seed, f.id);
        }
        self.add_run(job.output_level, job.output_run, merged, &job.boundaries);
        let held: u64 = self.version.files().map(|(_, f)| f.size).sum::<u64>() + job.input_bytes();
        self.peak_space = self.peak_space.max(held as f64 / (self.live.len() as u64 * ENTRY) as f64);
    }

    /// Invariants, and that every live key is found at its newest version first.
    fn check(&self) {
        self.version.check(&KeyOrder::Bytewise).unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
        let mut newest: HashMap<u32, u64> = HashMap::new();
        for (level, run) in self.version.runs() {
            assert!(level == 0 || self.version.levels[level].len() == 1, "seed {}: level {level} has runs", self.seed);
            for (key, seq) in run.files.iter().flat_map(|f| &self.contents[&f.id]) {
                let above = newest.insert(*key, *seq);
                let first = above.is_none() && self.live[key] == *seq;
                assert!(first || above.is_some_and(|a| a > *seq), "seed {}: key {key} at level {level}", self.seed);
            }
        }
        assert_eq!(newest.len(), self.live.len(), "seed {}: keys lost", self.seed);
    }

    /// One round: plan, start, let some jobs finish.
    fn round(&mut self, idle: bool, workers: usize) -> bool {
        let slots = workers.saturating_sub(self.running.len());
        let plan = if slots > 0 { self.plan(idle, slots) } else { Plan { draining: self.draining, ..Plan::default() } };
        let busy = !plan.jobs.is_empty() || !self.running.is_empty();
        self.start(plan.jobs);
        if !self.running.is_empty() && self.rng.below(3) > 0 {
            let i = self.rng.below(self.running.len() as u64) as usize;
            let job = self.running.swap_remove(i);
            self.finish(job);
        }
        busy
    }

    fn settle(&mut self, idle: bool) {
        for rounds in 0.. {
            if !self.round(idle, 2) {
                break;
            }
            assert!(rounds < 20_000, "seed {}: the tree never comes to rest", self.seed);
        }
        self.check();
    }

    fn load(&mut self, flushes: u32, mut keys: impl FnMut(&mut Rng, u32) -> Vec<u32>) {
        for i in 0..flushes {
            let batch = keys(&mut self.rng, i);
            self.flush(batch);
            self.most_runs = self.most_runs.max(self.version.levels[0].len());
            // Writers are slowed while level 0 is urgent.
            for _ in 0..1000 {
                self.round(false, 2);
                if level0_pressure(&self.version, &self.options) < 1.5 {
                    break;
                }
            }
            if i % 16 == 0 {
                self.check();
            }
        }
        self.settle(false);
    }

    fn write_amplification(&self) -> f64 {
        self.written as f64 / self.flushed as f64
    }

    fn report(&self, name: &str) {
        let sizes: Vec<u64> = (0..LEVELS).map(|l| self.version.level_size(l) / ENTRY).collect();
        println!(
            "{name}: {} flushed, write amplification {:.2}, peak space {:.2}, {} merges, {} moves, most runs {}, levels {sizes:?}",
            self.flushed / ENTRY,
            self.write_amplification(),
            self.peak_space,
            self.merges,
            self.moves,
            self.most_runs,
        );
    }
}

#[test]
fn sequential_load_is_never_rewritten() {
    let mut s = Simulation::new(1, Simulation::small_options());
    s.load(400, |_, i| (i * 64..(i + 1) * 64).collect());
    s.settle(true);
    s.report("sequential");
    assert_eq!((s.merges, s.write_amplification()), (0, 1.0));
}

/// Writers take turns, each with ascending or descending keys in a region of its own. Sometimes one writes more than another.
#[test]
fn sequential_loads_of_several_regions_are_never_rewritten() {
    for (seed, regions, descending) in [(1, 2, false), (2, 2, true), (3, 3, false), (4, 3, true)] {
        let options = Simulation::small_options().memtable_size(1024 * ENTRY).target_file_size(256 * ENTRY);
        let mut s = Simulation::new(seed, options);
        let mut next = vec![0; regions];
        s.load(40, |rng, _| {
            let keys = (0..1024).map(|i| {
                let region = if rng.one_in(4) { rng.below(regions as u64) as usize } else { i % regions };
                next[region] += 1;
                ((region as u32 + 1) << 20).wrapping_add_signed(if descending { -next[region] } else { next[region] })
            });
            keys.collect()
        });
        s.settle(true);
        s.report("sequential in regions");
        assert_eq!((s.merges, s.write_amplification()), (0, 1.0), "{regions} regions, descending: {descending}");
    }
}

#[test]
fn random_load_converges() {
    for seed in 0..4 {
        let mut s = Simulation::new(seed, Simulation::small_options());
        s.load(300, |rng, _| (0..64).map(|_| rng.next_u64() as u32).collect());
        s.report("random");
        assert!(level0_pressure(&s.version, &s.options) < 1.0);
        assert!(s.write_amplification() < 16.0, "seed {seed}: {}", s.write_amplification());
        s.settle(true);
        s.report("random, idle");
        assert!(s.version.levels[0].len() < s.options.l0_trigger as usize);
    }
}

#[test]
fn overwrites_keep_space_bounded() {
    let mut s = Simulation::new(7, Simulation::small_options());
    s.load(300, |rng, _| (0..64).map(|_| rng.below(2000) as u32).collect());
    s.report("overwrite");
    s.settle(true);
    s.report("overwrite, idle");
    let held: u64 = s.version.files().map(|(_, f)| f.size).sum();
    assert!(held <= s.live.len() as u64 * ENTRY * 2);
    assert!(s.peak_space < 4.0);
}

/// The benchmark's load: 2 M entries of 116 B through 64 MB memtables, that is 4 full flushes, then quiet.
#[test]
fn small_load_is_merged_once() {
    let mut s = Simulation::new(3, Simulation::small_options().memtable_size(64 * ENTRY));
    s.options.target_file_size = 16 * ENTRY;
    s.load(5, |rng, _| (0..64).map(|_| rng.next_u64() as u32).collect());
    s.report("small load");
    assert!(s.merges <= 1 && s.write_amplification() <= 2.0);
    s.settle(true);
    assert_eq!(s.version.runs().count(), 1);
}

/// A compaction on request ends with everything of its time in the deepest level, although a writer fills memtables as fast as
/// jobs run.
#[test]
fn a_compaction_on_request_ends_beside_a_writer() {
    for seed in 20..30 {
        let mut s = Simulation::new(seed, Simulation::small_options());
        s.load(200, |rng, _| (0..64).map(|_| rng.below(20_000) as u32).collect());
        let since = s.seq;
        s.asked = Some(since);
        let mut rounds = 0;
        while s.asked.is_some() {
            rounds += 1;
            assert!(rounds < 2000, "seed {seed}: it does not end");
            let keys: Vec<_> = (0..8).map(|_| s.rng.below(20_000) as u32).collect();
            s.flush(keys);
            s.round(false, 2);
        }
        s.check();
        let above = s.version.files().filter(|(level, f)| *level < s.version.deepest() && f.min_seq <= since);
        assert_eq!(above.count(), 0, "seed {seed}");
    }
}

/// Random mixtures of patterns, options and worker counts; only the invariants and convergence matter.
#[test]
fn mixtures_keep_the_invariants() {
    for seed in 100..112 {
        let mut rng = Rng::new(seed);
        let options = Simulation::small_options()
            .level_ratio(2 + rng.below(6))
            .l0_trigger(1 + rng.below(5))
            .dividing_offset(1 + rng.below(2));
        let mut s = Simulation::new(seed, options);
        let mut at = 0u32;
        s.load(120, move |rng, _| {
            let n = 1 + rng.below(64) as u32;
            match rng.below(4) {
                0 => (0..n).map(|_| rng.below(5000) as u32).collect(),
                1 => (0..n).map(|_| rng.next_u64() as u32).collect(),
                2 => {
                    let base = rng.below(5000) as u32;
                    (base..base + n).collect()
                }
                _ => {
                    at += n;
                    ((1 << 30) + at - n..(1 << 30) + at).collect()
                }
            }
        });
        s.options.dividing_offset = 3 - s.options.dividing_offset;
        s.settle(false);
        s.settle(true);
    }
}
