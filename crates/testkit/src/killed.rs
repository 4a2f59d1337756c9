//! Tests with a process that is killed: the same test program, run again with one ignored test, which says over its output
//! what was acknowledged.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

/// In the child's environment: the directory that it works on.
pub const DIR: &str = "KINGTIDE_KILL_DIR";
/// In the child's environment: the seed of its run.
pub const SEED: &str = "KINGTIDE_KILL_SEED";
/// In the child's environment: what it should do, in words that parent and child agree on.
pub const JOB: &str = "KINGTIDE_KILL_JOB";
/// What the child writes before its first acknowledgement, to set it off from the harness's own output.
pub const BEGIN: &[u8] = b"\x01ACKNOWLEDGED\x02";

/// In the child: writes one acknowledgement; shorter than a pipe's atomic write.
///
/// # Panics
/// If the pipe is closed.
pub fn acknowledge(out: &Mutex<std::io::Stdout>, who: u64, n: u64) {
    let mut message = [0; 16];
    message[..8].copy_from_slice(&who.to_le_bytes());
    message[8..].copy_from_slice(&n.to_le_bytes());
    let mut out = out.lock().unwrap();
    out.write_all(&message).unwrap();
    out.flush().unwrap();
}

/// Where the standard error of a child goes that works on that directory; [`crate::Scratch`] removes it.
pub(crate) fn complaints(dir: &Path) -> PathBuf {
    dir.with_extension("stderr")
}

/// Starts the ignored test of that full name (see [`crate::test_name`]) in a process of its own.
///
/// # Panics
/// If it cannot be started.
pub fn spawn(test: &str, dir: &Path, seed: u64, job: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .env(SEED, seed.to_string())
        .env(JOB, job)
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(complaints(dir)).unwrap())
        .spawn()
        .unwrap()
}

/// Acknowledgements in a child's output. The last may be cut short.
pub fn parse(output: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let from = output.windows(BEGIN.len()).position(|w| w == BEGIN).map_or(output.len(), |at| at + BEGIN.len());
    let word = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap());
    output[from..].chunks_exact(16).map(move |m| (word(&m[..8]), word(&m[8..])))
}

/// Runs a child for about that long, counted from its [`BEGIN`], and kills it. Returns its output.
///
/// # Panics
/// If the child ends by itself, or if one of its threads panicked.
pub fn run_and_kill(test: &str, dir: &Path, seed: u64, job: &str, life: Duration) -> Vec<u8> {
    let mut child = spawn(test, dir, seed, job);
    let mut out = child.stdout.take().unwrap();
    let (tell, begun) = std::sync::mpsc::channel::<()>();
    let mut tell = Some(tell);
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        let mut buf = [0; 1 << 16];
        loop {
            let n = out.read(&mut buf).unwrap();
            all.extend_from_slice(&buf[..n]);
            if n == 0 {
                return all;
            }
            // Dropped when it begins, and when it never does.
            tell.take_if(|_| all.windows(BEGIN.len()).any(|w| w == BEGIN));
        }
    });
    // A busy machine takes its time to start a process. If it dies before, what follows says so.
    let _ = begun.recv();
    std::thread::sleep(life);
    assert!(child.try_wait().unwrap().is_none(), "the child ended by itself: {:?}", child.wait());
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    // A panic in one of the engine's threads does not end the child: it stops its writes.
    let said = std::fs::read_to_string(complaints(dir)).unwrap_or_default();
    let panicked = said.find("panicked at").map(|at| said[at..].chars().take(2000).collect::<String>());
    assert_eq!(panicked, None, "the child panicked");
    reader.join().unwrap()
}
