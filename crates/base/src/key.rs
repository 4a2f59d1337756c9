//! Entries are ordered by (user key ascending in the family's [`KeyOrder`], sequence number descending).
//!
//! A [`Tag`] packs what an entry is into 64 bits: `sequence << 8 | kind`. Comparing two tags as integers therefore
//! compares their age; sequence numbers are unique per operation, so the kind never decides.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// A sequence number: one per operation, drawn in commit order. 56 bits are stored.
pub type SeqNo = u64;

/// The largest sequence number that fits into a [`Tag`].
pub const MAX_SEQ: SeqNo = (1 << 56) - 1;

/// What an entry does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The key has no value from this sequence number on.
    Delete = 0,
    /// Like `Delete`, but promises that the key was put at most once since the last delete: the pair annihilates.
    SingleDelete = 1,
    /// The value is stored inline.
    Put = 2,
    /// The value is stored in a value log; the entry's value is an encoded pointer.
    PutPointer = 3,
    /// Deletes `[key, value)`; never stored among point entries, only in range-tombstone blocks, batches and the WAL.
    RangeDelete = 4,
}

/// Set in a tag's low byte when the entry's value bytes begin with its expiry: 8 bytes, little-endian, Unix milliseconds.
pub const EXPIRY_FLAG: u8 = 0x80;

/// Set in a tag's low byte, only together with [`Kind::Put`], when the value (behind its expiry) is compressed already: one
/// byte of compression and what that made of it, raw length first. Lives in batches, the log and memtables, never in
/// tables: such a value goes to a value log as it is.
pub const PACKED_FLAG: u8 = 0x40;

const PACKED_PUT: u8 = PACKED_FLAG | Kind::Put as u8;

/// Bytes of the expiry prefix.
pub const EXPIRY_LEN: usize = 8;

/// `sequence << 8 | expiry flag | kind`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// The tag of an entry.
    #[inline]
    pub const fn new(seq: SeqNo, kind: Kind) -> Tag {
        Tag(seq << 8 | kind as u64)
    }

    /// Does the same, for an entry whose value begins with an expiry.
    #[inline]
    pub const fn with_expiry(seq: SeqNo, kind: Kind) -> Tag {
        Tag(seq << 8 | EXPIRY_FLAG as u64 | kind as u64)
    }

    /// Greater than or equal to every tag with sequence number `seq`: the seek target for "newest visible at `seq`".
    #[inline]
    pub const fn seek(seq: SeqNo) -> Tag {
        Tag(seq << 8 | 0xff)
    }

    /// The sequence number.
    #[inline]
    pub const fn seq(self) -> SeqNo {
        self.0 >> 8
    }

    /// The kind, or `None` if the low byte is none that this version knows (damage, or a newer format).
    #[inline]
    pub const fn kind(self) -> Option<Kind> {
        match self.0 as u8 & !EXPIRY_FLAG {
            0 => Some(Kind::Delete),
            1 => Some(Kind::SingleDelete),
            2 | PACKED_PUT => Some(Kind::Put),
            3 => Some(Kind::PutPointer),
            4 => Some(Kind::RangeDelete),
            _ => None,
        }
    }

    /// Returns whether the value begins with an expiry.
    #[inline]
    pub const fn has_expiry(self) -> bool {
        self.0 as u8 & EXPIRY_FLAG != 0
    }

    /// Returns whether the value is compressed: see [`PACKED_FLAG`].
    #[inline]
    pub const fn is_packed(self) -> bool {
        self.0 as u8 & !EXPIRY_FLAG == PACKED_PUT
    }

    /// Returns whether what is stored behind the expiry stands for the value rather than being it: a pointer, or packed.
    #[inline]
    pub const fn is_indirect(self) -> bool {
        matches!(self.0 as u8 & !EXPIRY_FLAG, PACKED_PUT | 3)
    }

    /// Returns whether the entry is a `Delete` or `SingleDelete`.
    #[inline]
    pub const fn is_tombstone(self) -> bool {
        (self.0 as u8 & !EXPIRY_FLAG) < Kind::Put as u8
    }

    /// Returns the same entry under another sequence number.
    #[inline]
    pub const fn with_seq(self, seq: SeqNo) -> Tag {
        Tag(seq << 8 | (self.0 & 0xff))
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Some(k) => {
                let (ttl, packed) = (self.has_expiry(), self.is_packed());
                let (ttl, packed) = (if ttl { "+ttl" } else { "" }, if packed { "+packed" } else { "" });
                write!(f, "{k:?}@{}{ttl}{packed}", self.seq())
            }
            None => write!(f, "kind {}@{}", self.0 as u8, self.seq()),
        }
    }
}

