//! Point reads of a transaction.

use super::Transaction;
use super::locking::empty_key;
use crate::api::ColumnFamily;
use crate::family::{ReadContext, View};
use crate::read::newest::{changed_since, own_is_visible, own_value};
use crate::read::{self, PinnedValue, ValueReader};
use crate::txn::isolation::ReadRule;
use crate::txn::slot_of;
use crate::txn::write_set::OwnWrite;
use kingtide_base::{ErrorKind, Result, SeqNo};
use kingtide_locks::LockMode;

/// The answer of a point read for a key that has a value.
trait Answer: Sized {
    /// From a value as `WriteBatch` stores it: the transaction's own, or one that is not committed. `None` if it has expired.
    fn of_write(kind: u8, stored: &[u8], ctx: &ReadContext) -> Result<Option<Self>>;
    fn of_view(view: &View, key: &[u8], seq: SeqNo, ctx: &ReadContext) -> Result<Option<Self>>;
}

impl Answer for PinnedValue {
    fn of_write(kind: u8, stored: &[u8], ctx: &ReadContext) -> Result<Option<PinnedValue>> {
        own_value(kind, stored, ctx)
    }

    fn of_view(view: &View, key: &[u8], seq: SeqNo, ctx: &ReadContext) -> Result<Option<PinnedValue>> {
        read::get(view, key, seq, ctx)
    }
}

impl Answer for ValueReader {
    fn of_write(kind: u8, stored: &[u8], ctx: &ReadContext) -> Result<Option<ValueReader>> {
        Ok(own_value(kind, stored, ctx)?.map(|v| ValueReader::of(v, &ctx.stats)))
    }

    fn of_view(view: &View, key: &[u8], seq: SeqNo, ctx: &ReadContext) -> Result<Option<ValueReader>> {
        read::open_value(view, key, seq, ctx)
    }
}

/// Only that there is a value: no value log is read.
struct Existence;

impl Answer for Existence {
    fn of_write(kind: u8, stored: &[u8], ctx: &ReadContext) -> Result<Option<Existence>> {
        Ok(own_is_visible(kind, stored, ctx)?.then_some(Existence))
    }

    fn of_view(view: &View, key: &[u8], seq: SeqNo, ctx: &ReadContext) -> Result<Option<Existence>> {
        Ok(read::contains(view, key, seq, ctx)?.then_some(Existence))
    }
}

/// What a read-and-remember is for.
#[derive(Clone, Copy)]
enum Purpose {
    Update,
    Share,
}

impl Purpose {
    fn mode(self) -> LockMode {
        match self {
            Purpose::Update => LockMode::Exclusive,
            Purpose::Share => LockMode::Shared,
        }
    }
}

impl Transaction {
    /// Reads a key: the transaction's own write, or what its level lets it see.
    ///
    /// # Errors
    /// `Corruption` with file and offset, `Io`, `Closed`; `Finished`, `Aborted`, `Expired`; when it takes locks on reads,
    /// also as [`Transaction::get_for_share`].
    pub fn get(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<Option<PinnedValue>> {
        self.see(family, key)
    }

    /// Returns whether a key has a value. Like [`Transaction::get`], but reads no value log.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn contains_key(&mut self, family: &ColumnFamily, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.see::<Existence>(family, key.as_ref())?.is_some())
    }

