//! A forked child has its parent's handles but none of its threads: every use of such a handle is refused, dropping it
//! changes nothing, and the parent's database and its file lock are as they were.

use std::time::Duration;

use kingtide::{ColumnFamily, Db, Durability, ErrorKind, Isolation, Options, TransactionOptions, WriteBatch};
use kingtide_testkit::{RaiseOnDrop, Scratch};

/// Seconds after which a child that hangs is killed by its own alarm, which fails the test. A child that opens databases takes 12 seconds where
/// other processes keep the disk busy with syncs, and took more than 30.
const HANGS: u32 = 300;

/// Runs `body` in a forked child, which ends right after it, and fails if it panicked or hung.
fn in_child(body: impl FnOnce()) {
    // SAFETY: the child runs `body` and leaves through `_exit`. The C library's allocator can be used after a fork in a
    // process with threads, and what else `body` calls is what these tests are about.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: it sets a timer, which ends this child alone.
        unsafe { libc::alarm(HANGS) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: it ends this child, without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: `status` is an integer that the call writes to.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(!libc::WIFSIGNALED(status), "the child was ended by signal {}: it hung", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "the child panicked");
}

/// Names and contents of all files in a directory.
fn files(dir: &std::path::Path) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap())
        .map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap()))
        .collect();
    all.sort();
    all
}

/// Fails unless all files are there that were, unchanged. The parent's threads may have made a spare log segment meanwhile.
fn check_untouched(dir: &std::path::Path, before: &[(String, Vec<u8>)]) {
    let after = files(dir);
    for file in before {
        assert!(after.contains(file), "the child changed {}", file.0);
    }
    for (name, bytes) in after.iter().filter(|f| !before.contains(f)) {
        assert!(name.ends_with(".wal") && bytes.iter().all(|b| *b == 0), "the child made {name}");
    }
}

/// Few threads and no reserve, so that the parent's own files stand still while the child tries its hand at them.
fn options() -> Options {
    let mut options = Options::default();
    options.set("background_threads", "2").unwrap();
    options
}

fn refused<T: std::fmt::Debug>(what: &str, result: kingtide::Result<T>) {
    let e = result.expect_err(what);
    assert_eq!(e.kind(), ErrorKind::Closed, "{what}: {e}");
    assert!(e.message().contains("fork"), "{what}: {e}");
}

/// Calls that cannot fail say nothing, and wait for no lock.
fn finds_nothing(db: &Db) {
    let stats = db.stats();
    assert!(stats.writes_stopped.is_some_and(|why| why.contains("fork")) && stats.families.is_empty());
    assert_eq!(db.families(), Vec::<String>::new());
    assert_eq!(db.prometheus(), "");
    assert!(db.transactions().is_empty() && db.locks().is_empty() && db.lock_waits().is_empty());
    assert!(db.recover_prepared().is_empty() && db.named_snapshots().is_empty() && db.slow_operations().is_empty());
    assert!(db.oldest_readable_sequence() <= db.latest_sequence());
}

