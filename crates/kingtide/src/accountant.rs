//! Knows how many bytes each consumer of memory holds, and divides what the option `memory_limit` allows among them.
//!
//! Memtables come first: what they may hold is set aside. So is what transactions and their locks hold, and the most that flushes and
//! compactions have held so far. The rest is what indexes and filters of tables may take: the *allowance*. Where that is too little
//! for all of them, [`crate::family::TableCache`] opens tables in partitions, and the cache of partitions has what is left of the allowance
//! beside the resident parts of tables. The block cache has what is unused at the moment: room that is set
//! aside is lent to it. It gives that back when a consumer grows, within the call that allocates: the consumers' budgets raise
//! an alarm ([`Budget::on_alarm`]) each time they have grown by a small step. It grows again when background work looks in.
//!
//! Memtables that were flushed, but that readers keep, are retired. Both caches give way to them; the allowance does not: how tables are held in
//! memory is not changed for a reader that may be gone the next moment, because each change reads their indexes and filters as a whole.
//!
//! Without a limit no alarm is set and nothing is divided: the cache has the size of its option.

use kingtide_base::budget::Budget;
use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kingtide_mem::ArenaPool;
use kingtide_mem::allocator::give_back_free_memory;
use kingtide_mem::cache::BlockCache;
use std::sync::Arc;

/// By how much of the limit a consumer may grow before the cache gives way, and the bounds of that.
const STEP_SHARE: u64 = 128;
const STEP_MIN: u64 = 4 << 10;
const STEP_MAX: u64 = 4 << 20;

/// The share of the limit that may be freed before the allocator is asked for it.
const FREED_SHARE: u64 = 16;

/// Bytes held, by consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryUse {
    /// Memtables, active and immutable.
    pub memtables: u64,
    /// Memtables that were flushed or dropped, but that readers keep.
    pub retired: u64,
    /// Memory that waits for the next memtable.
    pub spare: u64,
    pub cache: u64,
    /// Indexes, filters and range tombstones of tables, those that only a reader keeps included, partitions, and the sets of range tombstones that
    /// readers search.
    pub tables: u64,
    /// Buffers of flushes and compactions.
    pub jobs: u64,
    pub transactions: u64,
    pub locks: u64,
}

impl MemoryUse {
    pub fn total(&self) -> u64 {
        self.memtables
            + self.retired
            + self.spare
            + self.cache
            + self.tables
            + self.jobs
            + self.transactions
            + self.locks
    }
}

/// What is to be divided.
struct Division {
    /// The option `memory_limit`; `None` without one.
    limit: Option<u64>,
    /// The option `block_cache_size`.
    cache_size: u64,
}

/// The accountant of a database. Atomics here are Relaxed: they are counters and hints that order nothing.
pub(crate) struct MemoryAccountant {
    pub memtables: Arc<Budget>,
    pub tables: Arc<Budget>,
    /// Sets of the range tombstones of tables. They are counted apart from `tables` because closing tables frees none of them.
    pub ranges: Arc<Budget>,
    pub jobs: Arc<Budget>,
    pub transactions: Arc<Budget>,
    arenas: Arc<ArenaPool>,
    cache: Arc<BlockCache>,
    /// Partitions of indexes and filters.
    pub partitions: Arc<BlockCache>,
    /// Whether tables are opened in partitions.
    partitioned: AtomicBool,
    /// What locks held when background work looked in last: they are counted one by one.
    locks: AtomicU64,
    /// The most that jobs held at any time. It only grows, so that tables are not closed anew for every job.
    peak_jobs: AtomicU64,
    /// Bytes that consumers had released when free memory was given back to the system last.
    given_back: AtomicU64,
    /// What tables may hold; `u64::MAX` without a limit.
    allowance: AtomicU64,
    /// Innermost: under it only the cache's locks are taken, which nothing is charged under.
    division: Mutex<Division>,
}

