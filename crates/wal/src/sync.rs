//! Group commit: threads that need the log synced share one sync.
//!
//! The first to come leads; the others wait, each for itself: woken together on one condition variable, they would come out
//! of its lock one after the other, each when the one before has run. A leader syncs everything appended when it starts, so
//! earlier appends are done too. When its sync completes, it wakes one of the threads that arrived since, to lead them,
//! and then its own group.

use super::config::{Lsn, WalConfig};
use super::durable_names::DurableNames;
use kingtide_base::clock::Clock;
use kingtide_base::histogram::Histogram;
use kingtide_base::perf::{self, Stage};
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use kingtide_base::sync::{Condvar, Mutex, MutexGuard, spin_loop, yield_now};
use kingtide_base::{Error, ErrorKind, Result, rare};
use kingtide_vfs::File;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

/// How long a leader waits for the threads of the last group to come back with their next commit.
const GATHER_NS: u64 = 20_000;
/// If more threads commit than there are processors, the leader yields to them, and may resume much later than that: after a time
/// slice of each. A wait that took longer than this counts as futile, even if the threads came back.
const GATHER_LATE_NS: u64 = 100_000;
/// The log is synced often when in so many groups no more than [`OFTEN_BYTES`] were appended.
const OFTEN_GROUPS: usize = 64;
const OFTEN_BYTES: u64 = OFTEN_GROUPS as u64 * (128 << 10);
/// Exponential backoff: after `n` futile waits in a row the next 2^n leaders skip the wait; `n` is capped here. In front of a
/// binary log, say, no thread comes back before it was woken from another sync.
const MOST_FUTILE: u32 = 6;
/// Bounds the same wait under a clock that stands still.
const GATHER_YIELDS: usize = if cfg!(shuttle) { 2 } else { 1024 };

/// A segment with bytes that may not be synced. The last in the list is the active one.
struct Unsynced {
    id: u64,
    file: Arc<dyn File>,
    /// Log position of the segment's first byte, which is the end of its predecessor.
    base: u64,
    /// The number of its name among [`DurableNames`].
    name: u64,
}

#[derive(Default)]
struct Group {
    /// A thread is leading.
    led: bool,
    /// Number of the last group that set off.
    synced_groups: usize,
    /// The position that it syncs, or synced.
    target: u64,
    /// Threads in the group before the one that forms now.
    last_size: usize,
    /// Futile waits of leaders since the last useful one, [`MOST_FUTILE`] at most.
    futile_waits: u32,
    /// So many leaders more skip the wait.
    skip_waits: u32,
    /// Waiters in the group that is being synced.
    in_flight: Vec<Arc<Waiter>>,
    /// Waiters in the next group.
    forming: Vec<Arc<Waiter>>,
    /// The position that was synced when [`GroupSync::often`] was last looked at.
    counted: u64,
}

/// A thread that is to be woken.
#[derive(Default)]
struct Waiter {
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Waiter {
    fn wait(&self) {
        let mut woken = self.woken.lock();
        while !*woken {
            woken = self.wake.wait(woken);
        }
    }

    fn wake(&self) {
        *self.woken.lock() = true;
        self.wake.notify_one();
    }
}

/// What must be durable before the log is: a record may say that it is there.
pub trait SyncFirst: Send + Sync {
    /// Makes durable what was written before the call, as far as recovery needs it.
    ///
    /// # Errors
    /// Of the sync. Once this failed it fails for as long as recovery needs what may be lost.
    fn sync_first(&self) -> Result<()>;
}

pub(super) struct GroupSync {
    appended: AtomicU64,
    synced: AtomicU64,
    /// Threads that joined the group that forms now.
    joined: AtomicUsize,
    group: Mutex<Group>,
    files: Mutex<VecDeque<Unsynced>>,
    /// Which segments' names are durable.
    pub names: DurableNames,
    /// What records refer to that may not be synced. One that is gone was synced, or is needed no more.
    first: Mutex<Vec<Weak<dyn SyncFirst>>>,
    poisoned: AtomicBool,
    cause: OnceLock<Error>,
    /// Whether the log is synced often. Relaxed: a hint.
    often: AtomicBool,
    /// The positions between which the next segment should be filled with zeros. Relaxed: a hint.
    fill: [AtomicU64; 2],
    /// `on_often` was called for these positions.
    fill_asked: AtomicBool,
    /// Called when the log begins to be synced often, and when the next segment should be filled.
    on_often: Option<Arc<dyn Fn() + Send + Sync>>,
    processors: usize,
    clock: Arc<dyn Clock>,
    stats: Arc<Stats>,
}

/// A leader at work. If it panics, as a file system of the caller's own may, it stops the log and lands: others would wait
/// for it for ever.
struct Leading<'a> {
    sync: &'a GroupSync,
    /// Whether the group was synced; `None` while that is not known.
    outcome: Option<bool>,
}

