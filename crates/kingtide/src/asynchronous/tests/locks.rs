//! Commits that wait for locks of transactions.

use super::*;
use kingtide_base::clock::ManualClock;
use kingtide_locks::{LockMode, Wait};

/// However many tasks wait for a lock of a transaction: the commit for which the holder itself waits may be one of the others.
#[test]
fn commits_that_wait_for_a_lock_do_not_hold_up_others() {
    that_ends(|| {
        for runtime in runtimes() {
            runtime.block_on(async {
                let db = open_warm(&MemFs::shared());
                db.inner().set_option("lock_timeout_ms", "3600000").unwrap();
                let options = crate::TransactionOptions { locking: true, ..Isolation::Serializable.into() };
                let mut txn = db.inner().begin_with(options).unwrap();
                txn.put(db.default_family().inner(), b"locked", b"first").unwrap();
                let put = |n: usize| {
                    let db = db.clone();
                    let value = vec![n as u8; if n.is_multiple_of(2) { 1 } else { 300 << 10 }];
                    tokio::spawn(async move { db.put("locked", value).await })
                };
                let tasks: Vec<_> = (0..40).map(put).collect();
                while db.inner().lock_waits().len() < 16 {
                    tokio::task::yield_now().await;
                }
                let direct = db.inner().inner().stats.get(Stat::DirectValues);
                let large = vec![1; 300 << 10]; // not committed on the task
                db.put("free", &large).await.unwrap();
                assert_eq!(
                    db.inner().inner().stats.get(Stat::DirectValues),
                    direct + 1,
                    "no large value was written before its commit met the lock"
                );
                assert!(tasks.iter().all(|task| !task.is_finished()));
                txn.commit().unwrap();
                for task in tasks {
                    task.await.unwrap().unwrap();
                }
                assert_eq!(db.get("free").await.unwrap().as_deref(), Some(&large[..]));
                assert!(db.get("locked").await.unwrap().is_some_and(|value| *value != b"first"[..]));
            });
        }
    });
}

/// A transaction that has locked a key.
fn holder(db: &AsyncDb, key: &str) -> crate::Transaction {
    let options = crate::TransactionOptions { locking: true, ..Isolation::Serializable.into() };
    let mut txn = db.inner().begin_with(options).unwrap();
    txn.put(db.default_family().inner(), key.as_bytes(), b"transaction").unwrap();
    txn
}

type Put = tokio::task::JoinHandle<crate::Result<crate::SeqNo>>;

/// Tasks that put the same key, `n` of them.
fn puts(db: &AsyncDb, key: &'static str, n: usize) -> Vec<Put> {
    let put = |_| {
        let db = db.clone();
        tokio::spawn(async move { db.put(key, "task").await })
    };
    (0..n).map(put).collect()
}

async fn until_waiting(db: &AsyncDb, n: usize) {
    while db.inner().lock_waits().len() != n {
        tokio::task::yield_now().await;
    }
}

/// However many tasks wait for a lock of a transaction whose owner waits for a commit of its own, which waits for another lock meanwhile.
#[test]
fn a_commit_goes_on_when_its_lock_is_free_whatever_others_wait_for() {
    that_ends(|| {
        for runtime in runtimes() {
            runtime.block_on(async {
                let db = open_warm(&MemFs::shared());
                db.inner().set_option("lock_timeout_ms", "3600000").unwrap();
                let (mut held, mut briefly, mut range) =
                    (holder(&db, "held"), holder(&db, "briefly"), holder(&db, "range 5"));
                let crowd = puts(&db, "held", 40);
                while db.inner().lock_waits().len() < 16 {
                    tokio::task::yield_now().await;
                }
                let own = puts(&db, "briefly", 1).remove(0);
                let mut batch = WriteBatch::new();
                batch.delete_range(db.default_family().inner(), "range 0".."range 9").unwrap();
                let other = db.clone();
                let own_range = tokio::spawn(async move { other.write(batch).await });
                briefly.rollback().unwrap();
                own.await.unwrap().unwrap();
                assert!(!own_range.is_finished());
                range.rollback().unwrap();
                own_range.await.unwrap().unwrap();
                assert!(crowd.iter().all(|task| !task.is_finished()));
                held.commit().unwrap();
                for task in crowd {
                    task.await.unwrap().unwrap();
                }
                assert_eq!(db.get("held").await.unwrap().as_deref(), Some(&b"task"[..]));
                assert!(db.inner().lock_waits().is_empty());
            });
        }
    });
}

