//! What becomes of a prepared transaction, step by step.

use super::*;
use crate::ops::LockTarget;
use crate::ops::control::MAX_XID;
use crate::txn::prepared::PreparedLock;
use kingtide_vfs::{Fault, FaultFs, Op as FsOp, Rule};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn kind_of<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("refused").kind()
}

#[test]
fn prepared_writes_are_nowhere_until_committed_and_never_when_rolled_back() {
    let fs = MemFs::new();
    let db = open(&fs);
    let family = db.default_family();
    let first = prepare(&db, b"one", batch(&[(family, b"a", b"1"), (family, b"b", b"1")]));
    let second = prepare(&db, b"two", batch(&[(family, b"a", b"2")]));
    assert!(first < second && db.get(b"a").unwrap().is_none());
    let list = db.inner().prepared.list();
    assert_eq!(list.iter().map(|p| (p.sequence, p.operations)).collect::<Vec<_>>(), [(first, 2), (second, 1)]);
    assert!(list.iter().all(|p| p.isolation == Isolation::Serializable));
    let resolution = try_resolve(&db, b"two", false, Durability::Process).unwrap();
    assert_eq!(resolution.txn, TXN);
    assert!(db.get(b"a").unwrap().is_none());
    resolve(&db, b"one", true);
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(db.get(b"b").unwrap().as_deref(), Some(&b"1"[..]));
    for xid in [&b"one"[..], b"two", b"never"] {
        assert_eq!(kind_of(try_resolve(&db, xid, true, Durability::Power)), ErrorKind::NotFound);
    }
    // A name that was resolved is free again.
    prepare(&db, b"one", batch(&[(family, b"a", b"3")]));
    assert_eq!(xids(&db), [b"one"]);
}

#[test]
fn names_are_checked_and_a_refused_prepare_leaves_the_batch_alone() {
    let db = open(&MemFs::new());
    let family = db.default_family();
    prepare(&db, b"xid", batch(&[(family, b"a", b"1")]));
    let mut another = batch(&[(family, b"b", b"2")]);
    let mut refused = |xid: &[u8]| kind_of(try_prepare(&db, xid, &mut another, Durability::Power));
    assert_eq!(refused(b"xid"), ErrorKind::Exists);
    assert_eq!(refused(b""), ErrorKind::InvalidArgument);
    assert_eq!(refused(&[0; MAX_XID + 1]), ErrorKind::InvalidArgument);
    assert_eq!(another.len(), 1);
    let sequence = db.latest_sequence();
    let request =
        PrepareRequest { xid: b"y", txn: 1, isolation: Isolation::Snapshot, batch: &mut another, locks: Vec::new() };
    let conflict = db.inner().prepare_with(request, |_, _| Err(crate::Error::new(ErrorKind::Conflict, "validation")));
    assert_eq!(kind_of(conflict), ErrorKind::Conflict);
    assert_eq!((another.len(), db.latest_sequence(), xids(&db)), (1, sequence, vec![b"xid".to_vec()]));
    try_prepare(&db, b"y", &mut another, Durability::Power).unwrap();
    assert_eq!(another.len(), 0, "taken");
}

