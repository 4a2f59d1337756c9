//! One store's part of a run, in its child process: open, seed, then one point after another.

use super::script::{Context, Loaded, Script, Swept, in_a_line};
pub use super::truth::Answers;
use super::truth::{Scan, Truth};
use super::worker::{Figures, KIND_NAMES, Shared, Tracker, Worker};
use crate::clock::Clock;
use crate::engine::{self, Bounds, Engine, EngineOptions};
use crate::error::{Error, Result};
use crate::measure::{Latencies, Summary, plural, show_count};
use crate::pin::Pin;
use crate::process::{self, Usage};
use crate::progress::{Goal, Progress};
use crate::say::note;
use crate::settle::{Begun, Costs};
use crate::trace::{Recorded, Recorder};
use kingtide_base::hash::mix64;
use mlua::{Lua, Table};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Barrier, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// When a point ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// After so many calls of `run` over all threads.
    Units(u64),
    /// After so many seconds.
    Seconds(f64),
    /// After a trace, of so many calls.
    Trace(u64),
    /// Never: the process that started it kills it, and no progress is shown.
    Endless,
}

/// In words: `5 s a point`.
impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Limit::Units(n) => write!(f, "{} units a point", show_count(*n as f64)),
            Limit::Trace(n) => write!(f, "a trace of {} operations", show_count(*n as f64)),
            Limit::Seconds(s) => write!(f, "{s} s a point"),
            Limit::Endless => f.write_str("points without an end"),
        }
    }
}

/// One point of the grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Worker threads.
    pub threads: usize,
    /// `ctx.batch`.
    pub batch: u64,
    /// The swept parameter and its value.
    pub swept: Option<(String, Swept)>,
    /// Calls of `run` that are due each second, where points of one run differ in that.
    #[serde(default)]
    pub rate: Option<f64>,
}

impl Point {
    /// Whether both are one place of the grid.
    pub fn same_place(&self, other: &Point) -> bool {
        self.threads == other.threads && self.swept == other.swept
    }

    /// Where it is, for people: `4 threads, batch 64`.
    pub fn place(&self) -> String {
        let threads = if self.threads == 1 { "thread" } else { "threads" };
        let swept = self.swept.as_ref().map_or(String::new(), |(param, value)| format!(", {param} {value}"));
        let rate = self.rate.map_or(String::new(), |r| format!(" ({} wu/s due)", show_count(r)));
        format!("{} {threads}{swept}{rate}", self.threads)
    }
}

/// One store and the points that run against it, as the child process gets them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The workload.
    pub script: Script,
    /// Its name.
    pub workload: String,
    /// The engine.
    pub engine: String,
    /// Its directory.
    pub dir: PathBuf,
    /// Its options.
    pub options: EngineOptions,
    /// Loading threads; none if the data set is there.
    pub seed_threads: usize,
    /// Points, in order.
    pub points: Vec<Point>,
    /// What all points share.
    pub context: Context,
    /// When a point ends.
    pub limit: Limit,
    /// Seconds for which a point runs before it is measured.
    pub warmup: f64,
    /// Open loop: calls of `run` that are due each second, over all threads.
    pub rate: Option<f64>,
    /// Seconds between readings; 0: none.
    pub timeline: f64,
    /// Whether answers are verified.
    pub verify: bool,
    /// Whether what writes cost is taken again when they are settled; none: where points write.
    #[serde(default)]
    pub settle: Option<bool>,
    /// Where worker threads run.
    #[serde(default)]
    pub pin: Pin,
    /// Where its operations are recorded.
    #[serde(default)]
    pub trace: Option<PathBuf>,
}

impl Spec {
    /// Whether the cost of writes is taken again when they are settled, of a store that was given so many bytes by its loader
    /// and by the end of its points.
    fn settles(&self, seeded: u64, given: u64) -> bool {
        let wanted = self.settle.unwrap_or(given > seeded);
        wanted && given > 0 && engine::keeps_files(&self.engine)
    }
}

/// What a store is going through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The data set is being loaded.
    Seed,
    /// A point runs, but is not measured yet.
    Warmup,
    /// A point is measured.
    Run,
}

impl Phase {
    /// In tables.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Seed => "seed",
            Phase::Warmup => "warmup",
            Phase::Run => "run",
        }
    }
}

