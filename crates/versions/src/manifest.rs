//! The manifest: a file of edits whose sum says what the database consists of, and `CURRENT`, which names it.
//!
//! Every append is on stable storage before it returns, so at most the last record can be torn, and only by a crash
//! during its append. A lost 512-byte sector of a growing file reads as zeros, and a record ends with a byte that is not
//! zero: a broken last record with no all-zero sector is therefore damage, not a torn append. `docs/format/manifest.md`
//! holds the byte tables.

use crate::codec::{decode_edits, encode_edits};
use crate::edit::Edit;
use kingtide_base::checksum::{crc, crc_append};
use kingtide_base::coding::Reader;
use kingtide_base::memory::zeroed;
use kingtide_base::names::{
    COPY_MARKER, CURRENT, CURRENT_TMP, LOCK_FILE, looks_like_data, manifest_name, manifest_path, parse_manifest_name,
};
use kingtide_base::{Error, ErrorKind, Result, rare};
use kingtide_vfs::{File, Fs, OpenMode, write_again};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The format version that this build writes.
pub const MANIFEST_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"KTIDEMAN";
pub(crate) const HEADER_LEN: usize = 52;
/// Where the header has the database's id.
const ID_AT: usize = 20;
pub(crate) const RECORD_HEADER_LEN: usize = 9;
/// First byte of every record.
const MARKER: u8 = 0x5a;
/// Last byte of every record.
const TRAILER: u8 = 0xa5;
/// Set in the header of a manifest that replaced another, so that one without a `CURRENT` is known to have lost it.
const FLAG_REWRITE: u32 = 1;
/// Set in the header of a manifest whose log start never fell: see [`Manifest::log_start_is_exact`].
const FLAG_EXACT_LOG_START: u32 = 2;
const SECTOR: usize = 512;
/// Edits in one record of a snapshot.
const SNAPSHOT_EDITS: usize = 1024;
/// A manifest below this is not worth rewriting.
const MIN_REWRITE: u64 = 256 << 10;

/// When a manifest is rewritten, and how.
#[derive(Clone, Copy, Debug)]
pub struct ManifestLimits {
    /// Bytes below which it is not worth rewriting.
    pub rewrite: u64,
    /// Edits in one record of a snapshot.
    pub snapshot_edits: usize,
}

impl Default for ManifestLimits {
    fn default() -> Self {
        ManifestLimits { rewrite: MIN_REWRITE, snapshot_edits: SNAPSHOT_EDITS }
    }
}

/// The open manifest.
#[derive(Debug)]
pub struct Manifest {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    db_id: [u8; 16],
    number: u64,
    file: Arc<dyn File>,
    /// Where the next record goes.
    end: u64,
    /// Bytes of the snapshot at the beginning.
    base: u64,
    /// The header says that the log start is exact.
    exact: bool,
    /// A new header would say so.
    vouched: bool,
    /// When it is rewritten.
    limits: ManifestLimits,
    /// An append failed, or the file ends with a torn record: nothing may be written after that.
    doubtful: bool,
    /// A directory sync failed, so it is unknown which manifest is the current one.
    poisoned: Option<Error>,
}

impl Manifest {
    /// Creates the manifest of a new database and makes it the current one.
    ///
    /// # Errors
    /// `Io`, `NoSpace`. Nothing is there then that [`Manifest::load`] would take for a database, unless the last step
    /// failed.
    pub fn create(fs: &Arc<dyn Fs>, dir: &Path, number: u64, db_id: [u8; 16], snapshot: &[Edit]) -> Result<Manifest> {
        let (file, end) = write_file(&**fs, dir, (number, &db_id, FLAG_EXACT_LOG_START), &[snapshot], SNAPSHOT_EDITS)?;
        set_current(&**fs, dir, number)?;
        fs.sync_dir(dir)?;
        let (fs, dir) = (fs.clone(), dir.to_owned());
        Ok(Manifest {
            fs,
            dir,
            db_id,
            number,
            file,
            end,
            base: end,
            exact: true,
            vouched: true,
            limits: ManifestLimits::default(),
            doubtful: false,
            poisoned: None,
        })
    }

