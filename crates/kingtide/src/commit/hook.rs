//! Commit hooks: callbacks that are called after every commit to a family.
//!
//! Hooks must be called in commit order, but not under the commit lock. So a commit to a family with a hook leaves a copy
//! of its log payload in a queue, under the commit lock, where commits are in order; and after it gave the lock back, it
//! delivers what is in the queue, its own or others', under the lock of delivery. A thread that has given that lock back
//! knows that its own commit was delivered, by itself or by another thread.
//!
//! A commit of a task occupies no thread while another thread delivers. It leaves its entries in the queue to that thread, which looks at
//! the queue again before it stops, and waits until its sequence number is delivered.
//!
//! A hook may commit. On the thread that is inside a hook nothing waits for the lock of delivery, or it would wait for
//! itself: its commits stay in the queue for the delivery that is under way.

use super::batch::WriteBatch;
use crate::direct::DirectLog;
use crate::family::Family;
use crate::ops::{Change, ChangedOps, LogOp, read_log_op};
use kingtide_base::coding::Reader;
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicUsize, Ordering};
use kingtide_base::{Error, FamilyId, Result, SeqNo};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Called for the commits to a column family. See [`crate::ColumnFamily::set_commit_hook`].
pub trait CommitHook: Send + Sync {
    /// A commit that touches the family became visible. Called on a committing thread, for one commit at a time over the
    /// whole database.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::{CommitHook, CommittedWrites};
    /// use std::sync::{Arc, Mutex};
    ///
    /// // A closure is a hook; this one wraps it to show when it is called.
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let log = seen.clone();
    /// let hook = move |commit: &CommittedWrites<'_>| log.lock().unwrap().push(commit.family().to_owned());
    /// let hook = move |commit: &CommittedWrites<'_>| CommitHook::committed(&hook, commit);
    /// db.default_family().set_commit_hook(Some(Arc::new(hook)))?;
    /// db.put("ebb", "low")?;
    /// assert_eq!(*seen.lock().unwrap(), ["default"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn committed(&self, commit: &CommittedWrites<'_>);
}

impl<F: Fn(&CommittedWrites<'_>) + Send + Sync> CommitHook for F {
    fn committed(&self, commit: &CommittedWrites<'_>) {
        self(commit);
    }
}

/// The operations of a commit on one family.
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// use kingtide::CommittedWrites;
/// use std::sync::{Arc, Mutex};
///
/// let last = Arc::new(Mutex::new((0, 0)));
/// let seen = last.clone();
/// let hook = move |commit: &CommittedWrites<'_>| {
///     assert!(!commit.is_empty() && commit.operations().count() == commit.len());
///     *seen.lock().unwrap() = (commit.sequence(), commit.len());
/// };
/// db.default_family().set_commit_hook(Some(Arc::new(hook)))?;
/// let sequence = db.put("ebb", "low")?;
/// assert_eq!(*last.lock().unwrap(), (sequence, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CommittedWrites<'a> {
    sequence: SeqNo,
    family: &'a str,
    ops: &'a ChangedOps,
}

impl CommittedWrites<'_> {
    /// The commit's sequence number, as the commit call returns it: that of its last operation, over all families.
    pub fn sequence(&self) -> SeqNo {
        self.sequence
    }

    /// The family's name.
    pub fn family(&self) -> &str {
        self.family
    }

    /// Number of operations on the family.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Returns whether there is no operation. There is always one.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The operations on the family, in the order in which they were put into the batch.
    pub fn operations(&self) -> impl Iterator<Item = Change<'_>> {
        self.ops.iter(|_| Some(self.family))
    }
}

/// A commit that waits for delivery to one family's hook.
struct Undelivered {
    hook: Arc<dyn CommitHook>,
    family: Arc<Family>,
    sequence: SeqNo,
    payload: Arc<[u8]>,
    /// The files that the payload points into, which stay as long as it does.
    _files: Vec<Arc<DirectLog>>,
}

/// The hooks of a database.
pub(crate) struct Hooks {
    /// Number of families with a hook. Changed under the commit lock, under which commits read it: Relaxed.
    installed: AtomicUsize,
    by_family: Mutex<HashMap<FamilyId, Arc<dyn CommitHook>>>,
    queue: Mutex<VecDeque<Undelivered>>,
    /// Held while hooks run.
    delivery: Mutex<()>,
    /// The sequence number of the last commit for which all hooks were called, as far as tasks know.
    #[cfg(feature = "tokio")]
    delivered: tokio::sync::watch::Sender<SeqNo>,
    stats: Arc<Stats>,
}

crate::threads::thread_local! {
    /// This thread is inside a hook, of whatever database.
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
}

impl Hooks {
    pub fn new(stats: Arc<Stats>) -> Hooks {
        Hooks {
            installed: AtomicUsize::new(0),
            by_family: Mutex::default(),
            queue: Mutex::default(),
            delivery: Mutex::default(),
            #[cfg(feature = "tokio")]
            delivered: tokio::sync::watch::Sender::default(),
            stats,
        }
    }

    /// Sets or removes a family's hook. Called under the commit lock.
    pub fn set(&self, family: FamilyId, hook: Option<Arc<dyn CommitHook>>) -> Option<Arc<dyn CommitHook>> {
        let mut by_family = self.by_family.lock();
        let former = match hook {
            Some(hook) => by_family.insert(family, hook),
            None => by_family.remove(&family),
        };
        self.installed.store(by_family.len(), Ordering::Relaxed);
        former
    }

    /// Whether a commit may have to call one.
    pub fn any(&self) -> bool {
        self.installed.load(Ordering::Relaxed) != 0
    }

