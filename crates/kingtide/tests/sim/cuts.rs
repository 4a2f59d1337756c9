//! The power is cut at every write operation of a scenario. Whatever the disk kept of what was not synced, recovery must
//! succeed and yield an exact prefix of the commits, over all families together, that misses nothing acknowledged.
//!
//! `KINGTIDE_FULL=1` runs more and longer scenarios. A failure prints kind, seed, cut and survival model; `KINGTIDE_KIND`,
//! `KINGTIDE_SEED` and `KINGTIDE_CUT` run that again.
#![allow(clippy::disallowed_methods, missing_docs)]

mod faults;
mod history;
mod scenario;

use history::{Contents, FamilyNo, History, Progress};
use kingtide::vfs::{MemFs, Survival};
use kingtide::{Db, Durability, ManualClock, WriteBatch, WriteOptions};
use kingtide_base::rng::Rng;
use scenario::{Cut, DIR, KINDS, Kind, options, record};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn full() -> bool {
    std::env::var_os("KINGTIDE_FULL").is_some()
}

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

/// A database found after a cut.
struct Found {
    db: Db,
    families: BTreeMap<String, FamilyNo>,
    contents: BTreeMap<FamilyNo, Contents>,
}

fn read(db: &Db, families: &BTreeMap<String, FamilyNo>) -> BTreeMap<FamilyNo, Contents> {
    let mut found = BTreeMap::new();
    for (name, no) in families {
        let family = db.family(name).expect("family");
        let mut it = family.iter(..).expect("iterator");
        let mut contents = Contents::new();
        it.seek_to_first();
        while it.valid() {
            let key = it.key().to_vec();
            contents.insert(key, it.value().expect("value").to_vec());
            it.next();
        }
        it.status().expect("status");
        found.insert(*no, contents);
    }
    found
}

fn open(kind: &Kind, disk: &MemFs, progress: &Progress) -> Found {
    let clock = ManualClock::at_unix_ms(1_800_000_000_000);
    let db = Db::open(Path::new(DIR), options(kind, Arc::new(disk.clone()), &clock)).expect("recovery");
    let names = db.families();
    let families = [Some(&progress.families), progress.changing.as_ref()]
        .into_iter()
        .flatten()
        .find(|f| f.keys().eq(names.iter()))
        .unwrap_or_else(|| panic!("families {names:?} after {progress:?}"))
        .clone();
    let contents = read(&db, &families);
    Found { db, families, contents }
}

/// Opens what a cut left, compares it, goes on with it, and compares again.
fn check(kind: &Kind, history: &History, cut: &Cut, disk: &MemFs, at_least: usize, rng: &mut Rng) -> u64 {
    let mut opened = 1;
    let progress = &cut.progress;
    if rng.one_in(8) {
        opened += cut_during_recovery(kind, history, cut, disk, rng);
    }
    let found = open(kind, disk, progress);
    if history.recovered(&found.contents, at_least, progress).is_none() {
        explain(history, &found.contents, at_least, progress);
    }
    if rng.one_in(4) {
        // What recovery has shown stays, even if nobody wrote since.
        let again = disk.crash_clone(Survival::AllLost, rng);
        assert_eq!(open(kind, &again, progress).contents, found.contents, "shown, then lost by a power cut");
        opened += 1;
    }
    let expected = go_on(&found, rng);
    match rng.below(3) {
        0 => found.db.close().expect("close"),
        1 => found.db.flush().expect("flush"),
        _ => {}
    }
    let end = match rng.below(3) {
        0 => disk.kill_clone(),
        1 => disk.crash_clone(Survival::AllLost, rng),
        _ => disk.crash_clone(Survival::RandomBlocks, rng),
    };
    drop(found);
    assert_eq!(open(kind, &end, progress).contents, expected, "after going on and opening again");
    opened + 1
}

/// Commits something to every family, durably, and returns what they hold then.
fn go_on(found: &Found, rng: &mut Rng) -> BTreeMap<FamilyNo, Contents> {
    let mut expected = found.contents.clone();
    for round in 0..2 {
        let mut batch = WriteBatch::new();
        for (name, no) in &found.families {
            let family = found.db.family(name).expect("family");
            let value = vec![round; rng.below(500) as usize];
            batch.put(&family, b"after", &value).expect("put");
            batch.delete(&family, b"key-007").expect("delete");
            let contents = expected.get_mut(no).expect("family");
            contents.remove(&b"key-007"[..]);
            contents.insert(b"after".to_vec(), value);
        }
        let durable = WriteOptions { durability: Some(Durability::Power), no_wait: false };
        found.db.write_with(&mut batch, &durable).expect("write");
    }
    expected
}

