//! Planted bugs: that the exploration finds what it is there to find, shown on models of a few lines, each beside the
//! right way to do it.

use crate::swap::ArcSwap;
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kingtide_base::sync::{Condvar, Mutex};
use kingtide_testkit::schedules::{explore, finds};
use shuttle::thread::spawn;
use std::sync::Arc;

/// Schedules within which each bug must be found.
const MOST: usize = 2000;

/// A memtable is replaced while a writer fills it: `under_lock` says whether the writer looks it up under the lock that
/// replaces it.
fn rotation(under_lock: bool) {
    let active = Arc::new(ArcSwap::from_pointee(Mutex::new(Vec::new())));
    let lock = Arc::new(Mutex::new(()));
    let writer = {
        let (active, lock) = (active.clone(), lock.clone());
        spawn(move || {
            let before = active.load_full();
            let _commit = lock.lock();
            let memtable = if under_lock { active.load_full() } else { before };
            memtable.lock().push(1);
        })
    };
    let flushed = {
        let _commit = lock.lock();
        let immutable = active.load_full();
        active.store(Arc::new(Mutex::new(Vec::new())));
        immutable
    };
    let table = flushed.lock().clone(); // written once: what comes later is in no table
    writer.join().expect("thread");
    assert_eq!(table.len() + active.load().lock().len(), 1, "a write is in no table and in no memtable");
}

#[test]
fn shuttle_model_of_rotation() {
    explore("model of rotation", || rotation(true));
    finds("rotation outside the commit lock", MOST, || rotation(false));
}

/// A writer stores an entry and publishes its sequence number, in this order or the other.
fn publication(fill_first: bool) {
    let (entry, visible) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let writer = {
        let (entry, visible) = (entry.clone(), visible.clone());
        spawn(move || {
            let (first, second) = if fill_first { (&entry, &visible) } else { (&visible, &entry) };
            first.store(1, Ordering::Release);
            second.store(1, Ordering::Release);
        })
    };
    let seen = visible.load(Ordering::Acquire);
    assert!(entry.load(Ordering::Acquire) >= seen, "visible, but not there");
    writer.join().expect("thread");
}

#[test]
fn shuttle_model_of_publication() {
    explore("model of publication", || publication(true));
    finds("published before the memtable was filled", MOST, || publication(false));
}

/// A merge lists the snapshots that it must keep and the visible sequence: both under the lock that registers snapshots,
/// or one after the other.
fn registration(under_lock: bool) {
    let snapshots = Arc::new((Mutex::new(Vec::new()), AtomicU64::new(1)));
    let reader = {
        let snapshots = snapshots.clone();
        spawn(move || {
            let mut held = snapshots.0.lock();
            let seq = snapshots.1.load(Ordering::Acquire);
            held.push(seq);
            seq
        })
    };
    let writer = {
        let snapshots = snapshots.clone();
        spawn(move || snapshots.1.store(2, Ordering::Release))
    };
    let guard = snapshots.0.lock();
    let mut keeps = guard.clone();
    let guard = under_lock.then_some(guard);
    let now = snapshots.1.load(Ordering::Acquire);
    drop(guard);
    keeps.push(now);
    let held = reader.join().expect("thread");
    writer.join().expect("thread");
    assert!(held >= now || keeps.contains(&held), "{held} of {keeps:?}");
}

#[test]
fn shuttle_model_of_snapshot_registration() {
    explore("model of snapshot registration", || registration(true));
    finds("a list of snapshots from two moments", MOST, || registration(false));
}

/// A reader looks for one entry in the view and in what is visible: the view first, or last.
fn reading(view_first: bool) {
    // The view says which sequence numbers were flushed away and merged: a merge keeps only the newest.
    let oldest_kept = Arc::new(ArcSwap::from_pointee(1));
    let visible = Arc::new(AtomicU64::new(1));
    let writer = {
        let (oldest_kept, visible) = (oldest_kept.clone(), visible.clone());
        spawn(move || {
            visible.store(2, Ordering::Release);
            oldest_kept.store(Arc::new(2));
        })
    };
    let seen = match view_first {
        true => {
            let view = oldest_kept.load_full();
            (*view, visible.load(Ordering::Acquire))
        }
        false => {
            let visible = visible.load(Ordering::Acquire);
            (*oldest_kept.load_full(), visible)
        }
    };
    assert!(seen.0 <= seen.1, "a compaction dropped version {}", seen.1);
    writer.join().expect("thread");
}

#[test]
fn shuttle_model_of_reading() {
    explore("model of reading", || reading(true));
    finds("the visible sequence loaded before the view", MOST, || reading(false));
}

/// A thread waits for a flag that another sets, under the lock or beside it.
fn waiting(set_under_lock: bool) {
    let shared = Arc::new((Mutex::new(()), Condvar::new(), AtomicBool::new(false)));
    let waiter = {
        let shared = shared.clone();
        spawn(move || {
            let mut guard = shared.0.lock();
            while !shared.2.load(Ordering::Acquire) {
                guard = shared.1.wait(guard);
            }
        })
    };
    {
        let _guard = set_under_lock.then(|| shared.0.lock());
        shared.2.store(true, Ordering::Release);
        shared.1.notify_one();
    }
    waiter.join().expect("thread");
}

#[test]
fn shuttle_model_of_waiting() {
    explore("model of waiting", || waiting(true));
    finds("a wake-up between the look and the wait", MOST, || waiting(false));
}
