//! Phases on engines that are right, and on engines that lie.

use super::super::outcome::{Outcome, Phase};
use super::super::spec::{Spec, Workload};
use super::super::tests::spec;
use super::{PRESETS, Preset, parse, run};
use crate::data::Pattern;
use crate::engine::faulty::{Fault, Faulty};
use crate::engine::{self, EngineOptions};
use crate::error::Result;
use crate::process::{fresh_dir, remove_dir};
use std::cell::RefCell;
use std::path::PathBuf;

fn dir(test: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("keybench-phases-{test}-{}", std::process::id()));
    fresh_dir(&dir).unwrap();
    dir
}

fn phases(test: &str, list: &str) -> Spec {
    Spec { phases: parse(list).unwrap(), dir: dir(test), ..spec(Workload::Write, Pattern::Random) }
}

fn on(engine: &str, spec: &Spec) -> Result<Outcome> {
    let spec = Spec { engine: engine.into(), ..spec.clone() };
    run(&spec, &|dir, sync| engine::registry::open(engine, dir, &EngineOptions { sync, ..spec.options.clone() }))
}

fn faulty(spec: &Spec, fault: Fault) -> Outcome {
    run(spec, &|dir, _| Ok(Faulty::engine(engine::registry::open("memory", dir, &spec.options)?, fault))).unwrap()
}

fn phase<'a>(outcome: &'a Outcome, name: &str) -> &'a Phase {
    outcome.phases.iter().find(|p| p.name == name).unwrap()
}

/// All of them, so that each meets what another left.
const ALL: &str = "fillseq,readseq,overwrite,fillunique,fillbatch,readrandom,fillsync,overwrite,fill100K,readrandom,\
    fillrandom,readrandom,readmissing,readhot,multireadrandom,seekrandom,overwrite,readwhilewriting,readseq,\
    seekrandomwhilewriting,updaterandom,readrandomwriterandom,readrandom,deleterandom,seekrandom,flush,compact,\
    readrandom,deleteseq,seekrandom,readrandom,overwrite,readseq";

