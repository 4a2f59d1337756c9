//! kill -9: a child process commits and says over a pipe what was acknowledged, the parent kills it at a random moment,
//! and what the directory then holds must be exactly the commits up to one that is not before the last acknowledged.
//!
//! Every commit of a writer is a function of (seed, writer, number), so parent and child agree on it without talking,
//! and the parent's model knows each key's value after any number of commits. A writer's keys are its own; its commits
//! are numbered from 1 and go over three families: single puts, and batches of up to 1,000 puts, deletes and range
//! deletes. Each batch also puts the writer's counter, so the counter tells how far the writer came, and a batch of which
//! only a part survived shows as a difference from the model. `copies.rs` does so while checkpoints and backups are made.
//!
//! CI runs 24 rounds; `KINGTIDE_FULL=1` runs 2,000. `KINGTIDE_SEED` repeats a run.

mod copies;
mod power_cut;

use kingtide::{ColumnFamily, Db, Options, Tuning, WriteBatch};
use kingtide_base::hash::{hash64, mix64};
use kingtide_base::rare;
use kingtide_base::rare::excuses::KILL_NINE;
use kingtide_base::rng::{Rng, entropy};
use kingtide_testkit::Scratch;
use kingtide_testkit::full;
use kingtide_testkit::killed::{BEGIN, DIR, JOB, SEED, acknowledge, parse, run_and_kill, spawn};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const FAMILIES: [&str; 3] = ["default", "a", "b"];
const WRITERS: u64 = 16;
const SLOTS: u64 = 3000;
const COUNTER: u32 = u32::MAX;
/// In acknowledgements: the thread that creates and drops families, and the end of a bounded load.
const CHURN: u64 = 255;
const DONE: u64 = 254;
/// Batches committed to one passing family.
const CHURN_BATCHES: u64 = 20;
const CHURN_KEYS: u64 = 20;
const DROPPED: u64 = CHURN_BATCHES + 1;
const RESTART: u64 = DROPPED + 1;
/// In acknowledgements: a rare path, by its number, was taken so often.
const RARE: u64 = 1000;

fn seed() -> u64 {
    kingtide_testkit::number("KINGTIDE_SEED").unwrap_or_else(|| entropy() >> 16)
}

/// Small everything, so that rotations, flushes, merges and log segments come and go all the time.
fn options() -> Options {
    let mut o = Options::default();
    o.family.memtable_size = 256 << 10;
    o.family.target_file_size = 256 << 10;
    o.family.value_threshold = 300;
    o.family.level_ratio = 4;
    o.db.wal_segment_size = 512 << 10;
    o.db.max_wal_size = 4 << 20;
    o
}

/// The same with thresholds that make rare paths common.
fn drawn_options(draw: u64) -> Options {
    let mut drawn = options().tuning(Tuning::random(draw));
    drawn.family.direct_value_threshold = [0, 8, 200, 1000][draw as usize % 4];
    drawn
}

/// In a child: tells how often each rare path was taken, now and then.
fn tell_rare_paths() {
    static COUNTS: [AtomicU64; rare::PATHS.len()] = [const { AtomicU64::new(0) }; rare::PATHS.len()];
    rare::on_any_thread(|name| {
        let index = rare::PATHS.iter().position(|p| p.name == name).expect("a path of the table");
        let n = COUNTS[index].fetch_add(1, Ordering::Relaxed) + 1;
        if n.is_power_of_two() {
            acknowledge(&Mutex::new(std::io::stdout()), RARE + index as u64, n);
        }
    });
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Put(usize, u32),
    Delete(usize, u32),
    DeleteRange(usize, u32, u32),
}

/// The operations of a writer's commit number `n`.
fn commit_ops(seed: u64, writer: u64, n: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed ^ mix64(writer << 48 | n));
    let slot = |rng: &mut Rng| rng.below(SLOTS) as u32;
    let family = |rng: &mut Rng| rng.below(FAMILIES.len() as u64) as usize;
    if rng.one_in(2) {
        return vec![Op::Put(family(&mut rng), slot(&mut rng))];
    }
    let len = if rng.one_in(4) { 1000 } else { 2 + rng.below(60) };
    let mut ops = Vec::new();
    for _ in 1..len {
        ops.push(match rng.below(200) {
            0 => {
                let (f, from) = (family(&mut rng), slot(&mut rng));
                Op::DeleteRange(f, from, from + 1 + rng.below(30) as u32)
            }
            1..20 => Op::Delete(family(&mut rng), slot(&mut rng)),
            _ => Op::Put(family(&mut rng), slot(&mut rng)),
        });
    }
    ops.push(Op::Put(0, COUNTER));
    ops
}

