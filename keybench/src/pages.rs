//! The commands that README.md and the book show: each has the flags that it uses, and names engines, workloads and suites that exist.

use crate::cli::{Cli, Command, with_command};
use crate::{engine, lua, suite};
use clap::Parser as _;
use std::ffi::OsString;
use std::path::Path;

/// What such a command begins with.
const STARTS: [&str; 3] = ["cargo run --release -p keybench -- ", "target/release/keybench ", "keybench "];

/// Runs nothing: says what is wrong with the arguments of a command.
fn check(arguments: &str) -> Result<(), String> {
    let words: Vec<OsString> =
        std::iter::once("keybench").chain(arguments.split_whitespace()).map(Into::into).collect();
    let cli = Cli::try_parse_from(with_command(words)).map_err(|e| e.to_string())?;
    let named = |list: &str| engine::parse_names(list).map(drop).map_err(|e| e.to_string());
    match cli.command {
        Command::Run(args) | Command::Ycsb(args) => {
            // A workload of the user's own has a file's name.
            let bundled = args.workloads.iter().filter(|name| !name.ends_with(".lua"));
            let found = bundled.map(|name| lua::script::Script::find(name).map(drop).map_err(|e| e.to_string()));
            found.chain([named(&args.backend)]).collect()
        }
        Command::Suite(args) => {
            let suite = args.name.as_deref().map_or(Ok(()), |name| suite::find(name).map(drop));
            suite.map_err(|e| e.to_string()).and_then(|()| named(&args.engines))
        }
        _ => Ok(()),
    }
}

/// The commands in blocks of shell.
fn commands(text: &str) -> Vec<&str> {
    let mut inside = false;
    let mut all = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(info) => inside = !inside && matches!(info, "sh" | "console"),
            None if inside => {
                let line = line.split_once("  #").map_or(line, |(command, _)| command);
                let parts = line.trim_start_matches("$ ").split(" && ");
                all.extend(parts.filter_map(|part| STARTS.iter().find_map(|start| part.trim().strip_prefix(start))));
            }
            None => {}
        }
    }
    all
}

#[test]
fn the_commands_of_the_pages_are_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut pages = vec![root.join("README.md")];
    pages.extend(std::fs::read_dir(root.join("docs")).unwrap().map(|e| e.unwrap().path()));
    let mut checked = 0;
    for page in pages.iter().filter(|p| p.extension().is_some_and(|e| e == "md")) {
        for arguments in commands(&std::fs::read_to_string(page).unwrap()) {
            check(arguments).unwrap_or_else(|e| panic!("{}: keybench {arguments}: {e}", page.display()));
            checked += 1;
        }
    }
    assert!(checked >= 8, "the pages have more commands than {checked}");
}

#[test]
fn wrong_commands_are_found() {
    let wrong = [
        "rnu mixed",
        "run mixd",
        "run mixed --backend rokcsdb",
        "run mixed --scale 2",
        "suite standrad",
        "compare a",
        "suite standard --engines none",
    ];
    for arguments in wrong {
        assert!(check(arguments).is_err(), "{arguments}");
    }
    assert_eq!(commands("```sh\nkeybench run a && keybench suite b  # c\n```\nkeybench d\n"), ["run a", "suite b"]);
}
