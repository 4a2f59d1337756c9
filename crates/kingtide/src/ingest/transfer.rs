//! Families as directories of sorted files: exported from one database, imported into another.
//!
//! An export is sorted files `00000001.sorted`, `00000002.sorted`... with ascending keys, and `FAMILY`, which describes them. It
//! gets this name last, when all files are durable, so a directory without it holds no export. Before, it is `FAMILY.tmp`,
//! which is durable first of all: without it, sorted files are none of an export's. `docs/format/export.md` is the
//! byte table.

use super::install::NewFamily;
use super::writer::SortedFileWriter;
use super::{Brought, KeyOrder};
use crate::api::ColumnFamily;
use crate::api::Db;
use crate::copy::target::read_file;
use crate::directory::{DirFs, MadeDirs, refuse_inside};
use crate::engine::DbInner;
use crate::family::{Family, check_name};
use crate::options::ReadOptions;
use kingtide_base::checksum::crc;
use kingtide_base::coding::{Reader, put_slice, put_varint};
use kingtide_base::options::FamilyOptions;
use kingtide_base::{Error, ErrorKind, Result, SeqNo};
use kingtide_table::info::size;
use kingtide_versions::FileMeta;
use kingtide_vfs::{File, Fs, OpenMode};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The description's name.
const DESCRIPTION: &str = "FAMILY";
/// Its name before it is whole.
const MARKER: &str = "FAMILY.tmp";
const SUFFIX: &str = ".sorted";
const MAGIC: [u8; 8] = *b"KTIDfami";
/// The format version that this build writes, and the newest that it reads.
const VERSION: u32 = 1;
/// A description is larger than this only if it is none: it has some fifty bytes a file.
const MOST_BYTES: u64 = 256 << 20;
/// Families have fewer options than this by far.
const MOST_OPTIONS: usize = 1024;

