//! One rule after the other; waits on threads of their own, with a clock that stands still.

use std::sync::mpsc;

use super::*;

/// The end of [`Bound`]s in the tests below.
const ALL: Bound<&str> = Bound::Unbounded;

fn from(key: &str) -> Bound<&str> {
    Bound::Included(key)
}

fn behind(key: &str) -> Bound<&str> {
    Bound::Excluded(key)
}

#[test]
fn modes_conflict_as_the_table_says() {
    for (first, second, free) in [(S, S, true), (S, X, false), (X, S, false), (X, X, false)] {
        let b = &Bench::new();
        b.take(1, "k", first);
        assert_eq!(b.free(2, "k", second), free);
        assert!(b.free(1, "k", second) && b.free(2, "j", second) && b.free(2, "k\0", second));
        let got = b.key(2, "k", second, Wait::No);
        if free {
            got.unwrap();
        } else {
            let e = got.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Conflict);
            assert_eq!(e.message(), "key \"k\" of family 3 is locked by transaction 1");
        }
        assert!(b.locks.acquire(&b.owners, 2, (F + 1, &b.order), b"k", X, Wait::No).is_ok(), "another family");
    }
}

#[test]
fn locks_are_held_until_all_are_released() {
    let b = &Bench::new();
    assert!(!b.locks.any_held());
    b.take(1, "a", X);
    b.take(2, "b", S);
    b.take_range(1, "x", "y", S);
    assert_eq!(b.held(), ["1 X key \"a\"", "2 S key \"b\"", "1 S range [\"x\", \"y\")"]);
    assert!(b.locks.any_held() && b.locks.memory() > 0);
    b.release(1);
    assert_eq!(b.held(), ["2 S key \"b\""]);
    assert!(b.locks.any_held());
    b.release(2);
    b.release(2);
    assert!(!b.locks.any_held() && b.locks.held().is_empty());
}

#[test]
fn ranges_and_keys_meet() {
    let b = &Bench::new();
    b.range(1, behind("d"), from("g"), X, Wait::No).unwrap();
    for (key, free) in [("c", true), ("d", true), ("d\0", false), ("f", false), ("g", false), ("g\0", true)] {
        assert_eq!(b.free(2, key, S), free, "{key}");
    }
    let range = |lo: Bound<&str>, hi: Bound<&str>| {
        let bounds = (lo.map(str::as_bytes), hi.map(str::as_bytes));
        b.locks.range_holder(2, F, &b.order, bounds, S)
    };
    assert_eq!(range(ALL, from("d")), None);
    assert_eq!(range(ALL, from("d\0")), Some(1));
    assert_eq!(range(behind("g"), ALL), None);
    assert_eq!(range(from("g"), ALL), Some(1));
    assert_eq!(range(ALL, ALL), Some(1));
    assert_eq!(range(from("e"), from("f")), Some(1));
    assert_eq!(range(behind("d"), from("d")), None, "empty");
    b.take(2, "k", S);
    assert_eq!(kind(b.range(1, from("g"), ALL, X, Wait::No)), ErrorKind::Conflict);
    b.range(1, from("g"), ALL, S, Wait::No).unwrap();
    b.range(3, behind("k"), ALL, S, Wait::No).unwrap();
    assert_eq!(b.locks.holder(3, F, &b.order, b"m", X), Some(1));
    assert_eq!(b.held().len(), 4, "{:?}", b.held());
}

#[test]
fn bounds_that_hold_no_key_lock_nothing() {
    let b = &Bench::new();
    for (lo, hi) in [(from("b"), behind("b")), (behind("b"), behind("b")), (from("c"), from("b"))] {
        b.range(1, lo, hi, X, Wait::No).unwrap();
    }
    assert!(!b.locks.any_held());
    b.range(1, from("b"), from("b"), X, Wait::No).unwrap();
    assert_eq!(b.held(), ["1 X key \"b\""]);
}

