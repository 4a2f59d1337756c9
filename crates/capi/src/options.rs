//! Options of databases and families, by name, and key orders of the caller's own.

use crate::abi::{self, Out, OutHandle, Sized_, bytes, fill, flag, need, out_handle};
use crate::error::{guard, kingtide_error, kingtide_status, quietly};
use crate::value::kingtide_text;
use kingtide::{
    CustomOrder, DbOptions, Durability, Error, ErrorKind, FamilyOptions, KeyOrder, Options, Result, WriteOptions,
};
use kingtide_base::options::OptionRow;
use std::cmp::Ordering;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

/// What a commit survives.
#[allow(clippy::enum_variant_names)]
#[repr(C)]
pub enum kingtide_durability {
    /// As the database's option `durability` says.
    KINGTIDE_DURABILITY_DEFAULT = 0,
    /// The death of the process: the commit is handed to the operating system before it returns. No fsync.
    KINGTIDE_DURABILITY_PROCESS = 1,
    /// A power cut: fsynced before the commit returns, one fsync for all commits that wait together.
    KINGTIDE_DURABILITY_POWER = 2,
    /// Not logged: lost with the process until the memtable is flushed.
    KINGTIDE_DURABILITY_NONE = 3,
}

/// From C's number.
pub fn durability(number: i32) -> Result<Option<Durability>> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(Durability::Process)),
        2 => Ok(Some(Durability::Power)),
        3 => Ok(Some(Durability::None)),
        other => Err(Error::invalid(format!("{other} is not a kingtide_durability"))),
    }
}

/// Options of one commit.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_write_options {
    /// `sizeof(kingtide_write_options)`.
    pub size: usize,
    /// One of `kingtide_durability`.
    pub durability: i32,
    /// Not 0: return `KINGTIDE_BUSY` instead of waiting when writers are being slowed, and `KINGTIDE_CONFLICT` instead of
    /// waiting for a lock that a transaction or an ingest holds.
    pub no_wait: i32,
}
// SAFETY: numbers only, the size first.
unsafe impl Sized_ for kingtide_write_options {
    const NAME: &'static str = "kingtide_write_options";
}

impl kingtide_write_options {
    /// As the engine has it.
    pub fn get(&self) -> Result<WriteOptions> {
        Ok(WriteOptions::new().durability(durability(self.durability)?).no_wait(flag(self.no_wait)))
    }
}

/// Options for opening a database or creating a family. For one thread at a time. May be freed after the call that uses it.
#[derive(Default)]
pub struct kingtide_options {
    pub(crate) options: Options,
}

/// For callers in Rust that give what C cannot, such as another file system.
impl From<Options> for kingtide_options {
    fn from(options: Options) -> kingtide_options {
        kingtide_options { options }
    }
}

impl kingtide_options {
    /// The order of a name: built in, or added by the caller.
    fn order(&self, name: &str) -> Result<KeyOrder> {
        find_order(name, &self.options.custom_orders)
    }
}

/// The order of a name: built in, or among those given.
pub fn find_order(name: &str, custom: &[Arc<dyn CustomOrder>]) -> Result<KeyOrder> {
    let own = || custom.iter().find(|o| o.name() == name).map(|o| KeyOrder::Custom(o.clone()));
    KeyOrder::builtin(name).or_else(own).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("no key order '{name}': it is neither built in nor registered"))
    })
}

/// The defaults.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_options_new() -> Box<kingtide_options> {
    Box::default()
}

/// Sets an option by name, from text: sizes as "64M", durations in the unit that the name ends with, "true" and "false".
/// The name determines whether it is an option of the database or of families. `kingtide_option_get_info` lists all.
///
/// Errors: INVALID_ARGUMENT, with the most similar name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_options_set(
    options: Option<&mut kingtide_options>,
    name: *const c_char,
    value: *const c_char,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(options, "options")?.options.set(abi::text(name, "name")?, abi::text(value, "value")?))
}

