//! Iterators, and memory that is used again.

use super::{Contents, DIR, contents, key, large, open, options, small, value};
use kingtide::vfs::{Fault, FaultFs, MemFs, Op, Rule};
use kingtide::{ColumnFamily, Compression, Cursor, CustomOrder, Db, KeyOrder};
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

/// Keys in several blocks of several tables on two levels, and in the memtable, with deleted ones in between.
fn layered(db: &Db) -> Contents {
    let mut stored = Contents::new();
    for layer in 0..3 {
        for i in (layer..240).step_by(3) {
            db.put(key(i), value(i + layer)).unwrap();
            stored.insert(key(i), value(i + layer));
        }
        for i in (layer * 20..200).step_by(17) {
            db.delete(key(i)).unwrap();
            stored.remove(&key(i));
        }
        match layer {
            0 => db.compact().unwrap(),
            1 => db.flush().unwrap(),
            _ => {}
        }
    }
    stored
}

fn at(it: &Cursor) -> Option<Vec<u8>> {
    it.valid().then(|| it.key().to_vec())
}

/// TidesDB 9.3: an iterator that was used for a second seek answered with the first key of the block that it had loaded. Every
/// seek by one iterator, from every place that it can be at, is answered as by a new one.
#[test]
fn a_reused_iterator_does_not_answer_a_seek_with_its_loaded_blocks_first_key() {
    let db = open(&MemFs::new());
    let stored = layered(&db);
    let targets: Vec<Vec<u8>> = (0..240).step_by(5).flat_map(|i| [key(i), [key(i), b"+".to_vec()].concat()]).collect();
    let mut reused = db.cursor(..).unwrap();
    let mut seeks = 0;
    for from in &targets {
        for to in &targets {
            reused.seek(from);
            reused.seek(to);
            let expected = stored.range(to.clone()..).next().map(|(k, _)| k.clone());
            assert_eq!(at(&reused), expected, "seek to {} from {}", to.escape_ascii(), from.escape_ascii());
            reused.seek_for_prev(from);
            reused.seek_for_prev(to);
            let expected = stored.range(..=to.clone()).next_back().map(|(k, _)| k.clone());
            assert_eq!(at(&reused), expected, "seek back to {} from {}", to.escape_ascii(), from.escape_ascii());
            seeks += 4;
        }
    }
    reused.status().unwrap();
    println!("{seeks} seeks");
}

/// An iterator that turned round stepped over a key, or showed one twice, because its sources stood on different sides of it.
/// Here it turns at every key, once, twice and after several steps, over keys from three sources.
#[test]
fn no_key_is_lost_when_an_iterator_turns_round() {
    let db = open(&MemFs::new());
    let stored: Vec<Vec<u8>> = layered(&db).into_keys().collect();
    let mut it = db.cursor(..).unwrap();
    let shown = |place: i64| usize::try_from(place).ok().and_then(|p| stored.get(p).cloned());
    for start in 0..stored.len() as i64 {
        for moves in ["+-", "-+", "+-+", "-+-", "++--", "--++", "+++---+", "---+++-"] {
            it.seek(&stored[start as usize]);
            let mut place = start;
            for m in moves.chars() {
                if m == '+' {
                    it.next()
                } else {
                    it.prev()
                }
                place += if m == '+' { 1 } else { -1 };
                assert_eq!(at(&it), shown(place), "{moves} from {start}");
                if !it.valid() {
                    break;
                }
                let value = it.value().unwrap().to_vec();
                assert_eq!(
                    db.get(&stored[place as usize]).unwrap().as_deref(),
                    Some(&value[..]),
                    "{moves} from {start}"
                );
            }
        }
    }
    it.status().unwrap();
}

/// After a read error an iterator went on with the next key that it could read: a scan ended well with keys missing. Here
/// it stays invalid, and keeps the error, until it is refreshed.
#[test]
fn an_iterator_does_not_continue_after_an_error() {
    let fs = FaultFs::new(Arc::new(MemFs::new()), 1);
    let mut o = options(&fs);
    o.db.block_cache_size = 0;
    let db = Db::open(DIR, o).unwrap();
    let stored = layered(&db);
    let mut met = 0;
    for nth in 1..60 {
        for backward in [false, true] {
            let mut it = db.cursor(..).unwrap();
            fs.add(Rule::new(Op::Read, Fault::Eio).path(".klog").nth(nth));
            let mut shown = Vec::new();
            if backward {
                it.seek_to_last()
            } else {
                it.seek_to_first()
            }
            while it.valid() {
                shown.push(it.key().to_vec());
                if backward { it.prev() } else { it.next() }
            }
            fs.clear();
            if it.status().is_ok() {
                assert_eq!(shown.len(), stored.len(), "a key is missing, and no error says so");
                continue;
            }
            met += 1;
            assert!(shown.len() < stored.len());
            for step in 0..6 {
                match step {
                    0 => it.next(),
                    1 => it.prev(),
                    2 => it.seek(&key(0)),
                    3 => it.seek_to_last(),
                    4 => it.seek_to_first(),
                    _ => it.seek_for_prev(&key(100)),
                }
                assert!(!it.valid() && it.key().is_empty() && it.value().is_err(), "went on after an error");
                assert!(it.status().is_err());
            }
            db.default_family().refresh(&mut it).unwrap();
            it.seek_to_first();
            assert_eq!(at(&it).as_ref(), stored.keys().next());
        }
    }
    println!("{met} iterators met an error");
    assert!(met > 10);
}

