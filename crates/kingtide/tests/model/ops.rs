//! The operations that a script is made of. They name families, snapshots, iterators and transactions by slot, and hold
//! nothing that depends on options.

use kingtide::Isolation;
use std::fmt;
use std::ops::{Bound, Deref};
use std::sync::Arc;

pub const FAMILIES: usize = 5;
pub const SNAPSHOTS: usize = 6;
pub const CURSORS: usize = 4;
/// Transactions that run among other operations. One more slot is for those that run by themselves.
pub const HELD: usize = 2;

/// A value; shown by its length.
#[derive(Clone)]
pub struct Value(pub Arc<[u8]>);

impl Deref for Value {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes #{:08x}", self.len(), kingtide_base::hash::hash64(self) as u32)
    }
}

/// A key; shown as text.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub Vec<u8>);

impl Deref for Key {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'", self.escape_ascii())
    }
}

#[derive(Clone, Debug)]
pub enum Change {
    /// With milliseconds to live, if it does not take its family's.
    Put(Key, Value, Option<u64>),
    Delete(Key),
    SingleDelete(Key),
    DeleteRange(Key, Key),
    DeletePrefix(Key),
}

#[derive(Clone, Debug)]
pub struct Write {
    pub family: usize,
    pub change: Change,
}

/// A move of an iterator.
#[derive(Clone, Debug)]
pub enum Move {
    First,
    Last,
    Seek(Key),
    SeekForPrev(Key),
    Next,
    Prev,
}

/// What an iterator shows.
#[derive(Clone, Debug)]
pub struct Range {
    pub family: usize,
    pub lower: Bound<Key>,
    pub upper: Bound<Key>,
    pub prefix: Option<Key>,
}

#[derive(Clone, Debug)]
pub enum TxnOp {
    Write(Write),
    Get(usize, Key),
    MultiGet(usize, Vec<Key>),
    Iterate(Range, Vec<Move>),
    Savepoint(u8),
    RollbackTo(u8),
    Release(u8),
}

#[derive(Clone, Debug)]
pub enum Op {
    Write(Write),
    Batch(Vec<Write>),
    Get(usize, Key),
    /// In every way in which one key can be read.
    GetInAllWays(usize, Key),
    MultiGet(usize, Vec<Key>),
    /// Moves over a range, now or at a snapshot.
    Iterate(Range, Option<usize>, Vec<Move>),
    Snapshot(usize),
    DropSnapshot(usize),
    GetAt(usize, usize, Key),
    /// So many commits ago, without a snapshot that was held since; may be refused as too old.
    GetBefore(u64, usize, Key),
    Hold(usize, Range, Option<usize>),
    MoveHeld(usize, Vec<Move>),
    Refresh(usize),
    DropHeld(usize),
    Begin(usize, Isolation, bool),
    InTxn(usize, TxnOp),
    Commit(usize),
    Rollback(usize),
    /// A transaction that is prepared, perhaps left in doubt over a reopening, and then committed or rolled back.
    Doubt {
        writes: Vec<Write>,
        reopen: bool,
        commit: bool,
    },
    Advance(u64),
    Flush(Option<usize>),
    Compact(usize, Option<Key>, Option<Key>),
    /// Slot, name, index of the order among the class's, time to live.
    CreateFamily(usize, String, usize, u64),
    DropFamily(usize),
    RenameFamily(usize, String),
    SetTtl(usize, u64),
    /// Background work, changes of live options: whatever must not change an answer.
    Housekeeping,
    Reopen,
    /// A checkpoint or a backup is made, opened, and scanned.
    Copy,
    /// Opened for reading only beside the writer: the values of some keys.
    ReadOnly(usize, Vec<Key>),
    /// Everything, at a snapshot or now.
    Scan(Option<usize>),
}

impl Op {
    /// For counting.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Write(w) => match w.change {
                Change::Put(_, _, None) => "put",
                Change::Put(..) => "put_ttl",
                Change::Delete(_) => "delete",
                Change::SingleDelete(_) => "single_delete",
                Change::DeleteRange(..) => "delete_range",
                Change::DeletePrefix(_) => "delete_prefix",
            },
            Op::Batch(_) => "batch",
            Op::Get(..) => "get",
            Op::GetInAllWays(..) => "get in all ways",
            Op::MultiGet(..) => "multi_get",
            Op::Iterate(..) => "iterator",
            Op::Snapshot(_) | Op::DropSnapshot(_) => "snapshot",
            Op::GetAt(..) => "get at snapshot",
            Op::GetBefore(..) => "get at sequence",
            Op::Hold(..) | Op::MoveHeld(..) | Op::Refresh(_) | Op::DropHeld(_) => "held iterator",
            Op::Begin(..) | Op::InTxn(..) => "in transaction",
            Op::Commit(_) | Op::Rollback(_) => "transaction",
            Op::Doubt { .. } => "two-phase",
            Op::Advance(_) => "clock",
            Op::Flush(_) => "flush",
            Op::Compact(..) => "compact",
            Op::CreateFamily(..) | Op::DropFamily(_) | Op::RenameFamily(..) => "family change",
            Op::SetTtl(..) => "set ttl",
            Op::Housekeeping => "housekeeping",
            Op::Reopen => "reopen",
            Op::Copy => "copy",
            Op::ReadOnly(..) => "read-only open",
            Op::Scan(_) => "scan",
        }
    }
}
