//! Random operations under many option sets: whatever the options, every answer must be the same, and what an ordered
//! map with versions says.
//!
//! A [`script::Script`] is drawn from a class (key orders, sizes: what decides the answers) and a seed, together with the
//! oracle's answer to each operation. Every option set of the class then does the script to a database, and each of its
//! answers must be the expected one. So all sets of a class are compared with the oracle and with one another.
//!
//! A short run takes other sets every day, with a seed of that day; `KINGTIDE_FULL=1` takes all sets and many seeds,
//! `KINGTIDE_OPS` operations with each or as many as `KINGTIDE_MINUTES` allow. A failure prints the command that does it
//! again (to the letter where the set runs its background jobs itself).

mod answer;
mod engine;
mod ops;
mod oracle;
mod script;
mod sets;
mod txn;
mod world;

use answer::Answer;
use engine::{Counts, Engine};
use kingtide_base::rare;
use kingtide_base::rare::excuses::MODEL;
use kingtide_testkit::number;
use script::Script;
use sets::{Class, SETS, Set};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// How a run ended: how many operations were done and what they were, or where it failed and how.
type Outcome = Result<Counts, (usize, String)>;

/// Runs the first `length` operations of a script under a set.
fn run(set: &Set, seed: u64, script: &Script, length: usize) -> Outcome {
    let mut at = 0;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut engine = Engine::new(set, seed);
        for (op, expected) in script.ops.iter().zip(&script.expected).take(length) {
            let mut answer = Answer::default();
            let answered = engine.apply(op, &mut answer);
            assert!(!answered || answer.hash == *expected, "another answer than the oracle's");
            *engine.counts.entry(op.name()).or_default() += 1;
            at += 1;
        }
        engine.finish();
        engine.counts
    }));
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        (at, text.or(panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
    })
}

/// What an operation answers under a set, in words: everything before it is done again.
fn explain(set: &Set, seed: u64, script: &Script, at: usize) -> String {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut engine = Engine::new(set, seed);
        script.ops[..at].iter().for_each(|op| _ = engine.apply(op, &mut Answer::default()));
        let mut answer = Answer::in_words();
        engine.apply(&script.ops[at], &mut answer);
        answer.words.unwrap_or_default()
    }));
    outcome.unwrap_or_else(|_| "it failed".to_owned())
}

/// The beginning of a long answer.
fn short(text: String) -> String {
    if text.len() < 600 { text } else { format!("{}...", text.chars().take(600).collect::<String>()) }
}

fn describe(set: &Set, seed: u64, script: &Script, at: usize, how: &str, agreeing: &[&str]) -> String {
    let length = script.ops.len() - 4;
    let mut text = format!(
        "{how}\n  set {} {:?}\n  class {}, seed {seed}, operation {at} of {}\n",
        set.name,
        set.options,
        script.class.name,
        script.ops.len()
    );
    if let Some(op) = script.ops.get(at) {
        text += &format!("  {op:?}\n  must answer  {}\n", short(script.explain(at)));
        text += &format!("  done again   {}\n", short(explain(set, seed, script, at)));
    }
    text += &format!("  sets that answered so: {agreeing:?}\n");
    let again = format!("KINGTIDE_SET={} KINGTIDE_SEED={seed} KINGTIDE_OPS={length}", set.name);
    text + &format!("  {again} cargo test -p kingtide-tests --test engine model::every_option_set")
}

/// Which sets to run, and how far.
struct Plan {
    sets: Vec<Set>,
    /// The first seed; each round takes the next one.
    seed: u64,
    /// Operations of a script.
    length: usize,
    rounds: u64,
    until: Option<Instant>,
}

impl Plan {
    fn from_environment() -> Plan {
        let full = kingtide_testkit::full();
        let today = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400);
        let seed = number("KINGTIDE_SEED").unwrap_or(if full { 1 } else { today });
        let mut sets = sets::all();
        let only = std::env::var("KINGTIDE_SET").ok();
        if let Some(name) = &only {
            sets.retain(|s| s.name == *name);
            assert!(!sets.is_empty(), "no such set");
        } else if !full {
            // Every eighth: within eight days each had its turn.
            let turn = seed as usize % 8;
            sets = sets.into_iter().enumerate().filter(|(i, _)| i % 8 == turn).map(|(_, s)| s).collect();
        }
        let minutes = number("KINGTIDE_MINUTES");
        let length = if full && only.is_none() { 12_500 } else { number("KINGTIDE_OPS").unwrap_or(6000) } as usize;
        let operations = number("KINGTIDE_OPS").unwrap_or(if full { 10_000_000 } else { length as u64 });
        let rounds = if only.is_some() { 1 } else { operations.div_ceil(length as u64) };
        let until = minutes.map(|m| Instant::now() + Duration::from_secs(m * 60));
        Plan { sets, seed, length, rounds, until }
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|end| Instant::now() >= end)
    }
}

