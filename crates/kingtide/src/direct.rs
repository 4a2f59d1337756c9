//! Value logs that commits write: a large value goes into one before the commit, and the log record and the memtable hold a
//! pointer to it. So it is written once. This room knows files, not the database.
//!
//! The life of such a file:
//!
//! 1. A committing thread takes a [`DirectLog`] out of its family's [`DirectPool`], or makes one, appends its values,
//!    hands them to the system ([`DirectLog::flush`]), and puts it back. No lock of the database is held meanwhile, and
//!    several threads write several files. Where one memtable after the other has such files, a background thread makes
//!    them ahead: a file system may take a tenth of a second to make one.
//! 2. Under the commit lock the memtable that takes the pointers notes the file ([`DirectRefs::hold`]). The first memtable
//!    that does so **owns** it. A pointer may also reach a later memtable, when another thread filled and froze the owner
//!    meanwhile; that one only keeps the file, and its flush moves the value to a new log.
//! 3. The flush of the owner seals the file ([`DirectLog::seal`]): footer and sync, of the file's name too. From then on it is a value log like
//!    any other, which the manifest names. A thread that still has it in hand finds it sealed at its next append and takes
//!    another one; no thread waits for a commit, only for an append under way.
//! 4. A file that no table refers to in the end goes with its last handle: that of a memtable, of a view that holds the
//!    memtable, of the pool, or of the thread that writes.
//!
//! A value that comes in pieces ([`DirectLog::begin`]) has a file to itself, which no pool knows: its first memtable is the
//! one that takes the pointer. If nothing takes it, the file goes with its writer or the staged value. A prepared transaction
//! has a promise in between ([`DirectLog::promise`]): the log says that the file may be needed, so only the end of the
//! transaction decides about it ([`crate::txn::prepared`]). One that recovery found ([`DirectLog::recovered`]) takes no more
//! values; when its transaction commits, the first flush moves the value.
//!
//! Anything that writes memtables elsewhere (recovery, copies, ingests, clones) moves the values: only the flush that
//! seals a file may hand its pointers on. A file whose write or sync failed is never sealed; its values move too.

use crate::family::tables::{TableCache, VlogHandle};
use kingtide_base::names::vlog_path;
use kingtide_base::options::FamilyOptions;
use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use kingtide_base::{Error, ErrorKind, Result, SeqNo, rare};
use kingtide_table::{Codec, ValuePointer, VlogInfo, VlogMark, VlogValue, VlogWriter};
use kingtide_vfs::{File, Fs, OpenMode, sync_dir_patiently};
use kingtide_wal::SyncFirst;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// No memtable has pointers into the file yet.
const FREE: u64 = u64::MAX;
/// Nor has one now, but a prepared transaction does.
const PROMISED: u64 = u64::MAX - 1;

/// Values of one family that a commit wrote to one file.
pub(crate) struct Diverted {
    /// The family's index in the batch.
    pub family: u16,
    pub log: Arc<DirectLog>,
    /// As they are stored.
    pub bytes: u64,
}

/// What a log's sync must sync before when a record points into a file.
pub(crate) fn sync_first(log: &Arc<DirectLog>) -> Weak<dyn SyncFirst> {
    let log: Arc<dyn SyncFirst> = log.clone();
    Arc::downgrade(&log)
}

struct Writing {
    writer: VlogWriter,
    /// Nothing is appended any more: it is being sealed.
    closing: bool,
    sealed: Option<VlogInfo>,
    /// A write failed, that of the footer too, and the end of the file may be torn; or the sync did.
    broken: bool,
    /// The end of what the system has.
    whole: VlogMark,
}

impl Writing {
    /// After a write that failed. One that failed for want of space is undone: the values before it stay where they are, so
    /// that a flush can free space without moving them.
    fn failed(&mut self, e: Error) -> Error {
        let undone = e.kind() == ErrorKind::NoSpace && self.writer.rewind(self.whole).is_ok();
        if undone {
            rare!("direct-log-rewound");
        }
        self.broken = !undone;
        e
    }
}

#[derive(Default)]
struct Synced {
    up_to: u64,
    /// The file's name is durable.
    named: bool,
}

