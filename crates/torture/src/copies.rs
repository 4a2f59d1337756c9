//! Checkpoints and backups, made while the lanes write and the process is killed. The next session opens what there is of
//! them and judges it: a complete copy holds every unit that was acknowledged before it began, and of each lane those
//! that follow up to some point; an unfinished one is refused.

use crate::contents;
use crate::journal::{Copy, Record};
use crate::messages::{Counts, fail, say};
use crate::model::{LANES, State};
use crate::replay::CopyMade;
use crate::resolve::{Axis, Reading, Resolved, check_cuts, resolve};
use crate::world::World;
use kingtide::backup::{Backup, BackupOptions};
use kingtide::{Db, ErrorKind, Options, verify};
use kingtide_base::rng::Rng;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Index of the copier among the threads that are watched.
const COPIER: usize = LANES + 1;

/// Two places in turns, so that the last one stays while the next is made.
fn checkpoint_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("checkpoint-{}", number % 2))
}

fn backup_path(dir: &Path) -> PathBuf {
    dir.join("backups")
}

/// Makes copies until the database closes.
pub fn run(world: &World) {
    let mut rng = Rng::new(world.orders.seed ^ world.orders.session.rotate_left(12) ^ 0xc0);
    let busy = rng.one_in(4);
    let mut number = 0;
    while !world.is_closing() {
        world.beat(COPIER);
        let pause = if busy { rng.below(60) } else { 50 + rng.below(800) };
        // In pieces, so that a close is noticed.
        for _ in 0..pause.div_ceil(50) {
            std::thread::sleep(Duration::from_millis(pause.min(50)));
            world.beat(COPIER);
            if world.is_closing() {
                break;
            }
        }
        if world.is_closing() {
            break;
        }
        let made = if rng.one_in(2) {
            number += 1;
            checkpoint(world, number)
        } else {
            backup(world, &mut rng)
        };
        match made {
            Ok(()) => world.counts.add("copies made", 1),
            Err(e) if matches!(e.kind(), ErrorKind::Closed | ErrorKind::Cancelled) && world.is_closing() => {}
            Err(e) => fail(&format!("copy: {:?}: {e}", e.kind())),
        }
    }
    world.beats[COPIER].store(u64::MAX / 2, Ordering::Relaxed);
}

/// Removes a directory, so that a kill meanwhile leaves nothing that looks like a database.
fn discard(path: &Path) {
    let trash = path.with_extension("trash");
    let _ = std::fs::remove_dir_all(&trash);
    if std::fs::rename(path, &trash).is_ok() {
        let _ = std::fs::remove_dir_all(&trash);
    }
}

fn checkpoint(world: &World, number: u64) -> kingtide::Result<()> {
    let path = checkpoint_path(&world.orders.dir, number);
    // One that is unfinished is left for the next to remove.
    if path.join(kingtide_base::names::CURRENT).exists() {
        discard(&path);
    }
    say("E copy");
    world.write(&Record::Copy(Copy::Checkpoint, number));
    world.db.checkpoint(&path)?;
    world.write(&Record::Copied(Copy::Checkpoint, number));
    Ok(())
}

fn backup(world: &World, rng: &mut Rng) -> kingtide::Result<()> {
    let pool = Backup::at(backup_path(&world.orders.dir));
    let id = 1 + pool.ids()?.last().copied().unwrap_or(0);
    say("E copy");
    world.write(&Record::Copy(Copy::Backup, id));
    let options = BackupOptions::new().flush(rng.one_in(2)).trust_names(rng.one_in(2));
    let info = pool.create(&world.db, options)?;
    if info.id != id {
        fail(&format!("backup {} instead of {id}", info.id));
    }
    world.write(&Record::Copied(Copy::Backup, id));
    if rng.one_in(3) {
        pool.purge(2)?;
    }
    Ok(())
}

