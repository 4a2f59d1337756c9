//! Control operations: what a log record says besides writes to families. Two-phase commit has two of them; for files that are
//! ingested see [`super::files`].
//!
//! ```text
//! prepare:   16 u8 | xid length varint | xid | first varint | isolation u8
//!            | locks varint | lock...                              (as many as said)
//!            | operations varint | length varint | operation...    (as in a batch, `length` bytes of them)
//! resolved:  17 u8 | xid length varint | xid | outcome u8          (0 rolled back, 1 committed)
//! lock:      shape u8 | family varint | bound...                   (one for a key, two for a range)
//! bound:     length varint | key                                   (nothing when the shape says unbounded)
//! ```
//! `first` is the sequence number of the transaction's first prepare record, 0 in that record itself: a prepare that is
//! written again further back in the log says whose copy it is. A lock's shape has bit 0 set for a range, bit 1 for an
//! exclusive lock, and for a range the kinds of its bounds in bits 2..3 and 4..5: 0 unbounded, 1 included, 2 excluded.
//!
//! A control operation takes one sequence number, like any other, and no memtable holds it. Its kind byte is none of a
//! write's, so a build that does not know it refuses the log instead of skipping it.

use super::write::{LoggedOp, read_op};
use crate::txn::Isolation;
use kingtide_base::coding::{Reader, put_slice, put_varint};
use kingtide_base::{Error, FamilyId, Result, SeqNo};
use kingtide_table::ValuePointer;
use std::ops::Bound;

/// Kind byte of a prepare.
pub(crate) const PREPARE: u8 = 16;
/// Kind byte of the end of a prepared transaction.
pub(crate) const RESOLVED: u8 = 17;
/// Longest name of a prepared transaction, in bytes.
pub const MAX_XID: usize = 1024;

const RANGE: u8 = 1;
const EXCLUSIVE: u8 = 2;
const UNBOUNDED: u8 = 0;
const INCLUDED: u8 = 1;
const EXCLUDED: u8 = 2;

/// One operation of a log record.
#[derive(Debug)]
pub(crate) enum LogOp<'a> {
    /// A write to a family.
    Write(LoggedOp<'a>),
    /// A transaction became in doubt.
    Prepare(Prepared<'a>),
    /// A transaction is in doubt no more. Its writes, if it committed, are the operations before this one in the record.
    Resolved { xid: &'a [u8], committed: bool },
}

/// What a lock is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockTarget<K> {
    /// One key, which need not exist.
    Key(K),
    /// All keys between two bounds, those that do not exist included.
    Range(Bound<K>, Bound<K>),
}

/// A lock that a prepared transaction holds besides those on the keys that it writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoggedLock<'a> {
    /// The family; it may have been dropped since.
    pub family: FamilyId,
    /// Whether others may not even read with a lock.
    pub exclusive: bool,
    pub target: LockTarget<&'a [u8]>,
}

/// A prepare record's content. One that exists was read completely.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared<'a> {
    /// The transaction's name, given by the coordinator.
    pub xid: &'a [u8],
    /// Sequence number of the first prepare record of the transaction; 0: this is it.
    pub first: SeqNo,
    pub isolation: Isolation,
    locks: &'a [u8],
    writes: &'a [u8],
}

impl<'a> Prepared<'a> {
    /// The writes.
    pub fn writes(&self) -> impl Iterator<Item = LoggedOp<'a>> + use<'a> {
        let mut r = Reader::new(self.writes);
        std::iter::from_fn(move || read_op(&mut r))
    }

    /// Where the values are that were written to value logs before, and the families that they are of.
    pub fn pointers(&self) -> impl Iterator<Item = (FamilyId, ValuePointer)> + use<'a> {
        self.writes().filter_map(|op| Some((op.family, op.pointer()?)))
    }

    /// The locks on what is not written.
    pub fn locks(&self) -> impl Iterator<Item = LoggedLock<'a>> + use<'a> {
        let mut r = Reader::new(self.locks);
        std::iter::from_fn(move || read_lock(&mut r))
    }

    fn read(r: &mut Reader<'a>) -> Option<Prepared<'a>> {
        let xid = read_xid(r)?;
        let first = r.varint().filter(|seq| *seq <= kingtide_base::key::MAX_SEQ)?;
        let isolation = Isolation::from_u8(r.u8()?)?;
        let count = r.varint()?;
        let from = r.rest();
        for _ in 0..count {
            read_lock(r)?; // at least two bytes each, so damage to the count ends soon
        }
        let locks = &from[..from.len() - r.rest().len()];
        let operations = r.varint()?;
        let writes = r.slice()?;
        let mut inner = Reader::new(writes);
        for _ in 0..operations {
            read_op(&mut inner)?;
        }
        inner.is_empty().then_some(Prepared { xid, first, isolation, locks, writes })
    }
}

