//! Runs the tool on directories that go away again.

use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory of its own for one test.
pub struct Dir(PathBuf);

impl Dir {
    pub fn new() -> Dir {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("kt-test-{}-{n}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    /// A path inside.
    pub fn at(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a run of the tool came to.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    /// Standard output of a run that went well.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        self.out
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// Standard output as JSON lines.
    #[track_caller]
    pub fn lines(self) -> Vec<Value> {
        self.ok().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    /// The one line that a failed run says on standard error.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        self.err.trim_end().to_owned()
    }
}

/// Runs the tool without a terminal.
pub fn kt(args: &[&str]) -> Run {
    kt_with(args, b"")
}

/// The same with something on standard input.
pub fn kt_with(args: &[&str], input: &[u8]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kt"));
    let mut child =
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let done = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: done.status.code().unwrap_or(-1), out: text(done.stdout), err: text(done.stderr) }
}

/// The one file of a directory whose name ends so.
#[track_caller]
pub fn file_ending(dir: &Path, ending: &str) -> PathBuf {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut found: Vec<PathBuf> = names.filter(|p| p.to_string_lossy().ends_with(ending)).collect();
    found.sort();
    assert!(!found.is_empty(), "no {ending} in {}", dir.display());
    found.remove(0)
}

/// Flips a bit of a file.
pub fn damage(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

/// What the standard library and the C library say when they end a process in which a thread that begins, or its first use of a variable of its own,
/// finds no memory. No code of the tool has a part in that; another thread may have reported its own want of memory a moment before.
#[cfg(unix)]
const BENEATH: [&str; 2] = ["failed to allocate an alternative stack", "failed to register TLS destructor"];

/// Runs the tool under a limit of the shell's `ulimit`. Returns its exit code and what it complained about.
#[cfg(unix)]
pub fn run_within(limit: &str, args: &[&str], input: &[u8], output: Stdio) -> (i32, String) {
    use std::os::unix::process::ExitStatusExt;
    let mut child = Command::new("sh")
        .args(["-c", &format!("ulimit {limit}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_kt")])
        .args(args)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        let _ = to.write_all(&input); // it may have ended by now
    });
    let done = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    if BENEATH.iter().any(|text| said.contains(text)) {
        return (1, BENEATH[0].to_owned());
    }
    assert_eq!(done.status.signal(), None, "{args:?} within {limit}: {said}");
    assert!(!said.contains("panicked"), "{args:?} within {limit}: {said}");
    let code = done.status.code().unwrap();
    assert!(code == 0 || !said.is_empty(), "{args:?} within {limit}: exit code {code} without a word");
    (code, said)
}