#[test]
fn what_is_covered_costs_nothing() {
    let b = &Bench::new();
    b.take_range(1, "a", "m", X);
    let memory = b.locks.memory();
    b.take(1, "b", X);
    b.take(1, "c", S);
    b.take_range(1, "d", "m", S);
    assert_eq!((b.locks.memory(), b.held().len()), (memory, 1));
    b.take_range(1, "d", "n", S);
    assert_eq!(b.held(), ["1 X range [\"a\", \"m\")", "1 S range [\"m\", \"n\")"]);
    assert!(b.free(2, "m", S) && !b.free(2, "m", X) && !b.free(2, "l", S));
}

#[test]
fn a_scan_ends_up_as_one_lock() {
    let b = &Bench::new();
    for i in 0..500 {
        b.take_range(1, "a", &format!("b{i:03}"), S); // ever longer
        b.take_range(2, &format!("m{i:03}"), &format!("m{:03}", i + 1), X); // one after the other
    }
    assert_eq!(b.held(), ["1 S range [\"a\", \"b499\")", "2 X range [\"m000\", \"m500\")"]);
    assert_eq!(b.locks.state.lock().segments(F), 2);
    assert!(b.locks.memory() < 10_000, "{}", b.locks.memory());
    // Others come and go inside, without leaving it in pieces.
    for i in 0..100 {
        b.take(3, &format!("b{i:03}"), S);
        b.take_range(4, &format!("b{i:03}"), &format!("b{:03}", i + 5), S);
        b.release(3);
        b.release(4);
    }
    assert_eq!(b.locks.state.lock().segments(F), 2);
    b.release(1);
    b.release(2);
    assert_eq!(b.locks.state.lock().segments(F), 0);
}

#[test]
fn keys_inside_an_own_range_are_taken_up_by_it() {
    let b = &Bench::new();
    for i in 0..100 {
        b.take(1, &format!("k{i}"), X);
    }
    b.take_range(1, "k", "l", X);
    assert_eq!(b.held(), ["1 X range [\"k\", \"l\")"]);
    b.release(1);
    assert!(!b.locks.any_held());
}

#[test]
fn long_keys_are_kept_whole() {
    let b = &Bench::new();
    let long = "x".repeat(1_000);
    b.take(1, &long, X);
    assert!(b.locks.memory() > 1_000);
    assert!(!b.free(2, &long, S) && b.free(2, &long[..999], S));
    let message = kind_and_message(b.key(2, &long, S, Wait::No)).1;
    assert!(message.contains(&format!("key \"{}\"... (1000 bytes)", &long[..32])) && message.len() < 150, "{message}");
    b.take(1, "\u{1}\n", X);
    assert!(kind_and_message(b.key(2, "\u{1}\n", S, Wait::No)).1.contains(r#"key "\x01\n""#));
    b.release(1);
}

fn kind_and_message(result: Result<()>) -> (ErrorKind, String) {
    let e = result.unwrap_err();
    (e.kind(), e.message().to_owned())
}

#[test]
fn a_lone_shared_lock_becomes_exclusive() {
    let b = &Bench::new();
    b.take(1, "k", S);
    b.take(2, "k", S);
    assert_eq!(kind(b.key(1, "k", X, Wait::No)), ErrorKind::Conflict);
    b.release(2);
    b.take(1, "k", X);
    assert!(!b.free(2, "k", S));
    // In the middle of a range.
    b.take_range(3, "p", "t", S);
    b.take(3, "r", X);
    assert!(!b.free(2, "r", S) && b.free(2, "q", S) && b.free(2, "s", S));
    assert_eq!(b.held().len(), 4);
    b.release(3);
    assert_eq!(b.held(), ["1 X key \"k\""]);
}

#[test]
fn equal_keys_are_one_key() {
    let b = Bench::with(KeyOrder::CaseInsensitive);
    b.take(1, "Key", X);
    assert!(!b.free(2, "KEY", S));
    b.take(1, "kEY", X);
    assert_eq!(b.held().len(), 1);
    b.range(1, from("M"), from("p"), X, Wait::No).unwrap();
    assert!(!b.free(2, "m", S) && !b.free(2, "P", S) && b.free(2, "q", S));
    let b = Bench::with(KeyOrder::Reverse);
    b.range(1, from("p"), from("m"), X, Wait::No).unwrap();
    assert!(!b.free(2, "n", S) && b.free(2, "q", S));
}

/// Makes the clock pass every timeout when an assertion fails: the scope would wait for the threads that wait, for ever.
struct EndsWaits<'a>(&'a Bench);

impl Drop for EndsWaits<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.clock.advance(Duration::from_secs(3600));
        }
    }
}

