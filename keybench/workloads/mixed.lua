-- The plain baseline: a uniform random mix over the whole key space.
-- 50 % get, 30 % put, 10 % delete, 10 % range. A range covers 100 key numbers, whether or not their keys are still there:
-- the deletes build tombstones and shorten it.

local SPAN = 100

local function key(i) return gen.key("k:%012d", i) end

return {
  name = "mixed",

  load = function(ctx)
    kv.fill(ctx, ctx.items, key, function() return gen.value(ctx.value_size) end)
  end,

  run = function(ctx)
    local i = gen.uniform(ctx.items)
    local p = gen.uniform(100)
    if p < 50 then
      kv.get(key(i))
    elseif p < 80 then
      kv.put(key(i), gen.value(ctx.value_size))
    elseif p < 90 then
      kv.del(key(i))
    else
      kv.range(key(i), key(i + SPAN), SPAN)
    end
  end,
}
