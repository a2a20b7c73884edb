-- Lets a hold live for a lease from now, at least: a TTL that is longer stays, and is the reply.
--
-- KEYS[1]  the lock
-- ARGV[1]  the hold's field
-- ARGV[2]  the lease in ms
-- ARGV[3]  `moves`, for a hold that may have a late shorten.lua on its way: a key that stays longer gets another end, so that shorten.lua
--          finds nothing to do. Otherwise missing, or the first argument of raise.lua
--
-- Replies  -1        renewed
--          -2        lost: the field is not there
--          a list    renewed: the TTL in ms, which is longer than the lease, and when the key ends, in Unix ms (from Redis 7 on, if the
--                    user may ask for it)
--          an error  `…, nothing written`: its one write was refused. Each renewal writes, since a server that has become a replica must
--                    not confirm a hold that may be over at the new master

local count = redis.pcall('HGET', KEYS[1], ARGV[1])
-- With a count of 0 the lock is handed to the field, and held by nobody before its acquire.
if type(count) ~= 'string' or count == '0' then
  if type(count) == 'table' and string.sub(count.err, 1, 9) ~= 'WRONGTYPE' then
    return redis.error_reply(count.err .. ' script: user_script')
  end
  return -2
end
local ttl, lease = redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])
local written
-- A key without a TTL reads as -1, and gets one.
if ttl < lease or ARGV[3] == 'moves' then
  written = redis.pcall('PEXPIRE', KEYS[1], string.format('%.0f', math.max(lease, ttl + 1)))
else
  -- A write that changes nothing: no hash has this field. The key's own TTL, written again, could move its end by a millisecond.
  written = redis.pcall('HDEL', KEYS[1], ARGV[1] .. ' ')
end
if type(written) == 'table' then
  return redis.error_reply(written.err .. ' script: user_script, nothing written')
end
if ttl > lease and ARGV[3] ~= 'moves' then
  local ends = redis.pcall('PEXPIRETIME', KEYS[1])
  if type(ends) == 'number' then
    return {ttl, ends}
  end
end
return -1
