//! Random histories on a file system that loses power before any of its write operations, and again during recovery.

use super::tests::{Record, SEGMENT, count_of, open, open_from, replay_from};
use kingtide_base::SeqNo;
use kingtide_base::rng::Rng;
use kingtide_base::sync::Mutex;
use kingtide_vfs::Fs;
use kingtide_vfs::{MemFs, Survival};
use std::sync::Arc;

/// What was promised so far.
#[derive(Clone, Default)]
struct Model {
    /// Every append that was tried, in order.
    tried: Vec<Record>,
    /// How many of them `append` acknowledged.
    appended: usize,
    /// How many of them `sync_to` acknowledged.
    synced: usize,
    /// Records that end at or before this sequence number may be gone.
    released: SeqNo,
}

impl Model {
    /// What a manifest would say.
    fn needed(&self) -> SeqNo {
        self.released.max(1)
    }

    /// Checks what recovery found, and makes it the history.
    fn accept(mut self, found: Vec<Record>, at_least: usize, what: &str) -> Model {
        let kept = |r: &Record| r.0 + count_of(&r.1) as u64 > self.released;
        let first = match found.first() {
            Some(r) => self.tried.iter().position(|t| t == r).unwrap_or_else(|| panic!("{what}: unknown first record")),
            None => self.tried.iter().position(kept).unwrap_or(self.tried.len()),
        };
        assert!(!self.tried[..first].iter().any(kept), "{what}: the log lost its beginning");
        let end = first + found.len();
        assert!(self.tried[first..].starts_with(&found), "{what}: not a prefix");
        let needed = self.tried[..at_least].iter().rposition(kept).map_or(0, |i| i + 1);
        assert!(end >= needed, "{what}: {end} records, {needed} were acknowledged");
        self.tried.truncate(end);
        self.appended = end.min(self.appended);
        self.synced = end.min(self.synced);
        self
    }
}

/// Runs a random workload that goes on from `model`, and returns disks from before some of its write operations.
fn run(mem: &MemFs, model: Model, steps: u64, one_in: u64, rng: &mut Rng) -> Vec<(MemFs, Model)> {
    let model = Arc::new(Mutex::new(model));
    let clones = Arc::new(Mutex::new(Vec::new()));
    let (m, c, mut pick) = (model.clone(), clones.clone(), Rng::new(rng.next_u64()));
    mem.on_write(Some(Box::new(move |boundary| {
        if pick.one_in(one_in) {
            c.lock().push((boundary.kill_clone(), m.lock().clone()));
        }
    })));
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    let first = if rng.one_in(2) { SEGMENT / 4 } else { SEGMENT };
    let needed = model.lock().needed();
    let mut log = open_from(&fs, first, needed).unwrap();
    for _ in 0..steps {
        match rng.below(13) {
            0 => log.wal.prepare_spare().unwrap(),
            1 => {
                let keep = log.next_seq.saturating_sub(rng.below(60));
                {
                    let mut model = model.lock();
                    model.released = keep.max(model.released);
                }
                log.wal.release(keep).unwrap();
            }
            2 => log.next_seq += rng.below(5),
            3 if rng.one_in(4) => {
                log.writer.close().unwrap();
                let n = model.lock().tried.len();
                model.lock().synced = n;
                let needed = model.lock().needed();
                log = open_from(&fs, first, needed).unwrap();
            }
            12 if rng.one_in(2) => {
                log.wal.shrink().unwrap();
                if log.writer.shrink(log.next_seq, 0).unwrap() {
                    log.wal.sync_header(log.next_seq).unwrap();
                    {
                        let mut model = model.lock();
                        model.released = log.next_seq.max(model.released);
                    }
                    log.wal.release(log.next_seq).unwrap();
                }
            }
            _ => {
                let size = if rng.one_in(20) { rng.below(9000) } else { rng.below(700) };
                let mut payload = vec![0; size as usize];
                rng.fill(&mut payload);
                model.lock().tried.push((log.next_seq, payload.clone()));
                let lsn = log.append(&payload).unwrap();
                let n = model.lock().tried.len();
                model.lock().appended = n;
                if rng.one_in(4) {
                    log.wal.sync_to(lsn).unwrap();
                    model.lock().synced = n;
                }
            }
        }
    }
    let last = (mem.kill_clone(), model.lock().clone());
    mem.on_write(None);
    clones.lock().push(last);
    std::mem::take(&mut *clones.lock())
}

/// Recovers from a kill and from each kind of power cut, and goes on with what was recovered.
fn check(disk: &MemFs, model: &Model, rng: &mut Rng, what: &str, depth: u32, cuts: &mut u64) {
    for survival in [None].into_iter().chain(Survival::ALL.map(Some)) {
        let what = format!("{what} {survival:?}");
        let (fs, at_least) = match survival {
            None => (disk.kill_clone(), model.appended),
            Some(survival) => (disk.crash_clone(survival, rng), model.synced),
        };
        *cuts += 1;
        let (found, end) = replay_from(&fs, model.needed()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let again = replay_from(&fs, model.needed()).unwrap_or_else(|e| panic!("{what} again: {e}"));
        assert!(again == (found.clone(), end), "{what}: replay is not repeatable");
        let next = model.clone().accept(found, at_least, &what);
        if depth > 0 {
            // What a kill left unsynced is only as durable as it was; recovery syncs it before anything builds on it.
            for (disk, model) in run(&fs, next, 12, 10, rng) {
                check(&disk, &model, rng, &what, depth - 1, cuts);
            }
        }
    }
}

#[test]
fn power_cuts_leave_an_exact_prefix_with_everything_synced() {
    let mut cuts = 0;
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let fs = MemFs::new();
        open(&(Arc::new(fs.clone()) as Arc<dyn Fs>)).unwrap(); // makes the directory
        for (disk, model) in run(&fs, Model::default(), 60, 8, &mut rng) {
            check(&disk, &model, &mut rng, &format!("seed {seed}"), 1, &mut cuts);
        }
    }
    println!("{cuts} cuts");
}
