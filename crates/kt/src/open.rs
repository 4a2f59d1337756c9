//! Opening databases as they were left: with the order and options that are stored for the default family, and
//! without giving up log that change streams may still want.

use crate::error::{Failure, Result};
use crate::format::show_name;
use kingtide::vfs::SystemFs;
use kingtide::{ColumnFamily, CustomOrder, Db, Error, ErrorKind, KeyOrder, Options};
use kingtide_base::key::unknown_order;
use kingtide_base::names::{CURRENT, FileName, LOCK_FILE};
use kingtide_base::options::FileMode;
use kingtide_versions::{Edit, ManifestScan};
use kingtide_wal::{RECORD_HEADER_LEN, SEGMENT_HEADER_LEN};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// The family that every database has.
pub const DEFAULT_FAMILY: &str = "default";

/// Opens a database to be changed. It must exist.
pub fn open(path: &Path) -> Result<Db> {
    let options = options_for(path)?;
    Db::open(path, options).map_err(|e| match Failure::from(e) {
        e if e.is_unwritable(LOCK_FILE) => {
            e.then("this command opens the database for writing; those that only read it need no permission to write")
        }
        e => e,
    })
}

/// Does `work` on a database. If there is none, creates it first, provided that `create` has options for it.
///
/// A database that was created is removed again if the work fails before its first commit, and before it has created a family, so that a command
/// that failed leaves no empty database behind.
pub fn open_or_create<T>(path: &Path, create: Option<Options>, work: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
    let is_vacant = || check_no_file(path).map(|()| !path.join(CURRENT).exists());
    let create = match create {
        Some(options) if is_vacant()? => options,
        _ => {
            let db = open(path)?;
            // If the work fails, the database is dropped without a close: that would flush, for which there may be no memory.
            let done = work(&db)?;
            db.close()?;
            return Ok(done);
        }
    };
    let before = path.is_dir().then(|| names_in(path));
    let db = Db::open(path, create)?;
    let done = work(&db);
    let closed = db.close();
    drop(db);
    let done = done.and_then(|done| Ok(closed.map(|()| done)?));
    done.map_err(|e| match remove_unused(path, before.as_deref()) {
        true => e.then("no database was created"),
        false => e,
    })
}

/// Removes a database that holds nothing, with its directory. If that was there `before`, it stays, and so do the files of these names. Leaves the
/// database if another process has opened it or put something into it. Returns whether the database is gone.
fn remove_unused(path: &Path, before: Option<&[OsString]>) -> bool {
    let Ok(_lock) = SystemFs::shared().lock(&path.join(LOCK_FILE)) else { return false };
    let holds_nothing = |db: Db| db.latest_sequence() == 0 && db.families() == [DEFAULT_FAMILY];
    if !open_to_read(path).is_ok_and(holds_nothing) {
        return false;
    }
    let is_new = |name: &OsString| before.is_none_or(|names| !names.contains(name));
    let mut names = names_in(path);
    names.retain(|name| is_new(name) && FileName::parse(&name.to_string_lossy()).is_some());
    // Without `CURRENT` there is no database. The lock is held until everything else is gone.
    names.sort_by_key(|name| match name.to_str() {
        Some(CURRENT) => 0,
        Some(LOCK_FILE) => 2,
        _ => 1,
    });
    names.iter().all(|name| std::fs::remove_file(path.join(name)).is_ok())
        && (before.is_some() || std::fs::remove_dir(path).is_ok())
}

/// The names in a directory, as far as it can be read.
fn names_in(path: &Path) -> Vec<OsString> {
    std::fs::read_dir(path).map_or_else(|_| Vec::new(), |all| all.flatten().map(|entry| entry.file_name()).collect())
}

/// Opens a database that is only looked at, also while another process writes it. It must exist. Its families may have orders of a
/// program's own: [`family`] refuses those.
pub fn open_to_read(path: &Path) -> Result<Db> {
    let options = stored_options(path, unknown_orders(path)?)?;
    Ok(Db::open_read_only(path, options)?)
}

/// The named family, or the default one, to look for keys.
///
/// # Errors
/// `NotFound`; `Incompatible` if only the program that made the family knows its order.
pub fn family(db: &Db, name: Option<&str>) -> Result<ColumnFamily> {
    let family = db.family(name.unwrap_or(DEFAULT_FAMILY))?;
    if family.order().is_known() {
        return Ok(family);
    }
    let (name, order) = (show_name(&family.name()), family.order().name());
    let text =
        format!("family '{name}' is in key order '{order}', which only the program that created the family knows");
    Err(Error::new(ErrorKind::Incompatible, text).into())
}

