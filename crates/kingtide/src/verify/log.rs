//! The write-ahead log: whether it can be replayed, and what is prepared in it.

use super::checker::Checker;
use super::layout::Subject;
use super::logged::LoggedValues;
use super::report::{Problem, ProblemKind, Severity};
use crate::engine::DbInner;
use crate::ops::files::{is_files, read_files};
use crate::ops::{LogOp, read_log_op};
use crate::recover::is_boot;
use crate::txn::InDoubt;
use kingtide_base::coding::Reader;
use kingtide_base::names::{segment_path, vlog_path};
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, ErrorKind, FamilyId, Result, SeqNo};
use kingtide_versions::LogBegun;
use kingtide_wal::{RECORD_HEADER_LEN, Tail, TailItem};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Looks into records.
struct Records {
    /// No family had an id from here on, if that is known.
    next_family: Option<FamilyId>,
    in_doubt: InDoubt,
}

impl Records {
    fn lacks(&self, family: FamilyId) -> bool {
        self.next_family.is_some_and(|next| family >= next)
    }

    /// Returns what is wrong with a record.
    fn check(&mut self, base: SeqNo, count: u32, payload: &[u8]) -> Vec<Problem> {
        let mut problems = Vec::new();
        if is_files(payload) {
            problems.extend(read_files(base, count, payload).err().map(|e| Problem::of(ProblemKind::Log, &e)));
            return problems;
        }
        let mut wrong = |kind, text: String| problems.push(Problem::new(Severity::Error, kind, text));
        let mut r = Reader::new(payload);
        for i in 0..count as u64 {
            let (seq, rest) = (base + i, r.rest());
            match read_log_op(&mut r) {
                None => {
                    let text = format!("operation {i} of the log record with sequence {base} cannot be read");
                    wrong(ProblemKind::Log, text);
                    return problems;
                }
                Some(LogOp::Write(op)) => {
                    if self.lacks(op.family) {
                        let text = format!("the log holds operations of family {}, which the manifest lost", op.family);
                        wrong(ProblemKind::Log, text);
                    }
                }
                Some(LogOp::Prepare(p)) => {
                    if let Err(e) = self.in_doubt.prepare(&p, seq, &rest[..rest.len() - r.rest().len()]) {
                        wrong(ProblemKind::Prepared, e.message().to_owned());
                    }
                    let families = p.writes().map(|w| w.family).chain(p.locks().map(|l| l.family));
                    for family in families.filter(|f| self.lacks(*f)) {
                        let text = format!("a prepared transaction is on family {family}, which the manifest lost");
                        wrong(ProblemKind::Prepared, text);
                    }
                }
                Some(LogOp::Resolved { xid, .. }) => self.in_doubt.resolved(xid),
            }
        }
        if !r.is_empty() {
            wrong(ProblemKind::Log, format!("the log record with sequence {base} has bytes left over"));
        }
        problems
    }
}

/// The log of a database that is not open: replays it without keeping anything. Returns the ids of the value logs that
/// transactions in doubt point into.
pub(super) fn check_closed(checker: &mut Checker<'_, '_>, subject: &Subject) -> Result<HashSet<u64>> {
    let mut segments = kingtide_wal::list_segments(&**checker.fs, checker.dir)?;
    segments.retain(|id| *id >= subject.first_segment); // others may be back after a power cut
    let next_family = subject.complete.then_some(subject.next_family);
    let mut records = Records { next_family, in_doubt: InDoubt::default() };
    let (fs, dir) = (checker.fs.clone(), checker.dir);
    let flushed: HashMap<FamilyId, SeqNo> = subject.families.iter().map(|f| (f.id, f.flushed)).collect();
    let mut values = LoggedValues::new(&fs, dir, &segments, flushed);
    let missing = |base, count, payload: &[u8]| values.missing(base, count, payload);
    let apply = |base, count, payload: &[u8]| {
        for problem in records.check(base, count, payload) {
            checker.problem(problem.at(dir));
        }
        checker.report.counts.log_records += 1;
        checker.advance((RECORD_HEADER_LEN + payload.len()) as u64)
    };
    let mut looks = (missing, apply);
    let replayed = kingtide_wal::replay_records(&*fs, dir, &segments, subject.log_from, false, &mut looks);
    checker.report.counts.prepared += records.in_doubt.len() as u64;
    let in_doubt = records.in_doubt.value_logs();
    let end = match replayed {
        Ok(end) => end,
        Err(e) if e.kind() == ErrorKind::Cancelled => return Err(e),
        Err(e) => {
            checker.problem(Problem::of(ProblemKind::Log, &e).at(dir));
            return Ok(in_doubt);
        }
    };
    checker.report.counts.files += end.segments.len() as u64;
    if let Some(torn) = &end.torn {
        let text = format!("the log ends with {} bytes that a crash left unfinished", torn.bytes);
        checker.problem(Problem::new(Severity::Info, ProblemKind::TornTail, text).at(&torn.path).offset(torn.offset));
    }
    if let Some(LogBegun { segment, boot_id, .. }) = subject.log_begun
        && end.lacks(segment, is_boot(boot_id, &*fs))
    {
        let text = "write-ahead log: the last segment is missing or lost its header";
        let problem = Problem::new(Severity::Error, ProblemKind::Log, text);
        checker.problem(problem.at(&segment_path(dir, segment)).offset(0));
    }
    Ok(in_doubt)
}

