//! Where files say to how many bytes compressed ones expand: what a reader might make room for without a look at them.

use crate::forge::{block_lens, u32_at, u64_at};
use kingtide_base::coding::Reader;
use std::path::Path;

/// Of a whole file of the sample: for each such length the offsets, which must agree, of its u32s.
pub fn of(path: &Path, bytes: &[u8]) -> Vec<Vec<usize>> {
    let claims = match path.extension().and_then(|e| e.to_str()) {
        Some("klog") => klog(bytes),
        Some("vlog") => vlog(bytes),
        Some("wal") => Some(wal(bytes)),
        _ => None,
    };
    claims.unwrap_or_default()
}

/// Frames whose compression byte is not 0 begin with it.
fn klog(bytes: &[u8]) -> Option<Vec<Vec<usize>>> {
    let footer = bytes.len().checked_sub(64)?;
    let lens: Vec<usize> = (1..6).filter_map(|i| Some(u64_at(bytes, footer + 8 * i)? as usize)).collect();
    let index = lens[0] + lens[1]..lens[0] + lens[1] + lens[2] - 5;
    let mut frames: Vec<usize> = block_lens(&bytes[index]).into_iter().map(|n| n as usize).collect();
    frames.extend(&lens[1..]);
    let (mut at, mut claims) = (0, Vec::new());
    for len in frames {
        if len > 9 && bytes[at + len - 5] != 0 {
            claims.push(vec![at]);
        }
        at += len;
    }
    Some(claims)
}

/// A chunk's header has it, and if the chunk is compressed what follows, too.
fn vlog(bytes: &[u8]) -> Option<Vec<Vec<usize>>> {
    let (mut at, mut claims) = (24, Vec::new());
    while at + 14 < bytes.len().checked_sub(48)? {
        if bytes[at + 4] != 0 {
            claims.push(vec![at + 6, at + 14]);
        }
        at += 14 + u32_at(bytes, at + 10)?;
    }
    Some(claims)
}

/// Values that were packed before they were logged.
fn wal(bytes: &[u8]) -> Vec<Vec<usize>> {
    let (mut at, mut claims) = (64, Vec::new());
    while let Some(len) = u32_at(bytes, at + 8).filter(|len| *len > 0 && at + 32 + len <= bytes.len()) {
        let payload = &bytes[at + 32..at + 32 + len];
        let mut r = Reader::new(payload);
        let mut next = || -> Option<Option<usize>> {
            let kind = r.u8()?;
            let _ = (r.varint()?, r.slice()?);
            if kind & 0x3f != 2 {
                return if kind & 0x3f < 2 { Some(None) } else { r.slice().map(|_| None) };
            }
            let value = r.slice()?;
            let skip = if kind & 0x80 != 0 { 9 } else { 1 };
            Some((kind & 0x40 != 0).then(|| payload.len() - r.rest().len() - value.len() + skip))
        };
        while let Some(found) = next() {
            claims.extend(found.map(|place| vec![at + 32 + place]));
        }
        at = (at + 32 + len).next_multiple_of(8);
    }
    claims
}
