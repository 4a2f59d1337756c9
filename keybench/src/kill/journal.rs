//! What a process writes down of its mutations so that it is known after it was killed.
//!
//! Each session has a file of its own. Before a mutation goes to the engine its intent is written there, and when the
//! engine has acknowledged it, that; both with `write(2)`, whose bytes the kernel keeps whatever becomes of the process.
//! So an intent is there whenever the engine may have seen the mutation, and an acknowledgement is there only if the
//! engine gave it. A kill can cut the last record short: a mutation whose intent is cut never reached the engine, and one
//! whose acknowledgement is cut counts as in flight.
//!
//! | field of a record | bytes |
//! |---|---|
//! | length of the body | 4 |
//! | hash of the body | 8 |
//! | body: what it is | 1 |
//! | body: its stamp, and of an acknowledgement also the stamp of the intent | 8 or 16 |
//! | body of an intent: operations, each as kind, length of the key, key, and length and hash of a value or an end | |

use crate::error::{Error, Result};
use kingtide_base::hash::hash64;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// All that is kept of a value: enough to know it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Print {
    /// Bytes.
    pub len: u64,
    /// Their hash.
    pub hash: u64,
}

impl Print {
    /// Of a value.
    pub fn of(value: &[u8]) -> Print {
        Print { len: value.len() as u64, hash: hash64(value) }
    }
}

/// One operation of a mutation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The key has this value.
    Put(Vec<u8>, Print),
    /// The key is gone.
    Delete(Vec<u8>),
    /// All keys of `[from, to)` are gone.
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// What was done at once: a put, a delete, a batch, a transaction.
///
/// Stamps are numbers of one sequence over all sessions of a run: the first is drawn before the engine is called, the
/// second after it has returned. So if one mutation's second stamp is below another's first, the one was acknowledged
/// before the other began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// Drawn before the engine was called.
    pub begun: u64,
    /// Drawn when the engine had acknowledged it, if it had; if not, the last stamp of the run that was killed: what
    /// happened by then happened before the next run.
    pub ended: u64,
    /// Whether the engine acknowledged it.
    pub acknowledged: bool,
    /// What it did, in order.
    pub ops: Vec<Op>,
}

impl Mutation {
    /// It in words, for people.
    pub fn describe(&self) -> String {
        let key = |op: &Op| match op {
            Op::Put(k, p) => format!("put of '{}' ({:016x})", k.escape_ascii(), p.hash),
            Op::Delete(k) => format!("delete of '{}'", k.escape_ascii()),
            Op::DeleteRange(a, b) => format!("delete of '{}' to '{}'", a.escape_ascii(), b.escape_ascii()),
        };
        let what = match &self.ops[..] {
            [one] => key(one),
            [first, rest @ ..] => format!("{} and {} more", key(first), rest.len()),
            [] => "nothing".into(),
        };
        let when = if self.acknowledged { format!("acknowledged at {}", self.ended) } else { "in flight".into() };
        format!("[{what}, begun at {}, {when}]", self.begun)
    }
}

/// Stamps that a run may draw.
const STAMPS_A_RUN: u64 = 1 << 40;

/// The stamps of run number `run`: the first, and one that none of its own reaches.
pub fn stamps(run: u64) -> (u64, u64) {
    (run * STAMPS_A_RUN, (run + 1) * STAMPS_A_RUN - 1)
}

const INTENT: u8 = 1;
const ACKNOWLEDGED: u8 = 2;
const VOID: u8 = 3;
const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_RANGE: u8 = 3;
/// Bytes before a record's body.
const HEAD: usize = 12;

/// One session's file.
pub struct Journal {
    file: File,
    path: PathBuf,
    record: Vec<u8>,
    begun: u64,
}

impl Journal {
    /// The file of session `session` of run `run`.
    pub fn create(dir: &Path, run: u64, session: u64) -> Result<Journal> {
        let path = dir.join(format!("{run:06}-{session:04}.journal"));
        let file = File::create_new(&path).map_err(|e| Error::io("create", &path, e))?;
        Ok(Journal { file, path, record: Vec::new(), begun: 0 })
    }

