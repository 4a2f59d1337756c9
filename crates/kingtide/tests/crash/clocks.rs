//! Clocks that go back: the monotonic one must not, but a virtual machine that is moved, or a clock of the caller's own, may
//! do so all the same, and nothing may panic, hang, or be promised and not kept.

use kingtide::vfs::{Fault, FaultFs, MemFs, Op, Rule, Survival};
use kingtide::{Clock, Db, Durability, Options, WriteBatch, WriteOptions};
use kingtide_base::rng::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

/// Shows the time that the test sets.
struct SetClock {
    monotonic_ns: AtomicU64,
    unix_ms: AtomicU64,
    /// Nanoseconds by which each reading of the monotonic clock is behind the one before.
    falls: AtomicU64,
}

impl SetClock {
    fn new() -> Arc<SetClock> {
        let (monotonic_ns, unix_ms) = (AtomicU64::new(1000 * SECOND), AtomicU64::new(1_700_000_000_000));
        Arc::new(SetClock { monotonic_ns, unix_ms, falls: AtomicU64::new(0) })
    }
}

impl Clock for SetClock {
    fn monotonic_ns(&self) -> u64 {
        self.monotonic_ns.fetch_sub(self.falls.load(Ordering::SeqCst), Ordering::SeqCst)
    }

    fn unix_ms(&self) -> u64 {
        self.unix_ms.load(Ordering::SeqCst)
    }

    fn sleep(&self, d: Duration) {
        self.monotonic_ns.fetch_add(d.as_nanos() as u64, Ordering::SeqCst);
    }
}

fn open(fs: &MemFs, clock: &Arc<SetClock>) -> Db {
    let mut options = Options::new().fs(Arc::new(fs.clone())).clock(clock.clone()).manual_jobs(true);
    options.db.durability = Durability::Interval(Duration::from_secs(1));
    options.family.memtable_size = 64 << 10;
    options.family.l0_trigger = 1;
    Db::open("db", options).unwrap()
}

#[test]
fn an_interval_sync_does_not_wait_for_a_clock_that_went_back() {
    let (fs, clock) = (MemFs::new(), SetClock::new());
    let db = open(&fs, &clock);
    db.put(b"first", b"value").unwrap();
    while db.run_one_job().unwrap() {}
    clock.monotonic_ns.fetch_sub(900 * SECOND, Ordering::SeqCst);
    db.put(b"second", b"value").unwrap();
    while db.run_one_job().unwrap() {}
    clock.monotonic_ns.fetch_add(2 * SECOND, Ordering::SeqCst);
    while db.run_one_job().unwrap() {}
    let cut = open(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1)), &clock);
    assert!(cut.get(b"second").unwrap().is_some(), "not synced for want of an hour that is over already");
}

/// The same for a commit that asks for an interval of its own.
#[test]
fn a_sync_that_a_commit_asked_for_does_not_wait_for_a_clock_that_went_back() {
    for back in [0, 900 * SECOND] {
        let (fs, clock) = (MemFs::new(), SetClock::new());
        let options = Options::new().fs(Arc::new(fs.clone())).clock(clock.clone()).manual_jobs(true);
        let db = Db::open("db", options).unwrap();
        let mut batch = WriteBatch::new();
        batch.put(db.default_family(), b"key", b"value").unwrap();
        let soon = WriteOptions::new().durability(Durability::Interval(Duration::from_secs(1)));
        db.write_with(batch, &soon).unwrap();
        let survives = || {
            while db.run_one_job().unwrap() {}
            let cut = open(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1)), &clock);
            cut.get(b"key").unwrap().is_some()
        };
        assert!(!survives(), "it is not due yet");
        match back {
            0 => clock.monotonic_ns.fetch_add(SECOND, Ordering::SeqCst),
            back => clock.monotonic_ns.fetch_sub(back, Ordering::SeqCst),
        };
        assert!(survives(), "{back}");
    }
}

