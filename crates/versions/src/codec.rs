//! Bytes of edits.
//!
//! ```text
//! record = count:varint edit*            edit = tag:varint length:varint body
//! ```
//!
//! The fields of a body come in a fixed order. A newer minor version may append fields to a body: this one skips them. An
//! edit with an unknown tag changes the state in a way that this build does not know, and is refused.

use crate::edit::{Edit, LogBegun};
use crate::version::{FileMeta, LEVELS};
use crate::vlogs::VlogMeta;
use kingtide_base::coding::{Reader, put_slice, put_varint};
use kingtide_base::{Error, ErrorKind, Result};
use kingtide_table::VlogRef;
use kingtide_table::info::size;
use std::sync::Arc;

const CREATE_FAMILY: u64 = 1;
const DROP_FAMILY: u64 = 2;
const RENAME_FAMILY: u64 = 3;
const SET_OPTIONS: u64 = 4;
const ADD_FILE: u64 = 5;
const REMOVE_FILE: u64 = 6;
const FLUSHED: u64 = 7;
const ADD_VLOG: u64 = 8;
const REMOVE_VLOG: u64 = 9;
const NEXT_FILE_ID: u64 = 10;
const LAST_SEQ: u64 = 11;
const NEXT_FAMILY_ID: u64 = 12;
const LOG_START: u64 = 13;
const LOG_BEGUN: u64 = 14;
/// A file that its own database did not write: a build that took it for one of its own would read it wrongly.
const ADD_FOREIGN_FILE: u64 = 15;

/// Appends the bytes of one record.
pub fn encode_edits(edits: &[Edit], out: &mut Vec<u8>) {
    put_varint(out, edits.len() as u64);
    let mut body = Vec::new();
    for edit in edits {
        body.clear();
        let tag = encode_body(edit, &mut body);
        put_varint(out, tag);
        put_slice(out, &body);
    }
}

/// Room made for as many things as a count announces, at most; a hostile one must not decide about memory.
const BELIEVED: usize = 1024;

/// More options than a family will ever have: two bytes each in the file, but 48 in memory.
const MAX_OPTIONS: usize = 4096;

/// Reads one record. Allocates no more than a small multiple of its length.
///
/// # Errors
/// `Corruption`, `NewerFormat` for an unknown edit; neither names the file, which the caller knows.
pub fn decode_edits(bytes: &[u8]) -> Result<Vec<Edit>> {
    let mut r = Reader::new(bytes);
    let count = r.varint().ok_or_else(|| damaged("edit count"))?;
    let mut edits = Vec::with_capacity(usize::try_from(count).unwrap_or(0).min(BELIEVED).min(bytes.len() / 2));
    for _ in 0..count {
        let tag = r.varint().ok_or_else(|| damaged("edit tag"))?;
        let body = r.slice().ok_or_else(|| damaged("edit length"))?;
        edits.push(decode_body(tag, body)?);
    }
    if !r.is_empty() {
        return Err(damaged("bytes after the last edit"));
    }
    Ok(edits)
}

#[cold]
fn damaged(what: &str) -> Error {
    Error::corruption(format!("manifest record: {what}"))
}

