//! Prepared transactions with values that were written in pieces, where a death meets something else: another death in the recovery, or
//! families that come and go.

use kingtide::vfs::{Fs, MemFs, OpenMode, Survival, WriteOp};
use kingtide::{Db, Durability, FamilyOptions, Isolation, Options, TransactionOptions, WriteBatch, WriteOptions};
use kingtide_base::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

const BIG: usize = 5_000;

fn options(fs: &MemFs) -> Options {
    let mut o = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
    o.family.value_chunk_size = 4096;
    o.family.direct_value_threshold = 1000;
    o.tuning.staged_from = 3000;
    o
}

fn open(fs: &MemFs) -> kingtide::Result<Db> {
    Db::open("db", options(fs))
}

/// Noise behind its seed.
fn value(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; BIG];
    Rng::new(seed).fill(&mut bytes);
    bytes[..8].copy_from_slice(&seed.to_be_bytes());
    bytes
}

/// The seed of a value.
fn seed_of(bytes: &[u8]) -> u64 {
    let seed = u64::from_be_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == value(seed), "a value that was put");
    seed
}

/// Prepares a transaction that puts one value, which is in a value log of its own.
fn prepare(db: &Db, xid: &[u8]) {
    let family = db.default_family();
    let mut writer = family.value_writer().unwrap();
    writer.append(&value(1)).unwrap();
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put_staged(family, xid, &writer.finish().unwrap()).unwrap();
    txn.prepare(xid).unwrap();
}

fn value_logs(fs: &MemFs) -> usize {
    fs.list(Path::new("db")).unwrap().iter().filter(|n| n.ends_with(".vlog")).count()
}

/// The rollback is in the log, but not on the disk, when the process dies. The next one finds the value's file needless and removes
/// it. If the power goes then, the rollback may be lost: so the file may not be.
#[test]
fn an_open_removes_the_values_of_a_rolled_back_transaction_when_the_log_is_durable() {
    let fs = MemFs::new();
    let db = open(&fs).unwrap();
    prepare(&db, b"xid");
    db.put("synced", "value").unwrap();
    db.sync().unwrap();
    db.put("not synced", "value").unwrap(); // its record says what was
    db.rollback_prepared(b"xid").unwrap();
    let killed = fs.kill_clone();
    assert_eq!(value_logs(&killed), 1);

    let moments = Arc::new(Mutex::new(Vec::new()));
    let keep = moments.clone();
    killed.on_write(Some(Box::new(move |b| {
        keep.lock().unwrap().push((b.kill_clone(), format!("{:?} of {:?}", b.op, b.path), b.op));
    })));
    let again = open(&killed).unwrap();
    killed.on_write(None);
    assert_eq!((value_logs(&killed), again.recover_prepared().len()), (0, 0));
    let moments = std::mem::take(&mut *moments.lock().unwrap());
    let removed = moments.iter().position(|(_, _, op)| *op == WriteOp::Remove).unwrap();
    let synced = moments.iter().rposition(|(_, what, op)| *op == WriteOp::Sync && what.contains(".wal")).unwrap();
    assert!(synced < removed, "the log is made durable before any file is removed");
    let (mut in_doubt, mut rolled_back) = (0, 0);
    for (disk, what, _) in &moments {
        for (seed, model) in Survival::ALL.into_iter().chain(Survival::ALL).enumerate() {
            let cut = disk.crash_clone(model, &mut Rng::new(seed as u64));
            let db = open(&cut).unwrap_or_else(|e| panic!("{model:?} before {what}: {e}"));
            assert!(db.get("synced").unwrap().is_some(), "{model:?} before {what}");
            match db.recover_prepared().len() {
                0 => rolled_back += 1,
                _ => {
                    db.commit_prepared(b"xid").unwrap();
                    assert!(db.get("xid").unwrap().unwrap() == value(1), "{model:?} before {what}");
                    in_doubt += 1;
                }
            }
        }
    }
    assert!(in_doubt > 0 && rolled_back > 0, "{in_doubt} in doubt, {rolled_back} rolled back");
}

/// The log still has the clone's beginning and a pointer to a value of it, but the value went with the family: that is no end of the
/// log, which would put the transaction in doubt whose values went when it was rolled back.
#[test]
fn a_value_of_a_clone_that_was_dropped_is_not_missed() {
    for ends in [&b"rolled back"[..], b"committed"] {
        let fs = MemFs::new();
        let db = open(&fs).unwrap();
        let other = db.create_family("keeps the log", FamilyOptions::new()).unwrap();
        other.put("key", "value").unwrap();
        let clone = db.clone_family("default", "clone").unwrap();
        prepare(&db, ends);
        clone.put("large", value(2)).unwrap();
        match ends {
            b"committed" => drop(db.commit_prepared(ends).unwrap()),
            _ => db.rollback_prepared(ends).unwrap(),
        }
        drop(clone);
        db.drop_family("clone").unwrap();
        while db.run_one_job().unwrap() {}
        assert_eq!(
            value_logs(&fs),
            usize::from(ends == b"committed"),
            "those of the rollback and of the clone are gone"
        );
        if ends == b"committed" {
            // The value is moved by a flush of what a recovery found, and then its first place is gone too.
            let moved = fs.kill_clone();
            let again = open(&moved).unwrap();
            again.default_family().flush().unwrap();
            while again.run_one_job().unwrap() {}
            let again = open(&moved.kill_clone()).unwrap();
            assert!(again.get(ends).unwrap().unwrap() == value(1));
        }
        let again = open(&fs.kill_clone()).unwrap();
        assert_eq!(again.get(ends).unwrap().is_some(), ends == b"committed");
        assert!(again.recover_prepared().is_empty());
        assert_eq!(again.family("keeps the log").unwrap().get("key").unwrap().unwrap(), b"value");
    }
}

