//! Finding a version among those of one key. See [`super::entry`] for how they hang together.

use kingtide_base::Tag;

use super::entry::{self, Links};
use super::tree::Tree;

impl Tree {
    /// # Safety
    /// As [`Tree::entry`].
    #[inline(always)]
    pub(super) unsafe fn tag_of(&self, offset: u32) -> Tag {
        // SAFETY: by the contract, and the arena lives as long as self.
        unsafe { entry::tag(self.slots.address(offset)) }
    }

    /// The links of an entry; `None` if it is the oldest of its key.
    ///
    /// # Safety
    /// As [`Tree::entry`].
    #[inline(always)]
    pub(super) unsafe fn links_of(&self, offset: u32) -> Option<Links> {
        // SAFETY: by the contract, and the arena lives as long as self.
        unsafe { entry::links(self.slots.address(offset)) }
    }

    /// The newest version whose tag is `upper` or older, from `newest` on. O(log n) for n newer ones, O(1) if there is none.
    ///
    /// # Safety
    /// As [`Tree::entry`], of `newest`. The writing of older versions happened before that.
    #[inline(always)]
    pub(super) unsafe fn version_at(&self, newest: u32, upper: Tag) -> Option<u32> {
        // SAFETY: by the contract.
        unsafe { if self.tag_of(newest) <= upper { Some(newest) } else { self.version_below(newest, upper) } }
    }

    /// The rest of [`Tree::version_at`]: `newer` is newer than `upper`.
    ///
    /// # Safety
    /// As [`Tree::version_at`].
    unsafe fn version_below(&self, newer: u32, upper: Tag) -> Option<u32> {
        let mut at = newer;
        // SAFETY: by the contract, and links lead to entries that were written before those that hold them.
        unsafe {
            while let Some(links) = self.links_of(at) {
                if self.tag_of(links.skip) > upper {
                    at = links.skip;
                } else if self.tag_of(links.older) > upper {
                    at = links.older;
                } else {
                    return Some(links.older);
                }
            }
        }
        None
    }

    /// The oldest version that is newer than `lower`, from `newest` on. O(log n).
    ///
    /// # Safety
    /// As [`Tree::version_at`].
    pub(super) unsafe fn version_above(&self, newest: u32, lower: Tag) -> Option<u32> {
        let mut at = newest;
        // SAFETY: by the contract, and links lead to entries that were written before those that hold them.
        unsafe {
            if self.tag_of(at) <= lower {
                return None;
            }
            while let Some(links) = self.links_of(at) {
                if self.tag_of(links.skip) > lower {
                    at = links.skip;
                } else if self.tag_of(links.older) > lower {
                    at = links.older;
                } else {
                    break;
                }
            }
        }
        Some(at)
    }

    /// What a new version of a key links to, `older` being the newest one so far.
    ///
    /// # Safety
    /// As [`Tree::entry`].
    pub(super) unsafe fn links_to(&self, older: u32) -> Links {
        // SAFETY: by the contract, and links lead to entries that were written before those that hold them.
        unsafe {
            let Some(next) = self.links_of(older) else { return Links { older, skip: older, depth: 1 } };
            // The oldest one skips to itself.
            let far = self.links_of(next.skip).unwrap_or(Links { older: next.skip, skip: next.skip, depth: 0 });
            let farther = self.links_of(far.skip).map_or(0, |l| l.depth);
            let skip = if next.depth - far.depth == far.depth - farther { far.skip } else { older };
            Links { older, skip, depth: next.depth + 1 }
        }
    }
}
