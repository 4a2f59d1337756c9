//! Snapshots of earlier moments, and named ones.

use crate::api::Db;
use crate::snapshot::Snapshot;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Result, SeqNo};

impl Db {
    /// A snapshot of the moment at which `seq` was the newest sequence number: the result of a commit or of [`Snapshot::sequence`].
    /// A number within a batch, of which only the last is a commit's result, shows the batch's operations up to there. Takes a
    /// lock briefly.
    ///
    /// History is kept back to [`Db::oldest_readable_sequence`], which advances with flushes and compactions, and at every
    /// sequence number that a snapshot or a running transaction holds. To keep a moment readable, hold a snapshot of it
    /// ([`Db::snapshot`], [`Db::create_named_snapshot`]): moments between two held snapshots are not kept by them.
    ///
    /// # Errors
    /// `TooOld`, naming the oldest readable number; `InvalidArgument` for a number not committed yet; `Closed`.
    pub fn snapshot_at(&self, seq: SeqNo) -> Result<Snapshot> {
        self.inner().check_open()?;
        let floor = self.inner().read_floor.load(Ordering::Acquire); // with `exchange`
        if seq < floor {
            return Err(crate::api::ColumnFamily::overtaken(seq, floor));
        }
        self.inner().snapshots.acquire_at(seq)
    }

    /// The oldest sequence number at which [`Db::snapshot_at`] can read. All later ones up to [`Db::latest_sequence`] can be read too. After an
    /// open it is the newest one. A flush or compaction moves it to the number that was the newest when the job began, and so does the removal
    /// of tables that [`crate::ColumnFamily::reclaim_range`] requested.
    pub fn oldest_readable_sequence(&self) -> SeqNo {
        if self.check_process().is_err() {
            return self.latest_sequence(); // without a lock; no read is let through there
        }
        self.inner().snapshots.oldest_readable()
    }

    /// Takes a snapshot of the current state and keeps it under a name until [`Db::drop_named_snapshot`] or until the database closes:
    /// names are not stored. At most 1,024 names of at most 256 bytes.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// db.put("tide", "low")?;
    /// let before = db.create_named_snapshot("before the flood")?;
    /// db.put("tide", "high")?;
    /// assert_eq!(db.named_snapshots(), [("before the flood".to_string(), before.sequence())]);
    /// let again = db.snapshot_at(before.sequence())?;
    /// assert!(again.sequence() >= db.oldest_readable_sequence());
    /// assert_eq!(again.get(db.default_family(), "tide")?.as_deref(), Some(&b"low"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Exists`; `InvalidArgument` for an empty or too long name, or too many of them; `Closed`.
    pub fn create_named_snapshot(&self, name: &str) -> Result<Snapshot> {
        self.inner().check_open()?;
        self.inner().snapshots.name(name)
    }

    /// The snapshot of that name.
    ///
    /// # Errors
    /// `NotFound`, `Closed`.
    pub fn named_snapshot(&self, name: &str) -> Result<Snapshot> {
        self.inner().check_open()?;
        self.inner().snapshots.named(name)
    }

    /// The named snapshots with their sequence numbers, by name. None in a forked child.
    pub fn named_snapshots(&self) -> Vec<(String, SeqNo)> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        self.inner().snapshots.names()
    }

    /// Drops a named snapshot. Its handles stay valid.
    ///
    /// # Errors
    /// `NotFound`, `Closed`.
    pub fn drop_named_snapshot(&self, name: &str) -> Result<()> {
        self.inner().check_open()?;
        self.inner().snapshots.drop_name(name)
    }
}
