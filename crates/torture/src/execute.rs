//! Runs units against the database.

use crate::contents::{check_value, now_ms};
use crate::draw::How;
use crate::model::{ACCOUNT, Op, Unit, Work, bounds, entry_id, key, value_into, xid};
use crate::resolve::matches;
use crate::world::{Handle, World};
use crate::writer::Writer;
use kingtide::{
    Error, ErrorKind, IngestOptions, Isolation, SortedFileWriter, StagedValue, Transaction, TransactionOptions,
    WriteBatch, WriteOptions,
};
use kingtide_base::clock::time_of_unix_ms;
use std::path::PathBuf;
use std::sync::Arc;

/// What became of a unit.
pub enum Outcome {
    /// Acknowledged, with its sequence number if the call returns one.
    Done(u64),
    /// Nothing of it was done, for a reason that there may be.
    Refused,
    /// It should not have failed.
    Failed(String),
}

/// An error, or something that was read and is wrong.
enum Trouble {
    Engine(Error),
    Wrong(String),
}

impl From<Error> for Trouble {
    fn from(e: Error) -> Trouble {
        Trouble::Engine(e)
    }
}

/// Runs a unit.
pub fn execute(w: &mut Writer<'_>, unit: &Unit, how: &How) -> Outcome {
    let world = w.world;
    let result = match how {
        How::Single => single(w, unit),
        How::Batch(durability) => {
            let options = WriteOptions::new().durability(*durability).no_wait(w.rng.one_in(20));
            batch(w, unit, &options)
        }
        How::Transaction { isolation, locking, durability, detour } => {
            let options = TransactionOptions::new(*isolation).locking(*locking).durability(*durability);
            transaction(w, unit, options, *detour)
        }
        How::Ingest { move_files, verify } => {
            let no_wait = w.rng.one_in(4);
            ingest(w, unit, &IngestOptions::new().move_files(*move_files).verify(*verify).no_wait(no_wait))
        }
        How::Prepare { locking, durability } => prepare(w, unit, *locking, *durability),
        How::Decide => decide(w, unit),
    };
    match result {
        Ok(sequence) => Outcome::Done(sequence),
        Err(Trouble::Wrong(text)) => Outcome::Failed(text),
        Err(Trouble::Engine(e)) if world.is_excused(&e, unit.work.ops().iter().map(Op::family)) => Outcome::Refused,
        Err(Trouble::Engine(e)) => Outcome::Failed(format!("{:?}: {e}", e.kind())),
    }
}

fn handle(world: &World, uid: u32) -> Result<Arc<Handle>, Error> {
    world.handle(uid).ok_or_else(|| Error::new(ErrorKind::NotFound, "the family was dropped"))
}

/// The value that operation `i` of a unit puts.
fn value(w: &mut Writer<'_>, unit: &Unit, i: usize, slot: u16) -> Vec<u8> {
    let mut out = Vec::new();
    value_into(entry_id(w.number, unit.n, i), slot, &mut out);
    out
}

/// Writes a value in pieces, and sometimes a part of it before, which is given up.
fn stage(w: &mut Writer<'_>, h: &Handle, value: &[u8]) -> Result<StagedValue, Error> {
    let piece = 1 + value.len() / (1 + w.rng.below(5) as usize);
    if w.rng.one_in(8) {
        let mut given_up = h.cf.value_writer()?;
        value.chunks(piece).take(2).try_for_each(|piece| given_up.append(piece))?;
    }
    let mut writer = h.cf.value_writer()?;
    value.chunks(piece).try_for_each(|piece| writer.append(piece))?;
    writer.finish()
}

/// Whether a value is written in pieces: of the longer ones every other.
fn is_in_pieces(w: &mut Writer<'_>, value: &[u8]) -> bool {
    value.len() > 250 && w.rng.one_in(2)
}

fn single(w: &mut Writer<'_>, unit: &Unit) -> Result<u64, Trouble> {
    let lane = w.number as u8;
    let Some(op) = unit.work.ops().first() else { return Ok(0) };
    let h = handle(w.world, op.family())?;
    let order = h.family.order;
    match op {
        Op::Put(_, slot, 0) => {
            let (key, value) = (key(order, lane, *slot), value(w, unit, 0, *slot));
            match is_in_pieces(w, &value) {
                true => h.cf.put_staged(key, &stage(w, &h, &value)?).map(drop)?,
                false => h.cf.put(key, value).map(drop)?,
            }
        }
        Op::Delete(_, slot) => h.cf.delete(key(order, lane, *slot)).map(drop)?,
        Op::SingleDelete(_, slot) => h.cf.single_delete(key(order, lane, *slot)).map(drop)?,
        Op::DeleteRange(_, from, to) => {
            let (start, end) = bounds(order, lane, *from, *to);
            h.cf.delete_range(start..end)?;
        }
        Op::DeletePrefix(_, hi) => h.cf.delete_prefix([lane, *hi]).map(drop)?,
        Op::Put(..) | Op::Add(..) => return batch(w, unit, &WriteOptions::default()),
    }
    Ok(0)
}

