//! `--pin`: which processor each worker thread runs on.

use crate::error::{Error, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Where worker threads run. An engine's own threads are not pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pin {
    /// Where the system puts them.
    #[default]
    No,
    /// Each on a processor of its own, among those that the process may use, and around again when there are more threads.
    Each,
    /// The same among these.
    To(Vec<usize>),
}

impl Pin {
    /// Checks that the process may use the processors.
    ///
    /// # Errors
    /// A usage error that names one that it may not use.
    pub fn check(&self) -> Result<()> {
        let allowed = allowed();
        match self {
            Pin::To(list) => match list.iter().find(|cpu| !allowed.contains(cpu)) {
                Some(cpu) => Err(Error::usage(format!(
                    "--pin: processor {cpu} is not one that this process may use ({})",
                    show(&allowed)
                ))),
                None => Ok(()),
            },
            Pin::No | Pin::Each => Ok(()),
        }
    }

    /// Pins the calling thread, worker number `thread`.
    ///
    /// # Errors
    /// The system refuses.
    pub fn apply(&self, thread: usize) -> Result<()> {
        let cpus = match self {
            Pin::No => return Ok(()),
            Pin::Each => allowed(),
            Pin::To(list) => list.clone(),
        };
        let Some(cpu) = cpus.get(thread % cpus.len().max(1)) else { return Ok(()) };
        let mut set = CpuSet::new();
        set.set(*cpu);
        sched_setaffinity(None, &set).map_err(|e| Error::failed(format!("--pin: processor {cpu}: {e}")))
    }
}

/// The processors that this process may use.
fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// As a list with ranges: `0-3,6-6`. A single processor is a range too, because `1` is a switch.
fn show(cpus: &[usize]) -> String {
    let ranges = cpus.chunk_by(|a, b| a + 1 == *b).map(|run| format!("{}-{}", run[0], run[run.len() - 1]));
    ranges.collect::<Vec<_>>().join(",")
}

impl FromStr for Pin {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Pin, String> {
        match text {
            "1" | "true" | "on" | "yes" => return Ok(Pin::Each),
            "0" | "false" | "off" | "no" => return Ok(Pin::No),
            _ => {}
        }
        let wrong = || format!("'{text}' is no list of processors: use true, false, or a list as 0-3,6-6");
        let number = |digits: &str| digits.parse().ok().filter(|n| *n < CpuSet::MAX_CPU).ok_or_else(wrong);
        let mut list = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            list.extend(first..=last);
        }
        Ok(Pin::To(list))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pin::No => write!(f, "0"),
            Pin::Each => write!(f, "1"),
            Pin::To(list) => write!(f, "{}", show(list)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read_and_shown() {
        for (text, pin, shown) in [
            ("1", Pin::Each, "1"),
            ("off", Pin::No, "0"),
            ("1-1", Pin::To(vec![1]), "1-1"),
            ("0-2,5", Pin::To(vec![0, 1, 2, 5]), "0-2,5-5"),
        ] {
            assert_eq!((text.parse(), pin.to_string()), (Ok(pin), shown.to_owned()), "{text}");
            assert_eq!(shown.parse::<Pin>().unwrap().to_string(), shown);
        }
        for wrong in ["", "x", "3-1", "0,,1", "-1", "99999999"] {
            assert!(wrong.parse::<Pin>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn threads_run_where_they_are_pinned() {
        let all = allowed();
        let elsewhere = CpuSet::MAX_CPU - 1;
        assert!(!all.is_empty() && Pin::To(all.clone()).check().is_ok());
        assert!(all.contains(&elsewhere) || Pin::To(vec![elsewhere]).check().unwrap_err().exit_code() == 2);
        for (pin, expected) in [(Pin::No, None), (Pin::Each, Some(&all)), (Pin::To(all[..1].to_vec()), Some(&all))] {
            for thread in 0..all.len() + 1 {
                let there =
                    std::thread::scope(|s| s.spawn(|| pin.apply(thread).map(|()| allowed())).join().unwrap().unwrap());
                let one = |cpus: &Vec<usize>| match &pin {
                    Pin::To(list) => vec![list[0]],
                    _ => vec![cpus[thread % cpus.len()]],
                };
                assert_eq!(there, expected.map_or(all.clone(), one), "{pin}, thread {thread}");
            }
        }
    }
}
