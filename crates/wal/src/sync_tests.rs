//! Tests of what syncs of the log do: for threads that wait for one together, and ahead of them.

use super::sync::GroupSync;
use super::tests::{Log, SEGMENT, config, filled, open, replay_all};
use super::*;
use kingtide_base::ErrorKind;
use kingtide_base::Result;
use kingtide_base::stats::Stat;
use kingtide_base::stats::Stats;
use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicU64, Ordering};
use kingtide_vfs::Fs;
use kingtide_vfs::{Fault, FaultFs, File, MemFs, Op, Rule, WriteOp};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Every thread that waits when a sync fails gets the error, whether it waits for that sync or for the next one.
#[test]
fn a_failed_sync_leaves_no_thread_waiting() {
    const THREADS: usize = 6;
    for nth in 1..20 {
        let faults = FaultFs::new(MemFs::shared(), 1);
        let fs: Arc<dyn Fs> = Arc::new(faults.clone());
        let mut log = open(&fs).unwrap();
        log.append(b"first").unwrap();
        faults.add(Rule::new(Op::Sync, Fault::Eio).path(".wal").nth(nth));
        let (wal, log) = (log.wal.clone(), Mutex::new(log));
        let commit_until_it_fails = || {
            loop {
                let Ok(lsn) = log.lock().append(b"more") else { return };
                match wal.sync_to(lsn) {
                    Ok(()) => assert!(wal.synced() >= lsn),
                    Err(e) => return assert_eq!(e.kind(), ErrorKind::Poisoned),
                }
            }
        };
        std::thread::scope(|s| (0..THREADS).for_each(|_| drop(s.spawn(commit_until_it_fails))));
        assert_eq!(wal.sync_to(wal.appended()).unwrap_err().kind(), ErrorKind::Poisoned);
    }
}

/// A sync that panics, in a file system of the caller's own, stops the log as one that failed does. Threads that waited for it,
/// and every sync that came later, waited for ever.
#[test]
fn a_sync_that_panics_leaves_no_thread_waiting() {
    const THREADS: usize = 4;
    for nth in 0..12 {
        let disk = MemFs::new();
        let fs: Arc<dyn Fs> = Arc::new(disk.clone());
        let mut log = open(&fs).unwrap();
        log.append(b"first").unwrap();
        let mut left = nth;
        disk.on_write(Some(Box::new(move |boundary| {
            if boundary.op == WriteOp::Sync && boundary.path.extension().is_some_and(|e| e == "wal") {
                if left == 0 {
                    std::panic::resume_unwind(Box::new("injected"));
                }
                left -= 1;
            }
        })));
        let (wal, log) = (log.wal.clone(), Mutex::new(log));
        let commit_until_it_fails = || {
            loop {
                let Ok(lsn) = log.lock().append(b"more") else { return };
                let synced = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wal.sync_to(lsn)));
                match synced {
                    Ok(Ok(())) => assert!(wal.synced() >= lsn),
                    Ok(Err(e)) => return assert_eq!(e.kind(), ErrorKind::Poisoned),
                    Err(_) => return,
                }
            }
        };
        std::thread::scope(|s| (0..THREADS).for_each(|_| drop(s.spawn(commit_until_it_fails))));
        assert_eq!(wal.sync_to(wal.appended()).unwrap_err().kind(), ErrorKind::Poisoned);
        disk.on_write(None);
    }
}

/// Commits until the log counts as one that is synced often.
fn sync_often(log: &mut Log) {
    for i in 0..64 {
        let lsn = log.append(&[i]).unwrap();
        log.wal.sync_to(lsn).unwrap();
    }
}

#[test]
fn a_spare_is_written_ahead_while_the_log_is_synced_often() {
    let faults = FaultFs::new(MemFs::shared(), 1);
    let fs: Arc<dyn Fs> = Arc::new(faults.clone());
    let mut log = open(&fs).unwrap();
    log.append(b"first").unwrap();
    log.wal.prepare_spare().unwrap();
    assert!(!log.wal.needs_spare(), "it is not known yet how often the log is synced");
    sync_often(&mut log);
    assert!(log.wal.needs_spare());
    let prepare = |log: &Log| {
        let writes = faults.count(Op::Write);
        log.wal.prepare_spare().unwrap();
        assert!(!log.wal.needs_spare());
        faults.count(Op::Write) - writes
    };
    assert!(prepare(&log) > 0, "half of the segment is used");
    let segments = log.wal.live_segments().len();
    // A log that ends before the next segment is half used does not need the one behind it.
    while log.wal.live_segments().len() == segments {
        log.append(&filled(1000, 1)).unwrap();
        assert_eq!(prepare(&log), 0);
    }
    // What does not succeed is no loss: the disk is asked to write what it need not.
    log.append(&filled(1000, 1)).unwrap();
    assert!(log.wal.needs_spare());
    faults.add(Rule::new(Op::Write, Fault::Enospc).path(".wal"));
    assert_eq!(prepare(&log), 1);
    for _ in 0..8 {
        let lsn = log.append(&filled(1000, 2)).unwrap();
        log.wal.sync_to(lsn).unwrap();
    }
    // But a sync that fails may have been of records, by the time it was done.
    faults.add(Rule::new(Op::Sync, Fault::Eio).path(".wal"));
    let failed = (0..10).find_map(|_| {
        log.append(&filled(1000, 3)).unwrap();
        log.wal.prepare_spare().err()
    });
    assert_eq!(failed.unwrap().kind(), ErrorKind::Poisoned);
    assert_eq!(log.append(b"more").unwrap_err().kind(), ErrorKind::Poisoned);
    drop(log.writer);
    assert_eq!(replay_all(&*fs).unwrap().0, log.written);
}

