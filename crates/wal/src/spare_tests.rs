//! Tests of what the log's writer waits for, and of what a power cut may take because it does not wait.

use super::tests::{Log, filled, open, open_with, replay_all, replay_from};
use super::*;
use kingtide_base::rng::Rng;
use kingtide_base::stats::Stat;
use kingtide_base::{ErrorKind, rare};
use kingtide_vfs::{Fault, FaultFs, Fs, MemFs, Op, Rule, Survival};
use std::path::Path;
use std::sync::Arc;

fn world() -> (MemFs, FaultFs, Log) {
    let mem = MemFs::new();
    let faults = FaultFs::new(Arc::new(mem.clone()), 1);
    let fs: Arc<dyn Fs> = Arc::new(faults.clone());
    let log = open(&fs).unwrap();
    (mem, faults, log)
}

fn count(name: &str) -> u64 {
    rare::counts().iter().find(|(n, _)| *n == name).unwrap().1
}

#[test]
fn a_writer_that_finds_no_spare_syncs_no_directory() {
    let (mem, faults, mut log) = world();
    let syncs = faults.count(Op::SyncDir);
    let mut lsn = Lsn::default();
    for i in 0..40 {
        lsn = log.append(&filled(1000, i)).unwrap();
    }
    assert!(log.wal.live_segments().len() > 10);
    assert_eq!(faults.count(Op::SyncDir), syncs);
    // A commit that waits for the disk has them all named, by one sync.
    log.wal.sync_to(lsn).unwrap();
    assert_eq!(faults.count(Op::SyncDir), syncs + 1);
    for seed in 0..20 {
        for survival in Survival::ALL {
            let left = mem.crash_clone(survival, &mut Rng::new(seed));
            assert!(replay_all(&left).unwrap().0 == log.written, "{survival:?}");
        }
    }
}

/// While a thread makes spares, which waits for the disk, a writer takes those that are ready, and then makes its own.
#[test]
fn a_writer_waits_for_no_thread_that_makes_spares() {
    let (_, faults, mut log) = world();
    log.append(b"first").unwrap();
    log.wal.prepare_spare().unwrap();
    let wal = log.wal.clone();
    let making = wal.segments.while_spares_are_made();
    let (syncs, opened) = (faults.count(Op::SyncDir), faults.count(Op::Open));
    while log.wal.live_segments().len() < 3 {
        log.append(&filled(1000, 1)).unwrap();
    }
    assert_eq!(faults.count(Op::Open), opened + 1, "one that was ready, and one of its own");
    assert_eq!(faults.count(Op::SyncDir), syncs);
    drop(making);
    assert!(log.wal.needs_spare());
    log.wal.prepare_spare().unwrap();
    assert!(!log.wal.needs_spare());
    assert_eq!(faults.count(Op::SyncDir), syncs + 1);
}

#[test]
fn as_many_spares_are_kept_as_a_writer_uses_between_two_looks() {
    let (_, _, mut log) = world();
    let spares = |log: &Log| {
        log.wal.prepare_spare().unwrap();
        log.wal.segments.spares()
    };
    assert_eq!(spares(&log), 1);
    for (used, ready) in [(1, 1), (2, 3), (3, 3), (9, 4)] {
        for _ in 0..used * 4 {
            log.append(&filled(900, 1)).unwrap();
        }
        assert_eq!(spares(&log), ready);
    }
    for left in [3, 2, 1] {
        for _ in 0..4 {
            log.append(&filled(900, 1)).unwrap();
        }
        assert!(spares(&log) >= left, "fewer are wanted, but none is taken away");
    }
    log.wal.release(log.next_seq).unwrap();
    log.writer.close().unwrap();
    assert_eq!(log.wal.segments.spares(), 0);
}

/// The files of segments without a durable name may go in any combination: the log ends before the first one that went.
#[test]
fn a_power_cut_may_take_any_segment_whose_name_is_not_durable() {
    let (mem, _, mut log) = world();
    log.append(b"first").unwrap();
    let lsn = log.append(b"second").unwrap();
    log.wal.sync_to(lsn).unwrap();
    for i in 0..30 {
        log.append(&filled(1000, i)).unwrap();
    }
    let lost = count("log-lost-name");
    for seed in 0..300 {
        for survival in Survival::ALL {
            let left = mem.crash_clone(survival, &mut Rng::new(seed));
            let (found, _) = replay_all(&left).unwrap_or_else(|e| panic!("seed {seed} {survival:?}: {e}"));
            assert!(found.len() >= 2 && log.written.starts_with(&found), "seed {seed} {survival:?}");
            if seed < 20 {
                // What is written next is found after another cut, and nothing of what was left out comes back.
                let fs: Arc<dyn Fs> = Arc::new(left.clone());
                let mut next = open(&fs).unwrap();
                let lsn = next.append(b"next").unwrap();
                next.wal.sync_to(lsn).unwrap();
                let left = left.crash_clone(survival, &mut Rng::new(seed + 1));
                assert!(replay_all(&left).unwrap().0 == next.written);
            }
        }
    }
    assert!(count("log-lost-name") > lost);
    // A kill takes no file.
    let killed = mem.kill_clone();
    let segments = list_segments(&killed, Path::new("db")).unwrap();
    killed.remove(&kingtide_base::names::segment_path(Path::new("db"), segments[3])).unwrap();
    assert_eq!(replay_all(&killed).unwrap_err().kind(), ErrorKind::Corruption);
}