/// Information about an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportInfo {
    /// It holds every commit up to this sequence number and none after it.
    pub sequence: SeqNo,
    /// Keys.
    pub entries: u64,
    /// Sorted files.
    pub files: u64,
    /// Bytes of these.
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Description {
    name: String,
    order: String,
    sequence: SeqNo,
    options: Vec<(String, String)>,
    files: Vec<ExportedFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ExportedFile {
    name: String,
    bytes: u64,
    sum: u64,
    entries: u64,
}

impl Description {
    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        put_slice(&mut out, self.name.as_bytes());
        put_slice(&mut out, self.order.as_bytes());
        put_varint(&mut out, self.sequence);
        put_varint(&mut out, self.options.len() as u64);
        for (name, value) in &self.options {
            put_slice(&mut out, name.as_bytes());
            put_slice(&mut out, value.as_bytes());
        }
        put_varint(&mut out, self.files.len() as u64);
        for f in &self.files {
            put_slice(&mut out, f.name.as_bytes());
            put_varint(&mut out, f.bytes);
            out.extend_from_slice(&f.sum.to_le_bytes());
            put_varint(&mut out, f.entries);
        }
        let sum = crc(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<Description> {
        let damaged = || Error::corruption("the description of an exported family is damaged");
        let (covered, sum) = bytes.split_last_chunk::<4>().ok_or_else(damaged)?;
        let mut r = Reader::new(covered);
        if crc(covered) != u32::from_le_bytes(*sum) || r.bytes(8) != Some(&MAGIC) {
            return Err(damaged());
        }
        let version = r.u32().ok_or_else(damaged)?;
        if version > VERSION {
            let text = format!("an export of format version {version}, newer than this build reads");
            return Err(Error::new(ErrorKind::NewerFormat, text));
        }
        Self::read(&mut r).filter(|_| r.is_empty()).ok_or_else(damaged)
    }

    fn read(r: &mut Reader<'_>) -> Option<Description> {
        fn text(r: &mut Reader<'_>) -> Option<String> {
            std::str::from_utf8(r.slice()?).ok().map(str::to_owned)
        }
        let (name, order, sequence) = (text(r)?, text(r)?, r.varint()?);
        let mut d = Description { name, order, sequence, ..Description::default() };
        for _ in 0..r.varint()? {
            d.options.push((text(r)?, text(r)?)); // grows as there are bytes, whatever the count says
            if d.options.len() > MOST_OPTIONS {
                return None;
            }
        }
        for _ in 0..r.varint()? {
            let file = ExportedFile { name: text(r)?, bytes: size(r)?, sum: r.u64()?, entries: size(r)? };
            // Each once, as an export numbers them.
            if !is_exported(&file.name) || d.files.last().is_some_and(|f| f.name >= file.name) {
                return None;
            }
            d.files.push(file);
        }
        Some(d)
    }
}

/// Returns whether a file of that name is part of exports: it leads to no other place.
fn is_exported(name: &str) -> bool {
    name.strip_suffix(SUFFIX).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// An export that is being made. Dropped unfinished, it removes its files.
struct Export<'a> {
    fs: Arc<dyn Fs>,
    dir: &'a Path,
    /// Becomes the description. It is there first, and durable before any other file: it says whose the others are.
    marker: Arc<dyn File>,
    files: Vec<PathBuf>,
    finished: bool,
    /// Dropped last, when they are empty.
    made: MadeDirs,
}

impl Drop for Export<'_> {
    fn drop(&mut self) {
        if !self.finished {
            let marker = self.dir.join(MARKER);
            self.files.iter().chain([&marker]).for_each(|path| _ = self.fs.remove(path));
        }
    }
}

impl Export<'_> {
    /// Takes a directory that is empty or absent, or holds the remains of an export that was cut short.
    fn begin<'a>(fs: &DirFs, dir: &'a Path) -> Result<Export<'a>> {
        let names = match fs.list(dir) {
            Ok(names) => names,
            Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        if names.iter().any(|n| n == DESCRIPTION) {
            let text = "the directory holds a finished export; an export goes into an empty or new one";
            return Err(Error::new(ErrorKind::Exists, text).at_path(dir));
        }
        let unfinished = names.iter().any(|n| n == MARKER);
        if let Some(name) = names.iter().find(|n| *n != MARKER && !(unfinished && is_exported(n))) {
            let text =
                format!("the directory is not empty: it holds '{name}'; an export goes into an empty or new one");
            return Err(Error::new(ErrorKind::Exists, text).at_path(dir));
        }
        let made = MadeDirs::make(fs, dir)?;
        let fs: Arc<dyn Fs> = Arc::new(fs.relying_on(dir)?);
        names.iter().filter(|n| *n != MARKER).try_for_each(|name| fs.remove(&dir.join(name)))?;
        if names.len() > 1 {
            fs.sync_dir(dir)?; // the marker goes for a moment now
        }
        let marker = fs.open(&dir.join(MARKER), OpenMode::Overwrite)?;
        let export = Export { fs, dir, marker, files: Vec::new(), finished: false, made };
        export.fs.sync_dir(dir)?;
        Ok(export)
    }

    fn next_file(&mut self, family: &ColumnFamily, options: &FamilyOptions) -> Result<SortedFileWriter> {
        let path = self.dir.join(format!("{:08}{SUFFIX}", self.files.len() + 1));
        let (order, clock) = (family.order().clone(), family.db.clock.clone());
        let writer = SortedFileWriter::create_on(self.fs.clone(), &path, order, options, clock)?;
        self.files.push(path);
        Ok(writer)
    }

    /// Finishes a file and reads it back for its checksum.
    fn finish_file(&self, writer: SortedFileWriter) -> Result<ExportedFile> {
        let file = writer.finish()?;
        let (bytes, sum) = read_file(&*self.fs, &file.path, &mut |_, _| Ok(()))?;
        let name = file.path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
        Ok(ExportedFile { name, bytes, sum, entries: file.entries })
    }

    fn finish(mut self, description: &Description) -> Result<()> {
        self.fs.sync_dir(self.dir)?;
        self.marker.write_at(&description.encode(), 0)?;
        self.marker.sync_data()?;
        let path = self.dir.join(DESCRIPTION);
        self.fs.rename(&self.dir.join(MARKER), &path)?;
        self.files.insert(0, path); // goes first, if it has to
        self.fs.sync_dir(self.dir)?;
        self.finished = true;
        self.made.keep();
        Ok(())
    }
}

