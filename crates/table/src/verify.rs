//! Checking a table against itself.

use crate::iter::IterOptions;
use crate::reader::{ReadScratch, Table};
use kingtide_base::{Error, Result, Tag};
use std::sync::Arc;

impl Table {
    /// Reads everything: checksums, order, counts, key range, that the restart points of a block are entries, and that index
    /// and filter find every key.
    ///
    /// # Errors
    /// `Corruption` with file and offset of the first contradiction, `Io`.
    pub fn verify(self: &Arc<Table>) -> Result<()> {
        let mut it = self.iter(IterOptions { fill_cache: false, readahead: true });
        let mut scratch = ReadScratch::new().pass_by_cache(true);
        let mut last: Option<(Vec<u8>, Tag)> = None;
        let (mut entries, mut raw_bytes, mut checked) = (0, 0, usize::MAX);
        it.first()?;
        while it.valid() {
            if it.block_number() != checked {
                it.check_block()?;
                checked = it.block_number();
            }
            let (key, tag) = (it.key(), it.tag());
            let wrong = |what: &str| Err(self.at_block(Error::corruption(what), it.block_number()));
            if tag.kind().is_none() || tag.is_packed() {
                return wrong("an entry of unknown kind");
            }
            if self.info.unsequenced && last.as_ref().is_some_and(|(k, _)| self.order.compare(k, key).is_eq()) {
                return wrong("a sorted file holds a key twice");
            }
            match &last {
                Some((k, t)) if self.order.compare(k, key).then(tag.cmp(t)).is_ge() => {
                    return wrong("entries out of order");
                }
                None if self.order.compare(key, &self.info.min_key).is_lt() => {
                    return wrong("a key below the smallest");
                }
                _ => {}
            }
            if self.locate(key, &mut scratch)?.start > it.block_number() {
                return wrong("the index does not find a key");
            }
            if let Some(hash) = self.order.hash(key)
                && !self.may_contain(hash, &mut scratch)?
            {
                return wrong("the filter denies a key");
            }
            entries += 1;
            raw_bytes += (key.len() + it.value().len()) as u64;
            let (k, t) = last.get_or_insert_with(|| (Vec::new(), tag));
            k.clear();
            k.extend_from_slice(key);
            *t = tag;
            it.next()?;
        }
        let above = last.is_some_and(|(k, _)| self.order.compare(&k, &self.info.max_key).is_gt());
        if entries != self.info.entries || raw_bytes != self.info.raw_bytes || above {
            return Err(Error::corruption("the properties contradict the entries")
                .at_path(self.file.path())
                .at_offset(0));
        }
        Ok(())
    }
}
