-- Every entry is overwritten again and again, uniformly: what an engine does about the space of old values, and when. One call of
-- twenty is a get, so that `--verify` has answers to check meanwhile.
-- Run it for long, with `--secs 30m`: `timeline.tsv` has the bytes of the store's files over time, and its report the figures.

local function key(i) return gen.key("k:%012d", i) end

return {
  name = "overwrite",

  load = function(ctx)
    kv.fill(ctx, ctx.items, key, function() return gen.value(ctx.value_size) end)
  end,

  run = function(ctx)
    local i = gen.uniform(ctx.items)
    if gen.uniform(20) == 0 then
      kv.get(key(i))
    else
      kv.put(key(i), gen.value(ctx.value_size))
    end
  end,
}
