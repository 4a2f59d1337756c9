//! What a point read returns.

use kingtide_mem::cache::Block;
use std::fmt;
use std::ops::{Deref, Range};

/// Values up to this many bytes are copied into the [`PinnedValue`] itself: no allocation, no reference count.
pub const INLINE_LEN: usize = 104;

/// A value that a read found. Small ones are held inline, values of a cached block share the block, others are owned.
#[derive(Clone)]
pub struct PinnedValue(Repr);

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE_LEN] },
    Cached { block: Block, start: u32, len: u32 },
    Heap(Vec<u8>),
}

impl PinnedValue {
    /// A copy of `bytes`.
    #[inline]
    pub fn copy(bytes: &[u8]) -> PinnedValue {
        if bytes.len() <= INLINE_LEN {
            let mut inline = [0; INLINE_LEN];
            inline[..bytes.len()].copy_from_slice(bytes);
            return PinnedValue(Repr::Inline { len: bytes.len() as u8, bytes: inline });
        }
        PinnedValue(Repr::Heap(bytes.to_vec()))
    }

    /// A part of a cached block: kept alive by sharing it, unless a copy is cheaper. The range must lie in the block.
    #[inline]
    #[doc(hidden)] // a `Block` is not the API's
    pub fn cached(block: Block, range: Range<usize>) -> PinnedValue {
        if range.len() <= INLINE_LEN || range.end > u32::MAX as usize {
            return PinnedValue::copy(&block[range]);
        }
        PinnedValue(Repr::Cached { start: range.start as u32, len: range.len() as u32, block })
    }

    /// The bytes as an owned vector; moves it where there is one.
    ///
    /// ```
    /// # use kingtide::{PinnedValue};
    /// let value = PinnedValue::copy(b"low");
    /// assert_eq!(value.into_vec(), b"low");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Repr::Heap(v) => v,
            _ => self.to_vec(),
        }
    }
}

impl From<Vec<u8>> for PinnedValue {
    fn from(bytes: Vec<u8>) -> PinnedValue {
        PinnedValue(Repr::Heap(bytes))
    }
}

impl Deref for PinnedValue {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..*len as usize],
            Repr::Cached { block, start, len } => &block[*start as usize..(*start + *len) as usize],
            Repr::Heap(v) => v,
        }
    }
}

impl AsRef<[u8]> for PinnedValue {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for PinnedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

impl PartialEq for PinnedValue {
    fn eq(&self, other: &PinnedValue) -> bool {
        **self == **other
    }
}

impl Eq for PinnedValue {}

impl PartialEq<[u8]> for PinnedValue {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl PartialEq<&[u8]> for PinnedValue {
    fn eq(&self, other: &&[u8]) -> bool {
        **self == **other
    }
}

impl PartialEq<Vec<u8>> for PinnedValue {
    fn eq(&self, other: &Vec<u8>) -> bool {
        **self == **other
    }
}

impl<const N: usize> PartialEq<[u8; N]> for PinnedValue {
    fn eq(&self, other: &[u8; N]) -> bool {
        **self == *other
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for PinnedValue {
    fn eq(&self, other: &&[u8; N]) -> bool {
        **self == **other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_representation_reads_the_same() {
        for len in [0, 1, INLINE_LEN - 1, INLINE_LEN, INLINE_LEN + 1, 5000] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut padded = vec![0xff; 3];
            padded.extend_from_slice(&bytes);
            let cached = PinnedValue::cached(Block::from(&padded[..]), 3..3 + len);
            for v in [PinnedValue::copy(&bytes), cached, PinnedValue::from(bytes.clone())] {
                assert_eq!(v, bytes);
                assert_eq!(v.clone().into_vec(), bytes);
            }
        }
        assert_eq!(format!("{:?}", PinnedValue::copy(b"a\0")), "\"a\\x00\"");
    }
}
