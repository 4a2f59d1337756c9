//! Sorted copies of a transaction's writes, for its iterators.

use crate::family::Family;
use crate::read::overlay::Overlay;
use crate::txn::bounds::{is_before, is_behind};
use crate::txn::write_set::WriteSet;
use kingtide_base::Kind;
use std::ops::Bound;
use std::sync::Arc;

/// Sorted copies of a transaction's writes, so that the next iterator over the same family need not sort them all again.
#[derive(Default)]
pub(super) struct Overlays(Vec<Sorted>);

/// The first `ops` operations of the write set, those on one family, sorted.
struct Sorted {
    family: Arc<Family>,
    ops: usize,
    overlay: Option<Arc<Overlay>>,
}

impl Overlays {
    /// Operations since the last sorted copy below which a new one is not worth it.
    const FEW: usize = 64;

    /// Forgets everything: what was written is no longer the continuation of what was copied.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The writes to a family, of a range, sorted. `None` if there are none.
    pub fn within(
        &mut self,
        family: &Arc<Family>,
        writes: &WriteSet,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Option<Arc<Overlay>> {
        let all = writes.batch.len();
        let at = self.0.iter().position(|s| Arc::ptr_eq(&s.family, family)).unwrap_or_else(|| {
            self.0.push(Sorted { family: family.clone(), ops: 0, overlay: None });
            self.0.len() - 1
        });
        let sorted = &mut self.0[at];
        // A copy of all for every half as many writes more: on the average each is sorted a few times. There are fewer where another
        // thread ended the transaction meanwhile, and emptied its write set.
        if all.checked_sub(sorted.ops).is_none_or(|more| more > Self::FEW.max(sorted.ops / 2)) {
            sorted.overlay = Overlay::keep(Overlay::build(family.order(), writes.ops_of(family, 0)), writes.files());
            sorted.ops = all;
        }
        if sorted.ops == all {
            return sorted.overlay.clone();
        }
        let old = sorted.overlay.iter().flat_map(|o| o.ops_within(lower, upper));
        let order = family.order();
        let new = writes.ops_of(family, sorted.ops).filter(|(kind, key, _)| {
            *kind == Kind::RangeDelete as u8 || !is_before(order, key, lower) && !is_behind(order, key, upper)
        });
        Overlay::keep(Overlay::build(order, old.chain(new)), writes.files())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Db, Isolation, Options};
    use kingtide_vfs::MemFs;
    use std::ops::Bound::Unbounded;

    /// Another thread may end the transaction, and empty its write set, while its owner makes an iterator.
    #[test]
    fn a_write_set_that_was_emptied_has_no_overlay() {
        let db = Db::open("/db", Options::new().fs(MemFs::shared())).unwrap();
        let family = db.default_family();
        let mut txn = db.begin(Isolation::Snapshot).unwrap();
        for i in 0..200u8 {
            txn.put(family, &[i], b"v").unwrap();
        }
        txn.cursor(family, ..).unwrap();
        txn.handle().abort().unwrap();
        let shared = txn.shared.clone();
        let writes = shared.writes.lock();
        assert!(txn.overlays.within(family.inner(), &writes, Unbounded, Unbounded).is_none());
    }
}
