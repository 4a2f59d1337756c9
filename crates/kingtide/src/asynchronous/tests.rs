//! Tasks on both kinds of runtime; what dropped futures leave; stalls, errors and the end of a database.

mod locks;

use super::commit::Leader;
use crate::engine::DbInner;
use crate::{AsyncDb, Db, Durability, ErrorKind, Histogram, Isolation, Options, WriteBatch, WriteOptions};
use kingtide_base::stats::Stat;
use kingtide_vfs::{Fault, FaultFs, Fs, MemFs, Op, Rule};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

const POWER: WriteOptions = WriteOptions { durability: Some(Durability::Power), no_wait: false };

/// Runs a test that waits for ever where it fails.
fn that_ends(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match ended.recv_timeout(Duration::from_secs(30)) {
        Err(RecvTimeoutError::Timeout) => panic!("the test does not end"),
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

fn runtimes() -> [Runtime; 2] {
    runtimes_with(512)
}

/// With at most so many threads for blocking work.
fn runtimes_with(blocking: usize) -> [Runtime; 2] {
    let [mut one, mut several] = [Builder::new_current_thread(), Builder::new_multi_thread()];
    several.worker_threads(2);
    [&mut one, &mut several].map(|builder| builder.max_blocking_threads(blocking).build().unwrap())
}

fn open_on(fs: &Arc<dyn Fs>) -> AsyncDb {
    let options = Options { fs: Some(fs.clone()), ..Options::default() };
    AsyncDb::from(Db::open("db", options).unwrap())
}

/// A database in memory that has a log and a spare segment, so that commits do not leave their task.
fn open_warm(fs: &Arc<dyn Fs>) -> AsyncDb {
    let db = open_on(fs);
    db.inner().put("warm", "").unwrap();
    db.inner().inner().wal.prepare_spare().unwrap();
    db
}

fn batch(db: &AsyncDb, keys: &[&str], value: &[u8]) -> WriteBatch {
    let mut batch = WriteBatch::new();
    keys.iter().for_each(|key| batch.put(db.default_family().inner(), key.as_bytes(), value).unwrap());
    batch
}

/// Polls a future at most so many times. `None`: it was pending the last time, and is dropped.
struct Polls<F>(F, usize);

impl<F: Future + Unpin> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.1 == 0 {
            return Poll::Ready(None);
        }
        match Pin::new(&mut self.0).poll(cx) {
            Poll::Ready(out) => Poll::Ready(Some(out)),
            Poll::Pending => {
                self.1 -= 1;
                if self.1 == 0 { Poll::Ready(None) } else { Poll::Pending }
            }
        }
    }
}

#[test]
fn failed_writes_are_timed_as_those_of_a_database_are() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let db = open_warm(&MemFs::shared());
            db.close().await.unwrap();
            let count = || db.inner().histogram(Histogram::Write).count();
            let before = count();
            assert_eq!(db.inner().put("a", "").unwrap_err().kind(), ErrorKind::Closed);
            assert_eq!(count(), before + 1);
            assert_eq!(db.put("a", "").await.unwrap_err().kind(), ErrorKind::Closed);
            assert_eq!(count(), before + 2);
        });
    }
}

