//! What an operation answered, as a number that the oracle and every option set must agree on.

use kingtide::ErrorKind;
use kingtide_base::hash::{hash64, mix64};
use std::fmt::Write as _;

/// A hash of all that one operation answered; with words when a failure is explained.
#[derive(Default)]
pub struct Answer {
    pub hash: u64,
    pub words: Option<String>,
}

impl Answer {
    /// One that also remembers what it was told.
    pub fn in_words() -> Answer {
        Answer { hash: 0, words: Some(String::new()) }
    }

    fn add(&mut self, hash: u64) {
        self.hash = mix64(self.hash.rotate_left(17) ^ hash);
    }

    /// The value that a read found.
    pub fn value(&mut self, value: Option<&[u8]>) {
        self.add(value.map_or(1, hash64));
        if let Some(words) = &mut self.words {
            match value {
                None => words.push_str("nothing "),
                Some(v) => _ = write!(words, "{} bytes #{:08x} ", v.len(), hash64(v) as u32),
            }
        }
    }

    /// Where an iterator stands; `None` at an end.
    pub fn entry(&mut self, entry: Option<(&[u8], &[u8])>) {
        let Some((key, value)) = entry else { return self.value(None) };
        self.name(key);
        self.value(Some(value));
    }

    /// A key or a name.
    pub fn name(&mut self, name: &[u8]) {
        self.add(hash64(name) ^ 2);
        if let Some(words) = &mut self.words {
            let _ = write!(words, "'{}' ", name.escape_ascii());
        }
    }

    /// Whether it was done, or why not.
    pub fn outcome(&mut self, outcome: Result<(), ErrorKind>) {
        let text = format!("{outcome:?}");
        self.add(hash64(text.as_bytes()));
        if let Some(words) = &mut self.words {
            let _ = write!(words, "{text} ");
        }
    }
}