/// A value log that commits write.
pub(crate) struct DirectLog {
    handle: Arc<VlogHandle>,
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    file: Arc<dyn File>,
    writing: Mutex<Writing>,
    /// Bytes that the system has. Release and Acquire: a sync of as many bytes covers them all.
    written: AtomicU64,
    /// Bytes of a value that comes in pieces, for accounts of space. Relaxed.
    appended: AtomicU64,
    synced: Mutex<Synced>,
    /// A sync failed. Relaxed: set while `synced` is locked; a reader that does not lock it may miss a failure that is just happening.
    sync_failed: AtomicBool,
    /// The first sequence number of the memtable that owns it. Changed under the commit lock; a hint elsewhere.
    owner: AtomicU64,
    /// How many commits on their way, memtables that are not flushed, and prepared transactions point into it. Relaxed: a sync of the log that
    /// covers a commit's record sees that it was counted before the record was appended.
    needed: AtomicUsize,
}

impl DirectLog {
    /// Makes a file. Its name is not durable: that is left to the first sync of the file, so that no commit waits for it that
    /// does not wait for a sync.
    pub fn create(
        fs: &Arc<dyn Fs>,
        dir: &Path,
        tables: &TableCache,
        new_id: impl Fn() -> u64,
        options: &FamilyOptions,
    ) -> Result<Arc<DirectLog>> {
        let (id, file) = loop {
            let id = new_id();
            // A leftover of a crash that has the name is passed over, never overwritten.
            match fs.open(&vlog_path(dir, id), OpenMode::Create) {
                Ok(file) => break (id, file),
                Err(e) if e.kind() == ErrorKind::Exists => continue,
                Err(e) => return Err(e),
            }
        };
        let (codec, chunk) = (Codec::of_values(options), options.value_chunk_size as usize);
        let writer = VlogWriter::new_direct(file.clone(), id, codec, chunk);
        Ok(Arc::new(DirectLog {
            handle: tables.unfinished_vlog(id, Some(file.clone()), false),
            fs: fs.clone(),
            dir: dir.to_owned(),
            file,
            writing: Mutex::new(Writing {
                writer,
                closing: false,
                sealed: None,
                broken: false,
                whole: VlogMark::default(),
            }),
            written: AtomicU64::new(0),
            appended: AtomicU64::new(0),
            synced: Mutex::default(),
            sync_failed: AtomicBool::new(false),
            owner: AtomicU64::new(FREE),
            needed: AtomicUsize::new(0),
        }))
    }

    /// The file of a staged value that a transaction in doubt points to, as recovery found and synced it. It takes no values and
    /// is never sealed: its value moves when the transaction commits.
    pub fn recovered(
        fs: &Arc<dyn Fs>,
        dir: &Path,
        handle: Arc<VlogHandle>,
        options: &FamilyOptions,
    ) -> Result<Arc<DirectLog>> {
        let file = fs.open(&vlog_path(dir, handle.id()), OpenMode::Read)?;
        let size = file.len()?;
        let (codec, chunk) = (Codec::of_values(options), options.value_chunk_size as usize);
        let writer = VlogWriter::new_direct(file.clone(), handle.id(), codec, chunk);
        Ok(Arc::new(DirectLog {
            handle,
            fs: fs.clone(),
            dir: dir.to_owned(),
            file,
            writing: Mutex::new(Writing {
                writer,
                closing: true,
                sealed: None,
                broken: true,
                whole: VlogMark::default(),
            }),
            written: AtomicU64::new(size),
            appended: AtomicU64::new(size),
            synced: Mutex::new(Synced { up_to: size, named: true }),
            sync_failed: AtomicBool::new(false),
            owner: AtomicU64::new(PROMISED),
            needed: AtomicUsize::new(1),
        }))
    }

    /// Makes the names of new files durable, at one sync for all of them, so that the syncs of the files need not.
    pub fn sync_names(logs: &[Arc<DirectLog>]) -> Result<()> {
        let Some(any) = logs.first() else { return Ok(()) };
        sync_dir_patiently(&*any.fs, &any.dir)?;
        logs.iter().for_each(|log| log.synced.lock().named = true);
        Ok(())
    }

    /// The file id.
    pub fn id(&self) -> u64 {
        self.handle.id()
    }

