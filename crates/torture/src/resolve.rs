//! Which of the states that may be found was found.
//!
//! Of a lane's steps some must be there. The others are on an *axis*: they are there up to a point that the reader finds
//! out. For a copy that is one point for each lane, somewhere between the copy's begin and its end. After a kill of a
//! session without log it is one point for each family: up to there it was flushed. A unit that was in flight and would
//! have been logged is there or not.
//!
//! Each key by itself says at which points its value is right, and a point that is right for all keys is one of those
//! that were looked for.

use crate::contents::Found;
use crate::model::{Entry, Family, Lane, Op, Place, Work, entry_id, show_id};
use crate::replay::{Step, Steps};
use std::collections::{BTreeMap, BTreeSet};

/// What steps that may be missing share a point with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// The lane's others: a copy.
    Lane,
    /// The lane's others of the family: unlogged commits.
    Family,
}

/// A lane as it was found.
#[derive(Debug)]
pub struct Resolved {
    pub lane: Lane,
    /// Whether a unit that was in flight is there, if there was one.
    pub in_flight: Option<bool>,
    /// Steps that may be missing, and those of them that are.
    pub optional: u64,
    pub missing: u64,
    /// By axis (0 or the family): sequence numbers of the last step that is there for certain and of the first that is not.
    pub cuts: BTreeMap<u32, (u64, u64)>,
}

/// What is common to the lanes of one reading.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    pub families: &'a BTreeMap<u32, Family>,
    pub found: &'a Found,
    pub axis: Axis,
}

/// Values of one key: from which point on each.
type History = BTreeMap<Place, Vec<(Option<usize>, Option<Entry>)>>;

/// What is right at which points of the axes.
struct Fit {
    /// By axis: for each point whether it is right.
    right: BTreeMap<u32, Vec<bool>>,
    /// By step: its point, if it may be missing.
    points: Vec<Option<(u32, usize)>>,
    wrong: Vec<String>,
}

/// Finds out how much of a lane's steps is there.
pub fn resolve(number: usize, base: &Lane, steps: &Steps, reading: &Reading<'_>) -> Result<Resolved, String> {
    let step_of = |must| steps.in_flight.iter().map(move |u| Step { unit: u.clone(), must, sequence: 0 });
    let fits = |all: &[Step]| Fit::of(number, base, all, reading);
    let on_axis = reading.axis == Axis::Lane || steps.in_flight.as_ref().is_some_and(|u| !u.logged);
    let (mut all, mut in_flight) = (steps.done.clone(), None);
    if on_axis {
        all.extend(step_of(false));
    }
    let mut fit = fits(&all);
    if steps.in_flight.is_some() && !on_axis {
        in_flight = Some(false);
        if !fit.is_right() {
            let with: Vec<Step> = all.iter().cloned().chain(step_of(true)).collect();
            let other = fits(&with);
            if other.is_right() {
                (all, fit, in_flight) = (with, other, Some(true));
            } else {
                fit.wrong.push(format!("with the unit in flight, {:?}:", steps.in_flight));
                fit.wrong.extend(other.complaints());
            }
        }
    }
    if !fit.is_right() {
        let text: Vec<String> = fit.complaints().into_iter().take(24).collect();
        return Err(format!("lane {number}:\n  {}", text.join("\n  ")));
    }
    Ok(fit.choose(number, base, &all, in_flight, reading))
}

impl Fit {
    fn of(number: usize, base: &Lane, all: &[Step], reading: &Reading<'_>) -> Fit {
        let mut fit = Fit { right: BTreeMap::new(), points: Vec::new(), wrong: Vec::new() };
        let mut history = History::new();
        let mut lengths: BTreeMap<u32, usize> = BTreeMap::new();
        let mut doubt = Lane { prepared: base.prepared.clone(), ..Lane::default() };
        let mut doubts = vec![names(&doubt)];
        for step in all {
            let axis = if reading.axis == Axis::Lane { 0 } else { family_of(step) };
            let point = (!step.must).then(|| {
                let length = lengths.entry(axis).or_default();
                *length += 1;
                *length
            });
            fit.points.push(point.map(|p| (axis, p)));
            let (unit, ops) = doubt.writes(&step.unit);
            let there = ops.iter().enumerate().filter(|(_, op)| reading.families.contains_key(&op.family()));
            there.for_each(|(i, op)| note(&mut history, base, op, entry_id(number, unit, i), point));
            doubt.apply_prepared(&step.unit);
            doubts.push(names(&doubt));
        }
        fit.right = lengths.iter().map(|(axis, length)| (*axis, vec![true; length + 1])).collect();
        fit.check_doubts(number, doubts, reading);
        fit.check_keys(number, base, &history, reading);
        fit
    }

