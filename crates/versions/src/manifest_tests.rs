use crate::codec::tests::random_edit;
use crate::edit::Edit;
use crate::manifest::*;
use kingtide_base::rng::Rng;
use kingtide_base::{ErrorKind, Result};
use kingtide_vfs::{Fault, FaultFs, Fs, MemFs, Op, OpenMode, Rule, Survival};
use std::path::Path;
use std::sync::{Arc, Mutex};

const ID: [u8; 16] = *b"database-id-0123";

fn dir() -> &'static Path {
    Path::new("db")
}

fn disk() -> MemFs {
    let mem = MemFs::new();
    mem.create_dir_all(dir()).unwrap();
    mem.sync_dir(Path::new("")).unwrap();
    mem
}

fn load(fs: &MemFs, writable: bool) -> Result<Option<(Manifest, Vec<Edit>)>> {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    let mut edits = Vec::new();
    let manifest = Manifest::load(&fs, dir(), writable, |record| {
        edits.extend(record);
        Ok(())
    })?;
    Ok(manifest.map(|m| (m, edits)))
}

fn some_edits(rng: &mut Rng) -> Vec<Edit> {
    (0..1 + rng.below(4)).map(|_| random_edit(rng)).collect()
}

/// A manifest of a snapshot and some records; returns the edits after the snapshot and after each record.
fn small(rng: &mut Rng, records: usize) -> (MemFs, Vec<Vec<Edit>>) {
    let mem = disk();
    let mut all = some_edits(rng);
    let mut manifest = Manifest::create(&(Arc::new(mem.clone()) as _), dir(), 3, ID, &all).unwrap();
    let mut states = vec![all.clone()];
    for _ in 0..records {
        let edits = some_edits(rng);
        manifest.append(&edits).unwrap();
        all.extend(edits);
        states.push(all.clone());
    }
    (mem, states)
}

#[test]
fn appends_and_rewrites_are_read_back() {
    let mut rng = Rng::new(1);
    let (mem, states) = small(&mut rng, 10);
    assert!(load(&disk(), true).unwrap().is_none());
    let (mut manifest, edits) = load(&mem, true).unwrap().unwrap();
    assert_eq!((&edits, manifest.db_id(), manifest.number()), (&states[10], ID, 3));
    assert!(manifest.rewrite(&[], 3).is_err());
    manifest.rewrite(&edits[..5], 9).unwrap();
    manifest.append(&edits[5..]).unwrap();
    assert_eq!(mem.list(dir()).unwrap(), ["CURRENT", "MANIFEST-000009"]);
    let (manifest, again) = load(&mem, false).unwrap().unwrap();
    assert_eq!((again, manifest.number(), manifest.needs_rewrite()), (edits, 9, false));
}

#[test]
fn a_manifest_that_grew_is_rewritten() {
    let mem = disk();
    let snapshot = || vec![Edit::LastSeq(1)];
    let mut manifest = Manifest::create(&(Arc::new(mem.clone()) as _), dir(), 1, ID, &snapshot()).unwrap();
    let big = vec![Edit::RenameFamily { id: 1, name: "x".repeat(100_000) }];
    let mut number = 1;
    for _ in 0..10 {
        let next = || {
            number += 1;
            number
        };
        manifest.append_or_rewrite(&big, next, snapshot).unwrap();
    }
    assert!(manifest.number() > 1 && manifest.size() < 500_000);
}

#[test]
fn a_failed_append_is_followed_by_a_new_file() {
    for op in [Op::Write, Op::Sync] {
        for fault in [Fault::Enospc, Fault::ShortWrite, Fault::Eio] {
            if op == Op::Sync && fault == Fault::ShortWrite {
                continue;
            }
            let mut rng = Rng::new(2);
            let mem = disk();
            let faults = FaultFs::new(Arc::new(mem.clone()), 1);
            let fs: Arc<dyn Fs> = Arc::new(faults.clone());
            let mut state = some_edits(&mut rng);
            let mut manifest = Manifest::create(&fs, dir(), 1, ID, &state).unwrap();
            faults.add(Rule::new(op, fault));
            let lost = some_edits(&mut rng);
            manifest.append(&lost).unwrap_err();
            assert!(manifest.needs_rewrite());
            let (_, found) = load(&mem.kill_clone(), false).unwrap().unwrap();
            assert!(found == state || found == [state.clone(), lost].concat(), "{op:?} {fault:?}");
            let next = some_edits(&mut rng);
            assert_eq!(manifest.append(&next).unwrap_err().kind(), ErrorKind::Busy);
            manifest.append_or_rewrite(&next, || 2, || state.clone()).unwrap();
            state.extend(next);
            assert_eq!(load(&mem, false).unwrap().unwrap().1, state);
        }
    }
}

