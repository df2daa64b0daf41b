-- Version 7: an index of jobs by expiry time.

-- expires_ms is set only while the job can still expire: it is cleared when the job first starts or ends.
CREATE INDEX [job_expires] ON [job] (expires_ms) WHERE expires_ms IS NOT NULL;
