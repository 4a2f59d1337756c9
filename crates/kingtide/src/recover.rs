//! Recovery: what the manifest and the log say, made into families with memtables.

use crate::compact::{FlushInput, RateLimiter, Surroundings, run_flush};
use crate::family::tables::VlogHandle;
use crate::family::{Family, ReadContext, TableCache, View};
use crate::layout::{FamilyLayout, Layout, read_options};
use crate::memtable::FamilyMemtable;
use crate::memtable::no_room;
use crate::names::{CURRENT, FileName, segment_path, vlog_path};
use crate::ops::LoggedOp;
use crate::ops::{LogOp, read_log_op};
use crate::options::Options;
use crate::shape::Shape;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::txn::InDoubt;
use crate::txn::prepared::RecoveredPrepared;
use crate::version::DEFAULT_FAMILY;
use crate::version::manifest::{Manifest, write_again};
use crate::version::{Edit, FamilyId, LogBegun, required_log_start};
use crate::wal::{self, ReplayEnd, ReplayedSegment};
use kingtide_base::budget::Budget;
use kingtide_base::clock::Clock;
use kingtide_base::coding::Reader;
use kingtide_base::events::{Event, RecoveryInfo};
use kingtide_base::options::FamilyOptions;
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::{Error, ErrorKind, Kind, Result, SeqNo, Tag, rare};
use kingtide_mem::{ArenaPool, NoRoom};
use kingtide_vfs::{Fs, OpenMode};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// What recovery works with.
pub(crate) struct Recovery<'a> {
    pub dir: &'a Path,
    pub fs: &'a Arc<dyn Fs>,
    pub options: &'a Options,
    pub clock: &'a Arc<dyn Clock>,
    pub stats: &'a Arc<Stats>,
    pub tables: &'a Arc<TableCache>,
    pub arenas: &'a Arc<ArenaPool>,
    pub memory: &'a Arc<Budget>,
    /// Change no byte; a writer may be at work.
    pub read_only: bool,
}

/// What recovery found.
pub(crate) struct Recovered {
    pub shape: Shape,
    pub families: Vec<Arc<Family>>,
    pub default: Arc<Family>,
    /// The open gave it other options than were stored.
    pub default_changed: bool,
    pub log_end: ReplayEnd,
    pub last_seq: SeqNo,
    pub next_file_id: u64,
    /// Transactions in doubt, oldest first.
    pub prepared: Vec<RecoveredPrepared>,
}

/// What the manifest has of an open's options.
pub(crate) struct StoredOptions {
    /// The default family's key order, by name.
    pub order: String,
    /// The default family's options.
    pub family: FamilyOptions,
    /// The database's `change_retention`, where a log was begun by a build that stores it.
    pub change_retention: Option<u64>,
}

/// The options that a database has stored. `None`: there is no database. Reads the manifest and changes nothing.
pub(crate) fn stored_options(fs: &Arc<dyn Fs>, dir: &Path) -> Result<Option<StoredOptions>> {
    let (mut default, mut change_retention) = (None, None);
    let loaded = Manifest::load(fs, dir, false, |edits| {
        for edit in edits {
            match (edit, &mut default) {
                (Edit::CreateFamily { id, name, order, options }, None) if name == DEFAULT_FAMILY => {
                    default = Some((id, order, options));
                }
                (Edit::SetOptions { id: of, options: next }, Some((id, _, options))) if of == *id => *options = next,
                (Edit::LogBegun(begun), _) => change_retention = begun.change_retention,
                _ => {}
            }
        }
        Ok(())
    })?;
    if loaded.is_none() {
        return Ok(None);
    }
    let (_, order, options) = default.ok_or_else(no_default)?;
    let family = read_options(DEFAULT_FAMILY, &options)?;
    Ok(Some(StoredOptions { order, family, change_retention }))
}

#[cold]
fn no_default() -> Error {
    Error::corruption("the manifest names no default family")
}

fn recovered_event(shape: &Shape, log_end: &ReplayEnd) -> Event {
    let mut info = RecoveryInfo::default();
    let tables = shape.families.values().map(|f| f.view.load().version.files().count());
    info.files = tables.sum::<usize>() + shape.vlogs.len();
    info.families = shape.families.len();
    (info.log_records, info.log_segments, info.closed) = (log_end.records, log_end.segments.len(), log_end.closed);
    Event::Recovered(info)
}

/// The bytes of a segment that count: its records and the mark behind them.
fn extent(s: &ReplayedSegment) -> (u64, u64) {
    (s.id, u64::from(s.end) + wal::END_MARK_LEN)
}

