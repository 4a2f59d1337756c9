-- YCSB core workload B: read mostly.
-- Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010. 95 % reads, 5 % updates, zipfian.

-- Record numbers are scattered over the key space, as YCSB's hashed insert order does: neighbours in popularity are no
-- neighbours in the store.
local function key(i) return gen.key("user%020u", gen.scatter(i)) end
-- The value stands for YCSB's ten fields.
local function record(ctx) return gen.value(ctx.value_size) end

return {
  name = "ycsb-b",

  load = function(ctx)
    kv.fill(ctx, ctx.items, key, function() return record(ctx) end)
  end,

  run = function(ctx)
    local k = key(gen.zipf(ctx.items))
    if gen.uniform(100) < 95 then
      kv.get(k)
    else
      kv.put(k, record(ctx))
    end
  end,
}