/// Every call of a database and of a family that can fail does, and waits for no lock.
fn refuses_everything(db: &Db, family: &ColumnFamily, dir: &std::path::Path) {
    refused("put", db.put(b"b", b"child"));
    refused("put_ttl", db.put_ttl(b"b", b"child", Duration::from_secs(1)));
    refused("put in a family", family.put(b"b", b"child"));
    refused("delete", db.delete(b"a"));
    refused("single_delete", db.single_delete(b"a"));
    refused("delete_range", db.delete_range("a".."b"));
    refused("delete_prefix", db.delete_prefix("a"));
    let mut batch = WriteBatch::new();
    batch.put(family, b"c", b"child").unwrap();
    refused("write", db.write(batch));
    refused("put_reader", db.put_reader("b", &b"child"[..]));
    refused("value_writer", family.value_writer().map(drop));
    refused("get", db.get(b"a"));
    refused("get_into", family.get_into(b"a", &mut Vec::new()));
    refused("get_reader", family.get_reader(b"a").map(drop));
    refused("get_range", family.get_range(b"a", 0..1));
    refused("contains_key", db.contains_key(b"a"));
    refused("multi_get", db.multi_get(&[b"a"]).remove(0));
    refused("iter", db.iter().next().unwrap());
    refused("first", db.first());
    refused("last", family.last());
    refused("cursor", db.cursor(..).map(drop));
    refused("begin", db.begin(Isolation::Snapshot).map(drop));
    refused("transact", db.transact(|_| Ok(())));
    refused("flush", db.flush());
    refused("flush of a family", family.flush());
    refused("compact", db.compact());
    refused("compact of a family", family.compact());
    refused("compact_range", family.compact_range("a".."b"));
    refused("reclaim_range", family.reclaim_range("a".."b"));
    refused("sync", db.sync());
    refused("wait_for_background", db.wait_for_background());
    refused("create_family", db.create_family("mine", Default::default()).map(drop));
    refused("get_or_create_family", db.get_or_create_family("other", Default::default()).map(drop));
    refused("rename_family", db.rename_family("other", "mine"));
    refused("drop_family", db.drop_family("other"));
    refused("family", db.family("other").map(drop));
    refused("set_option", db.set_option("rate_limit", "1M"));
    refused("set_option of a family", family.set_option("block_size", "8K"));
    refused("estimate_count", family.estimate_count());
    refused("snapshot_at", db.snapshot_at(db.latest_sequence()).map(drop));
    refused("create_named_snapshot", db.create_named_snapshot("mine").map(drop));
    refused("named_snapshot", db.named_snapshot("mine").map(drop));
    refused("drop_named_snapshot", db.drop_named_snapshot("mine"));
    refused("checkpoint", db.checkpoint(dir.join("copy")));
    refused("verify", db.verify_with(&mut |_| true).map(drop));
    refused("run_one_job", db.run_one_job());
    refused("commit_prepared", db.commit_prepared(b"x"));
    refused("rollback_prepared", db.rollback_prepared(b"x"));
    refused("check_process", db.check_process());
    finds_nothing(db);
}

/// A thread of the parent holds locks of the database at the very moment of many a fork; a child that waited for one of them
/// would wait for ever.
#[test]
fn a_forked_child_waits_for_no_lock_that_a_thread_of_its_parent_held() {
    let dir = Scratch::absent("held");
    let db = Db::open(&dir.0, options()).unwrap();
    let family = db.create_family("other", Default::default()).unwrap();
    db.put(b"a", b"1").unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        let end = RaiseOnDrop(&stop);
        for n in 0..2 {
            let (db, stop) = (&db, &stop);
            s.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let mut txn = db.begin(Isolation::Snapshot).unwrap();
                    txn.put(db.default_family(), &[n], b"1").unwrap();
                    drop((db.stats(), db.families(), db.locks(), db.transactions(), db.recover_prepared()));
                    db.set_option("rate_limit", "1M").unwrap();
                }
            });
            // Most of the time, one of these holds the lock that is held for the shortest time.
            s.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(db.family("other").unwrap());
                }
            });
        }
        for _ in 0..60 {
            in_child(|| refuses_everything(&db, &family, &dir.0));
        }
        drop(end);
    });
    db.close().unwrap();
}

#[test]
fn a_forked_child_is_refused_everything_and_its_close_returns() {
    let dir = Scratch::absent("refused");
    let db = Db::open(&dir.0, options()).unwrap();
    let family = db.create_family("other", Default::default()).unwrap();
    db.put(b"a", b"1").unwrap();
    db.wait_for_background().unwrap();
    let before = files(&dir.0);
    in_child(|| {
        refuses_everything(&db, &family, &dir.0);
        refused("close", db.close());
        refused("close again", db.close());
    });
    check_untouched(&dir.0, &before);
    db.put(b"d", b"parent").unwrap();
    db.close().unwrap();
    drop((family, db));
    let db = Db::open(&dir.0, options()).unwrap();
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(db.get(b"b").unwrap().as_deref(), None);
    assert_eq!(db.get(b"d").unwrap().as_deref(), Some(&b"parent"[..]));
}