/// In doubt through closes, kills and power cuts, one after the other, with exactly what was prepared.
#[test]
fn a_transaction_in_doubt_comes_back_from_every_end() {
    let mut fs = MemFs::new();
    let db = open(&fs);
    let other = db.create_family("other", Default::default()).unwrap();
    let family = db.default_family();
    let mut writes = batch(&[(family, b"put", b"value"), (&other, b"large", &[7; 5000])]);
    writes.put_ttl(family, b"for a while", b"v", Duration::from_secs(1_000_000)).unwrap();
    writes.put(&other, b"packed", &b"the same again and ".repeat(100)).unwrap();
    writes.delete(family, b"gone").unwrap();
    writes.single_delete(&other, b"once").unwrap();
    writes.delete_range(family, b"r"..b"s").unwrap();
    let lock = |exclusive, target| PreparedLock { family: other.inner().clone(), exclusive, target };
    let range = LockTarget::Range(Bound::Excluded(b"a".to_vec()), Bound::Unbounded);
    let locks = vec![lock(false, LockTarget::Key(b"read".to_vec())), lock(true, range)];
    let request =
        PrepareRequest { xid: b"xid", txn: 9, isolation: Isolation::RepeatableRead, batch: &mut writes, locks };
    let power = durably(Durability::Power);
    let made = db.inner().prepare_with(request, |r, _| db.inner().write(r, &power)).unwrap();
    prepare(&db, b"empty", WriteBatch::new());
    let (sequence, writes) = (made.durable.unwrap(), writes_of(&db, b"xid"));
    assert_eq!(writes.len(), 7);
    let info = db.inner().prepared.list();
    drop(other);
    let mut db = Some(db);
    for round in 0..8 {
        let open_now = db.take().unwrap();
        match round % 4 {
            0 => open_now.close().unwrap(),
            1 => fs = fs.kill_clone(),
            2 => fs = fs.crash_clone(Survival::AllLost, &mut Rng::new(round)),
            _ => {
                // The log that held the record has been flushed and released, but for the record's part.
                for i in 0..300u32 {
                    open_now.put(i.to_be_bytes(), [1; 500]).unwrap();
                }
                open_now.flush().unwrap();
                fs = fs.crash_clone(Survival::RandomBlocks, &mut Rng::new(round));
            }
        }
        drop(open_now);
        let again = open(&fs);
        assert_eq!(again.inner().prepared.list(), info, "round {round}");
        assert_eq!(info[0].sequence, sequence);
        assert_eq!(writes_of(&again, b"xid"), writes, "round {round}");
        assert!(writes_of(&again, b"empty").is_empty());
        assert!(again.get(b"put").unwrap().is_none());
        db = Some(again);
    }
    let db = db.unwrap();
    resolve(&db, b"empty", true);
    resolve(&db, b"xid", true);
    let db = open(&fs.crash_clone(Survival::AllLost, &mut Rng::new(9)));
    assert!(xids(&db).is_empty());
    assert_eq!(db.get(b"for a while").unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!(db.family("other").unwrap().get(b"packed").unwrap().unwrap().len(), 1900);
}

#[test]
fn recovery_hands_out_the_locks_of_what_is_in_doubt() {
    let db = open(&MemFs::new());
    let family = db.default_family();
    let mut writes = batch(&[(family, b"k", b"v")]);
    writes.delete_range(family, b"r"..b"s").unwrap();
    let read = PreparedLock { family: family.inner().clone(), exclusive: false, target: LockTarget::Key(b"x".into()) };
    let locks: Vec<_> = locks_of(&writes, &[read]).into_iter().map(|l| (l.exclusive, l.target)).collect();
    let range = LockTarget::Range(Bound::Included(b"r".to_vec()), Bound::Excluded(b"s".to_vec()));
    let expected = [(true, LockTarget::Key(b"k".to_vec())), (true, range), (false, LockTarget::Key(b"x".to_vec()))];
    assert_eq!(locks, expected);
}

#[test]
fn of_many_threads_exactly_one_resolves() {
    let db = open(&MemFs::new());
    let family = db.default_family();
    for round in 0..50u32 {
        prepare(&db, b"xid", batch(&[(family, &round.to_be_bytes(), b"v")]));
        let (commits, rollbacks) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|s| {
            for committed in [true, false, true, false] {
                let (db, won) = (&db, if committed { &commits } else { &rollbacks });
                s.spawn(move || match try_resolve(db, b"xid", committed, Durability::Process) {
                    Ok(_) => drop(won.fetch_add(1, Ordering::Relaxed)),
                    Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound),
                });
            }
        });
        let (commits, rollbacks) = (commits.into_inner(), rollbacks.into_inner());
        assert_eq!(commits + rollbacks, 1);
        assert_eq!(db.get(round.to_be_bytes()).unwrap().is_some(), commits == 1);
    }
}

