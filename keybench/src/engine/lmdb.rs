//! LMDB, built from the C source that `lmdb-master-sys` carries: a copy-on-write B+tree in a memory map, with one writer
//! at a time and readers that never wait.
//!
//! This is a leaf of foreign calls: every `unsafe` block below rests on the environment of one [`Store`], which is thread-safe,
//! or on a transaction or cursor made from it, which one thread uses at a time and which is freed once, before the
//! environment.
//!
//! How a careful user would call it: a session keeps one read transaction, reset after each read and renewed before the
//! next, which takes no lock; cursors are used again in the same way. Writes outside a transaction are one transaction each.
//! Transactions take the writer's place when they begin: they run one after another, so that each is serializable whatever
//! level was asked for and none ever meets a conflict.

use super::txn::{Step, Transactions, unsupported};
use super::{Bounds, Checked, Cursor, Engine, EngineOptions, Session};
use crate::error::{Error, Result};
use kingtide_base::options::{OptionValue, nearest, parse_size};
use lmdb_master_sys as ffi;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_int, c_uint};
use std::path::Path;
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::Arc;

/// Address space for the map. The file grows as it is written, so that this costs nothing but addresses.
const MAP_SIZE: u64 = 1 << 40;
/// Read transactions at once: a session has one, and one for each of its cursors.
const MAX_READERS: u64 = 4096;
/// Cursors that a session keeps for the next reads.
const KEPT_CURSORS: usize = 4;

/// An option of LMDB's that is a flag of its environment.
const FLAGS: [(&str, c_uint); 6] = [
    ("nosync", ffi::MDB_NOSYNC),
    ("nometasync", ffi::MDB_NOMETASYNC),
    ("writemap", ffi::MDB_WRITEMAP),
    ("mapasync", ffi::MDB_MAPASYNC),
    ("nordahead", ffi::MDB_NORDAHEAD),
    ("nomeminit", ffi::MDB_NOMEMINIT),
];

/// How an environment is opened.
#[derive(Debug)]
struct Settings {
    map_size: u64,
    max_readers: u64,
    flags: c_uint,
}

impl Settings {
    fn new(sync: bool) -> Settings {
        Settings { map_size: MAP_SIZE, max_readers: MAX_READERS, flags: if sync { 0 } else { ffi::MDB_NOSYNC } }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let bad = |e: String| Error::usage(format!("lmdb option {key}: {e}"));
        if let Some((_, flag)) = FLAGS.iter().find(|(name, _)| *name == key) {
            if bool::parse_value(value).map_err(bad)? {
                self.flags |= flag;
            } else {
                self.flags &= !flag;
            }
            return Ok(());
        }
        match key {
            "map_size" => self.map_size = parse_size(value).map_err(bad)?,
            "max_readers" => {
                let n = parse_size(value).map_err(bad)?;
                self.max_readers =
                    if (1..=1 << 20).contains(&n) { n } else { return Err(bad("use 1 to 1048576".into())) };
            }
            _ => {
                let names: Vec<&str> = FLAGS.iter().map(|f| f.0).chain(["map_size", "max_readers"]).collect();
                let hint = nearest(key, &names);
                return Err(Error::usage(format!("lmdb has no option '{key}'{hint} (known: {})", names.join(", "))));
            }
        }
        Ok(())
    }

    fn has(&self, flag: c_uint) -> bool {
        self.flags & flag != 0
    }

    /// What acknowledged writes survive.
    fn durability(&self) -> &'static str {
        if self.has(ffi::MDB_NOSYNC) || self.has(ffi::MDB_WRITEMAP) && self.has(ffi::MDB_MAPASYNC) {
            "acknowledged writes survive the process: pages are written, not fsynced, before a write returns; a power \
             cut may damage the whole store, which has no log to be repaired from"
        } else if self.has(ffi::MDB_NOMETASYNC) {
            "a power cut may take back the last acknowledged write and leaves the store whole: pages are fsynced before \
             a write returns, their root with the next write"
        } else {
            "acknowledged writes survive a power cut: pages and their root are fsynced before a write returns"
        }
    }
}

/// Checks an option of the engine's own.
pub fn check_option(key: &str, value: &str) -> Result<Checked> {
    Settings::new(false).set(key, value)?;
    Ok(Checked::Known)
}

