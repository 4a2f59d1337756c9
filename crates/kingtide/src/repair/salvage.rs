//! Merges what is left of a family and gives the newest version of each key to the new database.

use super::log::SalvagedOperations;
use super::plan::FamilyPlan;
use super::report::{FamilyRepair, KeyGap, Repair};
use super::source::{Source, TableSource};
use super::target::NewDatabase;
use crate::compact::Outputs;
use crate::rangedel::RangeTombstones;
use kingtide_base::key::{EXPIRY_FLAG, MAX_SEQ, split_expiry};
use kingtide_base::names::{klog_path, vlog_path};
use kingtide_base::{Error, ErrorKind, KeyOrder, Kind, Result, SeqNo, Tag};
use kingtide_table::{ValuePointer, Vlog};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

/// Values of more bytes than this are moved in pieces.
const IN_MEMORY: u64 = 8 << 20;

/// Writes what is left of `family` into `target`.
pub(super) fn copy_family(
    repair: &mut Repair<'_, '_>,
    target: &mut NewDatabase<'_>,
    family: &FamilyPlan,
    log: &SalvagedOperations,
) -> Result<()> {
    let mut report = family.report();
    let (mut sources, ranges) = open_sources(repair, family, log, &mut report)?;
    target.add_family(family, |out| merge(repair, family, &mut sources, &ranges, out, &mut report))?;
    for source in &mut sources {
        let Source::Table(t) = source else { continue };
        t.damage.iter().for_each(|e| repair.report.unreadable(repair.dir, e));
        report.stale.append(&mut t.lost.clone());
        report.lost.append(&mut t.lost);
    }
    // What was lost of the log below what is flushed is in tables. Of what keys the rest was, nothing tells.
    for gap in repair.report.log_gaps.iter().filter(|gap| gap.to.is_none_or(|to| to - 1 > family.flushed)) {
        let anywhere = KeyGap { path: Some(gap.path.clone()), offset: Some(gap.offset), ..KeyGap::default() };
        report.stale.push(anywhere.clone());
        report.lost.push(anywhere);
    }
    repair.report.families.push(report);
    Ok(())
}

/// Gives the newest version of each key to `out`.
fn merge(
    repair: &mut Repair<'_, '_>,
    family: &FamilyPlan,
    sources: &mut [Source],
    ranges: &RangeTombstones,
    out: &mut Outputs<'_>,
    report: &mut FamilyRepair,
) -> Result<()> {
    let mut merge = Merge::new(&family.order, sources);
    let mut out = Output { out, vlogs: HashMap::new() };
    let (mut key, mut value) = (Vec::new(), Vec::new());
    while let Some(newest) = merge.least() {
        key.clear();
        key.extend_from_slice(sources[newest].key());
        let tag = sources[newest].tag();
        let mut settled = tag.is_tombstone() || ranges.max_covering(&key, MAX_SEQ) > tag.seq();
        let gone = settled;
        // Older versions are passed over. The same version may be in two tables, if one was to replace the other. The newest
        // is passed even if the order does not say that its key equals itself.
        let mut next = Some(newest);
        while let Some(i) = next {
            if !settled && sources[i].tag().seq() == tag.seq() {
                match out.put(repair, &key, sources[i].tag(), sources[i].value(), &mut value) {
                    Ok(()) => settled = true,
                    Err(Lost::Value(e)) => repair.report.unreadable(repair.dir, &e),
                    Err(Lost::Write(e)) => return Err(e),
                }
            }
            repair.advance(sources[i].next())?;
            merge.sift_down(0, sources);
            next = merge.least().filter(|i| family.order.compare(sources[*i].key(), &key).is_eq());
        }
        if !settled {
            report.lost_keys.push(key.clone());
        } else if !gone {
            report.kept += 1;
        }
    }
    Ok(())
}

/// Opens all that a family has, each source on its first entry, and puts its range tombstones together.
fn open_sources(
    repair: &mut Repair<'_, '_>,
    family: &FamilyPlan,
    log: &SalvagedOperations,
    report: &mut FamilyRepair,
) -> Result<(Vec<Source>, RangeTombstones)> {
    let mut sources = Vec::new();
    let mut items: Vec<(Vec<u8>, Vec<u8>, SeqNo)> = Vec::new();
    for table in &family.tables {
        match TableSource::open(repair, table, &family.order) {
            Ok(mut t) => {
                report.tables += 1;
                items.extend(t.ranges.drain(..).map(|r| (r.start, r.end, r.seq)));
                if t.ranges_lost {
                    report.stale.push(t.range());
                }
                repair.advance(t.next())?;
                sources.push(Source::Table(Box::new(t)));
            }
            Err(e) => {
                repair.report.unreadable(&klog_path(repair.dir, table.id), &e);
                let gap = table.meta.as_ref().map_or_else(KeyGap::default, |m| KeyGap {
                    lo: Some(m.min_key.clone()),
                    hi: Some(m.max_key.clone()),
                    ..KeyGap::default()
                });
                let gap = KeyGap { path: Some(klog_path(repair.dir, table.id)), ..gap };
                report.stale.push(gap.clone());
                report.lost.push(gap);
            }
        }
    }
    for memtable in family.id.and_then(|id| log.memtables.get(&id)).into_iter().flatten() {
        items.extend(memtable.range_list().iter().map(|f| (f.start.clone(), f.end.clone(), f.seq)));
        let mut it = memtable.points().iter();
        it.first();
        sources.push(Source::Log(Box::new(it)));
    }
    let ranges = RangeTombstones::build(&family.order, items.iter().map(|(s, e, seq)| (&s[..], &e[..], *seq)));
    Ok((sources, ranges))
}

