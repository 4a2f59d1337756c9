//! The inputs of a merge in one order: a loser tree (Knuth, TAOCP vol. 3, 5.4.1) over key heads and source numbers.
//!
//! Most comparisons are decided by the 8-byte heads that lie beside each other in one array. A source that stays smallest
//! is compared with the runner-up alone, so that runs that hardly overlap merge at the cost of a copy.

use kingtide_base::{KeyOrder, Result, Tag};
use kingtide_mem::MemIter;
use kingtide_table::{IterOptions, Table, TableIter};
use kingtide_versions::FileMeta;
use std::cmp::Ordering;
use std::sync::Arc;

/// Opens an input table.
pub type OpenTable<'a> = &'a (dyn Fn(&FileMeta) -> Result<Arc<Table>> + Sync);

/// One sorted input.
pub enum Source<'a> {
    /// A memtable.
    Mem(MemIter),
    /// Files of one run, one after the other.
    Run(RunSource<'a>),
}

/// Reads the files of a run in key order, opening each when its turn comes.
pub struct RunSource<'a> {
    open: OpenTable<'a>,
    /// Files still to come, in reverse.
    files: Vec<Arc<FileMeta>>,
    iter: Option<TableIter>,
}

impl<'a> RunSource<'a> {
    /// A source over `files`, which are disjoint and by ascending key.
    pub fn new(open: OpenTable<'a>, mut files: Vec<Arc<FileMeta>>) -> RunSource<'a> {
        files.reverse();
        RunSource { open, files, iter: None }
    }

    fn valid(&self) -> bool {
        self.iter.as_ref().is_some_and(TableIter::valid)
    }

    /// Opens files until one has an entry from `lo` on.
    fn next_file(&mut self, lo: Option<&[u8]>) -> Result<()> {
        while !self.valid() {
            let Some(file) = self.files.pop() else {
                self.iter = None;
                return Ok(());
            };
            let mut iter = (self.open)(&file)?.iter(IterOptions { fill_cache: false, readahead: true });
            match lo {
                Some(lo) => iter.seek(lo, Tag(u64::MAX))?,
                None => iter.first()?,
            }
            self.iter = Some(iter);
        }
        Ok(())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        let Some(iter) = &mut self.iter else { return Ok(()) };
        iter.next()?;
        if iter.valid() { Ok(()) } else { self.next_file(None) }
    }
}

impl Source<'_> {
    fn start(&mut self, lo: Option<&[u8]>) -> Result<()> {
        match self {
            Source::Mem(m) => match lo {
                Some(lo) => m.seek(lo, Tag(u64::MAX)),
                None => m.first(),
            },
            Source::Run(r) => r.next_file(lo)?,
        }
        Ok(())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        match self {
            Source::Mem(m) => {
                m.next();
                Ok(())
            }
            Source::Run(r) => r.next(),
        }
    }

    /// The head of the current key; `None` at the end.
    #[inline]
    fn head(&self) -> Option<u64> {
        match self {
            Source::Mem(m) => m.valid().then(|| m.head()),
            Source::Run(r) => r.iter.as_ref().filter(|i| i.valid()).map(TableIter::head),
        }
    }

    /// The current entry; empty at the end.
    #[inline]
    fn entry(&self) -> (&[u8], Tag, &[u8]) {
        match self {
            Source::Mem(m) => (m.key(), m.tag(), m.value()),
            Source::Run(r) => r.iter.as_ref().map_or((&[], Tag(0), &[]), |i| (i.key(), i.tag(), i.value())),
        }
    }
}

/// How often a source must win in a row before its runner-up is looked up.
const STREAK: u32 = 2;

/// All inputs in order.
pub struct Merged<'a> {
    order: KeyOrder,
    sources: Vec<Source<'a>>,
    /// Head of each source's current key; `u64::MAX` at its end.
    heads: Vec<u64>,
    live: Vec<bool>,
    /// Node `n`'s loser; its children are `2n` and `2n + 1`, and source `s` is leaf `s + sources.len()`.
    losers: Vec<usize>,
    winner: usize,
    streak: u32,
    runner_up: Option<usize>,
}

impl<'a> Merged<'a> {
    /// Positions all sources at `lo` or their beginning.
    pub fn new(order: &KeyOrder, mut sources: Vec<Source<'a>>, lo: Option<&[u8]>) -> Result<Merged<'a>> {
        for source in &mut sources {
            source.start(lo)?;
        }
        let k = sources.len();
        let mut merged = Merged {
            order: order.clone(),
            heads: sources.iter().map(|s| s.head().unwrap_or(u64::MAX)).collect(),
            live: sources.iter().map(|s| s.head().is_some()).collect(),
            losers: vec![0; k],
            winner: 0,
            streak: 0,
            runner_up: None,
            sources,
        };
        if k > 1 {
            merged.winner = merged.play(1);
        }
        Ok(merged)
    }

    /// Plays the matches below a node; the losers stay, the winner is returned. Depth is log2 of the sources.
    fn play(&mut self, node: usize) -> usize {
        let k = self.sources.len();
        if node >= k {
            return node - k;
        }
        let (a, b) = (self.play(2 * node), self.play(2 * node + 1));
        let (winner, loser) = if self.less(b, a) { (b, a) } else { (a, b) };
        self.losers[node] = loser;
        winner
    }

    /// Head and entry of the smallest source; `None` when all are at their end.
    #[inline]
    pub fn current(&self) -> Option<(u64, &[u8], Tag, &[u8])> {
        if !*self.live.get(self.winner)? {
            return None;
        }
        let (key, tag, value) = self.sources[self.winner].entry();
        Some((self.heads[self.winner], key, tag, value))
    }

    /// Moves past the current entry.
    #[inline]
    pub fn advance(&mut self) -> Result<()> {
        let w = self.winner;
        self.sources[w].next()?;
        match self.sources[w].head() {
            Some(head) => self.heads[w] = head,
            None => (self.heads[w], self.live[w]) = (u64::MAX, false),
        }
        if self.sources.len() == 1 || self.runner_up.is_some_and(|r| self.less(w, r)) {
            return Ok(());
        }
        self.replay(w);
        Ok(())
    }

    fn replay(&mut self, start: usize) {
        let mut winner = start;
        let mut node = (start + self.sources.len()) / 2;
        while node > 0 {
            if self.less(self.losers[node], winner) {
                std::mem::swap(&mut self.losers[node], &mut winner);
            }
            node /= 2;
        }
        self.streak = if winner == start { self.streak + 1 } else { 0 };
        self.winner = winner;
        self.runner_up = (self.streak >= STREAK).then(|| self.second(winner));
    }

    /// The smallest of those that lost against the winner, all of them on its path.
    fn second(&self, winner: usize) -> usize {
        let mut node = (winner + self.sources.len()) / 2;
        let mut best = self.losers[node];
        while node > 1 {
            node /= 2;
            if self.less(self.losers[node], best) {
                best = self.losers[node];
            }
        }
        best
    }

    #[inline]
    fn less(&self, a: usize, b: usize) -> bool {
        match self.heads[a].cmp(&self.heads[b]) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => self.less_slow(a, b),
        }
    }

    /// Equal heads: a source at its end is last; then the key decides, then the newer tag, then the newer source.
    fn less_slow(&self, a: usize, b: usize) -> bool {
        if !self.live[a] || !self.live[b] {
            return self.live[a];
        }
        let ((ka, ta, _), (kb, tb, _)) = (self.sources[a].entry(), self.sources[b].entry());
        self.order.compare(ka, kb).then(tb.cmp(&ta)).then(a.cmp(&b)).is_lt()
    }
}
