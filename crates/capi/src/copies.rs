//! Copies: checkpoints, backups, clones, exports, and files made outside of a database.

use crate::abi::{self, Sized_, array, borrow, bytes, check_size, config, fill, flag, need, out_handle, set_if};
use crate::db::kingtide_db;
use crate::error::{guard, kingtide_error, kingtide_status, quietly};
use crate::family::kingtide_family;
use kingtide::backup::{Backup, BackupInfo, BackupOptions, BackupProgress};
use kingtide::{
    CheckpointInfo, ColumnFamily, Error, ErrorKind, ExportInfo, IngestOptions, Result, SortedFile, SortedFileWriter,
};
use kingtide_base::clock::unix_ms_of_time;
use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::ptr;
use std::time::Duration;

/// Called from time to time with the progress of a long operation. Not 0 cancels it with CANCELLED. Must neither unwind nor jump
/// out.
pub type kingtide_progress_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, done_bytes: u64, total_bytes: u64) -> i32>;

/// Information about a checkpoint.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_checkpoint_info {
    /// `sizeof(kingtide_checkpoint_info)`, set by the caller.
    pub size: usize,
    /// It holds every commit up to this sequence number and none after it.
    pub sequence: u64,
    /// Tables and value logs that it shares with the database by hard links.
    pub linked_files: u64,
    /// Bytes of these.
    pub linked_bytes: u64,
    /// Tables and value logs that could not be linked, and were copied.
    pub copied_files: u64,
    /// Bytes of these.
    pub copied_bytes: u64,
}
// SAFETY: numbers only, the size first.
unsafe impl Sized_ for kingtide_checkpoint_info {
    const NAME: &'static str = "kingtide_checkpoint_info";
}

/// Fills a struct unless the caller does not want it.
///
/// # Safety
/// As [`fill`].
unsafe fn fill_if<T: Sized_>(place: *mut T, value: T) -> Result<()> {
    if place.is_null() { Ok(()) } else { fill(place, value) }
}

/// Makes a copy of the database in a directory that is empty or absent, as of one moment, transactions in doubt included. It
/// shares the immutable files by hard links where that is possible. Commits go on. `info` may be NULL.
///
/// Errors: EXISTS (the directory holds anything), INVALID_ARGUMENT (it is inside the database's own), LOCKED (another copy is being made
/// there), CORRUPTION (a file is missing), IO, NO_SPACE, CLOSED, READ_ONLY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_checkpoint(
    db: Option<&kingtide_db>,
    path: *const c_char,
    info: *mut kingtide_checkpoint_info,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        check_size(info)?;
        let made = need(db, "db")?.db.checkpoint(abi::path(path, "path")?)?;
        let CheckpointInfo { sequence, linked_files, linked_bytes, copied_files, copied_bytes, .. } = made;
        let shown =
            kingtide_checkpoint_info { size: 0, sequence, linked_files, linked_bytes, copied_files, copied_bytes };
        fill_if(info, shown)
    })
}

/// Information about a backup.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_backup_info {
    /// `sizeof(kingtide_backup_info)`, set by the caller.
    pub size: usize,
    /// Its number, ascending with time.
    pub id: u64,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// It holds every commit up to this sequence number and none after it.
    pub sequence: u64,
    /// The number of its files.
    pub files: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Files that no backup held before it was made.
    pub new_files: u64,
    /// Bytes of these.
    pub new_bytes: u64,
}
// SAFETY: numbers only, the size first.
unsafe impl Sized_ for kingtide_backup_info {
    const NAME: &'static str = "kingtide_backup_info";
}

impl From<BackupInfo> for kingtide_backup_info {
    fn from(b: BackupInfo) -> kingtide_backup_info {
        let BackupInfo { id, created, sequence, files, bytes, new_files, new_bytes, .. } = b;
        let created_ms = unix_ms_of_time(created);
        kingtide_backup_info { size: 0, id, created_ms, sequence, files, bytes, new_files, new_bytes }
    }
}

