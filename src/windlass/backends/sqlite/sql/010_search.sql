-- Version 10: an index of jobs that have an error; log lines have a time.

-- Few jobs fail, so a search for an error scans this index instead of all jobs.
CREATE INDEX [job_errors] ON [job] (queue) WHERE errors IS NOT NULL;

-- run: the delivery. Older lines have neither time nor run.
ALTER TABLE [log] ADD COLUMN at_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE [log] ADD COLUMN level TEXT NOT NULL DEFAULT 'info';
ALTER TABLE [log] ADD COLUMN attempt INTEGER NOT NULL DEFAULT 0;
ALTER TABLE [log] ADD COLUMN run INTEGER NOT NULL DEFAULT 0;
