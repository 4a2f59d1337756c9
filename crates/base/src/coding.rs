//! Little-endian integers and LEB128 varints. Every reader returns `None` past the end instead of panicking, so that
//! damaged input becomes a corruption error in the caller, which knows the file and offset.

/// Reads from the front of a byte slice.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader over `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// Returns what has not been read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns whether all was read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `n` bytes.
    #[inline]
    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(head)
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        let (b, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*b)
    }

    /// A little-endian u16.
    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        let (b, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u16::from_le_bytes(*b))
    }

    /// A little-endian u32.
    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        let (b, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u32::from_le_bytes(*b))
    }

    /// A little-endian u64.
    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        let (b, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u64::from_le_bytes(*b))
    }

    /// A varint of at most ten bytes.
    #[inline]
    pub fn varint(&mut self) -> Option<u64> {
        let first = self.u8()?;
        if first < 0x80 {
            return Some(first as u64);
        }
        let mut v = (first & 0x7f) as u64;
        for shift in (7..64).step_by(7) {
            let b = self.u8()?;
            if shift == 63 && b > 1 {
                return None;
            }
            v |= ((b & 0x7f) as u64) << shift;
            if b < 0x80 {
                return Some(v);
            }
        }
        None
    }

    /// A varint length followed by that many bytes.
    #[inline]
    pub fn slice(&mut self) -> Option<&'a [u8]> {
        let n = self.varint()?;
        self.bytes(usize::try_from(n).ok()?)
    }
}

/// Appends a varint.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

/// Appends a varint length and the bytes.
#[inline]
pub fn put_slice(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Returns the bytes that [`put_varint`] appends.
#[inline]
pub const fn varint_len(v: u64) -> usize {
    let bits = 64 - (v | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_and_refuse_overflow() {
        for v in (0..64).flat_map(|s| [1u64 << s, (1 << s) - 1, u64::MAX >> s]) {
            let mut b = Vec::new();
            put_varint(&mut b, v);
            assert_eq!(b.len(), varint_len(v));
            assert_eq!(Reader::new(&b).varint(), Some(v));
            assert_eq!(Reader::new(&b[..b.len() - 1]).varint(), None);
        }
        assert_eq!(Reader::new(&[0xff; 10]).varint(), None);
        assert_eq!(Reader::new(&[0x80; 20]).varint(), None);
    }

    #[test]
    fn slices_never_read_past_the_end() {
        let mut b = Vec::new();
        put_slice(&mut b, b"abc");
        let mut r = Reader::new(&b);
        assert_eq!(r.slice(), Some(&b"abc"[..]));
        assert!(r.is_empty() && r.slice().is_none() && r.u64().is_none());
        assert_eq!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 0x0f, 1]).slice(), None);
    }
}
