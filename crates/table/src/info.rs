//! What a table knows about itself: the properties block, and the [`TableInfo`] that a writer returns for the manifest.
//!
//! Properties (in a frame of their own, see [`crate::frame`]): a sequence of fields, each a number u8 and a
//! length-prefixed value; a reader skips numbers that it does not know.
//!
//! | number | value |
//! |---|---|
//! | 1 | key order name, UTF-8 |
//! | 2 | counts: entries, tombstones, range tombstones, raw bytes, blocks, five varints |
//! | 3 | smallest key |
//! | 4 | largest key |
//! | 5 | oldest sequence, newest sequence, earliest expiry in Unix milliseconds (0 none), three varints |
//! | 6 | value-log references: file id, values, bytes, three varints for each |
//! | 7 | empty; there only if the table is a sorted file, whose entries have no sequence numbers of their own |
//! | 8 | entries that expire, latest expiry in Unix milliseconds, two varints; there only if an entry expires |
//! | 9 | older versions: entries of keys that have a newer entry in the table, a varint; there only if there are any |
//! | 10 | the Zstandard dictionary of the data blocks; there only if they have one. Twice: before all other fields and behind them |
//! | 11 | crc32c of the dictionary, u32; behind each copy of it. What is left of damaged properties may have an intact one |
//! | 12 | zeros, a page of 4 KiB, between the copies of a dictionary of that size and more, so that a damaged page has parts of one only |

use crate::compression::Dictionary;
use kingtide_base::checksum::crc;
use kingtide_base::coding::{Reader, put_slice, put_varint};
use kingtide_base::key::MAX_SEQ;
use kingtide_base::{Error, Result, SeqNo};

/// Sizes and counts in files are below this, which no file reaches: 16 TiB. A larger one is damage, and sums of a million
/// of them do not overflow.
pub const MAX_SIZE: u64 = 1 << 44;

/// Damage of storage comes in pages of this size, at most, as a rule.
const PAGE: usize = 4096;

/// Reads a size or a count, a varint below [`MAX_SIZE`].
pub fn size(r: &mut Reader<'_>) -> Option<u64> {
    r.varint().filter(|n| *n < MAX_SIZE)
}

/// Reads a sequence number. A larger one than there are would end the numbers of a database that is repaired.
fn seq(r: &mut Reader<'_>) -> Option<SeqNo> {
    r.varint().filter(|seq| *seq <= MAX_SEQ)
}

/// Bytes that a table references in one value log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VlogRef {
    /// The value log's file id.
    pub file_id: u64,
    /// Number of values.
    pub values: u64,
    /// Stored bytes of those values, their headers included.
    pub bytes: u64,
}

/// Deletes all versions of the keys in `[start, end)` that are older than `seq`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeTombstone {
    /// First key deleted.
    pub start: Vec<u8>,
    /// First key after the range.
    pub end: Vec<u8>,
    /// The deletion's sequence number.
    pub seq: SeqNo,
}

/// What a finished table holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableInfo {
    /// Bytes of the file.
    pub file_size: u64,
    /// Point entries, tombstones included.
    pub entries: u64,
    /// Point tombstones among them.
    pub tombstones: u64,
    /// Entries whose key has a newer one in the same table. They are there for a snapshot, or were when it was written.
    pub older_versions: u64,
    /// Range tombstones.
    pub range_tombstones: u64,
    /// Bytes of keys and stored values before compression.
    pub raw_bytes: u64,
    /// Smallest user key, the starts of range tombstones included.
    pub min_key: Vec<u8>,
    /// Largest user key. When it comes from a range tombstone it is that tombstone's exclusive end.
    pub max_key: Vec<u8>,
    /// Oldest sequence number.
    pub min_seq: SeqNo,
    /// Newest sequence number.
    pub max_seq: SeqNo,
    /// Earliest expiry of an entry, Unix milliseconds; 0 when none expires.
    pub min_expiry_ms: u64,
    /// Entries that expire; 0 in tables of builds that did not count them.
    pub expiring: u64,
    /// Latest expiry of an entry, Unix milliseconds; 0 when none expires.
    pub max_expiry_ms: u64,
    /// Value-log bytes referenced, by ascending file id.
    pub vlog_refs: Vec<VlogRef>,
    /// A sorted file, written outside of any database: one entry a key, all with sequence number [`UNSEQUENCED`] until the
    /// table is opened with the one that it was given.
    pub unsequenced: bool,
}

