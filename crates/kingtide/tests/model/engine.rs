//! The engine's side of a script: does the operations to a database under one option set.

use crate::model::answer::Answer;
use crate::model::ops::{CURSORS, Change, FAMILIES, HELD, Key, Move, Op, Range, SNAPSHOTS, TxnOp, Write};
use crate::model::sets::{Disk, Set, rows, value_for, values};
use crate::model::world::REMEMBERED;
use kingtide::backup::{Backup, BackupOptions};
use kingtide::vfs::{Fs, MemFs, SystemFs};
use kingtide::{
    Clock, ColumnFamily, Cursor, Db, DbOptions, Durability, Error, ErrorKind, ManualClock, Options, ProblemKind,
    ReadOptions, SeqNo, Snapshot, SystemClock, Transaction, TransactionCursor, TransactionOptions, WriteBatch,
    WriteOptions,
};
use kingtide_base::rng::Rng;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the clock shows when a script begins, in Unix milliseconds.
pub const START_MS: u64 = 1_700_000_000_000;

/// How often something was done.
pub type Counts = BTreeMap<&'static str, u64>;

/// Expiry moves only when the script says so; waiting takes real time where there are real threads.
struct ScriptClock {
    unix_ms: AtomicU64,
    waiting: Arc<dyn Clock>,
}

impl Clock for ScriptClock {
    fn monotonic_ns(&self) -> u64 {
        self.waiting.monotonic_ns()
    }
    fn unix_ms(&self) -> u64 {
        self.unix_ms.load(Ordering::SeqCst)
    }
    fn sleep(&self, d: Duration) {
        self.waiting.sleep(d);
    }
}

/// A temporary directory.
struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Where the files of a set are: the named ones on the disk, the many generated ones in memory where the system has such
/// a directory, for a sync there takes no time.
fn place_for(set: &Set) -> PathBuf {
    let memory = Path::new("/dev/shm");
    if set.name.starts_with("generated") && memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

pub struct Engine<'a> {
    set: &'a Set,
    rng: Rng,
    fs: Arc<dyn Fs>,
    memory: Option<MemFs>,
    dir: PathBuf,
    script_clock: Arc<ScriptClock>,
    manual_clock: Option<Arc<ManualClock>>,
    db: Option<Db>,
    families: [Option<ColumnFamily>; FAMILIES],
    snapshots: [Option<Snapshot>; SNAPSHOTS],
    cursors: [Option<(Cursor, usize)>; CURSORS],
    txns: [Option<Transaction>; HELD + 1],
    batch: WriteBatch,
    /// Sequence numbers after the last operations that commit, newest first.
    commits: VecDeque<SeqNo>,
    /// Commits may be in memory only.
    unlogged: bool,
    opens: u64,
    copies: u64,
    pub counts: Counts,
    _temp: Option<TempDir>,
}

/// An iterator of whatever kind.
trait Walk {
    fn go(&mut self, step: &Move);
    fn shown(&mut self) -> Result<Option<(&[u8], &[u8])>, Error>;
}

macro_rules! walk {
    ($($iterator:ty),*) => { $(
        impl Walk for $iterator {
            fn go(&mut self, step: &Move) {
                match step {
                    Move::First => self.seek_to_first(),
                    Move::Last => self.seek_to_last(),
                    Move::Seek(k) => self.seek(k),
                    Move::SeekForPrev(k) => self.seek_for_prev(k),
                    Move::Next => self.next(),
                    Move::Prev => self.prev(),
                }
            }
            fn shown(&mut self) -> Result<Option<(&[u8], &[u8])>, Error> {
                self.status()?;
                if self.valid() { self.entry().map(Some) } else { Ok(None) }
            }
        }
    )* };
}
walk!(Cursor, TransactionCursor);

fn moves(it: &mut impl Walk, moves: &[Move], answer: &mut Answer) {
    for step in moves {
        it.go(step);
        answer.entry(it.shown().unwrap_or_else(|e| panic!("after {step:?}: {e}")));
    }
}

fn kind<T>(done: kingtide::Result<T>) -> Result<(), ErrorKind> {
    done.map(drop).map_err(|e| e.kind())
}

fn read_options<'s>(range: &Range, snapshot: Option<&'s Snapshot>, rng: &mut Rng) -> ReadOptions<'s> {
    let mut options = ReadOptions::new().snapshot(snapshot).fill_cache(rng.one_in(2)).readahead(rng.one_in(3));
    options.lower = range.lower.clone().map(|k| k.0);
    options.upper = range.upper.clone().map(|k| k.0);
    options.prefix = range.prefix.clone().map(|p| p.0);
    options
}

