//! `kt dump` and `kt verify`: whole files, damaged ones, and wrong names.

use super::common::{Dir, damage, file_ending, kt, kt_with};
use kingtide::{Db, Options, TransactionOptions, WriteBatch};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// A database with tables, value logs, range tombstones and a log that was not flushed, as if its process were killed.
fn database(dir: &Dir) -> String {
    let (path, copy) = (dir.at("db"), dir.path("copy"));
    let mut options = Options::new().manual_jobs(true);
    options.db.change_retention = 64 << 20;
    options.family.compression = kingtide::Compression::None;
    let db = Db::open(&path, options).unwrap();
    for i in 0..300u32 {
        db.put(format!("key-{i:05}"), vec![b'v'; if i % 3 == 0 { 900 } else { 40 }]).unwrap();
    }
    let _earlier = db.snapshot(); // so that the flush keeps what is deleted
    let mut batch = WriteBatch::new();
    batch.delete(db.default_family(), b"key-00001").unwrap();
    batch.delete_range(db.default_family(), b"key-00100"..b"key-00110").unwrap();
    db.write(batch).unwrap();
    db.flush().unwrap();
    db.put_ttl(b"late", b"v", std::time::Duration::from_secs(1000)).unwrap();
    let mut txn = db.begin_with(TransactionOptions::default()).unwrap();
    txn.put(db.default_family(), b"t", b"w").unwrap();
    txn.prepare(b"xid").unwrap();
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(&path).unwrap() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, copy.join(from.file_name().unwrap())).unwrap();
    }
    copy.display().to_string()
}

fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|l| l["kind"] == kind).collect()
}

/// Standard output of a dump that met damage, and the message.
#[track_caller]
fn damaged(args: &[&str]) -> (Vec<Value>, Value) {
    let run = kt(&[args, &["--json"]].concat());
    let lines = run.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let error = serde_json::from_str(&run.fails(4)).unwrap();
    (lines, error)
}

fn offset_of(error: &Value) -> u64 {
    error["error"]["offset"].as_u64().unwrap()
}

#[test]
fn the_log_is_shown_and_damage_passed_over() {
    let dir = Dir::new();
    let db = database(&dir);
    let lines = kt(&["dump", "wal", &db, "--json"]).lines();
    let records = of_kind(&lines, "record");
    assert_eq!(records[0]["operations"][0]["key"], "key-00000");
    assert_eq!(records[300]["operations"][1]["op"], "delete_range");
    assert!(records[301]["operations"][0]["expires_at"].is_u64());
    assert_eq!(records[302]["prepared"]["xid"], "xid");
    assert_eq!(records[302]["prepared"]["operations"][0]["key"], "t");
    assert!(kt(&["dump", "wal", &db]).ok().contains("prepares 'xid', snapshot"));

    let file = file_ending(Path::new(&db), ".wal");
    let first = kt(&["dump", "wal", &file.display().to_string(), "--json"]).lines();
    let records = of_kind(&first, "record");
    let (at, next) = (records[10]["offset"].as_u64().unwrap(), records[11]["offset"].as_u64().unwrap());
    damage(&file, at as usize + 40);
    let (lines, error) = damaged(&["dump", "wal", &file.display().to_string()]);
    assert_eq!(offset_of(&error), at);
    assert_eq!(of_kind(&lines, "damaged")[0]["resumes"], next);
    assert_eq!(of_kind(&lines, "record").len(), records.len() - 1);
}

