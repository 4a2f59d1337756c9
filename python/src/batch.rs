//! Batches.

use crate::convert::{Bytes, durability, seconds};
use crate::error::{blocking, raise};
use crate::family::{Family, failed, of};
use crate::writer::StagedValueObject;
use kingtide::{ColumnFamily, Db, Result, WriteBatch, WriteOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// Values of this many bytes are compressed and copied detached from the interpreter.
const WORTH_DETACHING: usize = 4096;

/// Operations that are committed at once.
#[pyclass(frozen, module = "kingtide")]
pub struct Batch {
    db: Db,
    batch: Mutex<WriteBatch>,
    options: WriteOptions,
}

impl Batch {
    pub fn new(db: Db, durability_name: Option<&str>, no_wait: bool) -> PyResult<Batch> {
        let options = WriteOptions::new().durability(durability(durability_name)?).no_wait(no_wait);
        Ok(Batch { db, batch: Mutex::new(WriteBatch::new()), options })
    }

    fn add(
        &self,
        py: Python<'_>,
        family: Option<&Family>,
        bytes: usize,
        work: impl FnOnce(&mut WriteBatch, &ColumnFamily) -> Result<()> + Send,
    ) -> PyResult<()> {
        let family = of(family, self.db.default_family());
        // Adding to memory blocks no other thread, so a short operation is not worth detaching.
        if let (true, Ok(mut batch)) = (bytes < WORTH_DETACHING, self.batch.try_lock()) {
            return work(&mut batch, family).map_err(|e| raise(py, &e));
        }
        blocking(py, || work(&mut self.batch.lock().unwrap_or_else(PoisonError::into_inner), family))
    }
}

#[pymethods]
impl Batch {
    #[pyo3(signature = (key, value, *, family=None, ttl=None, expires_at_ms=None))]
    fn put(
        &self,
        py: Python<'_>,
        key: Bytes,
        value: Bytes,
        family: Option<&Family>,
        ttl: Option<f64>,
        expires_at_ms: Option<u64>,
    ) -> PyResult<()> {
        let ttl = ttl.map(seconds).transpose()?;
        if ttl.is_some() && expires_at_ms.is_some() {
            return Err(PyValueError::new_err("give ttl or expires_at_ms, not both"));
        }
        self.add(py, family, value.len(), |batch, family| match (ttl, expires_at_ms) {
            (Some(ttl), _) => batch.put_ttl(family, &key, &value, ttl),
            (_, Some(at)) => batch.put_until(family, &key, &value, UNIX_EPOCH + Duration::from_millis(at)),
            _ => batch.put(family, &key, &value),
        })
    }

    #[pyo3(signature = (key, value, *, family=None, ttl=None))]
    fn put_staged(
        &self,
        py: Python<'_>,
        key: Bytes,
        value: &StagedValueObject,
        family: Option<&Family>,
        ttl: Option<f64>,
    ) -> PyResult<()> {
        let ttl = ttl.map(seconds).transpose()?;
        self.add(py, family, value.0.len().try_into().unwrap_or(usize::MAX), |batch, family| match ttl {
            Some(ttl) => batch.put_staged_ttl(family, &key, &value.0, ttl),
            None => batch.put_staged(family, &key, &value.0),
        })
    }

    fn __setitem__(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<()> {
        self.add(py, None, value.len(), |batch, family| batch.put(family, &key, &value))
    }

    #[pyo3(signature = (key, *, family=None))]
    fn delete(&self, py: Python<'_>, key: Bytes, family: Option<&Family>) -> PyResult<()> {
        self.add(py, family, 0, |batch, family| batch.delete(family, &key))
    }

    fn __delitem__(&self, py: Python<'_>, key: Bytes) -> PyResult<()> {
        self.add(py, None, 0, |batch, family| batch.delete(family, &key))
    }

    #[pyo3(signature = (key, *, family=None))]
    fn single_delete(&self, py: Python<'_>, key: Bytes, family: Option<&Family>) -> PyResult<()> {
        self.add(py, family, 0, |batch, family| batch.single_delete(family, &key))
    }

    #[pyo3(signature = (start, stop, *, family=None))]
    fn delete_range(&self, py: Python<'_>, start: Bytes, stop: Bytes, family: Option<&Family>) -> PyResult<()> {
        self.add(py, family, 0, |batch, family| batch.delete_range(family, &*start..&*stop))
    }

    #[pyo3(signature = (prefix, *, family=None))]
    fn delete_prefix(&self, py: Python<'_>, prefix: Bytes, family: Option<&Family>) -> PyResult<()> {
        self.add(py, family, usize::MAX, |batch, family| batch.delete_prefix(family, &prefix))
    }

    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.batch.lock().unwrap_or_else(PoisonError::into_inner).clear());
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| self.batch.lock().unwrap_or_else(PoisonError::into_inner).len())
    }

    fn __bool__(&self) -> bool {
        true // an empty batch is still a batch
    }

    /// Commits; returns the sequence number of the last operation. The batch is unchanged.
    fn write(&self, py: Python<'_>) -> PyResult<u64> {
        blocking(py, || {
            let mut batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
            self.db.write_with(&mut *batch, &self.options)
        })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        if !failed(exception)? {
            self.write(py)?;
        }
        self.clear(py);
        Ok(())
    }
}