    fn check_doubts(&mut self, number: usize, doubts: Vec<BTreeSet<(u8, u64)>>, reading: &Reading<'_>) {
        let found: BTreeSet<(u8, u64)> = reading.found.prepared[number].iter().map(|(n, unit)| (*n, *unit)).collect();
        match self.right.get_mut(&0).filter(|_| reading.axis == Axis::Lane) {
            Some(right) => right.iter_mut().zip(doubts).for_each(|(right, doubt)| *right &= doubt == found),
            None => {
                let expected = doubts.into_iter().next_back().unwrap_or_default();
                if expected != found {
                    self.wrong.push(format!("transactions in doubt (number, unit) {found:?} instead of {expected:?}"));
                }
            }
        }
    }

    fn check_keys(&mut self, number: usize, base: &Lane, history: &History, reading: &Reading<'_>) {
        let found = &reading.found.lanes[number];
        let places: BTreeSet<&Place> = base.keys.keys().chain(history.keys()).chain(found.keys()).collect();
        for place in places.into_iter().filter(|p| reading.families.contains_key(&p.0)) {
            let is = found.get(place).copied();
            let first = base.keys.get(place).copied();
            let values = history.get(place).map_or(&[][..], |v| v);
            let must = values.iter().rposition(|(point, _)| point.is_none());
            let start = must.map_or(first, |i| values[i].1);
            let later = &values[must.map_or(0, |i| i + 1)..];
            let axis = if reading.axis == Axis::Lane { 0 } else { place.0 };
            let segments = std::iter::once((0, start)).chain(later.iter().map(|(p, v)| (p.unwrap_or(0), *v)));
            let segments: Vec<(usize, Option<Entry>)> = segments.collect();
            let Some(right) = self.right.get_mut(&axis).filter(|_| !later.is_empty()) else {
                if !matches(is, start, reading.found.time) {
                    self.wrong.push(complaint(*place, is, start));
                }
                continue;
            };
            for (i, (from, value)) in segments.iter().enumerate() {
                let to = segments.get(i + 1).map_or(right.len(), |s| s.0);
                if !matches(is, *value, reading.found.time) {
                    right[*from..to].fill(false);
                }
            }
            if right.iter().all(|r| !r) && self.wrong.len() < 16 {
                let all: Vec<String> = segments.iter().map(|(p, v)| format!("from {p} {}", show(*v))).collect();
                let is = is.map_or("nothing".to_owned(), show_id);
                self.wrong.push(format!("no point is right any more at {place:?}, which holds {is}: {all:?}"));
            }
        }
    }

    fn is_right(&self) -> bool {
        self.wrong.is_empty() && self.right.values().all(|right| right.contains(&true))
    }

    fn complaints(&self) -> Vec<String> {
        let none = self.right.iter().filter(|(_, right)| !right.contains(&true));
        let none = none.map(|(axis, right)| format!("axis {axis}: none of {} points is right", right.len()));
        none.chain(self.wrong.iter().cloned()).collect()
    }

    fn choose(
        &self,
        number: usize,
        base: &Lane,
        all: &[Step],
        mut in_flight: Option<bool>,
        reading: &Reading<'_>,
    ) -> Resolved {
        let ends = |right: &Vec<bool>| (right.iter().position(|r| *r), right.iter().rposition(|r| *r));
        let ends: BTreeMap<u32, (usize, usize)> =
            self.right.iter().filter_map(|(axis, right)| Some((*axis, (ends(right).0?, ends(right).1?)))).collect();
        let mut lane = base.clone();
        let mut cuts: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let (mut optional, mut missing) = (0, 0);
        for (step, point) in all.iter().zip(&self.points) {
            lane.last = lane.last.max(step.unit.n);
            let mut kept = true;
            if let Some((axis, point)) = point {
                let (least, most) = ends[axis];
                let cut = cuts.entry(*axis).or_insert((0, u64::MAX));
                kept = *point <= most;
                if *point <= least {
                    cut.0 = cut.0.max(step.sequence);
                } else if !kept && step.sequence > 0 {
                    cut.1 = cut.1.min(step.sequence);
                }
                optional += 1;
                missing += u64::from(!kept);
                if step.sequence == 0 && *point + 1 == self.right[axis].len() {
                    in_flight = Some(kept);
                }
            }
            if kept {
                lane.apply(number, &step.unit, |op| reading.families.contains_key(&op.family()));
            }
        }
        Resolved { lane, in_flight, optional, missing, cuts }
    }
}

