//! The journal: what a child begins and how it ends, appended to a file beside the database with one `write` for each
//! record. The file is in the operating system's hands before an operation begins, so a kill loses none of it but a record
//! that was being written, whose operation had not begun or was not acknowledged.

use crate::model::{Change, Family, Op, State, Unit, Work};
use kingtide_base::coding::{Reader, put_varint};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

/// An operation that began, or its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Whether the default durability of the session is `None`.
    Session(bool),
    /// A lane begins a unit.
    Begin(usize, Unit),
    /// A lane's unit was acknowledged with a sequence number (0 if the call returns none), or refused.
    End(usize, u64, bool, u64),
    /// The set of families is about to change.
    Change(Change),
    /// The change was made, or refused.
    Changed(bool),
    /// Everything that was acknowledged before a flush that begins here survives once it has ended; of all families, or of
    /// one.
    Flush(u64, Option<u32>),
    /// The flush of that number succeeded.
    Flushed(u64),
    /// A copy of that number begins.
    Copy(Copy, u64),
    /// The copy was made.
    Copied(Copy, u64),
    /// The database was closed without an error.
    Closed,
}

/// Kinds of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Copy {
    Checkpoint,
    Backup,
}

impl Record {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Record::Session(none) => out.extend([0, u8::from(*none)]),
            Record::Begin(lane, unit) => {
                out.extend([1, *lane as u8]);
                unit.put(out);
            }
            Record::End(lane, n, done, sequence) => {
                out.extend([2, *lane as u8, u8::from(*done)]);
                put_varint(out, *n);
                put_varint(out, *sequence);
            }
            Record::Change(change) => {
                out.push(3);
                change.put(out);
            }
            Record::Changed(done) => out.extend([4, u8::from(*done)]),
            Record::Flush(n, family) => {
                out.push(5);
                put_varint(out, *n);
                put_varint(out, family.map_or(0, |f| u64::from(f) + 1));
            }
            Record::Flushed(n) => {
                out.push(6);
                put_varint(out, *n);
            }
            Record::Copy(kind, n) | Record::Copied(kind, n) => {
                out.extend([if matches!(self, Record::Copy(..)) { 7 } else { 8 }, u8::from(*kind == Copy::Backup)]);
                put_varint(out, *n);
            }
            Record::Closed => out.push(9),
        }
    }

    fn get(r: &mut Reader<'_>) -> Option<Record> {
        Some(match r.u8()? {
            0 => Record::Session(r.u8()? != 0),
            1 => Record::Begin(usize::from(r.u8()?), Unit::get(r)?),
            2 => {
                let (lane, done) = (usize::from(r.u8()?), r.u8()? != 0);
                Record::End(lane, r.varint()?, done, r.varint()?)
            }
            3 => Record::Change(Change::get(r)?),
            4 => Record::Changed(r.u8()? != 0),
            5 => {
                let (n, family) = (r.varint()?, r.varint()?);
                Record::Flush(n, family.checked_sub(1).and_then(|f| u32::try_from(f).ok()))
            }
            6 => Record::Flushed(r.varint()?),
            kind @ (7 | 8) => {
                let copy = if r.u8()? == 0 { Copy::Checkpoint } else { Copy::Backup };
                let n = r.varint()?;
                if kind == 7 { Record::Copy(copy, n) } else { Record::Copied(copy, n) }
            }
            9 => Record::Closed,
            _ => return None,
        })
    }
}

/// Appends records.
#[derive(Debug)]
pub struct Journal {
    file: Mutex<(File, Vec<u8>)>,
}

impl Journal {
    /// An empty journal; the file must not exist.
    pub fn create(path: &Path) -> Result<Journal, String> {
        let file = OpenOptions::new().append(true).create_new(true).open(path);
        let file = file.map_err(|e| format!("cannot create {}: {e}", path.display()))?;
        Ok(Journal { file: Mutex::new((file, Vec::new())) })
    }

    /// Appends a record. Others that are appended later follow it in the file.
    pub fn append(&self, record: &Record) -> Result<(), String> {
        let mut held = self.file.lock().map_err(|_| "a thread panicked while it wrote the journal")?;
        let (file, buffer) = &mut *held;
        buffer.clear();
        buffer.extend([0; 4]);
        record.put(buffer);
        let len = (buffer.len() as u32 - 4).to_le_bytes();
        buffer[..4].copy_from_slice(&len);
        file.write_all(buffer).map_err(|e| format!("cannot write the journal: {e}"))
    }
}

/// The records of a journal, without one that was cut short.
pub fn read(path: &Path) -> Result<Vec<Record>, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let r = &mut Reader::new(&bytes);
    let mut records = Vec::new();
    while let Some(len) = r.u32() {
        let Some(body) = r.bytes(len as usize) else { break };
        let body = &mut Reader::new(body);
        let record = Record::get(body).filter(|_| body.is_empty());
        records.push(record.ok_or_else(|| format!("{}: record {} is none", path.display(), records.len()))?);
    }
    Ok(records)
}

/// Writes records of all kinds and a state, and reads them back, the last record torn too: what judges others is judged first.
///
/// # Errors
/// If a file cannot be written.
///
/// # Panics
/// If they are not what was written.
pub fn check_itself() -> Result<(), String> {
    let dir = std::env::temp_dir().join(format!("kingtide-torture-journal-{}", std::process::id()));
    let _ = std::fs::remove_file(&dir);
    let text = |e: std::io::Error| format!("{}: {e}", dir.display());
    let ops = vec![Op::Put(3, 4, 5), Op::DeletePrefix(1, 1), Op::Add(7, -9), Op::DeleteRange(1, 2, 300)];
    let unit = |work| Unit { n: 8, work, logged: true };
    let all = [
        Record::Session(true),
        Record::Begin(1, unit(Work::Commit(ops.clone()))),
        Record::Begin(2, unit(Work::Prepare(3, ops.clone()))),
        Record::Begin(2, unit(Work::Decide(3, true))),
        Record::End(1, 8, false, 77),
        Record::Change(Change::Create(9, Family { name: "x".to_owned(), order: 2 })),
        Record::Change(Change::Clone(9, 10, "y".to_owned())),
        Record::Changed(true),
        Record::Flush(1, Some(0)),
        Record::Flush(2, None),
        Record::Flushed(2),
        Record::Copy(Copy::Backup, 4),
        Record::Copied(Copy::Checkpoint, 5),
        Record::Closed,
    ];
    let journal = Journal::create(&dir)?;
    all.iter().try_for_each(|record| journal.append(record))?;
    assert_eq!(read(&dir)?, all);
    let bytes = std::fs::read(&dir).map_err(text)?;
    std::fs::write(&dir, &bytes[..bytes.len() - 1]).map_err(text)?;
    assert_eq!(read(&dir)?, all[..all.len() - 1]);
    std::fs::remove_file(&dir).map_err(text)?;

    let mut state = State::new();
    state.lanes[1].apply(1, &unit(Work::Commit(ops.clone())), |_| true);
    state.lanes[1].apply(1, &unit(Work::Prepare(3, ops)), |_| true);
    state.change(&Change::Clone(0, 1, "copy".to_owned()));
    assert_eq!(State::decode(&state.encode()), Some(state));
    Ok(())
}