/// Reads one operation from the front of a log record's payload; `None` if the bytes are none. Allocates nothing.
pub(crate) fn read_log_op<'a>(r: &mut Reader<'a>) -> Option<LogOp<'a>> {
    match *r.rest().first()? {
        PREPARE => {
            r.u8()?;
            Prepared::read(r).map(LogOp::Prepare)
        }
        RESOLVED => {
            r.u8()?;
            let xid = read_xid(r)?;
            let committed = match r.u8()? {
                0 => false,
                1 => true,
                _ => return None,
            };
            Some(LogOp::Resolved { xid, committed })
        }
        _ => read_op(r).map(LogOp::Write),
    }
}

/// Appends the end of a prepared transaction.
pub(crate) fn put_resolved(out: &mut Vec<u8>, xid: &[u8], committed: bool) {
    out.push(RESOLVED);
    put_slice(out, xid);
    out.push(committed as u8);
}

/// Appends a prepare of `operations` serialized `writes`.
pub(crate) fn put_prepare<'l>(
    out: &mut Vec<u8>,
    xid: &[u8],
    (first, isolation): (SeqNo, Isolation),
    locks: impl ExactSizeIterator<Item = LoggedLock<'l>>,
    (operations, writes): (usize, &[u8]),
) {
    out.push(PREPARE);
    put_slice(out, xid);
    put_varint(out, first);
    out.push(isolation as u8);
    put_varint(out, locks.len() as u64);
    locks.for_each(|lock| put_lock(out, &lock));
    put_varint(out, operations as u64);
    put_slice(out, writes);
}

/// Checks the name of a prepared transaction.
pub(crate) fn check_xid(xid: &[u8]) -> Result<()> {
    match xid.len() {
        1..=MAX_XID => Ok(()),
        0 => Err(Error::invalid("a prepared transaction needs a name; the xid is empty")),
        n => Err(Error::invalid(format!("the xid has {n} bytes; at most {MAX_XID}"))),
    }
}

fn read_xid<'a>(r: &mut Reader<'a>) -> Option<&'a [u8]> {
    r.slice().filter(|xid| (1..=MAX_XID).contains(&xid.len()))
}

fn put_lock(out: &mut Vec<u8>, lock: &LoggedLock<'_>) {
    let exclusive = if lock.exclusive { EXCLUSIVE } else { 0 };
    match &lock.target {
        LockTarget::Key(key) => {
            out.push(exclusive);
            put_varint(out, lock.family as u64);
            put_slice(out, key);
        }
        LockTarget::Range(lo, hi) => {
            out.push(RANGE | exclusive | bound_kind(lo) << 2 | bound_kind(hi) << 4);
            put_varint(out, lock.family as u64);
            for bound in [lo, hi] {
                if let Bound::Included(key) | Bound::Excluded(key) = bound {
                    put_slice(out, key);
                }
            }
        }
    }
}

fn read_lock<'a>(r: &mut Reader<'a>) -> Option<LoggedLock<'a>> {
    let shape = r.u8()?;
    let family = u32::try_from(r.varint()?).ok()?;
    let exclusive = shape & EXCLUSIVE != 0;
    let target = if shape & RANGE != 0 {
        let (lo, hi) = (shape >> 2 & 3, shape >> 4);
        LockTarget::Range(read_bound(r, lo)?, read_bound(r, hi)?)
    } else if shape & !EXCLUSIVE == 0 {
        LockTarget::Key(r.slice().filter(|key| !key.is_empty())?)
    } else {
        return None;
    };
    Some(LoggedLock { family, exclusive, target })
}

fn bound_kind<K>(bound: &Bound<K>) -> u8 {
    match bound {
        Bound::Unbounded => UNBOUNDED,
        Bound::Included(_) => INCLUDED,
        Bound::Excluded(_) => EXCLUDED,
    }
}

