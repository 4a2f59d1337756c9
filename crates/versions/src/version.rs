//! A family's tree: levels of runs of files.
//!
//! Invariant 1: files of a run are disjoint in user keys and sorted by them.
//! Invariant 2: for one user key, everything in an earlier run (by level, then by position within the level) is newer
//! than everything in a later run.
//! Invariant 3: runs of a level are ordered newest first, which is by descending run id.

use kingtide_base::{KeyOrder, SeqNo};
use kingtide_table::{TableId, UNSEQUENCED, VlogRef};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Number of levels. Level 0 holds flushed runs; data moves down.
pub const LEVELS: usize = 8;

/// The family that every database has.
pub const DEFAULT_FAMILY: &str = "default";

/// Ids of sorted files have this bit, which no database's own file ids have.
pub const SORTED_FILE: u64 = 1 << 63;

/// What the manifest knows about a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMeta {
    /// File id; names the file.
    pub id: u64,
    /// The run it belongs to. A greater id is a newer run.
    pub run: u64,
    /// Bytes of the key-log file.
    pub size: u64,
    /// Point entries, tombstones included.
    pub entries: u64,
    /// Point tombstones among them.
    pub tombstones: u64,
    /// Range tombstones.
    pub range_tombstones: u64,
    /// Bytes of keys and inline values before compression.
    pub raw_bytes: u64,
    /// Smallest user key, the starts of range tombstones included.
    pub min_key: Vec<u8>,
    /// Largest user key. When it comes from a range tombstone it is that tombstone's exclusive end.
    pub max_key: Vec<u8>,
    /// Oldest sequence number.
    pub min_seq: SeqNo,
    /// Newest sequence number.
    pub max_seq: SeqNo,
    /// Earliest expiry of an entry, Unix milliseconds; 0 when none expires.
    pub min_expiry_ms: u64,
    /// When the file was written, Unix milliseconds; earlier for the output of a compaction with entries that expire, so that it is not
    /// rewritten for each of these.
    pub created_ms: u64,
    /// Value-log bytes referenced, by value log.
    pub vlog_refs: Vec<VlogRef>,
    /// The file id that the file was written under; another than `id` for one that came from elsewhere. Its checksums are
    /// bound to it.
    pub written_as: u64,
    /// The sequence number of all its entries, for a sorted file that was ingested; otherwise 0, and they have their own.
    pub sequence: SeqNo,
    /// Stored bytes of values in value logs that entries of the file hide and that older files still refer to: what will be dead once the
    /// file was compacted into the deepest level. The flush looks it up for each key, or for a sample of many; a compaction subtracts
    /// what it dropped. Values that range tombstones hide or that expired are not in it, nor does a file of a build before this
    /// field state any.
    pub hides: u64,
}

impl FileMeta {
    /// A sorted file that has got no sequence number yet.
    pub fn is_unsequenced(&self) -> bool {
        self.sequence == 0 && self.max_seq == UNSEQUENCED && self.written_as & SORTED_FILE != 0
    }

    /// What its file is opened as.
    pub fn table_id(&self) -> TableId {
        TableId { file_id: self.id, written_as: self.written_as, sequence: self.sequence }
    }

    /// Whether `[lo, hi]` (both inclusive) meets the file's key range. The file's `max_key` counts as one of its keys
    /// even where it is a range tombstone's exclusive end, so the answer may be yes for files that merely touch.
    pub fn overlaps(&self, order: &KeyOrder, lo: &[u8], hi: &[u8]) -> bool {
        order.compare(&self.min_key, hi) != Ordering::Greater && order.compare(&self.max_key, lo) != Ordering::Less
    }

    /// Value-log bytes referenced in all.
    pub fn vlog_bytes(&self) -> u64 {
        self.vlog_refs.iter().map(|r| r.bytes).sum()
    }
}

/// A sorted run: disjoint files in key order.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Run {
    /// Run id; a greater one is newer.
    pub id: u64,
    /// The files, by ascending key.
    pub files: Vec<Arc<FileMeta>>,
}

impl Run {
    /// Bytes of the run's key logs.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|f| f.size).sum()
    }

    /// Index of the first file whose largest key is not below `key`; `files.len()` when there is none.
    pub fn find(&self, order: &KeyOrder, key: &[u8]) -> usize {
        self.files.partition_point(|f| order.compare(&f.max_key, key) == Ordering::Less)
    }

    /// The files that meet `[lo, hi]`, both inclusive.
    pub fn overlapping<'a>(
        &'a self,
        order: &'a KeyOrder,
        lo: &'a [u8],
        hi: &'a [u8],
    ) -> impl Iterator<Item = &'a Arc<FileMeta>> {
        let from = self.find(order, lo);
        self.files[from..].iter().take_while(move |f| order.compare(&f.min_key, hi) != Ordering::Greater)
    }
}

/// An immutable snapshot of a family's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// `levels[l]`: runs, newest first.
    pub levels: Vec<Vec<Run>>,
}

impl Default for Version {
    fn default() -> Self {
        Version { levels: vec![Vec::new(); LEVELS] }
    }
}

