//! Block compression. Contexts are made once and reused; decompression writes exactly the announced bytes or fails.
//!
//! Compressed payload:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | raw length, u32 |
//! | rest | the codec's block format (LZ4 block, Zstandard frame, raw Snappy) |

use crate::{expansion, lz4};
use kingtide_base::options::Compression;
use kingtide_base::perf::{self, Stage};
use kingtide_base::{Error, Result};

/// Bytes of the raw length in front of compressed data.
pub const RAW_LEN: usize = 4;

/// Below this raw length any ratio is believed. Above it a block that claims to be more than [`MAX_RATIO`] times its
/// stored size is damaged: so what hostile input can make a reader allocate is bounded by what is on disk.
pub const MAX_FREE_RAW: usize = 16 << 20;

/// A raw length of more than this beyond the stored one is believed only after a look at the compressed bytes, which must
/// expand to it: see [`Decompressor::room`].
pub const FREE_RAW: usize = 1 << 20;

/// LZ4's largest possible ratio. A writer stores data that would exceed it uncompressed if it is large.
pub const MAX_RATIO: usize = 255;

/// Level of Zstandard: above it compression, not the disk, becomes the limit of a merge.
const ZSTD_LEVEL: i32 = 1;

/// What Zstandard calls running out of room.
const ZSTD_NO_ROOM: &str = "Destination buffer is too small";

/// LZ4's acceleration for `Lz4Fast`.
const FAST_ACCELERATION: i32 = 8;

/// Values of this many bytes and more are sampled before they are compressed.
const SAMPLE_FROM: usize = 2048;
/// A sample is this many pieces from all over the value.
const SAMPLE_PIECES: usize = 4;
const SAMPLE_PIECE: usize = 256;

/// Compresses blocks with one method.
pub struct Compressor {
    method: Compression,
    zstd: Option<zstd_safe::CCtx<'static>>,
    snappy: snap::raw::Encoder,
}

impl Compressor {
    /// A compressor of that method.
    pub fn new(method: Compression) -> Compressor {
        Compressor {
            method,
            zstd: (method == Compression::Zstd).then(zstd_safe::CCtx::create),
            snappy: snap::raw::Encoder::new(),
        }
    }

    /// Compresses `raw` with its length in front into `out`. Returns the bytes used, or `None` when that would save
    /// less than an eighth: the caller then stores `raw` as it is. `out` need not be larger than `raw`.
    pub fn compress(&mut self, raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let most = raw.len() - raw.len() / 8;
        if self.method == Compression::None || most <= RAW_LEN || out.len() < most {
            return None;
        }
        let (head, body) = out[..most].split_at_mut(RAW_LEN);
        head.copy_from_slice(&u32::try_from(raw.len()).ok()?.to_le_bytes());
        let n = match self.method {
            Compression::None => None,
            Compression::Lz4 => lz4::compress(raw, body, 1),
            Compression::Lz4Fast => lz4::compress(raw, body, FAST_ACCELERATION),
            Compression::Zstd => self.zstd.as_mut().and_then(|z| z.compress(body, raw, ZSTD_LEVEL).ok()),
            Compression::Snappy => self.snappy(raw, body),
        }?;
        (n > 0 && raw.len() <= MAX_FREE_RAW.max((n + RAW_LEN) * MAX_RATIO)).then_some(RAW_LEN + n)
    }

    /// Snappy demands room for its worst case, so it goes through a buffer of its own.
    fn snappy(&mut self, raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let bytes = self.snappy.compress_vec(raw).ok()?;
        out.get_mut(..bytes.len())?.copy_from_slice(&bytes);
        Some(bytes.len())
    }
}

/// Decompresses blocks of any method.
#[derive(Default)]
pub struct Decompressor {
    zstd: Option<zstd_safe::DCtx<'static>>,
}

