-- Lowers the count of a hold, or ends the hold. It never touches the TTL.
-- It is given the count that must stand afterwards, so running it twice, or late, lowers nothing twice. It is appended to serve.lua and
-- hold.lua.
--
-- KEYS[1]  the lock
-- KEYS[2]  its line, if the last two arguments are given, which only an end has
-- ARGV[1]  the hold's field
-- ARGV[2]  the count that must stand; 0 ends the hold, whatever its count
-- ARGV[3]  the lock's release channel
-- ARGV[4]  the command that publishes; if left out: `PUBLISH`
-- ARGV[5]  what the channels of processes begin with
-- ARGV[6]  for how long the lock is kept for a field that it is handed to, in ms
--
-- Replies  -1        released, or the count is already that low
--          -2        not held: the field is not there
--          -4 - n    released, and n clients got the message on the lock's channel (if ARGV[4] is left out, or ARGV[6] is given)
--          a string  the count could not be lowered, and why (a full server); the hold stands

if type(count) ~= 'string' then
  return -2
end
local held = tonumber(count)
if not (held and held <= tonumber(ARGV[2])) then
  return count_to_stand() or -1
end
return -1
