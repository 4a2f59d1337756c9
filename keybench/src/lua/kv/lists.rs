//! What `kv.range` and `kv.mget` answer: a list that becomes Lua's strings and tables when a script first looks at it.
//!
//! Most workloads drop their rows, as a client would that only waits for them. To make a table and two strings of each row
//! cost several times as much as a fast engine takes to find it, and hid what tells engines apart. The bytes are copied out of the
//! engine in any case, within the time of the call.
//!
//! Until then a list is an empty table with a metatable of ours; `#list` is answered without making it. Whatever else looks at it
//! makes it a plain table first, as do `next`, `rawget` and the like, which know no metatables. A script cannot tell it from a list
//! that was made at once, except by the length of one into which it has made holes, which Lua leaves open.

use mlua::{AnyUserData, Lua, LuaString, Table, Value};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// LuaJIT has neither `__len` nor `__pairs` for tables: there, lists are made at once.
const LAZY: bool = cfg!(not(feature = "luajit"));

/// Bytes of lists that wait for Lua's collector, which does not know of them, before it is called: few enough to stay in a
/// processor's cache, as each of their buffers serves again.
const WAITING: usize = 1 << 20;
/// Bytes of buffers that are kept for the next lists.
const KEPT: usize = 16 << 20;

/// Entries that a call found, in one buffer.
#[derive(Default)]
pub struct Found {
    /// Their keys and values.
    pub bytes: Vec<u8>,
    /// Of a range: where in `bytes` the key and the value of each row are.
    pub rows: Vec<(Range<usize>, Range<usize>)>,
    /// Of several gets: where the value of each is, if there was one.
    pub values: Vec<Option<Range<usize>>>,
}

impl Found {
    /// Makes room for another call's.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.rows.clear();
        self.values.clear();
    }

    fn len(&self) -> usize {
        self.rows.len().max(self.values.len())
    }

    /// Whether no element of the list is nil. The length of another depends on how Lua has made it.
    fn is_whole(&self) -> bool {
        self.values.iter().all(Option::is_some)
    }

    fn capacity(&self) -> usize {
        let rows = self.rows.capacity() * size_of::<(Range<usize>, Range<usize>)>();
        self.bytes.capacity() + rows + self.values.capacity() * size_of::<Option<Range<usize>>>()
    }
}

/// Buffers of lists that are gone, and how much those hold that are not.
#[derive(Default)]
struct Pool {
    free: RefCell<Vec<Found>>,
    free_bytes: Cell<usize>,
    out_bytes: Cell<usize>,
    /// From how many bytes of lists on the collector is called.
    limit: Cell<usize>,
}

impl Pool {
    fn give(&self, mut found: Found) {
        let bytes = self.free_bytes.get() + found.capacity();
        if bytes <= KEPT {
            found.clear();
            self.free_bytes.set(bytes);
            self.free.borrow_mut().push(found);
        }
    }
}

/// What a list that nothing has looked at stands for. Lua's collector drops it with its list.
struct Unmade {
    found: Found,
    bytes: usize,
    pool: Rc<Pool>,
}

impl Drop for Unmade {
    fn drop(&mut self) {
        self.pool.out_bytes.set(self.pool.out_bytes.get() - self.bytes);
        self.pool.give(std::mem::take(&mut self.found));
    }
}

/// Makes the lists of one Lua state.
pub struct Lists {
    pool: Rc<Pool>,
    /// Of lists that are not made yet.
    metatable: Table,
    /// The name under which such a list has its [`Unmade`].
    unmade: LuaString,
    // Made once: to make both strings again for each row would cost as much as the row.
    key: LuaString,
    val: LuaString,
}

