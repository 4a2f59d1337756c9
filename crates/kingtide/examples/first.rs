//! A first database: put, get, delete, and walk over keys in order.
//!
//! ```sh
//! cargo run --example first
//! ```

#![allow(clippy::disallowed_methods)] // the directory for temporary files is the machine's

use kingtide::{Db, Options, Result};

fn main() -> Result<()> {
    // A database is a directory. It is created if it is not there; only one process can have it open at a time.
    let dir = std::env::temp_dir().join("kingtide-example-first");
    let db = Db::open(&dir, Options::default())?;

    // Keys and values are bytes. When `put` returns, the pair survives the death of this process; ask for
    // `Durability::Power` (an option of the database, or of one commit) to survive a power cut as well.
    db.put(b"moon", b"new")?;
    db.put(b"tide", b"rising")?;
    db.put(b"wind", b"west")?;
    db.put(b"moon", b"full")?; // replaces what was there

    // A read gives `None` when the key is absent; an `Err` means that the answer is not known.
    match db.get(b"moon")? {
        Some(phase) => println!("the moon is {}", String::from_utf8_lossy(&phase)),
        None => println!("no moon"),
    }

    db.delete(b"wind")?;
    assert!(db.get(b"wind")?.is_none());

    // An iterator shows the keys of a range in order, as they were when it was made. `rev()` begins at the end.
    for entry in db.range("m"..) {
        let entry = entry?;
        println!("{} = {}", String::from_utf8_lossy(&entry.key), String::from_utf8_lossy(&entry.value));
    }

    // Dropping the last handle closes too; `close` says what went wrong.
    db.close()
}
