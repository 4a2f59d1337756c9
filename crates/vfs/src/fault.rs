//! A file system that fails on command, for testing what stands on it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kingtide_base::lock::Mutex;
use kingtide_base::options::FileMode;
use kingtide_base::rng::Rng;
use kingtide_base::{Error, Result};

use crate::system::Errno;
use crate::{DirId, File, FileLock, Fs, OpenMode, is_one_write};

/// The kinds of operation that a [`Rule`] can hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Op {
    /// `open`, `open_log`, `lock` and `lock_shared`.
    Open,
    /// `read_at`, `len`, `list` and `exists`.
    Read,
    /// `write_at` and `write_record_at`.
    Write,
    /// `sync_data` and `sync_all`.
    Sync,
    /// `sync_dir`.
    SyncDir,
    /// `rename` and `hard_link`.
    Rename,
    /// `remove` and `remove_dir`.
    Remove,
    /// `allocate`, `truncate`, `create_dir_all`, and the allocation of a log segment.
    Allocate,
}

impl Op {
    /// Every kind.
    pub const ALL: [Op; 8] =
        [Op::Open, Op::Read, Op::Write, Op::Sync, Op::SyncDir, Op::Rename, Op::Remove, Op::Allocate];

    fn verb(self) -> &'static str {
        match self {
            Op::Open => "open",
            Op::Read => "read",
            Op::Write => "write",
            Op::Sync => "sync",
            Op::SyncDir => "sync directory",
            Op::Rename => "rename",
            Op::Remove => "remove",
            Op::Allocate => "allocate",
        }
    }
}

/// What a hit operation does instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Fails with EIO, having done nothing.
    Eio,
    /// Fails with ENOSPC, having done nothing.
    Enospc,
    /// Fails with EDQUOT, having done nothing.
    Edquot,
    /// Fails with EMFILE, having done nothing.
    Emfile,
    /// Fails with EINTR, having done nothing. (The POSIX file system retries it itself; this is one that got through.)
    Eintr,
    /// A `read_at` returns at most half of what was asked for, without an error. Any other operation is left alone.
    ShortRead,
    /// A `write_at` or `write_record_at` stores half of its bytes, then fails with EIO. Any other operation is left alone.
    ShortWrite,
    /// A `rename`, `hard_link`, `write_at` or `write_record_at` takes effect, but fails with EIO, as one over a network may. Any other
    /// operation is left alone.
    DoneEio,
    /// Panics, having done nothing, as a file system of the caller's own may.
    Panic,
}

impl Fault {
    fn error(self, op: Op, path: &Path) -> Error {
        let e = match self {
            Fault::Eio | Fault::ShortRead | Fault::ShortWrite | Fault::DoneEio => Errno::IO,
            Fault::Enospc => Errno::NOSPC,
            Fault::Edquot => Errno::DQUOT,
            Fault::Emfile => Errno::MFILE,
            Fault::Eintr => Errno::INTR,
            Fault::Panic => std::panic::resume_unwind(Box::new("injected")), // without a message, which takes long
        };
        Error::io(op.verb(), path, e.into()).context("injected")
    }

    fn applies_to(self, op: Op, partial: bool) -> bool {
        match self {
            Fault::ShortRead => op == Op::Read && partial,
            Fault::ShortWrite => op == Op::Write && partial,
            Fault::DoneEio => op == Op::Rename || op == Op::Write && partial,
            _ => true,
        }
    }
}

/// When to inject what. As built by [`Rule::new`]: the next matching operation, once.
#[derive(Clone, Debug)]
pub struct Rule {
    op: Op,
    fault: Fault,
    path: Option<String>,
    skip: u64,
    probability: Option<f64>,
    sticky: bool,
}

impl Rule {
    /// The next operation of this kind fails, once.
    pub fn new(op: Op, fault: Fault) -> Rule {
        Rule { op, fault, path: None, skip: 0, probability: None, sticky: false }
    }

    /// Only paths that contain this text.
    pub fn path(mut self, part: impl Into<String>) -> Rule {
        self.path = Some(part.into());
        self
    }

    /// The n-th matching operation from now, counting from 1, instead of the next.
    pub fn nth(mut self, n: u64) -> Rule {
        self.skip = n.saturating_sub(1);
        self
    }

    /// Each matching operation with this probability, for ever; drawn from the file system's seed.
    pub fn probability(mut self, p: f64) -> Rule {
        self.probability = Some(p);
        self
    }

