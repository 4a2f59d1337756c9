//! Iterators over entries from both ends, compared with an ordered map; ranges in all the forms that Rust has; and what
//! reads through [`Read`].

use kingtide::vfs::MemFs;
use kingtide::{
    ColumnFamily, Db, Entries, Entry, ErrorKind, FamilyOptions, Isolation, KeyOrder, KeyRange, ManualClock, Options,
    Read, Result, Transaction,
};
use kingtide_base::rng::Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

type Pair = (Vec<u8>, Vec<u8>);
/// Values, and when they expire.
type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

fn open(clock: Option<Arc<ManualClock>>) -> Db {
    let mut options = Options::new().fs(MemFs::shared()).manual_jobs(true);
    options.clock = clock.map(|c| c as Arc<dyn kingtide::Clock>);
    Db::open("/db", options).unwrap()
}

fn pair(entry: Result<Entry>) -> Pair {
    entry.unwrap().into()
}

fn keys(entries: impl Iterator<Item = Result<Entry>>) -> Vec<String> {
    entries.map(|e| String::from_utf8(e.unwrap().key.to_vec()).unwrap()).collect()
}

fn random_key(rng: &mut Rng) -> Vec<u8> {
    let mut key = vec![b'k'; 1 + rng.below(3) as usize];
    key.iter_mut().for_each(|b| *b = b'a' + rng.below(6) as u8);
    key
}

fn random_bounds(rng: &mut Rng) -> Bounds {
    let mut ends = [random_key(rng), random_key(rng)];
    ends.sort();
    let [lo, hi] = ends.map(|k| match rng.below(4) {
        0 => Bound::Unbounded,
        1 => Bound::Excluded(k),
        _ => Bound::Included(k),
    });
    (lo, hi)
}

fn is_within(key: &[u8], bounds: &Bounds) -> bool {
    let above = match &bounds.0 {
        Bound::Unbounded => true,
        Bound::Included(k) => key >= &k[..],
        Bound::Excluded(k) => key > &k[..],
    };
    above
        && match &bounds.1 {
            Bound::Unbounded => true,
            Bound::Included(k) => key <= &k[..],
            Bound::Excluded(k) => key < &k[..],
        }
}

fn expected(model: &Model, bounds: &Bounds, now_ms: u64) -> VecDeque<Pair> {
    let alive = model.iter().filter(|(_, (_, expiry))| expiry.is_none_or(|at| at > now_ms));
    alive.filter(|(k, _)| is_within(k, bounds)).map(|(k, (v, _))| (k.clone(), v.clone())).collect()
}

/// Takes entries from a random end, in streaks, until both ends say that there is nothing left.
fn drain(mut entries: Entries, mut expected: VecDeque<Pair>, rng: &mut Rng, what: &str) {
    let mut ended = 0;
    let mut forward = rng.one_in(2);
    while ended < 3 {
        if rng.one_in(3) {
            forward = !forward;
        }
        let (found, wanted) = match forward {
            true => (entries.next(), expected.pop_front()),
            false => (entries.next_back(), expected.pop_back()),
        };
        assert_eq!(found.map(pair), wanted, "{what}, forward: {forward}");
        ended += u32::from(wanted.is_none());
    }
}

/// One random write, to the database or in a transaction, and to the model.
fn write(model: &mut Model, txn: Option<&mut Transaction>, f: &ColumnFamily, now_ms: u64, rng: &mut Rng) {
    let (key, value) = (random_key(rng), rng.next_u64().to_le_bytes().repeat(1 + rng.below(30) as usize));
    match rng.below(12) {
        0..=6 => {
            match txn {
                Some(txn) => txn.put(f, &key, &value),
                None => f.put(&key, &value).map(drop),
            }
            .unwrap();
            model.insert(key, (value, None));
        }
        7 => {
            let ttl = Duration::from_millis(1 + rng.below(40));
            match txn {
                Some(txn) => txn.put_ttl(f, &key, &value, ttl),
                None => f.put_ttl(&key, &value, ttl).map(drop),
            }
            .unwrap();
            model.insert(key, (value, Some(now_ms + ttl.as_millis() as u64)));
        }
        8..=10 => {
            match txn {
                Some(txn) => txn.delete(f, &key),
                None => f.delete(&key).map(drop),
            }
            .unwrap();
            model.remove(&key);
        }
        _ => {
            let bounds = random_bounds(rng);
            let result = match txn {
                Some(txn) => txn.delete_range(f, &bounds),
                None => f.delete_range(&bounds).map(drop),
            };
            // A range that ends before it begins is refused where one operation would have to hold it.
            match result {
                Ok(()) => model.retain(|k, _| !is_within(k, &bounds)),
                Err(e) => panic!("{bounds:?}: {e}"),
            }
        }
    }
}

