//! Operations on the database as a whole: families, options, waiting for background work.

use crate::engine::DbInner;
use crate::failures::Failures;
use crate::family::{Family, View};
use crate::memtable::FamilyMemtable;
use crate::options::check_memory_limit;
use kingtide_base::events::{Event, Events};
use kingtide_base::options::{DbOptions, Durability, FamilyOptions};
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, ErrorKind, FamilyId, KeyOrder, Result, rare};
use kingtide_versions::{CompactionRange, DEFAULT_FAMILY, Edit, LogBegun, Version};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Background errors in a row after which a waiting caller gets the error, although the job will be tried again.
const PATIENCE: u64 = 3;

/// Returns the failures of one kind of background job of a family.
type Awaited = fn(&Family) -> &Failures;
const FLUSHES: Awaited = |family| &family.flush_failures;
const COMPACTIONS: Awaited = |family| &family.dead_space.compactions;

impl DbInner {
    /// Creates a family: first in the manifest, then for writers.
    pub fn create_family(&self, name: &str, options: FamilyOptions, order: KeyOrder) -> Result<Arc<Family>> {
        self.check_writable()?;
        let mut catalog = self.catalog.lock();
        if catalog.by_name(name).is_some() {
            return Err(Error::new(ErrorKind::Exists, format!("column family '{name}' exists already")));
        }
        let id = catalog.versions.next_family;
        let stored = options.entries().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let (name_of, order_of) = (name.to_owned(), order.name().to_owned());
        let create = Edit::CreateFamily { id, name: name_of, order: order_of, options: stored, direct_from: None };
        // The log may hold operations on a dropped family whose id this one has: a manifest that was rewritten since
        // knows nothing of that family.
        let flushed = self.snapshots.visible();
        let begin = Edit::Flushed { family: id, seq: flushed };
        catalog.versions.write(vec![create, begin], Some(&order), &self.next_file_id)?;
        let mut c = self.commit.lock();
        let active = FamilyMemtable::new(order.clone(), &self.arenas, c.last_seq + 1);
        let view = View::new(order.clone(), active, Vec::new(), Arc::new(Version::default()), &self.tables, None);
        let family = Arc::new(Family::new(id, name.to_owned(), order, options, self.read_context(), view));
        // As the manifest has it, though others may have committed since.
        family.flushed_seq.store(flushed, Ordering::Relaxed);
        catalog.families.insert(id, family.clone());
        c.families.push(family.clone());
        drop(c);
        self.fit_memtable_limit(&catalog);
        drop(catalog);
        self.stats.events.tell(|| Event::FamilyCreated(family.name()));
        self.stats.deliver_events();
        Ok(family)
    }

    /// Drops a family. Writers are refused before the manifest forgets it: whatever was acknowledged before is either
    /// still there (the drop failed) or dropped on purpose.
    pub fn drop_family(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        if name == DEFAULT_FAMILY {
            return Err(Error::invalid("the default column family cannot be dropped"));
        }
        let mut catalog = self.catalog.lock();
        let Some(family) = catalog.by_name(name).cloned() else {
            return Err(Error::new(ErrorKind::NotFound, format!("no column family '{name}'")));
        };
        {
            let mut commits = self.commit.lock();
            family.mark_dropped();
            commits.last_drop = commits.last_seq + 1;
        }
        let log_start = self.log_needed(&family, |_| None);
        // Value logs that only its memtables refer to go with them, and no edit named them. The log still does, and so may a
        // reader of the directory: their numbers must not become those of other files.
        let next_file = Edit::NextFileId(self.next_file_id.load(Ordering::Relaxed));
        let edits = vec![Edit::DropFamily { id: family.id() }, Edit::LogStart(log_start), next_file];
        let mut retired = catalog.versions.write(edits, None, &self.next_file_id).map_err(|e| {
            // In doubt: the family stays closed for writers, and the drop may be tried again. Until then it is flushed
            // and merged like any other and keeps its part of the log, because the next open may find it undropped.
            e.context(format!("dropping column family '{name}'"))
        })?;
        retired.append(&mut catalog.versions.take_doubtful());
        catalog.families.remove(&family.id());
        if family.oldest_unflushed().is_some() {
            rare!("family-dropped-with-data");
        }
        let hook = {
            let mut commit = self.commit.lock();
            family.mark_gone();
            commit.families.retain(|f| f.id() != family.id());
            self.hooks.set(family.id(), None) // while there is a hook, no commit takes the fast path
        };
        catalog.manual.retain(|m| m.family != family.id());
        family.update_view(|v| {
            v.memtables().for_each(|m| {
                m.retire();
                m.direct().give_up();
            });
            let active = FamilyMemtable::new(v.order.clone(), &self.arenas, v.active.first_seq());
            View::new(v.order.clone(), active, Vec::new(), Arc::new(Version::default()), &self.tables, None)
        });
        self.fit_memtable_limit(&catalog);
        self.measure_debt(&catalog);
        drop(catalog);
        drop(hook); // dropping it may run code of the caller, so no lock is held here
        family.direct.clear();
        self.delete_retired(retired);
        // The family is gone whatever becomes of its log, which the next flush gives back if this does not.
        let _ = self.release_log();
        self.stats.events.tell(|| Event::FamilyDropped(name.to_owned()));
        self.stats.deliver_events();
        Ok(())
    }

