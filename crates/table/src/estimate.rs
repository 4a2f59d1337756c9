//! Where a key lies in a table, estimated from what is resident: no block is read.
//!
//! The index says in which block a key is. How far into it is interpolated between the separators around the block, taken
//! as numbers: the eight bytes after what both begin with.

use crate::block::common_prefix;
use crate::index::Index;
use crate::reader::Table;
use kingtide_base::KeyOrder;
use kingtide_base::key::head_be;

/// What share of the way from `from` to `to` lies before `key`, which is between them.
fn interpolate(order: &KeyOrder, from: &[u8], to: &[u8], key: &[u8]) -> f64 {
    let [from, to, key] = match order {
        KeyOrder::Bytewise => {
            let common = common_prefix(from, to);
            [from, to, key].map(|k| head_be(k.get(common..).unwrap_or_default()))
        }
        _ => [from, to, key].map(|k| order.head(k)),
    };
    if from >= to {
        return 0.5; // the heads cannot tell
    }
    (key.clamp(from, to) - from) as f64 / (to - from) as f64
}

impl Index {
    /// About how many blocks are before `key`: whole ones, and a part of the one that it is in. Keys of the table are not
    /// below `min_key`. O(log blocks).
    fn blocks_before(&self, order: &KeyOrder, min_key: &[u8], key: &[u8]) -> f64 {
        let blocks = self.locate(key);
        let Some(to) = self.separator(blocks.start) else { return self.blocks() as f64 };
        let from = match blocks.start {
            0 => Some(min_key),
            start => self.separator(start - 1),
        };
        let into = from.map_or(0.5, |from| interpolate(order, from, to, key));
        blocks.start as f64 + into * blocks.len() as f64
    }
}

impl Table {
    /// About how many blocks are before `key`, with a part of the one that it is in: from 0 to [`Table::blocks`]. The whole
    /// blocks are exact, unless the index has fewer separators than blocks or cut ones, or is in partitions: then the place in a partition
    /// is interpolated. Reads nothing; O(log blocks).
    pub fn blocks_before(&self, key: &[u8]) -> f64 {
        if self.order().compare(key, &self.info().min_key).is_le() {
            return 0.0;
        }
        let before = self.index.blocks_before(self.order(), &self.info().min_key, key);
        match self.parts() {
            None => before,
            Some(parts) => {
                let (whole, size) = (before as usize, parts.blocks_of_one());
                let first = whole.saturating_mul(size).min(self.blocks());
                let blocks = size.min(self.blocks() - first);
                first as f64 + (before - whole as f64) * blocks as f64
            }
        }
    }

    /// About the bytes of the file before a place that [`Table::blocks_before`] returned. At the last block's end those are
    /// the bytes of all blocks.
    pub fn bytes_before(&self, place: f64) -> u64 {
        let block = place as usize;
        if block >= self.blocks() {
            return self.index.data_end();
        }
        let (piece, share) = match self.parts() {
            None => (block, place - block as f64),
            Some(parts) => {
                let piece = block / parts.blocks_of_one();
                let first = piece * parts.blocks_of_one();
                (piece, (place - first as f64) / (parts.end_of(block) - first) as f64)
            }
        };
        let bytes = self.index.piece(piece);
        bytes.start + ((bytes.end - bytes.start) as f64 * share) as u64
    }

    /// A string that is not below any key of block `block` and, unless the index has fewer separators than blocks or cut
    /// ones, below all keys after it: mostly shorter than any key. Of a table in partitions it is the last separator of the block's
    /// partition. `None` past the last block.
    pub fn separator(&self, block: usize) -> Option<&[u8]> {
        match self.parts() {
            None => self.index.separator(block),
            Some(parts) => (block < self.blocks()).then(|| self.index.separator(block / parts.blocks_of_one()))?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_between_two_separators_are_taken_as_numbers() {
        let at = |from: &[u8], to: &[u8], key: &[u8]| interpolate(&KeyOrder::Bytewise, from, to, key);
        assert_eq!(at(b"a", b"c", b"b"), 0.5);
        assert_eq!(at(b"user:10", b"user:18", b"user:14"), 0.5, "what both begin with does not count");
        let digits = at(b"user:1000", b"user:2000", b"user:1500");
        assert!(digits > 0.0 && digits < 0.5, "digits are few of a byte's values: {digits}");
        assert_eq!(at(b"abc", b"abc", b"abc"), 0.5);
        assert_eq!((at(b"b", b"c", b"a"), at(b"b", b"c", b"d")), (0.0, 1.0));
        let (from, to, key) = (10u64.to_le_bytes(), 50u64.to_le_bytes(), 20u64.to_le_bytes());
        assert_eq!(interpolate(&KeyOrder::U64, &from, &to, &key), 0.25);
    }
}
