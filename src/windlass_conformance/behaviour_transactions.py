"""Adding jobs in the application's database transaction; stores that cannot do it refuse."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from windlass import Job, JobState, UnsupportedByBackendError
from windlass_conformance.harness import Harness
from windlass_conformance.stage import Stage


def _connect(harness: Harness) -> closing[sqlite3.Connection]:
    """The application's own connection."""
    return closing(sqlite3.connect(harness.database))


@pytest.mark.feature("A34")
async def test_a_store_adds_in_the_applications_transaction_or_refuses(harness: Harness) -> None:
    async with Stage(harness) as stage:
        queue = stage.queue
        with _connect(harness) as connection:
            if not harness.backend.capabilities.transactions:
                with pytest.raises(UnsupportedByBackendError, match="use add after the commit"):
                    queue.add_in_transaction(connection, "work")
                assert await queue.count() == 0
                harness.declare_missing(
                    test_a_store_adds_in_the_applications_transaction_or_refuses, "transactions"
                )
                return
            gone = queue.add_in_transaction(connection, "work")
            connection.rollback()
            kept = queue.add_in_transaction(connection, "work")
            connection.commit()
        assert await queue.get_job(gone.id) is None
        assert await kept.get_state() is JobState.WAITING


@pytest.mark.feature("A42")
async def test_a_handler_completes_its_job_in_its_own_transaction_or_is_refused(harness: Harness) -> None:
    can = harness.backend.capabilities.transactions
    async with Stage(harness) as stage:

        async def handler(job: Job[Any]) -> str:
            with _connect(harness) as connection:
                if not can:
                    with pytest.raises(UnsupportedByBackendError, match="after the commit"):
                        job.complete_in_transaction(connection, "booked")
                    return "refused"
                job.complete_in_transaction(connection, "booked")
                connection.commit()
            return "does not count"

        await stage.work(handler)
        job = await stage.queue.add("work")
        assert await job.result(timeout=30) == ("booked" if can else "refused")
    if not can:
        harness.declare_missing(
            test_a_handler_completes_its_job_in_its_own_transaction_or_is_refused, "transactions"
        )