/// Splits the expiry off a stored value. `None` if the value is too short to hold the expiry its tag announces.
#[inline]
pub fn split_expiry(tag: Tag, value: &[u8]) -> Option<(Option<u64>, &[u8])> {
    if !tag.has_expiry() {
        return Some((None, value));
    }
    let (head, rest) = value.split_first_chunk::<EXPIRY_LEN>()?;
    Some((Some(u64::from_le_bytes(*head)), rest))
}

/// A key order supplied by the user. Its name is stored with the family; a family opened with an order of another name is refused. Many threads
/// call it at once, while the engine holds locks, so it must not call the database.
///
/// ```
/// use kingtide_base::KeyOrder;
/// use kingtide_base::key::CustomOrder;
/// use std::cmp::Ordering;
/// use std::sync::Arc;
///
/// /// Shorter keys first, and keys of one length by their bytes.
/// struct ByLength;
///
/// impl CustomOrder for ByLength {
///     fn name(&self) -> &str {
///         "by length"
///     }
///     fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
///         a.len().cmp(&b.len()).then_with(|| a.cmp(b))
///     }
///     fn head(&self, key: &[u8]) -> u64 {
///         key.len() as u64
///     }
/// }
///
/// let order = KeyOrder::Custom(Arc::new(ByLength));
/// assert_eq!(order.compare(b"zz", b"aaa"), Ordering::Less);
/// assert!(!order.is_bytewise() && KeyOrder::Bytewise.is_bytewise());
/// assert_eq!(KeyOrder::builtin(KeyOrder::Reverse.name()).map(|order| order.compare(b"a", b"b")), Some(Ordering::Greater));
/// ```
pub trait CustomOrder: Send + Sync {
    /// Stable name, stored on disk. Not empty, and not that of a built-in order.
    fn name(&self) -> &str;
    /// A total order. Keys that compare equal are the same key.
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering;
    /// A monotone 64-bit image of a key: `a <= b` implies `head(a) <= head(b)`. Zero for every key is always right;
    /// a finer image makes searches faster.
    fn head(&self, _key: &[u8]) -> u64 {
        0
    }
    /// Returns whether this only stands for the order of that name: see [`unknown_order`].
    #[doc(hidden)]
    fn is_unknown(&self) -> bool {
        false
    }
}

/// Stands for an order that only the program that made a database knows, to read files from front to back. It compares bytes, so nothing can
/// be found by it, and what is in the right order may seem to be in a wrong one.
#[doc(hidden)] // for verification and the command-line tool
pub fn unknown_order(name: String) -> Arc<dyn CustomOrder> {
    struct Unknown(String);

    impl CustomOrder for Unknown {
        fn name(&self) -> &str {
            &self.0
        }

        fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
            a.cmp(b)
        }

        fn is_unknown(&self) -> bool {
            true
        }
    }
    Arc::new(Unknown(name))
}

/// The order of a family's keys.
#[derive(Clone, Default)]
pub enum KeyOrder {
    /// Unsigned bytes, the default and the fastest.
    #[default]
    Bytewise,
    /// Unsigned bytes, descending.
    Reverse,
    /// Keys are 8-byte little-endian `u64`; keys of any other length sort after all of them, bytewise.
    U64,
    /// Keys are 8-byte little-endian `i64`; keys of any other length sort after all of them, bytewise.
    I64,
    /// ASCII letters compare without case; `Key` and `KEY` are the same key.
    CaseInsensitive,
    /// An order supplied by the user.
    Custom(Arc<dyn CustomOrder>),
}

