//! From Python's values to the engine's.

use kingtide::{Durability, Error, ErrorKind, Isolation, KeyOrder, Result};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBool, PyBytes, PyDict, PySlice};
use std::ops::Bound as End;
use std::time::Duration;

/// A key or value: `bytes` without a copy, anything else with the buffer protocol as a copy.
pub enum Bytes {
    Shared(PyBackedBytes),
    Copied(Vec<u8>),
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Bytes::Shared(bytes) => bytes,
            Bytes::Copied(bytes) => bytes,
        }
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Bytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Bytes> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Bytes::Shared(bytes.to_owned().into()));
        }
        match PyBuffer::<u8>::get(&object) {
            Ok(buffer) => Ok(Bytes::Copied(buffer.to_vec(object.py())?)),
            Err(_) => Err(PyTypeError::new_err(format!(
                "keys and values are bytes or other objects with bytes in a buffer, not {}",
                object.get_type().name()?
            ))),
        }
    }
}

/// A range of keys as iterators and range deletes take it.
pub type Range = (End<Vec<u8>>, End<Vec<u8>>);

fn end(object: &Bound<'_, PyAny>, of: fn(Vec<u8>) -> End<Vec<u8>>) -> PyResult<End<Vec<u8>>> {
    if object.is_none() { Ok(End::Unbounded) } else { Ok(of(object.extract::<Bytes>()?.to_vec())) }
}

/// The range of a slice, and whether it goes backwards: `start` is the lower end, included, and `stop` the upper, excluded, either way.
pub fn slice(slice: &Bound<'_, PySlice>) -> PyResult<(Range, bool)> {
    let step = slice.getattr("step")?;
    let backward = match step.is_none() {
        true => false,
        false => match step.extract::<i64>() {
            Ok(1) => false,
            Ok(-1) => true,
            _ => return Err(PyValueError::new_err("the step of a slice of keys is 1 or -1")),
        },
    };
    Ok(((end(&slice.getattr("start")?, End::Included)?, end(&slice.getattr("stop")?, End::Excluded)?), backward))
}

/// Sets options from keyword arguments.
pub fn options(given: Option<&Bound<'_, PyDict>>, set: &mut dyn FnMut(&str, &str) -> Result<()>) -> PyResult<()> {
    for (name, value) in given.into_iter().flatten() {
        let (name, text) = (name.extract::<String>()?, text(&value)?);
        set(&name, &text).map_err(|e| crate::error::raise(value.py(), &e))?;
    }
    Ok(())
}

/// An option's value as the option tables read it.
pub fn text(value: &Bound<'_, PyAny>) -> PyResult<String> {
    match value.cast::<PyBool>() {
        Ok(flag) => Ok(flag.is_true().to_string()),
        Err(_) => value.str()?.extract(),
    }
}

/// A key order by its name.
pub fn order(name: Option<&str>) -> Result<KeyOrder> {
    let name = name.unwrap_or("bytewise");
    KeyOrder::builtin(name).ok_or_else(|| Error::new(ErrorKind::NotFound, format!("unknown key order '{name}'")))
}

/// A level by its name.
pub fn isolation(name: &str) -> PyResult<Isolation> {
    Isolation::from_name(name).ok_or_else(|| {
        let all = Isolation::ALL.map(Isolation::name).join(", ");
        PyValueError::new_err(format!("no isolation level '{name}'; there are {all}"))
    })
}

/// What a commit survives, by its name.
pub fn durability(name: Option<&str>) -> PyResult<Option<Durability>> {
    Ok(Some(match name {
        None => return Ok(None),
        Some("process") => Durability::Process,
        Some("power") => Durability::Power,
        Some("none") => Durability::None,
        Some(other) => {
            return Err(PyValueError::new_err(format!(
                "no durability '{other}' of a commit; there are process, power, none"
            )));
        }
    }))
}

/// A time in seconds.
pub fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| PyValueError::new_err(format!("{seconds} is no time in seconds")))
}
