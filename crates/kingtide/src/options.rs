//! What a caller hands to [`crate::Db::open`].

use crate::snapshot::Snapshot;
use crate::tuning::Tuning;
use kingtide_base::clock::Clock;
use kingtide_base::events::EventListener;
use kingtide_base::events::LogLevel;
use kingtide_base::key::CustomOrder;
use kingtide_base::options::{Compression, DbOptions, Durability, FamilyOptions, FileMode, unknown_option};
use kingtide_base::rng::{Rng, entropy};
use kingtide_base::{Error, KeyOrder, Result};
use kingtide_versions::KeyOrders;
use kingtide_vfs::Fs;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// How to open a database. [`DbOptions`] and [`FamilyOptions`] are the option tables, whose options can also be set as text; the other fields
/// have no textual form. All options of both tables have a builder method of their name. Fields can be read and assigned; the builder methods
/// make options, because a later version may add fields (`#[non_exhaustive]`).
///
/// ```
/// use kingtide::{Compression, Db, DbOptions, Event, EventListener, FamilyOptions, KeyOrder, ManualClock, Options, vfs::MemFs};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// let mut options = Options::new()
///     .block_cache_size(8 << 20)
///     .close_timeout(Duration::from_secs(1))
///     .compression(Compression::Zstd)
///     .order(KeyOrder::Bytewise)
///     .fs(MemFs::shared());
/// options.set("lock_timeout_ms", "20")?; // as text, times have their unit in the name
/// assert_eq!(options.db.lock_timeout, Duration::from_millis(20));
/// let db = Db::open("db", options)?;
/// db.put("neap", "small")?;
/// # db.close()?;
///
/// // Whole tables, and what tests and simulations need: a clock of their own, ids that are the same each time.
/// let test = Options::new().db(DbOptions::new().max_open_files(16)).family(FamilyOptions::new().value_threshold(0));
/// let test = test.fs(MemFs::shared()).clock(ManualClock::at_unix_ms(1_000_000)).seed(17).manual_jobs(true);
/// struct Print;
/// impl EventListener for Print {
///     fn event(&self, event: &Event) {
///         println!("{event:?}");
///     }
/// }
/// let test = test.listener(Arc::new(Print));
/// let db = Db::open("db", test)?;
/// db.default_family().put("spring", "large")?;
/// while db.run_one_job()? {}
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// Options of the database.
    pub db: DbOptions,
    /// Options of the default family, and of families that are created without options. An open for writing stores them for the default family,
    /// and so replaces the stored ones, including what [`crate::ColumnFamily::set_option`] set; [`Options::load`] takes the stored ones instead.
    /// Other families keep the options that they were created with, and later changes.
    pub family: FamilyOptions,
    /// Key order of the default family.
    pub order: KeyOrder,
    /// Key orders supplied by the user, found by name when families that use them are opened.
    pub custom_orders: Vec<Arc<dyn CustomOrder>>,
    /// The file system; the machine's when absent.
    pub fs: Option<Arc<dyn Fs>>,
    /// The clock; the machine's when absent.
    pub clock: Option<Arc<dyn Clock>>,
    /// No background threads: the caller runs jobs with [`crate::Db::run_one_job`]. For simulation.
    pub manual_jobs: bool,
    /// Seed for the ids of new databases and copies; the machine's entropy if absent. For simulation.
    pub seed: Option<u64>,
    /// A listener that is called for events inside: flushes, compactions, stalls, errors.
    pub listener: Option<Arc<dyn EventListener>>,
    /// Thresholds that only tests change.
    #[doc(hidden)]
    pub tuning: Tuning,
}

impl Options {
    /// The defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// Sets the options of the database.
    #[must_use]
    pub fn db(mut self, options: DbOptions) -> Options {
        self.db = options;
        self
    }

    /// Sets the options of the default family.
    #[must_use]
    pub fn family(mut self, options: FamilyOptions) -> Options {
        self.family = options;
        self
    }

    /// Sets the key order of the default family.
    #[must_use]
    pub fn order(mut self, order: KeyOrder) -> Options {
        self.order = order;
        self
    }

