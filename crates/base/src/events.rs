//! What happens inside of a database, told to its listeners.
//!
//! The thread that causes an event leaves it in a queue, whatever locks the thread holds; [`Events::deliver`] hands the
//! queue to the sinks where no lock is held. One thread delivers at a time, in the order of the queue. While there is no sink, an event costs one relaxed
//! load.

use crate::lock::Mutex;
use crate::slow::SlowOperation;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// The level of events that are written to the file `LOG`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Nothing; there is no file.
    Off,
    /// Errors that keep the database from working.
    Error,
    /// Also what may become a problem: stalls, slow operations, a log with a damaged end.
    Warn,
    /// Also what the database does by itself: flushes, compactions, opening and closing.
    Info,
    /// Also every file and every conflict.
    Debug,
}

/// Waits of a writer that take at least this long get a line in the file `LOG`.
pub const LONG_STALL: Duration = Duration::from_millis(10);

/// A memtable is flushed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlushInfo {
    /// Name of the family.
    pub family: String,
    /// Bytes of memory that the memtable holds.
    pub memtable_bytes: u64,
    /// Bytes written to tables and value logs, those of other flushes that ended meanwhile included; 0 when it begins.
    pub written_bytes: u64,
    /// How long it took; 0 when it begins.
    pub duration: Duration,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// Tables are compacted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionInfo {
    /// Name of the family.
    pub family: String,
    /// The planner's reason.
    pub reason: String,
    /// The least level of a table that is read.
    pub input_level: usize,
    /// The level that is written to.
    pub output_level: usize,
    /// Tables that are read.
    pub input_files: usize,
    /// Their bytes.
    pub input_bytes: u64,
    /// Tables and value logs written; 0 when it begins.
    pub output_files: usize,
    /// Bytes written, those of other compactions that ended meanwhile included; 0 when it begins.
    pub output_bytes: u64,
    /// How long it took; 0 when it begins.
    pub duration: Duration,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// Why a writer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StallReason {
    /// The memory for memtables is used up.
    Memory,
    /// Flushes or compactions lag behind, and writers are slowed in proportion.
    Debt,
}

/// What the log held at an open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryInfo {
    /// Files that the manifest names: tables and value logs.
    pub files: usize,
    /// Column families.
    pub families: usize,
    /// Records of the write-ahead log that were read.
    pub log_records: u64,
    /// Segments of the log.
    pub log_segments: usize,
    /// Bytes of the write-ahead log that were read.
    pub log_bytes: u64,
    /// Bytes behind the end of the log that were left out, because a power cut or a kill left an incomplete record there; `None`: the
    /// log ended with a whole record.
    pub torn_bytes: Option<u64>,
    /// The database was closed before: the log ends with a mark. Otherwise its process died, and what a record at the end
    /// lacks was never acknowledged.
    pub closed: bool,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The database was opened; how long that took, and the options that differ from the defaults.
    Opened(Duration, String),
    /// The open failed, and why. Not if the directory could not be locked.
    OpenFailed(String),
    /// Manifest and log were read.
    Recovered(RecoveryInfo),
    /// The database is closed.
    Closed,
    /// A flush begins.
    FlushBegun(FlushInfo),
    /// A flush ended, successfully or not.
    FlushEnded(FlushInfo),
    /// A compaction begins.
    CompactionBegun(CompactionInfo),
    /// A compaction ended, successfully or not.
    CompactionEnded(CompactionInfo),
    /// A writer begins to wait for a flush, or to be slowed by 10 ms or more.
    StallBegun(StallReason),
    /// A writer was slowed or held for this long. A wait that was expected to take less than 10 ms has no [`Event::StallBegun`], and if it took
    /// less it is reported at level `Debug` only.
    StallEnded(StallReason, Duration),
    /// A background job failed. It is tried again, unless the text says that writes are stopped.
    BackgroundError(String),
    /// A file was created: its name, and its bytes.
    FileCreated(String, u64),
    /// A file was deleted: its name.
    FileDeleted(String),
    /// Files were ingested, imported or cloned into a family: their bytes.
    Ingested(u64),
    /// A transaction met a conflict with another commit or lock. The family's name.
    WriteConflict(String),
    /// A deadlock was broken, with the transaction of that id as its victim.
    Deadlock(u64),
    /// A column family was created.
    FamilyCreated(String),
    /// A column family was dropped.
    FamilyDropped(String),
    /// An option of the database was changed: name and value.
    OptionChanged(String, String),
    /// An operation took longer than the option `slow_operation_threshold_us` says.
    SlowOperation(SlowOperation),
}

