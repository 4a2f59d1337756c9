//! Background work: a pool of threads that pull jobs. In simulation there are no threads and the caller runs jobs one
//! by one.
//!
//! What there is to do is read from the database's state each time a thread is free, most urgent first, so no queue can
//! disagree with the state:
//!
//! 1. timeouts of asynchronous tasks that wait for locks; with a memory limit, freed memory that the allocator keeps is given back; a due log sync
//!    (`Interval` durability, of the database or of a commit);
//! 2. what writers need next, so that they get it by a swap: chunks of memory for memtables, log segments, value logs, and
//!    the names of those files;
//! 3. a flush, oldest memtable of a family first;
//! 4. deletion of files that nothing refers to any more, and recycling of log segments;
//! 5. what keeps the log short although transactions are in doubt;
//! 6. the log's space that only a writer at full speed needs, once nothing was logged for a while;
//! 7. files of deleted ranges that need no merge to go;
//! 8. a merge, as the planner says.
//!
//! One thread does nothing but the first two, which therefore wait for no flush or merge: a flush of 64 MiB takes as long as a
//! fast writer needs for several segments. The next one never takes a merge, because a flush must not wait for one. The
//! others take what comes, from the third on.

use crate::threads::spawn_named;
use kingtide_base::sync::atomic::{AtomicBool, Ordering};
use kingtide_base::sync::{Condvar, Mutex};
use kingtide_base::{Error, FamilyId};
use std::cell::Cell;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// How long an idle thread sleeps before it looks for time-driven work (expiry, retries after an error).
pub(crate) const IDLE: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
struct State {
    /// Grows with every wake-up; a thread that saw nothing to do sleeps only if it did not grow since.
    generation: u64,
    /// The same for the thread of the log alone, when something is due sooner than before.
    schedule: u64,
    stop: bool,
    /// Jobs running now.
    running: usize,
    /// Looks for work that have ended, whether or not there was any.
    ended: u64,
    /// Threads alive.
    threads: usize,
}

crate::threads::thread_local! {
    /// The address of the signal of the pool that this thread belongs to.
    static POOL: Cell<usize> = const { Cell::new(0) };
}

#[derive(Debug, Default)]
struct Signal {
    state: Mutex<State>,
    work: Condvar,
    /// As `work`, for the thread of the log.
    log: Condvar,
    progress: Condvar,
}

impl Signal {
    fn wake(&self) {
        self.wake_log();
        self.work.notify_all();
    }

    fn wake_log(&self) {
        self.state.lock().generation += 1;
        self.log.notify_all();
    }

    fn reschedule(&self) {
        self.state.lock().schedule += 1;
        self.log.notify_all();
    }

    /// What wakes the threads of a lane.
    fn of(&self, lane: Lane) -> &Condvar {
        if lane == Lane::Log { &self.log } else { &self.work }
    }
}

/// Counts a job or a thread out, also when it panics: `close` waits for both.
struct CountOut<'a>(&'a Signal, fn(&mut State) -> &mut usize);

impl Drop for CountOut<'_> {
    fn drop(&mut self) {
        *(self.1)(&mut self.0.state.lock()) -= 1;
        self.0.progress.notify_all();
    }
}

/// The pool.
pub(crate) struct Jobs {
    signal: Arc<Signal>,
    manual: bool,
    /// Set by the start. Weak: the work owns the pool.
    work: OnceLock<Weak<dyn Work>>,
    /// Held while a flush or merge is claimed, and to keep any from being claimed. Outermost: taken before the catalog.
    pub claims: Mutex<()>,
    /// Asks running merges to stop early. Relaxed: a hint polled at block boundaries.
    cancel: AtomicBool,
}

/// What a look for work found.
pub(crate) enum Outcome {
    /// Nothing to do now.
    Idle,
    /// A job ran.
    Ran,
    /// A job failed; it will be tried again after a pause.
    Failed(Error),
}

/// Which jobs a thread takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// What writers and time ask of the log.
    Log,
    /// All others but merges.
    Flushes,
    /// All but those of [`Lane::Log`].
    Merges,
    /// Of those of [`Lane::Log`], what is due at a certain time. The log's thread takes nothing else during the pause after a failure.
    Time,
    /// Everything: the caller is the only one.
    All,
}

/// What the pool's threads run. The pool knows nothing else of the database.
pub(crate) trait Work: Send + Sync {
    /// Runs the most urgent job of those that the lane takes.
    fn run_most_urgent(self: Arc<Self>, lane: Lane) -> Outcome;

    /// How long at most an idle thread that keeps the time may sleep.
    fn longest_pause(&self) -> Option<Duration>;

    /// Whether a compaction of one of these families runs or waits for a thread.
    fn compaction_due(&self, of: &[FamilyId]) -> bool;
}

