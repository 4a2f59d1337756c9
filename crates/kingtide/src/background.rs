//! Background work: what there is to do, most urgent first. The pool of threads ([`crate::jobs`]) asks here.

use crate::engine::{AskedSync, DbInner};
use crate::jobs::{Lane, Outcome, Work};
use kingtide_base::events::Event;
use kingtide_base::options::Durability;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{ErrorKind, FamilyId, Result, rare};
use std::sync::Arc;
use std::time::Duration;

/// How often freed memory is given back to the system under a memory limit: merges free and allocate as much as a small limit is in a
/// tenth of a second.
const GIVE_BACK: Duration = Duration::from_millis(20);
/// How often the timeouts of tasks that wait for locks are looked at, while any do.
#[cfg(feature = "tokio")]
const TEND_LOCKS: Duration = Duration::from_millis(50);

impl Work for DbInner {
    fn run_most_urgent(self: Arc<Self>, lane: Lane) -> Outcome {
        // What follows a job runs the caller's code too, a file system or a listener, which must not end this thread.
        self.guarded(|| Ok(self.run_and_record(lane))).unwrap_or_else(Outcome::Failed)
    }

    fn compaction_due(&self, of: &[FamilyId]) -> bool {
        self.merge_due_of(|family| of.contains(&family))
    }

    /// How often the log is synced in the background, freed memory given back, and the time kept for tasks.
    fn longest_pause(&self) -> Option<Duration> {
        let give_back = self.accountant.is_limited().then_some(GIVE_BACK);
        let asked = self.asked_sync().map(|asked| asked.left(self.clock.monotonic_ns()));
        self.sync_interval().into_iter().chain(asked).chain(give_back).chain(self.pause_of_tasks()).min()
    }
}

/// Tasks that wait for locks have no thread that looks at the clock.
#[cfg(feature = "tokio")]
impl DbInner {
    fn keep_time_for_tasks(&self, lane: Lane) {
        if matches!(lane, Lane::Log | Lane::Time | Lane::All) {
            self.wake_tasks();
            self.txns.locks.tend(&self.txns);
        }
    }

    fn pause_of_tasks(&self) -> Option<Duration> {
        self.txns.locks.must_tend().then_some(TEND_LOCKS)
    }
}

#[cfg(not(feature = "tokio"))]
impl DbInner {
    fn keep_time_for_tasks(&self, _: Lane) {}

    fn pause_of_tasks(&self) -> Option<Duration> {
        None
    }
}

impl DbInner {
    /// Runs the most urgent job and records how it ended.
    fn run_and_record(self: &Arc<Self>, lane: Lane) -> Outcome {
        self.keep_time_for_tasks(lane); // also where nothing is written any more
        if self.jobs.is_stopped() {
            return Outcome::Idle; // a woken task dropped the last handle, and another process may have opened the directory
        }
        if self.read_only.is_some() || self.halted.load(Ordering::Acquire) {
            return Outcome::Idle;
        }
        let result = self.guarded(|| self.try_urgent(lane));
        if let Err(e) = &result
            && e.kind() != ErrorKind::Cancelled
        {
            self.stats.events.tell(|| Event::BackgroundError(e.to_string()));
        }
        self.stats.deliver_events();
        match result {
            Ok(true) => {
                let mut background_error = self.background_error.lock();
                if !self.halted.load(Ordering::Acquire) {
                    *background_error = None; // another thread's panic stays
                }
                Outcome::Ran
            }
            Ok(false) => Outcome::Idle,
            Err(e) if e.kind() == ErrorKind::Cancelled => {
                rare!("compaction-cancelled");
                Outcome::Idle
            }
            Err(e) if self.halted.load(Ordering::Acquire) => Outcome::Failed(e),
            Err(e) => {
                rare!("background-job-failed");
                self.note_background_error(&e);
                Outcome::Failed(e)
            }
        }
    }

