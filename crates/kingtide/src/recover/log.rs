//! The second stage of recovery: the log's records, as far as no table has them, go into memtables.

use super::families::Families;
use super::recovery::Recovery;
use crate::direct::DirectLog;
use crate::family::Family;
use crate::family::tables::VlogHandle;
use crate::memtable::no_room;
use crate::ops::files::{is_files, read_files};
use crate::ops::{LogOp, LoggedOp, read_log_op};
use crate::txn::prepared::RecoveredPrepared;
use crate::txn::{Fates, InDoubt};
use kingtide_base::coding::Reader;
use kingtide_base::names::{CURRENT, segment_path, vlog_path};
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, ErrorKind, FamilyId, Kind, Result, SeqNo, Tag, rare};
use kingtide_mem::NoRoom;
use kingtide_table::ValuePointer;
use kingtide_versions::{Edit, LogBegun};
use kingtide_vfs::{OpenMode, write_again};
use kingtide_wal::{Records, RecoveredLog, ReplayEnd};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What the log said.
pub(super) struct Replayed {
    pub log: RecoveredLog,
    /// Records with operations that were not yet in a table.
    pub records: u64,
    /// Transactions in doubt, oldest first.
    pub prepared: Vec<RecoveredPrepared>,
}

impl Recovery<'_> {
    /// Replays the log into the families' memtables, and collects the transactions in doubt. When memory runs out the
    /// fullest memtables are flushed on the spot.
    pub(super) fn replay_log(&self, families: &mut Families<'_>) -> Result<Replayed> {
        let (log_start, next_family) = (families.log_needed_from, families.catalog.versions.next_family);
        let mut replay = Replay {
            recovery: self,
            by_id: families.catalog.families.iter().map(|(id, f)| (*id, f.clone())).collect(),
            next_family,
            log: RecoveredLog::find(&**self.fs, self.dir, families.catalog.versions.first_segment, families.same_boot)?,
            in_doubt: InDoubt::default(),
            replayed: 0,
            inserted: Cell::new(false),
            fated_end: None,
            values: RecoveredValues::new(
                self,
                families.catalog.versions.vlogs.iter().map(|log| log.meta.id).collect(),
                families.same_boot,
            ),
            families,
        };
        let files = replay.log.files().to_vec();
        let end = kingtide_wal::replay_records(&**self.fs, self.dir, &files, log_start, self.read_only, &mut replay)?;
        let Replay { by_id, next_family, in_doubt, replayed, values, mut log, .. } = replay;
        log.end = end;
        let open = |family: &Arc<Family>, id| values.staged(family, id);
        let prepared = in_doubt.finish(&by_id, next_family, &open).map_err(|e| match e.path() {
            None => e.at_path(self.dir),
            Some(_) => e,
        })?;
        if !prepared.is_empty() {
            rare!("recovery-in-doubt");
        }
        self.check_log_is_there(families.catalog.versions.log_begun, &mut log.end)?;
        Ok(Replayed { log, records: replayed + prepared.len() as u64, prepared })
    }

    /// The segment that the manifest names, or a later one, is part of the log. Or a power cut took the headers: then the
    /// files stay until another segment is there.
    fn check_log_is_there(&self, begun: Option<LogBegun>, end: &mut ReplayEnd) -> Result<()> {
        let Some(LogBegun { segment, boot_id, .. }) = begun else { return Ok(()) };
        if end.lacks(segment, super::recovery::is_boot(boot_id, &**self.fs)) {
            return Err(Error::corruption("write-ahead log: the last segment is missing or lost its header")
                .at_path(&segment_path(self.dir, segment))
                .at_offset(0));
        }
        end.keep_discarded |= end.segments.iter().all(|s| s.id < segment);
        Ok(())
    }
}

/// Takes the log's records.
struct Replay<'a, 'i> {
    recovery: &'a Recovery<'a>,
    families: &'a mut Families<'i>,
    by_id: HashMap<FamilyId, Arc<Family>>,
    /// Operations of families from this one on are of families that the manifest lost.
    next_family: FamilyId,
    log: RecoveredLog,
    in_doubt: InDoubt,
    /// Records so far with writes or files that were not yet in the manifest's tables.
    replayed: u64,
    /// Whether a write of the current record went into a memtable.
    inserted: Cell<bool>,
    /// Before which record the log ends because values are lost, if it does. Found out at the first prepare with values.
    fated_end: Option<Option<SeqNo>>,
    values: RecoveredValues<'a>,
}