    /// Once hit, every later matching operation fails too.
    pub fn sticky(mut self) -> Rule {
        self.sticky = true;
        self
    }
}

/// How often each kind of operation was asked for, and how often one was made to fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultStats {
    ops: [u64; Op::ALL.len()],
    injected: u64,
}

impl FaultStats {
    /// Operations of a kind, those that failed included.
    pub fn count(&self, op: Op) -> u64 {
        self.ops[op as usize]
    }

    /// Operations that a rule hit.
    pub fn injected(&self) -> u64 {
        self.injected
    }
}

#[derive(Debug)]
struct Rules {
    list: Vec<Rule>,
    rng: Rng,
}

/// What [`FaultFs::before_each`] calls.
pub type BeforeEach = Arc<dyn Fn(Op, &Path) + Send + Sync>;

/// What [`FaultFs::after_syncs`] calls.
pub type AfterSync = Arc<dyn Fn(&Path) + Send + Sync>;

struct Watcher<T>(Mutex<Option<T>>);

impl<T> Default for Watcher<T> {
    fn default() -> Watcher<T> {
        Watcher(Mutex::new(None))
    }
}

impl<T> std::fmt::Debug for Watcher<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watcher")
    }
}

#[derive(Debug)]
struct Control {
    before_each: Watcher<BeforeEach>,
    after_syncs: Watcher<AfterSync>,
    enabled: AtomicBool,
    ops: [AtomicU64; Op::ALL.len()],
    injected: AtomicU64,
    bytes_read: AtomicU64,
    rules: Mutex<Rules>,
}

impl Control {
    /// Counts the operation and says what should go wrong with it; `partial` when it can be done in part.
    fn draw(&self, op: Op, path: &Path, partial: bool) -> Option<Fault> {
        // Relaxed: plain counters and a switch that orders nothing else.
        self.ops[op as usize].fetch_add(1, Ordering::Relaxed);
        let before = self.before_each.0.lock().clone();
        if let Some(before) = before {
            before(op, path);
        }
        if !self.enabled.load(Ordering::Relaxed) {
            return None;
        }
        let mut rules = self.rules.lock();
        let Rules { list, rng } = &mut *rules;
        let hit = list.iter_mut().position(|r| {
            if r.op != op || !r.fault.applies_to(op, partial) {
                return false;
            }
            if r.path.as_ref().is_some_and(|part| !path.to_string_lossy().contains(part.as_str())) {
                return false;
            }
            if r.skip > 0 {
                r.skip -= 1;
                return false;
            }
            r.probability.is_none_or(|p| rng.unit() < p)
        })?;
        let rule = &mut list[hit];
        let fault = rule.fault;
        if rule.sticky {
            rule.probability = None;
        } else if rule.probability.is_none() {
            list.remove(hit);
        }
        self.injected.fetch_add(1, Ordering::Relaxed);
        Some(fault)
    }

    /// For a rename or link, which may happen and fail nevertheless.
    fn check_or_do(&self, to: &Path, act: impl FnOnce() -> Result<()>) -> Result<()> {
        let fault = self.draw(Op::Rename, to, false);
        if fault.is_none_or(|f| f == Fault::DoneEio) {
            act()?;
        }
        fault.map_or(Ok(()), |f| Err(f.error(Op::Rename, to)))
    }

    /// A sync, and what is to be called when it has succeeded.
    fn sync(&self, op: Op, path: &Path, act: impl FnOnce() -> Result<()>) -> Result<()> {
        self.check(op, path)?;
        act()?;
        let after = self.after_syncs.0.lock().clone();
        if let Some(after) = after {
            after(path);
        }
        Ok(())
    }

    /// For the operations that either happen or do not.
    fn check(&self, op: Op, path: &Path) -> Result<()> {
        match self.draw(op, path, false) {
            Some(fault) => Err(fault.error(op, path)),
            None => Ok(()),
        }
    }
}

/// Wraps a file system and injects errors by rule. Cloning the handle shares rules and counters.
#[derive(Clone, Debug)]
pub struct FaultFs {
    inner: Arc<dyn Fs>,
    control: Arc<Control>,
}

impl FaultFs {
    /// Wraps `inner`; `seed` drives the rules with a probability.
    pub fn new(inner: Arc<dyn Fs>, seed: u64) -> FaultFs {
        let control = Control {
            before_each: Watcher::default(),
            after_syncs: Watcher::default(),
            enabled: AtomicBool::new(true),
            ops: Default::default(),
            injected: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            rules: Mutex::new(Rules { list: Vec::new(), rng: Rng::new(seed) }),
        };
        FaultFs { inner, control: Arc::new(control) }
    }

