//! Every command as a user calls it: what it prints for a person and for a program, and how it fails.

use super::common::{Dir, damage, file_ending, kt, kt_with};
use kingtide::{Db, Options, TransactionOptions};
use serde_json::{Value, json};

/// A database with a few entries, in the directory's `db`.
fn small(dir: &Dir) -> String {
    let db = dir.at("db");
    kt(&["create", &db]).ok();
    for (key, value) in [("apple", "red"), ("banana", "yellow"), ("cherry", "dark\tred")] {
        kt(&["put", &db, key, value]).ok();
    }
    db
}

#[test]
fn a_key_is_put_read_and_deleted() {
    let dir = Dir::new();
    let db = small(&dir);
    assert_eq!(kt(&["get", &db, "banana"]).ok(), "yellow\n");
    assert_eq!(kt(&["get", &db, "cherry"]).ok(), "dark\\tred\n");
    assert_eq!(kt(&["get", &db, "cherry", "--raw"]).ok(), "dark\tred");
    assert_eq!(kt(&["get", &db, "6170706c65", "--key-format", "hex", "--value-format", "hex"]).ok(), "726564\n");
    let got = kt(&["get", &db, "apple", "--json"]).json();
    assert_eq!(got, json!({ "family": "default", "key": "apple", "value": "red" }));

    assert!(kt(&["delete", &db, "apple"]).fails(2).contains("--yes"));
    assert_eq!(kt(&["get", &db, "apple"]).ok(), "red\n");
    assert_eq!(kt(&["delete", &db, "apple", "--yes"]).ok(), "");
    assert_eq!(kt(&["get", &db, "apple"]).fails(3), "kt: no key 'apple' in family 'default'");
    let error: Value = serde_json::from_str(&kt(&["get", &db, "apple", "--json"]).fails(3)).unwrap();
    assert_eq!(error["error"]["kind"], "not_found");
    assert_eq!(error["error"]["exit_code"], 3);
    assert!(kt(&["put", &db, "x", "y", "--json"]).json()["sequence"].as_u64().unwrap() > 4);

    kt(&["put", &db, "-5", "cold"]).ok();
    assert_eq!(kt(&["scan", &db, "--prefix", "-5"]).ok(), "-5\tcold\n");
    assert!(kt(&["size", &db, "--prefix", "-5"]).ok().contains("1 key"));
    kt(&["delete", &db, "--prefix", "-5", "--yes"]).ok();

    assert_eq!(kt_with(&["put", &db, "bin", "--stdin"], b"\x00\xff\n").ok(), "");
    assert_eq!(kt(&["get", &db, "bin"]).ok(), "\\x00\\xff\\n\n");
    assert_eq!(kt_with(&["put", &db, "bare"], b"from a pipe").ok(), "");
    assert_eq!(kt(&["get", &db, "bare", "--raw"]).ok(), "from a pipe");
    assert!(kt(&["put", &db, "bare"]).fails(2).contains("no value"), "standard input may be nothing at all");
    assert_eq!(kt(&["get", &db, "bare", "--raw"]).ok(), "from a pipe");
    assert_eq!(kt(&["put", &db, "bare", "--stdin"]).ok(), "");
    assert_eq!(kt(&["get", &db, "bare", "--raw"]).ok(), "");
    assert_eq!(kt(&["get", &db, "bin", "--value-format", "base64"]).ok(), "AP8K\n");
    kt(&["put", &db, "doc", "{\"a\": [1]}", "--value-format", "json"]).ok();
    let doc = kt(&["get", &db, "doc", "--value-format", "json", "--json"]).json();
    assert_eq!(doc["value"], json!({ "a": [1] }));
    assert!(kt(&["get", &db, "bin", "--value-format", "json"]).fails(1).contains("is not JSON"));
    assert!(kt(&["delete", &db, "--from", "a", "--to", "c", "-y", "--json"]).json()["sequence"].is_u64());
    assert_eq!(kt(&["scan", &db, "--count"]).ok(), "3 entries\n");
    kt(&["delete", &db, "--prefix", "ch", "-y"]).ok();
    assert_eq!(kt(&["scan", &db, "--keys-only"]).ok(), "doc\nx\n");
}

