"""A small shop: the tasks behind ``scripts/demo``, and a producer that keeps them busy.

Run it by hand in two terminals, from this folder:

    windlass worker demo_app:app
    python demo_app.py produce --rate 5 --seconds 30

Both use ``$WINDLASS_URL``, or ``windlass.db`` in the current folder. Then look around with
``windlass dashboard``, ``windlass stats --watch``, ``windlass jobs``, ``windlass events mail --follow``.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from windlass import Snooze, UnrecoverableError, Windlass, chain, chord, current_job, group

app = Windlass()

PEOPLE = ("ada", "grace", "alan", "edsger", "barbara", "donald", "frances", "tony")


class MailServerBusy(Exception):
    """The other side said "try again later"; a retry helps."""


# Tasks have names of their own: this file is a script for the producer and a module for the worker.


@app.task(name="send_mail", queue="mail", max_attempts=5, timeout=30, backoff={"type": "fixed", "delay": 1})
async def send_mail(to: str, subject: str) -> str:
    """Talks to a mail server that is busy now and then, so that retries can be watched."""
    await asyncio.sleep(random.uniform(0.02, 0.15))
    if random.random() < 0.15:
        raise MailServerBusy(f"451 mailbox of {to} is busy")
    return f"sent {subject!r} to {to}"


@app.task(name="newsletter", queue="mail", max_attempts=1)
async def newsletter(edition: int) -> int:
    """Adds jobs itself: one mail for each reader, in one batch."""
    mails = [
        {"name": "send_mail", "data": {"to": f"{name}@example.com", "subject": f"News {edition}"}}
        for name in PEOPLE
    ]
    return len(await app.queue("mail").add_bulk(mails))


@app.task(name="build_report", queue="reports", timeout=60)
async def build_report(month: str, rows: int = 40) -> dict[str, int]:
    """Slow, and shows how far it is."""
    job = current_job()
    await job.log(f"report for {month}: {rows} rows")
    total = 0
    for row in range(1, rows + 1):
        await asyncio.sleep(0.05)
        total += random.randrange(1_000)
        if row % 10 == 0:
            await job.update_progress({"current": row, "total": rows})
            await job.log(f"{row} rows, {total} so far")
    return {"rows": rows, "total": total}


@app.task(name="sync_prices", queue="reports", max_attempts=3)
async def sync_prices(supplier: str) -> str:
    """Waits for a supplier that is closed at times (``Snooze`` costs no attempt), or is gone for good."""
    if supplier == "closed-down":
        raise UnrecoverableError(f"supplier {supplier} does not exist any more")
    if random.random() < 0.3:
        raise Snooze(2)
    await asyncio.sleep(0.1)
    return f"prices of {supplier} are up to date"


@app.task(name="thumbnail", queue="images")
def thumbnail(image: int, width: int = 200) -> int:
    """A plain function: it runs in a thread and may compute or block."""
    return sum(number * number for number in range(width * 200)) % (image + 1)


@app.task(name="read_upload", queue="images", max_attempts=2, backoff={"type": "fixed", "delay": 2})
def read_upload(image: int) -> str:
    """Some uploads are broken: they end among the failed jobs."""
    time.sleep(random.uniform(0.05, 0.2))
    if image % 17 == 0:
        raise ValueError(f"upload {image} is not an image")
    return f"image {image} read"


@app.task(name="count_stock", queue="reports", cron="* * * * *")
async def count_stock() -> int:
    """Every minute, by its schedule."""
    await asyncio.sleep(0.2)
    return random.randrange(1_000)


async def album(number: int) -> int:
    """A flow: some pictures side by side, then a report on them, then a mail."""
    pictures = group(*(thumbnail.s(number + image, width=300) for image in range(6)))
    report = chord(pictures, build_report.s(f"album {number}", rows=20))
    person = PEOPLE[number % len(PEOPLE)]
    await chain(report, send_mail.s(f"{person}@example.com", subject=f"Album {number}")).enqueue()
    return 8


async def order(number: int) -> int:
    """The jobs of one order; answers how many."""
    person = PEOPLE[number % len(PEOPLE)]
    await send_mail.options(priority=5).enqueue(f"{person}@example.com", subject=f"Order {number}")
    await send_mail.options(delay=10).enqueue(f"{person}@example.com", subject=f"How was order {number}?")
    await read_upload.enqueue(number)
    await thumbnail.enqueue(number, width=random.choice([100, 200, 400]))
    return 4


async def now_and_then(number: int) -> int:
    """Jobs that do not come with every order; answers how many."""
    added: list[Callable[[], Awaitable[object]]] = []
    if number % 20 == 1:
        added.append(lambda: build_report.enqueue(f"2026-{number // 20 % 12 + 1:02d}"))
    if number % 7 == 0:
        supplier = "closed-down" if number % 35 == 0 else f"supplier-{number % 5}"
        added.append(lambda: sync_prices.enqueue(supplier))
    if number % 50 == 0:
        added.append(lambda: newsletter.enqueue(number // 50))
    for add in added:
        await add()
    return len(added) + (await album(number) if number % 40 == 10 else 0)


async def produce(rate: float, seconds: float | None) -> int:
    """``rate`` orders a second until time is up; answers how many jobs were added."""
    start = time.monotonic()
    added = number = 0
    async with app:
        while seconds is None or time.monotonic() - start < seconds:
            number += 1
            added += await order(number) + await now_and_then(number)
            await asyncio.sleep(max(start + number / rate - time.monotonic(), 0))
    return added


def main() -> None:
    parser = argparse.ArgumentParser(description="Add sample jobs.")
    parser.add_argument("command", nargs="?", choices=["produce"], default="produce")
    parser.add_argument("--rate", type=float, default=5, help="orders a second (default: 5)")
    parser.add_argument("--seconds", type=float, help="stop after this long (default: never)")
    arguments = parser.parse_args()
    try:
        added = asyncio.run(produce(arguments.rate, arguments.seconds))
    except KeyboardInterrupt:
        return
    print(f"added {added} jobs")


if __name__ == "__main__":
    main()
