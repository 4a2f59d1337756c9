//! What an open does with the log of the one before: it makes durable what it read, each segment once, and before anything
//! builds on it.

use kingtide::vfs::{Fs, MemFs, Survival, WriteOp};
use kingtide::{Db, Durability, Options, WriteBatch, WriteOptions};
use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const COMMITS: u32 = 1500;
/// Those up to here were acknowledged as surviving a power cut.
const DURABLE: u32 = 700;

fn options(fs: &MemFs, memory: u64) -> Options {
    let mut o = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
    o.db.wal_segment_size = 64 << 10;
    o.db.block_cache_size = 1 << 20;
    o.db.memtable_budget = memory;
    o.family.memtable_size = 64 << 10;
    o
}

const PLENTY: u64 = 8 << 20;
/// So little that recovery has to flush.
const SCARCE: u64 = 128 << 10;

/// A database that was not closed, with commits to two families in turn.
fn written() -> (MemFs, Db) {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs, PLENTY)).unwrap();
    let families = [db.default_family().clone(), db.create_family("other", options(&fs, 0).family).unwrap()];
    for i in 0..COMMITS {
        let mut batch = WriteBatch::new();
        batch.put(&families[i as usize % 2], &i.to_be_bytes(), &[7; 150]).unwrap();
        let durability = if i == DURABLE { Durability::Power } else { Durability::Process };
        db.write_with(&mut batch, &WriteOptions::new().durability(durability)).unwrap();
    }
    (fs, db)
}

fn segments(fs: &MemFs) -> Vec<PathBuf> {
    let names = fs.list(Path::new("db")).unwrap();
    names.iter().filter(|n| n.ends_with(".wal")).map(|n| Path::new("db").join(n)).collect()
}

/// How many commits there are, which must be the first ones.
fn commits(db: &Db, what: &str) -> u32 {
    let mut keys: Vec<u32> = Vec::new();
    for family in db.families().iter().map(|name| db.family(name).unwrap()) {
        keys.extend(family.iter().map(|e| u32::from_be_bytes(e.unwrap().key[..].try_into().unwrap())));
    }
    keys.sort_unstable();
    assert!(keys.iter().copied().eq(0..keys.len() as u32), "{what}: commits are missing among {} others", keys.len());
    keys.len() as u32
}

/// Opens, and counts the syncs of each segment until the open returns.
fn syncs_of_open(fs: &MemFs, memory: u64) -> (Db, BTreeMap<PathBuf, u32>) {
    let counts = Arc::new(Mutex::new(BTreeMap::new()));
    let counted = counts.clone();
    fs.on_write(Some(Box::new(move |b| {
        if b.op == WriteOp::Sync {
            *counted.lock().unwrap().entry(b.path.to_owned()).or_insert(0) += 1;
        }
    })));
    let db = Db::open("db", options(fs, memory)).unwrap();
    fs.on_write(None);
    let counts = counts.lock().unwrap().clone();
    (db, counts)
}

/// Recovery and the log synced them both, so each segment twice, and thrice when recovery had to flush.
#[test]
fn each_segment_of_an_earlier_open_is_synced_once() {
    for (how, memory) in [("killed", PLENTY), ("killed", SCARCE), ("cut", PLENTY), ("cut", SCARCE), ("closed", PLENTY)]
    {
        let (fs, db) = written();
        let left = match how {
            "killed" => fs.kill_clone(),
            "cut" => fs.crash_clone(Survival::AllKept, &mut Rng::new(1)),
            _ => {
                db.close().unwrap();
                fs.clone()
            }
        };
        let mut of_log = segments(&left);
        if how != "closed" {
            assert!(of_log.len() > 3, "{} segments", of_log.len());
            of_log.pop(); // the last may be a spare, which has no part in the log
        }
        let (db, syncs) = syncs_of_open(&left, memory);
        let flushed = syncs.keys().any(|p| p.extension().is_some_and(|e| e == "klog"));
        assert_eq!(flushed, memory == SCARCE, "{how}: whether recovery flushed");
        let once = of_log.iter().all(|s| syncs.get(s) == Some(&1));
        assert!(once, "{how}, {memory} bytes of memory: {of_log:?} synced so: {syncs:?}");
        assert_eq!(commits(&db, how), COMMITS);
    }
}

/// A power cut at any moment of a recovery leaves a prefix with all that was durable, and one behind it what it has shown.
#[test]
fn a_power_cut_during_recovery_takes_nothing_acknowledged() {
    for memory in [PLENTY, SCARCE] {
        let killed = written().0.kill_clone();
        let cuts = Arc::new(Mutex::new(Vec::new()));
        let taken = cuts.clone();
        killed.on_write(Some(Box::new(move |b| {
            for model in [Survival::AllLost, Survival::RandomBlocks] {
                let disk = b.crash_clone(model, &mut Rng::new(b.number));
                taken.lock().unwrap().push((format!("{model:?} before {:?} {} of {:?}", b.op, b.number, b.path), disk));
            }
        })));
        let db = Db::open("db", options(&killed, memory)).unwrap();
        killed.on_write(None);
        assert_eq!(commits(&db, "recovered"), COMMITS);
        let cuts = std::mem::take(&mut *cuts.lock().unwrap());
        assert!(cuts.len() > 20, "only {} moments", cuts.len());
        for (what, disk) in cuts {
            let db = Db::open("db", options(&disk, PLENTY)).unwrap_or_else(|e| panic!("{what}: {e:?}"));
            let found = commits(&db, &what);
            assert!(found > DURABLE, "{what}: {found} commits of {DURABLE} that were durable");
        }
        let shown = killed.crash_clone(Survival::AllLost, &mut Rng::new(1));
        assert_eq!(commits(&Db::open("db", options(&shown, PLENTY)).unwrap(), "shown, then cut"), COMMITS);
    }
}
