//! What query planners learn about a range, against what is there: over key shapes, key orders, option sets, and
//! states of the tree from memtables alone to a single run.

mod world;

use kingtide::RangeStats;
use kingtide_base::rng::Rng;
use std::ops::Bound;
use world::{Shape, State, World, runs};

/// How far off an estimate may be: what is documented, for entries of much the same size.
fn allowance(world: &World, stats: &RangeStats, exact: u64) -> f64 {
    let blocks = 2.0 * world.entries_a_block() * stats.runs.max(1) as f64;
    let in_memory = 0.4 * stats.memtable_entries.min(exact).max(10) as f64;
    blocks + in_memory + 0.12 * exact as f64 + 3.0
}

#[derive(Default, Debug)]
struct Seen {
    ranges: u64,
    exact: u64,
    estimated: u64,
    empty: u64,
    worst: f64,
    off: f64,
}

fn check(world: &World, rng: &mut Rng, seen: &mut Seen) {
    let (lower, upper) = world.draw_range(rng);
    let (lo, hi) = (lower.as_ref().map(|k| &k[..]), upper.as_ref().map(|k| &k[..]));
    let range = (lo, hi);
    let exact = world.count(lo, hi);
    let stats = world.family.range_stats(range).unwrap();
    let what = format!("{world}, {lower:?}..{upper:?}, {exact} rows: {stats:?}");
    seen.ranges += 1;
    assert!((stats.entries > 0 || exact == 0) && (stats.rows > 0) == (stats.entries > 0), "{what}");
    assert!(stats.rows <= stats.entries && stats.memtable_entries <= stats.entries, "{what}");
    assert_eq!(
        world.family.approximate_size(range).unwrap() > 0,
        stats.disk_bytes + stats.memtable_bytes + stats.value_log_bytes > 0
    );
    let off = stats.rows as f64 - exact as f64;
    let allowed = allowance(world, &stats, exact);
    assert!(off > -allowed, "too few, by {off}, of {allowed}; {what}");
    // Versions of one key in several tables, and what memtables overwrote, count more than once.
    let more_than_once = if world.overwrites() { stats.entries as f64 - exact as f64 } else { 0.0 };
    assert!(off < allowed.max(more_than_once + 1.0), "too many, by {off}, of {allowed}; {what}");
    if !world.overwrites() && exact > 100 {
        seen.worst = seen.worst.max(off.abs() / exact as f64);
        seen.off += off.abs() / exact as f64;
    }
    let most = [0, 1, 10, 200, 1_000_000][rng.below(5) as usize];
    let count = world.family.count_up_to(range, most).unwrap();
    match count.exact {
        true => assert_eq!(count.rows, exact, "{what}"),
        false => assert!(
            count.rows > 0 && (most < 200 || exact >= most || stats.rows > 4 * most),
            "{count:?} of {most}; {what}"
        ),
    }
    if most == 1_000_000 {
        assert!(count.exact, "{what}");
    }
    *(if count.exact { &mut seen.exact } else { &mut seen.estimated }) += 1;
    seen.empty += u64::from(exact == 0);
}

#[test]
fn estimates_keep_their_bounds() {
    let seed = kingtide_testkit::number("KINGTIDE_SEED").unwrap_or(1);
    let full = std::env::var("KINGTIDE_FULL").is_ok();
    let mut seen = Seen::default();
    for round in 0..if full { 20 } else { 1 } {
        for (shape, options) in runs() {
            let mut rng = Rng::new(seed + round * 1000 + shape as u64);
            let mut world = World::new(shape, options, seed, if full { 20_000 } else { 4000 });
            for state in [
                State::Memtable,
                State::Mixed,
                State::Flushed,
                State::Merged,
                State::Holes,
                State::Updated,
                State::Merged,
            ] {
                world.go_to(state, &mut rng);
                for _ in 0..if full { 300 } else { 40 } {
                    check(&world, &mut rng, &mut seen);
                }
            }
        }
    }
    println!("seed {seed}: {seen:?}");
    assert!(seen.exact > 1000 && seen.estimated > 1000 && seen.empty > 100, "{seen:?}");
}

#[test]
fn whole_families_are_exact_once_merged() {
    for shape in Shape::ALL {
        let mut rng = Rng::new(7);
        let mut world = World::new(shape, "", 7, 3000);
        world.go_to(State::Updated, &mut rng);
        world.go_to(State::Merged, &mut rng);
        let exact = world.count(Bound::Unbounded, Bound::Unbounded);
        assert_eq!(world.family.estimate_count().unwrap(), exact, "{world}");
        let stats = world.db.stats();
        let report = stats.families.iter().find(|f| f.name == world.family.name()).unwrap();
        assert_eq!((report.entries(), report.memtable_entries), (exact, 0));
    }
}

