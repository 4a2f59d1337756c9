//! kingtide-torture: kills processes that use a database, again and again, and compares what is left with what must be.
//!
//! A *driver* ([`driver`]) starts *children* ([`child`]) that open the database with random options and work on it with
//! many threads, and kills them at random moments. Before and after each operation a child appends what it does to a
//! [`journal`] beside the database. The next child replays the journal over the state that the last one began with
//! ([`replay`]), reads the whole database, and decides for what was in flight whether it is there ([`resolve`]);
//! everything else has to be exactly as it was acknowledged. `cargo xtask torture` runs it.
#![cfg(unix)]
#![allow(clippy::disallowed_methods, missing_docs)] // a tool beside the engine: files, clocks, threads and processes are its work

mod admin;
mod args;
mod child;
mod contents;
mod copies;
mod draw;
mod driver;
mod execute;
mod follow;
mod journal;
mod lane;
mod messages;
mod model;
mod other;
mod places;
mod plan;
mod rare;
mod reader;
mod reads;
mod replay;
mod resolve;
mod settings;
mod world;
mod writer;

use kingtide_base::rng::entropy;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("child") => match args::orders(&args[1..]).and_then(child::run) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => messages::fail(&e),
        },
        Some("read") => match directory(&args[1..]).and_then(|dir| reader::run(&dir)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => messages::fail(&e),
        },
        Some("inspect") => report(directory(&args[1..]).and_then(|dir| inspect(&dir))),
        Some("help" | "--help" | "-h") => {
            println!("{}", args::USAGE);
            ExitCode::SUCCESS
        }
        _ => report(drive(&args)),
    }
}

fn report(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn directory(args: &[String]) -> Result<PathBuf, String> {
    let mut options = args::parse(args, &[])?;
    options.remove("dir").map(PathBuf::from).ok_or_else(|| format!("--dir is missing\n{}", args::USAGE))
}

fn drive(args: &[String]) -> Result<(), String> {
    let mut options = args::parse(args, &["full"])?;
    let job = driver::Job {
        dir: options.remove("dir").map_or_else(|| PathBuf::from("target/torture"), PathBuf::from),
        seed: args::number(&mut options, "seed")?.unwrap_or_else(|| entropy() >> 16),
        minutes: args::number(&mut options, "minutes")?.unwrap_or(1.0),
        workers: args::number(&mut options, "workers")?.unwrap_or(1),
        other: options.remove("other-kt").map(PathBuf::from),
        full: options.remove("full").is_some(),
    };
    if let Some(name) = options.keys().next() {
        return Err(format!("no option --{name}\n{}", args::USAGE));
    }
    // Of this program's own parts those that could hide a loss, each time: it has no test program.
    journal::check_itself()?;
    other::check_itself();
    driver::run(&job)
}

/// Opens what a failed round found, on a copy, as that round did.
fn inspect(dir: &Path) -> Result<(), String> {
    let copy = dir.with_extension("inspected");
    let _ = std::fs::remove_dir_all(&copy);
    driver::copy_dir(dir, &copy)?;
    let db = places::database(&copy);
    let _ = std::fs::remove_dir_all(&db);
    std::fs::rename(places::before(&copy), &db).map_err(|e| format!("no database in {}: {e}", copy.display()))?;
    let text =
        std::fs::read_to_string(dir.join("report")).map_err(|e| format!("no report in {}: {e}", dir.display()))?;
    let line = text.lines().map(str::trim).find_map(|l| l.strip_prefix("kingtide-torture child "));
    let words: Vec<String> = line.ok_or("the report has no command")?.split(' ').map(str::to_owned).collect();
    let mut orders = args::orders(&words)?;
    (orders.dir, orders.only_verify) = (copy, true);
    child::run(orders)
}
