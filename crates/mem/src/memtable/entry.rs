//! Entries as they lie in the arena. An entry is written once, before its offset is published, and never changes.
//!
//! ```text
//! tag        8 bytes
//! lengths    4 bytes: key length (11 bits) | value length (19 bits) << 11 | whether there are links << 30; or the top bit
//!            and that of the links alone, and then 4 bytes of key length and 4 bytes of value length
//! links      12 bytes, only of an entry with an older version in the memtable:
//!            offset of the next older version, offset of a much older one, number of older versions
//! key, value
//! ```
//!
//! All integers are native; an entry begins at a multiple of 8. The short form spends 12 bytes on what two varints
//! would spend 10 to 14 on, and is decoded by one predictable branch.
//!
//! # Versions
//!
//! The versions of a key are a list from the newest to the oldest, of which the tree names the newest. The second link
//! skips: an entry with `d` older versions is at depth `d`, and the skips lead to depths that make a skew-binary number
//! smaller (Myers, "An applicative random-access stack", Information Processing Letters 17, 1983), so that any version is
//! reached in O(log n) steps and an entry is written without a change to those before it.

use std::ptr::NonNull;

use kingtide_base::Tag;

const KEY_BITS: u32 = 11;
const VALUE_BITS: u32 = 19;
const LINKED: u32 = 1 << 30;
const LONG: u32 = 1 << 31;
const SHORT_HEADER: usize = 12;
const LONG_HEADER: usize = 20;
const LINKS: usize = 12;

/// A decoded entry.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) tag: Tag,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// Where the older versions of an entry's key are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Links {
    /// Offset of the next older version.
    pub(crate) older: u32,
    /// Offset of that or a still older version.
    pub(crate) skip: u32,
    /// How many older versions there are.
    pub(crate) depth: u32,
}

fn is_short(key_len: usize, value_len: usize) -> bool {
    key_len < 1 << KEY_BITS && value_len < 1 << VALUE_BITS
}

/// Bytes that an entry takes.
///
/// # Panics
/// If a length does not fit into 32 bits.
#[inline]
pub(crate) fn encoded_len(key: &[u8], value: &[u8], linked: bool) -> usize {
    let links = if linked { LINKS } else { 0 };
    if is_short(key.len(), value.len()) {
        return SHORT_HEADER + links + key.len() + value.len();
    }
    let too_long = key.len().max(value.len()) > u32::MAX as usize;
    assert!(!too_long, "a key or value of 4 GiB or more cannot be in a memtable");
    LONG_HEADER + links + key.len() + value.len()
}

/// Writes an entry.
///
/// # Safety
/// `at` is aligned to 8 and valid for writes of [`encoded_len`] bytes that no other code accesses.
#[inline]
pub(crate) unsafe fn write(at: NonNull<u8>, entry: Entry<'_>, links: Option<Links>) {
    let at = at.as_ptr();
    let Entry { tag, key, value } = entry;
    // SAFETY: all within encoded_len bytes from `at`, by the contract; 8, 12, 20 and 24 are multiples of 4.
    unsafe {
        at.cast::<u64>().write(tag.0);
        let lengths = at.add(8).cast::<u32>();
        let linked = if links.is_some() { LINKED } else { 0 };
        let mut header = if is_short(key.len(), value.len()) {
            lengths.write(key.len() as u32 | (value.len() as u32) << KEY_BITS | linked);
            SHORT_HEADER
        } else {
            lengths.write(LONG | linked);
            lengths.add(1).write(key.len() as u32);
            lengths.add(2).write(value.len() as u32);
            LONG_HEADER
        };
        if let Some(links) = links {
            let to = at.add(header).cast::<u32>();
            to.write(links.older);
            to.add(1).write(links.skip);
            to.add(2).write(links.depth);
            header += LINKS;
        }
        let body = at.add(header);
        body.copy_from_nonoverlapping(key.as_ptr(), key.len());
        body.add(key.len()).copy_from_nonoverlapping(value.as_ptr(), value.len());
    }
}

/// Reads an entry.
///
/// # Safety
/// `at` is where [`write()`] wrote an entry that lives for `'a`, and the writing happened before.
#[inline(always)]
pub(crate) unsafe fn read<'a>(at: NonNull<u8>) -> Entry<'a> {
    let at = at.as_ptr();
    // SAFETY: what is read is what `write` wrote, by the contract.
    unsafe {
        let tag = Tag(at.cast::<u64>().read());
        let lengths = at.add(8).cast::<u32>();
        let word = lengths.read();
        let (key_len, value_len, header) = if word & LONG == 0 {
            let key_len = word & ((1 << KEY_BITS) - 1);
            let value_len = (word >> KEY_BITS) & ((1 << VALUE_BITS) - 1);
            (key_len as usize, value_len as usize, SHORT_HEADER)
        } else {
            (lengths.add(1).read() as usize, lengths.add(2).read() as usize, LONG_HEADER)
        };
        let links = if word & LINKED == 0 { 0 } else { LINKS };
        let key = at.add(header + links);
        Entry {
            tag,
            key: std::slice::from_raw_parts(key, key_len),
            value: std::slice::from_raw_parts(key.add(key_len), value_len),
        }
    }
}

/// Reads an entry's tag.
///
/// # Safety
/// As [`read`].
#[inline(always)]
pub(crate) unsafe fn tag(at: NonNull<u8>) -> Tag {
    // SAFETY: what is read is what `write` wrote, by the contract.
    Tag(unsafe { at.as_ptr().cast::<u64>().read() })
}

/// Reads an entry's links; `None` if it is the oldest of its key.
///
/// # Safety
/// As [`read`].
#[inline(always)]
pub(crate) unsafe fn links(at: NonNull<u8>) -> Option<Links> {
    let at = at.as_ptr();
    // SAFETY: what is read is what `write` wrote, by the contract.
    unsafe {
        let word = at.add(8).cast::<u32>().read();
        if word & LINKED == 0 {
            return None;
        }
        let from = at.add(if word & LONG == 0 { SHORT_HEADER } else { LONG_HEADER }).cast::<u32>();
        Some(Links { older: from.read(), skip: from.add(1).read(), depth: from.add(2).read() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_forms_round_trip() {
        let bytes = vec![7u8; 1 << 19];
        for (k, v) in [(0, 0), (1, 0), (2047, (1 << 19) - 1), (2048, 0), (0, 1 << 19), (3000, 5)] {
            for linked in [None, Some(Links { older: 9, skip: u32::MAX, depth: 7 })] {
                let (key, value) = (&bytes[..k], &bytes[..v]);
                let len = encoded_len(key, value, linked.is_some());
                let mut room = vec![0u64; len.div_ceil(8)];
                let at = NonNull::new(room.as_mut_ptr().cast::<u8>()).unwrap();
                // SAFETY: `room` is aligned to 8 and long enough.
                let (e, t, l) = unsafe {
                    write(at, Entry { tag: Tag(9), key, value }, linked);
                    (read(at), tag(at), links(at))
                };
                assert!(e.tag == Tag(9) && t == e.tag && e.key == key && e.value == value && l == linked, "{k} {v}");
            }
        }
    }
}
