//! One suite that every file system must pass. It panics at the first thing that is not as the traits say.

use std::path::Path;
use std::sync::Arc;

use kingtide_base::options::FileMode;
use kingtide_base::rng::Rng;
use kingtide_base::{ErrorKind, Result};

use crate::{File, Fs, OpenMode};

/// Runs the whole suite under `dir`, an existing empty directory of `fs`, which needs 8 MiB of space.
///
/// # Panics
/// At the first deviation.
pub fn check(fs: &Arc<dyn Fs>, dir: &Path) {
    replacing_an_open_file(&**fs, dir);
    check_all_else(fs, dir);
}

/// The same without a rename to the name of a file that is open, which emulators of Windows refuse. The engine never does that.
///
/// # Panics
/// At the first deviation.
pub fn check_all_else(fs: &Arc<dyn Fs>, dir: &Path) {
    let parts: [(&str, Part); 12] = [
        ("open_modes", open_modes),
        ("reads_and_writes", reads_and_writes),
        ("lengths", lengths),
        ("random_file_operations", random_file_operations),
        ("names", names),
        ("errors_of_names", errors_of_names),
        ("logs", logs),
        ("recycled_logs", recycled_logs),
        ("no_space", no_space),
        ("locks", locks),
        ("directories", directories),
        ("machine", machine),
    ];
    for (name, part) in parts {
        let own = dir.join(name);
        fs.create_dir_all(&own).unwrap();
        part(&**fs, &own);
    }
    assert_eq!(fs.list(dir).unwrap().len(), parts.len());
    modes(fs, &dir.join("modes"));
    threads(fs, &dir.join("threads"));
}

/// Tests one subject in a directory of its own.
type Part = fn(&dyn Fs, &Path);

fn kind<T>(r: Result<T>) -> Option<ErrorKind> {
    r.err().map(|e| e.kind())
}

fn contents(file: &dyn File) -> Vec<u8> {
    let mut all = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut all, 0).unwrap();
    all
}

fn put(fs: &dyn Fs, path: &Path, data: &[u8]) {
    fs.open(path, OpenMode::Overwrite).unwrap().write_at(data, 0).unwrap();
}

fn get(fs: &dyn Fs, path: &Path) -> Vec<u8> {
    contents(&*fs.open(path, OpenMode::Read).unwrap())
}

fn open_modes(fs: &dyn Fs, dir: &Path) {
    let p = dir.join("f");
    for mode in [OpenMode::Read, OpenMode::Write] {
        let e = fs.open(&p, mode).unwrap_err();
        assert_eq!((e.kind(), e.path()), (ErrorKind::NotFound, Some(p.as_path())), "{mode:?}");
    }
    let f = fs.open(&p, OpenMode::Create).unwrap();
    assert_eq!((f.path(), f.len().unwrap(), f.is_empty().unwrap()), (p.as_path(), 0, true));
    f.write_at(b"hello", 0).unwrap();
    let e = fs.open(&p, OpenMode::Create).unwrap_err();
    assert_eq!((e.kind(), e.path()), (ErrorKind::Exists, Some(p.as_path())));
    let w = fs.open(&p, OpenMode::Write).unwrap();
    assert_eq!(contents(&*w), b"hello");
    w.write_at(b"J", 0).unwrap();
    let r = fs.open(&p, OpenMode::Read).unwrap();
    assert_eq!(contents(&*r), b"Jello");
    // A handle for reading refuses everything else, and names the file.
    for refused in [r.write_at(b"x", 0), r.write_parts_at(&[b"x", b"y"], 0), r.truncate(0), r.allocate(0, 10)] {
        let e = refused.unwrap_err();
        assert_eq!(e.path(), Some(p.as_path()));
        assert!(matches!(e.kind(), ErrorKind::Io | ErrorKind::InvalidArgument), "{e:?}");
    }
    assert_eq!(contents(&*r), b"Jello");
    // Overwriting makes another file: older handles and other names keep theirs, whatever is written.
    fs.hard_link(&p, &dir.join("link")).unwrap();
    let o = fs.open(&p, OpenMode::Overwrite).unwrap();
    o.write_at(b"new", 0).unwrap();
    assert_eq!((contents(&*o), contents(&*r), contents(&*w)), (b"new".to_vec(), b"Jello".to_vec(), b"Jello".to_vec()));
    assert_eq!((get(fs, &p), get(fs, &dir.join("link"))), (b"new".to_vec(), b"Jello".to_vec()));
    w.write_at(b"H", 0).unwrap();
    assert_eq!((get(fs, &p), get(fs, &dir.join("link"))), (b"new".to_vec(), b"Hello".to_vec()));
    fs.remove(&dir.join("link")).unwrap();
    fs.create_dir_all(&dir.join("d")).unwrap();
    for mode in [OpenMode::Create, OpenMode::Overwrite, OpenMode::Write] {
        assert!(fs.open(&dir.join("d"), mode).is_err(), "a directory is no file: {mode:?}");
    }
    assert!(fs.list(&dir.join("d")).unwrap().is_empty());
    fs.remove_dir(&dir.join("d")).unwrap();
    fs.open(&dir.join("g"), OpenMode::Overwrite).unwrap();
    for mode in [OpenMode::Create, OpenMode::Overwrite, OpenMode::Read] {
        assert_eq!(kind(fs.open(&dir.join("no/f"), mode)), Some(ErrorKind::NotFound), "{mode:?}");
        assert_eq!(kind(fs.open(&p.join("under a file"), mode)), Some(ErrorKind::Io), "{mode:?}");
    }
    assert_eq!(kind(fs.open_log(&dir.join("no/log"), 4096)), Some(ErrorKind::NotFound));
    assert_eq!(fs.list(dir).unwrap(), ["f", "g"]);
}