/// Judges the copies of the last session, if it is to `look` at them. It leaves them where they are: a session that is killed before
/// it has saved its state is followed by one that judges them again.
pub fn check(dir: &Path, made: &[CopyMade], look: bool, options: &Options, counts: &Counts) -> Result<(), String> {
    for copy in made.iter().filter(|c| look && c.kind == Copy::Checkpoint) {
        check_checkpoint(&checkpoint_path(dir, copy.number), copy, options, counts)?;
    }
    let pool = Backup::at(backup_path(dir));
    let ids = pool.ids().map_err(|e| format!("backups: {e}"))?;
    let backups = || made.iter().filter(|c| c.kind == Copy::Backup);
    if let Some(lost) = backups().find(|c| c.complete && !ids.contains(&c.number)) {
        return Err(format!("LOST: backup {} was acknowledged and is not among {ids:?}", lost.number));
    }
    if let Some(copy) = backups().rfind(|c| look && ids.contains(&c.number)) {
        let id = copy.number;
        let restored = dir.join("restored");
        discard(&restored);
        pool.verify(id, BackupOptions::default()).map_err(|e| format!("backup {id}: verify: {e}"))?;
        pool.restore(id, &restored).map_err(|e| format!("backup {id}: restore: {e}"))?;
        check_copy(&restored, copy, options).map_err(|e| format!("backup {id}: {e}"))?;
        discard(&restored);
        counts.add("backups verified", 1);
    }
    Ok(())
}

/// Removes the checkpoints of the last session, once nothing will ask for them again.
pub fn discard_checkpoints(dir: &Path) {
    for path in (0..2)
        .map(|number| checkpoint_path(dir, number))
        .filter(|path| path.join(kingtide_base::names::CURRENT).exists())
    {
        discard(&path);
    }
}

fn check_checkpoint(path: &Path, copy: &CopyMade, options: &Options, counts: &Counts) -> Result<(), String> {
    if path.join(kingtide_base::names::CURRENT).exists() {
        check_copy(path, copy, options).map_err(|e| format!("checkpoint {}: {e}", path.display()))?;
        counts.add("checkpoints verified", 1);
    } else if copy.complete {
        return Err(format!("LOST: the checkpoint {} was acknowledged and is not there", path.display()));
    } else if path.join("INCOMPLETE.tmp").exists() {
        match Db::open(path, options.clone()) {
            Err(e) if e.kind() == ErrorKind::Corruption => counts.add("unfinished checkpoints refused", 1),
            other => return Err(format!("an unfinished checkpoint opens: {:?}", other.err())),
        }
    }
    Ok(())
}

fn check_copy(path: &Path, copy: &CopyMade, options: &Options) -> Result<(), String> {
    let report = verify(path, options).map_err(|e| format!("verify: {e}"))?;
    if report.is_damaged() {
        return Err(format!("verify: {:?}", report.problems));
    }
    let db = Db::open(path, options.clone()).map_err(|e| format!("REFUSED: {e}"))?;
    // The families of some moment between begin and end, whose names may have been there twice.
    let mut state = copy.base.clone();
    let mut fits = compare(&db, &state, copy);
    for change in &copy.changes {
        change.apply(&mut state);
        fits = fits.or_else(|e| compare(&db, &state, copy).map_err(|other| format!("{e}\n  or: {other}")));
    }
    fits?;
    db.close().map_err(|e| format!("close: {e}"))
}

/// Compares a copy with what it may hold if its families are those of `base`.
fn compare(db: &Db, base: &State, copy: &CopyMade) -> Result<(), String> {
    let names: Vec<String> = db.families();
    let mut expected: Vec<String> = base.families.values().map(|f| f.name.clone()).collect();
    expected.sort();
    if names != expected {
        return Err(format!("families {names:?} instead of {expected:?}"));
    }
    let found = contents::read(db, &base.families)?;
    let reading = Reading { families: &base.families, found: &found, axis: Axis::Lane };
    let lanes: Vec<Resolved> = base
        .lanes
        .iter()
        .zip(&copy.steps)
        .enumerate()
        .map(|(n, (lane, steps))| resolve(n, lane, steps, &reading))
        .collect::<Result<_, _>>()?;
    check_cuts(lanes.iter())?;
    let state = State { lanes: lanes.into_iter().map(|r| r.lane).collect(), ..base.clone() };
    found.check_accounts(&state)
}
