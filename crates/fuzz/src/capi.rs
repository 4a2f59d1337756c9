//! Target: programs of calls of the C API, with arguments and in orders that no program should make.
//!
//! Handles live in slots, of which many are empty: then the call gets NULL. A database may be closed or freed under the others,
//! a transaction ended under its iterators, an object of one database handed to another. What C cannot promise is promised here:
//! a pointer that is not NULL points to what it should, and a handle that was freed is not used.
//!
//! Nothing may panic, which is a status here, nor touch memory that is not there, which the sanitizer sees, nor hang.

// What the functions called here ask for is promised by all of this module, above.
#![allow(unsafe_op_in_unsafe_fn)]

use crate::sample;
use kingtide::vfs::MemFs;
use kingtide_base::coding::Reader;
use kingtide_c::*;
use std::ffi::{CString, c_char, c_void};
use std::mem::size_of;
use std::ptr;

/// Keys begin somewhere in here.
const KEYS: &[u8] = b"abcdefgh";
/// Calls of one input at most.
const MOST: usize = 200;
const OK: i32 = kingtide_status::KINGTIDE_OK as i32;

/// A handle that C would hold.
type Slot<T> = Option<Box<T>>;
type Err = *mut *mut kingtide_error;

struct World {
    options: Box<kingtide_options>,
    dbs: [Slot<kingtide_db>; 2],
    families: [Slot<kingtide_family>; 4],
    txns: [Slot<kingtide_txn>; 3],
    iters: [Slot<kingtide_iter>; 3],
    snapshots: [Slot<kingtide_snapshot>; 2],
    values: [Slot<kingtide_value>; 2],
    batch: Slot<kingtide_batch>,
    stream: Slot<kingtide_change_stream>,
    record: Slot<kingtide_change_record>,
    ticket: Slot<kingtide_ticket>,
    handle: Slot<kingtide_txn_handle>,
    text: Slot<kingtide_text>,
    names: Slot<kingtide_strings>,
    stats: Slot<kingtide_stats>,
    locks: Slot<kingtide_lock_list>,
}

/// A program.
pub fn capi(data: &[u8]) {
    // SAFETY: every handle is alive while it is in its slot, and other pointers are NULL or to what is there.
    unsafe { program(data) }
}

/// # Safety
/// That of the C API, which is kept here.
unsafe fn program(data: &[u8]) {
    let mut options = sample::options(&MemFs::new());
    options.db.lock_timeout = std::time::Duration::ZERO; // one thread: no other would ever release a lock
    let mut w = World {
        options: Box::new(options.into()),
        dbs: Default::default(),
        families: Default::default(),
        txns: Default::default(),
        iters: Default::default(),
        snapshots: Default::default(),
        values: [Some(kingtide_value_new()), None],
        batch: Some(kingtide_batch_new()),
        stream: None,
        record: None,
        ticket: None,
        handle: None,
        text: None,
        names: None,
        stats: None,
        locks: None,
    };
    w.open(0, c"one");
    w.open(1, c"two");
    for at in 0..3 {
        make(&mut w.families[at], |out, err| kingtide_db_default_family(w.dbs[at % 2].as_deref(), out, err));
    }
    for at in 0..3 {
        make(&mut w.txns[at], |out, err| kingtide_txn_begin(w.dbs[at % 2].as_deref(), ptr::null(), out, err));
    }
    let mut r = Reader::new(data);
    for _ in 0..MOST {
        if w.call(&mut r).is_none() {
            break;
        }
    }
}

/// Takes what a function gave.
fn own<T>(given: *mut T) -> Slot<T> {
    // SAFETY: NULL, or made by `Box::into_raw` in the library and handed over.
    (!given.is_null()).then(|| unsafe { Box::from_raw(given) })
}

/// Calls a function that may fail, as most do here.
fn run(call: impl FnOnce(Err) -> kingtide_status) {
    works(call);
}

/// A move of an iterator may lead nowhere, and an index behind the last item.
fn moved(_: bool) {}

/// Calls a function, and tells whether it did what it says.
fn works(call: impl FnOnce(Err) -> kingtide_status) -> bool {
    let mut err = ptr::null_mut();
    let status = call(&raw mut err) as i32;
    let error = own(err);
    assert_eq!(error.is_some(), status != OK, "an error object if and only if it failed");
    assert_ne!(status, kingtide_status::KINGTIDE_PANIC as i32, "a panic");
    kingtide_error_free(error);
    status == OK
}

