//! A scenario that runs: a database on a simulated disk, everything that is going on with it, and what the history knows
//! of it. All of it on one thread, so that a seed decides the order of everything.

use crate::sim::clients::Client;
use crate::sim::clock::SimClock;
use crate::sim::draws::{options, panic_when_due};
use crate::sim::durability::{By, How, Promises};
use crate::sim::history::{Event, FamilyNo, Found, History, Op, Progress, State, What, Xid};
use crate::sim::locked::Read;
use crate::sim::plan::{Part, Plan};
use crate::sim::readers::Readers;
use crate::sim::storm::{Doom, Trouble};
use crate::sim::trace::{Trace, TraceFs};
use kingtide::vfs::{FaultFs, Fs, MemFs, OnWrite, Survival, WriteOp};
use kingtide::{ColumnFamily, Db, Durability, Error, ErrorKind, Result};
use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const DIR: &str = "/db";

/// Calls of `run_one_job` after which a ballast that was spent is made again, if there is space. A call that runs a job of the log does not look.
pub const LOOKS_FOR_SPACE: usize = 25;

/// Makes the callback that a new disk of the scenario gets.
pub type Watch = Box<dyn Fn() -> OnWrite>;

pub struct World {
    pub plan: Arc<Plan>,
    pub history: History,
    pub progress: Arc<Mutex<Progress>>,
    pub rng: Rng,
    pub clock: Arc<SimClock>,
    pub disk: MemFs,
    pub faults: FaultFs,
    pub trace: Option<Arc<Trace>>,
    pub watch: Option<Watch>,
    pub db: Option<Db>,
    pub families: BTreeMap<String, (FamilyNo, ColumnFamily)>,
    /// What each family holds now.
    pub now: BTreeMap<FamilyNo, State>,
    pub next_family: FamilyNo,
    pub clients: Vec<Client>,
    pub readers: Readers,
    pub steps: u64,
    /// Whether calls may fail.
    pub faulty: bool,
    pub refused: u64,
    pub conflicts: u64,
    /// Trouble with the disk that the scenario made by itself, while it lasts.
    pub trouble: Option<Trouble>,
    /// The disk may have been full while the database was opened.
    pub opened_on_full_disk: bool,
    /// The option `durability` of the open database.
    pub option: Durability,
    /// What commits were promised with `Interval`.
    pub promises: Promises,
    /// What transactions in doubt have read and rely on.
    pub prepared_reads: BTreeMap<Xid, Vec<Read>>,
    /// Where the process dies or the power goes, if it does so in rare paths.
    pub doom: Option<Doom>,
    pub counts: Counts,
    /// Records that were written to the log with one write.
    pub records: Arc<AtomicU64>,
}

/// What happened to a database, or to several.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub lives: u64,
    pub steps: u64,
    pub kills: u64,
    pub cuts: u64,
    pub reopens: u64,
    pub shadows: u64,
    pub troubles: u64,
    /// Deaths in a rare path, and background jobs that panicked.
    pub deaths: u64,
    pub panics: u64,
    /// Records that were written to the log with one write.
    pub records: u64,
    /// Commits that were acknowledged.
    pub commits: BTreeMap<(By, &'static str), u64>,
    /// Those among them that came while a transaction was in doubt. They must not have changed what it has locked.
    pub beside_doubt: u64,
    /// Background jobs that had to sync the log because a commit asked for that.
    pub kept: u64,
    /// Power cuts after which the last event that must be there must be only because a commit asked for that.
    pub behind_interval: u64,
}

impl Counts {
    /// Adds those of a life of so many steps.
    pub fn add(&mut self, life: &Counts, steps: u64) {
        self.lives += 1;
        self.steps += steps;
        self.kills += life.kills;
        self.cuts += life.cuts;
        self.reopens += life.reopens;
        self.shadows += life.shadows;
        self.troubles += life.troubles;
        self.deaths += life.deaths;
        self.panics += life.panics;
        self.records += life.records;
        self.beside_doubt += life.beside_doubt;
        self.kept += life.kept;
        self.behind_interval += life.behind_interval;
        life.commits.iter().for_each(|(kind, n)| *self.commits.entry(*kind).or_default() += n);
    }
}