/// First eight bytes of a key as a big-endian integer, zero padded: monotone for the bytewise order.
#[inline]
pub fn head_be(key: &[u8]) -> u64 {
    if let Some(b) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*b);
    }
    let mut b = [0u8; 8];
    b[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(b)
}

impl KeyOrder {
    /// Returns whether the fast bytewise paths apply.
    #[inline]
    pub fn is_bytewise(&self) -> bool {
        matches!(self, KeyOrder::Bytewise)
    }

    /// Compares two user keys.
    #[inline]
    pub fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            KeyOrder::Bytewise => a.cmp(b),
            other => other.compare_slow(a, b),
        }
    }

    #[inline(never)]
    fn compare_slow(&self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            KeyOrder::Bytewise => a.cmp(b),
            KeyOrder::Reverse => b.cmp(a),
            KeyOrder::U64 => match (a.try_into(), b.try_into()) {
                (Ok(x), Ok(y)) => u64::from_le_bytes(x).cmp(&u64::from_le_bytes(y)),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => a.cmp(b),
            },
            KeyOrder::I64 => match (a.try_into(), b.try_into()) {
                (Ok(x), Ok(y)) => i64::from_le_bytes(x).cmp(&i64::from_le_bytes(y)),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => a.cmp(b),
            },
            KeyOrder::CaseInsensitive => a.iter().map(u8::to_ascii_lowercase).cmp(b.iter().map(u8::to_ascii_lowercase)),
            KeyOrder::Custom(c) => c.compare(a, b),
        }
    }

    /// A monotone 64-bit image of a key: `a <= b` implies `head(a) <= head(b)`.
    #[doc(hidden)] // for searches and filters
    #[inline]
    pub fn head(&self, key: &[u8]) -> u64 {
        match self {
            KeyOrder::Bytewise => head_be(key),
            KeyOrder::Reverse => !head_be(key),
            KeyOrder::U64 => key.try_into().map_or(u64::MAX, u64::from_le_bytes),
            KeyOrder::I64 => key.try_into().map_or(u64::MAX, |b| (i64::from_le_bytes(b) as u64) ^ 1 << 63),
            KeyOrder::CaseInsensitive => {
                let mut b = [0u8; 8];
                for (d, s) in b.iter_mut().zip(key) {
                    *d = s.to_ascii_lowercase();
                }
                u64::from_be_bytes(b)
            }
            KeyOrder::Custom(c) => c.head(key),
        }
    }

    /// Returns whether two keys that compare equal are always the same bytes. Where they need not be, a filter must hash a
    /// canonical form: see [`KeyOrder::hash`].
    #[doc(hidden)] // for searches and filters
    #[inline]
    pub fn equal_means_identical(&self) -> bool {
        !matches!(self, KeyOrder::CaseInsensitive | KeyOrder::Custom(_))
    }

    /// Hash of a key such that keys that compare equal hash equal; `None` when the order cannot promise that
    /// (filters are then not built or asked).
    #[doc(hidden)] // for searches and filters
    #[inline]
    pub fn hash(&self, key: &[u8]) -> Option<u64> {
        match self {
            KeyOrder::CaseInsensitive => Some(hash_of_lowercase(key)),
            KeyOrder::Custom(_) => None,
            _ => Some(crate::hash::hash64(key)),
        }
    }

    /// Returns whether it is more than the name of an order: see [`unknown_order`].
    #[doc(hidden)] // for checks, which would find fault with everything
    pub fn is_known(&self) -> bool {
        !matches!(self, KeyOrder::Custom(c) if c.is_unknown())
    }

    /// The stored name.
    pub fn name(&self) -> &str {
        match self {
            KeyOrder::Bytewise => "bytewise",
            KeyOrder::Reverse => "reverse",
            KeyOrder::U64 => "u64",
            KeyOrder::I64 => "i64",
            KeyOrder::CaseInsensitive => "case-insensitive",
            KeyOrder::Custom(c) => c.name(),
        }
    }

    /// The built-in order of that name.
    pub fn builtin(name: &str) -> Option<KeyOrder> {
        Some(match name {
            "bytewise" => KeyOrder::Bytewise,
            "reverse" => KeyOrder::Reverse,
            "u64" => KeyOrder::U64,
            "i64" => KeyOrder::I64,
            "case-insensitive" => KeyOrder::CaseInsensitive,
            _ => return None,
        })
    }
}

