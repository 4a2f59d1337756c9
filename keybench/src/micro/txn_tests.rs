//! Transactions on engines that are right, that refuse commits, and that lie about what they committed.

use super::outcome::{Outcome, TxnCounts};
use super::run::run;
use super::spec::{Spec, TxnSpec, Workload};
use super::tests::spec;
use crate::data::Pattern;
use crate::engine::txn::{Isolation, Step, Transactions, TxnMode};
use crate::engine::{self, Bounds, Cursor, Engine, Session};
use crate::error::{Error, Result};

const WORKLOADS: [Workload; 3] = [Workload::TxnWrite, Workload::TxnRmw, Workload::TxnMixed];

fn txn_spec(workload: Workload, isolation: Isolation, mode: TxnMode) -> Spec {
    let base = spec(workload, Pattern::Random);
    Spec { txn: TxnSpec { how: Transactions { isolation, mode }, ..base.txn }, ..base }
}

fn counts(o: &Outcome) -> TxnCounts {
    o.phases.last().unwrap().txn.unwrap()
}

#[test]
fn a_right_engine_is_found_right_at_every_level() {
    for workload in WORKLOADS {
        for isolation in Isolation::ALL {
            for mode in [TxnMode::Optimistic, TxnMode::Locking] {
                for (size, hot_keys) in [(1, None), (7, Some(5)), (100, Some(1_000))] {
                    let s = txn_spec(workload, isolation, mode);
                    let s = Spec { txn: TxnSpec { size, hot_keys, ..s.txn }, ..s };
                    let o = run(&s, &|dir| engine::registry::open("memory", dir, &s.options)).unwrap();
                    let what = format!("{workload:?} {isolation} {mode:?} {size} {hot_keys:?}");
                    assert_eq!((o.wrong(), o.lost_updates), (0, 0), "{what}: {:?}", o.examples);
                    let txn = counts(&o);
                    // Each of three threads does a third of 3,000 operations, its last transaction with what is left.
                    assert_eq!(txn.commits, 3 * 1_000_u64.div_ceil(size as u64), "{what}");
                    let last = o.phases.last().unwrap();
                    assert_eq!((last.ops, last.latency.count), (3_000, txn.commits), "{what}");
                    assert_eq!(txn.writes == 3_000, workload != Workload::TxnMixed, "{what}");
                    assert!(o.verified() > 0, "{what}: nothing was checked");
                    if mode == TxnMode::Locking {
                        assert_eq!(txn.aborts, 0, "{what}: it waits instead");
                    }
                }
            }
        }
    }
}

#[test]
fn patterns_sizes_and_few_entries_work() {
    for workload in WORKLOADS {
        for pattern in [Pattern::Seq, Pattern::Zipfian, Pattern::Uniform, Pattern::Timestamp, Pattern::Reverse] {
            let s = Spec { pattern, ..txn_spec(workload, Isolation::Snapshot, TxnMode::Optimistic) };
            for s in [
                Spec { entries: 1, operations: 1, threads: 4, value_size: 8, ..s.clone() },
                Spec { entries: 10, operations: 500, ..s.clone() },
                s,
            ] {
                let o = run(&s, &|dir| engine::registry::open("memory", dir, &s.options)).unwrap();
                assert_eq!(o.wrong(), 0, "{workload:?} {pattern:?}: {:?}", o.examples);
            }
        }
    }
}

/// What a store does wrong, or does rightly and rarely.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Quirk {
    /// Refuses every third commit, as it may.
    Refuse,
    /// Refuses every third put or read for update, as it may.
    RefuseEarly,
    /// Acknowledges every 50th commit and rolls it back.
    LoseUpdates,
    /// Refuses every 50th commit, and keeps what it wrote.
    KeepRefused,
    /// Answers reads without the transaction's own writes.
    MissOwnWrites,
    /// Has no transactions in locking mode.
    NoLocks,
}

struct Odd(Box<dyn Engine>, Quirk);
struct OddSession {
    inner: Box<dyn Session>,
    quirk: Quirk,
    calls: u64,
    written: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Engine for Odd {
    fn version(&self) -> String {
        self.0.version()
    }
    fn durability(&self) -> String {
        self.0.durability()
    }
    fn effective_options(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(OddSession { inner: self.0.session()?, quirk: self.1, calls: 0, written: Vec::new() }))
    }
    fn flush(&self) -> Result<()> {
        self.0.flush()
    }
    fn compact(&self) -> Result<()> {
        self.0.compact()
    }
    fn stats(&self) -> Vec<(String, f64)> {
        self.0.stats()
    }
    fn close(self: Box<Self>) -> Result<()> {
        self.0.close()
    }
}

impl OddSession {
    fn every(&mut self, n: u64) -> bool {
        self.calls += 1;
        self.calls.is_multiple_of(n)
    }
}

