//! The ranges whose space is to be given back, as [`crate::reclaim`] does.

use crate::family::Family;
use kingtide_base::SeqNo;
use kingtide_base::sync::Mutex;
use std::sync::Arc;

/// Bytes to be gained for which a memtable is flushed early.
const WORTH_A_FLUSH: u64 = 4 << 20;
/// Most ranges that are remembered.
const MOST: usize = 4096;

/// A range to be cleared.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub family: Arc<Family>,
    pub lo: Vec<u8>,
    /// The first key beyond.
    pub hi: Vec<u8>,
    /// What was deleted before this has no reader at a later snapshot.
    pub since: SeqNo,
    /// An estimate of what it held.
    pub bytes: u64,
}

/// The ranges that wait.
#[derive(Debug, Default)]
pub(crate) struct Reclaims {
    waiting: Mutex<Vec<Request>>,
}

impl Reclaims {
    /// Remembers a range.
    pub fn add(&self, request: Request) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MOST {
            waiting.remove(0);
        }
        waiting.push(request);
    }

    /// The ranges of one family that no snapshot before `oldest` sees. It is the first family that has such ranges and is not in `tried`.
    pub fn due(&self, oldest: SeqNo, tried: &[Arc<Family>]) -> Vec<Request> {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            return Vec::new();
        }
        waiting.retain(|r| !r.family.is_dropped());
        let due = |r: &&Request| r.since <= oldest && !tried.iter().any(|t| Arc::ptr_eq(t, &r.family));
        let total = |f: &Arc<Family>| -> u64 {
            waiting.iter().filter(due).filter(|r| Arc::ptr_eq(&r.family, f)).map(|r| r.bytes).sum()
        };
        let flushed = |r: &Request| r.family.oldest_unflushed().is_none_or(|s| s > r.since);
        let ready = waiting.iter().filter(due).find(|r| flushed(r) || total(&r.family) >= WORTH_A_FLUSH);
        let Some(first) = ready else { return Vec::new() };
        waiting.iter().filter(due).filter(|r| Arc::ptr_eq(&r.family, &first.family)).cloned().collect()
    }

    /// Forgets a range.
    pub fn done(&self, request: &Request) {
        self.waiting
            .lock()
            .retain(|r| r.since != request.since || r.lo != request.lo || !Arc::ptr_eq(&r.family, &request.family));
    }
}