    /// Opens the value of a key to be read in pieces, as [`ColumnFamily::get_reader`] does: the transaction's own write, or what its
    /// level lets it see. A value that is not committed is in memory as a whole. The reader outlives the transaction.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let films = db.default_family();
    /// db.put("film", vec![7; 5_000_000])?;
    /// let mut txn = db.begin(kingtide::Isolation::Snapshot)?;
    /// let mut film = txn.get_reader(films, b"film")?.expect("it was put");
    /// assert_eq!(film.read_range(4_000_000..4_000_003)?, [7; 3]);
    /// txn.put(films, b"film", b"short")?;
    /// let mut own = txn.of(films).get_reader("film")?.expect("it was put");
    /// assert_eq!(own.read_range(0..100)?, b"short");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn get_reader(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<Option<ValueReader>> {
        self.see(family, key)
    }

    fn see<A: Answer>(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<Option<A>> {
        if self.rules.lock_reads && !key.is_empty() {
            return self.get_for(family, key, Purpose::Share);
        }
        self.usable(family)?;
        self.begin_snapshot();
        if let Some(own) = self.own(family, key)? {
            return Ok(own); // written under a lock, if it is a locking transaction
        }
        if self.rules.reads == ReadRule::Uncommitted
            && let Some(answer) = self.uncommitted(family, key)?
        {
            return Ok(answer);
        }
        self.fix_snapshot();
        let (view, seq) = family.inner().acquire_view(|v| v.load(), || Ok(self.read_seq()))?;
        let answer = A::of_view(&view, key, seq, &family.inner().reads)?;
        if self.rules.check_reads {
            self.remember(family, key, seq);
        }
        self.read_holds(family)?;
        Ok(answer)
    }

    /// The view must have been loaded before.
    #[inline]
    pub(super) fn read_seq(&self) -> SeqNo {
        match self.rules.reads {
            ReadRule::Begin => self.snapshot,
            ReadRule::Latest | ReadRule::Uncommitted => self.db.snapshots.visible(),
        }
    }

    /// The transaction's own word on a key: `Some(None)` when it deleted it.
    fn own<A: Answer>(&self, family: &ColumnFamily, key: &[u8]) -> Result<Option<Option<A>>> {
        if self.wrote_nothing() {
            return Ok(None);
        }
        let mut writes = self.shared.writes.lock();
        match writes.get(family.inner(), key) {
            OwnWrite::None => Ok(None),
            OwnWrite::Deleted => Ok(Some(None)),
            OwnWrite::Put(kind, stored) => A::of_write(kind, stored, &family.inner().reads).map(Some),
        }
    }

    /// Returns what some other running transaction wrote to a key. Which one's, when there are several, is not promised, but it is the
    /// one whose write an iterator shows (`Transaction::overlay`): the last of them.
    fn uncommitted<A: Answer>(&self, family: &ColumnFamily, key: &[u8]) -> Result<Option<Option<A>>> {
        for other in self.db.txns.writers(self.id).iter().rev() {
            match other.writes.lock().get(family.inner(), key) {
                OwnWrite::None => {}
                OwnWrite::Deleted => return Ok(Some(None)),
                OwnWrite::Put(kind, stored) => return A::of_write(kind, stored, &family.inner().reads).map(Some),
            }
        }
        Ok(None)
    }

    /// Returns whether a key was committed, a delete included, after the state that the transaction's reads see: then
    /// [`Transaction::get_for_update`] may read another value than [`Transaction::get`]. Always false on levels that read the newest state. The
    /// transaction's own writes do not count. The answer remains right only while the transaction has the key locked.
    /// The call fixes the snapshot: see [`Transaction::get_for_update`].
    ///
    /// Usually takes one load. If a key with the same hash was written after the snapshot, it looks the key up in what was written since.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::{Isolation, TransactionOptions};
    ///
    /// let tides = db.default_family();
    /// db.put("ebb", "low")?;
    /// let mut txn = db.begin_with(TransactionOptions::new(Isolation::RepeatableRead).locking(true))?;
    /// assert_eq!(txn.get(tides, b"ebb")?.as_deref(), Some(&b"low"[..])); // takes the snapshot
    /// db.put("ebb", "lower")?;
    /// assert_eq!(txn.get_for_update(tides, b"ebb")?.as_deref(), Some(&b"lower"[..]));
    /// assert!(txn.changed_since_snapshot(tides, b"ebb")? && !txn.changed_since_snapshot(tides, b"flood")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn changed_since_snapshot(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<bool> {
        self.usable(family)?;
        self.fix_snapshot();
        let f = family.inner();
        let slot = slot_of(f.id(), f.order(), key, f.order().head(key));
        if self.rules.reads != ReadRule::Begin || !self.db.txns.filter.may_have_changed(slot, self.snapshot) {
            return Ok(false);
        }
        let changed = changed_since(&f.view.load(), key, self.snapshot, &f.reads)?;
        self.read_holds(family)?;
        Ok(changed)
    }

    fn remember(&mut self, family: &ColumnFamily, key: &[u8], seq: SeqNo) {
        let f = family.inner();
        self.reads.add_key(f, slot_of(f.id(), f.order(), key, f.order().head(key)), key, seq);
        self.charge();
    }

    /// Reads a key that the transaction is going to write: no other transaction's change of the key comes between this read and the commit.
    ///
    /// A locking transaction takes an exclusive lock; the key need not exist. It reads the newest committed value. At the snapshot level all reads
    /// are of one moment; if the key was changed since, that moment moves to now, because what was read under locks is still the same then. The
    /// moment is fixed, and such a key is a `Conflict`, if the transaction has read anything without a lock or released a lock early, or if its
    /// snapshot was given or asked for. An optimistic transaction that writes anything has the key checked at commit, at every level. One that writes
    /// nothing has it checked below snapshot only, where it reads the newest committed value; at snapshot and above, all that it read is of one moment.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::{Isolation, TransactionOptions};
    ///
    /// let accounts = db.default_family();
    /// db.put("ann", "100")?;
    /// let mut txn = db.begin_with(TransactionOptions::new(Isolation::ReadCommitted).locking(true))?;
    /// let balance = txn.get_for_update(accounts, b"ann")?.expect("it was put"); // no other can change it until the end
    /// assert_eq!(db.locks().len(), 1);
    /// assert_eq!(&balance[..], b"100");
    /// txn.put(accounts, b"ann", b"70")?;
    /// txn.commit()?;
    /// assert_eq!(db.get("ann")?.as_deref(), Some(&b"70"[..]));
    ///
    /// let mut txn = db.begin_with(TransactionOptions::new(Isolation::Snapshot).locking(true))?;
    /// txn.get_for_update(accounts, b"ann")?; // takes the snapshot
    /// db.put("ben", "30")?;
    /// assert_eq!(txn.get_for_update(accounts, b"ben")?.as_deref(), Some(&b"30"[..])); // moves it
    /// txn.get(accounts, b"cleo")?; // fixes it
    /// db.put("dora", "5")?;
    /// assert_eq!(txn.get_for_update(accounts, b"dora").unwrap_err().kind(), kingtide::ErrorKind::Conflict);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`]; `Conflict`; `LockTimeout`, `Deadlock`. After the first two of these it has no lock on the key, unless it had one
    /// before.
    pub fn get_for_update(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<Option<PinnedValue>> {
        self.get_for(family, key, Purpose::Update)
    }

    /// Reads a key that must not change until the commit, although the transaction does not write it. As
    /// [`Transaction::get_for_update`], but with a shared lock.
    ///
    /// # Errors
    /// As [`Transaction::get_for_update`].
    pub fn get_for_share(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<Option<PinnedValue>> {
        self.get_for(family, key, Purpose::Share)
    }

    /// Returns whether a key has a value, like [`Transaction::get_for_update`], with the same locks and checks, but reads no value
    /// log.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::{Isolation, TransactionOptions};
    ///
    /// let films = db.default_family();
    /// db.put("film", vec![7; 5_000_000])?;
    /// let mut txn = db.begin_with(TransactionOptions::new(Isolation::RepeatableRead).locking(true))?;
    /// assert!(txn.contains_for_update(films, b"film")? && !txn.contains_for_share(films, b"book")?);
    /// assert_eq!(db.locks().len(), 2);
    /// assert_eq!(txn.get_reader_for_update(films, b"film")?.map(|film| film.len()), Some(5_000_000));
    /// assert!(txn.get_reader_for_share(films, b"book")?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get_for_update`].
    pub fn contains_for_update(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<bool> {
        Ok(self.get_for::<Existence>(family, key, Purpose::Update)?.is_some())
    }

    /// Does the same with a shared lock. See [`Transaction::get_for_share`].
    ///
    /// # Errors
    /// As [`Transaction::get_for_update`].
    pub fn contains_for_share(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<bool> {
        Ok(self.get_for::<Existence>(family, key, Purpose::Share)?.is_some())
    }

    /// Opens the value that [`Transaction::get_for_update`] returns, to be read in pieces: see [`Transaction::get_reader`].
    ///
    /// # Errors
    /// As [`Transaction::get_for_update`].
    pub fn get_reader_for_update(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<Option<ValueReader>> {
        self.get_for(family, key, Purpose::Update)
    }

    /// Does the same with a shared lock. See [`Transaction::get_for_share`].
    ///
    /// # Errors
    /// As [`Transaction::get_for_update`].
    pub fn get_reader_for_share(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<Option<ValueReader>> {
        self.get_for(family, key, Purpose::Share)
    }

    fn get_for<A: Answer>(&mut self, family: &ColumnFamily, key: &[u8], purpose: Purpose) -> Result<Option<A>> {
        self.usable(family)?;
        if key.is_empty() {
            return Err(empty_key());
        }
        let as_of_begin = self.rules.check_writes && self.rules.reads == ReadRule::Begin;
        if self.options.locking {
            self.lock_key(family, key, purpose.mode())?;
        }
        self.begin_snapshot();
        if as_of_begin {
            self.settle_key(family.inner(), key)?;
        }
        if let Some(own) = self.own(family, key)? {
            return Ok(own);
        }
        if !self.options.locking && self.rules.reads != ReadRule::Begin && self.reads.is_empty() {
            // From here on merges keep the trace of every change, a delete's too, for the check at commit.
            self.db.txns.pin(&self.shared);
        }
        // Before the view, which therefore holds everything up to it. A number taken after it may be that of a commit into a
        // memtable that the view does not know yet: what is read would pass for newer than it is.
        let seen = if as_of_begin { self.snapshot } else { self.db.snapshots.visible() };
        let view = family.inner().view.load();
        let seq = if as_of_begin { self.snapshot } else { self.db.snapshots.visible() };
        let answer = A::of_view(&view, key, seq, &family.inner().reads)?;
        if !self.options.locking {
            self.remember(family, key, seen);
        }
        self.read_holds(family)?;
        Ok(answer)
    }

    /// Reads several keys as [`Transaction::get_for_update`] does, in their order, each with an error of its own: if the lock on one
    /// key is not granted, the others are read nevertheless. A locking transaction locks them in the order of the
    /// family, and reads them as of one moment after that. A deadlock ends the transaction, and is the error of all of them.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::Isolation;
    ///
    /// let tides = db.default_family();
    /// db.put("ebb", "low")?;
    /// let mut txn = db.begin(Isolation::Snapshot)?;
    /// assert!(matches!(txn.multi_get(tides, &["ebb", "flood"])[..], [Ok(Some(_)), Ok(None)]));
    /// assert!(txn.multi_get_for_update(tides, &["ebb", "flood"]).iter().all(Result::is_ok)); // unchanged until the commit
    /// assert!(txn.multi_get_for_share(tides, &["neap"]).iter().all(Result::is_ok));
    /// assert!(txn.get_for_share(tides, b"spring")?.is_none());
    /// txn.put(tides, b"flood", b"rising")?;
    /// txn.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn multi_get_for_update<K: AsRef<[u8]>>(
        &mut self,
        family: &ColumnFamily,
        keys: &[K],
    ) -> Vec<Result<Option<PinnedValue>>> {
        self.multi_get_for(family, keys, Purpose::Update)
    }

    /// Does the same with shared locks. See [`Transaction::get_for_share`].
    pub fn multi_get_for_share<K: AsRef<[u8]>>(
        &mut self,
        family: &ColumnFamily,
        keys: &[K],
    ) -> Vec<Result<Option<PinnedValue>>> {
        self.multi_get_for(family, keys, Purpose::Share)
    }

    fn multi_get_for<K: AsRef<[u8]>>(
        &mut self,
        family: &ColumnFamily,
        keys: &[K],
        purpose: Purpose,
    ) -> Vec<Result<Option<PinnedValue>>> {
        if !self.options.locking {
            return keys.iter().map(|k| self.get_for(family, k.as_ref(), purpose)).collect();
        }
        let as_of_begin = self.rules.check_writes && self.rules.reads == ReadRule::Begin;
        let read = |t: &mut Transaction| {
            t.usable(family)?;
            let locked = t.lock_keys(family, keys, purpose.mode());
            // It ended the transaction: no key is locked any more, whichever it was that met the deadlock.
            if let Some(e) = locked.iter().filter_map(|l| l.as_ref().err()).find(|e| e.kind() == ErrorKind::Deadlock) {
                return Err(e.clone());
            }
            t.begin_snapshot();
            let own = keys.iter().zip(locked).map(|(k, locked)| {
                locked?;
                if as_of_begin {
                    t.settle_key(family.inner(), k.as_ref())?;
                }
                t.own(family, k.as_ref())
            });
            let own = own.collect();
            // Nothing that is locked by now changes any more: what is newest is newest for all of them, and so is what a snapshot
            // has that moved in between.
            t.committed(family, keys, own, !as_of_begin)
        };
        read(self).unwrap_or_else(|e| keys.iter().map(|_| Err(e.clone())).collect())
    }

    /// Reads several keys, in their order, each with an error of its own: as of one moment, except at the read-uncommitted level and where reads
    /// take locks: each key is then read by itself.
    pub fn multi_get<K: AsRef<[u8]>>(&mut self, family: &ColumnFamily, keys: &[K]) -> Vec<Result<Option<PinnedValue>>> {
        if self.rules.lock_reads || self.rules.reads == ReadRule::Uncommitted {
            return keys.iter().map(|k| self.get(family, k.as_ref())).collect();
        }
        match self.usable(family).and_then(|()| self.multi_get_now(family, keys)) {
            Ok(values) => values,
            Err(e) => keys.iter().map(|_| Err(e.clone())).collect(),
        }
    }

    fn multi_get_now<K: AsRef<[u8]>>(
        &mut self,
        family: &ColumnFamily,
        keys: &[K],
    ) -> Result<Vec<Result<Option<PinnedValue>>>> {
        self.begin_snapshot();
        let own: Vec<_> = match self.is_empty() {
            true => keys.iter().map(|_| Ok(None)).collect(),
            false => keys.iter().map(|k| self.own(family, k.as_ref())).collect(),
        };
        if own.iter().any(|own| matches!(own, Ok(None))) {
            self.fix_snapshot();
        }
        self.committed(family, keys, own, false)
    }

    /// Fills in, for the keys on which the transaction has no word of its own, what is committed: the newest, or as its
    /// level reads.
    fn committed<K: AsRef<[u8]>>(
        &mut self,
        family: &ColumnFamily,
        keys: &[K],
        own: Vec<Result<Option<Option<PinnedValue>>>>,
        newest: bool,
    ) -> Result<Vec<Result<Option<PinnedValue>>>> {
        let asked: Vec<&[u8]> =
            keys.iter().zip(&own).filter(|(_, own)| matches!(own, Ok(None))).map(|(k, _)| k.as_ref()).collect();
        let seq = || Ok(if newest { self.db.snapshots.visible() } else { self.read_seq() });
        let (view, seq) = family.inner().acquire_view(|v| v.load(), seq)?;
        let mut found = read::multi_get(&view, &asked, seq, &family.inner().reads).into_iter();
        if self.rules.check_reads {
            asked.iter().for_each(|k| self.remember(family, k, seq));
        }
        self.read_holds(family)?;
        let values = own.into_iter().map(|own| match own {
            Ok(Some(value)) => Ok(value),
            Ok(None) => found.next().unwrap_or(Ok(None)),
            Err(e) => Err(e),
        });
        Ok(values.collect())
    }
}
