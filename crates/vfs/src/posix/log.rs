//! A log segment: small appends are stores into a mapped window that slides along the file, large ones are `pwrite`.
//!
//! Both go through the page cache, so they are coherent with each other, with reads, and across the death of the process.

use std::path::Path;

use kingtide_base::Result;
use kingtide_base::lock::Mutex;
use kingtide_base::perf::{self, Stage};

use super::file::PosixFile;
use super::hints::writes_in_place;
use super::mapped::{ALIGN, Window};
use crate::{File, ONE_WRITE, is_one_write};

/// Bytes mapped at a time. The pages are touched when the window slides: 80 of them in one append's time.
const WINDOW: u64 = 256 << 10;
/// Writes of this size and more go through `pwrite`: a `pwrite` costs about 250 ns and 100 ns a KiB, a store nothing and
/// 300 ns a KiB, because the pages of the window are touched one by one.
const LARGE: usize = 1 << 10;
/// Most bytes in one `pwrite`: a large one leaves large folios in the cache, which make the window of the next log in this
/// file slow (see [`Window::map`]).
const PWRITE_MAX: usize = 64 << 10;
/// After a sync, this many small writes go through `pwrite` first. A sync makes the pages read-only, so the next store to
/// one is a fault that costs more than a `pwrite`; a log that is synced after every few writes, those of a group of commits
/// perhaps, never gains from a window, and without one a sync does not write out the touched pages ahead of the tail.
const WRITES_BEFORE_WINDOW: u32 = 512;

/// A log segment.
#[derive(Debug)]
pub(super) struct PosixLog {
    file: PosixFile,
    /// There were bytes in it, which may have to be read before a page can be written in part.
    recycled: bool,
    tail: Mutex<Tail>,
}

#[derive(Debug)]
struct Tail {
    window: Option<Window>,
    /// The file has blocks from the start to here; no window reaches past it.
    allocated: u64,
    /// Whether a store to an allocated block can never run out of space.
    mappable: bool,
    small_since_sync: u32,
}

impl PosixLog {
    /// A log over a file of exactly `size` allocated bytes.
    pub(super) fn new(file: PosixFile, size: u64, recycled: bool) -> PosixLog {
        let mappable = writes_in_place(&file.file);
        let tail = Tail { window: None, allocated: size, mappable, small_since_sync: 0 };
        PosixLog { file, recycled, tail: Mutex::new(tail) }
    }
}

impl PosixLog {
    /// Stores a small write into the window, sliding it there first when that pays. False: use `pwrite`.
    #[inline]
    fn store(&self, data: &[u8], offset: u64) -> bool {
        if !self.file.origin.is_here() {
            return false; // `pwrite` refuses it
        }
        let mut tail = self.tail.lock();
        if tail.small_since_sync < WRITES_BEFORE_WINDOW {
            tail.small_since_sync += 1;
            return false;
        }
        tail.window.as_mut().is_some_and(|w| w.put(data, offset)) || self.slide(&mut tail, data, offset)
    }

    /// Whether a small record was written at once: into the window, the body first, or with one `pwrite` to one page, which a
    /// signal does not interrupt (see [`is_one_write`] for the exceptions).
    #[inline]
    fn store_record(&self, head: &[u8], body: &[u8], offset: u64) -> Result<bool> {
        let len = head.len() + body.len();
        if len > ONE_WRITE || !self.file.origin.is_here() {
            return Ok(false);
        }
        let mut tail = self.tail.lock();
        if tail.small_since_sync >= WRITES_BEFORE_WINDOW {
            return Ok(tail.window.as_mut().is_some_and(|w| w.put_behind(head, body, offset)));
        }
        if !is_one_write(offset, len) {
            return Ok(false);
        }
        tail.small_since_sync += 2; // as two writes would
        drop(tail);
        let mut record = [0; ONE_WRITE];
        record[..head.len()].copy_from_slice(head);
        record[head.len()..len].copy_from_slice(body);
        self.file.write_at(&record[..len], offset).map(|()| true)
    }