impl Decompressor {
    /// The raw length that a compressed payload announces.
    ///
    /// # Errors
    /// `Corruption` when it is missing or larger than the payload can hold.
    #[inline]
    pub fn raw_len(payload: &[u8]) -> Result<usize> {
        let Some((head, _)) = payload.split_first_chunk::<RAW_LEN>() else {
            return Err(Error::corruption("compressed block is too short"));
        };
        let raw = u32::from_le_bytes(*head) as usize;
        if raw > MAX_FREE_RAW.max(payload.len().saturating_mul(MAX_RATIO)) {
            return Err(Error::corruption(format!("a block of {} bytes claims to hold {raw}", payload.len())));
        }
        Ok(raw)
    }

    /// The raw length, checked before memory is allocated for it: it is at most [`FREE_RAW`] more than the
    /// payload has bytes, or the payload does expand to it. A forged length so costs no memory.
    ///
    /// # Errors
    /// As [`Decompressor::raw_len`], and `Corruption` when the payload expands to another length.
    #[inline]
    pub fn room(&mut self, method: Compression, payload: &[u8]) -> Result<usize> {
        let raw = Self::raw_len(payload)?;
        if raw > payload.len() + FREE_RAW && !self.expands(method, &payload[RAW_LEN..], raw) {
            return Err(Error::corruption(format!("a block of {} bytes claims to hold {raw}", payload.len())));
        }
        Ok(raw)
    }

    #[cold]
    fn expands(&mut self, method: Compression, body: &[u8], raw: usize) -> bool {
        match method {
            Compression::None => false,
            Compression::Lz4 | Compression::Lz4Fast => expansion::of_lz4(body) == Some(raw),
            Compression::Snappy => expansion::of_snappy(body) == Some(raw),
            Compression::Zstd => self.zstd_expands(body, raw),
        }
    }

    /// Decompresses into more and more room, never more than twice what came out before.
    fn zstd_expands(&mut self, body: &[u8], raw: usize) -> bool {
        let zstd = self.zstd.get_or_insert_with(zstd_safe::DCtx::create);
        let mut room = body.len() + FREE_RAW;
        loop {
            let mut out = vec![0; room.min(raw)];
            match zstd.decompress(&mut out[..], body) {
                Ok(n) => return n == raw,
                Err(code) if out.len() < raw && zstd_safe::get_error_name(code) == ZSTD_NO_ROOM => room *= 2,
                Err(_) => return false,
            }
        }
    }

    /// Decompresses `payload` into `out`, whose length is what [`Decompressor::room`] said.
    ///
    /// # Errors
    /// `Corruption` when the payload does not decode to exactly that many bytes.
    #[inline]
    pub fn decompress(&mut self, method: Compression, payload: &[u8], out: &mut [u8]) -> Result<()> {
        let body = payload.get(RAW_LEN..).unwrap_or_default();
        let timer = perf::begin_stage();
        let n = match method {
            Compression::None => None,
            Compression::Lz4 | Compression::Lz4Fast => lz4::decompress(body, out),
            Compression::Zstd => self.zstd.get_or_insert_with(zstd_safe::DCtx::create).decompress(out, body).ok(),
            Compression::Snappy => match snap::raw::decompress_len(body) {
                Ok(n) if n == out.len() => snap::raw::Decoder::new().decompress(body, out).ok(),
                _ => None,
            },
        };
        timer.end(Stage::DecompressNs);
        if n == Some(out.len()) { Ok(()) } else { Err(Error::corruption(format!("{method} data does not decode"))) }
    }
}