/// Calls a function that makes a handle, in the place of what was in the slot.
fn make<T>(slot: &mut Slot<T>, call: impl FnOnce(*mut *mut T, Err) -> kingtide_status) {
    let mut made = ptr::dangling_mut();
    let done = works(|err| call(&raw mut made, err));
    *slot = own(made);
    assert!(done || slot.is_none(), "no handle if it failed");
}

/// Bytes as C passes them.
struct Bytes(*const c_void, usize);

fn bytes(r: &mut Reader<'_>) -> Option<Bytes> {
    Some(match r.u8()? {
        255 => Bytes(ptr::null(), r.u8()? as usize),
        254 => Bytes(r.rest().as_ptr().cast(), usize::MAX - r.u8()? as usize),
        // Mostly one of a few keys, so that calls meet one another.
        n if n < 200 => Bytes(KEYS[n as usize % (KEYS.len() - 1)..].as_ptr().cast(), 1 + n as usize / 100),
        n => {
            let found = r.bytes((n as usize % 40).min(r.rest().len()))?;
            Bytes(found.as_ptr().cast(), found.len())
        }
    })
}

/// A string as C passes it: mostly one that means something.
fn name(r: &mut Reader<'_>) -> Option<Option<CString>> {
    const KNOWN: [&str; 8] = ["default", "a", "b", "bytewise", "u64", "block_cache_size", "puts", "l0_trigger"];
    Some(match r.u8()? {
        255 => None,
        n if n < 192 => CString::new(KNOWN[n as usize % KNOWN.len()]).ok(),
        _ => {
            let found = r.bytes((r.rest().len()).min(5))?;
            CString::new(found.iter().copied().filter(|b| *b != 0).collect::<Vec<u8>>()).ok()
        }
    })
}

fn c(name: &Option<CString>) -> *const c_char {
    name.as_ref().map_or(ptr::null(), |n| n.as_ptr())
}

/// The size of a struct as a caller sets it: never more than is there, unless it is absurd.
fn size<T>(r: &mut Reader<'_>) -> Option<usize> {
    Some(match r.u8()? {
        0 => 0,
        1 => usize::MAX,
        n if n < 32 => size_of::<T>() - n as usize % size_of::<T>(),
        _ => size_of::<T>(),
    })
}

/// From 0 to below `n`, and now and then beyond.
fn number(r: &mut Reader<'_>, n: u8) -> Option<i32> {
    Some(match r.u8()? {
        255 => -1,
        254 => i32::MAX,
        b => i32::from(b % n),
    })
}

fn bound(r: &mut Reader<'_>) -> Option<kingtide_bound> {
    let (kind, Bytes(key, key_len)) = (number(r, 3)?, bytes(r)?);
    Some(kingtide_bound { kind, key, key_len })
}

/// Reads what a function points to, as its user would.
fn look(data: *const u8, len: usize) {
    if !data.is_null() {
        // SAFETY: the library says that `len` bytes are there; this is the test of it.
        let sum: u64 = unsafe { std::slice::from_raw_parts(data, len) }.iter().map(|b| u64::from(*b)).sum();
        std::hint::black_box(sum);
    }
}

impl World {
    /// # Safety
    /// The handles of the world are alive.
    unsafe fn open(&mut self, at: usize, path: &std::ffi::CStr) {
        self.dbs[at] = None; // one open at a time
        make(&mut self.dbs[at], |out, err| kingtide_db_open(path.as_ptr(), Some(&self.options), out, err));
    }

    /// The next call.
    ///
    /// # Safety
    /// The handles of the world are alive.
    unsafe fn call(&mut self, r: &mut Reader<'_>) -> Option<()> {
        let (what, at) = (r.u8()?, r.u8()? as usize);
        match what % 8 {
            0 => self.database(what / 8, at, r),
            1 | 2 => self.family(what / 8, at, r),
            3 => self.read(what / 8, at, r),
            4 | 5 => self.transaction(what / 8, at, r),
            6 => self.iterate(what / 8, at, r),
            _ => self.look_around(what / 8, at, r),
        }
    }

