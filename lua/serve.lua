-- Hands a lock that is free to the first process that waits for it, and notifies the next one when to ask. The scripts that may end a
-- hold or find the lock free are appended to it.
--
-- KEYS[2]  the lock's line: a sorted set. A member is what the channels of processes begin with, followed by a field that asks for the lock.
--          Without its last colon and number it is the channel of its process. Scores: see enter.lua. The number is negative if its process
--          may not subscribe or not publish: it asks by itself. While such a field has the lock, the others that wait do so too.
--
-- The parameters of the line are one argument, since each argument costs time even for processes that never wait:
-- `<how long the lock is kept for the field that it is handed to, in ms> <how long the line stays if nobody asks, in ms> <what the channels
-- of processes begin with>`. On a Cluster an `S` is put before it: all messages are sharded, and each process has a channel for each lock,
-- in the lock's slot.
--
-- publish  the command that publishes
-- wakes    what the channels begin with
-- term     how long the lock is kept for the field that it is handed to, in ms; nil if it is not free: the first is only notified when to ask
-- wait     when to ask, in ms, if nobody gets a message that the lock was handed to it
-- me       the field that asks here, if any: the reply grants it, and it gets no message
-- shared   the lock stays free for clients that do not know the line: the first gets `wait`, and the second `term`, in case the first is gone
-- mute     the process that runs this has a field with a negative number: the lock is handed on even if the message is refused
--
-- Returns the field that has the lock now, which is made here unless it is `me`, or nil if the lock is as it was.
--
-- A message is `number wait key`; a `wait` of `-` means at once. It decides nothing: its receiver asks. So nothing here may fail: if a
-- right is missing or the server is full, the lock is free, as without a line.

-- Returns whether the process of this field asks by itself.
local function polls(field)
  return string.find(field, ':%-%d+$')
end

local function serve(publish, wakes, term, wait, me, shared, mute)
  -- Returns how many got it, or true if the waiter asks by itself.
  local function send(member, when)
    local channel, number = string.match(member, '^(.*):(%-?%d+)$')
    if not channel or string.sub(member, 1, #wakes) ~= wakes then
      return 0
    end
    if polls(member) then
      return true
    end
    -- A client that is subscribed to all channels by a pattern, such as a monitor, gets the message too, and would be counted. No
    -- pattern matches a sharded channel.
    local heard = publish == 'PUBLISH' and redis.pcall('PUBSUB', 'NUMSUB', channel)
    if heard and heard[2] == 0 then
      return 0
    end
    return redis.pcall(publish, channel, number .. ' ' .. when .. ' ' .. KEYS[1])
  end

  -- Notifies the waiter at this place when to ask. A waiter that is gone is removed. One that asks by itself may be gone too, so the next one
  -- is notified in its place.
  local function tell(place, when)
    for _ = 1, 64 do
      local member = redis.pcall('ZRANGE', KEYS[2], place, place)
      local sent = member.err or not member[1] or send(member[1], when)
      if member[1] and sent == true then
        place = place + 1
      elseif sent ~= 0 then
        return
      else
        redis.pcall('ZREM', KEYS[2], member[1])
      end
    end
  end

  local served
  -- Bounded, since a server runs nothing else in the meantime.
  for _ = 1, (term and not shared) and 64 or 0 do
    local first = redis.pcall('ZPOPMIN', KEYS[2])
    if first.err or not first[1] then
      break
    end
    local field = string.sub(first[1], #wakes + 1)
    if field == me then
      served = me
      break
    end
    -- Done before the field is made, so that nothing has to be undone for waiters that are gone. It is not sent before the script ends.
    local sent = send(first[1], '-')
    if sent ~= 0 then
      -- The first of the line asks by itself after a process that may not publish.
      if (type(sent) ~= 'table' or mute) and type(redis.pcall('HSET', KEYS[1], field, '0')) == 'number' then
        if redis.pcall('PEXPIRE', KEYS[1], term) == 1 then
          served = field
        else
          redis.pcall('HDEL', KEYS[1], field)
        end
      end
      break
    end
  end

  if served and polls(served) then
    -- The new holder's release will reach nobody, so the next one begins to ask by itself.
    wait = 0
  elseif served and served ~= me then
    wait = term
  end
  -- Otherwise the next one would sleep until the end of an earlier holder's lease, whatever happens to this one.
  if served or shared or not term then
    tell(0, wait)
  end
  if shared then
    tell(1, term)
  end
  return served
end
