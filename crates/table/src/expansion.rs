//! To how many bytes compressed ones expand, found out without making room for them: by walking over the commands of the
//! format and adding up what they would write. `None` for bytes that end amid a command.

/// Of an LZ4 block: sequences of a token, literals, and a match of at least 4 bytes; the last has no match.
pub fn of_lz4(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    let mut total = 0usize;
    loop {
        let (token, after) = rest.split_first()?;
        let (literals, after) = lz4_length(token >> 4, after)?;
        total = total.checked_add(literals)?;
        rest = after.get(literals..)?;
        if rest.is_empty() {
            return Some(total);
        }
        let (more, after) = lz4_length(token & 15, rest.get(2..)?)?;
        total = total.checked_add(more)?.checked_add(4)?;
        rest = after;
    }
}

/// A length of 15 goes on in bytes that are added up to the first below 255.
pub fn lz4_length(short: u8, mut rest: &[u8]) -> Option<(usize, &[u8])> {
    let mut length = short as usize;
    if short == 15 {
        loop {
            let (more, after) = rest.split_first()?;
            (length, rest) = (length.checked_add(*more as usize)?, after);
            if *more < 255 {
                break;
            }
        }
    }
    Some((length, rest))
}

/// Of raw Snappy: the length as a varint, which is not believed, then literals and copies.
pub fn of_snappy(bytes: &[u8]) -> Option<usize> {
    let mut rest = &bytes[bytes.iter().position(|b| *b < 128)? + 1..];
    let mut total = 0usize;
    while let Some((tag, after)) = rest.split_first() {
        let long = (tag >> 2) as usize;
        let (written, passed) = match tag & 3 {
            0 if long < 60 => (long + 1, long + 1),
            0 => {
                let (digits, _) = after.split_at_checked(long - 59)?;
                let n = digits.iter().rev().fold(0usize, |n, b| n << 8 | *b as usize) + 1;
                (n, long - 59 + n)
            }
            1 => (4 + (long & 7), 1),
            2 => (long + 1, 2),
            _ => (long + 1, 4),
        };
        total = total.checked_add(written)?;
        rest = after.get(passed..)?;
    }
    Some(total)
}
