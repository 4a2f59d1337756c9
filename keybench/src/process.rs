//! What this process and its directory cost: memory, processor time, disk traffic. Read from `/proc`; zeros elsewhere.

use crate::error::{Error, Result};
use crate::measure::show_bytes;
use crate::say::note;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A reading of the process's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Bytes that system calls read, cached or not, without those of the files that tell all this.
    pub read_calls: u64,
    /// Bytes fetched from the device.
    pub disk_read: u64,
    /// Bytes sent or due to be sent to the device.
    pub disk_write: u64,
    /// Bytes that system calls wrote.
    pub write_calls: u64,
    /// Page faults that did not need the device.
    pub minor_faults: u64,
    /// Page faults that needed the device.
    pub major_faults: u64,
    /// Threads.
    pub threads: u64,
}

/// Bytes that this module has read to learn all this, which are no engine's.
static OWN_READS: AtomicU64 = AtomicU64::new(0);

/// A file of `/proc`.
fn proc_text(path: impl AsRef<Path>) -> std::io::Result<String> {
    let text = std::fs::read_to_string(path);
    if let Ok(text) = &text {
        // Relaxed: a counter that orders nothing.
        OWN_READS.fetch_add(text.len() as u64, Ordering::Relaxed);
    }
    text
}

/// Ticks a second of `/proc/self/stat`: fixed by Linux's interface to user space.
const TICKS: f64 = 100.0;

impl Usage {
    /// The counters now.
    pub fn now() -> Usage {
        let mut u = Usage::default();
        if let Ok(status) = proc_text("/proc/self/status") {
            u.rss = field(&status, "VmRSS:") * 1024;
            u.peak_rss = field(&status, "VmHWM:") * 1024;
            u.peak_vms = field(&status, "VmPeak:") * 1024;
            u.threads = field(&status, "Threads:");
        }
        // Relaxed: as above. What is read next is not in the answer yet.
        let own = OWN_READS.load(Ordering::Relaxed);
        if let Ok(io) = proc_text("/proc/self/io") {
            u.read_calls = field(&io, "rchar:").saturating_sub(own);
            u.write_calls = field(&io, "wchar:");
            u.disk_read = field(&io, "read_bytes:");
            u.disk_write = field(&io, "write_bytes:");
        }
        if let Ok(stat) = proc_text("/proc/self/stat")
            && let Some((_, rest)) = stat.rsplit_once(')')
        {
            // Fields are numbered from 1 in the manual; the first after the name is number 3.
            let fields: Vec<&str> = rest.split_whitespace().collect();
            let number = |n: usize| fields.get(n - 3).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
            u.minor_faults = number(10) as u64;
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
            // Threads that read for this at the same time may be counted a little late.
            read_calls: self.read_calls.saturating_sub(before.read_calls),
            disk_read: self.disk_read - before.disk_read,
            disk_write: self.disk_write - before.disk_write,
            write_calls: self.write_calls - before.write_calls,
            minor_faults: self.minor_faults - before.minor_faults,
            major_faults: self.major_faults - before.major_faults,
            ..*self
        }
    }

    /// Bytes written: what is due to the device, or what was asked of the kernel where that is not counted (tmpfs).
    pub fn written(&self) -> u64 {
        if self.disk_write > 0 { self.disk_write } else { self.write_calls }
    }
}

/// Times that the threads which now live gave up their processors, and were made to.
pub fn context_switches() -> (u64, u64) {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let statuses = tasks.filter_map(|t| proc_text(t.path().join("status")).ok());
    statuses.fold((0, 0), |(own, forced), status| {
        (own + field(&status, "voluntary_ctxt_switches:"), forced + field(&status, "nonvoluntary_ctxt_switches:"))
    })
}

/// Threads of this process, beside the calling one, that run, wait for a processor, or wait for the disk.
pub fn busy_threads() -> usize {
    let own = std::fs::read_link("/proc/thread-self").ok().and_then(|p| p.file_name().map(ToOwned::to_owned));
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let others = tasks.filter(|t| Some(t.file_name()) != own);
    let stats = others.filter_map(|t| proc_text(t.path().join("stat")).ok());
    // The state follows the name, which may hold anything, in brackets.
    stats.filter(|s| s.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['R', 'D']))).count()
}

