//! The one hash of a key: computed once per operation, used by every filter and cache it meets.

/// xxh3-64 with seed 0. Stored in filters on disk, so it never changes within a format version.
#[inline]
pub fn hash64(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
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
    /// The hash is part of the disk format: a change of library or version must not change it.
    #[test]
    fn hash_is_frozen() {
        assert_eq!(super::hash64(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(super::hash64(b"kingtide"), super::hash64(b"kingtide"));
        assert_ne!(super::mix64(1), super::mix64(2));
    }
}
