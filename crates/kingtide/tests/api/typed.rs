//! Typed families: the encoding sorts as the values do, and what does not decode is an error that says so.

use kingtide::vfs::MemFs;
use kingtide::{Db, Decode, Encode, ErrorKind, KeyOrder, Options, TypedFamily, key_bytes};
use kingtide_base::rng::Rng;
use std::fmt::Debug;

fn open() -> Db {
    Db::open("db", Options::new().fs(MemFs::shared())).unwrap()
}

/// All pairs: order of bytes is order of values, none begins another, and each reads back both ways.
fn sorts_as_its_values<T: Decode + Encode + Ord + Debug + Clone>(values: &[T]) {
    for a in values {
        let bytes = key_bytes(a);
        assert!(!bytes.is_empty(), "{a:?}");
        let with_rest = [&bytes[..], b"rest"].concat();
        let mut input = &with_rest[..];
        assert_eq!(T::decode(&mut input).as_ref(), Some(a));
        assert_eq!(input, b"rest", "{a:?}: what follows is not touched");
        assert!(T::decode(&mut &bytes[..bytes.len() - 1]).is_none(), "{a:?}: cut short");
        let mut value = Vec::new();
        a.encode_value(&mut value);
        assert_eq!(T::decode_value(&value).as_ref(), Some(a));
        for b in values {
            let other = key_bytes(b);
            assert_eq!(bytes.cmp(&other), a.cmp(b), "{a:?} and {b:?}");
            assert_eq!(other.starts_with(&bytes), a == b, "{a:?} begins {b:?}");
        }
    }
}

/// Numbers near the ends and the middle, and any others.
fn numbers(rng: &mut Rng) -> Vec<i64> {
    let near = [i64::MIN, i64::MIN + 1, -256, -255, -1, 0, 1, 255, 256, i64::MAX - 1, i64::MAX];
    near.into_iter().chain((0..60).map(|_| rng.next_u64().cast_signed() >> rng.below(64))).collect()
}

/// Short strings of few bytes, so that one often begins another, with zeros and 255s among them.
fn strings(rng: &mut Rng) -> Vec<Vec<u8>> {
    (0..70).map(|_| (0..rng.below(5)).map(|_| [0, 1, 97, 254, 255][rng.below(5) as usize]).collect()).collect()
}

#[test]
fn the_bytes_of_keys_sort_as_the_keys() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let numbers = numbers(&mut rng);
        let strings = strings(&mut rng);
        sorts_as_its_values(&numbers);
        sorts_as_its_values(&numbers.iter().map(|n| n.cast_unsigned()).collect::<Vec<_>>());
        sorts_as_its_values(&numbers.iter().map(|n| *n as i8).collect::<Vec<_>>());
        sorts_as_its_values(&numbers.iter().map(|n| *n as u16).collect::<Vec<_>>());
        sorts_as_its_values(&numbers.iter().map(|n| *n as i32).collect::<Vec<_>>());
        sorts_as_its_values(&numbers.iter().map(|n| i128::from(*n) * 7).collect::<Vec<_>>());
        sorts_as_its_values(&numbers.iter().map(|n| n.to_le_bytes()).collect::<Vec<_>>());
        sorts_as_its_values(&strings);
        let texts: Vec<String> = strings.iter().map(|s| s.iter().map(|b| *b as char).collect()).collect();
        sorts_as_its_values(&texts);
        let pairs: Vec<_> = texts.iter().cloned().zip(numbers.iter().copied()).collect();
        sorts_as_its_values(&pairs);
        let bytes = |n: &i64| n.to_be_bytes()[7];
        let fours: Vec<_> =
            strings.iter().zip(&numbers).map(|(s, n)| (s.clone(), *n > 0, s.clone(), bytes(n))).collect();
        sorts_as_its_values(&fours);
    }
}

#[test]
fn a_typed_family_reads_ranges_from_both_ends_in_the_order_of_the_keys() {
    let db = open();
    let family: TypedFamily<(i32, String), u64> = db.default_family().typed().unwrap();
    let mut model = std::collections::BTreeMap::new();
    let mut rng = Rng::new(17);
    let key = |rng: &mut Rng| (rng.below(20) as i32 - 10, ["", "a", "a\0", "b"][rng.below(4) as usize].to_owned());
    for n in 0..300 {
        let k = key(&mut rng);
        if rng.one_in(4) {
            family.delete(&k).unwrap();
            model.remove(&k);
        } else {
            family.put(&k, &n).unwrap();
            model.insert(k, n);
        }
    }
    for _ in 0..50 {
        let (mut from, mut to) = (key(&mut rng), key(&mut rng));
        if from > to {
            std::mem::swap(&mut from, &mut to);
        }
        let expected: Vec<_> = model.range(from.clone()..=to.clone()).map(|(k, v)| (k.clone(), *v)).collect();
        let forward: Vec<_> = family.range(from.clone()..=to.clone()).map(Result::unwrap).collect();
        let mut backward: Vec<_> = family.range(from..=to).rev().map(Result::unwrap).collect();
        backward.reverse();
        assert_eq!((&forward, &backward), (&expected, &expected));
    }
    family.delete_range((-10, String::new())..(0, String::new())).unwrap();
    assert!(family.iter().all(|e| e.unwrap().0.0 >= 0));
    assert_eq!(family.iter().count(), model.keys().filter(|k| k.0 >= 0).count());
}

#[test]
fn what_does_not_decode_is_an_error_that_names_key_and_type() {
    let db = open();
    let family = db.default_family().typed::<u32, u64>().unwrap();
    family.put(&1, &10).unwrap();
    db.put([0, 0, 0, 2], "short").unwrap();
    db.put("long key", [0; 8]).unwrap();
    let e = family.get(&2).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Incompatible);
    let says = "family 'default', key \"\\x00\\x00\\x00\\x02\": the value is not a u64";
    assert!(e.to_string().contains(says), "{e}");
    let all: Vec<_> = family.iter().collect();
    assert_eq!(all.len(), 3, "the iterator goes on");
    assert_eq!(all[0].as_ref().unwrap(), &(1, 10));
    let e = all[2].as_ref().unwrap_err();
    assert!(e.to_string().contains("key \"long key\": the key is not a u32"), "{e}");
}

#[test]
fn another_order_than_bytewise_is_refused() {
    let options = Options::new().fs(MemFs::shared()).order(KeyOrder::builtin("reverse").unwrap());
    let db = Db::open("db", options).unwrap();
    let e = db.default_family().typed::<u32, u32>().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(e.to_string().contains("typed keys need 'bytewise'"), "{e}");
}
