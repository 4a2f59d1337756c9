//! SQLite, built from the C source that `libsqlite3-sys` carries: the feature `sqlite` of this crate builds it in.
//!
//! This is a leaf of foreign calls: every `unsafe` block below rests on one [`Connection`], which one thread uses at a time,
//! or on a statement of it, which is finalised once and before it.
//!
//! How a careful user would call it: a table without row numbers in write-ahead mode, a connection for each thread with its
//! statements prepared once, and one for each cursor, so that it reads a snapshot. SQLite has one writer at a time, whose
//! place is waited for here rather than asked for again and again. Transactions take that place when they begin: they run
//! one after another, so that each is serializable whatever level was asked for and none ever meets a conflict.

use super::txn::{Step, Transactions, unsupported};
use super::{Bounds, Checked, Cursor, Engine, EngineOptions, Session};
use crate::error::{Error, Result};
use kingtide_base::options::{nearest, parse_size};
use libsqlite3_sys as ffi;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_int};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Options of the engine's own.
const OPTIONS: [&str; 4] = ["mmap_size", "page_size", "synchronous", "wal_autocheckpoint"];
/// Cursors that a session keeps for the next reads.
const KEPT_CURSORS: usize = 4;
/// Milliseconds that SQLite waits for a lock of its own, such as that of a checkpoint, before it gives up.
const BUSY_TIMEOUT: c_int = 600_000;

/// How connections are opened.
#[derive(Clone, Debug)]
struct Settings {
    synchronous: String,
    /// Bytes of each connection's page cache.
    cache_size: u64,
    page_size: u64,
    mmap_size: u64,
    /// Pages of the log after which it is copied into the database.
    wal_autocheckpoint: Option<u64>,
    /// Bytes of a memtable of the others: the log is given as much. SQLite's own value where there are none.
    memtable_size: Option<u64>,
}

impl Settings {
    fn new(options: &EngineOptions) -> Result<Settings> {
        let mut settings = Settings {
            synchronous: if options.sync { "full" } else { "normal" }.into(),
            cache_size: options.block_cache_size.unwrap_or(2000 << 10), // SQLite's own
            page_size: 4096,
            mmap_size: 0,
            wal_autocheckpoint: None,
            memtable_size: options.memtable_size,
        };
        options.extra.iter().try_for_each(|(key, value)| settings.set(key, value))?;
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let bad = |e: String| Error::usage(format!("sqlite option {key}: {e}"));
        let number = || parse_size(value).map_err(bad);
        match key {
            "synchronous" => match value.to_ascii_lowercase().as_str() {
                level @ ("off" | "normal" | "full") => self.synchronous = level.to_owned(),
                _ => return Err(bad("use off, normal or full".into())),
            },
            "page_size" => match number()? {
                n if n.is_power_of_two() && (512..=65_536).contains(&n) => self.page_size = n,
                _ => return Err(bad("use a power of two from 512 to 64K".into())),
            },
            "mmap_size" => self.mmap_size = number()?,
            "wal_autocheckpoint" => self.wal_autocheckpoint = Some(number()?),
            _ => {
                let hint = nearest(key, &OPTIONS);
                let known = OPTIONS.join(", ");
                return Err(Error::usage(format!("sqlite has no option '{key}'{hint} (known: {known})")));
            }
        }
        Ok(())
    }

    /// Pages of the log after which it is copied into the database.
    fn checkpoint_pages(&self) -> u64 {
        let as_a_memtable = self.memtable_size.map(|n| (n / self.page_size).max(1));
        self.wal_autocheckpoint.or(as_a_memtable).unwrap_or(1000) // SQLite's own
    }

    /// The statements that a new connection begins with.
    fn pragmas(&self) -> String {
        format!(
            "PRAGMA page_size={}; PRAGMA journal_mode=WAL; PRAGMA synchronous={}; PRAGMA cache_size=-{}; \
             PRAGMA mmap_size={}; PRAGMA wal_autocheckpoint={};",
            self.page_size,
            self.synchronous,
            self.cache_size.div_ceil(1024).max(1),
            self.mmap_size,
            self.checkpoint_pages(),
        )
    }
}

/// Checks an option of the engine's own.
pub fn check_option(key: &str, value: &str) -> Result<Checked> {
    Settings::new(&EngineOptions::default())?.set(key, value)?;
    Ok(Checked::Known)
}

/// A connection.
struct Connection(*mut ffi::sqlite3);

