//! Flush: the oldest immutable memtable of a family becomes a run of tables in level 0.
//!
//! 1. `flush_one` takes a family with an immutable memtable and no flush running (one at a time a family, so that runs enter
//!    level 0 in the order of their sequence numbers);
//! 2. the memtable is streamed through the merge core into tables and a value log, which are synced;
//! 3. under the catalog lock one manifest record adds the files and the family's flushed sequence, and the view drops the
//!    memtable as it gains the files;
//! 4. log segments that held nothing else are given back.

use crate::commit::dead_space::hidden_per_kib;
use crate::commit::pipeline::CommitState;
use crate::compact::{FlushInput, Lookup, MergeOutput, run_flush};
use crate::direct::DirectLog;
use crate::engine::DbInner;
use crate::family::Family;
use crate::memtable::FamilyMemtable;
use crate::read::hidden::Hidden;
use crate::trace;
use kingtide_base::events::{Event, FlushInfo};
use kingtide_base::histogram::Histogram;
use kingtide_base::stats::Stat;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Result, SeqNo, rare};
use kingtide_table::VlogInfo;
use kingtide_versions::{Edit, VlogMeta};
use std::sync::Arc;
use std::time::Duration;

impl DbInner {
    /// Flushes one memtable. False when none waits.
    pub(crate) fn flush_one(self: &Arc<Self>) -> Result<bool> {
        let Some(family) = self.claim_flush() else { return Ok(false) };
        let result = family.flush_failures.note(self.flush_and_tell(&family));
        let mut catalog = self.catalog.lock();
        catalog.flushing.remove(&family.id());
        family.flush_yields.note(catalog.flushes, &result);
        drop(catalog);
        result.map(|()| true)
    }

    /// Flushes and tells of it.
    fn flush_and_tell(self: &Arc<Self>, family: &Arc<Family>) -> Result<()> {
        let (start, before) = (self.clock.ticks(), self.stats.get(Stat::FlushBytes));
        let memory = oldest_immutable(family).map_or(0, |(memtable, _)| memtable.memory());
        let mut info = FlushInfo::default();
        (info.family, info.memtable_bytes) = (family.name(), memory);
        self.stats.events.tell(|| Event::FlushBegun(info.clone()));
        self.stats.deliver_events();
        let span = trace::flush(&info.family);
        let result = self.flush_family(family);
        span.end();
        info.duration = Duration::from_nanos(self.clock.ticks().saturating_sub(start));
        info.written_bytes = self.stats.get(Stat::FlushBytes).saturating_sub(before);
        info.error = result.as_ref().err().map(ToString::to_string);
        self.stats.events.tell(|| Event::FlushEnded(info));
        result
    }

    /// The family whose oldest immutable memtable is the oldest of all, so that the log is freed soonest. But one whose flush failed, and may
    /// do so whenever it is tried, lets others go first.
    fn claim_flush(&self) -> Option<Arc<Family>> {
        let _claims = self.jobs.claims.lock();
        let mut catalog = self.catalog.lock();
        let (turn, count) = (catalog.flushes + 1, catalog.families.len());
        let oldest = catalog
            .families
            .values()
            .filter(|f| !catalog.flushing.contains(&f.id()))
            .filter_map(|f| f.oldest_immutable_entry().map(|seq| (seq, f)))
            .min_by_key(|(seq, f)| (f.flush_yields.rank(turn, count), *seq))
            .map(|(_, f)| f.clone())?;
        catalog.flushes = turn;
        catalog.flushing.insert(oldest.id());
        Some(oldest)
    }

