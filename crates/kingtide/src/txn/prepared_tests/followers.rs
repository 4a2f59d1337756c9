//! What change streams and commit hooks see of prepared transactions: that they committed.

use super::*;
use crate::{ChangeRecord, CommittedWrites};
use std::sync::Mutex;

fn in_doubt(db: &Db, xid: &[u8], keys: &[&str]) {
    let mut txn = db.begin(Isolation::Serializable).unwrap();
    keys.iter().for_each(|key| txn.put(db.default_family(), key.as_bytes(), b"v").unwrap());
    txn.prepare(xid).unwrap();
}

fn keys(record: &ChangeRecord) -> Vec<Vec<u8>> {
    record.operations().map(|c| c.key.to_vec()).collect()
}

#[test]
fn a_prepared_transaction_is_shown_when_it_commits_and_never_when_it_does_not() {
    let fs = MemFs::new();
    let db = open(&fs);
    db.set_option("change_retention", "1G").unwrap();
    let told: Arc<Mutex<Vec<u64>>> = Arc::default();
    let inside = told.clone();
    db.default_family()
        .set_commit_hook(Some(Arc::new(move |c: &CommittedWrites<'_>| {
            assert!(!c.is_empty());
            inside.lock().unwrap().push(c.sequence());
        })))
        .unwrap();
    let mut stream = db.changes_since(0).unwrap();
    in_doubt(&db, b"one", &["a", "b"]);
    in_doubt(&db, b"two", &["c"]);
    assert!(stream.next().unwrap().is_none());
    db.put("between", "").unwrap();
    let record = stream.next().unwrap().unwrap();
    assert_eq!(keys(&record), [b"between"]);
    db.rollback_prepared(b"two").unwrap();
    assert!(stream.next().unwrap().is_none());
    assert_eq!(db.commit_prepared(b"one").unwrap(), db.latest_sequence());
    let record = stream.next().unwrap().unwrap();
    assert_eq!(keys(&record), [b"a", b"b"]);
    assert_eq!(record.last_sequence, db.latest_sequence());
    assert_eq!(*told.lock().unwrap(), [3, record.last_sequence]);
    // In doubt over a kill: shown where it commits.
    in_doubt(&db, b"three", &["d"]);
    let db = open(&fs.kill_clone());
    let mut stream = db.changes_since(record.last_sequence).unwrap();
    assert!(stream.next().unwrap().is_none());
    db.commit_prepared(b"three").unwrap();
    assert_eq!(keys(&stream.next().unwrap().unwrap()), [b"d"]);
    let all: Vec<_> = {
        let mut stream = db.changes_since(0).unwrap();
        std::iter::from_fn(|| stream.next().unwrap()).map(|r| keys(&r)).collect()
    };
    assert_eq!(all, [vec![b"between".to_vec()], vec![b"a".to_vec(), b"b".to_vec()], vec![b"d".to_vec()]]);
}
