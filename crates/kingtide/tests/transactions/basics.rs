//! What a transaction's verbs do, one by one; the levels have tests of their own in `isolation`.

use kingtide::{
    ColumnFamily, Db, ErrorKind, Isolation, LockMode, Options, Transaction, TransactionOptions, vfs::MemFs,
};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

fn open() -> Db {
    let options = Options::new().fs(Arc::new(MemFs::new()));
    Db::open("/db", options).unwrap()
}

fn get(txn: &mut Transaction, family: &ColumnFamily, key: &str) -> Option<String> {
    let value = txn.get(family, key.as_bytes()).unwrap();
    value.map(|v| String::from_utf8(v.to_vec()).unwrap())
}

fn committed(db: &Db, key: &str) -> Option<String> {
    db.get(key).unwrap().map(|v| String::from_utf8(v.to_vec()).unwrap())
}

#[test]
fn writes_are_the_transactions_own_until_it_commits() {
    let db = open();
    let cf = db.default_family();
    for level in Isolation::ALL {
        for locking in [false, true] {
            db.put("a", "old").unwrap();
            db.put("gone", "x").unwrap();
            let mut txn = db.begin_with(TransactionOptions::new(level).locking(locking)).unwrap();
            txn.put(cf, b"a", b"new").unwrap();
            txn.delete(cf, b"gone").unwrap();
            assert_eq!(get(&mut txn, cf, "a").as_deref(), Some("new"), "{level}");
            assert_eq!(get(&mut txn, cf, "gone"), None);
            assert_eq!(committed(&db, "a").as_deref(), Some("old"));
            assert_eq!(txn.len(), 2);
            let seq = txn.commit().unwrap();
            assert_eq!(seq, db.latest_sequence());
            assert_eq!((committed(&db, "a").as_deref(), committed(&db, "gone")), (Some("new"), None));
            assert_eq!(txn.put(cf, b"a", b"again").unwrap_err().kind(), ErrorKind::Finished);
            assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Finished);
            txn.rollback().unwrap();
            txn.reset().unwrap();
            txn.put(cf, b"a", b"third").unwrap();
            txn.rollback().unwrap();
            assert_eq!(committed(&db, "a").as_deref(), Some("new"));
        }
    }
    assert!(db.transactions().is_empty());
}

#[test]
fn long_write_sets_are_read_back_by_index_and_cut_back_to_savepoints() {
    let db = open();
    let cf = db.default_family();
    let other = db.create_family("other", Default::default()).unwrap();
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    for i in 0..3000u32 {
        txn.put(cf, format!("k{:05}", i % 1000).as_bytes(), format!("{i}").as_bytes()).unwrap();
        txn.put(&other, format!("k{i:05}").as_bytes(), b"other").unwrap();
        if i == 1499 {
            txn.set_savepoint("half").unwrap();
            assert_eq!(get(&mut txn, cf, "k00499").as_deref(), Some("1499"));
        }
    }
    txn.delete_range(cf, b"k00500"..b"k00600").unwrap();
    assert_eq!(get(&mut txn, cf, "k00550"), None);
    assert_eq!(get(&mut txn, &other, "k00550").as_deref(), Some("other"));
    txn.put(cf, b"k00550", b"back").unwrap();
    assert_eq!(get(&mut txn, cf, "k00550").as_deref(), Some("back"));
    txn.rollback_to_savepoint("half").unwrap();
    assert_eq!(txn.len(), 3000);
    for i in 0..1000u32 {
        let want = if i < 500 { i + 1000 } else { i };
        assert_eq!(get(&mut txn, cf, &format!("k{i:05}")), Some(want.to_string()));
    }
    assert_eq!(get(&mut txn, &other, "k01500"), None);
    assert_eq!(txn.rollback_to_savepoint("nowhere").unwrap_err().kind(), ErrorKind::NotFound);
    txn.release_savepoint("half").unwrap();
    assert_eq!(txn.release_savepoint("half").unwrap_err().kind(), ErrorKind::NotFound);
    txn.commit().unwrap();
    assert_eq!(committed(&db, "k00499").as_deref(), Some("1499"));
}

