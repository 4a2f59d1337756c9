//! Statistics, the shape of the families' trees, and what a range of keys holds.

use crate::abi::{self, Out, Sized_, fill, kingtide_bound, need, out_handle, range_of, set_if};
use crate::db::kingtide_db;
use crate::error::{c_text, guard, kingtide_error, kingtide_status, quietly};
use crate::family::kingtide_family;
use crate::options::forever;
use crate::value::kingtide_text;
use kingtide::{Error, FamilyReport, LevelReport, RangeStats, StatsReport};
use kingtide_base::stats::{Stat, StatKind};
use std::ffi::{CString, c_char, c_void};
use std::fmt::Write;
use std::ptr;
use std::sync::OnceLock;

/// A counter or gauge. Its texts are valid for ever.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_stat {
    /// `sizeof(kingtide_stat)`, set by the caller.
    pub size: usize,
    /// Its name.
    pub name: *const c_char,
    /// What it counts, with its unit.
    pub description: *const c_char,
    /// Its value.
    pub value: u64,
    /// Not 0: it goes up and down; otherwise it only grows.
    pub is_gauge: i32,
    /// Zero.
    pub reserved: i32,
}
// SAFETY: numbers and raw pointers only, the size first.
unsafe impl Sized_ for kingtide_stat {
    const NAME: &'static str = "kingtide_stat";
}

/// One family.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_family_stats {
    /// `sizeof(kingtide_family_stats)`, set by the caller.
    pub size: usize,
    /// Its name. Valid as long as the statistics.
    pub name: *const c_char,
    /// Bytes in its active memtable.
    pub active_bytes: u64,
    /// Immutable memtables that wait for a flush.
    pub immutable_memtables: u64,
    /// Entries and range tombstones in all memtables, hidden versions included.
    pub memtable_entries: u64,
    /// Bytes of its value logs.
    pub vlog_bytes: u64,
    /// Stored bytes in them to which nothing refers.
    pub vlog_dead_bytes: u64,
    /// The number of non-empty levels: see `kingtide_stats_level`.
    pub levels: u64,
    /// Stored bytes in its value logs that newer entries of tables hide, and to which older tables still refer.
    pub vlog_hidden_bytes: u64,
}
// SAFETY: numbers and raw pointers only, the size first.
unsafe impl Sized_ for kingtide_family_stats {
    const NAME: &'static str = "kingtide_family_stats";
}

/// The shape of one level.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_level_stats {
    /// `sizeof(kingtide_level_stats)`, set by the caller.
    pub size: usize,
    /// The level.
    pub level: u64,
    /// Sorted runs.
    pub runs: u64,
    /// Table files.
    pub files: u64,
    /// Bytes of key logs.
    pub bytes: u64,
    /// Point entries, tombstones and hidden versions included.
    pub entries: u64,
    /// Point tombstones.
    pub tombstones: u64,
}
// SAFETY: numbers only, the size first.
unsafe impl Sized_ for kingtide_level_stats {
    const NAME: &'static str = "kingtide_level_stats";
}

/// Figures derived from the counters.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_amplification {
    /// `sizeof(kingtide_amplification)`, set by the caller.
    pub size: usize,
    /// Bytes written to log, tables and value logs per byte committed.
    pub write: f64,
    /// Table blocks and values read from files per point read and seek.
    pub read: f64,
    /// Bytes of tables and value logs per byte of them that is not known to be dead.
    pub space: f64,
}
// SAFETY: numbers only, the size first.
unsafe impl Sized_ for kingtide_amplification {
    const NAME: &'static str = "kingtide_amplification";
}

/// All statistics at one moment. Does not change; any thread may read it.
pub struct kingtide_stats {
    report: StatsReport,
    families: Vec<CString>,
    stopped: Option<CString>,
    background: Option<CString>,
}

/// Takes all statistics. Free them with `kingtide_stats_free`.
///
/// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_stats(
    db: Option<&kingtide_db>,
    stats: *mut *mut kingtide_stats,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(stats, "stats")?;
        let db = need(db, "db")?;
        db.db.check_process()?;
        let report = db.db.stats();
        let c = |text: &Option<String>| text.as_ref().map(|t| c_text(t.as_bytes()));
        out.set(kingtide_stats {
            families: report.families.iter().map(|f| c_text(f.name.as_bytes())).collect(),
            stopped: c(&report.writes_stopped),
            background: c(&report.background_error),
            report,
        });
        Ok(())
    })
}

