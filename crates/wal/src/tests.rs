//! Tests of single situations. Random histories with power cuts are in `crash_tests`.

use super::*;
use kingtide_base::ErrorKind;
use kingtide_base::clock::SystemClock;
use kingtide_base::names::{free_path, segment_path};
use kingtide_base::rng::Rng;
use kingtide_base::stats::Stat;
use kingtide_base::stats::Stats;
use kingtide_base::sync::atomic::{AtomicU64, Ordering};
use kingtide_base::{Result, SeqNo};
use kingtide_vfs::Fs;
use kingtide_vfs::{Fault, FaultFs, MemFs, Op, OpenMode, Rule, Survival};
use std::path::Path;
use std::sync::Arc;

pub(super) type Record = (SeqNo, Vec<u8>);

/// A log in the directory "db" of a file system, and what was put into it.
pub(super) struct Log {
    pub writer: WalWriter,
    pub wal: Arc<Wal>,
    pub stats: Arc<Stats>,
    pub next_seq: SeqNo,
    pub written: Vec<Record>,
}

pub(super) const SEGMENT: u64 = 4096;

pub(super) fn replay_all(fs: &dyn Fs) -> Result<(Vec<Record>, ReplayEnd)> {
    replay_from(fs, 0)
}

/// What the log holds, if recovery needs it from `needed` on.
pub(super) fn replay_from(fs: &dyn Fs, needed: SeqNo) -> Result<(Vec<Record>, ReplayEnd)> {
    let dir = Path::new("db");
    let mut records = Vec::new();
    let end = replay(fs, dir, &list_segments(fs, dir)?, needed, |seq, count, payload| {
        assert_eq!(count as usize, count_of(payload));
        records.push((seq, payload.to_vec()));
        Ok(())
    })?;
    Ok((records, end))
}

/// Tests derive the number of operations from the payload.
pub(super) fn count_of(payload: &[u8]) -> usize {
    1 + payload.len() % 3
}

pub(super) fn open(fs: &Arc<dyn Fs>) -> Result<Log> {
    open_with(fs, SEGMENT)
}

/// With segments that have `first` bytes at first.
pub(super) fn open_with(fs: &Arc<dyn Fs>, first: u64) -> Result<Log> {
    open_from(fs, first, 0)
}

/// The same, if recovery needs the log from `needed` on.
pub(super) fn open_from(fs: &Arc<dyn Fs>, first: u64, needed: SeqNo) -> Result<Log> {
    fs.create_dir_all(Path::new("db"))?;
    fs.sync_dir(Path::new(""))?;
    let (written, end) = replay_from(&**fs, needed)?;
    let dir = Path::new("db");
    let names = fs.list(dir)?;
    let top = names.iter().filter_map(|n| kingtide_base::names::FileName::parse(n)?.number()).max().unwrap_or(0);
    let config = config(fs, first, top + 1);
    let stats = config.stats.clone();
    let next_seq = end.next_seq;
    let (writer, wal) = Wal::open(config, RecoveredLog::ended(end))?;
    Ok(Log { writer, wal, stats, next_seq, written })
}

/// With segments that have `first` bytes at first, and numbers from `next_id` on.
pub(super) fn config(fs: &Arc<dyn Fs>, first: u64, next_id: u64) -> WalConfig {
    let next = AtomicU64::new(next_id);
    WalConfig {
        fs: fs.clone(),
        dir: Path::new("db").to_owned(),
        segment_size: SEGMENT,
        first_segment: first,
        max_free: 2,
        prefill_piece: 64 << 10,
        next_id: Arc::new(move || next.fetch_add(1, Ordering::Relaxed)),
        on_rotate: None,
        clock: SystemClock::shared(),
        stats: Arc::default(),
    }
}

impl Log {
    pub fn append(&mut self, payload: &[u8]) -> Result<Lsn> {
        let lsn = self.writer.append(self.next_seq, count_of(payload) as u32, WalRecord::new(payload))?;
        self.written.push((self.next_seq, payload.to_vec()));
        self.next_seq += count_of(payload) as u64;
        Ok(lsn)
    }
}

pub(super) fn filled(n: usize, byte: u8) -> Vec<u8> {
    vec![byte; n]
}

