//! The same under power cuts, on a real file system: the child's database is on a loop device, and in place of a kill the
//! file system is shut down as by a power cut (`FS_IOC_SHUTDOWN` without a flush of its journal): what the page cache had not
//! written back is lost, mapped log window included. Before that, pages of the log are written back in random order.
//! Then the file system is mounted again, which recovers its journal, and the database must hold each writer's commits up
//! to one that is not before the last that was acknowledged to survive.
//!
//! Needs root, loop devices and `xfs_io`: `cargo xtask powercut` runs it, on ext4 and XFS.

use super::{Run, commit_ops, drawn_options, key, open_families, progress, value};
use kingtide::vfs::{DirId, File, FileLock, Fs, OpenMode, SystemFs};
use kingtide::{Db, Durability, Options, Result, Tuning, WriteBatch, WriteOptions};
use kingtide_base::hash::mix64;
use kingtide_base::options::FileMode;
use kingtide_base::rare;
use kingtide_base::rng::Rng;
use kingtide_testkit::killed::{BEGIN, acknowledge, parse, spawn};
use std::io::{Read, Stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// In acknowledgements: a writer, plus this, begins a commit with `Power`; plus twice this, it was acknowledged.
const BEGINS: u64 = 64;
const WRITERS: u64 = 4;

/// The machine's files, with a boot id of the test's own: the kernel goes on where a power cut would have restarted it, and
/// the engine rightly takes a log of the same boot for one that lost nothing.
#[derive(Debug)]
struct OtherBoot {
    inner: Arc<dyn Fs>,
    boot: u64,
}

impl Fs for OtherBoot {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        self.inner.open(path, mode)
    }

    fn open_log(&self, path: &Path, size: u64) -> Result<Arc<dyn File>> {
        self.inner.open_log(path, size)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.inner.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.inner.remove_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.hard_link(from, to)
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.inner.create_dir_all(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<String>> {
        self.inner.list(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.inner.exists(path)
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.inner.sync_dir(path)
    }

    fn dir_id(&self, path: &Path) -> Result<DirId> {
        self.inner.dir_id(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.inner.lock(path)
    }

    fn free_space(&self, path: &Path) -> Result<u64> {
        self.inner.free_space(path)
    }

    fn with_mode(self: Arc<Self>, mode: FileMode) -> Arc<dyn Fs> {
        Arc::new(OtherBoot { inner: self.inner.clone().with_mode(mode), boot: self.boot })
    }

    fn boot_id(&self) -> [u8; 16] {
        let (a, b) = (mix64(self.boot).to_le_bytes(), mix64(!self.boot).to_le_bytes());
        std::array::from_fn(|i| if i < 8 { a[i] } else { b[i - 8] })
    }
}

/// Options for the `boot`th boot.
pub fn options(draw: u64, boot: u64) -> Options {
    let mut options = drawn_options(draw);
    options.fs = Some(Arc::new(OtherBoot { inner: SystemFs::shared(), boot }));
    if draw.is_multiple_of(2) {
        options.tuning = Tuning::default(); // long segments, in which the window slides
    }
    options
}

// The child.

/// Writers of which one commit in `every` asks for `Power`.
pub fn write_for_ever(db: &Db, seed: u64, writers: u64, every: u64, out: &Mutex<Stdout>) {
    let families = open_families(db);
    std::thread::scope(|s| {
        for w in 0..writers {
            let families = &families;
            s.spawn(move || {
                let mut n = progress(families, seed, w);
                loop {
                    n += 1;
                    let power = mix64(seed ^ w << 40 ^ n).is_multiple_of(every);
                    let durability = if power { Durability::Power } else { Durability::Process };
                    let mut batch = WriteBatch::new();
                    for op in commit_ops(seed, w, n) {
                        match op {
                            super::Op::Put(f, slot) => batch.put(&families[f], &key(w, slot), &value(w, slot, n)),
                            super::Op::Delete(f, slot) => batch.delete(&families[f], &key(w, slot)),
                            super::Op::DeleteRange(f, a, b) => batch.delete_range(&families[f], &key(w, a)..&key(w, b)),
                        }
                        .unwrap();
                    }
                    if power {
                        acknowledge(out, w + BEGINS, n);
                    }
                    let options = WriteOptions::new().durability(durability);
                    if db.write_with(&mut batch, &options).is_err() {
                        // The disk is gone. Nothing more is said: the test harness would.
                        loop {
                            std::thread::park();
                        }
                    }
                    acknowledge(out, if power { w + 2 * BEGINS } else { w }, n);
                }
            });
        }
    });
}

// The parent.

fn run(program: &str, args: &[&str]) -> bool {
    let done = Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    done.is_ok_and(|s| s.success())
}

fn must(program: &str, args: &[&str]) {
    assert!(run(program, args), "{program} {args:?} failed");
}

/// What is known to survive, by writer, after the acknowledgements of a child: everything that was acknowledged before a
/// commit with `Power` began that was acknowledged itself.
fn durable(output: &[u8]) -> Vec<u64> {
    let mut acknowledged = vec![0; WRITERS as usize];
    let mut begun = vec![acknowledged.clone(); WRITERS as usize];
    let mut durable = acknowledged.clone();
    for (who, n) in parse(output) {
        let w = (who % BEGINS) as usize;
        if w >= acknowledged.len() || who / BEGINS > 2 {
            break; // the harness speaks of a child that died by itself
        }
        match who / BEGINS {
            0 => acknowledged[w] = n,
            1 => begun[w] = acknowledged.clone(),
            _ => {
                acknowledged[w] = n;
                begun[w][w] = n;
                durable.iter_mut().zip(&begun[w]).for_each(|(d, b)| *d = (*d).max(*b));
            }
        }
    }
    durable
}

/// Has some pages of the log written back, in random order, so that a later page may be on the disk without an earlier one.
fn write_back_some(dir: &Path, rng: &mut Rng) -> u64 {
    let Ok(names) = std::fs::read_dir(dir) else { return 0 };
    let logs: Vec<PathBuf> =
        names.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "wal")).collect();
    let mut pages = 0;
    for log in logs.iter().rev().take(3) {
        let len = std::fs::metadata(log).map_or(0, |m| m.len());
        let commands: Vec<String> = (0..rng.below(12))
            .map(|_| format!("sync_range -w {} {}", rng.below(len.div_ceil(4096).max(1)) * 4096, 4096 << rng.below(4)))
            .collect();
        let mut args: Vec<&str> = vec!["-x"];
        commands.iter().for_each(|c| args.extend(["-c", c.as_str()]));
        let log = log.display().to_string();
        args.push(&log);
        if !commands.is_empty() && run("xfs_io", &args) {
            pages += commands.len() as u64;
        }
    }
    pages
}

/// Runs a child on the mounted file system until the power is cut. Returns what it said before.
fn write_until_the_cut(mount: &Path, seed: u64, job: &str, life: u64, rng: &mut Rng, pages: &mut u64) -> Vec<u8> {
    let dir = mount.join("db");
    let mut child = spawn(&super::child_name(), &dir, seed, job);
    let mut out = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = out.read_to_end(&mut all);
        all
    });
    std::thread::sleep(Duration::from_millis(life / 5 + rng.below(life)));
    for _ in 0..rng.below(4) {
        *pages += write_back_some(&dir, rng);
    }
    must("xfs_io", &["-x", "-c", "shutdown", &mount.display().to_string()]);
    let _ = child.kill();
    child.wait().unwrap();
    // What it said after the cut was acknowledged by nothing that can be synced: a commit with `Power` fails by then.
    reader.join().unwrap()
}

