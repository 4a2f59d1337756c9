//! Commits of tasks, and how they become durable.

use crate::commit::batch::WriteBatch;
use crate::commit::in_task::Attempts;
use crate::commit::pipeline::Visible;
use crate::engine::DbInner;
use crate::options::WriteOptions;
use crate::waiters::Found;
use kingtide_base::histogram::Histogram;
use kingtide_base::options::Durability;
use kingtide_base::stats::Stat;
use kingtide_base::{Error, ErrorKind, Result, SeqNo};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

/// Fails where no runtime is, before anything has happened. With a runtime, gives other tasks a turn now and then.
pub(super) async fn enter() -> Result<()> {
    if Handle::try_current().is_err() {
        let text = "an operation of an AsyncDb was polled outside of a tokio runtime; run it with Runtime::block_on or in a task";
        return Err(Error::invalid(text));
    }
    tokio::task::coop::consume_budget().await;
    Ok(())
}

/// Runs `f` on one of the runtime's threads for blocking work. It runs to its end even if the future that waits for it is dropped. Its
/// panic becomes the caller's.
pub(super) async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match spawn_blocking(f).await {
        Ok(result) => result,
        Err(e) if e.is_panic() => resume_unwind(e.into_panic()),
        Err(_) => Err(Error::new(ErrorKind::Cancelled, "the runtime is shutting down; the operation was not begun")),
    }
}

/// Commits a batch, and records how long that took, whatever came of it.
pub(super) async fn write(db: &Arc<DbInner>, batch: WriteBatch, options: WriteOptions) -> Result<SeqNo> {
    enter().await?;
    let ticks = db.stats.ticks();
    let family = batch.only_family().cloned();
    let written = commit(db, batch, options).await;
    db.stats.record_since(Histogram::Write, family.as_ref().map(|f| f.histograms()), ticks);
    written
}

/// Once the batch is sequenced, its sync is asked for, whether or not the caller goes on waiting.
async fn commit(db: &Arc<DbInner>, mut batch: WriteBatch, options: WriteOptions) -> Result<SeqNo> {
    let durability = options.durability.unwrap_or_else(|| db.durability());
    if batch.sequences() == 0 {
        db.check_writable()?;
        if durability == Durability::Power {
            sync_all(db).await?; // what was committed before is what the caller means
        }
        return Ok(0);
    }
    let visible = match db.try_commit(&mut batch, &options)? {
        Some(visible) => {
            ask_for_sync(db, Some(visible), durability);
            visible
        }
        None => commit_on_thread(db, batch, options, durability).await?,
    };
    db.hooks_called(visible).await;
    durable(db, Some(visible), durability).await?;
    Ok(visible.last)
}

/// Waits in line for a thread.
async fn place_in(line: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit> {
    line.clone().acquire_owned().await.map_err(|_| Error::new(ErrorKind::Closed, "the database is closed"))
}

/// Commits a batch where waiting is allowed. While it waits for a lock it keeps neither a thread nor a place in a line: the commit that the
/// lock's holder is about to make may need one.
async fn commit_on_thread(
    db: &Arc<DbInner>,
    mut batch: WriteBatch,
    options: WriteOptions,
    durability: Durability,
) -> Result<Visible> {
    let inner = db.clone();
    if options.no_wait {
        // A commit that is refused instead of waiting needs no place in a line of those that wait.
        return blocking(move || {
            let visible = inner.commit_or_refuse(&mut batch, &options)?;
            ask_for_sync(&inner, Some(visible), durability);
            Ok(visible)
        })
        .await;
    }
    let (mut attempts, mut line) = (Attempts::new(batch), &db.waiters.writers);
    loop {
        let permit = db.in_line(&mut attempts, place_in(line)).await?;
        // Another may have locked it while this one stood in line, and then it needs no thread.
        if db.is_locked_still(&attempts) {
            drop(permit);
        } else {
            let inner = db.clone();
            let unless_locked = blocking(move || {
                let visible = inner.commit_unless_locked(&mut attempts, &options)?;
                drop(permit); // a hook may wait for a commit that needs it
                if let Some(visible) = visible {
                    inner.begin_hooks(visible);
                    ask_for_sync(&inner, Some(visible), durability);
                }
                Ok((visible, attempts))
            });
            let (visible, unfinished) = unless_locked.await?;
            if let Some(visible) = visible {
                return Ok(visible);
            }
            attempts = unfinished;
        }
        db.until_unlocked(&mut attempts).await?;
        line = &db.waiters.unlocked;
    }
}

/// Where the log must be synced up to before a commit survives what it is to survive.
fn position(commit: Option<Visible>, durability: Durability) -> Option<u64> {
    if durability != Durability::Power {
        return None;
    }
    commit?.lsn.map(|lsn| lsn.0)
}

/// Has a commit synced, if it is to survive a power cut.
pub(super) fn ask_for_sync(db: &Arc<DbInner>, commit: Option<Visible>, durability: Durability) {
    if let Some(lsn) = position(commit, durability) {
        db.stats.add(Stat::WalSyncedCommits, 1);
        if db.waiters.want(lsn) {
            Leader::start(db);
        }
    }
}

/// Waits until a commit survives what its durability says.
pub(super) async fn durable(db: &Arc<DbInner>, commit: Option<Visible>, durability: Durability) -> Result<()> {
    match position(commit, durability) {
        Some(lsn) => Synced { db, lsn, id: None }.await,
        None => Ok(()),
    }
}

/// Waits until everything committed so far survives a power cut.
pub(super) async fn sync_all(db: &Arc<DbInner>) -> Result<()> {
    let lsn = db.wal.appended().0;
    Synced { db, lsn, id: None }.await
}

/// Ready when the log is synced up to a position.
struct Synced<'a> {
    db: &'a Arc<DbInner>,
    lsn: u64,
    /// Number of the wait, once there is one.
    id: Option<u64>,
}

impl Future for Synced<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let (db, lsn) = (self.db, self.lsn);
        match db.waiters.wait(lsn, || db.wal.synced().0, &mut self.id, cx.waker()) {
            Found::Synced => Poll::Ready(Ok(())),
            Found::Wait => Poll::Pending,
            Found::Lead => match db.wal.poison() {
                None => {
                    Leader::start(db);
                    Poll::Pending
                }
                Some(e) => {
                    let _ = db.waiters.landed(0, true);
                    Poll::Ready(Err(e))
                }
            },
        }
    }
}

impl Drop for Synced<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.db.waiters.leave(id);
        }
    }
}

/// Syncs the log for all tasks. It does so in any case: if the runtime shuts down and drops it, it syncs on the dropping thread.
pub(super) struct Leader {
    db: Arc<DbInner>,
    landed: bool,
}

impl Leader {
    /// The leader that [`Waiters::want`](crate::waiters::Waiters::want) asked for. It leads when it is dropped.
    pub(super) fn appointed(db: &Arc<DbInner>) -> Leader {
        Leader { db: db.clone(), landed: false }
    }

    fn start(db: &Arc<DbInner>) {
        let leader = Leader::appointed(db);
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(leader))),
            Err(_) => drop(leader),
        }
    }

    fn lead(&mut self) {
        while !self.landed {
            let failed = self.db.wal.sync_all().is_err();
            self.landed = self.db.waiters.landed(self.db.wal.synced().0, failed);
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // A file system of the caller's may panic. The log is stopped then, and the tasks get the error.
        let db = self.db.clone();
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.lead())).is_err() {
            let _ = db.waiters.landed(0, true);
        }
    }
}
