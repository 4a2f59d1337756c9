//! Which files to merge: a pure function from the shape of a tree to jobs.
//!
//! The policy is Spooky (Dayan, Weiss, Dashevsky, Pan, Bortnikov, Twitto: "Spooky: Granulating LSM-Tree Compactions
//! Correctly", VLDB 2022). Let L be the largest level, N its bytes, T the size ratio. With dynamic capacity adaptation a
//! level i < L may hold N / T^(L-i) bytes, and never less than the memtables that trigger a merge. The dividing level X
//! lies `dividing_offset` levels above L.
//!
//! - Level 0 with enough runs is merged, together with all levels down to the first that can hold the sum, in one go:
//!   the full preemptive merge. Data does not trickle through levels that would overflow.
//! - Into X the result is cut where files of L begin: the dividing merge.
//! - A full X is merged into L group by group of aligned files, the group that rewrites least of L first: the
//!   partitioned merge. It goes on until X is empty, so that X is half full on average.
//! - When N outgrows 2 T^L memtables, the files of L move to L + 1, without being read. A small tree has L = 1 and X = L:
//!   level 0 is merged with everything.
//!
//! - Where more of the value logs is dead than `vlog_dead_ratio` allows, live values are moved out of the worst of them before
//!   anything but what level 0 waits for: a value log's worth at a time, so that space comes back in steps. Values that
//!   newer entries hide are dead too, though tables refer to them until a merge has met both. Every table says how many bytes
//!   it hides. Where they exceed the cap, level 0 is merged whatever it holds, as long as that rewrites little; where they use up
//!   half of the slack beyond it, whatever it rewrites, and so is everything else above L.
//!
//! - While a full disk refuses writes, value logs are emptied, one after another, even where dead values are within the cap, if there is space for
//!   the live ones and the dead ones are worth it.
//!
//! - What range tombstones hide takes its space until they meet it. Where it is a quarter of what their merge into the next runs
//!   rewrites, or more, they are merged at once.
//!
//! Every merge of whole levels is planned by connected components of overlapping files. A component of one file is moved;
//! so a sequential load is never rewritten, and regions of keys that do not meet do not wait for each other.

use crate::job::{CompactionRange, Footprint, Job, JobKind, check_job, ends_before, runs_below};
use crate::version::{FileMeta, LEVELS, Run, Version};
use crate::vlogs::{LiveValues, VlogMeta};
use kingtide_base::options::FamilyOptions;
use kingtide_base::{KeyOrder, SeqNo};
use kingtide_table::VlogRef;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the planner looks at.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// The tree.
    pub version: &'a Version,
    /// The family's options.
    pub options: &'a FamilyOptions,
    /// Order of the keys.
    pub order: &'a KeyOrder,
    /// What running jobs occupy.
    pub running: &'a [Footprint],
    /// Oldest sequence number that a reader may still ask for.
    pub oldest_snapshot: SeqNo,
    /// Unix time in milliseconds.
    pub now_ms: u64,
    /// The family's value logs.
    pub vlogs: &'a [VlogMeta],
    /// Bytes by which dead space may pass its cap before writers are held.
    pub dead_slack: u64,
    /// By the id of a table with range tombstones, about how many bytes of older runs these hide. One that is left out hides none.
    pub covered: &'a BTreeMap<u64, u64>,
    /// Reads had to look into many runs.
    pub read_hint: bool,
    /// Nothing else to do: no flush is waiting, writers are quiet.
    pub idle: bool,
    /// What the last plan returned in [`Plan::draining`].
    pub draining: bool,
    /// A compaction that the user asked for.
    pub manual: Option<Manual<'a>>,
    /// Most jobs to return.
    pub slots: usize,
    /// Most bytes that a job may write, about; a job that writes more is left out, and others take its place. Moves write nothing.
    pub room: u64,
    /// Space is so short that dead values within the cap are worth a job, too. Nothing is planned but to move the live values out of one value log,
    /// whose dead bytes are worth it and whose live bytes fit into `room`.
    pub collects_only: bool,
}

/// A compaction on request.
#[derive(Clone, Copy, Debug)]
pub struct Manual<'a> {
    /// The keys; the end counts as inside.
    pub range: &'a CompactionRange,
    /// The last sequence number that was visible when it was asked for. Files with newer entries alone are not its concern: so it
    /// ends, however much is written meanwhile.
    pub since: SeqNo,
    /// What is rewritten although nothing of the range lies above it any more.
    pub rewrite: &'a Rewrite,
}

impl Manual<'_> {
    /// Whether a file may hold something that is to go down.
    fn wants(&self, order: &KeyOrder, file: &FileMeta) -> bool {
        file.min_seq <= self.since && meets_range(order, file, Some(self.range))
    }
}

/// What to rewrite for the space that it gives back, as things were when the compaction was asked for. Files that were
/// compacted since are gone, and what they became is not rewritten again: so a compaction ends, whatever is written
/// meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Tables.
    pub files: BTreeSet<u64>,
    /// Value logs whose live values are moved to others when a table that refers to them is rewritten.
    pub vlogs: BTreeSet<u64>,
}

