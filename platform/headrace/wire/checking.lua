-- The loop of wire/checking.py for LuaJIT: the same answers, forty times as fast.
--
-- Takes the address and the size of the records, their number, the timestamp deltas that are allowed, and whether
-- each record must have a key. Returns the index of the first invalid record, where it begins, and the largest
-- timestamp delta of those before it.
-- checking.py says what a valid record is. Tests compare the two on arbitrary bytes.
--
-- Every read lies within the buffer: `varint` compares with `limit` before each byte, and `limit` is never larger
-- than `size`. There is one loop, over records and headers alike, because LuaJIT compiles no loop within another
-- that runs a few times only. Numbers are doubles, exact up to 2^53; the largest here has 49 bits.

local ffi = require("ffi")

local MORE = 128  -- from this on, a byte says that the varint goes on
local P7, P14, P21, P28, P35, P42 = 2 ^ 7, 2 ^ 14, 2 ^ 21, 2 ^ 28, 2 ^ 35, 2 ^ 42
local BODY_MIN_BYTES = 6
local NONE = -1

-- Returns an unsigned varint of 32 bits and where it ends; -1 if it is invalid.
local function varint(bytes, at, limit)
  if at >= limit then return NONE, at end
  local a = bytes[at]
  if a < MORE then return a, at + 1 end
  if at + 1 >= limit then return NONE, at end
  local b = bytes[at + 1]
  if b < MORE then
    if b == 0 then return NONE, at end
    return a - MORE + b * P7, at + 2
  end
  if at + 2 >= limit then return NONE, at end
  local c = bytes[at + 2]
  local low = a - MORE + (b - MORE) * P7
  if c < MORE then
    if c == 0 then return NONE, at end
    return low + c * P14, at + 3
  end
  if at + 3 >= limit then return NONE, at end
  local d = bytes[at + 3]
  low = low + (c - MORE) * P14
  if d < MORE then
    if d == 0 then return NONE, at end
    return low + d * P21, at + 4
  end
  if at + 4 >= limit then return NONE, at end
  local e = bytes[at + 4]
  if e == 0 or e > 15 then return NONE, at end
  return low + (d - MORE) * P21 + e * P28, at + 5
end

-- Like `varint`, of up to seven bytes: a timestamp delta.
local function timestamp(bytes, at, limit)
  if at + 4 >= limit or bytes[at] < MORE or bytes[at + 1] < MORE or bytes[at + 2] < MORE
      or bytes[at + 3] < MORE then
    return varint(bytes, at, limit)
  end
  local e = bytes[at + 4]
  local low = bytes[at] - MORE + (bytes[at + 1] - MORE) * P7 + (bytes[at + 2] - MORE) * P14
    + (bytes[at + 3] - MORE) * P21
  if e < MORE then
    if e == 0 then return NONE, at end
    return low + e * P28, at + 5
  end
  if at + 5 >= limit then return NONE, at end
  local f = bytes[at + 5]
  low = low + (e - MORE) * P28
  if f < MORE then
    if f == 0 then return NONE, at end
    return low + f * P35, at + 6
  end
  if at + 6 >= limit then return NONE, at end
  local g = bytes[at + 6]
  if g == 0 or g >= MORE then return NONE, at end
  return low + (f - MORE) * P35 + g * P42, at + 7
end

-- Returns where bytes with their length before them end; -1 if that is invalid.
local function skip(bytes, at, limit, null)
  local raw
  raw, at = varint(bytes, at, limit)
  if raw % 2 == 0 then
    at = at + raw / 2
    if at > limit then return NONE end
    return at
  end
  if raw == null then return at end
  return NONE
end

local NULL, NOT_NULL = 1, -2

local function scan(bytes, size, count, low, high, none, null_key)
  local index, start, at, limit, headers = -1, 0, 0, 0, 0
  local latest = -math.huge  -- of the records before this one
  local delta = -math.huge
  while true do
    if headers > 0 then
      headers = headers - 1
      at = skip(bytes, at, limit, NOT_NULL)
      if at < 0 then return index, start, latest end
      at = skip(bytes, at, limit, NULL)
      if at < 0 then return index, start, latest end
    else
      if at ~= limit then return index, start, latest end
      if delta > latest then latest = delta end
      index = index + 1
      start = at
      if index >= count then return index, start, latest end
      local raw
      raw, at = varint(bytes, at, size)
      if raw % 2 ~= 0 then return index, start, latest end
      limit = at + raw / 2
      if limit > size or raw < 2 * BODY_MIN_BYTES or bytes[at] ~= 0 then return index, start, latest end
      raw, at = timestamp(bytes, at + 1, limit)
      if raw < 0 then return index, start, latest end
      if raw % 2 == 0 then delta = raw / 2 else delta = -(raw + 1) / 2 end
      if (delta < low or delta > high) and delta ~= none then return index, start, latest end
      raw, at = varint(bytes, at, limit)
      if raw ~= 2 * index then return index, start, latest end
      at = skip(bytes, at, limit, null_key)
      if at < 0 then return index, start, latest end
      at = skip(bytes, at, limit, NULL)
      if at < 0 then return index, start, latest end
      raw, at = varint(bytes, at, limit)
      if raw % 2 ~= 0 or raw > 2 * (limit - at) then return index, start, latest end
      headers = raw / 2
    end
  end
end

return function(address, size, count, low, high, none, needs_keys)
  local bytes = ffi.cast("const uint8_t *", ffi.cast("uintptr_t", address))
  return scan(bytes, size, count, low, high, none, needs_keys and NOT_NULL or NULL)
end