impl Records for Replay<'_, '_> {
    fn missing(&mut self, base: SeqNo, count: u32, payload: &[u8]) -> Result<Option<Error>> {
        if let Some(lost) = self.values.missing(&self.by_id, base, count, payload)? {
            return Ok(Some(lost));
        }
        if !prepares_values(payload) || self.fated_end()? != Some(base) {
            return Ok(None);
        }
        let lost = self.values.missing_of_prepare(&self.by_id, payload)?;
        Ok(lost.map(|e| {
            e.context(format!("a value of the transaction that the log record with sequence {base} prepares"))
        }))
    }

    fn apply(&mut self, base: SeqNo, count: u32, payload: &[u8]) -> Result<()> {
        if is_files(payload) {
            let families = self.families.add_files(base, count, payload)?;
            self.next_family = self.families.catalog.versions.next_family;
            self.replayed += u64::from(!families.is_empty());
            self.by_id.extend(families.into_iter().map(|f| (f.id(), f)));
            self.in_doubt.count_record((kingtide_wal::RECORD_HEADER_LEN + payload.len()) as u64);
            return Ok(());
        }
        let mut r = Reader::new(payload);
        for i in 0..count as u64 {
            let rest = r.rest();
            let op = read_log_op(&mut r).ok_or_else(|| {
                Error::corruption(format!("operation {i} of the log record with sequence {base} cannot be read"))
            })?;
            match op {
                LogOp::Write(op) => self.write(&op, base + i)?,
                LogOp::Prepare(p) => self.in_doubt.prepare(&p, base + i, &rest[..rest.len() - r.rest().len()])?,
                LogOp::Resolved { committed: false, .. } if i > 0 => {
                    let text = format!("the log record with sequence {base} rolls back a transaction and has writes");
                    return Err(Error::corruption(text));
                }
                LogOp::Resolved { xid, .. } => self.in_doubt.resolved(xid),
            }
        }
        if !r.is_empty() {
            return Err(Error::corruption(format!("the log record with sequence {base} has bytes left over")));
        }
        self.replayed += u64::from(self.inserted.take());
        self.in_doubt.count_record((kingtide_wal::RECORD_HEADER_LEN + payload.len()) as u64);
        self.make_room(base + count as u64 - 1)
    }
}

impl Replay<'_, '_> {
    /// Looks once at all of the log. Where it cannot be read on, the replay itself will say why when it comes there.
    fn fated_end(&mut self) -> Result<Option<SeqNo>> {
        if let Some(known) = self.fated_end {
            return Ok(known);
        }
        let Recovery { fs, dir, read_only, .. } = *self.recovery;
        let mut fates = Fates::default();
        let created: RefCell<HashSet<FamilyId>> = RefCell::default();
        let (by_id, values, recorded) = (&self.by_id, &self.values, self.families.last_seq);
        let mut lost = |family, seq: Option<SeqNo>, p: &ValuePointer| {
            let matters = match by_id.get(&family) {
                Some(f) => seq.is_none_or(|seq| seq > f.flushed_seq.load(Ordering::Relaxed)),
                None => created.borrow().contains(&family),
            };
            Ok(matters && values.check(p)?.is_some())
        };
        let mut failed = None;
        let look = |base, count, payload: &[u8]| {
            if is_files(payload) {
                // A family that the manifest had is in `by_id`, or was dropped: its values need not be there.
                if base + u64::from(count) - 1 > recorded {
                    let edits = read_files(base, count, payload)?;
                    created.borrow_mut().extend(edits.iter().filter_map(created_family));
                }
                return Ok(());
            }
            fates.note((base, count, payload), &mut lost).inspect_err(|e| failed = Some(e.clone()))
        };
        let files = self.log.files().to_vec();
        let looked =
            kingtide_wal::replay_records(&**fs, dir, &files, 0, read_only, &mut (|_, _, _: &[u8]| Ok(None), look));
        if let (Err(_), Some(e)) = (looked, failed) {
            return Err(e);
        }
        let end = fates.end(&mut lost)?;
        if end.is_none() {
            rare!("recovery-kept-prepared-values");
        }
        self.fated_end = Some(end);
        Ok(end)
    }

