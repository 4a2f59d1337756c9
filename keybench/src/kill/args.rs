//! The command line of `keybench kill`.

use super::plant::Plant;
use crate::engine;
use crate::error::{Error, Result};
use crate::lua::args::points;
use crate::lua::point::{Limit, Point, Spec};
use crate::lua::script::{Context, Script};
use crate::options::{EngineFlags, TxnFlags, size};
use crate::pin::Pin;
use std::path::PathBuf;
use std::time::Duration;

/// Runs a workload in a process that is killed with SIGKILL at random moments, and checks after each kill that no
/// acknowledged write is lost.
#[derive(clap::Args, Debug, Clone)]
#[command(
    after_help = "The store is kept from kill to kill. After each one its directory is verified as `kt verify` does (Kingtide only), the
next process recovers it, and what it then holds is compared with what was acknowledged before the kill: an
acknowledged write may not be gone, a key may not hold what was never written to it, batches and transactions are
there as a whole or not at all, and a get may not find a deleted key that a scan does not show. Some processes are killed while they recover. Exits with 1 when something is found, and
keeps the directory then.

Examples:
  keybench kill mixed --minutes 30
  keybench kill cart --cycles 100 --every 0.2..1 --threads 8 --memtable-size 1M
  keybench kill transfers.lua --txn-mode locking --json
  keybench kill mixed --plant loss      a fault that must be found"
)]
pub struct Args {
    /// A Lua file, or the name of a bundled workload: mixed, cart, scan, batch
    pub workload: String,
    /// Stop after this many minutes [default: 1]
    #[arg(long, conflicts_with = "cycles")]
    pub minutes: Option<f64>,
    /// Stop after this many kills
    #[arg(long)]
    pub cycles: Option<u64>,
    /// Range of seconds from a start to its kill, drawn at random
    #[arg(long, default_value = "0.5..4", value_parser = span)]
    pub every: Span,
    /// The engine
    #[arg(long, alias = "backend", default_value = "kingtide")]
    pub engine: String,
    /// Threads of the workload [default: one for each core]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Directory to create for the store; removed at the end unless there is a finding
    #[arg(long, default_value = "bench-data/kill")]
    pub dir: PathBuf,
    /// Seed of the workload and of the kill times [default: random]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print the summary as JSON, and progress to standard error
    #[arg(long)]
    pub json: bool,
    /// Value of ctx.users
    #[arg(long, default_value_t = 2_000)]
    pub users: u64,
    /// Value of ctx.items: entries of the data set
    #[arg(long, default_value_t = 20_000)]
    pub items: u64,
    /// Size of a value in bytes, with an optional suffix K or M
    #[arg(long, default_value = "4K", value_parser = size)]
    pub value_size: u64,
    /// Values of ctx.batch for batch workloads, used in turn
    #[arg(long, value_delimiter = ',')]
    pub batch: Vec<u64>,
    /// Inject a fault, to see that it is found
    #[arg(long, value_enum)]
    pub plant: Option<Plant>,
    /// Transactions of kv.begin; required for engines whose store must be opened for transactions
    #[command(flatten)]
    pub txn_flags: TxnFlags,
    /// Options of the engine
    #[command(flatten)]
    pub engine_flags: EngineFlags,
}

/// Seconds, from and to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span(pub f64, pub f64);

/// A span for clap: `1..4`, or one number.
fn span(text: &str) -> std::result::Result<Span, String> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    match (from.trim().parse(), to.trim().parse()) {
        (Ok(from), Ok(to)) if 0.0 <= from && from <= to && to <= 86_400.0 => Ok(Span(from, to)),
        _ => Err("use FROM..TO in seconds, as in 0.5..4".into()),
    }
}

/// When to end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// After so many kills.
    Cycles(u64),
    /// When so much time has passed.
    After(Duration),
}

/// A checked command line.
#[derive(Debug)]
pub struct Plan {
    /// What each process runs, but for its seed and whether it loads.
    pub work: Spec,
    /// Threads that load.
    pub loaders: usize,
    /// Points that processes take in turn.
    pub points: Vec<Point>,
    /// The directory of everything.
    pub dir: PathBuf,
    /// When to end.
    pub end: End,
    /// Seconds from a start to its kill.
    pub every: Span,
    /// Seed.
    pub seed: u64,
    /// A fault to be found.
    pub plant: Option<Plant>,
}

impl Args {
    /// Checks everything that can be wrong before a process is started.
    pub fn plan(&self) -> Result<Plan> {
        let engine = engine::canonical_name(&self.engine)?.to_owned();
        if ["memory", "null"].contains(&&*engine) {
            return Err(Error::usage(format!("--engine {engine}: stores nothing on disk")));
        }
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let threads = self.threads.unwrap_or(cores);
        for (flag, bad) in [
            ("--threads", !(1..=1024).contains(&threads)),
            ("--cycles", self.cycles == Some(0)),
            ("--minutes", self.minutes.is_some_and(|m| !(m > 0.0 && m <= 1e6))),
            ("--batch", self.batch.contains(&0)),
            ("--users", self.users == 0),
            ("--items", self.items == 0),
            ("--value-size", self.value_size > 1 << 32),
        ] {
            if bad {
                return Err(Error::usage(format!("{flag}: out of range")));
            }
        }
        let how = self.txn_flags.given().then(|| self.txn_flags.transactions());
        let choices = self.engine_flags.check(std::slice::from_ref(&engine), self.value_size as usize)?;
        let options = choices.with_transactions(how).of(&engine);
        let script = Script::find(&self.workload)?;
        let (workload, points) = points(&script, threads, &self.batch)?;
        let seed = self.seed.unwrap_or_else(|| kingtide_base::rng::entropy() >> 16);
        let context =
            Context { users: self.users, items: self.items, value_size: self.value_size, seed, ..Context::default() };
        let dir = &self.dir;
        let work = Spec {
            script,
            workload,
            engine,
            dir: dir.join("store"),
            options,
            seed_threads: 0,
            points: Vec::new(),
            context,
            limit: Limit::Endless,
            warmup: 0.0,
            rate: None,
            timeline: 0.0,
            verify: false,
            settle: Some(false),
            pin: Pin::No,
            trace: None,
        };
        let end = match (self.cycles, self.minutes) {
            (Some(n), _) => End::Cycles(n),
            (None, minutes) => End::After(Duration::from_secs_f64(minutes.unwrap_or(1.0) * 60.0)),
        };
        let every = self.every;
        Ok(Plan { work, loaders: cores, points, dir: dir.clone(), end, every, seed, plant: self.plant })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_checked() {
        assert_eq!(span("1..4"), Ok(Span(1.0, 4.0)));
        assert_eq!(span(" 0.5 "), Ok(Span(0.5, 0.5)));
        for wrong in ["4..1", "-1..2", "a..b", "..", "1..inf", "nan"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }
}
