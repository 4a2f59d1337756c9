//! What is known of a database that was opened for reading only.

use crate::options::Options;
use kingtide_base::sync::Mutex;

/// What a database that was opened for reading only needs to read itself again.
pub(crate) struct ReadOnly {
    pub options: Options,
    /// One at a time catches up.
    pub catching_up: Mutex<()>,
}

impl ReadOnly {
    pub fn new(options: Options) -> ReadOnly {
        ReadOnly { options, catching_up: Mutex::new(()) }
    }
}
