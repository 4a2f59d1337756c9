-- Shopping carts: one key a line item under its user's prefix, so that a cart is a range.
-- 35 % add, 25 % view, 15 % get, 10 % update, 10 % remove, 5 % checkout (read the cart, delete every line).
-- Users are skewed: a few are hot.

local LINES = 5    -- lines a cart is loaded with
local SLOTS = 20   -- line numbers that a cart may use

local function line(user, n) return gen.key("cart:%08d:%04d", user, n) end
local function cart(user) return gen.key("cart:%08d:", user), gen.key("cart:%08d;", user) end

return {
  name = "cart",

  load = function(ctx)
    local first, last = gen.share(ctx.users, ctx.thread, ctx.threads)
    for user = first, last do
      local rows = {}
      for n = 0, LINES - 1 do
        rows[#rows + 1] = { key = line(user, n), val = gen.value(ctx.value_size) }
      end
      kv.mput(rows)
    end
  end,

  run = function(ctx)
    -- Neighbouring ranks are spread over the key space: hot users are not neighbours.
    local user = gen.zipf(ctx.users) * 7919 % ctx.users
    local n = gen.uniform(SLOTS)
    local p = gen.uniform(100)
    if p < 35 then
      kv.put(line(user, n), gen.value(ctx.value_size))
    elseif p < 60 then
      kv.range(cart(user))
    elseif p < 75 then
      kv.get(line(user, n))
    elseif p < 85 then
      if kv.get(line(user, n)) then
        kv.put(line(user, n), gen.value(ctx.value_size))
      end
    elseif p < 95 then
      kv.del(line(user, n))
    else
      local rows = kv.range(cart(user))
      local keys = {}
      for i = 1, #rows do keys[i] = rows[i].key end
      kv.mdel(keys)
    end
  end,
}
