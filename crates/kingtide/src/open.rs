//! Opening and closing.
//!
//! Opening, in order:
//!
//! 1. lock the directory;
//! 2. read the manifest: families, their files, what is flushed ([`kingtide_versions::VersionState`]); or create it;
//! 3. remove files that nothing names: leftovers of jobs that did not finish;
//! 4. replay the log into memtables, flushing as they fill, so that memory stays bounded;
//! 5. open the tables in parallel;
//! 6. start the log's new segment and the background threads.
//!
//! The handle exists only when all of it is done. Until step 6 nothing on disk was changed that another recovery would
//! not do the same way, so a crash in between is harmless.

use crate::accountant::MemoryAccountant;
use crate::commit::hook::Hooks;
use crate::commit::pipeline::CommitState;
use crate::commit::stall::WriteController;
use crate::compact::RateLimiter;
use crate::copy::target::refuse_unfinished;
use crate::directory::{DirFs, make_database_dir};
use crate::engine::{DbInner, IntervalSyncs};
use crate::failures::Failures;
use crate::family::{Family, TableCache};
use crate::info_log::InfoLog;
use crate::jobs::{Jobs, Work};
use crate::options::Options;
use crate::options::{check_memory_limit, memtable_limit};
use crate::read_only::ReadOnly;
use crate::reclaims::Reclaims;
use crate::recover::{Recovery, remove_orphans};
use crate::reserve::DiskBallast;
use crate::snapshot::Snapshots;
use crate::staged::StagedLogs;
use crate::threads::{spawn_named, try_spawn};
use crate::trace;
use crate::txn::Transactions;
use crate::txn::prepared::PreparedTable;
use crate::txn::prepared::RecoveredPrepared;
use kingtide_base::budget::Budget;
use kingtide_base::clock::{Clock, SystemClock};
use kingtide_base::events::{Event, Events, LogLevel};
use kingtide_base::names::{CURRENT, LOCK_FILE};
use kingtide_base::options::{DbOptions, FamilyOptions};
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use kingtide_base::sync::{Mutex, RwLock};
use kingtide_base::{Error, ErrorKind, Result, TxnId};
use kingtide_locks::Wait;
use kingtide_mem::ArenaPool;
use kingtide_mem::cache::BlockCache;
use kingtide_mem::fair::FairMutex;
use kingtide_vfs::{FileLock, Fs, Origin, SystemFs};
use kingtide_wal::{RecoveredLog, Wal, WalConfig, WalWriter};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of free chunks that are kept for the next memtables.
const FREE_ARENAS: u64 = 8 << 20;

/// Opens or creates the database in `dir`; returns it with its default family.
pub(crate) fn open(dir: &Path, options: Options) -> Result<(Arc<DbInner>, Arc<Family>)> {
    open_as(dir, options, false)
}

/// Opens the database in `dir` for reading only: no lock, no change, no background threads.
pub(crate) fn open_read_only(dir: &Path, options: Options) -> Result<(Arc<DbInner>, Arc<Family>)> {
    open_as(dir, Options { manual_jobs: true, ..options }, true)
}

fn open_as(dir: &Path, options: Options, read_only: bool) -> Result<(Arc<DbInner>, Arc<Family>)> {
    options.db.validate()?;
    options.family.validate()?;
    options.check_orders()?;
    check_memory_limit(&options.db, &options.family)?;
    let clock = options.clock.clone().unwrap_or_else(SystemClock::shared);
    let start = clock.monotonic_ns();
    let system = options.fs.clone().unwrap_or_else(SystemFs::shared).with_mode(options.db.file_mode);
    let dirs = DirFs::new(system);
    let mut lock = enter_dir(&dirs, dir, &options, read_only)?;
    let dirs = Arc::new(if read_only { dirs } else { dirs.relying_on(dir)? });
    let fs: Arc<dyn Fs> = dirs.clone();

    let stats = Arc::new(Stats::new(options.clock.as_ref()));
    stats.limit_family_histograms(options.db.family_histograms as usize);
    connect_listeners(&fs, dir, &clock, &stats, &options, read_only);
    let opened = open_locked(dir, options, (dirs, clock, stats.clone()), &mut lock, read_only);
    if let Ok((inner, _)) = &opened {
        stop_on_failed_sync(&inner.dirs, &inner.wal);
    }
    match &opened {
        Ok((inner, _)) => tell_opened(inner, start),
        Err(e) => tell_failed(&stats, e), // while the lock is held: `LOG` is another's without it
    }
    opened
}

