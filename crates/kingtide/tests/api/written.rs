//! What a write returns, how a batch is handed over, and which families a verb of the database means.

use kingtide::vfs::MemFs;
use kingtide::{Db, Options, WriteBatch, WriteOptions};
use std::io::Write;
use std::time::Duration;

fn open() -> Db {
    Db::open("/db", Options::new().fs(MemFs::shared()).l0_trigger(8)).unwrap()
}

#[test]
fn every_write_returns_the_sequence_number_up_to_which_it_is_seen() {
    let db = open();
    let family = db.create_family("f", Default::default()).unwrap();
    let staged = |bytes: &[u8]| {
        let mut writer = family.value_writer().unwrap();
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    };
    let hour = Duration::from_secs(3600);
    let value = staged(b"in pieces");
    let writes: [&dyn Fn() -> kingtide::Result<u64>; 12] = [
        &|| db.put("a", "1"),
        &|| db.put_ttl("b", "2", hour),
        &|| db.delete("a"),
        &|| db.single_delete("b"),
        &|| db.delete_range("a".."c"),
        &|| family.put("a", "3"),
        &|| family.put_ttl("b", "4", hour),
        &|| family.put_staged("c", &value),
        &|| family.delete("a"),
        &|| family.single_delete("b"),
        &|| family.delete_range("a".."b"),
        &|| family.delete_prefix("c"),
    ];
    let mut before = db.latest_sequence();
    for (i, write) in writes.iter().enumerate() {
        let last = write().unwrap();
        assert!(last > before && last == db.latest_sequence(), "write {i}: {before}, {last}, {}", db.latest_sequence());
        before = last;
    }
    assert_eq!(db.delete_range("a".."a").unwrap(), 0, "nothing is written for an empty range");
    assert_eq!(db.latest_sequence(), before);
}

#[test]
fn a_batch_is_given_or_lent() {
    let db = open();
    let family = db.default_family();
    let mut batch = WriteBatch::new();
    batch.put(family, b"a", b"1").unwrap();
    batch.put(family, b"b", b"2").unwrap();
    let first = db.write(&mut batch).unwrap();
    assert_eq!((batch.len(), first), (2, db.latest_sequence()), "it comes back as it was");
    assert_eq!(db.write_with(&mut batch, &WriteOptions::default()).unwrap(), first + 2);
    batch.clear();
    batch.delete(family, b"a").unwrap();
    assert_eq!(db.write(batch).unwrap(), first + 3);
    assert_eq!(db.iter().count(), 1);
}

#[test]
fn flush_and_compact_mean_all_families_on_the_database_and_one_on_a_family() {
    let db = open();
    let [one, two] = ["one", "two"].map(|name| db.create_family(name, Default::default()).unwrap());
    let runs = |name: &str| {
        let report = db.stats();
        let family = report.families.iter().find(|f| f.name == name).unwrap();
        family.levels.iter().map(|l| l.runs).sum::<usize>()
    };
    let fill = || {
        for family in [&one, &two] {
            family.put("a", "1").unwrap();
        }
    };
    fill();
    one.flush().unwrap();
    assert_eq!((runs("one"), runs("two")), (1, 0));
    db.flush().unwrap();
    fill();
    db.flush().unwrap();
    assert_eq!((runs("one"), runs("two")), (2, 2));
    one.compact().unwrap();
    assert_eq!((runs("one"), runs("two")), (1, 2));
    fill();
    db.compact().unwrap();
    assert_eq!((runs("one"), runs("two")), (1, 1));
}

#[test]
fn a_number_within_a_batch_shows_the_batch_up_to_there() {
    let db = open();
    let family = db.default_family();
    let mut batch = WriteBatch::new();
    [b"a", b"b", b"c"].iter().for_each(|key| batch.put(family, *key, b"1").unwrap());
    let last = db.write(batch).unwrap();
    for back in 0..3 {
        assert_eq!(db.snapshot_at(last - back).unwrap().iter(family).count() as u64, 3 - back);
    }
}