#[test]
fn every_operation_works_on_both_runtimes() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let options = Options { fs: Some(MemFs::shared()), ..Options::default() };
            let db = AsyncDb::open("db", options).await.unwrap();
            let first = db.put("a", "1").await.unwrap();
            assert!(db.delete("b").await.unwrap() > first);
            assert!(db.write_with(batch(&db, &["c", "d"], b"2"), POWER).await.unwrap() > first);
            assert_eq!(db.write_with(WriteBatch::new(), POWER).await.unwrap(), 0);
            let family = db.get_or_create_family("other", Default::default()).await.unwrap();
            family.put_ttl("x", "9", Duration::from_secs(3600)).await.unwrap();
            let (default, other) = (db.default_family().inner().clone(), family.inner().clone());
            let moved = db.transact(move |txn| {
                let value = txn.get(&other, b"x")?.unwrap();
                txn.put(&default, b"x", &value)?;
                Ok(value.to_vec())
            });
            assert_eq!(moved.await.unwrap(), b"9");
            for flushed in [false, true] {
                if flushed {
                    db.flush().await.unwrap();
                }
                assert_eq!(db.get("c").await.unwrap().as_deref(), Some(&b"2"[..]), "{flushed}");
                assert_eq!(db.get("b").await.unwrap(), None);
                let keys = async |mut entries: crate::AsyncEntries| {
                    let mut keys = String::new();
                    while let Some(entry) = entries.next().await {
                        keys += &String::from_utf8_lossy(&entry.unwrap().key);
                    }
                    keys
                };
                assert_eq!(keys(db.range(..)).await, "acdx");
                assert_eq!(keys(db.range("b".."x").backwards()).await, "dc");
                assert_eq!(keys(db.prefix("c")).await, "c");
                assert_eq!(keys(db.family("other").await.unwrap().range(..)).await, "x");
            }
            db.sync().await.unwrap();
            let mut txn = db.inner().begin(Isolation::Serializable).unwrap();
            txn.put(db.default_family().inner(), b"t", b"5").unwrap();
            let ticket = txn.commit_ordered().unwrap();
            assert_eq!(db.wait(ticket).await.unwrap(), db.inner().latest_sequence());
            assert_eq!(db.family("none").await.unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(db.put("", "").await.unwrap_err().kind(), ErrorKind::InvalidArgument);
            db.close().await.unwrap();
            assert_eq!(db.put("a", "3").await.unwrap_err().kind(), ErrorKind::Closed);
            assert_eq!(db.get("a").await.unwrap_err().kind(), ErrorKind::Closed);
            assert_eq!(db.range(..).next().await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        });
    }
}

#[test]
fn a_stream_shows_the_moment_of_its_call_and_ends_after_an_error() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let faults = FaultFs::new(MemFs::shared(), 1);
            let fs: Arc<dyn Fs> = Arc::new(faults.clone());
            let db = open_on(&fs);
            let entry = |n: u32| (n.to_be_bytes(), [n as u8; 100]);
            for n in 0..5000 {
                db.put(entry(n).0, entry(n).1).await.unwrap();
            }
            for flushed in [false, true] {
                if flushed {
                    db.flush().await.unwrap();
                }
                let mut entries = db.range(..);
                db.put([255], "late").await.unwrap();
                for n in 0..5000 {
                    let found = entries.next().await.unwrap().unwrap();
                    assert_eq!((&*found.key, &*found.value), (&entry(n).0[..], &entry(n).1[..]));
                }
                assert!(entries.next().await.is_none() && entries.next().await.is_none());
                db.delete([255]).await.unwrap();
            }
            db.put(entry(0).0, "again").await.unwrap();
            db.inner().compact().unwrap(); // into a table of which no block is cached
            let mut entries = db.range(..);
            faults.add(Rule::new(Op::Read, Fault::Eio).path(".klog"));
            let failed = loop {
                match entries.next().await {
                    Some(Ok(_)) => {}
                    end => break end.unwrap().unwrap_err(),
                }
            };
            assert_eq!(failed.kind(), ErrorKind::Io);
            assert!(entries.next().await.is_none());
        });
    }
}

/// A read that needs a block from a file leaves the task; one of which the block is cached does not.
#[test]
fn a_read_from_memory_does_not_leave_the_task() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let fs = MemFs::shared();
            let db = open_on(&fs);
            for n in 0..3000u32 {
                db.inner().put(n.to_be_bytes(), [n as u8; 100]).unwrap();
            }
            let key = 77u32.to_be_bytes();
            let family = db.default_family().inner();
            let at_once = async || matches!(family.get_in_memory(&key), Ok(Some(Some(v))) if *v == [77; 100]);
            assert!(at_once().await, "in the memtable");
            db.flush().await.unwrap();
            assert!(!at_once().await, "in a table, and not cached");
            while !at_once().await {
                // Blocks are cached when they are touched for the second time.
                assert_eq!(db.get(key).await.unwrap().as_deref(), Some(&[77; 100][..]));
            }
            assert_eq!(family.get_in_memory(b"beyond all keys").unwrap(), Some(None), "the file's bounds tell");
            family.delete_range(key..78u32.to_be_bytes()).unwrap();
            assert_eq!(family.get_in_memory(&key).unwrap(), Some(None), "a range tombstone in the memtable");
        });
    }
}