/// What keeps memory within `memory_limit`.
fn accountant(
    options: &DbOptions,
    arenas: &Arc<ArenaPool>,
    cache: &Arc<BlockCache>,
    stats: &Arc<Stats>,
) -> Arc<MemoryAccountant> {
    let partitions = BlockCache::of_partitions(options.memory_limit, options.cache_shards as usize, stats.clone());
    let accountant = MemoryAccountant::new(arenas.clone(), cache.clone(), partitions);
    accountant.set(options.memory_limit, options.block_cache_size);
    accountant
}

/// Opens the database in a directory that is checked and, to write, locked. It keeps `lock` unless it fails early.
fn open_locked(
    dir: &Path,
    options: Options,
    (dirs, clock, stats): (Arc<DirFs>, Arc<dyn Clock>, Arc<Stats>),
    lock: &mut Option<Box<dyn FileLock>>,
    read_only: bool,
) -> Result<(Arc<DbInner>, Arc<Family>)> {
    let fs: Arc<dyn Fs> = dirs.clone();
    let memory = Budget::new(memtable_limit(&options.db, &options.family, 1, u64::MAX));
    let arenas = ArenaPool::with_slots(memory.clone(), FREE_ARENAS, options.tuning.memtable_pieces);
    let cache = BlockCache::new(options.db.block_cache_size, options.db.cache_shards as usize, stats.clone());
    // A reader holds all files open, because a writer may delete them.
    let max_open_files = (!read_only).then_some(options.db.max_open_files);
    let accountant = accountant(&options.db, &arenas, &cache, &stats);
    let place = (fs.clone(), dir.to_owned());
    let tables = TableCache::counted(place, cache.clone(), stats.clone(), accountant.clone(), max_open_files);
    let threads = background_threads(&options);

    let recovery = Recovery {
        dir,
        fs: &fs,
        options: &options,
        clock: &clock,
        stats: &stats,
        tables: &tables,
        arenas: &arenas,
        memory: &memory,
        read_only,
    };
    let span = trace::recovery();
    let recovered = if read_only { recovery.read()? } else { recovery.run()? };
    span.end();
    open_tables(&recovered.families, &tables, if options.manual_jobs { 0 } else { threads })?;

    let jobs = Jobs::new(options.manual_jobs);
    let next_file_id = Arc::new(AtomicU64::new(recovered.next_file_id));
    let config = log_config(&fs, dir, &options, (&clock, &stats), (id_source(&next_file_id), jobs.waker()));
    let (writer, wal) = open_log(config, recovered.log, &recovered.orphans, (&tables, read_only))?;
    wal.note_needed(recovered.catalog.versions.log_start);
    let snapshots = Arc::new(Snapshots::recovered(recovered.last_seq));
    let txns = Transactions::new(snapshots.clone(), clock.clone(), stats.clone(), accountant.transactions.clone());
    let in_doubt = recovered.prepared.iter().flat_map(|p| p.batch.staged());
    let staged = StagedLogs::recovered(in_doubt.map(|file| (file.family.id(), &file.log)));
    let first_prepared = if read_only { 0 } else { enter_prepared(&txns, &recovered.prepared)? };
    let holds_values = options.db.change_retention > 0;
    let commits = CommitState::new(writer, recovered.last_seq, recovered.families, holds_values);
    let inner = Arc::new(DbInner {
        dir: dir.to_owned(),
        origin: Origin::here(),
        stall: WriteController::new(clock.clone(), stats.clone(), memory.clone()),
        hooks: Hooks::new(stats.clone()),
        txns,
        reserve: Arc::new(DiskBallast::new(fs.clone(), dir)),
        flush_room: AtomicU64::new(u64::MAX),
        reclaims: Reclaims::default(),
        staged,
        value_logs_due: Mutex::default(),
        limiter: Arc::new(RateLimiter::new(clock.clone(), options.db.rate_limit)),
        fs,
        dirs,
        clock,
        stats,
        cache,
        tables,
        arenas,
        memory,
        accountant,
        snapshots,
        wal,
        prepared: PreparedTable::new(recovered.prepared, first_prepared),
        jobs,
        #[cfg(feature = "tokio")]
        waiters: crate::waiters::Waiters::default(),
        threads,
        tuning: options.tuning.clone(),
        seed: options.seed,
        family_defaults: options.family.clone(),
        read_only: read_only.then(|| ReadOnly::new(options.clone())),
        read_floor: AtomicU64::new(0),
        commit: FairMutex::new(commits),
        catalog: Mutex::new(recovered.catalog),
        max_wal_size: AtomicU64::new(options.db.max_wal_size),
        durability_code: AtomicU64::new(0),
        options: RwLock::new(options.db),
        setting: Mutex::new(()),
        failures: Failures::default(),
        background_error: Mutex::new(None),
        halted: AtomicBool::new(false),
        file_lock: Mutex::new(lock.take()),
        closed: AtomicBool::new(false),
        next_file_id,
        log_begun: AtomicBool::new(false),
        interval_syncs: IntervalSyncs::default(),
        stats_published: AtomicU64::new(0),
        looked_for_space: AtomicU64::new(0),
    });
    begin(&inner, recovered.default_changed.then_some(&recovered.default), threads)
        .inspect_err(|e| abandon(&inner, e))?;
    Ok((inner, recovered.default))
}

