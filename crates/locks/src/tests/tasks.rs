//! Waits of tasks, polled by hand.

use super::*;
use crate::FreeWait;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Counts how often it was called.
#[derive(Default)]
struct Calls(AtomicUsize);

impl Calls {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

const HOUR: Duration = Duration::from_secs(3600);

fn wait<'a>(b: &'a Bench, key: &str, timeout: Duration) -> FreeWait<'a> {
    b.locks.free_wait(&b.owners, (F, &b.order), key.as_bytes(), Some(timeout))
}

/// How many tasks wait.
fn waits(b: &Bench) -> usize {
    b.locks.state.lock().tasks.iter().count()
}

fn poll(wait: &mut FreeWait<'_>, calls: &Arc<Calls>) -> Poll<Result<()>> {
    Pin::new(wait).poll(&mut Context::from_waker(&Waker::from(calls.clone())))
}

#[test]
fn a_task_is_woken_when_no_transaction_holds_the_lock() {
    let (b, calls) = (&Bench::new(), Arc::new(Calls::default()));
    assert!(poll(&mut wait(b, "k", HOUR), &calls).is_ready(), "nothing is locked");
    b.take(1, "k", S);
    b.take(2, "k", S);
    b.take(2, "other", X);
    let mut key = wait(b, "k", HOUR);
    let all = (Bound::Included(&b"a"[..]), Bound::Unbounded);
    let mut range = b.locks.range_free_wait(&b.owners, (F, &b.order), all, Some(HOUR));
    assert_eq!(waits(b), 0);
    assert!(poll(&mut key, &calls).is_pending() && poll(&mut range, &calls).is_pending());
    assert_eq!(waits(b), 2);
    let [first, _] = &b.locks.waits()[..] else { panic!("{:?}", b.locks.waits()) };
    assert_eq!((first.waiter, &first.holders[..], first.mode), (0, &[1, 2][..], X));
    b.take(3, "k", S); // no request queues behind it
    b.clock.advance(Duration::from_millis(7));
    b.release(1);
    b.release(2);
    assert_eq!(calls.get(), 0);
    assert!(poll(&mut key, &calls).is_pending());
    b.release(3);
    assert_eq!(calls.get(), 2);
    assert!(waits(b) == 0 && b.locks.waits().is_empty());
    assert!(
        matches!(poll(&mut key, &calls), Poll::Ready(Ok(())))
            && matches!(poll(&mut range, &calls), Poll::Ready(Ok(())))
    );
    assert_eq!((b.stats.get(Stat::LockWaits), b.stats.get(Stat::LockWaitMicros)), (2, 14_000));
    let none = (Bound::Included(&b"b"[..]), Bound::Excluded(&b"a"[..]));
    b.take(1, "a", X);
    assert!(poll(&mut b.locks.range_free_wait(&b.owners, (F, &b.order), none, Some(HOUR)), &calls).is_ready());
}

/// Also where only the newest lock of several is given back.
#[test]
fn a_task_is_woken_by_what_gives_back_one_lock() {
    let (b, calls) = (&Bench::new(), Arc::new(Calls::default()));
    b.take(1, "first", X);
    b.take(1, "k", X);
    let mut key = wait(b, "k", HOUR);
    assert!(poll(&mut key, &calls).is_pending());
    assert!(b.locks.release_newest(1));
    assert_eq!(calls.get(), 1);
    assert!(poll(&mut key, &calls).is_ready());
    assert_eq!(b.held(), ["1 X key \"first\""]);
}

