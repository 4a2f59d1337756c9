//! A lock for which no thread waits much longer than others.
//!
//! The locks of the standard library let a running thread take what another thread was woken for. That is fast, because the lock is not
//! idle until the sleeper gets a processor. With more threads than processors, though, a sleeper may lose again and again, for tens of
//! milliseconds, while each of the others takes the lock a thousand times.
//!
//! Threads that wait for this lock form a queue, in which each sleeps at a place of its own. Running threads may overtake the queue until
//! its first thread has waited for 2 ms (`PATIENCE_NS`), or longer where more than forty wait. From then on the lock is *owed* to that thread: all
//! others sleep, which leaves it both the lock and a processor.
//!
//! A thread that gives the lock back wakes the next of the queue, even if an earlier one was woken and has not come yet: the system
//! may have put that one behind a thread that keeps its processor for milliseconds, while another processor is idle. `docs/experiments.md`,
//! "The commit lock", has the measurements.

use kingtide_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use kingtide_base::sync::{Condvar, Mutex, MutexGuard, spin_loop};
use kingtide_base::tick::Ticker;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A thread holds the lock.
const LOCKED: u32 = 1;
/// Only the first thread of the queue may take the lock. Set under the queue's lock.
const OWED: u32 = 2;
/// The queue is not empty. Changed only under the queue's lock.
const QUEUED: u32 = 4;
/// As many threads of the queue as may be are awake. Changed only under the queue's lock.
const ENOUGH: u32 = 8;

/// Nanoseconds for which a waiting thread may be overtaken: about as long as a thread runs before the system gives its processor to
/// another one. With less, the lock is idle more often.
const PATIENCE_NS: u64 = 2_000_000;

/// From so many waiting threads on, each may be overtaken for longer, in proportion. It takes a queue some tens of microseconds for each of
/// its threads to pass the lock on, as each has to be woken. If the last of a long queue had waited for long by the time it is the first, no
/// running thread would ever get the lock, and there would be a switch of threads for each turn.
const SHORT_QUEUE: u64 = 40;

/// How often a thread looks whether the lock is free before it sleeps. It waits twice as long each time, a few microseconds in all: most
/// locks are held for less time than it takes to put a thread to sleep and wake it.
const LOOKS: u32 = if cfg!(any(loom, shuttle)) { 1 } else { 7 };

/// A lock around a value.
pub struct FairMutex<T> {
    lock: FairLock,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one thread at a time reach the value, and hands it from thread to thread: that is what `Send` allows.
unsafe impl<T: Send> Send for FairMutex<T> {}
// SAFETY: as above. Threads that share the lock never share the value.
unsafe impl<T: Send> Sync for FairMutex<T> {}

impl<T> FairMutex<T> {
    /// A lock that guards `value`.
    pub fn new(value: T) -> FairMutex<T> {
        let processors = kingtide_base::processors();
        FairMutex { lock: FairLock::new(PATIENCE_NS, 2 * processors), value: UnsafeCell::new(value) }
    }

    /// Waits until no other thread holds the lock, and takes it.
    #[inline]
    pub fn lock(&self) -> FairGuard<'_, T> {
        self.lock.lock();
        FairGuard { of: self }
    }

    /// Takes the lock, unless a thread holds it or has waited for it for long.
    #[inline]
    pub fn try_lock(&self) -> Option<FairGuard<'_, T>> {
        self.lock.try_lock().then(|| FairGuard { of: self })
    }
}

impl<T> fmt::Debug for FairMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FairMutex")
    }
}

/// Holds a [`FairMutex`] until it is dropped.
#[must_use]
pub struct FairGuard<'a, T> {
    of: &'a FairMutex<T>,
}

// SAFETY: a shared guard gives no more than `&T`. (By itself it would be `Sync` if the lock is, whatever `T` is.)
unsafe impl<T: Sync> Sync for FairGuard<'_, T> {}

impl<T> Deref for FairGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock as long as the guard exists, so that no other guard does.
        unsafe { &*self.of.value.get() }
    }
}

impl<T> DerefMut for FairGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; the guard is borrowed exclusively.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T> Drop for FairGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.of.lock.unlock();
    }
}

