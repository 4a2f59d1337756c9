//! Does random operations to a database and to the oracle, and compares every answer.

use crate::cursor::{Cursor, Move};
use crate::oracle::{FamilyModel, Moment, Stored, Window};
use crate::sets::{Disk, Set};
use kingtide::vfs::{Fs, MemFs, PosixFs};
use kingtide::{Clock, ColumnFamily, Db, Durability, ErrorKind, KeyOrder, ManualClock, Options, ReadOptions};
use kingtide::{Snapshot, SystemClock, WriteBatch, WriteOptions};
use kingtide_base::rng::Rng;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Operations by name, and how many.
pub type Counts = BTreeMap<&'static str, u64>;

/// Expiry moves only when the test says so; waiting takes real time where there are real threads.
struct TestClock {
    manual: Arc<ManualClock>,
    real: Option<Arc<dyn Clock>>,
}

impl Clock for TestClock {
    fn monotonic_ns(&self) -> u64 {
        self.real.as_ref().map_or_else(|| self.manual.monotonic_ns(), |c| c.monotonic_ns())
    }
    fn unix_ms(&self) -> u64 {
        self.manual.unix_ms()
    }
    fn sleep(&self, d: Duration) {
        self.real.as_ref().map_or_else(|| self.manual.sleep(d), |c| c.sleep(d));
    }
}

struct Family {
    handle: ColumnFamily,
    model: Rc<RefCell<FamilyModel>>,
}

struct Held {
    snapshot: Snapshot,
    at: u64,
}

/// A temporary directory.
struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub struct Driver<'a> {
    set: &'a Set,
    rng: Rng,
    fs: Arc<dyn Fs>,
    memory: Option<MemFs>,
    dir: PathBuf,
    clock: Arc<ManualClock>,
    shared_clock: Arc<dyn Clock>,
    db: Option<Db>,
    families: Vec<Family>,
    snapshots: Vec<Held>,
    cursors: Vec<Cursor>,
    batch: WriteBatch,
    /// The oracle's time: one tick a commit.
    at: u64,
    named: u64,
    pub counts: Counts,
    _temp: Option<TempDir>,
}