/// The machine as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine {
    /// Share of all processors' time that was used since the last reading of this process, in percent.
    pub busy_percent: f64,
    /// Bytes that are available without swapping.
    pub available: f64,
    /// Bytes of memory there are.
    pub memory: u64,
    /// Load average of the last minute.
    pub load: f64,
}

/// Busy and all ticks at the last reading.
static TICKS_BEFORE: Mutex<(u64, u64)> = Mutex::new((0, 0));

impl Machine {
    /// A reading.
    pub fn now() -> Machine {
        let text = |path| proc_text(path).unwrap_or_default();
        let stat = text("/proc/stat");
        let cpu: Vec<u64> =
            stat.lines().next().unwrap_or_default().split_whitespace().skip(1).flat_map(str::parse).collect();
        // user nice system idle iowait irq softirq steal; what follows is part of user.
        let all: u64 = cpu.iter().take(8).sum();
        let idle: u64 = cpu.iter().skip(3).take(2).sum();
        let now = (all - idle, all);
        let before = std::mem::replace(&mut *TICKS_BEFORE.lock().unwrap_or_else(PoisonError::into_inner), now);
        let span = now.1.saturating_sub(before.1);
        let busy = now.0.saturating_sub(before.0) as f64;
        let meminfo = text("/proc/meminfo");
        Machine {
            busy_percent: if span > 0 { 100.0 * busy / span as f64 } else { 0.0 },
            available: field(&meminfo, "MemAvailable:") as f64 * 1024.0,
            memory: field(&meminfo, "MemTotal:") * 1024,
            load: text("/proc/loadavg").split_whitespace().next().and_then(|w| w.parse().ok()).unwrap_or(0.0),
        }
    }
}

/// Processors, memory and kernel in a line.
pub fn describe_machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory = Machine::now().memory as f64 / 1_073_741_824.0;
    format!("{cores} x {}, {memory:.0} GiB, Linux {}", model.trim_start_matches([' ', '\t', ':']), kernel.trim())
}

/// Nanoseconds of processor time that the calling thread has used.
pub fn thread_cpu_ns() -> u64 {
    // The kernel brings the figure up to date when a thread leaves the processor, so leave it for an instant.
    std::thread::sleep(std::time::Duration::from_nanos(1));
    let text = proc_text("/proc/thread-self/schedstat").unwrap_or_default();
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

/// Writes the files under `dir` out and takes their pages from the kernel's page cache. Pages that a process has mapped and
/// touched stay, and so does what a file system keeps in a cache of its own. Costs the writing of what is dirty.
///
/// # Errors
/// A file that cannot be opened, synced or advised about; one that vanishes meanwhile is none.
pub fn drop_cache(dir: &Path) -> Result<()> {
    let entries = std::fs::read_dir(dir).map_err(|e| Error::io("list", dir, e))?;
    for entry in entries.flatten() {
        let path = entry.path();
        let file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(Error::io("open", &path, e)),
        };
        let kind = file.metadata().map_err(|e| Error::io("look at", &path, e))?.file_type();
        if kind.is_dir() {
            drop_cache(&path)?;
        } else if kind.is_file() {
            // Only pages that are not dirty are dropped.
            file.sync_all().map_err(|e| Error::io("sync", &path, e))?;
            let advised = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
            advised.map_err(|e| Error::io("drop the cached pages of", &path, e.into()))?;
        }
    }
    Ok(())
}

/// A store's files at their largest against its keys and values: what was merged is there until its merger is complete.
pub const ROOM_FACTOR: u64 = 2;

/// The directory in which `dir` will be made, or itself if it is there.
pub fn existing(dir: &Path) -> Option<PathBuf> {
    let dir = std::path::absolute(dir).ok()?;
    dir.ancestors().find(|d| d.exists()).map(Path::to_owned)
}

/// Bytes free for this user on the file system that holds `dir`, or will hold it once it is made.
pub fn free_bytes(dir: &Path) -> Option<u64> {
    let fs = rustix::fs::statvfs(&existing(dir)?).ok()?;
    Some(fs.f_bavail.saturating_mul(fs.f_frsize))
}