/// Figures of one kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Op {
    /// `put`, `get`, ...
    pub name: String,
    /// Latencies.
    pub latency: Summary,
    /// Calls that the engine failed and the script went on after: in none of the latencies.
    #[serde(default)]
    pub failed: u64,
}

/// Figures of a phase: of seeding or of a point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Calls of `run`.
    pub units: u64,
    /// Key touches.
    pub touches: u64,
    /// Gets that found something, and that did not.
    pub hits: u64,
    /// Gets that found nothing.
    pub misses: u64,
    /// What the engine said when it first failed a call that the script went on after.
    #[serde(default)]
    pub first_failure: Option<String>,
    /// Transactions that had to give way.
    pub aborts: u64,
    /// Bytes of keys and values that were written, and of keys that were deleted.
    #[serde(default)]
    pub put_bytes: u64,
    /// Bytes of keys and values in answers.
    #[serde(default)]
    pub got_bytes: u64,
    /// One entry for each kind that was used.
    pub ops: Vec<Op>,
    /// What it cost.
    pub usage: Usage,
    /// Nanoseconds of processor time that the worker threads used, together.
    #[serde(default)]
    pub callers_cpu_ns: u64,
    /// Mean of resident bytes, as sampled, above what the harness held before the store was opened.
    pub mean_rss: f64,
    /// Answers checked.
    pub verified: u64,
    /// Wrong ones.
    pub wrong: u64,
    /// What was wrong with the first few.
    pub examples: Vec<String>,
}

impl Measured {
    /// Calls of `run` a second.
    pub fn unit_rate(&self) -> f64 {
        if self.seconds > 0.0 { self.units as f64 / self.seconds } else { 0.0 }
    }

    /// Key touches a second.
    pub fn touch_rate(&self) -> f64 {
        if self.seconds > 0.0 { self.touches as f64 / self.seconds } else { 0.0 }
    }

    /// The share of gets that found something, if there were any.
    pub fn hit_rate(&self) -> Option<f64> {
        let gets = self.hits + self.misses;
        (gets > 0).then(|| self.hits as f64 / gets as f64)
    }
}

/// A store's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Closed {
    /// Seconds to close it.
    pub seconds: f64,
    /// Bytes of its files.
    pub disk_bytes: u64,
    /// Bytes written since it was opened.
    pub written_bytes: u64,
    /// Bytes of keys and values that it was given since then.
    #[serde(default)]
    pub put_bytes: u64,
    /// Bytes of keys and values that were in it at the end, if it was read to learn that.
    #[serde(default)]
    pub live_bytes: Option<u64>,
    /// Most resident bytes, above what the harness held before it was opened.
    pub peak_rss: u64,
    /// How often the engine said that it was busy.
    pub busy: u64,
}

/// What a child sends to its parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The store is open.
    Opened { version: String, durability: String, options: Vec<(String, String)>, seconds: f64 },
    /// The data set is loaded.
    Seeded(Measured),
    /// A point is done.
    Done { point: Point, measured: Measured },
    /// A reading of the timeline.
    Sample { phase: Phase, point: Point, elapsed: f64, metrics: Vec<(String, f64)> },
    /// What its writes cost, before and after they were settled.
    Settled(Costs),
    /// All that the store holds was read and compared with what was written.
    Checked(Answers),
    /// The store is closed.
    Closed(Closed),
    /// The engine is not on this machine.
    Unavailable(String),
    /// The user's mistake.
    Usage(String),
    /// The run failed.
    Failed(String),
}