/// The transactions in doubt.
fn names(lane: &Lane) -> BTreeSet<(u8, u64)> {
    lane.prepared.iter().map(|(number, p)| (*number, p.unit)).collect()
}

/// The family of a step that is in no log.
fn family_of(step: &Step) -> u32 {
    match &step.unit.work {
        Work::Commit(ops) => ops.first().map_or(0, Op::family),
        _ => 0,
    }
}

fn note(history: &mut History, base: &Lane, op: &Op, id: u64, point: Option<usize>) {
    match op {
        Op::Put(f, slot, expires) => {
            history.entry((*f, *slot)).or_default().push((point, Some(Entry { id, expires: *expires })));
        }
        Op::Delete(f, slot) | Op::SingleDelete(f, slot) => {
            history.entry((*f, *slot)).or_default().push((point, None));
        }
        Op::DeleteRange(..) | Op::DeletePrefix(..) => {
            let Some((f, slots)) = op.range() else { return };
            let range = (f, slots.start)..(f, slots.end);
            let mut gone: Vec<Place> = base.keys.range(range.clone()).map(|(place, _)| *place).collect();
            gone.extend(history.range(range).map(|(place, _)| *place));
            gone.sort_unstable();
            gone.dedup();
            gone.into_iter().for_each(|place| history.entry(place).or_default().push((point, None)));
        }
        Op::Add(..) => {}
    }
}

/// Milliseconds by which clocks and their rounding may differ.
const SLACK: u64 = 2;

/// Whether what was found at some moment of a reading is what an entry shows then.
pub fn matches(found: Option<u64>, entry: Option<Entry>, (begin, end): (u64, u64)) -> bool {
    match (found, entry) {
        (None, None) => true,
        (Some(id), Some(e)) => id == e.id && (e.expires == 0 || e.expires + SLACK > begin),
        (None, Some(e)) => e.expires != 0 && e.expires <= end + SLACK,
        (Some(_), None) => false,
    }
}

fn show(entry: Option<Entry>) -> String {
    match entry {
        None => "nothing".to_owned(),
        Some(Entry { id, expires: 0 }) => show_id(id),
        Some(Entry { id, expires }) => format!("{} until {expires}", show_id(id)),
    }
}

fn complaint(place: Place, found: Option<u64>, expected: Option<Entry>) -> String {
    let kind = match (found, expected) {
        (None, Some(_)) => "LOST",
        (Some(_), None) => "not gone",
        _ => "WRONG",
    };
    let found = found.map_or("nothing".to_owned(), show_id);
    format!("{kind}: family number {} slot {} holds {found} instead of {}", place.0, place.1, show(expected))
}

/// Checks that the lanes agree on one cut: no lane misses a commit that precedes a commit found for another lane.
pub fn check_cuts<'a>(lanes: impl Iterator<Item = &'a Resolved>) -> Result<(), String> {
    let mut all: BTreeMap<u32, ((u64, usize), (u64, usize))> = BTreeMap::new();
    for (number, lane) in lanes.enumerate() {
        for (axis, (least, most)) in &lane.cuts {
            let cut = all.entry(*axis).or_insert(((0, 0), (u64::MAX, 0)));
            cut.0 = cut.0.max((*least, number));
            cut.1 = cut.1.min((*most, number));
        }
    }
    match all.iter().find(|(_, (there, missing))| there.0 >= missing.0) {
        None => Ok(()),
        Some((axis, (there, missing))) => Err(format!(
            "axis {axis}: lane {} has commit {} and lane {} misses commit {}, which came before",
            there.1, there.0, missing.1, missing.0
        )),
    }
}

#[cfg(test)]
mod tests;
