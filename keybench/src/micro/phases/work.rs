//! The loops of phases.

use super::super::picker::{Picker, share};
use super::super::spec::Spec;
use super::super::verify::show;
use super::super::work::{Batch, Shared, Worker};
use super::{GETS_PERCENT, Preset, covered, deleted};
use crate::data::Pattern;
use crate::dist::{Permutation, Zipf};
use crate::engine::{Bounds, Engine};
use crate::error::Result;
use kingtide_base::rng::Rng;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The id of entry `i`. Odd ids are never put: they lie between.
pub fn id_of(i: u64) -> u64 {
    2 * i
}

/// The column family that entry `i` is in: they are written in turns.
pub fn family_of(i: u64, spec: &Spec) -> usize {
    (i % spec.families as u64) as usize
}

/// One phase of a run.
pub struct Running<'a> {
    pub preset: Preset,
    /// Its place among the phases: what it draws differs from what others draw.
    pub number: u64,
    /// Operations over all threads.
    pub total: u64,
    pub batch: usize,
    /// Which entries were there when it began.
    pub there: Vec<bool>,
    /// For each entry the first from there on that is there, and one behind the last for none; where it is needed.
    pub next: Vec<u64>,
    /// Threads that read and are not done: the writer goes on for as long.
    pub readers: AtomicUsize,
    /// The store, for phases that need more of it than a session.
    pub store: &'a dyn Engine,
    /// Gets that found something.
    pub found: AtomicU64,
}

impl Running<'_> {
    /// Entries that thread `thread` works on.
    fn picker(&self, spec: &Spec, thread: usize) -> Picker {
        let in_order = || {
            let share = share(self.total, thread, spec.threads);
            Picker::InOrder { next: share.start, share }
        };
        let n = spec.entries;
        let rng = Rng::new(spec.seed ^ (0x70 + self.number) ^ ((thread as u64 + 1) << 32));
        match self.preset {
            Preset::FillSeq | Preset::FillBatch | Preset::DeleteSeq => in_order(),
            Preset::FillUniqueRandom | Preset::FillFamilies | Preset::DeleteMost => Picker::Once {
                order: Permutation::new(n, spec.seed ^ self.number),
                next: share(self.total, thread, spec.threads).start,
            },
            Preset::ReadHot => Picker::Uniform { n: n.div_ceil(100), rng },
            _ if spec.pattern == Pattern::Zipfian => {
                Picker::Zipf { zipf: Zipf::new(n, 0.99), order: Permutation::new(n, spec.seed), rng }
            }
            _ => Picker::Uniform { n, rng },
        }
    }

    /// Decides between gets and puts.
    fn coin(&self, spec: &Spec, thread: usize) -> Rng {
        Rng::new(spec.seed ^ 0x636f_696e ^ self.number ^ ((thread as u64 + 1) << 32))
    }

    /// Calls `each` for every entry that was put or deleted, drawn again. `written` is how many the writer put, where
    /// there was one.
    pub fn touched(&self, spec: &Spec, written: u64, mut each: impl FnMut(u64)) {
        if self.preset.has_writer() {
            let mut picker = self.picker(spec, spec.threads);
            return (0..written).for_each(|_| each(picker.next()));
        }
        if self.preset == Preset::DeleteRanges {
            return (0..self.total).for_each(|r| deleted(r, spec.entries).0.for_each(&mut each));
        }
        for thread in 0..spec.threads {
            let (mut picker, mut coin) = (self.picker(spec, thread), self.coin(spec, thread));
            let mixed = self.preset == Preset::ReadRandomWriteRandom;
            for _ in share(self.total, thread, spec.threads) {
                let i = picker.next();
                if !mixed || coin.below(100) >= GETS_PERCENT {
                    each(i);
                }
            }
        }
    }

    /// Whether an answer is possible: `None` for nothing found, or whether the value is the entry's.
    fn possible(&self, i: u64, answer: Option<bool>) -> bool {
        let there = self.there[i as usize] && self.preset != Preset::ReadMissing;
        match answer {
            None => !there,
            Some(right) => right && (there || self.preset.creates()),
        }
    }
}

