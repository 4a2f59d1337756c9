-- Read only: the rows of 1,000 consecutive key numbers, streamed through a callback that adds up the numbers that values
-- begin with and keeps nothing.

local ROWS = 1000
local DIGITS = 12

local function key(i) return gen.key("k:%012d", i) end

local sum = 0
local function add(_, val)
  sum = sum + (tonumber(val:sub(1, DIGITS)) or 0)
end

return {
  name = "scan",

  load = function(ctx)
    local size = math.max(0, ctx.value_size - DIGITS)
    kv.fill(ctx, ctx.items, key, function(i) return gen.key("%012d", i) .. gen.value(size) end)
  end,

  run = function(ctx)
    local from = gen.uniform(math.max(0, ctx.items - ROWS) + 1)
    sum = 0
    kv.scan(key(from), key(from + ROWS), add)
  end,
}