/// What to do next.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Jobs that may all run at once, the most urgent first.
    pub jobs: Vec<Job>,
    /// The dividing level was full and is not yet empty again: to be handed to the next call.
    pub draining: bool,
    /// Nothing is left to do of the manual range.
    pub manual_done: bool,
}

/// Plans jobs. An empty answer means that nothing is to be done, or that what is to be done waits for running jobs. Reads no file, and
/// depends on nothing but `input`.
pub fn plan(input: &PlanInput<'_>) -> Plan {
    let mut planner = Planner::new(input);
    planner.run();
    let mut seen = input.running.to_vec();
    for job in &planner.jobs {
        debug_assert_eq!(check_job(input.order, input.version, &seen, job), Ok(()), "{job:?}");
        seen.extend(job.footprints(input.order));
    }
    Plan { jobs: planner.jobs, draining: planner.draining, manual_done: planner.manual_done }
}

/// How far level 0 is behind: runs as a multiple of those that make a merge urgent. Writers should be slowed from 1 on.
#[cfg(test)]
pub fn level0_pressure(version: &Version, options: &FamilyOptions) -> f64 {
    version.levels[0].len() as f64 / (options.l0_trigger * URGENT) as f64
}

/// Bytes at which a value log that a job writes ends: large enough to have few, small enough to empty one at a time.
pub fn vlog_size(options: &FamilyOptions) -> u64 {
    8 * options.target_file_size
}

/// The dividing level X and the largest level L: below level 0, files rest in levels up to X, and in L.
pub fn levels_of_rest(version: &Version, options: &FamilyOptions) -> (usize, usize) {
    let largest = version.deepest().max(1);
    let offset = options.dividing_offset as usize;
    let dividing = if largest == 1 { 1 } else { largest.saturating_sub(offset).max(1) };
    (dividing, largest)
}

/// Level 0 is merged at this multiple of its trigger whatever the merge costs, and before anything else.
const URGENT: u64 = 3;
/// Below that, a merge of level 0 may rewrite at most this many times what it brings down.
const LEVEL0_COST: u64 = 4;
/// Level 0 is merged for the dead values that it hides as soon as these have so many bytes for each that is rewritten.
const HIDDEN_COST: u64 = 4;
/// Range tombstones are merged with what they hide as soon as that is worth so many times the bytes that the merge rewrites.
const COVERED_WORTH: u64 = 4;
/// Where space is short, a value log is emptied if its dead bytes are at least one part in so many of the bytes that this writes.
const SHORT_OF_SPACE_COST: u64 = 8;
/// While idle, a tree of at most this many memtables may be rewritten for much less than a T-th of its size.
const SMALL_TREE: u64 = 4;
const SMALL_TREE_COST: u64 = 64;
/// A file whose first entry has expired is rewritten after it has lived this fraction of its first lifetime longer: by
/// then most of what was written together with that entry has expired too.
const TTL_GRACE_DIVISOR: u64 = 4;

/// Files of one overlap component, each with its level, and their hull.
struct Component {
    files: Vec<(usize, Arc<FileMeta>)>,
    lo: Vec<u8>,
    hi: Vec<u8>,
    /// Whether all files that end at `hi` end before it, with the exclusive end of a range tombstone.
    hi_open: bool,
}

impl Component {
    fn new(level: usize, file: &Arc<FileMeta>, open: bool) -> Component {
        Component {
            files: vec![(level, file.clone())],
            lo: file.min_key.clone(),
            hi: file.max_key.clone(),
            hi_open: open,
        }
    }

    fn widen(&mut self, order: &KeyOrder, file: &FileMeta, open: bool) {
        if order.compare(&file.min_key, &self.lo).is_lt() {
            self.lo = file.min_key.clone();
        }
        match order.compare(&file.max_key, &self.hi) {
            Ordering::Greater => (self.hi, self.hi_open) = (file.max_key.clone(), open),
            Ordering::Equal => self.hi_open &= open,
            Ordering::Less => {}
        }
    }

    /// Takes the next file by smallest key, if it overlaps. Files may meet in a bound where the one ends with a range
    /// tombstone's exclusive end; that is no overlap, and a wide tombstone must not chain all of a run.
    fn join(&mut self, order: &KeyOrder, level: usize, file: &Arc<FileMeta>, open: bool) -> bool {
        if ends_before(order, &self.hi, self.hi_open, &file.min_key) {
            return false;
        }
        self.widen(order, file, open);
        self.files.push((level, file.clone()));
        true
    }
}

struct Planner<'a> {
    input: &'a PlanInput<'a>,
    order: &'a KeyOrder,
    version: &'a Version,
    sizes: [u64; LEVELS],
    /// L.
    largest: usize,
    /// X; equal to L in a tree of one level.
    dividing: usize,
    /// What running jobs and the jobs planned so far occupy.
    taken: Vec<Footprint>,
    /// Files whose `max_key` is not theirs.
    open_ends: BTreeSet<u64>,
    relocate: BTreeSet<u64>,
    /// By how much dead and hidden bytes exceed the cap; 0 also where no hidden ones count.
    hidden_excess: u64,
    jobs: Vec<Job>,
    draining: bool,
    manual_done: bool,
}

