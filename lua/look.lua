-- Reports whether a lock is held, and for how long. It writes nothing. fields.lua and whose.lua are appended to it.
--
-- KEYS[1]  the lock
-- ARGV[1]  `whose`: if the key is a hash, its fields are checked, and the holder is reported
--
-- Replies  -3        free
--          0 or more busy: the TTL in ms
--          a list    busy, if `whose`: the TTL, the field, its count as text; only the TTL if the user may not read them
--          a status  not a lock: the key's type (a hash or a string has no TTL); if `whose`, also `fields` or `rwlock`

local kind = redis.call('TYPE', KEYS[1])
if kind.ok == 'none' then
  return -3
end
local ttl = redis.call('PTTL', KEYS[1])
if ttl < 0 or (kind.ok ~= 'hash' and kind.ok ~= 'string') then
  return kind
end
if kind.ok == 'string' or ARGV[1] ~= 'whose' then
  return ttl
end
local scan = redis.pcall('HSCAN', KEYS[1], '0')
if scan.err then
  return {ttl}
end
