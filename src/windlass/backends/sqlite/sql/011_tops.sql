-- Version 11: flows are found by the job at their end, without all other jobs.

-- Its options name itself as the root; no other job's do, except one with the same id in another queue.
CREATE INDEX [job_tops] ON [job] (queue) WHERE instr(options, '"root":') AND instr(options, '/' || id || '"');