/// A file system with another mode is the same file system.
fn modes(fs: &Arc<dyn Fs>, dir: &Path) {
    let wide = fs.clone().with_mode(FileMode::new(0o644).unwrap());
    wide.create_dir_all(&dir.join("sub")).unwrap();
    put(&*wide, &dir.join("sub/f"), b"wide");
    assert_eq!(get(&**fs, &dir.join("sub/f")), b"wide");
    put(&**fs, &dir.join("sub/f"), b"narrow");
    assert_eq!(get(&*wide, &dir.join("sub/f")), b"narrow");
    let held = wide.lock(&dir.join("LOCK")).unwrap();
    assert_eq!(kind(fs.lock(&dir.join("LOCK"))), Some(ErrorKind::Locked));
    drop(held);
    wide.open_log(&dir.join("log"), 4096).unwrap().write_at(b"x", 0).unwrap();
    assert_eq!(get(&**fs, &dir.join("log"))[..2], *b"x\0");
}

fn reads_and_writes(fs: &dyn Fs, dir: &Path) {
    let f = fs.open(&dir.join("f"), OpenMode::Create).unwrap();
    let mut buf = [7; 8];
    assert_eq!(f.read_at(&mut buf, 0).unwrap(), 0);
    f.write_at(b"abc", 10).unwrap(); // behind a hole
    f.write_at(b"", 1000).unwrap();
    assert_eq!(contents(&*f), b"\0\0\0\0\0\0\0\0\0\0abc");
    assert_eq!((f.read_at(&mut buf, 8).unwrap(), &buf[..5]), (5, &b"\0\0abc"[..]));
    assert_eq!((f.read_at(&mut buf, 13).unwrap(), f.read_at(&mut buf, 1 << 40).unwrap()), (0, 0));
    assert_eq!(f.read_at(&mut [], 0).unwrap(), 0);
    f.read_exact_at(&mut buf[..3], 10).unwrap();
    f.read_exact_at(&mut [], 13).unwrap();
    let e = f.read_exact_at(&mut buf, 8).unwrap_err();
    assert_eq!((e.kind(), e.path(), e.offset()), (ErrorKind::Corruption, Some(f.path()), Some(8)));
    assert!(e.message().contains("ends early"), "{e}");
    // Larger than any buffer or chunk on the way.
    let mut big = vec![0; (1 << 20) + 77];
    Rng::new(9).fill(&mut big);
    f.write_at(&big, 5).unwrap();
    assert!(contents(&*f)[5..] == big);
    // More parts than systems take in one call.
    let parts: Vec<&[u8]> = big.chunks(777).chain([&b""[..]]).collect();
    assert!(parts.len() > 1024);
    f.write_parts_at(&parts, 99).unwrap();
    assert!(contents(&*f)[99..] == big);
    f.write_parts_at(&[], 1 << 30).unwrap();
    f.write_at(&big, 5).unwrap();
    f.truncate(5 + big.len() as u64).unwrap();
    assert!(f.write_at(b"x", u64::MAX - 3).is_err(), "no file is that long");
    assert!(f.write_parts_at(&[b"x", b"y"], u64::MAX - 3).is_err());
    f.sync_data().unwrap();
    f.sync_all().unwrap();
    // Hints never fail, whatever they are about.
    f.advise_sequential();
    for (offset, len) in [(0, 0), (0, 4096), (1 << 40, 1), (u64::MAX, u64::MAX)] {
        f.prefetch(offset, len);
    }
    assert!(contents(&*f)[5..] == big);
}

