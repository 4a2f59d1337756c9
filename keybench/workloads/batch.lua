-- The amortisation curve: 60 % multi-get, 40 % multi-put of ctx.batch keys a call.

local function key(i) return gen.key("key%012d", i) end

return {
  name = "batch",
  batched = true,
  -- The data set does not depend on the batch size: one load serves all.
  sweep = { param = "batch", values = { 1, 64, 256 }, seed_per_value = false },

  load = function(ctx)
    local first = ctx.items * ctx.thread // ctx.threads
    local last = ctx.items * (ctx.thread + 1) // ctx.threads - 1
    local rows = {}
    for i = first, last do
      rows[#rows + 1] = { key = key(i), val = gen.value(ctx.value_size) }
      if #rows == 64 or i == last then
        kv.mput(rows)
        rows = {}
      end
    end
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
