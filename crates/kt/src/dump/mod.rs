//! Single files of a database, as they are: `kt dump`. The database is not opened, and no byte is changed. What is broken
//! is told with its place, and passed over where the format allows.

mod log;
mod manifest;
mod tables;

use crate::error::{DAMAGE, Failure, Result};
use crate::output::{Out, things};
use kingtide::vfs::{Fs, PosixFs};
use kingtide::{Error, ErrorKind};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// What a dump takes.
#[derive(clap::Args)]
pub struct DumpArgs {
    /// A file, or the directory of a database for all its files of that kind
    path: PathBuf,
    /// Print no values
    #[arg(long)]
    no_values: bool,
}

/// `kt dump`.
pub fn main(command: DumpCommand, out: &mut Out) -> Result<()> {
    let (args, of_kind): (_, fn(&str) -> bool) = match &command {
        DumpCommand::Wal(args) => (args, |n| n.ends_with(".wal")),
        DumpCommand::Manifest(args) => (args, |n| kingtide::names::parse_manifest_name(n).is_some()),
        DumpCommand::Klog(args) => (args, |n| n.ends_with(".klog")),
        DumpCommand::Vlog(args) => (args, |n| n.ends_with(".vlog")),
    };
    let mut dump = Dump { fs: PosixFs::shared(), args, out, damage: Vec::new() };
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

/// A dump under way.
struct Dump<'a> {
    fs: Arc<dyn Fs>,
    args: &'a DumpArgs,
    out: &'a mut Out,
    damage: Vec<Failure>,
}

impl Dump<'_> {
    fn begin(&mut self, file: &Path) -> Result<()> {
        if self.out.json { Ok(()) } else { self.out.line(format_args!("file {}", file.display())) }
    }

    /// One part of a file: an object whose first fields are these, or a line of place, kind and text.
    fn part(&mut self, file: &Path, offset: u64, kind: &str, fields: Value, text: &str) -> Result<()> {
        if !self.out.json {
            return self.out.line(format!("{offset:>12}  {kind:<14}  {text}").trim_end());
        }
        let mut object = Map::new();
        object.insert("file".into(), file.display().to_string().into());
        object.insert("offset".into(), offset.into());
        object.insert("kind".into(), kind.into());
        if let Value::Object(fields) = fields {
            object.extend(fields);
        }
        self.out.object(&Value::Object(object))
    }

    /// Something broken, and where reading goes on.
    fn broken(&mut self, file: &Path, e: Error, resumes: Option<u64>) -> Result<()> {
        if e.kind() != ErrorKind::Corruption {
            return Err(e.into());
        }
        let offset = e.offset().unwrap_or(0);
        let text = match resumes {
            Some(next) => format!("{}; goes on at {next}", e.message()),
            None => e.message().to_owned(),
        };
        self.part(file, offset, "damaged", json!({ "message": e.message(), "resumes": resumes }), &text)?;
        self.damage.push(e.at_path(file).at_offset(offset).into());
        Ok(())
    }

    fn key(&self, bytes: &[u8]) -> String {
        self.out.formats.key_format.show_any(bytes)
    }

    /// The value, or nothing if values are not wanted.
    fn value(&self, bytes: &[u8]) -> String {
        if self.args.no_values { String::new() } else { self.out.formats.value_format.show_any(bytes) }
    }
}

/// The file's number, from its name.
fn file_id(path: &Path) -> Result<u64> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.parse().map_err(|_| Failure::usage(format!("{} has no file number in its name", path.display())))
}