    /// Reads the current manifest and gives each record's edits to `apply`, in order. `None` if there is no database.
    ///
    /// With `writable`, makes what it read durable before it returns (a killed process may have left it unsynced) and
    /// deletes manifests that are not the current one; otherwise changes nothing.
    ///
    /// # Errors
    /// `Corruption` with file and offset; `NewerFormat`; errors of `apply` and of the file system.
    pub fn load(
        fs: &Arc<dyn Fs>,
        dir: &Path,
        writable: bool,
        mut apply: impl FnMut(Vec<Edit>) -> Result<()>,
    ) -> Result<Option<Manifest>> {
        let Some(number) = read_current(&**fs, dir)? else {
            refuse_orphans(&**fs, dir)?;
            return Ok(None);
        };
        let path = manifest_path(dir, number);
        let file = fs.open(&path, if writable { OpenMode::Write } else { OpenMode::Read }).map_err(|e| {
            if e.kind() != ErrorKind::NotFound {
                return e;
            }
            Error::corruption("the manifest that CURRENT names is missing").at_path(&path)
        })?;
        let bytes = read_all(&*file)?;
        let parsed = Parsed::read(&bytes, &path, number, &mut apply)?;
        if writable {
            file.sync_data()?;
            fs.sync_dir(dir)?;
        }
        let manifest = Manifest {
            fs: fs.clone(),
            dir: dir.to_owned(),
            db_id: parsed.db_id,
            number,
            file,
            end: parsed.end,
            base: parsed.base,
            exact: parsed.flags & FLAG_EXACT_LOG_START != 0,
            vouched: parsed.flags & FLAG_EXACT_LOG_START != 0,
            limits: ManifestLimits::default(),
            doubtful: parsed.end < bytes.len() as u64,
            poisoned: None,
        };
        if manifest.doubtful {
            rare!("manifest-torn-record");
        }
        if !manifest.exact {
            rare!("manifest-of-old-build");
        }
        if writable {
            manifest.remove_stale();
        }
        Ok(Some(manifest))
    }

    /// Writes it over itself: see [`write_again`](kingtide_vfs::write_again). Where there is no space for that, the next record goes into a new manifest.
    ///
    /// # Errors
    /// `Io`.
    pub fn write_again(&mut self) -> Result<()> {
        if !write_again(&*self.file, u64::MAX)? {
            rare!("manifest-not-written-again");
            self.doubtful = true; // a record behind one that the disk may not have would be found behind a hole
        }
        self.file.sync_data()
    }

    /// The file system it is on.
    pub(crate) fn fs(&self) -> &Arc<dyn Fs> {
        &self.fs
    }

    /// The database's id.
    pub fn db_id(&self) -> [u8; 16] {
        self.db_id
    }

    /// The current file's number.
    #[cfg(test)]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes of the current file.
    pub fn size(&self) -> u64 {
        self.end
    }

    /// Sets when it is rewritten, for tests.
    pub fn set_limits(&mut self, limits: ManifestLimits) {
        self.limits = limits;
    }

    /// Whether the log start in it can be relied on. Builds before the flag in its header let the number fall below
    /// segments that they had released.
    pub fn log_start_is_exact(&self) -> bool {
        self.exact
    }

    /// The caller found out where the log begins: the next write makes a manifest that says so.
    pub fn vouch_for_log_start(&mut self) {
        self.vouched = true;
    }

    /// The current file, if it is known to hold all edits and nothing else.
    pub fn settled_path(&self) -> Option<PathBuf> {
        (!self.doubtful).then(|| manifest_path(&self.dir, self.number))
    }

    /// Whether a rewrite pays, or is needed before the next append.
    pub fn needs_rewrite(&self) -> bool {
        self.doubtful || self.vouched != self.exact || self.end > self.limits.rewrite.max(self.base.saturating_mul(4))
    }