/// Options for making, verifying or restoring a backup.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_backup_options {
    /// `sizeof(kingtide_backup_options)`.
    pub size: usize,
    /// Not 0: do not flush memtables before making the backup.
    pub no_flush: i32,
    /// Not 0: do not read a file again that an earlier backup took from this database under the same name and with the same
    /// size. Not safe if the directory was copied by other means than checkpoints and backups.
    pub trust_names: i32,
    /// The maximum number of bytes to read per second; 0 for no limit.
    pub rate_limit: u64,
    /// Called with the progress; may be NULL.
    pub progress: kingtide_progress_fn,
    /// The context passed to it.
    pub progress_context: *mut c_void,
}
// SAFETY: numbers, raw pointers and a function pointer that may be NULL, the size first.
unsafe impl Sized_ for kingtide_backup_options {
    const NAME: &'static str = "kingtide_backup_options";
}

/// Runs an operation with options as the engine has them.
///
/// # Safety
/// As [`config`], and its callback can be called with its context.
unsafe fn with_options<T>(
    options: *const kingtide_backup_options,
    work: impl FnOnce(BackupOptions<'_>) -> Result<T>,
) -> Result<T> {
    let given = config(options)?;
    let mut told = |p: BackupProgress| match given.progress {
        Some(f) if f(given.progress_context, p.done_bytes, p.total_bytes) != 0 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let options = BackupOptions::new().flush(!flag(given.no_flush)).trust_names(flag(given.trust_names));
    work(options.rate_limit(given.rate_limit).progress(&mut told))
}

/// A directory of backups, of any databases. Any number of threads may use it at once.
pub struct kingtide_backup(Backup);

/// Refers to the directory of backups at `path`. Changes nothing: the first backup creates the directory. Free it with
/// `kingtide_backup_free`.
///
/// Errors: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_backup_open(
    path: *const c_char,
    backup: *mut *mut kingtide_backup,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(backup, "backup")?;
        out.set(kingtide_backup(Backup::at(abi::path(path, "path")?)));
        Ok(())
    })
}

/// Backs up a database, as of one moment. Files that the directory already holds are not stored again. Commits continue.
/// `options` and `info` may be NULL.
///
/// Errors: INVALID_ARGUMENT (the directory is inside the database's own), LOCKED (another process or handle changes it), CANCELLED,
/// CORRUPTION, IO, NO_SPACE, CLOSED, READ_ONLY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_backup_create(
    backup: Option<&kingtide_backup>,
    db: Option<&kingtide_db>,
    options: *const kingtide_backup_options,
    info: *mut kingtide_backup_info,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        check_size(info)?;
        let (backup, db) = (need(backup, "backup")?, need(db, "db")?);
        fill_if(info, with_options(options, |o| backup.0.create(&db.db, o))?.into())
    })
}

/// Describes a backup.
///
/// Errors: NOT_FOUND, CORRUPTION, NEWER_FORMAT, IO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_backup_get_info(
    backup: Option<&kingtide_backup>,
    id: u64,
    info: *mut kingtide_backup_info,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || fill(info, need(backup, "backup")?.0.info(id)?.into()))
}

/// The numbers of backups, ascending. Does not change; any thread may read it.
pub struct kingtide_backup_list(Vec<u64>);

/// Lists all backups, readable or not; call `kingtide_backup_get_info` for each.
///
/// Errors: IO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_backup_list_all(
    backup: Option<&kingtide_backup>,
    list: *mut *mut kingtide_backup_list,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(list, "list")?;
        out.set(kingtide_backup_list(need(backup, "backup")?.0.ids()?));
        Ok(())
    })
}

/// Returns the number of elements.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_backup_list_count(list: Option<&kingtide_backup_list>) -> usize {
    list.map_or(0, |l| l.0.len())
}

/// Returns the number at an index from 0; `UINT64_MAX` after the last.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_backup_list_get(list: Option<&kingtide_backup_list>, index: usize) -> u64 {
    list.and_then(|l| l.0.get(index)).copied().unwrap_or(u64::MAX)
}

/// Frees a list. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_backup_list_free(list: Option<Box<kingtide_backup_list>>) {
    drop(list);
}

/// Reads every file of a backup and compares it with its checksum. `options` may be NULL.
///
/// Errors: CORRUPTION (the first file that is damaged or missing), NOT_FOUND, CANCELLED, IO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_backup_verify(
    backup: Option<&kingtide_backup>,
    id: u64,
    options: *const kingtide_backup_options,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let backup = need(backup, "backup")?;
        with_options(options, |o| backup.0.verify(id, o))
    })
}

