//! The pipeline without a database: real batches and memtables, and a log and an environment that record what is done to them and
//! check with each step that it is due.

use super::batch::WriteBatch;
use super::fill_memtables;
use super::pipeline::{Admission, Commit, CommitEnv, CommitLog, CommitState, Guard, Pipeline, Visible};
use crate::direct::{DirectLog, Diverted};
use crate::family::{Family, ReadContext, TableCache, View};
use crate::memtable::FamilyMemtable;
use crate::options::WriteOptions;
use crate::txn::read_set::{ReadRange, ReadSet, Round, Validation};
use kingtide_base::budget::Budget;
use kingtide_base::clock::ManualClock;
use kingtide_base::options::{Durability, FamilyOptions};
use kingtide_base::stats::Stats;
use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicU64, Ordering};
use kingtide_base::{Error, ErrorKind, KeyOrder, Kind, Result, SeqNo, Tag};
use kingtide_mem::ArenaPool;
use kingtide_mem::cache::BlockCache;
use kingtide_mem::fair::{FairGuard, FairMutex};
use kingtide_table::VlogValue;
use kingtide_versions::Version;
use kingtide_vfs::{Fs, MemFs};
use kingtide_wal::{Lsn, SyncFirst, WalRecord};
use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What the environment or the log was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Admit,
    Divert,
    Check,
    EnsureLog,
    Validate { checked: SeqNo, again: bool },
    Ask { checked: SeqNo, tables: bool },
    WaitForLocks(usize),
    Reserve,
    NeedsFirst,
    Append(SeqNo),
    Apply(SeqNo),
    Note(SeqNo),
    Publish(SeqNo),
    Hooks(SeqNo),
    Seal,
    Count,
    SyncWithin(Duration),
    Synced(Lsn),
}
use Step::*;

type Steps = Arc<Mutex<Vec<Step>>>;

/// A log in memory.
pub(crate) struct TestLog {
    /// First sequence numbers and numbers of operations.
    pub records: Vec<(SeqNo, u32)>,
    /// Appends to refuse from now on.
    pub failures: u32,
    stopped: Option<Error>,
    bytes: u64,
    steps: Steps,
}

impl CommitLog for TestLog {
    fn append(&mut self, base: SeqNo, count: u32, record: WalRecord<'_>) -> Result<Lsn> {
        self.steps.lock().push(Append(base));
        if let Some(why) = &self.stopped {
            return Err(why.clone());
        }
        if self.failures > 0 {
            self.failures -= 1;
            return Err(Error::new(ErrorKind::NoSpace, "the disk is full"));
        }
        self.records.push((base, count));
        self.bytes += record.payload.len() as u64;
        Ok(Lsn(self.bytes))
    }

    fn needs_first(&mut self, file: Weak<dyn SyncFirst>) {
        assert!(file.upgrade().is_some());
        self.steps.lock().push(NeedsFirst);
    }

    fn stop(&mut self, why: Error) {
        self.stopped = Some(why);
    }

    fn poison(&self) -> Option<Error> {
        self.stopped.clone()
    }
}

/// What the environment answers when it is asked whether a batch may be committed.
enum Answer {
    LookOutside,
    Wait(usize),
    Refuse,
}

pub(crate) struct TestEnv {
    commits: FairMutex<CommitState<TestLog>>,
    pub family: Arc<Family>,
    other: Arc<Family>,
    fs: Arc<dyn Fs>,
    tables: Arc<TableCache>,
    /// Everything up to here is visible.
    pub visible: AtomicU64,
    /// The last number in a memtable.
    applied: AtomicU64,
    synced: AtomicU64,
    steps: Steps,
    /// Answers to come; then the batch may be committed.
    answers: Mutex<VecDeque<Answer>>,
    /// Batches that find no room in memory.
    no_room: AtomicU64,
    /// Batches amid which filling memtables panics.
    panics: AtomicU64,
    /// What stands in the place of large values: see `divert`.
    diverted: Mutex<Option<(WriteBatch, Vec<Diverted>)>>,
    /// One thread uses it: so the commit lock is held if this one holds it.
    alone: bool,
}

