//! Families whose keys and values have Rust types: an encoding of keys that sorts as they do, and a handle that applies it.

use crate::api::entries::{Entries, Entry};
use crate::api::{ColumnFamily, Transaction};
use kingtide_base::{Error, ErrorKind, KeyOrder, Result, SeqNo};
use std::any::type_name;
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// A type that can be written to a [`TypedFamily`]: as a key, encoded so that the bytes sort as the values do, or as a value.
///
/// | type | as a key |
/// |---|---|
/// | `u8` to `u128` | big-endian |
/// | `i8` to `i128` | big-endian with the sign bit flipped |
/// | `bool` | one byte, 0 or 1 |
/// | `[u8; N]` | as it is |
/// | `str`, `[u8]`, `String`, `Vec<u8>` | each byte 0 followed by 255, and 0, 0 at the end; as a value, the bytes as they are |
/// | tuples of two to four of these | one after the other |
///
/// Implement it, and [`Decode`], for a type of your own, most simply by way of a tuple. As a key, no value's encoding may be
/// the beginning of another's, and none may be empty; a type that is used only for values may be encoded in any way. A type and the type
/// that it borrows as, such as `String` and `str`, must have the same encoding.
///
/// ```
/// use kingtide::{Encode, key_bytes};
///
/// assert!(key_bytes(&-1i32) < key_bytes(&1i32));
/// assert!(key_bytes(&("a", 2u8)) < key_bytes(&("a\0", 1u8)));
/// let mut value = Vec::new();
/// "a\0".encode_value(&mut value);
/// assert_eq!(value, b"a\0");
/// ```
pub trait Encode {
    /// Appends the encoding as a key, which sorts.
    fn encode(&self, out: &mut Vec<u8>);

    /// Appends the encoding as a value, which makes up all of the stored bytes and need not sort.
    fn encode_value(&self, out: &mut Vec<u8>) {
        self.encode(out);
    }
}

/// A type that can be read from a [`TypedFamily`].
///
/// ```
/// use kingtide::{Decode, Encode};
///
/// #[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
/// struct Reading {
///     sensor: u32,
///     at_ms: u64,
/// }
/// impl Encode for Reading {
///     fn encode(&self, out: &mut Vec<u8>) {
///         (self.sensor, self.at_ms).encode(out);
///     }
/// }
/// impl Decode for Reading {
///     fn decode(input: &mut &[u8]) -> Option<Reading> {
///         let (sensor, at_ms) = Decode::decode(input)?;
///         Some(Reading { sensor, at_ms })
///     }
/// }
/// let bytes = kingtide::key_bytes(&Reading { sensor: 7, at_ms: 1 });
/// assert_eq!(Reading::decode_value(&bytes), Some(Reading { sensor: 7, at_ms: 1 }));
/// assert_eq!(Reading::decode_value(&bytes[1..]), None);
/// ```
pub trait Decode: Encode + Sized {
    /// Removes an encoding from the front of `input`; `None` if there is none.
    fn decode(input: &mut &[u8]) -> Option<Self>;

    /// Decodes the output of [`Encode::encode_value`]; `None` if `input` is not such an output.
    fn decode_value(mut bytes: &[u8]) -> Option<Self> {
        Self::decode(&mut bytes).filter(|_| bytes.is_empty())
    }
}

/// A value's encoding as a key, such as [`ColumnFamily`] takes.
pub fn key_bytes(key: &(impl Encode + ?Sized)) -> Vec<u8> {
    let mut out = Vec::new();
    key.encode(&mut out);
    out
}

