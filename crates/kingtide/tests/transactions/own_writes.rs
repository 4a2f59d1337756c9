//! What a transaction reads of its own writes, against an ordered map: points, scans from both ends, seeks that turn round,
//! range deletes of every form, and savepoints, in three key orders.

use kingtide::vfs::MemFs;
use kingtide::{ColumnFamily, Db, ErrorKind, FamilyOptions, Isolation, KeyOrder, Options, ReadOptions, Transaction};
use kingtide::{TransactionCursor, TransactionOptions};
use kingtide_base::rng::Rng;
use std::cmp::Ordering;
use std::ops::Bound;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Bytes,
    Reverse,
    Caseless,
}

impl Order {
    fn compare(self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Order::Bytes => a.cmp(b),
            Order::Reverse => b.cmp(a),
            Order::Caseless => a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase()),
        }
    }

    fn of_engine(self) -> KeyOrder {
        match self {
            Order::Bytes => KeyOrder::Bytewise,
            Order::Reverse => KeyOrder::Reverse,
            Order::Caseless => KeyOrder::CaseInsensitive,
        }
    }

    fn has_prefix(self, key: &[u8], prefix: &[u8]) -> bool {
        match self {
            Order::Caseless => key.to_ascii_lowercase().starts_with(&prefix.to_ascii_lowercase()),
            _ => key.starts_with(prefix),
        }
    }

    fn within(self, key: &[u8], (lo, hi): &Range) -> bool {
        let after = match lo {
            Bound::Unbounded => true,
            Bound::Included(k) => self.compare(key, k).is_ge(),
            Bound::Excluded(k) => self.compare(key, k).is_gt(),
        };
        let before = match hi {
            Bound::Unbounded => true,
            Bound::Included(k) => self.compare(key, k).is_le(),
            Bound::Excluded(k) => self.compare(key, k).is_lt(),
        };
        after && before
    }
}

type Range = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Entries in order.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    order: Order,
    entries: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Model {
    fn find(&self, key: &[u8]) -> Result<usize, usize> {
        self.entries.binary_search_by(|(k, _)| self.order.compare(k, key))
    }

    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.find(key).ok().map(|at| &self.entries[at].1[..])
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        match self.find(key) {
            Ok(at) => self.entries[at] = (key.to_vec(), value.to_vec()),
            Err(at) => self.entries.insert(at, (key.to_vec(), value.to_vec())),
        }
    }

    fn keep(&mut self, keep: impl Fn(Order, &[u8]) -> bool) {
        let order = self.order;
        self.entries.retain(|(k, _)| keep(order, k));
    }
}

fn key(rng: &mut Rng) -> Vec<u8> {
    let letters = b"aAbBz\x00\xff";
    (0..1 + rng.below(4)).map(|_| letters[rng.below(letters.len() as u64) as usize]).collect()
}

fn value(rng: &mut Rng) -> Vec<u8> {
    let length = [0, 1, 20, 700][rng.below(4) as usize];
    vec![rng.below(256) as u8; length]
}

fn bound(rng: &mut Rng) -> Bound<Vec<u8>> {
    match rng.below(4) {
        0 => Bound::Unbounded,
        1 => Bound::Excluded(key(rng)),
        _ => Bound::Included(key(rng)),
    }
}

fn as_slices((lo, hi): &Range) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (lo.as_ref().map(|k| &k[..]), hi.as_ref().map(|k| &k[..]))
}

/// A cursor at the entry with that index of what it must show, or nowhere.
fn check_at(cursor: &mut TransactionCursor, shown: &[(Vec<u8>, Vec<u8>)], at: Option<usize>, what: &str) {
    cursor.status().unwrap();
    match at.and_then(|at| shown.get(at)) {
        None => assert!(!cursor.valid(), "{what}: at {:?}", cursor.key()),
        Some((k, v)) => assert_eq!(cursor.entry().unwrap(), (&k[..], &v[..]), "{what}"),
    }
}

fn walk(txn: &mut Transaction, family: &ColumnFamily, model: &Model, rng: &mut Rng, what: &str) {
    let range = (bound(rng), bound(rng));
    let prefix = rng.one_in(3).then(|| key(rng)[..1].to_vec());
    let of_prefix = |k: &[u8]| prefix.as_ref().is_none_or(|p| model.order.has_prefix(k, p));
    let shown: Vec<_> =
        model.entries.iter().filter(|(k, _)| model.order.within(k, &range) && of_prefix(k)).cloned().collect();
    let options = ReadOptions {
        lower: range.0.clone(),
        upper: range.1.clone(),
        prefix: prefix.clone(),
        ..ReadOptions::default()
    };
    let mut cursor = txn.cursor_with(family, options).unwrap();
    if rng.one_in(4) {
        txn.set_savepoint("later").unwrap(); // what is written from here on does not show
        txn.put(family, &key(rng), b"later").unwrap();
        txn.rollback_to_savepoint("later").unwrap();
        txn.release_savepoint("later").unwrap();
    }
    let mut at: Option<usize> = None;
    for _ in 0..12 {
        let wanted = key(rng);
        let verb = rng.below(7);
        at = match verb {
            0 => {
                cursor.seek_to_first();
                (!shown.is_empty()).then_some(0)
            }
            1 => {
                cursor.seek_to_last();
                shown.len().checked_sub(1)
            }
            2 => {
                cursor.seek(&wanted);
                shown.iter().position(|(k, _)| model.order.compare(k, &wanted).is_ge())
            }
            3 => {
                cursor.seek_for_prev(&wanted);
                shown.iter().rposition(|(k, _)| model.order.compare(k, &wanted).is_le())
            }
            4 | 5 => {
                cursor.next();
                at.map(|at| at + 1).filter(|at| *at < shown.len())
            }
            _ => {
                cursor.prev();
                at.and_then(|at| at.checked_sub(1))
            }
        };
        let what = format!("{what}: verb {verb} to {wanted:?} in {range:?} with prefix {prefix:?}");
        check_at(&mut cursor, &shown, at, &what);
    }
}