    /// Writes down what is about to be done.
    pub fn intend(&mut self, begun: u64, ops: &[Op]) -> Result<()> {
        self.begun = begun;
        self.begin(INTENT, begun);
        for op in ops {
            let (kind, key) = match op {
                Op::Put(key, _) => (PUT, key),
                Op::Delete(key) => (DELETE, key),
                Op::DeleteRange(from, _) => (DELETE_RANGE, from),
            };
            self.record.push(kind);
            put_bytes(&mut self.record, key);
            match op {
                Op::Put(_, print) => {
                    self.record.extend(print.len.to_le_bytes());
                    self.record.extend(print.hash.to_le_bytes());
                }
                Op::Delete(_) => {}
                Op::DeleteRange(_, to) => put_bytes(&mut self.record, to),
            }
        }
        self.write()
    }

    /// Writes down that the engine has acknowledged it.
    pub fn acknowledge(&mut self, ended: u64) -> Result<()> {
        self.end(ACKNOWLEDGED, ended)
    }

    /// Writes down that the engine has refused it and it left no trace.
    pub fn void(&mut self, ended: u64) -> Result<()> {
        self.end(VOID, ended)
    }

    fn end(&mut self, kind: u8, ended: u64) -> Result<()> {
        self.begin(kind, ended);
        self.record.extend(self.begun.to_le_bytes());
        self.write()
    }

    fn begin(&mut self, kind: u8, stamp: u64) {
        self.record.clear();
        self.record.resize(HEAD, 0);
        self.record.push(kind);
        self.record.extend(stamp.to_le_bytes());
    }

    fn write(&mut self) -> Result<()> {
        let body = &self.record[HEAD..];
        let (len, hash) = (body.len() as u32, hash64(body));
        self.record[..4].copy_from_slice(&len.to_le_bytes());
        self.record[4..HEAD].copy_from_slice(&hash.to_le_bytes());
        self.file.write_all(&self.record).map_err(|e| Error::io("write", &self.path, e))
    }
}

pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Takes a file apart.
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    pub fn u32(&mut self) -> Option<usize> {
        self.take(4).and_then(|b| b.first_chunk()).map(|b| u32::from_le_bytes(*b) as usize)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take(8).and_then(|b| b.first_chunk()).map(|b| u64::from_le_bytes(*b))
    }

    pub fn print(&mut self) -> Option<Print> {
        Some(Print { len: self.u64()?, hash: self.u64()? })
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(len)
    }

    /// The next whole record's body.
    fn record(&mut self) -> Option<Bytes<'a>> {
        let (len, hash) = (self.u32()?, self.u64()?);
        let body = self.take(len)?;
        (hash64(body) == hash).then_some(Bytes(body))
    }

    fn op(&mut self) -> Option<Op> {
        let kind = self.take(1)?[0];
        let key = self.bytes()?.to_vec();
        Some(match kind {
            PUT => Op::Put(key, self.print()?),
            DELETE => Op::Delete(key),
            DELETE_RANGE => Op::DeleteRange(key, self.bytes()?.to_vec()),
            _ => return None,
        })
    }
}

/// Mutations in one session's file. `last` is the last stamp of its run.
fn parse(file: &[u8], last: u64) -> Option<Vec<Mutation>> {
    let mut rest = Bytes(file);
    let mut all: Vec<Mutation> = Vec::new();
    while let Some(mut body) = rest.record() {
        let (kind, stamp) = (body.take(1)?[0], body.u64()?);
        if kind == INTENT {
            let mut ops = Vec::new();
            while !body.0.is_empty() {
                ops.push(body.op()?);
            }
            all.push(Mutation { begun: stamp, ended: last, acknowledged: false, ops });
            continue;
        }
        // A session does one thing after another: what ends is what began last.
        let begun = body.u64()?;
        let mutation = all.last_mut().filter(|m| m.begun == begun && !m.acknowledged)?;
        match kind {
            ACKNOWLEDGED => (mutation.ended, mutation.acknowledged) = (stamp, true),
            VOID => drop(all.pop()),
            _ => return None,
        }
    }
    Some(all)
}