impl MemoryAccountant {
    /// An accountant without a limit.
    pub fn new(arenas: Arc<ArenaPool>, cache: Arc<BlockCache>, partitions: Arc<BlockCache>) -> Arc<MemoryAccountant> {
        let unlimited = || Budget::new(u64::MAX);
        let cache_size = cache.capacity();
        let accountant = Arc::new(MemoryAccountant {
            memtables: arenas.budget().clone(),
            tables: unlimited(),
            ranges: unlimited(),
            jobs: unlimited(),
            transactions: unlimited(),
            arenas,
            cache,
            partitions,
            partitioned: AtomicBool::new(false),
            locks: AtomicU64::new(0),
            peak_jobs: AtomicU64::new(0),
            given_back: AtomicU64::new(0),
            allowance: AtomicU64::new(u64::MAX),
            division: Mutex::new(Division { limit: None, cache_size }),
        });
        for budget in accountant.growing() {
            let accountant = Arc::downgrade(&accountant); // which has the budget
            budget.on_alarm(move || accountant.upgrade().into_iter().for_each(|a| a.give_way()));
        }
        accountant
    }

    fn growing(&self) -> [&Arc<Budget>; 6] {
        [&self.memtables, self.arenas.retired(), &self.tables, &self.ranges, &self.jobs, &self.transactions]
    }

    /// Changes the options `memory_limit`, 0 for none, and `block_cache_size`, and divides anew.
    pub fn set(&self, memory_limit: u64, block_cache_size: u64) {
        // With a limit, the allocator is made to give back what it keeps.
        self.arenas.set_map_smaller_chunks(memory_limit == 0);
        let mut division = self.division.lock();
        *division = Division { limit: (memory_limit > 0).then_some(memory_limit), cache_size: block_cache_size };
        self.divide(&division);
    }

    /// Divides anew, for instance after what memtables may hold has changed.
    pub fn balance(&self) {
        self.divide(&self.division.lock());
    }

    /// Takes note of what locks hold.
    pub fn note_locks(&self, bytes: u64) {
        self.locks.store(bytes, Ordering::Relaxed);
    }

    /// Gives memory that the allocator keeps back to the system, if there is a limit and that can be more than a part of it. For the thread of
    /// the log: others may be in a flush or merge for long, and these release most.
    pub fn give_back_free_memory(&self) {
        let Some(limit) = self.division.lock().limit else { return };
        let released = self.growing().iter().fold(0u64, |sum, budget| sum.wrapping_add(budget.released()));
        if released.wrapping_sub(self.given_back.load(Ordering::Relaxed)) > limit / FREED_SHARE {
            self.given_back.store(released, Ordering::Relaxed);
            give_back_free_memory();
        }
    }

    /// Whether there is a limit.
    pub fn is_limited(&self) -> bool {
        self.allowance() < u64::MAX
    }

    /// Bytes that indexes and filters of tables may hold; `u64::MAX` without a limit.
    pub fn allowance(&self) -> u64 {
        self.allowance.load(Ordering::Relaxed)
    }

    /// Whether tables are opened in partitions.
    pub fn is_partitioned(&self) -> bool {
        self.partitioned.load(Ordering::Relaxed)
    }

    /// Sets whether tables are opened in partitions from now on. The cache of partitions has memory only then. Returns whether that is a
    /// change.
    pub fn set_partitioned(&self, on: bool) -> bool {
        let division = self.division.lock();
        let changed = self.partitioned.swap(on, Ordering::Relaxed) != on;
        self.divide(&division);
        changed
    }

    /// What indexes, filters and range tombstones of tables hold, with partitions.
    pub fn table_bytes(&self) -> u64 {
        self.unpartitioned() + self.partitions.used()
    }

    fn unpartitioned(&self) -> u64 {
        self.tables.used() + self.ranges.used()
    }

    /// What each consumer holds.
    pub fn usage(&self) -> MemoryUse {
        // First: a memtable that is retired meanwhile must not count twice, for which caches would give way.
        let retired = self.arenas.retired().used();
        MemoryUse {
            memtables: self.memtables.used(),
            retired,
            spare: self.arenas.free_bytes(),
            cache: self.cache.used(),
            tables: self.table_bytes(),
            jobs: self.jobs.used(),
            transactions: self.transactions.used(),
            locks: self.locks.load(Ordering::Relaxed),
        }
    }