/// Printed text can be used as an argument, so a document is printed as it was stored.
#[test]
fn documents_are_printed_as_they_were_written() {
    let dir = Dir::new();
    let db = dir.at("db");
    let as_json = ["--key-format", "json", "--value-format", "json"];
    let documents =
        [r#"{"b": 1,  "a": 2}"#, "[1.10, 123456789012345678901234567890]", r#"{"a":1,"a":2}"#, r#""\u0041""#];
    for document in documents {
        kt(&[&["put", &db, document, document, "--create"], &as_json[..]].concat()).ok();
    }
    let keys = kt(&[&["scan", &db, "--keys-only"], &as_json[..]].concat()).ok();
    let mut keys: Vec<&str> = keys.lines().collect();
    for key in &keys {
        assert_eq!(kt(&[&["get", &db, key], &as_json[..]].concat()).ok(), format!("{key}\n"));
    }
    keys.sort_unstable_by_key(|key| documents.iter().position(|d| d == key));
    assert_eq!(keys, documents);
    kt_with(&["put", &db, "lines", "--stdin"], b"{\n\t\"a\": 1\n}").ok();
    assert_eq!(kt(&["get", &db, "lines", "--value-format", "json"]).ok(), "{  \"a\": 1 }\n", "one line");
}

#[test]
fn entries_expire() {
    let dir = Dir::new();
    let db = small(&dir);
    kt(&["put", &db, "brief", "v", "--ttl", "0ms"]).ok();
    kt(&["put", &db, "long", "v", "--ttl", "7d"]).ok();
    kt(&["get", &db, "brief"]).fails(3);
    let found = kt(&["scan", &db, "--from", "long", "--json"]).lines();
    assert!(found[0]["expires_at"].as_u64().unwrap() > 1_600_000_000_000);
    assert!(kt(&["put", &db, "k", "v", "--ttl", "soon"]).fails(2).contains("30m"));
}

#[test]
fn scans_go_both_ways_within_bounds() {
    let dir = Dir::new();
    let db = small(&dir);
    assert_eq!(kt(&["scan", &db]).ok(), "apple\tred\nbanana\tyellow\ncherry\tdark\\tred\n");
    assert_eq!(kt(&["scan", &db, "--reverse", "--limit", "2", "--keys-only"]).ok(), "cherry\nbanana\n");
    assert_eq!(kt(&["scan", &db, "--from", "b", "--to", "c", "--keys-only"]).ok(), "banana\n");
    assert_eq!(kt(&["scan", &db, "--from", "b", "--to", "c", "--reverse", "--keys-only"]).ok(), "banana\n");
    assert_eq!(kt(&["scan", &db, "--prefix", "ch", "--keys-only"]).ok(), "cherry\n");
    assert_eq!(kt(&["scan", &db, "--count", "--json"]).json(), json!({ "family": "default", "count": 3 }));
    let lines = kt(&["scan", &db, "--json", "--limit", "1"]).lines();
    assert_eq!(lines, [json!({ "family": "default", "key": "apple", "value": "red" })]);
}

#[test]
fn sizes_are_told_without_reading() {
    let dir = Dir::new();
    let db = small(&dir);
    let told = kt(&["size", &db, "--json"]).json();
    assert_eq!((&told["rows"], &told["memtable_entries"], &told["tables"]), (&json!(3), &json!(0), &json!(3)));
    assert!(told["disk_bytes"].as_u64().unwrap() > 30);
    assert_eq!(kt(&["size", &db, "--from", "x", "--json"]).json()["rows"], 0);
    assert_eq!(kt(&["size", &db, "--prefix", "zz", "--json"]).json()["entries"], 0);
    assert!(kt(&["size", &db]).ok().starts_with("about       3 keys\n"));
    kt(&["size", &db, "--family", "none"]).fails(3);
}

#[test]
fn numbers_are_keys_in_their_order() {
    let dir = Dir::new();
    let db = dir.at("numbers");
    kt(&["create", &db, "--order", "i64", "-o", "compression=zstd"]).ok();
    for n in ["10", "-3", "9"] {
        kt(&["put", &db, n, n, "--key-format", "i64"]).ok();
    }
    assert_eq!(kt(&["scan", &db, "--key-format", "i64", "--keys-only"]).ok(), "-3\n9\n10\n");
    let first = kt(&["scan", &db, "--key-format", "i64", "--from", "-5", "--limit", "1", "--json"]).lines();
    assert_eq!(first[0]["key"], -3);
    // The order and the options of the default family are found again.
    let info = kt(&["info", &db, "--json"]).json();
    assert_eq!(info["families"][0]["order"], "i64");
    assert_eq!(info["families"][0]["options"]["compression"], "zstd");
}

#[test]
fn formats_are_flags_of_every_command() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["--key-format", "hex", "put", &db, "00ff", "v", "--create"]).ok();
    assert_eq!(kt(&["scan", "--keys-only", &db, "--key-format", "hex"]).ok(), "00ff\n");
    assert_eq!(kt(&["--key-format", "base64", "--value-format", "hex", "scan", &db]).ok(), "AP8=\t76\n");
    kt(&["info", &db, "--key-format", "hex"]).ok();
    kt(&["--key-format", "hex", "delete", &db, "00ff", "-y"]).ok();
    assert_eq!(kt(&["scan", &db, "--count"]).ok(), "0 entries\n");
}

