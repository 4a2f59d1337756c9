//! Damaged backups: verification names the file, a restore is refused and leaves nothing, and other backups stay whole.

use super::check::read_family;
use super::sample::{KINDS, Sample, bytes_of, full, replace};
use kingtide::backup::{Backup, BackupOptions};
use kingtide::vfs::{Fs, MemFs};
use kingtide::{Db, Error, ErrorKind};
use kingtide_base::rng::Rng;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BACKUPS: &str = "copies";

#[derive(Default, Debug)]
struct Seen {
    cases: u64,
    refused: u64,
    whole: u64,
}

/// Two backups of a database that went on in between; they share files.
fn made(sample: &Sample) -> (MemFs, Vec<u64>) {
    let fs = sample.fs.kill_clone();
    let db = Db::open("db", sample.options(&fs)).unwrap();
    let backup = backup(&fs);
    let first = backup.create(&db, BackupOptions::default()).unwrap();
    db.put(b"between", b"the two").unwrap();
    let second = backup.create(&db, BackupOptions::default()).unwrap();
    (fs.clone(), vec![first.id, second.id])
}

fn backup(fs: &MemFs) -> Backup {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    Backup::on(fs, BACKUPS)
}

fn files(fs: &MemFs) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for dir in ["backups", "pool"] {
        let dir = Path::new(BACKUPS).join(dir);
        all.extend(fs.list(&dir).unwrap().iter().map(|n| dir.join(n)));
    }
    all
}

fn named(e: &Error, path: &Path, what: &str) {
    let kind = e.kind();
    assert!(matches!(kind, ErrorKind::Corruption | ErrorKind::NewerFormat | ErrorKind::NotFound), "{what}: {e:?}");
    assert!(kind == ErrorKind::NotFound || e.path() == Some(path), "{what}: another file in {e:?}");
}

pub fn damage() {
    let mut rng = Rng::new(super::seed("backups"));
    let mut all = std::collections::BTreeMap::<_, Seen>::new();
    for kind in &KINDS[..if full() { 4 } else { 2 }] {
        let sample = Sample::new(kind, true);
        let (fs, ids) = made(&sample);
        for path in files(&fs) {
            let part = if path.extension().is_some_and(|e| e == "backup") { "catalogue" } else { "pool" };
            let bytes = bytes_of(&fs, &path);
            for how in ["flipped bit", "cut", "removed", "longer", "512 bytes of zeros", "exchanged"] {
                for _ in 0..if full() { 60 } else { 1 } {
                    let copy = fs.kill_clone();
                    if harm(&copy, &path, &bytes, how, &mut rng) {
                        let what = format!("{}: {} {how}", kind.name, path.display());
                        one(&sample, &copy, &ids, &path, &what, all.entry((part, how)).or_default());
                    }
                }
            }
        }
    }
    for ((part, how), seen) in &all {
        println!("backup {part:10} {how:20} {seen:?}");
        assert!(seen.refused > 0, "{how} of the {part} is not noticed");
    }
}

/// Damages a file; false when that changes nothing.
fn harm(fs: &MemFs, path: &Path, bytes: &[u8], how: &str, rng: &mut Rng) -> bool {
    let at = rng.below(bytes.len() as u64) as usize;
    let mut damaged = bytes.to_vec();
    match how {
        "flipped bit" => damaged[at] ^= 1 << rng.below(8),
        "cut" => damaged.truncate(at),
        "longer" => damaged.push(0),
        "512 bytes of zeros" => {
            let start = at / 512 * 512;
            let end = (start + 512).min(damaged.len());
            damaged[start..end].fill(0);
        }
        "exchanged" => {
            let others: Vec<PathBuf> = files(fs).into_iter().filter(|p| p.parent() == path.parent()).collect();
            damaged = bytes_of(fs, &others[rng.below(others.len() as u64) as usize]);
        }
        _ => {
            fs.remove(path).unwrap();
            return true;
        }
    }
    replace(fs, path, &damaged);
    damaged != bytes
}

/// Both backups are verified and restored. What one needs that is damaged is reported by both, and nothing is left behind.
fn one(sample: &Sample, fs: &MemFs, ids: &[u64], path: &Path, what: &str, seen: &mut Seen) {
    seen.cases += 1;
    let backup = backup(fs);
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let mut refused = 0;
    for id in ids {
        let verified = backup.verify(*id, BackupOptions::default());
        let target = format!("restored-{id}");
        match backup.restore_to(*id, &shared, &target, BackupOptions::default()) {
            Ok(()) => {
                verified.unwrap_or_else(|e| panic!("{what}: restored, but verification says {e}"));
                let db = Db::open(&target, sample.options(fs)).unwrap();
                for (name, data) in sample.all() {
                    let mut data = data.clone();
                    if name == "default" && *id == ids[1] {
                        data.insert(b"between".to_vec(), b"the two".to_vec());
                    }
                    assert_eq!(read_family(&db.family(name).unwrap(), &data, what), 0, "{what}: {name}");
                }
            }
            Err(e) => {
                named(&e, path, what);
                named(&verified.expect_err(&format!("{what}: not restored, but verified")), path, what);
                let left =
                    if fs.exists(Path::new(&target)).unwrap() { fs.list(Path::new(&target)).unwrap() } else { vec![] };
                assert!(left.iter().all(|n| n == "LOCK" || n.ends_with(".tmp")), "{what}: left behind {left:?}");
                refused += 1;
            }
        }
    }
    seen.refused += u64::from(refused > 0);
    seen.whole += u64::from(refused == 0);
}