fn lengths(fs: &dyn Fs, dir: &Path) {
    let f = fs.open(&dir.join("f"), OpenMode::Create).unwrap();
    f.write_at(b"0123456789", 0).unwrap();
    f.truncate(4).unwrap();
    assert_eq!(contents(&*f), b"0123");
    f.truncate(6).unwrap();
    assert_eq!(contents(&*f), b"0123\0\0", "what was cut does not come back");
    f.allocate(0, 3).unwrap();
    assert_eq!(contents(&*f), b"0123\0\0", "allocating neither cuts nor changes");
    f.allocate(4, 6).unwrap();
    assert_eq!(contents(&*f), b"0123\0\0\0\0\0\0");
    f.allocate(5, 0).unwrap();
    f.allocate(100_000, 100_000).unwrap();
    assert_eq!(f.len().unwrap(), 200_000);
    assert!(contents(&*f)[4..].iter().all(|&b| b == 0));
    f.truncate(0).unwrap();
    assert!(f.is_empty().unwrap());
}

/// Random operations on a plain file and a log, against a vector.
fn random_file_operations(fs: &dyn Fs, dir: &Path) {
    const MAX: u64 = 300_000;
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let path = dir.join("f");
        let is_log = seed % 2 == 1;
        let mut model = vec![0; if is_log { MAX as usize } else { 0 }];
        let f = if is_log { fs.open_log(&path, MAX) } else { fs.open(&path, OpenMode::Create) }.unwrap();
        for step in 0..120 {
            let at = rng.below(MAX);
            let len = if rng.one_in(3) { rng.below(MAX - at) } else { rng.below((MAX - at).min(700)) } as usize;
            let end = at as usize + len;
            match rng.below(8) {
                0..=3 if len > 0 => {
                    let mut data = vec![0; len];
                    rng.fill(&mut data);
                    f.write_at(&data, at).unwrap();
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&data);
                }
                4 => {
                    f.truncate(at).unwrap();
                    model.resize(at as usize, 0);
                }
                5 if len > 0 => {
                    f.allocate(at, len as u64).unwrap();
                    model.resize(model.len().max(end), 0);
                }
                6 => f.sync_data().unwrap(),
                _ => {
                    let mut got = vec![1; len];
                    let n = f.read_at(&mut got, at).unwrap();
                    let there = model.get(at as usize..).map_or(0, |rest| rest.len().min(len));
                    assert_eq!(n, there, "seed {seed} step {step}");
                    assert!(got[..n] == model[model.len().min(at as usize)..][..n], "seed {seed} step {step}");
                }
            }
        }
        assert!(contents(&*f) == model, "seed {seed}");
        assert!(get(fs, &path) == model, "seed {seed}");
        fs.remove(&path).unwrap();
    }
}

