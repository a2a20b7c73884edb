-- Checks whether a hash with a TTL is a lock: each of its fields is a hold, `<uuid>:<number>` with or without a name before it, and each
-- value is a whole number. It is appended to acquire.lua, look.lua and who.lua. `scan` is the reply to one HSCAN, which has all fields of
-- a lock: a hash with more is no lock, and is not read to its end.
--
-- KEYS[1]  the hash
--
-- Replies  a status  not a lock: `rwlock` for a read-write lock of Redisson, otherwise `fields`

local fields, hex = scan[2], '%x%x%x%x'
local four = '%-' .. hex
local hold = ':' .. hex .. hex .. four .. four .. four .. four .. hex .. hex .. ':%-?%d+$'
local foreign = scan[1] ~= '0' or not fields[1]
for at = 1, #fields, 2 do
  local field, count = fields[at], fields[at + 1]
  -- Bounded, since a field of another program may be of any length.
  foreign = foreign or #field > 512 or #count > 19 or not (string.find(':' .. field, hold) and string.find(count, '^%d+$'))
end
if foreign then
  local mode = redis.call('HGET', KEYS[1], 'mode')
  return redis.status_reply((mode == 'read' or mode == 'write') and 'rwlock' or 'fields')
end