#[test]
fn families_come_and_go() {
    let dir = Dir::new();
    let db = small(&dir);
    assert_eq!(kt(&["cf", "create", &db, "cache", "-o", "ttl_ms=3600000"]).ok(), "created family 'cache'\n");
    kt(&["cf", "create", &db, "n", "--order", "u64"]).ok();
    kt(&["put", &db, "k", "v", "--family", "cache"]).ok();
    let listed = kt(&["cf", "list", &db, "--json"]).json();
    assert_eq!(
        listed["families"][0],
        json!({ "name": "cache", "order": "bytewise", "options": { "ttl_ms": "3600000" } })
    );
    assert_eq!(listed["families"][2]["order"], "u64");
    let text = kt(&["cf", "list", &db]).ok();
    assert!(text.starts_with("family   order     options\ncache    bytewise  ttl_ms=3600000\n"), "{text}");

    let set = kt(&["set-option", &db, "ttl_ms=5000", "--family", "cache", "--json"]).json();
    assert_eq!((&set["before"], &set["after"]), (&json!("3600000"), &json!("5000")));
    assert_eq!(kt(&["cf", "list", &db, "--json"]).json()["families"][0]["options"]["ttl_ms"], "5000");
    assert!(kt(&["set-option", &db, "ttl_m=5000"]).fails(2).contains("did you mean 'ttl_ms'"));
    assert!(kt(&["set-option", &db, "block_cache_size=1M"]).fails(2).contains("not stored"));
    assert!(kt(&["set-option", &db, "ttl_ms"]).fails(2).contains("name=value"));

    kt(&["cf", "rename", &db, "cache", "store"]).ok();
    assert_eq!(kt(&["get", &db, "k", "--family", "store"]).ok(), "v\n");
    assert_eq!(kt(&["get", &db, "k", "--family", "cache"]).fails(3), "kt: no column family 'cache'");
    assert!(kt(&["cf", "drop", &db, "store"]).fails(2).contains("--yes"));
    kt(&["cf", "drop", &db, "store", "--yes"]).ok();
    kt(&["cf", "drop", &db, "store", "--yes"]).fails(3);
    kt(&["cf", "drop", &db, "default", "--yes"]).fails(2);
    kt(&["cf", "create", &db, "n"]).fails(1);
    assert!(kt(&["cf", "create", &db, "x", "--order", "sideways"]).fails(2).contains("case-insensitive"));
}