fn encode_body(edit: &Edit, out: &mut Vec<u8>) -> u64 {
    match edit {
        Edit::CreateFamily { id, name, order, options, direct_from } => {
            put_varint(out, *id as u64);
            put_slice(out, name.as_bytes());
            put_slice(out, order.as_bytes());
            put_options(out, options);
            if let Some(bytes) = direct_from {
                put_varint(out, *bytes);
            }
            CREATE_FAMILY
        }
        Edit::DropFamily { id } => {
            put_varint(out, *id as u64);
            DROP_FAMILY
        }
        Edit::RenameFamily { id, name } => {
            put_varint(out, *id as u64);
            put_slice(out, name.as_bytes());
            RENAME_FAMILY
        }
        Edit::SetOptions { id, options } => {
            put_varint(out, *id as u64);
            put_options(out, options);
            SET_OPTIONS
        }
        Edit::AddFile { family, level, meta } => {
            put_varint(out, *family as u64);
            out.push(*level);
            if meta.written_as == meta.id && meta.sequence == 0 {
                put_meta(out, meta);
                return ADD_FILE;
            }
            put_varint(out, meta.written_as);
            put_varint(out, meta.sequence);
            put_meta(out, meta);
            ADD_FOREIGN_FILE
        }
        Edit::RemoveFile { family, level, id } => {
            put_varint(out, *family as u64);
            out.push(*level);
            put_varint(out, *id);
            REMOVE_FILE
        }
        Edit::Flushed { family, seq } => {
            put_varint(out, *family as u64);
            put_varint(out, *seq);
            FLUSHED
        }
        Edit::AddVlog { family, meta: VlogMeta { id, size, stored_bytes, values } } => {
            put_varint(out, *id);
            put_varint(out, *family as u64);
            [*size, *stored_bytes, *values].into_iter().for_each(|v| put_varint(out, v));
            ADD_VLOG
        }
        Edit::RemoveVlog { id } => {
            put_varint(out, *id);
            REMOVE_VLOG
        }
        Edit::NextFileId(id) => {
            put_varint(out, *id);
            NEXT_FILE_ID
        }
        Edit::LastSeq(seq) => {
            put_varint(out, *seq);
            LAST_SEQ
        }
        Edit::NextFamilyId(id) => {
            put_varint(out, *id as u64);
            NEXT_FAMILY_ID
        }
        Edit::LogStart(seq) => {
            put_varint(out, *seq);
            LOG_START
        }
        Edit::LogStartIn { seq, segment } => {
            put_varint(out, *seq);
            put_varint(out, *segment);
            LOG_START
        }
        Edit::LogBegun(begun) => {
            put_varint(out, begun.segment);
            out.extend_from_slice(&begun.boot_id);
            if let Some(bytes) = begun.change_retention {
                put_varint(out, bytes);
            }
            LOG_BEGUN
        }
    }
}

fn put_options(out: &mut Vec<u8>, options: &[(String, String)]) {
    put_varint(out, options.len() as u64);
    for (name, value) in options {
        put_slice(out, name.as_bytes());
        put_slice(out, value.as_bytes());
    }
}

fn put_meta(out: &mut Vec<u8>, m: &FileMeta) {
    for v in [m.id, m.run, m.size, m.entries, m.tombstones, m.range_tombstones, m.raw_bytes] {
        put_varint(out, v);
    }
    put_slice(out, &m.min_key);
    put_slice(out, &m.max_key);
    for v in [m.min_seq, m.max_seq, m.min_expiry_ms, m.created_ms] {
        put_varint(out, v);
    }
    put_varint(out, m.vlog_refs.len() as u64);
    for r in &m.vlog_refs {
        [r.file_id, r.values, r.bytes].into_iter().for_each(|v| put_varint(out, v));
    }
    if m.hides > 0 {
        put_varint(out, m.hides);
    }
}

fn decode_body(tag: u64, body: &[u8]) -> Result<Edit> {
    let mut r = Reader::new(body);
    let edit = match tag {
        CREATE_FAMILY => create_family(&mut r),
        DROP_FAMILY => id32(&mut r).map(|id| Edit::DropFamily { id }),
        RENAME_FAMILY => id32(&mut r).zip(string(&mut r)).map(|(id, name)| Edit::RenameFamily { id, name }),
        SET_OPTIONS => id32(&mut r).zip(options(&mut r)).map(|(id, options)| Edit::SetOptions { id, options }),
        ADD_FILE => add_file(&mut r, false),
        ADD_FOREIGN_FILE => add_file(&mut r, true),
        REMOVE_FILE => remove_file(&mut r),
        FLUSHED => id32(&mut r).zip(r.varint()).map(|(family, seq)| Edit::Flushed { family, seq }),
        ADD_VLOG => add_vlog(&mut r),
        REMOVE_VLOG => r.varint().map(|id| Edit::RemoveVlog { id }),
        NEXT_FILE_ID => r.varint().map(Edit::NextFileId),
        LAST_SEQ => r.varint().map(Edit::LastSeq),
        NEXT_FAMILY_ID => id32(&mut r).map(Edit::NextFamilyId),
        LOG_START => log_start(&mut r),
        LOG_BEGUN => log_begun(&mut r),
        _ => {
            let text = format!("manifest edit of kind {tag}, which is newer than this build");
            return Err(Error::new(ErrorKind::NewerFormat, text));
        }
    };
    edit.ok_or_else(|| damaged(&format!("edit of kind {tag}")))
}