#[test]
fn records_come_back_in_order_over_segments_gaps_and_reopens() {
    let fs = MemFs::shared();
    let mut all = Vec::new();
    for round in 0..5u8 {
        let mut log = open(&fs).unwrap();
        assert_eq!(log.written, all);
        for i in 0..60 {
            if i % 7 == 0 {
                log.next_seq += 10; // commits that were not logged
            }
            log.append(&filled(i * 5, round)).unwrap();
        }
        log.append(&filled(3 * SEGMENT as usize, round)).unwrap(); // larger than a segment
        log.append(b"after").unwrap();
        all = log.written.clone();
        if round % 2 == 0 {
            log.writer.close().unwrap();
        }
    }
    let (records, end) = replay_all(&*fs).unwrap();
    assert_eq!(records, all);
    assert!(end.closed && end.torn.is_none());
}

#[test]
fn a_closed_log_can_be_appended_to() {
    let fs = MemFs::shared();
    let mut log = open(&fs).unwrap();
    for i in 0..5u8 {
        log.append(&filled(100, i)).unwrap();
        log.writer.close().unwrap();
        log.writer.close().unwrap();
        let (records, end) = replay_all(&*fs).unwrap();
        assert!(records == log.written && end.closed);
    }
    let lsn = log.append(b"after").unwrap();
    log.wal.sync_to(lsn).unwrap();
    log.wal.release(log.next_seq).unwrap();
    let (records, end) = replay_all(&*fs).unwrap();
    assert!(records == log.written[5..] && !end.closed);
}

#[test]
fn appends_are_refused_that_would_rewrite_history() {
    let fs = MemFs::shared();
    let mut log = open(&fs).unwrap();
    log.append(b"abc").unwrap();
    for (seq, count) in [(1, 1), (log.next_seq, 0)] {
        let e = log.writer.append(seq, count, WalRecord::new(b"x")).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    }
    log.append(b"def").unwrap();
    assert_eq!(replay_all(&*fs).unwrap().0, log.written);
}

#[test]
fn released_segments_are_reused_and_their_old_bytes_never_pass() {
    let fs = MemFs::shared();
    let mut log = open(&fs).unwrap();
    let mut rng = Rng::new(1);
    for i in 0..400u64 {
        log.wal.prepare_spare().unwrap();
        log.append(&filled(rng.below(300) as usize, i as u8)).unwrap();
        if i % 20 == 0 {
            log.wal.release(log.next_seq).unwrap();
            let (records, _) = replay_all(&*fs).unwrap();
            assert!(!records.is_empty() && log.written.ends_with(&records), "step {i}");
        }
    }
    assert!(log.stats.get(Stat::WalSegmentsRecycled) > 5);
    assert!(log.stats.get(Stat::WalSegmentsCreated) < 6);
    assert!(log.stats.get(Stat::WalSize) <= 3 * SEGMENT);
    assert_eq!(log.stats.get(Stat::WalSize), log.wal.size());
}

/// Bytes of the directory's files.
fn space(fs: &dyn Fs) -> u64 {
    let len = |name: &String| fs.open(&Path::new("db").join(name), OpenMode::Read).unwrap().len().unwrap();
    fs.list(Path::new("db")).unwrap().iter().map(len).sum()
}

