//! The check at commit: whether what a transaction relied on is still so.
//!
//! The decision falls under the commit lock, where nothing changes. To keep that short, what needs a look into tables or
//! over a range is looked at before, outside the lock, as of some sequence number `checked`; under the lock only what was
//! committed after `checked` remains. For keys the filter and the memtables tell; for ranges, commits list their keys in
//! [`RecentWrites`] while transactions validate ranges. When even that needs tables (a memtable was flushed meanwhile),
//! the look outside is repeated, and after a few rounds done under the lock, so that every commit ends.

use super::bounds::{shown, slice};
use super::filter::ConflictFilter;
use super::read_set::{ReadRange, Round, Validation};
use super::recent::RecentWrites;
use crate::commit::batch::WriteBatch;
use crate::engine::DbInner;
use crate::family::{Family, View};
use crate::read::newest::{changed_since, range_changed_since, tables_newer};
use kingtide_base::events::Event;
use kingtide_base::stats::Stat;
use kingtide_base::{Error, ErrorKind, Kind, Result, SeqNo, TxnId};
use std::ops::Bound;
use std::sync::Arc;

/// What a look at the state under the commit lock gave.
pub(crate) enum Verdict {
    /// Nothing changed.
    Pass,
    /// Tables would have to be read: look outside the lock first.
    LookOutside,
}

impl DbInner {
    /// Returns whether the filter does not rule a conflict out: then it is worth to look outside the commit lock first. Otherwise
    /// this has loaded the slots that the look under the lock needs, which the last committer's core may have had.
    #[inline]
    pub(crate) fn may_conflict(&self, v: &Validation<'_>, batch: &WriteBatch) -> bool {
        let filter = self.conflicts();
        if v.reads.key_count() == 0 && v.writes.is_none() && batch.len() == 1 {
            // The commonest transaction.
            return v.writes_since.is_some_and(|since| filter.may_have_changed(batch.ops()[0].slot, since));
        }
        let read = v.reads.keys().iter().any(|key| filter.may_have_changed(key.slot, key.seq));
        let written = v.writes_since.is_some_and(|since| {
            v.writes.unwrap_or(batch).ops().iter().any(|op| filter.may_have_changed(op.slot, since))
        });
        read || written
    }

    /// Looks at everything, tables included, without the commit lock. Returns the sequence number up to which it looked.
    pub(crate) fn validate_outside(&self, v: &Validation<'_>, batch: &WriteBatch, checked: SeqNo) -> Result<SeqNo> {
        let upto = self.snapshots.visible(); // before any view, so that the views hold everything up to it
        self.validate_keys(v, batch, Round { checked, tables: true })?;
        for r in &v.ranges {
            self.check_range(v, r, checked)?;
        }
        Ok(upto)
    }

    /// Looks at what was committed since `round.checked`. Called under the commit lock.
    pub(crate) fn validate_locked(
        &self,
        v: &Validation<'_>,
        batch: &WriteBatch,
        recent: &RecentWrites,
        round: Round,
    ) -> Result<Verdict> {
        if let Verdict::LookOutside = self.validate_keys(v, batch, round)? {
            return Ok(Verdict::LookOutside);
        }
        if v.ranges.is_empty() {
            return Ok(Verdict::Pass);
        }
        if !recent.knows_since(round.checked) {
            if !round.tables {
                return Ok(Verdict::LookOutside);
            }
            v.ranges.iter().try_for_each(|r| self.check_range(v, r, round.checked))?;
            return Ok(Verdict::Pass);
        }
        match v.ranges.iter().find(|r| recent.touch(r, round.checked)) {
            None => Ok(Verdict::Pass),
            Some(r) => Err(self.range_conflict(v.txn, r)),
        }
    }

    fn validate_keys(&self, v: &Validation<'_>, batch: &WriteBatch, round: Round) -> Result<Verdict> {
        for key in v.reads.keys() {
            let family = v.reads.family_of(key);
            if let Verdict::LookOutside = self.check_key(v, family, key.slot, v.reads.key_of(key), key.seq, round)? {
                return Ok(Verdict::LookOutside);
            }
        }
        let Some(since) = v.writes_since else { return Ok(Verdict::Pass) };
        let batch = v.writes.unwrap_or(batch);
        for op in batch.ops().iter().filter(|op| op.kind != Kind::RangeDelete as u8) {
            let family = &batch.families()[op.family as usize];
            if let Verdict::LookOutside = self.check_key(v, family, op.slot, batch.key_of(op), since, round)? {
                return Ok(Verdict::LookOutside);
            }
        }
        Ok(Verdict::Pass)
    }

