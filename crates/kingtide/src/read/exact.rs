//! One version of a key, by the sequence number that its commit gave it: what a change stream asks for when the value log
//! that the log names is gone, because the value was moved.

use crate::family::{ReadContext, View};
use crate::read::get::{found, with_table_scratch};
use crate::read::value::PinnedValue;
use kingtide_base::key::split_expiry;
use kingtide_base::{Error, Result, SeqNo, Tag};
use kingtide_table::TableValue;
use kingtide_versions::FileMeta;

/// The value that `key` was given at `seq`, whether or not anything hides it by now. `None` when that version is in no
/// memtable and no table of the view any more, or was no put.
///
/// No pointer changes its sequence number, and the first source that holds one at or below `seq` holds the newest of them, so this costs a point
/// read. Short values that stand beside their keys get other numbers (`compact::raise`), but none that is long enough to have been moved there from
/// a value log.
///
/// # Errors
/// `Io` and `Corruption` with the file.
pub(crate) fn version(view: &View, key: &[u8], seq: SeqNo, ctx: &ReadContext) -> Result<Option<PinnedValue>> {
    let upper = Tag::seek(seq);
    let in_memory = view.memtables().find_map(|memtable| memtable.points().get(key, upper));
    if let Some((tag, stored)) = in_memory {
        if tag.seq() != seq {
            return Ok(None);
        }
        let Some(value) = put_value(tag, stored)? else { return Ok(None) };
        return found(tag, value, None)?.into_pinned(ctx).map(Some);
    }
    let (head, hash) = (view.order.head(key), view.order.hash(key));
    let holds = |meta: &FileMeta| meta.min_seq <= seq && seq <= meta.max_seq;
    with_table_scratch(|scratch| {
        for run in &view.runs {
            for slot in run.files[run.candidates(key, head)].iter().filter(|s| holds(&s.meta)) {
                let Some((tag, value)) = slot.with(|t| t.get(key, hash, upper, scratch))? else { continue };
                if tag.seq() != seq {
                    continue;
                }
                let stored = match &value {
                    TableValue::Scratch(at) => &scratch.bytes()[at.clone()],
                    TableValue::Cached(block, at) => &block[at.clone()],
                };
                let Some(value) = put_value(tag, stored)? else { return Ok(None) };
                return found(tag, value, Some(&slot.handle))?.into_pinned(ctx).map(Some);
            }
        }
        Ok(None)
    })
}

/// Returns what a put holds behind its expiry, expired or not; `None` for a tombstone, which an expired put becomes in a merge.
fn put_value(tag: Tag, stored: &[u8]) -> Result<Option<&[u8]>> {
    if tag.is_tombstone() {
        return Ok(None);
    }
    let (_, value) = split_expiry(tag, stored)
        .ok_or_else(|| Error::corruption(format!("entry {tag:?} is too short to hold its expiry")))?;
    Ok(Some(value))
}