fn family(id: u32, parts: &(Arc<Stats>, Arc<TableCache>, Arc<ArenaPool>)) -> Arc<Family> {
    let (stats, tables, arenas) = parts;
    let order = KeyOrder::default();
    let active = FamilyMemtable::new(order.clone(), arenas, 1);
    let view = View::new(order.clone(), active, Vec::new(), Arc::new(Version::default()), tables, None);
    let reads = Arc::new(ReadContext::new(stats.clone(), tables.clone(), ManualClock::at_unix_ms(1)));
    let options = FamilyOptions::new().value_threshold(100).direct_value_threshold(1000);
    Arc::new(Family::new(id, format!("family {id}"), order, options, reads, view))
}

const DIR: &str = "db";

impl TestEnv {
    pub fn new(alone: bool) -> TestEnv {
        let fs: Arc<dyn Fs> = MemFs::shared();
        fs.create_dir_all(Path::new(DIR)).unwrap();
        let stats = Arc::new(Stats::default());
        let blocks = BlockCache::new(0, 1, stats.clone());
        let tables = TableCache::new(fs.clone(), PathBuf::from(DIR), blocks, stats.clone(), 100);
        let parts = (stats, tables.clone(), ArenaPool::new(Budget::new(1 << 30)));
        let (family, other) = (family(1, &parts), family(2, &parts));
        let steps = Steps::default();
        let log = TestLog { records: Vec::new(), failures: 0, stopped: None, bytes: 0, steps: steps.clone() };
        TestEnv {
            commits: FairMutex::new(CommitState::new(log, 0, vec![family.clone(), other.clone()], false)),
            family,
            other,
            fs,
            tables,
            visible: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            steps,
            answers: Mutex::default(),
            no_room: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            diverted: Mutex::default(),
            alone,
        }
    }

    pub fn state(&self) -> FairGuard<'_, CommitState<TestLog>> {
        self.commits.lock()
    }

    fn step(&self, step: Step) {
        self.steps.lock().push(step);
    }

    fn unlocked(&self, step: Step) {
        assert!(!self.alone || self.commits.try_lock().is_some(), "{step:?} under the commit lock");
        self.step(step);
    }

    fn locked(&self, step: Step) {
        assert!(self.commits.try_lock().is_none(), "{step:?} without the commit lock");
        self.step(step);
    }

    fn steps(&self) -> Vec<Step> {
        std::mem::take(&mut *self.steps.lock())
    }

    fn answer(&self, answers: impl IntoIterator<Item = Answer>) {
        self.answers.lock().extend(answers);
    }

    /// A batch of puts to the first family.
    pub fn batch(&self, keys: &[&str]) -> WriteBatch {
        let mut batch = WriteBatch::new();
        for key in keys {
            batch.push(&self.family, Kind::Put as u8, key.as_bytes(), None, Some(b"value")).unwrap();
        }
        batch
    }

    pub fn commit(&self, batch: &mut WriteBatch) -> Result<Visible> {
        let options = WriteOptions::default();
        let visible = Pipeline::new(self).commit(batch, &Commit::new(&options, Guard::Plain))?;
        Ok(visible.expect("the batch holds its values"))
    }

    /// The number under which a memtable has a key, if it does.
    pub fn find(&self, family: &Family, key: &str) -> Option<SeqNo> {
        let view = family.view.load();
        view.active.points().get(key.as_bytes(), Tag(u64::MAX)).map(|(tag, _)| tag.seq())
    }

    /// Nothing of a commit that failed is left.
    fn assert_untouched(&self, last: SeqNo, key: &str) {
        assert_eq!((self.state().last_seq, self.visible.load(Ordering::Acquire)), (last, last));
        assert_eq!(self.find(&self.family, key), None);
    }
}

impl CommitEnv for TestEnv {
    type Log = TestLog;

    fn admit(&self, batch: &WriteBatch, no_wait: bool) -> Result<()> {
        self.unlocked(Admit);
        assert!(batch.bytes() > 0);
        if no_wait { Err(Error::new(ErrorKind::Busy, "it would wait")) } else { Ok(()) }
    }