// SAFETY: a connection may be handed to another thread; it is never used by two at once, because it is not `Sync`.
unsafe impl Send for Connection {}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: opened in `open`, closed only here; statements hold an `Rc` of the connection.
        unsafe { ffi::sqlite3_close(self.0) };
    }
}

impl Connection {
    fn open(path: &CStr, settings: &Settings) -> Result<Connection> {
        let mut db = null_mut();
        let flags = ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE | ffi::SQLITE_OPEN_NOMUTEX;
        // SAFETY: the path and the out-pointer live for the call; even a failed open returns a handle, to be closed.
        let code = unsafe { ffi::sqlite3_open_v2(path.as_ptr(), &mut db, flags, null()) };
        let connection = Connection(db);
        connection.check("open", code)?;
        // SAFETY: the connection is open.
        connection.check("open", unsafe { ffi::sqlite3_busy_timeout(db, BUSY_TIMEOUT) })?;
        connection.execute(&settings.pragmas())?;
        Ok(connection)
    }

    fn check(&self, doing: &str, code: c_int) -> Result<()> {
        if code == ffi::SQLITE_OK { Ok(()) } else { Err(self.error(doing)) }
    }

    #[cold]
    fn error(&self, doing: &str) -> Error {
        // SAFETY: the message belongs to the connection and is copied before anything else is called.
        let text = unsafe { CStr::from_ptr(ffi::sqlite3_errmsg(self.0)) }.to_string_lossy().into_owned();
        Error::failed(format!("sqlite: {doing}: {text}"))
    }

    /// Runs statements whose rows do not matter.
    fn execute(&self, sql: &str) -> Result<()> {
        let text = CString::new(sql).map_err(|_| Error::failed("sqlite: a statement contains a NUL byte"))?;
        // SAFETY: the connection is open, the text lives for the call, and there is neither callback nor message.
        self.check(sql, unsafe { ffi::sqlite3_exec(self.0, text.as_ptr(), None, null_mut(), null_mut()) })
    }

    /// The one number that a statement returns.
    fn number(self: &Rc<Self>, sql: &str) -> Result<f64> {
        let statement = Statement::prepare(self, sql)?;
        let there = statement.step()?;
        // SAFETY: the statement stands on a row of one column.
        Ok(if there { unsafe { ffi::sqlite3_column_double(statement.raw, 0) } } else { 0.0 })
    }
}

/// A prepared statement.
struct Statement {
    /// Outlives the statement.
    connection: Rc<Connection>,
    raw: *mut ffi::sqlite3_stmt,
}

impl Drop for Statement {
    fn drop(&mut self) {
        // SAFETY: prepared in `prepare`, finalised only here, while its connection is open.
        unsafe { ffi::sqlite3_finalize(self.raw) };
    }
}

impl Statement {
    fn prepare(connection: &Rc<Connection>, sql: &str) -> Result<Statement> {
        let mut raw = null_mut();
        let flags = ffi::SQLITE_PREPARE_PERSISTENT;
        // SAFETY: the connection is open; the text is read to the length that is given.
        let code = unsafe {
            ffi::sqlite3_prepare_v3(connection.0, sql.as_ptr().cast(), sql.len() as c_int, flags, &mut raw, null_mut())
        };
        connection.check(sql, code)?;
        Ok(Statement { connection: Rc::clone(connection), raw })
    }

    /// Lends bytes to a parameter. They must stay until the statement is reset.
    fn bind(&self, at: c_int, bytes: &[u8]) -> Result<()> {
        // A slice of no bytes has a pointer that is not null, which makes an empty blob rather than NULL.
        // SAFETY: the statement is reset before the bytes go: all callers are below, and reset before they return, but for
        // cursors, which own their bytes.
        let code = unsafe {
            ffi::sqlite3_bind_blob64(self.raw, at, bytes.as_ptr().cast(), bytes.len() as u64, ffi::SQLITE_STATIC())
        };
        self.connection.check("bind", code)
    }

    /// Whether there is another row.
    fn step(&self) -> Result<bool> {
        // SAFETY: the statement is prepared.
        match unsafe { ffi::sqlite3_step(self.raw) } {
            ffi::SQLITE_ROW => Ok(true),
            ffi::SQLITE_DONE => Ok(false),
            _ => Err(self.connection.error("step")),
        }
    }

    /// Ends an execution; outside a transaction, the read that went with it too.
    fn reset(&self) {
        // SAFETY: the statement is prepared. Its code repeats that of the last step, which was looked at.
        unsafe { ffi::sqlite3_reset(self.raw) };
    }

