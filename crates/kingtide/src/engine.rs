//! The state behind a [`crate::Db`]: what all handles share, and the checks that everything begins with. What is done with
//! it stands in the modules of the floor above, one for each operation.
//!
//! Lock order, outermost first: `Jobs::claims`, `catalog`, `commit`, a family's `view_lock`, then leaf locks (snapshots, statistics, cache
//! partitions). `commit` is never held while `catalog` is taken.

use crate::accountant::MemoryAccountant;
use crate::catalog::Catalog;
use crate::commit::hook::Hooks;
use crate::commit::pipeline::CommitState;
use crate::commit::stall::WriteController;
use crate::compact::RateLimiter;
use crate::directory::DirFs;
use crate::failures::Failures;
use crate::family::{Family, ReadContext, TableCache};
use crate::jobs::Jobs;
use crate::read_only::ReadOnly;
use crate::reclaims::Reclaims;
use crate::reserve::DiskBallast;
use crate::snapshot::Snapshots;
use crate::staged::StagedLogs;
use crate::tuning::Tuning;
use crate::txn::Transactions;
use crate::txn::prepared::PreparedTable;
use kingtide_base::budget::Budget;
use kingtide_base::clock::Clock;
use kingtide_base::options::{DbOptions, Durability, FamilyOptions};
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kingtide_base::sync::{Mutex, RwLock};
use kingtide_base::{Error, ErrorKind, Result, rare};
use kingtide_mem::ArenaPool;
use kingtide_mem::cache::BlockCache;
use kingtide_mem::fair::FairMutex;
use kingtide_vfs::{FileLock, Fs, Origin};
use kingtide_wal::Wal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What all handles of an open database share.
pub(crate) struct DbInner {
    // Constant after construction.
    pub dir: PathBuf,
    /// The process that opened it.
    pub origin: Origin,
    pub fs: Arc<dyn Fs>,
    /// The same, for operations that write to another directory and rely on the names there.
    pub dirs: Arc<DirFs>,
    pub clock: Arc<dyn Clock>,
    pub stats: Arc<Stats>,
    pub cache: Arc<BlockCache>,
    pub tables: Arc<TableCache>,
    pub arenas: Arc<ArenaPool>,
    /// What memtables hold.
    pub memory: Arc<Budget>,
    /// What everything holds.
    pub accountant: Arc<MemoryAccountant>,
    pub snapshots: Arc<Snapshots>,
    pub txns: Transactions,
    pub wal: Arc<Wal>,
    pub prepared: PreparedTable,
    pub limiter: Arc<RateLimiter>,
    pub reserve: Arc<DiskBallast>,
    /// The most bytes that memtables may hold where the disk has little space, or `u64::MAX`: see [`DbInner::keep_reserve`]. Relaxed: a hint.
    pub flush_room: AtomicU64,
    pub reclaims: Reclaims,
    pub staged: StagedLogs,
    /// Families for which value logs are to be made ahead.
    pub value_logs_due: Mutex<Vec<Arc<Family>>>,
    pub stall: WriteController,
    pub hooks: Hooks,
    pub jobs: Jobs,
    /// Tasks that wait for commits.
    #[cfg(feature = "tokio")]
    pub waiters: crate::waiters::Waiters,
    /// Thresholds that only tests change.
    pub tuning: Tuning,
    /// Background threads, and at most so many key ranges of one merge at once.
    pub threads: usize,
    /// Seed of the ids of copies; they are random if absent.
    pub seed: Option<u64>,
    /// For families that are created without options of their own.
    pub family_defaults: FamilyOptions,

    /// Set when it was opened for reading only.
    pub read_only: Option<ReadOnly>,