/// What makes a list plain before it is looked at. In Lua, so that errors are what they are for other tables. Functions that look at a table
/// without its metatable, or at the metatable itself, are replaced.
const LOOKS: &str = r#"
    local unmade, plain = ...
    local getmetatable, next, rawequal = getmetatable, next, rawequal
    function unmade.__index(list, at) plain(list) return list[at] end
    function unmade.__newindex(list, at, value) plain(list) list[at] = value end
    function unmade.__pairs(list) plain(list) return next, list, nil end
    for _, name in ipairs({ "next", "rawget", "rawlen", "rawset", "getmetatable", "setmetatable" }) do
      local raw = _G[name]
      _G[name] = function(list, ...)
        if rawequal(getmetatable(list), unmade) then plain(list) end
        return raw(list, ...)
      end
    end
"#;

impl Lists {
    /// Lists for a state, in which raw accesses to them are replaced.
    pub fn register(lua: &Lua) -> mlua::Result<Rc<Lists>> {
        let metatable = lua.create_table()?;
        let lists = Rc::new(Lists {
            pool: Rc::new(Pool { limit: Cell::new(WAITING), ..Pool::default() }),
            metatable: metatable.clone(),
            unmade: lua.create_string("\0unmade")?,
            key: lua.create_string("key")?,
            val: lua.create_string("val")?,
        });
        if !LAZY {
            return Ok(lists);
        }
        let l = Rc::clone(&lists);
        let len = move |_: &Lua, list: Table| l.len(&list);
        metatable.raw_set("__len", lua.create_function(len)?)?;
        let l = Rc::clone(&lists);
        let plain = lua.create_function(move |lua: &Lua, list: Table| l.make(lua, &list))?;
        lua.load(LOOKS).set_name("=kv").call::<()>((metatable, plain))?;
        Ok(lists)
    }

    /// The list of what `call` finds.
    pub fn found(&self, lua: &Lua, call: impl FnOnce(&mut Found) -> mlua::Result<()>) -> mlua::Result<Table> {
        let mut found = self.room(lua)?;
        match call(&mut found) {
            Ok(()) => self.list(lua, found),
            Err(e) => {
                self.pool.give(found);
                Err(e)
            }
        }
    }

    /// Room for what a call finds. Calls the collector when much of what earlier calls found has not been let go of.
    fn room(&self, lua: &Lua) -> mlua::Result<Found> {
        let pool = &self.pool;
        if pool.out_bytes.get() > pool.limit.get() {
            lua.gc_collect()?;
            // A script may hold its lists, and a full cycle takes as long as there is memory to walk.
            pool.limit.set(WAITING.max(lua.used_memory()).max(2 * pool.out_bytes.get()));
        }
        let found = pool.free.borrow_mut().pop().unwrap_or_default();
        pool.free_bytes.set(pool.free_bytes.get() - found.capacity());
        Ok(found)
    }

    fn list(&self, lua: &Lua, found: Found) -> mlua::Result<Table> {
        if LAZY && found.len() > 0 && found.is_whole() {
            let list = lua.create_table_with_capacity(0, 1)?;
            let bytes = found.capacity();
            self.pool.out_bytes.set(self.pool.out_bytes.get() + bytes);
            let unmade = Unmade { found, bytes, pool: Rc::clone(&self.pool) };
            list.raw_set(&self.unmade, lua.create_any_userdata(unmade)?)?;
            list.set_metatable(Some(self.metatable.clone()))?;
            return Ok(list);
        }
        let list = lua.create_table_with_capacity(found.len(), 0)?;
        self.fill(lua, &list, &found)?;
        self.pool.give(found);
        Ok(list)
    }

    /// A list that a verb is given, which may be the answer of another.
    pub fn plain(&self, lua: &Lua, list: &Table) -> mlua::Result<()> {
        match list.metatable() {
            Some(own) if LAZY && own == self.metatable => self.make(lua, list),
            _ => Ok(()),
        }
    }

    fn unmade(&self, list: &Table) -> mlua::Result<AnyUserData> {
        list.raw_get(&self.unmade)
    }

