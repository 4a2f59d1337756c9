//! What calls of the operating system need around them: they are repeated where a signal interrupted them, and continued where they
//! did only a part.

use std::fs;
use std::io;
#[cfg(any(target_os = "linux", test))]
use std::io::IoSlice;
use std::path::Path;

use kingtide_base::{Error, ErrorKind, Result};

use crate::{File, OpenMode};

/// Others that create a file of the same name again and again are given up on after so many of them were removed.
const REPLACED: usize = 16;

/// Creates a file in place of what has its name, which is removed and not written to.
pub(crate) fn replace(
    mut options: fs::OpenOptions,
    path: &Path,
    remove: fn(&Path) -> io::Result<()>,
) -> io::Result<fs::File> {
    options.create_new(true);
    let mut removed = 0;
    loop {
        match retry(|| options.open(path)) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && removed < REPLACED => removed += 1,
            other => return other,
        }
        match remove(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
}

/// Opens or creates a log segment of exactly `size` bytes with blocks, and returns how long it was.
pub(crate) fn open_sized<F: File>(
    path: &Path,
    size: u64,
    open: impl Fn(OpenMode) -> Result<F>,
    remove: fn(&Path) -> io::Result<()>,
) -> Result<(F, u64)> {
    let (file, new) = match open(OpenMode::Write) {
        Err(e) if e.kind() == ErrorKind::NotFound => (open(OpenMode::Create)?, true),
        other => (other?, false),
    };
    let len = file.len()?;
    if len > size {
        file.truncate(size)?;
    }
    if let Err(e) = file.allocate(0, size) {
        // A full disk gave what it had. The cause is what the caller needs to hear, so failures here are not told.
        let _ = if new { remove(path).map_err(|e| Error::io("remove", path, e)) } else { file.truncate(len.min(size)) };
        return Err(e);
    }
    Ok((file, len))
}

/// Repeats a call that a signal interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Fills `buf` through a `pread` that may return early; the count is short only at the end of the file.
pub(crate) fn read_fully(buf: &mut [u8], pread: impl Fn(&mut [u8], u64) -> io::Result<usize>) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match retry(|| pread(&mut buf[done..], done as u64))? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// Writes all of `data` through a `pwrite` that may take only part of it.
pub(crate) fn write_fully(data: &[u8], pwrite: impl Fn(&[u8], u64) -> io::Result<usize>) -> io::Result<()> {
    let mut done = 0;
    while done < data.len() {
        match retry(|| pwrite(&data[done..], done as u64))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => done += n,
        }
    }
    Ok(())
}

/// The same for many parts, with a `pwritev` that may also take only the first few of them.
#[cfg(any(target_os = "linux", test))]
pub(crate) fn write_parts_fully(
    parts: &[&[u8]],
    pwritev: impl Fn(&[IoSlice<'_>], u64) -> io::Result<usize>,
) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let (mut rest, mut done) = (&mut slices[..], 0);
    IoSlice::advance_slices(&mut rest, 0); // the first may be empty
    while !rest.is_empty() {
        match retry(|| pwritev(rest, done))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => {
                done += n as u64;
                IoSlice::advance_slices(&mut rest, n);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn interrupted_and_partial_calls_are_continued() {
        let file: Vec<u8> = (0..100).collect();
        for seed in 0..50 {
            let rng = Cell::new(seed);
            let draw = |n: u64| {
                let mut r = kingtide_base::rng::Rng::new(rng.get());
                rng.set(r.next_u64());
                r.below(n)
            };
            let mut got = [0; 150];
            let n = read_fully(&mut got, |b, at| {
                if draw(3) == 0 {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                let rest = &file[at as usize..];
                let n = rest.len().min(b.len()).min(1 + draw(20) as usize);
                b[..n].copy_from_slice(&rest[..n]);
                Ok(n)
            });
            assert_eq!((n.unwrap(), &got[..100]), (100, &file[..]));
            let out = Cell::new(Vec::new());
            write_fully(&file, |b, at| {
                if draw(3) == 0 {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                let mut o = out.take();
                assert_eq!(o.len() as u64, at);
                let n = b.len().min(1 + draw(20) as usize);
                o.extend_from_slice(&b[..n]);
                out.set(o);
                Ok(n)
            })
            .unwrap();
            assert_eq!(out.take(), file);
            let parts = [&file[..0], &file[..7], &file[7..8], &[], &[], &file[8..], &[]];
            write_parts_fully(&parts, |parts, at| {
                if draw(3) == 0 {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                let mut o = out.take();
                assert_eq!(o.len() as u64, at);
                let n = 1 + draw(20) as usize;
                o.extend(parts.iter().flat_map(|part| part.iter()).take(n));
                let taken = o.len() - at as usize;
                out.set(o);
                Ok(taken)
            })
            .unwrap();
            assert_eq!(out.take(), file);
            write_parts_fully(&[b"", b""], |_, _| Err(io::ErrorKind::Other.into())).unwrap(); // there is nothing to write
        }
        let e = write_fully(b"x", |_, _| Ok(0)).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::WriteZero, "a write that takes nothing must not loop");
        let e = write_parts_fully(&[b"", b"x"], |_, _| Ok(0)).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::WriteZero, "nor may one of many parts");
    }
}
