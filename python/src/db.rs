//! The database.

use crate::batch::Batch;
use crate::convert::{Bytes, durability, isolation, options, order, seconds, text};
use crate::error::{blocking, raise};
use crate::family::{Family, family_options};
use crate::snapshot::Snapshot;
use crate::transaction::Transaction;
use kingtide::{Options, TransactionOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::path::PathBuf;

/// The version of the engine and of this package.
#[pyfunction]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// An open database, and its default family.
#[pyclass(frozen, subclass, extends = Family, module = "kingtide")]
pub struct Db(kingtide::Db);

impl Db {
    /// Runs what cannot fail, unless this is a forked child, where it would answer that there is nothing.
    fn here<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&kingtide::Db) -> T + Send) -> PyResult<T> {
        blocking(py, || {
            self.0.check_process()?;
            Ok(work(&self.0))
        })
    }
}

#[pymethods]
impl Db {
    #[new]
    #[pyo3(signature = (path, *, read_only=false, order=None, **options_given))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        read_only: bool,
        order: Option<&str>,
        options_given: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyClassInitializer<Db>> {
        let mut how = Options::new().order(self::order(order).map_err(|e| raise(py, &e))?);
        options(options_given, &mut |name, value| how.set(name, value))?;
        let db = blocking(py, || {
            if read_only { kingtide::Db::open_read_only(&path, how) } else { kingtide::Db::open(&path, how) }
        })?;
        let family = Family(db.default_family().clone());
        Ok(PyClassInitializer::from(family).add_subclass(Db(db)))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, || self.0.close())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    #[getter]
    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    #[getter]
    fn latest_sequence(&self) -> u64 {
        self.0.latest_sequence()
    }

    fn families(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.here(py, kingtide::Db::families)
    }

    fn family(&self, py: Python<'_>, name: &str) -> PyResult<Family> {
        blocking(py, || self.0.family(name).map(Family))
    }

    #[pyo3(signature = (name, *, order=None, **options_given))]
    fn create_family(
        &self,
        py: Python<'_>,
        name: &str,
        order: Option<&str>,
        options_given: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Family> {
        let options = family_options(options_given)?;
        blocking(py, || self.0.create_family_ordered(name, options, self::order(order)?).map(Family))
    }

    #[pyo3(signature = (name, **options_given))]
    fn get_or_create_family(
        &self,
        py: Python<'_>,
        name: &str,
        options_given: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Family> {
        let options = family_options(options_given)?;
        blocking(py, || self.0.get_or_create_family(name, options).map(Family))
    }

    /// Makes a family with the contents of another.
    fn clone_family(&self, py: Python<'_>, source: &str, name: &str) -> PyResult<Family> {
        blocking(py, || self.0.clone_family(source, name).map(Family))
    }

    fn drop_family(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        blocking(py, || self.0.drop_family(name))
    }

    fn rename_family(&self, py: Python<'_>, old: &str, new: &str) -> PyResult<()> {
        blocking(py, || self.0.rename_family(old, new))
    }

    #[pyo3(signature = (*, durability=None, no_wait=false))]
    fn batch(&self, durability: Option<&str>, no_wait: bool) -> PyResult<Batch> {
        Batch::new(self.0.clone(), durability, no_wait)
    }

    fn snapshot(&self, py: Python<'_>) -> PyResult<Snapshot> {
        self.here(py, kingtide::Db::snapshot).map(Snapshot::new)
    }

    fn create_named_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<Snapshot> {
        blocking(py, || self.0.create_named_snapshot(name)).map(Snapshot::new)
    }

    fn named_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<Snapshot> {
        blocking(py, || self.0.named_snapshot(name)).map(Snapshot::new)
    }

    fn snapshot_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.here(py, |db| db.named_snapshots().into_iter().map(|(name, _)| name).collect())
    }

    fn drop_named_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        blocking(py, || self.0.drop_named_snapshot(name))
    }

    #[pyo3(signature = (isolation="snapshot", *, locking=false, read_only=false, timeout=None, lock_timeout=None, durability=None, snapshot=None))]
    #[allow(clippy::too_many_arguments)] // keyword arguments of Python
    fn begin(
        &self,
        py: Python<'_>,
        isolation: &str,
        locking: bool,
        read_only: bool,
        timeout: Option<f64>,
        lock_timeout: Option<f64>,
        durability: Option<&str>,
        snapshot: Option<&Snapshot>,
    ) -> PyResult<Transaction> {
        let options = TransactionOptions::new(self::isolation(isolation)?)
            .locking(locking)
            .read_only(read_only)
            .timeout(timeout.map(seconds).transpose()?)
            .lock_timeout(lock_timeout.map(seconds).transpose()?)
            .durability(self::durability(durability)?)
            .snapshot(snapshot.map(Snapshot::get).transpose()?);
        Transaction::begin(py, &self.0, options)
    }

    fn prepared<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let all = self.here(py, kingtide::Db::recover_prepared)?;
        Ok(all.iter().map(|p| PyBytes::new(py, &p.xid)).collect())
    }

    fn commit_prepared(&self, py: Python<'_>, xid: Bytes) -> PyResult<u64> {
        blocking(py, || self.0.commit_prepared(&xid))
    }

    fn rollback_prepared(&self, py: Python<'_>, xid: Bytes) -> PyResult<()> {
        blocking(py, || self.0.rollback_prepared(&xid))
    }

    fn set_db_option(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = text(value)?;
        blocking(py, || self.0.set_option(name, &value))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, || self.0.sync())
    }

    fn flush_all(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, || self.0.flush())
    }

    fn wait_for_background(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, || self.0.wait_for_background())
    }

    fn catch_up(&self, py: Python<'_>) -> PyResult<u64> {
        blocking(py, || self.0.try_catch_up())
    }

    fn checkpoint(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        blocking(py, || self.0.checkpoint(path).map(drop))
    }

    fn prometheus(&self, py: Python<'_>) -> PyResult<String> {
        self.here(py, kingtide::Db::prometheus)
    }
}