/// An open environment.
struct Store {
    env: *mut ffi::MDB_env,
    /// The one tree that all data is in.
    tree: ffi::MDB_dbi,
    settings: Settings,
    longest_key: usize,
    shown: Vec<(String, String)>,
}

// SAFETY: an environment may be used from any thread at once; transactions and cursors, which may not, stay within the
// session that made them.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: created in `open`, closed only here; whatever was made from it held an Arc of the store.
        unsafe { ffi::mdb_env_close(self.env) }
    }
}

#[cold]
fn error(doing: &str, code: c_int) -> Error {
    // SAFETY: the returned string is static, or the C library's own, and never null.
    let text = unsafe { CStr::from_ptr(ffi::mdb_strerror(code)) };
    Error::failed(format!("lmdb: {doing}: {}", text.to_string_lossy()))
}

fn check(doing: &str, code: c_int) -> Result<()> {
    if code == ffi::MDB_SUCCESS { Ok(()) } else { Err(error(doing, code)) }
}

/// Whether there is one: not to be found is no error.
fn found(doing: &str, code: c_int) -> Result<bool> {
    if code == ffi::MDB_NOTFOUND { Ok(false) } else { check(doing, code).map(|()| true) }
}

/// Bytes as LMDB takes them. It writes to no argument that is lent so.
fn lend(bytes: &[u8]) -> ffi::MDB_val {
    ffi::MDB_val { mv_size: bytes.len(), mv_data: bytes.as_ptr().cast_mut().cast() }
}

const NOTHING: ffi::MDB_val = ffi::MDB_val { mv_size: 0, mv_data: null_mut() };

/// Bytes that LMDB answered with.
///
/// # Safety
/// The transaction that answered must not have ended, and for `'a` must neither end nor write.
unsafe fn bytes<'a>(value: &ffi::MDB_val) -> &'a [u8] {
    if value.mv_size == 0 {
        return &[];
    }
    // SAFETY: LMDB answers with a pointer to so many bytes of a page; the caller vouches for how long they stay.
    unsafe { std::slice::from_raw_parts(value.mv_data.cast(), value.mv_size) }
}

impl Store {
    /// A write's code. What a user can do something about is said in the user's words.
    fn written(&self, doing: &str, code: c_int) -> Result<()> {
        match code {
            ffi::MDB_SUCCESS => Ok(()),
            ffi::MDB_MAP_FULL => Err(Error::failed(format!(
                "lmdb: {doing}: the map of {} bytes is full; give it more with --opt lmdb.map_size=SIZE",
                self.settings.map_size
            ))),
            _ => Err(error(doing, code)),
        }
    }

    fn storable(&self, key: &[u8]) -> Result<()> {
        if key.is_empty() || key.len() > self.longest_key {
            return unsupported("lmdb", &format!("keys of {} bytes: they have 1 to {}", key.len(), self.longest_key));
        }
        Ok(())
    }

    /// Opens the environment and its tree; `env` is closed by the caller if that fails.
    fn prepare(env: *mut ffi::MDB_env, path: &CStr, settings: &Settings) -> Result<ffi::MDB_dbi> {
        // NOTLS ties read transactions to the objects that hold them rather than to threads.
        let (flags, readers) = (settings.flags | ffi::MDB_NOTLS, settings.max_readers as c_uint);
        let (mut txn, mut tree) = (null_mut(), 0);
        // SAFETY: the environment is created and not yet open; path and out-pointers live for the calls. A transaction
        // whose commit failed is gone.
        unsafe {
            check("map_size", ffi::mdb_env_set_mapsize(env, settings.map_size as ffi::mdb_size_t))?;
            check("max_readers", ffi::mdb_env_set_maxreaders(env, readers))?;
            let opening = format!("open with a map of {} bytes", settings.map_size);
            check(&opening, ffi::mdb_env_open(env, path.as_ptr(), flags, 0o644))?;
            check(&opening, ffi::mdb_txn_begin(env, null_mut(), 0, &mut txn))?;
            let opened = ffi::mdb_dbi_open(txn, std::ptr::null(), 0, &mut tree);
            if opened != ffi::MDB_SUCCESS {
                ffi::mdb_txn_abort(txn);
                return Err(error(&opening, opened));
            }
            check(&opening, ffi::mdb_txn_commit(txn))?;
        }
        Ok(tree)
    }
}

