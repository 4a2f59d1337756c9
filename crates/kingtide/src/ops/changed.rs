//! Operations of a commit as others are shown them: values unpacked, expiry apart.

use super::write::LoggedOp;
use kingtide_base::clock::time_of_unix_ms;
use kingtide_base::key::split_expiry;
use kingtide_base::{Error, FamilyId, Kind, Result, Tag};
use kingtide_table::ValuePointer;
use kingtide_table::packed::Packed;
use std::ops::Range;
use std::time::SystemTime;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// Sets a key.
    Put,
    /// Deletes a key.
    Delete,
    /// Deletes a key that was put once.
    SingleDelete,
    /// Deletes all keys from `key` up to, but not including, `value`.
    DeleteRange,
}

/// One operation of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The family's number, which is never used for another family.
    pub family: FamilyId,
    /// The family's present name; `None` if it was dropped since.
    pub family_name: Option<&'a str>,
    /// What the operation does.
    pub kind: ChangeKind,
    /// The key; for a range, its start.
    pub key: &'a [u8],
    /// The value; for a range, its end; empty for deletes.
    pub value: &'a [u8],
    /// When the entry expires; `None` if it does not.
    pub expires_at: Option<SystemTime>,
}

/// Owned operations, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangedOps {
    bytes: Vec<u8>,
    ops: Vec<Changed>,
}

#[derive(Clone, Debug)]
struct Changed {
    family: FamilyId,
    kind: ChangeKind,
    expires_at_ms: Option<u64>,
    key: Range<usize>,
    value: Range<usize>,
}

impl ChangedOps {
    /// Appends an operation as the log has it. `read` reads a value that is in a value log.
    ///
    /// # Errors
    /// `Corruption` for bytes that no writer makes; of `read`.
    pub fn push(
        &mut self,
        op: &LoggedOp<'_>,
        read: impl FnOnce(&ValuePointer, &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let tag = Tag(op.kind as u64);
        let kind = match tag.kind() {
            Some(Kind::Put | Kind::PutPointer) => ChangeKind::Put,
            Some(Kind::Delete) => ChangeKind::Delete,
            Some(Kind::SingleDelete) => ChangeKind::SingleDelete,
            Some(Kind::RangeDelete) => ChangeKind::DeleteRange,
            None => {
                return Err(Error::corruption(format!("a log record has an operation of kind {}", op.kind)));
            }
        };
        let (expires_at_ms, stored) = split_expiry(tag, op.value)
            .ok_or_else(|| Error::corruption("a value in a log record is too short to hold its expiry"))?;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(op.key);
        let key = start..self.bytes.len();
        if let Some(p) = op.pointer() {
            let mut value = Vec::new();
            read(&p, &mut value)?;
            self.bytes.extend_from_slice(&value);
        } else if tag.is_packed() {
            Packed::parse(stored).and_then(|p| p.append_to(&mut self.bytes))?;
        } else {
            self.bytes.extend_from_slice(stored);
        }
        let value = key.end..self.bytes.len();
        self.ops.push(Changed { family: op.family, kind, expires_at_ms, key, value });
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.ops.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The operations; `name` finds the name of a family.
    pub fn iter<'a>(&'a self, name: impl Fn(FamilyId) -> Option<&'a str>) -> impl Iterator<Item = Change<'a>> {
        self.ops.iter().map(move |op| Change {
            family: op.family,
            family_name: name(op.family),
            kind: op.kind,
            key: &self.bytes[op.key.clone()],
            value: &self.bytes[op.value.clone()],
            expires_at: op.expires_at_ms.map(time_of_unix_ms),
        })
    }
}
