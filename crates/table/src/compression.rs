//! Block compression. Contexts are made once and reused; decompression writes exactly the announced bytes or fails.
//!
//! Compressed payload:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | raw length, u32 |
//! | rest | the codec's block format (LZ4 block, Zstandard frame, raw Snappy) |

use crate::{expansion, lz4};
use kingtide_base::memory::{extend_zeroed, reserve, zeroed};
use kingtide_base::options::{Compression, FamilyOptions};
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

/// What Zstandard calls running out of room.
const ZSTD_NO_ROOM: &str = "Destination buffer is too small";

/// What Zstandard calls want of memory.
const ZSTD_NO_MEMORY: &str = "Allocation error : not enough memory";

/// About what a context of Zstandard takes, for messages.
const ZSTD_CONTEXT: usize = 160 << 10;

/// About what the tables of a dictionary take.
const ZSTD_TABLES: usize = 32 << 10;

/// LZ4's acceleration for `Lz4Fast`.
const FAST_ACCELERATION: i32 = 8;
/// That of values for which it costs no space: half the time. More of it saves little, and costs three times as much space where a
/// trial was wrong.
const QUICK_ACCELERATION: i32 = 4;
/// That of tables' blocks for which it costs almost no space. With more of it, LZ4 misses too many short repetitions.
const BLOCK_ACCELERATION: i32 = 2;
/// One of this many blocks of a table is tried, to see whether it does.
const BLOCKS_PER_TRIAL: u32 = 128;
/// The first block that is tried: a small table is not worth a trial.
const FIRST_TRIAL: u32 = 16;

/// Values of this many bytes and more are sampled before they are compressed.
const SAMPLE_FROM: usize = 2048;
/// A sample is this many pieces from all over the value.
const SAMPLE_PIECES: usize = 4;
const SAMPLE_PIECE: usize = 256;

/// Values of this many bytes and more are worth a trial of LZ4's acceleration.
const TRIAL_FROM: usize = 4 << 10;
/// From here on a trial takes little of the time of the compression.
const CHEAP_TRIAL_FROM: usize = 16 << 10;
/// A trial takes a piece of so many bytes for each 32 KiB, one to four: up to a sixteenth of a value for which it is cheap.
const TRIAL_PIECE: usize = 1 << 10;
const TRIAL_PIECES: usize = 4;
const TRIAL_STEP: usize = 32 << 10;

/// A method of compression, and how hard it tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codec {
    /// The method.
    pub method: Compression,
    /// Level of Zstandard, or acceleration of LZ4; Snappy has neither.
    pub level: i32,
}

impl Codec {
    /// That method, at that level if it is Zstandard.
    pub fn new(method: Compression, zstd_level: i32) -> Codec {
        match method {
            Compression::Zstd => Codec { method, level: zstd_level },
            _ => Codec::from(method),
        }
    }

    /// What a family compresses its values with.
    pub fn of_values(options: &FamilyOptions) -> Codec {
        Codec::new(options.compression, options.zstd_level as i32)
    }

    /// Whether [`Codec::for_value`] looks at a value of `len` bytes.
    #[inline]
    pub fn suits_itself(self, len: usize) -> bool {
        self.method == Compression::Lz4 && self.level < QUICK_ACCELERATION && len >= TRIAL_FROM
    }

    /// Whether such a look takes so much of the time of the compression that few of many values alike are worth one.
    #[inline]
    pub fn looks_dearly(self, len: usize) -> bool {
        len < CHEAP_TRIAL_FROM
    }

    /// LZ4 with the acceleration that [`Codec::for_value`] may choose.
    pub fn quick(self) -> Codec {
        Codec { level: QUICK_ACCELERATION, ..self }
    }

    /// The same method; LZ4 with an acceleration where that is as good, since a trial with a part of `value` takes hardly more
    /// bytes. So it is for data whose repetitions are long and for noise, and not for text or programs.
    pub fn for_value(self, value: &[u8]) -> Codec {
        match self.suits_itself(value.len()) && is_quickly_compressed(value) {
            true => self.quick(),
            false => self,
        }
    }
}

