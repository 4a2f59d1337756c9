//! Tables and value logs.

use super::under_way::{Dump, file_id};
use crate::error::Result;
use crate::output::{bytes, things};
use kingtide::vfs::OpenMode;
use kingtide::{Error, ErrorKind, KeyOrder};
use kingtide_base::Kind;
use kingtide_base::key::{split_expiry, unknown_order};
use kingtide_base::stats::Stats;
use kingtide_mem::cache::BlockCache;
use kingtide_table::salvage::{BlockScan, read_traits, read_written_as};
use kingtide_table::{ReadScratch, Table, TableId, ValuePointer, Vlog};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a value log's footer.
const VLOG_FOOTER: u64 = 48;

/// Prints a table.
pub fn dump_klog(dump: &mut Dump<'_>, path: &Path) -> Result<()> {
    let id = file_id(path)?;
    let file = dump.fs.open(path, OpenMode::Read)?;
    // One that was ingested or cloned was written under another id than the one in its name.
    let written_as = read_written_as(&*file).unwrap_or(id);
    let order = match read_traits(&*file, written_as) {
        Ok(traits) => {
            let i = &traits.info;
            let fields = json!({
                "id": id, "written_as": written_as, "sorted_file": i.unsequenced, "order": traits.order, "bytes": i.file_size, "entries": i.entries,
                "tombstones": i.tombstones, "range_tombstones": i.range_tombstones,
                "min_key": dump.key(&i.min_key), "max_key": dump.key(&i.max_key),
                "min_sequence": i.min_seq, "max_sequence": i.max_seq, "min_expiry": i.min_expiry_ms,
                "vlogs": i.vlog_refs.iter().map(|r| json!({ "id": r.file_id, "values": r.values, "bytes": r.bytes }))
                    .collect::<Vec<_>>(),
            });
            let (size, entries) = (bytes(i.file_size), things(i.entries, "entry", "entries"));
            let text = format!("{size}, {entries} in {} order, sequences {} to {}", traits.order, i.min_seq, i.max_seq);
            dump.part(path, 0, "table", fields, &text)?;
            traits.order
        }
        // Told below, where the table is opened.
        Err(e) if e.kind() == ErrorKind::Corruption => "bytewise".to_owned(),
        Err(e) => return Err(e.into()),
    };
    let order = KeyOrder::builtin(&order).unwrap_or_else(|| KeyOrder::Custom(unknown_order(order)));
    let stats = Arc::new(Stats::default());
    let opened = Table::open_damaged(
        file.clone(),
        TableId { written_as, ..TableId::from(id) },
        order,
        BlockCache::new(0, 1, stats.clone()),
        stats,
    );
    let mut scratch = ReadScratch::new();
    let table = match opened {
        Ok((table, damage)) => {
            damage.into_iter().try_for_each(|e| dump.broken(path, e, None))?;
            table
        }
        Err(e) => {
            dump.broken(path, e, Some(0))?;
            // Without an index, block after block.
            let mut scan = BlockScan::new(file, written_as)?;
            while let Some(place) = scan.next(&mut scratch)? {
                print_block(dump, path, place.start, &scratch)?;
            }
            return match scan.at_end() {
                true => Ok(()),
                false => {
                    let what = "no block begins here: the end of the blocks, or a damaged one";
                    dump.broken(path, Error::corruption(what).at_offset(scan.position()), None)
                }
            };
        }
    };
    for i in 0..table.blocks() {
        let place = table.block_place(i);
        match table.read_block(i, &mut scratch) {
            Ok(()) => print_block(dump, path, place.start, &scratch)?,
            Err(e) => dump.broken(path, e, (i + 1 < table.blocks()).then_some(place.end))?,
        }
    }
    for t in table.range_tombstones() {
        let (start, end) = (dump.key(&t.start), dump.key(&t.end));
        let fields = json!({ "op": "delete_range", "sequence": t.seq, "key": start, "value": end });
        dump.part(path, 0, "range", fields, &format!("{:>10}  delete_range  {start}  {end}", t.seq))?;
    }
    Ok(())
}

fn print_block(dump: &mut Dump<'_>, path: &Path, offset: u64, block: &ReadScratch) -> Result<()> {
    for i in 0..block.entries() {
        let entry = match block.entry(i) {
            Ok(entry) => entry,
            Err(e) => return dump.broken(path, e.at_offset(offset), None),
        };
        let (tag, key) = (entry.tag, dump.key(entry.key(block.bytes())));
        let Some((expires_at, stored)) = split_expiry(tag, entry.value(block.bytes())) else {
            dump.broken(path, Error::corruption("an entry is too short to hold its expiry").at_offset(offset), None)?;
            continue;
        };
        let (op, value) = match tag.kind() {
            Some(Kind::Put) => ("put", dump.value(stored)),
            Some(Kind::PutPointer) => match ValuePointer::decode(stored) {
                Some(p) => ("put_pointer", format!("vlog {} at {}, {} bytes", p.file_id, p.offset, p.raw_len)),
                None => ("put_pointer", "damaged pointer".to_owned()),
            },
            Some(Kind::Delete) => ("delete", String::new()),
            Some(Kind::SingleDelete) => ("single_delete", String::new()),
            Some(Kind::RangeDelete) | None => ("unknown", String::new()),
        };
        let fields = json!({ "op": op, "sequence": tag.seq(), "key": key, "value": value, "expires_at": expires_at });
        let expires = expires_at.map_or(String::new(), |at| format!("  expires at {at}"));
        let text = format!("{:>10}  {op}  {key}  {value}{expires}", tag.seq());
        dump.part(path, offset, "entry", fields, text.trim_end())?;
    }
    Ok(())
}

/// Prints a value log.
pub fn dump_vlog(dump: &mut Dump<'_>, path: &Path) -> Result<()> {
    let id = file_id(path)?;
    let file = dump.fs.open(path, OpenMode::Read)?;
    let footer = file.len()?.saturating_sub(VLOG_FOOTER);
    let (vlog, damage) = Vlog::open_damaged(file, id)?;
    // Then it is not known where the values end, and the footer may be taken for one.
    let open_end = damage.is_some();
    match damage {
        Some(e) => dump.broken(path, e, Some(0))?,
        None => {
            let i = vlog.info();
            let fields = json!({ "id": id, "bytes": i.file_size, "values": i.values, "stored_bytes": i.stored_bytes,
                "raw_bytes": i.raw_bytes });
            let (size, values) = (bytes(i.file_size), things(i.values, "value", "values"));
            dump.part(path, 0, "value log", fields, &format!("{size}, {values} of {} raw", bytes(i.raw_bytes)))?;
        }
    }
    let mut records = vlog.records();
    let mut value = Vec::new();
    loop {
        match records.next_value(&mut value) {
            Ok(None) => return Ok(()),
            Ok(Some(p)) => {
                let shown = dump.value(&value);
                let fields = json!({ "stored_bytes": p.stored_len, "raw_bytes": p.raw_len, "value": shown });
                let text = format!("{} bytes, {} stored  {shown}", p.raw_len, p.stored_len);
                dump.part(path, p.offset, "value", fields, text.trim_end())?;
            }
            Err(e) if open_end && e.offset() == Some(footer) => return Ok(()),
            Err(e) => {
                let next = records.skip_damage()?;
                dump.broken(path, e, next)?;
                if next.is_none() {
                    return Ok(());
                }
            }
        }
    }
}
