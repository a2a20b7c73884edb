-- Makes a field the holder of a free lock, or raises the count of a field that holds it already.
-- It is given the count that must stand afterwards, and adds the difference, so running it twice counts nothing twice. fields.lua and
-- whose.lua are appended to it.
--
-- KEYS[1]  the lock
-- ARGV[1]  the hold's field, `<uuid>:<id>`
-- ARGV[2]  the count that must stand: 1 takes the lock, more re-enters a hold
-- ARGV[3]  the lease in ms
-- ARGV[4]  of a re-entry: a limit in ms, at least the lease; mostly missing
-- ARGV[5]  if there is a limit: as in renew.lua
-- ARGV[last] `whose`: where the lock is busy, it is answered whose it is
--
-- Replies  -1        granted
--          -2        lost: a re-entry found its hold gone
--          0 or more busy: the TTL in ms of another's hold
--          a list    busy, if `whose`: this TTL, the field, its count as text; the TTL alone where the user may not read them
--          a status  not a lock: the key's type (a hash or a string has no TTL); if `whose`, also `fields` or `rwlock`

-- First because it distinguishes free from held and is the answer where the lock is busy.
local ttl = redis.call('PTTL', KEYS[1])
if ttl == -2 then
  if ARGV[2] ~= '1' then
    return -2
  end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  local expires = redis.pcall('PEXPIRE', KEYS[1], ARGV[3])
  if expires ~= 1 then
    -- A user without the right to PEXPIRE must not leave a hash without a TTL: busy for ever.
    redis.call('HDEL', KEYS[1], ARGV[1])
    return redis.error_reply(expires.err .. ' script: user_script')
  end
  return -1
end

local count = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(count) == 'string' then
  -- A count that is no number, written by another program, is lower than any.
  local held = tonumber(count) or 0
  if not (held >= tonumber(ARGV[2])) then
    local counted = redis.pcall('HINCRBY', KEYS[1], ARGV[1], tonumber(ARGV[2]) - held)
    if type(counted) == 'table' then
      -- It is no whole number.
      redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    end
  end
  -- No TTL reads as -1 and is lower than any lease: a hold that somebody persisted must not stay for ever.
  if ttl < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  elseif ARGV[5] then
    local ends = redis.pcall('PEXPIRETIME', KEYS[1])
    if type(ends) == 'number' and string.find(' ' .. ARGV[5] .. ' ', string.format(' %.0f ', ends), 1, true) then
      redis.call('PEXPIRE', KEYS[1], ARGV[4])
    end
  end
  return -1
end

if count and string.sub(count.err, 1, 9) ~= 'WRONGTYPE' then
  return redis.error_reply(count.err .. ' script: user_script')
end
if ARGV[2] ~= '1' then
  return -2
end
if count or ttl < 0 then
  local kind = redis.call('TYPE', KEYS[1])
  -- What `SET NX PX` makes is another program's lock: fleets that are half moved exclude each other.
  if kind.ok == 'string' and ttl >= 0 then
    return ttl
  end
  return kind
end
if ARGV[#ARGV] ~= 'whose' then
  return ttl
end
-- By a command that may be denied: without its right only the name is missing.
local scan = redis.pcall('HSCAN', KEYS[1], '0')
if scan.err then
  return {ttl}
end
