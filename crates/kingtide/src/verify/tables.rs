//! Tables: each by itself, and the order of versions across the runs of a family.
//!
//! Each run has a cursor that checks what it passes; the cursors are merged by key. So every block is read once, and for
//! each key it is seen which run holds which of its versions.

use super::checker::Checker;
use super::layout::{FamilyFiles, Subject, open_file};
use super::report::{Problem, ProblemKind, Severity};
use super::values::ValueCheck;
use kingtide_base::key::split_expiry;
use kingtide_base::names::klog_path;
use kingtide_base::{KeyOrder, Kind, Result, SeqNo, Tag};
use kingtide_table::{ReadScratch, Table, ValuePointer, VlogRef};
use kingtide_versions::{FileMeta, LiveValues, Run};
use std::path::PathBuf;
use std::sync::Arc;

/// What all tables of one family need.
struct FamilyCheck<'f> {
    family: &'f FamilyFiles,
    subject: &'f Subject,
    values: ValueCheck,
    live: &'f mut LiveValues,
}

/// Checks all tables of a family.
pub(super) fn check_family(
    checker: &mut Checker<'_, '_>,
    family: &FamilyFiles,
    subject: &Subject,
    live: &mut LiveValues,
) -> Result<()> {
    checker.report.counts.families += 1;
    if let Err(text) = family.version.check(&family.order) {
        let problem = Problem::new(Severity::Error, ProblemKind::Order, text).family(&family.name);
        checker.problem(problem.at(checker.dir));
    }
    let mut shared = FamilyCheck { family, subject, values: ValueCheck::default(), live };
    if !family.order.is_known() {
        return check_unordered(checker, &mut shared);
    }
    let mut cursors: Vec<RunCursor<'_>> = (family.version.runs())
        .map(|(level, run)| RunCursor { level, run, next_file: 0, file: None, key: Vec::new(), tag: Tag(0) })
        .collect();
    for c in &mut cursors {
        c.next(checker, &mut shared)?;
    }
    let mut key = Vec::new();
    while let Some(least) = least(&cursors, &family.order) {
        key.clear();
        key.extend_from_slice(&cursors[least].key);
        // Whatever a later run holds of the key must be older than all of it in earlier runs.
        let mut floor = SeqNo::MAX;
        for (i, c) in cursors.iter_mut().enumerate() {
            // The least key is passed even if the order does not say that it equals itself.
            let mut has_key = i == least || c.is_at(&key, &family.order);
            if has_key && c.tag.seq() >= floor {
                c.tell_order(checker, &family.name, &key, floor);
            }
            while has_key {
                floor = floor.min(c.tag.seq());
                c.next(checker, &mut shared)?;
                has_key = c.is_at(&key, &family.order);
            }
        }
    }
    Ok(())
}

/// Checks all tables of a family whose order is not known: each by itself, and nothing that needs the order.
fn check_unordered(checker: &mut Checker<'_, '_>, shared: &mut FamilyCheck<'_>) -> Result<()> {
    let family = shared.family;
    let text = format!(
        "key order '{}' was not given, so these were not checked: the order of keys and versions in tables and across them, the \
         smallest and largest key of each table, and lookups by index",
        family.order.name()
    );
    let problem = Problem::new(Severity::Warning, ProblemKind::UnknownOrder, text).family(&family.name);
    checker.problem(problem.at(checker.dir));
    let (mut key, mut tag) = (Vec::new(), Tag(0));
    for (_, meta) in family.version.files() {
        let Some(mut file) = OpenFile::open(checker, family, meta) else { continue };
        while file.next(checker, shared, &mut key, &mut tag)? {}
        file.finish(checker, shared);
    }
    Ok(())
}

fn least(cursors: &[RunCursor<'_>], order: &KeyOrder) -> Option<usize> {
    let on_entry = (0..cursors.len()).filter(|i| cursors[*i].file.is_some());
    on_entry.min_by(|a, b| order.compare(&cursors[*a].key, &cursors[*b].key))
}

/// A place in a run. On an entry exactly if a file is open.
struct RunCursor<'v> {
    level: usize,
    run: &'v Run,
    next_file: usize,
    file: Option<OpenFile>,
    key: Vec<u8>,
    tag: Tag,
}