/// The lock itself.
struct FairLock {
    /// [`LOCKED`], [`OWED`], [`QUEUED`] and [`ENOUGH`].
    state: AtomicU32,
    /// When the first thread of the queue began to wait, in ticks. Relaxed: a hint that orders nothing.
    since: AtomicU64,
    queue: Mutex<Queue>,
    /// For how long the first thread of the queue may be overtaken: of a short queue, and of the queue as it is. Relaxed: a hint.
    patience_ns: u64,
    patience_now_ns: AtomicU64,
    /// How many threads of the queue may be awake.
    most_awake: usize,
}

/// Threads that wait, in the order in which they came.
#[derive(Default)]
struct Queue {
    places: VecDeque<Arc<Place>>,
    /// How many of them are awake.
    awake: usize,
}

/// A thread's place in the queue.
struct Place {
    /// When it began to wait, in ticks.
    since: u64,
    /// It was called, and has not gone back to sleep. Changed only under the queue's lock. Relaxed for that reason.
    awake: AtomicBool,
    called: Mutex<bool>,
    wake: Condvar,
}

impl Place {
    fn new() -> Place {
        let since = Ticker::machine().now();
        Place { since, awake: AtomicBool::new(false), called: Mutex::new(false), wake: Condvar::new() }
    }

    /// Sleeps until it is called.
    fn sleep(&self) {
        let mut called = self.called.lock();
        while !*called {
            called = self.wake.wait(called);
        }
        *called = false;
    }

    fn call(&self) {
        *self.called.lock() = true;
        self.wake.notify_one();
    }
}

impl FairLock {
    fn new(patience_ns: u64, most_awake: usize) -> FairLock {
        FairLock {
            state: AtomicU32::new(0),
            since: AtomicU64::new(0),
            queue: Mutex::default(),
            patience_ns,
            patience_now_ns: AtomicU64::new(patience_ns),
            most_awake,
        }
    }

    #[inline]
    fn lock(&self) {
        // A free lock for which no thread waits. All else is rare.
        if self.state.compare_exchange(0, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_contended();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        !self.is_owed() && self.take_unless(LOCKED | OWED)
    }

    /// Whether the first thread of the queue has waited for long.
    #[inline]
    fn is_owed(&self) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        state & QUEUED != 0 && (state & OWED != 0 || self.is_long(self.since.load(Ordering::Relaxed)))
    }

    /// Whether a thread that began to wait then has waited for long. In an exploration of schedules it may have or not.
    fn is_long(&self, since: u64) -> bool {
        #[cfg(shuttle)]
        return since > 0 && kingtide_base::sync::perhaps();
        #[cfg(not(shuttle))]
        return Ticker::machine().ns_since(since) >= self.patience_now_ns.load(Ordering::Relaxed);
    }

