"""Hostile input for everything that reads bytes or words from outside."""