    /// Flushes the oldest immutable memtable of a family that the caller has claimed.
    pub(crate) fn flush_family(self: &Arc<Self>, family: &Arc<Family>) -> Result<()> {
        let start = self.clock.monotonic_ns();
        let Some((memtable, last)) = oldest_immutable(family) else { return Ok(()) };
        self.settle_manifest()?;
        if self.wal.poison().is_some() {
            // Rather than after the work.
            self.catalog.lock().versions.check()?;
            self.log_before_flush(family, last)?;
            self.fs.sync_dir(&self.dir)?;
        }
        // The values of a file that cannot be sealed move in this flush, and not in the next try: a sync of the log in between would fail for
        // that file.
        let sealed = memtable.direct().seal(|e| self.report_background_error(&e))?;
        let output = self.write_table(family, (&memtable, last), &sealed);
        self.tables.empty_trash(); // what the view kept in which it looked up what the flush hides
        let output = output?;
        note_hidden(family, &memtable, &output);
        let (memory, bytes) = (memtable.memory() + memtable.direct().bytes(), memtable.bytes());
        let complete = output.added.iter().all(|(_, table)| table.max_seq <= last);
        debug_assert!(complete, "a flush up to {last} holds newer operations: recovery would replay them again");
        self.log_before_flush(family, last).inspect_err(|_| output.discard(&*self.fs, &self.dir))?;
        let (referred, mut edits) = take_over(&sealed, family, &output);
        edits.extend(output.edits(family.id(), &[]));
        edits.push(Edit::Flushed { family: family.id(), seq: last });
        edits.push(Edit::LastSeq(self.snapshots.visible()));
        let retired = {
            let mut catalog = self.catalog.lock();
            if !catalog.families.contains_key(&family.id()) {
                rare!("flush-of-dropped-family");
                output.discard(&*self.fs, &self.dir);
                return Ok(());
            }
            referred.iter().for_each(|log| log.keep(true));
            let log_start = self.log_needed(family, Family::oldest_unflushed_but_one);
            edits.push(self.log_starts(log_start));
            // After a failure the record may or may not be in the manifest: the files stay until it is known not to be. Those
            // that commits wrote stay with the memtable.
            let retired = catalog
                .change_files(family, edits, 1, &self.tables, &self.next_file_id)
                .inspect_err(|_| catalog.versions.doubt(output.names()))?;
            // A record that failed before may have named others, which expired since, say: it is not in the manifest any more.
            let is_referred = |log: &Arc<DirectLog>| referred.iter().any(|r| Arc::ptr_eq(r, log));
            sealed.iter().filter(|(log, _)| !is_referred(log)).for_each(|(log, _)| log.keep(false));
            let woke = |f: &Arc<Family>| {
                let active = &f.view.load().active;
                !active.is_empty() && active.first_seq() < catalog.versions.log_start
            };
            if catalog.families.values().any(woke) {
                rare!("first-write-to-idle-family");
            }
            self.measure_debt(&catalog);
            retired
        };
        memtable.let_go(); // at once: writers may wait for its memory
        family.direct.prune(family.view.load().active.first_seq());
        self.delete_retired(retired);
        output.tell(&self.stats.events);
        self.stats.add(Stat::Flushes, 1);
        self.stats.add(Stat::FlushBytes, output.counters.bytes_written);
        let took = self.clock.monotonic_ns().saturating_sub(start);
        self.stats.record(Histogram::Flush, Some(family.histograms()), took);
        self.stall.drained(memory, took);
        self.stall.flushed(bytes);
        self.release_log()
    }

    /// Writes the tables of a flush, with what they hide. Values in the logs that are `sealed` stay where they are.
    fn write_table(
        self: &Arc<Self>,
        family: &Arc<Family>,
        (memtable, last): (&Arc<FamilyMemtable>, SeqNo),
        sealed: &[(Arc<DirectLog>, VlogInfo)],
    ) -> Result<MergeOutput> {
        let (memtables, options) = (std::slice::from_ref(memtable), family.options());
        let mut input = FlushInput::of(memtables, self.new_file_id());
        input.last = last;
        input.relocate.retain(|id| !sealed.iter().any(|(log, _)| log.id() == *id));
        let view = family.view.load_full();
        let hidden = Hidden::of(&view, memtables, &options);
        let lookup = hidden.as_ref().map(|h| move |key: &[u8], value| h.bytes(key, value));
        input.hidden = lookup.as_ref().map(|f| f as &Lookup<'_>);
        self.with_merge_context(family, &options, false, |ctx| {
            let output = run_flush(ctx, input)?;
            ctx.sync_dir().inspect_err(|_| output.discard(&*self.fs, &self.dir))?;
            Ok(output)
        })
    }
}

impl DbInner {
    /// The first sequence number that recovery needs from the log, if of `family` it needs those from what `of_it` says.
    /// Called under the catalog lock, so that flushes of several families see each other.
    pub(crate) fn log_needed(&self, family: &Family, of_it: impl Fn(&Family) -> Option<SeqNo>) -> SeqNo {
        self.log_needed_if(|f| if f.id() == family.id() { of_it(f) } else { f.oldest_unflushed() })
    }