/// Opens the log behind what recovery found of it, which is durable then, and removes what nothing refers to. A reader does neither.
fn open_log(
    config: WalConfig,
    found: RecoveredLog,
    orphans: &[String],
    (tables, read_only): (&TableCache, bool),
) -> Result<(WalWriter, Arc<Wal>)> {
    if read_only {
        return Ok(Wal::detached(config));
    }
    let (fs, dir) = (config.fs.clone(), config.dir.clone());
    let opened = Wal::open(config, found)?;
    remove_orphans(orphans, (&*fs, &dir), tables);
    Ok(opened)
}

/// Stops the log once a sync of the directory failed, through whichever object of this process: none of the names that were made so far can
/// be relied on any more.
fn stop_on_failed_sync(fs: &DirFs, wal: &Arc<Wal>) {
    let wal = Arc::downgrade(wal); // which has the file system
    fs.on_failed_sync(move |e| {
        if let Some(wal) = wal.upgrade() {
            wal.stop(e);
        }
    });
}

/// Has events told to the caller's listener, and written to the file `LOG`.
fn connect_listeners(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    clock: &Arc<dyn Clock>,
    stats: &Arc<Stats>,
    options: &Options,
    read_only: bool,
) {
    // Tests that cut the power at every write, or count them, bring a file system of their own.
    let in_file = options.fs.is_none() || options.tuning.info_log;
    if in_file && !read_only {
        let mut log = InfoLog::new(fs, dir.to_owned(), clock, stats, &options.db);
        stats.events.connect_adjustable(options.db.log_level, Box::new(move |event| log.write(event)));
    }
    trace::connect(stats);
    if let Some(listener) = options.listener.clone() {
        stats.events.connect(LogLevel::Debug, Box::new(move |event| listener.event(event)));
    }
}

/// The options that are not at their defaults, as text.
fn changed_options(db: &DbOptions, family: &FamilyOptions) -> String {
    let (db_defaults, defaults) = (DbOptions::default(), FamilyOptions::default());
    let of_db = db.entries().into_iter().filter(|(name, value)| db_defaults.get(name).as_ref() != Some(value));
    let of_family = family.entries().into_iter().filter(|(name, value)| defaults.get(name).as_ref() != Some(value));
    of_db.chain(of_family).map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ")
}

