//! The database as of one moment, for copies of it: checkpoints and backups.
//!
//! A moment is a commit boundary over all families. Under the catalog lock and the commit lock every memtable is sealed and
//! every family's view is taken: a view keeps its files from being deleted and its immutable memtables, which hold nothing
//! newer than the moment, alive. After that nothing is locked any more. A copy consists of
//!
//! 1. the tables and value logs of the views, which are immutable: linked or copied;
//! 2. the immutable memtables, written by the flush's code into tables of the copy's own. The database flushes them too, on
//!    its own time: so the copy waits for no job, and holds what was committed without a log;
//! 3. a log that holds the prepare records of transactions in doubt, under their sequence numbers, if there are any, and
//!    copies of the value logs that they point to: the database itself appends a footer to its own when they commit;
//! 4. a manifest that names all of it.

pub(crate) mod target;

use crate::catalog::Catalog;
use crate::commit::batch::StagedFile;
use crate::compact::{FlushInput, Lookup, RateLimiter, Surroundings, run_flush};
use crate::engine::DbInner;
use crate::family::{Family, View};
use crate::ops::{LogOp, read_log_op};
use crate::options::Options;
use crate::read::hidden::Hidden;
use kingtide_base::coding::Reader;
use kingtide_base::names::{klog_path, segment_path, vlog_path};
use kingtide_base::options::FamilyOptions;
use kingtide_base::stats::Stats;
use kingtide_base::sync::atomic::{AtomicBool, Ordering};
use kingtide_base::{Error, ErrorKind, FamilyId, Result, SeqNo, rare};
use kingtide_versions::{Edit, LogBegun, Manifest, OwnedVlog};
use kingtide_vfs::{Fs, OpenMode};
use kingtide_wal::{RECORD_HEADER_LEN, RecoveredLog, SEGMENT_HEADER_LEN, Tail, TailItem, Wal, WalConfig, WalRecord};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use target::{copy_file, of_named};

/// Largest log segment of a copy.
const MAX_SEGMENT: u64 = 1 << 30;

/// The database as of one commit. Keeps all that it names from being deleted.
pub(crate) struct PinnedState {
    /// Everything up to here, and nothing after it.
    pub seq: SeqNo,
    /// Id of the database that it is a moment of.
    pub db_id: [u8; 16],
    families: Vec<PinnedFamily>,
    vlogs: BTreeMap<u64, OwnedVlog>,
    next_family: FamilyId,
    /// Prepare records of the transactions in doubt, by ascending sequence number.
    prepared: Vec<(SeqNo, Vec<u8>)>,
    /// What they point to. This keeps the files.
    staged: Vec<StagedFile>,
}

struct PinnedFamily {
    family: Arc<Family>,
    name: String,
    options: Arc<FamilyOptions>,
    view: Arc<View>,
}

impl DbInner {
    /// The error that kept a copy from being made: `Closed` if the database was closed meanwhile, because another process may then
    /// have opened it and removed files.
    pub(crate) fn unless_closed(&self, e: Error) -> Error {
        match e.kind() {
            ErrorKind::Corruption | ErrorKind::NotFound => self.check_open().err().unwrap_or(e),
            _ => e,
        }
    }

    /// Pins the database as it is now. Holds up commits for as long as sealing all memtables takes, and flushes, if
    /// transactions are in doubt, while their records are read from the log.
    pub(crate) fn pin_state(&self) -> Result<PinnedState> {
        let catalog = self.catalog.lock();
        let (seq, families, pins, staged) = {
            let mut c = self.commit.lock();
            self.check_writable()?;
            c.check_whole()?;
            let alive = catalog.families.values().filter(|f| !f.is_dropped());
            let pinned = alive.map(|family| {
                self.seal_memtable(&mut c, family);
                let view = family.view.load_full();
                PinnedFamily { family: family.clone(), name: family.name(), options: family.options(), view }
            });
            let pinned = pinned.collect::<Vec<_>>();
            (c.last_seq, pinned, self.prepared.pins(), self.prepared.staged())
        };
        // Under the catalog lock the manifest's log start stays, and records from there on are not given up.
        let prepared = self.read_prepares(&pins, seq)?;
        let vlogs = used_vlogs(&catalog, &families)?;
        Ok(PinnedState {
            seq,
            db_id: catalog.versions.manifest.db_id(),
            families,
            vlogs,
            next_family: catalog.versions.next_family,
            prepared,
            staged,
        })
    }

