//! The table of options: one entry each for name, type, default, limits and documentation. The struct fields, parsing
//! by name, printing, validation, persistence and the generated reference are all derived from it.

use crate::error::{Error, Result};
use crate::events::LogLevel;
use std::fmt;
use std::time::Duration;

/// Which failures an acknowledged commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// Survives the death of the process (kill -9): in the operating system's hands before the commit returns. No fsync.
    #[default]
    Process,
    /// Survives a power cut: fsynced before the commit returns, one fsync for all commits that wait together.
    Power,
    /// Like `Process`, and fsynced in the background at least this often; for a single commit, within this time after it. As the database's
    /// option, 1 millisecond to 1 day; for a single commit, less counts as 1 millisecond.
    Interval(Duration),
    /// Not logged: lost with the process until the memtable is flushed. A batch over several column families is logged
    /// nevertheless, without which a crash could leave a part of it.
    None,
}

/// The limits of `Durability::Interval`.
const MIN_INTERVAL: Duration = Duration::from_millis(1);
const MAX_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// Levels that a list of compressions names at most; more than there are.
const MAX_LEVELS: usize = 64;

/// How blocks and values are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
#[repr(u8)]
pub enum Compression {
    /// Stored as they are.
    None = 0,
    /// LZ4, the default.
    #[default]
    Lz4 = 1,
    /// LZ4 with a higher acceleration: faster, weaker.
    Lz4Fast = 2,
    /// Zstandard at the level of the option `zstd_level`: slower, stronger.
    Zstd = 3,
    /// Snappy.
    Snappy = 4,
}

impl Compression {
    /// From the byte stored in files.
    #[doc(hidden)] // for readers of files
    pub fn from_u8(b: u8) -> Option<Compression> {
        Some(match b {
            0 => Compression::None,
            1 => Compression::Lz4,
            2 => Compression::Lz4Fast,
            3 => Compression::Zstd,
            4 => Compression::Snappy,
            _ => return None,
        })
    }
}

/// Who may read and write the files that the engine creates, as permission bits; the process's umask takes bits away.
/// Directories that it creates can also be entered by every user who may read the files.
///
/// ```
/// use kingtide_base::options::FileMode;
///
/// let group = FileMode::new(0o640)?; // the owner writes, the group reads
/// assert_eq!((group.file_bits(), group.dir_bits()), (0o640, 0o750));
/// assert!(FileMode::new(0o440).is_err(), "the owner could not write");
/// # Ok::<(), kingtide_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileMode(u16);

impl FileMode {
    /// The owner alone: 0600, and 0700 for directories.
    pub const OWNER: FileMode = FileMode(0o600);

    /// Read and write permissions, those of the owner among them.
    ///
    /// # Errors
    /// `InvalidArgument` for bits that no file of a database needs, and without those that its owner needs.
    pub fn new(bits: u32) -> Result<FileMode> {
        FileMode::checked(bits).map_err(Error::invalid)
    }

    fn checked(bits: u32) -> Result<FileMode, String> {
        if bits & !0o666 != 0 {
            return Err(format!("{bits:04o} has bits other than read and write permissions (0600 to 0666)"));
        }
        if bits & 0o600 != 0o600 {
            return Err(format!("{bits:04o} does not let the owner read and write (0600 to 0666)"));
        }
        Ok(FileMode(bits as u16))
    }

    /// The bits of a file.
    pub fn file_bits(self) -> u32 {
        u32::from(self.0)
    }

    /// The bits of a directory.
    pub fn dir_bits(self) -> u32 {
        u32::from(self.0 | (self.0 & 0o444) >> 2)
    }
}

impl Default for FileMode {
    fn default() -> FileMode {
        FileMode::OWNER
    }
}

/// A type that an option can have.
pub trait OptionValue: Sized + Clone {
    /// What a user may write, for messages and documentation.
    const FORM: &'static str;
    /// Reads what a user wrote; the error says only what is wrong with the value.
    fn parse_value(text: &str) -> Result<Self, String>;
    /// Writes it so that [`OptionValue::parse_value`] reads it back.
    fn show(&self) -> String;
    /// Returns what is wrong with a value that was not parsed, if anything is; limits aside.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
    /// As a number, where limits apply.
    fn as_f64(&self) -> Option<f64> {
        None
    }
}

/// Reads a size: digits with an optional K, M, G, T (powers of 1024), also written KB or KiB.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let t = text.trim();
    let digits = t.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return Err(format!("'{text}' is not a whole number or a size, such as 64M"));
    }
    let (number, suffix) = t.split_at(digits);
    let shift = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        other => return Err(format!("unknown size suffix '{other}' (use K, M, G or T)")),
    };
    let n: u64 = number.parse().map_err(|_| format!("'{text}' is not a size"))?;
    n.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is too large"))
}

