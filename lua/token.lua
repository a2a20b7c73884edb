-- An acquire that hands out a fencing token: greater than any that the counter has had, and no less than the time. `plain` is
-- acquire.lua. A repeat gets the token that the counter has. A field that the lock was handed to has no token yet: its count is 0.
--
-- KEYS[2]  the counter
-- ARGV[4]  the least that the token may be; if empty: the server's time in microseconds
-- ARGV[5]  how long the counter is kept while unused, in ms; if empty: for ever
--
-- Replies  a string  granted: the token
--          a status  `counter …`: KEYS[2] is no counter (its type), or at its `end`
--          otherwise as acquire.lua

local stands, wrong = counter()
if wrong then
  return wrong.err and redis.error_reply(wrong.err .. ' script: user_script') or wrong
end
local held = redis.call('EXISTS', KEYS[1]) == 1
-- The count may be 0 with a line or without: a request that has left the line may ask for it.
if held and redis.pcall('HGET', KEYS[1], ARGV[1]) == '0' then
  held = false
end
-- Checked before the lock is touched: a grant without a token would have to be undone.
if not held and stands == '9223372036854775807' then
  return redis.status_reply('counter end')
end
local reply = plain()
if reply ~= -1 then
  return reply
end
if held and stands then
  return stands
end
local given, token = pcall(function()
  local token = ARGV[4]
  if token == '' then
    local now = redis.call('TIME')
    token = now[1] .. string.format('%06d', now[2])
  end
  if stands and not below(stands, token) then
    -- Counted by the server, which counts exactly.
    redis.call('INCR', KEYS[2])
    token = redis.call('GET', KEYS[2])
  end
  local written = put(token, stands, ARGV[5])
  if written.err then
    error(written)
  end
  return token
end)
if not given then
  -- If the user lacks the right to SET, no hold without a token may be left behind: it would be busy for a lease.
  if not held then
    redis.call('HDEL', KEYS[1], ARGV[1])
  end
  return redis.error_reply((token.err or token) .. ' script: user_script')
end
return token