    /// The payloads of the log records at these sequence numbers, which ascend.
    fn read_prepares(&self, pins: &[SeqNo], visible: SeqNo) -> Result<Vec<(SeqNo, Vec<u8>)>> {
        let Some(first) = pins.first() else { return Ok(Vec::new()) };
        let mut tail = Tail::new(self.wal.clone(), first - 1, false);
        let mut read = |pin: &SeqNo| {
            tail.pass(pin - 1);
            match tail.next(visible)? {
                Some(TailItem::Record(base, _, payload)) if base == *pin => Ok((*pin, payload)),
                _ => Err(Error::corruption(format!("the log lacks the prepare record with sequence {pin}"))
                    .at_path(&self.dir)),
            }
        };
        pins.iter().map(&mut read).collect()
    }
}

/// The value logs that the families' tables refer to.
fn used_vlogs(catalog: &Catalog, families: &[PinnedFamily]) -> Result<BTreeMap<u64, OwnedVlog>> {
    let mut used = BTreeMap::new();
    for (_, file) in families.iter().flat_map(|f| f.view.version.files()) {
        for r in &file.vlog_refs {
            let Some(meta) = catalog.versions.vlogs.get(r.file_id) else {
                return Err(Error::corruption(format!(
                    "table {} refers to value log {}, which the manifest does not name",
                    file.id, r.file_id
                )));
            };
            used.insert(r.file_id, meta.clone());
        }
    }
    Ok(used)
}

/// Whether a prepare record points into value logs.
fn points(payload: &[u8]) -> bool {
    match read_log_op(&mut Reader::new(payload)) {
        Some(LogOp::Prepare(p)) => p.pointers().next().is_some(),
        _ => false,
    }
}

/// A stopped log is that of the copy, which is given up; the database that is copied goes on.
fn of_a_copy(e: Error) -> Error {
    if e.kind() != ErrorKind::Poisoned {
        return e;
    }
    let copy = Error::new(ErrorKind::Io, e.message());
    match e.path() {
        Some(path) => copy.at_path(path),
        None => copy,
    }
}

impl PinnedState {
    /// The immutable files of the database in `dir` that belong to it, with their sizes.
    pub fn files(&self, dir: &Path) -> Vec<(PathBuf, u64)> {
        let tables = self.families.iter().flat_map(|f| f.view.version.files());
        let tables = tables.map(|(_, meta)| (klog_path(dir, meta.id), meta.size));
        let vlogs = self.vlogs.iter().map(|(id, v)| (vlog_path(dir, *id), v.meta.size));
        tables.chain(vlogs).collect()
    }

    /// Writes what no immutable file holds into `dir`: memtables, transactions in doubt, and the manifest. `CURRENT` comes
    /// last, when all else in the directory is durable, if the files in it were synced before.
    pub fn write_rest(&self, db: &Arc<DbInner>, fs: &Arc<dyn Fs>, dir: &Path, limiter: &RateLimiter) -> Result<()> {
        let mut edits = vec![Edit::NextFamilyId(self.next_family), Edit::LastSeq(self.seq)];
        let vlogs = self.vlogs.values().cloned();
        edits.extend(vlogs.map(|OwnedVlog { family, meta }| Edit::AddVlog { family, meta }));
        for pinned in &self.families {
            self.write_family(db, fs, dir, pinned, limiter, &mut edits)?;
        }
        self.copy_staged(db, fs, dir, limiter)?;
        edits.push(match self.prepared.first() {
            Some((first, _)) => Edit::LogStart(*first),
            None => Edit::LogStart(self.seq + 1),
        });
        if let Some(segment) = self.write_log(db, fs, dir).map_err(of_a_copy)? {
            let change_retention = Some(db.options.read().change_retention);
            edits.push(Edit::LogBegun(LogBegun { segment, boot_id: fs.boot_id(), change_retention }));
        }
        let number = db.new_file_id();
        edits.push(Edit::NextFileId(db.new_file_id()));
        // It goes its own way from here: another database.
        let id = Options::draw_id(db.seed, number);
        Manifest::create(fs, dir, number, id, &edits).map(drop)
    }