impl RunCursor<'_> {
    fn is_at(&self, key: &[u8], order: &KeyOrder) -> bool {
        self.file.is_some() && order.compare(&self.key, key).is_eq()
    }

    /// Moves to the next entry of the run that can be read.
    fn next(&mut self, checker: &mut Checker<'_, '_>, shared: &mut FamilyCheck<'_>) -> Result<()> {
        loop {
            if let Some(file) = &mut self.file {
                if file.next(checker, shared, &mut self.key, &mut self.tag)? {
                    return Ok(());
                }
                if let Some(done) = self.file.take() {
                    done.finish(checker, shared);
                }
            }
            let Some(meta) = self.run.files.get(self.next_file) else { return Ok(()) };
            self.next_file += 1;
            self.file = OpenFile::open(checker, shared.family, meta);
        }
    }

    #[cold]
    fn tell_order(&self, checker: &mut Checker<'_, '_>, family: &str, key: &[u8], floor: SeqNo) {
        let text = format!(
            "run {} of level {} holds a version with sequence {}, newer than one with {floor} in an earlier run",
            self.run.id,
            self.level,
            self.tag.seq()
        );
        let mut problem = Problem::new(Severity::Error, ProblemKind::Order, text).family(family).keys(key, key);
        if let Some(file) = &self.file {
            problem = problem.at(&file.path).offset(file.table.block_place(file.block).start);
        }
        checker.problem(problem);
    }
}

/// What was seen of a table's entries.
#[derive(Default)]
struct Tally {
    entries: u64,
    tombstones: u64,
    raw_bytes: u64,
    min_key: Option<Vec<u8>>,
    seqs: Option<(SeqNo, SeqNo)>,
    min_expiry_ms: u64,
    refs: LiveValues,
}

/// A table that is being read.
struct OpenFile {
    meta: Arc<FileMeta>,
    path: PathBuf,
    table: Arc<Table>,
    scratch: ReadScratch,
    /// The block in the scratch, and the next entry of it.
    block: usize,
    loaded: bool,
    at: usize,
    /// The last entry; none yet while the tally is empty.
    last_key: Vec<u8>,
    last_tag: Tag,
    tally: Tally,
    /// Something could not be read, so totals say nothing.
    damaged: bool,
}

impl OpenFile {
    fn open(checker: &mut Checker<'_, '_>, family: &FamilyFiles, meta: &Arc<FileMeta>) -> Option<OpenFile> {
        let path = klog_path(checker.dir, meta.id);
        let file = open_file(checker, &path, meta.size, Some(&family.name))?;
        let (cache, stats) = (checker.cache.clone(), checker.stats.clone());
        let tell = |checker: &mut Checker<'_, '_>, e| {
            let problem = Problem::of(ProblemKind::Structure, &e).at(&path).family(&family.name);
            checker.problem(problem.keys(&meta.min_key, &meta.max_key));
        };
        match Table::open_damaged(file, meta.table_id(), family.order.clone(), cache, stats) {
            Ok((table, damage)) => {
                let damaged = !damage.is_empty();
                damage.into_iter().for_each(|e| tell(checker, e));
                Some(OpenFile {
                    meta: meta.clone(),
                    path,
                    table,
                    scratch: ReadScratch::new(),
                    block: 0,
                    loaded: false,
                    at: 0,
                    last_key: Vec::new(),
                    last_tag: Tag(0),
                    tally: Tally::default(),
                    damaged,
                })
            }
            Err(e) => {
                tell(checker, e);
                None
            }
        }
    }