/// The log of an open database: what is in it up to the last commit, as a change stream would read it.
pub(super) fn check_open(checker: &mut Checker<'_, '_>, db: &DbInner) -> Result<()> {
    // Families may have been created since the views were taken.
    let mut records = Records { next_family: None, in_doubt: InDoubt::default() };
    let Some(oldest) = db.wal.oldest_seq() else { return Ok(()) };
    let mut tail = Tail::new(db.wal.clone(), oldest.saturating_sub(1), false);
    let visible = db.snapshots.visible();
    let dir: &Path = checker.dir;
    loop {
        match tail.next(visible) {
            Ok(Some(TailItem::Record(base, count, payload))) => {
                for problem in records.check(base, count, &payload) {
                    checker.problem(problem.at(dir));
                }
                if let Some(e) = lost_value(db, base, count, &payload) {
                    checker.problem(Problem::of(ProblemKind::Value, &e).at(dir));
                }
                checker.report.counts.log_records += 1;
                checker.advance((RECORD_HEADER_LEN + payload.len()) as u64)?;
            }
            Ok(Some(TailItem::Missing(_, last))) => tail.pass(last),
            Ok(None) => return check_staged(checker, db),
            // Given up while it was read: its operations are in tables.
            Err(e) if e.kind() == ErrorKind::TooOld => match db.wal.oldest_seq() {
                Some(seq) if seq > tail.next_seq() => {
                    tail.pass(seq - 1);
                    records.in_doubt = InDoubt::default(); // what was passed over may have ended them
                }
                _ => return check_staged(checker, db),
            },
            Err(e) => {
                checker.problem(Problem::of(ProblemKind::Log, &e).at(dir));
                return check_staged(checker, db);
            }
        }
    }
}

/// The values of transactions in doubt.
fn check_staged(checker: &mut Checker<'_, '_>, db: &DbInner) -> Result<()> {
    for file in db.prepared.staged() {
        let p = file.pointer;
        if let Err(e) = file.log.handle().vlog().and_then(|log| log.check(&p)) {
            let e = e.context("a value of a prepared transaction");
            checker.problem(Problem::of(ProblemKind::Value, &e).at(&vlog_path(checker.dir, p.file_id)));
        }
        checker.advance(p.stored_len)?;
    }
    Ok(())
}

/// Returns what is wrong with the first value of a record that is in a value log, and in no table yet.
fn lost_value(db: &DbInner, base: SeqNo, count: u32, payload: &[u8]) -> Option<Error> {
    let mut r = Reader::new(payload);
    for seq in base..base + u64::from(count) {
        let LogOp::Write(op) = read_log_op(&mut r)? else { continue };
        let Some(p) = op.pointer() else { continue };
        let in_memory = || {
            let family = db.catalog.lock().families.get(&op.family).cloned();
            family.is_some_and(|f| seq > f.flushed_seq.load(Ordering::Relaxed))
        };
        if in_memory()
            && let Err(e) = db.tables.vlog(p.file_id).and_then(|log| log.check(&p))
            && in_memory()
        {
            return Some(e);
        }
    }
    None
}