impl ColumnFamily {
    /// Writes the current contents of the family, as of one sequence number, to sorted files and a description in directory `dir`,
    /// which must be empty or absent, in the database's file system. [`Db::import_family`] makes a family of them, in any
    /// database.
    ///
    /// Values are written beside their keys, and expiries are kept; tombstones, old versions and transactions in doubt are left out. Holds a
    /// snapshot meanwhile, and no lock. O(bytes of the family). When this returns, the export is on stable storage; if it fails, its files and
    /// the directories that it made are removed. One that was cut short by a crash is no export, and another into the same directory replaces
    /// it.
    ///
    /// # Errors
    /// `Exists` for a directory that holds anything else; `InvalidArgument` for one inside the database's own, and for a value of
    /// about 4 GiB or more, which no sorted file takes; `Corruption`, `Io`, `NoSpace`, `Closed`.
    pub fn export(&self, dir: impl AsRef<Path>) -> Result<ExportInfo> {
        let (db, dir) = (&self.db, dir.as_ref());
        db.check_open()?;
        refuse_inside((&*db.fs, dir), (&*db.fs, &db.dir))?;
        db.check_space_to_copy(&*db.fs, dir)?;
        let snapshot = db.snapshots.acquire();
        let options = self.options();
        let stored = options.entries().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let order = self.order().name().to_owned();
        let sequence = snapshot.sequence();
        let mut description = Description { name: self.name(), order, sequence, options: stored, files: Vec::new() };
        // An entry that does not expire must not begin to.
        let lasting = options.ttl(None);
        let read =
            ReadOptions { snapshot: Some(&snapshot), fill_cache: false, readahead: true, ..ReadOptions::default() };
        let mut it = self.cursor_with(read)?; // before the directory is made: of a dropped family there is nothing to export
        let mut export = Export::begin(&db.dirs, dir)?;
        let mut writer: Option<SortedFileWriter> = None;
        it.seek_to_first();
        while it.valid() {
            db.check_open()?;
            if let Some(full) = writer.take_if(|w| w.estimated_bytes() >= lasting.target_file_size) {
                description.files.push(export.finish_file(full)?);
            }
            if writer.is_none() {
                writer = Some(export.next_file(self, &lasting)?);
            }
            let expires_at = it.expires_at();
            let (key, value) = it.entry()?;
            match (&mut writer, expires_at) {
                (Some(w), Some(at)) => w.put_until(key, value, at)?,
                (Some(w), None) => w.put(key, value)?,
                (None, _) => {}
            }
            it.next();
        }
        it.status()?;
        if let Some(last) = writer {
            description.files.push(export.finish_file(last)?);
        }
        let files = &description.files;
        let info = ExportInfo {
            sequence,
            entries: files.iter().map(|f| f.entries).sum(),
            files: files.len() as u64,
            bytes: files.iter().map(|f| f.bytes).sum(),
        };
        export.finish(&description)?;
        Ok(info)
    }
}

impl DbInner {
    fn import_family(self: &Arc<Self>, name: &str, dir: &Path) -> Result<Arc<Family>> {
        self.check_writable()?;
        self.check_space_to_grow()?;
        let path = dir.join(DESCRIPTION);
        let mut bytes = Vec::new();
        let read = read_file(&*self.fs, &path, &mut |piece, _| {
            if bytes.len() as u64 + piece.len() as u64 > MOST_BYTES {
                return Err(Error::corruption("too large for the description of an exported family").at_path(&path));
            }
            bytes.extend_from_slice(piece);
            Ok(())
        });
        read.map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                Error::new(ErrorKind::NotFound, "no exported family here, or an unfinished one").at_path(dir)
            }
            _ => e,
        })?;
        let description = Description::decode(&bytes).map_err(|e| e.at_path(&path))?;
        let order = self.order_named(&description.order)?;
        let mut options = FamilyOptions::default();
        for (name, value) in &description.options {
            options.set(name, value).map_err(|e| {
                Error::new(ErrorKind::NewerFormat, format!("stored option: {}", e.message())).at_path(&path)
            })?;
        }
        self.begin_log()?;
        let mut brought = Brought { db: self, created: Vec::new() };
        let mut files = Vec::with_capacity(description.files.len());
        for file in &description.files {
            let from = dir.join(&file.name);
            let (id, copy, sum) = brought.copy(&from)?;
            if sum != (file.bytes, file.sum) {
                return Err(Error::corruption("an exported file does not match its description").at_path(&from));
            }
            let meta = self.inspect(id, copy, &order, false)?;
            // One run: that the files do not overlap is checked where they are installed.
            files.push((1, FileMeta { run: 1, ..meta }));
        }
        self.fs.sync_dir(&self.dir)?;
        let made = self.install_family(NewFamily { name: name.to_owned(), order, options, files, vlogs: Vec::new() });
        let family = brought.settle(made)?;
        self.count_ingest(description.files.iter().map(|f| f.bytes).sum());
        Ok(family)
    }

    /// A key order: a built-in one, or one that a family of this database has.
    fn order_named(&self, name: &str) -> Result<KeyOrder> {
        let own = || self.catalog.lock().families.values().map(|f| f.order().clone()).find(|o| o.name() == name);
        KeyOrder::builtin(name).or_else(own).ok_or_else(|| {
            let text = format!("the exported family is ordered by '{name}', which no family of this database is");
            Error::new(ErrorKind::Incompatible, text)
        })
    }
}

