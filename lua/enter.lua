-- Puts the field of an acquire that finds the lock busy into the lock's line, behind all others; there it keeps its place. It is appended to
-- fields.lua.
--
-- KEYS[2]        the line
-- ARGV[1]        the field
-- ARGV[last - 3] what the channels of processes begin with
-- ARGV[last - 1] for how long the line stays where nobody asks, in ms
-- ARGV[last]     `enter` or `again`; else the line is left alone
--
-- Replies  a list  as whose.lua, and behind it 1: the field is in the line

if ARGV[#ARGV] == 'enter' or ARGV[#ARGV] == 'again' then
  local member, stays = ARGV[#ARGV - 3] .. ARGV[1], ARGV[#ARGV - 1]
  -- Not by the time, which may be set back: those who come later would pass.
  local last = redis.pcall('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
  local score = (tonumber(last[2]) or 0) + 1
  -- A full server refuses it, or a right is missing: the answer is that without a line.
  if not last.err and type(redis.pcall('ZADD', KEYS[2], 'NX', score, member)) == 'number' then
    local left = redis.pcall('PTTL', KEYS[2])
    -- Only ever longer: others may ask less often.
    if type(left) == 'number' and (left >= tonumber(stays) or redis.pcall('PEXPIRE', KEYS[2], stays) == 1) then
      return {ttl, fields[1], fields[2], 1}
    end
    redis.pcall('ZREM', KEYS[2], member)
  end
end
