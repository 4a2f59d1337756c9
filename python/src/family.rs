//! Column families: reading and writing outside of transactions.

use crate::convert::{Bytes, Range, options, seconds, slice, text};
use crate::error::{blocking, raise};
use crate::iter::{Entries, Shows, Source};
use crate::reader::Reader;
use crate::snapshot::Snapshot;
use crate::value::Value;
use crate::writer::{StagedValueObject, Writer};
use kingtide::{ColumnFamily, Error, ErrorKind, PinnedValue, ReadOptions};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice, PyTuple};
use std::ops::Bound as End;

/// A handle of a column family. `Db` is one too, of the default family.
#[pyclass(frozen, subclass, module = "kingtide")]
pub struct Family(pub ColumnFamily);

/// What an iterator shows, from the keyword arguments that all verbs of iteration take.
#[derive(Default)]
pub struct Scan {
    pub range: Option<Range>,
    pub prefix: Option<Vec<u8>>,
    pub backward: bool,
}

impl Scan {
    pub fn new(start: Option<Bytes>, stop: Option<Bytes>, prefix: Option<Bytes>, backward: bool) -> Scan {
        let own = |key: Option<Bytes>, of: fn(Vec<u8>) -> End<Vec<u8>>| key.map_or(End::Unbounded, |k| of(k.to_vec()));
        let range = (own(start, End::Included), own(stop, End::Excluded));
        Scan { range: Some(range), prefix: prefix.map(|p| p.to_vec()), backward }
    }

    pub fn options(self, snapshot: Option<&kingtide::Snapshot>) -> ReadOptions<'_> {
        let (lower, upper) = self.range.unwrap_or((End::Unbounded, End::Unbounded));
        let mut options = ReadOptions::new().snapshot(snapshot);
        (options.lower, options.upper, options.prefix) = (lower, upper, self.prefix);
        options
    }
}

impl Family {
    /// The value of a key, now or at a snapshot.
    fn read(&self, py: Python<'_>, key: &Bytes, snapshot: Option<&Snapshot>) -> PyResult<Option<PinnedValue>> {
        let snapshot = snapshot.map(Snapshot::get).transpose()?;
        blocking(py, || match &snapshot {
            Some(s) => s.of(&self.0).get(key),
            None => self.0.get(key),
        })
    }

    fn scan(&self, py: Python<'_>, scan: Scan, snapshot: Option<&Snapshot>, shows: Shows) -> PyResult<Entries> {
        let (snapshot, backward) = (snapshot.map(Snapshot::get).transpose()?, scan.backward);
        let cursor = blocking(py, || self.0.cursor_with(scan.options(snapshot.as_ref())))?;
        Ok(Entries::new(Source::Family(cursor), backward, shows))
    }
}

