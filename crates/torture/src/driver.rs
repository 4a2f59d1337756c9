//! The driver: starts children, kills them, and adds up what they say.

use crate::args::Orders;
use crate::messages::Line;
use crate::other::Turn;
use crate::places;
use crate::plan::{Kill, MOMENTS, Plan};
use kingtide_base::lock::Mutex;
use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What the driver was asked to do.
#[derive(Clone, Debug)]
pub struct Job {
    pub dir: PathBuf,
    pub seed: u64,
    pub minutes: f64,
    pub workers: u64,
    /// `kt` of another build.
    pub other: Option<PathBuf>,
    /// Fail if a rare path was never taken.
    pub full: bool,
}

/// What all workers found.
#[derive(Debug, Default)]
pub struct Totals {
    pub counts: BTreeMap<String, u64>,
    pub kills: BTreeMap<String, u64>,
    pub rare: BTreeMap<String, u64>,
    pub failures: Vec<String>,
}

/// A worker's database and what it knows.
pub struct Worker<'a> {
    pub job: &'a Job,
    pub number: u64,
    pub dir: PathBuf,
    pub seed: u64,
    pub rng: Rng,
    pub totals: &'a Mutex<Totals>,
    pub stop: &'a AtomicBool,
    round: u64,
    families: u64,
    foreign: BTreeMap<u16, String>,
}

/// How a child ended.
enum End {
    /// By the driver or by itself, as was meant.
    Killed,
    Closed,
    Failed(String),
}

