//! What a serializable transaction has seen, to the key: every way to read against every way to write. A write into what
//! was seen refuses the reader's commit, and on weaker levels the anomaly is there; a write next to it has no effect.
//!
//! The cycle: the reader reads in its way; the writer finds `out` absent, writes in its way, and commits; the reader puts
//! `out`. The reader comes before the writer because it did not see its write, and after it because the writer did not see
//! `out`.

use super::world::{END, Mode, Outcome::*, Storage, Verdict, World};
use kingtide::{ColumnFamily, Isolation, ReadOptions, Result, Transaction, TransactionCursor};
use std::ops::Bound;
use std::time::Duration;

/// The keys that are there.
const KEYS: [&str; 3] = ["b", "d", "f"];

/// Whether a key was seen, or would have been had it been there.
type Covers = fn(&str) -> bool;

struct Reader {
    name: &'static str,
    read: fn(&mut Transaction, &ColumnFamily) -> Result<Vec<String>>,
    /// What it shows.
    shows: &'static [&'static str],
    /// What it saw, and so what must not change.
    saw: Covers,
    /// What it locks when it is locking: iterators lock all that they could show.
    locked: Covers,
}

fn iter(t: &mut Transaction, f: &ColumnFamily, lo: &str, hi: &str) -> Result<TransactionCursor> {
    t.cursor(f, (Bound::Included(lo.as_bytes()), Bound::Excluded(hi.as_bytes())))
}

fn key(it: &TransactionCursor) -> String {
    String::from_utf8(it.key().to_vec()).unwrap()
}

/// Where the iterator stands, as a list.
fn at(it: &TransactionCursor) -> Result<Vec<String>> {
    it.status().map(|()| it.valid().then(|| key(it)).into_iter().collect())
}

fn forward(it: &mut TransactionCursor) -> Result<Vec<String>> {
    let mut all = Vec::new();
    while it.valid() {
        all.push(key(it));
        it.next();
    }
    it.status().map(|()| all)
}

fn within(lo: &str, hi: &str, key: &str) -> bool {
    lo <= key && key < hi
}

