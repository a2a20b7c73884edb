-- A renewal or a settle of a hold that has a fencing token. The counter is raised to it, whoever holds the lock. `plain` is renew.lua or
-- settle.lua; only the holder gets the reply that everything was done.
--
-- KEYS[2]        the counter
-- ARGV[last - 1] the token
-- ARGV[last]     how long the counter is kept while unused, in ms; if empty: for ever
--
-- Replies  a string  the counter could not be raised, and why (a full server); everything else was done
--          otherwise as renew.lua or settle.lua

local token, ttl = ARGV[#ARGV - 1], ARGV[#ARGV]
local stands, wrong = counter()
local why = wrong and (wrong.err or 'the key of the fencing counter holds something else')
if not wrong and (not stands or below(stands, token)) then
  why = put(token, stands, ttl).err
elseif not wrong then
  local ms = stay(stands, ttl)
  if ms then
    redis.pcall('PEXPIRE', KEYS[2], string.format('%.0f', ms))
  elseif ttl == '' then
    redis.pcall('PERSIST', KEYS[2])
  end
end
local reply = plain()
if why and (reply == -1 or type(reply) == 'table' and not reply.err) then
  return why
end
return reply
