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
local sharded = ARGV[2] == 'SPUBLISH'
local publish = sharded and 'SPUBLISH' or 'PUBLISH'
if KEYS[2] then
  local _, term, _, wakes = string.match(ARGV[#ARGV], '^(S?)(%d+) (%d+) (.*)$')
  for at = 1, #fields, 2 do
    -- A hint for the holder that has lost the lock: it then asks whether it still has it. Its process may not be subscribed to the release
    -- channel.
    local session, number = string.match(fields[at], '^(.*):(%d+)$')
    if session then
      redis.pcall(publish, wakes .. session, number .. ' - ' .. KEYS[1])
    end
  end
  serve(publish, wakes, term)
end
-- Published even if the lock was handed on, since its former holder has to notice.
local sent = redis.pcall(publish, ARGV[1], '0')
if type(sent) == 'table' and sharded then
  redis.pcall('PUBLISH', ARGV[1], '0')
end
return -1
