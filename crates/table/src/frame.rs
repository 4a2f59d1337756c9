//! Frames: how blocks lie in a file, and the buffered output that writes them.
//!
//! | bytes | what |
//! |---|---|
//! | n | payload: the raw bytes, or what [`crate::compression`] made of them |
//! | 1 | compression, u8 |
//! | 4 | crc32c of payload and compression byte, bound to file id and offset, u32 |

use crate::compression::{Compressor, Decompressor};
use kingtide_base::checksum::{block_crc, crc, crc_append, place};
use kingtide_base::memory::zeroed;
use kingtide_base::options::Compression;
use kingtide_base::{Error, Result};
use kingtide_vfs::File;
use std::borrow::Cow;
use std::sync::Arc;

/// Bytes after the payload.
pub const TRAILER: usize = 5;

/// Where a frame is, trailer included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handle {
    /// Its first byte.
    pub offset: u64,
    /// Bytes, trailer included.
    pub len: u32,
}

/// Checks a frame read from `offset` and splits it.
///
/// # Errors
/// `Corruption` when it is too short, its checksum is wrong (damage, or bytes of another place) or its compression is
/// unknown. The caller adds file and offset.
#[inline]
pub fn open(frame: &[u8], file_id: u64, offset: u64) -> Result<(Compression, &[u8])> {
    let Some((covered, crc)) = frame.split_last_chunk::<4>() else {
        return Err(Error::corruption("block is too short"));
    };
    if block_crc(covered, file_id, offset) != u32::from_le_bytes(*crc) {
        return Err(Error::corruption("block checksum mismatch"));
    }
    let Some((method, payload)) = covered.split_last() else { return Err(Error::corruption("block is too short")) };
    match Compression::from_u8(*method) {
        Some(m) => Ok((m, payload)),
        None => Err(Error::corruption(format!("unknown compression {method}"))),
    }
}

/// Checks a frame and returns its raw bytes, without a copy where they are not compressed.
///
/// # Errors
/// As [`open`], and `Corruption` when it does not decompress.
pub fn open_raw(frame: &[u8], file_id: u64, offset: u64) -> Result<Cow<'_, [u8]>> {
    let (method, payload) = open(frame, file_id, offset)?;
    if method == Compression::None {
        return Ok(Cow::Borrowed(payload));
    }
    let mut decompressor = Decompressor::default();
    let mut raw = zeroed(decompressor.room(method, payload, None)?, "a part of a table")?;
    decompressor.decompress(method, payload, &mut raw, None)?;
    Ok(Cow::Owned(raw))
}

/// Refuses what a frame cannot hold.
fn check_len(raw: &[u8]) -> Result<()> {
    if raw.len() > u32::MAX as usize - TRAILER {
        return Err(Error::invalid("an entry does not fit in a block of 4 GiB"));
    }
    Ok(())
}

/// Where there is room for it, writes end at multiples of so many bytes. The page cache of Linux keeps a file in folios that begin at multiples of
/// their size and are no larger than the writes that made them: see `docs/experiments.md`, "Large values".
pub const PIECE: usize = 128 << 10;

/// Appends to a file through a buffer, with positioned writes.
pub struct Output {
    file: Arc<dyn File>,
    /// All of it is initialised, so that compression can write into it without clearing it first. Empty until the first
    /// byte comes.
    buf: Vec<u8>,
    capacity: usize,
    used: usize,
    flushed: u64,
}

impl Output {
    /// Writes to `file` from its start, in pieces of about `capacity` bytes.
    pub fn new(file: Arc<dyn File>, capacity: usize) -> Output {
        Output { file, buf: Vec::new(), capacity, used: 0, flushed: 0 }
    }

    /// The file.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// Bytes of the buffer.
    pub fn memory(&self) -> usize {
        self.buf.len()
    }

    /// Where the next byte goes.
    #[inline]
    pub fn position(&self) -> u64 {
        self.flushed + self.used as u64
    }

    /// Room for `n` bytes at [`Output::position`]; [`Output::advance`] keeps them.
    #[inline]
    pub fn room(&mut self, n: usize) -> Result<&mut [u8]> {
        if self.buf.len() - self.used < n {
            self.make_room(n)?;
        }
        Ok(&mut self.buf[self.used..self.used + n])
    }