impl Signal {
    /// Runs the most urgent job, if there is one.
    fn run(&self, work: &Arc<dyn Work>, lane: Lane) -> Outcome {
        self.state.lock().running += 1;
        let counted = CountOut(self, |s| &mut s.running);
        let outcome = work.clone().run_most_urgent(lane);
        drop(counted);
        // Not after a failure: two jobs that fail would have each other tried again and again, without a pause.
        if matches!(outcome, Outcome::Ran) {
            self.wake();
        }
        self.state.lock().ended += 1;
        self.progress.notify_all();
        outcome
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// What a thread does until it is asked to stop.
    fn run_lane(&self, work: Arc<dyn Work>, lane: Lane) {
        POOL.with(|pool| pool.set(self.address()));
        let _counted = CountOut(self, |s| &mut s.threads); // dropped last
        let work = work; // dropped before it
        let mut left = Duration::ZERO; // of the pause of the log's thread after a failure
        loop {
            let (seen, schedule) = {
                let s = self.state.lock();
                if s.stop {
                    break;
                }
                (s.generation, s.schedule)
            };
            match self.run(&work, if left.is_zero() { lane } else { Lane::Time }) {
                Outcome::Ran => continue,
                // After a failure the state still asks for the job: a pause keeps a broken disk from spinning the processor.
                Outcome::Failed(_) => left = IDLE,
                Outcome::Idle => {}
            }
            let pause = match lane {
                // This thread keeps the time of `Interval` durability, also after a failure.
                Lane::Log => work.longest_pause().map_or(IDLE, |d| d.min(IDLE)),
                _ => IDLE,
            };
            let mut s = self.state.lock();
            let may_sleep = |s: &State| s.generation == seen && (lane != Lane::Log || s.schedule == schedule);
            if may_sleep(&s) && !s.stop {
                s = self.of(lane).wait_for(s, pause);
            }
            // What is due sooner does not end the pause after a failure; how much of it is over is not known then.
            let slept = if may_sleep(&s) { pause } else { Duration::ZERO };
            left = match lane == Lane::Log && s.generation == seen {
                true => left.saturating_sub(slept.max(Duration::from_millis(1))),
                false => Duration::ZERO,
            };
        }
        // Before the thread that waits for this one goes on: whatever of the database is freed here would otherwise be freed by a
        // thread that no other thread joins, and never at all if the process ends first.
        drop(work);
    }
}

impl Jobs {
    pub fn new(manual: bool) -> Jobs {
        let cancel = AtomicBool::new(false);
        Jobs { signal: Arc::default(), manual, work: OnceLock::new(), claims: Mutex::default(), cancel }
    }

    /// Takes the work, once, and starts the threads: the log's, and `threads` others, two at least. `limit`: so many can be
    /// started, in tests.
    pub fn start(&self, work: &Arc<dyn Work>, threads: usize, limit: Option<usize>) -> Result<(), Error> {
        let first = self.work.set(Arc::downgrade(work)).is_ok();
        debug_assert!(first, "the pool was started before");
        if self.manual {
            return Ok(());
        }
        let (log, others) = (("log".to_owned(), Lane::Log), threads.max(2));
        let numbered = (0..others).map(|n| (n.to_string(), if n == 0 { Lane::Flushes } else { Lane::Merges }));
        for (started, (name, lane)) in std::iter::once(log).chain(numbered).enumerate() {
            let (signal, work) = (self.signal.clone(), work.clone());
            self.signal.state.lock().threads += 1;
            let spawned = match limit {
                Some(limit) if started >= limit => Err(std::io::ErrorKind::WouldBlock.into()),
                _ => spawn_named(format!("kingtide-{name}"), move || signal.run_lane(work, lane)),
            };
            if let Err(e) = spawned {
                self.signal.state.lock().threads -= 1;
                let text = format!(
                    "cannot start background thread {} of {} ({e}): raise the limit on threads, or set \
                     `background_threads` lower",
                    started + 1,
                    others + 1
                );
                return Err(Error::new(kingtide_base::ErrorKind::Io, text));
            }
        }
        Ok(())
    }

    /// Runs the most urgent job on the caller's thread, if there is one.
    pub fn run_one(&self) -> Outcome {
        match self.work.get().and_then(Weak::upgrade) {
            Some(work) => self.signal.run(&work, Lane::All),
            None => Outcome::Idle,
        }
    }

    /// Tells the threads that the state changed.
    pub fn wake(&self) {
        self.signal.wake();
    }

    /// The same for the thread that serves the log and keeps the time.
    #[cfg(feature = "tokio")]
    pub fn wake_log(&self) {
        self.signal.wake_log();
    }