    /// The same as things are.
    pub(crate) fn log_needed_by_all(&self) -> SeqNo {
        self.log_needed_if(Family::oldest_unflushed)
    }

    fn log_needed_if(&self, oldest: impl Fn(&Family) -> Option<SeqNo>) -> SeqNo {
        self.log_needed_at(&self.commit.lock(), oldest)
    }

    /// The variant for callers that hold the commit lock.
    pub(crate) fn log_needed_at(&self, c: &CommitState, oldest: impl Fn(&Family) -> Option<SeqNo>) -> SeqNo {
        let in_memory = c.families.iter().filter_map(|f| oldest(f)).min();
        let in_doubt = self.prepared.needed(self.wal.synced());
        in_memory.into_iter().chain(in_doubt).min().unwrap_or(c.last_seq + 1)
    }

    /// Recovery must find a prefix of all commits, over all families. A flush makes this family's operations up to
    /// `last` survive a power cut; if another family has older ones that are only in the unsynced log, that log must be
    /// synced first. So it must if there are prepared transactions, or ends of them, in the unsynced log: no table ever
    /// holds those, and one whose end is lost would be in doubt with its writes in tables. A log that is stopped cannot be
    /// synced, so nothing is flushed then but the oldest of all that is in memory, and the rest stays in the log, as far
    /// as that can be read.
    fn log_before_flush(&self, family: &Family, last: SeqNo) -> Result<()> {
        let (others, control) = {
            let c = self.commit.lock();
            c.check_whole()?;
            let older = |f: &Arc<Family>| f.oldest_unflushed().is_some_and(|s| s <= last);
            let others = c.families.iter().any(|f| f.id() != family.id() && older(f));
            (others, self.prepared.is_unsynced(self.wal.synced()))
        };
        if !others && !control {
            return Ok(());
        }
        rare!("flush-synced-log-first");
        self.wal.sync_all().map_err(|e| match control {
            true => e.context("the log holds prepared transactions that cannot be synced"),
            false => e.context("the log holds older commits of other column families that cannot be synced"),
        })
    }
}

/// The edits that make value logs of the family's version of those that commits wrote and the new tables refer to, and
/// these. One that they do not refer to goes with the memtable.
fn take_over<'a>(
    sealed: &'a [(Arc<DirectLog>, VlogInfo)],
    family: &Family,
    output: &MergeOutput,
) -> (Vec<&'a Arc<DirectLog>>, Vec<Edit>) {
    let refers = |id: u64| output.added.iter().any(|(_, meta)| meta.vlog_refs.iter().any(|r| r.file_id == id));
    let add = |(log, info): &'a (Arc<DirectLog>, VlogInfo)| {
        let VlogInfo { file_size: size, stored_bytes, values, .. } = *info;
        let meta = VlogMeta { id: log.id(), size, stored_bytes, values };
        (log, Edit::AddVlog { family: family.id(), meta })
    };
    sealed.iter().filter(|(log, _)| refers(log.id())).map(add).unzip()
}

/// Takes note of how many bytes of values a byte of the flush hides. A flush of few bytes says little of what is written next, and deletes
/// hide much with few bytes: what is assumed is one for one at most.
fn note_hidden(family: &Family, memtable: &FamilyMemtable, output: &MergeOutput) {
    const FEW: u64 = 16;
    let hides: u64 = output.added.iter().map(|(_, table)| table.hides).sum();
    let bytes = memtable.bytes() + family.options().memtable_size / FEW;
    let before = family.hidden_per_kib.load(Ordering::Relaxed);
    family.hidden_per_kib.store(hidden_per_kib(before, hides, bytes), Ordering::Relaxed);
}

