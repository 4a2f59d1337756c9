//! One store's part of a run, in its child process: open, seed, then one point after another.

use super::kv::{Figures, KIND_NAMES, Shared, Tracker, Worker};
use super::script::{Context, Loaded, Script, Swept};
use super::truth::Truth;
use crate::clock::Clock;
use crate::engine::{self, Engine, EngineOptions};
use crate::error::{Error, Result};
use crate::measure::{Latencies, Summary};
use crate::process::{self, Usage};
use crate::progress::{Goal, Progress};
use mlua::{Lua, Table};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Barrier, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When a point ends.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Limit {
    /// After so many calls of `run` over all threads.
    Units(u64),
    /// After so many seconds.
    Seconds(f64),
}

/// One point of the grid.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Worker threads.
    pub threads: usize,
    /// `ctx.batch`.
    pub batch: u64,
    /// The swept parameter and its value.
    pub swept: Option<(String, Swept)>,
}

/// One store and the points that run against it, as the child process is told.
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
    /// Loading threads.
    pub seed_threads: usize,
    /// Points, in order.
    pub points: Vec<Point>,
    /// What all points share.
    pub context: Context,
    /// When a point ends.
    pub limit: Limit,
    /// Whether answers are verified.
    pub verify: bool,
}

/// Figures of one kind of operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Op {
    /// `put`, `get`, ...
    pub name: String,
    /// Latencies.
    pub latency: Summary,
}

/// Figures of a phase: of seeding or of a point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
    /// Transactions that had to give way.
    pub aborts: u64,
    /// One entry for each kind that was used.
    pub ops: Vec<Op>,
    /// What it cost.
    pub usage: Usage,
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

/// What a child sends to its parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The store is open.
    Opened { version: String, durability: String, options: Vec<(String, String)>, seconds: f64 },
    /// The data set is loaded.
    Seeded(Measured),
    /// A point is done.
    Done { point: Point, measured: Measured },
    /// A reading, about once a second.
    Sample { seeding: bool, point: Point, elapsed: f64, metrics: Vec<(String, f64)> },
    /// The store is closed.
    Closed { seconds: f64, disk_bytes: u64, written_bytes: u64, peak_rss: u64, busy: u64 },
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
    let truth = spec.verify.then(|| Arc::new(Truth::default()));
    let mut stage = Stage { spec, store: &*store, clock, truth, base_rss: before.rss, send };
    stage.seed()?;
    for point in &spec.points {
        stage.measure(point)?;
    }
    drop(stage);
    let peak_rss = Usage::now().peak_rss.saturating_sub(before.rss);
    let start = Instant::now();
    store.close()?;
    let seconds = start.elapsed().as_secs_f64();
    let written_bytes = Usage::now().since(&before).written();
    let disk_bytes = process::disk_bytes(&spec.dir);
    send(Message::Closed { seconds, disk_bytes, written_bytes, peak_rss, busy: engine::busy_answers() })
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

/// What one thread runs: given its index, its script, its worker and its tracker.
type Job<'a> = &'a (dyn Fn(usize, &Loaded, &Shared, &Tracker) -> Result<()> + Sync);