/// The thread that makes spares is woken when the log begins to be synced often, and then once for each segment that is half used.
#[test]
fn the_thread_that_fills_spares_is_woken_in_time() {
    let (fs, woken) = (MemFs::new(), Arc::new(AtomicU64::new(0)));
    let count = woken.clone();
    let tell = move || _ = count.fetch_add(1, Ordering::Relaxed);
    let sync = GroupSync::new(&WalConfig { on_rotate: Some(Arc::new(tell)), ..config(&MemFs::shared(), SEGMENT, 1) });
    sync.push_segment(1, fs.open_log(Path::new("log"), SEGMENT).unwrap(), 0, 0);
    let mut at = 0;
    let mut told_at = Vec::new();
    for segment in 0..3 {
        sync.fill_within(segment * 200, 200);
        while at < (segment + 1) * 200 {
            let before = woken.load(Ordering::Relaxed);
            at += 1;
            sync.set_appended(at);
            sync.sync_to(Lsn(at)).unwrap();
            if woken.load(Ordering::Relaxed) > before {
                told_at.push(at);
            }
            assert_eq!(sync.is_filling_due(), (100..175).contains(&(at - segment * 200)), "{at}");
        }
    }
    assert_eq!(told_at, [64, 100, 300, 500]);
}

/// A file whose sync takes a while and remembers how far the log was appended when it began.
#[derive(Debug)]
struct SlowFile {
    appended: Arc<AtomicU64>,
    synced: AtomicU64,
    syncs: AtomicU64,
}

impl File for SlowFile {
    fn path(&self) -> &Path {
        Path::new("slow")
    }
    fn read_at(&self, _: &mut [u8], _: u64) -> Result<usize> {
        Ok(0)
    }
    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        Ok(())
    }
    fn sync_data(&self) -> Result<()> {
        let seen = self.appended.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_micros(500));
        self.syncs.fetch_add(1, Ordering::SeqCst);
        self.synced.fetch_max(seen, Ordering::SeqCst);
        Ok(())
    }
    fn sync_all(&self) -> Result<()> {
        self.sync_data()
    }
    fn len(&self) -> Result<u64> {
        Ok(0)
    }
    fn truncate(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn allocate(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

#[test]
fn committers_that_wait_together_share_a_sync() {
    const THREADS: u64 = 8;
    const COMMITS: u64 = 100;
    let appended = Arc::new(AtomicU64::new(0));
    let file = Arc::new(SlowFile { appended: appended.clone(), synced: AtomicU64::new(0), syncs: AtomicU64::new(0) });
    let stats = Arc::new(Stats::default());
    let config = WalConfig { stats: stats.clone(), ..config(&MemFs::shared(), SEGMENT, 1) };
    let sync = GroupSync::new(&config);
    sync.push_segment(1, file.clone(), 0, 0);
    let commit_lock = Mutex::new(());
    std::thread::scope(|s| {
        for _ in 0..THREADS {
            s.spawn(|| {
                for _ in 0..COMMITS {
                    let lsn = {
                        let _commit = commit_lock.lock();
                        let lsn = appended.fetch_add(1, Ordering::SeqCst) + 1;
                        sync.set_appended(lsn);
                        lsn
                    };
                    sync.sync_to(Lsn(lsn)).unwrap();
                    assert!(file.synced.load(Ordering::SeqCst) >= lsn);
                }
            });
        }
    });
    let syncs = file.syncs.load(Ordering::SeqCst);
    println!("{} commits, {syncs} syncs", THREADS * COMMITS);
    assert!(syncs < THREADS * COMMITS / 2, "{syncs} syncs");
    assert_eq!(stats.get(Stat::WalSyncs), syncs);
    assert_eq!(stats.get(Stat::WalSyncedCommits), THREADS * COMMITS);
}