    fn default_durability(&self) -> Durability {
        Durability::Process
    }

    fn divert(&self, _: &WriteBatch, _: Durability) -> Result<Option<(WriteBatch, Vec<Diverted>)>> {
        self.unlocked(Divert);
        Ok(self.diverted.lock().take())
    }

    fn check(&self, _: &WriteBatch) -> Result<()> {
        self.unlocked(Check);
        Ok(())
    }

    fn ensure_log(&self) -> Result<()> {
        self.unlocked(EnsureLog);
        Ok(())
    }

    fn commits(&self) -> &FairMutex<CommitState<TestLog>> {
        &self.commits
    }

    fn validate_unlocked(&self, _: &Validation<'_>, _: &WriteBatch, round: Round, again: bool) -> Result<SeqNo> {
        self.unlocked(Validate { checked: round.checked, again });
        Ok(round.checked + 1)
    }

    fn admission(&self, _: &CommitState<TestLog>, _: &WriteBatch, _: &Guard<'_>, round: Round) -> Result<Admission> {
        self.locked(Ask { checked: round.checked, tables: round.tables });
        match self.answers.lock().pop_front() {
            None => Ok(Admission::Go),
            Some(Answer::LookOutside) => Ok(Admission::LookOutside),
            Some(Answer::Wait(op)) => Ok(Admission::Wait(op)),
            Some(Answer::Refuse) => Err(Error::new(ErrorKind::Conflict, "it was changed")),
        }
    }

    fn wait_for_locks(&self, _: &WriteBatch, op: usize, _: &WriteOptions, since: &mut Option<u64>) -> Result<()> {
        self.unlocked(WaitForLocks(op));
        let waits = since.get_or_insert(0);
        *waits += 1;
        if *waits > 2 { Err(Error::new(ErrorKind::LockTimeout, "it waited too long")) } else { Ok(()) }
    }

    fn reserve(&self, _: &mut CommitState<TestLog>, _: &WriteBatch) -> Result<()> {
        self.locked(Reserve);
        match self.no_room.load(Ordering::Relaxed) {
            0 => Ok(()),
            n => {
                self.no_room.store(n - 1, Ordering::Relaxed);
                Err(Error::new(ErrorKind::Busy, "no room"))
            }
        }
    }

    fn apply(&self, batch: &WriteBatch, _: &[Diverted], base: SeqNo) {
        self.locked(Apply(base));
        assert_eq!(
            self.applied.load(Ordering::Relaxed) + 1,
            base,
            "the memtables are filled in the order of the numbers"
        );
        assert!(self.visible.load(Ordering::Relaxed) < base, "visible before it is in memory");
        fill_memtables(batch, base);
        let panics = self.panics.load(Ordering::Relaxed);
        if panics > 0 {
            self.panics.store(panics - 1, Ordering::Relaxed);
            panic!("a key order panics");
        }
        self.applied.store(base + batch.sequences() as u64 - 1, Ordering::Relaxed);
    }

    fn note(&self, _: &WriteBatch, base: SeqNo, _: Option<Lsn>) {
        self.locked(Note(base));
    }

    fn publish(&self, last: SeqNo) {
        self.locked(Publish(last));
        assert_eq!(self.applied.load(Ordering::Relaxed), last, "visible is what is in memory");
        self.visible.store(last, Ordering::Release);
    }

    fn enqueue_for_hooks(&self, shown: &WriteBatch, _: &[Diverted], last: SeqNo) -> bool {
        self.locked(Hooks(last));
        shown.len() > 2
    }

    fn seal_full(&self, _: &mut CommitState<TestLog>, _: &WriteBatch) {
        self.locked(Seal);
    }

    fn count(&self, _: &WriteBatch) {
        self.unlocked(Count);
    }

    fn sync_within(&self, time: Duration) {
        self.unlocked(SyncWithin(time));
    }

    fn sync_to(&self, lsn: Lsn) -> Result<()> {
        self.unlocked(Synced(lsn));
        self.synced.fetch_max(lsn.0, Ordering::Relaxed);
        Ok(())
    }
}