    /// Adds a key order supplied by the user, found by name when families that use it are opened.
    ///
    /// ```
    /// use kingtide::{CustomOrder, Db, KeyOrder, Options, vfs::MemFs};
    /// use std::{cmp::Ordering, sync::Arc};
    ///
    /// struct ByLength;
    /// impl CustomOrder for ByLength {
    ///     fn name(&self) -> &str {
    ///         "by-length"
    ///     }
    ///     fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
    ///         (a.len(), a).cmp(&(b.len(), b))
    ///     }
    /// }
    /// let order = Arc::new(ByLength);
    /// let db = Db::open("db", Options::new().fs(MemFs::shared()).custom_order(order.clone()))?;
    /// let family = db.create_family_ordered("words", kingtide::FamilyOptions::new(), KeyOrder::Custom(order))?;
    /// family.put("flood", "")?;
    /// family.put("ebb", "")?;
    /// assert_eq!(family.first()?.unwrap().key, b"ebb");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn custom_order(mut self, order: Arc<dyn CustomOrder>) -> Options {
        self.custom_orders.push(order);
        self
    }

    /// Sets the file system to use instead of the machine's.
    #[must_use]
    pub fn fs(mut self, fs: Arc<dyn Fs>) -> Options {
        self.fs = Some(fs);
        self
    }

    /// Sets the clock to use instead of the machine's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Options {
        self.clock = Some(clock);
        self
    }

    /// Opens with or without background threads: see [`Options::manual_jobs`](#structfield.manual_jobs).
    #[must_use]
    pub fn manual_jobs(mut self, manual: bool) -> Options {
        self.manual_jobs = manual;
        self
    }

    /// Draws the ids of new databases from this seed instead of the machine's entropy.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Options {
        self.seed = Some(seed);
        self
    }

    /// Sets a listener that is called for events inside: flushes, compactions, stalls, errors.
    #[must_use]
    pub fn listener(mut self, listener: Arc<dyn EventListener>) -> Options {
        self.listener = Some(listener);
        self
    }

    /// Sets thresholds that only tests change.
    #[doc(hidden)]
    #[must_use]
    pub fn tuning(mut self, tuning: Tuning) -> Options {
        self.tuning = tuning;
        self
    }

    /// Sets an option by name; the name decides whether it is the database's or the default family's.
    ///
    /// # Errors
    /// `InvalidArgument` that names the option, the problem, and the most similar known name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        if FamilyOptions::NAMES.contains(&name) {
            self.family.set(name, value)
        } else if DbOptions::NAMES.contains(&name) {
            self.db.set(name, value)
        } else {
            Err(unknown_option(name))
        }
    }

    /// A new database's id. Different for every `salt`, which matters only where a seed is given.
    pub(crate) fn draw_id(seed: Option<u64>, salt: u64) -> [u8; 16] {
        let [a, b] = match seed {
            None => [entropy(), entropy()],
            Some(seed) => {
                let mut rng = Rng::new(seed ^ salt.rotate_left(32));
                [rng.next_u64(), rng.next_u64()]
            }
        };
        (u128::from(a) << 64 | u128::from(b)).to_le_bytes()
    }

    /// The key orders in these options, the default family's among them.
    pub(crate) fn key_orders(&self) -> KeyOrders {
        let custom = self.custom_orders.iter().map(|order| KeyOrder::Custom(order.clone()));
        KeyOrders::with(custom.chain([self.order.clone()]))
    }

    /// Refuses key orders that a later open would not find by their names.
    pub(crate) fn check_orders(&self) -> Result<()> {
        check_order(&self.order)?;
        self.custom_orders.iter().try_for_each(|order| check_order(&KeyOrder::Custom(order.clone())))
    }
}

/// Checks the name of a key order: only the name is stored, and that of a built-in order means that order.
pub(crate) fn check_order(order: &KeyOrder) -> Result<()> {
    match (order, order.name()) {
        (KeyOrder::Custom(_), "") => Err(Error::invalid("the name of a key order is empty")),
        (KeyOrder::Custom(_), name) if KeyOrder::builtin(name).is_some() => {
            Err(Error::invalid(format!("a custom key order cannot be named '{name}': that is a built-in order")))
        }
        _ => Ok(()),
    }
}

