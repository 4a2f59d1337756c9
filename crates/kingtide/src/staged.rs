//! The value logs that commits and values in pieces write ([`crate::direct`]), from their creation until a memtable takes them: what
//! those of values in pieces take of the disk, and their end when the database is closed before a commit.

use crate::direct::DirectLog;
use kingtide_base::FamilyId;
use kingtide_base::sync::{Mutex, RwLock};
use std::sync::{Arc, Weak};

/// The files that no memtable has yet.
#[derive(Default)]
pub(crate) struct StagedLogs {
    /// Read while a file is made and noted.
    making: RwLock<()>,
    /// Those of transactions in doubt too; also some that are gone, or that a memtable took.
    files: Mutex<Vec<(FamilyId, Weak<DirectLog>)>>,
}

impl StagedLogs {
    /// With the files of transactions in doubt.
    pub fn recovered<'a>(files: impl Iterator<Item = (FamilyId, &'a Arc<DirectLog>)>) -> StagedLogs {
        let logs = StagedLogs::default();
        files.for_each(|(family, log)| logs.add(family, log));
        logs
    }

    /// To be held from a look whether the database is open until the file is noted: a close waits for that, or the file
    /// would be made in a directory that is another's by then.
    pub fn begin(&self) -> impl Sized + '_ {
        self.making.read()
    }

    /// Notes a file.
    pub fn add(&self, family: FamilyId, log: &Arc<DirectLog>) {
        let mut files = self.files.lock();
        files.retain(|(_, log)| log.upgrade().is_some_and(|log| log.is_staged()));
        files.push((family, Arc::downgrade(log)));
    }

    /// Bytes of the values in pieces of one family, or of all.
    pub fn bytes(&self, family: Option<FamilyId>) -> u64 {
        let files = self.files.lock();
        let wanted = files.iter().filter(|(of, _)| family.is_none_or(|family| family == *of));
        wanted.filter_map(|(_, log)| log.upgrade()).filter(|log| log.is_staged()).map(|log| log.appended()).sum()
    }

    /// The files that neither a memtable nor a prepared transaction took, for a close that has ended commits and
    /// [`StagedLogs::begin`].
    pub fn end(&self) -> Vec<Arc<DirectLog>> {
        drop(self.making.write()); // those that are being made are noted now
        self.files.lock().drain(..).filter_map(|(_, log)| log.upgrade()).filter(|log| log.is_free()).collect()
    }
}
