//! What figures depend on beside the engines: the disk, the processors that may be used, the page size, the compiler and the
//! allocator. Read from `/proc` and `/sys`; what is not told there is left out.

use crate::measure::{show_bytes, sig3};
use crate::process::{self, Machine};
use std::path::{Path, PathBuf};

/// Facts by name about this machine and about the file system that holds `dir`, or will hold it once it is made.
pub fn facts(dir: &Path) -> Vec<(&'static str, String)> {
    let mounts = text(Path::new("/proc/self/mountinfo"));
    let mount = process::existing(dir).and_then(|d| d.canonicalize().ok()).and_then(|d| Mount::of(&mounts, &d));
    let free = process::free_bytes(dir).map(|n| format!(", {} free", show_bytes(n as f64)));
    let status = text(Path::new("/proc/self/status"));
    let allowed = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).map(|l| l.trim().to_owned());
    let governor = text(Path::new("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    let all = [
        ("file system", mount.as_ref().map(|m| format!("{}{}", m.file_system(), free.unwrap_or_default()))),
        ("device", mount.as_ref().map(|m| m.device(Path::new("/sys/dev/block")))),
        ("processors that may be used", allowed),
        ("frequency governor", Some(governor.trim().to_owned()).filter(|g| !g.is_empty())),
        ("pages", page_size(&text(Path::new("/proc/self/smaps")))),
        ("compiler", Some(env!("KEYBENCH_RUSTC").to_owned())),
        ("allocator", Some(allocator(&text(Path::new("/proc/self/maps"))))),
    ];
    all.into_iter().filter_map(|(name, fact)| Some((name, fact?))).collect()
}

/// The same as lines of a report, behind one of what the machine is. `bytes` is the size of the data set.
pub fn lines(dir: &Path, bytes: u64) -> String {
    let now = Machine::now();
    let (available, dir_name) = (show_bytes(now.available), dir.display());
    let what = process::describe_machine();
    let mut out = format!("  {what}, {available} of memory available, load {:.2}, data in {dir_name}\n", now.load);
    let build = match cfg!(debug_assertions) {
        true => "UNOPTIMISED BUILD: figures are meaningless; use --release",
        false => "release build",
    };
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("KEYBENCH_COMMIT"));
    out.push_str(&format!("  keybench {version}, commit {commit}, {build}\n"));
    let told = facts(dir).into_iter().chain(against_memory(bytes).map(|told| ("data set", told)));
    told.for_each(|(name, fact)| out.push_str(&format!("  {name}: {fact}\n")));
    out
}

/// Columns of a table of results that tell the machine, for [`cells`].
pub const COLUMNS: &str = "machine,file_system,device,allowed_cpus,governor,page_size,compiler,allocator";

/// The cells of [`COLUMNS`]: of facts that are not known they are empty. They contain no comma.
pub fn cells(dir: &Path) -> String {
    let facts = facts(dir);
    let of = |name: &str| facts.iter().find(|(n, _)| *n == name).map_or(String::new(), |(_, fact)| fact.clone());
    let named = [
        "file system",
        "device",
        "processors that may be used",
        "frequency governor",
        "pages",
        "compiler",
        "allocator",
    ];
    let cells: Vec<String> = std::iter::once(process::describe_machine()).chain(named.map(of)).collect();
    cells.iter().map(|cell| cell.replace(',', ";")).collect::<Vec<_>>().join(",")
}

/// How a data set of so many bytes lies to this machine's memory; nothing where either is not known.
pub fn against_memory(bytes: u64) -> Option<String> {
    let memory = Machine::now().memory;
    (bytes > 0 && memory > 0).then(|| compare(bytes, memory))
}