impl<'a> Planner<'a> {
    fn new(input: &'a PlanInput<'a>) -> Planner<'a> {
        let (dividing, largest) = levels_of_rest(input.version, input.options);
        Planner {
            input,
            order: input.order,
            version: input.version,
            sizes: std::array::from_fn(|l| input.version.level_size(l)),
            largest,
            dividing,
            taken: input.running.to_vec(),
            open_ends: input.version.open_ends(input.order),
            relocate: if input.collects_only {
                worth_its_space(input).into_iter().collect()
            } else {
                worst_vlogs(input)
            },
            hidden_excess: hidden_excess(input),
            jobs: Vec::new(),
            draining: input.draining,
            manual_done: false,
        }
    }

    fn run(&mut self) {
        if self.input.collects_only {
            return self.collect();
        }
        self.grow();
        self.trivial_moves();
        let waiting = self.level0();
        if !waiting {
            self.uncover();
            self.collect();
            self.partitions();
        }
        if let Some(manual) = self.input.manual {
            // What runs, comes first or has no room may be all that keeps the range from being merged now. The files are there until it ended.
            let alone = self.taken.is_empty() && self.input.room == u64::MAX;
            self.manual(&manual);
            self.manual_done = self.is_done(&manual) || alone && self.jobs.is_empty();
        }
        self.single_files();
        if self.jobs.is_empty() && (self.input.idle || self.input.read_hint) {
            self.settle();
        }
    }

    fn full(&self) -> bool {
        self.jobs.len() >= self.input.slots
    }

    /// Bytes that a level may hold.
    fn capacity(&self, level: usize) -> u64 {
        if level >= self.largest {
            return u64::MAX;
        }
        let ratio = self.input.options.level_ratio.saturating_pow((self.largest - level) as u32);
        let floor = self.input.options.memtable_size.saturating_mul(self.input.options.l0_trigger);
        (self.sizes[self.largest] / ratio).max(floor)
    }

    /// Run that a result at `level` joins: the level's newest. An empty level's first run has the level for its id, so
    /// that two jobs that fill a level at the same time join one run.
    fn run_of(&self, level: usize) -> u64 {
        self.version.levels[level].first().map_or(level as u64, |r| r.id)
    }

    fn free(&self, top: usize, bottom: usize, lo: &[u8], hi: &[u8], hi_open: bool) -> bool {
        let own = Footprint { top, bottom, lo: lo.to_vec(), hi: hi.to_vec(), hi_open };
        !self.taken.iter().any(|t| t.conflicts(self.order, &own))
    }

    fn free_component(&self, top: usize, bottom: usize, c: &Component) -> bool {
        self.free(top, bottom, &c.lo, &c.hi, c.hi_open)
    }

    fn free_file(&self, top: usize, bottom: usize, file: &FileMeta) -> bool {
        self.free(top, bottom, &file.min_key, &file.max_key, self.is_open(file))
    }

    /// Whether a file is known to end before its `max_key`.
    fn is_open(&self, file: &FileMeta) -> bool {
        self.open_ends.contains(&file.id)
    }

    /// The files of a run that overlap keys from `lo` up to `hi`, which counts as one of them unless it is `open`.
    fn overlapping<'r>(&self, run: &'r Run, lo: &[u8], hi: &[u8], open: bool) -> &'r [Arc<FileMeta>] {
        let mut from = run.find(self.order, lo);
        let meets_end = |f: &Arc<FileMeta>| ends_before(self.order, &f.max_key, self.is_open(f), lo);
        from += usize::from(run.files.get(from).is_some_and(meets_end));
        let behind = |f: &&Arc<FileMeta>| !ends_before(self.order, hi, open, &f.min_key);
        let count = run.files[from..].iter().take_while(behind).count();
        &run.files[from..from + count]
    }

    fn overlaps_run(&self, run: &Run, file: &FileMeta) -> bool {
        !self.overlapping(run, &file.min_key, &file.max_key, self.is_open(file)).is_empty()
    }

    fn open_ends_of(&self, files: &[(usize, Arc<FileMeta>)]) -> BTreeSet<u64> {
        files.iter().map(|(_, f)| f.id).filter(|id| self.open_ends.contains(id)).collect()
    }

    fn push(&mut self, job: Job) {
        self.taken.extend(job.footprints(self.order));
        self.jobs.push(job);
    }

    fn push_move(&mut self, files: Vec<(usize, Arc<FileMeta>)>, level: usize) {
        if files.is_empty() || self.full() {
            return;
        }
        let open_ends = self.open_ends_of(&files);
        self.push(Job {
            kind: JobKind::TrivialMove,
            inputs: files,
            output_level: level,
            output_run: self.run_of(level),
            drop_tombstones: false,
            boundaries: Vec::new(),
            relocate_vlogs: BTreeSet::new(),
            open_ends,
        });
    }

    fn push_merge(&mut self, kind: JobKind, inputs: Vec<(usize, Arc<FileMeta>)>, level: usize, run: u64) {
        if self.full() || !self.has_room(&inputs) {
            return;
        }
        let open_ends = self.open_ends_of(&inputs);
        let mut job = Job {
            kind,
            inputs,
            output_level: level,
            output_run: run,
            drop_tombstones: false,
            boundaries: Vec::new(),
            relocate_vlogs: BTreeSet::new(),
            open_ends,
        };
        job.drop_tombstones = self.nothing_below(&job);
        if level == self.dividing && level < self.largest {
            job.boundaries = self.boundaries(&job);
        }
        job.relocate_vlogs = self.relocated(&job.inputs).map(|r| r.file_id).collect();
        self.push(job);
    }

    /// What a merge of these files refers to of the value logs whose values it moves.
    fn relocated<'f>(&'f self, inputs: &'f [(usize, Arc<FileMeta>)]) -> impl Iterator<Item = &'f VlogRef> {
        let asked_for = self.input.manual.map(|m| &m.rewrite.vlogs);
        let is_relocated = move |id| self.relocate.contains(&id) || asked_for.is_some_and(|vlogs| vlogs.contains(&id));
        inputs.iter().flat_map(|(_, f)| &f.vlog_refs).filter(move |r| is_relocated(r.file_id))
    }

    /// Whether there is room for what a merge of these files writes at most, about.
    fn has_room(&self, inputs: &[(usize, Arc<FileMeta>)]) -> bool {
        let moved = || self.relocated(inputs).map(|r| r.bytes);
        let written = || inputs.iter().map(|(_, f)| f.size).chain(moved()).fold(0, u64::saturating_add);
        self.input.room == u64::MAX || written() <= self.input.room
    }

    /// Whether nothing older than a job's result lies in its keys.
    fn nothing_below(&self, job: &Job) -> bool {
        let Some((lo, hi)) = job.hull(self.order) else { return true };
        let open = job.hull_is_open(self.order);
        let own = |f: &Arc<FileMeta>| job.inputs.iter().any(|(_, own)| own.id == f.id);
        let mut below = runs_below(self.version, job.output_level, job.output_run);
        below.all(|r| self.overlapping(r, lo, hi, open).iter().all(own))
    }

    /// Where the files of L begin within a job's keys.
    fn boundaries(&self, job: &Job) -> Vec<Vec<u8>> {
        let Some((lo, hi)) = job.hull(self.order) else { return Vec::new() };
        let runs = self.version.levels[self.largest].iter();
        let mut keys: Vec<_> =
            runs.flat_map(|r| r.overlapping(self.order, lo, hi)).map(|f| f.min_key.clone()).collect();
        keys.sort_by(|a, b| self.order.compare(a, b));
        keys
    }

    /// When L has outgrown its depth, its files become level L + 1.
    fn grow(&mut self) {
        let options = self.input.options;
        let limit = options.level_ratio.saturating_pow(self.largest as u32).saturating_mul(2 * options.memtable_size);
        if self.sizes[self.largest] <= limit
            || self.largest + 1 >= LEVELS
            || self.version.levels[self.largest].len() != 1
        {
            return;
        }
        let files: Vec<_> =
            self.version.levels[self.largest][0].files.iter().map(|f| (self.largest, f.clone())).collect();
        if files.iter().all(|(l, f)| self.free_file(*l, l + 1, f)) {
            self.push_move(files, self.largest + 1);
        }
    }

    /// Files of level 0 that overlap nothing older go as deep as they can, but rest only where data may: down to X, or
    /// in L. A file that a newer one overlaps goes first; the newer one is looked at again in the next plan.
    fn trivial_moves(&mut self) {
        let mut targets: BTreeMap<usize, Vec<(usize, Arc<FileMeta>)>> = BTreeMap::new();
        let runs = &self.version.levels[0];
        for (i, run) in runs.iter().enumerate() {
            for file in &run.files {
                let meets = |r: &Run| self.overlaps_run(r, file);
                if runs[i + 1..].iter().any(meets) {
                    continue;
                }
                let target = (1..=self.largest).take_while(|l| !self.version.levels[*l].iter().any(meets)).last();
                let Some(mut target) = target else { continue };
                if target < self.largest {
                    target = target.min(self.dividing);
                }
                if self.free_file(0, target, file) {
                    targets.entry(target).or_default().push((0, file.clone()));
                }
            }
        }
        for (target, files) in targets {
            self.push_move(files, target);
        }
    }

    /// First level down to X that can hold everything above it and itself.
    fn target_of_level0(&self) -> usize {
        let holds = |l: &usize| self.sizes[..=*l].iter().sum::<u64>() <= self.capacity(*l);
        (1..self.dividing).find(holds).unwrap_or(self.dividing)
    }

    /// Merges level 0 when it is due. True when it is due but running jobs are in its way: nothing may then start that
    /// would keep it waiting.
    fn level0(&mut self) -> bool {
        let runs = self.version.levels[0].len() as u64;
        let trigger = self.input.options.l0_trigger;
        let density = self.input.options.tombstone_density;
        let dense = self.version.levels[0].iter().flat_map(|r| &r.files).any(|f| is_dense(f, density));
        if runs == 0 {
            return false;
        }
        let target = self.target_of_level0();
        let hides = self.hides_much();
        let rewritten = self.sizes[..=target].iter().sum();
        let covers = self.version.levels[0].iter().flat_map(|r| &r.files).map(|f| self.covered_by(f)).sum::<u64>();
        let pays = covered_pays(covers, rewritten);
        if runs < trigger && !dense && !hides && !pays {
            return false;
        }
        let brought: u64 = self.sizes[..target].iter().sum();
        let overfull = target < self.largest && self.draining && self.sizes[target] > self.capacity(target);
        let urgent = runs >= trigger * URGENT;
        if !urgent && !hides && !pays && (overfull || self.sizes[target] > brought.saturating_mul(LEVEL0_COST)) {
            return false;
        }
        let kind =
            if target == self.dividing && target < self.largest { JobKind::Dividing } else { JobKind::FullPreemptive };
        self.merge_down(kind, 0, target, None)
    }

    /// Merges levels `top..=bottom` into `bottom`, by components, of those with files that `asked` wants. True when running jobs
    /// were in the way of one.
    fn merge_down(&mut self, kind: JobKind, top: usize, bottom: usize, asked: Option<&Manual<'_>>) -> bool {
        let mut moves = Vec::new();
        let mut waiting = false;
        for component in self.components(top, bottom) {
            let wanted = |f: &FileMeta| asked.is_none_or(|m| m.wants(self.order, f));
            let descends = |(l, f): &(usize, Arc<FileMeta>)| *l < bottom && wanted(f);
            if !component.files.iter().any(descends) {
                continue;
            }
            if !self.free_component(top, bottom, &component) {
                waiting = true;
            } else if component.files.len() == 1 {
                moves.extend(component.files);
            } else {
                self.push_merge(kind, component.files, bottom, self.run_of(bottom));
            }
        }
        self.push_move(moves, bottom);
        waiting
    }

    /// Connected components of overlapping files of some levels, in key order. No file of these levels lies between
    /// the files of a component without belonging to it. O(n log n).
    fn components(&self, top: usize, bottom: usize) -> Vec<Component> {
        let levels = self.version.levels[top..=bottom].iter().zip(top..);
        let mut files: Vec<(usize, &Arc<FileMeta>)> =
            levels.flat_map(|(runs, l)| runs.iter().flat_map(|r| &r.files).map(move |f| (l, f))).collect();
        files.sort_by(|a, b| self.order.compare(&a.1.min_key, &b.1.min_key));
        let mut out: Vec<Component> = Vec::new();
        for (level, file) in files {
            let open = self.is_open(file);
            if !out.last_mut().is_some_and(|c| c.join(self.order, level, file, open)) {
                out.push(Component::new(level, file, open));
            }
        }
        out
    }

    /// Merges levels between level 0 and X, which hide too much, into X; from there it goes on as if X were full.
    fn uncover(&mut self) {
        if self.hides_too_much() && (1..self.dividing).any(|l| self.hidden_at(l) > 0) {
            self.merge_down(JobKind::Dividing, 1, self.dividing, None);
        }
    }

    /// Partitioned merges while X is full, and from then on until it is empty.
    fn partitions(&mut self) {
        if self.dividing == self.largest {
            self.draining = false;
            return;
        }
        let size = self.sizes[self.dividing];
        if size > self.capacity(self.dividing) {
            self.draining = true;
        } else if size == 0 {
            self.draining = false;
        }
        if self.hides_too_much() && (self.dividing..self.largest).any(|l| self.hidden_at(l) > 0) {
            self.draining = true;
        }
        if self.draining && !self.between(JobKind::Partitioned) {
            while !self.full() && self.partition(JobKind::Partitioned, None, u64::MAX) {}
        }
    }

    /// Plans the cheapest group of files of X that has one that `asked` wants and costs at most `limit` bytes of L for each of
    /// its own. False when there is none. O(files of X).
    fn partition(&mut self, kind: JobKind, asked: Option<&Manual<'_>>, limit: u64) -> bool {
        let (upper, lower) = (self.dividing, self.largest);
        let ([upper_run], [lower_run]) = (&self.version.levels[upper][..], &self.version.levels[lower][..]) else {
            return false;
        };
        let own_alone = |group: &Component| group.files.iter().all(|(l, _)| *l == upper); // a move brings such a group down
        let mut best: Option<(u128, Component)> = None;
        let mut i = 0;
        while i < upper_run.files.len() {
            let (next, group, below) = self.aligned_group(upper_run, lower_run, i);
            i = next;
            let own: u64 = group.files.iter().filter(|(l, _)| *l == upper).map(|(_, f)| f.size).sum();
            let wants = |f: &FileMeta| asked.is_none_or(|m| m.wants(self.order, f));
            let wanted = group.files.iter().any(|(l, f)| *l == upper && wants(f));
            let cost = below as u128 * 1000 / own.max(1) as u128;
            let good =
                wanted && below <= limit.saturating_mul(own.max(1)) && best.as_ref().is_none_or(|(c, _)| cost < *c);
            let has_room = || own_alone(&group) || self.has_room(&group.files);
            if good && self.free_component(upper, lower, &group) && has_room() {
                best = Some((cost, group));
            }
        }
        let Some((_, group)) = best else { return false };
        if own_alone(&group) {
            self.push_move(group.files, lower);
        } else {
            self.push_merge(kind, group.files, lower, self.run_of(lower));
        }
        true
    }

    /// The group that begins with file `i` of X: with the files of L that it overlaps, and the files of X after it that
    /// overlap no others. Returns the index after the group and the bytes of L in it.
    fn aligned_group(&self, upper: &Run, lower: &Run, i: usize) -> (usize, Component, u64) {
        let first = &upper.files[i];
        let mut group = Component::new(self.dividing, first, self.is_open(first));
        let below = self.overlapping(lower, &group.lo, &group.hi, group.hi_open);
        let (mut next, mut bytes) = (i + 1, 0);
        for file in below {
            group.widen(self.order, file, self.is_open(file));
            group.files.push((self.largest, file.clone()));
            bytes += file.size;
        }
        while let Some(file) = upper.files.get(next) {
            let open = self.is_open(file);
            let meets_others = |f: &Arc<FileMeta>| below.iter().all(|own| own.id != f.id);
            let mut met = self.overlapping(lower, &file.min_key, &file.max_key, open).iter();
            let beyond = match self.order.compare(&file.max_key, &group.hi) {
                Ordering::Greater => true,
                Ordering::Equal => group.hi_open && !open,
                Ordering::Less => false,
            };
            if below.is_empty() || beyond || met.any(meets_others) {
                break;
            }
            group.files.push((self.dividing, file.clone()));
            next += 1;
        }
        (next, group, bytes)
    }

    /// Brings a range down to L, a step at a time: first into X, then through X; then rewrites what L itself could drop.
    fn manual(&mut self, asked: &Manual<'_>) {
        if self.full() {
            return;
        }
        match self.first_level_of(asked) {
            Some(top) if top < self.dividing => {
                self.merge_down(JobKind::Manual, top, self.dividing, Some(asked));
            }
            Some(_) if self.dividing < self.largest => {
                if !self.between(JobKind::Manual) {
                    while !self.full() && self.partition(JobKind::Manual, Some(asked), u64::MAX) {}
                }
            }
            _ => self.rewrite(JobKind::Manual, |p, l, f| p.rewrites_for(asked, l, f)),
        }
    }

    /// The first level above L with files that a compaction on request wants.
    fn first_level_of(&self, asked: &Manual<'_>) -> Option<usize> {
        let mut files = self.version.files().filter(|(l, _)| *l < self.largest);
        files.find(|(_, f)| asked.wants(self.order, f)).map(|(l, _)| l)
    }

    /// Whether a compaction on request rewrites a file where it is.
    fn rewrites_for(&self, asked: &Manual<'_>, level: usize, file: &FileMeta) -> bool {
        let lowest = || level == self.largest && asked.wants(self.order, file) && self.droppable(file);
        asked.rewrite.files.contains(&file.id) || file.max_seq <= asked.since && lowest()
    }

    /// Whether nothing is left of a compaction on request, running jobs included.
    fn is_done(&self, asked: &Manual<'_>) -> bool {
        self.first_level_of(asked).is_none() && !self.version.files().any(|(l, f)| self.rewrites_for(asked, l, f))
    }

    /// Empties the levels between X and L, where only a change of `dividing_offset` leaves data. False if they are empty.
    fn between(&mut self, kind: JobKind) -> bool {
        let above = self.dividing + 1;
        if self.sizes[above..self.largest].iter().all(|s| *s == 0) {
            return false;
        }
        self.merge_down(kind, above, self.largest, None); // of a part, the rest would stay in the way of what X holds
        true
    }

    /// Whether rewriting a file where it is would drop tombstones: nothing older lies below and no snapshot needs them.
    fn droppable(&self, file: &FileMeta) -> bool {
        (file.tombstones > 0 || file.range_tombstones > 0) && file.max_seq <= self.input.oldest_snapshot
    }

    /// Whether no older run has anything in the file's keys.
    fn lies_lowest(&self, level: usize, file: &FileMeta) -> bool {
        let mut runs = runs_below(self.version, level, file.run);
        runs.all(|r| !self.overlaps_run(r, file))
    }

    /// Rewrites, each where it is, the files that a condition picks.
    fn rewrite(&mut self, kind: JobKind, pick: impl Fn(&Self, usize, &FileMeta) -> bool) {
        let version = self.version;
        for (level, file) in version.files() {
            if self.full() {
                return;
            }
            if pick(self, level, file) && self.free_file(level, level, file) {
                self.push_merge(kind, vec![(level, file.clone())], level, file.run);
            }
        }
    }

    /// Moves live values out of the value logs that are to be emptied. Every other merge of a table that refers to one does so
    /// on its way.
    fn collect(&mut self) {
        if !self.relocate.is_empty() {
            self.rewrite(JobKind::VlogGc, |p, _, f| f.vlog_refs.iter().any(|r| p.relocate.contains(&r.file_id)));
        }
    }

    /// Whether level 0 is to be merged for the dead values that it hides: the cap is exceeded, and either that costs little or half
    /// of the slack is used up.
    fn hides_much(&self) -> bool {
        let hidden = self.hidden_at(0);
        let rewritten: u64 = (0..=self.dividing).map(|l| self.sizes[l]).sum();
        let cheap = rewritten.saturating_mul(HIDDEN_COST) <= hidden;
        hidden > 0 && self.hidden_excess > 0 && (cheap || self.hides_too_much())
    }

    /// Whether hidden values must be found whatever that rewrites, or writers would be held for them.
    fn hides_too_much(&self) -> bool {
        self.hidden_excess > 0 && self.hidden_excess >= self.input.dead_slack / 2
    }

    fn hidden_at(&self, level: usize) -> u64 {
        self.version.levels[level].iter().flat_map(|r| &r.files).map(|f| f.hides).fold(0, u64::saturating_add)
    }

    /// Bytes that a merge could free since a file's range tombstones hide them, from every reader.
    fn covered_by(&self, file: &FileMeta) -> u64 {
        if file.max_seq > self.input.oldest_snapshot {
            return 0;
        }
        self.input.covered.get(&file.id).copied().unwrap_or(0)
    }

    /// Jobs that one file is the reason for: dense in tombstones, or expired.
    fn single_files(&mut self) {
        let options = self.input.options;
        if options.tombstone_density < 1.0 {
            self.rewrite(JobKind::Tombstones, |p, l, f| {
                is_dense(f, options.tombstone_density) && p.droppable(f) && p.lies_lowest(l, f)
            });
        }
        self.sink();
        let now = self.input.now_ms;
        self.rewrite(JobKind::Ttl, |_, _, f| {
            let lifetime = f.min_expiry_ms.saturating_sub(f.created_ms);
            f.min_expiry_ms != 0 && f.min_expiry_ms.saturating_add(lifetime / TTL_GRACE_DIVISOR) <= now
        });
    }

    /// A file below level 0 that is dense in tombstones, or whose range tombstones hide much, is merged with the next files that it
    /// overlaps, to remove for good what it hides.
    fn sink(&mut self) {
        let version = self.version;
        let largest = self.largest;
        let density = self.input.options.tombstone_density;
        for (level, file) in version.files().filter(|(l, _)| (1..largest).contains(l)) {
            let dense = density < 1.0 && is_dense(file, density);
            let covered = self.covered_by(file);
            if self.full() || !dense && covered == 0 {
                continue;
            }
            let meets = |l: &usize| {
                let mut runs = version.levels[*l].iter();
                runs.any(|r| self.overlaps_run(r, file))
            };
            let Some(target) = (level + 1..=self.largest).find(meets) else { continue };
            let closed = self.closure(level, file, target);
            let rewritten = closed.files.iter().map(|(_, f)| f.size).sum();
            if (dense || covered_pays(covered, rewritten)) && self.free_component(level, target, &closed) {
                self.push_merge(JobKind::Tombstones, closed.files, target, self.run_of(target));
            }
        }
    }

    /// A file with everything older down to `target` that it overlaps, directly or through others.
    fn closure(&self, level: usize, file: &Arc<FileMeta>, target: usize) -> Component {
        let mut c = Component::new(level, file, self.is_open(file));
        loop {
            let mut files = vec![(level, file.clone())];
            for (l, run) in
                self.version.runs().filter(|(l, r)| (*l == level && r.id < file.run) || (*l > level && *l <= target))
            {
                files.extend(self.overlapping(run, &c.lo, &c.hi, c.hi_open).iter().map(|f| (l, f.clone())));
            }
            let grown = files.len() > c.files.len();
            files.iter().for_each(|(_, f)| c.widen(self.order, f, self.is_open(f)));
            c.files = files;
            if !grown {
                return c;
            }
        }
    }

    /// Leaves reads as few runs as the rewriting is worth: from the top, a level at a time.
    fn settle(&mut self) {
        if self.input.read_hint && !self.input.idle && !self.input.options.read_triggered_compaction {
            return;
        }
        let Some(top) = (0..self.largest).find(|l| self.sizes[*l] > 0) else { return };
        if top < self.dividing {
            let target = if top == 0 { self.target_of_level0() } else { self.dividing };
            let above: u64 = self.sizes[top..target].iter().sum();
            if self.sizes[target] <= above.saturating_mul(self.settle_cost(target)) {
                self.merge_down(JobKind::Reads, top, target, None);
                return;
            }
        }
        if self.dividing < self.largest && !self.between(JobKind::Reads) {
            let limit = self.settle_cost(self.largest);
            while !self.full() && self.partition(JobKind::Reads, None, limit) {}
        }
    }

    /// Bytes of `level` that may be rewritten for a byte brought down only to make reads cheaper.
    fn settle_cost(&self, level: usize) -> u64 {
        let options = self.input.options;
        if self.sizes[level] <= SMALL_TREE * options.memtable_size {
            return SMALL_TREE_COST;
        }
        if self.input.read_hint { 2 * options.level_ratio } else { options.level_ratio }
    }
}