impl Event {
    /// Its kind, in the form of a name.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Opened(..) => "opened",
            Event::OpenFailed(_) => "open_failed",
            Event::Recovered(_) => "recovered",
            Event::Closed => "closed",
            Event::FlushBegun(_) => "flush_begun",
            Event::FlushEnded(_) => "flush_ended",
            Event::CompactionBegun(_) => "compaction_begun",
            Event::CompactionEnded(_) => "compaction_ended",
            Event::StallBegun(_) => "stall_begun",
            Event::StallEnded(..) => "stall_ended",
            Event::BackgroundError(_) => "background_error",
            Event::FileCreated(..) => "file_created",
            Event::FileDeleted(_) => "file_deleted",
            Event::Ingested(..) => "ingested",
            Event::WriteConflict(_) => "write_conflict",
            Event::Deadlock(_) => "deadlock",
            Event::FamilyCreated(_) => "family_created",
            Event::FamilyDropped(_) => "family_dropped",
            Event::OptionChanged(..) => "option_changed",
            Event::SlowOperation(_) => "slow_operation",
        }
    }

    /// Returns the lowest level of the file `LOG` that includes it.
    pub fn level(&self) -> LogLevel {
        match self {
            Event::BackgroundError(_) | Event::OpenFailed(_) => LogLevel::Error,
            Event::Recovered(RecoveryInfo { torn_bytes: Some(_), .. }) => LogLevel::Warn,
            Event::FlushEnded(FlushInfo { error: Some(_), .. }) => LogLevel::Error,
            Event::CompactionEnded(CompactionInfo { error: Some(_), .. }) => LogLevel::Error,
            Event::StallBegun(_) | Event::SlowOperation(_) | Event::Deadlock(_) => LogLevel::Warn,
            Event::StallEnded(_, d) if *d >= LONG_STALL => LogLevel::Warn,
            Event::StallEnded(..) | Event::WriteConflict(_) => LogLevel::Debug,
            Event::FileCreated(..) | Event::FileDeleted(_) => LogLevel::Debug,
            _ => LogLevel::Info,
        }
    }
}

