//! How files that lie in the database's directory become part of families.

use super::place::{Place, place};
use crate::catalog::Catalog;
use crate::engine::DbInner;
use crate::family::{Family, View};
use crate::memtable::FamilyMemtable;
use crate::ops::files::put_files;
use crate::txn::bounds::shown;
use kingtide_base::events::Event;
use kingtide_base::key::MAX_SEQ;
use kingtide_base::options::FamilyOptions;
use kingtide_base::stats::Stat;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, ErrorKind, FamilyId, KeyOrder, Result, SeqNo, TxnId, rare};
use kingtide_locks::{LockMode, Wait, Woken};
use kingtide_versions::{Edit, FileMeta, Version, VlogMeta};
use kingtide_wal::{Lsn, WalRecord};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// Files on their way into the database.
struct Incoming<'a> {
    /// The families that they join.
    families: Vec<Arc<Family>>,
    /// The first of these comes into being with them.
    created: bool,
    /// How many sequence numbers they take.
    numbers: u32,
    /// The edits that go with one of the numbers: which of them, from 0, and the number.
    edits: &'a dyn Fn(u32, SeqNo) -> Vec<Edit>,
}

/// Files that are visible and in the log.
struct Published {
    /// The last of their sequence numbers.
    last: SeqNo,
    /// Where their record ends.
    lsn: Lsn,
    /// What recovery needs of the log from here on, once the manifest has them.
    log_start: SeqNo,
}

/// Files for one family, oldest first: of a key that several hold, the last one's entry counts.
pub(crate) struct Part {
    pub family: Arc<Family>,
    pub files: Vec<FileMeta>,
}

impl Part {
    /// The family's memtables that hold keys, or deleted ranges, between a file's smallest and largest key.
    fn overlaps_memtables(&self) -> bool {
        let view = self.family.view.load();
        view.memtables().any(|m| self.files.iter().any(|f| m.holds_any(&f.min_key, &f.max_key)))
    }
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

/// The locks that an ingest holds on its files' ranges of keys: commits that write into them wait, and so do transactions that
/// lock there.
struct KeyLocks<'a> {
    db: &'a DbInner,
    id: TxnId,
}

impl KeyLocks<'_> {
    /// Returns the tasks that waited for them.
    fn release(self) -> Woken {
        self.db.txns.locks.release_all(self.id)
    }
}

impl Drop for KeyLocks<'_> {
    fn drop(&mut self) {
        self.db.txns.locks.release_all(self.id);
    }
}

/// Why an install did not come about, or not as promised.
pub(crate) struct Failed {
    pub error: Error,
    pub left: Left,
}

/// What an install that failed left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing: its files can be removed.
    Nothing,
    /// Perhaps a record of the log that names the files: they stay until an open decides.
    Doubt,
    /// All of it: they are part of the database. What failed is the sync of the log.
    All,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed { error, left: Left::Nothing }
    }
}

impl DbInner {
    /// Makes files part of their families, all at once: visible at one moment, and after a crash all or none are there.
    /// Returns the sequence number from which on they are visible.
    pub(crate) fn install_parts(self: &Arc<Self>, parts: &mut [Part], no_wait: bool) -> Result<SeqNo, Failed> {
        let locks = self.lock_keys_of(parts, no_wait)?;
        for part in parts.iter().filter(|p| p.overlaps_memtables()) {
            self.flush_families(std::slice::from_ref(&part.family))?;
        }
        self.wal.sync_all()?; // most of what is to be synced under the catalog lock
        let mut catalog = self.catalog.lock();
        let families: Vec<Arc<Family>> = parts.iter().map(|p| p.family.clone()).collect();
        let placed: Vec<(FamilyId, u8, &FileMeta)> =
            parts.iter_mut().flat_map(|part| self.place_files(&catalog, part)).collect();
        let incoming = Incoming {
            families,
            created: false,
            numbers: placed.len() as u32,
            edits: &|i, seq| {
                let (family, level, meta) = placed[i as usize];
                let meta = FileMeta { sequence: seq, min_seq: seq, max_seq: seq, ..meta.clone() };
                vec![Edit::AddFile { family, level, meta: Arc::new(meta) }]
            },
        };
        let published = self.publish_files(&mut catalog, &incoming)?;
        self.have_tasks_woken(locks.release());
        let recorded = self.record_files(&mut catalog, &published);
        drop(catalog);
        self.wake_tasks();
        self.jobs.wake();
        recorded.map(|()| published.last)
    }

