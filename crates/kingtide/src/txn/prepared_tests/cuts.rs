//! The power cut, or the process killed, before each write operation of a random history of prepares, commits, rollbacks
//! and plain writes: what is found must be the state after some number of its first events, none that was acknowledged
//! left out; and so again after the ends that are given to what was in doubt.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

type Writes = BTreeMap<(usize, Vec<u8>), Vec<u8>>;

/// What happened, in the order of the log.
#[derive(Clone, Debug)]
enum Event {
    Put(Vec<u8>),
    Prepare(u32),
    End(u32, bool),
}

/// How far the history had come when the disk was copied, in events.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    begun: usize,
    /// Acknowledged: survive a kill.
    process: usize,
    /// Survive a power cut.
    power: usize,
}

/// What a database holds, and should.
#[derive(Debug, Default, PartialEq, Eq)]
struct State {
    puts: BTreeSet<Vec<u8>>,
    in_doubt: BTreeSet<u32>,
    committed: BTreeSet<u32>,
}

#[derive(Default)]
struct History {
    events: Vec<Event>,
    writes: BTreeMap<u32, Writes>,
}

impl History {
    fn after(&self, events: usize) -> State {
        let mut state = State::default();
        for event in &self.events[..events] {
            match event {
                Event::Put(key) => drop(state.puts.insert(key.clone())),
                Event::Prepare(t) => drop(state.in_doubt.insert(*t)),
                Event::End(t, committed) => {
                    state.in_doubt.remove(t);
                    if *committed {
                        state.committed.insert(*t);
                    }
                }
            }
        }
        state
    }

    /// What a database holds. Fails if a transaction is there in part, or is in doubt with other writes than prepared.
    fn found(&self, db: &Db) -> State {
        let families = families(db);
        let mut state = State::default();
        for xid in xids(db) {
            let t = u32::from_be_bytes(xid[..].try_into().expect("xid"));
            let held: Writes = writes_of(db, &xid)
                .into_iter()
                .map(|(_, name, key, value)| ((usize::from(name == "other"), key), value))
                .collect();
            assert!(held == self.writes[&t], "transaction {t} is in doubt with other writes");
            state.in_doubt.insert(t);
        }
        let get = |family: usize, key: &[u8]| families[family].get(key).expect("get").map(|v| v.to_vec());
        for (t, writes) in &self.writes {
            let there = writes.iter().filter(|((f, key), value)| get(*f, key).as_ref() == Some(*value)).count();
            assert!(there == 0 || there == writes.len(), "{there} of {} writes of transaction {t}", writes.len());
            if there > 0 {
                state.committed.insert(*t);
            }
        }
        for event in &self.events {
            if let Event::Put(key) = event
                && get(0, key).is_some()
            {
                state.puts.insert(key.clone());
            }
        }
        state
    }
}

fn families(db: &Db) -> [ColumnFamily; 2] {
    [db.default_family().clone(), db.family("other").expect("family")]
}

fn open_small(fs: &MemFs) -> Db {
    let mut options = options(Arc::new(fs.clone()));
    options.set("max_wal_size", "131072").expect("option");
    Db::open("/db", options).expect("open")
}

struct Scenario {
    fs: MemFs,
    db: Option<Db>,
    rng: Rng,
    history: History,
    progress: Arc<Mutex<Progress>>,
    /// Whether a record was written again.
    moved: bool,
}

impl Scenario {
    fn db(&self) -> &Db {
        self.db.as_ref().expect("open")
    }

    fn any_durability(&mut self) -> Durability {
        if self.rng.one_in(3) { Durability::Power } else { Durability::Process }
    }

    /// Does what `event` says.
    fn run(&mut self, event: Event, durability: Durability, act: impl FnOnce(&Db)) {
        self.history.events.push(event);
        let number = self.history.events.len();
        self.progress.lock().expect("progress").begun = number;
        act(self.db.as_ref().expect("open"));
        let mut progress = self.progress.lock().expect("progress");
        progress.process = number;
        if durability == Durability::Power {
            progress.power = number;
        }
    }

    fn put(&mut self) {
        let key = format!("put-{:04}", self.history.events.len()).into_bytes();
        let len = if self.rng.one_in(3) { 9000 } else { self.rng.below(300) };
        let durability = self.any_durability();
        self.run(Event::Put(key.clone()), durability, |db| {
            let value = noise(len as u32, len as usize);
            db.write_with(&mut batch(&[(db.default_family(), &key, &value)]), &durably(durability)).expect("put");
        });
    }

    fn prepare(&mut self) {
        let t = self.history.writes.len() as u32;
        let writes: Writes = (0..1 + self.rng.below(5))
            .map(|i| {
                let longest = if self.rng.one_in(6) { 20_000 } else { 1500 };
                let mut value = vec![0; 1 + self.rng.below(longest) as usize];
                self.rng.fill(&mut value);
                ((i as usize % 2, format!("txn-{t}-{i}").into_bytes()), value)
            })
            .collect();
        self.history.writes.insert(t, writes.clone());
        let durability = self.any_durability();
        self.run(Event::Prepare(t), durability, |db| {
            let families = families(db);
            let mut batch = WriteBatch::new();
            for ((family, key), value) in &writes {
                match value[0] % 2 {
                    0 => batch.put(&families[*family], key, value).expect("put"),
                    _ => batch.put_staged(&families[*family], key, &stage(&families[*family], value)).expect("put"),
                }
            }
            try_prepare(db, &t.to_be_bytes(), &mut batch, durability).expect("prepare").durable.expect("durable");
        });
    }