fn key(writer: u64, slot: u32) -> [u8; 5] {
    let s = slot.to_be_bytes();
    [writer as u8, s[0], s[1], s[2], s[3]]
}

/// The value that commit `n` puts: its number, and bytes that depend on everything.
fn value(writer: u64, slot: u32, n: u64) -> Vec<u8> {
    let h = mix64(writer << 56 ^ (slot as u64) << 24 ^ n);
    let len = if h.is_multiple_of(16) { 300 + h % 700 } else { h % 100 } as usize;
    let mut v = n.to_le_bytes().to_vec();
    v.extend((0..len).map(|i| (h >> (i % 8 * 8)) as u8 ^ i as u8));
    v
}

fn number_in(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}

fn open_families(db: &Db) -> Vec<ColumnFamily> {
    FAMILIES.map(|name| db.family(name).or_else(|_| db.create_family(name, options().family)).unwrap()).to_vec()
}

/// How far a writer came: its counter, and the single puts behind it.
fn progress(families: &[ColumnFamily], seed: u64, writer: u64) -> u64 {
    let at = |f: usize, slot| families[f].get(key(writer, slot)).unwrap().map_or(0, |v| number_in(&v));
    let mut last = at(0, COUNTER);
    for n in last + 1.. {
        let [Op::Put(f, slot)] = commit_ops(seed, writer, n)[..] else { break };
        if at(f, slot) == n {
            last = n;
        }
    }
    last
}

// The child.

/// The test that runs in processes of its own.
fn child_name() -> String {
    kingtide_testkit::test_name!("child")
}

#[test]
#[ignore = "run by the others, as a process of its own"]
fn child() {
    let (Ok(dir), Ok(seed), Ok(job)) = (std::env::var(DIR), std::env::var(SEED), std::env::var(JOB)) else { return };
    let seed: u64 = seed.parse().unwrap();
    let draw = seed ^ hash64(job.as_bytes());
    let job: Vec<u64> = job.split(',').map(|n| n.parse().unwrap()).collect();
    let out = Mutex::new(std::io::stdout());
    out.lock().unwrap().write_all(BEGIN).unwrap();
    if let [_, _] = job[..] {
        tell_rare_paths();
    }
    let options = match job[..] {
        [_, _, boot, _, _] => power_cut::options(draw, boot),
        _ => drawn_options(draw),
    };
    let db = Db::open(&dir, options).unwrap();
    match job[..] {
        [writers, every, _, _, _] => power_cut::write_for_ever(&db, seed, writers, every, &out),
        [writers, churn_from] => write_for_ever(&db, seed, writers, &|| churn(&db, churn_from, &out), &out),
        [writers, checkpoint, restore, round] => {
            let next = copies::Next { checkpoint, restore };
            let copy = || copies::copy_for_ever(&db, dir.as_ref(), seed ^ round, next, &out);
            write_for_ever(&db, seed, writers, &copy, &out);
        }
        [writers, keys, _] => load(&db, writers, keys, &out),
        _ => panic!("job {job:?}"),
    }
}

/// Writers, and beside them `also`.
fn write_for_ever(db: &Db, seed: u64, writers: u64, also: &(dyn Fn() + Sync), out: &Mutex<std::io::Stdout>) {
    let families = open_families(db);
    std::thread::scope(|s| {
        for w in 0..writers {
            let families = &families;
            s.spawn(move || {
                let mut n = progress(families, seed, w);
                loop {
                    n += 1;
                    commit(db, families, seed, w, n);
                    acknowledge(out, w, n);
                }
            });
        }
        s.spawn(also);
    });
}

