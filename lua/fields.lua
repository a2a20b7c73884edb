-- Whether a hash with a TTL is a lock: each of its fields is a hold, `<uuid>:<number>` with a label before it or without, and its value a
-- whole number. It stands behind acquire.lua, look.lua and who.lua. `scan` is the first part of the hash, which is all of a lock: a hash
-- that is large is none, and is not read to its end.
--
-- KEYS[1]  the hash
--
-- Replies  a status  not a lock: `rwlock` for a read-write lock of Redisson, else `fields`

local fields, hex = scan[2], '%x%x%x%x'
local four = '%-' .. hex
local hold = ':' .. hex .. hex .. four .. four .. four .. four .. hex .. hex .. ':%-?%d+$'
local foreign = scan[1] ~= '0' or not fields[1]
for at = 1, #fields, 2 do
  local field, count = fields[at], fields[at + 1]
  -- Bounded, since another program's may be of any length.
  foreign = foreign or #field > 512 or #count > 19 or not (string.find(':' .. field, hold) and string.find(count, '^%d+$'))
end
if foreign then
  local mode = redis.call('HGET', KEYS[1], 'mode')
  return redis.status_reply((mode == 'read' or mode == 'write') and 'rwlock' or 'fields')
end