/// Refuses to fill a file system: `dir` must have room for `bytes`.
pub fn need_room(dir: &Path, bytes: u64) -> Result<()> {
    match free_bytes(dir) {
        Some(free) if free < bytes => {
            let (needed, free) = (show_bytes(bytes as f64), show_bytes(free as f64));
            let (dir, advice) = (dir.display(), "make room, name another directory, or use --ignore-free-space");
            Err(Error::usage(format!(
                "{dir} has too little room: the data set needs about {needed}, {free} are free; {advice}"
            )))
        }
        _ => Ok(()),
    }
}

/// Whether the file system that holds `dir` is memory.
pub fn is_tmpfs(dir: &Path) -> bool {
    let Ok(mounts) = std::fs::read_to_string("/proc/mounts") else { return false };
    let Some(dir) = existing(dir).and_then(|d| d.canonicalize().ok()) else { return false };
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

/// Says what a run in `dir` cannot show if that is memory.
pub fn warn_of_tmpfs(dir: &Path, sync: bool) {
    if is_tmpfs(dir) {
        let synced = if sync { ", and a synced write is as lost as any other when the machine stops" } else { "" };
        note!("warning: {} is memory, not a disk: disk figures are meaningless{synced}", dir.display());
    }
}

/// The file beside `dir` that says that its contents are a run's and may be removed.
fn mark(dir: &Path) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(".keybench");
    name.into()
}

/// Marks that this process has locked, for as long as it uses the directories beside them.
static HELD: Mutex<Vec<(PathBuf, std::fs::File)>> = Mutex::new(Vec::new());

/// Locks the mark of `dir` for this process, unless it has done so before; makes the mark if it is not there.
///
/// # Errors
/// A usage error if another process holds the lock: it uses the directory.
fn hold(dir: &Path) -> Result<()> {
    let mark = mark(dir);
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if held.iter().any(|(path, _)| *path == mark) {
        return Ok(());
    }
    loop {
        let opened = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&mark);
        let file = opened.map_err(|e| Error::io("write", &mark, e))?;
        // A file system without locks has none to respect.
        let locked = rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        if locked == Err(rustix::io::Errno::WOULDBLOCK) {
            let why = "is used by another run of keybench: wait for its end, or name another directory";
            return Err(Error::usage(format!("{} {why}", dir.display())));
        }
        let identity =
            |m: std::fs::Metadata| (std::os::unix::fs::MetadataExt::dev(&m), std::os::unix::fs::MetadataExt::ino(&m));
        let there = std::fs::metadata(&mark).map(identity).ok();
        // Else the run that had it ended between the two calls, and removed it.
        if there.is_some() && there == file.metadata().map(identity).ok() {
            held.push((mark, file));
            return Ok(());
        }
    }
}

/// Makes `dir` new and empty. Refuses a directory that holds anything but an earlier run's data, and one that another process made
/// and still uses: until it ends, or until [`remove_dir`].
pub fn fresh_dir(dir: &Path) -> Result<()> {
    let mark = mark(dir);
    let holds_something = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    if holds_something && !mark.exists() {
        let why = "holds something that no run of keybench left there: remove it yourself, or name another directory";
        return Err(Error::usage(format!("{} {why}", dir.display())));
    }
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent).map_err(|e| Error::io("create", parent, e))?;
    }
    hold(dir)?;
    clear_dir(dir)
}

/// Makes a directory empty that this process, or the one that started it, has from [`fresh_dir`].
pub fn clear_dir(dir: &Path) -> Result<()> {
    gone(dir, std::fs::remove_dir_all(dir))?;
    std::fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))
}

/// That what was to be removed is not there is no failure.
fn gone(path: &Path, done: std::io::Result<()>) -> Result<()> {
    match done {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path, e)),
        _ => Ok(()),
    }
}

