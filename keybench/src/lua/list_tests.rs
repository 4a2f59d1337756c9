//! Lists that verbs answer, and the memory that a script's state takes.
//! LuaJIT makes lists at once, and has neither `rawlen` nor finalizers of tables.

#![cfg(not(feature = "luajit"))]

use super::point::{Limit, Spec};
use super::tests::{lua, on_memory, spec};
use super::worker::KIND_NAMES;

/// Whatever a script may do with a list that a verb answers.
const LOOKS: &str = r##"
    for i = 1, 5 do kv.put("k" .. i, "v" .. i) end
    local function rows() return kv.range("k", "l") end
    local function values() return kv.mget({ "k1", "k2", "k3", "k4", "k5" }) end
    assert(type(rows()) == "table" and #rows() == 5 and #values() == 5 and #kv.range("x", "y") == 0)
    assert(rows()[5].val == "v5" and rows()[6] == nil and rows()[0] == nil and rows().key == nil and values()[5.0] == "v5")
    assert(next(rows()) == 1 and next(kv.range("x", "y")) == nil and getmetatable(rows()) == nil)
    assert(rawlen(rows()) == 5 and rawget(rows(), 5).key == "k5" and rawget(values(), 2) == "v2" and rawget(rows(), 6) == nil)
    local seen = 0
    local function see(i, key, value)
      seen = seen + 1
      assert(i == (seen - 1) % 5 + 1 and key == "k" .. i and value == "v" .. i)
    end
    for i, row in ipairs(rows()) do see(i, row.key, row.val) end
    for i, row in pairs(rows()) do see(i, row.key, row.val) end
    for i, row in next, rows() do see(i, row.key, row.val) end
    for i, value in ipairs(values()) do see(i, "k" .. i, value) end
    for i, value in pairs(values()) do see(i, "k" .. i, value) end
    assert(seen == 25)
    assert(table.concat(values(), " ") == "v1 v2 v3 v4 v5" and select("#", table.unpack(values())) == 5)

    local list = rows()
    list[#list + 1] = "more"
    assert(#list == 6 and list[6] == "more" and list[1].val == "v1")
    list = values()
    list[2] = nil
    assert(list[1] == "v1" and list[2] == nil and list[3] == "v3")
    list = values()
    table.insert(list, "v6")
    assert(table.remove(list, 1) == "v1" and #list == 5 and list[5] == "v6")
    list = rows()
    assert(rawset(list, 6, "x") == list and #list == 6)
    list = rows()
    table.sort(list, function(a, b) return a.key > b.key end)
    assert(list[1].key == "k5" and list[5].key == "k1")
    list = setmetatable(rows(), { __index = function() return "none" end })
    assert(list[1].key == "k1" and list[9] == "none")
    local heir = setmetatable({}, { __index = rows() })
    assert(heir[2].key == "k2" and heir[6] == nil)

    local some = kv.mget({ "none", "k2", "none", "k4" })
    assert(some[1] == nil and some[2] == "v2" and some[3] == nil and some[4] == "v4")
    local kept = {}
    for i = 1, 200 do kept[i] = i % 2 == 0 and rows() or values() end
    for i = 1, 200 do assert(#kept[i] == 5 and (kept[i][3].val or kept[i][3]) == "v3") end

    -- What one verb answers another one takes.
    kv.mput(rows())
    assert(kv.mdel(values()) == 5 and #kv.mget(values()) == 0)
"##;

#[test]
fn lists_are_plain_tables_to_whatever_looks_at_them() {
    for verify in [false, true] {
        let shared = lua(LOOKS, verify).unwrap_or_else(|e| panic!("verify {verify}: {e}"));
        let w = shared.borrow();
        let count = |name: &str| w.figures.latencies[KIND_NAMES.iter().position(|k| *k == name).unwrap()].count();
        assert_eq!((count("mput"), count("mdel"), w.figures.answers.wrong), (1, 1, 0));
        // Five puts and the batch; and the five keys that are no keys.
        assert_eq!(w.figures.put_bytes, 2 * 5 * 4 + 5 * 2, "verify {verify}");
    }
}

/// To make tables and strings of rows costs several times as much as to find them, and most workloads drop them.
#[test]
fn a_list_that_nothing_looks_at_takes_none_of_luas_memory() {
    let source = r#"
        local keys = {}
        for i = 1, 100 do
          keys[i] = gen.key("k%03d", i)
          kv.put(keys[i], gen.value(4096))
        end
        collectgarbage()
        collectgarbage("stop")
        local before, rows = collectgarbage("count"), 0
        for _ = 1, 10 do rows = rows + #kv.range("k", "l") + #kv.mget(keys) end
        local grown = collectgarbage("count") - before
        assert(rows == 2000 and grown < 100, grown .. " KiB for " .. rows .. " rows")
    "#;
    lua(source, false).unwrap();
}

/// A cycle of the collector costs as much as the loop between two, if the values of a few calls are as large as what lives on.
#[test]
fn a_small_state_is_collected_less_often_than_it_doubles() {
    let source = r#"
        local cycles, live = 0, 0
        local function arm()
          setmetatable({}, { __gc = function() cycles = cycles + 1 arm() end })
        end
        return {
          load = function() kv.put("k", gen.value(4096)) end,
          run = function(ctx)
            if ctx.iter == 1 then
              live = collectgarbage("count")
              arm()
            end
            kv.get("k")
            if ctx.iter == 3000 then
              local doublings = 3000 * 4 / live
              assert(doublings > 20 and cycles > 0 and cycles < doublings / 3, cycles .. " cycles, " .. doublings .. " doublings")
            end
          end,
        }
    "#;
    on_memory(&Spec { limit: Limit::Units(3_000), verify: false, ..spec(source, 1) }).unwrap();
}

/// What a script keeps while it runs may be large, and must not let ten times as much be wasted.
#[test]
fn a_state_that_grows_large_is_collected_when_it_doubles() {
    let source = r#"
        local kept, most = {}, 0
        return {
          load = function() kv.put("k", gen.value(131072)) end,
          run = function(ctx)
            if ctx.iter <= 80 then kept[ctx.iter] = gen.value(262144) end
            kv.get("k")
            if ctx.iter > 200 then most = math.max(most, collectgarbage("count")) end
            if ctx.iter == 3000 then
              local live = #kept * 256
              assert(most > live and most < 3 * live, most .. " KiB for " .. live)
            end
          end,
        }
    "#;
    on_memory(&Spec { limit: Limit::Units(3_000), verify: false, ..spec(source, 1) }).unwrap();
}

/// A script may replace Lua's functions for itself, and sets the collector as it likes.
#[test]
fn what_a_script_makes_of_collectgarbage_is_its_own_affair() {
    let source = r#"
        local set, calls = collectgarbage, 0
        set("setpause", 320)
        collectgarbage = function() calls = calls + 1 end
        return { run = function() assert(calls == 0 and set("setpause", 320) == 320) end }
    "#;
    on_memory(&Spec { limit: Limit::Units(200), verify: false, ..spec(source, 1) }).unwrap();
    let source = source.replace("320", "200");
    let source = source.replace("assert(calls == 0 and set(\"setpause\", 200) == 200)", "assert(calls == 0)");
    on_memory(&Spec { limit: Limit::Units(200), verify: false, ..spec(&source, 1) }).unwrap();
}

/// Random looks at lists that verbs answer and at the same lists made by hand, one after another: results and errors are the same.
const RANDOM_LOOKS: &str = r##"
    for i = 1, 9 do kv.put("k" .. i, "v" .. i) end
    local function keys(n) local k = {} for i = 1, n do k[i] = "k" .. i end return k end
    local function by_hand(n, rows)
      local list = {}
      for i = 1, n do list[i] = rows and { key = "k" .. i, val = "v" .. i } or "v" .. i end
      return list
    end
    local function answer(n, rows)
      if rows then return kv.range("k", n == 0 and "k" or "l", n) end
      return kv.mget(keys(n))
    end
    local function show(x, depth)
      if type(x) ~= "table" then return (tostring(x):gsub("0x%x+", "?"):gsub("^[^ ]+:%d+: ", "")) end
      if (depth or 0) > 3 then return "..." end
      local parts = {}
      for k, v in pairs(x) do parts[#parts + 1] = show(k) .. "=" .. show(v, (depth or 0) + 1) end
      return "{" .. table.concat(parts, ",") .. "}"
    end
    local places = { 1, 2, 5, 9, 10, 0, -1, 2.0, 1.5, "x", "1", true, 1e300, 0 / 0 }
    local function less(a, b) return show(a) < show(b) end
    local looks = {
      function(l, at) return l[at] end,
      function(l, at) l[at] = "new" end,
      function(l) l[#l + 1] = "more" end,
      function(l) l[#l] = nil end,
      function(l) l[nil] = 1 end,
      function(l) return l[nil] end,
      function(l) return #l end,
      function(l) return l[1].key, l[1].val end,
      function(l) l[1].key = "other" end,
      function(l, at) return next(l, at) end,
      function(l) return next(l) end,
      function(l) local t = {} for i, x in ipairs(l) do t[i] = x end return t end,
      function(l) local t = {} for i, x in pairs(l) do t[#t + 1] = { i, x } end return t end,
      function(l) for i in pairs(l) do l[i] = nil end end,
      function(l) table.insert(l, "in") end,
      function(l) table.insert(l, 1, "in") end,
      function(l, at) table.insert(l, at, "in") end,
      function(l, at) return table.remove(l, at) end,
      function(l) return table.remove(l) end,
      function(l) return table.concat(l, ",") end,
      function(l) return table.unpack(l) end,
      function(l) return table.move(l, 1, #l, 2) end,
      function(l) return table.move(l, 1, #l, 1, {}) end,
      function(l) return table.sort(l, less) end,
      function(l, at) return rawget(l, at) end,
      function(l, at) return rawset(l, at, 7) end,
      function(l) return rawlen(l) end,
      function(l) return getmetatable(l) end,
      function(l) return setmetatable(l, { __index = { x = "y" } }) end,
      function(l) return rawequal(l, l), l == l, type(l), select("#", l) end,
      function(l) return l .. "" end,
      function(l) return l + 1 end,
      function(l) return l < l end,
      function(l) return l() end,
      function(l) return l.x.y end,
      function(l) return coroutine.wrap(function() return l[2] end)() end,
      function(l) return load("return a, _ENV", "", "t", l)() end,
      function(l) return kv.mget(l) end,
      function(l) return kv.mput(l) end,
    }
    local n, different = 0, {}
    for _ = 1, 6000 do
      local size, rows = math.random(0, 9), math.random(2) == 1
      local ours, other, course = answer(size, rows), by_hand(size, rows), {}
      for _ = 1, math.random(4) do
        local which, at = math.random(#looks), places[math.random(#places)]
        course[#course + 1] = which .. "(" .. show(at) .. ")"
        local a, b = table.pack(pcall(looks[which], ours, at)), table.pack(pcall(looks[which], other, at))
        a, b = show(a), show(b)
        assert(a == b, table.concat(course, " ") .. " of " .. size .. ":\n" .. a .. "\n" .. b)
        n = n + 1
      end
      assert(#ours == #other and show(ours) == show(other), table.concat(course, " "))
    end
    assert(n > 6000)
"##;

#[test]
fn lists_are_what_lists_made_by_hand_are() {
    lua(RANDOM_LOOKS, false).unwrap_or_else(|e| panic!("{e}"));
}
