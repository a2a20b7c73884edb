-- What scripts that act on a lock's fencing counter have in common. It follows the script of the lock itself, which is called as `plain`,
-- and is followed by token.lua or raise.lua.
--
-- KEYS[2]  the counter: its value is the last token that was given out
--
-- Tokens are compared as text: a number is exact up to 2^53 here, and a counter ends at 2^63 - 1.

local function below(one, other)
  return string.sub(one, 1, 1) == '-' or #one < #other or (#one == #other and one < other)
end

-- Returns the counter as text, or false if there is none; or nil and what is wrong.
local function counter()
  local text = redis.pcall('GET', KEYS[2])
  if type(text) == 'table' then
    if string.sub(text.err, 1, 9) ~= 'WRONGTYPE' then
      return nil, text
    end
    return nil, redis.status_reply('counter ' .. redis.call('TYPE', KEYS[2]).ok)
  end
  -- Accepts only a number that INCR accepts: if INCR failed after the grant, the grant would have to be undone.
  local digits = text and string.match(text, '^%-?([1-9]%d*)$')
  local counts = text == '0' or digits and (#digits < 19 or #digits == 19 and digits <= '9223372036854775807')
  if text and not counts then
    return nil, redis.status_reply('counter string')
  end
  return text
end

-- Returns how long the counter is to be kept, in ms, or nil for ever. A counter that was found without a TTL (Redisson's) gets none,
-- since Redisson would begin again at 1. No TTL is shortened.
local function stay(found, ttl)
  if ttl == '' then
    return nil
  end
  local left = found and redis.call('PTTL', KEYS[2]) or 0
  if left == -1 then
    return nil
  end
  return math.max(left, tonumber(ttl))
end

local function put(token, found, ttl)
  local ms = stay(found, ttl)
  if ms then
    return redis.pcall('SET', KEYS[2], token, 'PX', string.format('%.0f', ms))
  end
  return redis.pcall('SET', KEYS[2], token)
end
