//! The CSV file: one row for each engine, test and operation. The header is fixed; columns may be added at its end, and a
//! file keeps the ones it began with.

use super::args::Plan;
use super::outcome::{Column, HarnessCost, Outcome, Phase, TxnCounts};
use crate::error::{Error, Result};
use crate::machine;
use crate::measure::{Summary, exact, median};
use crate::settle::{Cost, Costs};
use crate::stats::Estimate;
use std::borrow::Cow;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

/// The columns that every file has.
const HEADER: &str = "engine,version,test_name,operation,pattern,threads,batch_size,key_size,value_size,\
num_operations,ops_per_sec,duration_sec,avg_us,stddev_us,cv_percent,p50_us,p95_us,p99_us,p999_us,min_us,max_us,\
peak_rss_mib,disk_read_mib,disk_write_mib,cpu_user_sec,cpu_sys_sec,db_size_mib,write_amp,read_amp,space_amp,sync,verified,wrong";

/// The columns behind them, of transactions: empty for other workloads. Files from before there were any have none.
const TXN_HEADER: &str = "isolation,txn_mode,txn_size,hot_keys,commits,commits_per_sec,aborts,abort_rate,lost_updates";

const MIB: f64 = 1_048_576.0;

/// The columns behind those: how many runs the medians are of, and the 95 % interval of the rate ([`crate::stats`]), which is
/// of commits where there are any and of operations elsewhere. Older files have none.
const SPREAD_HEADER: &str = "repeats,rate_low,rate_high";

/// The column behind those: what the harness costs, in nanoseconds of processor time for each operation.
const HARNESS_HEADER: &str = "harness_ns";

/// The columns behind that: what writes cost when the last one was acknowledged and when compaction was idle, where that
/// was waited for; and the seconds to open the store again, with how it had been left.
const COST_HEADER: &str = "foreground_sec,foreground_cpu_sec,foreground_write_mib,foreground_db_size_mib,foreground_rss_mib,\
settled_sec,settled_cpu_sec,settled_write_mib,settled_db_size_mib,settled_rss_mib,reopen_sec,reopen_of";

/// The last column: the commit that keybench was built from. A file that grows may have rows of several.
const COMMIT_HEADER: &str = "commit";

/// All, oldest first; behind those of costs are those of the machine that the figures depend on.
const HEADERS: [&str; 7] =
    [HEADER, TXN_HEADER, SPREAD_HEADER, HARNESS_HEADER, COST_HEADER, machine::COLUMNS, COMMIT_HEADER];

/// The header of files with so many of the groups of columns that came after the first.
fn header(later: usize) -> String {
    HEADERS[..=later].join(",")
}

/// A column's name as it is today. In files of earlier versions, names end in `_mb`, although the columns held MiB then too.
pub fn column_today(column: &str) -> Cow<'_, str> {
    column.strip_suffix("_mb").map_or(column.into(), |name| format!("{name}_mib").into())
}

/// Text that may stand in a cell: a comma would shift the cells behind it, and a line feed would end the row.
fn cell(text: &str) -> String {
    text.replace(|c: char| c == ',' || c.is_control(), ";")
}

/// How many of the later groups of columns a file has, by its first line; one that is new or empty gets all.
fn later_columns(path: &Path) -> Result<usize> {
    let first = match std::fs::File::open(path) {
        Ok(file) => BufReader::new(file).lines().next().transpose().map_err(|e| Error::io("read", path, e))?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(Error::io("read", path, e)),
    };
    let Some(line) = first else { return Ok(HEADERS.len() - 1) };
    let wrong =
        || Error::usage(format!("--csv {}: its columns are not the ones that this program writes", path.display()));
    let line = line.split(',').map(column_today).collect::<Vec<_>>().join(",");
    (0..HEADERS.len()).find(|n| header(*n) == line).ok_or_else(wrong)
}

/// Refuses, before anything is run, a file that has no room for the results.
pub fn check(path: &Path, plan: &Plan) -> Result<()> {
    if later_columns(path)? == 0 && plan.base.workload.is_transactional() {
        return Err(Error::usage(format!(
            "--csv {}: it has no columns for transactions; use a new one",
            path.display()
        )));
    }
    Ok(())
}