    /// Gives a family another name.
    pub fn rename_family(&self, old: &str, new: &str) -> Result<()> {
        self.check_writable()?;
        if old == DEFAULT_FAMILY {
            return Err(Error::invalid("the default column family cannot be renamed"));
        }
        let mut catalog = self.catalog.lock();
        let Some(family) = catalog.by_name(old).cloned() else {
            return Err(Error::new(ErrorKind::NotFound, format!("no column family '{old}'")));
        };
        if catalog.by_name(new).is_some() {
            return Err(Error::new(ErrorKind::Exists, format!("column family '{new}' exists already")));
        }
        catalog.write(&[Edit::RenameFamily { id: family.id(), name: new.to_owned() }], &self.next_file_id)?;
        family.rename(new);
        Ok(())
    }

    /// Changes a database option. Not stored, but for `change_retention`: database options are given at each open. One that
    /// cannot be stored does not change.
    pub fn set_option(&self, name: &str, value: &str) -> Result<()> {
        self.check_open()?;
        let setting = self.setting.lock();
        let change_retention = self.options.read().change_retention;
        let next = self.change_options(name, value)?;
        let before = self.durability();
        self.set_durability(next.durability);
        if let Durability::Interval(every) = before
            && next.durability != before
        {
            self.ask_for_sync_within(every); // what was committed so far was promised that
        }
        self.stats.time_operations(next.histograms, next.slow_operation_threshold);
        self.stats.events.set_level(next.log_level);
        self.txns.set_timeout(next.transaction_timeout);
        self.txns.memory.set_limit(next.transaction_memory);
        self.max_wal_size.store(next.max_wal_size, Ordering::Relaxed);
        if self.read_only.is_none() {
            self.tables.set_max_open_files(next.max_open_files); // a reader holds all files open
        }
        self.accountant.set(next.memory_limit, next.block_cache_size);
        self.fit_memtable_limit(&self.catalog.lock());
        self.limiter.set_rate(next.rate_limit);
        if let Err(e) = self.store_change_retention() {
            self.change_options("change_retention", &change_retention.to_string())?;
            return Err(e);
        }
        drop(setting); // before listeners are called
        self.stats.events.tell(|| Event::OptionChanged(name.to_owned(), value.to_owned()));
        self.stats.deliver_events();
        // Views may hold tables that do not fit into the limit any more.
        self.jobs.wake();
        self.release_log() // some may be kept no more
    }

    /// Changes the option where all read it. Returns the options of now.
    fn change_options(&self, name: &str, value: &str) -> Result<DbOptions> {
        let mut c = self.commit.lock();
        let mut options = self.options.write();
        let mut next = options.clone();
        next.set(name, value)?;
        require_live(name, &DbOptions::rows())?;
        check_memory_limit(&next, &self.family_defaults)?;
        *options = next.clone();
        c.holds_values = next.change_retention > 0;
        Ok(next)
    }

    /// Stores the option `change_retention`, which tools that open the database later keep to. Before the log was begun there
    /// is nothing to keep, and the first commit stores it.
    fn store_change_retention(&self) -> Result<()> {
        let mut catalog = self.catalog.lock(); // before the option is read, as where the log is begun
        let change_retention = Some(self.options.read().change_retention);
        let stored = catalog.versions.log_begun.filter(|_| self.log_begun.load(Ordering::Acquire));
        let Some(begun) = stored.filter(|begun| begun.change_retention != change_retention) else { return Ok(()) };
        let begun = LogBegun { change_retention, ..begun };
        catalog.write(&[Edit::LogBegun(begun)], &self.next_file_id)
    }

