//! The CSV file: one row for each engine, test and operation. The header is fixed; columns may be added at its end.

use super::args::Plan;
use super::{Column, Outcome, Phase};
use crate::error::{Error, Result};
use crate::measure::{Summary, median};
use std::io::Write;
use std::path::Path;

/// The columns.
pub const HEADER: &str = "engine,version,test_name,operation,pattern,threads,batch_size,key_size,value_size,\
num_operations,ops_per_sec,duration_sec,avg_us,stddev_us,cv_percent,p50_us,p95_us,p99_us,p999_us,min_us,max_us,\
peak_rss_mb,disk_read_mb,disk_write_mb,cpu_user_sec,cpu_sys_sec,db_size_mb,write_amp,read_amp,space_amp,sync,verified,wrong";

const MB: f64 = 1_048_576.0;

/// Appends the medians of all columns to `path`, with the header if the file is new or empty.
pub fn append(path: &Path, plan: &Plan, columns: &[Column]) -> Result<()> {
    let io = |e| Error::io("write", path, e);
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).map_err(io)?;
    let mut text = String::new();
    if file.metadata().map_err(io)?.len() == 0 {
        text.push_str(HEADER);
        text.push('\n');
    }
    for column in columns.iter().filter(|c| !c.outcomes.is_empty()) {
        for at in 0..column.outcomes[0].phases.len() {
            text.push_str(&row(plan, column, at));
            text.push('\n');
        }
    }
    file.write_all(text.as_bytes()).map_err(io)
}

/// Bytes that system calls read for each byte that the phase's answers hold.
fn read_amp(plan: &Plan, phase: &Phase) -> f64 {
    let entry = (plan.base.key_size + plan.base.value_size) as f64;
    let entries = match phase.operation.as_str() {
        "GET" | "SEEK" | "MGET" | "ITER" => phase.ops as f64,
        "RANGE" => phase.ops as f64 * plan.base.range_size as f64,
        _ => return 0.0,
    };
    phase.usage.read_calls as f64 / (entries * entry).max(1.0)
}

fn row(plan: &Plan, column: &Column, at: usize) -> String {
    let outcomes = &column.outcomes;
    let phases: Vec<&Phase> = outcomes.iter().filter_map(|o| o.phases.get(at)).collect();
    let of = |f: &dyn Fn(&Phase) -> f64| median(phases.iter().map(|p| f(p)));
    let all = |f: &dyn Fn(&Outcome) -> f64| median(outcomes.iter().map(f));
    let first = phases[0];
    let l = Summary::median_of(&phases.iter().map(|p| p.latency).collect::<Vec<_>>());
    let cv = if l.avg > 0.0 { 100.0 * l.stddev / l.avg } else { 0.0 };
    let us = |ns: f64| format!("{:.3}", ns / 1e3);
    let cells = [
        column.engine.clone(),
        outcomes[0].version.clone(),
        plan.test_name.replace(',', ";"),
        first.operation.clone(),
        plan.base.pattern.name().into(),
        plan.base.threads.to_string(),
        first.batch.to_string(),
        plan.base.key_size.to_string(),
        plan.base.value_size.to_string(),
        first.ops.to_string(),
        format!("{:.1}", of(&Phase::rate)),
        format!("{:.6}", of(&|p| p.seconds)),
        us(l.avg),
        us(l.stddev),
        format!("{cv:.1}"),
        us(l.p50),
        us(l.p95),
        us(l.p99),
        us(l.p999),
        us(l.min),
        us(l.max),
        format!("{:.1}", all(&|o| o.peak_rss as f64) / MB),
        format!("{:.1}", of(&|p| p.usage.disk_read as f64) / MB),
        format!("{:.1}", of(&|p| p.usage.written() as f64) / MB),
        format!("{:.2}", of(&|p| p.usage.cpu_user)),
        format!("{:.2}", of(&|p| p.usage.cpu_sys)),
        format!("{:.1}", all(&|o| o.disk_bytes as f64) / MB),
        format!("{:.3}", all(&Outcome::write_amp)),
        format!("{:.3}", of(&|p| read_amp(plan, p))),
        format!("{:.3}", all(&Outcome::space_amp)),
        u8::from(plan.base.options.sync).to_string(),
        outcomes.iter().map(Outcome::verified).sum::<u64>().to_string(),
        outcomes.iter().map(Outcome::wrong).sum::<u64>().to_string(),
    ];
    cells.join(",")
}
