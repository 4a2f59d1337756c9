//! The stage that writes large values to value logs ([`crate::direct`]), before the commit lock is asked for. What becomes
//! of the commit does not matter to it: values of one that fails are dead bytes in a file, or a file that the next open removes.
//!
//! The order that makes it safe: the values are in the system's hands before the record that points to them is appended,
//! and a sync of the log syncs their files first ([`kingtide_wal::SyncFirst`]), for whichever commit it is made.

use super::batch::WriteBatch;
use crate::direct::{DirectLog, Diverted};
use crate::engine::DbInner;
use crate::family::Family;
use kingtide_base::memory::reserve;
use kingtide_base::names::vlog_path;
use kingtide_base::options::Durability;
use kingtide_base::stats::Stat;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Result, SeqNo, rare};
use kingtide_table::{ValuePointer, VlogValue};
use std::sync::Arc;

/// Commits that wait for a sync write values once from so many times the threshold on: measured with files of 32 KiB to
/// 128 KiB, where the latter broke even.
const WORTH_A_SYNC: u64 = 8;

/// Bytes and values that are appended at a time, while other threads that want to seal the file wait.
const LONGEST_RUN: u64 = 1 << 20;
const MOST_OF_A_RUN: usize = 500;

/// How many values, one at least, begin within the next `room` bytes.
fn run_of(values: &[VlogValue<'_>], room: u64) -> usize {
    let mut end = 0;
    let begins_within = |value: &&VlogValue<'_>| {
        let begin = end;
        end += value.bytes() as u64;
        begin < room
    };
    values.iter().take(MOST_OF_A_RUN).take_while(begins_within).count().clamp(1, values.len())
}