fn scope<'env, T>(b: &'env Bench, f: impl for<'s> FnOnce(&'s std::thread::Scope<'s, 'env>) -> T) -> T {
    std::thread::scope(|s| {
        let _ends = EndsWaits(b);
        f(s)
    })
}

/// Runs a request on a thread; its result comes through the channel.
fn spawn<'s, 'b: 's>(
    scope: &'s std::thread::Scope<'s, 'b>,
    f: impl FnOnce() -> Result<()> + Send + 's,
) -> mpsc::Receiver<Result<()>> {
    let (send, receive) = mpsc::channel();
    scope.spawn(move || {
        let _ = send.send(f());
    });
    receive
}

#[test]
fn requests_are_granted_in_order() {
    let b = &Bench::new();
    b.take(1, "k", S);
    scope(b, |s| {
        let x = spawn(s, move || b.key(2, "k", X, LONG));
        b.until_waiting(1);
        // A stream of shared lockers stands behind the exclusive one...
        let shared: Vec<_> = (3..6)
            .map(|txn| {
                let got = spawn(s, move || b_key(b, txn));
                b.until_waiting(txn as usize - 1);
                got
            })
            .collect();
        // ...but a request that does not wait takes a key that is not locked.
        b.take(9, "k", S);
        b.release(9);
        b.clock.advance(Duration::from_secs(3));
        let waits = b.locks.waits();
        assert_eq!(waits[0].holders, [1]);
        assert_eq!((waits[1].waiter, &waits[1].holders[..], waits[1].mode), (3, &[2][..], S));
        assert_eq!(waits[1].target, LockTarget::Key(b"k".to_vec()));
        assert!(waits[0].waited >= Duration::from_secs(3));
        b.release(1);
        x.recv().unwrap().unwrap();
        b.until_waiting(3);
        b.release(2);
        for got in shared {
            got.recv().unwrap().unwrap();
        }
        assert_eq!(b.stats.get(Stat::LockWaits), 4);
        assert!(b.stats.get(Stat::LockWaitMicros) >= 3_000_000);
    });
}

fn b_key(b: &Bench, txn: TxnId) -> Result<()> {
    b.key(txn, "k", S, LONG)
}

#[test]
fn an_upgrade_goes_first() {
    let b = &Bench::new();
    b.take(1, "k", S);
    b.take(2, "k", S);
    scope(b, |s| {
        let x = spawn(s, move || b.key(3, "k", X, LONG));
        b.until_waiting(1);
        let upgrade = spawn(s, move || b.key(1, "k", X, LONG));
        b.until_waiting(2);
        assert_eq!(b.locks.waits()[0].waiter, 1);
        b.release(2);
        upgrade.recv().unwrap().unwrap();
        b.until_waiting(1);
        b.release(1);
        x.recv().unwrap().unwrap();
    });
    assert_eq!(b.stats.get(Stat::Deadlocks), 0);
}

/// A request passes one that waits for a lock of its own transaction instead of standing behind it: that is no deadlock.
#[test]
fn a_place_in_line_makes_no_deadlock() {
    let b = &Bench::new();
    b.take(1, "c", S);
    b.take(9, "z", X);
    scope(b, |s| {
        let x = spawn(s, move || b.range(2, from("a"), from("m"), X, LONG));
        b.until_waiting(1);
        b.key(1, "d", S, LONG).unwrap(); // directly: 2 waits for 1
        let far = spawn(s, move || b.key(3, "l", S, LONG)); // 3 stands behind 2
        b.until_waiting(2);
        b.take(3, "y", X);
        let _ = &far;
        b.release(1);
        x.recv().unwrap().unwrap();
        b.release(2);
        far.recv().unwrap().unwrap();
    });
    assert_eq!(b.stats.get(Stat::Deadlocks), 0);
}

