//! From the state before a session and its journal to what may be found after it.

use crate::journal::{Copy, Record};
use crate::model::{Change, Entry, Op, Place, State, Unit, Work};
use std::collections::BTreeMap;

/// A unit of a lane and what is known of it.
#[derive(Clone, Debug)]
pub struct Step {
    pub unit: Unit,
    /// It must be found. Of the others, an acknowledged one may be lost by a session without log, and one in flight
    /// may be there or not.
    pub must: bool,
    pub sequence: u64,
}

/// Steps of a lane on top of a state.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// In order. Refused units are not among them.
    pub done: Vec<Step>,
    /// What had been begun and not ended.
    pub in_flight: Option<Unit>,
}

/// A copy and the states that it may hold: `base`, and of each lane some of the first steps.
#[derive(Clone, Debug)]
pub struct CopyMade {
    pub kind: Copy,
    pub number: u64,
    pub base: State,
    pub steps: Vec<Steps>,
    /// Changes of the set of families since it was begun, some of which it may hold.
    pub changes: Vec<FamilyChange>,
    pub complete: bool,
}

/// A change of the set of families; for a clone, with what each lane's keys in it are.
#[derive(Clone, Debug)]
pub struct FamilyChange {
    pub change: Change,
    pub cloned: Vec<Vec<(Place, Entry)>>,
}

impl FamilyChange {
    /// A change that was made; `visible` has it.
    fn of(change: &Change, visible: &State) -> FamilyChange {
        let cloned = match change {
            Change::Clone(_, uid, _) => visible
                .lanes
                .iter()
                .map(|lane| lane.keys.range((*uid, 0)..=(*uid, u16::MAX)).map(|(place, e)| (*place, *e)).collect())
                .collect(),
            _ => Vec::new(),
        };
        FamilyChange { change: change.clone(), cloned }
    }

    /// Applies it to a state in which the clone's source may be older.
    pub fn apply(&self, state: &mut State) {
        state.change(&self.change);
        if let Change::Clone(_, uid, _) = &self.change {
            for (lane, cloned) in state.lanes.iter_mut().zip(&self.cloned) {
                lane.forget(*uid);
                lane.keys.extend(cloned.iter().copied());
            }
        }
    }
}

/// What may be found after a session.
#[derive(Debug)]
pub struct Replay {
    /// Everything that was acknowledged.
    pub visible: State,
    /// What the session began with, families added since included.
    pub base: State,
    /// On top of `base`.
    pub steps: Vec<Steps>,
    /// A change of the set of families that was in flight.
    pub changing: Option<Change>,
    /// The newest complete copy of each kind, and the one that was being made.
    pub copies: Vec<CopyMade>,
    /// Units acknowledged and refused.
    pub acknowledged: u64,
    pub refused: u64,
}

struct Session {
    none: bool,
    out: Replay,
    /// By number: where each lane was, and the family.
    flushes: BTreeMap<u64, (Vec<usize>, Option<u32>)>,
    copies: BTreeMap<Copy, CopyMade>,
}

/// Replays a journal over the state that the session began with.
pub fn replay(state: &State, records: &[Record]) -> Result<Replay, String> {
    let lanes = state.lanes.len();
    let mut session = Session {
        none: false,
        out: Replay {
            visible: state.clone(),
            base: state.clone(),
            steps: vec![Steps::default(); lanes],
            changing: None,
            copies: Vec::new(),
            acknowledged: 0,
            refused: 0,
        },
        flushes: BTreeMap::new(),
        copies: BTreeMap::new(),
    };
    for (n, record) in records.iter().enumerate() {
        session.take(record).map_err(|e| format!("journal record {n}, {record:?}: {e}"))?;
    }
    Ok(session.finish())
}

