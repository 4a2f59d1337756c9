//! A file's bytes as copy-on-write chunks, so that a copy costs one reference count.

use std::sync::Arc;

/// Bytes per chunk: a write after a copy was taken copies this much.
const CHUNK: usize = 16 << 10;

/// Bytes with a length. Chunks that were never written are absent and read as zero, so a preallocated file costs nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// May be shorter than the length asks for; every byte at or past `len` in it is zero.
    chunks: Arc<Vec<Option<Arc<Vec<u8>>>>>,
    len: u64,
}

/// The parts of `[offset, offset + len)` that fall into one chunk each: (chunk, offset in the chunk, bytes).
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut at = offset;
    let end = offset + len as u64;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = (at % CHUNK as u64) as usize;
        let n = ((end - at) as usize).min(CHUNK - within);
        let piece = ((at / CHUNK as u64) as usize, within, n);
        at += n as u64;
        Some(piece)
    })
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns how many bytes there were.
    pub(super) fn read(&self, out: &mut [u8], offset: u64) -> usize {
        let there = self.len.saturating_sub(offset).min(out.len() as u64) as usize;
        let mut done = 0;
        for (chunk, within, n) in pieces(offset, there) {
            let to = &mut out[done..done + n];
            match self.chunks.get(chunk) {
                Some(Some(bytes)) => to.copy_from_slice(&bytes[within..within + n]),
                _ => to.fill(0),
            }
            done += n;
        }
        there
    }

    /// Writes, growing the length when needed.
    pub(super) fn write(&mut self, data: &[u8], offset: u64) {
        let end = offset + data.len() as u64;
        let chunks = Arc::make_mut(&mut self.chunks);
        let needed = end.div_ceil(CHUNK as u64) as usize;
        if chunks.len() < needed {
            chunks.resize(needed, None);
        }
        let mut done = 0;
        for (chunk, within, n) in pieces(offset, data.len()) {
            let bytes = chunks[chunk].get_or_insert_with(|| Arc::new(vec![0; CHUNK]));
            Arc::make_mut(bytes)[within..within + n].copy_from_slice(&data[done..done + n]);
            done += n;
        }
        self.len = self.len.max(end);
    }

    /// Makes the part of `[from, to)` below the length zero.
    pub(super) fn zero(&mut self, from: u64, to: u64) {
        let to = to.min(self.len);
        if from >= to {
            return;
        }
        let chunks = Arc::make_mut(&mut self.chunks);
        for (chunk, within, n) in pieces(from, (to - from) as usize) {
            let Some(slot) = chunks.get_mut(chunk) else { break };
            match slot {
                None => {}
                Some(_) if n == CHUNK => *slot = None,
                Some(bytes) => Arc::make_mut(bytes)[within..within + n].fill(0),
            }
        }
    }

    /// Cuts, or extends with zeros.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.zero(len, self.len);
            Arc::make_mut(&mut self.chunks).truncate(len.div_ceil(CHUNK as u64) as usize);
        }
        self.len = len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    /// Against a plain vector, with copies taken on the way that must not change afterwards.
    #[test]
    fn behaves_as_a_vector_and_copies_stand_still() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let (mut content, mut model) = (Content::default(), Vec::<u8>::new());
            let mut copies = Vec::new();
            for _ in 0..60 {
                let at = rng.below(5 * CHUNK as u64) as usize;
                match rng.below(5) {
                    0 | 1 => {
                        let mut data = vec![0; rng.below(2 * CHUNK as u64) as usize];
                        rng.fill(&mut data);
                        if !data.is_empty() {
                            model.resize(model.len().max(at + data.len()), 0);
                            model[at..at + data.len()].copy_from_slice(&data);
                        }
                        if !data.is_empty() {
                            content.write(&data, at as u64);
                        }
                    }
                    2 => {
                        model.resize(at, 0);
                        content.set_len(at as u64);
                    }
                    3 => {
                        let to = (at + rng.below(2 * CHUNK as u64) as usize).min(model.len());
                        if at < to {
                            model[at..to].fill(0);
                        }
                        content.zero(at as u64, to as u64);
                    }
                    _ => copies.push((content.clone(), model.clone())),
                }
            }
            copies.push((content, model));
            for (content, model) in copies {
                assert_eq!(content.len(), model.len() as u64, "seed {seed}");
                let mut all = vec![1; model.len() + 10];
                assert_eq!(content.read(&mut all, 0), model.len());
                assert!(all[..model.len()] == model, "seed {seed}");
            }
        }
    }
}
