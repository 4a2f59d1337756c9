//! Single files of a database, as they are: `kt dump`. The database is not opened, and no byte is changed. What is broken
//! is reported with its place, and passed over where the format allows.

mod log;
mod manifest;
mod tables;
mod under_way;

use self::under_way::{Dump, DumpArgs};
use crate::error::{DAMAGE, Failure, NOT_FOUND, Result};
use crate::output::{Out, things};
use kingtide::vfs::SystemFs;
use std::path::{Path, PathBuf};

/// Single files of a database.
#[derive(clap::Subcommand)]
pub enum DumpCommand {
    /// Segments of the write-ahead log: records and their operations
    #[command(after_help = "Example:\n  kt dump wal my-database/000012.wal")]
    Wal(DumpArgs),
    /// The manifest: families, files, what is flushed
    #[command(after_help = "Example:\n  kt dump manifest my-database --json")]
    Manifest(DumpArgs),
    /// Tables: their properties and entries
    #[command(after_help = "Example:\n  kt dump klog my-database/00000017.klog --key-format hex")]
    Klog(DumpArgs),
    /// Value logs: their values
    #[command(after_help = "Example:\n  kt dump vlog my-database --no-values")]
    Vlog(DumpArgs),
}

/// `kt dump`.
pub fn main(command: DumpCommand, out: &mut Out) -> Result<()> {
    let (args, kind) = match &command {
        DumpCommand::Wal(args) => (args, Kind { is: |n| n.ends_with(".wal"), names: "NUMBER.wal" }),
        DumpCommand::Manifest(args) => {
            (args, Kind { is: |n| kingtide_base::names::parse_manifest_name(n).is_some(), names: "MANIFEST-NUMBER" })
        }
        DumpCommand::Klog(args) => (args, Kind { is: |n| n.ends_with(".klog"), names: "NUMBER.klog" }),
        DumpCommand::Vlog(args) => (args, Kind { is: |n| n.ends_with(".vlog"), names: "NUMBER.vlog" }),
    };
    let mut dump = Dump { fs: SystemFs::shared(), args, out, damage: Vec::new() };
    for file in files(&args.path, &kind)? {
        dump.begin(&file)?;
        let done = match &command {
            DumpCommand::Wal(_) => log::dump(&mut dump, &file),
            DumpCommand::Manifest(_) => manifest::dump(&mut dump, &file),
            DumpCommand::Klog(_) => tables::dump_klog(&mut dump, &file),
            DumpCommand::Vlog(_) => tables::dump_vlog(&mut dump, &file),
        };
        match done {
            Err(e) if e.code() == DAMAGE => dump.damage.push(e),
            // It was listed a moment ago, and the process that has the database open has removed it since. That is no failure.
            Err(e) if e.code() == NOT_FOUND && file != dump.args.path && !file.exists() => dump.removed(&file)?,
            other => other?,
        }
    }
    let mut damage = std::mem::take(&mut dump.damage);
    match damage.len() as u64 {
        0 => Ok(()),
        1 => Err(damage.remove(0)),
        n => Err(damage.remove(0).context(format!("{}; the first", things(n, "damaged place", "damaged places")))),
    }
}

/// A kind of file.
struct Kind {
    /// Whether a file of that name is one.
    is: fn(&str) -> bool,
    /// What their names look like, for messages.
    names: &'static str,
}

/// The file itself, or those of a directory.
fn files(path: &Path, kind: &Kind) -> Result<Vec<PathBuf>> {
    let meta = std::fs::metadata(path).map_err(|e| Failure::io("open", path.display(), &e))?;
    if !meta.is_dir() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // A released segment shows what it held, when it is asked for by name.
        return match (kind.is)(name.strip_suffix("free").unwrap_or(&name)) {
            true => Ok(vec![path.to_owned()]),
            false => Err(Failure::usage(format!("{} is not named {}", path.display(), kind.names))),
        };
    }
    let entries = std::fs::read_dir(path).map_err(|e| Failure::io("list", path.display(), &e))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| (kind.is)(&p.file_name().unwrap_or_default().to_string_lossy()))
        .collect();
    files.sort();
    match files.is_empty() {
        true => Err(Failure::not_found(format!("no file {} in {}", kind.names, path.display()))),
        false => Ok(files),
    }
}