/// Restores a backup as a database in a directory that is empty or absent. Every checksum is checked. `options` may be
/// NULL.
///
/// Errors: CORRUPTION, NOT_FOUND, EXISTS, INVALID_ARGUMENT (inside the directory of backups), CANCELLED, LOCKED, IO, NO_SPACE. The copied
/// files are then removed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_backup_restore(
    backup: Option<&kingtide_backup>,
    id: u64,
    target: *const c_char,
    options: *const kingtide_backup_options,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (backup, target) = (need(backup, "backup")?, abi::path(target, "target")?);
        with_options(options, |o| backup.0.restore_to(id, &kingtide::vfs::SystemFs::shared(), target, o))
    })
}

/// Deletes a backup, and the files that no other backup needs.
///
/// Errors: NOT_FOUND, LOCKED, CORRUPTION (another backup is damaged: this one is deleted, its files are not), IO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_backup_delete(
    backup: Option<&kingtide_backup>,
    id: u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(backup, "backup")?.0.delete(id))
}

/// Deletes all backups except the newest `keep`. `deleted`, unless NULL, is set to the number of deleted backups; 0 if the directory does
/// not exist.
///
/// Errors: as `kingtide_backup_delete`, except NOT_FOUND.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_backup_purge(
    backup: Option<&kingtide_backup>,
    keep: usize,
    deleted: *mut usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        set_if(deleted, need(backup, "backup")?.0.purge(keep)?);
        Ok(())
    })
}

/// Frees the reference; the backups stay. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_backup_free(backup: Option<Box<kingtide_backup>>) {
    drop(backup);
}

/// Hands a family out if the caller wants it.
///
/// # Safety
/// As [`out_handle`].
unsafe fn give(family: *mut *mut kingtide_family, made: ColumnFamily) -> Result<()> {
    if family.is_null() {
        return Ok(());
    }
    out_handle(family, "family")?.set(kingtide_family(made));
    Ok(())
}

/// Creates a family with the current contents of another. Tables are shared by hard links where possible. `family`,
/// unless NULL, is set to a handle. Transactions in doubt are not cloned. What the new family shows at snapshots that were taken
/// before is undefined.
///
/// Errors: NOT_FOUND (`from`); EXISTS, INVALID_ARGUMENT (`to`); CORRUPTION, IO, NO_SPACE, POISONED, CLOSED, READ_ONLY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_clone_family(
    db: Option<&kingtide_db>,
    from: *const c_char,
    to: *const c_char,
    family: *mut *mut kingtide_family,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        set_if(family, ptr::null_mut());
        give(family, need(db, "db")?.db.clone_family(abi::text(from, "from")?, abi::text(to, "to")?)?)
    })
}

/// Information about an export.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_export_info {
    /// `sizeof(kingtide_export_info)`, set by the caller.
    pub size: usize,
    /// It holds every commit up to this sequence number and none after it.
    pub sequence: u64,
    /// Keys.
    pub entries: u64,
    /// Sorted files.
    pub files: u64,
    /// Bytes of these.
    pub bytes: u64,
}
// SAFETY: numbers only, the size first.
unsafe impl Sized_ for kingtide_export_info {
    const NAME: &'static str = "kingtide_export_info";
}

/// Writes the current contents of the family into a directory that is empty or absent, for `kingtide_db_import_family`. `info` may be
/// NULL.
///
/// Errors: EXISTS, INVALID_ARGUMENT (the directory is inside the database's own), CORRUPTION, IO, NO_SPACE, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_export(
    family: Option<&kingtide_family>,
    path: *const c_char,
    info: *mut kingtide_export_info,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        check_size(info)?;
        let ExportInfo { sequence, entries, files, bytes, .. } =
            need(family, "family")?.0.export(abi::path(path, "path")?)?;
        fill_if(info, kingtide_export_info { size: 0, sequence, entries, files, bytes })
    })
}

