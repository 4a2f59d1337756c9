-- Values of 1 GiB: what an engine does with values that dwarf its buffers. A few keys (--users of them, 4 at most), each put
-- whole and got whole; the interface has no streams, so an engine holds a value in memory at least once.
--
-- Begin with less: --sweep 16M,128M. An engine that refuses a size says so and takes no more part.

local function keys(ctx) return math.min(ctx.users, 4) end
local function key(i) return gen.key("gig%04d", i) end

return {
  name = "onegig",
  sweep = { param = "valuebytes", values = { 1 << 30 }, seed_per_value = true },
  entries = 4,

  load = function(ctx)
    for i = 0, keys(ctx) - 1 do
      if i % ctx.threads == ctx.thread then kv.put(key(i), gen.value(ctx.valuebytes)) end
    end
  end,

  run = function(ctx)
    local k = key(gen.uniform(keys(ctx)))
    if gen.uniform(2) == 0 then
      kv.get(k)
    else
      kv.put(k, gen.value(ctx.valuebytes))
    end
  end,
}