fn id32(r: &mut Reader<'_>) -> Option<u32> {
    u32::try_from(r.varint()?).ok()
}

fn string(r: &mut Reader<'_>) -> Option<String> {
    std::str::from_utf8(r.slice()?).ok().map(str::to_owned)
}

fn options(r: &mut Reader<'_>) -> Option<Vec<(String, String)>> {
    let count = usize::try_from(r.varint()?).ok().filter(|n| *n <= MAX_OPTIONS)?;
    let mut out = Vec::with_capacity(count.min(BELIEVED).min(r.rest().len() / 2));
    for _ in 0..count {
        out.push((string(r)?, string(r)?));
    }
    Some(out)
}

fn create_family(r: &mut Reader<'_>) -> Option<Edit> {
    let (id, name, order, options) = (id32(r)?, string(r)?, string(r)?, options(r)?);
    let direct_from = if r.is_empty() { None } else { Some(r.varint()?) };
    Some(Edit::CreateFamily { id, name, order, options, direct_from })
}

fn remove_file(r: &mut Reader<'_>) -> Option<Edit> {
    Some(Edit::RemoveFile { family: id32(r)?, level: level(r)?, id: r.varint()? })
}

fn add_vlog(r: &mut Reader<'_>) -> Option<Edit> {
    let (id, family) = (r.varint()?, id32(r)?);
    let meta = VlogMeta { id, size: size(r)?, stored_bytes: size(r)?, values: size(r)? };
    Some(Edit::AddVlog { family, meta })
}

fn log_start(r: &mut Reader<'_>) -> Option<Edit> {
    let seq = r.varint()?;
    Some(if r.is_empty() { Edit::LogStart(seq) } else { Edit::LogStartIn { seq, segment: r.varint()? } })
}

fn log_begun(r: &mut Reader<'_>) -> Option<Edit> {
    let (segment, boot_id) = (r.varint()?, *r.bytes(16)?.first_chunk()?);
    let change_retention = if r.is_empty() { None } else { Some(r.varint()?) };
    Some(Edit::LogBegun(LogBegun { segment, boot_id, change_retention }))
}

fn level(r: &mut Reader<'_>) -> Option<u8> {
    r.u8().filter(|l| (*l as usize) < LEVELS)
}

