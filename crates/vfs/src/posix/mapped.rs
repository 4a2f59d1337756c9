//! A shared, writable mapping of part of a file. The one file of this crate with unsafe code: a store into a mapping costs
//! a tenth of a `write` call, and no safe interface to one can exist.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Address space that a new thread takes: the standard library's 2 MiB of stack, and what the C library maps before the
/// thread's body runs.
const THREAD_ROOM: usize = (2 << 20) + (512 << 10);

/// Checks before a thread is started that the process may have the memory that a thread takes. The C library and the
/// standard library end the process when a thread that has its stack cannot get the rest: the stack for signals, and the
/// list of destructors of thread-local values, which is a page mapped for it alone where address space is limited. So
/// free space in the heap says nothing here, and the room is mapped and given back.
///
/// # Errors
/// `OutOfMemory`, or what else the system says when it refuses the mapping.
pub fn room_for_a_thread() -> io::Result<()> {
    // SAFETY: the system chooses the address, so no other memory is replaced.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), THREAD_ROOM, ProtFlags::empty(), MapFlags::PRIVATE) }?;
    // SAFETY: exactly the mapping made above, which nothing else knows.
    unsafe { munmap(base, THREAD_ROOM) }?;
    Ok(())
}

/// The smallest alignment of offsets that `mmap` takes on every machine that Linux runs on.
pub(super) const ALIGN: u64 = 64 << 10;

/// What makes the pages of a new mapping ready for stores. Only Linux can touch them for writing at once, and only there a log is
/// mapped at all (`hints::writes_in_place`).
#[cfg(target_os = "linux")]
const TOUCH: [Advice; 2] = [Advice::Random, Advice::LinuxPopulateWrite];
#[cfg(not(target_os = "linux"))]
const TOUCH: [Advice; 1] = [Advice::Random];

/// A mapped part of a file: written through, never read, and no reference into it is ever made, so that what other
/// threads and processes do to the file meanwhile cannot break a promise to the compiler.
#[derive(Debug)]
pub(super) struct Window {
    base: NonNull<u8>,
    offset: u64,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and is tied to no thread; `put` takes `&mut self`.
unsafe impl Send for Window {}

impl Window {
    /// Maps `len` bytes from `offset`, a multiple of [`ALIGN`], and touches all pages for writing, so that `put` does not
    /// wait for them and what cannot be allocated is an error here.
    ///
    /// The caller sees to it that the file has blocks for the range and keeps them while the window lives: a store to a
    /// page without kills the process (SIGBUS).
    pub(super) fn map(file: &File, offset: u64, len: usize) -> io::Result<Window> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses the address, so no other memory is replaced.
        let base = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, offset) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let window = Window { base, offset, len };
        // Not read around: that would fill the cache with large folios, and ext4 walks the whole folio at the first store
        // to each of its pages (10 us a page in a 2 MiB folio against 0.8 us in a small one; Linux 6.18).
        for advice in TOUCH {
            // SAFETY: exactly the mapping made above. No advice here changes a byte of it.
            unsafe { madvise(base.as_ptr().cast::<c_void>(), len, advice) }?;
        }
        Ok(window)
    }

    /// Where it begins.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Stores bytes; false when they are not wholly inside. Any reader of the file sees them at once, and the death of the
    /// process does not undo them: they are in the page cache.
    #[inline]
    pub(super) fn put(&mut self, data: &[u8], offset: u64) -> bool {
        let Some(at) = offset.checked_sub(self.offset) else { return false };
        if at > self.len as u64 || data.len() as u64 > self.len as u64 - at {
            return false;
        }
        // SAFETY: `at + data.len() <= len` was just checked, so the target is inside the mapping, which lives as long as
        // `self`; `data` is a reference and so cannot overlap a mapping that no reference points into.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.base.as_ptr().add(at as usize), data.len()) };
        true
    }

    /// Stores `body` and then `head`, which ends where it begins; false when they are not wholly inside. A
    /// reader on any processor that sees the head in the file also sees the body, even if this process dies in between.
    #[inline]
    pub(super) fn put_behind(&mut self, head: &[u8], body: &[u8], offset: u64) -> bool {
        if offset < self.offset || !self.put(body, offset + head.len() as u64) {
            return false;
        }
        fence(Ordering::Release);
        self.put(head, offset)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`, and nothing points into it any more. Failure would leak address
        // space and nothing else.
        let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}