    /// Writes an operation into its family's memtable, or another one if that takes no more.
    fn write(&mut self, op: &LoggedOp<'_>, seq: SeqNo) -> Result<()> {
        let Some(full) = self.insert(op, seq)? else { return Ok(()) };
        // A part of a batch may go into a table: replay goes on behind what was flushed of the family.
        self.sync_before_flush()?;
        self.families.empty(&full, seq - 1)?;
        self.insert(op, seq).map(drop) // an empty one takes it, or says why not
    }

    /// An operation counts if its family exists and did not have it flushed. Returns the family if its memtable takes no
    /// more: nothing was done then.
    fn insert(&self, op: &LoggedOp<'_>, seq: SeqNo) -> Result<Option<Arc<Family>>> {
        let Some(family) = self.by_id.get(&op.family) else {
            if op.family >= self.next_family {
                let text = format!("the log holds operations of family {}, which the manifest lost", op.family);
                return Err(Error::corruption(text).at_path(&self.recovery.dir.join(CURRENT)).at_offset(0));
            }
            rare!("recovery-skipped-dropped");
            return Ok(None);
        };
        if seq <= family.flushed_seq.load(Ordering::Relaxed) {
            rare!("recovery-skipped-flushed");
            return Ok(None);
        }
        let view = family.view.load();
        match view.active.reserve(op.key.len() + op.value.len(), 1) {
            Err(NoRoom::Full) if !view.active.is_empty() => return Ok(Some(family.clone())),
            reserved => reserved.map_err(|e| no_room(e, op.key.len() + op.value.len(), 1))?,
        }
        self.inserted.set(true);
        view.active.note_entries_from(seq);
        if let Some(p) = op.pointer() {
            let log = self.values.log(p.file_id)?;
            view.active.direct().hold_recovered(&log, p.stored_len, self.values.take_size(p.file_id));
        }
        if Tag(op.kind as u64).kind() == Some(Kind::RangeDelete) {
            view.active.insert_range(op.key, op.value, seq);
        } else {
            view.active.writer().insert(op.key, Tag(seq << 8 | op.kind as u64), op.value);
        }
        Ok(None)
    }

    /// Flushes the fullest memtable when half of the memory is used. `last`: everything up to here was replayed.
    fn make_room(&mut self, last: SeqNo) -> Result<()> {
        let memory = self.recovery.memory;
        if memory.used() <= memory.limit() / 2 || !self.families.can_flush() {
            return Ok(());
        }
        self.sync_before_flush()?;
        let fullest = self.by_id.values().max_by_key(|f| (f.view.load().active.memory(), f.id()));
        match fullest.cloned() {
            Some(family) => self.families.empty(&family, last),
            None => Ok(()),
        }
    }

    /// A table must not survive a power cut that older operations of other families do not.
    fn sync_before_flush(&mut self) -> Result<()> {
        match self.families.can_flush() {
            true => self.log.sync_files(&**self.recovery.fs, self.recovery.dir),
            false => Ok(()),
        }
    }
}

/// The value logs that replayed records point into.
struct RecoveredValues<'a> {
    recovery: &'a Recovery<'a>,
    /// Those that the manifest names.
    known: HashSet<u64>,
    same_boot: bool,
    logs: RefCell<HashMap<u64, Arc<VlogHandle>>>,
    /// Bytes of those that the manifest does not name and no memtable counts yet.
    sizes: RefCell<HashMap<u64, u64>>,
    /// File and offset of values that were read and are whole.
    whole: RefCell<HashSet<(u64, u64)>>,
}

/// Whether a record prepares a transaction that points to values.
fn prepares_values(payload: &[u8]) -> bool {
    let op = read_log_op(&mut Reader::new(payload));
    matches!(op, Some(LogOp::Prepare(p)) if p.pointers().next().is_some())
}

fn created_family(edit: &Edit) -> Option<FamilyId> {
    if let Edit::CreateFamily { id, .. } = edit { Some(*id) } else { None }
}

impl<'a> RecoveredValues<'a> {
    fn new(recovery: &'a Recovery<'a>, known: HashSet<u64>, same_boot: bool) -> Self {
        RecoveredValues {
            recovery,
            known,
            same_boot,
            logs: RefCell::default(),
            sizes: RefCell::default(),
            whole: RefCell::default(),
        }
    }

