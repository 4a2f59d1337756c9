//! What functions hand out: values, texts, lists of strings.

use crate::abi::set_if;
use crate::error::{c_text, quietly};
use kingtide::PinnedValue;
use std::ffi::{CString, c_char};
use std::ptr;

/// The result of a read: a value, or the fact that there is none. Create one with `kingtide_value_new` and use it for many
/// reads; each replaces the previous result. It may keep a block of the cache in memory, so do not keep many without need. For one
/// thread at a time.
#[derive(Default)]
pub struct kingtide_value(pub(crate) Option<PinnedValue>);

/// Creates an empty value.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_value_new() -> Box<kingtide_value> {
    Box::default()
}

/// Returns whether the last read found the key.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_value_is_present(value: Option<&kingtide_value>) -> bool {
    value.is_some_and(|v| v.0.is_some())
}

/// Returns the bytes; NULL if the key was absent. Valid until the value is used for another read or freed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_value_data(value: Option<&kingtide_value>) -> *const u8 {
    value.and_then(|v| v.0.as_ref()).map_or(ptr::null(), |v| v.as_ptr())
}

/// Returns the number of bytes; 0 if the key was absent.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_value_len(value: Option<&kingtide_value>) -> usize {
    value.and_then(|v| v.0.as_ref()).map_or(0, |v| v.len())
}

/// Frees a value. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_value_free(value: Option<Box<kingtide_value>>) {
    quietly((), || drop(value));
}

/// Text made by the library. Does not change; any thread may read it.
pub struct kingtide_text(CString);

impl From<String> for kingtide_text {
    fn from(text: String) -> kingtide_text {
        kingtide_text(c_text(text.as_bytes()))
    }
}

/// The text in UTF-8, NUL at the end. Valid until it is freed. Empty for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_text_data(text: Option<&kingtide_text>) -> *const c_char {
    text.map_or(c"".as_ptr(), |t| t.0.as_ptr())
}

/// Its bytes, without the NUL.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_text_len(text: Option<&kingtide_text>) -> usize {
    text.map_or(0, |t| t.0.as_bytes().len())
}

/// Frees a text. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_text_free(text: Option<Box<kingtide_text>>) {
    drop(text);
}

/// A list of strings. Does not change; any thread may read it.
pub struct kingtide_strings(Vec<CString>);

impl FromIterator<String> for kingtide_strings {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> kingtide_strings {
        kingtide_strings(names.into_iter().map(|n| c_text(n.as_bytes())).collect())
    }
}

/// Returns the number of elements.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_strings_count(strings: Option<&kingtide_strings>) -> usize {
    strings.map_or(0, |s| s.0.len())
}

/// Returns the string at an index from 0; NULL after the last. `len`, unless NULL, is set to its length without the NUL. Valid until
/// the list is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_strings_get(
    strings: Option<&kingtide_strings>,
    index: usize,
    len: *mut usize,
) -> *const c_char {
    let found = strings.and_then(|s| s.0.get(index));
    set_if(len, found.map_or(0, |s| s.as_bytes().len()));
    found.map_or(ptr::null(), |s| s.as_ptr())
}

/// Frees a list of strings. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_strings_free(strings: Option<Box<kingtide_strings>>) {
    drop(strings);
}