/// However often another takes the lock while the commit has its values written.
#[test]
fn a_large_value_is_written_once_by_a_commit_that_meets_a_lock() {
    const OTHER: u64 = 7; // a transaction of no registry
    that_ends(|| {
        for (runtime, kept_in_log) in runtimes().into_iter().flat_map(|runtime| {
            let runtime = Arc::new(runtime);
            [(runtime.clone(), false), (runtime, true)]
        }) {
            runtime.block_on(async {
                let db = open_warm(&MemFs::shared());
                db.inner().set_option("lock_timeout_ms", "3600000").unwrap();
                let inner = db.inner().inner().clone();
                let (txns, family) = (&inner.txns, db.default_family().inner().inner());
                let of = (family.id(), family.order());
                let lock = || txns.locks.acquire(txns, OTHER, of, b"locked", LockMode::Exclusive, Wait::No).unwrap();
                let written = || inner.stats.get(Stat::DirectValues);
                let (before, large) = (written(), vec![7; 300 << 10]);
                let (other, value) = (db.clone(), large.clone());
                let mut put = None;
                for _ in 0..3 {
                    // It gets as far as the commit lock, and finds the key locked when it has that.
                    let others = inner.commit.lock();
                    txns.locks.release_all(OTHER);
                    let (other, value) = (other.clone(), value.clone());
                    let put = put.get_or_insert_with(|| tokio::spawn(async move { other.put("locked", value).await }));
                    while written() == before || !txns.locks.waits().is_empty() {
                        std::thread::yield_now();
                        assert!(!put.is_finished());
                        tokio::task::yield_now().await;
                    }
                    lock();
                    drop(others);
                    until_waiting(&db, 1).await;
                }
                if kept_in_log {
                    db.inner().set_option("change_retention", "1000000").unwrap();
                }
                txns.locks.release_all(OTHER);
                put.unwrap().await.unwrap().unwrap();
                assert_eq!(written(), before + 1);
                assert_eq!(db.get("locked").await.unwrap().as_deref(), Some(&large[..]));
                assert!(inner.txns.locks.waits().is_empty());
            });
        }
    });
}

/// A task that is woken looks at the lock before it asks for a thread.
#[test]
fn a_commit_whose_lock_is_taken_again_waits_on_without_a_thread() {
    that_ends(|| {
        // Where tasks take turns, none runs before the lock is taken again.
        let [runtime, _] = runtimes();
        runtime.block_on(async {
            let db = open_warm(&MemFs::shared());
            db.inner().set_option("lock_timeout_ms", "3600000").unwrap();
            let mut first = holder(&db, "locked");
            let tasks = puts(&db, "locked", 40);
            until_waiting(&db, 40).await;
            let line = &db.inner().inner().waiters.unlocked;
            let all = line.clone().acquire_many_owned(line.available_permits() as u32).await.unwrap();
            first.rollback().unwrap();
            let mut second = holder(&db, "locked");
            until_waiting(&db, 40).await;
            drop(all);
            second.rollback().unwrap();
            for task in tasks {
                task.await.unwrap().unwrap();
            }
        });
    });
}

