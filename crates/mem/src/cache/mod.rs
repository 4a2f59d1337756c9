//! The block cache: decoded blocks of tables and values of value logs, shared by all readers.
//!
//! | module | what it holds |
//! |---|---|
//! | `block` | counted bytes in one allocation |
//! | `slot` | a table slot through which a reader takes a reference in one atomic instruction |
//! | `clock` | a partition: lock-free lookup, CLOCK eviction, exact accounting |
//! | `doorkeeper` | which blocks are admitted |
//! | `slabs` | the memory of blocks, which all threads share |
//! | `large` | the memory of large ones |
//!
//! A miss goes: [`BlockCache::get`] returns `None`; the reader decodes into its own scratch, or, if
//! [`BlockCache::admit`] says so, copies the bytes ([`BlockCache::copied`]) and hands the copy to [`BlockCache::insert`]. The
//! reader of a value that is admitted decodes it into the cache's memory ([`BlockCache::filled`]).

mod block;
mod clock;
mod doorkeeper;
mod large;
mod slabs;
mod slot;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::sync::Arc;

use kingtide_base::Result;
use kingtide_base::perf::{self, Stage};
use kingtide_base::stats::{Stat, Stats};

pub use block::Block;
use clock::{Change, Hashed, Partition};
use slabs::Slabs;

use crate::sync::{AtomicU64, Ordering};

/// With the number of partitions left to the cache, none is made smaller than this.
const MIN_PARTITION_BYTES: u64 = 512 << 10;
const MAX_PARTITIONS: usize = 1024;

/// Values of up to so many bytes may be cached.
pub const LONGEST_VALUE: usize = 1 << 20;
const _: () = assert!(LONGEST_VALUE + 4096 <= large::LARGEST);

/// A value of so many bytes and more takes the place of others only if one of them is idle ([`BlockCache::admit_value`]), and should be read into
/// memory of the cache even if it does not enter it ([`BlockCache::filled`]).
pub const LARGE_VALUE: usize = 128 << 10;

/// A value may take such a part of the cache.
const VALUE_SHARE: u64 = 32;

/// What a cache holds, which says as what its work is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Blocks,
    /// Partitions of indexes and filters.
    Parts,
}

/// A partitioned CLOCK cache of blocks by file id and byte offset. Files never change and ids are never reused, so
/// blocks need no invalidation: [`BlockCache::erase_file`] only frees memory early.
pub struct BlockCache {
    partitions: Box<[Partition]>,
    /// Hashes are shifted right by this to number their partition.
    shift: u32,
    /// Bytes held, and the capacity. Relaxed: statistics; each partition enforces its own share under its lock.
    used: AtomicU64,
    capacity: AtomicU64,
    /// Where the memory of its blocks comes from.
    slabs: Arc<Slabs>,
    stats: Arc<Stats>,
    holds: Holds,
}

impl BlockCache {
    /// A cache of at most `capacity` bytes (0: off) in `shards` partitions, rounded up to a power of two. With 0 there
    /// are two a core, but fewer in a small cache.
    pub fn new(capacity: u64, shards: usize, stats: Arc<Stats>) -> Arc<BlockCache> {
        Arc::new(Self::holding(Holds::Blocks, capacity, shards, stats))
    }

    /// A cache for partitions of indexes and filters, off until it is given a capacity, which will be `expected` at most (0: not known).
    /// It counts its evictions; callers that search it with [`BlockCache::find`] count the rest.
    pub fn of_partitions(expected: u64, shards: usize, stats: Arc<Stats>) -> Arc<BlockCache> {
        let cache = Self::holding(Holds::Parts, expected, shards, stats);
        cache.set_capacity(0);
        Arc::new(cache)
    }

    fn holding(holds: Holds, capacity: u64, shards: usize, stats: Arc<Stats>) -> BlockCache {
        let n = match shards {
            0 => {
                let cores = kingtide_base::processors();
                let most = if capacity == 0 { u64::MAX } else { capacity / MIN_PARTITION_BYTES };
                (2 * cores).next_power_of_two().min(prev_power_of_two(most))
            }
            n => n.min(MAX_PARTITIONS).next_power_of_two(),
        };
        BlockCache {
            partitions: (0..n).map(|_| Partition::new(capacity / n as u64)).collect(),
            shift: 64 - n.trailing_zeros(),
            used: AtomicU64::new(0),
            capacity: AtomicU64::new(capacity),
            slabs: Slabs::new(),
            stats,
            holds,
        }
    }

    #[inline]
    fn partition(&self, k: Hashed) -> &Partition {
        // One partition: a shift by 64 is none at all, and the mask makes that 0 too.
        let i = k.hash.wrapping_shr(self.shift) as usize;
        &self.partitions[i & (self.partitions.len() - 1)]
    }