/// Stand-ins for the key orders that programs brought along.
fn unknown_orders(path: &Path) -> Result<Vec<Arc<dyn CustomOrder>>> {
    check_place(path)?;
    let scan = ManifestScan::read(&*SystemFs::shared(), path)?;
    let edits = scan.records.into_iter().flat_map(|record| record.edits);
    let names: BTreeSet<String> = edits
        .filter_map(|edit| match edit {
            Edit::CreateFamily { order, .. } => Some(order),
            _ => None,
        })
        .filter(|name| KeyOrder::builtin(name).is_none())
        .collect();
    Ok(names.into_iter().map(unknown_order).collect())
}

/// Fails where there is something that is not a directory, for commands that would create one if there were nothing.
pub fn check_no_file(path: &Path) -> Result<()> {
    match path.exists() && !path.is_dir() {
        true => Err(Failure::exists(not_a_directory(path))),
        false => Ok(()),
    }
}

fn not_a_directory(path: &Path) -> String {
    format!("{} is a file, not a directory", path.display())
}

/// Whether there is a directory.
pub fn check_place(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(m) if m.is_dir() => Ok(()),
        Ok(_) => Err(Failure::not_found(not_a_directory(path))),
        Err(e) => Err(Failure::io("open", path.display(), &e)),
    }
}

fn no_database(path: &Path) -> Failure {
    Failure::not_found(format!("no database in {} (no CURRENT file); kt create makes one", path.display()))
}

/// The options for opening a database as it was left.
pub fn options_for(path: &Path) -> Result<Options> {
    stored_options(path, Vec::new())
}

fn stored_options(path: &Path, orders: Vec<Arc<dyn CustomOrder>>) -> Result<Options> {
    check_place(path)?;
    let mut options = Options::default();
    options.custom_orders = orders;
    options.db.create_if_missing = false;
    options.db.change_retention = log_to_keep(path).min(1 << 40);
    options.db.file_mode = mode_of(path);
    options.load(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => no_database(path),
        _ => e.into(),
    })
}

/// The permissions of the database's files: what the tool creates has the same.
#[cfg(unix)]
pub fn mode_of(path: &Path) -> FileMode {
    use std::os::unix::fs::PermissionsExt;
    let bits = std::fs::metadata(path.join(CURRENT)).map_or(0, |m| m.permissions().mode());
    FileMode::new(bits & 0o666 | 0o600).unwrap_or_default()
}

/// Files have the permissions that their directory hands down.
#[cfg(not(unix))]
pub fn mode_of(_: &Path) -> FileMode {
    FileMode::default()
}

/// Bytes of the log segments that may hold records. A tool must not shorten a change stream it knows nothing about, so it keeps this much.
/// A segment that was only made ready, or whose process ended before the first commit, has zeros behind its header: there is nothing to keep
/// in it. If no log is kept, large values go straight to value logs.
fn log_to_keep(path: &Path) -> u64 {
    let is_written = |name: &str| {
        let mut start = [0; SEGMENT_HEADER_LEN + RECORD_HEADER_LEN];
        let read = std::fs::File::open(path.join(name)).and_then(|mut file| file.read_exact(&mut start));
        match read {
            Ok(()) => start.iter().skip(SEGMENT_HEADER_LEN).any(|byte| *byte != 0),
            Err(e) => e.kind() != std::io::ErrorKind::UnexpectedEof,
        }
    };
    log_files(path).iter().filter(|(name, _)| is_written(name)).map(|(_, size)| size).sum()
}

/// Bytes of log segments.
pub fn log_bytes(path: &Path) -> u64 {
    log_files(path).iter().map(|(_, size)| size).sum()
}

/// Names and sizes of log segments, by name.
pub fn log_files(path: &Path) -> Vec<(String, u64)> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let mut files: Vec<(String, u64)> = entries
        .filter_map(|e| {
            let entry = e.ok()?;
            let name = entry.file_name().to_string_lossy().into_owned();
            kingtide_base::names::parse_segment_name(&name)?;
            Some((name, entry.metadata().ok()?.len()))
        })
        .collect();
    files.sort();
    files
}
