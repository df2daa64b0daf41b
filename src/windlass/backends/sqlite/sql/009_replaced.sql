-- Version 9: what the holder of a key did not take of the add that replaced its data.

-- Names of options, with commas between them.
ALTER TABLE [unique_key] ADD COLUMN not_taken TEXT NOT NULL DEFAULT '';