/// Segments begin small, grow while the log is written, and are small again after it was shrunk. Whatever their sizes,
/// records come back.
#[test]
fn segments_grow_with_the_log_and_shrink_at_rest() {
    const FIRST: u64 = 512;
    let fs = MemFs::shared();
    let mut log = open_with(&fs, FIRST).unwrap();
    log.wal.prepare_spare().unwrap();
    log.append(b"one entry").unwrap();
    log.wal.prepare_spare().unwrap();
    assert_eq!(space(&*fs), 2 * FIRST);
    let mut sizes = Vec::new();
    for i in 0..200u64 {
        log.append(&filled(100, i as u8)).unwrap();
        log.wal.prepare_spare().unwrap();
        sizes.push(log.wal.size());
        if i % 50 == 49 {
            log.wal.release(log.next_seq).unwrap();
            assert!(log.written.ends_with(&replay_all(&*fs).unwrap().0));
        }
    }
    assert_eq!(sizes[..12], [512, 512, 1024, 1024, 1024, 3072, 3072, 3072, 3072, 3072, 3072, 3072]);
    assert!(space(&*fs) >= 3 * SEGMENT, "warm: an active segment, a spare, free ones");
    // What recovery needs stays; what is only kept for speed goes.
    let (needed, records) = (log.next_seq - 1, log.written.len());
    log.wal.shrink().unwrap();
    assert!(!log.writer.shrink(needed, 0).unwrap(), "the last record is needed");
    assert_eq!(space(&*fs), log.wal.size());
    assert!(!log.writer.shrink(log.next_seq, 1 << 20).unwrap(), "followers want it");
    assert!(log.writer.shrink(log.next_seq, 0).unwrap());
    assert_eq!(log.written.len(), records);
    assert!(log.written.ends_with(&replay_all(&*fs).unwrap().0));
    log.wal.sync_header(log.next_seq).unwrap();
    log.wal.release(log.next_seq).unwrap();
    log.wal.trim(0).unwrap();
    log.wal.prepare_spare().unwrap();
    assert_eq!(space(&*fs), 2 * FIRST);
    assert!(!log.writer.shrink(log.next_seq, 0).unwrap(), "it is small");
    // A record that is larger than a small segment takes one with room for more of its kind.
    log.append(&filled(1000, 7)).unwrap();
    log.append(&filled(1000, 8)).unwrap();
    assert_eq!(log.wal.live_segments().len(), 2);
    log.writer.close().unwrap();
    let (records, end) = replay_all(&*fs).unwrap();
    assert!(end.closed && log.written.ends_with(&records) && records.len() == 2);
    // Free segments that a kill left behind are not kept.
    fs.open_log(&free_path(Path::new("db"), 900), SEGMENT).unwrap();
    open_with(&fs, FIRST).unwrap();
    assert!(space(&*fs) < SEGMENT);
}

/// A segment that was begun, and left without a record for a larger one, is not vouched for by records of its successor
/// that were written before anything of it was synced; and the first sync afterwards syncs it too.
#[test]
fn a_segment_begun_in_vain_is_no_damage_after_a_power_cut() {
    let mem = MemFs::new();
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    let mut log = open(&fs).unwrap();
    let first = log.append(b"first").unwrap();
    log.wal.sync_to(first).unwrap();
    log.writer.close().unwrap();
    log.writer.begin().unwrap();
    let large = filled(2 * SEGMENT as usize, b'x');
    for _ in 0..2 {
        log.append(&large).unwrap();
    }
    let check = |at_least: usize| {
        let mut rng = Rng::new(9);
        for model in
            [Survival::AllLost, Survival::AllKept, Survival::Torn].into_iter().chain([Survival::RandomBlocks; 200])
        {
            let (found, _) = replay_all(&mem.crash_clone(model, &mut rng)).unwrap();
            assert!(found.len() >= at_least && log.written.starts_with(&found), "{model:?}");
        }
    };
    check(1);
    let lsn = log.wal.appended();
    log.wal.sync_to(lsn).unwrap();
    check(3);
}

