//! Values read in pieces: the same bytes as a read of the whole, from wherever the value lies, whatever happens meanwhile.

use kingtide::vfs::{Fs, MemFs, OpenMode};
use kingtide::{ColumnFamily, Compression, Db, ErrorKind, FamilyOptions, Isolation, Options, Transaction, ValueReader};
use kingtide_base::rng::Rng;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

const LENGTHS: [usize; 9] = [0, 1, 511, 4096, 4097, 65_535, 65_536, 300_001, 3_000_000];

/// Half of it compresses, so that chunks differ in their stored length.
fn value(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut rng = Rng::new(seed);
    for piece in bytes.chunks_mut(1500).step_by(2) {
        rng.fill(piece);
    }
    bytes
}

fn key(len: usize) -> String {
    format!("value-{len}")
}

fn open(fs: &MemFs, compression: Compression, chunk: u64) -> Db {
    let family = FamilyOptions::new().compression(compression).value_chunk_size(chunk);
    let options = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true).family(family);
    Db::open("db", options).unwrap()
}

/// Reads it in every way.
fn check(mut reader: ValueReader, want: &[u8], rng: &mut Rng, what: &str) {
    assert_eq!((reader.len(), reader.is_empty()), (want.len() as u64, want.is_empty()), "{what}");
    let mut whole = Vec::new();
    reader.read_to_end(&mut whole).unwrap();
    assert!(whole == want, "{what}: the whole");
    for _ in 0..30 {
        let at = rng.below(want.len() as u64 + 10);
        let mut buf = vec![0xee; rng.below(20_000) as usize];
        let there = &want[want.len().min(at as usize)..want.len().min(at as usize + buf.len())];
        let n = if rng.one_in(2) {
            reader.read_at(at, &mut buf).unwrap()
        } else {
            let from_end = at as i64 - want.len() as i64;
            reader.seek(if rng.one_in(2) { SeekFrom::Start(at) } else { SeekFrom::End(from_end) }).unwrap();
            let n = reader.read(&mut buf).unwrap();
            assert_eq!(reader.stream_position().unwrap(), at + n as u64, "{what}");
            n
        };
        assert!(buf[..n] == *there, "{what}: {} bytes at {at}", buf.len());
        assert!(buf[n..].iter().all(|b| *b == 0xee), "{what}: wrote behind what it read");
    }
    assert_eq!(
        reader.seek(SeekFrom::Current(-(want.len() as i64) - 1_000_000)).unwrap_err().kind(),
        std::io::ErrorKind::InvalidInput
    );
    assert_eq!(reader.read_at(u64::MAX, &mut [0; 9]).unwrap(), 0);
}

fn check_all(family: &ColumnFamily, seed: u64, what: &str) {
    let mut rng = Rng::new(seed);
    for len in LENGTHS {
        let reader = family.get_reader(key(len)).unwrap().expect("it was put");
        check(reader, &value(len, seed), &mut rng, &format!("{what}, {len} bytes"));
    }
    assert!(family.get_reader("absent").unwrap().is_none());
}

#[test]
fn pieces_are_those_of_the_whole_wherever_the_value_lies() {
    for (compression, chunk) in
        [(Compression::None, 4096), (Compression::Lz4, 4096), (Compression::Lz4, 262_144), (Compression::Zstd, 65_536)]
    {
        let what = format!("{compression:?}, chunks of {chunk}");
        let fs = MemFs::new();
        let db = open(&fs, compression, chunk);
        LENGTHS.iter().for_each(|len| {
            db.put(key(*len), value(*len, 1)).unwrap();
        });
        let family = db.default_family();
        check_all(family, 1, &format!("{what}, in a memtable"));
        db.flush().unwrap();
        check_all(family, 1, &format!("{what}, flushed"));
        let before = db.snapshot();
        LENGTHS.iter().for_each(|len| {
            db.put(key(*len), value(*len, 2)).unwrap();
        });
        db.flush().unwrap();
        db.compact().unwrap();
        check_all(family, 2, &format!("{what}, compacted"));
        let mut rng = Rng::new(3);
        for len in LENGTHS {
            let old = before.of(family).get_reader(key(len)).unwrap().expect("it was put");
            check(old, &value(len, 1), &mut rng, &format!("{what}, snapshot, {len} bytes"));
        }
        drop(before);
        db.close().unwrap();
        check_all(open(&fs, compression, chunk).default_family(), 2, &format!("{what}, opened again"));
    }
}