impl World {
    /// An empty disk.
    pub fn new(plan: &Arc<Plan>, seed: u64) -> World {
        let default = BTreeMap::from([("default".to_owned(), 0)]);
        let disk = MemFs::new();
        World {
            plan: plan.clone(),
            history: History::default(),
            progress: Arc::new(Mutex::new(Progress { changing: Some(default), ..Progress::default() })),
            rng: Rng::new(seed),
            clock: SimClock::new(),
            faults: FaultFs::new(Arc::new(disk.clone()), seed),
            disk,
            trace: None,
            watch: None,
            db: None,
            families: BTreeMap::new(),
            now: BTreeMap::new(),
            next_family: 1,
            clients: (0..3).map(|_| Client::default()).collect(),
            readers: Readers::default(),
            steps: 0,
            faulty: plan.is_faulty(),
            refused: 0,
            conflicts: 0,
            trouble: None,
            opened_on_full_disk: false,
            option: Durability::Process,
            promises: Promises::default(),
            prepared_reads: BTreeMap::new(),
            doom: None,
            counts: Counts::default(),
            records: Arc::default(),
        }
    }

    pub fn db(&self) -> &Db {
        self.db.as_ref().expect("open")
    }

    pub fn edit<R>(&self, change: impl FnOnce(&mut Progress) -> R) -> R {
        change(&mut self.progress.lock().expect("progress"))
    }

    pub fn begun(&self) -> usize {
        self.edit(|p| p.begun)
    }

    pub fn epoch(&self) -> u64 {
        self.edit(|p| p.epoch)
    }

    /// Puts a disk in, with all that watches it.
    pub fn mount(&mut self, disk: MemFs) {
        self.disk.on_write(None);
        let mut fs: Arc<dyn Fs> = Arc::new(disk.clone());
        if let Some(trace) = &self.trace {
            fs = Arc::new(TraceFs { inner: fs, trace: trace.clone() });
        }
        self.faults = FaultFs::new(fs, self.rng.next_u64());
        self.doom_sees(&disk);
        self.disk = disk;
        self.set_faults();
        let mut watch = self.watch.as_ref().map(|watch| watch());
        let records = self.records.clone();
        self.disk.on_write(Some(Box::new(move |boundary| {
            if let Some(watch) = &mut watch {
                watch(boundary);
            }
            records.fetch_add(u64::from(boundary.op == WriteOp::Record), Ordering::Relaxed); // a plain counter
            let kind = boundary.path.extension().unwrap_or_default().to_string_lossy();
            panic_when_due(&format!("{:?} {kind}", boundary.op));
        })));
    }

    /// The rules of the plan that hold at this step.
    pub fn set_faults(&self) {
        let rules = self.plan.faults.iter().filter(|f| (f.from..f.until).contains(&self.steps));
        self.faults.clear();
        rules.for_each(|f| self.faults.add(f.rule.clone()));
        if let Some(rule) = self.trouble.as_ref().and_then(|t| t.rule.clone()) {
            self.faults.add(rule);
        }
    }

    /// Opens. The families are those that the history tells.
    pub fn try_open(&mut self) -> Result<()> {
        let draw = self.rng.next_u64();
        let options = options(&self.plan, Arc::new(self.faults.clone()), self.clock.clone(), draw);
        let injected = self.faults.stats().injected();
        let durability = options.db.durability;
        let db = Db::open(Path::new(DIR), options)?;
        (self.option, self.promises) = (durability, Promises::default());
        self.opened_on_full_disk =
            self.trouble.is_some() || !self.plan.disk.is_empty() || self.faults.stats().injected() != injected;
        let known = families_found(&db, &self.edit(|p| p.clone()));
        self.edit(|p| (p.families, p.changing) = (known.clone(), None));
        let handles = known.into_iter().map(|(name, no)| Ok((name.clone(), (no, db.family(&name)?))));
        self.families = handles.collect::<Result<BTreeMap<_, _>>>()?;
        for (no, _) in self.families.values() {
            self.now.entry(*no).or_insert_with(|| State::at(0));
        }
        self.db = Some(db);
        Ok(())
    }

    /// Opens; when that is refused the trouble is taken away and it must succeed.
    pub fn open(&mut self) {
        if let Err(e) = self.try_open() {
            self.tolerate(e);
            self.trouble = None;
            self.faults.clear();
            self.disk.set_capacity(None);
            self.disk.fail_syncs(0);
            self.try_open().unwrap_or_else(|e| panic!("open on a healthy disk: {e:?}"));
        }
        if let Err(e) = self.make_families() {
            self.tolerate(e);
        }
    }

