//! One store through all phases of a run.

use super::super::outcome::{Outcome, Phase};
use super::super::run::{Steps, phase_on, timed};
use super::super::spec::Spec;
use super::super::verify::{Tally, show, value_of, whole_store};
use super::super::work::{Shared, Worker};
use super::work::{Running, family_of, id_of};
use super::{BIG_VALUE, FILL_BATCH, Preset, ranges};
use crate::clock::Clock;
use crate::data::{Keys, Pattern, Values};
use crate::engine::{self, Bounds, Engine};
use crate::error::{Error, Result};
use crate::measure::Latencies;
use crate::process::{self, Usage};
use crate::settle::Begun;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Opens an engine in a directory, with every write fsynced or not.
pub type Opener<'a> = &'a dyn Fn(&Path, bool) -> Result<Box<dyn Engine>>;

/// The store between two phases.
struct Stage<'a> {
    spec: &'a Spec,
    open: Opener<'a>,
    clock: Clock,
    store: Box<dyn Engine>,
    /// Whether it was opened to fsync every write.
    synced: bool,
    /// Which existing entries.
    there: Vec<bool>,
    /// Room for a number of each entry, where a phase needs it.
    room: Vec<u64>,
    /// Whether the entries are in column families.
    in_families: bool,
    /// Resident bytes of the harness before the store was opened.
    base_rss: u64,
    /// Bytes of a value: the last fill decides.
    value_size: usize,
    values: Values,
    outcome: Outcome,
}

/// Runs the phases of a specification in this process.
pub fn run(spec: &Spec, open: Opener<'_>) -> Result<Outcome> {
    // What the harness holds of the entries is made, and written to, before the store is opened: it would count as the engine's memory else.
    let mut there = std::hint::black_box(vec![true; spec.entries as usize]);
    there.fill(false);
    let room = if spec.phases.iter().any(|p| in_order(*p) || seeks(*p)) { spec.entries } else { 0 };
    let room = std::hint::black_box(vec![u64::MAX; room as usize]);
    let values = Values::new(spec.value_size, spec.value_entropy, spec.seed)?;
    process::reset_peak();
    let before = Usage::now();
    let (store, open_seconds) = timed(|| open(&spec.dir, spec.options.sync))?;
    let outcome = Outcome {
        version: store.version(),
        durability: store.durability(),
        options: store.effective_options(),
        open_seconds,
        ..Outcome::default()
    };
    let mut stage = Stage {
        spec,
        open,
        clock: Clock::calibrated(),
        store,
        synced: spec.options.sync,
        there,
        room,
        in_families: false,
        base_rss: before.rss,
        value_size: spec.value_size,
        values,
        outcome,
    };
    if spec.existing {
        stage.look_around()?;
    }
    for (number, preset) in spec.phases.iter().enumerate() {
        stage = stage.prepare(*preset)?;
        stage.phase(*preset, number as u64)?;
    }
    stage.finish(&before)
}

