//! Column families: several key spaces in one database, each with its own options and its own order of keys.
//!
//! ```sh
//! cargo run --example families
//! ```

#![allow(clippy::disallowed_methods)] // the directory for temporary files is the machine's

use kingtide::{ColumnFamily, Db, ErrorKind, FamilyOptions, KeyOrder, Options, Result};
use std::time::Duration;

/// The family of that name, created at the first start.
fn family(db: &Db, name: &str, options: FamilyOptions, order: KeyOrder) -> Result<ColumnFamily> {
    match db.family(name) {
        Err(e) if e.kind() == ErrorKind::NotFound => db.create_family_ordered(name, options, order),
        found => found,
    }
}

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join("kingtide-example-families");
    let db = Db::open(&dir, Options::default())?;

    // Large values go to a value log, so that merges of keys need not copy them.
    let images = FamilyOptions::new().value_threshold(4096);
    let images = family(&db, "images", images, KeyOrder::Bytewise)?;
    images.put(b"harbour.png", vec![0x89; 100_000])?;

    // What is put here is gone after a minute, unless an entry brings a life of its own.
    let sessions = FamilyOptions::new().ttl(Some(Duration::from_secs(60)));
    let sessions = family(&db, "sessions", sessions, KeyOrder::Bytewise)?;
    sessions.put(b"alice", b"token-1")?;
    sessions.put_ttl(b"bob", b"token-2", Duration::from_secs(5))?;

    // An order is chosen when a family is created, and stored with it. This one lists the newest entry first.
    let log = family(&db, "log", FamilyOptions::default(), KeyOrder::Reverse)?;
    for (hour, line) in ["ebb", "low water", "flood"].into_iter().enumerate() {
        log.put((hour as u64).to_be_bytes(), line)?;
    }
    if let Some(newest) = log.first()? {
        println!("newest: {}", String::from_utf8_lossy(&newest.value));
    }

    // The same key in two families is two keys. `db.put` and `db.get` mean the family named `default`.
    assert!(db.get(b"alice")?.is_none());
    println!("families: {:?}", db.families());

    // Dropping a family drops everything in it, whatever its size, at once.
    db.drop_family("log")?;
    db.close()
}