impl From<Compression> for Codec {
    /// Zstandard at level 1, above which compression, not the disk, becomes the limit of a compaction.
    fn from(method: Compression) -> Codec {
        Codec { method, level: if method == Compression::Lz4Fast { FAST_ACCELERATION } else { 1 } }
    }
}

/// Compresses blocks with one method.
pub struct Compressor {
    codec: Codec,
    zstd: Option<zstd_safe::CCtx<'static>>,
    /// The context that has a dictionary, once there is one.
    dictionary: Option<zstd_safe::CCtx<'static>>,
    snappy: snap::raw::Encoder,
    /// Snappy's worst case of the largest block so far.
    snappy_room: Vec<u8>,
    /// Blocks until [`Compressor::suit_blocks`] tries one.
    until_trial: u32,
}

impl Compressor {
    /// A compressor of that method.
    pub fn new(codec: impl Into<Codec>) -> Compressor {
        let codec = codec.into();
        let (zstd, dictionary, snappy) = (None, None, snap::raw::Encoder::new());
        Compressor { codec, zstd, dictionary, snappy, snappy_room: Vec::new(), until_trial: FIRST_TRIAL }
    }

    /// The method and level.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Changes the level of Zstandard or the acceleration of LZ4, for a compressor without a dictionary.
    pub fn set_level(&mut self, level: i32) {
        debug_assert!(self.dictionary.is_none(), "a dictionary has the level that it was made for");
        self.codec.level = level;
    }

    /// To be called with each block of a table before it is compressed. Tries one of many, and has LZ4 hurry with it and those up to the next
    /// trial if that is as good. Most calls only count.
    #[inline]
    pub fn suit_blocks(&mut self, raw: &[u8]) {
        if self.codec.method != Compression::Lz4 {
            return;
        }
        self.until_trial -= 1;
        if self.until_trial == 0 {
            self.until_trial = BLOCKS_PER_TRIAL;
            self.try_block(raw);
        }
    }

    #[cold]
    fn try_block(&mut self, raw: &[u8]) {
        let mut size = |acceleration| {
            self.set_level(acceleration);
            self.stored_bytes(std::iter::once(raw))
        };
        let (without, with) = (size(1), size(BLOCK_ACCELERATION));
        self.set_level(if is_as_good(with, without) { BLOCK_ACCELERATION } else { 1 });
    }

