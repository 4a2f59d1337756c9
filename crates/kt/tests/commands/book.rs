//! The shell examples of README.md and of the book: every line that begins with `kt` works as it stands there, and so does every block
//! of JSON, which `kt import` reads.

use super::common::{Dir, kt};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs the `kt` lines of each page one after the other, in a directory of its own.
#[test]
fn the_examples_of_the_pages_work() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md"), root.join("crates/kt/README.md")];
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|e| e.unwrap().path());
    pages.extend(docs.filter(|p| p.extension().is_some_and(|e| e == "md")));
    pages.sort();
    let mut ran = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let dir = Dir::new();
        for (line, command) in commands(&text) {
            let place = format!("{}:{line}", page.display());
            match command.strip_prefix("kt serve ") {
                Some(database) => serve(&dir, &place, database, text.lines().nth(line).unwrap_or_default()),
                None => run(&dir.path(""), &place, command),
            }
            ran += 1;
        }
    }
    assert!(ran > 30, "the pages have more examples than {ran}");
}

/// The lines of shell blocks that run nothing but `kt`, with their numbers from 1. In blocks of `console` they stand behind `$ `.
fn commands(text: &str) -> Vec<(usize, &str)> {
    let (mut all, mut prompt) = (Vec::new(), None);
    for (line, n) in text.lines().zip(1..) {
        match line {
            "```sh" => prompt = Some(""),
            "```console" => prompt = Some("$ "),
            "```" => prompt = None,
            _ => {
                let command = prompt.and_then(|p| line.strip_prefix(p)).filter(|l| l.starts_with("kt "));
                all.extend(command.map(|command| (n, command)));
            }
        }
    }
    all
}

/// `kt serve` goes on until it is killed, and prints the address that the page shows, here with another port: the page's may be in use.
fn serve(dir: &Dir, place: &str, database: &str, shown: &str) {
    kt(&["create", &dir.at(database)]).ok();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kt"));
    let command = command.args(["serve", database, "--listen", "127.0.0.1:0"]).current_dir(dir.path(""));
    let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let without_port = |url: &str| url.trim_end().split(|c: char| c.is_ascii_digit()).collect::<String>();
    assert_eq!(without_port(&line), without_port(shown), "{place}: {line}");
    let port = shown.rsplit(':').next().unwrap().trim_end_matches('/');
    assert!(kt(&["serve", "--help"]).ok().contains(&format!("[default: 127.0.0.1:{port}]")), "{place}: {shown}");
    std::fs::remove_dir_all(dir.path(database)).unwrap(); // a later block of the page may create it
}

#[test]
fn the_lines_of_an_export_on_the_page_can_be_imported() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kt.md");
    let text = std::fs::read_to_string(page).unwrap();
    let blocks: Vec<&str> = text.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let dir = Dir::new();
        std::fs::write(dir.path("page.jsonl"), block.replace("1750000000000", "99999999999999")).unwrap();
        kt(&["import", &dir.at("db"), &dir.at("page.jsonl"), "--create"]).ok();
        let exported = kt(&["export", &dir.at("db")]).ok();
        let shown: Vec<serde_json::Value> = block.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let entries = exported.lines().skip(1).map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        for (entry, shown) in entries.zip(&shown) {
            let names = |v: &serde_json::Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            assert_eq!((names(&entry), &entry["value"]), (names(shown), &shown["value"]));
        }
        assert_eq!(exported.lines().count(), shown.len() + 1, "{exported}");
    }
}

fn run(dir: &Path, place: &str, command: &str) {
    let tools = Path::new(env!("CARGO_BIN_EXE_kt")).parent().unwrap().to_owned();
    let old = std::env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = std::iter::once(tools).chain(std::env::split_paths(&old)).collect();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).current_dir(dir).env("PATH", std::env::join_paths(path).unwrap());
    let done = shell.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{place}: `{command}`: {}\n{said}", done.status);
}