macro_rules! integers {
    ($($unsigned:ty, $signed:ty;)*) => { $(
        impl Encode for $unsigned {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
        }

        impl Decode for $unsigned {
            fn decode(input: &mut &[u8]) -> Option<Self> {
                <[u8; size_of::<$unsigned>()]>::decode(input).map(Self::from_be_bytes)
            }
        }

        impl Encode for $signed {
            fn encode(&self, out: &mut Vec<u8>) {
                (self.cast_unsigned() ^ <$signed>::MIN.cast_unsigned()).encode(out);
            }
        }

        impl Decode for $signed {
            fn decode(input: &mut &[u8]) -> Option<Self> {
                <$unsigned>::decode(input).map(|n| n.cast_signed() ^ <$signed>::MIN)
            }
        }
    )* };
}

integers! { u8, i8; u16, i16; u32, i32; u64, i64; u128, i128; }

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Decode for bool {
    fn decode(input: &mut &[u8]) -> Option<bool> {
        match u8::decode(input)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> Decode for [u8; N] {
    fn decode(input: &mut &[u8]) -> Option<[u8; N]> {
        let (bytes, rest) = input.split_first_chunk()?;
        *input = rest;
        Some(*bytes)
    }
}

impl Encode for [u8] {
    fn encode(&self, out: &mut Vec<u8>) {
        for &byte in self {
            out.push(byte);
            if byte == 0 {
                out.push(255);
            }
        }
        out.extend_from_slice(&[0, 0]);
    }

    fn encode_value(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl Decode for Vec<u8> {
    fn decode(input: &mut &[u8]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            match u8::decode(input)? {
                0 => match u8::decode(input)? {
                    0 => return Some(bytes),
                    255 => bytes.push(0),
                    _ => return None,
                },
                byte => bytes.push(byte),
            }
        }
    }

    fn decode_value(bytes: &[u8]) -> Option<Vec<u8>> {
        Some(bytes.to_vec())
    }
}

impl Decode for String {
    fn decode(input: &mut &[u8]) -> Option<String> {
        String::from_utf8(Vec::decode(input)?).ok()
    }

    fn decode_value(bytes: &[u8]) -> Option<String> {
        std::str::from_utf8(bytes).ok().map(str::to_owned)
    }
}

macro_rules! encode_as {
    ($($type:ty => |$it:ident| $inner:expr;)*) => { $(
        impl Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                let $it = self;
                $inner.encode(out);
            }

            fn encode_value(&self, out: &mut Vec<u8>) {
                let $it = self;
                $inner.encode_value(out);
            }
        }
    )* };
}

encode_as! {
    str => |s| s.as_bytes();
    String => |s| s.as_bytes();
    Vec<u8> => |v| v.as_slice();
}

impl<T: Encode + ?Sized> Encode for &T {
    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }

    fn encode_value(&self, out: &mut Vec<u8>) {
        (**self).encode_value(out);
    }
}

macro_rules! tuples {
    ($($($type:ident $field:tt),+;)*) => { $(
        impl<$($type: Encode),+> Encode for ($($type,)+) {
            fn encode(&self, out: &mut Vec<u8>) {
                $(self.$field.encode(out);)+
            }
        }

        impl<$($type: Decode),+> Decode for ($($type,)+) {
            fn decode(input: &mut &[u8]) -> Option<Self> {
                Some(($($type::decode(input)?,)+))
            }
        }
    )* };
}

tuples! { A 0, B 1; A 0, B 1, C 2; A 0, B 1, C 2, D 3; }