fn compare(bytes: u64, memory: u64) -> String {
    let (data, all) = (show_bytes(bytes as f64), show_bytes(memory as f64));
    let what = match bytes > memory {
        true => format!("{} times", sig3(bytes as f64 / memory as f64)),
        false => "smaller than".to_owned(),
    };
    let note = if bytes > memory { "" } else { ": the page cache may serve all reads" };
    format!("about {data}, {what} the memory of {all}{note}")
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// A line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Debug, PartialEq)]
struct Mount {
    /// `253:0`, the device's numbers.
    numbers: String,
    point: PathBuf,
    options: String,
    kind: String,
    source: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Mount> {
        let (left, right) = line.split_once(" - ")?;
        let (left, right): (Vec<&str>, Vec<&str>) = (left.split(' ').collect(), right.split(' ').collect());
        Some(Mount {
            numbers: (*left.get(2)?).to_owned(),
            // Blanks in names are written as their octal codes.
            point: left.get(4)?.replace("\\040", " ").into(),
            options: (*left.get(5)?).to_owned(),
            kind: (*right.first()?).to_owned(),
            source: (*right.get(1)?).to_owned(),
        })
    }

    /// The mount that holds `dir`: the deepest, and of those the last, which hides the others.
    fn of(mounts: &str, dir: &Path) -> Option<Mount> {
        let holding = mounts.lines().filter_map(Mount::parse).filter(|m| dir.starts_with(&m.point));
        holding.max_by_key(|m| m.point.components().count())
    }

    fn file_system(&self) -> String {
        format!("{} on {} ({})", self.kind, self.point.display(), self.options)
    }

    fn device(&self, block_devices: &Path) -> String {
        let own = block_devices.join(&self.numbers);
        // A partition has no queue; its disk is the directory above.
        let queue = [own.join("queue"), own.join("../queue")].into_iter().find(|q| q.join("rotational").exists());
        let rotates = queue.map(|q| text(&q.join("rotational")).trim() == "1");
        let how = match rotates {
            Some(true) => ", rotational",
            Some(false) => ", not rotational (or a virtual disk that says so)",
            None => ", not a block device of this machine",
        };
        format!("{}{how}", self.source)
    }
}

fn page_size(smaps: &str) -> Option<String> {
    let size = smaps.lines().find_map(|l| l.strip_prefix("KernelPageSize:"))?;
    Some(size.split_whitespace().collect::<Vec<_>>().join(" ").replace("kB", "KiB"))
}

/// Which allocator this process has: the C library's, unless another was loaded before it.
fn allocator(maps: &str) -> String {
    let known = ["jemalloc", "mimalloc", "tcmalloc", "snmalloc"];
    let loaded = known.iter().find(|name| maps.lines().any(|l| l.contains(*name)));
    loaded.map_or("the C library's".to_owned(), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
27 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw,discard
25 27 0:23 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=1k
30 27 254:16 / /big\\040disk rw,noatime shared:7 - xfs /dev/vdb rw
31 27 254:17 /sub /big\\040disk ro - btrfs /dev/vdc rw
";

    #[test]
    fn the_mount_is_the_deepest_and_the_last() {
        let of = |dir: &str| Mount::of(MOUNTS, Path::new(dir)).unwrap();
        assert_eq!(of("/data").file_system(), "ext4 on / (rw,relatime)");
        assert_eq!(of("/dev/shm/x").kind, "tmpfs");
        assert_eq!(of("/big disk/stores").source, "/dev/vdc");
        assert_eq!(Mount::of("nonsense\n1 2 3 - x\n", Path::new("/")), None);
    }

    #[test]
    fn a_partition_turns_as_its_disk_does() {
        let dir = std::env::temp_dir().join(format!("keybench-machine-{}", std::process::id()));
        process::fresh_dir(&dir).unwrap();
        for (disk, turns) in [("254:0", "1\n"), ("254:16", "0\n")] {
            std::fs::create_dir_all(dir.join(disk).join("queue")).unwrap();
            std::fs::write(dir.join(disk).join("queue/rotational"), turns).unwrap();
        }
        std::fs::create_dir(dir.join("254:0/vda1")).unwrap();
        std::os::unix::fs::symlink("254:0/vda1", dir.join("254:1")).unwrap();
        let told = |data: &str| Mount::of(MOUNTS, Path::new(data)).unwrap().device(&dir);
        assert_eq!(told("/data"), "/dev/vda1, rotational");
        assert_eq!(
            Mount { numbers: "254:16".into(), ..Mount::of(MOUNTS, Path::new("/")).unwrap() }.device(&dir),
            "/dev/vda1, not rotational (or a virtual disk that says so)"
        );
        assert_eq!(told("/dev/shm"), "tmpfs, not a block device of this machine");
        process::remove_dir(&dir).unwrap();
    }

    #[test]
    fn tables_have_a_cell_for_each_column() {
        let cells = cells(Path::new("."));
        assert_eq!(cells.matches(',').count(), COLUMNS.matches(',').count(), "{cells}");
        let of = |name: &str| cells.split(',').nth(COLUMNS.split(',').position(|c| c == name).unwrap()).unwrap();
        assert!(of("machine").contains(" GiB; Linux ") && of("compiler").starts_with("rustc "), "{cells}");
        assert!(of("file_system").contains(" on /") && of("page_size").ends_with(" KiB"), "{cells}");
    }

    #[test]
    fn a_data_set_is_compared_with_memory_and_allocators_are_recognised() {
        assert_eq!(compare(3 << 30, 2 << 30), "about 3.00 GiB, 1.50 times the memory of 2.00 GiB");
        assert!(compare(1 << 30, 2 << 30).contains("smaller than the memory of 2.00 GiB: the page cache"));
        assert_eq!(allocator("7f00 r-xp /usr/lib/libjemalloc.so.2\n"), "jemalloc");
        assert_eq!(allocator("7f00 r-xp /usr/lib/libc.so.6\n"), "the C library's");
        assert_eq!(page_size("Size: 8 kB\nKernelPageSize:        4 kB\n").as_deref(), Some("4 KiB"));
    }
}