    /// Appends values, all or none; `None` when the file takes no more. They count as handed to the system after
    /// [`DirectLog::flush`].
    pub fn append(&self, values: &[VlogValue<'_>]) -> Result<Option<Vec<ValuePointer>>> {
        let mut w = self.writing.lock();
        if w.closing || w.broken {
            rare!("direct-log-sealed-in-hand");
            return Ok(None);
        }
        w.broken = true; // should the append panic, bytes lie behind the last whole value
        let appended = w.writer.append_all(values);
        w.broken = false;
        appended.map(Some).map_err(|e| w.failed(e))
    }

    /// Begins a value that comes in pieces, by [`DirectLog::extend`], until [`DirectLog::end`]. The file must be this
    /// thread's alone until then.
    pub fn begin(&self) -> Result<()> {
        self.piece(VlogWriter::begin)
    }

    /// Appends a piece of the value that was begun. After an error the file is of no further use.
    pub fn extend(&self, bytes: &[u8]) -> Result<()> {
        self.piece(|w| w.extend(bytes))
    }

    /// Ends the value that was begun, and hands it to the system. The file takes no further value, so the writer's memory is released:
    /// with the largest chunks, 16 MiB for each value that awaits its flush.
    pub fn end(&self) -> Result<ValuePointer> {
        let pointer = self.piece(VlogWriter::end)?;
        self.flush()?;
        self.writing.lock().writer.release_memory();
        Ok(pointer)
    }

    fn piece<R>(&self, append: impl FnOnce(&mut VlogWriter) -> Result<R>) -> Result<R> {
        let mut w = self.writing.lock();
        if w.broken {
            return Err(Error::new(ErrorKind::Io, "an earlier write failed").at_path(self.file.path()));
        }
        let appended = append(&mut w.writer);
        w.broken = appended.is_err();
        self.appended.store(w.writer.written(), Ordering::Relaxed);
        appended
    }

    /// Bytes of a value that comes in pieces, so far. Waits for no append, as [`DirectLog::size`] does.
    pub fn appended(&self) -> u64 {
        self.appended.load(Ordering::Relaxed)
    }

    /// Whether neither a memtable nor a prepared transaction has a pointer into it. Certain under the commit lock, a hint
    /// elsewhere.
    pub fn is_free(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == FREE
    }

    /// Whether no memtable took a pointer into it. Certain under the commit lock, a hint elsewhere.
    pub fn is_staged(&self) -> bool {
        self.owner.load(Ordering::Relaxed) >= PROMISED
    }

    /// A prepare record that points into it was logged: no other commit may take it, and a close must leave it. Called
    /// under the commit lock.
    pub fn promise(&self) {
        self.need(); // for good: whether the transaction was flushed is not asked
        self.owner.store(PROMISED, Ordering::Relaxed);
    }

    /// Has syncs of the log fail if this file cannot be synced, until [`DirectLog::let_go`]. A commit calls it before its record is appended.
    pub fn need(&self) {
        self.needed.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes one [`DirectLog::need`] back: memtables have taken the pointers, or they were flushed.
    pub fn let_go(&self) {
        self.needed.fetch_sub(1, Ordering::Relaxed);
    }

    /// Makes what was written before the call durable.
    ///
    /// # Errors
    /// Of the sync. Once this failed it fails for ever.
    pub fn make_durable(&self) -> Result<()> {
        let mut synced = self.synced.lock();
        self.check_intact()?;
        if !synced.named {
            // Which fails for ever once it failed.
            sync_dir_patiently(&*self.fs, &self.dir)?;
            synced.named = true;
        }
        let written = self.written.load(Ordering::Acquire);
        if synced.up_to < written {
            if let Err(e) = self.file.sync_data() {
                // The system may have marked the pages clean: a later success would mean nothing.
                self.sync_failed.store(true, Ordering::Relaxed);
                return Err(e.at_path(self.file.path()));
            }
            synced.up_to = written;
        }
        Ok(())
    }

    /// Fails if a sync of the file failed, so that a log with pointers into it could never be synced. Waits for a sync under way.
    pub fn check_synced(&self) -> Result<()> {
        drop(self.synced.lock());
        self.check_intact()
    }

    /// The same without waiting.
    pub fn check_intact(&self) -> Result<()> {
        if !self.sync_failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Io, "an earlier sync failed").at_path(self.file.path()))
    }

    /// What keeps the file.
    pub fn handle(&self) -> &Arc<VlogHandle> {
        &self.handle
    }

    /// Hands what was appended to the system.
    pub fn flush(&self) -> Result<()> {
        let mut w = self.writing.lock();
        if w.broken {
            return Err(Error::new(ErrorKind::Io, "an earlier write failed").at_path(self.file.path()));
        }
        if w.closing && w.sealed.is_some() {
            return Ok(()); // sealing did it
        }
        let flushed = w.writer.flush().map_err(|e| w.failed(e));
        if flushed.is_ok() {
            w.whole = w.writer.mark();
        }
        self.written.store(w.writer.written(), Ordering::Release);
        flushed
    }

