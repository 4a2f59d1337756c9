//! For tests: a second recovery of the same files beside the open database ("shadow recovery"), compared with memory.
//!
//! What memory has and what the files say are kept by different code: each commit, flush and change of a family updates
//! both. A database can therefore run well for a long time with files that no open will read as it does. The comparison
//! finds that at once, instead of at the one open in a thousand where it matters.

use crate::api::Db;
use crate::catalog::Catalog;
use crate::engine::DbInner;
use crate::options::Options;
use crate::recover::stored_options;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, FamilyId, Result};
use kingtide_versions::DEFAULT_FAMILY;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// What a family looks like, apart from its entries in memtables.
#[derive(Debug, PartialEq, Eq)]
struct FamilyShape {
    name: String,
    order: String,
    options: Vec<(String, String)>,
    flushed: u64,
    /// Level and description of each file.
    files: Vec<(usize, String)>,
}

fn families(catalog: &Catalog) -> BTreeMap<FamilyId, FamilyShape> {
    let describe = |f: &std::sync::Arc<crate::family::Family>| FamilyShape {
        name: f.name(),
        order: f.order().name().to_owned(),
        options: f.options().entries().into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
        flushed: f.flushed_seq.load(Ordering::Relaxed),
        files: f.view.load().version.files().map(|(level, meta)| (level, format!("{meta:?}"))).collect(),
    };
    catalog.families.iter().map(|(id, f)| (*id, describe(f))).collect()
}

/// Notes a difference.
fn compare<T: PartialEq + Debug>(what: &str, memory: &T, disk: &T, into: &mut Vec<String>) {
    if memory != disk {
        into.push(format!("{what}: memory has {memory:?}, a recovery finds {disk:?}"));
    }
}

impl Db {
    /// For tests. Recovers the database's files once more, for reading only, and compares families, their options and
    /// files, value logs, the counters of the manifest and the transactions in doubt with what memory has. Returns the
    /// recovered database and the differences.
    ///
    /// `options` name the file system that the files are read from: this database's own or a copy of it. Nothing may be
    /// written meanwhile, and no write to the manifest may have failed since it was last written anew.
    ///
    /// # Errors
    /// As [`Db::open_read_only`].
    #[doc(hidden)]
    pub fn shadow(&self, options: Options) -> Result<(Db, Vec<String>)> {
        let Some(fs) = options.fs.clone() else {
            return Err(Error::invalid("a shadow recovery needs a file system in its options"));
        };
        let dir = &self.inner().dir;
        let shadow = Db::open_read_only(dir, options)?;
        let stored = stored_options(&fs, dir)?.ok_or_else(|| Error::corruption("no default family is stored"))?.family;
        let mut differences = Vec::new();
        compare_inner(self.inner(), shadow.inner(), &mut differences);
        let live = self.default_family().options();
        compare("stored options of the default family", &live.entries(), &stored.entries(), &mut differences);
        let by_xid =
            |db: &Db| db.recover_prepared().into_iter().map(|p| (p.xid.clone(), p)).collect::<BTreeMap<_, _>>();
        let (mut in_doubt, found) = (by_xid(self), by_xid(&shadow));
        for (xid, p) in &mut in_doubt {
            // A recovery leaves out what was meant for families that were dropped since.
            p.operations = found.get(xid).map_or(p.operations, |f| f.operations.min(p.operations));
        }
        compare("transactions in doubt", &in_doubt, &found, &mut differences);
        Ok((shadow, differences))
    }
}

fn compare_inner(memory: &DbInner, disk: &DbInner, into: &mut Vec<String>) {
    let (m, d) = (memory.catalog.lock(), disk.catalog.lock());
    let (mut of_memory, mut of_disk) = (families(&m), families(&d));
    for f in of_memory.values_mut().chain(of_disk.values_mut()).filter(|f| f.name == DEFAULT_FAMILY) {
        f.options.clear(); // an open for reading only has those that it was given
    }
    compare("families", &of_memory.keys().collect::<Vec<_>>(), &of_disk.keys().collect(), into);
    for (id, f) in &of_memory {
        if let Some(other) = of_disk.get(id) {
            compare(&format!("family {id}"), f, other, into);
        }
    }
    compare("value logs", &m.versions.vlogs, &d.versions.vlogs, into);
    compare("the next family's id", &m.versions.next_family, &d.versions.next_family, into);
    compare("LogStart", &m.versions.log_start, &d.versions.log_start, into);
    compare("the log's first segment that counts", &m.versions.first_segment, &d.versions.first_segment, into);
    compare("the open's first segment", &m.versions.log_begun, &d.versions.log_begun, into);
    compare("the database's id", &m.versions.manifest.db_id(), &d.versions.manifest.db_id(), into);
    if d.versions.last_seq < m.versions.last_seq {
        into.push(format!("LastSeq: memory has {}, a recovery finds {}", m.versions.last_seq, d.versions.last_seq));
    }
    let next = |db: &DbInner| db.next_file_id.load(Ordering::Relaxed);
    if next(disk) > next(memory) {
        into.push(format!("NextFileId: memory has {}, a recovery finds {}", next(memory), next(disk)));
    }
}
