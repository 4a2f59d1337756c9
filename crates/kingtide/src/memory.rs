//! Keeps the database to the options `memtable_budget` and `memory_limit`. What is counted, and how it is divided, is in
//! [`crate::accountant`].

use crate::accountant::MemoryUse;
use crate::catalog::Catalog;
use crate::engine::DbInner;
use crate::family::View;
use crate::options::memtable_limit;
use kingtide_base::sync::atomic::Ordering;

impl DbInner {
    /// Sets how much memory memtables may hold, and divides the rest. It depends on the options, on the number of families and, where the
    /// disk has little space, on the room for flushes.
    pub(crate) fn fit_memtable_limit(&self, catalog: &Catalog) {
        let room = self.flush_room.load(Ordering::Relaxed);
        let families = catalog.families.len();
        self.memory.set_limit(memtable_limit(&self.options.read(), &self.family_defaults, families, room));
        self.accountant.balance();
        self.tables.fit_memory();
    }

    /// Divides memory as it is used now: background work does this again and again, because nothing else tells that memory was
    /// given back. Says whether views had to be made anew.
    pub(crate) fn balance_memory(&self) -> bool {
        if self.accountant.is_limited() {
            self.accountant.note_locks(self.txns.locks.memory());
            self.accountant.balance();
            self.tables.fit_memory();
        }
        if !self.tables.take_pins_due() {
            return false;
        }
        // In views that exist, tables are pinned.
        let catalog = self.catalog.lock();
        for family in catalog.families.values() {
            family.update_view(|v| {
                let (active, immutable) = (v.active.clone(), v.immutable.clone());
                View::new(v.order.clone(), active, immutable, v.version.clone(), &self.tables, Some(v))
            });
        }
        drop(catalog);
        self.accountant.balance();
        self.tables.fit_memory();
        true
    }

    /// What each consumer of memory holds.
    pub(crate) fn memory_use(&self) -> MemoryUse {
        self.accountant.note_locks(self.txns.locks.memory());
        self.accountant.usage()
    }
}