/// While no thread syncs, any number of tasks commit and wait, on a runtime whose only thread for blocking work is occupied. One
/// sync serves them all.
#[test]
fn tasks_that_wait_for_a_sync_take_no_thread() {
    const TASKS: usize = 200;
    let runtime = Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let db = open_warm(&MemFs::shared());
        let inner = db.inner().inner().clone();
        let (release, occupied) = std::sync::mpsc::channel::<()>();
        let occupant = tokio::task::spawn_blocking(move || occupied.recv());
        assert!(inner.waiters.want(0), "this test leads, and begins when it likes");
        let tasks: Vec<_> = (0..TASKS)
            .map(|n| {
                let db = db.clone();
                tokio::spawn(async move { db.write_with(batch(&db, &[&n.to_string()], b"v"), POWER).await })
            })
            .collect();
        while inner.waiters.len() < TASKS {
            tokio::task::yield_now().await;
        }
        assert!(tasks.iter().all(|t| !t.is_finished()));
        let syncs = inner.stats.get(Stat::WalSyncs);
        drop(Leader::appointed(&inner));
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        assert_eq!((inner.waiters.len(), inner.stats.get(Stat::WalSyncs)), (0, syncs + 1));
        assert_eq!(inner.stats.get(Stat::WalSyncedCommits), TASKS as u64);
        drop(release);
        let _ = occupant.await;
    });
}

/// Whenever the future of a commit is dropped, all of the commit is there afterwards or nothing, and what was sequenced is
/// synced with no other commit's help.
#[test]
fn a_dropped_future_loses_no_commit_and_leaves_no_half_of_one() {
    let large = vec![7; 300 << 10];
    for runtime in runtimes() {
        for (warm, value) in [(true, &b"small"[..]), (false, b"small"), (true, &large)] {
            for transact in [false, true] {
                let (mut polls, mut finished) = (0, false);
                while !finished {
                    let fs = MemFs::shared();
                    let db = if warm { open_warm(&fs) } else { open_on(&fs) };
                    let before = db.inner().latest_sequence();
                    runtime.block_on(async {
                        finished = if transact {
                            let (family, value) = (db.default_family().inner().clone(), value.to_vec());
                            let options = crate::TransactOptions {
                                transaction: crate::TransactionOptions {
                                    durability: Some(Durability::Power),
                                    ..Isolation::Serializable.into()
                                },
                                ..Default::default()
                            };
                            let body = move |txn: &mut crate::Transaction| {
                                txn.put(&family, b"left", &value)?;
                                txn.put(&family, b"right", &value)
                            };
                            Polls(pin!(db.transact_with(options, body)), polls).await.is_some()
                        } else {
                            let both = batch(&db, &["left", "right"], value);
                            Polls(pin!(db.write_with(both, POWER)), polls).await.is_some()
                        };
                        let inner = db.inner().inner().clone();
                        if polls > 0 {
                            // Begun is completed: nothing here was refused.
                            while db.inner().latest_sequence() == before || inner.wal.synced() < inner.wal.appended() {
                                tokio::task::yield_now().await;
                            }
                        }
                        let expected = (polls > 0).then_some(value);
                        for key in ["left", "right"] {
                            assert_eq!(db.get(key).await.unwrap().as_deref(), expected, "{polls} polls, {transact}");
                        }
                    });
                    polls += 1;
                }
                assert!(polls > 1, "the future was never pending");
            }
        }
    }
}