    fn end(&mut self) {
        let in_doubt: Vec<u32> = self.history.after(self.history.events.len()).in_doubt.into_iter().collect();
        if in_doubt.len() < 3 {
            return self.put(); // some are forgotten
        }
        let t = in_doubt[self.rng.below(in_doubt.len() as u64) as usize];
        let (committed, durability) = (self.rng.one_in(2), self.any_durability());
        self.run(Event::End(t, committed), durability, |db| {
            try_resolve(db, &t.to_be_bytes(), committed, durability).expect("end").durable.expect("durable");
        });
    }

    fn step(&mut self) {
        match self.rng.below(40) {
            0..18 => self.put(),
            18..24 => self.prepare(),
            24..30 => self.end(),
            30 => {
                self.db.take().expect("open").close().expect("close");
                self.db = Some(open_small(&self.fs));
            }
            31 | 32 => {
                let family = self.rng.below(2) as usize;
                families(self.db())[family].flush().expect("flush");
            }
            33 => self.db().sync().expect("sync"),
            _ => while self.db().run_one_job().expect("job") {},
        }
        let first = self.db().inner().prepared.list().first().map(|p| p.sequence);
        self.moved |= first < self.db().inner().prepared.oldest();
    }
}

/// The disk before a write operation, and how far the history had come.
struct Cut {
    disk: MemFs,
    progress: Progress,
}

fn record(seed: u64, steps: u64) -> (History, Vec<Cut>) {
    let fs = MemFs::new();
    let db = open_small(&fs);
    db.create_family("other", Default::default()).expect("family");
    let cuts: Arc<Mutex<Vec<Cut>>> = Arc::default();
    let progress: Arc<Mutex<Progress>> = Arc::default();
    let (keep, now) = (cuts.clone(), progress.clone());
    fs.on_write(Some(Box::new(move |b| {
        let progress = *now.lock().expect("progress");
        keep.lock().expect("cuts").push(Cut { disk: b.kill_clone(), progress });
    })));
    let history = History::default();
    let mut scenario = Scenario { fs: fs.clone(), db: Some(db), rng: Rng::new(seed), history, progress, moved: false };
    (0..steps).for_each(|_| scenario.step());
    assert!(scenario.moved, "seed {seed}: no record was written again");
    scenario.db().close().expect("close");
    fs.on_write(None);
    let cuts = std::mem::take(&mut *cuts.lock().expect("cuts"));
    (scenario.history, cuts)
}

/// Opens what a cut left, compares it, ends what is in doubt, cuts again, and compares again.
fn check(history: &History, disk: &MemFs, at_least: usize, begun: usize, rng: &mut Rng) {
    let db = open_small(disk);
    let found = history.found(&db);
    let fits = (at_least..=begun).any(|n| history.after(n) == found);
    assert!(fits, "not the state after {at_least} to {begun} events: {found:?}");
    if rng.one_in(3) {
        drop(db);
        let again = disk.crash_clone(Survival::AllLost, rng);
        let db = open_small(&again);
        assert_eq!(history.found(&db), found, "shown, then lost by a power cut");
        return end_all(history, &db, &again, found, rng);
    }
    end_all(history, &db, disk, found, rng);
}

fn end_all(history: &History, db: &Db, disk: &MemFs, mut expected: State, rng: &mut Rng) {
    let durability = if rng.one_in(2) { Durability::Power } else { Durability::Process };
    for t in std::mem::take(&mut expected.in_doubt) {
        let outcome = rng.below(3);
        if outcome == 2 {
            expected.in_doubt.insert(t); // not yet
            continue;
        }
        try_resolve(db, &t.to_be_bytes(), outcome == 1, durability).expect("end").durable.expect("durable");
        if outcome == 1 {
            expected.committed.insert(t);
        }
    }
    if rng.one_in(2) {
        let family = rng.below(2) as usize;
        families(db)[family].flush().expect("flush");
    }
    if durability == Durability::Power || rng.one_in(2) {
        let end = match durability {
            Durability::Power => disk.crash_clone(Survival::AllLost, rng),
            _ => disk.kill_clone(),
        };
        assert_eq!(history.found(&open_small(&end)), expected, "after the ends, {durability:?}");
        return;
    }
    // Some of the ends may be lost, but never a part of one.
    let mut found = history.found(&open_small(&disk.crash_clone(Survival::RandomBlocks, rng)));
    for t in std::mem::take(&mut found.in_doubt) {
        expected.committed.remove(&t);
        expected.in_doubt.remove(&t);
    }
    assert_eq!(found, expected, "after ends that were not synced");
}

#[test]
fn every_cut_leaves_a_prefix_of_prepares_and_ends() {
    let full = std::env::var_os("KINGTIDE_FULL").is_some();
    let (seeds, steps, every) = if full { (6, 300, 1) } else { (2, 160, 7) };
    for seed in 1..=seeds {
        let (history, cuts) = record(seed, steps);
        let mut disks = 0;
        for (number, cut) in cuts.iter().enumerate().filter(|(n, _)| (n + seed as usize).is_multiple_of(every)) {
            for model in [None].into_iter().chain(Survival::ALL.map(Some)) {
                println!("seed {seed}, cut {number} of {}, {model:?}, {:?}", cuts.len(), cut.progress);
                let mut rng = Rng::new(seed << 32 ^ number as u64);
                let (disk, at_least) = match model {
                    None => (cut.disk.kill_clone(), cut.progress.process.max(cut.progress.power)),
                    Some(m) => (cut.disk.crash_clone(m, &mut rng), cut.progress.power),
                };
                check(&history, &disk, at_least, cut.progress.begun, &mut rng);
                disks += 1;
            }
        }
        println!("seed {seed}: {} events, {} cuts, {disks} disks", history.events.len(), cuts.len());
    }
}