/// As above, but with a transaction in between: 3 waits for 2's place, 2 for 1's lock, and 1 for 3's lock.
#[test]
fn a_cycle_over_a_place_in_line_is_no_deadlock() {
    let b = &Bench::new();
    b.take(1, "a", X);
    b.take(3, "z", X);
    scope(b, |s| {
        let two = spawn(s, move || b.range(2, from("a"), from("m"), X, LONG));
        b.until_waiting(1);
        let three = spawn(s, move || b.key(3, "k", X, LONG));
        b.until_waiting(2);
        let one = spawn(s, move || b.key(1, "z", X, LONG));
        three.recv().unwrap().unwrap(); // passed 2
        b.release(3);
        one.recv().unwrap().unwrap();
        b.release(1);
        two.recv().unwrap().unwrap();
    });
    assert_eq!(b.stats.get(Stat::Deadlocks), 0);
}

#[test]
fn the_victim_holds_the_fewest_locks() {
    let b = &Bench::new();
    b.take(1, "a", X);
    b.take(1, "a2", X);
    b.take(2, "b", X);
    scope(b, |s| {
        let one = spawn(s, move || b.key(1, "b", X, LONG));
        b.until_waiting(1);
        // 2 closes the cycle and is the cheaper one.
        let e = b.key(2, "a", X, LONG).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Deadlock);
        let expected = "deadlock: transaction 2 waits for transaction 1 to get key \"a\" of family 3 in exclusive mode; \
                        transaction 1 waits for transaction 2 to get key \"b\" of family 3 in exclusive mode";
        assert_eq!(e.message(), expected);
        b.release(2);
        one.recv().unwrap().unwrap();
        // Now 3 waits, and 1 closes a cycle with it: the victim is the one that waited before.
        b.take(3, "c", X);
        let three = spawn(s, move || b.key(3, "a", S, LONG));
        b.until_waiting(1);
        let one = spawn(s, move || b.range(1, from("c"), from("d"), S, LONG));
        assert_eq!(kind(three.recv().unwrap()), ErrorKind::Deadlock);
        b.release(3);
        one.recv().unwrap().unwrap();
    });
    assert_eq!(b.stats.get(Stat::Deadlocks), 2);
    b.release(1);
}

#[test]
fn two_upgrades_are_a_deadlock_and_the_larger_id_is_the_victim() {
    for (first, second) in [(1, 2), (2, 1)] {
        let b = &Bench::new();
        b.take(1, "k", S);
        b.take(2, "k", S);
        scope(b, |s| {
            let waiting = spawn(s, move || b.key(first, "k", X, LONG));
            b.until_waiting(1);
            let closing = spawn(s, move || b.key(second, "k", X, LONG));
            let (victim, other) = if first == 2 { (waiting, closing) } else { (closing, waiting) };
            assert_eq!(kind(victim.recv().unwrap()), ErrorKind::Deadlock);
            b.release(2);
            other.recv().unwrap().unwrap();
        });
    }
}

#[test]
fn one_request_can_close_several_cycles() {
    let b = &Bench::new();
    for txn in 1..5 {
        b.take(txn, "shared", S);
    }
    b.take(5, "k", X);
    for i in 0..9 {
        b.take(5, &format!("more{i}"), X);
    }
    scope(b, |s| {
        let waiting: Vec<_> = (1..5).map(|txn| spawn(s, move || b_key(b, txn))).collect();
        b.until_waiting(4);
        let five = spawn(s, move || b.key(5, "shared", X, LONG));
        for (i, got) in waiting.into_iter().enumerate() {
            assert_eq!(kind(got.recv().unwrap()), ErrorKind::Deadlock);
            b.release(i as TxnId + 1);
        }
        five.recv().unwrap().unwrap();
    });
    assert_eq!(b.stats.get(Stat::Deadlocks), 4);
}

