//! Where a value is in a value log.

use crate::info::size;
use kingtide_base::coding::{Reader, put_varint, varint_len};

/// Names one value of a value log. Stored as four varints, in field order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ValuePointer {
    /// The value log.
    pub file_id: u64,
    /// Where its first chunk begins.
    pub offset: u64,
    /// Bytes of all chunks, their headers included.
    pub stored_len: u64,
    /// Bytes of the value.
    pub raw_len: u64,
}

impl ValuePointer {
    /// Appends the encoded pointer.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for v in [self.file_id, self.offset, self.stored_len, self.raw_len] {
            put_varint(out, v);
        }
    }

    /// Bytes that [`ValuePointer::encode`] appends.
    pub fn encoded_len(&self) -> usize {
        [self.file_id, self.offset, self.stored_len, self.raw_len].into_iter().map(varint_len).sum()
    }

    /// Reads a pointer that fills `bytes` exactly, to no more stored bytes than a file can have; `None` otherwise.
    pub fn decode(bytes: &[u8]) -> Option<ValuePointer> {
        let mut r = Reader::new(bytes);
        let p =
            ValuePointer { file_id: r.varint()?, offset: r.varint()?, stored_len: size(&mut r)?, raw_len: r.varint()? };
        r.is_empty().then_some(p)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::MAX_SIZE;

    #[test]
    fn round_trip() {
        let p = ValuePointer { file_id: 7, offset: 1 << 40, stored_len: 300, raw_len: 0 };
        let mut b = Vec::new();
        p.encode(&mut b);
        assert_eq!((b.len(), ValuePointer::decode(&b)), (p.encoded_len(), Some(p)));
        assert!((0..b.len()).all(|n| ValuePointer::decode(&b[..n]).is_none()));
        b.push(0);
        assert_eq!(ValuePointer::decode(&b), None);
        b.clear();
        ValuePointer { stored_len: MAX_SIZE, ..p }.encode(&mut b);
        assert_eq!(ValuePointer::decode(&b), None, "sums of such lengths overflow");
    }
}