/// A write, the same to both.
fn write(txn: &mut Transaction, family: &ColumnFamily, model: &mut Model, rng: &mut Rng) {
    let (k, v) = (key(rng), value(rng));
    match rng.below(10) {
        0..5 => {
            txn.put(family, &k, &v).unwrap();
            model.put(&k, &v);
        }
        5 | 6 => {
            txn.delete(family, &k).unwrap();
            model.keep(|o, other| o.compare(other, &k).is_ne());
        }
        7 => {
            let prefix = &k[..(rng.below(k.len() as u64 + 1) as usize).min(2)];
            txn.delete_prefix(family, prefix).unwrap();
            model.keep(|o, other| !o.has_prefix(other, prefix));
        }
        _ => {
            let range = (bound(rng), bound(rng));
            match txn.delete_range(family, as_slices(&range)) {
                Ok(()) => model.keep(|o, other| !o.within(other, &range)),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
                    // What is refused is a range with its start behind its end: it has no keys.
                    assert!(!model.entries.iter().any(|(other, _)| model.order.within(other, &range)), "{range:?}");
                }
            }
        }
    }
}

fn content(family: &ColumnFamily) -> Vec<(Vec<u8>, Vec<u8>)> {
    family.iter().map(|e| e.map(|e| (e.key.to_vec(), e.value.to_vec())).unwrap()).collect()
}

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut options = Options { fs: Some(MemFs::shared()), manual_jobs: true, ..Options::default() };
    options.set("value_threshold", "512").unwrap();
    let db = Db::open("db", options).unwrap();
    let orders = [Order::Bytes, Order::Reverse, Order::Caseless];
    let families: Vec<ColumnFamily> = orders
        .iter()
        .map(|o| db.create_family_ordered(&format!("{o:?}"), FamilyOptions::default(), o.of_engine()).unwrap())
        .collect();
    let mut models: Vec<Model> = orders.iter().map(|o| Model { order: *o, entries: Vec::new() }).collect();
    for round in 0..12 {
        let level = Isolation::ALL[rng.below(5) as usize];
        let mut txn = db.begin_with(TransactionOptions::new(level).locking(rng.one_in(2))).unwrap();
        let committed = models.clone();
        let mut savepoints: Vec<(String, Vec<Model>)> = Vec::new();
        for step in 0..rng.below(260) {
            let i = rng.below(3) as usize;
            let what = format!("seed {seed}, round {round}, step {step}, {:?} at {level}", orders[i]);
            match rng.below(16) {
                0..10 => write(&mut txn, &families[i], &mut models[i], &mut rng),
                10 => walk(&mut txn, &families[i], &models[i], &mut rng, &what),
                11 => {
                    let keys: Vec<_> = (0..5).map(|_| key(&mut rng)).collect();
                    for (k, found) in keys.iter().zip(txn.multi_get(&families[i], &keys)) {
                        assert_eq!(found.unwrap().as_deref(), models[i].get(k), "{what}: {k:?}");
                    }
                }
                12 => {
                    let name = format!("s{}", rng.below(3));
                    txn.set_savepoint(&name).unwrap();
                    savepoints.push((name, models.clone()));
                }
                13 => {
                    let name = format!("s{}", rng.below(3));
                    let at = savepoints.iter().rposition(|(n, _)| *n == name);
                    assert_eq!(txn.rollback_to_savepoint(&name).is_ok(), at.is_some(), "{what}");
                    if let Some(at) = at {
                        savepoints.truncate(at + 1);
                        models = savepoints[at].1.clone();
                    }
                }
                14 if rng.one_in(3) => {
                    let name = format!("s{}", rng.below(3));
                    let at = savepoints.iter().rposition(|(n, _)| *n == name);
                    assert_eq!(txn.release_savepoint(&name).is_ok(), at.is_some(), "{what}");
                    savepoints.truncate(at.unwrap_or(savepoints.len()));
                }
                _ => {
                    let k = key(&mut rng);
                    let found = match rng.below(3) {
                        0 => txn.get(&families[i], &k),
                        1 => txn.get_for_update(&families[i], &k),
                        _ => txn.get_for_share(&families[i], &k),
                    };
                    assert_eq!(found.unwrap().as_deref(), models[i].get(&k), "{what}: {k:?}");
                }
            }
        }
        match rng.below(4) {
            0 => {
                txn.rollback().unwrap();
                models = committed;
            }
            1 => {
                txn.prepare(b"x").unwrap();
                drop(txn);
                db.commit_prepared(b"x").unwrap();
            }
            _ => assert!(txn.commit().unwrap() <= db.latest_sequence()),
        }
        for (family, model) in families.iter().zip(&models) {
            assert_eq!(content(family), model.entries, "seed {seed}, round {round}, {:?} at {level}", model.order);
        }
        if rng.one_in(2) {
            db.flush().unwrap();
        }
        if rng.one_in(4) {
            db.compact().unwrap();
        }
    }
}

#[test]
fn own_writes_are_read_as_an_ordered_map_has_them() {
    let seeds = if kingtide_testkit::full() { 2000 } else { 40 };
    (0..seeds).for_each(run);
}