/// Builder methods for the options of a table, which lie in the field `$table`.
macro_rules! forward {
    ($table:ident { $($field:ident: $ty:ty,)* }) => {
        impl Options {
            $(
                #[doc = concat!("With another `", stringify!($field), "`: see the field of `", stringify!($table), "`.")]
                #[must_use]
                pub fn $field(mut self, $field: $ty) -> Options {
                    self.$table.$field = $field;
                    self
                }
            )*
        }
    };
}

macro_rules! forward_db {
    ($($fields:tt)*) => { forward! { db { $($fields)* } } };
}

macro_rules! forward_family {
    ($($fields:tt)*) => { forward! { family { $($fields)* } } };
}

kingtide_base::each_db_option!(forward_db);
kingtide_base::each_family_option!(forward_family);

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = self.order.name();
        f.debug_struct("Options").field("db", &self.db).field("family", &self.family).field("order", &order).finish()
    }
}

/// Memtable memory that each family may have at least. A memtable that holds anything has a first chunk of 4 KiB, and writers
/// are slowed from half of the limit on: with less, each write would wait until a table of a few rows was written.
const LEAST_FOR_A_FAMILY: u64 = 16 << 10;

/// Returns how many bytes the memtables of `families` families together may hold if flushes have `room` bytes of space.
pub(crate) fn memtable_limit(db: &DbOptions, family: &FamilyOptions, families: usize, room: u64) -> u64 {
    let families = families.max(1) as u64;
    let full = |family: &FamilyOptions, n: u64| family.memtable_size.saturating_mul(n + family.max_immutable_memtables);
    let most = if db.memory_limit > 0 { db.memory_limit / 2 } else { u64::MAX };
    let limit = match (db.memtable_budget, families) {
        (0, 1) => memtable_limit_of_one(family),
        // What small memtables of many families hold when they are full, but no more than one family by default.
        (0, _) => {
            full(family, families).min(full(&FamilyOptions::default(), 1)).min(most).max(memtable_limit_of_one(family))
        }
        (n, _) => n,
    };
    limit.min(room).max(families.saturating_mul(LEAST_FOR_A_FAMILY))
}

/// The limit for one family by default. Flushes free a memtable before the next ones are full, so that the last quarter of what all
/// could hold adds to the peak of a load, but not to its rate (docs/performance.md, "Memory").
fn memtable_limit_of_one(family: &FamilyOptions) -> u64 {
    let (size, most) = (family.memtable_size, 1 + family.max_immutable_memtables);
    (size.saturating_mul(most) / 4).saturating_mul(3).max(size.saturating_mul(2))
}

/// Bytes that everything but memtables needs at least.
const LEAST_BESIDE_MEMTABLES: u64 = 64 << 10;

/// The smallest `memory_limit` that is allowed beside the other options: it has room for the memtables of one family, and a
/// sixteenth of that for everything else.
pub fn least_memory_limit(db: &DbOptions, family: &FamilyOptions) -> u64 {
    let memtables = memtable_limit(&db.clone().memory_limit(1), family, 1, u64::MAX);
    memtables.saturating_add((memtables / 16).max(LEAST_BESIDE_MEMTABLES))
}

/// Checks `memory_limit` against what memtables may hold.
pub(crate) fn check_memory_limit(db: &DbOptions, family: &FamilyOptions) -> Result<()> {
    let least = least_memory_limit(db, family);
    if db.memory_limit == 0 || db.memory_limit >= least {
        return Ok(());
    }
    let (asked, memtables) = (db.memory_limit, memtable_limit(&db.clone().memory_limit(1), family, 1, u64::MAX));
    let (because, lower) = match db.memtable_budget {
        0 => {
            let (size, immutable) = (family.memtable_size, family.max_immutable_memtables);
            let because =
                format!("three quarters of memtable_size = {size} times (1 + max_immutable_memtables = {immutable})");
            (because, "memtable_size or set memtable_budget")
        }
        _ => ("memtable_budget".to_owned(), "memtable_budget"),
    };
    Err(Error::invalid(format!(
        "option memory_limit = {asked} is too small: memtables may hold {memtables} bytes ({because}), so it must be 0 or at \
         least {least}; or lower {lower}"
    )))
}

