//! What a family must show: every key's versions in an ordered map, oldest first, under times of the test's own.

use kingtide::KeyOrder;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// A key in a form whose natural order is the family's order, so that the oracle needs no comparator.
pub type Canon = Vec<u16>;

/// The canonical form of a key in an order. Independent of the engine's own comparison, on purpose.
pub fn canon(order: &KeyOrder, key: &[u8]) -> Canon {
    let number = |flip: u8| match key.len() {
        8 => std::iter::once(0u16)
            .chain(key.iter().rev().enumerate().map(|(i, b)| u16::from(if i == 0 { b ^ flip } else { *b })))
            .collect(),
        _ => std::iter::once(1u16).chain(key.iter().map(|b| u16::from(*b))).collect(),
    };
    match order {
        KeyOrder::Bytewise => key.iter().map(|b| u16::from(*b)).collect(),
        // Descending: a key comes after those that it is a prefix of.
        KeyOrder::Reverse => key.iter().map(|b| u16::from(255 - b)).chain([256]).collect(),
        KeyOrder::U64 => number(0),
        KeyOrder::I64 => number(0x80),
        KeyOrder::CaseInsensitive => key.iter().map(|b| u16::from(b.to_ascii_lowercase())).collect(),
        KeyOrder::Custom(_) => std::iter::once(key.len() as u16).chain(key.iter().map(|b| u16::from(*b))).collect(),
    }
}

/// A value and when it expires.
#[derive(Clone, Debug)]
pub struct Stored {
    pub bytes: Arc<[u8]>,
    pub expiry: Option<u64>,
}

/// An entry that an iterator shows: canonical form, key and value.
pub type Shown = (Canon, Arc<[u8]>, Arc<[u8]>);

/// What a key became at some time; no value: deleted.
#[derive(Clone, Debug)]
pub struct Version {
    at: u64,
    /// As it was written: other bytes than before where the order takes them for the same key.
    pub key: Arc<[u8]>,
    pub value: Option<Stored>,
}

#[derive(Default, Debug)]
struct History {
    versions: Vec<Version>,
    puts_since_delete: u32,
    /// When it was last written by its own name, be it a delete of nothing.
    changed: u64,
}

/// A part of a family that a write is about.
#[derive(Clone, Debug)]
pub enum Part {
    Key(Canon),
    /// From the first, included, to the second, excluded.
    Range(Canon, Canon),
}

/// The moment of a read: which versions are there, and which of them have expired.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub at: u64,
    pub now_ms: u64,
}

/// The range of keys that an iterator shows.
#[derive(Clone, Debug)]
pub struct Window {
    pub lower: Bound<Canon>,
    pub upper: Bound<Canon>,
    pub prefix: Option<Vec<u8>>,
}

impl Window {
    pub const ALL: Window = Window { lower: Bound::Unbounded, upper: Bound::Unbounded, prefix: None };

    /// Whether a key is in it.
    pub fn shows(&self, order: &KeyOrder, canon: &Canon, key: &[u8]) -> bool {
        self.above_lower(canon) && self.below_upper(canon) && self.has_prefix(order, key)
    }

    fn has_prefix(&self, order: &KeyOrder, key: &[u8]) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| match order {
            KeyOrder::CaseInsensitive => key.to_ascii_lowercase().starts_with(&prefix.to_ascii_lowercase()),
            _ => key.starts_with(prefix),
        })
    }

    fn above_lower(&self, key: &Canon) -> bool {
        match &self.lower {
            Bound::Included(b) => key >= b,
            Bound::Excluded(b) => key > b,
            Bound::Unbounded => true,
        }
    }

    fn below_upper(&self, key: &Canon) -> bool {
        match &self.upper {
            Bound::Included(b) => key <= b,
            Bound::Excluded(b) => key < b,
            Bound::Unbounded => true,
        }
    }
}

/// One family.
pub struct FamilyModel {
    pub name: String,
    pub order: KeyOrder,
    pub ttl_ms: u64,
    keys: BTreeMap<Canon, History>,
    /// Range deletes and when they were done.
    ranges: Vec<(u64, Canon, Canon)>,
}

impl FamilyModel {
    pub fn new(name: &str, order: KeyOrder, ttl_ms: u64) -> FamilyModel {
        FamilyModel { name: name.to_owned(), order, ttl_ms, keys: BTreeMap::new(), ranges: Vec::new() }
    }

    pub fn canon(&self, key: &[u8]) -> Canon {
        canon(&self.order, key)
    }

    pub fn set(&mut self, at: u64, oldest: u64, key: &[u8], value: Option<Stored>) {
        let canon = self.canon(key);
        let history = self.keys.entry(canon).or_default();
        history.puts_since_delete = if value.is_some() { history.puts_since_delete + 1 } else { 0 };
        history.changed = at;
        history.push(Version { at, key: key.into(), value }, oldest);
    }

    /// Deletes from `start` to before `end`.
    pub fn delete_range(&mut self, at: u64, oldest: u64, start: Canon, end: Canon) {
        if start >= end {
            return;
        }
        for (_, history) in self.keys.range_mut::<Canon, _>(&start..&end) {
            history.puts_since_delete = 0;
            if let Some(last) = history.versions.last()
                && last.value.is_some()
            {
                let key = last.key.clone();
                history.push(Version { at, key, value: None }, oldest);
            }
        }
        self.ranges.push((at, start, end));
        if self.ranges.len() > 1000 {
            self.ranges.retain(|(at, ..)| *at > oldest);
        }
    }