fn batch(w: &mut Writer<'_>, unit: &Unit, options: &WriteOptions) -> Result<u64, Trouble> {
    let lane = w.number as u8;
    let mut batch = WriteBatch::new();
    for (i, op) in unit.work.ops().iter().enumerate() {
        let h = handle(w.world, op.family())?;
        let order = h.family.order;
        match op {
            Op::Put(_, slot, 0) => {
                let (key, value) = (key(order, lane, *slot), value(w, unit, i, *slot));
                match is_in_pieces(w, &value) {
                    true => batch.put_staged(&h.cf, &key, &stage(w, &h, &value)?)?,
                    false => batch.put(&h.cf, &key, &value)?,
                }
            }
            Op::Put(_, slot, at) => {
                batch.put_until(&h.cf, &key(order, lane, *slot), &value(w, unit, i, *slot), time_of_unix_ms(*at))?
            }
            Op::Delete(_, slot) => batch.delete(&h.cf, &key(order, lane, *slot))?,
            Op::SingleDelete(_, slot) => batch.single_delete(&h.cf, &key(order, lane, *slot))?,
            Op::DeleteRange(_, from, to) => {
                let (start, end) = bounds(order, lane, *from, *to);
                batch.delete_range(&h.cf, &start..&end)?;
            }
            Op::DeletePrefix(_, hi) => batch.delete_prefix(&h.cf, &[lane, *hi])?,
            Op::Add(..) => {}
        }
    }
    Ok(w.world.db.write_with(&mut batch, options)?)
}

fn fill(w: &mut Writer<'_>, txn: &mut Transaction, unit: &Unit, locking: bool) -> Result<(), Trouble> {
    let lane = w.number as u8;
    for (i, op) in unit.work.ops().iter().enumerate() {
        let h = handle(w.world, op.family())?;
        let order = h.family.order;
        match op {
            Op::Put(_, slot, 0) => {
                let (key, value) = (key(order, lane, *slot), value(w, unit, i, *slot));
                // What is to be prepared has all its values in the log.
                match !matches!(unit.work, Work::Prepare(..)) && is_in_pieces(w, &value) {
                    true => txn.put_staged(&h.cf, &key, &stage(w, &h, &value)?)?,
                    false => txn.put(&h.cf, &key, &value)?,
                }
            }
            Op::Put(_, slot, at) => {
                txn.put_until(&h.cf, &key(order, lane, *slot), &value(w, unit, i, *slot), time_of_unix_ms(*at))?
            }
            Op::Delete(_, slot) => txn.delete(&h.cf, &key(order, lane, *slot))?,
            Op::SingleDelete(_, slot) => txn.single_delete(&h.cf, &key(order, lane, *slot))?,
            Op::DeleteRange(_, from, to) => {
                let (start, end) = bounds(order, lane, *from, *to);
                txn.delete_range(&h.cf, &start..&end)?;
            }
            Op::DeletePrefix(_, hi) => txn.delete_prefix(&h.cf, &[lane, *hi])?,
            Op::Add(account, by) => {
                let name = key(order, ACCOUNT, u16::from(*account));
                let old = if locking { txn.get_for_update(&h.cf, &name)? } else { txn.get(&h.cf, &name)? };
                let old = match old.as_deref().map(<[u8; 8]>::try_from) {
                    None => 0,
                    Some(Ok(bytes)) => i64::from_le_bytes(bytes),
                    Some(Err(_)) => return Err(Trouble::Wrong(format!("account {account} is no number"))),
                };
                txn.put(&h.cf, &name, &(old + by).to_le_bytes())?;
            }
        }
    }
    Ok(())
}

/// Reads a key of the lane's own in a transaction that has not written it.
fn read_own(w: &mut Writer<'_>, txn: &mut Transaction) -> Result<(), Trouble> {
    let h = w.pick();
    let slot = 1 + w.rng.below(40) as u16;
    let begin = now_ms();
    let found = txn.get(&h.cf, &key(h.family.order, w.number as u8, slot));
    let found = match found {
        Err(e) if w.world.is_excused(&e, [h.uid]) => return Ok(()),
        other => other?,
    };
    let id = found.map(|v| check_value(w.number, slot, &v, &mut Vec::new())).transpose().map_err(Trouble::Wrong)?;
    let expected = w.lane.keys.get(&(h.uid, slot)).copied();
    if matches(id, expected, (begin, now_ms())) || w.world.is_dropping(h.uid) {
        return Ok(());
    }
    let place = format!("family '{}' lane {} slot {slot}", h.family.name, w.number);
    Err(Trouble::Wrong(format!("WRONG: a transaction reads {id:?} at {place} instead of {expected:?}")))
}

