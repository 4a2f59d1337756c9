//! That the check accepts what may be and finds what may not.

use super::journal::{self, Mutation, Op, Print, stamps};
use super::listing;
use super::model::{Contents, Fault, Verdict, check, touched};
use super::plant::{Faulty, Plant};
use super::record::Recorder;
use crate::engine::faulty;
use crate::engine::txn::{Isolation, Step, Transactions, TxnMode};
use crate::engine::{self, Engine, EngineOptions, Session};
use crate::process::fresh_dir;
use kingtide_base::rng::Rng;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// `ops` between two stamps; none for the second is in flight.
fn mutation(begun: u64, ended: Option<u64>, ops: &[(&str, Option<u64>)]) -> Mutation {
    let op = |(key, value): &(&str, Option<u64>)| match value {
        Some(v) => Op::Put(key.as_bytes().to_vec(), print(*v)),
        None => Op::Delete(key.as_bytes().to_vec()),
    };
    let ops = ops.iter().map(op).collect();
    Mutation { begun, ended: ended.unwrap_or(1000), acknowledged: ended.is_some(), ops }
}

fn print(value: u64) -> Print {
    Print { len: 8, hash: value }
}

fn contents(entries: &[(&str, u64)]) -> Contents {
    entries.iter().map(|(k, v)| (k.as_bytes().to_vec(), print(*v))).collect()
}

fn faults(before: &[(&str, u64)], mutations: &[Mutation], found: &[(&str, u64)]) -> Vec<Fault> {
    let verdict = check(&contents(before), mutations, &contents(found));
    verdict.findings.iter().map(|f| f.fault).collect()
}

#[test]
fn one_key_holds_what_may_have_come_last() {
    let put = |begun, ended, v| mutation(begun, ended, &[("k", Some(v))]);
    let delete = |begun, ended| mutation(begun, ended, &[("k", None)]);
    // One after the other: the last counts.
    let serial = [put(1, Some(2), 1), put(3, Some(4), 2)];
    assert_eq!(faults(&[], &serial, &[("k", 2)]), []);
    assert_eq!(faults(&[], &serial, &[("k", 1)]), [Fault::Lost]);
    assert_eq!(faults(&[("k", 9)], &serial, &[("k", 9)]), [Fault::Lost]);
    assert_eq!(faults(&[("k", 9)], &serial, &[]), [Fault::Lost]);
    assert_eq!(faults(&[], &serial, &[("k", 3)]), [Fault::Wrong]);
    // At once: either.
    let racing = [put(1, Some(4), 1), put(2, Some(3), 2)];
    assert_eq!(faults(&[], &racing, &[("k", 1)]), []);
    assert_eq!(faults(&[], &racing, &[("k", 2)]), []);
    assert_eq!(faults(&[], &racing, &[]), [Fault::Lost]);
    // In flight: it may show and need not.
    let flying = [put(1, Some(2), 1), put(3, None, 2)];
    assert_eq!(faults(&[], &flying, &[("k", 1)]), []);
    assert_eq!(faults(&[], &flying, &[("k", 2)]), []);
    let deleted = [put(1, Some(2), 1), delete(3, Some(4)), delete(5, None)];
    assert_eq!(faults(&[], &deleted, &[]), []);
    assert_eq!(faults(&[], &deleted, &[("k", 1)]), [Fault::Lost], "a deleted key is back");
    // In flight when an earlier run was killed: not after what a later run did.
    let killed = Mutation { ended: 50, ..put(3, None, 2) };
    assert_eq!(faults(&[], std::slice::from_ref(&killed), &[("k", 2)]), []);
    assert_eq!(faults(&[], &[killed, put(60, Some(61), 4)], &[("k", 2)]), [Fault::Lost]);
}

#[test]
fn keys_that_were_not_written_stay_as_they_were() {
    assert_eq!(faults(&[("a", 1)], &[], &[("a", 1)]), []);
    assert_eq!(faults(&[("a", 1)], &[], &[]), [Fault::Lost]);
    assert_eq!(faults(&[("a", 1)], &[], &[("a", 2)]), [Fault::Wrong]);
    assert_eq!(faults(&[], &[], &[("a", 1)]), [Fault::Wrong]);
}

