//! Operations that took long, the last [`KEPT`] of them.

use crate::histogram::Histogram;
use crate::lock::Mutex;
use crate::perf::PerfContext;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// Slow operations that are kept.
pub const KEPT: usize = 128;

/// What an operation was about. A key is recorded as its length and hash: keys are the user's data, which should not be in a log that may be
/// passed on, and a hash is enough to see that two operations accessed the same key. The hash is not keyed: anyone who can guess a key can check
/// the guess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The family's id; 0 is the default family's. Of a batch the first one's.
    pub family: u32,
    /// Keys that the operation was about.
    pub keys: u64,
    /// Bytes of the first key; 0 if there is none.
    pub key_len: u64,
    /// [`crate::hash::hash64`] of the first key; 0 if there is none.
    pub key_hash: u64,
}

impl Subject {
    /// One key of a family.
    #[doc(hidden)]
    pub fn key(family: u32, key: &[u8]) -> Subject {
        Subject { family, keys: 1, key_len: key.len() as u64, key_hash: crate::hash::hash64(key) }
    }
}

/// A slow operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowOperation {
    /// Which one of all slow operations since the open, from 0.
    pub number: u64,
    /// What it did.
    pub operation: Histogram,
    /// To what.
    pub subject: Subject,
    /// How long it took, in nanoseconds.
    pub ns: u64,
    /// What it accessed and waited for.
    pub stages: PerfContext,
}

impl fmt::Display for SlowOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Subject { family, keys, key_len, key_hash } = self.subject;
        let (name, took) = (self.operation.name(), Duration::from_nanos(self.ns));
        write!(
            f,
            "{name} took {took:.1?} (family {family}, {keys} keys, first of {key_len} bytes, hash {key_hash:016x})"
        )?;
        match self.stages == PerfContext::default() {
            true => Ok(()),
            false => write!(f, ": {}", self.stages),
        }
    }
}

/// The last slow operations.
#[derive(Default)]
pub(crate) struct Ring(Mutex<(u64, VecDeque<SlowOperation>)>);

impl Ring {
    #[cold]
    pub(crate) fn push(&self, operation: Histogram, subject: Subject, ns: u64, stages: PerfContext) -> SlowOperation {
        let mut ring = self.0.lock();
        let number = ring.0;
        ring.0 += 1;
        if ring.1.len() == KEPT {
            ring.1.pop_front();
        }
        let slow = SlowOperation { number, operation, subject, ns, stages };
        ring.1.push_back(slow);
        slow
    }

    /// Those from `number` on that are still kept, oldest first.
    pub(crate) fn since(&self, number: u64) -> Vec<SlowOperation> {
        let ring = self.0.lock();
        ring.1.iter().filter(|s| s.number >= number).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept_in_order() {
        let ring = Ring::default();
        (0..300).for_each(|ns| {
            ring.push(Histogram::Get, Subject::key(3, b"key"), ns, PerfContext::default());
        });
        let kept = ring.since(0);
        assert_eq!((kept.len(), kept[0].ns, kept[KEPT - 1].number), (KEPT, 300 - KEPT as u64, 299));
        assert_eq!(ring.since(298).len(), 2);
        assert_eq!((kept[0].subject.key_len, kept[0].subject.key_hash), (3, crate::hash::hash64(b"key")));
    }
}
