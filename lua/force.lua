-- Frees a lock, whoever holds it. What is no lock of ours is not touched.
--
-- KEYS[1]  the lock
-- ARGV[1]  the lock's release channel
--
-- Replies  -1        freed
--          -3        it was free
--          a status  not a lock: the key's type (a hash has no TTL, a string may have one)

local kind = redis.call('TYPE', KEYS[1])
if kind.ok == 'none' then
  return -3
end
if kind.ok ~= 'hash' or redis.call('PTTL', KEYS[1]) < 0 then
  return kind
end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[1], '0')
return -1
