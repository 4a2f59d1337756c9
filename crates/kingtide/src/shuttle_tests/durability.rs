//! Durable commits, and power cuts beside everything else.

use super::world::*;
use crate::Db;
use kingtide_base::rng::Rng;
use kingtide_testkit::scenarios;
use kingtide_vfs::{MemFs, Survival};
use std::sync::Arc;
use std::sync::Mutex as StdMutex;

scenarios! {
    /// A commit that was acknowledged with `Power` survives a power cut right after it.
    shuttle_durable_commits_survive => durable_commits;
    /// A power cut at any moment leaves a prefix of the commits over two families.
    shuttle_power_cut_leaves_a_prefix => power_cut;
}

fn cut(fs: &MemFs, survival: Survival, seed: u64) -> MemFs {
    fs.crash_clone(survival, &mut Rng::new(seed))
}

fn durable_commits() {
    let w = World::new();
    let cuts: Arc<StdMutex<Vec<(MemFs, String, u32)>>> = Arc::default();
    let writers: Vec<_> = (0..3)
        .map(|t| {
            let (db, fs, cuts) = (w.db.clone(), w.fs.clone(), cuts.clone());
            shuttle::thread::spawn(move || {
                let key = format!("key-{t}");
                for n in 1..=2 {
                    db.write_with(&mut batch(&[(db.default_family(), &key, n)]), &durable()).expect("write");
                    if t + n == 3 {
                        let left = cut(&fs, Survival::AllLost, 1);
                        cuts.lock().expect("cuts").push((left, key.clone(), n));
                    }
                }
            })
        })
        .collect();
    join(writers);
    for (left, key, n) in std::mem::take(&mut *cuts.lock().expect("cuts")) {
        let found = get(reopen(&left).default_family(), &key);
        assert!(found >= n, "{key}: {found} after {n} was acknowledged");
    }
}

/// Two writers count up, one in each of two families together with a counter of both; a third thread flushes and merges,
/// and the power is cut at any moment.
fn power_cut() {
    let w = World::new();
    w.db.create_family("other", family_options()).expect("create");
    let writer = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            let other = db.family("other").expect("family");
            for n in 1..=3 {
                match n {
                    2 => drop(other.put("two", value(n)).expect("put")),
                    _ => drop(db.write(batch(&[(db.default_family(), "a", n), (&other, "b", n)])).expect("write")),
                }
            }
        })
    };
    let cutter = {
        let (db, fs) = (w.db.clone(), w.fs.clone());
        shuttle::thread::spawn(move || {
            let survival = Survival::ALL[shuttle::rand::Rng::gen_range(&mut shuttle::rand::thread_rng(), 0..4)];
            let before = db.latest_sequence();
            let left = cut(&fs, survival, before + 7);
            check_prefix(&left, survival);
        })
    };
    join([writer, cutter, churn(&w.db, 2)]);
    check_prefix(&cut(&w.fs, Survival::RandomBlocks, 3), Survival::RandomBlocks);
    assert_eq!(get(w.killed().default_family(), "a"), 3);
}

/// The commits were a = b = 1; two = 2; a = b = 3.
fn check_prefix(left: &MemFs, survival: Survival) {
    let found: Db = reopen(left);
    let other = found.family("other").expect("family");
    let seen = (get(found.default_family(), "a"), get(&other, "b"), get(&other, "two"));
    let prefixes = [(0, 0, 0), (1, 1, 0), (1, 1, 2), (3, 3, 2)];
    assert!(prefixes.contains(&seen), "{seen:?} after {survival:?}");
}
