-- Hands a hold over: its field is replaced by one of the process that continues it, with a lease of its own. A repeat never shortens the TTL.
-- Commands of the former holder don't find its field any more.
--
-- KEYS[1]  the lock
-- ARGV[1]  the field that continues the hold
-- ARGV[2]  the field that it replaces
-- ARGV[3]  the lease in ms
--
-- Replies  -1        moved, by this run or an earlier one
--          -2        lost: neither field is there
--          an error  as acquire.lua

local count = redis.pcall('HGET', KEYS[1], ARGV[2])
if type(count) == 'string' and count ~= '0' then
  -- They run in this order, since the key goes with its last field.
  local moved = redis.pcall('HSET', KEYS[1], ARGV[1], '1')
  if type(moved) == 'table' then
    return redis.error_reply(moved.err .. ' script: user_script, nothing written')
  end
  redis.call('HDEL', KEYS[1], ARGV[2])
  -- Nobody counts on the TTL of the claim any more, which may be hours. The client knows only its own lease: if the answer is lost and the
  -- server is away for longer than that, it takes the key to be gone.
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
else
  if type(count) == 'table' and string.sub(count.err, 1, 9) ~= 'WRONGTYPE' then
    return redis.error_reply(count.err .. ' script: user_script')
  end
  -- A repeat: the claim was used, by this same hold.
  if type(count) == 'table' or (redis.call('HGET', KEYS[1], ARGV[1]) or '0') == '0' then
    return -2
  end
  -- A key without a TTL reads as -1, and gets one.
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  else
    -- A write that changes nothing, as in renew.lua.
    redis.call('HDEL', KEYS[1], ARGV[2])
  end
end
return -1
