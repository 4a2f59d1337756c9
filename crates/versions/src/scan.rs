//! Reading a manifest that may be damaged: whole records before and behind a broken one. For verification and repair.

use crate::codec::decode_edits;
use crate::edit::Edit;
use crate::manifest::{
    HEADER_LEN, Header, RECORD_HEADER_LEN, is_torn, read_all, read_current, record_at, unfinished_copy,
};
use kingtide_base::names::{COPY_MARKER, CURRENT, looks_like_data, manifest_path, parse_manifest_name};
use kingtide_base::{Error, ErrorKind, Result};
use kingtide_vfs::{Fs, OpenMode};
use std::path::{Path, PathBuf};

/// One whole record.
#[derive(Debug)]
pub struct ScannedRecord {
    /// Where it begins.
    pub offset: u64,
    /// Its edits.
    pub edits: Vec<Edit>,
    /// Whether a record before it is lost.
    pub behind_damage: bool,
}

/// What is left of a manifest.
#[derive(Debug, Default)]
pub struct ManifestScan {
    /// The manifest that was read, if there is one.
    pub path: Option<PathBuf>,
    /// Its whole records, in order.
    pub records: Vec<ScannedRecord>,
    /// What is wrong, with files and offsets.
    pub damage: Vec<Error>,
    /// Where the file ends with the remains of an append that a crash cut short.
    pub torn_at: Option<u64>,
    /// Bytes read.
    pub bytes: u64,
    /// Whether the directory holds anything of a database.
    pub found: bool,
    /// Whether the manifest was written by a build whose log start never falls. True if its header cannot be read.
    pub log_start_is_exact: bool,
}

impl ManifestScan {
    /// Reads the manifest that `CURRENT` names or, where that leads nowhere, the newest one with a whole record. Changes
    /// no byte.
    ///
    /// # Errors
    /// I/O errors from listing the directory. Problems of files are in the result.
    pub fn read(fs: &dyn Fs, dir: &Path) -> Result<ManifestScan> {
        let mut scan = ManifestScan::default();
        let names = fs.list(dir)?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|n| parse_manifest_name(n)).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        scan.found = !numbers.is_empty() || names.iter().any(|n| n == CURRENT || looks_like_data(n));
        match read_current(fs, dir) {
            Ok(Some(number)) => {
                numbers.retain(|n| *n != number);
                numbers.insert(0, number);
            }
            Ok(None) if names.iter().any(|n| n == COPY_MARKER) => scan.damage.push(unfinished_copy(dir)),
            Ok(None) if !scan.found => return Ok(scan),
            Ok(None) => scan.damage.push(Error::corruption("CURRENT is missing").at_path(&dir.join(CURRENT))),
            Err(e) => scan.damage.push(e),
        }
        for number in numbers {
            let path = manifest_path(dir, number);
            scan.torn_at = None;
            scan.read_file(fs, &path, number);
            if !scan.records.is_empty() {
                scan.path = Some(path);
                break;
            }
        }
        Ok(scan)
    }

    /// Reads one manifest file, whether or not it is the current one.
    ///
    /// # Errors
    /// `InvalidArgument` for a file whose name is no manifest's. What is wrong with the file is in the result.
    pub fn read_one(fs: &dyn Fs, path: &Path) -> Result<ManifestScan> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(number) = parse_manifest_name(&name) else {
            return Err(Error::invalid("not the name of a manifest, such as MANIFEST-000003").at_path(path));
        };
        let mut scan = ManifestScan { path: Some(path.to_owned()), found: true, ..ManifestScan::default() };
        scan.read_file(fs, path, number);
        Ok(scan)
    }

    fn read_file(&mut self, fs: &dyn Fs, path: &Path, number: u64) {
        let bytes = match fs.open(path, OpenMode::Read).and_then(|f| read_all(&*f)) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let text = "the manifest that CURRENT names is missing";
                return self.damage.push(Error::corruption(text).at_path(path));
            }
            Err(e) => return self.damage.push(e),
        };
        self.bytes += bytes.len() as u64;
        let base = match Header::read(&bytes, number) {
            Ok(head) => {
                self.log_start_is_exact = head.log_start_is_exact();
                head.base
            }
            Err(e) => {
                self.damage.push(e.at_path(path).at_offset(0));
                self.log_start_is_exact = true;
                0
            }
        };
        let (mut at, mut behind_damage) = (HEADER_LEN, false);
        while at < bytes.len() {
            let Some(body) = record_at(&bytes, number, at) else {
                if !behind_damage && at as u64 >= base && is_torn(&bytes, number, at) {
                    self.torn_at = Some(at as u64);
                    return;
                }
                let broken = Error::corruption("a manifest record is damaged");
                self.damage.push(broken.at_path(path).at_offset(at as u64));
                behind_damage = true;
                match (at + 1..bytes.len()).find(|later| record_at(&bytes, number, *later).is_some()) {
                    Some(later) => at = later,
                    None => return,
                }
                continue;
            };
            match decode_edits(body) {
                Ok(edits) => self.records.push(ScannedRecord { offset: at as u64, edits, behind_damage }),
                Err(e) => {
                    self.damage.push(e.at_path(path).at_offset(at as u64));
                    behind_damage = true;
                }
            }
            at += RECORD_HEADER_LEN + body.len() + 1;
        }
        if (at as u64) < base {
            let short = Error::corruption("the manifest ends before its snapshot does");
            self.damage.push(short.at_path(path).at_offset(at as u64));
        }
    }
}
