//! Target: a directory of backups, in which a manifest or a file of the pool is hostile.

use crate::edit::{FIT, FORGE, Input, RAW, Trust};
use crate::examine::Examination;
use crate::sample::{self, DIR, Sample};
use crate::{forge, must};
use kingtide::backup::{Backup, BackupOptions};
use kingtide::vfs::{Fs, MemFs};
use kingtide::{Db, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

const BACKUPS: &str = "backup";

/// A directory with one backup of the killed sample.
fn good() -> &'static MemFs {
    static GOOD: OnceLock<MemFs> = OnceLock::new();
    GOOD.get_or_init(|| {
        let fs = sample::get(true).copy();
        let db = must(Db::open(DIR, sample::options(&fs)), "the sample");
        let backup = Backup::on(Arc::new(fs.clone()), BACKUPS);
        must(backup.create(&db, BackupOptions::default()), "a backup");
        drop(db);
        fs.kill_clone()
    })
}

/// The files of the good directory: the manifest first, then the pool.
fn files() -> Vec<PathBuf> {
    let mut all = Vec::new();
    for part in ["backups", "pool"] {
        let dir = Path::new(BACKUPS).join(part);
        all.extend(must(good().list(&dir), "list").into_iter().map(|n| dir.join(n)));
    }
    all
}

/// Directories of backups.
pub fn backup(data: &[u8]) {
    let Some(case) = Case::new(data) else { return };
    case.examine();
}

/// A directory of backups with a hostile file in it.
pub struct Case {
    /// The file system.
    pub fs: MemFs,
    trust: Trust,
    /// Bytes of the largest file.
    pub largest: u64,
}

impl Case {
    /// What an input makes of the good directory. `None` if it lacks a head.
    pub fn new(data: &[u8]) -> Option<Case> {
        let input = Input::parse(data)?;
        let files = files();
        // Half of all inputs are about the manifest.
        let at = if input.file.is_multiple_of(2) { 0 } else { input.file / 2 % files.len() };
        let (fs, path) = (good().kill_clone(), &files[at]);
        let bytes = sample::read(&fs, path);
        let in_pool = path.parent().is_some_and(|p| p.ends_with("pool"));
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let inner = name.splitn(3, '-').nth(2).unwrap_or_default().to_owned();
        let (bytes, trust) = input.apply(&bytes, |bytes| match in_pool {
            true => forge::file(Path::new(&inner), bytes, input.has(FIT)),
            false => forge::backup(bytes),
        });
        sample::replace(&fs, path, &bytes);
        if in_pool && input.has(FORGE | RAW) {
            must(fs.rename(path, &path.with_file_name(forge::pool_name(&bytes, &inner))), "rename");
            if let Some(manifest) = forge::with_file(&sample::read(&fs, &files[0]), &inner, &bytes) {
                sample::replace(&fs, &files[0], &manifest);
            }
        }
        let largest = files.iter().map(|f| sample::read(good(), f).len()).max().unwrap_or_default().max(bytes.len());
        Some(Case { fs, trust, largest: largest as u64 })
    }

    /// Lists, verifies, restores and deletes.
    pub fn examine(&self) {
        let sample: &Sample = sample::get(true);
        let backup = Backup::on(Arc::new(self.fs.clone()), BACKUPS);
        let _ = backup.list();
        for id in must(backup.ids(), "ids") {
            let _ = backup.info(id);
            let verified = backup.verify(id, BackupOptions::default());
            let target = MemFs::new();
            let on: Arc<dyn Fs> = Arc::new(target.clone());
            let restored = backup.restore_to(id, &on, DIR, BackupOptions::default());
            if self.trust == Trust::Damaged {
                let kinds = [&verified, &restored].map(|r| r.as_ref().err().map(|e| e.kind()));
                let expected = |k: &Option<ErrorKind>| {
                    matches!(k, None | Some(ErrorKind::Corruption | ErrorKind::NewerFormat | ErrorKind::NotFound))
                };
                assert!(kinds.iter().all(expected) && verified.is_ok() == restored.is_ok(), "{kinds:?}");
            }
            if restored.is_ok() {
                let examination = Examination { sample, trust: self.trust, torn: false };
                examination.open(&target, false);
            }
        }
        let _ = backup.purge(0);
    }
}
