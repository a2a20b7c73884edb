-- Frees a lock, whoever holds it. What is no lock of ours is not touched.
--
-- KEYS[1]  the lock
-- ARGV[1]  the lock's release channel
-- ARGV[2]  the command that publishes; nothing: `PUBLISH`
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
local sent = redis.pcall(ARGV[2] or 'PUBLISH', ARGV[1], '0')
if type(sent) == 'table' and ARGV[2] == 'SPUBLISH' then
  redis.pcall('PUBLISH', ARGV[1], '0')
end
return -1
