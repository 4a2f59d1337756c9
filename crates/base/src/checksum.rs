//! Checksums. Blocks are bound to the file and offset they were written for, so that a block that a disk or a copy put
//! in the wrong place fails like a damaged one.

use crc_fast::{CrcAlgorithm, Digest};

/// crc32c (Castagnoli) of `bytes`.
#[inline]
pub fn crc(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Continues a crc over more bytes.
#[inline]
pub fn crc_append(crc: u32, bytes: &[u8]) -> u32 {
    // The register holds the complement of the checksum.
    let mut d = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    d.update(bytes);
    d.finalize() as u32
}

/// The crc of the last `len` bytes of a sequence, computed from the crc of the whole sequence and that of the part before them. Takes about a
/// microsecond, whatever the length.
///
/// The crc of a sequence is that of its beginning, multiplied by x for each bit that follows, plus that of what follows: Peterson and Brown,
/// "Cyclic Codes for Error Detection", Proceedings of the IRE, 1961.
pub fn crc_of_rest(whole: u32, before: u32, len: u64) -> u32 {
    let (mut shifted, mut power, mut left) = (before, BYTE, len);
    while left > 0 {
        if left & 1 == 1 {
            shifted = product(shifted, power);
        }
        power = product(power, power);
        left >>= 1;
    }
    whole ^ shifted
}

/// The polynomial of crc32c, followed by x^0 and x^8. As in the checksums, the highest bit stands for x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const ONE: u32 = 1 << 31;
const BYTE: u32 = ONE >> 8;

/// The product of two polynomials modulo [`POLYNOMIAL`].
fn product(a: u32, b: u32) -> u32 {
    let (mut sum, mut multiple) = (0, a);
    for degree in 0..u32::BITS {
        if b & ONE >> degree != 0 {
            sum ^= multiple;
        }
        multiple = multiple >> 1 ^ if multiple & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    sum
}

/// Checksum of a block of file `file_id` at byte `offset`.
#[inline]
pub fn block_crc(bytes: &[u8], file_id: u64, offset: u64) -> u32 {
    crc(bytes) ^ place(file_id, offset)
}

/// A 32-bit image of a place. The multiplier is odd and the finalizer a bijection, so two offsets of one file collide
/// only by chance (2^-32).
#[inline]
pub fn place(file_id: u64, offset: u64) -> u32 {
    let mut x = file_id.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(offset);
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    (x ^ x >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_vector_and_place_binding() {
        assert_eq!(crc(b"123456789"), 0xe306_9283); // RFC 3720, B.4
        assert_eq!(crc_append(crc(b"1234"), b"56789"), crc(b"123456789"));
        let long: Vec<u8> = (0..10_000u32).map(|i| (i * i) as u8).collect();
        for cut in [0, 1, 7, 255, 256, 4096, 9_999] {
            assert_eq!(crc_append(crc(&long[..cut]), &long[cut..]), crc(&long), "cut at {cut}");
            let rest = crc_of_rest(crc(&long), crc(&long[..cut]), (long.len() - cut) as u64);
            assert_eq!(rest, crc(&long[cut..]), "cut at {cut}");
        }
        let here = block_crc(b"block", 7, 4096);
        assert_ne!(here, block_crc(b"block", 7, 8192));
        assert_ne!(here, block_crc(b"block", 8, 4096));
    }
}
