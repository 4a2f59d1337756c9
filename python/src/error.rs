//! From the engine's errors to the exceptions of `kingtide.errors`.

use kingtide::{Error, Result};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// `kingtide.errors._make`, which knows the class of each kind.
static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The kind as the C API spells it: "lock-timeout".
fn kind(error: &Error) -> String {
    if error.is_lock_held() {
        return "lock-held".to_owned();
    }
    let mut name = String::new();
    for c in format!("{:?}", error.kind()).chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

/// The exception for an error.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let made = || {
        let make = MAKE.get_or_try_init(py, || py.import("kingtide.errors")?.getattr("_make").map(Bound::unbind))?;
        let path = error.path().map(|p| p.to_string_lossy().into_owned());
        let (retry, conflict) = (error.is_retryable(), error.is_transient_conflict());
        make.bind(py).call1((kind(error), error.to_string(), path, error.offset(), retry, conflict))
    };
    made().map_or_else(|e| e, PyErr::from_value)
}

/// Runs work that may block, detached from the interpreter.
pub fn blocking<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(work).map_err(|e| raise(py, &e))
}

/// The exception for an object that was released, or closed, before.
pub fn gone(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("the {what} was released"))
}
