//! Where the operations of a thread spend their time, and what they touch.
//!
//! A thread asks for it with [`start`] and gets it with [`take`]; only its own operations count. While it is off, a stage costs
//! the test of one byte of the thread's own.
//!
//! ```
//! # use kingtide_base::perf::{self, Level};
//! perf::start(Level::Times);
//! // ... operations on a database ...
//! let spent = perf::take();
//! perf::stop();
//! println!("{spent}");
//! assert_eq!(spent.blocks_read, 0);
//! ```

use crate::tick::Ticker;
use std::cell::{Cell, RefCell};
use std::fmt;

/// How much is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Nothing.
    #[default]
    Off,
    /// What operations touch, how long they wait for the disk, for locks and for room, and how long the stages of a commit
    /// take: a few additions an operation.
    Counts,
    /// That, and how long each of their other stages takes: two readings of the processor's time-stamp counter for each stage.
    Times,
}

/// Bits of what is looked at.
const COUNTS: u8 = 1;
const WAITS: u8 = 2;
const TIMES: u8 = 4;

macro_rules! perf_table {
    ($( $(#[doc = $doc:literal])+ $stage:ident $field:ident; )*) => {
        /// What the operations of a thread touched, and how long their stages took. Times are in nanoseconds.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct PerfContext { $( $(#[doc = $doc])+ pub $field: u64, )* }

        /// A field of [`PerfContext`], to add to.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Stage { $( $(#[doc = $doc])+ $stage, )* }

        const FIELDS: usize = [$(Stage::$stage),*].len();

        impl PerfContext {
            fn of(values: [u64; FIELDS]) -> PerfContext {
                PerfContext { $( $field: values[Stage::$stage as usize], )* }
            }

            /// All fields: name, what it says, value.
            pub fn entries(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$( (stringify!($field), concat!($($doc),+), self.$field), )*]
            }
        }
    };
}

perf_table! {
    /// Memtables that reads looked into.
    MemtablesSearched memtables_searched;
    /// Tables that reads looked into, those that a filter ruled out included.
    TablesSearched tables_searched;
    /// Tables that a filter ruled out.
    FilterSkips filter_skips;
    /// Table blocks and values found in the block cache.
    CacheHits cache_hits;
    /// Table blocks and values not found in the block cache.
    CacheMisses cache_misses;
    /// Table blocks read from files.
    BlocksRead blocks_read;
    /// Bytes of table blocks read from files.
    BlockBytes block_bytes;
    /// Values read from value logs.
    ValueLogReads value_log_reads;
    /// Bytes of values in value logs, as stored.
    ValueLogBytes value_log_bytes;
    /// Bytes appended to the write-ahead log.
    LogBytes log_bytes;
    /// Nanoseconds that commits waited for flow control to admit them.
    AdmissionNs admission_ns;
    /// Nanoseconds that transactions and commits waited for locks of other transactions.
    LockWaitNs lock_wait_ns;
    /// Nanoseconds that commits waited for the write-ahead log to be synced.
    SyncNs sync_ns;
    /// Nanoseconds that reads waited for table blocks from files, decompression and checks of point reads included.
    BlockReadNs block_read_ns;
    /// Nanoseconds that reads waited for values from value logs, decompression and checks included.
    ValueLogNs value_log_ns;
    /// Nanoseconds in which commits waited for their turn and were checked for conflicts.
    TurnNs turn_ns;
    /// Nanoseconds in which commits were appended to the write-ahead log.
    LogNs log_ns;
    /// Nanoseconds in which commits moved to another log segment: a part of `log_ns`, except in the first commit after an open.
    LogSwitchNs log_switch_ns;
    /// Of `log_ns`: nanoseconds in which commits mapped the next part of a log segment.
    LogWindowNs log_window_ns;
    /// Nanoseconds in which commits were inserted into memtables.
    MemtableInsertNs memtable_insert_ns;
    /// Nanoseconds in which commits sealed memtables that had become full.
    SealNs seal_ns;
    /// Nanoseconds in which reads searched memtables. Only with `Level::Times`.
    MemtableSearchNs memtable_search_ns;
    /// Nanoseconds in which reads searched tables, waits for blocks and value logs included. Only with `Level::Times`.
    TableSearchNs table_search_ns;
    /// Nanoseconds of decompression, of blocks and of values. Only with `Level::Times`.
    DecompressNs decompress_ns;
}

impl fmt::Display for PerfContext {
    /// The fields that are not 0: `name=value`, separated by spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut space = "";
        for (name, _, value) in self.entries().into_iter().filter(|(.., value)| *value > 0) {
            write!(f, "{space}{name}={value}")?;
            space = " ";
        }
        Ok(())
    }
}

struct Local {
    /// What is looked at now.
    bits: Cell<u8>,
    /// What the thread asked for.
    asked: Cell<u8>,
    values: [Cell<u64>; FIELDS],
}

thread_local! {
    static LOCAL: Local =
        const { Local { bits: Cell::new(0), asked: Cell::new(0), values: [const { Cell::new(0) }; FIELDS] } };
    /// What the thread's values were when the operations began that are looked at because they may be slow, outermost first.
    static OPERATIONS: RefCell<Vec<[u64; FIELDS]>> = const { RefCell::new(Vec::new()) };
}

fn values() -> [u64; FIELDS] {
    LOCAL.with(|l| std::array::from_fn(|i| l.values[i].get()))
}

