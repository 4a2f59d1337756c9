//! How files that lie in the database's directory become part of families.

use super::place::{Place, place};
use crate::catalog::{Catalog, FileChange};
use crate::commit::pipeline::CommitState;
use crate::compact::{FlushInput, MergeContext, MergeOutput, run_flush};
use crate::engine::DbInner;
use crate::family::{Family, View};
use crate::memtable::FamilyMemtable;
use crate::sync::atomic::Ordering;
use crate::txn::TxnId;
use crate::txn::bounds::shown;
use crate::txn::locks::{LockMode, Wait};
use crate::version::{Edit, FamilyId, FileMeta, Retired, Version, VlogMeta};
use kingtide_base::events::Event;
use kingtide_base::key::MAX_SEQ;
use kingtide_base::options::FamilyOptions;
use kingtide_base::stats::Stat;
use kingtide_base::{Error, ErrorKind, KeyOrder, Result, SeqNo, Tag, rare};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// How often memtables that the files overlap are flushed while writers go on. After that, what they wrote into those
/// keys since the last flush is flushed while they wait.
const ROUNDS: u32 = 3;

/// Files for one family, oldest first: of a key that several hold, the last one's entry counts.
pub(crate) struct Part {
    pub family: Arc<Family>,
    pub files: Vec<FileMeta>,
}

impl Part {
    /// The family's memtables that hold keys, or deleted ranges, between a file's smallest and largest key.
    fn overlaps_memtables(&self) -> bool {
        let view = self.family.view.load();
        view.memtables().any(|m| self.files.iter().any(|f| holds_any(m, self.family.order(), &f.min_key, &f.max_key)))
    }
}

fn holds_any(memtable: &FamilyMemtable, order: &KeyOrder, lo: &[u8], hi: &[u8]) -> bool {
    let mut points = memtable.points().iter();
    points.seek(lo, Tag::seek(MAX_SEQ));
    if points.valid() && order.compare(points.key(), hi).is_le() {
        return true;
    }
    let meets = |start: &[u8], end: &[u8]| order.compare(start, hi).is_le() && order.compare(end, lo).is_gt();
    memtable.has_ranges() && memtable.range_list().iter().any(|r| meets(&r.start, &r.end))
}

/// A family that comes into being together with its files.
pub(crate) struct NewFamily {
    pub name: String,
    pub order: KeyOrder,
    pub options: FamilyOptions,
    /// Its files with their levels and runs. Sorted files among them have got no sequence numbers yet.
    pub files: Vec<(usize, FileMeta)>,
    pub vlogs: Vec<VlogMeta>,
}

/// Families whose flushes are the holder's to run.
struct FlushClaim<'a> {
    db: &'a DbInner,
    families: Vec<FamilyId>,
}

impl Drop for FlushClaim<'_> {
    fn drop(&mut self) {
        let mut catalog = self.db.catalog.lock();
        self.families.iter().for_each(|id| _ = catalog.flushing.remove(id));
    }
}

/// Why an install did not come about, and whether its files can be removed.
pub(crate) struct Failed {
    pub error: Error,
    /// The manifest may name the files: they stay until an open decides.
    pub in_doubt: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed { error, in_doubt: false }
    }
}

