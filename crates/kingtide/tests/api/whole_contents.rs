//! All that a database shows, for tests that compare two of them.

use kingtide::Db;
use std::collections::BTreeMap;

/// Keys and values, by family.
pub type Content = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// All keys and values of all families.
///
/// # Panics
/// If one of them cannot be read.
pub fn content(db: &Db) -> Content {
    let mut all = Content::new();
    for name in db.families() {
        let mut it = db.family(&name).unwrap().cursor(..).unwrap();
        it.seek_to_first();
        let of_family = all.entry(name).or_default();
        while it.valid() {
            of_family.insert(it.key().to_vec(), it.value().unwrap().to_vec());
            it.next();
        }
        it.status().unwrap();
    }
    all
}
