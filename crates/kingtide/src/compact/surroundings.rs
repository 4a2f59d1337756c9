//! What the jobs of a database share, whatever family they work on; and the one place that makes a job's context of it.

use super::context::{FlushInput, MergeContext, RateLimiter};
use crate::family::TableCache;
use crate::memtable::FamilyMemtable;
use kingtide_base::budget::Budget;
use kingtide_base::options::FamilyOptions;
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64};
use kingtide_base::{Error, KeyOrder, SeqNo};
use kingtide_versions::{FileMeta, Version};
use kingtide_vfs::Fs;
use std::path::Path;
use std::sync::Arc;

/// What a job finds around it. The fields are those of [`MergeContext`].
#[derive(Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub fs: &'a Arc<dyn Fs>,
    pub dir: &'a Path,
    /// Opens what the job reads. `None`: it reads no table and no value log of the database.
    pub tables: Option<&'a Arc<TableCache>>,
    pub next_file: &'a AtomicU64,
    pub now_ms: u64,
    pub limiter: Option<&'a RateLimiter>,
    pub memory: Option<&'a Arc<Budget>>,
    pub cancelled: &'a AtomicBool,
    pub may_cancel: bool,
    pub poll_interval: usize,
    pub restart_interval: usize,
    pub raised_below: SeqNo,
    pub keeps_from: u64,
}

impl Surroundings<'_> {
    /// Gives `job` the context of work on a family that has the `version`, for readers at `snapshots`. The caller lists
    /// these when the input is fixed.
    pub fn with_context<R>(
        &self,
        (order, options): (&KeyOrder, &FamilyOptions),
        snapshots: Vec<SeqNo>,
        version: Arc<Version>,
        job: impl FnOnce(&MergeContext<'_>) -> R,
    ) -> R {
        let tables = || self.tables.ok_or_else(|| Error::invalid("this job reads no files of the database"));
        let open_table = |meta: &FileMeta| tables()?.handle(&Arc::new(meta.clone()), order).table();
        let open_vlog = |id: u64| tables()?.vlog(id);
        job(&MergeContext {
            fs: self.fs.clone(),
            dir: self.dir,
            order: order.clone(),
            options,
            next_file: self.next_file,
            snapshots,
            now_ms: self.now_ms,
            version,
            raised_below: self.raised_below,
            keeps_from: self.keeps_from,
            open_table: &open_table,
            open_vlog: &open_vlog,
            limiter: self.limiter,
            memory: self.memory,
            cancelled: self.cancelled,
            may_cancel: self.may_cancel,
            poll_interval: self.poll_interval,
            restart_interval: self.restart_interval,
        })
    }
}

impl FlushInput<'_> {
    /// Everything in memtables, newest first, as run `run`. Values that were written once move, unless the caller knows
    /// that tables may refer to their logs.
    pub(crate) fn of(memtables: &[Arc<FamilyMemtable>], run: u64) -> Self {
        FlushInput {
            memtables: memtables.iter().map(|m| m.points().iter()).collect(),
            tombstones: memtables.iter().map(|m| m.range_list()).collect(),
            run,
            last: 0,
            relocate: memtables.iter().flat_map(|m| m.direct().ids()).collect(),
            hidden: None,
        }
    }
}
