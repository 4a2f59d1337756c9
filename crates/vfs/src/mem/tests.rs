use super::*;
use kingtide_base::ErrorKind;

const KEPT: &[u8] = b"synced bytes";

fn put(fs: &MemFs, path: &str, data: &[u8]) -> Arc<dyn File> {
    let f = fs.open(Path::new(path), OpenMode::Overwrite).unwrap();
    f.write_at(data, 0).unwrap();
    f
}

fn get(fs: &MemFs, path: &str) -> Option<Vec<u8>> {
    let f = fs.open(Path::new(path), OpenMode::Read).ok()?;
    let mut all = vec![0; f.len().unwrap() as usize];
    f.read_exact_at(&mut all, 0).unwrap();
    Some(all)
}

fn sync_root(fs: &MemFs) {
    fs.sync_dir(Path::new("")).unwrap();
}

/// Clones of every model over many seeds.
fn crashes(fs: &MemFs, seeds: u64) -> impl Iterator<Item = (Survival, u64, MemFs)> + '_ {
    Survival::ALL
        .into_iter()
        .flat_map(move |model| (0..seeds).map(move |seed| (model, seed, fs.crash_clone(model, &mut Rng::new(seed)))))
}

#[test]
fn conforms() {
    let fs = MemFs::new();
    let dir = Path::new("/suite");
    fs.create_dir_all(dir).unwrap();
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    crate::conformance::check(&shared, dir);
}

#[test]
fn synced_bytes_and_names_survive_every_model() {
    let fs = MemFs::new();
    put(&fs, "a", KEPT).sync_data().unwrap();
    sync_root(&fs);
    put(&fs, "b", b"unsynced");
    for (model, seed, found) in crashes(&fs, 50) {
        assert_eq!(get(&found, "a").as_deref(), Some(KEPT), "{model:?} seed {seed}");
        match model {
            Survival::AllLost => assert_eq!(get(&found, "b"), None),
            Survival::AllKept => assert_eq!(get(&found, "b").as_deref(), Some(&b"unsynced"[..])),
            _ => {}
        }
    }
}

#[test]
fn a_synced_file_without_a_synced_name_can_be_lost_and_the_reverse() {
    let fs = MemFs::new();
    put(&fs, "data", KEPT).sync_data().unwrap();
    assert_eq!(get(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1)), "data"), None);
    let fs = MemFs::new();
    put(&fs, "name", KEPT);
    sync_root(&fs);
    assert_eq!(get(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1)), "name").as_deref(), Some(&b""[..]));
    // A directory whose parent was not synced is lost with everything in it.
    let fs = MemFs::new();
    fs.create_dir_all(Path::new("d")).unwrap();
    put(&fs, "d/f", KEPT).sync_data().unwrap();
    fs.sync_dir(Path::new("d")).unwrap();
    assert_eq!(get(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1)), "d/f"), None);
    sync_root(&fs);
    assert_eq!(get(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1)), "d/f").as_deref(), Some(KEPT));
}

#[test]
fn renames_are_atomic_and_removals_can_come_undone() {
    let fs = MemFs::new();
    put(&fs, "CURRENT", b"old").sync_data().unwrap();
    put(&fs, "gone", KEPT).sync_data().unwrap();
    sync_root(&fs);
    put(&fs, "tmp", b"new").sync_data().unwrap();
    fs.rename(Path::new("tmp"), Path::new("CURRENT")).unwrap();
    fs.remove(Path::new("gone")).unwrap();
    let mut seen = BTreeSet::new();
    for (model, seed, found) in crashes(&fs, 60) {
        let current = get(&found, "CURRENT").unwrap_or_else(|| panic!("{model:?} seed {seed}: no CURRENT"));
        assert!(current == b"old" || current == b"new", "{model:?} seed {seed}: {current:?}");
        let (tmp, gone) = (get(&found, "tmp"), get(&found, "gone"));
        assert!(tmp.is_none() || current == b"old", "{model:?} seed {seed}: both names");
        seen.insert((current == b"new", tmp.is_some(), gone.is_some()));
    }
    // Renamed or not, removed or not, and "created but not renamed".
    for case in [(false, false, true), (false, true, true), (true, false, true), (true, false, false)] {
        assert!(seen.contains(&case), "{case:?} never happened: {seen:?}");
    }
    sync_root(&fs);
    for (model, seed, found) in crashes(&fs, 20) {
        assert_eq!(get(&found, "CURRENT").as_deref(), Some(&b"new"[..]), "{model:?} seed {seed}");
        assert_eq!(get(&found, "gone"), None, "{model:?} seed {seed}");
    }
}

