//! Opening for reading only, also while another process writes.
//!
//! A reader takes no lock and changes no byte. It reads the manifest, then the log, then opens every file that the manifest
//! names and keeps it open, so that files which the writer deletes later can be read on. The writer does not wait for it:
//! what was read may have been overtaken, so that a table or a segment is gone, or a record appears behind the place
//! where the log seemed to end. A reader that finds something missing or damaged reads everything once more, as long
//! as the writer was at work meanwhile; damage stays, being overtaken does not. Nothing is missing or damaged where files that
//! the log names rely on a flush or merge that only a newer manifest has: they would lie below older versions of their keys.
//! `recover::families` finds that out.
//!
//! Catching up reads anew and exchanges all families' views. A snapshot taken before would miss what merges dropped since,
//! so reads at it are refused from then on; iterators keep the views that they began with.

use crate::engine::DbInner;
use crate::family::Family;
use crate::recover::{Recovered, Recovery};
use crate::txn::prepared::PreparedTable;
use kingtide_base::names::{CURRENT, manifest_path, parse_manifest_name, segment_path};
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, ErrorKind, Result, SeqNo, rare};
use kingtide_versions::ManifestScan;
use kingtide_vfs::{Fs, OpenMode};
use kingtide_wal::{SEGMENT_HEADER_LEN, list_segments};
use std::path::Path;
use std::sync::Arc;

/// Tries after which something missing or damaged is reported although the writer is at work.
const MOST_TRIES: u32 = 200;
/// Tries at least, because not everything that a writer does changes what [`Progress`] sees.
const LEAST_TRIES: u32 = 4;

/// What shows that a writer is at work.
#[derive(PartialEq, Eq)]
struct Progress {
    current: Vec<u8>,
    manifest_len: u64,
    /// With what their headers hold: a spare that comes into use keeps its name.
    segments: Vec<(u64, Vec<u8>)>,
}

impl Progress {
    /// As far as it can be read.
    fn now(fs: &dyn Fs, dir: &Path) -> Progress {
        let mut current = vec![0; 128];
        let read = fs.open(&dir.join(CURRENT), OpenMode::Read).and_then(|f| f.read_at(&mut current, 0));
        current.truncate(read.unwrap_or(0));
        let name = current.split(|b| *b == b' ').next().and_then(|n| std::str::from_utf8(n).ok());
        let manifest = name.and_then(parse_manifest_name).map(|n| manifest_path(dir, n));
        let manifest_len = manifest.and_then(|p| fs.open(&p, OpenMode::Read).ok()?.len().ok()).unwrap_or(0);
        let header = |id: u64| {
            let mut bytes = vec![0; SEGMENT_HEADER_LEN];
            let read = fs.open(&segment_path(dir, id), OpenMode::Read).and_then(|f| f.read_at(&mut bytes, 0));
            bytes.truncate(read.unwrap_or(0));
            (id, bytes)
        };
        let segments = list_segments(fs, dir).unwrap_or_default().into_iter().map(header).collect();
        Progress { current, manifest_len, segments }
    }
}

/// Whether what is missing or damaged may be so because a writer was at work since `before`: to be read again after so many tries.
fn may_be_overtaken(tries: u32, before: &Progress, fs: &dyn Fs, dir: &Path) -> bool {
    tries < MOST_TRIES && (tries < LEAST_TRIES || *before != Progress::now(fs, dir))
}

/// Reads the manifest of a database that another process may be writing, again while it is overtaken.
///
/// # Errors
/// As [`ManifestScan::read`].
pub(crate) fn scan_beside_writer(fs: &dyn Fs, dir: &Path) -> Result<ManifestScan> {
    let mut tries = 0;
    loop {
        let before = Progress::now(fs, dir);
        let scan = ManifestScan::read(fs, dir)?;
        tries += 1;
        let is_whole = scan.damage.is_empty() && scan.torn_at.is_none();
        if is_whole || !may_be_overtaken(tries, &before, fs, dir) {
            return Ok(scan);
        }
    }
}