#[test]
fn options_are_listed_from_the_table() {
    let all = kt(&["options", "--json"]).json()["options"].as_array().unwrap().clone();
    let expected = kingtide::DbOptions::rows().len() + kingtide::FamilyOptions::rows().len();
    assert_eq!(all.len(), expected);
    let budget = all.iter().find(|o| o["name"] == "memtable_budget").unwrap();
    assert_eq!(
        (&budget["scope"], &budget["live"], &budget["default"]),
        (&json!("database"), &json!(true), &json!("0"))
    );
    assert_eq!(budget["range"], "0 or 32768 to 1099511627776");
    assert!(all.iter().all(|o| o["description"].as_str().unwrap().ends_with('.') && o["type"].is_string()), "{all:?}");
    let text = kt(&["options", "block_size"]).ok();
    let head = "Options of a column family (stored in the database)\n\n  block_size = 4096\n      number or size (64M), 512 to 1048576; fixed";
    assert!(text.starts_with(head), "{text}");
    assert!(kt(&["options"]).ok().lines().all(|l| l.len() < 140));
    assert!(kt(&["options", "blok_size"]).fails(2).contains("did you mean 'block_size'?"));
    let dir = Dir::new();
    let path = dir.at("db");
    assert!(kt(&["create", &path, "-o", "block_cache_size=1M"]).fails(2).contains("is an option of the database"));
    assert!(kt(&["create", &path, "-o", "compresion=zstd"]).fails(2).contains("did you mean 'compression'?"));
    assert!(!dir.path("db").exists());
}

#[test]
fn info_and_stats_describe_the_database() {
    let dir = Dir::new();
    let db = small(&dir);
    kt(&["flush", &db]).ok();
    let info = kt(&["info", &db, "--json"]).json();
    let family = &info["families"][0];
    assert_eq!(family["levels"].as_array().unwrap().iter().map(|l| l["entries"].as_u64().unwrap()).sum::<u64>(), 3);
    assert_eq!(info["sequence"]["latest"], 3);
    assert_eq!(info["prepared"], json!([]));
    assert!(info["amplification"]["space"].is_number());
    let text = kt(&["info", &db]).ok();
    assert!(text.contains("family 'default', bytewise order") && text.contains("tombstones"), "{text}");
    assert!(text.lines().all(|l| !l.ends_with(' ')), "{text}");

    let text = kt(&["stats", &db]).ok();
    assert!(text.starts_with("family   tables  entries  tombstones"), "{text}");
    assert!(
        text.contains("klog_bytes")
            && text.contains("log_file_bytes")
            && !text.contains("gets  ")
            && text.contains("kt stats --live"),
        "{text}"
    );
    assert!(kt(&["stats", &db, "--all"]).ok().contains("write_amplification"));
    assert!(kt(&["stats", &db, "--json"]).json()["gets"].is_u64());
    let text = kt(&["stats", &db, "--prometheus"]).ok();
    assert!(text.contains("# TYPE kingtide_gets counter") && text.contains("kingtide_get_seconds_bucket"), "{text}");
}

#[test]
fn stats_of_a_process_that_publishes_them_are_shown() {
    let dir = Dir::new();
    let db = small(&dir);
    let message = kt(&["stats", &db, "--live"]).fails(3);
    assert!(message.contains("stats_interval_ms") && message.contains(&db), "{message}");
    let mut options = kingtide::Options::new().manual_jobs(true);
    options.set("stats_interval_ms", "100").unwrap();
    let open = kingtide::Db::open(&db, options).unwrap();
    open.put(b"k", b"v").unwrap();
    while open.run_one_job().unwrap() {}
    let text = kt(&["stats", &db, "--live"]).ok();
    assert!(text.contains("\nkingtide_puts 1\n") && text.contains("\nkingtide_write_seconds_count 1\n"), "{text}");
    assert!(kt(&["info", &db]).ok().contains("family 'default'"), "the file STATS is no trouble");
    // What a killed process leaves: a copy in another directory, where this process holds no lock.
    let killed = dir.path("killed");
    std::fs::create_dir(&killed).unwrap();
    for entry in std::fs::read_dir(&db).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), killed.join(entry.file_name())).unwrap();
    }
    let published = killed.join("STATS");
    let minutes = std::time::Duration::from_secs(600);
    let file = std::fs::File::options().write(true).open(&published).unwrap();
    file.set_modified(std::time::SystemTime::now() - minutes).unwrap();
    let run = kt(&["stats", &dir.at("killed"), "--live"]);
    assert_eq!(run.out, "", "old figures are not printed");
    let told = run.fails(3);
    let (age, place) = told
        .strip_prefix("kt: no process has the database open: the last one ended without closing it, ")
        .and_then(|rest| rest.split_once(" s ago, and its last statistics are in "))
        .unwrap_or_else(|| panic!("{told}"));
    assert!(matches!(age.parse(), Ok(600..1000)) && place == published.display().to_string(), "{told}");
    open.close().unwrap();
    kt(&["stats", &db, "--live"]).fails(3);
}