struct Stage<'a> {
    spec: &'a Spec,
    store: &'a dyn Engine,
    clock: Clock,
    truth: Option<Arc<Truth>>,
    /// Resident bytes of the harness before the store was opened.
    base_rss: u64,
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
        // Whoever waits to hear whether there are shares must hear it even if thread 0 never gets to load.
        let failed = || sharding.tell(false);
        let measured = self.threads(&point, true, Progress::start(title, "keys", Goal::Unknown), &job, &failed)?;
        (self.send)(Message::Seeded(measured))
    }

    fn measure(&mut self, point: &Point) -> Result<()> {
        let context = self.context(point);
        let limit = self.spec.limit;
        let stop = AtomicBool::new(false);
        let job = |thread: usize, loaded: &Loaded, shared: &Shared, tracker: &Tracker| {
            verdict(units(loaded, &context, limit, thread, point.threads, tracker, shared, &stop), shared)
        };
        // Relaxed: pairs with nothing; the others stop a little later.
        let failed = || stop.store(true, Ordering::Relaxed);
        let goal = match limit {
            Limit::Units(n) => Goal::Units(n),
            Limit::Seconds(s) => Goal::Seconds(s),
        };
        let swept = point.swept.as_ref().map_or(String::new(), |(p, v)| format!(", {p} {v}"));
        let title = format!("{} {}: {} threads{swept}", self.spec.engine, self.spec.workload, point.threads);
        let measured = self.threads(point, false, Progress::start(title, "units", goal), &job, &failed)?;
        (self.send)(Message::Done { point: point.clone(), measured })
    }

    /// Runs `job` on every thread at once, samples once a second meanwhile, and adds the threads' figures up. `failed` is
    /// called on a thread that cannot go on.
    fn threads(
        &mut self,
        point: &Point,
        seeding: bool,
        mut progress: Progress,
        job: Job<'_>,
        failed: &(dyn Fn() + Sync),
    ) -> Result<Measured> {
        let threads = point.threads;
        let trackers: Vec<Arc<Tracker>> = (0..threads).map(|_| Arc::default()).collect();
        // The threads and this one, which takes the time.
        let barrier = Barrier::new(threads + 1);
        let (done, ended) = channel();
        let mut sampler = Sampler::new(seeding, point.clone(), self.store, &self.spec.dir);
        let mut measured = Measured::default();
        let mut before = Usage::default();
        let (spec, store, clock, truth) = (self.spec, self.store, self.clock, self.truth.clone());
        let one = |thread: usize, tracker: Arc<Tracker>| -> Result<Figures> {
            let prepare = || -> Result<(Loaded, Shared)> {
                let shared = Worker::new(store.session()?, clock, truth.clone(), Arc::clone(&tracker));
                if let Some(how) = spec.options.transactions {
                    shared.borrow_mut().how = how;
                }
                let loaded = spec.script.load(Some(&shared), spec.context.seed.wrapping_add(thread as u64))?;
                Ok((loaded, shared))
            };
            let prepared = prepare();
            barrier.wait();
            let done = prepared.and_then(|(loaded, shared)| {
                job(thread, &loaded, &shared, &tracker)?;
                Ok(std::mem::take(&mut shared.borrow_mut().figures))
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
                        let _ = done.send(());
                        result
                    })
                })
                .collect();
            drop(done);
            barrier.wait();
            before = Usage::now();
            let start = Instant::now();
            let mut next = start + Duration::from_secs(1);
            loop {
                match ended.recv_timeout(next.saturating_duration_since(Instant::now())) {
                    Ok(()) => continue,
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                next += Duration::from_secs(1);
                let count = |t: &Arc<Tracker>| if seeding { &t.touches } else { &t.units }.load(Ordering::Relaxed);
                let rate = progress.update(trackers.iter().map(count).sum());
                (self.send)(sampler.take(start.elapsed(), rate))?;
            }
            measured.seconds = start.elapsed().as_secs_f64();
            let join = |h: std::thread::ScopedJoinHandle<'_, Result<Figures>>| {
                h.join().unwrap_or_else(|_| Err(Error::failed("a thread of the harness panicked")))
            };
            Ok(handles.into_iter().map(join).collect())
        });
        progress.finish();
        measured.usage = Usage::now().since(&before);
        let shares: Vec<Figures> = shares?.into_iter().collect::<Result<_>>()?;
        // Relaxed: the threads have been joined.
        measured.units = trackers.iter().map(|t| t.units.load(Ordering::Relaxed)).sum();
        let last = if seeding { measured.touch_rate() } else { measured.unit_rate() };
        (self.send)(sampler.take(Duration::from_secs_f64(measured.seconds), last))?;
        measured.mean_rss = (sampler.mean_rss() - self.base_rss as f64).max(0.0);
        add_up(&mut measured, shares);
        Ok(measured)
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

