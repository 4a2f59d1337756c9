//! A family is dropped in the midst of a transaction's read.

use kingtide::vfs::MemFs;
use kingtide::{
    ColumnFamily, CustomOrder, Db, ErrorKind, FamilyOptions, Isolation, KeyOrder, Options, ReadOptions, Result,
    Transaction, TransactionOptions,
};
use std::cmp::Ordering;
use std::sync::{Arc, Mutex};

type Trap = Box<dyn FnOnce() + Send>;

/// The bytewise order. The next time that it is asked for an image of a key, it does something else first: this is where a
/// read has looked whether its family is there, and has not read yet.
#[derive(Default)]
struct Trapped(Mutex<Option<Trap>>);

impl CustomOrder for Trapped {
    fn name(&self) -> &str {
        "trapped"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.cmp(b)
    }

    fn head(&self, _key: &[u8]) -> u64 {
        let trap = self.0.lock().unwrap().take();
        if let Some(trap) = trap {
            trap();
        }
        0
    }
}

type Read = (&'static str, fn(&mut Transaction, &ColumnFamily) -> Result<bool>);

/// Every way to read, and whether it found something.
const READS: &[Read] = &[
    ("get", |t, f| t.get(f, b"k").map(|v| v.is_some())),
    ("get_reader", |t, f| t.get_reader(f, b"k").map(|v| v.is_some())),
    ("get_for_update", |t, f| t.get_for_update(f, b"k").map(|v| v.is_some())),
    ("get_for_share", |t, f| t.get_for_share(f, b"k").map(|v| v.is_some())),
    ("multi_get", |t, f| t.multi_get(f, &["k"]).remove(0).map(|v| v.is_some())),
    ("multi_get_for_update", |t, f| t.multi_get_for_update(f, &["k"]).remove(0).map(|v| v.is_some())),
    ("cursor", |t, f| {
        let mut cursor = t.cursor_with(f, ReadOptions::default())?;
        cursor.seek(b"k");
        cursor.status()?;
        Ok(cursor.valid())
    }),
];

/// What the read finds in a family that was emptied says nothing of what was in it, least of all at an earlier moment.
#[test]
fn a_read_that_meets_the_drop_of_its_family_finds_what_was_there_or_fails() {
    let (mut met, mut all) = (0, 0);
    for (name, read) in READS {
        for isolation in Isolation::ALL {
            for locking in [false, true] {
                let options = Options { fs: Some(MemFs::shared()), manual_jobs: true, ..Options::default() };
                let db = Arc::new(Db::open("db", options).unwrap());
                let order = Arc::new(Trapped::default());
                let ordered = KeyOrder::Custom(order.clone());
                let family = db.create_family_ordered("f", FamilyOptions::default(), ordered).unwrap();
                family.put("k", "v").unwrap();
                let mut txn = db.begin_with(TransactionOptions::new(isolation).locking(locking)).unwrap();
                txn.put(&family, b"own", b"w").unwrap();
                assert!(txn.get(&family, b"k").unwrap().is_some());
                let dropping = db.clone();
                *order.0.lock().unwrap() = Some(Box::new(move || dropping.drop_family("f").unwrap()));
                let found = read(&mut txn, &family);
                let what = format!("{name} at {isolation}, locking: {locking}");
                all += 1;
                if order.0.lock().unwrap().take().is_none() {
                    met += 1;
                }
                match found {
                    Ok(found) => assert!(found, "{what}: the key is said to be absent"),
                    Err(e) => assert_eq!(e.kind(), ErrorKind::Closed, "{what}: {e}"),
                }
            }
        }
    }
    assert!(met * 2 > all, "only {met} of {all} reads met the drop");
}
