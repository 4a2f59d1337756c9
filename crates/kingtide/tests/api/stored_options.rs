//! The default family's options: those given to open apply and are stored; `Options::load` gives back the stored ones.

use kingtide::vfs::{Fs, MemFs, Survival};
use kingtide::{CustomOrder, Db, ErrorKind, KeyOrder, Options};
use kingtide_base::rng::Rng;
use std::cmp::Ordering;
use std::sync::Arc;

fn options(fs: &MemFs) -> Options {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    Options::new().fs(fs).manual_jobs(true)
}

fn with_block_size(fs: &MemFs, bytes: u64) -> Options {
    let mut o = options(fs);
    o.set("block_size", &bytes.to_string()).unwrap();
    o
}

fn stored_block_size(fs: &MemFs) -> String {
    options(fs).load("db").unwrap().family.get("block_size").unwrap()
}

#[test]
fn what_was_created_with_or_set_since_is_given_back() {
    let fs = MemFs::new();
    assert_eq!(options(&fs).load("db").unwrap_err().kind(), ErrorKind::NotFound);
    let db = Db::open("db", with_block_size(&fs, 2048)).unwrap();
    assert_eq!(stored_block_size(&fs), "2048", "also while it is open");
    db.default_family().set_option("l0_trigger", "7").unwrap();
    db.close().unwrap();

    let mut given = options(&fs);
    given.set("block_cache_size", "1048576").unwrap();
    let loaded = given.load("db").unwrap();
    assert_eq!(loaded.family.get("l0_trigger").as_deref(), Some("7"));
    assert_eq!(loaded.db.block_cache_size, 1 << 20, "options of the database stay as they were given");
    let names = || fs.list("db".as_ref()).unwrap();
    let before = names();
    let db = Db::open("db", loaded.clone()).unwrap();
    assert_eq!(db.default_family().options(), loaded.family);
    db.close().unwrap();
    assert_eq!(names(), before);
}

#[test]
fn what_is_given_to_open_wins_and_is_stored() {
    let fs = MemFs::new();
    drop(Db::open("db", with_block_size(&fs, 2048)).unwrap());
    drop(Db::open_read_only("db", with_block_size(&fs, 1024)).unwrap());
    assert_eq!(stored_block_size(&fs), "2048", "a reader changes nothing");

    let db = Db::open("db", with_block_size(&fs, 8192)).unwrap();
    assert_eq!(db.default_family().options().get("block_size").as_deref(), Some("8192"));
    for model in Survival::ALL {
        let cut = fs.crash_clone(model, &mut Rng::new(1));
        assert_eq!(stored_block_size(&cut), "8192", "{model:?}");
    }
    drop(db);
    assert_eq!(stored_block_size(&fs), "8192");

    // Other families keep theirs, whatever is given.
    let db = Db::open("db", with_block_size(&fs, 8192)).unwrap();
    db.create_family("other", with_block_size(&fs, 512).family).unwrap();
    drop(db);
    let db = Db::open("db", with_block_size(&fs, 4096)).unwrap();
    let other = db.family("other").unwrap();
    assert_eq!(other.options().get("block_size").as_deref(), Some("512"));
}

#[test]
fn a_full_disk_opens_with_other_options() {
    let fs = MemFs::new();
    let db = Db::open("db", with_block_size(&fs, 2048)).unwrap();
    db.default_family().put("key", "value").unwrap();
    drop(db);
    fs.set_capacity(Some(0));
    let db = Db::open("db", with_block_size(&fs, 8192)).unwrap();
    assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"value"[..]));
    fs.set_capacity(None);
    drop(db);
    drop(Db::open("db", with_block_size(&fs, 8192)).unwrap());
    assert_eq!(stored_block_size(&fs), "8192");
}

struct Reversed;

impl CustomOrder for Reversed {
    fn name(&self) -> &str {
        "reversed bytes"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        b.cmp(a)
    }

    fn head(&self, _: &[u8]) -> u64 {
        0
    }
}

#[test]
fn the_key_order_is_given_back_too() {
    let fs = MemFs::new();
    let mut o = options(&fs);
    o.order = KeyOrder::Custom(Arc::new(Reversed));
    drop(Db::open("db", o).unwrap());
    let e = options(&fs).load("db").unwrap_err();
    assert!(e.kind() == ErrorKind::Incompatible && e.message().contains("reversed bytes"), "{e}");
    let mut o = options(&fs);
    o.custom_orders.push(Arc::new(Reversed));
    let loaded = o.load("db").unwrap();
    assert_eq!(loaded.order.name(), "reversed bytes");
    Db::open("db", loaded).unwrap();
}
