//! Every interleaving of a writer with a reader, on nodes of three entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kingtide_base::budget::Budget;
use kingtide_base::{KeyOrder, Kind, Tag};

use super::Memtable;
use crate::arena::ArenaPool;

const ALL: Tag = Tag(u64::MAX);

fn insert(table: &Memtable, keys: &[u8]) {
    for k in keys {
        table.writer().insert(&[*k], Tag::new(*k as u64, Kind::Put), &[*k]);
    }
}

/// Explores `read` beside the insertion of `late`, in a memtable that holds `early` already.
fn explore(early: &'static [u8], late: &'static [u8], read: fn(&Arc<Memtable>)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.max_branches = 20_000;
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    model.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        let pool = ArenaPool::with_free_limit(Budget::new(u64::MAX), 0);
        let table = Arc::new(Memtable::new(KeyOrder::Bytewise, &pool));
        insert(&table, early);
        let writer = {
            let table = table.clone();
            loom::thread::spawn(move || insert(&table, late))
        };
        read(&table);
        writer.join().unwrap();
    });
    let runs = runs.load(Ordering::Relaxed);
    println!("{runs} interleavings");
    assert!(runs > 10, "loom saw no race to explore");
}

/// What was there before is found at any moment of an insertion that shifts it.
#[test]
fn loom_get_beside_insert() {
    explore(&[20, 40], &[10], |table| {
        assert_eq!(table.get(&[40], ALL).map(|e| e.1), Some(&[40][..]));
    });
}

/// What is being inserted is found whole or not at all.
#[test]
fn loom_get_of_what_is_inserted() {
    explore(&[20], &[10], |table| {
        let found = table.get(&[10], ALL);
        assert!(found.is_none() || found == Some((Tag::new(10, Kind::Put), &[10])));
    });
}

/// The first insertion of all makes the root.
#[test]
fn loom_get_beside_the_first_insert() {
    explore(&[], &[10], |table| {
        let found = table.get(&[10], ALL);
        assert!(found.is_none() || found == Some((Tag::new(10, Kind::Put), &[10])));
    });
}

/// A split of the root, which a reader may see before, during or after.
#[test]
fn loom_get_beside_a_split() {
    explore(&[20, 30, 40], &[10], |table| {
        assert_eq!(table.get(&[40], ALL).map(|e| e.1), Some(&[40][..]));
    });
}

/// A split below a root that stays.
#[test]
fn loom_get_beside_a_split_below_the_root() {
    explore(&[10, 20, 30, 40, 50, 60], &[45], |table| {
        assert_eq!(table.get(&[60], ALL).map(|e| e.1), Some(&[60][..]));
    });
}

/// A scan meets everything that was there, in order, whatever is split under it.
#[test]
fn loom_scan_beside_a_split() {
    explore(&[20, 30, 40], &[10], |table| {
        let mut it = table.iter();
        it.first();
        let mut seen = Vec::new();
        while it.valid() {
            seen.push(it.key()[0]);
            it.next();
        }
        assert!(seen == [20, 30, 40] || seen == [10, 20, 30, 40], "{seen:?}");
    });
}

/// The same backward, which finds its way from leaf to leaf through the root.
#[test]
fn loom_scan_backward_beside_a_split() {
    explore(&[20, 30, 40], &[35], |table| {
        let mut it = table.iter();
        it.last();
        let mut seen = Vec::new();
        while it.valid() {
            seen.push(it.key()[0]);
            it.prev();
        }
        assert!(seen == [40, 30, 20] || seen == [40, 35, 30, 20], "{seen:?}");
    });
}
