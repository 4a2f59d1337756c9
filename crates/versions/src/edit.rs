//! The changes of what a database consists of, of which the manifest is a list.

use crate::version::FileMeta;
use crate::vlogs::VlogMeta;
use kingtide_base::{FamilyId, SeqNo};
use std::sync::Arc;

/// The sequence number from which on recovery cannot do without the log, as a replay of the log takes it, from the
/// manifest's log start.
///
/// Where the manifest names none, nothing was released: the log begins with the first operation. Where `exact` is false, a
/// build wrote it that let the number fall below segments that it had released, so nothing can be required: a segment
/// that is missing at the beginning was released, because a release came only after a manifest record that allowed it.
pub fn required_log_start(log_start: SeqNo, exact: bool) -> SeqNo {
    if exact || log_start == 0 { log_start.max(1) } else { 0 }
}

/// One change of what a database consists of. A manifest record is a list of edits that apply together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// A family came into being.
    CreateFamily {
        /// Its id.
        id: FamilyId,
        /// Its name.
        name: String,
        /// Its key order's name.
        order: String,
        /// Its options, by name.
        options: Vec<(String, String)>,
        /// See [`FamilyState::direct_from`](crate::FamilyState::direct_from); `None` where the options say it.
        direct_from: Option<u64>,
    },
    /// A family and all its files are gone.
    DropFamily {
        /// Its id.
        id: FamilyId,
    },
    /// A family has another name.
    RenameFamily {
        /// Its id.
        id: FamilyId,
        /// The new name.
        name: String,
    },
    /// A family's options changed.
    SetOptions {
        /// Its id.
        id: FamilyId,
        /// All of its options, by name.
        options: Vec<(String, String)>,
    },
    /// A table joined a level.
    AddFile {
        /// The family.
        family: FamilyId,
        /// The level.
        level: u8,
        /// The table.
        meta: Arc<FileMeta>,
    },
    /// A table left a level.
    RemoveFile {
        /// The family.
        family: FamilyId,
        /// The level.
        level: u8,
        /// The table's file id.
        id: u64,
    },
    /// Everything of a family up to a sequence number is in tables.
    Flushed {
        /// The family.
        family: FamilyId,
        /// The sequence number.
        seq: SeqNo,
    },
    /// A value log exists.
    AddVlog {
        /// The family it belongs to.
        family: FamilyId,
        /// The value log.
        meta: VlogMeta,
    },
    /// A value log is gone.
    RemoveVlog {
        /// Its file id.
        id: u64,
    },
    /// File ids below this are taken.
    NextFileId(u64),
    /// Sequence numbers up to this are taken.
    LastSeq(SeqNo),
    /// Family ids below this are taken.
    NextFamilyId(FamilyId),
    /// Operations below this sequence number are in tables, so the log need not reach back further. Never falls.
    LogStart(SeqNo),
    /// The same, and the log begins with a segment: those with smaller ids are given up together, so a power cut may bring any of
    /// them back. Never falls.
    LogStartIn {
        /// The sequence number.
        seq: SeqNo,
        /// The id of the first segment, whose name is durable.
        segment: u64,
    },
    /// The log goes on in this segment. Until the machine restarts, it or a later one is there.
    LogBegun(LogBegun),
}

/// How an open began its part of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBegun {
    /// The first segment's file id.
    pub segment: u64,
    /// The machine's boot in which it was begun.
    pub boot_id: [u8; 16],
    /// The option `change_retention` of that open. Absent in databases of builds that did not store it.
    pub change_retention: Option<u64>,
}

impl Edit {
    /// The log start that this edit sets.
    pub fn log_start(&self) -> Option<SeqNo> {
        match self {
            Edit::LogStart(seq) | Edit::LogStartIn { seq, .. } => Some(*seq),
            _ => None,
        }
    }

    /// The highest sequence number that this edit shows to have been given out; 0 if it shows none.
    ///
    /// A table's or a family's number counts even after the table or the family has gone, so it is part of the sum of the
    /// edits and a rewritten manifest repeats it as [`Edit::LastSeq`].
    pub fn last_seq(&self) -> SeqNo {
        match self {
            Edit::AddFile { meta, .. } => meta.max_seq,
            Edit::Flushed { seq, .. } | Edit::LastSeq(seq) => *seq,
            // The numbers below it were given out, even if a power cut took the log records that had the last of them.
            // Without this they would be given out again, and the log that holds them could be released at once.
            Edit::LogStart(seq) | Edit::LogStartIn { seq, .. } => seq.saturating_sub(1),
            _ => 0,
        }
    }
}