/// Begins to look at the operations of this thread, from zero.
pub fn start(level: Level) {
    let bits = match level {
        Level::Off => 0,
        Level::Counts => COUNTS | WAITS,
        Level::Times => COUNTS | WAITS | TIMES,
    };
    take();
    LOCAL.with(|l| {
        l.asked.set(bits);
        l.bits.set(bits);
    });
}

/// Stops looking. What was found stays for [`take`].
pub fn stop() {
    LOCAL.with(|l| {
        l.asked.set(0);
        l.bits.set(0);
    });
}

/// Returns what was found since [`start`] or the last call of this; begins anew from zero, at the same level.
pub fn take() -> PerfContext {
    let found = PerfContext::of(values());
    LOCAL.with(|l| l.values.iter().for_each(|v| v.set(0)));
    found
}

/// Adds to a count.
#[doc(hidden)] // for the engine
#[inline]
pub fn count(stage: Stage, n: u64) {
    if LOCAL.with(|l| l.bits.get()) != 0 {
        add(stage, n);
    }
}

#[cold]
fn add(stage: Stage, n: u64) {
    LOCAL.with(|l| {
        let value = &l.values[stage as usize];
        value.set(value.get().wrapping_add(n));
    });
}

/// A stage that is being timed, or none.
#[doc(hidden)] // for the engine
#[derive(Clone, Copy, Debug)]
pub struct Timer(u64);

const NOT_TIMED: u64 = u64::MAX;

/// Begins a stage that waits for something, which makes the timing free by comparison.
#[doc(hidden)] // for the engine
#[inline]
pub fn begin_wait() -> Timer {
    begin(WAITS)
}

/// Begins another stage.
#[doc(hidden)] // for the engine
#[inline]
pub fn begin_stage() -> Timer {
    begin(TIMES)
}

#[inline]
fn begin(bit: u8) -> Timer {
    if LOCAL.with(|l| l.bits.get()) & bit == 0 { Timer(NOT_TIMED) } else { begin_now() }
}

#[cold]
fn begin_now() -> Timer {
    Timer(Ticker::machine().now())
}

impl Timer {
    /// Ends the stage.
    #[doc(hidden)] // for the engine
    #[inline]
    pub fn end(self, stage: Stage) {
        if self.0 != NOT_TIMED {
            self.end_now(stage);
        }
    }

    #[cold]
    fn end_now(self, stage: Stage) {
        add(stage, Ticker::machine().ns_since(self.0));
    }
}

/// An operation begins that is to be recorded if it is slow: what it touches is counted, and what it waits for is timed.
#[cold]
pub(crate) fn begin_operation() {
    OPERATIONS.with(|o| o.borrow_mut().push(values()));
    LOCAL.with(|l| l.bits.set(l.bits.get() | COUNTS | WAITS));
}

/// It ended. What it did; what operations inside of it did counts for it too.
#[cold]
pub(crate) fn end_operation() -> PerfContext {
    let (before, outermost) = OPERATIONS.with(|o| {
        let mut operations = o.borrow_mut();
        (operations.pop().unwrap_or([0; FIELDS]), operations.is_empty())
    });
    if outermost {
        LOCAL.with(|l| l.bits.set(l.asked.get()));
    }
    let now = values();
    PerfContext::of(std::array::from_fn(|i| now[i].saturating_sub(before[i])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_counted_unless_asked_for() {
        count(Stage::CacheHits, 1);
        begin_stage().end(Stage::LogNs);
        assert_eq!(take(), PerfContext::default());
        start(Level::Counts);
        count(Stage::CacheHits, 2);
        begin_stage().end(Stage::LogNs);
        std::thread::spawn(|| count(Stage::CacheHits, 7)).join().unwrap();
        let found = take();
        assert_eq!((found.cache_hits, found.log_ns), (2, 0));
        assert_eq!(take(), PerfContext::default(), "a second look begins anew");
        count(Stage::BlockBytes, 9);
        stop();
        count(Stage::BlockBytes, 9);
        let found = take();
        assert_eq!((found.block_bytes, found.to_string().as_str()), (9, "block_bytes=9"));
    }

    #[test]
    fn times_are_those_of_the_stages() {
        start(Level::Times);
        let (outer, inner) = (begin_stage(), begin_wait());
        std::thread::sleep(std::time::Duration::from_millis(5));
        inner.end(Stage::SyncNs);
        outer.end(Stage::TurnNs);
        stop();
        let found = take();
        assert!(found.sync_ns >= 4_900_000 && found.turn_ns >= found.sync_ns, "{found}");
    }

    #[test]
    fn an_operation_that_may_be_slow_is_looked_at_by_itself() {
        begin_operation();
        count(Stage::CacheMisses, 1);
        begin_operation();
        count(Stage::CacheMisses, 3);
        begin_stage().end(Stage::LogNs); // not what waits
        assert_eq!(end_operation().cache_misses, 3);
        count(Stage::CacheMisses, 1);
        let outer = end_operation();
        assert_eq!((outer.cache_misses, outer.log_ns), (5, 0));
        count(Stage::CacheMisses, 1);
        assert_eq!(take().cache_misses, 5, "nothing after its end");
    }

    #[test]
    fn what_the_thread_asked_for_outlasts_an_operation() {
        start(Level::Times);
        begin_operation();
        count(Stage::BlocksRead, 1);
        end_operation();
        count(Stage::BlocksRead, 1);
        let timer = begin_stage();
        assert_ne!(timer.0, NOT_TIMED);
        assert_eq!(take().blocks_read, 2);
        stop();
    }
}
