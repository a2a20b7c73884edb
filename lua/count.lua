-- What an acquire or a renewal does with the fencing counter if a node has only one of a lock's two keys, because their slot is moving
-- from node to node. It is appended to fence.lua. The counter is given twice, so that KEYS[2] is the same here as in the scripts of a
-- whole lock; Redis takes that for one key.
--
-- KEYS[2]  the counter
-- ARGV[1]  `look`   report whether a token can be made, and write nothing
--          `next`   make the next token; only a holder may be given it
--          `raise`  raise the counter to a token
-- ARGV[2]  the least that the token may be; if empty: the server's time in microseconds
-- ARGV[3]  how long the counter is kept while unused, in ms; if empty: for ever
--
-- Replies  a string  the value of the counter now; `0` for `look`
--          a status  `counter …`: KEYS[2] is no counter (its type), or at its `end`

local stands, wrong = counter()
if wrong then
  return wrong
end
if ARGV[1] ~= 'raise' and stands == '9223372036854775807' then
  return redis.status_reply('counter end')
end
if ARGV[1] == 'look' then
  return '0'
end
local token = ARGV[2]
if token == '' then
  local now = redis.call('TIME')
  token = now[1] .. string.format('%06d', now[2])
end
if stands and not below(stands, token) then
  if ARGV[1] == 'next' then
    -- Counted by the server, which counts exactly.
    redis.call('INCR', KEYS[2])
    token = redis.call('GET', KEYS[2])
  else
    token = stands
  end
end
local written = put(token, stands, ARGV[3])
if written.err then
  return written
end
return token