    /// A call was refused: for a reason that there is.
    pub fn tolerate(&mut self, e: Error) {
        if let Some(trace) = &self.trace {
            trace.note(format!("{e:?}").as_bytes());
        }
        // A transaction can outlive a family that it wrote to.
        if e.is_transient_conflict() || e.kind() == ErrorKind::Closed && self.plan.changes_families() {
            self.conflicts += 1;
            return;
        }
        self.refused += 1;
        assert!(self.faulty, "refused without a reason: {e:?}");
        let expected = [ErrorKind::Io, ErrorKind::NoSpace, ErrorKind::Poisoned, ErrorKind::Closed];
        assert!(expected.contains(&e.kind()), "unexpected kind of error: {e:?}");
    }

    /// Does something that adds an event to the history.
    pub fn attempt(&mut self, what: What, how: How, act: impl FnOnce(&Db) -> Result<u64>) -> Result<()> {
        let logged = what.is_logged();
        self.history.events.push(Event { what, void_from: None, sequence: 0 });
        let n = self.history.events.len();
        self.edit(|p| p.begun = n);
        let before = self.db().latest_sequence();
        let result = act(self.db());
        let sequence = match result {
            Ok(sequence) => sequence,
            Err(e) => {
                // Refused before it became visible: it never happened. Visible but not synced: its outcome is unknown. For one
                // that changes nothing, a new sequence number decides. It need not be its own: a prepare record may have been logged
                // again meanwhile.
                let moved = e.kind() == ErrorKind::Poisoned && self.db().latest_sequence() > before;
                let there = !e.is_transient_conflict() && (self.is_there(n) || moved && !self.would_show(n));
                if !there {
                    let epoch = self.edit(|p| {
                        p.epoch += 1;
                        p.epoch
                    });
                    self.history.events[n - 1].void_from = Some(epoch);
                } else {
                    self.history.events[n - 1].sequence = self.db().latest_sequence();
                    self.apply(n);
                }
                return Err(e);
            }
        };
        self.history.events[n - 1].sequence = sequence;
        self.apply(n);
        let power = self.durability(how.asked) == Durability::Power;
        self.edit(|p| {
            if logged {
                p.process = n;
            }
            if power {
                p.synced(n, false);
            }
        });
        if logged {
            self.promise(n, how);
        }
        self.check_locks(n);
        *self.counts.commits.entry((how.by, how.level())).or_default() += 1;
        Ok(())
    }

    fn writes_of(&self, n: usize) -> Vec<Op> {
        match &self.history.events[n - 1].what {
            What::Commit { ops, .. } | What::Ingest(ops) | What::Clone(_, ops) => ops.clone(),
            What::End(xid, true) => self.history.prepared(*xid).to_vec(),
            _ => Vec::new(),
        }
    }

    fn apply(&mut self, n: usize) {
        for op in self.writes_of(n) {
            self.now.entry(op.family()).or_insert_with(|| State::at(0)).apply(&op);
        }
    }

    /// Whether an event whose call failed is visible nevertheless.
    fn is_there(&mut self, n: usize) -> bool {
        self.faults.set_enabled(false);
        let in_doubt = |xid: u32| self.db().recover_prepared().iter().any(|p| p.xid == xid.to_be_bytes());
        let there = match &self.history.events[n - 1].what {
            What::Prepare(xid, _) => in_doubt(*xid),
            What::End(xid, _) => !in_doubt(*xid),
            What::Clone(name, _) => self.db().families().contains(name),
            What::Commit { .. } | What::Ingest(_) => {
                let ops = self.writes_of(n);
                let now = self.clock_ms();
                let read = |no: FamilyNo| {
                    let (name, _) = self.families.iter().find(|f| f.1.0 == no)?;
                    Some(read_family(self.db(), name))
                };
                let differs = |op: &Op| {
                    let Some(found) = read(op.family()) else { return false };
                    let mut state = self.now[&op.family()].clone();
                    if state.visible(now) == found {
                        return false;
                    }
                    ops.iter().filter(|o| o.family() == op.family()).for_each(|o| state.apply(o));
                    assert!(state.visible(now) == found, "neither before nor after a refused commit");
                    true
                };
                ops.iter().any(differs)
            }
        };
        self.faults.set_enabled(true);
        there
    }

