//! Power cuts, failures and kills around ingests: all of it or nothing, and nothing that was acknowledged before is lost.

use super::world::*;
use kingtide::vfs::{Boundary, Fault, FaultFs, Fs, MemFs, Op, Rule, Survival};
use kingtide::{Db, ErrorKind, FamilyOptions, IngestOptions, Options, SortedFileWriter, verify};
use kingtide_base::rng::{Rng, entropy};
use kingtide_testkit::Scratch;
use kingtide_testkit::killed::{BEGIN, DIR, SEED, acknowledge, parse, run_and_kill};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type State = (Contents, Contents);

fn state(db: &Db) -> State {
    let other = db.family("other").map_or_else(|_| Contents::new(), |f| contents(&f, None));
    (contents(db.default_family(), None), other)
}

/// Some tables, a value log, memtables that the files overlap or not, commits that are in no synced log. Returns the states
/// that a cut may show, oldest first.
fn prepare(db: &Db, rng: &mut Rng, overlapped: bool) -> Vec<State> {
    let small = db.default_family().options().value_threshold(0);
    let other = db.create_family("other", small).unwrap();
    for i in 0..300 {
        db.put(key(i), value(rng)).unwrap();
        other.put(key(i), value(rng)).unwrap();
    }
    db.flush().unwrap();
    db.sync().unwrap();
    let mut states = vec![state(db)];
    for i in 0..20 {
        let family = if i % 3 == 0 { &other } else { db.default_family() };
        // Without a flush of what the files overlap, nothing but the ingest itself syncs the log.
        family.put(key(if overlapped { i * 20 } else { 800 + i }), value(rng)).unwrap();
        states.push(state(db));
    }
    let before = states.last().unwrap().clone();
    states.push(write_files(db, before));
    states
}

/// Writes two files for the default family and one for the other, and returns what an ingest of them makes of a state.
fn write_files(db: &Db, (mut a, mut b): State) -> State {
    let other = db.family("other").unwrap();
    sorted_file(db.default_family(), "files/1", 50..150, b"one");
    a.extend((50..150).map(|i| (key(i), b"one".to_vec())));
    let mut w = SortedFileWriter::create("files/2", db.default_family()).unwrap();
    w.delete_range(&key(100)..&key(250)).unwrap();
    w.put(&key(120), &[2; 700]).unwrap();
    w.finish().unwrap();
    a.retain(|k, _| *k < key(100) || *k >= key(250));
    a.insert(key(120), vec![2; 700]);
    sorted_file(&other, "files/3", 400..450, b"three");
    b.extend((400..450).map(|i| (key(i), b"three".to_vec())));
    (a, b)
}

fn ingest(db: &Db, move_files: bool) -> kingtide::Result<u64> {
    let other = db.family("other").unwrap();
    let parts: [(_, &[&str]); 2] = [(db.default_family(), &["files/1", "files/2"]), (&other, &["files/3"])];
    db.ingest(&parts, &IngestOptions::new().move_files(move_files))
}

/// Opens what is there and finds one of `states`, not older than `at_least`; and no unknown file.
fn check(disk: &MemFs, states: &[State], at_least: usize, what: &str) -> usize {
    let db = Db::open("db", options_on(Arc::new(disk.clone()), true)).unwrap_or_else(|e| panic!("{what}: {e}"));
    let found = state(&db);
    let at = states.iter().rposition(|s| *s == found).unwrap_or_else(|| panic!("{what}: none of the states"));
    assert!(at >= at_least, "{what}: state {at}, acknowledged was {at_least}");
    db.put(b"after", b"it goes on").unwrap();
    db.compact().unwrap();
    drop(db);
    let report = verify("db", &options_on(Arc::new(disk.clone()), true)).unwrap();
    assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
    at
}

