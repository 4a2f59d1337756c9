//! A decoder of LZ4 blocks for data whose sequences are long: it copies 32 bytes of literals and of a match without a loop. For sequences of
//! 64 bytes it takes half the time of the C library on an Intel Xeon (Cascade Lake); for others up to 2.3 times as long, so those are left to the
//! library: see [`has_long_sequences`]. Written with checked indices alone, it took 1.5 times as long.

#![allow(unsafe_code)]

use crate::expansion::lz4_length;
use std::mem::MaybeUninit;

/// The block is judged by so many sequences at its beginning.
const SAMPLE: usize = 32;
/// The mean number of bytes that a sequence must expand to.
const LONG: usize = 40;
/// A sequence counts as no more than so many, lest a few decide.
const MOST: usize = 128;

/// Bytes that are copied at a time. A match that lies closer may overlap what is written.
const PIECE: usize = 16;
/// Literals, and bytes of a match, that are copied without a loop.
const QUICK: usize = 2 * PIECE;
/// Input of the longest quick sequence: a token, a length, literals, an offset, a length.
const INPUT: usize = 1 + 1 + QUICK + 2 + 1;
/// What is written for it, literals and a match.
const ROOM: usize = 2 * QUICK;

/// Whether [`decode`] is faster than the library, to judge by the beginning of a block: its sequences are of the kind that is copied quickly,
/// and long enough on average.
pub fn has_long_sequences(src: &[u8]) -> bool {
    let sequence = |rest| -> Option<(usize, bool, &[u8])> {
        let (token, rest) = <[u8]>::split_first(rest)?;
        let (literals, rest) = lz4_length(token >> 4, rest)?;
        let (offset, rest) = rest.get(literals..)?.split_first_chunk::<2>()?;
        let (more, rest) = lz4_length(token & 15, rest)?;
        let offset = usize::from(u16::from_le_bytes(*offset));
        let is_quick = literals <= QUICK && offset >= PIECE && more < 15 + 255;
        Some((literals.checked_add(more)?.checked_add(4)?, is_quick, rest))
    };
    let (mut rest, mut expanded, mut others) = (src, 0usize, 0);
    for _ in 0..SAMPLE {
        let Some((bytes, is_quick, after)) = sequence(rest) else { return false };
        (rest, expanded) = (after, expanded.saturating_add(bytes.min(MOST)));
        others += usize::from(!is_quick);
    }
    expanded >= SAMPLE * LONG && others <= SAMPLE / 8
}

/// Decodes a block. Returns how many bytes were written, all of the first ones of `dst`; `None` when the block is damaged or does not fit.
/// Bytes behind them may be written too.
pub fn decode(src: &[u8], dst: &mut [MaybeUninit<u8>]) -> Option<usize> {
    let mut at = Position { input: 0, output: 0 };
    loop {
        at = quick_sequences(src, dst, at)?;
        let (next, is_last) = sequence(src, dst, at)?;
        if is_last {
            return Some(next.output);
        }
        at = next;
    }
}

/// Where a sequence begins. All of the output before it is written.
#[derive(Clone, Copy)]
struct Position {
    input: usize,
    output: usize,
}

/// Copies 16 bytes.
///
/// # Safety
/// They can be read and written, and do not overlap.
#[inline(always)]
unsafe fn copy_piece(from: *const u8, to: *mut u8) {
    // SAFETY: by the contract.
    unsafe { std::ptr::copy_nonoverlapping(from, to, PIECE) }
}

