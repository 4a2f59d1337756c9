//! Traces: the operations of a run as a file of text, written by `keybench run --trace` and read by `keybench replay`.
//!
//! The first line is [`MAGIC`]; lines that begin with `#` are remarks. Every other line is one operation, in words separated
//! by a space: `l` or `r` (of the load, or of the measured point), the number of the thread, nanoseconds since the recording
//! began, a verb, and what it was given. Bytes of keys that are not printable, and `%`, stand as `%` and two hexadecimal
//! digits. Values are not recorded, only their sizes:
//!
//! ```text
//! l 0 1200 mput user1 100 user2 100
//! r 1 53000 get user2
//! r 0 54000 range user1 user9 25        (lower bound, upper bound or -, rows that were read)
//! ```
//!
//! Lines of one thread are in its order; those of different threads come in blocks.

use crate::clock::Clock;
use crate::engine::txn::Transactions;
use crate::engine::{Bounds, Cursor, Session};
use crate::error::{Error, Result};
use crate::say::note;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The first line of every trace; the number is the format's.
pub const MAGIC: &str = "keybench trace 1";

/// Bytes of text that a thread gathers before it writes them out.
const BLOCK: usize = 64 << 10;

/// A key.
pub type Key = Box<[u8]>;

/// An operation, with the sizes of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Key, bytes of the value.
    Put(Key, usize),
    /// Key, bytes of the value, time to live in milliseconds.
    PutTtl(Key, usize, u64),
    /// Keys, bytes of their values.
    PutBatch(Vec<(Key, usize)>),
    Get(Key),
    MultiGet(Vec<Key>),
    Delete(Key),
    DeleteBatch(Vec<Key>),
    /// Lower and upper bound.
    DeleteRange(Key, Key),
    /// Lower bound, upper bound, rows that were read.
    Range(Key, Option<Key>, u64),
}

fn push_key(line: &mut String, key: &[u8]) {
    line.push(' ');
    // An empty key would be no word.
    if key.is_empty() {
        line.push('%');
    }
    for &byte in key {
        if byte.is_ascii_graphic() && byte != b'%' {
            line.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(line, "%{byte:02x}");
        }
    }
}

fn parse_key(word: &str) -> Option<Key> {
    if word == "%" {
        return Some(Key::default());
    }
    let (mut key, mut rest) = (Vec::with_capacity(word.len()), word.as_bytes());
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            key.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            key.push(byte);
        }
    }
    Some(key.into())
}

/// An upper bound `-` is none, so that a key of that one byte is written otherwise.
fn push_upper(line: &mut String, upper: Option<&[u8]>) {
    match upper {
        None => line.push_str(" -"),
        Some(b"-") => line.push_str(" %2d"),
        Some(key) => push_key(line, key),
    }
}

impl Op {
    /// The operation that the words behind a line's time mean.
    fn parse<'w>(verb: &str, mut words: impl Iterator<Item = &'w str>) -> Option<Op> {
        let mut keys = || words.by_ref().map(parse_key).collect::<Option<Vec<Key>>>();
        let op = match verb {
            "get" => Op::Get(parse_key(words.next()?)?),
            "del" => Op::Delete(parse_key(words.next()?)?),
            "mget" => Op::MultiGet(keys()?),
            "mdel" => Op::DeleteBatch(keys()?),
            "put" => Op::Put(parse_key(words.next()?)?, words.next()?.parse().ok()?),
            "put_ttl" => {
                Op::PutTtl(parse_key(words.next()?)?, words.next()?.parse().ok()?, words.next()?.parse().ok()?)
            }
            "mput" => {
                let mut rows = Vec::new();
                while let Some(key) = words.next() {
                    rows.push((parse_key(key)?, words.next()?.parse().ok()?));
                }
                Op::PutBatch(rows)
            }
            "delete_range" => Op::DeleteRange(parse_key(words.next()?)?, parse_key(words.next()?)?),
            "range" => {
                let (lower, upper) = (parse_key(words.next()?)?, words.next()?);
                let upper = if upper == "-" { None } else { Some(parse_key(upper)?) };
                Op::Range(lower, upper, words.next()?.parse().ok()?)
            }
            _ => return None,
        };
        words.next().is_none().then_some(op)
    }
}