/// A writer that waits for room, or for a transaction's lock, does not keep the runtime's only thread.
#[expect(clippy::await_holding_lock, reason = "flushes are held back while tasks read from memory")]
#[test]
fn a_stalled_writer_does_not_block_the_thread() {
    let runtime = Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let db = open_warm(&MemFs::shared());
        let inner = db.inner().inner().clone();
        db.put("a", "1").await.unwrap();

        let mut txn = db
            .inner()
            .begin_with(crate::TransactionOptions { locking: true, ..Isolation::Serializable.into() })
            .unwrap();
        txn.put(db.default_family().inner(), b"locked", b"by the transaction").unwrap();
        let other = db.clone();
        let waits = tokio::spawn(async move { other.put("locked", "by the task").await });
        for _ in 0..1000 {
            assert_eq!(db.get("a").await.unwrap().as_deref(), Some(&b"1"[..]));
            tokio::task::yield_now().await;
        }
        assert!(!waits.is_finished());
        txn.rollback().unwrap();
        waits.await.unwrap().unwrap();

        let catalog = inner.catalog.lock(); // no flush ends before this is given up
        inner.stall.set_unflushed_values(1.0);
        let other = db.clone();
        let stalled = tokio::spawn(async move { other.put("b", "2").await });
        for _ in 0..1000 {
            assert_eq!(db.get("a").await.unwrap().as_deref(), Some(&b"1"[..]));
            tokio::task::yield_now().await;
        }
        assert!(!stalled.is_finished());
        drop(catalog);
        inner.stall.set_unflushed_values(0.0);
        stalled.await.unwrap().unwrap();

        let manual = Options { fs: Some(MemFs::shared()), manual_jobs: true, ..Options::default() };
        let db = AsyncDb::from(Db::open("db", manual).unwrap());
        db.inner().inner().stall.set_unflushed_values(1.0); // with no job that would correct it
        let refuses = WriteOptions { no_wait: true, ..WriteOptions::default() };
        let busy = db.write_with(batch(&db, &["c"], b"3"), refuses).await;
        assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
    });
}

/// Every task that waits for a sync that fails gets the error, and so do later ones.
#[test]
fn a_failed_sync_reaches_every_task() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let faults = FaultFs::new(MemFs::shared(), 1);
            let fs: Arc<dyn Fs> = Arc::new(faults.clone());
            let db = open_warm(&fs);
            faults.add(Rule::new(Op::Sync, Fault::Eio).path(".wal"));
            let commit = |n: usize| {
                let db = db.clone();
                tokio::spawn(async move { db.write_with(batch(&db, &[&n.to_string()], b"v"), POWER).await })
            };
            let tasks: Vec<_> = (0..50).map(commit).collect();
            for task in tasks {
                assert_eq!(task.await.unwrap().unwrap_err().kind(), ErrorKind::Poisoned);
            }
            assert_eq!(db.sync().await.unwrap_err().kind(), ErrorKind::Poisoned);
            assert!(db.get("warm").await.unwrap().is_some(), "reads go on");
            assert_eq!(db.inner().inner().waiters.len(), 0);
        });
    }
}

/// A database that is closed, or whose runtime ends, while tasks wait for a sync: commits that were sequenced are durable.
#[test]
fn the_end_of_a_database_or_runtime_completes_what_was_sequenced() {
    for ends in ["database", "runtime"] {
        let fs = MemFs::shared();
        let db = open_warm(&fs);
        let inner = db.inner().inner().clone();
        let runtime = Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let acknowledged = Arc::new(AtomicUsize::new(0));
        assert!(inner.waiters.want(0));
        for n in 0..20 {
            let (db, acknowledged) = (db.clone(), acknowledged.clone());
            runtime.spawn(async move {
                db.write_with(batch(&db, &[&n.to_string()], b"v"), POWER).await.unwrap();
                acknowledged.fetch_add(1, Ordering::SeqCst);
            });
        }
        while inner.waiters.len() < 20 {
            std::thread::yield_now();
        }
        let leader = Leader::appointed(&inner);
        if ends == "database" {
            db.inner().close().unwrap();
            drop(leader);
            while acknowledged.load(Ordering::SeqCst) < 20 {
                std::thread::yield_now();
            }
        } else {
            drop(runtime);
            drop(leader); // as a runtime drops it that has no time left for it
            assert_eq!((inner.waiters.len(), acknowledged.load(Ordering::SeqCst)), (0, 0));
            assert!(inner.wal.synced() >= inner.wal.appended());
        }
        drop((db, inner));
        let reopened = Db::open("db", Options { fs: Some(fs), ..Options::default() }).unwrap();
        for n in 0..20 {
            assert!(reopened.get(n.to_string()).unwrap().is_some(), "{n}");
        }
    }
}

