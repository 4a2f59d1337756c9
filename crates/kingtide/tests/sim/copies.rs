//! Checkpoints and backups that are made while everything else goes on, and found after a cut.

use crate::sim::draws::options;
use crate::sim::history::{Copy, Found, History, Progress};
use crate::sim::plan::Plan;
use crate::sim::world::{DIR, World, read};
use kingtide::backup::{Backup, BackupOptions};
use kingtide::vfs::{Fs, MemFs};
use kingtide::{Db, ErrorKind, ManualClock, Result};
use std::path::PathBuf;
use std::sync::Arc;

/// Copies of each kind that a scenario makes at most.
const COPIES: usize = 3;
/// Where backups are.
const BACKUPS: &str = "/backups";

fn checkpoint_dir(number: u64) -> PathBuf {
    format!("/checkpoint-{number}").into()
}

impl World {
    fn copies(&self, backups: bool) -> usize {
        self.edit(|p| p.copies.iter().filter(|c| c.is_backup == backups).count())
    }

    /// Makes a copy: in the making until `make` returned its number.
    fn copy(&mut self, is_backup: bool, make: impl FnOnce(&mut World, u64) -> Result<u64>) -> Result<()> {
        if self.copies(is_backup) >= COPIES || self.edit(|p| p.changing.is_some()) {
            return self.flush();
        }
        let number = self.steps;
        let families = self.families.iter().map(|(name, f)| (name.clone(), f.0)).collect();
        let copy = Copy { number, is_backup, events: self.begun(), epoch: self.epoch(), families };
        self.edit(|p| p.copying = Some(copy.clone()));
        let made = make(self, number);
        self.edit(|p| p.copying = None);
        let copy = Copy { number: made?, ..copy };
        self.edit(|p| p.copies.push(copy.clone()));
        let progress = Progress { copies: vec![copy], ..Progress::default() };
        check_copies(&self.plan, &self.history, &progress, &self.disk, self.clock_ms());
        Ok(())
    }

    pub fn checkpoint(&mut self) -> Result<()> {
        self.copy(false, |world, number| world.db().checkpoint(checkpoint_dir(number)).map(|_| number))
    }

    pub fn backup(&mut self) -> Result<()> {
        self.copy(true, |world, _| {
            let flush = world.rng.one_in(2);
            let backups = Backup::on(Arc::new(world.faults.clone()), BACKUPS);
            let made = backups.create(world.db(), BackupOptions::new().flush(flush))?;
            Ok(made.id)
        })
    }
}

impl World {
    /// The copies that were acknowledged are there after a crash, and whole.
    pub fn check_acknowledged_copies(&self) {
        let progress = Progress { copies: self.edit(|p| p.copies.clone()), ..Progress::default() };
        check_copies(&self.plan, &self.history, &progress, &self.disk, self.clock_ms());
    }
}

/// All copies that were acknowledged hold what the database held at their moment; so does the one that was in the making,
/// or it says that it is unfinished.
pub fn check_copies(plan: &Plan, history: &History, progress: &Progress, disk: &MemFs, now: u64) -> u64 {
    if progress.copies.is_empty() && progress.copying.is_none() {
        return 0;
    }
    let disk = disk.kill_clone();
    disk.set_capacity(None);
    for copy in &progress.copies {
        let dir = match copy.is_backup {
            false => checkpoint_dir(copy.number),
            true => restore(&disk, copy.number),
        };
        assert!(open_copy(plan, history, &disk, dir, copy, now), "{copy:?} is gone");
    }
    if let Some(copy) = &progress.copying {
        check_unfinished(plan, history, progress, &disk, copy, now);
    }
    progress.copies.len() as u64
}

fn check_unfinished(plan: &Plan, history: &History, progress: &Progress, disk: &MemFs, copy: &Copy, now: u64) {
    if !copy.is_backup {
        open_copy(plan, history, disk, checkpoint_dir(copy.number), copy, now);
        return;
    }
    let known = |id: &u64| progress.copies.iter().any(|c| c.is_backup && c.number == *id);
    let ids = match Backup::on(Arc::new(disk.clone()), BACKUPS).ids() {
        Ok(ids) => ids,
        Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
        Err(e) => panic!("backups: {e:?}"),
    };
    for id in ids.into_iter().filter(|id| !known(id)) {
        let dir = restore(disk, id);
        assert!(open_copy(plan, history, disk, dir, copy, now), "a restored backup is unfinished");
    }
}

fn restore(disk: &MemFs, id: u64) -> PathBuf {
    let dir = PathBuf::from(format!("/restored-{id}"));
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let backups = Backup::on(fs.clone(), BACKUPS);
    backups.verify(id, BackupOptions::default()).unwrap_or_else(|e| panic!("verify backup {id}: {e:?}"));
    let restored = backups.restore_to(id, &fs, &dir, BackupOptions::default());
    restored.unwrap_or_else(|e| panic!("restore backup {id}: {e:?}"));
    dir
}

/// Opens a copy and compares it. False if it is unfinished or not there.
fn open_copy(plan: &Plan, history: &History, disk: &MemFs, dir: PathBuf, copy: &Copy, now: u64) -> bool {
    assert_ne!(dir, PathBuf::from(DIR));
    let mut options = options(plan, Arc::new(disk.clone()), ManualClock::at_unix_ms(now), now ^ copy.number << 32);
    options.db.create_if_missing = false;
    let db = match Db::open(&dir, options) {
        Ok(db) => db,
        Err(e) if e.kind() == ErrorKind::NotFound || e.message().contains("unfinished copy") => return false,
        Err(e) => panic!("open {}: {e:?}", dir.display()),
    };
    assert!(db.families().iter().eq(copy.families.keys()), "families of {}", dir.display());
    let found = read(&db, &copy.families);
    let (n, epoch) = (copy.events, copy.epoch);
    let expected = Found {
        contents: copy.families.values().map(|no| (*no, history.state(*no, n, n, epoch, 0).visible(now))).collect(),
        in_doubt: found.in_doubt.clone(),
    };
    assert!(found == expected, "{} is not as the database was after {n} events", dir.display());
    assert!(history.in_doubt(n, epoch).iter().eq(found.in_doubt.keys()), "in doubt in {}", dir.display());
    true
}
