//! Which names of the log's directory are durable.
//!
//! A segment may become the active one before its name is durable, so that no writer waits for a sync of the directory.
//! What must not happen before the name is durable:
//!
//! | what | prevented by |
//! |---|---|
//! | a record in the segment counts as synced, and with it every commit that waits for `Power` | the leader of a group commit, before it syncs the segment |
//! | the end mark of the segment before names the segment | [`DurableNames::mark_when_durable`] |
//! | the manifest names it | `begin_log`, which syncs the names first |
//! | an older segment is given up | [`super::Wal::release_beyond`] |
//! | recovery builds on what it read | [`super::RecoveredLog`] |
//!
//! Until then a power cut may take the file, and that of its successor may stay: the header of that one says that this can
//! be so, and recovery ends the log before the file that is gone.
//!
//! Names are counted: each file made or renamed takes the next number, and a sync of the directory makes durable every
//! number taken before it began.

use super::segment::RECORD_HEADER_LEN;
use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicU64, Ordering};
use kingtide_base::{Result, rare};
use kingtide_vfs::{File, Fs, sync_dir_patiently};
use std::path::PathBuf;
use std::sync::Arc;

/// The end mark of a segment, which names the next one.
#[derive(Debug)]
pub(super) struct EndMark {
    pub file: Arc<dyn File>,
    pub at: u64,
    pub bytes: [u8; RECORD_HEADER_LEN],
    /// The number of the name of the segment that it names.
    pub name: u64,
}

impl EndMark {
    fn write(&self) {
        // Recovery finds the end in the next segment's header too. The mark tells it that there must be a next segment.
        let _ = self.file.write_at(&self.bytes, self.at);
    }
}

#[derive(Debug)]
pub(super) struct DurableNames {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// Changes of names so far.
    made: AtomicU64,
    /// So many of them are durable.
    synced: AtomicU64,
    /// One sync at a time: the next thread may find that its name is durable. A failure stays: see
    /// [`super::WalConfig::fs`].
    syncing: Mutex<()>,
    /// Marks that name a segment whose name is not durable. `synced` grows under this lock, so that no mark stays behind, to be
    /// written into a segment that was given up.
    marks: Mutex<Vec<EndMark>>,
}

impl DurableNames {
    pub fn new(fs: Arc<dyn Fs>, dir: PathBuf) -> DurableNames {
        let (made, synced) = (AtomicU64::new(0), AtomicU64::new(0));
        DurableNames { fs, dir, made, synced, syncing: Mutex::default(), marks: Mutex::default() }
    }

    /// Counts a name that was made, or went, just now. Returns its number.
    pub fn changed(&self) -> u64 {
        // Release, with the Acquire in `sync`: the change comes before the sync that covers its number.
        self.made.fetch_add(1, Ordering::Release) + 1
    }

    /// The number of the newest change.
    pub fn newest(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }

    pub fn is_durable(&self, name: u64) -> bool {
        self.synced.load(Ordering::Acquire) >= name
    }

    /// Writes an end mark, as soon as the name that it names is durable.
    pub fn mark_when_durable(&self, mark: EndMark) {
        let mut marks = self.marks.lock();
        match self.is_durable(mark.name) {
            true => mark.write(),
            false => marks.push(mark),
        }
    }

    /// Makes everything up to the change `name` durable. `patient`: waits a second for a file descriptor.
    pub fn sync(&self, name: u64, patient: bool) -> Result<()> {
        if self.is_durable(name) {
            return Ok(());
        }
        let _one = self.syncing.lock();
        if self.is_durable(name) {
            rare!("log-names-synced-together");
            return Ok(());
        }
        let made = self.newest();
        let synced = match patient {
            true => sync_dir_patiently(&*self.fs, &self.dir),
            false => self.fs.sync_dir(&self.dir),
        };
        synced?;
        let mut marks = self.marks.lock();
        marks.extract_if(.., |mark| mark.name <= made).for_each(|mark| mark.write());
        self.synced.store(made, Ordering::Release); // with the Acquire in `is_durable`
        Ok(())
    }
}