fn read_bound<'a>(r: &mut Reader<'a>, kind: u8) -> Option<Bound<&'a [u8]>> {
    match kind {
        UNBOUNDED => Some(Bound::Unbounded),
        INCLUDED => r.slice().map(Bound::Included),
        EXCLUDED => r.slice().map(Bound::Excluded),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    fn locks() -> Vec<LoggedLock<'static>> {
        let lock = |family, exclusive, target| LoggedLock { family, exclusive, target };
        vec![
            lock(0, false, LockTarget::Key(&b"read"[..])),
            lock(7, true, LockTarget::Key(&b"read for update"[..])),
            lock(300, false, LockTarget::Range(Bound::Unbounded, Bound::Unbounded)),
            lock(1, true, LockTarget::Range(Bound::Included(&b"a"[..]), Bound::Excluded(&b"b"[..]))),
            lock(1, false, LockTarget::Range(Bound::Excluded(&b""[..]), Bound::Included(&b"zz"[..]))),
        ]
    }

    fn writes() -> (usize, Vec<u8>) {
        let mut out = Vec::new();
        for (kind, key, value) in [(2, &b"put"[..], Some(&b"value"[..])), (0, b"gone", None), (4, b"a", Some(b"b"))] {
            out.push(kind);
            put_varint(&mut out, 3);
            put_slice(&mut out, key);
            value.into_iter().for_each(|v| put_slice(&mut out, v));
        }
        (3, out)
    }

    fn prepare(xid: &[u8], locks: &[LoggedLock<'_>], (count, writes): &(usize, Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        put_prepare(&mut out, xid, (77, Isolation::Serializable), locks.iter().cloned(), (*count, writes));
        out
    }

    fn read(bytes: &[u8]) -> Option<LogOp<'_>> {
        let mut r = Reader::new(bytes);
        read_log_op(&mut r).filter(|_| r.is_empty())
    }

    #[test]
    fn a_prepare_reads_back() {
        for (locks, writes) in [(locks(), writes()), (Vec::new(), writes()), (locks(), (0, Vec::new()))] {
            let bytes = prepare(&[9; MAX_XID], &locks, &writes);
            let Some(LogOp::Prepare(p)) = read(&bytes) else { panic!("not read") };
            assert_eq!((p.xid, p.first, p.isolation), (&[9; MAX_XID][..], 77, Isolation::Serializable));
            assert_eq!(p.locks().collect::<Vec<_>>(), locks);
            assert_eq!(p.writes().count(), writes.0);
            let again: Vec<_> = p.writes().map(|op| (op.kind, op.family, op.key.to_vec(), op.value.to_vec())).collect();
            let mut r = Reader::new(&writes.1);
            for op in again {
                let expected = read_op(&mut r).expect("written above");
                assert_eq!(op, (expected.kind, expected.family, expected.key.to_vec(), expected.value.to_vec()));
            }
        }
    }

    #[test]
    fn an_end_reads_back_and_only_two_outcomes_exist() {
        for outcome in [false, true] {
            let mut bytes = Vec::new();
            put_resolved(&mut bytes, b"xid", outcome);
            assert!(matches!(read(&bytes), Some(LogOp::Resolved { xid: b"xid", committed }) if committed == outcome));
            (0..bytes.len()).for_each(|cut| assert!(read(&bytes[..cut]).is_none(), "cut at {cut}"));
            *bytes.last_mut().expect("outcome") = 2;
            assert!(read(&bytes).is_none());
        }
    }

    #[test]
    fn names_have_a_length_that_is_checked_on_both_sides() {
        assert!(check_xid(b"").is_err() && check_xid(&[1; MAX_XID + 1]).is_err() && check_xid(&[1; MAX_XID]).is_ok());
        for xid in [&[][..], &[1; MAX_XID + 1]] {
            let mut bytes = Vec::new();
            put_resolved(&mut bytes, xid, true);
            assert!(read(&bytes).is_none());
            assert!(read(&prepare(xid, &[], &(0, Vec::new()))).is_none());
        }
    }

    /// No truncation is read, and no flipped bit makes the reader panic or read past the end. A flip in a key or a value
    /// is for the record's checksum to find.
    #[test]
    fn truncations_and_flipped_bits_of_a_prepare_are_survived() {
        let bytes = prepare(b"xid", &locks(), &writes());
        (0..bytes.len())
            .for_each(|cut| assert!(read_log_op(&mut Reader::new(&bytes[..cut])).is_none(), "cut at {cut}"));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Some(LogOp::Prepare(p)) = read(&flipped) {
                assert!(p.writes().count() + p.locks().count() <= flipped.len(), "bit {bit}");
            }
        }
    }

    #[test]
    fn noise_and_absurd_counts_are_refused() {
        let mut absurd = vec![PREPARE, 1, b'x', 0, 3];
        put_varint(&mut absurd, u64::MAX);
        assert!(read(&absurd).is_none());
        let mut no_locks = vec![PREPARE, 1, b'x', 0, 3, 0];
        put_varint(&mut no_locks, u64::MAX);
        no_locks.push(0);
        assert!(read(&no_locks).is_none());
        let mut rng = Rng::new(16);
        for _ in 0..50_000 {
            let mut bytes = vec![0; 1 + rng.below(40) as usize];
            rng.fill(&mut bytes);
            bytes[0] = PREPARE + (rng.below(2) as u8);
            let _ = read(&bytes);
        }
    }
}