/// All entries of a family, forward, after seeing that they are the same backward.
fn scan_family(family: &ColumnFamily, snapshot: Option<&Snapshot>, answer: &mut Answer) {
    answer.name(family.name().as_bytes());
    let mut it = family.cursor_with(ReadOptions::new().snapshot(snapshot)).expect("iterator");
    let mut forward = Vec::new();
    it.seek_to_first();
    while let Some((key, value)) = it.shown().expect("forward") {
        answer.entry(Some((key, value)));
        forward.push((key.to_vec(), kingtide_base::hash::hash64(value)));
        it.next();
    }
    it.seek_to_last();
    for (key, hash) in forward.iter().rev() {
        let (k, v) = it.shown().expect("backward").expect("as many entries backward as forward");
        assert!(k == key && kingtide_base::hash::hash64(v) == *hash, "backward: {:?} is not {key:?}", k.to_vec());
        it.prev();
    }
    assert!(it.shown().expect("status").is_none(), "more entries backward than forward");
}

impl<'a> Engine<'a> {
    pub fn new(set: &'a Set, seed: u64) -> Engine<'a> {
        let manual_clock = set.manual.then(|| ManualClock::at_unix_ms(START_MS));
        let waiting = manual_clock.clone().map_or_else(SystemClock::shared, |c| c as Arc<dyn Clock>);
        let (memory, fs, dir, temp): (_, Arc<dyn Fs>, _, _) = match set.disk {
            Disk::Memory => {
                let fs = MemFs::new();
                (Some(fs.clone()), Arc::new(fs), PathBuf::from("/db"), None)
            }
            Disk::Posix => {
                let dir = place_for(set).join(format!("kingtide-{}-{}-{seed}", set.name, std::process::id()));
                let _ = std::fs::remove_dir_all(&dir);
                std::fs::create_dir_all(&dir).expect("a directory for the set");
                (None, SystemFs::shared(), dir.join("db"), Some(TempDir(dir)))
            }
        };
        let mut engine = Engine {
            set,
            rng: Rng::new(kingtide_base::hash::hash64(set.name.as_bytes()) ^ seed),
            fs,
            memory,
            dir,
            script_clock: Arc::new(ScriptClock { unix_ms: AtomicU64::new(START_MS), waiting }),
            manual_clock,
            db: None,
            families: Default::default(),
            snapshots: Default::default(),
            cursors: Default::default(),
            txns: Default::default(),
            batch: WriteBatch::new(),
            commits: VecDeque::new(),
            unlogged: false,
            opens: 0,
            copies: 0,
            counts: Counts::new(),
            _temp: temp,
        };
        engine.open();
        engine
    }

    fn options(&self) -> Options {
        let mut options = self.set.open_options(self.opens);
        // Each is legal only where there is (or is not) a database.
        options.db.create_if_missing |= self.opens == 0;
        options.db.error_if_exists &= self.opens == 0;
        options.fs = Some(self.fs.clone());
        options.clock = Some(self.script_clock.clone());
        options
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("open")
    }

    fn family(&self, slot: usize) -> &ColumnFamily {
        self.families[slot].as_ref().expect("a family")
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn committed(&mut self) {
        self.commits.push_front(self.db().latest_sequence());
        self.commits.truncate(REMEMBERED as usize);
    }

    fn open(&mut self) {
        let options = self.options();
        self.unlogged = options.db.durability == Durability::None;
        let db = Db::open(&self.dir, options).expect("open");
        let mut names: Vec<String> = self.families.iter().flatten().map(|f| f.name()).collect();
        if self.opens == 0 {
            self.families[0] = Some(db.default_family().clone());
            self.commits.push_front(db.latest_sequence());
        } else {
            names.sort();
            assert_eq!(db.families(), names, "families after opening");
            for family in self.families.iter_mut().flatten() {
                let order = family.order().name().to_owned();
                *family = db.family(&family.name()).expect("family");
                assert_eq!(family.order().name(), order);
            }
        }
        self.opens += 1;
        self.db = Some(db);
    }

    fn reopen(&mut self) {
        (self.snapshots, self.cursors, self.txns) = Default::default();
        self.batch.clear();
        self.count_work();
        let db = self.db.take().expect("open");
        let kill = self.memory.is_some() && self.rng.one_in(2);
        if self.rng.one_in(2) || (kill && self.unlogged) {
            db.flush().expect("flush before closing");
        }
        if let Some(memory) = self.memory.as_ref().filter(|_| kill) {
            let killed = memory.kill_clone();
            self.fs = Arc::new(killed.clone());
            self.memory = Some(killed);
            self.count("kills");
        } else {
            db.close().expect("close");
            let e = self.family(0).get(b"key").expect_err("closed");
            assert_eq!(e.kind(), ErrorKind::Closed);
        }
        drop(db);
        if self.rng.one_in(4) {
            self.verify_closed(kill);
        }
        self.open();
    }

    fn verify_closed(&mut self, killed: bool) {
        let mut report = kingtide::verify(&self.dir, &self.options()).expect("verify");
        // What was being read, or written by a merge, when the process was killed.
        report.problems.retain(|p| !killed || p.kind != ProblemKind::Orphan);
        assert!(report.is_clean(), "verify: {:?}", report.problems);
        self.count("verified while closed");
    }

    /// The end of a run.
    pub fn finish(&mut self) {
        let report = self.db().verify().expect("verify");
        assert!(report.is_clean(), "verify while open: {:?}", report.problems);
        self.count_work();
        (self.snapshots, self.cursors, self.txns) = Default::default();
        self.db.take().expect("open").close().expect("close");
        self.verify_closed(false);
    }

    /// Adds up what the engine did beside the operations, so that a run that tested little is seen.
    fn count_work(&mut self) {
        for (name, n) in self.db().stats().counters {
            if ["flushes", "compactions", "trivial_moves", "vlogs_deleted"].contains(&name) {
                *self.counts.entry(name).or_default() += n;
            }
        }
    }

    /// Does an operation. False when it was refused as is its right, and the answer says nothing.
    pub fn apply(&mut self, op: &Op, answer: &mut Answer) -> bool {
        match op {
            Op::Write(write) => {
                answer.outcome(self.write(write));
                self.committed();
            }
            Op::Batch(writes) => self.write_batch(writes, answer),
            Op::Get(f, key) => answer.value(self.family(*f).get(key).expect("get").as_deref()),
            Op::GetInAllWays(f, key) => self.get_in_all_ways(*f, key, answer),
            Op::MultiGet(f, keys) => {
                for got in self.family(*f).multi_get(keys) {
                    answer.value(got.expect("multi_get").as_deref());
                }
            }
            Op::GetAt(slot, f, key) => {
                let snapshot = self.snapshots[*slot].as_ref().expect("a snapshot");
                answer.value(snapshot.of(self.family(*f)).get(key).expect("get_at").as_deref());
            }
            Op::GetBefore(back, f, key) => return self.get_before(*back, *f, key, answer),
            Op::Scan(slot) => {
                let snapshot = slot.map(|s| self.snapshots[s].as_ref().expect("a snapshot"));
                self.families.iter().flatten().for_each(|f| scan_family(f, snapshot, answer));
            }
            Op::Snapshot(slot) => self.snapshots[*slot] = Some(self.db().snapshot()),
            Op::DropSnapshot(slot) => self.snapshots[*slot] = None,
            Op::Advance(ms) => {
                self.script_clock.unix_ms.fetch_add(*ms, Ordering::SeqCst);
                self.manual_clock.iter().for_each(|c| c.advance(Duration::from_millis(*ms)));
            }
            Op::Flush(None) => self.db().flush().expect("flush"),
            Op::Flush(Some(f)) => self.family(*f).flush().expect("flush of a family"),
            Op::Compact(f, lo, hi) => {
                let range = [lo, hi].map(|k| k.as_deref().map_or(Bound::Unbounded, Bound::Included));
                self.family(*f).compact_range(range).expect("compact_range");
            }
            Op::Housekeeping => self.housekeeping(),
            Op::Reopen => self.reopen(),
            Op::Copy => self.copy(answer),
            Op::ReadOnly(f, keys) => self.read_only(*f, keys, answer),
            Op::Iterate(..) | Op::Hold(..) | Op::MoveHeld(..) | Op::Refresh(_) | Op::DropHeld(_) => {
                self.iterate(op, answer)
            }
            Op::CreateFamily(..) | Op::DropFamily(_) | Op::RenameFamily(..) | Op::SetTtl(..) => {
                self.change_families(op, answer)
            }
            Op::Begin(..) | Op::InTxn(..) | Op::Commit(_) | Op::Rollback(_) | Op::Doubt { .. } => {
                self.transact(op, answer)
            }
        }
        true
    }

    // Writes.

    fn write(&self, write: &Write) -> Result<(), ErrorKind> {
        let family = self.family(write.family);
        kind(match &write.change {
            Change::Put(key, value, None) => family.put(key, &**value),
            Change::Put(key, value, Some(ms)) => family.put_ttl(key, &**value, Duration::from_millis(*ms)),
            Change::Delete(key) => family.delete(key),
            Change::SingleDelete(key) => family.single_delete(key),
            Change::DeleteRange(start, end) => family.delete_range(start..end),
            Change::DeletePrefix(prefix) => family.delete_prefix(prefix),
        })
    }

    fn write_batch(&mut self, writes: &[Write], answer: &mut Answer) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        for write in writes {
            let family = self.family(write.family);
            answer.outcome(kind(match &write.change {
                Change::Put(key, value, None) => batch.put(family, key, value),
                Change::Put(key, value, Some(ms)) => batch.put_ttl(family, key, value, Duration::from_millis(*ms)),
                Change::Delete(key) => batch.delete(family, key),
                Change::SingleDelete(key) => batch.single_delete(family, key),
                Change::DeleteRange(start, end) => batch.delete_range(family, start..end),
                Change::DeletePrefix(prefix) => batch.delete_prefix(family, prefix),
            }));
        }
        // A real disk takes milliseconds for a sync.
        let durability = match self.rng.below(if self.set.disk == Disk::Posix { 200 } else { 8 }) {
            0 => Some(Durability::Power),
            1 => Some(Durability::Process),
            2 => {
                self.unlogged = true;
                Some(Durability::None)
            }
            _ => None,
        };
        self.db().write_with(&mut batch, &WriteOptions::new().durability(durability)).expect("write");
        self.batch = batch;
        self.committed();
    }

    // Reads.

    fn get_in_all_ways(&mut self, f: usize, key: &Key, answer: &mut Answer) {
        let family = self.family(f).clone();
        let found = family.get(key).expect("get").map(|v| v.to_vec());
        let expected = found.as_deref();
        answer.value(expected);
        let mut into = vec![7; 9];
        let there = family.get_into(key, &mut into).expect("get_into");
        assert_eq!(there.then_some(&into[..]), expected, "get_into");
        for got in family.multi_get(&[key, key]) {
            assert_eq!(got.expect("multi_get").as_deref(), expected, "multi_get");
        }
        let snapshot = self.db().snapshot();
        assert_eq!(snapshot.of(&family).get(key).expect("get_at").as_deref(), expected, "get_at");
        let by_number = self.db().snapshot_at(self.db().latest_sequence()).expect("snapshot_at");
        assert_eq!(by_number.of(&family).get(key).expect("get_at").as_deref(), expected, "get at the newest");
        let mut it = family.cursor(..).expect("iterator");
        for step in [Move::Seek(key.clone()), Move::SeekForPrev(key.clone())] {
            it.go(&step);
            let shown = it.shown().expect("seek").filter(|(k, _)| family.order().compare(k, key).is_eq());
            assert_eq!(shown.map(|(_, v)| v), expected, "{step:?}");
        }
        let levels = [kingtide::Isolation::ReadCommitted, kingtide::Isolation::Snapshot];
        let isolation = levels[self.rng.below(2) as usize];
        let mut txn = self.db().begin_with(TransactionOptions::new(isolation)).expect("begin");
        assert_eq!(txn.get(&family, key).expect("get").as_deref(), expected, "in a transaction");
    }

    fn get_before(&mut self, back: u64, f: usize, key: &Key, answer: &mut Answer) -> bool {
        let Some(seq) = self.commits.get(back as usize).copied() else { return false };
        match self.db().snapshot_at(seq) {
            Ok(snapshot) => {
                answer.value(snapshot.of(self.family(f)).get(key).expect("get_at").as_deref());
                self.count("read at an unheld sequence");
                true
            }
            Err(e) => {
                assert!(e.kind() == ErrorKind::TooOld && seq < self.db().oldest_readable_sequence(), "{e}");
                false
            }
        }
    }

    fn iterator(&mut self, range: &Range, snapshot: Option<usize>) -> Cursor {
        let snapshot = snapshot.map(|s| self.snapshots[s].as_ref().expect("a snapshot"));
        let options = read_options(range, snapshot, &mut self.rng);
        self.family(range.family).cursor_with(options).expect("iterator")
    }

    fn iterate(&mut self, op: &Op, answer: &mut Answer) {
        match op {
            Op::Iterate(range, snapshot, steps) => moves(&mut self.iterator(range, *snapshot), steps, answer),
            Op::Hold(slot, range, snapshot) => {
                self.cursors[*slot] = Some((self.iterator(range, *snapshot), range.family));
            }
            Op::MoveHeld(slot, steps) => {
                moves(&mut self.cursors[*slot].as_mut().expect("an iterator").0, steps, answer);
            }
            Op::Refresh(slot) => {
                let (mut it, f) = self.cursors[*slot].take().expect("an iterator");
                self.family(f).refresh(&mut it).expect("refresh");
                self.cursors[*slot] = Some((it, f));
            }
            Op::DropHeld(slot) => self.cursors[*slot] = None,
            other => unreachable!("{other:?}"),
        }
    }

    // Transactions.

    fn transact(&mut self, op: &Op, answer: &mut Answer) {
        match op {
            Op::Begin(slot, isolation, locking) => {
                let options = TransactionOptions::new(*isolation).locking(*locking);
                self.txns[*slot] = Some(self.db().begin_with(options).expect("begin"));
            }
            Op::InTxn(slot, op) => {
                let mut txn = self.txns[*slot].take().expect("a transaction");
                self.in_txn(&mut txn, op, answer);
                self.txns[*slot] = Some(txn);
            }
            Op::Rollback(slot) => {
                self.txns[*slot].take().expect("a transaction").rollback().expect("rollback");
            }
            Op::Commit(slot) => {
                let mut txn = self.txns[*slot].take().expect("a transaction");
                let done = txn.commit().map(|_| ());
                if done.is_err() {
                    self.count("conflicts");
                }
                answer.outcome(kind(done));
                self.committed();
            }
            Op::Doubt { writes, reopen, commit } => self.doubt(writes, *reopen, *commit, answer),
            other => unreachable!("{other:?}"),
        }
    }

    fn in_txn(&mut self, txn: &mut Transaction, op: &TxnOp, answer: &mut Answer) {
        match op {
            TxnOp::Write(write) => answer.outcome(kind(self.write_in(txn, write))),
            TxnOp::Get(f, key) => answer.value(txn.get(self.family(*f), key).expect("get").as_deref()),
            TxnOp::MultiGet(f, keys) => {
                for got in txn.multi_get(self.family(*f), keys) {
                    answer.value(got.expect("multi_get").as_deref());
                }
            }
            TxnOp::Iterate(range, steps) => {
                let options = read_options(range, None, &mut self.rng);
                let mut it = txn.cursor_with(self.family(range.family), options).expect("iterator");
                moves(&mut it, steps, answer);
            }
            TxnOp::Savepoint(name) => txn.set_savepoint(&name.to_string()).expect("savepoint"),
            TxnOp::RollbackTo(name) => answer.outcome(kind(txn.rollback_to_savepoint(&name.to_string()))),
            TxnOp::Release(name) => answer.outcome(kind(txn.release_savepoint(&name.to_string()))),
        }
    }

    fn write_in(&self, txn: &mut Transaction, write: &Write) -> kingtide::Result<()> {
        let family = self.family(write.family);
        match &write.change {
            Change::Put(key, value, None) => txn.put(family, key, value),
            Change::Put(key, value, Some(ms)) => txn.put_ttl(family, key, value, Duration::from_millis(*ms)),
            Change::Delete(key) => txn.delete(family, key),
            Change::SingleDelete(key) => txn.single_delete(family, key),
            Change::DeleteRange(start, end) => txn.delete_range(family, start..end),
            Change::DeletePrefix(prefix) => txn.delete_prefix(family, prefix),
        }
    }

    fn doubt(&mut self, writes: &[Write], reopen: bool, commit: bool, answer: &mut Answer) {
        let mut txn = self.db().begin(kingtide::Isolation::ReadCommitted).expect("begin");
        for write in writes {
            let done = self.write_in(&mut txn, write);
            if commit {
                answer.outcome(kind(done));
            }
        }
        txn.prepare(b"in doubt").expect("prepare");
        drop(txn);
        if reopen {
            self.reopen();
            let doubts: Vec<_> = self.db().recover_prepared().into_iter().map(|p| p.xid).collect();
            assert!(doubts.len() == 1, "{} transactions in doubt", doubts.len());
        }
        if commit {
            self.db().commit_prepared(b"in doubt").expect("commit of what was prepared");
        } else {
            self.db().rollback_prepared(b"in doubt").expect("rollback of what was prepared");
        }
        self.committed();
    }

    // What must not change an answer.

    fn housekeeping(&mut self) {
        if self.rng.one_in(40) {
            self.set_an_option();
        } else if self.set.manual {
            for _ in 0..self.rng.below(3) + 1 {
                self.db().run_one_job().expect("background job");
            }
        } else if self.rng.one_in(100) {
            self.db().wait_for_background().expect("background");
        }
    }

    fn set_an_option(&mut self) {
        let live: Vec<_> = rows().into_iter().filter(|r| r.live && !values(r.name).is_empty()).collect();
        let name = live[self.rng.below(live.len() as u64) as usize].name;
        let value = value_for(name, self.set.disk, &mut self.rng);
        if DbOptions::default().get(name).is_some() {
            self.unlogged |= value == "none";
            if let Err(e) = self.db().set_option(name, value) {
                let too_small = e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("option memory_limit");
                assert!(too_small, "set_option {name}={value}: {e}");
            }
        } else {
            let there: Vec<&ColumnFamily> = self.families.iter().flatten().collect();
            let family = there[self.rng.below(there.len() as u64) as usize];
            family.set_option(name, value).expect("set_option of a family");
        }
        self.count("options changed");
    }

    fn change_families(&mut self, op: &Op, answer: &mut Answer) {
        match op {
            Op::CreateFamily(slot, name, order, ttl_ms) => {
                let mut options = self.set.open_options(self.rng.below(2)).family;
                options.set("ttl_ms", &ttl_ms.to_string()).unwrap();
                options.value_threshold = [options.value_threshold, 0, 40, 512][self.rng.below(4) as usize];
                let order = self.set.class.orders[*order].order();
                let made = self.db().create_family_ordered(name, options, order);
                answer.outcome(made.as_ref().map(|_| ()).map_err(|e| e.kind()));
                self.families[*slot] = made.ok();
            }
            Op::RenameFamily(slot, name) => {
                answer.outcome(kind(self.db().rename_family(&self.family(*slot).name(), name)));
            }
            Op::DropFamily(slot) => {
                let family = self.families[*slot].take().expect("a family");
                answer.outcome(kind(self.db().drop_family(&family.name())));
                assert_eq!(family.get(b"key").expect_err("dropped").kind(), ErrorKind::Closed);
                assert_eq!(family.put(b"key", b"").expect_err("dropped").kind(), ErrorKind::Closed);
            }
            Op::SetTtl(slot, ms) => self.family(*slot).set_option("ttl_ms", &ms.to_string()).expect("ttl_ms"),
            other => unreachable!("{other:?}"),
        }
    }

    // Copies.

    fn beside(&mut self, what: &str) -> PathBuf {
        self.copies += 1;
        self.dir.with_file_name(format!("{what}-{}", self.copies))
    }

    fn copy(&mut self, answer: &mut Answer) {
        let copy = self.beside("copy");
        if self.rng.one_in(2) {
            self.db().checkpoint(&copy).expect("checkpoint");
            self.count("checkpoints");
        } else {
            let backup = Backup::on(self.fs.clone(), self.dir.with_file_name("backups"));
            let made = backup.create(self.db(), BackupOptions::default()).expect("backup");
            backup.verify(made.id, BackupOptions::default()).expect("verification of a backup");
            backup.restore_to(made.id, &self.fs, &copy, BackupOptions::default()).expect("restore");
            backup.purge(2).expect("purge");
            self.count("backups");
        }
        let mut options = self.options();
        options.db.error_if_exists = false;
        let db = if self.rng.one_in(2) { Db::open(&copy, options) } else { Db::open_read_only(&copy, options) };
        let db = db.expect("open of the copy");
        for family in self.families.iter().flatten() {
            scan_family(&db.family(&family.name()).expect("family of the copy"), None, answer);
        }
        db.close().expect("close of the copy");
        remove_all(&*self.fs, &copy);
    }

    fn read_only(&mut self, f: usize, keys: &[Key], answer: &mut Answer) {
        if self.unlogged {
            self.db().flush().expect("flush");
        }
        let reader = Db::open_read_only(&self.dir, self.options()).expect("open for reading");
        let family = reader.family(&self.family(f).name()).expect("family");
        keys.iter().for_each(|k| answer.value(family.get(k).expect("get").as_deref()));
    }
}

fn remove_all(fs: &dyn Fs, dir: &Path) {
    for name in fs.list(dir).expect("list") {
        fs.remove(&dir.join(name)).expect("remove");
    }
}
