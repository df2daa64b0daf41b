-- Version 14: which run of its child an edge waits for.

-- How often the child had been retried by hand when the edge was opened.
ALTER TABLE [edge] ADD COLUMN child_run INTEGER NOT NULL DEFAULT 0;
