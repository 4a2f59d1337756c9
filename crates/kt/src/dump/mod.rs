//! Single files of a database, as they are: `kt dump`. The database is not opened, and no byte is changed. What is broken
//! is reported with its place, and passed over where the format allows.

mod log;
mod manifest;
mod tables;
mod under_way;

use self::under_way::{Dump, DumpArgs};
use crate::error::{DAMAGE, Failure, Result};
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
    let (args, of_kind): (_, fn(&str) -> bool) = match &command {
        DumpCommand::Wal(args) => (args, |n| n.ends_with(".wal")),
        DumpCommand::Manifest(args) => (args, |n| kingtide_base::names::parse_manifest_name(n).is_some()),
        DumpCommand::Klog(args) => (args, |n| n.ends_with(".klog")),
        DumpCommand::Vlog(args) => (args, |n| n.ends_with(".vlog")),
    };
    let mut dump = Dump { fs: SystemFs::shared(), args, out, damage: Vec::new() };
    for file in files(&args.path, of_kind)? {
        dump.begin(&file)?;
        let done = match &command {
            DumpCommand::Wal(_) => log::dump(&mut dump, &file),
            DumpCommand::Manifest(_) => manifest::dump(&mut dump, &file),
            DumpCommand::Klog(_) => tables::dump_klog(&mut dump, &file),
            DumpCommand::Vlog(_) => tables::dump_vlog(&mut dump, &file),
        };
        match done {
            Err(e) if e.code() == DAMAGE => dump.damage.push(e),
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

/// The file itself, or those of a directory.
fn files(path: &Path, of_kind: fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let meta = std::fs::metadata(path).map_err(|e| Failure::io("open", path.display(), &e))?;
    if !meta.is_dir() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // A released segment shows what it held, when it is asked for by name.
        return match of_kind(name.strip_suffix("free").unwrap_or(&name)) {
            true => Ok(vec![path.to_owned()]),
            false => Err(Failure::usage(format!("{} does not have the name of such a file", path.display()))),
        };
    }
    let entries = std::fs::read_dir(path).map_err(|e| Failure::io("list", path.display(), &e))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| of_kind(&p.file_name().unwrap_or_default().to_string_lossy()))
        .collect();
    files.sort();
    match files.is_empty() {
        true => Err(Failure::not_found(format!("no such files in {}", path.display()))),
        false => Ok(files),
    }
}