#[test]
fn compaction_leaves_one_run() {
    let dir = Dir::new();
    let db = small(&dir);
    kt(&["delete", &db, "apple", "-y"]).ok();
    let done = kt(&["compact", &db, "--json"]).json();
    assert_eq!(done["families"], json!(["default"]));
    assert!(done["bytes_read"].as_u64().unwrap() > 0 && done["bytes_written"].is_u64(), "{done}");
    let levels = kt(&["info", &db, "--json"]).json()["families"][0]["levels"].clone();
    assert_eq!((&levels[0]["entries"], levels.as_array().unwrap().len()), (&json!(2), 1));
    assert!(kt(&["compact", &db, "--family", "default", "--from", "a", "--to", "b"]).ok().starts_with("compacted: "));
    kt(&["compact", &db, "--family", "none"]).fails(3);
    let e = kt(&["compact", &db, "--family", "default", "--from", "b", "--to", "a"]).fails(2);
    assert_eq!(e, "kt: --from sorts after --to");
}

#[test]
fn transactions_in_doubt_are_decided() {
    let dir = Dir::new();
    let path = dir.at("db");
    let db = Db::open(&path, Options::default()).unwrap();
    for xid in [&b"keep"[..], b"undo\xff"] {
        let mut txn = db.begin_with(TransactionOptions::default()).unwrap();
        txn.put(db.default_family(), xid, b"v").unwrap();
        txn.prepare(xid).unwrap();
    }
    db.close().unwrap();
    let listed = kt(&["txn", "list", &path, "--json"]).json();
    let (first, second) = (&listed["prepared"][0], &listed["prepared"][1]);
    assert_eq!(
        (&first["xid"], &first["operations"], &first["isolation"]),
        (&json!("keep"), &json!(1), &json!("snapshot"))
    );
    assert_eq!((&second["xid"], &second["xid_hex"]), (&json!("undo\\xff"), &json!("756e646fff")));
    assert!(kt(&["txn", "list", &path]).ok().contains("undo\\xff"));
    assert!(kt(&["info", &path]).ok().contains("2 transactions"));
    assert!(kt(&["txn", "commit", &path, "keep"]).fails(2).contains("--yes"));
    kt(&["txn", "commit", &path, "none", "--yes"]).fails(3);
    assert_eq!(kt(&["txn", "commit", &path, "keep", "--yes"]).ok(), "committed transaction 'keep'\n");
    let undone = kt(&["txn", "rollback", &path, "756e646fff", "--xid-format", "hex", "--yes", "--json"]).json();
    assert_eq!(undone["outcome"], "rolled_back");
    assert_eq!(kt(&["scan", &path, "--keys-only"]).ok(), "keep\n");
    assert_eq!(kt(&["txn", "list", &path]).ok(), "no transaction is in doubt\n");
}

#[test]
fn changes_are_printed_in_order() {
    let dir = Dir::new();
    let path = dir.at("db");
    let mut options = Options::default();
    options.db.change_retention = 64 << 20;
    let db = Db::open(&path, options).unwrap();
    db.put(b"a", b"1").unwrap();
    db.put(b"\xff", b"2").unwrap();
    db.delete_range(b"a"..b"c").unwrap();
    db.close().unwrap();
    let all = kt(&["changes", &path]).lines();
    assert_eq!(all.len(), 3, "{all:?}");
    assert_eq!(all[0]["operations"][0]["key"], "a");
    assert_eq!(all[1]["operations"][0]["encoding"], "base64");
    assert_eq!(
        (&all[2]["operations"][0]["kind"], &all[2]["operations"][0]["end"]),
        (&json!("delete_range"), &json!("c"))
    );
    // Looking does not shorten what can be looked at, nor does a change by the tool.
    kt(&["put", &path, "z", "3"]).ok();
    let since = all[1]["last_sequence"].to_string();
    let rest = kt(&["changes", &path, "--since", &since, "--json"]).lines();
    assert_eq!(rest.len(), 2, "{rest:?}");
    assert_eq!(kt(&["changes", &path]).lines().len(), 4);
    let sequence = kt(&["info", &path, "--json"]).json()["sequence"].clone();
    assert_eq!((&sequence["oldest_change"], &sequence["latest"]), (&json!(0), &json!(4)));
    assert!(kt(&["changes", &path, "--since", "99"]).fails(2).contains("not committed yet"));
}

