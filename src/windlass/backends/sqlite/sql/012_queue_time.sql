-- Version 12: what a job waited for since it was added or since its last attempt.

-- A JSON array, see core.queue_time; NULL: it only waited for its turn.
ALTER TABLE [job] ADD COLUMN queue_time TEXT;
