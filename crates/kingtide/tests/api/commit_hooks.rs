//! Commit hooks: every commit once, in commit order, from any thread; commits from within hooks; panics; removal.

use kingtide::vfs::{Fs, MemFs};
use kingtide::{
    ChangeKind, ColumnFamily, CommitHook, CommittedWrites, Db, FamilyOptions, Isolation, Options, TransactionOptions,
    WriteBatch, WriteOptions,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn open(fs: &Arc<MemFs>) -> Db {
    Db::open("/db", Options::new().fs(fs.clone())).unwrap()
}

type Op = (ChangeKind, Vec<u8>, Vec<u8>, bool);

/// Writes down what it is called with.
#[derive(Default)]
struct Record(Mutex<Vec<(u64, Vec<Op>)>>);

impl Record {
    fn sequences(&self) -> Vec<u64> {
        self.0.lock().unwrap().iter().map(|c| c.0).collect()
    }
}

impl CommitHook for Record {
    fn committed(&self, commit: &CommittedWrites<'_>) {
        let ops: Vec<Op> =
            commit.operations().map(|c| (c.kind, c.key.to_vec(), c.value.to_vec(), c.expires_at.is_some())).collect();
        assert_eq!((ops.len(), commit.is_empty()), (commit.len(), false));
        self.0.lock().unwrap().push((commit.sequence(), ops));
    }
}

fn is_ascending(sequences: &[u64]) -> bool {
    sequences.windows(2).all(|w| w[0] < w[1])
}

#[test]
fn a_hook_sees_the_operations_of_its_family_decoded() {
    let db = open(&Arc::new(MemFs::new()));
    let other = db.create_family("other", FamilyOptions::default()).unwrap();
    let hook = Arc::new(Record::default());
    db.default_family().set_commit_hook(Some(hook.clone())).unwrap();
    let long = vec![b'x'; 100_000]; // long enough to be packed
    let mut batch = WriteBatch::new();
    let default = db.default_family();
    batch.put(default, b"a", b"1").unwrap();
    batch.put(&other, b"not shown", b"1").unwrap();
    batch.put(default, b"long", &long).unwrap();
    batch.put_ttl(default, b"ttl", b"2", Duration::from_secs(9)).unwrap();
    batch.delete(default, b"b").unwrap();
    batch.single_delete(default, b"c").unwrap();
    batch.delete_range(default, b"d"..b"e").unwrap();
    batch.put(&other, b"not shown either", b"1").unwrap();
    let seq = db.write(batch).unwrap();
    other.put(b"x", b"y").unwrap();
    let op = |kind, key: &[u8], value: &[u8], ttl| (kind, key.to_vec(), value.to_vec(), ttl);
    let expected = vec![
        op(ChangeKind::Put, b"a", b"1", false),
        op(ChangeKind::Put, b"long", &long, false),
        op(ChangeKind::Put, b"ttl", b"2", true),
        op(ChangeKind::Delete, b"b", b"", false),
        op(ChangeKind::SingleDelete, b"c", b"", false),
        op(ChangeKind::DeleteRange, b"d", b"e", false),
    ];
    assert_eq!(*hook.0.lock().unwrap(), [(seq, expected)]);
    default.set_commit_hook(None).unwrap();
    db.put("after", "").unwrap();
    assert_eq!(hook.sequences(), [seq]);
}

#[test]
fn eight_threads_are_told_of_in_commit_order_before_their_calls_return() {
    let each: usize = if kingtide_testkit::full() { 20_000 } else { 1_000 };
    let db = open(&Arc::new(MemFs::new()));
    let (hook, elsewhere) = (Arc::new(Record::default()), Arc::new(Record::default()));
    let second = db.create_family("second", FamilyOptions::default()).unwrap();
    db.default_family().set_commit_hook(Some(hook.clone())).unwrap();
    second.set_commit_hook(Some(elsewhere.clone())).unwrap();
    let newest = Arc::new(AtomicUsize::new(0));
    let own: Vec<Vec<u64>> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..8)
            .map(|t| {
                let (db, hook, second, newest) = (db.clone(), hook.clone(), second.clone(), newest.clone());
                s.spawn(move || {
                    let mut batch = WriteBatch::new();
                    (0..each)
                        .map(|i| {
                            batch.clear();
                            let key = format!("{t}:{i}");
                            batch.put(db.default_family(), key.as_bytes(), b"v").unwrap();
                            if i % 3 == 0 {
                                batch.put(&second, key.as_bytes(), b"v").unwrap();
                            }
                            let seq = db.write_with(&mut batch, &WriteOptions::default()).unwrap();
                            if i % 64 == 0 {
                                assert!(hook.sequences().contains(&seq), "the call returned before the hook ran");
                            }
                            newest.fetch_max(seq as usize, Ordering::Relaxed);
                            seq
                        })
                        .collect()
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut all: Vec<u64> = own.concat();
    all.sort_unstable();
    assert!(is_ascending(&hook.sequences()));
    assert_eq!(hook.sequences(), all);
    assert!(is_ascending(&elsewhere.sequences()));
    assert_eq!(elsewhere.sequences().len(), 8 * each.div_ceil(3));
    assert!(hook.0.lock().unwrap().iter().all(|(_, ops)| ops.len() == 1));
}

/// Counts the commits to one family in a key of another, by commits from within the hook; that family has a hook too.
struct Counter {
    counts: ColumnFamily,
    seen: AtomicUsize,
}

impl CommitHook for Counter {
    fn committed(&self, commit: &CommittedWrites<'_>) {
        let n = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        self.counts.put(b"count", n.to_le_bytes()).unwrap();
        // A hook can read the commit that it is called for.
        assert!(self.counts.get(b"count").unwrap().is_some());
        assert!(commit.sequence() > 0);
    }
}

#[test]
fn hooks_may_commit_and_their_commits_are_told_of_in_order() {
    let db = open(&Arc::new(MemFs::new()));
    let counts = db.create_family("counts", FamilyOptions::default()).unwrap();
    let record = Arc::new(Record::default());
    counts.set_commit_hook(Some(record.clone())).unwrap();
    db.default_family()
        .set_commit_hook(Some(Arc::new(Counter { counts: counts.clone(), seen: AtomicUsize::new(0) })))
        .unwrap();
    std::thread::scope(|s| {
        for t in 0..4 {
            let db = db.clone();
            s.spawn(move || {
                (0..250).for_each(|i| {
                    db.put(format!("{t}:{i}"), "v").unwrap();
                })
            });
        }
    });
    let seen = record.0.lock().unwrap();
    let counted: Vec<usize> =
        seen.iter().map(|(_, ops)| usize::from_le_bytes(ops[0].2.as_slice().try_into().unwrap())).collect();
    assert_eq!(counted, (1..=1000).collect::<Vec<_>>());
    assert!(is_ascending(&seen.iter().map(|c| c.0).collect::<Vec<_>>()));
    drop(seen);
    db.close().unwrap(); // the hook owns a handle of the database: closing lets go of it
}

#[test]
fn hooks_of_two_databases_that_commit_to_each_other_do_not_deadlock() {
    let dbs = [open(&Arc::new(MemFs::new())), open(&Arc::new(MemFs::new()))];
    let told = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    for i in 0..2 {
        let (other, told) = (dbs[1 - i].clone(), told.clone());
        dbs[i]
            .default_family()
            .set_commit_hook(Some(Arc::new(move |commit: &CommittedWrites<'_>| {
                told[i].fetch_add(1, Ordering::Relaxed);
                if commit.operations().any(|c| c.value == b"first") {
                    other.put("echo", "second").unwrap();
                }
            })))
            .unwrap();
    }
    std::thread::scope(|s| {
        for db in &dbs {
            s.spawn(|| {
                (0..500).for_each(|i| {
                    db.put(format!("{i}"), "first").unwrap();
                })
            });
        }
    });
    for (db, told) in dbs.iter().zip(told.iter()) {
        assert_eq!(told.load(Ordering::Relaxed), 1000);
        db.close().unwrap();
    }
}

#[test]
fn a_panic_in_a_hook_is_counted_and_harms_nothing() {
    let db = open(&Arc::new(MemFs::new()));
    let calls = Arc::new(AtomicUsize::new(0));
    let inside = calls.clone();
    db.default_family()
        .set_commit_hook(Some(Arc::new(move |_: &CommittedWrites<'_>| {
            assert!(inside.fetch_add(1, Ordering::Relaxed) % 2 == 1, "every other call of this hook panics");
        })))
        .unwrap();
    for i in 0..10 {
        db.put(format!("{i}"), "v").unwrap();
    }
    assert_eq!(calls.load(Ordering::Relaxed), 10);
    let counts: BTreeMap<_, _> = db.stats().counters.into_iter().collect();
    assert_eq!(counts["commit_hook_panics"], 5);
    db.put("still", "here").unwrap();
    db.close().unwrap();
}

#[test]
fn recovery_does_not_tell_again() {
    let fs = Arc::new(MemFs::new());
    let db = open(&fs);
    db.put("a", "1").unwrap();
    let copy = Arc::new(fs.kill_clone());
    drop(db);
    let db = open(&copy);
    let hook = Arc::new(Record::default());
    db.default_family().set_commit_hook(Some(hook.clone())).unwrap();
    db.put("b", "2").unwrap();
    assert_eq!(hook.sequences(), [2]);
    assert_eq!(db.get("a").unwrap().as_deref(), Some(&b"1"[..]));
}

/// When a hook runs, the transaction whose commit it is called for is over: its locks are free, and other threads may look at the
/// transactions that are running.
#[test]
fn hooks_of_transactions_may_make_any_call() {
    for locking in [true, false] {
        let db = open(&Arc::new(MemFs::new()));
        let (inner, told) = (db.clone(), Arc::new(AtomicUsize::new(0)));
        let count = told.clone();
        db.default_family()
            .set_commit_hook(Some(Arc::new(move |commit: &CommittedWrites<'_>| {
                count.fetch_add(1, Ordering::Relaxed);
                if commit.operations().any(|c| c.value == b"again") {
                    return;
                }
                let family = inner.default_family();
                for change in commit.operations() {
                    family.put(change.key, b"again").unwrap();
                    let mut txn = inner.begin(Isolation::ReadUncommitted).unwrap();
                    assert_eq!(txn.get(family, change.key).unwrap().as_deref(), Some(&b"again"[..]));
                }
            })))
            .unwrap();
        std::thread::scope(|s| {
            for t in 0..4 {
                let db = db.clone();
                s.spawn(move || {
                    for i in 0..100 {
                        let options = TransactionOptions::default().locking(locking);
                        let mut txn = db.begin_with(options).unwrap();
                        txn.put(db.default_family(), format!("{t}:{i}").as_bytes(), b"first").unwrap();
                        if i % 4 == 0 {
                            txn.prepare(format!("{t}:{i}").as_bytes()).unwrap();
                        }
                        txn.commit().unwrap();
                    }
                });
            }
        });
        assert_eq!(told.load(Ordering::Relaxed), 800);
        db.close().unwrap();
    }
}

/// Has `work` called once, when this thread next writes a large value without a copy, before that is committed.
fn amid_a_large_put(work: impl FnOnce() + 'static) {
    let mut work = Some(work);
    kingtide_base::rare::on_this_thread(Some(Box::new(move |taken| {
        if taken == "direct-value-uncopied" {
            work.take().into_iter().for_each(|work| work());
        }
    })));
}

/// Of bytes that do not shrink.
fn large() -> Vec<u8> {
    let mut value = vec![0; 300_000];
    kingtide_base::rng::Rng::new(1).fill(&mut value);
    value
}

/// A large put looks for hooks before it writes its value. One that is set until its commit sees it all the same, one that is
/// taken away does not.
#[test]
fn a_hook_that_is_set_amid_a_large_put_sees_it() {
    let db = open(&Arc::new(MemFs::new()));
    let (record, value) = (Arc::new(Record::default()), large());
    let (family, hook) = (db.default_family().clone(), record.clone());
    amid_a_large_put(move || family.set_commit_hook(Some(hook)).unwrap());
    let seq = db.put("large", &value).unwrap();
    let op = (ChangeKind::Put, b"large".to_vec(), value.clone(), false);
    assert_eq!(*record.0.lock().unwrap(), [(seq, vec![op])]);
    db.default_family().set_commit_hook(None).unwrap();
    let (family, hook) = (db.default_family().clone(), record.clone());
    amid_a_large_put(move || {
        family.set_commit_hook(Some(hook)).unwrap();
        family.set_commit_hook(None).unwrap();
    });
    db.put("large", &value).unwrap();
    kingtide_base::rare::on_this_thread(None);
    assert_eq!(record.sequences(), [seq]);
}

/// Hooks are called one after the other, so much can happen between a commit and its hook. The value of a large put that no
/// batch held was read back by then, and the hook was not called if that was overwritten and its file gone.
#[test]
fn a_hook_sees_a_large_value_whose_file_would_be_gone_by_then() {
    let fs = Arc::new(MemFs::new());
    let options = Options::new().fs(fs.clone()).manual_jobs(true);
    let db = Db::open("/db", options).unwrap();
    let value_logs = {
        let fs = fs.clone();
        move || fs.list("/db".as_ref()).unwrap().iter().filter(|n| n.ends_with(".vlog")).count()
    };
    let (record, value) = (Arc::new(Record::default()), large());
    let (inner, hook, put) = (db.clone(), record.clone(), value.clone());
    db.default_family()
        .set_commit_hook(Some(Arc::new(move |_: &CommittedWrites<'_>| {
            let family = inner.default_family();
            family.set_commit_hook(None).unwrap(); // a put with hooks would be copied
            let (setting, hook) = (family.clone(), hook.clone());
            amid_a_large_put(move || setting.set_commit_hook(Some(hook)).unwrap());
            family.put("large", &put).unwrap(); // whose hook has to wait for this one
            kingtide_base::rare::on_this_thread(None);
            family.set_commit_hook(None).unwrap();
            family.put("large", "small").unwrap();
            inner.flush().unwrap();
            while inner.run_one_job().unwrap() {}
        })))
        .unwrap();
    db.put("first", "1").unwrap();
    let told = record.0.lock().unwrap();
    assert_eq!(told.len(), 1, "the hook missed it");
    assert_eq!(told[0].1, [(ChangeKind::Put, b"large".to_vec(), value, false)]);
    while db.run_one_job().unwrap() {}
    assert_eq!(value_logs(), 0, "nothing keeps the file any more");
    assert_eq!(db.get("large").unwrap().as_deref(), Some(&b"small"[..]));
}
