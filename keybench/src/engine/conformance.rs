//! What every adapter must do, whatever its engine: all verbs against a map in memory, on each engine that this machine
//! has.

use super::registry::open;
use super::txn::{Isolation, Step, Transactions, TxnMode};
use super::{Bounds, Cursor, Engine, EngineOptions, NAMES, Session, keeps_data};
use crate::error::{Error, Result};
use crate::process::{fresh_dir, remove_dir};
use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const SEED: u64 = 20_261;

/// A directory that is gone when the test is over, unless it failed.
struct Dir(PathBuf);

impl Dir {
    fn new(test: &str, engine: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("keybench-{test}-{engine}-{}", std::process::id()));
        fresh_dir(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            remove_dir(&self.0).unwrap();
        }
    }
}

/// Every engine that keeps data and is on this machine, open in a new directory.
fn each_engine(test: &str, options: &EngineOptions, mut check: impl FnMut(&'static str, &Path, Box<dyn Engine>)) {
    for &name in NAMES.iter().filter(|n| keeps_data(n)) {
        let dir = Dir::new(test, name);
        match open(name, &dir.0, options) {
            Ok(engine) => check(name, &dir.0, engine),
            Err(Error::Unavailable(why)) => println!("{name} is left out: {why}"),
            Err(e) => panic!("{name}: {e}"),
        }
    }
}

fn get(session: &mut dyn Session, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = None;
    let found = session.get(key, &mut |v| value = Some(v.to_vec())).unwrap();
    assert_eq!(found, value.is_some());
    value
}

/// What a cursor meets from its place on, and before `upper`.
fn rest(cursor: &mut dyn Cursor, mut valid: bool, upper: Option<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut out = Vec::new();
    while valid && upper.is_none_or(|u| cursor.key().unwrap() < u) {
        let (key, value) = cursor.entry().unwrap();
        out.push((key.to_vec(), value.to_vec()));
        valid = cursor.next().unwrap();
    }
    out
}

fn all(session: &mut dyn Session) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut cursor = session.cursor(Bounds::default()).unwrap();
    let valid = cursor.first().unwrap();
    rest(&mut *cursor, valid, None)
}

