//! Runs the conformance table in `conformance`, whose README says what each line means, through the public API.

mod table;
mod world;

use kingtide_testkit::Scratch;
use std::path::Path;
use table::Case;
use world::World;

/// Runs all cases of a file, twice: as they stand, and with a flush before each step.
fn run(file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../conformance").join(format!("{file}.jsonl"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let cases = table::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut problems = Vec::new();
    for flushed in [false, true] {
        for case in &cases {
            problems.extend(run_case(file, case, flushed));
        }
    }
    let steps: usize = cases.iter().map(|c| c.steps.len()).sum();
    println!("{file}: {} cases, {steps} steps, each in memtables and in tables", cases.len());
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// The first step of a case that is answered otherwise.
fn run_case(file: &str, case: &Case, flushed: bool) -> Option<String> {
    let scratch = Scratch::new("conformance");
    let mut world = World::new(&scratch.0);
    for step in &case.steps {
        if flushed {
            world.flush();
        }
        let answer = world.answer(&step.operation);
        if answer != step.answer {
            let (name, how) = (&case.name, if flushed { ", flushed" } else { "" });
            let [asked, wanted, got] = [&step.operation, &step.answer, &answer].map(|a| table::show(a));
            return Some(format!("{file}.jsonl:{} ({name}{how}): {asked} => {wanted}, but it is {got}", step.line));
        }
    }
    None
}

macro_rules! files {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })*

        #[test]
        fn every_file_of_the_table_is_run() {
            let mut known = vec![$(concat!(stringify!($name), ".jsonl")),*];
            known.sort_unstable();
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../conformance");
            let names = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
            let mut found: Vec<String> = names.filter(|n| n.ends_with(".jsonl")).collect();
            found.sort();
            assert_eq!(found, known);
        }
    };
}
files!(batches data expiry families options ranges snapshots transactions values);