/// A column family of keys and values with Rust types, created by [`ColumnFamily::typed`]. It costs no more than the
/// encoding and a copy of a key for each call.
///
/// The types are not stored. If a family is opened with other types, entries that do not decode are errors, and others are
/// misinterpreted.
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// let heights = db.create_family("heights", Default::default())?.typed::<(String, i64), u32>()?;
/// for (minute, cm) in [(-5, 310), (0, 325), (300, 402)] {
///     heights.put(&("brest".to_string(), minute), &cm)?;
/// }
/// heights.put(&("bristol".to_string(), 0), &611)?;
///
/// let at = |minute| ("brest".to_string(), minute);
/// assert_eq!(heights.get(&at(0))?, Some(325));
/// let day = heights.range(at(-10)..at(100)).map(|e| e.map(|(_, cm)| cm)).collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(day, [310, 325]);
/// let (last, _) = heights.iter().next_back().expect("four entries")?;
/// assert_eq!(last.0, "bristol");
///
/// // In a transaction, with what else it does.
/// db.transact(|txn| {
///     let cm = heights.get_in(txn, &at(0))?.unwrap_or_default();
///     heights.delete_in(txn, &at(300))?;
///     heights.put_in(txn, &at(0), &(cm + 1))
/// })?;
/// assert_eq!((heights.get(&at(0))?, heights.get(&at(300))?), (Some(326), None));
/// heights.delete(&at(0))?;
/// heights.delete_range(at(i64::MIN)..at(i64::MAX))?;
/// assert_eq!(heights.iter().count(), 1);
///
/// // The bytes are there as in any family.
/// assert_eq!(heights.family().iter().count(), 1);
/// let names = db.default_family().typed::<String, String>()?;
/// names.put("ann", "Ann")?; // by reference, as maps take keys
/// assert_eq!(names.get("ann")?.as_deref(), Some("Ann"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TypedFamily<K, V> {
    family: ColumnFamily,
    types: PhantomData<fn(K) -> V>,
}

impl ColumnFamily {
    /// The family with keys of type `K` and values of type `V`.
    ///
    /// # Errors
    /// `InvalidArgument` unless the family uses the bytewise order: in other orders, encoded keys do not sort as their values do.
    pub fn typed<K: Decode, V: Decode>(&self) -> Result<TypedFamily<K, V>> {
        match self.order() {
            KeyOrder::Bytewise => Ok(TypedFamily { family: self.clone(), types: PhantomData }),
            order => {
                let text =
                    format!("family '{}' is ordered by '{}': typed keys need 'bytewise'", self.name(), order.name());
                Err(Error::invalid(text))
            }
        }
    }
}

fn value_bytes(value: &(impl Encode + ?Sized)) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode_value(&mut out);
    out
}

#[cold]
fn undecodable<T>(what: &str, family: &str, key: &[u8]) -> Error {
    let (key, kind) = (key.escape_ascii(), type_name::<T>());
    Error::new(ErrorKind::Incompatible, format!("family '{family}', key \"{key}\": the {what} is not a {kind}"))
}

impl<K: Decode, V: Decode> TypedFamily<K, V> {
    /// The family, whose keys and values are bytes.
    pub fn family(&self) -> &ColumnFamily {
        &self.family
    }

    fn value_of(&self, key: &[u8], value: Option<impl AsRef<[u8]>>) -> Result<Option<V>> {
        let decode = |v: &[u8]| V::decode_value(v).ok_or_else(|| undecodable::<V>("value", &self.family.name(), key));
        value.map(|v| decode(v.as_ref())).transpose()
    }

    /// Reads a key.
    ///
    /// # Errors
    /// As [`ColumnFamily::get`]; `Incompatible`, with the key and the type, when the value does not decode.
    pub fn get<Q: Encode + ?Sized>(&self, key: &Q) -> Result<Option<V>>
    where
        K: Borrow<Q>,
    {
        let key = key_bytes(key);
        self.value_of(&key, self.family.get(&key)?)
    }