type Scripts = Mutex<BTreeMap<(u64, &'static str), Arc<OnceLock<Arc<Script>>>>>;

/// The script of a class and seed, drawn by the first thread that needs it; those of seeds long past are forgotten.
fn script_of(scripts: &Scripts, class: &'static Class, seed: u64, length: usize) -> Arc<Script> {
    let cell = {
        let mut all = scripts.lock().unwrap();
        all.retain(|(s, _), _| *s + 1 >= seed);
        all.entry((seed, class.name)).or_default().clone()
    };
    cell.get_or_init(|| Arc::new(Script::new(class, seed, length))).clone()
}

#[derive(Default)]
struct Totals {
    operations: u64,
    scripts: BTreeMap<(u64, &'static str), u64>,
    counts: Counts,
    per_set: BTreeMap<String, (u64, Duration)>,
    /// Sets that agreed, by script.
    agreed: BTreeMap<(u64, &'static str), BTreeSet<String>>,
    failures: Vec<String>,
}

fn work(plan: &Plan, next: &AtomicUsize, scripts: &Scripts, totals: &Mutex<Totals>) {
    loop {
        let task = next.fetch_add(1, Ordering::Relaxed);
        let (round, set) = ((task / plan.sets.len()) as u64, &plan.sets[task % plan.sets.len()]);
        if round >= plan.rounds || plan.is_over() || !totals.lock().unwrap().failures.is_empty() {
            return;
        }
        if task.is_multiple_of(plan.sets.len()) && plan.rounds > 1 {
            eprintln!("round {} of {}, seed {}", round + 1, plan.rounds, plan.seed + round);
        }
        let seed = plan.seed + round;
        let script = script_of(scripts, set.class, seed, plan.length);
        let start = Instant::now();
        let outcome = run(set, seed, &script, usize::MAX);
        let key = (seed, set.class.name);
        if let Err((at, how)) = &outcome {
            let agreed = totals.lock().unwrap().agreed.get(&key).cloned().unwrap_or_default();
            let agreeing: Vec<&str> = agreed.iter().map(String::as_str).collect();
            let text = describe(set, seed, &script, *at, how, &agreeing);
            println!("{text}");
            totals.lock().unwrap().failures.push(text);
            continue;
        }
        let mut t = totals.lock().unwrap();
        t.operations += script.ops.len() as u64;
        t.scripts.insert(key, script.digest());
        let of_set = t.per_set.entry(set.name.clone()).or_default();
        of_set.0 += script.ops.len() as u64;
        of_set.1 += start.elapsed();
        t.agreed.entry(key).or_default().insert(set.name.clone());
        t.agreed.retain(|(s, _), _| *s + 2 > seed);
        outcome.unwrap_or_default().into_iter().for_each(|(k, n)| *t.counts.entry(k).or_default() += n);
    }
}

#[test]
fn every_option_set_gives_the_oracles_answers() {
    let plan = Plan::from_environment();
    println!("KINGTIDE_SEED={}, {} sets", plan.seed, plan.sets.len());
    let (next, scripts, totals) = (AtomicUsize::new(0), Scripts::default(), Mutex::new(Totals::default()));
    let start = Instant::now();
    // One more than there are cores: some wait for a real disk.
    let workers = number("KINGTIDE_WORKERS")
        .map_or_else(|| 1 + std::thread::available_parallelism().map_or(2, usize::from).min(8), |n| n as usize);
    std::thread::scope(|s| (0..workers).for_each(|_| drop(s.spawn(|| work(&plan, &next, &scripts, &totals)))));
    let t = totals.into_inner().unwrap();
    let seconds = start.elapsed().as_secs_f64();
    for ((seed, class), digest) in t.scripts.iter().take(26) {
        println!("class {class}, seed {seed}: all answers {digest:016x}");
    }
    println!("{:?}", t.counts);
    let mut slow: Vec<_> =
        t.per_set.iter().map(|(name, (n, time))| (n * 1_000_000 / (time.as_micros() as u64 + 1), name)).collect();
    slow.sort_unstable();
    println!("slowest, operations a second: {:?}", &slow[..slow.len().min(12)]);
    println!(
        "{} operations in {} option sets ({} to {} each), {} scripts, {seconds:.1} s, {:.0} a second, {} failures",
        t.operations,
        t.per_set.len(),
        t.per_set.values().map(|s| s.0).min().unwrap_or(0),
        t.per_set.values().map(|s| s.0).max().unwrap_or(0),
        t.scripts.len(),
        t.operations as f64 / seconds,
        t.failures.len(),
    );
    let counts = rare::counts();
    println!("{}", MODEL.report(&counts));
    assert!(t.failures.is_empty(), "{}", t.failures.join("\n"));
    if kingtide_testkit::full() && plan.sets.len() == SETS && t.per_set.len() == SETS {
        MODEL.check(&counts).unwrap_or_else(|never| panic!("{never}"));
    }
}

/// The sets vary every option of the table, and all live ones change during runs.
#[test]
fn every_option_of_the_table_is_varied() {
    let sets = sets::all();
    assert_eq!(sets.len(), SETS);
    for class in &sets::CLASSES {
        let n = sets.iter().filter(|s| s.class.name == class.name).count();
        assert!(n >= 10, "only {n} sets of class {}", class.name);
    }
    for row in sets::rows() {
        let shown = |set: &Set, n| {
            let options = set.open_options(n);
            options.family.get(row.name).or_else(|| options.db.get(row.name)).expect("an option of the table")
        };
        let used: BTreeSet<String> = sets.iter().flat_map(|s| [shown(s, 0), shown(s, 1)]).collect();
        let wanted = sets::values(row.name).len().max(2);
        assert!(used.len() >= wanted, "{}: only {used:?}", row.name);
    }
}
