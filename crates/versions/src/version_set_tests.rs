//! The version set without a database: what it says is what the next recovery adds up, whatever fails, and wherever the power is cut.

use crate::edit::{Edit, LogBegun};
use crate::manifest::{Manifest, ManifestLimits};
use crate::orders::KeyOrders;
use crate::version::{DEFAULT_FAMILY, FileMeta, Retired};
use crate::version_set::{VersionSet, VersionState};
use crate::vlogs::VlogMeta;
use kingtide_base::key::CustomOrder;
use kingtide_base::options::FamilyOptions;
use kingtide_base::rng::Rng;
use kingtide_base::sync::atomic::{AtomicU64, Ordering};
use kingtide_base::{Error, ErrorKind, FamilyId, KeyOrder, Result};
use kingtide_table::VlogRef;
use kingtide_vfs::{Fault, FaultFs, Fs, MemFs, Op, Rule, Survival};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// An order that a program brings.
struct ByLength;

impl CustomOrder for ByLength {
    fn name(&self) -> &str {
        "by-length"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        a.len().cmp(&b.len()).then(a.cmp(b))
    }
}

fn own_order() -> KeyOrder {
    KeyOrder::Custom(Arc::new(ByLength))
}

fn dir() -> &'static Path {
    Path::new("db")
}

/// What recovery finds.
fn load(disk: &MemFs) -> (Manifest, VersionState) {
    load_from(Arc::new(disk.clone()))
}

fn load_from(fs: Arc<dyn Fs>) -> (Manifest, VersionState) {
    let (mut state, orders) = (VersionState::default(), KeyOrders::with([own_order()]));
    let apply = |edits: Vec<Edit>| edits.into_iter().try_for_each(|e| state.apply(e, &orders));
    let manifest = Manifest::load(&fs, dir(), true, apply).unwrap().expect("a database");
    state.check_orders().unwrap();
    (manifest, state)
}

/// Everything that a state says, but for the numbers that a failed write may have taken.
fn told(state: &VersionState) -> String {
    let families = state.families.iter().map(|(id, f)| {
        let options = f.options.entries();
        format!("{id} {} {} {} {options:?} {} {:?}\n", f.name, f.order.name(), f.flushed, f.direct_from, f.version)
    });
    let log = (state.log_start, state.first_segment, state.log_begun);
    format!("{}{:?}\n{log:?}", families.collect::<String>(), state.vlogs)
}

fn assert_same(found: &VersionState, state: &VersionState, what: &str) {
    assert_eq!(told(found), told(state), "{what}");
    assert_eq!((found.last_seq, found.next_family), (state.last_seq, state.next_family), "{what}");
}

/// A version set on a disk that can fail, and what makes changes for it.
struct World {
    disk: MemFs,
    faults: FaultFs,
    set: VersionSet,
    next_file_id: AtomicU64,
    rng: Rng,
}

impl World {
    fn new(seed: u64) -> World {
        let disk = MemFs::new();
        disk.create_dir_all(dir()).unwrap();
        disk.sync_dir(Path::new("")).unwrap();
        let faults = FaultFs::new(Arc::new(disk.clone()), seed);
        let (name, order) = (DEFAULT_FAMILY.to_owned(), KeyOrder::Bytewise.name().to_owned());
        let edit = Edit::CreateFamily { id: 0, name, order, options: Vec::new(), direct_from: None };
        let fs: Arc<dyn Fs> = Arc::new(faults.clone());
        let manifest = Manifest::create(&fs, dir(), 1, [7; 16], std::slice::from_ref(&edit)).unwrap();
        let mut state = VersionState { next_file_id: 2, ..VersionState::default() };
        state.apply(edit, &KeyOrders::default()).unwrap();
        World { disk, faults, set: small(manifest, state), next_file_id: AtomicU64::new(2), rng: Rng::new(seed) }
    }