impl Recovery<'_> {
    pub fn run(&self) -> Result<Recovered> {
        let (manifest, mut layout) = self.load_manifest()?;
        let on_disk = self.fs.list(self.dir)?;
        // File ids are never reused, not even those of files that a crash left behind.
        layout.next_file_id =
            layout.next_file_id.max(1 + on_disk.iter().filter_map(|n| own_number(n)).max().unwrap_or(0));
        self.check_default(&layout)?;
        let orphans = self.orphans(&layout, &on_disk);

        let default_changed = layout.families.values().any(|f| self.changes_options(f));
        let mut families: BTreeMap<FamilyId, Arc<Family>> = BTreeMap::new();
        for (id, f) in layout.families {
            families.insert(id, Arc::new(self.make_family(id, f)?));
        }
        let mut shape = Shape::new(manifest, families, layout.vlogs, layout.next_family);
        shape.manifest.set_limits(self.options.tuning.manifest_limits());
        (shape.log_start, shape.log_begun) = (layout.log_start, layout.log_begun);
        shape.last_seq = layout.last_seq;
        let next_file_id = AtomicU64::new(layout.next_file_id);
        let (mut log_end, prepared) = self.replay_log(&mut shape, &next_file_id)?;
        self.check_log_is_there(&shape, &mut log_end)?;
        raise_log_start(&mut shape, &log_end);
        if !self.read_only {
            // Only now: a manifest that lost its end is found out by the log, and what it does not name is no orphan
            // then but what repair needs. What cannot be removed is left to the next open.
            for name in orphans {
                rare!("recovery-removed-orphan");
                if let Some(FileName::ValueLog(id)) = FileName::parse(name) {
                    rare!("direct-log-orphan-removed");
                    let _ = self.tables.delete_vlog(id); // a memtable that points into it keeps it until its flush
                    continue;
                }
                let _ = self.fs.remove(&self.dir.join(name));
            }
        }
        let same_boot = self.is_same_boot(shape.log_begun);
        if !self.read_only && !log_end.closed {
            // Those too that are only kept for change streams: the log is read from its beginning.
            self.sync_segments(log_end.segments.iter().map(extent), same_boot)?;
        } else if !self.read_only && same_boot {
            // The mark of a closed log was written when all before its segment was synced, but its own sync may have
            // failed, and with it that of the segment's header.
            self.sync_segments(log_end.segments.last().map(extent).into_iter(), same_boot)?;
        }
        let last_seq = layout.last_seq.max(log_end.next_seq.saturating_sub(1));
        if log_end.segments.is_empty() {
            log_end.next_seq = last_seq + 1; // a copy without a log: the one that begins now holds nothing older
        }
        self.start_empty_memtables_after(&shape, last_seq);
        self.stats.set(Stat::RecoveredRecords, log_end.records);
        self.stats.events.tell(|| recovered_event(&shape, &log_end));

        let all: Vec<Arc<Family>> = shape.families.values().cloned().collect();
        let default = shape.by_name(DEFAULT_FAMILY).cloned();
        let default = default.ok_or_else(no_default)?;
        let next_file_id = next_file_id.into_inner();
        Ok(Recovered { shape, families: all, default, default_changed, log_end, last_seq, next_file_id, prepared })
    }

    fn load_manifest(&self) -> Result<(Manifest, Layout)> {
        let mut layout = Layout::default();
        let loaded = Manifest::load(self.fs, self.dir, !self.read_only, |edits| {
            edits.into_iter().try_for_each(|e| layout.apply(e, self.options))
        })?;
        if let Some(manifest) = loaded {
            if !self.read_only && self.is_same_boot(layout.log_begun) {
                rare!("recovery-wrote-again");
                manifest.write_again()?;
            }
            return Ok((manifest, layout));
        }
        if self.read_only {
            return Err(Error::new(ErrorKind::NotFound, "no database here (no CURRENT file)").at_path(self.dir));
        }
        let mut layout = Layout { next_file_id: 2, ..Layout::default() };
        let options = self.options.family.entries().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let edit = Edit::CreateFamily {
            id: 0,
            name: DEFAULT_FAMILY.to_owned(),
            order: self.options.order.name().to_owned(),
            options,
        };
        let id = Options::draw_id(self.options.seed, 0);
        let manifest = Manifest::create(self.fs, self.dir, 1, id, std::slice::from_ref(&edit))?;
        layout.apply(edit, self.options)?;
        Ok((manifest, layout))
    }

    /// The default family's order is the one given to open; its live options are those given now.
    fn check_default(&self, layout: &Layout) -> Result<()> {
        let Some(f) = layout.families.values().find(|f| f.name == DEFAULT_FAMILY) else { return Ok(()) };
        if f.order.name() != self.options.order.name() {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "the default family is ordered by '{}', but '{}' was asked for",
                    f.order.name(),
                    self.options.order.name()
                ),
            )
            .at_path(self.dir));
        }
        Ok(())
    }

    /// Whether this open gives other options to the default family than are stored, and stores them.
    fn changes_options(&self, layout: &FamilyLayout) -> bool {
        !self.read_only && layout.name == DEFAULT_FAMILY && layout.options != self.options.family
    }

    fn make_family(&self, id: FamilyId, layout: FamilyLayout) -> Result<Family> {
        layout.version.check(&layout.order).map_err(|e| Error::corruption(e).at_path(self.dir))?;
        let options = if layout.name == DEFAULT_FAMILY { self.options.family.clone() } else { layout.options };
        let active = FamilyMemtable::new(layout.order.clone(), self.arenas, layout.flushed + 1);
        let version = Arc::new(layout.version);
        let view = View::new(layout.order.clone(), active, Vec::new(), version, self.tables, None);
        let reads = Arc::new(ReadContext::new(self.stats.clone(), self.tables.clone(), self.clock.clone()));
        let family = Family::new(id, layout.name, layout.order, options, reads, view);
        family.flushed_seq.store(layout.flushed, Ordering::Relaxed);
        Ok(family)
    }

    /// Tables and value logs that the manifest does not name, and temporary files.
    fn orphans<'n>(&self, layout: &Layout, on_disk: &'n [String]) -> Vec<&'n String> {
        let tables: HashSet<u64> =
            layout.families.values().flat_map(|f| f.version.files().map(|(_, m)| m.id)).collect();
        let is_orphan = |name: &&String| match FileName::parse(name) {
            Some(FileName::Table(id)) => !tables.contains(&id),
            Some(FileName::ValueLog(id)) => !layout.vlogs.contains_key(&id),
            Some(FileName::Stats | FileName::Temporary) => true,
            _ => false,
        };
        on_disk.iter().filter(is_orphan).collect()
    }

    /// Replays the log into the families' memtables, and collects the transactions in doubt. When memory runs out the
    /// fullest memtables are flushed on the spot.
    fn replay_log(&self, shape: &mut Shape, next_file_id: &AtomicU64) -> Result<(ReplayEnd, Vec<RecoveredPrepared>)> {
        let segments = wal::list_segments(&**self.fs, self.dir)?;
        let by_id: HashMap<FamilyId, Arc<Family>> = shape.families.iter().map(|(id, f)| (*id, f.clone())).collect();
        let (mut synced, mut disk_full) = (false, false);
        let log_start = required_log_start(shape.log_start, shape.manifest.log_start_is_exact());
        let next_family = shape.next_family;
        let same_boot = self.is_same_boot(shape.log_begun);
        let mut in_doubt = InDoubt::default();
        let values = RecoveredValues::new(self, shape.vlogs.keys().copied().collect(), same_boot);
        let sync_once = |synced: &mut bool| match std::mem::replace(synced, true) {
            // A table must not survive a power cut that older operations of other families do not.
            false => self.sync_segments(segments.iter().map(|id| (*id, u64::MAX)), same_boot),
            true => Ok(()),
        };
        let apply = |base, count, payload: &[u8]| {
            let mut r = Reader::new(payload);
            for i in 0..count as u64 {
                let seq = base + i;
                let rest = r.rest();
                let op = read_log_op(&mut r).ok_or_else(|| {
                    Error::corruption(format!("operation {i} of the log record with sequence {base} cannot be read"))
                })?;
                match op {
                    LogOp::Write(op) => {
                        if let Some(full) = self.replay_write(&by_id, next_family, &op, seq, &values)? {
                            // A part of a batch may go into a table: replay goes on behind what was flushed of the family.
                            let can_flush = !disk_full && !self.read_only;
                            if can_flush {
                                sync_once(&mut synced)?;
                            }
                            disk_full |= !self.empty(&full, can_flush.then_some(&mut *shape), seq - 1, next_file_id)?;
                            self.replay_write(&by_id, next_family, &op, seq, &values)?; // an empty one takes it, or says why not
                        }
                    }
                    LogOp::Prepare(p) => in_doubt.prepare(&p, seq, &rest[..rest.len() - r.rest().len()])?,
                    LogOp::Resolved { committed: false, .. } if i > 0 => {
                        let text =
                            format!("the log record with sequence {base} rolls back a transaction and has writes");
                        return Err(Error::corruption(text));
                    }
                    LogOp::Resolved { xid, .. } => in_doubt.resolved(xid),
                }
            }
            if !r.is_empty() {
                return Err(Error::corruption(format!("the log record with sequence {base} has bytes left over")));
            }
            in_doubt.count_record((wal::RECORD_HEADER_LEN + payload.len()) as u64);
            if self.memory.used() > self.memory.limit() / 2 && !disk_full && !self.read_only {
                sync_once(&mut synced)?;
                let fullest = shape.families.values().max_by_key(|f| f.view.load().active.memory()).cloned();
                if let Some(family) = fullest {
                    disk_full |= !self.empty(&family, Some(shape), base + count as u64 - 1, next_file_id)?;
                }
            }
            Ok(())
        };
        let missing = |base, count, payload: &[u8]| values.missing(&by_id, base, count, payload);
        let (fs, mut records) = (&**self.fs, (missing, apply));
        let end = wal::replay_records(fs, self.dir, &segments, log_start, self.read_only, &mut records)?;
        let in_doubt = in_doubt.finish(&by_id, next_family).map_err(|e| e.at_path(self.dir))?;
        if !in_doubt.is_empty() {
            rare!("recovery-in-doubt");
        }
        Ok((end, in_doubt))
    }

    /// An operation counts if its family exists and did not have it flushed. Returns the family if its memtable takes no
    /// more: nothing was done then.
    fn replay_write(
        &self,
        by_id: &HashMap<FamilyId, Arc<Family>>,
        next_family: FamilyId,
        op: &LoggedOp<'_>,
        seq: SeqNo,
        values: &RecoveredValues<'_>,
    ) -> Result<Option<Arc<Family>>> {
        let Some(family) = by_id.get(&op.family) else {
            if op.family >= next_family {
                let text = format!("the log holds operations of family {}, which the manifest lost", op.family);
                return Err(Error::corruption(text).at_path(&self.dir.join(CURRENT)).at_offset(0));
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
        view.active.note_entries_from(seq);
        if let Some(p) = op.pointer() {
            view.active.direct().hold_recovered(&values.log(p.file_id)?, p.stored_len);
        }
        if Tag(op.kind as u64).kind() == Some(Kind::RangeDelete) {
            view.active.insert_range(op.key, op.value, seq);
        } else {
            view.active.writer().insert(op.key, Tag(seq << 8 | op.kind as u64), op.value);
        }
        Ok(None)
    }

    /// The segment that the manifest names, or a later one, is part of the log. Or a power cut took the headers: then the
    /// files stay until another segment is there.
    fn check_log_is_there(&self, shape: &Shape, end: &mut ReplayEnd) -> Result<()> {
        let Some(LogBegun { segment, boot_id, .. }) = shape.log_begun else { return Ok(()) };
        if end.lacks(segment, is_boot(boot_id, &**self.fs)) {
            return Err(Error::corruption("write-ahead log: the last segment is missing or lost its header")
                .at_path(&segment_path(self.dir, segment))
                .at_offset(0));
        }
        end.keep_discarded |= end.segments.iter().all(|s| s.id < segment);
        Ok(())
    }

    /// Makes durable what recovery reads of the log: of each segment its id, and the bytes that count.
    fn sync_segments(&self, segments: impl Iterator<Item = (u64, u64)>, same_boot: bool) -> Result<()> {
        for (id, bytes) in segments {
            let file = self.fs.open(&segment_path(self.dir, id), OpenMode::Write)?;
            if same_boot {
                write_again(&*file, bytes)?;
            }
            file.sync_data()?;
        }
        Ok(())
    }

    /// Whether the process that had the database open last ran in the machine's present boot.
    fn is_same_boot(&self, log_begun: Option<LogBegun>) -> bool {
        log_begun.is_some_and(|begun| is_boot(begun.boot_id, &**self.fs))
    }

    /// Puts an empty memtable in the place of a family's, which holds all that was replayed up to `last`, and flushes that
    /// if it is given the shape. False: the disk is full. The memtable stays in memory then, frozen: a database on a full
    /// disk opens, and what the log holds can be read.
    fn empty(
        &self,
        family: &Arc<Family>,
        shape: Option<&mut Shape>,
        last: SeqNo,
        next_file_id: &AtomicU64,
    ) -> Result<bool> {
        let full = family.view.load().active.clone();
        if full.is_empty() {
            return Ok(true);
        }
        let fresh = FamilyMemtable::new(family.order().clone(), self.arenas, last + 1);
        family.update_view(|v| {
            let frozen = std::iter::once(&v.active).chain(&v.frozen).cloned().collect();
            View::new(v.order.clone(), fresh, frozen, v.version.clone(), self.tables, Some(v))
        });
        let Some(shape) = shape else { return Ok(true) };
        match self.flush(shape, family, &full, last, next_file_id) {
            Err(e) if e.kind() == ErrorKind::NoSpace => Ok(false),
            flushed => flushed.map(|()| true),
        }
    }

    fn flush(
        &self,
        shape: &mut Shape,
        family: &Arc<Family>,
        full: &Arc<FamilyMemtable>,
        last: SeqNo,
        next_file_id: &AtomicU64,
    ) -> Result<()> {
        rare!("recovery-flushed");
        let options = family.options();
        let limiter = RateLimiter::new(self.clock.clone(), 0);
        let around = Surroundings {
            fs: self.fs,
            dir: self.dir,
            tables: self.tables,
            next_file: next_file_id,
            now_ms: self.clock.unix_ms(),
            limiter: Some(&limiter),
            cancelled: &AtomicBool::new(false),
            may_cancel: false,
            poll_interval: self.options.tuning.poll_interval,
        };
        let version = family.view.load().version.clone();
        let output = around.with_context((family.order(), &options), vec![last], version, |context| {
            let output = run_flush(context, FlushInput::of(std::slice::from_ref(full), context.new_file_id()))?;
            context.sync_dir().map(|()| output)
        })?;
        let mut edits = output.edits(family.id(), &[]);
        edits.push(Edit::Flushed { family: family.id(), seq: last });
        shape.change_files(family, edits, 1, self.tables, next_file_id)?;
        family.flushed_seq.store(last, Ordering::Relaxed);
        Ok(())
    }

    /// A memtable that is still empty begins after everything recovered, so that it pins no log.
    fn start_empty_memtables_after(&self, shape: &Shape, last_seq: SeqNo) {
        for f in shape.families.values().filter(|f| f.view.load().active.is_empty()) {
            let fresh = FamilyMemtable::new(f.order().clone(), self.arenas, last_seq + 1);
            f.update_view(|v| {
                View::new(v.order.clone(), fresh, v.frozen.clone(), v.version.clone(), self.tables, Some(v))
            });
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
}

impl<'a> RecoveredValues<'a> {
    fn new(recovery: &'a Recovery<'a>, known: HashSet<u64>, same_boot: bool) -> Self {
        RecoveredValues { recovery, known, same_boot, logs: RefCell::default() }
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
        if !read_only && !self.known.contains(&id) {
            let path = vlog_path(dir, id);
            let file = fs.open(&path, OpenMode::Write).map_err(|e| match e.kind() {
                ErrorKind::NotFound => {
                    Error::corruption("a value log that the log refers to is missing").at_path(&path)
                }
                _ => e,
            })?;
            if self.same_boot {
                write_again(&*file, file.len()?)?;
            }
            file.sync_data()?;
        }
        self.logs.borrow_mut().insert(id, handle.clone());
        Ok(handle)
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
            match self.log(p.file_id).and_then(|log| log.vlog()?.check(&p)) {
                Err(e) if e.kind() == ErrorKind::Corruption => {
                    return Ok(Some(
                        e.context(format!("the value that the log record with sequence {base} points to")),
                    ));
                }
                checked => checked?,
            }
        }
        Ok(None)
    }
}

/// After a manifest of a build that let the log's start fall: the oldest segment says where the log begins. All that was
/// released before it had been in tables, because a segment is given up only when the manifest says so for good.
fn raise_log_start(shape: &mut Shape, log_end: &ReplayEnd) {
    if shape.manifest.log_start_is_exact() {
        return;
    }
    let begins = log_end.segments.first().map_or(0, |s| s.start_seq);
    if begins > shape.log_start {
        rare!("log-start-raised-by-chain");
        shape.log_start = begins;
    }
    shape.manifest.vouch_for_log_start();
}

/// Whether the machine was not restarted since; zeros mean that the system does not tell.
pub(crate) fn is_boot(boot_id: [u8; 16], fs: &dyn Fs) -> bool {
    boot_id != [0; 16] && boot_id == fs.boot_id()
}

/// The number of a file that is the database's own. No file gets numbers as large as the last ones, which a stranger's
/// file in the directory may have.
fn own_number(name: &str) -> Option<u64> {
    FileName::parse(name)?.number().filter(|n| *n < u64::MAX / 2)
}