/// A heap of the sources that are on an entry, the least (key, then newest) on top.
struct Merge<'o> {
    order: &'o KeyOrder,
    heap: Vec<usize>,
}

impl<'o> Merge<'o> {
    fn new(order: &'o KeyOrder, sources: &[Source]) -> Merge<'o> {
        let heap = (0..sources.len()).filter(|i| sources[*i].valid()).collect();
        let mut merge = Merge { order, heap };
        for at in (0..merge.heap.len() / 2).rev() {
            merge.sift_down(at, sources);
        }
        merge
    }

    fn least(&self) -> Option<usize> {
        self.heap.first().copied()
    }

    fn compare(&self, at_a: usize, at_b: usize, sources: &[Source]) -> Ordering {
        let (a, b) = (&sources[self.heap[at_a]], &sources[self.heap[at_b]]);
        // Of a version that a table and the log have, the table's comes first: the log may point to where its value was once.
        let by_key = self.order.compare(a.key(), b.key()).then(b.tag().cmp(&a.tag()));
        by_key.then(self.heap[at_a].cmp(&self.heap[at_b]))
    }

    /// Puts what is at `at` where it belongs, after it moved on; a source at its end leaves.
    fn sift_down(&mut self, mut at: usize, sources: &[Source]) {
        if !sources[self.heap[at]].valid() {
            self.heap.swap_remove(at);
        }
        loop {
            let children = [2 * at + 1, 2 * at + 2];
            let smaller = children.into_iter().filter(|c| *c < self.heap.len());
            let Some(child) = smaller.min_by(|a, b| self.compare(*a, *b, sources)) else { return };
            if self.compare(at, child, sources).is_le() {
                return;
            }
            self.heap.swap(at, child);
            at = child;
        }
    }
}

/// Why a key is not in the new database.
enum Lost {
    /// Its value cannot be read.
    Value(Error),
    /// The new database cannot be written.
    Write(Error),
}

/// Writes into the new database.
struct Output<'o, 'c> {
    out: &'o mut Outputs<'c>,
    vlogs: HashMap<u64, Arc<Vlog>>,
}

impl Output<'_, '_> {
    fn put(
        &mut self,
        repair: &mut Repair<'_, '_>,
        key: &[u8],
        tag: Tag,
        stored: &[u8],
        value: &mut Vec<u8>,
    ) -> std::result::Result<(), Lost> {
        let broken = |what: &str| Lost::Value(Error::corruption(what));
        let (_, rest) = split_expiry(tag, stored).ok_or_else(|| broken("an entry lacks its expiry"))?;
        let mut kind = tag.0 as u8;
        let mut stored = stored;
        match tag.kind() {
            Some(Kind::Put) => {}
            Some(Kind::PutPointer) => {
                let p = ValuePointer::decode(rest).ok_or_else(|| broken("an entry's value pointer cannot be read"))?;
                let vlog = self.open(repair, p.file_id).map_err(Lost::Value)?;
                let head = &stored[..stored.len() - rest.len()];
                if p.raw_len > IN_MEMORY {
                    decode(&vlog, &p).map_err(Lost::Value)?; // before any of it is written
                    repair.advance(p.stored_len).map_err(Lost::Write)?;
                    return self.out.add_moved(key, tag, head, (&vlog, &p)).map_err(Lost::Write);
                }
                let mut raw = Vec::new();
                vlog.read(&p, &mut raw).map_err(Lost::Value)?;
                value.clear();
                value.extend_from_slice(head);
                value.extend_from_slice(&raw);
                stored = value;
                kind = Kind::Put as u8 | (kind & EXPIRY_FLAG);
                repair.advance(p.stored_len).map_err(Lost::Write)?;
            }
            _ => return Err(broken("an entry of unknown kind")),
        }
        self.out.add(key, Tag(tag.seq() << 8 | kind as u64), stored, true).map_err(Lost::Write)
    }

    fn open(&mut self, repair: &mut Repair<'_, '_>, id: u64) -> Result<Arc<Vlog>> {
        if let Some(vlog) = self.vlogs.get(&id) {
            return Ok(vlog.clone());
        }
        let path = vlog_path(repair.dir, id);
        let file = repair.files.open(&path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => Error::corruption("a value-log file is missing").at_path(&path),
            _ => e,
        })?;
        let (vlog, damage) = Vlog::open_damaged(file, id)?;
        // One that commits were writing has no footer yet.
        if let Some(e) = damage.filter(|_| !repair.unfinished.contains(&id)) {
            repair.report.unreadable(&path, &e);
        }
        self.vlogs.insert(id, vlog.clone());
        Ok(vlog)
    }
}

/// Decodes a value chunk by chunk. Checksums alone would not show that it can be moved so.
fn decode(vlog: &Arc<Vlog>, p: &ValuePointer) -> Result<()> {
    let (mut reader, mut at) = (vlog.reader(*p)?, 0);
    while at < p.raw_len {
        match reader.chunk_from(at)?.len() {
            0 => return Err(Error::corruption("a value is shorter than its pointer says")),
            len => at += len as u64,
        }
    }
    Ok(())
}
