//! `kt backup` and `kt checkpoint`.

use super::common::{Dir, kt};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;

#[test]
fn a_backup_is_made_listed_verified_restored_and_deleted() {
    let dir = Dir::new();
    let (db, backups, restored) = (dir.at("db"), dir.at("backups"), dir.at("restored"));
    kt(&["put", &db, "tide", "high", "--create"]).ok();
    let first = kt(&["backup", "create", &db, &backups, "--json"]).json();
    kt(&["put", &db, "tide", "low"]).ok();
    assert!(kt(&["backup", "create", &db, &backups]).ok().starts_with("backup "));
    let listed = kt(&["backup", "list", &backups, "--json"]).json();
    let ids: Vec<String> = listed["backups"].as_array().unwrap().iter().map(|b| b["id"].to_string()).collect();
    assert_eq!((ids.len(), &listed["backups"][0]), (2, &first));
    assert!(kt(&["backup", "list", &backups]).ok().contains("sequence"));
    assert_eq!(kt(&["backup", "verify", &backups]).ok(), "2 backups verified, no problems found\n");

    kt(&["backup", "restore", &backups, &ids[0], &restored]).ok();
    assert_eq!(kt(&["get", &restored, "tide"]).ok(), "high\n");
    kt(&["backup", "restore", &backups, &ids[1], &restored]).fails(1);
    kt(&["backup", "restore", &backups, "99", &dir.at("other")]).fails(3);

    assert!(kt(&["backup", "delete", &backups, &ids[0]]).fails(2).contains("--yes"));
    kt(&["backup", "delete", &backups, &ids[0], "--yes"]).ok();
    kt(&["backup", "delete", &backups, &ids[0], "--yes"]).fails(3);
    kt(&["backup", "verify", &backups, &ids[0]]).fails(3);

    for file in std::fs::read_dir(dir.path("backups")).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()) {
        for file in std::fs::read_dir(file).unwrap().map(|e| e.unwrap().path()) {
            if file.extension().is_none_or(|e| e != "backup") && std::fs::metadata(&file).unwrap().len() > 10 {
                super::common::damage(&file, 5);
            }
        }
    }
    assert!(kt(&["backup", "verify", &backups]).fails(4).contains(&format!("backup {}", ids[1])));
    kt(&["backup", "list", &dir.at("none")]).fails(3);
    // A directory of something else, which is not what was meant, is not verified.
    assert!(kt(&["backup", "verify", &db]).fails(3).contains("no backups"));
    kt(&["backup", "create", &dir.at("none"), &backups]).fails(3);
}

/// What an interrupted restore leaves, at whatever moment, is not a database to repair, and the commands say so.
#[test]
fn an_unfinished_restore_is_not_reported_as_damage() {
    let dir = Dir::new();
    let (db, backups, restored) = (dir.at("db"), dir.at("backups"), dir.at("restored"));
    kt(&["put", &db, "tide", "high", "--create"]).ok();
    kt(&["backup", "create", &db, &backups]).ok();
    kt(&["backup", "restore", &backups, "1", &restored]).ok();
    std::fs::write(dir.path("restored").join("INCOMPLETE.tmp"), "").unwrap();
    std::fs::remove_file(dir.path("restored").join("CURRENT")).unwrap();
    std::fs::create_dir(dir.path("begun")).unwrap();
    std::fs::write(dir.path("begun").join("INCOMPLETE.tmp"), "").unwrap();
    for left in [&restored, &dir.at("begun")] {
        let commands = [
            &["info", left][..],
            &["get", left, "tide"],
            &["put", left, "tide", "low"],
            &["put", left, "tide", "low", "--create"],
            &["create", left],
            &["changes", left],
            &["repair", left, &dir.at("repaired"), "--yes"],
        ];
        for command in commands {
            let error = kt(command).fails(4);
            assert!(error.contains("unfinished copy") && !error.contains("kt repair"), "{command:?}: {error}");
        }
        let verified = kt(&["verify", left]);
        assert_eq!(verified.code, 4, "{verified:?}");
        assert!(verified.out.contains("unfinished copy"), "{verified:?}");
    }
    kt(&["backup", "restore", &backups, "1", &restored]).ok();
    assert_eq!(kt(&["get", &restored, "tide"]).ok(), "high\n");
}

/// A damaged backup does not keep the others from being verified.
#[test]
fn every_backup_is_verified() {
    let dir = Dir::new();
    let (db, backups) = (dir.at("db"), dir.at("backups"));
    let files = || -> BTreeSet<PathBuf> {
        let dirs = std::fs::read_dir(dir.path("backups")).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir());
        dirs.flat_map(|d| std::fs::read_dir(d).unwrap().map(|e| e.unwrap().path())).collect()
    };
    let mut own = Vec::new();
    for n in 0..3 {
        let before = if n == 0 { BTreeSet::new() } else { files() };
        kt(&["put", &db, &format!("tide {n}"), "high", "--create"]).ok();
        kt(&["backup", "create", &db, &backups]).ok();
        let table = |p: &&PathBuf| p.to_string_lossy().contains("klog");
        own.push(files().difference(&before).find(table).expect("a table of its own").clone());
    }
    let ids: Vec<u64> = {
        let listed = kt(&["backup", "list", &backups, "--json"]).json();
        listed["backups"].as_array().unwrap().iter().map(|b| b["id"].as_u64().unwrap()).collect()
    };
    super::common::damage(&own[2], 20);
    assert!(kt(&["backup", "verify", &backups, &ids[2].to_string()]).fails(4).contains(&format!("backup {}", ids[2])));
    let run = kt(&["backup", "verify", &backups]);
    assert!(run.out.contains(&format!("backup {}: ", ids[2])), "{}", run.out);
    assert!(run.out.ends_with("2 backups verified, no problems found\n"), "{}", run.out);
    assert!(run.fails(4).contains(&format!("1 of 3 failed verification: backup {}", ids[2])));
    // The other backups share the files of the first one.
    super::common::damage(&own[0], 20);
    let run = kt(&["backup", "verify", &backups, "--json"]);
    let told: serde_json::Value = serde_json::from_str(run.out.lines().next().unwrap()).unwrap();
    let failed: Vec<u64> = told["failed"].as_array().unwrap().iter().map(|f| f["id"].as_u64().unwrap()).collect();
    assert_eq!((failed, &told["verified"]), (ids, &json!([])));
    assert_eq!(told["failed"][0]["error"]["exit_code"], 4);
    run.fails(4);
}

#[test]
fn a_checkpoint_is_a_database() {
    let dir = Dir::new();
    let (db, copy) = (dir.at("db"), dir.at("copy"));
    kt(&["put", &db, "tide", "high", "--create"]).ok();
    let made = kt(&["checkpoint", &db, &copy, "--json"]).json();
    assert_eq!(made["sequence"], json!(1));
    assert_eq!(kt(&["get", &copy, "tide"]).ok(), "high\n");
    kt(&["checkpoint", &db, &copy]).fails(1);
    kt(&["checkpoint", &dir.at("none"), &dir.at("other")]).fails(3);
}
