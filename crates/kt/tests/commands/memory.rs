//! The tool in processes that may have little memory: it does its work or says that it cannot, and never dies of a signal.

use super::common::Dir;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

/// Runs the tool in a process of at most so many KiB of address space. Returns its exit code and what it complained about.
fn run(kib: u64, args: &[&str], input: &[u8]) -> (i32, String) {
    let mut child = Command::new("sh")
        .args(["-c", &format!("ulimit -v {kib}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_kt")])
        .args(args)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
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
    assert_eq!(done.status.signal(), None, "{args:?} in {kib} KiB: {said}");
    assert!(!said.contains("panicked"), "{args:?} in {kib} KiB: {said}");
    let code = done.status.code().unwrap();
    assert!(code == 0 || !said.is_empty(), "{args:?} in {kib} KiB: exit code {code} without a word");
    (code, said)
}

/// The KiB of address space, to 256, from which the tool starts at all. With less, the kernel kills the process while it maps
/// the program (signal 11), the loader refuses (exit code 127), or the standard library gives up before `main`. All of that
/// comes before the tool's first instruction, and where it ends depends on the size of the program.
fn least_to_start() -> u64 {
    let starts = |kib: u64| {
        let mut started = Command::new("sh");
        started.args(["-c", &format!("ulimit -v {kib}; exec \"$0\" --version"), env!("CARGO_BIN_EXE_kt")]);
        started.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    };
    (4 << 10..256 << 10).step_by(256).find(|kib| starts(*kib)).expect("the tool starts in 256 MiB")
}

#[test]
fn little_memory_is_an_error_and_no_signal() {
    let dir = Dir::new();
    let lines: String =
        (0..4000).map(|i| format!("{{\"key\":\"k{i:05}\",\"value\":\"{}\"}}\n", "v".repeat(100))).collect();
    let large: String =
        (0..6).map(|i| format!("{{\"key\":\"l{i}\",\"value\":\"{}\"}}\n", "w".repeat(1_500_000))).collect();
    let lines = lines + &large;
    let db = dir.at("db");
    assert_eq!(run(1 << 30, &["import", &db, "--create", "--yes"], lines.as_bytes()), (0, String::new()));
    let (mut good, mut refused) = (0, 0);
    let least = least_to_start();
    for (i, more) in
        [0, 256, 512, 768, 1024, 2048, 3072, 5120, 9216, 13 << 10, 21 << 10, 53 << 10, 189 << 10].iter().enumerate()
    {
        let backup = dir.at(&format!("backup-{i}"));
        for args in [
            &["scan", &db][..],
            &["get", &db, "l3"],
            &["info", &db],
            &["verify", &db],
            &["put", &db, "one", "more"],
            &["flush", &db],
            &["compact", &db],
            &["backup", "create", &db, &backup],
            &["import", &db, "--yes"],
        ] {
            let input = if args[0] == "import" { lines.as_bytes() } else { b"" };
            match run(least + more, args, input).0 {
                0 => good += 1,
                _ => refused += 1,
            }
        }
    }
    assert!(good > 20 && refused > 10, "{good} runs went well, {refused} were refused");
    assert_eq!(run(1 << 30, &["verify", &db], b""), (0, String::new()));
}
