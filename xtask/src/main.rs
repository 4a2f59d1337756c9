//! Project tasks: `cargo xtask <task>`.
//!
//! | task | what it does |
//! |---|---|
//! | `tidy` | checks the style rules that no compiler knows |
//! | `graph` | shows which files use which, the cycles among them, and uses that violate the floors |
//! | `shuttle` | explores schedules of the engine's threads |
//! | `loom` | tries every interleaving of the lock-free structures |
//! | `fuzz` | runs the fuzz targets under libFuzzer |
//! | `miri` | looks for undefined behaviour in the unsafe code and under a small database |
//! | `sanitize` | runs tests with the address, leak or thread sanitizer |
//! | `planted` | shows that the tests find planted bugs |
//! | `torture` | kills processes that use a database, and checks the remaining data |
//! | `powercut` | cuts the power of real file systems under a database |
//! | `full` | runs every test at its full count |
//! | `instructions` | counts the instructions of single operations, and compares them with recorded counts |
//! | `results` | regenerates the tables of results in the pages from the result files |
//! | `book` | builds the book in `docs` with mdBook, and checks its links |
//! | `reference` | regenerates the pages of options and statistics from the tables in the source |
//! | `capi` | builds and installs the C API: header, static and shared library, pkg-config file |
//! | `peers` | fetches and builds the engines with which keybench compares |

#![allow(clippy::disallowed_methods)] // it works on the source tree, not on databases

mod book;
mod capi;
mod explore;
mod full;
mod fuzz;
mod graph;
mod instructions;
mod peers;
mod planted;
mod powercut;
mod reference;
mod report;
mod results;
mod sanitize;
mod source;
mod tidy;
mod torture;
mod tree;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("tidy") => tidy::run(&args[1..]),
        Some("graph") => graph::run(&args[1..]),
        Some("shuttle") => explore::shuttle(&args[1..]),
        Some("loom") => explore::loom(&args[1..]),
        Some("fuzz") => fuzz::run(&args[1..]),
        Some("miri") => sanitize::miri(&args[1..]),
        Some("sanitize") => sanitize::sanitize(&args[1..]),
        Some("planted") => planted::run(&args[1..]),
        Some("torture") => torture::run(&args[1..]),
        Some("powercut") => powercut::run(&args[1..]),
        Some("full") => full::run(&args[1..]),
        Some("instructions") => instructions::run(&args[1..]),
        Some("results") => results::run(&args[1..]),
        Some("book") => book::run(&args[1..]),
        Some("reference") => reference::run(&args[1..]),
        Some("capi") => capi::run(&args[1..]),
        Some("peers") => peers::run(&args[1..]),
        _ => {
            Err("usage: cargo xtask <tidy|graph|shuttle|loom|fuzz|miri|sanitize|planted|torture|powercut|full|instructions|results|book|reference|capi|peers> [arguments]"
                .to_owned())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
