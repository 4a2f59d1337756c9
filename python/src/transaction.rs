//! Transactions.

use crate::convert::{Bytes, seconds};
use crate::error::{blocking, gone};
use crate::family::{Family, Scan, copied, failed, of};
use crate::iter::{Entries, Shows, Source};
use crate::writer::StagedValueObject;
use kingtide::{ColumnFamily, Db, LockMode, PinnedValue, Result, TransactionOptions};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

type Found<'py> = PyResult<Option<Bound<'py, PyBytes>>>;

/// Operations that take effect together, or not at all.
#[pyclass(frozen, module = "kingtide")]
pub struct Transaction {
    default: ColumnFamily,
    txn: Mutex<Option<Held>>,
}

struct Held {
    txn: kingtide::Transaction,
    /// Committed, rolled back or prepared by a call, so that the end of a `with` block leaves it alone.
    ended: bool,
}

impl Transaction {
    pub fn begin(py: Python<'_>, db: &Db, options: TransactionOptions) -> PyResult<Transaction> {
        let txn = blocking(py, || db.begin_with(options))?;
        Ok(Transaction { default: db.default_family().clone(), txn: Mutex::new(Some(Held { txn, ended: false })) })
    }

    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut kingtide::Transaction) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.held(py, |held| work(&mut held.txn))
    }

    /// Does what `run` does with a call after which the transaction runs no longer.
    fn end<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut kingtide::Transaction) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.held(py, |held| {
            let done = work(&mut held.txn)?;
            held.ended = true;
            Ok(done)
        })
    }

    fn held<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Held) -> Result<T> + Send) -> PyResult<T> {
        let done = py.detach(|| self.txn.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(work));
        done.ok_or_else(|| gone("transaction"))?.map_err(|e| crate::error::raise(py, &e))
    }

    fn on<T: Send>(
        &self,
        py: Python<'_>,
        family: Option<&Family>,
        work: impl FnOnce(&mut kingtide::Transaction, &ColumnFamily) -> Result<T> + Send,
    ) -> PyResult<T> {
        let family = of(family, &self.default);
        self.run(py, |txn| work(txn, family))
    }

    fn scan(&self, py: Python<'_>, family: Option<&Family>, scan: Scan, shows: Shows) -> PyResult<Entries> {
        let backward = scan.backward;
        let cursor = self.on(py, family, |txn, family| txn.cursor_with(family, scan.options(None)))?;
        Ok(Entries::new(Source::Transaction(cursor), backward, shows))
    }
}

