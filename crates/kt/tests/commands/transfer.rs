//! Export and import: everything comes back exactly, and what cannot be read is reported with its line.

use super::common::{Dir, kt, kt_with};
use kingtide::{Db, FamilyOptions, KeyOrder, Options};
use kingtide_base::rng::Rng;
use serde_json::{Value, json};

fn random_bytes(rng: &mut Rng, max: u64) -> Vec<u8> {
    let mut bytes = vec![0; rng.below(max) as usize];
    rng.fill(&mut bytes);
    if rng.one_in(2) {
        bytes.iter_mut().for_each(|b| *b = *b % 95 + 32);
    }
    bytes
}

#[test]
fn arbitrary_bytes_come_back_exactly() {
    let seed = 77;
    let mut rng = Rng::new(seed);
    let dir = Dir::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    let db = Db::open(&from, Options::new().order(KeyOrder::Reverse)).unwrap();
    let options = FamilyOptions::new().ttl(Some(std::time::Duration::from_secs(100_000))).block_size(1024);
    db.create_family_ordered("zahl", FamilyOptions::default(), KeyOrder::I64).unwrap();
    db.create_family("a \"b\"\n\u{1f30a}", options).unwrap();
    for _ in 0..3_000 {
        let names = db.families();
        let family = db.family(&names[rng.below(names.len() as u64) as usize]).unwrap();
        let mut key = random_bytes(&mut rng, 20);
        key.push(rng.below(256) as u8);
        let value = if rng.one_in(50) { random_bytes(&mut rng, 10_000) } else { random_bytes(&mut rng, 60) };
        if rng.one_in(4) {
            family.put_ttl(key, value, std::time::Duration::from_secs(1_000_000 + rng.below(1000))).unwrap();
        } else {
            family.put(key, value).unwrap();
        }
    }
    db.close().unwrap();
    let exported = kt(&["export", &from]).ok();
    assert!(exported.contains("\"encoding\":\"base64\"") && exported.contains("\"encoding\":\"utf8\""));
    let said = kt_with(&["import", &to, "-", "--create", "--json"], exported.as_bytes()).json();
    assert_eq!(said["lines"], exported.lines().count() as u64, "seed {seed}");
    assert_eq!(kt(&["export", &to]).ok(), exported, "seed {seed}");
}

/// A user who mistypes the number would take "imported 0 entries" for the end of what was left.
#[test]
fn importing_from_a_line_outside_of_the_input_is_refused() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["create", &db]).ok();
    let lines = b"{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\",\"value\":\"2\"}\n";
    let e = kt_with(&["import", &db, "--from-line", "3"], lines).fails(2);
    assert!(e.contains("there is no line 3 to import from: the input has 2 lines"), "{e}");
    assert_eq!(kt(&["scan", &db]).ok(), "");
    let e = kt_with(&["import", &db, "--from-line", "0"], lines).fails(2);
    assert!(e.contains("there is no line 0 to import from: the first line is 1"), "{e}");
    assert_eq!(kt(&["scan", &db]).ok(), "");
    assert_eq!(kt_with(&["import", &db, "--from-line", "2"], lines).ok(), "imported 1 entry\n");
    assert_eq!(kt_with(&["import", &db], b"").ok(), "imported 0 entries\n");
}

#[test]
fn encodings_defaults_and_empty_lines() {
    let dir = Dir::new();
    let (db, file) = (dir.at("db"), dir.at("in.jsonl"));
    let lines = "{\"key\":\"a\",\"value\":\"1\"}\n\n{\"key\":\"ff\",\"value\":\"\",\"encoding\":\"hex\"}\r\n\
                 {\"key\":\"/w==\",\"value\":\"AA==\",\"encoding\":\"base64\",\"expires_at\":1}";
    std::fs::write(&file, lines).unwrap();
    kt(&["import", &db, &file]).fails(3);
    assert_eq!(kt(&["import", &db, &file, "--create"]).ok(), "imported 3 entries\n");
    // The last one replaced the one before it, and had expired long ago.
    assert_eq!(kt(&["scan", &db]).ok(), "a\t1\n");
    let entries = kt(&["export", &db, "--entries-only", "--family", "default"]).lines();
    assert_eq!(entries, [json!({ "family": "default", "key": "a", "value": "1", "encoding": "utf8" })]);
    kt(&["export", &db, "--family", "none"]).fails(3);
    kt(&["import", &db, &dir.at("missing")]).fails(3);
}

#[test]
fn existing_keys_are_replaced_only_when_told() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["put", &db, "b", "old", "--create"]).ok();
    let lines = b"{\"key\":\"a\",\"value\":\"new\"}\n{\"key\":\"b\",\"value\":\"new\"}\n";
    let message = kt_with(&["import", &db, "-", "--batch", "1"], lines).fails(2);
    assert!(message.contains("Line 2: key 'b'") && message.contains("--from-line 2"), "{message}");
    assert_eq!(kt(&["scan", &db]).ok(), "a\tnew\nb\told\n");
    assert!(kt_with(&["import", &db, "-"], lines).fails(2).ends_with("; nothing is imported"));
    let broken = kt_with(&["import", &db, "-"], b"\n\n{\"key\"").fails(1);
    assert!(broken.contains("line 3: not JSON: EOF while parsing an object at column 6"), "{broken}");
    kt_with(&["import", &db, "--from-line", "2", "--yes"], lines).ok();
    assert_eq!(kt(&["scan", &db]).ok(), "a\tnew\nb\tnew\n");
}

