//! Large values are compressed when they are put and stay so until they are read: through memtable, log and value log.

use kingtide::vfs::{Fs, MemFs, OpenMode};
use kingtide::{ColumnFamily, Compression, Db, FamilyOptions, ManualClock, Options, WriteBatch};
use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const COMPRESSIONS: [Compression; 5] =
    [Compression::None, Compression::Lz4, Compression::Lz4Fast, Compression::Zstd, Compression::Snappy];

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

struct Store {
    fs: MemFs,
    clock: Arc<ManualClock>,
    db: Db,
}

impl Store {
    fn open(fs: MemFs, family: &FamilyOptions) -> Store {
        let clock = ManualClock::at_unix_ms(1_000_000);
        let shared: Arc<dyn Fs> = Arc::new(fs.clone());
        let options = Options::new().family(family.clone()).fs(shared).clock(clock.clone()).manual_jobs(true);
        Store { fs, clock, db: Db::open("/db", options).unwrap() }
    }

    /// The process is killed and the database opened again, perhaps with other options.
    fn killed(self, family: &FamilyOptions) -> Store {
        Store::open(self.fs.kill_clone(), family)
    }

    /// All reads answer `want`.
    fn check(&self, want: &Pairs, moment: &str) {
        let keys: Vec<&Vec<u8>> = want.keys().collect();
        let mut into = b"old".to_vec();
        for (key, (many, value)) in keys.iter().zip(self.db.multi_get(&keys).into_iter().zip(want.values())) {
            let key_text = key.escape_ascii();
            assert!(many.unwrap().unwrap() == *value, "multi_get of {key_text} {moment}");
            assert!(self.db.get(key).unwrap().unwrap() == *value, "get of {key_text} {moment}");
            assert!(self.db.default_family().get_into(key, &mut into).unwrap());
            assert!(into == *value, "get_into of {key_text} {moment}");
        }
        let mut it = self.db.cursor(..).unwrap();
        let got: Pairs = self.db.iter().map(|e| e.unwrap().into()).collect();
        assert!(got == *want, "forward {moment}");
        it.seek_to_last();
        let mut backward = want.iter().rev();
        while it.valid() {
            let (key, value) = it.entry().unwrap();
            assert_eq!(Some((key, value)), backward.next().map(|(k, v)| (&k[..], &v[..])), "backward {moment}");
            assert_eq!(it.value().unwrap().len(), want[it.key()].len(), "a value can be asked for twice");
            it.prev();
        }
        assert!(backward.next().is_none());
        it.status().unwrap();
    }
}

fn options(compression: Compression) -> FamilyOptions {
    FamilyOptions::new().compression(compression).value_chunk_size(8192)
}

fn half_random(len: usize, rng: &mut Rng) -> Vec<u8> {
    let mut value = vec![b'v'; len];
    rng.fill(&mut value[..len / 2]);
    value
}

/// Values of lengths around every limit: packed ones, ones too short, of several chunks, and noise.
fn values(rng: &mut Rng) -> Pairs {
    let mut pairs = Pairs::new();
    for len in [0, 1, 511, 512, 1023, 1024, 1025, 4096, 8191, 8192, 8193, 20_000] {
        pairs.insert(format!("half/{len}").into_bytes(), half_random(len, rng));
        pairs.insert(format!("flat/{len}").into_bytes(), vec![0; len]);
        let mut noise = vec![0; len];
        rng.fill(&mut noise);
        pairs.insert(format!("noise/{len}").into_bytes(), noise);
    }
    pairs
}

fn batch_of(family: &ColumnFamily, pairs: &Pairs) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for (key, value) in pairs {
        batch.put(family, key, value).unwrap();
    }
    batch
}

#[test]
fn values_survive_every_way_they_go() {
    for compression in COMPRESSIONS {
        let mut rng = Rng::new(compression as u64);
        let family = options(compression);
        let s = Store::open(MemFs::new(), &family);
        let mut want = values(&mut rng);
        let batch = batch_of(s.db.default_family(), &want);
        s.db.write(batch).unwrap();
        s.check(&want, "in the memtable");

        let s = s.killed(&family);
        s.check(&want, "replayed from the log");
        let (snapshot, old) = (s.db.snapshot(), want.clone());
        for (_, value) in want.iter_mut().filter(|(k, _)| k.starts_with(b"half")) {
            *value = half_random(value.len(), &mut rng);
        }
        s.db.write(batch_of(s.db.default_family(), &want)).unwrap();
        s.db.flush().unwrap();
        s.check(&want, "in tables");
        let seen: Pairs = snapshot.of(s.db.default_family()).iter().map(|e| e.unwrap().into()).collect();
        assert!(seen == old, "{compression}: the snapshot");
        drop(snapshot);

        s.db.write(batch_of(s.db.default_family(), &old)).unwrap();
        s.db.compact().unwrap();
        s.check(&old, "compacted");
        s.killed(&family).check(&old, "reopened");
    }
}