#[test]
fn a_power_cut_at_any_write_shows_all_or_nothing_of_an_ingest() {
    let (mut cuts, mut with, mut without) = (0, 0, 0);
    for seed in 0..if full() { 8 } else { 1 } {
        for move_files in [false, true] {
            let fs = MemFs::new();
            let db = open(&fs);
            let states = prepare(&db, &mut Rng::new(seed), move_files);
            let clones = Arc::new(Mutex::new(Vec::new()));
            let keep = clones.clone();
            fs.on_write(Some(Box::new(move |b: &Boundary<'_>| keep.lock().unwrap().push(b.kill_clone()))));
            ingest(&db, move_files).unwrap();
            fs.on_write(None);
            assert_eq!(state(&db), *states.last().unwrap());
            let clones = std::mem::take(&mut *clones.lock().unwrap());
            let done = fs.kill_clone();
            for model in Survival::ALL {
                for (i, cut) in clones.iter().enumerate() {
                    let disk = cut.crash_clone(model, &mut Rng::new(seed << 32 | i as u64));
                    let at = check(&disk, &states, 0, &format!("seed {seed}, cut {i}, {model:?}"));
                    *if at + 1 == states.len() { &mut with } else { &mut without } += 1;
                    cuts += 1;
                }
                let disk = done.crash_clone(model, &mut Rng::new(seed));
                check(&disk, &states, states.len() - 1, &format!("seed {seed}, acknowledged, {model:?}"));
            }
            for (i, cut) in clones.iter().enumerate() {
                check(&cut.kill_clone(), &states, states.len() - 2, &format!("seed {seed}, kill {i}"));
            }
        }
    }
    println!("{cuts} cuts: {with} with all of the ingest, {without} without any of it");
    assert!(with > 5 && without > 50);
}

#[test]
fn a_failure_of_any_operation_leaves_all_or_nothing() {
    let (mut injected, mut refused) = (0, 0);
    for op in Op::ALL {
        for n in 1.. {
            let fs = MemFs::new();
            let faulty = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
            fs.create_dir_all(Path::new("files")).unwrap();
            let db = Db::open("db", options_on(faulty.clone(), true)).unwrap();
            let states = prepare(&db, &mut Rng::new(n), true);
            let fault = if n % 2 == 0 { Fault::Enospc } else { Fault::Eio };
            faulty.add(Rule::new(op, fault).nth(n));
            let outcome = ingest(&db, n % 3 == 0);
            let hit = faulty.stats().injected();
            faulty.clear();
            if hit == 0 {
                break;
            }
            injected += hit;
            let what = format!("{op:?} {n}");
            let (old, new) = (&states[states.len() - 2], &states[states.len() - 1]);
            match outcome {
                Ok(_) => assert_eq!(state(&db), *new, "{what}"),
                Err(e) => {
                    refused += 1;
                    // It is done when the log has it, and only its sync failed.
                    let done = e.to_string().contains("it was done, but");
                    assert_eq!(state(&db), if done { new } else { old }.clone(), "{what}: {e}");
                    for path in ["files/1", "files/2", "files/3"] {
                        assert!(fs.exists(Path::new(path)).unwrap(), "{what}: {path}");
                    }
                    match ingest(&db, false) {
                        Ok(_) => assert_eq!(state(&db), *new, "{what}: again"),
                        Err(e) => assert_eq!(e.kind(), ErrorKind::Poisoned, "{what}: {e}"),
                    }
                }
            }
            let shown = state(&db);
            drop(db);
            check(&fs, std::slice::from_ref(&shown), 0, &what);
            if !full() && n > 12 {
                break;
            }
        }
    }
    println!("{injected} failures, {refused} ingests refused");
    assert!(refused > 20);
}

const INGESTED: u64 = 200;

fn kill_options() -> Options {
    let mut o = Options::default();
    o.family.memtable_size = 128 << 10;
    o.family.target_file_size = 64 << 10;
    o.family.value_threshold = 300;
    o.db.wal_segment_size = 512 << 10;
    o
}

/// Ingests generation after generation into two families while two threads write into the gaps between the keys.
pub fn run_child() {
    let (Ok(dir), Ok(_)) = (std::env::var(DIR), std::env::var(SEED)) else { return };
    let out = Mutex::new(std::io::stdout());
    out.lock().unwrap().write_all(BEGIN).unwrap();
    let db = Db::open(Path::new(&dir).join("db"), kill_options()).unwrap();
    let other = db.family("other").or_else(|_| db.create_family("other", FamilyOptions::default())).unwrap();
    let families = [db.default_family(), &other];
    std::thread::scope(|s| {
        for w in 1..3 {
            let (family, out) = (families[w as usize - 1], &out);
            s.spawn(move || {
                let mut n = generation(family.get(writer_key(w)).unwrap().as_deref());
                loop {
                    n += 1;
                    let mut v = n.to_string().into_bytes();
                    family.put(key((n % 500) * 2 + 1), vec![0; 400]).unwrap();
                    family.put(writer_key(w), &v).unwrap();
                    v.clear();
                    acknowledge(out, w, n);
                }
            });
        }
        let mut n = generation(db.get(key(0)).unwrap().as_deref());
        loop {
            n += 1;
            // Other names for each generation: on Windows, the name of a file that was removed may stay as long as another link to it is open.
            let paths: Vec<_> = (0..2).map(|f| Path::new(&dir).join(format!("{f}-{n}"))).collect();
            for (family, path) in families.iter().zip(&paths) {
                let _ = std::fs::remove_file(path); // of an earlier life
                let mut w = SortedFileWriter::create(path, family).unwrap();
                (0..INGESTED).for_each(|i| w.put(&key(i * 2), n.to_string().as_bytes()).unwrap());
                w.finish().unwrap();
            }
            let parts = [(families[0], &paths[..1]), (families[1], &paths[1..])];
            db.ingest(&parts, &IngestOptions::new().move_files(n.is_multiple_of(2))).unwrap();
            acknowledge(&out, 0, n);
            for path in &paths {
                let _ = std::fs::remove_file(path); // unless it was moved
            }
        }
    });
}

fn writer_key(w: u64) -> Vec<u8> {
    key(w * 2 + 1) // among the ingested ones
        .into_iter()
        .chain(*b"-count")
        .collect()
}

fn generation(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |v| std::str::from_utf8(v).unwrap().parse().unwrap())
}

#[test]
fn a_killed_process_leaves_whole_ingests() {
    let rounds = if full() { 200 } else { 5 };
    let mut rng = Rng::new(entropy());
    let scratch = Scratch::new("ingest");
    let mut acknowledged = [0; 3];
    let mut round = 0;
    // On a busy machine some lives are too short for an ingest: later ones are longer.
    while round < rounds || (acknowledged.contains(&0) && round < 10 * rounds) {
        let life = Duration::from_millis(100 + rng.below(400) * (1 + round / rounds));
        for (who, n) in parse(&run_and_kill(&super::child_name(), &scratch.0, 0, "", life)) {
            acknowledged[who as usize] = n.max(acknowledged[who as usize]);
        }
        let db = Db::open(scratch.0.join("db"), kill_options()).unwrap();
        round += 1;
        let Ok(other) = db.family("other") else { continue };
        let families = [db.default_family(), &other];
        let first = generation(db.get(key(0)).unwrap().as_deref());
        assert!(first >= acknowledged[0], "round {round}: {first}, acknowledged {}", acknowledged[0]);
        for (w, family) in families.iter().enumerate() {
            for i in 0..INGESTED {
                let n = generation(family.get(key(i * 2)).unwrap().as_deref());
                assert_eq!(n, first, "round {round}: family {w}, key {i}");
            }
            let n = generation(family.get(writer_key(w as u64 + 1)).unwrap().as_deref());
            assert!(n >= acknowledged[w + 1], "round {round}: writer {w} at {n} of {acknowledged:?}");
        }
        if round == rounds {
            let problems = db.verify().unwrap().problems;
            assert!(problems.is_empty(), "{problems:?}");
        }
    }
    println!("{round} kills, {} ingests acknowledged, {} commits", acknowledged[0], acknowledged[1] + acknowledged[2]);
    assert!(acknowledged.iter().all(|n| *n > 0), "{acknowledged:?}");
}
