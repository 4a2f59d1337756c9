//! The end of a key log: where its tail sections are.
//!
//! Footer, the last 64 bytes of the file (integers little-endian):
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | file id, u64 |
//! | 8 | 8 | where the data blocks end and the tail begins, u64 |
//! | 16 | 8 | length of the filter's frame, u64; 0 when there is none |
//! | 24 | 8 | length of the index's frame, u64 |
//! | 32 | 8 | length of the range tombstones' frame, u64; 0 when there are none |
//! | 40 | 8 | length of the properties' frame, u64 |
//! | 48 | 4 | format version, u32 |
//! | 52 | 4 | crc32c of bytes 0 to 52, u32 |
//! | 56 | 8 | magic |
//!
//! The sections follow each other in that order, without gaps, between the blocks and the footer. Magic and version
//! stay where they are in every later version.

use kingtide_base::checksum::crc;
use kingtide_base::coding::Reader;
use kingtide_base::{Error, ErrorKind, Result};

/// Bytes of the footer.
pub const FOOTER: usize = 64;
/// Newest version of the key-log format that this build reads, and that of the tables with a dictionary that it writes.
pub const KLOG_VERSION: u32 = 2;
/// Ends every key log.
pub const KLOG_MAGIC: [u8; 8] = *b"KTIDklog";

/// Where the tail sections of a key log are. Lengths include the frames' trailers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// The file that the footer was written for.
    pub file_id: u64,
    /// Where the data blocks end.
    pub data_end: u64,
    /// Length of the filter's frame.
    pub filter: u64,
    /// Length of the index's frame.
    pub index: u64,
    /// Length of the range tombstones' frame.
    pub tombstones: u64,
    /// Length of the properties' frame.
    pub properties: u64,
}

/// The first version, of tables without a dictionary.
const FIRST_VERSION: u32 = 1;

impl Footer {
    /// The footer's bytes. `dictionary`: the table has one, which builds that know version 1 only cannot use.
    pub fn encode(&self, dictionary: bool) -> [u8; FOOTER] {
        let mut out = [0; FOOTER];
        let fields = [self.file_id, self.data_end, self.filter, self.index, self.tombstones, self.properties];
        for (to, v) in out.chunks_exact_mut(8).zip(fields) {
            to.copy_from_slice(&v.to_le_bytes());
        }
        let version = if dictionary { KLOG_VERSION } else { FIRST_VERSION };
        out[48..52].copy_from_slice(&version.to_le_bytes());
        let sum = crc(&out[..52]);
        out[52..56].copy_from_slice(&sum.to_le_bytes());
        out[56..].copy_from_slice(&KLOG_MAGIC);
        out
    }

    /// Reads the footer of a file of `file_len` bytes.
    ///
    /// # Errors
    /// `NewerFormat`; `Corruption` when it is not a footer, belongs to another file or contradicts the length.
    pub fn decode(bytes: &[u8; FOOTER], file_len: u64, file_id: u64) -> Result<Footer> {
        if bytes[56..] != KLOG_MAGIC {
            return Err(Error::corruption("not a key log, or its end is missing"));
        }
        check_version(&bytes[48..56], KLOG_VERSION, &bytes[..52])?;
        let mut r = Reader::new(bytes);
        let mut next = || r.u64().unwrap_or_default();
        let footer = Footer {
            file_id: next(),
            data_end: next(),
            filter: next(),
            index: next(),
            tombstones: next(),
            properties: next(),
        };
        if footer.file_id != file_id {
            let found = footer.file_id;
            return Err(Error::corruption(format!("this is file {found}, expected file {file_id}")));
        }
        let sections = [footer.data_end, footer.filter, footer.index, footer.tombstones, footer.properties];
        let total = sections.iter().try_fold(FOOTER as u64, |sum, n| sum.checked_add(*n));
        if total != Some(file_len) {
            return Err(Error::corruption("the footer contradicts the file's length"));
        }
        Ok(footer)
    }
}

/// Checks a version and the checksum behind it. The version comes first: a newer one may checksum differently.
pub fn check_version(version_and_crc: &[u8], newest: u32, covered: &[u8]) -> Result<()> {
    let mut r = Reader::new(version_and_crc);
    let (version, sum) = (r.u32().unwrap_or_default(), r.u32().unwrap_or_default());
    if version > newest {
        return Err(Error::new(
            ErrorKind::NewerFormat,
            format!("format version {version} is newer than {newest}, the newest that this build reads"),
        ));
    }
    if version == 0 || crc(covered) != sum {
        return Err(Error::corruption("header or footer checksum mismatch"));
    }
    Ok(())
}
