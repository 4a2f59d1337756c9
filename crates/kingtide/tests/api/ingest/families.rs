//! Families made of others: clones, exports and imports.

use super::world::*;
use kingtide::vfs::{Boundary, Fault, FaultFs, Fs, MemFs, Op, OpenMode, Rule, Survival};
use kingtide::{ColumnFamily, Db, ErrorKind, FamilyOptions, KeyOrder, Result, WriteBatch, verify};
use kingtide_base::rng::Rng;
use kingtide_testkit::RaiseOnDrop;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type All = BTreeMap<String, Contents>;

fn all(db: &Db) -> All {
    db.families().into_iter().map(|name| (name.clone(), contents(&db.family(&name).unwrap(), None))).collect()
}

/// Tables on two levels, value logs, an ingested file, tombstones, and a memtable.
fn fill(db: &Db, family: &ColumnFamily, rng: &mut Rng) {
    for round in 0..4 {
        for _ in 0..150 {
            let k = key(rng.below(400));
            match rng.below(8) {
                0 => family.delete(k).unwrap(),
                _ => family.put(k, value(rng)).unwrap(),
            };
        }
        let from = rng.below(380);
        family.delete_range(key(from)..key(from + 15)).unwrap();
        if round < 3 {
            family.flush().unwrap();
        }
        if round == 1 {
            while db.run_one_job().unwrap() {}
            let path = format!("files/{}", family.name());
            sorted_file(family, &path, 100..180, b"ingested");
            family.ingest(&[path], &kingtide::IngestOptions::new().move_files(true)).unwrap();
        }
    }
}

fn sound(fs: &MemFs, what: &str) {
    let report = verify("db", &options_on(Arc::new(fs.clone()), true)).unwrap();
    assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
}

