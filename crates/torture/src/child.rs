//! The child: opens the database, finds out what the last session left, and works until it is killed.

use crate::args::Orders;
use crate::contents::{self, Found};
use crate::journal::{self, Journal, Record};
use crate::messages::{Counts, fail, say};
use crate::model::{Change, Family, LANES, State, order};
use crate::replay::{Replay, replay};
use crate::resolve::{Axis, Reading, Resolved, check_cuts, matches, resolve};
use crate::world::{Handle, World};
use crate::{admin, copies, follow, lane, places, settings};
use kingtide::{Db, Durability, ErrorKind, Options};
use kingtide_base::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Milliseconds without a sign of life after which a thread is taken to hang.
const PATIENCE: u64 = 120_000;

/// Runs a child.
pub fn run(orders: Orders) -> Result<(), String> {
    std::panic::set_hook(Box::new(|info| {
        let trace = std::backtrace::Backtrace::force_capture();
        fail(&format!("panic in thread {:?}: {info}\n{trace}", std::thread::current().name()));
    }));
    crate::rare::arm();
    let mut rng = Rng::new(orders.seed ^ orders.session.rotate_left(40));
    let durability = if orders.none { Durability::None } else { settings::logged_durability(&mut rng) };
    let options = settings::options(&mut rng, durability);
    let (opened, begun) = (Arc::new(AtomicBool::new(false)), Instant::now());
    watch_open(opened.clone());
    say("E open");
    report_rare(opened.clone());
    let db = Db::open(places::database(&orders.dir), options.clone())
        .map_err(|e| format!("REFUSED: open failed: {e}\noptions {options:?}"))?;
    say("E opened");
    let counts = Counts::default();
    let mut since = begun;
    let mut phase = |name: &str| {
        counts.add(&format!("milliseconds: {name}"), since.elapsed().as_millis() as u64);
        since = Instant::now();
    };
    phase("opening");
    let (mut state, copies) = recover(&orders, &db, &counts)?;
    phase("comparing");
    if rng.one_in(8) || orders.only_verify {
        let report = db.verify().map_err(|e| format!("verify failed: {e}"))?;
        if report.is_damaged() {
            return Err(format!("verify found damage: {:?}", report.problems));
        }
        counts.add("verified by Db::verify", 1);
    }
    phase("Db::verify");
    let look = rng.one_in(3);
    copies::check(&orders.dir, &copies, look, &options, &counts)?;
    phase("looking at copies");
    opened.store(true, Ordering::SeqCst);
    if orders.only_verify {
        counts.report();
        say("E verified");
        return db.close().map_err(|e| e.to_string());
    }
    state.session = orders.session;
    save(&orders.dir, &state)?;
    copies::discard_checkpoints(&orders.dir);
    let journal = Journal::create(&journal_path(&orders.dir, orders.session))?;
    journal.append(&Record::Session(orders.none))?;
    phase("saving the state");
    counts.report();
    say("E verified");
    work((orders, options), db, journal, state, counts)
}

/// Reports rare paths until work begins, where others do.
fn report_rare(opened: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        while !opened.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
            crate::rare::report();
        }
    });
}

/// Fails when the database is not open and verified in time.
fn watch_open(opened: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(PATIENCE));
        if !opened.load(Ordering::SeqCst) {
            fail("hang: the database was not open and verified in time");
        }
    });
}

fn journal_path(dir: &Path, session: u64) -> PathBuf {
    dir.join(format!("journal-{session}"))
}

fn state_path(dir: &Path) -> PathBuf {
    dir.join("state")
}

fn save(dir: &Path, state: &State) -> Result<(), String> {
    let (path, old, new) = (state_path(dir), dir.join("state.old"), dir.join("state.new"));
    let io = |e: std::io::Error| format!("cannot save the state: {e}");
    std::fs::write(&new, state.encode()).map_err(io)?;
    if path.exists() {
        std::fs::copy(&path, &old).map_err(io)?;
    }
    std::fs::rename(&new, &path).map_err(io)
}