#[test]
fn an_operation_outside_of_a_runtime_says_so() {
    let db = open_on(&MemFs::shared());
    let mut put = pin!(db.put("a", "1"));
    let Poll::Ready(Err(e)) = put.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())) else {
        panic!("it must be refused at once");
    };
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(e.message().contains("runtime"), "{e}");
    assert_eq!(db.inner().get("a").unwrap(), None);
}

/// However many writers wait for room, one that is to be refused instead is refused.
#[test]
fn a_commit_that_must_not_wait_does_not_wait_for_those_that_do() {
    that_ends(|| {
        for runtime in runtimes() {
            runtime.block_on(async {
                let db = open_warm(&MemFs::shared());
                let inner = db.inner().inner().clone();
                let line = inner.waiters.writers.clone();
                let all = line.available_permits() as u32;
                let waiting = line.acquire_many_owned(all).await.unwrap(); // as many writers as may wait on a thread
                inner.stall.set_unflushed_values(1.0);
                let refuses = WriteOptions { no_wait: true, ..WriteOptions::default() };
                let busy = db.write_with(batch(&db, &["a"], b"1"), refuses).await;
                assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
                inner.stall.set_unflushed_values(0.0);
                drop(waiting);
            });
        }
    });
}

/// A position in the log of one database is not waited for in another's, where it may never come, or have come long ago.
#[test]
fn a_ticket_is_waited_for_in_the_database_that_gave_it() {
    that_ends(|| {
        for runtime in runtimes() {
            runtime.block_on(async {
                let (db, other) = (open_warm(&MemFs::shared()), open_warm(&MemFs::shared()));
                for (made_in, waits) in [(&db, &other), (&other, &db)] {
                    for n in 0..100 {
                        made_in.put(n.to_string(), "").await.unwrap(); // its log is longer
                    }
                    let options =
                        crate::TransactionOptions { durability: Some(Durability::Power), ..Isolation::Snapshot.into() };
                    let mut txn = made_in.inner().begin_with(options).unwrap();
                    txn.put(made_in.default_family().inner(), b"tide", b"high").unwrap();
                    let ticket = txn.commit_ordered().unwrap();
                    let inner = made_in.inner().inner();
                    assert!(inner.wal.synced() < inner.wal.appended());
                    assert_eq!(waits.wait(ticket).await.unwrap(), made_in.inner().latest_sequence());
                    assert!(inner.wal.synced() >= inner.wal.appended(), "it survives a power cut");
                }
            });
        }
    });
}

/// A waker that is the last of its task: with it goes another future of the task, which leaves.
struct LastOfTask(Arc<DbInner>);

impl std::task::Wake for LastOfTask {
    fn wake(self: Arc<Self>) {}
}

impl Drop for LastOfTask {
    fn drop(&mut self) {
        self.0.waiters.leave(u64::MAX);
    }
}

#[test]
fn a_waker_is_dropped_without_a_lock() {
    that_ends(|| {
        let db = open_warm(&MemFs::shared());
        let inner = db.inner().inner().clone();
        let mut id = None;
        for _ in 0..2 {
            // Polled by one task and then by another.
            let waker = std::task::Waker::from(Arc::new(LastOfTask(inner.clone())));
            let _ = inner.waiters.wait(u64::MAX, || 0, &mut id, &waker);
        }
        inner.waiters.leave(id.unwrap());
        assert_eq!(inner.waiters.len(), 0);
    });
}

