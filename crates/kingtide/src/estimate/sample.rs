//! Places spread over a range, from what is resident: for scans in parts, and for statistics about an index.

use super::range::{Span, key_of};
use super::sources;
use crate::api::range::owned_bounds;
use crate::api::{ColumnFamily, KeyRange};
use crate::family::View;
use crate::options::ReadOptions;
use crate::read::Cursor;
use kingtide_base::{KeyOrder, Result};

/// Candidates that a run offers for each split point. More make the parts more alike.
const CANDIDATES: usize = 16;

/// Neighbouring keys that are compared at each place of a sample.
const NEIGHBOURS: usize = 16;

/// Most keys to step over before the first of them. Leaves and blocks like to begin where a value does; from there, values
/// would seem to repeat more than they do.
const OFFSETS: usize = 128;

/// How many different values the parts of keys have, as [`ColumnFamily::cardinality`] estimates it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cardinality {
    /// Keys.
    pub rows: u64,
    /// For each number of leading parts, from one on: how many different combinations of them the keys have.
    pub distinct: Vec<u64>,
    /// Whether all keys were looked at.
    pub exact: bool,
}

/// A key, and how many entries come after the candidate before it and up to it.
struct Candidate {
    key: Vec<u8>,
    entries: f64,
}

impl ColumnFamily {
    /// Strings that cut a range into at most `parts` parts which hold about equally many entries, ascending, none of them
    /// at the range's ends. They need not be keys that exist; a part goes from one, included, to the next, excluded. Fewer
    /// come back where there is too little to cut.
    ///
    /// From table indexes and memtables; no block is read, but tables that are not
    /// open are opened. O(blocks) at worst, O(`parts`) for each run beyond, and one step
    /// for each 64 entries of memtables.
    ///
    /// # Errors
    /// As [`ColumnFamily::range_stats`].
    pub fn split_points(&self, range: impl KeyRange, parts: usize) -> Result<Vec<Vec<u8>>> {
        let (lower, upper) = owned_bounds(&range);
        split(&*self.open_view()?, Span::of(&lower, &upper), parts)
    }

    /// Estimates how many different values the leading parts of a range's keys have. `first_difference` is given two
    /// neighbouring keys and says which part is the first in which they differ, from 0 on; `parts` or more where none does.
    ///
    /// A range of up to 16 × `places` keys is read whole; otherwise 16 neighbours are compared at `places` places spread
    /// over the range. Values that repeat are neighbours, so the share of neighbours that differ, times the rows, is
    /// their number; that at least as many are different as are seen to differ from place to place, settles it for values
    /// that repeat too often to change among neighbours. Reads about as many blocks of each run as there are places.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let places = db.default_family();
    /// for n in 0..100u8 {
    ///     places.put([n / 10, n], [])?; // ten countries of ten towns each
    /// }
    /// let first_difference = |a: &[u8], b: &[u8]| if a[0] != b[0] { 0 } else { 1 };
    /// let found = places.cardinality(.., 2, 64, first_difference)?;
    /// assert_eq!((found.rows, &found.distinct[..], found.exact), (100, &[10, 100][..], true));
    ///
    /// // Where several threads would begin to scan: at most so many parts, and fewer where there is little.
    /// assert!(places.split_points(.., 4)?.len() < 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`ColumnFamily::cursor`].
    pub fn cardinality(
        &self,
        range: impl KeyRange,
        parts: usize,
        places: usize,
        mut first_difference: impl FnMut(&[u8], &[u8]) -> usize,
    ) -> Result<Cardinality> {
        let (lower, upper) = owned_bounds(&range);
        let bounds = (lower.as_ref().map(|k| &k[..]), upper.as_ref().map(|k| &k[..]));
        let whole = self.count_up_to(bounds, places.saturating_mul(NEIGHBOURS) as u64)?;
        let starts = if whole.exact { Vec::new() } else { self.split_points(bounds, places)? };
        let mut it = self.cursor_with(ReadOptions { lower, upper, ..ReadOptions::default() })?;
        let mut near = Changes::new(parts);
        if whole.exact {
            it.seek_to_first();
            near.walk(&mut it, usize::MAX, &mut first_difference);
            it.status()?;
            let distinct = near.changes.iter().map(|n| n + u64::from(whole.rows > 0)).collect();
            return Ok(Cardinality { rows: near.pairs + u64::from(whole.rows > 0), distinct, exact: true });
        }
        let mut far = Changes::new(parts);
        let mut last: Option<Vec<u8>> = None;
        for (i, start) in std::iter::once(None).chain(starts.iter().map(Some)).enumerate() {
            match start {
                None => it.seek_to_first(),
                Some(start) => it.seek(start),
            }
            if it.valid() {
                if let Some(last) = last.take() {
                    far.note(&last, it.key(), &mut first_difference);
                }
                last = Some(it.key().to_vec());
            }
            (0..i * 37 % OFFSETS).for_each(|_| it.next());
            near.walk(&mut it, NEIGHBOURS, &mut first_difference);
            it.status()?;
        }
        let pairs = near.pairs.max(1) as f64;
        let estimate = |(near, far): (&u64, &u64)| {
            let by_share = (*near as f64 / pairs * whole.rows.saturating_sub(1) as f64) as u64;
            (by_share.max(*far) + 1).min(whole.rows)
        };
        let distinct = near.changes.iter().zip(&far.changes).map(estimate).collect();
        Ok(Cardinality { rows: whole.rows, distinct, exact: false })
    }
}

