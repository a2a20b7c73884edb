-- Puts the field of an acquire that finds the lock busy at the end of the lock's line; there it keeps its place. It is appended to
-- fields.lua.
--
-- KEYS[2]     the line; without it the script does nothing
-- ARGV[1]     the field
-- ARGV[last], or before `again`: the parameters of the line (serve.lua)
--
-- Replies  a list    as whose.lua, and after it the number of fields in the line, this one included
--          an error  a right is missing: the client has to remember that, since a server counts and logs what it denies. Or the server
--                    has become a replica: the client has to leave it, since it may wait for ever where nobody is handed the lock

if KEYS[2] then
  local told = ARGV[#ARGV] == 'again' and ARGV[#ARGV - 1] or ARGV[#ARGV]
  local _, _, stays, wakes = string.match(told, '^(S?)(%d+) (%d+) (.*)$')
  local member = wakes .. ARGV[1]
  local last, now = redis.pcall('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES'), redis.pcall('TIME')
  local entered = last.err and last or now
  if not entered.err then
    -- The lowest 20 bits count the entries; above them is the time in s, for people who look at the line. The order is not by the time,
    -- which may be set back: later entries would pass earlier ones. The last score is rounded down, since an entry that gave way has a half
    -- added to its score (hold.lua).
    local score = math.floor(tonumber(last[2]) or 0) + 1
    score = math.max(score, now[1] * 2 ^ 20 + score % 2 ^ 20)
    -- A full server refuses this write: the reply is then the one without a line.
    entered = redis.pcall('ZADD', KEYS[2], 'NX', string.format('%.0f', score), member)
  end
  if type(entered) == 'number' then
    local left = redis.pcall('PTTL', KEYS[2])
    -- The TTL is only ever made longer: others may ask less often.
    if type(left) == 'number' and (left >= tonumber(stays) or redis.pcall('PEXPIRE', KEYS[2], stays) == 1) then
      return {ttl, fields[1], fields[2], tonumber(redis.pcall('ZCARD', KEYS[2])) or 1}
    end
    redis.pcall('ZREM', KEYS[2], member)
  elseif string.find(entered.err, 'permission', 1, true) or string.find(entered.err, 'executing the script', 1, true)
    or string.find(entered.err, 'READONLY', 1, true) then
    return redis.error_reply(entered.err .. ' script: user_script, nothing written')
  end
end
