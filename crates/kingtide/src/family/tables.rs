//! Open table files and value logs of a database, within its open-file budget, and the deletion of files that nothing
//! names any more.
//!
//! Every view names its tables by [`TableHandle`], and a table's handle names the [`VlogHandle`]s of the value logs it
//! refers to. So a file lives exactly as long as some view can read it: marking it obsolete only arranges for the last
//! handle to put it into the trash, which a background thread empties: a reader never waits for a file to be removed.
//!
//! While there are no more handles than the budget allows, views pin the open tables and the hot path never comes here.
//! Past it, nothing is pinned and the least recently used tables are closed. One that is being read then keeps
//! its descriptor until that ends; other readers share it meanwhile. So no file is ever open twice, and what is
//! open beyond the budget are the files that are being read: of an iterator or a merge one for each run.
//!
//! When the indexes and filters of all tables do not fit into memory (`memory_limit`), tables are opened in partitions: each keeps a
//! hundredth, which views pin as they do whole tables, and the rest comes and goes in pieces of 4 KiB
//! ([`kingtide_table::TableCaches`]). If not even those hundredths fit into about half of what tables may hold, nothing is pinned, and the least
//! recently used tables are closed. Views that pinned their tables as they were before that are replaced by background work
//! ([`TableCache::take_pins_due`]).

use super::slot::{OpenCount, OpenSlot};
use crate::accountant::MemoryAccountant;
use kingtide_base::budget::Budget;
use kingtide_base::events::Event;
use kingtide_base::names::{klog_path, vlog_path};
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use kingtide_base::{Error, ErrorKind, KeyOrder, Result, rare};
use kingtide_mem::ArenaPool;
use kingtide_mem::cache::BlockCache;
use kingtide_table::{Table, TableCaches, TableId, Vlog};
use kingtide_versions::FileMeta;
use kingtide_vfs::{File, Fs, OpenMode, Origin};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// What all handles of a database share. Atomics here are Relaxed: they are counters and hints, the slots themselves
/// are published by [`OpenSlot`].
struct Shared {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    cache: Arc<BlockCache>,
    stats: Arc<Stats>,
    max_open: AtomicU64,
    open: AtomicU64,
    /// Table and value-log handles alive.
    handles: AtomicU64,
    /// Value-log handles alive whose files have no footer: those stay open.
    unfinished: AtomicU64,
    /// Bytes of obsolete value logs that have handles.
    pinned: AtomicU64,
    memory: Arc<MemoryAccountant>,
    /// Bytes of indexes and filters of all tables with a handle that were open at some time: what it takes to have them open as a whole.
    /// If that is more than they may hold, they are in partitions ([`MemoryAccountant::is_partitioned`]).
    demand: AtomicU64,
    /// Bytes that those of them hold without their partitions that were open in partitions at some time.
    slim_demand: AtomicU64,
    /// Whether not even that fits.
    crowded: AtomicBool,
    /// Whether views may still pin tables as they were before one of the two changed, or although they may no longer pin any.
    pins_due: AtomicBool,
    /// Held by the thread that closes tables for want of memory.
    evicting: Mutex<()>,
    /// Set for a reader of a directory that another process writes to: it may not be able to open a file again.
    stays_open: bool,
    /// Moves with every access that goes through a handle: the age for closing the least recently used.
    tick: AtomicU64,
    tables: Mutex<HashMap<u64, Weak<TableHandle>>>,
    vlogs: Mutex<HashMap<u64, Weak<VlogHandle>>>,
    /// Files to remove. The last handle may go on a reader's thread, and removing a file can take many milliseconds.
    trash: Mutex<Vec<Trash>>,
    /// In a forked child, handles that are dropped touch nothing of this.
    origin: Origin,
}

/// A file that nothing names any more.
enum Trash {
    Table(u64),
    Vlog(u64),
}

impl Shared {
    fn remove(&self, path: &Path) -> Result<()> {
        self.fs.remove(path)?;
        let name = || path.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
        self.stats.events.tell_detail(|| Event::FileDeleted(name()));
        Ok(())
    }

    /// Opens a file that the manifest names. A missing file is damage, and must not read as a missing key.
    fn open_named(&self, path: &Path, what: &str) -> Result<Arc<dyn File>> {
        let open = || self.fs.open(path, OpenMode::Read);
        let opened = open().or_else(|e| {
            if !e.is_out_of_descriptors() {
                return Err(e);
            }
            // Merges open a file of every run that they read, beyond the budget: files that are not being read now make room.
            rare!("descriptors-ran-out");
            self.close_all_but(0, u64::MAX);
            open()
        });
        opened.map_err(|e| match e.kind() {
            ErrorKind::NotFound => Error::corruption(format!("a {what} file is missing")).at_path(path),
            _ => e,
        })
    }

    /// Frees what caches hold of a table or value log whose file is removed.
    fn forget_blocks(&self, id: u64) {
        self.cache.erase_file(id);
        self.memory.partitions.erase_file(id);
    }

    fn may_pin(&self) -> bool {
        self.handles.load(Ordering::Relaxed) <= self.max_open.load(Ordering::Relaxed) && !self.is_crowded()
    }

