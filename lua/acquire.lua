-- Makes a field the holder of a free lock, or raises the count of a field that holds it already.
-- Its argument is the count that must stand afterwards, and it adds the difference, so running it twice counts nothing twice. It is
-- appended to serve.lua; fields.lua, enter.lua and whose.lua are appended to it.
--
-- KEYS[1]  the lock
-- KEYS[2]  its line, if it has one: if the lock is busy, the field enters the line, and the reply names the holder
-- ARGV[1]  the hold's field, `<uuid>:<id>`
-- ARGV[2]  the count that must stand: 1 takes the lock, more re-enters a hold
-- ARGV[3]  the lease in ms
-- ARGV[4]  for a re-entry: `moves`, as in renew.lua, or missing
-- ARGV[last] `whose`: if the lock is busy, the reply names the holder. `again`: the field has asked before, and a free lock is given to the
--            first of the line.
-- ARGV[last], or before `again`: the parameters of the line, if there is a KEYS[2] (serve.lua)
--
-- Replies  -1        granted
--          -2        lost: a re-entry found its hold gone
--          0 or more busy: the TTL in ms of another's hold
--          a list    busy, if `whose` or with a line: this TTL, the field, its count as text; the TTL alone if the user may not read them;
--                    after it the number of fields in the line, if this one is among them
--          a status  not a lock: the key's type (a hash or a string has no TTL); there also `fields` or `rwlock`
--          an error  `…, nothing written`: its first write was refused; after any other it may have written

-- Read first, because it distinguishes free from held and is the reply if the lock is busy.
local ttl = redis.call('PTTL', KEYS[1])
if ttl == -2 and ARGV[#ARGV] == 'again' and redis.pcall('PTTL', KEYS[2]) ~= -2 then
  local sharded, term, _, wakes = string.match(ARGV[#ARGV - 1], '^(S?)(%d+) (%d+) (.*)$')
  local served = serve(sharded .. 'PUBLISH', wakes, term, ARGV[3], ARGV[1], nil, polls(ARGV[1]))
  if not served then
    -- All entries before it were gone. The lock is free, so this field gets it and leaves the line.
    redis.pcall('ZREM', KEYS[2], wakes .. ARGV[1])
  elseif served ~= ARGV[1] then
    ttl = redis.call('PTTL', KEYS[1])
  end
end
if ttl == -2 then
  if ARGV[2] ~= '1' then
    return -2
  end
  local made = redis.pcall('HSET', KEYS[1], ARGV[1], ARGV[2])
  if type(made) == 'table' then
    return redis.error_reply(made.err .. ' script: user_script, nothing written')
  end
  local expires = redis.pcall('PEXPIRE', KEYS[1], ARGV[3])
  if expires ~= 1 then
    -- A user without the right to PEXPIRE must not leave a hash without a TTL: the lock would be busy for ever.
    redis.call('HDEL', KEYS[1], ARGV[1])
    return redis.error_reply(expires.err .. ' script: user_script')
  end
  return -1
end

local count = redis.pcall('HGET', KEYS[1], ARGV[1])
-- 1. A hold is gone, and a late acquire of its field enters the line. 2. The lock is handed to that field. 3. A re-entry of the hold must
--    not find it.
if count == '0' and ARGV[2] ~= '1' then
  return -2
end
if type(count) == 'string' then
  -- A count that another program wrote, and that is not a number, counts as lower than any number.
  local held = tonumber(count) or 0
  if not (held >= tonumber(ARGV[2])) then
    local counted = redis.pcall('HINCRBY', KEYS[1], ARGV[1], tonumber(ARGV[2]) - held)
    if type(counted) == 'table' then
      -- The count is not a whole number.
      counted = redis.pcall('HSET', KEYS[1], ARGV[1], ARGV[2])
    end
    if type(counted) == 'table' then
      return redis.error_reply(counted.err .. ' script: user_script, nothing written')
    end
  end
  -- No TTL reads as -1 and is lower than any lease: a hold that somebody persisted must not stay for ever.
  local lease = tonumber(ARGV[3])
  if ttl < lease or ARGV[4] == 'moves' then
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(lease, ttl + 1)))
  else
    -- A write that changes nothing, as in renew.lua.
    redis.call('HDEL', KEYS[1], ARGV[1] .. ' ')
  end
  return -1
end

if count and string.sub(count.err, 1, 9) ~= 'WRONGTYPE' then
  return redis.error_reply(count.err .. ' script: user_script')
end
if ARGV[2] ~= '1' then
  return -2
end
-- A write that changes nothing, since the field is not there. A server that has become a replica refuses it: otherwise it would answer
-- "busy" for as long as others have turns at its master. Any other refusal says nothing about who has the lock. It is left out if the line
-- is written to: a full server would no longer refuse that after a first write.
local written = (count or not KEYS[2]) and redis.pcall('HDEL', KEYS[1], ARGV[1])
if type(written) == 'table' and string.find(written.err, 'READONLY', 1, true) then
  return redis.error_reply(written.err .. ' script: user_script, nothing written')
end
if count or ttl < 0 then
  local kind = redis.call('TYPE', KEYS[1])
  -- A string with a TTL is another program's lock, made by `SET NX PX`. So both halves of a fleet that is being migrated exclude each
  -- other.
  if kind.ok == 'string' and ttl >= 0 then
    return ttl
  end
  return kind
end
if not KEYS[2] and ARGV[#ARGV] ~= 'whose' then
  return ttl
end
-- The command may be denied: without its right only the name is missing.
local scan = redis.pcall('HSCAN', KEYS[1], '0')
if scan.err then
  return {ttl}
end