/// A commit that was refused leaves the transaction in doubt, and it can be tried again.
#[test]
fn a_refused_end_leaves_the_transaction_in_doubt() {
    let fs = FaultFs::new(Arc::new(MemFs::new()), 1);
    let db = Db::open("/db", options(Arc::new(fs.clone()))).unwrap();
    prepare(&db, b"xid", batch(&[(db.default_family(), b"a", b"1")]));
    let before = writes_of(&db, b"xid");
    for committed in [true, false] {
        fs.add(Rule::new(FsOp::Write, Fault::Enospc).path(".wal").sticky());
        assert_eq!(kind_of(try_resolve(&db, b"xid", committed, Durability::Power)), ErrorKind::NoSpace);
        fs.clear();
        assert_eq!((xids(&db), writes_of(&db, b"xid")), (vec![b"xid".to_vec()], before.clone()));
    }
    let mut another = batch(&[(db.default_family(), b"b", b"1")]);
    fs.add(Rule::new(FsOp::Write, Fault::Enospc).path(".wal"));
    assert_eq!(kind_of(try_prepare(&db, b"new", &mut another, Durability::Power)), ErrorKind::NoSpace);
    fs.clear();
    assert_eq!((xids(&db), another.len()), (vec![b"xid".to_vec()], 1));
    // A disk that is full for one write only: the end takes the space that is kept for it.
    fs.add(Rule::new(FsOp::Write, Fault::Enospc).path(".wal"));
    resolve(&db, b"xid", true);
    assert!(db.get(b"a").unwrap().is_some());
}

/// After a failed sync the outcome is unknown: prepared in memory, maybe on disk; the log takes no more.
#[test]
fn a_failed_sync_leaves_it_prepared_and_the_log_stopped() {
    let fs = MemFs::new();
    let db = open(&fs);
    db.put(b"before", b"v").unwrap();
    fs.fail_syncs(1);
    let mut writes = batch(&[(db.default_family(), b"a", b"1")]);
    let outcome = try_prepare(&db, b"xid", &mut writes, Durability::Power).unwrap();
    assert_eq!(kind_of(outcome.durable), ErrorKind::Poisoned);
    assert_eq!((xids(&db), writes.len()), (vec![b"xid".to_vec()], 0));
    assert_eq!(kind_of(try_resolve(&db, b"xid", false, Durability::Process)), ErrorKind::Poisoned);
    assert_eq!(xids(&db), [b"xid"]);
    let lost = open(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1)));
    assert!(xids(&lost).is_empty());
    let kept = open(&fs.kill_clone());
    assert_eq!(xids(&kept), [b"xid"]);
    resolve(&kept, b"xid", false);
}

#[test]
fn writes_to_a_dropped_family_are_left_out() {
    let fs = MemFs::new();
    let db = open(&fs);
    let family = db.default_family().clone();
    let dropped = db.create_family("dropped", Default::default()).unwrap();
    for xid in [&b"now"[..], b"later", b"only"] {
        let kept: &[(&ColumnFamily, &[u8], &[u8])] = &[(&family, xid, b"kept"), (&dropped, b"b", b"lost")];
        prepare(&db, xid, batch(if xid == b"only" { &kept[1..] } else { kept }));
    }
    db.drop_family("dropped").unwrap();
    assert_eq!(
        kind_of(try_prepare(&db, b"new", &mut batch(&[(&dropped, b"b", b"x")]), Durability::Power)),
        ErrorKind::Closed
    );
    resolve(&db, b"now", true);
    assert_eq!(db.get(b"now").unwrap().as_deref(), Some(&b"kept"[..]));
    // A family of the same name is another family.
    db.create_family("dropped", Default::default()).unwrap();
    drop(db);
    let db = open(&fs.kill_clone());
    assert_eq!(xids(&db), [&b"later"[..], b"only"]);
    resolve(&db, b"later", true);
    resolve(&db, b"only", true);
    assert_eq!(db.get(b"later").unwrap().as_deref(), Some(&b"kept"[..]));
    let again = db.family("dropped").unwrap();
    assert!(again.get(b"b").unwrap().is_none());
}