fn entries(model: &Model) -> Vec<(Vec<u8>, Vec<u8>)> {
    model.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Few keys, so that they meet again; one to eight bytes, all values of a byte among them.
fn key(rng: &mut Rng) -> Vec<u8> {
    let mut key = vec![0; 1 + rng.below(8) as usize];
    key[0] = rng.below(40) as u8 * 6;
    if key.len() > 1 {
        let last = key.len() - 1;
        key[last] = rng.below(3) as u8 * 127;
    }
    key
}

fn value(rng: &mut Rng) -> Vec<u8> {
    // Now and then longer than a page, and now and then nothing.
    let len = match rng.below(20) {
        0 => 0,
        1 => 5_000 + rng.below(5_000),
        _ => rng.below(200),
    };
    let mut value = vec![0; len as usize];
    rng.fill(&mut value);
    value
}

/// One random operation on engine and model.
fn step(name: &str, session: &mut dyn Session, model: &mut Model, rng: &mut Rng) {
    match rng.below(10) {
        0..3 => {
            let (k, v) = (key(rng), value(rng));
            session.put(&k, &v).unwrap();
            model.insert(k, v);
        }
        3 => {
            let rows: Vec<_> = (0..rng.below(30)).map(|_| (key(rng), value(rng))).collect();
            let lent: Vec<(&[u8], &[u8])> = rows.iter().map(|(k, v)| (&k[..], &v[..])).collect();
            session.put_batch(&lent).unwrap();
            model.extend(rows);
        }
        4 => {
            let k = key(rng);
            session.delete(&k).unwrap();
            model.remove(&k);
        }
        5 => {
            let gone: Vec<_> = (0..rng.below(10)).map(|_| key(rng)).collect();
            session.delete_batch(&gone.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
            gone.iter().for_each(|k| drop(model.remove(k)));
        }
        6 => {
            let (a, b) = (key(rng), key(rng));
            let (start, end) = if a < b { (a, b) } else { (b, a) };
            // Rarely much, or nothing would be left for the others.
            let end = if rng.below(8) == 0 { end } else { [&start[..], b"~"].concat() };
            match session.delete_range(&start, &end) {
                Ok(()) => model.retain(|k, _| *k < start || *k >= end),
                Err(Error::Unsupported(_)) => assert!(["rocksdb", "tidesdb", "fjall"].contains(&name)),
                Err(e) => panic!("{name}: {e}"),
            }
        }
        7 => {
            let k = key(rng);
            assert_eq!(get(session, &k).as_ref(), model.get(&k), "{name}: {}", k.escape_ascii());
        }
        8 => {
            let keys: Vec<_> = (0..rng.below(20)).map(|_| key(rng)).collect();
            let mut answers = vec![None; keys.len()];
            let each = &mut |i: usize, v: Option<&[u8]>| {
                assert!(answers[i].replace(v.map(<[u8]>::to_vec)).is_none(), "{name}: {i} was answered twice");
            };
            session.multi_get(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>(), each).unwrap();
            for (k, answer) in keys.iter().zip(answers) {
                assert_eq!(answer.expect("every key is answered").as_ref(), model.get(k), "{name}");
            }
        }
        _ => {
            let from = key(rng);
            let upper = (rng.below(2) == 0).then(|| key(rng)).filter(|u| *u > from);
            let mut cursor = session.cursor(Bounds { lower: Some(&from), upper: upper.as_deref() }).unwrap();
            let valid = cursor.seek(&from).unwrap();
            let met = rest(&mut *cursor, valid, upper.as_deref());
            let inside = |k: &[u8]| k >= &from[..] && upper.as_ref().is_none_or(|u| k < &u[..]);
            let expected: Vec<_> = entries(model).into_iter().filter(|(k, _)| inside(k)).collect();
            assert_eq!(met.len(), expected.len(), "{name}: from {}", from.escape_ascii());
            assert!(met == expected, "{name}: from {}", from.escape_ascii());
        }
    }
}

#[test]
fn every_verb_agrees_with_a_map() {
    each_engine("verbs", &EngineOptions::default(), |name, dir, mut engine| {
        let (mut model, mut rng) = (Model::new(), Rng::new(SEED));
        let rounds = 4;
        for round in 0..rounds {
            let mut session = engine.session().unwrap();
            for _ in 0..400 {
                step(name, &mut *session, &mut model, &mut rng);
            }
            match round {
                0 => engine.flush().unwrap(),
                1 => engine.compact().unwrap(),
                _ => {}
            }
            assert!(all(&mut *session) == entries(&model), "{name}: round {round}");
            drop(session);
            if name != "memory" {
                engine.close().unwrap();
                engine = open(name, dir, &EngineOptions::default()).unwrap();
            }
        }
        println!("{name} {}: {} steps, seed {SEED}, {} keys left", engine.version(), 400 * rounds, model.len());
        assert!(!engine.durability().is_empty() && !engine.version().is_empty());
        assert!(engine.stats().iter().all(|(n, v)| !n.is_empty() && v.is_finite()), "{name}");
        engine.close().unwrap();
    });
}

#[test]
fn cursors_keep_what_they_began_with() {
    each_engine("cursors", &EngineOptions::default(), |name, _, engine| {
        // The reference walks the map as it is.
        let fixed = name != "memory";
        let mut session = engine.session().unwrap();
        session.put_batch(&[(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]).unwrap();
        let mut cursor = session.cursor(Bounds::default()).unwrap();
        assert!(cursor.first().unwrap());
        engine.session().unwrap().put(b"bb", b"2").unwrap();
        session.delete(b"c").unwrap();
        let valid = cursor.next().unwrap();
        let met: Vec<_> = rest(&mut *cursor, valid, None).into_iter().map(|(k, _)| k).collect();
        assert!(met == [&b"b"[..], b"c"] || !fixed, "{name}: {met:?}");
        assert!(
            !cursor.seek(b"d").unwrap() && cursor.first().unwrap(),
            "{name}: a cursor that met its end moves again"
        );
        drop(cursor);
        let met: Vec<_> = all(&mut *session).into_iter().map(|(k, _)| k).collect();
        assert_eq!(met, [&b"a"[..], b"b", b"bb"], "{name}");
    });
}

#[test]
fn sessions_of_many_threads_share_a_store() {
    each_engine("threads", &EngineOptions::default(), |name, _, engine| {
        let engine = &*engine;
        std::thread::scope(|scope| {
            for t in 0..4u8 {
                scope.spawn(move || {
                    let mut session = engine.session().unwrap();
                    for i in 0..100u8 {
                        session.put(&[t, i], &[i]).unwrap();
                        assert_eq!(get(&mut *session, &[t, i]), Some(vec![i]), "{name}");
                    }
                });
            }
        });
        assert_eq!(all(&mut *engine.session().unwrap()).len(), 400, "{name}");
    });
}

#[test]
fn engines_have_their_own_sizes_where_none_are_shared() {
    fn of(options: &EngineOptions, check: impl Fn(&str, &BTreeMap<String, String>)) {
        each_engine("own-sizes", options, |name, _, engine| {
            check(name, &engine.effective_options().into_iter().collect());
            let mut session = engine.session().unwrap();
            session.put(b"k", b"v").unwrap();
            assert_eq!(get(&mut *session, b"k"), Some(b"v".to_vec()), "{name}");
        });
    }
    let options = EngineOptions { memtable_size: None, block_cache_size: None, ..EngineOptions::default() };
    of(&options, |name, shown| {
        let own = match name {
            "kingtide" | "kingtide-c" => [("memtable_size", "67108864"), ("block_cache_size", "67108864")],
            "rocksdb" => [("write_buffer_size", "67108864"), ("block_cache", "33554432")],
            "tidesdb" => [("memtable_write_buffer_size", "67108864"), ("block_cache_size", "67108864")],
            "fjall" => [("max_memtable_size", "67108864"), ("cache_size", "33554432")],
            "redb" => [("cache_size", "1073741824"), ("compression", "none")],
            "sqlite" => [("wal_autocheckpoint", "1000"), ("cache_size", "1.95 MiB a connection")],
            _ => return,
        };
        own.iter().for_each(|(option, value)| {
            assert_eq!(shown.get(*option).map(String::as_str), Some(*value), "{name} {option}")
        });
    });
    let options =
        EngineOptions { memtable_size: Some(1 << 20), block_cache_size: Some(9 << 20), ..EngineOptions::default() };
    of(&options, |name, shown| {
        let caches = ["block_cache_size", "block_cache", "cache_size"];
        let cache = caches.iter().find_map(|option| shown.get(*option));
        let known = ["9437184", "9.00 MiB a connection"];
        assert!(cache.is_none_or(|c| known.contains(&c.as_str())) || name == "lmdb", "{name}");
    });
}

fn done<T>(step: Result<Step<T>>) -> T {
    match step.unwrap() {
        Step::Done(t) => t,
        Step::Conflict => panic!("no other session writes"),
    }
}

#[test]
fn transactions_are_whole_and_leave_no_trace_when_rolled_back() {
    for mode in [TxnMode::Optimistic, TxnMode::Locking] {
        let how = Transactions { isolation: Isolation::Snapshot, mode };
        let options = EngineOptions { transactions: Some(how), ..EngineOptions::default() };
        each_engine("txns", &options, |name, _, engine| {
            let mut session = engine.session().unwrap();
            session.put_batch(&[(b"a", b"1"), (b"b", b"1")]).unwrap();
            match session.begin(how) {
                Err(Error::Unsupported(why)) => return println!("{name}: {why}"),
                begun => begun.unwrap(),
            }
            done(session.txn_put(b"c", b"2"));
            done(session.txn_delete(b"a"));
            assert!(!done(session.txn_get(b"a", &mut |_| {})), "{name}");
            let own = |v: &[u8]| assert_eq!(v, b"2", "{name}");
            match session.txn_get_for_update(b"c", &mut |v| own(v)) {
                Err(Error::Unsupported(_)) => assert!(done(session.txn_get(b"c", &mut |v| own(v))), "{name}"),
                step => assert!(done(step), "{name}"),
            }
            let mut cursor = done(session.txn_cursor(Bounds::default()));
            let valid = cursor.first().unwrap();
            let met: Vec<_> = rest(&mut *cursor, valid, None).into_iter().map(|(k, _)| k).collect();
            assert_eq!(met, [b"b", b"c"], "{name}");
            drop(cursor);
            let mut other = engine.session().unwrap();
            assert_eq!(get(&mut *other, b"c"), None, "{name}: nothing is seen before its commit");
            session.rollback().unwrap();
            assert_eq!(all(&mut *other).len(), 2, "{name}");
            session.begin(how).unwrap();
            done(session.txn_put(b"d", b"3"));
            done(session.commit());
            assert!(session.commit().is_err(), "{name}: there is none any more");
            assert_eq!(get(&mut *other, b"d"), Some(b"3".to_vec()), "{name}");
        });
    }
}

fn lmdb(test: &str, extra: &[(&str, &str)]) -> (Dir, Box<dyn Engine>) {
    let extra = extra.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let dir = Dir::new(test, "lmdb");
    let engine = open("lmdb", &dir.0, &EngineOptions { extra, ..EngineOptions::default() }).unwrap();
    (dir, engine)
}

#[test]
fn limits_of_lmdb_are_told_in_words() {
    let (_dir, engine) = lmdb("limits", &[("map_size", "1M")]);
    let mut session = engine.session().unwrap();
    session.put(&[7; 511], b"v").unwrap();
    for bad in [&[7; 512][..], b""] {
        let e = session.put(bad, b"v").unwrap_err();
        assert!(matches!(&e, Error::Unsupported(m) if m.contains("1 to 511")), "{e}");
        assert_eq!(get(&mut *session, bad), None);
        session.delete(bad).unwrap();
    }
    let full = (0..1_000u32).find_map(|i| session.put(&i.to_be_bytes(), &[0; 4000]).err()).expect("a megabyte is full");
    assert!(full.to_string().contains("--opt lmdb.map_size=SIZE"), "{full}");
    assert_eq!(get(&mut *session, &[7; 511]), Some(b"v".to_vec()), "what was there is still there");
    drop(session);
    engine.close().unwrap();
}

#[test]
fn a_transaction_of_lmdb_excludes_what_would_wait_for_it() {
    let (_dir, engine) = lmdb("alone", &[]);
    let mut session = engine.session().unwrap();
    let how = Transactions { isolation: Isolation::Snapshot, mode: TxnMode::Locking };
    session.begin(how).unwrap();
    assert!(matches!(session.put(b"k", b"v"), Err(Error::Unsupported(_))));
    let mut cursor = done(session.txn_cursor(Bounds::default()));
    done(session.txn_put(b"k", b"v"));
    assert!(cursor.seek(b"").unwrap() && cursor.key().unwrap() == b"k");
    assert!(session.commit().unwrap_err().to_string().contains("while a cursor uses it"));
    drop(cursor);
    // One that is forgotten is rolled back by the next.
    session.begin(how).unwrap();
    session.rollback().unwrap();
    session.put(b"k", b"w").unwrap();
    assert_eq!(all(&mut *session), [(b"k".to_vec(), b"w".to_vec())]);
}

#[test]
fn options_of_lmdb_are_a_closed_set() {
    let dir = Dir::new("options", "lmdb");
    for (sync, extra, flags, words) in [
        (false, &[][..], "nosync", "survive the process"),
        (true, &[], "none", "survive a power cut"),
        (true, &[("nometasync", "1")], "nometasync", "take back the last"),
        (
            true,
            &[("writemap", "1"), ("mapasync", "yes"), ("max_readers", "9")],
            "writemap+mapasync",
            "survive the process",
        ),
        (
            false,
            &[("nosync", "0"), ("nordahead", "on"), ("nomeminit", "1")],
            "nordahead+nomeminit",
            "survive a power cut",
        ),
    ] {
        let extra = extra.iter().map(|(k, v): &(&str, &str)| ((*k).into(), (*v).into())).collect();
        let engine = open("lmdb", &dir.0, &EngineOptions { sync, extra, ..EngineOptions::default() }).unwrap();
        assert!(engine.effective_options().contains(&("flags".into(), flags.into())), "{flags}");
        assert!(engine.durability().contains(words), "{flags}");
        engine.session().unwrap().put(b"k", flags.as_bytes()).unwrap();
        engine.close().unwrap();
    }
    for (key, value, wanted) in [
        ("map_sice", "1G", "did you mean 'map_size'"),
        ("map_size", "1Q", "lmdb option map_size: "),
        ("max_readers", "0", "use 1 to"),
        ("nosync", "maybe", "neither true nor false"),
    ] {
        let e = super::registry::check_option("lmdb", key, value).unwrap_err();
        assert!(e.exit_code() == 2 && e.to_string().contains(wanted), "{e}");
    }
}

/// Names of options that no engine has, values that an option cannot have, and those that it can.
#[cfg(all(feature = "fjall", feature = "redb", feature = "sqlite"))]
#[test]
fn options_of_built_in_peers_are_closed_sets() {
    for (engine, key, value, wanted) in [
        ("fjall", "worker_thread", "2", "did you mean 'worker_threads'"),
        ("fjall", "max_journaling_size", "1M", "use at least"),
        ("fjall", "data_block_size", "many", "fjall option data_block_size: "),
        ("redb", "quick_repairs", "1", "did you mean 'quick_repair'"),
        ("redb", "two_phase_commit", "maybe", "neither true nor false"),
        ("sqlite", "page_sice", "4K", "did you mean 'page_size'"),
        ("sqlite", "page_size", "5000", "power of two"),
        ("sqlite", "synchronous", "extra", "use off, normal or full"),
    ] {
        let e = super::registry::check_option(engine, key, value).unwrap_err();
        assert!(e.exit_code() == 2 && e.to_string().contains(wanted), "{engine}: {e}");
    }
    for (engine, extra, shown) in [
        ("fjall", ("data_block_size", "16K"), ("data_block_size", "16384")),
        ("redb", ("quick_repair", "on"), ("quick_repair", "true")),
        ("sqlite", ("wal_autocheckpoint", "1000"), ("wal_autocheckpoint", "1000")),
        ("sqlite", ("synchronous", "OFF"), ("synchronous", "off")),
    ] {
        let dir = Dir::new("options", engine);
        let extra = vec![(extra.0.to_owned(), extra.1.to_owned())];
        let opened = open(engine, &dir.0, &EngineOptions { extra, ..EngineOptions::default() }).unwrap();
        let options = opened.effective_options();
        assert!(options.contains(&(shown.0.into(), shown.1.into())), "{engine}: {options:?}");
        opened.close().unwrap();
    }
    let zstd = EngineOptions { compression: super::Compression::Zstd, ..EngineOptions::default() };
    let e = open("fjall", Path::new("/nowhere"), &zstd).err().unwrap();
    assert!(e.to_string().contains("compression zstd"), "{e}");
}

/// What a comparison of settings says of engines that were opened with the same options, if all are on this machine.
fn differences(test: &str, engines: &[&str], options: &EngineOptions) -> Option<Vec<String>> {
    let mut opened = Vec::new();
    for name in engines {
        let dir = Dir::new(test, name);
        let engine = match open(name, &dir.0, options) {
            Ok(engine) => engine,
            Err(Error::Unavailable(why)) => {
                println!("{name} is left out: {why}");
                return None;
            }
            Err(e) => panic!("{name}: {e}"),
        };
        opened.push((*name, engine.effective_options(), engine.durability()));
        engine.close().unwrap();
    }
    let opened: Vec<_> = opened.iter().map(|(name, o, d)| (*name, o.as_slice(), d.as_str())).collect();
    let differences = crate::results::equality::differences(&opened);
    Some(differences.iter().map(ToString::to_string).collect())
}

#[test]
fn engines_that_can_be_set_up_alike_are() {
    let none = EngineOptions { compression: super::Compression::None, ..EngineOptions::default() };
    for peer in ["kingtide-c", "rocksdb", "tidesdb", "fjall"] {
        for options in [&EngineOptions::default(), &none, &EngineOptions { sync: true, ..EngineOptions::default() }] {
            // Its own tests say how it differs without fsync.
            if peer == "tidesdb" && !options.sync {
                continue;
            }
            let told = differences("alike", &["kingtide", peer], options);
            assert!(told.as_ref().is_none_or(Vec::is_empty), "{peer}: {told:?}");
        }
    }
}

#[cfg(all(feature = "fjall", feature = "redb", feature = "sqlite"))]
#[test]
fn engines_that_cannot_be_set_up_alike_are_told() {
    let none = EngineOptions { compression: super::Compression::None, ..EngineOptions::default() };
    let synced = EngineOptions { sync: true, ..none.clone() };
    let told = |peer, options| differences("unlike", &["kingtide", peer], options).unwrap();
    let redb = "durability differs: kingtide end of the process, redb closing only";
    assert_eq!((told("redb", &none), told("redb", &synced)), (vec![redb.to_owned()], vec![]));
    let sqlite = "block cache differs: kingtide 64.0 MiB, sqlite 64.0 MiB a connection".to_owned();
    assert_eq!((told("sqlite", &none), told("sqlite", &synced)), (vec![sqlite.clone()], vec![sqlite.clone()]));
    let compression = "compression differs: kingtide lz4, sqlite none".to_owned();
    assert_eq!(told("sqlite", &EngineOptions::default()), [compression, sqlite]);
}