/// A file that is being recorded into.
pub struct Recorder {
    path: PathBuf,
    file: Mutex<File>,
    clock: Clock,
    begun: u64,
}

impl Recorder {
    /// Creates the file, with a remark about what is recorded.
    pub fn create(path: &Path, remark: &str, clock: Clock) -> Result<Arc<Recorder>> {
        let wrong = |e| Error::io("write", path, e);
        let mut file = File::create(path).map_err(wrong)?;
        writeln!(file, "{MAGIC}\n# {remark}").map_err(wrong)?;
        Ok(Arc::new(Recorder { path: path.to_owned(), file: Mutex::new(file), clock, begun: clock.now() }))
    }

    fn write(&self, text: &str) -> Result<()> {
        // A panic while the lock is held is a test's: a run with one has failed whatever the file holds.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(text.as_bytes()).map_err(|e| Error::io("write", &self.path, e))
    }
}

/// One thread's lines.
struct Tape {
    recorder: Arc<Recorder>,
    /// How its lines begin.
    head: String,
    text: String,
}

impl Tape {
    /// When an operation begins.
    fn now(&self) -> u64 {
        self.recorder.clock.ns(self.recorder.begun, self.recorder.clock.now())
    }

    fn line(&mut self, ns: u64, verb: &str, rest: impl FnOnce(&mut String)) -> Result<()> {
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{} {ns} {verb}", self.head);
        rest(&mut self.text);
        self.text.push('\n');
        if self.text.len() >= BLOCK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let text = std::mem::take(&mut self.text);
        self.recorder.write(&text)
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        if let Err(e) = self.flush() {
            note!("the trace is incomplete: {e}");
        }
    }
}

/// A session that writes down what it does.
pub struct Recorded {
    session: Box<dyn Session>,
    tape: Rc<RefCell<Tape>>,
}

impl Recorded {
    /// Records a thread's session; `load` tells whether it belongs to what comes before the measured point.
    pub fn wrap(session: Box<dyn Session>, recorder: &Arc<Recorder>, load: bool, thread: usize) -> Box<dyn Session> {
        let head = format!("{} {thread}", if load { 'l' } else { 'r' });
        let tape = Tape { recorder: Arc::clone(recorder), head, text: String::new() };
        Box::new(Recorded { session, tape: Rc::new(RefCell::new(tape)) })
    }

    fn note(&self, verb: &str, rest: impl FnOnce(&mut String)) -> Result<()> {
        let mut tape = self.tape.borrow_mut();
        let now = tape.now();
        tape.line(now, verb, rest)
    }
}

fn push_sized(line: &mut String, key: &[u8], bytes: usize) {
    push_key(line, key);
    // Writing to a string cannot fail.
    let _ = write!(line, " {bytes}");
}

impl Session for Recorded {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.note("put", |line| push_sized(line, key, value.len()))?;
        self.session.put(key, value)
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        self.note("mput", |line| entries.iter().for_each(|(key, value)| push_sized(line, key, value.len())))?;
        self.session.put_batch(entries)
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.note("get", |line| push_key(line, key))?;
        self.session.get(key, found)
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.note("mget", |line| keys.iter().for_each(|key| push_key(line, key)))?;
        self.session.multi_get(keys, each)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.note("del", |line| push_key(line, key))?;
        self.session.delete(key)
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        self.note("mdel", |line| keys.iter().for_each(|key| push_key(line, key)))?;
        self.session.delete_batch(keys)
    }

    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        let (lower, upper) = (bounds.lower.unwrap_or_default().into(), bounds.upper.map(Key::from));
        let cursor = self.session.cursor(bounds)?;
        Ok(Box::new(RecordedCursor { cursor, tape: Rc::clone(&self.tape), lower, upper, range: None }))
    }

    fn put_ttl(&mut self, key: &[u8], value: &[u8], ttl: Duration) -> Result<()> {
        self.note("put_ttl", |line| {
            push_sized(line, key, value.len());
            // Writing to a string cannot fail.
            let _ = write!(line, " {}", ttl.as_millis());
        })?;
        self.session.put_ttl(key, value, ttl)
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        self.note("delete_range", |line| {
            push_key(line, start);
            push_key(line, end);
        })?;
        self.session.delete_range(start, end)
    }

    fn begin(&mut self, _how: Transactions) -> Result<()> {
        Err(Error::usage("--trace cannot record a workload with transactions"))
    }
}

