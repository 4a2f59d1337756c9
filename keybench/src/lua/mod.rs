//! `keybench run`: workloads written in Lua, the same script on every engine.

pub mod args;
mod capacity;
mod harness;
mod kv;
#[cfg(test)]
mod list_tests;
mod natives;
pub mod point;
mod report;
pub mod script;
mod sink;
#[cfg(test)]
mod tests;
mod truth;
mod txn;
#[cfg(test)]
mod verify_tests;
mod worker;

pub use args::Args;
pub use report::again;
#[cfg(test)]
pub use tests::calls_of;

use crate::child;
use crate::engine;
use crate::error::{Error, Result};
use crate::process;
use crate::results::equality;
use crate::say::note;
use args::{Group, Plan};
use point::{Message, Spec};
use report::Report;

/// The child's side: runs the specification on standard input.
pub fn child_main() -> Result<()> {
    let spec: Spec = child::read_spec()?;
    let open = |dir: &std::path::Path| engine::registry::open(&spec.engine, dir, &spec.options);
    match point::run(&spec, &open, &mut |m| child::send(&m)) {
        Ok(()) => Ok(()),
        Err(Error::Unavailable(m)) => child::send(&Message::Unavailable(m)),
        Err(Error::Usage(m)) => child::send(&Message::Usage(m)),
        Err(e) => child::send(&Message::Failed(e.to_string())),
    }
}

/// Runs `keybench run`; `replay` is the configuration that runs the same again.
pub fn main(args: &Args, replay: &str) -> Result<()> {
    let mut plan = args.plan()?;
    if let Some(path) = &args.save_config {
        std::fs::write(path, replay).map_err(|e| Error::io("write", path, e))?;
    }
    process::warn_of_tmpfs(&plan.data_dir, plan.choices.sync());
    room(&plan)?;
    if plan.rate_sweep {
        capacity::sweep(&mut plan)?;
    }
    let mut report = Report::create(&plan, replay)?;
    // Scripts may leave traces, in files of their own or in the kernel: what they cost is measured when engines are done.
    let measured = alike(&plan, &mut report).and_then(|()| stores(&plan, &mut report));
    match measured.and_then(|()| harness::costs(&plan)).map(|costs| report.set_harness(costs)) {
        Err(Error::Interrupted) => report.interrupted(),
        Err(e) => report.broken_off(e),
        Ok(()) => report.finish(),
    }
}

/// `--equal`: opens every engine once without running anything, so that unequal settings are refused before the first
/// point and not after it.
fn alike(plan: &Plan, report: &mut Report) -> Result<()> {
    let (true, Some(group)) = (plan.equal, plan.groups.first()) else { return Ok(()) };
    let mut opened = Vec::new();
    for engine in &plan.engines {
        let dir = plan.data_dir.join(engine);
        process::fresh_dir(&dir)?;
        let spec = Spec { points: Vec::new(), seed_threads: 0, trace: None, ..plan.spec(group, engine, &dir) };
        let ended = child::run("run", &spec, |message| {
            if let Message::Opened { durability, options, .. } = message {
                opened.push((engine.clone(), options, durability));
            }
        });
        ended.and(process::remove_dir(&dir))?;
    }
    let opened: Vec<_> = opened.iter().map(|(e, o, d)| (e.as_str(), o.as_slice(), d.as_str())).collect();
    let differences = equality::differences(&opened);
    let refused = equality::require(&differences);
    report.set_differences(differences);
    refused
}

/// Goes through the grid.
fn stores(plan: &Plan, report: &mut Report) -> Result<()> {
    // Engines alternate within a repeat, so that a change in the machine meets all of them.
    for repeat in 0..plan.repeat {
        for group in &plan.groups {
            for engine in engine::turns(plan.engines.len(), repeat).map(|at| &plan.engines[at]) {
                if report.trouble(engine).is_none() {
                    one_store(plan, group, engine, repeat, report)?;
                }
            }
        }
    }
    Ok(())
}

/// Refuses a run whose data sets would not fit. Stores are there one at a time.
fn room(plan: &Plan) -> Result<()> {
    if plan.ignore_free_space || !plan.engines.iter().any(|e| engine::keeps_files(e)) {
        return Ok(());
    }
    let largest = plan.groups.iter().map(|g| g.bytes(&plan.context)).max().unwrap_or(0);
    process::need_room(&plan.data_dir, largest.saturating_mul(process::ROOM_FACTOR))
}

/// One store: fresh before, gone after, its points in between.
fn one_store(plan: &Plan, group: &Group, engine: &str, repeat: usize, report: &mut Report) -> Result<()> {
    let dir = plan.data_dir.join(engine);
    process::fresh_dir(&dir)?;
    let spec = plan.spec(group, engine, &dir);
    note!("repeat {} of {}: {} on {engine}", repeat + 1, plan.repeat, group.workload);
    let (mut outcome, mut closed) = (Ok(()), false);
    let ended = child::run("run", &spec, |message| match message {
        Message::Unavailable(m) => outcome = Err(Error::Unavailable(m)),
        Message::Usage(m) => outcome = Err(Error::Usage(m)),
        Message::Failed(m) => outcome = Err(Error::Failed(m)),
        other => {
            closed |= matches!(other, Message::Closed(_));
            if let Err(e) = report.add(group, engine, repeat, other) {
                outcome = Err(e);
            }
        }
    });
    let whole = || match closed {
        true => Ok(()),
        false => Err(Error::failed("the engine's process ended before it was done")),
    };
    match outcome.and(ended).and_then(|()| whole()).and(process::remove_dir(&dir)) {
        Err(Error::Interrupted) => Err(Error::Interrupted),
        Err(e @ Error::Usage(_)) => Err(e.context(engine)),
        Err(e) => {
            let e = e.context(format!("{} in {}", group.workload, dir.display()));
            note!("{engine}: {e}");
            report.give_up(engine, &group.workload, e);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