#[test]
fn a_failed_sync_stops_the_log_and_names_its_cause() {
    let faults = FaultFs::new(MemFs::shared(), 1);
    let fs: Arc<dyn Fs> = Arc::new(faults.clone());
    let mut log = open(&fs).unwrap();
    let good = log.append(b"good").unwrap();
    log.wal.sync_to(good).unwrap();
    let lsn = log.append(b"lost").unwrap();
    faults.add(Rule::new(Op::Sync, Fault::Eio).path(".wal"));
    let e = log.wal.sync_to(lsn).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Poisoned);
    assert!(e.to_string().contains("injected") && e.to_string().contains(".wal"), "{e}");
    let syncs = faults.count(Op::Sync);
    assert_eq!(log.append(b"more").unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(log.wal.sync_all().unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(log.wal.prepare_spare().unwrap_err().kind(), ErrorKind::Poisoned);
    log.wal.sync_to(good).unwrap();
    assert_eq!(faults.count(Op::Sync), syncs, "a failed sync is not tried again");
}

#[test]
fn a_full_disk_is_an_error_and_then_over() {
    let mem = MemFs::new();
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    let mut log = open(&fs).unwrap();
    log.append(&filled(1000, 1)).unwrap();
    mem.set_capacity(Some(SEGMENT + 100));
    let mut failed = 0;
    for _ in 0..6 {
        failed += log.append(&filled(1000, 2)).is_err_and(|e| e.kind() == ErrorKind::NoSpace) as u32;
    }
    assert!(failed >= 2, "{failed}");
    mem.set_capacity(None);
    let lsn = log.append(&filled(1000, 3)).unwrap();
    log.wal.sync_to(lsn).unwrap();
    let crashed = mem.crash_clone(Survival::AllLost, &mut Rng::new(1));
    assert_eq!(replay_all(&crashed).unwrap().0, log.written);
}

/// A delete, which may free space, needs little of it.
#[test]
fn where_there_is_no_space_for_a_segment_a_smaller_one_is_made() {
    for spare in [false, true] {
        let mem = MemFs::new();
        let fs: Arc<dyn Fs> = Arc::new(mem.clone());
        let mut log = open_with(&fs, 512).unwrap();
        while log.append(&filled(200, 1)).is_ok_and(|lsn| lsn < Lsn(2 * SEGMENT)) {} // by now they are large
        mem.set_capacity(Some(1 << 30));
        let free = mem.free_space(Path::new("db")).unwrap();
        mem.set_capacity(Some((1 << 30) - free + 600));
        if spare {
            let second = log.wal.prepare_spare(); // a writer at full speed has two
            assert_eq!((second.unwrap_err().kind(), log.wal.segments.spares()), (ErrorKind::NoSpace, 1));
        }
        let left = (0..100).find(|_| log.append(&filled(20, 2)).is_err());
        assert!(left.is_some_and(|n| n > 5), "{left:?}");
        mem.set_capacity(None);
        log.append(&filled(200, 3)).unwrap();
        assert_eq!(replay_all(&mem.kill_clone()).unwrap().0, log.written);
    }
}

#[test]
fn failed_writes_leave_nothing_behind() {
    for seed in 0..60 {
        let mem = MemFs::new();
        let faults = FaultFs::new(Arc::new(mem.clone()), seed);
        let fs: Arc<dyn Fs> = Arc::new(faults.clone());
        let mut log = open(&fs).unwrap();
        for op in [Op::Write, Op::Open, Op::Allocate, Op::Rename] {
            faults.add(Rule::new(op, Fault::Enospc).probability(0.05));
        }
        faults.add(Rule::new(Op::Write, Fault::ShortWrite).probability(0.1));
        let mut rng = Rng::new(seed);
        for i in 0..200u64 {
            let outcome = log.append(&filled(rng.below(600) as usize, i as u8));
            if outcome.is_err() && log.wal.poison().is_some() {
                break; // the roll-back failed too
            }
            let _ = log.wal.release(log.next_seq.saturating_sub(100));
        }
        let (records, _) = replay_all(&mem.kill_clone()).unwrap();
        let poisoned = log.wal.poison().is_some();
        // The batch whose roll-back failed may be there: its caller was told that the outcome is open.
        let known = &records[..records.len().saturating_sub(poisoned as usize)];
        assert!(log.written.ends_with(&records) || (poisoned && log.written.ends_with(known)), "seed {seed}");
    }
}

/// A file system may carry out a write and still report that it failed. The header of a segment says where the records of the previous
/// segment end, so a header whose write failed must be gone before the previous segment takes another record.
#[test]
fn a_segment_header_that_a_failed_write_left_hides_no_record() {
    for (op, more_failures) in [Op::Write, Op::Sync].into_iter().flat_map(|op| (0..3).map(move |n| (op, n))) {
        let mem = MemFs::new();
        let faults = FaultFs::new(Arc::new(mem.clone()), 1);
        let fs: Arc<dyn Fs> = Arc::new(faults.clone());
        let mut log = open(&fs).unwrap();
        log.append(&filled(100, 1)).unwrap();
        faults.add(Rule::new(Op::Write, Fault::DoneEio));
        (0..more_failures).for_each(|_| faults.add(Rule::new(op, Fault::Eio)));
        // This record does not fit into the segment; the next ones do.
        log.append(&filled(SEGMENT as usize, 2)).unwrap_err();
        (1..more_failures).for_each(|_| assert!(log.append(&filled(100, 3)).is_err()));
        let lsn = log.append(&filled(100, 4)).unwrap();
        assert!(replay_all(&mem.kill_clone()).unwrap().0 == log.written);
        log.wal.sync_to(lsn).unwrap();
        for survival in Survival::ALL {
            let left = mem.crash_clone(survival, &mut Rng::new(1));
            assert!(replay_all(&left).unwrap().0 == log.written, "{survival:?}");
        }
        log.append(&filled(SEGMENT as usize, 5)).unwrap();
        assert!(replay_all(&mem.kill_clone()).unwrap().0 == log.written);
    }
}

/// A small record may be written at once with its header, so a kill or a failing disk may leave its beginning, with a header
/// that is whole. That is not damage: the log ends before it and is continued there. A longer record gets its header last.
#[test]
fn a_beginning_of_a_small_record_is_no_damage() {
    for len in [0, 1, 40, 500, 992, 993] {
        let mem = MemFs::new();
        let mut log = open(&(Arc::new(mem.clone()) as Arc<dyn Fs>)).unwrap();
        log.append(&filled(50, 1)).unwrap();
        let (before, written) = (mem.kill_clone(), log.written.clone());
        log.append(&filled(len, 2)).unwrap();
        let path = segment_path(Path::new("db"), list_segments(&mem, Path::new("db")).unwrap()[0]);
        let at = SEGMENT_HEADER_LEN as u64 + segment::record_span(50);
        let mut record = vec![0; RECORD_HEADER_LEN + len];
        mem.open(&path, OpenMode::Read).unwrap().read_exact_at(&mut record, at).unwrap();
        for part in 0..record.len() {
            if record[part..].iter().all(|b| *b == 0) {
                continue; // the rest is what was there before
            }
            let header_whole = record.iter().take(RECORD_HEADER_LEN).skip(part).all(|b| *b == 0);
            let what = format!("{part} bytes of {}", record.len());
            let torn = before.kill_clone();
            torn.open(&path, OpenMode::Write).unwrap().write_at(&record[..part], at).unwrap();
            if len > 992 && header_whole {
                assert_eq!(replay_all(&torn).unwrap_err().kind(), ErrorKind::Corruption, "{what}");
                continue;
            }
            let (records, end) = replay_all(&torn).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(records, written, "{what}");
            assert_eq!(end.torn.is_some(), header_whole, "{what}");
            let mut log = open(&(Arc::new(torn.clone()) as Arc<dyn Fs>)).unwrap();
            log.append(&filled(10, 3)).unwrap();
            assert_eq!(replay_all(&torn.kill_clone()).unwrap().0, log.written, "{what}");
        }
    }
}

/// The disk takes the first half of a record, and then refuses the zeros over it. If the process ends then, the log ends before it.
#[test]
fn a_record_that_failed_midway_and_stays_is_no_damage() {
    let mem = MemFs::new();
    let faults = FaultFs::new(Arc::new(mem.clone()), 1);
    let mut log = open(&(Arc::new(faults.clone()) as Arc<dyn Fs>)).unwrap();
    for n in 0..20 {
        log.append(&filled(20, n)).unwrap();
        faults.add(Rule::new(Op::Write, Fault::ShortWrite).path(".wal"));
        faults.add(Rule::new(Op::Write, Fault::Eio).path(".wal").sticky());
        log.append(&filled(100, 77)).unwrap_err();
        let (records, _) = replay_all(&mem.kill_clone()).unwrap_or_else(|e| panic!("after {n} records: {e}"));
        assert_eq!(records, log.written);
        log.append(&filled(100, 78)).unwrap_err(); // the zeros come first
        faults.clear();
    }
    log.append(&filled(20, 99)).unwrap();
    assert_eq!(replay_all(&mem.kill_clone()).unwrap().0, log.written);
}

/// A log of three segments, the last half full, closed cleanly or not.
fn small_log(close: bool) -> (MemFs, Vec<Record>) {
    let mem = MemFs::new();
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    let mut log = open(&fs).unwrap();
    for i in 0..36u64 {
        let lsn = log.append(&filled(200 + i as usize % 50, i as u8 + 1)).unwrap();
        if i % 5 == 0 {
            log.wal.sync_to(lsn).unwrap();
        }
    }
    log.wal.sync_names().unwrap();
    let written = log.written.clone();
    if close {
        log.writer.close().unwrap();
    }
    (mem, written)
}

fn check_damaged(fs: &MemFs, written: &[Record], at_least: usize, what: &str) {
    match replay_all(fs) {
        Ok((records, _)) => {
            assert!(records.len() >= at_least && written.starts_with(&records), "{what}: {} records", records.len());
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Corruption, "{what}: {e}");
            assert!(e.path().is_some(), "{what}: {e}");
        }
    }
}

