//! Money that moves between accounts: a transaction that is retried after a conflict, one that rolls back to a
//! savepoint, one that takes locks, and one that is committed in two phases.
//!
//! ```sh
//! cargo run --example transactions
//! ```

#![allow(clippy::disallowed_methods)] // an example's threads, and the machine's directory for temporary files

use kingtide::{ColumnFamily, Db, Error, Isolation, Options, Result, TransactOptions, Transaction, TransactionOptions};

fn balance(stored: Option<impl std::ops::Deref<Target = [u8]>>) -> i64 {
    stored.and_then(|v| v.first_chunk().copied()).map_or(0, i64::from_le_bytes)
}

/// Moves money inside a transaction. The read decides what is written, so it must still be true at the commit: on the
/// serializable level every read is, on the others those that say so.
fn transfer(txn: &mut Transaction, accounts: &ColumnFamily, from: &str, to: &str, amount: i64) -> Result<()> {
    let (a, b) = (balance(txn.get(accounts, from.as_bytes())?), balance(txn.get(accounts, to.as_bytes())?));
    if a < amount {
        return Err(Error::invalid(format!("{from} has only {a}")));
    }
    txn.put(accounts, from.as_bytes(), &(a - amount).to_le_bytes())?;
    txn.put(accounts, to.as_bytes(), &(b + amount).to_le_bytes())
}

/// Moves money, and counts the attempts: `transact` runs the whole closure again, reads included, whenever another
/// transaction committed first.
fn transfer_one(db: &Db, from: &str, to: &str) -> Result<u32> {
    let mut attempts = 0;
    db.transact(|txn| {
        attempts += 1;
        transfer(txn, db.default_family(), from, to, 1)
    })?;
    Ok(attempts)
}

fn total(db: &Db) -> Result<i64> {
    let mut txn = db.begin(Isolation::Serializable)?; // reads one moment, and is never refused
    let values = txn.iter(db.default_family()).map(|entry| Ok(balance(Some(entry?.value))));
    values.sum()
}

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join("kingtide-example-transactions");
    let _ = std::fs::remove_dir_all(&dir);
    let db = Db::open(&dir, Options::default())?;
    let accounts = db.default_family();
    for name in ["anna", "bert", "cleo"] {
        db.put(name, 100i64.to_le_bytes())?;
    }

    // Four threads move money around. None of it is lost or created, in whatever order they commit.
    let attempts = std::thread::scope(|s| {
        let threads = [("anna", "bert"), ("bert", "cleo"), ("cleo", "anna"), ("anna", "cleo")].map(|(from, to)| {
            let db = &db;
            s.spawn(move || (0..20).map(|_| transfer_one(db, from, to)).sum::<Result<u32>>())
        });
        let joined = threads.map(|t| t.join().unwrap_or_else(|_| Err(Error::invalid("a thread panicked"))));
        joined.into_iter().sum::<Result<u32>>()
    })?;
    println!("80 transfers took {attempts} attempts; together there is {}", total(&db)?);
    assert_eq!(total(&db)?, 300);

    // A part of a transaction is taken back; the rest commits.
    let mut txn = db.begin(Isolation::Snapshot)?;
    transfer(&mut txn, accounts, "anna", "bert", 10)?;
    txn.set_savepoint("before the gift")?;
    if let Err(refused) = transfer(&mut txn, accounts, "bert", "cleo", 1_000_000) {
        println!("taken back: {refused}");
        txn.rollback_to_savepoint("before the gift")?;
    }
    txn.commit()?;

    // Many want the same key: waiting for a lock is cheaper than being refused in the end. No other transaction can write what was
    // read for update, on any level.
    let locking = TransactionOptions::new(Isolation::ReadCommitted).locking(true);
    db.transact_with(TransactOptions::new().transaction(locking), |txn| {
        let anna = balance(txn.get_for_update(accounts, b"anna")?);
        txn.put(accounts, b"anna", &(anna + 5).to_le_bytes())
    })?;

    // Two phases: prepared, it survives a crash and can be committed whatever happens. A coordinator that prepared its part
    // in several databases then commits all of them, here by its name for the transaction, after a restart.
    let mut txn = db.begin(Isolation::Serializable)?;
    transfer(&mut txn, accounts, "bert", "cleo", 7)?;
    txn.prepare(b"transfer 4711")?;
    drop(txn);
    db.close()?;
    drop(db);
    let db = Db::open(&dir, Options::default())?;
    for in_doubt in db.recover_prepared() {
        println!("in doubt: {} with {} writes", in_doubt.xid.escape_ascii(), in_doubt.operations);
        db.commit_prepared(&in_doubt.xid)?;
    }
    println!("together there is {}", total(&db)?);
    assert_eq!(total(&db)?, 305);
    db.close()
}
