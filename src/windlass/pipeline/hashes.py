"""Hashes that identify erased rows. They reveal no id of a job."""

from __future__ import annotations

import hashlib


def run_hash(run_id: str) -> str:
    """The hash of an attempt. In Spark: ``transforms.attempts.hashed``."""
    return hashlib.sha256(run_id.encode()).hexdigest()


def job_hash(source: str, queue: str, job_id: str, enqueued_ms: int) -> str:
    """The hash of a job's key."""
    return hashlib.sha256(f"{source}/{queue}/{job_id}/{enqueued_ms}".encode()).hexdigest()