    /// Takes the lock, unless the state has one of these bits.
    #[inline]
    fn take_unless(&self, obstacles: u32) -> bool {
        let mut state = self.state.load(Ordering::Relaxed);
        while state & obstacles == 0 {
            match self.state.compare_exchange_weak(state, state | LOCKED, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    #[inline]
    fn unlock(&self) {
        let before = self.state.fetch_and(!LOCKED, Ordering::Release);
        if before & (QUEUED | ENOUGH) == QUEUED {
            self.call_next();
        }
    }

    #[cold]
    fn lock_contended(&self) {
        if self.try_lock() || look_often(|| self.try_lock()) {
            return;
        }
        let place = Arc::new(Place::new());
        let mut queue = self.join(&place);
        loop {
            if self.take_or_fall_asleep(queue, &place) {
                return;
            }
            place.sleep();
            if look_often(|| self.take_in_turn(&place)) {
                return self.leave(self.queue.lock(), &place);
            }
            queue = self.queue.lock();
        }
    }

    /// Takes a place at the end of the queue.
    fn join(&self, place: &Arc<Place>) -> MutexGuard<'_, Queue> {
        let mut queue = self.queue.lock();
        if queue.places.is_empty() {
            self.since.store(place.since, Ordering::Relaxed);
        }
        queue.places.push_back(Arc::clone(place));
        self.set_patience(&queue);
        self.state.fetch_or(QUEUED, Ordering::Relaxed);
        queue
    }

    /// Whether this is the place of the first thread of the queue. Two threads that came in the same tick may both take the first place for
    /// theirs: this makes the lock less fair, and no more.
    fn is_first(&self, place: &Place) -> bool {
        self.since.load(Ordering::Relaxed) == place.since
    }

    /// Takes the lock for a thread of the queue that is awake, unless the lock is owed to another one. [`OWED`] alone does not say that of a
    /// thread that has just become the first, until a thread comes to the queue's lock.
    fn take_in_turn(&self, place: &Place) -> bool {
        if self.is_first(place) { self.take_unless(LOCKED) } else { self.try_lock() }
    }

    /// Takes the lock if it may. Otherwise there is a thread that will wake the next one: one that holds the lock, or the first of the queue,
    /// which is awake.
    fn take_or_fall_asleep(&self, mut queue: MutexGuard<'_, Queue>, place: &Arc<Place>) -> bool {
        let first = Arc::clone(&queue.places[0]);
        if self.is_long(first.since) {
            self.state.fetch_or(OWED, Ordering::Relaxed);
        }
        queue.awake -= usize::from(place.awake.swap(false, Ordering::Relaxed));
        // A thread that gives the lock back after this wakes another one, unless enough are awake, each of which comes here. One that
        // did so before has left the lock free.
        let state = self.state.fetch_and(!self.obsolete(&queue), Ordering::Relaxed);
        // Only `OWED` counts here: were the lock left to the first because of what the clock says since, nothing below would wake that one.
        if self.take_unless(if self.is_first(place) { LOCKED } else { LOCKED | OWED }) {
            self.leave(queue, place);
            return true;
        }
        if state & OWED != 0 && !Arc::ptr_eq(&first, place) {
            self.wake(queue, &first);
        }
        false
    }

    /// Wakes the first thread that sleeps.
    #[cold]
    fn call_next(&self) {
        let queue = self.queue.lock();
        let sleeper = queue.places.iter().find(|p| !p.awake.load(Ordering::Relaxed)).cloned();
        if let Some(place) = sleeper {
            self.wake(queue, &place);
        }
    }

    /// Wakes a thread, unless it is awake.
    fn wake(&self, mut queue: MutexGuard<'_, Queue>, place: &Place) {
        if place.awake.swap(true, Ordering::Relaxed) {
            return;
        }
        queue.awake += 1;
        if queue.awake >= self.most_awake {
            self.state.fetch_or(ENOUGH, Ordering::Relaxed);
        }
        drop(queue);
        place.call();
    }

    /// Gives up the place of a thread that has the lock now.
    fn leave(&self, mut queue: MutexGuard<'_, Queue>, place: &Arc<Place>) {
        let was_first = queue.places.front().is_some_and(|p| Arc::ptr_eq(p, place));
        queue.places.retain(|p| !Arc::ptr_eq(p, place));
        self.set_patience(&queue);
        queue.awake -= usize::from(place.awake.load(Ordering::Relaxed));
        let mut obsolete = self.obsolete(&queue);
        match queue.places.front() {
            None => obsolete |= OWED | QUEUED,
            Some(first) if was_first => {
                self.since.store(first.since, Ordering::Relaxed);
                obsolete |= OWED;
            }
            Some(_) => {}
        }
        self.state.fetch_and(!obsolete, Ordering::Relaxed);
    }

    fn set_patience(&self, queue: &Queue) {
        let waiting = queue.places.len() as u64;
        let now = if waiting <= SHORT_QUEUE {
            self.patience_ns
        } else {
            self.patience_ns.saturating_mul(waiting) / SHORT_QUEUE
        };
        if self.patience_now_ns.load(Ordering::Relaxed) != now {
            self.patience_now_ns.store(now, Ordering::Relaxed);
        }
    }

    /// [`ENOUGH`], if more threads of the queue may be awake than are.
    fn obsolete(&self, queue: &Queue) -> u32 {
        if queue.awake < self.most_awake { ENOUGH } else { 0 }
    }
}

/// Looks a few times whether the lock can be taken.
fn look_often(take: impl Fn() -> bool) -> bool {
    (0..LOOKS).any(|look| {
        (0..2 << look).for_each(|_| spin_loop());
        take()
    })
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::thread;

    /// Threads that add to a number under the lock, which loom checks for races and for threads that sleep for ever.
    fn loom_fair(patience_ns: u64, most_awake: usize, threads: usize, rounds: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let shared = Arc::new((FairLock::new(patience_ns, most_awake), UnsafeCell::new(0)));
            let add = move |(lock, number): &(FairLock, UnsafeCell<usize>)| {
                for _ in 0..rounds {
                    lock.lock();
                    // SAFETY: the lock is held; loom checks that.
                    number.with_mut(|n| unsafe { *n += 1 });
                    lock.unlock();
                }
            };
            let others: Vec<_> = (1..threads)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || add(&shared))
                })
                .collect();
            add(&shared);
            others.into_iter().for_each(|t| t.join().unwrap());
            shared.0.lock();
            // SAFETY: as above.
            assert_eq!(shared.1.with(|n| unsafe { *n }), threads * rounds);
            assert_eq!(shared.0.state.load(Ordering::Relaxed), LOCKED);
        });
    }

    #[test]
    fn loom_fair_lock_that_is_owed_at_once() {
        loom_fair(0, 1, 2, 2);
        loom_fair(0, 1, 3, 1);
        loom_fair(0, 2, 3, 1);
    }

    #[test]
    fn loom_fair_lock_that_is_never_owed() {
        loom_fair(u64::MAX, 1, 2, 2);
        loom_fair(u64::MAX, 1, 3, 1);
        loom_fair(u64::MAX, 2, 3, 1);
    }
}

