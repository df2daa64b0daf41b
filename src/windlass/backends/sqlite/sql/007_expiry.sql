-- Version 7: jobs whose waiting ends at a time, to be found by it.

-- A row has a time only while it may still end by it: its first start and its end take it away.
CREATE INDEX [job_expires] ON [job] (expires_ms) WHERE expires_ms IS NOT NULL;
