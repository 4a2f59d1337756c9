//! What there is to verify: the families and their files, from the manifest of a closed database or from the views of an
//! open one.

use super::checker::Checker;
use super::logged::files_of_log;
use super::report::{Problem, ProblemKind, Severity};
use crate::catch_up::scan_beside_writer;
use crate::engine::DbInner;
use crate::family::View;
use kingtide_base::names::{
    FileName, MANIFEST_RESERVE_FILE, RESERVE_FILE, STATS_TMP, klog_path, parse_table_name, vlog_path,
};
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, ErrorKind, FamilyId, KeyOrder, Result, SeqNo};
use kingtide_versions::{
    FamilyState, KeyOrders, LogBegun, ManifestScan, Version, VersionState, VlogSet, creation_was_cut_short,
    required_log_start,
};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// One family's files.
pub(crate) struct FamilyFiles {
    pub id: FamilyId,
    pub name: String,
    pub order: KeyOrder,
    pub version: Arc<Version>,
    /// Everything up to here is in tables.
    pub flushed: SeqNo,
    /// Keeps the files from being deleted.
    view: Option<Arc<View>>,
}

/// What is verified.
pub(crate) struct Subject {
    pub families: Vec<FamilyFiles>,
    pub vlogs: VlogSet,
    pub next_family: FamilyId,
    /// What [`required_log_start`] says.
    pub log_from: SeqNo,
    /// The log begins with this segment, or a later one.
    pub first_segment: u64,
    pub log_begun: Option<LogBegun>,
    /// Whether the whole manifest was read, so that what it does not name is not part of the database.
    pub complete: bool,
    /// The manifest's path, for orphans.
    manifest: Option<std::path::PathBuf>,
}

/// Puts the edits together. Errors behind a lost record, or behind another error, may be its consequences: they are not
/// told.
fn put_together(checker: &mut Checker<'_, '_>, scan: &ManifestScan, orders: &KeyOrders) -> (VersionState, bool) {
    let mut state = VersionState::default();
    let mut complete = scan.damage.is_empty();
    for record in &scan.records {
        for edit in &record.edits {
            let Err(e) = state.apply(edit.clone(), orders) else { continue };
            if complete {
                let problem = Problem::of(ProblemKind::Manifest, &e).offset(record.offset);
                checker.problem(problem.at(scan.path.as_deref().unwrap_or(checker.dir)));
                complete = false;
            }
        }
    }
    (state, complete)
}

fn tell_manifest(checker: &mut Checker<'_, '_>, scan: &ManifestScan) -> Result<()> {
    for e in &scan.damage {
        checker.problem(Problem::of(ProblemKind::Manifest, e));
    }
    if let (Some(at), Some(path)) = (scan.torn_at, &scan.path) {
        let text = "the manifest ends with an append that a crash interrupted";
        checker.problem(Problem::new(Severity::Info, ProblemKind::TornTail, text).at(path).offset(at));
    }
    checker.report.counts.files += u64::from(scan.path.is_some());
    checker.expect_bytes(scan.bytes);
    checker.advance(scan.bytes)
}

/// A database that is not open; `None` for one whose creation was cut short, which holds nothing yet.
pub(super) fn closed(checker: &mut Checker<'_, '_>, orders: &KeyOrders) -> Result<Option<Subject>> {
    if creation_was_cut_short(&**checker.fs, checker.dir)? {
        let text = "the creation of the database was interrupted; the next open starts it again";
        checker.problem(Problem::new(Severity::Info, ProblemKind::Manifest, text).at(checker.dir));
        return Ok(None);
    }
    let scan = ManifestScan::read(&**checker.fs, checker.dir)?;
    if !scan.found && scan.damage.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "no database here").at_path(checker.dir));
    }
    tell_manifest(checker, &scan)?;
    let (mut state, complete) = put_together(checker, &scan, orders);
    let log_from = required_log_start(state.log_start, scan.log_start_is_exact);
    if complete {
        add_files_of_log(checker, &mut state, log_from, orders)?;
    }
    let families = (state.families.into_iter())
        .map(|(id, f)| {
            let FamilyState { name, order, version, flushed, .. } = f;
            FamilyFiles { id, name, order, version, flushed, view: None }
        })
        .collect();
    Ok(Some(Subject {
        families,
        vlogs: state.vlogs,
        next_family: state.next_family,
        log_from,
        first_segment: state.first_segment,
        log_begun: state.log_begun,
        complete,
        manifest: scan.path,
    }))
}

/// Adds what the next open will take from the log.
fn add_files_of_log(
    checker: &mut Checker<'_, '_>,
    state: &mut VersionState,
    log_from: SeqNo,
    orders: &KeyOrders,
) -> Result<()> {
    for edit in files_of_log(checker.fs, checker.dir, state, log_from)? {
        if let Err(e) = state.apply(edit, orders) {
            checker.problem(Problem::of(ProblemKind::Log, &e).at(checker.dir));
            break;
        }
    }
    Ok(())
}

