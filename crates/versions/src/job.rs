//! Jobs: which files a merge or a move takes and where its result goes.

use crate::version::{FileMeta, Run, Version};
use kingtide_base::KeyOrder;
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Keys from `lo`, inclusive, up to `hi`, exclusive; `None` does not bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionRange {
    /// First key.
    pub lo: Option<Vec<u8>>,
    /// First key beyond.
    pub hi: Option<Vec<u8>>,
}

/// Why a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// Files change level without being read: nothing overlaps them on their way.
    TrivialMove,
    /// Everything of level 0 down to a level that can hold it, in one merge.
    FullPreemptive,
    /// The same into the dividing level, cut where the files of the largest level begin.
    Dividing,
    /// Some files of the dividing level with the files of the largest level below them.
    Partitioned,
    /// Asked for by the user.
    Manual,
    /// A file dense in tombstones.
    Tombstones,
    /// A file with many expired entries.
    Ttl,
    /// A file that refers to a value log with too many dead bytes.
    VlogGc,
    /// Fewer runs for reads to look into.
    Reads,
}

/// The part of a tree that a running job must have to itself: two running jobs never overlap in both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// First level.
    pub top: usize,
    /// Last level, the output's.
    pub bottom: usize,
    /// Smallest key.
    pub lo: Vec<u8>,
    /// Largest key.
    pub hi: Vec<u8>,
    /// Whether `hi` itself is free: the files that end there end with a range tombstone's exclusive end.
    pub hi_open: bool,
}

impl Footprint {
    /// Whether two jobs would get in each other's way.
    pub fn conflicts(&self, order: &KeyOrder, other: &Footprint) -> bool {
        self.top <= other.bottom
            && other.top <= self.bottom
            && !ends_before(order, &self.hi, self.hi_open, &other.lo)
            && !ends_before(order, &other.hi, other.hi_open, &self.lo)
    }
}

/// Whether keys up to `hi`, without `hi` itself if that is `open`, all come before `lo`.
pub(crate) fn ends_before(order: &KeyOrder, hi: &[u8], open: bool, lo: &[u8]) -> bool {
    match order.compare(hi, lo) {
        Ordering::Less => true,
        Ordering::Equal => open,
        Ordering::Greater => false,
    }
}

/// A unit of background work on one family.
#[derive(Clone, Debug)]
pub struct Job {
    /// Why it runs.
    pub kind: JobKind,
    /// Files taken, by level, each with its level.
    pub inputs: Vec<(usize, Arc<FileMeta>)>,
    /// Level of the result.
    pub output_level: usize,
    /// Run of the result.
    pub output_run: u64,
    /// Whether no run older than the result overlaps the job's keys: tombstones may go, key by key checks are not needed.
    pub drop_tombstones: bool,
    /// Keys, ascending, at which output files should begin where their size allows it.
    pub boundaries: Vec<Vec<u8>>,
    /// Value logs whose values are to be moved to the job's own.
    pub relocate_vlogs: BTreeSet<u64>,
    /// Inputs whose `max_key` is not theirs, see [`Version::open_ends`].
    pub open_ends: BTreeSet<u64>,
}

impl Job {
    /// Bytes of key logs read.
    pub fn input_bytes(&self) -> u64 {
        self.inputs.iter().map(|(_, f)| f.size).sum()
    }

    /// Smallest and largest key of the inputs, both inclusive; `None` for a job without inputs.
    pub fn hull(&self, order: &KeyOrder) -> Option<(&[u8], &[u8])> {
        let lo = self.inputs.iter().map(|(_, f)| f.min_key.as_slice()).min_by(|a, b| order.compare(a, b))?;
        let hi = self.inputs.iter().map(|(_, f)| f.max_key.as_slice()).max_by(|a, b| order.compare(a, b))?;
        Some((lo, hi))
    }

    /// Whether the inputs end before the hull's largest key.
    pub fn hull_is_open(&self, order: &KeyOrder) -> bool {
        let Some((_, hi)) = self.hull(order) else { return false };
        let mut last = self.inputs.iter().filter(|(_, f)| order.compare(&f.max_key, hi).is_eq());
        last.all(|(_, f)| self.open_ends.contains(&f.id))
    }

    /// What the job occupies while it runs. A move occupies each file's keys for itself, a merge all between them.
    pub fn footprints(&self, order: &KeyOrder) -> Vec<Footprint> {
        let bottom = self.output_level;
        if self.kind == JobKind::TrivialMove {
            let one = |(top, f): &(usize, Arc<FileMeta>)| Footprint {
                top: *top,
                bottom,
                lo: f.min_key.clone(),
                hi: f.max_key.clone(),
                hi_open: self.open_ends.contains(&f.id),
            };
            return self.inputs.iter().map(one).collect();
        }
        let top = self.inputs.iter().map(|(l, _)| *l).min().unwrap_or(bottom);
        let (hull, hi_open) = (self.hull(order), self.hull_is_open(order));
        hull.into_iter().map(|(lo, hi)| Footprint { top, bottom, lo: lo.to_vec(), hi: hi.to_vec(), hi_open }).collect()
    }