#[test]
fn both_ends_meet_whatever_is_in_the_way() {
    let seed = kingtide_testkit::seed_of_the_day("both_ends_meet_whatever_is_in_the_way");
    for round in 0..if kingtide_testkit::full() { 400 } else { 25 } {
        let rng = &mut Rng::new(seed ^ round << 32);
        let clock = ManualClock::at_unix_ms(1_000_000);
        let db = open(Some(clock.clone()));
        let f = db.default_family();
        let (mut now, mut model) = (1_000_000, Model::new());
        let mut past = Vec::new();
        for step in 0..300 {
            write(&mut model, None, f, now, rng);
            match rng.below(60) {
                0 => db.flush().unwrap(),
                1 => f.compact_range(..).unwrap(),
                2 => {
                    let ms = rng.below(20);
                    clock.advance(Duration::from_millis(ms));
                    now += ms;
                }
                3 => past.push((db.snapshot(), model.clone())),
                _ => {}
            }
            if step % 10 == 0 {
                let what = format!("seed {seed}, round {round}, step {step}");
                let bounds = random_bounds(rng);
                drain(f.range(&bounds), expected(&model, &bounds, now), rng, &what);
                if let Some((snapshot, model)) = past.last() {
                    drain(snapshot.of(f).range(&bounds), expected(model, &bounds, now), rng, &what);
                }
            }
            if step % 50 == 49 {
                let level =
                    [Isolation::ReadCommitted, Isolation::Snapshot, Isolation::Serializable][rng.below(3) as usize];
                let mut txn = db.begin(level).unwrap();
                let mut seen = model.clone();
                for _ in 0..rng.below(30) {
                    write(&mut seen, Some(&mut txn), f, now, rng);
                }
                let bounds = random_bounds(rng);
                let what = format!("seed {seed}, round {round}, step {step}, at {level}");
                drain(txn.range(f, &bounds), expected(&seen, &bounds, now), rng, &what);
                let entries = txn.of(f).range(&bounds);
                let wanted = expected(&seen, &bounds, now);
                txn.put(f, b"a later write", b"does not show").unwrap();
                drain(entries, wanted, rng, &what);
                txn.rollback().unwrap();
            }
        }
    }
}

/// An entry may be there for the end that comes first and gone for the other. Nothing is shown twice, and nothing that
/// stays is left out.
#[test]
fn entries_that_expire_between_the_ends() {
    let clock = ManualClock::at_unix_ms(1_000_000);
    let db = open(Some(clock.clone()));
    for i in 0..100u8 {
        match i % 3 {
            0 => db.put_ttl([i], [i], Duration::from_millis(1 + u64::from(i) * 7 % 50)).unwrap(),
            _ => db.put([i], [i]).unwrap(),
        };
    }
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let (mut entries, mut found) = (db.iter(), BTreeSet::new());
        while let Some(e) = if rng.one_in(2) { entries.next() } else { entries.next_back() } {
            assert!(found.insert(e.unwrap().key.to_vec()), "seed {seed}: a key came twice");
            if rng.one_in(20) {
                clock.advance(Duration::from_millis(1));
            }
        }
        assert!((0..100u8).filter(|i| i % 3 != 0).all(|i| found.contains(&[i][..])), "seed {seed}: a key is missing");
        assert!(entries.next().is_none() && entries.next_back().is_none());
    }
}