/// A name that recovery found in memory only, because the process was killed, is durable before anything builds on it.
#[test]
fn names_that_a_kill_left_in_memory_are_made_durable_by_the_next_open() {
    let (mem, _, mut log) = world();
    for i in 0..30 {
        log.append(&filled(1000, i)).unwrap();
    }
    let killed = mem.kill_clone();
    let fs: Arc<dyn Fs> = Arc::new(killed.clone());
    let next = open(&fs).unwrap();
    assert!(next.written == log.written);
    for seed in 0..50 {
        let left = killed.crash_clone(Survival::RandomBlocks, &mut Rng::new(seed));
        assert!(replay_all(&left).unwrap().0 == log.written, "seed {seed}");
    }
}

/// What was given up is not used again before that is durable: else its old name could come back with new contents.
#[test]
fn a_segment_is_used_again_once_its_release_is_durable() {
    let (mem, faults, mut log) = world();
    for i in 0..12 {
        log.append(&filled(1000, i)).unwrap();
    }
    log.wal.sync_all().unwrap();
    faults.add(Rule::new(Op::SyncDir, Fault::Emfile));
    let e = log.wal.release(log.next_seq - 1).unwrap_err();
    assert!(e.is_out_of_descriptors() && log.wal.poison().is_none());
    for i in 0..4 {
        log.append(&filled(1000, i)).unwrap();
    }
    assert_eq!(log.stats.get(Stat::WalSegmentsRecycled), 0);
    for seed in 0..100 {
        let left = mem.crash_clone(Survival::RandomBlocks, &mut Rng::new(seed));
        let (found, _) = replay_all(&left).unwrap();
        assert!(found.len() > 3, "seed {seed}");
    }
    log.wal.release(log.next_seq - 1).unwrap();
    for i in 0..4 {
        log.append(&filled(1000, i)).unwrap();
    }
    assert!(log.stats.get(Stat::WalSegmentsRecycled) > 0);
}

/// After a rest segments are small again, so a burst of writes needs several of growing sizes at once.
#[test]
fn a_burst_after_a_rest_syncs_no_directory_while_segments_grow() {
    let faults = FaultFs::new(MemFs::shared(), 1);
    let fs: Arc<dyn Fs> = Arc::new(faults.clone());
    let mut log = open_with(&fs, 256).unwrap();
    for _ in 0..3 {
        log.append(b"a write now and then").unwrap();
        log.wal.prepare_spare().unwrap();
        log.wal.shrink().unwrap();
        log.writer.shrink(log.next_seq, 0).unwrap();
        log.wal.prepare_spare().unwrap();
        let (syncs, segments) = (faults.count(Op::SyncDir), log.wal.live_segments().len());
        for _ in 0..60 {
            log.append(&filled(90, 1)).unwrap();
        }
        assert!(log.wal.live_segments().len() > segments + 2);
        assert_eq!(faults.count(Op::SyncDir), syncs);
    }
    assert_eq!(replay_all(&*fs).unwrap().0, log.written);
}

/// A commit that waits for the disk cannot be taken back when there is no descriptor to sync the directory with: it waits.
#[test]
fn a_group_of_commits_waits_for_a_descriptor() {
    let (mem, faults, mut log) = world();
    let lsn = log.append(b"first").unwrap();
    faults.add(Rule::new(Op::SyncDir, Fault::Emfile));
    log.wal.sync_to(lsn).unwrap();
    let left = mem.crash_clone(Survival::AllLost, &mut Rng::new(1));
    assert!(replay_all(&left).unwrap().0 == log.written);
    // Of two threads that need a name, one syncs the directory.
    let (names, syncs) = (&log.wal.sync.names, faults.count(Op::SyncDir));
    let name = names.changed();
    std::thread::scope(|s| {
        (0..2).for_each(|_| drop(s.spawn(|| names.sync(name, false).unwrap())));
    });
    assert_eq!(faults.count(Op::SyncDir), syncs + 1);
}