#[test]
fn a_deleted_range_has_few_rows_at_once() {
    let mut rng = Rng::new(9);
    let mut world = World::new(Shape::Ascending, "", 9, 5000);
    world.insert_all();
    for state in [State::Memtable, State::Merged] {
        world.go_to(state, &mut rng);
        world.delete_all();
        let stats = world.family.range_stats(..).unwrap();
        assert!(stats.rows < 200 && stats.entries >= 5000, "{stats:?}");
        // Counting gives up rather than pass thousands of deleted keys.
        let count = world.family.count_up_to(.., 10).unwrap();
        assert!(count.exact && count.rows == 0 || count.rows < 200, "{count:?}");
        world.insert_all();
    }
    assert!(world.family.range_stats(..&[][..]).unwrap() == RangeStats::default());
    world.db.close().unwrap();
    assert!(world.family.range_stats(..).is_err() && world.family.count_up_to(.., 1).is_err());
}

#[test]
fn parts_hold_about_the_same() {
    let (mut cuts, mut worst) = (0, 0.0f64);
    for (shape, options) in runs() {
        let mut rng = Rng::new(3);
        let mut world = World::new(shape, options, 3, 6000);
        for state in [State::Memtable, State::Mixed, State::Flushed, State::Merged, State::Holes, State::Updated] {
            world.go_to(state, &mut rng);
            for _ in 0..10 {
                let (lower, upper) = world.draw_range(&mut rng);
                let (lo, hi) = (lower.as_ref().map(|k| &k[..]), upper.as_ref().map(|k| &k[..]));
                let exact = world.count(lo, hi);
                let parts = 2 + rng.below(9);
                let points = world.family.split_points((lo, hi), parts as usize).unwrap();
                let what = format!("{world}, {parts} parts of {lower:?}..{upper:?}, {exact} rows: {points:?}");
                assert!((points.len() as u64) < parts, "{what}");
                let mut ends: Vec<Bound<&[u8]>> = vec![lo];
                points.iter().for_each(|p| ends.push(Bound::Included(p)));
                let mut sum = 0;
                for (i, from) in ends.iter().enumerate() {
                    let to = points.get(i).map_or(hi, |p| Bound::Excluded(&p[..]));
                    let part = world.count(*from, to);
                    sum += part;
                    if matches!(state, State::Holes | State::Updated) || exact < 1000 || options.contains("prefix_len")
                    {
                        continue; // what a range tombstone hides is cut as if it were there
                    }
                    let allowed = exact as f64 / parts as f64 * 1.5 + 3.0 * world.entries_a_block() + 130.0;
                    assert!((part as f64) < allowed, "{part} of {allowed} in part {i}; {what}");
                    worst = worst.max(part as f64 * parts as f64 / exact as f64);
                    cuts += 1;
                }
                assert_eq!(sum, exact, "{what}");
            }
        }
    }
    println!("{cuts} parts, the largest {worst:.2} of what it should be");
    assert!(cuts > 500);
}

/// An index over two columns: `a` has 37 values, `b` twenty for each.
#[test]
fn different_values_are_told_apart() {
    let world = World::new(Shape::Rows, "", 1, 10);
    let index = world.db.create_family("index", kingtide::FamilyOptions::default()).unwrap();
    let parts = |x: &[u8], y: &[u8]| [4, 8, 16].iter().position(|n| x[..*n] != y[..*n]).unwrap_or(3);
    let none = index.cardinality(.., 3, 100, parts).unwrap();
    assert_eq!((none.rows, none.distinct, none.exact), (0, vec![0; 3], true));
    let n = 40_000u64;
    for i in 0..n {
        let row = kingtide_base::hash::mix64(i);
        let key = [&((row % 37) as u32).to_be_bytes()[..], &((row >> 20) as u32 % 20).to_be_bytes(), &i.to_be_bytes()];
        index.put(key.concat(), b"").unwrap();
    }
    for merged in [false, true] {
        if merged {
            index.compact_range(..).unwrap();
        }
        let c = index.cardinality(.., 3, 200, parts).unwrap();
        let near = |got: u64, want: u64| got * 3 > want * 2 && got * 2 < want * 3;
        assert!(!c.exact && near(c.rows, n) && near(c.distinct[0], 37) && near(c.distinct[2], n), "{c:?}");
        assert!(c.distinct[1] > 200 && c.distinct[1] < 1500, "are 740: {c:?}");
        let c = index.cardinality(..&36u32.to_be_bytes()[..], 2, 100_000, parts).unwrap();
        assert!(c.exact && c.distinct == [36, 720], "{c:?}");
    }
}