#[test]
fn the_manifest_is_shown_and_damage_passed_over() {
    let dir = Dir::new();
    let db = database(&dir);
    let lines = kt(&["dump", "manifest", &db, "--json"]).lines();
    let records = of_kind(&lines, "record");
    assert_eq!(records[0]["edits"][0]["edit"], "create_family");
    let edits: Vec<&Value> = records.iter().flat_map(|r| r["edits"].as_array().unwrap()).collect();
    assert!(edits.iter().any(|e| e["edit"] == "add_file" && e["max_key"] == "key-00299"));
    assert!(kt(&["dump", "manifest", &db]).ok().contains("create family 0 'default', bytewise order"));

    let file = std::fs::read_dir(&db).unwrap().map(|e| e.unwrap().path());
    let file = file.into_iter().find(|p| p.to_string_lossy().contains("MANIFEST-")).unwrap();
    let at = records[1]["offset"].as_u64().unwrap();
    damage(&file, at as usize + 12);
    let (lines, error) = damaged(&["dump", "manifest", &file.display().to_string()]);
    assert_eq!(offset_of(&error), at);
    assert_eq!(of_kind(&lines, "record").len(), records.len() - 1);
}

#[test]
fn tables_are_shown_and_damage_passed_over() {
    let dir = Dir::new();
    let db = database(&dir);
    let lines = kt(&["dump", "klog", &db, "--json"]).lines();
    let entries = of_kind(&lines, "entry");
    assert_eq!(entries[0]["op"], "put_pointer");
    assert_eq!(of_kind(&lines, "range")[0]["key"], "key-00100");
    assert_eq!(of_kind(&lines, "table")[0]["order"], "bytewise");
    let file = file_ending(Path::new(&db), ".klog");
    let name = file.display().to_string();
    let last = entries.last().unwrap()["offset"].as_u64().unwrap();
    assert!(last > 0, "one block only");

    damage(&file, 20);
    let (lines, error) = damaged(&["dump", "klog", &name]);
    assert_eq!(offset_of(&error), 0);
    let left = of_kind(&lines, "entry").len();
    assert!(left > 0 && left < entries.len());
    damage(&file, 20); // as it was
    // Without the footer, block after block.
    let len = std::fs::metadata(&file).unwrap().len() as usize;
    damage(&file, len - 1);
    let (lines, _) = damaged(&["dump", "klog", &name]);
    assert_eq!(of_kind(&lines, "entry").len(), entries.len());
}

#[test]
fn value_logs_are_shown_and_damage_passed_over() {
    let dir = Dir::new();
    let db = database(&dir);
    let lines = kt(&["dump", "vlog", &db, "--json"]).lines();
    let values = of_kind(&lines, "value");
    assert_eq!((values.len(), &values[0]["raw_bytes"]), (100, &json!(900)));
    let short = kt(&["dump", "vlog", &db, "--no-values"]).ok();
    assert!(short.lines().all(|l| l.len() < 200), "{short}");

    let file = file_ending(Path::new(&db), ".vlog");
    let (at, next) = (values[5]["offset"].as_u64().unwrap(), values[6]["offset"].as_u64().unwrap());
    damage(&file, at as usize + 100);
    let (lines, error) = damaged(&["dump", "vlog", &file.display().to_string()]);
    assert_eq!(offset_of(&error), at);
    assert_eq!(of_kind(&lines, "damaged")[0]["resumes"], next);
    assert_eq!(of_kind(&lines, "value").len(), 99);
    damage(&file, 0);
    let (lines, error) = damaged(&["dump", "vlog", &db]);
    assert_eq!(of_kind(&lines, "value").len(), 99);
    assert!(error["error"]["message"].as_str().unwrap().starts_with("2 damaged places; the first: "), "{error}");
}

#[test]
fn wrong_files_are_refused() {
    let dir = Dir::new();
    let db = database(&dir);
    kt(&["dump", "wal", &dir.at("none")]).fails(3);
    std::fs::create_dir(dir.path("empty")).unwrap();
    kt(&["dump", "klog", &dir.at("empty")]).fails(3);
    let table = file_ending(Path::new(&db), ".klog").display().to_string();
    kt(&["dump", "wal", &table]).fails(2);
    std::fs::write(dir.path("x.klog"), b"text").unwrap();
    kt(&["dump", "klog", &dir.at("x.klog")]).fails(2);
    std::fs::write(dir.path("00000001.klog"), b"text").unwrap();
    kt(&["dump", "klog", &dir.at("00000001.klog")]).code.eq(&4).then_some(()).unwrap();
}

