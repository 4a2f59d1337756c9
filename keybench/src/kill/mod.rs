//! `keybench kill`: a workload in a process that is killed with SIGKILL, again and again, on a store that is kept.
//!
//! A cycle goes like this. A process opens the store, which recovers what the last kill left, and lists all that it holds.
//! The parent compares the listing with what it knows: the contents at the last check, and what the killed processes wrote
//! down of their mutations since then (`journal.rs`; `model.rs` says what follows from it). Then the process runs the
//! workload until the parent kills it at a random moment, and the parent verifies the directory. Some processes are killed
//! while they still recover; what they leave is verified as well and recovered by the next.
//!
//! What this shows is what SIGKILL can show: the kernel keeps what was written to files, so it tests what an engine promises
//! of a process's death, not of a power cut.

mod args;
mod campaign;
mod journal;
mod listing;
mod model;
mod order;
mod plant;
mod record;
mod report;
mod worker;

#[cfg(test)]
mod tests;

pub use args::Args;
pub use worker::child_main;

use crate::error::{Error, Result};
use crate::process;
use campaign::Campaign;

/// Runs `keybench kill`.
pub fn main(args: &Args) -> Result<()> {
    let plan = args.plan()?;
    if plan.dir.exists() {
        return Err(Error::usage(format!(
            "--dir {}: already exists; name a directory that does not",
            plan.dir.display()
        )));
    }
    for dir in ["store", "journals"] {
        process::fresh_dir(&plan.dir.join(dir))?;
    }
    let mut campaign = Campaign::new(&plan, args.json);
    let done = campaign.run();
    if !matches!(done, Ok(()) | Err(Error::Interrupted)) {
        return done;
    }
    let summary = campaign.summary();
    summary.print(args.json)?;
    if summary.findings.is_empty() {
        // What an interrupted campaign has compared so far was right.
        return crate::process::remove_dir(&plan.dir).and(done);
    }
    Err(Error::failed(format!("{} findings; {} is kept", summary.findings.len(), plan.dir.display())))
}
