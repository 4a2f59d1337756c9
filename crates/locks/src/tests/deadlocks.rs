//! Searches for deadlocks, step by step on one thread: what they find and what that takes.

use super::*;
use crate::queue::Place;
use crate::span::{Span, Want};
use crate::state::{PATIENCE, Rest, State, Verdict};
use kingtide_base::rng::Rng;
use kingtide_base::sync::Condvar;
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
        self.victims += self.state.untangle(txn).len() as u64;
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
                Some(Verdict::Deadlock { cycle: steps, .. }) => {
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
        let (ranges, shared) = (rng.below(3), rng.below(5));
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

/// A request is overtaken by survivors of deadlocks a few times for each that was in line before it, however many deadlocks there are.
#[test]
fn survivors_do_not_overtake_a_request_without_end() {
    let mut t = Turns::new();
    let (line, mut grants) = (3, Vec::new());
    // Each holder of key 0 then waits for the next in line, and has fewer locks than that one: so it is the victim.
    let keys_of = |n: u64| 2 * n + 1;
    let mut holder = 1_000;
    assert!(t.ask(holder, (0, 0), X));
    (0..line).for_each(|txn| assert!(!t.ask(1 + txn, (0, 0), X)));
    for n in 1..=u64::from(PATIENCE) * (line + 1) {
        let (survivor, base) = (1_000 + n, 1_000 * n);
        (0..keys_of(n)).for_each(|key| assert!(t.ask(survivor, (base + key, base + key), X)));
        assert!(!t.ask(survivor, (0, 0), X));
        assert!(!t.ask(holder, (base, base), X));
        t.state.check();
        assert_eq!(t.ended(), [(holder, false)]);
        t.release(holder);
        loop {
            let ended = t.ended();
            assert_eq!(ended.len(), 1);
            holder = ended[0].0;
            grants.push(holder);
            if holder == survivor {
                break;
            }
            t.release(holder);
        }
        t.state.check();
    }
    for place in 1..=line {
        let before = grants.iter().position(|txn| *txn == place).expect("it is granted the lock in the end");
        let overtaken = grants[..before].iter().filter(|txn| **txn > line).count() as u64;
        assert!(
            overtaken < u64::from(PATIENCE) * place,
            "the request in place {place} was overtaken {overtaken} times"
        );
    }
}

/// The same whatever the transactions ask for, as long as it is exclusive: then no request goes ahead of another but by a deadlock.
#[test]
fn requests_are_overtaken_a_few_times_for_each_before_them() {
    struct Asked {
        key: u64,
        since: u64,
        place: u64,
        overtaken: u64,
    }
    let mut most = 0;
    for seed in 0..20 {
        let (mut rng, mut t) = (Rng::new(seed), Turns::new());
        let mut asked: BTreeMap<TxnId, Asked> = BTreeMap::new();
        let (txns, keys) = (30 + rng.below(30), 2 + rng.below(4));
        for since in 0..20_000 {
            let txn = 1 + rng.below(txns);
            if asked.contains_key(&txn) {
                continue;
            }
            if rng.one_in(20) {
                t.release(txn);
            } else {
                let key = rng.below(keys);
                if !t.ask(txn, (key, key), X) {
                    let place = 1 + asked.values().filter(|other| other.key == key).count() as u64;
                    asked.insert(txn, Asked { key, since, place, overtaken: 0 });
                }
            }
            loop {
                let ended = t.ended();
                if ended.is_empty() {
                    break;
                }
                for (txn, granted) in ended {
                    let Some(Asked { key, since, .. }) = asked.remove(&txn) else { continue };
                    if !granted {
                        t.release(txn);
                        continue;
                    }
                    for other in asked.values_mut().filter(|other| other.key == key && other.since < since) {
                        other.overtaken += 1;
                        most = most.max(other.overtaken);
                        assert!(other.overtaken < u64::from(PATIENCE) * other.place, "seed {seed}");
                    }
                }
            }
        }
    }
    println!("overtaken {most} times at most");
}

/// Owners with a hook, and with something that happens when one that waits is asked about; it is interrupted then.
struct Asked<'a> {
    hook: Option<Arc<dyn LockWaitHook>>,
    then: Option<&'a (dyn Fn() + Sync)>,
    /// So many looks for the hook find none yet.
    looks_before: AtomicU64,
}