    /// A consumer has grown. If another thread is dividing the memory at the moment, the next charge raises the alarm again.
    fn give_way(&self) {
        if let Some(division) = self.division.try_lock() {
            self.divide(&division);
        }
    }

    fn divide(&self, division: &Division) {
        let Some(limit) = division.limit else {
            self.growing().iter().for_each(|b| b.set_alarm(u64::MAX));
            self.allowance.store(u64::MAX, Ordering::Relaxed);
            resize(&self.partitions, 0);
            resize(&self.cache, division.cache_size);
            return;
        };
        let step = (limit / STEP_SHARE).clamp(STEP_MIN, STEP_MAX);
        // Alarms first: a budget that grows after the held bytes were read raises one.
        self.growing().iter().for_each(|b| b.set_alarm(b.used().saturating_add(step)));
        let held = self.usage();
        let peak_jobs = self.peak_jobs.fetch_max(held.jobs, Ordering::Relaxed).max(held.jobs);
        let aside = self.memtables.limit().saturating_add(held.transactions).saturating_add(held.locks);
        let left = limit.saturating_sub(aside);
        let allowance = left - peak_jobs.min(left / 2);
        self.allowance.store(allowance, Ordering::Relaxed);
        // The partitions that are not there yet will come: their room is not lent. They give way to what is beyond the room of memtables.
        let beyond = (held.memtables + held.retired).saturating_sub(self.memtables.limit());
        let for_partitions = match self.partitioned.load(Ordering::Relaxed) {
            true => allowance.saturating_sub(self.unpartitioned()).saturating_sub(beyond),
            false => 0,
        };
        let others = held.total() - held.cache - held.tables;
        let room = limit.saturating_sub(others.saturating_add(self.unpartitioned()).saturating_add(for_partitions));
        for (cache, size, most) in [
            (&self.partitions, for_partitions, allowance),
            (&self.cache, division.cache_size.min(room), division.cache_size),
        ] {
            // Small changes upwards are not worth a lock of each partition.
            if size < cache.capacity() || size >= cache.capacity().saturating_add(step) || size == most {
                resize(cache, size);
            }
        }
    }
}