/// An option's value as text.
///
/// Errors: NOT_FOUND.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_options_get(
    options: Option<&kingtide_options>,
    name: *const c_char,
    value: *mut *mut kingtide_text,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (out, name) = (out_handle(value, "value")?, abi::text(name, "name")?);
        let options = &need(options, "options")?.options;
        give_option(out, name, options.family.get(name).or_else(|| options.db.get(name)))
    })
}

/// Hands an option's value out.
pub(crate) fn give_option(out: OutHandle<kingtide_text>, name: &str, value: Option<String>) -> Result<()> {
    let value = value.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no option '{name}'")))?;
    out.set(value.into());
    Ok(())
}

/// Sets the key order of the default family: "bytewise" (the default), "reverse", "u64", "i64", "case-insensitive", or an order
/// that was added.
///
/// Errors: NOT_FOUND.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_options_set_order(
    options: Option<&mut kingtide_options>,
    name: *const c_char,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let options = need(options, "options")?;
        options.options.order = options.order(abi::text(name, "name")?)?;
        Ok(())
    })
}

/// Compares two keys: negative, zero or positive if `a` sorts before, is the same key as, or sorts after `b`. Called from
/// many threads at once, at any time until the database is freed. Must always be the same total order. Must neither
/// unwind nor jump out.
pub type kingtide_compare_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, a: *const u8, a_len: usize, b: *const u8, b_len: usize) -> i32>;

/// A monotone 64-bit image of a key: if `a` sorts before `b`, its image is not greater. Makes searches faster.
pub type kingtide_head_fn = Option<unsafe extern "C" fn(context: *mut c_void, key: *const u8, key_len: usize) -> u64>;

/// Called once, with a context that the library no longer needs.
pub type kingtide_destroy_fn = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// What C's callbacks are called with. Destroyed with the last that holds it.
pub struct Context {
    pub(crate) pointer: *mut c_void,
    pub(crate) destroy: kingtide_destroy_fn,
}

// SAFETY: the pointer is only handed back to callbacks, which the header says are called from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // SAFETY: the caller that passed it promised that it can be called with this pointer, once.
            unsafe { destroy(self.pointer) };
        }
    }
}

/// A key order of C's.
struct Order {
    name: String,
    compare: unsafe extern "C" fn(*mut c_void, *const u8, usize, *const u8, usize) -> i32,
    head: kingtide_head_fn,
    context: Context,
}

impl CustomOrder for Order {
    fn name(&self) -> &str {
        &self.name
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        // SAFETY: the caller that made the order promised that it can be called with its context, and the keys are valid meanwhile.
        unsafe { (self.compare)(self.context.pointer, a.as_ptr(), a.len(), b.as_ptr(), b.len()).cmp(&0) }
    }

    fn head(&self, key: &[u8]) -> u64 {
        // SAFETY: as for `compare`.
        self.head.map_or(0, |head| unsafe { head(self.context.pointer, key.as_ptr(), key.len()) })
    }
}

/// Adds a custom key order. Its name is stored with the families that use it, and it must be added to the
/// options of every later open. `head` and `destroy` may be NULL. `destroy` is called when neither options nor a database
/// need the context any longer, or at once if this fails.
///
/// Errors: EXISTS (the name), INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_options_add_order(
    options: Option<&mut kingtide_options>,
    name: *const c_char,
    compare: kingtide_compare_fn,
    head: kingtide_head_fn,
    context: *mut c_void,
    destroy: kingtide_destroy_fn,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    let context = Context { pointer: context, destroy };
    guard(err, || {
        let options = need(options, "options")?;
        let name = abi::text(name, "name")?.to_owned();
        if name.is_empty() {
            return Err(Error::invalid("the name of a key order is empty"));
        }
        if options.order(&name).is_ok() {
            return Err(Error::new(ErrorKind::Exists, format!("key order '{name}' already exists")));
        }
        let compare = need(compare, "compare")?;
        options.options.custom_orders.push(Arc::new(Order { name, compare, head, context }));
        Ok(())
    })
}

