"""Storms from the command line, and the servers that they can be run on."""
