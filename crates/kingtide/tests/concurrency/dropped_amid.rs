//! Families that are dropped amid a background job on them: no caller sees an error, and nothing is left behind.

use kingtide::vfs::{Fs, MemFs};
use kingtide::{Clock, ColumnFamily, Compression, Db, FamilyOptions, Options};
use kingtide_base::rare;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Action = Box<dyn FnOnce() + Send>;

/// A clock in whose sleeps something happens, once. A job sleeps when it has written as much as the rate limit lets it, and
/// holds no lock then.
#[derive(Default)]
struct Interrupting {
    ns: AtomicU64,
    then: Mutex<Option<Action>>,
}

impl Clock for Interrupting {
    fn monotonic_ns(&self) -> u64 {
        self.ns.load(Ordering::SeqCst)
    }

    fn unix_ms(&self) -> u64 {
        1_700_000_000_000
    }

    fn sleep(&self, _: Duration) {
        self.ns.fetch_add(1_000_000_000_000_000, Ordering::SeqCst);
        let action = self.then.lock().unwrap().take();
        if let Some(action) = action {
            action();
        }
    }
}

struct World {
    fs: MemFs,
    clock: Arc<Interrupting>,
    db: Db,
    family: ColumnFamily,
}

impl World {
    /// A database with a family of a run of several tables, and a table that overlaps them all.
    fn new(separate_values: bool) -> World {
        let (fs, clock) = (MemFs::new(), Arc::new(Interrupting::default()));
        let mut o = Options::new().fs(Arc::new(fs.clone())).clock(clock.clone()).manual_jobs(true);
        o.db.rate_limit = 1;
        let of_family = FamilyOptions::new()
            .target_file_size(64 << 10)
            .compression(Compression::None)
            .value_threshold(if separate_values { 16 } else { 0 });
        let db = Db::open("db", o).unwrap();
        let family = db.create_family("short-lived", of_family).unwrap();
        let w = World { fs, clock, db, family };
        for step in [1, 100] {
            w.fill(step);
            w.db.flush().unwrap();
        }
        assert!(w.tables() > 4, "{} tables", w.tables());
        w
    }

    /// Writes each `step`-th key.
    fn fill(&self, step: usize) {
        for n in (0..8000u64).step_by(step) {
            self.family.put(n.to_be_bytes(), (n + 1_000_000).to_string().repeat(8)).unwrap();
        }
    }

    fn tables(&self) -> usize {
        let names = self.fs.list(Path::new("db")).unwrap();
        names.iter().filter(|n| n.ends_with(".klog") || n.ends_with(".vlog")).count()
    }

    /// Drops the family in the middle of `work`, and checks what is left.
    fn dropped_amid(&self, path: &str, work: impl FnOnce()) {
        let db = self.db.clone();
        *self.clock.then.lock().unwrap() = Some(Box::new(move || db.drop_family("short-lived").unwrap()));
        let before = taken(path);
        work();
        assert!(self.clock.then.lock().unwrap().is_none(), "the job never slept");
        self.db.wait_for_background().unwrap();
        assert_eq!(self.db.stats().get("background_errors"), Some(0));
        assert!(taken(path) > before, "the job had ended before the drop");
        assert_eq!(self.tables(), 0, "files are left behind");
        assert!(self.family.put(b"k", b"v").is_err());
        self.db.put(b"k", b"v").unwrap();
        assert!(self.db.verify().unwrap().is_clean());
        self.db.set_option("rate_limit", "0").unwrap();
        self.db.close().unwrap();
    }
}

fn taken(path: &str) -> u64 {
    rare::counts().into_iter().find(|(name, _)| *name == path).map(|(_, n)| n).unwrap()
}

#[test]
fn a_compaction_ends_quietly_when_its_family_is_dropped() {
    for separate_values in [false, true] {
        let w = World::new(separate_values);
        w.dropped_amid("compaction-of-dropped-family", || w.family.compact_range(..).unwrap());
    }
}

#[test]
fn a_flush_ends_quietly_when_its_family_is_dropped() {
    for separate_values in [false, true] {
        let w = World::new(separate_values);
        w.fill(1);
        w.dropped_amid("flush-of-dropped-family", || w.db.flush().unwrap());
    }
}
