//! Values that are written in pieces.

use crate::convert::Bytes;
use crate::error::blocking;
use kingtide::{Error, ErrorKind, StagedValue, ValueWriter};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Writes one value, of any length, in bounded memory. `kingtide.ValueWriter` is a file object over it.
#[pyclass(frozen, module = "kingtide")]
pub struct Writer(Mutex<Option<ValueWriter>>);

impl Writer {
    pub fn new(writer: ValueWriter) -> Writer {
        Writer(Mutex::new(Some(writer)))
    }
}

fn finished() -> Error {
    Error::new(ErrorKind::Finished, "the value writer is finished; create another for another value")
}

#[pymethods]
impl Writer {
    fn __len__(&self, py: Python<'_>) -> usize {
        let len =
            py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, ValueWriter::len));
        usize::try_from(len).unwrap_or(usize::MAX)
    }

    /// Appends bytes.
    fn append(&self, py: Python<'_>, data: Bytes) -> PyResult<()> {
        blocking(py, || {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut().ok_or_else(finished)?.append(&data)
        })
    }

    /// Ends the value, which can then be put under a key.
    fn finish(&self, py: Python<'_>) -> PyResult<StagedValueObject> {
        blocking(py, || {
            let writer = self.0.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(finished)?;
            writer.finish().map(StagedValueObject)
        })
    }

    /// Gives the value up, unless it was finished.
    fn discard(&self, py: Python<'_>) {
        py.detach(|| drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }
}

/// A value that was written and waits for the commit that puts it under a key.
#[pyclass(frozen, name = "StagedValue", module = "kingtide")]
pub struct StagedValueObject(pub StagedValue);

#[pymethods]
impl StagedValueObject {
    fn __len__(&self) -> usize {
        usize::try_from(self.0.len()).unwrap_or(usize::MAX)
    }

    fn __bool__(&self) -> bool {
        true // an empty value is still a value
    }
}
