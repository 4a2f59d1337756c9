//! What this process and its directory cost: memory, processor time, disk traffic. Read from `/proc`; zeros elsewhere.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A reading of the process's counters.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Resident bytes.
    pub rss: u64,
    /// Most resident bytes since [`reset_peak`].
    pub peak_rss: u64,
    /// Most virtual bytes.
    pub peak_vms: u64,
    /// Seconds of processor time in user mode.
    pub cpu_user: f64,
    /// Seconds of processor time in the kernel.
    pub cpu_sys: f64,
    /// Bytes that system calls read, cached or not.
    pub read_calls: u64,
    /// Bytes fetched from the device.
    pub disk_read: u64,
    /// Bytes sent or due to be sent to the device.
    pub disk_write: u64,
    /// Bytes that system calls wrote.
    pub write_calls: u64,
    /// Page faults that needed the device.
    pub major_faults: u64,
    /// Context switches, voluntary and not.
    pub context_switches: u64,
}

/// Ticks a second of `/proc/self/stat`: fixed by Linux's interface to user space.
const TICKS: f64 = 100.0;

impl Usage {
    /// The counters now.
    pub fn now() -> Usage {
        let mut u = Usage::default();
        if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
            u.rss = field(&status, "VmRSS:") * 1024;
            u.peak_rss = field(&status, "VmHWM:") * 1024;
            u.peak_vms = field(&status, "VmPeak:") * 1024;
            u.context_switches =
                field(&status, "voluntary_ctxt_switches:") + field(&status, "nonvoluntary_ctxt_switches:");
        }
        if let Ok(io) = std::fs::read_to_string("/proc/self/io") {
            u.read_calls = field(&io, "rchar:");
            u.write_calls = field(&io, "wchar:");
            u.disk_read = field(&io, "read_bytes:");
            u.disk_write = field(&io, "write_bytes:");
        }
        if let Ok(stat) = std::fs::read_to_string("/proc/self/stat")
            && let Some((_, rest)) = stat.rsplit_once(')')
        {
            // Fields are numbered from 1 in the manual; the first after the name is number 3.
            let fields: Vec<&str> = rest.split_whitespace().collect();
            let number = |n: usize| fields.get(n - 3).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
            u.major_faults = number(12) as u64;
            u.cpu_user = number(14) / TICKS;
            u.cpu_sys = number(15) / TICKS;
        }
        u
    }

    /// Counters that grew, since `before`; memory as it is now.
    pub fn since(&self, before: &Usage) -> Usage {
        Usage {
            cpu_user: self.cpu_user - before.cpu_user,
            cpu_sys: self.cpu_sys - before.cpu_sys,
            read_calls: self.read_calls - before.read_calls,
            disk_read: self.disk_read - before.disk_read,
            disk_write: self.disk_write - before.disk_write,
            write_calls: self.write_calls - before.write_calls,
            major_faults: self.major_faults - before.major_faults,
            context_switches: self.context_switches - before.context_switches,
            ..*self
        }
    }

    /// Bytes written: what is due to the device, or what was asked of the kernel where that is not counted (tmpfs).
    pub fn written(&self) -> u64 {
        if self.disk_write > 0 { self.disk_write } else { self.write_calls }
    }
}

/// Nanoseconds of processor time that the calling thread has used.
pub fn thread_cpu_ns() -> u64 {
    // The kernel brings the figure up to date when a thread leaves the processor, so leave it for an instant.
    std::thread::sleep(std::time::Duration::from_nanos(1));
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|w| w.parse().ok()).unwrap_or(0)
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|l| l.strip_prefix(name));
    line.and_then(|l| l.split_whitespace().next()).and_then(|w| w.parse().ok()).unwrap_or(0)
}

/// Forgets the peak of resident memory, so that it counts from now.
pub fn reset_peak() {
    // 5 asks for exactly this (proc_pid_clear_refs(5)); where it is refused the peak includes what came before.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Bytes that the files under `dir` occupy: blocks on the disk, or lengths where those are smaller.
pub fn disk_bytes(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let mut total = 0;
    for entry in entries.flatten() {
        // A file that vanishes while we look has no bytes.
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() {
            total += disk_bytes(&entry.path());
        } else {
            total += std::os::unix::fs::MetadataExt::blocks(&meta).saturating_mul(512).min(meta.len());
        }
    }
    total
}

/// Bytes free on the file system that holds `dir`, and whether it is memory.
pub fn is_tmpfs(dir: &Path) -> bool {
    let Ok(mounts) = std::fs::read_to_string("/proc/mounts") else { return false };
    let Ok(dir) = dir.canonicalize() else { return false };
    let mut best = (0, false);
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        let (Some(point), Some(kind)) = (words.next(), words.next()) else { continue };
        let depth = Path::new(point).components().count();
        if dir.starts_with(point) && depth >= best.0 {
            best = (depth, matches!(kind, "tmpfs" | "ramfs"));
        }
    }
    best.1
}

/// Makes `dir` new and empty. Refuses a directory that holds anything but an earlier run's data.
pub fn fresh_dir(dir: &Path) -> Result<()> {
    if dir.exists() {
        std::fs::remove_dir_all(dir).map_err(|e| Error::io("clear", dir, e))?;
    }
    std::fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_and_grows() {
        let before = Usage::now();
        let mut sum = 0u64;
        let block = vec![1u8; 8 << 20];
        for _ in 0..20 {
            sum += block.iter().map(|b| u64::from(*b)).sum::<u64>();
        }
        assert!(sum > 0);
        let after = Usage::now();
        assert!(after.rss > 1 << 20 && after.peak_rss >= after.rss, "{after:?}");
        let spent = after.since(&before);
        assert!(spent.cpu_user >= 0.0 && spent.cpu_sys >= 0.0 && spent.cpu_user < 60.0);
    }

    #[test]
    fn directories_are_measured_and_cleared() {
        let dir = std::env::temp_dir().join(format!("keybench-process-{}", std::process::id()));
        fresh_dir(&dir.join("a")).unwrap();
        std::fs::write(dir.join("a/x"), vec![1; 10_000]).unwrap();
        std::fs::write(dir.join("y"), vec![1; 5]).unwrap();
        assert_eq!(disk_bytes(&dir), 10_005);
        fresh_dir(&dir).unwrap();
        assert_eq!(disk_bytes(&dir), 0);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(disk_bytes(&dir), 0);
        assert!(!is_tmpfs(Path::new("/proc")));
    }
}
