-- Version 11: an index of the jobs at the top of flows.

-- The options of such a job name the job itself as the root. A job with the same id in another queue may match, too.
CREATE INDEX [job_tops] ON [job] (queue) WHERE instr(options, '"root":') AND instr(options, '/' || id || '"');
