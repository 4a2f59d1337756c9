use super::calls::{PAUSE, parked_name};
use super::*;
use crate::conformance;
use crate::scratch::Scratch;

#[test]
fn conforms() {
    let dir = Scratch::new("conforms");
    match std::env::var_os("KINGTIDE_WINE") {
        Some(_) => conformance::check_all_else(&SystemFs::shared(), &dir.0),
        None => conformance::check(&SystemFs::shared(), &dir.0),
    }
}

#[test]
fn what_a_dead_process_left_of_a_removal_is_not_listed_and_goes() {
    let dir = Scratch::new("parked");
    let system = SystemFs::shared();
    let inner = dir.0.join("inner");
    fs::create_dir(&inner).unwrap();
    let left = parked_name(&inner.join("00000007.klog"));
    fs::write(&left, b"old").unwrap();
    fs::write(inner.join("kept"), b"new").unwrap();
    assert_eq!(system.list(&inner).unwrap(), ["kept"]);
    assert!(!left.exists());
    fs::write(&left, b"old").unwrap();
    assert!(system.remove_dir(&inner).is_err(), "a file is left");
    system.remove(&inner.join("kept")).unwrap();
    fs::write(&left, b"old").unwrap();
    system.remove_dir(&inner).unwrap();
    assert!(!inner.exists());
}

#[test]
fn a_removed_file_is_not_listed_while_it_is_open() {
    let dir = Scratch::new("removed");
    let system = SystemFs::shared();
    let path = dir.0.join("table");
    let open = system.open(&path, OpenMode::Create).unwrap();
    open.write_at(b"old", 0).unwrap();
    system.remove(&path).unwrap();
    assert!(system.list(&dir.0).unwrap().is_empty() && !system.exists(&path).unwrap());
    let again = system.open(&path, OpenMode::Create).unwrap();
    again.write_at(b"new", 0).unwrap();
    let mut read = [0; 3];
    open.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"old");
    drop((open, again));
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1, "the last handle took the removed file along");
}

#[test]
fn a_handle_for_reading_can_be_synced() {
    let dir = Scratch::new("read-sync");
    let system = SystemFs::shared();
    system.open(&dir.0.join("f"), OpenMode::Create).unwrap().write_at(b"x", 0).unwrap();
    let read = system.open(&dir.0.join("f"), OpenMode::Read).unwrap();
    read.sync_data().unwrap();
    read.sync_all().unwrap();
}

#[test]
fn a_rename_waits_for_a_reader_of_what_it_replaces() {
    let dir = Scratch::new("replaced");
    let system = SystemFs::shared();
    let (from, to) = (dir.0.join("from"), dir.0.join("to"));
    fs::write(&from, b"new").unwrap();
    fs::write(&to, b"old").unwrap();
    let reader = system.open(&to, OpenMode::Read).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(PAUSE);
            drop(reader);
        });
        system.rename(&from, &to).unwrap();
    });
    assert_eq!(fs::read(&to).unwrap(), b"new");
}
