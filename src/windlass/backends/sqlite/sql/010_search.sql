-- Version 10: jobs that have an error are found without the others; log lines know when they were written.

-- Few jobs fail: a search for an error need not walk over all the others.
CREATE INDEX [job_errors] ON [job] (queue) WHERE errors IS NOT NULL;

-- run: the delivery. Lines of before have neither time nor run.
ALTER TABLE [log] ADD COLUMN at_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE [log] ADD COLUMN level TEXT NOT NULL DEFAULT 'info';
ALTER TABLE [log] ADD COLUMN attempt INTEGER NOT NULL DEFAULT 0;
ALTER TABLE [log] ADD COLUMN run INTEGER NOT NULL DEFAULT 0;
