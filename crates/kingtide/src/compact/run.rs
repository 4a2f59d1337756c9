//! Merges as background jobs: claim, run, install.
//!
//! 1. Under the catalog lock the planner proposes a job for the family that needs one most; its footprint is recorded so
//!    that no other job takes what it takes;
//! 2. without locks the job's key ranges are merged, in parallel when there are several;
//! 3. under the catalog lock one manifest record swaps inputs for outputs, and the view follows;
//! 4. inputs are deleted when the last view that names them goes.

use crate::catalog::{Catalog, Running};
use crate::compact::merge::run_merge;
use crate::compact::{MergeContext, MergeOutput, Surroundings};
use crate::engine::DbInner;
use crate::family::{Family, TableHandle};
use crate::threads::try_spawn;
use crate::trace;
use kingtide_base::events::{CompactionInfo, Event};
use kingtide_base::histogram::Histogram;
use kingtide_base::stats::Stat;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{ErrorKind, FamilyId, Result, rare};
use kingtide_versions::{
    CompactionRange, Edit, FileMeta, Footprint, Job, JobKind, Manual, Plan, PlanInput, VlogMeta, plan,
};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Writers are quiet when nothing was committed for this long.
const QUIET_NS: u64 = 100_000_000;
/// Key-log bytes whose merge costs about as much as one needless look into a run.
const BYTES_PER_EXTRA_RUN: u64 = 1024;

/// Which compactions are taken.
#[derive(Clone, Copy)]
enum Wanted {
    All,
    /// Those that write no more than this many bytes.
    Within(u64),
    /// Those that empty a value log although dead values are within the cap, and write no more than this many bytes.
    Collecting(u64),
}

/// A claimed job.
struct Claim {
    ticket: u64,
    family: Arc<Family>,
    job: Job,
    /// Keep the input files while the job runs: the family may be dropped meanwhile, and its views with it.
    _inputs: Vec<Arc<TableHandle>>,
}

/// Hands what the inputs of a job hide on to its outputs, but for what it dropped itself: all of it if nothing older is left below. What a
/// single output hides is not known, so each gets its share by entries.
pub(crate) fn hand_hidden_on(job: &Job, output: &mut MergeOutput) {
    let hidden = job.inputs.iter().map(|(_, f)| f.hides).fold(0, u64::saturating_add);
    let mut left = match job.drop_tombstones {
        true => 0,
        false => hidden.saturating_sub(output.counters.uncovered),
    };
    let mut entries: u64 = output.added.iter().map(|(_, f)| f.entries).sum();
    for (_, file) in &mut output.added {
        file.hides = (left as u128 * file.entries as u128).div_ceil(entries.max(1) as u128) as u64;
        left -= file.hides;
        entries -= file.entries;
    }
}

/// A compaction mixes entries that may expire at any time from now on. By its own age alone, its output would be due again as soon as the
/// first of them expires. Instead, it waits as long after that as the input that waits the least would have. A file that is a rewrite of
/// another, because entries of that one have expired, counts as old as that one: so each rewrite waits for a fraction of all the time
/// before it. If the clock has gone back, the file counts as younger.
fn hand_age_on(job: &Job, output: &mut MergeOutput) {
    let inputs = || job.inputs.iter().map(|(_, f)| f);
    let oldest = inputs().map(|f| f.created_ms).min().filter(|_| job.kind == JobKind::Ttl);
    let lifetimes = inputs().filter(|f| f.min_expiry_ms != 0).map(|f| f.min_expiry_ms.saturating_sub(f.created_ms));
    let shortest = lifetimes.min().unwrap_or(0);
    for (_, file) in output.added.iter_mut().filter(|(_, f)| f.min_expiry_ms != 0) {
        let created = file.created_ms.min(file.min_expiry_ms.saturating_sub(shortest));
        file.created_ms = oldest.map_or(created, |oldest| created.min(oldest));
    }
}

impl DbInner {
    /// Runs one merge or move. False when none is due.
    pub(crate) fn merge_one(self: &Arc<Self>) -> Result<bool> {
        self.merge_one_of(Wanted::All)
    }

    /// The same while flushes find no space although the ballast is spent, of those that need little: they may make room for a flush.
    pub(crate) fn merge_for_space(self: &Arc<Self>) -> Result<bool> {
        match self.reserve.room_for_compaction() {
            Some(room) => self.or_collect(self.merge_one_of(Wanted::Within(room))),
            None => Ok(false),
        }
    }

