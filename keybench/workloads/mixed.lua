-- The plain baseline: a uniform random mix over the whole key space.
-- 50 % get, 30 % put, 10 % delete, 10 % range of 100. The deletes steadily build tombstones.

local function key(i) return gen.key("key%012d", i) end

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
      kv.range(key(i), nil, 100)
    end
  end,
}
