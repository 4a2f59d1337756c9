//! Memory for memtables: chunks of huge pages, recycled from one memtable to the next.

use std::sync::Arc;

use kingtide_base::budget::Budget;

/// Where memtables get their chunks from and return them to. Chunks that a memtable holds are charged to the budget.
#[derive(Debug)]
pub struct ArenaPool {
    budget: Arc<Budget>,
}

impl ArenaPool {
    /// A pool that charges to `budget`.
    pub fn new(budget: Arc<Budget>) -> Arc<ArenaPool> {
        Arc::new(ArenaPool { budget })
    }

    /// The budget that chunks are charged to while a memtable holds them.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }
}