/// Runs a specification; `send` gets what is to be told.
pub fn run(
    spec: &Spec,
    open: &dyn Fn(&Path) -> Result<Box<dyn Engine>>,
    send: &mut dyn FnMut(Message) -> Result<()>,
) -> Result<()> {
    let clock = Clock::calibrated();
    process::reset_peak();
    let before = Usage::now();
    let start = Instant::now();
    let store = open(&spec.dir)?;
    send(Message::Opened {
        version: store.version(),
        durability: store.durability(),
        options: store.effective_options(),
        seconds: start.elapsed().as_secs_f64(),
    })?;
    // The answers of an engine that keeps nothing cannot be right.
    let truth = (spec.verify && engine::keeps_data(&spec.engine)).then(|| Arc::new(Truth::default()));
    let mut stage = Stage {
        spec,
        store: &*store,
        clock,
        truth: truth.clone(),
        recorder: None,
        base_rss: before.rss,
        put_bytes: 0,
        points: 0,
        most_rss: 0,
        send,
    };
    if let Some(path) = &spec.trace {
        let remark = format!("{} on {} {}", spec.workload, spec.engine, store.version());
        stage.recorder = Some(Recorder::create(path, &remark, clock)?);
    }
    let begun = Begun::now(before.rss);
    if spec.seed_threads > 0 {
        stage.seed()?;
    }
    let seeded = stage.put_bytes;
    for point in &spec.points {
        stage.measure(point)?;
    }
    if spec.settles(seeded, stage.put_bytes) {
        note!("{} {}: flushing, and waiting until compaction is idle", spec.engine, spec.workload);
        let costs = begun.settle(&*store, &spec.dir)?;
        (stage.send)(Message::Settled(costs))?;
    }
    let (put_bytes, most_rss) = (stage.put_bytes, stage.most_rss);
    drop(stage);
    // The kernel notes the peak only now and then; a sample may have seen more.
    let peak_rss = Usage::now().peak_rss.saturating_sub(before.rss).max(most_rss);
    let small = engine::keeps_data(&spec.engine) && process::disk_bytes(&spec.dir) <= READ_WHOLE;
    let mut live_bytes = None;
    if truth.is_some() || small {
        let (answers, bytes) = whole_store(&*store, truth.as_ref())?;
        live_bytes = Some(bytes);
        if truth.is_some() {
            send(Message::Checked(answers))?;
        }
    }
    let start = Instant::now();
    store.close()?;
    let seconds = start.elapsed().as_secs_f64();
    let written_bytes = Usage::now().since(&before).written();
    let disk_bytes = process::disk_bytes(&spec.dir);
    let busy = engine::busy_answers();
    send(Message::Closed(Closed { seconds, disk_bytes, written_bytes, put_bytes, live_bytes, peak_rss, busy }))
}

/// Bytes on disk up to which a store is read at its end only to learn how many of its bytes are live.
const READ_WHOLE: u64 = 1 << 30;

/// Reads all that a store holds when no thread writes any more, and adds up the bytes of its entries. Where answers are
/// verified, exactly what was written and not deleted may be there.
fn whole_store(store: &dyn Engine, truth: Option<&Arc<Truth>>) -> Result<(Answers, u64)> {
    let (mut answers, mut bytes) = (Answers::default(), 0);
    let mut check = truth.map(|truth| Scan::begin(truth, "closing scan", b"", None, usize::MAX));
    let mut session = store.session()?;
    let mut cursor = session.cursor(Bounds::default())?;
    let mut valid = cursor.first()?;
    while valid {
        let (key, value) = cursor.entry()?;
        bytes += (key.len() + value.len()) as u64;
        if let Some(check) = &mut check {
            check.row(key, value, &mut answers);
        }
        valid = cursor.next()?;
    }
    if let Some(check) = &check {
        check.end(&mut answers);
    }
    Ok((answers, bytes))
}

/// Lets the other seeding threads know whether thread 0's loader asked which share is its own. One that does not is
/// loaded by thread 0 alone.
#[derive(Default)]
struct Sharding {
    answer: Mutex<Option<bool>>,
    told: Condvar,
}

impl Sharding {
    fn tell(&self, shards: bool) {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        answer.get_or_insert(shards);
        self.told.notify_all();
    }

