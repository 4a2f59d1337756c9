//! All targets on the stable toolchain: the committed inputs, mutations of them, and what the readers of hostile files allocate.
//! The program has an allocator of its own.
//!
//! `KINGTIDE_FULL=1` runs two hundred times as many, `KINGTIDE_SEED=n` others. An input that fails is written to
//! `target/fuzz`, and the message says how to run it again.
#![allow(clippy::disallowed_methods, missing_docs)]

mod allocation;
mod mutate;

use kingtide_base::rng::Rng;
use kingtide_fuzz::{TARGETS, Target};
use mutate::{from_hex, inputs, mutated, root, seeds, to_hex};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::RwLock;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// An input that takes longer hangs.
const HANG: Duration = Duration::from_secs(120);

/// Of the whole process is what the test of allocations measures: it holds this for writing, the others for reading.
static ALONE: RwLock<()> = RwLock::new(());

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Writes a failing input down. Returns the command that runs it again.
fn keep(target: &str, input: &[u8]) -> String {
    let dir = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from).join("fuzz");
    let path = dir.join(format!("{target}-{:016x}.hex", kingtide_base::hash::hash64(input)));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(&path, to_hex(input)).unwrap();
    let path = path.display();
    format!("KINGTIDE_FUZZ_INPUT={path} cargo test -p kingtide-fuzz --test replay an_input -- --nocapture")
}

/// Runs an input; a panic tells how to replay it.
fn run_one(name: &str, target: Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        println!("{name}: an input of {} bytes fails; again with\n  {}", input.len(), keep(name, input));
        resume_unwind(panic);
    }
}

/// All inputs of a target, and `n` mutations; tells each input before it is run.
fn run_all(name: &str, target: Target, n: u64, seed: u64, about: &SyncSender<Vec<u8>>) {
    let mut rng = Rng::new(seed);
    let known = inputs(name);
    let mut slowest = Duration::ZERO;
    let mut run = |input: Vec<u8>| {
        let _ = about.send(input.clone());
        let start = Instant::now();
        run_one(name, target, &input);
        slowest = slowest.max(start.elapsed());
    };
    known.iter().for_each(|input| run(input.clone()));
    (0..n).for_each(|_| run(mutated(&known, &mut rng)));
    let known = known.len();
    println!("{name}: {known} committed inputs, {n} mutations with KINGTIDE_SEED={seed}, slowest {slowest:?}");
}

fn fuzz(name: &'static str, n: u64) {
    let _others = ALONE.read().unwrap_or_else(|failed| failed.into_inner());
    let target = TARGETS.iter().find(|t| t.0 == name).unwrap().1;
    let n = if std::env::var_os("KINGTIDE_FULL").is_some() { n * 200 } else { n };
    let seed = number("KINGTIDE_SEED").unwrap_or(1);
    let (about, running) = sync_channel(0);
    let worker = std::thread::spawn(move || run_all(name, target, n, seed, &about));
    let mut last = Vec::new();
    loop {
        match running.recv_timeout(HANG) {
            Ok(input) => last = input,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => panic!("{name}: hangs; again with\n  {}", keep(name, &last)),
        }
    }
    if let Err(panic) = worker.join() {
        resume_unwind(panic);
    }
}

#[test]
fn wal() {
    fuzz("wal", 750);
}

#[test]
fn klog() {
    fuzz("klog", 500);
}

#[test]
fn vlog() {
    fuzz("vlog", 750);
}

#[test]
fn manifest() {
    fuzz("manifest", 750);
}

#[test]
fn options() {
    fuzz("options", 2000);
}

#[test]
fn arguments() {
    fuzz("arguments", 1500);
}

#[test]
fn ops() {
    fuzz("ops", 500);
}

#[test]
fn backup() {
    fuzz("backup", 300);
}

#[test]
fn capi() {
    fuzz("capi", 3000);
}

#[test]
fn ingest() {
    fuzz("ingest", 400);
}

/// The input in file `KINGTIDE_FUZZ_INPUT`, as hexadecimal digits or, without the ending `.hex`, as it is. Its target is
/// the name's part before the first `-`, or the name of its directory.
#[test]
fn an_input() {
    let Some(path) = std::env::var_os("KINGTIDE_FUZZ_INPUT").map(PathBuf::from) else { return };
    let bytes = std::fs::read(&path).unwrap();
    let input = if path.extension().is_some_and(|e| e == "hex") { from_hex(&bytes) } else { bytes };
    let file = path.file_name().unwrap().to_string_lossy().into_owned();
    let dir = path.parent().and_then(|p| p.file_name()).unwrap_or_default().to_string_lossy().into_owned();
    let of = |name: &str| TARGETS.iter().find(|t| t.0 == name);
    let target = of(file.split('-').next().unwrap_or_default()).or_else(|| of(&dir)).expect("a target's name");
    target.1(&input);
}

/// Writes the seeds of all targets anew: `cargo test -p kingtide-fuzz --test replay make_seeds -- --ignored`.
#[test]
#[ignore = "writes into the source tree"]
fn make_seeds() {
    for (name, _) in TARGETS {
        let dir = root().join("fuzz/testdata/seeds").join(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        for (i, seed) in seeds(name).iter().enumerate() {
            std::fs::write(dir.join(format!("{i:03}")), seed).unwrap();
        }
    }
}