impl Stage<'_> {
    fn keys(&self) -> Result<Keys> {
        Keys::new(Pattern::Seq, self.spec.entries, self.spec.key_size, self.spec.seed)
    }

    fn values(&self) -> Values {
        self.values.with_size(self.value_size)
    }

    fn ids(&self) -> impl Iterator<Item = u64> {
        self.there.iter().enumerate().filter(|(_, t)| **t).map(|(i, _)| id_of(i as u64))
    }

    /// Finds out which entries an existing store holds.
    fn look_around(&mut self) -> Result<()> {
        let keys = self.keys()?;
        let mut session = self.store.session()?;
        let mut cursor = session.cursor(Bounds::default())?;
        let mut valid = cursor.first()?;
        while valid {
            let (key, value) = cursor.entry()?;
            let entry = keys.parse(key).filter(|id| id % 2 == 0).and_then(|id| self.there.get_mut(id as usize / 2));
            match entry {
                Some(there) if value.len() == self.value_size => *there = true,
                _ => {
                    let what = format!("key {} with a value of {} bytes", show(key), value.len());
                    return Err(Error::usage(format!(
                        "--existing: the store holds {what}, which none of the phases writes"
                    )));
                }
            }
            valid = cursor.next()?;
        }
        Ok(())
    }

    /// Makes the store what a phase begins with.
    fn prepare(mut self, preset: Preset) -> Result<Self> {
        let sync = self.spec.options.sync || preset == Preset::FillSync;
        if preset.fills() {
            self.value_size = if preset == Preset::Fill100K { BIG_VALUE } else { self.spec.value_size };
            self.there.fill(false);
            self.in_families = preset == Preset::FillFamilies;
            self.store.close()?;
            if engine::keeps_files(&self.spec.engine) {
                process::clear_dir(&self.spec.dir)?; // others may have been given no directory
            }
        } else if preset.writes() && self.synced != sync && engine::keeps_files(&self.spec.engine) {
            self.store.close()?;
        } else {
            return Ok(self);
        }
        Ok(Stage { store: (self.open)(&self.spec.dir, sync)?, synced: sync, ..self })
    }

    fn phase(&mut self, preset: Preset, number: u64) -> Result<()> {
        let spec = self.spec;
        let first = self.outcome.phases.len();
        let begun = Begun::now(self.base_rss);
        if matches!(preset, Preset::Compact | Preset::Flush) {
            self.whole(preset)?;
        } else {
            let (mut sorted, mut next) = (Vec::new(), Vec::new());
            if in_order(preset) {
                sorted = std::mem::take(&mut self.room);
                sorted.clear();
                sorted.extend(self.ids());
            } else if seeks(preset) {
                next = std::mem::take(&mut self.room);
                fill_next(&self.there, &mut next);
            }
            let (keys, values) = (self.keys()?, self.values());
            let shared = Shared { spec, keys, values, sorted, clock: self.clock, stop: AtomicBool::new(false) };
            let mut running = Running {
                preset,
                number,
                total: total(spec, preset),
                batch: batch(spec, preset),
                there: std::mem::take(&mut self.there),
                next,
                readers: AtomicUsize::new(spec.threads),
                store: &*self.store,
                found: AtomicU64::new(0),
            };
            let threads = spec.threads + usize::from(preset.has_writer());
            let work = |w: &mut Worker<'_>| w.run(&running);
            let steps = Steps { threads, operations: operations(preset), batch: running.batch };
            phase_on(steps, &shared, &*self.store, &mut self.outcome, work)?;
            // Answers are those of the first kind.
            if let [first, second] = &mut self.outcome.phases[first..] {
                (first.verified, first.wrong) =
                    (std::mem::take(&mut second.verified), std::mem::take(&mut second.wrong));
            }
            // Relaxed: the threads have been joined.
            let found = running.found.load(Ordering::Relaxed);
            let gets = |p: &Phase| matches!(p.operation.as_str(), "GET" | "MGET" | "UPDATE");
            self.outcome.phases[first..].iter_mut().filter(|p| gets(p)).for_each(|p| p.found = Some(found));
            let written = self.outcome.phases[first..].get(1).map_or(0, |p| p.ops);
            self.there = std::mem::take(&mut running.there);
            if preset.writes() {
                running.touched(spec, written, |i| self.there[i as usize] = preset.creates());
            }
            if let Some(room) = [shared.sorted, running.next].into_iter().find(|room| room.capacity() > 0) {
                self.room = room;
            }
        }
        if spec.settles() && preset.writes() {
            self.outcome.phases[first].costs = Some(begun.settle(&*self.store, &spec.dir)?);
        }
        let before = spec.phases[..number as usize].iter().filter(|p| **p == preset).count();
        let name = if before == 0 { preset.name().to_owned() } else { format!("{}-{}", preset.name(), before + 1) };
        let entry = (spec.key_size + self.value_size) as u64;
        for phase in &mut self.outcome.phases[first..] {
            phase.name.clone_from(&name);
            self.outcome.user_bytes += match phase.operation.as_str() {
                "PUT" | "UPDATE" => phase.ops * entry,
                "DELETE" => phase.ops * spec.key_size as u64,
                "RANGE_DELETE" => phase.ops * 2 * spec.key_size as u64,
                _ => 0,
            };
        }
        Ok(())
    }

    /// A phase that is one call on the store.
    fn whole(&mut self, preset: Preset) -> Result<()> {
        let before = Usage::now();
        let start = Instant::now();
        if preset == Preset::Compact {
            self.store.compact()?
        } else {
            self.store.flush()?
        }
        let mut latency = Latencies::default();
        latency.record(start.elapsed().as_nanos() as u64);
        self.outcome.phases.push(Phase {
            operation: preset.name().to_uppercase(),
            batch: 1,
            ops: 1,
            seconds: start.elapsed().as_secs_f64(),
            latency: latency.summary(),
            usage: Usage::now().since(&before),
            ..Phase::default()
        });
        Ok(())
    }

    /// Gets every entry from its family.
    fn check_families(&self, keys: &Keys, values: &Values, tally: &mut Tally) -> Result<()> {
        let mut families = self.store.families(self.spec.families)?;
        let mut key = vec![0; keys.size()];
        for (i, there) in (0..).zip(&self.there) {
            keys.write(id_of(i), &mut key);
            let mut right = false;
            let found =
                families.get(family_of(i, self.spec), &key, &mut |v| right = values.check_fully(id_of(i), v))?;
            tally.judge(found == *there && (right || !found), || format!("families: key {} is not right", show(&key)));
        }
        Ok(())
    }

    fn finish(mut self, before: &Usage) -> Result<Outcome> {
        let spec = self.spec;
        let after = Usage::now();
        self.outcome.peak_rss = after.peak_rss.saturating_sub(before.rss);
        self.outcome.loaded_rss = after.rss.saturating_sub(before.rss);
        self.outcome.peak_vms = after.peak_vms;
        let ids: Vec<u64> = self.ids().collect();
        self.outcome.live_bytes = ids.len() as u64 * (spec.key_size + self.value_size) as u64;
        if spec.final_check && engine::keeps_data(&spec.engine) {
            let (keys, values) = (self.keys()?, self.values());
            let mut session = self.store.session()?;
            // The store's own family is empty where others hold the entries.
            let own = if self.in_families { &[][..] } else { &ids };
            let mut tally = whole_store(&mut *session, &keys, own, &mut value_of(&values, own))?;
            if self.in_families {
                self.check_families(&keys, &values, &mut tally)?;
            }
            self.outcome.final_check = (tally.verified, tally.wrong);
            self.outcome.examples.extend(tally.examples);
        }
        let Stage { store, mut outcome, .. } = self;
        let ((), close_seconds) = timed(|| store.close())?;
        outcome.close_seconds = close_seconds;
        outcome.written_bytes = Usage::now().since(before).written();
        outcome.disk_bytes = process::disk_bytes(&spec.dir);
        outcome.busy = engine::busy_answers();
        if !engine::keeps_data(&spec.engine) {
            outcome.forget_answers();
        }
        Ok(outcome)
    }
}

