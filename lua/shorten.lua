-- Sets the TTL of a hold whose key stays for longer than its client has asked for, as where the server's clock was set back. Only of a key
-- that ends when a renewal has found that it ends: each new TTL gives it another end, which a clock that is set does not change. So it does
-- nothing where it runs again, or behind a later command that has confirmed a longer lease.
--
-- KEYS[1]  the lock
-- ARGV[1]  the hold's field
-- ARGV[2]  the TTL in ms: at least what the hold's guards count on
-- ARGV[3]  when the key ends, in Unix ms
--
-- Replies  -1        done, or the key ends at another time
--          -2        lost: the field is not there

local count = redis.pcall('HGET', KEYS[1], ARGV[1])
-- 0: the lock is handed to the field, and held by nobody before its acquire.
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