/// Appends to a log over random old bytes: which outcomes the models may and must produce.
#[test]
fn unsynced_blocks_survive_as_the_model_says() {
    let fs = MemFs::new();
    let log = fs.open_log(Path::new("log"), 64 << 10).unwrap();
    log.sync_all().unwrap();
    sync_root(&fs);
    let writes: Vec<(u64, Vec<u8>)> = (0..8).map(|i| (i * 1300, vec![i as u8 + 1; 1300])).collect();
    for (at, data) in &writes {
        log.write_at(data, *at).unwrap();
    }
    let written = get(&fs, "log").unwrap();
    let (mut holes, mut torn_inside) = (0, 0);
    for (model, seed, found) in crashes(&fs, 200) {
        let got = get(&found, "log").unwrap();
        assert_eq!(got.len(), 64 << 10, "the length was durable: {model:?} seed {seed}");
        for (i, &b) in got.iter().enumerate() {
            assert!(b == written[i] || b == 0, "{model:?} seed {seed}: byte {i} was never written");
        }
        let end = got.iter().rposition(|&b| b != 0).map_or(0, |i| i + 1);
        let prefix = got[..end] == written[..end];
        match model {
            Survival::AllLost => assert_eq!(end, 0),
            Survival::AllKept => assert!(got == written),
            Survival::Torn => {
                assert!(prefix, "seed {seed}: torn, but not a prefix");
                assert!(end % 1300 == 0 || end % 512 == 0, "seed {seed}: torn at {end}");
                torn_inside += u32::from(end % 1300 != 0);
            }
            Survival::RandomBlocks | Survival::Pages => holes += u32::from(!prefix),
        }
    }
    assert!(holes > 50 && torn_inside > 20, "{holes} with holes, {torn_inside} torn inside a record");
}

#[test]
fn lengths_survive_without_data_and_data_without_lengths() {
    let fs = MemFs::new();
    let f = put(&fs, "f", &[1; 1000]);
    f.sync_data().unwrap();
    sync_root(&fs);
    f.write_at(&[2; 3000], 1000).unwrap();
    let (mut length_only, mut cut) = (0, 0);
    for seed in 0..200 {
        let got = get(&fs.crash_clone(Survival::RandomBlocks, &mut Rng::new(seed)), "f").unwrap();
        assert!(got.len() == 1000 || got.len() == 4000);
        assert!(got[..1000].iter().all(|&b| b == 1), "synced bytes");
        length_only += u32::from(got.len() == 4000 && got[1000..].contains(&0));
        cut += u32::from(got.len() == 1000);
    }
    assert!(length_only > 20 && cut > 20, "{length_only} {cut}");
}

/// One run of a random scenario; at every write boundary each clone must hold what was synced by then.
#[test]
fn every_boundary_of_a_random_scenario() {
    for seed in 0..6 {
        let fs = MemFs::new();
        // What is promised for the file "f": its content at the last sync since which it was only appended to.
        let promised = Arc::new(Mutex::new((0u64, Vec::<u8>::new())));
        let checked = Arc::new(Mutex::new(0u64));
        let (p, c) = (Arc::clone(&promised), Arc::clone(&checked));
        let f = fs.open(Path::new("f"), OpenMode::Create).unwrap();
        sync_root(&fs);
        let mut pick = Rng::new(seed);
        fs.on_write(Some(Box::new(move |b| {
            let model = Survival::ALL[pick.below(4) as usize];
            let once = b.crash_clone(model, &mut pick);
            let killed = b.kill_clone();
            let twice = killed.crash_clone(model, &mut pick).crash_clone(Survival::RandomBlocks, &mut pick);
            let (_, data) = &*p.lock();
            for found in [&once, &killed, &twice] {
                let got = get(found, "f").unwrap();
                assert!(got.starts_with(data), "seed {seed}, before operation {} ({:?}), {model:?}", b.number, b.op);
                *c.lock() += 1;
            }
        })));
        let mut rng = Rng::new(seed + 100);
        let mut model = Vec::new();
        for _ in 0..150 {
            match rng.below(6) {
                0 => {
                    f.sync_data().unwrap();
                    *promised.lock() = (0, model.clone());
                }
                1 => drop(put(&fs, &format!("other{}", rng.below(3)), &[3; 2000])),
                2 => drop(fs.remove(Path::new(&format!("other{}", rng.below(3))))),
                3 => drop(fs.rename(Path::new("other1"), Path::new("other2"))),
                _ => {
                    let mut data = vec![0; 1 + rng.below(1500) as usize];
                    rng.fill(&mut data);
                    f.write_at(&data, model.len() as u64).unwrap();
                    model.extend(data);
                }
            }
        }
        let operations = fs.write_ops();
        fs.on_write(None);
        assert_eq!(*checked.lock(), 3 * (operations - 2), "every boundary after the two before the callback");
    }
}

