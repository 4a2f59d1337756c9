//! What a check of the work tree found.

/// Violations, as they are printed.
#[derive(Debug, Default)]
pub struct Report {
    /// `file:line: message`.
    pub problems: Vec<String>,
}

impl Report {
    /// Adds a problem; `line` counts from 0.
    pub fn add(&mut self, path: &str, line: usize, message: &str) {
        self.problems.push(format!("{path}:{}: {message}", line + 1));
    }
}