#[test]
fn a_bad_line_is_named_and_everything_before_it_is_there() {
    let dir = Dir::new();
    for (n, (bad, why)) in [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ("{\"key\":\"k\"}", "no \\\"value\\\""),
        ("{\"key\":\"\",\"value\":\"v\"}", "empty key"),
        ("{\"key\":5,\"value\":\"v\"}", "not a string"),
        ("{\"key\":\"k\",\"value\":\"v\",\"encoding\":\"utf16\"}", "utf16"),
        ("{\"key\":\"x\",\"value\":\"\",\"encoding\":\"hex\"}", "odd number"),
        ("{\"key\":\"x\",\"value\":\"\",\"encoding\":\"base64\"}", "base64"),
        ("{\"key\":\"k\",\"value\":\"v\",\"expires_at\":-1}", "milliseconds"),
        ("{\"key\":\"k\",\"value\":\"v\",\"ttl\":1}", "unknown field"),
        ("{\"key\":\"k\",\"value\":\"v\",\"value\":\"w\"}", "field \\\"value\\\" occurs twice"),
        ("{\"key\":\"k\",\"value\":\"v\",\"k\\u0065y\":\"k\"}", "field \\\"key\\\" occurs twice"),
    ]
    .iter()
    .enumerate()
    {
        let db = dir.at(&format!("db{n}"));
        let good = "{\"key\":\"good\",\"value\":\"v\"}\n";
        let text = format!("{good}\n{bad}\n{good}");
        let error = kt_with(&["import", &db, "-", "--create", "--json"], text.as_bytes()).fails(1);
        let error: Value = serde_json::from_str(&error).unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("line 3: ") && message.contains(&why.replace('\\', "")), "{message}");
        assert_eq!(error["error"]["kind"], "bad_data");
        assert_eq!(kt(&["scan", &db, "--keys-only"]).ok(), "good\n");
        let passed_over = kt_with(&["import", &db, "-", "--from-line", "4", "--yes"], text.as_bytes());
        assert_eq!(passed_over.ok(), "imported 1 entry\n", "{bad} is before that line");
    }
    let db = dir.at("db0");
    let family = "{\"key\":\"k\",\"value\":\"v\",\"family\":\"none\"}";
    assert!(kt_with(&["import", &db, "-"], family.as_bytes()).fails(3).contains("line 1: no column family 'none'"));
    for (line, why) in [
        ("\"options\":[1]", "not an object"),
        ("\"option\":{}", "unknown field \"option\""),
        ("\"options\":{},\"options\":{}", "field \"options\" occurs twice"),
        ("\"options\":{\"ttl_ms\":\"1\",\"ttl_ms\":\"2\"}", "field \"ttl_ms\" occurs twice"),
    ] {
        let line = format!("{{\"family\":\"default\",\"order\":\"bytewise\",{line}}}");
        assert!(kt_with(&["import", &db, "-"], line.as_bytes()).fails(1).contains(why), "{line}");
    }
    let order = "{\"family\":\"default\",\"order\":\"u64\"}";
    assert!(kt_with(&["import", &db, "-"], order.as_bytes()).fails(1).contains("bytewise, not u64"));
}

#[test]
fn exports_that_were_joined_are_imported_up_to_the_second() {
    let dir = Dir::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    kt(&["put", &from, "k", "v", "--create"]).ok();
    let twice = kt(&["export", &from]).ok().repeat(2);
    let e = kt_with(&["import", &to, "-", "--create"], twice.as_bytes()).fails(1);
    assert!(e.starts_with("kt: line 3: a line that describes a family comes after entries"), "{e}");
    assert_eq!(kt(&["scan", &to]).ok(), "k\tv\n");
}

/// An entry of a family that got its `ttl_ms` later does not expire, and neither does its copy.
#[test]
fn entries_that_do_not_expire_do_not_begin_to_when_they_are_imported() {
    let dir = Dir::new();
    let (from, to) = (dir.at("from"), dir.at("to"));
    kt(&["cf", "create", &from, "cache"]).fails(3);
    kt(&["create", &from]).ok();
    kt(&["cf", "create", &from, "cache"]).ok();
    kt(&["put", &from, "lasting", "v", "--family", "cache"]).ok();
    kt(&["set-option", &from, "ttl_ms=60000", "--family", "cache"]).ok();
    kt(&["put", &from, "brief", "v", "--family", "cache"]).ok();
    let exported = kt(&["export", &from]).ok();
    assert_eq!(exported.matches("expires_at").count(), 1, "{exported}");
    kt_with(&["import", &to, "-", "--create"], exported.as_bytes()).ok();
    assert_eq!(kt(&["export", &to]).ok(), exported);
}