    /// Has the thread that keeps the time ask anew how long it may sleep, because something is due sooner than before.
    pub fn reschedule(&self) {
        self.signal.reschedule();
    }

    /// Does what [`Jobs::wake`] does, for the log, which lives on its own.
    pub fn waker(&self) -> Arc<dyn Fn() + Send + Sync> {
        let signal = self.signal.clone();
        Arc::new(move || signal.wake())
    }

    /// Without threads: runs one job on the caller's thread. False if there are threads or nothing was to do.
    pub fn help(&self) -> bool {
        self.manual && matches!(self.run_one(), Outcome::Ran)
    }

    /// Whether a compaction of one of these families runs or waits for a thread. Costs a plan for each of them.
    pub fn compaction_due(&self, of: &[FamilyId]) -> bool {
        self.work.get().and_then(Weak::upgrade).is_some_and(|work| work.compaction_due(of))
    }

    /// How many looks for work have ended. Asked before a look at what they bring about, for [`Jobs::wait_for_progress_since`].
    pub fn ended(&self) -> u64 {
        self.signal.state.lock().ended
    }

    /// Waits until another look for work has ended than the `ended` so far. Idle threads look again from time to time. Where callers run
    /// the jobs it waits for a moment in any case: the last look may have been the caller's own, and it must not spin.
    pub fn wait_for_progress_since(&self, ended: u64) {
        let state = self.signal.state.lock();
        if self.manual {
            drop(self.signal.progress.wait_for(state, Duration::from_millis(5)));
        } else if state.ended == ended {
            drop(self.signal.progress.wait_for(state, IDLE));
        }
    }

    /// Waits until a job ended, at most `d`.
    pub fn wait_for_progress(&self, d: Duration) {
        drop(self.signal.progress.wait_for(self.signal.state.lock(), d));
    }

    /// Whether no job runs now.
    pub fn is_quiet(&self) -> bool {
        self.signal.state.lock().running == 0
    }

    /// Set when running merges should stop.
    pub fn cancel_flag(&self) -> &AtomicBool {
        &self.cancel
    }

    /// Whether the caller runs the jobs.
    pub fn is_manual(&self) -> bool {
        self.manual
    }

    /// Asks running merges to stop at the next block.
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// Ends the threads after their current jobs and waits for them. One of these threads may make the call too, from code of the caller
    /// that it runs: it then waits only for the others, and ends after its current job.
    pub fn stop(&self) {
        let own = usize::from(self.is_own_thread());
        let mut s = self.signal.state.lock();
        s.stop = true;
        self.signal.work.notify_all();
        self.signal.log.notify_all();
        while s.threads > own {
            s = self.signal.progress.wait_for(s, Duration::from_millis(20));
        }
    }

    /// Whether the caller is one of these threads.
    pub fn is_own_thread(&self) -> bool {
        POOL.with(Cell::get) == self.signal.address()
    }

