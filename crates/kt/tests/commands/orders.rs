//! Families in a key order that only the program which created them knows.

use super::common::{Dir, damage, file_ending, kt};
use kingtide::{CustomOrder, Db, KeyOrder, Options};
use serde_json::json;
use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

/// From the last byte to the first, descending: bytewise nothing is where it belongs.
struct Tails;

impl CustomOrder for Tails {
    fn name(&self) -> &str {
        "tails"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        b.iter().rev().cmp(a.iter().rev())
    }
}

/// A database with a family 'own' in that order: tables on several levels, a range tombstone, large values, and something in the log.
fn database(dir: &Dir) -> String {
    let path = dir.at("db");
    let options = Options::new().manual_jobs(true).custom_order(Arc::new(Tails));
    let db = Db::open(&path, options.clone()).unwrap();
    db.put("tide", "high").unwrap();
    let order = KeyOrder::Custom(Arc::new(Tails));
    let own = db.create_family_ordered("own", options.family.compression(kingtide::Compression::None), order).unwrap();
    for round in 0..3u32 {
        for i in 0..200u32 {
            own.put(format!("key-{i:04}-{round}"), vec![b'v'; if i % 4 == 0 { 900 } else { 40 }]).unwrap();
        }
        let kept = db.snapshot(); // so that the flush keeps the tombstone
        own.delete_range(&b"key-0109-0"[..]..&b"key-0050-0"[..]).unwrap();
        own.flush().unwrap();
        if round == 1 {
            own.compact().unwrap();
        }
        drop(kept);
    }
    own.put("logged", "only").unwrap();
    db.sync().unwrap();
    std::mem::forget((db, own)); // as if the process were killed
    // Another directory, since this process still holds the lock of the first.
    let copy = dir.at("copy");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(&path).unwrap() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, Path::new(&copy).join(from.file_name().unwrap())).unwrap();
    }
    copy
}

#[test]
fn verify_checks_what_needs_no_order_and_says_what_it_left_out() {
    let dir = Dir::new();
    let db = database(&dir);
    let text = kt(&["verify", &db]).ok();
    let left_out = text.lines().find(|l| l.starts_with("warning")).unwrap_or_else(|| panic!("{text}"));
    assert!(
        left_out.contains("key order 'tails' was not given, so these were not checked")
            && left_out.contains("family 'own'")
    );
    assert!(text.ends_with("no damage found\n"), "{text}");
    let report = kt(&["verify", &db, "--json"]).json();
    assert_eq!((&report["clean"], &report["damaged"]), (&json!(false), &json!(false)));
    let problems = report["problems"].as_array().unwrap();
    let told: Vec<_> = problems.iter().filter(|p| p["severity"] != "info").collect();
    assert!(matches!(&told[..], [p] if p["kind"] == "unknown_order" && p["family"] == "own"), "{told:?}");
    // With the order, as many entries and values are checked.
    let with = kingtide::verify(&db, &Options::new().custom_order(Arc::new(Tails))).unwrap();
    assert!(with.is_clean(), "{:?}", with.problems);
    let checked = &report["checked"];
    let counts = [("entries", with.counts.entries), ("values", with.counts.values), ("blocks", with.counts.blocks)];
    for (name, n) in counts {
        assert!(n > 2 && checked[name] == n, "{name}: {} {n}", checked[name]);
    }

    // What needs no order is found: a block, a value, a missing file, a size.
    let table = file_ending(Path::new(&db), ".klog");
    let whole = std::fs::read(&table).unwrap();
    damage(&table, 20);
    let damaged = |says: &str| {
        let run = kt(&["verify", &db]);
        assert_eq!(run.code, 4, "{run:?}");
        assert!(run.out.lines().any(|l| l.starts_with("error") && l.contains(says)), "{says}: {run:?}");
    };
    damaged("block");
    std::fs::write(&table, [&whole[..], b"!"].concat()).unwrap();
    damaged("the manifest says");
    std::fs::remove_file(&table).unwrap();
    damaged("missing");
    std::fs::write(&table, &whole).unwrap();
    kt(&["verify", &db]).ok();
    let values = file_ending(Path::new(&db), ".vlog");
    damage(&values, 60);
    damaged(".vlog");
}

#[test]
fn commands_that_look_for_no_key_work_and_others_name_the_order() {
    let dir = Dir::new();
    let db = database(&dir);
    assert!(kt(&["info", &db]).ok().contains("tails"));
    let info = kt(&["info", &db, "--json"]).json();
    assert!(info["families"].as_array().unwrap().iter().any(|f| f["name"] == "own" && f["order"] == "tails"));
    kt(&["stats", &db]).ok();
    assert!(kt(&["cf", "list", &db]).ok().contains("own"));
    assert_eq!(kt(&["txn", "list", &db, "--json"]).json()["prepared"], json!([]));
    // The other families can be read.
    assert_eq!(kt(&["get", &db, "tide"]).ok(), "high\n");
    assert!(kt(&["export", &db, "--family", "default"]).ok().contains("tide"));
    // Of this one no key can be found, and nothing can be written.
    let (out, into) = (dir.at("out"), dir.at("into"));
    for refused in [
        &["get", &db, "key-0001-0", "--family", "own"][..],
        &["scan", &db, "--family", "own"],
        &["size", &db, "--family", "own"],
        &["export", &db],
        &["cf", "export", &db, "own", &out],
        &["put", &db, "tide", "low"],
        &["checkpoint", &db, &into],
    ] {
        assert!(kt(refused).fails(1).contains("'tails'"), "{refused:?}");
    }
    assert!(!Path::new(&out).exists());
    // The dump of a table with a range tombstone whose bounds are not in the order of their bytes.
    let table = file_ending(Path::new(&db), ".klog").display().to_string();
    assert!(kt(&["dump", "klog", &table]).ok().contains("tails order"));
}
