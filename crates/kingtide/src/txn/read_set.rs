//! What a transaction read and must find unchanged at its commit: keys, present or absent, and ranges.

use crate::commit::batch::WriteBatch;
use crate::family::Family;
use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicU64, Ordering};
use kingtide_base::{Kind, SeqNo, TxnId};
use std::ops::Bound;
use std::sync::Arc;

/// Keys past which the check is begun outside the commit lock.
const MANY_KEYS: usize = 256;

/// A key that was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadKey {
    family: u32,
    len: u32,
    pub slot: u16,
    at: usize,
    /// What the read saw: the newest version up to here.
    pub seq: SeqNo,
}

/// Bounds of a range that was read.
pub(crate) type KeyBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The ranges that one iterator has passed over so far. Shared between the iterator, which extends it, and its
/// transaction, which checks it.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub ranges: Vec<KeyBounds>,
    scanned: Arc<AtomicU64>,
}

impl Scan {
    /// Adds a range.
    pub fn push(&mut self, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) {
        let bytes = bound_len(&lower) + bound_len(&upper) + size_of::<KeyBounds>();
        self.scanned.fetch_add(bytes as u64, Ordering::Relaxed);
        self.ranges.push((lower, upper));
    }
}

/// A range of a family, with what its reading saw.
#[derive(Clone, Debug)]
pub(crate) struct ReadRange {
    pub family: Arc<Family>,
    pub lower: Bound<Vec<u8>>,
    pub upper: Bound<Vec<u8>>,
    pub seq: SeqNo,
}

/// The reads of a transaction.
#[derive(Debug, Default)]
pub(crate) struct ReadSet {
    families: Vec<Arc<Family>>,
    keys: Vec<ReadKey>,
    bytes: Vec<u8>,
    scans: Vec<(Arc<Family>, SeqNo, Arc<Mutex<Scan>>)>,
    /// Approximate bytes of the scans' ranges. Iterators add to it.
    scanned: Arc<AtomicU64>,
}

impl ReadSet {
    /// Forgets everything but keeps up to `keep` bytes of memory.
    pub fn reset(&mut self, keep: usize) {
        if self.is_empty() {
            return;
        }
        self.families.clear();
        self.keys.clear();
        self.bytes.clear();
        self.scans.clear();
        self.scanned = Arc::default(); // iterators that still live go on counting for themselves
        self.bytes.shrink_to(keep);
        self.keys.shrink_to(keep / size_of::<ReadKey>());
    }

    /// Returns whether nothing was read.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.scans.is_empty()
    }

    /// Number of keys.
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// Returns the bytes of memory held.
    pub fn memory(&self) -> u64 {
        let keys = self.bytes.capacity() + self.keys.capacity() * size_of::<ReadKey>();
        keys as u64 + self.scanned.load(Ordering::Relaxed) // a statistic
    }

    /// Takes note of a key that was read as of `seq`.
    pub fn add_key(&mut self, family: &Arc<Family>, slot: u16, key: &[u8], seq: SeqNo) {
        let index = match self.families.iter().rposition(|f| Arc::ptr_eq(f, family)) {
            Some(i) => i,
            None => {
                self.families.push(family.clone());
                self.families.len() - 1
            }
        };
        if let Some(last) = self.keys.last()
            && (last.family as usize, last.slot) == (index, slot)
            && self.key_of(last) == key
            && last.seq <= seq
        {
            return; // read again: the older look is the stricter one
        }
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.keys.push(ReadKey { family: index as u32, slot, len: key.len() as u32, at, seq });
    }

    /// A place for the ranges of a new iterator that reads as of `seq`.
    pub fn add_scan(&mut self, family: &Arc<Family>, seq: SeqNo) -> Arc<Mutex<Scan>> {
        let scan = Arc::new(Mutex::new(Scan { ranges: Vec::new(), scanned: self.scanned.clone() }));
        self.scans.push((family.clone(), seq, scan.clone()));
        scan
    }

    /// The keys.
    pub fn keys(&self) -> &[ReadKey] {
        &self.keys
    }

    pub fn key_of(&self, key: &ReadKey) -> &[u8] {
        &self.bytes[key.at..key.at + key.len as usize]
    }

    pub fn family_of(&self, key: &ReadKey) -> &Arc<Family> {
        &self.families[key.family as usize]
    }

    /// Returns whether an iterator was made.
    #[inline]
    pub fn has_ranges(&self) -> bool {
        !self.scans.is_empty()
    }

    /// The ranges read so far.
    pub fn ranges(&self) -> Vec<ReadRange> {
        let mut all = Vec::new();
        for (family, seq, scan) in &self.scans {
            all.extend(scan.lock().ranges.iter().map(|(lower, upper)| ReadRange {
                family: family.clone(),
                lower: lower.clone(),
                upper: upper.clone(),
                seq: *seq,
            }));
        }
        all
    }
}

fn bound_len(bound: &Bound<Vec<u8>>) -> usize {
    match bound {
        Bound::Included(k) | Bound::Excluded(k) => k.len(),
        Bound::Unbounded => 0,
    }
}

/// What a commit must find unchanged.
pub(crate) struct Validation<'a> {
    pub txn: TxnId,
    /// Written keys must not have been committed by another since this; `None` when writes are not checked.
    pub writes_since: Option<SeqNo>,
    /// The writes, when they are not in the batch that is committed: a prepare.
    pub writes: Option<&'a WriteBatch>,
    pub reads: &'a ReadSet,
    /// Ranges read, and ranges deleted if writes are checked.
    pub ranges: Vec<ReadRange>,
}

/// How thorough a check is.
#[derive(Clone, Copy)]
pub(crate) struct Round {
    /// Everything up to here was checked.
    pub checked: SeqNo,
    /// Whether tables may be read.
    pub tables: bool,
}

impl<'a> Validation<'a> {
    /// For a batch whose writes must not have been committed by another since `writes_since`.
    #[inline]
    pub fn new(txn: TxnId, writes_since: Option<SeqNo>, reads: &'a ReadSet, batch: &WriteBatch) -> Validation<'a> {
        let mut ranges = if reads.has_ranges() { reads.ranges() } else { Vec::new() };
        if let Some(seq) = writes_since
            && batch.has_ranges()
        {
            for op in batch.ops().iter().filter(|op| op.kind == Kind::RangeDelete as u8) {
                ranges.push(ReadRange {
                    family: batch.families()[op.family as usize].clone(),
                    lower: Bound::Included(batch.key_of(op).to_vec()),
                    upper: Bound::Excluded(batch.value_of(op).to_vec()),
                    seq,
                });
            }
        }
        Validation { txn, writes_since, writes: None, reads, ranges }
    }

    /// Returns whether it is worth to look outside the commit lock first.
    pub fn is_long(&self, batch: &WriteBatch) -> bool {
        let writes = if self.writes_since.is_some() { self.writes.unwrap_or(batch).len() } else { 0 };
        !self.ranges.is_empty() || self.reads.key_count() + writes > MANY_KEYS
    }
}
