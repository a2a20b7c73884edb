-- Frees a lock, whoever holds it. It is appended to who.lua and fields.lua, which return if the key is free or no lock.
--
-- KEYS[1]  the lock
-- ARGV[1]  the lock's release channel
-- ARGV[2]  the command that publishes; nothing: `PUBLISH`
--
-- Replies  -1        freed
--          else      as who.lua, but never a list

redis.call('DEL', KEYS[1])
local sent = redis.pcall(ARGV[2] or 'PUBLISH', ARGV[1], '0')
if type(sent) == 'table' and ARGV[2] == 'SPUBLISH' then
  redis.pcall('PUBLISH', ARGV[1], '0')
end
return -1