/// Cuts the power again at some of the write operations of recovery itself.
fn cut_during_recovery(kind: &Kind, history: &History, cut: &Cut, disk: &MemFs, rng: &mut Rng) -> u64 {
    let at_least = cut.progress.power;
    let disk = disk.kill_clone();
    let boundaries: Arc<Mutex<Vec<MemFs>>> = Arc::default();
    let keep = boundaries.clone();
    disk.on_write(Some(Box::new(move |b| keep.lock().expect("clones").push(b.kill_clone()))));
    drop(open(kind, &disk, &cut.progress));
    disk.on_write(None);
    let boundaries = std::mem::take(&mut *boundaries.lock().expect("clones"));
    let mut opened = 1;
    for before in &boundaries {
        if !rng.one_in(3) {
            continue;
        }
        let model = Survival::ALL[rng.below(4) as usize];
        let again = before.crash_clone(model, rng);
        let found = open(kind, &again, &cut.progress);
        if history.recovered(&found.contents, at_least, &cut.progress).is_none() {
            explain(history, &found.contents, at_least, &cut.progress);
        }
        opened += 1;
    }
    opened
}

/// Fails, and says which family holds what it should not.
fn explain(history: &History, found: &BTreeMap<FamilyNo, Contents>, at_least: usize, progress: &Progress) -> ! {
    println!("recovered is no prefix of at least {at_least} commits; {progress:?}");
    for (family, contents) in found {
        let alone = BTreeMap::from([(*family, contents.clone())]);
        let fits: Vec<usize> = (0..=progress.begun)
            .filter(|n| history.recovered(&alone, *n, &Progress { begun: *n, ..progress.clone() }).is_some())
            .collect();
        println!("family {family}, {} keys, is as after these numbers of commits: {fits:?}", contents.len());
        let expected = history.contents(*family, progress.begun, progress.begun);
        let differs: Vec<_> = expected
            .keys()
            .chain(contents.keys())
            .filter(|k| expected.get(*k) != contents.get(*k))
            .map(|k| String::from_utf8_lossy(k).into_owned())
            .collect();
        println!("  differs from all of them in {differs:?}");
    }
    panic!("not a prefix");
}

#[derive(Default)]
struct Counts {
    cuts: AtomicU64,
    disks: AtomicU64,
    opens: AtomicU64,
}

/// Checks one cut under every survival model and as a mere kill.
fn check_cut(kind: &Kind, seed: u64, history: &History, cut: &Cut, counts: &Counts) -> Result<(), String> {
    counts.cuts.fetch_add(1, Ordering::Relaxed);
    for model in [None].into_iter().chain(Survival::ALL.map(Some)) {
        let mut rng = Rng::new(seed ^ cut.number << 8 ^ model.map_or(9, |m| m as u64));
        let (disk, at_least) = match model {
            None => (cut.disk.kill_clone(), cut.progress.process.max(cut.progress.power)),
            Some(m) => (cut.disk.crash_clone(m, &mut rng), cut.progress.power),
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| check(kind, history, cut, &disk, at_least, &mut rng)));
        match outcome {
            Ok(opens) => counts.opens.fetch_add(opens, Ordering::Relaxed),
            Err(_) => {
                let model = model.map_or("a kill".to_owned(), |m| format!("{m:?}"));
                return Err(format!(
                    "KINGTIDE_KIND={} KINGTIDE_SEED={seed} KINGTIDE_CUT={} under {model}",
                    kind.name, cut.number
                ));
            }
        };
        counts.disks.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Runs a scenario and checks one in `every` of its cuts.
fn check_scenario(kind: Kind, seed: u64, steps: u64, every: u64, counts: &Counts) -> Vec<String> {
    let (history, cuts) = record(kind, seed, steps);
    let only = env("KINGTIDE_CUT");
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            s.spawn(|| {
                while let Some(cut) = cuts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let chosen =
                        only.map_or(cut.number < 12 || (cut.number + seed).is_multiple_of(every), |n| n == cut.number);
                    if !chosen || failures.lock().expect("failures").len() >= 3 {
                        continue;
                    }
                    if let Err(failure) = check_cut(&kind, seed, &history, cut, counts) {
                        failures.lock().expect("failures").push(failure);
                    }
                }
            });
        }
    });
    println!("{} seed {seed}: {} commits, {} cuts", kind.name, history.commits.len(), cuts.len());
    failures.into_inner().expect("failures")
}

#[test]
fn every_power_cut_leaves_a_prefix_with_all_that_was_acknowledged() {
    let (seeds, steps, every) = if full() { (4, 250, 1) } else { (1, 120, 3) };
    let kind = std::env::var("KINGTIDE_KIND").ok();
    let only = env("KINGTIDE_SEED");
    let counts = Counts::default();
    let mut failures = Vec::new();
    for k in KINDS.into_iter().filter(|k| kind.as_ref().is_none_or(|n| n == k.name)) {
        for seed in only.map_or(1..=seeds, |s| s..=s) {
            failures.extend(check_scenario(k, seed, steps, every, &counts));
        }
    }
    let n = |c: &AtomicU64| c.load(Ordering::Relaxed);
    println!("{} cuts, {} disks, {} recoveries", n(&counts.cuts), n(&counts.disks), n(&counts.opens));
    assert!(failures.is_empty(), "{failures:#?}");
}