/// Entries that have expired are left out: exactly where all or none of a table's have, and in between by the share of time
/// that has passed; in memtables by a sample. Whatever is estimated, what is counted is right.
#[test]
fn expired_entries_are_left_out() {
    use kingtide::vfs::MemFs;
    use kingtide::{Db, ManualClock, Options};
    use std::time::Duration;

    let clock = ManualClock::at_unix_ms(1_000_000);
    let fs = MemFs::shared();
    let options = Options::new().fs(fs).clock(clock.clone()).manual_jobs(true);
    let db = Db::open("db", options).unwrap();
    let family = db.default_family();
    let key = |i: u32| format!("key-{i:05}").into_bytes();
    let near = |rows: u64, exact: u64| rows.abs_diff(exact) <= 1 + exact / 8;
    for i in 0..2000 {
        match i % 2 {
            0 => db.put(key(i), b"stays").unwrap(),
            _ => db.put_ttl(key(i), b"goes", Duration::from_millis(1000 + 10 * u64::from(i))).unwrap(),
        };
    }
    let first_half = || family.range_stats(&key(0)[..]..&key(1000)[..]).unwrap();
    for flushed in [false, true] {
        if flushed {
            db.flush().unwrap();
        }
        let stats = family.range_stats(..).unwrap();
        assert!(stats.expired == 0 && if flushed { stats.rows == 2000 } else { near(stats.rows, 2000) }, "{stats:?}");
    }
    clock.advance(Duration::from_millis(11_000)); // half of those that go
    let stats = family.range_stats(..).unwrap();
    assert!(near(stats.rows, 1500) && near(stats.expired, 500), "{stats:?}");
    assert_eq!(family.count_up_to(.., 5000).unwrap().rows, 1500);
    clock.advance(Duration::from_millis(11_000));
    let stats = family.range_stats(..).unwrap();
    assert_eq!((stats.rows, stats.expired, stats.entries), (1000, 1000, 2000), "{stats:?}");
    assert_eq!(family.estimate_count().unwrap(), 1000);
    assert!(near(first_half().rows, 500) && near(first_half().expired, 500), "{:?}", first_half());

    // In a memtable, and under a range tombstone, which hides each of them once.
    for i in 2000..2500 {
        db.put_ttl(key(i), b"goes", Duration::from_millis(100)).unwrap();
    }
    assert!(near(family.range_stats(..).unwrap().rows, 1500));
    clock.advance(Duration::from_millis(101));
    let stats = family.range_stats(..).unwrap();
    assert!(near(stats.rows, 1000) && near(stats.expired, 1500), "{stats:?}");
    db.delete_range(key(0)..key(1000)).unwrap();
    let stats = family.range_stats(..).unwrap();
    assert!(near(stats.rows, 500), "{stats:?}");
    db.compact().unwrap();
    let stats = family.range_stats(..).unwrap();
    assert_eq!((stats.rows, stats.expired, stats.entries), (500, 0, 500), "{stats:?}");
}

/// A value that is in a value log from the start counts there before the flush, in its range alone.
#[test]
fn values_that_a_memtable_points_to_count() {
    use kingtide::vfs::MemFs;
    use kingtide::{Compression, Db, Options};
    let mut options = Options::new().fs(MemFs::shared()).manual_jobs(true);
    options.family.compression = Compression::None;
    let db = Db::open("db", options).unwrap();
    for n in 0..1000u32 {
        db.put(format!("short-{n:04}"), [1; 50]).unwrap();
    }
    db.put_reader(b"long-1", &vec![7; 3_000_000][..]).unwrap();
    db.put(b"long-2", vec![8; 100_000]).unwrap();
    let family = db.default_family();
    let [long, short] = [b"a"..b"m", b"m"..b"z"].map(|range| family.range_stats(range).unwrap());
    assert!((3_100_000..3_101_000).contains(&long.value_log_bytes), "{long:?}");
    assert_eq!(short.value_log_bytes, 0);
    db.flush().unwrap();
    let all = family.range_stats(..).unwrap();
    assert!(all.value_log_bytes.abs_diff(long.value_log_bytes) < 1000, "{all:?}");
}

#[test]
fn any_number_of_parts_can_be_asked_for() {
    let fs: std::sync::Arc<dyn kingtide::vfs::Fs> = kingtide::vfs::MemFs::shared();
    let db = kingtide::Db::open("db", kingtide::Options::new().fs(fs).manual_jobs(true)).unwrap();
    (0..3000_u32).for_each(|i| _ = db.put(i.to_be_bytes(), [1; 100]).unwrap());
    db.flush().unwrap();
    for parts in [0, 1, 1 << 60, usize::MAX / 16, usize::MAX / 16 + 1, usize::MAX] {
        let points = db.default_family().split_points(.., parts).unwrap();
        assert_eq!(points.is_empty(), parts < 2, "{parts} parts");
        assert!(points.is_sorted());
    }
}