impl Session {
    fn take(&mut self, record: &Record) -> Result<(), String> {
        match record {
            Record::Session(none) => self.none = *none,
            Record::Begin(lane, unit) => self.begin(*lane, unit)?,
            Record::End(lane, n, done, sequence) => self.end(*lane, *n, *done, *sequence)?,
            Record::Change(change) => {
                if self.out.changing.replace(change.clone()).is_some() {
                    return Err("two changes at once".to_owned());
                }
            }
            Record::Changed(done) => {
                let change = self.out.changing.take().ok_or("no change was begun")?;
                if *done {
                    apply_change(&mut self.out, &change);
                    let made = FamilyChange::of(&change, &self.out.visible);
                    self.copies.values_mut().for_each(|copy| copy.changes.push(made.clone()));
                }
            }
            Record::Flush(n, family) => {
                let at = self.out.steps.iter().map(|s| s.done.len()).collect();
                self.flushes.insert(*n, (at, *family));
            }
            Record::Flushed(n) => {
                let (at, family) = self.flushes.remove(n).ok_or("the flush was not begun")?;
                for (steps, at) in self.out.steps.iter_mut().zip(at) {
                    let flushed = |step: &&mut Step| family.is_none_or(|f| of_family(&step.unit) == Some(f));
                    steps.done[..at].iter_mut().filter(flushed).for_each(|step| step.must = true);
                }
            }
            Record::Copy(kind, number) => {
                let steps = self.out.steps.iter().map(|s| Steps { done: Vec::new(), in_flight: s.in_flight.clone() });
                let (base, steps) = (self.out.visible.clone(), steps.collect());
                let made = CopyMade { kind: *kind, number: *number, base, steps, changes: Vec::new(), complete: false };
                self.copies.insert(*kind, made);
            }
            Record::Copied(kind, number) => {
                let mut made = self.copies.remove(kind).filter(|c| c.number == *number).ok_or("no such copy")?;
                made.complete = true;
                made.changes.extend(self.change_in_flight());
                self.out.copies.retain(|c| c.kind != *kind);
                self.out.copies.push(made);
            }
            Record::Closed => {
                // Everything is in tables now.
                let steps = self.out.steps.iter_mut().flat_map(|s| s.done.iter_mut());
                steps.for_each(|step| step.must = true);
            }
        }
        Ok(())
    }

    fn begin(&mut self, lane: usize, unit: &Unit) -> Result<(), String> {
        let steps = self.out.steps.get_mut(lane).ok_or("no such lane")?;
        if steps.in_flight.replace(unit.clone()).is_some() {
            return Err("the lane has a unit in flight".to_owned());
        }
        self.out.visible.lanes[lane].last = unit.n;
        for copy in self.copies.values_mut() {
            copy.steps[lane].in_flight = Some(unit.clone());
        }
        Ok(())
    }

    fn end(&mut self, lane: usize, n: u64, done: bool, sequence: u64) -> Result<(), String> {
        let steps = self.out.steps.get_mut(lane).ok_or("no such lane")?;
        let unit = steps.in_flight.take().filter(|u| u.n == n).ok_or("no such unit in flight")?;
        for copy in self.copies.values_mut() {
            copy.steps[lane].in_flight = None;
        }
        if !done {
            self.out.refused += 1;
            return Ok(());
        }
        self.out.acknowledged += 1;
        let step = Step { must: unit.logged || !self.none, unit, sequence };
        for copy in self.copies.values_mut() {
            copy.steps[lane].done.push(Step { must: false, ..step.clone() });
        }
        let families = &self.out.visible.families;
        self.out.visible.lanes[lane].apply(lane, &step.unit, |op| families.contains_key(&op.family()));
        steps.done.push(step);
        Ok(())
    }

    /// A change that was begun, as if it had been made.
    fn change_in_flight(&self) -> Option<FamilyChange> {
        let change = self.out.changing.as_ref()?;
        let mut after = self.out.visible.clone();
        after.change(change);
        Some(FamilyChange::of(change, &after))
    }

    fn finish(mut self) -> Replay {
        let changing = self.change_in_flight();
        for mut copy in std::mem::take(&mut self.copies).into_values() {
            copy.changes.extend(changing.clone());
            self.out.copies.push(copy);
        }
        self.out
    }
}

/// Applies a change of the set of families that was made.
pub fn apply_change(to: &mut Replay, change: &Change) {
    to.visible.change(change);
    // A clone's contents are in tables, whatever becomes of the source's.
    FamilyChange::of(change, &to.visible).apply(&mut to.base);
}

/// The family of a unit that is in no log.
fn of_family(unit: &Unit) -> Option<u32> {
    match &unit.work {
        Work::Commit(ops) if !unit.logged => ops.first().map(Op::family),
        _ => None,
    }
}
