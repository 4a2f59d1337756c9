//! The same with a thread that makes checkpoints and backups, restores and purges while the others write. What was
//! complete when the process was killed can be opened, and holds each writer's commits up to one that is not before the
//! last that had been acknowledged when the copy was begun, nor more than one after the last that had been when it was
//! done. What was not complete is refused, and can be made again in the same place.

use super::{Model, Run, full, key, open_families, options, progress, seed, value};
use kingtide::backup::{Backup, BackupOptions};
use kingtide::{Db, ErrorKind, verify};
use kingtide_base::rng::Rng;
use kingtide_testkit::Scratch;
use kingtide_testkit::killed::{acknowledge, parse, run_and_kill};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// Of the writers of `Run`.
const COPYING_WRITERS: u64 = 4;
/// In acknowledgements: a checkpoint, a backup or a restore was begun, and the number above that it was done.
const CHECKPOINT: u64 = 240;
const BACKUP: u64 = 242;
const RESTORE: u64 = 244;

/// Numbers of the next copies. One that was cut short is made again.
#[derive(Clone, Copy)]
pub struct Next {
    pub checkpoint: u64,
    pub restore: u64,
}

/// Where the copies of a database lie.
fn place(db: &Path) -> PathBuf {
    db.with_extension("copies")
}

fn checkpoint_path(place: &Path, n: u64) -> PathBuf {
    place.join(format!("checkpoint-{n}"))
}

fn restore_path(place: &Path, n: u64) -> PathBuf {
    place.join(format!("restored-{n}"))
}

// The child.

pub fn copy_for_ever(db: &Db, dir: &Path, seed: u64, mut next: Next, out: &Mutex<std::io::Stdout>) {
    let place = place(dir);
    let backup = Backup::at(place.join("backups"));
    let mut rng = Rng::new(seed);
    loop {
        if rng.one_in(2) {
            let n = next.checkpoint;
            acknowledge(out, CHECKPOINT, n);
            db.checkpoint(checkpoint_path(&place, n)).unwrap();
            acknowledge(out, CHECKPOINT + 1, n);
            let _ = std::fs::remove_dir_all(checkpoint_path(&place, n.saturating_sub(2)));
            next.checkpoint += 1;
            continue;
        }
        let id = 1 + backup.ids().unwrap().last().copied().unwrap_or(0);
        acknowledge(out, BACKUP, id);
        let how = BackupOptions::new().flush(rng.one_in(2)).trust_names(rng.one_in(2));
        assert_eq!(backup.create(db, how).unwrap().id, id);
        acknowledge(out, BACKUP + 1, id);
        if rng.one_in(2) {
            acknowledge(out, RESTORE, next.restore << 32 | id);
            backup.restore(id, restore_path(&place, next.restore)).unwrap();
            acknowledge(out, RESTORE + 1, next.restore << 32 | id);
            next.restore += 1;
        }
        if rng.one_in(3) {
            backup.purge(2).unwrap();
        }
    }
}

// The parent.

/// By writer: the last commit that was acknowledged.
type Acknowledged = Vec<u64>;

/// Copies of one kind, by number.
#[derive(Default)]
struct Kind {
    /// What had been acknowledged when it was begun.
    begun: BTreeMap<u64, Acknowledged>,
    /// What had been when it was done.
    done: BTreeMap<u64, Acknowledged>,
    /// What each writer's commits make of its keys in the newest copy that was looked at.
    models: Vec<Model>,
}

impl Kind {
    fn new() -> Kind {
        Kind { models: (0..COPYING_WRITERS).map(|_| Model::default()).collect(), ..Kind::default() }
    }

    fn newest_done(&self) -> u64 {
        self.done.last_key_value().map_or(0, |(n, _)| *n)
    }
}

#[derive(Debug, Default)]
struct Counts {
    checkpoints: u64,
    backups: u64,
    restores: u64,
    /// Unfinished copies that were refused, and copies that were whole but not yet acknowledged.
    refused: u64,
    whole: u64,
}

struct Copies {
    run: Run,
    /// Of the child's copies; goes with the test.
    place: Scratch,
    checkpoints: Kind,
    backups: Kind,
    /// By number of the restore: the backup.
    restores: BTreeMap<u64, (u64, bool)>,
    counts: Counts,
}

impl Copies {
    fn note(&mut self, output: &[u8]) {
        for (who, n) in parse(output) {
            let now = self.run.acknowledged.clone();
            match who {
                CHECKPOINT => drop(self.checkpoints.begun.insert(n, now)),
                BACKUP => drop(self.backups.begun.insert(n, now)),
                RESTORE => drop(self.restores.insert(n >> 32, (n & 0xffff_ffff, false))),
                _ if who == CHECKPOINT + 1 => drop(self.checkpoints.done.insert(n, now)),
                _ if who == BACKUP + 1 => drop(self.backups.done.insert(n, now)),
                _ if who == RESTORE + 1 => drop(self.restores.insert(n >> 32, (n & 0xffff_ffff, true))),
                writer => self.run.acknowledged[writer as usize] = n,
            }
        }
    }

    /// Judges the newest checkpoint and, if one was cut short, that.
    fn check_checkpoints(&mut self, round: u64) {
        let (newest, begun) =
            (self.checkpoints.newest_done(), self.checkpoints.begun.last_key_value().map_or(0, |(n, _)| *n));
        if newest > 0 {
            self.check_copy(round, true, newest, &checkpoint_path(&self.place.0, newest));
            self.counts.checkpoints += 1;
        }
        let path = checkpoint_path(&self.place.0, begun);
        if begun > newest && self.is_whole(round, &path) {
            self.check_copy(round, true, begun, &path);
            let now = self.run.acknowledged.clone();
            self.checkpoints.done.insert(begun, now);
        }
    }

