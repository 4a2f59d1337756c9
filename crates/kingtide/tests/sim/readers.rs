//! Snapshots and iterators that stay open while everything else goes on, and change streams.

use crate::sim::history::{Contents, FOREVER, Op, What};
use crate::sim::world::World;
use kingtide::{ChangeKind, ChangeRecord, ChangeStream, ChangeStreamOptions, Cursor, ErrorKind};
use kingtide::{ReadOptions, Result, Snapshot};
use kingtide_base::clock::unix_ms_of_time;

/// Snapshots and iterators open at once.
const OPEN: usize = 4;

#[derive(Default)]
pub struct Readers {
    open: Vec<Reader>,
    stream: Option<Stream>,
}

enum Reader {
    Snapshot {
        snapshot: Snapshot,
        /// Events when it was taken.
        began: usize,
    },
    Iterator(Box<Walk>),
}

/// An iterator on its way, forward or backward.
struct Walk {
    it: Cursor,
    backward: bool,
    /// What was visible when it was opened.
    expected: Contents,
    found: Contents,
}

struct Stream {
    stream: ChangeStream,
    durable_only: bool,
    /// The last event that it showed or passed over.
    at: usize,
}

impl World {
    /// Opens a reader, or takes one a bit further.
    pub fn snapshot_step(&mut self) -> Result<()> {
        let at = self.rng.below(OPEN as u64) as usize;
        let Some(reader) = (at < self.readers.open.len()).then(|| self.readers.open.swap_remove(at)) else {
            let reader = self.open_reader()?;
            self.readers.open.push(reader);
            return Ok(());
        };
        match reader {
            Reader::Snapshot { snapshot, began } => {
                self.check_snapshot(&snapshot, began)?;
                if !self.rng.one_in(3) {
                    self.readers.open.push(Reader::Snapshot { snapshot, began });
                }
            }
            Reader::Iterator(mut walk) => {
                if self.walk_on(&mut walk)? {
                    self.readers.open.push(Reader::Iterator(walk));
                }
            }
        }
        Ok(())
    }

    fn open_reader(&mut self) -> Result<Reader> {
        if self.rng.one_in(2) {
            return Ok(Reader::Snapshot { snapshot: self.db().snapshot(), began: self.begun() });
        }
        let (no, family) = self.any_family();
        let mut it = family.cursor_with(ReadOptions::new().readahead(self.rng.one_in(2)))?;
        let backward = self.rng.one_in(3);
        if backward {
            it.seek_to_last()
        } else {
            it.seek_to_first()
        }
        let expected = self.now[&no].visible(self.clock_ms());
        Ok(Reader::Iterator(Box::new(Walk { it, backward, expected, found: Contents::new() })))
    }

    /// Everything that a snapshot shows is as it was.
    fn check_snapshot(&mut self, snapshot: &Snapshot, began: usize) -> Result<()> {
        let ((no, family), now) = (self.any_family(), self.clock_ms());
        if self.history.is_cloned_after(no, began) {
            return Ok(());
        }
        let expected = self.history.state(no, began, began, self.epoch(), 0).visible(now);
        let mut it = family.cursor_with(ReadOptions::new().snapshot(snapshot))?;
        let mut found = Contents::new();
        it.seek_to_first();
        while it.valid() {
            let key = it.key().to_vec();
            found.insert(key, it.value()?.to_vec());
            it.next();
        }
        it.status()?;
        assert!(found == expected, "a snapshot of after event {began} shows something else");
        for _ in 0..3 {
            let key = self.key();
            let found = snapshot.of(&family).get(&key)?;
            assert!(found.as_deref() == expected.get(&key).map(Vec::as_slice), "{key:?} at a snapshot");
        }
        Ok(())
    }

    /// A few entries further. False at the end, where all of it is compared.
    fn walk_on(&mut self, walk: &mut Walk) -> Result<bool> {
        for _ in 0..self.rng.below(20) {
            if !walk.it.valid() {
                break;
            }
            let key = walk.it.key().to_vec();
            let value = walk.it.value()?.to_vec();
            let in_order = match walk.backward {
                true => walk.found.first_key_value().is_none_or(|(last, _)| key < *last),
                false => walk.found.last_key_value().is_none_or(|(last, _)| key > *last),
            };
            assert!(in_order, "an iterator goes back");
            walk.found.insert(key, value);
            if walk.backward { walk.it.prev() } else { walk.it.next() }
        }
        if walk.it.valid() {
            return Ok(true);
        }
        walk.it.status()?;
        // What expired on the way may be missing. Without expiry in the scenario, nothing may.
        let expires = self.plan.mix.ttl > 0;
        let missing = walk.expected.keys().filter(|k| !walk.found.contains_key(*k)).count();
        assert!(missing == 0 || expires, "{missing} entries missing from an iterator");
        assert!(walk.found.iter().all(|(k, v)| walk.expected.get(k) == Some(v)), "an iterator shows something else");
        Ok(false)
    }