#[test]
fn the_first_committer_wins() {
    let db = open();
    let cf = db.default_family();
    db.put("x", "0").unwrap();
    let (mut a, mut b) = (db.begin(Isolation::Snapshot).unwrap(), db.begin(Isolation::Snapshot).unwrap());
    a.put(cf, b"x", b"a").unwrap();
    b.put(cf, b"x", b"b").unwrap();
    a.commit().unwrap();
    assert_eq!(b.commit().unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(b.get(cf, b"x").unwrap_err().kind(), ErrorKind::Finished);
    assert_eq!(committed(&db, "x").as_deref(), Some("a"));
    // Through a flush, a merge and a plain write too.
    b.reset().unwrap();
    b.put(cf, b"x", b"b").unwrap();
    db.put("x", "plain").unwrap();
    db.flush().unwrap();
    db.compact().unwrap();
    assert_eq!(b.commit().unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn a_serializable_reader_of_a_range_sees_no_phantom() {
    let db = open();
    let cf = db.default_family();
    for level in [Isolation::Snapshot, Isolation::Serializable] {
        let mut txn = db.begin(level).unwrap();
        let mut it = txn.cursor(cf, &b"p"[..]..&b"q"[..]).unwrap();
        it.seek_to_first();
        assert!(!it.valid());
        txn.put(cf, b"count", b"0").unwrap();
        db.put(format!("p-{level}"), "phantom").unwrap();
        assert_eq!(txn.commit().is_ok(), level == Isolation::Snapshot);
        db.delete(format!("p-{level}")).unwrap();
    }
}

#[test]
fn locks_keep_others_away() {
    let db = open();
    let cf = db.default_family();
    let options =
        TransactionOptions::new(Isolation::ReadCommitted).locking(true).lock_timeout(std::time::Duration::ZERO);
    let mut a = db.begin_with(options.clone()).unwrap();
    let mut b = db.begin_with(options).unwrap();
    assert_eq!(a.get_for_update(cf, b"x").unwrap().as_deref(), None);
    assert_eq!(b.get_for_update(cf, b"x").unwrap_err().kind(), ErrorKind::Conflict);
    a.lock_range(cf, b"m".., LockMode::Shared).unwrap();
    assert_eq!(b.put(cf, b"n", b"1").unwrap_err().kind(), ErrorKind::Conflict);
    b.put(cf, b"l", b"1").unwrap();
    let mut optimist = db.begin(Isolation::Snapshot).unwrap();
    optimist.put(cf, b"x", b"1").unwrap();
    assert_eq!(optimist.commit().unwrap_err().kind(), ErrorKind::Conflict);
    db.set_option("lock_timeout_ms", "1").unwrap();
    assert_eq!(db.put("x", "plain").unwrap_err().kind(), ErrorKind::LockTimeout);
    a.commit().unwrap();
    db.put("x", "plain").unwrap();
    b.rollback().unwrap();
}

#[test]
fn another_thread_can_abort_it() {
    let db = open();
    let cf = db.default_family();
    let mut txn = db.begin(Isolation::Serializable).unwrap();
    txn.put(cf, b"a", b"1").unwrap();
    let handle = txn.handle();
    std::thread::spawn(move || handle.abort().unwrap()).join().unwrap();
    assert_eq!(txn.put(cf, b"b", b"1").unwrap_err().kind(), ErrorKind::Aborted);
    assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Aborted);
    assert_eq!(committed(&db, "a"), None);
    assert_eq!(db.abort_transaction(txn.id()).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_prepared_transaction_keeps_its_locks_through_a_reopen() {
    let fs = Arc::new(MemFs::new());
    let options = || Options::new().fs(fs.clone());
    let db = Db::open("/db", options()).unwrap();
    let cf = db.default_family().clone();
    db.put("read", "1").unwrap();
    for locking in [false, true] {
        let begin = TransactionOptions::new(Isolation::Serializable).locking(locking);
        let mut txn = db.begin_with(begin).unwrap();
        let suffix = if locking { "l" } else { "o" };
        txn.get(&cf, b"read").unwrap();
        txn.put(&cf, format!("a-{suffix}").as_bytes(), b"1").unwrap();
        txn.prepare(format!("xid-{suffix}").as_bytes()).unwrap();
        assert_eq!(txn.put(&cf, b"b", b"1").unwrap_err().kind(), ErrorKind::Finished);
        let mut other = db.begin(Isolation::ReadCommitted).unwrap();
        other.put(&cf, b"elsewhere", b"1").unwrap();
        assert_eq!(other.prepare(format!("xid-{suffix}").as_bytes()).unwrap_err().kind(), ErrorKind::Exists);
        other.commit().unwrap();
    }
    assert_eq!(db.stats().get("transactions_prepared"), Some(2));
    db.close().unwrap();
    drop((db, cf));
    let db = Db::open("/db", options()).unwrap();
    let cf = db.default_family();
    let found: Vec<_> = db.recover_prepared().into_iter().map(|p| (p.xid, p.operations)).collect();
    assert_eq!(found, [(b"xid-o".to_vec(), 1), (b"xid-l".to_vec(), 1)]);
    db.set_option("lock_timeout_ms", "1").unwrap();
    for key in ["a-o", "a-l", "read"] {
        let e = db.put(key, "other").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::LockTimeout, "{key}: {e}");
        let mut txn = db.begin(Isolation::Snapshot).unwrap();
        txn.put(cf, key.as_bytes(), b"other").unwrap();
        assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Conflict);
    }
    db.commit_prepared(b"xid-o").unwrap();
    db.rollback_prepared(b"xid-l").unwrap();
    assert_eq!(db.commit_prepared(b"xid-l").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!((committed(&db, "a-o").as_deref(), committed(&db, "a-l")), (Some("1"), None));
    db.put("read", "2").unwrap();
    assert!(db.transactions().is_empty() && db.locks().is_empty());
}

#[test]
fn a_put_and_its_delete_conflict_even_when_a_merge_dropped_both() {
    let db = open();
    let cf = db.default_family();
    for level in Isolation::ALL {
        let mut txn = db.begin(level).unwrap();
        assert!(txn.get_for_update(cf, b"k").unwrap().is_none());
        txn.put(cf, b"other", b"1").unwrap();
        db.put("k", "1").unwrap();
        db.flush().unwrap();
        db.delete("k").unwrap();
        db.compact().unwrap();
        assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Conflict, "{level}");
    }
}

#[test]
fn multi_get_mixes_own_and_committed_values() {
    let db = open();
    let cf = db.default_family();
    for (k, v) in [("a", "1"), ("b", "2"), ("c", "3"), ("e", "5")] {
        db.put(k, v).unwrap();
    }
    for level in Isolation::ALL {
        for locking in [false, true] {
            let mut txn = db.begin_with(TransactionOptions::new(level).locking(locking)).unwrap();
            let keys = ["d", "c", "b", "a", "e"];
            let read = |txn: &mut Transaction| -> Vec<Option<String>> {
                let values = txn.multi_get(cf, &keys);
                values.into_iter().map(|v| v.unwrap().map(|v| String::from_utf8(v.to_vec()).unwrap())).collect()
            };
            let some = |v: &str| Some(v.to_owned());
            assert_eq!(read(&mut txn), [None, some("3"), some("2"), some("1"), some("5")]);
            txn.put(cf, b"d", b"4").unwrap();
            txn.delete_range(cf, b"a"..b"c").unwrap();
            txn.put(cf, b"b", b"own").unwrap();
            assert_eq!(read(&mut txn), [some("4"), some("3"), some("own"), None, some("5")], "{level}");
        }
    }
}

#[test]
fn the_victim_of_a_deadlock_is_rolled_back_at_once() {
    let db = open();
    let cf = db.default_family().clone();
    let begin = |db: &Db| {
        let lock_timeout = Some(std::time::Duration::from_secs(60));
        db.begin_with(TransactionOptions::new(Isolation::ReadCommitted).locking(true).lock_timeout(lock_timeout))
            .unwrap()
    };
    let mut a = begin(&db);
    a.put(&cf, b"x", b"a").unwrap();
    a.put(&cf, b"more", b"a").unwrap(); // so that the other one is the victim
    let (ready, wait) = std::sync::mpsc::channel();
    let other = std::thread::spawn({
        let (db, cf) = (db.clone(), cf.clone());
        move || {
            let mut b = begin(&db);
            b.put(&cf, b"y", b"b").unwrap();
            ready.send(()).unwrap();
            let e = b.put(&cf, b"x", b"b").unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Deadlock, "{e}");
            b // still there, and holding nothing
        }
    });
    wait.recv().unwrap();
    while db.lock_waits().is_empty() {
        std::thread::yield_now();
    }
    a.put(&cf, b"y", b"a").unwrap();
    a.commit().unwrap();
    let mut b = other.join().unwrap();
    assert_eq!(b.commit().unwrap_err().kind(), ErrorKind::Finished);
    assert_eq!(committed(&db, "y").as_deref(), Some("a"));
}

/// Iterators made between writes, when sorted copies of earlier writes are reused, against an ordered map.
#[test]
fn iterators_between_writes_show_all_that_was_written() {
    use std::collections::BTreeMap;
    let db = open();
    let cf = db.default_family();
    let other = db.create_family("other", Default::default()).unwrap();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for i in (0..400u32).step_by(3) {
        db.put(format!("k{i:04}"), "committed").unwrap();
        model.insert(format!("k{i:04}").into_bytes(), b"committed".to_vec());
    }
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    let mut rng = 12345u64;
    let mut below = |n: u64| {
        rng = rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (rng >> 33) % n
    };
    let mut saved = None;
    for step in 0..3000u32 {
        let key = format!("k{:04}", below(400)).into_bytes();
        match below(20) {
            0 => {
                let end = format!("k{:04}", below(400)).into_bytes();
                let (lo, hi) = (key.clone().min(end.clone()), key.max(end));
                txn.delete_range(cf, &lo..&hi).unwrap();
                model.retain(|k, _| *k < lo || *k >= hi);
            }
            1..=4 => {
                txn.delete(cf, &key).unwrap();
                model.remove(&key);
            }
            5 => txn.put(&other, &key, b"elsewhere").unwrap(),
            6 if saved.is_none() => {
                txn.set_savepoint("s").unwrap();
                saved = Some(model.clone());
            }
            7 if below(8) == 0 => {
                if let Some(m) = saved.take() {
                    txn.rollback_to_savepoint("s").unwrap();
                    txn.release_savepoint("s").unwrap();
                    model = m;
                }
            }
            _ => {
                txn.put(cf, &key, &step.to_le_bytes()).unwrap();
                model.insert(key, step.to_le_bytes().to_vec());
            }
        }
        if below(4) == 0 {
            let (a, b) = (format!("k{:04}", below(400)).into_bytes(), format!("k{:04}", below(400)).into_bytes());
            let (lo, hi) = (a.clone().min(b.clone()), a.max(b));
            let mut it = txn.cursor(cf, &lo[..]..=&hi[..]).unwrap();
            let mut seen = Vec::new();
            it.seek_to_first();
            while it.valid() {
                let (k, v) = it.entry().unwrap();
                seen.push((k.to_vec(), v.to_vec()));
                it.next();
            }
            it.status().unwrap();
            let want: Vec<_> = model.range(lo..=hi).map(|(k, v)| (k.clone(), v.clone())).collect();
            assert_eq!(seen, want, "step {step}");
        }
    }
}

/// Without a write too, keys read for update at different moments must all have held at one.
#[test]
fn reads_for_update_are_checked_without_writes() {
    let db = open();
    let cf = db.default_family();
    for level in [Isolation::ReadUncommitted, Isolation::ReadCommitted, Isolation::RepeatableRead] {
        for changed in [false, true] {
            db.put("a", "0").unwrap();
            let mut txn = db.begin(level).unwrap();
            txn.get_for_update(cf, b"a").unwrap();
            if changed {
                db.put("a", "1").unwrap();
            }
            txn.get_for_update(cf, b"b").unwrap();
            let refused = txn.commit().err().map(|e| e.kind());
            assert_eq!(refused, changed.then_some(ErrorKind::Conflict), "{level}");
        }
    }
    // Plain reads of a serializable transaction are of one moment: never refused.
    let mut txn = db.begin(Isolation::Serializable).unwrap();
    txn.get(cf, b"a").unwrap();
    db.put("a", "2").unwrap();
    txn.commit().unwrap();
}

/// Of several running writers of a key, a get shows the one that an iterator shows.
#[test]
fn reads_of_what_is_uncommitted_agree() {
    let db = open();
    let cf = db.default_family();
    db.put("key", "committed").unwrap();
    let write = |what: u32| {
        let mut txn = db.begin(Isolation::ReadCommitted).unwrap();
        match what {
            0 => txn.delete(cf, b"key").unwrap(),
            1 => txn.delete_range(cf, "a".."z").unwrap(),
            n => txn.put(cf, b"key", n.to_string().as_bytes()).unwrap(),
        }
        txn
    };
    for whats in [[2, 3, 4], [2, 0, 3], [2, 3, 0], [1, 2, 3], [2, 1, 0], [3, 2, 1], [2, 1, 3]] {
        let _writers = whats.map(write);
        let mut reader = db.begin(Isolation::ReadUncommitted).unwrap();
        let got = reader.get(cf, b"key").unwrap().map(|v| v.to_vec());
        let mut it = reader.cursor(cf, ..).unwrap();
        it.seek_to_first();
        let shown = it.valid().then(|| it.value().unwrap().to_vec());
        assert_eq!(got, shown, "{whats:?}");
    }
}

/// Keys that are to go at once do, whenever they were written; a later write without a life of its own stays.
#[test]
fn keys_expire_together() {
    let db = open();
    let cf = db.default_family();
    let mut txn = db.begin_with(TransactionOptions::default().locking(true)).unwrap();
    let [past, far] = [1, 4_102_444_800].map(|s| UNIX_EPOCH + Duration::from_secs(s));
    txn.put_until(cf, b"a", b"1", far).unwrap();
    txn.put_until(cf, b"b", b"2", past).unwrap();
    txn.put_until(cf, b"c", b"3", past).unwrap();
    txn.put(cf, b"c", b"4").unwrap();
    let look = |txn: &mut Transaction| {
        let mut seen = Vec::new();
        let mut it = txn.cursor(cf, ..).unwrap();
        it.seek_to_first();
        while it.valid() {
            let at = it.expires_at();
            seen.push((String::from_utf8(it.key().to_vec()).unwrap(), at));
            it.next();
        }
        assert_eq!(it.expires_at(), None);
        seen
    };
    let want = [("a".to_owned(), Some(far)), ("c".to_owned(), None)];
    assert_eq!(look(&mut txn), want);
    txn.commit().unwrap();
    assert_eq!(look(&mut db.begin(Isolation::Snapshot).unwrap()), want);
    assert_eq!(get(&mut db.begin(Isolation::Snapshot).unwrap(), cf, "b"), None);
}
