//! Messages to users who got something wrong.

use super::common::{Dir, Run, damage, file_ending, kt, kt_with};
use std::process::Command;

#[test]
fn a_file_in_the_place_of_a_directory_is_told_by_its_name() {
    let dir = Dir::new();
    let (db, file) = (dir.at("db"), dir.at("file"));
    kt(&["create", &db]).ok();
    kt(&["backup", "create", &db, &dir.at("backups")]).ok();
    std::fs::write(&file, b"text").unwrap();
    for (args, code) in [
        (&["info", &file][..], 3),
        (&["create", &file], 1),
        (&["put", &file, "k", "v", "--create"], 1),
        (&["import", &file, "--create"], 1),
        (&["checkpoint", &db, &file], 1),
        (&["repair", &db, &file, "--yes"], 1),
        (&["backup", "create", &db, &file], 1),
        (&["backup", "list", &file], 3),
        (&["backup", "restore", &dir.at("backups"), "1", &file], 1),
    ] {
        assert_eq!(kt(args).fails(code), format!("kt: {file} is a file, not a directory"), "{args:?}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"text");
    let e = kt(&["backup", "list", &db]).fails(3);
    assert_eq!(e, format!("kt: no backups in {db}: it is a database, not a directory of backups"));
}

#[test]
fn no_copy_is_made_inside_the_database() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["create", &db]).ok();
    let inside = format!("{db}/copy");
    for args in [
        &["checkpoint", &db, &inside][..],
        &["repair", &db, &inside, "--yes"],
        &["backup", "create", &db, &inside],
        &["cf", "export", &db, "default", &inside],
    ] {
        let e = kt(args).fails(2);
        assert!(e.contains("inside the database's own directory"), "{args:?}: {e}");
        assert!(!std::path::Path::new(&inside).exists(), "{args:?}");
    }
    let backups = dir.at("backups");
    kt(&["backup", "create", &db, &backups]).ok();
    let inside = format!("{backups}/restored");
    let e = kt(&["backup", "restore", &backups, "1", &inside]).fails(2);
    assert!(e.contains("inside the directory of backups") && !std::path::Path::new(&inside).exists(), "{e}");
}

/// A path that happens to be part of a word of the message was taken for one that the message names.
#[test]
fn a_path_is_named_although_its_letters_are_in_the_message() {
    let dir = Dir::new();
    let inside = |args: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_kt")).args(args).current_dir(dir.path("")).output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    for name in ["a", "data", "rep", "ex"] {
        assert_eq!(inside(&["create", name]).0, Some(0));
        let named = |args: &[&str], code| {
            let (got, said) = inside(args);
            assert!(got == Some(code) && said.contains(&format!("[{name}]")), "{args:?}: {got:?} {said}");
        };
        named(&["create", name], 1);
        named(&["repair", name, name, "--yes"], 1);
        named(&["cf", "export", name, "default", name], 1);
        named(&["cf", "import", name, "new", name], 3);
    }
}

#[test]
fn a_family_with_a_line_feed_in_its_name_leaves_tables_whole() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["create", &db]).ok();
    kt(&["cf", "create", &db, "two\nlines\u{1b}[2J"]).ok();
    let table = kt(&["cf", "list", &db]).ok();
    assert!(table.lines().count() == 3 && table.contains("two\\nlines\\x1b[2J"), "{table}");
}