static READERS: &[Reader] = &[
    Reader {
        name: "a scan",
        read: |t, f| {
            let mut it = iter(t, f, "a", END)?;
            it.seek_to_first();
            forward(&mut it)
        },
        shows: &["b", "d", "f"],
        saw: |k| within("a", END, k),
        locked: |k| within("a", END, k),
    },
    Reader {
        name: "a scan of a part",
        read: |t, f| {
            let mut it = iter(t, f, "c", "e")?;
            it.seek_to_first();
            forward(&mut it)
        },
        shows: &["d"],
        saw: |k| within("c", "e", k),
        locked: |k| within("c", "e", k),
    },
    Reader {
        name: "a scan of nothing",
        read: |t, f| {
            let mut it = iter(t, f, "g", "i")?;
            it.seek_to_first();
            at(&it)
        },
        shows: &[],
        saw: |k| within("g", "i", k),
        locked: |k| within("g", "i", k),
    },
    Reader {
        name: "a scan backward",
        read: |t, f| {
            let mut it = iter(t, f, "a", "h")?;
            let mut all = Vec::new();
            it.seek_to_last();
            while it.valid() {
                all.push(key(&it));
                it.prev();
            }
            it.status().map(|()| all)
        },
        shows: &["f", "d", "b"],
        saw: |k| within("a", "h", k),
        locked: |k| within("a", "h", k),
    },
    Reader {
        name: "the first key only",
        read: |t, f| {
            let mut it = iter(t, f, "a", "h")?;
            it.seek_to_first();
            at(&it)
        },
        shows: &["b"],
        saw: |k| within("a", "b0", k) && k <= "b",
        locked: |k| within("a", "h", k),
    },
    Reader {
        name: "the last key only",
        read: |t, f| {
            let mut it = iter(t, f, "a", "h")?;
            it.seek_to_last();
            at(&it)
        },
        shows: &["f"],
        saw: |k| within("f", "h", k),
        locked: |k| within("a", "h", k),
    },
    Reader {
        name: "a seek",
        read: |t, f| {
            let mut it = iter(t, f, "a", "h")?;
            it.seek(b"c");
            at(&it)
        },
        shows: &["d"],
        saw: |k| within("c", "d", k) || k == "d",
        locked: |k| within("a", "h", k),
    },
    Reader {
        name: "a seek that ends at the bound",
        read: |t, f| {
            let mut it = iter(t, f, "a", "h")?;
            it.seek(b"g");
            at(&it)
        },
        shows: &[],
        saw: |k| within("g", "h", k),
        locked: |k| within("a", "h", k),
    },
    Reader {
        name: "seek_for_prev",
        read: |t, f| {
            let mut it = iter(t, f, "a", "h")?;
            it.seek_for_prev(b"e");
            at(&it)
        },
        shows: &["d"],
        saw: |k| within("d", "e", k) || k == "e",
        locked: |k| within("a", "h", k),
    },
    Reader {
        name: "seek_for_prev that ends at the bound",
        read: |t, f| {
            let mut it = iter(t, f, "c", "h")?;
            it.seek_for_prev(b"c5");
            at(&it)
        },
        shows: &[],
        saw: |k| within("c", "c5", k) || k == "c5",
        locked: |k| within("c", "h", k),
    },
    Reader {
        name: "a seek and a step",
        read: |t, f| {
            let mut it = iter(t, f, "a", "h")?;
            it.seek(b"c");
            it.next();
            at(&it)
        },
        shows: &["f"],
        saw: |k| within("c", "f", k) || k == "f",
        locked: |k| within("a", "h", k),
    },
    Reader {
        name: "a step back over a seek",
        read: |t, f| {
            let mut it = iter(t, f, "a", "h")?;
            it.seek(b"d");
            it.prev();
            at(&it)
        },
        shows: &["b"],
        saw: |k| within("b", "d", k) || k == "d",
        locked: |k| within("a", "h", k),
    },
    Reader {
        name: "two seeks apart",
        read: |t, f| {
            let mut it = iter(t, f, "a", "h")?;
            it.seek(b"a");
            it.seek(b"e");
            at(&it)
        },
        shows: &["f"],
        saw: |k| within("a", "b", k) || k == "b" || within("e", "f", k) || k == "f",
        locked: |k| within("a", "h", k),
    },
    Reader {
        name: "a seek before the lower bound",
        read: |t, f| {
            let mut it = iter(t, f, "c", "h")?;
            it.seek(b"a");
            at(&it)
        },
        shows: &["d"],
        saw: |k| within("c", "d", k) || k == "d",
        locked: |k| within("c", "h", k),
    },
    Reader {
        name: "a seek behind the upper bound",
        read: |t, f| {
            let mut it = iter(t, f, "a", "e")?;
            it.seek(b"f");
            at(&it)
        },
        shows: &[],
        saw: |_| false,
        locked: |k| within("a", "e", k),
    },
    Reader {
        name: "seek_for_prev behind the upper bound",
        read: |t, f| {
            let mut it = iter(t, f, "a", "e")?;
            it.seek_for_prev(b"x");
            at(&it)
        },
        shows: &["d"],
        saw: |k| within("d", "e", k),
        locked: |k| within("a", "e", k),
    },
    Reader {
        name: "seek_for_prev before the lower bound",
        read: |t, f| {
            let mut it = iter(t, f, "c", "h")?;
            it.seek_for_prev(b"b");
            at(&it)
        },
        shows: &[],
        saw: |_| false,
        locked: |k| within("c", "h", k),
    },
    Reader {
        name: "a prefix",
        read: |t, f| {
            let mut it = t.cursor_with(f, ReadOptions::new().prefix(b"d".to_vec()))?;
            it.seek_to_first();
            forward(&mut it)
        },
        shows: &["d"],
        saw: |k| k.starts_with('d'),
        locked: |k| k.starts_with('d'),
    },
    Reader {
        name: "a get",
        read: |t, f| t.get(f, b"d").map(|v| v.map(|_| "d".to_owned()).into_iter().collect()),
        shows: &["d"],
        saw: |k| k == "d",
        locked: |k| k == "d",
    },
    Reader {
        name: "a get of an absent key",
        read: |t, f| t.get(f, b"c").map(|v| v.map(|_| "c".to_owned()).into_iter().collect()),
        shows: &[],
        saw: |k| k == "c",
        locked: |k| k == "c",
    },
    Reader {
        name: "multi_get",
        read: |t, f| {
            let found = t.multi_get(f, &["c", "f"]);
            let found = found.into_iter().zip(["c", "f"]);
            found.filter_map(|(v, k)| v.map(|v| v.map(|_| k.to_owned())).transpose()).collect()
        },
        shows: &["f"],
        saw: |k| k == "c" || k == "f",
        locked: |k| k == "c" || k == "f",
    },
    Reader {
        name: "a range that it deleted before",
        read: |t, f| {
            t.delete_range(f, b"c"..b"e")?;
            let mut it = iter(t, f, "c", "f")?;
            it.seek_to_first();
            at(&it)
        },
        shows: &[],
        saw: |k| within("c", "f", k),
        locked: |k| within("c", "f", k),
    },
];

