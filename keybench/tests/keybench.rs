//! All tests of keybench in one program: those beside the source, whose modules are here as they are in `main.rs`, and those that start
//! keybench, which Cargo builds for a program of this directory alone.
#![allow(clippy::disallowed_methods, dead_code, missing_docs)] // tests start processes and handle files

#[path = "../src/child.rs"]
mod child;
#[path = "../src/cli.rs"]
mod cli;
#[path = "../src/clock.rs"]
mod clock;
#[path = "../src/compare.rs"]
mod compare;
#[path = "../src/config/mod.rs"]
mod config;
#[path = "../src/data.rs"]
mod data;
#[path = "../src/db_bench.rs"]
mod db_bench;
#[path = "../src/dist.rs"]
mod dist;
#[path = "../src/engine/mod.rs"]
mod engine;
#[path = "../src/error.rs"]
mod error;
#[path = "../src/figure/mod.rs"]
mod figure;
#[path = "../src/interrupt.rs"]
mod interrupt;
#[path = "../src/kill/mod.rs"]
mod kill;
#[path = "../src/lua/mod.rs"]
mod lua;
#[path = "../src/machine.rs"]
mod machine;
#[path = "../src/measure.rs"]
mod measure;
#[path = "../src/micro/mod.rs"]
mod micro;
#[path = "../src/options.rs"]
mod options;
#[path = "../src/page/mod.rs"]
mod page;
#[path = "../src/pages.rs"]
mod pages;
#[path = "../src/pin.rs"]
mod pin;
#[path = "../src/plot.rs"]
mod plot;
#[path = "../src/process.rs"]
mod process;
#[path = "../src/progress.rs"]
mod progress;
#[path = "../src/results/mod.rs"]
mod results;
#[cfg(unix)]
mod runs;
#[path = "../src/say.rs"]
mod say;
#[path = "../src/settle.rs"]
mod settle;
#[path = "../src/stats.rs"]
mod stats;
#[path = "../src/suite/mod.rs"]
mod suite;
#[path = "../src/trace.rs"]
mod trace;
#[path = "../src/ycsb.rs"]
mod ycsb;
