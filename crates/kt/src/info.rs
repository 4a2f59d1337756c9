//! What a database looks like: `kt info` and `kt stats`.

use crate::error::{Failure, Result};
use crate::format::show_name;
use crate::open::{check_place, log_files, open_to_read};
use crate::output::{Out, bytes, count, things};
use kingtide::vfs::{OpenMode, SystemFs};
use kingtide::{Db, ErrorKind, FamilyOptions, FamilyReport, StatsReport};
use kingtide_base::names::{LOCK_FILE, STATS_FILE};
use kingtide_wal::{SegmentPart, dump_segment};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Show families, levels, log, sequence numbers, transactions in doubt.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kt info my-database
  kt info my-database --json | jq '.families[].levels'")]
pub struct InfoArgs {
    /// Directory of the database
    path: PathBuf,
}

/// The options of a family that are not the default.
pub fn different_options(options: &FamilyOptions) -> Vec<(&'static str, String)> {
    let default = FamilyOptions::default();
    options.entries().into_iter().filter(|(name, value)| default.get(name).as_ref() != Some(value)).collect()
}

/// `kt info`.
pub fn info(args: &InfoArgs, out: &mut Out) -> Result<()> {
    let log = log_files(&args.path);
    let db = open_to_read(&args.path)?;
    let object = describe(&db, &args.path, &log)?;
    if out.json { out.object(&object) } else { print(&db, &object, &log, out) }
}

fn describe(db: &Db, path: &std::path::Path, log: &[(String, u64)]) -> Result<Value> {
    let stats = db.stats();
    let mut families = Vec::new();
    for report in &stats.families {
        let family = db.family(&report.name)?;
        let options: Map<String, Value> =
            different_options(&family.options()).into_iter().map(|(n, v)| (n.to_owned(), v.into())).collect();
        families.push(describe_family(report, family.order().name(), options));
    }
    let segments: Vec<Value> = log.iter().map(|(name, size)| json!({ "name": name, "bytes": size })).collect();
    Ok(json!({
        "path": path.display().to_string(),
        "families": families,
        "log": { "segments": segments, "bytes": log.iter().map(|(_, size)| size).sum::<u64>() },
        "sequence": {
            "latest": db.latest_sequence(),
            "oldest_change": oldest_change(path, log).unwrap_or_else(|| db.latest_sequence()),
            "oldest_readable": db.oldest_readable_sequence(),
        },
        "prepared": db.recover_prepared().iter().map(crate::txn::describe).collect::<Vec<_>>(),
        "snapshots": stats.get("snapshots").unwrap_or(0),
        "amplification": {
            "space": stats.space_amplification,
            "write": stats.write_amplification,
            "read": stats.read_amplification,
        },
        "writes_stopped": stats.writes_stopped,
        "background_error": stats.background_error,
    }))
}

/// The sequence number before the first that the log holds, from the header of its oldest segment.
fn oldest_change(path: &std::path::Path, log: &[(String, u64)]) -> Option<u64> {
    let mut start = None;
    for (name, _) in log {
        let stop = || kingtide::Error::invalid("the header was read");
        // `kt verify` reports segments that cannot be read.
        let _ = dump_segment(&*SystemFs::shared(), &path.join(name), &mut |part| {
            if let SegmentPart::Header { start: first, .. } = part {
                start = Some(first);
            }
            Err(stop())
        });
        if start.is_some() {
            break;
        }
    }
    start?.checked_sub(1)
}

fn describe_family(report: &FamilyReport, order: &str, options: Map<String, Value>) -> Value {
    let level = |l: &kingtide::LevelReport| {
        json!({
            "level": l.level, "runs": l.runs, "files": l.files, "bytes": l.bytes,
            "entries": l.entries, "tombstones": l.tombstones,
        })
    };
    json!({
        "name": report.name,
        "order": order,
        "options": options,
        "memtable_bytes": report.active_bytes,
        "immutable_memtables": report.immutable_memtables,
        "vlog_bytes": report.vlog_bytes,
        "vlog_dead_bytes": report.vlog_dead_bytes,
        "vlog_hidden_bytes": report.vlog_hidden_bytes,
        "levels": report.levels.iter().map(level).collect::<Vec<_>>(),
    })
}