    /// Reads on in a change stream and compares it with the history.
    pub fn stream_step(&mut self) -> Result<()> {
        let Some(mut stream) = self.readers.stream.take() else {
            let options = ChangeStreamOptions::new().durable_only(self.rng.one_in(2)).show_unlogged(true);
            let stream = self.db().changes_with(self.db().latest_sequence(), options)?;
            let at = self.begun();
            self.readers.stream = Some(Stream { stream, durable_only: options.durable_only, at });
            return Ok(());
        };
        for _ in 0..1 + self.rng.below(40) {
            match stream.stream.next() {
                Ok(Some(record)) => self.check_record(&mut stream, &record),
                Ok(None) => {
                    self.check_stream_end(&stream);
                    break;
                }
                Err(e) if e.kind() == ErrorKind::TooOld => return Ok(()), // flushed and given up: begin anew
                Err(e) => return Err(e),
            }
        }
        self.readers.stream = Some(stream);
        Ok(())
    }

    /// The events after `at` that a stream shows.
    fn shown_after(&self, at: usize) -> impl Iterator<Item = usize> {
        let shown = |n: &usize| {
            let event = &self.history.events[n - 1];
            let shows = matches!(event.what, What::Commit { logged: true, .. } | What::End(_, true));
            event.void_from.is_none() && shows
        };
        (at + 1..=self.history.events.len()).filter(shown)
    }

    /// Whether an event commits a prepared transaction all of whose families are gone now.
    fn wrote_to_dropped_families(&self, n: usize) -> bool {
        let What::End(xid, true) = self.history.events[n - 1].what else { return false };
        let there = |op: &Op| self.families.values().any(|f| f.0 == op.family());
        !self.history.prepared(xid).iter().any(there)
    }

    fn check_record(&self, stream: &mut Stream, record: &ChangeRecord) {
        let last = record.last_sequence;
        if record.is_unlogged() {
            let events = &self.history.events;
            let passed = (stream.at + 1..=events.len()).filter(|n| {
                let event = &events[n - 1];
                event.void_from.is_none() && event.sequence <= last && event.sequence > 0
            });
            let logged =
                |n: &usize| matches!(events[n - 1].what, What::Commit { logged: true, .. } | What::End(_, true));
            let shown = passed.clone().find(|n| logged(n) && !self.wrote_to_dropped_families(*n));
            assert!(
                shown.is_none() && passed.count() > 0,
                "a stream says that commits up to {last} are not in the log, event {shown:?} among them"
            );
            return;
        }
        let next = self.shown_after(stream.at).find(|n| {
            // A transaction in doubt of which no family was left commits nothing.
            self.history.events[n - 1].sequence == last || !self.wrote_to_dropped_families(*n)
        });
        let n = next.unwrap_or_else(|| panic!("a stream shows a commit {last} that there was not"));
        let event = &self.history.events[n - 1];
        assert_eq!(event.sequence, last, "a stream shows another commit than event {n}, which comes next");
        let shown: Vec<_> = record.operations().collect();
        let same = |op: &&Op, change: &kingtide::Change<'_>| {
            let (kind, key, value, expiry) = match op {
                Op::Put(_, key, value, expiry) => (ChangeKind::Put, key, value.as_slice(), *expiry),
                Op::Delete(_, key) => (ChangeKind::Delete, key, &[][..], FOREVER),
                Op::SingleDelete(_, key) => (ChangeKind::SingleDelete, key, &[][..], FOREVER),
                Op::DeleteRange(_, from, to) | Op::DeletePrefix(_, from, to) => {
                    (ChangeKind::DeleteRange, from, to.as_slice(), FOREVER)
                }
            };
            let expires = change.expires_at.map_or(FOREVER, unix_ms_of_time);
            (kind, key.as_slice(), value, expiry) == (change.kind, change.key, change.value, expires)
        };
        let (ops, whole) = match &event.what {
            What::End(xid, _) => (self.history.prepared(*xid), false), // without those to families that were dropped
            What::Commit { ops, .. } => (ops.as_slice(), true),
            What::Ingest(_) | What::Clone(..) | What::Prepare(..) => unreachable!("not shown"),
        };
        let mut rest = ops.iter();
        let all = shown.iter().all(|change| rest.by_ref().any(|op| same(&op, change)));
        assert!(all && (!whole || shown.len() == ops.len()), "a stream shows event {n} otherwise than it was");
        stream.at = n;
        if stream.durable_only {
            // It may be handed to another machine, so it must survive here.
            self.edit(|p| p.synced(n, false));
        }
    }

    fn check_stream_end(&self, stream: &Stream) {
        if !stream.durable_only {
            let next = self.shown_after(stream.at).find(|n| !self.wrote_to_dropped_families(*n));
            assert_eq!(next, None, "a stream ends before the last commit");
        }
    }
}
