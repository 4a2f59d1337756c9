//! Lines from a child to the driver, on its standard output: `E` events, `C` counts, `R` how often rare paths were taken, `F` a failure.

use kingtide_base::lock::Mutex;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

/// One line to the driver, in one `write`.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The driver is gone.
    if out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(4);
    }
}

/// Reports a failure to the driver and ends the process.
pub fn fail(what: &str) -> ! {
    say(&format!("F {}", what.replace('\n', "\u{1}")));
    // The driver looks at the stacks of a process that hangs before it kills it.
    std::thread::sleep(Duration::from_secs(if what.starts_with("hang") { 60 } else { 0 }));
    std::process::exit(3);
}

/// What happened how often since the last report.
#[derive(Default)]
pub struct Counts {
    pending: Mutex<BTreeMap<String, u64>>,
}

impl Counts {
    pub fn add(&self, name: &str, n: u64) {
        if n > 0 {
            let mut pending = self.pending.lock();
            match pending.get_mut(name) {
                Some(count) => *count += n,
                None => drop(pending.insert(name.to_owned(), n)),
            }
        }
    }

    /// Says them.
    pub fn report(&self) {
        let pending = std::mem::take(&mut *self.pending.lock());
        let lines: Vec<String> = pending.iter().map(|(name, n)| format!("C {name} {n}")).collect();
        if !lines.is_empty() {
            say(&lines.join("\n"));
        }
    }
}

/// A line, as the driver understands it.
pub enum Line {
    Event(String),
    Count(String, u64),
    Rare(String, u64),
    Failure(String),
}

impl Line {
    /// None for a line that a child cut short when it was killed.
    pub fn parse(line: &str) -> Option<Line> {
        let (kind, rest) = line.split_once(' ')?;
        let number = || rest.rsplit_once(' ').and_then(|(name, n)| Some((name.to_owned(), n.parse().ok()?)));
        match kind {
            "E" => Some(Line::Event(rest.to_owned())),
            "C" => number().map(|(name, n)| Line::Count(name, n)),
            "R" => number().map(|(name, n)| Line::Rare(name, n)),
            "F" => Some(Line::Failure(rest.replace('\u{1}', "\n"))),
            _ => None,
        }
    }
}
