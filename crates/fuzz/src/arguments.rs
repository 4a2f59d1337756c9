//! Target: calls with invalid arguments, as a caller from another language might make.
//!
//! Nothing here may panic or hang. What was put before and not touched stays readable.

use crate::must;
use crate::sample;
use kingtide::vfs::MemFs;
use kingtide::{ChangeStreamOptions, Db, Isolation, KeyOrder, ReadOptions, TransactionOptions, WriteBatch};
use kingtide_base::clock::time_of_unix_ms;
use kingtide_base::coding::Reader;
use std::ops::Bound;
use std::time::Duration;

/// Calls of one input at most.
const MOST: usize = 100;

/// Names, keys, bounds, positions, times.
pub fn arguments(data: &[u8]) {
    let fs = MemFs::new();
    let mut o = sample::options(&fs);
    o.db.lock_timeout = std::time::Duration::ZERO;
    let db = must(Db::open("db", o.clone()), "open");
    let safe = must(db.create_family("safe", o.family.clone()), "create");
    must(safe.put(b"key", b"value"), "put");
    let mut r = Reader::new(data);
    for _ in 0..MOST {
        if call(&db, &mut r).is_none() {
            break;
        }
    }
    let check = |db: &Db| {
        let got = must(must(db.family("safe"), "the family").get(b"key"), "get");
        assert_eq!(got.as_deref(), Some(&b"value"[..]));
    };
    check(&db);
    let families = db.families();
    let in_doubt = db.recover_prepared().len();
    drop(db);
    let db = must(Db::open("db", o), "open again");
    check(&db);
    assert_eq!((db.families(), db.recover_prepared().len()), (families, in_doubt));
    let report = must(db.verify(), "verify");
    assert!(!report.is_damaged(), "{report:?}");
}

fn bytes<'a>(r: &mut Reader<'a>) -> Option<&'a [u8]> {
    match r.u8()? {
        255 => {
            let n = r.u16()? as usize * 4;
            r.bytes(n.min(r.rest().len()))
        }
        n => r.bytes((n as usize).min(r.rest().len())),
    }
}

fn name(r: &mut Reader<'_>) -> Option<String> {
    Some(String::from_utf8_lossy(bytes(r)?).into_owned())
}

fn bound(r: &mut Reader<'_>) -> Option<Bound<Vec<u8>>> {
    Some(match r.u8()? % 3 {
        0 => Bound::Unbounded,
        1 => Bound::Included(bytes(r)?.to_vec()),
        _ => Bound::Excluded(bytes(r)?.to_vec()),
    })
}

/// The next call. What it returns does not matter.
fn call(db: &Db, r: &mut Reader<'_>) -> Option<()> {
    let family = db.default_family();
    match r.u8()? % 20 {
        0 => drop(family.put(bytes(r)?, bytes(r)?)),
        1 => drop(family.delete(bytes(r)?)),
        2 => drop(family.delete_range(bytes(r)?..bytes(r)?)),
        3 => drop(family.delete_prefix(bytes(r)?)),
        4 => drop(family.put_ttl(bytes(r)?, bytes(r)?, Duration::from_millis(r.u64()?))),
        5 => drop(family.get(bytes(r)?)),
        6 => drop(family.multi_get(&[bytes(r)?, bytes(r)?, b""])),
        7 | 8 => iterate(db, r)?,
        9 => family_calls(db, r)?,
        10 => {
            let n = name(r)?;
            match r.u8()? % 3 {
                0 => drop(db.create_named_snapshot(&n)),
                1 => drop(db.named_snapshot(&n)),
                _ => drop(db.drop_named_snapshot(&n)),
            }
        }
        11 => {
            if let Ok(snapshot) = db.snapshot_at(r.u64()?) {
                let _ = snapshot.of(family).get(b"k");
            }
        }
        12 | 13 => changes(db, r)?,
        14..=16 => transact(db, r)?,
        17 => {
            let (n, v) = (name(r)?, name(r)?);
            // A memtable of many GiB is what its user asked for.
            if !n.contains("size") && !n.contains("budget") {
                let _ = db.set_option(&n, &v);
                let _ = family.set_option(&n, &v);
            }
        }
        18 => {
            let mut batch = WriteBatch::new();
            let _ = batch.put_until(family, bytes(r)?, bytes(r)?, time_of_unix_ms(r.u64()?));
            let _ = batch.single_delete(family, bytes(r)?);
            let _ = batch.delete_prefix(family, bytes(r)?);
            let _ = db.write(batch);
        }
        _ => match r.u8()? & 1 {
            0 => drop(db.flush()),
            _ => drop(family.compact_range(bytes(r)?..=bytes(r)?)),
        },
    }
    Some(())
}