#[test]
fn every_truncation_gives_a_prefix_or_is_reported() {
    for close in [false, true] {
        let (base, written) = small_log(close);
        for cut_power in [false, true] {
            for id in list_segments(&base, Path::new("db")).unwrap() {
                for len in 0..SEGMENT {
                    let fs = match cut_power {
                        true => base.crash_clone(Survival::AllKept, &mut Rng::new(1)),
                        false => base.kill_clone(),
                    };
                    let path = segment_path(Path::new("db"), id);
                    fs.open(&path, kingtide_vfs::OpenMode::Write).unwrap().truncate(len).unwrap();
                    check_damaged(&fs, &written, 0, &format!("segment {id} cut to {len}"));
                }
            }
        }
    }
}

#[test]
fn flipped_bits_are_found() {
    let flip = |fs: &MemFs, id: u64, bit: u64| {
        let file = fs.open(&segment_path(Path::new("db"), id), kingtide_vfs::OpenMode::Write).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, bit / 8).unwrap();
        byte[0] ^= 1 << (bit % 8);
        file.write_at(&byte, bit / 8).unwrap();
    };
    for close in [false, true] {
        let (base, written) = small_log(close);
        // A clean close leaves nothing to guess about. Without it, and after a power cut, the records since the last
        // sync may look torn; everything before stays or is reported.
        for (cut_power, at_least) in [(false, written.len() - 1), (true, 31)] {
            let at_least = if close { written.len() } else { at_least };
            for id in list_segments(&base, Path::new("db")).unwrap() {
                let path = segment_path(Path::new("db"), id);
                let len = base.open(&path, kingtide_vfs::OpenMode::Read).unwrap().len().unwrap(); // cut by a clean close
                for bit in (0..len * 8).step_by(3) {
                    let fs = match cut_power {
                        true => base.crash_clone(Survival::AllKept, &mut Rng::new(1)),
                        false => base.kill_clone(),
                    };
                    flip(&fs, id, bit);
                    check_damaged(&fs, &written, at_least, &format!("segment {id} bit {bit} power {cut_power}"));
                }
            }
        }
    }
}

