//! Databases of many families: each has a memtable of its own, and all share the memory for memtables and the jobs.

use kingtide::vfs::MemFs;
use kingtide::{ColumnFamily, Db, FamilyReport, Options};

fn options(memtable_size: u64) -> Options {
    let mut options = Options::new().fs(MemFs::shared()).manual_jobs(true);
    options.family.memtable_size = memtable_size;
    options
}

fn with_families(options: Options, count: usize) -> (Db, Vec<ColumnFamily>) {
    let family_options = options.family.clone();
    let db = Db::open("db", options).unwrap();
    let create = |i| db.create_family(&format!("family-{i}"), family_options.clone()).unwrap();
    let families = (0..count).map(create).collect();
    (db, families)
}

fn stat(db: &Db, name: &str) -> u64 {
    db.stats().get(name).unwrap()
}

fn put_in_all(families: &[ColumnFamily], rounds: u32) {
    for round in 0..rounds {
        for family in families {
            family.put(format!("key-{round}"), [7; 100]).unwrap();
        }
    }
}

/// The memory that one small memtable and its successors would take is less than the first chunks of these: each put found it
/// used up, and waited for a table of one row.
#[test]
fn small_memtables_of_many_families_have_room_to_fill() {
    let (db, families) = with_families(options(64 << 10), 400);
    put_in_all(&families, 20);
    assert_eq!(stat(&db, "flushes"), 0);
    assert_eq!(stat(&db, "stall_memory_micros"), 0);
    // They are flushed when they are full.
    put_in_all(&families[..1], 1000);
    while db.run_one_job().unwrap() {}
    assert!(stat(&db, "flushes") > 0);
}

/// A limit that is lower than what the families' first chunks take cannot be kept, and is not worth a table of few rows.
#[test]
fn each_family_may_have_some_rows_whatever_the_budget() {
    let mut options = options(1 << 20);
    options.db.memtable_budget = 256 << 10;
    let (db, families) = with_families(options, 200);
    put_in_all(&families, 20);
    assert_eq!((stat(&db, "flushes"), stat(&db, "stall_memory_micros")), (0, 0));
    // Few families keep to the budget.
    for family in families.into_iter().skip(4) {
        let name = family.name();
        drop(family);
        db.drop_family(&name).unwrap();
    }
    let family = db.family("family-1").unwrap();
    for i in 0..20_000 {
        family.put(format!("key-{i}"), [7; 100]).unwrap();
        assert!(stat(&db, "memtable_bytes") <= 384 << 10, "row {i}");
    }
    assert!(stat(&db, "flushes") > 5);
}

/// The gauges say the same of files as the families' reports.
#[test]
fn gauges_add_up_over_families() {
    let mut options = options(64 << 10);
    options.family.value_threshold = 64;
    options.family.vlog_dead_ratio = 1.0; // what is dead stays
    let (db, families) = with_families(options, 20);
    for rounds in [10, 5] {
        put_in_all(&families, rounds);
        families.iter().for_each(|f| f.compact_range(..).unwrap());
    }
    db.drop_family("family-3").unwrap();
    let stats = db.stats();
    let sum = |f: fn(&FamilyReport) -> u64| stats.families.iter().map(f).sum::<u64>();
    let klog = sum(|r| r.levels.iter().map(|l| l.bytes).sum());
    assert!(klog > 0 && sum(|r| r.vlog_bytes) > 0 && sum(|r| r.vlog_dead_bytes) > 0);
    assert_eq!(stats.get("klog_bytes"), Some(klog));
    assert_eq!(stats.get("vlog_bytes"), Some(sum(|r| r.vlog_bytes)));
    assert_eq!(stats.get("vlog_dead_bytes"), Some(sum(|r| r.vlog_dead_bytes)));
}