    /// # Safety
    /// The handles of the world are alive.
    unsafe fn database(&mut self, what: u8, at: usize, r: &mut Reader<'_>) -> Option<()> {
        let db = self.dbs[at % 2].as_deref();
        let (a, b) = (name(r)?, name(r)?);
        match what % 16 {
            0 => run(|err| kingtide_db_close(db, err)),
            1 => self.dbs[at % 2] = None,
            2 | 3 => self.open(at % 2, [c"one", c"two"][at % 2]),
            4 | 5 => make(&mut self.families[at % 4], |out, err| {
                kingtide_db_create_family(db, c(&a), Some(&self.options), c(&b), out, err)
            }),
            6 => run(|err| kingtide_db_drop_family(db, c(&a), err)),
            7 => run(|err| kingtide_db_rename_family(db, c(&a), c(&b), err)),
            8 => make(&mut self.families[at % 4], |out, err| kingtide_db_family(db, c(&a), out, err)),
            9 => make(&mut self.names, |out, err| kingtide_db_families(db, out, err)),
            10 => make(&mut self.snapshots[at / 2 % 2], |out, err| kingtide_db_snapshot(db, out, err)),
            11 => {
                let sequence = u64::from(r.u8()?);
                make(&mut self.snapshots[at / 2 % 2], |out, err| kingtide_db_snapshot_at(db, sequence, out, err));
            }
            12 => make(&mut self.stats, |out, err| kingtide_db_stats(db, out, err)),
            13 => make(&mut self.locks, |out, err| kingtide_db_locks(db, out, err)),
            14 => {
                let Bytes(xid, len) = bytes(r)?;
                run(|err| match at / 2 % 2 {
                    0 => kingtide_db_commit_prepared(db, xid, len, ptr::null_mut(), err),
                    _ => kingtide_db_rollback_prepared(db, xid, len, err),
                });
            }
            _ => {
                let options = kingtide_write_options {
                    size: size::<kingtide_write_options>(r)?,
                    durability: number(r, 4)?,
                    no_wait: 1,
                };
                let batch = self.batch.as_deref_mut();
                run(|err| kingtide_db_write(db, batch, &raw const options, ptr::null_mut(), err));
            }
        }
        Some(())
    }

    /// # Safety
    /// The handles of the world are alive.
    unsafe fn family(&mut self, what: u8, at: usize, r: &mut Reader<'_>) -> Option<()> {
        let family = self.families[at % 4].as_deref();
        let (Bytes(k, kl), Bytes(v, vl)) = (bytes(r)?, bytes(r)?);
        let batch = self.batch.as_deref_mut();
        let done = |call: &mut dyn FnMut(Err) -> kingtide_status| run(call);
        match what % 14 {
            0 | 1 => done(&mut |e| kingtide_family_put(family, k, kl, v, vl, e)),
            2 => done(&mut |e| kingtide_family_delete(family, k, kl, e)),
            3 => done(&mut |e| kingtide_family_delete_range(family, k, kl, v, vl, e)),
            4 => done(&mut |e| kingtide_family_delete_prefix(family, k, kl, e)),
            5 => run(|e| kingtide_batch_put(batch, family, k, kl, v, vl, e)),
            6 => run(|e| kingtide_batch_delete_range(batch, family, k, kl, v, vl, e)),
            7 => kingtide_batch_clear(batch),
            8 => self.batch = (!at.is_multiple_of(3)).then(|| kingtide_batch_new()),
            9 => {
                let (lower, upper) = (bound(r)?, bound(r)?);
                let mut stats: kingtide_range_stats = zeroed(size::<kingtide_range_stats>(r)?);
                done(&mut |e| kingtide_family_range_stats(family, &lower, &upper, &raw mut stats, e));
                let (mut rows, mut exact) = (0, false);
                done(&mut |e| {
                    kingtide_family_count_up_to(family, &lower, &upper, u64::MAX, &raw mut rows, &raw mut exact, e)
                });
            }
            10 => done(&mut |e| kingtide_family_flush(family, e)),
            11 => {
                let (n, value) = (name(r)?, name(r)?);
                done(&mut |e| kingtide_family_set_option(family, c(&n), c(&value), e));
                make(&mut self.text, |out, e| kingtide_family_get_option(family, c(&n), out, e));
            }
            12 => assert!((-1..=1).contains(&kingtide_family_compare(family, k, kl, v, vl))),
            _ => self.families[at % 4] = None,
        }
        Some(())
    }

