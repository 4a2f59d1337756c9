//! What a lane reads of its own keys, now and at snapshots, and compares with what it knows.

use crate::contents::{check_value, collect, now_ms};
use crate::messages::fail;
use crate::model::{ACCOUNT, ACCOUNTS, DEFAULT, Entry, MARKER, bounds, key, parse_key, slots};
use crate::resolve::matches;
use crate::world::Handle;
use crate::writer::Writer;
use kingtide::{ReadOptions, Snapshot};
use std::collections::BTreeMap;
use std::sync::Arc;

fn entries(w: &Writer<'_>, uid: u32) -> BTreeMap<u16, Entry> {
    w.lane.keys.range((uid, 0)..=(uid, u16::MAX)).map(|((_, slot), e)| (*slot, *e)).collect()
}

/// Fails unless an error can be excused, and returns the value if there was none.
fn excuse<T>(w: &Writer<'_>, what: &str, uid: u32, result: kingtide::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(e) if w.world.is_excused(&e, [uid]) => None,
        Err(e) => fail(&format!("lane {} {what} of family number {uid}: {e}", w.number)),
    }
}

/// Reads keys of its own, one by one or all.
pub fn read(w: &mut Writer<'_>) {
    if w.rng.one_in(8) {
        return sum_up(w);
    }
    let handle = w.pick();
    let (uid, order) = (handle.uid, handle.family.order);
    let lane = w.number as u8;
    w.world.counts.add("reads", 1);
    if w.rng.one_in(4) {
        let entries = entries(w, uid);
        return scan(w, &handle, &entries, None);
    }
    let count = if w.rng.one_in(3) { 1 + w.rng.below(20) } else { 1 };
    let chosen: Vec<u16> = (0..count).map(|_| w.rng.below(u64::from(slots(uid)) + 1) as u16).collect();
    let keys: Vec<Vec<u8>> = chosen.iter().map(|slot| key(order, lane, *slot)).collect();
    let begin = now_ms();
    let answers = if count == 1 { vec![handle.cf.get(&keys[0])] } else { handle.cf.multi_get(&keys) };
    for (slot, answer) in chosen.into_iter().zip(answers) {
        let Some(value) = excuse(w, "get", uid, answer) else { return };
        let expected = w.lane.keys.get(&(uid, slot)).copied();
        compare(w, &handle, (slot, value.as_deref()), expected, begin, "get");
    }
}

/// What transfers take from one account they add to another.
fn sum_up(w: &mut Writer<'_>) {
    let Some(handle) = w.world.handle(DEFAULT) else { return };
    let (lower, upper) = bounds(handle.family.order, ACCOUNT, 0, ACCOUNTS as u16);
    let it = handle.cf.cursor(&lower[..]..&upper[..]);
    let Some(mut it) = excuse(w, "iterator", DEFAULT, it) else { return };
    it.seek_to_first();
    let Some(all) = excuse(w, "scan of the accounts", DEFAULT, collect(&mut it, true)) else { return };
    let sum: i64 = all.iter().map(|(_, v)| v[..].try_into().map_or(0, i64::from_le_bytes)).sum();
    if sum != 0 {
        fail(&format!("WRONG: a part of a transfer is seen: the accounts add up to {sum}: {all:?}"));
    }
}

/// Compares the value that was found in a slot with what the lane knows of it; reading it began at `begin`.
fn compare(
    w: &mut Writer<'_>,
    h: &Handle,
    (slot, value): (u16, Option<&[u8]>),
    expected: Option<Entry>,
    begin: u64,
    how: &str,
) {
    let place = || format!("{how} at family '{}' lane {} slot {slot}", h.family.name, w.number);
    let found = value.map(|v| check_value(w.number, slot, v, &mut Vec::new())).transpose();
    let found = found.unwrap_or_else(|e| fail(&format!("{}: {e}", place())));
    if !matches(found, expected, (begin, now_ms())) && !w.world.is_dropping(h.uid) {
        let found = found.map_or("nothing".to_owned(), crate::model::show_id);
        fail(&format!("WRONG: {}: {found} instead of {expected:?}, lane at {}", place(), w.lane.last));
    }
}