#[test]
fn batches_are_there_as_a_whole_or_not_at_all() {
    let batch = |begun, ended, v| mutation(begun, ended, &[("a", Some(v)), ("b", Some(v))]);
    let flying = [batch(1, None, 1)];
    assert_eq!(faults(&[("b", 9)], &flying, &[("a", 1), ("b", 1)]), []);
    assert_eq!(faults(&[("b", 9)], &flying, &[("b", 9)]), []);
    assert_eq!(faults(&[("b", 9)], &flying, &[("a", 1), ("b", 9)]), [Fault::Torn]);
    assert_eq!(faults(&[("b", 9)], &flying, &[("b", 1)]), [Fault::Torn]);
    // Its other half may have been overwritten, but not by what had ended before.
    let overwritten = [batch(1, None, 1), mutation(2, Some(3), &[("b", Some(2))])];
    assert_eq!(faults(&[], &overwritten, &[("a", 1), ("b", 2)]), []);
    let earlier = [mutation(1, Some(2), &[("b", Some(2))]), batch(3, None, 1)];
    assert_eq!(faults(&[], &earlier, &[("a", 1), ("b", 2)]), [Fault::Torn]);
    assert_eq!(faults(&[], &earlier, &[("b", 2)]), []);
    // Two batches at once: one of them is the later, on both keys.
    let racing = [batch(1, Some(3), 1), batch(2, Some(4), 2)];
    assert_eq!(faults(&[], &racing, &[("a", 2), ("b", 2)]), []);
    assert_eq!(faults(&[], &racing, &[("a", 1), ("b", 1)]), []);
    assert_eq!(faults(&[], &racing, &[("a", 1), ("b", 2)]), [Fault::Torn]);
    // Over three: the batch came before a put that ended before another began that came before the batch.
    let round = [
        mutation(1, Some(10), &[("a", Some(1)), ("c", Some(1))]),
        mutation(2, Some(3), &[("a", Some(2))]),
        mutation(4, Some(5), &[("c", Some(3))]),
    ];
    assert_eq!(faults(&[], &round, &[("a", 1), ("c", 3)]), []);
    assert_eq!(faults(&[], &round, &[("a", 2), ("c", 1)]), [Fault::Torn]);
    // Within a batch the last operation on a key counts, and a range deletes what there was.
    let twice = [mutation(1, Some(2), &[("a", Some(1)), ("a", None), ("a", Some(2))])];
    assert_eq!(faults(&[], &twice, &[("a", 2)]), []);
    assert_eq!(faults(&[], &twice, &[("a", 1)]), [Fault::Wrong]);
    let mut range = mutation(5, Some(6), &[("d", Some(3))]);
    range.ops.insert(0, Op::DeleteRange(b"a".to_vec(), b"d".to_vec()));
    assert_eq!(faults(&[("a", 1), ("c", 1), ("d", 1)], &[range.clone()], &[("d", 3)]), []);
    assert_eq!(faults(&[("a", 1), ("d", 1)], &[range.clone()], &[("a", 1), ("d", 3)]), [Fault::Lost]);
    range.acknowledged = false;
    assert_eq!(faults(&[("a", 1), ("d", 1)], &[range], &[("a", 1), ("d", 3)]), [Fault::Torn]);
}

/// Random histories, done one by one at moments between their stamps: whatever they leave is accepted, and what they do
/// not leave is found unless a mutation in flight explains it.
#[test]
fn any_order_that_can_be_is_accepted() {
    let (mut torn, mut changed) = (0, 0);
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        let keys = ["a", "b", "c", "d"];
        let before: Contents = contents(&[("a", 900), ("c", 901)]);
        let mut found = before.clone();
        let mut moments: Vec<(u64, Mutation)> = Vec::new();
        for n in 0..3 + rng.below(9) {
            let at = 100 * n + 50;
            let (begun, ended) = (at.saturating_sub(rng.below(250)) * 20 + n, (at + 1 + rng.below(250)) * 20 + n);
            let ops: Vec<(&str, Option<u64>)> = (0..1 + rng.below(3))
                .map(|i| (keys[rng.below(4) as usize], (!rng.one_in(4)).then_some(n * 10 + i)))
                .collect();
            let flying = rng.one_in(4);
            let mut m = mutation(begun, Some(ended), &ops);
            if flying {
                (m.acknowledged, m.ended) = (false, 1 << 30);
            }
            if flying && rng.one_in(2) {
                moments.push((u64::MAX, m));
            } else {
                moments.push((at, m));
            }
        }
        for (_, m) in moments.iter().filter(|(at, _)| *at < u64::MAX) {
            for op in &m.ops {
                match op {
                    Op::Put(k, p) => drop(found.insert(k.clone(), *p)),
                    Op::Delete(k) => drop(found.remove(k)),
                    Op::DeleteRange(..) => {}
                }
            }
        }
        let mutations: Vec<Mutation> = moments.into_iter().map(|(_, m)| m).collect();
        let verdict = check(&before, &mutations, &found);
        assert_eq!(verdict.findings, [], "seed {seed}: {mutations:?} left {found:?}");
        // One key as it was before all, though something was acknowledged on it.
        let touched = |k: &[u8]| {
            mutations.iter().any(|m| m.acknowledged && m.ops.iter().any(|op| matches!(op, Op::Put(x, _) if x == k)))
        };
        if touched(b"a") && found.get(&b"a"[..]) != Some(&print(900)) {
            changed += 1;
            found.insert(b"a".to_vec(), print(900));
            assert!(!check(&before, &mutations, &found).findings.is_empty(), "seed {seed}");
        }
        torn += usize::from(mutations.iter().any(|m| m.ops.len() > 1 && !m.acknowledged));
    }
    println!("3000 histories, {torn} with batches in flight, {changed} changed and found out");
    assert!(torn > 300 && changed > 1000);
}

