-- Lowers the count of a hold, or ends the hold. It never touches the TTL.
-- Its argument is the count that must stand afterwards, so running it twice, or late, lowers nothing twice. It is appended to serve.lua and
-- hold.lua.
--
-- KEYS[1]  the lock
-- KEYS[2]  its line, if it has one; only an end has it
-- ARGV[1]  the hold's field
-- ARGV[2]  the count that must stand; 0 ends the hold, whatever its count; or `decline` (hold.lua)
-- ARGV[3]  the lock's release channel
-- ARGV[4]  `SPUBLISH`, if that is the command that publishes
-- ARGV[last] the parameters of the line, if there is a KEYS[2] (serve.lua)
--
-- Replies  -1        released, or the count is already that low
--          -2        not held: the field is not there
--          -4 - n    released, and n clients got the message on the lock's channel (if ARGV[4] is left out, or there is a KEYS[2])
--          {ms}      released, and the lock is left to clients that do not know the line for this long (if there is a KEYS[2])
--          {0}       released, and the user may not publish it (if there is a KEYS[2])
--          a string  the count could not be lowered, and why (a full server); the hold stands

if type(count) ~= 'string' then
  return -2
end
local held = tonumber(count)
if not (held and held <= tonumber(ARGV[2])) then
  return count_to_stand() or -1
end
return -1
