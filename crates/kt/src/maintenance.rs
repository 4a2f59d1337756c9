//! Keeping databases safe: verification and repair.

use crate::confirm::Yes;
use crate::error::{Failure, Result};
use crate::format::escape;
use crate::open::{check_place, options_for};
use crate::output::{Out, bytes, count, things};
use crate::progress::Progress;
use kingtide::{FamilyRepair, KeyGap, Options, Problem, RepairOptions, RepairReport, VerifyReport, repair_with};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Read everything on disk and tell every contradiction.
#[derive(clap::Args)]
#[command(
    after_help = "Works on a database that does not open any more, and changes no byte. Exits with 4 when something is damaged;
what is only untidy, such as a leftover file, is told and is no failure.

Examples:
  kt verify my-database
  kt verify my-database --json | jq '.problems[]'"
)]
pub struct VerifyArgs {
    /// Directory of the database
    path: PathBuf,
}

/// `kt verify`.
pub fn verify(args: &VerifyArgs, out: &mut Out) -> Result<()> {
    check_place(&args.path)?;
    let progress = Progress::start("verifying", "KiB", Some(0));
    let report = kingtide::verify_with(&args.path, &Options::default(), &mut |p: kingtide::Progress| {
        progress.set_of(p.bytes >> 10, p.total_bytes >> 10);
        true
    })?;
    drop(progress);
    print_report(&report, out)?;
    let damaged = report.problems.iter().find(|p| p.severity == kingtide::Severity::Error);
    match damaged {
        None if report.unlisted == 0 => Ok(()),
        first => {
            let first = first.map(|p| format!(": {}", place(p))).unwrap_or_default();
            Err(Failure::damaged(format!("{} is damaged{first}", args.path.display())))
        }
    }
}

fn print_report(report: &VerifyReport, out: &mut Out) -> Result<()> {
    let c = &report.counts;
    if out.json {
        return out.object(&json!({
            "clean": report.is_clean(),
            "damaged": report.is_damaged(),
            "problems": report.problems.iter().map(describe).collect::<Vec<_>>(),
            "unlisted": report.unlisted,
            "checked": {
                "families": c.families, "files": c.files, "blocks": c.blocks, "entries": c.entries,
                "values": c.values, "log_records": c.log_records, "prepared": c.prepared, "bytes": c.bytes,
            },
        }));
    }
    for p in &report.problems {
        let severity = format!("{:?}", p.severity).to_lowercase();
        out.line(format_args!("{severity:<8} {}", place(p)))?;
    }
    if report.unlisted > 0 {
        out.line(format_args!("and {} more", count(report.unlisted)))?;
    }
    out.line(format_args!(
        "checked {} in {}: {}, {}, {}",
        bytes(c.bytes),
        things(c.files, "file", "files"),
        things(c.entries, "entry", "entries"),
        things(c.values, "value", "values"),
        things(c.log_records, "log record", "log records")
    ))?;
    let result = match (report.is_clean(), report.is_damaged()) {
        (true, _) => "nothing is wrong",
        (_, true) => "damage found",
        _ => "nothing is damaged",
    };
    out.line(result)
}

/// What is wrong, and where.
fn place(p: &Problem) -> String {
    let mut text = p.message.clone();
    if let Some(path) = &p.path {
        text.push_str(&format!(" [{}", path.display()));
        if let Some(offset) = p.offset {
            text.push_str(&format!(" at byte {offset}"));
        }
        text.push(']');
    }
    if let Some(family) = &p.family {
        text.push_str(&format!(", family '{family}'"));
    }
    if let Some((lo, hi)) = &p.keys {
        text.push_str(&format!(", keys '{}' to '{}'", escape(lo), escape(hi)));
    }
    text
}

fn describe(p: &Problem) -> Value {
    json!({
        "severity": format!("{:?}", p.severity).to_lowercase(),
        "kind": crate::error::snake(&format!("{:?}", p.kind)),
        "message": p.message,
        "family": p.family,
        "path": p.path.as_ref().map(|p| p.display().to_string()),
        "offset": p.offset,
        "min_key": p.keys.as_ref().map(|(lo, _)| escape(lo)),
        "max_key": p.keys.as_ref().map(|(_, hi)| escape(hi)),
    })
}

/// Salvage what can be read of a damaged database into a new one.
#[derive(clap::Args)]
#[command(after_help = "The damaged database is not changed. Exits with 4 when something was lost.

Example:
  kt repair my-database my-database-repaired --yes")]
pub struct RepairArgs {
    /// Directory of the damaged database
    path: PathBuf,
    /// Directory of the new one; must be empty or absent
    into: PathBuf,
    /// Let the log end at its first damaged record
    #[arg(long)]
    stop_at_damage: bool,
    /// The database never had a family but the default one: tables of unknown families are its
    #[arg(long)]
    one_family: bool,
    #[command(flatten)]
    yes: Yes,
}