/// While another process writes, a log segment may be removed between the listing and its turn. Here a dangling link stands for it.
#[cfg(unix)]
#[test]
fn a_file_removed_since_the_listing_is_skipped() {
    let dir = Dir::new();
    let path = database(&dir);
    std::os::unix::fs::symlink(dir.at("nothing"), Path::new(&path).join("000001.wal")).unwrap();
    let parts = kt(&["dump", "wal", &path, "--json"]).lines();
    let removed = of_kind(&parts, "removed");
    assert_eq!((removed.len(), &removed[0]["file"]), (1, &json!(format!("{path}/000001.wal"))));
    assert!(!of_kind(&parts, "record").is_empty(), "the other segments follow");
    assert!(kt(&["dump", "wal", &path]).ok().contains("removed or reused since the directory was listed"));
    kt(&["dump", "wal", &format!("{path}/000001.wal")]).fails(3); // a file named on the command line must exist
}

#[test]
fn verification_finds_damage() {
    let dir = Dir::new();
    let db = database(&dir);
    assert!(kt(&["verify", &db]).ok().ends_with("no problems found\n"));
    let report = kt(&["verify", &db, "--json"]).json();
    assert_eq!((&report["clean"], &report["checked"]["values"]), (&json!(true), &json!(100)));
    let table = file_ending(Path::new(&db), ".klog");
    damage(&table, 20);
    let (lines, error) = damaged(&["verify", &db]);
    assert_eq!(lines[0]["damaged"], true);
    let problems = lines[0]["problems"].as_array().unwrap();
    assert!(problems.iter().any(|p| p["path"] == *table.to_string_lossy()));
    let errors = problems.iter().filter(|p| p["severity"] == "error").count();
    let said = format!("{db} is damaged: {errors} problem");
    assert!(error["error"]["message"].as_str().unwrap().starts_with(&said), "{error}");
    // Each problem is reported once, in the output, and the message only says how many there are.
    let text = kt(&["verify", &db]);
    let problems: Vec<&str> = text.out.lines().filter(|l| l.starts_with("error")).collect();
    assert!(problems.len() == problems.iter().collect::<std::collections::HashSet<_>>().len(), "{problems:?}");
    assert!(
        text.out.contains(".klog") && !text.err.contains(".klog") && !text.out.contains("damage found"),
        "{text:?}"
    );
    // Keys are shown in the format that the user asked for, wherever the flag stands.
    let hex = kt(&["--key-format", "hex", "verify", &db]).out;
    assert!(!hex.contains("key-00") && hex.contains("6b65792d"), "{hex}");
    kt(&["verify", &dir.at("none")]).fails(3);
    std::fs::create_dir(dir.path("empty")).unwrap();
    kt(&["verify", &dir.at("empty")]).fails(3);
}

/// `kt verify db | head` must not tell a script that the database is sound.
#[cfg(unix)]
#[test]
fn damage_decides_the_exit_code_although_nobody_reads_the_report() {
    use std::os::{fd::OwnedFd, unix::net::UnixStream};
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["create", &db, "-o", "block_size=1K", "-o", "compression=none"]).ok();
    let line = |i: usize| format!("{{\"key\":\"key-{i:05}\",\"value\":\"{}\"}}\n", "v".repeat(200));
    kt_with(&["import", &db, "--yes"], (0..6_000).map(line).collect::<String>().as_bytes()).ok();
    kt(&["compact", &db]).ok();
    let table = file_ending(Path::new(&db), ".klog");
    let mut bytes = std::fs::read(&table).unwrap();
    bytes.iter_mut().take(1_000_000).step_by(800).for_each(|b| *b ^= 4);
    std::fs::write(&table, bytes).unwrap();
    for args in [&["verify", &db][..], &["verify", &db, "--json"]] {
        assert!(kt(args).out.len() > 1 << 17, "{args:?}: it fits into buffers");
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        let mut command = Command::new(env!("CARGO_BIN_EXE_kt"));
        let run = command.args(args).stdout(OwnedFd::from(theirs)).output().unwrap();
        let said = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(4), "{args:?}: {said}");
        assert!(said.contains("is damaged: ") && !said.contains("standard output"), "{said}");
    }
    // A report that could not be written is a failure of its own kind, which does not hide the damage.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_kt")).args(["verify", &db]).stdout(full).output().unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(
        run.status.code() == Some(4) && said.contains("is damaged: ") && said.contains("standard output"),
        "{said}"
    );
}