    /// The files of a trivial move as they are after it.
    pub fn moved(&self) -> Vec<(usize, FileMeta)> {
        let moved = |f: &FileMeta| FileMeta { run: self.output_run, ..f.clone() };
        self.inputs.iter().map(|(_, f)| (self.output_level, moved(f))).collect()
    }

    /// Splits the job's keys into at most `n` ranges of about the same number of input bytes, for merges in parallel.
    /// The cuts are smallest keys of input files: no index is read.
    pub fn split(&self, order: &KeyOrder, n: usize) -> Vec<CompactionRange> {
        let mut starts: Vec<&[u8]> = self.inputs.iter().map(|(_, f)| f.min_key.as_slice()).collect();
        starts.sort_by(|a, b| order.compare(a, b));
        starts.dedup_by(|a, b| order.compare(a, b).is_eq());
        let total = self.input_bytes();
        let mut ranges = Vec::new();
        let mut from: Option<Vec<u8>> = None;
        for key in starts.into_iter().skip(1) {
            if ranges.len() + 1 >= n {
                break;
            }
            // A file that the key cuts counts half: where in the file the key lies is not known.
            let below: u64 = self
                .inputs
                .iter()
                .map(|(_, f)| match () {
                    () if order.compare(&f.max_key, key).is_lt() => f.size,
                    () if order.compare(&f.min_key, key).is_lt() => f.size / 2,
                    () => 0,
                })
                .sum();
            if below as u128 * n as u128 >= total as u128 * (ranges.len() as u128 + 1) {
                ranges.push(CompactionRange { lo: from.take(), hi: Some(key.to_vec()) });
                from = Some(key.to_vec());
            }
        }
        ranges.push(CompactionRange { lo: from, hi: None });
        ranges
    }
}

/// Runs that are older than the place of a result, newest first.
pub fn runs_below(version: &Version, level: usize, run: u64) -> impl Iterator<Item = &Run> {
    let same = version.levels[level].iter().filter(move |r| r.id < run);
    same.chain(version.levels[level + 1..].iter().flatten())
}

/// Checks that a job keeps the invariants of [`Version`]: no data jumps over older data of its keys, the result fits between
/// the files of its run, and no running job is in the way. O(inputs * files).
///
/// # Errors
/// A message that names the files.
pub fn check_job(order: &KeyOrder, version: &Version, running: &[Footprint], job: &Job) -> Result<(), String> {
    let taken: BTreeSet<u64> = job.inputs.iter().map(|(_, f)| f.id).collect();
    let (lo, hi) = job.hull(order).ok_or("a job without inputs")?;
    let moves = job.kind == JobKind::TrivialMove;
    let out = (job.output_level, Reverse(job.output_run));
    let open = version.open_ends(order);
    if let Some(id) = job.open_ends.iter().find(|id| !open.contains(id)) {
        return Err(format!("the largest key of file {id} is taken for an exclusive end"));
    }
    let is_before = |a: &FileMeta, b: &FileMeta| ends_before(order, &a.max_key, open.contains(&a.id), &b.min_key);
    let overlap = |a: &FileMeta, b: &FileMeta| !is_before(a, b) && !is_before(b, a);
    for (level, file) in &job.inputs {
        let place = (*level, Reverse(file.run));
        if !version.levels[*level].iter().flat_map(|r| &r.files).any(|f| f.id == file.id && f.run == file.run) {
            return Err(format!("input {} is not in level {level}", file.id));
        }
        if place > out {
            return Err(format!("file {} would move up", file.id));
        }
        let others = version.files().filter(|(_, f)| !taken.contains(&f.id));
        for (other_level, other) in others.filter(|(_, f)| overlap(f, file)) {
            let other_place = (other_level, Reverse(other.run));
            if other_place > place && other_place < out {
                return Err(format!("file {} would jump over older file {}", file.id, other.id));
            }
            if other_place == out && place != out {
                return Err(format!("file {} would overlap file {} of its new run", file.id, other.id));
            }
        }
    }
    let hi_open = job.hull_is_open(order);
    let meets_hull = |f: &FileMeta| {
        !ends_before(order, &f.max_key, open.contains(&f.id), lo) && !ends_before(order, hi, hi_open, &f.min_key)
    };
    // Between the inputs, too, the result must find its run empty.
    let mut mates = version.files().filter(|(l, f)| (*l, Reverse(f.run)) == out && !taken.contains(&f.id));
    if let (false, Some((_, f))) = (moves, mates.find(|(_, f)| meets_hull(f))) {
        return Err(format!("the result would overlap file {} of its run", f.id));
    }
    if moves {
        for (i, (_, a)) in job.inputs.iter().enumerate() {
            if job.inputs[..i].iter().any(|(_, b)| overlap(a, b)) {
                return Err(format!("moved file {} overlaps another", a.id));
            }
        }
    }
    let below = runs_below(version, job.output_level, job.output_run);
    let older = below.flat_map(|r| &r.files).find(|f| !taken.contains(&f.id) && meets_hull(f));
    if let (true, Some(f)) = (job.drop_tombstones, older) {
        return Err(format!("tombstones would be dropped over older file {}", f.id));
    }
    for own in job.footprints(order) {
        if let Some(other) = running.iter().find(|r| r.conflicts(order, &own)) {
            return Err(format!("{own:?} is in the way of {other:?}"));
        }
    }
    Ok(())
}
