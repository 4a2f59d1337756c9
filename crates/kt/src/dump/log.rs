//! Segments of the write-ahead log.

use super::manifest::describe;
use super::under_way::Dump;
use crate::error::Result;
use crate::format::escape;
use crate::output::things;
use crate::txn::isolation;
use kingtide::internal::DumpedRecord;
use kingtide::{Change, ChangeKind, Error};
use kingtide_base::clock::unix_ms_of_time;
use kingtide_wal::{SegmentPart, dump_segment};
use serde_json::{Value, json};
use std::path::Path;

/// Prints a segment.
pub fn dump(dump: &mut Dump<'_>, file: &Path) -> Result<()> {
    let fs = dump.fs.clone();
    // What fails in printing is kept aside: the segment's reader has errors of its own.
    let mut failed = Ok(());
    let read = dump_segment(&*fs, file, &mut |part| {
        failed = print(dump, file, part);
        match &failed {
            Ok(()) => Ok(()),
            Err(_) => Err(Error::invalid("output failed")),
        }
    });
    failed?;
    Ok(read?)
}

fn print(dump: &mut Dump<'_>, file: &Path, part: SegmentPart<'_>) -> Result<()> {
    match part {
        SegmentPart::Header { id, previous, previous_end, previous_synced, size, start } => {
            let fields = json!({
                "id": id, "previous": previous, "previous_end": previous_end,
                "previous_synced": previous_synced, "size": size, "start_sequence": start,
            });
            let synced = if previous_synced { ", all before it synced" } else { "" };
            let text = format!(
                "segment {id} of {size} bytes from sequence {start}, follows {previous} up to {previous_end}{synced}"
            );
            dump.part(file, 0, "header", fields, &text)
        }
        SegmentPart::Record { offset, sequence, count, synced, gap, payload } => {
            let record = match DumpedRecord::read(payload, count) {
                Ok(record) => record,
                Err(e) => return dump.broken(file, e.at_offset(offset), None),
            };
            let fields = json!({
                "sequence": sequence, "count": count, "bytes": payload.len(), "synced": synced, "gap": gap,
                "operations": record.writes().enumerate().map(|(i, op)| {
                    let mut op = operation(dump, &op).0;
                    if let Some(p) = record.pointer(i) {
                        op["value"] = Value::Null;
                        op["value_log"] = json!({
                            "file": p.file_id, "offset": p.offset, "stored": p.stored_len, "length": p.raw_len,
                        });
                    }
                    op
                }).collect::<Vec<_>>(),
                "prepared": record.prepared.as_ref().map(|p| json!({
                    "xid": escape(&p.xid), "first": p.first, "isolation": isolation(p.isolation),
                    "operations": p.writes().map(|op| operation(dump, &op).0).collect::<Vec<_>>(),
                })),
                "resolved": record.resolved.as_ref().map(|(xid, committed)| json!({
                    "xid": escape(xid), "committed": committed,
                })),
                "edits": record.edits.iter().map(|e| describe(dump, e).0).collect::<Vec<_>>(),
            });
            let operations = things(count.into(), "operation", "operations");
            let synced_bytes = format!(", {} synced", things(synced.into(), "byte", "bytes"));
            let notes = [(synced > 0, synced_bytes), (gap, ", after a gap".to_owned())];
            let notes: String = notes.iter().filter(|(on, _)| *on).map(|(_, note)| note.as_str()).collect();
            let text = format!("sequence {sequence}, {operations} in {} bytes{notes}", payload.len());
            dump.part(file, offset, "record", fields, &text)?;
            if dump.out.json { Ok(()) } else { print_operations(dump, &record) }
        }
        SegmentPart::End { offset, successor } => {
            let text = match successor {
                None => "the database was closed".to_owned(),
                Some(id) => format!("continues in segment {id:06}"),
            };
            dump.part(file, offset, "end", json!({ "successor": successor, "closed": successor.is_none() }), &text)
        }
        SegmentPart::Broken { offset, header_whole, resumes } => {
            let what = match (offset, header_whole) {
                (0, _) => "the segment's header is damaged",
                (_, true) => "a record's payload is damaged, or a power cut tore it",
                (_, false) => "a record is damaged, or a power cut tore it",
            };
            dump.broken(file, Error::corruption(what).at_offset(offset), resumes)
        }
        SegmentPart::Unused { offset } => dump.part(file, offset, "unused", Value::Null, "no records from here on"),
        other => dump.part(file, 0, "unknown", Value::Null, &format!("{other:?}")),
    }
}

fn print_operations(dump: &mut Dump<'_>, record: &DumpedRecord) -> Result<()> {
    for (i, op) in record.writes().enumerate() {
        let mut text = operation(dump, &op).1;
        if let Some(p) = record.pointer(i) {
            text += &format!("  {} bytes in value log {} at offset {}", p.raw_len, p.file_id, p.offset);
        }
        dump.out.line(format_args!("{:14}{text}", ""))?;
    }
    if let Some(p) = &record.prepared {
        dump.out.line(format_args!("{:14}prepares '{}', {}", "", escape(&p.xid), isolation(p.isolation)))?;
        for op in p.writes() {
            let text = operation(dump, &op).1;
            dump.out.line(format_args!("{:16}{text}", ""))?;
        }
    }
    if let Some((xid, committed)) = &record.resolved {
        let verb = if *committed { "commits" } else { "rolls back" };
        dump.out.line(format_args!("{:14}{verb} '{}'", "", escape(xid)))?;
    }
    for edit in &record.edits {
        let text = describe(dump, edit).1;
        dump.out.line(format_args!("{:14}{text}", ""))?;
    }
    Ok(())
}

/// An operation for a program and for a person.
fn operation(dump: &Dump<'_>, op: &Change<'_>) -> (Value, String) {
    let (kind, key) = (name(op.kind), dump.key(op.key));
    let value = match op.kind {
        ChangeKind::Put => Some(dump.value(op.value)),
        ChangeKind::DeleteRange => Some(dump.key(op.value)),
        _ => None,
    };
    let expires_at = op.expires_at.map(unix_ms_of_time);
    let expires = expires_at.map_or(String::new(), |at| format!("  expires at {at}"));
    let text = format!("family {}  {kind}  {key}  {}{expires}", op.family, value.as_deref().unwrap_or_default());
    let object = json!({
        "op": kind, "family_id": op.family, "key": key, "value": value, "expires_at": expires_at,
    });
    (object, text.trim_end().to_owned())
}

fn name(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Put => "put",
        ChangeKind::Delete => "delete",
        ChangeKind::SingleDelete => "single_delete",
        ChangeKind::DeleteRange => "delete_range",
    }
}