impl Db {
    /// Creates a family from what [`ColumnFamily::export`] wrote, with the options and key order of the exported one. The files are copied and
    /// their checksums compared; then the family appears with all of them, even across a crash completely or not at all. When this returns, it
    /// survives a power cut. O(bytes of the export); commits continue meanwhile.
    ///
    /// Snapshots taken before see nothing in it. A change stream fails with `TooOld` there, or shows a record without operations
    /// ([`ChangeStreamOptions::show_unlogged`](crate::ChangeStreamOptions::show_unlogged)).
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// db.put("ebb", "low")?;
    /// assert_eq!(db.default_family().export("exported")?.entries, 1);
    /// let here = db.import_family("here", "exported")?; // in this database or another
    /// assert_eq!(here.get("ebb")?.as_deref(), Some(&b"low"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Nothing is then left behind. `NotFound` if there is no complete export; `Exists`, `InvalidArgument` (the name); `Incompatible` for a
    /// custom key order that no family of this database has; `Corruption`, `NewerFormat`, `Io`, `NoSpace`, `Poisoned`, `Closed`, `ReadOnly`. If
    /// writing the manifest fails twice, the message says that the next open decides.
    pub fn import_family(&self, name: &str, dir: impl AsRef<Path>) -> Result<ColumnFamily> {
        check_name(name)?;
        let family = self.inner().import_family(name, dir.as_ref())?;
        Ok(ColumnFamily::new(self.inner().clone(), family))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_round_trips_and_every_bit_matters() {
        let file =
            |name: &str| ExportedFile { name: name.into(), bytes: 70_000, sum: 0x0102_0304_0506_0708, entries: 99 };
        let d = Description {
            name: "tides".into(),
            order: "bytewise".into(),
            sequence: 12345,
            options: vec![("ttl_ms".into(), "5".into())],
            files: vec![file("00000001.sorted"), file("00000002.sorted")],
        };
        let bytes = d.encode();
        assert_eq!(Description::decode(&bytes).unwrap(), d);
        for bit in 0..bytes.len() * 8 {
            let mut b = bytes.clone();
            b[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Description::decode(&b).unwrap_err().kind(), ErrorKind::Corruption, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Description::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        let hostile = [
            Description { files: vec![ExportedFile { bytes: 1 << 44, ..file("1.sorted") }], ..d.clone() },
            Description { files: vec![ExportedFile { entries: u64::MAX, ..file("1.sorted") }], ..d.clone() },
            Description { files: vec![file("1.sorted"), file("1.sorted")], ..d.clone() },
            Description { files: vec![file("2.sorted"), file("1.sorted")], ..d.clone() },
            Description { options: vec![("a".into(), "b".into()); MOST_OPTIONS + 1], ..d.clone() },
        ];
        for other in hostile {
            assert_eq!(Description::decode(&other.encode()).unwrap_err().kind(), ErrorKind::Corruption);
        }
        for name in ["../1.sorted", "1/1.sorted", ".sorted", "1.klog", ""] {
            let other = Description { files: vec![file(name)], ..d.clone() };
            assert!(Description::decode(&other.encode()).is_err(), "{name:?}");
        }
        let mut newer = bytes;
        newer[8] = 2;
        let end = newer.len() - 4;
        let sum = crc(&newer[..end]);
        newer[end..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Description::decode(&newer).unwrap_err().kind(), ErrorKind::NewerFormat);
    }
}
