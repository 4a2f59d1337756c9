//! What the dumps of all kinds of files have in common.

use crate::error::{Failure, Result};
use crate::output::Out;
use kingtide::vfs::Fs;
use kingtide::{Error, ErrorKind};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a dump takes.
#[derive(clap::Args)]
pub struct DumpArgs {
    /// A file, or the directory of a database for all its files of that kind
    pub path: PathBuf,
    /// Print no values
    #[arg(long)]
    pub no_values: bool,
}

/// A dump under way.
pub struct Dump<'a> {
    pub fs: Arc<dyn Fs>,
    pub args: &'a DumpArgs,
    pub out: &'a mut Out,
    pub damage: Vec<Failure>,
}

impl Dump<'_> {
    pub fn begin(&mut self, file: &Path) -> Result<()> {
        if self.out.json { Ok(()) } else { self.out.line(format_args!("file {}", file.display())) }
    }

    /// One part of a file: an object whose first fields are these, or a line of place, kind and text.
    pub fn part(&mut self, file: &Path, offset: u64, kind: &str, fields: Value, text: &str) -> Result<()> {
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

    /// A file that was removed or reused after the directory was listed.
    pub fn removed(&mut self, file: &Path) -> Result<()> {
        self.part(file, 0, "removed", json!({}), "removed or reused since the directory was listed")
    }

    /// Something broken, and where reading goes on.
    pub fn broken(&mut self, file: &Path, e: Error, resumes: Option<u64>) -> Result<()> {
        if e.kind() != ErrorKind::Corruption {
            return Err(e.into());
        }
        let offset = e.offset().unwrap_or(0);
        let text = match resumes {
            Some(next) => format!("{}; continues at {next}", e.message()),
            None => e.message().to_owned(),
        };
        self.part(file, offset, "damaged", json!({ "message": e.message(), "resumes": resumes }), &text)?;
        self.damage.push(e.at_path(file).at_offset(offset).into());
        Ok(())
    }

    pub fn key(&self, bytes: &[u8]) -> String {
        self.out.formats.key_format.show_any(bytes)
    }

    /// The value, or nothing if values are not wanted.
    pub fn value(&self, bytes: &[u8]) -> String {
        if self.args.no_values { String::new() } else { self.out.formats.value_format.show_any(bytes) }
    }
}

/// The file's number, from its name.
pub fn file_id(path: &Path) -> Result<u64> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.parse().map_err(|_| Failure::usage(format!("{} has no file number in its name", path.display())))
}
