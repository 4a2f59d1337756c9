//! The log's operations, as far as they can be read.

use super::plan::{Plan, TablePlan};
use super::report::Repair;
use super::source::TableSource;
use crate::api::ColumnFamily;
use crate::api::Db;
use crate::api::StagedValue;
use crate::api::transaction::TransactionOptions;
use crate::memtable::FamilyMemtable;
use crate::memtable::no_room;
use crate::ops::LoggedOp;
use crate::ops::files::is_files;
use crate::ops::{LockTarget, LogOp, read_log_op};
use crate::recover::is_boot;
use kingtide_base::budget::Budget;
use kingtide_base::coding::Reader;
use kingtide_base::key::split_expiry;
use kingtide_base::names::{segment_path, vlog_path};
use kingtide_base::{Error, ErrorKind, FamilyId, KeyOrder, Kind, Result, SeqNo, Tag};
use kingtide_locks::LockMode;
use kingtide_mem::{ArenaPool, NoRoom};
use kingtide_table::{Packed, ValuePointer, Vlog};
use kingtide_versions::LogBegun;
use kingtide_vfs::{Fs, OpenMode};
use kingtide_wal::{LogGap, RECORD_HEADER_LEN};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

/// What the log holds that is in no table.
pub(super) struct SalvagedOperations {
    /// Of each family, oldest first: one follows the other when that takes no more.
    pub memtables: HashMap<FamilyId, Vec<Arc<FamilyMemtable>>>,
    /// Transactions in doubt by name: the sequence number at which each was first prepared, and its prepare operation.
    pub prepared: BTreeMap<Vec<u8>, (SeqNo, Vec<u8>)>,
}

/// Reads the log: all of it if it is whole; otherwise up to the damage, and past it if that is asked for.
pub(super) fn read(repair: &mut Repair<'_, '_>, plan: &mut Plan) -> Result<SalvagedOperations> {
    let (fs, dir) = (repair.fs.clone(), repair.dir);
    let mut segments = kingtide_wal::list_segments(&*fs, dir)?;
    let pool = ArenaPool::new(Budget::new(u64::MAX));
    let mut out = SalvagedOperations { memtables: HashMap::new(), prepared: BTreeMap::new() };
    // What a manifest names as the log's beginning is not the last one if the manifest is not whole.
    let log_from = if plan.complete { plan.log_from } else { 0 };
    // Others were given up, which the manifest says as long as it says anything, and may be back after a power cut: some of them,
    // so that reading would end at a gap behind them, and a transaction whose end is not back would be in doubt again.
    segments.retain(|id| *id >= plan.first_segment);
    let begun = plan.log_begun;
    let mut whole = WholePart::default();
    let judge = |base, count, payload: &[u8]| {
        whole.add(base, count, payload);
        Ok(())
    };
    let judged = kingtide_wal::replay(&*fs, dir, &segments, log_from, judge);
    if judged.is_ok() {
        read_again_what_tables_lost(repair, plan, &whole)?;
    }
    let past_damage = repair.how.salvage_past_damage;
    let apply = |base: SeqNo, count: u32, payload: &[u8]| {
        repair.report.log_records += 1;
        out.apply(repair, plan, &pool, base, count, payload)?;
        repair.advance((RECORD_HEADER_LEN + payload.len()) as u64)
    };
    let next_seq = match judged {
        Ok(_) => {
            let end = kingtide_wal::replay(&*fs, dir, &segments, log_from, apply)?;
            if let Some(LogBegun { segment, boot_id, .. }) = begun
                && end.lacks(segment, is_boot(boot_id, &*fs))
            {
                let path = segment_path(dir, segment);
                let e = Error::corruption("the log's last segment is missing or lost its header").at_path(&path);
                repair.report.unreadable(&path, &e);
                repair.report.log_gaps.push(LogGap { path, offset: 0, from: end.next_seq, to: None });
            }
            end.next_seq
        }
        Err(e) if e.is_out_of_descriptors() => return Err(e),
        Err(e) => {
            let salvaged = kingtide_wal::salvage(&*fs, dir, &segments, log_from, past_damage, apply)?;
            repair.report.unreadable(dir, &e);
            repair.report.log_gaps = salvaged.gaps;
            if repair.report.log_gaps.is_empty() {
                // Nothing behind the damage tells how much it took.
                let (path, offset) = (e.path().unwrap_or(dir).to_owned(), e.offset().unwrap_or(0));
                repair.report.log_gaps.push(LogGap { path, offset, from: salvaged.next_seq, to: None });
            }
            salvaged.next_seq
        }
    };
    // What lay before the log's beginning is in tables.
    repair.report.log_gaps.retain(|gap| gap.to.is_none_or(|to| to > log_from));
    let gaps = repair.report.log_gaps.iter().flat_map(|gap| [Some(gap.from), gap.to]).flatten();
    plan.last_seq = gaps.chain([next_seq]).map(|next| next.saturating_sub(1)).fold(plan.last_seq, SeqNo::max);
    Ok(out)
}

