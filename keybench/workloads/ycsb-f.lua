-- YCSB core workload F: read-modify-write.
-- Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010. 50 % reads, 50 % reads followed by a write of the same record, zipfian.

-- Record numbers are scattered over the key space, as YCSB's hashed insert order does: neighbours in popularity are no
-- neighbours in the store.
local function key(i) return gen.key("user%020u", gen.scatter(i)) end
-- The value stands for YCSB's ten fields.
local function record(ctx) return gen.value(ctx.value_size) end

return {
  name = "ycsb-f",

  load = function(ctx)
    kv.fill(ctx, ctx.items, key, function() return record(ctx) end)
  end,

  run = function(ctx)
    local k = key(gen.zipf(ctx.items))
    if gen.uniform(100) < 50 then
      kv.get(k)
    else
      local old = kv.get(k)
      kv.put(k, old and #old == ctx.value_size and old or record(ctx))
    end
  end,
}
