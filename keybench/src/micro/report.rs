//! The report of `keybench micro`.

use super::args::Plan;
use super::outcome::{Column, HarnessCost, Outcome, Phase, TxnCounts};
use super::warning::Warning;
use crate::engine;
use crate::error::Error;
use crate::measure::{Summary, median, plural, show_bytes, show_count, show_ns, show_percent, show_short, sig3};
use crate::settle::{self, Costs};
use std::fmt::Write;

/// The report.
pub fn render(plan: &Plan, columns: &[Column], harness: &[HarnessCost], warnings: &[Warning]) -> String {
    let mut out = String::new();
    let b = &plan.base;
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "\n{}: {} {} entries, {}, batch {}, {} B keys, {} B values ({:.0} % random bytes), {}; medians of {}",
        plan.test_name,
        show_count(b.entries as f64),
        b.pattern.name(),
        plural(b.threads, "thread"),
        b.batch,
        b.key_size,
        b.value_size,
        b.value_entropy * 100.0,
        if b.options.sync { "synced" } else { "not synced" },
        plan.repeat,
    );
    if b.drop_cache {
        out.push_str("  files were evicted from the page cache before measuring\n");
    }
    if b.workload.is_transactional() {
        let _ = writeln!(
            out,
            "  transactions of {} operations over {}, {}, {}{}",
            b.txn.size,
            b.txn.hot_keys.map_or("all entries".into(), |n| format!("{} hot entries", show_count(n as f64))),
            b.txn.how.isolation,
            b.txn.how.mode.name(),
            if b.txn.plain_reads { ", plain reads" } else { "" },
        );
    }
    for c in columns {
        if let Some(o) = c.outcomes.first() {
            let options = crate::results::equality::in_force(o.options.clone());
            let options: Vec<String> = options.iter().map(|(k, v)| format!("{k}={v}")).collect();
            let _ = writeln!(out, "  {} {}: {}", c.engine, o.version, options.join(" "));
            let _ = writeln!(out, "    durability: {}", o.durability);
        }
        if let Some(e) = &c.trouble {
            let what = if matches!(e, Error::Failed(_)) { "failed" } else { "was skipped" };
            let _ = writeln!(out, "  {} {what}: {e}", c.engine);
        }
    }
    for warning in warnings {
        let _ = writeln!(out, "  warning: {warning}");
    }
    let measured: Vec<&Column> = columns.iter().filter(|c| !c.outcomes.is_empty()).collect();
    let Some(first) = measured.first() else { return out };
    for at in 0..first.outcomes[0].phases.len() {
        operation_table(&mut out, &measured, at);
        txn_table(&mut out, &measured, at);
        cost_table(&mut out, &measured, at);
    }
    resource_table(&mut out, &measured, plan.base.after_load.reopens());
    for note in measured.iter().filter_map(|c| engine::memory_note(&c.engine)) {
        let _ = writeln!(out, "{note}");
    }
    for HarnessCost { operation, ns, latency_ns } in harness {
        let _ = writeln!(
            out,
            "harness: {} ns of overhead for each {operation}, {} ns of a call's latency (processor time \
             on the null engine); subtract it",
            sig3(*ns),
            sig3(*latency_ns)
        );
    }
    verdicts(&mut out, plan, &measured);
    out
}

fn operation_table(out: &mut String, columns: &[&Column], at: usize) {
    let Phase { name, operation, ops, found, .. } = &columns[0].outcomes[0].phases[at];
    if !name.is_empty() {
        let found =
            found.map_or(String::new(), |n| format!(", {} found", show_percent(n as f64 / (*ops).max(1) as f64)));
        let _ = write!(out, "\n{name}: {} operations{found}", show_count(*ops as f64));
    }
    let _ = writeln!(
        out,
        "\n{operation:<10} {:>14} {:>15} {:>7} {:>10} {:>10} {:>10} {:>10} {:>10} {:>6} {:>10}",
        "ops/s", "(min-max)", "ratio", "avg", "p50", "p95", "p99", "p99.9", "CV %", "max"
    );
    let rates =
        |c: &Column| -> Vec<f64> { c.outcomes.iter().filter_map(|o| o.phases.get(at)).map(Phase::rate).collect() };
    let base = columns.iter().find(|c| c.outcomes.iter().all(|o| o.wrong() == 0)).map(|c| median(rates(c)));
    for c in columns {
        let rates = rates(c);
        let rate = median(rates.iter().copied());
        let summaries: Vec<Summary> = c.outcomes.iter().filter_map(|o| o.phases.get(at)).map(|p| p.latency).collect();
        let l = Summary::of_repeats(&summaries);
        let spread = |f: fn(f64, f64) -> f64, start| show_short(rates.iter().copied().fold(start, f));
        let wrong: u64 = c.outcomes.iter().map(Outcome::wrong).sum();
        let ratio = match base {
            _ if wrong > 0 => "WRONG".into(),
            Some(b) if b > 0.0 => format!("{}x", sig3(rate / b)),
            _ => "-".into(),
        };
        let _ = writeln!(
            out,
            "{:<10} {:>14} {:>15} {ratio:>7} {:>10} {:>10} {:>10} {:>10} {:>10} {:>6} {:>10}",
            c.engine,
            show_count(rate),
            format!("({}-{})", spread(f64::min, f64::MAX), spread(f64::max, 0.0)),
            show_ns(l.avg),
            show_ns(l.p50),
            show_ns(l.p95),
            show_ns(l.p99),
            show_ns(l.p999),
            sig3(if l.avg > 0.0 { 100.0 * l.stddev / l.avg } else { 0.0 }),
            show_ns(l.max),
        );
    }
}

