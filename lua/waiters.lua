-- Reports which processes wait in a lock's line, in order. It writes nothing.
--
-- KEYS[1]  the lock
-- KEYS[2]  its line, if it has one
-- ARGV[last] the parameters of the line, if there is a KEYS[2] (serve.lua)
--
-- Replies  a list  for each process the field that asks, and for how many seconds it has been in the line

local waiters = {}
if KEYS[2] then
  local wakes = string.match(ARGV[#ARGV], '^S?%d+ %d+ (.*)$')
  -- Bounded, since a server runs nothing else in the meantime.
  local line = redis.pcall('ZRANGE', KEYS[2], 0, 999, 'WITHSCORES')
  local now = redis.pcall('TIME')[1]
  -- A user without the right to either learns of nobody.
  for at = 1, now and #line or 0, 2 do
    if string.sub(line[at], 1, #wakes) == wakes then
      waiters[#waiters + 1] = string.sub(line[at], #wakes + 1)
      waiters[#waiters + 1] = math.max(0, now - math.floor(line[at + 1] / 2 ^ 20))
    end
  end
end
return waiters
