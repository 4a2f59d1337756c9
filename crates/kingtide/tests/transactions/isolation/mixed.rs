//! Levels and modes among each other, writes outside of transactions, prepared transactions, and a transaction's own
//! writes. A level's promise holds for its own transaction, whatever the others' level is.

use super::world::{Mode, Outcome::*, Storage, World, refusal};
use kingtide::{ErrorKind, Isolation, TransactionOptions};
use std::time::Duration;

const SERIALIZABLE: Mode = Mode::new(Isolation::Serializable, false);

/// A world with every mode for one transaction, and `mode` for the other.
fn against_all(mode: Mode, test: impl Fn(&World, Mode)) {
    for other in Mode::all() {
        for storage in [Storage::Memory, Storage::Compacted] {
            let world = World::new(mode, storage);
            test(&world, other);
            world.check_after();
        }
    }
}

#[test]
fn what_a_serializable_transaction_read_is_not_changed_by_any_level() {
    against_all(SERIALIZABLE, |w, other| {
        let (mut a, mut b) = (w.begin(), w.begin_as(other));
        a.read("1").unwrap();
        a.select(|_| true).unwrap();
        b.put("15", 1).unwrap();
        b.commit().unwrap();
        a.put("2", 21).unwrap();
        assert_eq!(a.commit(), Err(Refused), "{other}");
    });
    against_all(Mode::new(Isolation::Serializable, true), |w, other| {
        let (mut a, mut b) = (w.begin(), w.begin_as(other));
        a.read("1").unwrap();
        // A locking transaction is refused the lock; an optimistic one, the commit.
        assert_eq!(b.put("1", 11).and_then(|()| b.commit()), Err(Locked), "{other}");
        a.put("2", 21).unwrap();
        a.commit().unwrap();
    });
}

#[test]
fn the_first_committer_wins_against_any_level() {
    for locking in [false, true] {
        against_all(Mode::new(Isolation::Snapshot, locking), |w, other| {
            let (mut a, mut b) = (w.begin(), w.begin_as(other));
            b.put("1", 11).unwrap();
            b.commit().unwrap();
            assert_eq!(a.put("1", 12).and_then(|()| a.commit()), Err(Refused), "{other}");
            assert_eq!(w.committed("1"), Some(11));
        });
    }
}

/// What a transaction on a weak level loses, it loses to any other transaction.
#[test]
fn a_weak_level_is_not_made_stronger_by_its_neighbour() {
    against_all(Mode::new(Isolation::ReadCommitted, false), |w, other| {
        let (mut a, mut b) = (w.begin(), w.begin_as(other));
        let one = a.read("1").unwrap();
        b.put("1", 11).unwrap();
        b.commit().unwrap();
        a.put("1", one + 2).unwrap();
        a.commit().unwrap();
        assert_eq!(w.committed("1"), Some(12), "{other}");
    });
}

#[test]
fn writes_outside_of_transactions_count_as_commits() {
    for locking in [false, true] {
        let world = World::new(Mode::new(Isolation::Snapshot, locking), Storage::Memory);
        let mut a = world.begin();
        world.db.put("1", "11").unwrap();
        assert_eq!(a.put("1", 12).and_then(|()| a.commit()), Err(Refused));
    }
    let world = World::new(SERIALIZABLE, Storage::Flushed);
    for write in [
        |w: &World| w.db.put("1", "11"),
        |w: &World| w.db.delete("1"),
        |w: &World| w.db.delete_range("0".."15"),
        |w: &World| w.db.delete_prefix("1"),
        |w: &World| w.db.put_ttl("1", "11", Duration::from_secs(60)),
    ] {
        world.db.put("1", "10").unwrap();
        let mut a = world.begin();
        a.read("1").unwrap();
        write(&world).unwrap();
        a.put("2", 21).unwrap();
        assert_eq!(a.commit(), Err(Refused));
    }
}

/// A read-only transaction is never refused: it reads one moment, which has a place in the order.
#[test]
fn a_serializable_reader_that_writes_nothing_is_not_refused() {
    for storage in Storage::ALL {
        let world = World::new(SERIALIZABLE, storage);
        let mut a = world.begin();
        a.read("1").unwrap();
        world.db.put("1", "11").unwrap();
        world.db.put("15", "15").unwrap();
        assert_eq!(a.select(|_| true).unwrap(), [("1".to_owned(), 10), ("2".to_owned(), 20)]);
        a.commit().unwrap();
    }
}

/// Read uncommitted sees the writes of every other level that runs, those of locking transactions included, but not what
/// is prepared or over.
#[test]
fn the_weakest_level_sees_all_running_transactions() {
    against_all(Mode::new(Isolation::ReadUncommitted, false), |w, other| {
        let (mut a, mut b) = (w.begin(), w.begin_as(other));
        b.put("1", 101).unwrap();
        b.put("3", 103).unwrap();
        assert_eq!((a.get("1"), a.get("3")), (Ok(Some(101)), Ok(Some(103))), "{other}");
        assert_eq!(a.select(|v| v > 100).unwrap().len(), 2);
        a.put("1", 5).unwrap();
        assert_eq!(a.read("1"), Ok(5), "its own word is the last");
        b.rollback();
        assert_eq!((a.get("1"), a.get("3")), (Ok(Some(5)), Ok(None)));
        a.rollback();
    });
}