fn transaction(w: &mut Writer<'_>, unit: &Unit, options: TransactionOptions, detour: bool) -> Result<u64, Trouble> {
    let locking = options.locking;
    let mut txn = w.world.db.begin_with(options)?;
    read_own(w, &mut txn)?;
    fill(w, &mut txn, unit, locking)?;
    if detour {
        // Writes that are taken back.
        txn.set_savepoint("here")?;
        let h = w.pick();
        let done = (|| {
            txn.put(&h.cf, &key(h.family.order, w.number as u8, 5), b"never")?;
            if w.rng.one_in(2) {
                let long = vec![b'n'; 1 << (8 + w.rng.below(11))]; // up to 256 KiB
                let staged = stage(w, &h, &long)?;
                txn.put_staged(&h.cf, &key(h.family.order, w.number as u8, 7), &staged)?;
            }
            txn.delete(&h.cf, &key(h.family.order, w.number as u8, 6))
        })();
        match done {
            Err(e) if !w.world.is_excused(&e, [h.uid]) => return Err(e.into()),
            _ => txn.rollback_to_savepoint("here")?,
        }
        if w.rng.one_in(10) {
            txn.rollback()?;
            return Err(Error::new(ErrorKind::Conflict, "given up").into());
        }
    }
    if w.rng.one_in(4) {
        return Ok(txn.commit_ordered()?.wait()?);
    }
    Ok(txn.commit()?)
}

fn prepare(
    w: &mut Writer<'_>,
    unit: &Unit,
    locking: bool,
    durability: Option<kingtide::Durability>,
) -> Result<u64, Trouble> {
    let Work::Prepare(number, _) = &unit.work else { return Ok(0) };
    let isolation = if locking { Isolation::ReadCommitted } else { Isolation::Snapshot };
    let options = TransactionOptions::new(isolation).locking(locking).durability(durability);
    let mut txn = w.world.db.begin_with(options)?;
    fill(w, &mut txn, unit, locking)?;
    txn.prepare(&xid(w.number, *number, unit.n))?;
    Ok(0)
}

fn decide(w: &mut Writer<'_>, unit: &Unit) -> Result<u64, Trouble> {
    let Work::Decide(number, commit) = unit.work else { return Ok(0) };
    let Some(prepared) = w.lane.prepared.get(&number) else { return Ok(0) };
    let name = xid(w.number, number, prepared.unit);
    if commit {
        return Ok(w.world.db.commit_prepared(&name)?);
    }
    w.world.db.rollback_prepared(&name)?;
    Ok(0)
}

fn ingest(w: &mut Writer<'_>, unit: &Unit, options: &IngestOptions) -> Result<u64, Trouble> {
    let ops = unit.work.ops();
    let mut uids: Vec<u32> = ops.iter().map(Op::family).collect();
    uids.dedup();
    let lane = w.number as u8;
    let mut files: Vec<(Arc<Handle>, Vec<PathBuf>)> = Vec::new();
    for uid in uids {
        let h = handle(w.world, uid)?;
        let order = h.family.order;
        let path = w.world.orders.dir.join(format!("ingest-{}-{}-{uid}", w.world.orders.session, w.number));
        let _ = std::fs::remove_file(&path);
        let mut file = SortedFileWriter::create(&path, &h.cf)?;
        for (i, op) in ops.iter().enumerate().filter(|(_, op)| op.family() == uid) {
            match op {
                Op::Put(_, slot, 0) => file.put(&key(order, lane, *slot), &value(w, unit, i, *slot))?,
                Op::Put(_, slot, at) => {
                    file.put_until(&key(order, lane, *slot), &value(w, unit, i, *slot), time_of_unix_ms(*at))?
                }
                Op::Delete(_, slot) => file.delete(&key(order, lane, *slot))?,
                Op::DeleteRange(_, from, to) => {
                    let (start, end) = bounds(order, lane, *from, *to);
                    file.delete_range(&start..&end)?;
                }
                _ => {}
            }
        }
        file.finish()?;
        files.push((h, vec![path]));
    }
    let parts: Vec<_> = files.iter().map(|(h, paths)| (&h.cf, paths.as_slice())).collect();
    let done = w.world.db.ingest(&parts, options);
    let left = files.iter().flat_map(|(_, paths)| paths).filter(|p| p.exists());
    left.for_each(|path| drop(std::fs::remove_file(path)));
    Ok(done?)
}