impl Leading<'_> {
    fn end(mut self, synced: bool) {
        self.outcome = Some(synced);
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if self.outcome.is_none() {
            self.sync.poison("syncing the log", Error::new(ErrorKind::Io, "the thread that synced it panicked"));
        }
        self.sync.land(self.outcome == Some(true));
    }
}

impl Group {
    /// Takes note of whether a leader waited, and for nothing.
    fn note_gathering(&mut self, gathered: Option<bool>) {
        match gathered {
            Some(true) => (self.futile_waits, self.skip_waits) = (0, 0),
            Some(false) => {
                self.futile_waits = (self.futile_waits + 1).min(MOST_FUTILE);
                self.skip_waits = (1 << self.futile_waits) - 1;
            }
            None => self.skip_waits = self.skip_waits.saturating_sub(1),
        }
    }
}

/// Whether a leader should wait again, given whether the threads came back and how long its wait took.
fn was_worth_it(came: bool, took_ns: u64) -> bool {
    came && took_ns <= GATHER_LATE_NS
}

impl fmt::Debug for GroupSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupSync(synced {} of {})", self.synced().0, self.appended().0)
    }
}

impl GroupSync {
    pub fn new(config: &WalConfig) -> GroupSync {
        GroupSync {
            appended: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            joined: AtomicUsize::new(0),
            group: Mutex::default(),
            files: Mutex::default(),
            names: DurableNames::new(config.fs.clone(), config.dir.clone()),
            first: Mutex::default(),
            poisoned: AtomicBool::new(false),
            cause: OnceLock::new(),
            often: AtomicBool::new(false),
            fill: [AtomicU64::new(u64::MAX), AtomicU64::new(0)],
            fill_asked: AtomicBool::new(false),
            on_often: config.on_rotate.clone(),
            processors: kingtide_base::processors(),
            clock: config.clock.clone(),
            stats: config.stats.clone(),
        }
    }

    pub fn appended(&self) -> Lsn {
        Lsn(self.appended.load(Ordering::Acquire)) // with the Release in `set_appended`
    }

    pub fn synced(&self) -> Lsn {
        Lsn(self.synced.load(Ordering::Acquire)) // with the Release in `fly`
    }

    /// Whether groups come one after the other and are small.
    pub fn is_frequent(&self) -> bool {
        self.often.load(Ordering::Relaxed)
    }

    /// A segment of `size` bytes was begun at the position `base`. The next one is filled with zeros when half of it is used: not
    /// earlier, since a log that comes to rest before never needs them, nor in its last eighth, when a writer might find the
    /// next one in use, and take the one behind it.
    pub fn fill_within(&self, base: u64, size: u64) {
        self.fill[0].store(base + size / 2, Ordering::Relaxed);
        self.fill[1].store(base + size / 8 * 7, Ordering::Relaxed);
        self.fill_asked.store(false, Ordering::Relaxed);
    }

    /// Whether it is time to fill the next segment, if the log is synced often.
    pub fn is_filling_due(&self) -> bool {
        let at = self.appended.load(Ordering::Relaxed);
        self.fill[0].load(Ordering::Relaxed) <= at && at < self.fill[1].load(Ordering::Relaxed)
    }

    /// The writer appended up to `lsn`. Only the holder of the commit lock calls this.
    #[inline]
    pub fn set_appended(&self, lsn: u64) {
        // Release, with the Acquire in `appended`: a leader that sees the position also sees the segment it lies in.
        self.appended.store(lsn, Ordering::Release);
    }

    /// The writer moved to another segment, whose first byte is at log position `base`, and whose name has the number `name`.
    pub fn push_segment(&self, id: u64, file: Arc<dyn File>, base: u64, name: u64) {
        self.files.lock().push_back(Unsynced { id, file, base, name });
    }

    /// Makes all names durable that were made so far.
    ///
    /// # Errors
    /// When no descriptor was left for the directory, nothing is lost, and it may be tried again. Any other failure stops the
    /// log.
    pub fn sync_names(&self) -> Result<()> {
        self.names.sync(self.names.newest(), false).map_err(|e| match e.is_out_of_descriptors() {
            true => e,
            false => self.poison("sync of the log's directory failed", e),
        })
    }

