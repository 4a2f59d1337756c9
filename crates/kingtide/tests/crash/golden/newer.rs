//! What a newer format wrote: refused with `NewerFormat` and the file's name, and left as it is.

use super::{DIR, Disk, disk_of, golden, options, put_file};
use kingtide::backup::{Backup, BackupOptions};
use kingtide::vfs::{Fs, MemFs};
use kingtide::{Db, ErrorKind};
use kingtide_base::checksum::{crc, crc_append};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NEXT: u32 = 2;
const NEXT_KEY_LOG: u32 = 3;
const NEXT_LOG: u32 = 5;

fn file_with(fs: &MemFs, dir: &str, part: &str) -> (PathBuf, Vec<u8>) {
    let found = disk_of(fs, Path::new(dir)).into_iter().find(|(path, bytes)| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.contains(part) && bytes.iter().any(|b| *b != 0)
    });
    found.unwrap_or_else(|| panic!("no file like {part}"))
}

fn set(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

fn number_in(path: &Path) -> u64 {
    let digits: String = path.file_name().unwrap().to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Everything but the lock file, which an open may make.
fn without_lock(fs: &MemFs, dir: &str) -> Disk {
    disk_of(fs, Path::new(dir)).into_iter().filter(|(path, _)| !path.ends_with("LOCK")).collect()
}

/// Opens in every way, verifies; all of them name the file, and none of them changes a byte.
fn refused(fs: &MemFs, path: &Path) {
    let before = without_lock(fs, DIR);
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let refusals =
        [("open", Db::open(DIR, options(fs)).err()), ("open_read_only", Db::open_read_only(DIR, options(fs)).err())];
    for (what, e) in refusals {
        let e = e.unwrap_or_else(|| panic!("{what} with a newer {name}"));
        assert_eq!(e.kind(), ErrorKind::NewerFormat, "{what} with a newer {name}: {e:?}");
        assert_eq!(e.path(), Some(path), "{what}: {e:?}");
    }
    let told = match kingtide::verify(DIR, &options(fs)) {
        Ok(report) => {
            assert!(!report.is_clean(), "{name}");
            format!("{report:?}")
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::NewerFormat, "verify with a newer {name}: {e:?}");
            e.to_string()
        }
    };
    assert!(told.contains(&name), "{name}: {told}");
    assert!(without_lock(fs, DIR) == before, "a refused open changed something beside a newer {name}");
}

#[test]
fn a_newer_manifest_is_refused() {
    let fs = golden("1", "closed", DIR);
    let (path, mut bytes) = file_with(&fs, DIR, "MANIFEST");
    set(&mut bytes, 8, NEXT);
    let seed = crc_append(crc(&number_in(&path).to_le_bytes()), &0u64.to_le_bytes());
    let sum = crc_append(seed, &bytes[..48]);
    set(&mut bytes, 48, sum);
    put_file(&fs, &path, &bytes);
    refused(&fs, &path);
}

#[test]
fn an_unknown_edit_of_the_manifest_is_refused() {
    let fs = golden("1", "closed", DIR);
    let (path, mut bytes) = file_with(&fs, DIR, "MANIFEST");
    let at = bytes.len() as u64;
    let body = [1, 99, 0, 0xa5]; // one edit: a tag, no bytes; and the trailer
    let len = (body.len() as u32).to_le_bytes();
    let seed = crc_append(crc(&number_in(&path).to_le_bytes()), &at.to_le_bytes());
    let sum = crc_append(crc_append(seed, &len), &body);
    bytes.push(0x5a);
    bytes.extend_from_slice(&len);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes.extend_from_slice(&body);
    put_file(&fs, &path, &bytes);
    refused(&fs, &path);
}

#[test]
fn a_newer_log_is_refused() {
    let fs = golden("1", "killed", DIR);
    let (path, mut bytes) = file_with(&fs, DIR, ".wal");
    set(&mut bytes, 4, NEXT_LOG);
    let seed = crc_append(number_in(&path) as u32, &0u64.to_le_bytes());
    let sum = crc_append(crc_append(seed, &bytes[..8]), &bytes[12..64]);
    set(&mut bytes, 8, sum);
    put_file(&fs, &path, &bytes);
    refused(&fs, &path);
}

#[test]
fn a_newer_key_log_is_refused() {
    let fs = golden("1", "closed", DIR);
    let (path, mut bytes) = file_with(&fs, DIR, ".klog");
    let footer = bytes.len() - 64;
    set(&mut bytes, footer + 48, NEXT_KEY_LOG);
    let sum = crc(&bytes[footer..footer + 52]);
    set(&mut bytes, footer + 52, sum);
    put_file(&fs, &path, &bytes);
    refused(&fs, &path);
}

/// A value log is opened when a value in it is read, and refused then; all else can be read.
#[test]
fn a_newer_value_log_is_refused() {
    let fs = golden("1", "value-logs", DIR);
    let (path, mut bytes) = file_with(&fs, DIR, ".vlog");
    set(&mut bytes, 16, NEXT);
    let sum = crc(&bytes[..20]);
    set(&mut bytes, 20, sum);
    let footer = bytes.len() - 48;
    set(&mut bytes, footer + 32, NEXT);
    let sum = crc(&bytes[footer..footer + 36]);
    set(&mut bytes, footer + 36, sum);
    put_file(&fs, &path, &bytes);
    let before = without_lock(&fs, DIR);
    let report = kingtide::verify(DIR, &options(&fs)).unwrap();
    let told = format!("{report:?}");
    let named = report.problems.iter().any(|p| p.path.as_ref() == Some(&path));
    assert!(!report.is_clean() && told.contains("NewerFormat") && named, "{told}");
    assert!(without_lock(&fs, DIR) == before, "verification changed something");
    let db = Db::open(DIR, options(&fs)).unwrap();
    let (mut read, mut refused) = (0, 0);
    for name in db.families() {
        let family = db.family(&name).unwrap();
        let mut it = family.cursor(..).unwrap();
        it.seek_to_first();
        while it.valid() {
            match family.get(it.key()) {
                Ok(found) => read += usize::from(found.is_some()),
                Err(e) => {
                    assert_eq!((e.kind(), e.path()), (ErrorKind::NewerFormat, Some(&*path)), "{e:?}");
                    refused += 1;
                }
            }
            it.next();
        }
        it.status().unwrap();
    }
    assert!(read > 0 && refused > 0, "{read} values read, {refused} refused");
    let _ = db.compact();
    db.close().unwrap();
    assert!(disk_of(&fs, Path::new(DIR)).get(&path) == Some(&bytes), "what cannot be read stays as it is");
}

#[test]
fn a_newer_backup_is_refused() {
    let fs = golden("1", "backups", "backups");
    let (path, mut bytes) = file_with(&fs, "backups", ".backup");
    set(&mut bytes, 8, NEXT);
    let end = bytes.len() - 4;
    let sum = crc(&bytes[..end]);
    set(&mut bytes, end, sum);
    put_file(&fs, &path, &bytes);
    let before = without_lock(&fs, "backups");
    let backup = Backup::on(Arc::new(fs.clone()) as Arc<dyn Fs>, "backups");
    let id = number_in(&path);
    let calls = [
        backup.info(id).map(drop),
        backup.list().map(drop),
        backup.verify(id, BackupOptions::default()),
        backup.restore_to(id, &MemFs::shared(), Path::new(DIR), BackupOptions::default()),
    ];
    for (n, result) in calls.into_iter().enumerate() {
        let e = result.err().unwrap_or_else(|| panic!("call {n} reads a newer backup"));
        assert_eq!(e.kind(), ErrorKind::NewerFormat, "call {n}: {e:?}");
        assert_eq!(e.path(), Some(&*path), "call {n}: {e:?}");
    }
    assert!(without_lock(&fs, "backups") == before);
}