/// Takes note of how long the opening took, and tells of it.
fn tell_opened(inner: &DbInner, start: u64) {
    let took = inner.clock.monotonic_ns().saturating_sub(start);
    inner.stats.set(Stat::OpenMicros, took / 1000);
    let changed = || changed_options(&inner.options.read(), &inner.family_defaults);
    inner.stats.events.tell(|| Event::Opened(Duration::from_nanos(took), changed()));
    inner.stats.deliver_events();
}

/// Tells that the open failed, and nothing more.
fn tell_failed(stats: &Stats, e: &Error) {
    stats.events.tell(|| Event::OpenFailed(e.to_string()));
    stats.deliver_events();
    stats.events.disconnect();
}

/// What the log is made of. `ids` draws its ids, and `rotated` is called when it begins a segment.
fn log_config(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    options: &Options,
    (clock, stats): (&Arc<dyn Clock>, &Arc<Stats>),
    (ids, rotated): (Arc<dyn Fn() -> u64 + Send + Sync>, Arc<dyn Fn() + Send + Sync>),
) -> WalConfig {
    WalConfig {
        fs: fs.clone(),
        dir: dir.to_owned(),
        segment_size: options.tuning.segment_size.unwrap_or(options.db.wal_segment_size),
        first_segment: options.tuning.first_segment,
        max_free: options.tuning.free_segments,
        prefill_piece: options.tuning.prefill_piece,
        next_id: ids,
        on_rotate: Some(rotated),
        clock: clock.clone(),
        stats: stats.clone(),
    }
}

/// Brings what was put together into its first state, and starts the background threads. `changed`: the default family, if
/// its options are not those that are stored.
fn begin(inner: &Arc<DbInner>, changed: Option<&Arc<Family>>, threads: usize) -> Result<()> {
    apply_options(inner);
    inner.refresh_prepared();
    let reserve = inner.reserve.clone();
    inner.catalog.lock().versions.on_full_disk(move || reserve.spend_for_manifest());
    inner.fit_memtable_limit(&inner.catalog.lock());
    inner.measure_debt(&inner.catalog.lock());
    if let Some(default) = changed {
        inner.store_default_options(default)?;
    }
    if inner.read_only.is_none() {
        inner.keep_reserve();
    }
    if !inner.jobs.is_manual() {
        inner.arenas.on_low(inner.jobs.waker());
    }
    let work: Arc<dyn Work> = inner.clone();
    inner.jobs.start(&work, threads, inner.tuning.thread_limit)
}

/// Gives up a database whose opening failed when it was all but done, so that the next open finds it as this one did.
fn abandon(inner: &DbInner, why: &Error) {
    inner.closed.store(true, Ordering::Release);
    inner.jobs.cancel();
    inner.jobs.stop();
    inner.reserve.remove();
    tell_failed(&inner.stats, why);
    *inner.file_lock.lock() = None;
}

/// Draws ids of files from the one counter that all files have theirs from.
fn id_source(next_file_id: &Arc<AtomicU64>) -> Arc<dyn Fn() -> u64 + Send + Sync> {
    let next = next_file_id.clone();
    // Relaxed: an id need only be no other's.
    Arc::new(move || next.fetch_add(1, Ordering::Relaxed))
}

/// Hands options of the database to the parts that keep them in a form of their own.
fn apply_options(inner: &DbInner) {
    let options = inner.options.read();
    inner.set_durability(options.durability);
    inner.stats.time_operations(options.histograms, options.slow_operation_threshold);
    inner.txns.set_timeout(options.transaction_timeout);
    inner.txns.memory.set_limit(options.transaction_memory);
}

