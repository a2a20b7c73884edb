-- Lets a hold live for a lease from now, at least. A longer TTL stays, and is the reply: unless the key would end at one of the given times.
-- No lease of the hold explains those, so it gets the limit as its TTL.
--
-- KEYS[1]  the lock
-- ARGV[1]  the hold's field
-- ARGV[2]  the lease in ms
-- ARGV[3]  the limit in ms, at least the lease; empty or missing: there is none
-- ARGV[4]  if there is a limit: times at which the key must not end, in Unix ms, with a space between them
--
-- Replies  -1        renewed
--          -2        lost: the field is not there
--          0 or more renewed: the TTL in ms, which is longer than the lease
--          a list    renewed: a TTL beyond the limit, and when the key ends, in Unix ms

local count = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(count) ~= 'string' then
  if count and string.sub(count.err, 1, 9) ~= 'WRONGTYPE' then
    return redis.error_reply(count.err .. ' script: user_script')
  end
  return -2
end
local ttl, limit = redis.call('PTTL', KEYS[1]), tonumber(ARGV[3] or '')
-- No TTL reads as -1: it gets one.
if ttl < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return -1
end
if limit then
  -- No server has it before Redis 7, and not every user has the right to it: the TTL stays then.
  local ends = redis.pcall('PEXPIRETIME', KEYS[1])
  if type(ends) == 'number' then
    if string.find(' ' .. ARGV[4] .. ' ', string.format(' %.0f ', ends), 1, true) then
      redis.call('PEXPIRE', KEYS[1], ARGV[3])
      return -1
    end
    if ttl > limit then
      return {ttl, ends}
    end
  end
end
if ttl > tonumber(ARGV[2]) then
  return ttl
end
return -1
