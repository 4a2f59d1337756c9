//! The names of what can go wrong, the level from which on it must not, and the report of what was found.

use kingtide::Isolation;
use std::collections::BTreeMap;

/// An anomaly. G0 to G2 and G-single are Adya's (thesis, MIT 1999), P4 is Berenson's and others' (SIGMOD 1995).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anomaly {
    /// A value that was never written to this key.
    Garbage,
    /// A committed version that is not there, or not the last, in the end.
    LostWrite,
    /// An element twice in a list.
    Duplicate,
    /// G0: writes of two transactions are interleaved.
    DirtyWrite,
    /// G1a: a version of a transaction that aborted.
    AbortedRead,
    /// G1b: a version that its transaction replaced before it committed.
    IntermediateRead,
    /// G1c: a cycle of writes and reads.
    CircularFlow,
    /// A transaction does not see its own writes.
    Internal,
    /// Two reads of a list that do not continue each other.
    IncompatibleOrder,
    /// The order of versions that was seen is not that of the commits' sequence numbers.
    SequenceDisagrees,
    /// A version that had been replaced, and the replacement acknowledged, when the reader began.
    StaleRead,
    /// Two reads of a key in a transaction differ.
    NonRepeatable,
    /// No snapshot holds all that a transaction read.
    Fractured,
    /// What it read is not what its snapshot holds.
    WrongSnapshot,
    /// P4: between a transaction's read of a key and its write to it another one wrote it.
    LostUpdate,
    /// G-SIa: a transaction wrote a key that had been written since its snapshot.
    ConcurrentWrites,
    /// G-single: a cycle with exactly one read that was overwritten. Read skew is one.
    SingleAnti,
    /// A cycle with several such reads, no two of them in a row (Fekete and others, TODS 2005).
    NonadjacentAnti,
    /// G2-item: a cycle with any such reads. Write skew is one.
    WriteSkew,
    /// G2: a cycle with ranges that had got keys since.
    Phantom,
    /// What it read was not current when it committed: the order of commits is no serial order.
    NotSerial,
}

impl Anomaly {
    /// The weakest level that must not show it.
    pub fn forbidden_from(self) -> Isolation {
        use Anomaly::*;
        match self {
            Garbage | LostWrite | Duplicate | DirtyWrite => Isolation::ReadUncommitted,
            AbortedRead | IntermediateRead | CircularFlow | Internal | IncompatibleOrder | SequenceDisagrees
            | StaleRead => Isolation::ReadCommitted,
            NonRepeatable | Fractured | WrongSnapshot => Isolation::RepeatableRead,
            LostUpdate | ConcurrentWrites | SingleAnti | NonadjacentAnti => Isolation::Snapshot,
            WriteSkew | Phantom | NotSerial => Isolation::Serializable,
        }
    }
}

/// What was found.
#[derive(Default)]
pub struct Report {
    pub counts: BTreeMap<Anomaly, u64>,
    /// The first few of each, told in full.
    pub texts: Vec<String>,
    pub edges: usize,
}

impl Report {
    pub fn add(&mut self, anomaly: Anomaly, text: impl FnOnce() -> String) {
        const TOLD: u64 = 3;
        let count = self.counts.entry(anomaly).or_default();
        *count += 1;
        if *count <= TOLD {
            self.texts.push(format!("{anomaly:?}: {}", text()));
        }
    }

    pub fn has(&self, anomaly: Anomaly) -> bool {
        self.counts.contains_key(&anomaly)
    }

    pub fn is_clean(&self) -> bool {
        self.counts.is_empty()
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{:?}", self.counts)?;
        self.texts.iter().try_for_each(|t| writeln!(f, "{t}"))
    }
}