/// The timeout is about the lock, not about the line for a thread.
#[test]
fn time_in_line_for_a_thread_is_no_wait_for_a_lock() {
    that_ends(|| {
        // Where tasks take turns, the task stands in line when this one goes on.
        let [runtime, _] = runtimes();
        runtime.block_on(async {
            let (db, clock) = open_by_hand();
            db.inner().set_option("lock_timeout_ms", "1000").unwrap();
            let mut first = holder(&db, "locked");
            let put = puts(&db, "locked", 1).remove(0);
            until_waiting(&db, 1).await;
            let line = &db.inner().inner().waiters.unlocked;
            let all = line.clone().acquire_many_owned(line.available_permits() as u32).await.unwrap();
            clock.advance(Duration::from_millis(600));
            first.rollback().unwrap();
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            clock.advance(Duration::from_secs(3600));
            let mut second = holder(&db, "locked");
            drop(all);
            until_waiting(&db, 1).await;
            clock.advance(Duration::from_millis(399));
            db.inner().run_one_job().unwrap();
            assert_eq!(db.inner().lock_waits().len(), 1);
            clock.advance(Duration::from_millis(1));
            db.inner().run_one_job().unwrap();
            assert_eq!(put.await.unwrap().unwrap_err().kind(), ErrorKind::LockTimeout);
            second.rollback().unwrap();
        });
    });
}

/// A waker that owns the transaction for which its task waits, as a task does that its runtime drops while it is woken.
struct OwnerOfHolder(std::sync::Mutex<Option<crate::Transaction>>);

