//! Schedules of threads that share the log: `cargo xtask shuttle`. Those of whole databases are in the engine.

use super::{RecoveredLog, Wal, WalConfig, WalRecord};
use kingtide_base::clock::ManualClock;
use kingtide_base::sync::Mutex;
use kingtide_testkit::scenarios;
use kingtide_vfs::{Fs, MemFs};
use shuttle::thread::spawn;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

scenarios! {
    /// `sync_to` returns when its position is synced, however threads share syncs and segments change.
    shuttle_group_sync => group_sync;
}

fn group_sync() {
    const DIR: &str = "/log";
    let fs = MemFs::new();
    fs.create_dir_all(Path::new(DIR)).expect("dir");
    let ids = Arc::new(AtomicU64::new(1));
    let config = WalConfig {
        fs: Arc::new(fs.clone()),
        dir: DIR.into(),
        segment_size: 1 << 16,
        first_segment: 1 << 16,
        max_free: 1,
        prefill_piece: 64 << 10,
        next_id: Arc::new(move || ids.fetch_add(1, Ordering::Relaxed)),
        on_rotate: None,
        clock: ManualClock::at_unix_ms(1),
        stats: Arc::default(),
    };
    let (writer, wal) = Wal::open(config, RecoveredLog::none(1)).expect("open");
    let writer = Arc::new(Mutex::new((writer, 1)));
    let mut threads: Vec<_> = (0..3)
        .map(|t| {
            let (writer, wal) = (writer.clone(), wal.clone());
            spawn(move || {
                for n in 0..2 {
                    // One record in three needs a segment of its own soon.
                    let payload = vec![t as u8; if (t + n) % 3 == 0 { 40 << 10 } else { 10 }];
                    let lsn = {
                        let mut w = writer.lock();
                        let (log, seq) = &mut *w;
                        let lsn = log.append(*seq, 1, WalRecord::new(&payload)).expect("append");
                        *seq += 1;
                        lsn
                    };
                    wal.sync_to(lsn).expect("sync");
                    assert!(wal.synced() >= lsn, "{:?} of {lsn:?}", wal.synced());
                }
            })
        })
        .collect();
    let log = wal.clone();
    threads.push(spawn(move || log.prepare_spare().expect("spare")));
    threads.into_iter().for_each(|t| t.join().expect("thread"));
    assert_eq!(wal.synced(), wal.appended());
}
