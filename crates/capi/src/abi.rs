//! Where C's pointers become Rust's values: every pointer that is no handle passes through here.
//!
//! The one thing that cannot be checked is that a pointer which is not NULL points to what its type says, for as long as
//! the function runs. The header asks callers for it; the functions here rely on it, and on nothing else. Those that do
//! are `unsafe`, and so is every function of the C API that hands them what it was given.

use kingtide_base::clock::time_of_unix_ms;
use kingtide_base::{Error, Result};
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::mem::{MaybeUninit, align_of, size_of};
use std::ops::Bound;
use std::path::Path;
use std::ptr::NonNull;
use std::time::SystemTime;

/// Structs of newer callers are larger, but hardly by this much: a larger size is garbage.
const LARGEST_STRUCT: usize = 4096;

/// A handle that must not be NULL.
pub fn need<T>(handle: Option<T>, name: &str) -> Result<T> {
    handle.ok_or_else(|| Error::invalid(format!("`{name}` is NULL")))
}

/// Returns the bytes that C passed. NULL with a length of zero is no bytes.
///
/// # Safety
/// `data` is NULL or points to `len` bytes, which do not change during `'a`.
pub unsafe fn bytes<'a>(data: *const c_void, len: usize, name: &str) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(Error::invalid(format!("`{name}` is NULL and has a length of {len}")));
    }
    if len > isize::MAX as usize {
        return Err(Error::invalid(format!("`{name}` has a length of {len}, which exceeds the size of any object")));
    }
    // SAFETY: not NULL, of a length that an object can have, and the caller promised that `len` bytes are there.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// Room for bytes, which are zeros at first: C need not have written to it. NULL with a length of zero is no room.
///
/// # Safety
/// `data` is NULL or points to `len` bytes that can be written, and no other code uses them during `'a`.
pub unsafe fn buffer<'a>(data: *mut c_void, len: usize, name: &str) -> Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if data.is_null() || len > isize::MAX as usize {
        return Err(Error::invalid(format!("`{name}` has no room for {len} bytes")));
    }
    // SAFETY: not NULL, of a length that an object can have, the caller promised that no other code uses it, and every byte
    // is written before anything is read.
    unsafe {
        data.cast::<u8>().write_bytes(0, len);
        Ok(std::slice::from_raw_parts_mut(data.cast(), len))
    }
}

/// Objects that C passed one after the other. NULL with a count of zero is none.
///
/// # Safety
/// `data` is NULL or points to `count` valid elements, which do not change during `'a`.
pub unsafe fn array<'a, T>(data: *const T, count: usize, name: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if data.is_null() || !data.is_aligned() || count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Error::invalid(format!("`{name}` is not an array of {count} elements")));
    }
    // SAFETY: neither NULL nor misaligned nor larger than memory, and the caller promised `count` elements.
    Ok(unsafe { std::slice::from_raw_parts(data, count) })
}

/// A NUL-terminated string in UTF-8.
///
/// # Safety
/// `string` is NULL or ends with a NUL, and does not change during `'a`.
pub unsafe fn text<'a>(string: *const c_char, name: &str) -> Result<&'a str> {
    c_string(string, name)?.to_str().map_err(|_| Error::invalid(format!("`{name}` is not UTF-8")))
}

/// A NUL-terminated path: on Unix in whatever bytes the file system has, elsewhere in UTF-8.
///
/// # Safety
/// As [`text`].
pub unsafe fn path<'a>(string: *const c_char, name: &str) -> Result<&'a Path> {
    #[cfg(unix)]
    let path = <OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(c_string(string, name)?.to_bytes());
    #[cfg(not(unix))]
    // SAFETY: by the caller's contract, which is the same.
    let path = OsStr::new(unsafe { text(string, name) }?);
    if path.is_empty() { Err(Error::invalid(format!("`{name}` is empty"))) } else { Ok(Path::new(path)) }
}

/// A string that C passed and that must not be NULL, without its final NUL.
///
/// # Safety
/// As [`text`].
unsafe fn c_string<'a>(string: *const c_char, name: &str) -> Result<&'a CStr> {
    if string.is_null() {
        return Err(Error::invalid(format!("`{name}` is NULL")));
    }
    // SAFETY: not NULL, and the caller promised a NUL at the end.
    Ok(unsafe { CStr::from_ptr(string) })
}