impl DbInner {
    /// Makes files part of their families, all at once: visible at one moment, and after a crash all or none are there.
    /// Returns the sequence number from which on they are visible.
    pub(crate) fn install_parts(self: &Arc<Self>, parts: &mut [Part], no_wait: bool) -> Result<SeqNo, Failed> {
        let mut waiting_since = None;
        let mut rounds = 0;
        loop {
            for part in parts.iter().filter(|p| p.overlaps_memtables()) {
                self.flush_families(std::slice::from_ref(&part.family))?;
            }
            self.wal.sync_all()?; // most of what would have to be synced under the locks
            let claim = if rounds < ROUNDS { None } else { Some(self.claim_flushes(parts)?) };
            let mut catalog = self.catalog.lock();
            let mut c = self.commit.lock();
            self.check_writable()?;
            for part in parts.iter() {
                part.family.check_alive()?;
            }
            if let Some((part, file, _)) = self.locked_file(parts) {
                drop((c, catalog, claim)); // the lock's holder may need a flush before it releases it
                let since = *waiting_since.get_or_insert_with(|| self.clock.monotonic_ns());
                self.wait_for_locks_on(&parts[part], file, (!no_wait).then_some(since))?;
                continue;
            }
            if claim.is_none() && parts.iter().any(Part::overlaps_memtables) {
                rounds += 1;
                continue;
            }
            let retired = self.install_locked(&mut catalog, &mut c, parts)?;
            let seq = c.last_seq;
            drop((c, catalog));
            self.delete_retired(retired);
            self.jobs.wake();
            return Ok(seq);
        }
    }

    /// A file whose keys overlap a lock of a transaction: part, file, holder.
    fn locked_file(&self, parts: &[Part]) -> Option<(usize, usize, TxnId)> {
        let locks = &self.txns.locks;
        if !locks.any_held() {
            return None;
        }
        parts.iter().enumerate().find_map(|(p, part)| {
            part.files.iter().enumerate().find_map(|(i, file)| {
                let (id, order) = (part.family.id(), part.family.order());
                locks.range_holder(0, id, order, span(file), LockMode::Exclusive).map(|holder| (p, i, holder))
            })
        })
    }

    fn wait_for_locks_on(&self, part: &Part, file: usize, since: Option<u64>) -> Result<()> {
        let timeout = self.options.read().lock_timeout;
        let waited = |since| Duration::from_nanos(self.clock.monotonic_ns().saturating_sub(since));
        let wait = since.map_or(Wait::No, |since| Wait::Until(timeout.saturating_sub(waited(since))));
        let (file, family) = (&part.files[file], &part.family);
        let free = self.txns.locks.wait_range_free(&self.txns, family.id(), family.order(), span(file), wait);
        free.map_err(|e| {
            let (lo, hi) = (shown(&file.min_key), shown(&file.max_key));
            e.context(format!("ingesting keys '{lo}' to '{hi}' of column family '{}'", family.name()))
        })
    }

