//! Transactions that are retried after conflicts, and atomic updates of single keys, which are built on them.

use super::{Transaction, TransactionOptions};
use crate::api::{ColumnFamily, Db};
use crate::engine::DbInner;
use crate::read::PinnedValue;
use crate::txn::isolation::Isolation;
use kingtide_base::rng::Rng;
use kingtide_base::{Error, ErrorKind, Result};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait before the second attempt; it doubles with every attempt, up to [`TransactOptions::max_wait`].
const FIRST_WAIT: Duration = Duration::from_micros(50);
/// The time limit after an attempt that waited too long, if the caller sets none. One such attempt can take a minute by itself.
const LONGEST_WAITS: Duration = Duration::from_secs(60);

/// How [`Db::transact_with`] runs a transaction, and when it gives up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransactOptions {
    /// How the transaction behaves: serializable and optimistic by default.
    pub transaction: TransactionOptions,
    /// How often it is run at most: 100 times by default.
    pub attempts: NonZeroU32,
    /// The longest wait before an attempt: 10 milliseconds by default. Waits are random, at most 50 microseconds before the
    /// second attempt, and at most twice as long before each further one, up to this.
    pub max_wait: Duration,
    /// No attempt begins when so much time has passed since the first one began. An attempt that has begun is not cut short:
    /// [`TransactionOptions::timeout`] does that. By default (`None`) the limit is a minute after an attempt that waited too long for
    /// a lock (`LockTimeout`) or for memory (`Busy`); after other conflicts there is none.
    pub time_limit: Option<Duration>,
}

impl Default for TransactOptions {
    fn default() -> Self {
        TransactOptions {
            transaction: Isolation::Serializable.into(),
            attempts: NonZeroU32::MIN.saturating_add(99),
            max_wait: Duration::from_millis(10),
            time_limit: None,
        }
    }
}

impl TransactOptions {
    /// The defaults.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::{Isolation, TransactOptions};
    /// use std::time::Duration;
    ///
    /// let patience = TransactOptions::new().attempts(5).max_wait(Duration::from_millis(1));
    /// let options = patience.transaction(Isolation::Snapshot).time_limit(Duration::from_secs(1));
    /// db.transact_with(options, |txn| txn.put(db.default_family(), b"ebb", b"low"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new() -> TransactOptions {
        TransactOptions::default()
    }

    /// Sets how the transaction behaves: [`TransactionOptions`], or an isolation level.
    #[must_use]
    pub fn transaction(mut self, options: impl Into<TransactionOptions>) -> TransactOptions {
        self.transaction = options.into();
        self
    }

    /// Limits how often the transaction is run. 0 counts as 1: it is run once.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> TransactOptions {
        self.attempts = NonZeroU32::new(attempts).unwrap_or(NonZeroU32::MIN);
        self
    }

    /// Limits each wait before an attempt.
    #[must_use]
    pub fn max_wait(mut self, wait: Duration) -> TransactOptions {
        self.max_wait = wait;
        self
    }

    /// Sets the time after which no attempt begins. `None` sets the default: see [`TransactOptions::time_limit`](#structfield.time_limit).
    #[must_use]
    pub fn time_limit(mut self, limit: impl Into<Option<Duration>>) -> TransactOptions {
        self.time_limit = limit.into();
        self
    }
}