/// Checks the directory and, to write, makes and locks it.
fn enter_dir(fs: &DirFs, dir: &Path, options: &Options, read_only: bool) -> Result<Option<Box<dyn FileLock>>> {
    if !read_only {
        prepare_dir(fs, dir, options)?;
        return fs.lock(&dir.join(LOCK_FILE)).map(Some);
    }
    if !fs.exists(&dir.join(CURRENT))? {
        refuse_unfinished(fs, dir)?;
    }
    Ok(None)
}

/// Gives recovered transactions in doubt their ids, which follow one another, and their locks. Returns the first id.
fn enter_prepared(txns: &Transactions, recovered: &[RecoveredPrepared]) -> Result<TxnId> {
    let mut first = 0;
    for p in recovered {
        let id = txns.recovered(&p.xid, p.isolation)?;
        first = if first == 0 { id } else { first };
        for lock in p.locks_of() {
            txns.lock_for_prepared(id, &lock, Wait::No)?;
        }
    }
    Ok(first)
}

/// Checks the directory against what the options ask for, and makes it.
fn prepare_dir(fs: &DirFs, dir: &Path, options: &Options) -> Result<()> {
    let exists = fs.exists(&dir.join(CURRENT))?;
    if exists && options.db.error_if_exists {
        return Err(Error::new(ErrorKind::Exists, "a database exists here and error_if_exists is set").at_path(dir));
    }
    if !exists && !options.db.create_if_missing {
        return Err(Error::new(ErrorKind::NotFound, "no database here (no CURRENT file) and create_if_missing is off")
            .at_path(dir));
    }
    if exists {
        return Ok(());
    }
    refuse_unfinished(fs, dir)?;
    make_database_dir(fs, dir)
}

fn background_threads(options: &Options) -> usize {
    match options.db.background_threads {
        0 => kingtide_base::processors().max(2),
        n => n as usize,
    }
}

/// Opens all tables with this thread and up to `threads` others; each is one or two small reads. A damaged table does not
/// keep the others from being read: the error comes back when it is needed. A table of a newer format is none for this
/// build to work beside, so it is refused while nothing was changed yet.
fn open_tables(families: &[Arc<Family>], tables: &Arc<TableCache>, threads: usize) -> Result<()> {
    let handles: Vec<_> = families
        .iter()
        .flat_map(|f| {
            let view = f.view.load();
            view.runs.iter().flat_map(|r| r.files.iter().map(|s| s.handle.clone())).collect::<Vec<_>>()
        })
        .collect();
    let (cursor, newer) = (AtomicUsize::new(0), Mutex::new(None));
    let one = || {
        // `open_all` stops at the first damaged file; go on with the rest.
        while cursor.load(Ordering::Relaxed) < handles.len() {
            if let Err(e) = tables.open_all(&handles, &cursor)
                && e.kind() == ErrorKind::NewerFormat
            {
                *newer.lock() = Some(e);
            }
        }
    };
    let helpers = threads.min(handles.len() / 8);
    #[allow(clippy::disallowed_methods)] // reads in parallel that end before this returns
    crate::threads::scope(|s| {
        for _ in 0..helpers {
            _ = try_spawn(s, one); // fewer helpers only take longer
        }
        one();
    });
    newer.into_inner().map_or(Ok(()), Err)
}

/// Closes a database whose last handle is dropped. A close waits for listeners and for background jobs, so a thread that may be in one of
/// these leaves it to another, which nothing waits for.
///
/// # Errors
/// As [`close`]; `Io` if that thread cannot be started. The database then stays open until the process ends.
pub(crate) fn close_for_last_handle(db: &Arc<DbInner>) -> Result<()> {
    if !Events::is_inside() && !db.jobs.is_own_thread() {
        return close(db);
    }
    let inner = db.clone();
    spawn_named("kingtide-close".to_owned(), move || drop(close(&inner)))
        .map_err(|e| Error::io("start a thread that closes", &db.dir, e))
}

