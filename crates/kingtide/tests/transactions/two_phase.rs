//! Two-phase commit as an application sees it: two databases and a coordinator that dies at any point.

use kingtide::vfs::{Fs, MemFs, Survival};
use kingtide::{Db, ErrorKind, HeldLock, Isolation, LockMode, Options, TransactionOptions};
use kingtide_base::rng::Rng;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

fn options(fs: &MemFs) -> Options {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    let mut options = Options::new().fs(fs).manual_jobs(true);
    options.set("wal_segment_size", "65536").unwrap();
    options
}

fn open(fs: &MemFs) -> Db {
    Db::open("/db", options(fs)).unwrap()
}

fn balance(db: &Db) -> i64 {
    db.get(b"balance").unwrap().map_or(0, |v| i64::from_le_bytes(v.to_vec().try_into().unwrap()))
}

/// Adds to the balance in a transaction and prepares it.
fn prepare(db: &Db, xid: &[u8], add: i64, isolation: Isolation) {
    let mut txn = db.begin(isolation).unwrap();
    let now = txn.get(db.default_family(), b"balance").unwrap();
    let now = now.map_or(0, |v| i64::from_le_bytes(v.to_vec().try_into().unwrap()));
    txn.put(db.default_family(), b"balance", &(now + add).to_le_bytes()).unwrap();
    txn.prepare(xid).unwrap_or_else(|e| panic!("{isolation}: {e:?}"));
}

/// What the coordinator wrote down, by round.
type Decisions = Vec<bool>;

struct Bank {
    disk: MemFs,
    db: Db,
}

impl Bank {
    /// Loses power and starts again. The ends of earlier transactions were not durable, so some may be in doubt again: the
    /// coordinator says of them what it said before.
    fn cut(&mut self, decisions: &Decisions, rng: &mut Rng) {
        self.disk = self.disk.crash_clone(Survival::ALL[rng.below(4) as usize], rng);
        self.db = open(&self.disk);
        for p in self.db.recover_prepared() {
            let round = u64::from_be_bytes(p.xid[..].try_into().unwrap()) as usize;
            assert_eq!(p.operations, 1);
            if let Some(commit) = decisions.get(round) {
                finish(&self.db, &p.xid, *commit);
            }
        }
    }
}

/// Money moves between two databases. The machine of either loses power at any step; after it the coordinator decides as
/// its own log says. No money is made or lost, ever.
#[test]
fn money_between_two_databases_survives_every_power_cut() {
    let rounds = if kingtide_testkit::full() { 2000 } else { 200 };
    let mut rng = Rng::new(2);
    let mut banks = [MemFs::new(), MemFs::new()].map(|disk| Bank { db: open(&disk), disk });
    let mut decisions = Decisions::new();
    for round in 0..rounds as u64 {
        let xid = round.to_be_bytes();
        let amount = rng.below(100) as i64 - 50;
        let isolation = Isolation::ALL[rng.below(5) as usize];
        let (cut_at, whose, commit) = (rng.below(6), rng.below(2) as usize, rng.one_in(2));
        for step in 0..5 {
            match step {
                0 => prepare(&banks[0].db, &xid, -amount, isolation),
                1 => prepare(&banks[1].db, &xid, amount, isolation),
                2 => decisions.push(commit),
                i => finish_if_in_doubt(&banks[i - 3].db, &xid, commit),
            }
            if step as u64 == cut_at {
                banks[whose].cut(&decisions, &mut rng);
            }
        }
        let [a, b] = [0, 1].map(|i| balance(&banks[i].db));
        assert_eq!(a + b, 0, "round {round}, cut {cut_at} of {whose}, commit {commit}");
        assert!(banks.iter().all(|bank| bank.db.recover_prepared().is_empty()));
        if rng.one_in(20) {
            banks[whose].db.flush().unwrap();
        }
    }
}

fn finish_if_in_doubt(db: &Db, xid: &[u8], commit: bool) {
    if db.recover_prepared().iter().any(|p| p.xid == xid) {
        finish(db, xid, commit);
    }
}

fn finish(db: &Db, xid: &[u8], commit: bool) {
    if commit {
        db.commit_prepared(xid).map(drop).unwrap();
    } else {
        db.rollback_prepared(xid).unwrap();
    }
}

/// While a transaction is in doubt, no other may change what it wrote, nor what it read if it is serializable; and so it is
/// after the next open.
#[test]
fn what_is_in_doubt_stays_locked_over_a_restart() {
    let fs = MemFs::new();
    let db = open(&fs);
    let family = db.default_family();
    let mut txn = db.begin(Isolation::Serializable).unwrap();
    assert!(txn.get(family, b"read").unwrap().is_none());
    txn.put(family, b"written", b"1").unwrap();
    txn.prepare(b"xid").unwrap();
    assert_eq!(txn.put(family, b"more", b"1").unwrap_err().kind(), ErrorKind::Finished);
    drop(txn);
    let check = |db: &Db| {
        for key in [&b"read"[..], b"written"] {
            let mut other = db.begin(Isolation::ReadCommitted).unwrap();
            other.put(db.default_family(), key, b"2").unwrap();
            assert_eq!(other.commit().unwrap_err().kind(), ErrorKind::Conflict);
            let options = TransactionOptions::default().locking(true).lock_timeout(Duration::ZERO);
            let mut locking = db.begin_with(options).unwrap();
            let refused = locking.put(db.default_family(), key, b"2").unwrap_err();
            assert!(matches!(refused.kind(), ErrorKind::LockTimeout | ErrorKind::Conflict));
        }
        assert!(db.get(b"written").unwrap().is_none());
        db.put(b"unrelated", b"2").unwrap();
    };
    check(&db);
    drop(db);
    let db = open(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1)));
    check(&db);
    assert_eq!(db.begin(Isolation::Snapshot).unwrap().prepare(b"xid").unwrap_err().kind(), ErrorKind::Exists);
    db.commit_prepared(b"xid").unwrap();
    assert_eq!(db.get(b"written").unwrap().as_deref(), Some(&b"1"[..]));
    db.put(b"read", b"3").unwrap();
    db.put(b"written", b"3").unwrap();
    assert_eq!(db.commit_prepared(b"xid").unwrap_err().kind(), ErrorKind::NotFound);
}

