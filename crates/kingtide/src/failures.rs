//! Background work that failed: of a family, or of none in particular. A thread that waits for a family
//! counts only the failures that can keep that family from its turn.

use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicU64, Ordering};
use kingtide_base::{Error, ErrorKind, Result};

/// Failures of one kind of background work.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    count: u64,
    /// `None` once work succeeded.
    last: Option<Error>,
}

impl Failures {
    /// Takes note of how work ended, and returns it.
    pub fn note<T>(&self, ended: Result<T>) -> Result<T> {
        let mut state = self.state.lock();
        match &ended {
            Ok(_) => state.last = None,
            Err(e) if e.kind() == ErrorKind::Cancelled => {}
            Err(e) => {
                state.count += 1;
                state.last = Some(e.clone());
            }
        }
        drop(state);
        ended
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.state.lock().count
    }

    /// The last one, if there were `more` of them since there were `before`, and work fails still.
    pub fn since(&self, before: u64, more: u64) -> Option<Error> {
        let state = self.state.lock();
        state.last.clone().filter(|_| state.count.saturating_sub(before) >= more)
    }

    /// The number of failures and the last one, if work still fails.
    pub fn lasting(&self) -> Option<(u64, Error)> {
        let state = self.state.lock();
        state.last.clone().map(|e| (state.count, e))
    }
}

/// When a family's last job of a kind failed. It may do so whenever it is tried, as with a damaged file, so others go first for as many jobs
/// as there are families: then each of these has had its turn, should all others fail too.
#[derive(Debug, Default)]
pub(crate) struct Yields {
    /// How many jobs had been given then; 0 if it did not fail. Changed under the catalog lock.
    failed: AtomicU64,
}

impl Yields {
    /// Takes note of how a job ended after `turn` jobs were given, itself included.
    pub fn note<T>(&self, turn: u64, ended: &Result<T>) {
        self.failed.store(if ended.is_err() { turn } else { 0 }, Ordering::Relaxed);
    }

    /// What to sort `families` families by when job number `turn` is given, the first of which is 1: those that yield come last, and of
    /// these the one that failed last.
    pub fn rank(&self, turn: u64, families: usize) -> u64 {
        let failed = self.failed.load(Ordering::Relaxed);
        if failed > 0 && turn.saturating_sub(failed) < families as u64 { failed } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However urgent those are that fail, each family has one of as many jobs as there are families.
    #[test]
    fn all_families_have_their_turn_among_others_that_fail() {
        for failing in 1..5 {
            let families: Vec<Yields> = (0..5).map(|_| Yields::default()).collect();
            let mut turns = [0; 5];
            for turn in 1..=50 {
                // The first are the most urgent ones, and no job changes that.
                let next = (0..5).min_by_key(|i| (families[*i].rank(turn, 5), *i)).unwrap();
                let ended = if next < failing { Err(Error::invalid("fails")) } else { Ok(()) };
                families[next].note(turn, &ended);
                turns[next] += 1;
            }
            assert!(turns[..failing].iter().all(|n| *n == 10), "{turns:?}");
            assert_eq!(turns[failing], 10 * (5 - failing), "{turns:?}");
        }
        let alone = Yields::default();
        alone.note(1, &Err::<(), _>(Error::invalid("fails")));
        assert_eq!((alone.rank(1, 1), alone.rank(2, 1)), (1, 0));
    }

    #[test]
    fn failures_count_in_a_row_and_from_a_moment_on() {
        let failures = Failures::default();
        let fail = || drop(failures.note(Err::<(), _>(Error::invalid("fails"))));
        fail();
        let before = failures.count();
        fail();
        assert!(failures.since(before, 2).is_none());
        let _ = failures.note(Err::<(), _>(Error::new(ErrorKind::Cancelled, "no failure")));
        assert!(failures.since(before, 2).is_none());
        fail();
        assert!(failures.since(before, 2).is_some());
        failures.note(Ok(())).unwrap();
        assert!(failures.since(before, 2).is_none());
    }
}
