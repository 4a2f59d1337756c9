//! Memtables that can name no more memory, and processes that get none.

use kingtide::vfs::{Fs, MemFs};
use kingtide::{Db, ErrorKind, Options, RepairOptions, WriteBatch};
use kingtide_testkit::{Scratch, child, test_name};
use std::path::Path;
use std::sync::Arc;

/// A memtable of 64 pieces of memory: a large value takes one.
fn options(fs: &MemFs) -> Options {
    let mut options = Options::new().fs(Arc::new(fs.clone()));
    options.tuning.memtable_pieces = 64;
    for (name, value) in [
        ("memtable_size", "16G"),
        ("memtable_budget", "1T"),
        ("max_wal_size", "1T"),
        ("wal_segment_size", "64M"),
        ("background_threads", "2"),
        ("direct_value_threshold", "0"), // values take memory
    ] {
        options.set(name, value).unwrap();
    }
    options
}

/// Incompressible, larger than what shares a piece of memory, and another for each key.
fn value(n: u64) -> Vec<u8> {
    let mut value = vec![0; 257 << 10];
    kingtide_base::rng::Rng::new(n).fill(&mut value);
    value
}

fn check(db: &Db, keys: u64) {
    for n in 0..keys {
        assert!(db.get(n.to_be_bytes()).unwrap().as_deref() == Some(&value(n)[..]), "key {n}");
    }
    assert!(db.get(keys.to_be_bytes()).unwrap().is_none());
}

/// Three memtables' worth of values that take a piece of memory each.
const KEYS: u64 = 200;

#[test]
fn a_memtable_without_pieces_is_sealed_whatever_its_size() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs)).unwrap();
    for n in 0..KEYS {
        db.put(n.to_be_bytes(), value(n)).unwrap();
    }
    check(&db, KEYS);
    db.flush().unwrap();
    check(&db, KEYS);
    // A batch over two families, of which one is full.
    let other = db.create_family("other", Default::default()).unwrap();
    for n in 0..KEYS {
        let mut batch = WriteBatch::new();
        batch.put(db.default_family(), &n.to_be_bytes(), &value(n)).unwrap();
        batch.put(&other, &n.to_be_bytes(), b"small").unwrap();
        db.write(batch).unwrap();
    }
    check(&db, KEYS);
    assert_eq!(other.get(7u64.to_be_bytes()).unwrap().as_deref(), Some(&b"small"[..]));
    db.close().unwrap();
}

/// A batch that no memtable holds is refused before it is logged.
#[test]
fn a_batch_too_large_for_a_memtable_is_refused_whole() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs)).unwrap();
    db.put(b"before", b"1").unwrap();
    let mut batch = WriteBatch::new();
    for n in 0..600u64 {
        batch.put(db.default_family(), &n.to_be_bytes(), &value(n)).unwrap();
    }
    let before = db.latest_sequence();
    let e = db.write(batch).unwrap_err();
    assert_eq!((e.kind(), db.latest_sequence()), (ErrorKind::InvalidArgument, before), "{e}");
    assert!(e.message().contains("batch too large: 600 operations"), "{e}");
    db.put(b"after", b"2").unwrap();
    drop(db);
    let db = Db::open("db", options(&fs)).unwrap();
    assert!(db.get(0u64.to_be_bytes()).unwrap().is_none());
    assert_eq!(db.get(b"after").unwrap().as_deref(), Some(&b"2"[..]));
}

/// A log that a memtable cannot hold: recovery flushes in between, a reader keeps several memtables, and so does a repair.
#[test]
fn a_log_larger_than_a_memtable_is_recovered_read_and_repaired() {
    let fs = MemFs::new();
    let mut roomy = options(&fs);
    roomy.tuning.memtable_pieces = usize::MAX;
    let db = Db::open("db", roomy).unwrap();
    let mut batch = WriteBatch::new();
    for n in 0..KEYS {
        match n {
            0..100 => {
                db.put(n.to_be_bytes(), value(n)).unwrap();
            }
            _ => batch.put(db.default_family(), &n.to_be_bytes(), &value(n)).unwrap(), // one record
        }
    }
    db.write(batch).unwrap();
    let killed = fs.kill_clone();
    drop(db);

    let mut reader = options(&killed);
    reader.db.create_if_missing = false;
    let db = Db::open_read_only("db", reader).unwrap();
    check(&db, KEYS);
    drop(db);

    let how = RepairOptions::default();
    kingtide::repair_with("db", "repaired", &options(&killed), how, &mut |_| true).unwrap();
    let db = Db::open("repaired", options(&killed)).unwrap();
    check(&db, KEYS);
    drop(db);

    let db = Db::open("db", options(&killed)).unwrap();
    check(&db, KEYS);
    let again = killed.kill_clone();
    drop(db);
    let db = Db::open("db", options(&again)).unwrap();
    check(&db, KEYS);
    assert!(killed.list(Path::new("db")).unwrap().iter().any(|n| n.ends_with(".klog")));
}