impl Db {
    /// Runs `body` in a serializable transaction and commits it. After a conflict with another transaction it runs `body` again from the
    /// beginning, up to 100 times. Returns what `body` returned in the attempt that was committed.
    ///
    /// `body` may run several times, so it should change nothing but the database. An error of its own rolls the transaction
    /// back. Before another attempt the thread waits for a random time: at most 50 microseconds, twice as long each time, and
    /// never more than 10 milliseconds. After an attempt that failed with `LockTimeout` or `Busy`, no other begins once a minute has passed
    /// since the first one began. A commit waits for a flush for a minute. So while no flush can complete, the call takes a minute, or up
    /// to two if flushes stopped completing after it began. [`Db::transact_with`] takes other limits.
    ///
    /// ```
    /// use kingtide::{Db, Options};
    /// # let dir = std::env::temp_dir().join(format!("kingtide-doc-transact-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// let db = Db::open(&dir, Options::default())?;
    /// let accounts = db.default_family();
    /// db.put("ann", 100u64.to_le_bytes())?;
    ///
    /// let left = db.transact(|txn| {
    ///     let balance = txn.get(accounts, b"ann")?.and_then(|v| v.first_chunk().copied()).map_or(0, u64::from_le_bytes);
    ///     let left = balance.checked_sub(30).ok_or_else(|| kingtide::Error::invalid("ann has too little"))?;
    ///     txn.put(accounts, b"ann", &left.to_le_bytes())?;
    ///     txn.put(accounts, b"ben", &30u64.to_le_bytes())?;
    ///     Ok(left)
    /// })?;
    /// assert_eq!(left, 70);
    /// # db.close()?;
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # Ok::<(), kingtide::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `body`, of [`Db::begin`] and of [`Transaction::commit`]; the error of the last attempt when a limit is reached.
    pub fn transact<T>(&self, body: impl FnMut(&mut Transaction) -> Result<T>) -> Result<T> {
        self.transact_with(TransactOptions::default(), body)
    }

    /// Does what [`Db::transact`] does, with options for the transaction and limits of the retries. [`TransactOptions::new`] has an example.
    ///
    /// # Errors
    /// As [`Db::transact`].
    pub fn transact_with<T>(
        &self,
        options: TransactOptions,
        body: impl FnMut(&mut Transaction) -> Result<T>,
    ) -> Result<T> {
        run(self.inner(), options, body, Transaction::commit).map(|(value, _)| value)
    }
}

/// Runs `body` until `commit` succeeds. Returns what both of them returned.
pub(crate) fn run<T, C>(
    db: &Arc<DbInner>,
    options: TransactOptions,
    body: impl FnMut(&mut Transaction) -> Result<T>,
    commit: impl Fn(&mut Transaction) -> Result<C>,
) -> Result<(T, C)> {
    run_waiting(db, options, body, commit, Error::is_transient_conflict, || Ok(()))
}

/// Whether an attempt failed because it waited too long, and not because of what another transaction did. The next one may wait as long.
fn waited_too_long(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Busy | ErrorKind::LockTimeout)
}

/// Like [`run`], but tries again after the errors for which `is_transient` is true, and also calls `wait_for` before each further attempt.
/// An error of `wait_for` is returned.
fn run_waiting<T, C>(
    db: &Arc<DbInner>,
    options: TransactOptions,
    mut body: impl FnMut(&mut Transaction) -> Result<T>,
    commit: impl Fn(&mut Transaction) -> Result<C>,
    is_transient: impl Fn(&Error) -> bool,
    mut wait_for: impl FnMut() -> Result<()>,
) -> Result<(T, C)> {
    let mut txn = Transaction::begin(db.clone(), options.transaction)?;
    // A transaction's id is its own, so two that met do not wait for equally long.
    let mut rng = Rng::new(txn.id());
    let mut longest = FIRST_WAIT.min(options.max_wait);
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let began = db.clock.monotonic_ns();
    let limit = |e: &Error| options.time_limit.or_else(|| waited_too_long(e).then_some(LONGEST_WAITS));
    let mut attempt = 1;
    loop {
        let error = match body(&mut txn).and_then(|value| commit(&mut txn).map(|c| (value, c))) {
            Ok(value) => return Ok(value),
            Err(e) => e,
        };
        txn.rollback()?; // before the wait: others may want its locks
        if !is_transient(&error) {
            return Err(error);
        }
        let wait = rng.below(nanos(longest).max(1));
        let next = db.clock.monotonic_ns().saturating_sub(began).saturating_add(wait);
        let out_of_time = limit(&error).is_some_and(|limit| next >= nanos(limit));
        if out_of_time || attempt == options.attempts.get() {
            return Err(error.context(format!("given up after {attempt} attempts")));
        }
        attempt += 1;
        wait_for()?;
        db.clock.sleep(Duration::from_nanos(wait));
        longest = longest.saturating_mul(2).min(options.max_wait);
        txn.reset()?;
    }
}

