//! A value that Python reads without a copy. The one place of this crate with `unsafe`: the buffer protocol has no other form.

use kingtide::PinnedValue;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::{c_int, c_void};

/// Bytes of a value where they lie: in the block cache, or in this object. It never changes, and what it holds lives as long
/// as any view of it.
#[pyclass(frozen, module = "kingtide")]
pub struct Value(pub PinnedValue);

#[pymethods]
impl Value {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0)
    }

    fn __repr__(&self) -> String {
        format!("<kingtide.Value of {} bytes>", self.0.len())
    }

    /// Lends the bytes to Python.
    ///
    /// # Safety
    /// `view` is NULL or can be written, as the interpreter promises.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no place for the view"));
        }
        let bytes: &[u8] = &slf.get().0;
        let (data, len) = (bytes.as_ptr().cast::<c_void>().cast_mut(), bytes.len() as ffi::Py_ssize_t);
        // SAFETY: the view is not NULL. It keeps a reference to this object, which is frozen and does not move, so the bytes
        // stay where and what they are; it is asked to be read-only, so they are not written.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data, len, 1, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