#[test]
fn a_lock_that_is_not_given_up_in_time() {
    let b = &Bench::new();
    b.take(1, "k", X);
    let zero = b.key(2, "k", S, Wait::Until(Duration::ZERO)).unwrap_err();
    assert_eq!(zero.kind(), ErrorKind::LockTimeout);
    assert_eq!(zero.message(), "no shared lock in time on key \"k\" of family 3, which transaction 1 holds");
    scope(b, |s| {
        let two = spawn(s, move || b.key(2, "k", X, Wait::Until(Duration::from_secs(10))));
        b.until_waiting(1);
        let three = spawn(s, move || b.key(3, "k", S, Wait::Until(Duration::from_secs(30))));
        b.until_waiting(2);
        b.clock.advance(Duration::from_secs(9));
        assert!(two.recv_timeout(Duration::from_millis(120)).is_err(), "not yet");
        b.clock.advance(Duration::from_secs(1));
        assert_eq!(kind(two.recv().unwrap()), ErrorKind::LockTimeout);
        b.until_waiting(1);
        b.clock.advance(Duration::from_secs(20));
        assert_eq!(kind(three.recv().unwrap()), ErrorKind::LockTimeout);
    });
    assert_eq!((b.stats.get(Stat::LockTimeouts), b.locks.waits().len()), (3, 0));
    assert_eq!(b.held(), ["1 X key \"k\""]);
    let slice = b.key(2, "k", S, Wait::Slice(Duration::ZERO));
    assert_eq!((kind(slice), b.stats.get(Stat::LockTimeouts)), (ErrorKind::LockTimeout, 3));
}

/// When a waiter gives up, the requests that only stood behind it go on.
#[test]
fn giving_up_a_place_lets_later_requests_go_on() {
    let b = &Bench::new();
    b.take(1, "k", S);
    scope(b, |s| {
        let x = spawn(s, move || b.key(2, "k", X, Wait::Until(Duration::from_secs(10))));
        b.until_waiting(1);
        let shared = spawn(s, move || b_key(b, 3));
        b.until_waiting(2);
        b.clock.advance(Duration::from_secs(10));
        assert_eq!(kind(x.recv().unwrap()), ErrorKind::LockTimeout);
        shared.recv().unwrap().unwrap();
    });
}

#[test]
fn a_waiter_that_is_ended_stops_waiting() {
    let b = &Bench::new();
    b.take(1, "k", X);
    scope(b, |s| {
        let two = spawn(s, move || b.key(2, "k", X, LONG));
        b.until_waiting(1);
        b.locks.wake(2); // for nothing
        b.locks.wake(1); // it does not wait
        b.owners.ended.lock().insert(2, ErrorKind::Aborted);
        b.locks.wake(2);
        assert_eq!(kind(two.recv().unwrap()), ErrorKind::Aborted);
        // The same by a release from another thread, of one that also holds something.
        b.take(3, "j", X);
        let three = spawn(s, move || b.key(3, "k", X, LONG));
        b.until_waiting(1);
        b.release(3);
        assert_eq!(kind(three.recv().unwrap()), ErrorKind::Aborted);
        b.until_waiting(0);
    });
    assert_eq!(b.held(), ["1 X key \"k\""]);
}

#[test]
fn a_waiter_ends_a_holder_whose_time_is_up() {
    let b = &Bench::new();
    b.take(1, "k", X);
    b.take(7, "k2", X);
    b.owners.deadlines.lock().insert(1, b.clock.monotonic_ns() + 5_000_000_000);
    scope(b, |s| {
        let two = spawn(s, move || b.key(2, "k", X, LONG));
        b.until_waiting(1);
        b.clock.advance(Duration::from_secs(4));
        assert!(two.recv_timeout(Duration::from_millis(120)).is_err(), "not yet");
        b.clock.advance(Duration::from_secs(1));
        two.recv().unwrap().unwrap();
        assert_eq!(*b.owners.expired.lock(), [1]);
        // One that cannot end at once (it may be committing) is asked again, without spinning.
        *b.owners.locks.lock() = None;
        b.owners.deadlines.lock().insert(7, 1);
        let three = spawn(s, move || b.key(3, "k2", X, LONG));
        while b.owners.expired.lock().len() < 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        b.release(7);
        three.recv().unwrap().unwrap();
    });
}