    /// Changes a family's option and stores it.
    pub fn set_family_option(&self, family: &Arc<Family>, name: &str, value: &str) -> Result<()> {
        self.check_writable()?;
        let mut catalog = self.catalog.lock(); // before the options are read, so that no other change is lost
        family.check_alive()?;
        let mut next = (*family.options()).clone();
        next.set(name, value)?;
        require_live(name, &FamilyOptions::rows())?;
        let stored = next.entries().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        catalog.write(&[Edit::SetOptions { id: family.id(), options: stored }], &self.next_file_id)?;
        family.set_options(next);
        // The limits that slow or hold writers may have changed, and must take effect before the next flush.
        self.measure_debt(&catalog);
        drop(catalog);
        self.jobs.wake();
        Ok(())
    }

    /// Stores the default family's options, which an open gave. A full disk is no reason not to open: the next manifest
    /// that is written as a whole has them, or else the next open.
    pub fn store_default_options(&self, default: &Family) -> Result<()> {
        let mut catalog = self.catalog.lock();
        let stored = default.options().entries().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        match catalog.write(&[Edit::SetOptions { id: default.id(), options: stored }], &self.next_file_id) {
            Err(e) if e.kind() == ErrorKind::NoSpace => Ok(()),
            done => done,
        }
    }

    /// Flushes every family. If nothing was written meanwhile, the log gives back its space.
    pub fn flush_all(self: &Arc<Self>) -> Result<()> {
        self.check_writable()?;
        let families: Vec<Arc<Family>> = self.catalog.lock().families.values().cloned().collect();
        self.flush_families(&families)?;
        self.shrink_unneeded_log();
        Ok(())
    }

    /// Gives back the log's space if everything that was logged is in tables.
    fn shrink_unneeded_log(&self) {
        if self.log_needed_by_all() > self.snapshots.visible() {
            self.shrink_log_if_possible();
        }
    }

    /// Gives back the log's space that memtables do not need. A failure loses nothing: the log shrinks after the next second
    /// without writes, or at the next open. A panic, which a file system of the caller's may raise, halts the database, as in
    /// background work, and does not reach the caller.
    fn shrink_log_if_possible(&self) {
        let _ = self.guarded(|| self.shrink_log());
    }

    /// Freezes the families' memtables and waits until they are tables. It ends even if writes go on meanwhile.
    pub fn flush_families(self: &Arc<Self>, families: &[Arc<Family>]) -> Result<()> {
        self.check_writable()?;
        refuse_in_listener()?;
        let last = self.snapshots.visible();
        let mut c = self.commit.lock();
        for f in families {
            if !f.is_dropped() {
                self.seal_memtable(&mut c, f);
            }
        }
        drop(c);
        self.jobs.wake();
        let is_flushed =
            |f: &Arc<Family>| f.view.load().immutable.last().is_none_or(|oldest| oldest.first_seq() > last);
        let flushed = || families.iter().all(|f| f.is_dropped() || is_flushed(f));
        self.wait_until(Some(families), &[FLUSHES], flushed)
    }

    /// Waits until nothing is sealed, no merge is due, and no job runs. If nothing was written meanwhile, the log gives back
    /// what only a writer at full speed needs, as it does after a second without writes.
    pub fn wait_until_quiet(self: &Arc<Self>) -> Result<()> {
        self.check_open()?;
        refuse_in_listener()?;
        if self.read_only.is_some() {
            return Ok(());
        }
        let written = self.snapshots.visible();
        let is_quiet = || self.jobs.is_quiet() && !self.has_immutable_memtables() && !self.merge_due();
        let all_merges = AwaitAllMerges::begin(self);
        self.jobs.wake();
        self.wait_until(None, &[FLUSHES, COMPACTIONS], is_quiet)?;
        drop(all_merges);
        if self.snapshots.visible() == written {
            self.shrink_log_if_possible();
        }
        Ok(())
    }

