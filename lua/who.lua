-- Reports who holds a lock, and for how long. It writes nothing. fields.lua and whose.lua are appended to it.
--
-- KEYS[1]  the lock
--
-- Replies  -3        free
--          a list    held: the TTL in ms, the field, its count as text
--          a status  not a lock of this kind: the key's type (a hash has no TTL, a string may have one), `fields` or `rwlock`

local ttl = redis.call('PTTL', KEYS[1])
if ttl == -2 then
  return -3
end
local kind = redis.call('TYPE', KEYS[1])
if kind.ok ~= 'hash' or ttl < 0 then
  return kind
end
local scan = redis.call('HSCAN', KEYS[1], '0')
