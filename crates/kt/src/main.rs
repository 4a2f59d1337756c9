//! kt: inspects and changes Kingtide databases, and moves data in and out.
#![allow(clippy::disallowed_methods)] // a tool handles files, reads the clock and sleeps; that is its work

mod backup;
mod changes;
mod confirm;
mod data;
mod dump;
mod error;
mod family;
mod file_limit;
mod format;
mod info;
mod keys;
mod maintenance;
mod memory;
mod open;
mod options;
mod output;
mod plain;
mod progress;
mod serve;
mod size;
mod transfer;
mod txn;

use clap::{Parser, Subcommand};
use error::{Failure, Result};
use output::Out;
use std::process::ExitCode;

#[global_allocator]
static MEMORY: memory::OrExit = memory::OrExit;

/// Inspects and modifies Kingtide databases, and moves data in and out.
#[derive(Parser)]
#[command(name = "kt", version, after_help = EXIT_CODES, propagate_version = true)]
struct Cli {
    /// Write JSON, one object per line; errors too
    #[arg(long, global = true, help_heading = format::EVERYWHERE)]
    json: bool,
    #[command(flatten)]
    formats: format::Formats,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Formats of keys and values:
  utf8    text; other bytes as \\xHH, a backslash as \\\\
  hex     two hexadecimal digits per byte
  base64  with padding
  json    a JSON document, stored as it is written
  u64     eight bytes, little-endian, as an unsigned number: the keys of families in order u64
  i64     eight bytes, little-endian, as a signed number: the keys of families in order i64
  u64be   eight bytes, big-endian, as an unsigned number: sorts by number in bytewise order

Exit codes: 0 success, 1 failure, 2 usage error (also an argument that does not match its format), or
--yes is required, 3 not found, 4 damage found, 5 another process has the database open.

Examples:
  kt create my-database
  kt put my-database tide high
  kt scan my-database --prefix ti
  kt info my-database --json";

#[derive(Subcommand)]
enum Command {
    /// Create an empty database
    Create(data::CreateArgs),
    /// Show families, levels, log, sequence numbers, transactions in doubt
    Info(info::InfoArgs),
    /// Show statistics of the stored data as a table, JSON or Prometheus text
    Stats(info::StatsArgs),
    /// Serve a page about a database on this machine, and /metrics for Prometheus
    Serve(serve::ServeArgs),
    /// Print the value of a key
    Get(data::GetArgs),
    /// Set a key
    Put(data::PutArgs),
    /// Delete a key, a range or all keys of a prefix
    Delete(data::DeleteArgs),
    /// Print entries in key order
    Scan(data::ScanArgs),
    /// Estimate how many keys and bytes a range holds, without reading it
    Size(size::SizeArgs),
    /// List, create, drop, rename, clone, export and import column families
    #[command(subcommand)]
    Cf(family::CfCommand),
    /// List all options with type, default, range and purpose
    Options(options::OptionsArgs),
    /// Change an option of a column family
    SetOption(family::SetOptionArgs),
    /// Compact everything, or a range of keys, into the bottom level
    Compact(family::CompactArgs),
    /// Flush memtables to tables
    Flush(family::FlushArgs),
    /// Write all entries to standard output as JSON lines
    Export(transfer::ExportArgs),
    /// Read entries from JSON lines
    Import(transfer::ImportArgs),
    /// Add the contents of sorted files to a family
    Ingest(family::IngestArgs),
    /// Print the contents of single files, even damaged ones
    #[command(subcommand)]
    Dump(dump::DumpCommand),
    /// Check all files and report every inconsistency
    Verify(maintenance::VerifyArgs),
    /// Salvage the readable data of a damaged database into a new one
    Repair(maintenance::RepairArgs),
    /// Create, list, verify, restore and delete backups
    #[command(subcommand)]
    Backup(backup::BackupCommand),
    /// Create a copy of a database that shares files with it
    Checkpoint(backup::CheckpointArgs),
    /// List, commit and roll back transactions in doubt
    #[command(subcommand)]
    Txn(txn::TxnCommand),
    /// Print commits in order, as far back as the log is kept, as JSON lines
    Changes(changes::ChangesArgs),
}

fn main() -> ExitCode {
    // Reading the command line takes memory too.
    memory::set_json(asks_for_json());
    file_limit::fail_beyond();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    memory::set_json(cli.json);
    let mut out = Out::new(cli.json, cli.formats);
    let looks_for_damage = matches!(
        cli.command,
        Command::Verify(_) | Command::Repair(_) | Command::Dump(_) | Command::Backup(_) | Command::Import(_)
    );
    let told = |e: Failure| if looks_for_damage { e } else { e.of_damage_met() };
    match run(cli.command, &mut out).map_err(told).and_then(|()| out.finish()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // Output so far is useful. A closed pipe means that the reader has what it wanted.
            let _ = out.finish();
            e.report(cli.json);
            ExitCode::from(e.code())
        }
    }
}