fn print(db: &Db, object: &Value, log: &[(String, u64)], out: &mut Out) -> Result<()> {
    let number = |group: &str, name: &str| count(object[group][name].as_u64().unwrap_or(0));
    out.line(format_args!("database    {}", object["path"].as_str().unwrap_or_default()))?;
    let total = log.iter().map(|(_, size)| size).sum();
    out.line(format_args!("log         {}, {}", things(log.len() as u64, "segment", "segments"), bytes(total)))?;
    out.line(format_args!(
        "sequence    {} newest, changes kept since {}",
        number("sequence", "latest"),
        number("sequence", "oldest_change")
    ))?;
    let prepared = db.recover_prepared();
    out.line(format_args!("in doubt    {}", things(prepared.len() as u64, "transaction", "transactions")))?;
    for p in &prepared {
        let operations = things(p.operations, "operation", "operations");
        out.line(format_args!("            {}: {operations}", crate::format::escape(&p.xid)))?;
    }
    let stats = db.stats();
    out.line(format_args!("space       {:.2} times what is live", stats.space_amplification.max(1.0)))?;
    for (what, why) in troubles(&stats) {
        out.line(format_args!("{what}: {why}"))?;
    }
    for report in &stats.families {
        out.line("")?;
        let family = db.family(&report.name)?;
        out.line(format_args!("family '{}', {} order", show_name(&report.name), family.order().name()))?;
        for (name, value) in different_options(&family.options()) {
            out.line(format_args!("  option {name} = {value}"))?;
        }
        out.line(format_args!(
            "  memtables {}, value logs {} ({} dead)",
            bytes(report.active_bytes),
            bytes(report.vlog_bytes),
            bytes(report.vlog_dead_bytes)
        ))?;
        if !report.levels.is_empty() {
            out.table("  ", &levels(report))?;
        }
    }
    Ok(())
}

/// What keeps the database from working as it should.
fn troubles(stats: &StatsReport) -> impl Iterator<Item = (&'static str, &str)> {
    let stopped = stats.writes_stopped.as_deref().map(|why| ("writes are stopped", why));
    let background = stats.background_error.as_deref().map(|why| ("background work fails", why));
    stopped.into_iter().chain(background)
}

fn levels(report: &FamilyReport) -> Vec<Vec<String>> {
    let mut rows = vec![["level", "runs", "files", "bytes", "entries", "tombstones"].map(str::to_owned).to_vec()];
    for l in &report.levels {
        let (runs, files) = (count(l.runs as u64), count(l.files as u64));
        rows.push(vec![l.level.to_string(), runs, files, bytes(l.bytes), count(l.entries), count(l.tombstones)]);
    }
    rows
}

/// Show what is stored, as statistics.
#[derive(clap::Args)]
#[command(
    after_help = "Counters (gets, flushes, cache hits ...) are kept in memory by the process that has the database open and start
at 0 with each open. kt opens the database for itself, so the table leaves them out; --all, --json and
--prometheus include them. --live shows those of the process that has the database open, as Prometheus text,
if that process set the option stats_interval_ms, and fails if no process has it open.

Examples:
  kt stats my-database
  kt stats my-database --prometheus
  kt stats my-database --live | grep seconds_count"
)]
pub struct StatsArgs {
    /// Directory of the database
    path: PathBuf,
    /// Prometheus text
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
    /// Show the statistics last published by the process that has the database open, as Prometheus text
    #[arg(long, conflicts_with_all = ["json", "prometheus", "all"])]
    live: bool,
    /// Include the counters of kt itself, most of which are 0
    #[arg(long, conflicts_with = "prometheus")]
    all: bool,
}