/// A recorded engine in memory, for what happens in one process.
struct Bench {
    dir: PathBuf,
}

impl Bench {
    fn new(name: &str) -> Bench {
        let dir = std::env::temp_dir().join(format!("keybench-kill-{name}-{}", std::process::id()));
        fresh_dir(&dir).unwrap();
        Bench { dir }
    }

    fn memory(&self) -> Box<dyn Engine> {
        engine::registry::open("memory", &self.dir, &EngineOptions::default()).unwrap()
    }

    /// What the check says of what `engine` holds.
    fn judge(&self, engine: &dyn Engine) -> Verdict {
        let path = self.dir.join("listing");
        let (keys, wrong) = listing::write(engine, &path, &[]).unwrap();
        assert_eq!(wrong, [""; 0]);
        check(&Contents::new(), &journal::read(&self.dir).unwrap(), &listing::read(&path, keys).unwrap())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = crate::process::remove_dir(&self.dir);
    }
}

/// Puts, batches and deletes of few keys, so that most are overwritten many times and by others.
fn churn(session: &mut dyn Session, seed: u64) {
    let mut rng = Rng::new(seed);
    for n in 0..2000u64 {
        let mut key = || rng.below(300).to_be_bytes();
        let value = (seed << 32 | n).to_be_bytes();
        match n % 5 {
            0 => session.delete(&key()).unwrap(),
            1 => {
                let keys = [key(), key(), key()];
                let entries: Vec<(&[u8], &[u8])> = keys.iter().map(|k| (&k[..], &value[..])).collect();
                session.put_batch(&entries).unwrap();
            }
            _ => session.put(&key(), &value).unwrap(),
        }
    }
}

fn churn_from_four_threads(engine: &dyn Engine) {
    std::thread::scope(|s| {
        for seed in 1..=4 {
            s.spawn(move || churn(&mut *engine.session().unwrap(), seed));
        }
    });
}

#[test]
fn what_four_threads_did_is_accepted() {
    let bench = Bench::new("right");
    let engine = Recorder::new(bench.memory(), bench.dir.clone(), 1);
    churn_from_four_threads(&engine);
    let verdict = bench.judge(&engine);
    assert_eq!(verdict.findings, []);
    assert_eq!((verdict.acknowledged, verdict.operations, verdict.in_flight), (8000, 11_200, 0));
}

/// Deletes that are forgotten, and cursors that leave the same keys out: a scan shows what may be, and only a get finds
/// what was deleted.
#[test]
fn a_deleted_key_that_only_a_get_brings_back_is_found() {
    let bench = Bench::new("back");
    let inner = faulty::Faulty::engine(bench.memory(), faulty::Fault::ForgetsDeletes);
    let hiding = faulty::Faulty::engine(inner, faulty::Fault::DropsRows);
    let engine = Recorder::new(hiding, bench.dir.clone(), 1);
    let mut session = engine.session().unwrap();
    let all: Vec<[u8; 8]> = (0..4000u64).map(u64::to_be_bytes).collect();
    let (some, rest): (Vec<[u8; 8]>, Vec<[u8; 8]>) =
        all.iter().copied().partition(|k| faulty::struck(&k[..]) || k[7] % 2 == 0);
    all.iter().for_each(|key| session.put(key, b"value").unwrap());
    some.iter().for_each(|key| session.delete(key).unwrap());
    drop(session);
    let back = some.iter().filter(|k| faulty::struck(&k[..])).count();
    let mutations = journal::read(&bench.dir).unwrap();
    let (keys, wrong) = listing::write(&engine, &bench.dir.join("listing"), &[]).unwrap();
    let found = listing::read(&bench.dir.join("listing"), keys).unwrap();
    assert_eq!((keys as usize, wrong.len()), (rest.len(), 0), "the scan by itself is right");
    assert_eq!(check(&Contents::new(), &mutations, &found).findings, []);

    let path = bench.dir.join("asked");
    listing::ask(&path, &touched(&Contents::new(), &mutations)).unwrap();
    let asked = listing::asked(&path).unwrap();
    assert_eq!(asked.len(), all.len());
    let (keys, wrong) = listing::write(&engine, &bench.dir.join("listing"), &asked).unwrap();
    assert_eq!((keys as usize, wrong.len()), (rest.len(), back.min(5)), "{wrong:?}");
    assert!(back > 0 && wrong.iter().all(|w| w.contains("which a scan does not show")), "{wrong:?}");
}