/// The first record of a transaction in doubt went with the start of the log, and a copy stands for it. Its value was durable before
/// that, so one that cannot be read now is damage, even where the copy is the last record of the log.
#[test]
fn a_damaged_value_of_a_prepare_that_was_logged_again_refuses_the_open() {
    for behind in [0, 300] {
        let fs = MemFs::new();
        let db = Db::open("db", options(&fs).wal_segment_size(64 << 10).max_wal_size(128 << 10)).unwrap();
        prepare(&db, b"xid");
        let segments = || -> Vec<String> {
            let names = fs.list(Path::new("db")).unwrap();
            names.into_iter().filter(|n| n.ends_with(".wal")).collect()
        };
        let first = segments()[0].clone();
        let mut keys = 0u64;
        let mut put = |n: u64| {
            for _ in 0..n {
                keys += 1;
                db.put(keys.to_be_bytes(), [1; 500]).unwrap();
                while db.run_one_job().unwrap() {}
            }
        };
        while segments().contains(&first) {
            put(1);
        }
        put(behind);
        db.sync().unwrap();
        let log = fs.list(Path::new("db")).unwrap().into_iter().find(|n| n.ends_with(".vlog")).unwrap();
        let path = Path::new("db").join(log);
        for (disk, what) in
            [(fs.kill_clone(), "kill"), (fs.crash_clone(Survival::ALL[0], &mut Rng::new(1)), "power cut")]
        {
            let file = disk.open(&path, OpenMode::Write).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, 2_000).unwrap();
            assert_eq!(open(&disk.kill_clone()).unwrap().recover_prepared().len(), 1, "{what}");
            file.write_at(&[byte[0] ^ 1], 2_000).unwrap();
            let e = open(&disk).unwrap_err();
            assert!(e.is_corruption() && e.path() == Some(&path) && e.offset().is_some(), "{what}: {e}");
        }
    }
}

/// What a database shows: values by family and key, and the transactions in doubt with what each puts, in the default family.
#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    values: BTreeMap<(String, u64), u64>,
    families: BTreeSet<String>,
    in_doubt: BTreeMap<Vec<u8>, (u64, u64)>,
}

impl State {
    fn of(db: &Db) -> State {
        let mut state = State { families: db.families().into_iter().collect(), ..State::default() };
        for name in &state.families.clone() {
            for entry in db.family(name).unwrap().iter().map(|e| e.unwrap()) {
                let key = u64::from_be_bytes(entry.key[..].try_into().unwrap());
                state.values.insert((name.clone(), key), seed_of(&entry.value));
            }
        }
        state
    }

    /// The same without what only a commit of the transactions in doubt shows.
    fn shown(&self) -> (&BTreeMap<(String, u64), u64>, &BTreeSet<String>, Vec<&Vec<u8>>) {
        (&self.values, &self.families, self.in_doubt.keys().collect())
    }
}