/// A number of things: `1 file`, `2 files`.
fn things(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

impl fmt::Display for Event {
    /// Returns what happened: a line of the file `LOG`, without its time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = |e: &Option<String>| e.as_ref().map_or(String::new(), |e| format!(", failed: {e}"));
        match self {
            Event::Opened(took, options) if options.is_empty() => {
                write!(f, "the database was opened in {took:.1?}, all options at their defaults")
            }
            Event::Opened(took, options) => write!(f, "the database was opened in {took:.1?} with {options}"),
            Event::Recovered(r) => {
                let end = if r.closed { "closed" } else { "not closed" };
                write!(
                    f,
                    "the manifest names {} of {}; the log, which was {end}, has {} and {}, {}",
                    things(r.files as u64, "file", "files"),
                    things(r.families as u64, "family", "families"),
                    things(r.log_segments as u64, "segment", "segments"),
                    things(r.log_records, "record", "records"),
                    things(r.log_bytes, "byte", "bytes")
                )?;
                match r.torn_bytes {
                    Some(n) => {
                        write!(f, "; {} of incomplete records at its end were discarded", things(n, "byte", "bytes"))
                    }
                    None => Ok(()),
                }
            }
            Event::OpenFailed(e) => write!(f, "the database could not be opened: {e}"),
            Event::Closed => write!(f, "the database was closed"),
            Event::FlushBegun(i) => write!(f, "flush of '{}' begins: {} bytes in memory", i.family, i.memtable_bytes),
            Event::FlushEnded(i) => write!(
                f,
                "flush of '{}' ended after {:.1?}: {} bytes in memory, {} bytes written{}",
                i.family,
                i.duration,
                i.memtable_bytes,
                i.written_bytes,
                why(&i.error)
            ),
            Event::CompactionBegun(i) => write!(
                f,
                "compaction of '{}' begins ({}): {} with {} bytes, from level {} to {}",
                i.family,
                i.reason,
                things(i.input_files as u64, "file", "files"),
                i.input_bytes,
                i.input_level,
                i.output_level
            ),
            Event::CompactionEnded(i) => write!(
                f,
                "compaction of '{}' ended after {:.1?} ({}): {} with {} bytes became {} with {} bytes in level {}{}",
                i.family,
                i.duration,
                i.reason,
                things(i.input_files as u64, "file", "files"),
                i.input_bytes,
                things(i.output_files as u64, "file", "files"),
                i.output_bytes,
                i.output_level,
                why(&i.error)
            ),
            Event::StallBegun(StallReason::Memory) => write!(f, "a writer waits: the memory for memtables is used up"),
            Event::StallBegun(StallReason::Debt) => write!(f, "a writer is slowed: flush or compaction lags behind"),
            Event::StallEnded(StallReason::Memory, d) => write!(f, "a writer waited {d:.1?} for memory for memtables"),
            Event::StallEnded(StallReason::Debt, d) => {
                write!(f, "a writer was slowed by {d:.1?}, because flush or compaction lags behind")
            }
            Event::BackgroundError(e) => write!(f, "background work failed: {e}"),
            Event::FileCreated(name, bytes) => write!(f, "file {name} created, {bytes} bytes"),
            Event::FileDeleted(name) => write!(f, "file {name} deleted"),
            Event::Ingested(bytes) => write!(f, "files with {bytes} bytes were ingested"),
            Event::WriteConflict(family) => write!(f, "a transaction met a conflict in family '{family}'"),
            Event::Deadlock(txn) => write!(f, "a deadlock was broken: transaction {txn} is its victim"),
            Event::FamilyCreated(name) => write!(f, "family '{name}' created"),
            Event::FamilyDropped(name) => write!(f, "family '{name}' dropped"),
            Event::OptionChanged(name, value) => write!(f, "option {name} set to {value}"),
            Event::SlowOperation(slow) => write!(f, "slow operation: {slow}"),
        }
    }
}