/// A name may be anything, and a terminal obeys what it is sent: nothing but a visible form of it is printed.
#[test]
fn no_command_prints_the_control_characters_of_a_name() {
    let dir = Dir::new();
    let (db, export) = (dir.at("db"), dir.at("export"));
    let [name, other, copy] = ["one", "two", "three"].map(|n| format!("{n}\n\u{1b}]0;title\u{7}\u{9b}2J"));
    kt(&["create", &db]).ok();
    let shown = |args: &[&str]| {
        let Run { code, out, err } = kt(args);
        let all = [out.as_str(), &err].concat();
        assert!(!all.contains(|c: char| c.is_control() && c != '\n'), "{args:?}: {all:?}");
        let title = "\\x1b]0;title\\x07";
        assert!(
            [format!("{title}\\xc2\\x9b2J"), format!("{title}\\x9b2J")].iter().any(|t| all.contains(t)),
            "{args:?}: {all:?}"
        );
        (code, all)
    };
    let created = "created family 'one\\n\\x1b]0;title\\x07\\xc2\\x9b2J'\n";
    assert_eq!(shown(&["cf", "create", &db, &name]), (0, created.into()));
    assert_eq!(shown(&["cf", "create", &db, &name]).0, 1);
    kt(&["put", &db, "k", "v", "--family", &name]).ok();
    for args in [
        &["cf", "rename", &db, &name, &other][..],
        &["cf", "clone", &db, &other, &name],
        &["cf", "export", &db, &name, &export],
        &["cf", "import", &db, &copy, &export],
        &["set-option", &db, "ttl_ms=60000", "--family", &name],
        &["info", &db],
        &["stats", &db],
        &["dump", "manifest", &db],
    ] {
        assert_eq!(shown(args).0, 0, "{args:?}");
    }
    assert_eq!(shown(&["cf", "drop", &db, &name]).0, 2, "it asks");
    assert_eq!(shown(&["get", &db, "k", "--family", "no\u{1b}]0;title\u{7}\u{9b}2J"]).0, 3);
    assert_eq!(shown(&["cf", "drop", &db, &name, "--yes"]).0, 0);
}

#[test]
fn a_database_in_the_place_of_the_command_is_told() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["create", &db]).ok();
    let e = kt(&[&db, "scan"]).fails(2);
    assert!(e.contains("the command comes first, as in kt scan"), "{e}");
    let e = kt(&["--json", &db, "scan"]).fails(2);
    assert!(e.starts_with("{\"error\":") && e.contains("the command comes first"), "{e}");
    let run = kt(&["scna", &db]);
    assert!(run.code == 2 && run.err.contains("'scan'"), "{run:?}");
}