/// Returns what a raw pointer inside a struct of C's points to.
///
/// # Safety
/// `pointer` is NULL or points to a valid object, which is not freed or changed during `'a`.
pub unsafe fn borrow<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: NULL or, as the caller promised, a handle that is not freed while the function runs.
    unsafe { pointer.as_ref() }
}

/// A place where C wants a result.
pub struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// The place, which must not be NULL.
    ///
    /// # Safety
    /// `place` is NULL or can be written as long as the result is there.
    pub unsafe fn new(place: *mut T, name: &str) -> Result<Out<T>> {
        NonNull::new(place).map(Out).ok_or_else(|| Error::invalid(format!("`{name}` is NULL")))
    }

    /// Fills it.
    pub fn set(self, value: T) {
        // SAFETY: not NULL, and the constructor's caller promised that it can be written. What was there is not read.
        unsafe { self.0.as_ptr().write(value) }
    }
}

impl<T: Copy> Out<T> {
    /// Fills this place and those behind it.
    ///
    /// # Safety
    /// There is room for all.
    pub unsafe fn set_all(self, values: &[T]) {
        // SAFETY: not NULL, and the caller promised room for as many as the function says that it writes.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0.as_ptr(), values.len()) }
    }
}

impl<T> Out<T> {
    /// Fills this place and those behind it with one value after the other.
    ///
    /// # Safety
    /// There is room for all.
    pub unsafe fn set_each(self, values: impl Iterator<Item = T>) {
        for (i, value) in values.enumerate() {
            // SAFETY: not NULL, and the caller promised room for as many as the function says that it writes.
            unsafe { self.0.as_ptr().add(i).write(value) }
        }
    }

    /// Replaces what is there, an object that C got from the library.
    ///
    /// # Safety
    /// A valid object is there, which no other code uses now.
    pub unsafe fn replace(self, value: T) {
        // SAFETY: not NULL, and the caller promised that it is a handle that no other code uses now.
        unsafe { *self.0.as_ptr() = value }
    }
}

/// A place for a handle. It is NULL until it is set, so that a caller can free it whatever happened.
///
/// # Safety
/// As [`Out::new`].
pub unsafe fn out_handle<T>(place: *mut *mut T, name: &str) -> Result<OutHandle<T>> {
    Out::new(place, name)?.set(std::ptr::null_mut());
    Ok(OutHandle(Out::new(place, name)?))
}

/// A place where C wants a handle.
pub struct OutHandle<T>(Out<*mut T>);

impl<T> OutHandle<T> {
    /// Hands the object over to C, which frees it.
    pub fn set(self, value: T) {
        self.0.set(Box::into_raw(Box::new(value)));
    }
}

/// Fills a place unless it is NULL.
///
/// # Safety
/// `place` is NULL or can be written.
pub unsafe fn set_if<T>(place: *mut T, value: T) {
    if let Some(place) = NonNull::new(place) {
        Out(place).set(value);
    }
}

/// A struct that grows with the versions of the library: its first member is its size as its user knows it. Zero in any
/// other member means the default.
///
/// # Safety
/// `repr(C)`, beginning with a `size_t`, and any bytes are a valid value: numbers, raw pointers, and
/// function pointers that may be NULL.
pub unsafe trait Sized_: Copy {
    /// Its name, for messages.
    const NAME: &'static str;
}

/// The size that a struct claims to have.
///
/// # Safety
/// `at` is not NULL, and a `size_t` can be read there if it is aligned.
unsafe fn claimed_size<T: Sized_>(at: *const T) -> Result<usize> {
    if !at.is_aligned() {
        return Err(Error::invalid(format!("the {} is not aligned", T::NAME)));
    }
    // SAFETY: the caller checked for NULL, it is aligned, and the struct begins with its size.
    let size = unsafe { at.cast::<usize>().read() };
    // The size of every version of a struct is a multiple of its alignment, and any other would cut a member, a pointer perhaps.
    if size <= size_of::<usize>() || size > LARGEST_STRUCT || !size.is_multiple_of(align_of::<T>()) {
        let text = format!("{}.size is {size}; set it to sizeof({}) and what is not used to zero", T::NAME, T::NAME);
        return Err(Error::invalid(text));
    }
    Ok(size)
}

