//! The one hash of a key: computed once per operation, used by every filter and cache it meets.

/// xxh3-64 with seed 0. Stored in filters on disk, so it never changes within a format version.
#[inline]
pub fn hash64(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// [`hash64`] of bytes that come piece by piece: of whole files. A crc would not do for those: appending a crc to what it covers
/// makes the crc of both a constant, so that of a file of blocks with a crc each depends on their lengths alone.
#[derive(Clone, Default)]
pub struct Hasher64(xxhash_rust::xxh3::Xxh3Default);

impl Hasher64 {
    /// Of no bytes yet.
    pub fn new() -> Hasher64 {
        Hasher64::default()
    }

    /// Appends a piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all pieces.
    pub fn finish(&self) -> u64 {
        self.0.digest()
    }
}

/// Mixes an integer (a bijection; Stafford's variant 13 of the MurmurHash3 finalizer).
#[inline]
pub const fn mix64(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    #[test]
    fn pieces_hash_like_the_whole() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
        for cut in [0, 1, 240, 1024, 4999] {
            let mut pieces = super::Hasher64::new();
            pieces.update(&bytes[..cut]);
            pieces.update(&bytes[cut..]);
            assert_eq!(pieces.finish(), super::hash64(&bytes));
        }
    }

    /// The hash is part of the disk format: a change of library or version must not change it.
    #[test]
    fn hash_is_frozen() {
        assert_eq!(super::hash64(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(super::hash64(b"kingtide"), super::hash64(b"kingtide"));
        assert_ne!(super::mix64(1), super::mix64(2));
    }
}
