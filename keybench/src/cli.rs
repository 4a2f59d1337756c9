//! The command line.

use crate::error::{Error, Result};
use crate::say::{self, note, say};
use crate::{compare, config, db_bench, engine, interrupt, kill, lua, micro, plot, process, suite, trace};
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Measures sorted key-value stores side by side, and checks their answers.
#[derive(Parser)]
#[command(name = "keybench", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run native loops: write, read, mixed, delete, seek, range, iterate, transactions
    Micro(Box<micro::Args>),
    /// Run workloads written in Lua: a file, or the name of a bundled one
    Run(Box<lua::Args>),
    /// Run the operations of a trace again, which `keybench run --trace FILE` recorded
    Replay(Box<lua::Args>),
    /// Run a workload of YCSB: a property file such as workloads/workloada, with the flags of `keybench run`
    Ycsb(Box<lua::Args>),
    /// Kill a Lua workload repeatedly with SIGKILL, and check that no acknowledged write is lost
    Kill(Box<kill::Args>),
    /// Run the phases that RocksDB's db_bench would run with the same flags, or with those of --flagfile=FILE
    #[command(name = "db_bench")]
    DbBench {
        /// Flags of db_bench, and -e ENGINES, --repeat=N and --csv=FILE of keybench micro
        #[arg(allow_hyphen_values = true, trailing_var_arg = true, value_name = "FLAGS")]
        flags: Vec<String>,
    },
    /// Run a named list of native tests, and print its table
    Suite(suite::Args),
    /// Compare two reports; fails if the second is slower
    Compare(compare::Args),
    /// Draw the figures of a report directory again
    Plot(plot::Args),
    /// List the engines on this machine, and test writing to and reading from each
    Engines(EnginesArgs),
    /// Run one engine's part of a run; keybench starts this itself
    #[command(hide = true)]
    Child { kind: String },
}

/// Checks that engines load, write and read back.
#[derive(clap::Args)]
pub struct EnginesArgs {
    /// Fail unless all of these engines, separated by commas, are present
    #[arg(long)]
    require: Option<String>,
}

/// Runs the command of the command line.
pub fn main() -> ExitCode {
    interrupt::outlive_file_limit();
    let words = with_command(std::env::args_os().collect());
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(e) => e.exit(),
    };
    let done = run(cli.command, &words).and_then(|()| say::end());
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            note!("keybench: {e}");
            ExitCode::from(e.exit_code())
        }
    }
}

/// The command line with `run` where it names no command, as the original keybench has none.
pub fn with_command(mut words: Vec<OsString>) -> Vec<OsString> {
    use clap::CommandFactory as _;
    let command = Cli::command();
    let known = |word: &str| {
        ["help", "-h", "--help", "-V", "--version"].contains(&word) || command.find_subcommand(word).is_some()
    };
    // A word that resembles a command is rather a mistyped one than a workload.
    let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    let workload =
        |word: &str| word.starts_with('-') || lua::script::Script::find(word).is_ok() || word.ends_with(".lua");
    let mistyped = |word: &str| !workload(word) && !kingtide_base::options::nearest(word, &names).is_empty();
    match words.get(1).and_then(|w| w.to_str()) {
        Some(word) if !known(word) && !mistyped(word) => words.insert(1, "run".into()),
        _ => {}
    }
    words
}

fn run(command: Command, words: &[OsString]) -> Result<()> {
    if matches!(command, Command::Child { .. }) {
        interrupt::die_with_parent();
    } else {
        interrupt::watch()?;
    }
    match command {
        Command::Micro(args) => micro::main(&args),
        Command::Run(args) => run_workloads(*args, words),
        Command::Ycsb(args) => {
            if let Some(name) = args.workloads.iter().find(|name| lua::script::Script::properties(name).is_none()) {
                return Err(Error::usage(format!("'{name}' is no property file of YCSB, or not there")));
            }
            run_workloads(*args, words)
        }
        Command::Replay(args) => {
            if let Some(name) = args.workloads.iter().find(|name| !trace::is_trace(name.as_ref())) {
                let what = "is not a trace, or not there; `keybench run WORKLOAD --trace FILE` records one";
                return Err(Error::usage(format!("'{name}' {what}")));
            }
            run_workloads(*args, words)
        }
        Command::Kill(args) => kill::main(&args),
        Command::DbBench { flags } => db_bench::main(&flags),
        Command::Suite(args) => suite::main(&args),
        Command::Compare(args) => compare::main(&args),
        Command::Plot(args) => plot::main(&args),
        Command::Engines(args) => engines(&args),
        Command::Child { kind } => match kind.as_str() {
            "micro" => micro::child_main(),
            "run" => lua::child_main(),
            "kill" => kill::child_main(),
            other => Err(Error::usage(format!("unknown child process: {other}"))),
        },
    }
}

fn run_workloads(args: lua::Args, words: &[OsString]) -> Result<()> {
    // Behind the program's and the command's names.
    config::complete(args, words.get(2..).unwrap_or_default())
        .and_then(|args| lua::main(&args, &config::Saved::of(&args)?.to_string()))
}

/// Opens each engine in a directory of its own, puts an entry, gets it back, and says what came of it.
fn engines(args: &EnginesArgs) -> Result<()> {
    let required = args.require.as_deref().map(engine::parse_names).transpose()?.unwrap_or_default();
    let root = std::env::temp_dir().join(format!("keybench-engines-{}", std::process::id()));
    let mut missing = Vec::new();
    for name in engine::NAMES.iter().filter(|n| engine::keeps_data(n)) {
        match try_engine(name, &root.join(name)) {
            Ok(version) => say!("{name:<10} {version}: writes and reads back"),
            Err(e) => {
                say!("{name:<10} {e}");
                if required.iter().any(|r| r == name) {
                    missing.push(*name);
                }
            }
        }
    }
    // A leftover in the temporary directory is not worth failing for.
    let _ = std::fs::remove_dir_all(&root);
    if missing.is_empty() { Ok(()) } else { Err(Error::failed(format!("not usable: {}", missing.join(", ")))) }
}

fn try_engine(name: &str, dir: &std::path::Path) -> Result<String> {
    process::fresh_dir(dir)?;
    let store = engine::registry::open(name, dir, &engine::EngineOptions::default())?;
    let version = store.version();
    let mut session = store.session()?;
    session.put(b"key", b"value")?;
    let mut right = false;
    session.get(b"key", &mut |v| right = v == b"value")?;
    drop(session);
    store.close()?;
    if right { Ok(version) } else { Err(Error::failed("does not return what was put")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_named_by_whichever_of_the_words() {
        for line in ["run mixed", "micro", "suite core", "kill mixed"] {
            for flag in ["--engine", "--backend"] {
                let words = format!("keybench {line} {flag} memory");
                let parsed = Cli::try_parse_from(words.split(' '));
                assert!(parsed.is_ok(), "{words}: {}", parsed.err().unwrap());
            }
        }
    }

    #[test]
    fn a_command_line_without_a_command_is_a_run() {
        for (line, run) in [
            ("keybench workloads/mixed.lua --secs 1", true),
            ("keybench mixed", true),
            ("keybench --config x.cnf", true),
            ("keybench run mixed", false),
            ("keybench suite core", false),
            ("keybench --help", false),
            ("keybench siute core", false),
            ("keybench", false),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let with = with_command(words.clone());
            assert_eq!(with.get(1).is_some_and(|w| w == "run") && with.len() > words.len(), run, "{line}");
        }
    }
}
