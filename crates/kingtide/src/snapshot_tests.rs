//! Moments of the past against an oracle that remembers all of them, beside flushes and merges.

use crate::{ColumnFamily, Db, ErrorKind, Options, ReadOptions, Snapshot, WriteBatch};
use kingtide_base::rng::{Rng, entropy};
use kingtide_base::sync::atomic::{AtomicBool, Ordering};
use kingtide_vfs::MemFs;
use std::collections::BTreeMap;
use std::sync::Arc;

type State = BTreeMap<Vec<u8>, Vec<u8>>;

fn full() -> bool {
    std::env::var_os("KINGTIDE_FULL").is_some()
}

fn options(fs: &Arc<MemFs>, manual_jobs: bool) -> Options {
    let mut options = Options { fs: Some(fs.clone()), manual_jobs, ..Options::default() };
    options.db.wal_segment_size = 65_536;
    options.family.memtable_size = 65_536;
    options.family.l0_trigger = 2;
    options.family.value_threshold = 100;
    options
}

fn state_at(family: &ColumnFamily, snapshot: &Snapshot) -> State {
    let mut it = family.cursor_with(ReadOptions { snapshot: Some(snapshot), ..ReadOptions::default() }).unwrap();
    let mut state = State::new();
    it.seek_to_first();
    while it.valid() {
        state.insert(it.key().to_vec(), it.value().unwrap().to_vec());
        it.next();
    }
    it.status().unwrap();
    state
}

/// Every sequence number from the oldest readable one on reads exactly as it was, gets and iterators alike; below it
/// there is `TooOld`, except where a snapshot holds on to it.
#[test]
fn every_moment_reads_as_it_was_or_is_too_old() {
    let seed = entropy();
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    for _ in 0..if full() { 60 } else { 4 } {
        let fs = Arc::new(MemFs::new());
        let mut db = Db::open("/db", options(&fs, true)).unwrap();
        // State after every sequence number: each operation has one.
        let mut states = vec![State::new()];
        let mut held: Vec<Snapshot> = Vec::new();
        let mut named = 0;
        for step in 0..600 {
            write(&db, &mut rng, &mut states);
            match rng.below(60) {
                0 | 1 => db.flush().unwrap(),
                2 => db.compact().unwrap(),
                3..8 => drop(db.run_one_job().unwrap()),
                8..11 => held.push(db.snapshot()),
                11 => held.push(db.snapshot_at(db.oldest_readable_sequence()).unwrap()),
                12 => {
                    named += 1;
                    db.create_named_snapshot(&format!("number {named}")).unwrap();
                }
                13..16 if !held.is_empty() => drop(held.swap_remove(rng.below(held.len() as u64) as usize)),
                16 => {
                    db.named_snapshots().iter().take(1).for_each(|(name, _)| db.drop_named_snapshot(name).unwrap());
                }
                17 if rng.one_in(4) => {
                    held.clear();
                    db.close().unwrap();
                    db = Db::open("/db", options(&fs, true)).unwrap();
                    assert!(db.named_snapshots().is_empty());
                    assert_eq!(db.oldest_readable_sequence(), db.latest_sequence());
                }
                18..21 => check(&db, &states, &held, &mut rng, step),
                _ => {}
            }
        }
    }
}

fn write(db: &Db, rng: &mut Rng, states: &mut Vec<State>) {
    let mut batch = WriteBatch::new();
    for _ in 0..1 + rng.below(4) {
        let mut state = states.last().unwrap().clone();
        let key = format!("k{:02}", rng.below(20)).into_bytes();
        match rng.below(8) {
            0 | 1 => {
                batch.delete(db.default_family(), &key).unwrap();
                state.remove(&key);
            }
            2 => {
                let end = format!("k{:02}", rng.below(20)).into_bytes();
                if key >= end {
                    continue;
                }
                batch.delete_range(db.default_family(), &key..&end).unwrap();
                state.retain(|k, _| *k < key || *k >= end);
            }
            _ => {
                let value = format!("{:-<1$}", states.len(), rng.below(200) as usize).into_bytes();
                batch.put(db.default_family(), &key, &value).unwrap();
                state.insert(key, value);
            }
        }
        states.push(state);
    }
    if !batch.is_empty() {
        assert_eq!(db.write(batch).unwrap(), states.len() as u64 - 1);
    }
}