#[test]
fn every_form_of_a_range() {
    let db = open(None);
    for k in ["a", "b", "bb", "c", "d"] {
        db.put(k, "v").unwrap();
    }
    let f = db.default_family();
    assert_eq!(keys(db.range(b"a"..b"c")), ["a", "b", "bb"]);
    assert_eq!(keys(f.range("b"..)), ["b", "bb", "c", "d"]);
    assert_eq!(keys(f.range(.."bb")), ["a", "b"]);
    assert_eq!(keys(f.range(..="bb".to_owned())), ["a", "b", "bb"]);
    assert_eq!(keys(f.range(vec![b'b']..=vec![b'c'])), ["b", "bb", "c"]);
    assert_eq!(keys(f.range((Bound::Excluded("b"), Bound::Excluded("d")))), ["bb", "c"]);
    assert_eq!(keys(f.range([Bound::Unbounded, Bound::Included(b"b")])), ["a", "b"]);
    assert_eq!(keys(f.range(..)), keys(f.iter()));
    assert_eq!(keys(f.range("c".."b")), [""; 0], "it ends before it begins");
    assert_eq!(keys(f.prefix("b")), ["b", "bb"]);
    let backward = db.prefix("b").rev().map(|e| pair(e).0);
    assert_eq!(backward.collect::<Vec<_>>(), [&b"bb"[..], b"b"]);
    f.compact_range("a".."b").unwrap();
    f.compact_range("b"..).unwrap();
    assert!(f.range_stats(.."c").unwrap().rows <= 5);
    assert_eq!(f.reclaim_range(.."c").unwrap_err().kind(), ErrorKind::InvalidArgument, "only start..end");
}

/// Reads of a range that ends before it begins find nothing; calls that would change something refuse it, in whatever form it is given.
#[test]
fn a_range_that_ends_before_it_begins_is_refused_where_it_would_change_something() {
    let db = open(None);
    let down = db.create_family_ordered("down", FamilyOptions::default(), KeyOrder::Reverse).unwrap();
    for (f, start, end) in [(db.default_family(), "c", "a"), (&down, "a", "c")] {
        ["a", "b", "c"].iter().for_each(|k| _ = f.put(k, k).unwrap());
        f.flush().unwrap();
        let mut txn = db.begin(Isolation::Snapshot).unwrap();
        let excluded = || (Bound::Excluded(start), Bound::Excluded(end));
        let calls = [
            f.delete_range(start..end).map(drop),
            f.delete_range(start..=end).map(drop),
            f.delete_range(excluded()).map(drop),
            txn.delete_range(f, start..end),
            txn.delete_range(f, excluded()),
            f.compact_range(start..=end),
            f.compact_range(excluded()),
            f.reclaim_range(start..end),
        ];
        for (n, refused) in calls.into_iter().enumerate() {
            let e = refused.expect_err(&format!("call {n}"));
            assert!(
                e.kind() == ErrorKind::InvalidArgument && e.message().ends_with("_range: start sorts after end"),
                "{e}"
            );
        }
        assert_eq!((keys(f.iter()).len(), keys(txn.iter(f)).len()), (3, 3));
        // A range that is empty for another reason is no mistake.
        f.delete_range(end..end).unwrap();
        f.delete_range((Bound::Excluded(end), Bound::Excluded(end))).unwrap();
        f.reclaim_range(end..end).unwrap();
        f.compact_range(end..end).unwrap();

        assert_eq!(keys(f.range(start..end)), [""; 0]);
        let stats = f.range_stats(start..=end).unwrap();
        assert_eq!((stats.rows, stats.entries, stats.disk_bytes, stats.tables), (0, 0, 0, 0), "{stats:?}");
        assert_eq!(f.approximate_size(start..end).unwrap(), 0);
        assert_eq!(f.count_up_to(start..end, 9).unwrap().rows, 0);
        assert_eq!(f.split_points(start..end, 4).unwrap(), [&b""[..]; 0]);
        assert_eq!(f.cardinality(start..end, 1, 4, |_, _| 0).unwrap().rows, 0);
    }
}

