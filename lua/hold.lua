-- The common part of release.lua and settle.lua, which are appended to it. It ends holds; they handle a hold whose count must stand at
-- one or more. `count` is then the count as text, or something else if the field is not there.
--
-- KEYS[1]  the lock
-- KEYS[2]  its line, if `serve` is there and it has one
-- ARGV[1]  the hold's field
-- ARGV[2]  the count that must stand; 0 ends the hold, whatever its count; `decline` ends it if the lock was handed to the field, and no
--          process has taken it
-- ARGV[3]  the lock's release channel
-- ARGV[4]  the command that publishes: `SPUBLISH` on a cluster, otherwise `PUBLISH`
-- `serve`  serve.lua; without it the line is left alone
-- ARGV[last] the parameters of the line, if there are `serve` and KEYS[2] (serve.lua)

local sharded = ARGV[4] == 'SPUBLISH'
local publish = sharded and 'SPUBLISH' or 'PUBLISH'

-- Returns how many clients wait that do not know the line, and for how many ms a free lock is left to them: now and then for long enough that
-- clients far away can take it. Clients that know of lines are subscribed to a second channel beside the release channel.
local function others(wakes)
  local heard = redis.pcall('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', ARGV[3], wakes .. ARGV[3])
  local count = heard.err and 0 or heard[2] - heard[4]
  return count, count > 0 and (redis.sha1hex(ARGV[1]) < '1' and 25 or 1)
end

local declines = ARGV[2] == 'decline'
if ARGV[2] == '0' or declines and redis.pcall('HGET', KEYS[1], ARGV[1]) == '0' then
  -- Looks and ends in one command. The key goes with its last field. A field that another program put beside ours stays,
  -- since it is not ours to end.
  local ended = redis.pcall('HDEL', KEYS[1], ARGV[1])
  local line, handed, pause, tells_others = serve and KEYS[2]
  if line and redis.pcall('PTTL', line) ~= -2 then
    local _, term, _, wakes = string.match(ARGV[#ARGV], '^(S?)(%d+) (%d+) (.*)$')
    -- The field of an ended hold no longer waits. It is removed first, so that nothing is handed to it.
    local left = redis.pcall('ZREM', line, wakes .. ARGV[1])
    local ttl = redis.pcall('PTTL', KEYS[1])
    if ttl == -2 then
      -- The key is gone, by this command or before it, when it expired. A field that another program put beside ours keeps the key.
      local count, time = 0
      if ended == 1 then
        count, time = others(wakes)
      end
      local first = count > 0 and redis.pcall('ZRANGE', line, 0, 0, 'WITHSCORES')
      if first and first[2] then
        -- Clients that do not know the line have their turns among the processes in it: otherwise the lock would never be free for them.
        -- `every` is a power of two, so that each multiple of the largest one gives way, however the two counts change from one release to
        -- the next. Of a score only its 20 lowest bits count the entries, which is enough for that.
        local length, every = tonumber(redis.pcall('ZCARD', line)) or 0, 1
        while every * count < length do
          every = 2 * every
        end
        -- The first gives way once: afterwards its score is not a whole number, so it is a multiple of no power of two.
        if first[2] % every == 0 and type(redis.pcall('ZADD', line, first[2] + 0.5, first[1])) == 'number' then
          local sent = redis.pcall(publish, ARGV[3], '00')
          pause = type(sent) == 'number' and sent > 0 and time
        end
      end
      handed = serve(publish, wakes, term, pause, nil, pause, polls(ARGV[1]))
      tells_others = handed and count > 0
    elseif left == 1 and type(ttl) == 'number' and ttl >= 0 then
      -- It may have been the only one that knew when to ask. If the holder's release reaches nobody, the next one begins to ask by itself.
      local held = redis.pcall('HSCAN', KEYS[1], '0')
      local fields = held[2] or {}
      serve(publish, wakes, nil, fields[1] and polls(fields[1]) and 0 or ttl)
      -- A count of 0: the lock was handed to that field, and its process has not asked yet.
      tells_others = fields[2] == '0' and others(wakes) > 0
    end
    if tells_others and redis.pcall('ZCARD', line) == 0 then
      -- 1. The lock is handed to a process that is stopped. 2. Nobody is left in the line, by this hand-over or since the last one has
      --    left it. 3. That time ends, and nobody asks: clients that do not know the line sleep until the end of a lease that they saw
      --    before. So they ask now, and learn of that time.
      redis.pcall(publish, ARGV[3], '00')
    end
  end
  if pause then
    return {pause}
  end
  if ended == 1 then
    -- An error here (no right to the channel) must not hide that the lock is free.
    local sent = handed and 0 or redis.pcall(publish, ARGV[3], '0')
    if type(sent) == 'table' and sharded then
      -- The node knows no sharded channels (Redis 6), or the user may not use them: the waiters were refused them too.
      -- Nobody knows how many got it, since the nodes forward it to each other.
      redis.pcall('PUBLISH', ARGV[3], '0')
      return -1
    end
    if line then
      if type(sent) == 'table' then
        -- The client has to remember it: while it has the lock, those who wait have to ask by themselves.
        return {0}
      end
      if sent > 0 then
        local _, time = others(string.match(ARGV[#ARGV], '^S?%d+ %d+ (.*)$'))
        if time then
          return {time}
        end
      end
      return -4 - sent
    end
    if ARGV[4] or type(sent) ~= 'number' then
      return -1
    end
    return -4 - sent
  end
  if type(ended) == 'table' and string.sub(ended.err, 1, 9) ~= 'WRONGTYPE' then
    return redis.error_reply(ended.err .. ' script: user_script')
  end
  return -2
end

local count = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(count) == 'table' and string.sub(count.err, 1, 9) ~= 'WRONGTYPE' then
  return redis.error_reply(count.err .. ' script: user_script')
end
-- The lock is handed to the field, and held by nobody before its acquire.
if count == '0' or declines then
  count = nil
end

-- Adds the difference between the count that must stand and the one that is there, so a repeat adds nothing. A count that another program
-- wrote, and that is not a whole number, is replaced. Returns the error, if any.
local function count_to_stand()
  local difference = tonumber(ARGV[2]) - (tonumber(count) or 0)
  local counted = redis.pcall('HINCRBY', KEYS[1], ARGV[1], difference)
  if type(counted) == 'table' then
    counted = redis.pcall('HSET', KEYS[1], ARGV[1], ARGV[2])
  end
  return type(counted) == 'table' and counted.err
end
