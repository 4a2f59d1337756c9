//! What a log record says, for tools that show the log: see [`kingtide_wal::dump_segment`].

use crate::ops::files::{is_files, read_files};
use crate::ops::{Change, ChangedOps};
use crate::ops::{LogOp, read_log_op};
use crate::txn::Isolation;
use kingtide_base::coding::Reader;
use kingtide_base::{Error, Result, SeqNo};
use kingtide_table::ValuePointer;
use kingtide_versions::Edit;

/// A log record's operations.
#[derive(Clone, Debug, Default)]
pub struct DumpedRecord {
    writes: ChangedOps,
    pointers: Vec<(usize, ValuePointer)>,
    /// The transaction that it prepares, if it is a prepare record.
    pub prepared: Option<DumpedPrepare>,
    /// The transaction that it ends, and whether by a commit, whose writes the record then holds.
    pub resolved: Option<(Vec<u8>, bool)>,
    /// What the manifest was to be told next, if the record is of an ingest, a clone or an import.
    pub edits: Vec<Edit>,
}

/// A transaction that was prepared.
#[derive(Clone, Debug)]
pub struct DumpedPrepare {
    /// Its name.
    pub xid: Vec<u8>,
    /// The sequence number of the record that this one is a copy of; 0 if it is none.
    pub first: SeqNo,
    /// Its isolation level.
    pub isolation: Isolation,
    writes: ChangedOps,
}

impl DumpedRecord {
    /// Reads `count` operations. Memory is bounded by the payload's size, but for values that it holds compressed.
    ///
    /// # Errors
    /// `Corruption` for bytes that no writer makes.
    pub fn read(payload: &[u8], count: u32) -> Result<DumpedRecord> {
        let mut out = DumpedRecord::default();
        if is_files(payload) {
            out.edits = read_files(SeqNo::MAX - u64::from(count), count, payload)?;
            return Ok(out);
        }
        let mut r = Reader::new(payload);
        for i in 0..count {
            match read_log_op(&mut r) {
                Some(LogOp::Write(op)) => {
                    if let Some(p) = op.pointer() {
                        out.pointers.push((out.writes.len(), p));
                    }
                    out.writes.push(&op, |_, _| Ok(()))?;
                }
                Some(LogOp::Resolved { xid, committed }) => out.resolved = Some((xid.to_vec(), committed)),
                Some(LogOp::Prepare(p)) => {
                    let mut writes = ChangedOps::default();
                    p.writes().try_for_each(|op| writes.push(&op, |_, _| Ok(())))?;
                    out.prepared =
                        Some(DumpedPrepare { xid: p.xid.to_vec(), first: p.first, isolation: p.isolation, writes });
                }
                None => return Err(Error::corruption(format!("operation {i} of the record cannot be read"))),
            }
        }
        match r.is_empty() {
            true => Ok(out),
            false => Err(Error::corruption("the record has bytes after its last operation")),
        }
    }

    /// Where the value of its write number `i` is, if that was written to a value log before the commit; the write shows an
    /// empty value then.
    pub fn pointer(&self, i: usize) -> Option<ValuePointer> {
        self.pointers.iter().find(|(at, _)| *at == i).map(|(_, p)| *p)
    }

    /// Its writes, in order. Families are known by number only.
    pub fn writes(&self) -> impl Iterator<Item = Change<'_>> {
        self.writes.iter(|_| None)
    }
}

impl DumpedPrepare {
    /// The writes that its commit would make.
    pub fn writes(&self) -> impl Iterator<Item = Change<'_>> {
        self.writes.iter(|_| None)
    }
}