fn add_file(r: &mut Reader<'_>, foreign: bool) -> Option<Edit> {
    let (family, level) = (id32(r)?, level(r)?);
    let origin = if foreign { Some((r.varint()?, r.varint()?)) } else { None };
    let mut meta = FileMeta {
        id: r.varint()?,
        run: r.varint()?,
        size: size(r)?,
        entries: size(r)?,
        tombstones: size(r)?,
        range_tombstones: size(r)?,
        raw_bytes: size(r)?,
        min_key: r.slice()?.to_vec(),
        max_key: r.slice()?.to_vec(),
        min_seq: r.varint()?,
        max_seq: r.varint()?,
        min_expiry_ms: r.varint()?,
        created_ms: r.varint()?,
        vlog_refs: Vec::new(),
        written_as: 0,
        sequence: 0,
        hides: 0,
    };
    (meta.written_as, meta.sequence) = origin.unwrap_or((meta.id, 0));
    let count = usize::try_from(r.varint()?).ok()?;
    meta.vlog_refs.reserve(count.min(BELIEVED).min(r.rest().len() / 3));
    for _ in 0..count {
        meta.vlog_refs.push(VlogRef { file_id: r.varint()?, values: size(r)?, bytes: size(r)? });
    }
    if !r.is_empty() {
        meta.hides = size(r)?;
    }
    Some(Edit::AddFile { family, level, meta: Arc::new(meta) })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    /// A random edit, for the tests of the manifest too.
    pub fn random_edit(rng: &mut Rng) -> Edit {
        let text = |rng: &mut Rng| format!("n{}", rng.below(1000));
        let options = |rng: &mut Rng| (0..rng.below(3)).map(|i| (format!("o{i}"), text(rng))).collect::<Vec<_>>();
        let big = |rng: &mut Rng| rng.next_u64() >> rng.below(64);
        let size = |rng: &mut Rng| rng.next_u64() >> (20 + rng.below(44));
        let (id, family) = (rng.below(1000), rng.below(10) as u32);
        match rng.below(14) {
            0 => {
                let direct_from = rng.one_in(2).then(|| big(rng));
                let (name, order, options) = (text(rng), text(rng), options(rng));
                Edit::CreateFamily { id: family, name, order, options, direct_from }
            }
            1 => Edit::DropFamily { id: family },
            2 => Edit::RenameFamily { id: family, name: text(rng) },
            3 => Edit::SetOptions { id: family, options: options(rng) },
            4 => {
                let meta = FileMeta {
                    id,
                    run: big(rng),
                    size: size(rng),
                    entries: size(rng),
                    tombstones: size(rng),
                    range_tombstones: size(rng),
                    raw_bytes: size(rng),
                    min_key: text(rng).into_bytes(),
                    max_key: vec![0xff; rng.below(300) as usize],
                    min_seq: big(rng),
                    max_seq: big(rng),
                    min_expiry_ms: big(rng),
                    created_ms: big(rng),
                    vlog_refs: (0..rng.below(4))
                        .map(|file_id| VlogRef { file_id, values: size(rng), bytes: size(rng) })
                        .collect(),
                    written_as: if rng.one_in(2) { id } else { big(rng) },
                    sequence: if rng.one_in(2) { 0 } else { big(rng) },
                    hides: if rng.one_in(2) { 0 } else { size(rng) },
                };
                Edit::AddFile { family, level: rng.below(8) as u8, meta: Arc::new(meta) }
            }
            5 => Edit::RemoveFile { family, level: rng.below(8) as u8, id },
            6 => Edit::Flushed { family, seq: big(rng) },
            7 => {
                let meta = VlogMeta { id, size: size(rng), stored_bytes: size(rng), values: size(rng) };
                Edit::AddVlog { family, meta }
            }
            8 => Edit::RemoveVlog { id },
            9 => Edit::NextFileId(big(rng)),
            10 => Edit::NextFamilyId(family),
            11 if rng.one_in(2) => Edit::LogStartIn { seq: big(rng), segment: big(rng) },
            11 => Edit::LogStart(big(rng)),
            12 => {
                let change_retention = rng.one_in(2).then(|| size(rng));
                Edit::LogBegun(LogBegun { segment: id, boot_id: [family as u8; 16], change_retention })
            }
            _ => Edit::LastSeq(big(rng)),
        }
    }

    #[test]
    fn random_edits_round_trip_and_truncations_are_refused() {
        let mut rng = Rng::new(11);
        for _ in 0..500 {
            let edits: Vec<_> = (0..rng.below(6)).map(|_| random_edit(&mut rng)).collect();
            let mut bytes = Vec::new();
            encode_edits(&edits, &mut bytes);
            assert_eq!(decode_edits(&bytes).unwrap(), edits);
            for cut in 0..bytes.len() {
                assert!(decode_edits(&bytes[..cut]).is_err());
            }
        }
    }

    #[test]
    fn hostile_bytes_never_panic() {
        let mut rng = Rng::new(12);
        for _ in 0..20_000 {
            let mut bytes = vec![0; rng.below(60) as usize];
            rng.fill(&mut bytes);
            for b in &mut bytes {
                *b &= 0x1f >> rng.below(4); // small numbers get deeper into the decoder
            }
            let _ = decode_edits(&bytes);
        }
        let mut huge = Vec::new();
        put_varint(&mut huge, u64::MAX);
        assert!(decode_edits(&huge).is_err());
    }

    #[test]
    fn newer_fields_are_skipped_and_newer_edits_refused() {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, 1);
        put_varint(&mut bytes, REMOVE_VLOG);
        put_slice(&mut bytes, &[7, 99, 99]);
        assert_eq!(decode_edits(&bytes).unwrap(), [Edit::RemoveVlog { id: 7 }]);
        let mut bytes = Vec::new();
        put_varint(&mut bytes, 1);
        put_varint(&mut bytes, 200);
        put_slice(&mut bytes, b"?");
        assert_eq!(decode_edits(&bytes).unwrap_err().kind(), ErrorKind::NewerFormat);
    }
}