    fn wait(&self) -> bool {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(shards) = *answer {
                return shards;
            }
            answer = self.told.wait(answer).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Tells the choices of warming up from those that are measured.
const WARMUP_SEED: u64 = 0x7761_726d_7570;

/// The seed of what the threads of a phase draw; `number` points ran on the store before. Each phase draws for itself: else a point would
/// meet the very keys that loading, warming up or the point before has just met, in the same order, and what is in caches by then.
fn seed(own: u64, phase: Phase, number: u64) -> u64 {
    match phase {
        Phase::Seed => own,
        Phase::Warmup => own ^ mix64(number + 1) ^ WARMUP_SEED,
        Phase::Run => own ^ mix64(number + 1),
    }
}

/// What one thread runs: given its index, its script, its worker and its tracker.
type Job<'a> = &'a (dyn Fn(usize, &Loaded, &Shared, &Tracker) -> Result<()> + Sync);

struct Stage<'a> {
    spec: &'a Spec,
    store: &'a dyn Engine,
    clock: Clock,
    truth: Option<Arc<Truth>>,
    recorder: Option<Arc<Recorder>>,
    /// Resident bytes of the harness before the store was opened.
    base_rss: u64,
    /// Bytes of keys and values that were written so far.
    put_bytes: u64,
    /// Points that were measured so far.
    points: u64,
    /// The largest mean of resident bytes of its phases.
    most_rss: u64,
    send: &'a mut dyn FnMut(Message) -> Result<()>,
}

impl Stage<'_> {
    fn context(&self, point: &Point) -> Context {
        let ops = if let Limit::Units(n) = self.spec.limit { n } else { 0 };
        Context { ops, batch: point.batch, swept: point.swept.clone(), ..self.spec.context.clone() }
    }

    fn seed(&mut self) -> Result<()> {
        let threads = self.spec.seed_threads;
        let point = Point { threads, ..self.spec.points[0].clone() };
        let context = self.context(&point);
        let sharding = Arc::new(Sharding::default());
        let job = |thread: usize, loaded: &Loaded, shared: &Shared, _: &Tracker| {
            let Some(load) = &loaded.load else { return Ok(()) };
            if thread > 0 && !sharding.wait() {
                return Ok(());
            }
            let table = context.table(&loaded.lua).and_then(|t| {
                sharded(&loaded.lua, &t, thread, threads, &sharding)?;
                Ok(t)
            });
            let done = table.and_then(|t| load.call::<()>(t)).and_then(|()| shared.borrow_mut().no_txn_left());
            sharding.tell(false);
            verdict(done, shared)
        };
        let title = format!("{} {}: seeding", self.spec.engine, self.spec.workload);
        // The threads that wait to hear whether there are shares must hear it even if thread 0 never gets to load.
        let failed = || sharding.tell(false);
        let goal = if matches!(self.spec.limit, Limit::Endless) { Goal::Unseen } else { Goal::Unknown };
        let measured = self.threads(&point, Phase::Seed, Progress::start(title, "keys", goal), &job, &failed)?;
        (self.send)(Message::Seeded(measured))
    }

    fn measure(&mut self, point: &Point) -> Result<()> {
        if self.spec.warmup > 0.0 {
            self.run_point(point, Limit::Seconds(self.spec.warmup), Phase::Warmup)?;
        }
        let measured = self.run_point(point, self.spec.limit, Phase::Run)?;
        self.points += 1;
        (self.send)(Message::Done { point: point.clone(), measured })
    }

    fn run_point(&mut self, point: &Point, limit: Limit, phase: Phase) -> Result<Measured> {
        let context = self.context(point);
        // A trace has its own times.
        let rate = point.rate.or(self.spec.rate).filter(|_| !matches!(self.spec.limit, Limit::Trace(_)));
        let pace = rate.map(|rate| Pace { rate, threads: point.threads });
        let clock = self.clock;
        let stop = AtomicBool::new(false);
        let job = |thread: usize, loaded: &Loaded, shared: &Shared, tracker: &Tracker| {
            let turn = Turn { thread, threads: point.threads, limit, pace, clock };
            verdict(units(loaded, &context, &turn, tracker, shared, &stop), shared)
        };
        // Relaxed: pairs with nothing; the others stop a little later.
        let failed = || stop.store(true, Ordering::Relaxed);
        let goal = match limit {
            Limit::Units(n) | Limit::Trace(n) => Goal::Units(n),
            Limit::Seconds(s) => Goal::Seconds(s),
            Limit::Endless => Goal::Unseen,
        };
        let swept = point.swept.as_ref().map_or(String::new(), |(p, v)| format!(", {p} {v}"));
        let (engine, workload, threads) = (&self.spec.engine, &self.spec.workload, point.threads);
        let doing = if phase == Phase::Warmup { "warming up, " } else { "" };
        let title = format!("{engine} {workload}: {doing}{}{swept}", plural(threads, "thread"));
        self.threads(point, phase, Progress::start(title, "units", goal), &job, &failed)
    }