    /// From now on blocks are compressed with a dictionary. Each names it, so that none is decompressed without it, which could
    /// give other bytes. Without memory for it nothing changes, and it returns false. Only for Zstandard.
    pub fn set_dictionary(&mut self, bytes: &[u8]) -> bool {
        debug_assert_eq!(self.codec.method, Compression::Zstd, "only Zstandard has dictionaries");
        let level = self.codec.level;
        let load = |mut zstd: zstd_safe::CCtx<'static>| {
            zstd.set_parameter(zstd_safe::CParameter::CompressionLevel(level)).ok()?;
            zstd.load_dictionary(bytes).ok()?;
            Some(zstd)
        };
        self.dictionary = compression_context().and_then(load);
        self.dictionary.is_some()
    }

    /// From now on blocks are compressed without a dictionary.
    pub fn drop_dictionary(&mut self) {
        self.dictionary = None;
    }

    /// Compresses `raw` with its length in front into `out`. Returns the bytes used, or `None` when that would save
    /// less than an eighth, or without memory to compress in: the caller then stores `raw` as it is. `out` need not be larger than `raw`.
    pub fn compress(&mut self, raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let most = raw.len() - raw.len() / 8;
        if self.codec.method == Compression::None || most <= RAW_LEN || out.len() < most {
            return None;
        }
        let (head, body) = out[..most].split_at_mut(RAW_LEN);
        head.copy_from_slice(&u32::try_from(raw.len()).ok()?.to_le_bytes());
        let n = match self.codec.method {
            Compression::None => None,
            Compression::Lz4 | Compression::Lz4Fast => lz4::compress(raw, body, self.codec.level),
            Compression::Zstd => self.zstd(raw, body),
            Compression::Snappy => self.snappy(raw, body),
        }?;
        is_believed(raw.len(), n).then_some(RAW_LEN + n)
    }

    /// The same onto the end of `out`, which is as it was after `None`. Bytes that it gains are not cleared first where the
    /// method allows that.
    pub fn compress_onto(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        let (start, most) = (out.len(), raw.len() - raw.len() / 8);
        let lz4 = matches!(self.codec.method, Compression::Lz4 | Compression::Lz4Fast);
        if !lz4 || most <= RAW_LEN {
            out.try_reserve(most).ok()?;
            out.resize(start + most, 0);
            let done = self.compress(raw, &mut out[start..]);
            out.truncate(start + done.unwrap_or(0));
            return done;
        }
        out.try_reserve(most).ok()?;
        out.extend_from_slice(&u32::try_from(raw.len()).ok()?.to_le_bytes());
        let done =
            lz4::compress_onto(raw, out, most - RAW_LEN, self.codec.level).filter(|n| is_believed(raw.len(), *n));
        if done.is_none() {
            out.truncate(start);
        }
        done.map(|n| RAW_LEN + n)
    }

    /// Bytes that blocks take as [`Compressor::compress`] would leave them. Without memory to compress in, their own.
    pub fn stored_bytes<'a>(&mut self, blocks: impl Iterator<Item = &'a [u8]>) -> usize {
        let mut out = Vec::new();
        let mut stored = |raw: &[u8]| {
            if out.len() < raw.len() {
                out = zeroed(raw.len(), "a block").ok()?;
            }
            self.compress(raw, &mut out)
        };
        blocks.map(|raw| stored(raw).unwrap_or(raw.len())).sum()
    }

    fn zstd(&mut self, raw: &[u8], out: &mut [u8]) -> Option<usize> {
        if let Some(zstd) = &mut self.dictionary {
            return zstd.compress2(out, raw).ok();
        }
        if self.zstd.is_none() {
            self.zstd = compression_context();
        }
        self.zstd.as_mut()?.compress(out, raw, self.codec.level).ok()
    }

    /// Snappy demands room for its worst case, so it goes through a buffer of its own.
    fn snappy(&mut self, raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let most = snap::raw::max_compress_len(raw.len());
        if self.snappy_room.len() < most {
            self.snappy_room.try_reserve_exact(most - self.snappy_room.len()).ok()?;
            self.snappy_room.resize(most, 0);
        }
        let n = self.snappy.compress(raw, &mut self.snappy_room).ok()?;
        out.get_mut(..n)?.copy_from_slice(&self.snappy_room[..n]);
        Some(n)
    }
}

/// Whether a reader believes that `n` compressed bytes behind their raw length hold `raw_len`.
fn is_believed(raw_len: usize, n: usize) -> bool {
    n > 0 && raw_len <= MAX_FREE_RAW.max((n + RAW_LEN) * MAX_RATIO)
}

fn compression_context() -> Option<zstd_safe::CCtx<'static>> {
    #[cfg(test)]
    if tests::NO_CONTEXTS.get() {
        return None;
    }
    zstd_safe::CCtx::try_create()
}

fn decompression_context() -> Option<zstd_safe::DCtx<'static>> {
    #[cfg(test)]
    if tests::NO_CONTEXTS.get() {
        return None;
    }
    zstd_safe::DCtx::try_create()
}

/// Want of memory is no damage of the data.
#[cold]
fn no_memory() -> Error {
    Error::out_of_memory("a Zstandard context", ZSTD_CONTEXT)
}

/// What a failure of Zstandard says about the data: nothing if memory ran out, else that it does not decode.
fn decoded(result: std::result::Result<usize, usize>) -> Result<Option<usize>> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(code) if zstd_safe::get_error_name(code) == ZSTD_NO_MEMORY => Err(no_memory()),
        Err(_) => Ok(None),
    }
}