/// Also where as many commits as may have threads wait for that hook.
#[test]
fn a_hook_may_wait_for_a_commit_of_a_task() {
    const COMMITS: u64 = 40;
    that_ends(|| {
        for runtime in runtimes() {
            runtime.block_on(async {
                let db = open_warm(&MemFs::shared());
                let hooked = db.get_or_create_family("hooked", Default::default()).await.unwrap();
                let first = std::sync::atomic::AtomicBool::new(true);
                let (from_hook, handle) = (db.clone(), tokio::runtime::Handle::current());
                let before = db.inner().latest_sequence();
                let hook = move |_: &crate::CommittedWrites<'_>| {
                    if first.swap(false, Ordering::SeqCst) {
                        while from_hook.inner().latest_sequence() < before + 16 {
                            std::thread::yield_now();
                        }
                        handle.block_on(from_hook.put("other", "family")).unwrap();
                    }
                };
                hooked.inner().set_commit_hook(Some(Arc::new(hook))).unwrap();
                let put = |n: u64| {
                    let hooked = hooked.clone();
                    tokio::spawn(async move { hooked.put(n.to_be_bytes(), "").await })
                };
                let tasks: Vec<_> = (0..COMMITS).map(put).collect();
                for task in tasks {
                    task.await.unwrap().unwrap();
                }
                assert_eq!(db.get("other").await.unwrap().as_deref(), Some(&b"family"[..]));
                hooked.inner().set_commit_hook(None).unwrap(); // the hook holds a handle of the database
            });
        }
    });
}

/// However many commits wait for a hook that is called for another one, they take no thread of the runtime.
#[test]
fn commits_that_wait_for_a_hook_leave_the_threads_to_others() {
    const COMMITS: u64 = 40;
    that_ends(|| {
        for runtime in runtimes_with(2) {
            runtime.block_on(async {
                let db = open_warm(&MemFs::shared());
                let (release, released) = std::sync::mpsc::channel::<()>();
                let (released, calls) = (std::sync::Mutex::new(released), Arc::new(AtomicUsize::new(0)));
                let counted = calls.clone();
                let hook = move |_: &crate::CommittedWrites<'_>| {
                    if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                        let _ = released.lock().unwrap().recv();
                    }
                };
                db.default_family().inner().set_commit_hook(Some(Arc::new(hook))).unwrap();
                let before = db.inner().latest_sequence();
                let put = |n: u64| {
                    let db = db.clone();
                    let options = WriteOptions { no_wait: n.is_multiple_of(3), ..WriteOptions::default() };
                    let batch = batch(&db, &[&n.to_string()], b"");
                    tokio::spawn(async move { db.write_with(batch, options).await })
                };
                let tasks: Vec<_> = (0..COMMITS).map(put).collect();
                while db.inner().latest_sequence() < before + COMMITS {
                    tokio::task::yield_now().await;
                }
                assert!(tasks.iter().all(|task| !task.is_finished()), "a commit returns after its hook");
                let sent = db.with(move |_| Ok(release.send(()))).await.unwrap();
                sent.unwrap();
                for task in tasks {
                    let sequence = task.await.unwrap().unwrap();
                    assert!(calls.load(Ordering::SeqCst) as u64 >= sequence - before);
                }
                assert_eq!(calls.load(Ordering::SeqCst) as u64, COMMITS);
            });
        }
    });
}