    /// Whether a copy that was not acknowledged is complete all the same; if not, it must be refused.
    fn is_whole(&mut self, round: u64, path: &Path) -> bool {
        let there = |name: &str| path.join(name).exists();
        if there("CURRENT") {
            self.counts.whole += 1;
            return true;
        }
        if there("INCOMPLETE.tmp") {
            let e = Db::open(path, options()).map(|_| ()).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Corruption, "seed {} round {round}: {e}", self.run.seed);
            self.counts.refused += 1;
        }
        false
    }

    /// Restores the newest backup, and judges what comes of it; then what restore was under way.
    fn check_backups(&mut self, round: u64) {
        let label = format!("seed {} round {round}", self.run.seed);
        let backup = Backup::at(self.place.0.join("backups"));
        let backups = backup.list().unwrap_or_else(|e| panic!("{label}: {e}"));
        let newest = backups.last().map_or(0, |b| b.id);
        assert!(newest >= self.backups.newest_done(), "{label}: backup {} is gone", self.backups.newest_done());
        let restores = std::mem::take(&mut self.restores);
        for (n, (id, done)) in &restores {
            let path = restore_path(&self.place.0, *n);
            if !*done && !self.is_whole(round, &path) && *id == newest {
                backup.restore(*id, &path).unwrap_or_else(|e| panic!("{label}: restored again: {e}"));
            }
            // Older ones were opened by an earlier round or are of no more interest than this one.
            if *id == newest && path.join("CURRENT").exists() {
                self.check_copy(round, false, *id, &path);
                self.counts.restores += 1;
            }
            let _ = std::fs::remove_dir_all(&path);
        }
        if newest > 0 {
            let path = self.place.0.join("judged");
            backup.verify(newest, BackupOptions::default()).unwrap_or_else(|e| panic!("{label}: {e}"));
            backup.restore(newest, &path).unwrap_or_else(|e| panic!("{label}: {e}"));
            self.check_copy(round, false, newest, &path);
            std::fs::remove_dir_all(&path).unwrap();
            self.counts.backups += 1;
        }
    }

    /// A copy opens, nothing is wrong with it, and it holds the commits that it must and may.
    fn check_copy(&mut self, round: u64, checkpoint: bool, n: u64, path: &Path) {
        let kind = if checkpoint { &mut self.checkpoints } else { &mut self.backups };
        let label = format!("seed {} round {round} {}", self.run.seed, path.display());
        let report = verify(path, &options()).unwrap();
        assert!(!report.is_damaged(), "{label}: {:?}", report.problems);
        let db = Db::open(path, options()).unwrap_or_else(|e| panic!("{label}: {e}"));
        let families = open_families(&db);
        let least = kind.begun.get(&n).unwrap_or_else(|| panic!("{label}: it was never begun"));
        let most = kind.done.get(&n).unwrap_or(&self.run.acknowledged);
        let mut expected = vec![BTreeMap::new(); families.len()];
        for w in 0..COPYING_WRITERS {
            let last = progress(&families, self.run.seed, w);
            let (least, most) = (least[w as usize], most[w as usize] + 1);
            assert!((least..=most).contains(&last), "{label}: writer {w} at {last}, not in {least}..={most}");
            let model = &mut kind.models[w as usize];
            assert!(last >= model.commits, "{label}: writer {w} was at {} in an earlier copy", model.commits);
            model.advance(self.run.seed, w, last);
            for ((f, slot), n) in &model.keys {
                expected[*f].insert(key(w, *slot).to_vec(), value(w, *slot, *n));
            }
        }
        for (family, expected) in families.iter().zip(&expected) {
            self.run.compare(round, family, expected);
        }
    }
}

#[test]
fn copies_made_under_load_survive_kill_nine() {
    let seed = seed();
    let rounds = if full() { 200 } else { 6 };
    println!("seed {seed}, {rounds} rounds");
    let run = Run::new(seed, "copied");
    let copies = place(&run.dir.0);
    std::fs::create_dir_all(&copies).unwrap();
    let mut all = Copies {
        run,
        place: Scratch(copies),
        checkpoints: Kind::new(),
        backups: Kind::new(),
        restores: BTreeMap::new(),
        counts: Counts::default(),
    };
    let mut rng = Rng::new(seed);
    let (mut restore, mut round) = (0, 0);
    // A busy machine may finish no copy within such a life: it gets further rounds with longer ones.
    while round < rounds || ((all.counts.checkpoints == 0 || all.counts.backups == 0) && round < 10 * rounds) {
        let life = Duration::from_millis((200 + rng.below(600)) * (1 + round / rounds));
        let checkpoint = all.checkpoints.newest_done() + 1;
        let job = format!("{COPYING_WRITERS},{checkpoint},{restore},{round}");
        let output = run_and_kill(&super::child_name(), &all.run.dir.0, seed, &job, life);
        all.note(&output);
        restore = all.restores.last_key_value().map_or(restore, |(n, _)| n + 1);
        all.check_checkpoints(round);
        all.check_backups(round);
        let db = Db::open(&all.run.dir.0, options()).unwrap_or_else(|e| panic!("seed {seed} round {round}: {e}"));
        all.run.check(round, &db);
        round += 1;
    }
    let commits: u64 = all.run.acknowledged.iter().sum();
    println!("{round} kills, {commits} commits acknowledged, looked at {:?}", all.counts);
    assert!(commits > 0 && all.counts.checkpoints > 0 && all.counts.backups > 0, "{:?}", all.counts);
}