    /// The same for names up to `name`, whose records wait for it.
    fn sync_names_of(&self, name: u64) -> Result<()> {
        if self.names.is_durable(name) {
            return Ok(());
        }
        rare!("log-name-synced-by-leader");
        self.names.sync(name, true).map_err(|e| self.poison("sync of the log's directory failed", e))
    }

    /// A record that is about to be appended refers to `what`. Only the holder of the commit lock calls this, before the
    /// append: so a leader that sees the record's position finds it here.
    pub fn needs_first(&self, what: Weak<dyn SyncFirst>) {
        let mut first = self.first.lock();
        if !first.iter().any(|w| w.ptr_eq(&what)) {
            first.retain(|w| w.strong_count() > 0);
            first.push(what);
        }
    }

    /// Syncs what records refer to.
    fn sync_what_comes_first(&self) -> Result<()> {
        let first = std::mem::take(&mut *self.first.lock());
        for what in first.iter().filter_map(Weak::upgrade) {
            if let Err(e) = what.sync_first() {
                return Err(self.poison("sync of a value log failed", e));
            }
        }
        Ok(())
    }

    /// A segment was released: what it held is durable elsewhere.
    pub fn forget(&self, id: u64) {
        self.files.lock().retain(|f| f.id != id);
    }

    /// Fails if an earlier failure stopped the log.
    #[inline]
    pub fn check(&self) -> Result<()> {
        // Acquire, with the Release in `poison`, so that the cause is there.
        if self.poisoned.load(Ordering::Acquire) { Err(self.poison_error()) } else { Ok(()) }
    }

    #[cold]
    fn poison_error(&self) -> Error {
        match self.cause.get() {
            Some(cause) => {
                let e = Error::new(
                    ErrorKind::Poisoned,
                    format!("the log has been stopped since an earlier failure: {cause}"),
                );
                match cause.path() {
                    Some(p) => e.at_path(p),
                    None => e,
                }
            }
            None => Error::new(ErrorKind::Poisoned, "the log has been stopped since an earlier failure"),
        }
    }

    /// Stops the log for good. Callers get the first cause.
    #[cold]
    pub fn poison(&self, doing: &str, cause: Error) -> Error {
        rare!("log-stopped");
        let _ = self.cause.set(cause.context(doing));
        self.poisoned.store(true, Ordering::Release);
        self.poison_error()
    }

    pub fn sync_to(&self, lsn: Lsn) -> Result<()> {
        self.stats.add(Stat::WalSyncedCommits, 1);
        let timer = perf::begin_wait();
        let synced = self.wait_or_lead(lsn.0);
        timer.end(Stage::SyncNs);
        synced
    }

    pub fn sync_all(&self) -> Result<()> {
        self.wait_or_lead(self.appended().0)
    }

    fn wait_or_lead(&self, lsn: u64) -> Result<()> {
        if self.synced().0 >= lsn {
            return Ok(());
        }
        self.joined.fetch_add(1, Ordering::Relaxed); // a hint for `gather`
        loop {
            let mut group = self.group.lock();
            if self.synced().0 >= lsn {
                return Ok(());
            }
            if let Err(e) = self.check() {
                // The thread that was woken to lead may be the one that finds this.
                let waiting = if group.led { Vec::new() } else { std::mem::take(&mut group.forming) };
                drop(group);
                waiting.iter().for_each(|w| w.wake());
                return Err(e);
            }
            if !group.led {
                return self.lead(group);
            }
            let waiter = Arc::new(Waiter::default());
            let in_flight = lsn <= group.target;
            if in_flight { &mut group.in_flight } else { &mut group.forming }.push(waiter.clone());
            drop(group);
            waiter.wait();
            if self.synced().0 >= lsn {
                return Ok(());
            }
        }
    }

    fn lead(&self, mut group: MutexGuard<'_, Group>) -> Result<()> {
        group.led = true;
        let expected = if group.skip_waits > 0 { 0 } else { group.last_size };
        drop(group);
        let leading = Leading { sync: self, outcome: None };
        let gathered = self.gather(expected);

        let mut group = self.group.lock();
        group.note_gathering(gathered);
        group.in_flight = std::mem::take(&mut group.forming);
        group.last_size = self.joined.swap(0, Ordering::Relaxed);
        group.synced_groups += 1;
        group.target = self.appended().0;
        let (turn, target) = (group.synced_groups, group.target);
        let became_frequent = turn % OFTEN_GROUPS == 0 && self.count(&mut group);
        drop(group);
        let fill = self.is_frequent() && self.is_filling_due() && !self.fill_asked.swap(true, Ordering::Relaxed);
        if (became_frequent || fill)
            && let Some(tell) = &self.on_often
        {
            tell();
        }

        let outcome = self.fly(target);
        leading.end(outcome.is_ok());
        outcome
    }

