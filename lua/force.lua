-- Frees a lock, whoever holds it. It is appended to serve.lua, who.lua and fields.lua. The last two return if the key is free or no lock.
--
-- KEYS[1]  the lock
-- KEYS[2]  its line, if it has one
-- ARGV[1]  the lock's release channel
-- ARGV[2]  `SPUBLISH`, if that is the command that publishes
-- ARGV[last] the parameters of the line, if there is a KEYS[2] (serve.lua)
--
-- Replies  -1        freed
--          else      as who.lua, but never a list

redis.call('DEL', KEYS[1])
if KEYS[2] then
  local term, _, wakes = string.match(ARGV[#ARGV], '^(%d+) (%d+) (.*)$')
  serve(wakes, term)
end
-- Published even if the lock was handed on, since its former holder has to notice.
local sharded = ARGV[2] == 'SPUBLISH'
local sent = redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', ARGV[1], '0')
if type(sent) == 'table' and sharded then
  redis.pcall('PUBLISH', ARGV[1], '0')
end
return -1