struct Writer {
    name: &'static str,
    write: fn(&mut Transaction, &ColumnFamily, &ColumnFamily) -> Result<()>,
    /// Keys that it may have changed: all of them, or for ranges so many that no reader has its ends between two of them.
    touches: &'static [&'static str],
}

static WRITERS: &[Writer] = &[
    Writer { name: "an insert", write: |t, f, _| t.put(f, b"c", b"1"), touches: &["c"] },
    Writer { name: "an insert at the end", write: |t, f, _| t.put(f, b"g", b"1"), touches: &["g"] },
    Writer { name: "an insert between", write: |t, f, _| t.put(f, b"c5", b"1"), touches: &["c5"] },
    Writer { name: "an insert past a prefix", write: |t, f, _| t.put(f, b"e", b"1"), touches: &["e"] },
    Writer {
        name: "an insert for a time",
        write: |t, f, _| t.put_ttl(f, b"c", b"1", Duration::from_secs(60)),
        touches: &["c"],
    },
    Writer { name: "a change", write: |t, f, _| t.put(f, b"d", b"2"), touches: &["d"] },
    Writer { name: "a delete", write: |t, f, _| t.delete(f, b"d"), touches: &["d"] },
    Writer { name: "a single delete", write: |t, f, _| t.single_delete(f, b"f"), touches: &["f"] },
    Writer {
        name: "a range delete",
        write: |t, f, _| t.delete_range(f, b"c5"..b"d5"),
        touches: &["c5", "c7", "d", "d2"],
    },
    Writer { name: "a change of the first key", write: |t, f, _| t.put(f, b"b", b"2"), touches: &["b"] },
    Writer { name: "a delete of a key that is not there", write: |t, f, _| t.delete(f, b"g5"), touches: &["g5"] },
    Writer {
        name: "a range delete that finds nothing",
        write: |t, f, _| t.delete_range(f, b"g"..b"h"),
        touches: &["g", "g5"],
    },
    Writer { name: "a prefix delete", write: |t, f, _| t.delete_prefix(f, b"d"), touches: &["d", "d5"] },
    Writer {
        name: "a range delete of all",
        write: |t, f, _| t.delete_range(f, b"a"..b"h"),
        touches: &["a", "b", "c", "c5", "d", "e", "f", "g"],
    },
    Writer {
        name: "a change of another family",
        write: |t, _, other| {
            t.put(other, b"c", b"1")?;
            t.put(other, b"d", b"1")?;
            t.delete_range(other, b"a"..b"z")
        },
        touches: &[],
    },
    Writer {
        name: "one family through and one beside",
        write: |t, f, other| {
            t.put(other, b"d", b"1")?;
            t.put(f, b"c", b"1")
        },
        touches: &["c"],
    },
];

