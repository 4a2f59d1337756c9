//! One kind of operation, many times, for a tool that counts instructions: `cargo xtask instructions` runs it under callgrind,
//! which counts only inside of functions whose names begin with [`measured`].
//!
//! `cargo bench -p kingtide --bench instructions -- get` runs one by itself. There are no background threads and no entropy:
//! the same program does the same work each time. With `--unobserved` behind the operation the database keeps no histograms and
//! notifies no listener: the difference is what that costs.
#![allow(clippy::disallowed_methods, missing_docs)] // it works in a temporary directory of the machine

use kingtide::{
    Db, EventListener, Isolation, LogLevel, Options, Transaction, TransactionOptions, WriteBatch, WriteOptions,
};
use kingtide_base::hash::mix64;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

/// Entries that reads find.
const LOADED: u64 = 40_000;
/// Operations that are counted.
const COUNT: u64 = 10_000;
/// Puts of a batch, and keys of a multi-get.
const BATCH: u64 = 100;

/// Hears of everything and does nothing.
struct Idle;

impl EventListener for Idle {}

/// What is counted.
#[inline(never)]
fn measured(body: &mut dyn FnMut(u64)) {
    (0..black_box(COUNT)).for_each(body);
}

/// What is counted of a transaction that has read and written before.
#[inline(never)]
fn measured_commit(txn: &mut Transaction) {
    txn.commit().expect("a commit");
}

fn key(i: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[..8].copy_from_slice(&mix64(i).to_be_bytes());
    key
}

/// 100 bytes of which half compress.
fn value(i: u64) -> [u8; 100] {
    let mut value = [b'v'; 100];
    for (n, word) in value[..48].chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mix64(i * 6 + n as u64).to_le_bytes());
    }
    value
}

fn load(db: &Db) {
    let mut batch = WriteBatch::new();
    for i in 0..LOADED {
        batch.put(db.default_family(), &key(i), &value(i)).expect("a put");
        if i % 1000 == 999 {
            db.write_with(&mut batch, &WriteOptions::default()).expect("a batch");
            batch.clear();
        }
    }
    db.flush().expect("a flush");
    db.compact().expect("a compaction");
}

fn run(operation: &str, db: &Db, dir: &Path) {
    let family = db.default_family();
    if !matches!(operation, "put" | "put-batch") {
        load(db);
    }
    match operation {
        "put" => measured(&mut |i| {
            db.put(key(i), value(i)).expect("a put");
        }),
        "put-batch" => {
            let mut batch = WriteBatch::new();
            measured(&mut |i| {
                batch.put(family, &key(i), &value(i)).expect("a put");
                if i % BATCH == BATCH - 1 {
                    db.write_with(&mut batch, &WriteOptions::default()).expect("a batch");
                    batch.clear();
                }
            });
        }
        "get" => measured(&mut |i| assert!(db.get(key(i * 3 % LOADED)).expect("a get").is_some())),
        "get-missing" => measured(&mut |i| assert!(db.get(key(LOADED + i)).expect("a get").is_none())),
        "get-recent" => {
            (0..LOADED).for_each(|i| {
                db.put(key(i), value(i)).expect("a put");
            });
            measured(&mut |i| assert!(db.get(key(i * 3 % LOADED)).expect("a get").is_some()));
        }
        "multi-get" => {
            let keys: Vec<[u8; 16]> = (0..COUNT).map(|i| key(i * 3 % LOADED)).collect();
            measured(&mut |i| {
                if i % BATCH == 0 {
                    let found = db.multi_get(&keys[i as usize..(i + BATCH) as usize]);
                    assert!(found.iter().all(|v| matches!(v, Ok(Some(_)))));
                }
            });
        }
        "seek" => {
            let mut it = family.cursor(..).expect("an iterator");
            measured(&mut |i| {
                it.seek(&key(i * 3 % LOADED));
                assert!(it.valid());
            });
        }
        "next" => {
            let mut it = family.cursor(..).expect("an iterator");
            it.seek_to_first();
            measured(&mut |_| {
                black_box(it.key());
                black_box(it.value().expect("a value"));
                it.next();
            });
            assert!(it.valid());
        }
        "transaction" => measured(&mut |i| {
            let mut txn = db.begin(Isolation::Snapshot).expect("a transaction");
            black_box(txn.get(family, &key(i)).expect("a get"));
            txn.put(family, &key(i), &value(i + 1)).expect("a put");
            txn.put(family, &key(i + 7), &value(i + 2)).expect("a put");
            txn.commit().expect("a commit");
        }),
        "transaction-commit" => (0..COUNT).for_each(|i| {
            let mut txn = db.begin(Isolation::Snapshot).expect("a transaction");
            black_box(txn.get(family, &key(i)).expect("a get"));
            txn.put(family, &key(i), &value(i + 1)).expect("a put");
            txn.put(family, &key(i + 7), &value(i + 2)).expect("a put");
            measured_commit(&mut txn);
        }),
        "transaction-locking" => measured(&mut |i| {
            let options = TransactionOptions::new(Isolation::RepeatableRead).locking(true);
            let mut txn = db.begin_with(options).expect("a transaction");
            black_box(txn.get_for_update(family, &key(i)).expect("a get"));
            txn.put(family, &key(i), &value(i + 1)).expect("a put");
            txn.put(family, &key(i + 7), &value(i + 2)).expect("a put");
            txn.commit().expect("a commit");
        }),
        "flush" => {
            put_all(db);
            once(&mut || db.flush().expect("a flush"));
        }
        "compaction" => {
            put_all(db);
            db.flush().expect("a flush");
            once(&mut || db.compact().expect("a compaction"));
        }
        "recovery" => {
            put_all(db);
            let copy = dir.with_extension("copy");
            copy_files(dir, &copy);
            once(&mut || drop(black_box(Db::open(&copy, options())).expect("a recovery")));
            let _ = std::fs::remove_dir_all(&copy);
        }
        _ => panic!("there is no operation '{operation}'"),
    }
}

/// Does one thing where [`measured`] counts.
fn once(body: &mut dyn FnMut()) {
    measured(&mut |i| {
        if i == 0 {
            body();
        }
    });
}

fn put_all(db: &Db) {
    (0..LOADED).for_each(|i| {
        db.put(key(i), value(i + 1)).expect("a put");
    });
}

/// Copies the files of an open database, which is what a kill leaves.
fn copy_files(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a listing") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_files(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

fn options() -> Options {
    Options::new().manual_jobs(true).seed(1)
}

fn main() {
    let operation = std::env::args().skip(1).find(|a| !a.starts_with("--")).unwrap_or_else(|| "get".to_owned());
    let dir = std::env::temp_dir().join(format!("kingtide-instructions-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let mut options = options();
    let observed = !std::env::args().any(|a| a == "--unobserved");
    options.db.histograms = observed;
    options.listener = observed.then(|| Arc::new(Idle) as Arc<dyn EventListener>);
    options.db.log_level = if observed { LogLevel::Info } else { LogLevel::Off };
    let db = Db::open(&dir, options).expect("a database");
    run(&operation, &db, &dir);
    drop(db);
    let _ = std::fs::remove_dir_all(&dir);
}