/// Creates a family from an export of `kingtide_family_export` in any database. `family`, unless NULL, is set to a handle.
///
/// Errors: NOT_FOUND (no complete export), EXISTS or INVALID_ARGUMENT (the name), INCOMPATIBLE (a key order that this database
/// does not know), CORRUPTION, NEWER_FORMAT, IO, NO_SPACE, POISONED, CLOSED, READ_ONLY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_import_family(
    db: Option<&kingtide_db>,
    name: *const c_char,
    path: *const c_char,
    family: *mut *mut kingtide_family,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        set_if(family, ptr::null_mut());
        give(family, need(db, "db")?.db.import_family(abi::text(name, "name")?, abi::path(path, "path")?)?)
    })
}

/// A writer of a sorted file outside of any database. Keys must be added in ascending order, each once. For one thread at a time.
pub struct kingtide_sorted_writer {
    writer: Option<SortedFileWriter>,
    finished: Option<SortedFile>,
}

impl kingtide_sorted_writer {
    fn open(&mut self) -> Result<&mut SortedFileWriter> {
        self.writer.as_mut().ok_or_else(|| Error::new(ErrorKind::Finished, "the sorted file is finished"))
    }
}

/// Information about a finished sorted file. Its pointers are valid as long as its writer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_sorted_file_info {
    /// `sizeof(kingtide_sorted_file_info)`, set by the caller.
    pub size: usize,
    /// Keys put and deleted.
    pub entries: u64,
    /// Ranges deleted.
    pub range_deletes: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Its smallest key.
    pub smallest: *const c_void,
    /// Its length.
    pub smallest_len: usize,
    /// Its largest key, or the end of a range deleted.
    pub largest: *const c_void,
    /// Its length.
    pub largest_len: usize,
}
// SAFETY: numbers and raw pointers only, the size first.
unsafe impl Sized_ for kingtide_sorted_file_info {
    const NAME: &'static str = "kingtide_sorted_file_info";
}

/// Begins a sorted file for a family, in its key order and format. The file must not exist. Free the writer with
/// `kingtide_sorted_writer_free`, which removes a file that is not finished.
///
/// Errors: EXISTS, NOT_FOUND (the directory), IO, NO_SPACE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_sorted_writer_create(
    path: *const c_char,
    family: Option<&kingtide_family>,
    writer: *mut *mut kingtide_sorted_writer,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(writer, "writer")?;
        let made = SortedFileWriter::create(abi::path(path, "path")?, &need(family, "family")?.0)?;
        out.set(kingtide_sorted_writer { writer: Some(made), finished: None });
        Ok(())
    })
}

/// Adds a key after all previous ones.
///
/// Errors: INVALID_ARGUMENT (not in order), FINISHED, IO, NO_SPACE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_sorted_writer_put(
    writer: Option<&mut kingtide_sorted_writer>,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (key, value) = (bytes(key, key_len, "key")?, bytes(value, value_len, "value")?);
        need(writer, "writer")?.open()?.put(key, value)
    })
}

/// Adds a key that expires `ttl_ms` milliseconds from now.
///
/// Errors: as `kingtide_sorted_writer_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_sorted_writer_put_ttl(
    writer: Option<&mut kingtide_sorted_writer>,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    ttl_ms: u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (key, value) = (bytes(key, key_len, "key")?, bytes(value, value_len, "value")?);
        need(writer, "writer")?.open()?.put_ttl(key, value, Duration::from_millis(ttl_ms))
    })
}

/// Adds a key that expires at a moment given in milliseconds since 1970.
///
/// Errors: as `kingtide_sorted_writer_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_sorted_writer_put_until(
    writer: Option<&mut kingtide_sorted_writer>,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    expires_at_ms: u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (key, value) = (bytes(key, key_len, "key")?, bytes(value, value_len, "value")?);
        need(writer, "writer")?.open()?.put_until(key, value, abi::expiry(expires_at_ms))
    })
}

/// Adds a deletion of a key of the family, after all previous keys.
///
/// Errors: as `kingtide_sorted_writer_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_sorted_writer_delete(
    writer: Option<&mut kingtide_sorted_writer>,
    key: *const c_void,
    key_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(writer, "writer")?.open()?.delete(bytes(key, key_len, "key")?))
}

/// Deletes the keys that the family held from `start` up to, and without, `end` before the ingest. The file's own entries
/// stay. Ranges may be deleted in any order, at any time.
///
/// Errors: as `kingtide_sorted_writer_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_sorted_writer_delete_range(
    writer: Option<&mut kingtide_sorted_writer>,
    start: *const c_void,
    start_len: usize,
    end: *const c_void,
    end_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (start, end) = (bytes(start, start_len, "start")?, bytes(end, end_len, "end")?);
        need(writer, "writer")?.open()?.delete_range(start..end)
    })
}