/// A dictionary for reading what [`Compressor::set_dictionary`] wrote.
pub struct Dictionary {
    zstd: zstd_safe::DDict<'static>,
}

impl std::fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dictionary({} bytes)", self.memory())
    }
}

impl Dictionary {
    /// What every trained dictionary begins with.
    pub const MAGIC: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];

    /// About the bytes that [`Dictionary::train`] takes beside its samples: tables of counts, most of all.
    pub const TRAINING: usize = 11 << 20;

    /// Takes a copy of the bytes.
    ///
    /// # Errors
    /// `Corruption` for bytes that begin as a dictionary and are none; `OutOfMemory` as the cause of an `Io` error.
    pub fn new(bytes: &[u8]) -> Result<Dictionary> {
        if let Some(zstd) = zstd_safe::DDict::try_create(bytes) {
            return Ok(Dictionary { zstd });
        }
        drop(zeroed(2 * bytes.len() + ZSTD_TABLES, "a Zstandard dictionary")?);
        Err(Error::corruption("the Zstandard dictionary cannot be loaded"))
    }

    /// Bytes of memory that it holds.
    pub fn memory(&self) -> usize {
        self.zstd.sizeof()
    }

    /// Trains a dictionary of at most `size` bytes for data like `samples`, which lie behind each other and have these
    /// lengths. `None` where they are too few or too unlike each other, or without memory.
    pub fn train(samples: &[u8], lengths: &[usize], size: usize) -> Option<Vec<u8>> {
        let mut bytes = zeroed(size, "a Zstandard dictionary").ok()?;
        let n = zstd_safe::train_from_buffer(&mut bytes[..], samples, lengths).ok()?;
        bytes.truncate(n);
        Some(bytes)
    }
}