#[test]
fn a_plain_write_waits_without_locking() {
    let b = &Bench::new();
    let bounds = (Bound::Included(&b"a"[..]), Bound::Unbounded);
    b.locks.wait_free(&b.owners, F, &b.order, b"k", Wait::No).unwrap();
    b.locks.wait_range_free(&b.owners, F, &b.order, bounds, LONG).unwrap();
    b.take(1, "k", S);
    assert_eq!(kind(b.locks.wait_free(&b.owners, F, &b.order, b"k", Wait::No)), ErrorKind::Conflict);
    scope(b, |s| {
        let key = spawn(s, move || b.locks.wait_free(&b.owners, F, &b.order, b"k", LONG));
        let range = spawn(s, move || b_range_free(b));
        b.until_waiting(2);
        assert_eq!(b.locks.waits()[0].waiter, 0);
        b.take(2, "k", S); // no request queues behind a plain write
        b.release(1);
        assert!(key.recv_timeout(Duration::from_millis(20)).is_err());
        b.release(2);
        key.recv().unwrap().unwrap();
        range.recv().unwrap().unwrap();
    });
    assert!(!b.locks.any_held() && b.locks.waits().is_empty());
}

fn b_range_free(b: &Bench) -> Result<()> {
    b.locks.wait_range_free(&b.owners, F, &b.order, (Bound::Unbounded, Bound::Unbounded), LONG)
}

/// More than are given back under one hold of the mutex; a waiter for the one released last gets it.
#[test]
fn very_many_locks_are_released_too() {
    let b = &Bench::new();
    for i in 0..10_000 {
        b.key(1, &format!("{i:05}"), X, Wait::No).unwrap();
    }
    scope(b, |s| {
        let two = spawn(s, move || b.range(2, ALL, ALL, S, LONG));
        b.until_waiting(1);
        b.release(1);
        two.recv().unwrap().unwrap();
    });
    assert_eq!(b.held(), ["2 S range (.., ..)"]);
}

/// Of requests that do not touch what was released, none is granted; of those that do, all that fit together.
#[test]
fn a_release_grants_what_fits() {
    let b = &Bench::new();
    b.take(1, "a", X);
    b.take(1, "m", X);
    b.take(2, "z", X);
    scope(b, |s| {
        let got: Vec<_> = [(3, "a", S), (4, "a", S), (5, "m", X), (6, "z", S)]
            .into_iter()
            .map(|(txn, key, mode)| {
                let waiting = b.locks.waits().len();
                let got = spawn(s, move || b.key(txn, key, mode, LONG));
                b.until_waiting(waiting + 1);
                got
            })
            .collect();
        b.release(1);
        b.until_waiting(1);
        for got in &got[..3] {
            got.recv().unwrap().unwrap();
        }
        b.release(2);
        got[3].recv().unwrap().unwrap();
    });
}

#[test]
fn a_lock_that_its_owner_has_is_told_from_a_new_one() {
    let b = Bench::new();
    let key =
        |txn, key: &str, mode| b.locks.acquire(&b.owners, txn, (F, &b.order), key.as_bytes(), mode, Wait::No).unwrap();
    assert_eq!(key(1, "k", S), Taken::Now);
    assert_eq!(key(1, "k", S), Taken::Before);
    assert_eq!(key(2, "k", S), Taken::Now, "shared with another");
    b.release(2);
    assert_eq!(key(1, "k", X), Taken::Raised, "an upgrade");
    assert_eq!((key(1, "k", X), key(1, "k", S)), (Taken::Before, Taken::Before));
    b.take_range(1, "m", "p", X);
    assert_eq!((key(1, "n", X), key(1, "p", X)), (Taken::Before, Taken::Now));
    let bounds = (Bound::Included(&b"n"[..]), Bound::Included(&b"q"[..]));
    let range = b.locks.acquire_range(&b.owners, 1, (F, &b.order), bounds, X, Wait::No).unwrap();
    assert_eq!(range, Taken::Now, "a part of it is new");
    b.release(1);
    assert_eq!(key(1, "k", X), Taken::Now, "after giving it back");
}

#[test]
fn the_newest_lock_goes_alone() {
    let b = &Bench::new();
    b.take(1, "a", S);
    b.take(1, "b", X);
    scope(b, |s| {
        let waiter = spawn(s, move || b.key(2, "b", X, LONG));
        b.until_waiting(1);
        assert!(b.locks.release_newest(1));
        waiter.recv().unwrap().unwrap();
    });
    assert_eq!(b.held(), ["1 S key \"a\"", "2 X key \"b\""]);
    // Of a shared one only its own share.
    b.take(2, "a", S);
    assert!(b.locks.release_newest(2));
    assert_eq!(b.held(), ["1 S key \"a\"", "2 X key \"b\""]);
    // It has become part of a range, or the newest is a range, or there is none.
    b.take_range(1, "c", "f", X);
    assert!(!b.locks.release_newest(1) && !b.locks.release_newest(3));
    b.take(1, "m", X);
    b.take_range(1, "l", "n", X);
    assert!(!b.locks.release_newest(1));
    b.release(1);
    assert!(b.locks.release_newest(2) && !b.locks.release_newest(2) && b.held().is_empty() && !b.locks.any_held());
    b.locks.state.lock().check();
}