/// All members zero.
fn zeroed<T: Sized_>() -> T {
    // SAFETY: any bytes are a valid value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Reads a struct that may be older or newer than ours. NULL has the defaults.
///
/// # Errors
/// `InvalidArgument` for a size that was not set, or when a member that we do not know is set.
///
/// # Safety
/// `given` is NULL or points to as many bytes as its first member says.
pub unsafe fn config<T: Sized_>(given: *const T) -> Result<T> {
    let mut known: T = zeroed();
    if given.is_null() {
        return Ok(known);
    }
    let size = claimed_size(given)?;
    let (ours, common) = (size_of::<T>(), size.min(size_of::<T>()));
    // SAFETY: the caller has `size` bytes there, and `known` has `ours`.
    unsafe { std::ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut known).cast::<u8>(), common) };
    if size > ours {
        let rest = bytes(given.wrapping_byte_add(ours).cast(), size - ours, T::NAME)?;
        if rest.iter().any(|b| *b != 0) {
            let text = format!("{} has members set that this version of the library does not know", T::NAME);
            return Err(Error::invalid(text));
        }
    }
    Ok(known)
}

/// Refuses a reserved member that is not zero: it may be an option of a later version.
///
/// # Errors
/// `InvalidArgument`.
pub fn zero(reserved: i32, name: &str) -> Result<()> {
    if reserved == 0 { Ok(()) } else { Err(Error::invalid(format!("{name}.reserved is {reserved}; it must be zero"))) }
}

/// Refuses a struct that is to be filled when its size is not set, before the work is done; NULL is none. Its other members are
/// there to be written, and are not read: a newer caller need not have set those that we do not know.
///
/// # Errors
/// `InvalidArgument`.
///
/// # Safety
/// As [`fill`].
pub unsafe fn check_size<T: Sized_>(place: *const T) -> Result<()> {
    if place.is_null() { Ok(()) } else { claimed_size(place).map(drop) }
}

/// Writes as much of a struct as its user knows. Its size stays.
///
/// # Errors
/// `InvalidArgument` for NULL, or a size that was not set.
///
/// # Safety
/// `place` is NULL or points to as many bytes as its first member says, which can be written.
pub unsafe fn fill<T: Sized_>(place: *mut T, value: T) -> Result<()> {
    if place.is_null() {
        return Err(Error::invalid(format!("the {} is NULL", T::NAME)));
    }
    let (skip, size) = (size_of::<usize>(), claimed_size(place)?);
    let known = size.min(size_of::<T>());
    let (from, to) = ((&raw const value).cast::<u8>(), place.cast::<u8>());
    // SAFETY: the caller has `size` bytes there, and `value` has as many as are copied; `skip` is less than either.
    unsafe { std::ptr::copy_nonoverlapping(from.add(skip), to.add(skip), known - skip) };
    Ok(())
}

/// One end of a range of keys. If the lower end of a range sorts after its upper end, reads and estimates find nothing, and calls that
/// would change something are refused with INVALID_ARGUMENT.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_bound {
    /// One of `kingtide_bound_kind`.
    pub kind: i32,
    /// The key; ignored for `KINGTIDE_UNBOUNDED`.
    pub key: *const c_void,
    /// Its length.
    pub key_len: usize,
}

/// Values of `kingtide_bound.kind`.
#[allow(non_camel_case_types, clippy::enum_variant_names)]
#[repr(C)]
pub enum kingtide_bound_kind {
    /// No bound.
    KINGTIDE_UNBOUNDED = 0,
    /// The key belongs to the range.
    KINGTIDE_INCLUDED = 1,
    /// The key does not belong to the range.
    KINGTIDE_EXCLUDED = 2,
}

impl kingtide_bound {
    /// As the engine has it.
    ///
    /// # Safety
    /// The key is as [`bytes`] needs it.
    pub(crate) unsafe fn get<'a>(&self, name: &str) -> Result<Bound<&'a [u8]>> {
        match self.kind {
            0 => Ok(Bound::Unbounded),
            1 => bytes(self.key, self.key_len, name).map(Bound::Included),
            2 => bytes(self.key, self.key_len, name).map(Bound::Excluded),
            other => Err(Error::invalid(format!("`{name}` has kind {other}, which is not a kingtide_bound_kind"))),
        }
    }
}

