//! The isolation levels, as one table. `docs/isolation.md` says which anomalies each level excludes, and why.

/// How much of other transactions a transaction may notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Isolation {
    /// Reads see the newest writes of all transactions, even those of transactions that may yet roll back.
    ReadUncommitted = 0,
    /// Each read sees the data that was committed when the read began.
    ReadCommitted = 1,
    /// All reads see the data that was committed when the transaction began. Writes are not checked: of two transactions that
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
    /// Whether a key that the transaction writes must not have been committed by another one since its snapshot.
    pub check_writes: bool,
    /// Whether plain reads take shared locks, of keys and of ranges.
    pub lock_reads: bool,
    /// Whether writes take exclusive locks when they are made.
    pub lock_writes: bool,
}

const fn optimistic(reads: ReadRule, check_reads: bool, check_writes: bool) -> Rules {
    Rules { reads, check_reads, check_writes, lock_reads: false, lock_writes: false }
}

const fn locking(reads: ReadRule, lock_reads: bool, check_writes: bool) -> Rules {
    Rules { reads, check_reads: false, check_writes, lock_reads, lock_writes: true }
}

/// THE table: the rules of each level, in the order of [`Isolation`], optimistic and locking. In addition, on every level,
/// a key read with `get_for_update` or `get_for_share` must be current at commit if the transaction is optimistic, and is
/// locked if it is locking.
const RULES: [[Rules; 2]; 5] = [
    [optimistic(ReadRule::Uncommitted, false, false), locking(ReadRule::Uncommitted, false, false)],
    [optimistic(ReadRule::Latest, false, false), locking(ReadRule::Latest, false, false)],
    [optimistic(ReadRule::Begin, false, false), locking(ReadRule::Begin, false, false)],
    [optimistic(ReadRule::Begin, false, true), locking(ReadRule::Begin, false, true)],
    [optimistic(ReadRule::Begin, true, true), locking(ReadRule::Latest, true, false)],
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
    pub(crate) const fn rules(self, locking: bool) -> Rules {
        RULES[self as usize][locking as usize]
    }

    /// The name by which options and reports call it.
    pub const fn name(self) -> &'static str {
        ["read-uncommitted", "read-committed", "repeatable-read", "snapshot", "serializable"][self as usize]
    }

    /// The level of a name, in any case and with `-`, `_` or a space between words.
    ///
    /// ```
    /// # use kingtide::{Isolation};
    /// assert_eq!(Isolation::from_name("Repeatable Read"), Some(Isolation::RepeatableRead));
    /// assert_eq!(Isolation::from_name("chaos"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// A stronger level never asks for less, whichever way it is asked.
    #[test]
    fn the_table_ascends() {
        for pair in Isolation::ALL.windows(2) {
            for locks in [false, true] {
                let (a, b) = (pair[0].rules(locks), pair[1].rules(locks));
                let reads_b = if b.lock_reads { ReadRule::Begin } else { b.reads };
                assert!(a.reads as u8 <= reads_b as u8);
                assert!((a.check_reads || a.lock_reads) <= (b.check_reads || b.lock_reads));
                assert!(a.check_writes <= (b.check_writes || b.lock_reads && b.lock_writes));
                assert_eq!((a.lock_writes, b.lock_writes), (locks, locks));
            }
        }
    }
}