/// A reader that held an arena of a memtable read what a later memtable had written into the same memory: the arena's address
/// was the same, so the check for a change passed (ABA). Here a view keeps what it names, and memory goes back when it ends.
#[test]
fn a_memtables_memory_is_not_reused_under_a_reader() {
    let db = open(&MemFs::new());
    let mut readers: Vec<(Cursor, Contents)> = Vec::new();
    for generation in 0..12 {
        for i in 0..100 {
            db.put(key(i), format!("generation {generation} of {i}")).unwrap();
        }
        let mut it = db.cursor(..).unwrap();
        it.seek(&key(50));
        readers.push((it, contents(db.default_family())));
        db.flush().unwrap();
        // Some end, so that their memory is free for those that follow, between memory that is held.
        if generation % 3 == 2 {
            let _ = readers.remove(readers.len() / 2);
        }
        if generation % 4 == 3 {
            db.compact().unwrap();
        }
        for (it, _) in &mut readers {
            assert_eq!(it.key(), key(50), "a reader's key changed under it");
        }
    }
    for (mut it, stored) in readers {
        let mut rest = Contents::new();
        while it.valid() {
            rest.insert(it.key().to_vec(), it.value().unwrap().to_vec());
            it.next();
        }
        it.status().unwrap();
        let expected: Contents =
            stored.range((Bound::Included(key(50)), Bound::Unbounded)).map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(rest, expected, "a reader's memory was used again");
    }
}

thread_local! {
    /// What a comparison on this thread does first.
    static HOOK: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Bytes, with a look at the database every few comparisons, in the midst of whatever compares.
struct Looking;

impl CustomOrder for Looking {
    fn name(&self) -> &str {
        "looking"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        if !INSIDE.replace(true) {
            HOOK.with_borrow(|hook| {
                if let Some(look) = hook {
                    look();
                }
            });
            INSIDE.set(false);
        }
        a.cmp(b)
    }
}

/// While a compaction exchanged files, a get that had looked into the new level already and into the old one no more found an
/// older value, or none. Here a get uses one view; gets run within every comparison of flushes and merges, and so before,
/// between and after all steps of installing their files.
#[test]
fn no_point_read_is_stale_while_a_compaction_installs() {
    let fs = MemFs::new();
    let mut o = options(&fs);
    o.order = KeyOrder::Custom(Arc::new(Looking));
    o.family = small().value_threshold(0).compression(Compression::None);
    let db = Db::open(DIR, o).unwrap();
    // A run of several files: building a view compares where they meet.
    for i in 1000..1300 {
        db.put(key(i), large(i)).unwrap();
    }
    db.compact().unwrap();
    let looks = std::rc::Rc::new(Cell::new(0u64));
    for round in 0..5u64 {
        for i in 0..40 {
            if (i + round) % 9 == 0 {
                db.delete(key(i)).unwrap();
            } else {
                let v = if i % 4 == 0 { large(i + round) } else { value(i + round) };
                db.put(key(i), v).unwrap();
            }
        }
        let expected: Vec<_> = (0..40).map(|i| (key(i), db.get(key(i)).unwrap().map(|v| v.to_vec()))).collect();
        let (family, count): (ColumnFamily, _) = (db.default_family().clone(), looks.clone());
        let look = move || {
            let n = count.replace(count.get() + 1);
            let (key, value) = &expected[n as usize % expected.len()];
            assert_eq!(family.get(key).unwrap().as_deref(), value.as_deref(), "a stale read of {}", key.escape_ascii());
        };
        HOOK.set(Some(Box::new(look)));
        db.flush().unwrap();
        if round > 0 {
            db.compact().unwrap();
        }
        HOOK.set(None);
    }
    println!("{} gets within comparisons", looks.get());
    assert!(db.stats().families[0].levels.iter().any(|l| l.files > 2), "no run of several files");
    assert!(looks.get() > 500);
}