/// Whether errors are to be JSON, while the command line is not understood.
fn asks_for_json() -> bool {
    std::env::args_os().any(|a| a == "--json")
}

/// Prints help and versions on standard output, and a mistake in clap's words on standard error.
fn usage(e: &clap::Error) -> ExitCode {
    let mistake = e.use_stderr();
    if let Some(failure) = path_first(e) {
        failure.report(asks_for_json());
        return ExitCode::from(failure.code());
    }
    if e.kind() == clap::error::ErrorKind::InvalidUtf8 {
        let text = "an argument is not valid UTF-8; write such bytes of a key or value as \\xHH, or all of it with \
                    --key-format hex or --value-format hex";
        Failure::usage(text).report(asks_for_json());
    } else if mistake && asks_for_json() {
        Failure::usage(one_line(&e.to_string())).report(true);
    } else if let (Err(unwritten), false) = (e.print(), mistake) {
        let failure = Failure::from(unwritten); // of a mistake it could not be reported: standard error is gone
        failure.report(false);
        return ExitCode::from(failure.code());
    }
    ExitCode::from(if mistake { error::USAGE } else { 0 })
}

/// The error of a command line that begins with the database instead of the command.
fn path_first(e: &clap::Error) -> Option<Failure> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let (ErrorKind::InvalidSubcommand, Some(ContextValue::String(word))) =
        (e.kind(), e.get(ContextKind::InvalidSubcommand))
    else {
        return None;
    };
    let text = format!("'{word}' is no command: the command comes first, as in kt scan {word}; kt --help lists all");
    std::path::Path::new(word).is_dir().then(|| Failure::usage(text))
}

/// What clap says of a mistake, such as the names of the arguments that are missing, without the usage behind it.
fn one_line(text: &str) -> String {
    let said =
        text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let line = said.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    line.trim_start_matches("error: ").to_owned()
}

fn run(command: Command, out: &mut Out) -> Result<()> {
    match command {
        Command::Create(args) => data::create(&args, out),
        Command::Info(args) => info::info(&args, out),
        Command::Stats(args) => info::stats(&args, out),
        Command::Serve(args) => serve::serve(&args, out),
        Command::Get(args) => data::get(&args, out),
        Command::Put(args) => data::put(&args, out),
        Command::Delete(args) => data::delete(&args, out),
        Command::Scan(args) => data::scan(&args, out),
        Command::Size(args) => size::size(&args, out),
        Command::Cf(command) => family::cf(command, out),
        Command::Options(args) => options::options(&args, out),
        Command::SetOption(args) => family::set_option(&args, out),
        Command::Compact(args) => family::compact(&args, out),
        Command::Flush(args) => family::flush(&args, out),
        Command::Export(args) => transfer::export(&args, out),
        Command::Import(args) => transfer::import(&args, out),
        Command::Ingest(args) => family::ingest(&args, out),
        Command::Dump(command) => dump::main(command, out),
        Command::Verify(args) => maintenance::verify(&args, out),
        Command::Repair(args) => maintenance::repair(&args, out),
        Command::Backup(command) => backup::main(command, out),
        Command::Checkpoint(args) => backup::checkpoint(&args, out),
        Command::Txn(command) => txn::main(command, out),
        Command::Changes(args) => changes::main(&args, out),
    }
}
