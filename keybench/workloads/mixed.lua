-- The plain baseline: a uniform random mix over the whole key space.
-- 50 % get, 30 % put, 10 % delete, 10 % range of 100. The deletes steadily build tombstones.

local function key(i) return gen.key("key%012d", i) end

return {
  name = "mixed",

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