/// A commit that asks for an interval does not get the longer one of an earlier commit because the clock went back between the two.
#[test]
fn a_clock_that_went_back_does_not_give_a_commit_the_time_of_another() {
    let (fs, clock) = (MemFs::new(), SetClock::new());
    let db = Db::open("db", Options::new().fs(Arc::new(fs.clone())).clock(clock.clone()).manual_jobs(true)).unwrap();
    let put = |key: &[u8], seconds| {
        let mut batch = WriteBatch::new();
        batch.put(db.default_family(), key, b"value").unwrap();
        let within = Durability::Interval(Duration::from_secs(seconds));
        db.write_with(batch, &WriteOptions::new().durability(within)).unwrap();
    };
    put(b"patient", 1000);
    clock.monotonic_ns.fetch_sub(SECOND, Ordering::SeqCst);
    put(b"hurried", 1);
    clock.monotonic_ns.fetch_add(2 * SECOND, Ordering::SeqCst);
    while db.run_one_job().unwrap() {}
    let cut = open(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1)), &clock);
    assert!(cut.get(b"hurried").unwrap().is_some(), "not synced for want of the other's time");
}

/// The log is synced when it is due, even if no segment can be made for the writes to come.
#[test]
fn an_interval_sync_does_not_wait_for_a_segment_that_cannot_be_made() {
    let (mem, clock) = (MemFs::new(), SetClock::new());
    let faulty = Arc::new(FaultFs::new(Arc::new(mem.clone()), 1));
    let mut options = Options::new().fs(faulty.clone()).clock(clock.clone()).manual_jobs(true);
    options.db.durability = Durability::Interval(Duration::from_secs(1));
    let db = Db::open("db", options).unwrap();
    faulty.add(Rule::new(Op::Open, Fault::Enospc).path(".wal").nth(2).sticky());
    db.put(b"key", b"value").unwrap();
    clock.monotonic_ns.fetch_add(2 * SECOND, Ordering::SeqCst);
    let failed = (0..10).filter(|_| db.run_one_job().is_err()).count();
    assert!(failed > 0, "a segment was made");
    let cut = open(&mem.crash_clone(Survival::AllLost, &mut Rng::new(1)), &clock);
    assert!(cut.get(b"key").unwrap().is_some(), "not synced for want of a segment");
}

#[test]
fn nothing_panics_or_hangs_while_the_monotonic_clock_falls() {
    let (fs, clock) = (MemFs::new(), SetClock::new());
    clock.falls.store(1000, Ordering::SeqCst);
    for round in 0..3u64 {
        let db = open(&fs, &clock);
        for i in 0..200u64 {
            db.put(i.to_be_bytes(), vec![round as u8; 900]).unwrap();
            if i % 50 == 0 {
                db.run_one_job().unwrap();
            }
        }
        db.flush().unwrap();
        db.compact().unwrap();
        assert_eq!(db.get(7u64.to_be_bytes()).unwrap().as_deref(), Some(&[round as u8; 900][..]));
        db.close().unwrap();
    }
}

/// An entry that expired may be gone for good when the wall clock goes back, or be there again; what it had replaced never
/// is.
#[test]
fn a_wall_clock_that_goes_back_brings_no_older_value_back() {
    for compacts in [false, true] {
        let (fs, clock) = (MemFs::new(), SetClock::new());
        let db = open(&fs, &clock);
        db.put(b"key", b"old").unwrap();
        db.flush().unwrap();
        db.put_ttl(b"key", b"new", Duration::from_secs(10)).unwrap();
        db.flush().unwrap();
        clock.unix_ms.fetch_add(60_000, Ordering::SeqCst);
        assert_eq!(db.get(b"key").unwrap().as_deref(), None);
        if compacts {
            db.compact().unwrap();
        }
        clock.unix_ms.fetch_sub(59_000, Ordering::SeqCst);
        let found = db.get(b"key").unwrap();
        assert!(found.as_deref().is_none_or(|v| v == b"new"), "{found:?}");
        assert!(compacts || found.is_some(), "it has nine seconds again");
        db.close().unwrap();
    }
}
