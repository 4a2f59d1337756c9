//! Two families beside ordered maps, through random operations of every kind. Snapshots keep the maps of their moment.

use super::world::*;
use kingtide::vfs::MemFs;
use kingtide::{ColumnFamily, Db, IngestOptions, Snapshot, SortedFileWriter, WriteBatch};
use kingtide_base::rng::Rng;

const KEYS: u64 = 400;

#[derive(Default)]
struct Counts {
    ingests: u64,
    files: u64,
    overlapping: u64,
    snapshots: u64,
    reopens: u64,
}

struct Model {
    fs: MemFs,
    db: Db,
    families: Vec<ColumnFamily>,
    expected: Vec<Contents>,
    snapshots: Vec<(Snapshot, Vec<Contents>)>,
    rng: Rng,
    counts: Counts,
}

impl Model {
    fn new(seed: u64) -> Model {
        let fs = MemFs::new();
        let db = open(&fs);
        let other = db.create_family("other", db.default_family().options().value_threshold(0));
        let families = vec![db.default_family().clone(), other.unwrap()];
        let expected = vec![Contents::new(), Contents::new()];
        let (snapshots, rng, counts) = (Vec::new(), Rng::new(seed), Counts::default());
        Model { fs, db, families, expected, snapshots, rng, counts }
    }

    fn some_family(&mut self) -> usize {
        self.rng.below(2) as usize
    }

    fn range(&mut self) -> (Vec<u8>, Vec<u8>) {
        let from = self.rng.below(KEYS);
        (key(from), key(from + 1 + self.rng.below(40)))
    }

    fn step(&mut self) {
        let f = self.some_family();
        match self.rng.below(100) {
            0..45 => {
                let (k, v) = (key(self.rng.below(KEYS)), value(&mut self.rng));
                self.families[f].put(&k, &v).unwrap();
                self.expected[f].insert(k, v);
            }
            45..55 => {
                let k = key(self.rng.below(KEYS));
                self.families[f].delete(&k).unwrap();
                self.expected[f].remove(&k);
            }
            55..58 => {
                let (from, to) = self.range();
                self.families[f].delete_range(&from..&to).unwrap();
                self.expected[f].retain(|k, _| *k < from || *k >= to);
            }
            58..62 => self.batch(),
            62..74 => self.ingest(),
            74..78 => self.families[f].flush().unwrap(),
            78..88 => _ = self.db.run_one_job().unwrap(),
            88..90 => {
                let (from, to) = self.range();
                self.families[f].compact_range(&from..=&to).unwrap();
            }
            90..94 => {
                self.counts.snapshots += 1;
                self.snapshots.push((self.db.snapshot(), self.expected.clone()));
                if self.snapshots.len() > 4 {
                    let gone = self.rng.below(5) as usize;
                    self.snapshots.swap_remove(gone);
                }
            }
            94..96 => {
                let Some((snapshot, then)) = self.snapshots.last() else { return };
                assert_eq!(contents(&self.families[f], Some(snapshot)), then[f], "at a snapshot");
            }
            96..98 => assert_eq!(contents(&self.families[f], None), self.expected[f]),
            98 => self.look_up(f),
            _ => self.reopen(),
        }
    }

    fn batch(&mut self) {
        let mut batch = WriteBatch::new();
        for _ in 0..10 {
            let f = self.some_family();
            let (k, v) = (key(self.rng.below(KEYS)), value(&mut self.rng));
            batch.put(&self.families[f], &k, &v).unwrap();
            self.expected[f].insert(k, v);
        }
        self.db.write(batch).unwrap();
    }

    /// One to four files over both families.
    fn ingest(&mut self) {
        let mut paths = [Vec::new(), Vec::new()];
        let mut spans: Vec<(usize, u64, u64)> = Vec::new();
        for n in 0..1 + self.rng.below(4) {
            let f = self.some_family();
            let path = format!("files/{}-{n}", self.counts.ingests);
            let from = self.rng.below(KEYS);
            let to = from + 1 + if self.rng.one_in(5) { self.rng.below(KEYS) } else { self.rng.below(30) };
            self.counts.overlapping += u64::from(spans.iter().any(|(g, a, b)| *g == f && *a < to && from < *b));
            spans.push((f, from, to));
            self.write_file(f, &path, from, to);
            paths[f].push(path);
            self.counts.files += 1;
        }
        let options = IngestOptions::new().move_files(self.rng.one_in(2)).verify(self.rng.one_in(4));
        let parts: Vec<(&ColumnFamily, &[String])> =
            self.families.iter().zip(&paths).map(|(f, paths)| (f, paths.as_slice())).collect();
        let seq = self.db.ingest(&parts, &options).unwrap();
        assert_eq!(seq, self.db.latest_sequence());
        self.counts.ingests += 1;
    }