impl std::task::Wake for OwnerOfHolder {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

#[test]
fn a_transaction_that_is_ended_may_be_dropped_by_the_task_that_waits_for_it() {
    for expires in [false, true] {
        that_ends(move || {
            let (db, clock) = open_by_hand();
            let inner = db.inner().inner().clone();
            let ms = Duration::from_millis;
            let options =
                crate::TransactionOptions { timeout: Some(ms(100)), locking: true, ..Isolation::Snapshot.into() };
            let mut txn = db.inner().begin_with(options).unwrap();
            txn.put(db.default_family().inner(), b"locked", b"").unwrap();
            let (id, family) = (txn.id(), db.default_family().inner().inner());
            let waker = std::task::Waker::from(Arc::new(OwnerOfHolder(Some(txn).into())));
            let of = (family.id(), family.order());
            let mut wait = inner.txns.locks.free_wait(&inner.txns, of, b"locked", None);
            assert!(Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending());
            if expires {
                clock.advance(ms(100));
                inner.txns.sweep();
            } else {
                inner.txns.abort(id).unwrap();
            }
            assert!(Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_ready());
            assert!(db.inner().transactions().is_empty());
        });
    }
}

/// A dropped commit that waits for a lock leaves no wait behind, and was not begun.
#[test]
fn a_dropped_commit_waits_for_no_lock() {
    that_ends(|| {
        for runtime in runtimes() {
            runtime.block_on(async {
                let db = open_warm(&MemFs::shared());
                db.inner().set_option("lock_timeout_ms", "3600000").unwrap();
                let mut txn = holder(&db, "locked");
                let (kept, dropped) = (puts(&db, "locked", 1), puts(&db, "locked", 20));
                until_waiting(&db, 21).await;
                dropped.iter().for_each(Put::abort);
                for task in dropped {
                    assert!(task.await.unwrap_err().is_cancelled());
                }
                assert_eq!(db.inner().lock_waits().len(), 1);
                let before = db.inner().latest_sequence();
                txn.rollback().unwrap();
                for task in kept {
                    assert_eq!(task.await.unwrap().unwrap(), before + 1);
                }
                assert_eq!(db.inner().latest_sequence(), before + 1, "no other was committed");
            });
        }
    });
}

/// A runtime shuts down whatever its tasks wait for, and those of another runtime go on.
#[test]
fn a_runtime_ends_while_its_tasks_wait_for_a_lock() {
    that_ends(|| {
        for (first, second) in runtimes().into_iter().zip(runtimes()) {
            let db = open_warm(&MemFs::shared());
            db.inner().set_option("lock_timeout_ms", "3600000").unwrap();
            let mut txn = holder(&db, "locked");
            first.block_on(async {
                puts(&db, "locked", 20);
                until_waiting(&db, 20).await;
            });
            let others = second.block_on(async {
                let others = puts(&db, "locked", 20);
                until_waiting(&db, 40).await;
                others
            });
            drop(first);
            assert_eq!(db.inner().lock_waits().len(), 20);
            txn.rollback().unwrap();
            second.block_on(async {
                for task in others {
                    task.await.unwrap().unwrap();
                }
            });
        }
    });
}

/// Commits that wait for a lock when their database is closed do not wait for its holder.
#[test]
fn a_close_ends_waits_for_locks() {
    that_ends(|| {
        for runtime in runtimes() {
            runtime.block_on(async {
                let db = open_warm(&MemFs::shared());
                db.inner().set_option("lock_timeout_ms", "3600000").unwrap();
                let txn = holder(&db, "locked");
                let tasks = puts(&db, "locked", 20);
                until_waiting(&db, 20).await;
                db.close().await.unwrap();
                for task in tasks {
                    assert_eq!(task.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
                }
                assert!(db.inner().inner().txns.locks.waits().is_empty());
                drop(txn);
            });
        }
    });
}

/// A database whose jobs and clock a test runs itself.
fn open_by_hand() -> (AsyncDb, Arc<ManualClock>) {
    let clock = ManualClock::at_unix_ms(1_000);
    let options = Options::new().fs(MemFs::shared()).clock(clock.clone()).manual_jobs(true);
    (AsyncDb::from(Db::open("db", options).unwrap()), clock)
}

/// Background work keeps the time for tasks that wait for locks: their own, and that of a forgotten transaction.
#[test]
fn a_wait_for_a_lock_ends_in_time_without_a_thread() {
    that_ends(|| {
        for runtime in runtimes() {
            runtime.block_on(async {
                let (db, clock) = open_by_hand();
                let ms = Duration::from_millis;
                db.inner().set_option("lock_timeout_ms", "1000").unwrap();
                let mut txn = holder(&db, "locked");
                let put = puts(&db, "locked", 1).remove(0);
                until_waiting(&db, 1).await;
                clock.advance(ms(999));
                db.inner().run_one_job().unwrap();
                assert_eq!(db.inner().lock_waits().len(), 1);
                clock.advance(ms(1));
                while !put.is_finished() {
                    db.inner().run_one_job().unwrap();
                    tokio::task::yield_now().await;
                }
                let e = put.await.unwrap().unwrap_err();
                assert_eq!(e.kind(), ErrorKind::LockTimeout);
                assert!(e.message().contains(&format!("transaction {}", txn.id())), "{e}");
                txn.rollback().unwrap();

                db.inner().set_option("lock_timeout_ms", "3600000").unwrap();
                let options =
                    crate::TransactionOptions { timeout: Some(ms(100)), locking: true, ..Isolation::Snapshot.into() };
                let mut forgotten = db.inner().begin_with(options).unwrap();
                forgotten.put(db.default_family().inner(), b"forgotten", b"").unwrap();
                let put = puts(&db, "forgotten", 1).remove(0);
                until_waiting(&db, 1).await;
                clock.advance(ms(100));
                while !put.is_finished() {
                    db.inner().run_one_job().unwrap();
                    tokio::task::yield_now().await;
                }
                put.await.unwrap().unwrap();
                assert_eq!(forgotten.commit().unwrap_err().kind(), ErrorKind::Expired);
            });
        }
    });
}

/// The threads of a database keep that time by themselves.
#[test]
fn a_wait_for_a_lock_ends_without_a_call() {
    that_ends(|| {
        for runtime in runtimes() {
            runtime.block_on(async {
                let db = open_warm(&MemFs::shared());
                db.inner().set_option("lock_timeout_ms", "1").unwrap();
                let txn = holder(&db, "locked");
                for put in puts(&db, "locked", 20) {
                    assert_eq!(put.await.unwrap().unwrap_err().kind(), ErrorKind::LockTimeout);
                }
                assert!(db.inner().lock_waits().is_empty());
                drop(txn);
            });
        }
    });
}

/// The timeout does not count while an ingest holds the lock.
#[test]
fn a_commit_waits_for_an_ingest_beyond_its_timeout() {
    that_ends(|| {
        for runtime in runtimes() {
            runtime.block_on(async {
                let (db, clock) = open_by_hand();
                db.inner().set_option("lock_timeout_ms", "1").unwrap();
                let inner = db.inner().inner().clone();
                let (txns, family) = (&inner.txns, db.default_family().inner().inner());
                let (ingest, of) = (txns.ingest_id(), (family.id(), family.order()));
                txns.locks.acquire(txns, ingest, of, b"locked", LockMode::Exclusive, Wait::No).unwrap();
                let put = puts(&db, "locked", 1).remove(0);
                until_waiting(&db, 1).await;
                for _ in 0..3 {
                    clock.advance(Duration::from_secs(3600));
                    db.inner().run_one_job().unwrap();
                    tokio::task::yield_now().await;
                }
                assert_eq!((db.inner().lock_waits().len(), inner.stats.get(Stat::LockTimeouts)), (1, 0));
                txns.locks.release_all(ingest);
                put.await.unwrap().unwrap();
                assert_eq!((inner.stats.get(Stat::LockWaits), inner.stats.get(Stat::LockTimeouts)), (1, 0));
            });
        }
    });
}

/// The timeout stands still while an ingest holds the lock, even if it began before.
#[test]
fn waiting_for_an_ingest_does_not_count_towards_a_timeout_that_has_begun() {
    for on_thread in [true, false] {
        that_ends(move || {
            let [runtime, _] = runtimes();
            runtime.block_on(async {
                let (db, clock) = open_by_hand();
                db.inner().set_option("lock_timeout_ms", "1000").unwrap();
                let inner = db.inner().inner().clone();
                let (txns, family) = (&inner.txns, db.default_family().inner().inner());
                let (mut first, mut second) = (holder(&db, "1"), holder(&db, "3"));
                let (ingest, of) = (txns.ingest_id(), (family.id(), family.order()));
                txns.locks.acquire(txns, ingest, of, b"2", LockMode::Exclusive, Wait::No).unwrap();
                let batch = batch(&db, &["1", "2", "3"], b"");
                let write = match on_thread {
                    true => tokio::task::spawn_blocking({
                        let db = db.inner().clone();
                        move || db.write(batch)
                    }),
                    false => tokio::spawn({
                        let db = db.clone();
                        async move { db.write(batch).await }
                    }),
                };
                // Waits until the write waits for this transaction.
                let until_behind = async |id| {
                    while !write.is_finished() && !db.inner().lock_waits().iter().any(|wait| wait.holders == [id]) {
                        tokio::task::yield_now().await;
                    }
                    assert!(!write.is_finished(), "on a thread: {on_thread}");
                };
                until_behind(first.id()).await;
                clock.advance(Duration::from_millis(600));
                first.rollback().unwrap();
                until_behind(ingest).await;
                clock.advance(Duration::from_secs(3600));
                db.inner().run_one_job().unwrap();
                txns.locks.release_all(ingest);
                until_behind(second.id()).await;
                clock.advance(Duration::from_millis(399));
                db.inner().run_one_job().unwrap();
                until_behind(second.id()).await;
                clock.advance(Duration::from_millis(1));
                while !write.is_finished() {
                    db.inner().run_one_job().unwrap();
                    tokio::task::yield_now().await;
                }
                assert_eq!(write.await.unwrap().unwrap_err().kind(), ErrorKind::LockTimeout);
                second.rollback().unwrap();
            });
        });
    }
}

/// One wait that passes from a transaction to an ingest: a range whose first key is locked, and then another of its keys.
#[test]
fn a_wait_that_passes_to_an_ingest_does_not_time_out() {
    for on_thread in [true, false] {
        that_ends(move || {
            let [runtime, _] = runtimes();
            runtime.block_on(async {
                let (db, clock) = open_by_hand();
                db.inner().set_option("lock_timeout_ms", "1000").unwrap();
                let inner = db.inner().inner().clone();
                let (txns, family) = (&inner.txns, db.default_family().inner().inner());
                let mut first = holder(&db, "1");
                let mut batch = WriteBatch::new();
                batch.delete_range(db.default_family().inner(), "1".."3").unwrap();
                let write = match on_thread {
                    true => tokio::task::spawn_blocking({
                        let db = db.inner().clone();
                        move || db.write(batch)
                    }),
                    false => tokio::spawn({
                        let db = db.clone();
                        async move { db.write(batch).await }
                    }),
                };
                let waits = || db.inner().lock_waits().into_iter().map(|wait| (wait.holders, wait.waited));
                let until = async |holder| {
                    while !write.is_finished() && !waits().any(|(holders, _)| holders.contains(&holder)) {
                        db.inner().run_one_job().unwrap();
                        tokio::task::yield_now().await;
                    }
                    assert!(!write.is_finished(), "on a thread: {on_thread}");
                };
                until(first.id()).await;
                let (ingest, of) = (txns.ingest_id(), (family.id(), family.order()));
                txns.locks.acquire(txns, ingest, of, b"2", LockMode::Exclusive, Wait::No).unwrap();
                first.rollback().unwrap();
                until(ingest).await;
                clock.advance(Duration::from_secs(3600));
                // It ends, as its time is up, and begins anew for the ingest alone.
                while !write.is_finished() && !waits().any(|(_, waited)| waited < Duration::from_secs(3600)) {
                    db.inner().run_one_job().unwrap();
                    tokio::task::yield_now().await;
                }
                txns.locks.release_all(ingest);
                write.await.unwrap().unwrap();
            });
        });
    }
}

/// Commits into an ingest's key range continue as soon as its files are visible, not only once the manifest records them.
#[test]
fn tasks_that_wait_for_an_ingest_are_woken_when_it_is_visible() {
    that_ends(|| {
        let [_, runtime] = runtimes();
        let faults = FaultFs::new(MemFs::shared(), 1);
        let fs: Arc<dyn Fs> = Arc::new(faults.clone());
        let db = open_warm(&fs);
        db.inner().put("1", "in a memtable").unwrap();
        let mut writer = crate::SortedFileWriter::create("new.sorted", db.inner().default_family()).unwrap();
        writer.put(b"1", b"ingested").unwrap();
        writer.put(b"3", b"ingested").unwrap();
        writer.finish().unwrap();
        let (of, handle) = (db.clone(), runtime.handle().clone());
        let flag = || Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (begun, done, seen) = (flag(), flag(), flag());
        let met = seen.clone();
        faults.before_each(Some(Arc::new(move |op, path: &std::path::Path| {
            let db = of.inner();
            let is_flush = op == Op::Sync && path.extension().is_some_and(|e| e == "klog") && !db.locks().is_empty();
            if is_flush && !begun.swap(true, Ordering::SeqCst) {
                let (of, done) = (of.clone(), done.clone());
                handle.spawn(async move {
                    of.put("2", "task").await.unwrap();
                    done.store(true, Ordering::SeqCst);
                });
                while db.lock_waits().is_empty() {
                    std::thread::yield_now();
                }
            }
            let is_record = op == Op::Write && path.to_string_lossy().contains("MANIFEST");
            if is_record && begun.load(Ordering::SeqCst) && db.get("3").unwrap().is_some() {
                while !done.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                seen.store(true, Ordering::SeqCst);
            }
        })));
        db.inner().default_family().ingest(&["new.sorted"], &Default::default()).unwrap();
        faults.before_each(None);
        assert!(met.load(Ordering::SeqCst));
        assert_eq!(db.inner().get("2").unwrap().as_deref(), Some(&b"task"[..]));
        assert_eq!(db.inner().get("1").unwrap().as_deref(), Some(&b"ingested"[..]));
    });
}

/// A waker that owns its task, like that of an executor that has shut down.
struct OwnerOfTask(std::sync::Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl std::task::Wake for OwnerOfTask {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

/// A task that owns the last handle of a database, and waits for the lock on the key `locked`.
async fn put_that_waits(db: AsyncDb) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let inner = db.inner().inner().clone();
    let mut task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
        let _ = db.put("locked", "").await;
    });
    while inner.txns.locks.waits().is_empty() {
        assert!(Polls(&mut task, 1).await.is_none());
        tokio::task::yield_now().await;
    }
    task
}

/// When a thread of the database wakes a task, the task is dropped, and with it the last handle of the database.
#[test]
fn a_thread_of_the_database_may_drop_its_last_handle() {
    that_ends(|| {
        let [runtime, _] = runtimes();
        let fs = MemFs::shared();
        let clock = ManualClock::at_unix_ms(1_000);
        let db = AsyncDb::from(Db::open("db", Options::new().fs(fs.clone()).clock(clock.clone())).unwrap());
        let none = WriteOptions::new().durability(Durability::None);
        db.inner().write_with(batch(&db, &["unlogged"], b""), &none).unwrap();
        let txn = holder(&db, "locked");
        let inner = db.inner().inner().clone();
        let mut task = runtime.block_on(put_that_waits(db));
        let owner = Arc::new(OwnerOfTask(None.into()));
        let waker = std::task::Waker::from(owner.clone());
        let inside = runtime.enter();
        assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(inside);
        *owner.0.lock().unwrap() = Some(task);
        clock.advance(Duration::from_secs(3600));
        let again = loop {
            match Db::open("db", Options::new().fs(fs.clone())) {
                Err(e) if e.kind() == ErrorKind::Locked => std::thread::yield_now(),
                opened => break opened.unwrap(),
            }
        };
        assert!(again.get("unlogged").unwrap().is_some() && again.get("locked").unwrap().is_none());
        assert!(owner.0.lock().unwrap().is_none());
        drop(txn);
        // Its threads end too.
        while Arc::strong_count(&inner) > 1 {
            std::thread::yield_now();
        }
    });
}

struct OnWake(std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::task::Wake for OnWake {
    fn wake(self: Arc<Self>) {
        if let Some(then) = self.0.lock().unwrap().take() {
            then();
        }
    }
}

/// The same where a transaction's time is up, amid a look for other jobs: it finds none, as the files may be another's by then.
#[test]
fn background_work_that_closed_the_database_writes_nothing_more() {
    that_ends(|| {
        let [runtime, _] = runtimes();
        let faults = FaultFs::new(MemFs::shared(), 1);
        let (fs, clock): (Arc<dyn Fs>, _) = (Arc::new(faults.clone()), ManualClock::at_unix_ms(1_000));
        let options = Options::new().fs(fs.clone()).clock(clock.clone()).manual_jobs(true);
        let db = AsyncDb::from(Db::open("db", options).unwrap());
        db.inner().put("unflushed", "").unwrap();
        clock.advance(Duration::from_secs(1));
        let timeout = Some(Duration::from_millis(20));
        let options = crate::TransactionOptions { timeout, locking: true, ..Isolation::Snapshot.into() };
        let mut holder = db.inner().begin_with(options).unwrap();
        holder.put(db.default_family().inner(), b"locked", b"").unwrap();
        let inner = db.inner().inner().clone();
        let mut task = runtime.block_on(put_that_waits(db));
        inner.txns.locks.tend(&inner.txns); // which looks at transactions again in 25 ms
        let on_wake = Arc::new(OnWake(None.into()));
        let waker = std::task::Waker::from(on_wake.clone());
        let inside = runtime.enter();
        assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(inside);
        faults.add(Rule::new(Op::Write, Fault::Eio).path(".klog").sticky());
        let of = faults.clone();
        *on_wake.0.lock().unwrap() = Some(Box::new(move || {
            drop(task);
            of.clear();
        }));
        clock.advance(Duration::from_millis(20));
        while on_wake.0.lock().unwrap().is_some() {
            let _ = inner.jobs.run_one();
        }
        assert!(inner.closed.load(Ordering::SeqCst));
        let tables = fs.list(std::path::Path::new("db")).unwrap().into_iter().filter(|name| name.ends_with(".klog"));
        assert_eq!(tables.count(), 0, "the close could not write it");
    });
}
