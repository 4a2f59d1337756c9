//! `kv.replay(path)`: a workload that does again what a trace says.

use super::lists::Found;
use crate::data::{cut_from, entropy_pool};
use crate::error::Result;
use crate::lua::worker::{Kind, Shared, Worker};
use crate::trace::{Key, Op, Trace};
use mlua::{Lua, Table};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bytes of the pool that values are cut from: half random, like the values of native loops.
const POOL: usize = 1 << 20;

/// What all threads share.
struct Replay {
    trace: Trace,
    pool: Vec<u8>,
}

/// A trace is read once, and not again for each thread.
static READ: Mutex<Option<HashMap<PathBuf, Arc<Replay>>>> = Mutex::new(None);

fn read(path: &Path) -> Result<Arc<Replay>> {
    // A panic while the lock is held is a test's.
    let mut known = READ.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if let Some(replay) = known.get(path) {
        return Ok(Arc::clone(replay));
    }
    let replay = Arc::new(Replay { trace: Trace::read(path)?, pool: entropy_pool(POOL, 0.5, 0x7472) });
    known.insert(path.to_owned(), Arc::clone(&replay));
    Ok(replay)
}

impl Replay {
    /// Appends some value of so many bytes: the values of a trace are not known.
    fn value(&self, key: &[u8], bytes: usize, out: &mut Vec<u8>) {
        let from = key.iter().fold(bytes, |sum, b| sum.wrapping_mul(31).wrapping_add(usize::from(*b))) % POOL;
        cut_from(&self.pool, from, bytes, out);
    }
}

/// Buffers that serve one call after another.
#[derive(Default)]
struct Room {
    /// What is put.
    values: Vec<u8>,
    /// What is found.
    found: Found,
}

/// The place of one thread in the measured point.
struct Place {
    /// The operations of the recorded threads that it stands for, in the order of their times: thread and number.
    order: Vec<(usize, usize)>,
    next: usize,
    /// When it began, in the clock's ticks.
    begun: u64,
    /// How many times as fast as recorded; 0: as fast as possible.
    speed: f64,
}

impl Place {
    fn new(trace: &Trace, thread: usize, threads: usize, speed: f64, begun: u64) -> Place {
        let own = (thread..trace.run.len()).step_by(threads.max(1));
        let mut order: Vec<(usize, usize)> = own.flat_map(|t| (0..trace.run[t].len()).map(move |i| (t, i))).collect();
        // Stable, and one thread's operations are in order already.
        order.sort_by_key(|(t, i)| trace.run[*t][*i].0);
        Place { order, next: 0, begun, speed }
    }
}

impl Worker {
    fn replay(&mut self, replay: &Replay, op: &Op, room: &mut Room) -> mlua::Result<()> {
        let Room { values, found } = room;
        values.clear();
        found.clear();
        match op {
            Op::Get(key) => {
                let found = self.get(key, false)?;
                self.figures.got_bytes += found.map_or(0, |r| (key.len() + r.len()) as u64);
            }
            Op::Put(key, bytes) => {
                replay.value(key, *bytes, values);
                self.put(key, values)?;
                self.figures.put_bytes += (key.len() + bytes) as u64;
            }
            Op::PutTtl(key, bytes, ms) => {
                self.unverifiable("put_ttl")?;
                replay.value(key, *bytes, values);
                self.timed(Kind::Put, 1, |s| s.put_ttl(key, values, Duration::from_millis(*ms)))?;
                self.figures.put_bytes += (key.len() + bytes) as u64;
            }
            Op::PutBatch(rows) => {
                rows.iter().for_each(|(key, bytes)| replay.value(key, *bytes, values));
                let mut rest = &values[..];
                let values = rows.iter().map(|(_, bytes)| rest.split_off(..*bytes).unwrap_or_default());
                let entries: Vec<(&[u8], &[u8])> = rows.iter().map(|(key, _)| &**key).zip(values).collect();
                self.put_batch(&entries)?;
            }
            Op::MultiGet(keys) => {
                let keys: Vec<&[u8]> = keys.iter().map(|k| &**k).collect();
                self.multi_get(&keys, found)?;
            }
            Op::Delete(key) => {
                self.write(Kind::Del, [&**key].into_iter(), |s, _| s.delete(key))?;
                self.figures.put_bytes += key.len() as u64;
            }
            Op::DeleteBatch(keys) => {
                let gone: Vec<&[u8]> = keys.iter().map(|k: &Key| &**k).collect();
                self.write(Kind::Mdel, gone.iter().copied(), |s, _| s.delete_batch(&gone))?;
                self.figures.put_bytes += gone.iter().map(|k| k.len() as u64).sum::<u64>();
            }
            Op::DeleteRange(lower, upper) => {
                self.unverifiable("delete_range")?;
                self.timed(Kind::Del, 1, |s| s.delete_range(lower, upper))?;
            }
            Op::Range(lower, upper, rows) => {
                // A seek that found nothing has read one place too.
                let rows = usize::try_from(*rows).unwrap_or(usize::MAX).max(1);
                self.range(lower, upper.as_deref(), rows, found)?;
            }
        }
        Ok(())
    }