/// The oldest immutable memtable, and the last sequence number that can be in it: the next younger one begins after it.
fn oldest_immutable(family: &Family) -> Option<(Arc<FamilyMemtable>, SeqNo)> {
    let view = family.view.load();
    let memtable = view.immutable.last()?.clone();
    let younger = view.immutable.iter().rev().nth(1).unwrap_or(&view.active);
    Some((memtable, younger.first_seq() - 1))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::{Db, Durability, ErrorKind, Options, WriteBatch, WriteOptions};
    use kingtide_base::events::{Event, LogLevel};
    use kingtide_base::rng::Rng;
    use kingtide_base::stats::Stat;
    use kingtide_vfs::{Fault, FaultFs, Fs, MemFs, Op, Rule, Survival};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A database after a crash, with two families: the flush of `bad` fails whenever it is tried, and that of `good` succeeds.
    fn open_with_a_bad_family(options: Options) -> (FaultFs, Db) {
        let (faults, db) = open_with_an_untried_bad_family(options);
        assert_eq!(db.family("bad").unwrap().flush().unwrap_err().kind(), ErrorKind::Io);
        (faults, db)
    }

    /// The same before the first try.
    fn open_with_an_untried_bad_family(options: Options) -> (FaultFs, Db) {
        let disk = MemFs::new();
        let on = |fs: Arc<dyn Fs>| Options { fs: Some(fs), ..options.clone() };
        let db = Db::open("db", on(Arc::new(disk.clone()))).unwrap();
        db.create_family("bad", options.family.clone()).unwrap().put("key", [7u8; 100_000]).unwrap();
        db.create_family("good", options.family.clone()).unwrap();
        let faults = FaultFs::new(Arc::new(disk.kill_clone()), 1);
        drop(db);
        let db = Db::open("db", on(Arc::new(faults.clone()))).unwrap();
        // The first flush after a crash moves the value, and cannot read it.
        faults.add(Rule::new(Op::Read, Fault::Eio).path(".vlog").sticky());
        (faults, db)
    }

    /// A flush waits for what was there when it was called, not for the memtables that a writer fills as fast as they are flushed.
    #[test]
    fn a_flush_ends_while_memtables_are_filled_as_fast_as_it_writes_them() {
        let faults = FaultFs::new(MemFs::shared(), 1);
        let db = Db::open("db", Options::new().fs(Arc::new(faults.clone())).manual_jobs(true)).unwrap();
        let family = db.default_family().clone();
        family.put("first", "1").unwrap();
        let flushes = || db.inner().stats.get(Stat::Flushes);
        let (of, last) = (db.clone(), AtomicU64::new(0));
        faults.before_each(Some(Arc::new(move |op, path: &std::path::Path| {
            let flush = of.inner().stats.get(Stat::Flushes) + 1;
            let writes_table = op == Op::Write && path.to_string_lossy().ends_with(".klog");
            if writes_table && last.swap(flush, Ordering::SeqCst) != flush && flush < 20 {
                of.put("next", flush.to_be_bytes()).unwrap();
                of.inner().seal_memtable(&mut of.inner().commit.lock(), of.default_family().inner());
            }
        })));
        for flush in [&|| db.flush(), &|| family.flush()] as [&dyn Fn() -> crate::Result<()>; 2] {
            let before = flushes();
            flush().unwrap();
            assert_eq!(flushes() - before, 1);
        }
        faults.before_each(None);
        assert_eq!(family.get("first").unwrap().as_deref(), Some(&b"1"[..]));
    }

    /// A family whose flush fails whenever it is tried keeps no other from its flushes and compactions, and a caller that waits for those does
    /// not get its error.
    #[test]
    fn a_flush_that_fails_again_and_again_is_a_matter_of_its_family() {
        for manual_jobs in [true, false] {
            let (faults, db) = open_with_a_bad_family(Options { manual_jobs, ..Options::default() });
            let [bad, good] = ["bad", "good"].map(|name| db.family(name).unwrap());
            for n in 0..5u8 {
                good.put([n], "tide").unwrap();
                good.put("all", [n]).unwrap();
                good.flush().unwrap();
            }
            good.compact_range(..).unwrap();
            assert!(good.inner().view.load().version.levels[0].is_empty());
            assert_eq!(db.flush().unwrap_err().kind(), ErrorKind::Io);
            faults.clear();
            db.flush().unwrap();
            assert_eq!(bad.get("key").unwrap().as_deref(), Some(&[7u8; 100_000][..]));
        }
    }

    /// Nor does it keep a close from flushing what another family has in no log.
    #[test]
    fn a_close_flushes_what_it_can() {
        for manual_jobs in [true, false] {
            let (faults, db) = open_with_an_untried_bad_family(Options { manual_jobs, ..Options::default() });
            let mut batch = WriteBatch::new();
            batch.put(&db.family("good").unwrap(), b"key", b"in no log").unwrap();
            db.write_with(batch, &WriteOptions::new().durability(Durability::None)).unwrap();
            assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Io);
            faults.clear();
            let db = Db::open("db", Options { fs: Some(Arc::new(faults)), ..Options::default() }).unwrap();
            assert_eq!(db.family("good").unwrap().get("key").unwrap().as_deref(), Some(&b"in no log"[..]));
            assert_eq!(db.family("bad").unwrap().get("key").unwrap().as_deref(), Some(&[7u8; 100_000][..]));
        }
    }

    /// Nor does a writer to another family that waits for memory: flushes of other families free it.
    #[test]
    fn a_writer_that_waits_for_memory_does_not_get_the_error_of_another_familys_flush() {
        for (manual_jobs, memtable_size) in [(true, 64 << 10), (true, 8 << 20), (false, 64 << 10), (false, 8 << 20)] {
            let mut options = Options { manual_jobs, ..Options::default() };
            (options.db.memtable_budget, options.family.memtable_size) = (1 << 20, memtable_size);
            let (faults, db) = open_with_a_bad_family(options);
            let [bad, good] = ["bad", "good"].map(|name| db.family(name).unwrap());
            let failures = || db.stats().get("background_errors").unwrap();
            let before = failures();
            for n in 0..4096u32 {
                good.put(n.to_be_bytes(), [n as u8; 1000]).unwrap();
            }
            assert!(failures() > before, "it is tried again");
            // If nothing can be flushed, the writer gets the reason.
            faults.add(Rule::new(Op::Write, Fault::Eio).path(".klog").sticky());
            let refused = (0..8192u32).find_map(|n| good.put(n.to_be_bytes(), [n as u8; 1000]).err());
            let e = refused.expect("memory is used up");
            assert!(e.kind() == ErrorKind::Io && e.message().contains("no memory for writes"), "{e}");
            faults.clear();
            for n in 0..2048u32 {
                good.put(n.to_be_bytes(), [n as u8; 1000]).unwrap();
            }
            assert_eq!(bad.get("key").unwrap().as_deref(), Some(&[7u8; 100_000][..]));
        }
    }

    /// A value written in pieces needs a file of its own. If too many are open, flushing any family that has some makes room, even if the flushes
    /// of other families fail.
    #[test]
    fn a_value_that_meets_the_limit_of_open_value_logs_does_not_get_the_error_of_another_familys_flush() {
        for manual_jobs in [true, false] {
            let mut options = Options { manual_jobs, ..Options::default() };
            (options.db.max_open_files, options.tuning.staged_from) = (16, 3000);
            let (faults, db) = open_with_a_bad_family(options);
            let [bad, good] = ["bad", "good"].map(|name| db.family(name).unwrap());
            let value = [7u8; 10_000];
            bad.put_reader("more", &value[..]).unwrap();
            (0..20u8).for_each(|n| _ = good.put_reader([n], &value[..]).unwrap());
            assert_eq!(db.stats().get("direct_values"), Some(21));
            // If no flush makes room, the caller gets the error of a flush.
            faults.add(Rule::new(Op::Write, Fault::Eio).path(".klog").sticky());
            let e = (0..20u8).find_map(|n| good.put_reader([n], &value[..]).err()).expect("there is no room");
            assert!(e.kind() == ErrorKind::Io && e.message().contains("no value log can be created"), "{e}");
            faults.clear();
            good.put_reader("last", &value[..]).unwrap();
            assert_eq!(bad.get("more").unwrap().as_deref(), Some(&value[..]));
        }
    }

    /// Until the values have moved, a sync of the log fails for the file that they are in, and stops the log.
    #[test]
    fn a_flush_that_cannot_sync_a_value_log_moves_its_values_at_once() {
        let fs = MemFs::new();
        let faults = FaultFs::new(Arc::new(fs.clone()), 1);
        let mut options = Options::new().fs(Arc::new(faults.clone())).manual_jobs(true);
        options.family.direct_value_threshold = 1000;
        let db = Db::open("db", options.clone()).unwrap();
        let (inner, value) = (db.inner(), [7u8; 10_000]);
        db.put("key", value).unwrap();
        assert_eq!(inner.stats.get(Stat::DirectValues), 1);
        inner.seal_memtable(&mut inner.commit.lock(), db.default_family().inner());
        faults.add(Rule::new(Op::Sync, Fault::Eio).path(".vlog"));
        while faults.stats().injected() == 0 {
            let _ = db.run_one_job();
        }
        db.put("after", "1").unwrap();
        db.sync().unwrap();
        assert_eq!((inner.stats.get(Stat::Flushes), inner.stats.get(Stat::BackgroundErrors)), (1, 1));
        let cut = fs.crash_clone(Survival::AllLost, &mut Rng::new(1));
        let again = Db::open("db", options.fs(Arc::new(cut))).unwrap();
        assert_eq!(again.get("key").unwrap().as_deref(), Some(&value[..]));
        assert_eq!(again.get("after").unwrap().as_deref(), Some(&b"1"[..]));
    }

    /// A failed sync is reported even if the flush then finds no space for another value log, and is tried again.
    #[test]
    fn a_flush_that_finds_no_space_reports_the_value_log_that_cannot_be_synced() {
        let fs = MemFs::new();
        let faults = FaultFs::new(Arc::new(fs.clone()), 1);
        let mut options = Options::new().fs(Arc::new(faults.clone())).manual_jobs(true);
        options.tuning.staged_from = 3000;
        let db = Db::open("db", options.clone()).unwrap();
        let (inner, value, keys) = (db.inner(), [7u8; 10_000], ["first", "second"]);
        keys.iter().for_each(|key| _ = db.put_reader(key, &value[..]).unwrap()); // each has a file of its own
        inner.seal_memtable(&mut inner.commit.lock(), db.default_family().inner());
        faults.add(Rule::new(Op::Sync, Fault::Eio).path(".vlog"));
        faults.add(Rule::new(Op::Write, Fault::Enospc).path(".vlog").nth(2)); // the footer of the second
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let sink = told.clone();
        let listener = move |e: &Event| {
            if let Event::BackgroundError(text) = e {
                sink.lock().unwrap().push(text.clone());
            }
        };
        inner.stats.events.connect(LogLevel::Info, Box::new(listener));
        assert_eq!(inner.flush_one().unwrap_err().kind(), ErrorKind::NoSpace);
        inner.stats.deliver_events();
        assert_eq!((faults.stats().injected(), inner.stats.get(Stat::BackgroundErrors)), (2, 1));
        let told = told.lock().unwrap().clone();
        assert!(told.len() == 1 && told[0].contains("sync"), "{told:?}");
        db.flush().unwrap();
        let cut = fs.crash_clone(Survival::AllLost, &mut Rng::new(1));
        let again = Db::open("db", options.fs(Arc::new(cut))).unwrap();
        keys.iter().for_each(|key| assert_eq!(again.get(key).unwrap().as_deref(), Some(&value[..])));
    }

    /// A log segment is made ahead to save time, and a flush may free the space that it needs. This holds where callers run the jobs, too.
    #[test]
    fn a_segment_that_cannot_be_made_ahead_keeps_no_flush_from_its_turn() {
        for (fault, kind) in [(Fault::Enospc, ErrorKind::NoSpace), (Fault::Eio, ErrorKind::Io)] {
            let faults = FaultFs::new(MemFs::shared(), 1);
            let mut options = Options { fs: Some(Arc::new(faults.clone())), manual_jobs: true, ..Options::default() };
            (options.db.memtable_budget, options.family.memtable_size) = (1 << 20, 64 << 10);
            options.tuning.first_segment = 16 << 20; // so that no commit needs the next one
            let db = Db::open("db", options).unwrap();
            let put = |n: u32| db.put(n.to_be_bytes(), [n as u8; 1000]);
            put(0).unwrap();
            faults.add(Rule::new(Op::Open, fault).path(".wal").sticky());
            (1..8192).for_each(|n| _ = put(n).unwrap()); // more than memtables may hold
            db.flush().unwrap();
            db.compact().unwrap();
            assert!(db.stats().families.iter().all(|f| f.immutable_memtables == 0));
            assert_eq!(db.run_one_job().unwrap_err().kind(), kind, "it is tried again");
            faults.clear();
            while db.run_one_job().unwrap() {}
            assert!(db.inner().wal.has_spare());
        }
    }
}