/// Whether what range tombstones hide is worth a merge that rewrites so many bytes.
fn covered_pays(covered: u64, rewritten: u64) -> bool {
    covered > 0 && covered.saturating_mul(COVERED_WORTH) >= rewritten
}

fn is_dense(file: &FileMeta, density: f64) -> bool {
    let deleting = file.tombstones + file.range_tombstones;
    deleting > 0 && deleting as f64 >= density * (file.entries + file.range_tombstones) as f64
}

/// Whether a file has keys of a range, as far as its bounds tell; `None` is all keys.
pub fn meets_range(order: &KeyOrder, file: &FileMeta, range: Option<&CompactionRange>) -> bool {
    let Some(range) = range else { return true };
    range.lo.as_ref().is_none_or(|lo| order.compare(&file.max_key, lo).is_ge())
        && range.hi.as_ref().is_none_or(|hi| order.compare(&file.min_key, hi).is_le())
}

/// By how much dead bytes, with those that newer entries hide, exceed the cap. 0 if no hidden ones count.
fn hidden_excess(input: &PlanInput<'_>) -> u64 {
    let (cap, hidden) = (input.options.vlog_dead_ratio, input.version.counted_hidden_bytes());
    if hidden == 0 || cap >= 1.0 {
        return 0;
    }
    let stored: u64 = input.vlogs.iter().map(|v| v.stored_bytes).sum();
    let live: u64 = input.version.files().map(|(_, f)| f.vlog_bytes()).sum();
    stored.saturating_sub(live).saturating_add(hidden).saturating_sub((cap * stored as f64) as u64)
}