    /// The wrapped file system.
    pub fn inner(&self) -> &Arc<dyn Fs> {
        &self.inner
    }

    /// Adds a rule. The first rule that matches an operation decides.
    pub fn add(&self, rule: Rule) {
        self.control.rules.lock().list.push(rule);
    }

    /// Drops all rules: the trouble is over.
    pub fn clear(&self) {
        self.control.rules.lock().list.clear();
    }

    /// Has `call` called before each operation, on its thread and without a lock of the file system: it may take its time, as a
    /// slow disk does, and use the file system itself.
    pub fn before_each(&self, call: Option<BeforeEach>) {
        *self.control.before_each.0.lock() = call;
    }

    /// Has `call` called after each sync of a file or directory that succeeded, before its caller learns of it: what is written
    /// then is not synced. As for [`FaultFs::before_each`], no lock of the file system is held.
    pub fn after_syncs(&self, call: Option<AfterSync>) {
        *self.control.after_syncs.0.lock() = call;
    }

    /// Switches injection on or off; rules neither fire nor count down while it is off.
    pub fn set_enabled(&self, on: bool) {
        self.control.enabled.store(on, Ordering::Relaxed);
    }

    /// The counters now.
    pub fn stats(&self) -> FaultStats {
        let mut s = FaultStats { injected: self.control.injected.load(Ordering::Relaxed), ..FaultStats::default() };
        for (to, from) in s.ops.iter_mut().zip(&self.control.ops) {
            *to = from.load(Ordering::Relaxed);
        }
        s
    }

    /// Operations of one kind so far.
    pub fn count(&self, op: Op) -> u64 {
        self.stats().count(op)
    }

    /// Bytes read from files so far.
    pub fn bytes_read(&self) -> u64 {
        self.control.bytes_read.load(Ordering::Relaxed)
    }

    fn wrap(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(FaultFile { inner: file, control: Arc::clone(&self.control) })
    }
}

impl Fs for FaultFs {
    fn with_mode(self: Arc<Self>, mode: FileMode) -> Arc<dyn Fs> {
        Arc::new(FaultFs { inner: self.inner.clone().with_mode(mode), control: self.control.clone() })
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        self.control.check(Op::Open, path)?;
        Ok(self.wrap(self.inner.open(path, mode)?))
    }

