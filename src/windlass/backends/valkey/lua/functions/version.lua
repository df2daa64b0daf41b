-- version: the number of the library that answers.
-- KEYS: none
-- ARGV: none
-- returns: LIBRARY_VERSION
-- flags: no-writes
return LIBRARY_VERSION