    /// Bytes appended.
    pub fn size(&self) -> u64 {
        self.writing.lock().writer.written()
    }

    /// Writes the footer and makes the file durable; waits for an append under way. `None`: the file is broken, so its
    /// values must move. A file that was sealed stays so.
    pub fn seal(&self) -> Result<Option<VlogInfo>> {
        let mut w = match self.writing.try_lock() {
            Some(w) => w,
            None => {
                rare!("direct-log-seal-waited");
                self.writing.lock()
            }
        };
        if w.broken {
            rare!("direct-log-broken");
            return Ok(None);
        }
        if let Some(info) = w.sealed {
            return Ok(Some(info));
        }
        w.closing = true;
        let info = match w.writer.seal() {
            Ok(info) => info,
            Err(e) => {
                // Once there is space, the next try goes on. The disk may never take the footer, but the flush needs none.
                w.broken = e.kind() != ErrorKind::NoSpace;
                return Err(e);
            }
        };
        self.written.store(info.file_size, Ordering::Release);
        if let Err(e) = self.make_durable() {
            w.broken = true;
            return Err(e);
        }
        w.sealed = Some(info);
        self.handle.finished();
        Ok(Some(info))
    }

    /// Whether it can never be sealed, so that its values must move.
    fn is_broken(&self) -> bool {
        self.writing.lock().broken
    }

    /// Whether the file stays after its last handle, because the manifest names it.
    pub fn keep(&self, keep: bool) {
        self.handle.keep(keep);
    }

    fn is_stale(&self, active: SeqNo) -> bool {
        !matches!(self.owner.load(Ordering::Relaxed), FREE) && self.owner.load(Ordering::Relaxed) != active
    }
}

impl Drop for DirectLog {
    fn drop(&mut self) {
        if self.appended() > 0 && self.is_free() {
            rare!("staged-value-given-up"); // its file goes with the handle
        }
    }
}

impl SyncFirst for DirectLog {
    fn sync_first(&self) -> Result<()> {
        match self.make_durable() {
            // Records still point into it, but recovery passes over them: flushes have moved the values, and the manifest says so.
            Err(_) if self.needed.load(Ordering::Relaxed) == 0 => Ok(()),
            synced => synced,
        }
    }
}

impl std::fmt::Debug for DirectLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirectLog({})", self.id())
    }
}

/// At most so many files of a family wait for their first value.
const MOST_SPARES: usize = 16;

/// The files of a family that no committing thread has checked out.
#[derive(Default)]
pub(crate) struct DirectPool(Mutex<Idle>);

#[derive(Default)]
struct Idle {
    /// Those that have values.
    begun: Vec<Arc<DirectLog>>,
    /// Those that have none.
    spares: Vec<Arc<DirectLog>>,
    /// The first sequence number of the memtable for which a file was begun last.
    memtable: SeqNo,
    /// How many were begun for that memtable, and for the one before that had any.
    count: usize,
    count_before: usize,
}

impl Idle {
    /// How many spares there should be: as many as the next memtable will ask for, judging by this one. None for the first one, which
    /// may have a large value by chance.
    fn wanted(&self) -> usize {
        self.count.min(self.count_before).min(MOST_SPARES)
    }
}

impl DirectPool {
    /// A file with values for the memtable that begins with sequence number `active`, if there is one.
    pub fn take(&self, active: SeqNo) -> Option<Arc<DirectLog>> {
        let mut idle = self.0.lock();
        idle.begun.retain(|log| !log.is_stale(active));
        idle.begun.pop()
    }

    /// A file without values for that memtable, if there is a spare, and whether more spares should be made.
    pub fn begin(&self, active: SeqNo) -> (Option<Arc<DirectLog>>, bool) {
        let mut idle = self.0.lock();
        if idle.memtable != active {
            (idle.memtable, idle.count_before, idle.count) = (active, idle.count, 0);
        }
        idle.count += 1;
        let spare = idle.spares.pop();
        (spare, idle.spares.len() < idle.wanted())
    }

    /// How many spares should be made.
    pub fn missing(&self) -> usize {
        let idle = self.0.lock();
        idle.wanted().saturating_sub(idle.spares.len())
    }

    /// Adds spares.
    pub fn add_spares(&self, logs: Vec<Arc<DirectLog>>) {
        self.0.lock().spares.extend(logs);
    }

