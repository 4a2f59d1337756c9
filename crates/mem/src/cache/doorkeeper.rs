//! Admission after several touches: a block earns its place in the cache by being wanted again within a short time.
//!
//! Copying every miss into the cache costs more than it saves once each copy pushes another block out: most blocks of a
//! large table are read once, and a scan reads all of them once. So a miss on a full cache leaves only a 16-bit
//! mark in the table slot where its block would go (a line that the lookup has in hand already), a fingerprint and how often it was
//! missed, by which the next misses of the same block are judged if the mark still stands. Marks overwrite each other, so they age
//! by themselves: in a table of `n` slots one stands for about `n` other first touches, and a table has about two
//! slots a cached block. A stranger is taken for a returning block once in 2^14 times.

use crate::sync::{AtomicU16, Ordering};

/// The bits of a mark that count.
const COUNT: u16 = 3;

/// The most misses that a mark counts, besides the one that is noted.
pub(super) const MOST: u16 = COUNT;

/// Notes a miss; returns how many there were within memory, this one included.
#[inline]
pub(super) fn count(door: &AtomicU16, fingerprint: u16) -> u16 {
    // Relaxed: as below.
    let mark = door.load(Ordering::Relaxed);
    let before = if (mark ^ fingerprint) & !COUNT == 0 { mark & COUNT } else { 0 };
    door.store(fingerprint & !COUNT | (before + 1).min(COUNT), Ordering::Relaxed);
    before + 1
}

/// Notes a miss; true if it is the `needed`th within memory (2 or 3), which uses the memory up.
#[inline]
pub(super) fn touched(door: &AtomicU16, fingerprint: u16, needed: u16) -> bool {
    // Relaxed: a race loses a note, which costs a block one more miss.
    let mark = door.load(Ordering::Relaxed);
    let before = if (mark ^ fingerprint) & !COUNT == 0 { mark & COUNT } else { 0 };
    let enough = before + 1 >= needed;
    door.store(if enough { 0 } else { fingerprint & !COUNT | (before + 1) }, Ordering::Relaxed);
    enough
}