/// Runs the workers and prints what they found.
pub fn run(job: &Job) -> Result<(), String> {
    let totals = Mutex::new(Totals::default());
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    println!("seed {}, {} minutes, {} workers in {}", job.seed, job.minutes, job.workers, job.dir.display());
    std::thread::scope(|scope| {
        for number in 0..job.workers {
            let (totals, stop) = (&totals, &stop);
            scope.spawn(move || {
                let result = Worker::new(job, number, totals, stop).and_then(|mut worker| worker.run());
                if let Err(e) = result {
                    stop.store(true, Ordering::SeqCst);
                    println!("{}", e.lines().map(|l| &l[..l.floor_char_boundary(600)]).collect::<Vec<_>>().join("\n"));
                    totals.lock().failures.push(e);
                }
            });
        }
        let deadline = Duration::from_secs_f64(job.minutes * 60.0);
        let mut told = Duration::ZERO;
        while start.elapsed() < deadline && !stop.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(100));
            if start.elapsed() > told + Duration::from_secs(60) {
                told = start.elapsed();
                println!("{} s: {}", told.as_secs(), totals.lock().line());
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    let totals = totals.into_inner();
    totals.print(start.elapsed());
    if let Some(first) = totals.failures.first() {
        let line = first.lines().next().unwrap_or_default();
        return Err(format!("FAILED: {}", &line[..line.floor_char_boundary(600)]));
    }
    if job.full { crate::rare::check(&totals.rare) } else { Ok(()) }
}

impl Totals {
    pub fn add(&mut self, name: &str, n: u64) {
        *self.counts.entry(name.to_owned()).or_default() += n;
    }

    fn line(&self) -> String {
        let count = |name: &str| self.counts.get(name).copied().unwrap_or(0);
        let kills: u64 = self.kills.values().sum();
        let (opens, units) = (count("opened and verified"), count("units acknowledged"));
        format!("{kills} kills, {opens} opens verified, {units} units acknowledged, {} failures", self.failures.len())
    }

    fn print(&self, time: Duration) {
        let kills: u64 = self.kills.values().sum();
        println!("{} in {} s, {:.2} kills a second", self.line(), time.as_secs(), kills as f64 / time.as_secs_f64());
        println!("\nkills and closes");
        self.kills.iter().for_each(|(name, n)| println!("{n:>10}  {name}"));
        println!("\ncounts");
        self.counts.iter().for_each(|(name, n)| println!("{n:>10}  {name}"));
        println!("\n{}", crate::rare::table(&self.rare));
        let wrong = |text: &str| self.failures.iter().filter(|f| f.contains(text)).count();
        println!("\n{} refused opens, {} lost, {} wrong", wrong("REFUSED"), wrong("LOST"), wrong("WRONG"));
    }
}

impl<'a> Worker<'a> {
    /// One turn of the other build, if there is one.
    fn other_turn(&mut self) -> Result<(), String> {
        let Some(program) = &self.job.other else { return Ok(()) };
        let (seed, totals) = (self.seed, self.totals);
        let count = |what: &str| totals.lock().add(what, 1);
        let (rng, foreign) = (&mut self.rng, &mut self.foreign);
        crate::other::turn(Turn { program, dir: &self.dir, seed, rng, foreign, count: &count })
    }

    fn new(job: &'a Job, number: u64, totals: &'a Mutex<Totals>, stop: &'a AtomicBool) -> Result<Worker<'a>, String> {
        let dir = job.dir.join(format!("worker-{number}"));
        let io = |e: std::io::Error| format!("cannot prepare {}: {e}", dir.display());
        if dir.exists() {
            std::fs::remove_dir_all(&dir).map_err(io)?;
        }
        std::fs::create_dir_all(&dir).map_err(io)?;
        let seed = job.seed.wrapping_add(number);
        let mut rng = Rng::new(seed);
        let families = 20 + rng.below(81);
        Ok(Worker { job, number, dir, seed, rng, totals, stop, round: 0, families, foreign: BTreeMap::new() })
    }

    fn run(&mut self) -> Result<(), String> {
        while !self.stop.load(Ordering::SeqCst) {
            self.round += 1;
            let start = Instant::now();
            self.keep_aside()?;
            self.totals.lock().add("milliseconds: setting the database aside", start.elapsed().as_millis() as u64);
            let plan = Plan::draw(&mut self.rng, &self.totals.lock().rare);
            match self.one_round(&plan)? {
                End::Killed | End::Closed => {}
                End::Failed(what) => return Err(self.preserve(&plan, &what)),
            }
            if self.job.other.is_some()
                && self.rng.one_in(12)
                && let Err(what) = self.other_turn()
            {
                return Err(self.preserve(&plan, &what));
            }
        }
        // The last one is looked at too.
        self.round += 1;
        self.keep_aside()?;
        let plan = Plan { kill: Kill::Verify, none: false, close_after: None };
        match self.one_round(&plan)? {
            End::Failed(what) => Err(self.preserve(&plan, &what)),
            _ => Ok(()),
        }
    }

    fn orders(&self, plan: &Plan) -> Orders {
        Orders {
            dir: self.dir.clone(),
            seed: self.seed,
            session: self.round,
            families: self.families,
            none: plan.none,
            close_after: plan.close_after,
            only_verify: plan.kill == Kill::Verify,
        }
    }

    fn spawn(&self, plan: &Plan) -> Result<Child, String> {
        let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let mut command = Command::new(program);
        command.args(crate::args::of_orders(&self.orders(plan))).stdout(Stdio::piped()).stdin(Stdio::null());
        if let Kill::Rare(name, n) = &plan.kill {
            command.env(crate::rare::KILL_AT, format!("{name}:{n}"));
        }
        let errors = std::fs::File::create(self.dir.join("stderr")).map_err(|e| e.to_string())?;
        command.stderr(errors).spawn().map_err(|e| format!("cannot start a child: {e}"))
    }

    fn one_round(&mut self, plan: &Plan) -> Result<End, String> {
        let mut child = self.spawn(plan)?;
        let Some(out) = child.stdout.take() else { return Err("no pipe to the child".to_owned()) };
        let (send, lines) = channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if Line::parse(&line).is_none_or(|line| send.send(line).is_err()) {
                    break;
                }
            }
        });
        let end = self.follow(plan, &mut child, &lines);
        let _ = child.kill();
        let status = child.wait().map_err(|e| e.to_string())?;
        let _ = reader.join();
        let mut failed = None;
        let mut last = BTreeMap::new();
        for line in end.lines.into_iter().chain(lines.try_iter()) {
            match line {
                Line::Event(_) => {}
                Line::Count(name, n) => self.totals.lock().add(&name, n),
                Line::Rare(name, n) => drop(last.insert(name, n)),
                Line::Failure(what) => failed = failed.or(Some(what)),
            }
        }
        let mut totals = self.totals.lock();
        for (name, n) in last {
            *totals.rare.entry(name).or_default() += n;
        }
        let end = match (failed, end.how) {
            (Some(what), _) => End::Failed(format!("{what}{}", end.stacks)),
            (None, Some(how)) => {
                *totals.kills.entry(how).or_default() += 1;
                if status.success() { End::Closed } else { End::Killed }
            }
            (None, None) => {
                use std::os::unix::process::ExitStatusExt;
                match (status.signal(), &plan.kill) {
                    (Some(9), Kill::Rare(name, _)) => {
                        let moment = MOMENTS.iter().find(|(path, _)| path == name);
                        let at = moment.map_or(format!("at the rare path {name}"), |(_, amid)| (*amid).to_owned());
                        *totals.kills.entry(at).or_default() += 1;
                        *totals.rare.entry(name.clone()).or_default() += 1;
                        End::Killed
                    }
                    _ if status.success() => {
                        *totals.kills.entry("(closed, not killed)".to_owned()).or_default() += 1;
                        End::Closed
                    }
                    _ => {
                        let errors = std::fs::read_to_string(self.dir.join("stderr")).unwrap_or_default();
                        End::Failed(format!("the child ended by itself: {status}\n{errors}"))
                    }
                }
            }
        };
        Ok(end)
    }

    /// Waits for the moment that the plan names, and kills.
    fn follow(&mut self, plan: &Plan, child: &mut Child, lines: &Receiver<Line>) -> Followed {
        let mut seen = Followed { lines: Vec::new(), how: None, stacks: String::new() };
        let start = Instant::now();
        let (event, nth, delay) = plan.trigger();
        let mut left = nth;
        let mut limit = start + Duration::from_secs(300);
        let mut kill_at = None;
        let mut reader = None;
        loop {
            let now = Instant::now();
            if kill_at.is_some_and(|at| now >= at) {
                seen.how = Some(plan.name());
                break;
            }
            // What the plan waits for may never come.
            if now > limit {
                seen.how = Some("after a while".to_owned());
                break;
            }
            let wait = kill_at.unwrap_or(limit).saturating_duration_since(now);
            match lines.recv_timeout(wait) {
                Ok(Line::Event(name)) => {
                    if name == "verified" && self.rng.one_in(12) && reader.is_none() {
                        reader = Some(self.spawn_reader());
                    }
                    if name == "verified" && !plan.waits_long() {
                        limit = Instant::now() + Duration::from_millis(1_200);
                    }
                    if name == event && kill_at.is_none() {
                        left = left.saturating_sub(1);
                        if left == 0 {
                            kill_at = Some(Instant::now() + delay);
                        }
                    }
                }
                Ok(Line::Failure(what)) => {
                    if what.starts_with("hang") {
                        seen.stacks = stacks(child.id());
                    }
                    seen.lines.push(Line::Failure(what));
                    break;
                }
                Ok(line) => seen.lines.push(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let _ = child.kill();
        if let Some(reader) = reader {
            for line in end_reader(reader) {
                match line {
                    Line::Rare(name, n) => *self.totals.lock().rare.entry(name).or_default() += n,
                    line => seen.lines.push(line),
                }
            }
        }
        seen
    }

    /// Starts a process that opens the database for reading only beside the child.
    fn spawn_reader(&self) -> Option<Child> {
        let program = std::env::current_exe().ok()?;
        let args = ["read", "--dir", &self.dir.to_string_lossy()].map(str::to_owned);
        Command::new(program).args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()
    }

    /// Copies the database as it was killed, so that a failure of the next open leaves something to look at.
    fn keep_aside(&self) -> Result<(), String> {
        let before = places::before(&self.dir);
        let _ = std::fs::remove_dir_all(&before);
        let db = places::database(&self.dir);
        if !db.exists() {
            return Ok(());
        }
        let io = |e: std::io::Error| format!("cannot set {} aside: {e}", db.display());
        std::fs::create_dir_all(&before).map_err(io)?;
        for entry in std::fs::read_dir(&db).map_err(io)? {
            let name = entry.map_err(io)?.file_name();
            // Tables and value logs never change once they are named.
            let is_table = Path::new(&name).extension().is_some_and(|e| e == "klog" || e == "vlog");
            let (from, to) = (db.join(&name), before.join(&name));
            if is_table { std::fs::hard_link(&from, &to) } else { std::fs::copy(&from, &to).map(drop) }.map_err(io)?;
        }
        Ok(())
    }

    /// Keeps everything of a failed round, and says how to look at it.
    fn preserve(&self, plan: &Plan, what: &str) -> String {
        let kept = self.job.dir.join(format!("failed-{}-{}", self.seed, self.round));
        let _ = std::fs::remove_dir_all(&kept);
        let copied = copy_dir(&self.dir, &kept);
        let orders = crate::args::of_orders(&self.orders(plan)).join(" ");
        let text = format!(
            "worker {} seed {} round {} ({plan:?}): {what}\n\
             kept in {} ({copied:?}): before is the database as this round found it, db as it left it; the child ran\n  \
             kingtide-torture {orders}\n\
             to open what this round found, on a copy:\n  \
             cargo run -p kingtide-torture -- inspect --dir {}\n",
            self.number,
            self.seed,
            self.round,
            kept.display(),
            kept.display()
        );
        let _ = std::fs::write(kept.join("report"), &text);
        text
    }
}

struct Followed {
    lines: Vec<Line>,
    /// How it was killed.
    how: Option<String>,
    stacks: String,
}

fn end_reader(reader: Option<Child>) -> Vec<Line> {
    let Some(child) = reader else { return Vec::new() };
    let Ok(output) = child.wait_with_output() else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines: Vec<Line> = text.lines().filter_map(Line::parse).collect();
    if !output.status.success() && !lines.iter().any(|l| matches!(l, Line::Failure(_))) {
        lines.push(Line::Failure(format!("the reader beside the child ended: {}", output.status)));
    }
    lines
}

/// The stacks of a process that hangs, if there is a debugger.
fn stacks(pid: u32) -> String {
    let pid = pid.to_string();
    let args = ["-p", &pid, "-batch", "-ex", "set pagination off", "-ex", "thread apply all bt 24"];
    let output = Command::new("gdb").args(args).stdin(Stdio::null()).output();
    output.map_or_else(|e| format!("\nno stacks: gdb: {e}"), |o| format!("\n{}", String::from_utf8_lossy(&o.stdout)))
}

/// Copies a directory, and what is in its directories.
pub fn copy_dir(from: &Path, to: &Path) -> Result<(), String> {
    let io = |e: std::io::Error| format!("cannot copy {}: {e}", from.display());
    std::fs::create_dir_all(to).map_err(io)?;
    for entry in std::fs::read_dir(from).map_err(io)? {
        let entry = entry.map_err(io)?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_dir(&path, &target)?;
        } else {
            std::fs::copy(&path, &target).map_err(io)?;
        }
    }
    Ok(())
}
