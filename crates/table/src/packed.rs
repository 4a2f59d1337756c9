//! Packed values: compressed by the thread that puts them, carried so through batch, log and memtable, and stored in a
//! value log as they are. One thread that flushes would otherwise compress for all that write.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | compression, u8 |
//! | rest | what [`crate::compression`] made of the value, its raw length first |

pub use crate::compression::shrinks;
use crate::compression::{Codec, Compressor, Decompressor, MAX_FREE_RAW};
use kingtide_base::options::Compression;
use kingtide_base::{Error, Result};
use std::cell::RefCell;

/// The largest value that can be packed, in bytes.
pub const MAX_RAW: usize = MAX_FREE_RAW;

thread_local! {
    static PACKERS: RefCell<[Option<Box<Compressor>>; METHODS]> = const { RefCell::new([const { None }; METHODS]) };
    static DECOMPRESSOR: RefCell<Decompressor> = RefCell::default();
}

const METHODS: usize = 5;

/// Most bytes that packing a value can take: what it does not shrink to that it does not pack.
#[inline]
pub const fn room(raw_len: usize) -> usize {
    1 + raw_len - raw_len / 8
}

/// Packs `raw` onto the end of `out`. Returns the bytes used, at most [`room`], or `None` when that would save less than an eighth
/// or there is no memory for it; `out` is then as it was.
pub fn pack(codec: impl Into<Codec>, raw: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let codec = codec.into();
    if raw.len() > MAX_RAW {
        return None;
    }
    out.try_reserve(room(raw.len())).ok()?;
    let start = out.len();
    out.push(codec.method as u8);
    let packed = PACKERS.with_borrow_mut(|packers| {
        let compressor = packers[codec.method as usize].get_or_insert_with(|| Box::new(Compressor::new(codec)));
        compressor.set_level(codec.level); // families may differ
        compressor.compress_onto(raw, out)
    });
    if packed.is_none() {
        out.truncate(start);
    }
    packed.map(|n| 1 + n)
}

/// A packed value, not yet decompressed.
#[derive(Clone, Copy)]
pub struct Packed<'a> {
    pub(crate) method: Compression,
    pub(crate) payload: &'a [u8],
    raw_len: usize,
}

impl<'a> Packed<'a> {
    /// Looks at a packed value.
    ///
    /// # Errors
    /// `Corruption` when the bytes are none, or announce a value larger than [`MAX_RAW`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packed<'a>> {
        let Some((method, payload)) = bytes.split_first() else {
            return Err(Error::corruption("an entry lacks the packed value that its tag requires"));
        };
        let raw_len = Decompressor::raw_len(payload)?;
        match Compression::from_u8(*method) {
            Some(method) if method != Compression::None && raw_len <= MAX_RAW => {
                Ok(Packed { method, payload, raw_len })
            }
            _ => Err(Error::corruption(format!("no packed value: compression {method}, {raw_len} bytes"))),
        }
    }

    /// Bytes of the value.
    #[inline]
    pub fn raw_len(&self) -> usize {
        self.raw_len
    }

    /// Appends the value to `out`.
    ///
    /// # Errors
    /// `Corruption` when it does not decompress; `out` is then as before.
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<()> {
        DECOMPRESSOR.with_borrow_mut(|d| {
            let len = d.room(self.method, self.payload, None)?;
            d.decompress_onto(self.method, self.payload, out, len)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    const PACKING: [Compression; 4] = [Compression::Lz4, Compression::Lz4Fast, Compression::Zstd, Compression::Snappy];

    fn packed(method: Compression, raw: &[u8]) -> Option<Vec<u8>> {
        let mut out = b"before".to_vec();
        let n = pack(method, raw, &mut out);
        assert!(out.starts_with(b"before") && out.len() == 6 + n.unwrap_or(0));
        n.map(|_| out.split_off(6))
    }

    #[test]
    fn values_come_back_and_noise_is_not_packed() {
        let mut rng = Rng::new(5);
        for method in PACKING {
            for len in [1000, 1024, 4096, 70_000, 1 << 20] {
                let mut raw = vec![7; len];
                rng.fill(&mut raw[..len / 2]);
                let bytes = packed(method, &raw).unwrap();
                assert!(bytes.len() <= room(len) && shrinks(&raw), "{method} {len}");
                let mut back = b"before".to_vec();
                let p = Packed::parse(&bytes).unwrap();
                p.append_to(&mut back).unwrap();
                assert!(back[..6] == *b"before" && back[6..] == raw && p.raw_len() == len, "{method} {len}");

                rng.fill(&mut raw);
                assert!(packed(method, &raw).is_none(), "{method} {len}");
                assert!(len < 2048 || !shrinks(&raw), "noise is told by a sample");
            }
        }
        assert!(packed(Compression::Lz4, &vec![0; MAX_RAW + 1]).is_none());
    }

    #[test]
    fn damage_is_an_error_and_leaves_the_output_alone() {
        let mut rng = Rng::new(6);
        for method in PACKING {
            let mut raw = vec![b'x'; 3000];
            rng.fill(&mut raw[..500]);
            let bytes = packed(method, &raw).unwrap();
            for cut in 0..bytes.len() {
                let mut out = b"before".to_vec();
                let broken = Packed::parse(&bytes[..cut]).and_then(|p| p.append_to(&mut out));
                assert!(broken.is_err() && out == b"before", "{method} cut at {cut}");
            }
            for _ in 0..3000 {
                let mut bad = bytes.clone();
                bad[rng.below(bytes.len() as u64) as usize] ^= 1 << rng.below(8);
                let mut out = Vec::new();
                if let Ok(p) = Packed::parse(&bad) {
                    let _ = p.append_to(&mut out);
                }
            }
        }
        assert!(Packed::parse(&[Compression::None as u8, 1, 0, 0, 0, 9]).is_err());
        let huge = (MAX_RAW as u32 + 1).to_le_bytes();
        assert!(Packed::parse(&[&[1][..], &huge, &vec![0; 1 << 20]].concat()).is_err());
    }
}