struct LmdbEngine(Arc<Store>);

/// Opens or creates an environment in `dir`.
pub fn open(dir: &Path, options: &EngineOptions) -> Result<Box<dyn Engine>> {
    let mut settings = Settings::new(options.sync);
    for (key, value) in &options.extra {
        settings.set(key, value)?;
    }
    let path = CString::new(dir.to_string_lossy().as_bytes())
        .map_err(|_| Error::usage(format!("{} contains a NUL byte", dir.display())))?;
    let mut env = null_mut();
    // SAFETY: `env` is written on success.
    check("create", unsafe { ffi::mdb_env_create(&mut env) })?;
    let tree = Store::prepare(env, &path, &settings).inspect_err(|_| {
        // SAFETY: created above, and nothing uses it.
        unsafe { ffi::mdb_env_close(env) }
    })?;
    // SAFETY: the environment is open.
    let longest_key = unsafe { ffi::mdb_env_get_maxkeysize(env) } as usize;
    let set: Vec<&str> = FLAGS.iter().filter(|f| settings.has(f.1)).map(|f| f.0).collect();
    let mut shown = vec![
        ("map_size".to_owned(), settings.map_size.to_string()),
        ("flags".to_owned(), if set.is_empty() { "none".into() } else { set.join("+") }),
        ("cache".to_owned(), "the operating system's".to_owned()),
        ("compression".to_owned(), "none".to_owned()),
    ];
    if options.transactions.is_some() {
        shown.push(("transactions".into(), "one writer at a time (serializable, never in conflict)".into()));
    }
    Ok(Box::new(LmdbEngine(Arc::new(Store { env, tree, settings, longest_key, shown }))))
}

impl Engine for LmdbEngine {
    fn version(&self) -> String {
        // SAFETY: null asks for no numbers; the string is static.
        let text = unsafe { CStr::from_ptr(ffi::mdb_version(null_mut(), null_mut(), null_mut())) }.to_string_lossy();
        // "LMDB 0.9.70: (December 19, 2015)"
        text.split([' ', ':']).nth(1).unwrap_or(&text).to_owned()
    }

    fn durability(&self) -> String {
        self.0.settings.durability().into()
    }

    fn effective_options(&self) -> Vec<(String, String)> {
        self.0.shown.clone()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        let store = Arc::clone(&self.0);
        let reader = Reader::new(&store)?;
        Ok(Box::new(LmdbSession { store, reader, kept: Rc::default(), txn: None }))
    }

    fn flush(&self) -> Result<()> {
        // SAFETY: the environment is open.
        check("sync", unsafe { ffi::mdb_env_sync(self.0.env, 1) })
    }