fn expand(
    zstd: &mut zstd_safe::DCtx<'static>,
    out: &mut [u8],
    body: &[u8],
    with: Option<&Dictionary>,
) -> std::result::Result<usize, usize> {
    match with {
        None => zstd.decompress(out, body),
        Some(dictionary) => zstd.decompress_using_ddict(out, body, &dictionary.zstd),
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
    /// As [`Decompressor::raw_len`], and `Corruption` when the payload expands to another length; `OutOfMemory` as the cause of an
    /// `Io` error.
    #[inline]
    pub fn room(&mut self, method: Compression, payload: &[u8], with: Option<&Dictionary>) -> Result<usize> {
        let raw = Self::raw_len(payload)?;
        if raw > payload.len() + FREE_RAW && !self.expands(method, &payload[RAW_LEN..], raw, with)? {
            return Err(Error::corruption(format!("a block of {} bytes claims to hold {raw}", payload.len())));
        }
        Ok(raw)
    }

    #[cold]
    fn expands(&mut self, method: Compression, body: &[u8], raw: usize, with: Option<&Dictionary>) -> Result<bool> {
        Ok(match method {
            Compression::None => false,
            Compression::Lz4 | Compression::Lz4Fast => expansion::of_lz4(body) == Some(raw),
            Compression::Snappy => expansion::of_snappy(body) == Some(raw),
            Compression::Zstd => self.zstd_expands(body, raw, with)?,
        })
    }

    fn zstd(&mut self) -> Result<&mut zstd_safe::DCtx<'static>> {
        if self.zstd.is_none() {
            self.zstd = decompression_context();
        }
        self.zstd.as_mut().ok_or_else(no_memory)
    }

    /// Decompresses into more and more room, never more than twice what came out before.
    fn zstd_expands(&mut self, body: &[u8], raw: usize, with: Option<&Dictionary>) -> Result<bool> {
        let zstd = self.zstd()?;
        let mut room = body.len() + FREE_RAW;
        loop {
            let mut out = zeroed(room.min(raw), "a block")?;
            match expand(zstd, &mut out[..], body, with) {
                Err(code) if out.len() < raw && zstd_safe::get_error_name(code) == ZSTD_NO_ROOM => room *= 2,
                result => return Ok(decoded(result)? == Some(raw)),
            }
        }
    }

    /// Decompresses `payload` into `out`, whose length is what [`Decompressor::room`] said; `with`: the dictionary that Zstandard
    /// compressed it with.
    ///
    /// # Errors
    /// `Corruption` when the payload does not decode to exactly that many bytes; `OutOfMemory` as the cause of an `Io` error.
    #[inline]
    pub fn decompress(
        &mut self,
        method: Compression,
        payload: &[u8],
        out: &mut [u8],
        with: Option<&Dictionary>,
    ) -> Result<()> {
        let body = payload.get(RAW_LEN..).unwrap_or_default();
        let timer = perf::begin_stage();
        let n = match method {
            Compression::None => None,
            Compression::Lz4 | Compression::Lz4Fast => lz4::decompress(body, out),
            Compression::Zstd => decoded(expand(self.zstd()?, out, body, with))?,
            Compression::Snappy => match snap::raw::decompress_len(body) {
                Ok(n) if n == out.len() => snap::raw::Decoder::new().decompress(body, out).ok(),
                _ => None,
            },
        };
        timer.end(Stage::DecompressNs);
        if n == Some(out.len()) { Ok(()) } else { Err(does_not_decode(method)) }
    }

    /// The same onto the end of `out`, `len` bytes, which are not cleared first where the method allows that.
    ///
    /// # Errors
    /// As [`Decompressor::decompress`]; `out` is then as it was.
    #[inline]
    pub fn decompress_onto(
        &mut self,
        method: Compression,
        payload: &[u8],
        out: &mut Vec<u8>,
        len: usize,
    ) -> Result<()> {
        let start = out.len();
        let done = match method {
            Compression::Lz4 | Compression::Lz4Fast => {
                reserve(out, len, "a value")?;
                let timer = perf::begin_stage();
                let n = lz4::decompress_onto(payload.get(RAW_LEN..).unwrap_or_default(), out, len);
                timer.end(Stage::DecompressNs);
                if n == Some(len) { Ok(()) } else { Err(does_not_decode(method)) }
            }
            _ => {
                extend_zeroed(out, len, "a value")?;
                self.decompress(method, payload, &mut out[start..], None)
            }
        };
        if done.is_err() {
            out.truncate(start);
        }
        done
    }
}

