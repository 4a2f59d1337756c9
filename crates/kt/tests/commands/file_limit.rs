//! The tool in processes whose files may not be large: it does its work or says that it cannot, and never dies of a signal.

use super::common::{Dir, kt, run_within};
use kingtide_base::rng::Rng;
use std::process::Stdio;

/// Runs the tool in a process whose files may have so many blocks of 512 bytes. Returns its exit code and what it complained about.
fn run(blocks: u64, args: &[&str], input: &[u8], output: Stdio) -> (i32, String) {
    run_within(&format!("-f {blocks}"), args, input, output)
}

#[test]
fn a_write_beyond_the_limit_for_files_is_an_error_and_no_signal() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["put", &db, "tide", "high", "--create"]).ok();
    let mut value = vec![0; 1 << 20]; // not compressible
    Rng::new(1).fill(&mut value);
    for blocks in [0, 1, 16, 256, 2048] {
        for words in [&["put", &db, "large", "--stdin"][..], &["put", &db, "large", "--stdin", "--json"]] {
            let (code, said) = run(blocks, words, &value, Stdio::null());
            assert!(code == 1 && said.contains("File too large") && said.lines().count() == 1, "{blocks}: {said}");
        }
        let (code, said) = run(blocks, &["create", &dir.at(&format!("new{blocks}"))], b"", Stdio::null());
        assert!(code == 0 || code == 1 && said.contains("File too large"), "{blocks}: {said}");
    }
    assert_eq!(kt(&["get", &db, "tide"]).ok(), "high\n");
    kt(&["verify", &db]).ok();
    kt(&["put", &db, "large", "v"]).ok();
}

/// The same of what the tool prints.
#[test]
fn output_beyond_the_limit_for_files_is_an_error_and_no_signal() {
    let dir = Dir::new();
    let db = dir.at("db");
    kt(&["put", &db, "large", &"v".repeat(8 << 10), "--create"]).ok();
    let output = std::fs::File::create(dir.path("output")).unwrap();
    let (code, said) = run(1, &["get", &db, "large"], b"", output.into());
    assert_eq!((code, said.contains("standard output") && said.contains("File too large")), (1, true), "{said}");
}