    /// Compacts what a range of a family holds now into the deepest level, gives back the space of what is dead in it, and waits
    /// for it. It ends even if writes go on meanwhile.
    pub fn compact_range(self: &Arc<Self>, family: &Arc<Family>, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Result<()> {
        family.check_alive()?;
        refuse_in_listener()?;
        self.flush_families(std::slice::from_ref(family))?;
        let range = CompactionRange { lo: lo.map(Into::into), hi: hi.map(Into::into) };
        let since = self.snapshots.visible();
        // What the first compaction shadows is dead only after it.
        for round in 0..2 {
            let rewrite = self.to_rewrite(family, &range)?;
            if round > 0 && rewrite.files.is_empty() {
                break;
            }
            let Some(ticket) = self.catalog.lock().ask_for(family, (range.clone(), since), rewrite) else {
                return family.check_alive(); // dropped meanwhile
            };
            self.jobs.wake();
            let of_it = Some(std::slice::from_ref(family));
            let is_done = || !self.catalog.lock().manual.iter().any(|m| m.ticket == ticket);
            let waited = self.wait_until(of_it, &[COMPACTIONS], is_done);
            if waited.is_err() {
                self.catalog.lock().manual.retain(|m| m.ticket != ticket);
            }
            waited?;
        }
        self.shrink_unneeded_log();
        Ok(())
    }

    /// Waits for a state that the `awaited` kinds of jobs bring about in `families`, or in all families if `None`. Without background
    /// threads, the jobs run on this thread. Returns the error of such a job of one of these families, or of a job that belongs to no
    /// family, if it keeps failing.
    fn wait_until(
        self: &Arc<Self>,
        families: Option<&[Arc<Family>]>,
        awaited: &[Awaited],
        done: impl Fn() -> bool,
    ) -> Result<()> {
        let watched = || match families {
            Some(families) => families.to_vec(),
            None => self.catalog.lock().families.values().cloned().collect(),
        };
        let counts = |f: &Arc<Family>| awaited.iter().map(|of| of(f).count()).collect::<Vec<_>>();
        let before: BTreeMap<FamilyId, Vec<u64>> = watched().iter().map(|f| (f.id(), counts(f))).collect();
        let others_before = self.failures.count();
        let keeps_failing = || {
            let of_it = |f: &Arc<Family>| {
                // A family that was created meanwhile had no failures before.
                let before = |i| before.get(&f.id()).map_or(0, |counts| counts[i]);
                awaited.iter().enumerate().find_map(|(i, of)| of(f).since(before(i), PATIENCE))
            };
            watched().iter().find_map(of_it).or_else(|| self.failures.since(others_before, PATIENCE))
        };
        loop {
            let ended = self.jobs.ended();
            if done() {
                self.stats.deliver_events();
                return Ok(());
            }
            self.check_writable()?;
            if let Some(e) = keeps_failing() {
                return Err(e);
            }
            if !self.jobs.help() {
                self.jobs.wait_for_progress_since(ended);
            }
        }
    }
}

/// Keeps compactions from waiting for pauses of the writers until it is dropped, which is in any case: a key order of the caller's may panic.
struct AwaitAllMerges<'a>(&'a DbInner);

impl AwaitAllMerges<'_> {
    fn begin(db: &DbInner) -> AwaitAllMerges<'_> {
        db.catalog.lock().await_all_merges += 1;
        AwaitAllMerges(db)
    }
}

impl Drop for AwaitAllMerges<'_> {
    fn drop(&mut self) {
        self.0.catalog.lock().await_all_merges -= 1;
    }
}

/// A listener may be called by the only thread that flushes or compacts, within the job that a caller would wait for.
fn refuse_in_listener() -> Result<()> {
    match Events::is_inside() {
        true => Err(Error::invalid(
            "an event listener cannot wait for flushes or compactions: it is called by the threads that run them",
        )),
        false => Ok(()),
    }
}