fn check(db: &Db, states: &[State], held: &[Snapshot], rng: &mut Rng, step: usize) {
    let family = db.default_family();
    let (oldest, newest) = (db.oldest_readable_sequence(), db.latest_sequence());
    assert_eq!(db.snapshot_at(newest + 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let held_at = |seq| held.iter().any(|s| s.sequence() == seq) || db.named_snapshots().iter().any(|n| n.1 == seq);
    for seq in oldest.saturating_sub(50)..=newest {
        match db.snapshot_at(seq) {
            Ok(s) => {
                assert!(seq >= oldest || held_at(seq));
                assert_eq!(state_at(family, &s), states[seq as usize], "step {step}, at {seq}");
                let key = format!("k{:02}", rng.below(20)).into_bytes();
                let found = s.of(family).get(&key).unwrap().map(|v| v.to_vec());
                assert_eq!(found.as_ref(), states[seq as usize].get(&key), "step {step}, at {seq}");
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::TooOld);
                assert!(seq < oldest && !held_at(seq) && e.to_string().contains(&oldest.to_string()), "{e}");
            }
        }
    }
    for s in held {
        assert_eq!(state_at(family, s), states[s.sequence() as usize], "step {step}, held at {}", s.sequence());
    }
}

/// Transactions' slots beside writers and background flushes and merges: what is visible at a pinned number stays.
#[test]
fn pinned_versions_are_never_lost() {
    const KEYS: u32 = 16;
    let rounds = if full() { 20_000 } else { 1_000 };
    let db = Db::open("/db", options(&Arc::new(MemFs::new()), false)).unwrap();
    let stop = AtomicBool::new(false);
    let key = |i: u32| format!("key{i}").into_bytes();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Every batch sets all keys to its number, so every moment shows one number.
            let mut batch = WriteBatch::new();
            for n in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                batch.clear();
                let value = [&n.to_be_bytes()[..], &[b'v'; 150]].concat();
                (0..KEYS).for_each(|i| batch.put(db.default_family(), &key(i), &value).unwrap());
                db.write_with(&mut batch, &crate::WriteOptions::default()).unwrap();
                if n % 40 == 0 {
                    db.default_family().flush().unwrap();
                }
            }
        });
        let readers: Vec<_> = (0..3)
            .map(|r| {
                let (db, key) = (&db, &key);
                scope.spawn(move || {
                    let (list, family) = (&db.inner().snapshots, db.default_family());
                    let slot = list.claim_slot().unwrap();
                    let mut rng = Rng::new(r);
                    for _ in 0..rounds {
                        let seq = list.pin(slot);
                        let number = |i| {
                            // The view first, as in every read.
                            let view = family.inner().view.load();
                            let found = crate::read::get(&view, &key(i), seq, &family.inner().reads).unwrap();
                            found.map(|v| u64::from_be_bytes(v[..8].try_into().unwrap()))
                        };
                        let expected = (seq / KEYS as u64).checked_sub(1);
                        for _ in 0..1 + rng.below(8) {
                            assert_eq!(number(rng.below(KEYS as u64) as u32), expected, "at {seq}");
                            if rng.one_in(20) {
                                std::thread::sleep(std::time::Duration::from_millis(1));
                            }
                        }
                        if rng.one_in(2) {
                            list.unpin(slot);
                        }
                    }
                    list.release_slot(slot);
                })
            })
            .collect();
        readers.into_iter().for_each(|r| r.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    assert!(db.stats().get("compactions").unwrap() > 0 && db.stats().get("flushes").unwrap() > 3);
    assert_eq!(db.inner().snapshots.count(), 0);
    db.close().unwrap();
}

/// A cursor shows all that was committed up to the number that it states, even if its memtable is sealed, and the next one written,
/// while it is made.
#[test]
fn a_view_has_all_up_to_the_number_that_it_is_read_at() {
    let db = Db::open("/db", options(&Arc::new(MemFs::new()), true)).unwrap();
    let family = db.default_family().inner().clone();
    db.put("first", "1").unwrap();
    let turns = std::cell::Cell::new(0);
    let seq = || {
        turns.set(turns.get() + 1);
        if turns.get() == 1 {
            db.inner().seal_memtable(&mut db.inner().commit.lock(), &family);
            db.put("second", "2")?;
        }
        Ok(db.inner().snapshots.visible())
    };
    let (view, seq) = family.acquire_view(|v| v.load_full(), seq).unwrap();
    assert_eq!(seq, db.snapshot().sequence());
    let found = crate::read::get(&view, b"second", seq, &family.reads).unwrap();
    assert_eq!(found.as_deref(), Some(&b"2"[..]), "it was committed with number {seq}");
    assert_eq!(turns.get(), 2);
}

/// Nor does a follower state the number of a state that it is catching up with before it shows that.
#[test]
fn a_view_of_a_follower_has_all_up_to_the_number_that_it_is_read_at() {
    let fs = Arc::new(MemFs::new());
    let db = Db::open("/db", options(&fs, true)).unwrap();
    db.put("first", "1").unwrap();
    let follower = Db::open_read_only("/db", options(&fs, true)).unwrap();
    let family = follower.default_family().inner().clone();
    db.put("second", "2").unwrap();
    let turns = std::cell::Cell::new(0);
    let seq = || {
        turns.set(turns.get() + 1);
        if turns.get() == 1 {
            follower.try_catch_up()?;
        }
        Ok(follower.inner().snapshots.visible())
    };
    let (view, seq) = family.acquire_view(|v| v.load_full(), seq).unwrap();
    let found = crate::read::get(&view, b"second", seq, &family.reads).unwrap();
    assert_eq!((found.as_deref(), seq), (Some(&b"2"[..]), db.latest_sequence()));

    // Nor in the middle of that.
    family.begin_exchange();
    std::thread::scope(|scope| {
        let reader =
            scope.spawn(|| family.acquire_view(|v| v.load_full(), || Ok(follower.inner().snapshots.visible())));
        db.put("second", "3").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
        follower.try_catch_up().unwrap();
        let (view, seq) = reader.join().unwrap().unwrap();
        let found = crate::read::get(&view, b"second", seq, &family.reads).unwrap();
        assert_eq!((found.as_deref(), seq), (Some(&b"3"[..]), db.latest_sequence()));
    });
}