/// What the tool writes is given back from the log once it is in tables, unless the application that wrote the database asked
/// for changes to be kept.
#[test]
fn the_tool_keeps_no_more_log_than_the_application_asked_for() {
    let dir = Dir::new();
    let wal_bytes = |path: &str| -> u64 {
        let files = std::fs::read_dir(path).unwrap().map(Result::unwrap);
        let segments = files.filter(|f| f.file_name().to_string_lossy().ends_with(".wal"));
        segments.map(|f| f.metadata().unwrap().len()).sum()
    };
    let line = |n: u32| format!("{{\"key\":\"key{n:05}\",\"value\":\"{}\"}}\n", "v".repeat(500));
    let (kept, not_kept) = (dir.at("kept"), dir.at("not_kept"));
    for (path, change_retention) in [(&kept, 64 << 20), (&not_kept, 0)] {
        let mut options = Options::default();
        options.db.change_retention = change_retention;
        let db = Db::open(path, options).unwrap();
        db.put(b"first", b"1").unwrap();
        db.close().unwrap();
        for round in 0..3 {
            let lines: String = (round * 2000..(round + 1) * 2000).map(line).collect();
            kt_with(&["import", path], lines.as_bytes()).ok();
        }
        kt(&["put", path, "last", "1"]).ok();
    }
    assert!(wal_bytes(&kept) > 3 * 1_000_000, "{} bytes", wal_bytes(&kept));
    assert!(wal_bytes(&not_kept) < 200_000, "{} bytes", wal_bytes(&not_kept));
}

/// A segment that a background thread prepared before the first commit is not log to keep; if it were, large values would stay in memory.
#[test]
fn a_new_database_keeps_no_log() {
    let dir = Dir::new();
    let path = dir.at("db");
    kt(&["create", &path]).ok();
    let segment = dir.path("db").join("000002.wal");
    std::fs::write(&segment, vec![0; 64 << 10]).unwrap(); // usually there already, unless `create` ended first
    kt(&["put", &path, "key", "value"]).ok();
    let manifest = kt(&["dump", "manifest", &path]).ok();
    assert!(manifest.contains(", change_retention 0\n"), "{manifest}");
}

/// A process that ends after it has begun the log, but before it has noted that in the manifest, leaves a segment with a header and no commit.
#[test]
fn a_first_commit_that_was_cut_short_leaves_no_log_to_keep() {
    let dir = Dir::new();
    let (begun, path) = (dir.at("begun"), dir.at("db"));
    [&begun, &path].into_iter().for_each(|db| drop(kt(&["create", db]).ok()));
    kt(&["put", &begun, "key", "value"]).ok();
    let files = std::fs::read_dir(dir.path("begun")).unwrap().map(|e| e.unwrap().path());
    let segments = files.filter(|f| f.extension().is_some_and(|e| e == "wal")).map(|f| (std::fs::read(&f).unwrap(), f));
    let (mut bytes, segment) = segments.into_iter().find(|(bytes, _)| bytes[0] != 0).unwrap();
    bytes[kingtide_wal::SEGMENT_HEADER_LEN..].fill(0);
    bytes.resize(64 << 10, 0);
    std::fs::write(dir.path("db").join(segment.file_name().unwrap()), bytes).unwrap();
    kt(&["put", &path, "key", "value"]).ok();
    let manifest = kt(&["dump", "manifest", &path]).ok();
    assert!(manifest.contains(", change_retention 0\n"), "{manifest}");
    assert_eq!(kt(&["get", &path, "key"]).ok(), "value\n");
}