/// Describes the statistic at an index from 0. False after the last, or if `stat->size` is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_stats_get(
    stats: Option<&kingtide_stats>,
    index: usize,
    stat: *mut kingtide_stat,
) -> bool {
    static TEXTS: OnceLock<Vec<(usize, usize)>> = OnceLock::new();
    quietly(false, || {
        // Addresses, because pointers cannot be shared; the texts live for ever.
        let texts = TEXTS.get_or_init(|| {
            let text = |s: &Stat| (forever(s.name()).expose_provenance(), forever(s.help()).expose_provenance());
            Stat::ALL.iter().map(text).collect()
        });
        let found = stats.and_then(|s| s.report.counters.get(index));
        let (Some((_, value)), Some(kind), Some(text)) = (found, Stat::ALL.get(index), texts.get(index)) else {
            return false;
        };
        let is_gauge = i32::from(kind.kind() == StatKind::Gauge);
        let (name, description) = (ptr::with_exposed_provenance(text.0), ptr::with_exposed_provenance(text.1));
        fill(stat, kingtide_stat { size: 0, name, description, value: *value, is_gauge, reserved: 0 }).is_ok()
    })
}

/// Gets the value of the statistic of that name. Returns false, and does not write `value`, if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_stats_value(
    stats: Option<&kingtide_stats>,
    name: *const c_char,
    value: *mut u64,
) -> bool {
    quietly(false, || match (stats, abi::text(name, "name")) {
        (Some(stats), Ok(name)) => stats.report.get(name).map(|v| set_if(value, v)).is_some(),
        _ => false,
    })
}

/// Figures derived from the counters. False when `amplification->size` is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_stats_amplification(
    stats: Option<&kingtide_stats>,
    amplification: *mut kingtide_amplification,
) -> bool {
    let Some(report) = stats.map(|s| &s.report) else { return false };
    let (write, read) = (report.write_amplification, report.read_amplification);
    fill(amplification, kingtide_amplification { size: 0, write, read, space: report.space_amplification }).is_ok()
}

/// Returns why writes are no longer accepted; NULL if they are. Reads continue to work; the database must be reopened. Valid as long as
/// the statistics.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_stats_writes_stopped(stats: Option<&kingtide_stats>) -> *const c_char {
    stats.and_then(|s| s.stopped.as_ref()).map_or(ptr::null(), |t| t.as_ptr())
}

/// Returns the last background error, which the next successful job clears; NULL if there is none. Valid as long as the
/// statistics.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_stats_background_error(stats: Option<&kingtide_stats>) -> *const c_char {
    stats.and_then(|s| s.background.as_ref()).map_or(ptr::null(), |t| t.as_ptr())
}

/// Describes the family at an index from 0, in the order of names. False behind the last, or when `family->size` is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_stats_family(
    stats: Option<&kingtide_stats>,
    index: usize,
    family: *mut kingtide_family_stats,
) -> bool {
    let found = stats.and_then(|s| s.report.families.get(index).zip(s.families.get(index)));
    let Some((f, name)) = found else { return false };
    let stats = kingtide_family_stats {
        size: 0,
        name: name.as_ptr(),
        active_bytes: f.active_bytes,
        immutable_memtables: f.immutable_memtables as u64,
        memtable_entries: f.memtable_entries,
        vlog_bytes: f.vlog_bytes,
        vlog_dead_bytes: f.vlog_dead_bytes,
        levels: f.levels.len() as u64,
        vlog_hidden_bytes: f.vlog_hidden_bytes,
    };
    fill(family, stats).is_ok()
}

/// Describes a level of the family at an index: `level_index` counts the non-empty levels, from 0. False after the
/// last, or if `level->size` is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_stats_level(
    stats: Option<&kingtide_stats>,
    family_index: usize,
    level_index: usize,
    level: *mut kingtide_level_stats,
) -> bool {
    let found = stats.and_then(|s| s.report.families.get(family_index)).and_then(|f| f.levels.get(level_index));
    let Some(l) = found else { return false };
    let stats = kingtide_level_stats {
        size: 0,
        level: l.level as u64,
        runs: l.runs as u64,
        files: l.files as u64,
        bytes: l.bytes,
        entries: l.entries,
        tombstones: l.tombstones,
    };
    fill(level, stats).is_ok()
}

/// Returns all statistics as text for people.
///
/// Errors: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_stats_text(
    stats: Option<&kingtide_stats>,
    text: *mut *mut kingtide_text,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(text, "text")?;
        out.set(need(stats, "stats")?.report.to_string().into());
        Ok(())
    })
}

/// Returns all statistics as a JSON object: "counters", "amplification", "families" with their "levels", and "writes_stopped" and
/// "background_error", which may be null.
///
/// Errors: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_stats_json(
    stats: Option<&kingtide_stats>,
    json: *mut *mut kingtide_text,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(json, "json")?;
        out.set(json_of(&need(stats, "stats")?.report).into());
        Ok(())
    })
}

