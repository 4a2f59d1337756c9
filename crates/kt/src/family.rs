//! Column families, their options, and what can be done to their tables.

use crate::confirm::Yes;
use crate::data::{name_value, order};
use crate::error::{Failure, Result};
use crate::format::{family_name, show_name};
use crate::info::different_options;
use crate::keys::range_of;
use crate::open::{family, open, open_to_read};
use crate::output::{Out, things};
use crate::progress::Progress;
use kingtide::{Db, DbOptions, ErrorKind, FamilyOptions, IngestOptions};
use serde_json::json;
use std::ops::Bound;
use std::path::PathBuf;

/// Column families.
#[derive(clap::Subcommand)]
pub enum CfCommand {
    /// List families with their key order and options that differ from the defaults
    #[command(after_help = "Example:\n  kt cf list my-database --json")]
    List {
        /// Directory of the database
        path: PathBuf,
    },
    /// Create a family
    #[command(after_help = "Examples:
  kt cf create my-database cache -o ttl_ms=60000
  kt cf create my-database numbers --order u64")]
    Create {
        /// Directory of the database
        path: PathBuf,
        /// Name of the family
        #[arg(value_parser = family_name)]
        name: String,
        /// Key order: bytewise, reverse, u64, i64, case-insensitive
        #[arg(long, default_value = "bytewise", value_name = "ORDER")]
        order: String,
        /// Option, as name=value
        #[arg(short = 'o', long = "option", value_name = "NAME=VALUE")]
        options: Vec<String>,
    },
    /// Drop a family and everything in it; asks first
    #[command(after_help = "Example:\n  kt cf drop my-database cache --yes")]
    Drop {
        /// Directory of the database
        path: PathBuf,
        /// Name of the family
        #[arg(value_parser = family_name)]
        name: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// Rename a family
    #[command(after_help = "Example:\n  kt cf rename my-database cache old-cache")]
    Rename {
        /// Directory of the database
        path: PathBuf,
        /// Current name
        #[arg(value_parser = family_name)]
        name: String,
        /// New name
        #[arg(value_parser = family_name)]
        new_name: String,
    },
    /// Create a family with the options and contents of another, as of one moment
    #[command(after_help = "Tables are shared until one of the two changes them, so it takes little space at first.

Example:
  kt cf clone my-database orders orders-before-the-migration")]
    Clone {
        /// Directory of the database
        path: PathBuf,
        /// The family to clone
        #[arg(value_parser = family_name)]
        from: String,
        /// Name of the new family
        #[arg(value_parser = family_name)]
        to: String,
    },
    /// Write a family to a directory of sorted files, for `kt cf import` and `kt ingest`
    #[command(after_help = "Example:\n  kt cf export my-database orders orders.export")]
    Export {
        /// Directory of the database
        path: PathBuf,
        /// The family
        #[arg(value_parser = family_name)]
        name: String,
        /// An empty or new directory
        into: PathBuf,
    },
    /// Create a family from an export of `kt cf export`
    #[command(after_help = "Example:\n  kt cf import other-database orders orders.export")]
    Import {
        /// Directory of the database
        path: PathBuf,
        /// Name of the new family
        #[arg(value_parser = family_name)]
        name: String,
        /// The directory that holds the export
        from: PathBuf,
    },
}

/// `kt cf`.
pub fn cf(command: CfCommand, out: &mut Out) -> Result<()> {
    match command {
        CfCommand::List { path } => list(&open_to_read(&path)?, out),
        CfCommand::Create { path, name, order: order_name, options } => {
            let order = order(&order_name)?;
            let mut family = FamilyOptions::default();
            for option in &options {
                let (name, value) = name_value(option)?;
                family.set(name, value)?;
            }
            let db = open(&path)?;
            db.create_family_ordered(&name, family, order)?;
            db.close()?;
            out.answer(&json!({ "created": name }), format!("created family '{}'", show_name(&name)))
        }
        CfCommand::Drop { path, name, yes } => {
            let db = open(&path)?;
            db.family(&name)?;
            yes.confirm(&format!("Drop family '{}' and everything in it?", show_name(&name)))?;
            db.drop_family(&name)?;
            db.close()?;
            out.answer(&json!({ "dropped": name }), format!("dropped family '{}'", show_name(&name)))
        }
        CfCommand::Rename { path, name, new_name } => {
            let db = open(&path)?;
            db.rename_family(&name, &new_name)?;
            db.close()?;
            let text = format!("renamed family '{}' to '{}'", show_name(&name), show_name(&new_name));
            out.answer(&json!({ "renamed": name, "to": new_name }), text)
        }
        CfCommand::Clone { path, from, to } => {
            let db = open(&path)?;
            db.clone_family(&from, &to)?;
            db.close()?;
            let text = format!("cloned family '{}' to '{}'", show_name(&from), show_name(&to));
            out.answer(&json!({ "cloned": from, "to": to }), text)
        }
        CfCommand::Export { path, name, into } => {
            let db = open_to_read(&path)?;
            let info = family(&db, Some(&name))?.export(&into)?;
            db.close()?;
            let object = json!({ "exported": name, "sequence": info.sequence, "entries": info.entries,
                "files": info.files, "bytes": info.bytes });
            let (entries, size) = (things(info.entries, "entry", "entries"), crate::output::bytes(info.bytes));
            out.answer(&object, format!("exported {entries} of family '{}', {size}", show_name(&name)))
        }
        CfCommand::Import { path, name, from } => {
            let db = open(&path)?;
            db.import_family(&name, &from)?;
            let sequence = db.latest_sequence();
            db.close()?;
            let text = format!("imported family '{}'", show_name(&name));
            out.answer(&json!({ "imported": name, "sequence": sequence }), text)
        }
    }
}

/// Add the contents of sorted files to a family.
#[derive(clap::Args)]
#[command(
    after_help = "Programs write sorted files with SortedFileWriter, and `kt cf export` writes them too. All files are added at
once, or none. They replace existing entries with the same keys, so it asks first; if a key is in several files,
the last file counts.

Examples:
  kt ingest my-database orders.export/*.sorted --family orders --yes
  kt ingest my-database new-rows.sorted --move --yes"
)]
pub struct IngestArgs {
    /// Directory of the database
    path: PathBuf,
    /// Sorted files, in the family's key order
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Column family [default: default]
    #[arg(long, alias = "column-family", alias = "cf", value_parser = family_name)]
    family: Option<String>,
    /// Move the files instead of copying them
    #[arg(long = "move")]
    take: bool,
    #[command(flatten)]
    yes: Yes,
}

/// `kt ingest`.
pub fn ingest(args: &IngestArgs, out: &mut Out) -> Result<()> {
    let db = open(&args.path)?;
    let family = family(&db, args.family.as_deref())?;
    let files = things(args.files.len() as u64, "file", "files");
    let name = show_name(&family.name());
    args.yes.confirm(&format!("Ingest {files} into family '{name}', replacing keys that exist?"))?;
    let options = IngestOptions::new().move_files(args.take).verify(true);
    let sequence = family.ingest(&args.files, &options).map_err(|e| match e.kind() {
        // A file that was named is not stored data: the database is as it was.
        ErrorKind::Corruption if e.path().is_some_and(|at| args.files.iter().any(|file| file == at)) => {
            Failure::bad_data(e.message()).then("kt cf export and SortedFileWriter write sorted files")
        }
        _ => e.into(),
    })?;
    db.close()?;
    let object = json!({ "family": family.name(), "files": args.files.len(), "sequence": sequence });
    out.answer(&object, format!("ingested {files} into family '{name}'"))
}

fn list(db: &Db, out: &mut Out) -> Result<()> {
    let mut rows = vec![["family", "order", "options"].map(str::to_owned).to_vec()];
    let mut objects = Vec::new();
    for name in db.families() {
        let family = db.family(&name)?;
        let options = different_options(&family.options());
        let text = options.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>().join(" ");
        let order = family.order().name().to_owned();
        let map: serde_json::Map<_, _> = options.into_iter().map(|(n, v)| (n.to_owned(), v.into())).collect();
        objects.push(json!({ "name": &name, "order": order, "options": map }));
        rows.push(vec![show_name(&name), order, text]);
    }
    if out.json { out.object(&json!({ "families": objects })) } else { out.table("", &rows) }
}

/// Change an option of a column family.
#[derive(clap::Args)]
#[command(after_help = "The change is stored. Options of the database are not stored: programs pass them at each open.
A program that opens the database passes its own options for the default family; those override what you
set here. `kt options` lists all options.

Example:
  kt set-option my-database ttl_ms=60000 --family cache")]
pub struct SetOptionArgs {
    /// Directory of the database
    path: PathBuf,
    /// The option and its value, as name=value
    #[arg(value_name = "NAME=VALUE")]
    option: String,
    /// Column family [default: default]
    #[arg(long, alias = "column-family", alias = "cf", value_parser = family_name)]
    family: Option<String>,
}

/// `kt set-option`.
pub fn set_option(args: &SetOptionArgs, out: &mut Out) -> Result<()> {
    let (name, value) = name_value(&args.option)?;
    if DbOptions::default().get(name).is_some() {
        let text = format!(
            "'{name}' is an option of the database; these are not stored, so programs must pass them at each open"
        );
        return Err(Failure::usage(text));
    }
    let db = open(&args.path)?;
    let family = family(&db, args.family.as_deref())?;
    let before = family.options().get(name);
    family.set_option(name, value).map_err(|e| {
        let fixed = FamilyOptions::rows().iter().any(|row| row.name == name && !row.live);
        let text = format!(
            "'{name}' is fixed while a database is open: set it where the family is made (-o), or let a program pass it at its open"
        );
        if fixed { Failure::from(e).says(text) } else { e.into() }
    })?;
    let after = family.options().get(name);
    db.close()?;
    let object = json!({ "family": family.name(), "option": name, "before": before, "after": after });
    let text = format!(
        "{name} of family '{}': {} (was {})",
        show_name(&family.name()),
        after.as_deref().unwrap_or("?"),
        before.as_deref().unwrap_or("?")
    );
    out.answer(&object, text)
}

/// Compact everything, or a range of keys, into the bottom level.
#[derive(clap::Args)]
#[command(after_help = "Afterwards the range is one sorted run without tombstones and old versions.

Examples:
  kt compact my-database
  kt compact my-database --family cache --from a --to m")]
pub struct CompactArgs {
    /// Directory of the database
    path: PathBuf,
    /// Column family [default: all]
    #[arg(long, alias = "column-family", alias = "cf", value_parser = family_name)]
    family: Option<String>,
    /// First key of the range
    #[arg(long, value_name = "KEY", allow_negative_numbers = true, requires = "family")]
    from: Option<String>,
    /// Last key of the range
    #[arg(long, value_name = "KEY", allow_negative_numbers = true, requires = "family")]
    to: Option<String>,
}

/// `kt compact`.
pub fn compact(args: &CompactArgs, out: &mut Out) -> Result<()> {
    let (from, to) = (out.parse_key_if(args.from.as_ref())?, out.parse_key_if(args.to.as_ref())?);
    let db = open(&args.path)?;
    let names = match &args.family {
        Some(name) => vec![db.family(name)?.name()],
        None => db.families(),
    };
    let range = match &args.family {
        Some(name) => range_of(&db.family(name)?, from, to)?,
        None => [None, None], // the ends of a range require a family
    };
    db.flush()?; // so that the progress has a goal
    let before = stored_bytes(&db);
    let range = range.map(|key| key.map_or(Bound::Unbounded, Bound::Included));
    let progress = Progress::bytes("compacting");
    let done = |name: &str| db.stats().get(name).unwrap_or(0);
    progress.watch(
        || {
            let read = done("compaction_read_bytes");
            (read, before.max(read))
        },
        || -> Result<()> {
            for name in &names {
                db.family(name)?.compact_range(&range)?;
            }
            Ok(db.wait_for_background()?)
        },
    )?;
    drop(progress);
    let after = stored_bytes(&db);
    let (read, written) = (done("compaction_read_bytes"), done("compaction_write_bytes"));
    db.close()?;
    let object = json!({ "families": names, "bytes_before": before, "bytes_after": after,
        "bytes_read": read, "bytes_written": written });
    let [before, after, read, written] = [before, after, read, written].map(crate::output::bytes);
    let text = format!("compacted: tables and value logs had {before}, have {after}; read {read}, wrote {written}");
    out.answer(&object, text)
}

fn stored_bytes(db: &Db) -> u64 {
    let families = db.stats().families;
    families.iter().map(|f| f.vlog_bytes + f.levels.iter().map(|l| l.bytes).sum::<u64>()).sum()
}

/// Flush memtables to tables.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kt flush my-database")]
pub struct FlushArgs {
    /// Directory of the database
    path: PathBuf,
}

/// `kt flush`.
pub fn flush(args: &FlushArgs, out: &mut Out) -> Result<()> {
    let db = open(&args.path)?;
    let waiting: u64 = db.stats().families.iter().map(|f| f.active_bytes).sum();
    db.flush()?;
    db.close()?;
    let text = format!("flushed {} of memtables", crate::output::bytes(waiting));
    out.answer(&json!({ "memtable_bytes": waiting }), text)
}
