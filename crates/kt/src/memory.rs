//! A process that gets no memory ends with an error and an exit code like any other failure, not with a signal.
//!
//! The engine hands a want of memory for anything large to its caller. What is left are the many small allocations, of the
//! standard library and of the command line too, which cannot fail one by one. For a tool that is of no use without them,
//! ending is the answer; the database is made to be left at any moment.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Whether errors are JSON. Relaxed: it is set before there are other threads, and guards no other memory.
static JSON: AtomicBool = AtomicBool::new(false);

/// Whether a thread has begun to report the error. Relaxed: it guards no other memory.
static REPORTED: AtomicBool = AtomicBool::new(false);
/// How long another thread that gets no memory waits for the one that reports it to end the process. The wait is
/// bounded in case both are the same thread.
const WAIT_FOR_REPORT: Duration = Duration::from_millis(500);

/// Sets whether errors are JSON, as the command line asks for.
pub fn set_json(json: bool) {
    JSON.store(json, Ordering::Relaxed);
}

/// The system's allocator, which ends the process when there is no memory.
pub struct OrExit;

// SAFETY: all of it is the system's allocator; the only difference is that null is never returned.
unsafe impl GlobalAlloc for OrExit {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the caller's contract, which is the same.
        or_exit(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the caller's contract, which is the same.
        or_exit(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: by the caller's contract, which is the same.
        or_exit(unsafe { System.realloc(at, layout, size) }, size)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: by the caller's contract, which is the same.
        unsafe { System.dealloc(at, layout) }
    }
}

#[inline]
fn or_exit(at: *mut u8, size: usize) -> *mut u8 {
    if at.is_null() {
        exit(size);
    }
    at
}

#[cold]
fn exit(size: usize) -> ! {
    if REPORTED.swap(true, Ordering::Relaxed) {
        // Several threads may get no memory at the same moment, and one error is enough.
        std::thread::sleep(WAIT_FOR_REPORT); // takes no memory
    } else {
        report(size);
    }
    // SAFETY: it ends the process and runs nothing of it: handlers at exit might ask for memory again.
    unsafe { libc::_exit(i32::from(crate::error::FAILED)) }
}

fn report(size: usize) {
    // Standard error has no buffer, and a number is written without memory. If it is closed, the exit code says enough.
    let mut to = std::io::stderr();
    let _ = if JSON.load(Ordering::Relaxed) {
        let message = format_args!("not enough memory: {size} bytes cannot be allocated");
        let code = crate::error::FAILED;
        writeln!(to, "{{\"error\":{{\"kind\":\"failed\",\"message\":\"{message}\",\"exit_code\":{code}}}}}")
    } else {
        writeln!(to, "kt: not enough memory: {size} bytes cannot be allocated")
    };
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Barrier;

    const CHILD: &str = "KT_TEST_MANY_WITHOUT_MEMORY";

    #[test]
    fn many_threads_without_memory_report_one_error() {
        if std::env::var_os(CHILD).is_some() {
            let ready = Barrier::new(8);
            std::thread::scope(|s| {
                for _ in 0..8 {
                    s.spawn(|| {
                        ready.wait();
                        super::exit(8)
                    });
                }
            });
        }
        for _ in 0..20 {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["memory::tests::many_threads_without_memory_report_one_error", "--exact", "--nocapture"]);
            let said = child.env(CHILD, "1").output().unwrap();
            let errors = String::from_utf8_lossy(&said.stderr);
            assert_eq!(errors.matches("not enough memory").count(), 1, "{errors}");
            assert_eq!(said.status.code(), Some(i32::from(crate::error::FAILED)));
        }
    }
}