    /// Forgets the files of memtables before the one that begins with `active`, and spares that it will not need.
    pub fn prune(&self, active: SeqNo) {
        let mut idle = self.0.lock();
        idle.begun.retain(|log| !log.is_stale(active));
        let needed = idle.count.max(idle.count_before).min(MOST_SPARES);
        idle.spares.truncate(needed);
    }

    /// Puts a file back.
    pub fn put(&self, log: Arc<DirectLog>) {
        self.0.lock().begun.push(log);
    }

    /// Forgets all files: threads that still need one hold it.
    pub fn clear(&self) {
        let _files = std::mem::take(&mut *self.0.lock());
    }
}

/// A file that a memtable points into.
struct Held {
    handle: Arc<VlogHandle>,
    /// `None` for one that recovery found.
    log: Option<Arc<DirectLog>>,
    owned: bool,
    /// Bytes of the file that [`DirectRefs::files`] has.
    counted: u64,
}

/// The value logs that a memtable points into.
#[derive(Default)]
pub struct DirectRefs {
    held: Mutex<Vec<Held>>,
    /// Bytes of the values. Relaxed: written under the commit lock, or by recovery, which is alone.
    bytes: AtomicU64,
    /// Bytes of the files that it owns, as they were when it got its last pointer into each, and of those that recovery found: values of
    /// commits that failed too. Relaxed, as `bytes`.
    files: AtomicU64,
    /// It does not need the files any more: see [`DirectRefs::retire`]. Relaxed: set once.
    retired: AtomicBool,
}

impl DirectRefs {
    /// Notes that the memtable which begins with `memtable` gets pointers to values of `bytes` bytes together. Called under
    /// the commit lock before they are inserted.
    pub(crate) fn hold(&self, log: &Arc<DirectLog>, memtable: SeqNo, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let written = log.written.load(Ordering::Relaxed);
        let mut held = self.held.lock();
        if let Some(known) = held.iter_mut().find(|h| h.handle.id() == log.id()) {
            if known.owned {
                self.files.fetch_add(written.saturating_sub(known.counted), Ordering::Relaxed);
                known.counted = known.counted.max(written);
            }
            return;
        }
        let owned = match log.owner.load(Ordering::Relaxed) {
            FREE | PROMISED => {
                log.owner.store(memtable, Ordering::Relaxed);
                true
            }
            _ => {
                rare!("direct-value-after-rotation");
                false
            }
        };
        let counted = if owned { written } else { 0 };
        self.files.fetch_add(counted, Ordering::Relaxed);
        log.need();
        held.push(Held { handle: log.handle.clone(), log: Some(log.clone()), owned, counted });
    }

    /// The same for recovery: the file only has to stay.
    ///
    /// `size`: bytes of the file, of those that memtables count; 0 if another one counts them.
    pub(crate) fn hold_recovered(&self, handle: &Arc<VlogHandle>, bytes: u64, size: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut held = self.held.lock();
        if !held.iter().any(|h| Arc::ptr_eq(&h.handle, handle)) {
            self.files.fetch_add(size, Ordering::Relaxed);
            held.push(Held { handle: handle.clone(), log: None, owned: false, counted: size });
        }
    }

    /// The number of files that it owns. They are open until the memtable is flushed.
    pub(crate) fn open_files(&self) -> usize {
        self.held.lock().iter().filter(|h| h.owned).count()
    }