    /// A family's edits, and its memtables as tables.
    fn write_family(
        &self,
        db: &Arc<DbInner>,
        fs: &Arc<dyn Fs>,
        dir: &Path,
        pinned: &PinnedFamily,
        limiter: &RateLimiter,
        edits: &mut Vec<Edit>,
    ) -> Result<()> {
        let PinnedFamily { family, name, options, view } = pinned;
        let stored = options.entries().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let (id, order) = (family.id(), family.order());
        let (name, order_of) = (name.clone(), order.name().to_owned());
        // No log comes along whose change streams would ask for values of earlier options.
        edits.push(Edit::CreateFamily { id, name, order: order_of, options: stored, direct_from: None });
        edits.push(Edit::Flushed { family: id, seq: self.seq });
        for (level, meta) in view.version.files() {
            edits.push(Edit::AddFile { family: id, level: level as u8, meta: meta.clone() });
        }
        if view.immutable.is_empty() {
            return Ok(());
        }
        let never = AtomicBool::new(false);
        let around = Surroundings { fs, dir, limiter: Some(limiter), cancelled: &never, ..db.surroundings(false) };
        let hidden = Hidden::of(view, &view.immutable, options);
        let lookup = hidden.as_ref().map(|h| move |key: &[u8], value| h.bytes(key, value));
        // A copy is never read at an earlier moment.
        let output = around.with_context((order, options), vec![self.seq], view.version.clone(), |context| {
            let input = FlushInput { last: self.seq, ..FlushInput::of(&view.immutable, context.new_file_id()) };
            run_flush(context, FlushInput { hidden: lookup.as_ref().map(|f| f as &Lookup<'_>), ..input })
        })?;
        edits.extend(output.edits(id, &[]));
        Ok(())
    }

    /// Copies the values that transactions in doubt point to.
    fn copy_staged(&self, db: &DbInner, fs: &Arc<dyn Fs>, dir: &Path, limiter: &RateLimiter) -> Result<()> {
        let exists = |s: &&StagedFile| self.families.iter().any(|pinned| Arc::ptr_eq(&pinned.family, &s.family));
        for file in self.staged.iter().filter(exists) {
            let (from, to) = (vlog_path(&db.dir, file.log.id()), vlog_path(dir, file.log.id()));
            copy_file((&*db.fs, &from), (&**fs, &to), &mut |bytes| {
                limiter.take(bytes, db.jobs.cancel_flag());
                db.check_open()
            })
            .map_err(of_named(&from))?;
            rare!("copy-of-staged-value");
        }
        Ok(())
    }

    /// Writes the log that tells of transactions in doubt. Returns its first segment.
    fn write_log(&self, db: &DbInner, fs: &Arc<dyn Fs>, dir: &Path) -> Result<Option<u64>> {
        let Some((first, _)) = self.prepared.first() else { return Ok(None) };
        let records: u64 = self.prepared.iter().map(|(_, p)| (RECORD_HEADER_LEN + p.len() + 8) as u64).sum();
        let ids = db.next_file_id.clone();
        let config = WalConfig {
            fs: fs.clone(),
            dir: dir.to_owned(),
            segment_size: (records + (SEGMENT_HEADER_LEN + RECORD_HEADER_LEN) as u64).min(MAX_SEGMENT),
            first_segment: MAX_SEGMENT,
            max_free: 0,
            prefill_piece: db.tuning.prefill_piece,
            next_id: Arc::new(move || ids.fetch_add(1, Ordering::Relaxed)),
            on_rotate: None,
            clock: db.clock.clone(),
            stats: Arc::new(Stats::default()),
        };
        let (mut writer, _) = Wal::open(config, RecoveredLog::none(*first))?;
        let segment = writer.begin()?;
        for (seq, payload) in &self.prepared {
            let points = points(payload);
            writer.append(*seq, 1, WalRecord { points, prepares_staged: points, ..WalRecord::new(payload) })?;
        }
        let last = writer.begin()?;
        writer.close()?;
        // Closing cuts the last file to what is used, which a backup counts on. The first record with pointers begins another segment
        // than the first.
        fs.open(&segment_path(dir, last), OpenMode::Write)?.sync_all()?;
        Ok(Some(segment))
    }
}
