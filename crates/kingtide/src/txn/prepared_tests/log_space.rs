//! Transactions in doubt and the length of the log.

use super::*;
use kingtide_base::stats::Stat;

/// As the options have them.
const MAX: u64 = 262_144;
const SEGMENT: u64 = 65_536;

/// Writes with the jobs done as threads would do them.
fn write_along(db: &Db, from: u32, count: u32, mut each: impl FnMut(&Db)) {
    for i in from..from + count {
        db.put((i % 400).to_be_bytes(), [i as u8; 300]).unwrap();
        if i % 8 == 0 {
            while db.run_one_job().unwrap() {}
            each(db);
        }
    }
}

/// One forgotten transaction neither keeps the log nor makes the engine flush all the time.
#[test]
fn a_forgotten_transaction_does_not_keep_the_log() {
    let fs = MemFs::new();
    let db = open(&fs);
    let sequence = prepare(&db, b"forgotten", batch(&[(db.default_family(), b"a", b"1")]));
    let mut longest = 0;
    write_along(&db, 0, 4000, |db| longest = longest.max(db.inner().wal.size()));
    let flushes = db.inner().stats.get(Stat::Flushes);
    // 1.3 MB were written; a memtable has 64 KiB.
    assert!(longest <= MAX + 3 * SEGMENT, "the log grew to {longest} bytes");
    assert!(flushes < 80, "{flushes} flushes");
    let info = db.inner().prepared.list();
    assert_eq!((info[0].sequence, info.len()), (sequence, 1));
    drop(db);
    let fs = fs.crash_clone(Survival::AllLost, &mut Rng::new(3));
    let db = open(&fs);
    assert_eq!(db.inner().prepared.list(), info);
    // And so on with a record from before the open.
    write_along(&db, 0, 2000, |db| longest = longest.max(db.inner().wal.size()));
    assert!(longest <= MAX + 3 * SEGMENT, "the log grew to {longest} bytes");
    assert_eq!(db.inner().prepared.list(), info);
    resolve(&db, b"forgotten", true);
    assert!(db.get(b"a").unwrap().is_some());
    drop(db);
    let db = open(&fs.crash_clone(Survival::AllLost, &mut Rng::new(3)));
    assert!(xids(&db).is_empty());
}

/// Records that together are nearly as long as the log may be are written again only as often as the log doubles, and
/// while they make it too long, nothing is flushed for that, because it would not help.
#[test]
fn large_transactions_in_doubt_are_not_written_again_and_again() {
    let db = open(&MemFs::new());
    for i in 0..10u8 {
        prepare(&db, &[i], batch(&[(db.default_family(), &[i], &noise(i.into(), 20_000))]));
    }
    let before = db.inner().wal.appended().0;
    write_along(&db, 0, 4000, |_| {});
    let logged = db.inner().wal.appended().0 - before;
    assert!(logged < 3_000_000, "{logged} bytes of log for 1.3 MB of writes");
    let flushes = db.inner().stats.get(Stat::Flushes);
    assert!(flushes < 80, "{flushes} flushes");
    assert!(db.inner().wal.size() < 1_200_000);
    assert_eq!(xids(&db).len(), 10);
}

/// Prepares and rollbacks leave nothing to flush, but they fill the log.
#[test]
fn a_log_of_nothing_but_rollbacks_is_given_back() {
    for durability in [Durability::Power, Durability::Process] {
        let fs = MemFs::new();
        let db = open(&fs);
        for i in 0..1000u32 {
            let mut writes = batch(&[(db.default_family(), b"a", &noise(i, 1000))]);
            try_prepare(&db, b"xid", &mut writes, durability).unwrap();
            try_resolve(&db, b"xid", false, durability).unwrap();
            while db.run_one_job().unwrap() {}
            let size = db.inner().wal.size();
            assert!(size <= MAX + SEGMENT, "the log has {size} bytes after {i} rollbacks");
        }
        drop(db);
        let db = open(&fs.kill_clone());
        assert!(xids(&db).is_empty() && db.get(b"a").unwrap().is_none());
    }
}

/// Until the end of a transaction is synced its prepare record stays, even if everything else of its segment is in
/// tables: a power cut that takes the end must find the transaction in doubt.
#[test]
fn a_prepare_record_stays_until_its_end_is_synced() {
    let fs = MemFs::new();
    let db = open(&fs);
    db.create_family("to drop", Default::default()).unwrap();
    prepare(&db, b"xid", batch(&[(db.default_family(), b"a", b"1")]));
    let segments = db.inner().wal.live_segments();
    for i in 0..40u32 {
        db.put(i.to_be_bytes(), noise(i, 5000)).unwrap();
    }
    db.flush().unwrap();
    try_resolve(&db, b"xid", true, Durability::Process).unwrap();
    db.drop_family("to drop").unwrap(); // gives back the log that nothing needs
    assert!(db.inner().wal.live_segments().contains(&segments[0]));
    let lost = open(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1)));
    assert_eq!((xids(&lost), lost.get(b"a").unwrap().is_some()), (vec![b"xid".to_vec()], false));
    db.sync().unwrap();
    db.put(b"b", b"2").unwrap();
    db.flush().unwrap();
    assert!(!db.inner().wal.live_segments().contains(&segments[0]));
    let kept = open(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1)));
    assert!(xids(&kept).is_empty() && kept.get(b"a").unwrap().is_some());
}