/// The end of the log that tells of everything that was done meanwhile: no commit without a log, no ingest. So of each key on which
/// it has an operation, it has the newest one.
#[derive(Default)]
struct WholePart {
    from: SeqNo,
    /// Behind the last number.
    to: SeqNo,
}

impl WholePart {
    fn add(&mut self, base: SeqNo, count: u32, payload: &[u8]) {
        let next = base + u64::from(count);
        if is_files(payload) {
            self.from = next;
        } else if base != self.to {
            self.from = base;
        }
        self.to = next;
    }
}

/// Has the log's operations that were flushed read too for families of which a table cannot be read that may hold any of them.
fn read_again_what_tables_lost(repair: &mut Repair<'_, '_>, plan: &mut Plan, whole: &WholePart) -> Result<()> {
    for family in &mut plan.families {
        if family.uncertain || !(whole.from..whole.to).contains(&family.flushed) {
            continue;
        }
        let newer = |t: &&TablePlan| t.meta.as_ref().is_some_and(|m| m.max_seq >= whole.from);
        for table in family.tables.iter().filter(newer) {
            if !is_readable(repair, table, &family.order)? {
                family.flushed = whole.from.saturating_sub(1);
                break;
            }
        }
    }
    Ok(())
}

/// Whether all entries of a table can be read, and its value logs are there.
fn is_readable(repair: &mut Repair<'_, '_>, table: &TablePlan, order: &KeyOrder) -> Result<bool> {
    let refs = table.meta.iter().flat_map(|m| &m.vlog_refs);
    for path in refs.map(|r| vlog_path(repair.dir, r.file_id)) {
        if !repair.fs.exists(&path)? {
            return Ok(false);
        }
    }
    let Ok(mut source) = TableSource::open(repair, table, order) else { return Ok(false) };
    loop {
        let read = source.next();
        repair.advance(read)?;
        if !source.is_whole() {
            return Ok(false);
        }
        if !source.valid {
            return Ok(true);
        }
    }
}