/// What is packed and what not, told by the size of the batch.
#[test]
fn only_values_that_pay_are_packed() {
    let packs = |family: &FamilyOptions, value: &[u8]| {
        let s = Store::open(MemFs::new(), family);
        let mut batch = WriteBatch::new();
        batch.put(s.db.default_family(), b"key", value).unwrap();
        let size = batch.bytes();
        s.db.write(batch).unwrap();
        let raw = 1 + 1 + 1 + 3 + 2 + value.len(); // kind, family, key and lengths
        let counted = s.db.stats().get("bytes_committed").unwrap() as usize;
        assert!(counted.abs_diff(raw) <= 1, "the bytes before compression are counted: {counted} of {raw}");
        size < raw
    };
    let lz4 = options(Compression::Lz4);
    let threshold = |value_threshold| lz4.clone().value_threshold(value_threshold);
    let mut noise = vec![0; 4096];
    Rng::new(1).fill(&mut noise);
    assert!(!packs(&lz4, &[0; 1023]) && packs(&lz4, &[0; 1024]), "a kilobyte at least");
    assert!(packs(&lz4, &[0; 8192]) && !packs(&lz4, &[0; 8193]), "one chunk at most");
    assert!(!packs(&threshold(2000), &[0; 1999]) && packs(&threshold(2000), &[0; 2000]), "the threshold");
    assert!(!packs(&threshold(0), &[0; 4096]), "no value log");
    assert!(!packs(&options(Compression::None), &[0; 4096]), "no compression");
    assert!(!packs(&lz4, &noise), "nothing gained");
}

#[test]
fn expiry_and_deletes_work_on_packed_values() {
    let family = options(Compression::Lz4);
    for replay in [false, true] {
        let mut s = Store::open(MemFs::new(), &family);
        let value = vec![b'x'; 5000];
        let (short, long) = (Duration::from_millis(500), Duration::from_secs(100));
        for key in ["deleted", "single", "range"] {
            s.db.put(key, &value).unwrap();
        }
        s.db.put_ttl("short", &value, short).unwrap();
        s.db.put_ttl("long", &value, long).unwrap();
        s.db.put("short/below", &value).unwrap();
        s.db.put_ttl("short/below", &value, short).unwrap();
        s.db.delete("deleted").unwrap();
        s.db.single_delete("single").unwrap();
        s.db.delete_range("r".."s").unwrap();
        let pairs = |keys: &[&str]| keys.iter().map(|k| (k.as_bytes().to_vec(), value.clone())).collect::<Pairs>();
        if replay {
            s = s.killed(&family);
        }
        s.check(&pairs(&["short", "long", "short/below"]), "before");
        s.clock.advance(Duration::from_secs(1));
        s.check(&pairs(&["long"]), "after");
        assert!(s.db.get("short").unwrap().is_none() && s.db.get("single").unwrap().is_none());
        s.db.flush().unwrap();
        s.check(&pairs(&["long"]), "after, in tables");
        s.db.compact().unwrap();
        s.check(&pairs(&["long"]), "after, compacted");
        s.clock.advance(long);
        s.check(&Pairs::new(), "at the end");
    }
}

/// The log may hold values that were packed under other options than those of the open that replays it.
#[test]
fn values_packed_under_other_options_are_flushed_under_the_new_ones() {
    let lz4 = options(Compression::Lz4);
    let others = [
        lz4.clone().value_threshold(0),
        lz4.clone().value_threshold(5000),
        lz4.clone().compression(Compression::None).value_chunk_size(4096),
        lz4.clone().compression(Compression::Zstd),
    ];
    for other in others {
        let s = Store::open(MemFs::new(), &lz4);
        let want = values(&mut Rng::new(9));
        s.db.write(batch_of(s.db.default_family(), &want)).unwrap();
        s.db.put_ttl("ttl", vec![b'x'; 4096], Duration::from_secs(1000)).unwrap();
        let mut want = want;
        want.insert(b"ttl".to_vec(), vec![b'x'; 4096]);
        let s = s.killed(&other);
        s.check(&want, "replayed");
        s.db.flush().unwrap();
        s.check(&want, "flushed");
        s.db.compact().unwrap();
        s.check(&want, "compacted");
        s.killed(&lz4).check(&want, "reopened");
    }
}

/// The level and the dictionary of Zstandard reach tables, and the level reaches value logs.
#[test]
fn levels_and_dictionaries_of_zstandard_make_smaller_files() {
    let stored = |level: u64, dictionary: u64, extension: &str| {
        let fs = MemFs::new();
        let mut o = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
        o.family.block_size = 512; // too few rows to repeat themselves
        (o.family.compression, o.family.zstd_level, o.family.zstd_dictionary) = (Compression::Zstd, level, dictionary);
        let db = Db::open("db", o).unwrap();
        let mut rng = Rng::new(1);
        let mut row = |i: u64, n: usize| -> Vec<u8> {
            let part =
                |rng: &mut Rng| format!("{{\"station\":\"gauge {}\",\"height\":{}}}", rng.below(90), rng.below(900));
            let text: String = (0..n).map(|_| part(&mut rng)).collect();
            format!("{i}{text}").into_bytes()
        };
        let rows: Vec<Vec<u8>> = (0..4_000).map(|i| row(i, if i % 20 == 0 { 60 } else { 3 })).collect();
        (0u64..).zip(&rows).for_each(|(i, v)| _ = db.put(i.to_be_bytes(), v).unwrap());
        db.compact().unwrap();
        (0u64..).zip(&rows).for_each(|(i, v)| assert_eq!(db.get(i.to_be_bytes()).unwrap().as_deref(), Some(&v[..])));
        let names = fs.list("db".as_ref()).unwrap().into_iter().filter(|n| n.ends_with(extension));
        names.map(|n| fs.open(&Path::new("db").join(n), OpenMode::Read).unwrap().len().unwrap()).sum::<u64>()
    };
    let (first, ninth) = (stored(1, 0, ".klog"), stored(9, 0, ".klog"));
    assert!(ninth < first, "{ninth} bytes at level 9, {first} at level 1");
    // Rows of random numbers gain nothing by a level in a value log, but have other bytes.
    assert_ne!(stored(1, 0, ".vlog"), stored(9, 0, ".vlog"));
    let (with, without) = (stored(1, 4096, ".klog"), stored(1, 0, ".klog"));
    assert!(with < without * 9 / 10, "{with} bytes with a dictionary, {without} without");
}