/// A bound behind a pointer; NULL is no bound.
///
/// # Safety
/// `at` is NULL or points to a bound, whose key is as [`bytes`] needs it.
pub unsafe fn bound<'a>(at: *const kingtide_bound, name: &str) -> Result<Bound<&'a [u8]>> {
    borrow(at).map_or(Ok(Bound::Unbounded), |b| b.get(name))
}

/// A range as bytes, for functions on ranges.
///
/// # Safety
/// As [`bound`].
pub unsafe fn range_of<'a>(
    lower: *const kingtide_bound,
    upper: *const kingtide_bound,
) -> Result<(Bound<&'a [u8]>, Bound<&'a [u8]>)> {
    Ok((bound(lower, "lower")?, bound(upper, "upper")?))
}

/// The moment at which an entry expires. 0, the beginning of 1970, becomes the millisecond after it: wherever an entry is described
/// to C, 0 means that it does not expire.
pub fn expiry(unix_ms: u64) -> SystemTime {
    time_of_unix_ms(unix_ms.max(1))
}

/// A flag in a struct.
pub fn flag(value: i32) -> bool {
    value != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    struct Grown {
        size: usize,
        a: u64,
        b: u64,
    }
    // SAFETY: numbers only, the size first.
    unsafe impl Sized_ for Grown {
        const NAME: &'static str = "grown";
    }
    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    struct Old {
        size: usize,
        a: u64,
    }
    // SAFETY: numbers only, the size first.
    unsafe impl Sized_ for Old {
        const NAME: &'static str = "old";
    }

    #[test]
    fn structs_may_be_older_and_newer() {
        // SAFETY: the pointers are NULL, to what is here, or refused before they are followed.
        unsafe {
            let old = Old { size: size_of::<Old>(), a: 7 };
            let read = config((&raw const old).cast::<Grown>()).unwrap();
            assert_eq!((read.a, read.b), (7, 0));
            let mut new = Grown { size: size_of::<Grown>(), a: 7, b: 0 };
            assert_eq!(config((&raw const new).cast::<Old>()).unwrap().a, 7);
            new.b = 1;
            assert!(config((&raw const new).cast::<Old>()).is_err(), "a member that is not known is set");
            new.size = size_of::<Grown>() - 1;
            assert!(config(&raw const new).is_err(), "a member is cut");
            new.size = 0;
            assert!(config(&raw const new).unwrap_err().to_string().contains("sizeof(grown)"));
            assert_eq!(config(std::ptr::null::<Grown>()).unwrap().a, 0);
        }
    }

    #[test]
    fn results_are_written_as_far_as_their_user_knows() {
        // SAFETY: the pointers are NULL, to what is here, or refused before they are followed.
        unsafe {
            let newer = Grown { size: size_of::<Grown>(), a: 1, b: 1 };
            assert!(check_size((&raw const newer).cast::<Old>()).is_ok(), "what is not known is not there to be read");
            assert!(check_size(std::ptr::null::<Old>()).is_ok());
            let unset = Old { size: 0, a: 0 };
            assert!(check_size(&raw const unset).is_err());
            let mut pair = [Old { size: size_of::<Old>(), a: 1 }, Old { size: 99, a: 1 }];
            fill((&raw mut pair).cast::<Grown>(), Grown { size: 0, a: 5, b: 6 }).unwrap();
            assert_eq!((pair[0].size, pair[0].a, pair[1].size), (size_of::<Old>(), 5, 99));
        }
    }

    #[test]
    fn what_no_object_has_is_refused() {
        // SAFETY: the pointers are NULL, to what is here, or refused before they are followed.
        unsafe {
            assert!(bytes(std::ptr::null(), 1, "key").is_err());
            assert!(bytes(NonNull::<u8>::dangling().as_ptr().cast(), usize::MAX, "key").is_err());
            assert_eq!(bytes(std::ptr::null(), 0, "key").unwrap(), b"");
            assert!(array::<u64>(std::ptr::null(), 1, "keys").is_err());
            assert!(text(std::ptr::null(), "name").is_err() && text(c"\xff".as_ptr(), "name").is_err());
            assert!(path(c"".as_ptr(), "path").is_err());
        }
    }
}
