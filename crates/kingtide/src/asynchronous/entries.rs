//! Entries as a stream: a Rust iterator that takes its steps where blocking is allowed, many at a time.

use super::commit::blocking;
use crate::api::range::owned_bounds;
use crate::api::{ColumnFamily, Entries, Entry, KeyRange};
use crate::options::ReadOptions;
use crate::snapshot::Snapshot;
use futures_core::Stream;
use kingtide_base::{Error, Result};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Bound;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Entries that are read at once: so many at first, twice as many each time.
const FIRST_ENTRIES: usize = 32;
/// So many at most.
const MOST_ENTRIES: usize = 1024;
/// No more are read once they hold so many bytes.
const MOST_BYTES: usize = 256 << 10;
/// So many deleted or invisible keys are stepped over on the task at a time; a thread for blocking work goes on.
const MOST_SKIPPED: u64 = 1024;

/// A stream of entries as of the call that made it. See [`AsyncFamily::range`](crate::AsyncFamily::range).
///
/// It reads ahead in portions of up to 1024 entries or 256 KiB: on the task while all entries are in memtables and not many deleted ones
/// lie between them, on a thread for blocking work otherwise. No thread is occupied between portions. It ends after its first error.
///
/// It implements [`Stream`](futures_core::Stream) for programs that use the combinators of other crates;
/// [`AsyncEntries::next`] needs none of them.
///
/// ```
/// use kingtide::{AsyncDb, Options, vfs::MemFs};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let db = AsyncDb::open("db", Options::new().fs(MemFs::shared())).await?;
/// for tide in ["ebb", "flood", "neap"] {
///     db.put(tide, "").await?;
/// }
/// let mut entries = db.range("f"..).backwards();
/// let mut keys = Vec::new();
/// while let Some(entry) = entries.next().await {
///     keys.push(entry?.key.to_vec());
/// }
/// assert_eq!(keys, [&b"neap"[..], b"flood"]);
/// db.close().await
/// # })?;
/// # Ok::<(), kingtide::Error>(())
/// ```
pub struct AsyncEntries {
    state: State,
    ready: VecDeque<Entry>,
    failed: Option<Error>,
    /// Entries of the next portion.
    entries: usize,
    backwards: bool,
}

/// A portion, and what the next one comes from, unless this is the last.
struct Portion {
    entries: VecDeque<Entry>,
    rest: Result<Option<Box<Entries>>>,
}

type Reading = Pin<Box<dyn Future<Output = Result<Portion>> + Send>>;

enum State {
    Begin(Box<Begin>),
    Open(Box<Entries>),
    Reading(Reading),
    Done,
}

/// What is to be read.
struct Begin {
    family: ColumnFamily,
    snapshot: Snapshot,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    prefix: Option<Vec<u8>>,
}

impl Begin {
    fn open(self) -> Entries {
        let Begin { family, snapshot, lower, upper, prefix } = self;
        let options = ReadOptions { snapshot: Some(&snapshot), lower, upper, prefix, ..ReadOptions::default() };
        Entries::of_family(family.order(), family.cursor_with(options))
    }
}

impl AsyncEntries {
    pub(super) fn of_range(family: &ColumnFamily, range: &impl KeyRange) -> AsyncEntries {
        let (lower, upper) = owned_bounds(range);
        AsyncEntries::new(family, lower, upper, None)
    }

    pub(super) fn of_prefix(family: &ColumnFamily, prefix: &[u8]) -> AsyncEntries {
        AsyncEntries::new(family, Bound::Unbounded, Bound::Unbounded, Some(prefix.to_vec()))
    }

    fn new(
        family: &ColumnFamily,
        lower: Bound<Vec<u8>>,
        upper: Bound<Vec<u8>>,
        prefix: Option<Vec<u8>>,
    ) -> AsyncEntries {
        let snapshot = family.db.snapshots.acquire();
        let begin = Begin { family: family.clone(), snapshot, lower, upper, prefix };
        AsyncEntries {
            state: State::Begin(Box::new(begin)),
            ready: VecDeque::new(),
            failed: None,
            entries: FIRST_ENTRIES,
            backwards: false,
        }
    }

