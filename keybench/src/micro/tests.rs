//! Runs against engines that are right, and against engines that lie in ways that real ones have.

use super::run::run;
use super::txn::TxnSpec;
use super::{AfterLoad, Outcome, Spec, Workload};
use crate::data::Pattern;
use crate::engine::txn::{Isolation, Transactions, TxnMode};
use crate::engine::{self, Bounds, Cursor, Engine, EngineOptions, Session};
use crate::error::{Error, Result};
use kingtide_base::hash::hash64;
use std::path::PathBuf;

pub fn spec(workload: Workload, pattern: Pattern) -> Spec {
    Spec {
        engine: "memory".into(),
        dir: PathBuf::from("no-such-directory"),
        workload,
        pattern,
        entries: 3_000,
        operations: 3_000,
        key_size: 16,
        value_size: 100,
        value_entropy: 0.5,
        threads: 3,
        batch: 1,
        load_batch: 100,
        range_size: 20,
        txn: TxnSpec {
            how: Transactions { isolation: Isolation::Snapshot, mode: TxnMode::Optimistic },
            size: 10,
            hot_keys: None,
            plain_reads: false,
        },
        fresh_iterator: false,
        after_load: AfterLoad::Nothing,
        existing: false,
        final_check: true,
        seed: 11,
        options: EngineOptions::default(),
    }
}

/// Those without transactions, which have tests of their own.
const WORKLOADS: [Workload; 8] = [
    Workload::Write,
    Workload::Read,
    Workload::Mixed,
    Workload::Delete,
    Workload::Seek,
    Workload::Range,
    Workload::Iterate,
    Workload::Mget,
];

const PATTERNS: [Pattern; 6] =
    [Pattern::Seq, Pattern::Random, Pattern::Zipfian, Pattern::Uniform, Pattern::Timestamp, Pattern::Reverse];

fn honest(spec: &Spec) -> Outcome {
    run(spec, &|dir| engine::open("memory", dir, &spec.options)).unwrap()
}

#[test]
fn a_right_engine_is_found_right_everywhere() {
    for workload in WORKLOADS {
        for pattern in PATTERNS {
            for batch in [1, 64] {
                let s = Spec { batch, ..spec(workload, pattern) };
                let o = honest(&s);
                let what = format!("{workload:?} {pattern:?} batch {batch}");
                assert_eq!(o.wrong(), 0, "{what}: {:?}", o.examples);
                // After deleting everything there is nothing left to check.
                let emptied = workload == Workload::Delete && pattern != Pattern::Zipfian;
                assert!(o.verified() > 0 || emptied, "{what}: nothing was checked");
                let measured = o.phases.last().unwrap();
                assert_eq!(measured.ops, 3_000, "{what}");
                assert_eq!(o.phases[0].operation == "LOAD", workload.loads_first(), "{what}");
            }
        }
    }
}

#[test]
fn one_thread_few_entries_and_odd_sizes_work() {
    for workload in WORKLOADS {
        let s = Spec {
            entries: 1,
            operations: 1,
            threads: 4,
            value_size: 0,
            key_size: 8,
            ..spec(workload, Pattern::Random)
        };
        assert_eq!(honest(&s).wrong(), 0, "{workload:?}");
        let s = Spec { threads: 1, fresh_iterator: true, operations: 100, ..spec(workload, Pattern::Random) };
        assert_eq!(honest(&s).wrong(), 0, "{workload:?}");
    }
    let s = Spec { after_load: AfterLoad::Compact, ..spec(Workload::Read, Pattern::Zipfian) };
    assert_eq!(honest(&s).wrong(), 0);
}

#[test]
fn live_bytes_follow_writes_and_deletes() {
    let o = honest(&spec(Workload::Write, Pattern::Random));
    assert_eq!((o.user_bytes, o.live_bytes), (3_000 * 116, 3_000 * 116));
    let o = honest(&spec(Workload::Write, Pattern::Uniform));
    assert!(o.live_bytes < o.user_bytes && o.live_bytes > 3_000 * 116 / 2, "{}", o.live_bytes);
    let o = honest(&Spec { operations: 1_000, ..spec(Workload::Delete, Pattern::Random) });
    assert_eq!(o.live_bytes, 2_000 * 116);
}

#[test]
fn a_reopened_store_that_lost_everything_is_caught() {
    // The memory engine forgets at every open, as an engine that does not recover would.
    let s = Spec { after_load: AfterLoad::Reopen, ..spec(Workload::Read, Pattern::Random) };
    let o = honest(&s);
    assert_eq!((o.verified(), o.wrong()), (3_000, 3_000));
    assert!(o.examples[0].contains("is lost"), "{:?}", o.examples);
    let s = Spec { after_load: AfterLoad::Reopen, ..spec(Workload::Write, Pattern::Seq) };
    assert_eq!(honest(&s).wrong(), 3_000);
}

