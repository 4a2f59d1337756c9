//! What a change of files leaves behind: files that nothing refers to, log segments that are not needed, and the inputs of flow
//! control.

use crate::catalog::{Catalog, VlogSpace};
use crate::commit::dead_space::Measured;
use crate::engine::DbInner;
use crate::family::Family;
use crate::memtable::FamilyMemtable;
use kingtide_base::options::FamilyOptions;
use kingtide_base::stats::Stat;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Result, SeqNo};
use kingtide_versions::{Edit, Retired, vlog_size};
use std::sync::Arc;

impl DbInner {
    /// Deletes what a change of files left behind, now or when the last view that names it goes. A file that cannot be
    /// removed is an orphan that the next open removes.
    pub fn delete_retired(&self, retired: Retired) {
        for id in retired.tables {
            let _ = self.tables.delete_table(id);
        }
        for (id, size) in retired.vlogs {
            self.stats.add(Stat::VlogsDeleted, 1);
            let _ = self.tables.delete_vlog(id, size);
        }
    }

    /// After a record of the manifest that failed, writes the manifest anew and removes the files of that record. Every job that makes files
    /// begins with this: those of a failed record stay until the manifest can be written, and jobs that were tried again meanwhile would
    /// fill the disk with more of them. At a close, they would otherwise take their space until the next open.
    ///
    /// # Errors
    /// Where the manifest cannot be written now either, they stay.
    pub fn settle_manifest(&self) -> Result<()> {
        if self.halted.load(Ordering::Acquire) {
            return Ok(());
        }
        let retired = self.catalog.lock().settle(&self.next_file_id)?;
        self.delete_retired(retired);
        Ok(())
    }

    /// Gives log segments back that hold nothing but what is in tables, except those that change streams may want.
    pub fn release_log(&self) -> Result<()> {
        let retention = self.options.read().change_retention;
        self.release_log_beyond(retention)
    }

    fn release_log_beyond(&self, retention: u64) -> Result<()> {
        // As the manifest says.
        let (needed, first) = {
            let catalog = self.catalog.lock();
            (catalog.versions.log_start, catalog.versions.first_segment)
        };
        if self.wal.poison().is_none() {
            self.wal.release_beyond((needed, first), retention)?;
        }
        Ok(())
    }

    /// The edit that moves the log's start, and with it the segments that go in one release.
    pub(crate) fn log_starts(&self, seq: SeqNo) -> Edit {
        let retention = self.options.read().change_retention;
        match self.wal.first_kept(seq, retention) {
            Some(segment) => Edit::LogStartIn { seq, segment },
            None => Edit::LogStart(seq),
        }
    }

    /// Gives back the log's space that only a writer at full speed needs, and if all that was logged is in tables, that of the
    /// active segment too. Segments begin small again.
    ///
    /// # Errors
    /// `Io`, `NoSpace`: nothing is lost, and a later call goes on. `Poisoned` when a sync failed.
    pub fn shrink_log(&self) -> Result<()> {
        if self.wal.poison().is_some() {
            return Ok(());
        }
        self.wal.shrink()?;
        let needed = self.catalog.lock().versions.log_start;
        let retention = self.options.read().change_retention; // the same for what is begun and for what goes
        if self.commit.lock().wal.shrink(needed, retention)? {
            self.wal.sync_header(needed)?; // of the new segment, before the old ones go
            self.release_log_beyond(retention)?;
            self.wal.trim(0)?;
        }
        Ok(())
    }

    /// Tells flow control how far level 0 lags in the worst family, how far flushes lag behind values that were written
    /// once, and how far dead space of value logs is past its cap in each family.
    pub fn measure_debt(&self, catalog: &Catalog) {
        let runs = |f: &Family| f.view.load().version.levels[0].len();
        let worst = (catalog.families.values())
            .filter(|f| runs(f) > 0)
            .map(|f| runs(f) as f64 / f.options().l0_trigger.max(1) as f64);
        self.stall.set_level0(worst.fold(0.0, f64::max));
        self.measure_unflushed_values(catalog.families.values());
        let (space, now) = (catalog.vlog_space(), self.clock.monotonic_ns());
        for (id, family) in &catalog.families {
            let space = space.get(id).copied().unwrap_or_default();
            let garbage = space.stored - space.live + family.view.load().version.hidden_bytes();
            family.dead_space.measure(self.dead_space_of(family, &space), garbage, now);
        }
        self.stall.set_dead_space(catalog.families.values().map(|f| &*f.dead_space));
        catalog.update_gauges(&space, self.staged.bytes(None), &self.stats);
        self.reserve.note_manifest(catalog.versions.manifest.size());
    }

    /// How far dead bytes, with those that newer entries of tables hide, are past the cap. What memtables seem to hide, judging by
    /// flushes before, is added, so that writers are slowed in time.
    fn dead_space_of(&self, family: &Family, space: &VlogSpace) -> Measured {
        let (options, view) = (family.options(), family.view.load());
        let hidden_per_kib = family.hidden_per_kib.load(Ordering::Relaxed);
        let hides = |m: &FamilyMemtable| (m.bytes() as f64 * hidden_per_kib as f64 / 1024.0) as u64;
        let immutable: u64 = view.immutable.iter().map(|m| hides(m)).sum();
        let hidden = view.version.counted_hidden_bytes() + immutable.min(view.unflushed_value_bytes());
        Measured {
            excess: space.excess(&options, hidden),
            room: self.dead_slack(&options),
            stored: space.stored,
            coming: hides(&view.active),
            hidden_per_kib,
        }
    }

    /// Bytes by which dead space of a family may pass its cap before writers are held: what a memtable that overwrote itself brings
    /// when it is flushed, and what lies dead while a value log's worth of values is being moved.
    pub(crate) fn dead_slack(&self, options: &FamilyOptions) -> u64 {
        let memtable = match options.direct_value_threshold {
            0 => options.memtable_size,
            _ => self.most_direct_bytes(options.memtable_size),
        };
        memtable + vlog_size(options)
    }

    /// Bytes of values written once that a memtable of `memtable_size` points to before it is sealed. Recovery reads all of
    /// them.
    pub(crate) fn most_direct_bytes(&self, memtable_size: u64) -> u64 {
        self.tuning.direct_memtable_bytes.unwrap_or((8 * memtable_size).max(256 << 20))
    }

    /// Bytes of values written once at which a memtable of a family is sealed.
    pub(crate) fn direct_bytes_before_seal(&self, family: &Family, memtable_size: u64) -> u64 {
        family.dead_space.sealed_early(self.most_direct_bytes(memtable_size))
    }

    /// Tells flow control how far flushes lag behind values that were written once: at most `MEMTABLES` memtables' worth of them waits
    /// for a flush, in all families together.
    pub(crate) fn measure_unflushed_values<'a>(&self, families: impl Iterator<Item = &'a Arc<Family>>) {
        const MEMTABLES: f64 = 4.0;
        let share = |f: &Arc<Family>| match f.view.load().unflushed_value_bytes() {
            0 => 0.0,
            bytes => bytes as f64 / (self.most_direct_bytes(f.options().memtable_size) as f64 * MEMTABLES),
        };
        self.stall.set_unflushed_values(families.map(share).sum());
    }
}
