//! The tool in processes that may have little memory: it does its work or says that it cannot, and never dies of a signal.

use super::common::{Dir, run_within};
use std::io::Read;
use std::process::{Command, Stdio};

/// Runs the tool in a process of at most so many KiB of address space. Returns its exit code and what it complained about.
fn run(kib: u64, args: &[&str], input: &[u8]) -> (i32, String) {
    run_within(&format!("-v {kib}"), args, input, Stdio::null())
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

/// Such an error comes from below everything else of the tool, and must look like all others.
#[test]
fn a_want_of_memory_is_reported_as_every_error_is() {
    let dir = Dir::new();
    let db = dir.at("db");
    assert_eq!(run(1 << 30, &["create", &db], b"").0, 0);
    let (least, value) = (least_to_start(), vec![b'v'; 1 << 20]);
    // Which allocation meets the limit depends on where the system put the threads' memory before: of some limits it is one that
    // the engine hands to its caller, and of some it is none.
    let (mut plain, mut json) = (0, 0);
    for kib in (0..64).map(|step| least + (step << 9)) {
        let (code, said) = run(kib, &["put", &db, "key", "--stdin"], &value);
        if said.starts_with("kt: not enough memory") {
            assert!(code == 1 && said.lines().count() == 1, "{kib} KiB: {said}");
            plain += 1;
        }
        let (code, said) = run(kib, &["put", &db, "key", "--stdin", "--json"], &value);
        if said.contains("not enough memory") {
            let error: serde_json::Value = serde_json::from_str(&said).unwrap();
            assert!(code == 1 && error["error"]["exit_code"] == 1 && error["error"]["kind"] == "failed", "{said}");
            json += 1;
        }
    }
    assert!(plain > 0 && json > 0, "from {least} KiB on: {plain} and {json}");
}

/// With so little memory that the command line cannot be read, too.
#[test]
fn a_want_of_memory_is_json_from_the_start() {
    let dir = Dir::new();
    let least = least_to_start();
    let mut json = 0;
    // Some of these do not get as far as the tool's first instruction.
    for kib in (least - 256..least + 256).step_by(4) {
        let mut tool = Command::new("sh");
        tool.args(["-c", &format!("ulimit -v {kib}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_kt")]);
        tool.args(["put", &dir.at("db"), "key", "value", "--json"]).stdin(Stdio::null());
        let said = String::from_utf8_lossy(&tool.output().unwrap().stderr).into_owned();
        if said.contains("not enough memory") {
            let error: Result<serde_json::Value, _> = serde_json::from_str(&said);
            assert!(error.is_ok_and(|e| e["error"]["exit_code"] == 1), "{kib} KiB: {said}");
            json += 1;
        }
    }
    assert!(json > 0, "from {least} KiB on");
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

/// Yields bytes that do not compress; the same ones as long as it is read in pieces of whole words.
struct Noise {
    rng: kingtide_base::rng::Rng,
    left: usize,
}

impl Read for Noise {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.left.min(buf.len());
        self.rng.fill(&mut buf[..n]);
        self.left -= n;
        Ok(n)
    }
}

/// The tool in a process of at most so many KiB of address space, with pipes.
fn piped(kib: u64, args: &[&str]) -> std::process::Child {
    let mut sh = Command::new("sh");
    sh.args(["-c", &format!("ulimit -v {kib}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_kt")]).args(args);
    sh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap()
}

#[test]
fn a_value_larger_than_memory_is_put_and_got() {
    const LEN: usize = 400 << 20;
    let dir = Dir::new();
    let db = dir.at("db");
    let limit = least_to_start() + (190 << 10);
    assert!(limit << 10 < LEN as u64, "the value must not fit: {limit} KiB");
    let noise = |len| Noise { rng: kingtide_base::rng::Rng::new(1), left: len };
    let mut put = piped(limit, &["put", &db, "film", "--stdin", "--create"]);
    let mut to = put.stdin.take().unwrap();
    assert_eq!(std::io::copy(&mut noise(LEN), &mut to).unwrap(), LEN as u64);
    drop(to);
    assert!(put.wait().unwrap().success());
    let mut get = piped(limit, &["get", &db, "film", "--raw"]);
    drop(get.stdin.take());
    let (mut from, mut want) = (get.stdout.take().unwrap(), noise(LEN));
    let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for at in (0..LEN).step_by(a.len()) {
        from.read_exact(&mut a).unwrap();
        want.read_exact(&mut b).unwrap();
        assert!(a == b, "at {at}");
    }
    assert_eq!(from.read(&mut a).unwrap(), 0);
    assert!(get.wait().unwrap().success());
    let stored: u64 = std::fs::read_dir(&db).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
    assert!(stored < LEN as u64 + (16 << 20), "it is written once: {stored} bytes");
    // Without `--raw` all of it is to be in memory: that is refused, not a crash.
    assert_ne!(run(limit, &["get", &db, "film"], b"").0, 0);
    // A repair moves it to the new database in pieces.
    let repaired = dir.at("repaired");
    assert_eq!(run(limit, &["repair", &db, &repaired, "--yes"], b"").0, 0);
    let mut get = piped(limit, &["get", &repaired, "film", "--raw"]);
    drop(get.stdin.take());
    let mut all = std::io::BufReader::new(get.stdout.take().unwrap());
    assert_eq!(std::io::copy(&mut all, &mut std::io::sink()).unwrap(), LEN as u64);
    assert!(get.wait().unwrap().success());
    assert_eq!(run(limit, &["verify", &repaired], b""), (0, String::new()));
}