    /// The block, if it is cached. It stays valid after an eviction.
    #[inline]
    pub fn get(&self, file_id: u64, offset: u64) -> Option<Block> {
        let block = self.find(file_id, offset);
        let (stat, stage) = match block {
            Some(_) => (Stat::CacheHits, Stage::CacheHits),
            None => (Stat::CacheMisses, Stage::CacheMisses),
        };
        self.stats.add(stat, 1);
        perf::count(stage, 1);
        block
    }

    /// The same without counting hit or miss.
    #[inline]
    pub fn find(&self, file_id: u64, offset: u64) -> Option<Block> {
        let k = Hashed::new(file_id, offset);
        self.partition(k).get(k)
    }

    /// Whether a block that was missed should be inserted: at once while the cache has room, else when it was asked for
    /// before not long ago (the call remembers that it was asked). It is inserted the second or third time if a block that would be evicted
    /// was not hit lately, and the fourth time in any case. False when the cache is off.
    #[inline]
    pub fn admit(&self, file_id: u64, offset: u64) -> bool {
        let k = Hashed::new(file_id, offset);
        self.partition(k).admit(k)
    }

    /// The same for a value of `len` bytes. In a cache that has room it must be asked for three times, since new pages of memory cost
    /// about as much as two reads of the value; one that would take more than a 32nd of the cache stays out.
    ///
    /// In a full cache, twice is enough for one of less than [`LARGE_VALUE`] bytes. A larger one that is not admitted is decoded into memory
    /// that has just held another, and is still in the processor's cache; admitting it moves on to the memory of an evicted value, which costs
    /// a large part of the time of a read. So every second miss of it looks at the blocks that would be evicted for it, but at no more than
    /// one for each 4 KiB of the value. If one of them was not hit lately, the value is admitted; otherwise all of them count as hit less often,
    /// and stay.
    #[inline]
    pub fn admit_value(&self, file_id: u64, offset: u64, len: usize) -> bool {
        let k = Hashed::new(file_id, offset);
        let large = (len >= LARGE_VALUE).then_some(len as u64);
        len as u64 <= self.capacity() / VALUE_SHARE && self.partition(k).admit_value(k, large)
    }

    /// A block of `len` bytes that `fill` writes, in memory that this cache recycles. `fill` is given bytes of any content, and
    /// must write all of them or fail. The block may outlive the cache.
    ///
    /// # Errors
    /// Those of `fill`; `OutOfMemory`; `Corruption` for a length that no address space holds.
    #[inline]
    pub fn filled(&self, len: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Block> {
        Block::build_in(&self.slabs, len, fill)
    }

    /// A copy of bytes, in memory that this cache recycles; `None` when there is none. It may outlive the cache.
    #[inline]
    pub fn copied(&self, bytes: &[u8]) -> Option<Block> {
        Block::copied_to(bytes, Some(&self.slabs))
    }

    /// Caches a block, evicting others as needed. A block larger than a partition is not cached; a key that is cached
    /// already keeps the block that it has.
    pub fn insert(&self, file_id: u64, offset: u64, block: Block) {
        let k = Hashed::new(file_id, offset);
        self.record(self.partition(k).insert(k, block));
    }

    /// Frees the blocks of a file that was deleted.
    pub fn erase_file(&self, file_id: u64) {
        self.partitions.iter().for_each(|p| self.record(p.erase_file(file_id)));
    }

    /// Changes the capacity, evicting down to it at once. The number of partitions stays.
    pub fn set_capacity(&self, bytes: u64) {
        self.capacity.store(bytes, Ordering::Relaxed);
        let share = bytes / self.partitions.len() as u64;
        self.partitions.iter().for_each(|p| self.record(p.set_capacity(share)));
    }

    /// The capacity in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Bytes held: the sum of the blocks' charges, exact whenever no call is under way.
    pub fn used(&self) -> u64 {
        not_negative(self.used.load(Ordering::Relaxed))
    }

    fn record(&self, change: Change) {
        if change == Change::default() {
            return;
        }
        let delta = change.bytes_added.wrapping_sub(change.bytes_removed);
        let used = self.used.fetch_add(delta, Ordering::Relaxed).wrapping_add(delta);
        if self.holds == Holds::Parts {
            self.stats.add(Stat::PartitionEvictions, change.evicted);
            return;
        }
        self.stats.set(Stat::CacheBytes, not_negative(used));
        self.stats.add(Stat::CacheInserts, change.inserted as u64);
        if change.evicted > 0 {
            self.stats.add(Stat::CacheEvictions, change.evicted);
        }
    }
}

/// A sum of changes. That of an insertion may be added after that of the eviction that followed it in another thread: until then the sum is
/// too small, and may be less than 0.
fn not_negative(sum: u64) -> u64 {
    if sum > i64::MAX as u64 { 0 } else { sum }
}

fn prev_power_of_two(n: u64) -> usize {
    1usize << n.max(1).ilog2().min(10)
}

impl fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockCache")
            .field("used", &self.used())
            .field("capacity", &self.capacity())
            .field("partitions", &self.partitions.len())
            .finish()
    }
}
