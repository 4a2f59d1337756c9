//! The global `kv`: the engine's verbs for scripts. Each is timed around the engine's call alone; making Lua values from
//! the answer comes after.

mod lists;
pub mod replay;

use super::truth::{Known, Scan, Truth};
use super::txn;
use super::worker::{Kind, Shared, Worker};
use crate::engine::txn::Step;
use crate::engine::{Bounds, Cursor, Session};
use crate::error::{Error, Result};
use lists::{Found, Lists};
use mlua::{FromLua, Function, Lua, LuaString, Table, Value};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

impl Worker {
    fn put(&mut self, key: &[u8], value: &[u8]) -> mlua::Result<()> {
        if self.in_txn() {
            return self.txn_write(Kind::Put, 1, |s| s.txn_put(key, value));
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let done = self.write(Kind::Put, [key].into_iter(), |s, versions| match versions {
            None => s.put(key, value),
            Some(v) => {
                Truth::seal(value, v[0], &mut buffer);
                s.put(key, &buffer)
            }
        });
        self.buffer = buffer;
        done
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> mlua::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        self.figures.put_bytes += entries.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum::<u64>();
        if self.in_txn() {
            return self.txn_write(Kind::Mput, entries.len() as u64, |session| {
                one_by_one(entries, |(key, value)| session.txn_put(key, value))
            });
        }
        self.write(Kind::Mput, entries.iter().map(|e| e.0), |session, versions| {
            let Some(versions) = versions else { return session.put_batch(entries) };
            let mut sealed = vec![Vec::new(); entries.len()];
            for ((entry, version), out) in entries.iter().zip(versions).zip(&mut sealed) {
                Truth::seal(entry.1, *version, out);
            }
            let entries: Vec<(&[u8], &[u8])> = entries.iter().zip(&sealed).map(|(e, v)| (e.0, &v[..])).collect();
            session.put_batch(&entries)
        })
    }

    /// Looks a key up; the value is in `self.buffer[..]` of the returned range.
    pub(super) fn get(&mut self, key: &[u8], for_update: bool) -> mlua::Result<Option<Range<usize>>> {
        let truth = self.truth.clone();
        let before = truth.as_ref().map(|t| t.before_read(key));
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let found = self.look_up(key, for_update, &mut |v| buffer.extend_from_slice(v));
        let answer = found.map(|found| {
            if found {
                self.figures.hits += 1
            } else {
                self.figures.misses += 1
            }
            let whole = found.then_some(0..buffer.len());
            let (Some(truth), Some(before)) = (truth, before) else { return whole };
            self.checked("get", &truth, before, key, found.then_some(&buffer[..]))
        });
        self.buffer = buffer;
        answer
    }

    /// Judges one answer; returns the part of it that the script put.
    fn checked(
        &mut self,
        what: &str,
        truth: &Truth,
        before: Known,
        key: &[u8],
        stored: Option<&[u8]>,
    ) -> Option<Range<usize>> {
        let opened = stored.map(|bytes| Truth::open(key, bytes).map(|(value, version)| (value.len(), version)));
        let (part, outcome) = match opened {
            None => (None, truth.judge(key, before, None)),
            Some(Ok((len, version))) => (Some(0..len), truth.judge(key, before, Some(version))),
            Some(Err(e)) => (Some(0..stored.map_or(0, <[u8]>::len)), Err(e)),
        };
        self.figures.answers.judge(what, key, outcome);
        part
    }

    /// Looks keys up together: `found` gets the values.
    fn multi_get(&mut self, keys: &[&[u8]], found: &mut Found) -> mlua::Result<()> {
        let truth = self.truth.clone();
        let before: Vec<_> = truth.iter().flat_map(|t| keys.iter().map(|k| t.before_read(k))).collect();
        let Found { bytes, values, .. } = found;
        values.resize(keys.len(), None);
        let mut times = vec![0_u32; if truth.is_some() { keys.len() } else { 0 }];
        self.look_up_all(keys, &mut |i, value| {
            times.iter_mut().skip(i).take(1).for_each(|n| *n += 1);
            values[i] = value.map(|v| {
                bytes.extend_from_slice(v);
                bytes.len() - v.len()..bytes.len()
            });
        })?;
        for (i, answer) in values.iter_mut().enumerate() {
            if answer.is_some() {
                self.figures.hits += 1
            } else {
                self.figures.misses += 1
            }
            if let Some(truth) = &truth {
                if times[i] != 1 {
                    let complaint = format!("it was answered {} times", times[i]);
                    self.figures.answers.judge("mget", keys[i], Err(complaint));
                }
                let stored = answer.clone();
                let part = self.checked("mget", truth, before[i], keys[i], stored.clone().map(|r| &bytes[r]));
                *answer = part.map(|p| {
                    let start = stored.map_or(0, |r| r.start);
                    start + p.start..start + p.end
                });
            }
            self.figures.got_bytes += answer.as_ref().map_or(0, |r| (keys[i].len() + r.len()) as u64);
        }
        Ok(())
    }

    /// Reads rows of `[lo, hi)` into `found`.
    fn range(&mut self, lo: &[u8], hi: Option<&[u8]>, limit: usize, found: &mut Found) -> mlua::Result<()> {
        let Found { bytes, rows, .. } = found;
        let mut state = self.txn;
        let mut check = self.check("range", lo, hi, limit);
        let mut ended = limit > 0;
        let done = self.timed(Kind::Range, 1, |s| {
            let mut cursor = txn::cursor(s, &mut state, Bounds { lower: Some(lo), upper: hi })?;
            let mut valid = limit > 0 && cursor.seek(lo)?;
            while valid {
                let (key, value) = cursor.entry()?;
                if hi.is_some_and(|hi| key >= hi) {
                    break;
                }
                let start = bytes.len();
                bytes.extend_from_slice(key);
                bytes.extend_from_slice(value);
                rows.push((start..start + key.len(), start + key.len()..bytes.len()));
                ended = rows.len() < limit;
                valid = ended && cursor.next()?;
            }
            Ok(())
        });
        self.txn = state;
        if let Some(check) = &mut check {
            for (key, value) in &mut *rows {
                let (stored, answers) = (&bytes[value.clone()], &mut self.figures.answers);
                value.end = value.start + check.row(&bytes[key.clone()], stored, answers);
            }
            if ended && done.is_ok() {
                check.end(&mut self.figures.answers);
            }
        }
        done?;
        self.figures.got_bytes += rows.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum::<u64>();
        Ok(())
    }

    /// The check of a range that is about to be read, if answers are verified.
    fn check(&self, what: &'static str, lo: &[u8], hi: Option<&[u8]>, limit: usize) -> Option<Scan> {
        self.truth.as_ref().map(|truth| Scan::begin(truth, what, lo, hi, limit))
    }
}

/// Streams rows of `[lo, hi)` to `each` until it returns something true.
fn scan(shared: &Shared, lua: &Lua, lo: &[u8], hi: Option<&[u8]>, each: &Function, limit: usize) -> mlua::Result<u64> {
    let clock = shared.borrow().clock;
    let mut check = shared.borrow().check("scan", lo, hi, limit);
    let from = clock.now();
    let open = |w: &mut Worker| txn::cursor(&mut *w.session, &mut w.txn, Bounds { lower: Some(lo), upper: hi });
    let opened = open(&mut shared.borrow_mut());
    let mut cursor = opened.map_err(|e| shared.borrow_mut().fail(Kind::Range, e.context("scan")))?;
    shared.borrow_mut().scanning += 1;
    let walked = walk(shared, lua, &mut *cursor, (lo, hi, limit), each, &mut check);
    let mut worker = shared.borrow_mut();
    worker.scanning -= 1;
    let rows = walked?;
    worker.count(Kind::Range, 1, clock.ns(from, clock.now()), Ok(()))?;
    Ok(rows)
}

fn walk(
    shared: &Shared,
    lua: &Lua,
    cursor: &mut dyn Cursor,
    (lo, hi, limit): (&[u8], Option<&[u8]>, usize),
    each: &Function,
    check: &mut Option<Scan>,
) -> mlua::Result<u64> {
    let fail = |e: Error| shared.borrow_mut().fail(Kind::Range, e.context("scan"));
    let mut rows = 0;
    let mut valid = limit > 0 && cursor.seek(lo).map_err(fail)?;
    while valid {
        let (key, value) = cursor.entry().map_err(fail)?;
        if hi.is_some_and(|hi| key >= hi) {
            break;
        }
        let part = {
            let figures = &mut shared.borrow_mut().figures;
            let part = check.as_mut().map_or(value.len(), |check| check.row(key, value, &mut figures.answers));
            figures.got_bytes += (key.len() + part) as u64;
            part
        };
        let stop: Value = each.call((lua.create_string(key)?, lua.create_string(&value[..part])?))?;
        rows += 1;
        if rows == limit as u64 || !matches!(stop, Value::Nil | Value::Boolean(false)) {
            return Ok(rows);
        }
        valid = cursor.next().map_err(fail)?;
    }
    if let Some(check) = check.as_ref().filter(|_| limit > 0) {
        check.end(&mut shared.borrow_mut().figures.answers);
    }
    Ok(rows)
}

/// `kv.fill(ctx, n, key, value)`: what most loaders do. Puts entries `key(i)`, `value(i)` for this thread's share of the
/// numbers below n.
const FILL: &str = r#"
    local ctx, n, key, value = ...
    local first, last = gen.share(n, ctx.thread, ctx.threads)
    local rows = {}
    for i = first, last do
      rows[#rows + 1] = { key = key(i), val = value(i) }
      if #rows == 64 or i == last then
        kv.mput(rows)
        rows = {}
      end
    end
"#;

/// Puts `kv` into a state.
pub fn register(lua: &Lua, shared: &Shared) -> mlua::Result<()> {
    let kv = lua.create_table()?;
    let lists = Lists::register(lua)?;
    single_verbs(lua, shared, &kv)?;
    range_verbs(lua, shared, &lists, &kv)?;
    batch_verbs(lua, shared, &lists, &kv)?;
    txn::register(lua, shared, &kv)?;
    kv.set("fill", lua.load(FILL).set_name("=kv.fill").into_function()?)?;
    lua.globals().set("kv", kv)
}

/// A script's limit: none, 0 and below mean all rows, as in the original.
fn rows_at_most(limit: Option<i64>) -> usize {
    limit.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(usize::MAX)
}

fn single_verbs(lua: &Lua, shared: &Shared, kv: &Table) -> mlua::Result<()> {
    let s = Rc::clone(shared);
    let put = move |_: &Lua, (k, v): (LuaString, LuaString)| {
        let (key, value) = (k.as_bytes(), v.as_bytes());
        let mut w = s.borrow_mut();
        w.put(&key, &value)?;
        w.figures.put_bytes += (key.len() + value.len()) as u64;
        Ok(())
    };
    kv.set("put", lua.create_function(put)?)?;
    let s = Rc::clone(shared);
    let get = move |lua: &Lua, k: LuaString| {
        let key = k.as_bytes();
        let mut w = s.borrow_mut();
        let Some(found) = w.get(&key, false)? else { return Ok(None) };
        w.figures.got_bytes += (key.len() + found.len()) as u64;
        lua.create_string(&w.buffer[found]).map(Some)
    };
    kv.set("get", lua.create_function(get)?)?;
    let s = Rc::clone(shared);
    let get_for_update = move |lua: &Lua, k: LuaString| {
        let key = k.as_bytes();
        let mut w = s.borrow_mut();
        w.inside_only("get_for_update")?;
        let Some(found) = w.get(&key, true)? else { return Ok(None) };
        w.figures.got_bytes += (key.len() + found.len()) as u64;
        lua.create_string(&w.buffer[found]).map(Some)
    };
    kv.set("get_for_update", lua.create_function(get_for_update)?)?;
    let s = Rc::clone(shared);
    let del = move |_: &Lua, k: LuaString| {
        let key = &*k.as_bytes();
        let mut w = s.borrow_mut();
        if w.in_txn() {
            w.txn_write(Kind::Del, 1, |session| session.txn_delete(key))?;
        } else {
            w.write(Kind::Del, [key].into_iter(), |session, _| session.delete(key))?;
        }
        w.figures.put_bytes += key.len() as u64;
        Ok(true)
    };
    kv.set("del", lua.create_function(del)?)?;
    let s = Rc::clone(shared);
    let put_ttl = move |_: &Lua, (k, v, seconds): (LuaString, LuaString, f64)| {
        let ttl = Duration::try_from_secs_f64(seconds).map_err(|e| mlua::Error::runtime(format!("put_ttl: {e}")))?;
        let mut w = s.borrow_mut();
        w.may_write()?;
        w.unverifiable("put_ttl")?;
        w.outside_only("put_ttl")?;
        let (key, value) = (k.as_bytes(), v.as_bytes());
        w.timed(Kind::Put, 1, |session| session.put_ttl(&key, &value, ttl))?;
        w.figures.put_bytes += (key.len() + value.len()) as u64;
        Ok(())
    };
    kv.set("put_ttl", lua.create_function(put_ttl)?)?;
    let s = Rc::clone(shared);
    let delete_range = move |_: &Lua, (lo, hi): (LuaString, LuaString)| {
        let mut w = s.borrow_mut();
        w.may_write()?;
        w.unverifiable("delete_range")?;
        w.outside_only("delete_range")?;
        w.timed(Kind::Del, 1, |session| session.delete_range(&lo.as_bytes(), &hi.as_bytes()))
    };
    kv.set("delete_range", lua.create_function(delete_range)?)
}

fn range_verbs(lua: &Lua, shared: &Shared, lists: &Rc<Lists>, kv: &Table) -> mlua::Result<()> {
    let (s, l) = (Rc::clone(shared), Rc::clone(lists));
    let range = move |lua: &Lua, (lo, hi, limit): (LuaString, Option<LuaString>, Option<i64>)| {
        let hi = hi.as_ref().map(|h| h.as_bytes());
        l.found(lua, |found| s.borrow_mut().range(&lo.as_bytes(), hi.as_deref(), rows_at_most(limit), found))
    };
    kv.set("range", lua.create_function(range)?)?;
    let s = Rc::clone(shared);
    let stream = move |lua: &Lua, (lo, hi, each, limit): (LuaString, Option<LuaString>, Function, Option<i64>)| {
        let hi = hi.as_ref().map(|h| h.as_bytes());
        scan(&s, lua, &lo.as_bytes(), hi.as_deref(), &each, rows_at_most(limit))
    };
    kv.set("scan", lua.create_function(stream)?)
}

/// Steps of a transaction, until one meets a conflict.
fn one_by_one<T: Copy>(all: &[T], mut step: impl FnMut(T) -> Result<Step<()>>) -> Result<Step<()>> {
    for one in all {
        if step(*one)? == Step::Conflict {
            return Ok(Step::Conflict);
        }
    }
    Ok(Step::Done(()))
}

fn batch_verbs(lua: &Lua, shared: &Shared, lists: &Rc<Lists>, kv: &Table) -> mlua::Result<()> {
    let (s, l) = (Rc::clone(shared), Rc::clone(lists));
    let mget = move |lua: &Lua, keys: Table| {
        l.plain(lua, &keys)?;
        let keys: Vec<LuaString> = list(&keys)?;
        let held: Vec<_> = keys.iter().map(|k| k.as_bytes()).collect();
        let wanted: Vec<&[u8]> = held.iter().map(|k| &**k).collect();
        l.found(lua, |found| s.borrow_mut().multi_get(&wanted, found))
    };
    kv.set("mget", lua.create_function(mget)?)?;
    let (s, l) = (Rc::clone(shared), Rc::clone(lists));
    let mput = move |lua: &Lua, rows: Table| {
        l.plain(lua, &rows)?;
        let pairs = l.pairs(&list(&rows)?)?;
        let held: Vec<_> = pairs.iter().map(|(k, v)| (k.as_bytes(), v.as_bytes())).collect();
        let entries: Vec<(&[u8], &[u8])> = held.iter().map(|(k, v)| (&**k, &**v)).collect();
        s.borrow_mut().put_batch(&entries)
    };
    kv.set("mput", lua.create_function(mput)?)?;
    let (s, l) = (Rc::clone(shared), Rc::clone(lists));
    let mdel = move |lua: &Lua, keys: Table| {
        l.plain(lua, &keys)?;
        let keys: Vec<LuaString> = list(&keys)?;
        let held: Vec<_> = keys.iter().map(|k| k.as_bytes()).collect();
        let gone: Vec<&[u8]> = held.iter().map(|k| &**k).collect();
        if gone.is_empty() {
            return Ok(0);
        }
        let mut w = s.borrow_mut();
        w.figures.put_bytes += gone.iter().map(|k| k.len() as u64).sum::<u64>();
        if w.in_txn() {
            let delete = |session: &mut dyn Session| one_by_one(&gone, |key| session.txn_delete(key));
            return w.txn_write(Kind::Mdel, gone.len() as u64, delete).map(|()| gone.len());
        }
        w.write(Kind::Mdel, gone.iter().copied(), |session, _| session.delete_batch(&gone)).map(|()| gone.len())
    };
    kv.set("mdel", lua.create_function(mdel)?)
}

/// The elements of a list. One with a hole is refused, so that a call does not silently do less than it is counted for.
fn list<T: FromLua>(table: &Table) -> mlua::Result<Vec<T>> {
    let elements = table.sequence_values().collect::<mlua::Result<Vec<T>>>()?;
    let len = if cfg!(feature = "luajit") { last_index(table)? } else { table.raw_len() };
    if elements.len() != len {
        let at = elements.len() + 1;
        return Err(mlua::Error::runtime(format!("element {at} is nil in a list of {len}")));
    }
    Ok(elements)
}

/// The largest index of a list. In LuaJIT, the length of a table with holes may be that of the elements before the first.
fn last_index(table: &Table) -> mlua::Result<usize> {
    let mut last = 0;
    table.for_each(|key: Value, _: Value| {
        last = last.max(key.as_usize().unwrap_or(0));
        Ok(())
    })?;
    Ok(last)
}