#[test]
fn time_ends_waits_of_tasks_and_their_holders() {
    let (b, calls) = (&Bench::new(), Arc::new(Calls::default()));
    b.take(1, "k", X);
    b.take(2, "brief", X);
    let (mut short, mut long, mut brief) =
        (wait(b, "k", Duration::from_millis(10)), wait(b, "k", HOUR), wait(b, "brief", HOUR));
    for wait in [&mut short, &mut long, &mut brief] {
        assert!(poll(wait, &calls).is_pending());
    }
    b.clock.advance(Duration::from_millis(9));
    b.locks.tend(&b.owners);
    assert_eq!(calls.get(), 0);
    let Poll::Ready(Err(e)) = poll(&mut wait(b, "k", Duration::ZERO), &calls) else { panic!("it has no time") };
    assert_eq!((e.kind(), b.stats.get(Stat::LockTimeouts)), (ErrorKind::LockTimeout, 1));
    assert_eq!(b.stats.get(Stat::LockWaits), 4, "it counts as a wait, as that of a thread does");
    b.clock.advance(Duration::from_millis(1));
    b.locks.tend(&b.owners);
    assert_eq!((calls.get(), b.locks.waits().len()), (1, 2));
    let Poll::Ready(Err(e)) = poll(&mut short, &calls) else { panic!("its time has passed") };
    assert_eq!(e.kind(), ErrorKind::LockTimeout);
    assert!(e.message().contains("key \"k\"") && e.message().contains("which transaction 1 holds"), "{e}");
    assert_eq!(b.stats.get(Stat::LockTimeouts), 2);

    b.owners.deadlines.lock().insert(2, b.clock.monotonic_ns() + 1);
    b.locks.tend(&b.owners);
    assert!(b.owners.expired.lock().is_empty());
    b.clock.advance(Duration::from_nanos(1));
    b.locks.tend(&b.owners);
    assert!(b.owners.expired.lock().is_empty(), "not looked at again and again");
    b.clock.advance(Duration::from_millis(25));
    b.locks.tend(&b.owners);
    assert_eq!(*b.owners.expired.lock(), [2]);
    assert!(matches!(poll(&mut brief, &calls), Poll::Ready(Ok(()))) && poll(&mut long, &calls).is_pending());

    b.locks.rouse_tasks();
    assert!(matches!(poll(&mut long, &calls), Poll::Ready(Ok(()))) && waits(b) == 0);
    assert_eq!(b.held(), ["1 X key \"k\""]);
}

/// A wait without a timeout is for one holder.
#[test]
fn a_wait_without_a_timeout_ends_when_another_holds_the_lock() {
    let (b, calls) = (&Bench::new(), Arc::new(Calls::default()));
    for timeout in [None, Some(HOUR)] {
        b.take(1, "k", S);
        let mut key = b.locks.free_wait(&b.owners, (F, &b.order), b"k", timeout);
        assert!(poll(&mut key, &calls).is_pending());
        b.take(2, "k", S);
        b.clock.advance(HOUR - Duration::from_millis(1));
        b.locks.tend(&b.owners);
        assert_eq!(waits(b), 1);
        b.release(1);
        assert_eq!(poll(&mut key, &calls).is_ready(), timeout.is_none());
        b.release(2);
        assert!(timeout.is_none() || poll(&mut key, &calls).is_ready());
    }
    assert_eq!((calls.get(), b.stats.get(Stat::LockTimeouts)), (2, 0));
}

/// A timeout is chosen for a holder, and by the time that the wait begins another may hold the lock.
#[test]
fn a_wait_for_one_holder_does_not_begin_for_another() {
    let (b, calls) = (&Bench::new(), Arc::new(Calls::default()));
    b.take(1, "k", X);
    let wait = || b.locks.free_wait(&b.owners, (F, &b.order), b"k", None);
    let (mut early, mut late) = (wait().only_for(1), wait().only_for(1));
    assert!(poll(&mut early, &calls).is_pending());
    b.release(1);
    b.take(2, "k", X);
    assert!(poll(&mut early, &calls).is_ready() && poll(&mut late, &calls).is_ready());
    assert_eq!(waits(b), 0);
}

/// What keeps the time is called early only for waits that may end soon, and once until it asks whether it is to go on.
#[test]
fn a_wait_that_may_end_soon_is_urgent() {
    let (b, calls) = (&Bench::new(), Arc::new(Calls::default()));
    let within = Duration::from_millis(250);
    b.take(1, "k", X);
    b.take(2, "brief", X);
    b.owners.deadlines.lock().insert(2, b.clock.monotonic_ns() + 1000);
    let begin = |key, timeout| {
        let mut wait = wait(b, key, timeout);
        assert!(!wait.take_urgent(within), "it has not begun");
        assert!(poll(&mut wait, &calls).is_pending());
        let urgent = wait.take_urgent(within);
        assert!(!wait.take_urgent(within));
        (urgent, wait)
    };
    assert!(!b.locks.must_tend());
    assert!(!begin("k", within).0 && !begin("k", HOUR).0);
    assert!(begin("brief", HOUR).0);
    assert!(!begin("brief", HOUR).0 && !begin("k", Duration::from_millis(1)).0, "it was called");
    assert!(b.locks.must_tend(), "waits have begun since");
    assert!(!begin("brief", HOUR).0, "it goes on");
    assert!(b.locks.must_tend() && !b.locks.must_tend());
    let (urgent, kept) = begin("k", Duration::from_millis(1));
    assert!(urgent && b.locks.must_tend() && b.locks.must_tend());
    drop(kept);
    assert!(!b.locks.must_tend());
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        std::panic::resume_unwind(Box::new("injected"));
    }
}