impl Recovery<'_> {
    /// Reads the database's state and opens all of its files, again while a writer overtakes it.
    pub(crate) fn read(&self) -> Result<Recovered> {
        let mut tries = 0;
        loop {
            let before = Progress::now(&**self.fs, self.dir);
            let found = self.run().and_then(|recovered| open_files(&recovered.families).map(|()| recovered));
            tries += 1;
            let e = match found {
                // A value that is not there was in a log that the writer gave up meanwhile, or a crash took it.
                Ok(recovered)
                    if recovered.log.end.missing && may_be_overtaken(tries, &before, &**self.fs, self.dir) =>
                {
                    continue;
                }
                // Files in the log rely on what a newer manifest says of memtables and tables with keys of theirs.
                Ok(Recovered { misplaced_at: Some(_), .. })
                    if may_be_overtaken(tries, &before, &**self.fs, self.dir) =>
                {
                    rare!("read-only-older-manifest");
                    continue;
                }
                Ok(Recovered { misplaced_at: Some(seq), .. }) if before != Progress::now(&**self.fs, self.dir) => {
                    let text = format!(
                        "the writer adds files faster than a reader can read the manifest and the log, which has some at sequence {seq}"
                    );
                    return Err(Error::new(ErrorKind::Busy, text).at_path(self.dir));
                }
                Ok(recovered) => return Ok(recovered),
                Err(e) => e,
            };
            let overtaken = matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NotFound)
                && may_be_overtaken(tries, &before, &**self.fs, self.dir);
            if !overtaken {
                return Err(e);
            }
            rare!("read-only-overtaken");
        }
    }
}

/// Opens every table and value log.
fn open_files(families: &[Arc<Family>]) -> Result<()> {
    for family in families {
        let view = family.view.load();
        view.runs.iter().flat_map(|r| r.files.iter()).try_for_each(|slot| slot.handle.open_all())?;
    }
    Ok(())
}

impl DbInner {
    /// See [`crate::Db::try_catch_up`].
    pub(crate) fn catch_up(&self) -> Result<SeqNo> {
        self.check_origin()?; // before any lock: in a forked child, no thread may be left to release it
        let Some(read_only) = &self.read_only else {
            return Err(Error::invalid("only a database that was opened read-only can catch up"));
        };
        let _one_at_a_time = read_only.catching_up.lock();
        self.check_open()?;
        let recovery = Recovery {
            dir: &self.dir,
            fs: &self.fs,
            options: &read_only.options,
            clock: &self.clock,
            stats: &self.stats,
            tables: &self.tables,
            arenas: &self.arenas,
            memory: &self.memory,
            read_only: true,
        };
        let recovered = recovery.read()?;
        let seq = recovered.last_seq;
        let same = recovered.catalog.versions.manifest.db_id() == self.catalog.lock().versions.manifest.db_id();
        if !same || seq < self.snapshots.visible() {
            let text = "another database, or an earlier state of this one, is in the directory now: open it anew";
            return Err(Error::new(ErrorKind::Incompatible, text).at_path(&self.dir));
        }
        self.exchange(recovered);
        self.accountant.balance();
        Ok(seq)
    }

    /// Puts another state in the place of the present one.
    fn exchange(&self, recovered: Recovered) {
        let seq = recovered.last_seq;
        let mut catalog = self.catalog.lock();
        let mut commit = self.commit.lock();
        let mut next = recovered.catalog;
        let exchanging = Exchanging::begin(catalog.families.values().cloned().collect());
        self.snapshots.advance(seq, || {
            // Release, before any view: pairs with the Acquire of a read at a snapshot, which comes after its view.
            self.read_floor.store(seq, Ordering::Release);
            for (id, family) in &mut next.families {
                if let Some(known) = catalog.families.get(id) {
                    known.take_over(family);
                    *family = known.clone();
                }
            }
        });
        drop(exchanging);
        for gone in catalog.families.values().filter(|f| !next.families.contains_key(&f.id())) {
            gone.mark_dropped();
        }
        commit.last_seq = seq;
        commit.families = next.families.values().cloned().collect();
        self.prepared.replace(PreparedTable::new(recovered.prepared, 0));
        *catalog = next;
        catalog.update_gauges(&catalog.vlog_space(), self.staged.bytes(None), &self.stats);
    }
}

/// Families whose views are being exchanged, until it is dropped.
struct Exchanging(Vec<Arc<Family>>);

impl Exchanging {
    fn begin(families: Vec<Arc<Family>>) -> Exchanging {
        families.iter().for_each(|f| f.begin_exchange());
        Exchanging(families)
    }
}

impl Drop for Exchanging {
    fn drop(&mut self) {
        self.0.iter().for_each(|f| f.exchanged());
    }
}

impl Family {
    /// Takes the state of the same family as it was read again. The default family keeps the options given to open.
    fn take_over(&self, other: &Family) {
        let _one_at_a_time = self.view_lock.lock();
        if self.name() != other.name() {
            self.rename(&other.name());
        }
        self.set_options((*other.options()).clone());
        self.flushed_seq.store(other.flushed_seq.load(Ordering::Relaxed), Ordering::Relaxed);
        self.view.store(other.view.load_full());
    }
}