impl fmt::Debug for KeyOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The hash of a key in lower case. A search takes one of each key, so none is copied to the heap but a very long one.
fn hash_of_lowercase(key: &[u8]) -> u64 {
    let mut room = [0u8; 128];
    match room.get_mut(..key.len()) {
        Some(lower) => {
            lower.copy_from_slice(key);
            lower.make_ascii_lowercase();
            crate::hash::hash64(lower)
        }
        None => crate::hash::hash64(&key.to_ascii_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders() -> [KeyOrder; 5] {
        [KeyOrder::Bytewise, KeyOrder::Reverse, KeyOrder::U64, KeyOrder::I64, KeyOrder::CaseInsensitive]
    }

    /// Every order must be total and its head monotone, on keys of all lengths around the head's eight bytes.
    #[test]
    fn heads_are_monotone_and_orders_total() {
        let mut rng = crate::rng::Rng::new(7);
        let keys: Vec<Vec<u8>> = (0..400)
            .map(|_| {
                let len = rng.below(12) as usize;
                (0..len).map(|_| *b"\x00\x01aAbBzZ\x7f\x80\xfe\xff".get(rng.below(12) as usize).unwrap_or(&0)).collect()
            })
            .collect();
        for order in orders() {
            for a in &keys {
                for b in &keys {
                    let c = order.compare(a, b);
                    assert_eq!(c.reverse(), order.compare(b, a), "{order:?} {a:?} {b:?}");
                    if c.is_le() {
                        assert!(order.head(a) <= order.head(b), "{order:?} {a:?} {b:?}");
                    }
                    if c.is_eq() {
                        assert_eq!(order.hash(a), order.hash(b));
                        assert!(!order.equal_means_identical() || a == b);
                    }
                }
            }
            assert_eq!(KeyOrder::builtin(order.name()).map(|o| o.name().to_owned()).as_deref(), Some(order.name()));
        }
    }

    #[test]
    fn tags_order_by_age_and_carry_their_kind() {
        assert!(Tag::new(5, Kind::Put) > Tag::new(4, Kind::RangeDelete));
        assert!(Tag::seek(5) >= Tag::with_expiry(5, Kind::Put) && Tag::seek(5) < Tag::new(6, Kind::Delete));
        let t = Tag::with_expiry(9, Kind::PutPointer);
        assert_eq!((t.seq(), t.kind(), t.has_expiry(), t.is_tombstone()), (9, Some(Kind::PutPointer), true, false));
        assert_eq!(Tag(0x17).kind(), None);
        let packed = Tag(7 << 8 | (PACKED_FLAG | EXPIRY_FLAG) as u64 | Kind::Put as u64);
        assert_eq!((packed.kind(), packed.is_packed(), packed.is_indirect()), (Some(Kind::Put), true, true));
        assert!(packed.has_expiry() && !packed.is_tombstone() && packed > Tag::new(6, Kind::Put));
        for kind in [Kind::Delete, Kind::SingleDelete, Kind::PutPointer, Kind::RangeDelete] {
            let flagged = Tag(kind as u64 | PACKED_FLAG as u64);
            assert_eq!((flagged.kind(), flagged.is_packed()), (None, false), "only a put can be packed");
        }
        assert_eq!(split_expiry(t, b"short"), None);
        assert_eq!(split_expiry(t, b"\x01\0\0\0\0\0\0\0v"), Some((Some(1), &b"v"[..])));
        assert_eq!(t.with_seq(0).seq(), 0);
    }

    /// It is stored in filters.
    #[test]
    fn the_hash_of_the_case_insensitive_order_is_that_of_lower_case() {
        let key: Vec<u8> = (0..400u32).map(|i| (i * 7) as u8).collect();
        for len in 0..key.len() {
            let want = crate::hash::hash64(&key[..len].to_ascii_lowercase());
            assert_eq!(KeyOrder::CaseInsensitive.hash(&key[..len]), Some(want), "{len} bytes");
        }
    }
}
