//! What the harness itself costs: each workload's loop for an instant on the engine that does nothing.

use super::args::{Group, Plan};
use super::point::{Limit, Message, Point, Spec};
use super::script::Context;
use crate::child;
use crate::error::{Error, Result};
use crate::results::HarnessCost;
use crate::say::note;

/// Seconds for which a workload is tried.
const SECONDS: f64 = 0.15;

/// The cost of every workload and swept value of a plan. One that cannot run on the engine that does nothing has none.
///
/// # Errors
/// [`Error::Interrupted`] if the end was asked for meanwhile.
pub fn costs(plan: &Plan) -> Result<Vec<HarnessCost>> {
    let mut costs: Vec<HarnessCost> = Vec::new();
    for group in &plan.groups {
        for point in &group.points {
            let known = |c: &HarnessCost| c.workload == group.workload && c.swept == point.swept;
            if costs.iter().any(known) {
                continue;
            }
            match cost(plan, group, point) {
                Ok(cost) => costs.extend(cost),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(e) => note!("{}: the harness's own cost is not known: {e}", group.workload),
            }
        }
    }
    Ok(costs)
}

fn cost(plan: &Plan, group: &Group, point: &Point) -> Result<Option<HarnessCost>> {
    let alone = Point { threads: 1, rate: None, ..point.clone() };
    let group = Group { points: vec![alone], ..group.clone() };
    let spec = Spec {
        seed_threads: 0,
        limit: Limit::Seconds(SECONDS),
        warmup: 0.0,
        rate: None,
        timeline: 0.0,
        settle: Some(false),
        // What it answers was never put.
        verify: false,
        trace: None,
        context: Context { speed: 0.0, ..plan.context.clone() },
        ..plan.spec(&group, "null", &plan.data_dir.join("null"))
    };
    let mut cost = None;
    child::run_quietly("run", &spec, |message| {
        if let Message::Done { point, measured } = message {
            // Processor time, not wall-clock time: the latter would count whatever else this machine does.
            let per = |n: u64| measured.callers_cpu_ns as f64 / n as f64;
            cost = (measured.touches > 0).then(|| HarnessCost {
                workload: group.workload.clone(),
                swept: point.swept,
                ns_per_wu: per(measured.units),
                ns_per_op: per(measured.touches),
            });
        }
    })?;
    Ok(cost)
}
