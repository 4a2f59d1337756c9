//! Thresholds that production never changes and tests do, to make rare paths common.
use kingtide_base::rng::Rng;
use kingtide_table::block::{MAX_RESTART_INTERVAL, RESTART_INTERVAL};
use kingtide_versions::ManifestLimits;

/// Thresholds of the engine. The defaults are what every real database has. Tests draw others at random, so that paths which
/// a normal run takes once in hours are taken all the time (see [`kingtide_base::rare`](mod@kingtide_base::rare)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Bytes of a manifest below which it is not rewritten.
    pub manifest_rewrite: u64,
    /// Edits in one record of a manifest's snapshot, at least 1.
    pub snapshot_edits: usize,
    /// Bytes of a log segment, a multiple of 4 KiB; `None`: the option `wal_segment_size`.
    pub segment_size: Option<u64>,
    /// Bytes of the first log segments after an open, if that is less: those after them grow.
    pub first_segment: u64,
    /// Released log segments that are kept for reuse.
    pub free_segments: usize,
    /// Bytes of a spare log segment that are filled with zeros at a time.
    pub prefill_piece: u64,
    /// Input bytes between a compaction's checks for cancellation and throttling.
    pub poll_interval: usize,
    /// Input bytes from which on a compaction is split into key ranges that run at once.
    pub split_from: u64,
    /// Bytes of tables from which on a database keeps a reserve for a full disk.
    pub reserve_from: u64,
    /// Free bytes of the disk below which it does so.
    pub reserve_below: u64,
    /// Bytes that a range deletion must free to be worth a job of its own.
    pub reclaim_from: u64,
    /// Pieces of memory, of 2 MiB or a large entry each, that a memtable may take; one that has as many is sealed whatever
    /// its size.
    pub memtable_pieces: usize,
    /// Bytes at which a value log that commits write is followed by another.
    pub direct_log_size: u64,
    /// Bytes of such values that a memtable points to before it is sealed; `None`: eight times its size, and 256 MiB at
    /// least.
    pub direct_memtable_bytes: Option<u64>,
    /// A value that is written in pieces is kept in memory up to so many bytes, and goes to a value log beyond them.
    pub staged_from: u64,
    /// A value of so many bytes that is put by itself is written from where the caller has it, without a copy.
    pub uncopied_from: u64,
    /// Entries from one restart point of a table's block to the next, rounded to a power of two; with 1 tables have format 1.
    pub restart_interval: usize,
    /// Write the file `LOG` on file systems of the caller's own too; never drawn at random.
    pub info_log: bool,
    /// So many background threads can be started, as if the system had no more; never drawn at random.
    pub thread_limit: Option<usize>,
}

impl Default for Tuning {
    fn default() -> Self {
        let manifest = ManifestLimits::default();
        Tuning {
            manifest_rewrite: manifest.rewrite,
            snapshot_edits: manifest.snapshot_edits,
            segment_size: None,
            first_segment: 64 << 10,
            free_segments: 4,
            prefill_piece: 256 << 10,
            poll_interval: 32 << 10,
            split_from: 8 << 20,
            reserve_from: 16 << 20,
            reserve_below: 8 << 30, // more than is written in the quarter of a second between two looks
            reclaim_from: 256 << 10,
            memtable_pieces: usize::MAX, // as many as there can be
            direct_log_size: 64 << 20,
            staged_from: 1 << 20,
            uncopied_from: 256 << 10,
            direct_memtable_bytes: None,
            restart_interval: RESTART_INTERVAL,
            info_log: false,
            thread_limit: None,
        }
    }
}

impl Tuning {
    /// Small thresholds, drawn from `seed`; each has its production value in one draw of four.
    pub fn random(seed: u64) -> Tuning {
        let mut rng = Rng::new(seed ^ 0x7475_6e69_6e67);
        let usual = Tuning::default();
        let mut draw = |from: u64, to: u64, production: u64| match rng.below(4) {
            0 => production,
            _ => from << rng.below(u64::from((to / from).ilog2()) + 1),
        };
        Tuning {
            manifest_rewrite: draw(256, 64 << 10, usual.manifest_rewrite),
            snapshot_edits: draw(1, 64, usual.snapshot_edits as u64) as usize,
            segment_size: Some(draw(4 << 10, 64 << 10, 0)).filter(|size| *size > 0),
            free_segments: draw(1, 8, usual.free_segments as u64) as usize - 1,
            prefill_piece: draw(4 << 10, 64 << 10, usual.prefill_piece),
            poll_interval: draw(256, 16 << 10, usual.poll_interval as u64) as usize,
            split_from: draw(4 << 10, 1 << 20, usual.split_from),
            reserve_from: draw(64 << 10, 8 << 20, usual.reserve_from),
            reclaim_from: draw(1 << 10, 64 << 10, usual.reclaim_from),
            memtable_pieces: draw(64, 256, usual.memtable_pieces as u64) as usize,
            first_segment: draw(4 << 10, 64 << 10, usual.first_segment), // then as added, so that seeds draw the rest as before
            direct_log_size: draw(256, 64 << 10, usual.direct_log_size),
            direct_memtable_bytes: Some(draw(1 << 10, 64 << 10, 0)).filter(|bytes| *bytes > 0),
            staged_from: draw(256, 64 << 10, usual.staged_from),
            uncopied_from: draw(256, 64 << 10, usual.uncopied_from),
            restart_interval: draw(1, MAX_RESTART_INTERVAL as u64, usual.restart_interval as u64) as usize,
            reserve_below: draw(1 << 60, 1 << 62, usual.reserve_below), // a disk in memory has 2^50 bytes
            info_log: false,
            thread_limit: None,
        }
    }

    pub(crate) fn manifest_limits(&self) -> ManifestLimits {
        ManifestLimits { rewrite: self.manifest_rewrite, snapshot_edits: self.snapshot_edits.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::Tuning;
    use kingtide_table::block::{MAX_RESTART_INTERVAL, RESTART_INTERVAL};

    #[test]
    fn random_thresholds_are_usable_and_reach_their_ends() {
        let drawn: Vec<Tuning> = (0..400).map(Tuning::random).collect();
        for t in &drawn {
            assert!(t.snapshot_edits > 0 && t.prefill_piece > 0 && t.poll_interval > 0 && t.split_from > 0);
            assert!(t.segment_size.is_none_or(|s| s % 4096 == 0 && (4096..=65536).contains(&s)));
            assert_eq!(*t, Tuning::random(drawn.iter().position(|d| d == t).unwrap() as u64));
        }
        for end in [256, 64 << 10, Tuning::default().manifest_rewrite] {
            assert!(drawn.iter().any(|t| t.manifest_rewrite == end), "{end}");
        }
        for interval in [1, RESTART_INTERVAL, MAX_RESTART_INTERVAL] {
            assert!(drawn.iter().any(|t| t.restart_interval == interval), "{interval}");
        }
        assert!(drawn.iter().any(|t| t.free_segments == 0) && drawn.iter().any(|t| t.segment_size.is_none()));
    }
}
