//! A write to a family, as a batch and a log record hold it.
//!
//! ```text
//! operation:  kind u8 | family varint | key length varint | key | [value length varint | value]
//! ```
//! The kind byte is the low byte of the entry's tag. `Put` carries a value, which begins with 8 bytes of expiry when the
//! kind has the expiry flag, and is packed ([`kingtide_table::packed`]) when it has the packed flag; `RangeDelete` carries the exclusive end as its value; deletes carry none.

use kingtide_base::coding::Reader;
use kingtide_base::key::split_expiry;
use kingtide_base::{FamilyId, Kind, Tag};
use kingtide_table::ValuePointer;
use kingtide_table::packed::Packed;

/// An operation read back from the log.
#[derive(Debug)]
pub(crate) struct LoggedOp<'a> {
    /// Low byte of the tag.
    pub kind: u8,
    /// The family it was written to; it may have been dropped since.
    pub family: FamilyId,
    /// The key; for a range delete, its start.
    pub key: &'a [u8],
    /// The value; for a range delete, its end.
    pub value: &'a [u8],
}

/// Reads one operation from the front of a log record's payload; `None` if the bytes are none.
pub(crate) fn read_op<'a>(r: &mut Reader<'a>) -> Option<LoggedOp<'a>> {
    let kind = r.u8()?;
    let family = u32::try_from(r.varint()?).ok()?;
    let key = r.slice()?;
    let tag = Tag(kind as u64);
    let value = match tag.kind()? {
        Kind::Put | Kind::PutPointer | Kind::RangeDelete => r.slice()?,
        Kind::Delete | Kind::SingleDelete => &[],
    };
    let (_, inner) = split_expiry(tag, value)?;
    if key.is_empty()
        || (tag.is_packed() && Packed::parse(inner).is_err())
        || (tag.kind() == Some(Kind::PutPointer) && ValuePointer::decode(inner).is_none())
    {
        return None;
    }
    Some(LoggedOp { kind, family, key, value })
}

impl LoggedOp<'_> {
    /// Where its value is, if that was written to a value log before the commit.
    pub fn pointer(&self) -> Option<ValuePointer> {
        let tag = Tag(u64::from(self.kind));
        if tag.kind() != Some(Kind::PutPointer) {
            return None;
        }
        split_expiry(tag, self.value).and_then(|(_, inner)| ValuePointer::decode(inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::coding::{put_slice, put_varint};
    use kingtide_base::key::EXPIRY_FLAG;

    fn write_op(out: &mut Vec<u8>, kind: u8, family: FamilyId, key: &[u8], value: &[u8]) {
        out.push(kind);
        put_varint(out, family as u64);
        put_slice(out, key);
        if !kingtide_base::Tag(kind as u64).is_tombstone() {
            put_slice(out, value);
        }
    }

    /// The reader takes exactly what the writer wrote, and refuses every truncation of it.
    #[test]
    fn logged_operations_read_back_and_truncations_are_refused() {
        let mut b = Vec::new();
        write_op(&mut b, Kind::Put as u8 | EXPIRY_FLAG, 300, b"key", b"12345678value");
        let first = b.len();
        write_op(&mut b, Kind::Delete as u8, 0, b"gone", b"");
        write_op(&mut b, Kind::RangeDelete as u8, 7, b"a", b"b");
        let mut r = Reader::new(&b);
        let op = read_op(&mut r).unwrap();
        assert_eq!((op.family, op.key, op.value), (300, &b"key"[..], &b"12345678value"[..]));
        assert_eq!(read_op(&mut r).unwrap().key, b"gone");
        assert_eq!(read_op(&mut r).unwrap().value, b"b");
        assert!(r.is_empty());
        for cut in 0..first {
            assert!(read_op(&mut Reader::new(&b[..cut])).is_none(), "cut at {cut}");
        }
        let mut pointer = Vec::new();
        write_op(&mut pointer, Kind::PutPointer as u8, 0, b"k", b"v");
        assert!(read_op(&mut Reader::new(&pointer)).is_none(), "four varints are a pointer");
        let p = ValuePointer { file_id: 7, offset: 24, stored_len: 300, raw_len: 286 };
        let mut value = b"12345678".to_vec();
        p.encode(&mut value);
        let mut pointer = Vec::new();
        write_op(&mut pointer, Kind::PutPointer as u8 | EXPIRY_FLAG, 0, b"k", &value);
        assert_eq!(read_op(&mut Reader::new(&pointer)).unwrap().pointer(), Some(p));
    }
}
