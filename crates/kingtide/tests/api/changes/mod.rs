//! The change stream against what was committed: exactly the same, in order, for any writer and any resume point.

mod live;
mod log;
mod moved;

use kingtide::vfs::{Fs, MemFs};
use kingtide::{ChangeKind, ChangeRecord, ChangeStream, ColumnFamily, Db, Options, WriteBatch};
use kingtide_base::rng::Rng;
use kingtide_testkit::full;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// An operation: family, kind, key, value or end, whether it expires.
type Op = (u32, ChangeKind, Vec<u8>, Vec<u8>, bool);
/// What was committed, by the last sequence number.
type History = BTreeMap<u64, Vec<Op>>;

/// A database with segments and memtables as small as they get, so that both turn over all the time.
fn small(fs: &Arc<MemFs>, retention: u64) -> Options {
    let mut options = Options::new().fs(fs.clone() as Arc<dyn Fs>);
    options.db.wal_segment_size = 65_536;
    options.db.max_wal_size = 131_072;
    options.db.change_retention = retention;
    options.family.memtable_size = 65_536;
    options
}

fn open(fs: &Arc<MemFs>, retention: u64) -> Db {
    Db::open("/db", small(fs, retention)).unwrap()
}

fn ops_of(record: &ChangeRecord) -> Vec<Op> {
    record.operations().map(|c| (c.family, c.kind, c.key.to_vec(), c.value.to_vec(), c.expires_at.is_some())).collect()
}

/// Everything that the stream shows now.
fn drain(stream: &mut ChangeStream) -> History {
    let mut seen = History::new();
    while let Some(record) = stream.next().unwrap() {
        add(&mut seen, &record);
    }
    seen
}

/// Adds a record to those seen, which it must follow, without a hole.
fn add(seen: &mut History, record: &ChangeRecord) {
    let before = seen.last_key_value().map(|(last, _)| *last);
    assert!(before.is_none_or(|b| record.first_sequence == b + 1), "{} follows {before:?}", record.first_sequence);
    assert_eq!(record.last_sequence - record.first_sequence + 1, record.len() as u64);
    assert!(!record.is_unlogged() && !record.is_empty());
    seen.insert(record.last_sequence, ops_of(record));
}

fn since(db: &Db, seq: u64) -> History {
    drain(&mut db.changes_since(seq).unwrap())
}

/// Fills a batch with up to `most` random operations on two families, and returns them as the stream should show them.
fn random_batch(rng: &mut Rng, batch: &mut WriteBatch, families: [&ColumnFamily; 2], most: u64) -> Vec<Op> {
    batch.clear();
    let mut ops = Vec::new();
    for _ in 0..1 + rng.below(most) {
        let f = rng.below(2) as usize;
        let family = families[f];
        let key = format!("key{:05}", rng.below(1000)).into_bytes();
        let mut value = vec![b'a' + rng.below(26) as u8; rng.below(300) as usize];
        if rng.one_in(20) {
            value.resize(5000, b'z'); // long enough to be packed, and for a value log
        }
        let (kind, value, ttl) = match rng.below(10) {
            0 => {
                batch.delete(family, &key).unwrap();
                (ChangeKind::Delete, Vec::new(), false)
            }
            1 => {
                batch.single_delete(family, &key).unwrap();
                (ChangeKind::SingleDelete, Vec::new(), false)
            }
            2 => {
                let end = [&key[..], b"~"].concat();
                batch.delete_range(family, &key..&end).unwrap();
                (ChangeKind::DeleteRange, end, false)
            }
            3 => {
                batch.put_ttl(family, &key, &value, Duration::from_secs(3600)).unwrap();
                (ChangeKind::Put, value, true)
            }
            _ => {
                batch.put(family, &key, &value).unwrap();
                (ChangeKind::Put, value, false)
            }
        };
        ops.push((f as u32, kind, key, value, ttl));
    }
    ops
}