/// Whether a sample of `raw` shrinks by a sixteenth: values like random bytes then cost next to nothing.
pub fn shrinks(raw: &[u8]) -> bool {
    if raw.len() < SAMPLE_FROM {
        return true;
    }
    let mut sample = [0; SAMPLE_PIECES * SAMPLE_PIECE];
    let step = (raw.len() - SAMPLE_PIECE) / (SAMPLE_PIECES - 1);
    for (i, piece) in sample.chunks_exact_mut(SAMPLE_PIECE).enumerate() {
        piece.copy_from_slice(&raw[i * step..i * step + SAMPLE_PIECE]);
    }
    let mut out = [0; SAMPLE_PIECES * SAMPLE_PIECE + 64]; // LZ4's worst case fits
    lz4::compress(&sample, &mut out, 1).is_some_and(|n| n <= sample.len() - sample.len() / 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    const METHODS: [Compression; 4] = [Compression::Lz4, Compression::Lz4Fast, Compression::Zstd, Compression::Snappy];

    fn half_compressible(len: usize, rng: &mut Rng) -> Vec<u8> {
        let mut v = vec![b'a'; len];
        for piece in v.chunks_mut(100) {
            let n = piece.len() / 2;
            rng.fill(&mut piece[..n]);
        }
        v
    }

    #[test]
    fn round_trips_and_refuses_what_does_not_pay() {
        let mut rng = Rng::new(3);
        for method in METHODS {
            let mut c = Compressor::new(method);
            let mut d = Decompressor::default();
            for len in [1, 40, 4096, 5000, 100_000] {
                let raw = half_compressible(len, &mut rng);
                let mut out = vec![0; len];
                if let Some(n) = c.compress(&raw, &mut out) {
                    assert!(n <= len - len / 8);
                    assert_eq!(Decompressor::raw_len(&out[..n]).unwrap(), len);
                    let mut back = vec![0; len];
                    d.decompress(method, &out[..n], &mut back).unwrap();
                    assert_eq!(back, raw, "{method}");
                } else {
                    assert!(len < 4096, "{method} {len}");
                }
                let mut noise = vec![0; len];
                rng.fill(&mut noise);
                assert_eq!(c.compress(&noise, &mut out), None, "{method} {len}");
            }
        }
    }

    /// What is large and honest is believed, and a larger claim about the same bytes is not.
    #[test]
    fn long_expansions_are_told_from_claims() {
        let mut rng = Rng::new(6);
        for method in METHODS {
            for len in [FREE_RAW / 2, FREE_RAW + 30_000, 3 * FREE_RAW, 9 * FREE_RAW] {
                let mut raw = vec![7; len];
                let noise = len / 100;
                rng.fill(&mut raw[len / 2..len / 2 + noise]);
                let mut out = vec![0; len];
                let n = Compressor::new(method).compress(&raw, &mut out).unwrap();
                out.truncate(n);
                let mut d = Decompressor::default();
                assert_eq!(d.room(method, &out).unwrap(), len, "{method}");
                for claim in [len + 1, 15 << 20, FREE_RAW + n + 1, len - 1] {
                    let mut forged = out.clone();
                    forged[..4].copy_from_slice(&(claim as u32).to_le_bytes());
                    let believed = d.room(method, &forged);
                    assert!(believed.is_err() || claim <= n + FREE_RAW, "{method}: {claim} for {len}");
                }
                for cut in [RAW_LEN, n / 2, n - 1] {
                    let cut = d.room(method, &out[..cut]);
                    assert!(cut.is_err() || len <= n / 2 + FREE_RAW, "{method}: {len} bytes of a part");
                }
            }
        }
    }

    #[test]
    fn damage_never_panics_or_overflows() {
        let mut rng = Rng::new(4);
        for method in METHODS {
            let raw = half_compressible(4096, &mut rng);
            let mut out = vec![0; 4096];
            let n = Compressor::new(method).compress(&raw, &mut out).unwrap();
            let mut d = Decompressor::default();
            let mut back = vec![0; 4096];
            for cut in 0..n {
                assert!(d.decompress(method, &out[..cut], &mut back).is_err(), "{method} {cut}");
            }
            for _ in 0..2000 {
                let mut bad = out[..n].to_vec();
                bad[rng.below(n as u64) as usize] ^= 1 << rng.below(8);
                if let Ok(len) = Decompressor::raw_len(&bad) {
                    let mut back = vec![0; len];
                    let _ = d.decompress(method, &bad, &mut back);
                }
            }
        }
        assert!(Decompressor::raw_len(&[0xff; 9]).is_err());
        assert!(Decompressor::raw_len(&[1, 2]).is_err());
    }
}
