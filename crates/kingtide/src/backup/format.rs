//! A backup's manifest: which files it consists of, with their sizes and checksums. `docs/format/backup.md` is the byte
//! table.

use kingtide_base::checksum::crc;
use kingtide_base::clock::time_of_unix_ms;
use kingtide_base::coding::{Reader, put_slice, put_varint};
use kingtide_base::{Error, ErrorKind, Result, SeqNo};
use kingtide_table::info::size;
use std::time::SystemTime;

/// The format version that this build writes.
pub(super) const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"KTIDbkup";
/// Bytes of magic, version and checksum.
const FRAME: usize = 8 + 4 + 4;

/// Information about a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupInfo {
    /// Its number, ascending with time. If the newest backup is deleted, the next one gets its number.
    pub id: u64,
    /// When it was made, to the millisecond.
    pub created: SystemTime,
    /// It holds every commit up to this sequence number and none after it.
    pub sequence: SeqNo,
    /// Its files.
    pub files: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Files that no backup held before it was made.
    pub new_files: u64,
    /// Bytes of those: what it added to the directory.
    pub new_bytes: u64,
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BackupFile {
    /// Its name in a database's directory.
    pub name: String,
    pub size: u64,
    /// xxh3-64 of all of it. Not a crc: see [`kingtide_base::hash::Hasher64`].
    pub hash: u64,
    /// No earlier backup held it.
    pub new: bool,
    /// It was written for the backup, under a name that the database may give to another file.
    pub made: bool,
}

/// Bits of the byte that says where a file comes from.
const NEW: u8 = 1;
const MADE: u8 = 2;

impl BackupFile {
    /// Its name in the pool, which tells files of one name apart.
    pub fn pool_name(&self) -> String {
        format!("{:016x}-{}-{}", self.hash, self.size, self.name)
    }
}

/// What the manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BackupManifest {
    pub id: u64,
    pub created_ms: u64,
    pub sequence: u64,
    pub db_id: [u8; 16],
    pub files: Vec<BackupFile>,
}

impl BackupManifest {
    pub fn info(&self) -> BackupInfo {
        let of_new = || self.files.iter().filter(|f| f.new);
        BackupInfo {
            id: self.id,
            created: time_of_unix_ms(self.created_ms),
            sequence: self.sequence,
            files: self.files.len() as u64,
            bytes: self.files.iter().map(|f| f.size).sum(),
            new_files: of_new().count() as u64,
            new_bytes: of_new().map(|f| f.size).sum(),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        for word in [self.id, self.created_ms, self.sequence] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.db_id);
        put_varint(&mut out, self.files.len() as u64);
        for f in &self.files {
            put_slice(&mut out, f.name.as_bytes());
            put_varint(&mut out, f.size);
            out.extend_from_slice(&f.hash.to_le_bytes());
            out.push(if f.new { NEW } else { 0 } | if f.made { MADE } else { 0 });
        }
        let sum = crc(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// # Errors
    /// `Corruption`, `NewerFormat`.
    pub fn decode(bytes: &[u8], id: u64) -> Result<BackupManifest> {
        let damaged = || Error::corruption("a backup's manifest is damaged");
        let Some((covered, sum)) = bytes.split_last_chunk::<4>().filter(|_| bytes.len() >= FRAME) else {
            return Err(damaged());
        };
        if crc(covered) != u32::from_le_bytes(*sum) || covered[..8] != MAGIC {
            return Err(damaged());
        }
        let mut r = Reader::new(&covered[8..]);
        let version = r.u32().ok_or_else(damaged)?;
        if version > VERSION {
            let text = format!("a backup of format version {version}, newer than this build reads");
            return Err(Error::new(ErrorKind::NewerFormat, text));
        }
        Self::read(&mut r).filter(|m| m.id == id && r.is_empty()).ok_or_else(damaged)
    }

    fn read(r: &mut Reader<'_>) -> Option<BackupManifest> {
        let (id, created_ms, sequence) = (r.u64()?, r.u64()?, r.u64()?);
        let db_id = *r.bytes(16)?.first_chunk()?;
        let count = r.varint()?;
        let mut files = Vec::new(); // grows as there are bytes, whatever the count says
        for _ in 0..count {
            let name = std::str::from_utf8(r.slice()?).ok()?.to_owned();
            let (size, hash, origin) = (size(r)?, r.u64()?, r.u8()?);
            if !is_plain(&name) {
                return None;
            }
            files.push(BackupFile { name, size, hash, new: origin & NEW != 0, made: origin & MADE != 0 });
        }
        Some(BackupManifest { id, created_ms, sequence, db_id, files })
    }
}

/// Returns whether it is the name of a file that a database has, and leads to no other place.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> BackupManifest {
        let hash = 0x0102_0304_0506_0708;
        let file = |name: &str, new, made| BackupFile { name: name.to_owned(), size: 70_000, hash, new, made };
        let files =
            vec![file("00000012.klog", true, false), file("00000013.klog", false, false), file("CURRENT", true, true)];
        BackupManifest { id: 3, created_ms: 1_700_000_000_000, sequence: 99, db_id: [7; 16], files }
    }

    #[test]
    fn it_round_trips_and_every_bit_matters() {
        let bytes = manifest().encode();
        assert_eq!(BackupManifest::decode(&bytes, 3).unwrap(), manifest());
        assert!(BackupManifest::decode(&bytes, 4).is_err(), "under another name");
        for bit in 0..bytes.len() * 8 {
            let mut b = bytes.clone();
            b[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BackupManifest::decode(&b, 3).unwrap_err().kind(), ErrorKind::Corruption, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(BackupManifest::decode(&bytes[..len], 3).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_newer_version_is_told_from_damage_and_names_lead_nowhere_else() {
        let mut bytes = manifest().encode();
        bytes[8] = 2;
        let end = bytes.len() - 4;
        let sum = crc(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(BackupManifest::decode(&bytes, 3).unwrap_err().kind(), ErrorKind::NewerFormat);
        let mut m = manifest();
        m.files[0].size = u64::MAX;
        assert!(BackupManifest::decode(&m.encode(), 3).is_err(), "no file is as large, and the sum overflows");
        for name in ["../CURRENT", "a/b", "..", ".", "", "a\\b", "a\0b"] {
            let mut m = manifest();
            m.files[0].name = name.to_owned();
            assert!(BackupManifest::decode(&m.encode(), 3).is_err(), "{name:?}");
        }
    }
}
