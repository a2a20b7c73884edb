-- After a command of unknown outcome: sets the count of a hold to what its client knows it to be, or ends the hold. It is appended to
-- hold.lua. It creates nothing, so a hold that is gone stays gone, unless ARGV[6] is set: for a master that lacks a hold which a majority
-- of the others has.
--
-- KEYS[1]  the lock
-- ARGV[1]  the hold's field
-- ARGV[2]  the count that must stand; 0 ends the hold
-- ARGV[3]  the lock's release channel
-- ARGV[4]  the command that publishes
-- ARGV[5]  the lease in ms that the hold lives for at least (unused with 0)
-- ARGV[6]  1: if there is no key, make the field its holder
--
-- Replies  -1        settled, or made
--          -2        nothing to settle: the field is not there
--          a string  the count could not be written, and why (a full server); the hold stands, and its TTL is raised

if type(count) ~= 'string' then
  -- The field is never put beside another's, nor over a key that is no lock.
  if ARGV[6] ~= '1' or redis.call('PTTL', KEYS[1]) ~= -2 then
    return -2
  end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  local expires = redis.pcall('PEXPIRE', KEYS[1], ARGV[5])
  if expires ~= 1 then
    redis.call('HDEL', KEYS[1], ARGV[1])
    return redis.error_reply(expires.err .. ' script: user_script')
  end
  return -1
end
-- Done before the count, since a hold must not end because its count could not be written.
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[5]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
if count ~= ARGV[2] then
  local refused = count_to_stand()
  -- A replica must not confirm a hold.
  if refused and string.find(refused, 'READONLY', 1, true) then
    return redis.error_reply(refused .. ' script: user_script')
  end
  return refused or -1
end
-- A write that changes nothing, as in renew.lua.
redis.call('HDEL', KEYS[1], ARGV[1] .. ' ')
return -1
