//! Corrects the checksums of an edited file, as a forger would. Formats: `docs/format`.

use kingtide_base::checksum::{block_crc, crc, crc_append};
use kingtide_base::coding::{Reader, put_slice, put_varint};
use kingtide_base::hash::hash64;
use std::path::Path;

fn put(bytes: &mut [u8], at: usize, sum: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b) as usize)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

/// The number in a file's name.
pub fn file_number(path: &Path) -> u64 {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let digits = name.trim_start_matches("MANIFEST-").split('.').next().unwrap_or_default();
    digits.parse().unwrap_or_default()
}

/// Any file of a database, by its name. `fit`: see [`klog`].
pub fn file(path: &Path, bytes: &mut Vec<u8>, fit: bool) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let id = file_number(path);
    if name.ends_with(".wal") {
        wal(bytes, id);
    } else if name.ends_with(".klog") {
        klog(bytes, id, fit);
    } else if name.ends_with(".vlog") {
        vlog(bytes, id);
    } else if name.starts_with("MANIFEST") {
        manifest(bytes, id);
    } else if name == "CURRENT" {
        current(bytes);
    }
}

/// A log segment: its header, and the records from the first on, as far as their lengths lead.
pub fn wal(bytes: &mut [u8], id: u64) {
    let seed = |at: u64| crc_append(id as u32, &at.to_le_bytes());
    if bytes.len() >= 64 {
        let sum = crc_append(crc_append(seed(0), &bytes[..8]), &bytes[12..64]);
        put(bytes, 8, sum);
    }
    let mut at = 64;
    while at + 32 <= bytes.len() && bytes[at..at + 32].iter().any(|b| *b != 0) {
        let len = u32_at(bytes, at + 8).unwrap_or_default();
        let end = at + 32 + len;
        if end <= bytes.len() {
            let sum = crc(&bytes[at + 32..end]);
            put(bytes, at + 4, sum);
        }
        let sum = crc_append(seed(at as u64), &bytes[at + 4..at + 32]);
        put(bytes, at, sum);
        at = end.next_multiple_of(8);
    }
}

/// A table: its sections, its blocks where the index says that they are, and its footer. With `fit`, the footer's
/// lengths are made to add up to the file's.
pub fn klog(bytes: &mut [u8], id: u64, fit: bool) {
    const FOOTER: usize = 64;
    let Some(footer) = bytes.len().checked_sub(FOOTER) else { return };
    let lens: Vec<u64> = (1..6).map(|i| u64_at(bytes, footer + 8 * i).unwrap_or_default()).collect();
    let mut data_end = lens[0];
    let sections = &lens[1..];
    if fit && let Some(sum) = sections.iter().try_fold(0u64, |a, b| a.checked_add(*b)) {
        data_end = (footer as u64).saturating_sub(sum);
        bytes[footer + 8..footer + 16].copy_from_slice(&data_end.to_le_bytes());
    }
    let mut at = data_end;
    let mut blocks = Vec::new();
    for (i, len) in sections.iter().enumerate() {
        let Some(end) = at.checked_add(*len).filter(|end| *end <= footer as u64) else { break };
        if i == 1 && *len > 5 {
            blocks = block_lens(&bytes[at as usize..end as usize - 5]);
        }
        frame(bytes, id, at, end);
        at = end;
    }
    let mut at = 0;
    for len in blocks {
        let Some(end) = u64::checked_add(at, len).filter(|end| *end <= data_end.min(footer as u64)) else { break };
        frame(bytes, id, at, end);
        at = end;
    }
    let sum = crc(&bytes[footer..footer + 52]);
    put(bytes, footer + 52, sum);
}

fn frame(bytes: &mut [u8], id: u64, at: u64, end: u64) {
    if end - at > 4 {
        let sum = block_crc(&bytes[at as usize..end as usize - 4], id, at);
        put(bytes, end as usize - 4, sum);
    }
}

/// Lengths of the blocks that an index names.
pub(crate) fn block_lens(index: &[u8]) -> Vec<u64> {
    let mut r = Reader::new(index);
    let (blocks, _, _) = (r.varint().unwrap_or_default(), r.varint(), r.varint());
    (0..blocks).map_while(|_| r.varint()).collect()
}

/// A value log: header, chunks as far as their lengths lead, footer.
pub fn vlog(bytes: &mut [u8], id: u64) {
    const FOOTER: usize = 48;
    if bytes.len() < 24 {
        return;
    }
    let sum = crc(&bytes[..20]);
    put(bytes, 20, sum);
    let Some(end) = bytes.len().checked_sub(FOOTER) else { return };
    let mut at = 24;
    while let Some(len) = u32_at(bytes, at + 10).filter(|len| at + 14 + len <= end) {
        let next = at + 14 + len;
        let sum = block_crc(&bytes[at + 4..next], id, at as u64);
        put(bytes, at, sum);
        at = next;
    }
    let sum = crc(&bytes[end..end + 36]);
    put(bytes, end + 36, sum);
}

/// A manifest: its header, and the records as far as their lengths lead, marks included.
pub fn manifest(bytes: &mut [u8], number: u64) {
    let seed = |at: u64| crc_append(crc(&number.to_le_bytes()), &at.to_le_bytes());
    if bytes.len() < 52 {
        return;
    }
    let sum = crc_append(seed(0), &bytes[..48]);
    put(bytes, 48, sum);
    let mut at = 52;
    while let Some(len) = u32_at(bytes, at + 1).filter(|len| *len > 0 && at + 9 + len <= bytes.len()) {
        bytes[at] = 0x5a;
        bytes[at + 8 + len] = 0xa5;
        let sum = crc_append(crc_append(seed(at as u64), &bytes[at + 1..at + 5]), &bytes[at + 9..at + 9 + len]);
        put(bytes, at + 5, sum);
        at += 9 + len;
    }
}

/// `CURRENT`: what stands before the first space is the name.
pub fn current(bytes: &mut Vec<u8>) {
    let name = bytes.iter().position(|b| *b == b' ').unwrap_or(bytes.len());
    bytes.truncate(name);
    let sum = crc(bytes);
    bytes.extend_from_slice(format!(" {sum:08x}\n").as_bytes());
}

/// A backup's manifest.
pub fn backup(bytes: &mut [u8]) {
    if let Some(end) = bytes.len().checked_sub(4) {
        let sum = crc(&bytes[..end]);
        put(bytes, end, sum);
    }
}

/// The name of a file in a backup's pool.
pub fn pool_name(bytes: &[u8], name: &str) -> String {
    format!("{:016x}-{}-{name}", hash64(bytes), bytes.len())
}

/// A backup's manifest in which file `name` has other contents.
pub fn with_file(manifest: &[u8], name: &str, contents: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut r) = (manifest[..52].to_vec(), Reader::new(&manifest[52..manifest.len() - 4]));
    let count = r.varint()?;
    put_varint(&mut out, count);
    for _ in 0..count {
        let (n, mut size, mut hash, new) = (r.slice()?, r.varint()?, r.u64()?, r.u8()?);
        if n == name.as_bytes() {
            (size, hash) = (contents.len() as u64, hash64(contents));
        }
        put_slice(&mut out, n);
        put_varint(&mut out, size);
        out.extend_from_slice(&hash.to_le_bytes());
        out.push(new);
    }
    out.extend_from_slice(&[0; 4]);
    backup(&mut out);
    Some(out)
}