/// Go, without a look outside.
const ASKED: Step = Ask { checked: 0, tables: false };

#[test]
fn a_commit_passes_the_stages_in_their_order() {
    let env = TestEnv::new(true);
    let visible = env.commit(&mut env.batch(&["a", "b"])).unwrap();
    let stages =
        [Admit, Check, EnsureLog, ASKED, Reserve, Append(1), Apply(1), Note(1), Publish(2), Hooks(2), Seal, Count];
    assert_eq!(env.steps(), stages);
    assert_eq!((visible.last, visible.hooked), (2, false));
    assert_eq!((env.find(&env.family, "a"), env.find(&env.family, "b")), (Some(1), Some(2)));
    assert_eq!(env.state().wal.records, [(1, 2)]);

    // The caller may sync it, or not, and has given the lock back by then.
    let pipeline = Pipeline::new(&env);
    pipeline.sync(visible, Durability::Process).unwrap();
    assert_eq!(env.steps(), []);
    pipeline.sync(visible, Durability::Power).unwrap();
    assert_eq!(env.steps(), [Synced(visible.lsn.unwrap())]);
    assert!(env.commit(&mut env.batch(&["c", "d", "e"])).unwrap().hooked, "the environment says that a hook is there");
}

#[test]
fn what_was_admitted_is_not_held_again_and_a_commit_that_must_not_wait_is_refused() {
    let env = TestEnv::new(true);
    let no_wait = WriteOptions { no_wait: true, ..WriteOptions::default() };
    let commit = |how: &Commit<'_>| Pipeline::new(&env).commit(&mut env.batch(&["a"]), how).map(|v| v.unwrap().last);
    assert_eq!(commit(&Commit::new(&no_wait, Guard::Plain)).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(env.steps(), [Admit]);
    assert_eq!(commit(&Commit::admitted(&no_wait, Guard::Plain)).unwrap(), 1);
    assert_eq!(env.steps()[0], Check);
}

#[test]
fn a_failed_append_takes_no_numbers() {
    let env = TestEnv::new(true);
    assert_eq!(env.commit(&mut env.batch(&["before"])).unwrap().last, 1);
    env.state().wal.failures = 2;
    let mut batch = env.batch(&["a", "b", "c"]);
    for _ in 0..2 {
        env.steps();
        assert_eq!(env.commit(&mut batch).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(env.steps().last(), Some(&Append(2)), "nothing happens after it");
        env.assert_untouched(1, "a");
    }
    // The same numbers, for this batch or another.
    assert_eq!(env.commit(&mut env.batch(&["other"])).unwrap().last, 2);
    assert_eq!(env.commit(&mut batch).unwrap().last, 5);
    assert_eq!(env.state().wal.records, [(1, 1), (2, 1), (3, 3)]);
    assert_eq!((env.find(&env.family, "other"), env.find(&env.family, "c")), (Some(2), Some(5)));
}

#[test]
fn a_commit_without_room_or_numbers_takes_none() {
    let env = TestEnv::new(true);
    env.no_room.store(1, Ordering::Relaxed);
    assert_eq!(env.commit(&mut env.batch(&["a"])).unwrap_err().kind(), ErrorKind::Busy);
    env.assert_untouched(0, "a");
    env.state().last_seq = kingtide_base::key::MAX_SEQ - 1;
    assert_eq!(env.commit(&mut env.batch(&["a", "b"])).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(env.state().last_seq, kingtide_base::key::MAX_SEQ - 1);
    assert_eq!(env.state().wal.records, []);
}

#[test]
fn a_panic_amid_filling_memtables_stops_all_commits() {
    let env = TestEnv::new(true);
    env.commit(&mut env.batch(&["before"])).unwrap();
    env.panics.store(1, Ordering::Relaxed);
    let panicked = catch_unwind(AssertUnwindSafe(|| env.commit(&mut env.batch(&["a", "b"]))));
    assert!(panicked.is_err());
    assert_eq!(env.visible.load(Ordering::Acquire), 1, "a part of the batch is in memory and must not be seen");
    assert!(env.state().half_filled && env.state().wal.poison().is_some());
    env.steps();
    for durability in [Durability::Process, Durability::None] {
        let options = WriteOptions { durability: Some(durability), ..WriteOptions::default() };
        let how = Commit::new(&options, Guard::Plain);
        let e = Pipeline::new(&env).commit(&mut env.batch(&["c"]), &how).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Poisoned);
        assert!(e.to_string().contains("interrupted by a panic"), "{e}");
        assert!(!env.steps().iter().any(|s| matches!(s, Append(_) | Apply(_) | Publish(_))));
    }
    assert_eq!(env.state().wal.records, [(1, 1), (2, 2)]);
}

#[test]
fn only_a_batch_on_one_family_may_do_without_the_log() {
    let env = TestEnv::new(true);
    let options = WriteOptions { durability: Some(Durability::None), ..WriteOptions::default() };
    let how = Commit::new(&options, Guard::Plain);
    let commit = |batch: &mut WriteBatch| Pipeline::new(&env).commit(batch, &how).unwrap().unwrap();
    let alone = commit(&mut env.batch(&["a"]));
    assert_eq!((alone.last, alone.lsn), (1, None));
    assert_eq!(env.steps(), [Admit, Check, ASKED, Reserve, Apply(1), Note(1), Publish(1), Hooks(1), Seal, Count]);
    Pipeline::new(&env).sync(alone, Durability::Power).unwrap();
    assert_eq!(env.steps(), [], "there is nothing of it to sync");

    let mut both = env.batch(&["b"]);
    both.push(&env.other, Kind::Put as u8, b"b", None, Some(b"value")).unwrap();
    assert_eq!(commit(&mut both).last, 3);
    let mut resolved = WriteBatch::new();
    resolved.push_resolved(b"xid", false);
    assert_eq!(commit(&mut resolved).last, 4, "a control operation has a number too");
    assert_eq!(env.state().wal.records, [(2, 2), (4, 1)]);
    assert_eq!((env.find(&env.family, "b"), env.find(&env.other, "b")), (Some(2), Some(3)));
}

/// Not before it is visible, when the commit lock is given back.
#[test]
fn a_commit_that_is_logged_has_the_log_synced_within_its_interval() {
    let env = TestEnv::new(true);
    let time = Duration::from_millis(7);
    let options = WriteOptions { durability: Some(Durability::Interval(time)), ..WriteOptions::default() };
    Pipeline::new(&env).commit(&mut env.batch(&["a"]), &Commit::new(&options, Guard::Plain)).unwrap();
    let steps = env.steps();
    assert!(steps.ends_with(&[Publish(1), Hooks(1), Seal, Count, SyncWithin(time)]), "{steps:?}");
}

#[test]
fn a_stopped_log_stops_commits_that_do_without_it() {
    let env = TestEnv::new(true);
    env.state().wal.stop(Error::new(ErrorKind::Poisoned, "a sync failed"));
    for durability in [Durability::None, Durability::Process] {
        let options = WriteOptions { durability: Some(durability), ..WriteOptions::default() };
        let how = Commit::new(&options, Guard::Plain);
        let e = Pipeline::new(&env).commit(&mut env.batch(&["a"]), &how).unwrap_err();
        assert!(e.kind() == ErrorKind::Poisoned && e.to_string().contains("a sync failed"), "{durability:?}: {e}");
        env.assert_untouched(0, "a");
    }
}

/// A transaction that relied on a range, and may so have to be validated in several rounds.
fn validation<'a>(env: &TestEnv, reads: &'a ReadSet) -> Validation<'a> {
    let range = ReadRange { family: env.family.clone(), lower: Bound::Unbounded, upper: Bound::Unbounded, seq: 0 };
    Validation { txn: 7, writes_since: None, writes: None, reads, ranges: vec![range] }
}