    /// Appends one record, on stable storage when this returns. A crash before that leaves all of the edits or none.
    ///
    /// # Errors
    /// `NoSpace`, `Io`: whether the edits are in the manifest is open until the next rewrite, which has to
    /// come before another append; keep the files that they name. `Busy` when that rewrite has not happened.
    /// `Poisoned`.
    pub fn append(&mut self, edits: &[Edit]) -> Result<()> {
        self.check()?;
        if self.doubtful {
            let text = "the manifest ends with an uncertain record: rewrite it before appending";
            return Err(Error::new(ErrorKind::Busy, text).at_path(self.file.path()).at_offset(self.end));
        }
        let record = encode_record(self.number, self.end, edits)?;
        self.doubtful = true;
        self.file.write_at(&record, self.end)?;
        self.file.sync_data()?;
        self.end += record.len() as u64;
        self.doubtful = false;
        Ok(())
    }

    /// Appends, or, where an append would follow a doubtful record or the file has grown too much, writes a new manifest
    /// of `snapshot()` (the state before these edits) and the edits. `new_number` draws a file number.
    ///
    /// # Errors
    /// As [`Manifest::append`]; never `Busy`.
    pub fn append_or_rewrite(
        &mut self,
        edits: &[Edit],
        new_number: impl FnOnce() -> u64,
        snapshot: impl FnOnce() -> Vec<Edit>,
    ) -> Result<()> {
        if self.needs_rewrite() { self.switch(&[&snapshot(), edits], new_number()) } else { self.append(edits) }
    }

    /// Writes a new manifest that holds only `snapshot`, switches `CURRENT` to it, and deletes the old one. A crash leaves
    /// one of the two current.
    ///
    /// # Errors
    /// `NoSpace`, `Io`: the old manifest is still the current one, except after the want of a descriptor for the directory's
    /// sync and a rename that happened although it failed: then it is open which of the two a crash leaves, until the next
    /// rewrite, which has to come before an append. `Poisoned`: the directory's sync failed, so that is not known; nothing is appended any more.
    #[cfg(test)]
    pub fn rewrite(&mut self, snapshot: &[Edit], new_number: u64) -> Result<()> {
        self.switch(&[snapshot], new_number)
    }

    fn switch(&mut self, parts: &[&[Edit]], number: u64) -> Result<()> {
        self.check()?;
        if number <= self.number {
            return Err(Error::invalid(format!("manifest number {number} is not above {}", self.number)));
        }
        match self.doubtful {
            true => rare!("manifest-rewritten-after-failure"),
            false => rare!("manifest-rewritten"),
        }
        let flags = FLAG_REWRITE | if self.vouched { FLAG_EXACT_LOG_START } else { 0 };
        let (dir, per_record) = (&self.dir, self.limits.snapshot_edits);
        let (file, end) = write_file(&*self.fs, dir, (number, &self.db_id, flags), parts, per_record)?;
        if let Err(e) = set_current(&*self.fs, &self.dir, number) {
            if read_current(&*self.fs, &self.dir).is_ok_and(|named| named != Some(number)) {
                let _ = self.fs.remove(&manifest_path(&self.dir, number));
                return Err(e);
            }
            // The rename may have happened although it failed, as one over a network may: `CURRENT` must not name a file that is
            // gone. Both manifests are whole, and this one ends with edits that may or may not have been made.
            rare!("manifest-switch-in-doubt");
            self.doubtful = true;
            return Err(e);
        }
        let synced = self.fs.sync_dir(&self.dir);
        match synced {
            // The directory could not be opened, so no sync was tried, and none failed: a later one still counts. Until
            // then both manifests are whole, and this one ends with edits that may or may not have been made.
            Err(e) if e.is_out_of_descriptors() => {
                (self.file, self.end, self.base, self.number, self.doubtful) = (file, end, end, number, true);
                self.exact = self.vouched;
                Err(e)
            }
            Err(e) => {
                self.poisoned = Some(e);
                self.check()
            }
            Ok(()) => {
                (self.file, self.end, self.base, self.number, self.doubtful) = (file, end, end, number, false);
                self.exact = self.vouched;
                self.remove_stale();
                Ok(())
            }
        }
    }

