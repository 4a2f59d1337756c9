-- Shopping carts: one key a line under its user's prefix, so that a cart is a range.
-- 35 % add, 25 % view, 15 % get, 10 % update (a put, whether or not the line is there), 10 % remove, 5 % checkout (read the
-- cart, delete its lines one by one).
-- Users are skewed by a square: half of the calls are for the first quarter of them, a tenth for the first hundredth, and
-- hot users are neighbours. A user only ever touches 16 of the catalogue's items, which are neighbours too.

local WINDOW = 16      -- items of the catalogue that a user buys
local STEP = 2654435761  -- spreads users' windows over the catalogue

local function line(user, item) return gen.key("u:%010d:c:%010d", user, item) end
-- ';' follows ':'.
local function cart(user) return gen.key("u:%010d:c:", user), gen.key("u:%010d:c;", user) end

local function item(ctx, user)
  local first = user * STEP % math.max(1, ctx.items - WINDOW)
  return first + gen.uniform(WINDOW)
end

return {
  name = "cart",

  -- 3 to 8 lines a user; some fall on the same item.
  load = function(ctx)
    local first, last = gen.share(ctx.users, ctx.thread, ctx.threads)
    for user = first, last do
      local rows = {}
      for n = 1, 3 + gen.uniform(6) do
        rows[n] = { key = line(user, item(ctx, user)), val = gen.value(ctx.value_size) }
      end
      kv.mput(rows)
    end
  end,

  run = function(ctx)
    local user = math.floor(ctx.users * math.random() ^ 2)
    local p = gen.uniform(100)
    if p < 35 then
      kv.put(line(user, item(ctx, user)), gen.value(ctx.value_size))
    elseif p < 60 then
      kv.range(cart(user))
    elseif p < 75 then
      kv.get(line(user, item(ctx, user)))
    elseif p < 85 then
      kv.put(line(user, item(ctx, user)), gen.value(ctx.value_size))
    elseif p < 95 then
      kv.del(line(user, item(ctx, user)))
    else
      local lines = kv.range(cart(user))
      for i = 1, #lines do kv.del(lines[i].key) end
    end
  end,
}
