//! Value logs: from front to back, and value by value as tables point to them.

use super::checker::Checker;
use super::layout::{Subject, open_file};
use super::report::{Problem, ProblemKind, Severity};
use kingtide_base::Result;
use kingtide_base::names::vlog_path;
use kingtide_table::{ReadAhead, ValuePointer, Vlog};
use kingtide_versions::{LiveValues, OwnedVlog};
use std::collections::HashMap;
use std::sync::Arc;

/// Values that are longer, before or after compression, are read in pieces of this many bytes.
const PIECE: u64 = 1 << 20;

/// Value logs that are open at a time. The values of a table may be in thousands, and the system allows no more than so many open files.
const MOST_OPEN: usize = 16;

/// Reads values of one family.
#[derive(Default)]
pub(super) struct ValueCheck {
    open: HashMap<u64, Arc<Vlog>>,
    read_ahead: ReadAhead,
    out: Vec<u8>,
}

impl ValueCheck {
    /// Reads a value; the error says what is wrong with it.
    pub fn check(&mut self, checker: &Checker<'_, '_>, p: &ValuePointer) -> Result<()> {
        let vlog = match self.open.get(&p.file_id) {
            Some(vlog) => vlog.clone(),
            None => {
                let path = vlog_path(checker.dir, p.file_id);
                let opened = checker.open(&path).and_then(|file| Vlog::open_damaged(file, p.file_id));
                let opened = opened.map_err(|e| e.at_path(&path));
                let (vlog, _) = opened?;
                if self.open.len() >= MOST_OPEN {
                    self.open.clear();
                }
                self.open.insert(p.file_id, vlog.clone());
                vlog
            }
        };
        if p.stored_len.max(p.raw_len) <= PIECE {
            return vlog.read_near(p, &mut self.read_ahead, &mut self.out);
        }
        let mut reader = vlog.reader(*p)?;
        let mut at = 0;
        while at < p.raw_len {
            reader.read_range(at..at + PIECE, &mut self.out)?;
            at += PIECE;
        }
        Ok(())
    }
}

/// Walks over all value logs, and compares what is stated of them with what tables refer to.
pub(super) fn check_vlogs(checker: &mut Checker<'_, '_>, subject: &Subject, live: &LiveValues) -> Result<()> {
    for OwnedVlog { family, meta } in subject.vlogs.iter() {
        let id = meta.id;
        let path = vlog_path(checker.dir, id);
        let owner = subject.families.iter().find(|f| f.id == *family);
        let name = owner.map(|f| f.name.as_str());
        let tell = |checker: &mut Checker<'_, '_>, problem: Problem| {
            let problem = problem.at(&path);
            checker.problem(if let Some(name) = name { problem.family(name) } else { problem });
        };
        let accounting = |severity, text: String| Problem::new(severity, ProblemKind::Accounting, text);
        let (values, bytes) = live.get(id).map_or((0, 0), |r| (r.values, r.bytes));
        if bytes > meta.stored_bytes || values > meta.values {
            let text = format!(
                "tables refer to {values} values in {bytes} bytes; the manifest says {} in {}",
                meta.values, meta.stored_bytes
            );
            tell(checker, accounting(Severity::Error, text));
        }
        if values == 0 && subject.complete {
            tell(checker, accounting(Severity::Warning, "no table refers to this value log".to_owned()));
        }
        if owner.is_none() && subject.complete {
            let text = format!("the value log belongs to family {family}, which does not exist");
            tell(checker, accounting(Severity::Warning, text));
        }
        let Some(file) = open_file(checker, &path, meta.size, name) else { continue };
        let vlog = match Vlog::open_damaged(file, id) {
            Ok((vlog, None)) => vlog,
            Ok((_, Some(e))) | Err(e) => {
                tell(checker, Problem::of(ProblemKind::Structure, &e));
                continue;
            }
        };
        let info = vlog.info();
        if (info.stored_bytes, info.values) != (meta.stored_bytes, meta.values) {
            let text = format!(
                "the value log holds {} values in {} bytes; the manifest says {} in {}",
                info.values, info.stored_bytes, meta.values, meta.stored_bytes
            );
            tell(checker, Problem::new(Severity::Error, ProblemKind::Metadata, text));
        }
        if let Err(e) = walk(checker, &vlog)? {
            tell(checker, Problem::of(ProblemKind::Value, &e));
        }
    }
    for id in live.iter().map(|r| &r.file_id).filter(|id| subject.vlogs.get(**id).is_none()) {
        let text = "tables refer to this value log, which the manifest does not know";
        checker.problem(Problem::new(Severity::Error, ProblemKind::Accounting, text).at(&vlog_path(checker.dir, *id)));
    }
    Ok(())
}

/// Reads a value log from front to back, up to the first damaged chunk. The outer error cancels.
fn walk(checker: &mut Checker<'_, '_>, vlog: &Arc<Vlog>) -> Result<Result<()>> {
    let info = vlog.info();
    let mut records = vlog.records();
    let (mut values, mut raw_bytes) = (0, 0);
    loop {
        match records.next_pointer() {
            Ok(Some(p)) => {
                values += 1;
                raw_bytes += p.raw_len;
                checker.advance(p.stored_len)?;
            }
            Ok(None) => break,
            Err(e) => return Ok(Err(e)),
        }
    }
    if (values, raw_bytes) != (info.values, info.raw_bytes) {
        let e = kingtide_base::Error::corruption("the footer contradicts the values").at_offset(info.file_size);
        return Ok(Err(e));
    }
    Ok(Ok(()))
}