#[test]
fn a_refused_validation_takes_no_numbers() {
    let env = TestEnv::new(true);
    let (options, reads) = (WriteOptions::default(), ReadSet::default());
    let v = validation(&env, &reads);
    let how = Commit::admitted(&options, Guard::Checked(&v));
    env.answer([Answer::Refuse]);
    let e = Pipeline::new(&env).commit(&mut env.batch(&["a"]), &how).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Conflict);
    env.assert_untouched(0, "a");
    assert!(
        !env.state().recent.knows_since(u64::MAX),
        "commits list what they write only while a transaction validates"
    );
    assert_eq!(Pipeline::new(&env).commit(&mut env.batch(&["a"]), &how).unwrap().unwrap().last, 1);
    assert_eq!(env.state().wal.records, [(1, 1)]);
}

#[test]
fn validation_looks_outside_the_lock_before_it_reads_tables_under_it() {
    let env = TestEnv::new(true);
    let (options, reads) = (WriteOptions::default(), ReadSet::default());
    let v = validation(&env, &reads);
    env.answer([Answer::LookOutside, Answer::LookOutside, Answer::LookOutside]);
    let how = Commit::admitted(&options, Guard::Checked(&v));
    Pipeline::new(&env).commit(&mut env.batch(&["a"]), &how).unwrap();
    let steps = env.steps();
    let looks: Vec<_> = steps.into_iter().filter(|s| matches!(s, Validate { .. } | Ask { .. })).collect();
    let round = |n: u64| [Validate { checked: n, again: n > 0 }, Ask { checked: n + 1, tables: n == 3 }];
    assert_eq!(looks, [round(0), round(1), round(2), round(3)].concat());
}

