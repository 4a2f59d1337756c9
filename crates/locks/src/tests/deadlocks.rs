//! Searches for deadlocks, step by step on one thread: what they find and what that takes.

use super::*;
use crate::queue::Place;
use crate::span::{Span, Want};
use crate::state::{Rest, State, Verdict};
use kingtide_base::rng::Rng;
use kingtide_base::sync::Condvar;
use kingtide_base::sync::atomic::AtomicBool;

/// Transactions that ask and wait without threads.
struct Turns {
    state: State,
    order: KeyOrder,
    waiting: BTreeMap<TxnId, Place>,
    waits: u64,
    victims: u64,
}

impl Turns {
    fn new() -> Turns {
        let state = State::new(Arc::new(AtomicBool::new(false)));
        Turns { state, order: KeyOrder::U64, waiting: BTreeMap::new(), waits: 0, victims: 0 }
    }

    /// All keys from `lo` to `hi`. Returns whether the transaction has them now; else it waits, or became a victim.
    fn ask(&mut self, txn: TxnId, (lo, hi): (u64, u64), mode: LockMode) -> bool {
        let (a, b) = (lo.to_le_bytes(), hi.to_le_bytes());
        let span = Span::range(&self.order, Bound::Included(&a), Bound::Included(&b)).unwrap();
        let want = Want { txn, family: F, span, mode };
        let Err(blocker) = self.state.try_lock(&want, &self.order, true) else { return true };
        self.waits += 1;
        let place = self.state.enqueue(want, 0, Arc::new(Condvar::new()), blocker).unwrap();
        self.waiting.insert(txn, place);
        self.victims += self.state.untangle(txn);
        false
    }

    /// Returns the transactions whose waits ended, and whether they got the lock. A victim's cycle is one, of locks that are held.
    fn ended(&mut self) -> Vec<(TxnId, bool)> {
        let mut ended = Vec::new();
        for (txn, place) in &self.waiting {
            match self.state.verdict(*place) {
                None => continue,
                Some(Verdict::Granted) => ended.push((*txn, true)),
                Some(Verdict::Cancelled) => panic!("{txn} was not ended"),
                Some(Verdict::Deadlock(steps)) => {
                    assert_eq!(steps[0].want.txn, *txn);
                    for (step, next) in steps.iter().zip(steps.iter().cycle().skip(1)) {
                        assert_eq!(step.holder, next.want.txn);
                        assert!(self.state.holders(&step.want).contains(&step.holder), "{} holds nothing", step.holder);
                    }
                    ended.push((*txn, false));
                }
            }
        }
        ended.iter().for_each(|(txn, _)| _ = self.waiting.remove(txn));
        ended
    }

    fn release(&mut self, txn: TxnId) {
        assert!(matches!(self.state.release(txn, usize::MAX, usize::MAX), Rest::Nothing));
    }
}

/// Whatever the transactions ask for, in whatever mode: no cycle is left, and none that is no deadlock has a victim.
#[test]
fn exactly_the_deadlocks_are_broken() {
    let full = std::env::var_os("KINGTIDE_FULL").is_some();
    for seed in 0..if full { 5_000 } else { 150 } {
        let mut rng = Rng::new(seed);
        let mut t = Turns::new();
        let (txns, keys) = (3 + rng.below(12), 1 + rng.below(8));
        let (ranges, shared) = (rng.below(3), 1 + rng.below(4));
        for _ in 0..300 {
            let txn = 1 + rng.below(txns);
            if rng.one_in(8) {
                t.waiting.remove(&txn).into_iter().for_each(|place| t.state.withdraw(place));
                t.release(txn);
            } else if !t.waiting.contains_key(&txn) {
                let lo = rng.below(keys);
                let hi = if rng.below(3) < ranges { lo + rng.below(keys) } else { lo };
                t.ask(txn, (lo, hi), if rng.below(5) < shared { S } else { X });
            }
            t.state.check();
            let victims = t.victims;
            let ended = t.ended();
            t.victims -= ended.iter().filter(|(_, granted)| !granted).count() as u64;
            assert_eq!(t.victims, 0, "seed {seed}: {victims} victims counted");
            for (txn, _) in ended.into_iter().filter(|(_, granted)| !granted) {
                t.release(txn);
                t.state.check();
            }
        }
    }
}

/// Runs that many transactions, all at once, each of which locks some of a few keys in an order of its own. A victim begins again. Returns how
/// often one waited, was a victim, and what the searches took.
fn contend(txns: u64, keys: u64, shared: u64) -> (u64, u64, u64) {
    let (mut rng, mut t) = (Rng::new(7), Turns::new());
    // The lists of what to lock, and how much of it each has. An id is new with each attempt, and the list goes on with it.
    let mut runs: BTreeMap<TxnId, (Vec<(u64, LockMode)>, usize)> = (1..=txns)
        .map(|txn| {
            let wants = (0..2 + rng.below(3)).map(|_| (rng.below(keys), if rng.below(4) < shared { S } else { X }));
            (txn, (wants.collect(), 0))
        })
        .collect();
    let mut next = txns + 1;
    while !runs.is_empty() {
        for (ended, granted) in t.ended() {
            let Some((list, at)) = runs.remove(&ended) else { continue };
            if granted {
                runs.insert(ended, (list, at + 1));
            } else {
                t.release(ended);
                runs.insert(next, (list, 0));
                next += 1;
            }
        }
        for txn in runs.keys().copied().collect::<Vec<_>>() {
            let Some((list, at)) = runs.get(&txn).filter(|_| !t.waiting.contains_key(&txn)) else { continue };
            let Some((key, mode)) = list.get(*at).copied() else {
                t.release(txn);
                runs.remove(&txn);
                continue;
            };
            if t.ask(txn, (key, key), mode) {
                runs.entry(txn).and_modify(|(_, at)| *at += 1);
            }
        }
    }
    (t.waits, t.victims, t.state.steps)
}

/// Many transactions that lock few keys in any order wait, and are victims, a few times each, however many they are; and a search does not
/// look at the line before each of those in it.
#[test]
fn deadlocks_of_many_cost_a_few_waits_each() {
    for shared in 0..4 {
        for txns in [100, 400] {
            let (waits, victims, steps) = contend(txns, 4, shared);
            println!(
                "{txns} transactions, {shared} of 4 locks shared: {waits} waits, {victims} victims, {steps} steps"
            );
            assert!(waits <= 8 * txns && victims <= 2 * txns, "{waits} waits, {victims} victims");
            assert!(steps <= waits * txns / 2, "{steps} steps for {waits} waits");
        }
    }
}

/// Requests in shared mode do not look at each other, neither when they begin to wait nor when their holder gives back another lock.
#[test]
fn shared_requests_that_wait_together_do_not_look_at_each_other() {
    let mut t = Turns::new();
    assert!(t.ask(1, (0, 0), X) && t.ask(1, (9, 9), X));
    (2..200).for_each(|txn| assert!(!t.ask(txn, (0, (txn - 2) % 2), S)));
    assert!(t.state.release_newest(1));
    assert_eq!(t.state.looks(F), 0);
    t.state.check();
    t.release(1);
    assert_eq!((t.ended().len(), t.state.looks(F)), (198, 0));
}
