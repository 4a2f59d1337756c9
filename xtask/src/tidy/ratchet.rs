//! The ratchet: known exceptions to a rule, each with its size. A size may shrink, and must then be written down; it may
//! not grow, and no exception may be added by the tool.

use std::collections::BTreeMap;

use super::report::Report;

/// Where the exceptions stand.
pub const PATH: &str = "xtask/ratchet.txt";

/// What a rule counted: (rule, place) to (size, line from 0).
#[derive(Debug, Default)]
pub struct Counts(BTreeMap<(String, String), (usize, usize)>);

impl Counts {
    /// Records a size.
    pub fn add(&mut self, rule: &str, place: &str, size: usize, line: usize) {
        let entry = self.0.entry((rule.to_owned(), place.to_owned())).or_insert((0, line));
        entry.0 = entry.0.max(size);
    }

    /// The size of a place under a rule.
    #[cfg(test)]
    pub fn get(&self, rule: &str, place: &str) -> Option<usize> {
        self.0.get(&(rule.to_owned(), place.to_owned())).map(|c| c.0)
    }

    /// Whether nothing was counted.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares with the text of the ratchet.
    pub fn check(&self, text: &str, report: &mut Report) {
        let known = parse(text, report);
        for ((rule, place), (size, line)) in &self.0 {
            let allowed = known.get(&(rule.clone(), place.clone())).map(|k| k.0);
            if allowed.is_some_and(|a| *size <= a) {
                continue;
            }
            let path = place.split("::").next().unwrap_or(place);
            let what = match rule.as_str() {
                "file-lines" => format!("{size} lines, over 1000; split the file"),
                "fn-params" => format!("{size} parameters, over 6; make a struct of those that belong together"),
                "fn-depth" => format!("blocks nested {size} deep, over 5; move the inner ones to a function"),
                super::CYCLE => format!(
                    "{size} files that use each other, this one among them (`cargo xtask graph` names all); move what they share below them"
                ),
                super::examples::RULE => {
                    format!("no doctest, page or example program calls `{place}`; write one that does")
                }
                "fn-lines" => format!("a function of {size} lines, over 100; split it"),
                _ => format!(
                    "{size} `.unwrap()` or `.expect(` in engine code; return an error, or match with `let .. else`"
                ),
            };
            let was = allowed.map_or(String::new(), |a| format!(" ({PATH} knows of {a})"));
            report.add(path, *line, &format!("{what}{was}"));
        }
        for ((rule, place), (size, line)) in &known {
            let now = self.0.get(&(rule.clone(), place.clone())).map_or(0, |c| c.0);
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
            if let Some((now, _)) = self.0.get(&(rule.clone(), place.clone())) {
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
        counts.add("unwraps", "a.rs", 3, 6);
        let problems = |text: &str| {
            let mut report = Report::default();
            counts.check(text, &mut report);
            report.problems
        };
        assert!(problems("# known\nunwraps a.rs 3\n").is_empty());
        assert!(problems("unwraps a.rs 2\n")[0].starts_with("a.rs:7: 3 `.unwrap()`"));
        assert!(problems("")[0].starts_with("a.rs:7: "));
        assert!(problems("unwraps a.rs 4\n")[0].contains("shrank from 4 to 3"));
        assert!(problems("unwraps a.rs 3\nunwraps gone.rs 1\n")[0].contains("shrank from 1 to 0"));
        assert_eq!(counts.bless("# known\nunwraps a.rs 4\nunwraps gone.rs 1\n"), "# known\nunwraps a.rs 3\n");
        assert_eq!(counts.bless("unwraps a.rs 1\n"), "unwraps a.rs 1\n");
    }
}
