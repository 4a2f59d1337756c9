//! Verification and repair.

use crate::abi::{self, Sized_, check_size, config, fill, flag, need, out_handle};
use crate::copies::kingtide_progress_fn;
use crate::db::{kingtide_db, options_of};
use crate::error::{c_text, guard, kingtide_error, kingtide_status};
use crate::options::kingtide_options;
use crate::value::kingtide_text;
use kingtide::{Problem, Progress, RepairOptions, RepairReport, Severity, VerifyCounts, VerifyReport};
use std::ffi::{CString, c_char, c_void};
use std::fmt::Write;
use std::ptr;

/// The severity of a problem.
#[allow(clippy::enum_variant_names)]
#[repr(C)]
pub enum kingtide_severity {
    /// Information: a normal state after a crash.
    KINGTIDE_SEVERITY_INFO = 0,
    /// Nothing is lost, but the state is not one that the engine leaves behind.
    KINGTIDE_SEVERITY_WARNING = 1,
    /// Damage: data cannot be read, or would be read incorrectly.
    KINGTIDE_SEVERITY_ERROR = 2,
}

/// One problem. Its pointers are valid as long as the report.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_problem {
    /// `sizeof(kingtide_problem)`, set by the caller.
    pub size: usize,
    /// One of `kingtide_severity`.
    pub severity: i32,
    /// Not 0: `offset` is known.
    pub has_offset: i32,
    /// A description of the problem and its consequences.
    pub message: *const c_char,
    /// The kind of the problem, such as "Block" or "MissingFile".
    pub kind: *const c_char,
    /// The family that is affected; NULL if none is.
    pub family: *const c_char,
    /// The file; NULL if the problem is in none.
    pub path: *const c_char,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The smallest key that may be affected; NULL if unknown.
    pub lowest_key: *const c_void,
    /// Its length.
    pub lowest_key_len: usize,
    /// The largest key that may be affected; NULL if unknown.
    pub highest_key: *const c_void,
    /// Its length.
    pub highest_key_len: usize,
}
// SAFETY: numbers and raw pointers only, the size first.
unsafe impl Sized_ for kingtide_problem {
    const NAME: &'static str = "kingtide_problem";
}

/// The amounts that were checked.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_verify_counts {
    /// `sizeof(kingtide_verify_counts)`, set by the caller.
    pub size: usize,
    /// Column families.
    pub families: u64,
    /// Files, log segments and the manifest included.
    pub files: u64,
    /// Blocks of tables.
    pub blocks: u64,
    /// Entries of tables.
    pub entries: u64,
    /// Values read through a table's pointer.
    pub values: u64,
    /// Records of the write-ahead log.
    pub log_records: u64,
    /// Prepared transactions in doubt.
    pub prepared: u64,
    /// Bytes read and checked.
    pub bytes: u64,
}
// SAFETY: numbers only, the size first.
unsafe impl Sized_ for kingtide_verify_counts {
    const NAME: &'static str = "kingtide_verify_counts";
}

/// A problem with its texts as C reads them.
struct Shown {
    problem: Problem,
    message: CString,
    kind: CString,
    family: Option<CString>,
    path: Option<CString>,
}

/// The result of a verification. Does not change; any thread may read it.
pub struct kingtide_verify_report {
    counts: VerifyCounts,
    clean: bool,
    damaged: bool,
    unlisted: u64,
    problems: Vec<Shown>,
}

impl From<VerifyReport> for kingtide_verify_report {
    fn from(report: VerifyReport) -> kingtide_verify_report {
        let (clean, damaged) = (report.is_clean(), report.is_damaged());
        let (counts, unlisted) = (report.counts, report.unlisted);
        let shown = |problem: Problem| Shown {
            message: c_text(problem.to_string().as_bytes()),
            kind: c_text(format!("{:?}", problem.kind).as_bytes()),
            family: problem.family.as_ref().map(|f| c_text(f.as_bytes())),
            path: problem.path.as_ref().map(|p| c_text(p.as_os_str().as_encoded_bytes())),
            problem,
        };
        let problems = report.problems.into_iter().map(shown).collect();
        kingtide_verify_report { counts, clean, damaged, unlisted, problems }
    }
}

/// Asks the caller's function, if there is one, whether to go on.
///
/// # Safety
/// The function can be called with that context as long as the result is used.
unsafe fn watch(progress: kingtide_progress_fn, context: *mut c_void) -> impl FnMut(Progress) -> bool {
    move |p| progress.is_none_or(|told| told(context, p.bytes, p.total_bytes) == 0)
}

/// Verifies an open database: its manifest, all tables and value logs as of now, and the log. Commits continue. `progress` may be
/// NULL. Problems are in the report and are not errors.
///
/// Errors: CLOSED, CANCELLED, IO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_verify(
    db: Option<&kingtide_db>,
    progress: kingtide_progress_fn,
    context: *mut c_void,
    report: *mut *mut kingtide_verify_report,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(report, "report")?;
        out.set(need(db, "db")?.db.verify_with(&mut watch(progress, context))?.into());
        Ok(())
    })
}