#[cfg(all(test, shuttle))]
mod shuttle_tests {
    use super::*;
    use kingtide_testkit::scenarios;
    use shuttle::thread::{spawn, yield_now};

    scenarios! {
        /// Every thread gets the lock, whether or not it is owed to another one at any moment, and has it for itself.
        shuttle_fair_lock_is_taken_by_all => taken_by_all;
    }

    fn taken_by_all() {
        let lock = Arc::new(FairLock::new(0, 2));
        let inside = Arc::new(AtomicBool::new(false));
        let threads = [3, 2, 2, 1].map(|rounds| {
            let (lock, inside) = (Arc::clone(&lock), Arc::clone(&inside));
            spawn(move || {
                for _ in 0..rounds {
                    lock.lock();
                    assert!(!inside.swap(true, Ordering::Relaxed), "two threads hold the lock");
                    yield_now();
                    inside.store(false, Ordering::Relaxed);
                    lock.unlock();
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(lock.state.load(Ordering::Relaxed), 0, "no thread waits any more");
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::thread;
    use std::time::{Duration, Instant};

    fn until(lock: &FairLock, reached: impl Fn(&Queue) -> bool) {
        let begun = Instant::now();
        while !reached(&lock.queue.lock()) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} threads wait", lock.queue.lock().places.len());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until so many threads wait and all of them sleep.
    fn until_asleep(lock: &FairLock, waiting: usize) {
        until(lock, |q| q.places.len() == waiting && q.awake == 0);
    }

    #[test]
    fn each_thread_has_the_value_for_itself() {
        let rounds = if cfg!(miri) { 100 } else { 20_000 };
        let number = FairMutex::new(0_u64);
        assert_eq!(format!("{number:?}"), "FairMutex");
        thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| (0..rounds).for_each(|_| *number.lock() += 1));
            }
        });
        assert_eq!(*number.lock(), 8 * rounds);
        assert_eq!(number.lock.state.load(Ordering::Relaxed), 0, "no thread waits any more");
    }

    #[test]
    fn a_thread_that_must_not_wait_does_not() {
        let lock = FairMutex::new(1);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        *lock.try_lock().unwrap() += 1;
        assert_eq!(*lock.lock(), 2);
    }

    #[test]
    fn a_panic_gives_the_lock_back() {
        let lock = FairMutex::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            *lock.lock() = 2;
            let _held = lock.lock();
            panic!("meant");
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 2);
    }

    #[test]
    fn no_thread_overtakes_one_that_has_waited_for_long() {
        let lock = FairLock::new(0, 4);
        lock.lock();
        let order = Mutex::new(Vec::new());
        thread::scope(|s| {
            for i in 0..4 {
                let (lock, order) = (&lock, &order);
                s.spawn(move || {
                    lock.lock();
                    order.lock().push(i);
                    lock.unlock();
                });
                until_asleep(lock, i + 1);
            }
            lock.unlock();
            // As each of them has waited for long, this thread comes after all of them, whenever it gets a processor.
            lock.lock();
            order.lock().push(4);
            lock.unlock();
        });
        assert_eq!(*order.lock(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_thread_of_the_queue_does_not_overtake_one_that_has_just_become_the_first() {
        let lock = FairLock::new(0, 4);
        let [first, second, third] = std::array::from_fn(|_| {
            thread::sleep(Duration::from_millis(1));
            Arc::new(Place::new())
        });
        [&first, &second, &third].into_iter().for_each(|place| drop(lock.join(place)));
        lock.state.fetch_or(OWED, Ordering::Relaxed);
        assert!(lock.take_in_turn(&first));
        lock.leave(lock.queue.lock(), &first);
        lock.unlock();
        // The third is awake and looks for the lock before any thread has come to the queue's lock.
        assert!(!lock.take_in_turn(&third), "the second has waited for long");
        assert!(lock.take_in_turn(&second));
    }

    #[test]
    fn a_thread_that_has_waited_for_a_moment_is_overtaken() {
        let lock = FairLock::new(u64::MAX, 4);
        lock.lock();
        thread::scope(|s| {
            let other = s.spawn(|| {
                lock.lock();
                lock.unlock();
            });
            until_asleep(&lock, 1);
            // It is woken only when the lock is given back, and then finds it taken unless it is very fast.
            let overtaken = (0..100_000).any(|_| {
                lock.unlock();
                let taken = lock.try_lock();
                if !taken {
                    lock.lock();
                }
                taken
            });
            assert!(overtaken);
            lock.unlock();
            other.join().unwrap();
        });
    }

    #[test]
    fn a_long_queue_is_overtaken_for_longer() {
        let lock = FairLock::new(1000, 2);
        let places: Vec<_> = (0..1000).map(|_| Arc::new(Place::new())).collect();
        let patience = || lock.patience_now_ns.load(Ordering::Relaxed);
        for (i, place) in places.iter().enumerate() {
            drop(lock.join(place));
            assert_eq!(patience(), if i < 40 { 1000 } else { (i as u64 + 1) * 25 });
        }
        places.iter().for_each(|place| lock.leave(lock.queue.lock(), place));
        assert_eq!((patience(), lock.state.load(Ordering::Relaxed)), (1000, 0));
    }

    #[test]
    fn a_thread_that_comes_leaves_as_many_awake_as_may_be() {
        let lock = Arc::new(FairLock::new(u64::MAX, 1));
        lock.lock();
        let come = |waiting| {
            let of_thread = Arc::clone(&lock);
            let thread = thread::spawn(move || {
                of_thread.lock();
                of_thread.unlock();
            });
            until(&lock, |q| q.places.len() == waiting);
            thread
        };
        let first = come(1);
        // It is called, which is as many as may be, and gets no processor.
        let place = Arc::clone(&lock.queue.lock().places[0]);
        let mut queue = lock.queue.lock();
        place.awake.store(true, Ordering::Relaxed);
        queue.awake = 1;
        lock.state.fetch_or(ENOUGH, Ordering::Relaxed);
        drop(queue);
        let others = [come(2), come(3)];
        assert_ne!(
            lock.state.load(Ordering::Relaxed) & ENOUGH,
            0,
            "a thread that comes now would have another one called"
        );
        lock.unlock();
        assert_eq!(lock.queue.lock().awake, 1);
        place.call();
        first.join().unwrap();
        others.into_iter().for_each(|o| o.join().unwrap());
        assert_eq!(lock.state.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_lock_that_is_owed_to_a_sleeper_is_not_left_alone() {
        let lock = Arc::new(FairLock::new(u64::MAX, 2));
        let (done, finished) = std::sync::mpsc::channel();
        lock.lock();
        for i in 0..3 {
            let (of_thread, done) = (Arc::clone(&lock), done.clone());
            thread::spawn(move || {
                of_thread.lock();
                of_thread.unlock();
                done.send(()).unwrap();
            });
            until_asleep(&lock, i + 1);
        }
        // The second and the third are awake, as many as may be, when the first has waited for long. They stop at the queue's lock.
        let mut queue = lock.queue.lock();
        for place in queue.places.iter().skip(1) {
            place.awake.store(true, Ordering::Relaxed);
            place.call();
        }
        queue.awake = 2;
        lock.state.fetch_or(ENOUGH | OWED, Ordering::Relaxed);
        lock.unlock();
        drop(queue);
        for _ in 0..3 {
            finished.recv_timeout(Duration::from_secs(30)).expect("all get the lock");
        }
    }
}
