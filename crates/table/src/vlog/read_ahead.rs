//! What scans keep of the value logs that they walk through.

use std::ops::Range;

/// Windows into value logs, one for each of those that a scan read from lately: see [`Vlog::read_near`](super::Vlog::read_near).
///
/// The values of one table lie in the order of their keys, in a value log for each flush or merge that wrote them. A scan
/// over tables that were merged therefore walks through several value logs at once, forward in each. A window learns that from
/// two values beside one another, and then reads ever further ahead: at most 256 KiB while there are two windows, and 32 KiB
/// once there are sixteen. A window keeps its buffer, and may hold one value of up to 256 KiB: 4 MiB is the most that all of
/// them can come to.
#[derive(Default)]
pub struct ReadAhead {
    windows: Vec<Window>,
    /// Counts the uses of windows.
    now: u64,
}

/// A part of a value log.
#[derive(Default)]
pub(super) struct Window {
    file_id: u64,
    /// The bytes of the file that `bytes` begins with.
    pub range: Range<u64>,
    pub bytes: Vec<u8>,
    /// Bytes to read at once; 0 until values were seen to lie beside one another.
    span: u64,
    /// The longest span that there is room for.
    longest: u64,
    /// When it was used last.
    used: u64,
}

impl ReadAhead {
    /// The longest span of one window, and values of more bytes are read without one.
    pub(super) const LONGEST: u64 = 256 << 10;
    const SHORTEST: u64 = 32 << 10;
    /// Windows at a time: a scan over more value logs reads the values of some one by one.
    const WINDOWS: usize = 16;
    /// What all windows may read ahead together, once each has read with its present span.
    const TOTAL: u64 = 512 << 10;
    /// Dead bytes between two values that a scan reads over rather than seeking.
    const GAP: u64 = 16 << 10;

    /// The window into a value log, in the place of the one that was not used for the longest time if there are too many.
    pub(super) fn window_of(&mut self, file_id: u64) -> &mut Window {
        self.now += 1;
        let at = match self.windows.iter().position(|w| w.file_id == file_id) {
            Some(at) => at,
            None if self.windows.len() < Self::WINDOWS => {
                self.windows.push(Window { file_id, ..Window::default() });
                self.windows.len() - 1
            }
            None => {
                let oldest = (0..self.windows.len()).min_by_key(|at| self.windows[*at].used).unwrap_or_default();
                let bytes = std::mem::take(&mut self.windows[oldest].bytes);
                self.windows[oldest] = Window { file_id, bytes, ..Window::default() };
                oldest
            }
        };
        let longest = (Self::TOTAL / self.windows.len() as u64).clamp(Self::SHORTEST, Self::LONGEST);
        let window = &mut self.windows[at];
        (window.used, window.longest) = (self.now, longest);
        window
    }
}

impl Window {
    pub fn has(&self, range: &Range<u64>) -> bool {
        self.range.start <= range.start && range.end <= self.range.end
    }

    /// What to read for the value at `range`, of what there is `within` the file: twice as much as last time if the value goes
    /// on where the window ends, or ends where it begins; otherwise the value alone.
    pub fn around(&mut self, range: &Range<u64>, within: Range<u64>) -> Range<u64> {
        let known = !self.range.is_empty();
        let forward = known && self.range.start <= range.start && range.start <= self.range.end + ReadAhead::GAP;
        let backward =
            known && !forward && range.end <= self.range.end && self.range.start <= range.end + ReadAhead::GAP;
        if !(forward || backward) {
            self.span = 0;
            return range.clone();
        }
        self.span = (self.span * 2).clamp(ReadAhead::SHORTEST, self.longest);
        match forward {
            true => range.start..(range.start + self.span).min(within.end).max(range.end),
            false => range.end.saturating_sub(self.span).max(within.start).min(range.start)..range.end,
        }
    }

    /// Forgets what it holds: it is about to be overwritten.
    pub fn clear(&mut self) {
        self.range = 0..0;
    }
}