    /// Runs `job` on every thread at once, samples once a second meanwhile, and adds the threads' figures up. `failed` is
    /// called on a thread that cannot go on.
    fn threads(
        &mut self,
        point: &Point,
        phase: Phase,
        mut progress: Progress,
        job: Job<'_>,
        failed: &(dyn Fn() + Sync),
    ) -> Result<Measured> {
        let threads = point.threads;
        let trackers: Vec<Arc<Tracker>> = (0..threads).map(|_| Arc::default()).collect();
        // The threads and this one, which takes the time.
        let barrier = Barrier::new(threads + 1);
        let (done, ended) = channel();
        // Of the first thread, not when this one gets a processor again.
        let began = OnceLock::new();
        let mut sampler = Sampler::new(phase, point.clone(), self.store, &self.spec.dir);
        let mut measured = Measured::default();
        let mut before = Usage::default();
        let (spec, store, clock, truth) = (self.spec, self.store, self.clock, self.truth.clone());
        let (recorder, number) = (self.recorder.clone(), self.points);
        let one = |thread: usize, tracker: Arc<Tracker>| -> Result<Figures> {
            let prepare = || -> Result<(Loaded, Shared)> {
                spec.pin.apply(thread)?;
                let mut session = store.session()?;
                if let Some(recorder) = &recorder {
                    session = Recorded::wrap(session, recorder, phase != Phase::Run, thread);
                }
                let shared = Worker::new(session, clock, truth.clone(), Arc::clone(&tracker));
                if let Some(how) = spec.options.transactions {
                    shared.borrow_mut().how = how;
                }
                let seed = seed(spec.context.seed, phase, number).wrapping_add(thread as u64);
                let loaded = spec.script.load(Some(&shared), seed)?;
                // What the chunk no longer uses is not collected within the measured time.
                loaded.lua.gc_collect().map_err(|e| Error::failed(in_a_line(&e)))?;
                Ok((loaded, shared))
            };
            let prepared = prepare();
            let cpu = process::thread_cpu_ns();
            barrier.wait();
            began.get_or_init(Instant::now);
            let done = prepared.and_then(|(loaded, shared)| {
                job(thread, &loaded, &shared, &tracker)?;
                let mut figures = std::mem::take(&mut shared.borrow_mut().figures);
                figures.cpu_ns = process::thread_cpu_ns().saturating_sub(cpu);
                Ok(figures)
            });
            done.inspect_err(|_| failed())
        };
        let shares = std::thread::scope(|scope| -> Result<Vec<Result<Figures>>> {
            let handles: Vec<_> = trackers
                .iter()
                .enumerate()
                .map(|(thread, tracker)| {
                    let (one, done, tracker) = (&one, done.clone(), Arc::clone(tracker));
                    scope.spawn(move || {
                        let result = one(thread, tracker);
                        // The receiver is gone only when this run has failed already.
                        let _ = done.send(Instant::now());
                        result
                    })
                })
                .collect();
            drop(done);
            barrier.wait();
            before = Usage::now();
            let start = *began.get_or_init(Instant::now);
            let end = attend(&ended, start, spec.timeline, |show, sample| {
                let counts = counts(&trackers);
                if show {
                    progress.update(if phase == Phase::Seed { counts.touches } else { counts.units });
                }
                if sample { (self.send)(sampler.take(start.elapsed(), counts)) } else { Ok(()) }
            })?;
            measured.seconds = end.saturating_duration_since(start).as_secs_f64();
            let join = |h: std::thread::ScopedJoinHandle<'_, Result<Figures>>| {
                h.join().unwrap_or_else(|_| Err(Error::failed("a thread of the harness panicked")))
            };
            Ok(handles.into_iter().map(join).collect())
        });
        progress.finish();
        measured.usage = Usage::now().since(&before);
        let shares: Vec<Figures> = shares?.into_iter().collect::<Result<_>>()?;
        measured.units = counts(&trackers).units;
        let end = Duration::from_secs_f64(measured.seconds);
        if spec.timeline > 0.0 && sampler.worth_a_reading(end, spec.timeline) {
            (self.send)(sampler.take(end, counts(&trackers)))?;
        }
        measured.mean_rss = (sampler.mean_rss() - self.base_rss as f64).max(0.0);
        self.most_rss = self.most_rss.max(measured.mean_rss.ceil() as u64);
        add_up(&mut measured, shares);
        self.put_bytes += measured.put_bytes;
        Ok(measured)
    }
}

