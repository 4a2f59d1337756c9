//! What all checks share.

use super::report::{MAX_PROBLEMS, Problem, Progress, ProgressFn, VerifyReport};
use kingtide_base::stats::Stats;
use kingtide_base::{Error, ErrorKind, Result};
use kingtide_mem::cache::BlockCache;
use kingtide_vfs::{File, Fs, OpenMode};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What all checks share.
pub(crate) struct Checker<'a, 'p> {
    pub fs: &'a Arc<dyn Fs>,
    pub dir: &'a Path,
    pub report: VerifyReport,
    /// Files that are open already, and whose names another process may have removed.
    pub held: HashMap<PathBuf, Arc<dyn File>>,
    /// Holds nothing: what is read comes from the files.
    pub cache: Arc<BlockCache>,
    pub stats: Arc<Stats>,
    /// Problems of each severity that the report lists.
    listed: [usize; 3],
    progress: &'a mut ProgressFn<'p>,
    total: u64,
    told: u64,
}

impl<'a, 'p> Checker<'a, 'p> {
    /// Bytes between two calls of the progress function.
    const STEP: u64 = 1 << 20;

    pub fn new(fs: &'a Arc<dyn Fs>, dir: &'a Path, progress: &'a mut ProgressFn<'p>) -> Checker<'a, 'p> {
        let stats = Arc::new(Stats::default());
        let cache = BlockCache::new(0, 1, stats.clone());
        Checker {
            fs,
            dir,
            report: VerifyReport::default(),
            held: HashMap::new(),
            cache,
            stats,
            listed: [0; 3],
            progress,
            total: 0,
            told: 0,
        }
    }

    /// Opens a file for reading.
    pub fn open(&self, path: &Path) -> Result<Arc<dyn File>> {
        match self.held.get(path) {
            Some(file) => Ok(file.clone()),
            None => self.fs.open(path, OpenMode::Read),
        }
    }

    /// Lists a problem, or counts it. Each severity has a limit of its own, so that many warnings neither hide damage nor count as damage.
    pub fn problem(&mut self, problem: Problem) {
        let listed = &mut self.listed[problem.severity as usize];
        if *listed < MAX_PROBLEMS {
            *listed += 1;
            self.report.problems.push(problem);
        } else {
            self.report.unlisted += 1;
        }
    }

    /// Announces what there is to read.
    pub fn expect_bytes(&mut self, bytes: u64) {
        self.total += bytes;
    }

    /// Tells that bytes were read.
    ///
    /// # Errors
    /// `Cancelled` when the progress function says so.
    pub fn advance(&mut self, bytes: u64) -> Result<()> {
        self.report.counts.bytes += bytes;
        if self.report.counts.bytes - self.told < Self::STEP {
            return Ok(());
        }
        self.tell()
    }

    /// Tells how far it has come.
    ///
    /// # Errors
    /// `Cancelled` when the progress function says so.
    pub fn tell(&mut self) -> Result<()> {
        self.told = self.report.counts.bytes;
        let fraction = (self.told as f64 / self.total.max(1) as f64).min(1.0);
        let progress = Progress { fraction, bytes: self.told, total_bytes: self.total.max(self.told) };
        if (self.progress)(progress) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Cancelled, "verification was cancelled").at_path(self.dir))
    }

    pub fn finish(mut self) -> Result<VerifyReport> {
        self.total = self.report.counts.bytes;
        self.tell()?;
        Ok(self.report)
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::{ProblemKind, Severity};
    use super::*;
    use kingtide_vfs::MemFs;

    #[test]
    fn however_many_warnings_are_no_damage_and_hide_none() {
        let fs: Arc<dyn Fs> = MemFs::shared();
        let mut progress = |_: Progress| true;
        let mut checker = Checker::new(&fs, Path::new("db"), &mut progress);
        let found = |checker: &mut Checker, severity, n| {
            (0..n).for_each(|_| checker.problem(Problem::new(severity, ProblemKind::Orphan, "found")));
        };
        found(&mut checker, Severity::Info, MAX_PROBLEMS + 1);
        assert!(checker.report.is_clean() && checker.report.unlisted == 1);
        found(&mut checker, Severity::Warning, MAX_PROBLEMS + 2);
        assert!(!checker.report.is_clean() && !checker.report.is_damaged() && checker.report.unlisted == 3);
        found(&mut checker, Severity::Error, 1);
        assert!(checker.report.is_damaged());
        assert_eq!(checker.report.problems.last().map(|p| p.severity), Some(Severity::Error));
    }
}