    /// Nothing is there to be compacted: pages that become free are written again.
    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn stats(&self) -> Vec<(String, f64)> {
        // SAFETY: structs of integers and a pointer, for which zeros are values; both are filled by the calls.
        let (stat, info) = unsafe {
            let (mut stat, mut info) = (std::mem::zeroed::<ffi::MDB_stat>(), std::mem::zeroed::<ffi::MDB_envinfo>());
            ffi::mdb_env_stat(self.0.env, &mut stat);
            ffi::mdb_env_info(self.0.env, &mut info);
            (stat, info)
        };
        let page = f64::from(stat.ms_psize);
        [
            ("entries", stat.ms_entries as f64),
            ("depth", f64::from(stat.ms_depth)),
            ("branch_bytes", stat.ms_branch_pages as f64 * page),
            ("leaf_bytes", stat.ms_leaf_pages as f64 * page),
            ("overflow_bytes", stat.ms_overflow_pages as f64 * page),
            ("used_bytes", (info.me_last_pgno + 1) as f64 * page),
            ("map_size", info.me_mapsize as f64),
            ("last_txn", info.me_last_txnid as f64),
            ("readers", f64::from(info.me_numreaders)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn close(self: Box<Self>) -> Result<()> {
        // Dropping the last reference closes; LMDB reports no failure of a close.
        Ok(())
    }
}

/// A read transaction that is reset between reads and renewed for each.
struct Reader {
    /// Outlives the transaction.
    _store: Arc<Store>,
    txn: *mut ffi::MDB_txn,
}

impl Reader {
    fn new(store: &Arc<Store>) -> Result<Reader> {
        let mut txn = null_mut();
        // SAFETY: the environment is open; the transaction belongs to the reader alone.
        unsafe {
            check("begin reading", ffi::mdb_txn_begin(store.env, null_mut(), ffi::MDB_RDONLY, &mut txn))?;
            ffi::mdb_txn_reset(txn);
        }
        Ok(Reader { _store: Arc::clone(store), txn })
    }

    /// From now on it reads the last commit.
    fn renew(&self) -> Result<()> {
        // SAFETY: the transaction is one that was reset.
        check("begin reading", unsafe { ffi::mdb_txn_renew(self.txn) })
    }

    /// Gives up its snapshot, whose pages may then be written again.
    fn reset(&self) {
        // SAFETY: the transaction is a live read transaction.
        unsafe { ffi::mdb_txn_reset(self.txn) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: begun in `new`, freed only here.
        unsafe { ffi::mdb_txn_abort(self.txn) }
    }
}

/// A write transaction. Dropped before it was committed, it leaves no trace.
struct Writer {
    store: Arc<Store>,
    /// Null once it was committed.
    txn: *mut ffi::MDB_txn,
}

impl Writer {
    /// Waits for the writer before it.
    fn begin(store: &Arc<Store>) -> Result<Writer> {
        let mut txn = null_mut();
        // SAFETY: the environment is open; this thread runs no other write transaction, for which it would wait for ever.
        check("begin writing", unsafe { ffi::mdb_txn_begin(store.env, null_mut(), 0, &mut txn) })?;
        Ok(Writer { store: Arc::clone(store), txn })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.storable(key)?;
        // SAFETY: the transaction is live; key and value are copied.
        let code = unsafe { ffi::mdb_put(self.txn, self.store.tree, &mut lend(key), &mut lend(value), 0) };
        self.store.written("put", code)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        if self.store.storable(key).is_err() {
            return Ok(()); // it cannot be there
        }
        // SAFETY: the transaction is live; no value means whatever value there is.
        match unsafe { ffi::mdb_del(self.txn, self.store.tree, &mut lend(key), null_mut()) } {
            ffi::MDB_NOTFOUND => Ok(()),
            code => self.store.written("delete", code),
        }
    }

    fn delete_range(&self, start: &[u8], end: &[u8]) -> Result<()> {
        let cursor = RawCursor::open(&self.store, self.txn)?;
        let (mut key, mut value) = (lend(start), NOTHING);
        let mut there = if start.is_empty() {
            cursor.get(ffi::MDB_FIRST, &mut key, &mut value)?
        } else {
            cursor.get(ffi::MDB_SET_RANGE, &mut key, &mut value)?
        };
        // SAFETY: the key lies in a page until the delete, which comes after the comparison.
        while there && unsafe { bytes(&key) } < end {
            // SAFETY: the cursor stands on an entry.
            self.store.written("delete", unsafe { ffi::mdb_cursor_del(cursor.0, 0) })?;
            there = cursor.get(ffi::MDB_NEXT, &mut key, &mut value)?;
        }
        Ok(())
    }

    fn commit(mut self) -> Result<()> {
        let txn = std::mem::replace(&mut self.txn, null_mut());
        // SAFETY: the transaction is live and freed by this whatever comes of it; cursors on it are closed.
        self.store.written("commit", unsafe { ffi::mdb_txn_commit(txn) })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.txn.is_null() {
            // SAFETY: begun in `begin`, and not committed.
            unsafe { ffi::mdb_txn_abort(self.txn) }
        }
    }
}

/// A cursor of LMDB's, closed before its transaction is freed.
struct RawCursor(*mut ffi::MDB_cursor);

impl RawCursor {
    fn open(store: &Store, txn: *mut ffi::MDB_txn) -> Result<RawCursor> {
        let mut cursor = null_mut();
        // SAFETY: the transaction is live.
        check("cursor", unsafe { ffi::mdb_cursor_open(txn, store.tree, &mut cursor) })?;
        Ok(RawCursor(cursor))
    }

    /// Moves; on an entry, `key` and `value` are its bytes in the map.
    fn get(&self, to: ffi::MDB_cursor_op, key: &mut ffi::MDB_val, value: &mut ffi::MDB_val) -> Result<bool> {
        // SAFETY: the cursor and its transaction are live; `key` is read by seeks and written on success.
        found("cursor", unsafe { ffi::mdb_cursor_get(self.0, key, value, to) })
    }
}

impl Drop for RawCursor {
    fn drop(&mut self) {
        // SAFETY: opened in `open`, closed only here.
        unsafe { ffi::mdb_cursor_close(self.0) }
    }
}

/// A read transaction with a cursor. The fields are dropped in order.
struct Walk {
    cursor: RawCursor,
    reader: Reader,
}

impl Walk {
    fn new(store: &Arc<Store>) -> Result<Walk> {
        let reader = Reader::new(store)?;
        reader.renew()?;
        Ok(Walk { cursor: RawCursor::open(store, reader.txn)?, reader })
    }

    fn again(&self) -> Result<()> {
        self.reader.renew()?;
        // SAFETY: the cursor is one of a read transaction, which is live again.
        check("cursor", unsafe { ffi::mdb_cursor_renew(self.reader.txn, self.cursor.0) })
    }
}

struct LmdbSession {
    store: Arc<Store>,
    reader: Reader,
    /// Cursors that are not in use.
    kept: Rc<RefCell<Vec<Walk>>>,
    txn: Option<Rc<Writer>>,
}

impl LmdbSession {
    fn read<T>(&mut self, work: impl FnOnce(&Store, *mut ffi::MDB_txn) -> Result<T>) -> Result<T> {
        self.reader.renew()?;
        let answer = work(&self.store, self.reader.txn);
        self.reader.reset();
        answer
    }

    /// Writes outside the transaction.
    fn write(&mut self, work: impl FnOnce(&Writer) -> Result<()>) -> Result<()> {
        if self.txn.is_some() {
            return unsupported("lmdb", "writes beside a transaction of the same thread: they would wait for its end");
        }
        let writer = Writer::begin(&self.store)?;
        work(&writer)?;
        writer.commit()
    }

    fn txn(&self) -> Result<&Writer> {
        self.txn.as_deref().ok_or_else(|| Error::failed("lmdb: no transaction was begun"))
    }

    /// The transaction, to be ended. Its cursors would outlive its pages.
    fn take_txn(&mut self) -> Result<Writer> {
        let txn = self.txn.take().ok_or_else(|| Error::failed("lmdb: no transaction was begun"))?;
        Rc::try_unwrap(txn).map_err(|txn| {
            self.txn = Some(txn);
            Error::failed("lmdb: a transaction cannot end while a cursor uses it")
        })
    }
}

/// Looks a key up in a transaction.
fn look_up(store: &Store, txn: *mut ffi::MDB_txn, key: &[u8], answer: &mut dyn FnMut(&[u8])) -> Result<bool> {
    if store.storable(key).is_err() {
        return Ok(false); // it cannot be there
    }
    let mut value = NOTHING;
    // SAFETY: the transaction is live; the value is read before it ends or writes.
    unsafe {
        let there = found("get", ffi::mdb_get(txn, store.tree, &mut lend(key), &mut value))?;
        if there {
            answer(bytes(&value));
        }
        Ok(there)
    }
}

impl Session for LmdbSession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(|w| w.put(key, value))
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        self.write(|w| entries.iter().try_for_each(|(key, value)| w.put(key, value)))
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.read(|store, txn| look_up(store, txn, key, found))
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.read(|store, txn| {
            for (i, key) in keys.iter().enumerate() {
                if !look_up(store, txn, key, &mut |v| each(i, Some(v)))? {
                    each(i, None);
                }
            }
            Ok(())
        })
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.write(|w| w.delete(key))
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        self.write(|w| keys.iter().try_for_each(|key| w.delete(key)))
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        self.write(|w| w.delete_range(start, end))
    }

    fn cursor(&mut self, _bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        let kept = self.kept.borrow_mut().pop();
        let walk = match kept {
            Some(walk) => {
                walk.again()?;
                walk
            }
            None => Walk::new(&self.store)?,
        };
        Ok(Box::new(SnapshotCursor { walk: Some(walk), kept: Rc::clone(&self.kept), key: NOTHING, value: NOTHING }))
    }

    fn begin(&mut self, _how: Transactions) -> Result<()> {
        // The old one first: the new one would wait for it.
        if self.txn.is_some() {
            drop(self.take_txn()?);
        }
        self.txn = Some(Rc::new(Writer::begin(&self.store)?));
        Ok(())
    }

    fn txn_put(&mut self, key: &[u8], value: &[u8]) -> Result<Step<()>> {
        self.txn()?.put(key, value).map(Step::Done)
    }

    fn txn_delete(&mut self, key: &[u8]) -> Result<Step<()>> {
        self.txn()?.delete(key).map(Step::Done)
    }

    fn txn_get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        let txn = self.txn()?.txn;
        look_up(&self.store, txn, key, found).map(Step::Done)
    }

    fn txn_get_for_update(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.txn_get(key, found)
    }

    fn txn_cursor(&mut self, _bounds: Bounds<'_>) -> Result<Step<Box<dyn Cursor>>> {
        let Some(txn) = &self.txn else { return Err(Error::failed("lmdb: no transaction was begun")) };
        let cursor = RawCursor::open(&self.store, txn.txn)?;
        Ok(Step::Done(Box::new(TxnCursor { cursor, _txn: Rc::clone(txn), entry: (Vec::new(), Vec::new()) })))
    }

    fn commit(&mut self) -> Result<Step<()>> {
        self.take_txn()?.commit().map(Step::Done)
    }

    fn rollback(&mut self) -> Result<()> {
        self.take_txn().map(drop)
    }
}

/// Walks what was committed when it was made.
struct SnapshotCursor {
    /// Taken when it is dropped.
    walk: Option<Walk>,
    kept: Rc<RefCell<Vec<Walk>>>,
    key: ffi::MDB_val,
    value: ffi::MDB_val,
}

impl SnapshotCursor {
    fn go(&mut self, to: ffi::MDB_cursor_op) -> Result<bool> {
        let Some(walk) = &self.walk else { return Ok(false) };
        walk.cursor.get(to, &mut self.key, &mut self.value)
    }
}

impl Drop for SnapshotCursor {
    fn drop(&mut self) {
        let mut kept = self.kept.borrow_mut();
        if let Some(walk) = self.walk.take().filter(|_| kept.len() < KEPT_CURSORS) {
            walk.reader.reset();
            kept.push(walk);
        }
    }
}

impl Cursor for SnapshotCursor {
    fn first(&mut self) -> Result<bool> {
        self.go(ffi::MDB_FIRST)
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        if key.is_empty() {
            return self.first();
        }
        self.key = lend(key);
        self.go(ffi::MDB_SET_RANGE)
    }

