//! `--rate-sweep`: how fast the first engine is in a closed loop, and open loops at shares of that for all engines.

use super::args::{Group, Plan};
use super::point::{Message, Point, Spec};
use super::script::Swept;
use crate::child;
use crate::engine;
use crate::error::{Error, Result};
use crate::figure::LOAD;
use crate::process;
use crate::results::Capacity;
use crate::say::note;

/// The shares, in percent: up to where queues begin to grow.
const SHARES: [u32; 4] = [25, 50, 75, 90];

/// Measures the first engine's capacity at every point of the grid, and puts points at shares of it in their place.
pub fn sweep(plan: &mut Plan) -> Result<()> {
    let Some(name) = plan.engines.first().cloned() else { return Ok(()) };
    let (mut groups, mut capacities) = (Vec::new(), Vec::new());
    for group in &plan.groups {
        let mut points = Vec::new();
        for point in &group.points {
            let wu_per_s = measure(plan, group, point, &name)?;
            let capacity =
                Capacity { workload: group.workload.clone(), threads: point.threads, engine: name.clone(), wu_per_s };
            note!("capacity: {capacity}");
            capacities.push(capacity);
            points.push(SHARES.map(|percent| at_share(point, percent, wu_per_s)).to_vec());
        }
        // Points that shared a store still do; others have one each.
        if group.points.len() > 1 {
            groups.push(Group { points: points.concat(), ..group.clone() });
        } else {
            groups.extend(points.concat().into_iter().map(|p| Group { points: vec![p], ..group.clone() }));
        }
    }
    (plan.groups, plan.capacities) = (groups, capacities);
    Ok(())
}

fn at_share(point: &Point, percent: u32, capacity: f64) -> Point {
    Point {
        swept: Some((LOAD.to_owned(), Swept::Int(percent.into()))),
        rate: Some(capacity * f64::from(percent) / 100.0),
        ..point.clone()
    }
}

/// Units a second of one point in a closed loop, on a store of its own.
fn measure(plan: &Plan, group: &Group, point: &Point, name: &str) -> Result<f64> {
    let dir = plan.data_dir.join(name);
    process::fresh_dir(&dir)?;
    note!("capacity of {name}: {}, {}", group.workload, point.place());
    let group = Group { points: vec![point.clone()], ..group.clone() };
    let spec = Spec {
        rate: None,
        timeline: 0.0,
        verify: false,
        settle: Some(false),
        trace: None,
        ..plan.spec(&group, name, &dir)
    };
    let (mut rate, mut trouble) = (None, Ok(()));
    let ended = child::run("run", &spec, |message| match message {
        Message::Done { measured, .. } => rate = Some(measured.unit_rate()),
        Message::Unavailable(m) => trouble = Err(Error::Unavailable(m)),
        Message::Usage(m) => trouble = Err(Error::Usage(m)),
        Message::Failed(m) => trouble = Err(Error::Failed(m)),
        _ => {}
    });
    if engine::keeps_files(name) || dir.exists() {
        process::remove_dir(&dir)?;
    }
    trouble.and(ended).map_err(|e| e.context(format!("--rate-sweep: the capacity of {name}")))?;
    rate.filter(|r| *r > 0.0).ok_or_else(|| Error::failed(format!("--rate-sweep: {name} completed no operation")))
}
