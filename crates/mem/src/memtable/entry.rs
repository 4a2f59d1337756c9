//! Entries as they lie in the arena. An entry is written once, before its offset is published, and never changes.
//!
//! ```text
//! tag        8 bytes
//! lengths    4 bytes: key length (11 bits) | value length (20 bits) << 11; or the top bit alone, and then
//!            4 bytes of key length and 4 bytes of value length
//! key, value
//! ```
//!
//! All integers are native; an entry begins at a multiple of 8. The short form spends 12 bytes on what two varints
//! would spend 10 to 14 on, and is decoded by one predictable branch.

use std::ptr::NonNull;

use kingtide_base::Tag;

const KEY_BITS: u32 = 11;
const VALUE_BITS: u32 = 20;
const LONG: u32 = 1 << 31;
const SHORT_HEADER: usize = 12;
const LONG_HEADER: usize = 20;

/// A decoded entry.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) tag: Tag,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

fn is_short(key_len: usize, value_len: usize) -> bool {
    key_len < 1 << KEY_BITS && value_len < 1 << VALUE_BITS
}

/// Bytes that an entry takes.
///
/// # Panics
/// If a length does not fit into 32 bits.
#[inline]
pub(crate) fn encoded_len(key: &[u8], value: &[u8]) -> usize {
    if is_short(key.len(), value.len()) {
        return SHORT_HEADER + key.len() + value.len();
    }
    let too_long = key.len().max(value.len()) > u32::MAX as usize;
    assert!(!too_long, "a key or value of 4 GiB or more cannot be in a memtable");
    LONG_HEADER + key.len() + value.len()
}

/// Writes an entry.
///
/// # Safety
/// `at` is aligned to 8 and valid for writes of [`encoded_len`] bytes that nobody else accesses.
#[inline]
pub(crate) unsafe fn write(at: NonNull<u8>, key: &[u8], tag: Tag, value: &[u8]) {
    let at = at.as_ptr();
    // SAFETY: all within encoded_len bytes from `at`, by the contract; 8 and 12 are multiples of 4.
    unsafe {
        at.cast::<u64>().write(tag.0);
        let lengths = at.add(8).cast::<u32>();
        let header = if is_short(key.len(), value.len()) {
            lengths.write(key.len() as u32 | (value.len() as u32) << KEY_BITS);
            SHORT_HEADER
        } else {
            lengths.write(LONG);
            lengths.add(1).write(key.len() as u32);
            lengths.add(2).write(value.len() as u32);
            LONG_HEADER
        };
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
            ((word & ((1 << KEY_BITS) - 1)) as usize, (word >> KEY_BITS) as usize, SHORT_HEADER)
        } else {
            (lengths.add(1).read() as usize, lengths.add(2).read() as usize, LONG_HEADER)
        };
        let key = at.add(header);
        Entry {
            tag,
            key: std::slice::from_raw_parts(key, key_len),
            value: std::slice::from_raw_parts(key.add(key_len), value_len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_forms_round_trip() {
        let bytes = vec![7u8; 1 << 20];
        for (k, v) in [(0, 0), (1, 0), (2047, (1 << 20) - 1), (2048, 0), (0, 1 << 20), (3000, 5)] {
            let (key, value) = (&bytes[..k], &bytes[..v]);
            let mut room = vec![0u64; encoded_len(key, value).div_ceil(8)];
            let at = NonNull::new(room.as_mut_ptr().cast::<u8>()).unwrap();
            // SAFETY: `room` is aligned to 8 and long enough.
            let e = unsafe {
                write(at, key, Tag(9), value);
                read(at)
            };
            assert!(e.tag == Tag(9) && e.key == key && e.value == value, "{k} {v}");
        }
    }
}
