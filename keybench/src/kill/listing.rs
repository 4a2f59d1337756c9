//! What a store holds, read from front to back and written to a file for the process that judges it.

use super::journal::{Bytes, Print, put_bytes};
use super::model::Contents;
use crate::engine::{Bounds, Engine, Session};
use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Every so many keys is also got by itself.
const GET_EVERY: u64 = 5;
/// Contradictions that are reported.
const TOLD: usize = 5;

/// Writes down the keys that may be gone, for the process that lists the store.
pub fn ask(path: &Path, keys: &BTreeSet<Vec<u8>>) -> Result<()> {
    let mut all = Vec::new();
    keys.iter().for_each(|key| put_bytes(&mut all, key));
    std::fs::write(path, all).map_err(|e| Error::io("write", path, e))
}

/// The keys that [`ask`] wrote down, in order.
pub fn asked(path: &Path) -> Result<Vec<Vec<u8>>> {
    let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
    let mut rest = Bytes(&bytes);
    Ok(std::iter::from_fn(|| rest.bytes().map(<[u8]>::to_vec)).collect())
}

/// Gets the next keys of `gone` that come before `key`, or all that are left. A scan does not show them, so a get may not
/// find them either.
fn get_gone<'a>(
    gone: &mut std::iter::Peekable<impl Iterator<Item = &'a Vec<u8>>>,
    key: Option<&[u8]>,
    getter: &mut dyn Session,
    wrong: &mut Vec<String>,
) -> Result<()> {
    while let Some(absent) = gone.next_if(|k| key.is_none_or(|key| k.as_slice() < key)) {
        if getter.get(absent, &mut |_| ())? {
            wrong.push(format!("a get finds key '{}', which a scan does not show", absent.escape_ascii()));
        }
    }
    // The scan shows it.
    let _ = gone.next_if(|k| key.is_some_and(|key| k.as_slice() == key));
    Ok(())
}

/// Writes the listing of `engine` to `path`. Returns the number of keys, and what contradicts itself: keys out of order, or
/// a get that answers otherwise than the scan. `asked` has the keys, in order, that are got although a scan may not show
/// them.
pub fn write(engine: &dyn Engine, path: &Path, asked: &[Vec<u8>]) -> Result<(u64, Vec<String>)> {
    let file = File::create(path).map_err(|e| Error::io("create", path, e))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let (mut session, mut getter) = (engine.session()?, engine.session()?);
    let mut cursor = session.cursor(Bounds::default())?;
    let (mut keys, mut wrong, mut last) = (0u64, Vec::new(), Vec::new());
    let (mut record, mut gone) = (Vec::new(), asked.iter().peekable());
    let mut valid = cursor.first()?;
    while valid {
        let (key, value) = cursor.entry()?;
        get_gone(&mut gone, Some(key), &mut *getter, &mut wrong)?;
        let print = Print::of(value);
        if keys > 0 && *key <= last[..] {
            wrong.push(format!("key '{}' comes after '{}' in a scan", key.escape_ascii(), last.escape_ascii()));
        }
        if keys.is_multiple_of(GET_EVERY) {
            let mut got = None;
            getter.get(key, &mut |value| got = Some(Print::of(value)))?;
            if got != Some(print) {
                wrong.push(format!("a get of key '{}' answers otherwise than a scan", key.escape_ascii()));
            }
        }
        record.clear();
        put_bytes(&mut record, key);
        record.extend(print.len.to_le_bytes());
        record.extend(print.hash.to_le_bytes());
        out.write_all(&record).map_err(|e| Error::io("write", path, e))?;
        last.clear();
        last.extend_from_slice(key);
        keys += 1;
        valid = cursor.next()?;
    }
    get_gone(&mut gone, None, &mut *getter, &mut wrong)?;
    out.flush().map_err(|e| Error::io("write", path, e))?;
    wrong.truncate(TOLD);
    Ok((keys, wrong))
}

/// Reads a listing of `keys` keys.
pub fn read(path: &Path, keys: u64) -> Result<Contents> {
    let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
    let mut rest = Bytes(&bytes);
    let mut found = Contents::new();
    let mut listed = 0;
    while let Some(key) = rest.bytes() {
        let Some(print) = rest.print() else { break };
        found.insert(key.to_vec(), print);
        listed += 1;
    }
    if listed == keys && rest.0.is_empty() {
        return Ok(found);
    }
    Err(Error::failed(format!("{}: lists {listed} keys, not {keys}", path.display())))
}
