-- Read only: 1,000 consecutive rows from a random key on, streamed through a callback that keeps nothing.

local ROWS = 1000

local function key(i) return gen.key("key%012d", i) end

return {
  name = "scan",

  load = function(ctx)
    kv.fill(ctx, ctx.items, key, function() return gen.value(ctx.value_size) end)
  end,

  run = function(ctx)
    local from = gen.uniform(math.max(1, ctx.items - ROWS))
    kv.scan(key(from), nil, function() end, ROWS)
  end,
}