#[test]
fn a_clone_has_the_same_contents_and_goes_its_own_way() {
    for threshold in [0, 200] {
        let fs = MemFs::new();
        let db = open(&fs);
        let options = db.default_family().options().value_threshold(threshold);
        let source = db.create_family_ordered("source", options, KeyOrder::CaseInsensitive).unwrap();
        let mut rng = Rng::new(threshold);
        fill(&db, &source, &mut rng);
        let expected = contents(&source, None);
        assert!(expected.len() > 100);
        let before = db.latest_sequence();
        let clone = db.clone_family("source", "clone").unwrap();
        assert_eq!(db.latest_sequence(), before + 1);
        assert_eq!(contents(&clone, None), expected);
        assert_eq!((clone.options(), clone.order().name()), (source.options(), source.order().name()));
        assert_eq!(db.clone_family("source", "clone").unwrap_err().kind(), ErrorKind::Exists);
        assert_eq!(db.clone_family("none", "other").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(db.clone_family("source", "").unwrap_err().kind(), ErrorKind::InvalidArgument);
        fill(&db, &source, &mut rng);
        source.compact_range(..).unwrap();
        assert_eq!(contents(&clone, None), expected, "what is done to the source");
        let of_source = contents(&source, None);
        fill(&db, &clone, &mut rng);
        let of_clone = contents(&clone, None);
        clone.compact_range(..).unwrap();
        assert_eq!(contents(&source, None), of_source, "what is done to the clone");
        let third = db.clone_family("clone", "third").unwrap();
        db.drop_family("clone").unwrap();
        assert_eq!(contents(&third, None), of_clone);
        drop((source, clone, third));
        db.close().unwrap();
        sound(&fs, "closed");
        let again = open(&fs.kill_clone());
        assert_eq!((&all(&again)["source"], &all(&again)["third"]), (&of_source, &of_clone));
        again.drop_family("source").unwrap();
        assert_eq!(all(&again)["third"], of_clone, "its files are its own");
    }
}

#[test]
fn an_export_becomes_the_same_family_in_another_database() {
    let fs = MemFs::new();
    let db = open(&fs);
    let small = db.default_family().options().target_file_size(65536).ttl(Some(Duration::from_millis(1 << 40)));
    let source = db.create_family("source", small).unwrap();
    fill(&db, &source, &mut Rng::new(4));
    source.put_ttl(b"soon", b"gone", Duration::from_secs(5)).unwrap();
    (0..3000).for_each(|i| {
        source.put(key(1000 + i), [i as u8; 100]).unwrap();
    });
    let expected = contents(&source, None);
    let info = source.export("export").unwrap();
    assert_eq!((info.sequence, info.entries), (db.latest_sequence(), expected.len() as u64));
    assert!(info.files > 1, "{info:?}");
    assert_eq!(source.export("export").unwrap_err().kind(), ErrorKind::Exists);
    let before = db.snapshot();
    let here = db.import_family("here", "export").unwrap();
    assert_eq!(contents(&here, None), expected);
    assert!(contents(&here, Some(&before)).is_empty());
    assert_eq!(here.options(), source.options());
    assert_eq!(db.import_family("here", "export").unwrap_err().kind(), ErrorKind::Exists);
    let clock = kingtide::ManualClock::at_unix_ms(1_800_000_000_000);
    let mut options = options_on(Arc::new(fs.clone()), true);
    options.clock = Some(clock.clone());
    let other = Db::open("other", options).unwrap();
    let there = other.import_family("there", "export").unwrap();
    assert_eq!(contents(&there, None), expected);
    clock.advance(Duration::from_secs(6));
    assert_eq!(contents(&there, None).len() + 1, expected.len(), "one has expired");
    there.compact_range(..).unwrap();
    there.put(b"after", b"v").unwrap();
    drop((there, other));
    let mut options = options_on(Arc::new(fs.clone()), true);
    options.clock = Some(clock);
    let other = Db::open("other", options).unwrap();
    assert_eq!(all(&other)["there"].len(), expected.len());
    assert!(other.verify().unwrap().problems.is_empty());
    // An empty family too.
    let empty = db.create_family("empty", FamilyOptions::default()).unwrap();
    assert_eq!(empty.export("nothing").unwrap().entries, 0);
    let dropped = db.create_family("dropped", Default::default()).unwrap();
    db.drop_family("dropped").unwrap();
    assert_eq!(dropped.export("of-dropped").unwrap_err().kind(), ErrorKind::Closed);
    assert!(!fs.exists(Path::new("of-dropped")).unwrap());
    assert!(contents(&db.import_family("empty again", "nothing").unwrap(), None).is_empty());
}

#[test]
fn a_damaged_or_unfinished_export_is_refused() {
    let fs = MemFs::new();
    let db = open(&fs);
    fill(&db, db.default_family(), &mut Rng::new(9));
    db.default_family().export("export").unwrap();
    let before = all(&db);
    let klogs = |fs: &MemFs| fs.list(Path::new("db")).unwrap().iter().filter(|n| n.ends_with(".klog")).count();
    let files = klogs(&fs);
    for name in ["FAMILY", "00000001.sorted"] {
        let path = Path::new("export").join(name);
        let file = fs.open(&path, OpenMode::Write).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 50).unwrap();
        file.write_at(&[byte[0] ^ 1], 50).unwrap();
        let e = db.import_family("new", "export").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        assert!(e.to_string().contains(name), "{e}");
        file.write_at(&byte, 50).unwrap();
    }
    assert_eq!((all(&db), klogs(&fs)), (before, files));
    db.import_family("new", "export").unwrap();
    let e = db.default_family().export("export").unwrap_err();
    assert!(e.kind() == ErrorKind::Exists && e.to_string().contains("a finished export"), "{e}");
    fs.remove(Path::new("export/FAMILY")).unwrap();
    assert_eq!(db.import_family("newer", "export").unwrap_err().kind(), ErrorKind::NotFound);
    // Nothing says that an export made these files.
    let e = db.default_family().export("export").unwrap_err();
    assert!(e.kind() == ErrorKind::Exists && e.to_string().contains("00000001.sorted"), "{e}");
    assert!(fs.exists(Path::new("export/00000001.sorted")).unwrap());
    fs.open(Path::new("export/FAMILY.tmp"), OpenMode::Create).unwrap();
    db.default_family().export("export").unwrap(); // takes the place of what is unfinished
    fs.open(Path::new("export/notes"), OpenMode::Create).unwrap();
    fs.rename(Path::new("export/FAMILY"), Path::new("export/FAMILY.tmp")).unwrap();
    assert_eq!(db.default_family().export("export").unwrap_err().kind(), ErrorKind::Exists);
    assert!(fs.exists(Path::new("export/00000001.sorted")).unwrap());
}