#[test]
fn right_engines_are_found_right_in_every_phase() {
    let all = ALL.replace("fillunique", "filluniquerandom");
    for engine in ["memory", "kingtide", "lmdb"] {
        for (pattern, batch) in [(Pattern::Random, 1), (Pattern::Zipfian, 7)] {
            let s = Spec { pattern, batch, ..phases(&format!("right-{engine}"), &all) };
            let o = on(engine, &s).unwrap();
            assert_eq!(o.wrong(), 0, "{engine} {pattern:?}: {:?}", o.examples);
            for p in &o.phases {
                let checked = !matches!(p.operation.as_str(), "PUT" | "DELETE" | "COMPACT" | "FLUSH");
                assert!(!checked || p.verified > 0 || p.ops == 0 || p.found.is_some(), "{engine}: {} {p:?}", p.title());
            }
            let found = |name: &str| phase(&o, name).found.unwrap();
            assert_eq!((found("readmissing"), phase(&o, "fillsync").ops, phase(&o, "fill100K").ops), (0, 3, 3));
            assert_eq!((phase(&o, "fillbatch").batch, phase(&o, "multireadrandom").batch), (1000, batch));
            if pattern == Pattern::Random {
                // Of N draws from N, all but one in e meet an entry.
                let share = found("multireadrandom") as f64 / 3_000.0;
                assert!((0.58..0.68).contains(&share), "{share}");
                assert_eq!(found("readrandom"), 3_000, "behind fillbatch all are there");
            }
            assert!(o.user_bytes > 0 && o.live_bytes > 0 && o.final_check.0 > 0);
            remove_dir(&s.dir).unwrap();
        }
    }
    let new = parse("deletemost,deleteranges,readcovered,rangerandom,fillfamilies,readfamilies").unwrap();
    let tested = [parse(&all).unwrap(), new].concat();
    let missed: Vec<_> = PRESETS.iter().filter(|p| !tested.contains(&p.0)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn a_writer_beside_the_readers_is_counted_apart() {
    let s = Spec { threads: 2, ..phases("beside", "fillrandom,readwhilewriting,readrandom") };
    let o = on("memory", &s).unwrap();
    let both: Vec<&Phase> = o.phases.iter().filter(|p| p.name == "readwhilewriting").collect();
    assert_eq!((both.len(), both[0].operation.as_str(), both[1].operation.as_str()), (2, "GET", "PUT"));
    assert_eq!(both[0].ops, 3_000, "the readers' operations alone");
    assert!(both[1].ops > 0 && both[1].latency.count == both[1].ops && both[1].found.is_none());
    assert_eq!(o.wrong(), 0, "what the writer put is known afterwards: {:?}", o.examples);
    remove_dir(&s.dir).unwrap();
}

#[test]
fn engines_that_lie_are_caught() {
    let s = phases("lies", "fillseq,readrandom,multireadrandom,seekrandom,readseq,deleterandom,readrandom");
    for (fault, names) in [
        (Fault::LosesKeys, &["readrandom", "multireadrandom", "seekrandom", "readseq"][..]),
        (Fault::SwapsValues, &["readrandom", "multireadrandom", "readseq"]),
        (Fault::DamagesValues, &["readseq"]),
        (Fault::SeeksShort, &["seekrandom"]),
    ] {
        let o = faulty(&s, fault);
        for name in names {
            assert!(phase(&o, name).wrong > 0, "{fault:?} {name}");
        }
    }
    let o = faulty(&s, Fault::ForgetsDeletes);
    let (before, after) = (&o.phases[1], o.phases.last().unwrap());
    assert!(before.wrong == 0 && after.wrong > 0 && o.final_check.1 > 0);
    assert!(o.examples.iter().any(|e| e.contains("should not exist")), "{:?}", o.examples);
    remove_dir(&s.dir).unwrap();
}

#[test]
fn stores_are_opened_as_their_phases_need_them() {
    let s = phases("opened", "fillseq,readseq,fillsync,readrandom,overwrite,readrandom,fillrandom");
    let s = Spec { engine: "lmdb".into(), ..s };
    let opened = RefCell::new(Vec::new());
    let o = run(&s, &|dir, sync| {
        let empty = std::fs::read_dir(dir).unwrap().next().is_none();
        opened.borrow_mut().push((sync, empty));
        engine::registry::open("lmdb", dir, &EngineOptions { sync, ..s.options.clone() })
    })
    .unwrap();
    assert_eq!(o.wrong(), 0, "{:?}", o.examples);
    // First; for fillseq; for fillsync; again for overwrite, which is not synced; for fillrandom.
    assert_eq!(opened.into_inner(), [(false, true), (false, true), (true, true), (false, false), (false, true)]);
    remove_dir(&s.dir).unwrap();
}

#[test]
fn existing_stores_are_looked_at() {
    let s = phases("existing", "fillrandom,deleterandom");
    assert_eq!(on("lmdb", &s).unwrap().wrong(), 0);
    let again = Spec { existing: true, phases: parse("readrandom,seekrandom,readseq").unwrap(), ..s.clone() };
    let o = on("lmdb", &again).unwrap();
    assert_eq!(o.wrong(), 0, "{:?}", o.examples);
    let found = phase(&o, "readrandom").found.unwrap();
    assert!(found > 300 && found < 1_500, "{found} of 3,000: what was deleted is known to be gone");
    let other = Spec { value_size: 50, ..again.clone() };
    let e = on("lmdb", &other).unwrap_err();
    assert!(e.exit_code() == 2 && e.to_string().contains("a value of 100 bytes"), "{e}");
    let fewer = Spec { entries: 10, operations: 10, ..again };
    assert!(on("lmdb", &fewer).unwrap_err().to_string().contains("which none of the phases writes"));
    remove_dir(&s.dir).unwrap();
}

#[test]
fn the_null_engine_is_not_judged() {
    let s = phases("null", &ALL.replace("fillunique", "filluniquerandom"));
    let o = on("null", &s).unwrap();
    assert_eq!((o.verified(), o.wrong()), (0, 0));
    remove_dir(&s.dir).unwrap();
}

#[test]
fn names_are_those_of_db_bench() {
    assert_eq!(parse(" fillseq, fill100K,").unwrap(), [Preset::FillSeq, Preset::Fill100K]);
    for (list, wanted) in
        [("fillsec", "did you mean 'fillseq'"), ("readreverse", "only move forwards"), ("fill100k", "'fill100K'")]
    {
        let e = parse(list).unwrap_err();
        assert!(e.exit_code() == 2 && e.to_string().contains(wanted), "{e}");
    }
    assert!(PRESETS.iter().all(|(p, name, _)| parse(name).unwrap() == [*p]));
}

/// Phases of the suite `total-cost`: what they delete and what is left is known, and each that writes is settled.
#[test]
fn costs_are_taken_after_each_phase_that_writes() {
    let list = "filluniquerandom,overwrite,overwrite,rangerandom,deleteranges,readcovered,readrandom,deletemost,rangerandom,\
                readseq";
    for engine in ["memory", "kingtide", "lmdb"] {
        let s = Spec { settle: true, batch: 7, engine: engine.into(), ..phases(&format!("cost-{engine}"), list) };
        let o = on(engine, &s).unwrap();
        assert_eq!(o.wrong(), 0, "{engine}: {:?}", o.examples);
        let names: Vec<&str> = o.phases.iter().map(|p| p.name.as_str()).collect();
        assert!(names[1..3] == ["overwrite", "overwrite-2"] && names[8] == "rangerandom-2", "{names:?}");
        assert_eq!((phase(&o, "readcovered").found, phase(&o, "deletemost").ops), (Some(0), 2_700));
        assert!(o.live_bytes > 0 && o.live_bytes < 300 * 116, "a tenth of what the ranges left");
        for p in &o.phases {
            let writes = ["PUT", "DELETE", "RANGE_DELETE"].contains(&p.operation.as_str());
            assert_eq!(p.costs.is_some(), writes && engine != "memory", "{engine}: {}", p.name);
            if let Some(costs) = p.costs {
                assert!(costs.settled.seconds >= costs.foreground.seconds && costs.settled.disk_bytes > 0);
            }
        }
        remove_dir(&s.dir).unwrap();
    }
}

/// What the harness itself costs is measured so.
#[test]
fn an_engine_without_files_needs_no_directory() {
    let s = Spec { dir: PathBuf::new(), ..phases("nowhere", "filluniquerandom,readrandom") };
    for engine in ["null", "memory"] {
        assert_eq!(on(engine, &s).unwrap().wrong(), 0);
    }
    assert!(!std::path::Path::new(".keybench").exists(), "a file in the working directory");
}

#[test]
fn ranges_and_what_they_cover_agree() {
    for n in [1, 2, 3, 199, 200, 3_000, 12_345] {
        let gone: Vec<u64> = (0..super::ranges(n)).flat_map(|r| super::deleted(r, n).0).collect();
        assert!(gone.is_sorted() && *gone.last().unwrap() < n && gone.len() as u64 * 3 >= n, "{n}");
        assert!((0..n).all(|i| gone.binary_search(&super::covered(i, n)).is_ok()), "{n}");
    }
}

#[test]
fn entries_in_families_are_found_there_alone() {
    let s = phases("families", "fillfamilies,readfamilies,compact,readfamilies,fillseq,readseq");
    let o = on("kingtide", &s).unwrap();
    assert_eq!((o.wrong(), phase(&o, "readfamilies").found), (0, Some(3_000)), "{:?}", o.examples);
    remove_dir(&s.dir).unwrap();
    let s = phases("families", "fillfamilies,readfamilies");
    let o = on("kingtide", &s).unwrap();
    assert!(o.wrong() == 0 && o.final_check.0 == 3_000, "{:?}", o.examples);
    remove_dir(&s.dir).unwrap();
    for list in ["fillfamilies,readrandom", "fillseq,readfamilies", "fillfamilies,fillseq,readfamilies"] {
        assert!(super::check_families(&parse(list).unwrap()).is_err(), "{list}");
    }
}