/// The database that is open: its views at one moment, and whether the manifest agrees with them.
pub(super) fn open(checker: &mut Checker<'_, '_>, db: &DbInner) -> Result<Subject> {
    let (scan, subject, settled) = {
        let catalog = db.catalog.lock();
        let reads_only = db.read_only.is_some();
        let scan = match reads_only {
            true => scan_beside_writer(&**checker.fs, checker.dir)?,
            false => ManifestScan::read(&**checker.fs, checker.dir)?,
        };
        let manifest = &catalog.versions.manifest;
        // The writer of a database that is open for reading only has moved on.
        let settled = !reads_only
            && manifest.settled_path().is_some()
            && manifest.poison().is_none()
            && catalog.versions.is_written();
        let families: Vec<FamilyFiles> = (catalog.families.values())
            .map(|f| {
                let view = f.view.load_full();
                let (name, order, version) = (f.name(), f.order().clone(), view.version.clone());
                let flushed = f.flushed_seq.load(Ordering::Relaxed);
                FamilyFiles { id: f.id(), name, order, version, flushed, view: Some(view) }
            })
            .collect();
        let subject = Subject {
            families,
            vlogs: catalog.versions.vlogs.clone(),
            next_family: catalog.versions.next_family,
            log_from: required_log_start(catalog.versions.log_start, true),
            first_segment: catalog.versions.first_segment,
            log_begun: catalog.versions.log_begun,
            complete: true,
            manifest: scan.path.clone(),
        };
        (scan, subject, settled)
    };
    if db.read_only.is_some() {
        subject.families.iter().filter_map(|f| f.view.as_deref()).for_each(|view| hold(checker, view));
    }
    tell_manifest(checker, &scan)?;
    let orders = KeyOrders::with(subject.families.iter().map(|f| f.order.clone()));
    let (state, complete) = put_together(checker, &scan, &orders);
    // Behind a write that failed the file may have a change that the database does not, until it is written anew.
    if complete && settled {
        for f in &subject.families {
            let same = (state.families.get(&f.id)).is_some_and(|l| l.version == f.version && l.name == f.name);
            if !same {
                let text = "the manifest does not match the state of the open database";
                let problem = Problem::new(Severity::Error, ProblemKind::Manifest, text).family(&f.name);
                checker.problem(problem.at(scan.path.as_deref().unwrap_or(checker.dir)));
            }
        }
    }
    Ok(subject)
}

/// Has the files of a view read as they are open: the writer may have removed their names since.
fn hold(checker: &mut Checker<'_, '_>, view: &View) {
    for slot in view.runs.iter().flat_map(|run| run.files.iter()) {
        let files = slot.handle.open_files();
        checker.held.extend(files.into_iter().map(|file| (file.path().to_owned(), file)));
    }
}

/// Compares the manifest with the directory. `in_doubt`: the value logs that only prepared transactions need.
pub(super) fn check_directory(checker: &mut Checker<'_, '_>, subject: &Subject, in_doubt: &HashSet<u64>) -> Result<()> {
    let names = checker.fs.list(checker.dir)?;
    let tables: HashSet<u64> = subject.families.iter().flat_map(|f| f.version.files().map(|(_, m)| m.id)).collect();
    let present: HashSet<u64> = names.iter().filter_map(|n| parse_table_name(n)).collect();
    let missing = tables.iter().any(|id| !present.contains(id));
    let mut unnamed = false;
    for name in &names {
        let path = checker.dir.join(name);
        let orphan = match FileName::parse(name) {
            Some(FileName::Table(id)) => klog_path(checker.dir, id) != path || !tables.contains(&id),
            Some(FileName::ValueLog(id)) => {
                vlog_path(checker.dir, id) != path || (subject.vlogs.get(id).is_none() && !in_doubt.contains(&id))
            }
            Some(FileName::Temporary) => ![RESERVE_FILE, MANIFEST_RESERVE_FILE, STATS_TMP].contains(&name.as_str()),
            Some(FileName::Manifest(_)) => subject.manifest.as_ref() != Some(&path),
            _ => false,
        };
        // With a part of the manifest lost, a file that the rest does not name may well belong to the database.
        if orphan {
            unnamed |= matches!(FileName::parse(name), Some(FileName::Table(_)));
            let (severity, text) = match subject.complete {
                true if matches!(FileName::parse(name), Some(FileName::ValueLog(_))) => (
                    Severity::Warning,
                    "the manifest does not name this value log; the next open moves what the write-ahead log needs of it, \
                     and removes it",
                ),
                true => (Severity::Warning, "the manifest does not name this file; the next open removes it"),
                false => (Severity::Info, "the readable part of the manifest does not name this file"),
            };
            checker.problem(Problem::new(severity, ProblemKind::Orphan, text).at(&path));
        }
    }
    if let (true, true, true, Some(path)) = (missing, unnamed, subject.complete, &subject.manifest) {
        let text = "the manifest names missing tables and omits existing ones: it may have lost its end";
        checker.problem(Problem::new(Severity::Error, ProblemKind::Manifest, text).at(path));
    }
    Ok(())
}

/// Opens a file that the manifest names, and compares its size.
pub(super) fn open_file(
    checker: &mut Checker<'_, '_>,
    path: &Path,
    size: u64,
    family: Option<&str>,
) -> Option<Arc<dyn kingtide_vfs::File>> {
    let named = |p: Problem| match family {
        Some(name) => p.family(name),
        None => p,
    };
    let opened = checker.open(path).and_then(|f| Ok((f.len()?, f)));
    match opened {
        Ok((len, file)) => {
            checker.report.counts.files += 1;
            if len != size {
                let text = format!("the file has {len} bytes; the manifest says {size}");
                let problem =
                    Problem::new(Severity::Error, ProblemKind::WrongSize, text).at(path).offset(len.min(size));
                checker.problem(named(problem));
            }
            Some(file)
        }
        Err(e) => {
            let problem = match e.kind() {
                ErrorKind::NotFound => Problem::new(Severity::Error, ProblemKind::MissingFile, "the file is missing"),
                _ => Problem::of(ProblemKind::Io, &e),
            };
            checker.problem(named(problem.at(path)));
            None
        }
    }
}
