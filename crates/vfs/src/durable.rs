//! Making durable what a plain sync would not.

use crate::{File, Fs};
use kingtide_base::sync::{Condvar, Mutex};
use kingtide_base::{ErrorKind, Result, rare};
use std::path::Path;
use std::time::Duration;

/// Makes the names in a directory durable. Without a file descriptor for it, waits for one, for a second: to be used where a
/// failure would mean that what is there already cannot be acknowledged.
pub fn sync_dir_patiently(fs: &dyn Fs, dir: &Path) -> Result<()> {
    let (pause, never) = (Mutex::new(()), Condvar::default());
    for _ in 0..100 {
        match fs.sync_dir(dir) {
            Err(e) if e.is_out_of_descriptors() => {
                rare!("directory-sync-waited-for-descriptor");
                drop(never.wait_for(pause.lock(), Duration::from_millis(10)));
            }
            done => return done,
        }
    }
    fs.sync_dir(dir)
}

/// Writes a file's bytes, up to `end` or its own end, over themselves, and its last one, so that the next sync stores them
/// all, and its length.
///
/// If a sync failed in the process before this one, the system may have marked pages clean that the disk does not have:
/// until the machine restarts they can be read, but no sync stores them (Rebello et al., "Can Applications Recover from
/// fsync Failures?", USENIX ATC 2020). What follows them, acknowledged, would then be found behind a hole. A crash
/// meanwhile does no harm, because every sector gets what it had.
///
/// False where there is no space: a file system that writes elsewhere is full, and a database on it opens nevertheless.
///
/// # Errors
/// `Io`.
pub fn write_again(file: &dyn File, end: u64) -> Result<bool> {
    let len = file.len()?;
    let end = end.min(len);
    let mut piece = vec![0; end.clamp(1, 1 << 20) as usize];
    let mut again = |from: u64, to: u64| -> Result<()> {
        let mut offset = from;
        while offset < to {
            let wanted = (to - offset).min(piece.len() as u64) as usize;
            let n = file.read_full_at(&mut piece[..wanted], offset)?;
            if n == 0 {
                break; // shorter than it was a moment ago
            }
            file.write_at(&piece[..n], offset)?;
            offset += n as u64;
        }
        Ok(())
    };
    match again(0, end).and_then(|()| again(len.saturating_sub(1).max(end), len)) {
        Err(e) if e.kind() == ErrorKind::NoSpace => Ok(false),
        done => done.map(|()| true),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Fault, FaultFs, MemFs, Op, OpenMode, Rule};
    use std::sync::Arc;

    /// A file of three pieces of [`write_again`] and a bit, and the file system that counts and refuses its writes.
    fn file() -> (FaultFs, Arc<dyn File>, Vec<u8>) {
        let faults = FaultFs::new(MemFs::shared(), 1);
        let bytes: Vec<u8> = (0..(3 << 20) + 5_u32).map(|i| (i % 251) as u8).collect();
        let file = faults.open(Path::new("file"), OpenMode::Create).unwrap();
        file.write_at(&bytes, 0).unwrap();
        (faults, file, bytes)
    }

    #[test]
    fn a_file_that_is_written_again_keeps_its_bytes() {
        let (faults, file, bytes) = file();
        // Up to the end of what counts, the last byte with it; or all of it.
        for (end, writes) in [(0, 1), (1, 2), (1 << 20, 2), ((1 << 20) + 1, 3), (u64::MAX, 4)] {
            let before = faults.count(Op::Write);
            assert!(write_again(&*file, end).unwrap());
            assert_eq!(faults.count(Op::Write) - before, writes, "up to {end}");
        }
        let mut found = vec![0; bytes.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == bytes && file.len().unwrap() == bytes.len() as u64);
    }

    #[test]
    fn a_full_disk_is_no_error_of_writing_again_and_any_other_failure_is() {
        let (faults, file, _) = file();
        faults.add(Rule::new(Op::Write, Fault::Enospc));
        assert!(!write_again(&*file, u64::MAX).unwrap());
        faults.add(Rule::new(Op::Write, Fault::Eio));
        assert_eq!(write_again(&*file, u64::MAX).unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn a_patient_sync_of_a_directory_waits_for_a_descriptor_and_for_nothing_else() {
        let faults = FaultFs::new(MemFs::shared(), 1);
        let dir = Path::new("");
        let tries = |fault: Fault, times: usize| {
            (0..times).for_each(|_| faults.add(Rule::new(Op::SyncDir, fault)));
            let before = faults.count(Op::SyncDir);
            let synced = sync_dir_patiently(&faults, dir);
            (synced.err().map(|e| e.kind()), faults.count(Op::SyncDir) - before)
        };
        assert_eq!(tries(Fault::Emfile, 2), (None, 3));
        assert_eq!(tries(Fault::Eio, 1), (Some(ErrorKind::Io), 1));
    }
}
