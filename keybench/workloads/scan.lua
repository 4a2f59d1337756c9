-- Read only: 1,000 consecutive rows from a random key on, streamed through a callback that keeps nothing.

local ROWS = 1000

local function key(i) return gen.key("key%012d", i) end

return {
  name = "scan",

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
    local from = gen.uniform(math.max(1, ctx.items - ROWS))
    kv.scan(key(from), nil, function() end, ROWS)
  end,
}