/// How an engine lies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    /// One key in 500 is acknowledged and not stored.
    LoseKeys,
    /// One value in 500 has a byte changed at its end.
    DamageValues,
    /// One value in 500 is another key's.
    SwapValues,
    /// A seek stops one entry too early: the answer of a reused cursor that keeps its block.
    SeekShort,
    /// Deletes are acknowledged and one in 500 is forgotten.
    ForgetDeletes,
    /// Every write fails after the first thousand.
    Fail,
}

struct Liar(Box<dyn Engine>, Lie);
struct LiarSession(Box<dyn Session>, Lie, u64);
struct LiarCursor(Box<dyn Cursor>, Lie);

fn chosen(key: &[u8]) -> bool {
    hash64(key).is_multiple_of(500)
}

impl Engine for Liar {
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
        Ok(Box::new(LiarSession(self.0.session()?, self.1, 0)))
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

impl Session for LiarSession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.2 += 1;
        match self.1 {
            Lie::Fail if self.2 > 1_000 => Err(Error::failed("disk on fire")),
            Lie::LoseKeys if chosen(key) => Ok(()),
            Lie::DamageValues if chosen(key) => {
                let mut v = value.to_vec();
                if let Some(last) = v.last_mut() {
                    *last ^= 1;
                }
                self.0.put(key, &v)
            }
            Lie::SwapValues if chosen(key) => {
                let mut v = value.to_vec();
                v[..8].fill(7);
                self.0.put(key, &v)
            }
            _ => self.0.put(key, value),
        }
    }
    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        entries.iter().try_for_each(|(k, v)| self.put(k, v))
    }
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.0.get(key, found)
    }
    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.0.multi_get(keys, each)
    }
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        if self.1 == Lie::ForgetDeletes && chosen(key) { Ok(()) } else { self.0.delete(key) }
    }
    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        keys.iter().try_for_each(|k| self.delete(k))
    }
    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(LiarCursor(self.0.cursor(bounds)?, self.1)))
    }
}

impl Cursor for LiarCursor {
    fn first(&mut self) -> Result<bool> {
        self.0.first()
    }
    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        if self.1 == Lie::SeekShort && chosen(key) {
            return self.0.first();
        }
        self.0.seek(key)
    }
    fn next(&mut self) -> Result<bool> {
        self.0.next()
    }
    fn key(&mut self) -> Result<&[u8]> {
        self.0.key()
    }
    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        self.0.entry()
    }
}

fn lying(spec: &Spec, lie: Lie) -> Result<Outcome> {
    run(spec, &|dir| Ok(Box::new(Liar(engine::open("memory", dir, &spec.options)?, lie)) as Box<dyn Engine>))
}

#[test]
fn every_lie_is_caught_by_every_workload_it_touches() {
    use Workload::*;
    for (lie, workloads) in [
        (Lie::LoseKeys, &WORKLOADS[..]),
        (Lie::DamageValues, &[Write, Read, Mixed, Range, Iterate, Mget]),
        (Lie::SwapValues, &[Write, Read, Mixed, Range, Iterate, Mget]),
        (Lie::SeekShort, &[Seek, Range]),
        (Lie::ForgetDeletes, &[Delete]),
    ] {
        for &workload in workloads {
            if (lie, workload) == (Lie::LoseKeys, Delete) {
                continue; // what was never stored is rightly gone
            }
            let o = lying(&spec(workload, Pattern::Random), lie).unwrap();
            assert!(
                o.wrong() > 0 && (o.wrong() < o.verified() || workload == Delete),
                "{lie:?} {workload:?}: {} of {}",
                o.wrong(),
                o.verified()
            );
            assert!(!o.examples.is_empty() && o.examples.len() <= 15, "{lie:?} {workload:?}");
        }
    }
}

#[test]
fn a_lost_key_shows_once_in_the_closing_scan() {
    let s = spec(Workload::Write, Pattern::Seq);
    let keys = crate::data::Keys::new(s.pattern, s.entries, s.key_size, s.seed).unwrap();
    let lost = (0..s.entries).filter(|i| chosen(&keys.key(keys.id(*i)))).count() as u64;
    let o = lying(&s, Lie::LoseKeys).unwrap();
    assert!(lost > 0);
    assert_eq!((o.verified(), o.wrong()), (s.entries, lost));
}

#[test]
fn a_failed_write_ends_the_run() {
    let e = lying(&spec(Workload::Write, Pattern::Random), Lie::Fail).err();
    // A thousand puts a thread fit; the batch counter is per session, so three threads of 1,000 never fail.
    assert!(e.is_none());
    let e = lying(&Spec { threads: 2, ..spec(Workload::Write, Pattern::Random) }, Lie::Fail).unwrap_err();
    assert_eq!(e, Error::failed("disk on fire"));
}

#[test]
fn the_null_engine_is_not_judged() {
    for workload in WORKLOADS {
        let s = Spec { engine: "null".into(), ..spec(workload, Pattern::Random) };
        let o = run(&s, &|dir| engine::open("null", dir, &s.options)).unwrap();
        assert_eq!((o.verified(), o.wrong()), (0, 0), "{workload:?}");
        assert_eq!(o.phases.last().unwrap().ops, 3_000);
    }
}
