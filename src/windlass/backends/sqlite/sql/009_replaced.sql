-- Version 9: options that the holder of a unique key did not take over from the add that replaced its data.

-- Names of options, separated by commas.
ALTER TABLE [unique_key] ADD COLUMN not_taken TEXT NOT NULL DEFAULT '';