impl DbInner {
    /// Writes a batch's large values, if it has any. Returns the batch that takes its place, and the files.
    pub(super) fn divert_batch(
        &self,
        batch: &WriteBatch,
        durability: Durability,
    ) -> Result<Option<(WriteBatch, Vec<Diverted>)>> {
        // A log that is kept for change streams must say all by itself, as must one that prepares a transaction.
        if batch.control().is_some()
            || self.options.read().change_retention > 0
            || !batch.families().iter().all(|f| f.belongs_to(&self.stats))
        {
            return Ok(None);
        }
        // A commit that waits for a sync waits for that of a second file then: it must save more than that costs.
        if durability == Durability::Power && !batch.is_worth_a_sync(WORTH_A_SYNC) {
            rare!("direct-value-not-worth-a-sync");
            return Ok(None);
        }
        self.check_writable()?;
        self.check_space(batch)?;
        let families = batch.families();
        // Once for both passes: options may change meanwhile.
        let from: Vec<u64> = families.iter().map(|of| of.direct_from()).collect();
        let mut large: Vec<Vec<VlogValue<'_>>> = families.iter().map(|_| Vec::new()).collect();
        batch.each_value(|family, length, value| {
            if length >= from[family as usize] {
                reserve(&mut large[family as usize], 1, "a list of large values")?;
                large[family as usize].push(value);
            }
            Ok(())
        })?;
        let (mut written, mut in_hand, mut pointers) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (of, values)) in families.iter().zip(&large).enumerate() {
            let (places, log) = self.write_values(&mut written, (index as u16, of), values)?;
            in_hand.push(log);
            pointers.push(places.into_iter());
        }
        if written.is_empty() {
            return Ok(None); // they are in families that take larger ones only, or too many files are open
        }
        let diverted = batch.with_pointers(|family, length| {
            if length >= from[family as usize] { pointers[family as usize].next() } else { None }
        })?;
        self.hand_over(families, &written, &in_hand)?;
        Ok(Some((diverted, written)))
    }

    /// Whether a value that is put by itself goes to a value log from where the caller has it. Hooks and `change_retention` may
    /// be set before its commit: see `Pipeline::sequence` and [`super::hook::Hooks::enqueue`].
    pub(super) fn may_divert_one(&self, family: &Family, length: u64) -> bool {
        let from = family.direct_from();
        let worth_a_sync = || self.durability() != Durability::Power || length / WORTH_A_SYNC >= from;
        // Hooks are given the value itself, which would have to be read back.
        length >= from.max(self.tuning.uncopied_from)
            && worth_a_sync()
            && !self.hooks.any()
            && self.options.read().change_retention == 0
    }

    /// Writes a value of which no batch has a copy. `None`: too many files are open for one more.
    pub(super) fn divert_one(
        &self,
        family: &Arc<Family>,
        value: &[u8],
    ) -> Result<Option<(ValuePointer, Vec<Diverted>)>> {
        self.check_space_to_grow()?;
        let mut written = Vec::new();
        let (places, in_hand) = self.write_values(&mut written, (0, family), &[VlogValue::Plain(value)])?;
        let Some(pointer) = places.first().copied() else { return Ok(None) };
        self.hand_over(std::slice::from_ref(family), &written, &[in_hand])?;
        rare!("direct-value-uncopied");
        Ok(Some((pointer, written)))
    }

    /// Hands values to the system, and puts the files that take more back.
    fn hand_over(&self, families: &[Arc<Family>], written: &[Diverted], in_hand: &[Option<usize>]) -> Result<()> {
        for d in written {
            d.log.flush()?;
        }
        for i in in_hand.iter().flatten() {
            let Diverted { family, log, .. } = &written[*i];
            match log.size() < self.tuning.direct_log_size {
                true => {
                    let family = &families[*family as usize];
                    family.direct.put(log.clone());
                    if family.is_dropped() {
                        family.direct.clear(); // the drop may have done so before
                    }
                }
                false => rare!("direct-log-rotated"),
            }
        }
        Ok(())
    }

    /// Writes values of a family. Returns where the first of them are: all, unless too many files are open for one more; and which
    /// file takes more.
    fn write_values(
        &self,
        written: &mut Vec<Diverted>,
        (index, family): (u16, &Arc<Family>),
        mut values: &[VlogValue<'_>],
    ) -> Result<(Vec<ValuePointer>, Option<usize>)> {
        let (mut pointers, mut in_hand): (Vec<ValuePointer>, Option<usize>) = (Vec::new(), None);
        while !values.is_empty() {
            let at = match in_hand {
                Some(at) if written[at].log.size() < self.tuning.direct_log_size => at,
                Some(_) => {
                    rare!("direct-log-rotated");
                    in_hand = None;
                    continue;
                }
                None => {
                    let active = family.view.load().active.first_seq();
                    let Some(log) = self.value_log(family, active)? else { break };
                    written.push(Diverted { family: index, log, bytes: 0 });
                    *in_hand.insert(written.len() - 1)
                }
            };
            let Diverted { log, bytes, .. } = &mut written[at];
            let room = self.tuning.direct_log_size.saturating_sub(log.size());
            let (run, rest) = values.split_at(run_of(values, room.min(LONGEST_RUN)));
            if let Some(places) = log.append(run)? {
                let stored: u64 = places.iter().map(|p| p.stored_len).sum();
                *bytes += stored;
                self.stats.add(Stat::DirectValues, run.len() as u64);
                self.stats.add(Stat::DirectValueBytes, stored);
                pointers.extend(places);
                values = rest;
                continue;
            }
            if *bytes == 0 {
                written.pop(); // it was sealed before it took anything
            }
            in_hand = None;
        }
        Ok((pointers, in_hand))
    }

    /// A value log for values of the memtable that begins with `active`; `None` when too many files are open for one more.
    fn value_log(&self, family: &Arc<Family>, active: SeqNo) -> Result<Option<Arc<DirectLog>>> {
        if let Some(log) = family.direct.take(active) {
            return Ok(Some(log));
        }
        let (spare, more) = family.direct.begin(active);
        if more {
            self.value_logs_due.lock().push(family.clone());
            self.jobs.wake();
        }
        match spare {
            Some(log) => {
                rare!("direct-log-spare-taken");
                Ok(Some(log))
            }
            None => self.make_value_log(family),
        }
    }

    fn make_value_log(&self, family: &Family) -> Result<Option<Arc<DirectLog>>> {
        if !self.tables.may_begin_value_log() {
            rare!("direct-log-not-begun");
            return Ok(None);
        }
        let _making = self.staged.begin();
        self.check_open()?;
        let new_id = || self.new_file_id();
        let log = DirectLog::create(&self.fs, &self.dir, &self.tables, new_id, &family.options())?;
        self.staged.add(family.id(), &log);
        Ok(Some(log))
    }

    /// Makes value logs ahead of the commits that will ask for them. Returns whether there was something to do. What fails is left to
    /// those commits, which report it.
    pub(crate) fn prepare_value_logs(&self) -> bool {
        let due = std::mem::take(&mut *self.value_logs_due.lock());
        if self.closed.load(Ordering::Acquire) {
            return false;
        }
        for family in &due {
            let make = |_| match self.tables.may_make_value_log_ahead() {
                true => self.make_value_log(family).ok().flatten(),
                false => None,
            };
            let spares: Vec<_> = (0..family.direct.missing()).map_while(make).collect();
            let _ = DirectLog::sync_names(&spares);
            family.direct.add_spares(spares);
            if family.is_dropped() {
                family.direct.clear(); // as in `hand_over`
            }
        }
        !due.is_empty()
    }

    /// Has the memtables note the files. Called under the commit lock before the pointers are inserted.
    pub(super) fn hold_files(&self, batch: &WriteBatch, direct: &[Diverted]) {
        for d in direct {
            let view = batch.families()[d.family as usize].view.load();
            view.active.direct().hold(&d.log, view.active.first_seq(), d.bytes);
        }
        for s in batch.staged() {
            let view = s.family.view.load();
            view.active.direct().hold(&s.log, view.active.first_seq(), s.pointer.stored_len);
        }
    }

    /// Whether values of a family may be written to value logs before their commit.
    pub(crate) fn may_stage(&self, family: &Family) -> bool {
        family.options().value_threshold > 0 && self.options.read().change_retention == 0
    }

    /// Makes a value log for one value that comes in pieces, or `None` when too many files are open for one more.
    pub(crate) fn begin_staged(&self, family: &Family) -> Result<Option<Arc<DirectLog>>> {
        self.check_open()?;
        let Some(log) = self.make_value_log(family)? else { return Ok(None) };
        log.begin()?;
        rare!("staged-value-begun");
        Ok(Some(log))
    }

    /// At close, once no commit can take them: removes the files of values that were not committed, and those that threads have in
    /// hand for commits which the close refuses. Their writers may live on for long, and the directory is another's then.
    pub(crate) fn remove_staged(&self) {
        for log in self.staged.end() {
            log.keep(true); // nothing is to be removed later by this name
            let _ = self.fs.remove(&vlog_path(&self.dir, log.id())); // the next open removes it otherwise
        }
    }

    /// Gives up the files that are open for values to come.
    pub(crate) fn forget_direct_logs(&self, families: &[Arc<Family>]) {
        families.iter().for_each(|f| f.direct.clear());
    }
}
