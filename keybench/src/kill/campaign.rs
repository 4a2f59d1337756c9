//! The parent's side: starts, kills, verifies, compares.

use super::args::{End, Plan, Span};
use super::journal::{self, Mutation};
use super::listing;
use super::model::{self, Contents, Fault};
use super::report::{Cycle, Stage, Summary};
use super::worker::{Message, Next, Order};
use crate::child;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::say::{note, say};
use kingtide_base::rng::Rng;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a store may take to open and to be listed.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often it is looked whether the end was asked for.
const LOOK: Duration = Duration::from_millis(50);
/// How many keys that were gone at a check are asked for at the next ones.
const GONE: usize = 100_000;
/// One in so many processes is killed while it recovers.
const RECOVERIES: u64 = 4;

/// All cycles of one command.
pub struct Campaign<'a> {
    plan: &'a Plan,
    rng: Rng,
    start: Instant,
    run: u64,
    /// Whether the data set is loaded.
    loaded: bool,
    /// Contents at the last check.
    known: Contents,
    /// Mutations since then.
    since: Vec<Mutation>,
    /// Keys that were written once and gone at the last check, or some of them.
    gone: BTreeSet<Vec<u8>>,
    summary: Summary,
    json: bool,
}

/// A process that was started.
struct Process {
    child: Child,
    stdin: ChildStdin,
    messages: Receiver<Result<Message>>,
    reader: Option<JoinHandle<()>>,
}

/// What a process came to when it should have gone on.
enum Ended {
    /// Something to be reported: the store or the harness in that process failed.
    Badly(String),
    /// Nothing was learned: the user made a mistake or the engine is not here.
    Refused(Error),
}

impl Process {
    fn start(order: &Order) -> Result<Process> {
        let (mut child, stdin) = child::start("kill", order)?;
        let Some(stdout) = child.stdout.take() else { return Err(Error::failed("a child process has no output")) };
        let (tell, messages) = channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
                // The receiver is gone when the process was killed.
                let _ = child::message(&line).map(|message| tell.send(message));
            }
        });
        Ok(Process { child, stdin, messages, reader: Some(reader) })
    }

    /// The next message, or none by `deadline`.
    fn next(&mut self, deadline: Instant) -> std::result::Result<Option<Message>, Ended> {
        loop {
            let look = Instant::now() + LOOK;
            match self.next_by(deadline.min(look))? {
                None if interrupt::requested() => return Err(Ended::Refused(Error::Interrupted)),
                None if look < deadline => {}
                answer => return Ok(answer),
            }
        }
    }

    fn next_by(&mut self, deadline: Instant) -> std::result::Result<Option<Message>, Ended> {
        match self.messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Ok(Message::Failed(m))) => Err(Ended::Badly(m)),
            Ok(Ok(Message::Unavailable(m))) => Err(Ended::Refused(Error::Unavailable(m))),
            Ok(Ok(Message::Usage(m))) => Err(Ended::Refused(Error::Usage(m))),
            Ok(Ok(message)) => Ok(Some(message)),
            Ok(Err(e)) => Err(Ended::Refused(e)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait();
                if status.as_ref().is_ok_and(|s| interrupt::explains(*s)) {
                    return Err(Ended::Refused(Error::Interrupted));
                }
                let status = status.map_or_else(|e| e.to_string(), |s| s.to_string());
                Err(Ended::Badly(format!("the process ended by itself with {status}")))
            }
        }
    }

    /// A message that must come.
    fn must(&mut self, what: &str) -> std::result::Result<Message, Ended> {
        let late = || Ended::Badly(format!("not {what} within {PATIENCE:?}"));
        self.next(Instant::now() + PATIENCE)?.ok_or_else(late)
    }

    /// Kills it. Returns what it had said.
    fn kill(&mut self) -> Result<Vec<Message>> {
        self.child.kill().map_err(|e| Error::failed(format!("cannot kill a child process: {e}")))?;
        self.child.wait().map_err(|e| Error::failed(format!("cannot wait for a child process: {e}")))?;
        // It ends with the pipe, which the process no longer holds.
        let _ = self.reader.take().map(JoinHandle::join);
        Ok(self.messages.try_iter().flatten().collect())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.reader.is_some() {
            // It has ended by itself, or is given up.
            let _ = self.kill();
        }
    }
}