    /// One that has had so many changes.
    fn grown(seed: u64, changes: usize) -> World {
        let mut world = World::new(seed);
        (0..changes).for_each(|_| world.step().map(drop).unwrap());
        world
    }

    fn draw(&self) -> u64 {
        self.next_file_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a change.
    fn step(&mut self) -> Result<Retired> {
        let (edits, order) = self.change();
        self.set.write(edits, order.as_ref(), &self.next_file_id)
    }

    /// A change that fits the state, and the order of a family that it creates.
    fn change(&mut self) -> (Vec<Edit>, Option<KeyOrder>) {
        let ids: Vec<FamilyId> = self.set.families.keys().copied().collect();
        let id = ids[self.rng.below(ids.len() as u64) as usize];
        let number = (1 + self.rng.below(20)).to_string();
        let mut order = None;
        let mut edits = match self.rng.below(10) {
            0 => {
                let id = self.set.next_family;
                let of = if self.rng.one_in(2) { own_order() } else { KeyOrder::Reverse };
                let (name, order_name) = (format!("family-{id}"), of.name().to_owned());
                order = Some(of);
                let options = vec![("l0_trigger".to_owned(), number)];
                vec![Edit::CreateFamily { id, name, order: order_name, options, direct_from: None }]
            }
            1 if id != 0 => vec![Edit::DropFamily { id }],
            2 if id != 0 => vec![Edit::RenameFamily { id, name: format!("renamed-{}", self.draw()) }],
            3 => {
                let name = if self.rng.one_in(2) { "l0_trigger" } else { "direct_value_threshold" };
                vec![Edit::SetOptions { id, options: vec![(name.to_owned(), number)] }]
            }
            4 => vec![Edit::LastSeq(self.set.last_seq + 1 + self.rng.below(10))],
            5 => {
                let seq = self.set.log_start.max(self.rng.below(self.set.last_seq + 1));
                vec![Edit::LogStartIn { seq, segment: self.set.first_segment + self.rng.below(3) }]
            }
            6 => {
                let (segment, change_retention) = (self.draw(), self.rng.one_in(2).then_some(9));
                vec![Edit::LogBegun(LogBegun { segment, boot_id: [3; 16], change_retention })]
            }
            7 | 8 => self.compact(id),
            _ => self.flush(id),
        };
        edits.push(Edit::NextFileId(self.next_file_id.load(Ordering::Relaxed)));
        (edits, order)
    }

    /// A new run of one table, whose values are in a value log that is new or of an earlier table.
    fn flush(&mut self, family: FamilyId) -> Vec<Edit> {
        let (id, log) = (self.draw(), self.draw());
        let seq = self.set.last_seq + 1;
        let logs: Vec<u64> = self.set.vlogs.of(family).map(|log| log.id).chain([log]).collect();
        let file_id = logs[self.rng.below(logs.len() as u64) as usize];
        let key = format!("{id:08}").into_bytes();
        let meta = FileMeta {
            id,
            run: id,
            size: 1000,
            entries: 1,
            tombstones: 0,
            range_tombstones: 0,
            raw_bytes: 1000,
            min_key: key.clone(),
            max_key: key,
            min_seq: seq,
            max_seq: seq,
            min_expiry_ms: 0,
            created_ms: 0,
            vlog_refs: vec![VlogRef { file_id, values: 1, bytes: 100 }],
            written_as: id,
            sequence: 0,
            hides: 0,
        };
        let log = VlogMeta { id: log, size: 200, stored_bytes: 100, values: 1 };
        let add = Edit::AddFile { family, level: 0, meta: Arc::new(meta) };
        let edits = [Edit::AddVlog { family, meta: log.clone() }, add, Edit::Flushed { family, seq }];
        edits.into_iter().skip(usize::from(file_id != log.id)).collect()
    }

    /// The oldest table of level 0 moves down, or goes.
    fn compact(&mut self, family: FamilyId) -> Vec<Edit> {
        let levels = &self.set.families[&family].version.levels;
        let Some(file) = levels[0].last().and_then(|run| run.files.first()).cloned() else { return self.flush(family) };
        let run = levels[1].first().map_or(1, |run| run.id);
        let moved = Edit::AddFile { family, level: 1, meta: Arc::new(FileMeta { run, ..(*file).clone() }) };
        let edits = [Edit::RemoveFile { family, level: 0, id: file.id }, moved];
        edits.into_iter().take(1 + usize::from(self.rng.one_in(2))).collect()
    }

    /// Recovers from a disk.
    fn recover(&mut self, disk: MemFs) {
        self.faults = FaultFs::new(Arc::new(disk.clone()), 0);
        let (manifest, state) = load_from(Arc::new(self.faults.clone()));
        self.next_file_id = AtomicU64::new(state.next_file_id);
        (self.disk, self.set) = (disk, small(manifest, state));
    }
}

/// A set whose manifest is rewritten every few changes, with its snapshot in several records.
fn small(mut manifest: Manifest, state: VersionState) -> VersionSet {
    manifest.set_limits(ManifestLimits { rewrite: 256, snapshot_edits: 3 });
    VersionSet::new(manifest, state)
}

#[test]
fn what_is_written_is_what_recovery_adds_up() {
    let mut rewritten = 0;
    for seed in 0..20 {
        let mut world = World::new(seed);
        let mut number = 1;
        for change in 0..80 {
            let what = format!("seed {seed}, change {change}");
            if world.rng.one_in(4) {
                // What it names is taken, and the next change makes a new manifest.
                world.faults.add(Rule::new(Op::Write, Fault::Eio));
                world.step().map(drop).unwrap_err();
            }
            world.step().unwrap();
            let cut = world.disk.crash_clone(Survival::AllLost, &mut Rng::new(seed));
            let (manifest, found) = load(&cut);
            assert_same(&found, &world.set, &what);
            let highest = found.families.values().flat_map(|f| f.version.files().map(|(_, f)| f.id)).max();
            assert!(
                found.next_file_id > manifest.number().max(highest.unwrap_or(0)),
                "{what}: a file id is free again"
            );
            rewritten += u32::from(manifest.number() != std::mem::replace(&mut number, manifest.number()));
            if world.rng.one_in(8) {
                world.recover(cut);
            }
        }
    }
    assert!(rewritten > 200, "only {rewritten} manifests");
}

/// The files that a change leaves behind: tables that no level holds, and value logs that no table refers to.
#[test]
fn files_are_retired_when_nothing_needs_them() {
    let (mut tables, mut logs) = (0, 0);
    for seed in 100..110 {
        let mut world = World::new(seed);
        let of = |set: &VersionSet| -> BTreeSet<u64> {
            set.families.values().flat_map(|f| f.version.files().map(|(_, f)| f.id)).collect()
        };
        let logs_of = |set: &VersionSet| set.vlogs.iter().map(|log| log.meta.id).collect::<BTreeSet<u64>>();
        for change in 0..80 {
            let what = format!("seed {seed}, change {change}");
            let (before, logs_before) = (of(&world.set), logs_of(&world.set));
            let retired = world.step().unwrap();
            let gone: BTreeSet<u64> = before.difference(&of(&world.set)).copied().collect();
            assert_eq!(retired.tables.iter().copied().collect::<BTreeSet<u64>>(), gone, "{what}");
            let gone: BTreeSet<u64> = logs_before.difference(&logs_of(&world.set)).copied().collect();
            assert_eq!(retired.vlogs.iter().map(|(id, _)| *id).collect::<BTreeSet<u64>>(), gone, "{what}");
            let files = world.set.families.values().flat_map(|f| f.version.files());
            let used: BTreeSet<u64> = files.flat_map(|(_, f)| f.vlog_refs.iter().map(|r| r.file_id)).collect();
            assert_eq!(logs_of(&world.set), used, "{what}");
            (tables, logs) = (tables + retired.tables.len(), logs + retired.vlogs.len());
        }
    }
    assert!(tables > 50 && logs > 20, "{tables} tables, {logs} value logs");
}

#[test]
fn a_write_that_fails_changes_nothing() {
    let faults = [
        (Op::Write, Fault::Enospc),
        (Op::Write, Fault::ShortWrite),
        (Op::Sync, Fault::Eio),
        (Op::Rename, Fault::Eio),
        (Op::Rename, Fault::DoneEio),
        (Op::SyncDir, Fault::Emfile),
        (Op::SyncDir, Fault::Eio),
    ];
    let (mut failed, mut stopped) = (0, 0);
    for (seed, (op, fault)) in (0..12).flat_map(|seed| faults.map(|fault| (seed, fault))) {
        // The first is the append, the others are of the rewrite that must follow it when it failed.
        for nth in 0..3 {
            let what = format!("seed {seed}, {op:?} {fault:?} {nth}");
            let mut world = World::grown(seed, 12);
            if nth > 0 {
                world.faults.add(Rule::new(Op::Write, Fault::Eio));
                world.step().map(drop).unwrap_err();
            }
            let (before, (edits, order)) = (told(&world.set), world.change());
            let after = {
                let (manifest, state) = load(&world.disk.kill_clone());
                let (mut twin, next) = (small(manifest, state), world.next_file_id.load(Ordering::Relaxed));
                twin.write(edits.clone(), order.as_ref(), &AtomicU64::new(next)).unwrap();
                told(&twin)
            };
            world.faults.add(Rule::new(op, fault).nth(nth.max(1)));
            if world.set.write(edits, order.as_ref(), &world.next_file_id).is_ok() {
                assert_eq!(told(&world.set), after, "{what}");
                continue; // there is no such operation
            }
            failed += 1;
            world.faults.clear();
            assert_eq!(told(&world.set), before, "{what}");
            for survival in Survival::ALL {
                let (_, found) = load(&world.disk.crash_clone(survival, &mut Rng::new(seed)));
                let found = told(&found);
                assert!(found == before || found == after, "{what}, {survival:?}: {found}");
            }
            if world.set.manifest.poison().is_some() {
                stopped += 1;
                assert_eq!(world.step().map(drop).unwrap_err().kind(), ErrorKind::Poisoned, "{what}");
                continue;
            }
            world.step().unwrap();
            let (_, found) = load(&world.disk.crash_clone(Survival::AllLost, &mut Rng::new(seed)));
            assert_same(&found, &world.set, &what);
        }
    }
    assert!(failed > 100 && stopped > 10, "{failed} failed, {stopped} stopped");
}

/// An ingest is in the log first: the state has it at once, the manifest with its next record.
#[test]
fn what_only_the_log_has_is_in_the_next_record() {
    for seed in 0..40 {
        let mut world = World::grown(seed, (seed % 20) as usize);
        let disk = |world: &World| load(&world.disk.crash_clone(Survival::AllLost, &mut Rng::new(seed))).1;
        let before = told(&world.set);
        let edits = world.flush(0);
        let orders = world.set.orders(None);
        let logged = world.set.with_logged(edits, &orders).unwrap();
        assert_eq!((told(&world.set), world.set.is_written()), (before.clone(), true), "seed {seed}");
        world.set.adopt_logged(logged);
        assert_eq!((told(&disk(&world)), world.set.is_written()), (before, false), "seed {seed}");
        let now = told(&world.set);
        if seed % 3 == 0 {
            // Nothing may be written behind it if the log could not be made durable.
            world.set.stop(Error::new(ErrorKind::Poisoned, "the log is lost"));
            assert_eq!(world.step().map(drop).unwrap_err().message(), "the log is lost");
            assert_eq!((told(&world.set), world.set.is_written()), (now, false));
            continue;
        }
        if seed % 3 == 1 {
            world.faults.add(Rule::new(Op::Write, Fault::Enospc));
            world.step().map(drop).unwrap_err();
            assert_eq!((told(&world.set), world.set.is_written()), (now, false), "seed {seed}");
        }
        world.step().unwrap();
        assert!(world.set.is_written());
        assert_same(&disk(&world), &world.set, &format!("seed {seed}"));
    }
}

#[test]
fn edits_that_do_not_fit_are_refused() {
    let mut world = World::grown(1, 10);
    let before = told(&world.set);
    let create = |id, name: &str| {
        let order = KeyOrder::Bytewise.name().to_owned();
        vec![Edit::CreateFamily { id, name: name.to_owned(), order, options: Vec::new(), direct_from: None }]
    };
    let orders = world.set.orders(None);
    for edits in [create(0, "other"), create(1000, DEFAULT_FAMILY)] {
        assert_eq!(world.set.with_logged(edits, &orders).map(drop).unwrap_err().kind(), ErrorKind::Corruption);
    }
    for edit in [
        Edit::DropFamily { id: 999 },
        Edit::RenameFamily { id: 999, name: "x".to_owned() },
        Edit::RemoveFile { family: 0, level: 3, id: 998 },
        Edit::RemoveFile { family: 0, level: 99, id: 998 },
    ] {
        assert_eq!(
            world.set.write(vec![edit], None, &world.next_file_id).map(drop).unwrap_err().kind(),
            ErrorKind::Corruption
        );
    }
    assert_eq!(told(&world.set), before);
}

#[test]
fn a_family_whose_order_is_unknown_is_refused_unless_it_was_dropped() {
    let mut state = VersionState::default();
    let (name, order) = ("tides".to_owned(), "by-length".to_owned());
    let create = Edit::CreateFamily { id: 3, name, order, options: Vec::new(), direct_from: None };
    state.apply(create, &KeyOrders::default()).unwrap();
    let e = state.check_orders().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Incompatible);
    assert!(e.message().contains("'tides'") && e.message().contains("'by-length'"), "{e}");
    state.apply(Edit::DropFamily { id: 3 }, &KeyOrders::default()).unwrap();
    state.check_orders().unwrap();
    assert_eq!(state.next_family, 4);
}

