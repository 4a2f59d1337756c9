//! How much a range holds, without reading it: `kt size`.

use crate::error::Result;
use crate::format::family_name;
use crate::keys::range_of;
use crate::open::{family, open_to_read};
use crate::output::{Out, bytes, count, things};
use serde_json::json;
use std::ops::Bound;
use std::path::PathBuf;

/// Estimate how many keys and bytes a range holds, without reading it.
#[derive(clap::Args)]
#[command(
    after_help = "Keys that were overwritten and not compacted yet may count more than once; `kt scan --count` counts exactly.

Examples:
  kt size my-database
  kt size my-database --prefix user: --json
  kt size numbers --from 10 --to 20000 --key-format u64"
)]
pub struct SizeArgs {
    /// Directory of the database
    path: PathBuf,
    /// Only keys with this prefix
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"], allow_negative_numbers = true)]
    prefix: Option<String>,
    /// Start at this key
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    from: Option<String>,
    /// Stop before this key
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    to: Option<String>,
    /// Column family [default: default]
    #[arg(long, alias = "column-family", alias = "cf", value_parser = family_name)]
    family: Option<String>,
}

/// `kt size`.
pub fn size(args: &SizeArgs, out: &mut Out) -> Result<()> {
    let [from, to, prefix] = [&args.from, &args.to, &args.prefix].map(|t| out.parse_key_if(t.as_ref()));
    let (from, to, prefix) = (from?, to?, prefix?);
    let db = open_to_read(&args.path)?;
    let family = family(&db, args.family.as_deref())?;
    let [lower, upper] = match prefix {
        Some(prefix) => family.prefix_bounds(&prefix.bytes)?,
        None => {
            let [from, to] = range_of(&family, from, to)?;
            [from.map_or(Bound::Unbounded, Bound::Included), to.map_or(Bound::Unbounded, Bound::Excluded)]
        }
    };
    let s = family.range_stats((lower.as_ref().map(|k| &k[..]), upper.as_ref().map(|k| &k[..])))?;
    if out.json {
        return out.object(&json!({
            "family": family.name(), "rows": s.rows, "entries": s.entries, "memtable_entries": s.memtable_entries,
            "tombstones": s.tombstones, "expired": s.expired, "range_tombstones": s.range_tombstones, "raw_bytes": s.raw_bytes,
            "disk_bytes": s.disk_bytes, "value_log_bytes": s.value_log_bytes, "memtable_bytes": s.memtable_bytes,
            "tables": s.tables, "runs": s.runs,
        }));
    }
    out.line(format_args!("about       {}", things(s.rows, "key", "keys")))?;
    out.line(format_args!(
        "entries     {}, {} of them in memtables, {} tombstones, {} range tombstones, about {} expired",
        count(s.entries),
        count(s.memtable_entries),
        count(s.tombstones),
        count(s.range_tombstones),
        count(s.expired)
    ))?;
    let (files, runs) = (things(s.tables, "table", "tables"), things(s.runs, "run", "runs"));
    out.line(format_args!(
        "on disk     {} in {files} of {runs}, {} in value logs",
        bytes(s.disk_bytes),
        bytes(s.value_log_bytes)
    ))?;
    out.line(format_args!("in memory   {}", bytes(s.memtable_bytes)))
}
