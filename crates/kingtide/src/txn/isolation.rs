//! The isolation levels, as one table. `docs/isolation.md` says which anomalies each level excludes, and why.

/// How much of other transactions a transaction may notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Isolation {
    /// Reads see the newest writes of anyone, even those of transactions that may yet roll back.
    ReadUncommitted = 0,
    /// Each read sees what was committed when it began.
    ReadCommitted = 1,
    /// All reads see what was committed when the transaction began. Writes are not checked: of two transactions that
    /// read a key and then write it, the later commit wins, unless they read it with `get_for_update`.
    RepeatableRead = 2,
    /// As repeatable read, and of two concurrent transactions that write the same key only the first can commit.
    #[default]
    Snapshot = 3,
    /// The result is that of running the transactions one after the other, in the order of their commits.
    Serializable = 4,
}

/// What a transaction's reads see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadRule {
    /// The newest committed version, and what running transactions wrote over it.
    Uncommitted,
    /// The newest committed version at the time of each read.
    Latest,
    /// The versions that were the newest when the transaction began.
    Begin,
}

/// What a level asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// What reads see.
    pub reads: ReadRule,
    /// Whether plain reads, of keys and of ranges, are remembered and must still be current at commit.
    pub check_reads: bool,
    /// Whether a key that the transaction wrote must not have been committed by another one since it began.
    pub check_writes: bool,
}

/// THE table: the rules of each level, in the order of [`Isolation`]. Keys read with `get_for_update` must be current at
/// commit on every level.
const RULES: [Rules; 5] = [
    Rules { reads: ReadRule::Uncommitted, check_reads: false, check_writes: false },
    Rules { reads: ReadRule::Latest, check_reads: false, check_writes: false },
    Rules { reads: ReadRule::Begin, check_reads: false, check_writes: false },
    Rules { reads: ReadRule::Begin, check_reads: false, check_writes: true },
    Rules { reads: ReadRule::Begin, check_reads: true, check_writes: true },
];

impl Isolation {
    /// All levels, weakest first.
    pub const ALL: [Isolation; 5] = [
        Isolation::ReadUncommitted,
        Isolation::ReadCommitted,
        Isolation::RepeatableRead,
        Isolation::Snapshot,
        Isolation::Serializable,
    ];

    #[inline]
    pub(crate) const fn rules(self) -> Rules {
        RULES[self as usize]
    }

    /// The name by which options and reports call it.
    pub const fn name(self) -> &'static str {
        ["read-uncommitted", "read-committed", "repeatable-read", "snapshot", "serializable"][self as usize]
    }

    /// The level of a name, in any case and with `-`, `_` or a space between words.
    pub fn from_name(name: &str) -> Option<Isolation> {
        let wanted = name.trim().to_ascii_lowercase().replace(['_', ' '], "-");
        Isolation::ALL.into_iter().find(|l| l.name() == wanted)
    }

    /// From the byte in a prepare record.
    pub(crate) fn from_u8(byte: u8) -> Option<Isolation> {
        Isolation::ALL.get(byte as usize).copied()
    }
}

impl std::fmt::Display for Isolation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_bytes_read_back() {
        for level in Isolation::ALL {
            assert_eq!(Isolation::from_name(level.name()), Some(level));
            assert_eq!(Isolation::from_name(&level.name().to_uppercase().replace('-', "_")), Some(level));
            assert_eq!(Isolation::from_u8(level as u8), Some(level));
        }
        assert_eq!((Isolation::from_u8(5), Isolation::from_name("chaos")), (None, None));
    }

    /// A stronger level never asks for less.
    #[test]
    fn the_table_ascends() {
        for pair in Isolation::ALL.windows(2) {
            let (a, b) = (pair[0].rules(), pair[1].rules());
            assert!(a.reads as u8 <= b.reads as u8 && a.check_reads <= b.check_reads && a.check_writes <= b.check_writes);
        }
    }
}
