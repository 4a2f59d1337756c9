//! The conflict filter: which keys cannot have been committed since some sequence number.
//!
//! A table of sequence numbers, indexed by a hash of family and key. Every commit stores its sequence number into the
//! slots of the keys that it writes. A slot that is not newer than a transaction's snapshot proves that none of its keys
//! was committed since; one that is newer proves nothing, and the key itself is looked up. So nearly all of a commit's
//! checks cost one load, and a write outside any transaction costs one store to make them possible. The idea is the
//! version table of transactional memories (Dice, Shalev, Shavit: "Transactional Locking II", DISC 2006).

use kingtide_base::sync::atomic::{AtomicU64, Ordering};
use kingtide_base::{FamilyId, KeyOrder, SeqNo};
use kingtide_mem::zeroed::zero_counters;

/// Exploration opens a database for each schedule, and should meet keys that share a slot.
const SLOTS: usize = if cfg!(any(shuttle, loom)) { 8 } else { 1 << 16 };

/// Sequence numbers of recent commits by hash of the key.
pub(crate) struct ConflictFilter {
    slots: Box<[AtomicU64]>,
    /// The newest commit of a range delete, which is in no slot.
    ranges: AtomicU64,
}

/// The slot of a key whose head in the family's order is `head`. Keys that compare equal have the same slot.
#[inline]
pub(crate) fn slot_of(family: FamilyId, order: &KeyOrder, key: &[u8], head: u64) -> u16 {
    // Equal keys have equal heads in any order, but of a custom order nothing else is known.
    let hash = order.hash(key).unwrap_or(head) ^ u64::from(family).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 48) as u16
}

// Stores happen under the commit lock. Loads that decide a commit do too, so Relaxed suffices there; other loads are
// repeated under it.
impl ConflictFilter {
    /// A filter that knows of no commit. Its pages take memory only once commits store into them.
    pub fn new() -> ConflictFilter {
        ConflictFilter { slots: zero_counters(SLOTS), ranges: AtomicU64::new(0) }
    }

    /// Takes note of a committed key.
    #[inline]
    pub fn note(&self, slot: u16, seq: SeqNo) {
        self.slots[slot as usize % SLOTS].store(seq, Ordering::Relaxed);
    }

    /// Takes note of a committed range delete.
    #[inline]
    pub fn note_range(&self, seq: SeqNo) {
        self.ranges.store(seq, Ordering::Relaxed);
    }

    /// Returns whether a key of this slot may have been committed after `since`.
    #[inline]
    pub fn may_have_changed(&self, slot: u16, since: SeqNo) -> bool {
        self.slots[slot as usize % SLOTS].load(Ordering::Relaxed) > since || self.ranges.load(Ordering::Relaxed) > since
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    /// What was committed after `since` is never denied, whatever shares its slot.
    #[test]
    fn no_commit_is_denied() {
        let filter = ConflictFilter::new();
        let mut rng = Rng::new(7);
        let mut last = std::collections::HashMap::new();
        for seq in 1..200_000 {
            let key = rng.below(30_000).to_be_bytes();
            let slot = slot_of(3, &KeyOrder::Bytewise, &key, 0);
            filter.note(slot, seq);
            last.insert(key, seq);
        }
        let mut spared = 0;
        for (key, seq) in &last {
            let slot = slot_of(3, &KeyOrder::Bytewise, key, 0);
            assert!(filter.may_have_changed(slot, seq - 1));
            spared += u32::from(!filter.may_have_changed(slot, *seq));
        }
        assert!(spared > last.len() as u32 / 2, "a filter that spares nothing: {spared} of {}", last.len());
    }

    #[test]
    fn equal_keys_share_a_slot_and_families_differ() {
        let order = KeyOrder::CaseInsensitive;
        assert_eq!(slot_of(1, &order, b"Key", order.head(b"Key")), slot_of(1, &order, b"KEY", order.head(b"KEY")));
        let slots: std::collections::HashSet<u16> =
            (0..100).map(|f| slot_of(f, &KeyOrder::Bytewise, b"key", 0)).collect();
        assert!(slots.len() > 90);
    }

    #[test]
    fn a_range_delete_concerns_every_key() {
        let filter = ConflictFilter::new();
        filter.note_range(9);
        assert!(filter.may_have_changed(5, 8) && !filter.may_have_changed(5, 9));
    }
}