/// Value logs to be emptied, when dead bytes exceed the allowed fraction of all: the worst first, until the rest is
/// within it, or their live bytes fill a value log. One that a job has moved part of goes on being among the worst.
fn worst_vlogs(input: &PlanInput<'_>) -> BTreeSet<u64> {
    let live = LiveValues::of(input.version.files().map(|(_, f)| &**f));
    let logs = by_dead_share(input, &live);
    let mut stored: u64 = logs.iter().map(|l| l.1).sum();
    let mut dead: u64 = logs.iter().map(|l| l.2).sum();
    let (mut out, mut moved) = (BTreeSet::new(), 0);
    for (id, total, gone) in logs {
        if gone == 0
            || moved >= vlog_size(input.options)
            || dead as f64 <= input.options.vlog_dead_ratio * stored as f64
        {
            break;
        }
        out.insert(id);
        moved += total.saturating_sub(gone);
        dead -= gone;
        stored -= total.min(gone);
    }
    out
}

/// The value log to be emptied where space is short: the worst of those whose live values have room, whichever jobs move them, and whose dead bytes
/// are worth it. Its values go to a value log without dead bytes, so this comes to an end. One that a job has moved a part of stays the worst.
fn worth_its_space(input: &PlanInput<'_>) -> Option<u64> {
    let live = LiveValues::of(input.version.files().map(|(_, f)| &**f));
    let is_worth_it = |(id, stored, dead): &(u64, u64, u64)| {
        let refers = |f: &FileMeta| f.vlog_refs.iter().any(|r| r.file_id == *id);
        let tables = || input.version.files().filter(|(_, f)| refers(f)).map(|(_, f)| f.size);
        let (moved, largest) = (stored.saturating_sub(*dead), tables().max().unwrap_or(0));
        let written = tables().fold(moved, u64::saturating_add);
        *dead > 0 && moved.saturating_add(largest) <= input.room && dead.saturating_mul(SHORT_OF_SPACE_COST) >= written
    };
    by_dead_share(input, &live).into_iter().find(is_worth_it).map(|log| log.0)
}

/// The ids of the value logs in use, with their stored and dead bytes, in descending order of the part that is dead.
fn by_dead_share(input: &PlanInput<'_>, live: &LiveValues) -> Vec<(u64, u64, u64)> {
    // A value log without live bytes is the engine's to delete.
    let used = input.vlogs.iter().filter(|v| live.get(v.id).is_some());
    let mut logs: Vec<(u64, u64, u64)> = used.map(|v| (v.id, v.stored_bytes, live.dead_bytes(v))).collect();
    logs.sort_by(|a, b| {
        (b.2 as u128 * a.1.max(1) as u128).cmp(&(a.2 as u128 * b.1.max(1) as u128)).then(a.0.cmp(&b.0))
    });
    logs
}
