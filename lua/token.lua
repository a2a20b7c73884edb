-- An acquire that hands out a fencing token: greater than any that the counter has seen, and no less than the time.
-- `plain` is acquire.lua. A repeat gets the token as it stands.
-- A field that the lock was handed to has none yet: its count is 0.
--
-- KEYS[2]  the counter
-- ARGV[4]  the least that the token may be; nothing: the server's time in microseconds
-- ARGV[5]  how long the counter stays unused, in ms; nothing: for ever
--
-- Replies  a string  granted: the token
--          a status  `counter …`: KEYS[2] is no counter (its type), or at its `end`
--          else      as acquire.lua

local stands, wrong = counter()
if wrong then
  return wrong.err and redis.error_reply(wrong.err .. ' script: user_script') or wrong
end
local held = redis.call('EXISTS', KEYS[1]) == 1
-- Whether with a line or without: it may be asked for by one who has left the line since.
if held and redis.pcall('HGET', KEYS[1], ARGV[1]) == '0' then
  held = false
end
-- Looked at before the lock is touched: a grant without a token would have to be undone.
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
    -- By the server, which counts exactly.
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
  -- A user without the right to SET must not leave a hold without a token: busy for a lease.
  if not held then
    redis.call('HDEL', KEYS[1], ARGV[1])
  end
  return redis.error_reply((token.err or token) .. ' script: user_script')
end
return token
