//! Transactions and snapshots.

use super::{contents, key, open, value};
use kingtide::vfs::MemFs;
use kingtide::{Db, ErrorKind, Isolation, Transaction, WriteBatch};

fn read(txn: &mut Transaction, db: &Db) -> u64 {
    let value = txn.get(db.default_family(), b"counter").unwrap();
    value.map_or(0, |v| String::from_utf8(v.to_vec()).unwrap().parse().unwrap())
}

/// Snapshot isolation lost a third of competing updates: the check at commit compared with the wrong moment. Here several
/// transactions read one counter and add to it, all before the first commits; every one that was told so counts. (Repeatable read
/// promises less: `docs/isolation.md`.)
#[test]
fn snapshot_isolation_loses_no_competing_update() {
    for level in [Isolation::Snapshot, Isolation::Serializable] {
        let db = open(&MemFs::new());
        let (mut committed, mut refused) = (0, 0);
        for round in 0..120u64 {
            let mut open: Vec<Transaction> = (0..2 + round % 3).map(|_| db.begin(level).unwrap()).collect();
            for txn in &mut open {
                let now = read(txn, &db);
                assert_eq!(now, committed, "{level}: read a counter that was not committed");
                txn.put(db.default_family(), b"counter", (now + 1).to_string().as_bytes()).unwrap();
            }
            let (first, mut rest) = (round as usize % open.len(), open);
            let mut winner = rest.remove(first);
            winner.commit().unwrap_or_else(|e| panic!("{level}: the first committer was refused: {e:?}"));
            committed += 1;
            match round % 4 {
                0 => db.flush().unwrap(), // so that the check has to look into tables
                1 => db.compact().unwrap(),
                _ => {}
            }
            for mut txn in rest {
                let e = txn.commit().expect_err("two of several competing updates committed");
                assert_eq!(e.kind(), ErrorKind::Conflict);
                refused += 1;
            }
        }
        let mut txn = db.begin(level).unwrap();
        assert_eq!(read(&mut txn, &db), committed, "{level}: updates were lost");
        println!("{level}: {committed} committed, {refused} refused");
    }
}

/// The state of commits was kept in a ring buffer; once that had wrapped around, a snapshot older than that took the new state of a
/// slot for its own, and read values from its future. Here more commits than any table or array of the engine has slots (65,536
/// for conflicts, 1,024 for running transactions) pass by an old snapshot and an old transaction.
#[test]
fn an_old_snapshot_outlives_every_ring_of_slots() {
    let db = open(&MemFs::new());
    for i in 0..50 {
        db.put(key(i), value(i)).unwrap();
    }
    let before = contents(db.default_family());
    let snapshot = db.snapshot();
    // The transaction begins at a moment of its own, which nothing else keeps.
    for i in 0..50 {
        db.put(key(i), value(i + 500)).unwrap();
    }
    let mut old = db.begin(Isolation::Snapshot).unwrap();
    old.put(db.default_family(), &key(7), b"mine").unwrap();
    // More transactions at once than there are slots.
    let mut many: Vec<Transaction> = (0..1100).map(|_| db.begin(Isolation::Snapshot).unwrap()).collect();
    for (n, txn) in many.iter_mut().enumerate() {
        txn.put(db.default_family(), &key(1000 + n as u64), b"1").unwrap();
    }
    for txn in &mut many {
        txn.commit().unwrap();
    }
    drop(many);
    db.put(key(7), b"theirs").unwrap();
    let mut n = 0u64;
    while n < 70_000 {
        let mut batch = WriteBatch::new();
        for _ in 0..100 {
            // Every slot of the conflict filter is written; the key that the old transaction writes is not among them.
            batch.put(db.default_family(), &key(if n % 50 == 7 { 8 } else { n % 50 }), &value(n)).unwrap();
            batch.put(db.default_family(), &key(10_000 + n), b"1").unwrap();
            n += 1;
        }
        db.write(batch).unwrap();
        while db.run_one_job().unwrap() {}
    }
    for i in 0..50 {
        let seen = snapshot.of(db.default_family()).get(key(i)).unwrap().map(|v| v.to_vec());
        assert_eq!(seen.as_ref(), before.get(&key(i)), "key {i} at the old snapshot");
        let own = old.get(db.default_family(), &key(i)).unwrap().map(|v| v.to_vec());
        let expected = if i == 7 { b"mine".to_vec() } else { value(i + 500) };
        assert_eq!(own, Some(expected), "key {i} in the old transaction");
    }
    assert_eq!(snapshot.of(db.default_family()).get(key(10_000)).unwrap().as_deref(), None);
    assert_eq!(old.commit().unwrap_err().kind(), ErrorKind::Conflict, "a change long ago was forgotten");
    // And one whose keys did not change is not refused.
    let mut fresh = db.begin(Isolation::Snapshot).unwrap();
    fresh.put(db.default_family(), &key(7), b"mine").unwrap();
    fresh.commit().unwrap();
}