/// Waits until all threads have ended, and returns when the last one did. Meanwhile it calls `look` when progress is to be shown,
/// once a second, and when a reading is due, every `timeline` seconds.
fn attend(
    ended: &Receiver<Instant>,
    start: Instant,
    timeline: f64,
    mut look: impl FnMut(bool, bool) -> Result<()>,
) -> Result<Instant> {
    let (mut show, mut sample, mut end) = (Every::new(start, 1.0), Every::new(start, timeline), start);
    loop {
        let next = show.next.min(sample.next);
        match ended.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(at) => end = end.max(at),
            Err(RecvTimeoutError::Disconnected) => return Ok(end),
            Err(RecvTimeoutError::Timeout) => look(show.due(), sample.due())?,
        }
    }
}

/// Gives a loader's `ctx` its `thread` and `threads`, and notes when it asks for them.
fn sharded(lua: &Lua, ctx: &Table, thread: usize, threads: usize, sharding: &Arc<Sharding>) -> mlua::Result<()> {
    let meta = lua.create_table()?;
    let sharding = Arc::clone(sharding);
    let index = move |_: &Lua, (_, name): (Table, mlua::Value)| {
        let asked = match name.to_string()?.as_str() {
            "thread" => thread,
            "threads" => threads,
            _ => return Ok(None),
        };
        sharding.tell(true);
        Ok(Some(asked))
    };
    meta.set("__index", lua.create_function(index)?)?;
    ctx.set_metatable(Some(meta))
}

/// When calls of `run` are due in an open loop.
#[derive(Clone, Copy)]
struct Pace {
    /// A second, over all threads.
    rate: f64,
    threads: usize,
}

/// How many times as long as it should a point of an open loop may last, until the calls that were due in its time are made: those
/// that a stall at its end delayed would else be in no figure. An engine that is not done by then delivers half of the rate.
const CATCH_UP: u32 = 2;

impl Pace {
    /// When a thread's call number `done` is due, after the beginning. The threads take turns.
    fn due(&self, thread: usize, done: u64) -> Duration {
        let call = done as f64 * self.threads as f64 + thread as f64;
        Duration::try_from_secs_f64(call / self.rate).unwrap_or(Duration::MAX)
    }
}

/// One thread's part of a point.
struct Turn {
    thread: usize,
    threads: usize,
    limit: Limit,
    pace: Option<Pace>,
    clock: Clock,
}

/// Bytes that a script's state may grow by before Lua's collector looks for what is no longer used.
const GARBAGE: usize = 4 << 20;
/// Calls between two looks at how large it is.
const LOOK: u64 = 64;

/// The percentage of its size up to which a state grows before it is collected again, as Lua has it.
const DOUBLE: i64 = 200;

/// Sets that percentage, of which 1000 is the most. Returns what it was.
fn collect_at(loaded: &Loaded, percent: i64) -> mlua::Result<i64> {
    loaded.collector.call(("setpause", percent))
}

/// Has the collector wait longer than it would of itself: a small state doubles within a few calls, and a cycle costs more than those.
/// Returns the size beyond which the state must be large, so that it should no longer wait. The state has just been collected.
fn collect_rarely(loaded: &Loaded) -> mlua::Result<usize> {
    let used = loaded.lua.used_memory().max(1);
    let percent = (100 + 100 * GARBAGE / used).clamp(DOUBLE as usize, 1000);
    let before = collect_at(loaded, percent as i64)?;
    if before != DOUBLE {
        // The script knows better.
        collect_at(loaded, before)?;
        return Ok(usize::MAX);
    }
    Ok(2 * (used + GARBAGE))
}