/// Frees statistics. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_stats_free(stats: Option<Box<kingtide_stats>>) {
    drop(stats);
}

/// All statistics in the text format of Prometheus.
///
/// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_prometheus(
    db: Option<&kingtide_db>,
    text: *mut *mut kingtide_text,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(text, "text")?;
        let db = need(db, "db")?;
        db.db.check_process()?;
        out.set(db.db.prometheus().into());
        Ok(())
    })
}

fn json_of(r: &StatsReport) -> String {
    let members = |all: Vec<String>| all.join(",");
    let counters = members(r.counters.iter().map(|(name, v)| format!("{}:{v}", quoted(name))).collect());
    let families = members(r.families.iter().map(family_json).collect());
    let text = |t: &Option<String>| t.as_ref().map_or_else(|| "null".to_owned(), |t| quoted(t));
    format!(
        "{{\"counters\":{{{counters}}},\"amplification\":{{\"write\":{},\"read\":{},\"space\":{}}},\
         \"families\":[{families}],\"writes_stopped\":{},\"background_error\":{}}}",
        number(r.write_amplification),
        number(r.read_amplification),
        number(r.space_amplification),
        text(&r.writes_stopped),
        text(&r.background_error)
    )
}

fn family_json(f: &FamilyReport) -> String {
    let level = |l: &LevelReport| {
        let LevelReport { level, runs, files, bytes, entries, tombstones, .. } = l;
        format!(
            "{{\"level\":{level},\"runs\":{runs},\"files\":{files},\"bytes\":{bytes},\"entries\":{entries},\
             \"tombstones\":{tombstones}}}"
        )
    };
    let levels: Vec<String> = f.levels.iter().map(level).collect();
    format!(
        "{{\"name\":{},\"active_bytes\":{},\"immutable_memtables\":{},\"memtable_entries\":{},\"vlog_bytes\":{},\
         \"vlog_dead_bytes\":{},\"vlog_hidden_bytes\":{},\"levels\":[{}]}}",
        quoted(&f.name),
        f.active_bytes,
        f.immutable_memtables,
        f.memtable_entries,
        f.vlog_bytes,
        f.vlog_dead_bytes,
        f.vlog_hidden_bytes,
        levels.join(",")
    )
}

/// A number as JSON has it, which knows no infinity.
fn number(n: f64) -> f64 {
    if n.is_finite() { n } else { 0.0 }
}

/// A string as JSON has it.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c)); // writing to a string cannot fail
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// An estimate of the contents of a range of keys.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_range_stats {
    /// `sizeof(kingtide_range_stats)`, set by the caller.
    pub size: usize,
    /// Keys that a read would show. 0 only if there is no entry at all.
    pub rows: u64,
    /// Point entries, tombstones and hidden versions included. 0 only if there is none.
    pub entries: u64,
    /// Those of them that are in memtables.
    pub memtable_entries: u64,
    /// Point tombstones in tables.
    pub tombstones: u64,
    /// Range tombstones in the tables that overlap the range.
    pub range_tombstones: u64,
    /// Bytes of keys and inline values in tables, before compression.
    pub raw_bytes: u64,
    /// Bytes in key-log files.
    pub disk_bytes: u64,
    /// Bytes in value-log files.
    pub value_log_bytes: u64,
    /// Bytes of keys and values in memtables.
    pub memtable_bytes: u64,
    /// Tables that overlap the range.
    pub tables: u64,
    /// Runs that overlap the range, which a scan has to merge, without memtables.
    pub runs: u64,
    /// Entries that have expired and were not compacted away yet, estimated. `rows` leaves them out.
    pub expired: u64,
}
// SAFETY: numbers only, the size first.
unsafe impl Sized_ for kingtide_range_stats {
    const NAME: &'static str = "kingtide_range_stats";
}

impl From<RangeStats> for kingtide_range_stats {
    fn from(s: RangeStats) -> kingtide_range_stats {
        kingtide_range_stats {
            size: 0,
            rows: s.rows,
            entries: s.entries,
            memtable_entries: s.memtable_entries,
            tombstones: s.tombstones,
            range_tombstones: s.range_tombstones,
            raw_bytes: s.raw_bytes,
            disk_bytes: s.disk_bytes,
            value_log_bytes: s.value_log_bytes,
            memtable_bytes: s.memtable_bytes,
            tables: s.tables,
            runs: s.runs,
            expired: s.expired,
        }
    }
}