/// Removes a directory that [`fresh_dir`] made, if it is there.
pub fn remove_dir(dir: &Path) -> Result<()> {
    gone(dir, std::fs::remove_dir_all(dir))?;
    let mark = mark(dir);
    gone(&mark, std::fs::remove_file(&mark))?;
    HELD.lock().unwrap_or_else(PoisonError::into_inner).retain(|(path, _)| *path != mark);
    Ok(())
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
    fn room_is_looked_for_where_the_directory_will_be() {
        let dir = std::env::temp_dir().join("keybench-no-such-directory/and/below");
        let free = free_bytes(&dir).unwrap();
        assert!(free > 0 && Path::new("/proc").exists());
        need_room(&dir, 1).unwrap();
        let e = need_room(&dir, u64::MAX).unwrap_err();
        assert_eq!(e.exit_code(), 2);
        for part in ["keybench-no-such-directory", "GiB", "--ignore-free-space", "are free"] {
            assert!(e.to_string().contains(part), "{e}");
        }
    }

    #[test]
    fn a_dropped_cache_is_read_from_the_disk_again() {
        let dir = std::env::temp_dir().join(format!("keybench-drop-{}", std::process::id()));
        fresh_dir(&dir).unwrap();
        std::fs::create_dir(dir.join("below")).unwrap();
        let path = dir.join("below/x");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        // Bytes that this thread has the disk read for the file. A read that must not wait is no way to ask: it begins to read ahead, and
        // has the data if that is done by the time it looks.
        let from_disk = || {
            let io = || std::fs::read_to_string("/proc/thread-self/io").unwrap_or_default();
            let bytes =
                |io: String| io.lines().find_map(|l| l.strip_prefix("read_bytes: ")?.parse::<u64>().ok()).unwrap_or(0);
            let before = bytes(io());
            assert_eq!(std::fs::read(&path).unwrap(), vec![7; 1 << 20]);
            bytes(io()) - before
        };
        let before = from_disk();
        drop_cache(&dir).unwrap();
        let disk = ["ext4 ", "xfs "].iter().any(|kind| {
            crate::machine::facts(&dir).iter().any(|(name, fact)| *name == "file system" && fact.starts_with(kind))
        });
        let after = from_disk();
        assert!(!disk || (before == 0 && after >= 1 << 20), "{before} bytes, and {after} when its pages are gone");
        remove_dir(&dir).unwrap();
        assert!(drop_cache(&dir).unwrap_err().to_string().contains("list"));
    }

    #[test]
    fn the_directory_of_a_run_that_goes_on_is_refused() {
        let dir = std::env::temp_dir().join(format!("keybench-held-{}", std::process::id()));
        // As another process would: a lock belongs to the file that was opened, not to the process.
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("store"), "in use").unwrap();
        let other = std::fs::File::create(mark(&dir)).unwrap();
        rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        let e = fresh_dir(&dir).unwrap_err();
        assert!(e.exit_code() == 2 && e.to_string().contains("is used by another run"), "{e}");
        assert!(dir.join("store").exists());
        drop(other);
        fresh_dir(&dir).unwrap();
        assert!(!dir.join("store").exists());
        let second = std::fs::File::open(mark(&dir)).unwrap();
        let lock = || rustix::fs::flock(&second, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        assert_eq!(lock(), Err(rustix::io::Errno::WOULDBLOCK), "it is this process's now");
        fresh_dir(&dir).unwrap();
        remove_dir(&dir).unwrap();
        lock().unwrap();
    }

    #[test]
    fn directories_are_measured_and_cleared() {
        let dir = std::env::temp_dir().join(format!("keybench-process-{}", std::process::id()));
        fresh_dir(&dir).unwrap();
        fresh_dir(&dir.join("a")).unwrap();
        std::fs::remove_file(dir.join("a.keybench")).unwrap();
        std::fs::write(dir.join("a/x"), vec![1; 10_000]).unwrap();
        std::fs::write(dir.join("y"), vec![1; 5]).unwrap();
        assert_eq!(disk_bytes(&dir), 10_005);
        fresh_dir(&dir).unwrap();
        assert_eq!(disk_bytes(&dir), 0);
        remove_dir(&dir).unwrap();
        assert_eq!(disk_bytes(&dir), 0);
        remove_dir(&dir).unwrap();
        assert!(!is_tmpfs(Path::new("/proc")));
        let memory = Path::new("/dev/shm");
        assert_eq!(is_tmpfs(&memory.join("not/there/yet")), is_tmpfs(memory));
        std::fs::create_dir_all(&dir).unwrap();
        fresh_dir(&dir).unwrap();
        std::fs::remove_file(mark(&dir)).unwrap();
        std::fs::write(dir.join("thesis.txt"), "years of work").unwrap();
        assert_eq!(fresh_dir(&dir).unwrap_err().exit_code(), 2);
        assert!(dir.join("thesis.txt").exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