#[test]
fn mistakes_are_one_line_and_make_no_database() {
    let dir = Dir::new();
    let (none, file) = (dir.at("none"), dir.at("file"));
    std::fs::write(&file, "text").unwrap();
    std::fs::create_dir(dir.path("empty")).unwrap();
    let empty = dir.at("empty");
    let commands = [&["info"][..], &["stats"], &["stats", "--live"], &["scan"], &["flush"], &["compact"], &["export"]];
    for command in commands {
        for path in [&none, &file, &empty] {
            let args = [command, &[path.as_str()]].concat();
            let message = kt(&args).fails(3);
            assert!(message.contains(path.as_str()), "{message}");
        }
    }
    kt(&["put", &none, "k", "v"]).fails(3);
    kt(&["get", &none, "k"]).fails(3);
    kt(&["cf", "list", &none]).fails(3);
    kt(&["txn", "list", &none]).fails(3);
    assert!(!dir.path("none").exists());
    assert_eq!(std::fs::read_dir(dir.path("empty")).unwrap().count(), 0);

    kt(&["put", &none, "k", "v", "--create"]).ok();
    kt(&["put", &none, "l", "v", "--create"]).ok();
    assert_eq!(kt(&["scan", &none, "--count"]).ok(), "2 entries\n");
    kt(&["create", &none]).fails(1);
    assert!(kt(&["get", &none, "abc", "--key-format", "hex"]).fails(2).contains("odd number"));
    assert!(kt(&["get", &none, "zz", "--key-format", "hex"]).fails(2).contains("not hexadecimal at digit 1"));
    assert!(kt(&["put", &none, "", "v"]).fails(2).contains("empty key"));
    let nested = dir.at("absent/below/db");
    assert!(kt(&["create", &nested]).fails(3).contains("absent/below does not exist"));
    assert!(kt(&["put", &nested, "k", "v", "--create"]).fails(3).contains("correct the path"));
    assert!(!dir.path("absent").exists());
    assert_eq!(kt(&["frobnicate"]).code, 2);
    assert_eq!(kt(&["scan", &none, "--limit", "many"]).code, 2);
    let error: Value = serde_json::from_str(&kt(&["scan", &none, "--nope", "--json"]).fails(2)).unwrap();
    assert_eq!(error["error"]["kind"], "usage");
    let error: Value = serde_json::from_str(&kt(&["get", &none, "--json"]).fails(2)).unwrap();
    assert_eq!(error["error"]["message"], "the following required arguments were not provided: <KEY>");
    for help in [&["--help"][..], &["scan", "--help"], &["cf", "create", "--help"], &["--version"]] {
        assert!(!kt(help).ok().is_empty());
    }
}

#[test]
fn a_database_that_is_open_elsewhere_is_left_alone() {
    let dir = Dir::new();
    let path = small(&dir);
    let db = Db::open(&path, Options::default()).unwrap();
    assert!(kt(&["put", &path, "k", "v"]).fails(5).contains("LOCK"));
    let error: Value = serde_json::from_str(&kt(&["flush", &path, "--json"]).fails(5)).unwrap();
    assert_eq!(error["error"]["kind"], "locked");
    // Looking is no harm, and sees what was committed.
    db.put(b"now", b"here").unwrap();
    assert_eq!(kt(&["get", &path, "now"]).ok(), "here\n");
    assert_eq!(kt(&["info", &path, "--json"]).json()["sequence"]["latest"], 4);
    db.close().unwrap();
    kt(&["put", &path, "k", "v"]).ok();
}

#[test]
fn damage_is_told_with_file_and_offset() {
    let dir = Dir::new();
    let path = small(&dir);
    kt(&["flush", &path]).ok();
    let table = file_ending(&dir.path("db"), ".klog");
    damage(&table, 10);
    let message = kt(&["scan", &path]).fails(4);
    assert!(message.contains(&*table.to_string_lossy()) && message.contains("at byte 0"), "{message}");
    let error: Value = serde_json::from_str(&kt(&["get", &path, "apple", "--json"]).fails(4)).unwrap();
    assert_eq!(error["error"]["kind"], "corruption");
    assert_eq!((&error["error"]["path"], &error["error"]["offset"]), (&json!(table.to_string_lossy()), &json!(0)));
    damage(&dir.path("db").join("CURRENT"), 0);
    assert!(kt(&["info", &path]).fails(4).contains("CURRENT"));
}