/// Estimates the contents of a range of keys from metadata and resident indexes, in a few microseconds: no block is read. NULL is
/// an open end. For query planners. A transaction's own writes do not count.
///
/// Errors: CLOSED; CORRUPTION, IO (opening a table); INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_range_stats(
    family: Option<&kingtide_family>,
    lower: *const kingtide_bound,
    upper: *const kingtide_bound,
    stats: *mut kingtide_range_stats,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || fill(stats, need(family, "family")?.0.range_stats(range_of(lower, upper)?)?.into()))
}

/// Counts the keys of a range if there are at most `most`, and estimates their number otherwise. `exact`,
/// unless NULL, is set to whether they were counted.
///
/// Errors: as `kingtide_family_range_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_count_up_to(
    family: Option<&kingtide_family>,
    lower: *const kingtide_bound,
    upper: *const kingtide_bound,
    most: u64,
    rows: *mut u64,
    exact: *mut bool,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = Out::new(rows, "rows")?;
        let count = need(family, "family")?.0.count_up_to(range_of(lower, upper)?, most)?;
        out.set(count.rows);
        set_if(exact, count.exact);
        Ok(())
    })
}

/// A list of keys. Does not change; any thread may read it.
pub struct kingtide_keys(Vec<Vec<u8>>);

/// Returns keys, in ascending order, that split a range into at most `parts` parts of about equal size, for parallel scans. They
/// need not exist; a part goes from one, included, to the next, excluded. NULL is an open end. No block is read. Free the list
/// with `kingtide_keys_free`.
///
/// Errors: as `kingtide_family_range_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_split_points(
    family: Option<&kingtide_family>,
    lower: *const kingtide_bound,
    upper: *const kingtide_bound,
    parts: usize,
    keys: *mut *mut kingtide_keys,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(keys, "keys")?;
        out.set(kingtide_keys(
            need(family, "family")?.0.split_points(range_of(lower, upper)?, parts.min(MOST_PLACES))?,
        ));
        Ok(())
    })
}

/// Returns the number of elements.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_keys_count(keys: Option<&kingtide_keys>) -> usize {
    keys.map_or(0, |k| k.0.len())
}

/// Returns the key at an index from 0; NULL after the last. `len`, unless NULL, is set to its length. Valid until the list is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_keys_get(keys: Option<&kingtide_keys>, index: usize, len: *mut usize) -> *const u8 {
    let found = keys.and_then(|k| k.0.get(index));
    set_if(len, found.map_or(0, Vec::len));
    found.map_or(ptr::null(), |k| k.as_ptr())
}

/// Frees a list. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_keys_free(keys: Option<Box<kingtide_keys>>) {
    drop(keys);
}

/// Given two neighbouring keys, returns the index of the first part in which they differ; the number of parts or more
/// if none does. Must neither unwind nor jump out.
pub type kingtide_first_difference_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, a: *const u8, a_len: usize, b: *const u8, b_len: usize) -> usize>;

/// Estimates, for each number of leading parts of a range's keys from 1 to `parts`, the number of distinct combinations,
/// as query planners need for an index. `distinct` has room for `parts` numbers. Reads about 16 keys at each of `places`
/// places, or all keys if there are no more. `rows` and `exact` may be NULL. `parts` is at most 64.
///
/// Errors: as `kingtide_family_range_stats`, and of reading.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_cardinality(
    family: Option<&kingtide_family>,
    lower: *const kingtide_bound,
    upper: *const kingtide_bound,
    parts: usize,
    places: usize,
    first_difference: kingtide_first_difference_fn,
    context: *mut c_void,
    distinct: *mut u64,
    rows: *mut u64,
    exact: *mut bool,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        if parts == 0 || parts > MOST_PARTS {
            return Err(Error::invalid(format!("keys of {parts} parts; 1 to {MOST_PARTS} are allowed")));
        }
        let (differ, first) = (need(first_difference, "first_difference")?, Out::new(distinct, "distinct")?);
        let range = range_of(lower, upper)?;
        let told = |a: &[u8], b: &[u8]| differ(context, a.as_ptr(), a.len(), b.as_ptr(), b.len());
        let found = need(family, "family")?.0.cardinality(range, parts, places.min(MOST_PLACES), told)?;
        first.set_all(found.distinct.get(..parts).unwrap_or(&found.distinct));
        set_if(rows, found.rows);
        set_if(exact, found.exact);
        Ok(())
    })
}

/// Most parts that a key is said to have.
const MOST_PARTS: usize = 64;
/// Most places of a range that are looked at: more are never worth it.
const MOST_PLACES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_escapes() {
        assert_eq!(quoted("a\"b\\c\nd\u{1}"), "\"a\\\"b\\\\c\\u000ad\\u0001\"");
        assert_eq!(number(f64::INFINITY), 0.0);
    }
}