    /// Whether a reader could tell a commit from none.
    fn would_show(&self, n: usize) -> bool {
        let ops = match &self.history.events[n - 1].what {
            What::Commit { .. } | What::Ingest(_) => self.writes_of(n),
            What::Prepare(..) | What::End(..) | What::Clone(..) => return true,
        };
        let now = self.clock_ms();
        ops.iter().any(|op| {
            let Some(before) = self.now.get(&op.family()) else { return false };
            let mut after = before.clone();
            ops.iter().filter(|o| o.family() == op.family()).for_each(|o| after.apply(o));
            after.visible(now) != before.visible(now)
        })
    }

    pub fn clock_ms(&self) -> u64 {
        kingtide::Clock::unix_ms(&*self.clock)
    }

    /// One step.
    pub fn step(&mut self) {
        self.enter_step();
        let total: u64 = self.plan.weights.iter().map(|w| w.1).sum();
        let mut roll = self.rng.below(total);
        let chosen = self.plan.weights.iter().find(|w| {
            let here = roll < w.1;
            roll = roll.saturating_sub(w.1);
            here
        });
        let part = chosen.expect("a part").0;
        let result = self.run(part);
        if let Some(death) = self.death() {
            return self.die(death);
        }
        if let Some(trace) = &self.trace {
            trace.note(format!("{part:?} {:?}", result.as_ref().map_err(Error::kind)).as_bytes());
        }
        let Err(e) = result else { return };
        let poisoned = e.kind() == ErrorKind::Poisoned;
        self.tolerate(e);
        if self.db.is_none() {
            self.open();
        } else if poisoned {
            let told = self.db().stats().writes_stopped;
            assert!(told.is_some(), "refused as poisoned, and the statistics do not say so");
            let again = self.plan.weights.iter().any(|w| w.0 == Part::Reopen) && self.rng.one_in(8);
            if again && let Err(e) = self.reopen() {
                self.tolerate(e);
                self.open();
            }
        }
    }

    fn enter_step(&mut self) {
        self.steps += 1;
        self.clock.advance(Duration::from_millis(1));
        let now = self.steps;
        if self.plan.faults.iter().any(|f| f.from == now || f.until == now) {
            self.set_faults();
        }
        self.end_trouble_when_due();
        if let Some((_, capacity)) = self.plan.disk.iter().find(|d| d.0 == now) {
            let capacity = *capacity;
            self.disk.set_capacity(capacity);
            if capacity.is_none() && self.plan.faults.is_empty() {
                self.writes_resume();
            }
        }
    }

    /// There is space again: writes go on without an open.
    pub fn writes_resume(&mut self) {
        // Threads would look every few seconds whether there is space for the ballast again.
        (0..LOOKS_FOR_SPACE).for_each(|_| _ = self.db().run_one_job());
        let put = Op::Put(0, b"after".to_vec(), b"the trouble".to_vec(), crate::sim::history::FOREVER);
        self.commit_ops(vec![put], Some(Durability::Power)).unwrap_or_else(|e| panic!("there is space again: {e:?}"));
        self.flush().unwrap_or_else(|e| panic!("there is space again: {e:?}"));
    }

    fn run(&mut self, part: Part) -> Result<()> {
        match part {
            Part::Batch => self.batch(),
            Part::Transaction => self.client_step(),
            Part::Prepare => self.prepare(),
            Part::Resolve => self.resolve(),
            Part::Ingest => self.ingest(),
            Part::Flush => self.flush(),
            Part::Merge => self.merge(),
            Part::Family => self.change_family(),
            Part::Clone => self.clone_or_drop(),
            Part::Reopen => self.reopen(),
            Part::Kill => self.crash(None),
            Part::Cut => {
                let model = Survival::ALL[self.rng.below(Survival::ALL.len() as u64) as usize];
                self.crash(Some(model))
            }
            Part::Job => (0..1 + self.rng.below(3)).try_for_each(|_| self.run_job().map(drop)),
            Part::Drain => self.drain(),
            Part::Sync => self.sync(),
            Part::Snapshot => self.snapshot_step(),
            Part::Check => {
                self.check_reads();
                Ok(())
            }
            Part::Stream => self.stream_step(),
            Part::Checkpoint => self.checkpoint(),
            Part::Backup => self.backup(),
            Part::Set => self.set_option(),
            Part::Tick => {
                self.clock.advance(Duration::from_millis(self.rng.below(100)));
                Ok(())
            }
            Part::Trouble => {
                self.begin_trouble();
                Ok(())
            }
            Part::Clock => {
                self.move_clocks();
                Ok(())
            }
            Part::Shadow => {
                self.shadow();
                Ok(())
            }
            Part::Panic => {
                self.panic_in_job();
                Ok(())
            }
        }
    }