/// The error of data that do not decode to what was announced.
#[cold]
fn does_not_decode(method: Compression) -> Error {
    Error::corruption(format!("{method} data cannot be decompressed"))
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

/// Whether LZ4 with acceleration is as good for pieces of `raw`.
fn is_quickly_compressed(raw: &[u8]) -> bool {
    let pieces = (raw.len() / TRIAL_STEP).clamp(1, TRIAL_PIECES);
    let mut out = [0; TRIAL_PIECE];
    let (mut with, mut without) = (0, 0);
    for i in 0..pieces {
        // The middles of equal parts.
        let middle = raw.len() / pieces * i + raw.len() / pieces / 2;
        let from = middle.saturating_sub(TRIAL_PIECE / 2);
        let piece = &raw[from..raw.len().min(from + TRIAL_PIECE)];
        let mut size = |acceleration| lz4::compress(piece, &mut out, acceleration).unwrap_or(piece.len());
        without += size(1);
        with += size(QUICK_ACCELERATION);
    }
    is_as_good(with, without)
}

/// Whether compression with an acceleration leaves at most a 128th more bytes than without.
fn is_as_good(with: usize, without: usize) -> bool {
    with <= without + without / 128
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    thread_local! {
        /// Whether contexts are refused, as if there were no memory.
        pub static NO_CONTEXTS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    /// Without memory for a context a block is stored as it is, and reading one is an error that is not about the block.
    #[test]
    fn want_of_memory_is_not_corruption() {
        let raw = vec![7; 3 * FREE_RAW];
        let mut out = vec![0; raw.len()];
        let mut c = Compressor::new(Compression::Zstd);
        NO_CONTEXTS.set(true);
        assert_eq!(c.compress(&raw, &mut out), None);
        NO_CONTEXTS.set(false);
        let n = c.compress(&raw, &mut out).expect("there is memory again");
        let (payload, mut back) = (&out[..n], vec![0; raw.len()]);
        let mut d = Decompressor::default();
        NO_CONTEXTS.set(true);
        for e in [
            d.room(Compression::Zstd, payload, None).expect_err("no context"),
            d.decompress(Compression::Zstd, payload, &mut back, None).expect_err("no context"),
            decoded(Err(0_usize.wrapping_sub(64))).expect_err("Zstandard's own error of that meaning"),
        ] {
            assert_eq!(e.io_kind(), Some(std::io::ErrorKind::OutOfMemory), "{e}");
        }
        NO_CONTEXTS.set(false);
        assert_eq!(d.room(Compression::Zstd, payload, None).unwrap(), raw.len());
        d.decompress(Compression::Zstd, payload, &mut back, None).unwrap();
        assert_eq!(back, raw);
        assert_eq!(decoded(Err(0_usize.wrapping_sub(20))).unwrap(), None, "damage");
    }

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
                    d.decompress(method, &out[..n], &mut back, None).unwrap();
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

    /// Words in any order: LZ4's repetitions are short.
    fn text(len: usize, rng: &mut Rng) -> Vec<u8> {
        const WORDS: [&str; 8] = ["tide ", "ebb ", "of the ", "harbour ", "\"id\":", "2026-11-", "and ", "quay, "];
        let mut out = Vec::new();
        while out.len() < len {
            out.extend_from_slice(WORDS[rng.below(8) as usize].as_bytes());
            out.push(b'a' + rng.below(26) as u8);
        }
        out.truncate(len);
        out
    }

    /// Every 64 bytes consist of 32 that are like noise, and the same again.
    fn doubled(len: usize, rng: &mut Rng) -> Vec<u8> {
        let mut v = vec![0; len];
        for piece in v.chunks_mut(64) {
            let n = piece.len() / 2;
            rng.fill(&mut piece[..n]);
            piece.copy_within(..n, n);
        }
        v
    }

    /// A word that LZ4 finds only if it looks at every byte, between a few bytes of noise.
    fn words_in_noise(len: usize, rng: &mut Rng) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < len {
            out.extend((0..1 + rng.below(7)).map(|_| rng.next_u64() as u8));
            out.extend_from_slice(b"tides");
        }
        out.truncate(len);
        out
    }

    /// LZ4 hurries where that costs nothing, and nowhere else.
    #[test]
    fn values_are_compressed_quickly_where_that_is_as_good() {
        let mut rng = Rng::new(8);
        let compressed = |codec: Codec, raw: &[u8]| {
            let mut out = Vec::new();
            Compressor::new(codec).compress_onto(raw, &mut out);
            out.len()
        };
        for len in [TRIAL_FROM, 65_536, 100_000, 262_144] {
            let (long, short) = (doubled(len, &mut rng), text(len, &mut rng));
            let lz4 = Codec::from(Compression::Lz4);
            let quick = lz4.for_value(&long);
            assert_eq!(quick, Codec { level: QUICK_ACCELERATION, ..lz4 });
            let (with, without) = (compressed(quick, &long), compressed(lz4, &long));
            assert!(without > 0 && with <= without + without / 100, "{len}: {with} instead of {without} bytes");
            assert_eq!(lz4.for_value(&short), lz4);
            assert!(compressed(Codec { level: QUICK_ACCELERATION, ..lz4 }, &short) > compressed(lz4, &short));
            assert_eq!(lz4.for_value(&long[..TRIAL_FROM - 1]), lz4, "too short to be tried");
            for other in [Compression::Zstd, Compression::Lz4Fast, Compression::Snappy, Compression::None] {
                assert_eq!(Codec::from(other).for_value(&long), Codec::from(other));
            }
        }
    }

    /// The same for the blocks of tables, until a trial with one shows that it costs space.
    #[test]
    fn blocks_are_compressed_quickly_where_that_is_as_good() {
        let mut rng = Rng::new(10);
        let mut c = Compressor::new(Compression::Lz4);
        let mut after = |blocks: u32, make: fn(usize, &mut Rng) -> Vec<u8>| {
            (0..blocks).for_each(|_| c.suit_blocks(&make(4096, &mut rng)));
            c.codec().level
        };
        assert_eq!(after(FIRST_TRIAL - 1, doubled), 1, "a small table");
        assert_eq!(after(1, doubled), BLOCK_ACCELERATION);
        assert_eq!(after(BLOCKS_PER_TRIAL - 1, words_in_noise), BLOCK_ACCELERATION, "not tried again yet");
        assert_eq!(after(1, words_in_noise), 1);
        assert_eq!(after(BLOCKS_PER_TRIAL, doubled), BLOCK_ACCELERATION);
        for other in [Compression::Zstd, Compression::Lz4Fast, Compression::Snappy, Compression::None] {
            let mut c = Compressor::new(other);
            (0..FIRST_TRIAL).for_each(|_| c.suit_blocks(&doubled(4096, &mut rng)));
            assert_eq!(c.codec(), Codec::from(other));
        }
    }

    /// What goes onto the end of a vector is what goes into a slice, and a vector that gains nothing is as it was.
    #[test]
    fn vectors_get_what_slices_get() {
        let mut rng = Rng::new(9);
        for method in METHODS {
            for len in [0, 1, 4, 40, 4096, 100_000] {
                let mut raw = half_compressible(len, &mut rng);
                for noise in [false, true] {
                    if noise {
                        rng.fill(&mut raw);
                    }
                    let (mut slice, mut vector) = (vec![0; len], b"before".to_vec());
                    let mut c = Compressor::new(method);
                    let n = c.compress(&raw, &mut slice);
                    assert_eq!(c.compress_onto(&raw, &mut vector), n, "{method} {len}");
                    assert!(vector[..6] == *b"before" && vector[6..] == slice[..n.unwrap_or(0)], "{method} {len}");
                    let Some(n) = n else { continue };
                    let (mut d, mut back) = (Decompressor::default(), b"before".to_vec());
                    d.decompress_onto(method, &slice[..n], &mut back, len).unwrap();
                    assert!(back[..6] == *b"before" && back[6..] == raw, "{method} {len}");
                    for (payload, len) in
                        [(&slice[..n / 2], len), (&slice[..n], len + 1), (&slice[..n], len - 1), (&[], len)]
                    {
                        let e = d.decompress_onto(method, payload, &mut back, len).unwrap_err();
                        assert!(
                            e.kind() == kingtide_base::ErrorKind::Corruption && back.len() == 6 + raw.len(),
                            "{method}"
                        );
                    }
                }
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
                assert_eq!(d.room(method, &out, None).unwrap(), len, "{method}");
                for claim in [len + 1, 15 << 20, FREE_RAW + n + 1, len - 1] {
                    let mut forged = out.clone();
                    forged[..4].copy_from_slice(&(claim as u32).to_le_bytes());
                    let believed = d.room(method, &forged, None);
                    assert!(believed.is_err() || claim <= n + FREE_RAW, "{method}: {claim} for {len}");
                }
                for cut in [RAW_LEN, n / 2, n - 1] {
                    let cut = d.room(method, &out[..cut], None);
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
                assert!(d.decompress(method, &out[..cut], &mut back, None).is_err(), "{method} {cut}");
            }
            for _ in 0..2000 {
                let mut bad = out[..n].to_vec();
                bad[rng.below(n as u64) as usize] ^= 1 << rng.below(8);
                if let Ok(len) = Decompressor::raw_len(&bad) {
                    let mut back = vec![0; len];
                    let _ = d.decompress(method, &bad, &mut back, None);
                }
            }
        }
        assert!(Decompressor::raw_len(&[0xff; 9]).is_err());
        assert!(Decompressor::raw_len(&[1, 2]).is_err());
    }
}