/// Loads the stored options and key order of the default family of the database in `path`, and the database's `change_retention`;
/// without this call, an open replaces the stored ones.
///
/// Errors: NOT_FOUND (no database), INCOMPATIBLE (a key order that was not added), CORRUPTION, NEWER_FORMAT, IO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_options_load(
    options: Option<&mut kingtide_options>,
    path: *const c_char,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let options = need(options, "options")?;
        options.options = options.options.clone().load(abi::path(path, "path")?)?;
        Ok(())
    })
}

/// Frees options. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_options_free(options: Option<Box<kingtide_options>>) {
    quietly((), || drop(options));
}

/// The description of an option. All texts are valid for ever.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_option_info {
    /// `sizeof(kingtide_option_info)`, set by the caller.
    pub size: usize,
    /// Its name.
    pub name: *const c_char,
    /// What it does, with its unit.
    pub description: *const c_char,
    /// The form of a value: "true or false", "number or size (64M)".
    pub form: *const c_char,
    /// The default.
    pub default_value: *const c_char,
    /// Not 0: it has limits.
    pub has_limits: i32,
    /// Not 0: an option of families; otherwise of the database.
    pub is_family: i32,
    /// Not 0: it can be changed while the database is open.
    pub is_live: i32,
    /// Zero.
    pub reserved: i32,
    /// The smallest value, if it has limits. A 0 may stand for something else than a size: then the description says so, and
    /// which is the smallest other value.
    pub minimum: f64,
    /// The largest value, if it has limits.
    pub maximum: f64,
}
// SAFETY: numbers and raw pointers only, the size first.
unsafe impl Sized_ for kingtide_option_info {
    const NAME: &'static str = "kingtide_option_info";
}

impl kingtide_option_info {
    fn of(row: &OptionRow, is_family: bool) -> kingtide_option_info {
        let (minimum, maximum) = row.limits.unwrap_or_default();
        kingtide_option_info {
            size: 0,
            name: forever(row.name),
            description: forever(row.doc),
            form: forever(row.form),
            default_value: forever(&row.default),
            has_limits: i32::from(row.limits.is_some()),
            is_family: i32::from(is_family),
            is_live: i32::from(row.live),
            reserved: 0,
            minimum,
            maximum,
        }
    }
}

// SAFETY: the pointers are to text that is never freed and never changes.
unsafe impl Send for kingtide_option_info {}
// SAFETY: as above.
unsafe impl Sync for kingtide_option_info {}

/// Text of the tables, made once and never freed.
pub fn forever(text: &str) -> *const c_char {
    let text: &'static CStr = Box::leak(crate::error::c_text(text.as_bytes()).into_boxed_c_str());
    text.as_ptr()
}

/// Describes the option at an index from 0: first those of databases, then those of families. False behind the last, or
/// when `info->size` is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_option_get_info(index: usize, info: *mut kingtide_option_info) -> bool {
    static ALL: OnceLock<Vec<kingtide_option_info>> = OnceLock::new();
    quietly(false, || {
        let all = ALL.get_or_init(|| {
            let db = DbOptions::rows().into_iter().map(|r| kingtide_option_info::of(&r, false));
            let family = FamilyOptions::rows().into_iter().map(|r| kingtide_option_info::of(&r, true));
            db.chain(family).collect()
        });
        all.get(index).is_some_and(|found| fill(info, *found).is_ok())
    })
}

/// Returns the library's version, such as "0.1.0". Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Compares two keys as a built-in order does, by its name; for callers that merge or check. `order` may be NULL for
/// "bytewise".
///
/// Errors: NOT_FOUND.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_compare(
    order: *const c_char,
    a: *const c_void,
    a_len: usize,
    b: *const c_void,
    b_len: usize,
    result: *mut i32,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = Out::new(result, "result")?;
        let order = if ptr::eq(order, ptr::null()) { "bytewise" } else { abi::text(order, "order")? };
        let order = find_order(order, &[])?;
        out.set(order.compare(bytes(a, a_len, "a")?, bytes(b, b_len, "b")?) as i32);
        Ok(())
    })
}