fn commit(db: &Db, families: &[ColumnFamily], seed: u64, w: u64, n: u64) {
    let ops = commit_ops(seed, w, n);
    if let [Op::Put(f, slot)] = ops[..] {
        return {
            families[f].put(key(w, slot), value(w, slot, n)).unwrap();
        };
    }
    let mut batch = WriteBatch::new();
    for op in ops {
        match op {
            Op::Put(f, slot) => batch.put(&families[f], &key(w, slot), &value(w, slot, n)),
            Op::Delete(f, slot) => batch.delete(&families[f], &key(w, slot)),
            Op::DeleteRange(f, from, to) => batch.delete_range(&families[f], &key(w, from)..&key(w, to)),
        }
        .unwrap();
    }
    db.write(batch).unwrap();
}

fn churn_name(i: u64) -> String {
    format!("passing-{}", i % 3)
}

/// Creates families, fills and drops them. Event `i * 64 + stage`: 0 is created, up to `CHURN_BATCHES` a batch, then
/// dropped. `RESTART` comes before the families of the last run are dropped. Does nothing when `from` is 0.
fn churn(db: &Db, from: u64, out: &Mutex<std::io::Stdout>) {
    if from == 0 {
        return;
    }
    acknowledge(out, CHURN, (from - 1) * 64 + RESTART);
    for i in 0..3 {
        let _ = db.drop_family(&churn_name(i));
    }
    for i in from.. {
        let f = db.create_family(&churn_name(i), options().family).unwrap();
        acknowledge(out, CHURN, i * 64);
        for b in 1..=CHURN_BATCHES {
            let mut batch = WriteBatch::new();
            for k in 0..CHURN_KEYS {
                batch.put(&f, &churn_key(b, k), &value(CHURN, k as u32, i * 64 + b)).unwrap();
            }
            db.write(batch).unwrap();
            acknowledge(out, CHURN, i * 64 + b);
        }
        if i % 4 == 0 {
            f.flush().unwrap();
        }
        db.drop_family(&churn_name(i)).unwrap();
        acknowledge(out, CHURN, i * 64 + DROPPED);
    }
}

fn churn_key(batch: u64, k: u64) -> [u8; 2] {
    [batch as u8, k as u8]
}

// The parent.

/// What one writer's commits made of its keys: family and slot to commit number.
#[derive(Default)]
struct Model {
    commits: u64,
    keys: BTreeMap<(usize, u32), u64>,
}

impl Model {
    fn advance(&mut self, seed: u64, writer: u64, to: u64) {
        for n in self.commits + 1..=to {
            for op in commit_ops(seed, writer, n) {
                match op {
                    Op::Put(f, slot) => {
                        self.keys.insert((f, slot), n);
                    }
                    Op::Delete(f, slot) => {
                        self.keys.remove(&(f, slot));
                    }
                    Op::DeleteRange(f, from, to) => {
                        let gone: Vec<_> = self.keys.range((f, from)..(f, to)).map(|(k, _)| *k).collect();
                        for k in gone {
                            self.keys.remove(&k);
                        }
                    }
                }
            }
        }
        self.commits = to;
    }
}

struct Run {
    seed: u64,
    dir: Scratch,
    models: Vec<Model>,
    acknowledged: Vec<u64>,
    churn: u64,
    checked_keys: u64,
    /// How often the children took each rare path.
    rare: Vec<u64>,
}

impl Run {
    fn new(seed: u64, name: &str) -> Run {
        Run {
            seed,
            dir: Scratch::new(name),
            models: (0..WRITERS).map(|_| Model::default()).collect(),
            acknowledged: vec![0; WRITERS as usize],
            churn: 0,
            checked_keys: 0,
            rare: vec![0; rare::PATHS.len()],
        }
    }

    fn note(&mut self, output: &[u8]) {
        let mut of_child = vec![0; rare::PATHS.len()];
        for (who, n) in parse(output) {
            match who {
                RARE.. => of_child[(who - RARE) as usize] = n,
                CHURN => self.churn = self.churn.max(n),
                w => self.acknowledged[w as usize] = self.acknowledged[w as usize].max(n),
            }
        }
        self.rare.iter_mut().zip(of_child).for_each(|(all, n)| *all += n);
    }

    /// How often this process and the children took each rare path.
    fn rare_paths(&self) -> Vec<(&'static str, u64)> {
        rare::counts().into_iter().zip(&self.rare).map(|((name, n), more)| (name, n + more)).collect()
    }

