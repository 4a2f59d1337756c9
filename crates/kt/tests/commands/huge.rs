//! A value that is larger than memory may be, through `kt put < file` and `kt get --raw > file`.

use super::common::Dir;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

const KT: &str = env!("CARGO_BIN_EXE_kt");

/// The most memory that a running process has held, in KiB; 0 where the system does not tell.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
}

/// Runs the tool from one file to another. The most memory that it was seen to hold, in KiB.
fn run(args: &[&str], from: Option<&str>, to: Option<&str>) -> u64 {
    let stdin = from.map_or_else(Stdio::null, |path| File::open(path).unwrap().into());
    let stdout = to.map_or_else(Stdio::null, |path| File::create(path).unwrap().into());
    let mut child = Command::new(KT).args(args).stdin(stdin).stdout(stdout).spawn().unwrap();
    let mut most = 0;
    loop {
        most = most.max(peak(child.id()));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{args:?}: {status}");
            return most;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_huge_value_goes_through_files_in_little_memory() {
    let len: u64 = if std::env::var_os("KINGTIDE_FULL").is_some() { 8 << 30 } else { 64 << 20 } + 777;
    let dir = Dir::new();
    let (db, from, to) = (dir.at("db"), dir.at("from"), dir.at("to"));
    let mut file = File::create(&from).unwrap();
    for at in (0..len - 8).step_by(1 << 20) {
        file.seek(SeekFrom::Start(at)).unwrap(); // nothing is written between: the file has holes
        file.write_all(&(at ^ 0x5bd1_e995).to_le_bytes()).unwrap();
    }
    file.set_len(len).unwrap();
    run(&["create", &db], None, None);
    let put = run(&["put", &db, "large"], Some(&from), None);
    let got = run(&["get", &db, "large", "--raw"], None, Some(&to));
    let (mut a, mut b) = (File::open(&from).unwrap(), File::open(&to).unwrap());
    assert_eq!(b.metadata().unwrap().len(), len);
    let (mut want, mut found, mut at) = (vec![0; 1 << 20], vec![0; 1 << 20], 0);
    while at < len {
        let n = (len - at).min(1 << 20) as usize;
        a.read_exact(&mut want[..n]).unwrap();
        b.read_exact(&mut found[..n]).unwrap();
        assert!(want[..n] == found[..n], "at {at}");
        at += n as u64;
    }
    println!("HELD: a value of {} MiB, put with {put} KiB and got with {got} KiB of memory", len >> 20);
    // All of it is counted, the program and mapped files too.
    assert!(put < 64 << 10 && got < 64 << 10, "put {put} KiB, got {got} KiB");
}
