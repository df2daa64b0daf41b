-- Version 13: new limits of every group are applied to the groups in steps.

-- The last group that the limits of every group were applied to ('': none yet); NULL: they apply to all.
ALTER TABLE [limits] ADD COLUMN refit TEXT;

-- Jobs that an ordered group refuses: with a priority or lifo.
CREATE INDEX [job_ranked] ON [job] (queue, grp)
    WHERE grp IS NOT NULL AND finished_ms IS NULL AND (priority <> 0 OR place < 0);
