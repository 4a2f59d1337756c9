//! keybench: measures sorted key-value stores side by side, and checks what they answer.
#![allow(clippy::disallowed_methods)] // a harness reads raw clocks, starts threads and handles files; that is its work

mod child;
mod cli;
mod clock;
mod compare;
mod config;
mod data;
mod db_bench;
mod dist;
mod engine;
mod error;
mod figure;
mod interrupt;
mod kill;
mod lua;
mod machine;
mod measure;
mod micro;
mod options;
mod page;
mod pin;
mod plot;
mod process;
mod progress;
mod results;
mod say;
mod settle;
mod stats;
mod suite;
mod trace;
mod ycsb;

fn main() -> std::process::ExitCode {
    cli::main()
}
