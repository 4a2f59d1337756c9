//! The loops that are measured. One [`Worker`] a thread; each loop makes a key, reads the clock, calls the engine, reads
//! the clock, and checks the answer.

use super::outcome::TxnCounts;
use super::picker::{Picker, share};
use super::spec::Spec;
use super::verify::{Tally, show};
use crate::clock::Clock;
use crate::data::{Keys, Pattern, Values};
use crate::dist::Zipf;
use crate::engine::{Bounds, Cursor, Session};
use crate::error::Result;
use crate::measure::Latencies;
use kingtide_base::rng::Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What all threads of a run share.
pub struct Shared<'a> {
    pub spec: &'a Spec,
    pub keys: Keys,
    pub values: Values,
    /// Ids in ascending order, for workloads that must know which key comes next.
    pub sorted: Vec<u64>,
    pub clock: Clock,
    /// Set by the first thread that fails.
    pub stop: AtomicBool,
}

/// How many operations a thread has done, for the display of progress. On a cache line of its own: no thread waits for another's.
#[derive(Default)]
#[repr(align(128))]
pub struct Done(AtomicU64);

impl Done {
    /// The number.
    pub fn get(&self) -> u64 {
        // Relaxed: a figure to show, which needs no other memory.
        self.0.load(Ordering::Relaxed)
    }
}

/// One thread's state.
pub struct Worker<'a> {
    pub shared: &'a Shared<'a>,
    pub thread: usize,
    pub done: &'a Done,
    pub session: Box<dyn Session>,
    /// Latencies and operations of up to two kinds: `mixed` has puts and gets.
    pub latencies: [Latencies; 2],
    pub ops: [u64; 2],
    pub txn: TxnCounts,
    pub tally: Tally,
}

