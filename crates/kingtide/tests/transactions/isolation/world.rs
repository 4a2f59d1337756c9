//! A small database, the transactions of one level in it, and what becomes of them.

use kingtide::vfs::MemFs;
use kingtide::{
    ColumnFamily, Db, Error, ErrorKind, FamilyOptions, Isolation, Options, Transaction, TransactionOptions,
};
use kingtide_base::hash::mix64;
use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

/// What became of an anomaly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It happened.
    Seen,
    /// Writes were held back until their transaction committed, so no reader saw any of them before, nor only some.
    Held,
    /// All reads were of one moment.
    View,
    /// A transaction was refused, because what it relied on had been changed by another.
    Refused,
    /// A transaction was refused a lock, for which it would have waited if it had had time to.
    Locked,
}

/// The end of a scenario: early, by `?`, when a transaction was refused something.
pub type Verdict = Result<Outcome, Outcome>;

/// An isolation level, optimistic or locking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    pub level: Isolation,
    pub locking: bool,
}

impl Mode {
    pub const fn new(level: Isolation, locking: bool) -> Mode {
        Mode { level, locking }
    }

    /// All ten.
    pub fn all() -> impl Iterator<Item = Mode> {
        Isolation::ALL.into_iter().flat_map(|level| [false, true].map(|locking| Mode { level, locking }))
    }

    pub fn options(self) -> TransactionOptions {
        let lock_timeout = Some(Duration::ZERO);
        TransactionOptions::new(self.level).locking(self.locking).lock_timeout(lock_timeout)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.level, if self.locking { "locking" } else { "optimistic" })
    }
}

/// What happens to the data between the steps of the transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// It stays in the memtable.
    Memory,
    /// It is flushed to a table of its own.
    Flushed,
    /// It is flushed and merged to the deepest level.
    Compacted,
    /// Other writes fill memtables, so that they are flushed and merged by themselves.
    Tiny,
}

impl Storage {
    pub const ALL: [Storage; 4] = [Storage::Memory, Storage::Flushed, Storage::Compacted, Storage::Tiny];
}

/// The keys that scenarios scan: `"0"..=END`. The filling of [`Storage::Tiny`] lies behind them.
pub const END: &str = "y";

pub struct World {
    pub db: Db,
    pub other: ColumnFamily,
    pub mode: Mode,
    storage: Storage,
    /// What refused transactions wrote, which no read may find.
    refused: RefCell<Vec<(String, i64)>>,
}

pub fn open() -> Db {
    let mut options = Options::new().fs(MemFs::shared()).manual_jobs(true);
    options.set("memtable_size", "64K").unwrap();
    Db::open("/db", options).unwrap()
}

impl World {
    /// Keys 1 and 2 with values 10 and 20, as in every scenario of Hermitage.
    pub fn new(mode: Mode, storage: Storage) -> World {
        let db = open();
        let other = db.create_family("other", FamilyOptions::default()).unwrap();
        db.put("1", "10").unwrap();
        db.put("2", "20").unwrap();
        World { db, other, mode, storage, refused: RefCell::default() }
    }

    pub fn begin(&self) -> Txn<'_> {
        self.begin_as(self.mode)
    }

    /// A locking transaction begins with its first operation: here it has read an unrelated key.
    pub fn begin_as(&self, mode: Mode) -> Txn<'_> {
        let mut inner = self.db.begin_with(mode.options()).unwrap();
        if mode.locking && mode.level < Isolation::Serializable {
            assert_eq!(inner.get(&self.other, b"begun").unwrap().as_deref(), None);
        }
        Txn { world: self, inner, written: Vec::new() }
    }

    /// What happens between two steps.
    pub fn between(&self) {
        match self.storage {
            Storage::Memory => {}
            Storage::Flushed => self.db.flush().unwrap(),
            Storage::Compacted => {
                self.other.compact_range(..).unwrap();
                self.db.compact().unwrap();
            }
            Storage::Tiny => {
                // Nothing that could be compressed.
                let filling: Vec<u8> = (0..3_000u64).flat_map(|i| mix64(i).to_le_bytes()).collect();
                for family in [self.db.default_family(), &self.other] {
                    for i in 0..3 {
                        family.put(format!("z filling {i}"), &filling).unwrap();
                    }
                }
                while self.db.run_one_job().unwrap() {}
            }
        }
    }

    /// What a reader outside of any transaction finds.
    pub fn committed(&self, key: &str) -> Option<i64> {
        self.db.get(key).unwrap().map(|v| number(&v))
    }

    /// Nothing of a transaction that was refused is there, and nothing is left running.
    pub fn check_after(&self) {
        for (key, value) in self.refused.borrow().iter() {
            assert_ne!(self.committed(key), Some(*value), "a refused transaction left {key}={value}");
        }
        assert!(self.db.transactions().is_empty());
        assert!(self.db.locks().is_empty(), "{:?}", self.db.locks());
    }
}