    fn try_urgent(self: &Arc<Self>, lane: Lane) -> Result<bool> {
        match lane {
            Lane::Log => self.serve_log(),
            Lane::Time => self.keep_time(),
            Lane::Flushes | Lane::Merges => self.try_tables(lane),
            // A failure of the log's work keeps nothing else from its turn, as with threads: a segment that is made ahead only saves
            // time, and where there is no space for it, a flush may free some.
            Lane::All => match self.serve_log() {
                Ok(true) => Ok(true),
                log => match self.try_tables(lane) {
                    Ok(false) => self.failures.note(log),
                    tried => tried,
                },
            },
        }
    }

    /// Jobs that write or remove tables.
    fn try_tables(self: &Arc<Self>, lane: Lane) -> Result<bool> {
        let merges = matches!(lane, Lane::Merges | Lane::All);
        // While there is no space, no compaction has its usual turn: those that wait for one get this error.
        let reclaim = || self.reclaim_some().or_else(|e| self.failures.note(Err(e)));
        let merge = || -> Result<bool> { Ok(merges && (reclaim()? || self.or_collect(self.merge_one())?)) };
        match self.serve_writers() {
            Ok(true) => Ok(true),
            Ok(false) => merge(),
            // What a full disk has left is for flushes. Files that leave the tree unread take none of it, and may make room for them. If even
            // the ballast was too little, a compaction that needs less may free enough.
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                match merges && (reclaim()? || self.done_or_reported(self.merge_for_space())) {
                    true => Ok(true),
                    false => Err(e),
                }
            }
            Err(e) => {
                self.done_or_reported(merge()); // what fails for one family, again and again, does not keep others from their merges
                Err(e)
            }
        }
    }

    /// What writers wait for: room in memory, and a log that does not grow without bounds.
    fn serve_writers(self: &Arc<Self>) -> Result<bool> {
        self.txns.sweep();
        if self.jobs.is_stopped() {
            return Ok(false); // as above
        }
        if !self.closed.load(Ordering::Acquire) {
            self.keep_reserve();
            self.publish_stats();
            if self.reserve.is_spent() {
                let _ = self.wal.trim(0); // a flush may have freed some segments since there was no space
                if self.seal_for_space() {
                    return Ok(true);
                }
            }
        }
        if self.balance_memory() {
            return Ok(true);
        }
        match self.flush_one() {
            Ok(false) => {}
            Err(e) if e.kind() == ErrorKind::NoSpace => return self.failures.note(Err(e)), // merges wait for it
            flushed => return flushed,
        }
        if self.tables.empty_trash() > 0 || self.failures.note(self.keep_log_short())? {
            return Ok(true);
        }
        if !self.closed.load(Ordering::Acquire) && self.wal.came_to_rest() {
            let _ = self.shrink_log(); // there is another rest after the next writes
            return Ok(true);
        }
        Ok(false)
    }

    /// The sync comes first: a writer may use spares as fast as they are made, and making one may fail for want of space.
    /// Memory for the memtable takes less time than a segment, and value logs come last, as a writer without one makes its own.
    fn serve_log(&self) -> Result<bool> {
        self.accountant.give_back_free_memory();
        let synced = self.sync_on_interval()?;
        let prepared = self.arenas.prepare_spares();
        Ok(self.prepare_log()? || self.prepare_value_logs() || synced || prepared)
    }

    /// The part of [`DbInner::serve_log`] that is due at a certain time.
    fn keep_time(&self) -> Result<bool> {
        self.accountant.give_back_free_memory();
        self.sync_on_interval()
    }

    /// Makes spare log segments if there are too few, and the names of all durable.
    fn prepare_log(&self) -> Result<bool> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(false);
        }
        if !self.wal.needs_spare() || self.wal.poison().is_some() {
            return Ok(false);
        }
        if self.reserve.is_spent() {
            // What a full disk has left is for what frees more of it.
            return self.wal.sync_names().map(|()| false);
        }
        self.wal.prepare_spare().map(|()| true)
    }

    /// Whether the log cannot be synced, because it or all background work has stopped, or the database is open for reading only.
    fn log_is_stopped(&self) -> bool {
        self.halted.load(Ordering::Acquire) || self.read_only.is_some() || self.wal.poison().is_some()
    }

    /// How often the log is synced in the background. `None` once it cannot be synced.
    fn sync_interval(&self) -> Option<Duration> {
        match self.durability() {
            Durability::Interval(every) => (!self.log_is_stopped()).then_some(every),
            _ => None,
        }
    }

    /// The sync that commits asked for. `None` once the log cannot be synced.
    fn asked_sync(&self) -> Option<AskedSync> {
        (*self.interval_syncs.asked.lock()).filter(|_| !self.log_is_stopped())
    }

    /// Syncs the log when that is due, because of the option or because a commit asked for it.
    fn sync_on_interval(&self) -> Result<bool> {
        // Both: either may be due at any time.
        if self.takes_interval_sync() | self.takes_asked_sync() {
            self.wal.sync_all()?;
        }
        Ok(false)
    }

    /// With `Interval` durability: whether a sync is due, which the caller then makes.
    fn takes_interval_sync(&self) -> bool {
        let Some(every) = self.sync_interval() else { return false };
        let now = self.clock.monotonic_ns();
        let last = self.interval_syncs.last.load(Ordering::Relaxed);
        // A clock that went back must not put the sync off until it is where it was.
        if now.checked_sub(last).is_some_and(|waited| waited < every.as_nanos() as u64) {
            return false;
        }
        // One thread wins the turn.
        self.interval_syncs.last.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The same for the sync that commits asked for. What they appended comes before that sync, and a commit that comes too late for it asks
    /// again.
    fn takes_asked_sync(&self) -> bool {
        let is_due = self.asked_sync().is_some_and(|asked| asked.left(self.clock.monotonic_ns()).is_zero());
        is_due && self.interval_syncs.asked.lock().take().is_some()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::engine::LEAST_INTERVAL;
    use crate::{Db, Isolation, Options, TransactionOptions, WriteBatch, WriteOptions};
    use kingtide_base::clock::ManualClock;
    use kingtide_base::stats::Stat;
    use kingtide_vfs::{Fault, FaultFs, MemFs, Op, Rule};

    #[test]
    fn a_sync_on_interval_does_not_wait_for_the_pause_after_a_failed_job() {
        let (clock, every) = (ManualClock::at_unix_ms(1), Duration::from_millis(20));
        let mut options = Options::new().fs(MemFs::shared()).manual_jobs(true).clock(clock.clone());
        options.db.durability = Durability::Interval(every);
        let db = Db::open("db", options).unwrap();
        let inner = db.inner();
        db.put("key", "value").unwrap();
        assert_ne!(inner.wal.synced(), inner.wal.appended());
        clock.advance(every);
        assert!(matches!(inner.clone().run_most_urgent(Lane::Time), Outcome::Idle));
        assert_eq!(inner.wal.synced(), inner.wal.appended());
    }

    fn open() -> (Db, Arc<ManualClock>) {
        let clock = ManualClock::at_unix_ms(1);
        (Db::open("db", Options::new().fs(MemFs::shared()).manual_jobs(true).clock(clock.clone())).unwrap(), clock)
    }

    fn put_within(db: &Db, key: &str, time: Duration) {
        let mut batch = WriteBatch::new();
        batch.put(db.default_family(), key.as_bytes(), b"value").unwrap();
        db.write_with(batch, &WriteOptions::new().durability(Durability::Interval(time))).unwrap();
    }

    /// Lets the thread of the log keep the time. Returns whether all of the log is synced then.
    fn keeps_time(db: &Db) -> bool {
        assert!(matches!(db.inner().clone().run_most_urgent(Lane::Time), Outcome::Idle));
        db.inner().wal.synced() == db.inner().wal.appended()
    }

    /// The option of the database is `Process`.
    #[test]
    fn a_commit_with_an_interval_of_its_own_is_synced_within_that() {
        let (db, clock) = open();
        let (inner, ms) = (db.inner(), Duration::from_millis);
        db.put("before", "value").unwrap();
        assert!(!keeps_time(&db) && inner.longest_pause().is_none());
        put_within(&db, "long", ms(500));
        put_within(&db, "short", ms(20));
        put_within(&db, "longer", ms(100));
        assert_eq!(inner.longest_pause(), Some(ms(20)));
        clock.advance(ms(19));
        assert!(!keeps_time(&db));
        assert_eq!(inner.longest_pause(), Some(ms(1)));
        clock.advance(ms(1));
        assert!(keeps_time(&db));
        assert_eq!(inner.longest_pause(), None, "that was for all of them");
        put_within(&db, "next", Duration::ZERO);
        assert_eq!(inner.longest_pause(), Some(LEAST_INTERVAL));
        let transaction = TransactionOptions::new(Isolation::Snapshot).durability(Durability::Interval(ms(5)));
        let mut transaction = db.begin_with(transaction).unwrap();
        clock.advance(ms(1));
        assert!(keeps_time(&db));
        transaction.put(db.default_family(), b"key", b"value").unwrap();
        drop(transaction.commit_ordered().unwrap()); // whether or not it is waited for
        assert_eq!(inner.longest_pause(), Some(ms(5)));
    }

    /// A commit was promised what the option was at that time.
    #[test]
    fn what_was_committed_before_the_option_changed_is_synced_in_time() {
        let (db, clock) = open();
        let ms = Duration::from_millis;
        for (next, every) in [("process", 20), ("interval:60000", 50)] {
            db.set_option("durability", &format!("interval:{every}")).unwrap();
            db.put("before", "value").unwrap();
            clock.advance(ms(every));
            assert!(keeps_time(&db));
            db.put("key", "value").unwrap();
            db.set_option("durability", next).unwrap();
            assert!(!keeps_time(&db));
            clock.advance(ms(every));
            assert!(keeps_time(&db), "{next}");
        }
    }

    /// Nothing is left to do for the thread of the log then, which would wake up a thousand times a second for it.
    #[test]
    fn a_log_that_is_stopped_is_not_synced_on_interval() {
        for halts in [false, true] {
            let faults = FaultFs::new(MemFs::shared(), 1);
            let (clock, every) = (ManualClock::at_unix_ms(1), Duration::from_millis(1));
            let mut options = Options::new().fs(Arc::new(faults.clone())).manual_jobs(true).clock(clock.clone());
            options.db.durability = Durability::Interval(every);
            let db = Db::open("db", options).unwrap();
            let inner = db.inner();
            db.put("key", "value").unwrap();
            db.set_option("durability", "interval:2").unwrap(); // which leaves a sync that was asked for
            assert_eq!(inner.longest_pause(), Some(every));
            if halts {
                let panic = || -> Result<()> { std::panic::resume_unwind(Box::new("injected")) };
                inner.guarded(panic).unwrap_err();
            } else {
                faults.add(Rule::new(Op::Sync, Fault::Eio).path(".wal"));
                clock.advance(every);
                assert!(matches!(inner.clone().run_most_urgent(Lane::Log), Outcome::Failed(_)));
            }
            let failures = inner.stats.get(Stat::BackgroundErrors);
            for lane in [Lane::Time, Lane::Log, Lane::Log] {
                clock.advance(every);
                assert!(!matches!(inner.clone().run_most_urgent(lane), Outcome::Failed(_)));
            }
            assert_eq!((inner.longest_pause(), inner.stats.get(Stat::BackgroundErrors)), (None, failures));
        }
    }
}
