//! Log records of files that became part of the database: ingests, clones and imports.
//!
//! ```text
//! files:     18 u8 | length varint | edits     (as a record of the manifest, `length` bytes of them)
//! ```
//! A record holds one such operation for each sequence number that the files took, and nothing else. Its edits are those that are
//! written to the manifest next. Until then only the log says that the files belong to the database.

use kingtide_base::coding::{Reader, put_slice};
use kingtide_base::{Error, Result, SeqNo};
use kingtide_versions::{Edit, decode_edits, encode_edits};

/// Kind byte of a files operation: none of a write's.
const FILES: u8 = 18;

/// Whether a log record's payload says that files became part of the database. Then nothing else is in it.
#[inline]
pub(crate) fn is_files(payload: &[u8]) -> bool {
    payload.first() == Some(&FILES)
}

/// Appends one operation with its edits.
pub(crate) fn put_files(out: &mut Vec<u8>, edits: &[Edit]) {
    let mut bytes = Vec::new();
    encode_edits(edits, &mut bytes);
    out.push(FILES);
    put_slice(out, &bytes);
}

/// The edits of a record with `count` operations from sequence number `base` on. Memory is bounded by the payload's size.
///
/// # Errors
/// `Corruption` for bytes that no writer makes; `NewerFormat` for an edit that this build does not know.
pub(crate) fn read_files(base: SeqNo, count: u32, payload: &[u8]) -> Result<Vec<Edit>> {
    let damaged =
        |what: &str| Error::corruption(format!("the log record with sequence {base}, of ingested files, {what}"));
    let last = base.saturating_add(u64::from(count).saturating_sub(1));
    let mut r = Reader::new(payload);
    let mut all = Vec::new();
    for _ in 0..count {
        let bytes = r.u8().filter(|kind| *kind == FILES).and_then(|_| r.slice());
        let edits = decode_edits(bytes.ok_or_else(|| damaged("cannot be read"))?)?;
        if !edits.iter().all(|e| adds(e) && e.last_seq() <= last) {
            return Err(damaged("has an edit that no ingest makes"));
        }
        all.extend(edits);
    }
    if r.is_empty() { Ok(all) } else { Err(damaged("has bytes left over")) }
}

/// Whether files that become part of the database are accompanied by such an edit.
fn adds(edit: &Edit) -> bool {
    match edit {
        Edit::CreateFamily { .. } | Edit::AddFile { .. } | Edit::AddVlog { .. } | Edit::Flushed { .. } => true,
        Edit::NextFileId(_) | Edit::LastSeq(_) => true,
        Edit::DropFamily { .. } | Edit::RenameFamily { .. } | Edit::SetOptions { .. } => false,
        Edit::RemoveFile { .. } | Edit::RemoveVlog { .. } | Edit::NextFamilyId(_) => false,
        Edit::LogStart(_) | Edit::LogStartIn { .. } | Edit::LogBegun(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::ErrorKind;
    use kingtide_base::rng::Rng;
    use kingtide_versions::{FileMeta, VlogMeta};
    use std::sync::Arc;

    /// A random edit, mostly of those that an ingest makes.
    fn random_edit(rng: &mut Rng) -> Edit {
        let (id, family) = (rng.below(1000), rng.below(10) as u32);
        let text = |rng: &mut Rng| format!("n{}", rng.below(1000));
        let big = |rng: &mut Rng| rng.next_u64() >> rng.below(64);
        match rng.below(9) {
            0 => {
                let (name, order, options) = (text(rng), text(rng), Vec::new());
                Edit::CreateFamily { id: family, name, order, options, direct_from: None }
            }
            1 => {
                let meta = FileMeta {
                    id,
                    run: big(rng),
                    size: id,
                    entries: id,
                    tombstones: 0,
                    range_tombstones: rng.below(2),
                    raw_bytes: id,
                    min_key: text(rng).into_bytes(),
                    max_key: text(rng).into_bytes(),
                    min_seq: 1,
                    max_seq: big(rng),
                    min_expiry_ms: 0,
                    created_ms: big(rng),
                    vlog_refs: Vec::new(),
                    written_as: big(rng),
                    sequence: big(rng),
                    hides: 0,
                };
                Edit::AddFile { family, level: rng.below(8) as u8, meta: Arc::new(meta) }
            }
            2 => Edit::AddVlog { family, meta: VlogMeta { id, size: id, stored_bytes: id, values: id } },
            3 => Edit::Flushed { family, seq: big(rng) },
            4 => Edit::NextFileId(big(rng)),
            5 => Edit::LastSeq(big(rng)),
            6 => Edit::DropFamily { id: family },
            7 => Edit::RemoveFile { family, level: 0, id },
            _ => Edit::LogStart(big(rng)),
        }
    }

    #[test]
    fn what_is_written_reads_back_and_truncations_do_not() {
        let mut rng = Rng::new(18);
        let mut of_ingests = 0;
        for _ in 0..300 {
            let ops: Vec<Vec<Edit>> =
                (0..1 + rng.below(3)).map(|_| (0..rng.below(4)).map(|_| random_edit(&mut rng)).collect()).collect();
            let mut payload = Vec::new();
            ops.iter().for_each(|edits| put_files(&mut payload, edits));
            assert!(is_files(&payload));
            let (count, all) = (ops.len() as u32, ops.concat());
            let base = kingtide_base::key::MAX_SEQ - u64::from(count);
            let read = read_files(base, count, &payload);
            match all.iter().all(|e| adds(e) && e.last_seq() < base + u64::from(count)) {
                true => assert_eq!(read.unwrap(), all),
                false => assert_eq!(read.unwrap_err().kind(), ErrorKind::Corruption),
            }
            of_ingests += u32::from(all.iter().all(adds) && !all.is_empty());
            (0..payload.len())
                .for_each(|cut| assert!(read_files(base, count, &payload[..cut]).is_err(), "cut at {cut}"));
            assert!(read_files(base, count + 1, &payload).is_err());
            payload.push(FILES);
            assert!(read_files(base, count, &payload).is_err());
        }
        assert!(of_ingests > 20);
    }

    #[test]
    fn edits_of_a_newer_build_are_refused_by_name() {
        let mut payload = vec![FILES];
        put_slice(&mut payload, &[1, 120, 0]);
        let e = read_files(1, 1, &payload).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NewerFormat);
        assert!(e.to_string().contains("kind 120"), "{e}");
    }

    #[test]
    fn noise_is_survived() {
        let mut rng = Rng::new(19);
        for _ in 0..50_000 {
            let mut bytes = vec![0; 1 + rng.below(40) as usize];
            rng.fill(&mut bytes);
            bytes[0] = FILES;
            let _ = read_files(rng.below(100), 1 + rng.below(3) as u32, &bytes);
        }
    }
}