/// `kt repair`.
pub fn repair(args: &RepairArgs, out: &mut Out) -> Result<()> {
    check_place(&args.path)?;
    let (path, into) = (args.path.display(), args.into.display());
    args.yes.confirm(&format!("Salvage what can be read of {path} into {into}?"))?;
    let how = RepairOptions { salvage_past_damage: !args.stop_at_damage, one_family: args.one_family };
    // The order and options of the default family, as far as the manifest tells.
    let options = options_for(&args.path).unwrap_or_default();
    let progress = Progress::start("repairing", "KiB", Some(0));
    let report = repair_with(&args.path, &args.into, &options, how, &mut |p: kingtide::Progress| {
        progress.set_of(p.bytes >> 10, p.total_bytes >> 10);
        true
    })?;
    drop(progress);
    print_repair(&report, out)?;
    match report.is_complete() {
        true => Ok(()),
        false => Err(Failure::damaged(format!("not everything of {path} could be read; {into} has the rest"))),
    }
}

fn print_repair(report: &RepairReport, out: &mut Out) -> Result<()> {
    let gaps = report.log_gaps.iter();
    if out.json {
        let family = |f: &FamilyRepair| {
            let gap = |g: &KeyGap| {
                json!({ "min_key": g.lo.as_deref().map(escape), "max_key": g.hi.as_deref().map(escape),
                    "path": g.path.as_ref().map(|p| p.display().to_string()), "offset": g.offset })
            };
            json!({
                "name": f.name, "named": f.named, "tables": f.tables, "kept": f.kept,
                "lost_keys": f.lost_keys.iter().map(|k| escape(k)).collect::<Vec<_>>(),
                "lost": f.lost.iter().map(gap).collect::<Vec<_>>(),
                "stale": f.stale.iter().map(gap).collect::<Vec<_>>(),
            })
        };
        let unreadable = report.unreadable.iter();
        return out.object(&json!({
            "complete": report.is_complete(),
            "families": report.families.iter().map(family).collect::<Vec<_>>(),
            "unreadable": unreadable.map(|u| json!({ "path": u.path.display().to_string(), "message": u.message }))
                .collect::<Vec<_>>(),
            "log_records": report.log_records,
            "log_gaps": gaps.map(|g| json!({ "path": g.path.display().to_string(), "offset": g.offset,
                "from": g.from, "to": g.to })).collect::<Vec<_>>(),
            "prepared": report.prepared.iter().map(|xid| escape(xid)).collect::<Vec<_>>(),
            "last_sequence": report.last_sequence,
            "left_out": report.left_out,
            "leftovers": report.leftovers.iter().map(|p| p.display().to_string()).collect::<Vec<_>>(),
            "notes": report.notes,
        }));
    }
    for u in &report.unreadable {
        out.line(format_args!("unreadable  {}: {}", u.path.display(), u.message))?;
    }
    for g in gaps {
        let to = g.to.map_or("the end".to_owned(), |to| to.to_string());
        out.line(format_args!("log         lost from sequence {} to {to} [{}]", g.from, g.path.display()))?;
    }
    for f in &report.families {
        for key in &f.lost_keys {
            out.line(format_args!("lost        {} of family '{}': its value", escape(key), f.name))?;
        }
        f.lost.iter().try_for_each(|g| out.line(format_args!("lost        {}", range_of(f, g))))?;
        let stale = f.stale.iter().filter(|g| !f.lost.contains(g));
        stale.into_iter().try_for_each(|g| out.line(format_args!("stale       {}", range_of(f, g))))?;
    }
    for path in &report.leftovers {
        out.line(format_args!("leftover    {}: no part of the database", path.display()))?;
    }
    report.notes.iter().try_for_each(|note| out.line(format_args!("note        {note}")))?;
    let mut rows = vec![["family", "tables", "kept", "lost keys", "ranges lost"].map(str::to_owned).to_vec()];
    for f in &report.families {
        let (lost, ranges) = (f.lost_keys.len() as u64, f.lost.len() as u64);
        rows.push(vec![f.name.clone(), count(f.tables), count(f.kept), count(lost), count(ranges)]);
    }
    out.table("", &rows)
}

/// A range of keys, and the damage that is the reason.
fn range_of(family: &FamilyRepair, gap: &KeyGap) -> String {
    let (first, last) = (gap.lo.as_deref().map(escape), gap.hi.as_deref().map(escape));
    let keys = match (first, last) {
        (None, None) => "any key".to_owned(),
        (Some(first), None) => format!("keys from {first} on"),
        (None, Some(last)) => format!("keys up to {last}"),
        (Some(first), Some(last)) => format!("keys from {first} to {last}"),
    };
    let place = match (&gap.path, gap.offset) {
        (None, _) => String::new(),
        (Some(path), None) => format!(" [{}]", path.display()),
        (Some(path), Some(offset)) => format!(" [{} at byte {offset}]", path.display()),
    };
    format!("{keys} of family '{}'{place}", family.name)
}
