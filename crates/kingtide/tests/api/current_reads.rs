//! What a coordinator with statements of its own needs of a transaction: snapshots for each statement, reads of what is
//! newest whatever the snapshot, and waits of another length for one verb.

use kingtide::{Db, ErrorKind, Isolation, Options, ReadOptions, Transaction, TransactionOptions, vfs::MemFs};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

fn open() -> Db {
    let options = Options::new().fs(Arc::new(MemFs::new()));
    Db::open("/db", options).unwrap()
}

fn begin(db: &Db, isolation: Isolation, locking: bool) -> Transaction {
    db.begin_with(TransactionOptions::new(isolation).locking(locking)).unwrap()
}

fn get(txn: &mut Transaction, db: &Db, key: &str) -> Option<String> {
    let value = txn.get(db.default_family(), key.as_bytes()).unwrap();
    value.map(|v| String::from_utf8(v.to_vec()).unwrap())
}

/// Keys and values from `lower` on, at the snapshot or newest.
fn scan(txn: &mut Transaction, db: &Db, newest: bool) -> String {
    let options = ReadOptions::new().range((Bound::Included(b"a".to_vec()), Bound::Unbounded));
    let family = db.default_family();
    let mut it = if newest { txn.cursor_newest(family, options) } else { txn.cursor_with(family, options) }.unwrap();
    let mut seen = Vec::new();
    it.seek_to_first();
    while it.valid() {
        let (key, value) = (it.key().to_vec(), it.value().unwrap().to_vec());
        seen.push(format!("{}={}", key.escape_ascii(), value.escape_ascii()));
        it.next();
    }
    it.status().unwrap();
    seen.join(" ")
}

#[test]
fn a_refreshed_snapshot_shows_what_was_committed_since() {
    for locking in [false, true] {
        let db = open();
        db.put("a", "1").unwrap();
        let mut txn = begin(&db, Isolation::RepeatableRead, locking);
        txn.put(db.default_family(), b"own", b"w").unwrap();
        assert_eq!(get(&mut txn, &db, "a").as_deref(), Some("1"));
        db.put("a", "2").unwrap();
        db.flush().unwrap();
        db.compact().unwrap();
        assert_eq!(get(&mut txn, &db, "a").as_deref(), Some("1"));
        txn.refresh_snapshot().unwrap();
        assert_eq!(scan(&mut txn, &db, false), "a=2 own=w");
        db.put("a", "3").unwrap();
        db.flush().unwrap();
        db.compact().unwrap();
        assert_eq!(get(&mut txn, &db, "a").as_deref(), Some("2"), "the new snapshot is kept by merges too");
        txn.commit().unwrap();
        assert_eq!(txn.refresh_snapshot().unwrap_err().kind(), ErrorKind::Finished);
    }
}

#[test]
fn a_refresh_fixes_the_moment_before_the_first_read() {
    let db = open();
    db.put("a", "1").unwrap();
    let mut txn = begin(&db, Isolation::RepeatableRead, true);
    txn.refresh_snapshot().unwrap();
    db.put("a", "2").unwrap();
    assert_eq!(get(&mut txn, &db, "a").as_deref(), Some("1"));
}

#[test]
fn newest_iterators_look_past_the_snapshot() {
    for locking in [false, true] {
        let db = open();
        db.put("a", "1").unwrap();
        db.put("b", "1").unwrap();
        let mut txn = begin(&db, Isolation::RepeatableRead, locking);
        assert_eq!(scan(&mut txn, &db, false), "a=1 b=1");
        txn.put(db.default_family(), b"c", b"own").unwrap();
        db.delete("a").unwrap();
        db.put("b", "2").unwrap();
        db.put("d", "2").unwrap();
        assert_eq!(scan(&mut txn, &db, true), "b=2 c=own d=2");
        assert_eq!(scan(&mut txn, &db, false), "a=1 b=1 c=own");
    }
}

#[test]
fn levels_that_check_take_neither() {
    let db = open();
    for level in Isolation::ALL {
        for locking in [false, true] {
            let mut txn = begin(&db, level, locking);
            let refreshed = txn.refresh_snapshot().map_err(|e| e.kind());
            assert_eq!(refreshed.is_ok(), level == Isolation::RepeatableRead, "{level} {locking}");
            let newest = txn.cursor_newest(db.default_family(), ReadOptions::default()).map(drop).map_err(|e| e.kind());
            let checks = level == Isolation::Snapshot || level == Isolation::Serializable && !locking;
            assert_eq!(newest, if checks { Err(ErrorKind::InvalidArgument) } else { Ok(()) }, "{level} {locking}");
        }
    }
}

#[test]
fn the_wait_for_a_lock_can_be_set_for_one_verb() {
    let db = open();
    let family = db.default_family();
    let mut holder = begin(&db, Isolation::RepeatableRead, true);
    holder.put(family, b"k", b"1").unwrap();
    let mut txn = begin(&db, Isolation::RepeatableRead, true);
    txn.set_lock_timeout(Some(Duration::ZERO));
    assert_eq!(txn.get_for_update(family, b"k").map(drop).unwrap_err().kind(), ErrorKind::Conflict);
    txn.set_lock_timeout(Some(Duration::from_millis(1)));
    assert_eq!(txn.get_for_update(family, b"k").map(drop).unwrap_err().kind(), ErrorKind::LockTimeout);
    txn.set_lock_timeout(None);
    holder.commit().unwrap();
    assert_eq!(txn.get_for_update(family, b"k").unwrap().as_deref(), Some(&b"1"[..]));
}
