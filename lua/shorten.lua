-- Sets the TTL of a hold whose key stays longer than its client requested, for example since the server's clock was set back. It does so
-- only if the key ends at the time that a renewal has found: each new TTL gives the key another end, which setting a clock does not change.
-- So it does nothing if it runs again, or after a later command that has confirmed a longer lease.
--
-- KEYS[1]  the lock
-- ARGV[1]  the hold's field
-- ARGV[2]  the TTL in ms: at least the time that the hold's guards count on
-- ARGV[3]  when the key ends, in Unix ms
--
-- Replies  -1        done, or the key ends at another time
--          -2        lost: the field is not there

local count = redis.pcall('HGET', KEYS[1], ARGV[1])
-- With a count of 0 the lock is handed to the field, and held by nobody before its acquire.
if type(count) ~= 'string' or count == '0' then
  if type(count) == 'table' and string.sub(count.err, 1, 9) ~= 'WRONGTYPE' then
    return redis.error_reply(count.err .. ' script: user_script')
  end
  return -2
end
if redis.pcall('PEXPIRETIME', KEYS[1]) == tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return -1