#[test]
fn a_part_of_an_options_name_finds_it() {
    let names = |args: &[&str]| {
        let options = kt(&[&["options", "--json"], args].concat()).json();
        let all = options["options"].as_array().unwrap().iter();
        all.map(|o| o["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&["value_threshold"]), ["value_threshold"], "a name means itself only");
    let found = names(&["memtable"]);
    assert!(found.len() > 1 && found.iter().all(|name| name.contains("memtable")), "{found:?}");
}

#[test]
fn messages_say_what_to_do() {
    let dir = Dir::new();
    let (db, new, text) = (dir.at("db"), dir.at("new"), dir.at("text"));
    kt(&["create", &db]).ok();
    std::fs::write(&text, "text").unwrap();
    for args in [
        &["options", "frobnicate"][..],
        &["set-option", &db, "frobnicate=1"],
        &["create", &new, "-o", "frobnicate=1"],
        &["cf", "create", &db, "x", "-o", "frobnicate=1"],
    ] {
        assert_eq!(kt(args).fails(2), "kt: unknown option 'frobnicate'; kt options lists all", "{args:?}");
    }
    let place = dir.at("");
    let e = kt(&["import", &db, &place]).fails(1);
    assert!(e.starts_with(&format!("kt: line 1: cannot read {place}: ")), "{e}");
    let e = kt(&["ingest", &db, &text, "--yes"]).fails(1);
    assert!(e.ends_with("; kt cf export and SortedFileWriter write sorted files"), "{e}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let e = kt(&["serve", &db, "--listen", &taken.local_addr().unwrap().to_string()]).fails(1);
    assert!(e.ends_with("; --listen 0 takes a free port"), "{e}");
    // A negative number is an invalid value, not an unknown flag.
    for args in [
        &["scan", &db, "--limit", "-1"][..],
        &["changes", &db, "--since", "-1"],
        &["changes", &db, "--follow", "--interval", "-1"],
        &["import", &db, "--from-line", "-1"],
        &["import", &db, "--batch", "-1"],
    ] {
        let run = kt(args);
        assert!(run.code == 2 && run.err.contains("invalid value '-1' for '--"), "{run:?}");
    }
}

#[test]
fn an_address_to_listen_at_may_be_a_port_or_localhost() {
    let dir = Dir::new();
    // The address is understood before the database is looked for.
    for address in ["0", ":0", "localhost:0", "[::1]:0"] {
        assert!(kt(&["serve", &dir.at("none"), "--listen", address]).fails(3).contains("cannot open"), "{address}");
    }
    for address in ["here", "1.2.3.4", "localhost", "127.0.0.1:99999"] {
        let run = kt(&["serve", &dir.at("none"), "--listen", address]);
        assert!(run.code == 2 && run.err.contains("write ADDRESS:PORT, such as 127.0.0.1:9190"), "{run:?}");
    }
}

#[test]
fn an_error_of_the_systems_reads_as_a_sentence() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["create", &db]).ok();
    let lock = dir.path("db/LOCK");
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    let e = kt(&["put", &db, "a", "b"]).fails(1);
    assert!(e.starts_with(&format!("kt: cannot lock {}: ", lock.display())), "{e}");
    std::fs::remove_dir(&lock).unwrap();
    let held = std::fs::File::create(&lock).unwrap();
    held.try_lock().unwrap();
    let e = kt(&["put", &db, "a", "b"]).fails(5);
    assert!(e.matches(&lock.display().to_string()).count() == 1, "the file is named once: {e}");
    drop(held);
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    // What is said of the command comes last.
    let e = kt_with(&["import", &db], b"{\"key\":\"a\",\"value\":\"b\"}\n").fails(1);
    assert!(e.starts_with(&format!("kt: cannot lock {}: ", lock.display())), "{e}");
    // What was being done comes first.
    std::fs::remove_dir(&lock).unwrap();
    let none = dir.at("none");
    let e = kt(&["ingest", &db, &none, "--yes"]).fails(3);
    assert!(e.starts_with(&format!("kt: ingesting {none}: cannot open {none}: ")), "{e}");
}

#[test]
fn what_cannot_be_set_or_deleted_is_told_in_words_of_the_command() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["create", &db]).ok();
    let e = kt(&["set-option", &db, "compression=zstd"]).fails(2);
    assert!(e.contains("'compression' is fixed while a database is open: set it where the family is made (-o)"), "{e}");
    for command in ["delete", "scan", "size", "compact"] {
        let args = [command, &db, "--family", "default", "--from", "b", "--to", "a"];
        let yes: &[&str] = if command == "delete" { &["--yes"] } else { &[] };
        assert_eq!(kt(&[&args, yes].concat()).fails(2), "kt: --from sorts after --to");
    }
    let down = dir.at("down");
    kt(&["create", &down, "--order", "reverse"]).ok();
    assert_eq!(
        kt(&["scan", &down, "--from", "a", "--to", "b"]).fails(2),
        "kt: --from sorts after --to in order reverse"
    );
}

#[test]
fn changes_are_not_followed_in_a_busy_loop() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["create", &db]).ok();
    for interval in ["0", "9", "often"] {
        let run = kt(&["changes", &db, "--follow", "--interval", interval]);
        assert!(run.code == 2 && run.err.contains("must be at least 10 (milliseconds)"), "{run:?}");
    }
}

/// However many leftovers there are, none of them is damage.
#[test]
fn thousands_of_warnings_are_no_damage() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["create", &db]).ok();
    (0..10_050).for_each(|n| std::fs::write(dir.path("db").join(format!("{:08}.klog", 1_000_000 + n)), b"").unwrap());
    let told = kt(&["verify", &db]).ok();
    assert!(told.contains("\nand 50 more that are not listed\n") && told.ends_with("\nno damage found\n"), "{told}");
    let report = kt(&["verify", &db, "--json"]).json();
    assert!(report["damaged"] == false && report["clean"] == false && report["unlisted"] == 50);
}