    /// Does the next operation of the measured point, when it is due; after the last one the point is over.
    fn replay_next(&mut self, replay: &Replay, place: &mut Place, room: &mut Room) -> mlua::Result<()> {
        let Some(&(thread, number)) = place.order.get(place.next) else {
            self.over = true;
            return Ok(());
        };
        place.next += 1;
        let (ns, op) = &replay.trace.run[thread][number];
        if place.speed > 0.0 {
            let due = Duration::from_nanos((*ns as f64 / place.speed) as u64);
            let elapsed = || Duration::from_nanos(self.clock.ns(place.begun, self.clock.now()));
            std::thread::sleep(due.saturating_sub(elapsed()));
            // One that is late begins at once, and its latency counts from when it was due.
            let late = elapsed().saturating_sub(due);
            self.late(late);
        }
        self.replay(replay, op, room)
    }
}

/// Puts `kv.replay` into a state that has the other verbs.
pub fn register(lua: &Lua, shared: &Shared) -> mlua::Result<()> {
    let shared = Rc::clone(shared);
    let workload = move |lua: &Lua, path: String| {
        let replay = read(Path::new(&path)).map_err(mlua::Error::external)?;
        let table = lua.create_table()?;
        table.set("entries", replay.trace.entries())?;
        table.set("operations", replay.trace.operations())?;
        table.set("value_size", replay.trace.value_size())?;
        table.set("seconds", replay.trace.seconds())?;
        table.set("recorded_threads", replay.trace.run.len())?;
        let (s, r) = (Rc::clone(&shared), Arc::clone(&replay));
        let load = move |_: &Lua, ctx: Table| {
            let (thread, threads): (usize, usize) = (ctx.get("thread")?, ctx.get("threads")?);
            let mut room = Room::default();
            for ops in r.trace.load.iter().skip(thread).step_by(threads.max(1)) {
                ops.iter().try_for_each(|(_, op)| s.borrow_mut().replay(&r, op, &mut room))?;
            }
            Ok(())
        };
        table.set("load", lua.create_function(load)?)?;
        let (s, state) = (Rc::clone(&shared), RefCell::new((None, Room::default())));
        let run = move |_: &Lua, ctx: Table| {
            let (place, room) = &mut *state.borrow_mut();
            let mut worker = s.borrow_mut();
            let place = match place {
                Some(place) => place,
                none => {
                    let (thread, threads) = (ctx.get("thread")?, ctx.get("threads")?);
                    none.insert(Place::new(&replay.trace, thread, threads, ctx.get("speed")?, worker.clock.now()))
                }
            };
            worker.replay_next(&replay, place, room)
        };
        table.set("run", lua.create_function(run)?)?;
        Ok(table)
    };
    lua.globals().get::<Table>("kv")?.set("replay", lua.create_function(workload)?)
}
