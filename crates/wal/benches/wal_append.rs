//! What one append to the write-ahead log costs: `cargo bench -p kingtide-wal --bench wal_append -- [directory]`.
//!
//! Processor time of the appending thread, so that a busy machine changes little: 130-byte records, the payload's checksum
//! included, spares prepared beside the measured stretch, old segments released and reused. Then replay, and synced commits by
//! 1 and 8 threads, on the clock.

#![allow(clippy::disallowed_methods)] // it measures time

use kingtide_base::clock::SystemClock;
use kingtide_base::stats::{Stat, Stats};
use kingtide_vfs::SystemFs;
use kingtide_wal::{RecoveredLog, Wal, WalConfig, WalRecord, list_segments, replay};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Nanoseconds that this thread has spent on a processor.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn main() {
    let base = std::env::args()
        .skip(1)
        .find(|a| !a.starts_with("--"))
        .unwrap_or_else(|| std::env::temp_dir().display().to_string());
    let dir = std::path::Path::new(&base).join("wal-append");
    let fs = SystemFs::shared();
    let _ = std::fs::remove_dir_all(&dir);
    fs.create_dir_all(&dir).unwrap();
    let ids = AtomicU64::new(1);
    let stats = Arc::new(Stats::default());
    let config = WalConfig {
        fs: fs.clone(),
        dir: dir.clone(),
        segment_size: 32 << 20,
        first_segment: 32 << 20,
        max_free: 4,
        prefill_piece: 256 << 10,
        next_id: Arc::new(move || ids.fetch_add(1, Ordering::Relaxed)),
        on_rotate: None,
        clock: SystemClock::shared(),
        stats: stats.clone(),
    };
    let (mut writer, wal) = Wal::open(config, RecoveredLog::none(1)).unwrap();
    let payload = [7u8; 130];
    let mut seq = 1;
    for round in 0..5 {
        let (mut spent, mut count) = (0, 0);
        for _ in 0..20 {
            wal.prepare_spare().unwrap();
            let start = cpu_ns();
            for _ in 0..50_000 {
                writer.append(seq, 1, WalRecord::new(&payload)).unwrap();
                seq += 1;
            }
            spent += cpu_ns() - start;
            count += 50_000;
        }
        println!("round {round}: {} ns per append", spent / count);
        wal.release(seq.saturating_sub(500_000)).unwrap();
    }

    let (start, mut seen) = (cpu_ns(), 0u64);
    let end = replay(&*fs, &dir, &list_segments(&*fs, &dir).unwrap(), 0, |_, count, _| {
        seen += u64::from(count);
        Ok(())
    });
    end.unwrap();
    println!("replay: {} ns per record, {seen} records", (cpu_ns() - start) / seen.max(1));

    wal.sync_all().unwrap();
    let shared = Mutex::new((writer, seq));
    for threads in [1, 8] {
        let commits = 400;
        let (start, syncs) = (Instant::now(), stats.get(Stat::WalSyncs));
        std::thread::scope(|s| {
            for _ in 0..threads {
                s.spawn(|| {
                    for _ in 0..commits {
                        let record = WalRecord::new(&payload);
                        let lsn = {
                            let (writer, seq) = &mut *shared.lock().unwrap();
                            *seq += 1;
                            writer.append(*seq, 1, record).unwrap()
                        };
                        wal.sync_to(lsn).unwrap();
                    }
                });
            }
        });
        let (n, syncs) = (threads * commits, stats.get(Stat::WalSyncs) - syncs);
        let micros = start.elapsed().as_micros() as u64 / n;
        println!("{threads} threads: {micros} us per synced commit, {n} commits in {syncs} syncs");
    }
    let _ = std::fs::remove_dir_all(&dir);
}