/// A name that is printed can be used as an argument.
#[test]
fn names_of_families_are_read_as_they_are_printed() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["create", &db]).ok();
    let names = ["two\nlines", "back\\slash", "back\\\\n", "bell\u{7}", "left\u{202e}right", "tide ä 'quoted'"];
    let shown =
        ["two\\nlines", "back\\\\slash", "back\\\\\\\\n", "bell\\x07", "left\\xe2\\x80\\xaeright", "tide ä 'quoted'"];
    for (name, shown) in names.iter().zip(shown) {
        assert_eq!(kt(&["cf", "create", &db, shown]).ok(), format!("created family '{shown}'\n"));
        kt(&["put", &db, "k", shown, "--family", shown, "--value-format", "utf8"]).ok();
        let listed = kt(&["cf", "list", &db]).ok();
        assert!(listed.lines().any(|line| line.starts_with(&format!("{shown} "))), "{listed}");
        let all = kt(&["cf", "list", &db, "--json"]).json();
        assert!(all["families"].as_array().unwrap().iter().any(|f| f["name"] == *name), "{all}");
        assert_eq!(kt(&["get", &db, "k", "--family", shown]).ok(), format!("{shown}\n"));
        kt(&["cf", "rename", &db, shown, "renamed"]).ok();
        kt(&["cf", "clone", &db, "renamed", shown]).ok();
        kt(&["cf", "drop", &db, "renamed", "--yes"]).ok();
    }
    let run = kt(&["cf", "create", &db, "a\\q"]);
    assert!(run.code == 2 && run.err.contains("a backslash is written \\\\"), "{run:?}");
}

/// As text, `42` is two bytes, which the engine sorts after all numbers.
#[test]
fn a_text_is_no_key_where_keys_are_numbers() {
    let dir = Dir::new();
    for order in ["u64", "i64"] {
        let db = dir.at(order);
        kt(&["create", &db, "--order", order]).ok();
        let e = kt(&["put", &db, "42", "forty-two"]).fails(2);
        let told = |key: &str| {
            format!(
                "kt: key '{key}': the keys of family 'default' are numbers of eight bytes, in order {order}; give one with --key-format \
                 {order}, or any bytes with --key-format hex"
            )
        };
        assert_eq!(e, told("42"));
        assert_eq!(kt(&["scan", &db, "--count", "--json"]).json()["count"], 0);
        kt(&["put", &db, "42", "forty-two", "--key-format", order]).ok();
        kt(&["put", &db, "eight by", "a number as well"]).ok();
        // A caller who gives bytes means them, and can take them away.
        kt(&["put", &db, "2a", "a byte", "--key-format", "hex"]).ok();
        kt(&["delete", &db, "2a", "--yes", "--key-format", "hex"]).ok();
        // Every command that takes a key says the same, also of a number with eight digits, whose text is eight bytes.
        for (args, key) in [
            (&["put", "20261129", "v"][..], "20261129"),
            (&["get", "42"], "42"),
            (&["get", "42", "--key-format", "json"], "42"),
            (&["delete", "42", "--yes"], "42"),
            (&["delete", "--from", "41", "--to", "43", "--yes"], "41"),
            (&["scan", "--from", "41"], "41"),
            (&["scan", "--to", "-1234567"], "-1234567"),
            (&["size", "--from", "41", "--to", "43"], "41"),
            (&["compact", "--family", "default", "--to", "43"], "43"),
        ] {
            assert_eq!(kt(&[&args[..1], &[&db], &args[1..]].concat()).fails(2), told(key), "{args:?}");
        }
        assert_eq!(kt(&["scan", &db, "--count", "--json"]).json()["count"], 2);
        kt(&["delete", &db, "42", "--yes", "--key-format", order]).ok();
        assert_eq!(kt(&["get", &db, "42", "--key-format", order]).fails(3), "kt: no key '42' in family 'default'");
        kt(&["put", &db, "42", "forty-two", "--key-format", order]).ok();
    }
    assert_eq!(kt(&["get", &dir.at("u64"), "42", "--key-format", "u64"]).ok(), "forty-two\n");
    // In a family of text, and without a database, a number is a text.
    kt(&["put", &dir.at("text"), "42", "forty-two", "--create"]).ok();
}