/// Operations of a phase.
fn total(spec: &Spec, preset: Preset) -> u64 {
    match preset {
        Preset::FillSync | Preset::Fill100K => (spec.entries / 1000).max(1),
        p if p.fills() => spec.entries,
        Preset::DeleteMost => spec.entries * 9 / 10,
        Preset::DeleteRanges => ranges(spec.entries),
        Preset::Overwrite | Preset::UpdateRandom | Preset::DeleteSeq | Preset::DeleteRandom => spec.entries,
        _ => spec.operations,
    }
}

fn batch(spec: &Spec, preset: Preset) -> usize {
    match preset {
        Preset::FillBatch => FILL_BATCH,
        Preset::FillFamilies => 1,
        Preset::DeleteMost => spec.batch,
        Preset::MultiReadRandom | Preset::Overwrite | Preset::DeleteSeq | Preset::DeleteRandom => spec.batch,
        p if p.fills() => spec.batch,
        _ => 1,
    }
}

/// What a phase's operations are called; what is done beside them comes second.
fn operations(preset: Preset) -> &'static [&'static str] {
    match preset {
        Preset::UpdateRandom => &["UPDATE"],
        Preset::ReadSeq => &["ITER"],
        Preset::MultiReadRandom => &["MGET"],
        Preset::ReadWhileWriting | Preset::ReadRandomWriteRandom => &["GET", "PUT"],
        Preset::SeekRandom => &["SEEK"],
        Preset::SeekRandomWhileWriting => &["SEEK", "PUT"],
        Preset::DeleteSeq | Preset::DeleteRandom | Preset::DeleteMost => &["DELETE"],
        Preset::DeleteRanges => &["RANGE_DELETE"],
        Preset::RangeRandom => &["RANGE"],
        p if p.creates() => &["PUT"],
        _ => &["GET"],
    }
}

/// Whether a phase must know which entry comes next.
fn in_order(preset: Preset) -> bool {
    matches!(preset, Preset::ReadSeq | Preset::RangeRandom)
}

/// Whether a phase must know where a seek lands.
fn seeks(preset: Preset) -> bool {
    matches!(preset, Preset::SeekRandom | Preset::SeekRandomWhileWriting)
}

/// Notes for each entry the first from there on that is there; the number of entries for none.
fn fill_next(there: &[bool], next: &mut Vec<u64>) {
    let mut after = there.len() as u64;
    next.resize(there.len(), 0);
    for (i, (t, next)) in there.iter().zip(next).enumerate().rev() {
        if *t {
            after = i as u64;
        }
        *next = after;
    }
}
