//! Tells a forked child from the process that it was forked from.
//!
//! A child has its parent's memory but none of its threads, and shares the parent's open files and file locks. An engine
//! object that it inherited is therefore unusable: its background threads do not exist, its locks may be held by threads
//! that do not exist, and its writes would be mixed with the parent's.
//!
//! The check has to cost next to nothing, because every read makes it. So it is no system call: a page of memory that the
//! kernel hands to a forked child filled with zeros (`MADV_WIPEONFORK`) holds the process's generation, a number that no
//! ancestor of the process has.

use std::process;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The wiped page; null until the first [`Origin`] is made, and for good where there is no such page.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// The last generation given out in this process or, before its own, in those it descends from.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The process that made this value. A copy of it in a forked child still means the parent.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Where the present process's generation stands. Without a page, process ids take the place of generations.
    page: Option<&'static AtomicU64>,
    generation: u64,
}

impl Default for Origin {
    fn default() -> Origin {
        Origin::here()
    }
}

impl Origin {
    /// The present process.
    pub fn here() -> Origin {
        let page = page();
        let generation = page.map_or_else(|| u64::from(process::id()), generation);
        Origin { page, generation }
    }

    /// Whether the present process is the one that made this value, and not a forked child of it. Two loads and a
    /// comparison on Linux.
    #[inline]
    pub fn is_here(&self) -> bool {
        match self.page {
            // Relaxed: only the process's own threads write to it, before they hand out what they wrote.
            Some(page) => page.load(Ordering::Relaxed) == self.generation,
            None => u64::from(process::id()) == self.generation,
        }
    }
}

/// One value for the present process, made at its first use. A forked child gets one of its own: the one that it inherited
/// may be locked by a thread that the child does not have. Values are not freed: there is one for each process of a line of
/// descent that opens databases.
pub struct PerProcess<T>(AtomicPtr<(Origin, T)>);

impl<T: Default + Send + Sync> Default for PerProcess<T> {
    fn default() -> Self {
        PerProcess::new()
    }
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// No value yet.
    pub const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The present process's value.
    pub fn get(&'static self) -> &'static T {
        // Acquire, here and below: partner of the Release with which the value is published.
        let mut current = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a box that was published below, which is never freed and never handed out for writing.
            if let Some((_, value)) = unsafe { current.as_ref() }.filter(|(origin, _)| origin.is_here()) {
                return value;
            }
            let made = Box::into_raw(Box::new((Origin::here(), T::default())));
            match self.0.compare_exchange(current, made, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: the box made above, which from now on is never freed.
                Ok(_) => return unsafe { &(*made).1 },
                Err(other) => {
                    // SAFETY: the box made above, which no other thread has seen.
                    drop(unsafe { Box::from_raw(made) });
                    current = other;
                }
            }
        }
    }
}

/// The generation on the page; the first caller in a process decides on it.
fn generation(page: &AtomicU64) -> u64 {
    // Relaxed, here and below: the number stands for nothing but itself.
    match page.load(Ordering::Relaxed) {
        0 => {
            // An ancestor's generation is at most what `LAST` was when it forked.
            let mine = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            page.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|other| other, |_| mine)
        }
        known => known,
    }
}

/// The wiped page, made by the first caller. No lock: a thread that holds one while another thread forks would leave it
/// locked in the child for ever.
fn page() -> Option<&'static AtomicU64> {
    // Acquire: partner of the Release below, so that the advice was given before the page is used.
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        let made = map()?;
        page = match PAGE.compare_exchange(std::ptr::null_mut(), made, Ordering::Release, Ordering::Acquire) {
            Ok(_) => made,
            Err(other) => other, // the page just made is left unused: it happens once in a process at most
        };
    }
    // SAFETY: `map` made it: aligned, at least 8 bytes of zeros, never unmapped. A fork replaces its content by zeros in the
    // child's own memory only, before the child runs.
    Some(unsafe { &*page })
}

/// Maps a page that is wiped in forked children; `None` where the system has no such thing (before Linux 4.14) or no
/// memory.
#[cfg(all(target_os = "linux", not(miri)))]
fn map() -> Option<*mut AtomicU64> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    let len = 64 << 10; // a multiple of every page size that Linux has
    // SAFETY: the system chooses the address, so no other memory is replaced.
    let page =
        unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    let page = page.ok()?;
    // SAFETY: exactly the mapping made above, which holds nothing yet.
    if unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: the same mapping; nothing refers to it.
        let _ = unsafe { munmap(page, len) };
        return None;
    }
    Some(page.cast())
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn map() -> Option<*mut AtomicU64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_its_own_origin() {
        let origin = Origin::here();
        assert!(origin.is_here());
        assert!(Origin::here().is_here() && origin.is_here());
    }

    #[test]
    fn a_wiped_page_means_another_process() {
        static WIPED: AtomicU64 = AtomicU64::new(0);
        let page = &WIPED;
        let parent = Origin { page: Some(page), generation: generation(page) };
        assert!(parent.is_here());
        page.store(0, Ordering::Relaxed); // what the kernel does to it in a child
        assert!(!parent.is_here());
        let child = Origin { page: Some(page), generation: generation(page) };
        assert!(child.is_here() && !parent.is_here(), "the child's own generation is none of its ancestors'");
        let without = Origin { page: None, generation: u64::from(process::id()) };
        assert!(without.is_here());
        assert!(!Origin { page: None, generation: without.generation + 1 }.is_here());
    }

    #[cfg(unix)]
    #[test]
    fn a_child_forked_while_another_thread_takes_a_lock_can_take_locks() {
        let path = std::env::temp_dir().join(format!("kingtide-forked-lock-{}", std::process::id()));
        let held = crate::lock::HELD.get().lock();
        // SAFETY: the child takes and gives back one lock and leaves through `_exit`; an alarm ends it if it waits for ever.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(20);
                let taken = crate::SystemFs::shared().lock(&path).map(drop);
                libc::_exit(i32::from(taken.is_err()));
            }
            assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status
        };
        drop(held);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(status, 0, "the child failed, or waited for a lock of its parent");
    }
}
