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
    explore_with(move |table| insert(table, early), move |table| insert(table, late), read);
}

fn explore_with(
    before: impl Fn(&Memtable) + Send + Sync + 'static,
    beside: impl Fn(&Memtable) + Copy + Send + Sync + 'static,
    read: fn(&Arc<Memtable>),
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.max_branches = 20_000;
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    model.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        let pool = ArenaPool::with_free_limit(Budget::new(u64::MAX), 0);
        let table = Arc::new(Memtable::new(KeyOrder::Bytewise, &pool));
        before(&table);
        let writer = {
            let table = table.clone();
            loom::thread::spawn(move || beside(&table))
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

/// New versions in front of one that was there before.
fn write_versions(table: &Memtable, key: u8, tags: &[u64]) {
    for tag in tags {
        table.writer().insert(&[key], Tag::new(*tag, Kind::Put), &tag.to_le_bytes());
    }
}

/// A new version is found whole or not at all, and the one before it always, in the leaf that nothing else changes.
#[test]
fn loom_get_beside_new_versions() {
    explore_with(
        |table| write_versions(table, 20, &[1]),
        |table| write_versions(table, 20, &[2, 3]),
        |table| {
            let (tag, value) = table.get(&[20], ALL).expect("the first version");
            assert!((1..=3).contains(&tag.seq()) && value == tag.seq().to_le_bytes());
            assert_eq!(table.get(&[20], Tag::seek(1)).map(|e| e.0.seq()), Some(1));
        },
    );
}

/// The same for a scan, beside a split of the leaf.
#[test]
fn loom_scan_beside_new_versions_and_a_split() {
    explore_with(
        |table| insert(table, &[20, 30, 40]),
        |table| {
            write_versions(table, 30, &[60]);
            insert(table, &[10]);
        },
        |table| {
            let mut it = table.iter();
            it.first();
            let mut seen = Vec::new();
            while it.valid() {
                let (key, tag) = (it.key()[0], it.tag().seq());
                assert_eq!(it.value()[0] as u64, tag);
                seen.extend((tag <= 40 && key != 10).then_some(key));
                it.next();
            }
            assert_eq!(seen, [20, 30, 40]);
        },
    );
}