    /// Writes out what is buffered, up to a multiple of [`PIECE`] if that makes room for `n` bytes.
    fn make_room(&mut self, n: usize) -> Result<()> {
        let tail = (self.position() % PIECE as u64) as usize;
        if tail < self.used && self.buf.len() - tail >= n {
            let whole = self.used - tail;
            self.file.write_at(&self.buf[..whole], self.flushed)?;
            self.buf.copy_within(whole..self.used, 0);
            self.flushed += whole as u64;
            self.used = tail;
            return Ok(());
        }
        self.flush()?;
        self.make_buffer(n)
    }

    /// Makes the buffer, which is empty, large enough for `n` bytes at once.
    fn make_buffer(&mut self, n: usize) -> Result<()> {
        if self.buf.len() < n.max(self.capacity) {
            self.buf = Vec::new(); // before the larger one is made
            self.buf = zeroed(n.max(self.capacity), "output")?;
        }
        Ok(())
    }

    /// Sees to it that writes of things of up to `n` bytes can end at multiples of [`PIECE`].
    pub fn reserve_pieces(&mut self, n: usize) -> Result<()> {
        if self.buf.len() < n + PIECE {
            self.flush()?;
            self.make_buffer(n + PIECE)?;
        }
        Ok(())
    }

    /// Keeps the first `n` bytes of the room.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        self.used += n;
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.room(bytes.len())?.copy_from_slice(bytes);
        self.advance(bytes.len());
        Ok(())
    }

    /// Appends a frame, compressed when that pays.
    pub fn append_frame(
        &mut self,
        compressor: &mut Compressor,
        method: Compression,
        raw: &[u8],
        file_id: u64,
    ) -> Result<Handle> {
        check_len(raw)?;
        let offset = {
            self.room(raw.len() + TRAILER)?;
            self.position()
        };
        let room = &mut self.buf[self.used..self.used + raw.len() + TRAILER];
        let (n, method) = match compressor.compress(raw, &mut room[..raw.len()]) {
            Some(n) => (n, method),
            None => {
                room[..raw.len()].copy_from_slice(raw);
                (raw.len(), Compression::None)
            }
        };
        room[n] = method as u8;
        let crc = block_crc(&room[..n + 1], file_id, offset);
        room[n + 1..n + TRAILER].copy_from_slice(&crc.to_le_bytes());
        self.used += n + TRAILER;
        Ok(Handle { offset, len: (n + TRAILER) as u32 })
    }

    /// Appends a frame that is not compressed. One that is larger than the buffer is written from where it is: a copy of a large filter
    /// would take as much memory as the filter.
    pub fn append_plain(&mut self, raw: &[u8], file_id: u64) -> Result<Handle> {
        check_len(raw)?;
        let offset = self.position();
        if raw.len() > self.capacity {
            self.flush()?;
            self.file.write_at(raw, self.flushed)?;
            self.flushed += raw.len() as u64;
        } else {
            self.append(raw)?;
        }
        let method = [Compression::None as u8];
        let crc = crc_append(crc(raw), &method) ^ place(file_id, offset);
        self.append(&method)?;
        self.append(&crc.to_le_bytes())?;
        Ok(Handle { offset, len: (raw.len() + TRAILER) as u32 })
    }

    /// Writes out what is buffered.
    pub fn flush(&mut self) -> Result<()> {
        if self.used > 0 {
            self.file.write_at(&self.buf[..self.used], self.flushed)?;
            self.flushed += self.used as u64;
            self.used = 0;
        }
        Ok(())
    }

    /// Releases the buffer's memory if it is empty. The next byte allocates it again.
    pub fn release_buffer(&mut self) {
        if self.used == 0 {
            self.buf = Vec::new();
        }
    }

    /// Counts `n` bytes that the caller wrote to the file behind what it has. Nothing may be buffered.
    pub fn skip(&mut self, n: u64) {
        debug_assert!(self.used == 0, "bytes are buffered");
        self.flushed += n;
    }

    /// Gives up what was appended from `position` on, which a write that failed may have written in part.
    ///
    /// # Errors
    /// `Io`: the file may hold bytes from there on.
    pub fn rewind(&mut self, position: u64) -> Result<()> {
        debug_assert!(position <= self.position(), "{position} is behind the end");
        self.used = position.saturating_sub(self.flushed) as usize;
        self.flushed = self.flushed.min(position);
        self.file.truncate(self.flushed)
    }

    /// Writes out what is buffered and makes it durable. Returns the length of the file.
    pub fn finish(mut self) -> Result<u64> {
        self.flush()?;
        self.file.sync_data()?;
        Ok(self.flushed)
    }
}