    /// The bytes of a column. Only on a row; they stay until the next step or reset.
    fn column(&self, at: c_int) -> &[u8] {
        // SAFETY: the pointer is asked for before the length, as SQLite wants, and is null for an empty blob.
        unsafe {
            let (data, len) = (ffi::sqlite3_column_blob(self.raw, at), ffi::sqlite3_column_bytes(self.raw, at));
            if data.is_null() || len <= 0 { &[] } else { std::slice::from_raw_parts(data.cast(), len as usize) }
        }
    }

    /// Executes it once with these parameters; `row` is called on the first row, if there is one.
    fn once(&self, parameters: &[&[u8]], row: impl FnOnce(&Statement)) -> Result<bool> {
        let run = || {
            for (i, bytes) in parameters.iter().enumerate() {
                self.bind(i as c_int + 1, bytes)?;
            }
            self.step()
        };
        let there = run();
        if let Ok(true) = there {
            row(self);
        }
        self.reset();
        there
    }
}

/// What all sessions share.
struct Store {
    path: CString,
    settings: Settings,
    transactions: bool,
    /// Whether there is a writer.
    writing: Mutex<bool>,
    written: Condvar,
    /// Runs checkpoints.
    spare: Mutex<Connection>,
}

/// The writer's place, given up when it is dropped.
struct Turn(Arc<Store>);

impl Turn {
    fn wait(store: &Arc<Store>) -> Turn {
        // A panic while the lock is held is a test's: a run with one has failed whatever the store holds.
        let mut writing = store.writing.lock().unwrap_or_else(PoisonError::into_inner);
        while *writing {
            writing = store.written.wait(writing).unwrap_or_else(PoisonError::into_inner);
        }
        *writing = true;
        Turn(Arc::clone(store))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.writing.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.written.notify_one();
    }
}

struct SqliteEngine(Arc<Store>);

/// Opens or creates a database in `dir`.
pub fn open(dir: &Path, options: &EngineOptions) -> Result<Box<dyn Engine>> {
    let settings = Settings::new(options)?;
    let path = CString::new(dir.join("keybench.sqlite").to_string_lossy().as_bytes())
        .map_err(|_| Error::usage(format!("{} contains a NUL byte", dir.display())))?;
    let spare = Connection::open(&path, &settings)?;
    spare.execute("CREATE TABLE IF NOT EXISTS kv (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID")?;
    Ok(Box::new(SqliteEngine(Arc::new(Store {
        path,
        settings,
        transactions: options.transactions.is_some(),
        writing: Mutex::default(),
        written: Condvar::new(),
        spare: Mutex::new(spare),
    }))))
}

impl SqliteEngine {
    fn execute(&self, sql: &str) -> Result<()> {
        let _turn = Turn::wait(&self.0);
        self.0.spare.lock().unwrap_or_else(PoisonError::into_inner).execute(sql)
    }
}

impl Engine for SqliteEngine {
    fn version(&self) -> String {
        // SAFETY: the string is static.
        unsafe { CStr::from_ptr(ffi::sqlite3_libversion()) }.to_string_lossy().into_owned()
    }

    fn durability(&self) -> String {
        match self.0.settings.synchronous.as_str() {
            "full" => "acknowledged writes survive a power cut: the log is fsynced before a write returns",
            "normal" => {
                "acknowledged writes survive the process: the log is written before a write returns, and fsynced before \
                 it is copied into the database"
            }
            _ => {
                "acknowledged writes survive the process: the log is written and never fsynced; a power cut may damage \
                 the database"
            }
        }
        .into()
    }

    fn effective_options(&self) -> Vec<(String, String)> {
        let settings = &self.0.settings;
        let mut shown = vec![
            ("journal_mode", "wal".to_owned()),
            ("synchronous", settings.synchronous.clone()),
            ("cache_size", format!("{} a connection", crate::measure::show_bytes(settings.cache_size as f64))),
            ("page_size", settings.page_size.to_string()),
            ("mmap_size", settings.mmap_size.to_string()),
            ("wal_autocheckpoint", settings.checkpoint_pages().to_string()),
            ("compression", "none".to_owned()),
        ];
        if self.0.transactions {
            shown.push(("transactions", "one writer at a time (serializable, never in conflict)".to_owned()));
        }
        shown.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        let connection = Rc::new(Connection::open(&self.0.path, &self.0.settings)?);
        let prepare = |sql: &str| Statement::prepare(&connection, sql);
        Ok(Box::new(SqliteSession {
            put: prepare("INSERT INTO kv VALUES (?1, ?2) ON CONFLICT (k) DO UPDATE SET v = excluded.v")?,
            get: prepare("SELECT v FROM kv WHERE k = ?1")?,
            delete: prepare("DELETE FROM kv WHERE k = ?1")?,
            delete_range: prepare("DELETE FROM kv WHERE k >= ?1 AND k < ?2")?,
            begin_read: prepare("BEGIN")?,
            begin: prepare("BEGIN IMMEDIATE")?,
            commit: prepare("COMMIT")?,
            rollback: prepare("ROLLBACK")?,
            connection,
            store: Arc::clone(&self.0),
            kept: Rc::default(),
            txn: None,
        }))
    }

