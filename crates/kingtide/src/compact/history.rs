//! Which versions of a key a merge keeps.
//!
//! The snapshots cut the sequence numbers into stripes: a version belongs to the oldest snapshot that sees it, its
//! *limit*. Of the versions in one stripe only the newest can be seen. A version newer than the last snapshot, which is
//! the visible sequence number, is a stripe of its own: a snapshot may yet come between it and the next.
//!
//! The versions of a key arrive newest first. The rules, in order:
//!
//! 1. A version that a newer range tombstone of its stripe covers is dropped.
//! 2. An expired put is a delete.
//! 3. A single delete and the put right below it in its stripe annihilate. One with a tombstone right below it yields to
//!    that, which deletes at least as much. Where either would hide a change (see below), the single delete becomes a
//!    delete instead, which hides what is below it.
//! 4. A version below a kept one of its stripe is dropped, with one exception: a tombstone right below a put stays,
//!    because a later single delete may take the put away, and what lies below the tombstone must not come back.
//! 5. Other versions are the newest of their stripe and stay.
//! 6. Tombstones with nothing kept below them are dropped if no older run can hold the key and every snapshot sees them.
//!
//! A transaction asks at commit whether a key changed after a sequence number that it read at. So the newest change of a
//! key keeps its sequence number as long as some snapshot is older, even if what it made of the key is nothing: therefore
//! the exceptions in rules 3 and 6, and the same one for range tombstones. The other rules drop only what is below a newer
//! version.
//!
//! Tombstones wait in `pending`, for rules 3 and 6, until an older version is kept or the key ends.

use kingtide_base::key::split_expiry;
use kingtide_base::{Error, Kind, Result, SeqNo, Tag};

use super::context::MergeCounters;

/// What becomes of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Written, after the pending tombstones.
    Keep,
    /// Not written now: dropped, or among the pending tombstones.
    Withhold,
}

/// What is known at some point of a key's history about the versions above it.
#[derive(Clone, Copy, Debug, Default)]
struct Above {
    /// Stripe of the last version kept; 0 when there is none, as no limit is 0.
    stripe: SeqNo,
    /// That version is a put, and nothing was dropped below it yet.
    bare_put: bool,
}

/// The history of the current key.
pub struct History<'a> {
    snapshots: &'a [SeqNo],
    now_ms: u64,
    above: Above,
    /// Tombstones kept so far with no kept version below them, newest first.
    pending: Vec<Tag>,
    /// Stripe of a single delete that is last in `pending` with nothing met since, and what was above it.
    open_single: Option<(SeqNo, Above)>,
}