    /// Deletes all keys with a prefix and returns what that is about. Where no key follows all of them, or the order
    /// descends, only what lies between the first and the last key counts as changed.
    pub fn delete_prefix(&mut self, at: u64, oldest: u64, prefix: &[u8], now_ms: u64) -> Vec<Part> {
        let folded = self.canon(prefix);
        let ends = prefix.iter().any(|b| *b != 0xff);
        if matches!(self.order, KeyOrder::Bytewise | KeyOrder::CaseInsensitive) && ends {
            let mut end = folded.clone();
            *end.last_mut().expect("not empty") += 1;
            self.delete_range(at, oldest, folded.clone(), end.clone());
            return vec![Part::Range(folded, end)];
        }
        let moment = Moment { at, now_ms };
        let window = Window { prefix: Some(prefix.to_vec()), ..Window::ALL };
        let first = self.first(&window, Bound::Unbounded, moment);
        let last = self.last(&window, Bound::Unbounded, moment);
        let (Some((first, ..)), Some((last, key, _))) = (first, last) else { return Vec::new() };
        self.delete_range(at, oldest, first.clone(), last.clone());
        self.set(at, oldest, &key, None);
        vec![Part::Range(first, last.clone()), Part::Key(last)]
    }

    /// Whether something in the part was written after `since`.
    pub fn changed_since(&self, part: &Part, since: u64) -> bool {
        let mut ranges = self.ranges.iter().filter(|(at, ..)| *at > since);
        match part {
            Part::Key(k) => {
                self.keys.get(k).is_some_and(|h| h.changed > since) || ranges.any(|(_, lo, hi)| lo <= k && k < hi)
            }
            Part::Range(lo, hi) if lo >= hi => false,
            Part::Range(lo, hi) => {
                self.keys.range::<Canon, _>(lo..hi).any(|(_, h)| h.changed > since)
                    || ranges.any(|(_, a, b)| a.max(lo) < b.min(hi))
            }
        }
    }

    /// Whether a single delete of the key is allowed: it was put at most once since it was last deleted.
    pub fn may_single_delete(&self, key: &[u8]) -> bool {
        self.keys.get(&self.canon(key)).is_none_or(|h| h.puts_since_delete <= 1)
    }

    pub fn get(&self, key: &[u8], moment: Moment) -> Option<Arc<[u8]>> {
        let version = self.keys.get(&self.canon(key))?.visible(moment)?;
        Some(version.1)
    }

    /// The first entry that is shown at or behind `from`, and its key's canonical form.
    pub fn first(&self, window: &Window, from: Bound<&Canon>, moment: Moment) -> Option<Shown> {
        let lower = window.lower.as_ref();
        let start = match (from, lower) {
            (Bound::Unbounded, other) | (other, Bound::Unbounded) => other,
            (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) if a < b => lower,
            _ => from,
        };
        self.keys
            .range::<Canon, _>((start, Bound::Unbounded))
            .skip_while(|(k, _)| !window.above_lower(k))
            .take_while(|(k, _)| window.below_upper(k))
            .find_map(|(k, h)| self.shown(k, h, window, moment))
    }

    /// The last entry that is shown at or before `from`.
    pub fn last(&self, window: &Window, from: Bound<&Canon>, moment: Moment) -> Option<Shown> {
        let upper = window.upper.as_ref();
        let end = match (from, upper) {
            (Bound::Unbounded, other) | (other, Bound::Unbounded) => other,
            (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) if a > b => upper,
            _ => from,
        };
        self.keys
            .range::<Canon, _>((Bound::Unbounded, end))
            .rev()
            .skip_while(|(k, _)| !window.below_upper(k))
            .take_while(|(k, _)| window.above_lower(k))
            .find_map(|(k, h)| self.shown(k, h, window, moment))
    }

    fn shown(&self, canon: &Canon, history: &History, window: &Window, moment: Moment) -> Option<Shown> {
        let (key, value) = history.visible(moment)?;
        window.has_prefix(&self.order, &key).then(|| (canon.clone(), key, value))
    }

    /// All entries that are shown, in order.
    pub fn all(&self, moment: Moment) -> impl DoubleEndedIterator<Item = (Arc<[u8]>, Arc<[u8]>)> {
        self.keys.values().filter_map(move |h| h.visible(moment))
    }
}

impl History {
    fn push(&mut self, version: Version, oldest: u64) {
        if self.versions.last().is_some_and(|v| v.at == version.at) {
            self.versions.pop(); // an earlier operation of the same batch
        }
        self.versions.push(version);
        if self.versions.len() > 4 {
            // No read is before `oldest`.
            let needed = self.versions.partition_point(|v| v.at <= oldest).saturating_sub(1);
            self.versions.drain(..needed);
        }
    }

    fn visible(&self, moment: Moment) -> Option<(Arc<[u8]>, Arc<[u8]>)> {
        let behind = self.versions.partition_point(|v| v.at <= moment.at);
        let version = &self.versions[behind.checked_sub(1)?];
        let stored = version.value.as_ref()?;
        let alive = stored.expiry.is_none_or(|at| at > moment.now_ms);
        alive.then(|| (version.key.clone(), stored.bytes.clone()))
    }
}
