"""One worker for all tests, in this process."""

import pytest
import shop
from celery.contrib.testing.worker import start_worker


@pytest.fixture(scope="session", autouse=True)
def worker(tmp_path_factory):
    queues = ["celery", "mail", "reports", "urgent"]
    with start_worker(
        shop.app,
        pool="threads",
        concurrency=4,
        queues=queues,
        beat=True,
        schedule_filename=str(tmp_path_factory.mktemp("beat") / "schedule"),
        perform_ping_check=False,
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def fresh():
    shop.seen.clear()
    shop.release.clear()
