//! Sums over the files of a run, so that a range of files is summed by two look-ups.

use kingtide_versions::FileMeta;
use std::ops::Sub;

/// What some tables hold together, as their metadata says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Files.
    pub files: u64,
    /// Point entries, tombstones included.
    pub entries: u64,
    /// Point tombstones among them.
    pub tombstones: u64,
    /// Range tombstones.
    pub range_tombstones: u64,
    /// Bytes of keys and inline values before compression.
    pub raw_bytes: u64,
    /// Stored bytes of the values in value logs.
    pub vlog_bytes: u64,
    /// Bytes of the key-log files.
    pub size: u64,
}

impl Totals {
    /// Of one file.
    pub fn of(meta: &FileMeta) -> Totals {
        Totals {
            files: 1,
            entries: meta.entries,
            tombstones: meta.tombstones,
            range_tombstones: meta.range_tombstones,
            raw_bytes: meta.raw_bytes,
            vlog_bytes: meta.vlog_bytes(),
            size: meta.size,
        }
    }

    /// For each file, and for the end: the sum of all files before.
    pub fn running<'a>(files: impl Iterator<Item = &'a FileMeta>) -> Box<[Totals]> {
        let mut sum = Totals::default();
        let mut all = vec![sum];
        for meta in files {
            sum.add(&Totals::of(meta));
            all.push(sum);
        }
        all.into()
    }

    /// Adds others.
    pub fn add(&mut self, other: &Totals) {
        self.files += other.files;
        self.entries += other.entries;
        self.tombstones += other.tombstones;
        self.range_tombstones += other.range_tombstones;
        self.raw_bytes += other.raw_bytes;
        self.vlog_bytes += other.vlog_bytes;
        self.size += other.size;
    }

    /// A share of them. Files and range tombstones, whose places are not known, are counted whole.
    pub fn share(&self, share: f64) -> Totals {
        let part = |n: u64| (n as f64 * share).round() as u64;
        Totals {
            entries: part(self.entries),
            tombstones: part(self.tombstones),
            raw_bytes: part(self.raw_bytes),
            vlog_bytes: part(self.vlog_bytes),
            size: part(self.size),
            ..*self
        }
    }
}

impl Sub for Totals {
    type Output = Totals;

    /// What is left of a running sum without an earlier one.
    fn sub(self, earlier: Totals) -> Totals {
        Totals {
            files: self.files - earlier.files,
            entries: self.entries - earlier.entries,
            tombstones: self.tombstones - earlier.tombstones,
            range_tombstones: self.range_tombstones - earlier.range_tombstones,
            raw_bytes: self.raw_bytes - earlier.raw_bytes,
            vlog_bytes: self.vlog_bytes - earlier.vlog_bytes,
            size: self.size - earlier.size,
        }
    }
}
