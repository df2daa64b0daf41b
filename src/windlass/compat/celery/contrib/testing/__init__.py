"""Helpers for tests of applications that use Celery's API."""