/// A seek and the rows behind it are one operation, which is written down when the next seek begins or the cursor goes.
struct RecordedCursor {
    cursor: Box<dyn Cursor>,
    tape: Rc<RefCell<Tape>>,
    lower: Key,
    upper: Option<Key>,
    /// When the present range began, where, and how many rows it has.
    range: Option<(u64, Key, u64)>,
}

impl RecordedCursor {
    fn end_range(&mut self) -> Result<()> {
        let Some((ns, lower, rows)) = self.range.take() else { return Ok(()) };
        let upper = self.upper.as_deref();
        self.tape.borrow_mut().line(ns, "range", |line| {
            push_key(line, &lower);
            push_upper(line, upper);
            // Writing to a string cannot fail.
            let _ = write!(line, " {rows}");
        })
    }

    fn begin_range(&mut self, lower: Key) -> Result<()> {
        self.end_range()?;
        self.range = Some((self.tape.borrow().now(), lower, 0));
        Ok(())
    }

    fn row(&mut self, there: bool) -> bool {
        if let Some((_, _, rows)) = &mut self.range {
            *rows += u64::from(there);
        }
        there
    }
}

impl Drop for RecordedCursor {
    fn drop(&mut self) {
        if let Err(e) = self.end_range() {
            note!("the trace is incomplete: {e}");
        }
    }
}

impl Cursor for RecordedCursor {
    fn first(&mut self) -> Result<bool> {
        self.begin_range(self.lower.clone())?;
        let there = self.cursor.first()?;
        Ok(self.row(there))
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.begin_range(key.into())?;
        let there = self.cursor.seek(key)?;
        Ok(self.row(there))
    }

    fn next(&mut self) -> Result<bool> {
        let there = self.cursor.next()?;
        Ok(self.row(there))
    }

    fn key(&mut self) -> Result<&[u8]> {
        self.cursor.key()
    }

    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        self.cursor.entry()
    }
}

/// A trace in memory: the operations of each thread, with when they began, in nanoseconds since the first.
#[derive(Debug, Default)]
pub struct Trace {
    /// What came before the measured point.
    pub load: Vec<Vec<(u64, Op)>>,
    /// The measured point.
    pub run: Vec<Vec<(u64, Op)>>,
}

/// Entries that an operation puts, and bytes of their values.
fn puts(op: &Op) -> (u64, u128) {
    match op {
        Op::Put(_, bytes) | Op::PutTtl(_, bytes, _) => (1, *bytes as u128),
        Op::PutBatch(rows) => (rows.len() as u64, rows.iter().map(|(_, bytes)| *bytes as u128).sum()),
        _ => (0, 0),
    }
}

/// Whether a file's first line is that of a trace.
pub fn is_trace(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let mut first = String::new();
    BufReader::new(std::io::Read::take(file, MAGIC.len() as u64 + 2)).read_line(&mut first).is_ok()
        && first.trim_end() == MAGIC
}

/// What to do about a trace that is of no use.
const RECORD: &str = "; record it again (keybench run WORKLOAD --trace FILE)";

