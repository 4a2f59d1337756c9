//! A write batch: operations that become visible, and survive, together or not at all.
//!
//! The batch is serialized as it is built, in the form in which the log stores it ([`crate::ops`]), so that a commit copies it once.
//!
//! Operation `i` of a batch that commits at base sequence `b` has sequence number `b + i`.

use crate::commit::dead_space::Shares;
use crate::direct::DirectLog;
use crate::family::Family;
use crate::ops::{LoggedLock, LoggedOp, put_prepare, put_resolved};
use crate::txn::Isolation;
use crate::txn::slot_of;
use kingtide_base::coding::{put_varint, varint_len};
use kingtide_base::histogram::FamilyHistograms;
use kingtide_base::key::{EXPIRY_FLAG, EXPIRY_LEN, PACKED_FLAG, split_expiry};
use kingtide_base::memory::reserve;
use kingtide_base::slow::Subject;
use kingtide_base::{Error, Kind, Result, SeqNo, Tag};
use kingtide_table::{Codec, Packed, ValuePointer, VlogValue, packed};
use std::sync::Arc;

/// Largest serialized batch in bytes; offsets into it are 32 bits.
pub const MAX_BATCH_BYTES: usize = u32::MAX as usize - (1 << 20);

/// One operation's place in the serialized batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    /// The key's head as the family's order sees it.
    pub head: u64,
    /// Index into [`WriteBatch::families`].
    pub family: u16,
    /// Low byte of the tag.
    pub kind: u8,
    /// The key's slot in the conflict filter; a range delete has none.
    pub slot: u16,
    key_at: u32,
    key_len: u32,
    value_at: u32,
    value_len: u32,
}

/// The control operation behind a batch's writes ([`crate::ops::control`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    /// The prepared transaction's name.
    pub xid: Box<[u8]>,
    pub action: ControlAction,
    /// Where it begins.
    at: usize,
}

/// What a control operation does to a prepared transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlAction {
    Prepares,
    Commits,
    RollsBack,
}

impl Control {
    /// Whether it ends the transaction.
    pub fn resolves(&self) -> bool {
        self.action != ControlAction::Prepares
    }
}

/// A point in a batch to come back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SavepointPos {
    rep: usize,
    saved: usize,
    ranges: usize,
    /// Operations before it.
    pub ops: usize,
    families: usize,
    staged: usize,
}

/// A value log with one value that a batch points to and no memtable has yet: see
/// [`ColumnFamily::value_writer`](crate::ColumnFamily::value_writer).
#[derive(Clone, Debug)]
pub(crate) struct StagedFile {
    pub family: Arc<Family>,
    pub log: Arc<DirectLog>,
    pub pointer: ValuePointer,
}

/// Operations that commit atomically, over any number of families. Reusable after [`WriteBatch::clear`].
///
/// A batch is only memory. Whether its families exist and the database is open is checked when the batch is written, which otherwise fails with
/// `Closed`.
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// use kingtide::WriteBatch;
///
/// let stock = db.create_family("stock", Default::default())?;
/// let orders = db.create_family("orders", Default::default())?;
/// stock.put("oars", "3")?;
/// let mut batch = WriteBatch::new();
/// batch.put(&stock, b"oars", b"2")?;
/// batch.put(&orders, b"17", b"one pair of oars")?;
/// batch.delete_range(&orders, "00".."10")?;
/// batch.delete_prefix(&orders, b"2023/")?;
/// assert_eq!(batch.len(), 4);
/// db.write(batch)?; // all of it or nothing
/// assert_eq!(stock.get("oars")?.as_deref(), Some(&b"2"[..]));
///
/// let mut again = WriteBatch::new();
/// again.single_delete(&orders, b"17")?; // it was put once
/// assert!(again.bytes() > 0);
/// db.write_with(&mut again, &Default::default())?;
/// again.clear(); // its memory is used again
/// assert!(again.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct WriteBatch {
    rep: Vec<u8>,
    /// Bytes that `rep` would be longer by if no value were packed.
    saved: usize,
    /// Number of range deletes.
    ranges: usize,
    /// No value is longer, before it is packed. Not lowered when operations are taken back.
    largest: u64,
    ops: Vec<Op>,
    families: Vec<Arc<Family>>,
    /// Order in which the memtables are filled: by family and head. Filled at commit; kept for reuse.
    order: Vec<u32>,
    /// At most one, behind all writes.
    control: Option<Control>,
    /// What operations point to already, in their order.
    staged: Vec<StagedFile>,
}

