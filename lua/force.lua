-- Frees a lock, whoever holds it. It is appended to serve.lua, who.lua and fields.lua. The last two return if the key is free or no lock.
--
-- KEYS[1]  the lock
-- KEYS[2]  its line, if the last two arguments are given
-- ARGV[1]  the lock's release channel
-- ARGV[2]  the command that publishes; if left out: `PUBLISH`
-- ARGV[3]  what the channels of processes begin with
-- ARGV[4]  for how long the lock is kept for a field that it is handed to, in ms
--
-- Replies  -1        freed
--          else      as who.lua, but never a list

redis.call('DEL', KEYS[1])
if ARGV[4] then
  serve(ARGV[3], ARGV[4])
end
-- Published even if the lock was handed on, since its former holder has to notice.
local sent = redis.pcall(ARGV[2] or 'PUBLISH', ARGV[1], '0')
if type(sent) == 'table' and ARGV[2] == 'SPUBLISH' then
  redis.pcall('PUBLISH', ARGV[1], '0')
end
return -1
