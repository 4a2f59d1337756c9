//! What recovery is given, and what it returns.

use crate::catalog::Catalog;
use crate::family::{Family, TableCache};
use crate::options::Options;
use crate::txn::prepared::RecoveredPrepared;
use kingtide_base::SeqNo;
use kingtide_base::budget::Budget;
use kingtide_base::clock::Clock;
use kingtide_base::stats::Stats;
use kingtide_mem::ArenaPool;
use kingtide_versions::LogBegun;
use kingtide_vfs::Fs;
use kingtide_wal::RecoveredLog;
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
    pub catalog: Catalog,
    pub families: Vec<Arc<Family>>,
    pub default: Arc<Family>,
    /// The open gave it other options than were stored.
    pub default_changed: bool,
    /// [`kingtide_wal::Wal::open`] makes it durable.
    pub log: RecoveredLog,
    pub last_seq: SeqNo,
    pub next_file_id: u64,
    /// Transactions in doubt, oldest first.
    pub prepared: Vec<RecoveredPrepared>,
    /// Names of files that nothing refers to: see [`super::remove_orphans`].
    pub orphans: Vec<String>,
    /// When only reading: the manifest that was read is older than this record of the log needs, unless no writer was at work.
    pub misplaced_at: Option<SeqNo>,
}

impl Recovery<'_> {
    /// Whether the process that had the database open last ran in the machine's present boot.
    pub(super) fn is_same_boot(&self, log_begun: Option<LogBegun>) -> bool {
        log_begun.is_some_and(|begun| is_boot(begun.boot_id, &**self.fs))
    }
}

/// Whether the machine was not restarted since; zeros mean that the system does not tell.
pub(crate) fn is_boot(boot_id: [u8; 16], fs: &dyn Fs) -> bool {
    boot_id != [0; 16] && boot_id == fs.boot_id()
}