/// A handle that prepared can end the transaction itself; one that meets a conflict never gets that far.
#[test]
fn a_transaction_ends_what_it_prepared_and_conflicts_come_before() {
    let fs = MemFs::new();
    let db = open(&fs);
    let family = db.default_family();
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put(family, b"a", b"1").unwrap();
    txn.prepare(b"one").unwrap();
    txn.commit().unwrap();
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    let mut late = db.begin(Isolation::Snapshot).unwrap();
    late.put(family, b"a", b"2").unwrap();
    db.put(b"a", b"3").unwrap();
    assert_eq!(late.prepare(b"two").unwrap_err().kind(), ErrorKind::Conflict);
    assert!(db.recover_prepared().is_empty());
    db.put(b"a", b"4").unwrap(); // no lock was left behind
    let mut back = db.begin(Isolation::Serializable).unwrap();
    back.delete(family, b"a").unwrap();
    back.prepare(b"three").unwrap();
    back.rollback().unwrap();
    db.put(b"a", b"5").unwrap();
    assert!(db.recover_prepared().is_empty());
    let db = open(&fs.kill_clone());
    assert!(db.recover_prepared().is_empty());
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"5"[..]));
}

/// The locks of a locking transaction live through a restart on every level: those on what it read for update or for
/// share, and on ranges that it locked, too.
#[test]
fn what_a_locking_transaction_locked_stays_locked_over_a_restart() {
    for isolation in Isolation::ALL {
        let fs = MemFs::new();
        let db = open(&fs);
        let family = db.default_family();
        let mut txn = db.begin_with(TransactionOptions::new(isolation).locking(true)).unwrap();
        txn.get_for_share(family, b"shared").unwrap();
        txn.get_for_update(family, b"update").unwrap();
        let (lower, upper) = (Bound::Included(&b"x"[..]), Bound::Excluded(&b"y"[..]));
        txn.lock_range(family, (lower, upper), LockMode::Shared).unwrap();
        txn.put(family, b"written", b"1").unwrap();
        txn.prepare(b"xid").unwrap();
        drop(txn);
        let before = db.locks();
        drop(db);
        let db = open(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1)));
        let held = |locks: &[HeldLock]| locks.iter().map(|l| (l.target.clone(), l.mode)).collect::<Vec<_>>();
        assert_eq!(held(&db.locks()), held(&before), "{isolation}");
        for key in [&b"shared"[..], b"update", b"written", b"xx"] {
            let mut other = db.begin(Isolation::ReadCommitted).unwrap();
            other.put(db.default_family(), key, b"2").unwrap();
            assert_eq!(other.commit().unwrap_err().kind(), ErrorKind::Conflict, "{isolation}");
        }
        db.commit_prepared(b"xid").unwrap();
        assert!(db.locks().is_empty());
    }
}

/// A prepared transaction is in no table: its record pins the log, however much is flushed behind it.
#[test]
fn the_log_keeps_what_is_in_doubt_whatever_is_flushed() {
    let fs = MemFs::new();
    let db = open(&fs);
    prepare(&db, b"pinned", 5, Isolation::Snapshot);
    let mut rng = Rng::new(4);
    for i in 0..400u32 {
        let mut value = [0; 1000];
        rng.fill(&mut value);
        db.put(i.to_be_bytes(), value).unwrap();
        if i % 100 == 99 {
            db.flush().unwrap();
            let again = open(&fs.kill_clone());
            let in_doubt: Vec<_> = again.recover_prepared().into_iter().map(|p| p.xid).collect();
            assert_eq!(in_doubt, [b"pinned"], "after {i} puts");
        }
    }
    let db = open(&fs.kill_clone());
    db.commit_prepared(b"pinned").unwrap();
    assert_eq!(balance(&db), 5);
}

/// What is in doubt is written to the log again where too much is behind it, and then is not, though most of it are locks.
#[test]
fn transactions_in_doubt_with_many_locks_are_not_written_again_for_ever() {
    let fs = MemFs::new();
    let small = |fs: &MemFs| {
        let mut options = options(fs);
        options.set("max_wal_size", "131072").unwrap();
        Db::open("/db", options).unwrap()
    };
    let ends = |db: &Db| {
        for jobs in 0.. {
            assert!(jobs < 100, "the jobs do not end");
            if !db.run_one_job().unwrap() {
                break;
            }
        }
    };
    let db = small(&fs);
    for xid in [b"a", b"b"] {
        let options = TransactionOptions::new(Isolation::ReadCommitted).locking(true);
        let mut txn = db.begin_with(options).unwrap();
        for n in 0..150u32 {
            let mut key = [xid[0]; 1000];
            key[..4].copy_from_slice(&n.to_be_bytes());
            txn.get_for_update(db.default_family(), &key).unwrap();
        }
        txn.put(db.default_family(), xid, b"short").unwrap();
        txn.prepare(xid).unwrap();
        ends(&db);
    }
    let db = small(&fs.kill_clone());
    ends(&db);
    assert_eq!(db.recover_prepared().len(), 2);
    db.commit_prepared(b"a").unwrap();
    db.rollback_prepared(b"b").unwrap();
    ends(&db);
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"short"[..]));
    assert!(db.get(b"b").unwrap().is_none());
}