impl WriteBatch {
    /// An empty batch.
    pub fn new() -> WriteBatch {
        WriteBatch::default()
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there are range deletes.
    #[inline]
    pub(crate) fn has_ranges(&self) -> bool {
        self.ranges > 0
    }

    /// Returns whether there is no operation.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Serialized bytes; large values count as compressed.
    pub fn bytes(&self) -> usize {
        self.rep.len()
    }

    /// The same without compression.
    pub(crate) fn raw_bytes(&self) -> usize {
        self.rep.len() + self.saved
    }

    /// The bytes of it that go to each family, for flow control. Of a batch for several families, compression is taken to have saved the
    /// same everywhere.
    #[cold]
    pub(crate) fn shares(&self) -> Shares {
        let mut shares: Shares = self.families.iter().map(|f| (f.dead_space.clone(), 0)).collect();
        for op in &self.ops {
            shares[op.family as usize].1 += u64::from(op.key_len) + u64::from(op.value_len);
        }
        let stored = shares.iter().map(|(_, bytes)| *bytes).sum::<u64>().max(1);
        for (_, bytes) in &mut shares {
            *bytes += (*bytes as u128 * self.saved as u128 / stored as u128) as u64;
        }
        shares
    }

    /// What a commit of it is about, if that was slow.
    #[cold]
    pub(crate) fn about(&self) -> Subject {
        let Some(op) = self.ops.first() else { return Subject::default() };
        Subject { keys: self.ops.len() as u64, ..Subject::key(self.families[op.family as usize].id(), self.key_of(op)) }
    }

    /// The family of its operations, if they are all of one.
    #[inline]
    pub(crate) fn only_family(&self) -> Option<&Arc<Family>> {
        if let [family] = self.families.as_slice() { Some(family) } else { None }
    }

    /// Where it is recorded how long its commit took; `None` for a batch over several families.
    #[inline]
    pub(crate) fn histograms(&self) -> Option<&FamilyHistograms> {
        self.only_family().map(|family| family.histograms())
    }

    /// Removes all operations and keeps the memory.
    pub fn clear(&mut self) {
        self.rep.clear();
        self.saved = 0;
        self.ranges = 0;
        self.largest = 0;
        self.ops.clear();
        self.families.clear();
        self.order.clear();
        self.control = None;
        self.staged.clear();
    }

    /// Like [`WriteBatch::clear`], but also frees the memory of each part beyond `keep` bytes.
    pub(crate) fn reset(&mut self, keep: usize) {
        self.clear();
        self.rep.shrink_to(keep);
        self.ops.shrink_to(keep / size_of::<Op>());
        self.order.shrink_to(keep / size_of::<u32>());
    }

    /// Adds an operation.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty key or a batch that would pass [`MAX_BATCH_BYTES`].
    pub(crate) fn push(
        &mut self,
        family: &Arc<Family>,
        mut kind: u8,
        key: &[u8],
        expiry: Option<u64>,
        value: Option<&[u8]>,
    ) -> Result<()> {
        check_key(key)?;
        let length = value.map_or(0, <[u8]>::len);
        let mut payload = length + if expiry.is_some() { EXPIRY_LEN } else { 0 };
        let need = key.len().saturating_add(payload).saturating_add(32);
        if need > MAX_BATCH_BYTES - self.rep.len().min(MAX_BATCH_BYTES) {
            return Err(Error::invalid(format!(
                "batch too large: {} bytes held, {need} more would pass the limit of {MAX_BATCH_BYTES}; commit in parts",
                self.rep.len()
            )));
        }
        // Before anything is changed: the order is the caller's code, which may panic.
        let head = family.order().head(key);
        reserve(&mut self.rep, need, "a batch")?;
        reserve(&mut self.ops, 1, "a batch")?;
        let index = self.family_index(family)?;
        let op_at = self.rep.len();
        self.rep.push(kind);
        put_varint(&mut self.rep, family.id() as u64);
        put_varint(&mut self.rep, key.len() as u64);
        let key_at = self.rep.len() as u32;
        self.rep.extend_from_slice(key);
        let mut value_at = self.rep.len() as u32;
        if let Some(v) = value {
            let packing = if kind & !EXPIRY_FLAG == Kind::Put as u8 { family.packs(v) } else { None };
            let packed = packing.and_then(|method| self.write_packed(method, expiry, v));
            if packing.is_some() {
                family.note_packing(packed.is_some());
            }
            if let Some(packed) = packed {
                self.saved += payload - packed;
                payload = packed;
                kind |= PACKED_FLAG;
                self.rep[op_at] = kind;
            } else {
                put_varint(&mut self.rep, payload as u64);
                if let Some(at) = expiry {
                    self.rep.extend_from_slice(&at.to_le_bytes());
                }
                self.rep.extend_from_slice(v);
            }
            value_at = (self.rep.len() - payload) as u32;
        }
        self.largest = self.largest.max(length as u64);
        self.ranges += usize::from(kind == Kind::RangeDelete as u8);
        self.ops.push(Op {
            head,
            family: index,
            kind,
            slot: slot_of(family.id(), family.order(), key, head),
            key_at,
            key_len: key.len() as u32,
            value_at,
            value_len: payload as u32,
        });
        Ok(())
    }

    /// Adds a put of a value that is in a value log already.
    ///
    /// # Errors
    /// As [`WriteBatch::push`]; `InvalidArgument` for a value that this batch holds, or that a memtable has: tables count on
    /// one pointer to each value.
    pub(crate) fn push_staged(&mut self, key: &[u8], expiry: Option<u64>, file: &StagedFile) -> Result<()> {
        if self.staged.iter().any(|s| Arc::ptr_eq(&s.log, &file.log)) {
            return Err(Error::invalid(
                "the batch already has this staged value; write the value again to put it under another key",
            ));
        }
        check_free(file)?;
        reserve(&mut self.staged, 1, "a batch")?;
        self.push_pointer(&file.family, key, expiry, &file.pointer)?;
        self.staged.push(file.clone());
        Ok(())
    }

    /// Adds a put of a value that is in a value log which the caller sees to.
    ///
    /// # Errors
    /// As [`WriteBatch::push`].
    pub(crate) fn push_pointer(
        &mut self,
        family: &Arc<Family>,
        key: &[u8],
        expiry: Option<u64>,
        to: &ValuePointer,
    ) -> Result<()> {
        let mut pointer = Vec::new();
        to.encode(&mut pointer);
        let kind = Kind::PutPointer as u8 | if expiry.is_some() { EXPIRY_FLAG } else { 0 };
        self.push(family, kind, key, expiry, Some(&pointer))?;
        self.saved += (to.raw_len as usize).saturating_sub(pointer.len());
        Ok(())
    }

    /// The value logs that operations point to already.
    #[inline]
    pub(crate) fn staged(&self) -> &[StagedFile] {
        &self.staged
    }

    /// Adds files that a batch's operations point to, which were put as the log has them.
    pub(crate) fn add_staged(&mut self, file: StagedFile) {
        self.staged.push(file);
    }

    /// An error if a memtable or a prepared transaction has one of the staged values: the batch, or another with the value, was
    /// committed or prepared. What a prepared transaction commits was promised to it. Called under the commit lock.
    #[inline]
    pub(crate) fn check_staged(&self) -> Result<()> {
        match &self.control {
            Some(control) if control.resolves() => Ok(()),
            _ => self.staged.iter().try_for_each(|file| {
                check_free(file)?;
                // Again: the commit may have waited for locks since it was asked first.
                file.log.check_intact()
            }),
        }
    }

    /// Bytes of keys and values in the family with that index, and the number of operations.
    pub(crate) fn extent_of(&self, family: usize) -> (usize, usize) {
        let ops = self.ops().iter().filter(|op| op.family as usize == family);
        ops.fold((0, 0), |(bytes, n), op| (bytes + self.key_of(op).len() + self.value_of(op).len(), n + 1))
    }

    /// Whether it prepares a transaction with staged values.
    #[inline]
    pub(crate) fn prepares_staged(&self) -> bool {
        !self.staged.is_empty() && self.control.as_ref().is_some_and(|c| !c.resolves())
    }

    /// Writes a value and its length packed, if that pays. Returns the length; the caller marks the operation.
    fn write_packed(&mut self, codec: Codec, expiry: Option<u64>, value: &[u8]) -> Option<usize> {
        let prefix = if expiry.is_some() { EXPIRY_LEN } else { 0 };
        let start = self.rep.len();
        let reserved = varint_len((prefix + packed::room(value.len())) as u64);
        self.rep.resize(start + reserved, 0);
        if let Some(at) = expiry {
            self.rep.extend_from_slice(&at.to_le_bytes());
        }
        let Some(n) = packed::pack(codec, value, &mut self.rep) else {
            self.rep.truncate(start);
            return None;
        };
        let payload = prefix + n;
        let used = varint_len(payload as u64);
        set_varint(&mut self.rep[start..], payload as u64);
        if used < reserved {
            self.rep.copy_within(start + reserved..start + reserved + payload, start + used);
        }
        self.rep.truncate(start + used + payload);
        Some(payload)
    }

    #[inline]
    fn family_index(&mut self, family: &Arc<Family>) -> Result<u16> {
        // Most batches touch one family; the last one used is the likeliest.
        if let Some(i) = self.families.iter().rposition(|f| Arc::ptr_eq(f, family)) {
            return Ok(i as u16);
        }
        if self.families.len() >= u16::MAX as usize {
            return Err(Error::invalid("a batch touches more than 65,535 families; commit in parts"));
        }
        self.families.push(family.clone());
        Ok((self.families.len() - 1) as u16)
    }

    /// Adds an operation as the log holds it.
    ///
    /// # Errors
    /// `InvalidArgument` when the batch would pass [`MAX_BATCH_BYTES`].
    pub(crate) fn push_logged(&mut self, family: &Arc<Family>, op: &LoggedOp<'_>) -> Result<()> {
        if op.key.len() + op.value.len() + 32 > MAX_BATCH_BYTES.saturating_sub(self.rep.len()) {
            return Err(Error::invalid(format!(
                "batch too large: it would exceed the limit of {MAX_BATCH_BYTES} bytes"
            )));
        }
        let head = family.order().head(op.key); // first, as in `push`
        reserve(&mut self.rep, op.key.len() + op.value.len() + 32, "a batch")?;
        reserve(&mut self.ops, 1, "a batch")?;
        let index = self.family_index(family)?;
        self.rep.push(op.kind);
        put_varint(&mut self.rep, family.id() as u64);
        put_varint(&mut self.rep, op.key.len() as u64);
        let key_at = self.rep.len() as u32;
        self.rep.extend_from_slice(op.key);
        if !Tag(op.kind as u64).is_tombstone() {
            put_varint(&mut self.rep, op.value.len() as u64);
        }
        let value_at = self.rep.len() as u32;
        self.rep.extend_from_slice(op.value);
        self.ranges += usize::from(op.kind == Kind::RangeDelete as u8);
        self.ops.push(Op {
            head,
            family: index,
            kind: op.kind,
            slot: slot_of(family.id(), family.order(), op.key, head),
            key_at,
            key_len: op.key.len() as u32,
            value_at,
            value_len: op.value.len() as u32,
        });
        Ok(())
    }

    /// Whether a value is long enough to be written once.
    #[inline]
    pub(crate) fn may_divert(&self) -> bool {
        self.families.iter().any(|f| f.direct_from() <= self.largest)
    }

    /// Whether its large values make up for the sync of a second file: whether they have, as they are stored, at least
    /// `times` the length from which on values are written once.
    pub(crate) fn is_worth_a_sync(&self, times: u64) -> bool {
        let units = |op: &Op| match (u64::from(op.value_len), self.families[op.family as usize].direct_from()) {
            (length, from) if length >= from => length as f64 / from as f64,
            _ => 0.0,
        };
        self.ops.iter().map(units).sum::<f64>() >= times as f64
    }

    /// Calls `each` for the value of each put, with the index of its family and the length of the value before packing.
    pub(crate) fn each_value<'b>(&'b self, mut each: impl FnMut(u16, u64, VlogValue<'b>) -> Result<()>) -> Result<()> {
        for op in &self.ops {
            if let Some((_, length, value)) = self.put_value(op)? {
                each(op.family, length, value)?;
            }
        }
        Ok(())
    }

    /// What a put has in front of its value, the value's length before packing, and the value.
    fn put_value(&self, op: &Op) -> Result<Option<(&[u8], u64, VlogValue<'_>)>> {
        let (tag, value) = (Tag(u64::from(op.kind)), self.value_of(op));
        if tag.kind() != Some(Kind::Put) {
            return Ok(None);
        }
        let Some((_, inner)) = split_expiry(tag, value) else { return Ok(None) };
        let before = &value[..value.len() - inner.len()];
        if !tag.is_packed() {
            return Ok(Some((before, inner.len() as u64, VlogValue::Plain(inner))));
        }
        let packed = Packed::parse(inner)?;
        Ok(Some((before, packed.raw_len() as u64, VlogValue::Packed(packed))))
    }

    /// The same operations, with pointers in the places of the values for which `pointer_for` returns one. It is asked in the
    /// order of [`WriteBatch::each_value`], with the same arguments.
    pub(crate) fn with_pointers(
        &self,
        mut pointer_for: impl FnMut(u16, u64) -> Option<ValuePointer>,
    ) -> Result<WriteBatch> {
        let (families, staged) = (self.families.clone(), self.staged.clone());
        let mut out = WriteBatch { families, staged, ranges: self.ranges, ..WriteBatch::default() };
        reserve(&mut out.ops, self.ops.len(), "a batch")?;
        let mut pointer = Vec::new();
        for op in &self.ops {
            let (key, mut value, mut kind) = (self.key_of(op), self.value_of(op), op.kind);
            let tag = Tag(u64::from(op.kind));
            if let Some((before, length, _)) = self.put_value(op)?
                && let Some(p) = pointer_for(op.family, length)
            {
                pointer.clear();
                pointer.extend_from_slice(before);
                p.encode(&mut pointer);
                value = &pointer;
                kind = Kind::PutPointer as u8 | op.kind & EXPIRY_FLAG;
            }
            reserve(&mut out.rep, key.len() + value.len() + 32, "a batch")?;
            out.rep.push(kind);
            put_varint(&mut out.rep, u64::from(self.families[op.family as usize].id()));
            put_varint(&mut out.rep, key.len() as u64);
            let key_at = out.rep.len() as u32;
            out.rep.extend_from_slice(key);
            if !tag.is_tombstone() {
                put_varint(&mut out.rep, value.len() as u64);
            }
            let value_at = out.rep.len() as u32;
            out.rep.extend_from_slice(value);
            out.ops.push(Op { kind, key_at, value_at, value_len: value.len() as u32, ..*op });
        }
        out.saved = self.raw_bytes().saturating_sub(out.rep.len());
        Ok(out)
    }

    /// Forgets the operations on families that are gone.
    pub(crate) fn leave_out_dropped(&mut self) -> Result<()> {
        if !self.families.iter().any(|f| f.is_gone()) {
            return Ok(());
        }
        let mut rest = WriteBatch::new();
        for op in &self.ops {
            let family = &self.families[op.family as usize];
            if !family.is_gone() {
                let (key, value) = (self.key_of(op), self.value_of(op));
                rest.push_logged(family, &LoggedOp { kind: op.kind, family: family.id(), key, value })?;
            }
        }
        rest.staged.extend(self.staged.drain(..).filter(|s| !s.family.is_gone()));
        *self = rest;
        Ok(())
    }

    /// The record that prepares a transaction: no writes, one control operation that holds them, and the files that they point
    /// to. `first` as in [`crate::ops::Prepared`].
    ///
    /// # Errors
    /// `InvalidArgument` when locks and writes together are too large for a record.
    pub(crate) fn prepare_record<'l>(
        xid: &[u8],
        (first, isolation): (SeqNo, Isolation),
        locks: impl ExactSizeIterator<Item = LoggedLock<'l>>,
        writes: &WriteBatch,
    ) -> Result<WriteBatch> {
        debug_assert!(writes.control.is_none());
        let mut rep = Vec::with_capacity(writes.rep.len() + 64);
        put_prepare(&mut rep, xid, (first, isolation), locks, (writes.ops.len(), &writes.rep));
        if rep.len() > MAX_BATCH_BYTES {
            return Err(Error::invalid(format!(
                "the prepare record would have {} bytes, more than {MAX_BATCH_BYTES}; use smaller transactions",
                rep.len()
            )));
        }
        let control = Some(Control { xid: xid.into(), action: ControlAction::Prepares, at: 0 });
        Ok(WriteBatch { rep, control, staged: writes.staged.clone(), ..WriteBatch::default() })
    }