    // Protected by locks.
    pub commit: FairMutex<CommitState>,
    pub catalog: Mutex<Catalog>,
    pub options: RwLock<DbOptions>,
    /// Held while a database option is changed and put into effect. Otherwise, of two concurrent changes, the one that was stored first
    /// could take effect last and undo the effect of the other.
    pub setting: Mutex<()>,
    /// Background work that failed for no family in particular, and keeps the flushes or merges of all from their turn.
    pub failures: Failures,
    /// The last background error; cleared by the next successful job, unless the database is halted.
    pub background_error: Mutex<Option<Error>>,
    /// Held while the database is open for writing.
    pub file_lock: Mutex<Option<Box<dyn FileLock>>>,

    // Atomics. Relaxed unless said otherwise: hints that order nothing.
    /// Set once by close. Release pairs with the Acquire in `check_open`.
    pub closed: AtomicBool,
    /// Set once by a panic of a background job: `background_error` holds the error that every write gets. Release pairs with the
    /// Acquire in `check_writable`.
    pub halted: AtomicBool,
    /// Snapshots below this cannot be read at: a database opened for reading only caught up past them. Release in
    /// `exchange` pairs with the Acquire in reads.
    pub read_floor: AtomicU64,
    pub max_wal_size: AtomicU64,
    pub next_file_id: Arc<AtomicU64>,
    /// The durability option, decoded once: commits read it.
    pub durability_code: AtomicU64,
    /// Whether the manifest knows this open's first log segment. Release pairs with the Acquire in commits.
    pub log_begun: AtomicBool,
    /// When a refused commit last made background threads look for space, in monotonic nanoseconds. Relaxed: a hint.
    pub looked_for_space: AtomicU64,
    /// When the file `STATS` was last written, monotonic nanoseconds; 0: never.
    pub stats_published: AtomicU64,
    pub interval_syncs: IntervalSyncs,
}

/// The least time within which a commit has the log synced in the background, which is that of the option.
pub(crate) const LEAST_INTERVAL: Duration = Duration::from_millis(1);

/// Syncs of the log in the background.
#[derive(Default)]
pub(crate) struct IntervalSyncs {
    /// When the last one of the option `Interval` was, monotonic nanoseconds. Relaxed, as above.
    pub last: AtomicU64,
    /// The one that commits ask for with an `Interval` that the option does not give them; of several, the one that is due first.
    pub asked: Mutex<Option<AskedSync>>,
}

/// A sync that is due after a while.
#[derive(Clone, Copy)]
pub(crate) struct AskedSync {
    /// When it was asked for, monotonic nanoseconds.
    pub at: u64,
    pub within: Duration,
}

impl AskedSync {
    /// How long it has at the time `now`. Nothing if the clock went back: that must not put the sync off until the clock is where it was.
    pub fn left(&self, now: u64) -> Duration {
        now.checked_sub(self.at)
            .map_or(Duration::ZERO, |waited| self.within.saturating_sub(Duration::from_nanos(waited)))
    }
}

impl DbInner {
    /// An error once the database was closed, and in a forked child. Before anything waits for a lock: in a child it may be
    /// held by a thread that does not exist.
    #[inline]
    pub fn check_open(&self) -> Result<()> {
        if !self.origin.is_here() {
            return Err(forked());
        }
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// An error in a forked child of the process that opened the database.
    #[inline]
    pub fn check_origin(&self) -> Result<()> {
        if self.origin.is_here() { Ok(()) } else { Err(forked()) }
    }

    /// The error of a write to a database that was closed or is read-only.
    #[inline]
    pub fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.halted.load(Ordering::Acquire) {
            return Err(self.halt_error());
        }
        if self.read_only.is_some() { Err(refused()) } else { Ok(()) }
    }

    /// What reads of a family need; one a family, because it counts what its reads cost.
    pub fn read_context(&self) -> Arc<ReadContext> {
        Arc::new(ReadContext::new(self.stats.clone(), self.tables.clone(), self.clock.clone()))
    }