/// The options of now do not tell of values that were written once under earlier ones.
#[test]
fn the_shortest_value_written_once_is_remembered_over_options_and_rewrites() {
    let mut world = World::new(1);
    let direct_from = |world: &World| world.set.families[&0].direct_from;
    let stored = |from: &str, threshold: &str| {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let options = vec![pair("direct_value_threshold", from), pair("value_threshold", threshold)];
        vec![Edit::SetOptions { id: 0, options }]
    };
    assert_eq!(direct_from(&world), 16 << 10, "by default");
    for (from, threshold, expected) in
        [("0", "512", 16 << 10), ("900", "512", 900), ("100", "0", 900), ("100", "512", 100), ("5000", "0", 100)]
    {
        world.set.write(stored(from, threshold), None, &world.next_file_id).unwrap();
        assert_eq!(direct_from(&world), expected, "{from} {threshold}");
        assert_eq!(load(&world.disk).1.families[&0].direct_from, expected, "{from} {threshold}");
    }
    for round in 0..2 {
        world.set.manifest.set_limits(ManifestLimits { rewrite: 0, snapshot_edits: 1024 });
        let number = world.set.manifest.number();
        while world.set.manifest.number() == number {
            world.set.write(stored("0", "0"), None, &world.next_file_id).unwrap();
        }
        let (manifest, mut state) = load(&world.disk);
        assert_eq!((direct_from(&world), state.families[&0].direct_from), (100, 100), "{round}");
        // The options of an open are not written at once.
        let mut set = VersionSet::new(manifest, std::mem::take(&mut state));
        set.set_default_options(&FamilyOptions::default().direct_value_threshold(0));
        assert_eq!(set.families[&0].direct_from, 100);
        set.set_default_options(&FamilyOptions::default().direct_value_threshold(50));
        set.set_default_options(&FamilyOptions::default());
        assert_eq!(set.families[&0].direct_from, 50);
    }
}
