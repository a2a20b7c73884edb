-- Ends a hold, and keeps its lock for a time: the hold's field is replaced by one that is nobody's. The TTL is set to that time, whether
-- it was longer or shorter. Commands of the hold don't find its field any more, so a late one can't change the end.
--
-- KEYS[1]  the lock
-- ARGV[1]  the hold's field
-- ARGV[2]  the field that takes its place
-- ARGV[3]  the lock's release channel
-- ARGV[4]  the command that publishes: `PUBLISH`, or `SPUBLISH` on a cluster
-- ARGV[5]  for how long, in ms
--
-- Replies  -1        kept
--          -2        not held: the field is not there, maybe because this ran before

local count = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(count) == 'string' and count ~= '0' then
  -- PEXPIRE is first: on a full server a script may go on writing once it has made a write that neither frees nor takes memory. HDEL is
  -- last, since the key goes with its last field.
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
  redis.call('HSET', KEYS[1], ARGV[2], '1')
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  if type(count) == 'table' and string.sub(count.err, 1, 9) ~= 'WRONGTYPE' then
    return redis.error_reply(count.err .. ' script: user_script')
  end
  -- A repeat is answered like a repeated release, and publishes nothing either. Otherwise:
  -- 1. One of three masters is reached, and the others are not.
  -- 2. Its message is a sign that the hold may be gone, so this is sent again at once.
  -- 3. If each run published a message, this would never end.
  return -2
end
-- The waiters know the old TTL.
local sent = redis.pcall(ARGV[4], ARGV[3], '0')
if type(sent) == 'table' and ARGV[4] == 'SPUBLISH' then
  redis.pcall('PUBLISH', ARGV[3], '0')
end
return -1