/// What the manifest says is given up goes together; the rest one by one, so that no power cut leaves a hole.
#[test]
fn a_release_of_what_the_manifest_gave_up_syncs_the_directory_once() {
    let (_, faults, mut log) = world();
    for i in 0..40 {
        log.append(&filled(1000, i)).unwrap();
    }
    let needed = log.written[20].0;
    let first = log.wal.first_kept(needed, 0).unwrap(); // makes the names durable
    let syncs = faults.count(Op::SyncDir);
    let released = log.wal.release_beyond((needed, first), 0).unwrap();
    assert!(released > 4 && log.wal.live_segments()[0] == first, "{released}");
    assert_eq!(faults.count(Op::SyncDir), syncs + 1);
    let released = log.wal.release_beyond((log.next_seq, first), 0).unwrap() as u64;
    assert!(released > 4 && log.wal.live_segments().len() == 1, "{released}");
    assert_eq!(faults.count(Op::SyncDir), syncs + 1 + released);
}

/// A power cut amid a release brings any of its segments back, and may take what was not synced of those that stay.
#[test]
fn a_release_that_a_power_cut_ends_is_no_damage() {
    let back = |fs: &MemFs, first| list_segments(fs, Path::new("db")).unwrap()[0] < first;
    let mut undone = 0;
    for synced in [true, false] {
        let (mem, _, mut log) = world();
        for i in 0..21 {
            log.append(&filled(1000, i)).unwrap();
        }
        if synced {
            log.wal.sync_all().unwrap();
        }
        let needed = log.written[17].0;
        let first = log.wal.first_kept(needed, 0).unwrap();
        let replay = |fs: &MemFs, what: &str| {
            let mut records = Vec::new();
            let recovered = RecoveredLog::find(fs, Path::new("db"), first, false).unwrap();
            let end = replay(fs, Path::new("db"), recovered.files(), needed, |seq, _, payload| {
                records.push((seq, payload.to_vec()));
                Ok(())
            });
            (records, end.unwrap_or_else(|e| panic!("{what}: {e}")))
        };
        let cut = Arc::new(kingtide_base::sync::Mutex::new(None));
        let keep = cut.clone();
        mem.on_write(Some(Box::new(move |at| {
            if at.path == Path::new("db") {
                *keep.lock() = Some(at.kill_clone());
            }
        })));
        assert!(log.wal.release_beyond((needed, first), 0).unwrap() > 4);
        mem.on_write(None);
        let cut = cut.lock().take().unwrap();
        for seed in 0..200 {
            for survival in Survival::ALL {
                let left = cut.crash_clone(survival, &mut Rng::new(seed));
                undone += u64::from(back(&left, first));
                let what = format!("synced {synced}, seed {seed} {survival:?}");
                let mut found = replay(&left, &what).0;
                found.retain(|r| r.0 >= needed);
                assert!(log.written[17..].starts_with(&found), "{what}");
                assert!(found.len() == 4 || !synced, "{what}: {} records", found.len());
            }
        }
    }
    assert!(undone > 100, "{undone}");
}

/// Between the move to a small segment and the sync of its header others may append, and fill it.
#[test]
fn a_log_at_rest_keeps_its_sequence_number_while_others_append() {
    for appended in [0, 1, 10, 40] {
        let mem = MemFs::new();
        let fs: Arc<dyn Fs> = Arc::new(mem.clone());
        let mut log = open_with(&fs, 256).unwrap();
        for i in 0..60 {
            log.append(&filled(200, i)).unwrap();
        }
        log.wal.sync_all().unwrap();
        log.wal.shrink().unwrap();
        let needed = log.next_seq;
        assert!(log.writer.shrink(needed, 0).unwrap());
        for i in 0..appended {
            log.append(&filled(200, i)).unwrap();
        }
        log.wal.sync_header(needed).unwrap();
        assert!(log.wal.release(needed).unwrap() > 0);
        for survival in Survival::ALL {
            let left = mem.crash_clone(survival, &mut Rng::new(1));
            let (found, end) = replay_from(&left, needed).unwrap_or_else(|e| panic!("{appended} {survival:?}: {e}"));
            assert!(end.next_seq >= needed, "{appended} {survival:?}: the log forgot its number");
            assert!(log.written[60..].starts_with(&found), "{appended} {survival:?}");
        }
    }
}

/// A release that failed when the oldest segments had lost their names is no reason to look for one of them.
#[test]
fn the_oldest_segment_that_stays_is_one_that_is_still_there() {
    let (_, faults, mut log) = world();
    for i in 0..20 {
        log.append(&filled(1000, i)).unwrap();
    }
    log.wal.sync_all().unwrap();
    let needed = log.written[0].0;
    faults.add(Rule::new(Op::SyncDir, Fault::Emfile).sticky());
    log.wal.release(log.next_seq).unwrap_err();
    faults.clear();
    log.wal.sync_header(needed).unwrap();
    log.wal.release(log.next_seq).unwrap();
    assert_eq!(log.wal.live_segments().len(), 1);
}
