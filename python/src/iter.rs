//! Iterators. Entries are fetched in runs that grow, detached from the interpreter, and handed out one by one.

use crate::error::blocking;
use kingtide::{Cursor, Error, Result, TransactionCursor};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// The longest run, in entries and in bytes.
const LONGEST: (usize, usize) = (256, 256 * 1024);

/// What each step returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    Keys,
    Values,
    Items,
}

pub enum Source {
    Family(Cursor),
    Transaction(TransactionCursor),
}

/// Calls the same method of either.
macro_rules! on {
    ($source:expr, $it:ident => $call:expr) => {
        match $source {
            Source::Family($it) => $call,
            Source::Transaction($it) => $call,
        }
    };
}

struct Walk {
    source: Source,
    run: VecDeque<(Vec<u8>, Vec<u8>)>,
    begun: bool,
    ended: bool,
    failed: Option<Error>,
    next_run: usize,
}

/// An iterator over what a range held when it was made.
#[pyclass(frozen, module = "kingtide")]
pub struct Entries {
    walk: Mutex<Walk>,
    backward: bool,
    shows: Shows,
}

impl Entries {
    pub fn new(source: Source, backward: bool, shows: Shows) -> Entries {
        let walk = Walk { source, run: VecDeque::new(), begun: false, ended: false, failed: None, next_run: 1 };
        Entries { walk: Mutex::new(walk), backward, shows }
    }

    fn next(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let mut walk = self.walk.lock().unwrap_or_else(PoisonError::into_inner);
        if walk.run.is_empty() && !walk.ended {
            walk.failed = walk.fetch(self.backward, self.shows).err();
        }
        match walk.run.pop_front() {
            Some(entry) => Ok(Some(entry)), // what came before an error is shown before it
            None => walk.failed.take().map_or(Ok(None), Err),
        }
    }
}

impl Walk {
    fn step(&mut self, backward: bool) -> Result<bool> {
        match (std::mem::replace(&mut self.begun, true), backward) {
            (false, false) => on!(&mut self.source, it => it.seek_to_first()),
            (false, true) => on!(&mut self.source, it => it.seek_to_last()),
            (true, false) => on!(&mut self.source, it => it.next()),
            (true, true) => on!(&mut self.source, it => it.prev()),
        }
        on!(&self.source, it => it.status().map(|()| it.valid()))
    }

    fn fetch(&mut self, backward: bool, shows: Shows) -> Result<()> {
        let mut bytes = 0;
        self.ended = true; // unless this comes to its end
        while self.run.len() < self.next_run && bytes < LONGEST.1 {
            if !self.step(backward)? {
                return Ok(());
            }
            let key = on!(&self.source, it => it.key().to_vec());
            let value =
                if shows == Shows::Keys { Vec::new() } else { on!(&mut self.source, it => it.value()?.to_vec()) };
            bytes += key.len() + value.len();
            self.run.push_back((key, value));
        }
        self.ended = false;
        // A serializable transaction is checked for all that was read, so it reads no further than its user.
        if matches!(self.source, Source::Family(_)) {
            self.next_run = (2 * self.next_run).min(LONGEST.0);
        }
        Ok(())
    }
}

#[pymethods]
impl Entries {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        // What is there already is taken without detaching, unless another thread is fetching.
        let ready = self.walk.try_lock().ok().and_then(|mut walk| walk.run.pop_front());
        let entry = match ready {
            Some(entry) => Some(entry),
            None => blocking(py, || self.next())?,
        };
        let Some((key, value)) = entry else { return Ok(None) };
        match self.shows {
            Shows::Keys => PyBytes::new(py, &key).into_py_any(py),
            Shows::Values => PyBytes::new(py, &value).into_py_any(py),
            Shows::Items => (PyBytes::new(py, &key), PyBytes::new(py, &value)).into_py_any(py),
        }
        .map(Some)
    }
}