pub fn number(text: &[u8]) -> i64 {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

/// How a transaction was refused. Anything but a conflict is a failure of the test.
#[track_caller]
pub fn refusal(e: &Error) -> Outcome {
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    assert!(e.is_transient_conflict());
    let text = e.to_string();
    match (text.contains("locked by"), text.contains("changed")) {
        (true, false) => Outcome::Locked,
        (false, true) => Outcome::Refused,
        _ => panic!("a conflict that does not say why: {text}"),
    }
}

/// A transaction whose steps are refused with an [`Outcome`].
pub struct Txn<'w> {
    pub world: &'w World,
    pub inner: Transaction,
    written: Vec<(String, i64)>,
}

impl Txn<'_> {
    /// A step: what the storage does, and then `act`.
    #[track_caller]
    pub fn step<T>(
        &mut self,
        act: impl FnOnce(&mut Transaction, &ColumnFamily) -> kingtide::Result<T>,
    ) -> Result<T, Outcome> {
        self.world.between();
        act(&mut self.inner, self.world.db.default_family()).map_err(|e| {
            self.world.refused.borrow_mut().append(&mut self.written);
            refusal(&e)
        })
    }

    #[track_caller]
    pub fn get(&mut self, key: &str) -> Result<Option<i64>, Outcome> {
        self.step(|t, f| Ok(t.get(f, key.as_bytes())?.map(|v| number(&v))))
    }

    /// A key that must be there.
    #[track_caller]
    pub fn read(&mut self, key: &str) -> Result<i64, Outcome> {
        self.get(key).map(|v| v.unwrap())
    }

    #[track_caller]
    pub fn read_for_update(&mut self, key: &str) -> Result<i64, Outcome> {
        self.step(|t, f| Ok(number(&t.get_for_update(f, key.as_bytes())?.unwrap())))
    }

    #[track_caller]
    pub fn read_for_share(&mut self, key: &str) -> Result<i64, Outcome> {
        self.step(|t, f| Ok(number(&t.get_for_share(f, key.as_bytes())?.unwrap())))
    }

    #[track_caller]
    pub fn put(&mut self, key: &str, value: i64) -> Result<(), Outcome> {
        self.written.push((key.to_owned(), value));
        self.step(|t, f| t.put(f, key.as_bytes(), value.to_string().as_bytes()))
    }

    #[track_caller]
    pub fn delete(&mut self, key: &str) -> Result<(), Outcome> {
        self.step(|t, f| t.delete(f, key.as_bytes()))
    }

    /// The entries whose values satisfy a predicate, found by a scan over all keys.
    #[track_caller]
    pub fn select(&mut self, predicate: impl Fn(i64) -> bool) -> Result<Vec<(String, i64)>, Outcome> {
        let all = self.step(|t, f| {
            let mut it = t.cursor(f, &b"0"[..]..=END.as_bytes())?;
            it.seek_to_first();
            let mut all = Vec::new();
            while it.valid() {
                let (key, value) = it.entry()?;
                all.push((String::from_utf8(key.to_vec()).unwrap(), number(value)));
                it.next();
            }
            it.status().map(|()| all)
        })?;
        Ok(all.into_iter().filter(|(_, v)| predicate(*v)).collect())
    }

    #[track_caller]
    pub fn commit(&mut self) -> Result<(), Outcome> {
        self.step(|t, _| t.commit().map(drop))
    }

    #[track_caller]
    pub fn rollback(&mut self) {
        self.world.between();
        self.inner.rollback().unwrap();
    }
}