/// Whenever an export is cut short, by a kill or by a power cut, the next one into the same directory finds that it may remove
/// what is there.
#[test]
fn an_export_that_is_cut_short_can_be_made_again_in_the_same_place() {
    let fs = MemFs::new();
    let db = open(&fs);
    fill(&db, db.default_family(), &mut Rng::new(9));
    let cuts: Arc<Mutex<Vec<MemFs>>> = Arc::default();
    let keep = cuts.clone();
    fs.on_write(Some(Box::new(move |at| keep.lock().unwrap().push(at.kill_clone()))));
    db.default_family().export("export").unwrap();
    fs.on_write(None);
    let cuts = std::mem::take(&mut *cuts.lock().unwrap());
    assert!(cuts.len() > 8, "{}", cuts.len());
    for (n, cut) in cuts.iter().enumerate() {
        for left in [cut.kill_clone(), cut.crash_clone(Survival::AllLost, &mut Rng::new(n as u64))] {
            let db = open(&left);
            let e = db.default_family().export("export").err();
            // Only the last cuts leave a whole one.
            assert!(e.is_none_or(|e| e.kind() == ErrorKind::Exists && n + 2 > cuts.len()), "cut {n}");
            db.import_family("again", "export").unwrap_or_else(|e| panic!("cut {n}: {e}"));
        }
    }
}

/// What a test does to a database.
type Act = fn(&Db) -> Result<()>;

const ACTS: [(&str, Act); 2] = [
    ("clone", |db| db.clone_family("source", "new").map(drop)),
    ("import", |db| db.import_family("new", "export").map(drop)),
];

/// A database with a family to clone and an export to import, and what it holds after the act.
fn ready(fs: Arc<dyn Fs>, act: &str) -> (Db, All, All) {
    fs.create_dir_all(Path::new("files")).unwrap();
    let db = Db::open("db", options_on(fs, true)).unwrap();
    let source = db.create_family("source", db.default_family().options()).unwrap();
    fill(&db, &source, &mut Rng::new(11));
    if act == "import" {
        source.export("export").unwrap();
    }
    source.put(b"unsynced", b"v").unwrap();
    let before = all(&db);
    let mut after = before.clone();
    let mut new = before["source"].clone();
    if act == "import" {
        new.remove(&b"unsynced"[..]);
    }
    after.insert("new".to_owned(), new);
    (db, before, after)
}