/// Decodes sequences up to the first one that is near the end of input or room, or is none of the usual ones.
///
/// The input is read through a pointer, because bounds checks would let the compiler compute lengths without branches: each sequence would
/// then wait for the bytes of the one before it, which the processor predicts otherwise.
fn quick_sequences(src: &[u8], dst: &mut [MaybeUninit<u8>], from: Position) -> Option<Position> {
    if src.len().checked_sub(from.input)? < INPUT || dst.len().checked_sub(from.output)? < ROOM {
        return Some(from);
    }
    let (input, output) = (src.as_ptr(), dst.as_mut_ptr().cast::<u8>());
    // SAFETY: both are as long as that, by the check above.
    let (last_input, last_output) = unsafe { (input.add(src.len() - INPUT), output.add(dst.len() - ROOM)) };
    // SAFETY: within both, by the same check.
    let (mut begin, mut done) = unsafe { (input.add(from.input), output.add(from.output)) };
    while begin <= last_input && done <= last_output {
        // SAFETY: a sequence begins at `last_input` at the latest, and reads `INPUT` bytes at most: a token, a length, literals of which
        // there are `QUICK` at most, an offset and a length. As many literals are copied as there is room, in a different slice.
        let (token, mut i, literals) = unsafe {
            let token = usize::from(*begin);
            if token >> 4 < 15 {
                copy_piece(begin.add(1), done);
                (token, begin.add(1), token >> 4)
            } else {
                let literals = 15 + usize::from(*begin.add(1));
                if literals > QUICK {
                    break;
                }
                copy_piece(begin.add(2), done);
                copy_piece(begin.add(2 + PIECE), done.add(PIECE));
                (token, begin.add(2), literals)
            }
        };
        // SAFETY: as above; `QUICK` bytes of room are left at `to`.
        let (offset, to) = unsafe {
            i = i.add(literals);
            (usize::from(*i) | usize::from(*i.add(1)) << 8, done.add(literals))
        };
        let mut len = (token & 15) + 4;
        // SAFETY: as above.
        i = unsafe { i.add(2) };
        if len == 19 {
            // SAFETY: as above.
            unsafe {
                len += usize::from(*i);
                i = i.add(1);
            }
        }
        let written = to as usize - output as usize;
        if offset == 0 || offset > written {
            return None;
        }
        if offset < PIECE || (len > QUICK && !is_usual(len, dst.len() - written)) {
            break;
        }
        // SAFETY: the match begins within `dst`, since `offset <= written`, and ends where its copy begins or before piece by piece, since
        // `offset >= PIECE`. There is room for `QUICK` bytes, or for what `copy_long` needs, by `is_usual`.
        done = unsafe {
            let from = to.sub(offset).cast_const();
            if len <= QUICK {
                copy_piece(from, to);
                copy_piece(from.add(PIECE), to.add(PIECE));
            } else {
                copy_long(from, to, len);
            }
            to.add(len)
        };
        begin = i;
    }
    Some(Position { input: begin as usize - input as usize, output: done as usize - output as usize })
}

/// Copies `len` bytes piece by piece, and up to [`QUICK`] more.
///
/// # Safety
/// As many can be written at `to`. `from` lies [`PIECE`] bytes or more before it in the same memory, in which all from there to `to` is written.
#[inline(never)]
unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) {
    let mut copied = 0;
    while copied < len {
        // SAFETY: by the contract. What a piece has lies below `to`, or was copied in an earlier step.
        unsafe {
            copy_piece(from.add(copied), to.add(copied));
            copy_piece(from.add(copied + PIECE), to.add(copied + PIECE));
        }
        copied += QUICK;
    }
}

/// Whether a longer match has no third byte of length, and fits into `room` when rounded up.
#[inline(always)]
fn is_usual(len: usize, room: usize) -> bool {
    len < 19 + 255 && len + QUICK <= room
}

/// Decodes any sequence; says whether it was the block's last, which has no match.
fn sequence(src: &[u8], dst: &mut [MaybeUninit<u8>], at: Position) -> Option<(Position, bool)> {
    let (token, rest) = src.get(at.input..)?.split_first()?;
    let (literals, rest) = lz4_length(token >> 4, rest)?;
    let (bytes, rest) = rest.split_at_checked(literals)?;
    let o = at.output.checked_add(literals)?;
    dst.get_mut(at.output..o)?.write_copy_of_slice(bytes);
    if rest.is_empty() {
        return Some((Position { input: src.len(), output: o }, true));
    }
    let (offset, rest) = rest.split_first_chunk::<2>()?;
    let (len, rest) = lz4_length(token & 15, rest)?;
    let end = repeat(dst, o, usize::from(u16::from_le_bytes(*offset)), len.checked_add(4)?)?;
    Some((Position { input: src.len() - rest.len(), output: end }, false))
}