#[test]
fn traps_keep_the_moment_before_the_write() {
    let fs = MemFs::new();
    fs.set_traps([1, 3]);
    let f = fs.open(Path::new("f"), OpenMode::Create).unwrap(); // 0
    for byte in [1, 2, 3, 4] {
        f.write_at(&[byte; 2], 0).unwrap();
    }
    let traps = fs.take_traps();
    let seen: Vec<_> = traps.iter().map(|(n, fs)| (*n, get(fs, "f").unwrap())).collect();
    assert_eq!(seen, [(1, vec![]), (3, vec![2, 2])]);
    assert!(fs.take_traps().is_empty() && fs.write_ops() == 5 && traps[0].1.write_ops() == 0);
}

#[test]
fn clones_are_separate_worlds() {
    let fs = MemFs::new();
    let lock = fs.lock(Path::new("LOCK")).unwrap();
    let f = put(&fs, "f", b"before");
    let open_and_removed = put(&fs, "gone", &[1; 100]);
    fs.remove(Path::new("gone")).unwrap();
    let killed = fs.kill_clone();
    f.write_at(b"BEFORE", 0).unwrap();
    put(&killed, "g", b"g");
    assert_eq!((get(&killed, "f").unwrap(), get(&fs, "f").unwrap()), (b"before".to_vec(), b"BEFORE".to_vec()));
    assert!(get(&fs, "g").is_none());
    // The dead process holds neither locks nor files, and the machine stayed up.
    killed.lock(Path::new("LOCK")).unwrap();
    assert_eq!(fs.lock(Path::new("LOCK")).unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(killed.boot_id(), fs.boot_id());
    killed.set_capacity(Some(1000));
    assert_eq!(killed.free_space(Path::new("")).unwrap(), 1000 - b"before".len() as u64 - 1);
    let crashed = fs.crash_clone(Survival::AllKept, &mut Rng::new(4));
    assert_ne!(crashed.boot_id(), fs.boot_id());
    assert_eq!(get(&crashed, "f").unwrap(), b"BEFORE");
    // The same generator state gives the same clone.
    let list = |seed| {
        let c = fs.crash_clone(Survival::RandomBlocks, &mut Rng::new(seed));
        (c.list(Path::new("")).unwrap(), get(&c, "f"), c.boot_id())
    };
    assert_eq!(list(9), list(9));
    drop((lock, open_and_removed));
}

#[test]
fn a_failed_sync_loses_what_it_should_have_kept() {
    let fs = MemFs::new();
    let f = put(&fs, "f", b"first.....");
    f.sync_data().unwrap();
    sync_root(&fs);
    f.write_at(b"second", 0).unwrap();
    fs.fail_syncs(1);
    let e = f.sync_data().unwrap_err();
    assert_eq!((e.kind(), e.path()), (ErrorKind::Io, Some(Path::new("f"))));
    assert_eq!(get(&fs, "f").unwrap(), b"second....", "still in the cache");
    f.write_at(b"third", 5).unwrap();
    f.sync_data().unwrap();
    for (model, seed, found) in crashes(&fs, 5) {
        assert_eq!(get(&found, "f").unwrap(), b"firstthird", "{model:?} seed {seed}");
    }
}

#[test]
fn a_failed_sync_of_a_directory_loses_the_names_that_it_should_have_kept() {
    let fs = MemFs::new();
    put(&fs, "old", b"1").sync_data().unwrap();
    sync_root(&fs);
    put(&fs, "lost", b"2").sync_data().unwrap();
    fs.remove(Path::new("old")).unwrap();
    fs.fail_dir_sync(2);
    fs.create_dir_all(Path::new("other")).unwrap();
    fs.sync_dir(Path::new("other")).unwrap();
    let e = fs.sync_dir(Path::new("")).unwrap_err();
    assert_eq!((e.kind(), e.path()), (ErrorKind::Io, Some(Path::new(""))));
    assert!(get(&fs, "lost").is_some() && get(&fs, "old").is_none(), "as the process sees it");
    put(&fs, "new", b"3").sync_data().unwrap();
    sync_root(&fs);
    for (model, seed, found) in crashes(&fs, 5) {
        let there = ["old", "lost", "new"].map(|name| get(&found, name).is_some());
        assert_eq!(there, [true, false, true], "{model:?} seed {seed}");
    }
}

#[test]
fn a_full_disk_refuses_and_recovers() {
    let fs = MemFs::new();
    fs.set_capacity(Some(10_000));
    let root = Path::new("");
    let log = fs.open_log(Path::new("log"), 6_000).unwrap();
    assert_eq!(fs.free_space(root).unwrap(), 4_000);
    let full = |r: Result<()>| assert_eq!(r.unwrap_err().kind(), ErrorKind::NoSpace);
    let f = put(&fs, "f", &[1; 3_000]);
    full(f.write_at(&[2; 2_000], 3_000));
    assert_eq!((f.len().unwrap(), fs.free_space(root).unwrap()), (4_000, 0), "what fits is written, as on a real disk");
    full(f.truncate(5_000));
    full(f.allocate(4_000, 1));
    full(fs.open_log(Path::new("log2"), 1).map(|_| ()));
    log.write_at(&[3; 6_000], 0).unwrap();
    f.write_at(&[4; 4_000], 0).unwrap();
    // A removed file gives its space back with the last handle.
    fs.remove(Path::new("f")).unwrap();
    assert_eq!(fs.free_space(root).unwrap(), 0);
    drop(f);
    assert_eq!(fs.free_space(root).unwrap(), 4_000);
    put(&fs, "g", &[5; 4_000]);
    fs.rename(Path::new("g"), Path::new("log")).unwrap();
    drop(log);
    assert_eq!(fs.free_space(root).unwrap(), 6_000);
    fs.set_capacity(None);
    put(&fs, "big", &[6; 20_000]);
}

/// Thousands of unsynced writes: clones stay cheap and dropping them does not recurse.
#[test]
fn long_journals() {
    let fs = MemFs::new();
    let f = fs.open(Path::new("f"), OpenMode::Create).unwrap();
    let mut clones = Vec::new();
    for i in 0..200_000u64 {
        f.write_at(&i.to_le_bytes(), i * 8).unwrap();
        if i % 1000 == 0 {
            clones.push(fs.kill_clone());
        }
    }
    assert!(clones.iter().enumerate().all(|(i, c)| get(c, "f").unwrap().len() == i * 8000 + 8));
    drop(f);
    drop(fs);
    drop(clones);
}

/// Small stores into a log: under the page model a power cut leaves some of them in part, at the grain of words, which no
/// block model does; and what was synced stays.
#[test]
fn pages_are_written_back_in_the_midst_of_a_store() {
    let fs = MemFs::new();
    let log = fs.open_log(Path::new("log"), 64 << 10).unwrap();
    log.write_at(&[9; 100], 0).unwrap();
    log.sync_all().unwrap();
    sync_root(&fs);
    for i in 0..200u64 {
        log.write_at(&[i as u8 + 1; 61], 100 + i * 61).unwrap();
    }
    let (mut torn, mut skipped) = (0, 0);
    for seed in 0..100 {
        let got = get(&fs.crash_clone(Survival::Pages, &mut Rng::new(seed)), "log").unwrap();
        assert!(got.len() == 64 << 10 && got[..100] == [9; 100], "seed {seed}");
        let whole: Vec<Option<bool>> = (0..200usize)
            .map(|i| {
                let bytes = &got[100 + i * 61..][..61];
                let there = bytes.iter().filter(|b| **b == i as u8 + 1).count();
                assert!(bytes.iter().all(|b| *b == 0 || *b == i as u8 + 1), "seed {seed}: bytes of another store");
                match there {
                    0 => Some(false),
                    61 => Some(true),
                    _ => None,
                }
            })
            .collect();
        torn += whole.iter().filter(|w| w.is_none()).count();
        let last = whole.iter().rposition(|w| *w == Some(true)).unwrap_or(0);
        skipped += whole[..last].iter().filter(|w| **w == Some(false)).count();
    }
    assert!(torn > 50 && skipped > 20, "{torn} stores torn, {skipped} missing before one that is there");
}

/// After a sync that failed, the next write to a page brings the whole page back to the disk, or only its own bytes.
#[test]
fn a_write_after_a_failed_sync_may_bring_its_page_back() {
    let mut seen = BTreeSet::new();
    for more in 0..2 {
        let fs = MemFs::new();
        let log = put(&fs, "log", &[1; 100]);
        sync_root(&fs);
        fs.fail_syncs(1);
        log.sync_data().unwrap_err();
        (0..more).for_each(|_| log.write_at(&[3; 10], 5000).unwrap()); // only to draw again
        log.write_at(&[2; 10], 200).unwrap();
        log.sync_data().unwrap();
        let got = get(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1)), "log").unwrap();
        assert!(got[200..210] == [2; 10] && got[100..200] == [0; 100]);
        assert!(got[..100] == [1; 100] || got[..100] == [0; 100]);
        seen.insert(got[0]);
    }
    assert_eq!(seen.len(), 2, "only one of the two ever happened");
}

