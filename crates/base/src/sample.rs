//! Which operations are timed of those that are so cheap that timing each would cost more than 2 %.
//!
//! A thread divides the operations of a kind that it does into blocks, and times one of each block, at a random place. It stands for its
//! whole block: its time is recorded as often as the block has operations. A fixed stride would see all or nothing of a program whose
//! every 16th get is the slow one; here each operation has the same chance, whatever the period of what the program does, and
//! counts are still exact but for the last block of each thread. The place of the next block is drawn when a place is reached: all others
//! cost a decrement of the thread's own memory.

use crate::hash::mix64;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of operation of which some are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampled {
    /// Point reads.
    Get,
    /// Seeks of cursors.
    Seek,
    /// Steps of cursors.
    Next,
}

/// Operations of a block, of each kind.
const BLOCKS: [u32; 3] = [32, 32, 64];

impl Sampled {
    /// Returns how many operations one that is timed stands for.
    pub const fn weight(self) -> u64 {
        BLOCKS[self as usize] as u64
    }
}

struct Place {
    /// Operations before the next one that is timed.
    until: Cell<u32>,
    /// Operations of its block that come after it.
    behind: Cell<u32>,
    begun: Cell<bool>,
}

thread_local! {
    static PLACES: [Place; 3] =
        const { [const { Place { until: Cell::new(0), behind: Cell::new(0), begun: Cell::new(false) } }; 3] };
    /// State of the thread's generator; 0 before its first use.
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

/// Returns whether the operation that begins is timed.
#[inline]
pub fn is_chosen(kind: Sampled) -> bool {
    PLACES.with(|places| {
        let place = &places[kind as usize];
        match place.until.get() {
            0 => place.reached(BLOCKS[kind as usize]),
            n => {
                place.until.set(n - 1);
                false
            }
        }
    })
}

/// Returns how many operations of a kind may be done without asking [`is_chosen`], if [`pass`] counts them afterwards.
#[inline]
pub fn unchosen(kind: Sampled) -> u32 {
    PLACES.with(|places| places[kind as usize].until.get())
}

/// Counts operations that were done without asking [`is_chosen`]: at most as many as [`unchosen`] returned.
#[inline]
pub fn pass(kind: Sampled, operations: u32) {
    PLACES.with(|places| {
        let until = &places[kind as usize].until;
        until.set(until.get().saturating_sub(operations));
    });
}

impl Place {
    #[cold]
    fn reached(&self, block: u32) -> bool {
        if !self.begun.replace(true) {
            // The first operation of a thread has no other chance than the rest: there may be a thread for each.
            let at = random_below(block);
            self.behind.set(block - 1 - at);
            if at > 0 {
                self.until.set(at - 1);
                return false;
            }
        }
        let at = random_below(block);
        self.until.set(self.behind.replace(block - 1 - at) + at);
        true
    }
}

/// A thread's generator (as in [`crate::rng`]); its seed is how many threads had one before.
fn random_below(n: u32) -> u32 {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    RANDOM.with(|state| {
        if state.get() == 0 {
            state.set(mix64(THREADS.fetch_add(1, Ordering::Relaxed)) | 1);
        }
        state.set(state.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        (((mix64(state.get()) >> 32) * u64::from(n)) >> 32) as u32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_has_one_operation_that_is_timed() {
        let count = || (0..1000).map(|_| (0..32).filter(|_| is_chosen(Sampled::Get)).count()).collect();
        let blocks: Vec<usize> = std::thread::spawn(count).join().unwrap(); // which begins at a block's begin
        assert!(blocks.iter().all(|n| *n == 1), "{blocks:?}");
    }

    #[test]
    fn operations_that_are_passed_count_towards_their_block() {
        let count = || {
            (0..1000)
                .map(|_| {
                    let mut chosen = 0;
                    let mut done = 0;
                    while done < 64 {
                        let free = unchosen(Sampled::Next).min(7).min(64 - done);
                        pass(Sampled::Next, free);
                        done += free;
                        if done < 64 {
                            chosen += usize::from(is_chosen(Sampled::Next));
                            done += 1;
                        }
                    }
                    chosen
                })
                .collect()
        };
        let blocks: Vec<usize> = std::thread::spawn(count).join().unwrap(); // a new thread is at the start of a block
        assert!(blocks.iter().all(|n| *n == 1), "{blocks:?}");
    }

    #[test]
    fn no_period_of_what_a_program_does_is_seen_more_often_or_less() {
        for period in (1..=100).chain([128, 256, 1024]) {
            let seen = (0..6000 * period).filter(|i| is_chosen(Sampled::Get) && i % period == period - 1).count();
            // 6000 operations with a chance of 1/32 each: 188, with a standard deviation of 13.
            assert!((120..256).contains(&seen), "period {period}: {seen}");
        }
    }

    #[test]
    fn a_thread_that_does_one_operation_is_measured_as_often_as_others() {
        let one = || std::thread::spawn(|| is_chosen(Sampled::Seek)).join().unwrap();
        let chosen = (0..1600).filter(|_| one()).count();
        assert!((15..90).contains(&chosen), "{chosen} of 1600");
    }
}
