-- Reports whether a lock is held, and for how long yet. It writes nothing.
--
-- KEYS[1]  the lock
--
-- Replies  -3        free
--          0 or more busy: the TTL in ms
--          a status  not a lock: the key's type (a hash or a string has no TTL)

local kind = redis.call('TYPE', KEYS[1])
if kind.ok == 'none' then
  return -3
end
local ttl = redis.call('PTTL', KEYS[1])
if ttl >= 0 and (kind.ok == 'hash' or kind.ok == 'string') then
  return ttl
end
return kind