    /// While writes are refused for want of space, moves live values so that the space of dead ones becomes free.
    pub(crate) fn collect_for_space(self: &Arc<Self>) -> Result<bool> {
        match self.room_to_collect() {
            Some(room) => self.merge_one_of(Wanted::Collecting(room)),
            None => Ok(false),
        }
    }

    /// If no compaction was due, or the one that was due found no space, moves values instead, to free the space of dead ones.
    pub(crate) fn or_collect(self: &Arc<Self>, merged: Result<bool>) -> Result<bool> {
        match merged {
            Ok(false) => self.collect_for_space(),
            Err(e) if e.kind() == ErrorKind::NoSpace && self.done_or_reported(self.collect_for_space()) => {
                self.report_background_error(&e);
                Ok(true)
            }
            merged => merged,
        }
    }

    /// Reports the failure of a job if it is not the one that is returned. Returns whether the job did anything.
    pub(crate) fn done_or_reported(&self, job: Result<bool>) -> bool {
        job.unwrap_or_else(|e| {
            if e.kind() != ErrorKind::Cancelled && !self.halted.load(Ordering::Acquire) {
                self.report_background_error(&e);
            }
            false
        })
    }

    fn merge_one_of(self: &Arc<Self>, wanted: Wanted) -> Result<bool> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(false);
        }
        self.note_covered();
        let Some(claim) = self.claim_merge(wanted) else { return Ok(false) };
        let writable = self.catalog.lock().versions.check();
        let writable = writable.and_then(|()| self.settle_manifest());
        let result = writable.and_then(|()| self.run_and_tell(&claim));
        let result = claim.family.dead_space.compactions.note(result);
        let mut catalog = self.catalog.lock();
        claim.family.merge_yields.note(catalog.merges, &result);
        catalog.running.retain(|r| r.ticket != claim.ticket);
        self.measure_debt(&catalog);
        drop(catalog);
        drop(claim);
        self.tables.empty_trash(); // the inputs, which the claim kept
        result.map(|()| true)
    }

    /// Runs a claimed job and tells of it.
    fn run_and_tell(self: &Arc<Self>, claim: &Claim) -> Result<()> {
        let (start, before) = (self.clock.ticks(), self.stats.get(Stat::CompactionWriteBytes));
        let job = &claim.job;
        let mut info = CompactionInfo::default();
        (info.family, info.reason) = (claim.family.name(), format!("{:?}", job.kind));
        info.input_level = job.inputs.iter().map(|(level, _)| *level).min().unwrap_or(0);
        (info.output_level, info.input_files) = (job.output_level, job.inputs.len());
        info.input_bytes = job.inputs.iter().map(|(_, file)| file.size).sum();
        self.stats.events.tell(|| Event::CompactionBegun(info.clone()));
        self.stats.deliver_events();
        let span = trace::compaction(&info.family);
        let result = self.run_claim(claim);
        span.end();
        info.duration = Duration::from_nanos(self.clock.ticks().saturating_sub(start));
        info.output_bytes = self.stats.get(Stat::CompactionWriteBytes).saturating_sub(before);
        (info.output_files, info.error) = match &result {
            Ok(files) => (*files, None),
            Err(e) => (0, Some(e.to_string())),
        };
        self.stats.events.tell(|| Event::CompactionEnded(info));
        result.map(|_| ())
    }

    /// Whether a compaction of any family would be taken now, or runs.
    pub(crate) fn merge_due(&self) -> bool {
        self.merge_due_of(|_| true)
    }

    /// Whether a compaction of a family for which `is_meant` is true would be taken now, or runs.
    pub(crate) fn merge_due_of(&self, is_meant: impl Fn(FamilyId) -> bool) -> bool {
        self.note_covered();
        let mut catalog = self.catalog.lock();
        let families: Vec<_> = catalog.families.values().filter(|f| is_meant(f.id())).cloned().collect();
        catalog.running.iter().any(|r| is_meant(r.family))
            || families.iter().any(|f| !self.plan_for(&mut catalog, f, true, Wanted::All).jobs.is_empty())
    }

    /// Whether nothing waits for flush and nothing was committed lately. Without threads, or if a caller waits for all merges: whether nothing
    /// waits.
    fn is_idle(&self, catalog: &mut Catalog) -> bool {
        let visible = self.snapshots.visible();
        let now = self.clock.monotonic_ns();
        if catalog.last_activity.0 != visible || catalog.last_activity.1 > now {
            catalog.last_activity = (visible, now);
        }
        let immutable = catalog.families.values().any(|f| !f.view.load().immutable.is_empty());
        let at_once = self.jobs.is_manual() || catalog.await_all_merges > 0;
        !immutable && (at_once || now.saturating_sub(catalog.last_activity.1) >= QUIET_NS)
    }

    fn claim_merge(&self, wanted: Wanted) -> Option<Claim> {
        let _claims = self.jobs.claims.lock();
        let mut catalog = self.catalog.lock();
        // Otherwise new jobs might keep starting for ever. And a job that collects counts on all the space that is left.
        let waits = self.reserve.waits_for_jobs() || matches!(wanted, Wanted::Collecting(_));
        if waits && !catalog.is_quiet() {
            return None;
        }
        let idle = self.is_idle(&mut catalog);
        if idle {
            // Only a writer at full speed needs these.
            self.arenas.trim();
            self.wal.trim(1).unwrap_or(()); // tried again when idle next; the next open deletes what is left
        }
        let mut families: Vec<Arc<Family>> = catalog.families.values().cloned().collect();
        // One whose dead space is past its cap first; then the family whose level 0 lags most. But one that failed, and may do so whenever
        // it is tried, as with a damaged table, lets others go first.
        let space = if self.stall.dead_space_debt() > 0 { catalog.vlog_space() } else { BTreeMap::new() };
        let excess = |f: &Arc<Family>| space.get(&f.id()).is_some_and(|s| s.excess(&f.options(), 0) > 0);
        let (turn, count) = (catalog.merges + 1, families.len());
        // Families that are written to may always have a more urgent compaction due than the one that a caller waits for. So every second
        // job is one of a family that a caller waits for, of several the one that has waited longest for its turn.
        let asked =
            |f: &Arc<Family>| catalog.manual.iter().find(|m| m.family == f.id()).filter(|_| turn.is_multiple_of(2));
        families.sort_by_cached_key(|f| {
            let urgency = (excess(f), f.view.load().version.levels[0].len());
            let served = asked(f).map_or(u64::MAX, |m| m.served);
            (f.merge_yields.rank(turn, count), served, Reverse(urgency))
        });
        for family in &families {
            let jobs = self.plan_for(&mut catalog, family, idle, wanted).jobs;
            let Some(job) = jobs.into_iter().next() else { continue };
            catalog.merges = turn;
            catalog.manual.iter_mut().filter(|m| m.family == family.id()).for_each(|m| m.served = turn);
            if job.kind == JobKind::Reads {
                family.extra_runs.store(0, Ordering::Relaxed);
            }
            let ticket = self.new_file_id();
            let footprints = job.footprints(family.order());
            catalog.running.push(Running { ticket, family: family.id(), footprints });
            let handle = |(_, meta): &(usize, Arc<FileMeta>)| self.tables.handle(meta, family.order());
            let inputs = job.inputs.iter().map(handle).collect();
            return Some(Claim { ticket, family: family.clone(), job, _inputs: inputs });
        }
        None
    }

    /// Asks the planner for a job of a family, and settles manual requests that have nothing left to do.
    fn plan_for(&self, catalog: &mut Catalog, family: &Arc<Family>, idle: bool, wanted: Wanted) -> Plan {
        let options = family.options();
        let view = family.view.load();
        let running: Vec<Footprint> =
            catalog.running.iter().filter(|r| r.family == family.id()).flat_map(|r| r.footprints.clone()).collect();
        let vlogs: Vec<VlogMeta> = catalog.versions.vlogs.of(family.id()).cloned().collect();
        let extra = family.extra_runs.fetch_add(family.reads.take_extra_runs(), Ordering::Relaxed);
        let manual = catalog.manual.iter().find(|m| m.family == family.id());
        let manual = manual.map(|m| Manual { range: &m.range, since: m.since, rewrite: &m.rewrite });
        let input = PlanInput {
            version: &view.version,
            options: &options,
            order: family.order(),
            running: &running,
            oldest_snapshot: self.snapshots.oldest(),
            now_ms: self.clock.unix_ms(),
            vlogs: &vlogs,
            dead_slack: self.dead_slack(&options),
            covered: &family.covered.lock(),
            read_hint: options.read_triggered_compaction && extra * BYTES_PER_EXTRA_RUN > view.klog_bytes(),
            idle,
            draining: catalog.draining.contains(&family.id()),
            manual,
            slots: 1,
            room: match wanted {
                Wanted::All => u64::MAX,
                Wanted::Within(room) | Wanted::Collecting(room) => room,
            },
            collects_only: matches!(wanted, Wanted::Collecting(_)),
        };
        let plan = plan(&input);
        if plan.draining {
            catalog.draining.insert(family.id());
        } else {
            catalog.draining.remove(&family.id());
        }
        if plan.manual_done
            && let Some(at) = catalog.manual.iter().position(|m| m.family == family.id())
        {
            catalog.manual.remove(at);
        }
        plan
    }

    /// Runs a claimed job; returns how many files it wrote.
    fn run_claim(self: &Arc<Self>, claim: &Claim) -> Result<usize> {
        let Claim { family, job, .. } = claim;
        if job.kind == JobKind::TrivialMove {
            let mut edits = Vec::new();
            for ((level, file), (to, meta)) in job.inputs.iter().zip(job.moved()) {
                edits.push(Edit::RemoveFile { family: family.id(), level: *level as u8, id: file.id });
                edits.push(Edit::AddFile { family: family.id(), level: to as u8, meta: Arc::new(meta) });
            }
            rare!("compaction-moved-file");
            self.install(family, edits, &MergeOutput::default())?;
            self.stats.add(Stat::TrivialMoves, job.inputs.len() as u64);
            return Ok(0);
        }
        let start = self.clock.ticks();
        let mut output = self.merge_ranges(family, job)?;
        hand_hidden_on(job, &mut output);
        hand_age_on(job, &mut output);
        let edits = output.edits(family.id(), &job.inputs);
        if !self.install(family, edits, &output)? {
            output.discard(&*self.fs, &self.dir);
            return Ok(0);
        }
        let took = self.clock.ticks().saturating_sub(start);
        self.stats.record(Histogram::Compaction, Some(family.histograms()), took);
        output.tell(&self.stats.events);
        let c = output.counters;
        for (stat, n) in [
            (Stat::Compactions, 1),
            (Stat::CompactionReadBytes, c.bytes_read),
            (Stat::CompactionWriteBytes, c.bytes_written),
            (Stat::CompactionDropped, c.entries_in - c.entries_out.min(c.entries_in)),
            (Stat::VlogMovedBytes, c.vlog_moved),
        ] {
            self.stats.add(stat, n);
        }
        Ok(output.files())
    }

    /// False if the family was dropped meanwhile: then nothing changed. `output`: the files that the edits add. After a failure
    /// the record may or may not be in the manifest, so they stay until it is known not to be.
    fn install(&self, family: &Arc<Family>, edits: Vec<Edit>, output: &MergeOutput) -> Result<bool> {
        let mut catalog = self.catalog.lock();
        if !catalog.families.contains_key(&family.id()) {
            rare!("compaction-of-dropped-family");
            return Ok(false);
        }
        let retired = catalog
            .change_files(family, edits, 0, &self.tables, &self.next_file_id)
            .inspect_err(|_| catalog.versions.doubt(output.names()))?;
        family.dead_space.moved(output.counters.vlog_moved); // before the next measurement of dead space
        drop(catalog);
        self.delete_retired(retired);
        Ok(true)
    }

    /// Merges a job's key ranges, one a thread, and joins the results in key order.
    fn merge_ranges(self: &Arc<Self>, family: &Arc<Family>, job: &Job) -> Result<MergeOutput> {
        if self.wal.poison().is_some() {
            self.fs.sync_dir(&self.dir)?; // rather than after the work
        }
        let parts = if job.input_bytes() < self.tuning.split_from { 1 } else { self.subcompactions() };
        let ranges = job.split(family.order(), parts);
        let options = family.options();
        let merge =
            |range: &CompactionRange| self.with_merge_context(family, &options, true, |ctx| run_merge(ctx, job, range));
        if ranges.len() > 1 {
            rare!("compaction-split");
        }
        let mut results: Vec<Result<MergeOutput>> = Vec::new();
        let (first, rest) = match ranges.split_first() {
            Some(split) => split,
            None => return Ok(MergeOutput::default()),
        };
        #[allow(clippy::disallowed_methods)] // parts of this job, which end before it does
        crate::threads::scope(|scope| {
            // Where the caller runs the jobs, runs of one seed must be alike: threads would draw file ids in any order.
            let alone = self.jobs.is_manual();
            let spawn = |r| if alone { None } else { try_spawn(scope, move || merge(r)) };
            let others: Vec<_> = rest.iter().map(|r| (r, spawn(r))).collect();
            results.push(merge(first));
            results.extend(others.into_iter().map(|(range, thread)| match thread {
                Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                None => merge(range), // or the system has no thread to spare
            }));
        });
        let mut all = MergeOutput::default();
        let mut failure = None;
        for r in results {
            match r {
                Ok(part) => all.append(part),
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        let failure = failure.or_else(|| self.fs.sync_dir(&self.dir).err());
        match failure {
            None => Ok(all),
            Some(e) => {
                all.discard(&*self.fs, &self.dir);
                Err(e)
            }
        }
    }

    fn subcompactions(&self) -> usize {
        let options = self.options.read();
        match options.max_subcompactions {
            0 => self.threads,
            n => n as usize,
        }
    }

    /// What jobs of this database find around them.
    pub(crate) fn surroundings(&self, may_cancel: bool) -> Surroundings<'_> {
        Surroundings {
            fs: &self.fs,
            dir: &self.dir,
            tables: Some(&self.tables),
            next_file: &self.next_file_id,
            now_ms: self.clock.unix_ms(),
            limiter: Some(&self.limiter),
            memory: Some(&self.accountant.jobs),
            cancelled: self.jobs.cancel_flag(),
            may_cancel,
            poll_interval: self.tuning.poll_interval,
            restart_interval: self.tuning.restart_interval,
            raised_below: 0,
            keeps_from: u64::MAX,
        }
    }

    /// Gives `f` what a merge or flush of the family needs. The snapshots are listed here: call it when the input is
    /// fixed.
    pub(crate) fn with_merge_context<R>(
        self: &Arc<Self>,
        family: &Family,
        options: &kingtide_base::options::FamilyOptions,
        may_cancel: bool,
        f: impl FnOnce(&MergeContext<'_>) -> R,
    ) -> R {
        let snapshots = self.snapshots.list();
        // The planner recognises the data that a caller wants compacted by their numbers. A later request covers the numbers visible
        // then, and nothing that is in a table now is raised above those.
        let asked = {
            let catalog = self.catalog.lock();
            catalog.manual.iter().filter(|m| m.family == family.id()).map(|m| m.since + 1).min()
        };
        let (memtables_from, version) = {
            // Not kept while the job runs: a view keeps its memtables, which may be flushed long before a merge ends.
            let view = family.view.load();
            (view.memtables().map(|m| m.first_seq()).min().unwrap_or(0), view.version.clone())
        };
        let raised_below = asked.map_or(memtables_from, |asked| asked.min(memtables_from));
        let around = Surroundings { raised_below, keeps_from: family.keeps_from(), ..self.surroundings(may_cancel) };
        around.with_context((family.order(), options), snapshots, version, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, Options};
    use kingtide_base::ErrorKind;
    use kingtide_base::names::{RESERVE_FILE, klog_name};
    use kingtide_versions::{JobKind, Version};
    use kingtide_vfs::{Fault, FaultFs, MemFs, Op, Rule};
    use std::collections::BTreeSet;

    fn file(id: u64, entries: u64, hides: u64) -> FileMeta {
        FileMeta {
            id,
            run: id,
            size: 1,
            entries,
            tombstones: 0,
            range_tombstones: 0,
            raw_bytes: 0,
            min_key: vec![id as u8],
            max_key: vec![id as u8],
            min_seq: 1,
            max_seq: 1,
            min_expiry_ms: 0,
            created_ms: 0,
            vlog_refs: Vec::new(),
            written_as: id,
            sequence: 0,
            hides,
        }
    }

    /// A merge takes its time, in which the memtables that were there at its beginning are flushed. It does not keep their memory.
    #[test]
    fn a_merge_does_not_keep_the_memory_of_memtables() {
        let options = Options { fs: Some(MemFs::shared()), manual_jobs: true, ..Options::default() };
        let db = Db::open("db", options).unwrap();
        let family = db.default_family();
        (0..4_000u32).for_each(|key| _ = family.put(key.to_be_bytes(), [1; 1_000]).unwrap());
        let full = family.inner().view.load().memtables().map(Arc::downgrade).collect::<Vec<_>>();
        let options = family.inner().options();
        db.inner().with_merge_context(family.inner(), &options, true, |_| {
            db.flush().unwrap();
            assert_eq!(full.iter().map(std::sync::Weak::strong_count).collect::<Vec<_>>(), [0]);
        });
    }

    /// A family whose compaction fails whenever it is tried does not keep others from theirs, though it is the more urgent one.
    #[test]
    fn a_compaction_that_fails_again_and_again_lets_other_families_have_theirs() {
        let faults = FaultFs::new(MemFs::shared(), 1);
        let options = Options { fs: Some(Arc::new(faults.clone())), manual_jobs: true, ..Options::default() };
        let db = Db::open("db", options).unwrap();
        let [bad, good] = ["bad", "good"].map(|name| db.create_family(name, Default::default()).unwrap());
        let runs = |f: &crate::ColumnFamily| f.inner().view.load().version.levels[0].len();
        for (family, count) in [(&bad, 12), (&good, 11)] {
            for n in 0..count {
                for key in 0..100u32 {
                    family.put(key.to_be_bytes(), [n; 100]).unwrap();
                }
                family.flush().unwrap();
            }
        }
        assert!(runs(&bad) > runs(&good));
        for file in bad.inner().view.load().version.files().map(|(_, f)| klog_name(f.id)) {
            faults.add(Rule::new(Op::Read, Fault::Eio).path(file).sticky());
        }
        let mut failures = 0;
        for _ in 0..20 {
            failures += u32::from(db.run_one_job().is_err());
        }
        assert!(failures > 5, "it is tried again, should it have been mended: {failures}");
        assert_eq!(runs(&good), 0);
        faults.clear();
        while db.run_one_job().unwrap() {}
        assert_eq!(runs(&bad), 0);
    }

    /// A family that always has a more urgent compaction due does not hold up the one that a caller waits for in another family.
    #[test]
    fn a_compaction_that_a_caller_waits_for_gets_its_turn() {
        let options = Options { fs: Some(MemFs::shared()), manual_jobs: true, ..Options::default() };
        let db = Db::open("db", options).unwrap();
        let [busy, asked] = ["busy", "asked"].map(|name| db.create_family(name, Default::default()).unwrap());
        for (family, count) in [(&busy, 12u8), (&asked, 2)] {
            for n in 0..count {
                (0..100u32).for_each(|key| _ = family.put(key.to_be_bytes(), [n; 100]).unwrap());
                family.flush().unwrap();
            }
        }
        let inner = db.inner();
        let request = (CompactionRange::default(), inner.snapshots.visible());
        inner.catalog.lock().ask_for(asked.inner(), request, Default::default()).expect("the family exists");
        // No merge ends, so both families stay as they are.
        let claimed = |_| {
            let claim = inner.claim_merge(Wanted::All).expect("both have one due");
            inner.catalog.lock().running.retain(|r| r.ticket != claim.ticket);
            claim.family.name()
        };
        assert_eq!((0..4).map(claimed).collect::<Vec<_>>(), ["busy", "asked", "busy", "asked"]);
    }

    /// Families whose compactions callers wait for take turns, though one of them always has the most urgent compaction due, and a caller
    /// that asks for it again and again.
    #[test]
    fn compactions_that_callers_wait_for_take_turns() {
        let options = Options { fs: Some(MemFs::shared()), manual_jobs: true, ..Options::default() };
        let db = Db::open("db", options).unwrap();
        let families = ["busy", "one", "two"].map(|name| db.create_family(name, Default::default()).unwrap());
        for (family, count) in families.iter().zip([12u8, 2, 2]) {
            for n in 0..count {
                (0..100u32).for_each(|key| _ = family.put(key.to_be_bytes(), [n; 100]).unwrap());
                family.flush().unwrap();
            }
        }
        let inner = db.inner();
        let ask = |family: &crate::ColumnFamily| {
            let request = (CompactionRange::default(), inner.snapshots.visible());
            inner.catalog.lock().ask_for(family.inner(), request, Default::default()).expect("the family exists");
        };
        families.iter().for_each(ask);
        // No merge ends, so all families stay as they are.
        let claimed = |_| {
            let claim = inner.claim_merge(Wanted::All).expect("all have one due");
            let mut catalog = inner.catalog.lock();
            catalog.running.retain(|r| r.ticket != claim.ticket);
            catalog.manual.retain(|m| m.family != families[0].inner().id());
            drop(catalog);
            ask(&families[0]);
            claim.family.name()
        };
        let turns: Vec<String> = (0..12).map(claimed).collect();
        let of = |name: &str| turns.iter().filter(|turn| *turn == name).count();
        assert!(of("one") >= 2 && of("two") >= 2, "{turns:?}");
    }

    /// A spent ballast is made again while no job runs. Otherwise new ones could keep starting beside those that run.
    #[test]
    fn a_compaction_waits_for_those_that_run_if_a_ballast_waits_for_them_too() {
        let faults = FaultFs::new(MemFs::shared(), 1);
        let db = Db::open("db", Options::new().fs(Arc::new(faults.clone())).manual_jobs(true)).unwrap();
        for name in ["one", "two", "three"] {
            let family = db.create_family(name, Default::default()).unwrap();
            for n in 0..12u8 {
                (0..100u32).for_each(|key| _ = family.put(key.to_be_bytes(), [n; 100]).unwrap());
                family.flush().unwrap();
            }
        }
        let inner = db.inner();
        let end = |claim: Claim| inner.catalog.lock().running.retain(|r| r.ticket != claim.ticket);
        let both = [(); 2].map(|()| inner.claim_merge(Wanted::All).expect("there are three"));
        both.into_iter().for_each(end);
        inner.stats.set(Stat::KlogBytes, 80 << 20);
        inner.make_room();
        faults.add(Rule::new(Op::Allocate, Fault::Edquot).path(RESERVE_FILE).sticky());
        (0..20).for_each(|_| inner.keep_reserve());
        faults.clear();
        assert!(inner.reserve.is_spent());
        while !inner.reserve.waits_for_jobs() {
            let claim = inner.claim_merge(Wanted::All).expect("the ballast is not tried yet");
            inner.keep_reserve();
            end(claim);
        }
        let claim = inner.claim_merge(Wanted::All).expect("none runs");
        assert!(inner.claim_merge(Wanted::All).is_none());
        inner.keep_reserve();
        assert!(inner.reserve.is_spent());
        end(claim);
        inner.keep_reserve();
        assert!(inner.reserve.is_held() && !inner.reserve.is_spent());
        let both = [(); 2].map(|()| inner.claim_merge(Wanted::All).expect("there are three"));
        both.into_iter().for_each(end);
    }

    /// The compactions that are left for quiet moments too. A wait for them needs no clock that moves.
    #[test]
    fn a_wait_for_all_compactions_ends_while_the_clock_stands_still() {
        let clock = kingtide_base::clock::ManualClock::at_unix_ms(1_000_000);
        let db = Db::open("db", Options::new().fs(MemFs::shared()).clock(clock)).unwrap();
        for n in 0..3u8 {
            (0..100u32).for_each(|key| _ = db.put(key.to_be_bytes(), [n; 100]).unwrap());
            db.flush().unwrap();
        }
        db.wait_for_background().unwrap();
        let runs: usize = db.stats().families.iter().flat_map(|f| &f.levels).map(|l| l.runs).sum();
        assert_eq!(runs, 1);
    }

    /// However many there are of those, and a caller that waits for its compaction does not get their errors.
    #[test]
    fn a_family_is_compacted_beside_several_that_cannot_be() {
        for asked in [true, false] {
            let faults = FaultFs::new(MemFs::shared(), 1);
            let options = Options { fs: Some(Arc::new(faults.clone())), manual_jobs: true, ..Options::default() };
            let db = Db::open("db", options).unwrap();
            let family = |name| db.create_family(name, Default::default()).unwrap();
            let (bad, good) = ([family("bad"), family("worse"), family("worst")], family("good"));
            let fill = |family: &crate::ColumnFamily, count: u8| {
                for n in 0..count {
                    (0..100u32).for_each(|key| _ = family.put(key.to_be_bytes(), [n; 100]).unwrap());
                    family.flush().unwrap();
                }
            };
            let is_compacted = || good.inner().view.load().version.levels[0].is_empty();
            bad.iter().for_each(|family| fill(family, 12));
            fill(&good, 3);
            for family in &bad {
                for (_, file) in family.inner().view.load().version.files() {
                    faults.add(Rule::new(Op::Read, Fault::Eio).path(klog_name(file.id)).sticky());
                }
            }
            if asked {
                good.compact_range(..).unwrap();
            } else {
                // As many jobs as there are families give each its turn.
                fill(&good, 5);
                let mut failures = 0;
                while !is_compacted() {
                    failures += u32::from(db.run_one_job().is_err());
                    assert!(failures <= 3);
                }
            }
            assert!(is_compacted());
            bad.iter().for_each(|family| assert_eq!(family.compact_range(..).unwrap_err().kind(), ErrorKind::Io));
            faults.clear();
            bad.iter().for_each(|family| family.compact_range(..).unwrap());
        }
    }

    /// A flush fails twice and then succeeds. Failures of compactions of the same family do not count as failures of the flush.
    #[test]
    fn a_caller_that_waits_for_a_flush_does_not_get_the_error_of_a_compaction() {
        let faults = FaultFs::new(MemFs::shared(), 1);
        let options = Options { fs: Some(Arc::new(faults.clone())), manual_jobs: true, ..Options::default() };
        let db = Db::open("db", options).unwrap();
        let family = db.default_family();
        for n in 0..12u8 {
            (0..100u32).for_each(|key| _ = family.put(key.to_be_bytes(), [n; 100]).unwrap());
            family.flush().unwrap();
        }
        let file = family.inner().view.load().version.files().next().map(|(_, f)| f.id).unwrap();
        faults.add(Rule::new(Op::Read, Fault::Eio).path(klog_name(file)).sticky());
        assert_eq!(family.compact_range(..).unwrap_err().kind(), ErrorKind::Io);
        let before = family.inner().flush_failures.count();
        (0..2).for_each(|_| faults.add(Rule::new(Op::Sync, Fault::Eio).path(".klog")));
        family.put("tide", "high").unwrap();
        family.flush().unwrap();
        assert_eq!(family.inner().flush_failures.count() - before, 2, "failed flushes were retried");
        faults.clear();
        family.compact_range(..).unwrap();
    }

    /// If each of several families fails once, that is not a lasting failure. If one keeps failing, its error is returned.
    #[test]
    fn a_wait_for_all_families_counts_the_failures_of_each() {
        let faults = FaultFs::new(MemFs::shared(), 1);
        let options = Options { fs: Some(Arc::new(faults.clone())), manual_jobs: true, ..Options::default() };
        let db = Db::open("db", options).unwrap();
        for lasting in [false, true] {
            let families: Vec<_> =
                (0..4).map(|i| db.create_family(&format!("{lasting} {i}"), Default::default()).unwrap()).collect();
            for family in &families {
                for n in 0..12u8 {
                    (0..100u32).for_each(|key| _ = family.put(key.to_be_bytes(), [n; 100]).unwrap());
                    family.flush().unwrap();
                }
            }
            for (i, family) in families.iter().enumerate() {
                let file = family.inner().view.load().version.files().next().map(|(_, f)| f.id).unwrap();
                let rule = Rule::new(Op::Read, Fault::Eio).path(klog_name(file));
                faults.add(if lasting && i == 2 { rule.sticky() } else { rule });
            }
            let before = db.stats().get("background_errors").unwrap();
            let waited = db.inner().wait_until_quiet();
            let failures = db.stats().get("background_errors").unwrap() - before;
            assert!(failures >= 3, "{failures} failures");
            assert_eq!(waited.err().map(|e| e.kind()), lasting.then_some(ErrorKind::Io), "{failures} failures");
            faults.clear();
            db.inner().wait_until_quiet().unwrap();
        }
    }

    /// Otherwise the planner would take data that it must compact for data that were written after the request.
    #[test]
    fn what_a_caller_wants_compacted_keeps_a_number_of_that_time() {
        let options = Options { fs: Some(MemFs::shared()), manual_jobs: true, ..Options::default() };
        let db = Db::open("db", options).unwrap();
        let family = db.default_family();
        let version = || family.inner().view.load().version.clone();
        for n in 0..3u8 {
            (0..100).for_each(|key| _ = family.put([key, n], b"early").unwrap());
            family.flush().unwrap();
        }
        let since = db.latest_sequence();
        let range = (CompactionRange::default(), since);
        db.inner().catalog.lock().ask_for(family.inner(), range, Default::default()).unwrap();
        (0..100).for_each(|key| _ = family.put([key, 3], b"late").unwrap());
        family.flush().unwrap();
        assert_eq!(version().levels[0].len(), 4, "merged in one go");
        while !version().levels[0].is_empty() {
            assert!(db.run_one_job().unwrap());
        }
        let oldest = version().files().map(|(_, f)| f.min_seq).min().unwrap();
        assert!(oldest <= since, "{oldest} of {since}");
    }

    /// Above the deepest level, nothing that is hidden gets lost: the next compaction of the same keys finds it.
    #[test]
    fn outputs_hide_what_the_inputs_hid_and_the_job_did_not_find() {
        for (drop_tombstones, uncovered, want) in
            [(false, 0, [100, 900]), (false, 990, [1, 9]), (false, 5000, [0, 0]), (true, 10, [0, 0])]
        {
            let job = Job {
                kind: JobKind::FullPreemptive,
                inputs: [(0, 700), (0, 200), (1, 100)].map(|(l, h)| (l, Arc::new(file(9, 1, h)))).into(),
                output_level: 1,
                output_run: 1,
                drop_tombstones,
                boundaries: Vec::new(),
                relocate_vlogs: BTreeSet::new(),
                open_ends: BTreeSet::new(),
            };
            let mut output = MergeOutput::default();
            output.counters.uncovered = uncovered;
            output.added = vec![(1, file(1, 10, 0)), (1, file(2, 90, 0))];
            hand_hidden_on(&job, &mut output);
            let hides: Vec<u64> = output.added.iter().map(|(_, f)| f.hides).collect();
            assert_eq!(hides, want, "{drop_tombstones} {uncovered}");
        }
        let mut version = Version::default();
        for (level, f) in [(0, file(1, 1, 5)), (1, file(2, 1, 7)), (2, file(3, 1, 100))] {
            version.add(&kingtide_base::KeyOrder::Bytewise, level, Arc::new(f));
        }
        assert_eq!(
            (version.hidden_bytes(), version.counted_hidden_bytes()),
            (12, 9),
            "nothing lies below the deepest level"
        );
    }
}