    /// Counts a new handle. If it is the first one beyond the budget, views may no longer pin their tables, because they would keep them open
    /// whatever the budget.
    fn count_handle(&self) {
        if self.handles.fetch_add(1, Ordering::Relaxed) == self.max_open.load(Ordering::Relaxed) {
            self.pins_due.store(true, Ordering::Relaxed);
        }
    }

    fn is_crowded(&self) -> bool {
        self.is_partitioned() && self.crowded.load(Ordering::Relaxed)
    }

    fn touch(&self, used: &AtomicU64) {
        used.store(self.tick.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    fn pin(&self, bytes: u64) {
        let now = self.pinned.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.stats.set(Stat::VlogPinnedBytes, now);
    }

    fn unpin(&self, bytes: u64) {
        if bytes > 0 {
            let now = self.pinned.fetch_sub(bytes, Ordering::Relaxed) - bytes;
            self.stats.set(Stat::VlogPinnedBytes, now);
        }
    }

    fn show_resident(&self) {
        self.stats.set(Stat::ResidentTableBytes, self.memory.table_bytes());
    }

    fn is_partitioned(&self) -> bool {
        self.memory.is_partitioned()
    }

    /// Bytes that tables in partitions may hold without their partitions, which may have the other half. Tables that are too small to be
    /// divided leave more.
    fn slim_allowance(&self) -> u64 {
        let in_partitions =
            self.demand.load(Ordering::Relaxed).saturating_sub(self.slim_demand.load(Ordering::Relaxed));
        let allowance = self.memory.allowance();
        allowance - in_partitions.min(allowance / 2)
    }

    /// Takes note of whether all tables fit into memory as a whole, and if not, in partitions. Once they do not, an eighth must be free
    /// before they do again: what changes with that is every view.
    fn see_whether_tables_fit(&self) {
        if self.stays_open {
            return;
        }
        let exceeds = |demand: &AtomicU64, most: u64, did: bool| {
            demand.load(Ordering::Relaxed) > if did { most - most / 8 } else { most }
        };
        let (was, did) = (self.is_partitioned(), self.crowded.load(Ordering::Relaxed));
        let is = exceeds(&self.demand, self.memory.allowance(), was);
        let mut changed = is != was && self.memory.set_partitioned(is);
        if is && changed {
            rare!("tables-partitioned");
        }
        let does = exceeds(&self.slim_demand, self.slim_allowance(), did);
        changed |= does != did && self.crowded.swap(does, Ordering::Relaxed) != does;
        if changed {
            self.pins_due.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a table's index and filter are in memory as they are to be now.
    fn suits(&self, table: &Table) -> bool {
        table.is_in_partitions(self.is_partitioned())
    }

    /// Closes the least recently used files until a sixteenth of the budget of files, and of memory, is free, so that scans are rare.
    fn trim(&self, keep: u64) {
        let max = self.max_open.load(Ordering::Relaxed);
        if self.open.load(Ordering::Relaxed) > max {
            self.close_all_but((max - max / 16) as usize, keep);
        }
        let most = if self.is_partitioned() { self.slim_allowance() } else { self.memory.allowance() };
        if self.memory.tables.used() > most && !self.stays_open {
            self.evict(most, keep);
        }
    }

    /// Closes tables that are not in memory as they are to be, and of the others the least recently used ones, until a sixteenth of
    /// `most` is free. Those that are being read keep their memory until that ends.
    #[cold]
    fn evict(&self, most: u64, keep: u64) {
        let Some(_one_at_a_time) = self.evicting.try_lock() else { return };
        let tables: Vec<_> = self.tables.lock().values().filter_map(Weak::upgrade).collect();
        let mut ages: Vec<(u64, u64, &Arc<TableHandle>)> = Vec::with_capacity(tables.len());
        let mut held = 0;
        for handle in tables.iter().filter(|t| t.id() != keep) {
            let Some(table) = handle.open_table() else { continue };
            let bytes = table.resident_bytes();
            if self.suits(&table) {
                held += bytes;
                ages.push((handle.used.load(Ordering::Relaxed), bytes, handle));
            } else {
                self.evict_one(handle);
            }
        }
        ages.sort_unstable_by_key(|(used, ..)| *used);
        let target = if held > most { most - most / 16 } else { most };
        for (_, bytes, handle) in ages {
            if held <= target {
                break;
            }
            held -= bytes;
            self.evict_one(handle);
        }
        self.show_resident();
        self.memory.balance(); // the room is that of partitions now, not when background work looks in
    }

    fn evict_one(&self, handle: &TableHandle) {
        handle.evicted.store(true, Ordering::Relaxed);
        handle.close();
        self.stats.add(Stat::TableEvictions, 1);
    }

    /// Closes files until `most` are open, the least recently used first; `keep` is a table that stays open.
    fn close_all_but(&self, most: usize, keep: u64) {
        let tables: Vec<_> = self.tables.lock().values().filter_map(Weak::upgrade).collect();
        let vlogs: Vec<_> = self.vlogs.lock().values().filter_map(Weak::upgrade).collect();
        let mut ages: Vec<(u64, usize)> = (tables.iter().map(|t| (&t.used, t.table.is_open())))
            .chain(vlogs.iter().map(|v| (&v.used, v.vlog.is_open() && !v.is_unfinished())))
            .enumerate()
            .filter(|(_, (_, is_open))| *is_open)
            .map(|(i, (used, _))| (used.load(Ordering::Relaxed), i))
            .collect();
        let excess = ages.len().saturating_sub(most);
        ages.sort_unstable();
        for (_, i) in ages.into_iter().take(excess) {
            match tables.get(i) {
                Some(t) if t.id() != keep => t.close(),
                Some(_) => {}
                None => vlogs[i - tables.len()].close(),
            }
        }
    }
}

impl OpenCount for Shared {
    fn opened(&self) {
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.stats.set(Stat::OpenTables, open);
    }

    fn closed(&self) {
        let open = self.open.fetch_sub(1, Ordering::Relaxed) - 1;
        self.stats.set(Stat::OpenTables, open);
    }
}

/// The table files and value logs of a database.
pub struct TableCache {
    shared: Arc<Shared>,
}

impl TableCache {
    /// A cache of the files in `dir` that keeps at most `max_open_files` of them open, whatever memory that takes.
    pub fn new(
        fs: Arc<dyn Fs>,
        dir: PathBuf,
        cache: Arc<BlockCache>,
        stats: Arc<Stats>,
        max_open_files: u64,
    ) -> Arc<TableCache> {
        let partitions = BlockCache::of_partitions(0, 1, stats.clone());
        let memory = MemoryAccountant::new(ArenaPool::new(Budget::new(u64::MAX)), cache.clone(), partitions);
        TableCache::counted((fs, dir), cache, stats, memory, Some(max_open_files))
    }

    /// A cache of the files in a directory that keeps at most `max_open_files` of them open, and so many as `memory` allows. All
    /// stay open if `None` is given.
    pub(crate) fn counted(
        (fs, dir): (Arc<dyn Fs>, PathBuf),
        cache: Arc<BlockCache>,
        stats: Arc<Stats>,
        memory: Arc<MemoryAccountant>,
        max_open_files: Option<u64>,
    ) -> Arc<TableCache> {
        Arc::new(TableCache {
            shared: Arc::new(Shared {
                fs,
                dir,
                cache,
                stats,
                max_open: AtomicU64::new(max_open_files.unwrap_or(u64::MAX / 2)),
                open: AtomicU64::new(0),
                handles: AtomicU64::new(0),
                unfinished: AtomicU64::new(0),
                pinned: AtomicU64::new(0),
                memory,
                demand: AtomicU64::new(0),
                slim_demand: AtomicU64::new(0),
                crowded: AtomicBool::new(false),
                pins_due: AtomicBool::new(false),
                evicting: Mutex::default(),
                stays_open: max_open_files.is_none(),
                tick: AtomicU64::new(1),
                tables: Mutex::new(HashMap::new()),
                vlogs: Mutex::new(HashMap::new()),
                trash: Mutex::new(Vec::new()),
                origin: Origin::here(),
            }),
        })
    }

    /// Changes the open-file budget.
    pub fn set_max_open_files(&self, n: u64) {
        let could_pin = self.may_pin();
        self.shared.max_open.store(n, Ordering::Relaxed);
        if could_pin && !self.may_pin() {
            self.shared.pins_due.store(true, Ordering::Relaxed);
        }
        self.shared.trim(0);
    }

    /// Keeps to what tables may hold now.
    pub fn fit_memory(&self) {
        self.shared.see_whether_tables_fit();
        self.shared.trim(0);
    }

    /// Whether views were built when tables were kept in memory in another way, or could all be open. Such views keep the tables that way,
    /// and must be rebuilt. Returns true only once.
    pub(crate) fn take_pins_due(&self) -> bool {
        self.shared.pins_due.load(Ordering::Relaxed) && self.shared.pins_due.swap(false, Ordering::Relaxed)
    }

    /// Whether all files that views name fit into the budget.
    pub fn may_pin(&self) -> bool {
        self.shared.may_pin()
    }

    /// Whether a table's index and filter are in memory as they are to be now.
    pub(crate) fn suits(&self, table: &Table) -> bool {
        self.shared.suits(table)
    }

    /// The handle of a table and, through it, of its value logs. Opens nothing.
    pub fn handle(&self, meta: &Arc<FileMeta>, order: &KeyOrder) -> Arc<TableHandle> {
        if let Some(h) = self.shared.tables.lock().get(&meta.id).and_then(Weak::upgrade) {
            return h;
        }
        let vlogs = meta.vlog_refs.iter().map(|r| self.vlog_handle(r.file_id)).collect();
        let mut tables = self.shared.tables.lock();
        if let Some(h) = tables.get(&meta.id).and_then(Weak::upgrade) {
            return h;
        }
        self.shared.count_handle();
        let handle = Arc::new(TableHandle {
            id: meta.table_id(),
            order: order.clone(),
            vlogs,
            table: OpenSlot::empty(),
            opening: Mutex::default(),
            used: AtomicU64::new(0),
            size: AtomicU64::new(0),
            slim_size: AtomicU64::new(0),
            evicted: AtomicBool::new(false),
            obsolete: AtomicBool::new(false),
            shared: self.shared.clone(),
        });
        tables.insert(meta.id, Arc::downgrade(&handle));
        handle
    }

    /// The handle of a value log. Opens nothing.
    pub fn vlog_handle(&self, id: u64) -> Arc<VlogHandle> {
        let mut vlogs = self.shared.vlogs.lock();
        if let Some(h) = vlogs.get(&id).and_then(Weak::upgrade) {
            return h;
        }
        self.shared.count_handle();
        let handle = Arc::new(VlogHandle {
            id,
            vlog: OpenSlot::empty(),
            opening: Mutex::default(),
            used: AtomicU64::new(0),
            unfinished: AtomicBool::new(false),
            obsolete: AtomicBool::new(false),
            pinned: AtomicU64::new(0),
            shared: self.shared.clone(),
        });
        vlogs.insert(id, Arc::downgrade(&handle));
        handle
    }

    /// The handle of a value log that is being written, or was when its database crashed: the file has no footer. It goes
    /// with the last handle unless [`VlogHandle::keep`] says otherwise; `keep`: not even then. `file` is opened by
    /// the first read if it is not given.
    pub fn unfinished_vlog(&self, id: u64, file: Option<Arc<dyn File>>, keep: bool) -> Arc<VlogHandle> {
        let handle = self.vlog_handle(id);
        let mut opened = handle.opening.lock();
        if !handle.unfinished.swap(true, Ordering::AcqRel) {
            self.shared.unfinished.fetch_add(1, Ordering::Relaxed);
        }
        handle.obsolete.store(!keep, Ordering::Release);
        if let Some(file) = file
            && !handle.vlog.is_open()
        {
            let vlog = Vlog::unfinished(file, id);
            *opened = Arc::downgrade(&vlog);
            handle.vlog.put(vlog, &*self.shared);
        }
        drop(opened);
        handle
    }

    /// Whether one more value log may be kept open for writing: together they take at most a quarter of the open-file
    /// budget.
    pub fn may_begin_value_log(&self) -> bool {
        self.shared.unfinished.load(Ordering::Relaxed) < self.shared.max_open.load(Ordering::Relaxed) / 4
    }

    /// Whether one may be made ahead: half of those stay for families that have none.
    pub fn may_make_value_log_ahead(&self) -> bool {
        self.shared.unfinished.load(Ordering::Relaxed) < self.shared.max_open.load(Ordering::Relaxed) / 8
    }

    /// Takes a table that was just written, so that the first reader need not open it. It must not be in a view yet.
    pub fn adopt(&self, handle: &Arc<TableHandle>, table: Arc<Table>) {
        let mut opened = handle.opening.lock();
        if !handle.table.is_open() {
            *opened = Arc::downgrade(&table);
            handle.install(table);
        }
    }

    /// Removes the table file `id` once no view names it: now, or when the last one goes.
    pub fn delete_table(&self, id: u64) -> Result<()> {
        let handle = self.shared.tables.lock().get(&id).and_then(Weak::upgrade);
        match handle {
            Some(h) => {
                // Release: pairs with the Acquire load in drop, which follows the last decrement of the count.
                h.obsolete.store(true, Ordering::Release);
                Ok(())
            }
            None => {
                self.shared.forget_blocks(id);
                self.shared.remove(&klog_path(&self.shared.dir, id))
            }
        }
    }

    /// Removes the value log `id`, of `size` bytes, once no view refers to it: now, or when the last one goes. Until then its bytes
    /// are counted as pinned.
    pub fn delete_vlog(&self, id: u64, size: u64) -> Result<()> {
        let handle = self.shared.vlogs.lock().get(&id).and_then(Weak::upgrade);
        match handle {
            Some(h) => {
                self.shared.pin(size.saturating_sub(h.pinned.swap(size, Ordering::Relaxed)));
                h.obsolete.store(true, Ordering::Release);
                Ok(())
            }
            None => {
                self.shared.forget_blocks(id);
                self.shared.remove(&vlog_path(&self.shared.dir, id))
            }
        }
    }

    /// Removes the obsolete files whose last view has gone; for a background thread. Returns how many there were. A file
    /// that cannot be removed is found and removed by the next open; nothing refers to it.
    pub fn empty_trash(&self) -> usize {
        let trash = std::mem::take(&mut *self.shared.trash.lock());
        for file in &trash {
            let (path, id) = match file {
                Trash::Table(id) => (klog_path(&self.shared.dir, *id), id),
                Trash::Vlog(id) => (vlog_path(&self.shared.dir, *id), id),
            };
            self.shared.forget_blocks(*id);
            let _ = self.shared.remove(&path);
        }
        trash.len()
    }

    /// Opens the tables that no thread has taken yet. Several threads may call this with one list and one cursor, which
    /// starts at zero, to open them in parallel; each returns when nothing is left to take.
    pub fn open_all(&self, handles: &[Arc<TableHandle>], cursor: &AtomicUsize) -> Result<()> {
        while let Some(handle) = handles.get(cursor.fetch_add(1, Ordering::Relaxed)) {
            let full = self.shared.open.load(Ordering::Relaxed) >= self.shared.max_open.load(Ordering::Relaxed);
            if full || self.shared.is_crowded() {
                return Ok(());
            }
            handle.table()?;
        }
        Ok(())
    }

    /// The block cache.
    #[inline]
    pub fn blocks(&self) -> &BlockCache {
        &self.shared.cache
    }

    /// The open value log with that id, by way of the map: for pointers that come from no table.
    pub fn vlog(&self, id: u64) -> Result<Arc<Vlog>> {
        self.vlog_handle(id).vlog()
    }

    /// Files open now.
    pub fn open_files(&self) -> u64 {
        self.shared.open.load(Ordering::Relaxed)
    }
}

/// A table file, open or not.
pub struct TableHandle {
    id: TableId,
    order: KeyOrder,
    vlogs: Box<[Arc<VlogHandle>]>,
    table: OpenSlot<Table>,
    /// Held while the file is opened. What was opened last: it lives on after it was closed here for as long as a
    /// reader holds it.
    opening: Mutex<Weak<Table>>,
    used: AtomicU64,
    /// Bytes that it holds while open as a whole; 0 until it was open.
    size: AtomicU64,
    /// Bytes that it holds while open in partitions, without these; 0 until it was.
    slim_size: AtomicU64,
    /// It was closed for want of memory, and not opened since.
    evicted: AtomicBool,
    obsolete: AtomicBool,
    shared: Arc<Shared>,
}

impl TableHandle {
    /// The file id.
    pub fn id(&self) -> u64 {
        self.id.file_id
    }

    /// Where the sets of range tombstones of tables are charged.
    pub fn range_memory(&self) -> &Arc<Budget> {
        &self.shared.memory.ranges
    }

    /// Whether a view may keep the open table for as long as the view lives.
    pub fn may_pin(&self, table: &Table) -> bool {
        self.shared.may_pin() && self.shared.suits(table)
    }

    /// Opens the table and its value logs.
    pub fn open_all(&self) -> Result<()> {
        self.table()?;
        self.vlogs.iter().try_for_each(|v| v.vlog().map(drop))
    }

    /// The files of the table and its value logs, as far as they are open.
    pub fn open_files(&self) -> Vec<Arc<dyn File>> {
        let vlogs = self.vlogs.iter().filter_map(|v| v.vlog.get()).map(|vlog| vlog.file().clone());
        self.table.get().map(|table| table.file().clone()).into_iter().chain(vlogs).collect()
    }

    /// The table if it is open.
    pub fn open_table(&self) -> Option<Arc<Table>> {
        self.table.get()
    }

    /// The table, opened if need be.
    pub fn table(&self) -> Result<Arc<Table>> {
        let s = &self.shared;
        s.touch(&self.used);
        let suiting = || self.table.get().filter(|t| s.suits(t));
        if let Some(t) = suiting() {
            return Ok(t);
        }
        let mut opened = self.opening.lock();
        if let Some(t) = suiting() {
            return Ok(t);
        }
        let before = opened.upgrade();
        let table = match before {
            Some(table) if s.suits(&table) => table,
            before => {
                let file = match before {
                    Some(table) => table.file().clone(),
                    None => s.open_named(&klog_path(&s.dir, self.id()), "table")?,
                };
                let partitions = s.is_partitioned().then(|| s.memory.partitions.clone());
                let caches = TableCaches { blocks: s.cache.clone(), partitions };
                let table = Table::open(file, self.id, self.order.clone(), caches, s.stats.clone())?;
                if self.evicted.swap(false, Ordering::Relaxed) {
                    s.stats.add(Stat::TableReloads, 1);
                }
                table
            }
        };
        *opened = Arc::downgrade(&table);
        self.install(table.clone());
        drop(opened);
        s.trim(self.id());
        Ok(table)
    }

    fn install(&self, table: Arc<Table>) {
        let (s, whole, held) = (&self.shared, table.whole_bytes(), table.resident_bytes());
        table.charge_to(&s.memory.tables);
        if self.size.swap(whole, Ordering::Relaxed) == 0 {
            s.demand.fetch_add(whole, Ordering::Relaxed);
        }
        if table.is_in_partitions(true) && self.slim_size.swap(held, Ordering::Relaxed) == 0 {
            s.slim_demand.fetch_add(held, Ordering::Relaxed);
        }
        s.show_resident();
        self.table.put(table, &**s);
        s.see_whether_tables_fit();
    }

    fn close(&self) {
        if self.table.close(&*self.shared) {
            self.shared.show_resident();
        }
    }

    /// A value log that the table refers to. The error names the table when its metadata does not list the value log.
    #[inline]
    pub fn vlog(&self, id: u64) -> Result<Arc<Vlog>> {
        match self.vlogs.iter().find(|v| v.id == id) {
            Some(v) => v.vlog(),
            None => {
                Err(Error::corruption(format!("an entry points into value log {id}, which its table does not list"))
                    .at_path(&klog_path(&self.shared.dir, self.id())))
            }
        }
    }
}

impl Drop for TableHandle {
    fn drop(&mut self) {
        if !self.shared.origin.is_here() {
            return;
        }
        self.close();
        self.shared.handles.fetch_sub(1, Ordering::Relaxed);
        self.shared.demand.fetch_sub(self.size.load(Ordering::Relaxed), Ordering::Relaxed);
        self.shared.slim_demand.fetch_sub(self.slim_size.load(Ordering::Relaxed), Ordering::Relaxed);
        let mut tables = self.shared.tables.lock();
        if tables.get(&self.id()).is_some_and(|w| w.strong_count() == 0) {
            tables.remove(&self.id());
        }
        drop(tables);
        if self.obsolete.load(Ordering::Acquire) {
            self.shared.trash.lock().push(Trash::Table(self.id()));
        }
    }
}

/// A value-log file, open or not.
pub struct VlogHandle {
    id: u64,
    vlog: OpenSlot<Vlog>,
    /// As in [`TableHandle`].
    opening: Mutex<Weak<Vlog>>,
    used: AtomicU64,
    /// Its footer is not there yet. Changed under `opening`.
    unfinished: AtomicBool,
    obsolete: AtomicBool,
    /// Its bytes once only readers keep it. A statistic.
    pinned: AtomicU64,
    shared: Arc<Shared>,
}

impl VlogHandle {
    /// The file id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The footer was written: an open of the file sees it from now on.
    pub fn finished(&self) {
        let mut opened = self.opening.lock();
        if self.unfinished.swap(false, Ordering::AcqRel) {
            self.shared.unfinished.fetch_sub(1, Ordering::Relaxed);
        }
        self.close();
        *opened = Weak::new();
    }

    fn is_unfinished(&self) -> bool {
        self.unfinished.load(Ordering::Acquire)
    }

    /// Whether the file stays when the last handle goes: the manifest is about to name it, or does not after all.
    pub fn keep(&self, keep: bool) {
        self.obsolete.store(!keep, Ordering::Release); // as in `TableCache::delete_vlog`
    }

    /// The value log, opened if need be.
    pub fn vlog(&self) -> Result<Arc<Vlog>> {
        if !self.shared.may_pin() {
            self.shared.touch(&self.used);
        }
        if let Some(v) = self.vlog.get() {
            return Ok(v);
        }
        let mut opened = self.opening.lock();
        if let Some(v) = self.vlog.get() {
            return Ok(v);
        }
        let vlog = match opened.upgrade() {
            Some(vlog) => vlog,
            None => {
                let file = self.shared.open_named(&vlog_path(&self.shared.dir, self.id), "value log")?;
                match self.is_unfinished() {
                    true => Vlog::unfinished(file, self.id),
                    false => Vlog::open(file, self.id)?,
                }
            }
        };
        *opened = Arc::downgrade(&vlog);
        self.vlog.put(vlog.clone(), &*self.shared);
        drop(opened);
        self.shared.trim(0);
        Ok(vlog)
    }

    fn close(&self) {
        self.vlog.close(&*self.shared);
    }
}

impl Drop for VlogHandle {
    fn drop(&mut self) {
        if !self.shared.origin.is_here() {
            return;
        }
        self.close();
        self.shared.handles.fetch_sub(1, Ordering::Relaxed);
        self.shared.unfinished.fetch_sub(u64::from(self.is_unfinished()), Ordering::Relaxed);
        self.shared.unpin(self.pinned.load(Ordering::Relaxed));
        let mut vlogs = self.shared.vlogs.lock();
        if vlogs.get(&self.id).is_some_and(|w| w.strong_count() == 0) {
            vlogs.remove(&self.id);
        }
        drop(vlogs);
        if self.obsolete.load(Ordering::Acquire) {
            self.shared.trash.lock().push(Trash::Vlog(self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::view::View;
    use crate::memtable::FamilyMemtable;
    use kingtide_base::budget::Budget;
    use kingtide_base::{Kind, Tag};
    use kingtide_mem::ArenaPool;
    use kingtide_table::{ReadScratch, TableOptions, TableWriter};
    use kingtide_versions::Version;
    use kingtide_vfs::{Fault, FaultFs, MemFs, Op, Rule};

    const DIR: &str = "db";

    fn cache_of(max_open: u64) -> (Arc<dyn Fs>, Arc<TableCache>) {
        let fs = MemFs::shared();
        fs.create_dir_all(Path::new(DIR)).unwrap();
        let stats = Arc::new(Stats::default());
        let blocks = BlockCache::new(0, 1, stats.clone());
        (fs.clone(), TableCache::new(fs, PathBuf::from(DIR), blocks, stats, max_open))
    }

    /// A table with one key: its id.
    fn write(fs: &Arc<dyn Fs>, id: u64) -> Arc<FileMeta> {
        let file = fs.open(&klog_path(Path::new(DIR), id), OpenMode::Create).unwrap();
        let mut w = TableWriter::new(file, id, TableOptions::default());
        let key = format!("{id:04}").into_bytes();
        w.add(&key, Tag::new(id, Kind::Put), b"v").unwrap();
        let info = w.finish().unwrap();
        Arc::new(FileMeta {
            id,
            run: 1,
            size: info.file_size,
            entries: 1,
            tombstones: 0,
            range_tombstones: 0,
            raw_bytes: info.raw_bytes,
            min_key: info.min_key,
            max_key: info.max_key,
            min_seq: id,
            max_seq: id,
            min_expiry_ms: 0,
            created_ms: 0,
            vlog_refs: Vec::new(),
            written_as: id,
            sequence: 0,
            hides: 0,
        })
    }

    /// Threads close tables that others have just opened. Every order of the steps is tried in `slot`.
    #[test]
    fn tables_that_threads_open_and_close_are_counted() {
        let (fs, tables) = cache_of(1);
        let metas: Vec<Arc<FileMeta>> = (1..=6).map(|id| write(&fs, id)).collect();
        let handles: Vec<_> = metas.iter().map(|m| tables.handle(m, &KeyOrder::Bytewise)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (handles, shared) = (&handles, &tables.shared);
                scope.spawn(move || {
                    for i in 0..4_000 {
                        handles[(i + thread) % handles.len()].table().unwrap();
                        let open = shared.open.load(Ordering::Relaxed);
                        assert!(open <= 20, "{open} of 6 tables are open");
                    }
                });
            }
        });
        drop(handles);
        assert_eq!(tables.shared.open.load(Ordering::Relaxed), 0);
    }

    fn view_of(metas: &[Arc<FileMeta>], tables: &TableCache, previous: Option<&View>) -> View {
        let order = KeyOrder::Bytewise;
        let mut version = Version::default();
        metas.iter().for_each(|m| version.add(&order, 1, m.clone()));
        let pool = ArenaPool::new(Budget::new(1 << 30));
        let active = FamilyMemtable::new(order.clone(), &pool, 1);
        View::new(order, active, Vec::new(), Arc::new(version), tables, previous)
    }

    fn read_all(view: &View) {
        let mut scratch = ReadScratch::new();
        for slot in view.runs.iter().flat_map(|r| r.files.iter()) {
            let hit = slot.with(|t| t.get(&slot.meta.min_key, None, Tag::seek(1000), &mut scratch)).unwrap();
            assert!(hit.is_some());
        }
    }

    #[test]
    fn within_the_budget_tables_stay_pinned_and_beyond_it_the_oldest_close() {
        let (fs, tables) = cache_of(20);
        let metas: Vec<_> = (1..=30).map(|id| write(&fs, id)).collect();
        let small = view_of(&metas[..10], &tables, None);
        read_all(&small);
        assert_eq!(tables.open_files(), 10);
        assert!(small.runs[0].files.iter().all(|s| s.resident().is_some()));
        let same = view_of(&metas[..10], &tables, Some(&small));
        assert!(Arc::ptr_eq(&same.runs[0], &small.runs[0]), "an unchanged run is taken over");
        drop((same, small));
        assert_eq!(tables.open_files(), 0, "tables that no view names are closed");

        let large = view_of(&metas, &tables, None);
        for _ in 0..3 {
            read_all(&large);
            assert!(tables.open_files() <= 20, "{}", tables.open_files());
        }
        assert!(large.runs[0].files.iter().all(|s| s.resident().is_none()));
        tables.set_max_open_files(100);
        let again = view_of(&metas, &tables, Some(&large));
        read_all(&again);
        assert_eq!(tables.open_files(), 30);
    }

    /// What tables hold is what is counted, also of those that only readers keep; and where they do not all fit, the ones that are read are open.
    #[test]
    fn tables_that_do_not_fit_into_memory_are_closed_and_opened_again() {
        let (fs, stats) = (MemFs::shared(), Arc::new(Stats::default()));
        fs.create_dir_all(Path::new(DIR)).unwrap();
        let fs: Arc<dyn Fs> = fs;
        let blocks = BlockCache::new(0, 1, stats.clone());
        let arenas = ArenaPool::new(Budget::new(100_000));
        let partitions = BlockCache::of_partitions(0, 1, stats.clone());
        let memory = MemoryAccountant::new(arenas, blocks.clone(), partitions);
        let place = (fs.clone(), PathBuf::from(DIR));
        let tables = TableCache::counted(place, blocks, stats.clone(), memory.clone(), Some(1000));
        let metas: Vec<_> = (1..=30).map(|id| write(&fs, id)).collect();
        let view = view_of(&metas, &tables, None);
        read_all(&view);
        let slots = || view.runs.iter().flat_map(|r| r.files.iter());
        let held = |slots: Vec<&Arc<Table>>| slots.iter().map(|t| t.resident_bytes()).sum::<u64>();
        let all = held(slots().map(|s| s.resident().unwrap()).collect());
        assert_eq!((memory.tables.used(), stats.get(Stat::ResidentTableBytes)), (all, all));
        assert!(!tables.take_pins_due());

        // Room for a third: the view that has them all pinned has to go first.
        memory.set(100_000 + all / 3, 0);
        tables.fit_memory();
        assert_eq!((memory.tables.used(), tables.may_pin()), (all, false));
        assert!(tables.take_pins_due() && !tables.take_pins_due());
        let kept = slots().next().unwrap().table().unwrap();
        let next = view_of(&metas, &tables, Some(&view));
        drop(view);
        tables.fit_memory();
        assert!(memory.tables.used() <= all / 3, "{} of {all}", memory.tables.used());
        let evicted = stats.get(Stat::TableEvictions);
        assert!((20..30).contains(&evicted), "{evicted}");
        for _ in 0..3 {
            read_all(&next);
            assert!(next.runs[0].files.iter().all(|s| s.resident().is_none()));
            assert!(
                memory.tables.used() <= all / 3 + 2 * all / 30,
                "what is kept and what was opened last come on top"
            );
        }
        // Others were closed before it: it was read all the time, and never twice open.
        let hot = next.runs[0].files[7].handle.clone();
        for _ in 0..2 {
            let opens = stats.get(Stat::TableOpens);
            next.runs[0].files.iter().for_each(|s| _ = (s.table().unwrap(), hot.table().unwrap()));
            let reopened = stats.get(Stat::TableOpens) - opens;
            assert!((20..30).contains(&reopened), "{reopened}");
        }
        assert_eq!(stats.get(Stat::TableReloads), stats.get(Stat::TableOpens) - 30);
        assert!(Arc::ptr_eq(&kept, &next.runs[0].files[0].table().unwrap()));

        // With more room they stay, and views pin them.
        memory.set(100_000 + 2 * all, 0);
        tables.fit_memory();
        let evicted = stats.get(Stat::TableEvictions);
        read_all(&next);
        assert!(next.runs[0].files.iter().all(|s| s.resident().is_some()));
        assert_eq!((memory.tables.used(), stats.get(Stat::TableEvictions)), (all, evicted));
        drop((next, hot));
        assert_eq!(memory.tables.used(), kept.resident_bytes());
        drop(kept);
        assert_eq!(memory.tables.used(), 0);
    }

    /// Merges read beyond the budget: where they have used up the process's descriptors, a read makes room for itself.
    #[test]
    fn without_a_descriptor_left_cached_tables_make_room() {
        let inner = MemFs::shared();
        let fault = Arc::new(FaultFs::new(inner, 1));
        let fs: Arc<dyn Fs> = fault.clone();
        fs.create_dir_all(Path::new(DIR)).unwrap();
        let stats = Arc::new(Stats::default());
        let tables =
            TableCache::new(fs.clone(), PathBuf::from(DIR), BlockCache::new(0, 1, stats.clone()), stats.clone(), 20);
        let metas: Vec<_> = (1..=10).map(|id| write(&fs, id)).collect();
        let most = view_of(&metas[..9], &tables, None);
        read_all(&most);
        let all = view_of(&metas, &tables, Some(&most));
        fault.add(Rule::new(Op::Open, Fault::Emfile).path("00000010"));
        read_all(&all);
        assert_eq!(fault.stats().injected(), 1);
        fault.add(Rule::new(Op::Open, Fault::Emfile).sticky());
        tables.set_max_open_files(1);
        let other = write(fault.inner(), 11);
        let refused = tables.handle(&other, &KeyOrder::Bytewise).table().unwrap_err();
        assert!(refused.is_out_of_descriptors(), "{refused}");
    }

    #[test]
    fn an_obsolete_file_lives_until_the_last_view_that_names_it_goes() {
        let (fs, tables) = cache_of(100);
        let metas: Vec<_> = (1..=3).map(|id| write(&fs, id)).collect();
        let exists = |id| fs.exists(&klog_path(Path::new(DIR), id)).unwrap();
        let old = view_of(&metas, &tables, None);
        let new = view_of(&metas[1..], &tables, Some(&old));
        tables.delete_table(1).unwrap();
        read_all(&old);
        assert!(exists(1));
        drop(old);
        assert!(exists(1), "a reader's thread removes nothing");
        assert_eq!(tables.empty_trash(), 1);
        assert!(!exists(1) && exists(2));
        drop(new);
        tables.delete_table(2).unwrap();
        assert!(!exists(2), "a file that no view names is removed at once");
        assert!(exists(3));
    }

    #[test]
    fn several_threads_open_a_list_of_tables() {
        let (fs, tables) = cache_of(1000);
        let metas: Vec<_> = (1..=64).map(|id| write(&fs, id)).collect();
        let handles: Vec<_> = metas.iter().map(|m| tables.handle(m, &KeyOrder::Bytewise)).collect();
        let cursor = AtomicUsize::new(0);
        std::thread::scope(|t| {
            for _ in 0..4 {
                t.spawn(|| tables.open_all(&handles, &cursor).unwrap());
            }
        });
        assert_eq!(tables.open_files(), 64);
    }
}