    fn write_file(&mut self, f: usize, path: &str, from: u64, to: u64) {
        let rng = &mut self.rng;
        let mut w = SortedFileWriter::create(path, &self.families[f]).unwrap();
        let mut after = self.expected[f].clone();
        if rng.one_in(4) {
            let (a, b) = (key(from), key(from + 1 + rng.below(to - from)));
            w.delete_range(&a..&b).unwrap();
            after.retain(|k, _| *k < a || *k >= b);
        }
        for i in (from..to).filter(|i| *i == from || i % 3 != 0) {
            if rng.one_in(6) {
                w.delete(&key(i)).unwrap();
                after.remove(&key(i));
            } else {
                let v = value(rng);
                w.put(&key(i), &v).unwrap();
                after.insert(key(i), v);
            }
        }
        w.finish().unwrap();
        self.expected[f] = after;
    }

    /// Point reads, backwards scans and bounded ones.
    fn look_up(&mut self, f: usize) {
        let family = self.families[f].clone();
        for _ in 0..20 {
            let k = key(self.rng.below(KEYS));
            assert_eq!(family.get(&k).unwrap().as_deref(), self.expected[f].get(&k).map(Vec::as_slice));
        }
        let keys: Vec<Vec<u8>> = (0..30).map(|_| key(self.rng.below(KEYS))).collect();
        for (k, got) in keys.iter().zip(family.multi_get(&keys)) {
            assert_eq!(got.unwrap().as_deref(), self.expected[f].get(k).map(Vec::as_slice));
        }
        let (from, to) = self.range();
        let mut it = family.cursor(from.as_slice()..to.as_slice()).unwrap();
        it.seek_to_last();
        for (k, v) in self.expected[f].range(from..to).rev() {
            assert_eq!(it.entry().unwrap(), (k.as_slice(), v.as_slice()));
            it.prev();
        }
        assert!(!it.valid());
        it.status().unwrap();
    }

    fn reopen(&mut self) {
        self.snapshots.clear();
        self.families.clear();
        if self.rng.one_in(2) {
            self.db.close().unwrap();
        } else {
            // The process is killed: what it wrote is there.
            self.fs = self.fs.kill_clone();
        }
        self.db = open(&self.fs);
        self.families = vec![self.db.default_family().clone(), self.db.family("other").unwrap()];
        self.counts.reopens += 1;
        self.check();
    }

    fn check(&self) {
        for (family, expected) in self.families.iter().zip(&self.expected) {
            assert_eq!(contents(family, None), *expected, "{}", family.name());
        }
        for (snapshot, then) in &self.snapshots {
            for (family, expected) in self.families.iter().zip(then) {
                assert_eq!(contents(family, Some(snapshot)), *expected, "{} at a snapshot", family.name());
            }
        }
    }
}

#[test]
fn ingests_among_everything_else_agree_with_ordered_maps() {
    let given = kingtide_testkit::number("KINGTIDE_SEED");
    let (seeds, steps) = if full() { (200, 3000) } else { (6, 1200) };
    let mut total = Counts::default();
    for seed in given.map_or(0..seeds, |s: u64| s..s + 1) {
        let run = std::panic::catch_unwind(|| {
            let mut model = Model::new(seed);
            for _ in 0..steps {
                model.step();
            }
            model.check();
            let problems = model.db.verify().unwrap().problems;
            assert!(problems.is_empty(), "{problems:?}");
            model.counts
        });
        let counts = run.unwrap_or_else(|e| {
            eprintln!("KINGTIDE_SEED={seed}");
            std::panic::resume_unwind(e)
        });
        total.ingests += counts.ingests;
        total.files += counts.files;
        total.overlapping += counts.overlapping;
        total.snapshots += counts.snapshots;
        total.reopens += counts.reopens;
    }
    println!(
        "{} ingests of {} files, {} overlapping others, {} snapshots, {} reopens",
        total.ingests, total.files, total.overlapping, total.snapshots, total.reopens
    );
    assert!(total.overlapping > 20 || given.is_some());
}
