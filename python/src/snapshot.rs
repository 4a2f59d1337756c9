//! Snapshots.

use crate::error::gone;
use pyo3::prelude::*;
use pyo3::types::PyAny;
use std::sync::{Mutex, PoisonError};

/// A consistent view of all families at one moment.
#[pyclass(frozen, module = "kingtide")]
pub struct Snapshot(Mutex<Option<kingtide::Snapshot>>);

impl Snapshot {
    pub fn new(snapshot: kingtide::Snapshot) -> Snapshot {
        Snapshot(Mutex::new(Some(snapshot)))
    }

    pub fn get(&self) -> PyResult<kingtide::Snapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(|| gone("snapshot"))
    }
}

#[pymethods]
impl Snapshot {
    #[getter]
    fn sequence(&self) -> PyResult<u64> {
        Ok(self.get()?.sequence())
    }

    fn release(&self, py: Python<'_>) {
        py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(&self, py: Python<'_>, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        self.release(py);
    }
}