/// Copies a match of `len` bytes to `o`, from `offset` bytes before it. Returns where it ends.
fn repeat(dst: &mut [MaybeUninit<u8>], o: usize, offset: usize, len: usize) -> Option<usize> {
    let from = o.checked_sub(offset).filter(|from| *from < o)?;
    let end = o.checked_add(len).filter(|end| *end <= dst.len())?;
    if offset == 1 {
        let byte = dst[from];
        dst[o..end].fill(byte);
        return Some(end);
    }
    // What lies from `from` on repeats itself, so twice as much can be copied each time.
    let mut at = o;
    while at < end {
        let n = (at - from).min(end - at);
        dst.copy_within(from..from + n, at);
        at += n;
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    /// Bytes around the room of a decoder, which it must leave alone.
    const FENCE: usize = 64;

    /// The format byte by byte.
    fn plainly(src: &[u8], room: usize) -> Option<Vec<u8>> {
        let (mut out, mut rest) = (Vec::new(), src);
        loop {
            let (token, after) = rest.split_first()?;
            let (literals, after) = lz4_length(token >> 4, after)?;
            let (bytes, after) = after.split_at_checked(literals)?;
            out.extend_from_slice(bytes);
            if out.len() > room {
                return None;
            }
            if after.is_empty() {
                return Some(out);
            }
            let (offset, after) = after.split_first_chunk::<2>()?;
            let (len, after) = lz4_length(token & 15, after)?;
            let from = out.len().checked_sub(usize::from(u16::from_le_bytes(*offset)))?;
            if from == out.len() || len + 4 > room - out.len() {
                return None;
            }
            (from..from + len + 4).for_each(|i| out.push(out[i]));
            rest = after;
        }
    }

    /// Decodes into exactly `room` bytes, in the middle of others.
    fn decoded(src: &[u8], room: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![MaybeUninit::new(0xa5); room + 2 * FENCE];
        let src = src.to_vec().into_boxed_slice(); // nothing is behind its end
        let n = decode(&src, &mut bytes[FENCE..FENCE + room]);
        // SAFETY: all of them have values from the beginning, or ones that were copied from those or from the input.
        let bytes: Vec<u8> = bytes.iter().map(|b| unsafe { b.assume_init() }).collect();
        let (before, after) = (&bytes[..FENCE], &bytes[FENCE + room..]);
        assert!(before.iter().chain(after).all(|b| *b == 0xa5), "it writes elsewhere");
        n.map(|n| bytes[FENCE..FENCE + n].to_vec())
    }

    fn push_length(out: &mut Vec<u8>, mut len: usize) {
        if len < 15 {
            return;
        }
        len -= 15;
        while len >= 255 {
            out.push(255);
            len -= 255;
        }
        out.push(len as u8);
    }

    /// A length near one of those at which the decoder does something else.
    fn length_near(rng: &mut Rng, bounds: &[usize]) -> usize {
        let bound = bounds[rng.below(bounds.len() as u64) as usize];
        (bound + rng.below(5) as usize).saturating_sub(2)
    }

    /// A block of some sequences, and how many bytes it expands to.
    fn block(rng: &mut Rng, sequences: u64) -> (Vec<u8>, usize) {
        let (mut out, mut len) = (Vec::new(), 0);
        for i in 0..=sequences {
            let literals = match i {
                0 => 1 + rng.below(70) as usize,
                _ => length_near(rng, &[0, 3, 14, 15, 32, 33, 48, 270, 525]),
            };
            let long = length_near(rng, &[4, 18, 19, 32, 33, 64, 273, 274, 529]).max(4);
            let token_at = out.len();
            out.push((literals.min(15) << 4) as u8);
            push_length(&mut out, literals);
            (0..literals).for_each(|_| out.push(rng.next_u64() as u8));
            len += literals;
            if i == sequences {
                break;
            }
            let offset = length_near(rng, &[1, 4, 8, 16, 17, 32, 64, len, 60_000]).clamp(1, len.min(65_535));
            out[token_at] |= (long - 4).min(15) as u8;
            out.extend_from_slice(&(offset as u16).to_le_bytes());
            push_length(&mut out, long - 4);
            len += long;
        }
        (out, len)
    }

    #[test]
    fn blocks_of_all_kinds_of_sequences_are_decoded() {
        let mut rng = Rng::new(21);
        for i in 0..if cfg!(miri) { 60 } else { 20_000 } {
            let sequences = rng.below(if i % 4 == 0 { 40 } else { 5 });
            let (src, len) = block(&mut rng, sequences);
            let want = plainly(&src, len).expect("a sound block");
            assert_eq!(want.len(), len);
            for room in [len, len + 1, len + 40, len + 200] {
                assert!(decoded(&src, room).as_deref() == Some(&want[..]), "block {i}, {room} bytes for {len}");
            }
            for room in [0, len / 2, len - 1] {
                assert!(decoded(&src, room).is_none(), "block {i}, {room} bytes for {len}");
            }
        }
    }

    /// Damage is found, or decodes to what the format says, and nothing outside of the room is touched.
    #[test]
    fn damaged_blocks_are_decoded_by_the_book_or_not_at_all() {
        let mut rng = Rng::new(22);
        for i in 0..if cfg!(miri) { 60 } else { 40_000 } {
            let sequences = rng.below(30);
            let (mut src, len) = block(&mut rng, sequences);
            for _ in 0..=rng.below(3) {
                let at = rng.below(src.len() as u64) as usize;
                match rng.below(3) {
                    0 => src[at] = rng.next_u64() as u8,
                    1 => src[at] = [0, 0xf0, 0x0f, 0xff][rng.below(4) as usize],
                    _ => src.truncate(at.max(1)),
                }
            }
            for room in [len, len + 100, len / 2] {
                assert!(decoded(&src, room) == plainly(&src, room), "block {i}, {room} bytes");
            }
        }
        assert_eq!(decoded(&[], 100), None);
        assert_eq!(decoded(&[0], 0), Some(Vec::new()));
    }

    /// Every `unit` bytes are `noise` random ones again and again.
    fn repetitive(len: usize, unit: usize, noise: usize, rng: &mut Rng) -> Vec<u8> {
        let mut v = vec![0; len];
        for piece in v.chunks_mut(unit) {
            let noise = noise.min(piece.len());
            rng.fill(&mut piece[..noise]);
            (noise..piece.len()).for_each(|i| piece[i] = piece[i - noise]);
        }
        v
    }

    /// Blocks that the library compressed are decoded correctly, and those with long sequences are recognised.
    #[cfg(not(miri))] // it cannot call C
    #[test]
    fn the_librarys_blocks_are_decoded_and_judged() {
        let mut rng = Rng::new(23);
        let words: Vec<u8> =
            (0..40_000u32).flat_map(|i| format!("{} ebb {}; ", i % 977, i * i % 61).into_bytes()).collect();
        let cases = [
            (true, repetitive(262_144, 64, 32, &mut rng)),
            (true, repetitive(100_001, 96, 24, &mut rng)),
            (true, repetitive(16_384, 48, 16, &mut rng)),
            (false, repetitive(262_144, 300, 3, &mut rng)),
            (false, repetitive(262_144, 4_000, 2_000, &mut rng)),
            (false, repetitive(262_144, 24, 12, &mut rng)),
            (false, vec![0; 100_000]),
            (false, words),
        ];
        for (i, (is_long, raw)) in cases.iter().enumerate() {
            for acceleration in [1, 4] {
                let mut src = vec![0; raw.len() + 1024];
                let n = crate::lz4::compress(raw, &mut src, acceleration).expect("there is room");
                assert_eq!(has_long_sequences(&src[..n]), *is_long, "case {i}, acceleration {acceleration}");
                assert!(decoded(&src[..n], raw.len()).as_deref() == Some(&raw[..]), "case {i}");
                assert!(decoded(&src[..n - 1], raw.len()) == plainly(&src[..n - 1], raw.len()), "case {i}");
            }
        }
        assert!(!has_long_sequences(&[]) && !has_long_sequences(&[0xff; 1000]));
    }
}