    /// A log by its id. What recovery reads of it is durable from here on, as what it reads of the write-ahead log is.
    fn log(&self, id: u64) -> Result<Arc<VlogHandle>> {
        if let Some(known) = self.logs.borrow().get(&id) {
            return Ok(known.clone());
        }
        let Recovery { fs, dir, tables, read_only, .. } = self.recovery;
        let handle = match self.known.contains(&id) {
            true => tables.vlog_handle(id),
            false => tables.unfinished_vlog(id, None, true),
        };
        let path = vlog_path(dir, id);
        if !self.known.contains(&id) && *read_only {
            // A missing one is reported when it is read.
            let size = fs.open(&path, OpenMode::Read).and_then(|file| file.len()).unwrap_or(0);
            self.sizes.borrow_mut().insert(id, size);
        } else if !self.known.contains(&id) {
            let file = fs.open(&path, OpenMode::Write).map_err(|e| match e.kind() {
                ErrorKind::NotFound => {
                    Error::corruption("a value log that the log refers to is missing").at_path(&path)
                }
                _ => e,
            })?;
            let size = file.len()?;
            if self.same_boot {
                write_again(&*file, size)?;
            }
            file.sync_data()?;
            self.sizes.borrow_mut().insert(id, size);
        }
        self.logs.borrow_mut().insert(id, handle.clone());
        Ok(handle)
    }

    /// Bytes of a log that the manifest does not name, for the first memtable that points into it; 0 for others.
    fn take_size(&self, id: u64) -> u64 {
        self.sizes.borrow_mut().remove(&id).unwrap_or(0)
    }

    /// What is wrong with the first value of a record that cannot be read, of those that matter.
    fn missing(
        &self,
        families: &HashMap<FamilyId, Arc<Family>>,
        base: SeqNo,
        count: u32,
        payload: &[u8],
    ) -> Result<Option<Error>> {
        let mut r = Reader::new(payload);
        for seq in base..base + u64::from(count) {
            let Some(op) = read_log_op(&mut r) else { return Ok(None) }; // told when it is applied
            let LogOp::Write(op) = op else { continue };
            let Some(p) = op.pointer() else { continue };
            let matters = families.get(&op.family).is_some_and(|f| seq > f.flushed_seq.load(Ordering::Relaxed));
            if !matters {
                continue;
            }
            if let Some(e) = self.check(&p)? {
                return Ok(Some(e.context(format!("the value that the log record with sequence {base} points to"))));
            }
        }
        Ok(None)
    }

    /// What is wrong with the first value of a prepare that cannot be read, of those that matter if the transaction is in
    /// doubt.
    fn missing_of_prepare(&self, families: &HashMap<FamilyId, Arc<Family>>, payload: &[u8]) -> Result<Option<Error>> {
        let Some(LogOp::Prepare(prepare)) = read_log_op(&mut Reader::new(payload)) else { return Ok(None) };
        for (family, p) in prepare.pointers() {
            if families.contains_key(&family)
                && let Some(e) = self.check(&p)?
            {
                return Ok(Some(e));
            }
        }
        Ok(None)
    }

    /// What is wrong with a value, which is read once.
    fn check(&self, p: &ValuePointer) -> Result<Option<Error>> {
        let place = (p.file_id, p.offset);
        if self.whole.borrow().contains(&place) {
            return Ok(None);
        }
        match self.log(p.file_id).and_then(|log| log.vlog()?.check(p)) {
            // When only reading, the file is not opened before. A power cut may have taken its name.
            Err(e) if matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NotFound) => Ok(Some(e)),
            checked => {
                checked?;
                self.whole.borrow_mut().insert(place);
                Ok(None)
            }
        }
    }

    /// The file of a staged value of a transaction in doubt. `None` when only reading, where no transaction is resolved.
    fn staged(&self, family: &Family, id: u64) -> Result<Option<Arc<DirectLog>>> {
        let Recovery { fs, dir, read_only, .. } = *self.recovery;
        if read_only {
            return Ok(None);
        }
        rare!("recovery-in-doubt-staged");
        DirectLog::recovered(fs, dir, self.log(id)?, &family.options()).map(Some)
    }
}
