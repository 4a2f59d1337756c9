//! What a transaction must see, and whether its commit must be refused. What others did is known to the oracle; here are
//! the transaction's own writes over it.

use crate::model::answer::Answer;
use crate::model::ops::{Change, Move, Range, Write};
use crate::model::oracle::{Canon, Moment, Part, Shown, Window};
use crate::model::world::{World, follow, parts, window};
use kingtide::{ErrorKind, Isolation};
use std::ops::Bound;
use std::sync::Arc;

pub struct Txn {
    pub level: Isolation,
    /// When it began.
    pub at: u64,
    /// Its writes, and when what they put expires.
    pub own: Vec<(Write, Option<u64>)>,
    pub savepoints: Vec<(u8, usize)>,
    /// Keys read, of which the serializable level demands that they are unchanged.
    reads: Vec<(usize, Part)>,
}

/// What a transaction's own writes make of a key: its name, value and expiry; no value: deleted.
type Own = Option<(Arc<[u8]>, Arc<[u8]>, Option<u64>)>;

impl Txn {
    pub fn new(level: Isolation, at: u64) -> Txn {
        Txn { level, at, own: Vec::new(), savepoints: Vec::new(), reads: Vec::new() }
    }

    fn moment(&self, world: &World) -> Moment {
        let at = if self.level >= Isolation::RepeatableRead { self.at } else { world.at };
        Moment { at, now_ms: world.now_ms }
    }

    pub fn write(&mut self, world: &World, write: &Write) -> Result<(), ErrorKind> {
        if let Change::DeleteRange(lo, hi) = &write.change {
            let family = world.family(write.family);
            let m = family.borrow();
            if m.canon(lo) > m.canon(hi) {
                return Err(ErrorKind::InvalidArgument);
            }
        }
        self.own.push((write.clone(), world.expiry(write)));
        Ok(())
    }

    /// The newest own write on a key; `None` if there is none.
    fn own(&self, world: &World, f: usize, canon: &Canon) -> Option<Own> {
        let family = world.family(f);
        let m = family.borrow();
        self.own.iter().rev().filter(|(w, _)| w.family == f).find_map(|(w, expiry)| {
            match (parts(&m, &w.change), &w.change) {
                (Part::Key(k), Change::Put(key, value, _)) if k == *canon => {
                    Some(Some((key.0.as_slice().into(), value.0.clone(), *expiry)))
                }
                (Part::Key(k), _) if k == *canon => Some(None),
                (Part::Range(lo, hi), _) if lo <= *canon && *canon < hi => Some(None),
                _ => None,
            }
        })
    }

    pub fn get(&mut self, world: &World, f: usize, key: &[u8]) -> Option<Arc<[u8]>> {
        let family = world.family(f);
        let canon = family.borrow().canon(key);
        match self.own(world, f, &canon) {
            Some(own) => {
                own.filter(|(.., expiry)| expiry.is_none_or(|at| at > world.now_ms)).map(|(_, value, _)| value)
            }
            None => {
                self.reads.push((f, Part::Key(canon)));
                family.borrow().get(key, self.moment(world))
            }
        }
    }

    pub fn iterate(&mut self, world: &World, range: &Range, moves: &[Move], answer: &mut Answer) {
        let family = world.family(range.family);
        let window = window(&family.borrow(), range);
        let mut position = None;
        for step in moves {
            let first = |from: Bound<&Canon>| self.nearest(world, range.family, &window, from, true);
            let last = |from: Bound<&Canon>| self.nearest(world, range.family, &window, from, false);
            let shown = follow(step, position.take(), |k| family.borrow().canon(k), first, last);
            answer.entry(shown.as_ref().map(|(_, k, v)| (&**k, &**v)));
            position = shown.map(|(canon, ..)| canon);
        }
    }

    /// The nearest entry from a bound on, in one direction: of what is committed and not overwritten, and of its own.
    fn nearest(&self, world: &World, f: usize, window: &Window, from: Bound<&Canon>, forward: bool) -> Option<Shown> {
        let family = world.family(f);
        let m = family.borrow();
        let moment = self.moment(world);
        let find =
            |from: Bound<&Canon>| if forward { m.first(window, from, moment) } else { m.last(window, from, moment) };
        let mut committed = find(from);
        while let Some((canon, ..)) = &committed
            && self.own(world, f, canon).is_some()
        {
            committed = find(Bound::Excluded(&canon.clone()));
        }
        let behind = |canon: &Canon| match (from, forward) {
            (Bound::Unbounded, _) => true,
            (Bound::Included(b), true) => canon >= b,
            (Bound::Excluded(b), true) => canon > b,
            (Bound::Included(b), false) => canon <= b,
            (Bound::Excluded(b), false) => canon < b,
        };
        let own = self.own.iter().filter(|(w, _)| w.family == f).filter_map(|(w, _)| match &w.change {
            Change::Put(key, ..) => {
                let canon = m.canon(key);
                let (key, value, expiry) = self.own(world, f, &canon)??;
                let alive = expiry.is_none_or(|at| at > world.now_ms);
                let shown = alive && behind(&canon) && window.shows(&m.order, &canon, &key);
                shown.then_some((canon, key, value))
            }
            _ => None,
        });
        let all = own.chain(committed);
        if forward { all.min_by(|a, b| a.0.cmp(&b.0)) } else { all.max_by(|a, b| a.0.cmp(&b.0)) }
    }

    fn find_savepoint(&self, name: u8) -> Result<usize, ErrorKind> {
        self.savepoints.iter().rposition(|(n, _)| *n == name).ok_or(ErrorKind::NotFound)
    }

    pub fn rollback_to(&mut self, name: u8) -> Result<(), ErrorKind> {
        let i = self.find_savepoint(name)?;
        self.own.truncate(self.savepoints[i].1);
        self.savepoints.truncate(i + 1);
        Ok(())
    }

    pub fn release(&mut self, name: u8) -> Result<(), ErrorKind> {
        let i = self.find_savepoint(name)?;
        self.savepoints.truncate(i);
        Ok(())
    }

    /// Whether others changed something that the level relies on.
    pub fn must_conflict(&self, world: &World) -> bool {
        let changed = |f: usize, part: &Part| world.family(f).borrow().changed_since(part, self.at);
        let written = |(w, _): &(Write, _)| changed(w.family, &parts(&world.family(w.family).borrow(), &w.change));
        !self.own.is_empty()
            && (self.level >= Isolation::Snapshot && self.own.iter().any(written)
                || self.level == Isolation::Serializable && self.reads.iter().any(|(f, part)| changed(*f, part)))
    }
}
