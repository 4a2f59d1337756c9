//! An engine that does nothing, to measure the harness: every write is accepted, every read answered at once with the key
//! that was asked for and a value of the right length. What a run on it costs is what the harness adds to each engine.
//!
//! A range goes on for as long as it is asked to; one with an end in sight has to end, so it holds ten entries, and one
//! that only begins somewhere a thousand.

use super::txn::{Step, Transactions};
use super::{Bounds, Cursor, Engine, EngineOptions, Session, no_extra_options};
use crate::error::Result;
use std::sync::Arc;

struct NullEngine(Arc<[u8]>);

/// The engine that does nothing.
pub fn open(options: &EngineOptions) -> Result<Box<dyn Engine>> {
    no_extra_options("null", options)?;
    Ok(Box::new(NullEngine(vec![0; options.value_size].into())))
}

impl Engine for NullEngine {
    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").into()
    }

    fn durability(&self) -> String {
        "nothing is stored".into()
    }

    fn effective_options(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        // A value of its own: threads that count references to one would wait for each other.
        Ok(Box::new(NullSession(Arc::from(&*self.0))))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn stats(&self) -> Vec<(String, f64)> {
        Vec::new()
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct NullSession(Arc<[u8]>);

impl Session for NullSession {
    fn put(&mut self, _key: &[u8], _value: &[u8]) -> Result<()> {
        Ok(())
    }

    fn put_batch(&mut self, _entries: &[(&[u8], &[u8])]) -> Result<()> {
        Ok(())
    }

    fn get(&mut self, _key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        found(&self.0);
        Ok(true)
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        (0..keys.len()).for_each(|i| each(i, Some(&self.0)));
        Ok(())
    }

    fn delete(&mut self, _key: &[u8]) -> Result<()> {
        Ok(())
    }

    fn delete_batch(&mut self, _keys: &[&[u8]]) -> Result<()> {
        Ok(())
    }

    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        let entries = match bounds {
            Bounds { lower: Some(lower), upper: Some(upper) } => rows_between(lower, upper),
            Bounds { upper: Some(_), .. } => 10,
            Bounds { lower: Some(_), .. } => 1_000,
            _ => u64::MAX,
        };
        Ok(Box::new(NullCursor { key: Vec::new(), value: Arc::clone(&self.0), entries, left: entries }))
    }

    fn delete_range(&mut self, _start: &[u8], _end: &[u8]) -> Result<()> {
        Ok(())
    }

    fn begin(&mut self, _how: Transactions) -> Result<()> {
        Ok(())
    }

    fn txn_put(&mut self, _key: &[u8], _value: &[u8]) -> Result<Step<()>> {
        Ok(Step::Done(()))
    }

    fn txn_delete(&mut self, _key: &[u8]) -> Result<Step<()>> {
        Ok(Step::Done(()))
    }

    fn txn_get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.get(key, found).map(Step::Done)
    }

    fn txn_get_for_update(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.get(key, found).map(Step::Done)
    }

    fn txn_cursor(&mut self, bounds: Bounds<'_>) -> Result<Step<Box<dyn Cursor>>> {
        self.cursor(bounds).map(Step::Done)
    }

    fn commit(&mut self) -> Result<Step<()>> {
        Ok(Step::Done(()))
    }

    fn rollback(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Rows of a range: as many as there are numbers between those that its bounds end in, and 10 where bounds end in none.
fn rows_between(lower: &[u8], upper: &[u8]) -> u64 {
    let digits = |key: &[u8]| key.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let number = |key: &[u8], len: usize| str::from_utf8(&key[key.len() - len..]).ok()?.parse::<u64>().ok();
    let len = digits(lower);
    let alike = len == digits(upper) && lower[..lower.len() - len] == upper[..upper.len() - len];
    let numbers = (number(lower, len).filter(|_| alike)).zip(number(upper, len));
    numbers.map_or(10, |(from, to)| to.saturating_sub(from).clamp(1, 100_000))
}

/// Stands on the key it was last sent to.
struct NullCursor {
    key: Vec<u8>,
    value: Arc<[u8]>,
    /// Entries of a range, and those that are left of this one.
    entries: u64,
    left: u64,
}

impl Cursor for NullCursor {
    fn first(&mut self) -> Result<bool> {
        self.left = self.entries;
        Ok(true)
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.left = self.entries;
        Ok(true)
    }

    fn next(&mut self) -> Result<bool> {
        self.left -= 1;
        Ok(self.left > 0)
    }

    fn key(&mut self) -> Result<&[u8]> {
        Ok(&self.key)
    }

    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        Ok((&self.key, &self.value))
    }
}

#[cfg(test)]
mod tests {
    use super::rows_between;

    #[test]
    fn a_range_has_the_rows_that_its_bounds_leave_room_for() {
        assert_eq!(rows_between(b"k:000000000950", b"k:000000001050"), 100);
        assert_eq!(rows_between(b"u:0000000001:c:", b"u:0000000001:c;"), 10);
        assert_eq!((rows_between(b"a1", b"b2"), rows_between(b"", b""), rows_between(b"9", b"3")), (10, 10, 1));
    }
}