    fn set_option(&mut self) -> Result<()> {
        let (name, values) = self.plan.live[self.rng.below(self.plan.live.len() as u64) as usize].clone();
        let value = &values[self.rng.below(values.len() as u64) as usize];
        if kingtide::FamilyOptions::default().get(&name).is_none() {
            let set = self.db().set_option(&name, value);
            if name == "durability" {
                let mut next = kingtide::Options::new();
                next.set(&name, value).expect("a value of the option");
                // If it failed, it may have changed nevertheless.
                self.option_changed(if set.is_ok() { next.db.durability } else { Durability::Process });
            }
            return set;
        }
        let (_, family) = self.any_family();
        family.set_option(&name, value)
    }

    pub fn any_family(&mut self) -> (FamilyNo, ColumnFamily) {
        let n = self.families.len() as u64;
        let at = match self.plan.mix.families {
            0 => self.rng.below(n),
            // The k-th with a probability of about 1/k, the last ones once in some hundred.
            _ => ((n as f64 + 1.0).powf(self.rng.unit()) as u64 - 1).min(n - 1),
        };
        self.families.values().nth(at as usize).cloned().expect("a family")
    }

    /// Runs jobs until there is nothing to do, which includes a log sync that is due.
    fn drain(&mut self) -> Result<()> {
        let (process, since) = (self.edit(|p| p.process), self.steps);
        for round in 0.. {
            assert!(round < 10_000, "background work without end since step {since}");
            if !self.run_job()? {
                break;
            }
        }
        let wait = self.longest_promise();
        if !wait.is_zero() {
            self.clock.advance(wait); // nothing else moves it
            while self.run_job()? {}
        }
        if matches!(self.option, Durability::Interval(_)) {
            self.edit(|p| p.synced(process, false)); // commits that asked for less included
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.db().sync()?;
        self.edit(|p| p.synced(p.process, false));
        Ok(())
    }

    pub fn flush(&mut self) -> Result<()> {
        let begun = self.begun();
        self.db().flush()?;
        // What only the log holds, prepares and rollbacks, is not made durable by a flush.
        let process = self.edit(|p| p.process);
        let in_tables = (1..=process).rfind(|n| self.makes_visible(*n)).unwrap_or(0);
        self.all_flushed(begun, in_tables);
        Ok(())
    }

    fn merge(&mut self) -> Result<()> {
        let (_, family) = self.any_family();
        let (a, b) = (self.key(), self.key());
        match self.rng.below(3) {
            0 => family.compact_range(..),
            _ => family.compact_range(a.as_slice().min(&b)..=a.as_slice().max(&b)),
        }
    }

    fn makes_visible(&self, n: usize) -> bool {
        let event = &self.history.events[n - 1];
        event.void_from.is_none() && matches!(event.what, What::Commit { .. } | What::End(_, true))
    }

    /// What was committed so far is in tables, and the log up to event `power` survives a power cut.
    fn all_flushed(&self, begun: usize, power: usize) {
        self.edit(|p| {
            if p.changing.is_some() {
                return; // a family whose drop is undecided is not flushed
            }
            p.synced(power, false);
            for family in p.families.clone().into_values() {
                p.flushed.insert(family, begun);
            }
        });
    }

    /// Reads show all that is visible, and all that is in doubt is.
    pub fn check_reads(&mut self) {
        self.faults.set_enabled(false);
        let now = self.clock_ms();
        for (name, (no, _)) in &self.families {
            let found = read_family(self.db(), name);
            assert!(found == self.now[no].visible(now), "reads of family {name}");
        }
        let in_doubt = self.history.in_doubt(self.begun(), self.epoch());
        let found: Vec<Vec<u8>> = self.db().recover_prepared().into_iter().map(|p| p.xid).collect();
        let mut expected: Vec<Vec<u8>> = in_doubt.iter().map(|x| x.to_be_bytes().to_vec()).collect();
        expected.sort();
        assert_eq!(
            {
                let mut f = found;
                f.sort();
                f
            },
            expected,
            "transactions in doubt"
        );
        self.faults.set_enabled(true);
    }

    /// Gives up everything that belongs to the open database.
    pub fn let_go(&mut self) {
        self.clients = (0..3).map(|_| Client::default()).collect();
        self.readers = Readers::default();
        self.families.clear();
    }

    pub fn reopen(&mut self) -> Result<()> {
        self.counts.reopens += 1;
        if self.rng.one_in(2) {
            self.let_go(); // or after the database was closed
        }
        let db = self.db.take().expect("open");
        let begun = self.begun();
        let closed = db.close();
        self.let_go();
        drop(db);
        if closed.is_ok() {
            self.all_flushed(begun, self.edit(|p| p.process));
        }
        closed.and_then(|()| self.try_open())
    }

    /// Loses the process, or the power too, and opens what is found.
    fn crash(&mut self, model: Option<Survival>) -> Result<()> {
        *(if model.is_none() { &mut self.counts.kills } else { &mut self.counts.cuts }) += 1;
        let disk = match model {
            None => self.disk.kill_clone(),
            Some(m) => self.disk.crash_clone(m, &mut self.rng),
        };
        self.disk.on_write(None);
        if let Some(trace) = &self.trace {
            trace.pause(true); // the dead process's last flush happens nowhere
        }
        self.let_go();
        self.db = None;
        if let Some(trace) = &self.trace {
            trace.pause(false);
        }
        let at_least = self.survives(model.is_some());
        self.mount(disk);
        self.open();
        self.take_up(at_least);
        Ok(())
    }

    /// Up to which event everything survives the death of the process, or a power cut.
    pub fn survives(&mut self, power_cut: bool) -> usize {
        let own = self.edit(|p| p.own_interval > 0 && p.own_interval == p.power);
        self.counts.behind_interval += u64::from(power_cut && own);
        self.edit(|p| {
            if power_cut {
                p.process = p.power;
            }
            p.process.max(p.power)
        })
    }

    /// Finds out what a crash left; the rest never happened.
    pub fn take_up(&mut self, at_least: usize) {
        let progress = self.edit(|p| p.clone());
        self.faults.set_enabled(false);
        let found = read(self.db(), &progress.families);
        self.faults.set_enabled(true);
        let tables = self.history.tables(progress.epoch, self.clock_ms());
        let Some(recovered) = self.history.recovered(&tables, &found, at_least, &progress) else {
            self.history.explain(&tables, &found, at_least, &progress)
        };
        let epoch = progress.epoch + 1;
        for (n, event) in (1..).zip(&mut self.history.events) {
            let lost = match &event.what {
                What::Commit { ops, logged: false } => {
                    ops.iter().any(|op| recovered.flushed.get(&op.family()).is_some_and(|f| n > *f))
                }
                _ => n > recovered.logged,
            };
            if lost && event.void_from.is_none() {
                event.void_from = Some(epoch);
            }
        }
        self.edit(|p| {
            p.epoch = epoch;
            (p.process, p.power, p.own_interval) = (recovered.logged, recovered.logged, 0);
            for family in progress.families.values() {
                p.flushed.insert(*family, p.begun);
            }
        });
        let all = self.begun();
        for family in self.now.keys().copied().collect::<Vec<_>>() {
            self.now.insert(family, self.history.state(family, all, all, epoch, 0));
        }
        self.check_reads();
        self.check_acknowledged_copies();
    }
}

/// The families of an open database, which are those before or after a change that was under way.
pub fn families_found(db: &Db, progress: &Progress) -> BTreeMap<String, FamilyNo> {
    let names = db.families();
    let known = [progress.changing.as_ref(), Some(&progress.families)];
    let found = known.into_iter().flatten().find(|f| f.keys().eq(names.iter()));
    found.unwrap_or_else(|| panic!("families {names:?} after {progress:?}")).clone()
}

pub fn read_family(db: &Db, name: &str) -> crate::sim::history::Contents {
    let mut it = db.family(name).expect("family").cursor(..).expect("iterator");
    let mut contents = BTreeMap::new();
    it.seek_to_first();
    while it.valid() {
        let key = it.key().to_vec();
        contents.insert(key, it.value().expect("value").to_vec());
        it.next();
    }
    it.status().expect("status");
    contents
}

/// Everything that a database holds.
pub fn read(db: &Db, families: &BTreeMap<String, FamilyNo>) -> Found {
    let contents = families.iter().map(|(name, no)| (*no, read_family(db, name))).collect();
    let xid = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("a name of four bytes"));
    let in_doubt = db.recover_prepared().into_iter().map(|p| (xid(&p.xid), p.operations)).collect();
    Found { contents, in_doubt }
}