/// Closes: no more commits; flushes what is in memtables; ends the threads, cancelling merges after the configured time.
pub(crate) fn close(db: &Arc<DbInner>) -> Result<()> {
    db.check_origin()?;
    if Events::is_inside() {
        return Err(Error::invalid(
            "an event listener cannot close a database: it is called by the threads that a close waits for",
        ));
    }
    if db.closed.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    if db.read_only.is_some() {
        db.stats.events.disconnect();
        return Ok(());
    }
    db.txns.locks.rouse_tasks(); // and they find it closed
    let timeout = db.options.read().close_timeout;
    // An ingest that writes the manifest now finishes; later ones see `closed` under this lock.
    drop(db.catalog.lock());
    // A commit that holds the lock now finishes; later ones see `closed` under the lock.
    let families: Vec<Arc<Family>> = {
        let mut c = db.commit.lock();
        let families = c.families.clone();
        for f in &families {
            db.seal_memtable(&mut c, f);
        }
        families
    };
    db.hooks.clear();
    db.reserve.remove(); // a closed database needs none, and the flush may need the space
    let flushed = match db.halted.load(Ordering::Acquire) {
        true => Err(db.halt_error()), // the log has what was committed
        false => flush_for_close(db, &families, timeout),
    };
    db.jobs.cancel();
    db.jobs.stop();
    db.reserve.remove(); // a job may just have made it
    db.forget_direct_logs(&families);
    db.remove_staged();
    db.tables.empty_trash();
    let ended = match db.wal.poison() {
        None => end_log(db).map(|()| {
            drop(db.prepared.take_given_up(db.wal.synced()));
            db.tables.empty_trash();
        }),
        Some(_) => Ok(()), // reported to the call that met it
    };
    let _ = db.guarded(|| db.settle_manifest()); // or the next open removes the files
    db.unpublish_stats();
    db.stats.events.tell(|| Event::Closed);
    db.stats.deliver_events();
    db.stats.events.disconnect();
    *db.file_lock.lock() = None;
    flushed.and(ended)
}

/// Ends the log with a synced marker and gives back the space that only a running database needs.
fn end_log(db: &Arc<DbInner>) -> Result<()> {
    db.release_log()?;
    let _ = db.shrink_log(); // what cannot be given back now is given back after the next open
    db.commit.lock().wal.close()?;
    db.wal.trim(0)
}

/// Flushes all immutable memtables. On failure what was logged is in the log, and the error says why it is not in tables: the first one. A
/// family whose flush fails does not keep those of others from being flushed, which may have commits that are in no log.
fn flush_for_close(db: &Arc<DbInner>, families: &[Arc<Family>], timeout: Duration) -> Result<()> {
    let start = db.clock.monotonic_ns();
    let (failures, mut failed) = (families.iter().map(|f| f.flush_failures.count()).collect::<Vec<_>>(), None);
    loop {
        if db.halted.load(Ordering::Acquire) {
            return Err(db.halt_error()); // another thread's job panicked just now
        }
        // One whose drop failed is flushed too: the next open may find it undropped.
        let waits = |f: &Family| !f.is_gone() && !f.view.load().immutable.is_empty();
        if !families.iter().zip(&failures).any(|(f, before)| waits(f) && f.flush_failures.count() == *before) {
            return failed
                .or_else(|| families.iter().zip(&failures).find_map(|(f, n)| f.flush_failures.since(*n, 1)))
                .map_or(Ok(()), Err);
        }
        let flushed = db.guarded(|| db.flush_one()).map_err(|e| e.context("flushing memtables at close"));
        let progress = flushed.unwrap_or_else(|e| {
            failed.get_or_insert(e);
            false
        });
        if !progress {
            db.jobs.wait_for_progress(Duration::from_millis(1)); // a background thread has the flush, or one failed
        }
        let waited = db.clock.monotonic_ns().saturating_sub(start);
        if waited > timeout.as_nanos() as u64 {
            // Merges hold the disk: they can be done again after the next open.
            db.jobs.cancel();
        }
        if waited > 10 * timeout.as_nanos().max(1_000_000_000) as u64 {
            return Err(Error::new(
                ErrorKind::Busy,
                "memtables could not be flushed in time; the log still holds them",
            ));
        }
    }
}