impl<'a> Asked<'a> {
    fn new(hook: Option<Arc<dyn LockWaitHook>>, then: Option<&'a (dyn Fn() + Sync)>) -> Asked<'a> {
        Asked { hook, then, looks_before: AtomicU64::new(0) }
    }
}

impl Owners for Asked<'_> {
    fn check(&self, txn: TxnId) -> Result<()> {
        let Some(then) = self.then else { return Ok(()) };
        then();
        Err(Error::new(ErrorKind::Cancelled, format!("transaction {txn} was interrupted")))
    }

    fn deadline(&self, _: TxnId) -> Option<u64> {
        None
    }

    fn expire(&self, _: TxnId) {}

    fn sacrifice(&self, _: TxnId) {}

    fn describe(&self, txn: TxnId) -> String {
        txn.to_string()
    }

    fn wait_hook(&self) -> Option<Arc<dyn LockWaitHook>> {
        match self.looks_before.load(Ordering::Relaxed) {
            0 => self.hook.clone(),
            left => {
                self.looks_before.store(left - 1, Ordering::Relaxed);
                None
            }
        }
    }
}

/// Transaction 1, which holds two keys, waits for that of 2, which asks for one of them. Returns what that says, and what is held then.
fn victim_of_two(owners: &dyn Owners) -> (ErrorKind, Vec<String>) {
    let b = Bench::new();
    b.take(1, "a", X);
    b.take(1, "a2", X);
    b.take(2, "b", X);
    std::thread::scope(|s| {
        s.spawn(|| b.key(1, "b", X, LONG).unwrap());
        b.until_waiting(1);
        let asked = b.locks.acquire(owners, 2, (F, &b.order), b"a", X, LONG);
        let held = b.held();
        b.release(2);
        (asked.unwrap_err().kind(), held)
    })
}

/// The thread that finds a deadlock gives back what its victim holds, however long it takes until that one runs.
#[test]
fn the_locks_of_a_victim_are_given_back_for_it() {
    let (said, held) = victim_of_two(&Asked::new(None, None));
    assert_eq!(said, ErrorKind::Deadlock);
    assert_eq!(held, ["1 X key \"a\"", "1 X key \"a2\"", "1 X key \"b\""]);
}

/// A hook may look at the locks of the cycle.
#[test]
fn the_locks_of_a_victim_are_held_until_the_hook_has_been_called() {
    let hook: Arc<dyn LockWaitHook> = Arc::new(|_: TxnId, _: &[TxnId]| {});
    let (said, held) = victim_of_two(&Asked::new(Some(hook), None));
    assert_eq!(said, ErrorKind::Deadlock);
    assert_eq!(held, ["1 X key \"a\"", "1 X key \"a2\"", "2 X key \"b\""]);
}

/// Takes note of deadlocks that it is called for.
#[derive(Default)]
struct Deadlocks(AtomicU64);

impl LockWaitHook for Deadlocks {
    fn waits(&self, _: TxnId, _: &[TxnId]) {}

    fn deadlock(&self, _: &[DeadlockStep]) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// It would find the locks of the victim gone.
#[test]
fn a_hook_that_is_set_after_the_locks_of_a_victim_are_given_back_is_not_called() {
    for looks_before in 0..2 {
        let hook = Arc::new(Deadlocks::default());
        let owners = Asked { looks_before: AtomicU64::new(looks_before), ..Asked::new(Some(hook.clone()), None) };
        let (said, held) = victim_of_two(&owners);
        assert_eq!(said, ErrorKind::Deadlock);
        let (called, holds) = (hook.0.load(Ordering::Relaxed) == 1, held.contains(&"2 X key \"b\"".to_owned()));
        assert_eq!((called, holds), (looks_before == 0, looks_before == 0));
    }
}

/// It must not go on without its locks.
#[test]
fn a_victim_whose_wait_is_interrupted_is_a_victim() {
    let b = Bench::new();
    b.take(1, "a", X);
    b.take(1, "a2", X);
    b.take(2, "b", X);
    let closes = || b.key(1, "b", X, LONG).unwrap();
    let owners = Asked::new(None, Some(&closes));
    let asked = b.locks.acquire(&owners, 2, (F, &b.order), b"a", X, LONG);
    assert_eq!(asked.unwrap_err().kind(), ErrorKind::Deadlock);
    b.locks.state.lock().check();
}