#[test]
fn a_commit_waits_for_locks_without_the_commit_lock() {
    let env = TestEnv::new(true);
    let options = WriteOptions::default();
    env.answer([Answer::Wait(1), Answer::Wait(0)]);
    assert_eq!(env.commit(&mut env.batch(&["a", "b"])).unwrap().last, 2);
    let waits: Vec<_> = env.steps().into_iter().filter(|s| matches!(s, WaitForLocks(_))).collect();
    assert_eq!(waits, [WaitForLocks(1), WaitForLocks(0)]);

    env.answer([Answer::Wait(0), Answer::Wait(0), Answer::Wait(0)]);
    assert_eq!(env.commit(&mut env.batch(&["c"])).unwrap_err().kind(), ErrorKind::LockTimeout);
    env.assert_untouched(2, "c");
    env.steps();

    // A commit that must not wait does not, neither for another's lock nor for the commit lock.
    let refused = Cell::new(false);
    let how = Commit { refusal: Some(&refused), ..Commit::admitted(&options, Guard::Plain) };
    env.answer([Answer::Wait(0)]);
    assert!(Pipeline::new(&env).commit(&mut env.batch(&["d"]), &how).is_err() && refused.replace(false));
    assert!(!env.steps().iter().any(|s| matches!(s, WaitForLocks(_))), "{:?}", env.steps());
    let env = TestEnv { alone: false, ..env };
    let held = env.state();
    assert!(Pipeline::new(&env).commit(&mut env.batch(&["d"]), &how).is_err() && refused.replace(false));
    drop(held);
    env.assert_untouched(2, "d");
    assert_eq!(Pipeline::new(&env).commit(&mut env.batch(&["d"]), &how).unwrap().unwrap().last, 3);
    assert!(!refused.get());
}

/// A batch with one value that is long enough to be written once, and the same with a pointer to it.
fn large(env: &TestEnv, file: u64) -> (WriteBatch, (WriteBatch, Vec<Diverted>)) {
    let value = [7; 5000];
    let mut batch = WriteBatch::new();
    batch.push(&env.family, Kind::Put as u8, b"large", None, Some(&value)).unwrap();
    let log = DirectLog::create(&env.fs, Path::new(DIR), &env.tables, || file, &env.family.options()).unwrap();
    let pointer = log.append(&[VlogValue::Plain(&value)]).unwrap().unwrap()[0];
    let mut pointers = WriteBatch::new();
    pointers.push_pointer(&env.family, b"large", None, &pointer).unwrap();
    (batch, (pointers, vec![Diverted { family: 0, log, bytes: pointer.stored_len }]))
}