/// The error of a line that is none of a trace, or not all of one.
fn broken(path: &Path, at: u64, line: &[u8], whole: bool) -> Error {
    let shown: String = String::from_utf8_lossy(line).chars().take(60).collect();
    let rest = if shown.len() < line.len() { "..." } else { "" };
    let what = match whole {
        true => "the file is damaged here, this is not a line of a trace",
        false => "the file is cut off within its last line",
    };
    let place = path.display();
    Error::usage(format!(
        "{place}:{at}: {what}: '{}{rest}'{RECORD}, or keep the {} lines before",
        shown.escape_debug(),
        at - 1
    ))
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// The first line that is not one of a trace.
    pub fn read(path: &Path) -> Result<Trace> {
        let file = File::open(path).map_err(|e| Error::io("read", path, e))?;
        Trace::parse(path, BufReader::new(file))
    }

    fn parse(path: &Path, mut text: impl BufRead) -> Result<Trace> {
        let (mut trace, mut line) = (Trace::default(), Vec::new());
        for at in 1.. {
            line.clear();
            // Lines are read as bytes, because those of a damaged file need not be text.
            if text.read_until(b'\n', &mut line).map_err(|e| Error::io("read", path, e))? == 0 {
                break;
            }
            let whole = line.pop_if(|byte| *byte == b'\n').is_some();
            line.pop_if(|byte| *byte == b'\r');
            match (at, line.as_slice()) {
                (1, first) if first == MAGIC.as_bytes() => continue,
                (1, _) => return Err(Error::usage(format!("{}:1: a trace begins with '{MAGIC}'", path.display()))),
                (_, [b'#', ..]) => continue,
                _ => {}
            }
            let added = std::str::from_utf8(&line).ok().filter(|_| whole).and_then(|line| trace.add(line));
            added.ok_or_else(|| broken(path, at, &line, whole))?;
        }
        let begun = trace.run.iter().flatten().map(|(ns, _)| *ns).min();
        let none = || Error::usage(format!("{}: has no operations of a measured point{RECORD}", path.display()));
        let begun = begun.ok_or_else(none)?;
        trace.run.iter_mut().flatten().for_each(|(ns, _)| *ns -= begun);
        Ok(trace)
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        let part = match words.next()? {
            "l" => &mut self.load,
            "r" => &mut self.run,
            _ => return None,
        };
        let thread = words.next()?.parse::<usize>().ok().filter(|n| *n < 1024)?;
        let ns = words.next()?.parse().ok()?;
        let op = Op::parse(words.next()?, words)?;
        if part.len() <= thread {
            part.resize_with(thread + 1, Vec::new);
        }
        part[thread].push((ns, op));
        Some(())
    }

    /// Operations of the measured point.
    pub fn operations(&self) -> u64 {
        self.run.iter().map(|ops| ops.len() as u64).sum()
    }

    /// Seconds from the first operation of the measured point to the last.
    pub fn seconds(&self) -> f64 {
        self.run.iter().filter_map(|ops| ops.last()).map(|(ns, _)| *ns).max().unwrap_or(0) as f64 / 1e9
    }

    /// Entries that it puts before the measured point.
    pub fn entries(&self) -> u64 {
        self.load.iter().flatten().map(|(_, op)| puts(op).0).sum()
    }

    /// Mean bytes of the values that it puts.
    pub fn value_size(&self) -> u64 {
        let all = self.load.iter().chain(&self.run).flatten().map(|(_, op)| puts(op));
        let (entries, bytes) = all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        bytes.checked_div(entries.into()).unwrap_or(0) as u64 // the mean of values that fit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{self, EngineOptions};

    fn parse(text: &str) -> Result<Trace> {
        Trace::parse(Path::new("x.trace"), text.as_bytes())
    }

    #[test]
    fn what_a_session_does_is_read_back_from_its_file() {
        let path = std::env::temp_dir().join(format!("keybench-trace-{}", std::process::id()));
        let engine = engine::registry::open("memory", Path::new(""), &EngineOptions::default()).unwrap();
        let recorder = Recorder::create(&path, "a test", Clock::calibrated()).unwrap();
        let session = |load, thread| Recorded::wrap(engine.session().unwrap(), &recorder, load, thread);
        let mut loader = session(true, 1);
        loader.put_batch(&[(b"a", b"1"), (b"b %\0", b"22"), (b"-", b"")]).unwrap();
        drop(loader);
        let mut s = session(false, 0);
        s.put(b"c", &[0; 300]).unwrap();
        assert!(s.get(b"b %\0", &mut |v| assert_eq!(v, b"22")).unwrap());
        s.multi_get(&[b"a", b"zz"], &mut |_, _| {}).unwrap();
        let mut cursor = s.cursor(Bounds { lower: Some(b"a"), upper: Some(b"-") }).unwrap();
        assert!(cursor.seek(b"a").unwrap() && cursor.next().unwrap());
        assert!(!cursor.seek(b"x").unwrap());
        drop(cursor);
        s.delete(b"a").unwrap();
        s.delete_batch(&[b"", b"c"]).unwrap();
        s.delete_range(b"x", b"y").unwrap();
        let how = Transactions {
            isolation: crate::engine::txn::Isolation::Snapshot,
            mode: crate::engine::txn::TxnMode::Optimistic,
        };
        assert!(s.begin(how).unwrap_err().to_string().contains("--trace"));
        drop(s);
        assert!(is_trace(&path));
        let trace = Trace::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();

        let key = |k: &[u8]| Key::from(k);
        assert!(trace.load[0].is_empty() && trace.entries() == 3 && trace.value_size() == (1 + 2 + 300) / 4);
        assert_eq!(trace.load[1][0].1, Op::PutBatch(vec![(key(b"a"), 1), (key(b"b %\0"), 2), (key(b"-"), 0)]));
        let ops: Vec<&Op> = trace.run[0].iter().map(|(_, op)| op).collect();
        let wanted = [
            Op::Put(key(b"c"), 300),
            Op::Get(key(b"b %\0")),
            Op::MultiGet(vec![key(b"a"), key(b"zz")]),
            Op::Range(key(b"a"), Some(key(b"-")), 2),
            Op::Range(key(b"x"), Some(key(b"-")), 0),
            Op::Delete(key(b"a")),
            Op::DeleteBatch(vec![key(b""), key(b"c")]),
            Op::DeleteRange(key(b"x"), key(b"y")),
        ];
        assert_eq!(ops, wanted.iter().collect::<Vec<_>>());
        assert!(trace.run[0].windows(2).all(|pair| pair[0].0 <= pair[1].0) && trace.run[0][0].0 == 0);
    }

    #[test]
    fn a_file_that_is_cut_off_or_holds_other_bytes_is_told() {
        let whole = format!("{MAGIC}\nr 0 5 put user1 1000\nr 0 6 put user2 1000\n");
        assert_eq!(parse(&whole).unwrap().operations(), 2);
        assert_eq!(parse(&whole.replace('\n', "\r\n")).unwrap().operations(), 2);
        // What is left of the number is a number, too.
        for cut in [1, 3, 12] {
            let e = parse(&whole[..whole.len() - cut]).unwrap_err().to_string();
            assert!(e.starts_with("x.trace:3: the file is cut off within its last line: 'r 0 6 put"), "{e}");
        }
        let mut bytes = whole.into_bytes();
        bytes[MAGIC.len() + 8] = 0xff;
        let e = Trace::parse(Path::new("x.trace"), bytes.as_slice()).unwrap_err().to_string();
        assert!(e.starts_with("x.trace:2: the file is damaged here"), "{e}");
        bytes.splice(MAGIC.len() + 1.., vec![b'a'; 100_000]);
        let e = Trace::parse(Path::new("x.trace"), bytes.as_slice()).unwrap_err().to_string();
        assert!(e.len() < 300 && e.contains("aaa...'"), "{e}");
    }

    #[test]
    fn the_mean_of_huge_sizes_is_none_of_a_sum_that_overflowed() {
        let huge = u64::MAX - 2;
        for put in [format!("put b {huge}"), format!("mput b {huge} c {huge}")] {
            let trace = parse(&format!("{MAGIC}\nl 0 5 put a {huge}\nr 0 6 {put}\n")).unwrap();
            assert_eq!(trace.value_size(), huge, "{put}");
        }
    }

    #[test]
    fn a_line_that_is_none_is_told() {
        let e = parse("something else\n").unwrap_err().to_string();
        assert!(e.contains("x.trace:1: a trace begins with"), "{e}");
        for line in [
            "r 0 5 got a",
            "r 0 5 get",
            "r 0 5 get a b",
            "r x 5 get a",
            "r 2000 5 get a",
            "r 0 5 put a b",
            "r 0 5 get %zz",
        ] {
            let e = parse(&format!("{MAGIC}\n# remark\n{line}\n")).unwrap_err().to_string();
            assert!(e.contains("x.trace:3: the file is damaged here") && e.contains(line), "{e}");
            assert!(e.contains("record it again") && e.contains("keep the 2 lines before"), "{e}");
        }
        assert!(parse(&format!("{MAGIC}\nl 0 5 put a 1\n")).unwrap_err().to_string().contains("no operations"));
        assert!(!is_trace(Path::new("/nowhere")));
    }
}