    fn open_log(&self, path: &Path, size: u64) -> Result<Arc<dyn File>> {
        self.control.check(Op::Open, path)?;
        self.control.check(Op::Allocate, path)?;
        Ok(self.wrap(self.inner.open_log(path, size)?))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.control.check(Op::Remove, path)?;
        self.inner.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.control.check(Op::Remove, path)?;
        self.inner.remove_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.control.check_or_do(to, || self.inner.rename(from, to))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.control.check_or_do(to, || self.inner.hard_link(from, to))
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.control.check(Op::Allocate, path)?;
        self.inner.create_dir_all(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<String>> {
        self.control.check(Op::Read, path)?;
        self.inner.list(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.control.check(Op::Read, path)?;
        self.inner.exists(path)
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.control.sync(Op::SyncDir, path, || self.inner.sync_dir(path))
    }

    fn dir_id(&self, path: &Path) -> Result<DirId> {
        self.inner.dir_id(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.control.check(Op::Open, path)?;
        self.inner.lock(path)
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.control.check(Op::Open, path)?;
        self.inner.lock_shared(path)
    }

    fn free_space(&self, path: &Path) -> Result<u64> {
        self.inner.free_space(path)
    }

    fn boot_id(&self) -> [u8; 16] {
        self.inner.boot_id()
    }
}

#[derive(Debug)]
struct FaultFile {
    inner: Arc<dyn File>,
    control: Arc<Control>,
}

impl File for FaultFile {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let len = match self.control.draw(Op::Read, self.path(), true) {
            None => buf.len(),
            Some(Fault::ShortRead) => buf.len() / 2,
            Some(fault) => return Err(fault.error(Op::Read, self.path()).at_offset(offset)),
        };
        let read = self.inner.read_at(&mut buf[..len], offset)?;
        self.control.bytes_read.fetch_add(read as u64, Ordering::Relaxed); // a plain counter
        Ok(read)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let Some(fault) = self.control.draw(Op::Write, self.path(), true) else {
            return self.inner.write_at(data, offset);
        };
        match fault {
            Fault::ShortWrite => self.inner.write_at(&data[..data.len() / 2], offset)?,
            Fault::DoneEio => self.inner.write_at(data, offset)?,
            _ => {}
        }
        Err(fault.error(Op::Write, self.path()).at_offset(offset))
    }

    fn write_record_at(&self, head: &[u8], body: &[u8], offset: u64) -> Result<bool> {
        if !is_one_write(offset, head.len() + body.len()) {
            return Ok(false); // the caller makes two writes, each of which may fail
        }
        let Some(fault) = self.control.draw(Op::Write, self.path(), true) else {
            return self.inner.write_record_at(head, body, offset);
        };
        let record = [head, body].concat();
        match fault {
            Fault::ShortWrite => self.inner.write_at(&record[..record.len() / 2], offset)?,
            Fault::DoneEio => self.inner.write_at(&record, offset)?,
            _ => {}
        }
        Err(fault.error(Op::Write, self.path()).at_offset(offset))
    }

    fn sync_data(&self) -> Result<()> {
        self.control.sync(Op::Sync, self.path(), || self.inner.sync_data())
    }

    fn sync_all(&self) -> Result<()> {
        self.control.sync(Op::Sync, self.path(), || self.inner.sync_all())
    }

    fn len(&self) -> Result<u64> {
        self.control.check(Op::Read, self.path())?;
        self.inner.len()
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.control.check(Op::Allocate, self.path())?;
        self.inner.truncate(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.control.check(Op::Allocate, self.path())?;
        self.inner.allocate(offset, len)
    }

    fn prefill(&self, offset: u64, len: u64) -> Result<bool> {
        self.control.check(Op::Write, self.path())?;
        self.inner.prefill(offset, len)
    }

    fn advise_sequential(&self) {
        self.inner.advise_sequential();
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.inner.prefetch(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemFs, Survival};
    use kingtide_base::ErrorKind;

    fn new() -> (FaultFs, Arc<dyn File>) {
        let fs = FaultFs::new(MemFs::shared(), 1);
        let f = fs.open(Path::new("wal-1"), OpenMode::Create).unwrap();
        f.write_at(b"0123456789", 0).unwrap();
        (fs, f)
    }

    #[test]
    fn conforms_without_rules() {
        let dir = Path::new("suite");
        let fs = FaultFs::new(MemFs::shared(), 1);
        fs.create_dir_all(dir).unwrap();
        crate::conformance::check(&(Arc::new(fs) as Arc<dyn Fs>), dir);
    }

    #[test]
    fn every_kind_of_operation_can_fail_with_every_error() {
        let (fs, f) = new();
        let p = Path::new("wal-1");
        let run = |op: Op| -> Vec<Result<()>> {
            match op {
                Op::Open => vec![
                    fs.open(p, OpenMode::Read).map(drop),
                    fs.open_log(Path::new("log"), 10).map(drop),
                    fs.lock(Path::new("LOCK")).map(drop),
                    fs.lock_shared(Path::new("LOCK")).map(drop),
                ],
                Op::Read => vec![
                    f.read_at(&mut [0; 4], 0).map(drop),
                    f.len().map(drop),
                    fs.list(Path::new("")).map(drop),
                    fs.exists(p).map(drop),
                ],
                Op::Write => vec![f.write_at(b"x", 0)],
                Op::Sync => vec![f.sync_data(), f.sync_all()],
                Op::SyncDir => vec![fs.sync_dir(Path::new(""))],
                Op::Rename => vec![fs.rename(p, Path::new("b")), fs.hard_link(p, Path::new("b"))],
                Op::Remove => vec![fs.remove(p), fs.remove_dir(Path::new("d"))],
                Op::Allocate => vec![
                    f.allocate(0, 1),
                    f.truncate(1),
                    fs.create_dir_all(Path::new("d")),
                    fs.open_log(Path::new("log"), 10).map(drop),
                ],
            }
        };
        let faults = [
            (Fault::Eio, ErrorKind::Io, false),
            (Fault::Enospc, ErrorKind::NoSpace, true),
            (Fault::Edquot, ErrorKind::NoSpace, true),
            (Fault::Emfile, ErrorKind::Io, true),
            (Fault::Eintr, ErrorKind::Io, true),
        ];
        for op in Op::ALL {
            for (fault, kind, retryable) in faults {
                fs.add(Rule::new(op, fault).sticky());
                for (i, r) in run(op).into_iter().enumerate() {
                    let e = r.unwrap_err();
                    assert_eq!((e.kind(), e.is_retryable()), (kind, retryable), "{op:?} {fault:?} call {i}: {e}");
                    assert!(e.path().is_some() && e.to_string().contains("injected"), "{e}");
                }
                fs.clear();
            }
            assert!(fs.count(op) > 0);
        }
        let mut all = [0; 10];
        f.read_exact_at(&mut all, 0).unwrap();
        assert_eq!(&all, b"0123456789", "a failed operation does nothing");
    }

    #[test]
    fn rules_choose_the_operation() {
        let (fs, f) = new();
        let other = fs.open(Path::new("table"), OpenMode::Create).unwrap();
        fs.add(Rule::new(Op::Write, Fault::Enospc).path("wal").nth(3));
        let write = |f: &Arc<dyn File>| f.write_at(b"x", 0).is_ok();
        let got = [write(&f), write(&other), write(&f), write(&other), write(&f), write(&f)];
        assert_eq!(got, [true, true, true, true, false, true], "the third of the wal, once");
        fs.add(Rule::new(Op::Write, Fault::Enospc).nth(2).sticky());
        assert_eq!([write(&f), write(&f), write(&other), write(&f)], [true, false, false, false]);
        fs.set_enabled(false);
        assert!(write(&f) && write(&other), "space returns");
        fs.set_enabled(true);
        assert!(!write(&f));
        fs.clear();
        assert!(write(&f));
        assert_eq!((fs.stats().injected(), fs.count(Op::Sync)), (5, 0));
        f.sync_data().unwrap();
        assert_eq!(fs.count(Op::Sync), 1);
    }

    #[test]
    fn probabilities_are_roughly_kept_and_reproducible() {
        let run = |seed| -> Vec<bool> {
            let fs = FaultFs::new(MemFs::shared(), seed);
            let f = fs.open(Path::new("f"), OpenMode::Create).unwrap();
            fs.add(Rule::new(Op::Write, Fault::Eio).probability(0.25));
            (0..1000).map(|_| f.write_at(b"x", 0).is_err()).collect()
        };
        assert_eq!(run(7), run(7));
        let hits = run(7).iter().filter(|&&hit| hit).count();
        assert!((180..320).contains(&hits), "{hits}");
    }

    #[test]
    fn short_reads_and_writes() {
        let (fs, f) = new();
        fs.add(Rule::new(Op::Read, Fault::ShortRead));
        let mut all = [0; 10];
        assert_eq!((f.read_at(&mut all, 0).unwrap(), &all), (5, b"01234\0\0\0\0\0"));
        fs.add(Rule::new(Op::Read, Fault::ShortRead));
        f.read_exact_at(&mut all, 0).unwrap();
        assert_eq!(&all, b"0123456789", "the rest is read too");
        fs.add(Rule::new(Op::Read, Fault::ShortRead).sticky());
        let e = f.read_exact_at(&mut all, 0).unwrap_err();
        assert_eq!((e.kind(), e.offset()), (ErrorKind::Io, Some(9)), "the file does not end there");
        assert_eq!(f.read_full_at(&mut all[..2], 8).unwrap_err().kind(), ErrorKind::Io);
        fs.clear();
        assert_eq!(f.read_full_at(&mut all, 8).unwrap(), 2);
        assert_eq!(f.read_exact_at(&mut all, 8).unwrap_err().kind(), ErrorKind::Corruption);
        f.read_exact_at(&mut all, 0).unwrap();
        fs.add(Rule::new(Op::Write, Fault::ShortWrite));
        let e = f.write_at(b"abcd", 2).unwrap_err();
        assert_eq!((e.kind(), e.offset()), (ErrorKind::Io, Some(2)));
        f.read_exact_at(&mut all, 0).unwrap();
        assert_eq!(&all, b"01ab456789");
    }

    #[test]
    fn a_failed_sync_leaves_the_bytes_unsynced() {
        let mem = MemFs::new();
        let fs = FaultFs::new(Arc::new(mem.clone()), 1);
        let f = fs.open(Path::new("f"), OpenMode::Create).unwrap();
        fs.sync_dir(Path::new("")).unwrap();
        f.write_at(b"x", 0).unwrap();
        fs.add(Rule::new(Op::Sync, Fault::Eio));
        f.sync_data().unwrap_err();
        let crashed = mem.crash_clone(Survival::AllLost, &mut Rng::new(1));
        assert!(crashed.open(Path::new("f"), OpenMode::Read).unwrap().is_empty().unwrap());
    }
}