    /// Copies the log into the database.
    fn flush(&self) -> Result<()> {
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    }

    /// Writes the database anew, without its free pages.
    fn compact(&self) -> Result<()> {
        self.execute("VACUUM")?;
        self.flush()
    }

    fn stats(&self) -> Vec<(String, f64)> {
        let Ok(connection) = Connection::open(&self.0.path, &self.0.settings).map(Rc::new) else { return Vec::new() };
        let one = |name: &str| Some((name.to_owned(), connection.number(&format!("PRAGMA {name}")).ok()?));
        ["page_count", "freelist_count"].into_iter().filter_map(one).collect()
    }

    fn close(self: Box<Self>) -> Result<()> {
        // Closing the last connection copies the log into the database; sessions have closed theirs.
        Ok(())
    }
}

struct SqliteSession {
    put: Statement,
    get: Statement,
    delete: Statement,
    delete_range: Statement,
    begin_read: Statement,
    begin: Statement,
    commit: Statement,
    rollback: Statement,
    connection: Rc<Connection>,
    store: Arc<Store>,
    /// Cursors that are not in use.
    kept: Rc<RefCell<Vec<Walk>>>,
    /// The running transaction's place as the writer.
    txn: Option<Turn>,
}

impl SqliteSession {
    /// Writes outside the transaction; several statements become visible together.
    fn write(&self, together: bool, work: impl FnOnce(&SqliteSession) -> Result<()>) -> Result<()> {
        if self.txn.is_some() {
            return unsupported(
                "sqlite",
                "writes beside a transaction of the same thread: they would wait for its end",
            );
        }
        let _turn = Turn::wait(&self.store);
        if !together {
            return work(self);
        }
        self.begin.once(&[], |_| {})?;
        let done = work(self).and_then(|()| self.commit.once(&[], |_| {}).map(drop));
        if done.is_err() {
            // The first error is the one to be told.
            let _ = self.rollback.once(&[], |_| {});
        }
        done
    }

    fn look_up(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.get.once(&[key], |row| found(row.column(0)))
    }

    fn in_txn(&self) -> Result<()> {
        if self.txn.is_some() { Ok(()) } else { Err(Error::failed("sqlite: no transaction was begun")) }
    }
}

impl Drop for SqliteSession {
    fn drop(&mut self) {
        if self.txn.is_some() {
            // It would be rolled back with the connection, but only after the next writer was let in.
            let _ = self.rollback.once(&[], |_| {});
        }
    }
}