    fn check(&mut self, round: u64, db: &Db) {
        let families = open_families(db);
        let mut expected: Vec<BTreeMap<Vec<u8>, Vec<u8>>> = vec![BTreeMap::new(); FAMILIES.len()];
        for w in 0..WRITERS {
            let (last, acknowledged) = (progress(&families, self.seed, w), self.acknowledged[w as usize]);
            assert!(
                last >= acknowledged,
                "seed {} round {round}: writer {w} was told that commit {acknowledged} is safe, but {last} is the last",
                self.seed
            );
            let model = &mut self.models[w as usize];
            assert!(last >= model.commits, "seed {} round {round}: writer {w} went back to {last}", self.seed);
            model.advance(self.seed, w, last);
            for ((f, slot), n) in &model.keys {
                expected[*f].insert(key(w, *slot).to_vec(), value(w, *slot, *n));
            }
        }
        for (f, expected) in families.iter().zip(&expected) {
            self.compare(round, f, expected);
        }
        self.check_churn(round, db);
    }

    fn compare(&mut self, round: u64, family: &ColumnFamily, expected: &BTreeMap<Vec<u8>, Vec<u8>>) {
        let place = format!("seed {} round {round} family {}", self.seed, family.name());
        let mut it = family.cursor(..).unwrap();
        it.seek_to_first();
        for (k, v) in expected {
            assert!(it.valid(), "{place}: the scan ends before {k:?}: {:?}", it.status());
            assert_eq!(it.key(), &k[..], "{place}: a key is missing or too many");
            let found = it.value().unwrap().to_vec();
            assert!(found == *v, "{place} key {k:?}: commit {} instead of {}", number_in(&found), number_in(v));
            it.next();
        }
        it.status().unwrap();
        assert!(!it.valid(), "{place}: {:?} should not be there", it.key());
        for (k, v) in expected.iter().step_by(7) {
            assert_eq!(family.get(k).unwrap().as_deref(), Some(&v[..]), "{place}: get of {k:?}");
        }
        self.checked_keys += expected.len() as u64;
    }

    /// The passing family of the last acknowledged event is there or not as that says, and holds whole batches.
    fn check_churn(&mut self, round: u64, db: &Db) {
        let place = format!("seed {} round {round} event {}", self.seed, self.churn);
        let names: Vec<String> = db.families().into_iter().filter(|n| n.starts_with("passing")).collect();
        let (i, stage) = (self.churn / 64, self.churn % 64);
        assert!(names.len() <= 1, "{place}: {names:?}");
        if self.churn > 0 && stage < CHURN_BATCHES {
            assert_eq!(names, [churn_name(i)], "{place}");
        }
        let Some(name) = names.first() else { return };
        let f = db.family(name).unwrap();
        let mut seen = BTreeMap::new();
        let mut it = f.cursor(..).unwrap();
        it.seek_to_first();
        while it.valid() {
            let (batch, k) = (it.key()[0] as u64, it.key()[1] as u32);
            let event = number_in(it.value().unwrap());
            assert_eq!(event % 64, batch, "{place}");
            let oldest = [i, i + 1, 0][stage.saturating_sub(CHURN_BATCHES) as usize];
            assert!(event / 64 >= oldest, "{place}: event {event} of a family that was dropped came back");
            assert!(*it.value().unwrap() == value(CHURN, k, event)[..], "{place}: wrong value");
            *seen.entry(batch).or_insert(0) += 1;
            it.next();
        }
        it.status().unwrap();
        assert!(seen.values().all(|n| *n == CHURN_KEYS), "{place}: part of a batch: {seen:?}");
        let in_order = seen.keys().copied().eq(1..=seen.len() as u64);
        assert!(in_order, "{place}: a batch is missing: {seen:?}");
        if *name == churn_name(i) {
            assert!(stage >= DROPPED || seen.len() as u64 >= stage, "{place}: {} batches", seen.len());
        }
    }
}

