//! Messages that are shown page by page, the newest first.

use fjall::{Database, Keyspace, KeyspaceCreateOptions, Result};
use std::path::Path;

/// The messages.
pub struct Messages {
    _db: Database,
    messages: Keyspace,
}

impl Messages {
    /// Opens the messages in a directory.
    pub fn open(path: &Path) -> Result<Messages> {
        let db = Database::builder(path).open()?;
        let messages = db.keyspace("messages", KeyspaceCreateOptions::default)?;
        Ok(Messages { _db: db, messages })
    }

    /// Stores a message.
    pub fn post(&self, time: u64, text: &str) -> Result<()> {
        self.messages.insert(time.to_be_bytes(), text)
    }

    /// The newest messages, or the newest before the last one of another page.
    pub fn page(&self, before: Option<u64>, size: usize) -> Result<Vec<(u64, String)>> {
        let end = before.unwrap_or(u64::MAX).to_be_bytes();
        let entries = self.messages.range(..end).rev().take(size);
        entries.map(|guard| guard.into_inner().map(|(key, text)| message(&key, &text))).collect()
    }
}

fn message(key: &[u8], text: &[u8]) -> (u64, String) {
    (key.first_chunk().copied().map_or(0, u64::from_be_bytes), String::from_utf8_lossy(text).into_owned())
}