/// How one commit is done.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct WriteOptions {
    /// The durability of the commit; the database's durability if absent.
    pub durability: Option<Durability>,
    /// Return `Busy` instead of waiting when writers are being slowed, and `Conflict` instead of waiting for a lock that a
    /// transaction or an ingest holds.
    pub no_wait: bool,
}

impl WriteOptions {
    /// The defaults, for calls that are given none.
    pub(crate) const DEFAULT: WriteOptions = WriteOptions { durability: None, no_wait: false };

    /// The defaults.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::{Durability, WriteBatch, WriteOptions};
    ///
    /// let mut batch = WriteBatch::new();
    /// batch.put(db.default_family(), b"ebb", b"low")?;
    /// db.write_with(batch, &WriteOptions::new().durability(Durability::Power).no_wait(true))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new() -> WriteOptions {
        WriteOptions::default()
    }

    /// Sets the durability, instead of the database's, which `None` stands for.
    #[must_use]
    pub fn durability(mut self, durability: impl Into<Option<Durability>>) -> WriteOptions {
        self.durability = durability.into();
        self
    }

    /// Sets whether a commit returns `Busy` or `Conflict` instead of waiting: see [`WriteOptions::no_wait`](#structfield.no_wait).
    #[must_use]
    pub fn no_wait(mut self, no_wait: bool) -> WriteOptions {
        self.no_wait = no_wait;
        self
    }
}

/// Options of a read or an iterator.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReadOptions<'a> {
    /// The snapshot to read at; now when absent.
    pub snapshot: Option<&'a Snapshot>,
    /// Keys before this are not shown.
    pub lower: Bound<Vec<u8>>,
    /// Keys after this bound are not shown.
    pub upper: Bound<Vec<u8>>,
    /// Only keys with this prefix are shown. For the orders `bytewise`, `reverse` and `case-insensitive`.
    pub prefix: Option<Vec<u8>>,
    /// Whether blocks that an iterator reads may enter the block cache.
    pub fill_cache: bool,
    /// Whether an iterator reads ahead from the start, for long scans; it begins by itself after a few blocks.
    pub readahead: bool,
}

impl<'a> ReadOptions<'a> {
    /// The defaults.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::ReadOptions;
    ///
    /// db.put("ebb", "low")?;
    /// let before = db.snapshot();
    /// db.put("eddy", "short")?;
    /// let options = ReadOptions::new().snapshot(&before).prefix("e").fill_cache(false).readahead(true);
    /// let mut cursor = db.default_family().cursor_with(options)?;
    /// cursor.seek_to_last();
    /// assert_eq!(cursor.key(), b"ebb");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new() -> ReadOptions<'a> {
        ReadOptions::default()
    }

    /// Reads as of this snapshot instead of now, which `None` stands for.
    #[must_use]
    pub fn snapshot(mut self, snapshot: impl Into<Option<&'a Snapshot>>) -> ReadOptions<'a> {
        self.snapshot = snapshot.into();
        self
    }

    /// Shows only keys with this prefix.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<Vec<u8>>) -> ReadOptions<'a> {
        self.prefix = Some(prefix.into());
        self
    }

    /// Sets whether blocks that an iterator reads may enter the block cache.
    #[must_use]
    pub fn fill_cache(mut self, fill_cache: bool) -> ReadOptions<'a> {
        self.fill_cache = fill_cache;
        self
    }

    /// Sets whether an iterator reads ahead from the start.
    #[must_use]
    pub fn readahead(mut self, readahead: bool) -> ReadOptions<'a> {
        self.readahead = readahead;
        self
    }
}

impl Default for ReadOptions<'_> {
    fn default() -> Self {
        ReadOptions {
            snapshot: None,
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
            prefix: None,
            fill_cache: true,
            readahead: false,
        }
    }
}