    /// Whether the threads have been asked to end.
    pub fn is_stopped(&self) -> bool {
        self.signal.state.lock().stop
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Work of which each lane but the log's takes until `released`.
    #[derive(Default)]
    struct Long {
        state: Mutex<LongState>,
        changed: Condvar,
    }

    #[derive(Default)]
    struct LongState {
        at_work: usize,
        looks_of_log: usize,
        released: bool,
    }

    impl Long {
        fn wait_until(&self, holds: impl Fn(&LongState) -> bool) {
            let mut state = self.state.lock();
            while !holds(&state) {
                state = self.changed.wait(state);
            }
        }
    }

    impl Work for Long {
        fn run_most_urgent(self: Arc<Self>, lane: Lane) -> Outcome {
            assert_ne!(lane, Lane::All);
            let mut state = self.state.lock();
            if lane == Lane::Log {
                state.looks_of_log += 1;
                self.changed.notify_all();
                return Outcome::Idle;
            }
            state.at_work += 1;
            self.changed.notify_all();
            while !state.released {
                state = self.changed.wait(state);
            }
            Outcome::Idle
        }

        fn compaction_due(&self, _: &[FamilyId]) -> bool {
            false
        }

        fn longest_pause(&self) -> Option<Duration> {
            None
        }
    }

    /// A job that panics past every guard of its own.
    struct Panics;

    impl Work for Panics {
        fn run_most_urgent(self: Arc<Self>, _: Lane) -> Outcome {
            std::panic::resume_unwind(Box::new("injected"))
        }

        fn compaction_due(&self, _: &[FamilyId]) -> bool {
            false
        }

        fn longest_pause(&self) -> Option<Duration> {
            None
        }
    }

    /// A job that fails.
    struct Fails;

    impl Work for Fails {
        fn run_most_urgent(self: Arc<Self>, _: Lane) -> Outcome {
            Outcome::Failed(Error::new(kingtide_base::ErrorKind::NoSpace, "injected"))
        }

        fn compaction_due(&self, _: &[FamilyId]) -> bool {
            false
        }

        fn longest_pause(&self) -> Option<Duration> {
            None
        }
    }

    /// Of the log's thread, the first job fails. Each look at what is due at a certain time is noted.
    #[derive(Default)]
    struct FailsOnce {
        lanes: Mutex<Vec<Lane>>,
        changed: Condvar,
        /// The schedule changes during each look.
        reschedules: OnceLock<Arc<Signal>>,
    }

    impl Work for FailsOnce {
        fn run_most_urgent(self: Arc<Self>, lane: Lane) -> Outcome {
            if !matches!(lane, Lane::Log | Lane::Time) {
                return Outcome::Idle;
            }
            self.reschedules.get().into_iter().for_each(|signal| signal.reschedule());
            let mut lanes = self.lanes.lock();
            lanes.push(lane);
            self.changed.notify_all();
            match lanes.len() {
                1 => Outcome::Failed(Error::new(kingtide_base::ErrorKind::NoSpace, "injected")),
                _ => Outcome::Idle,
            }
        }

        fn compaction_due(&self, _: &[FamilyId]) -> bool {
            false
        }

        fn longest_pause(&self) -> Option<Duration> {
            Some(Duration::from_millis(5)).filter(|_| self.reschedules.get().is_none())
        }
    }

    /// `Interval` durability may promise a sync of the log each few milliseconds, whatever becomes of segments that are made ahead.
    #[test]
    fn the_thread_of_the_log_keeps_the_time_after_a_job_that_failed() {
        let (jobs, work) = (Jobs::new(false), Arc::new(FailsOnce::default()));
        jobs.start(&(work.clone() as Arc<dyn Work>), 2, None).unwrap();
        let mut lanes = work.lanes.lock();
        while lanes.iter().filter(|lane| **lane == Lane::Log).count() < 2 {
            lanes = work.changed.wait(lanes);
        }
        let seen = lanes.clone();
        drop(lanes);
        jobs.stop();
        assert!(seen.starts_with(&[Lane::Log, Lane::Time, Lane::Time]), "{seen:?}");
    }

    /// A commit that asks for a sync has no job tried again that has just failed.
    #[test]
    fn a_new_schedule_does_not_end_the_pause_after_a_failure() {
        const LOOKS: usize = 100;
        let (jobs, work) = (Jobs::new(false), Arc::new(FailsOnce::default()));
        assert!(work.reschedules.set(jobs.signal.clone()).is_ok());
        jobs.start(&(work.clone() as Arc<dyn Work>), 2, None).unwrap();
        let mut lanes = work.lanes.lock();
        while lanes.len() < LOOKS {
            lanes = work.changed.wait(lanes);
        }
        let seen = lanes[..LOOKS].to_vec();
        drop(lanes);
        jobs.stop();
        assert!(seen[0] == Lane::Log && seen[1..].iter().all(|lane| *lane == Lane::Time), "{seen:?}");
    }

    /// Two threads whose jobs fail would otherwise end each other's pause, and try their jobs again and again.
    #[test]
    fn a_job_that_fails_wakes_no_thread() {
        let jobs = Jobs::new(true);
        let work: Arc<dyn Work> = Arc::new(Fails);
        jobs.start(&work, 1, None).unwrap();
        let before = jobs.signal.state.lock().generation;
        assert!(matches!(jobs.run_one(), Outcome::Failed(_)));
        assert_eq!(jobs.signal.state.lock().generation, before);
        assert_eq!(jobs.ended(), 1);
    }

    #[test]
    fn the_thread_of_the_log_waits_for_no_flush_or_compaction() {
        let (jobs, long) = (Jobs::new(false), Arc::new(Long::default()));
        let work: Arc<dyn Work> = long.clone();
        jobs.start(&work, 2, None).unwrap();
        long.wait_until(|s| s.at_work == 2);
        for _ in 0..3 {
            let looks = long.state.lock().looks_of_log;
            jobs.wake();
            long.wait_until(|s| s.looks_of_log > looks);
        }
        long.state.lock().released = true;
        long.changed.notify_all();
        jobs.stop();
    }

    #[test]
    fn a_thread_that_panics_is_counted_out_and_stop_returns() {
        let work: Arc<dyn Work> = Arc::new(Panics);
        let jobs = Jobs::new(false);
        jobs.start(&work, 3, None).unwrap();
        while jobs.signal.state.lock().threads > 0 {
            jobs.wait_for_progress(IDLE);
        }
        assert!(jobs.is_quiet(), "no job is running");
        jobs.stop();
        assert_eq!(Arc::strong_count(&work), 1, "the threads gave it up");
    }
}