#[test]
fn a_large_value_is_logged_as_a_pointer_behind_its_file() {
    let env = TestEnv::new(true);
    let (mut batch, diverted) = large(&env, 9);
    let pointers = diverted.0.payload().len() as u64;
    *env.diverted.lock() = Some(diverted);
    let visible = env.commit(&mut batch).unwrap();
    assert_eq!((visible.last, visible.lsn), (1, Some(Lsn(pointers))));
    let steps = env.steps();
    assert_eq!(steps[..6], [Admit, Divert, Check, EnsureLog, ASKED, Reserve]);
    assert_eq!(steps[6..9], [NeedsFirst, Append(1), Apply(1)], "a sync of the log syncs the file first");
    assert_eq!(env.state().wal.records, [(1, 1)]);
}

#[test]
fn a_log_that_must_hold_all_values_gets_them() {
    let env = TestEnv::new(true);
    let (mut batch, diverted) = large(&env, 9);
    let whole = batch.payload().len() as u64;
    *env.diverted.lock() = Some(diverted);
    env.state().holds_values = true; // set after the values were written, before the commit's turn
    assert_eq!(env.commit(&mut batch).unwrap().lsn, Some(Lsn(whole)));
    assert_eq!(env.state().wal.records, [(1, 1)], "it is committed once");

    // Of a value that only a file has, the caller learns that it must write it again.
    let (_, (mut pointers, files)) = large(&env, 10);
    let options = WriteOptions::default();
    let how = Commit { diverted: &files, ..Commit::admitted(&options, Guard::Plain) };
    assert!(Pipeline::new(&env).commit(&mut pointers, &how).unwrap().is_none());
    assert_eq!(env.state().last_seq, 1);
}

/// Commits from several threads batches of 1 to 3 operations, some of which fail in the log, beside a thread that reads. `spawn`
/// runs them. Checks the log and the memtable when they are done.
pub(crate) fn commit_from_threads(threads: usize, commits: usize, spawn: impl Fn(Vec<Box<dyn FnOnce() + Send>>)) {
    let env = Arc::new(TestEnv::new(false));
    let total = Arc::new(AtomicU64::new(0));
    let one = |t: usize| -> Box<dyn FnOnce() + Send> {
        let (env, total) = (env.clone(), total.clone());
        Box::new(move || {
            let mut before = 0;
            for n in 0..commits {
                let keys: Vec<_> = (0..=(t + n) % 3).map(|i| format!("{t}-{n}-{i}")).collect();
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                if (t + n) % 4 == 3 {
                    env.state().wal.failures += 1; // of this thread or of another
                }
                let committed = loop {
                    match env.commit(&mut env.batch(&keys)) {
                        Ok(visible) => break visible,
                        Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace),
                    }
                };
                assert!(committed.last > before, "numbers rise");
                assert!(env.visible.load(Ordering::Acquire) >= committed.last, "visible when the call returns");
                let first = committed.last + 1 - keys.len() as u64;
                for (i, key) in keys.iter().enumerate() {
                    assert_eq!(env.find(&env.family, key), Some(first + i as u64));
                }
                before = committed.last;
                total.fetch_add(keys.len() as u64, Ordering::Relaxed);
            }
        })
    };
    let reader = || -> Box<dyn FnOnce() + Send> {
        let env = env.clone();
        Box::new(move || {
            for _ in 0..commits {
                let visible = env.visible.load(Ordering::Acquire);
                let found = env.family.view.load().active.len();
                assert!(found >= visible, "{visible} is visible, and {found} entries are in memory");
            }
        })
    };
    spawn((0..threads).map(one).chain([reader()]).collect());
    let (state, total) = (env.state(), total.load(Ordering::Relaxed));
    let mut next = 1;
    for (base, count) in &state.wal.records {
        assert_eq!(*base, next, "the log has each number once, in order");
        next += u64::from(*count);
    }
    assert_eq!((next - 1, state.last_seq, env.visible.load(Ordering::Acquire)), (total, total, total));
}

#[test]
fn threads_in_turns_get_contiguous_numbers() {
    commit_from_threads(4, 200, |threads| {
        std::thread::scope(|s| threads.into_iter().for_each(|t| drop(s.spawn(t))));
    });
}