#[test]
fn a_forked_child_is_refused_the_transactions_that_it_inherited() {
    let dir = Scratch::absent("inherited");
    let db = Db::open(&dir.0, options()).unwrap();
    let family = db.default_family();
    let locking = TransactionOptions::new(Isolation::RepeatableRead).locking(true);
    let mut txn = db.begin_with(locking).unwrap();
    txn.put(family, b"t", b"1").unwrap();
    txn.set_savepoint("s").unwrap();
    let (id, handle) = (txn.id(), txn.handle());
    let mut ordered = db.begin(Isolation::Snapshot).unwrap();
    ordered.put(family, b"o", b"1").unwrap();
    let mut ticket = Some(ordered.commit_ordered().unwrap());
    in_child(|| {
        refused("get", txn.get(family, b"t"));
        refused("put", txn.put(family, b"t", b"child"));
        refused("delete_range", txn.delete_range(family, &b"a"[..]..=&b"z"[..]));
        refused("set_savepoint", txn.set_savepoint("child"));
        refused("rollback_to_savepoint", txn.rollback_to_savepoint("s"));
        refused("release_savepoint", txn.release_savepoint("s"));
        refused("unlock_last", txn.unlock_last());
        refused("refresh_snapshot", txn.refresh_snapshot());
        refused("prepare", txn.prepare(b"child"));
        refused("commit", txn.commit());
        refused("rollback", txn.rollback());
        refused("reset", txn.reset());
        refused("abort", handle.abort());
        refused("interrupt", handle.interrupt());
        refused("abort_transaction", db.abort_transaction(id));
        refused("commit_prepared", db.commit_prepared(b"x"));
        refused("wait", ticket.take().unwrap().wait());
        db.set_lock_wait_hook(None); // waits for no lock
        refused("set_commit_hook", family.set_commit_hook(None));
        refused("catch_up", db.try_catch_up());
    });
    txn.rollback_to_savepoint("s").unwrap();
    txn.commit().unwrap();
    ticket.take().unwrap().wait().unwrap();
    assert!(db.get("t").unwrap().is_some() && db.get("o").unwrap().is_some());
    drop((txn, ordered));
    db.close().unwrap();
}

#[test]
fn dropping_handles_in_a_forked_child_touches_nothing_and_keeps_the_parents_lock() {
    for manual in [false, true] {
        let dir = Scratch::absent(&format!("dropped-{manual}"));
        let db = Db::open(&dir.0, options().manual_jobs(manual)).unwrap();
        // A table that an iterator keeps from being deleted: dropping the iterator deletes it.
        db.put(b"a", b"1").unwrap();
        db.flush().unwrap();
        let iterator = db.cursor(..).unwrap();
        db.put(b"a", b"2").unwrap();
        db.flush().unwrap();
        db.compact().unwrap();
        db.wait_for_background().unwrap();
        db.put(b"b", b"in the memtable").unwrap();
        let snapshot = db.snapshot();
        let mut txn = db.begin(Isolation::Snapshot).unwrap();
        txn.put(db.default_family(), b"t", b"1").unwrap();
        let before = files(&dir.0);
        let (mut own, mut iterator, mut snapshot, mut txn) = (Some(db), Some(iterator), Some(snapshot), Some(txn));
        in_child(|| {
            drop((iterator.take(), snapshot.take(), txn.take()));
            drop(own.take());
            let e = Db::open(&dir.0, options()).expect_err("the parent has it open");
            assert_eq!(e.kind(), ErrorKind::Locked, "{e}");
            assert!(e.message().contains("another process"), "{e}");
        });
        check_untouched(&dir.0, &before);
        let db = own.take().unwrap();
        txn.take().unwrap().commit().unwrap();
        // The parent's lock still holds, against other processes too.
        in_child(|| {
            let e = Db::open(&dir.0, options()).expect_err("the parent has it open");
            assert_eq!(e.kind(), ErrorKind::Locked, "{e}");
        });
        let held = std::process::Command::new("flock")
            .args(["--nonblock", dir.0.join("LOCK").to_str().unwrap(), "true"])
            .status();
        if let Ok(status) = held {
            assert_eq!(status.code(), Some(1), "another process gets the lock");
        }
        drop((iterator, snapshot));
        db.close().unwrap();
        drop(db);
        let db = Db::open(&dir.0, options()).unwrap();
        for (key, value) in [(b"a", &b"2"[..]), (b"b", b"in the memtable"), (b"t", b"1")] {
            assert_eq!(db.get(key).unwrap().as_deref(), Some(value));
        }
    }
}

