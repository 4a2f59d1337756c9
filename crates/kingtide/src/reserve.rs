//! Space that is kept for a full disk.
//!
//! To free space takes space: deletes go into the log, their memtable into a table, and a merge writes its output before its
//! inputs go. So a database that has grown keeps a file of nothing, a few percent of its size. When background work meets a
//! full disk, the file is removed and the space is *spent*: from then on commits that add data are refused, as they were
//! by the full disk, and those that only delete are taken, until deletes, or whoever else filled the disk, have freed so
//! much that the file can be made again.
//!
//! The file's name ends in `.tmp`: what a crash leaves of it, the next open removes.

use crate::commit::batch::WriteBatch;
use crate::engine::DbInner;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kingtide_base::stats::Stat;
use kingtide_base::{Error, ErrorKind, Kind, Result, Tag};
use kingtide_vfs::{Fs, OpenMode};
use std::path::PathBuf;
use std::sync::Arc;

/// Name of the file.
pub(crate) const RESERVE_FILE: &str = "RESERVE.tmp";

/// Tables and value logs below this size have no reserve.
const WORTH_IT: u64 = 16 << 20;

/// No reserve is larger.
const LARGEST: u64 = 256 << 20;

/// The reserve of a database.
pub(crate) struct Reserve {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    path: PathBuf,
    /// Bytes of the file; changed under `one`. Relaxed, as `spent`: hints.
    held: AtomicU64,
    spent: AtomicBool,
    /// One change at a time.
    one: Mutex<()>,
}

impl Reserve {
    pub fn new(fs: Arc<dyn Fs>, dir: &std::path::Path) -> Reserve {
        let (dir, path) = (dir.to_owned(), dir.join(RESERVE_FILE));
        Reserve { fs, dir, path, held: AtomicU64::new(0), spent: AtomicBool::new(false), one: Mutex::new(()) }
    }

    /// Whether the disk was full and has not been emptied since.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed)
    }

    /// Gives the space to those who free more of it.
    fn spend(&self) {
        let _one = self.one.lock();
        if self.held.load(Ordering::Relaxed) > 0 && self.fs.remove(&self.path).is_ok() {
            self.held.store(0, Ordering::Relaxed);
            self.spent.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the file away, at a close.
    pub fn remove(&self) {
        let _one = self.one.lock();
        if self.held.swap(0, Ordering::Relaxed) > 0 {
            let _ = self.fs.remove(&self.path);
        }
    }

    /// Makes or grows the file; once it was spent, only if `beside` bytes are free besides. That it cannot be made for want
    /// of space means that it is needed; other failures mean nothing.
    fn keep(&self, wanted: u64, beside: u64) {
        let is_enough = |held: u64| wanted == 0 || held > wanted / 2; // it grows seldom, and never a little
        if !self.is_spent() && is_enough(self.held.load(Ordering::Relaxed)) {
            return;
        }
        let _one = self.one.lock();
        let (held, spent) = (self.held.load(Ordering::Relaxed), self.is_spent());
        if !spent && is_enough(held) || spent && self.fs.free_space(&self.dir).unwrap_or(0) < wanted + beside {
            return;
        }
        let make = || {
            let mode = if held > 0 { OpenMode::Write } else { OpenMode::Overwrite };
            self.fs.open(&self.path, mode)?.allocate(0, wanted)
        };
        match if wanted > 0 { make() } else { Ok(()) } {
            Ok(()) => {
                self.held.store(wanted, Ordering::Relaxed);
                self.spent.store(false, Ordering::Relaxed);
            }
            Err(_) if held > 0 => {} // what there was is still there
            Err(e) => {
                let _ = self.fs.remove(&self.path);
                self.spent.store(e.kind() == ErrorKind::NoSpace, Ordering::Relaxed);
            }
        }
    }
}

impl DbInner {
    /// The space that flushes and merges of deletes need: a log segment, two memtables, and something for merges, but no
    /// more than an eighth of the database.
    fn reserve_wanted(&self) -> (u64, u64) {
        let stored = self.stats.get(Stat::KlogBytes) + self.stats.get(Stat::VlogBytes);
        let working = self.options.read().wal_segment_size + 2 * self.family_defaults.memtable_size;
        match stored < WORTH_IT {
            true => (0, working),
            false => ((working + stored / 32).min(stored / 8).min(LARGEST), working),
        }
    }

    /// Keeps the reserve as large as the database asks for, and makes it again once there is space. Cheap when there is
    /// nothing to do.
    pub fn keep_reserve(&self) {
        let (wanted, beside) = self.reserve_wanted();
        self.reserve.keep(wanted, beside);
    }

    /// Background work met a full disk: what is only kept for speed, and then the reserve, make room for the next try.
    pub fn make_room(&self) {
        let _ = self.wal.trim(0);
        self.tables.empty_trash();
        self.reserve.spend();
    }

    /// Refuses a commit that adds data while the reserve is spent.
    #[inline]
    pub fn check_space(&self, batch: &WriteBatch) -> Result<()> {
        if self.reserve.is_spent() { self.refuse_growth(batch) } else { Ok(()) }
    }

    #[cold]
    fn refuse_growth(&self, batch: &WriteBatch) -> Result<()> {
        let deletes = |kind: u8| {
            let tag = Tag(u64::from(kind));
            tag.is_tombstone() || tag.kind() == Some(Kind::RangeDelete)
        };
        if batch.ops().iter().all(|op| deletes(op.kind)) {
            return Ok(());
        }
        self.jobs.wake();
        let text = "the disk was full, and what space there is now is kept for deletes until they have freed some";
        Err(Error::new(ErrorKind::NoSpace, text).at_path(&self.dir))
    }
}
