//! Verification and repair.

use crate::confirm::Yes;
use crate::error::{Failure, Result};
use crate::format::{Format, show_name};
use crate::open::{check_no_file, check_place, mode_of, options_for};
use crate::output::{Out, bytes, count, things};
use crate::progress::Progress;
use kingtide::{
    FamilyRepair, KeyGap, LogGap, Options, Problem, RepairOptions, RepairReport, VerifyReport, repair_with,
};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Check all files and report every inconsistency.
#[derive(clap::Args)]
#[command(
    after_help = "Changes nothing and needs no permission to write. Works on a database that can no longer be opened; no process
can open it for writing meanwhile. Exits with 4 if something is damaged, even if the reader of the output stops early;
leftover files and similar findings are warnings, which do not change the exit code.

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
    let progress = Progress::bytes("verifying");
    let report = kingtide::verify_with(&args.path, &Options::default(), &mut |p: kingtide::Progress| {
        progress.set_of(p.bytes, p.total_bytes);
        true
    })?;
    drop(progress);
    let printed = print_report(&report, out);
    if !report.is_damaged() {
        return printed;
    }
    // Each problem is in the output already.
    let errors = report.problems.iter().filter(|p| p.severity == kingtide::Severity::Error).count();
    let problems = things(errors as u64, "problem", "problems");
    let at_least = if report.unlisted > 0 && errors == kingtide::MAX_PROBLEMS { "at least " } else { "" };
    let failure = Failure::damaged(format!("{} is damaged: {at_least}{problems}", args.path.display()));
    Err(failure.then("kt repair salvages what can be read into a new database").printed(printed))
}

fn print_report(report: &VerifyReport, out: &mut Out) -> Result<()> {
    let c = &report.counts;
    if out.json {
        return out.object(&json!({
            "clean": report.is_clean(),
            "damaged": report.is_damaged(),
            "problems": report.problems.iter().map(|p| describe(p, out.formats.key_format)).collect::<Vec<_>>(),
            "unlisted": report.unlisted,
            "checked": {
                "families": c.families, "files": c.files, "blocks": c.blocks, "entries": c.entries,
                "values": c.values, "log_records": c.log_records, "prepared": c.prepared, "bytes": c.bytes,
            },
        }));
    }
    for p in &report.problems {
        let severity = format!("{:?}", p.severity).to_lowercase();
        out.line(format_args!("{severity:<8} {}", place(p, out.formats.key_format)))?;
    }
    if report.unlisted > 0 {
        out.line(format_args!("and {} more that are not listed", count(report.unlisted)))?;
    }
    out.line(format_args!(
        "checked {} in {}: {}, {}, {}",
        bytes(c.bytes),
        things(c.files, "file", "files"),
        things(c.entries, "entry", "entries"),
        things(c.values, "value", "values"),
        things(c.log_records, "log record", "log records")
    ))?;
    match (report.is_clean(), report.is_damaged()) {
        (true, _) => out.line("no problems found"),
        (_, true) => Ok(()), // which is the error message
        _ => out.line("no damage found"),
    }
}

/// What is wrong, and where.
fn place(p: &Problem, keys: Format) -> String {
    let mut text = p.message.clone();
    if let Some(path) = &p.path {
        text.push_str(&format!(" [{}", path.display()));
        if let Some(offset) = p.offset {
            text.push_str(&format!(" at byte {offset}"));
        }
        text.push(']');
    }
    if let Some(family) = &p.family {
        text.push_str(&format!(", family '{}'", show_name(family)));
    }
    if let Some((lo, hi)) = &p.keys {
        text.push_str(&match lo == hi {
            true => format!(", key '{}'", keys.show_any(lo)),
            false => format!(", keys '{}' to '{}'", keys.show_any(lo), keys.show_any(hi)),
        });
    }
    text
}

fn describe(p: &Problem, keys: Format) -> Value {
    json!({
        "severity": format!("{:?}", p.severity).to_lowercase(),
        "kind": crate::error::snake(&format!("{:?}", p.kind)),
        "message": p.message,
        "family": p.family,
        "path": p.path.as_ref().map(|p| p.display().to_string()),
        "offset": p.offset,
        "min_key": p.keys.as_ref().map(|(lo, _)| keys.show_any(lo)),
        "max_key": p.keys.as_ref().map(|(_, hi)| keys.show_any(hi)),
    })
}

/// Salvage the readable data of a damaged database into a new one.
#[derive(clap::Args)]
#[command(
    after_help = "The damaged database is not changed. Exits with 4 if data was lost; the output names each lost range.

Example:
  kt repair my-database my-database-repaired --yes"
)]
pub struct RepairArgs {
    /// Directory of the damaged database
    path: PathBuf,
    /// Directory of the new database; must be empty or absent
    into: PathBuf,
    /// Ignore the log after its first damaged record
    #[arg(long)]
    stop_at_damage: bool,
    /// The database has only ever had the default family: assign it the tables of unknown families
    #[arg(long)]
    one_family: bool,
    #[command(flatten)]
    yes: Yes,
}

