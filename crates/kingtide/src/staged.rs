//! The value logs of values that come in pieces ([`crate::direct`]), from their creation until a memtable takes them: what
//! they take of the disk, and their end when the database is closed before a commit.

use crate::direct::DirectLog;
use crate::sync::Mutex;
use crate::version::FamilyId;
use std::sync::{Arc, Weak};

/// The files that no memtable has yet.
#[derive(Default)]
pub(crate) struct StagedLogs(Mutex<Logs>);

#[derive(Default)]
struct Logs {
    closed: bool,
    /// Also some that are gone, or that a memtable took.
    files: Vec<(FamilyId, Weak<DirectLog>)>,
}

impl StagedLogs {
    /// Notes a file. `false` once the database was closed: nobody else will remove it then.
    pub fn add(&self, family: FamilyId, log: &Arc<DirectLog>) -> bool {
        let mut logs = self.0.lock();
        logs.files.retain(|(_, log)| log.upgrade().is_some_and(|log| log.is_free()));
        if !logs.closed {
            logs.files.push((family, Arc::downgrade(log)));
        }
        !logs.closed
    }

    /// Bytes of the files of one family, or of all.
    pub fn bytes(&self, family: Option<FamilyId>) -> u64 {
        if kingtide_base::planted!("staged-space-not-counted") {
            return 0;
        }
        let logs = self.0.lock();
        let wanted = logs.files.iter().filter(|(of, _)| family.is_none_or(|family| family == *of));
        wanted.filter_map(|(_, log)| log.upgrade()).filter(|log| log.is_free()).map(|log| log.appended()).sum()
    }

    /// Takes no more files. Returns those that no memtable took, once no commit can.
    pub fn close(&self) -> Vec<Arc<DirectLog>> {
        let mut logs = self.0.lock();
        logs.closed = true;
        logs.files.drain(..).filter_map(|(_, log)| log.upgrade()).filter(|log| log.is_free()).collect()
    }
}