    /// Moves to the next readable entry, checks it, and gives its key and tag; false at the end of the table.
    fn next(
        &mut self,
        checker: &mut Checker<'_, '_>,
        shared: &mut FamilyCheck<'_>,
        key: &mut Vec<u8>,
        tag: &mut Tag,
    ) -> Result<bool> {
        loop {
            if !self.loaded {
                if self.block >= self.table.blocks() {
                    return Ok(false);
                }
                let place = self.table.block_place(self.block);
                checker.advance(place.end - place.start)?;
                if let Err(e) = self.table.read_block(self.block, &mut self.scratch) {
                    self.tell_block(checker, shared.family, &e);
                    self.block += 1;
                    continue;
                }
                checker.report.counts.blocks += 1;
                (self.loaded, self.at) = (true, 0);
            }
            if self.at >= self.scratch.entries() {
                self.loaded = false;
                self.block += 1;
                continue;
            }
            let entry = match self.scratch.entry(self.at) {
                Ok(entry) => entry,
                Err(e) => {
                    let e = self.table.error_at_block(e, self.block);
                    self.tell_block(checker, shared.family, &e);
                    self.loaded = false;
                    self.block += 1;
                    continue;
                }
            };
            self.at += 1;
            let value = entry.value_range();
            key.clear();
            key.extend_from_slice(entry.key(self.scratch.bytes()));
            *tag = self.table.seen(entry.tag);
            self.check_entry(checker, shared, key, *tag, value)?;
            return Ok(true);
        }
    }

    fn tell(&mut self, checker: &mut Checker<'_, '_>, family: &str, kind: ProblemKind, key: &[u8], text: &str) {
        let problem = Problem::new(Severity::Error, kind, text).at(&self.path).family(family);
        checker.problem(problem.offset(self.table.block_place(self.block).start).keys(key, key));
    }

    /// The keys of a block that cannot be read lie between what was read before it and what can be read behind it.
    #[cold]
    fn tell_block(&mut self, checker: &mut Checker<'_, '_>, family: &FamilyFiles, e: &kingtide_base::Error) {
        self.damaged = true;
        let lo = if self.tally.entries == 0 { &self.meta.min_key } else { &self.last_key };
        let mut other = ReadScratch::new();
        let behind = (self.block + 1..self.table.blocks()).find_map(|i| {
            self.table.read_block(i, &mut other).ok()?;
            let first = other.entry(0).ok()?;
            Some(first.key(other.bytes()).to_vec())
        });
        let hi = behind.as_ref().unwrap_or(&self.meta.max_key);
        let problem = Problem::of(ProblemKind::Block, e).at(&self.path).family(&family.name);
        checker.problem(problem.keys(lo, hi));
    }

    fn check_entry(
        &mut self,
        checker: &mut Checker<'_, '_>,
        shared: &mut FamilyCheck<'_>,
        key: &[u8],
        tag: Tag,
        value: std::ops::Range<usize>,
    ) -> Result<()> {
        let (family, order) = (&shared.family.name, &shared.family.order);
        checker.report.counts.entries += 1;
        let first = self.tally.entries == 0;
        if order.is_known() {
            if !first && order.compare(&self.last_key, key).then(tag.cmp(&self.last_tag)).is_ge() {
                self.tell(checker, family, ProblemKind::Order, key, "entries out of order");
            }
            if let Some(text) = self.table.check_lookup(key, self.block) {
                self.tell(checker, family, ProblemKind::Lookup, key, text);
            }
        }
        let t = &mut self.tally;
        t.entries += 1;
        t.raw_bytes += (key.len() + value.len()) as u64;
        t.min_key.get_or_insert_with(|| key.to_vec());
        let (lo, hi) = t.seqs.unwrap_or((tag.seq(), tag.seq()));
        t.seqs = Some((lo.min(tag.seq()), hi.max(tag.seq())));
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.last_tag = tag;

        let Some((expiry, rest)) = split_expiry(tag, &self.scratch.bytes()[value]) else {
            self.tell(checker, family, ProblemKind::Block, key, "an entry lacks the expiry that its tag requires");
            return Ok(());
        };
        if let Some(ms) = expiry
            && (t.min_expiry_ms == 0 || ms < t.min_expiry_ms)
        {
            t.min_expiry_ms = ms.max(1);
        }
        match tag.kind() {
            Some(Kind::Delete | Kind::SingleDelete) => t.tombstones += 1,
            Some(Kind::Put) if !tag.is_packed() => {}
            Some(Kind::PutPointer) => match ValuePointer::decode(rest) {
                Some(p) => return self.check_pointer(checker, shared, key, &p),
                None => self.tell(checker, family, ProblemKind::Block, key, "an entry's value pointer cannot be read"),
            },
            _ => self.tell(checker, family, ProblemKind::Block, key, "an entry of unknown kind"),
        }
        Ok(())
    }

