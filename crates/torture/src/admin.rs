//! The administrator: creates, drops, renames and clones families, changes options, flushes and merges.

use crate::journal::Record;
use crate::messages::{fail, say};
use crate::model::{Change, DEFAULT, Family, LANES, order};
use crate::settings;
use crate::world::{Handle, World};
use kingtide::internal::least_memory_limit;
use kingtide::{ColumnFamily, DbOptions, ErrorKind, Result};
use kingtide_base::rng::Rng;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

struct Admin<'w> {
    world: &'w World,
    rng: Rng,
    next_uid: u32,
    /// The database's options of now.
    options: DbOptions,
}

/// Runs until the database closes.
pub fn run(world: &World, next_uid: u32) {
    let rng = Rng::new(world.orders.seed ^ world.orders.session.rotate_left(20) ^ 0xad);
    let mut admin = Admin { world, rng, next_uid, options: world.options.db.clone() };
    while !world.is_closing() {
        world.beat(LANES);
        admin.step();
        std::thread::sleep(Duration::from_millis(admin.rng.below(12)));
    }
    world.beats[LANES].store(u64::MAX / 2, Ordering::Relaxed);
}

impl Admin<'_> {
    fn step(&mut self) {
        let few = (self.world.handles().len() as u64) < self.world.orders.families;
        match self.rng.below(100) {
            0..10 if few => self.create(),
            0..6 => self.drop(),
            6..30 if few => self.create(),
            30..36 => self.drop(),
            36..44 => self.rename(),
            44..52 => self.clone(),
            52..62 => self.set_option(),
            62..75 => self.flush(),
            75..90 => self.compact(),
            90..94 => self.estimate(),
            _ => {}
        }
    }

    /// Any family but the default one.
    fn pick(&mut self) -> Option<Arc<Handle>> {
        let handles = self.world.handles();
        let count = handles.len() as u64 - 1;
        (count > 0).then(|| handles[1 + self.rng.below(count) as usize].clone())
    }

    fn check<T>(&self, what: &str, uid: u32, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e) if self.world.is_excused(&e, [uid]) => None,
            Err(e) => fail(&format!("{what} of family number {uid}: {:?}: {e}", e.kind())),
        }
    }

    /// Journals a change of the set of families around the call that makes it.
    fn change<T>(&self, change: &Change, uid: u32, make: impl FnOnce() -> Result<T>) -> Option<T> {
        say("E change");
        self.world.write(&Record::Change(change.clone()));
        let result = make();
        self.world.write(&Record::Changed(result.is_ok()));
        self.check(&format!("{change:?}"), uid, result)
    }

    fn add(&mut self, uid: u32, family: Family, cf: ColumnFamily) {
        self.world.set_handles(|all| all.push(Arc::new(Handle { uid, family, cf })));
    }

    fn create(&mut self) {
        let _structure = self.world.structure.lock();
        let uid = self.next_uid;
        self.next_uid += 1;
        let code = if self.rng.one_in(2) { 0 } else { self.rng.below(3) as u8 };
        let family = Family { name: format!("family-{uid}"), order: code };
        let options = settings::family_options(&mut self.rng);
        let db = &self.world.db;
        let make = || db.create_family_ordered(&family.name, options, order(code));
        if let Some(cf) = self.change(&Change::Create(uid, family.clone()), uid, make) {
            self.world.counts.add("families created", 1);
            self.add(uid, family, cf);
        }
    }

    fn drop(&mut self) {
        let _structure = self.world.structure.lock();
        let Some(handle) = self.pick() else { return };
        // Few go; the others grow old.
        if self.rng.one_in(2) && (self.world.handles().len() as u64) < self.world.orders.families / 2 {
            return;
        }
        self.world.dropping.lock().insert(handle.uid);
        let make = || self.world.db.drop_family(&handle.family.name);
        if self.change(&Change::Drop(handle.uid), DEFAULT, make).is_some() {
            self.world.counts.add("families dropped", 1);
            self.world.set_handles(|all| all.retain(|h| h.uid != handle.uid));
        }
    }

    fn rename(&mut self) {
        let _structure = self.world.structure.lock();
        let Some(handle) = self.pick() else { return };
        let name = format!("renamed-{}-{}", handle.uid, self.rng.below(1000));
        if name == handle.family.name {
            return;
        }
        let make = || self.world.db.rename_family(&handle.family.name, &name);
        if self.change(&Change::Rename(handle.uid, name.clone()), handle.uid, make).is_some() {
            self.world.counts.add("families renamed", 1);
            let family = Family { name, order: handle.family.order };
            let renamed = Arc::new(Handle { uid: handle.uid, family, cf: handle.cf.clone() });
            self.world
                .set_handles(|all| all.iter_mut().filter(|h| h.uid == renamed.uid).for_each(|h| *h = renamed.clone()));
        }
    }

    fn clone(&mut self) {
        let _structure = self.world.structure.lock();
        if self.world.handles().len() as u64 >= self.world.orders.families {
            return;
        }
        let Some(handle) = self.pick() else { return };
        let _still = self.world.gate.write();
        let uid = self.next_uid;
        self.next_uid += 1;
        let name = format!("clone-{uid}");
        let exported = self.rng.one_in(3).then(|| self.world.orders.dir.join("exported"));
        let db = &self.world.db;
        if let Some(dir) = &exported {
            let _ = std::fs::remove_dir_all(dir);
            if self.check("export", handle.uid, handle.cf.export(dir)).is_none() {
                return;
            }
            self.world.counts.add("families exported", 1);
        }
        let make = || match &exported {
            Some(dir) => db.import_family(&name, dir),
            None => db.clone_family(&handle.family.name, &name),
        };
        if let Some(cf) = self.change(&Change::Clone(handle.uid, uid, name.clone()), handle.uid, make) {
            self.world.counts.add("families cloned", 1);
            // Its lanes' keys are the source's, which the lanes do not know of: they leave the clone alone until the next
            // session.
            drop(cf);
        }
    }

    fn set_option(&mut self) {
        let of_family = self.rng.one_in(2);
        let (name, value) = settings::live_option(&mut self.rng, of_family);
        let handles = self.world.handles();
        let handle = handles[self.rng.below(handles.len() as u64) as usize].clone();
        let what = format!("set_option {name}={value}");
        if of_family {
            if self.check(&what, handle.uid, handle.cf.set_option(name, &value)).is_some() {
                self.world.counts.add("options changed", 1);
            }
            return;
        }
        let mut next = self.options.clone();
        self.check(&what, DEFAULT, next.set(name, &value));
        // Each option was drawn beside others than it meets here.
        let too_small =
            next.memory_limit > 0 && next.memory_limit < least_memory_limit(&next, &self.world.options.family);
        match self.world.db.set_option(name, &value) {
            Err(e) if too_small && e.kind() == ErrorKind::InvalidArgument => {
                self.world.counts.add("options refused", 1)
            }
            Ok(()) if too_small => {
                fail(&format!("{what}: memory_limit is too small for memtables and was not refused: {next:?}"))
            }
            done => {
                if self.check(&what, DEFAULT, done).is_some() {
                    self.options = next;
                    self.world.counts.add("options changed", 1);
                }
            }
        }
    }

    fn flush(&mut self) {
        say("E flush");
        let n = self.world.flushes.fetch_add(1, Ordering::SeqCst);
        if self.rng.one_in(3) {
            self.world.write(&Record::Flush(n, None));
            // A family that is dropped meanwhile may keep the others' flush from being waited for.
            if self.check("flush", DEFAULT, self.world.db.flush()).is_some() {
                self.world.write(&Record::Flushed(n));
            }
        } else {
            let handles = self.world.handles();
            let handle = handles[self.rng.below(handles.len() as u64) as usize].clone();
            self.world.write(&Record::Flush(n, Some(handle.uid)));
            if self.check("flush", handle.uid, handle.cf.flush()).is_some() {
                self.world.write(&Record::Flushed(n));
            }
        }
        self.world.counts.add("flushes", 1);
    }

    fn compact(&mut self) {
        say("E compact");
        let handles = self.world.handles();
        let at = self.rng.unit().powi(2) * handles.len() as f64;
        let handle = handles[(at as usize).min(handles.len() - 1)].clone();
        let whole = self.rng.one_in(2) || handle.family.order != 0;
        match if whole { handle.cf.compact_range(..) } else { handle.cf.compact_range([1]..=[3]) } {
            Err(e) if e.kind() == ErrorKind::Cancelled => {}
            done => drop(self.check("compact_range", handle.uid, done)),
        }
        self.world.counts.add("compactions asked for", 1);
    }

    fn estimate(&mut self) {
        let stats = self.world.db.stats();
        drop(stats);
        let _ = self.world.db.latest_sequence();
        if let Some(handle) = self.pick() {
            let _ = self.check("range_stats", handle.uid, handle.cf.range_stats(..));
        }
    }
}