#[test]
fn copies_of_a_database_that_lacks_a_table_say_that_it_is_damaged() {
    let dir = Dir::new();
    let path = small(&dir);
    kt(&["flush", &path]).ok();
    kt(&["backup", "create", &path, &dir.at("backups")]).ok();
    std::fs::remove_file(file_ending(&dir.path("db"), ".klog")).unwrap();
    for copy in [
        &["checkpoint", &path, &dir.at("copy")][..],
        &["backup", "create", &path, &dir.at("backups")],
        &["backup", "create", &path, &dir.at("others")],
        &["cf", "clone", &path, "default", "clone"],
    ] {
        let message = kt(copy).fails(4);
        assert!(message.contains("missing") && message.contains(".klog"), "{message}");
    }
}

#[test]
fn mistakes_say_what_to_do() {
    use std::os::unix::ffi::OsStrExt;
    let dir = Dir::new();
    let (db, backups) = (small(&dir), dir.at("backups"));
    let there = kt(&["create", &db]).fails(1);
    assert!(there.contains("a database is here already") && there.contains(&db), "{there}");
    let inside = kt(&["backup", "create", &db, &db]).fails(2);
    assert!(inside.contains("give a directory for its backups"), "{inside}");
    let rate = kt(&["backup", "create", &db, &backups, "--rate-limit", "5X"]).fails(2);
    assert!(rate.contains("--rate-limit: "), "{rate}");
    kt(&["backup", "create", &db, &backups]).ok();
    for command in [&["backup", "verify", &backups, "7"][..], &["backup", "restore", &backups, "7", &dir.at("new")]] {
        assert_eq!(kt(command).fails(3), format!("kt: no backup 7 in {backups}"));
    }
    let fixed = kt(&["set-option", &db, "compression=zstd"]).fails(2);
    assert!(fixed.contains("let a program pass it at its open"), "{fixed}");
    let kind = kt(&["dump", "vlog", &format!("{db}/CURRENT")]).fails(2);
    assert!(kind.ends_with("is not named NUMBER.vlog"), "{kind}");

    let bytes = std::ffi::OsStr::from_bytes(b"\xff");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kt"));
    let run = command.args(["get", &db]).arg(bytes).output().unwrap();
    let told = String::from_utf8(run.stderr).unwrap();
    assert_eq!((run.status.code(), told.lines().count()), (Some(2), 1), "{told}");
    assert!(told.contains("\\xHH"), "{told}");
}

#[test]
fn help_shows_the_flags_of_a_command_first_and_those_of_all_commands_apart() {
    let help = kt(&["get", "--help"]).ok();
    let (own, all) = help.split_once("Options of every command:").unwrap();
    assert!(own.contains("--raw") && own.contains("--family") && !own.contains("--key-format"), "{own}");
    assert!(all.contains("--json") && all.contains("--key-format") && all.contains("u64be"), "{all}");
    assert!(kt(&["--help"]).ok().contains("u64be   eight bytes, big-endian"));
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let dir = Dir::new();
    let path = small(&dir);
    for args in [&["--help"][..], &["scan", "--help"], &["--version"], &["scan", &path], &["info", &path]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kt"));
        let run = command.args(args).stdout(full).output().unwrap();
        let message = String::from_utf8(run.stderr).unwrap();
        assert_eq!((run.status.code(), message.lines().count()), (Some(1), 1), "{args:?}: {message}");
        assert!(message.contains("standard output"), "{message}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    use std::io::Read;
    let dir = Dir::new();
    let path = dir.at("db");
    let db = Db::open(&path, Options::default()).unwrap();
    for i in 0..20_000u32 {
        db.put(i.to_be_bytes(), [7; 50]).unwrap();
    }
    db.close().unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_kt"))
        .args(["scan", &path])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap(); // and closes the pipe
    let done = child.wait_with_output().unwrap();
    assert_eq!((done.status.code(), done.stderr.len()), (Some(0), 0));
}
