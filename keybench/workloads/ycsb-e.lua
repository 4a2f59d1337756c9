-- YCSB core workload E: short ranges.
-- Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010. 95 % scans of 1 to 100 records from a zipfian start, 5 % inserts.

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
  name = "ycsb-e",

  load = function(ctx)
    kv.fill(ctx, ctx.items, key, function() return record(ctx) end)
  end,

  run = function(ctx)
    if gen.uniform(100) < 95 then
      kv.range(key(gen.zipf(ctx.items)), nil, 1 + gen.uniform(100))
    else
      insert(ctx)
    end
  end,
}