fn require_live(name: &str, rows: &[kingtide_base::options::OptionRow]) -> Result<()> {
    match rows.iter().find(|r| r.name == name) {
        Some(r) if !r.live => Err(Error::invalid(format!(
            "option '{name}' cannot be changed while the database is open; pass it in the options of the next open"
        ))),
        _ => Ok(()),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::{CommittedWrites, CustomOrder, Db, Options};
    use kingtide_base::KeyOrder;
    use kingtide_base::sync::atomic::{AtomicBool, Ordering};
    use kingtide_vfs::MemFs;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Arc, Barrier};

    fn open() -> Db {
        Db::open("db", Options { fs: Some(MemFs::shared()), manual_jobs: true, ..Options::default() }).unwrap()
    }

    /// Whichever of two concurrent changes is the later one, the values in effect are those that the options show.
    #[test]
    fn options_that_are_changed_at_once_are_in_effect() {
        const ROUNDS: u64 = 3000;
        let db = open();
        let ready = Barrier::new(2);
        let set = |name: &str, check: bool| {
            for round in 0..ROUNDS {
                ready.wait();
                db.set_option(name, &format!("{}M", 64 + round % 7)).unwrap();
                ready.wait();
                if check {
                    let inner = db.inner();
                    let says = inner.options.read().clone();
                    assert_eq!(inner.max_wal_size.load(Ordering::Relaxed), says.max_wal_size, "round {round}");
                    assert_eq!(inner.txns.memory.limit(), says.transaction_memory, "round {round}");
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| set("max_wal_size", false));
            set("transaction_memory", true);
        });
    }

    /// Views keep no more tables open than `max_open_files` allows after it was lowered, and none once there are too many files for it.
    #[test]
    fn views_keep_no_more_files_open_than_may_be() {
        let db = open();
        let families: Vec<_> =
            (0..10).map(|i| db.create_family(&format!("f{i}"), Default::default()).unwrap()).collect();
        let fill = |family: &crate::ColumnFamily| {
            family.put(b"key", b"value").unwrap();
            family.flush().unwrap();
        };
        let read = || families.iter().for_each(|f| assert!(f.get(b"key").unwrap().is_some()));
        let kept = || {
            let views = families.iter().map(|f| f.inner().view.load_full());
            views
                .map(|v| v.runs.iter().flat_map(|r| r.files.iter()).filter(|s| s.resident().is_some()).count())
                .sum::<usize>()
        };
        let jobs = || while db.run_one_job().unwrap() {};
        (0..2).for_each(|_| families.iter().for_each(fill));
        read();
        assert!(kept() >= 10);
        db.set_option("max_open_files", "16").unwrap();
        jobs();
        read();
        assert!(kept() <= 16, "{} of 20 files", kept());
        db.set_option("max_open_files", "64").unwrap();
        read();
        assert!(kept() >= 10);
        for _ in 0..60 {
            fill(&families[0]); // nothing else changes the others' views
        }
        assert_eq!(kept(), 0, "there are more than 64 now");
    }

    /// By bytes, and on demand a panic.
    struct Panics(AtomicBool);

    impl CustomOrder for Panics {
        fn name(&self) -> &str {
            "panics"
        }

        fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
            if self.0.load(Ordering::Relaxed) {
                std::panic::resume_unwind(Box::new("injected"));
            }
            a.cmp(b)
        }
    }

    /// Compactions would otherwise run at once for good, and not in pauses of the writers.
    #[test]
    fn a_wait_for_background_work_that_panics_is_over() {
        let order = Arc::new(Panics(AtomicBool::new(false)));
        let options = Options::new().fs(MemFs::shared()).manual_jobs(true).custom_order(order.clone());
        let db = Db::open("db", options).unwrap();
        let family = db.create_family_ordered("f", Default::default(), KeyOrder::Custom(order.clone())).unwrap();
        for n in 0..2u8 {
            (0..9u8).for_each(|key| _ = family.put([key], [n]).unwrap());
            family.flush().unwrap();
        }
        order.0.store(true, Ordering::Relaxed);
        assert!(catch_unwind(AssertUnwindSafe(|| db.wait_for_background())).is_err());
        order.0.store(false, Ordering::Relaxed);
        assert_eq!(db.inner().catalog.lock().await_all_merges, 0);
        db.wait_for_background().unwrap();
    }

    /// The hook of a dropped family is neither called nor kept alive.
    #[test]
    fn a_hook_goes_with_its_family() {
        let db = open();
        let family = db.create_family("f", Default::default()).unwrap();
        let kept = Arc::new(());
        let of_hook = kept.clone();
        let hook = move |_: &CommittedWrites<'_>| _ = &of_hook;
        family.set_commit_hook(Some(Arc::new(hook))).unwrap();
        assert!(db.inner().hooks.any() && Arc::strong_count(&kept) == 2);
        db.drop_family("f").unwrap();
        assert!(!db.inner().hooks.any() && Arc::strong_count(&kept) == 1);
        let refused = family.set_commit_hook(Some(Arc::new(|_: &CommittedWrites<'_>| {})));
        assert!(refused.unwrap_err().kind() == kingtide_base::ErrorKind::Closed && !db.inner().hooks.any());
    }
}