/// Verifies a closed database. Of the options, which may be NULL, only key orders that were added matter.
///
/// Errors: LOCKED (it is open), NOT_FOUND, CANCELLED, IO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_verify(
    path: *const c_char,
    options: Option<&kingtide_options>,
    progress: kingtide_progress_fn,
    context: *mut c_void,
    report: *mut *mut kingtide_verify_report,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (out, path) = (out_handle(report, "report")?, abi::path(path, "path")?);
        out.set(kingtide::verify_with(path, &options_of(options), &mut watch(progress, context))?.into());
        Ok(())
    })
}

/// Returns whether there is no problem worse than `KINGTIDE_SEVERITY_INFO`.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_verify_report_is_clean(report: Option<&kingtide_verify_report>) -> bool {
    report.is_some_and(|r| r.clean)
}

/// Returns whether there is damage.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_verify_report_is_damaged(report: Option<&kingtide_verify_report>) -> bool {
    report.is_some_and(|r| r.damaged)
}

/// Returns what was checked. False if `counts->size` is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_verify_report_counts(
    report: Option<&kingtide_verify_report>,
    counts: *mut kingtide_verify_counts,
) -> bool {
    let Some(VerifyCounts { families, files, blocks, entries, values, log_records, prepared, bytes, .. }) =
        report.map(|r| r.counts)
    else {
        return false;
    };
    let shown =
        kingtide_verify_counts { size: 0, families, files, blocks, entries, values, log_records, prepared, bytes };
    fill(counts, shown).is_ok()
}

/// Returns the number of problems that the report describes, which is bounded: see `kingtide_verify_report_unlisted`.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_verify_report_count(report: Option<&kingtide_verify_report>) -> usize {
    report.map_or(0, |r| r.problems.len())
}

/// Returns the number of further problems that were found and are not described.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_verify_report_unlisted(report: Option<&kingtide_verify_report>) -> u64 {
    report.map_or(0, |r| r.unlisted)
}

/// Describes the problem at an index from 0. False after the last, or if `problem->size` is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_verify_report_get(
    report: Option<&kingtide_verify_report>,
    index: usize,
    problem: *mut kingtide_problem,
) -> bool {
    let Some(s) = report.and_then(|r| r.problems.get(index)) else { return false };
    let text = |t: &Option<CString>| t.as_ref().map_or(ptr::null(), |t| t.as_ptr());
    let (lo, hi) = s.problem.keys.as_ref().map(|(lo, hi)| (lo.as_slice(), hi.as_slice())).unzip();
    let key = |k: Option<&[u8]>| k.map_or(ptr::null(), |k| k.as_ptr().cast());
    let shown = kingtide_problem {
        size: 0,
        severity: match s.problem.severity {
            Severity::Info => 0,
            Severity::Warning => 1,
            Severity::Error => 2,
        },
        has_offset: i32::from(s.problem.offset.is_some()),
        message: s.message.as_ptr(),
        kind: s.kind.as_ptr(),
        family: text(&s.family),
        path: text(&s.path),
        offset: s.problem.offset.unwrap_or(0),
        lowest_key: key(lo),
        lowest_key_len: lo.map_or(0, <[u8]>::len),
        highest_key: key(hi),
        highest_key_len: hi.map_or(0, <[u8]>::len),
    };
    fill(problem, shown).is_ok()
}

/// Frees a report. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_verify_report_free(report: Option<Box<kingtide_verify_report>>) {
    drop(report);
}

/// Options of a repair.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_repair_options {
    /// `sizeof(kingtide_repair_options)`.
    pub size: usize,
    /// Not 0: the log ends at its first damage; otherwise complete records after it are salvaged, too.
    pub stop_at_damage: i32,
    /// Not 0: assign all tables of unknown families to the default family. Only for databases that never had another.
    pub one_family: i32,
}
// SAFETY: numbers only, the size first.
unsafe impl Sized_ for kingtide_repair_options {
    const NAME: &'static str = "kingtide_repair_options";
}

/// The result of a repair.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_repair_result {
    /// `sizeof(kingtide_repair_result)`, set by the caller.
    pub size: usize,
    /// Not 0: everything was salvaged.
    pub is_complete: i32,
    /// Not 0: the verification of the new database found damage.
    pub is_damaged: i32,
    /// Families of the new database.
    pub families: u64,
    /// Tables that were read, completely or in part.
    pub tables: u64,
    /// Keys in the new database.
    pub kept_keys: u64,
    /// Keys that existed, but whose values could not be read.
    pub lost_keys: u64,
    /// Ranges in which other keys may be missing.
    pub lost_ranges: u64,
    /// Ranges in which keys may be out of date; includes those lost.
    pub stale_ranges: u64,
    /// Files that could not be read completely.
    pub unreadable_files: u64,
    /// Records of the log that were read.
    pub log_records: u64,
    /// Gaps in the log.
    pub log_gaps: u64,
    /// Transactions that are in doubt in the new database, too.
    pub prepared: u64,
}
// SAFETY: numbers only, the size first.
unsafe impl Sized_ for kingtide_repair_result {
    const NAME: &'static str = "kingtide_repair_result";
}