    /// Locks all keys between each file's smallest and largest, and waits for commits that did not see these locks. From here on
    /// no commit writes there, while all others go on.
    ///
    /// It waits for the locks of transactions without holding one itself: a holder may need a flush before it releases its lock.
    /// So no deadlock can arise.
    fn lock_keys_of(&self, parts: &[Part], no_wait: bool) -> Result<KeyLocks<'_>> {
        let mut waiting_since = None;
        loop {
            let locks = KeyLocks { db: self, id: self.txns.ingest_id() };
            match self.first_locked_file(parts, locks.id)? {
                None => {
                    drop(self.commit.lock()); // see `Transaction::pass_commits`
                    return Ok(locks);
                }
                Some((part, file)) => {
                    drop(locks);
                    let since = *waiting_since.get_or_insert_with(|| self.clock.monotonic_ns());
                    self.wait_for_locks_on(&parts[part], file, (!no_wait).then_some(since))?;
                }
            }
        }
    }

    /// Takes the locks one after the other. The first file, by part and place in it, whose keys another holds a lock on.
    fn first_locked_file(&self, parts: &[Part], id: TxnId) -> Result<Option<(usize, usize)>> {
        for (p, part) in parts.iter().enumerate() {
            let family = (part.family.id(), part.family.order());
            for (i, file) in part.files.iter().enumerate() {
                let locks = &self.txns.locks;
                match locks.acquire_range(&self.txns, id, family, span(file), LockMode::Exclusive, Wait::No) {
                    Ok(_) => {}
                    Err(e) if e.kind() == ErrorKind::Conflict => return Ok(Some((p, i))),
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(None)
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

    /// Gives a part's files their places: family and level of each, with the file, which has its run.
    fn place_files<'p>(&self, catalog: &Catalog, part: &'p mut Part) -> Vec<(FamilyId, u8, &'p FileMeta)> {
        let (family, order, options) = (&part.family, part.family.order(), part.family.options());
        let running = catalog.running.iter().filter(|r| r.family == family.id());
        let running: Vec<_> = running.flat_map(|r| r.footprints.iter().cloned()).collect();
        let mut version = Version::clone(&family.view.load().version);
        let mut newest_run = None;
        let mut levels = Vec::with_capacity(part.files.len());
        for file in &mut part.files {
            let level = match place(&version, order, &options, &running, file) {
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
            version.add(order, level, Arc::new(file.clone()));
            levels.push(level as u8);
        }
        let id = family.id();
        part.files.iter().zip(levels).map(|(file, level)| (id, level, file)).collect()
    }

    /// Creates a family that has files from its beginning. It takes one sequence number, so that a follower of the log
    /// learns that something was not in it.
    pub(crate) fn install_family(&self, new: NewFamily) -> Result<Arc<Family>, Failed> {
        let NewFamily { name, order, options, files, vlogs } = new;
        self.wal.sync_all()?; // most of what is to be synced under the catalog lock
        let mut catalog = self.catalog.lock();
        if catalog.by_name(&name).is_some() {
            return Err(exists(&name).into());
        }
        let id = catalog.versions.next_family;
        let stored: Vec<(String, String)> = options.entries().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let (name_of, order_of) = (name.clone(), order.name().to_owned());
        let create = Edit::CreateFamily { id, name: name_of, order: order_of, options: stored, direct_from: None };
        let edits = |_, seq| {
            let mut edits = vec![create.clone(), Edit::Flushed { family: id, seq }];
            edits.extend(vlogs.iter().map(|meta| Edit::AddVlog { family: id, meta: meta.clone() }));
            edits.extend(files.iter().map(|(level, meta)| {
                let meta = match meta.is_unsequenced() {
                    true => FileMeta { sequence: seq, min_seq: seq, max_seq: seq, ..meta.clone() },
                    false => meta.clone(),
                };
                Edit::AddFile { family: id, level: *level as u8, meta: Arc::new(meta) }
            }));
            edits
        };
        let active = FamilyMemtable::new(order.clone(), &self.arenas, 0); // exchanged when its numbers are known
        let view = View::new(order.clone(), active, Vec::new(), Arc::new(Version::default()), &self.tables, None);
        let family = Arc::new(Family::new(id, name, order, options, self.read_context(), view));
        let incoming = Incoming { families: vec![family.clone()], created: true, numbers: 1, edits: &edits };
        let published = self.publish_files(&mut catalog, &incoming)?;
        let recorded = self.record_files(&mut catalog, &published);
        self.fit_memtable_limit(&catalog);
        drop(catalog);
        self.jobs.wake();
        recorded.map(|()| family)
    }

    /// The stages under the commit lock: sequence numbers, one record in the log, and the moment at which all files become
    /// visible. Touches no file but the log, and syncs nothing. Called under the catalog lock, which is kept until the manifest
    /// has the files: any later record of it comes after them.
    fn publish_files(&self, catalog: &mut Catalog, incoming: &Incoming<'_>) -> Result<Published, Failed> {
        let Incoming { families, created, numbers, edits } = incoming;
        let mut c = self.commit.lock();
        self.check_writable()?;
        c.check_whole()?;
        families.iter().try_for_each(|f| f.check_alive())?;
        let (base, last) = (c.last_seq + 1, c.last_seq + u64::from(*numbers));
        if last > MAX_SEQ {
            return Err(Error::invalid("sequence numbers are used up").into());
        }
        let mut ops: Vec<Vec<Edit>> = (0..*numbers).map(|i| edits(i, base + u64::from(i))).collect();
        if let Some(op) = ops.last_mut() {
            // Runs have numbers of the same counter, which no file shows.
            op.push(Edit::NextFileId(self.next_file_id.load(Ordering::Relaxed)));
        }
        let mut payload = Vec::new();
        ops.iter().for_each(|edits| put_files(&mut payload, edits));
        let orders = catalog.versions.orders(families.first().map(|f| f.order()));
        let logged = catalog.versions.with_logged(ops.concat(), &orders)?;
        let record = WalRecord { files: true, ..WalRecord::new(&payload) };
        let lsn = c.wal.append(base, *numbers, record).map_err(|error| {
            rare!("ingest-not-logged");
            let left = if c.wal.may_show_refused(base) { Left::Doubt } else { Left::Nothing };
            Failed { error, left }
        })?;
        // Nothing fails from here on.
        c.last_seq = last;
        catalog.versions.adopt_logged(logged);
        for family in families {
            if *created {
                let active = FamilyMemtable::new(family.order().clone(), &self.arenas, last + 1);
                family.update_view(|v| {
                    View::new(v.order.clone(), active, Vec::new(), v.version.clone(), &self.tables, None)
                });
                catalog.families.insert(family.id(), family.clone());
                c.families.push(family.clone());
            }
            catalog.show_change(family, 0, &self.tables);
            // Release pairs with the Acquire in `Family::acquire_view`.
            family.outdated.fetch_add(1, Ordering::Release);
        }
        self.conflicts().note_range(last); // any key, as far as the filter can tell
        c.recent.pass(last);
        self.snapshots.publish(last);
        Ok(Published { last, lsn, log_start: self.log_needed_at(&c, Family::oldest_unflushed) })
    }

    /// The stages after them, while commits go on: syncs the log up to the files' record, then tells the manifest. In this order:
    /// recovery must not find the files and miss a commit that came before them. From the sync on they survive, so that a
    /// failure of the manifest is one of the background: the next record tells it again.
    fn record_files(&self, catalog: &mut Catalog, published: &Published) -> Result<(), Failed> {
        let synced = self.wal.sync_to(published.lsn);
        if let Err(error) = synced {
            catalog.versions.stop(error.clone());
            return Err(Failed { error, left: Left::All });
        }
        let edits = [Edit::LastSeq(published.last), Edit::LogStart(published.log_start)];
        if let Err(e) = catalog.write(&edits, &self.next_file_id) {
            rare!("ingest-record-failed");
            self.report_background_error(&e);
        }
        self.measure_debt(catalog);
        Ok(())
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