impl Session for OddSession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.inner.put(key, value)
    }
    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        self.inner.put_batch(entries)
    }
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.inner.get(key, found)
    }
    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.inner.multi_get(keys, each)
    }
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.inner.delete(key)
    }
    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        self.inner.delete_batch(keys)
    }
    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        self.inner.cursor(bounds)
    }
    fn begin(&mut self, how: Transactions) -> Result<()> {
        if self.quirk == Quirk::NoLocks && how.mode == TxnMode::Locking {
            return engine::txn::unsupported("odd", "locks");
        }
        self.written.clear();
        self.inner.begin(how)
    }
    fn txn_put(&mut self, key: &[u8], value: &[u8]) -> Result<Step<()>> {
        if self.quirk == Quirk::RefuseEarly && self.every(3) {
            return Ok(Step::Conflict);
        }
        self.written.push((key.to_vec(), value.to_vec()));
        self.inner.txn_put(key, value)
    }
    fn txn_get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        if self.quirk == Quirk::MissOwnWrites {
            return self.inner.get(key, found).map(Step::Done);
        }
        self.inner.txn_get(key, found)
    }
    fn txn_get_for_update(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        if self.quirk == Quirk::RefuseEarly && self.every(3) {
            return Ok(Step::Conflict);
        }
        self.inner.txn_get_for_update(key, found)
    }
    fn commit(&mut self) -> Result<Step<()>> {
        let quirk = self.quirk;
        match quirk {
            Quirk::Refuse if self.every(3) => Ok(Step::Conflict),
            Quirk::LoseUpdates if self.every(50) => self.inner.rollback().map(Step::Done),
            Quirk::KeepRefused if self.every(50) => {
                self.written.iter().try_for_each(|(k, v)| self.inner.put(k, v))?;
                Ok(Step::Conflict)
            }
            _ => self.inner.commit(),
        }
    }
    fn rollback(&mut self) -> Result<()> {
        self.inner.rollback()
    }
}

fn odd(spec: &Spec, quirk: Quirk) -> Result<Outcome> {
    run(spec, &|dir| Ok(Box::new(Odd(engine::registry::open("memory", dir, &spec.options)?, quirk)) as Box<dyn Engine>))
}

/// One thread, so that no conflict is the memory engine's own.
fn alone(workload: Workload, isolation: Isolation, size: usize) -> Spec {
    let s = txn_spec(workload, isolation, TxnMode::Optimistic);
    Spec { threads: 1, txn: TxnSpec { size, ..s.txn }, ..s }
}

#[test]
fn refused_transactions_are_done_again_and_counted() {
    for workload in WORKLOADS {
        let o = odd(&alone(workload, Isolation::Snapshot, 10), Quirk::Refuse).unwrap();
        assert_eq!(o.wrong(), 0, "{workload:?}: {:?}", o.examples);
        let txn = counts(&o);
        // Of 300 commits every third call is refused: two go through for each that does not.
        assert_eq!((txn.commits, txn.aborts), (300, 149), "{workload:?}");
        assert!((txn.abort_rate() - 149.0 / 449.0).abs() < 1e-12);
    }
    // Reads for update are taken below snapshot; they and puts may be refused as well as commits.
    let o = odd(&alone(Workload::TxnRmw, Isolation::ReadCommitted, 1), Quirk::RefuseEarly).unwrap();
    assert_eq!((o.wrong(), o.lost_updates), (0, 0), "{:?}", o.examples);
    let txn = counts(&o);
    assert!(txn.commits == 3_000 && txn.aborts > 500, "{txn:?}");
}

#[test]
fn lost_updates_make_a_run_invalid() {
    let s = alone(Workload::TxnRmw, Isolation::Snapshot, 10);
    let o = odd(&s, Quirk::LoseUpdates).unwrap();
    assert_eq!(o.lost_updates, 60, "every 50th of 300 transactions of 10");
    assert!(o.wrong() > 0 && o.examples.iter().any(|e| e.contains("lost 1 of")), "{:?}", o.examples);
    // What the level and the reads allow is reported and not held against the engine.
    let s = alone(Workload::TxnRmw, Isolation::RepeatableRead, 10);
    let s = Spec { txn: TxnSpec { plain_reads: true, ..s.txn }, ..s };
    let o = odd(&s, Quirk::LoseUpdates).unwrap();
    assert_eq!((o.lost_updates, o.wrong()), (60, 0), "{:?}", o.examples);
    let o = odd(&alone(Workload::TxnWrite, Isolation::Snapshot, 10), Quirk::LoseUpdates).unwrap();
    assert_eq!(o.wrong(), 60, "lost keys show in the closing scan");
}

#[test]
fn traces_of_refused_transactions_are_caught() {
    let s = alone(Workload::TxnRmw, Isolation::Snapshot, 1);
    let o = odd(&Spec { entries: 100, ..s }, Quirk::KeepRefused).unwrap();
    assert!(o.wrong() > 0 && o.lost_updates == 0);
    assert!(o.examples.iter().any(|e| e.contains("were committed")), "{:?}", o.examples);
}

#[test]
fn a_transaction_must_find_its_own_writes() {
    for workload in [Workload::TxnRmw, Workload::TxnMixed] {
        let s = alone(workload, Isolation::Snapshot, 10);
        let o = odd(&Spec { txn: TxnSpec { hot_keys: Some(5), ..s.txn }, ..s }, Quirk::MissOwnWrites).unwrap();
        assert!(o.wrong() > 0 && o.examples[0].contains("the transaction left"), "{workload:?}: {:?}", o.examples);
    }
}

#[test]
fn what_an_engine_has_not_is_told_apart_from_a_failure() {
    let e = odd(&txn_spec(Workload::TxnWrite, Isolation::Snapshot, TxnMode::Locking), Quirk::NoLocks).unwrap_err();
    assert_eq!(e, Error::Unsupported("odd has no locks".into()));
}

#[test]
fn the_null_engine_is_not_judged() {
    for workload in WORKLOADS {
        let s = Spec { engine: "null".into(), ..txn_spec(workload, Isolation::Snapshot, TxnMode::Optimistic) };
        let o = run(&s, &|dir| engine::registry::open("null", dir, &s.options)).unwrap();
        assert_eq!((o.verified(), o.wrong(), o.lost_updates), (0, 0, 0), "{workload:?}");
        assert_eq!(counts(&o).commits, 300);
    }
}