/// What is left of a database whose files went is no evidence that it was empty.
#[test]
fn a_repair_without_a_manifest_and_tables_is_not_complete() {
    let dir = Dir::new();
    let (db, into) = (dir.at("db"), dir.at("into"));
    kt(&["create", &db]).ok();
    kt(&["put", &db, "key", "value"]).ok();
    for entry in std::fs::read_dir(&db).unwrap() {
        let path = entry.unwrap().path();
        if !["CURRENT", "LOCK"].contains(&&*path.file_name().unwrap().to_string_lossy()) {
            std::fs::remove_file(path).unwrap();
        }
    }
    let (lines, error) = damaged(&["repair", &db, &into, "--yes"]);
    assert_eq!((&lines[0]["complete"], &lines[0]["families"][0]["name"]), (&json!(false), &json!("default")));
    assert!(error["error"]["message"].as_str().unwrap().contains("only partly readable"), "{error}");
    let note = lines[0]["notes"][0].as_str().unwrap();
    assert!(note.contains("entries and families may be missing"), "{note}");
}

/// Who may read the files does not depend on the manifest.
#[cfg(unix)]
#[test]
fn a_repair_without_a_manifest_keeps_the_permissions_of_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Dir::new();
    let (db, into) = (database(&dir), dir.at("into"));
    let current = |db: &str| Path::new(db).join("CURRENT");
    std::fs::set_permissions(current(&db), std::fs::Permissions::from_mode(0o640)).unwrap();
    let text = std::fs::read_to_string(current(&db)).unwrap();
    std::fs::remove_file(Path::new(&db).join(text.split_whitespace().next().unwrap())).unwrap();
    let run = kt(&["repair", &db, &into, "--yes"]);
    assert!([0, 4].contains(&run.code), "{run:?}");
    assert_eq!(std::fs::metadata(current(&into)).unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn repair_keeps_what_can_be_read() {
    let dir = Dir::new();
    let (db, into) = (database(&dir), dir.at("into"));
    let table = file_ending(Path::new(&db), ".klog");
    damage(&table, 20);
    assert!(kt(&["repair", &db, &into]).fails(2).contains("--yes"));
    let (lines, error) = damaged(&["repair", &db, &into, "--yes"]);
    assert_eq!((&lines[0]["complete"], &lines[0]["families"][0]["name"]), (&json!(false), &json!("default")));
    assert!(!lines[0]["families"][0]["lost"].as_array().unwrap().is_empty(), "{lines:?}");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("only partly readable; salvaged data is in") && message.contains("into"), "{message}");
    let named = |text: &str| text.contains("lost: keys ") && text.contains(" of family 'default'");
    assert!(named(message), "{message}");
    assert_eq!(kt(&["get", &into, "key-00299"]).ok().len(), 41);
    kt(&["repair", &db, &into, "--yes"]).fails(1);
    kt(&["repair", &dir.at("none"), &dir.at("other"), "--yes"]).fails(3);
    damage(&table, 20); // as it was
    let whole = kt(&["repair", &db, &dir.at("whole"), "--yes"]).ok();
    assert!(whole.contains("default"), "{whole}");
}
