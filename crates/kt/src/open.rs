//! Opening databases as they were left: with the order and options that the manifest has for the default family, and
//! without giving up log that change streams may still want.

use crate::error::{Failure, Result};
use kingtide::version::Edit;
use kingtide::version::manifest::Manifest;
use kingtide::vfs::{Fs, PosixFs};
use kingtide::{ColumnFamily, Db, FamilyOptions, KeyOrder, Options};
use std::path::Path;
use std::sync::Arc;

/// The family that every database has.
pub const DEFAULT_FAMILY: &str = "default";

/// Opens a database to be changed. It must exist.
pub fn open(path: &Path) -> Result<Db> {
    Ok(Db::open(path, options_for(path)?)?)
}

/// Opens a database that is only looked at, also while another process writes it. It must exist.
pub fn open_to_read(path: &Path) -> Result<Db> {
    Ok(Db::open_read_only(path, options_for(path)?)?)
}

/// The named family, or the default one.
pub fn family(db: &Db, name: Option<&str>) -> Result<ColumnFamily> {
    Ok(db.family(name.unwrap_or(DEFAULT_FAMILY))?)
}

/// What a family of the manifest was created with, and set to since.
pub struct Stored {
    /// Its number.
    pub id: u32,
    /// Its present name.
    pub name: String,
    /// The name of its key order.
    pub order: String,
    /// Its options, by name.
    pub options: Vec<(String, String)>,
}

/// The families in a database's manifest, read without opening the database.
pub fn stored_families(path: &Path) -> Result<Vec<Stored>> {
    check_place(path)?;
    let fs: Arc<dyn Fs> = PosixFs::shared();
    let mut families: Vec<Stored> = Vec::new();
    let loaded = Manifest::load(&fs, path, false, |edits| {
        for edit in edits {
            match edit {
                Edit::CreateFamily { id, name, order, options } => families.push(Stored { id, name, order, options }),
                Edit::DropFamily { id } => families.retain(|f| f.id != id),
                Edit::RenameFamily { id, name } => {
                    families.iter_mut().filter(|f| f.id == id).for_each(|f| f.name = name.clone());
                }
                Edit::SetOptions { id, options } => {
                    families.iter_mut().filter(|f| f.id == id).for_each(|f| f.options = options.clone());
                }
                _ => {}
            }
        }
        Ok(())
    })?;
    match loaded {
        Some(_) => Ok(families),
        None => Err(no_database(path)),
    }
}

/// Whether there is a directory.
pub fn check_place(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(m) if m.is_dir() => Ok(()),
        Ok(_) => Err(Failure::not_found(format!("{} is a file; a database is a directory", path.display()))),
        Err(e) => Err(Failure::io("open", path.display(), &e)),
    }
}

fn no_database(path: &Path) -> Failure {
    Failure::not_found(format!("no database in {} (no CURRENT file); kt create makes one", path.display()))
}

/// The options for opening a database as it was left.
pub fn options_for(path: &Path) -> Result<Options> {
    let mut options = Options::default();
    options.db.create_if_missing = false;
    options.db.change_retention = log_bytes(path).min(1 << 40);
    if let Some(stored) = stored_families(path)?.into_iter().find(|f| f.name == DEFAULT_FAMILY) {
        options.order = KeyOrder::builtin(&stored.order).ok_or_else(|| {
            Failure::failed(format!(
                "the default family is in key order '{}', which only the program that made it knows",
                stored.order
            ))
        })?;
        options.family = family_options(&stored.options);
    }
    Ok(options)
}

/// The options by name; those that this build does not know keep their default, as the engine judges them anyway.
fn family_options(stored: &[(String, String)]) -> FamilyOptions {
    let mut options = FamilyOptions::default();
    for (name, value) in stored {
        let _ = options.set(name, value);
    }
    options
}

/// Bytes of log segments. A tool must not shorten a change stream that it knows nothing of, so it keeps as many.
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
            kingtide::wal::parse_segment_name(&name)?;
            Some((name, entry.metadata().ok()?.len()))
        })
        .collect();
    files.sort();
    files
}
