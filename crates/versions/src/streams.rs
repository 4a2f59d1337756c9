//! Where streams of ascending or descending keys end.
//!
//! Several writers may each put ascending keys into a region of their own, such as the rows of several tables. A file that holds
//! the newest keys of one region and the oldest of the next overlaps everything that is put into the first region later. A file
//! that ends with its region overlaps none of that, and what comes later is moved down without a merge.
//!
//! The keys alone do not tell: numbers as text have wide gaps wherever a digit is carried. The sequence numbers do. In key order
//! those of an ascending stream rise, up to the newest of all, and where the next stream begins they fall back to those of its
//! oldest key. Numbers in random order almost never look like that, because a stream that has grown to n keys goes on only for
//! keys that are newer than one among its first half.

use kingtide_base::SeqNo;

/// After so many keys a stream asks its next ones to be newer than some that it has: writers that share it, and each put one key
/// at a time, put them out of order.
const FIRST_MARK: u64 = 32;
/// A file ends after a stream of more keys than these, some of which had to be newer than the first: fewer may look like one by
/// chance.
const FEW_KEYS: u64 = 8 * FIRST_MARK;
/// A file ends after a stream that has at least one of so many bytes of what files have otherwise.
const LEAST_PART: u64 = 8;

/// The keys of one stream so far.
struct Stream {
    keys: u64,
    /// The sequence number of a key between a quarter and half of the way: all later ones have greater ones.
    bound: SeqNo,
    /// The sequence number at the last mark: the next bound.
    next_bound: SeqNo,
    /// The number of keys at which the bound rises next; it doubles.
    mark: u64,
}

impl Stream {
    const NONE: Stream = Stream { keys: 0, bound: 0, next_bound: 0, mark: FIRST_MARK };

    /// Takes the next key. If it does not belong to the stream, it begins the next one, and the result is how many keys the
    /// stream had; otherwise 0. Writers that share a stream may put keys out of order, as long as one is not half the stream late.
    #[inline]
    fn step(&mut self, seq: SeqNo) -> u64 {
        let mut ended = 0;
        if seq < self.bound {
            ended = self.keys;
            *self = Stream::NONE;
        }
        self.keys += 1;
        if self.keys == self.mark {
            self.bound = std::mem::replace(&mut self.next_bound, seq);
            self.mark *= 2;
        }
        ended
    }
}

/// Follows the streams in what is written to files in key order.
pub struct Streams {
    rising: Stream,
    falling: Stream,
    /// The number of the last key, and the last one that several keys shared: merges give one number to all that is old, and
    /// ingested tables have one. Such keys do not tell in which order they came.
    last: SeqNo,
    shared: SeqNo,
    /// Bytes of a stream from which a file ends after it.
    least_bytes: u64,
}

impl Streams {
    /// For files that have `file_size` bytes otherwise, and `total` bytes together.
    pub fn new(file_size: u64, total: u64) -> Streams {
        let least_bytes = file_size.min(total) / LEAST_PART;
        let unknown = SeqNo::MAX;
        Streams { rising: Stream::NONE, falling: Stream::NONE, last: unknown, shared: unknown, least_bytes }
    }

    /// Takes the newest sequence number of the next key. Returns how many keys the stream had that ended before it, or 0.
    #[inline]
    pub fn step(&mut self, seq: SeqNo) -> u64 {
        if seq == self.last || seq == self.shared {
            self.shared = seq;
            return 0;
        }
        self.last = seq;
        self.rising.step(seq).max(self.falling.step(SeqNo::MAX - seq))
    }

    /// Whether a file with so many entries and bytes should end with a stream of `keys` keys, which may have begun in an earlier file.
    pub fn end_file(&self, keys: u64, file_entries: u64, file_bytes: u64) -> bool {
        let stream_bytes = keys as u128 * file_bytes as u128 / file_entries.max(1) as u128;
        keys > FEW_KEYS && keys * 2 >= file_entries && stream_bytes >= self.least_bytes as u128
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    /// The places at which files end after a stream, of those that hold keys with these sequence numbers, 2,000 at most.
    fn ends(seqs: impl IntoIterator<Item = SeqNo>) -> Vec<usize> {
        let (mut streams, mut ends, mut begin) = (Streams::new(2_000, 100_000), Vec::new(), 0);
        for (i, seq) in seqs.into_iter().enumerate() {
            let (len, ended) = ((i - begin) as u64, streams.step(seq));
            if streams.end_file(ended, len, len) {
                ends.push(i);
                begin = i;
            } else if len == 2_000 {
                begin = i;
            }
        }
        ends
    }

    /// What several writers put into a region each at the same time, in key order.
    fn regions(count: u64, keys: u64, descending: bool) -> Vec<SeqNo> {
        let region = |r| (0..keys).map(move |i| 1000 + r + if descending { keys - i } else { i } * count);
        (0..count).flat_map(region).collect()
    }

    #[test]
    fn files_end_with_each_region() {
        for (count, keys) in [(2, 3000), (2, 1000), (3, 1001), (7, 300), (20, 260), (3, 4003)] {
            let want: Vec<usize> = (1..count as usize).map(|r| r * keys as usize).collect();
            assert_eq!(ends(regions(count, keys, false)), want, "{count} ascending");
            assert_eq!(ends(regions(count, keys, true)), want, "{count} descending");
        }
    }

    #[test]
    fn writers_that_share_a_region_may_put_keys_out_of_order() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut seqs = regions(3, 2500, false);
            seqs.iter_mut().for_each(|seq| *seq += rng.below(100));
            assert_eq!(ends(seqs), [2500, 5000]);
        }
    }

    #[test]
    fn one_stream_has_no_end() {
        assert_eq!(ends(0..10_000), []);
        assert_eq!(ends((0..10_000).rev()), []);
        // Nor one of whose keys some were written again, or nearly.
        let found: usize = (0..20)
            .map(|seed| {
                let mut rng = Rng::new(seed);
                let again = (0..10_000).map(|i| if rng.one_in(100) { 20_000 + rng.below(100) } else { i });
                ends(again.collect::<Vec<_>>()).len()
            })
            .sum();
        assert!(found < 40, "{found} ends in 200,000 keys");
    }

    #[test]
    fn random_keys_are_no_stream() {
        let found: usize = (0..50)
            .map(|seed| {
                let mut rng = Rng::new(seed);
                ends((0..10_000).map(|_| rng.next_u64() >> 8).collect::<Vec<_>>()).len()
            })
            .sum();
        assert_eq!(found, 0);
    }

    #[test]
    fn keys_with_one_number_are_no_stream() {
        assert_eq!(ends(std::iter::repeat_n(5, 10_000)), []);
        // Nor are the keys of several tables with one each, and newer keys among them.
        let found: usize = (0..50)
            .map(|seed| {
                let mut rng = Rng::new(seed);
                let old = |i: u64| [70, 90, 80, 60, 100][i as usize / 2_000];
                let seqs = (0..10_000).map(|i| if rng.one_in(1_000) { 200 + rng.below(1 << 40) } else { old(i) });
                ends(seqs.collect::<Vec<_>>()).len()
            })
            .sum();
        assert_eq!(found, 0);
    }

    #[test]
    fn no_file_ends_with_a_stream_that_is_too_small() {
        assert_eq!(ends(regions(40, 200, false)), []);
        // Or that is the smaller part of it.
        let mut rng = Rng::new(3);
        let random = (0..700).map(|_| rng.below(1 << 40));
        let seqs: Vec<SeqNo> = random.chain(regions(2, 400, false)).collect();
        assert_eq!(ends(seqs), []);
    }
}