/// The open handle stays with its file.
fn replacing_an_open_file(fs: &dyn Fs, dir: &Path) {
    let (from, to) = (dir.join("from"), dir.join("to"));
    put(fs, &from, b"A");
    put(fs, &to, b"B");
    let open = fs.open(&to, OpenMode::Read).unwrap();
    fs.rename(&from, &to).unwrap();
    assert_eq!((get(fs, &to), contents(&*open)), (b"A".to_vec(), b"B".to_vec()));
    fs.remove(&to).unwrap();
}

fn names(fs: &dyn Fs, dir: &Path) {
    let p = |name: &str| dir.join(name);
    put(fs, &p("a"), b"A");
    put(fs, &p("b"), b"B");
    fs.rename(&p("a"), &p("b")).unwrap();
    assert_eq!(get(fs, &p("b")), b"A");
    assert!(!fs.exists(&p("a")).unwrap() && fs.exists(&p("b")).unwrap());
    fs.rename(&p("b"), &p("b")).unwrap();
    // Two names of one file.
    fs.hard_link(&p("b"), &p("c")).unwrap();
    fs.open(&p("c"), OpenMode::Write).unwrap().write_at(b"C", 0).unwrap();
    assert_eq!(get(fs, &p("b")), b"C");
    fs.remove(&p("b")).unwrap();
    assert_eq!(get(fs, &p("c")), b"C");
    // An open file outlives its last name, and can still be written.
    let c = fs.open(&p("c"), OpenMode::Write).unwrap();
    fs.remove(&p("c")).unwrap();
    c.write_at(b"still", 0).unwrap();
    c.sync_data().unwrap();
    assert_eq!(contents(&*c), b"still");
    fs.sync_dir(dir).unwrap();
    assert_eq!(contents(&*c), b"still");
    assert!(fs.list(dir).unwrap().is_empty());
    put(fs, &p("c"), b"another");
    assert_eq!((contents(&*c), get(fs, &p("c"))), (b"still".to_vec(), b"another".to_vec()));
    // Directories.
    fs.create_dir_all(&p("d/e/f")).unwrap();
    fs.create_dir_all(&p("d/e/f")).unwrap();
    put(fs, &p("d/e/x"), b"X");
    assert_eq!((fs.list(dir).unwrap(), fs.list(&p("d/e")).unwrap()), (s(&["c", "d"]), s(&["f", "x"])));
    fs.rename(&p("d/e"), &p("moved")).unwrap();
    assert_eq!(get(fs, &p("moved/x")), b"X");
    fs.rename(&p("moved/x"), &p("d/x")).unwrap();
    assert!(fs.exists(&p("moved/f")).unwrap() && fs.exists(&p("d/x")).unwrap());
    fs.remove_dir(&p("moved/f")).unwrap();
    fs.remove_dir(&p("moved")).unwrap();
    for d in [dir, &p("d"), dir.parent().unwrap()] {
        fs.sync_dir(d).unwrap();
    }
    assert_eq!((fs.list(dir).unwrap(), fs.list(&p("d")).unwrap()), (s(&["c", "d"]), s(&["x"])));
}

fn s(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| n.to_string()).collect()
}