    /// Removes all hooks: they may hold what must go when the database closes.
    pub fn clear(&self) {
        let former = std::mem::take(&mut *self.by_family.lock());
        self.installed.store(0, Ordering::Relaxed);
        drop(former); // what a hook holds may do anything when it goes, so not under the lock
    }

    /// Takes note of a commit whose last operation has number `last`. Called under the commit lock, as [`Hooks::set`] is: so a
    /// hook is called for the commits whose sequence numbers come after its registration, however long they took
    /// before. `files` are those that the batch may point into besides its staged ones. If true, the caller
    /// calls [`Hooks::deliver`] when it has given up that lock and whatever else a hook may want.
    #[inline]
    #[must_use]
    pub fn enqueue(&self, batch: &WriteBatch, files: impl Fn() -> Vec<Arc<DirectLog>>, last: SeqNo) -> bool {
        self.installed.load(Ordering::Relaxed) != 0 && self.enqueue_for(batch, &files, last)
    }

    #[cold]
    fn enqueue_for(&self, batch: &WriteBatch, files: &dyn Fn() -> Vec<Arc<DirectLog>>, last: SeqNo) -> bool {
        if batch.ops().is_empty() {
            return false; // a transaction is prepared, or rolled back
        }
        let by_family = self.by_family.lock();
        let mut payload: Option<Arc<[u8]>> = None;
        let mut commits = Vec::new();
        for family in batch.families() {
            let Some(hook) = by_family.get(&family.id()).cloned() else { continue };
            let payload = payload.get_or_insert_with(|| batch.payload().into()).clone();
            let mut files = files();
            files.extend(batch.staged().iter().map(|s| s.log.clone()));
            let commit = Undelivered { hook, family: family.clone(), sequence: last, payload, _files: files };
            commits.push(commit);
        }
        // All at once, so that the queue is empty only when all hooks of each commit were called.
        self.queue.lock().extend(commits);
        payload.is_some()
    }

    /// Calls the hooks for all commits that wait, in commit order. When this returns, those that this thread noted were
    /// delivered; inside a hook, they will be when the delivery under way goes on.
    pub fn deliver(&self) {
        // Does not wait inside a hook, of this database or of another whose hook may wait for this one in the same way.
        self.deliver_all(!IN_HOOK.with(Cell::get));
    }

    /// As [`Hooks::deliver`], but leaves the queue to another thread if that is delivering already. [`Hooks::until_delivered`] waits for it.
    #[cfg(feature = "tokio")]
    pub fn try_deliver(&self) {
        self.deliver_all(false);
    }

    /// Waits, without occupying a thread, until the hooks were called for the commit whose last operation has sequence number `last`.
    #[cfg(feature = "tokio")]
    pub async fn until_delivered(&self, last: SeqNo) {
        let _ = self.delivered.subscribe().wait_for(|delivered| *delivered >= last).await; // fails only without a sender
    }

    fn deliver_all(&self, waits: bool) {
        loop {
            let delivering = if waits { Some(self.delivery.lock()) } else { self.delivery.try_lock() };
            // The thread that holds it looks at the queue again after giving it up, and so finds what is there now.
            let Some(delivering) = delivering else { return };
            let mut last = None;
            loop {
                let Some(next) = self.queue.lock().pop_front() else { break };
                last = Some(next.sequence);
                self.call(next);
            }
            drop(delivering);
            let is_done = self.queue.lock().is_empty();
            if let Some(last) = last {
                self.note_delivered(last);
            }
            if is_done {
                return;
            }
        }
    }

    /// Wakes tasks whose commits were delivered, which are all up to a number. Called when the queue is empty, and after a look at what has
    /// come since: tasks that were woken earlier would commit again, and this thread could call hooks for them for ever.
    #[cfg(feature = "tokio")]
    fn note_delivered(&self, last: SeqNo) {
        let raise = |delivered: &mut SeqNo| {
            let is_later = *delivered < last; // another thread may have delivered more by now
            *delivered = last.max(*delivered);
            is_later
        };
        let _ = catch_unwind(AssertUnwindSafe(|| self.delivered.send_if_modified(raise)));
    }

    #[cfg(not(feature = "tokio"))]
    fn note_delivered(&self, _: SeqNo) {}

    fn call(&self, commit: Undelivered) {
        let Ok(ops) = decode(&commit.payload, &commit.family) else {
            // The payload was checked when it was made: a staged value cannot be read, or memory lies.
            self.stats.add(Stat::BackgroundErrors, 1);
            return;
        };
        let name = commit.family.name();
        let writes = CommittedWrites { sequence: commit.sequence, family: &name, ops: &ops };
        let outside = IN_HOOK.with(|inside| inside.replace(true));
        let hook = commit.hook;
        // The hook goes in here too: it may be the last handle of it, and what it holds may panic.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            hook.committed(&writes);
            drop(hook);
        }));
        IN_HOOK.with(|inside| inside.set(outside));
        if outcome.is_err() {
            self.stats.add(Stat::HookPanics, 1);
        }
    }
}

/// The operations of a log payload on one family, with the values that it points to.
fn decode(payload: &[u8], family: &Family) -> Result<ChangedOps> {
    let mut ops = ChangedOps::default();
    let mut r = Reader::new(payload);
    while !r.is_empty() {
        match read_log_op(&mut r) {
            Some(LogOp::Write(op)) if op.family == family.id() => {
                ops.push(&op, |p, out| family.reads.tables.vlog(p.file_id)?.read(p, out))?;
            }
            Some(_) => {}
            None => return Err(Error::corruption("a batch cannot be decoded")),
        }
    }
    Ok(ops)
}