/// A small record is one write. A kill leaves all of it, nothing, or now and then its beginning; a power cut leaves any of its
/// sectors, even the last without the first.
#[test]
fn records_are_written_at_once() {
    let (mut left, mut beginnings, mut heads, mut tails) = (0, 0, 0, 0);
    for at in (100..2500).step_by(8) {
        let fs = MemFs::new();
        let log = fs.open_log(Path::new("log"), 64 << 10).unwrap();
        log.sync_all().unwrap();
        sync_root(&fs);
        let kills = Arc::new(Mutex::new(Vec::new()));
        let keep = kills.clone();
        fs.on_write(Some(Box::new(move |b| {
            assert_eq!(b.op, WriteOp::Record);
            keep.lock().push(b.kill_clone());
        })));
        let put = log.write_record_at(&[1; 32], &[2; 600], at).unwrap();
        fs.on_write(None);
        let there = |fs: &MemFs| get(fs, "log").unwrap()[at as usize..][..632].to_vec();
        if !put {
            assert!(there(&fs) == [0; 632] && kills.lock().is_empty());
            left += 1;
            continue;
        }
        let whole = [&[1; 32][..], &[2; 600]].concat();
        assert!(there(&fs) == whole);
        for killed in kills.lock().iter().map(there) {
            let n = killed.iter().take_while(|b| **b != 0).count();
            assert!(killed[..n] == whole[..n] && killed[n..].iter().all(|b| *b == 0));
            beginnings += usize::from(n > 0);
        }
        for seed in 0..4 {
            let cut = there(&fs.crash_clone(Survival::RandomBlocks, &mut Rng::new(seed)));
            heads += usize::from(cut[0] == 1 && cut[631] == 0);
            tails += usize::from(cut[0] == 0 && cut[631] == 2);
        }
    }
    let log = MemFs::new().open_log(Path::new("log"), 64 << 10).unwrap();
    assert!(!log.write_record_at(&[1; 32], &[2; 993], 0).unwrap(), "too long");
    assert!(!log.write_record_at(&[1; 32], &[2; 100], 4000).unwrap(), "in two pages");
    let all = format!("{left} left to the caller, {beginnings} beginnings, {heads} heads alone, {tails} tails alone");
    assert!(left > 10 && beginnings > 10 && heads > 50 && tails > 50, "{all}");
}
