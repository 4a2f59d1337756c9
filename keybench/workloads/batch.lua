-- The amortisation curve: 60 % multi-get, 40 % multi-put of ctx.batch keys a call.

local function key(i) return gen.key("k:%012d", i) end

return {
  name = "batch",
  batched = true,
  -- The data set does not depend on the batch size: one load serves all.
  sweep = { param = "batch", values = { 1, 64, 256 }, seed_per_value = false },

  load = function(ctx)
    kv.fill(ctx, ctx.items, key, function() return gen.value(ctx.value_size) end)
  end,

  run = function(ctx)
    if gen.uniform(100) < 60 then
      local keys = {}
      for i = 1, ctx.batch do keys[i] = key(gen.uniform(ctx.items)) end
      kv.mget(keys)
    else
      local rows = {}
      for i = 1, ctx.batch do
        rows[i] = { key = key(gen.uniform(ctx.items)), val = gen.value(ctx.value_size) }
      end
      kv.mput(rows)
    end
  end,
}