    fn next(&mut self) -> Result<bool> {
        self.go(ffi::MDB_NEXT)
    }

    fn key(&mut self) -> Result<&[u8]> {
        // SAFETY: the caller is on an entry, whose pages stay for as long as the cursor's transaction reads its snapshot.
        Ok(unsafe { bytes(&self.key) })
    }

    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        // SAFETY: as in `key`.
        Ok(unsafe { (bytes(&self.key), bytes(&self.value)) })
    }
}

/// Walks what a transaction sees. Pages change under it when the transaction writes, so entries are copied.
struct TxnCursor {
    cursor: RawCursor,
    _txn: Rc<Writer>,
    entry: (Vec<u8>, Vec<u8>),
}

impl TxnCursor {
    fn go(&mut self, to: ffi::MDB_cursor_op, key: &[u8]) -> Result<bool> {
        let (mut k, mut v) = (lend(key), NOTHING);
        let there = self.cursor.get(to, &mut k, &mut v)?;
        if there {
            // SAFETY: nothing is written between the move and the copies.
            let (key, value) = unsafe { (bytes(&k), bytes(&v)) };
            self.entry.0.clear();
            self.entry.0.extend_from_slice(key);
            self.entry.1.clear();
            self.entry.1.extend_from_slice(value);
        }
        Ok(there)
    }
}

impl Cursor for TxnCursor {
    fn first(&mut self) -> Result<bool> {
        self.go(ffi::MDB_FIRST, &[])
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        if key.is_empty() { self.first() } else { self.go(ffi::MDB_SET_RANGE, key) }
    }

    fn next(&mut self) -> Result<bool> {
        self.go(ffi::MDB_NEXT, &[])
    }

    fn key(&mut self) -> Result<&[u8]> {
        Ok(&self.entry.0)
    }

    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        Ok((&self.entry.0, &self.entry.1))
    }
}