#[test]
fn every_level_sees_its_own_writes() {
    for mode in Mode::all() {
        for storage in Storage::ALL {
            let world = World::new(mode, storage);
            let mut a = world.begin();
            a.put("1", 11).unwrap();
            a.put("15", 15).unwrap();
            a.delete("2").unwrap();
            assert_eq!((a.get("1"), a.get("15"), a.get("2")), (Ok(Some(11)), Ok(Some(15)), Ok(None)), "{mode}");
            let all = [("1".to_owned(), 11), ("15".to_owned(), 15)];
            assert_eq!(a.select(|_| true).unwrap(), all, "{mode}, {storage:?}");
            assert_eq!(a.read_for_update("15"), Ok(15));
            assert_eq!(a.read_for_share("1"), Ok(11));
            a.step(|t, f| t.delete_range(f, "0".."15")).unwrap();
            assert_eq!((a.get("1"), a.select(|_| true).unwrap().len()), (Ok(None), 1));
            assert_eq!((world.committed("1"), world.committed("15")), (Some(10), None));
            a.commit().unwrap();
            assert_eq!((world.committed("1"), world.committed("15"), world.committed("2")), (None, Some(15), None));
        }
    }
}

/// What a transaction wrote back to is no conflict with itself, and what was taken back by a savepoint is not checked.
#[test]
fn own_writes_are_no_conflict() {
    let world = World::new(Mode::new(Isolation::Snapshot, false), Storage::Memory);
    let mut a = world.begin();
    a.inner.set_savepoint("before").unwrap();
    a.put("1", 11).unwrap();
    a.inner.rollback_to_savepoint("before").unwrap();
    a.put("2", 21).unwrap();
    world.db.put("1", "100").unwrap();
    a.commit().unwrap();
    assert_eq!((world.committed("1"), world.committed("2")), (Some(100), Some(21)));
    // What was read stays checked, even if the write that it led to is taken back.
    let mut a = world.begin_as(SERIALIZABLE);
    a.inner.set_savepoint("before").unwrap();
    a.read("1").unwrap();
    a.inner.rollback_to_savepoint("before").unwrap();
    a.put("2", 22).unwrap();
    world.db.put("1", "200").unwrap();
    assert_eq!(a.commit(), Err(Refused));
}

/// A prepared transaction has promised to commit: nothing that it relies on may change until it does.
#[test]
fn what_a_prepared_transaction_relies_on_is_locked() {
    for mode in Mode::all() {
        for storage in [Storage::Memory, Storage::Flushed] {
            let world = World::new(mode, storage);
            world.db.put("3", "30").unwrap();
            let mut a = world.begin();
            a.read("1").unwrap();
            assert_eq!(a.select(|v| v == 20).unwrap().len(), 1);
            a.put("3", 31).unwrap();
            a.step(|t, _| t.prepare(b"in doubt")).unwrap();
            let serializable = mode.level == Isolation::Serializable;
            for other in Mode::all() {
                let mut b = world.begin_as(other);
                assert_eq!(b.put("3", 32).and_then(|()| b.commit()), Err(Locked), "{mode}, {other}");
                for key in ["1", "15"] {
                    let mut b = world.begin_as(other);
                    let written = b.put(key, 777).and_then(|()| if serializable { b.commit() } else { Ok(()) });
                    assert_eq!(written, if serializable { Err(Locked) } else { Ok(()) }, "{mode}, {other}, {key}");
                }
                // Its writes are not there yet, not even for a transaction at read uncommitted.
                let mut b = world.begin_as(other);
                match (other.level, other.locking) {
                    (Isolation::Serializable, true) => assert_eq!(b.get("3"), Err(Locked)),
                    _ => assert_eq!(b.get("3"), Ok(Some(30)), "{other}"),
                }
            }
            a.step(|t, _| t.commit()).unwrap();
            assert_eq!(world.committed("3"), Some(31));
            world.check_after();
        }
    }
}

/// Preparing checks what committing would.
#[test]
fn a_prepare_is_refused_as_a_commit_is() {
    let world = World::new(SERIALIZABLE, Storage::Memory);
    let mut a = world.begin();
    a.read("1").unwrap();
    a.put("2", 21).unwrap();
    world.db.put("1", "11").unwrap();
    let e = a.inner.prepare(b"x").unwrap_err();
    assert_eq!(refusal(&e), Refused);
    assert!(world.db.recover_prepared().is_empty());
    assert_eq!(a.inner.commit().unwrap_err().kind(), ErrorKind::Finished);
    drop(a);
    world.check_after();
}

/// Reading at a given snapshot, a transaction is checked from there.
#[test]
fn a_transaction_at_an_earlier_snapshot() {
    let world = World::new(SERIALIZABLE, Storage::Compacted);
    let snapshot = world.db.snapshot();
    world.db.put("1", "11").unwrap();
    world.between();
    for level in [Isolation::RepeatableRead, Isolation::Snapshot, Isolation::Serializable] {
        let options = || TransactionOptions::new(level).snapshot(snapshot.clone());
        let family = world.db.default_family();
        let mut txn = world.db.begin_with(options()).unwrap();
        assert_eq!(txn.snapshot_sequence(), snapshot.sequence());
        assert_eq!(txn.get(family, b"1").unwrap().as_deref(), Some(&b"10"[..]));
        txn.commit().unwrap();
        let mut txn = world.db.begin_with(options()).unwrap();
        txn.put(family, b"1", b"11").unwrap();
        assert_eq!(txn.commit().is_ok(), level == Isolation::RepeatableRead, "{level}");
    }
}