#[test]
fn a_missing_segment_is_noticed() {
    let (base, written) = small_log(false);
    let ids = list_segments(&base, Path::new("db")).unwrap();
    assert!(ids.len() >= 3);
    for &id in &ids[1..] {
        let fs = base.kill_clone();
        fs.remove(&segment_path(Path::new("db"), id)).unwrap();
        assert_eq!(replay_all(&fs).unwrap_err().kind(), ErrorKind::Corruption, "segment {id}");
    }
    // The first one may have been released; only the caller knows that it was needed.
    let fs = base.kill_clone();
    fs.remove(&segment_path(Path::new("db"), ids[0])).unwrap();
    assert!(written.ends_with(&replay_all(&fs).unwrap().0));
    let e = replay(&fs, Path::new("db"), &ids[1..], 1, |_, _, _| Ok(())).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
}

/// A spare behind the last segment does not make up for it: the sealed one before names it.
#[test]
fn a_missing_last_segment_is_noticed_beside_a_spare() {
    let mem = MemFs::new();
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    let mut log = open(&fs).unwrap();
    while log.wal.live_segments().len() < 3 {
        log.append(&filled(300, 7)).unwrap();
    }
    log.wal.prepare_spare().unwrap();
    let ids = log.wal.live_segments();
    for cut_power in [false, true] {
        for &id in &ids[1..] {
            let disk = match cut_power {
                true => mem.crash_clone(Survival::AllKept, &mut Rng::new(1)),
                false => mem.kill_clone(),
            };
            let path = segment_path(Path::new("db"), id);
            disk.remove(&path).unwrap();
            if id > ids[2] {
                assert_eq!(replay_all(&disk).unwrap().0, log.written, "no segment names a spare");
            } else {
                let e = replay_all(&disk).unwrap_err();
                assert_eq!((e.kind(), e.path()), (ErrorKind::Corruption, Some(&*path)), "{e}");
            }
        }
    }
}

