-- Reports who holds a lock. It is appended to fields.lua.
--
-- Replies  a list  the TTL in ms, the field, its count as text

return {ttl, fields[1], fields[2]}
