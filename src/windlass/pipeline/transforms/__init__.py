"""Pure functions from DataFrame to DataFrame: no session, no files, no clock."""