    /// A new file number.
    pub fn new_file_id(&self) -> u64 {
        self.next_file_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The durability of commits that do not say their own.
    #[inline]
    pub fn durability(&self) -> Durability {
        decode_durability(self.durability_code.load(Ordering::Relaxed))
    }

    pub fn set_durability(&self, d: Durability) {
        self.durability_code.store(encode_durability(d), Ordering::Relaxed);
    }

    /// Has the log synced within this time, or [`LEAST_INTERVAL`] if that is longer. To be called once what is to be synced was
    /// appended.
    pub(crate) fn ask_for_sync_within(&self, time: Duration) {
        let (now, within) = (self.clock.monotonic_ns(), time.max(LEAST_INTERVAL));
        let mut asked = self.interval_syncs.asked.lock();
        if let Some(sooner) = &mut *asked {
            // If the clock went back, the earlier request seems to be due at once, but only until the clock is where it was.
            sooner.at = sooner.at.min(now);
        }
        if asked.is_none_or(|sooner| within < sooner.left(now)) {
            *asked = Some(AskedSync { at: now, within });
            drop(asked);
            self.jobs.reschedule(); // the thread that keeps the time may be about to sleep for longer
        }
    }

    /// The last background failure, while it lasts.
    pub fn background_error(&self) -> Option<Error> {
        self.background_error.lock().clone()
    }

    /// Why the log or the manifest takes no writes any more, if that is so.
    pub fn poison(&self) -> Option<Error> {
        if self.halted.load(Ordering::Acquire) {
            return Some(self.halt_error());
        }
        self.wal.poison().or_else(|| self.catalog.lock().versions.manifest.poison())
    }

    /// Whether a memtable waits for flush.
    pub fn has_immutable_memtables(&self) -> bool {
        self.catalog.lock().families.values().any(|f| !f.view.load().immutable.is_empty())
    }

    /// Why a halted database takes no writes.
    #[cold]
    pub(crate) fn halt_error(&self) -> Error {
        self.background_error().unwrap_or_else(|| Error::new(ErrorKind::Poisoned, "background work panicked"))
    }

    /// Runs background work. A panic in it, of a key order or from a bug, ends neither the thread nor the program: it halts
    /// the database.
    ///
    /// # Errors
    /// Those of `work`; `Poisoned` after a panic.
    pub(crate) fn guarded<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<R> {
        // What the panic left half-done is not used again: nothing is written any more, and reads see views, each of
        // which was put in place as a whole.
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(self.halt(&*panic)))
    }

    /// Stops writes and background work for good, after a panic.
    #[cold]
    fn halt(&self, panic: &(dyn std::any::Any + Send)) -> Error {
        rare!("background-job-panicked");
        let said = panic.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        let text = format!(
            "background work panicked ({said}); writes are stopped until the database is closed and opened again, and what \
             was committed is in its log"
        );
        let error = Error::new(ErrorKind::Poisoned, text);
        let mut background_error = self.background_error.lock();
        if !self.halted.load(Ordering::Acquire) {
            *background_error = Some(error.clone());
            self.halted.store(true, Ordering::Release);
        }
        drop(background_error);
        self.stats.add(Stat::BackgroundErrors, 1);
        // Nothing syncs it from now on, and `Interval` promises that it is synced soon.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.wal.sync_all()));
        error
    }
}

#[cold]
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the database is closed")
}

#[cold]
fn forked() -> Error {
    let text = "the database was opened before a fork(), and only the process that opened it may use it: a forked child has \
                none of its threads; open the database after the fork, in the one process that uses it";
    Error::new(ErrorKind::Closed, text)
}

fn encode_durability(d: Durability) -> u64 {
    match d {
        Durability::Process => 0,
        Durability::Power => 1,
        Durability::None => 2,
        Durability::Interval(d) => 3 + u64::try_from(d.as_millis()).unwrap_or(u64::MAX / 2),
    }
}

fn decode_durability(code: u64) -> Durability {
    match code {
        0 => Durability::Process,
        1 => Durability::Power,
        2 => Durability::None,
        ms => Durability::Interval(Duration::from_millis(ms - 3)),
    }
}

#[cold]
fn refused() -> Error {
    Error::new(ErrorKind::ReadOnly, "the database was opened read-only")
}
