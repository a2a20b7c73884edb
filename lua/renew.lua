-- Lets a hold live for a lease from now, at least: a TTL that is longer stays.
--
-- KEYS[1]  the lock
-- ARGV[1]  the hold's field
-- ARGV[2]  the lease in ms
--
-- Replies  -1        renewed
--          -2        lost: the field is not there
--          an error  `…, nothing written`: its one write was refused

local count = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(count) ~= 'string' then
  if count and string.sub(count.err, 1, 9) ~= 'WRONGTYPE' then
    return redis.error_reply(count.err .. ' script: user_script')
  end
  return -2
end
-- No TTL reads as -1: it gets one.
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  local expires = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
  if type(expires) == 'table' then
    return redis.error_reply(expires.err .. ' script: user_script, nothing written')
  end
end
return -1