    /// # Safety
    /// The handles of the world are alive.
    unsafe fn read(&mut self, what: u8, at: usize, r: &mut Reader<'_>) -> Option<()> {
        let (family, snapshot) = (self.families[at % 4].as_deref(), self.snapshots[at / 4 % 2].as_deref());
        let Bytes(k, kl) = bytes(r)?;
        let value = self.values[at / 8 % 2].as_deref_mut();
        match what % 4 {
            0 => run(|e| kingtide_family_get(family, k, kl, value, e)),
            1 => run(|e| kingtide_family_get_at(family, snapshot, k, kl, value, e)),
            2 => {
                let places: Vec<*mut kingtide_value> =
                    self.values.iter_mut().map(|v| v.as_deref_mut().map_or(ptr::null_mut(), |v| &raw mut *v)).collect();
                let keys = [kingtide_slice { data: k, len: kl }, kingtide_slice { data: ptr::null(), len: 0 }];
                let (mut statuses, n) = ([0; 2], at % 3);
                run(|e| kingtide_family_multi_get(family, keys.as_ptr(), n, places.as_ptr(), statuses.as_mut_ptr(), e));
            }
            _ => self.snapshots[at / 4 % 2] = None,
        }
        for value in &self.values {
            look(kingtide_value_data(value.as_deref()), kingtide_value_len(value.as_deref()));
        }
        Some(())
    }

    /// # Safety
    /// The handles of the world are alive.
    unsafe fn begin(&mut self, at: usize, r: &mut Reader<'_>) -> Option<()> {
        let options = kingtide_txn_options {
            size: size::<kingtide_txn_options>(r)?,
            isolation: number(r, 6)?,
            locking: number(r, 2)?,
            read_only: i32::from(r.u8()? > 240),
            durability: number(r, 4)?,
            no_wait: 1,
            reserved: 0,
            timeout_ms: 0,
            lock_timeout_ms: -i64::from(number(r, 2)?.min(9)),
            snapshot: self.snapshots[at % 2].as_deref().filter(|_| at > 200).map_or(ptr::null(), |s| &raw const *s),
        };
        let db = self.dbs[at / 2 % 2].as_deref();
        make(&mut self.txns[at % 3], |out, e| kingtide_txn_begin(db, &raw const options, out, e));
        Some(())
    }

    /// # Safety
    /// The handles of the world are alive.
    unsafe fn transaction(&mut self, what: u8, at: usize, r: &mut Reader<'_>) -> Option<()> {
        if what % 16 < 2 {
            return self.begin(at, r);
        }
        let (txn, family) = (self.txns[at % 3].as_deref_mut(), self.families[at / 6 % 4].as_deref());
        let (Bytes(k, kl), Bytes(v, vl)) = (bytes(r)?, bytes(r)?);
        let value = self.values[0].as_deref_mut();
        match what % 16 {
            2 | 3 => run(|e| kingtide_txn_put(txn, family, k, kl, v, vl, e)),
            4 => run(|e| kingtide_txn_delete(txn, family, k, kl, e)),
            5 => run(|e| kingtide_txn_delete_range(txn, family, k, kl, v, vl, e)),
            6 => run(|e| kingtide_txn_get(txn, family, k, kl, value, e)),
            7 => run(|e| kingtide_txn_get_for_update(txn, family, k, kl, value, e)),
            8 => {
                let (lower, upper, mode) = (bound(r)?, bound(r)?, number(r, 3)?);
                run(|e| kingtide_txn_lock_range(txn, family, &lower, &upper, mode, e));
            }
            9 => run(|e| kingtide_txn_commit(txn, ptr::null_mut(), e)),
            10 => {
                make(&mut self.ticket, |out, e| kingtide_txn_commit_ordered(txn, out, e));
                run(|e| kingtide_ticket_wait(self.ticket.as_deref_mut(), e));
            }
            11 => run(|e| kingtide_txn_prepare(txn, k, kl, e)),
            12 => run(|e| kingtide_txn_reset(txn, e)),
            13 => {
                let n = name(r)?;
                run(|e| match kl % 3 {
                    0 => kingtide_txn_set_savepoint(txn, c(&n), e),
                    1 => kingtide_txn_rollback_to_savepoint(txn, c(&n), e),
                    _ => kingtide_txn_release_savepoint(txn, c(&n), e),
                });
            }
            14 => {
                make(&mut self.handle, |out, e| kingtide_txn_get_handle(txn.as_deref(), out, e));
                run(|e| match kl % 2 {
                    0 => kingtide_txn_handle_abort(self.handle.as_deref(), e),
                    _ => kingtide_txn_handle_interrupt(self.handle.as_deref(), e),
                });
            }
            _ => self.txns[at % 3] = None,
        }
        Some(())
    }

