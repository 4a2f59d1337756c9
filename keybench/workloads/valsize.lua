-- The mix of `mixed` over a sweep of value sizes: where an engine's way with large values begins to matter.
-- The largest size times --items is the data set: keep --items modest.

local SPAN = 100

local function key(i) return gen.key("k:%012d", i) end

return {
  name = "valsize",
  sweep = { param = "valuebytes", values = { 256, 4096, 65536, 262144 }, seed_per_value = true },

  load = function(ctx)
    local first, last = gen.share(ctx.items, ctx.thread, ctx.threads)
    local rows, bytes = {}, 0
    for i = first, last do
      rows[#rows + 1] = { key = key(i), val = gen.value(ctx.valuebytes) }
      bytes = bytes + ctx.valuebytes
      if bytes >= 1048576 or #rows == 64 or i == last then
        kv.mput(rows)
        rows, bytes = {}, 0
      end
    end
  end,

  run = function(ctx)
    local i = gen.uniform(ctx.items)
    local p = gen.uniform(100)
    if p < 50 then
      kv.get(key(i))
    elseif p < 80 then
      kv.put(key(i), gen.value(ctx.valuebytes))
    elseif p < 90 then
      kv.del(key(i))
    else
      kv.range(key(i), key(i + SPAN), SPAN)
    end
  end,
}
