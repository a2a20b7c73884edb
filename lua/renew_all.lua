-- Lets several holds live for a lease from now, at least: for each of them it does what renew.lua does. An error of one ends no other.
--
-- KEYS        the locks
-- ARGV[1...]  the holds' fields, in the order of the locks
-- ARGV[last]  the lease in ms
--
-- Replies  a list, in the order of the locks: the reply of renew.lua, or an error

local lease = ARGV[#ARGV]

local function renew(key, field)
  local count = redis.pcall('HGET', key, field)
  if type(count) ~= 'string' or count == '0' then
    if type(count) == 'table' and string.sub(count.err, 1, 9) ~= 'WRONGTYPE' then
      return redis.error_reply(count.err .. ' script: user_script')
    end
    return -2
  end
  local ttl = redis.pcall('PTTL', key)
  local written = ttl
  -- A key without a TTL reads as -1, and gets one.
  if type(ttl) == 'number' and ttl < tonumber(lease) then
    written = redis.pcall('PEXPIRE', key, lease)
  elseif type(ttl) == 'number' then
    written = redis.pcall('HDEL', key, field .. ' ')
  end
  if type(written) == 'table' then
    return redis.error_reply(written.err .. ' script: user_script, nothing written')
  end
  local ends = ttl > tonumber(lease) and redis.pcall('PEXPIRETIME', key)
  return type(ends) == 'number' and {ttl, ends} or -1
end

local answers = {}
for at, key in ipairs(KEYS) do
  answers[at] = renew(key, ARGV[at])
end
return answers
