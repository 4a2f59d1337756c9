//! Second-touch admission: a block earns its place in a full cache by being wanted twice within a short time.
//!
//! Copying every miss into the cache costs more than it saves once each copy pushes another block out: most blocks of a
//! large table are read once, and a scan reads all of them once. So a miss on a full cache leaves only a 16-bit
//! fingerprint in the table slot where its block would go (a line that the lookup has in hand already), and the next
//! miss of the same block is admitted if the fingerprint still stands. Fingerprints overwrite each other, so they age
//! by themselves: in a table of `n` slots one stands for about `n` other first touches, and a table has about two
//! slots a cached block. A stranger is taken for a returning block once in 2^16 times.

use crate::sync::{AtomicU16, Ordering};

/// Notes a miss; true if it is the second within memory, which uses the memory up.
#[inline]
pub(super) fn second_touch(door: &AtomicU16, fingerprint: u16) -> bool {
    // Relaxed: a race loses a note, which costs a block one more miss.
    let second = door.load(Ordering::Relaxed) == fingerprint;
    door.store(if second { 0 } else { fingerprint }, Ordering::Relaxed);
    second
}