    /// Ids of the files.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.held.lock().iter().map(|h| h.handle.id()).collect()
    }

    /// Bytes of the values that it points to, as they are stored.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes on the disk that a flush makes part of the family, or gives back: of the values that it points to, or of its files if that is
    /// more: files also have values of commits that failed, to which no memtable ever points.
    pub fn disk_bytes(&self) -> u64 {
        self.bytes().max(self.files.load(Ordering::Relaxed))
    }

    /// The memtable was flushed, and the manifest says so, or its family was dropped: what only readers may still look up need not be durable.
    pub(crate) fn retire(&self) {
        if !self.retired.swap(true, Ordering::Relaxed) {
            self.held.lock().iter().filter_map(|h| h.log.as_ref()).for_each(|log| log.let_go());
        }
    }

    /// The family was dropped, and no record of the manifest names any of the files now.
    pub(crate) fn give_up(&self) {
        self.held.lock().iter().filter_map(|h| h.log.as_ref()).for_each(|log| log.keep(false));
    }

    /// Bytes of the files that the manifest does not name as long as it is not flushed: those that it owns, and those that recovery
    /// found for it.
    pub(crate) fn file_bytes(&self) -> u64 {
        let bytes = |h: &Held| match &h.log {
            Some(log) if h.owned => log.written.load(Ordering::Relaxed),
            Some(_) => 0,
            None => h.counted,
        };
        self.held.lock().iter().map(bytes).sum()
    }

    /// Seals the files that the memtable owns: those that its tables may refer to. The memtable is sealed, so no pointer
    /// is added. Values in its other files must move, and so must those in a file that can never be sealed. The error of one whose seal
    /// failed now goes to `report` at once: no later call returns it, whatever becomes of the others.
    ///
    /// # Errors
    /// `NoSpace`. The next call goes on with the file that found none.
    pub(crate) fn seal(&self, mut report: impl FnMut(Error)) -> Result<Vec<(Arc<DirectLog>, VlogInfo)>> {
        let owned: Vec<_> = self.held.lock().iter().filter(|h| h.owned).filter_map(|h| h.log.clone()).collect();
        let mut sealed = Vec::with_capacity(owned.len());
        for log in owned {
            match log.seal() {
                Ok(info) => sealed.extend(info.map(|info| (log, info))),
                Err(e) if log.is_broken() => {
                    rare!("direct-log-broken");
                    report(e);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::stats::Stats;
    use kingtide_mem::cache::BlockCache;
    use kingtide_table::Vlog;
    use kingtide_vfs::{Fault, FaultFs, MemFs, Op, Rule};
    use std::path::PathBuf;

    const DIR: &str = "db";

    struct World {
        fs: Arc<dyn Fs>,
        faults: Arc<FaultFs>,
        tables: Arc<TableCache>,
        next: AtomicU64,
    }

    impl World {
        fn new() -> World {
            let faults = Arc::new(FaultFs::new(MemFs::shared(), 1));
            let fs: Arc<dyn Fs> = faults.clone();
            fs.create_dir_all(Path::new(DIR)).unwrap();
            let stats = Arc::new(Stats::default());
            let blocks = BlockCache::new(0, 1, stats.clone());
            let tables = TableCache::new(fs.clone(), PathBuf::from(DIR), blocks, stats, 100);
            World { fs, faults, tables, next: AtomicU64::new(1) }
        }

        fn log(&self) -> Arc<DirectLog> {
            let id = || self.next.fetch_add(1, Ordering::Relaxed);
            DirectLog::create(&self.fs, Path::new(DIR), &self.tables, id, &FamilyOptions::default()).unwrap()
        }

        fn exists(&self, id: u64) -> bool {
            self.fs.exists(&vlog_path(Path::new(DIR), id)).unwrap()
        }
    }

    fn append(log: &DirectLog, value: &[u8]) -> Result<Option<ValuePointer>> {
        Ok(log.append(&[VlogValue::Plain(value)])?.map(|pointers| pointers[0]))
    }

    fn value(i: u8) -> Vec<u8> {
        vec![i; 3000]
    }

    #[test]
    fn a_sealed_value_log_takes_no_more_and_is_a_value_log() {
        let w = World::new();
        let log = w.log();
        let pointers: Vec<_> = (0..5).map(|i| append(&log, &value(i)).unwrap().unwrap()).collect();
        log.flush().unwrap();
        let mut out = Vec::new();
        let read = |p: &ValuePointer, out: &mut Vec<u8>| w.tables.vlog(p.file_id).unwrap().read(p, out);
        for (i, p) in pointers.iter().enumerate() {
            read(p, &mut out).unwrap();
            assert_eq!(out, value(i as u8), "while it is written");
        }
        let info = log.seal().unwrap().unwrap();
        assert_eq!(append(&log, b"late").unwrap(), None);
        assert_eq!((info.values, log.seal().unwrap()), (5, Some(info)), "sealing again changes nothing");
        log.flush().unwrap();
        let file = w.fs.open(&vlog_path(Path::new(DIR), log.id()), OpenMode::Read).unwrap();
        assert_eq!(file.len().unwrap(), info.file_size);
        let vlog = Vlog::open(file, log.id()).unwrap();
        vlog.verify().unwrap();
        for (i, p) in pointers.iter().enumerate() {
            read(p, &mut out).unwrap();
            assert_eq!(out, value(i as u8), "when it is sealed");
        }
    }

    #[test]
    fn a_file_goes_with_the_last_memtable_that_needs_it() {
        let w = World::new();
        let (pool, memtable, later) = (DirectPool::default(), DirectRefs::default(), DirectRefs::default());
        let log = w.log();
        let id = log.id();
        append(&log, b"value").unwrap();
        log.flush().unwrap();
        memtable.hold(&log, 1, 5);
        later.hold(&log, 10, 5);
        assert_eq!((memtable.ids(), later.ids(), memtable.bytes()), (vec![id], vec![id], 5));
        pool.put(log);
        assert!(pool.take(10).is_none(), "it belongs to an earlier memtable");
        let sealed = |refs: &DirectRefs| refs.seal(|e| panic!("{e}")).unwrap().len();
        assert_eq!(sealed(&later), 0, "its flush moves the value");
        assert_eq!(sealed(&memtable), 1);
        drop(memtable);
        w.tables.empty_trash();
        assert!(w.exists(id));
        drop(later);
        assert_eq!((w.tables.empty_trash(), w.exists(id)), (1, false));

        let log = w.log();
        let id = log.id();
        log.keep(true); // the manifest names it
        drop(log);
        assert_eq!((w.tables.empty_trash(), w.exists(id)), (0, true));
    }

    /// Each failed sync is reported, by the call that made it: the next one finds a broken file, whose values move.
    #[test]
    fn a_seal_that_finds_no_space_reports_the_syncs_that_failed_before() {
        let (w, memtable) = (World::new(), DirectRefs::default());
        let logs: Vec<_> = (0..4).map(|_| w.log()).collect();
        for log in &logs {
            append(log, b"value").unwrap();
            log.flush().unwrap();
            memtable.hold(log, 1, 5);
        }
        for log in &logs[..2] {
            w.faults.add(Rule::new(Op::Sync, Fault::Eio).path(log.file.path().to_str().unwrap()));
        }
        w.faults.add(Rule::new(Op::Write, Fault::Enospc).path(logs[2].file.path().to_str().unwrap()));
        let mut reported = Vec::new();
        let full = memtable.seal(|e| reported.push(e.kind())).unwrap_err();
        assert_eq!((full.kind(), reported), (ErrorKind::NoSpace, vec![ErrorKind::Io; 2]));
        let sealed = memtable.seal(|e| panic!("reported already: {e}")).unwrap();
        assert_eq!(sealed.iter().map(|(log, _)| log.id()).collect::<Vec<_>>(), [logs[2].id(), logs[3].id()]);
    }

    /// A commit on its way needs it, and so does each memtable that is not flushed.
    #[test]
    fn a_file_that_cannot_be_synced_matters_to_the_log_as_long_as_it_is_needed() {
        let w = World::new();
        let (log, memtable, later) = (w.log(), DirectRefs::default(), DirectRefs::default());
        append(&log, b"value").unwrap();
        log.flush().unwrap();
        w.faults.add(Rule::new(Op::Sync, Fault::Eio).nth(1));
        log.need();
        log.sync_first().unwrap_err();
        (0..2).for_each(|_| memtable.hold(&log, 1, 5));
        later.hold(&log, 10, 5);
        log.let_go();
        for refs in [&memtable, &later] {
            log.sync_first().unwrap_err();
            (0..2).for_each(|_| refs.retire());
        }
        log.sync_first().unwrap();
        log.make_durable().unwrap_err();
    }

    #[test]
    fn a_pool_gives_what_the_memtable_may_use() {
        let w = World::new();
        let pool = DirectPool::default();
        let (fresh, used) = (w.log(), w.log());
        used.owner.store(7, Ordering::Relaxed);
        pool.put(used.clone());
        assert!(Arc::ptr_eq(&pool.take(7).unwrap(), &used));
        assert!(pool.take(7).is_none(), "no other taker has it meanwhile");
        pool.put(fresh.clone());
        pool.put(used);
        assert!(Arc::ptr_eq(&pool.take(8).unwrap(), &fresh));
        assert!(pool.take(8).is_none());
    }

    /// As many spares as memtables begin files, once two in a row have begun some, and no more than that.
    #[test]
    fn a_pool_asks_for_as_many_spares_as_a_memtable_takes() {
        let w = World::new();
        let pool = DirectPool::default();
        let begin = |memtable| pool.begin(memtable).0.is_some();
        (0..3).for_each(|_| assert!(!begin(1)));
        assert_eq!(pool.missing(), 0, "large values of one memtable may be there by chance");
        assert!(!begin(5) && !begin(5));
        assert_eq!(pool.missing(), 2);
        pool.add_spares(vec![w.log(), w.log()]);
        assert_eq!(pool.missing(), 0);
        let first = pool.begin(9);
        assert!(first.0.is_some_and(|log| log.is_free()));
        assert!(!first.1, "the one that is left is as many as this memtable has begun");
        assert!(pool.begin(9).1);
        assert_eq!(pool.missing(), 2);
        pool.add_spares((0..40).map(|_| w.log()).collect());
        pool.prune(9);
        w.tables.empty_trash();
        let left = || (1..50).filter(|id| w.exists(*id)).count();
        assert_eq!(left(), 2);
        for memtable in 10..12 {
            (0..60).for_each(|_| drop(pool.begin(memtable)));
        }
        assert_eq!(pool.missing(), 16, "however many threads there are");
        pool.add_spares(vec![w.log()]);
        pool.clear();
        w.tables.empty_trash();
        assert_eq!((left(), pool.missing()), (0, 0));
    }

    #[test]
    fn names_that_are_durable_are_not_synced_again() {
        let w = World::new();
        let logs = [w.log(), w.log()];
        DirectLog::sync_names(&logs).unwrap();
        w.faults.add(Rule::new(Op::SyncDir, Fault::Eio).nth(1));
        append(&logs[0], b"value").unwrap();
        logs[0].flush().unwrap();
        assert!(logs[0].seal().unwrap().is_some());
        append(&logs[1], b"value").unwrap();
        logs[1].flush().unwrap();
        logs[1].make_durable().unwrap();
    }

    /// Values before it stay, a part of it that was written does not, and no more does what came with it in one batch.
    #[test]
    fn a_value_that_does_not_fit_on_the_disk_is_taken_back() {
        for (writes, large) in [(1, true), (1, false), (3, true)] {
            let w = World::new();
            let log = w.log();
            let first = append(&log, b"first").unwrap().unwrap();
            log.flush().unwrap();
            let end = log.size();
            w.faults.add(Rule::new(Op::Write, Fault::Enospc).nth(writes));
            let long = (0..if large { 2_000_000u32 } else { 100 })
                .map(|i| (i.wrapping_mul(i) >> 7) as u8)
                .collect::<Vec<u8>>();
            let both = [VlogValue::Plain(b"with it"), VlogValue::Plain(&long)];
            let failed = log.append(&both).unwrap_err();
            assert_eq!((failed.kind(), log.size()), (ErrorKind::NoSpace, end));
            log.flush().unwrap();
            let last = append(&log, b"last").unwrap().unwrap();
            assert_eq!(last.offset, end);
            // The footer does not fit either at first.
            w.faults.add(Rule::new(Op::Write, Fault::Enospc).nth(1));
            assert_eq!(log.seal().unwrap_err().kind(), ErrorKind::NoSpace);
            log.flush().unwrap();
            let info = log.seal().unwrap().expect("it is whole");
            assert_eq!(info.values, 2);
            let vlog = Vlog::open(w.fs.open(&vlog_path(Path::new(DIR), log.id()), OpenMode::Read).unwrap(), log.id());
            let vlog = vlog.unwrap();
            vlog.verify().unwrap();
            let mut out = Vec::new();
            for (p, value) in [(first, "first"), (last, "last")] {
                vlog.read(&p, &mut out).unwrap();
                assert_eq!(out, value.as_bytes());
            }
        }
    }

    #[test]
    fn after_a_failed_write_or_sync_a_file_is_never_sealed() {
        for (op, footer) in [(Op::Write, false), (Op::Write, true), (Op::Sync, false)] {
            let w = World::new();
            let log = w.log();
            append(&log, b"first").unwrap();
            log.flush().unwrap();
            w.faults.add(Rule::new(op, Fault::Eio).nth(1));
            match op {
                Op::Write if footer => {
                    log.seal().unwrap_err();
                    assert!(append(&log, b"more").unwrap().is_none());
                }
                Op::Write => {
                    let appended = append(&log, &value(1));
                    assert!(appended.is_err() || log.flush().is_err());
                    assert!(append(&log, b"more").unwrap().is_none());
                }
                _ => {
                    log.make_durable().unwrap_err();
                    log.make_durable().expect_err("a sync that succeeds after one that failed means nothing");
                    log.seal().unwrap_err();
                }
            }
            assert_eq!(log.seal().unwrap(), None, "{op:?}");
        }
    }
}
