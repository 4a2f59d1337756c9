//! The names of the files in a database's directory: made here, and read by one parser.
//!
//! `CURRENT` names the manifest. All numbers come from one counter and are never reused.

use std::path::{Path, PathBuf};

/// Name of the file that names the manifest.
pub const CURRENT: &str = "CURRENT";
/// What becomes `CURRENT` once it is durable.
pub const CURRENT_TMP: &str = "CURRENT.tmp";
/// Name of the file that is locked while a database is open for writing.
pub const LOCK_FILE: &str = "LOCK";
/// Name of the file that a running database writes its statistics to, if it is asked to.
pub const STATS_FILE: &str = "STATS";
/// What becomes that file.
pub const STATS_TMP: &str = "STATS.tmp";
/// Name of the file that tells people what the database does.
const INFO_LOG: &str = "LOG";
/// Name of the file that holds space for a full disk.
pub const RESERVE_FILE: &str = "RESERVE.tmp";
/// Name of the file that holds space for the manifest on a full disk.
pub const MANIFEST_RESERVE_FILE: &str = "RESERVE-MANIFEST.tmp";
/// Name of the file that marks an unfinished copy.
pub const COPY_MARKER: &str = "INCOMPLETE.tmp";

/// A file of a database, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileName {
    /// [`CURRENT`].
    Current,
    /// [`LOCK_FILE`].
    Lock,
    /// A manifest.
    Manifest(u64),
    /// A table's key log.
    Table(u64),
    /// A value log.
    ValueLog(u64),
    /// A log segment.
    Segment(u64),
    /// A log segment that was released and waits for reuse.
    FreeSegment(u64),
    /// A file of lines for people: `LOG`, or `LOG.n`, which is the older the greater n is.
    InfoLog,
    /// [`STATS_FILE`], which the next open removes if a crash left it.
    Stats,
    /// A file that the next open removes if a crash left it.
    Temporary,
}

impl FileName {
    /// Reads a name. `None` for one that no database gives to a file.
    pub fn parse(name: &str) -> Option<FileName> {
        if let Some(number) = name.strip_prefix("MANIFEST-") {
            return padded(number).map(FileName::Manifest);
        }
        match name.rsplit_once('.') {
            None if name == CURRENT => Some(FileName::Current),
            None if name == LOCK_FILE => Some(FileName::Lock),
            None if name == STATS_FILE => Some(FileName::Stats),
            None if name == INFO_LOG => Some(FileName::InfoLog),
            Some((INFO_LOG, n)) => digits(n).map(|_| FileName::InfoLog),
            Some((id, "klog")) => digits(id).map(FileName::Table),
            Some((id, "vlog")) => digits(id).map(FileName::ValueLog),
            Some((id, "wal")) => padded(id).map(FileName::Segment),
            Some((id, "walfree")) => padded(id).map(FileName::FreeSegment),
            Some((_, "tmp")) => Some(FileName::Temporary),
            _ => None,
        }
    }

    /// The file's number, if it has one.
    pub fn number(self) -> Option<u64> {
        match self {
            FileName::Manifest(n)
            | FileName::Table(n)
            | FileName::ValueLog(n)
            | FileName::Segment(n)
            | FileName::FreeSegment(n) => Some(n),
            FileName::Current | FileName::Lock | FileName::InfoLog | FileName::Stats | FileName::Temporary => None,
        }
    }
}

/// The number in a manifest's file name.
pub fn parse_manifest_name(name: &str) -> Option<u64> {
    match FileName::parse(name) {
        Some(FileName::Manifest(number)) => Some(number),
        _ => None,
    }
}

/// The id in a log segment's file name.
pub fn parse_segment_name(name: &str) -> Option<u64> {
    match FileName::parse(name) {
        Some(FileName::Segment(id)) => Some(id),
        _ => None,
    }
}

/// The id in a table's file name.
pub fn parse_table_name(name: &str) -> Option<u64> {
    match FileName::parse(name) {
        Some(FileName::Table(id)) => Some(id),
        _ => None,
    }
}

/// Whether a name ends like that of a table or a value log, whatever stands before: a directory with such a
/// file gets no new database.
pub fn looks_like_data(name: &str) -> bool {
    name.ends_with(".klog") || name.ends_with(".vlog")
}

/// The number of a file, however it was padded.
fn digits(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// The number of a file whose name was padded to six digits.
fn padded(text: &str) -> Option<u64> {
    digits(text).filter(|_| text.len() >= 6)
}

/// Name of manifest `number`.
pub fn manifest_name(number: u64) -> String {
    format!("MANIFEST-{number:06}")
}

/// Name of the file of lines for people that was begun `age` files ago.
pub fn log_name(age: u64) -> String {
    if age == 0 { INFO_LOG.to_owned() } else { format!("{INFO_LOG}.{age}") }
}

/// Path of manifest `number`.
pub fn manifest_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(manifest_name(number))
}

/// Name of the key log of table `id`.
pub fn klog_name(id: u64) -> String {
    format!("{id:08}.klog")
}

/// Name of value log `id`.
pub fn vlog_name(id: u64) -> String {
    format!("{id:08}.vlog")
}

/// Path of the key log of table `id`.
pub fn klog_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(klog_name(id))
}

/// Path of value log `id`.
pub fn vlog_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(vlog_name(id))
}

/// Path of log segment `id`.
pub fn segment_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:06}.wal"))
}

/// Path of a released log segment that waits for reuse.
pub fn free_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:06}.walfree"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_reads_back() {
        let dir = Path::new("d");
        for n in [0, 7, 999_999, 1_000_000, 123_456_789, u64::MAX] {
            for (path, expected) in [
                (manifest_path(dir, n), FileName::Manifest(n)),
                (klog_path(dir, n), FileName::Table(n)),
                (vlog_path(dir, n), FileName::ValueLog(n)),
                (segment_path(dir, n), FileName::Segment(n)),
                (free_path(dir, n), FileName::FreeSegment(n)),
            ] {
                let name = path.file_name().unwrap().to_str().unwrap();
                assert_eq!(FileName::parse(name), Some(expected), "{name}");
                assert_eq!(expected.number(), Some(n));
            }
        }
        assert_eq!(segment_path(dir, 7), Path::new("d/000007.wal"));
        assert_eq!(klog_path(dir, 7), Path::new("d/00000007.klog"));
        for name in [CURRENT_TMP, RESERVE_FILE, MANIFEST_RESERVE_FILE, COPY_MARKER, STATS_TMP] {
            assert_eq!(FileName::parse(name), Some(FileName::Temporary));
        }
        for age in [0, 1, 99] {
            assert_eq!(FileName::parse(&log_name(age)), Some(FileName::InfoLog));
        }
        assert_eq!(
            (FileName::parse(CURRENT), FileName::parse(LOCK_FILE)),
            (Some(FileName::Current), Some(FileName::Lock))
        );
    }

    #[test]
    fn names_of_others_are_none_of_ours() {
        for bad in [
            "12.wal",
            "00001x.wal",
            ".wal",
            "+00012.wal",
            "99999999999999999999999.wal",
            "12.walfree",
            "LOG.",
            "LOG.x",
            "LOGS",
            "MANIFEST-12",
            "MANIFEST-",
            "MANIFEST-0000x1",
            "x.klog",
            "+12.klog",
            "12.x.vlog",
            ".klog",
            "klog",
            "current",
            "",
            ".",
        ] {
            assert_eq!(FileName::parse(bad), None, "{bad}");
        }
        assert_eq!(
            FileName::parse("12.klog"),
            Some(FileName::Table(12)),
            "removed as a leftover, however it is padded"
        );
    }
}