/// A listener for events of a database. By default, each method does nothing.
///
/// Calls are made in the order of the events, one at a time, and while the engine holds no lock: on the background thread that did the work, or
/// on the thread of a call that waits for background work or changes the database as a whole. Events of a thread that only reads and writes
/// (stalls, conflicts, slow operations) are reported on a background thread, within a quarter of a second. A slow listener delays background
/// work; when more than 4096 events wait, newer ones are dropped and counted (`events_dropped`).
///
/// A listener may call every method of the database except its close, its flushes and compactions, the wait for background work, and an ingest
/// that has to flush first. These fail there with `InvalidArgument`, because they wait for the threads that call the listener. A panic is caught
/// and counted (`listener_panics`). A listener that owns a handle keeps the database open; if it drops the last handle, another thread closes the
/// database soon after. A listener that causes an event whenever it handles one never comes to an end.
///
/// ```
/// use kingtide_base::events::{CompactionInfo, Event, EventListener, FlushInfo, LogLevel, RecoveryInfo, StallReason};
/// use kingtide_base::slow::SlowOperation;
/// use std::time::Duration;
///
/// struct Print;
///
/// impl EventListener for Print {
///     fn flush_begun(&self, info: &FlushInfo) { println!("flush of {} begins", info.family) }
///     fn flush_ended(&self, info: &FlushInfo) { println!("{} bytes in {:?}", info.written_bytes, info.duration) }
///     fn compaction_begun(&self, info: &CompactionInfo) { println!("{info:?}") }
///     fn compaction_ended(&self, info: &CompactionInfo) { println!("{info:?}") }
///     fn stall_begun(&self, reason: StallReason) { println!("writers wait: {reason:?}") }
///     fn stall_ended(&self, _reason: StallReason, duration: Duration) { println!("they waited {duration:?}") }
///     fn background_error(&self, error: &str) { eprintln!("{error}") }
///     fn file_created(&self, name: &str, bytes: u64) { println!("{name}: {bytes} bytes") }
///     fn file_deleted(&self, name: &str) { println!("{name} is gone") }
///     fn ingested(&self, bytes: u64) { println!("{bytes} bytes were ingested") }
///     fn write_conflict(&self, family: &str) { println!("a conflict in {family}") }
///     fn deadlock(&self, victim: u64) { println!("transaction {victim} was rolled back") }
///     fn recovered(&self, info: &RecoveryInfo) { println!("{info:?}") }
///     fn open_failed(&self, error: &str) { eprintln!("{error}") }
///     fn slow_operation(&self, operation: &SlowOperation) { println!("{operation}") }
/// }
///
/// /// Hears of everything that the file `LOG` has at level `Warn`.
/// struct Warnings;
///
/// impl EventListener for Warnings {
///     fn event(&self, event: &Event) {
///         if event.level() <= LogLevel::Warn {
///             eprintln!("{}: {event}", event.name());
///         }
///     }
/// }
/// ```
pub trait EventListener: Send + Sync {
    /// Called for every event. By default it calls the event's own method, if there is one; implement this method instead to receive all events.
    fn event(&self, event: &Event) {
        match event {
            Event::FlushBegun(i) => self.flush_begun(i),
            Event::FlushEnded(i) => self.flush_ended(i),
            Event::CompactionBegun(i) => self.compaction_begun(i),
            Event::CompactionEnded(i) => self.compaction_ended(i),
            Event::StallBegun(reason) => self.stall_begun(*reason),
            Event::StallEnded(reason, took) => self.stall_ended(*reason, *took),
            Event::BackgroundError(e) => self.background_error(e),
            Event::FileCreated(name, bytes) => self.file_created(name, *bytes),
            Event::FileDeleted(name) => self.file_deleted(name),
            Event::Ingested(bytes) => self.ingested(*bytes),
            Event::WriteConflict(family) => self.write_conflict(family),
            Event::Deadlock(victim) => self.deadlock(*victim),
            Event::Recovered(i) => self.recovered(i),
            Event::OpenFailed(e) => self.open_failed(e),
            Event::SlowOperation(slow) => self.slow_operation(slow),
            _ => {}
        }
    }

    /// A flush begins.
    fn flush_begun(&self, _info: &FlushInfo) {}
    /// A flush ended, successfully or not.
    fn flush_ended(&self, _info: &FlushInfo) {}
    /// A compaction begins.
    fn compaction_begun(&self, _info: &CompactionInfo) {}
    /// A compaction ended, successfully or not.
    fn compaction_ended(&self, _info: &CompactionInfo) {}
    /// A writer begins to be slowed or held, for this reason.
    fn stall_begun(&self, _reason: StallReason) {}
    /// A writer was slowed or held for this long.
    fn stall_ended(&self, _reason: StallReason, _duration: Duration) {}
    /// A background job failed.
    fn background_error(&self, _error: &str) {}
    /// A table or value log was created.
    fn file_created(&self, _name: &str, _bytes: u64) {}
    /// A table or value log was deleted.
    fn file_deleted(&self, _name: &str) {}
    /// Files were ingested.
    fn ingested(&self, _bytes: u64) {}
    /// A transaction met a conflict.
    fn write_conflict(&self, _family: &str) {}
    /// A deadlock was broken.
    fn deadlock(&self, _victim: u64) {}
    /// Manifest and log were read at the open.
    fn recovered(&self, _info: &RecoveryInfo) {}
    /// The open failed.
    fn open_failed(&self, _error: &str) {}
    /// An operation took long.
    fn slow_operation(&self, _operation: &SlowOperation) {}
}

/// Events that may wait for delivery.
const MOST_WAITING: usize = 4096;

type Call = Box<dyn FnMut(&Event) + Send>;

struct Sink {
    /// Called only up to the level that can be changed.
    adjustable: bool,
    call: Call,
}