/// Room for a batch of keys and values, filled again and again.
pub struct Batch {
    /// The entries' ids.
    pub ids: Vec<u64>,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl Batch {
    /// Room for `n` entries.
    pub fn new(n: usize, shared: &Shared<'_>) -> Batch {
        let (k, v) = (shared.keys.size(), shared.values.size());
        Batch { ids: Vec::with_capacity(n), keys: vec![0; n * k], values: vec![0; n * v] }
    }
}

impl Worker<'_> {
    /// Whether another thread has failed. Every loop asks once a turn, and this is where it lets its progress be seen.
    #[inline]
    pub fn stopped(&self) -> bool {
        // Relaxed: a figure to show, which needs no other memory.
        self.done.0.store(self.ops[0] + self.ops[1], Ordering::Relaxed);
        // Relaxed: a hint to give up soon; nothing else is read because of it.
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// Operations that this thread does of `total`.
    pub fn quota(&self, total: u64) -> u64 {
        let share = share(total, self.thread, self.shared.spec.threads);
        share.end - share.start
    }

    /// Puts `total` entries over all threads.
    pub fn puts(&mut self, mut picker: Picker, total: u64, batch: usize) -> Result<()> {
        let mut left = self.quota(total);
        let mut room = Batch::new(batch, self.shared);
        while left > 0 && !self.stopped() {
            let n = left.min(batch as u64) as usize;
            room.ids.clear();
            room.ids.extend((0..n).map(|_| self.shared.keys.id(picker.next())));
            self.put_ids(&mut room)?;
            left -= n as u64;
        }
        Ok(())
    }

    /// Puts the ids of `room` in one call.
    pub fn put_ids(&mut self, room: &mut Batch) -> Result<()> {
        let Shared { keys, values, clock, .. } = self.shared;
        let (k, v) = (keys.size(), values.size());
        for (i, &id) in room.ids.iter().enumerate() {
            keys.write(id, &mut room.keys[i * k..(i + 1) * k]);
            values.write(id, &mut room.values[i * v..(i + 1) * v]);
        }
        let n = room.ids.len();
        let from;
        if n == 1 {
            from = clock.now();
            self.session.put(&room.keys[..k], &room.values[..v])?;
        } else {
            let entries: Vec<(&[u8], &[u8])> =
                (0..n).map(|i| (&room.keys[i * k..(i + 1) * k], &room.values[i * v..(i + 1) * v])).collect();
            from = clock.now();
            self.session.put_batch(&entries)?;
        }
        self.latencies[0].record(clock.ns(from, clock.now()));
        self.ops[0] += n as u64;
        Ok(())
    }

    /// Gets one entry and checks it; the latency goes to kind `kind`.
    #[inline]
    fn get_id(&mut self, id: u64, key: &mut [u8], kind: usize) -> Result<()> {
        let Shared { keys, values, clock, .. } = self.shared;
        keys.write(id, key);
        let (tally, session) = (&mut self.tally, &mut self.session);
        let mut right = false;
        let from = clock.now();
        let found = session.get(key, &mut |v| right = tally.value_is_right(values, id, v))?;
        self.latencies[kind].record(clock.ns(from, clock.now()));
        self.ops[kind] += 1;
        self.tally.judge(found & right, || {
            let what = if found { "has the wrong value" } else { "is lost" };
            format!("get: key {} {what}", show(key))
        });
        Ok(())
    }

    /// Gets loaded entries.
    pub fn gets(&mut self) -> Result<()> {
        let mut picker = Picker::for_reads(self.shared.spec, self.thread);
        let mut key = vec![0; self.shared.keys.size()];
        for _ in 0..self.quota(self.shared.spec.operations) {
            if self.stopped() {
                break;
            }
            self.get_id(self.shared.keys.id(picker.next()), &mut key, 0)?;
        }
        Ok(())
    }

    /// Gets loaded entries, many in a call.
    pub fn multi_gets(&mut self) -> Result<()> {
        let Shared { keys, values, clock, spec, .. } = self.shared;
        let mut picker = Picker::for_reads(spec, self.thread);
        let k = keys.size();
        let mut room = Batch::new(spec.batch, self.shared);
        let mut left = self.quota(spec.operations);
        // For each key of a call what was left before the last call that answered it: so none need be cleared.
        let mut answered = vec![0; spec.batch];
        while left > 0 && !self.stopped() {
            let n = left.min(spec.batch as u64) as usize;
            room.ids.clear();
            room.ids.extend((0..n).map(|_| keys.id(picker.next())));
            for (i, &id) in room.ids.iter().enumerate() {
                keys.write(id, &mut room.keys[i * k..(i + 1) * k]);
            }
            let wanted: Vec<&[u8]> = room.keys.chunks_exact(k).take(n).collect();
            let (tally, mut calls, mut answers) = (&mut self.tally, 0, 0);
            let from = clock.now();
            self.session.multi_get(&wanted, &mut |i, value| {
                calls += 1;
                answers += usize::from(std::mem::replace(&mut answered[i], left) != left);
                let right = value.is_some_and(|v| tally.value_is_right(values, room.ids[i], v));
                tally.judge(right, || format!("mget: key {} is lost or has the wrong value", show(wanted[i])));
            })?;
            self.latencies[0].record(clock.ns(from, clock.now()));
            self.tally.judge((calls, answers) == (n, n), || format!("mget: {calls} answers for {answers} of {n} keys"));
            self.ops[0] += n as u64;
            left -= n as u64;
        }
        Ok(())
    }

    /// As many puts as gets. A get asks for an entry that this thread put, so its answer is known.
    pub fn mixed(&mut self) -> Result<()> {
        let Shared { keys, spec, .. } = self.shared;
        let mut rng = Rng::new(spec.seed ^ 4 ^ ((self.thread as u64 + 1) << 32));
        let mine = share(spec.entries, self.thread, spec.threads);
        let zipf = (spec.pattern == Pattern::Zipfian).then(|| Zipf::new(mine.end - mine.start, 0.99));
        let mut room = Batch::new(spec.batch, self.shared);
        let mut key = vec![0; keys.size()];
        let (mut next, mut read) = (mine.start, 0);
        while next < mine.end && !self.stopped() {
            let n = (mine.end - next).min(spec.batch as u64);
            room.ids.clear();
            room.ids.extend((next..next + n).map(|i| keys.id(i)));
            self.put_ids(&mut room)?;
            next += n;
            let put = next - mine.start;
            for _ in 0..n {
                let back = match &zipf {
                    // The newest are the hottest.
                    Some(z) => z.sample(&mut rng) % put,
                    None if spec.pattern.is_ordered() => put - 1 - read,
                    None => rng.below(put),
                };
                read += 1;
                self.get_id(keys.id(next - 1 - back), &mut key, 1)?;
            }
        }
        Ok(())
    }

    /// Deletes loaded entries.
    pub fn deletes(&mut self) -> Result<()> {
        let Shared { keys, clock, spec, .. } = self.shared;
        let mut picker = Picker::for_deletes(spec, self.thread);
        let k = keys.size();
        let mut room = vec![0; k * spec.batch];
        let mut left = self.quota(spec.operations);
        while left > 0 && !self.stopped() {
            let n = left.min(spec.batch as u64) as usize;
            for key in room.chunks_exact_mut(k).take(n) {
                keys.write(keys.id(picker.next()), key);
            }
            let gone: Vec<&[u8]> = room.chunks_exact(k).take(n).collect();
            let from = clock.now();
            if n == 1 {
                self.session.delete(gone[0])?
            } else {
                self.session.delete_batch(&gone)?
            }
            self.latencies[0].record(clock.ns(from, clock.now()));
            self.ops[0] += n as u64;
            left -= n as u64;
        }
        Ok(())
    }

    /// Seeks to loaded keys: each must be found exactly.
    pub fn seeks(&mut self) -> Result<()> {
        let Shared { keys, clock, spec, .. } = self.shared;
        let mut picker = Picker::for_reads(spec, self.thread);
        let mut cursor = self.session.cursor(Bounds::default())?;
        let mut key = vec![0; keys.size()];
        for _ in 0..self.quota(spec.operations) {
            if self.stopped() {
                break;
            }
            let id = keys.id(picker.next());
            keys.write(id, &mut key);
            let from = clock.now();
            if spec.fresh_iterator {
                cursor = self.session.cursor(Bounds::default())?;
            }
            let valid = cursor.seek(&key)?;
            let landed: &[u8] = if valid { cursor.key()? } else { &[] };
            let right = valid & (landed == &key[..]);
            self.latencies[0].record(clock.ns(from, clock.now()));
            self.tally.judge(right, || format!("seek: sought {}, landed on {}", show(&key), show(landed)));
            self.ops[0] += 1;
        }
        Ok(())
    }

    /// Seeks to a loaded key and reads the entries from there: each must be the next one.
    pub fn ranges(&mut self) -> Result<()> {
        let Shared { keys, clock, spec, sorted, .. } = self.shared;
        let mut picker = Picker::for_reads(spec, self.thread);
        let mut cursor = self.session.cursor(Bounds::default())?;
        let mut key = vec![0; keys.size()];
        for _ in 0..self.quota(spec.operations) {
            if self.stopped() {
                break;
            }
            // A position rather than an index: where it is in key order is then known without a search.
            let at = picker.next() as usize;
            let end = sorted.len().min(at + spec.range_size);
            keys.write(sorted[at], &mut key);
            let from = clock.now();
            if spec.fresh_iterator {
                cursor = self.session.cursor(Bounds::default())?;
            }
            let valid = cursor.seek(&key)?;
            let after = self.follow(&mut *cursor, valid, &sorted[at..end], &mut key)?;
            self.latencies[0].record(clock.ns(from, clock.now()));
            if end == sorted.len() {
                self.tally.judge(!after, || "range: there is an entry after the last one".into());
            }
            self.ops[0] += 1;
        }
        Ok(())
    }

    /// Checks that the cursor meets exactly `expected`; returns whether it then stands on one more entry.
    pub fn follow(
        &mut self,
        cursor: &mut dyn Cursor,
        mut valid: bool,
        expected: &[u64],
        key: &mut [u8],
    ) -> Result<bool> {
        let Shared { keys, values, .. } = self.shared;
        for &id in expected {
            keys.write(id, key);
            let (k, v): (&[u8], &[u8]) = if valid { cursor.entry()? } else { (&[], &[]) };
            let right = valid & (k == &*key) & self.tally.value_is_right(values, id, v);
            self.tally.judge(right, || format!("scan: expected {}, met {}", show(key), show(k)));
            valid = valid && cursor.next()?;
        }
        Ok(valid)
    }

    /// Walks this thread's part of the data set in key order. Latencies are means over a hundred keys.
    pub fn iterates(&mut self) -> Result<()> {
        const STEP: usize = 100;
        let Shared { keys, clock, spec, sorted, .. } = self.shared;
        let mine = share(sorted.len() as u64, self.thread, spec.threads);
        let (start, end) = (mine.start as usize, mine.end as usize);
        if start == end {
            return Ok(());
        }
        let mut cursor = self.session.cursor(Bounds::default())?;
        let mut key = vec![0; keys.size()];
        keys.write(sorted[start], &mut key);
        let mut valid = if start == 0 { cursor.first()? } else { cursor.seek(&key)? };
        for chunk in sorted[start..end].chunks(STEP) {
            if self.stopped() {
                return Ok(());
            }
            let from = clock.now();
            valid = self.follow(&mut *cursor, valid, chunk, &mut key)?;
            self.latencies[0].record(clock.ns(from, clock.now()) / chunk.len() as u64);
            self.ops[0] += chunk.len() as u64;
        }
        let more = end < sorted.len();
        self.tally.judge(valid == more, || format!("iterate: a next entry is {valid}, should be {more}"));
        Ok(())
    }
}
