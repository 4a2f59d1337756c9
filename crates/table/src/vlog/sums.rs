//! The checksums of many parts of a file, which may overlap, in one pass over it.
//!
//! The crc of a part follows from those of the bytes before its beginning and before its end ([`crc_of_rest`]). Such sums are kept for every
//! [`STEP`] bytes, so a part costs two short reads besides its share of the pass, however long it is.

use crate::reader::fit;
use kingtide_base::Result;
use kingtide_base::checksum::{crc_append, crc_of_rest};
use kingtide_vfs::File;
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes between two marks.
const STEP: u64 = 4 << 10;
/// Most bytes that are read in one go.
const READ: u64 = 1 << 20;

/// The sums of a pass over a file.
pub(super) struct Sums<'a> {
    file: &'a dyn File,
    /// Where the first mark is.
    from: u64,
    /// The crc of all bytes from where the pass began up to each mark. The marks are [`STEP`] bytes apart.
    marks: VecDeque<u32>,
    buf: Vec<u8>,
}

impl<'a> Sums<'a> {
    /// No pass has begun.
    pub fn new(file: &'a dyn File) -> Sums<'a> {
        Sums { file, from: 0, marks: VecDeque::new(), buf: Vec::new() }
    }

    /// The crc of a part that does not begin before the part that was asked for last. Holds 4 bytes for each [`STEP`] of the part.
    ///
    /// # Errors
    /// `Io`; the file is shorter.
    pub fn of(&mut self, part: Range<u64>) -> Result<u32> {
        let passed = part.start.saturating_sub(self.from) / STEP;
        if passed < self.marks.len() as u64 {
            self.marks.drain(..passed as usize);
            self.from += passed * STEP;
        } else {
            // No part has what lies between, so it is not read.
            (self.from, self.marks) = (part.start, VecDeque::from([0]));
        }
        self.mark_up_to(part.end)?;
        let before = self.sum_to(part.start)?;
        Ok(crc_of_rest(self.sum_to(part.end)?, before, part.end - part.start))
    }

    fn mark_up_to(&mut self, end: u64) -> Result<()> {
        loop {
            let at = self.from + (self.marks.len() as u64 - 1) * STEP;
            let len = (end.saturating_sub(at) / STEP * STEP).min(READ);
            if len == 0 {
                return Ok(());
            }
            let mut sum = self.marks.back().copied().unwrap_or_default();
            for step in read(self.file, &mut self.buf, at..at + len)?.chunks(STEP as usize) {
                sum = crc_append(sum, step);
                self.marks.push_back(sum);
            }
        }
    }

    /// The crc of all bytes from where the pass began up to `at`, which lies behind the first mark and at most [`STEP`] behind the last.
    fn sum_to(&mut self, at: u64) -> Result<u32> {
        let mark = ((at - self.from) / STEP).min(self.marks.len() as u64 - 1);
        let sum = self.marks.get(mark as usize).copied().unwrap_or_default();
        let rest = self.from + mark * STEP..at;
        if rest.is_empty() { Ok(sum) } else { Ok(crc_append(sum, read(self.file, &mut self.buf, rest)?)) }
    }
}

fn read<'b>(file: &dyn File, buf: &'b mut Vec<u8>, part: Range<u64>) -> Result<&'b [u8]> {
    let len = (part.end - part.start) as usize;
    fit(buf, len)?;
    file.read_exact_at(&mut buf[..len], part.start)?;
    Ok(&buf[..len])
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::checksum::crc;
    use kingtide_base::rng::Rng;
    use kingtide_vfs::{Fs, MemFs, OpenMode};

    #[test]
    fn sums_of_parts_are_their_checksums() {
        let mut rng = Rng::new(1);
        let mut bytes = vec![0; 3 << 20];
        rng.fill(&mut bytes);
        let file = MemFs::new().open("f".as_ref(), OpenMode::Create).unwrap();
        file.write_at(&bytes, 0).unwrap();
        for longest in [20, 5_000, 100_000, 2 << 20] {
            let (mut sums, mut start) = (Sums::new(&*file), 0);
            while start < bytes.len() {
                let end = bytes.len().min(start + rng.below(longest) as usize);
                assert_eq!(sums.of(start as u64..end as u64).unwrap(), crc(&bytes[start..end]), "{start}..{end}");
                start += [0, 1, 14, 4_096, 60_000][rng.below(5) as usize] + rng.below(3_000) as usize;
            }
        }
        let size = bytes.len() as u64;
        assert!(Sums::new(&*file).of(size - 5..size + 1).is_err());
    }
}