    /// Gives the lead to the next group, and wakes the group that was led.
    fn land(&self, synced: bool) {
        let mut group = self.group.lock();
        group.led = false;
        let landed = std::mem::take(&mut group.in_flight);
        let next: Vec<_> = match synced {
            true => group.forming.pop().into_iter().collect(),
            false => std::mem::take(&mut group.forming), // they get the error too
        };
        drop(group);
        next.iter().chain(&landed).for_each(|w| w.wake());
    }

    /// Looks at the last groups. True if the log is synced often as of now.
    fn count(&self, group: &mut Group) -> bool {
        let often = group.target - group.counted <= OFTEN_BYTES;
        group.counted = group.target;
        !self.often.swap(often, Ordering::Relaxed) && often
    }

    /// Waits a moment until as many threads as the last time have come, if there were several. Whether they came, if it
    /// waited.
    fn gather(&self, expected: usize) -> Option<bool> {
        if expected < 2 || self.joined.load(Ordering::Relaxed) >= expected {
            return None;
        }
        let start = self.clock.monotonic_ns();
        // The missing thread runs on another processor when there is one for each; else it needs this one. Yielding
        // without need hands the rest of the time slice to whatever else runs on the machine: milliseconds.
        let crowded = expected > self.processors;
        for _ in 0..GATHER_YIELDS {
            match crowded {
                true => yield_now(),
                false => (0..8).for_each(|_| spin_loop()),
            }
            let came = self.joined.load(Ordering::Relaxed) >= expected;
            let took = self.clock.monotonic_ns().saturating_sub(start);
            if came || took > GATHER_NS {
                return Some(was_worth_it(came, took));
            }
        }
        Some(false)
    }

    /// Syncs what records before `target` refer to, the names of the segments that hold bytes before it, and then these
    /// segments, oldest first. Only the leader is here.
    fn fly(&self, target: u64) -> Result<()> {
        self.check()?;
        self.sync_what_comes_first()?;
        let (mut files, mut name) = (Vec::new(), 0);
        for f in self.files.lock().iter().filter(|f| f.base < target) {
            files.push(f.file.clone());
            name = f.name.max(name);
        }
        self.sync_names_of(name)?;
        for file in files {
            self.stats.add(Stat::WalSyncs, 1);
            let ticks = self.stats.ticks();
            let synced = file.sync_data();
            self.stats.record_since(Histogram::Fsync, None, ticks);
            if let Err(e) = synced {
                return Err(self.poison("sync of the log failed", e.at_path(file.path())));
            }
        }
        self.check()?; // a sync of the directory by another thread may have failed meanwhile
        debug_assert!(self.synced().0 <= target && target <= self.appended().0, "synced, but not appended");
        // Release, with the Acquire in `synced`.
        self.synced.store(target, Ordering::Release);
        let mut files = self.files.lock();
        // The first bound spares a segment that began at `target` and got no record: nothing of it was synced now, and the
        // header that its successor names must be before a later sync vouches for everything before it.
        while files.len() > 1 && files[0].base < target && files[1].base <= target {
            files.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{GATHER_LATE_NS, Group, was_worth_it};

    #[test]
    fn a_wait_that_took_long_is_futile_though_all_came() {
        let mut group = Group::default();
        group.note_gathering(Some(was_worth_it(true, GATHER_LATE_NS)));
        assert_eq!(group.skip_waits, 0);
        group.note_gathering(Some(was_worth_it(true, GATHER_LATE_NS + 1)));
        assert_eq!(group.skip_waits, 1);
        group.note_gathering(Some(was_worth_it(false, 0)));
        assert_eq!(group.skip_waits, 3);
        group.note_gathering(Some(was_worth_it(true, 0)));
        assert_eq!(group.skip_waits, 0);
    }

    #[test]
    fn leaders_wait_ever_less_often_while_no_thread_comes() {
        let mut group = Group::default();
        let mut hurry = |gathered| {
            group.note_gathering(gathered);
            group.skip_waits
        };
        assert_eq!(hurry(None), 0);
        for futile in [1, 3, 7, 15, 31, 63, 63] {
            assert_eq!(hurry(Some(false)), futile);
            assert!((0..futile).rev().all(|left| hurry(None) == left));
        }
        assert_eq!((hurry(Some(true)), hurry(Some(false))), (0, 1));
    }
}