/// `kt stats`.
pub fn stats(args: &StatsArgs, out: &mut Out) -> Result<()> {
    if args.live {
        check_place(&args.path)?;
        return out.raw(&published(&args.path)?);
    }
    let db = open_to_read(&args.path)?;
    if args.prometheus {
        return out.raw(db.prometheus().as_bytes());
    }
    let report = db.stats();
    let amplification = [
        ("space_amplification", report.space_amplification),
        ("write_amplification", report.write_amplification),
        ("read_amplification", report.read_amplification),
    ];
    if out.json {
        let mut object: Map<String, Value> =
            report.counters.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        amplification.iter().for_each(|(name, value)| drop(object.insert((*name).to_owned(), (*value).into())));
        object.insert("writes_stopped".to_owned(), report.writes_stopped.clone().into());
        object.insert("background_error".to_owned(), report.background_error.clone().into());
        return out.object(&Value::Object(object));
    }
    let log = log_files(&args.path);
    out.table("", &stored(&report))?;
    out.line("")?;
    let mut rows = vec![vec!["statistic".to_owned(), "value".to_owned()]];
    for (name, value) in report.counters.iter().filter(|(name, _)| args.all || is_of_files(name)) {
        let shown = if name.ends_with("bytes") { bytes(*value) } else { count(*value) };
        rows.push(vec![(*name).to_owned(), shown]);
    }
    rows.push(vec!["log_file_bytes".to_owned(), bytes(log.iter().map(|(_, size)| size).sum())]);
    rows.extend(troubles(&report).map(|(what, why)| vec![what.to_owned(), why.to_owned()]));
    let shown = if args.all { &amplification[..] } else { &amplification[..1] };
    rows.extend(shown.iter().map(|(name, value)| vec![(*name).to_owned(), format!("{value:.2}")]));
    out.table("", &rows)?;
    if !args.all {
        out.line("")?;
        out.line(
            "Counters such as gets and flushes start at 0 with each open and are not shown. For those of a running process",
        )?;
        out.line("see kt stats --live.")?;
    }
    Ok(())
}

/// What the process that has the database open wrote of its statistics.
pub fn published(path: &Path) -> Result<Vec<u8>> {
    let file = match SystemFs::shared().open(&path.join(STATS_FILE), OpenMode::Read) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let text = "no process publishes its statistics here: none has the database open, or its option \
                        stats_interval_ms is 0";
            return Err(kingtide::Error::new(ErrorKind::NotFound, text).at_path(path).into());
        }
        opened => opened?,
    };
    // A process that was killed leaves the file behind, but no lock. If the lock cannot be tried, whether one is there is not known.
    if SystemFs::shared().lock_shared(&path.join(LOCK_FILE)).is_ok() {
        let age = std::fs::metadata(path.join(STATS_FILE)).ok().and_then(|m| m.modified().ok()?.elapsed().ok());
        let age = age.map_or(String::new(), |age| format!(", {} s ago", count(age.as_secs())));
        return Err(Failure::not_found(format!(
            "no process has the database open: the last one ended without closing it{age}, and its last statistics are in {}",
            path.join(STATS_FILE).display()
        )));
    }
    let mut text = vec![0; file.len()? as usize];
    file.read_exact_at(&mut text, 0)?;
    Ok(text)
}

/// Statistics that describe the database, and not only the process that has it open.
fn is_of_files(name: &str) -> bool {
    ["klog_bytes", "vlog_bytes", "vlog_dead_bytes", "vlog_hidden_bytes", "transactions_prepared", "recovered_records"]
        .contains(&name)
}

/// What each family has stored.
fn stored(report: &StatsReport) -> Vec<Vec<String>> {
    let head = ["family", "tables", "entries", "tombstones", "table bytes", "value logs", "dead", "memtables"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for f in &report.families {
        let sum = |of: fn(&kingtide::LevelReport) -> u64| f.levels.iter().map(of).sum::<u64>();
        let numbers = [sum(|l| l.files as u64), sum(|l| l.entries), sum(|l| l.tombstones)].map(count);
        let sizes = [sum(|l| l.bytes), f.vlog_bytes, f.vlog_dead_bytes, f.active_bytes].map(bytes);
        rows.push([show_name(&f.name)].into_iter().chain(numbers).chain(sizes).collect());
    }
    rows
}
