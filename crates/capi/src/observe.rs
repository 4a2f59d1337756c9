//! What an engine tells of itself: histograms, events, what a thread's operations touch, slow operations.

use crate::abi::{self, Sized_, fill, need, out_handle};
use crate::db::kingtide_db;
use crate::error::{c_text, guard, kingtide_error, kingtide_status, quietly};
use crate::family::kingtide_family;
use crate::options::{Context, forever, kingtide_destroy_fn, kingtide_options};
use crate::value::kingtide_text;
use kingtide::perf::{self, Level};
use kingtide::{Error, Event, EventListener, Histogram, HistogramSnapshot};
use std::ffi::{CString, c_char, c_void};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A histogram of durations, in nanoseconds. Quantiles are off by at most 5.9 %. The texts are valid for ever.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_histogram {
    /// `sizeof(kingtide_histogram)`, set by the caller.
    pub size: usize,
    /// Its name.
    pub name: *const c_char,
    /// What it measures.
    pub description: *const c_char,
    /// The number of operations; approximate for gets, seeks and steps, because only a sample of them is timed.
    pub count: u64,
    /// The sum of all durations.
    pub sum: u64,
    /// The longest duration.
    pub max: u64,
    /// The median.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p999: u64,
}
// SAFETY: numbers and raw pointers only, the size first.
unsafe impl Sized_ for kingtide_histogram {
    const NAME: &'static str = "kingtide_histogram";
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Describes the histogram at an index from 0, as it is now. False behind the last, without a database, or when
/// `histogram->size` is not set. Reads about 22 KB, and up to 22 KB more for each family with histograms of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_histogram(
    db: Option<&kingtide_db>,
    index: usize,
    histogram: *mut kingtide_histogram,
) -> bool {
    quietly(false, || db.is_some_and(|db| describe(index, histogram, |h| db.db.histogram(h))))
}

/// Does the same for one family: how long operations took in it. The index means the same histogram. Its count is 0 if families
/// have no such histogram, and if more families than the option `family_histograms` says were used before this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_histogram(
    family: Option<&kingtide_family>,
    index: usize,
    histogram: *mut kingtide_histogram,
) -> bool {
    quietly(false, || family.is_some_and(|family| describe(index, histogram, |h| family.0.histogram(h))))
}

/// Fills in the histogram at an index. False behind the last.
///
/// # Safety
/// As [`fill`].
unsafe fn describe(
    index: usize,
    into: *mut kingtide_histogram,
    snapshot: impl Fn(Histogram) -> HistogramSnapshot,
) -> bool {
    static TEXTS: OnceLock<Vec<[usize; 2]>> = OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        let text = |h: &Histogram| [h.name(), h.help().trim()].map(|t| forever(t) as usize);
        Histogram::ALL.iter().map(text).collect()
    });
    let (Some(which), Some(texts)) = (Histogram::ALL.get(index), texts.get(index)) else { return false };
    let [name, description] = texts.map(|t| t as *const c_char);
    let now = snapshot(*which);
    let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(|q| nanos(now.quantile(q)));
    let (count, sum, max) = (now.count(), nanos(now.sum()), nanos(now.max()));
    fill(into, kingtide_histogram { size: 0, name, description, count, sum, max, p50, p90, p99, p999 }).is_ok()
}

/// Gets the nanoseconds that a share `quantile` (0 to 1) of the operations did not exceed, by the histogram's name. A number
/// below 0 means 0, and one above 1 means 1; one that is not a number (NaN) is an INVALID_ARGUMENT.
///
/// Errors: NOT_FOUND, INVALID_ARGUMENT, CLOSED (in a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_histogram_quantile(
    db: Option<&kingtide_db>,
    name: *const c_char,
    quantile: f64,
    nanoseconds: *mut u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let name = abi::text(name, "name")?;
        let which = Histogram::by_name(name)
            .ok_or_else(|| Error::new(kingtide::ErrorKind::NotFound, format!("no histogram '{name}'")))?;
        if quantile.is_nan() {
            return Err(Error::invalid("'quantile' is not a number"));
        }
        let db = need(db, "db")?;
        db.db.check_process()?;
        let found = db.db.histogram(which).quantile(quantile);
        abi::set_if(nanoseconds, nanos(found));
        Ok(())
    })
}