#[test]
fn a_power_cut_leaves_the_whole_new_family_or_none() {
    let (mut cuts, mut with) = (0, 0);
    for (name, act) in ACTS {
        let fs = MemFs::new();
        let (db, _, after) = ready(Arc::new(fs.clone()), name);
        let clones = Arc::new(Mutex::new(Vec::new()));
        let keep = clones.clone();
        fs.on_write(Some(Box::new(move |b: &Boundary<'_>| keep.lock().unwrap().push(b.kill_clone()))));
        act(&db).unwrap();
        fs.on_write(None);
        assert_eq!(all(&db), after);
        let clones = std::mem::take(&mut *clones.lock().unwrap());
        let step = if full() { 1 } else { 3 };
        for (i, cut) in clones.iter().enumerate().filter(|(i, _)| i % step == 0 || i + 25 > clones.len()) {
            for model in Survival::ALL {
                let what = format!("{name}, cut {i} of {}, {model:?}", clones.len());
                let disk = cut.crash_clone(model, &mut Rng::new(i as u64));
                let db = Db::open("db", options_on(Arc::new(disk.clone()), true)).unwrap();
                let found = all(&db);
                cuts += 1;
                if found.contains_key("new") {
                    assert!(found == after, "{what}: not the whole family");
                    with += 1;
                } else {
                    act(&db).unwrap_or_else(|e| panic!("{what}: again: {e}"));
                }
                drop(db);
                sound(&disk, &what);
            }
        }
        let disk = fs.crash_clone(Survival::AllLost, &mut Rng::new(1));
        assert_eq!(all(&open(&disk)), after, "{name}: acknowledged");
    }
    println!("{cuts} cuts, {with} with the new family");
    assert!(with > 0 && with < cuts);
}

#[test]
fn a_failure_leaves_no_family_and_no_files() {
    let mut refused = 0;
    for (name, act) in ACTS {
        for op in Op::ALL {
            for n in (1..).step_by(if full() { 1 } else { 4 }) {
                let fs = MemFs::new();
                let faulty = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
                let (db, before, after) = ready(faulty.clone(), name);
                faulty.add(Rule::new(op, Fault::Eio).nth(n));
                let outcome = act(&db);
                let hit = faulty.stats().injected() > 0;
                faulty.clear();
                let what = format!("{name}, {op:?} {n}");
                if let Err(e) = &outcome {
                    refused += 1;
                    assert!(hit, "{what}: {e}");
                    // It is done when the log has it, and only its sync failed.
                    let done = e.to_string().contains("it was done");
                    assert_eq!(all(&db), if done { after.clone() } else { before }, "{what}: {e}");
                    match act(&db) {
                        Ok(()) => assert_eq!(all(&db), after, "{what}: again"),
                        Err(e) if done => assert_eq!(e.kind(), ErrorKind::Exists, "{what}: {e}"),
                        Err(e) => assert_eq!(e.kind(), ErrorKind::Poisoned, "{what}: {e}"),
                    }
                } else {
                    assert_eq!(all(&db), after, "{what}");
                }
                drop(db);
                sound(&fs, &what);
                if !hit {
                    break;
                }
            }
        }
    }
    println!("{refused} refused");
    assert!(refused > 10);
}

/// Two threads write pairs of keys with equal values in one batch each, while clones and exports are made.
#[test]
fn under_load_clones_and_exports_are_of_one_moment() {
    let rounds = if full() { 100 } else { 6 };
    let fs = MemFs::new();
    let db = Db::open("db", options_on(Arc::new(fs.clone()), false)).unwrap();
    let source = db.create_family("source", db.default_family().options()).unwrap();
    let stop = AtomicBool::new(false);
    let mut pairs = 0;
    std::thread::scope(|s| {
        let end = RaiseOnDrop(&stop);
        for t in 0..2u64 {
            let (db, source, stop) = (&db, &source, &stop);
            s.spawn(move || {
                let mut rng = Rng::new(t);
                while !stop.load(Ordering::Relaxed) {
                    let (i, v) = (rng.below(500) * 2 + t, value(&mut rng));
                    let mut batch = WriteBatch::new();
                    batch.put(source, &key(i), &v).unwrap();
                    batch.put(source, &key(i + 5000), &v).unwrap();
                    db.write(batch).unwrap();
                }
            });
        }
        while db.latest_sequence() < 2000 {
            std::thread::yield_now();
        }
        for n in 0..rounds {
            let exported = format!("export-{n}");
            source.export(&exported).unwrap();
            let made = [
                db.clone_family("source", &format!("clone-{n}")).unwrap(),
                db.import_family(&format!("import-{n}"), &exported).unwrap(),
            ];
            for family in made {
                let all = contents(&family, None);
                for i in 0..1000 {
                    assert_eq!(all.get(&key(i)), all.get(&key(i + 5000)), "{} {i}", family.name());
                    pairs += u32::from(all.contains_key(&key(i)));
                }
                db.drop_family(&family.name()).unwrap();
            }
        }
        drop(end);
    });
    println!("{rounds} rounds, {pairs} pairs");
    assert!(pairs > 0);
    drop(source);
    db.close().unwrap();
    sound(&fs, "at the end");
}

/// Or else its dead space would not be given back before its tables happen to be compacted.
#[test]
fn a_clone_knows_what_its_tables_hide() {
    let fs = MemFs::new();
    let db = open(&fs);
    let options = FamilyOptions::new().compression(kingtide::Compression::None).value_threshold(200);
    let source = db.create_family("source", options).unwrap();
    for version in 0..3u8 {
        (0..20).for_each(|i| _ = source.put(key(i), [version; 1000]).unwrap());
        if version < 2 {
            source.flush().unwrap(); // the last is in a memtable
        }
    }
    let clone = db.clone_family("source", "clone").unwrap();
    source.flush().unwrap();
    let hidden = |name: &str| db.stats().families.iter().find(|f| f.name == name).unwrap().vlog_hidden_bytes;
    assert!(hidden("source") >= 40 * 1000, "{}", hidden("source"));
    assert_eq!(hidden("clone"), hidden("source"));
    assert_eq!(contents(&clone, None), contents(&source, None));
}