fn resize(cache: &BlockCache, bytes: u64) {
    if cache.capacity() != bytes {
        cache.set_capacity(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::budget::Charge;
    use kingtide_base::stats::Stats;

    const MIB: u64 = 1 << 20;

    fn accountant(memtables: u64, cache: u64) -> Arc<MemoryAccountant> {
        let arenas = ArenaPool::new(Budget::new(memtables));
        let stats = Arc::new(Stats::default());
        MemoryAccountant::new(arenas, BlockCache::new(cache, 1, stats.clone()), BlockCache::of_partitions(0, 1, stats))
    }

    #[test]
    fn without_a_limit_nothing_is_divided() {
        let a = accountant(10 * MIB, 7 * MIB);
        a.memtables.charge(100 * MIB);
        a.tables.charge(100 * MIB);
        assert_eq!((a.cache.capacity(), a.allowance(), a.is_limited()), (7 * MIB, u64::MAX, false));
        a.set(0, 3 * MIB);
        assert_eq!((a.cache.capacity(), a.allowance()), (3 * MIB, u64::MAX));
    }

    /// What is set aside for memtables is lent to the cache; each charge of any consumer takes some back.
    #[test]
    fn the_cache_gives_way_within_a_step_and_grows_back() {
        let a = accountant(60 * MIB, 64 * MIB);
        a.set(128 * MIB, 64 * MIB);
        let step = MIB;
        assert_eq!((a.cache.capacity(), a.allowance()), (64 * MIB, 68 * MIB));
        let mut held = Vec::new();
        for round in 0..120u64 {
            let budget = a.growing()[round as usize % 6];
            held.push(Charge::new(budget, MIB));
            let left = (128 * MIB).saturating_sub(a.usage().total() - a.usage().cache);
            assert!(a.cache.capacity() <= (64 * MIB).min(left + 6 * step), "round {round}: {:?}", a.usage());
        }
        assert!(a.cache.capacity() <= 12 * MIB);
        held.push(Charge::new(&a.jobs, 200 * MIB));
        assert_eq!(a.cache.capacity(), 0, "nothing is left");
        drop(held);
        a.balance();
        assert_eq!(a.cache.capacity(), 64 * MIB);
        assert!(a.allowance() < 68 * MIB, "what jobs needed once is set aside");
        a.set(0, 64 * MIB);
        assert_eq!(a.allowance(), u64::MAX);
    }

    /// What readers keep of memtables that were flushed counts until they let go of it. First the block cache gives way to it, then the cache of
    /// partitions.
    #[test]
    fn retired_memtables_take_the_room_of_caches() {
        let a = accountant(60 * MIB, 64 * MIB);
        a.set(100 * MIB, 64 * MIB);
        a.set_partitioned(true);
        let caches = || (a.partitions.capacity() / MIB, a.cache.capacity() / MIB);
        assert_eq!(caches(), (40, 60));
        a.memtables.charge(50 * MIB);
        assert_eq!(caches(), (40, 10));
        let pinned = a.arenas.retired();
        a.memtables.hand_over(pinned, 50 * MIB);
        assert_eq!((caches(), a.usage().total()), ((40, 10), 50 * MIB), "nothing was freed");
        a.memtables.charge(10 * MIB);
        assert_eq!((caches(), a.allowance()), ((40, 0), 40 * MIB));
        a.memtables.charge(50 * MIB);
        assert_eq!((caches(), a.allowance()), ((0, 0), 40 * MIB), "110 MiB are held");
        pinned.release(30 * MIB);
        a.balance();
        assert_eq!(caches(), (20, 0));
        pinned.release(20 * MIB);
        a.balance();
        assert_eq!(caches(), (40, 0));
    }

    /// Where tables are in partitions, these have what is left of the allowance beside the tables, and the block cache has not.
    #[test]
    fn partitions_have_the_rest_of_the_allowance() {
        let a = accountant(60 * MIB, 64 * MIB);
        a.set(100 * MIB, 64 * MIB);
        assert_eq!((a.partitions.capacity(), a.cache.capacity()), (0, 64 * MIB));
        a.set_partitioned(true);
        assert_eq!((a.partitions.capacity(), a.cache.capacity()), (40 * MIB, 60 * MIB));
        let charge = Charge::new(&a.tables, 10 * MIB);
        assert_eq!((a.partitions.capacity(), a.cache.capacity()), (30 * MIB, 60 * MIB));
        a.partitions.insert(1, 2, a.partitions.copied(&[1; 4096]).unwrap());
        assert!(a.partitions.used() > 4096);
        assert_eq!((a.table_bytes(), a.usage().total()), (10 * MIB + a.partitions.used(), a.table_bytes()));
        drop(charge);
        a.balance();
        assert_eq!(a.partitions.capacity(), 40 * MIB);
        a.set_partitioned(false);
        assert_eq!((a.partitions.capacity(), a.partitions.used(), a.cache.capacity()), (0, 0, 64 * MIB));
        a.set_partitioned(true);
        a.set(0, 64 * MIB);
        assert_eq!((a.partitions.capacity(), a.allowance()), (0, u64::MAX));
    }

    #[test]
    fn tables_may_have_what_is_not_set_aside_for_others() {
        let a = accountant(60 * MIB, 8 * MIB);
        a.set(100 * MIB, 8 * MIB);
        assert_eq!(a.allowance(), 40 * MIB);
        a.memtables.charge(60 * MIB);
        a.balance();
        assert_eq!(a.allowance(), 40 * MIB, "it was set aside");
        a.transactions.charge(10 * MIB);
        a.note_locks(MIB);
        a.balance();
        assert_eq!(a.allowance(), 29 * MIB);
        a.jobs.charge(4 * MIB);
        a.balance();
        a.jobs.release(4 * MIB);
        a.balance();
        assert_eq!(a.allowance(), 25 * MIB);
        a.jobs.charge(1 << 40);
        a.balance();
        assert_eq!(a.allowance(), 15 * MIB - MIB / 2, "jobs take half at most");
        a.transactions.charge(1 << 40);
        a.balance();
        assert_eq!((a.allowance(), a.cache.capacity()), (0, 0));
        assert_eq!(a.usage().total(), (60 << 20) + (10 << 20) + (2 << 40) + MIB);
    }
}
