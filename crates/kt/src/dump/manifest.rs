//! The manifest.

use super::under_way::Dump;
use crate::error::Result;
use crate::format::{hex, show_name};
use crate::output::{bytes, things};
use kingtide_versions::{Edit, LogBegun, ManifestScan, VlogMeta};
use serde_json::{Value, json};
use std::path::Path;

/// Prints a manifest.
pub fn dump(dump: &mut Dump<'_>, file: &Path) -> Result<()> {
    let fs = dump.fs.clone();
    let scan = ManifestScan::read_one(&*fs, file)?;
    let mut damage = scan.damage.into_iter().peekable();
    for record in scan.records {
        // Both are in the order of the file.
        while let Some(e) = damage.next_if(|e| e.offset().unwrap_or(0) < record.offset) {
            dump.broken(file, e, Some(record.offset))?;
        }
        let edits: Vec<(Value, String)> = record.edits.iter().map(|e| describe(dump, e)).collect();
        let fields = json!({ "edits": edits.iter().map(|(object, _)| object).collect::<Vec<_>>() });
        dump.part(file, record.offset, "record", fields, &things(edits.len() as u64, "edit", "edits"))?;
        if !dump.out.json {
            for (_, text) in &edits {
                dump.out.line(format_args!("{:14}{text}", ""))?;
            }
        }
    }
    for e in damage {
        dump.broken(file, e, None)?;
    }
    if let Some(at) = scan.torn_at {
        dump.part(file, at, "torn", Value::Null, "what a crash left of an append")?;
    }
    Ok(())
}

/// An edit for a program and for a person.
pub(super) fn describe(dump: &Dump<'_>, edit: &Edit) -> (Value, String) {
    match edit {
        Edit::CreateFamily { id, name, order, options, direct_from } => {
            let mut object = json!({ "edit": "create_family", "family_id": id, "name": name, "order": order,
                "options": pairs(options) });
            let mut text = format!("create family {id} '{}', {order} order", show_name(name));
            if let Some(bytes) = direct_from {
                object["direct_from"] = json!(bytes);
                text += &format!(", earlier options wrote values of {bytes} bytes and more once");
            }
            (object, text)
        }
        Edit::DropFamily { id } => (json!({ "edit": "drop_family", "family_id": id }), format!("drop family {id}")),
        Edit::RenameFamily { id, name } => {
            let object = json!({ "edit": "rename_family", "family_id": id, "name": name });
            (object, format!("rename family {id} to '{}'", show_name(name)))
        }
        Edit::SetOptions { id, options } => {
            let object = json!({ "edit": "set_options", "family_id": id, "options": pairs(options) });
            (object, format!("set options of family {id}"))
        }
        Edit::AddFile { family, level, meta } => {
            let (lo, hi) = (dump.key(&meta.min_key), dump.key(&meta.max_key));
            let text = format!(
                "add table {} to family {family}, level {level}, run {}: {}, {}, sequences {} to {}, keys {lo} to {hi}",
                meta.id,
                meta.run,
                bytes(meta.size),
                things(meta.entries, "entry", "entries"),
                meta.min_seq,
                meta.max_seq
            );
            let refs = meta.vlog_refs.iter();
            let object = json!({
                "edit": "add_file", "family_id": family, "level": level, "id": meta.id, "run": meta.run,
                "bytes": meta.size, "entries": meta.entries, "tombstones": meta.tombstones,
                "range_tombstones": meta.range_tombstones, "min_key": lo, "max_key": hi,
                "min_sequence": meta.min_seq, "max_sequence": meta.max_seq,
                "min_expiry": meta.min_expiry_ms, "created": meta.created_ms,
                "written_as": meta.written_as, "sequence": meta.sequence,
                "vlogs": refs.map(|r| json!({ "id": r.file_id, "values": r.values, "bytes": r.bytes }))
                    .collect::<Vec<_>>(),
            });
            (object, text)
        }
        Edit::RemoveFile { family, level, id } => {
            let object = json!({ "edit": "remove_file", "family_id": family, "level": level, "id": id });
            (object, format!("remove table {id} from family {family}, level {level}"))
        }
        Edit::Flushed { family, seq } => {
            let object = json!({ "edit": "flushed", "family_id": family, "sequence": seq });
            (object, format!("family {family} is in tables up to sequence {seq}"))
        }
        Edit::AddVlog { family, meta: VlogMeta { id, size, stored_bytes, values } } => {
            let object = json!({ "edit": "add_vlog", "id": id, "family_id": family, "bytes": size,
                "stored_bytes": stored_bytes, "values": values });
            let (size, values) = (bytes(*size), things(*values, "value", "values"));
            (object, format!("add value log {id} of family {family}: {size}, {values}"))
        }
        Edit::RemoveVlog { id } => (json!({ "edit": "remove_vlog", "id": id }), format!("remove value log {id}")),
        other => number(other),
    }
}

/// Edits that are one number.
fn number(edit: &Edit) -> (Value, String) {
    let (name, number, text) = match edit {
        Edit::NextFileId(id) => ("next_file_id", *id, "next file number"),
        Edit::LastSeq(seq) => ("last_sequence", *seq, "last sequence"),
        Edit::NextFamilyId(id) => ("next_family_id", u64::from(*id), "next family number"),
        Edit::LogStartIn { seq, segment } => {
            let object = json!({ "edit": "log_start", "value": seq, "segment": segment });
            return (
                object,
                format!("all below is in tables: sequence {seq}, and log segments below {segment} are given up"),
            );
        }
        Edit::LogStart(seq) => ("log_start", *seq, "all below is in tables: sequence"),
        Edit::LogBegun(LogBegun { segment, boot_id, change_retention }) => {
            let object = json!({
                "edit": "log_begun", "segment": segment, "boot_id": hex(boot_id), "change_retention": change_retention
            });
            let retention = change_retention.map_or(String::new(), |bytes| format!(", change_retention {bytes}"));
            return (object, format!("the log starts with segment {segment}{retention}"));
        }
        other => return (json!({ "edit": "unknown" }), format!("{other:?}")),
    };
    (json!({ "edit": name, "value": number }), format!("{text} {number}"))
}

fn pairs(options: &[(String, String)]) -> Value {
    Value::Object(options.iter().map(|(n, v)| (n.clone(), v.as_str().into())).collect())
}