#[test]
fn every_form_of_a_range_is_deleted() {
    type Form = (&'static str, fn(&Db, &ColumnFamily) -> Result<()>, &'static [&'static str]);
    const FORMS: [Form; 8] = [
        ("a..c", |_, f| f.delete_range("a".."c").map(drop), &["c", "d"]),
        ("a..=c", |_, f| f.delete_range("a"..="c").map(drop), &["d"]),
        ("b..", |_, f| f.delete_range("b"..).map(drop), &["a"]),
        ("..c", |_, f| f.delete_range(.."c").map(drop), &["c", "d"]),
        ("..=c", |_, f| f.delete_range(..="c").map(drop), &["d"]),
        ("all", |_, f| f.delete_range(..).map(drop), &[]),
        ("excluded", |_, f| f.delete_range((Bound::Excluded("a"), Bound::Excluded("d"))).map(drop), &["a", "d"]),
        (
            "none",
            |_, f| f.delete_range((Bound::Excluded("d"), Bound::<&str>::Unbounded)).map(drop),
            &["a", "b", "c", "d"],
        ),
    ];
    let db = open(None);
    for (name, delete, left) in FORMS {
        let family = db.create_family(name, FamilyOptions::default()).unwrap();
        ["a", "b", "c", "d"].iter().for_each(|k| {
            family.put(k, k).unwrap();
        });
        delete(&db, &family).unwrap();
        assert_eq!(keys(family.iter()), left, "{name}");
    }
    // Descending, a range begins at its greater end; and what is deleted includes what the transaction wrote itself.
    let family = db.create_family_ordered("down", FamilyOptions::default(), KeyOrder::Reverse).unwrap();
    ["a", "b", "c"].iter().for_each(|k| {
        family.put(k, k).unwrap();
    });
    let mut txn = db.begin(Isolation::Serializable).unwrap();
    txn.put(&family, b"d", b"d").unwrap();
    txn.delete_range(&family, "c"..="b").unwrap();
    assert_eq!(keys(txn.iter(&family)), ["d", "a"]);
    txn.delete_range(&family, .."a").unwrap();
    assert_eq!(keys(txn.iter(&family)), ["a"]);
    txn.commit().unwrap();
    assert_eq!(keys(family.iter()), ["a"]);
}

/// What one generic function reads from all that can be read.
fn read_all(reader: &impl Read) -> (Vec<String>, Option<Pair>, Option<Pair>, bool, Vec<bool>) {
    let many = reader.multi_get(&["a", "b", "c"]).into_iter().map(|v| v.unwrap().is_some()).collect();
    let [first, last] = [reader.first(), reader.last()].map(|e| e.unwrap().map(Into::into));
    assert_eq!(reader.get("b").unwrap().is_some(), reader.contains_key("b").unwrap());
    (keys(reader.prefix("")), first, last, reader.contains_key("c").unwrap(), many)
}

#[test]
fn one_trait_reads_families_snapshots_and_transactions() {
    let db = open(None);
    let f = db.default_family();
    assert_eq!(read_all(&db), (vec![], None, None, false, vec![false; 3]));
    db.put("a", "1").unwrap();
    let before = db.snapshot();
    db.put("b", vec![7; 10_000]).unwrap(); // in a value log, once flushed
    db.flush().unwrap();
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.delete(f, b"a").unwrap();
    txn.put(f, b"c", b"3").unwrap();

    let (a, b, c) = (("a", vec![b'1']), ("b", vec![7; 10_000]), ("c", vec![b'3']));
    let [a, b, c] = [a, b, c].map(|(k, v)| Some((k.as_bytes().to_vec(), v)));
    let now = (vec!["a".into(), "b".into()], a.clone(), b.clone(), false, vec![true, true, false]);
    assert_eq!(read_all(&db), now);
    assert_eq!(read_all(f), now);
    assert_eq!(read_all(&before.of(f)), (vec!["a".into()], a.clone(), a, false, vec![true, false, false]));
    assert_eq!(read_all(&txn.of(f)), (vec!["b".into(), "c".into()], b, c, true, vec![false, true, true]));

    let other = open(None);
    let reader = before.of(other.default_family());
    assert_eq!(reader.get("a").unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(reader.contains_key("a").unwrap_err().kind(), ErrorKind::InvalidArgument);
    let mut entries = reader.iter();
    assert_eq!(entries.next_back().unwrap().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(entries.next().is_none(), "an iterator ends after its error");
}

/// A snapshot has the verbs of the trait itself, which take the family.
#[test]
fn a_snapshot_reads_by_itself() {
    let db = open(None);
    let (f, other) = (db.default_family(), db.create_family("other", FamilyOptions::new()).unwrap());
    db.put("a", "1").unwrap();
    db.put("b", vec![7; 10_000]).unwrap();
    other.put("x", "9").unwrap();
    let before = db.snapshot();
    db.put("a", "2").unwrap();
    db.delete("b").unwrap();
    db.put("c", "3").unwrap();
    other.delete("x").unwrap();
    for flush in [false, true] {
        if flush {
            db.flush().unwrap();
        }
        assert_eq!(before.get(f, "a").unwrap().unwrap(), b"1");
        assert_eq!(before.get(&other, "x").unwrap().unwrap(), b"9");
        assert_eq!(["b", "c"].map(|k| before.contains_key(f, k).unwrap()), [true, false]);
        let many = before.multi_get(f, &["c", "b", "a"]).into_iter().map(|v| v.unwrap().map(|v| v.len()));
        assert_eq!(many.collect::<Vec<_>>(), [None, Some(10_000), Some(1)]);
        assert_eq!(keys(before.iter(f)), ["a", "b"]);
        assert_eq!(keys(before.range(f, "b"..)), ["b"]);
        assert_eq!(keys(before.range(f, ..="b").rev()), ["b", "a"]);
        assert_eq!(keys(before.prefix(&other, "x")), ["x"]);
        assert_eq!(before.first(f).unwrap().unwrap().value, b"1");
        assert_eq!(before.last(f).unwrap().unwrap().key, b"b");
    }
    let stranger = open(None);
    let refused = before.get(stranger.default_family(), "a").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let entries = before.range(f, ..);
    drop(before);
    assert_eq!(keys(entries), ["a", "b"], "an iterator outlives its snapshot");
}

/// A serializable transaction that read from both ends is refused for what was inserted where it read, and for nothing else.
#[test]
fn what_both_ends_passed_is_checked() {
    for (insert, refused) in [("k15", true), ("k85", true), ("k50", false), ("k20", true), ("k80", true), ("j", true)] {
        let db = open(None);
        let f = db.default_family();
        (1..10).for_each(|i| {
            db.put(format!("k{i}0"), "v").unwrap();
        });
        let mut txn = db.begin(Isolation::Serializable).unwrap();
        let mut entries = txn.iter(f);
        for key in ["k10", "k90", "k20", "k80"] {
            let e = if key < "k50" { entries.next() } else { entries.next_back() };
            assert_eq!(e.unwrap().unwrap().key, key.as_bytes());
        }
        db.put(insert, "new").unwrap();
        txn.put(f, b"result", b"of what was read").unwrap();
        let kind = txn.commit().map_err(|e| e.kind()).err();
        assert_eq!(kind, refused.then_some(ErrorKind::Conflict), "{insert}");
        assert_eq!(entries.next().unwrap().unwrap_err().kind(), ErrorKind::Finished, "the transaction is over");
        assert!(entries.next().is_none());
    }
}

#[test]
fn an_iterator_outlives_what_made_it() {
    let db = open(None);
    (0..50u8).for_each(|i| {
        db.put([i], [i]).unwrap();
    });
    let snapshot = db.snapshot();
    let [mut now, mut then] = [db.range([10]..), snapshot.of(db.default_family()).range(..[40])];
    drop(snapshot);
    db.delete_range(..).unwrap();
    db.flush().unwrap();
    db.compact().unwrap();
    assert_eq!(pair(now.next_back().unwrap()).0, [49]);
    assert_eq!((now.count(), pair(then.next().unwrap()).0, then.count()), (39, vec![0], 39));
    assert!(db.first().unwrap().is_none() && db.last().unwrap().is_none());
    let range: &dyn KeyRange = &("a"..);
    assert_eq!(db.range(range).count(), 0);
}
