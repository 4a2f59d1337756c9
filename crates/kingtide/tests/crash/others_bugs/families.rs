//! Column families that come and go.

use super::{Contents, DIR, contents, crashes, cut, key, large, open, options, power, small, value};
use kingtide::vfs::MemFs;
use kingtide::{Db, ErrorKind, WriteBatch};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Replay skipped one operation too many behind those of a family that had been dropped, at every such boundary. Here
/// operations of a dropped family stand at each place of batches of three families.
#[test]
fn no_entry_is_lost_at_a_boundary_with_a_dropped_family() {
    for durable in [false, true] {
        let fs = MemFs::new();
        let db = open(&fs);
        let families = ["left", "passing", "right"].map(|name| db.create_family(name, small()).unwrap());
        let mut stored = [Contents::new(), Contents::new(), Contents::new()];
        for n in 0..81u64 {
            // Which family each of four operations goes to: all 81 ways.
            let mut batch = WriteBatch::new();
            for place in 0..4 {
                let family = (n / 3u64.pow(place) % 3) as usize;
                let i = n * 4 + u64::from(place);
                batch.put(&families[family], &key(i), &value(i)).unwrap();
                stored[family].insert(key(i), value(i));
            }
            db.write(batch).unwrap();
            if n == 41 {
                families[0].flush().unwrap(); // so that of the rest only a part is to be replayed
            }
        }
        db.drop_family("passing").unwrap();
        db.create_family("passing", small()).unwrap();
        if durable {
            db.sync().unwrap();
        }
        let db = open(&if durable { cut(&fs) } else { fs.kill_clone() });
        assert_eq!(contents(&db.family("left").unwrap()), stored[0], "before the dropped family");
        assert_eq!(contents(&db.family("right").unwrap()), stored[2], "behind the dropped family");
        assert_eq!(contents(&db.family("passing").unwrap()), Contents::new(), "another family of that name");
    }
}

/// `clear` deleted the files and left the log, or the other way round; after a crash keys came back. Both ways to clear a
/// family here are one commit or one manifest record: a crash at any point finds all keys or none, and once it returned, none.
#[test]
fn deleted_keys_are_not_back_after_a_clear_and_a_crash_at_any_point() {
    for drop_and_create in [false, true] {
        let fs = MemFs::new();
        let db = open(&fs);
        let family = db.create_family("cleared", small()).unwrap();
        let mut stored = Contents::new();
        for i in 0..90 {
            family.put(key(i), large(i)).unwrap();
            stored.insert(key(i), large(i));
            if i % 40 == 39 {
                family.flush().unwrap(); // in tables, in value logs, and in the memtable
            }
        }
        db.sync().unwrap();
        let step = Arc::new(AtomicU64::new(0));
        let progress = step.clone();
        let found = crashes(
            &fs,
            move || progress.load(Ordering::SeqCst),
            || {
                if drop_and_create {
                    db.drop_family("cleared").unwrap();
                    step.store(1, Ordering::SeqCst);
                    db.create_family("cleared", small()).unwrap();
                } else {
                    let mut batch = WriteBatch::new();
                    batch.delete_range(&family, b"key-"..b"key.").unwrap();
                    db.write_with(&mut batch, &power()).unwrap();
                }
                step.store(2, Ordering::SeqCst);
                db.put(b"later", b"1").unwrap();
                db.flush().unwrap();
                let cleared = db.family("cleared").unwrap();
                cleared.put(b"new", b"1").unwrap();
                cleared.flush().unwrap();
                cleared.compact_range(..).unwrap();
            },
        );
        println!("{} crashes around a clear", found.len());
        for (n, (fs, step)) in found.iter().enumerate() {
            let db = Db::open(DIR, options(fs)).unwrap_or_else(|e| panic!("crash {n}: {e:?}"));
            let mut left = db.family("cleared").map(|f| contents(&f)).unwrap_or_default();
            left.remove(&b"new"[..]);
            assert!(left.is_empty() || (*step == 0 && left == stored), "crash {n}, step {step}: {} keys", left.len());
        }
    }
}

/// A family with an empty name was created, and could not be opened, dropped, or told from the lack of a name.
#[test]
fn an_empty_family_name_is_refused() {
    let fs = MemFs::new();
    let db = open(&fs);
    db.create_family("named", small()).unwrap();
    assert_eq!(db.create_family("", small()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(db.rename_family("named", "").unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(db.drop_family("").unwrap_err().kind(), ErrorKind::NotFound);
    db.close().unwrap();
    assert_eq!(open(&fs).families(), ["default", "named"]);
}