impl OptionValue for u64 {
    const FORM: &'static str = "number or size (64M)";
    fn parse_value(text: &str) -> Result<Self, String> {
        parse_size(text)
    }
    fn show(&self) -> String {
        self.to_string()
    }
    fn as_f64(&self) -> Option<f64> {
        Some(*self as f64)
    }
}

impl OptionValue for f64 {
    const FORM: &'static str = "number";
    fn parse_value(text: &str) -> Result<Self, String> {
        text.trim().parse().map_err(|_| format!("'{text}' is not a number"))
    }
    fn show(&self) -> String {
        self.to_string()
    }
    fn as_f64(&self) -> Option<f64> {
        Some(*self)
    }
}

impl OptionValue for bool {
    const FORM: &'static str = "true or false";
    fn parse_value(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" | "on" | "yes" => Ok(true),
            "false" | "0" | "off" | "no" => Ok(false),
            _ => Err(format!("'{text}' is neither true nor false")),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl OptionValue for Durability {
    const FORM: &'static str = "process, power, none or interval:MILLISECONDS";
    fn parse_value(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "process" => Ok(Durability::Process),
            "power" => Ok(Durability::Power),
            "none" => Ok(Durability::None),
            t => match t.strip_prefix("interval:").map(str::parse) {
                Some(Ok(ms)) => Ok(Durability::Interval(Duration::from_millis(ms))),
                _ => Err(format!("'{text}' is not a durability ({})", Self::FORM)),
            },
        }
    }
    fn check(&self) -> Result<(), String> {
        match self {
            Durability::Interval(d) if !(MIN_INTERVAL..=MAX_INTERVAL).contains(d) => {
                Err(format!("{d:?} is out of range: the interval is 1 millisecond to 1 day"))
            }
            _ => Ok(()),
        }
    }
    fn show(&self) -> String {
        match self {
            Durability::Process => "process".into(),
            Durability::Power => "power".into(),
            Durability::None => "none".into(),
            Durability::Interval(d) => format!("interval:{}", d.as_millis()),
        }
    }
}

impl OptionValue for Compression {
    const FORM: &'static str = "none, lz4, lz4-fast, zstd or snappy";
    fn parse_value(text: &str) -> Result<Self, String> {
        Ok(match text.trim().to_ascii_lowercase().as_str() {
            "none" => Compression::None,
            "lz4" => Compression::Lz4,
            "lz4-fast" => Compression::Lz4Fast,
            "zstd" => Compression::Zstd,
            "snappy" => Compression::Snappy,
            _ => return Err(format!("'{text}' is not a compression ({})", Self::FORM)),
        })
    }
    fn show(&self) -> String {
        match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Lz4Fast => "lz4-fast",
            Compression::Zstd => "zstd",
            Compression::Snappy => "snappy",
        }
        .into()
    }
}