    #[cold]
    fn slide(&self, tail: &mut Tail, data: &[u8], offset: u64) -> bool {
        let inside = offset.checked_add(data.len() as u64).is_some_and(|end| end <= tail.allocated);
        let backwards = tail.window.as_ref().is_some_and(|w| offset < w.offset());
        if !inside || backwards || !tail.mappable || data.is_empty() {
            return false;
        }
        // The old one goes first, so that there are never two.
        tail.window = None;
        let start = offset / ALIGN * ALIGN;
        let len = (WINDOW + ALIGN).min(tail.allocated - start);
        if self.recycled {
            // Bytes that left the cache come back in large reads, those of the next window meanwhile.
            self.file.prefetch(start, 2 * WINDOW);
        }
        let timer = perf::begin_wait();
        let mapped = Window::map(&self.file.file, start, len as usize);
        timer.end(Stage::LogWindowNs);
        match mapped {
            Ok(w) => tail.window.insert(w).put(data, offset),
            // No memory for page tables, an old kernel, a disk error while reading a recycled page: `pwrite` will either
            // work or say what is wrong.
            Err(_) => {
                tail.mappable = false;
                false
            }
        }
    }
}

impl File for PosixLog {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        if data.len() < LARGE && self.store(data, offset) {
            return Ok(());
        }
        let mut at = offset;
        for piece in data.chunks(PWRITE_MAX) {
            self.file.write_at(piece, at)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn write_record_at(&self, head: &[u8], body: &[u8], offset: u64) -> Result<bool> {
        self.store_record(head, body, offset)
    }

    fn sync_data(&self) -> Result<()> {
        self.tail.lock().small_since_sync = 0;
        self.file.sync_data()
    }

    fn sync_all(&self) -> Result<()> {
        self.tail.lock().small_since_sync = 0;
        self.file.sync_all()
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn truncate(&self, len: u64) -> Result<()> {
        let mut tail = self.tail.lock();
        tail.window = None;
        tail.allocated = tail.allocated.min(len);
        self.file.truncate(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        let mut tail = self.tail.lock();
        self.file.allocate(offset, len)?;
        if offset <= tail.allocated {
            tail.allocated = tail.allocated.max(offset + len);
        }
        Ok(())
    }

    fn prefill(&self, offset: u64, len: u64) -> Result<bool> {
        if self.recycled || !self.tail.lock().mappable {
            return Ok(false);
        }
        // Page by page, so that the cache holds small folios: see `PWRITE_MAX`.
        static PAGE: [u8; 4 << 10] = [0; 4 << 10];
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let n = (end - at).min(PAGE.len() as u64);
            self.file.write_at(&PAGE[..n as usize], at)?;
            at += n;
        }
        Ok(true)
    }

    fn advise_sequential(&self) {
        self.file.advise_sequential();
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.file.prefetch(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenMode, SMALLEST_PAGE as PAGE, SystemFs};
    use kingtide_base::rng::Rng;

    /// A record in one page is written at once before there is a window, and any record that lies in the window.
    #[test]
    fn small_records_are_written_at_once() {
        let path = std::env::temp_dir().join(format!("kingtide-vfs-records-{}", std::process::id()));
        let file = super::super::file::open_file(&path, OpenMode::Overwrite, Default::default()).unwrap();
        file.allocate(0, WINDOW).unwrap();
        let mapped = writes_in_place(&file.file);
        let log = PosixLog::new(file, WINDOW, false);
        let mut model = vec![0; WINDOW as usize];
        let mut put = |head: &[u8], body: &[u8], at: u64| {
            let put = log.write_record_at(head, body, at).unwrap();
            if put {
                model[at as usize..][..head.len()].copy_from_slice(head);
                model[at as usize + head.len()..][..body.len()].copy_from_slice(body);
            }
            let mut all = vec![0; WINDOW as usize];
            log.read_exact_at(&mut all, 0).unwrap();
            assert!(all == model, "at {at}");
            put
        };
        assert!(put(b"head", b"and body", 0) && put(b"head", b"", 100) && put(&[7; 96], &[8; 200], PAGE - 296));
        assert!(!put(b"head", b"and body", PAGE - 11), "a kill might come between the pages");
        assert!(!put(&[1; 32], &[2; ONE_WRITE - 31], 0), "too long");
        let unmapped = (0..WRITES_BEFORE_WINDOW as u64).take_while(|i| put(b"h", b"b", 1000 + 2 * i)).count();
        assert_eq!(unmapped, WRITES_BEFORE_WINDOW as usize / 2 - 3, "three came before, and each counts as two writes");
        log.write_at(&[0], 50).unwrap(); // makes the window
        assert_eq!(put(b"head", b"and body", PAGE - 11), mapped);
        assert!(!put(b"head", b"and body", WINDOW - 11), "behind the window");
        log.sync_data().unwrap();
        assert!(!put(b"head", b"and body", 2 * PAGE - 11), "after a sync as at first");
        std::fs::remove_file(&path).unwrap();
    }

    /// That the window is really used, slides, and follows the rules above; what it stores is the suite's business.
    #[test]
    fn the_window_slides_and_is_dropped() {
        let path = std::env::temp_dir().join(format!("kingtide-vfs-window-{}", std::process::id()));
        let file = super::super::file::open_file(&path, OpenMode::Overwrite, Default::default()).unwrap();
        let size = 4 * WINDOW;
        file.allocate(0, size).unwrap();
        if !writes_in_place(&file.file) {
            return; // nothing to see on this file system
        }
        let log = PosixLog::new(file, size, false);
        let at = |log: &PosixLog| log.tail.lock().window.as_ref().map(Window::offset);
        let mut model = vec![0; size as usize];
        let mut put = |log: &PosixLog, offset: u64, len: usize| {
            let data = vec![(offset % 251) as u8 + 1; len];
            log.write_at(&data, offset).unwrap();
            model[offset as usize..][..len].copy_from_slice(&data);
            let mut got = vec![0; len];
            SystemFs::shared().open(&path, OpenMode::Read).unwrap().read_exact_at(&mut got, offset).unwrap();
            assert!(got == data);
        };
        for i in 0..WRITES_BEFORE_WINDOW as u64 {
            put(&log, i * 10, 10);
        }
        assert_eq!(at(&log), None, "the first writes after opening or a sync do not map");
        put(&log, 400, 10);
        assert_eq!(at(&log), Some(0));
        put(&log, 2 * WINDOW, LARGE);
        put(&log, size - 5, 5);
        assert_eq!(at(&log), Some(size - ALIGN), "large writes leave it, small ones take it along");
        put(&log, 7, 10);
        assert_eq!(at(&log), Some(size - ALIGN), "it does not go back");
        log.sync_data().unwrap();
        log.truncate(size).unwrap();
        assert_eq!(at(&log), None, "a truncate drops it");
        (0..WRITES_BEFORE_WINDOW as u64 + 100).for_each(|i| put(&log, i * 10, 10));
        assert_eq!(at(&log), Some(0));
        // A record across the end of the window takes it to the record.
        let mut rng = Rng::new(1);
        let mut offset = 1000;
        while offset < size - LARGE as u64 {
            let len = 1 + rng.below(LARGE as u64 - 1);
            put(&log, offset, len as usize);
            assert!(at(&log).is_some_and(|w| w <= offset && offset + len <= w + WINDOW + ALIGN));
            offset += len;
        }
        let mut all = vec![0; size as usize];
        log.read_exact_at(&mut all, 0).unwrap();
        assert!(all == model);
        std::fs::remove_file(&path).unwrap();
    }
}