#[pymethods]
impl Transaction {
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, |txn| Ok(txn.id()))
    }

    #[pyo3(signature = (key, default=None, *, family=None))]
    fn get(
        &self,
        py: Python<'_>,
        key: Bytes,
        default: Option<Py<PyAny>>,
        family: Option<&Family>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let value = self.on(py, family, |txn, family| txn.get(family, &key))?;
        Ok(copied(py, value).map(|v| v.into_any().unbind()).or(default))
    }

    #[pyo3(signature = (key, *, family=None))]
    fn get_for_update<'py>(&self, py: Python<'py>, key: Bytes, family: Option<&Family>) -> Found<'py> {
        Ok(copied(py, self.on(py, family, |txn, family| txn.get_for_update(family, &key))?))
    }

    #[pyo3(signature = (key, *, family=None))]
    fn get_for_share<'py>(&self, py: Python<'py>, key: Bytes, family: Option<&Family>) -> Found<'py> {
        Ok(copied(py, self.on(py, family, |txn, family| txn.get_for_share(family, &key))?))
    }

    #[pyo3(signature = (keys, *, family=None))]
    fn multi_get<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bytes>,
        family: Option<&Family>,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let values: Vec<Option<PinnedValue>> =
            self.on(py, family, |txn, family| txn.multi_get(family, &keys).into_iter().collect())?;
        Ok(values.into_iter().map(|v| copied(py, v)).collect())
    }

    #[pyo3(signature = (key, *, family=None))]
    fn contains(&self, py: Python<'_>, key: Bytes, family: Option<&Family>) -> PyResult<bool> {
        self.on(py, family, |txn, family| txn.contains_key(family, &key))
    }

    fn __contains__(&self, py: Python<'_>, key: Bytes) -> PyResult<bool> {
        self.contains(py, key, None)
    }

    fn __getitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let bytes: Bytes = key.extract()?;
        match self.on(py, None, |txn, family| txn.get(family, &bytes))? {
            Some(value) => PyBytes::new(py, &value).into_py_any(py),
            None => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    fn __setitem__(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<()> {
        self.on(py, None, |txn, family| txn.put(family, &key, &value))
    }

    fn __delitem__(&self, py: Python<'_>, key: Bytes) -> PyResult<()> {
        self.delete(py, key, None)
    }

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
        self.on(py, family, |txn, family| match (ttl, expires_at_ms) {
            (Some(ttl), _) => txn.put_ttl(family, &key, &value, ttl),
            (_, Some(at)) => txn.put_until(family, &key, &value, UNIX_EPOCH + Duration::from_millis(at)),
            _ => txn.put(family, &key, &value),
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
        self.on(py, family, |txn, family| match ttl {
            Some(ttl) => txn.put_staged_ttl(family, &key, &value.0, ttl),
            None => txn.put_staged(family, &key, &value.0),
        })
    }

    #[pyo3(signature = (key, *, family=None))]
    fn delete(&self, py: Python<'_>, key: Bytes, family: Option<&Family>) -> PyResult<()> {
        self.on(py, family, |txn, family| txn.delete(family, &key))
    }

    #[pyo3(signature = (key, *, family=None))]
    fn single_delete(&self, py: Python<'_>, key: Bytes, family: Option<&Family>) -> PyResult<()> {
        self.on(py, family, |txn, family| txn.single_delete(family, &key))
    }

    #[pyo3(signature = (start, stop, *, family=None))]
    fn delete_range(&self, py: Python<'_>, start: Bytes, stop: Bytes, family: Option<&Family>) -> PyResult<()> {
        self.on(py, family, |txn, family| txn.delete_range(family, &*start..&*stop))
    }

    #[pyo3(signature = (prefix, *, family=None))]
    fn delete_prefix(&self, py: Python<'_>, prefix: Bytes, family: Option<&Family>) -> PyResult<()> {
        self.on(py, family, |txn, family| txn.delete_prefix(family, &prefix))
    }

    #[pyo3(signature = (start=None, stop=None, *, prefix=None, reverse=false, family=None))]
    fn items(
        &self,
        py: Python<'_>,
        start: Option<Bytes>,
        stop: Option<Bytes>,
        prefix: Option<Bytes>,
        reverse: bool,
        family: Option<&Family>,
    ) -> PyResult<Entries> {
        self.scan(py, family, Scan::new(start, stop, prefix, reverse), Shows::Items)
    }

    #[pyo3(signature = (start=None, stop=None, *, prefix=None, reverse=false, family=None))]
    fn keys(
        &self,
        py: Python<'_>,
        start: Option<Bytes>,
        stop: Option<Bytes>,
        prefix: Option<Bytes>,
        reverse: bool,
        family: Option<&Family>,
    ) -> PyResult<Entries> {
        self.scan(py, family, Scan::new(start, stop, prefix, reverse), Shows::Keys)
    }

    #[pyo3(signature = (key, *, shared=false, family=None))]
    fn lock(&self, py: Python<'_>, key: Bytes, shared: bool, family: Option<&Family>) -> PyResult<()> {
        let mode = if shared { LockMode::Shared } else { LockMode::Exclusive };
        self.on(py, family, |txn, family| txn.lock(family, &key, mode))
    }

    fn set_savepoint(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |txn| txn.set_savepoint(name))
    }

    fn rollback_to_savepoint(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |txn| txn.rollback_to_savepoint(name))
    }

    fn release_savepoint(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.run(py, |txn| txn.release_savepoint(name))
    }

    fn refresh_snapshot(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, kingtide::Transaction::refresh_snapshot)
    }

    fn commit(&self, py: Python<'_>) -> PyResult<u64> {
        self.end(py, kingtide::Transaction::commit)
    }

    fn prepare(&self, py: Python<'_>, xid: Bytes) -> PyResult<()> {
        self.end(py, |txn| txn.prepare(&xid))
    }

    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, kingtide::Transaction::rollback)
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.held(py, |held| {
            held.txn.reset()?;
            held.ended = false;
            Ok(())
        })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.run(py, |txn| Ok(txn.len()))
    }

    fn __bool__(&self) -> bool {
        true // one that wrote nothing is still a transaction
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Commits, or rolls back after an exception, unless the block ended the transaction, and releases it.
    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let failed = failed(exception)?;
        let taken = py.detach(|| self.txn.lock().unwrap_or_else(PoisonError::into_inner).take());
        let Some(Held { mut txn, ended }) = taken else { return Ok(()) };
        blocking(py, move || match (ended, failed) {
            (true, _) => Ok(()),
            (false, true) => txn.rollback(),
            (false, false) => txn.commit().map(drop),
        })
    }
}
