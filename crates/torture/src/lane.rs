//! A lane: draws units, runs them, and reads its own keys in between.

use crate::child::{Handle, World, fail, say};
use crate::contents::{check_value, collect, now_ms};
use crate::draw::{self, How};
use crate::execute::{Outcome, execute};
use crate::journal::Record;
use crate::model::{
    ACCOUNT, ACCOUNTS, DEFAULT, Entry, LANES, Lane, MARKER, Op, Unit, Work, bounds, key, parse_key, slots,
};
use crate::resolve::matches;
use kingtide::{ReadOptions, Snapshot};
use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// A snapshot, and what a family held for this lane when it was taken.
struct Held {
    snapshot: Snapshot,
    handle: Arc<Handle>,
    entries: BTreeMap<u16, Entry>,
}

/// One lane of a child.
pub struct Writer<'w> {
    pub world: &'w World,
    pub number: usize,
    pub lane: Lane,
    pub rng: Rng,
    held: Vec<Held>,
    scratch: Vec<u8>,
}

impl<'w> Writer<'w> {
    pub fn new(world: &'w World, number: usize, lane: Lane) -> Writer<'w> {
        let rng = Rng::new(world.orders.seed ^ (world.orders.session << 8 | number as u64).rotate_left(24));
        Writer { world, number, lane, rng, held: Vec::new(), scratch: Vec::new() }
    }

    /// Works until the database closes.
    pub fn run(mut self) {
        // Now and then a lane sleeps for long, so that what it wrote stays where it is.
        let lazy = self.rng.one_in(4);
        while !self.world.is_closing() {
            self.world.beat(self.number);
            match self.rng.below(100) {
                0..78 => self.unit(),
                78..90 => self.read(),
                90..93 => self.hold(),
                93..96 => self.check_held(),
                96..98 if self.number < LANES => std::thread::sleep(Duration::from_millis(self.rng.below(4))),
                _ if lazy => std::thread::sleep(Duration::from_millis(self.rng.below(40))),
                _ => {}
            }
        }
        self.world.beats[self.number].store(u64::MAX / 2, std::sync::atomic::Ordering::Relaxed);
    }

    /// A family, the first ones often, the last ones hardly ever.
    pub fn pick(&mut self) -> Arc<Handle> {
        let handles = self.world.handles();
        let at = self.rng.unit().powi(4) * handles.len() as f64;
        handles[(at as usize).min(handles.len() - 1)].clone()
    }

    fn unit(&mut self) {
        let world = self.world;
        let _gate = world.gate.read().unwrap_or_else(PoisonError::into_inner);
        let Some((work, how)) = draw::work(self) else { return };
        let unit = Unit { n: self.lane.last + 1, logged: how.is_logged(&work, world.orders.none), work };
        self.lane.last = unit.n;
        if matches!(how, How::Ingest { .. }) {
            say("E ingest");
        }
        world.write(&Record::Begin(self.number, unit.clone()));
        match execute(self, &unit, &how) {
            Outcome::Done(sequence) => {
                world.write(&Record::End(self.number, unit.n, true, sequence));
                let handles = world.handles();
                let there = |op: &Op| handles.iter().any(|h| h.uid == op.family());
                self.lane.apply(self.number, &unit, there);
                world.counts.add(how.name(&unit.work), 1);
            }
            Outcome::Refused => {
                world.write(&Record::End(self.number, unit.n, false, 0));
                world.counts.add("refused", 1);
            }
            Outcome::Failed(e) => fail(&format!("lane {} unit {unit:?} ({how:?}): {e}", self.number)),
        }
    }

    fn entries(&self, uid: u32) -> BTreeMap<u16, Entry> {
        self.lane.keys.range((uid, 0)..=(uid, u16::MAX)).map(|((_, slot), e)| (*slot, *e)).collect()
    }

    /// Fails unless an error can be excused, and returns the value if there was none.
    fn excuse<T>(&self, what: &str, uid: u32, result: kingtide::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e) if self.world.is_excused(&e, [uid]) => None,
            Err(e) => fail(&format!("lane {} {what} of family number {uid}: {e}", self.number)),
        }
    }

    /// Reads keys of its own, one by one or all.
    fn read(&mut self) {
        if self.rng.one_in(8) {
            return self.sum_up();
        }
        let handle = self.pick();
        let (uid, order) = (handle.uid, handle.family.order);
        let lane = self.number as u8;
        self.world.counts.add("reads", 1);
        if self.rng.one_in(4) {
            let entries = self.entries(uid);
            return self.scan(&handle, &entries, None);
        }
        let count = if self.rng.one_in(3) { 1 + self.rng.below(20) } else { 1 };
        let chosen: Vec<u16> = (0..count).map(|_| self.rng.below(u64::from(slots(uid)) + 1) as u16).collect();
        let keys: Vec<Vec<u8>> = chosen.iter().map(|slot| key(order, lane, *slot)).collect();
        let begin = now_ms();
        let answers = if count == 1 { vec![handle.cf.get(&keys[0])] } else { handle.cf.multi_get(&keys) };
        for (slot, answer) in chosen.into_iter().zip(answers) {
            let Some(value) = self.excuse("get", uid, answer) else { return };
            let expected = self.lane.keys.get(&(uid, slot)).copied();
            self.compare(&handle, slot, value.as_deref(), expected, begin, "get");
        }
    }

    /// What transfers take from one account they add to another.
    fn sum_up(&mut self) {
        let Some(handle) = self.world.handle(DEFAULT) else { return };
        let (lower, upper) = bounds(handle.family.order, ACCOUNT, 0, ACCOUNTS as u16);
        let it = handle.cf.cursor(&lower[..]..&upper[..]);
        let Some(mut it) = self.excuse("iterator", DEFAULT, it) else { return };
        it.seek_to_first();
        let Some(all) = self.excuse("scan of the accounts", DEFAULT, collect(&mut it, true)) else { return };
        let sum: i64 = all.iter().map(|(_, v)| v[..].try_into().map_or(0, i64::from_le_bytes)).sum();
        if sum != 0 {
            fail(&format!("WRONG: a part of a transfer is seen: the accounts add up to {sum}: {all:?}"));
        }
    }

    fn compare(&mut self, h: &Handle, slot: u16, value: Option<&[u8]>, expected: Option<Entry>, begin: u64, how: &str) {
        let place = || format!("{how} at family '{}' lane {} slot {slot}", h.family.name, self.number);
        let found = value.map(|v| check_value(self.number, slot, v, &mut Vec::new())).transpose();
        let found = found.unwrap_or_else(|e| fail(&format!("{}: {e}", place())));
        if !matches(found, expected, (begin, now_ms())) && !self.world.is_dropping(h.uid) {
            let found = found.map_or("nothing".to_owned(), crate::model::show_id);
            fail(&format!("WRONG: {}: {found} instead of {expected:?}, lane at {}", place(), self.lane.last));
        }
    }

    /// Compares all keys of this lane in a family, forwards or backwards, now or at a snapshot.
    fn scan(&mut self, handle: &Arc<Handle>, expected: &BTreeMap<u16, Entry>, snapshot: Option<&Snapshot>) {
        let (uid, order) = (handle.uid, handle.family.order);
        let (lower, upper) = bounds(order, self.number as u8, 1, u16::MAX);
        let options = ReadOptions::new()
            .snapshot(snapshot)
            .range(lower..upper)
            .fill_cache(self.rng.one_in(2))
            .readahead(self.rng.one_in(4));
        let begin = now_ms();
        let Some(mut it) = self.excuse("iterator", uid, handle.cf.cursor_with(options)) else { return };
        let forward = self.rng.one_in(2);
        if forward {
            it.seek_to_first()
        } else {
            it.seek_to_last()
        }
        let Some(all) = self.excuse("scan", uid, collect(&mut it, forward)) else { return };
        let end = now_ms();
        let mut found = BTreeMap::new();
        let mut before: Option<&[u8]> = None;
        for (key, value) in &all {
            let slot = parse_key(order, key).filter(|(lane, _)| usize::from(*lane) == self.number).map(|k| k.1);
            let slot = slot.unwrap_or_else(|| fail(&format!("WRONG: scan of lane {}: key {key:?}", self.number)));
            let after = if forward { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater };
            if before.is_some_and(|b| handle.cf.order().compare(b, key) != after) {
                fail(&format!("WRONG: scan: key {key:?} comes after {before:?}, forward {forward}"));
            }
            before = Some(key);
            let id = check_value(self.number, slot, value, &mut self.scratch);
            found.insert(slot, id.unwrap_or_else(|e| fail(&format!("scan at key {key:?}: {e}"))));
        }
        self.world.counts.add("keys scanned", all.len() as u64);
        for slot in expected.keys().chain(found.keys()).filter(|slot| **slot != MARKER) {
            let (is, e) = (found.get(slot).copied(), expected.get(slot).copied());
            if !matches(is, e, (begin, end)) && !self.world.is_dropping(uid) {
                let at = snapshot.map(Snapshot::sequence);
                let place = format!("family '{}' lane {} slot {slot}", handle.family.name, self.number);
                let is = is.map_or("nothing".to_owned(), crate::model::show_id);
                fail(&format!("WRONG: scan at {place}, snapshot {at:?}, forward {forward}: {is} instead of {e:?}"));
            }
        }
    }

    /// Takes a snapshot and remembers what it must show.
    fn hold(&mut self) {
        if self.held.len() > 3 {
            self.held.swap_remove(self.rng.below(4) as usize);
        }
        let handle = self.pick();
        let entries = self.entries(handle.uid);
        // Only this lane writes its keys, and it does nothing else meanwhile.
        let snapshot = self.world.db.snapshot();
        self.held.push(Held { snapshot, handle, entries });
    }

    fn check_held(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.rng.below(self.held.len() as u64) as usize;
        let held = self.held.swap_remove(at);
        self.world.counts.add("reads at snapshots", 1);
        self.scan(&held.handle, &held.entries, Some(&held.snapshot));
        if let Some((slot, entry)) = held.entries.iter().next() {
            let begin = now_ms();
            let bytes = key(held.handle.family.order, self.number as u8, *slot);
            let answer = held.snapshot.of(&held.handle.cf).get(bytes);
            if let Some(value) = self.excuse("get at a snapshot", held.handle.uid, answer) {
                self.compare(&held.handle, *slot, value.as_deref(), Some(*entry), begin, "get at a snapshot");
            }
        }
        if self.rng.one_in(2) {
            self.held.push(held);
        }
    }

    /// Whether a unit may be drawn that uses this number for a prepared transaction.
    pub fn is_in_doubt(&self, number: u8) -> bool {
        self.lane.prepared.contains_key(&number)
    }
}

/// All operations of a unit.
pub fn ops_of(work: &Work) -> &[Op] {
    match work {
        Work::Commit(ops) | Work::Prepare(_, ops) => ops,
        Work::Decide(..) => &[],
    }
}