#[test]
fn an_unknown_current_stops_the_manifest() {
    let mem = disk();
    let faults = FaultFs::new(Arc::new(mem.clone()), 1);
    let fs: Arc<dyn Fs> = Arc::new(faults.clone());
    let mut manifest = Manifest::create(&fs, dir(), 1, ID, &[Edit::LastSeq(1)]).unwrap();
    faults.add(Rule::new(Op::SyncDir, Fault::Eio).nth(2)); // the one after the switch
    let e = manifest.rewrite(&[Edit::LastSeq(1)], 2).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Poisoned);
    assert_eq!(manifest.append(&[Edit::LastSeq(2)]).unwrap_err().kind(), ErrorKind::Poisoned);
    for model in Survival::ALL {
        let (_, found) = load(&mem.crash_clone(model, &mut Rng::new(1)), true).unwrap().unwrap();
        assert_eq!(found, [Edit::LastSeq(1)]);
    }
}

/// No descriptor for the directory's last sync: nothing was lost, so the next change goes on.
#[test]
fn a_switch_without_a_descriptor_is_done_again() {
    for model in Survival::ALL {
        let mut rng = Rng::new(4);
        let mem = disk();
        let faults = FaultFs::new(Arc::new(mem.clone()), 1);
        let fs: Arc<dyn Fs> = Arc::new(faults.clone());
        let mut state = some_edits(&mut rng);
        let mut manifest = Manifest::create(&fs, dir(), 1, ID, &state).unwrap();
        let lost = some_edits(&mut rng);
        manifest.append(&lost[..1]).unwrap();
        state.push(lost[0].clone());
        faults.add(Rule::new(Op::SyncDir, Fault::Emfile).nth(2)); // the one after the switch
        let after = [state.clone(), lost.clone()].concat();
        assert!(manifest.rewrite(&after, 2).unwrap_err().is_out_of_descriptors());
        assert!(manifest.poison().is_none() && manifest.needs_rewrite());
        let either = |fs: &MemFs, states: [&Vec<Edit>; 2], rng: &mut Rng| {
            let found = load(&fs.crash_clone(model, rng), true).unwrap().unwrap().1;
            assert!(states.contains(&&found), "{model:?}: {found:?}");
        };
        either(&mem, [&state, &after], &mut rng);
        let next = some_edits(&mut rng);
        assert_eq!(manifest.append(&next).unwrap_err().kind(), ErrorKind::Busy);
        // Once more, and then with success.
        faults.add(Rule::new(Op::SyncDir, Fault::Emfile).nth(2));
        let more = [state.clone(), next.clone()].concat();
        assert!(manifest.append_or_rewrite(&next, || 3, || state.clone()).is_err());
        either(&mem, [&after, &more], &mut rng);
        manifest.append_or_rewrite(&next, || 4, || state.clone()).unwrap();
        state = more;
        let crashed = mem.crash_clone(model, &mut rng);
        assert_eq!(load(&crashed, true).unwrap().unwrap().1, state);
        manifest.append(&lost).unwrap();
        let names = mem.list(dir()).unwrap();
        assert_eq!(names.iter().filter(|n| n.starts_with("MANIFEST-")).count(), 1, "{names:?}");
    }
}

fn edit_file(fs: &MemFs, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let file = fs.open(&dir().join(name), OpenMode::Write).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    change(&mut bytes);
    file.truncate(0).unwrap();
    file.write_at(&bytes, 0).unwrap();
}

#[test]
fn every_truncation_is_a_state_or_an_error() {
    let mut rng = Rng::new(3);
    let (base, states) = small(&mut rng, 6);
    let len = base.open(&dir().join("MANIFEST-000003"), OpenMode::Read).unwrap().len().unwrap() as usize;
    for cut in 0..len {
        let fs = base.kill_clone();
        edit_file(&fs, "MANIFEST-000003", |bytes| bytes.truncate(cut));
        match load(&fs, true) {
            Ok(found) => assert!(states.contains(&found.unwrap().1), "cut to {cut}"),
            Err(e) => assert!(e.kind() == ErrorKind::Corruption && e.offset().is_some(), "cut to {cut}: {e}"),
        }
    }
}

#[test]
fn every_flipped_bit_is_reported() {
    let mut rng = Rng::new(4);
    let (base, states) = small(&mut rng, 6);
    for name in ["MANIFEST-000003", "CURRENT"] {
        let bits = base.open(&dir().join(name), OpenMode::Read).unwrap().len().unwrap() * 8;
        for bit in 0..bits {
            let fs = base.kill_clone();
            edit_file(&fs, name, |bytes| bytes[bit as usize / 8] ^= 1 << (bit % 8));
            let e = load(&fs, true).err().unwrap_or_else(|| panic!("{name} bit {bit} of {states:?} went unnoticed"));
            assert!(e.kind() == ErrorKind::Corruption && e.path().is_some(), "{name} bit {bit}: {e}");
        }
    }
}