/// Calls `run` until the limit is reached.
#[allow(clippy::too_many_arguments)] // one caller; a struct would only rename them
fn units(
    loaded: &Loaded,
    context: &Context,
    limit: Limit,
    thread: usize,
    threads: usize,
    tracker: &Tracker,
    shared: &Shared,
    stop: &AtomicBool,
) -> mlua::Result<()> {
    let ctx = context.table(&loaded.lua)?;
    ctx.set("thread", thread)?;
    ctx.set("threads", threads)?;
    let start = Instant::now();
    let (quota, time) = match limit {
        // Whole units, the first threads taking one more when they do not divide evenly.
        Limit::Units(n) => (n / threads as u64 + u64::from((thread as u64) < n % threads as u64), None),
        Limit::Seconds(s) => (u64::MAX, Some(Duration::from_secs_f64(s))),
    };
    let mut done = 0;
    // Relaxed: a hint to give up soon; nothing else is read because of it.
    while done < quota && !stop.load(Ordering::Relaxed) {
        if time.is_some_and(|t| start.elapsed() >= t) {
            break;
        }
        ctx.raw_set("iter", done)?;
        loaded.run.call::<()>(&ctx)?;
        shared.borrow_mut().no_txn_left()?;
        if shared.borrow().failure.is_some() {
            break;
        }
        done += 1;
        // Relaxed: read by whoever shows progress, which needs no other memory.
        tracker.units.store(done, Ordering::Relaxed);
    }
    Ok(())
}

/// The engine's own error where there was one, whether or not the script caught it; the script's otherwise.
fn verdict(done: mlua::Result<()>, shared: &Shared) -> Result<()> {
    if let Some(e) = Rc::clone(shared).borrow_mut().failure.take() {
        return Err(e);
    }
    done.map_err(|e| Error::failed(format!("the script failed: {e}")))
}

fn add_up(measured: &mut Measured, shares: Vec<Figures>) {
    let mut total: [Latencies; KIND_NAMES.len()] = Default::default();
    for share in shares {
        for (all, own) in total.iter_mut().zip(&share.latencies) {
            all.merge(own);
        }
        measured.touches += share.touches;
        measured.hits += share.hits;
        measured.misses += share.misses;
        measured.aborts += share.aborts;
        measured.verified += share.verified;
        measured.wrong += share.wrong;
        measured.examples.extend(share.examples);
    }
    measured.examples.truncate(10);
    let used = KIND_NAMES.iter().zip(&total).filter(|(_, l)| l.count() > 0);
    measured.ops = used.map(|(name, l)| Op { name: (*name).to_owned(), latency: l.summary() }).collect();
}

/// Takes a reading of the process, its directory and its engine.
struct Sampler<'a> {
    seeding: bool,
    point: Point,
    store: &'a dyn Engine,
    dir: &'a Path,
    rss: Vec<f64>,
}

impl<'a> Sampler<'a> {
    fn new(seeding: bool, point: Point, store: &'a dyn Engine, dir: &'a Path) -> Sampler<'a> {
        Sampler { seeding, point, store, dir, rss: Vec::new() }
    }

    fn take(&mut self, elapsed: Duration, rate: f64) -> Message {
        let u = Usage::now();
        self.rss.push(u.rss as f64);
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split_whitespace().next().and_then(|w| w.parse().ok()).unwrap_or(0.0);
        let system: [(&str, f64); 11] = [
            (if self.seeding { "keys_per_s" } else { "units_per_s" }, rate),
            ("rss_bytes", u.rss as f64),
            ("cpu_user_s", u.cpu_user),
            ("cpu_sys_s", u.cpu_sys),
            ("major_faults", u.major_faults as f64),
            ("context_switches", u.context_switches as f64),
            ("disk_read_bytes", u.disk_read as f64),
            ("disk_write_bytes", u.disk_write as f64),
            ("load_1m", load),
            ("disk_bytes", process::disk_bytes(self.dir) as f64),
            ("busy_answers", engine::busy_answers() as f64),
        ];
        let mut metrics: Vec<(String, f64)> = system.into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
        metrics.extend(self.store.stats().into_iter().map(|(n, v)| (format!("engine.{n}"), v)));
        Message::Sample { seeding: self.seeding, point: self.point.clone(), elapsed: elapsed.as_secs_f64(), metrics }
    }

    fn mean_rss(&self) -> f64 {
        self.rss.iter().sum::<f64>() / self.rss.len().max(1) as f64
    }
}