/// Returns the approximate size of the file in bytes; 0 once it is finished.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_sorted_writer_estimated_bytes(writer: Option<&kingtide_sorted_writer>) -> u64 {
    quietly(0, || writer.and_then(|w| w.writer.as_ref()).map_or(0, SortedFileWriter::estimated_bytes))
}

/// Finishes the file. `info` may be NULL.
///
/// Errors: INVALID_ARGUMENT (nothing was added), FINISHED, IO, NO_SPACE. The file is then removed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_sorted_writer_finish(
    writer: Option<&mut kingtide_sorted_writer>,
    info: *mut kingtide_sorted_file_info,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        check_size(info)?;
        let writer = need(writer, "writer")?;
        writer.open()?;
        let Some(open) = writer.writer.take() else { return Ok(()) };
        let file = writer.finished.insert(open.finish()?);
        let shown = kingtide_sorted_file_info {
            size: 0,
            entries: file.entries,
            range_deletes: file.range_deletes,
            bytes: file.bytes,
            smallest: file.smallest.as_ptr().cast(),
            smallest_len: file.smallest.len(),
            largest: file.largest.as_ptr().cast(),
            largest_len: file.largest.len(),
        };
        fill_if(info, shown)
    })
}

/// Frees a writer, and removes its file unless it is finished. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_sorted_writer_free(writer: Option<Box<kingtide_sorted_writer>>) {
    quietly((), || drop(writer));
}

/// Options of an ingest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_ingest_options {
    /// `sizeof(kingtide_ingest_options)`.
    pub size: usize,
    /// Not 0: move the files instead of copying them.
    pub move_files: i32,
    /// Not 0: first read and check each file completely.
    pub verify: i32,
    /// Not 0: fail with CONFLICT instead of waiting when a transaction holds a lock in a file's range.
    pub no_wait: i32,
    /// Zero.
    pub reserved: i32,
}
// SAFETY: numbers only, the size first.
unsafe impl Sized_ for kingtide_ingest_options {
    const NAME: &'static str = "kingtide_ingest_options";
}

/// A sorted file, and the family to ingest it into.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_ingest_file {
    /// The family.
    pub family: *const kingtide_family,
    /// The file's path.
    pub path: *const c_char,
}

/// Makes the contents of sorted files part of families, all at one moment and, in case of a crash, all or nothing, as if all were one
/// batch, file by file. When it returns, they survive a power cut. `options` may be NULL. `sequence`, unless NULL, is set to
/// that of the commit.
///
/// Errors: INVALID_ARGUMENT (no sorted file, a family of another database), INCOMPATIBLE (another key order), CORRUPTION,
/// NEWER_FORMAT, NOT_FOUND, LOCK_TIMEOUT, CONFLICT, POISONED, IO, NO_SPACE, CLOSED, READ_ONLY. Nothing is then ingested, except
/// where the message says that it was done but may not survive a power cut, as after a commit whose sync failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_ingest(
    db: Option<&kingtide_db>,
    files: *const kingtide_ingest_file,
    count: usize,
    options: *const kingtide_ingest_options,
    sequence: *mut u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let mut parts: Vec<(&ColumnFamily, Vec<PathBuf>)> = Vec::new();
        for file in array(files, count, "files")? {
            let family = &need(borrow(file.family), "files[].family")?.0;
            let path = abi::path(file.path, "files[].path")?.to_owned();
            match parts.last_mut() {
                Some((last, paths)) if ptr::eq(*last, family) => paths.push(path),
                _ => parts.push((family, vec![path])),
            }
        }
        let given = config(options)?;
        abi::zero(given.reserved, kingtide_ingest_options::NAME)?;
        let options = IngestOptions::new()
            .move_files(flag(given.move_files))
            .verify(flag(given.verify))
            .no_wait(flag(given.no_wait));
        let parts: Vec<(&ColumnFamily, &[PathBuf])> = parts.iter().map(|(f, p)| (*f, p.as_slice())).collect();
        set_if(sequence, need(db, "db")?.db.ingest(&parts, &options)?);
        Ok(())
    })
}