/// Pairs of keys, and in how many of them the first one, two, ... parts differ.
struct Changes {
    pairs: u64,
    changes: Vec<u64>,
}

impl Changes {
    fn new(parts: usize) -> Changes {
        Changes { pairs: 0, changes: vec![0; parts] }
    }

    fn note(&mut self, a: &[u8], b: &[u8], first_difference: &mut impl FnMut(&[u8], &[u8]) -> usize) {
        self.pairs += 1;
        self.changes.iter_mut().skip(first_difference(a, b)).for_each(|n| *n += 1);
    }

    fn walk(&mut self, it: &mut Cursor, most: usize, first_difference: &mut impl FnMut(&[u8], &[u8]) -> usize) {
        let mut last: Vec<u8> = Vec::new();
        let mut seen = 0;
        while it.valid() && seen <= most {
            if seen > 0 {
                self.note(&last, it.key(), first_difference);
            }
            last.clear();
            last.extend_from_slice(it.key());
            seen += 1;
            it.next();
        }
    }
}

fn split(view: &View, span: Span<'_>, parts: usize) -> Result<Vec<Vec<u8>>> {
    if parts < 2 || span.is_empty(&view.order) {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for memtable in view.memtables() {
        let mut cursor = memtable.points().iter();
        match key_of(span.lower) {
            Some(key) => cursor.seek(key, kingtide_base::Tag(u64::MAX)),
            None => cursor.first(),
        }
        while cursor.valid() && before_end(&view.order, span, cursor.key()) {
            let entries = cursor.skip_leaf() as f64;
            all.push(Candidate { key: cursor.key().to_vec(), entries });
        }
    }
    for run in &view.runs {
        let files = sources::files_of(run, &view.order, span);
        let mut blocks = 0;
        for slot in &run.files[files.clone()] {
            blocks += slot.with(|t| Ok(t.blocks()))?;
        }
        let step = (blocks / parts.saturating_mul(CANDIDATES)).max(1);
        for slot in &run.files[files] {
            slot.with(|t| {
                let from = key_of(span.lower).map_or(0, |k| t.blocks_before(k) as usize);
                let entries = slot.meta.entries as f64 / t.blocks().max(1) as f64;
                let mut at = from;
                while at < t.blocks() {
                    let to = (at + step).min(t.blocks());
                    let Some(key) = t.separator(to - 1) else { break };
                    all.push(Candidate { key: key.to_vec(), entries: entries * (to - at) as f64 });
                    if !inside(&view.order, span, key) && at > from {
                        break;
                    }
                    at = to;
                }
                Ok(())
            })?;
        }
    }
    Ok(cut(&view.order, span, parts, all))
}

/// Of all candidates those behind each `parts`th part of the entries.
fn cut(order: &KeyOrder, span: Span<'_>, parts: usize, mut all: Vec<Candidate>) -> Vec<Vec<u8>> {
    // At the end of the span a candidate stands for entries beyond it.
    all.retain(|c| inside(order, span, &c.key));
    all.sort_by(|a, b| order.compare(&a.key, &b.key));
    let total: f64 = all.iter().map(|c| c.entries).sum();
    let mut points: Vec<Vec<u8>> = Vec::new();
    let (mut before, mut complete) = (0.0, 0);
    for c in all {
        before += c.entries;
        let now_complete = (before / total * parts as f64) as usize;
        let is_new = points.last().is_none_or(|last| order.compare(last, &c.key).is_lt());
        if now_complete > complete && now_complete < parts && is_new {
            points.push(c.key);
            complete = now_complete;
        }
    }
    points
}

/// Returns whether a key is in the span and not its end.
fn inside(order: &KeyOrder, span: Span<'_>, key: &[u8]) -> bool {
    let behind = key_of(span.lower).is_none_or(|lower| order.compare(key, lower).is_gt());
    behind && before_end(order, span, key) && !key.is_empty()
}

fn before_end(order: &KeyOrder, span: Span<'_>, key: &[u8]) -> bool {
    key_of(span.upper).is_none_or(|upper| order.compare(key, upper).is_lt())
}
