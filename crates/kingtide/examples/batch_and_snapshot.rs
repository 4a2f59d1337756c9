//! Several changes that happen together, and reads that all see the same moment.
//!
//! ```sh
//! cargo run --example batch_and_snapshot
//! ```

#![allow(clippy::disallowed_methods)] // the directory for temporary files is the machine's

use kingtide::{ColumnFamily, Db, Durability, Options, Result, Snapshot, WriteBatch, WriteOptions};

fn balance(accounts: &ColumnFamily, name: &str, at: &Snapshot) -> Result<i64> {
    let stored = at.get(accounts, name)?;
    Ok(stored.and_then(|v| v.first_chunk().copied()).map_or(0, i64::from_le_bytes))
}

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join("kingtide-example-batch");
    let db = Db::open(&dir, Options::default())?;
    let accounts = db.default_family();

    let mut batch = WriteBatch::new();
    batch.put(accounts, b"anna", &100i64.to_le_bytes())?;
    batch.put(accounts, b"bert", &0i64.to_le_bytes())?;
    db.write(batch)?;

    // The books as they are now. Whatever is committed later, this view stays the same until it is dropped.
    let before = db.snapshot();

    // All of a batch becomes visible at once, and after a crash all of it is there or nothing. It may go over several
    // families. Here it also has to be on the disk, power cut or not, before `write_with` returns.
    let mut transfer = WriteBatch::new();
    transfer.put(accounts, b"anna", &70i64.to_le_bytes())?;
    transfer.put(accounts, b"bert", &30i64.to_le_bytes())?;
    let durable = WriteOptions::new().durability(Durability::Power);
    db.write_with(&mut transfer, &durable)?;

    let after = db.snapshot();
    for (name, view) in [("before", &before), ("after", &after)] {
        println!("{name}: anna {}, bert {}", balance(accounts, "anna", view)?, balance(accounts, "bert", view)?);
    }

    // A snapshot reads whatever a family reads.
    let mut total = 0;
    for entry in before.iter(accounts) {
        total += entry?.value.first_chunk().copied().map_or(0, i64::from_le_bytes);
    }
    assert_eq!(total, 100);
    db.close()
}