impl<'a> History<'a> {
    /// For the ascending `snapshots`, the last of which is the visible sequence number.
    pub fn new(snapshots: &'a [SeqNo], now_ms: u64) -> History<'a> {
        History { snapshots, now_ms, above: Above::default(), pending: Vec::new(), open_single: None }
    }

    /// The oldest snapshot that sees a sequence number; the number itself when none does yet. Never 0, which no limit is:
    /// sequence number 0 is seen by every snapshot, and snapshot 0 sees nothing else.
    #[inline]
    pub fn limit(&self, seq: SeqNo) -> SeqNo {
        let limit = match self.snapshots.first() {
            Some(first) if seq <= *first => *first,
            _ => self.snapshots.get(self.snapshots.partition_point(|s| *s < seq)).copied().unwrap_or(seq),
        };
        limit.max(1)
    }

    /// Forgets the last key.
    #[inline]
    pub fn begin(&mut self) {
        self.above = Above::default();
        self.open_single = None;
        self.pending.clear();
    }

    /// Tombstones kept that were not written yet, newest first.
    #[inline]
    pub fn pending(&self) -> &[Tag] {
        &self.pending
    }

    /// Those of the pending tombstones that must be written whatever lies below: the trace of a change that came after the
    /// oldest snapshot.
    pub fn traces(&self) -> &[Tag] {
        &self.pending[..self.pending.partition_point(|t| t.seq() > self.oldest())]
    }

    /// The oldest snapshot. What it sees has no snapshot before it that could ask for a trace.
    fn oldest(&self) -> SeqNo {
        self.snapshots.first().copied().unwrap_or(0)
    }

    /// The pending tombstones were written.
    pub fn clear_pending(&mut self) {
        self.pending.clear();
        self.open_single = None;
    }

    /// Decides on the next older version of the key. `covered` is the newest sequence number, at or below the version's
    /// limit, of a range tombstone over the key.
    ///
    /// # Errors
    /// `Corruption` for a tag or value that no writer makes.
    #[inline]
    pub fn step(&mut self, tag: Tag, value: &[u8], covered: SeqNo, counters: &mut MergeCounters) -> Result<Fate> {
        // A new key's put without expiry, the usual entry, meets no rule but 1 and 5.
        let plain = !tag.has_expiry() && matches!(tag.kind(), Some(Kind::Put | Kind::PutPointer));
        if plain && self.above.stripe == 0 && self.open_single.is_none() && covered <= tag.seq() {
            self.above = Above { stripe: self.limit(tag.seq()), bare_put: true };
            return Ok(Fate::Keep);
        }
        self.step_slow(tag, value, covered, counters)
    }

    #[inline(never)]
    fn step_slow(&mut self, tag: Tag, value: &[u8], covered: SeqNo, counters: &mut MergeCounters) -> Result<Fate> {
        let Some(kind @ (Kind::Delete | Kind::SingleDelete | Kind::Put | Kind::PutPointer)) = tag.kind() else {
            return Err(Error::corruption(format!("{tag:?} is not a point entry")));
        };
        let Some((expiry, _)) = split_expiry(tag, value) else {
            return Err(Error::corruption("an entry's value lacks the expiry that its tag requires"));
        };
        if covered > tag.seq() {
            counters.range_deleted += 1;
            return Ok(Fate::Withhold);
        }
        let stripe = self.limit(tag.seq());
        let put = !tag.is_tombstone();
        if let Some((single, above)) = self.open_single.take()
            && single == stripe
        {
            if let Some(last) = self.pending.pop()
                && above.stripe == 0
                && last.seq() > self.oldest()
            {
                counters.shadowed += 1;
                self.pending.push(Tag::new(last.seq(), Kind::Delete));
                return Ok(Fate::Withhold);
            }
            self.above = above;
            counters.shadowed += 1;
            if put {
                counters.shadowed += 1;
                return Ok(Fate::Withhold);
            }
        }
        if self.above.stripe == stripe && !(tag.is_tombstone() && self.above.bare_put) {
            counters.shadowed += 1;
            self.above.bare_put = false;
            return Ok(Fate::Withhold);
        }
        let above = std::mem::replace(&mut self.above, Above { stripe, bare_put: false });
        let expired = put && expiry.is_some_and(|ms| ms <= self.now_ms);
        if expired {
            counters.expired += 1;
        }
        if put && !expired {
            self.above.bare_put = true;
            return Ok(Fate::Keep);
        }
        let kind = if kind == Kind::SingleDelete { Kind::SingleDelete } else { Kind::Delete };
        self.pending.push(Tag::new(tag.seq(), kind));
        if kind == Kind::SingleDelete {
            self.open_single = Some((stripe, above));
        }
        Ok(Fate::Withhold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a history written as `P9 D7 S5 P3` (put, delete, single delete, expired put X) and returns what is kept.
    fn kept(snapshots: &[SeqNo], text: &str) -> String {
        run(&mut History::new(snapshots, 100), text)
    }

    fn show(t: &Tag) -> String {
        format!("{}{}", if t.kind() == Some(Kind::Delete) { 'D' } else { 'S' }, t.seq())
    }

    fn run(history: &mut History<'_>, text: &str) -> String {
        let mut counters = MergeCounters::default();
        let mut out: Vec<String> = Vec::new();
        history.begin();
        for word in text.split(' ') {
            let seq: SeqNo = word[1..].parse().unwrap();
            let (tag, value) = match &word[..1] {
                "P" => (Tag::new(seq, Kind::Put), &b""[..]),
                "X" => (Tag::with_expiry(seq, Kind::Put), &b"\x01\0\0\0\0\0\0\0"[..]),
                "D" => (Tag::new(seq, Kind::Delete), &b""[..]),
                _ => (Tag::new(seq, Kind::SingleDelete), &b""[..]),
            };
            if history.step(tag, value, 0, &mut counters).unwrap() == Fate::Keep {
                out.extend(history.pending().iter().map(show));
                history.clear_pending();
                out.push(word.to_owned());
            }
        }
        let rest: Vec<String> = history.pending().iter().map(show).collect();
        format!("{} | {}", out.join(" "), rest.join(" "))
    }

    /// What of a history stays when nothing older is below.
    fn lasting(snapshots: &[SeqNo], text: &str) -> String {
        let mut history = History::new(snapshots, 100);
        let all = run(&mut history, text);
        let kept = all.split('|').next().unwrap_or("");
        format!("{kept}| {}", history.traces().iter().map(show).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_change_after_the_oldest_snapshot_leaves_a_trace() {
        assert_eq!(lasting(&[20], "D9 P7"), " | ");
        assert_eq!(lasting(&[8, 20], "D9 P7"), "D9 P7 | ");
        assert_eq!(lasting(&[6, 20], "D9 P7"), " | D9");
        assert_eq!(lasting(&[9, 20], "D9 P7"), " | ");
        assert_eq!(lasting(&[8], "D9"), " | D9"); // not visible yet
        assert_eq!(lasting(&[8, 20], "D9 D7"), " | D9");
        assert_eq!(lasting(&[6, 20], "X9"), " | D9");
        assert_eq!(lasting(&[6, 20], "X9 S8 P7"), " | D9");
        assert_eq!(lasting(&[6, 20], "S9 P7"), " | D9");
        assert_eq!(lasting(&[6, 20], "S9 X7"), " | D9");
        assert_eq!(lasting(&[6, 20], "S9 S8 P7"), " | D9");
        assert_eq!(lasting(&[6, 20], "S9 D8 P7"), " | D9");
        assert_eq!(lasting(&[6, 20], "S9 P8 D7 P5"), "D9 P5 | ");
        assert_eq!(lasting(&[6, 20], "S9 P8 S7 P5"), "D9 P5 | ");
        // What lies above is trace enough.
        assert_eq!(lasting(&[6, 20], "P9 S8 P7"), "P9 | ");
        assert_eq!(lasting(&[6, 9, 20], "D10 S9 P7"), " | D10");
        assert_eq!(lasting(&[6, 9, 20], "S10 S9 P7"), " | S10");
    }

    #[test]
    fn the_rules_one_by_one() {
        assert_eq!(kept(&[20], "P9 P7 P5"), "P9 | ");
        assert_eq!(kept(&[6, 20], "P9 P7 P5 P3"), "P9 P5 | ");
        assert_eq!(kept(&[6], "P9 P7 P5 P3"), "P9 P7 P5 | "); // 9 and 7 are not visible yet
        assert_eq!(kept(&[20], "D9 P7"), " | D9");
        assert_eq!(kept(&[8, 20], "D9 P7"), "D9 P7 | ");
        assert_eq!(kept(&[8, 20], "D9 D7 P5"), " | D9 D7");
        assert_eq!(kept(&[20], "X9 P7"), " | D9");
        assert_eq!(kept(&[20], "S9 P7"), " | ");
        assert_eq!(kept(&[20], "S9 X7"), " | ");
        assert_eq!(kept(&[8, 20], "S9 P7"), "S9 P7 | ");
        assert_eq!(kept(&[20], "S9 P7 S5 P3"), " | ");
        assert_eq!(kept(&[20], "S9"), " | S9");
        assert_eq!(kept(&[20], "S9 D7 P5 P3"), " | D7");
        assert_eq!(kept(&[20], "S9 S7 P5"), " | ");
        // A single delete that comes later may take P9 away: the tombstone below it must go on hiding P3.
        assert_eq!(kept(&[20], "P9 D7 P5"), "P9 | D7");
        assert_eq!(kept(&[20], "P9 S7 P5"), "P9 | ");
        assert_eq!(kept(&[20], "P9 S7"), "P9 | S7");
        assert_eq!(kept(&[20], "P9 S7 P6 D5 P3"), "P9 | D5");
        assert_eq!(kept(&[4, 20], "P9 D7 P3"), "P9 D7 P3 | ");
        // But not below two puts, which no single delete may follow.
        assert_eq!(kept(&[20], "P9 P8 D7 P5"), "P9 | ");
        assert_eq!(kept(&[20], "S12 P9 D7 P5"), " | D7");
    }
}
