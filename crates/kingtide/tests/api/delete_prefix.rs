//! Deleting a prefix: in every order in which the keys of one are neighbours, with an end and without, and over what the
//! batch itself wrote.

use kingtide::vfs::MemFs;
use kingtide::{ColumnFamily, Db, ErrorKind, FamilyOptions, Isolation, KeyOrder, Options, WriteBatch};
use std::sync::Arc;

const KEYS: [&[u8]; 10] = [b"a", b"aB", b"ab", b"abc", b"b", b"Zz", b"\xff", b"\xffa", b"\xff\xff", b"\xff\xffb"];

fn open() -> Db {
    Db::open("/db", Options::new().fs(Arc::new(MemFs::new())).manual_jobs(true)).unwrap()
}

fn keys(family: &ColumnFamily) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = family.iter().map(|e| e.unwrap().key.into_vec()).collect();
    keys.sort();
    keys
}

/// What is left of some keys without those of a prefix. Keys that are equal in the order are one.
fn without(order: &KeyOrder, all: &[&[u8]], prefix: &[u8]) -> Vec<Vec<u8>> {
    let folds = matches!(order, KeyOrder::CaseInsensitive);
    let fold = |k: &[u8]| if folds { k.to_ascii_lowercase() } else { k.to_vec() };
    let mut left: Vec<Vec<u8>> = all.iter().filter(|k| !fold(k).starts_with(&fold(prefix))).map(|k| fold(k)).collect();
    left.sort();
    left.dedup();
    left
}

#[test]
fn whoever_deletes_it() {
    let db = open();
    for (i, order) in [KeyOrder::Bytewise, KeyOrder::Reverse, KeyOrder::CaseInsensitive].into_iter().enumerate() {
        let family = db.create_family_ordered(&format!("f{i}"), FamilyOptions::default(), order.clone()).unwrap();
        for prefix in [&b""[..], b"a", b"ab", b"AB", b"z", b"\xff", b"\xff\xff", b"nothing"] {
            for who in 0..3 {
                KEYS.iter().for_each(|k| family.put(k, b"v").map(drop).unwrap());
                match who {
                    0 => family.delete_prefix(prefix).map(drop).unwrap(),
                    1 => {
                        // All of them are written by the batch; only some are there before.
                        family
                            .delete_range(b"\x01"..b"\xfe")
                            .or_else(|_| family.delete_range(b"\xfe"..b"\x01"))
                            .unwrap();
                        let mut batch = WriteBatch::new();
                        KEYS.iter().for_each(|k| batch.put(&family, k, b"v").unwrap());
                        batch.delete_prefix(&family, prefix).unwrap();
                        db.write(batch).unwrap();
                    }
                    _ => {
                        let mut txn = db.begin(Isolation::Serializable).unwrap();
                        txn.delete_prefix(&family, prefix).unwrap();
                        txn.commit().unwrap();
                    }
                }
                let mut left = keys(&family);
                if matches!(order, KeyOrder::CaseInsensitive) {
                    left.iter_mut().for_each(|k| k.make_ascii_lowercase());
                    left.sort();
                }
                assert_eq!(left, without(&order, &KEYS, prefix), "{order:?}, {prefix:?}, {who}");
            }
        }
    }
}

#[test]
fn orders_without_prefixes_refuse_it() {
    let db = open();
    let numbers = db.create_family_ordered("numbers", FamilyOptions::default(), KeyOrder::U64).unwrap();
    numbers.put(7u64.to_le_bytes(), b"v").unwrap();
    assert_eq!(numbers.delete_prefix(b"\x07").unwrap_err().kind(), ErrorKind::InvalidArgument);
    let mut batch = WriteBatch::new();
    assert_eq!(batch.delete_prefix(&numbers, b"\x07").unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(batch.is_empty());
    numbers.delete_prefix(b"").unwrap();
    assert_eq!(keys(&numbers).len(), 0);
}

/// Nothing in a file that is older than a range delete can be seen through it, so reads of its keys leave the file alone.
#[test]
fn a_get_of_a_deleted_range_reads_no_block_of_older_files() {
    let mut options = Options::new().fs(Arc::new(MemFs::new())).manual_jobs(true);
    options.db.block_cache_size = 0;
    let db = Db::open("/db", options).unwrap();
    let key = |i: u32| format!("key{i:05}");
    (0..5000).for_each(|i| {
        db.put(key(i), "old").unwrap();
    });
    db.flush().unwrap();
    db.delete_range(key(1000)..key(4000)).unwrap();
    for flushed in [false, true] {
        if flushed {
            db.flush().unwrap();
        }
        assert_eq!(db.get(key(1000)).unwrap(), None); // reads the file of the tombstone, if there is one
        let before = db.stats().get("blocks_read");
        for i in 1000..4000 {
            assert_eq!(db.get(key(i)).unwrap(), None);
        }
        let keys: Vec<String> = (1000..4000).map(key).collect();
        assert!(db.multi_get(&keys).into_iter().all(|v| v.unwrap().is_none()));
        assert_eq!(db.stats().get("blocks_read"), before, "flushed: {flushed}");
        assert_eq!(db.get(key(999)).unwrap().as_deref(), Some(&b"old"[..]));
        assert_eq!(db.get(key(4000)).unwrap().as_deref(), Some(&b"old"[..]));
    }
    db.put(key(2000), "new").unwrap();
    db.flush().unwrap();
    assert_eq!(db.get(key(2000)).unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(db.multi_get(&[key(2000), key(2001)])[0].as_ref().unwrap().as_deref(), Some(&b"new"[..]));
}