/// A reader keeps what it reads: memtables that are flushed, files that are compacted away, a family that is dropped.
#[test]
fn a_reader_reads_on_whatever_happens_to_the_value() {
    let fs = MemFs::new();
    let db = open(&fs, Compression::Lz4, 4096);
    let family = db.create_family("short-lived", db.default_family().options()).unwrap();
    let (len, mut rng) = (300_001, Rng::new(1));
    let put = |seed| family.put(key(len), value(len, seed)).unwrap();
    let begun = |seed| {
        let mut reader = family.get_reader(key(len)).unwrap().expect("it was put");
        let mut some = vec![0; 10_000];
        reader.read_exact(&mut some).unwrap();
        assert!(some == value(len, seed)[..10_000]);
        reader.rewind().unwrap();
        reader
    };
    put(1);
    let mut readers = vec![(begun(1), 1)];
    db.flush().unwrap();
    readers.push((begun(1), 1));
    put(2);
    readers.push((begun(2), 2));
    db.flush().unwrap();
    family.compact_range(..).unwrap();
    readers.push((begun(2), 2));
    family.delete(key(len)).unwrap();
    assert!(family.get_reader(key(len)).unwrap().is_none(), "deleted");
    family.compact_range(..).unwrap();
    db.drop_family("short-lived").unwrap();
    db.wait_for_background().unwrap();
    let count = || fs.list(Path::new("db")).unwrap().iter().filter(|n| n.ends_with(".vlog")).count();
    assert!(count() > 0, "the readers keep their files");
    for (reader, seed) in readers {
        check(reader, &value(len, seed), &mut rng, "of long ago");
    }
    while db.run_one_job().unwrap() {}
    assert_eq!(count(), 0, "they are no longer needed");
    assert_eq!(family.get_reader(key(len)).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn a_damaged_chunk_is_an_error_with_its_place_and_spares_the_others() {
    let fs = MemFs::new();
    let db = open(&fs, Compression::None, 4096);
    let want = value(300_001, 1);
    db.put("k", &want).unwrap();
    db.close().unwrap();
    let name = fs.list(Path::new("db")).unwrap().into_iter().find(|n| n.ends_with(".vlog")).unwrap();
    let file = fs.open(&Path::new("db").join(&name), OpenMode::Write).unwrap();
    let at = file.len().unwrap() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_at(&[byte[0] ^ 1], at).unwrap();
    let db = open(&fs, Compression::None, 4096);
    let mut reader = db.default_family().get_reader("k").unwrap().expect("it was put");
    let mut buf = vec![0; 4096];
    let mut damaged = 0;
    for from in (0..want.len()).step_by(4096) {
        match reader.read_at(from as u64, &mut buf) {
            Ok(n) => assert!(buf[..n] == want[from..from + n]),
            Err(e) => {
                damaged += 1;
                assert!(
                    e.kind() == ErrorKind::Corruption && e.to_string().contains(&name) && e.offset().is_some(),
                    "{e}"
                );
            }
        }
    }
    assert_eq!(damaged, 1);
    reader.rewind().unwrap();
    let e = reader.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::InvalidData);
    assert!(e.get_ref().is_some_and(|inner| inner.is::<kingtide::Error>()));
}

/// Range tombstones and expiry hide a value from a reader that is opened later.
#[test]
fn hidden_values_have_no_reader() {
    let fs = MemFs::new();
    let db = open(&fs, Compression::Lz4, 4096);
    let family = db.default_family();
    for flushed in [false, true] {
        db.put("k", value(100_000, 1)).unwrap();
        family.put_ttl("long", value(100_000, 2), std::time::Duration::from_secs(3600)).unwrap();
        if flushed {
            db.flush().unwrap();
        }
        check(family.get_reader("long").unwrap().unwrap(), &value(100_000, 2), &mut Rng::new(1), "with a life");
        db.delete_range("a".."l").unwrap();
        assert!(family.get_reader("k").unwrap().is_none());
    }
}

#[test]
fn a_range_of_a_value_is_that_part_of_the_whole() {
    let fs = MemFs::new();
    let db = open(&fs, Compression::Lz4, 4096);
    let family = db.default_family();
    let whole = value(300_001, 7);
    family.put("v", &whole).unwrap();
    for flushed in [false, true] {
        if flushed {
            db.flush().unwrap();
        }
        for range in [0..0, 0..1, 4095..4097, 299_990..300_001, 0..300_001] {
            let want = &whole[range.start as usize..range.end as usize];
            assert!(family.get_range("v", range.clone()).unwrap().unwrap() == want, "{range:?} {flushed}");
        }
        assert_eq!(family.get_range("v", 300_000..u64::MAX).unwrap().unwrap(), &whole[300_000..]);
        assert!(family.get_range("v", 400_000..500_000).unwrap().unwrap().is_empty());
        assert!(family.get_range("v", std::ops::Range { start: 9, end: 3 }).unwrap().unwrap().is_empty());
    }
    assert_eq!(family.get_range("absent", 0..9).unwrap(), None);
}

#[test]
fn a_transaction_reads_pieces_of_what_it_sees_and_is_checked_for_it() {
    let fs = MemFs::new();
    let db = open(&fs, Compression::None, 4096);
    let family = db.default_family();
    let [old, new] = [value(200_000, 1), value(150_000, 2)];
    family.put("v", &old).unwrap();
    db.flush().unwrap();
    let read = |txn: &mut Transaction, key: &str| {
        let reader = txn.of(family).get_reader(key).unwrap();
        reader.map(|mut r| r.read_range(0..u64::MAX).unwrap())
    };
    for level in [Isolation::ReadUncommitted, Isolation::ReadCommitted, Isolation::Snapshot, Isolation::Serializable] {
        let mut txn = db.begin(level).unwrap();
        assert!(read(&mut txn, "v").unwrap() == old, "{level}");
        txn.put(family, b"v", &new).unwrap();
        assert!(read(&mut txn, "v").unwrap() == new, "{level}: its own write");
        txn.delete(family, b"v").unwrap();
        assert!(read(&mut txn, "v").is_none() && read(&mut txn, "w").is_none(), "{level}");
        txn.rollback().unwrap();
    }
    // What was read in pieces is checked at commit as what was read as a whole.
    let mut txn = db.begin(Isolation::Serializable).unwrap();
    assert!(read(&mut txn, "v").is_some());
    family.put("v", "changed").unwrap();
    txn.put(family, b"other", b"depends on it").unwrap();
    assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Conflict);
}
