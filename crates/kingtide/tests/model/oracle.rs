//! What a family must show: every key's versions in an ordered map, oldest first, under times of the test's own.

use kingtide::KeyOrder;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

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
    pub bytes: Rc<[u8]>,
    pub expiry: Option<u64>,
}

/// What a key became at some time; no value: deleted.
#[derive(Clone, Debug)]
pub struct Version {
    at: u64,
    /// As it was written: other bytes than before where the order takes them for the same key.
    pub key: Rc<[u8]>,
    pub value: Option<Stored>,
}

#[derive(Default, Debug)]
struct History {
    versions: Vec<Version>,
    puts_since_delete: u32,
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
}

impl FamilyModel {
    pub fn new(name: &str, order: KeyOrder, ttl_ms: u64) -> FamilyModel {
        FamilyModel { name: name.to_owned(), order, ttl_ms, keys: BTreeMap::new() }
    }

    pub fn canon(&self, key: &[u8]) -> Canon {
        canon(&self.order, key)
    }

    pub fn set(&mut self, at: u64, oldest: u64, key: &[u8], value: Option<Stored>) {
        let canon = self.canon(key);
        let history = self.keys.entry(canon).or_default();
        history.puts_since_delete = if value.is_some() { history.puts_since_delete + 1 } else { 0 };
        history.push(Version { at, key: key.into(), value }, oldest);
    }

    pub fn delete_range(&mut self, at: u64, oldest: u64, start: &[u8], end: &[u8]) {
        let (start, end) = (self.canon(start), self.canon(end));
        if start >= end {
            return;
        }
        for (_, history) in self.keys.range_mut(start..end) {
            history.puts_since_delete = 0;
            if let Some(last) = history.versions.last()
                && last.value.is_some()
            {
                let key = last.key.clone();
                history.push(Version { at, key, value: None }, oldest);
            }
        }
    }

    /// Whether a single delete of the key is allowed: it was put at most once since it was last deleted.
    pub fn may_single_delete(&self, key: &[u8]) -> bool {
        self.keys.get(&self.canon(key)).is_none_or(|h| h.puts_since_delete <= 1)
    }

    pub fn get(&self, key: &[u8], moment: Moment) -> Option<Rc<[u8]>> {
        let version = self.keys.get(&self.canon(key))?.visible(moment)?;
        Some(version.1)
    }

    /// The first entry that is shown at or behind `from`, and its key's canonical form.
    pub fn first(&self, window: &Window, from: Bound<&Canon>, moment: Moment) -> Option<(Canon, Rc<[u8]>, Rc<[u8]>)> {
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
    pub fn last(&self, window: &Window, from: Bound<&Canon>, moment: Moment) -> Option<(Canon, Rc<[u8]>, Rc<[u8]>)> {
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

    fn shown(
        &self,
        canon: &Canon,
        history: &History,
        window: &Window,
        moment: Moment,
    ) -> Option<(Canon, Rc<[u8]>, Rc<[u8]>)> {
        let (key, value) = history.visible(moment)?;
        if let Some(prefix) = &window.prefix {
            let matches = match self.order {
                KeyOrder::CaseInsensitive => key.to_ascii_lowercase().starts_with(&prefix.to_ascii_lowercase()),
                _ => key.starts_with(prefix),
            };
            if !matches {
                return None;
            }
        }
        Some((canon.clone(), key, value))
    }

    /// All entries that are shown, in order.
    pub fn all(&self, moment: Moment) -> impl DoubleEndedIterator<Item = (Rc<[u8]>, Rc<[u8]>)> {
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
            // Nobody reads before `oldest`.
            let needed = self.versions.partition_point(|v| v.at <= oldest).saturating_sub(1);
            self.versions.drain(..needed);
        }
    }

    fn visible(&self, moment: Moment) -> Option<(Rc<[u8]>, Rc<[u8]>)> {
        let behind = self.versions.partition_point(|v| v.at <= moment.at);
        let version = &self.versions[behind.checked_sub(1)?];
        let stored = version.value.as_ref()?;
        let alive = stored.expiry.is_none_or(|at| at > moment.now_ms);
        alive.then(|| (version.key.clone(), stored.bytes.clone()))
    }
}