/// A registry that interrupts each transaction that it is asked about, after transaction 1 gave its locks back.
struct Interrupts<'a>(&'a LockManager);

impl Owners for Interrupts<'_> {
    fn check(&self, txn: TxnId) -> Result<()> {
        self.0.release_all(1);
        Err(Error::new(ErrorKind::Cancelled, format!("transaction {txn} was interrupted")))
    }

    fn deadline(&self, _: TxnId) -> Option<u64> {
        None
    }

    fn expire(&self, _: TxnId) {}

    fn sacrifice(&self, _: TxnId) {}

    fn describe(&self, txn: TxnId) -> String {
        format!("transaction {txn}")
    }

    fn wait_hook(&self) -> Option<Arc<dyn LockWaitHook>> {
        None
    }
}

/// The transaction goes on, with an error that says that it has no lock.
#[test]
fn a_lock_that_is_granted_while_its_wait_is_interrupted_is_given_back() {
    let b = Bench::new();
    b.take(2, "own", X);
    b.take(1, "k", X);
    let asked = b.locks.acquire(&Interrupts(&b.locks), 2, (F, &b.order), b"k", X, LONG);
    assert_eq!(asked.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(b.held(), ["2 X key \"own\""]);
    b.locks.state.lock().check();
    b.take(3, "k", X);
}

/// Of a range too, and of a lock that was to become stronger: what the transaction had before it keeps, and no more.
#[test]
fn a_range_or_upgrade_that_is_granted_while_its_wait_is_interrupted_is_undone() {
    let range = |lo: &'static str, hi: &'static str| (Bound::Included(lo.as_bytes()), Bound::Excluded(hi.as_bytes()));
    type Take<'a> = &'a dyn Fn(&Bench, TxnId) -> Result<Taken>;
    let ask_range = |b: &Bench, txn, (lo, hi), mode| {
        b.locks.acquire_range(&Interrupts(&b.locks), txn, (F, &b.order), range(lo, hi), mode, LONG)
    };
    let give = |b: &Bench, txn, (lo, hi), mode| {
        b.locks.acquire_range(&b.owners, txn, (F, &b.order), range(lo, hi), mode, Wait::No).unwrap();
    };
    let cases: [(&[(&str, &str, LockMode)], Take<'_>); 6] = [
        (&[], &|b, txn| ask_range(b, txn, ("a", "p"), X)),
        (&[("a", "m", X)], &|b, txn| ask_range(b, txn, ("d", "p"), X)),
        (&[("h", "m", X)], &|b, txn| ask_range(b, txn, ("h", "p"), X)),
        (&[("a", "f", X), ("h", "j", S), ("l", "z", S)], &|b, txn| ask_range(b, txn, ("c", "p"), X)),
        (&[("h", "n", S)], &|b, txn| ask_range(b, txn, ("h", "n"), X)),
        (&[("h", "n", S)], &|b, txn| b.locks.acquire(&Interrupts(&b.locks), txn, (F, &b.order), b"k", X, LONG)),
    ];
    for (i, (before, ask)) in cases.iter().enumerate() {
        let b = Bench::new();
        before.iter().for_each(|(lo, hi, mode)| give(&b, 2, (lo, hi), *mode));
        let held = b.held();
        ["k", "o"].iter().filter(|key| b.free(1, key, S)).for_each(|key| b.take(1, key, S));
        assert_eq!(ask(&b, 2).unwrap_err().kind(), ErrorKind::Cancelled, "case {i}");
        assert_eq!(b.held(), held, "case {i}");
        b.locks.state.lock().check();
        b.release(2);
        assert!(b.held().is_empty() && !b.locks.any_held(), "case {i}");
    }
}
