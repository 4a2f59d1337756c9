//! Reading where nothing can be written, and what a reader keeps out meanwhile.
#![cfg(unix)]

use super::common::{Dir, Run, kt};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// Runs the tool as a user to whom permissions apply: as another one, if the tests run as root.
fn kt_bound_by_permissions(args: &[&str]) -> Run {
    let tool = env!("CARGO_BIN_EXE_kt");
    let root = fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    let mut command = Command::new(if root { "setpriv" } else { tool });
    if root {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", tool]);
    }
    let done = command.args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: done.status.code().unwrap_or(-1), out: text(done.stdout), err: text(done.stderr) }
}

/// Gives everything below a directory, and itself, permissions: files `0o444` and directories `0o555`, or both what lets it be removed.
fn set_writable(at: &Path, writable: bool) {
    if at.is_dir() {
        fs::set_permissions(at, Permissions::from_mode(0o755)).unwrap();
        fs::read_dir(at).unwrap().for_each(|e| set_writable(&e.unwrap().path(), writable));
    }
    let mode = if writable { 0o644 } else { 0o444 } | if at.is_dir() { 0o111 } else { 0 };
    fs::set_permissions(at, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_only_reads_needs_no_permission_to_write() {
    let dir = Dir::new();
    let (db, backups) = (dir.at("db"), dir.at("backups"));
    kt(&["create", &db]).ok();
    kt(&["put", &db, "tide", "high"]).ok();
    kt(&["flush", &db]).ok();
    kt(&["put", &db, "moon", "full"]).ok();
    kt(&["backup", "create", &db, &backups]).ok();
    let mine = dir.at("mine");
    fs::create_dir(&mine).unwrap();
    fs::set_permissions(&mine, Permissions::from_mode(0o777)).unwrap();
    [&db, &backups].iter().for_each(|at| set_writable(Path::new(at), false));
    let state = || {
        let of = |at: &Path| fs::read_dir(at).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
        (of(Path::new(&db)), of(Path::new(&backups)))
    };
    let before = state();
    let [restored, repaired, exported] = ["restored", "repaired", "exported"].map(|name| format!("{mine}/{name}"));
    for args in [
        &["verify", &db][..],
        &["info", &db],
        &["stats", &db, "--all"],
        &["get", &db, "tide"],
        &["scan", &db],
        &["size", &db],
        &["cf", "list", &db],
        &["cf", "export", &db, "default", &exported],
        &["export", &db],
        &["txn", "list", &db],
        &["dump", "manifest", &db],
        &["repair", &db, &repaired, "--yes"],
        &["backup", "list", &backups],
        &["backup", "verify", &backups],
        &["backup", "restore", &backups, "1", &restored],
    ] {
        let run = kt_bound_by_permissions(args);
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{args:?}: {}", run.out);
    }
    assert_eq!(state(), before);
    let e = kt_bound_by_permissions(&["put", &db, "sun", "set"]).fails(1);
    assert!(e.contains("cannot lock") && e.contains("Permission denied"), "{e}");
    // Without the permission to read it no process can be kept out, and so nothing is read.
    fs::set_permissions(dir.path("db/LOCK"), Permissions::from_mode(0o200)).unwrap();
    let e = kt_bound_by_permissions(&["verify", &db]).fails(1);
    assert!(e.contains("cannot lock") && e.contains("LOCK"), "{e}");
    [&db, &backups].iter().for_each(|at| set_writable(Path::new(at), true));
}

#[test]
fn a_database_that_is_being_verified_is_not_opened_but_verified_by_others() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["create", &db]).ok();
    let file = File::open(dir.path("db/LOCK")).unwrap();
    file.try_lock_shared().unwrap(); // as a process that verifies it does
    let e = kt(&["put", &db, "tide", "high"]).fails(5);
    assert!(e.contains("another process has it open, or is verifying or repairing it"), "{e}");
    kt(&["verify", &db]).ok();
    kt(&["scan", &db]).ok();
    file.unlock().unwrap();
    file.try_lock().unwrap(); // as a process that has it open does
    let e = kt(&["verify", &db]).fails(5);
    assert!(e.contains("another process has it open; close it there"), "{e}");
}