#[test]
#[ignore = "needs root, loop devices and xfs_io: cargo xtask powercut"]
fn acknowledged_commits_survive_power_cuts_of_a_real_file_system() {
    let var = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: cargo xtask powercut"));
    let (image, mount) = (var("KINGTIDE_POWER_IMAGE"), PathBuf::from(var("KINGTIDE_POWER_MOUNT")));
    let rounds: u64 = var("KINGTIDE_POWER_ROUNDS").parse().unwrap();
    let target = mount.display().to_string();
    let seed = super::seed();
    println!("seed {seed}, {rounds} rounds");
    let (mut rng, start) = (Rng::new(seed), Instant::now());
    let mut all = Run::new(seed, "power-cut");
    let (mut pages, mut torn, mut commits, mut power) = (0, 0, 0u64, 0u64);
    for round in 0..rounds {
        let every = [1, 40, 2000][rng.below(3) as usize];
        let job = format!("{WRITERS},{every},{round},0,0");
        // The log's window is mapped once it was not synced for some hundred small writes.
        let life = if every == 2000 { 4000 } else { 800 };
        let output = write_until_the_cut(&mount, seed, &job, life, &mut rng, &mut pages);
        assert!(output.windows(BEGIN.len()).any(|w| w == BEGIN), "seed {seed} round {round}: the child did not begin");
        commits += parse(&output).filter(|(who, _)| matches!(who / BEGINS, 0 | 2)).count() as u64;
        power += parse(&output).filter(|(who, _)| who / BEGINS == 2).count() as u64;
        must("umount", &[&target]);
        must("mount", &["-o", "loop", &image, &target]);
        let place = format!("seed {seed} round {round}, one in {every} with Power");
        let before = rare::counts();
        let db =
            Db::open(mount.join("db"), options(seed ^ round, round + 1)).unwrap_or_else(|e| panic!("{place}: {e}"));
        let taken = |name: &str, counts: &[(&str, u64)]| counts.iter().find(|c| c.0 == name).map_or(0, |c| c.1);
        torn += taken("log-torn-tail", &rare::counts()) - taken("log-torn-tail", &before);
        let families = open_families(&db);
        for (w, n) in (0..).zip(durable(&output)) {
            let known = all.models[w as usize].commits.max(n);
            let found = progress(&families, seed, w);
            assert!(found >= known, "{place}: writer {w}: {known} survives a power cut, {found} was found");
            all.acknowledged[w as usize] = known;
        }
        all.check(round, &db);
        if rng.one_in(3) {
            db.close().unwrap();
        }
    }
    println!(
        "{rounds} power cuts, {commits} commits acknowledged, {power} with Power, {pages} ranges of the log written back out \
         of order, {torn} torn tails, {} keys compared, {:.0?}",
        all.checked_keys,
        start.elapsed()
    );
    println!("{}", kingtide_base::rare::report(&all.rare_paths()));
}
