//! Target: sorted files to be ingested, which come from outside of the database.

use crate::edit::{COMPACT, FIT, Input, Trust, VERIFY};
use crate::examine::Examination;
use crate::sample::{self, DIR, Sample, key};
use crate::{forge, must};
use kingtide::vfs::MemFs;
use kingtide::{Db, IngestOptions, SortedFileWriter};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The families that have a file.
const FAMILIES: [&str; 2] = ["default", "packed"];

/// The closed sample with a sorted file for each of the families beside it, and what it holds once they are ingested.
fn good() -> &'static (MemFs, Vec<Sample>) {
    static GOOD: OnceLock<(MemFs, Vec<Sample>)> = OnceLock::new();
    GOOD.get_or_init(|| {
        let fs = sample::get(false).copy();
        let db = must(Db::open(DIR, sample::options(&fs)), "the sample");
        let after = FAMILIES.map(|name| {
            let family = must(db.family(name), "a family");
            let mut expected = sample::get(false).to_vary();
            let data = expected.data.entry(name.to_owned()).or_default();
            let mut w = must(SortedFileWriter::create(path_of(name), &family), "a sorted file");
            for i in 0..30u64 {
                // Over, between and behind keys of the database.
                let (k, v) = (key(8 + i * 5), vec![i as u8; 10 + 40 * (i as usize % 9)]);
                if i % 6 == 5 {
                    must(w.delete(&k), "a delete");
                    data.remove(&k);
                } else {
                    must(w.put(&k, &v), "a put");
                    data.insert(k, v);
                }
            }
            must(w.delete_range(&key(300)..&key(322)), "a range");
            data.retain(|k, _| *k < key(300) || *k >= key(322));
            must(w.finish(), "a sorted file");
            expected
        });
        must(db.close(), "close");
        (fs.kill_clone(), after.into())
    })
}

fn path_of(family: &str) -> PathBuf {
    PathBuf::from(format!("{family}.sorted"))
}

/// Sorted files.
pub fn ingest(data: &[u8]) {
    if let Some(case) = Case::new(data) {
        case.examine();
    }
}

/// A hostile sorted file beside the sample.
pub struct Case<'a> {
    input: Input<'a>,
    fs: MemFs,
    path: PathBuf,
    trust: Trust,
    /// Bytes of the largest file.
    pub largest: u64,
}

impl<'a> Case<'a> {
    /// What an input makes of a good file. `None` if it lacks a head.
    pub fn new(data: &'a [u8]) -> Option<Case<'a>> {
        let input = Input::parse(data)?;
        let fs = good().0.kill_clone();
        let path = path_of(FAMILIES[input.file % FAMILIES.len()]);
        let bytes = sample::read(&fs, &path);
        let (bytes, trust) = input.apply(&bytes, |bytes| {
            // Its checksums are bound to the number that it carries, whatever that is.
            let id =
                bytes.len().checked_sub(64).and_then(|at| bytes[at..].first_chunk().map(|b| u64::from_le_bytes(*b)));
            forge::klog(bytes, id.unwrap_or_default(), input.has(FIT));
        });
        sample::replace(&fs, &path, &bytes);
        let others = sample::get(false).files("").iter().map(|p| sample::read(&fs, p).len()).max().unwrap_or_default();
        Some(Case { input, fs, path, trust, largest: others.max(bytes.len()) as u64 })
    }

    /// Ingests it, and reads everything, before and after the database is opened again.
    pub fn examine(&self) {
        let which = self.input.file % FAMILIES.len();
        let db = must(Db::open(DIR, sample::options(&self.fs)), "the sample");
        let family = must(db.family(FAMILIES[which]), "a family");
        let options = IngestOptions::new().verify(self.input.has(VERIFY));
        let ingested = family.ingest(&[Path::new(&self.path)], &options);
        let sample = if ingested.is_ok() { &good().1[which] } else { sample::get(false) };
        let trust = if ingested.is_ok() { self.trust } else { Trust::Damaged };
        let examination = Examination { sample, trust, torn: false };
        if let (Err(e), Trust::Damaged) = (&ingested, self.trust) {
            examination.located(e);
        }
        // What was refused leaves everything as it was.
        examination.read(&db);
        let _ = db.verify();
        drop((family, db));
        examination.open(&self.fs, self.input.has(COMPACT));
    }
}