    fn len(&self, list: &Table) -> mlua::Result<usize> {
        Ok(self.unmade(list)?.borrow::<Unmade>()?.found.len())
    }

    /// Makes a list a plain table.
    fn make(&self, lua: &Lua, list: &Table) -> mlua::Result<()> {
        let unmade: Unmade = self.unmade(list)?.take()?;
        list.set_metatable(None)?;
        list.raw_set(&self.unmade, Value::Nil)?;
        self.fill(lua, list, &unmade.found)
    }

    fn fill(&self, lua: &Lua, list: &Table, found: &Found) -> mlua::Result<()> {
        for (at, (key, value)) in found.rows.iter().enumerate() {
            let row = lua.create_table_with_capacity(0, 2)?;
            row.raw_set(&self.key, lua.create_string(&found.bytes[key.clone()])?)?;
            row.raw_set(&self.val, lua.create_string(&found.bytes[value.clone()])?)?;
            list.raw_set(at + 1, row)?;
        }
        for (at, value) in found.values.iter().enumerate() {
            // An absent key leaves a hole: list[at] is nil.
            if let Some(value) = value {
                list.raw_set(at + 1, lua.create_string(&found.bytes[value.clone()])?)?;
            }
        }
        Ok(())
    }

    /// The rows that `kv.mput` is given.
    pub fn pairs(&self, rows: &[Table]) -> mlua::Result<Vec<(LuaString, LuaString)>> {
        rows.iter().map(|row| Ok((row.get(&self.key)?, row.get(&self.val)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(lists: &Lists, lua: &Lua, bytes: usize) -> Table {
        let found = |found: &mut Found| {
            found.bytes.resize(bytes, b'x');
            found.rows.push((0..1, 1..bytes));
            Ok(())
        };
        lists.found(lua, found).unwrap()
    }

    /// Lua's collector sees little of a list, so it would not run for a long time.
    #[cfg(not(feature = "luajit"))]
    #[test]
    fn what_waits_for_the_collector_is_bounded() {
        let lua = Lua::new();
        let lists = Lists::register(&lua).unwrap();
        let (bytes, mut most) = (100_000, 0);
        for _ in 0..1_000 {
            answer(&lists, &lua, bytes);
            most = most.max(lists.pool.out_bytes.get());
            assert!(lists.pool.free_bytes.get() <= 2 * WAITING + 4 * bytes, "each is one that served before");
        }
        assert!((bytes..=WAITING + 4 * bytes).contains(&most), "{most}");
        // Those that a script holds do not make each call walk through all memory.
        let held: Vec<Table> = (0..100).map(|_| answer(&lists, &lua, bytes)).collect();
        assert!(lists.pool.limit.get() > 40 * bytes && lists.pool.limit.get() < 400 * bytes);
        assert!(held.iter().all(|list| lists.len(list).unwrap() == 1));
        let row: Table = held[7].get(1).unwrap();
        assert_eq!(row.get::<LuaString>("val").unwrap().as_bytes().len(), bytes - 1);
        drop((held, row));
        lua.gc_collect().unwrap();
        assert_eq!(lists.pool.out_bytes.get(), 0);
        assert!(lists.pool.free_bytes.get() <= KEPT);
    }

    #[test]
    fn the_room_of_a_failed_call_and_of_no_rows_serves_again() {
        let lua = Lua::new();
        let lists = Lists::register(&lua).unwrap();
        let fail = |found: &mut Found| {
            found.bytes.resize(5_000, 0);
            Err(mlua::Error::runtime("no"))
        };
        assert!(lists.found(&lua, fail).is_err());
        let empty = |found: &mut Found| {
            assert!(found.bytes.is_empty() && found.bytes.capacity() >= 5_000);
            Ok(())
        };
        assert_eq!(lists.found(&lua, empty).unwrap().raw_len(), 0);
        assert_eq!((lists.pool.out_bytes.get(), lists.pool.free.borrow().len()), (0, 1));
    }
}