    /// Ends a prepared transaction together with the writes of this batch.
    pub(crate) fn push_resolved(&mut self, xid: &[u8], committed: bool) {
        debug_assert!(self.control.is_none());
        let action = if committed { ControlAction::Commits } else { ControlAction::RollsBack };
        self.control = Some(Control { xid: xid.into(), action, at: self.rep.len() });
        put_resolved(&mut self.rep, xid, committed);
    }

    /// Takes the control operation back.
    pub(crate) fn pop_control(&mut self) {
        if let Some(control) = self.control.take() {
            self.rep.truncate(control.at);
        }
    }

    /// The control operation, which is the last of the record.
    pub(crate) fn control(&self) -> Option<&Control> {
        self.control.as_ref()
    }

    /// Sequence numbers that the batch takes.
    #[inline]
    pub(crate) fn sequences(&self) -> usize {
        self.ops.len() + self.control.is_some() as usize
    }

    /// The present end, for [`WriteBatch::truncate`].
    pub(crate) fn mark(&self) -> SavepointPos {
        SavepointPos {
            rep: self.rep.len(),
            saved: self.saved,
            ranges: self.ranges,
            ops: self.ops.len(),
            families: self.families.len(),
            staged: self.staged.len(),
        }
    }

    /// Forgets what was added since the mark was made.
    pub(crate) fn truncate(&mut self, mark: SavepointPos) {
        self.rep.truncate(mark.rep);
        self.saved = mark.saved;
        self.ranges = mark.ranges;
        self.ops.truncate(mark.ops);
        self.families.truncate(mark.families);
        self.staged.truncate(mark.staged);
    }