impl TableInfo {
    /// How many entries have expired at `now_ms`. Exact before the first and after the last expiry; in between as if
    /// expiries were spread evenly. 0 for a table that does not know.
    pub fn expired_at(&self, now_ms: u64) -> f64 {
        let (first, last) = (self.min_expiry_ms, self.max_expiry_ms.max(self.min_expiry_ms));
        if self.expiring == 0 || now_ms < first {
            return 0.0;
        }
        let passed = (now_ms - first) as f64 + 1.0;
        self.expiring as f64 * (passed / ((last - first) as f64 + 1.0)).min(1.0)
    }
}

/// The sequence number in entries of a sorted file.
pub const UNSEQUENCED: SeqNo = 1;

/// The properties block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Properties {
    pub order: String,
    pub blocks: u64,
    pub info: TableInfo,
    /// The Zstandard dictionary of the blocks; empty for none.
    pub dictionary: Vec<u8>,
}

impl Properties {
    pub fn encode(&self) -> Vec<u8> {
        let i = &self.info;
        let varints = |values: &[u64]| {
            let mut out = Vec::new();
            values.iter().for_each(|v| put_varint(&mut out, *v));
            out
        };
        let refs: Vec<u64> = i.vlog_refs.iter().flat_map(|r| [r.file_id, r.values, r.bytes]).collect();
        let mut out = Vec::new();
        let mut field = |number: u8, value: &[u8]| {
            out.push(number);
            put_slice(&mut out, value);
        };
        if !self.dictionary.is_empty() {
            field(10, &self.dictionary);
            field(11, &crc(&self.dictionary).to_le_bytes());
        }
        field(1, self.order.as_bytes());
        field(2, &varints(&[i.entries, i.tombstones, i.range_tombstones, i.raw_bytes, self.blocks]));
        field(3, &i.min_key);
        field(4, &i.max_key);
        field(5, &varints(&[i.min_seq, i.max_seq, i.min_expiry_ms]));
        field(6, &varints(&refs));
        if i.unsequenced {
            field(7, &[]);
        }
        if i.expiring > 0 {
            field(8, &varints(&[i.expiring, i.max_expiry_ms]));
        }
        if i.older_versions > 0 {
            field(9, &varints(&[i.older_versions]));
        }
        if !self.dictionary.is_empty() {
            if self.dictionary.len() >= PAGE {
                field(12, &[0; PAGE]);
            }
            field(10, &self.dictionary);
            field(11, &crc(&self.dictionary).to_le_bytes());
        }
        out
    }

    /// Bytes that a dictionary of `len` bytes takes in a table.
    pub fn dictionary_bytes(len: usize) -> usize {
        let page = if len >= PAGE { PAGE + 3 } else { 0 };
        2 * (len + 10) + page
    }

    /// The last intact dictionary in bytes that may hold properties, whatever is wrong with the rest of them. O(bytes).
    pub fn find_dictionary(bytes: &[u8]) -> Option<&[u8]> {
        let magics = bytes.windows(Dictionary::MAGIC.len()).enumerate().rev();
        magics.filter(|(_, found)| *found == Dictionary::MAGIC).find_map(|(at, _)| intact_dictionary(bytes, at))
    }

    pub fn decode(bytes: &[u8]) -> Result<Properties> {
        Self::read(bytes).ok_or_else(|| Error::corruption("damaged table properties"))
    }

    fn read(bytes: &[u8]) -> Option<Properties> {
        let mut p = Properties::default();
        let mut all = Reader::new(bytes);
        while !all.is_empty() {
            let number = all.u8()?;
            let value = all.slice()?;
            let mut r = Reader::new(value);
            let i = &mut p.info;
            match number {
                1 => p.order = String::from_utf8(value.to_vec()).ok()?,
                2 => {
                    (i.entries, i.tombstones, i.range_tombstones) = (size(&mut r)?, size(&mut r)?, size(&mut r)?);
                    (i.raw_bytes, p.blocks) = (size(&mut r)?, size(&mut r)?);
                }
                3 => i.min_key = value.to_vec(),
                4 => i.max_key = value.to_vec(),
                5 => (i.min_seq, i.max_seq, i.min_expiry_ms) = (seq(&mut r)?, seq(&mut r)?, r.varint()?),
                6 => {
                    while !r.is_empty() {
                        i.vlog_refs.push(VlogRef { file_id: r.varint()?, values: size(&mut r)?, bytes: size(&mut r)? });
                    }
                }
                7 => i.unsequenced = true,
                8 => (i.expiring, i.max_expiry_ms) = (size(&mut r)?, r.varint()?),
                9 => i.older_versions = size(&mut r)?,
                10 => p.dictionary = value.to_vec(),
                _ => {}
            }
        }
        Some(p)
    }
}