    /// Reads a key as a transaction sees it.
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`TypedFamily::get`].
    pub fn get_in<Q: Encode + ?Sized>(&self, txn: &mut Transaction, key: &Q) -> Result<Option<V>>
    where
        K: Borrow<Q>,
    {
        let key = key_bytes(key);
        self.value_of(&key, txn.get(&self.family, &key)?)
    }

    /// Sets a key.
    ///
    /// # Errors
    /// As [`ColumnFamily::put`].
    pub fn put<Q: Encode + ?Sized, W: Encode + ?Sized>(&self, key: &Q, value: &W) -> Result<SeqNo>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
    {
        self.family.put(key_bytes(key), value_bytes(value))
    }

    /// Sets a key in a transaction.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn put_in<Q: Encode + ?Sized, W: Encode + ?Sized>(
        &self,
        txn: &mut Transaction,
        key: &Q,
        value: &W,
    ) -> Result<()>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
    {
        txn.put(&self.family, &key_bytes(key), &value_bytes(value))
    }

    /// Deletes a key. Deleting an absent key is not an error.
    ///
    /// # Errors
    /// As [`ColumnFamily::delete`].
    pub fn delete<Q: Encode + ?Sized>(&self, key: &Q) -> Result<SeqNo>
    where
        K: Borrow<Q>,
    {
        self.family.delete(key_bytes(key))
    }

    /// Deletes a key in a transaction.
    ///
    /// # Errors
    /// As [`Transaction::delete`].
    pub fn delete_in<Q: Encode + ?Sized>(&self, txn: &mut Transaction, key: &Q) -> Result<()>
    where
        K: Borrow<Q>,
    {
        txn.delete(&self.family, &key_bytes(key))
    }

    /// Deletes all keys in a range.
    ///
    /// # Errors
    /// As [`ColumnFamily::delete_range`].
    pub fn delete_range(&self, range: impl RangeBounds<K>) -> Result<SeqNo> {
        self.family.delete_range(bytes_of(&range))
    }

    /// Iterates over a range in the order of the keys, from either end or both, as of the moment of the call.
    ///
    /// # Errors
    /// Items are errors as those of [`ColumnFamily::range`]; `Incompatible`, with the key and the type, where a key or value does not
    /// decode, after which the iterator continues.
    pub fn range(&self, range: impl RangeBounds<K>) -> TypedEntries<K, V> {
        let entries = self.family.range(bytes_of(&range));
        TypedEntries { entries, family: self.family.name(), types: PhantomData }
    }

    /// Iterates over all entries. The same as `range(..)`.
    ///
    /// # Errors
    /// As [`TypedFamily::range`].
    pub fn iter(&self) -> TypedEntries<K, V> {
        self.range(..)
    }
}

fn bytes_of<K: Encode>(range: &impl RangeBounds<K>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    (range.start_bound().map(key_bytes), range.end_bound().map(key_bytes))
}

impl<K, V> Clone for TypedFamily<K, V> {
    fn clone(&self) -> Self {
        TypedFamily { family: self.family.clone(), types: PhantomData }
    }
}

impl<K, V> std::fmt::Debug for TypedFamily<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TypedFamily<{}, {}>({:?})", type_name::<K>(), type_name::<V>(), self.family)
    }
}

/// An iterator over keys and values of a [`TypedFamily`], from both ends. See [`TypedFamily::range`].
#[derive(Debug)]
pub struct TypedEntries<K, V> {
    entries: Entries,
    family: String,
    types: PhantomData<fn() -> (K, V)>,
}

/// A key of which nothing is left over.
fn key_of<K: Decode>(mut bytes: &[u8]) -> Option<K> {
    K::decode(&mut bytes).filter(|_| bytes.is_empty())
}

impl<K: Decode, V: Decode> TypedEntries<K, V> {
    fn decode(&self, entry: Result<Entry>) -> Result<(K, V)> {
        let Entry { key, value } = entry?;
        let decoded = key_of(&key).ok_or_else(|| undecodable::<K>("key", &self.family, &key))?;
        let value = V::decode_value(&value).ok_or_else(|| undecodable::<V>("value", &self.family, &key))?;
        Ok((decoded, value))
    }
}

impl<K: Decode, V: Decode> Iterator for TypedEntries<K, V> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Result<(K, V)>> {
        self.entries.next().map(|entry| self.decode(entry))
    }
}

impl<K: Decode, V: Decode> DoubleEndedIterator for TypedEntries<K, V> {
    fn next_back(&mut self) -> Option<Result<(K, V)>> {
        self.entries.next_back().map(|entry| self.decode(entry))
    }
}