fn errors_of_names(fs: &dyn Fs, dir: &Path) {
    let p = |name: &str| dir.join(name);
    put(fs, &p("a"), b"A");
    fs.create_dir_all(&p("d")).unwrap();
    put(fs, &p("d/x"), b"X");
    let missing = [
        fs.remove(&p("no")),
        fs.remove_dir(&p("no")),
        fs.rename(&p("no"), &p("b")),
        fs.rename(&p("a"), &p("no/b")),
        fs.hard_link(&p("no"), &p("b")),
        fs.hard_link(&p("a"), &p("no/b")),
        fs.sync_dir(&p("no")),
        fs.list(&p("no")).map(|_| ()),
        fs.free_space(&p("no")).map(|_| ()),
        fs.lock(&p("no/LOCK")).map(|_| ()),
        fs.lock_shared(&p("no")).map(|_| ()),
    ];
    for (i, r) in missing.into_iter().enumerate() {
        let e = r.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "case {i}: {e}");
        assert!(e.path().is_some() && e.message().starts_with("cannot "), "case {i}: {e}");
    }
    assert_eq!(kind(fs.hard_link(&p("a"), &p("d/x"))), Some(ErrorKind::Exists));
    assert_eq!(kind(fs.hard_link(&p("a"), &p("a"))), Some(ErrorKind::Exists));
    assert!(fs.remove(&p("d")).is_err() && fs.remove_dir(&p("a")).is_err());
    assert!(fs.remove_dir(&p("d")).is_err(), "not empty");
    assert!(fs.rename(&p("a"), &p("d")).is_err() && fs.rename(&p("d"), &p("a")).is_err());
    assert!(fs.rename(&p("d"), &p("d/inside")).is_err(), "into itself");
    assert!(fs.create_dir_all(&p("a")).is_err() && fs.create_dir_all(&p("a/b")).is_err());
    assert!(fs.list(&p("a")).is_err() && fs.open(&p("d"), OpenMode::Write).is_err());
    assert!(!fs.exists(&p("no")).unwrap());
    assert_eq!((get(fs, &p("a")), get(fs, &p("d/x"))), (b"A".to_vec(), b"X".to_vec()), "nothing changed");
    assert_eq!(fs.list(dir).unwrap(), ["a", "d"]);
}

fn logs(fs: &dyn Fs, dir: &Path) {
    const SIZE: u64 = 3 << 20;
    let p = dir.join("log");
    let log = fs.open_log(&p, SIZE).unwrap();
    assert_eq!((log.path(), log.len().unwrap()), (p.as_path(), SIZE));
    assert!(contents(&*log).iter().all(|&b| b == 0));
    // Small records, large ones, and such as cross every border that an implementation may have.
    let mut rng = Rng::new(5);
    let mut model = vec![0; SIZE as usize];
    let mut at = 0;
    while at < SIZE as usize {
        let len = match rng.below(50) {
            0 => rng.below(200_000),
            1 => 4096 - at as u64 % 4096,
            2 => 16 << 10,
            _ => 1 + rng.below(2000),
        } as usize;
        let len = len.min(SIZE as usize - at);
        rng.fill(&mut model[at..at + len]);
        log.write_at(&model[at..at + len], at as u64).unwrap();
        if rng.one_in(60) {
            // Visible at once through this handle and any other.
            let mut got = vec![0; len];
            let other = fs.open(&p, OpenMode::Read).unwrap();
            for f in [&log, &other] {
                f.read_exact_at(&mut got, at as u64).unwrap();
                assert!(got == model[at..at + len]);
            }
        }
        if rng.one_in(100) {
            log.sync_data().unwrap();
        }
        at += len;
    }
    log.sync_data().unwrap();
    assert!(contents(&*log) == model);
    // Backwards and across the whole file: unusual, but right.
    for at in [5, SIZE - 100, 4090, 1 << 20] {
        log.write_at(&[0xee; 100], at).unwrap();
        model[at as usize..][..100].fill(0xee);
    }
    log.write_at(b"beyond", SIZE + 10).unwrap();
    assert_eq!(log.len().unwrap(), SIZE + 16);
}

