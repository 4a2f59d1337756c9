//! Messages that are shown page by page, the newest first.

use kingtide::{Db, Options, Result};
use std::path::Path;

/// The messages.
pub struct Messages(Db);

impl Messages {
    /// Opens the messages in a directory.
    pub fn open(path: &Path) -> Result<Messages> {
        Ok(Messages(Db::open(path, Options::default())?))
    }

    /// Stores a message.
    pub fn post(&self, time: u64, text: &str) -> Result<()> {
        self.0.put(time.to_be_bytes(), text).map(drop)
    }

    /// The newest messages, or the newest before the last one of another page.
    pub fn page(&self, before: Option<u64>, size: usize) -> Result<Vec<(u64, String)>> {
        let end = before.unwrap_or(u64::MAX).to_be_bytes();
        self.0.range(..end).rev().take(size).map(|entry| entry.map(|e| message(&e.key, &e.value))).collect()
    }
}

fn message(key: &[u8], text: &[u8]) -> (u64, String) {
    (key.first_chunk().copied().map_or(0, u64::from_be_bytes), String::from_utf8_lossy(text).into_owned())
}