fn family_calls(db: &Db, r: &mut Reader<'_>) -> Option<()> {
    let what = r.u8()?;
    let (a, b) = (name(r)?, name(r)?);
    let spared = a == "safe" || b == "safe";
    match what % 4 {
        0 => {
            let order = KeyOrder::builtin(&b).unwrap_or_default();
            if let Ok(f) = db.create_family_ordered(&a, db.default_family().options(), order) {
                let _ = f.put(b.as_bytes(), a.as_bytes());
                let _ = f.delete_range(a.as_bytes()..b.as_bytes());
                let _ = f.get(b.as_bytes());
            }
        }
        1 if !spared => drop(db.drop_family(&a)),
        2 if !spared => drop(db.rename_family(&a, &b)),
        _ => drop(db.family(&a)),
    }
    Some(())
}

fn iterate(db: &Db, r: &mut Reader<'_>) -> Option<()> {
    let (lower, upper) = (bound(r)?, bound(r)?);
    let prefix = if r.u8()? & 1 == 1 { Some(bytes(r)?.to_vec()) } else { None };
    let readahead = r.u8()? & 1 == 1;
    let mut options = ReadOptions::new().range((lower, upper)).readahead(readahead);
    options.prefix = prefix;
    let Ok(mut it) = db.default_family().cursor_with(options) else { return Some(()) };
    for _ in 0..r.u8()? % 16 {
        match r.u8()? % 6 {
            0 => it.seek_to_first(),
            1 => it.seek_to_last(),
            2 => it.seek(bytes(r)?),
            3 => it.seek_for_prev(bytes(r)?),
            4 => it.next(),
            _ => it.prev(),
        }
        if it.valid() {
            let _ = (it.key().len(), it.value().map(<[u8]>::len), it.expires_at());
        }
        must(it.status(), "an iterator over whole files");
    }
    Some(())
}

/// Change streams from any position: what a caller stored, or made up.
fn changes(db: &Db, r: &mut Reader<'_>) -> Option<()> {
    let (from, how) = (r.u64()?, r.u8()?);
    let from = if how & 4 == 0 { from % (db.latest_sequence() + 2) } else { from };
    let options = ChangeStreamOptions::new().durable_only(how & 1 == 1).show_unlogged(how & 2 == 2);
    if let Ok(mut stream) = db.changes_with(from, options) {
        let mut last = from;
        while let Ok(Some(record)) = stream.next() {
            assert!(record.last_sequence > last, "a stream goes back");
            last = record.last_sequence;
        }
    }
    Some(())
}

fn transact(db: &Db, r: &mut Reader<'_>) -> Option<()> {
    let how = r.u8()?;
    let level = ["read-uncommitted", "read-committed", "repeatable-read", "snapshot", "serializable"];
    let isolation = Isolation::from_name(level[how as usize % 5]).unwrap_or_default();
    let options = TransactionOptions::new(isolation)
        .locking(how & 64 != 0)
        .read_only(how & 32 != 0 && how & 16 != 0)
        .lock_timeout(Duration::ZERO)
        .no_wait(true);
    let (family, xid) = (db.default_family(), bytes(r)?);
    let Ok(mut txn) = db.begin_with(options) else { return Some(()) };
    for _ in 0..r.u8()? % 8 {
        match r.u8()? % 8 {
            0 => drop(txn.put(family, bytes(r)?, bytes(r)?)),
            1 => drop(txn.delete(family, bytes(r)?)),
            2 => drop(txn.delete_range(family, bytes(r)?..bytes(r)?)),
            3 => drop(txn.delete_prefix(family, bytes(r)?)),
            4 => drop(txn.set_savepoint(&name(r)?)),
            5 => drop(txn.rollback_to_savepoint(&name(r)?)),
            6 => drop(txn.get_for_update(family, bytes(r)?)),
            _ => drop(txn.put_ttl(family, bytes(r)?, bytes(r)?, Duration::from_micros(r.u64()?))),
        }
    }
    match how >> 5 & 3 {
        0 => drop(txn.commit()),
        1 => drop(txn.rollback()),
        _ => {
            let _ = txn.prepare(xid);
            drop(txn);
            match how & 1 {
                0 => drop(db.commit_prepared(xid)),
                _ => drop(db.rollback_prepared(xid)),
            }
        }
    }
    Some(())
}
