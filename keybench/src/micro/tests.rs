//! Runs against engines that are right, and against engines that lie in ways that real ones have.

use super::outcome::Outcome;
use super::run::run;
use super::spec::{AfterLoad, Spec, TxnSpec, Workload};
use crate::data::Pattern;
use crate::engine::faulty::{Fault, Faulty, struck};
use crate::engine::txn::{Isolation, Transactions, TxnMode};
use crate::engine::{self, EngineOptions};
use crate::error::{Error, Result};
use crate::pin::Pin;
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
        families: 3,
        phases: Vec::new(),
        txn: TxnSpec {
            how: Transactions { isolation: Isolation::Snapshot, mode: TxnMode::Optimistic },
            size: 10,
            hot_keys: None,
            plain_reads: false,
        },
        pin: Pin::Each,
        fresh_iterator: false,
        after_load: AfterLoad::Nothing,
        drop_cache: false,
        existing: false,
        settle: false,
        killed: false,
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
    run(spec, &|dir| engine::registry::open("memory", dir, &spec.options)).unwrap()
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

fn faulty(spec: &Spec, fault: Fault) -> Result<Outcome> {
    run(spec, &|dir| Ok(Faulty::engine(engine::registry::open("memory", dir, &spec.options)?, fault)))
}

#[test]
fn every_fault_is_caught_by_every_workload_it_touches() {
    use Workload::*;
    for (fault, workloads) in [
        (Fault::LosesKeys, &WORKLOADS[..]),
        (Fault::DamagesValues, &[Write, Read, Mixed, Range, Iterate, Mget]),
        (Fault::SwapsValues, &[Write, Read, Mixed, Range, Iterate, Mget]),
        (Fault::CutsValues, &[Write, Read, Mixed, Range, Iterate, Mget]),
        (Fault::HalvesBatches, &[Read, Range, Iterate, Mget]), // the load is in batches
        (Fault::MissesGets(7), &[Read, Mixed, Mget]),
        (Fault::SwapsAnswers, &[Mget]),
        (Fault::SkipsAnswers, &[Mget]),
        (Fault::RepeatsAnswers, &[Mget]),
        (Fault::SeeksShort, &[Seek, Range]),
        (Fault::SeeksLong, &[Seek, Range]),
        (Fault::SeekStays, &[Seek, Range]),
        (Fault::DropsRows, &[Write, Seek, Range, Iterate]),
        (Fault::MixesRows, &[Write, Seek, Range, Iterate]),
        (Fault::RepeatsRows, &[Write, Range, Iterate]),
        (Fault::EndsEarly, &[Write, Range, Iterate]),
        (Fault::ForgetsDeletes, &[Delete]),
    ] {
        for &workload in workloads {
            if (fault, workload) == (Fault::LosesKeys, Delete) {
                continue; // what was never stored is rightly gone
            }
            // Answers of batches are wrong only where there are batches.
            let batch = if workload == Mget { 8 } else { 1 };
            let o = faulty(&Spec { batch, ..spec(workload, Pattern::Random) }, fault).unwrap();
            assert!(
                o.wrong() > 0 && (o.wrong() < o.verified() || workload == Delete),
                "{fault:?} {workload:?}: {} of {}",
                o.wrong(),
                o.verified()
            );
            assert!(!o.examples.is_empty() && o.examples.len() <= 15, "{fault:?} {workload:?}");
        }
    }
}

#[test]
fn a_lost_key_shows_once_in_the_closing_scan() {
    let s = spec(Workload::Write, Pattern::Seq);
    let keys = crate::data::Keys::new(s.pattern, s.entries, s.key_size, s.seed).unwrap();
    let lost = (0..s.entries).filter(|i| struck(&keys.key(keys.id(*i)))).count() as u64;
    let o = faulty(&s, Fault::LosesKeys).unwrap();
    assert!(lost > 0);
    assert_eq!((o.verified(), o.wrong()), (s.entries, lost));
}

/// Loops look at the ends of most values only, so as not to measure their own comparing; the closing scan has the time.
#[test]
fn the_closing_scan_compares_every_byte() {
    for workload in [Workload::Write, Workload::Mixed] {
        let s = Spec { value_size: 100, ..spec(workload, Pattern::Seq) };
        let keys = crate::data::Keys::new(s.pattern, s.entries, s.key_size, s.seed).unwrap();
        let damaged = (0..s.entries).filter(|i| struck(&keys.key(keys.id(*i)))).count() as u64;
        let o = faulty(&s, Fault::DamagesMiddles).unwrap();
        assert!(damaged > 0);
        assert_eq!(o.final_check, (s.entries, damaged), "{workload:?}");
    }
}

#[test]
fn a_failed_write_ends_the_run() {
    let s = spec(Workload::Write, Pattern::Random);
    assert_eq!(faulty(&s, Fault::FailsWritesAfter(2_999)).unwrap_err(), Error::failed("disk on fire"));
    assert_eq!(faulty(&s, Fault::FailsWritesAfter(3_000)).unwrap().wrong(), 0, "all were written before");
}

#[test]
fn the_null_engine_is_not_judged() {
    for workload in WORKLOADS {
        let s = Spec { engine: "null".into(), ..spec(workload, Pattern::Random) };
        let o = run(&s, &|dir| engine::registry::open("null", dir, &s.options)).unwrap();
        assert_eq!((o.verified(), o.wrong()), (0, 0), "{workload:?}");
        assert_eq!(o.phases.last().unwrap().ops, 3_000);
    }
}

#[test]
fn threads_let_their_progress_be_seen() {
    use super::picker::Picker;
    use super::run::{Steps, phase_on};
    use super::work::Shared;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let spec = spec(Workload::Write, Pattern::Seq);
    let shared = Shared {
        spec: &spec,
        keys: crate::data::Keys::new(spec.pattern, spec.entries, spec.key_size, spec.seed).unwrap(),
        values: crate::data::Values::new(spec.value_size, spec.value_entropy, spec.seed).unwrap(),
        sorted: Vec::new(),
        clock: crate::clock::Clock::calibrated(),
        stop: AtomicBool::new(false),
    };
    let store = crate::engine::registry::open("memory", std::path::Path::new(""), &spec.options).unwrap();
    let seen = AtomicU64::new(0);
    let steps = Steps { threads: spec.threads, operations: &["PUT"], batch: 1 };
    phase_on(steps, &shared, &*store, &mut Outcome::default(), |w| {
        w.puts(Picker::for_load(&spec, w.thread), spec.entries, 1)?;
        // What it showed when it last asked whether to stop: all of its share.
        seen.fetch_add(w.done.get(), Ordering::Relaxed);
        Ok(())
    })
    .unwrap();
    let shown = seen.into_inner();
    assert!((spec.entries - spec.threads as u64..=spec.entries).contains(&shown), "{shown} of {}", spec.entries);
}