/// Run by the next test, in a process that may have 500 MB of address space.
#[test]
#[ignore = "a process of its own"]
fn put_until_memory_is_used_up() {
    let Some(dir) = child::child_dir() else { return };
    let mut options = Options::default();
    for (name, value) in [
        ("memtable_size", "4G"),
        ("memtable_budget", "16G"),
        ("max_wal_size", "1T"),
        ("compression", "none"),
        ("direct_value_threshold", "0"),
        ("background_threads", "2"),
    ] {
        options.set(name, value).unwrap();
    }
    let db = Db::open(dir, options).unwrap();
    let large = vec![7; 10 << 20];
    let mut put = 0u64;
    let e = loop {
        match db.put(put.to_be_bytes(), &large).map(drop) {
            Ok(()) => put += 1,
            Err(e) => break e,
        }
        assert!(put < 50, "500 MB of values fit into 500 MB");
    };
    assert_eq!((e.kind(), e.io_kind()), (ErrorKind::Io, Some(std::io::ErrorKind::OutOfMemory)), "{e}");
    assert!(e.is_retryable() && e.message().contains("cannot allocate"), "{e}");
    // It is no more than that: nothing of the put is there, and the database is as good as before.
    assert!(db.get(put.to_be_bytes()).unwrap().is_none());
    drop(large);
    db.put(b"small", b"value").unwrap();
    assert_eq!(db.get(b"small").unwrap().as_deref(), Some(&b"value"[..]));
    println!("acknowledged {put};");
    let _ = db.close(); // a flush may need more than there is; the log has it all
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "RLIMIT_AS is not enforced")]
fn a_put_without_memory_is_an_error_and_loses_nothing() {
    let dir = Scratch::absent("memory");
    let said = child::child(&test_name!("put_until_memory_is_used_up"), &dir.0, "ulimit -v 500000;");
    let put: u64 = said.split("acknowledged ").nth(1).and_then(|s| s.split(';').next()?.parse().ok()).expect(&said);
    assert!(put > 0, "{put}");
    let db = Db::open(&dir.0, Options::default()).unwrap();
    for n in 0..put {
        assert_eq!(db.get(n.to_be_bytes()).unwrap().map(|v| v.len()), Some(10 << 20), "key {n}");
    }
    assert!(db.get(put.to_be_bytes()).unwrap().is_none());
    assert_eq!(db.get(b"small").unwrap().as_deref(), Some(&b"value"[..]));
}

/// Bytes of the value that is larger than what its reader may take.
const FILM: usize = 200 << 20;

#[test]
#[ignore = "a process of its own"]
fn read_a_large_value_in_pieces() {
    let Some(dir) = child::child_dir() else { return };
    let db = Db::open_read_only(dir.join("db"), Options::default()).unwrap();
    let family = db.default_family();
    let mut film = family.get_reader("film").unwrap().expect("it was put");
    let mut piece = vec![0; 1 << 20];
    for at in (0..FILM).step_by(piece.len()) {
        assert_eq!(film.read_at(at as u64, &mut piece).unwrap(), piece.len());
        assert!(piece.chunks_exact(4).zip(at / 4..).all(|(bytes, n)| *bytes == word(n)), "at byte {at}");
    }
    assert!(family.get("film").unwrap_err().to_string().contains("cannot allocate"), "as a whole it does not fit");
}

fn word(n: usize) -> [u8; 4] {
    (n as u32).wrapping_mul(2_654_435_761).to_le_bytes()
}

#[test]
fn a_value_larger_than_memory_is_read_in_pieces() {
    let dir = Scratch::new("film");
    let film: Vec<u8> = (0..FILM / 4).flat_map(word).collect();
    for key in ["film", "poster"] {
        // The log of the first open goes with the second one, or else the reader would have to recover it.
        let db = Db::open(dir.0.join("db"), Options::default()).unwrap();
        db.put(key, &film[..if key == "film" { FILM } else { 1000 }]).unwrap();
        db.flush().unwrap();
        db.close().unwrap();
    }
    drop(film);
    child::child(&test_name!("read_a_large_value_in_pieces"), &dir.0, "ulimit -v 150000;");
}