/// The events of a database.
#[derive(Default)]
pub struct Events {
    /// There is a sink. Relaxed: an event at the moment of the change may be missed.
    active: AtomicBool,
    /// There is one that wants what comes often, too.
    detailed: AtomicBool,
    /// The highest level that a sink of a fixed level wants.
    fixed_level: AtomicU8,
    /// What the sink wants whose level can be changed; `Off` while there is none.
    level: AtomicU8,
    has_adjustable: AtomicBool,
    queue: Mutex<VecDeque<Event>>,
    /// Locked while they are called.
    sinks: Mutex<Vec<Sink>>,
    dropped: AtomicU64,
    panics: AtomicU64,
}

thread_local! {
    /// This thread calls a sink, of whatever database.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Events {
    /// Adds a sink that wants events up to a level. It may be called with others, but not with what happened before.
    pub fn connect(&self, level: LogLevel, call: Call) {
        self.sinks.lock().push(Sink { adjustable: false, call });
        self.fixed_level.fetch_max(level as u8, Ordering::Relaxed);
        self.activate();
    }

    /// Adds the sink whose level [`Events::set_level`] changes.
    pub fn connect_adjustable(&self, level: LogLevel, call: Call) {
        self.sinks.lock().push(Sink { adjustable: true, call });
        self.has_adjustable.store(true, Ordering::Relaxed);
        self.set_level(level);
    }

    /// Changes the level of the sink that was added with [`Events::connect_adjustable`]; does nothing without one. May be called
    /// from inside of a sink.
    pub fn set_level(&self, level: LogLevel) {
        if self.has_adjustable.load(Ordering::Relaxed) {
            self.level.store(level as u8, Ordering::Relaxed);
            self.activate();
        }
    }

    fn activate(&self) {
        let most = self.fixed_level.load(Ordering::Relaxed).max(self.level.load(Ordering::Relaxed));
        self.detailed.store(most >= LogLevel::Debug as u8, Ordering::Relaxed);
        self.active.store(most > LogLevel::Off as u8, Ordering::Relaxed);
    }

    /// Takes all sinks away, when the database is closed: they may hold what must go.
    pub fn disconnect(&self) {
        self.active.store(false, Ordering::Relaxed);
        self.detailed.store(false, Ordering::Relaxed);
        self.has_adjustable.store(false, Ordering::Relaxed);
        let former = std::mem::take(&mut *self.sinks.lock());
        drop(former);
    }

    /// Queues an event if there is a listener. May be called with any lock held.
    #[inline]
    pub fn tell(&self, event: impl FnOnce() -> Event) {
        if self.active.load(Ordering::Relaxed) {
            self.push(event());
        }
    }

    /// Does the same for an event of [`LogLevel::Debug`], which may come often: does nothing unless a sink asked for that level.
    #[inline]
    pub fn tell_detail(&self, event: impl FnOnce() -> Event) {
        if self.detailed.load(Ordering::Relaxed) {
            self.push(event());
        }
    }

    #[cold]
    fn push(&self, event: Event) {
        let mut queue = self.queue.lock();
        if queue.len() >= MOST_WAITING {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        } else {
            queue.push_back(event);
        }
    }

    /// Hands what waits to the sinks, in order. Call it with no lock held. Another thread that delivers now goes on with what
    /// this one has.
    #[inline]
    pub fn deliver(&self) {
        if self.active.load(Ordering::Relaxed) {
            self.deliver_all();
        }
    }

    #[cold]
    fn deliver_all(&self) {
        if Events::is_inside() {
            return; // the delivery that this thread is in goes on when the sink returns
        }
        loop {
            let Some(mut sinks) = self.sinks.try_lock() else { return };
            loop {
                let Some(event) = self.queue.lock().pop_front() else { break };
                let level = self.level.load(Ordering::Relaxed);
                for sink in sinks.iter_mut().filter(|s| !s.adjustable || event.level() as u8 <= level) {
                    INSIDE.with(|inside| inside.set(true));
                    let called = catch_unwind(AssertUnwindSafe(|| (sink.call)(&event)));
                    INSIDE.with(|inside| inside.set(false));
                    if called.is_err() {
                        self.panics.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            drop(sinks);
            // A thread that came meanwhile and could not have the lock left its events to this one.
            if self.queue.lock().is_empty() {
                return;
            }
        }
    }

    /// Returns whether this thread is inside of a listener, of whatever database.
    pub fn is_inside() -> bool {
        INSIDE.with(Cell::get)
    }

    /// Events that were dropped because too many waited, and panics of sinks, since the last call.
    pub fn take_losses(&self) -> (u64, u64) {
        let taken = |n: &AtomicU64| if n.load(Ordering::Relaxed) > 0 { n.swap(0, Ordering::Relaxed) } else { 0 };
        (taken(&self.dropped), taken(&self.panics))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn events_come_in_order_and_a_panic_harms_nothing() {
        let events = Arc::new(Events::default());
        events.tell(|| unreachable!("there is no listener"));
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let (to, inner) = (heard.clone(), events.clone());
        events.connect(
            LogLevel::Info,
            Box::new(move |event| {
                to.lock().push(event.to_string());
                if let Event::FamilyCreated(name) = event {
                    inner.tell(|| Event::FamilyDropped(name.clone()));
                    inner.deliver(); // comes back to the delivery under way
                    assert!(Events::is_inside());
                    panic!("a listener panics");
                }
            }),
        );
        events.tell_detail(|| unreachable!("no sink asked for this level"));
        ["a", "b"].into_iter().for_each(|name| events.tell(|| Event::FamilyCreated(name.to_owned())));
        events.deliver();
        let heard = heard.lock().join("; ");
        assert_eq!(heard, "family 'a' created; family 'b' created; family 'a' dropped; family 'b' dropped");
        assert_eq!((events.take_losses(), Events::is_inside()), ((0, 2), false));
        events.disconnect();
        events.tell(|| unreachable!("the listener was disconnected"));
    }

    #[test]
    fn one_thing_is_told_in_the_singular() {
        let told = |n: usize, bytes| {
            let (files, families, log_segments, log_records) = (n, n, n, n as u64);
            let torn_bytes = None;
            let info =
                RecoveryInfo { files, families, log_records, log_segments, log_bytes: bytes, torn_bytes, closed: true };
            Event::Recovered(info).to_string()
        };
        let log = "the log, which was closed, has";
        assert_eq!(told(1, 1), format!("the manifest names 1 file of 1 family; {log} 1 segment and 1 record, 1 byte"));
        let two = format!("the manifest names 2 files of 2 families; {log} 2 segments and 2 records, 99 bytes");
        assert_eq!(told(2, 99), two);
    }

    #[test]
    fn the_level_of_the_log_can_be_changed_and_the_listener_hears_all_the_same() {
        let events = Events::default();
        events.set_level(LogLevel::Debug);
        events.tell(|| unreachable!("there is no log whose level could be set"));
        let (log, listener): (Arc<Mutex<Vec<&str>>>, Arc<Mutex<Vec<&str>>>) = Default::default();
        let (to_log, to_listener) = (log.clone(), listener.clone());
        events.connect_adjustable(LogLevel::Off, Box::new(move |e| to_log.lock().push(e.name())));
        events.tell(|| unreachable!("the log is off"));
        for level in [LogLevel::Error, LogLevel::Debug, LogLevel::Info] {
            events.set_level(level);
            events.tell_detail(|| Event::FileDeleted("f".to_owned()));
            events.tell(|| Event::Closed);
            events.tell(|| Event::OpenFailed("e".to_owned()));
            events.deliver();
        }
        let expected = ["open_failed", "file_deleted", "closed", "open_failed", "closed", "open_failed"];
        assert_eq!(*log.lock(), expected);
        events.connect(LogLevel::Debug, Box::new(move |e| to_listener.lock().push(e.name())));
        events.set_level(LogLevel::Off);
        events.tell_detail(|| Event::FileDeleted("f".to_owned()));
        events.deliver();
        assert_eq!((log.lock().len(), listener.lock().len()), (expected.len(), 1));
    }

    #[test]
    fn a_queue_that_is_not_emptied_stays_short() {
        let events = Events::default();
        events.connect(LogLevel::Debug, Box::new(|_| {}));
        (0..MOST_WAITING + 7).for_each(|_| events.tell(|| Event::Closed));
        assert_eq!(events.take_losses(), (7, 0));
        events.deliver();
        assert!(events.queue.lock().is_empty());
    }
}