/// Calls `run` until the limit is reached.
fn units(
    loaded: &Loaded,
    context: &Context,
    turn: &Turn,
    tracker: &Tracker,
    shared: &Shared,
    stop: &AtomicBool,
) -> mlua::Result<()> {
    let (thread, threads) = (turn.thread, turn.threads);
    let ctx = context.table(&loaded.lua)?;
    ctx.set("thread", thread)?;
    ctx.set("threads", threads)?;
    // Made once: to make the string again for each call would cost more than the call.
    let iter = loaded.lua.create_string("iter")?;
    let mut large = collect_rarely(loaded)?;
    let start = turn.clock.now();
    let since = |now| Duration::from_nanos(turn.clock.ns(start, now));
    let elapsed = || since(turn.clock.now());
    let mut over = false;
    let (quota, time) = match turn.limit {
        // Whole units, the first threads taking one more when they do not divide evenly.
        Limit::Units(n) => (n / threads as u64 + u64::from((thread as u64) < n % threads as u64), None),
        Limit::Seconds(s) => (u64::MAX, Some(Duration::from_secs_f64(s))),
        Limit::Trace(_) | Limit::Endless => (u64::MAX, None),
    };
    let end = time.map(|t| if turn.pace.is_some() { t.saturating_mul(CATCH_UP) } else { t });
    let mut done = 0;
    // Relaxed: a hint to give up soon; nothing else is read because of it.
    while done < quota && !over && !stop.load(Ordering::Relaxed) {
        if let Some(pace) = &turn.pace {
            let due = pace.due(thread, done);
            if let Some(t) = time.filter(|t| due >= *t) {
                // The point lasts as long as it should: rates are counts over that time, however few calls there were.
                // Relaxed: as above.
                while elapsed() < t && !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(t.saturating_sub(elapsed()).min(Duration::from_millis(20)));
                }
                break;
            }
            // A call that is late begins at once, and its latency counts from when it was due.
            std::thread::sleep(due.saturating_sub(elapsed()));
            shared.borrow_mut().late(elapsed().saturating_sub(due));
        }
        ctx.raw_set(&iter, done + 1)?;
        loaded.run.call::<()>(&ctx)?;
        let mut worker = shared.borrow_mut();
        if worker.over {
            break;
        }
        worker.no_txn_left()?;
        // The script has caught it: it is counted as failed, and the script goes on.
        worker.failure = None;
        // The last operation has read the clock already, unless there was none.
        let now = match std::mem::take(&mut worker.now) {
            0 => turn.clock.now(),
            now => now,
        };
        over = end.is_some_and(|t| since(now) >= t);
        drop(worker);
        done += 1;
        if done.is_multiple_of(LOOK) && loaded.lua.used_memory() > large {
            // From the end of a cycle on.
            collect_at(loaded, DOUBLE)?;
            loaded.lua.gc_collect()?;
            large = usize::MAX;
        }
        // Relaxed: read to show progress, which needs no other memory.
        tracker.units.store(done, Ordering::Relaxed);
    }
    Ok(())
}

/// The engine's own error if the script did not catch it; otherwise the script's, if there was one.
fn verdict(done: mlua::Result<()>, shared: &Shared) -> Result<()> {
    let failure = shared.borrow_mut().failure.take();
    done.map_err(|e| failure.unwrap_or_else(|| Error::usage(format!("the script failed: {}", in_a_line(&e)))))
}

fn add_up(measured: &mut Measured, shares: Vec<Figures>) {
    let mut total: [Latencies; KIND_NAMES.len()] = Default::default();
    let mut failed = [0; KIND_NAMES.len()];
    let mut answers = Answers::default();
    for share in shares {
        failed.iter_mut().zip(&share.failed).for_each(|(all, own)| *all += own);
        measured.first_failure = measured.first_failure.take().or(share.first_failure);
        for (all, own) in total.iter_mut().zip(&share.latencies) {
            all.merge(own);
        }
        measured.touches += share.touches;
        measured.callers_cpu_ns += share.cpu_ns;
        measured.hits += share.hits;
        measured.misses += share.misses;
        measured.aborts += share.aborts;
        measured.put_bytes += share.put_bytes;
        measured.got_bytes += share.got_bytes;
        answers.merge(share.answers);
    }
    let Answers { verified, wrong, examples } = answers;
    (measured.verified, measured.wrong, measured.examples) = (verified, wrong, examples);
    let used = KIND_NAMES.iter().zip(&total).zip(failed).filter(|((_, l), failed)| l.count() + failed > 0);
    let op =
        |((name, l), failed): ((&&str, &Latencies), u64)| Op { name: name.to_string(), latency: l.summary(), failed };
    measured.ops = used.map(op).collect();
}

/// How far all threads are.
#[derive(Clone, Copy, Default)]
struct Counts {
    units: u64,
    touches: u64,
}

