//! Segments that are ready to become active.
//!
//! The log's background lane makes them, as many as were used since it last looked, so that no writer waits for a file. A
//! writer takes one under the commit lock, and holds [`Spares::ready`] for no longer than that takes: files are made,
//! filled and removed without it. A writer that finds none makes its own. That one has a larger id than a spare that is
//! being made meanwhile, and ids ascend in the order of use; so the spare is put aside.

use kingtide_base::rare;
use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use kingtide_vfs::File;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most spares that are kept ready.
const MOST: usize = 4;

/// A segment that is ready to become active.
#[derive(Debug)]
pub(super) struct Spare {
    pub id: u64,
    pub file: Arc<dyn File>,
    pub size: u64,
    /// From here to its end nothing was ever written.
    pub blank_from: u64,
    /// The number of its name, see [`super::durable_names`].
    pub name: u64,
}

impl Spare {
    pub fn is_blank(&self) -> bool {
        self.blank_from < self.size
    }
}

#[derive(Debug, Default)]
struct Ready {
    /// Oldest first, with ascending ids.
    spares: VecDeque<Spare>,
    /// They cannot be used any more.
    overtaken: Vec<Spare>,
    /// The newest segment that was used.
    last_used: u64,
    /// Segments used since the last look of the thread that makes spares.
    used: usize,
    /// There was none, in one of these cases.
    late: bool,
}

#[derive(Debug, Default)]
pub(super) struct Spares {
    ready: Mutex<Ready>,
    /// How many there are. A hint, as are the following ones; Relaxed.
    count: AtomicUsize,
    /// How many there should be.
    wanted: AtomicUsize,
    blank: AtomicBool,
    overtaken: AtomicUsize,
}

impl Ready {
    fn can_be_filled(&self) -> bool {
        self.spares.len() > 1 && self.spares.front().is_some_and(Spare::is_blank)
    }
}

impl Spares {
    /// How many are ready. A hint, as are the answers of the next two.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there are fewer than there should be, or some that cannot be used.
    pub fn needs_some(&self) -> bool {
        self.count.load(Ordering::Relaxed) < self.wanted.load(Ordering::Relaxed).max(1)
            || self.overtaken.load(Ordering::Relaxed) > 0
    }

    /// Whether the next one has a part that was never written, and a writer that needs a spare meanwhile finds another one.
    pub fn can_be_filled(&self) -> bool {
        self.blank.load(Ordering::Relaxed)
    }

    fn publish(&self, ready: &Ready) {
        self.count.store(ready.spares.len(), Ordering::Relaxed);
        self.blank.store(ready.can_be_filled(), Ordering::Relaxed);
        self.overtaken.store(ready.overtaken.len(), Ordering::Relaxed);
    }

    /// The oldest one that can be used.
    pub fn take(&self) -> Option<Spare> {
        let mut ready = self.ready.lock();
        let taken = loop {
            match ready.spares.pop_front() {
                Some(spare) if spare.id <= ready.last_used => ready.overtaken.push(spare),
                found => break found,
            }
        };
        ready.used += 1;
        ready.late |= taken.is_none();
        self.publish(&ready);
        taken
    }

    /// Takes one back that could not be put to use.
    pub fn put_back(&self, spare: Spare) {
        let mut ready = self.ready.lock();
        ready.spares.push_front(spare);
        self.publish(&ready);
    }

    /// Segment `id` became the active one.
    pub fn used(&self, id: u64) {
        self.ready.lock().last_used = id;
    }

    /// Adds one. Only one thread at a time makes spares, so their ids ascend.
    pub fn add(&self, spare: Spare) {
        let mut ready = self.ready.lock();
        match spare.id <= ready.last_used {
            true => {
                rare!("log-spare-overtaken");
                ready.overtaken.push(spare);
            }
            false => {
                let at = ready.spares.partition_point(|s| s.id < spare.id);
                ready.spares.insert(at, spare);
            }
        }
        self.publish(&ready);
    }

    /// Decides how many there should be, from how many were used since the last call, and `least`. Returns how many are
    /// missing.
    pub fn missing(&self, least: usize) -> usize {
        let mut ready = self.ready.lock();
        let (used, late) = (std::mem::take(&mut ready.used), std::mem::take(&mut ready.late));
        let fewer = self.wanted.load(Ordering::Relaxed).saturating_sub(1);
        let wanted = (used + usize::from(late && used > 1)).max(fewer).clamp(least, MOST);
        self.wanted.store(wanted, Ordering::Relaxed);
        wanted.saturating_sub(ready.spares.len())
    }

    /// Takes out the next one to be used, if [`Spares::can_be_filled`].
    pub fn take_blank(&self) -> Option<Spare> {
        let mut ready = self.ready.lock();
        let taken = if ready.can_be_filled() { ready.spares.pop_front() } else { None };
        self.publish(&ready);
        taken
    }

    /// Takes those out that cannot be used any more.
    pub fn take_overtaken(&self) -> Vec<Spare> {
        let mut ready = self.ready.lock();
        let overtaken = std::mem::take(&mut ready.overtaken);
        self.publish(&ready);
        overtaken
    }

    /// Takes those out that are larger than `size`, and wants no more than one again.
    pub fn take_larger(&self, size: u64) -> Vec<Spare> {
        let mut ready = self.ready.lock();
        let (large, small) = ready.spares.drain(..).partition(|s| s.size > size);
        ready.spares = small;
        (ready.used, ready.late) = (0, false);
        self.wanted.store(1, Ordering::Relaxed);
        self.publish(&ready);
        large.into()
    }

    pub fn ids(&self) -> Vec<u64> {
        let ready = self.ready.lock();
        ready.spares.iter().chain(&ready.overtaken).map(|s| s.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_vfs::{Fs, MemFs};
    use std::path::Path;

    fn spare(id: u64) -> Spare {
        let file = MemFs::new().open_log(Path::new("spare"), 64).unwrap();
        Spare { id, file, size: 64, blank_from: 0, name: id }
    }

    /// The ids of segments ascend in the order of use.
    #[test]
    fn a_spare_that_was_overtaken_while_it_was_made_is_never_used() {
        let spares = Spares::default();
        spares.add(spare(1));
        assert_eq!(spares.take().unwrap().id, 1);
        spares.used(1);
        assert!(spares.take().is_none(), "2 is being made, so the writer makes 3");
        spares.add(spare(2));
        spares.used(3);
        spares.put_back(spare(4)); // could not be written to
        assert_eq!(spares.take().unwrap().id, 4);
        spares.used(4);
        spares.add(spare(5));
        assert_eq!(spares.take().unwrap().id, 5);
    }

    #[test]
    fn those_that_were_overtaken_are_told_apart() {
        let spares = Spares::default();
        spares.add(spare(2));
        spares.used(3);
        assert!(spares.take().is_none());
        spares.add(spare(1));
        let overtaken: Vec<u64> = spares.take_overtaken().iter().map(|s| s.id).collect();
        assert_eq!(overtaken, [2, 1]);
        spares.add(spare(4));
        assert_eq!(spares.take().unwrap().id, 4);
    }
}