    fn check_pointer(
        &mut self,
        checker: &mut Checker<'_, '_>,
        shared: &mut FamilyCheck<'_>,
        key: &[u8],
        p: &ValuePointer,
    ) -> Result<()> {
        let one = VlogRef { file_id: p.file_id, values: 1, bytes: p.stored_len };
        self.tally.refs.add(&one);
        shared.live.add(&one);
        if shared.subject.vlogs.get(p.file_id).is_some_and(|v| v.family != shared.family.id) {
            let text = "an entry points into a value log of another family";
            self.tell(checker, &shared.family.name, ProblemKind::Accounting, key, text);
        }
        checker.report.counts.values += 1;
        if let Err(e) = shared.values.check(checker, p) {
            let problem = Problem::of(ProblemKind::Value, &e).at(&self.path);
            checker.problem(problem.family(&shared.family.name).keys(key, key));
        }
        checker.advance(p.stored_len)
    }

    /// Compares the entries with the table's properties, and those with the manifest.
    fn finish(self, checker: &mut Checker<'_, '_>, shared: &FamilyCheck<'_>) {
        if self.damaged {
            return;
        }
        let (t, info, meta) = (&self.tally, self.table.info(), &*self.meta);
        let order = &shared.family.order;
        let ranges = self.table.range_tombstones();
        let mut lowest = t.min_key.as_deref();
        let mut highest = (t.entries > 0).then_some(&self.last_key[..]);
        let mut seqs = t.seqs;
        for r in ranges {
            lowest = Some(lowest.filter(|k| order.compare(k, &r.start).is_le()).unwrap_or(&r.start));
            highest = Some(highest.filter(|k| order.compare(k, &r.end).is_ge()).unwrap_or(&r.end));
            seqs = Some(seqs.map_or((r.seq, r.seq), |(lo, hi)| (lo.min(r.seq), hi.max(r.seq))));
        }
        let same_key = |a: Option<&[u8]>, b: &[u8]| a.map_or(b.is_empty(), |a| order.compare(a, b).is_eq());
        let (min_seq, max_seq) = seqs.unwrap_or_default();
        let stated = &info.vlog_refs;
        let by_table = [
            ("number of entries", t.entries == info.entries),
            ("number of tombstones", t.tombstones == info.tombstones),
            ("number of range tombstones", ranges.len() as u64 == info.range_tombstones),
            ("bytes", t.raw_bytes == info.raw_bytes),
            ("smallest key", !order.is_known() || same_key(lowest, &info.min_key)),
            ("largest key", !order.is_known() || same_key(highest, &info.max_key)),
            ("sequence numbers", seqs.is_none() || (min_seq, max_seq) == (info.min_seq, info.max_seq)),
            ("earliest expiry", t.min_expiry_ms == info.min_expiry_ms),
            ("value-log references", stated.iter().eq(t.refs.iter())),
        ];
        let mut meta_refs = meta.vlog_refs.clone();
        meta_refs.sort_unstable_by_key(|r| r.file_id);
        let by_manifest = [
            ("number of entries", meta.entries == info.entries),
            ("number of tombstones", meta.tombstones == info.tombstones),
            ("number of range tombstones", meta.range_tombstones == info.range_tombstones),
            ("bytes", meta.raw_bytes == info.raw_bytes),
            ("smallest key", meta.min_key == info.min_key),
            ("largest key", meta.max_key == info.max_key),
            ("sequence numbers", (meta.min_seq, meta.max_seq) == (info.min_seq, info.max_seq)),
            ("earliest expiry", meta.min_expiry_ms == info.min_expiry_ms),
            ("value-log references", meta_refs.iter().eq(t.refs.iter())),
        ];
        let mut tell = |source: &str, (what, same): (&str, bool)| {
            if !same {
                let text = format!("{source} a different {what} from that in the table");
                let problem = Problem::new(Severity::Error, ProblemKind::Metadata, text).at(&self.path);
                checker.problem(problem.family(&shared.family.name).keys(&meta.min_key, &meta.max_key));
            }
        };
        by_table.into_iter().for_each(|c| tell("the table's properties state", c));
        by_manifest.into_iter().for_each(|c| tell("the manifest states", c));
    }
}