/// The bytes stay, the size is exact, shorter or longer.
fn recycled_logs(fs: &dyn Fs, dir: &Path) {
    const SIZE: u64 = 3 << 20;
    let p = dir.join("recycled");
    let mut model = vec![0; SIZE as usize];
    Rng::new(6).fill(&mut model);
    fs.open_log(&dir.join("log"), SIZE).unwrap().write_at(&model, 0).unwrap();
    fs.rename(&dir.join("log"), &p).unwrap();
    for size in [SIZE, 1 << 20, SIZE] {
        let log = fs.open_log(&p, size).unwrap();
        if size < SIZE {
            model[size as usize..].fill(0);
        }
        assert_eq!(log.len().unwrap(), size);
        assert!(contents(&*log) == model[..size as usize], "size {size}");
        // Shrinking under a live handle, then growing again.
        log.write_at(b"small", 100).unwrap();
        model[100..105].copy_from_slice(b"small");
        log.truncate(200).unwrap();
        log.write_at(b"again", 190).unwrap();
        log.truncate(size).unwrap();
        model[190..195].copy_from_slice(b"again");
        model[200..].fill(0);
        log.write_at(b"end", size - 3).unwrap();
        model[size as usize - 3..size as usize].copy_from_slice(b"end");
        assert!(contents(&*log) == model[..size as usize], "size {size}");
    }
    // A record is written as a whole, or left to the caller as a whole.
    let log = fs.open_log(&dir.join("records"), SIZE).unwrap();
    let mut model = vec![0; SIZE as usize];
    for at in (0..20_000).step_by(104) {
        if log.write_record_at(&[7; 32], &[8; 70], at).unwrap() {
            model[at as usize..at as usize + 32].fill(7);
            model[at as usize + 32..at as usize + 102].fill(8);
        }
    }
    assert!(contents(&*log) == model);
    fs.remove(&dir.join("records")).unwrap();
    // Zeros written ahead are what was there before, and in the way of nothing.
    let log = fs.open_log(&dir.join("ahead"), SIZE).unwrap();
    log.write_at(b"small", 100).unwrap();
    log.prefill(1 << 20, (1 << 20) + 77).unwrap();
    log.sync_data().unwrap();
    log.write_at(b"later", (1 << 20) + 5).unwrap();
    let mut model = vec![0; SIZE as usize];
    model[100..105].copy_from_slice(b"small");
    model[(1 << 20) + 5..(1 << 20) + 10].copy_from_slice(b"later");
    assert!(log.len().unwrap() == SIZE && contents(&*log) == model);
    // Removed under a live handle.
    let log = fs.open_log(&p, 1 << 20).unwrap();
    fs.remove(&p).unwrap();
    log.write_at(b"unread", 0).unwrap();
    log.sync_data().unwrap();
    // Sizes that are no multiple of anything.
    for size in [0, 1, 4095, 4097] {
        let log = fs.open_log(&dir.join("odd"), size).unwrap();
        assert_eq!(log.len().unwrap(), size);
        log.write_at(&vec![9; size as usize], 0).unwrap();
        assert_eq!((log.len().unwrap(), contents(&*log)), (size, vec![9; size as usize]));
    }
    fs.remove(&dir.join("odd")).unwrap();
}

/// No disk holds a PiB.
fn no_space(fs: &dyn Fs, dir: &Path) {
    let (p, huge) = (dir.join("f"), 1 << 50);
    let e = fs.open_log(&p, huge).unwrap_err();
    assert_eq!((e.kind(), e.path(), e.is_retryable()), (ErrorKind::NoSpace, Some(p.as_path()), true), "{e}");
    assert!(!fs.exists(&p).unwrap(), "a log that could not be made is not left behind");
    put(fs, &p, b"kept");
    assert_eq!(kind(fs.open_log(&p, huge)), Some(ErrorKind::NoSpace));
    let f = fs.open(&p, OpenMode::Write).unwrap();
    let e = f.allocate(4, huge).unwrap_err();
    assert_eq!((e.kind(), e.path(), e.offset()), (ErrorKind::NoSpace, Some(p.as_path()), Some(4)), "{e}");
    assert_eq!(contents(&*f), b"kept");
}

fn locks(fs: &dyn Fs, dir: &Path) {
    let (p, q) = (dir.join("LOCK"), dir.join("OTHER"));
    let held = fs.lock(&p).unwrap();
    assert!(fs.exists(&p).unwrap());
    let e = fs.lock(&p).unwrap_err();
    assert_eq!((e.kind(), e.path(), e.is_retryable()), (ErrorKind::Locked, Some(p.as_path()), true));
    assert!(e.message().contains(p.to_str().unwrap()) && e.message().contains("close"), "{e}");
    let other = fs.lock(&q).unwrap();
    drop(held);
    assert!(fs.exists(&p).unwrap(), "the file stays");
    let again = fs.lock(&p).unwrap();
    // The same file by another way.
    assert_eq!(kind(fs.lock(&dir.join(".").join("LOCK"))), Some(ErrorKind::Locked));
    assert_eq!(kind(fs.lock_shared(&p)), Some(ErrorKind::Locked));
    drop((again, other));
    fs.lock(&p).unwrap();
    fs.lock(&q).unwrap();
    // Readers share it, and the last of them gives it back.
    let [one, two] = [fs.lock_shared(&p).unwrap(), fs.lock_shared(&dir.join(".").join("LOCK")).unwrap()];
    let e = fs.lock(&p).unwrap_err();
    assert_eq!((e.kind(), e.path(), e.is_retryable()), (ErrorKind::Locked, Some(p.as_path()), true));
    drop(one);
    assert_eq!(kind(fs.lock(&p)), Some(ErrorKind::Locked));
    let three = fs.lock_shared(&p).unwrap();
    drop((two, three));
    fs.lock(&p).unwrap();
}

