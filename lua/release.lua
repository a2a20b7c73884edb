-- Lowers the count of a hold, or ends the hold. It never touches the TTL.
-- It is told the count that must stand afterwards, so running it twice, or late, lowers nothing twice.
--
-- KEYS[1]  the lock
-- ARGV[1]  the hold's field
-- ARGV[2]  the count that must stand; 0 ends the hold, whatever its count
-- ARGV[3]  the lock's release channel
--
-- Replies  -1        released, or the count is that low
--          -2        not held: the field is not there
--          a string  the count could not be lowered, and why (a full server); the hold stands

if ARGV[2] == '0' then
  -- Looks and ends in one command. The key goes with its last field; a field that another program put beside ours stays,
  -- for it is not ours to end.
  local ended = redis.pcall('HDEL', KEYS[1], ARGV[1])
  if ended == 1 then
    -- An error here (no right to the channel) must not hide that the lock is free.
    redis.pcall('PUBLISH', ARGV[3], '0')
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
  return -2
end
local held = tonumber(count)
if not (held and held <= tonumber(ARGV[2])) then
  local lowered = redis.pcall('HSET', KEYS[1], ARGV[1], ARGV[2])
  if type(lowered) == 'table' then
    return lowered.err
  end
end
return -1
