//! Families as directories of sorted files, and clones.

use super::common::{Dir, kt};
use kingtide::{Db, Options};

fn entries(path: &str, family: &str) -> u64 {
    kt(&["scan", path, "--family", family, "--count", "--json"]).json()["count"].as_u64().unwrap()
}

#[test]
fn families_are_cloned_exported_imported_and_ingested() {
    let dir = Dir::new();
    let (path, other, export) = (dir.at("db"), dir.at("other"), dir.at("export"));
    let db = Db::open(&path, Options::default()).unwrap();
    (0..500u32).for_each(|i| {
        db.put(i.to_be_bytes(), [7; 100]).unwrap();
    });
    db.close().unwrap();
    assert_eq!(kt(&["cf", "clone", &path, "default", "twin", "--json"]).json()["to"], "twin");
    assert_eq!(entries(&path, "twin"), 500);
    let exported = kt(&["cf", "export", &path, "twin", &export, "--json"]).json();
    assert_eq!((exported["entries"].as_u64(), exported["files"].as_u64()), (Some(500), Some(1)));
    kt(&["create", &other]).ok();
    assert_eq!(kt(&["cf", "import", &other, "tides", &export, "--json"]).json()["imported"], "tides");
    assert_eq!(entries(&other, "tides"), 500);
    let file = dir.at("export/00000001.sorted");
    let refused = kt(&["ingest", &other, &file]);
    assert_eq!((refused.code, entries(&other, "default")), (2, 0), "{refused:?}");
    let text = dir.at("text.sorted");
    std::fs::write(&text, "no sorted file, but longer than the end of one is: ".repeat(9)).unwrap();
    let message = kt(&["ingest", &other, &text, "--yes"]).fails(1); // not 4: nothing that is stored is damaged
    assert!(message.contains(&format!("ingesting {text}: ")) && !message.contains(".klog"), "{message}");
    let ingested = kt(&["ingest", &other, &file, "--move", "--yes", "--json"]).json();
    assert_eq!(ingested["files"], 1);
    assert_eq!(entries(&other, "default"), 500);
    assert!(!std::path::Path::new(&file).exists(), "it was moved");
    let dumped = kt(&["dump", "manifest", &other, "--json"]).ok();
    assert!(dumped.contains("\"written_as\""), "{dumped}");
    assert_eq!(kt(&["verify", &other, "--json"]).json()["clean"], true);
    let missing = kt(&["cf", "import", &other, "again", &dir.at("nowhere")]);
    assert!(missing.code != 0 && missing.err.contains("no exported family"), "{missing:?}");
}
