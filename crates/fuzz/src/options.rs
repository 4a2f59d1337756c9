//! Target: options as text.

use crate::must;
use crate::sample;
use kingtide::vfs::MemFs;
use kingtide::{Db, DbOptions, FamilyOptions, Options};

/// Lines `name=value`, as a configuration file or a command line has them. What is accepted reads back as it was, from
/// text and from the manifest.
pub fn options(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut options = Options::default();
    for line in text.lines().take(64) {
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        let before = (options.db.clone(), options.family.clone());
        match options.set(name, value) {
            Ok(()) => {
                let shown = options.db.get(name).or_else(|| options.family.get(name));
                assert!(shown.is_some(), "the option {name:?} was set but cannot be read");
            }
            Err(e) => {
                assert!(!e.message().is_empty());
                assert_eq!(before, (options.db.clone(), options.family.clone()), "a refused option was set: {line:?}");
            }
        }
    }
    let (mut db, mut family) = (DbOptions::default(), FamilyOptions::default());
    for (name, value) in options.db.entries() {
        must(db.set(name, &value), name);
    }
    for (name, value) in options.family.entries() {
        must(family.set(name, &value), name);
    }
    assert_eq!((&db, &family), (&options.db, &options.family), "what is shown is not what is set");
    must(db.validate(), "options that were accepted one by one");
    if family == FamilyOptions::default() {
        return;
    }
    must(family.validate(), "options that were accepted one by one");
    let fs = MemFs::new();
    // A memtable takes memory as its options say.
    family.memtable_size = family.memtable_size.min(1 << 20);
    family.value_chunk_size = family.value_chunk_size.min(1 << 20);
    let db = must(Db::open("db", sample::options(&fs)), "open");
    must(must(db.create_family("f", family.clone()), "create").put(b"key", [7; 600]), "put");
    must(db.flush(), "flush");
    drop(db);
    let db = must(Db::open("db", sample::options(&fs)), "open again");
    let f = must(db.family("f"), "the family");
    assert_eq!(f.options(), family, "stored options read back");
    let expired = family.ttl.is_some();
    let got = must(f.get(b"key"), "get");
    assert!(got.as_deref() == Some(&[7; 600][..]) || (expired && got.is_none()));
}