#[test]
fn a_mistyped_family_leaves_no_new_database_behind() {
    let dir = Dir::new();
    let db = dir.at("db");
    let e = kt(&["put", &db, "k", "v", "--create", "--family", "cache"]).fails(3);
    assert_eq!(e, "kt: no column family 'cache'; no database was created");
    assert!(!dir.path("db").exists());
    kt(&["put", &db, "k", "v", "--create", "--family", "default"]).ok();
    assert_eq!(kt(&["put", &db, "k", "v", "--create", "--family", "cache"]).fails(3), "kt: no column family 'cache'");
}

#[cfg(unix)]
#[test]
fn a_command_that_fails_leaves_no_new_database_behind() {
    use std::process::Stdio;
    let dir = Dir::new();
    let db = dir.at("db");
    let fails = |args: &[&str], input: Stdio, code, says: &str| {
        let done = Command::new(env!("CARGO_BIN_EXE_kt")).args(args).stdin(input).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(says) && said.ends_with("; no database was created\n"), "{args:?}: {said}");
    };
    let put = ["put", &db, "key", "--create"];
    // A directory can be opened, but not read.
    let unreadable = || std::fs::File::open(dir.path("")).unwrap().into();
    let check = || {
        fails(&put, Stdio::null(), 2, "no value: ");
        fails(&put, unreadable(), 1, "cannot read standard input: ");
        fails(&["put", &db, "key", "--create", "--stdin"], unreadable(), 1, "cannot read standard input: ");
        fails(&["put", &db, "", "value", "--create"], Stdio::null(), 2, "empty key");
        let lines = dir.path("lines");
        std::fs::write(&lines, "{\"key\":\"a\",\"value\":1}\n").unwrap();
        let import = ["import", &db, &lines.display().to_string(), "--create"];
        fails(&import, Stdio::null(), 1, "line 1: \"value\" is not a string");
        std::fs::remove_file(lines).unwrap();
    };
    check();
    assert!(!dir.path("db").exists());
    // A directory that was there stays, with what was in it.
    std::fs::create_dir(dir.path("db")).unwrap();
    std::fs::write(dir.path("db").join("notes.txt"), b"mine").unwrap();
    check();
    let names = || std::fs::read_dir(dir.path("db")).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names(), ["notes.txt"]);
    // An empty value that is asked for is a value, and a database that was there stays.
    let run = kt(&["put", &db, "key", "--create", "--stdin"]);
    assert_eq!((run.code, kt(&["get", &db, "key", "--raw"]).ok()), (0, String::new()));
    assert!(!kt(&put).fails(2).contains("no database was created"));
    assert_eq!(kt(&["scan", &db]).ok(), "key\t\n");
}

#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_no_database() {
    let dir = Dir::new();
    std::os::unix::fs::symlink(dir.at("absent"), dir.path("link")).unwrap();
    let e = kt(&["create", &dir.at("link")]).fails(1);
    assert!(!e.contains("a database is here") && e.contains("File exists"), "{e}");
}

#[test]
fn damage_that_a_command_meets_comes_with_what_to_do() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["create", &db]).ok();
    kt(&["put", &db, "big", &"x".repeat(50_000)]).ok();
    kt(&["flush", &db]).ok();
    damage(&file_ending(&dir.path("db"), ".vlog"), 40);
    let e = kt(&["get", &db, "big"]).fails(4);
    assert!(e.ends_with("; kt verify reports all damage, kt repair salvages what can be read"), "{e}");
    let run = kt(&["verify", &db]);
    assert!(
        run.code == 4 && run.err.ends_with("; kt repair salvages what can be read into a new database\n"),
        "{run:?}"
    );
    assert!(run.out.contains(", key 'big'\n") && !run.out.contains("ValuePointer"), "{run:?}");
    // The report of a missing file has the message of the system.
    std::fs::remove_file(file_ending(&dir.path("db"), ".vlog")).unwrap();
    let run = kt(&["verify", &db]);
    assert!(run.code == 4 && run.out.contains("cannot open: No such file"), "{run:?}");
}
