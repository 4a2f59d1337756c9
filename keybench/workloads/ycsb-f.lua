-- YCSB core workload F: read-modify-write.
-- Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010. 50 % reads, 50 % reads followed by a write of the same record, zipfian.

-- Record numbers are scattered over the key space, as YCSB's hashed insert order does: neighbours in popularity are no
-- neighbours in the store.
local function key(i) return gen.key("user%020u", (i * 0x9E3779B97F4A7C15) ~ (i >> 32)) end
-- The value stands for YCSB's ten fields.
local function record(ctx) return gen.value(ctx.value_size) end

return {
  name = "ycsb-f",

  load = function(ctx)
    local first = ctx.items * ctx.thread // ctx.threads
    local last = ctx.items * (ctx.thread + 1) // ctx.threads - 1
    local rows = {}
    for i = first, last do
      rows[#rows + 1] = { key = key(i), val = record(ctx) }
      if #rows == 64 or i == last then
        kv.mput(rows)
        rows = {}
      end
    end
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