    #[inline]
    fn check_key(
        &self,
        v: &Validation<'_>,
        family: &Arc<Family>,
        slot: u16,
        key: &[u8],
        since: SeqNo,
        round: Round,
    ) -> Result<Verdict> {
        let since = since.max(round.checked);
        if !self.conflicts().may_have_changed(slot, since) {
            return Ok(Verdict::Pass);
        }
        self.check_key_exactly(v, family, key, since, round)
    }

    #[inline(never)]
    fn check_key_exactly(
        &self,
        v: &Validation<'_>,
        family: &Arc<Family>,
        key: &[u8],
        since: SeqNo,
        round: Round,
    ) -> Result<Verdict> {
        let view = family.view.load();
        if !round.tables && tables_newer(&view, since) {
            return Ok(Verdict::LookOutside);
        }
        if self.key_changed(&view, family, key, since)? {
            return Err(self.key_conflict(v.txn, family, key, since));
        }
        Ok(Verdict::Pass)
    }

    /// Returns whether a key was committed after `since`, or may have been: of a family that was dropped nothing is left that could tell.
    pub(crate) fn key_changed(&self, view: &View, family: &Family, key: &[u8], since: SeqNo) -> Result<bool> {
        self.stats.add(Stat::TxnExactChecks, 1);
        // The drop is asked for after the view was loaded: that is emptied later.
        Ok(changed_since(view, key, since, &family.reads)? || family.is_dropped())
    }

    #[cold]
    pub(crate) fn key_conflict(&self, txn: TxnId, family: &Family, key: &[u8], since: SeqNo) -> Error {
        self.stats.add(Stat::TxnConflicts, 1);
        self.stats.events.tell_detail(|| Event::WriteConflict(family.name()));
        Error::new(
            ErrorKind::Conflict,
            format!(
                "transaction {txn}: key '{}' of column family '{}' was changed by another commit after sequence {since}{}",
                shown(key),
                family.name(),
                dropped(family),
            ),
        )
    }

    fn check_range(&self, v: &Validation<'_>, r: &ReadRange, checked: SeqNo) -> Result<()> {
        if self.range_changed(r, checked)? { Err(self.range_conflict(v.txn, r)) } else { Ok(()) }
    }

    /// Returns whether a key of a range was committed after `checked` and after what its reading saw, or may have been.
    pub(crate) fn range_changed(&self, r: &ReadRange, checked: SeqNo) -> Result<bool> {
        let view = r.family.view.load();
        self.stats.add(Stat::TxnExactChecks, 1);
        let since = r.seq.max(checked);
        let changed = range_changed_since(&view, slice(&r.lower), slice(&r.upper), since, &r.family.reads)?;
        Ok(changed || r.family.is_dropped())
    }

    #[cold]
    pub(crate) fn range_conflict(&self, txn: TxnId, r: &ReadRange) -> Error {
        self.stats.add(Stat::TxnConflicts, 1);
        self.stats.events.tell_detail(|| Event::WriteConflict(r.family.name()));
        let end = |b: &Bound<Vec<u8>>| match b {
            Bound::Included(k) | Bound::Excluded(k) => format!("'{}'", shown(k)),
            Bound::Unbounded => "the end".into(),
        };
        Error::new(
            ErrorKind::Conflict,
            format!(
                "transaction {txn}: another commit after sequence {} changed a key between {} and {} of column family '{}'{}",
                r.seq,
                end(&r.lower),
                end(&r.upper),
                r.family.name(),
                dropped(&r.family),
            ),
        )
    }

    #[inline]
    pub(crate) fn conflicts(&self) -> &ConflictFilter {
        &self.txns.filter
    }
}

/// For a message about what changed in a family.
fn dropped(family: &Family) -> &'static str {
    if family.is_dropped() { ", or may have been: the family was dropped" } else { "" }
}
