//! Values that are read in pieces.

use crate::error::blocking;
use kingtide::ValueReader;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Mutex, PoisonError};

/// Reads one value from anywhere in it, as it was when the reader was made. `kingtide.ValueFile` is a file object over it.
#[pyclass(frozen, module = "kingtide")]
pub struct Reader {
    reader: Mutex<ValueReader>,
    len: u64,
}

impl Reader {
    pub fn new(reader: ValueReader) -> Reader {
        Reader { len: reader.len(), reader: Mutex::new(reader) }
    }
}

#[pymethods]
impl Reader {
    fn __len__(&self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX)
    }

    /// Up to `size` bytes from `offset` on: fewer only at the value's end.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let piece = blocking(py, || {
            let mut piece = vec![0; size.min(left)];
            let read = self.reader.lock().unwrap_or_else(PoisonError::into_inner).read_at(offset, &mut piece)?;
            piece.truncate(read);
            Ok(piece)
        })?;
        Ok(PyBytes::new(py, &piece))
    }
}