/// The value of a field 10 that begins at `at`, if the field 11 behind it agrees.
fn intact_dictionary(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let len = (1..=4).find_map(|n| {
        let head = bytes.get(at.checked_sub(n + 1)?..at)?;
        let mut r = Reader::new(&head[1..]);
        let len = r.varint().filter(|_| head[0] == 10 && r.is_empty())?;
        usize::try_from(len).ok()
    })?;
    let end = at.checked_add(len)?;
    let (dictionary, behind) = (bytes.get(at..end)?, bytes.get(end..end + 6)?);
    (behind[..2] == [11, 4] && behind[2..] == crc(dictionary).to_le_bytes()).then_some(dictionary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_hostile() {
        let p = Properties {
            order: "bytewise".into(),
            blocks: 7,
            info: TableInfo {
                entries: 100,
                tombstones: 3,
                older_versions: 5,
                range_tombstones: 1,
                raw_bytes: 1 << 40,
                min_key: b"a".to_vec(),
                max_key: vec![9; 300],
                min_seq: 4,
                max_seq: u64::MAX >> 8,
                min_expiry_ms: 17,
                expiring: 5,
                max_expiry_ms: 1 << 50,
                vlog_refs: vec![VlogRef { file_id: 9, values: 2, bytes: 999 }],
                unsequenced: true,
                ..TableInfo::default()
            },
            dictionary: vec![7; 40],
        };
        let mut bytes = p.encode();
        assert_eq!(Properties::decode(&bytes).unwrap(), p);
        let with = |info: TableInfo| Properties { info, ..Properties::default() }.encode();
        for bad in [
            with(TableInfo { max_seq: MAX_SEQ + 1, ..TableInfo::default() }),
            with(TableInfo { min_seq: u64::MAX, ..TableInfo::default() }),
            with(TableInfo { entries: MAX_SIZE, ..TableInfo::default() }),
        ] {
            assert!(Properties::decode(&bad).is_err());
        }
        for cut in 0..bytes.len() {
            let _ = Properties::decode(&bytes[..cut]);
        }
        bytes.extend_from_slice(&[99, 2, 0, 0]);
        assert_eq!(Properties::decode(&bytes).unwrap(), p, "an unknown field is skipped");
    }

    #[test]
    fn a_dictionary_survives_the_damage_of_any_page_of_the_properties() {
        for len in [300, 4096, 20_000] {
            let mut dictionary = Dictionary::MAGIC.to_vec();
            dictionary.extend((4..len).map(|i| (i * i) as u8));
            let order = "bytewise".to_owned();
            let good =
                Properties { order, blocks: 3, dictionary: dictionary.clone(), ..Properties::default() }.encode();
            assert!(good.len() <= Properties::dictionary_bytes(len) + 100);
            assert_eq!(Properties::find_dictionary(&good), Some(&dictionary[..]));
            let page = if len < PAGE { 1 } else { PAGE };
            for at in (0..good.len()).step_by(page.min(97)) {
                let mut bytes = good.clone();
                let end = bytes.len().min(at + page);
                bytes[at..end].iter_mut().for_each(|b| *b ^= 0x55);
                assert_eq!(Properties::find_dictionary(&bytes), Some(&dictionary[..]), "{len} bytes, page at {at}");
            }
            // None that is not whole.
            assert_eq!(Properties::find_dictionary(&good[..len / 2]), None);
            let mut bytes = good.clone();
            bytes.iter_mut().skip(150).step_by(len / 2).for_each(|b| *b ^= 1);
            assert_eq!(Properties::find_dictionary(&bytes), None);
        }
    }

    #[test]
    fn expired_entries_are_estimated_between_the_first_and_the_last_expiry() {
        let info =
            TableInfo { entries: 10, expiring: 8, min_expiry_ms: 1000, max_expiry_ms: 1999, ..TableInfo::default() };
        for (now, expired) in [(0, 0.0), (999, 0.0), (1499, 4.0), (1999, 8.0), (u64::MAX, 8.0)] {
            assert_eq!(info.expired_at(now), expired, "{now}");
        }
        let unknown = TableInfo { entries: 10, min_expiry_ms: 1000, ..TableInfo::default() };
        assert_eq!(unknown.expired_at(5000), 0.0);
        let at_once = TableInfo { max_expiry_ms: 1000, ..info };
        assert_eq!((at_once.expired_at(999), at_once.expired_at(1000)), (0.0, 8.0));
    }
}