/// A value as `bytes`.
pub fn copied(py: Python<'_>, value: Option<PinnedValue>) -> Option<Bound<'_, PyBytes>> {
    value.map(|v| PyBytes::new(py, &v))
}

#[pymethods]
impl Family {
    #[getter]
    fn name(&self) -> String {
        self.0.name()
    }

    #[getter]
    fn order(&self) -> String {
        self.0.order().name().to_owned()
    }

    #[pyo3(signature = (key, default=None, *, snapshot=None))]
    fn get(
        &self,
        py: Python<'_>,
        key: Bytes,
        default: Option<Py<PyAny>>,
        snapshot: Option<&Snapshot>,
    ) -> PyResult<Option<Py<PyAny>>> {
        match copied(py, self.read(py, &key, snapshot)?) {
            Some(value) => Ok(Some(value.into_any().unbind())),
            None => Ok(default),
        }
    }

    #[pyo3(signature = (key, *, snapshot=None))]
    fn get_view(&self, py: Python<'_>, key: Bytes, snapshot: Option<&Snapshot>) -> PyResult<Option<Value>> {
        Ok(self.read(py, &key, snapshot)?.map(Value))
    }

    fn __getitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        if let Ok(asked) = key.cast::<PySlice>() {
            let (range, backward) = slice(asked)?;
            let scan = Scan { range: Some(range), prefix: None, backward };
            return self.scan(py, scan, None, Shows::Items)?.into_py_any(py);
        }
        match self.read(py, &key.extract()?, None)? {
            Some(value) => PyBytes::new(py, &value).into_py_any(py),
            None => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    fn __setitem__(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<()> {
        blocking(py, || self.0.put(&key, &value).map(drop))
    }

    fn __delitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(asked) = key.cast::<PySlice>() {
            let (range, _) = slice(asked)?;
            return blocking(py, || self.0.delete_range(range).map(drop));
        }
        let key: Bytes = key.extract()?;
        blocking(py, || self.0.delete(&key).map(drop))
    }

    fn __contains__(&self, py: Python<'_>, key: Bytes) -> PyResult<bool> {
        blocking(py, || self.0.contains_key(&key))
    }

    #[pyo3(signature = (key, *, snapshot=None))]
    fn contains(&self, py: Python<'_>, key: Bytes, snapshot: Option<&Snapshot>) -> PyResult<bool> {
        let snapshot = snapshot.map(Snapshot::get).transpose()?;
        blocking(py, || match &snapshot {
            Some(s) => kingtide::Read::contains_key(&s.of(&self.0), &key),
            None => self.0.contains_key(&key),
        })
    }

    #[pyo3(signature = (key, value, *, ttl=None))]
    fn put(&self, py: Python<'_>, key: Bytes, value: Bytes, ttl: Option<f64>) -> PyResult<()> {
        let ttl = ttl.map(seconds).transpose()?;
        blocking(py, || match ttl {
            Some(ttl) => self.0.put_ttl(&key, &value, ttl).map(drop),
            None => self.0.put(&key, &value).map(drop),
        })
    }

    fn delete(&self, py: Python<'_>, key: Bytes) -> PyResult<()> {
        blocking(py, || self.0.delete(&key).map(drop))
    }

    fn single_delete(&self, py: Python<'_>, key: Bytes) -> PyResult<()> {
        blocking(py, || self.0.single_delete(&key).map(drop))
    }

    fn delete_range(&self, py: Python<'_>, start: Bytes, stop: Bytes) -> PyResult<()> {
        blocking(py, || self.0.delete_range(&*start..&*stop).map(drop))
    }

    fn delete_prefix(&self, py: Python<'_>, prefix: Bytes) -> PyResult<()> {
        blocking(py, || self.0.delete_prefix(&prefix).map(drop))
    }

    #[pyo3(signature = (keys, *, snapshot=None))]
    fn multi_get<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bytes>,
        snapshot: Option<&Snapshot>,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let snapshot = snapshot.map(Snapshot::get).transpose()?;
        let values: Vec<Option<PinnedValue>> = blocking(py, || {
            let values = match &snapshot {
                Some(s) => kingtide::Read::multi_get(&s.of(&self.0), &keys),
                None => self.0.multi_get(&keys),
            };
            values.into_iter().collect()
        })?;
        Ok(values.into_iter().map(|v| copied(py, v)).collect())
    }

    /// Returns whether it was replaced, and the value that was there instead.
    fn compare_and_swap<'py>(
        &self,
        py: Python<'py>,
        key: Bytes,
        expected: Option<Bytes>,
        desired: Option<Bytes>,
    ) -> PyResult<(bool, Option<Bound<'py, PyBytes>>)> {
        let result = blocking(py, || self.0.compare_and_swap(&key, expected.as_deref(), desired.as_deref()))?;
        Ok(match result {
            Ok(()) => (true, None),
            Err(found) => (false, copied(py, found)),
        })
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Entries> {
        self.scan(py, Scan::default(), None, Shows::Keys)
    }

    fn __reversed__(&self, py: Python<'_>) -> PyResult<Entries> {
        self.scan(py, Scan { backward: true, ..Scan::default() }, None, Shows::Keys)
    }

    #[pyo3(signature = (start=None, stop=None, *, prefix=None, reverse=false, snapshot=None))]
    fn items(
        &self,
        py: Python<'_>,
        start: Option<Bytes>,
        stop: Option<Bytes>,
        prefix: Option<Bytes>,
        reverse: bool,
        snapshot: Option<&Snapshot>,
    ) -> PyResult<Entries> {
        self.scan(py, Scan::new(start, stop, prefix, reverse), snapshot, Shows::Items)
    }

    #[pyo3(signature = (start=None, stop=None, *, prefix=None, reverse=false, snapshot=None))]
    fn keys(
        &self,
        py: Python<'_>,
        start: Option<Bytes>,
        stop: Option<Bytes>,
        prefix: Option<Bytes>,
        reverse: bool,
        snapshot: Option<&Snapshot>,
    ) -> PyResult<Entries> {
        self.scan(py, Scan::new(start, stop, prefix, reverse), snapshot, Shows::Keys)
    }

    #[pyo3(signature = (start=None, stop=None, *, prefix=None, reverse=false, snapshot=None))]
    fn values(
        &self,
        py: Python<'_>,
        start: Option<Bytes>,
        stop: Option<Bytes>,
        prefix: Option<Bytes>,
        reverse: bool,
        snapshot: Option<&Snapshot>,
    ) -> PyResult<Entries> {
        self.scan(py, Scan::new(start, stop, prefix, reverse), snapshot, Shows::Values)
    }

    fn writer(&self, py: Python<'_>) -> PyResult<Writer> {
        blocking(py, || self.0.value_writer()).map(Writer::new)
    }

    fn put_staged(&self, py: Python<'_>, key: Bytes, value: &StagedValueObject) -> PyResult<()> {
        blocking(py, || self.0.put_staged(&key, &value.0).map(drop))
    }

    #[pyo3(signature = (key, *, snapshot=None))]
    fn reader(&self, py: Python<'_>, key: Bytes, snapshot: Option<&Snapshot>) -> PyResult<Option<Reader>> {
        let snapshot = snapshot.map(Snapshot::get).transpose()?;
        let reader = blocking(py, || match &snapshot {
            Some(s) => s.of(&self.0).get_reader(&key),
            None => self.0.get_reader(&key),
        })?;
        Ok(reader.map(Reader::new))
    }

    /// About how many keys there are, from metadata.
    fn estimated_len(&self, py: Python<'_>) -> PyResult<u64> {
        blocking(py, || self.0.range_stats(..).map(|s| s.rows))
    }

    fn option(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        let unknown = || Error::new(ErrorKind::NotFound, format!("no option '{name}' of column families"));
        self.0.options().get(name).ok_or_else(|| raise(py, &unknown()))
    }

    fn set_option(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = text(value)?;
        blocking(py, || self.0.set_option(name, &value))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, || self.0.flush())
    }

    fn compact(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, || self.0.compact())
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        Ok(format!("<kingtide.{} '{}'>", slf.get_type().name()?, slf.get().0.name()))
    }
}

/// Options of a family from keyword arguments.
pub fn family_options(given: Option<&Bound<'_, pyo3::types::PyDict>>) -> PyResult<kingtide::FamilyOptions> {
    let mut all = kingtide::FamilyOptions::default();
    options(given, &mut |name, value| all.set(name, value))?;
    Ok(all)
}

/// The family that a call names, or the default one.
pub fn of<'a>(family: Option<&'a Family>, default: &'a ColumnFamily) -> &'a ColumnFamily {
    family.map_or(default, |f| &f.0)
}

/// What `__exit__` is given: whether the block ended with an exception.
pub fn failed(args: &Bound<'_, PyTuple>) -> PyResult<bool> {
    Ok(!args.get_item(0)?.is_none())
}