impl SalvagedOperations {
    fn apply(
        &mut self,
        repair: &mut Repair<'_, '_>,
        plan: &mut Plan,
        pool: &Arc<ArenaPool>,
        base: SeqNo,
        count: u32,
        payload: &[u8],
    ) -> Result<()> {
        if is_files(payload) {
            return Ok(()); // the plan has them
        }
        let mut r = Reader::new(payload);
        for i in 0..count as u64 {
            let (seq, rest) = (base + i, r.rest());
            match read_log_op(&mut r) {
                Some(LogOp::Write(op)) => self.write(repair, plan, pool, &op, seq)?,
                Some(LogOp::Prepare(p)) => {
                    let first = if p.first == 0 { seq } else { p.first };
                    self.prepared.insert(p.xid.to_vec(), (first, rest[..rest.len() - r.rest().len()].to_vec()));
                }
                Some(LogOp::Resolved { xid, .. }) => _ = self.prepared.remove(xid),
                None => {
                    let text = format!("operation {i} of the log record with sequence {base} cannot be read");
                    repair.report.notes.push(text);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        repair: &mut Repair<'_, '_>,
        plan: &mut Plan,
        pool: &Arc<ArenaPool>,
        op: &LoggedOp<'_>,
        seq: SeqNo,
    ) -> Result<()> {
        let Some(family) = plan.family(repair, op.family, "bytewise") else { return Ok(()) };
        if seq <= family.flushed {
            return Ok(());
        }
        if let Some(p) = op.pointer() {
            repair.unfinished.insert(p.file_id);
        }
        let memtables = self.memtables.entry(op.family).or_default();
        let bytes = op.key.len() + op.value.len();
        let memtable = match memtables.last() {
            Some(last) if last.reserve(bytes, 1) != Err(NoRoom::Full) => last.clone(),
            _ => {
                memtables.push(FamilyMemtable::new(family.order.clone(), pool, seq));
                memtables[memtables.len() - 1].clone()
            }
        };
        memtable.reserve(bytes, 1).map_err(|e| no_room(e, bytes, 1))?;
        if Tag(op.kind as u64).kind() == Some(Kind::RangeDelete) {
            memtable.insert_range(op.key, op.value, seq);
        } else {
            memtable.writer().insert(op.key, Tag(seq << 8 | op.kind as u64), op.value);
        }
        Ok(())
    }
}

/// Writes a value once more, in pieces.
fn copy_value(family: &ColumnFamily, from: &Arc<Vlog>, p: ValuePointer) -> Result<StagedValue> {
    const PIECE: u64 = 1 << 20;
    let (mut reader, mut writer) = (from.reader(p)?, family.value_writer()?);
    let mut piece = Vec::new();
    for at in (0..p.raw_len).step_by(PIECE as usize) {
        reader.read_range(at..at + PIECE, &mut piece)?;
        writer.append(&piece)?;
    }
    writer.finish()
}

/// Prepares a transaction again, with the locks that it held. Its staged values are in value logs in `from`.
pub(super) fn prepare(
    db: &Db,
    (fs, from): (&Arc<dyn Fs>, &Path),
    families: &BTreeMap<FamilyId, ColumnFamily>,
    xid: &[u8],
    operation: &[u8],
) -> Result<()> {
    let Some(LogOp::Prepare(p)) = read_log_op(&mut Reader::new(operation)) else {
        return Err(Error::corruption("its record cannot be read"));
    };
    let mut txn = db.begin_with(TransactionOptions { isolation: p.isolation, locking: true, ..Default::default() })?;
    for lock in p.locks() {
        let Some(family) = families.get(&lock.family) else { continue };
        let mode = if lock.exclusive { LockMode::Exclusive } else { LockMode::Shared };
        match lock.target {
            LockTarget::Key(key) => txn.lock_key(family, key, mode)?,
            LockTarget::Range(lo, hi) => txn.lock_range(family, (lo, hi), mode)?,
        }
    }
    for op in p.writes() {
        let Some(family) = families.get(&op.family) else { continue };
        let tag = Tag(op.kind as u64);
        let Some((expiry, stored)) = split_expiry(tag, op.value) else { continue };
        let mut unpacked = Vec::new();
        let value = match tag.is_packed() {
            true => {
                Packed::parse(stored)?.append_to(&mut unpacked)?;
                &unpacked[..]
            }
            false => stored,
        };
        match (tag.kind(), expiry) {
            (Some(Kind::Put), None) => txn.put_for_good(family, op.key, value)?,
            (Some(Kind::Put), Some(at)) => {
                txn.put_until(family, op.key, value, kingtide_base::clock::time_of_unix_ms(at))?
            }
            (Some(Kind::PutPointer), _) => {
                let Some(p) = op.pointer() else { return Err(Error::corruption("it holds a damaged pointer")) };
                let file = fs.open(&vlog_path(from, p.file_id), OpenMode::Read)?;
                let value = copy_value(family, &Vlog::unfinished(file, p.file_id), p)?;
                txn.put_staged_again(family, op.key, &value, expiry)?
            }
            (Some(Kind::Delete), _) => txn.delete(family, op.key)?,
            (Some(Kind::SingleDelete), _) => txn.single_delete(family, op.key)?,
            (Some(Kind::RangeDelete), _) => txn.delete_range(family, op.key..op.value)?,
            _ => return Err(Error::new(ErrorKind::Corruption, "it holds an operation of unknown kind")),
        }
    }
    txn.prepare(xid)
}
