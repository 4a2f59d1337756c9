//! The figures of a suite, drawn of its table.

use super::{Cell, Table};
use crate::figure::{self, Figure, suite};
use crate::stats::Estimate;

/// Nanoseconds of a microsecond.
const NS: f64 = 1e3;
const MIB: f64 = 1_048_576.0;

impl Table {
    /// The figures that there are data for; `conditions` is what all tests share besides what the file tells.
    pub fn draw(&self, conditions: &str) -> Vec<Figure> {
        let all = self.tests.iter().flat_map(|test| self.engines.iter().map(move |engine| (test, engine)));
        let cell = |(test, engine): (&String, &String)| Some(drawn(test, engine, self.cell(test, engine)?));
        let name = self.path.file_stem().map_or_else(|| "suite".into(), |s| s.to_string_lossy());
        figure::of_suite(&suite::Suite {
            name: name.into_owned(),
            cells: all.filter_map(cell).collect(),
            conditions: conditions.to_owned(),
            notes: if self.versions.is_empty() { Vec::new() } else { vec![format!("{}.", self.versions.join("; "))] },
        })
    }
}

fn drawn(test: &str, engine: &str, cell: &Cell) -> suite::Cell {
    let (low, high) = cell.spread.unwrap_or((cell.rate, cell.rate));
    suite::Cell {
        test: test.to_owned(),
        engine: engine.to_owned(),
        remark: cell.unsound().map(str::to_owned),
        rate: Estimate { value: cell.rate, low, high },
        p50: cell.p50 * NS,
        p99: cell.p99 * NS,
        p999: cell.p999 * NS,
        memory: cell.rss * MIB,
        disk: cell.disk * MIB,
        write_amp: cell.write_amp.unwrap_or(0.0),
        read_amp: cell.read_amp.unwrap_or(0.0),
        space_amp: cell.space_amp.unwrap_or(0.0),
        threads: cell.threads,
        // The batch of a transactional test is the transaction.
        batch: if cell.txn_size > 0.0 { 0.0 } else { cell.batch },
        value_size: cell.value_size,
        txn_size: cell.txn_size,
    }
}
