//! Inputs as edits of a file.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | flags: [`RAW`] and so on |
//! | 1 | which file of its kind, modulo their number |
//! | rest | the file itself if [`RAW`], otherwise edits |
//!
//! An edit: kind u8 (its high bit: the place counts from the end), place u16, then by kind
//!
//! | kind, low 3 bits | operands | what it does |
//! |---|---|---|
//! | 0, 1, 2 | n - 1 u8, n bytes | overwrites |
//! | 3 | n - 1 u8, n bytes | inserts |
//! | 4 | n - 1 u8 | removes |
//! | 5 | | cuts the file there |
//! | 6 | u8: form (low 2 bits) and number (the rest) | writes one of [`NUMBERS`] as u32, u64 or varint, or replaces a varint |
//! | 7 | from u16, n - 1 u8 | copies bytes of the file over the place |

use kingtide_base::coding::{Reader, put_varint};

/// The rest is the file.
pub const RAW: u8 = 1;
/// All checksums are made right.
pub const FORGE: u8 = 2;
/// Of a database that was killed, not closed: the last commits are in the log only.
pub const KILLED: u8 = 4;
/// The footer of a table is made to fit the file's length.
pub const FIT: u8 = 8;
/// Merge everything after it was read.
pub const COMPACT: u8 = 16;
/// Repair it.
pub const REPAIR: u8 = 32;
/// Verify it.
pub const VERIFY: u8 = 64;
/// Open it for reading only, too.
pub const READ_ONLY: u8 = 128;

/// Numbers at which lengths, counts and offsets go wrong.
pub const NUMBERS: [u64; 24] = [
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    512,
    4096,
    65_535,
    65_536,
    (1 << 20) + 1,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 40,
    1 << 56,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

/// What may be believed of an edited file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// A checksum covers the damage: every answer is right, or an error.
    Damaged,
    /// It may say anything.
    Forged,
}

/// An input's head, and what follows it.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// [`RAW`] and so on.
    pub flags: u8,
    /// Which file, modulo their number.
    pub file: usize,
    /// Edits, or the file.
    pub rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// `None` if there is no head.
    pub fn parse(data: &'a [u8]) -> Option<Input<'a>> {
        let (&[flags, file], rest) = data.split_first_chunk::<2>()?;
        Some(Input { flags, file: file as usize, rest })
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The hostile file that it makes of a good one. `forge` makes checksums right.
    pub fn apply(&self, good: &[u8], forge: impl FnOnce(&mut Vec<u8>)) -> (Vec<u8>, Trust) {
        if self.has(RAW) {
            let mut bytes = self.rest.to_vec();
            if self.has(FORGE) {
                forge(&mut bytes);
            }
            // Its checksums may be right by themselves: a fuzzer sees what they are compared with.
            return (bytes, Trust::Forged);
        }
        let mut bytes = good.to_vec();
        let mut r = Reader::new(self.rest);
        if !self.has(FORGE) {
            // One small edit, which a checksum finds for certain; more could be made to fit.
            edit(&mut bytes, &mut r, 4);
            return (bytes, Trust::Damaged);
        }
        while edit(&mut bytes, &mut r, 256).is_some() {}
        forge(&mut bytes);
        (bytes, Trust::Forged)
    }
}

/// Applies the next edit, of at most `most` bytes. `None` at the end of the input.
fn edit(bytes: &mut Vec<u8>, r: &mut Reader<'_>, most: usize) -> Option<()> {
    let (kind, place) = (r.u8()?, r.u16()? as usize);
    let at = if kind & 0x80 != 0 { bytes.len().saturating_sub(place) } else { place.min(bytes.len()) };
    match kind & 7 {
        0..=2 => overwrite(bytes, at, operand(r, most)?),
        3 => {
            let new = operand(r, most)?;
            bytes.splice(at..at, new.iter().copied());
        }
        4 => {
            let n = r.u8()? as usize + 1;
            bytes.drain(at..(at + n).min(bytes.len()));
        }
        5 => bytes.truncate(at),
        6 => number(bytes, at, r.u8()?),
        _ => {
            let (from, n) = ((r.u16()? as usize).min(bytes.len()), r.u8()? as usize + 1);
            let copied = bytes[from..(from + n).min(bytes.len())].to_vec();
            overwrite(bytes, at, &copied);
        }
    }
    Some(())
}

fn operand<'a>(r: &mut Reader<'a>, most: usize) -> Option<&'a [u8]> {
    let n = r.u8()? as usize + 1;
    let taken = r.bytes(n.min(r.rest().len()))?;
    Some(&taken[..taken.len().min(most)])
}

fn overwrite(bytes: &mut [u8], at: usize, new: &[u8]) {
    let n = new.len().min(bytes.len() - at);
    bytes[at..at + n].copy_from_slice(&new[..n]);
}

fn number(bytes: &mut Vec<u8>, at: usize, which: u8) {
    write_number(bytes, at, which & 3, NUMBERS[(which >> 2) as usize % NUMBERS.len()]);
}

/// Writes a number at a place within the file: as u32, as u64, as a varint over what is there, or as a varint instead of
/// the one that is there.
pub fn write_number(bytes: &mut Vec<u8>, at: usize, form: u8, number: u64) {
    let mut varint = Vec::new();
    put_varint(&mut varint, number);
    match form {
        0 => overwrite(bytes, at, &(number as u32).to_le_bytes()),
        1 => overwrite(bytes, at, &number.to_le_bytes()),
        2 => overwrite(bytes, at, &varint),
        _ => {
            let mut r = Reader::new(&bytes[at..]);
            let old = if r.varint().is_some() { bytes.len() - at - r.rest().len() } else { 0 };
            bytes.splice(at..at + old, varint);
        }
    }
}

/// The input that writes number `n` of [`NUMBERS`] in one of the four forms at `place`, checksums made right.
pub fn number_at(flags: u8, file: u8, place: u16, form: u8, n: usize) -> Vec<u8> {
    let [lo, hi] = place.to_le_bytes();
    vec![flags | FORGE, file, 6, lo, hi, (n as u8) << 2 | form]
}