/// Appends the medians of all columns to `path`, with the header if the file is new or empty.
pub fn append(path: &Path, plan: &Plan, columns: &[Column], harness: &[HarnessCost]) -> Result<()> {
    let later = later_columns(path)?;
    let io = |e| Error::io("write", path, e);
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).map_err(io)?;
    let mut text = String::new();
    let machine = machine::cells(&plan.root);
    if file.metadata().map_err(io)?.len() == 0 {
        text = header(later) + "\n";
    }
    for column in columns.iter().filter(|c| !c.outcomes.is_empty()) {
        for (at, phase) in column.outcomes[0].phases.iter().enumerate() {
            let cost = harness.iter().find(|h| h.operation == phase.title());
            let cost = cost.map_or(String::new(), |h| exact(h.ns));
            let costs = cost_cells(plan, column, at);
            let cells = [
                row(plan, column, at),
                txn_cells(plan, column, at),
                spread_cells(column, at),
                cost,
                costs,
                machine.clone(),
                env!("KEYBENCH_COMMIT").to_owned(),
            ];
            text.push_str(&cells[..=later].join(","));
            text.push('\n');
        }
    }
    file.write_all(text.as_bytes()).map_err(io)
}

fn txn_cells(plan: &Plan, column: &Column, at: usize) -> String {
    let phases: Vec<&Phase> = column.outcomes.iter().filter_map(|o| o.phases.get(at)).collect();
    let counts: Vec<_> = phases.iter().filter_map(|p| p.txn).collect();
    if counts.is_empty() {
        return ",".repeat(TXN_HEADER.matches(',').count());
    }
    let txn = &plan.base.txn;
    let cells = [
        txn.how.isolation.name().into(),
        txn.how.mode.name().into(),
        txn.size.to_string(),
        txn.hot_keys.map_or(String::new(), |n| n.to_string()),
        format!("{:.0}", median(counts.iter().map(|t| t.commits as f64))),
        exact(median(phases.iter().map(|p| p.commit_rate()))),
        format!("{:.0}", median(counts.iter().map(|t| t.aborts as f64))),
        format!("{:.5}", median(counts.iter().map(TxnCounts::abort_rate))),
        column.outcomes.iter().map(|o| o.lost_updates).sum::<u64>().to_string(),
    ];
    cells.join(",")
}

fn cost_cells(plan: &Plan, column: &Column, at: usize) -> String {
    let costs: Vec<Costs> = column.outcomes.iter().filter_map(|o| o.phases.get(at)?.costs).collect();
    let mut cells = vec![String::new(); 10];
    if !costs.is_empty() {
        let figures: [fn(&Cost) -> f64; 5] = [
            |c| c.seconds,
            |c| c.cpu,
            |c| c.written as f64 / MIB,
            |c| c.disk_bytes as f64 / MIB,
            |c| c.rss as f64 / MIB,
        ];
        let of = |cost: fn(&Costs) -> &Cost| figures.map(|f| exact(median(costs.iter().map(|c| f(cost(c))))));
        cells = of(|c| &c.foreground).into_iter().chain(of(|c| &c.settled)).collect();
    }
    let again: Vec<f64> = column.outcomes.iter().filter_map(|o| o.reopen_seconds).collect();
    match plan.base.after_load.reopens().filter(|_| !again.is_empty()) {
        Some(how) => cells.extend([exact(median(again)), how.into()]),
        None => cells.extend([String::new(), String::new()]),
    }
    cells.join(",")
}