impl Version {
    /// All runs with their level, newest data first.
    pub fn runs(&self) -> impl Iterator<Item = (usize, &Run)> {
        self.levels.iter().enumerate().flat_map(|(l, runs)| runs.iter().map(move |r| (l, r)))
    }

    /// All files with their level.
    pub fn files(&self) -> impl Iterator<Item = (usize, &Arc<FileMeta>)> {
        self.runs().flat_map(|(l, r)| r.files.iter().map(move |f| (l, f)))
    }

    /// Bytes of key logs at a level.
    pub fn level_size(&self, level: usize) -> u64 {
        self.levels[level].iter().map(Run::size).sum()
    }

    /// Stored bytes of values in value logs that newer entries hide and that files still refer to: the sum over all files with older ones
    /// below them. O(files).
    pub fn hidden_bytes(&self) -> u64 {
        let above = 0..self.deepest().max(1);
        let hides = |l: usize| self.levels[l].iter().flat_map(|r| &r.files).map(|f| f.hides);
        above.flat_map(hides).fold(0, u64::saturating_add)
    }

    /// Those of them that count against the cap on dead space: all beyond the bytes of the tables, so that no compaction
    /// rewrites more for them than it frees.
    pub fn counted_hidden_bytes(&self) -> u64 {
        self.hidden_bytes().saturating_sub(self.files().map(|(_, f)| f.size).sum())
    }

    /// The deepest level that holds anything; 0 for an empty tree.
    pub fn deepest(&self) -> usize {
        self.levels.iter().rposition(|runs| !runs.is_empty()).unwrap_or(0)
    }

    /// Adds a file to its run, creating the run where its id sorts. O(files of the run). The caller keeps the invariants.
    pub fn add(&mut self, order: &KeyOrder, level: usize, file: Arc<FileMeta>) {
        let runs = &mut self.levels[level];
        let at = match runs.iter().position(|r| r.id <= file.run) {
            Some(i) if runs[i].id == file.run => i,
            Some(i) => {
                runs.insert(i, Run { id: file.run, files: Vec::new() });
                i
            }
            None => {
                runs.push(Run { id: file.run, files: Vec::new() });
                runs.len() - 1
            }
        };
        let files = &mut runs[at].files;
        let pos = files.partition_point(|f| order.compare(&f.min_key, &file.min_key) == Ordering::Less);
        files.insert(pos, file);
    }

    /// Removes a file; false if the level does not hold it.
    pub fn remove(&mut self, level: usize, id: u64) -> bool {
        let runs = &mut self.levels[level];
        for i in 0..runs.len() {
            if let Some(pos) = runs[i].files.iter().position(|f| f.id == id) {
                runs[i].files.remove(pos);
                if runs[i].files.is_empty() {
                    runs.remove(i);
                }
                return true;
            }
        }
        false
    }

    /// The ids of files that end before their `max_key`. It is then the exclusive end of a range tombstone, and
    /// metadata tells so when the next file of the run begins with that key, because files of a run are disjoint. Of
    /// other files the metadata does not tell, and their `max_key` counts as theirs. O(files).
    pub fn open_ends(&self, order: &KeyOrder) -> BTreeSet<u64> {
        let neighbours = self.runs().flat_map(|(_, run)| run.files.windows(2));
        let meet = |w: &&[Arc<FileMeta>]| {
            w[0].range_tombstones > 0 && order.compare(&w[0].max_key, &w[1].min_key) == Ordering::Equal
        };
        neighbours.filter(meet).map(|w| w[0].id).collect()
    }

    /// Checks the invariants that can be seen from metadata; of keys nothing if their order is not known. O(files).
    ///
    /// # Errors
    /// A message that names the level and the files.
    pub fn check(&self, order: &KeyOrder) -> Result<(), String> {
        for (level, runs) in self.levels.iter().enumerate() {
            if runs.windows(2).any(|w| w[0].id <= w[1].id) {
                return Err(format!("level {level}: runs out of order"));
            }
            for run in runs.iter().filter(|_| order.is_known()) {
                if let Some(f) = run.files.iter().find(|f| order.compare(&f.min_key, &f.max_key).is_gt()) {
                    return Err(format!(
                        "level {level}: the smallest key of file {} sorts after its largest one: the key order may not be the one that \
                         it was written in",
                        f.id
                    ));
                }
                for w in run.files.windows(2) {
                    // They may meet in a key only where the first ends with a range tombstone's exclusive end.
                    let (met, may_meet) = (order.compare(&w[0].max_key, &w[1].min_key), w[0].range_tombstones > 0);
                    if met == Ordering::Greater || (met == Ordering::Equal && !may_meet) {
                        return Err(format!("level {level}: files {} and {} overlap", w[0].id, w[1].id));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Files that a change left behind.
#[derive(Debug, Default)]
pub struct Retired {
    /// File ids of tables.
    pub tables: Vec<u64>,
    /// File ids of value logs, each with the bytes of the file.
    pub vlogs: Vec<(u64, u64)>,
}

impl Retired {
    /// Takes over what `other` has.
    pub fn append(&mut self, other: &mut Retired) {
        self.tables.append(&mut other.tables);
        self.vlogs.append(&mut other.vlogs);
    }
}