/// `kt repair`.
pub fn repair(args: &RepairArgs, out: &mut Out) -> Result<()> {
    check_place(&args.path)?;
    check_no_file(&args.into)?;
    let (path, into) = (args.path.display(), args.into.display());
    args.yes.confirm(&format!("Salvage the readable data of {path} into {into}?"))?;
    let how = RepairOptions::new().salvage_past_damage(!args.stop_at_damage).one_family(args.one_family);
    // The order and options of the default family, as far as the manifest tells.
    let options = options_for(&args.path).unwrap_or_else(|_| {
        let mut options = Options::default();
        options.db.file_mode = mode_of(&args.path);
        options
    });
    let progress = Progress::bytes("repairing");
    let report = repair_with(&args.path, &args.into, &options, how, &mut |p: kingtide::Progress| {
        progress.set_of(p.bytes, p.total_bytes);
        true
    })?;
    drop(progress);
    let printed = print_repair(&report, out);
    if report.is_complete() {
        return printed;
    }
    let lost = losses(&report, out.formats.key_format);
    let lost = if lost.is_empty() { String::new() } else { format!("; lost: {}", lost.join(", ")) };
    Err(Failure::damaged(format!("{path} is only partly readable; salvaged data is in {into}{lost}")).printed(printed))
}

/// Losses that the message names before it says how many more there are.
const NAMED: usize = 5;

/// What was lost, in short: key ranges, single keys, and parts of the log.
fn losses(report: &RepairReport, keys: Format) -> Vec<String> {
    let mut lost: Vec<String> = Vec::new();
    for f in &report.families {
        let name = show_name(&f.name);
        lost.extend(f.lost.iter().map(|g| format!("{} of family '{name}'", keys_of(g, keys))));
        lost.extend(f.lost_keys.iter().map(|k| format!("the value of {} of family '{name}'", keys.show_any(k))));
    }
    lost.extend(report.log_gaps.iter().map(log_gap));
    let more = lost.len().saturating_sub(NAMED);
    lost.truncate(NAMED);
    if more > 0 {
        lost.push(format!("and {} more", count(more as u64)));
    }
    lost
}

fn log_gap(gap: &LogGap) -> String {
    match gap.to {
        Some(to) => format!("log from sequence {} to {}", gap.from, to.saturating_sub(1)),
        None => format!("log from sequence {} on", gap.from),
    }
}

fn print_repair(report: &RepairReport, out: &mut Out) -> Result<()> {
    let gaps = report.log_gaps.iter();
    let keys = out.formats.key_format;
    if out.json {
        let family = |f: &FamilyRepair| {
            let gap = |g: &KeyGap| {
                json!({ "min_key": g.lo.as_deref().map(|k| keys.show_any(k)), "max_key": g.hi.as_deref().map(|k| keys.show_any(k)),
                    "path": g.path.as_ref().map(|p| p.display().to_string()), "offset": g.offset })
            };
            json!({
                "name": f.name, "named": f.named, "tables": f.tables, "kept": f.kept,
                "lost_keys": f.lost_keys.iter().map(|k| keys.show_any(k)).collect::<Vec<_>>(),
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
            "prepared": report.prepared.iter().map(|xid| keys.show_any(xid)).collect::<Vec<_>>(),
            "last_sequence": report.last_sequence,
            "left_out": report.left_out,
            "leftovers": report.leftovers.iter().map(|p| p.display().to_string()).collect::<Vec<_>>(),
            "notes": report.notes,
        }));
    }
    for u in &report.unreadable {
        let path = u.path.display().to_string();
        match u.message.contains(&path) {
            true => out.line(format_args!("unreadable  {}", u.message))?,
            false => out.line(format_args!("unreadable  {path}: {}", u.message))?,
        }
    }
    for g in gaps {
        out.line(format_args!("lost        {} [{}]", log_gap(g), g.path.display()))?;
    }
    for f in &report.families {
        for key in &f.lost_keys {
            let (key, name) = (keys.show_any(key), show_name(&f.name));
            out.line(format_args!("lost        the value of {key} of family '{name}'"))?;
        }
        f.lost.iter().try_for_each(|g| out.line(format_args!("lost        {}", range_of(f, g, keys))))?;
        let stale = f.stale.iter().filter(|g| !f.lost.contains(g));
        stale.into_iter().try_for_each(|g| out.line(format_args!("stale       {}", range_of(f, g, keys))))?;
    }
    for path in &report.leftovers {
        out.line(format_args!("leftover    {}: not part of the database", path.display()))?;
    }
    report.notes.iter().try_for_each(|note| out.line(format_args!("note        {note}")))?;
    let mut rows = vec![["family", "tables", "kept", "lost keys", "ranges lost"].map(str::to_owned).to_vec()];
    for f in &report.families {
        let (lost, ranges) = (f.lost_keys.len() as u64, f.lost.len() as u64);
        rows.push(vec![show_name(&f.name), count(f.tables), count(f.kept), count(lost), count(ranges)]);
    }
    out.table("", &rows)
}

/// The keys of a gap.
fn keys_of(gap: &KeyGap, keys: Format) -> String {
    let (first, last) = (gap.lo.as_deref().map(|k| keys.show_any(k)), gap.hi.as_deref().map(|k| keys.show_any(k)));
    match (first, last) {
        (None, None) => "keys anywhere".to_owned(),
        (Some(first), None) => format!("keys from {first} on"),
        (None, Some(last)) => format!("keys up to {last}"),
        (Some(first), Some(last)) => format!("keys from {first} to {last}"),
    }
}

/// A range of keys, and the damage that is the reason.
fn range_of(family: &FamilyRepair, gap: &KeyGap, keys: Format) -> String {
    let keys = keys_of(gap, keys);
    let place = match (&gap.path, gap.offset) {
        (None, _) => String::new(),
        (Some(path), None) => format!(" [{}]", path.display()),
        (Some(path), Some(offset)) => format!(" [{} at byte {offset}]", path.display()),
    };
    format!("{keys} of family '{}'{place}", show_name(&family.name))
}
