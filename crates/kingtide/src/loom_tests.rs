//! Every interleaving, weak memory included, of the lock-free structures that transactions stand on. `cargo xtask loom`.

use crate::snapshot::Snapshots;
use crate::txn::ConflictFilter;
use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicU64, Ordering};
use loom::thread::spawn;
use std::sync::Arc;

/// Runs a model, and says how many interleavings there were.
fn explore(name: &str, body: impl Fn() + Send + Sync + 'static) {
    let runs = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = runs.clone();
    loom::model(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        body();
    });
    let runs = runs.load(std::sync::atomic::Ordering::Relaxed);
    println!("{name}: {runs} interleavings");
    assert!(runs > 10, "loom saw no race to explore");
}

/// What a merge keeps, by its list: every version newer than `now`, and what is visible at each of the others.
fn keeps(list: &[u64], seq: u64) -> bool {
    list.contains(&seq) || list.last().is_some_and(|now| *now <= seq)
}

/// A transaction pins the visible sequence number while commits go on and a merge lists what it must keep.
#[test]
fn loom_pin_beside_publish_and_list() {
    explore("pin", || {
        let snapshots = Arc::new(Snapshots::recovered(1));
        let slot = snapshots.claim_slot().expect("slot");
        let writer = {
            let snapshots = snapshots.clone();
            spawn(move || snapshots.publish(2))
        };
        let merge = {
            let snapshots = snapshots.clone();
            spawn(move || snapshots.list())
        };
        let seq = snapshots.pin(slot);
        let list = merge.join().expect("thread");
        assert!(keeps(&list, seq), "{seq} of {list:?}");
        writer.join().expect("thread");
        // And for every merge from here on.
        assert!(keeps(&snapshots.list(), seq));
        snapshots.unpin(slot);
        assert_eq!(snapshots.list(), [2]);
    });
}

/// A number that a thread saw settled in a slot can be registered by others, however late.
#[test]
fn loom_settled_pins_can_be_registered() {
    explore("settled pins", || {
        let snapshots = Arc::new(Snapshots::recovered(1));
        let slot = snapshots.claim_slot().expect("slot");
        snapshots.publish(2);
        let owner = {
            let snapshots = snapshots.clone();
            spawn(move || snapshots.pin(slot))
        };
        let merge = {
            let snapshots = snapshots.clone();
            spawn(move || {
                snapshots.publish(3);
                snapshots.list()
            })
        };
        let late = snapshots.acquire_at(2);
        let list = merge.join().expect("thread");
        if late.is_ok() {
            assert!(keeps(&list, 2), "2 of {list:?}");
        }
        let seq = owner.join().expect("thread");
        assert!(keeps(&list, seq), "{seq} of {list:?}");
    });
}

/// A commit notes its key and its sequence number under the commit lock, and a validation under that lock never misses it;
/// one that looked outside the lock before does not miss what was visible by then.
#[test]
fn loom_filter_beside_commits() {
    explore("filter", || {
        let filter = Arc::new(ConflictFilter::new());
        let snapshots = Arc::new(Snapshots::recovered(1));
        let commit = Arc::new(Mutex::new(1_u64));
        let writer = {
            let (filter, snapshots, commit) = (filter.clone(), snapshots.clone(), commit.clone());
            spawn(move || {
                let mut last = commit.lock();
                *last += 1;
                filter.note(3, *last);
                snapshots.publish(*last);
            })
        };
        let seen = snapshots.visible();
        let early = filter.may_have_changed(3, 1);
        assert!(early || seen < 2, "visible, and not noted");
        let last = commit.lock();
        assert_eq!(filter.may_have_changed(3, 1), *last > 1, "under the lock the filter is exact for one key");
        drop(last);
        writer.join().expect("thread");
    });
}

/// That loom would find a missing fence: the same as `pin` without it.
#[test]
#[should_panic(expected = "of [")]
fn loom_finds_a_pin_without_fences() {
    loom::model(|| {
        let (visible, slot) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(u64::MAX)));
        let merge = {
            let (visible, slot) = (visible.clone(), slot.clone());
            spawn(move || {
                visible.store(2, Ordering::Release);
                let now = visible.load(Ordering::Acquire);
                let pinned = slot.load(Ordering::Acquire);
                if pinned < now { vec![pinned, now] } else { vec![now] }
            })
        };
        let mut seq = visible.load(Ordering::Acquire);
        loop {
            slot.store(seq, Ordering::Relaxed);
            let now = visible.load(Ordering::Acquire);
            if now == seq {
                break;
            }
            seq = now;
        }
        let list = merge.join().expect("thread");
        assert!(keeps(&list, seq), "{seq} of {list:?}");
    });
}