/// All mutations that the files of `dir` tell of.
pub fn read(dir: &Path) -> Result<Vec<Mutation>> {
    let mut all = Vec::new();
    for path in files(dir)? {
        let bytes = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let run = name.split('-').next().and_then(|run| run.parse().ok());
        let mutations = run.and_then(|run| parse(&bytes, stamps(run).1));
        all.extend(mutations.ok_or_else(|| Error::failed(format!("{}: not a journal", path.display())))?);
    }
    Ok(all)
}

/// Removes the files of `dir`.
pub fn cut(dir: &Path) -> Result<()> {
    files(dir)?.iter().try_for_each(|path| std::fs::remove_file(path).map_err(|e| Error::io("remove", path, e)))
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).map_err(|e| Error::io("list", dir, e))?;
    let paths = entries.map(|entry| entry.map(|e| e.path()).map_err(|e| Error::io("list", dir, e)));
    paths.filter(|p| p.as_ref().map_or(true, |p| p.extension().is_some_and(|e| e == "journal"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::fresh_dir;

    fn ops() -> Vec<Op> {
        vec![
            Op::Put(b"a".to_vec(), Print::of(b"value")),
            Op::Delete(vec![0, 255]),
            Op::DeleteRange(b"".to_vec(), b"z".to_vec()),
        ]
    }

    #[test]
    fn a_journal_cut_anywhere_tells_what_was_whole() {
        let dir = std::env::temp_dir().join(format!("keybench-journal-{}", std::process::id()));
        fresh_dir(&dir).unwrap();
        let mut journal = Journal::create(&dir, 3, 0).unwrap();
        let (first, last) = stamps(3);
        journal.intend(first, &ops()).unwrap();
        journal.acknowledge(first + 1).unwrap();
        journal.intend(first + 2, &ops()[..1]).unwrap();
        journal.void(first + 3).unwrap();
        journal.intend(first + 4, &ops()[1..]).unwrap();
        let whole = std::fs::read(&journal.path).unwrap();
        let acknowledged = Mutation { begun: first, ended: first + 1, acknowledged: true, ops: ops() };
        let flying = Mutation { begun: first + 4, ended: last, acknowledged: false, ops: ops()[1..].to_vec() };
        assert_eq!(read(&dir).unwrap(), [acknowledged.clone(), flying.clone()]);
        let (mut seen_flying, mut seen_void) = (0, 0);
        for len in 0..whole.len() {
            let found = parse(&whole[..len], last).unwrap();
            match &found[..] {
                [] => {}
                [only] => assert!(*only == acknowledged || !only.acknowledged && only.ops == ops(), "{only:?}"),
                [one, two] => {
                    assert_eq!(*one, acknowledged);
                    assert!(!two.acknowledged && two.begun == first + 2, "{two:?}");
                    seen_void += 1;
                }
                more => panic!("{more:?}"),
            }
            seen_flying += usize::from(matches!(&found[..], [only] if !only.acknowledged));
        }
        assert!(seen_flying > 0 && seen_void > 0);
        cut(&dir).unwrap();
        assert!(read(&dir).unwrap().is_empty());
        crate::process::remove_dir(&dir).unwrap();
    }

    #[test]
    fn what_no_session_writes_is_no_journal() {
        let dir = std::env::temp_dir().join(format!("keybench-journal-bad-{}", std::process::id()));
        fresh_dir(&dir).unwrap();
        let mut journal = Journal::create(&dir, 1, 7).unwrap();
        journal.acknowledge(5).unwrap();
        let e = read(&dir).unwrap_err().to_string();
        assert!(e.contains("000001-0007.journal: not a journal"), "{e}");
        crate::process::remove_dir(&dir).unwrap();
    }
}
