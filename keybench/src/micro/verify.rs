//! Checks of answers: counted always, described for the first few that are wrong.

use crate::data::{Keys, Values};
use crate::engine::{Bounds, Session};
use crate::error::Result;

/// Wrong answers that are described.
const EXAMPLES: usize = 5;
/// Every so many-th value is compared byte for byte.
const FULL_EVERY: u64 = 64;

/// Answers checked by one thread.
#[derive(Default)]
pub struct Tally {
    /// Answers checked.
    pub verified: u64,
    /// Answers that were wrong.
    pub wrong: u64,
    /// What was wrong with the first few.
    pub examples: Vec<String>,
}

impl Tally {
    /// Counts an answer.
    #[inline]
    pub fn judge(&mut self, right: bool, describe: impl FnOnce() -> String) {
        self.verified += 1;
        if !right {
            self.blame(describe);
        }
    }

    #[cold]
    fn blame(&mut self, describe: impl FnOnce() -> String) {
        self.wrong += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(describe());
        }
    }

    /// Whether a value is the one that belongs to `id`.
    #[inline]
    pub fn value_is_right(&mut self, values: &Values, id: u64, got: &[u8]) -> bool {
        if self.verified.is_multiple_of(FULL_EVERY) { values.check_fully(id, got) } else { values.check(id, got) }
    }

    /// Adds another thread's.
    pub fn merge(&mut self, other: Tally) {
        self.verified += other.verified;
        self.wrong += other.wrong;
        let room = EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }
}

/// Bytes for a message: text where it is text.
pub fn show(bytes: &[u8]) -> String {
    let text: String = bytes.iter().take(48).flat_map(|b| b.escape_ascii()).map(char::from).collect();
    if bytes.len() > 48 { format!("{text}… ({} bytes)", bytes.len()) } else { text }
}

/// Walks the whole store and compares it with what must be there: `expected` ids in ascending order, no more, no less.
/// `judge` is given each entry that must be there and is: its place in `expected`, its key and its value.
pub fn whole_store(
    session: &mut dyn Session,
    keys: &Keys,
    expected: &[u64],
    judge: &mut dyn FnMut(&mut Tally, usize, &[u8], &[u8]),
) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut cursor = session.cursor(Bounds::default())?;
    let mut wanted = vec![0; keys.size()];
    let mut ahead = expected.iter().copied().enumerate().peekable();
    let mut valid = cursor.first()?;
    loop {
        let Some(&(at, id)) = ahead.peek() else {
            if !valid {
                return Ok(tally);
            }
            let extra = show(cursor.key()?);
            tally.judge(false, || format!("scan: key {extra} should not exist"));
            valid = cursor.next()?;
            continue;
        };
        keys.write(id, &mut wanted);
        let (key, value) = if valid { cursor.entry()? } else { (&[][..], &[][..]) };
        if !valid || key > &wanted[..] {
            tally.judge(false, || format!("scan: key {} is lost", show(&wanted)));
            ahead.next();
            continue;
        }
        if key < &wanted[..] {
            tally.judge(false, || format!("scan: key {} should not exist", show(key)));
        } else {
            judge(&mut tally, at, key, value);
            ahead.next();
        }
        valid = cursor.next()?;
    }
}

/// Judges an entry whose value depends on its id alone, byte for byte: no time is taken meanwhile.
pub fn value_of<'a>(values: &'a Values, expected: &'a [u64]) -> impl FnMut(&mut Tally, usize, &[u8], &[u8]) + 'a {
    |tally, at, key, value| {
        let right = values.check_fully(expected[at], value);
        tally.judge(right, || format!("scan: key {} has the wrong value {}", show(key), show(value)));
    }
}
