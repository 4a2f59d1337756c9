//! Warnings: what a reader must know before the figures.

use super::args::Plan;
use super::outcome::Column;
use crate::engine;
use crate::results::equality;
use crate::settle;

/// What a reader must know before the figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The engines do not share a setting.
    Differs(equality::Difference),
    /// Data sets of `least` to `most` bytes that fit into memtables of `memtable` bytes.
    Small { least: u64, most: u64, memtable: u64 },
}

impl Warning {
    /// The warning that says what this one and another say, if one sentence can.
    pub fn with(&self, other: &Warning) -> Option<Warning> {
        match (self, other) {
            (
                Warning::Small { least, most, memtable },
                Warning::Small { least: low, most: high, memtable: another },
            ) if memtable == another => {
                Some(Warning::Small { least: *least.min(low), most: *most.max(high), memtable: *memtable })
            }
            _ => (self == other).then(|| self.clone()),
        }
    }
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Warning::Differs(difference) => difference.fmt(f),
            Warning::Small { least, most, memtable } => f.write_str(&settle::fits_in_memory(*least, *most, *memtable)),
        }
    }
}

/// Settings that the engines do not share.
pub fn differences(columns: &[Column]) -> Vec<equality::Difference> {
    let opened = columns.iter().filter_map(|c| c.outcomes.first().map(|o| (c, o)));
    let opened: Vec<equality::Opened<'_>> =
        opened.map(|(c, o)| (c.engine.as_str(), o.options.as_slice(), o.durability.as_str())).collect();
    equality::differences(&opened)
}

/// What a reader must know before the figures.
pub fn warnings(plan: &Plan, columns: &[Column]) -> Vec<Warning> {
    let mut out: Vec<Warning> = differences(columns).into_iter().map(Warning::Differs).collect();
    if plan.base.writes() {
        let files = columns.iter().filter(|c| engine::keeps_files(&c.engine));
        let memtables = files.filter_map(|c| c.outcomes.first()).filter_map(|o| equality::memtable(&o.options));
        let bytes = plan.base.bytes();
        let small = memtables.max().filter(|memtable| settle::is_small(bytes, *memtable));
        out.extend(small.map(|memtable| Warning::Small { least: bytes, most: bytes, memtable }));
    }
    out
}
