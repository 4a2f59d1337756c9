//! The ratchet: known exceptions to a rule, each with its size. A size may shrink, and must then be written down; it may
//! not grow, and no exception may be added by the tool.

use std::collections::BTreeMap;

use crate::report::Report;

/// Where the exceptions stand.
pub const PATH: &str = "xtask/ratchet.txt";

/// What rules counted, by rule and place.
#[derive(Debug, Default)]
pub struct Counts(BTreeMap<(String, String), Count>);

#[derive(Debug)]
struct Count {
    size: usize,
    /// Counted from 0.
    line: usize,
    /// What is wrong, and how to mend it.
    message: String,
}

impl Counts {
    /// Records a size, and what to say if it is no known exception. Of several at one place the largest counts.
    pub fn add(&mut self, rule: &str, place: &str, size: usize, line: usize, message: &str) {
        let count = Count { size, line, message: message.to_owned() };
        let key = (rule.to_owned(), place.to_owned());
        if self.0.get(&key).is_none_or(|known| known.size < size) {
            self.0.insert(key, count);
        }
    }

    /// The size of a place under a rule.
    #[cfg(test)]
    pub fn get(&self, rule: &str, place: &str) -> Option<usize> {
        self.0.get(&(rule.to_owned(), place.to_owned())).map(|c| c.size)
    }

    /// Whether nothing was counted.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares with the text of the ratchet.
    pub fn check(&self, text: &str, report: &mut Report) {
        let known = parse(text, report);
        for ((rule, place), Count { size, line, message }) in &self.0 {
            let allowed = known.get(&(rule.clone(), place.clone())).map(|k| k.0);
            if allowed.is_some_and(|a| *size <= a) {
                continue;
            }
            let path = place.split("::").next().unwrap_or(place);
            let was = allowed.map_or(String::new(), |a| format!(" ({PATH} knows of {a})"));
            report.add(path, *line, &format!("{message}{was}"));
        }
        for ((rule, place), (size, line)) in &known {
            let now = self.0.get(&(rule.clone(), place.clone())).map_or(0, |c| c.size);
            if now < *size {
                let message = format!("{rule} {place} shrank from {size} to {now}: run `cargo xtask tidy --bless`");
                report.add(PATH, *line, &message);
            }
        }
    }

    /// The ratchet's text with sizes lowered to what they are now, and exceptions dropped that are none any more.
    pub fn bless(&self, text: &str) -> String {
        let mut out = String::new();
        for line in text.lines() {
            let Some(((rule, place), size)) = entry(line) else {
                out += &format!("{line}\n");
                continue;
            };
            if let Some(Count { size: now, .. }) = self.0.get(&(rule.clone(), place.clone())) {
                out += &format!("{rule} {place} {}\n", size.min(*now));
            }
        }
        out
    }
}

fn entry(line: &str) -> Option<((String, String), usize)> {
    let mut words = line.split_whitespace();
    let (rule, place, size) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
    (!rule.starts_with('#')).then(|| ((rule.to_owned(), place.to_owned()), size))
}

fn parse(text: &str, report: &mut Report) -> BTreeMap<(String, String), (usize, usize)> {
    let mut known = BTreeMap::new();
    for (n, line) in text.lines().enumerate() {
        match entry(line) {
            Some((key, size)) => _ = known.insert(key, (size, n)),
            None if line.trim().is_empty() || line.starts_with('#') => {}
            None => report.add(PATH, n, "not `rule place size`; correct the line"),
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratchet_turns_one_way() {
        let mut counts = Counts::default();
        counts.add("unwraps", "a.rs", 3, 6, "3 panics");
        let problems = |text: &str| {
            let mut report = Report::default();
            counts.check(text, &mut report);
            report.problems
        };
        assert!(problems("# known\nunwraps a.rs 3\n").is_empty());
        assert!(problems("unwraps a.rs 2\n")[0].starts_with("a.rs:7: 3 panics (xtask/ratchet.txt knows of 2)"));
        assert!(problems("")[0].starts_with("a.rs:7: "));
        assert!(problems("unwraps a.rs 4\n")[0].contains("shrank from 4 to 3"));
        assert!(problems("unwraps a.rs 3\nunwraps gone.rs 1\n")[0].contains("shrank from 1 to 0"));
        assert_eq!(counts.bless("# known\nunwraps a.rs 4\nunwraps gone.rs 1\n"), "# known\nunwraps a.rs 3\n");
        assert_eq!(counts.bless("unwraps a.rs 1\n"), "unwraps a.rs 1\n");
    }
}