#[test]
fn mutations_touch_the_keys_they_name_and_those_in_their_ranges() {
    let known = contents(&[("a", 1), ("b", 1), ("c", 1), ("d", 1)]);
    let mut range = mutation(1, Some(2), &[("x", Some(3)), ("y", None)]);
    range.ops.push(Op::DeleteRange(b"b".to_vec(), b"d".to_vec()));
    range.ops.push(Op::DeleteRange(b"d".to_vec(), b"b".to_vec()));
    let keys: Vec<Vec<u8>> = touched(&known, &[range]).into_iter().collect();
    assert_eq!(keys, [b"b", b"c", b"x", b"y"].map(|k| k.to_vec()));
}

#[test]
fn planted_faults_are_found() {
    for (plant, fault) in [(Plant::Loss, Fault::Lost), (Plant::Wrong, Fault::Wrong)] {
        let bench = Bench::new(if plant == Plant::Loss { "loss" } else { "wrong" });
        let faulty = Box::new(Faulty::new(bench.memory(), plant, Arc::new(AtomicBool::new(true))));
        let engine = Recorder::new(faulty, bench.dir.clone(), 1);
        churn_from_four_threads(&engine);
        // A fault in one of these stays; those before may all have been overwritten.
        let mut last = engine.session().unwrap();
        (1000..1100u64).for_each(|key| last.put(&key.to_be_bytes(), b"once").unwrap());
        let findings = bench.judge(&engine).findings;
        assert!(findings.iter().any(|f| f.fault == fault), "{plant:?}: {findings:?}");
        println!("{plant:?}: {} findings, such as {:?}", findings.len(), findings[0]);
    }
}

/// However few mutations a session does before a kill, those of all together are counted.
#[test]
fn few_mutations_of_each_session_are_enough_for_a_fault() {
    for (plant, fault) in [(Plant::Loss, Fault::Lost), (Plant::Wrong, Fault::Wrong)] {
        let bench = Bench::new(if plant == Plant::Loss { "few-loss" } else { "few-wrong" });
        let armed = Arc::new(AtomicBool::new(false));
        let faulty = Box::new(Faulty::new(bench.memory(), plant, Arc::clone(&armed)));
        let engine = Recorder::new(faulty, bench.dir.clone(), 1);
        let mut loader = engine.session().unwrap();
        (0..100u64).for_each(|n| loader.put(&n.to_be_bytes(), b"loaded").unwrap());
        armed.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut sessions: Vec<_> = (0..11).map(|_| engine.session().unwrap()).collect();
        let mut struck = Vec::new();
        for n in 0..110u64 {
            let session = &mut sessions[n as usize % 11];
            session.put(&(1000 + n).to_be_bytes(), b"written").unwrap();
            struck.push(bench.judge(&engine).findings.len());
        }
        let expected: Vec<usize> = (0..110).map(|n| 1 + usize::from(n >= 100)).collect();
        assert_eq!(struck, expected, "{plant:?}: the first, and one in a hundred after it");
        assert!(bench.judge(&engine).findings.iter().all(|f| f.fault == fault));
    }
}

#[test]
fn transactions_are_recorded_when_they_commit() {
    let bench = Bench::new("txn");
    let engine = Recorder::new(bench.memory(), bench.dir.clone(), 1);
    let how = Transactions { isolation: Isolation::Snapshot, mode: TxnMode::Optimistic };
    let (mut one, mut two) = (engine.session().unwrap(), engine.session().unwrap());
    one.begin(how).unwrap();
    two.begin(how).unwrap();
    assert_eq!(one.txn_put(b"a", b"1").unwrap(), Step::Done(()));
    assert_eq!(one.txn_delete(b"b").unwrap(), Step::Done(()));
    assert_eq!(two.txn_put(b"a", b"2").unwrap(), Step::Done(()));
    assert_eq!(one.commit().unwrap(), Step::Done(()));
    assert_eq!(two.commit().unwrap(), Step::Conflict);
    two.rollback().unwrap();
    one.begin(how).unwrap();
    assert_eq!(one.txn_put(b"c", b"3").unwrap(), Step::Done(()));
    one.rollback().unwrap();
    let recorded = journal::read(&bench.dir).unwrap();
    let ops = vec![Op::Put(b"a".to_vec(), Print::of(b"1")), Op::Delete(b"b".to_vec())];
    let first = stamps(1).0;
    assert_eq!(recorded, [Mutation { begun: first, ended: first + 1, acknowledged: true, ops }]);
    assert_eq!(bench.judge(&engine).findings, []);
}
