//! Which entry is next. The same specification draws the same entries again.

use super::spec::{Spec, Workload};
use crate::data::Pattern;
use crate::dist::{Permutation, Zipf};
use kingtide_base::rng::Rng;
use std::ops::Range;

/// Chooses entries.
pub enum Picker {
    /// A share of the data set in index order, again from its start at its end.
    InOrder { share: Range<u64>, next: u64 },
    /// Each entry of a share of a permutation once.
    Once { order: Permutation, next: u64 },
    /// Uniformly, with repetition.
    Uniform { n: u64, rng: Rng },
    /// With Zipfian skew; hot entries lie scattered.
    Zipf { zipf: Zipf, order: Permutation, rng: Rng },
}

/// Thread `t`'s part of `0..n` when `threads` share it evenly.
pub fn share(n: u64, t: usize, threads: usize) -> Range<u64> {
    let at = |t: usize| (u128::from(n) * t as u128 / threads as u128) as u64;
    at(t)..at(t + 1)
}

impl Picker {
    /// Draws that repeat for the same `purpose`.
    pub fn drawn(spec: &Spec, thread: usize, purpose: u64) -> Picker {
        let n = spec.entries;
        let rng = Rng::new(spec.seed ^ purpose ^ ((thread as u64 + 1) << 32));
        if spec.pattern == Pattern::Zipfian {
            Picker::Zipf { zipf: Zipf::new(n, 0.99), order: Permutation::new(n, spec.seed), rng }
        } else {
            Picker::Uniform { n, rng }
        }
    }

    /// Entries that thread `thread` writes.
    pub fn for_writes(spec: &Spec, thread: usize) -> Picker {
        if matches!(spec.pattern, Pattern::Zipfian | Pattern::Uniform) {
            return Picker::drawn(spec, thread, 1);
        }
        Picker::for_load(spec, thread)
    }

    /// Entries that thread `thread` loads: its share of all, in index order.
    pub fn for_load(spec: &Spec, thread: usize) -> Picker {
        let share = share(spec.entries, thread, spec.threads);
        Picker::InOrder { next: share.start, share }
    }

    /// Entries that thread `thread` asks for.
    pub fn for_reads(spec: &Spec, thread: usize) -> Picker {
        if spec.pattern.is_ordered() { Picker::for_load(spec, thread) } else { Picker::drawn(spec, thread, 2) }
    }

    /// Entries that thread `thread` deletes: each once, in an order unlike the load's, except under Zipfian skew.
    pub fn for_deletes(spec: &Spec, thread: usize) -> Picker {
        match spec.pattern {
            Pattern::Zipfian => Picker::drawn(spec, thread, 3),
            p if p.is_ordered() => {
                let share = share(spec.operations, thread, spec.threads);
                Picker::InOrder { next: share.start, share }
            }
            _ => {
                let next = share(spec.operations, thread, spec.threads).start;
                Picker::Once { order: Permutation::new(spec.entries, spec.seed ^ 3), next }
            }
        }
    }

    /// Entries that transactions of thread `thread` touch.
    pub fn for_txn(spec: &Spec, thread: usize) -> Picker {
        match (spec.txn.hot_keys, spec.workload) {
            (Some(n), _) => Picker::drawn(&Spec { entries: n, ..spec.clone() }, thread, 6),
            (None, Workload::TxnWrite) => Picker::for_writes(spec, thread),
            (None, _) => Picker::for_reads(spec, thread),
        }
    }

    /// The next entry's index.
    #[inline]
    pub fn next(&mut self) -> u64 {
        match self {
            Picker::InOrder { share, next } => {
                let i = *next;
                *next = if i + 1 >= share.end { share.start } else { i + 1 };
                i
            }
            Picker::Once { order, next } => {
                *next += 1;
                order.at(*next - 1)
            }
            Picker::Uniform { n, rng } => rng.below(*n),
            Picker::Zipf { zipf, order, rng } => order.at(zipf.sample(rng)),
        }
    }
}