fn spread_cells(column: &Column, at: usize) -> String {
    let phases = column.outcomes.iter().filter_map(|o| o.phases.get(at));
    let rate = |p: &Phase| if p.txn.is_some() { p.commit_rate() } else { p.rate() };
    let rates: Vec<f64> = phases.map(rate).collect();
    let e = Estimate::of(&rates);
    format!("{},{},{}", rates.len(), exact(e.low), exact(e.high))
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
    let l = Summary::of_repeats(&phases.iter().map(|p| p.latency).collect::<Vec<_>>());
    let cv = if l.avg > 0.0 { 100.0 * l.stddev / l.avg } else { 0.0 };
    let us = |ns: f64| exact(ns / 1e3);
    let cells = [
        column.engine.clone(),
        cell(&outcomes[0].version),
        cell(&plan.test_name_of(first)),
        first.operation.clone(),
        plan.base.pattern.name().into(),
        plan.base.threads.to_string(),
        first.batch.to_string(),
        plan.base.key_size.to_string(),
        plan.base.value_size.to_string(),
        first.ops.to_string(),
        exact(of(&Phase::rate)),
        exact(of(&|p| p.seconds)),
        us(l.avg),
        us(l.stddev),
        exact(cv),
        us(l.p50),
        us(l.p95),
        us(l.p99),
        us(l.p999),
        us(l.min),
        us(l.max),
        exact(all(&|o| o.peak_rss as f64) / MIB),
        exact(of(&|p| p.usage.disk_read as f64) / MIB),
        exact(of(&|p| p.usage.written() as f64) / MIB),
        exact(of(&|p| p.usage.cpu_user)),
        exact(of(&|p| p.usage.cpu_sys)),
        exact(all(&|o| o.disk_bytes as f64) / MIB),
        exact(all(&Outcome::write_amp)),
        exact(of(&|p| read_amp(plan, p))),
        exact(all(&Outcome::space_amp)),
        u8::from(plan.base.options.sync).to_string(),
        outcomes.iter().map(Outcome::verified).sum::<u64>().to_string(),
        outcomes.iter().map(Outcome::wrong).sum::<u64>().to_string(),
    ];
    cells.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::Args;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn plan(words: &str) -> Plan {
        Cli::parse_from(std::iter::once("micro").chain(words.split_whitespace())).args.plan().unwrap()
    }

    fn column(txn: Option<TxnCounts>) -> Column {
        let phases = vec![Phase { operation: "X".into(), ops: 10, seconds: 2.0, txn, ..Phase::default() }];
        Column {
            engine: "memory".into(),
            outcomes: vec![Outcome { phases, lost_updates: 4, ..Outcome::default() }],
            trouble: None,
        }
    }

    /// A version is what the engine's library says of itself, and the name of a test may have whatever a shell lets through.
    #[test]
    fn no_text_moves_the_cells_behind_it() {
        let dir = std::env::temp_dir().join(format!("keybench-csv-text-{}", std::process::id()));
        crate::process::fresh_dir(&dir).unwrap();
        let path = dir.join("x.csv");
        let named = Plan { test_name: "a,b\nc".into(), ..plan("-w write") };
        let mut told = column(None);
        told.outcomes[0].version = "9.31 (July 10, 2023)".into();
        append(&path, &named, &[told], &[]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 2 && lines[0].matches(',').count() == lines[1].matches(',').count(), "{text}");
        assert!(lines[1].starts_with("memory,9.31 (July 10; 2023),a;b;c,X,"), "{text}");
        crate::process::remove_dir(&dir).unwrap();
    }

    #[test]
    fn files_keep_the_columns_they_began_with() {
        let dir = std::env::temp_dir().join(format!("keybench-csv-{}", std::process::id()));
        crate::process::fresh_dir(&dir).unwrap();
        let (plain, txn) = (plan("-w write"), plan("-w txn-rmw --hot-keys 9 --isolation serializable"));
        let counts = TxnCounts { commits: 6, aborts: 2, writes: 6 };
        let width = |header: &str| header.matches(',').count();

        let new = dir.join("new.csv");
        let harness = [HarnessCost { operation: "X".into(), ns: 41.6, latency_ns: 9.0 }];
        for (plan, counts) in [(&plain, None), (&txn, Some(counts))] {
            check(&new, plan).unwrap();
            append(&new, plan, &[column(counts)], &harness).unwrap();
        }
        let text = std::fs::read_to_string(&new).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with(HEADER) && lines.len() == 3);
        assert!(lines.iter().all(|l| width(l) == width(lines[0])), "{text}");
        let commit = concat!(",", env!("KEYBENCH_COMMIT"));
        assert!(lines[0].ends_with(",commit") && lines[1..].iter().all(|l| l.ends_with(commit)), "{text}");
        assert!(lines[2].contains(",serializable,optimistic,10,9,6,3.0,2,0.25000,4,1,3.0,3.0,41.6,,"), "{}", lines[2]);

        let old = dir.join("old.csv");
        for later in [5, 4, 3, 2, 1, 0] {
            std::fs::write(&old, header(later).replace("_mib", "_mb") + "\n").unwrap();
            let (plan, counts) = if later > 0 { (&txn, Some(counts)) } else { (&plain, None) };
            check(&old, plan).unwrap();
            append(&old, plan, &[column(counts)], &harness).unwrap();
            let text = std::fs::read_to_string(&old).unwrap();
            assert!(text.lines().count() == 2 && text.lines().all(|l| width(l) == width(&header(later))), "{text}");
            assert!(later != 1 || text.ends_with(",0.25000,4\n"), "{text}");
        }
        assert!(check(&old, &txn).unwrap_err().to_string().contains("no columns for transactions"));

        std::fs::write(&old, "a,b,c\n").unwrap();
        assert_eq!(check(&old, &plain).unwrap_err().exit_code(), 2);
        crate::process::remove_dir(&dir).unwrap();
    }
}