impl Worker<'_> {
    /// This thread's part of a phase.
    pub fn run(&mut self, phase: &Running<'_>) -> Result<()> {
        use Preset::{
            DeleteMost, DeleteRandom, DeleteRanges, DeleteSeq, FillFamilies, MultiReadRandom, RangeRandom,
            ReadFamilies, ReadSeq, SeekRandom, SeekRandomWhileWriting,
        };
        if phase.preset.has_writer() && self.thread == self.shared.spec.threads {
            return self.write_meanwhile(phase);
        }
        let done = match phase.preset {
            ReadSeq => self.iterates(),
            SeekRandom | SeekRandomWhileWriting => self.phase_seeks(phase),
            DeleteSeq | DeleteRandom | DeleteMost => self.phase_deletes(phase),
            DeleteRanges => self.phase_range_deletes(phase),
            RangeRandom => self.phase_ranges(phase),
            FillFamilies => self.family_puts(phase),
            ReadFamilies => self.family_gets(phase),
            MultiReadRandom => self.phase_multi_gets(phase),
            p if p.fills() || p == Preset::Overwrite => self.phase_puts(phase),
            _ => self.phase_gets(phase),
        };
        // Relaxed: the writer needs nothing of what the readers did.
        phase.readers.fetch_sub(1, Ordering::Relaxed);
        done
    }

    fn phase_puts(&mut self, phase: &Running<'_>) -> Result<()> {
        let mut picker = phase.picker(self.shared.spec, self.thread);
        let mut room = Batch::new(phase.batch, self.shared);
        let mut left = self.quota(phase.total);
        while left > 0 && !self.stopped() {
            let n = left.min(phase.batch as u64);
            room.ids.clear();
            room.ids.extend((0..n).map(|_| id_of(picker.next())));
            self.put_ids(&mut room)?;
            left -= n;
        }
        Ok(())
    }

    /// The one more thread: it is counted apart from the readers.
    fn write_meanwhile(&mut self, phase: &Running<'_>) -> Result<()> {
        let mut picker = phase.picker(self.shared.spec, self.thread);
        let mut room = Batch::new(1, self.shared);
        // One put at least, however late this thread gets its turn.
        loop {
            room.ids.clear();
            room.ids.push(id_of(picker.next()));
            self.put_ids(&mut room)?;
            // Relaxed: as above.
            if self.stopped() || phase.readers.load(Ordering::Relaxed) == 0 {
                break;
            }
        }
        self.latencies.swap(0, 1);
        self.ops.swap(0, 1);
        Ok(())
    }

    /// Gets; with puts among them or behind each of them where the phase says so.
    fn phase_gets(&mut self, phase: &Running<'_>) -> Result<()> {
        let Shared { keys, values, clock, spec, .. } = self.shared;
        let (mut picker, mut coin) = (phase.picker(spec, self.thread), phase.coin(spec, self.thread));
        let odd = u64::from(phase.preset == Preset::ReadMissing);
        let mixed = phase.preset == Preset::ReadRandomWriteRandom;
        let update = phase.preset == Preset::UpdateRandom;
        let mut key = vec![0; keys.size()];
        let mut value = vec![0; values.size()];
        let mut found = 0;
        for _ in 0..self.quota(phase.total) {
            if self.stopped() {
                break;
            }
            let mut i = picker.next();
            if phase.preset == Preset::ReadCovered {
                i = covered(i, spec.entries);
            }
            let id = id_of(i) + odd;
            keys.write(id, &mut key);
            let put = mixed && coin.below(100) >= GETS_PERCENT;
            if put || update {
                values.write(id, &mut value);
            }
            let (tally, session) = (&mut self.tally, &mut self.session);
            let mut answer = None;
            let from = clock.now();
            if !put {
                session.get(&key, &mut |v| answer = Some(tally.value_is_right(values, id, v)))?;
            }
            if put || update {
                session.put(&key, &value)?;
            }
            self.latencies[usize::from(put)].record(clock.ns(from, clock.now()));
            self.ops[usize::from(put)] += 1;
            found += u64::from(answer.is_some());
            if !put {
                self.judge(phase, i, answer, &key);
            }
        }
        // Relaxed: read when all threads have been joined.
        phase.found.fetch_add(found, Ordering::Relaxed);
        Ok(())
    }

    fn judge(&mut self, phase: &Running<'_>, i: u64, answer: Option<bool>, key: &[u8]) {
        self.tally.judge(phase.possible(i, answer), || {
            let what = match answer {
                None => "is lost",
                Some(false) => "has the wrong value",
                Some(true) => "should not exist",
            };
            format!("{}: key {} {what}", phase.preset.name(), show(key))
        });
    }

    fn phase_multi_gets(&mut self, phase: &Running<'_>) -> Result<()> {
        let Shared { keys, values, clock, spec, .. } = self.shared;
        let mut picker = phase.picker(spec, self.thread);
        let k = keys.size();
        let mut room = vec![0; k * phase.batch];
        let mut left = self.quota(phase.total);
        let (mut entries, mut answers, mut found) = (Vec::new(), Vec::new(), 0);
        while left > 0 && !self.stopped() {
            let n = left.min(phase.batch as u64) as usize;
            entries.clear();
            entries.extend((0..n).map(|_| picker.next()));
            for (&i, key) in entries.iter().zip(room.chunks_exact_mut(k)) {
                keys.write(id_of(i), key);
            }
            let wanted: Vec<&[u8]> = room.chunks_exact(k).take(n).collect();
            answers.clear();
            answers.resize(n, None);
            let (tally, mut calls) = (&mut self.tally, 0);
            let from = clock.now();
            self.session.multi_get(&wanted, &mut |at, value| {
                calls += 1;
                answers[at] = value.map(|v| tally.value_is_right(values, id_of(entries[at]), v));
            })?;
            self.latencies[0].record(clock.ns(from, clock.now()));
            self.ops[0] += n as u64;
            left -= n as u64;
            found += answers.iter().filter(|a| a.is_some()).count() as u64;
            for ((&i, &answer), key) in entries.iter().zip(&answers).zip(&wanted) {
                self.judge(phase, i, answer, key);
            }
            self.tally.judge(calls == n, || format!("multireadrandom: {calls} answers for {n} keys"));
        }
        // Relaxed: read when all threads have been joined.
        phase.found.fetch_add(found, Ordering::Relaxed);
        Ok(())
    }

    /// Seeks, each with a cursor of its own as db_bench makes it.
    fn phase_seeks(&mut self, phase: &Running<'_>) -> Result<()> {
        let Shared { keys, clock, spec, .. } = self.shared;
        let mut picker = phase.picker(spec, self.thread);
        let (mut key, mut next) = (vec![0; keys.size()], vec![0; keys.size()]);
        for _ in 0..self.quota(phase.total) {
            if self.stopped() {
                break;
            }
            let i = picker.next();
            keys.write(id_of(i), &mut key);
            let from = clock.now();
            let mut cursor = self.session.cursor(Bounds::default())?;
            let valid = cursor.seek(&key)?;
            let landed: &[u8] = if valid { cursor.key()? } else { &[] };
            self.latencies[0].record(clock.ns(from, clock.now()));
            self.ops[0] += 1;
            let after = phase.next[i as usize];
            let none = after == spec.entries;
            keys.write(id_of(after), &mut next);
            let right = match valid {
                false => none,
                true if phase.preset.creates() => landed >= &key[..] && (none || landed <= &next[..]),
                true => !none && landed == &next[..],
            };
            self.tally.judge(right, || {
                let expected = if none { "the end".into() } else { show(&next) };
                let landed = if valid { show(landed) } else { "the end".into() };
                format!("{}: sought {}, landed on {landed} before {expected}", phase.preset.name(), show(&key))
            });
        }
        Ok(())
    }

    /// Ranges, each with a cursor of its own: the entries from a random key on.
    fn phase_ranges(&mut self, phase: &Running<'_>) -> Result<()> {
        let Shared { keys, clock, spec, sorted, .. } = self.shared;
        let mut picker = phase.picker(spec, self.thread);
        let mut key = vec![0; keys.size()];
        for _ in 0..self.quota(phase.total) {
            if self.stopped() {
                break;
            }
            let id = id_of(picker.next());
            keys.write(id, &mut key);
            let at = sorted.partition_point(|there| *there < id);
            let end = sorted.len().min(at + spec.range_size);
            let from = clock.now();
            let mut cursor = self.session.cursor(Bounds::default())?;
            let valid = cursor.seek(&key)?;
            let after = self.follow(&mut *cursor, valid, &sorted[at..end], &mut key)?;
            self.latencies[0].record(clock.ns(from, clock.now()));
            if end == sorted.len() {
                self.tally.judge(!after, || "rangerandom: there is an entry after the last one".into());
            }
            self.ops[0] += 1;
        }
        Ok(())
    }

    fn phase_range_deletes(&mut self, phase: &Running<'_>) -> Result<()> {
        let Shared { keys, clock, spec, .. } = self.shared;
        let (mut start, mut end) = (vec![0; keys.size()], vec![0; keys.size()]);
        for r in share(phase.total, self.thread, spec.threads) {
            if self.stopped() {
                break;
            }
            let (gone, _) = deleted(r, spec.entries);
            keys.write(id_of(gone.start), &mut start);
            // An odd id lies behind the last entry that goes and before the first one that stays.
            keys.write(id_of(gone.end - 1) + 1, &mut end);
            let from = clock.now();
            self.session.delete_range(&start, &end)?;
            self.latencies[0].record(clock.ns(from, clock.now()));
            self.ops[0] += 1;
        }
        Ok(())
    }

    fn family_puts(&mut self, phase: &Running<'_>) -> Result<()> {
        let Shared { keys, values, clock, spec, .. } = self.shared;
        let mut families = phase.store.families(spec.families)?;
        let mut picker = phase.picker(spec, self.thread);
        let (mut key, mut value) = (vec![0; keys.size()], vec![0; values.size()]);
        for _ in 0..self.quota(phase.total) {
            if self.stopped() {
                break;
            }
            let i = picker.next();
            keys.write(id_of(i), &mut key);
            values.write(id_of(i), &mut value);
            let from = clock.now();
            families.put(family_of(i, spec), &key, &value)?;
            self.latencies[0].record(clock.ns(from, clock.now()));
            self.ops[0] += 1;
        }
        Ok(())
    }

    fn family_gets(&mut self, phase: &Running<'_>) -> Result<()> {
        let Shared { keys, values, clock, spec, .. } = self.shared;
        let mut families = phase.store.families(spec.families)?;
        let mut picker = phase.picker(spec, self.thread);
        let mut key = vec![0; keys.size()];
        let mut found = 0;
        for _ in 0..self.quota(phase.total) {
            if self.stopped() {
                break;
            }
            let i = picker.next();
            keys.write(id_of(i), &mut key);
            let (tally, mut answer) = (&mut self.tally, None);
            let from = clock.now();
            families
                .get(family_of(i, spec), &key, &mut |v| answer = Some(tally.value_is_right(values, id_of(i), v)))?;
            self.latencies[0].record(clock.ns(from, clock.now()));
            self.ops[0] += 1;
            found += u64::from(answer.is_some());
            self.judge(phase, i, answer, &key);
        }
        // Relaxed: read when all threads have been joined.
        phase.found.fetch_add(found, Ordering::Relaxed);
        Ok(())
    }

    fn phase_deletes(&mut self, phase: &Running<'_>) -> Result<()> {
        let Shared { keys, clock, spec, .. } = self.shared;
        let mut picker = phase.picker(spec, self.thread);
        let k = keys.size();
        let mut room = vec![0; k * phase.batch];
        let mut left = self.quota(phase.total);
        while left > 0 && !self.stopped() {
            let n = left.min(phase.batch as u64) as usize;
            room.chunks_exact_mut(k).take(n).for_each(|key| keys.write(id_of(picker.next()), key));
            let gone: Vec<&[u8]> = room.chunks_exact(k).take(n).collect();
            let from = clock.now();
            match gone[..] {
                [key] => self.session.delete(key)?,
                _ => self.session.delete_batch(&gone)?,
            }
            self.latencies[0].record(clock.ns(from, clock.now()));
            self.ops[0] += n as u64;
            left -= n as u64;
        }
        Ok(())
    }
}