#[test]
fn a_waker_that_panics_strands_no_other_task() {
    let (b, calls) = (&Bench::new(), Arc::new(Calls::default()));
    b.take(1, "k", X);
    let (mut first, mut second) = (wait(b, "k", HOUR), wait(b, "k", HOUR));
    assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))).is_pending());
    assert!(poll(&mut second, &calls).is_pending());
    b.release(1);
    assert_eq!(calls.get(), 1);
}

/// Also where a transaction has very many locks, and very many tasks wait for it.
#[test]
fn a_transaction_that_gives_up_all_its_locks_wakes_all_tasks() {
    let (b, calls) = (&Bench::new(), Arc::new(Calls::default()));
    let keys: Vec<String> = (0..10_000).map(|n| format!("k{n:05}")).collect();
    for key in &keys {
        b.key(1, key, S, Wait::No).unwrap();
    }
    b.take(2, &keys[9], S);
    let mut all: Vec<_> = keys.iter().map(|key| wait(b, key, HOUR)).collect();
    assert!(all.iter_mut().all(|wait| poll(wait, &calls).is_pending()));
    b.release(1);
    assert_eq!((calls.get(), waits(b)), (9_999, 1));
    b.release(2);
    assert!(all.iter_mut().all(|wait| poll(wait, &calls).is_ready()));
}

#[test]
fn a_dropped_wait_leaves_nothing() {
    let (b, calls) = (&Bench::new(), Arc::new(Calls::default()));
    b.take(1, "k", X);
    let empty = b.locks.memory();
    for ended in [false, true] {
        let mut key = wait(b, "k", HOUR);
        assert!(poll(&mut key, &calls).is_pending() && b.locks.memory() > empty);
        if ended {
            b.locks.rouse_tasks();
        }
        drop(key);
        assert_eq!((waits(b), b.locks.memory()), (0, empty));
    }
    drop(wait(b, "k", HOUR));
    assert_eq!(calls.get(), 1);
    b.release(1);
    assert_eq!(calls.get(), 1);
}

/// A waker that is the last of its task: with it goes another wait of the task.
struct LastOfTask(#[expect(dead_code, reason = "it goes with the waker")] FreeWait<'static>);

impl Wake for LastOfTask {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_waker_of_a_lock_is_called_and_dropped_without_the_mutex() {
    let b: &'static Bench = Box::leak(Box::new(Bench::new()));
    let calls = Arc::new(Calls::default());
    let another = || {
        let mut other = wait(b, "k", HOUR);
        assert!(poll(&mut other, &calls).is_pending());
        Waker::from(Arc::new(LastOfTask(other)))
    };
    for how in ["released", "polled again", "dropped"] {
        b.take(1, "k", X);
        let mut key = wait(b, "k", HOUR);
        assert!(Pin::new(&mut key).poll(&mut Context::from_waker(&another())).is_pending());
        match how {
            "released" => b.release(1),
            "polled again" => assert!(poll(&mut key, &calls).is_pending()),
            _ => drop(key),
        }
        b.release(1);
        assert!(b.locks.waits().is_empty());
    }
}

/// Tasks on some threads, transactions on others: every task gets its turn.
#[test]
fn tasks_among_threads_all_end() {
    struct Thread(std::thread::Thread);
    impl Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let b = &Bench::new();
    std::thread::scope(|s| {
        for txn in [1, 2] {
            s.spawn(move || {
                for _ in 0..2000 {
                    b.key(txn, "k", X, LONG).unwrap();
                    b.locks.release_all(txn);
                }
            });
        }
        for _ in 0..2 {
            s.spawn(move || {
                let waker = Waker::from(Arc::new(Thread(std::thread::current())));
                for _ in 0..2000 {
                    let mut wait = wait(b, "k", HOUR);
                    while Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending() {
                        std::thread::park();
                    }
                }
            });
        }
    });
    b.locks.state.lock().check();
    assert!(!b.locks.any_held() && b.locks.waits().is_empty());
}