#[test]
fn acknowledged_commits_survive_kill_nine() {
    let seed = seed();
    let rounds = if full() { 2000 } else { 24 };
    println!("seed {seed}, {rounds} rounds");
    let mut run = Run::new(seed, "rounds");
    let mut rng = Rng::new(seed);
    let mut checks = 0;
    for round in 0..rounds {
        let writers = if rng.one_in(2) { 2 } else { WRITERS };
        let churn_from = if rng.one_in(2) { run.churn / 64 + 2 } else { 0 };
        let life = Duration::from_millis(100 + rng.below(600));
        let output = run_and_kill(&child_name(), &run.dir.0, seed, &format!("{writers},{churn_from}"), life);
        run.note(&output);
        if round % 100 == 99 {
            println!("round {round}: {} commits acknowledged", run.acknowledged.iter().sum::<u64>());
        }
        // Now and then the next child recovers what this one left, unseen.
        if round + 1 < rounds && rng.one_in(3) {
            continue;
        }
        let options = drawn_options(seed.rotate_left(7) ^ round);
        let db = Db::open(&run.dir.0, options).unwrap_or_else(|e| panic!("seed {seed} round {round}: {e}"));
        run.check(round, &db);
        checks += 1;
        if rng.one_in(4) {
            db.compact().unwrap();
            run.check(round, &db);
        }
        if rng.one_in(2) {
            db.close().unwrap();
        }
    }
    let commits: u64 = run.acknowledged.iter().sum();
    println!("{rounds} kills, {checks} checks, {commits} commits acknowledged, {} keys compared", run.checked_keys);
    println!("{}", KILL_NINE.report(&run.rare_paths()));
    if full() {
        KILL_NINE.check(&run.rare_paths()).unwrap_or_else(|never| panic!("{never}"));
    }
    assert!(commits > 0 && run.checked_keys > 0);
}

// The load of the issue: random keys in batches of 1,000, and a kill in place of the close.

fn load_key(i: u64) -> [u8; 16] {
    let mut k = [0; 16];
    k[..8].copy_from_slice(&mix64(i).to_be_bytes());
    k[8..].copy_from_slice(&i.to_be_bytes());
    k
}

fn load_value(i: u64) -> Vec<u8> {
    let mut v = vec![b'v'; 100];
    v[..8].copy_from_slice(&mix64(!i).to_le_bytes());
    v
}

fn load(db: &Db, writers: u64, keys: u64, out: &Mutex<std::io::Stdout>) {
    std::thread::scope(|s| {
        for w in 0..writers {
            s.spawn(move || {
                let (mut at, to) = (keys * w / writers, keys * (w + 1) / writers);
                while at < to {
                    let mut b = WriteBatch::new();
                    for i in at..(at + 1000).min(to) {
                        b.put(db.default_family(), &load_key(i), &load_value(i)).unwrap();
                    }
                    db.write(b).unwrap();
                    at += 1000;
                }
            });
        }
    });
    acknowledge(out, DONE, 0);
    loop {
        std::thread::park(); // killed, never closed
    }
}

fn load_and_kill(writers: u64) {
    let keys = if full() { 2_000_000 } else { 150_000 };
    let dir = Scratch::new(&format!("load-{writers}"));
    let mut child = spawn(&child_name(), &dir.0, 0, &format!("{writers},{keys},0"));
    let mut out = child.stdout.take().unwrap();
    let mut all = Vec::new();
    let mut buf = [0; 4096];
    while parse(&all).next().is_none() {
        let n = out.read(&mut buf).unwrap();
        assert!(n > 0, "the child ended: {:?} {}", child.wait(), String::from_utf8_lossy(&all));
        all.extend_from_slice(&buf[..n]);
    }
    child.kill().unwrap();
    child.wait().unwrap();

    let db = Db::open(&dir.0, options()).unwrap();
    let mut sorted: Vec<u64> = (0..keys).collect();
    sorted.sort_unstable_by_key(|i| load_key(*i));
    let mut it = db.cursor(..).unwrap();
    it.seek_to_first();
    for i in sorted {
        assert!(it.valid(), "{writers} writers: the scan ends before key {i}");
        assert_eq!(it.key(), load_key(i), "{writers} writers: key {i} of {keys}");
        assert_eq!(it.value().unwrap()[..], load_value(i));
        it.next();
    }
    it.status().unwrap();
    assert!(!it.valid());
    let mut rng = Rng::new(1);
    for _ in 0..keys / 10 {
        let i = rng.below(keys);
        assert_eq!(db.get(load_key(i)).unwrap().as_deref(), Some(&load_value(i)[..]), "key {i}");
    }
    println!("{writers} writers, {keys} keys, killed in place of a close: all there");
}

#[test]
fn two_writers_killed_in_place_of_a_close() {
    load_and_kill(2);
}

#[test]
fn sixteen_writers_killed_in_place_of_a_close() {
    load_and_kill(16);
}