/// Compares all keys of this lane in a family, forwards or backwards, now or at a snapshot.
fn scan(w: &mut Writer<'_>, handle: &Arc<Handle>, expected: &BTreeMap<u16, Entry>, snapshot: Option<&Snapshot>) {
    let (uid, order) = (handle.uid, handle.family.order);
    let (lower, upper) = bounds(order, w.number as u8, 1, u16::MAX);
    let options = ReadOptions::new()
        .snapshot(snapshot)
        .range(lower..upper)
        .fill_cache(w.rng.one_in(2))
        .readahead(w.rng.one_in(4));
    let begin = now_ms();
    let Some(mut it) = excuse(w, "iterator", uid, handle.cf.cursor_with(options)) else { return };
    let forward = w.rng.one_in(2);
    if forward {
        it.seek_to_first()
    } else {
        it.seek_to_last()
    }
    let Some(all) = excuse(w, "scan", uid, collect(&mut it, forward)) else { return };
    let end = now_ms();
    let mut found = BTreeMap::new();
    let (mut before, mut scratch): (Option<&[u8]>, _) = (None, Vec::new());
    for (key, value) in &all {
        let slot = parse_key(order, key).filter(|(lane, _)| usize::from(*lane) == w.number).map(|k| k.1);
        let slot = slot.unwrap_or_else(|| fail(&format!("WRONG: scan of lane {}: key {key:?}", w.number)));
        let after = if forward { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater };
        if before.is_some_and(|b| handle.cf.order().compare(b, key) != after) {
            fail(&format!("WRONG: scan: key {key:?} comes after {before:?}, forward {forward}"));
        }
        before = Some(key);
        let id = check_value(w.number, slot, value, &mut scratch);
        found.insert(slot, id.unwrap_or_else(|e| fail(&format!("scan at key {key:?}: {e}"))));
    }
    w.world.counts.add("keys scanned", all.len() as u64);
    for slot in expected.keys().chain(found.keys()).filter(|slot| **slot != MARKER) {
        let (is, e) = (found.get(slot).copied(), expected.get(slot).copied());
        if !matches(is, e, (begin, end)) && !w.world.is_dropping(uid) {
            let at = snapshot.map(Snapshot::sequence);
            let place = format!("family '{}' lane {} slot {slot}", handle.family.name, w.number);
            let is = is.map_or("nothing".to_owned(), crate::model::show_id);
            fail(&format!("WRONG: scan at {place}, snapshot {at:?}, forward {forward}: {is} instead of {e:?}"));
        }
    }
}

/// A snapshot, and what a family held for this lane when it was taken.
struct Held {
    snapshot: Snapshot,
    handle: Arc<Handle>,
    entries: BTreeMap<u16, Entry>,
}

/// The snapshots of a lane, a few at most.
#[derive(Default)]
pub struct Snapshots(Vec<Held>);

impl Snapshots {
    /// Takes a snapshot and remembers what it must show.
    pub fn take(&mut self, w: &mut Writer<'_>) {
        if self.0.len() > 3 {
            self.0.swap_remove(w.rng.below(4) as usize);
        }
        let handle = w.pick();
        let entries = entries(w, handle.uid);
        // Only this lane writes its keys, and it does nothing else meanwhile.
        let snapshot = w.world.db.snapshot();
        self.0.push(Held { snapshot, handle, entries });
    }

    /// Reads at one of them, and forgets it or not.
    pub fn check(&mut self, w: &mut Writer<'_>) {
        if self.0.is_empty() {
            return;
        }
        let at = w.rng.below(self.0.len() as u64) as usize;
        let held = self.0.swap_remove(at);
        w.world.counts.add("reads at snapshots", 1);
        scan(w, &held.handle, &held.entries, Some(&held.snapshot));
        if let Some((slot, entry)) = held.entries.iter().next() {
            let begin = now_ms();
            let bytes = key(held.handle.family.order, w.number as u8, *slot);
            let answer = held.snapshot.of(&held.handle.cf).get(bytes);
            if let Some(value) = excuse(w, "get at a snapshot", held.handle.uid, answer) {
                compare(w, &held.handle, (*slot, value.as_deref()), Some(*entry), begin, "get at a snapshot");
            }
        }
        if w.rng.one_in(2) {
            self.0.push(held);
        }
    }
}
