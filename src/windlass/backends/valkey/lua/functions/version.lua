-- version: the version of the library.
-- KEYS: none
-- ARGV: none
-- returns: LIBRARY_VERSION
-- flags: no-writes
return LIBRARY_VERSION