/// The next open may find the family undropped, and with it every write of a transaction that was committed.
#[test]
fn writes_to_a_family_whose_drop_failed_are_not_left_out() {
    for succeeds_later in [false, true] {
        let fs = MemFs::new();
        let db = open(&fs);
        let family = db.default_family().clone();
        let other = db.create_family("other", Default::default()).unwrap();
        prepare(&db, b"xid", batch(&[(&family, b"a", b"1"), (&other, b"b", b"2")]));
        fs.set_capacity(Some(1));
        db.drop_family("other").unwrap_err();
        fs.set_capacity(None);
        assert_eq!(kind_of(other.put(b"c", b"3")), ErrorKind::Closed, "it stays closed for other writers");
        resolve(&db, b"xid", true);
        if succeeds_later {
            db.drop_family("other").unwrap();
        }
        let again = open(&fs.kill_clone());
        assert!(xids(&again).is_empty());
        assert_eq!(again.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
        match again.family("other") {
            Ok(other) => assert_eq!(other.get(b"b").unwrap().as_deref(), Some(&b"2"[..]), "a part of a transaction"),
            Err(e) => assert!(succeeds_later && e.kind() == ErrorKind::NotFound, "{e}"),
        }
    }
}

/// Commits without durability are not logged; prepares and ends always are.
#[test]
fn prepares_and_ends_are_logged_at_every_durability() {
    for durability in [Durability::None, Durability::Process, Durability::Interval(Duration::from_secs(1))] {
        let fs = MemFs::new();
        let db = open(&fs);
        let family = db.default_family();
        for (xid, key) in [(b"1", b"a"), (b"2", b"b"), (b"3", b"c")] {
            try_prepare(&db, xid, &mut batch(&[(family, key, b"v")]), durability).unwrap();
        }
        try_resolve(&db, b"1", true, durability).unwrap();
        try_resolve(&db, b"2", false, durability).unwrap();
        let db = open(&fs.kill_clone());
        assert_eq!(xids(&db), [b"3"], "{durability:?}");
        assert!(db.get(b"a").unwrap().is_some() && db.get(b"b").unwrap().is_none());
    }
}

/// What a log says that no engine of this kind wrote is damage, not a reason to guess.
#[test]
fn contradictions_in_the_log_are_damage() {
    use crate::ops::{LogOp, read_log_op};
    use crate::txn::InDoubt;
    use kingtide_base::coding::Reader;
    use std::collections::HashMap;
    let record = |first| {
        let no_locks = std::iter::empty();
        WriteBatch::prepare_record(b"xid", (first, Isolation::Snapshot), no_locks, &WriteBatch::new()).unwrap()
    };
    let add = |found: &mut InDoubt, first, seq| {
        let record = record(first);
        let Some(LogOp::Prepare(p)) = read_log_op(&mut Reader::new(record.payload())) else { panic!("unreadable") };
        found.prepare(&p, seq, record.payload())
    };
    let mut found = InDoubt::default();
    add(&mut found, 0, 10).unwrap();
    add(&mut found, 10, 20).unwrap();
    add(&mut found, 10, 30).unwrap();
    assert_eq!(kind_of(add(&mut found, 0, 40)), ErrorKind::Corruption);
    assert_eq!(kind_of(add(&mut InDoubt::default(), 41, 40)), ErrorKind::Corruption);
    assert_eq!(kind_of(add(&mut InDoubt::default(), 40, 40)), ErrorKind::Corruption);
    let mut copy_only = InDoubt::default();
    add(&mut copy_only, 10, 30).unwrap();
    let found = copy_only.finish(&HashMap::new(), 0, &|_, _| Ok(None)).unwrap();
    assert_eq!((found[0].first, found[0].seq), (10, 30));
    let mut ended = InDoubt::default();
    add(&mut ended, 0, 10).unwrap();
    ended.resolved(b"xid");
    ended.resolved(b"not known");
    add(&mut ended, 0, 20).unwrap();
    assert_eq!(ended.finish(&HashMap::new(), 0, &|_, _| Ok(None)).unwrap()[0].first, 20);
}

/// What could not be committed cannot be prepared.
#[test]
fn a_transaction_that_does_not_fit_into_a_memtable_is_not_prepared() {
    let fs = MemFs::new();
    let mut options = options(Arc::new(fs.clone()));
    options.tuning.memtable_pieces = 16;
    let db = Db::open("/db", options).unwrap();
    let family = db.default_family();
    let of = |bytes: usize| {
        let mut writes = WriteBatch::new();
        (0..bytes >> 20).for_each(|i| writes.put(family, &i.to_be_bytes(), &vec![7; 1 << 20]).unwrap());
        writes
    };
    let refused = try_prepare(&db, b"large", &mut of(31 << 20), Durability::Process).map(drop).unwrap_err();
    assert!(refused.kind() == ErrorKind::InvalidArgument && refused.to_string().contains("memtable"), "{refused}");
    try_prepare(&db, b"fits", &mut of(27 << 20), Durability::Process).unwrap();
    db.put(b"beside", vec![1; 1 << 20]).unwrap();
    try_resolve(&db, b"fits", true, Durability::Process).unwrap();
    assert_eq!(db.get(26usize.to_be_bytes()).unwrap().map(|v| v.len()), Some(1 << 20));
}