    /// Returns the same entries from the last to the first. Call it before the first entry is requested.
    pub fn backwards(mut self) -> AsyncEntries {
        self.backwards = true;
        self
    }

    /// The next entry; `None` after the last one. Dropping the future loses no entry.
    pub async fn next(&mut self) -> Option<Result<Entry>> {
        std::future::poll_fn(|cx| self.poll_entry(cx)).await
    }

    fn poll_entry(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Entry>>> {
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        loop {
            if let Some(entry) = self.ready.pop_front() {
                budget.made_progress();
                return Poll::Ready(Some(Ok(entry)));
            }
            if let Some(e) = self.failed.take() {
                self.state = State::Done;
                return Poll::Ready(Some(Err(e)));
            }
            match std::mem::replace(&mut self.state, State::Done) {
                State::Done => return Poll::Ready(None),
                State::Begin(begin) => self.begin(begin),
                State::Open(entries) => self.go_on(entries),
                State::Reading(mut reading) => match reading.as_mut().poll(cx) {
                    Poll::Ready(portion) => self.take(portion),
                    Poll::Pending => {
                        self.state = State::Reading(reading);
                        return Poll::Pending;
                    }
                },
            }
        }
    }

    fn begin(&mut self, begin: Box<Begin>) {
        // Tables may have to be opened for a cursor.
        if begin.family.inner().view.load().runs.is_empty() {
            return self.go_on(Box::new(begin.open()));
        }
        let (entries, backwards) = (self.entries, self.backwards);
        self.read(move || portion(Box::new(begin.open()), (entries, u64::MAX), backwards));
    }

    fn go_on(&mut self, entries: Box<Entries>) {
        let (n, backwards) = (self.entries, self.backwards);
        if entries.is_in_memory() && !entries.gave_up() {
            // Few at a time, so that other tasks get their turn.
            return self.take(Ok(portion(entries, (FIRST_ENTRIES, MOST_SKIPPED), backwards)));
        }
        self.read(move || portion(entries, (n, u64::MAX), backwards));
    }

    fn read(&mut self, f: impl FnOnce() -> Portion + Send + 'static) {
        self.entries = (self.entries * 2).min(MOST_ENTRIES);
        self.state = match tokio::runtime::Handle::try_current() {
            Ok(_) => State::Reading(Box::pin(blocking(move || Ok(f())))),
            Err(_) => {
                let text = "an AsyncEntries was polled outside of a tokio runtime";
                self.failed = Some(Error::invalid(text));
                State::Done
            }
        };
    }

    fn take(&mut self, portion: Result<Portion>) {
        let rest = match portion {
            Ok(portion) => {
                self.ready = portion.entries;
                portion.rest
            }
            Err(e) => Err(e),
        };
        match rest {
            Ok(Some(entries)) => self.state = State::Open(entries),
            Ok(None) => {}
            Err(e) => self.failed = Some(e),
        }
    }
}

/// Takes the next steps, until it has so many entries or passed so many keys that have none.
fn portion(mut entries: Box<Entries>, (most, skips): (usize, u64), backwards: bool) -> Portion {
    entries.limit_skips(skips);
    let mut taken = VecDeque::new();
    let mut bytes = 0;
    while taken.len() < most && bytes < MOST_BYTES {
        match if backwards { entries.next_back() } else { entries.next() } {
            Some(Ok(entry)) => {
                bytes += entry.key.len() + entry.value.len();
                taken.push_back(entry);
            }
            Some(Err(e)) => return Portion { entries: taken, rest: Err(e) },
            None if entries.gave_up() => break,
            None => return Portion { entries: taken, rest: Ok(None) },
        }
    }
    Portion { entries: taken, rest: Ok(Some(entries)) }
}

impl Stream for AsyncEntries {
    type Item = Result<Entry>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Entry>>> {
        self.poll_entry(cx)
    }
}

impl fmt::Debug for AsyncEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncEntries({} ready)", self.ready.len())
    }
}