/// A thread that calls hooks for the commits of tasks comes to an end, however soon the tasks commit again.
#[test]
fn a_thread_calls_hooks_only_for_tasks_that_waited_for_it() {
    const TASKS: u64 = 4;
    const MOST: u64 = 100;
    that_ends(|| {
        let [_, runtime] = runtimes();
        let db = open_warm(&MemFs::shared());
        let flag = || Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (begun, stop, calls) = (flag(), flag(), Arc::new(AtomicUsize::new(0)));
        let hook = {
            let (db, here) = (db.clone(), std::thread::current().id());
            let (begun, stop, calls) = (begun.clone(), stop.clone(), calls.clone());
            move |commit: &crate::CommittedWrites<'_>| {
                if std::thread::current().id() != here {
                    return;
                }
                let call = calls.fetch_add(1, Ordering::SeqCst) as u64;
                begun.store(true, Ordering::SeqCst);
                stop.fetch_or(call == MOST, Ordering::SeqCst);
                // All tasks wait for the first call. Later, there is often another commit before the hook returns.
                let (waits_for, looks) = if call == 0 { (TASKS, usize::MAX) } else { (1, 10_000) };
                let is_there = || db.inner().latest_sequence() >= commit.sequence() + waits_for;
                (0..looks)
                    .take_while(|_| !stop.load(Ordering::SeqCst) && !is_there())
                    .for_each(|_| std::thread::yield_now());
            }
        };
        db.default_family().inner().set_commit_hook(Some(Arc::new(hook))).unwrap();
        let task = |n: u64| {
            let (db, begun, stop) = (db.clone(), begun.clone(), stop.clone());
            runtime.spawn(async move {
                while !begun.load(Ordering::SeqCst) {
                    tokio::task::yield_now().await;
                }
                while !stop.load(Ordering::SeqCst) {
                    db.put(n.to_be_bytes(), "").await.unwrap();
                }
            })
        };
        let tasks: Vec<_> = (0..TASKS).map(task).collect();
        db.inner().put("thread", "").unwrap();
        let called = calls.load(Ordering::SeqCst) as u64;
        stop.store(true, Ordering::SeqCst);
        tasks.into_iter().for_each(|task| runtime.block_on(task).unwrap());
        assert!((1 + TASKS..MOST).contains(&called), "{called} calls");
        db.default_family().inner().set_commit_hook(None).unwrap(); // it has the database
    });
}

/// Deleted keys are stepped over on the task as long as they are few, and invisible ones, which came after the stream. Nothing is left out
/// where a thread goes on.
#[test]
fn a_poll_steps_over_few_keys() {
    const KEYS: u32 = 20_000;
    for runtime in runtimes_with(1) {
        runtime.block_on(async {
            let db = open_on(&MemFs::shared());
            let family = db.default_family().inner();
            let key = |n: u32| n.to_be_bytes();
            family.put(key(0), "first").unwrap();
            family.put(key(KEYS), "last").unwrap();
            let late = [db.range(..), db.range(..).backwards()];
            for n in 1..KEYS {
                family.put(key(n), "deleted").unwrap();
            }
            for n in 1..KEYS / 2 {
                family.delete(key(n)).unwrap();
            }
            family.delete_range(key(KEYS / 2)..key(KEYS)).unwrap();
            (KEYS / 2..KEYS).for_each(|n| _ = family.delete(key(n)).unwrap());
            for mut entries in late.into_iter().chain([db.range(..), db.range(..).backwards()]) {
                // The thread is occupied: a poll that has an entry had it from the task.
                let (release, released) = std::sync::mpsc::channel::<()>();
                let occupied = tokio::task::spawn_blocking(move || released.recv().is_err());
                let first = Polls(pin!(entries.next()), 1).await.expect("it is at hand").unwrap().unwrap();
                assert!(Polls(pin!(entries.next()), 1).await.is_none(), "a thread is to step over the others");
                drop(release);
                assert!(occupied.await.unwrap());
                let last = entries.next().await.unwrap().unwrap();
                let mut both = [&first, &last].map(|entry| (entry.key.to_vec(), entry.value.to_vec()));
                both.sort();
                assert_eq!(both, [(key(0).to_vec(), b"first".to_vec()), (key(KEYS).to_vec(), b"last".to_vec())]);
                assert!(entries.next().await.is_none());
            }
            for n in [2000, 2500, 2501, 9000, 15_000] {
                family.put(key(n), "again").unwrap();
            }
            for backwards in [false, true] {
                let mut expected: Vec<_> = family.range(..).map(|entry| entry.unwrap().key.to_vec()).collect();
                let mut entries = db.range(..);
                if backwards {
                    expected.reverse();
                    entries = entries.backwards();
                }
                let mut found = Vec::new();
                while let Some(entry) = entries.next().await {
                    found.push(entry.unwrap().key.to_vec());
                }
                assert_eq!(found, expected);
            }
            let mut entries = db.prefix(key(9000));
            assert!(Polls(pin!(entries.next()), 1).await.is_some());
        });
    }
}