/// Updates one key, and tries again after each conflict until it commits: of updates that conflict, one always succeeds. A
/// transaction may keep the key locked for any length of time, so the update waits for such locks as a put does. `Busy`, after a
/// minute in which no flush completed, is returned, as a put returns it: the flush may be stuck for ever.
fn update_key<T>(family: &ColumnFamily, key: &[u8], update: impl FnMut(&mut Transaction) -> Result<T>) -> Result<T> {
    let options = TransactOptions::new().transaction(Isolation::Snapshot).attempts(u32::MAX);
    let mut waited = Duration::ZERO;
    let wait_for = || family.db.wait_for_lock(family.inner(), key, &mut waited);
    let is_conflict = |e: &Error| e.is_transient_conflict() && e.kind() != ErrorKind::Busy;
    run_waiting(&family.db, options, update, Transaction::commit, is_conflict, wait_for).map(|(value, _)| value)
}

impl ColumnFamily {
    /// Replaces a key's value by what `update` returns, atomically: no other write comes in between. `update` gets the value, or `None` if there
    /// is none, and returns the new one, or `None` to delete the key. Returns the value that was replaced. `update` runs again if another commit
    /// came first.
    ///
    /// ```
    /// use kingtide::{Db, Options};
    /// # let dir = std::env::temp_dir().join(format!("kingtide-doc-update-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// let db = Db::open(&dir, Options::default())?;
    /// let visits = db.default_family();
    /// for _ in 0..3 {
    ///     visits.fetch_update("page", |n| {
    ///         let n = n.and_then(|v| v.first_chunk().copied()).map_or(0, u64::from_le_bytes);
    ///         Some((n + 1).to_le_bytes())
    ///     })?;
    /// }
    /// assert_eq!(visits.get("page")?.as_deref(), Some(&3u64.to_le_bytes()[..]));
    /// # db.close()?;
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # Ok::<(), kingtide::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`ColumnFamily::get`] and [`ColumnFamily::put`].
    pub fn fetch_update<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        mut update: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<PinnedValue>> {
        let key = key.as_ref();
        let update = |txn: &mut Transaction| {
            let value = txn.get(self, key)?;
            match update(value.as_deref()) {
                Some(new) => txn.put(self, key, new.as_ref())?,
                None if value.is_some() => txn.delete(self, key)?,
                None => {}
            }
            Ok(value)
        };
        update_key(self, key, update)
    }

    /// Replaces a key's value if it is `expected`, atomically. `None` stands for no value, on both sides. The inner error is the
    /// value that was there instead; nothing was written then.
    ///
    /// ```
    /// use kingtide::{Db, Options};
    /// # let dir = std::env::temp_dir().join(format!("kingtide-doc-swap-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// let db = Db::open(&dir, Options::default())?;
    /// let jobs = db.default_family();
    /// assert!(jobs.compare_and_swap("job", None, Some(b"taken by 1"))?.is_ok());
    /// let other = jobs.compare_and_swap("job", None, Some(b"taken by 2"))?;
    /// assert_eq!(other.unwrap_err().as_deref(), Some(&b"taken by 1"[..]));
    /// # db.close()?;
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # Ok::<(), kingtide::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`ColumnFamily::get`] and [`ColumnFamily::put`].
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Result<(), Option<PinnedValue>>> {
        let key = key.as_ref();
        let swap = |txn: &mut Transaction| {
            let value = txn.get(self, key)?;
            if value.as_deref() != expected {
                return Ok(Err(value));
            }
            match new {
                Some(new) => txn.put(self, key, new)?,
                None if value.is_some() => txn.delete(self, key)?,
                None => {}
            }
            Ok(Ok(()))
        };
        update_key(self, key, swap)
    }
}