    /// Gives memory back that is not used, up to `keep` bytes and as much again as is.
    pub(crate) fn shrink(&mut self, keep: usize) {
        self.rep.shrink_to(keep.max(2 * self.rep.len()));
        self.ops.shrink_to((keep / size_of::<Op>()).max(2 * self.ops.len()));
        self.order = Vec::new(); // filled at commit
    }

    /// Bytes of memory held.
    pub(crate) fn memory(&self) -> u64 {
        (self.rep.capacity() + self.ops.capacity() * size_of::<Op>() + self.order.capacity() * size_of::<u32>()) as u64
    }

    /// The serialized operations: the log record's payload.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.rep
    }

    pub(crate) fn families(&self) -> &[Arc<Family>] {
        &self.families
    }

    pub(crate) fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The order in which to fill memtables. Sorting pays from a few operations on: neighbours in the tree are
    /// inserted together. Done by the committing thread outside the commit lock.
    pub(crate) fn prepare(&mut self) {
        const SORT_FROM: usize = 16;
        self.order.clear();
        self.order.extend(0..self.ops.len() as u32);
        if self.ops.len() >= SORT_FROM || self.families.len() > 1 {
            let ops = &self.ops;
            let sorted = ops.windows(2).all(|w| (w[0].family, w[0].head) <= (w[1].family, w[1].head));
            if !sorted {
                self.order.sort_unstable_by_key(|i| {
                    let op = &ops[*i as usize];
                    (op.family, op.head, *i)
                });
            }
        }
    }

    pub(crate) fn fill_order(&self) -> &[u32] {
        &self.order
    }

    #[inline]
    pub(crate) fn key_of(&self, op: &Op) -> &[u8] {
        &self.rep[op.key_at as usize..][..op.key_len as usize]
    }

    #[inline]
    pub(crate) fn value_of(&self, op: &Op) -> &[u8] {
        &self.rep[op.value_at as usize..][..op.value_len as usize]
    }
}

impl std::fmt::Debug for WriteBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WriteBatch({} operations, {} bytes)", self.ops.len(), self.rep.len())
    }
}

/// Refuses the empty key.
#[inline]
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    match key.is_empty() {
        true => Err(Error::invalid("empty key: keys have at least one byte")),
        false => Ok(()),
    }
}

fn check_free(file: &StagedFile) -> Result<()> {
    match file.log.is_free() {
        true => Ok(()),
        false => {
            let text = "the staged value was already committed or prepared; write the value again to put it once more";
            Err(Error::invalid(text))
        }
    }
}

/// Writes a varint to the front of `out`, which is long enough.
fn set_varint(out: &mut [u8], mut v: u64) {
    for byte in out {
        *byte = v as u8 | 0x80;
        v >>= 7;
        if v == 0 {
            *byte &= 0x7f;
            break;
        }
    }
}
