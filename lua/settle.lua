-- After a command of unknown outcome: makes the count of a hold what its client knows it to be, or ends the hold.
-- It creates nothing, so a hold that is gone stays gone; unless it is told to, for a master that lacks a hold which stands on a
-- majority of others.
--
-- KEYS[1]  the lock
-- ARGV[1]  the hold's field
-- ARGV[2]  the count that must stand; 0 ends the hold
-- ARGV[3]  the lease in ms that it lives for, at least (unused with 0)
-- ARGV[4]  the lock's release channel
-- ARGV[5]  1: where there is no key, make the field its holder
--
-- Replies  -1        settled, or made
--          -2        nothing to settle: the field is not there
--          a string  the count could not be written, and why (a full server); the hold stands, its TTL is raised

if ARGV[2] == '0' then
  local ended = redis.pcall('HDEL', KEYS[1], ARGV[1])
  if ended == 1 then
    redis.pcall('PUBLISH', ARGV[4], '0')
    return -1
  end
  if type(ended) == 'table' and string.sub(ended.err, 1, 9) ~= 'WRONGTYPE' then
    return redis.error_reply(ended.err .. ' script: user_script')
  end
  return -2
end

local count = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(count) ~= 'string' then
  if count and string.sub(count.err, 1, 9) ~= 'WRONGTYPE' then
    return redis.error_reply(count.err .. ' script: user_script')
  end
  -- Never beside another's field, nor over what is no lock.
  if ARGV[5] ~= '1' or redis.call('PTTL', KEYS[1]) ~= -2 then
    return -2
  end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  local expires = redis.pcall('PEXPIRE', KEYS[1], ARGV[3])
  if expires ~= 1 then
    redis.call('HDEL', KEYS[1], ARGV[1])
    return redis.error_reply(expires.err .. ' script: user_script')
  end
  return -1
end
-- Before the count: a hold must not end because its count could not be written.
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
if count ~= ARGV[2] then
  local counted = redis.pcall('HSET', KEYS[1], ARGV[1], ARGV[2])
  if type(counted) == 'table' then
    return counted.err
  end
end
return -1