/// What became of transactions, under the table of their operations.
fn txn_table(out: &mut String, columns: &[&Column], at: usize) {
    if columns[0].outcomes[0].phases[at].txn.is_none() {
        return;
    }
    let _ = writeln!(
        out,
        "\n{:<10} {:>14} {:>14} {:>12} {:>12} {:>13}",
        "committed", "commits/s", "commits", "aborts", "abort rate", "lost updates"
    );
    for c in columns {
        let phases: Vec<&Phase> = c.outcomes.iter().filter_map(|o| o.phases.get(at)).collect();
        let of = |f: &dyn Fn(&TxnCounts) -> f64| median(phases.iter().filter_map(|p| p.txn.as_ref()).map(f));
        let _ = writeln!(
            out,
            "{:<10} {:>14} {:>14} {:>12} {:>10.3} % {:>13}",
            c.engine,
            show_count(median(phases.iter().map(|p| p.commit_rate()))),
            show_count(of(&|t| t.commits as f64)),
            show_count(of(&|t| t.aborts as f64)),
            100.0 * of(&TxnCounts::abort_rate),
            c.outcomes.iter().map(|o| o.lost_updates).sum::<u64>(),
        );
    }
}

/// What writes cost when the last one was acknowledged, and when compaction was idle.
fn cost_table(out: &mut String, columns: &[&Column], at: usize) {
    if columns.iter().all(|c| c.outcomes.iter().all(|o| o.phases.get(at).is_none_or(|p| p.costs.is_none()))) {
        return;
    }
    let costs = |c: &&Column| c.outcomes.iter().filter_map(|o| o.phases.get(at)?.costs).collect();
    let rows: Vec<(&str, Vec<Costs>)> = columns.iter().map(|c| (c.engine.as_str(), costs(c))).collect();
    out.push('\n');
    settle::cost_table(out, &rows);
}

fn resource_table(out: &mut String, columns: &[&Column], reopened: Option<&str>) {
    let _ = writeln!(
        out,
        "\n{:<10} {:>11} {:>11} {:>10} {:>10} {:>10} {:>9} {:>9} {:>7} {:>7} {:>9} {:>9}",
        "resources",
        "peak RSS",
        "loaded RSS",
        "peak VMS",
        "disk read",
        "disk write",
        "cpu user",
        "cpu sys",
        "w-amp",
        "s-amp",
        "db size",
        "close"
    );
    for c in columns {
        let of = |f: &dyn Fn(&Outcome) -> f64| median(c.outcomes.iter().map(f));
        // Phases of one loop (`mixed`) share their readings: sum distinct times only.
        let sum = |f: &dyn Fn(&Phase) -> f64| {
            of(&|o| {
                let mut phases: Vec<&Phase> = o.phases.iter().collect();
                phases.dedup_by(|a, b| a.seconds == b.seconds);
                phases.into_iter().map(f).sum()
            })
        };
        let _ = writeln!(
            out,
            "{:<10} {:>11} {:>11} {:>10} {:>10} {:>10} {:>9} {:>9} {:>7} {:>7} {:>9} {:>9}",
            c.engine,
            show_bytes(of(&|o| o.peak_rss as f64)),
            show_bytes(of(&|o| o.loaded_rss as f64)),
            show_bytes(of(&|o| o.peak_vms as f64)),
            show_bytes(sum(&|p| p.usage.disk_read as f64)),
            show_bytes(sum(&|p| p.usage.written() as f64)),
            show_ns(sum(&|p| p.usage.cpu_user * 1e9)),
            show_ns(sum(&|p| p.usage.cpu_sys * 1e9)),
            sig3(of(&Outcome::write_amp)),
            sig3(of(&Outcome::space_amp)),
            show_bytes(of(&|o| o.disk_bytes as f64)),
            show_ns(of(&|o| o.close_seconds * 1e9)),
        );
        let again: Vec<f64> = c.outcomes.iter().filter_map(|o| o.reopen_seconds).collect();
        if let (Some(how), false) = (reopened, again.is_empty()) {
            let _ = writeln!(out, "{:<10} opened again in {} ({how})", "", show_ns(median(again) * 1e9));
        }
    }
}

fn verdicts(out: &mut String, plan: &Plan, columns: &[&Column]) {
    for c in columns {
        let (verified, wrong): (u64, u64) =
            c.outcomes.iter().fold((0, 0), |(v, w), o| (v + o.verified(), w + o.wrong()));
        let busy: u64 = c.outcomes.iter().map(|o| o.busy).sum();
        let _ = write!(out, "{}: {} answers checked, {} wrong", c.engine, show_count(verified as f64), wrong);
        let _ = writeln!(out, "{}", if busy > 0 { format!("; said busy {busy} times") } else { String::new() });
        let lost: u64 = c.outcomes.iter().map(|o| o.lost_updates).sum();
        if lost > 0 {
            let allowed = plan.base.txn.may_lose_updates();
            let verdict = if allowed { "which plain reads at this level allow" } else { "so its figures are INVALID" };
            let _ = writeln!(out, "    {} committed updates were lost, {verdict}", show_count(lost as f64));
        }
        for example in c.outcomes.iter().flat_map(|o| &o.examples).take(5) {
            let _ = writeln!(out, "    {example}");
        }
    }
}