impl<'a> Campaign<'a> {
    /// Nothing done yet.
    pub fn new(plan: &'a Plan, json: bool) -> Campaign<'a> {
        let summary = Summary::new(&plan.work.workload, &plan.work.engine, plan.seed);
        Campaign {
            plan,
            rng: Rng::new(plan.seed),
            start: Instant::now(),
            run: 0,
            loaded: false,
            known: Contents::new(),
            since: Vec::new(),
            gone: BTreeSet::new(),
            summary,
            json,
        }
    }

    /// What came of it.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Goes on until the end that was asked for, or until something is found.
    pub fn run(&mut self) -> Result<()> {
        let done = self.cycles();
        self.summary.seconds = self.start.elapsed().as_secs_f64();
        done
    }

    fn cycles(&mut self) -> Result<()> {
        while !self.over() && self.summary.findings.is_empty() {
            match self.cycle() {
                Ok(()) => {}
                Err(Ended::Badly(m)) => self.summary.find("failed", m),
                Err(Ended::Refused(e)) => return Err(e),
            }
        }
        if self.summary.findings.is_empty() {
            match self.last() {
                Ok(()) => {}
                Err(Ended::Badly(m)) => self.summary.find("failed", m),
                Err(Ended::Refused(e)) => return Err(e),
            }
        }
        Ok(())
    }

    fn over(&self) -> bool {
        match self.plan.end {
            End::Cycles(n) => self.summary.kills >= n,
            End::After(time) => self.start.elapsed() >= time,
        }
    }

    fn start(&mut self) -> std::result::Result<Process, Ended> {
        self.run += 1;
        let mut work = self.plan.work.clone();
        // Another run, other keys and values.
        work.context.seed = self.rng.next_u64();
        work.seed_threads = if self.loaded { 0 } else { self.plan.loaders };
        work.points = vec![self.plan.points[self.run as usize % self.plan.points.len()].clone()];
        let asked = self.plan.dir.join("asked");
        listing::ask(&asked, &self.may_be_gone()).map_err(Ended::Refused)?;
        let order = Order {
            run: self.run,
            work,
            journals: self.plan.dir.join("journals"),
            asked,
            listing: self.plan.dir.join("listing"),
            plant: self.plan.plant,
        };
        Process::start(&order).map_err(Ended::Refused)
    }

    /// The keys that a scan need not show: those of mutations since the last check, and those that were gone then.
    fn may_be_gone(&self) -> BTreeSet<Vec<u8>> {
        let mut keys = model::touched(&self.known, &self.since);
        keys.extend(self.gone.iter().cloned());
        keys
    }

    /// Remembers what `found` does not hold; of too many keys, every second one.
    fn remember_gone(&mut self, found: &Contents) {
        let mut gone: Vec<Vec<u8>> = self.may_be_gone().into_iter().filter(|key| !found.contains_key(key)).collect();
        while gone.len() > GONE {
            gone = gone.into_iter().step_by(2).collect();
        }
        self.gone = gone.into_iter().collect();
    }

    fn cycle(&mut self) -> std::result::Result<(), Ended> {
        let mut process = self.start()?;
        process.must("started")?;
        if self.run > 2 && self.rng.one_in(RECOVERIES) {
            return self.kill_early(process);
        }
        let recovery = self.open(&mut process)?;
        if !self.summary.findings.is_empty() {
            return process.kill().map(|_| ()).map_err(Ended::Refused);
        }
        child::tell(&mut process.stdin, &Next::Work).map_err(Ended::Refused)?;
        let born = Instant::now();
        let stage = self.let_live(&mut process)?;
        let life = born.elapsed();
        process.kill().map_err(Ended::Refused)?;
        self.after_kill(stage, life, Some(recovery))
    }

    /// Kills a process that has begun to open the store, most likely before it has opened it.
    fn kill_early(&mut self, mut process: Process) -> std::result::Result<(), Ended> {
        let longest = self.summary.last_recovery() * 1.2 + 0.001;
        let life = Duration::from_secs_f64(self.rng.unit() * longest);
        let born = Instant::now();
        std::thread::sleep(life);
        // The process may have said more than what is waited for here, or nothing.
        let said = process.next(Instant::now())?.into_iter().collect::<Vec<_>>();
        let said = [said, process.kill().map_err(Ended::Refused)?].concat();
        let opened = said.iter().any(|m| matches!(m, Message::Opened { .. }));
        self.after_kill(if opened { Stage::Idle } else { Stage::Recovery }, born.elapsed(), None)
    }

    /// Waits until the store is open, and judges what it holds. Returns the seconds that opening took.
    fn open(&mut self, process: &mut Process) -> std::result::Result<f64, Ended> {
        let recovery = match process.must("opened")? {
            Message::Opened { seconds } => seconds,
            other => return Err(Ended::Badly(format!("opened nothing but says {other:?}"))),
        };
        let (keys, wrong) = match process.must("listed")? {
            Message::Listed { keys, wrong } => (keys, wrong),
            other => return Err(Ended::Badly(format!("listed nothing but says {other:?}"))),
        };
        wrong.into_iter().for_each(|what| self.summary.find("wrong", what));
        let found = listing::read(&self.plan.dir.join("listing"), keys).map_err(Ended::Refused)?;
        let verdict = model::check(&self.known, &self.since, &found);
        self.summary.checked(&verdict, keys, recovery);
        for finding in verdict.findings {
            let kind = match finding.fault {
                Fault::Lost => "lost",
                Fault::Wrong => "wrong",
                Fault::Torn => "torn",
            };
            self.summary.find(kind, finding.what);
        }
        if self.summary.findings.is_empty() {
            self.remember_gone(&found);
            self.known = found;
            self.since.clear();
            journal::cut(&self.plan.dir.join("journals")).map_err(Ended::Refused)?;
        }
        Ok(recovery)
    }

    /// Waits for the moment of the kill. The first process may be killed amid loading, the next may not.
    fn let_live(&mut self, process: &mut Process) -> std::result::Result<Stage, Ended> {
        let Span(from, to) = self.plan.every;
        let life = Duration::from_secs_f64(from + self.rng.unit() * (to - from));
        if !self.loaded && self.summary.kills > 0 {
            self.await_loaded(process, Instant::now() + PATIENCE)?;
        }
        let deadline = Instant::now() + life;
        if !self.loaded {
            self.await_loaded(process, deadline)?;
        }
        if let Some(other) = process.next(deadline)? {
            return Err(Ended::Badly(format!("ended its work and says {other:?}")));
        }
        Ok(if self.loaded { Stage::Work } else { Stage::Load })
    }

    fn await_loaded(&mut self, process: &mut Process, deadline: Instant) -> std::result::Result<(), Ended> {
        self.loaded = matches!(process.next(deadline)?, Some(Message::Loaded));
        Ok(())
    }

    /// Reads what the killed process wrote down, verifies what it left, and tells.
    fn after_kill(&mut self, stage: Stage, life: Duration, recovery: Option<f64>) -> std::result::Result<(), Ended> {
        self.since = journal::read(&self.plan.dir.join("journals")).map_err(Ended::Refused)?;
        let verify = self.verify(false)?;
        let pending = self.since.iter().filter(|m| m.acknowledged).map(|m| m.ops.len() as u64).sum();
        let cycle = Cycle { stage, life: life.as_secs_f64(), recovery, verify, pending };
        self.summary.killed(&cycle);
        let line = self.summary.line(&cycle, self.start.elapsed());
        if self.json {
            note!("{line}")
        } else {
            say!("{line}")
        }
        Ok(())
    }

    /// Verifies the directory of a process that is gone; `tidy` if that closed the store. Returns the seconds it took.
    fn verify(&mut self, tidy: bool) -> std::result::Result<Option<f64>, Ended> {
        if self.plan.work.engine != "kingtide" {
            return Ok(None);
        }
        let start = Instant::now();
        let options = kingtide::Options::default();
        let report = kingtide::verify(&self.plan.work.dir, &options)
            .map_err(|e| Ended::Badly(format!("verify could not be run: {e}")))?;
        for problem in &report.problems {
            // A kill may leave a file that was being written; the next open removes it.
            let orphan = problem.kind == kingtide::ProblemKind::Orphan;
            match problem.severity {
                kingtide::Severity::Info => {}
                kingtide::Severity::Warning if orphan && !tidy => self.summary.orphans += 1,
                _ => self.summary.find("damage", problem.to_string()),
            }
        }
        if report.unlisted > 0 {
            self.summary.find("damage", format!("{} more problems", report.unlisted));
        }
        Ok(Some(start.elapsed().as_secs_f64()))
    }

    /// What the last kill left is recovered, compared and closed, and once more opened and compared.
    fn last(&mut self) -> std::result::Result<(), Ended> {
        for close in [true, false] {
            let mut process = self.start()?;
            process.must("started")?;
            self.open(&mut process)?;
            if !close || !self.summary.findings.is_empty() {
                return process.kill().map(|_| ()).map_err(Ended::Refused);
            }
            child::tell(&mut process.stdin, &Next::Close).map_err(Ended::Refused)?;
            process.must("closed")?;
            let status = process.child.wait();
            if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
                return Err(Ended::Badly(format!("the process that closed the store ended with {status:?}")));
            }
            self.verify(true)?;
        }
        Ok(())
    }
}
