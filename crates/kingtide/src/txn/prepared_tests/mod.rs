//! Prepared transactions, down to the log and back.

mod cuts;
mod followers;
mod life;
mod log_space;
mod staged;

use super::Isolation;
use super::prepared::{PrepareOutcome, PrepareRequest, Resolution, locks_of};
use crate::commit::batch::{Op, WriteBatch};
use crate::commit::pipeline::{Commit, Guard};
use crate::{ColumnFamily, Db, Durability, ErrorKind, Options, Result, StagedValue, WriteOptions};
use kingtide_base::rng::Rng;
use kingtide_base::{Kind, TxnId};
use kingtide_table::ValuePointer;
use kingtide_vfs::{Fs, MemFs, Survival};
use std::sync::Arc;

const TXN: TxnId = 77;

/// Small files, so that logs rotate and memtables fill within a test.
fn options(fs: Arc<dyn Fs>) -> Options {
    let mut options = Options { fs: Some(fs), manual_jobs: true, ..Options::default() };
    let small = "wal_segment_size=65536 max_wal_size=262144 memtable_size=65536 memtable_budget=1M value_threshold=200 \
                 l0_trigger=2 block_size=1024 block_cache_size=100000";
    options.tuning.staged_from = 400;
    for text in small.split_whitespace() {
        let (name, value) = text.split_once('=').expect("name=value");
        options.set(name, value).expect("option");
    }
    options
}

fn open(fs: &MemFs) -> Db {
    Db::open("/db", options(Arc::new(fs.clone()))).expect("open")
}

fn durably(durability: Durability) -> WriteOptions {
    WriteOptions { durability: Some(durability), no_wait: false }
}

/// Bytes that do not shrink, so that they take their room in the log.
fn noise(seed: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed.into()).fill(&mut bytes);
    bytes
}

fn batch(writes: &[(&ColumnFamily, &[u8], &[u8])]) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for (family, key, value) in writes {
        batch.put(family, key, value).expect("put");
    }
    batch
}

fn try_prepare(db: &Db, xid: &[u8], batch: &mut WriteBatch, durability: Durability) -> Result<PrepareOutcome> {
    let request = PrepareRequest { xid, txn: TXN, isolation: Isolation::Serializable, batch, locks: Vec::new() };
    db.inner().prepare_with(request, |record, _| db.inner().write(record, &durably(durability)))
}

fn prepare(db: &Db, xid: &[u8], mut batch: WriteBatch) -> u64 {
    try_prepare(db, xid, &mut batch, Durability::Power).expect("prepare").durable.expect("durable")
}

fn try_resolve(db: &Db, xid: &[u8], committed: bool, durability: Durability) -> Result<Resolution> {
    let (db, options) = (db.inner(), durably(durability));
    let resolution = db.resolve_with(xid, committed, |_, record| {
        let visible = db.commit(record, &Commit::new(&options, Guard::Locked))?;
        db.make_durable(visible, durability).map(|()| visible.last)
    })?;
    db.txns.resolved(resolution.txn, committed);
    Ok(resolution)
}

fn resolve(db: &Db, xid: &[u8], committed: bool) {
    try_resolve(db, xid, committed, Durability::Power).expect("resolve").durable.expect("durable");
}

fn xids(db: &Db) -> Vec<Vec<u8>> {
    db.inner().prepared.list().into_iter().map(|p| p.xid).collect()
}

/// A value written in pieces: to a file, if it has more than 400 bytes.
fn stage(family: &ColumnFamily, value: &[u8]) -> StagedValue {
    let mut writer = family.value_writer().expect("writer");
    value.chunks(1 + value.len() / 3).for_each(|piece| writer.append(piece).expect("append"));
    writer.finish().expect("finish")
}

/// The writes that a transaction in doubt would commit: family, key, and value or whatever its kind has. Staged values are
/// read.
fn writes_of(db: &Db, xid: &[u8]) -> Vec<(u8, String, Vec<u8>, Vec<u8>)> {
    let mut writes = Vec::new();
    // Refused after a look at the record, so the transaction stays in doubt.
    let looked = db.inner().resolve_with(xid, true, |_, record| {
        let of = |op: &Op| {
            let mut value = record.value_of(op).to_vec();
            if let Some(p) = ValuePointer::decode(&value).filter(|_| op.kind == Kind::PutPointer as u8) {
                db.inner().tables.vlog(p.file_id).and_then(|log| log.read(&p, &mut value)).expect("its value is there");
            }
            (record.key_of(op).to_vec(), value)
        };
        writes.extend(record.ops().iter().map(|op| {
            let (key, value) = of(op);
            (op.kind, record.families()[op.family as usize].name(), key, value)
        }));
        Err(crate::Error::new(ErrorKind::Cancelled, "only looking"))
    });
    assert_eq!(looked.expect_err("refused").kind(), ErrorKind::Cancelled);
    writes
}