/// The state that the last session began with, and what its journal says.
fn load(dir: &Path) -> Result<Replay, String> {
    let path = state_path(dir);
    let state = match std::fs::read(&path) {
        Ok(bytes) => State::decode(&bytes).ok_or_else(|| format!("{} is no state", path.display()))?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => State::new(),
        Err(e) => return Err(format!("cannot read {}: {e}", path.display())),
    };
    let journal = journal_path(dir, state.session);
    let records = if journal.exists() { journal::read(&journal)? } else { Vec::new() };
    // The last few journals are kept for the analysis of a failure; files that an ingest left behind are not.
    if let Ok(entries) = std::fs::read_dir(dir) {
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let number = name.strip_prefix("journal-").and_then(|n| n.parse::<u64>().ok());
            if number.is_some_and(|n| n + 8 < state.session) || name.starts_with("ingest-") {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
    replay(&state, &records)
}

/// Finds out what the last session left, and checks that it may.
fn recover(orders: &Orders, db: &Db, counts: &Counts) -> Result<(State, Vec<crate::replay::CopyMade>), String> {
    let mut replayed = load(&orders.dir)?;
    let names: BTreeSet<String> = db.families().into_iter().collect();
    if let Some(change) = replayed.changing.take() {
        let done = match &change {
            Change::Create(_, Family { name, .. }) | Change::Rename(_, name) | Change::Clone(_, _, name) => {
                names.contains(name)
            }
            Change::Drop(uid) => replayed.base.families.get(uid).is_some_and(|f| !names.contains(&f.name)),
        };
        counts.add(if done { "changes of families in flight: done" } else { "changes of families in flight: not" }, 1);
        if done {
            crate::replay::apply_change(&mut replayed, &change);
        }
    }
    let base = &replayed.base;
    let expected: BTreeSet<String> = base.families.values().map(|f| f.name.clone()).collect();
    if names != expected {
        let lost: Vec<_> = expected.difference(&names).collect();
        let more: Vec<_> = names.difference(&expected).collect();
        return Err(format!("LOST: families {lost:?} are missing, {more:?} should not be there"));
    }
    let found = contents::read(db, &base.families)?;
    let reading = Reading { families: &base.families, found: &found, axis: Axis::Family };
    let resolved: Vec<Resolved> = base
        .lanes
        .iter()
        .zip(&replayed.steps)
        .enumerate()
        .map(|(n, (lane, steps))| resolve(n, lane, steps, &reading))
        .collect::<Result<_, _>>()?;
    check_cuts(resolved.iter())?;
    for lane in &resolved {
        counts.add("unlogged units", lane.optional);
        counts.add("unlogged units lost", lane.missing);
        counts.add("units in flight found", u64::from(lane.in_flight == Some(true)));
        counts.add("units in flight not found", u64::from(lane.in_flight == Some(false)));
    }
    let mut state = State { session: 0, lanes: Vec::new(), ..base.clone() };
    state.next_uid = state.next_uid.max(replayed.visible.next_uid);
    state.lanes = resolved.into_iter().map(|r| r.lane).collect();
    for (lane, seen) in state.lanes.iter_mut().zip(&replayed.visible.lanes) {
        lane.last = lane.last.max(seen.last);
    }
    found.check_accounts(&state)?;
    check_foreign(&orders.dir, &found)?;
    check_gets(db, &state)?;
    counts.add("keys compared", found.keys);
    counts.add("transactions in doubt after an open", state.lanes.iter().map(|l| l.prepared.len() as u64).sum());
    counts.add("units acknowledged", replayed.acknowledged);
    counts.add("units refused", replayed.refused);
    counts.add("opened and verified", 1);
    Ok((state, replayed.copies))
}

/// What the driver had another build write.
fn check_foreign(dir: &Path, found: &Found) -> Result<(), String> {
    let text = std::fs::read_to_string(places::foreign(dir)).unwrap_or_default();
    let pair = |line: &str| line.split_once(' ').and_then(|(s, v)| Some((s.parse().ok()?, v.as_bytes().to_vec())));
    let expected: BTreeMap<u16, Vec<u8>> = text.lines().filter_map(pair).collect();
    if found.foreign == expected {
        return Ok(());
    }
    Err(format!("LOST or WRONG: kt wrote {expected:?}, found is {:?}", found.foreign))
}

/// Single reads answer as the scan did, for some keys and for some that are not there.
fn check_gets(db: &Db, state: &State) -> Result<(), String> {
    for (number, lane) in state.lanes.iter().enumerate() {
        for (uid, family) in &state.families {
            let handle = db.family(&family.name).map_err(|e| e.to_string())?;
            for ((_, slot), entry) in lane.keys.range((*uid, 0)..=(*uid, u16::MAX)).step_by(13) {
                let before = contents::now_ms();
                let id = |slot| -> Result<Option<u64>, String> {
                    let key = crate::model::key(family.order, number as u8, slot);
                    let value = handle.get(&key).map_err(|e| e.to_string())?;
                    value.map(|v| contents::check_value(number, slot, &v, &mut Vec::new())).transpose()
                };
                let (here, next) = (id(*slot)?, id(slot + 1)?);
                let time = (before, contents::now_ms());
                let beside = lane.keys.get(&(*uid, slot + 1)).copied();
                if !matches(here, Some(*entry), time) || !matches(next, beside, time) {
                    let place = format!("family '{}' lane {number} slot {slot}", family.name);
                    return Err(format!("WRONG: get at {place}: {here:?}, {next:?} instead of {entry:?}, {beside:?}"));
                }
            }
        }
    }
    Ok(())
}

fn work(
    (orders, options): (Orders, Options),
    db: Db,
    journal: Journal,
    state: State,
    counts: Counts,
) -> Result<(), String> {
    let mut handles = Vec::new();
    for (uid, family) in &state.families {
        let cf = db.family(&family.name).map_err(|e| e.to_string())?;
        if cf.order().name() != order(family.order).name() {
            return Err(format!("family '{}' has another order", family.name));
        }
        handles.push(Arc::new(Handle { uid: *uid, family: family.clone(), cf }));
    }
    let world = World::new((orders, options), db, journal, handles, counts);
    let world = &world;
    let next_uid = state.next_uid;
    std::thread::scope(|scope| {
        for (number, lane) in state.lanes.into_iter().enumerate() {
            let run = move || lane::run(world, number, lane);
            let _ = std::thread::Builder::new().name(format!("lane-{number}")).spawn_scoped(scope, run);
        }
        scope.spawn(move || admin::run(world, next_uid));
        scope.spawn(move || copies::run(world));
        scope.spawn(move || follow::run(world));
        report_and_close(world)
    })
}

/// Reports and watches until it is time to close.
fn report_and_close(world: &World) -> Result<(), String> {
    let mut rng = Rng::new(world.orders.seed ^ world.orders.session ^ 0xc105e);
    loop {
        std::thread::sleep(Duration::from_millis(20));
        world.counts.report();
        crate::rare::report();
        let now = world.now();
        if let Some(thread) = world.beats.iter().position(|b| b.load(Ordering::Relaxed) + PATIENCE < now) {
            fail(&format!("hang: thread {thread} of {LANES} lanes, administrator, copier and follower hangs"));
        }
        if world.orders.close_after.is_some_and(|ms| now >= ms) {
            break;
        }
    }
    world.closing.store(true, Ordering::SeqCst);
    // Half of the times the lanes find out by an error.
    let _still = rng.one_in(2).then(|| world.gate.write());
    say("E close");
    let closed = Arc::new(AtomicBool::new(false));
    watch_close(closed.clone());
    match world.db.close() {
        Ok(()) => world.write(&Record::Closed),
        // A disk that is too slow for all memtables: what was logged is in the log, as after a kill.
        Err(e) if e.kind() == ErrorKind::Busy => world.counts.add("closes that ran out of time", 1),
        Err(e) => return Err(format!("close failed: {e}")),
    }
    closed.store(true, Ordering::SeqCst);
    world.counts.report();
    crate::rare::report();
    say("E closed");
    // The other threads may be in the midst of anything, as in any program that ends.
    std::process::exit(0);
}

fn watch_close(closed: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(PATIENCE));
        if !closed.load(Ordering::SeqCst) {
            fail("hang: close did not return");
        }
    });
}