fn counts(trackers: &[Arc<Tracker>]) -> Counts {
    // Relaxed: figures to show; the exact ones are read when the threads have been joined.
    let sum = |of: fn(&Tracker) -> &AtomicU64| trackers.iter().map(|t| of(t).load(Ordering::Relaxed)).sum();
    Counts { units: sum(|t| &t.units), touches: sum(|t| &t.touches) }
}

/// Moments at equal distances.
struct Every {
    next: Instant,
    distance: Duration,
}

impl Every {
    /// From `start` on; a distance of 0 means never.
    fn new(start: Instant, seconds: f64) -> Every {
        let distance = Duration::from_secs_f64(if seconds > 0.0 { seconds } else { 1e9 });
        Every { next: start + distance, distance }
    }

    /// Whether a moment has come since the last call. Moments that were missed count as one.
    fn due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.next;
        while self.next <= now {
            self.next += self.distance;
        }
        due
    }
}

/// Takes readings of the process, its directory and its engine, under the names that scripts for plotting know.
struct Sampler<'a> {
    phase: Phase,
    point: Point,
    store: &'a dyn Engine,
    dir: &'a Path,
    last: (Duration, Counts, Usage),
    rss: Vec<f64>,
}

const MIB: f64 = 1_048_576.0;

impl<'a> Sampler<'a> {
    fn new(phase: Phase, point: Point, store: &'a dyn Engine, dir: &'a Path) -> Sampler<'a> {
        let last = (Duration::ZERO, Counts::default(), Usage::now());
        Sampler { phase, point, store, dir, last, rss: Vec::new() }
    }

    fn take(&mut self, elapsed: Duration, counts: Counts) -> Message {
        let u = Usage::now();
        self.rss.push(u.rss as f64);
        let (then, before, used) = std::mem::replace(&mut self.last, (elapsed, counts, u));
        let span = (elapsed.saturating_sub(then)).as_secs_f64();
        let a_second = |n: f64| if span > 0.0 { n / span } else { 0.0 };
        let machine = process::Machine::now();
        let cpu = u.cpu_user + u.cpu_sys - used.cpu_user - used.cpu_sys;
        let mut metrics: Vec<(String, f64)> = Vec::new();
        let mut add = |name: &str, value: f64| metrics.push((name.to_owned(), value));
        if self.phase == Phase::Seed {
            add("seed_keys", counts.touches as f64);
        }
        // A transaction that is rolled back takes its touches back, so there may be fewer than at the last reading.
        add("wu_per_s", a_second(counts.units.saturating_sub(before.units) as f64));
        add("ops_per_s", a_second(counts.touches.saturating_sub(before.touches) as f64));
        add("cpu_util_pct", machine.busy_percent);
        add("proc_cpu_pct", 100.0 * a_second(cpu));
        // Metrics that end in `_mb` are in MiB: they have the names that the original keybench's plot scripts look for.
        add("mem_avail_mb", machine.available / MIB);
        add("load1", machine.load);
        add("rss_mb", u.rss as f64 / MIB);
        add("peak_rss_mb", u.peak_rss as f64 / MIB);
        add("minflt", u.minor_faults as f64);
        add("majflt", u.major_faults as f64);
        let (own, forced) = process::context_switches();
        add("vol_ctxsw", own as f64);
        add("invol_ctxsw", forced as f64);
        add("io_read_mb", u.disk_read as f64 / MIB);
        add("io_write_mb", u.disk_write as f64 / MIB);
        add("threads", u.threads as f64);
        add("disk_bytes", process::disk_bytes(self.dir) as f64);
        add("busy_answers", engine::busy_answers() as f64);
        metrics.extend(self.store.stats());
        Message::Sample { phase: self.phase, point: self.point.clone(), elapsed: elapsed.as_secs_f64(), metrics }
    }

    /// Whether enough time went by since the last reading for the rate of the rest to mean something. The first always does.
    fn worth_a_reading(&self, elapsed: Duration, interval: f64) -> bool {
        self.rss.is_empty() || elapsed.saturating_sub(self.last.0).as_secs_f64() >= interval / 2.0
    }

    /// Mean of resident bytes over the readings; those of now if there were none.
    fn mean_rss(&self) -> f64 {
        match self.rss.len() {
            0 => Usage::now().rss as f64,
            n => self.rss.iter().sum::<f64>() / n as f64,
        }
    }
}