impl Session for SqliteSession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(false, |s| s.put.once(&[key, value], |_| {}).map(drop))
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        self.write(true, |s| entries.iter().try_for_each(|(k, v)| s.put.once(&[k, v], |_| {}).map(drop)))
    }

    /// Beside a transaction of the same session it sees what that transaction sees: they share the connection.
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.look_up(key, found)
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        let alone = self.txn.is_none();
        if alone {
            self.begin_read.once(&[], |_| {})?;
        }
        let done = keys.iter().enumerate().try_for_each(|(i, key)| {
            if !self.look_up(key, &mut |v| each(i, Some(v)))? {
                each(i, None);
            }
            Ok(())
        });
        if alone {
            self.commit.once(&[], |_| {})?;
        }
        done
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.write(false, |s| s.delete.once(&[key], |_| {}).map(drop))
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        self.write(true, |s| keys.iter().try_for_each(|key| s.delete.once(&[key], |_| {}).map(drop)))
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        self.write(false, |s| s.delete_range.once(&[start, end], |_| {}).map(drop))
    }

    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        let kept = self.kept.borrow_mut().pop();
        let walk = match kept {
            Some(walk) => walk,
            None => Walk::new(Rc::new(Connection::open(&self.store.path, &self.store.settings)?))?,
        };
        walk.begin.once(&[], |_| {})?;
        // A transaction's snapshot is that of its first read.
        walk.now.once(&[], |_| {})?;
        Ok(Box::new(SqliteCursor::new(walk, Some(Rc::clone(&self.kept)), bounds)))
    }

    fn begin(&mut self, _how: Transactions) -> Result<()> {
        // The old one first: the new one would wait for it.
        if self.txn.is_some() {
            self.rollback()?;
        }
        let turn = Turn::wait(&self.store);
        self.begin.once(&[], |_| {})?;
        self.txn = Some(turn);
        Ok(())
    }

    fn txn_put(&mut self, key: &[u8], value: &[u8]) -> Result<Step<()>> {
        self.in_txn()?;
        self.put.once(&[key, value], |_| {}).map(|_| Step::Done(()))
    }

    fn txn_delete(&mut self, key: &[u8]) -> Result<Step<()>> {
        self.in_txn()?;
        self.delete.once(&[key], |_| {}).map(|_| Step::Done(()))
    }

    fn txn_get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.in_txn()?;
        self.look_up(key, found).map(Step::Done)
    }

    fn txn_get_for_update(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.txn_get(key, found)
    }

    fn txn_cursor(&mut self, bounds: Bounds<'_>) -> Result<Step<Box<dyn Cursor>>> {
        self.in_txn()?;
        let walk = Walk::new(Rc::clone(&self.connection))?;
        Ok(Step::Done(Box::new(SqliteCursor::new(walk, None, bounds))))
    }

    fn commit(&mut self) -> Result<Step<()>> {
        self.in_txn()?;
        self.commit.once(&[], |_| {})?;
        self.txn = None;
        Ok(Step::Done(()))
    }

    fn rollback(&mut self) -> Result<()> {
        self.in_txn()?;
        self.rollback.once(&[], |_| {})?;
        self.txn = None;
        Ok(())
    }
}

/// The statements of a cursor.
struct Walk {
    from: Statement,
    now: Statement,
    begin: Statement,
    commit: Statement,
}

impl Walk {
    fn new(connection: Rc<Connection>) -> Result<Walk> {
        let prepare = |sql: &str| Statement::prepare(&connection, sql);
        Ok(Walk {
            from: prepare("SELECT k, v FROM kv WHERE k >= ?1 ORDER BY k")?,
            now: prepare("SELECT 1 FROM kv LIMIT 1")?,
            begin: prepare("BEGIN")?,
            commit: prepare("COMMIT")?,
        })
    }
}

/// Walks entries from a key on, row by row.
struct SqliteCursor {
    /// Taken when it is dropped.
    walk: Option<Walk>,
    /// Where the walk goes then; none for one of a transaction's connection.
    kept: Option<Rc<RefCell<Vec<Walk>>>>,
    lower: Vec<u8>,
    /// The key that the statement has been lent.
    sought: Vec<u8>,
}

impl SqliteCursor {
    fn new(walk: Walk, kept: Option<Rc<RefCell<Vec<Walk>>>>, bounds: Bounds<'_>) -> SqliteCursor {
        SqliteCursor { walk: Some(walk), kept, lower: bounds.lower.unwrap_or_default().to_vec(), sought: Vec::new() }
    }

    fn statement(&self) -> Result<&Statement> {
        self.walk.as_ref().map(|walk| &walk.from).ok_or_else(|| Error::failed("sqlite: the cursor has ended"))
    }
}

impl Drop for SqliteCursor {
    fn drop(&mut self) {
        let Some(walk) = self.walk.take() else { return };
        walk.from.reset();
        let Some(kept) = &self.kept else { return };
        // Ends the snapshot. A failure leaves it to the end of the connection.
        if walk.commit.once(&[], |_| {}).is_ok() && kept.borrow().len() < KEPT_CURSORS {
            kept.borrow_mut().push(walk);
        }
    }
}

impl Cursor for SqliteCursor {
    fn first(&mut self) -> Result<bool> {
        let lower = self.lower.clone();
        self.seek(&lower)
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.statement()?.reset();
        self.sought.clear();
        self.sought.extend_from_slice(key);
        let statement = self.statement()?;
        statement.bind(1, &self.sought)?;
        statement.step()
    }

    fn next(&mut self) -> Result<bool> {
        self.statement()?.step()
    }

    fn key(&mut self) -> Result<&[u8]> {
        Ok(self.statement()?.column(0))
    }

    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        let statement = self.statement()?;
        Ok((statement.column(0), statement.column(1)))
    }
}