/// A sealed segment whose successor lost its header: the file that it names stays until another successor's header is
/// durable, whatever is released meanwhile, so that a second power cut is not taken for a removed segment.
#[test]
fn the_file_that_a_sealed_segment_names_stays_until_it_has_another_successor() {
    let mem = MemFs::new();
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    let mut log = open(&fs).unwrap();
    while log.wal.live_segments().len() < 2 {
        log.append(&filled(300, 7)).unwrap();
    }
    log.wal.sync_names().unwrap();
    let cut = mem.crash_clone(Survival::AllKept, &mut Rng::new(1));
    let lost = segment_path(Path::new("db"), log.wal.live_segments()[1]);
    cut.open(&lost, kingtide_vfs::OpenMode::Overwrite).unwrap().allocate(0, SEGMENT).unwrap();
    let disk: Arc<dyn Fs> = Arc::new(cut.clone());
    let (before, _) = replay_all(&cut).unwrap();
    assert_eq!(before.len(), log.written.len() - 1);

    let mut log = open(&disk).unwrap();
    log.wal.release(1).unwrap();
    assert!(cut.exists(&lost).unwrap());
    log.append(b"more").unwrap();
    log.wal.release(1).unwrap();
    assert!(!cut.exists(&lost).unwrap());
    for model in Survival::ALL {
        let (found, _) = replay_all(&cut.crash_clone(model, &mut Rng::new(2))).unwrap();
        assert!(found.starts_with(&before) && found.len() <= before.len() + 1, "{model:?}");
    }
}

/// Reading from a segment that is given up meanwhile may fail in any way: the reader gets the error that the place is too old.
#[test]
fn a_follower_that_was_overtaken_amid_a_read_is_told_so() {
    let faults = FaultFs::new(MemFs::shared(), 1);
    let fs: Arc<dyn Fs> = Arc::new(faults.clone());
    for fault_at in [Op::Read, Op::Open] {
        let mut log = open(&fs).unwrap();
        log.append(b"first").unwrap();
        let first = log.wal.oldest_seq().unwrap();
        let mut tail = Tail::new(log.wal.clone(), first - 1, false);
        if fault_at == Op::Read {
            tail.check().unwrap(); // opens the segment
        }
        while log.wal.live_segments().len() < 3 {
            log.append(&filled(1000, 1)).unwrap();
        }
        log.wal.release(log.next_seq).unwrap();
        faults.add(Rule::new(fault_at, Fault::Eio).path(".wal").sticky());
        let e = tail.next(log.next_seq - 1).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::TooOld, "{e}");
        // Where nothing was given up, the failure is the disk's.
        let oldest = log.wal.oldest_seq().unwrap();
        let e = Tail::new(log.wal.clone(), oldest - 1, false).next(log.next_seq - 1).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Io, "{e}");
        faults.clear();
    }
}

#[test]
fn hostile_segments_never_panic() {
    let mut rng = Rng::new(3);
    let (base, written) = small_log(false);
    for _ in 0..300 {
        let fs = base.crash_clone(Survival::AllKept, &mut rng);
        for id in list_segments(&fs, Path::new("db")).unwrap() {
            let file = fs.open(&segment_path(Path::new("db"), id), kingtide_vfs::OpenMode::Write).unwrap();
            let mut junk = vec![0; rng.below(200) as usize];
            rng.fill(&mut junk);
            file.write_at(&junk, rng.below(SEGMENT)).unwrap();
        }
        check_damaged(&fs, &written, 0, "junk");
    }
}

#[test]
fn a_newer_version_is_refused() {
    let fs = MemFs::shared();
    let mut log = open(&fs).unwrap();
    log.append(b"x").unwrap();
    let head = segment::SegmentHeader {
        id: 50,
        prev_id: 1,
        prev_end: 0,
        prev_synced: true,
        prev_unnamed: false,
        size: 4096,
        start_seq: 3,
        boot_id: [0; 16],
    };
    let file = fs.open_log(Path::new("db/000050.wal"), SEGMENT).unwrap();
    file.write_at(&head.encode(9), 0).unwrap();
    assert_eq!(replay_all(&*fs).unwrap_err().kind(), ErrorKind::NewerFormat);
}