#[test]
fn a_forked_child_has_databases_of_its_own() {
    let dir = Scratch::new("own");
    let parent = Db::open(dir.0.join("parent"), options()).unwrap();
    parent.put(b"a", b"1").unwrap();
    in_child(|| {
        let own = Db::open(dir.0.join("child"), options()).unwrap();
        own.put(b"a", b"2").unwrap();
        own.flush().unwrap();
        assert_eq!(own.get(b"a").unwrap().as_deref(), Some(&b"2"[..]));
        refused("get", parent.get(b"a"));
        // A grandchild inherits neither.
        in_child(|| {
            refused("close", own.close());
            refused("put", parent.put(b"a", b"3"));
        });
        own.put(b"b", b"3").unwrap();
        own.close().unwrap();
    });
    let child = Db::open(dir.0.join("child"), options()).unwrap();
    assert_eq!(child.get(b"b").unwrap().as_deref(), Some(&b"3"[..]));
    assert_eq!(parent.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
}

/// The child's threads are given the stacks that the parent's threads had. Locks that keep their waiting threads in a table
/// of the process would find overwritten stacks there.
#[test]
fn a_database_opened_in_a_forked_child_is_not_disturbed_by_the_threads_that_waited_in_the_parent() {
    let dir = Scratch::new("waiting");
    let parents: Vec<_> = (0..32).map(|n| Db::open(dir.0.join(format!("parent-{n}")), options()).unwrap()).collect();
    for round in 0..4 {
        in_child(|| {
            let own: Vec<_> =
                (0..32).map(|n| Db::open(dir.0.join(format!("child-{round}-{n}")), options()).unwrap()).collect();
            for db in &own {
                db.put(b"a", b"2").unwrap();
                db.flush().unwrap();
                db.wait_for_background().unwrap();
            }
            for db in own {
                db.close().unwrap();
            }
        });
    }
    for db in parents {
        db.close().unwrap();
    }
}

#[test]
fn synced_writes_of_a_forked_child_are_refused_while_the_parent_writes() {
    let dir = Scratch::absent("both");
    let mut options = options();
    options.db.durability = Durability::Power;
    let db = Db::open(&dir.0, options.clone()).unwrap();
    for round in 0..20u64 {
        db.put(round.to_be_bytes(), b"parent").unwrap();
        in_child(|| {
            for n in 0..100u64 {
                refused("put", db.put((1000 + n).to_be_bytes(), vec![7; 2000]));
            }
        });
    }
    db.close().unwrap();
    drop(db);
    let db = Db::open(&dir.0, options).unwrap();
    let mut iterator = db.cursor(..).unwrap();
    iterator.seek_to_first();
    let mut found = 0;
    while iterator.valid() {
        found += 1;
        iterator.next();
    }
    iterator.status().unwrap();
    assert_eq!(found, 20);
}