    /// The failure that stopped the manifest, if one did.
    pub fn poison(&self) -> Option<Error> {
        self.check().err()
    }

    fn check(&self) -> Result<()> {
        match &self.poisoned {
            None => Ok(()),
            Some(e) => {
                let text = format!("the manifest has been stopped since an earlier failure: {e}");
                Err(Error::new(ErrorKind::Poisoned, text).at_path(self.file.path()))
            }
        }
    }

    /// Deletes other manifests. One that stays does no harm and is tried again by the next rewrite or open.
    fn remove_stale(&self) {
        let Ok(names) = self.fs.list(&self.dir) else { return };
        for name in names {
            if name == CURRENT_TMP || parse_manifest_name(&name).is_some_and(|n| n != self.number) {
                let _ = self.fs.remove(&self.dir.join(name));
            }
        }
    }
}

/// Start value of a checksum: bound to the file and the place in it.
fn seed(number: u64, offset: u64) -> u32 {
    crc_append(crc(&number.to_le_bytes()), &offset.to_le_bytes())
}

fn encode_header(number: u64, db_id: &[u8; 16], flags: u32, base: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&MANIFEST_VERSION.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(db_id);
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&base.to_le_bytes());
    let crc = crc_append(seed(number, 0), &out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

fn encode_record(number: u64, offset: u64, edits: &[Edit]) -> Result<Vec<u8>> {
    let mut out = vec![0; RECORD_HEADER_LEN];
    encode_edits(edits, &mut out);
    out.push(TRAILER);
    let len = u32::try_from(out.len() - RECORD_HEADER_LEN)
        .map_err(|_| Error::invalid(format!("{} edits exceed the limit of one manifest record", edits.len())))?;
    let crc = record_crc(number, offset, len, &out[RECORD_HEADER_LEN..]);
    out[0] = MARKER;
    out[1..5].copy_from_slice(&len.to_le_bytes());
    out[5..9].copy_from_slice(&crc.to_le_bytes());
    Ok(out)
}

fn record_crc(number: u64, offset: u64, len: u32, body: &[u8]) -> u32 {
    crc_append(crc_append(seed(number, offset), &len.to_le_bytes()), body)
}

/// Writes a manifest and makes it and its name durable.
fn write_file(
    fs: &dyn Fs,
    dir: &Path,
    (number, db_id, flags): (u64, &[u8; 16], u32),
    parts: &[&[Edit]],
    edits_per_record: usize,
) -> Result<(Arc<dyn File>, u64)> {
    let path = manifest_path(dir, number);
    let mut bytes = vec![0; HEADER_LEN];
    if parts.iter().any(|p| p.len() > edits_per_record) {
        rare!("manifest-snapshot-split");
    }
    for chunk in parts.iter().flat_map(|p| p.chunks(edits_per_record)) {
        let record = encode_record(number, bytes.len() as u64, chunk)?;
        bytes.extend_from_slice(&record);
    }
    let header = encode_header(number, db_id, flags, bytes.len() as u64);
    bytes[..HEADER_LEN].copy_from_slice(&header);
    let write = || {
        let file = fs.open(&path, OpenMode::Overwrite)?;
        file.write_at(&bytes, 0)?;
        file.sync_data()?;
        fs.sync_dir(dir)?;
        Ok(file)
    };
    match write() {
        Ok(file) => Ok((file, bytes.len() as u64)),
        Err(e) => {
            let _ = fs.remove(&path);
            Err(e)
        }
    }
}

/// Gives the database of a manifest another id, in a copy that is not a database yet. All else in the file stays as it is.
///
/// # Errors
/// `Corruption`, `NewerFormat`, `Io`.
pub fn replace_id(fs: &dyn Fs, path: &Path, number: u64, db_id: [u8; 16]) -> Result<()> {
    let file = fs.open(path, OpenMode::Write)?;
    let mut header = [0u8; HEADER_LEN];
    file.read_exact_at(&mut header, 0)?;
    Header::read(&header, number).map_err(|e| e.at_path(path).at_offset(0))?;
    header[ID_AT..ID_AT + 16].copy_from_slice(&db_id);
    let (covered, sum) = header.split_at_mut(HEADER_LEN - 4);
    sum.copy_from_slice(&crc_append(seed(number, 0), covered).to_le_bytes());
    file.write_at(&header, 0)?;
    file.sync_data()
}

/// Makes `CURRENT` name manifest `number`; the caller syncs the directory.
fn set_current(fs: &dyn Fs, dir: &Path, number: u64) -> Result<()> {
    let name = manifest_name(number);
    let text = format!("{name} {:08x}\n", crc(name.as_bytes()));
    let tmp = dir.join(CURRENT_TMP);
    let file = fs.open(&tmp, OpenMode::Overwrite)?;
    file.write_at(text.as_bytes(), 0)?;
    file.sync_data()?;
    fs.rename(&tmp, &dir.join(CURRENT))
}

pub(crate) fn read_current(fs: &dyn Fs, dir: &Path) -> Result<Option<u64>> {
    let path = dir.join(CURRENT);
    let file = match fs.open(&path, OpenMode::Read) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let damaged = || Error::corruption("CURRENT does not name a manifest").at_path(&path).at_offset(0);
    if file.len()? > 128 {
        return Err(damaged());
    }
    let bytes = read_all(&*file)?;
    let parse = || {
        let text = std::str::from_utf8(&bytes).ok()?.strip_suffix('\n')?;
        let (name, sum) = text.split_once(' ')?;
        // Compared as text: there is one way to write a checksum.
        if sum != format!("{:08x}", crc(name.as_bytes())) {
            return None;
        }
        parse_manifest_name(name)
    };
    parse().map(Some).ok_or_else(damaged)
}

/// Whether a directory holds nothing but what a creation leaves that was cut short: an open begins it anew.
pub fn creation_was_cut_short(fs: &dyn Fs, dir: &Path) -> Result<bool> {
    let names = fs.list(dir)?;
    let of_creation = |name: &String| name == LOCK_FILE || name == CURRENT_TMP || parse_manifest_name(name).is_some();
    let begun = names.iter().any(|name| parse_manifest_name(name).is_some());
    Ok(begun && names.iter().all(of_creation) && refuse_orphans(fs, dir).is_ok())
}

/// The error for what an interrupted copy left: a directory with the marker of a copy but without `CURRENT`.
pub fn unfinished_copy(dir: &Path) -> Error {
    let text = "an unfinished copy of a database: the checkpoint or restore is still running or was interrupted; if none is \
                running, make the copy again or remove this directory";
    Error::corruption(text).at_path(dir)
}

/// A directory without `CURRENT` is new, or its creation was cut short. If it ever had a `CURRENT`, a manifest shows it:
/// one with more than its first snapshot, or one that replaced another.
fn refuse_orphans(fs: &dyn Fs, dir: &Path) -> Result<()> {
    let names = match fs.list(dir) {
        Ok(names) => names,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    if names.iter().any(|name| name == COPY_MARKER) {
        return Err(unfinished_copy(dir));
    }
    for name in names {
        let path = dir.join(&name);
        if looks_like_data(&name) {
            // Tables come after the first `CURRENT`. A new database would take them for leftovers.
            return Err(
                Error::corruption("CURRENT is missing, but the directory holds a database's tables").at_path(&path)
            );
        }
        let Some(number) = parse_manifest_name(&name) else { continue };
        let bytes = read_all(&*fs.open(&path, OpenMode::Read)?)?;
        let parsed = Parsed::read(&bytes, &path, number, &mut |_| Ok(()));
        if parsed.is_ok_and(|p| p.flags & FLAG_REWRITE != 0 || p.base < p.end) {
            return Err(Error::corruption("CURRENT is missing, but the database has a manifest").at_path(&path));
        }
    }
    Ok(())
}

pub(crate) fn read_all(file: &dyn File) -> Result<Vec<u8>> {
    let len = file.len()?;
    let mut bytes = zeroed(len as usize, "a manifest")?;
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

struct Parsed {
    db_id: [u8; 16],
    flags: u32,
    /// End of the snapshot.
    base: u64,
    /// End of the last whole record.
    end: u64,
}

impl Parsed {
    fn read(bytes: &[u8], path: &Path, number: u64, apply: &mut dyn FnMut(Vec<Edit>) -> Result<()>) -> Result<Parsed> {
        let head = Header::read(bytes, number).map_err(|e| e.at_path(path).at_offset(0))?;
        let mut at = HEADER_LEN;
        while at < bytes.len() {
            let Some(edits) = record_at(bytes, number, at) else { break };
            apply(decode_edits(edits).map_err(|e| e.at_path(path).at_offset(at as u64))?)?;
            at += RECORD_HEADER_LEN + edits.len() + 1;
        }
        if (at as u64) < head.base || at < bytes.len() && !is_torn(bytes, number, at) {
            return Err(Error::corruption("a manifest record is damaged").at_path(path).at_offset(at as u64));
        }
        Ok(Parsed { db_id: head.db_id, flags: head.flags, base: head.base, end: at as u64 })
    }
}

pub(crate) struct Header {
    db_id: [u8; 16],
    flags: u32,
    pub base: u64,
}

impl Header {
    /// As [`Manifest::log_start_is_exact`].
    pub fn log_start_is_exact(&self) -> bool {
        self.flags & FLAG_EXACT_LOG_START != 0
    }

    pub fn read(bytes: &[u8], number: u64) -> Result<Header> {
        let parse = || {
            let mut r = Reader::new(bytes);
            let (magic, version, found) = (r.bytes(8)?, r.u32()?, r.u64()?);
            let db_id = *r.bytes(16)?.first_chunk()?;
            let (flags, base, sum) = (r.u32()?, r.u64()?, r.u32()?);
            let expected = crc_append(seed(number, 0), &bytes[..HEADER_LEN - 4]);
            (magic == MAGIC && found == number && sum == expected).then_some((version, Header { db_id, flags, base }))
        };
        match parse() {
            None => Err(Error::corruption("the manifest's header is damaged")),
            Some((version, _)) if version > MANIFEST_VERSION => {
                let text = format!("manifest of format version {version}, newer than this build reads");
                Err(Error::new(ErrorKind::NewerFormat, text))
            }
            Some((_, header)) => Ok(header),
        }
    }
}

/// The edits' bytes of the record at `at`, if there is one.
pub(crate) fn record_at(bytes: &[u8], number: u64, at: usize) -> Option<&[u8]> {
    let mut r = Reader::new(bytes.get(at..)?);
    let (marker, len, sum) = (r.u8()?, r.u32()?, r.u32()?);
    if marker != MARKER {
        return None;
    }
    let body = r.bytes(len as usize)?;
    let (last, edits) = body.split_last()?;
    let same = sum == record_crc(number, at as u64, len, body);
    (*last == TRAILER && same).then_some(edits)
}

/// The record at `at` is broken. Whether it can be the remains of an append that a crash cut short; otherwise it is
/// damaged.
pub(crate) fn is_torn(bytes: &[u8], number: u64, at: usize) -> bool {
    // Appends are synced one by one, so nothing whole can follow a torn one.
    if (at + 1..bytes.len()).any(|later| record_at(bytes, number, later).is_some()) {
        return false;
    }
    let rest = &bytes[at..];
    if rest.len() < RECORD_HEADER_LEN {
        return true; // the file ends within the header
    }
    let (head, body) = rest.split_at(RECORD_HEADER_LEN);
    let word = |from: usize| head[from..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
    let (claimed, sum) = (word(1), word(5));
    if head[0] == MARKER && claimed as usize > body.len() {
        // The file ends within the record, unless it is the length that is wrong and not the file.
        return sum != record_crc(number, at as u64, body.len() as u32, body);
    }
    // The file has its length, so what is missing is whole sectors, which read as zeros.
    let mut from = at;
    while from < bytes.len() {
        let to = (from / SECTOR * SECTOR + SECTOR).min(bytes.len());
        if bytes[from..to].iter().all(|b| *b == 0) {
            return true;
        }
        from = to;
    }
    false
}
