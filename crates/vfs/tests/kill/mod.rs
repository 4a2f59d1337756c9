//! What a killed process leaves: every byte that `write_at` or `write_record_at` acknowledged, through the mapped window or not.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kingtide_base::ErrorKind;
use kingtide_base::rng::Rng;
use kingtide_vfs::{OpenMode, SystemFs};

const DIR: &str = "KINGTIDE_VFS_KILL_DIR";
const SEED: &str = "KINGTIDE_VFS_KILL_SEED";
const SIZE: u64 = 8 << 20;

/// The record at an offset: its length and bytes, the same for writer and checker.
fn record(seed: u64, offset: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ offset.wrapping_mul(0x9e37_79b9));
    let longest = if rng.one_in(200) { 60_000 } else { 400 };
    let mut data = vec![0; (1 + rng.below(longest)) as usize];
    rng.fill(&mut data);
    data.truncate((SIZE - offset) as usize);
    data
}

/// The child: appends records and says on its standard output how far it is, until it is killed.
#[test]
#[ignore = "run by the others, as a process of its own"]
fn writer() {
    let (Ok(dir), Ok(seed)) = (std::env::var(DIR), std::env::var(SEED)) else { return };
    let seed = seed.parse().unwrap();
    let fs = SystemFs::shared();
    let _lock = fs.lock(&Path::new(&dir).join("LOCK")).unwrap();
    let log = fs.open_log(&Path::new(&dir).join("log"), SIZE).unwrap();
    let mut out = std::io::stdout();
    let mut at = 0;
    let mut rng = Rng::new(seed);
    while at < SIZE {
        let data = record(seed, at);
        let (head, body) = data.split_at(data.len().min(32));
        if !log.write_record_at(head, body, at).unwrap() {
            log.write_at(&data, at).unwrap();
        }
        if rng.one_in(250) {
            log.sync_data().unwrap(); // the next records are written at once, until the window pays again
        }
        at += data.len() as u64;
        out.write_all(&at.to_le_bytes()).unwrap();
        out.flush().unwrap();
    }
    // Stay alive, so that the end is always a kill.
    loop {
        std::thread::park();
    }
}

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts the writer, kills it after about `after` bytes, and checks what it acknowledged. Returns how much that was.
fn kill_after(dir: &Path, seed: u64, after: u64) -> u64 {
    let fs = SystemFs::shared();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["kill::writer", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    // The test harness prints lines of its own before the child's first number.
    skip_banner(&mut out);
    let mut acknowledged = 0;
    let mut number = [0; 8];
    while acknowledged < after {
        out.read_exact(&mut number).unwrap();
        acknowledged = u64::from_le_bytes(number);
    }
    let e = fs.lock(&dir.join("LOCK")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Locked);
    assert!(e.message().contains("another process"), "{e}");
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    // What it had said before it died.
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    if let Some(last) = rest.chunks_exact(8).last() {
        acknowledged = u64::from_le_bytes(last.try_into().unwrap());
    }
    drop(fs.lock(&dir.join("LOCK")).unwrap());

    let log = fs.open(&dir.join("log"), OpenMode::Read).unwrap();
    assert_eq!(log.len().unwrap(), SIZE);
    let mut at = 0;
    while at < acknowledged {
        let data = record(seed, at);
        let mut got = vec![0; data.len()];
        log.read_exact_at(&mut got, at).unwrap();
        assert!(
            got == data,
            "seed {seed}: the record at byte {at} of {acknowledged} acknowledged is not what was written"
        );
        at += data.len() as u64;
    }
    assert_eq!(at, acknowledged);
    acknowledged
}

fn skip_banner(out: &mut impl Read) {
    // "\nrunning 1 test\ntest kill::writer ... " with nothing after the dots until the test prints.
    let end = b"test kill::writer ... ";
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(end) {
        out.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
        assert!(seen.len() < 10_000, "the child said {:?}", String::from_utf8_lossy(&seen));
    }
}

#[test]
fn acknowledged_bytes_survive_sigkill() {
    let dir = Scratch(std::env::temp_dir().join(format!("kingtide-vfs-kill-{}", std::process::id())));
    std::fs::create_dir_all(&dir.0).unwrap();
    let mut rng = Rng::new(77);
    // The same directory every time: the later ones write into a recycled segment.
    let kills: Vec<u64> = (0..12).map(|seed| kill_after(&dir.0, seed, rng.below(SIZE))).collect();
    println!("{} kills, {} bytes acknowledged, none lost", kills.len(), kills.iter().sum::<u64>());
}