/// The cycle that the module tells of.
fn cycle(w: &World, reader: &Reader, writer: &Writer) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    let shown = a.step(|t, f| (reader.read)(t, f))?;
    assert_eq!(shown, reader.shows, "{}", reader.name);
    assert_eq!(b.step(|t, f| t.get(f, b"out"))?.as_deref(), None);
    let other = w.other.clone();
    b.step(|t, f| (writer.write)(t, f, &other))?;
    b.commit()?;
    a.put("out", 1)?;
    a.commit()?;
    Ok(Seen)
}

fn reset(w: &World) {
    w.db.delete_range("a"..END).unwrap();
    w.other.delete_range("a"..END).unwrap();
    KEYS.into_iter().for_each(|k| {
        w.db.put(k, "1").unwrap();
    });
}

/// All readers against all writers in one mode and over one kind of storage. Returns the number of refusals.
fn all_pairs(mode: Mode, storage: Storage) -> u32 {
    let mut prevented = 0;
    for reader in READERS {
        let world = World::new(mode, storage);
        for writer in WRITERS {
            reset(&world);
            let touched = |covers: Covers| writer.touches.iter().any(|k| covers(k));
            let expected = match (mode.level, mode.locking) {
                (Isolation::Serializable, false) if touched(reader.saw) => Refused,
                (Isolation::Serializable, true) if touched(reader.locked) => Locked,
                _ => Seen,
            };
            // What the reader deletes is a write, on which levels and modes have their own opinion.
            if reader.name == "a range that it deleted before" && mode != Mode::new(Isolation::Serializable, false) {
                continue;
            }
            let outcome = cycle(&world, reader, writer).unwrap_or_else(|refused| refused);
            assert_eq!(outcome, expected, "{} against {} ({mode}, {storage:?})", writer.name, reader.name);
            prevented += u32::from(outcome != Seen);
        }
        drop(world);
    }
    prevented
}

fn storages() -> &'static [Storage] {
    if kingtide_testkit::full() { &Storage::ALL } else { &[Storage::Memory, Storage::Flushed] }
}

#[test]
fn what_an_optimistic_reader_saw_does_not_change() {
    let mode = Mode::new(Isolation::Serializable, false);
    let prevented: Vec<u32> = storages().iter().map(|s| all_pairs(mode, *s)).collect();
    assert!(prevented.iter().all(|n| *n == prevented[0] && *n > 80), "{prevented:?}");
}

#[test]
fn what_a_locking_reader_could_see_cannot_be_changed() {
    let mode = Mode::new(Isolation::Serializable, true);
    let prevented: Vec<u32> = storages().iter().map(|s| all_pairs(mode, *s)).collect();
    assert!(prevented.iter().all(|n| *n == prevented[0] && *n > 80), "{prevented:?}");
}

#[test]
fn below_serializable_each_of_them_happens() {
    for level in Isolation::ALL.into_iter().filter(|l| *l < Isolation::Serializable) {
        for locking in [false, true] {
            assert_eq!(all_pairs(Mode::new(level, locking), Storage::Memory), 0);
        }
    }
    for storage in storages() {
        assert_eq!(all_pairs(Mode::new(Isolation::Snapshot, false), *storage), 0);
    }
}

/// The same without bounds, up to both ends of the family.
#[test]
fn phantoms_at_the_ends_of_a_family() {
    for (forward, key) in [(true, "zzz"), (true, "b5"), (false, "0"), (false, "b5")] {
        for empty in [false, true] {
            let world = World::new(Mode::new(Isolation::Serializable, false), Storage::Memory);
            let family = if empty { &world.other } else { world.db.default_family() };
            let mut a = world.begin();
            let mut it = a.inner.cursor(family, ..).unwrap();
            if forward {
                it.seek_to_first()
            } else {
                it.seek_to_last()
            }
            let mut shown = 0;
            while it.valid() {
                shown += 1;
                if forward { it.next() } else { it.prev() }
            }
            it.status().unwrap();
            assert_eq!(shown, if empty { 0 } else { 2 });
            family.put(key, "1").unwrap();
            assert_eq!(a.put("out", 1).and_then(|()| a.commit()), Err(Refused), "{key}, forward {forward}, {empty}");
        }
    }
}
