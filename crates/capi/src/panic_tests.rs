//! What C sees of a panic in the middle of the engine: a key order that panics on demand, called through the API.

use crate::*;
use kingtide::CustomOrder;
use std::cmp::Ordering;
use std::ffi::CString;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

static ARMED: AtomicBool = AtomicBool::new(false);

struct Bomb;

impl CustomOrder for Bomb {
    fn name(&self) -> &str {
        "bomb"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        assert!(!ARMED.load(SeqCst), "the order was armed");
        a.cmp(b)
    }
}

/// The object behind a handle that a function gave, for Rust to use and free.
fn own<T>(handle: *mut T) -> Box<T> {
    assert!(!handle.is_null());
    // SAFETY: made by `Box::into_raw` in the library, and not freed.
    unsafe { Box::from_raw(handle) }
}

fn put(family: &kingtide_family, key: &[u8]) -> kingtide_status {
    // SAFETY: the pointers are NULL or to what is here.
    unsafe { kingtide_family_put(Some(family), key.as_ptr().cast(), key.len(), ptr::null(), 0, ptr::null_mut()) }
}

#[test]
fn a_panic_in_the_engine_is_a_status() {
    // SAFETY: the pointers are NULL or to what is here.
    unsafe {
        let dir = std::env::temp_dir().join(format!("kingtide-capi-panic-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir); // of an earlier process with this number
        let mut options = kingtide_options_new();
        options.options.custom_orders.push(Arc::new(Bomb));
        let path = CString::new(dir.to_str().unwrap()).unwrap();
        let (mut db, mut family) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(
            kingtide_db_open(path.as_ptr(), Some(&options), &raw mut db, ptr::null_mut()),
            kingtide_status::KINGTIDE_OK
        );
        let db = own(db);
        let (name, order) = (c"f".as_ptr(), c"bomb".as_ptr());
        let made = kingtide_db_create_family(Some(&db), name, None, order, &raw mut family, ptr::null_mut());
        assert_eq!(made, kingtide_status::KINGTIDE_OK);
        let family = own(family);
        for key in 0..100u8 {
            assert_eq!(put(&family, &[key]), kingtide_status::KINGTIDE_OK);
        }
        let (mut iter, mut txn) = (ptr::null_mut(), ptr::null_mut());
        let none = ptr::null_mut();
        assert_eq!(kingtide_family_iter(Some(&family), ptr::null(), &raw mut iter, none), kingtide_status::KINGTIDE_OK);
        assert_eq!(kingtide_txn_begin(Some(&db), ptr::null(), &raw mut txn, none), kingtide_status::KINGTIDE_OK);
        let (mut iter, mut txn) = (own(iter), own(txn));
        assert!(kingtide_iter_seek_to_first(Some(&mut iter)));

        let mut err = ptr::null_mut();
        let mut value = kingtide_value_new();
        ARMED.store(true, SeqCst);
        let key = [7u8];
        let at = key.as_ptr().cast();
        let read = kingtide_family_get(Some(&family), at, 1, Some(&mut value), &raw mut err);
        assert_eq!(read, kingtide_status::KINGTIDE_PANIC);
        assert!(own(err).message_text().contains("the order was armed"));
        assert!(!kingtide_iter_seek(Some(&mut iter), at, 1), "a move that panicked is invalid");
        let reserved = kingtide_txn_put(Some(&mut txn), Some(&family), at, 1, ptr::null(), 0, none);
        let committed = kingtide_txn_commit(Some(&mut txn), ptr::null_mut(), none);
        assert!([reserved, committed].contains(&kingtide_status::KINGTIDE_PANIC), "{reserved:?} {committed:?}");
        ARMED.store(false, SeqCst);

        assert!(!kingtide_iter_seek_to_first(Some(&mut iter)), "it stays invalid");
        assert_eq!(kingtide_iter_status(Some(&iter), none), kingtide_status::KINGTIDE_PANIC);
        assert_eq!(
            put(&family, b"after"),
            kingtide_status::KINGTIDE_POISONED,
            "a commit was torn: no write may follow"
        );
        let read = kingtide_family_get(Some(&family), at, 1, Some(&mut value), none);
        assert_eq!(read, kingtide_status::KINGTIDE_OK, "reads go on");
        assert!(kingtide_value_is_present(Some(&value)));
        drop((iter, txn, family));
        kingtide_db_free(Some(db));

        let mut again = ptr::null_mut();
        let opened = kingtide_db_open(path.as_ptr(), Some(&options), &raw mut again, none);
        assert_eq!(opened, kingtide_status::KINGTIDE_OK, "and another open finds it sound");
        let (db, mut family) = (own(again), ptr::null_mut());
        assert_eq!(kingtide_db_family(Some(&db), name, &raw mut family, none), kingtide_status::KINGTIDE_OK);
        let family = own(family);
        assert_eq!(put(&family, b"after"), kingtide_status::KINGTIDE_OK);
        drop((family, db));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
