//! All tests of kt in one program: those beside the source, whose modules are here as they are in `main.rs`, and those that start the
//! tool, which Cargo builds for a program of this directory alone.
#![allow(clippy::disallowed_methods, dead_code, missing_docs)] // tests start processes and handle files

mod commands;

#[path = "../src/backup.rs"]
mod backup;
#[path = "../src/changes.rs"]
mod changes;
#[path = "../src/confirm.rs"]
mod confirm;
#[path = "../src/data.rs"]
mod data;
#[path = "../src/dump/mod.rs"]
mod dump;
#[path = "../src/error.rs"]
mod error;
#[path = "../src/family.rs"]
mod family;
#[path = "../src/file_limit.rs"]
mod file_limit;
#[path = "../src/format.rs"]
mod format;
#[path = "../src/info.rs"]
mod info;
#[path = "../src/keys.rs"]
mod keys;
#[path = "../src/maintenance.rs"]
mod maintenance;
#[path = "../src/memory.rs"]
mod memory;
#[path = "../src/open.rs"]
mod open;
#[path = "../src/options.rs"]
mod options;
#[path = "../src/output.rs"]
mod output;
#[path = "../src/plain.rs"]
mod plain;
#[path = "../src/progress.rs"]
mod progress;
#[path = "../src/serve/mod.rs"]
mod serve;
#[path = "../src/size.rs"]
mod size;
#[path = "../src/transfer.rs"]
mod transfer;
#[path = "../src/txn.rs"]
mod txn;
