//! Messages that are shown page by page, the newest first.

use redb::{Database, Error, ReadableDatabase, TableDefinition};
use std::path::Path;

const MESSAGES: TableDefinition<u64, &str> = TableDefinition::new("messages");

/// The messages.
pub struct Messages(Database);

impl Messages {
    /// Opens the messages in a directory.
    pub fn open(path: &Path) -> Result<Messages, Error> {
        let db = Database::create(path.join("messages.redb"))?;
        let txn = db.begin_write()?;
        txn.open_table(MESSAGES)?; // a reader would find no table
        txn.commit()?;
        Ok(Messages(db))
    }

    /// Stores a message.
    pub fn post(&self, time: u64, text: &str) -> Result<(), Error> {
        let txn = self.0.begin_write()?;
        txn.open_table(MESSAGES)?.insert(time, text)?;
        Ok(txn.commit()?)
    }

    /// The newest messages, or the newest before the last one of another page.
    pub fn page(&self, before: Option<u64>, size: usize) -> Result<Vec<(u64, String)>, Error> {
        let messages = self.0.begin_read()?.open_table(MESSAGES)?;
        let entries = messages.range(..before.unwrap_or(u64::MAX))?.rev().take(size);
        entries.map(|entry| entry.map(|(time, text)| (time.value(), text.value().to_owned()))).map(|e| Ok(e?)).collect()
    }
}
