-- YCSB core workload D: read latest.
-- Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010. 95 % reads, of the newest records most, 5 % inserts.

-- Record numbers are scattered over the key space, as YCSB's hashed insert order does: neighbours in popularity are no
-- neighbours in the store.
local function key(i) return gen.key("user%020u", gen.scatter(i)) end
-- The value stands for YCSB's ten fields.
local function record(ctx) return gen.value(ctx.value_size) end

-- Numbers of inserted records: each thread has its own, behind those that were loaded.
local inserted = 0
local function insert(ctx)
  kv.put(key(ctx.items + inserted * ctx.threads + ctx.thread), record(ctx))
  inserted = inserted + 1
end

return {
  name = "ycsb-d",

  load = function(ctx)
    kv.fill(ctx, ctx.items, key, function() return record(ctx) end)
  end,

  run = function(ctx)
    if gen.uniform(100) < 95 then
      -- How many the others have inserted is not known: of the inserted ones a thread asks for its own.
      local back = gen.zipf(ctx.items)
      if back < inserted then
        kv.get(key(ctx.items + (inserted - 1 - back) * ctx.threads + ctx.thread))
      else
        kv.get(key(ctx.items - 1 - (back - inserted)))
      end
    else
      insert(ctx)
    end
  end,
}