/// Salvages all readable data of the database in `path`, which is not changed, into a new database in `into`. Key
/// orders that it uses must be among the options, which may be NULL, as may `how`, `progress`, and `text`, which is set to a
/// description for people.
///
/// Errors: EXISTS (`into` is not empty), INVALID_ARGUMENT (it is inside `path`), LOCKED (the database is open), NOT_FOUND, CANCELLED, IO,
/// NO_SPACE. After an error `into` must not be used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_repair(
    path: *const c_char,
    into: *const c_char,
    options: Option<&kingtide_options>,
    how: *const kingtide_repair_options,
    progress: kingtide_progress_fn,
    context: *mut c_void,
    result: *mut kingtide_repair_result,
    text: *mut *mut kingtide_text,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        abi::set_if(text, ptr::null_mut());
        check_size(result.cast_const())?;
        let how = config(how)?;
        let how = RepairOptions::new().salvage_past_damage(!flag(how.stop_at_damage)).one_family(flag(how.one_family));
        let (path, into) = (abi::path(path, "path")?, abi::path(into, "into")?);
        let report = kingtide::repair_with(path, into, &options_of(options), how, &mut watch(progress, context))?;
        if !text.is_null() {
            out_handle(text, "text")?.set(describe(&report).into());
        }
        if result.is_null() { Ok(()) } else { fill(result, numbers(&report)) }
    })
}

fn numbers(r: &RepairReport) -> kingtide_repair_result {
    let sum = |of: fn(&kingtide::FamilyRepair) -> u64| r.families.iter().map(of).sum();
    kingtide_repair_result {
        size: 0,
        is_complete: i32::from(r.is_complete()),
        is_damaged: i32::from(r.verify.is_damaged()),
        families: r.families.len() as u64,
        tables: sum(|f| f.tables),
        kept_keys: sum(|f| f.kept),
        lost_keys: sum(|f| f.lost_keys.len() as u64),
        lost_ranges: sum(|f| f.lost.len() as u64),
        stale_ranges: sum(|f| f.stale.len() as u64),
        unreadable_files: r.unreadable.len() as u64,
        log_records: r.log_records,
        log_gaps: r.log_gaps.len() as u64,
        prepared: r.prepared.len() as u64,
    }
}

/// One fact a line.
fn describe(r: &RepairReport) -> String {
    let mut out = String::new();
    for f in &r.families {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            out,
            "family '{}': {} keys kept from {} tables, {} lost, {} ranges where keys may be missing, {} where they may be \
             out of date",
            f.name,
            f.kept,
            f.tables,
            f.lost_keys.len(),
            f.lost.len(),
            f.stale.len()
        );
        for (what, gaps) in [("missing", &f.lost), ("out of date", &f.stale)] {
            gaps.iter().for_each(|gap| _ = writeln!(out, "{}", range_of(what, gap)));
        }
    }
    for file in &r.unreadable {
        let _ = writeln!(out, "{}: {}", file.path.display(), file.message);
    }
    for gap in &r.log_gaps {
        let _ = writeln!(out, "{}: operations from sequence {} on are missing", gap.path.display(), gap.from);
    }
    for path in &r.leftovers {
        let _ = writeln!(out, "{}: no part of the database", path.display());
    }
    r.notes.iter().for_each(|note| {
        let _ = writeln!(out, "{note}");
    });
    out
}

/// Where keys may be missing or out of date, and why.
fn range_of(what: &str, gap: &kingtide::KeyGap) -> String {
    let shown = |key: &Option<Vec<u8>>, none: &str| key.as_ref().map_or(none.into(), |k| k.escape_ascii().to_string());
    let mut text =
        format!("  may be {what}: {} to {}", shown(&gap.lo, "the first key"), shown(&gap.hi, "the last key"));
    if let Some(path) = &gap.path {
        let _ = write!(text, " ({}", path.display());
        let _ = gap.offset.map_or(Ok(()), |offset| write!(text, " at byte {offset}"));
        text.push(')');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_that_are_not_described_are_counted() {
        let mut found = VerifyReport::default();
        found.unlisted = 7; // damage would be listed: each severity has a limit of its own
        let report = kingtide_verify_report::from(found);
        assert_eq!(
            (kingtide_verify_report_count(Some(&report)), kingtide_verify_report_unlisted(Some(&report))),
            (0, 7)
        );
        assert!(!kingtide_verify_report_is_damaged(Some(&report)));
    }
}