impl OptionValue for LogLevel {
    const FORM: &'static str = "off, error, warn, info or debug";
    fn parse_value(text: &str) -> Result<Self, String> {
        Ok(match text.trim().to_ascii_lowercase().as_str() {
            "off" => LogLevel::Off,
            "error" => LogLevel::Error,
            "warn" => LogLevel::Warn,
            "info" => LogLevel::Info,
            "debug" => LogLevel::Debug,
            _ => return Err(format!("'{text}' is not a level ({})", Self::FORM)),
        })
    }
    fn show(&self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

impl OptionValue for FileMode {
    const FORM: &'static str = "permissions in octal, such as 0640";
    fn parse_value(text: &str) -> Result<Self, String> {
        let digits = text.trim();
        let digits = digits.strip_prefix("0o").unwrap_or(digits);
        match u32::from_str_radix(digits, 8) {
            Ok(bits) if !digits.starts_with('+') => FileMode::checked(bits),
            _ => Err(format!("'{text}' is no file mode ({})", Self::FORM)),
        }
    }
    fn show(&self) -> String {
        format!("{:04o}", self.0)
    }
}

macro_rules! time_in_text {
    ($name:ident, $form:literal, $per_unit_ns:literal) => {
        /// A time as text: a whole number of the unit, in which 0 stands for none where the option may be absent.
        #[derive(Clone, Debug)]
        struct $name(Duration);

        impl $name {
            fn units(&self) -> u128 {
                self.0.as_nanos() / $per_unit_ns
            }
        }

        impl From<Duration> for $name {
            fn from(time: Duration) -> $name {
                $name(time)
            }
        }

        impl From<Option<Duration>> for $name {
            fn from(time: Option<Duration>) -> $name {
                $name(time.unwrap_or_default())
            }
        }

        impl From<$name> for Duration {
            fn from(time: $name) -> Duration {
                time.0
            }
        }

        impl From<$name> for Option<Duration> {
            fn from(time: $name) -> Option<Duration> {
                Some(time.0).filter(|t| !t.is_zero())
            }
        }

        impl OptionValue for $name {
            const FORM: &'static str = $form;
            fn parse_value(text: &str) -> Result<Self, String> {
                let units = u64::parse_value(text)?;
                let nanos = u128::from(units) * $per_unit_ns;
                let second = 1_000_000_000;
                // A u64 of milliseconds or microseconds is fewer than 2^64 seconds.
                Ok($name(Duration::new((nanos / second) as u64, (nanos % second) as u32)))
            }
            fn show(&self) -> String {
                self.units().to_string()
            }
            fn check(&self) -> Result<(), String> {
                match self.0.as_nanos() % $per_unit_ns {
                    0 => Ok(()),
                    _ => Err(format!("{:?} is not a whole number of {}", self.0, $form)),
                }
            }
            fn as_f64(&self) -> Option<f64> {
                Some(self.units() as f64)
            }
        }
    };
}

time_in_text!(Millis, "milliseconds", 1_000_000);
time_in_text!(Micros, "microseconds", 1_000);

/// Compression by level, from level 0 down; levels past the end use the family's `compression`.
impl OptionValue for Vec<Compression> {
    const FORM: &'static str = "compressions separated by ':', from level 0 down; empty for the same everywhere";
    fn parse_value(text: &str) -> Result<Self, String> {
        text.split(':').filter(|t| !t.trim().is_empty()).map(Compression::parse_value).collect()
    }
    fn check(&self) -> Result<(), String> {
        match self.len() {
            n if n > MAX_LEVELS => Err(format!("{n} levels are named; there are never more than {MAX_LEVELS}")),
            _ => Ok(()),
        }
    }
    fn show(&self) -> String {
        self.iter().map(OptionValue::show).collect::<Vec<_>>().join(":")
    }
}

/// One row of an option table, for documentation and tools.
#[derive(Clone, Debug)]
pub struct OptionRow {
    /// Name as written in configuration.
    pub name: &'static str,
    /// What it does, with its unit.
    pub doc: &'static str,
    /// What a user may write.
    pub form: &'static str,
    /// The default, as text.
    pub default: String,
    /// Smallest and largest value, where limits apply. A smallest value of 0 may be one that means something else than a
    /// size; the documentation says so, and the value is refused when it is neither 0 nor large enough.
    pub limits: Option<(f64, f64)>,
    /// The allowed values as text, such as `0 or 32768 to 1099511627776`, where limits apply.
    pub range: Option<&'static str>,
    /// Whether it can be changed while the database is open.
    pub live: bool,
}

macro_rules! option_table {
    ($d:tt $each:ident; $(#[$sdoc:meta])* $name:ident of $owner:literal {
        $( $(#[doc = $doc:literal])+ $field:ident $([$text:literal as $form:ty])?: $ty:ty = $default:expr $(, in $lo:literal ..= $hi:literal $(or $special:literal)?)? $(, @$live:ident)?; )*
    }) => {
        $(#[$sdoc])*
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct $name { $( $(#[doc = $doc])+ pub $field: $ty, )* }

        impl Default for $name {
            fn default() -> Self { $name { $( $field: $default, )* } }
        }

        /// Calls a macro with the fields and their types: for `kingtide::Options`, which has their builder methods too.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! $each {
            ($d callback:ident) => { $d callback! { $($field: $ty,)* } };
        }

        impl $name {
            /// The defaults.
            pub fn new() -> Self {
                Self::default()
            }

            $(
                #[doc = concat!("With another `", stringify!($field), "`: see the field. Limits are checked where the options are used.")]
                #[must_use]
                pub fn $field(mut self, $field: $ty) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }

        impl $name {
            /// The names of all options of this table.
            pub const NAMES: &'static [&'static str] = &[$(option_table!(@name $field $($text)?)),*];

            /// The table's rows.
            pub fn rows() -> Vec<OptionRow> {
                let d = $name::default();
                vec![$( OptionRow {
                    name: option_table!(@name $field $($text)?),
                    doc: concat!($($doc, "\n"),+).trim(),
                    form: <option_table!(@form $ty $(, $form)?) as OptionValue>::FORM,
                    default: <option_table!(@form $ty $(, $form)?)>::from(Clone::clone(&d.$field)).show(),
                    limits: option_table!(@limits $($lo, $hi $(, $special)?)?),
                    range: option_table!(@range $($lo, $hi $(, $special)?)?),
                    live: option_table!(@live $($live)?),
                }, )*]
            }

            /// Sets an option by name. An unknown name, a value of the wrong form and a value out of range are errors
            /// that say what would be right, and change nothing.
            pub fn set(&mut self, name: &str, text: &str) -> Result<()> {
                match name {
                    $( option_table!(@name $field $($text)?) => {
                        let v = <option_table!(@form $ty $(, $form)?) as OptionValue>::parse_value(text)
                            .map_err(|e| Error::invalid(format!("option {name}: {e}")))?;
                        let old = std::mem::replace(&mut self.$field, v.into());
                        self.validate().inspect_err(|_| self.$field = old)
                    } )*
                    _ => Err(not_in_table(name, $owner, Self::NAMES)),
                }
            }

            /// An option's value as text; `None` for an unknown name.
            pub fn get(&self, name: &str) -> Option<String> {
                match name {
                    $( option_table!(@name $field $($text)?) => Some(<option_table!(@form $ty $(, $form)?)>::from(Clone::clone(&self.$field)).show()), )*
                    _ => None,
                }
            }

            /// All names and values as text, in table order.
            pub fn entries(&self) -> Vec<(&'static str, String)> {
                vec![$( (option_table!(@name $field $($text)?), <option_table!(@form $ty $(, $form)?)>::from(Clone::clone(&self.$field)).show()), )*]
            }

            /// Checks every limit.
            pub fn validate(&self) -> Result<()> {
                $(
                    let name = option_table!(@name $field $($text)?);
                    let value = <option_table!(@form $ty $(, $form)?)>::from(Clone::clone(&self.$field));
                    $(
                        let special: &[f64] = &[$($special as f64)?];
                        if let Some(v) = value.as_f64()
                            && !(($lo as f64)..=($hi as f64)).contains(&v)
                            && !special.contains(&v)
                        {
                            return Err(Error::invalid(format!("option {name} = {} is out of range: {}",
                                value.show(), concat!($($special, " or ",)? $lo, " to ", $hi))));
                        }
                    )?
                    if let Err(e) = value.check() {
                        return Err(Error::invalid(format!("option {name}: {e}")));
                    }
                )*
                Ok(())
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $text:literal) => { $text };
    (@form $ty:ty) => { $ty };
    (@form $ty:ty, $form:ty) => { $form };
    (@limits) => { None };
    (@limits $lo:literal, $hi:literal) => { Some(($lo as f64, $hi as f64)) };
    (@limits $lo:literal, $hi:literal, $special:literal) => { Some(($special as f64, $hi as f64)) };
    (@range) => { None };
    (@range $lo:literal, $hi:literal $(, $special:literal)?) => { Some(concat!($($special, " or ",)? $lo, " to ", $hi)) };
    (@live) => { false };
    (@live live) => { true };
}

/// ", did you mean 'x'?" for the closest known name, if one is close, or for the only one that contains what was written.
pub fn nearest(name: &str, known: &[&str]) -> String {
    let suggest = |k: &str| format!(", did you mean '{k}'?");
    match known.iter().map(|k| (distance(name, k), k)).min() {
        // A name of which no character is left resembles nothing.
        Some((d, k)) if d <= 3.max(name.len() / 3) && d < name.len() => return suggest(k),
        _ => {}
    }
    let mut longer = known.iter().filter(|k| name.len() >= 3 && k.contains(name));
    match (longer.next(), longer.next()) {
        (Some(k), None) => suggest(k),
        _ => String::new(),
    }
}

/// Insertions, deletions and replacements of characters that make one name of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut prev = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let cost = prev + usize::from(ca != *cb);
            prev = row[j + 1];
            row[j + 1] = cost.min(prev + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The error for an option that neither table has, with the nearest name of both.
pub fn unknown_option(name: &str) -> Error {
    let known = [FamilyOptions::NAMES, DbOptions::NAMES].concat();
    Error::invalid(format!("unknown option '{name}'{}", nearest(name, &known)))
}

/// The error for an option that is not in the table of `owner`, whose options are `known`.
fn not_in_table(name: &str, owner: &str, known: &[&str]) -> Error {
    if !DbOptions::NAMES.contains(&name) && !FamilyOptions::NAMES.contains(&name) {
        let hint = nearest(name, known);
        return if hint.is_empty() {
            unknown_option(name)
        } else {
            Error::invalid(format!("unknown option '{name}'{hint}"))
        };
    }
    let other = if DbOptions::NAMES.contains(&name) { "the database" } else { "a column family" };
    Error::invalid(format!("'{name}' is an option of {other}, not of {owner}"))
}

option_table! {
    $ each_db_option;
    /// Options of a database. Of a time, the field is a [`Duration`] without the unit that the option's name as text ends in.
    DbOptions of "the database" {
        /// Create the database if it does not exist.
        create_if_missing: bool = true;
        /// Refuse to open a database that exists.
        error_if_exists: bool = false;
        /// Permissions of the files that the database creates, including backups and exports; the umask removes bits.
        /// New directories can be entered by every user who may read the files. Existing files keep their permissions.
        file_mode: FileMode = FileMode::OWNER;
        /// What an acknowledged commit survives, unless the commit says otherwise.
        durability: Durability = Durability::Process, @live;
        /// Size of a write-ahead log segment, in bytes. Segments are preallocated and recycled. The first segments after an open
        /// are smaller and grow to this size, so that a small database has a small log.
        wal_segment_size: u64 = 16 << 20, in 65_536 ..= 4_294_967_295u64;
        /// Size of the write-ahead log, in bytes, above which the family that pins the oldest segment is flushed.
        max_wal_size: u64 = 512 << 20, in 131_072 ..= 1_099_511_627_776u64, @live;
        /// Memory for memtables, block cache, indexes and filters of tables, buffers of flushes and compactions, and read and write
        /// sets of transactions together, in bytes; it must exceed what memtables may hold by a sixteenth of that, and by at least
        /// 65,536. 0 means no limit. Memtables come first; the block cache shrinks when others need its room; if indexes and filters do not fit, they are
        /// divided into partitions, which are read when needed. Flushes and compactions are not held back: near the smallest limit they
        /// exceed it while they run. Memtables that iterators keep after they were flushed count too, but only caches give way to them. A
        /// database that is opened read-only keeps its indexes and filters.
        memory_limit: u64 = 0, in 65_536 ..= 1_099_511_627_776u64 or 0, @live;
        /// Memory for all memtables of the database together, active and immutable, in bytes; at least 32,768. 0 means,
        /// with one family, three quarters of `memtable_size` times (1 + `max_immutable_memtables`), but at least twice
        /// `memtable_size`. With more families it means `memtable_size` times (families + `max_immutable_memtables`), but at most 192 MiB
        /// and at most half of a `memory_limit`, and never less than the value for one family. Both options are those of the default
        /// family. Each family may always use 16 KiB. Writers wait while the memory is used up.
        memtable_budget: u64 = 0, in 32_768 ..= 1_099_511_627_776u64 or 0, @live;
        /// Size of the block cache, in bytes. It holds blocks of tables, and values of value logs of up to 1 MiB that take no more than a
        /// 32nd of it. It is smaller while it does not fit into `memory_limit`.
        block_cache_size: u64 = 64 << 20, in 0 ..= 1_099_511_627_776u64, @live;
        /// Partitions of the block cache; 0 means two per core.
        cache_shards: u64 = 0, in 0 ..= 1024;
        /// Number of tables and value logs kept open at once. Files in use are not counted: an iterator or a compaction
        /// holds one for each run that it reads, and value logs in addition. The log, the manifest and the outputs of flushes
        /// and compactions need about ten more, and three for each background thread.
        max_open_files: u64 = 1000, in 16 ..= 1_000_000, @live;
        /// Threads for flush and compaction, at least 2; 0 means the number of cores. One more thread prepares log segments.
        background_threads: u64 = 0, in 0 ..= 256;
        /// Maximum number of key ranges into which one compaction is split, which are merged in parallel; 0 means the number
        /// of background threads.
        max_subcompactions: u64 = 0, in 0 ..= 64, @live;
        /// Bytes per second that flushes and compactions may write; 0 means no limit.
        rate_limit: u64 = 0, in 0 ..= 1_099_511_627_776u64, @live;
        /// How long `close` waits for memtables to be flushed before it cancels compactions that are still running; once the memtables
        /// are flushed, it cancels them at once. After ten times as long, and at least ten seconds, it gives up with `Busy`.
        close_timeout ["close_timeout_ms" as Millis]: Duration = Duration::from_secs(5), in 0 ..= 3_600_000, @live;
        /// Default timeout of transactions. A transaction that exceeds it is rolled back, so that a forgotten transaction does not
        /// hold locks and old versions for ever. 0, or `None`, means no timeout. Prepared transactions have none.
        transaction_timeout ["transaction_timeout_ms" as Millis]: Option<Duration> = Some(Duration::from_secs(3600)), in 0 ..= 31_557_600_000u64, @live;
        /// Bytes that the read and write sets of all transactions together may hold before writes of the transactions that hold
        /// a large share are refused with `Busy`. Independent of `memtable_budget`.
        transaction_memory: u64 = 1 << 30, in 1_048_576 ..= 1_099_511_627_776u64, @live;
        /// Default timeout for waits of transactions for locks. With 0 they do not wait: the call fails with `Conflict`. Writes outside of
        /// transactions fail with `LockTimeout` then.
        lock_timeout ["lock_timeout_ms" as Millis]: Duration = Duration::from_secs(1), in 0 ..= 86_400_000, @live;
        /// Bytes of write-ahead log kept beyond what recovery needs, for change streams to resume from.
        change_retention: u64 = 0, in 0 ..= 1_099_511_627_776u64, @live;
        /// Keep histograms of operation latencies. They cost less than 2 % of an operation's instructions: two readings of the
        /// processor's time-stamp counter and about sixty instructions for each timed operation. One in 32 gets and seeks is timed.
        histograms: bool = true, @live;
        /// Largest number of families that have histograms of their own: those that are used first. The others, and all with 0, are
        /// counted only in the histograms of the database. A family's histograms take at most 153 KiB of memory, allocated on use, and
        /// at most 20 KB of Prometheus text.
        family_histograms: u64 = 16, in 0 ..= 10_000;
        /// An operation that takes at least this long is recorded as slow, with what it touched and waited for; 0, or `None`,
        /// means that none is. While a threshold is set, every operation counts what it touches.
        slow_operation_threshold ["slow_operation_threshold_us" as Micros]: Option<Duration> = None, in 0 ..= 3_600_000_000u64, @live;
        /// Interval at which all statistics are written to the file `STATS` in the database's directory, for
        /// `kt stats --live`; at least 100; 0, or `None`, means never. The file has about 30 KB, up to 20 KB more for each family that has
        /// histograms, and is not synced.
        stats_interval ["stats_interval_ms" as Millis]: Option<Duration> = None, in 100 ..= 86_400_000u64 or 0, @live;
        /// Level of the messages that are written to the file `LOG` in the database's directory. There is no `LOG` if the database
        /// is opened read-only, or on a file system that the caller supplies.
        log_level: LogLevel = LogLevel::Info, @live;
        /// Size of the file `LOG`, in bytes, above which a new file is started.
        log_file_size: u64 = 16 << 20, in 4_096 ..= 4_294_967_295u64;
        /// Number of `LOG` files that are kept, including the current one: `LOG`, `LOG.1` and so on.
        log_files: u64 = 4, in 1 ..= 100;
    }
}

option_table! {
    $ each_family_option;
    /// Options of a column family. Of a time, the field is a [`Duration`] without the unit that the option's name as text ends in.
    FamilyOptions of "a column family" {
        /// Size at which a memtable is sealed and flushed, in bytes. A memtable that holds more than about 3.5 GiB of values of
        /// several 100 KiB each may be flushed earlier.
        memtable_size: u64 = 64 << 20, in 65_536 ..= 17_179_869_184u64, @live;
        /// Number of full immutable memtables that may wait for a flush, beside full active ones, before writers wait. It has an
        /// effect only as a part of the memory that `memtable_budget = 0` stands for, so only in the default family.
        max_immutable_memtables: u64 = 2, in 1 ..= 64, @live;
        /// Size of a key-log block before compression, in bytes.
        block_size: u64 = 4_096, in 512 ..= 1_048_576;
        /// Compression of blocks and values.
        compression: Compression = Compression::Lz4;
        /// Compression by level; overrides `compression` for the levels it names.
        compression_per_level: Vec<Compression> = Vec::new();
        /// Level of Zstandard, for blocks and values that it compresses. Higher levels are slower to write, mostly
        /// smaller, and as fast to read; values of 1 KiB and more are compressed by the thread that puts them.
        zstd_level: u64 = 1, in 1 ..= 19;
        /// Bytes of the Zstandard dictionary that each table is compressed with, at least 256; 0 means none. A dictionary is trained from the first
        /// blocks of the table, which are held in memory until then: a hundred times its size, at most 4 MiB. It can
        /// make small rows that resemble each other a third smaller, and costs processor time when tables are written; it is
        /// part of the table, twice, and in memory while the table is open. A table that is too small for it gets a smaller one,
        /// or none, and one that it would not make smaller gets none.
        zstd_dictionary: u64 = 0, in 256 ..= 262_144u64 or 0;
        /// Values of this many bytes and more go to the value log; 0 keeps all values in the key log.
        value_threshold: u64 = 512, in 0 ..= 4_294_967_295u64;
        /// Values of this many bytes and more are written once: to a value log, before their commit, and not to the
        /// write-ahead log; 0 turns this off. For a commit that waits for a sync, its large values together must reach eight
        /// times this size. The option has an effect only while the family keeps values in value logs (`value_threshold`) and
        /// no log is kept for change streams (`change_retention`).
        direct_value_threshold: u64 = 16 << 10, in 0 ..= 4_294_967_295u64, @live;
        /// Size of a chunk of a large value, in bytes.
        value_chunk_size: u64 = 262_144, in 4_096 ..= 16_777_216;
        /// False-positive rate of the tables' filters; 0 writes no filter.
        filter_fp: f64 = 0.01, in 0 ..= 0.5;
        /// Number of blocks that share one entry of the resident index: 1 is the fastest, more save memory.
        index_sampling: u64 = 1, in 1 ..= 64;
        /// Bytes of a separator key kept in the resident index; 0 keeps as many as are needed to distinguish blocks.
        index_prefix_len: u64 = 0, in 0 ..= 1024;
        /// Target size of the tables that compactions write, in bytes.
        target_file_size: u64 = 16 << 20, in 65_536 ..= 4_294_967_295u64, @live;
        /// Size ratio T between a level and the next deeper one.
        level_ratio: u64 = 10, in 2 ..= 100, @live;
        /// Flushed tables in level 0 that trigger a compaction.
        l0_trigger: u64 = 4, in 1 ..= 64, @live;
        /// The dividing level is this many levels above the largest.
        dividing_offset: u64 = 1, in 1 ..= 8, @live;
        /// Fraction of tombstones in a table above which it is compacted; 1 turns the trigger off.
        tombstone_density: f64 = 0.5, in 0.01 ..= 1.0, @live;
        /// Cap on dead space: the fraction of dead bytes in all value logs of the family above which live values are moved out of
        /// the value logs with the most dead bytes, before other compactions of the family. Values that newer entries of tables
        /// hide count as dead. If this falls behind, writers are slowed, and held as soon as the excess is what one memtable
        /// points to and one value log. With 1, no value is moved.
        vlog_dead_ratio: f64 = 0.25, in 0.01 ..= 1.0, @live;
        /// Time to live of entries without an expiry of their own; 0, or `None`, means forever.
        ttl ["ttl_ms" as Millis]: Option<Duration> = None, in 0 ..= 3_155_760_000_000u64, @live;
        /// Whether reads that must look into several tables trigger a compaction of them.
        read_triggered_compaction: bool = true, @live;
    }
}

impl FamilyOptions {
    /// The compression of tables written to `level`.
    ///
    /// ```
    /// use kingtide_base::options::{Compression, FamilyOptions};
    ///
    /// let options = FamilyOptions::new().compression_per_level(vec![Compression::None, Compression::Lz4]);
    /// assert_eq!(options.compression_at(0), Compression::None);
    /// assert_eq!(options.compression_at(6), Compression::Lz4);
    /// ```
    pub fn compression_at(&self, level: usize) -> Compression {
        self.compression_per_level.get(level).copied().unwrap_or(self.compression)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_valid_and_reads_back() {
        let mut db = DbOptions::default();
        db.validate().unwrap();
        for (name, text) in DbOptions::default().entries() {
            db.set(name, &text).unwrap();
        }
        assert_eq!(db, DbOptions::default());
        let mut family = FamilyOptions::default();
        for (name, text) in FamilyOptions::default().entries() {
            family.set(name, &text).unwrap();
        }
        assert_eq!(family, FamilyOptions::default());
        for row in [DbOptions::rows(), FamilyOptions::rows()].concat() {
            assert!(row.doc.ends_with('.') && !row.form.is_empty(), "{}", row.name);
            assert_eq!(row.range.is_some(), row.limits.is_some(), "{}", row.name);
        }
        let range = |name| DbOptions::rows().into_iter().find(|r| r.name == name).and_then(|r| r.range);
        assert_eq!(range("memtable_budget"), Some("0 or 32768 to 1099511627776"));
        assert_eq!((range("cache_shards"), range("durability")), (Some("0 to 1024"), None));
    }

    #[test]
    fn mistakes_are_named() {
        let mut o = FamilyOptions::default();
        let e = o.set("blok_size", "4K").unwrap_err().to_string();
        assert!(e.contains("unknown option 'blok_size'") && e.contains("did you mean 'block_size'"), "{e}");
        let e = o.set("block_size", "4Q").unwrap_err().to_string();
        assert!(e.contains("option block_size") && e.contains("suffix 'q'"), "{e}");
        for bad in ["-5", "many", "", "K"] {
            let e = o.set("block_size", bad).unwrap_err().to_string();
            assert!(e.contains(&format!("'{bad}' is not a whole number or a size")), "{e}");
        }
        let e = o.set("block_size", "1").unwrap_err().to_string();
        assert!(e.contains("out of range: 512 to"), "{e}");
        assert_eq!(o, FamilyOptions::default(), "what is refused is not set");
        let e = o.set("block_cache_size", "1M").unwrap_err().to_string();
        assert!(e.contains("'block_cache_size' is an option of the database, not of a column family"), "{e}");
        let e = DbOptions::default().set("ttl_ms", "1").unwrap_err().to_string();
        assert!(e.contains("is an option of a column family, not of the database"), "{e}");
        let e = DbOptions::default().set("cache_size", "1").unwrap_err().to_string();
        assert!(e.contains("did you mean 'block_cache_size'"), "{e}");
        let e = DbOptions::default().set("blok_size", "1").unwrap_err().to_string();
        assert!(e.contains("did you mean 'block_size'"), "{e}");
        assert_eq!(nearest("foo", &["csv", "num"]), "");
        let e = unknown_option("frobnicate").to_string();
        assert!(e.ends_with("unknown option 'frobnicate'"), "{e}");
        let e = o.set("compression", "brotli").unwrap_err().to_string();
        assert!(e.contains("none, lz4"), "{e}");
        assert!(DbOptions::default().set("durability", "interval:0").is_err());
        assert!(parse_size("99999999999T").is_err());
    }

    /// Just inside and just outside of each limit, by name and through the struct.
    #[test]
    fn limits_hold_at_both_ends() {
        fn check(rows: Vec<OptionRow>, set: &mut dyn FnMut(&str, &str) -> Result<()>) {
            for row in rows {
                let Some((lo, hi)) = row.limits else { continue };
                for inside in [lo, hi] {
                    set(row.name, &inside.to_string()).unwrap();
                }
                let step = if row.default.contains('.') { 0.001 } else { 1.0 };
                for outside in [hi + step, lo - step] {
                    let text = if outside < 0.0 { "-1".to_owned() } else { outside.to_string() };
                    let e = set(row.name, &text).unwrap_err().to_string();
                    assert!(e.contains(row.name), "{}: {e}", row.name);
                    assert!(outside < 0.0 || e.contains("out of range") && e.contains(&text), "{}: {e}", row.name);
                }
            }
        }
        let (mut db, mut family) = (DbOptions::default(), FamilyOptions::default());
        check(DbOptions::rows(), &mut |name, text| db.set(name, text));
        check(FamilyOptions::rows(), &mut |name, text| family.set(name, text));
        for text in ["NaN", "inf", "-inf", "-0.1"] {
            assert!(FamilyOptions::default().set("filter_fp", text).is_err(), "{text}");
        }
        let mut o = DbOptions::default();
        for (budget, good) in [(0, true), (1, false), (32_767, false), (32_768, true)] {
            o.memtable_budget = budget;
            assert_eq!(o.validate().is_ok(), good, "{budget}");
        }
        o.memtable_budget = 512;
        let e = o.validate().unwrap_err().to_string();
        assert!(e.contains("memtable_budget = 512 is out of range: 0 or 32768 to 1099511627776"), "{e}");
        let mut o = DbOptions::default();
        for (interval, good) in [
            (Duration::ZERO, false),
            (Duration::from_micros(999), false),
            (Duration::from_millis(1), true),
            (MAX_INTERVAL, true),
            (Duration::MAX, false),
        ] {
            o.durability = Durability::Interval(interval);
            assert_eq!(o.validate().is_ok(), good, "{interval:?}");
        }
        for text in ["interval:0", "interval:86400001", "interval:18446744073709551615", "interval:-1"] {
            assert!(DbOptions::default().set("durability", text).is_err(), "{text}");
        }
        let e = FamilyOptions::default().set("compression_per_level", &"lz4:".repeat(65)).unwrap_err().to_string();
        assert!(e.contains("65 levels"), "{e}");
    }

    #[test]
    fn times_are_durations_whose_names_as_text_say_the_unit() {
        let mut o = DbOptions::default().close_timeout(Duration::from_millis(70)).transaction_timeout(None);
        assert_eq!((o.get("close_timeout_ms"), o.get("transaction_timeout_ms")), (Some("70".into()), Some("0".into())));
        assert_eq!(o.get("close_timeout"), None, "as text it has its unit");
        o.set("slow_operation_threshold_us", "1500").unwrap();
        assert_eq!(o.slow_operation_threshold, Some(Duration::from_micros(1500)));
        o.set("slow_operation_threshold_us", "0").unwrap();
        assert_eq!(o.slow_operation_threshold, None);
        o.validate().unwrap();
        for (wrong, says) in [
            (o.clone().close_timeout(Duration::from_micros(1500)), "close_timeout_ms: 1.5ms is not a whole number of"),
            (o.clone().lock_timeout(Duration::MAX), "option lock_timeout_ms = "),
            (o.stats_interval(Some(Duration::from_millis(99))), "stats_interval_ms = 99 is out of range: 0 or 100 to"),
        ] {
            let e = wrong.validate().unwrap_err().to_string();
            assert!(e.contains(says), "{e}");
        }
        let family = FamilyOptions::default().ttl(Some(Duration::from_secs(60)));
        assert!(family.entries().contains(&("ttl_ms", "60000".into())));
    }

    #[test]
    fn file_modes_are_octal_and_let_the_owner_in() {
        let mut o = DbOptions::default();
        assert_eq!((o.file_mode.file_bits(), o.file_mode.dir_bits()), (0o600, 0o700));
        for (text, file, dir) in
            [("0640", 0o640, 0o750), ("660", 0o660, 0o770), ("0o644", 0o644, 0o755), ("622", 0o622, 0o722)]
        {
            o.set("file_mode", text).unwrap();
            assert_eq!((o.file_mode.file_bits(), o.file_mode.dir_bits()), (file, dir), "{text}");
            assert_eq!(FileMode::parse_value(&o.file_mode.show()), Ok(o.file_mode));
        }
        for (text, says) in [
            ("0400", "owner"),
            ("044", "owner"),
            ("0700", "other than read and write"),
            ("01600", "other than read and write"),
            ("rw-------", "no file mode"),
            ("0680", "no file mode"),
            ("+600", "no file mode"),
            ("", "no file mode"),
        ] {
            let e = o.set("file_mode", text).unwrap_err().to_string();
            assert!(e.contains("option file_mode") && e.contains(says), "{text}: {e}");
        }
        assert_eq!(o.file_mode.file_bits(), 0o622, "what is refused is not set");
        assert!(FileMode::new(0o777).is_err() && FileMode::new(0o604).is_ok());
    }

    #[test]
    fn sizes_and_levels() {
        assert_eq!(parse_size("64MiB"), Ok(64 << 20));
        assert_eq!(parse_size(" 3k "), Ok(3072));
        let mut o = FamilyOptions::default();
        o.set("compression_per_level", "none:lz4-fast").unwrap();
        assert_eq!(o.compression_at(0), Compression::None);
        assert_eq!(o.compression_at(1), Compression::Lz4Fast);
        assert_eq!(o.compression_at(2), Compression::Lz4);
    }
}