#[test]
fn hostile_bytes_never_panic() {
    let mut rng = Rng::new(5);
    let (base, _) = small(&mut rng, 6);
    for i in 0..2000 {
        let fs = base.kill_clone();
        let name = if i % 8 == 0 { "CURRENT" } else { "MANIFEST-000003" };
        edit_file(&fs, name, |bytes| {
            let mut junk = vec![0; rng.below(64) as usize];
            rng.fill(&mut junk);
            let at = rng.below(bytes.len() as u64) as usize;
            bytes.splice(at..(at + rng.below(64) as usize).min(bytes.len()), junk);
        });
        let _ = load(&fs, true);
    }
}

#[test]
fn a_lost_current_is_not_taken_for_an_empty_directory() {
    let (mem, _) = small(&mut Rng::new(6), 2);
    mem.remove(&dir().join("CURRENT")).unwrap();
    assert_eq!(load(&mem, true).unwrap_err().kind(), ErrorKind::Corruption);
    let (mem, _) = small(&mut Rng::new(6), 0); // as a crash during creation leaves it
    mem.remove(&dir().join("CURRENT")).unwrap();
    assert!(load(&mem, true).unwrap().is_none());
    let (mem, _) = small(&mut Rng::new(6), 2);
    mem.remove(&dir().join("MANIFEST-000003")).unwrap();
    assert_eq!(load(&mem, true).unwrap_err().kind(), ErrorKind::Corruption);
}

/// What may be found after a crash: these edits, or also those of the operation under way. `None`: no database yet.
#[derive(Clone)]
struct Expected {
    done: Option<Vec<Edit>>,
    pending: Option<Vec<Edit>>,
}

#[test]
fn a_crash_leaves_the_state_before_or_after() {
    let mut cuts = 0;
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mem = disk();
        let expected = Arc::new(Mutex::new(Expected { done: None, pending: None }));
        let clones = Arc::new(Mutex::new(Vec::new()));
        let (e, c) = (expected.clone(), clones.clone());
        mem.on_write(Some(Box::new(move |b| c.lock().unwrap().push((b.kill_clone(), e.lock().unwrap().clone())))));
        let begin = |edits: &[Edit]| expected.lock().unwrap().pending = Some(edits.to_vec());
        let done = |edits: &[Edit]| *expected.lock().unwrap() = Expected { done: Some(edits.to_vec()), pending: None };

        let mut state = some_edits(&mut rng);
        begin(&state);
        let mut manifest = Manifest::create(&(Arc::new(mem.clone()) as _), dir(), 1, ID, &state).unwrap();
        done(&state);
        for number in 2..10 {
            let mut edits = some_edits(&mut rng);
            if rng.one_in(3) {
                edits.push(Edit::RenameFamily { id: 1, name: "n".repeat(rng.below(3000) as usize) }); // over sectors
            }
            let after = [state.clone(), edits.clone()].concat();
            begin(&after);
            match rng.below(4) {
                0 => manifest.rewrite(&after, number).unwrap(),
                _ => manifest.append(&edits).unwrap(),
            }
            state = after;
            done(&state);
            if rng.one_in(4) {
                let (again, found) = load(&mem, true).unwrap().unwrap();
                assert_eq!(found, state);
                manifest = again;
            }
        }
        mem.on_write(None);
        for (i, (killed, expected)) in clones.lock().unwrap().drain(..).enumerate() {
            for model in [None].into_iter().chain(Survival::ALL.map(Some)) {
                let what = format!("seed {seed} write {i} {model:?}");
                let fs = model.map_or_else(|| killed.kill_clone(), |m| killed.crash_clone(m, &mut rng));
                cuts += 1;
                let Some((mut manifest, found)) = load(&fs, true).unwrap_or_else(|e| panic!("{what}: {e}")) else {
                    assert!(expected.done.is_none(), "{what}: the database is gone");
                    continue;
                };
                let whole = Some(&found) == expected.done.as_ref() || Some(&found) == expected.pending.as_ref();
                assert!(whole, "{what}: neither before nor after");
                // What was found must be durable by now, and the manifest go on.
                let fs = fs.crash_clone(Survival::AllLost, &mut rng);
                assert_eq!(load(&fs, false).unwrap().unwrap().1, found, "{what}");
                let more = some_edits(&mut rng);
                manifest.append_or_rewrite(&more, || 1000, || found.clone()).unwrap();
            }
        }
    }
    println!("{cuts} cuts");
}
