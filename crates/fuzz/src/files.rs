//! Targets of a database's files: an input edits one of them, and everything that reads such files reads it.

use crate::edit::{COMPACT, FIT, FORGE, Input, KILLED, RAW, READ_ONLY, REPAIR, Trust, VERIFY};
use crate::examine::Examination;
use crate::sample::{self, DIR};
use crate::{forge, must};
use kingtide::vfs::{Fs, MemFs, OpenMode};
use std::path::{Path, PathBuf};

/// Segments of the write-ahead log.
pub fn wal(data: &[u8]) {
    hostile(data, &[".wal"]);
}

/// Tables.
pub fn klog(data: &[u8]) {
    hostile(data, &[".klog"]);
}

/// Value logs.
pub fn vlog(data: &[u8]) {
    hostile(data, &[".vlog"]);
}

/// The manifest, and the file that names it.
pub fn manifest(data: &[u8]) {
    hostile(data, &["MANIFEST", "CURRENT"]);
}

fn hostile(data: &[u8], kinds: &[&str]) {
    if let Some(case) = Case::new(data, kinds) {
        case.examine();
    }
}

/// A copy of the sample with a hostile file in it.
pub struct Case<'a> {
    input: Input<'a>,
    /// The database.
    pub fs: MemFs,
    /// The hostile file.
    pub path: PathBuf,
    /// What may be believed of it.
    pub trust: Trust,
    /// Bytes of the largest file of the database.
    pub largest: u64,
}

impl<'a> Case<'a> {
    /// What an input makes of the files with one of these parts of names. `None` if it lacks a head.
    pub fn new(data: &'a [u8], kinds: &[&str]) -> Option<Case<'a>> {
        let input = Input::parse(data)?;
        let sample = sample::get(input.has(KILLED));
        let files: Vec<PathBuf> = kinds.iter().flat_map(|k| sample.files(k)).collect();
        let path = files.get(input.file % files.len().max(1))?.clone();
        let good = sample.bytes(&path);
        let (bytes, mut trust) = input.apply(&good, |bytes| forge::file(&path, bytes, input.has(FIT)));
        let fs = sample.copy();
        if path.extension().is_some_and(|e| e == "wal") {
            // A segment keeps its size, unless the edit was to cut it.
            let size = must(must(fs.open(&path, OpenMode::Read), "open").len(), "length");
            sample::replace(&fs, &path, &bytes);
            if bytes.len() >= good.len() {
                must(must(fs.open(&path, OpenMode::Write), "open").truncate(size.max(bytes.len() as u64)), "extend");
            }
        } else {
            sample::replace(&fs, &path, &bytes);
        }
        if shifts(input.rest) && !input.has(RAW | FORGE) && kinds[0] != ".klog" && kinds[0] != ".vlog" {
            // Records that moved look like none at all, as after a power cut.
            trust = Trust::Forged;
        }
        let size = |p: &Path| fs.open(p, OpenMode::Read).and_then(|f| f.len()).unwrap_or_default();
        let largest = sample.files("").iter().map(|p| size(p)).max().unwrap_or_default();
        Some(Case { input, fs, path, trust, largest })
    }

    /// Reads it in the ways that the input asks for.
    pub fn examine(&self) {
        let sample = sample::get(self.input.has(KILLED));
        let examination =
            Examination { sample, trust: self.trust, torn: self.path.extension().is_some_and(|e| e == "wal") };
        examination.dump(&self.fs, &self.path);
        examination.open(&self.fs, self.input.has(COMPACT));
        if self.input.has(VERIFY) {
            examination.verify(&self.fs);
        }
        if self.input.has(READ_ONLY) {
            examination.open_read_only(&self.fs);
        }
        if self.input.has(REPAIR) {
            examination.repair(&self.fs, Path::new(DIR));
        }
    }
}

/// Whether the first edit moves what is behind it.
fn shifts(edits: &[u8]) -> bool {
    edits.first().is_some_and(|kind| matches!(kind & 7, 3 | 4 | 6 | 7))
}