/// A directory has one id, and no other directory has it.
fn directories(fs: &dyn Fs, dir: &Path) {
    let [a, b] = [dir.join("a"), dir.join("b")];
    [&a, &b].into_iter().for_each(|made| fs.create_dir_all(made).unwrap());
    let id = fs.dir_id(&a).unwrap();
    assert_eq!(fs.dir_id(&a.join("")).unwrap(), id);
    assert_eq!(fs.dir_id(&dir.join(".").join("a")).unwrap(), id);
    assert!(fs.dir_id(&b).unwrap() != id && fs.dir_id(dir).unwrap() != id);
    assert_eq!(kind(fs.dir_id(&dir.join("c"))), Some(ErrorKind::NotFound));
    fs.rename(&a, &dir.join("c")).unwrap();
    assert_eq!(fs.dir_id(&dir.join("c")).unwrap(), id);
    put(fs, &dir.join("c/f"), b"x");
    assert_eq!(fs.dir_id(&dir.join("c")).unwrap(), id);
}

fn machine(fs: &dyn Fs, dir: &Path) {
    assert!(fs.free_space(dir).unwrap() > 0);
    put(fs, &dir.join("f"), b"x");
    assert!(fs.free_space(&dir.join("f")).unwrap() > 0);
    assert_eq!(fs.boot_id(), fs.boot_id());
}

/// One writer appends to a log while others read what it has announced; several write distinct parts.
#[allow(clippy::disallowed_methods)] // threads: this is a test
fn threads(fs: &Arc<dyn Fs>, dir: &Path) {
    use std::sync::atomic::{AtomicU64, Ordering};
    fs.create_dir_all(dir).unwrap();
    const SIZE: u64 = 1 << 20;
    let log = fs.open_log(&dir.join("log"), SIZE).unwrap();
    let byte = |at: u64| (at * 31 % 251) as u8;
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (log, written) = (&log, &written);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                let mut buf = [0; 300];
                loop {
                    // Acquire: pairs with the writer's release, which announces bytes after they are written.
                    let end = written.load(Ordering::Acquire);
                    let at = end.saturating_sub(rng.below(3000));
                    let n = (end - at).min(300) as usize;
                    log.read_exact_at(&mut buf[..n], at).unwrap();
                    assert!(buf[..n].iter().zip(at..).all(|(&b, i)| b == byte(i)));
                    if end == SIZE {
                        break;
                    }
                }
            });
        }
        let mut rng = Rng::new(3);
        let mut at = 0;
        while at < SIZE {
            let longest = if rng.one_in(40) { 40_000 } else { 900 };
            let len = (1 + rng.below(longest)).min(SIZE - at);
            let data: Vec<u8> = (at..at + len).map(byte).collect();
            log.write_at(&data, at).unwrap();
            at += len;
            written.store(at, Ordering::Release);
        }
    });
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let log = &log;
            scope.spawn(move || {
                (0..SIZE / 512)
                    .filter(|i| i % 4 == t)
                    .for_each(|i| log.write_at(&[t as u8 + 1; 512], i * 512).unwrap());
            });
        }
    });
    let all = contents(&*log);
    assert!(all.chunks(512).enumerate().all(|(i, c)| c.iter().all(|&b| b == (i % 4) as u8 + 1)));
}