    /// Takes the flushes of the parts' families over, and flushes what waits for it.
    fn claim_flushes(self: &Arc<Self>, parts: &[Part]) -> Result<FlushClaim<'_>> {
        let mut claim = FlushClaim { db: self, families: Vec::new() };
        for part in parts.iter() {
            let id = part.family.id();
            if claim.families.contains(&id) {
                continue;
            }
            while !self.catalog.lock().flushing.insert(id) {
                self.check_open()?;
                self.jobs.wait_for_progress(Duration::from_millis(1));
            }
            claim.families.push(id);
            while !part.family.view.load().immutable.is_empty() {
                self.flush_family(&part.family)?;
            }
        }
        Ok(claim)
    }

    /// Called under both locks, which the caller holds for one write of the manifest.
    pub(super) fn install_locked(
        self: &Arc<Self>,
        catalog: &mut Catalog,
        c: &mut CommitState,
        parts: &mut [Part],
    ) -> Result<Retired, Failed> {
        let mut outputs = Vec::new();
        let installed = self.flush_and_install(catalog, c, parts, &mut outputs);
        if let Err(Failed { in_doubt: false, .. }) = &installed {
            // The memtables are still there, and will be written again.
            outputs.iter().for_each(|o| o.discard(&*self.fs, &self.dir));
        }
        installed
    }

    /// Does the same; what it wrote is in `outputs`, also when it fails.
    fn flush_and_install(
        self: &Arc<Self>,
        catalog: &mut Catalog,
        c: &mut CommitState,
        parts: &mut [Part],
        outputs: &mut Vec<MergeOutput>,
    ) -> Result<Retired, Failed> {
        let mut last = c.last_seq;
        let mut changes: Vec<FileChange> = Vec::with_capacity(parts.len());
        for part in parts.iter_mut() {
            let mut change = FileChange { family: part.family.clone(), edits: Vec::new(), flushed: 0 };
            if part.overlaps_memtables() {
                outputs.push(self.flush_here(c, &mut change)?);
            }
            let running = catalog.running.iter().filter(|r| r.family == part.family.id());
            let running: Vec<_> = running.flat_map(|r| r.footprints.iter().cloned()).collect();
            self.place_files(part, &running, &mut change, &mut last);
            changes.push(change);
        }
        self.make_visible(catalog, c, changes, Vec::new(), last)
    }

    /// Gives a part's files sequence numbers and places.
    fn place_files(
        &self,
        part: &mut Part,
        running: &[crate::compact::Footprint],
        change: &mut FileChange,
        last: &mut SeqNo,
    ) {
        let (family, order, options) = (&part.family, part.family.order(), part.family.options());
        let mut version = Version::clone(&family.view.load().version);
        for edit in &change.edits {
            if let Edit::AddFile { level, meta, .. } = edit {
                version.add(order, *level as usize, meta.clone());
            }
        }
        let mut newest_run = None;
        for file in &mut part.files {
            *last += 1;
            (file.sequence, file.min_seq, file.max_seq) = (*last, *last, *last);
            let level = match place(&version, order, &options, running, file) {
                Place::Run { level, run } => {
                    if level > 0 {
                        rare!("ingest-below-level-0");
                    }
                    file.run = run;
                    level
                }
                Place::Top => {
                    let newest = version.levels[0].first().filter(|r| Some(r.id) == newest_run);
                    let joins = newest.filter(|r| r.overlapping(order, &file.min_key, &file.max_key).next().is_none());
                    file.run = joins.map_or_else(|| self.new_file_id(), |r| r.id);
                    newest_run = Some(file.run);
                    0
                }
            };
            let meta = Arc::new(file.clone());
            version.add(order, level, meta.clone());
            change.edits.push(Edit::AddFile { family: family.id(), level: level as u8, meta });
        }
    }

    /// Writes what the memtables of a family hold into tables. Under the commit lock, so nothing is added meanwhile.
    fn flush_here(self: &Arc<Self>, c: &mut CommitState, change: &mut FileChange) -> Result<MergeOutput> {
        rare!("ingest-flushed-memtable");
        let family = change.family.clone();
        self.seal_memtable(c, &family);
        let immutable = family.view.load().immutable.clone();
        let input = FlushInput::of(&immutable, self.new_file_id());
        let options = family.options();
        let output = self.with_merge_context(&family, &options, false, |ctx| {
            let ctx = &MergeContext { limiter: None, ..ctx.clone() }; // no rate limit may delay work under the lock
            let output = run_flush(ctx, input)?;
            ctx.sync_dir().inspect_err(|_| output.discard(&*self.fs, &self.dir))?;
            Ok(output)
        })?;
        change.edits.extend(output.edits(family.id(), &[]));
        change.edits.push(Edit::Flushed { family: family.id(), seq: c.last_seq });
        change.flushed = immutable.len();
        Ok(output)
    }

    /// Creates a family that has files from its beginning. It takes one sequence number, so that a follower of the log
    /// learns that something was not in it.
    pub(crate) fn install_family(&self, new: NewFamily) -> Result<Arc<Family>, Failed> {
        let NewFamily { name, order, options, files, vlogs } = new;
        self.wal.sync_all()?; // most of what would have to be synced under the locks
        let mut catalog = self.catalog.lock();
        let mut c = self.commit.lock();
        self.check_writable()?;
        if catalog.by_name(&name).is_some() {
            return Err(exists(&name).into());
        }
        let (id, last) = (catalog.versions.next_family, c.last_seq + 1);
        let stored = options.entries().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let mut edits = vec![
            Edit::CreateFamily { id, name: name.clone(), order: order.name().to_owned(), options: stored },
            Edit::Flushed { family: id, seq: last },
        ];
        edits.extend(vlogs.into_iter().map(|meta| Edit::AddVlog { family: id, meta }));
        for (level, mut meta) in files {
            if meta.is_unsequenced() {
                (meta.sequence, meta.min_seq, meta.max_seq) = (last, last, last);
            }
            edits.push(Edit::AddFile { family: id, level: level as u8, meta: Arc::new(meta) });
        }
        let active = FamilyMemtable::new(order.clone(), &self.arenas, last + 1);
        let view = View::new(order.clone(), active, Vec::new(), Arc::new(Version::default()), &self.tables, None);
        let family = Arc::new(Family::new(id, name, order, options, self.read_context(), view));
        let change = FileChange { family: family.clone(), edits, flushed: 0 };
        self.make_visible(&mut catalog, &mut c, vec![change], Vec::new(), last)?;
        catalog.families.insert(id, family.clone());
        c.families.push(family.clone());
        self.fit_memtable_limit(&catalog);
        self.measure_debt(&catalog);
        drop((c, catalog));
        self.jobs.wake();
        Ok(family)
    }

    /// Writes one manifest record, puts its files into the families' views, and publishes `last`, the sequence number of the
    /// newest of them. The log is synced first: recovery must not find these files and miss a commit that came before them.
    ///
    /// Commits wait meanwhile: one of them must not get a higher number and be visible before the files are.
    pub(crate) fn make_visible(
        &self,
        catalog: &mut Catalog,
        c: &mut CommitState,
        changes: Vec<FileChange>,
        mut further: Vec<Edit>,
        last: SeqNo,
    ) -> Result<Retired, Failed> {
        if last > MAX_SEQ {
            return Err(Error::invalid("sequence numbers are used up").into());
        }
        self.wal.sync_all()?;
        let families: Vec<Arc<Family>> = changes.iter().map(|c| c.family.clone()).collect();
        let emptied: Vec<FamilyId> = changes.iter().filter(|c| c.flushed > 0).map(|c| c.family.id()).collect();
        debug_assert!(last > c.last_seq, "an ingest takes the numbers behind {}, not {last}", c.last_seq);
        // From here on the numbers are taken: after a failure the record may be in the manifest.
        c.last_seq = last;
        let log_start = self.log_needed_at(c, |f| if emptied.contains(&f.id()) { None } else { f.oldest_unflushed() });
        further.extend([Edit::LastSeq(last), Edit::LogStart(log_start)]);
        let written = catalog.change_families(changes, further, &self.tables, &self.next_file_id);
        if written.is_ok() {
            // Release pairs with the Acquire in `Family::acquire_view`.
            families.iter().for_each(|f| _ = f.ingests.fetch_add(1, Ordering::Release));
        }
        self.conflicts().note_range(last); // any key, as far as the filter can tell
        c.recent.pass(last);
        self.snapshots.publish(last);
        match written {
            Ok(retired) => {
                self.measure_debt(catalog);
                Ok(retired)
            }
            Err(error) => {
                rare!("ingest-record-failed");
                // Nothing is appended behind a record that failed: the next goes into a manifest of its own, without it.
                let in_doubt = catalog.write(&[Edit::LastSeq(last)], &self.next_file_id).is_err();
                Err(Failed { error, in_doubt })
            }
        }
    }

    /// Counts an ingest.
    pub(crate) fn count_ingest(&self, bytes: u64) {
        self.stats.add(Stat::Ingests, 1);
        self.stats.add(Stat::IngestedBytes, bytes);
        self.stats.events.tell(|| Event::Ingested(bytes));
    }
}

pub(crate) fn exists(family: &str) -> Error {
    Error::new(ErrorKind::Exists, format!("column family '{family}' exists already"))
}

/// The keys of a file.
fn span(file: &FileMeta) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Included(&file.min_key), Bound::Included(&file.max_key))
}
