use super::*;
use crate::scratch::Scratch;
use kingtide_base::ErrorKind;
use std::path::PathBuf;

#[test]
fn conforms() {
    let dir = Scratch::new("conforms");
    crate::conformance::check(&SystemFs::shared(), &dir.0);
    assert!(SystemFs::shared().boot_id() != [0; 16] || !cfg!(target_os = "linux"));
}

#[test]
fn conforms_on_a_memory_file_system() {
    if !Path::new("/dev/shm").is_dir() {
        return;
    }
    let dir = Scratch(PathBuf::from(format!("/dev/shm/kingtide-vfs-{}", std::process::id())));
    fs::create_dir_all(&dir.0).unwrap();
    crate::conformance::check(&SystemFs::shared(), &dir.0);
}

/// Permission bits of what is at a path, itself and not what it links to.
fn bits(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn what_is_created_has_the_mode_less_the_umask() {
    let dir = Scratch::new("modes");
    // The umask of a process can only be read by setting it, for all threads: another process tells.
    let said = std::process::Command::new("sh").args(["-c", "umask"]).output().unwrap().stdout;
    let umask = u32::from_str_radix(String::from_utf8(said).unwrap().trim(), 8).unwrap();
    for (mode, file, sub) in [(0o600, 0o600, 0o700), (0o640, 0o640, 0o750), (0o666, 0o666, 0o777)] {
        let at = |name: &str| dir.0.join(format!("{mode:o}")).join(name);
        let posix = SystemFs::shared().with_mode(FileMode::new(mode).unwrap());
        posix.create_dir_all(&at("above/below")).unwrap();
        posix.open(&at("created"), OpenMode::Create).unwrap();
        posix.open(&at("overwritten"), OpenMode::Overwrite).unwrap();
        posix.open_log(&at("log"), 4096).unwrap();
        drop(posix.lock(&at("LOCK")).unwrap());
        for name in ["created", "overwritten", "log", "LOCK"] {
            assert_eq!(bits(&at(name)), file & !umask, "{name} at {mode:o}");
        }
        for name in ["", "above", "above/below"] {
            assert_eq!(bits(&at(name)), sub & !umask, "directory {name:?} at {mode:o}");
        }
    }
    let shared = SystemFs::shared();
    shared.open(&dir.0.join("default"), OpenMode::Create).unwrap();
    shared.create_dir_all(&dir.0.join("default.d")).unwrap();
    assert_eq!((bits(&dir.0.join("default")), bits(&dir.0.join("default.d"))), (0o600 & !umask, 0o700 & !umask));
    // A file that was there with other permissions does not lend them to the one that takes its place.
    fs::write(dir.0.join("wide"), b"old").unwrap();
    fs::set_permissions(dir.0.join("wide"), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    shared.open(&dir.0.join("wide"), OpenMode::Overwrite).unwrap();
    assert_eq!(bits(&dir.0.join("wide")), 0o600 & !umask);
}

#[test]
fn planted_links_are_not_written_through() {
    use std::os::unix::fs::symlink;
    let dir = Scratch::new("planted");
    let at = |name: &str| dir.0.join(name);
    let posix = SystemFs::shared();
    fs::write(at("victim"), b"precious").unwrap();
    let plant = |name: &str, target: &str| {
        let _ = fs::remove_file(at(name));
        symlink(at(target), at(name)).unwrap();
    };
    for target in ["victim", "absent"] {
        plant("tmp", target);
        posix.open(&at("tmp"), OpenMode::Overwrite).unwrap().write_at(b"mine", 0).unwrap();
        assert_eq!(fs::read(at("tmp")).unwrap(), b"mine");
        assert!(fs::symlink_metadata(at("tmp")).unwrap().is_file(), "the link is gone");

        plant("new", target);
        let e = posix.open(&at("new"), OpenMode::Create).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Exists, "{e}");

        plant("old", target);
        let refused = [
            posix.open(&at("old"), OpenMode::Write).map(drop),
            posix.open_log(&at("old"), 1 << 16).map(drop),
            posix.lock(&at("old")).map(drop),
        ];
        for e in refused.map(Result::unwrap_err) {
            assert!(e.message().contains("symbolic link") && e.path() == Some(&at("old")), "{e}");
        }
        // A link is removed and renamed as itself.
        posix.rename(&at("old"), &at("older")).unwrap();
        posix.remove(&at("older")).unwrap();

        assert_eq!(fs::read(at("victim")).unwrap(), b"precious");
        assert!(!at("absent").exists());
    }
    // A hard link to a file elsewhere.
    fs::hard_link(at("victim"), at("hard")).unwrap();
    posix.open(&at("hard"), OpenMode::Overwrite).unwrap().write_at(b"mine", 0).unwrap();
    assert_eq!(
        (fs::read(at("hard")).unwrap(), fs::read(at("victim")).unwrap()),
        (b"mine".to_vec(), b"precious".to_vec())
    );
    // The directory itself may be reached through one.
    symlink(&dir.0, at("around")).unwrap();
    posix.open(&at("around/tmp"), OpenMode::Write).unwrap().write_at(b"M", 0).unwrap();
    drop(posix.lock(&at("around/LOCK")).unwrap());
}

#[test]
fn boot_ids() {
    let id = parse_boot_id("b9e9f7a4-4a0c-4c7e-8a55-0123456789ab\n").unwrap();
    assert_eq!((id[0], id[15]), (0xb9, 0xab));
    for bad in ["", "b9", "b9e9f7a4-4a0c-4c7e-8a55-0123456789abc", "z9e9f7a4-4a0c-4c7e-8a55-0123456789ab"] {
        assert_eq!(parse_boot_id(bad), None, "{bad}");
    }
}

/// A holder removed the file between the open and the lock of another.
#[test]
fn a_lock_on_a_file_that_has_no_name_any_more_is_taken_again() {
    let dir = Scratch::new("unnamed-lock");
    let path = dir.0.join("LOCK");
    for made_again in [false, true] {
        let open = || open_to_write("lock", &path, FileMode::default(), |o| _ = o.create(true).truncate(false));
        let stale = std::cell::Cell::new(Some(open().unwrap()));
        fs::remove_file(&path).unwrap();
        if made_again {
            fs::write(&path, b"").unwrap();
        }
        let take = || take_lock(&path, stale.take().map_or_else(open, Ok)?, LockKind::Exclusive);
        let lock = lock_named(take).unwrap();
        assert_eq!(SystemFs::shared().lock(&path).unwrap_err().kind(), ErrorKind::Locked);
        drop(lock);
        SystemFs::shared().lock(&path).unwrap();
    }
}
