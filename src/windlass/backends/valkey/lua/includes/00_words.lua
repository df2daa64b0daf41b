-- Positions of a job's head, its states, and the bounds of every step.
--
-- A head is an array without holes: what the server must know of a job. Times that are not set are 0,
-- texts that are not set are ''. The first ten fields are written by `add`; the rest begin at 0 or ''.
-- In a head as added, PLACE 0 means "as SEQ" and READY 0 "as ENQUEUED".

local STATE, SEQ, PLACE, PRIORITY, ENQUEUED, READY, DUE, EXPIRES, TASK, OPTIONS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local ATTEMPTS, DELIVERIES, STALLS, MANUAL, MISSES = 11, 12, 13, 14, 15
local TOKEN, SETTLED, WORKER, STARTED, FINISHED = 16, 17, 18, 19, 20
local CANCEL, RESULT_UNTIL, REASON = 21, 22, 23 -- CANCEL is '=' .. reason once somebody asked

local WAITING, SCHEDULED, RETRYING, PARKED, ACTIVE, COMPLETED, FAILED, CANCELLED = 1, 2, 3, 5, 6, 7, 8, 9

-- OPTIONS is 0 (all defaults) or this array; -1 stands for "none".
local LEASE, MAX_STALLS, RESULT_TTL, KEEP_ID, TAGS, CODEC = 1, 2, 3, 8, 9, 10
local DEFAULTS = { -1, 2, -1, 86400000, 10000, 15552000000, 10000, -1, 0, 0 }

local NOWHERE = 0 -- in no index, while something is decided

local STEP = 1000
local PLACE_OFFSET = 4503599627370496 -- 2^52: microseconds until the year 2112, and as many below 0
local GRACE_MS = 60000
local DEFAULT_RESULT_TTL_MS = 3600000
local ERRORS_KEPT = 32
local EVENTS_KEPT = 10000
local EVENTS_KEPT_MS = 86400000
local HISTORY_KEPT = 100000
local HISTORY_KEPT_MS = 86400000
local HISTORY_HELD = 1000000

-- Events and attempt outcomes by number, as `codes.py` reads them.
local E_ENQUEUED, E_SCHEDULED, E_PROMOTED, E_STARTED, E_PROGRESS, E_RETRYING, E_COMPLETED = 1, 2, 3, 4, 5, 6, 7
local E_FAILED, E_CANCELLED, E_CANCELLING, E_STALLED, E_RELEASED = 8, 9, 10, 11, 12
local E_DEDUPLICATED, E_CHANGED, E_REMOVED, E_PAUSED, E_RESUMED, E_DRAINED = 14, 15, 16, 17, 18, 19

local OUTCOMES =
  { 'completed', 'retrying', 'failed', 'cancelled', 'snoozed', 'released', 'stalled', 'expired' }
local O_COMPLETED, O_RETRYING, O_FAILED, O_CANCELLED = 1, 2, 3, 4
local O_SNOOZED, O_RELEASED, O_STALLED, O_EXPIRED = 5, 6, 7, 8

local INTEGER = nil -- '%d' is quicker, but some servers have integers of 32 bits

local function text(number)
  INTEGER = INTEGER or (string.format('%d', PLACE_OFFSET) == '4503599627370496' and '%d' or '%.0f')
  return string.format(number % 1 == 0 and INTEGER or '%.0f', number)
end
