-- Lets a hold live for a lease from now, at least. A longer TTL stays, and is the reply. A TTL beyond the limit, which no lease of the hold
-- explains, is set to the limit.
--
-- KEYS[1]  the lock
-- ARGV[1]  the hold's field
-- ARGV[2]  the lease in ms
-- ARGV[3]  the limit in ms, at least the lease; empty or missing: no limit
--
-- Replies  -1        renewed
--          -2        lost: the field is not there
--          0 or more renewed: the TTL in ms, which is longer than the lease

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
elseif limit and ttl > limit then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
elseif ttl > tonumber(ARGV[2]) then
  return ttl
end
return -1