/// Called with the name of an event, such as "flush_ended", and with a sentence that describes it. Both are valid during
/// the call. May call everything but `kingtide_db_close`, `kingtide_db_wait_for_background`, flushes, compactions, and ingests that have to
/// flush first, which fail with INVALID_ARGUMENT. If it frees the last reference to the database, another thread closes the database soon
/// after. Must neither unwind nor jump out.
pub type kingtide_event_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, name: *const c_char, text: *const c_char)>;

/// A listener: it is called for events inside of a database.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_listener {
    /// `sizeof(kingtide_listener)`, set by the caller.
    pub size: usize,
    /// The context passed to the functions.
    pub context: *mut c_void,
    /// Called for every event: one call at a time, in order, mostly on background threads.
    pub event: kingtide_event_fn,
    /// Called when the context is no longer needed. May be NULL.
    pub destroy: kingtide_destroy_fn,
}
// SAFETY: raw pointers and functions only, the size first; all zeros is a value of it.
unsafe impl Sized_ for kingtide_listener {
    const NAME: &'static str = "kingtide_listener";
}

struct Listener {
    event: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char),
    context: Context,
}

impl EventListener for Listener {
    fn event(&self, event: &Event) {
        let name = CString::new(event.name()).unwrap_or_default();
        let text = c_text(event.to_string().as_bytes());
        // SAFETY: the caller that set the listener guaranteed this call; both texts outlive it.
        unsafe { (self.event)(self.context.pointer, name.as_ptr(), text.as_ptr()) };
    }
}

/// Sets the listener of databases that are opened with these options, replacing the previous one; NULL
/// removes it.
///
/// Errors: INVALID_ARGUMENT, after which `destroy` is not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_options_set_listener(
    options: Option<&mut kingtide_options>,
    listener: *const kingtide_listener,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let options = need(options, "options")?;
        if listener.is_null() {
            options.options.listener = None;
            return Ok(());
        }
        let kingtide_listener { context, event, destroy, .. } = abi::config(listener)?;
        let event = need(event, "event")?;
        let context = Context { pointer: context, destroy };
        options.options.listener = Some(Arc::new(Listener { event, context }));
        Ok(())
    })
}

/// Sets what is recorded about the operations of this thread: 0 nothing, 1 counts and waits, 2 also the times of all stages.
/// Counting restarts from zero. Returns false for any other level.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_perf_start(level: i32) -> bool {
    let level = match level {
        0 => Level::Off,
        1 => Level::Counts,
        2 => Level::Times,
        _ => return false,
    };
    quietly(false, || {
        perf::start(level);
        true
    })
}

/// Returns what the operations of this thread touched, and how long their stages took, since the start or the last such call: the
/// fields that are not 0, as `name=value` with spaces between them. Names that end in `_ns` are nanoseconds.
///
/// Errors: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_perf_take(
    text: *mut *mut kingtide_text,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(text, "text")?;
        out.set(perf::take().to_string().into());
        Ok(())
    })
}

/// Returns the last 128 operations that took at least as long as the option `slow_operation_threshold_us` says: a line for each,
/// oldest first, with what it touched and waited for.
///
/// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_slow_operations(
    db: Option<&kingtide_db>,
    text: *mut *mut kingtide_text,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(text, "text")?;
        let db = need(db, "db")?;
        db.db.check_process()?;
        let lines: String = db.db.slow_operations().iter().map(|s| format!("{s}\n")).collect();
        out.set(lines.into());
        Ok(())
    })
}