impl<'a> Driver<'a> {
    pub fn new(set: &'a Set, seed: u64) -> Driver<'a> {
        let clock = ManualClock::at_unix_ms(1_700_000_000_000);
        let real = (!set.manual).then(SystemClock::shared);
        let (memory, fs, dir, temp): (_, Arc<dyn Fs>, _, _) = match set.disk {
            Disk::Memory => {
                let fs = MemFs::new();
                (Some(fs.clone()), Arc::new(fs), PathBuf::from("/db"), None)
            }
            Disk::Posix => {
                let dir = std::env::temp_dir().join(format!("kingtide-{}-{}-{seed}", set.name, std::process::id()));
                let _ = std::fs::remove_dir_all(&dir);
                (None, PosixFs::shared(), dir.clone(), Some(TempDir(dir)))
            }
        };
        let mut driver = Driver {
            set,
            rng: Rng::new(kingtide_base::hash::hash64(set.name.as_bytes()) ^ seed),
            fs,
            memory,
            dir,
            shared_clock: Arc::new(TestClock { manual: clock.clone(), real }),
            clock,
            db: None,
            families: Vec::new(),
            snapshots: Vec::new(),
            cursors: Vec::new(),
            batch: WriteBatch::new(),
            at: 0,
            named: 0,
            counts: Counts::new(),
            _temp: temp,
        };
        driver.open();
        driver
    }

    fn options(&self) -> Options {
        let mut options = self.set.open_options();
        options.fs = Some(self.fs.clone());
        options.clock = Some(self.shared_clock.clone());
        options
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("open")
    }

    fn now(&self) -> Moment {
        Moment { at: self.at, now_ms: self.clock.unix_ms() }
    }

    /// Nobody reads at an older time.
    fn oldest(&self) -> u64 {
        let held = self.snapshots.iter().map(|s| s.at).chain(self.cursors.iter().map(|c| c.at));
        held.min().unwrap_or(self.at)
    }

    fn open(&mut self) {
        let db = Db::open(&self.dir, self.options()).expect("open");
        let mut old = std::mem::take(&mut self.families);
        if old.is_empty() {
            let model = FamilyModel::new("default", self.set.orders[0].clone(), 0);
            old.push(Family { handle: db.default_family().clone(), model: Rc::new(RefCell::new(model)) });
        }
        let mut names: Vec<String> = old.iter().map(|f| f.model.borrow().name.clone()).collect();
        names.sort();
        assert_eq!(db.families(), names, "families after opening");
        for f in old {
            let name = f.model.borrow().name.clone();
            let handle = db.family(&name).expect("family");
            assert_eq!(handle.order().name(), f.model.borrow().order.name());
            f.model.borrow_mut().ttl_ms = handle.options().ttl_ms;
            self.families.push(Family { handle, model: f.model });
        }
        self.db = Some(db);
    }

    fn reopen(&mut self) {
        self.snapshots.clear();
        self.cursors.clear();
        self.batch.clear();
        self.count_work();
        let db = self.db.take().expect("open");
        if self.rng.one_in(2) {
            db.flush().expect("flush before closing");
        }
        match &self.memory {
            Some(memory) if self.rng.one_in(2) => {
                let killed = memory.kill_clone();
                self.fs = Arc::new(killed.clone());
                self.memory = Some(killed);
                self.count("kills");
            }
            _ => {
                db.close().expect("close");
                let e = self.families[0].handle.get(b"key").expect_err("closed");
                assert_eq!(e.kind(), ErrorKind::Closed);
            }
        }
        drop(db);
        self.open();
        self.verify();
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    // Random arguments.

    fn key(&mut self, order: &KeyOrder) -> Vec<u8> {
        // Half of the accesses go to a tenth of the keys.
        let range = if self.rng.one_in(2) { self.set.keys.div_ceil(10) } else { self.set.keys };
        let n = self.rng.below(range);
        match order {
            KeyOrder::U64 | KeyOrder::I64 if !n.is_multiple_of(31) => {
                let spread = kingtide_base::hash::mix64(n);
                let number = if n.is_multiple_of(3) { spread } else { (n as i64 - 1000) as u64 };
                number.to_le_bytes().to_vec()
            }
            _ => {
                let group = (b'a' + (n % 11) as u8) as char;
                let mut key = format!("{group}{}{:04}", ["", "xy", "Z\u{ff}"][n as usize % 3], n / 11).into_bytes();
                match n % 17 {
                    0 => key.extend_from_slice(&[b'/'; 150]),
                    1 => key.truncate(4),
                    2 => key.extend_from_slice(&[0, 0xff, n as u8]),
                    _ => {}
                }
                if matches!(order, KeyOrder::CaseInsensitive) && self.rng.one_in(2) {
                    key.make_ascii_uppercase();
                }
                key
            }
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.rng.below(400) {
            0 => self.rng.below(40_000),
            1..20 => self.rng.below(2000),
            20..30 => 0,
            _ => self.rng.below(self.set.value),
        };
        let mut value = vec![0u8; len as usize];
        if self.rng.one_in(3) {
            self.rng.fill(&mut value); // cannot be compressed
        } else {
            let (a, b) = (self.rng.next_u64() as u8, self.rng.below(7) as usize + 1);
            value.iter_mut().enumerate().for_each(|(i, v)| *v = a.wrapping_add((i / b) as u8));
        }
        value
    }

    fn pick_family(&mut self) -> (ColumnFamily, Rc<RefCell<FamilyModel>>) {
        // Most goes to the default family, so that one family gets deep.
        let i = if self.rng.one_in(2) { 0 } else { self.rng.below(self.families.len() as u64) as usize };
        (self.families[i].handle.clone(), self.families[i].model.clone())
    }

    fn key_of(&mut self, model: &Rc<RefCell<FamilyModel>>) -> Vec<u8> {
        let order = model.borrow().order.clone();
        self.key(&order)
    }

    // Operations.

    /// One random operation.
    pub fn step(&mut self) {
        match self.rng.below(10_000) {
            0..4200 => self.write_one(),
            4200..4700 => self.write_batch(),
            4700..6500 => self.get(),
            6500..6800 => self.multi_get(),
            6800..7500 => self.iterate(),
            7500..7600 => self.take_snapshot(),
            7600..7700 => self.drop_snapshot(),
            7700..8100 => self.get_at_snapshot(),
            8100..8160 => self.hold_cursor(),
            8160..8220 => self.drop_cursor(),
            8220..8700 => self.move_held_cursor(),
            8700..9300 => self.background(),
            9300..9700 => self.advance_clock(),
            9700..9715 => self.flush(),
            9715..9720 => self.compact(),
            9720..9726 => self.create_family(),
            9726..9730 => self.drop_family(),
            9730..9735 => self.rename_family(),
            9735..9755 => self.set_option(),
            9755..9760 => self.reopen(),
            9760..9763 => self.verify(),
            _ => self.get(),
        }
    }

    fn write_one(&mut self) {
        let (handle, model) = self.pick_family();
        let at = self.at + 1;
        let oldest = self.oldest();
        let key = self.key_of(&model);
        let mut m = model.borrow_mut();
        match self.rng.below(100) {
            0..60 => {
                let value = self.value();
                let expiry = (m.ttl_ms > 0).then(|| self.clock.unix_ms() + m.ttl_ms);
                handle.put(&key, &value).expect("put");
                m.set(at, oldest, &key, Some(Stored { bytes: value.into(), expiry }));
                self.count("put");
            }
            60..75 => {
                handle.delete(&key).expect("delete");
                m.set(at, oldest, &key, None);
                self.count("delete");
            }
            75..88 => {
                if m.may_single_delete(&key) {
                    handle.single_delete(&key).expect("single_delete");
                    m.set(at, oldest, &key, None);
                    self.count("single_delete");
                } else {
                    handle.delete(&key).expect("delete");
                    m.set(at, oldest, &key, None);
                    self.count("delete");
                }
            }
            88..97 => {
                let value = self.value();
                let ttl = self.rng.below(20_000);
                let expiry = Some(self.clock.unix_ms() + ttl);
                handle.put_ttl(&key, &value, Duration::from_millis(ttl)).expect("put_ttl");
                m.set(at, oldest, &key, Some(Stored { bytes: value.into(), expiry }));
                self.count("put_ttl");
            }
            _ => {
                drop(m);
                let end = self.range_end(&model, &key);
                let sorted = model.borrow().canon(&key) <= model.borrow().canon(&end);
                match handle.delete_range(&key, &end) {
                    Ok(()) => assert!(sorted, "delete_range from {key:?} to {end:?}"),
                    Err(e) => assert!(!sorted && e.kind() == ErrorKind::InvalidArgument, "{e}"),
                }
                model.borrow_mut().delete_range(at, oldest, &key, &end);
                self.count("delete_range");
            }
        }
        self.at = at;
    }

    /// An end for a range that begins at `start`: mostly not far behind it.
    fn range_end(&mut self, model: &Rc<RefCell<FamilyModel>>, start: &[u8]) -> Vec<u8> {
        if self.rng.one_in(4) {
            return self.key_of(model);
        }
        let m = model.borrow();
        let mut end = m.canon(start);
        let now = self.now();
        let mut key = start.to_vec();
        for _ in 0..self.rng.below(12) + 1 {
            let Some((next, bytes, _)) = m.first(&Window::ALL, Bound::Excluded(&end), now) else { break };
            (end, key) = (next, bytes.to_vec());
        }
        key
    }

    fn write_batch(&mut self) {
        let at = self.at + 1;
        let oldest = self.oldest();
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let size = if self.rng.one_in(20) { 200 } else { 8 };
        for _ in 0..self.rng.below(size) {
            let (handle, model) = self.pick_family();
            let key = self.key_of(&model);
            let mut m = model.borrow_mut();
            match self.rng.below(20) {
                0..12 => {
                    let value = self.value();
                    let expiry = (m.ttl_ms > 0).then(|| self.clock.unix_ms() + m.ttl_ms);
                    batch.put(&handle, &key, &value).expect("put");
                    m.set(at, oldest, &key, Some(Stored { bytes: value.into(), expiry }));
                }
                12..15 => {
                    let value = self.value();
                    let ttl = self.rng.below(20_000);
                    let expiry = Some(self.clock.unix_ms() + ttl);
                    batch.put_ttl(&handle, &key, &value, Duration::from_millis(ttl)).expect("put_ttl");
                    m.set(at, oldest, &key, Some(Stored { bytes: value.into(), expiry }));
                }
                15..17 if m.may_single_delete(&key) => {
                    batch.single_delete(&handle, &key).expect("single_delete");
                    m.set(at, oldest, &key, None);
                }
                17 => {
                    drop(m);
                    let end = self.range_end(&model, &key);
                    if batch.delete_range(&handle, &key, &end).is_ok() {
                        model.borrow_mut().delete_range(at, oldest, &key, &end);
                    }
                }
                _ => {
                    batch.delete(&handle, &key).expect("delete");
                    m.set(at, oldest, &key, None);
                }
            }
        }
        // A real disk takes milliseconds for a sync.
        let synced = if self.set.disk == Disk::Posix { 200 } else { 8 };
        let durability = match self.rng.below(synced) {
            0 => Some(Durability::Power),
            1 => Some(Durability::Process),
            _ => None,
        };
        self.db().write_with(&mut batch, &WriteOptions { durability, no_wait: false }).expect("write");
        self.batch = batch;
        self.at = at;
        self.count("batch");
    }

    fn get(&mut self) {
        let (handle, model) = self.pick_family();
        let key = self.key_of(&model);
        let expected = model.borrow().get(&key, self.now());
        let got = handle.get(&key).expect("get");
        let name = &model.borrow().name;
        assert!(got.as_deref() == expected.as_deref(), "get {key:?} of '{name}': {got:?}, expected {expected:?}");
        self.count("get");
    }

    fn multi_get(&mut self) {
        let (handle, model) = self.pick_family();
        let keys: Vec<Vec<u8>> = (0..self.rng.below(30)).map(|_| self.key_of(&model)).collect();
        for (key, got) in keys.iter().zip(handle.multi_get(&keys)) {
            let expected = model.borrow().get(key, self.now());
            let got = got.expect("multi_get");
            assert!(got.as_deref() == expected.as_deref(), "multi_get {key:?}: {got:?}, expected {expected:?}");
        }
        self.count("multi_get");
    }

    fn take_snapshot(&mut self) {
        if self.snapshots.len() < 6 {
            self.snapshots.push(Held { snapshot: self.db().snapshot(), at: self.at });
            self.count("snapshot");
        }
    }

    fn drop_snapshot(&mut self) {
        if !self.snapshots.is_empty() {
            let i = self.rng.below(self.snapshots.len() as u64) as usize;
            self.snapshots.swap_remove(i);
        }
    }

    fn get_at_snapshot(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        let (handle, model) = self.pick_family();
        let key = self.key_of(&model);
        let held = &self.snapshots[self.rng.below(self.snapshots.len() as u64) as usize];
        let expected = model.borrow().get(&key, Moment { at: held.at, now_ms: self.clock.unix_ms() });
        let got = handle.get_at(&key, &held.snapshot).expect("get_at");
        assert!(got.as_deref() == expected.as_deref(), "get_at {} {key:?}: {got:?}, not {expected:?}", held.at);
        self.count("get_at");
    }

    fn bound(&mut self, model: &Rc<RefCell<FamilyModel>>) -> Bound<Vec<u8>> {
        match self.rng.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(self.key_of(model)),
            _ => Bound::Excluded(self.key_of(model)),
        }
    }

    fn cursor(&mut self) -> Cursor {
        let (handle, model) = self.pick_family();
        let (lower, upper) = (self.bound(&model), self.bound(&model));
        let prefixes = matches!(handle.order(), KeyOrder::Bytewise | KeyOrder::Reverse | KeyOrder::CaseInsensitive);
        let mut prefix = (prefixes && self.rng.one_in(4)).then(|| self.key_of(&model));
        if let Some(p) = &mut prefix {
            p.truncate(self.rng.below(4) as usize);
        }
        let held = match self.rng.below(self.snapshots.len() as u64 * 2 + 1) as usize {
            i if i < self.snapshots.len() => Some(&self.snapshots[i]),
            _ => None,
        };
        let order = model.borrow().order.clone();
        let canon = |b: &Bound<Vec<u8>>| b.as_ref().map(|k| crate::oracle::canon(&order, k));
        let window = Window { lower: canon(&lower), upper: canon(&upper), prefix: prefix.clone() };
        let options = ReadOptions {
            snapshot: held.map(|h| &h.snapshot),
            lower,
            upper,
            prefix,
            fill_cache: self.at.is_multiple_of(2),
            readahead: self.at.is_multiple_of(3),
        };
        let it = handle.iter_with(options).expect("iterator");
        Cursor::new(it, model, window, held.map_or(self.at, |h| h.at))
    }

    fn random_move(&mut self, model: &Rc<RefCell<FamilyModel>>) -> Move {
        match self.rng.below(16) {
            0 => Move::First,
            1 => Move::Last,
            2 | 3 => Move::Seek(self.key_of(model)),
            4 | 5 => Move::SeekForPrev(self.key_of(model)),
            6..11 => Move::Next,
            _ => Move::Prev,
        }
    }

    fn iterate(&mut self) {
        let mut cursor = self.cursor();
        let now = self.clock.unix_ms();
        let model = cursor.family.clone();
        let start = if self.rng.one_in(2) { Move::First } else { Move::Seek(self.key_of(&model)) };
        cursor.step(&start, now);
        if self.rng.one_in(2) {
            for _ in 0..self.rng.below(30) {
                cursor.step(&Move::Next, now);
            }
        }
        for _ in 0..self.rng.below(12) {
            let step = self.random_move(&model);
            cursor.step(&step, now);
        }
        self.count("iterator");
    }

    fn hold_cursor(&mut self) {
        if self.cursors.len() < 4 {
            let cursor = self.cursor();
            self.cursors.push(cursor);
            self.count("held_iterator");
        }
    }

    fn drop_cursor(&mut self) {
        if !self.cursors.is_empty() {
            let i = self.rng.below(self.cursors.len() as u64) as usize;
            self.cursors.swap_remove(i);
        }
    }

    fn move_held_cursor(&mut self) {
        if self.cursors.is_empty() {
            return;
        }
        let i = self.rng.below(self.cursors.len() as u64) as usize;
        let mut cursor = self.cursors.swap_remove(i);
        let model = cursor.family.clone();
        let refresh = self.rng.one_in(20);
        if refresh && let Some(f) = self.families.iter().find(|f| Rc::ptr_eq(&f.model, &model)) {
            f.handle.refresh(&mut cursor.it).expect("refresh");
            cursor.refreshed(self.at);
        }
        for _ in 0..self.rng.below(5) + 1 {
            let step = self.random_move(&model);
            cursor.step(&step, self.clock.unix_ms());
        }
        self.cursors.push(cursor);
        self.count("held_iterator_moves");
    }

    fn background(&mut self) {
        if self.set.manual {
            for _ in 0..self.rng.below(3) + 1 {
                self.db().run_one_job().expect("background job");
            }
            self.count("run_one_job");
        } else if self.rng.one_in(100) {
            self.db().wait_for_background().expect("background");
            self.count("wait_for_background");
        }
    }

    fn advance_clock(&mut self) {
        self.clock.advance(Duration::from_millis(self.rng.below(300)));
    }

    fn flush(&mut self) {
        if self.rng.one_in(2) {
            self.db().flush().expect("flush");
        } else {
            self.pick_family().0.flush().expect("flush of a family");
        }
        self.count("flush");
    }

    fn compact(&mut self) {
        let (handle, model) = self.pick_family();
        let (mut lo, mut hi) = (None, None);
        if self.rng.one_in(2) {
            let (a, b) = (self.key_of(&model), self.key_of(&model));
            let sorted = model.borrow().canon(&a) <= model.borrow().canon(&b);
            (lo, hi) = if sorted { (Some(a), Some(b)) } else { (Some(b), Some(a)) };
            lo = lo.filter(|_| !self.rng.one_in(4));
            hi = hi.filter(|_| !self.rng.one_in(4));
        }
        handle.compact_range(lo.as_deref(), hi.as_deref()).expect("compact_range");
        self.count("compact_range");
    }

    fn create_family(&mut self) {
        if self.families.len() >= 5 {
            return;
        }
        self.named += 1;
        // Names come back after their family was dropped.
        let name = format!("family-{}", self.named % 7);
        let orders = &self.set.orders;
        let order = orders[self.rng.below(orders.len() as u64) as usize].clone();
        let mut options = self.set.open_options().family;
        options.value_threshold = [options.value_threshold, 0, 40, 512][self.rng.below(4) as usize];
        let taken = self.families.iter().any(|f| f.model.borrow().name == name);
        match self.db().create_family_ordered(&name, options.clone(), order.clone()) {
            Ok(handle) => {
                assert!(!taken);
                let model = Rc::new(RefCell::new(FamilyModel::new(&name, order, options.ttl_ms)));
                self.families.push(Family { handle, model });
            }
            Err(e) => assert!(taken && e.kind() == ErrorKind::Exists, "{e}"),
        }
        self.count("create_family");
    }

    fn drop_family(&mut self) {
        if self.families.len() < 2 {
            return;
        }
        let i = 1 + self.rng.below(self.families.len() as u64 - 1) as usize;
        let family = self.families.swap_remove(i);
        let name = family.model.borrow().name.clone();
        self.db().drop_family(&name).expect("drop_family");
        assert_eq!(family.handle.get(b"key").expect_err("dropped").kind(), ErrorKind::Closed);
        assert_eq!(family.handle.put(b"key", b"").expect_err("dropped").kind(), ErrorKind::Closed);
        self.count("drop_family");
    }

    fn rename_family(&mut self) {
        if self.families.len() < 2 {
            return;
        }
        let i = 1 + self.rng.below(self.families.len() as u64 - 1) as usize;
        let new = format!("renamed-{}", self.rng.below(6));
        let taken = self.families.iter().any(|f| f.model.borrow().name == new);
        let old = self.families[i].model.borrow().name.clone();
        match self.db().rename_family(&old, &new) {
            Ok(()) => {
                assert!(!taken);
                self.families[i].model.borrow_mut().name = new;
            }
            Err(e) => assert!(taken && e.kind() == ErrorKind::Exists, "{e}"),
        }
        self.count("rename_family");
    }

    fn set_option(&mut self) {
        const FAMILY: &[(&str, &[&str])] = &[
            ("memtable_size", &["65536", "100000", "400000"]),
            ("max_immutable_memtables", &["1", "4"]),
            ("target_file_size", &["65536", "200000"]),
            ("level_ratio", &["2", "4", "10"]),
            ("l0_trigger", &["1", "2", "4"]),
            ("dividing_offset", &["1", "2", "3"]),
            ("tombstone_density", &["0.05", "0.5", "1"]),
            ("vlog_dead_ratio", &["0.05", "0.3", "1"]),
            ("read_triggered_compaction", &["true", "false"]),
        ];
        const DATABASE: &[(&str, &[&str])] = &[
            ("max_wal_size", &["131072", "1000000"]),
            ("memtable_budget", &["0", "300000", "4M"]),
            ("block_cache_size", &["0", "10000", "1M"]),
            ("max_open_files", &["16", "100"]),
            ("max_subcompactions", &["0", "1", "4"]),
            ("durability", &["process", "power", "interval:10"]),
        ];
        let whole = self.rng.one_in(3) && self.set.disk == Disk::Memory;
        let table = if whole { DATABASE } else { FAMILY };
        let (name, values) = table[self.rng.below(table.len() as u64) as usize];
        let value = values[self.rng.below(values.len() as u64) as usize];
        if whole {
            self.db().set_option(name, value).expect("set_option");
        } else {
            self.pick_family().0.set_option(name, value).expect("set_option of a family");
        }
        self.count("set_option");
    }

    /// Compares all families with the oracle, forward and backward, now and at a snapshot.
    pub fn verify(&mut self) {
        for i in 0..self.families.len() {
            let (handle, model) = (self.families[i].handle.clone(), self.families[i].model.clone());
            let m = model.borrow();
            let held = match self.rng.below(self.snapshots.len() as u64 + 1) as usize {
                i if i < self.snapshots.len() => Some(&self.snapshots[i]),
                _ => None,
            };
            let moment = Moment { at: held.map_or(self.at, |h| h.at), now_ms: self.clock.unix_ms() };
            let options = ReadOptions { snapshot: held.map(|h| &h.snapshot), ..ReadOptions::default() };
            let mut it = handle.iter_with(options).expect("iterator");
            it.seek_to_first();
            for (key, value) in m.all(moment) {
                assert!(it.valid(), "'{}' lacks {key:?}", m.name);
                assert_eq!(it.key(), &*key, "'{}' forward", m.name);
                assert!(it.value().expect("value") == &*value, "'{}': value of {key:?}", m.name);
                it.next();
            }
            assert!(!it.valid(), "'{}' has {:?} too many", m.name, it.key());
            it.status().expect("status");
            it.seek_to_last();
            for (key, value) in m.all(moment).rev() {
                assert_eq!((it.valid(), it.key()), (true, &*key), "'{}' backward", m.name);
                assert!(it.value().expect("value") == &*value, "'{}': value of {key:?}", m.name);
                it.prev();
            }
            assert!(!it.valid(), "'{}' has {:?} before its first key", m.name, it.key());
            it.status().expect("status");
        }
        self.count("verify");
    }

    /// The end of a run: all is compared, before and after a last reopening.
    pub fn finish(&mut self) {
        self.verify();
        self.reopen();
        self.compact();
        self.verify();
        self.count_work();
        self.db().close().expect("close");
    }

    /// Adds up what the engine did beside the operations, so that a run that tested little is seen.
    fn count_work(&mut self) {
        for (name, n) in self.db().stats().counters {
            let interesting =
                ["flushes", "compactions", "trivial_moves", "vlogs_deleted", "compaction_dropped_entries"];
            if interesting.contains(&name) {
                *self.counts.entry(name).or_default() += n;
            }
        }
    }
}