/// A database, all states that it was in, and how many of them a power cut may not undo.
struct Walk {
    fs: MemFs,
    db: Db,
    states: Vec<State>,
    durable: usize,
    rng: Rng,
    seeds: u64,
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let fs = MemFs::new();
        let db = open(&fs).unwrap();
        db.create_family("keeps the log", FamilyOptions::new()).unwrap().put(0u64.to_be_bytes(), value(0)).unwrap();
        db.sync().unwrap();
        let states = vec![State::of(&db)];
        Walk { fs, db, states, durable: 0, rng: Rng::new(seed), seeds: 1 }
    }

    /// Commits something, and notes what there is then.
    fn step(&mut self) {
        let mut next = self.states.last().unwrap().clone();
        let db = &self.db;
        let clones: Vec<String> = next.families.iter().filter(|name| name.starts_with("clone")).cloned().collect();
        let xids: Vec<Vec<u8>> = next.in_doubt.keys().cloned().collect();
        let xid = (!xids.is_empty()).then(|| xids[self.rng.below(xids.len() as u64) as usize].clone());
        let n = self.seeds;
        let mut durable = self.rng.one_in(3);
        let durability = if durable { Durability::Power } else { Durability::Process };
        match (self.rng.below(10), xid) {
            (0 | 1, _) => {
                let names: Vec<&String> = next.families.iter().collect();
                let name = names[self.rng.below(names.len() as u64) as usize].clone();
                let (key, mut batch) = (100 + self.rng.below(5), WriteBatch::new());
                batch.put(&db.family(&name).unwrap(), &key.to_be_bytes(), &value(n)).unwrap();
                db.write_with(&mut batch, &WriteOptions::new().durability(durability)).unwrap();
                next.values.insert((name, key), n);
            }
            (2..=4, _) if xids.len() < 4 => {
                let mut writer = db.value_writer().unwrap();
                writer.append(&value(n)).unwrap();
                let options = TransactionOptions::new(Isolation::Snapshot).durability(durability);
                let mut txn = db.begin_with(options).unwrap();
                txn.put_staged(db.default_family(), &n.to_be_bytes(), &writer.finish().unwrap()).unwrap();
                txn.prepare(&n.to_be_bytes()).unwrap();
                next.in_doubt.insert(n.to_be_bytes().to_vec(), (n, n));
            }
            (5, Some(xid)) => {
                db.commit_prepared(&xid).unwrap();
                let (key, seed) = next.in_doubt.remove(&xid).unwrap();
                next.values.insert(("default".to_owned(), key), seed);
                durable = false;
            }
            (6, Some(xid)) => {
                db.rollback_prepared(&xid).unwrap();
                next.in_doubt.remove(&xid);
                durable = false;
            }
            (7, _) if clones.len() < 2 => {
                let name = format!("clone {n}");
                db.clone_family("default", &name).unwrap();
                let of_default = next.values.range(("default".to_owned(), 0)..=("default".to_owned(), u64::MAX));
                let copied: Vec<_> = of_default.map(|((_, key), seed)| ((name.clone(), *key), *seed)).collect();
                next.values.extend(copied);
                next.families.insert(name);
                durable = true;
            }
            (8, _) if !clones.is_empty() => {
                db.sync().unwrap(); // a drop is no commit: what comes before it may be lost without it
                self.durable = self.states.len() - 1;
                db.drop_family(&clones[0]).unwrap();
                next.values.retain(|(name, _), _| *name != clones[0]);
                next.families.remove(&clones[0]);
                durable = true;
            }
            (9, _) => {
                db.default_family().flush().unwrap();
                (0..self.rng.below(8)).for_each(|_| _ = db.run_one_job().unwrap());
                durable = false;
            }
            _ => return (0..self.rng.below(3)).for_each(|_| _ = db.run_one_job().unwrap()),
        }
        self.seeds += 1;
        self.states.push(next);
        if durable {
            self.durable = self.states.len() - 1;
        }
    }

    /// Opens what a death left. It must be in one of the states from `least` on; what is in doubt can be committed.
    fn check(&self, fs: &MemFs, least: usize, what: &str) {
        let db = open(fs).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut found = State::of(&db);
        found.in_doubt = db.recover_prepared().into_iter().map(|p| (p.xid, (0, 0))).collect();
        let fits = |state: &&State| state.shown() == found.shown();
        let state = self.states[least..].iter().rev().find(fits).unwrap_or_else(|| panic!("{what}: {found:?}"));
        for (xid, (key, seed)) in &state.in_doubt {
            db.commit_prepared(xid).unwrap();
            assert!(db.get(key.to_be_bytes()).unwrap().unwrap() == value(*seed), "{what}: a prepared value");
        }
        let report = db.verify().unwrap();
        assert!(report.is_clean(), "{what}: {report:?}");
    }

    /// Kills the process, and cuts the power at some moments of the recovery, and of the close after it.
    fn die(&mut self, what: &str) -> usize {
        let killed = self.fs.kill_clone();
        self.check(&self.fs.kill_clone(), self.states.len() - 1, what);
        let (moments, n) = (Arc::new(Mutex::new(Vec::new())), self.rng.next_u64());
        let (keep, mut rng) = (moments.clone(), Rng::new(n));
        killed.on_write(Some(Box::new(move |b| {
            if rng.one_in(5) {
                keep.lock().unwrap().push((b.kill_clone(), format!("{:?} of {:?}", b.op, b.path)));
            }
        })));
        drop(open(&killed).unwrap());
        killed.on_write(None);
        let moments = std::mem::take(&mut *moments.lock().unwrap());
        for (disk, moment) in &moments {
            let model = Survival::ALL[self.rng.below(Survival::ALL.len() as u64) as usize];
            let cut = disk.crash_clone(model, &mut self.rng);
            self.check(
                &cut,
                self.durable,
                &format!("{what}, {model:?} before {moment}, in a recovery or the close after it"),
            );
        }
        moments.len()
    }
}

/// Kills after each of a number of steps, and power cuts in the recoveries, while values in pieces are prepared, and families with values in
/// logs of their own are cloned and dropped.
#[test]
fn whatever_dies_in_a_recovery_prepared_values_stay() {
    let mut cuts = 0;
    for seed in 0..3 {
        let mut walk = Walk::new(seed);
        for step in 0..16 {
            walk.step();
            cuts += walk.die(&format!("seed {seed}, step {step}"));
            if walk.rng.one_in(8) {
                (walk.fs, walk.durable) = (walk.fs.kill_clone(), walk.states.len() - 1);
                walk.db = open(&walk.fs).unwrap();
            }
        }
    }
    assert!(cuts > 30, "{cuts} cuts");
}