    /// # Safety
    /// The handles of the world are alive.
    unsafe fn iterate(&mut self, what: u8, at: usize, r: &mut Reader<'_>) -> Option<()> {
        let slot = &mut self.iters[at % 3];
        let Bytes(k, kl) = bytes(r)?;
        match what % 9 {
            0 | 1 => {
                let Bytes(prefix, prefix_len) = bytes(r)?;
                let options = kingtide_read_options {
                    size: size::<kingtide_read_options>(r)?,
                    lower: bound(r)?,
                    upper: bound(r)?,
                    prefix: if kl.is_multiple_of(2) { ptr::null() } else { prefix },
                    prefix_len: if kl.is_multiple_of(2) { 0 } else { prefix_len },
                    snapshot: ptr::null(),
                    no_fill_cache: 0,
                    readahead: number(r, 2)?,
                    newest: i32::from(kl.is_multiple_of(5)),
                    reserved: 0,
                };
                let family = self.families[at / 6 % 4].as_deref();
                let txn = self.txns[at / 12 % 3].as_deref_mut();
                make(slot, |out, e| match what % 2 {
                    0 => kingtide_family_iter(family, &raw const options, out, e),
                    _ => kingtide_txn_iter(txn, family, &raw const options, out, e),
                });
            }
            2 => moved(kingtide_iter_seek_to_first(slot.as_deref_mut())),
            3 => moved(kingtide_iter_seek_to_last(slot.as_deref_mut())),
            4 => moved(kingtide_iter_seek(slot.as_deref_mut(), k, kl)),
            5 => moved(kingtide_iter_seek_for_prev(slot.as_deref_mut(), k, kl)),
            6 => moved(kingtide_iter_next(slot.as_deref_mut())),
            7 => moved(kingtide_iter_prev(slot.as_deref_mut())),
            _ if kl.is_multiple_of(2) => *slot = None,
            _ => run(|e| kingtide_iter_refresh(slot.as_deref_mut(), self.families[at / 6 % 4].as_deref(), e)),
        }
        let (mut data, mut len) = (ptr::null(), 0);
        look(kingtide_iter_key(slot.as_deref(), &raw mut len), len);
        if works(|e| kingtide_iter_value(slot.as_deref_mut(), &raw mut data, &raw mut len, e)) {
            look(data, len);
        }
        run(|e| kingtide_iter_status(slot.as_deref(), e));
        Some(())
    }

    /// Lists, streams, texts.
    ///
    /// # Safety
    /// The handles of the world are alive.
    unsafe fn look_around(&mut self, what: u8, at: usize, r: &mut Reader<'_>) -> Option<()> {
        let db = self.dbs[at % 2].as_deref();
        let index = r.u8()? as usize % 70;
        match what % 6 {
            0 => make(&mut self.stream, |out, e| kingtide_db_changes(db, index as u64, ptr::null(), out, e)),
            1 => {
                make(&mut self.record, |out, e| kingtide_change_stream_next(self.stream.as_deref_mut(), 0, out, e));
                let mut change: kingtide_change = zeroed(size_of::<kingtide_change>());
                if kingtide_change_record_get(self.record.as_deref(), index, &raw mut change) {
                    look(change.key.cast(), change.key_len);
                    look(change.value.cast(), change.value_len);
                }
            }
            2 => {
                let mut len = 0;
                look(kingtide_strings_get(self.names.as_deref(), index, &raw mut len).cast(), len);
                look(kingtide_text_data(self.text.as_deref()).cast(), kingtide_text_len(self.text.as_deref()));
            }
            3 => {
                let mut lock: kingtide_lock_info = zeroed(size::<kingtide_lock_info>(r)?);
                if kingtide_lock_list_get(self.locks.as_deref(), index, &raw mut lock)
                    && lock.size == size_of::<kingtide_lock_info>()
                {
                    look(lock.lower.key.cast(), lock.lower.key_len);
                    look(lock.upper.key.cast(), lock.upper.key_len);
                }
            }
            4 => {
                let mut stat: kingtide_stat = zeroed(size::<kingtide_stat>(r)?);
                moved(kingtide_stats_get(self.stats.as_deref(), index, &raw mut stat));
                make(&mut self.text, |out, e| kingtide_stats_json(self.stats.as_deref(), out, e));
            }
            _ => {
                let (n, value) = (name(r)?, name(r)?);
                run(|e| kingtide_options_set(Some(&mut self.options), c(&n), c(&value), e));
                make(&mut self.text, |out, e| kingtide_options_get(Some(&self.options), c(&n), out, e));
            }
        }
        Some(())
    }
}

/// A struct of the API with its size set and zero in everything else.
fn zeroed<T: Sized_>(size: usize) -> T {
    // SAFETY: any bytes are a value of such a struct; its first member is its size.
    unsafe {
        let mut made: T = std::mem::zeroed();
        (&raw mut made).cast::<usize>().write(size);
        made
    }
}
