-- Reports who holds a lock, and for how long yet. It writes nothing.
--
-- KEYS[1]  the lock
--
-- Replies  -3        free
--          a list    held: the TTL in ms, the field, its count as text
--          a number  held, and no field was found: the TTL in ms
--          a status  not a lock of this kind: the key's type (a hash has no TTL, a string may have one)

local ttl = redis.call('PTTL', KEYS[1])
if ttl == -2 then
  return -3
end
local kind = redis.call('TYPE', KEYS[1])
if kind.ok ~= 'hash' or ttl < 0 then
  return kind
end
-- In parts: of a hash that is no lock, and large, it reads some fields only.
local found = redis.call('HSCAN', KEYS[1], '0')[2]
if not found[1] then
  return ttl
end
-- Cut: another program's may be of any length, and it is only shown.
return {ttl, string.sub(found[1], 1, 512), string.sub(found[2], 1, 20)}
