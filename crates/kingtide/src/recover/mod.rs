//! Recovery: what the manifest and the log say, made into families with memtables.
//!
//! | stage | what it does |
//! |---|---|
//! | [`manifest`] | adds up the edits, and compares the sum with what the open asks for |
//! | [`families`] | makes the families, with empty memtables; flushes what does not fit into memory |
//! | [`log`] | replays records into memtables, and collects the transactions in doubt |
//! | [`install`] | hands over what the open goes on with, and the names of orphans, which it removes when the log is durable |

mod families;
mod install;
mod log;
mod manifest;
mod recovery;

pub(crate) use install::remove_orphans;
pub(crate) use manifest::{StoredOptions, stored_options};
pub(crate) use recovery::{Recovered, Recovery, is_boot};

use kingtide_base::Result;

impl Recovery<'_> {
    /// Recovers the database as the files say.
    pub fn run(&self) -> Result<Recovered> {
        let described = self.read_manifest()?;
        let mut families = self.make_families(described)?;
        let replayed = self.replay_log(&mut families)?;
        families.install(replayed)
    }
}
