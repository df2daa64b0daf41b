"""Jobs with long names in every state: what lists and pages must have room for."""

from __future__ import annotations

from pathlib import Path

from windlass import FlowProducer, Windlass, chord, group, step

#: A queue's name may have this many characters.
LONG = "warehouse-north-reconciliation-of-supplier-invoices-and-credit-notes-for-the-quarter-end-of-2026-eu"
#: Queues with a worker.
LANES = ["mail", LONG]
TASK = "acme.billing.recurring.tasks.reconcile_supplier_invoices_with_credit_notes"
PATIENCE = 30


async def fill(url: str, folder: Path, many: int) -> list[str]:
    """Add ``many`` jobs of each kind; returns the addresses of single things."""
    if not many:
        return []
    async with Windlass(url) as app:
        busy, idle = app.queue(LONG), app.queue(f"unserved.{LONG[:90]}")
        data = {"customer": "x" * 120, "lines": [1, 2, 3], "note": "a sentence of several words " * 6}
        failed = await busy.add(f"{TASK}.broken", data, max_attempts=1, tags=["quarter-end", "vip" * 20])
        retry = {"type": "fixed", "delay": 3_600}
        retrying = await busy.add(f"{TASK}.broken", data, max_attempts=3, backoff=retry)
        running = await busy.add(f"{TASK}.gated", {"gate": str(folder), "steps": 3})
        (folder / "step-1").touch()
        for number in range(many):
            await busy.add(TASK, data, delay=3_600 + number)
            await idle.add(TASK, data, group=f"tenant-{'y' * 50}-{number}", priority=number)
            await busy.add(f"{TASK}.broken", data | {"customer": number}, max_attempts=1)
            rule = {"cron": "0 3 * * *", "timezone": "America/Argentina/ComodRivadavia"}
            await busy.upsert_job_scheduler(f"{LONG[:60]}-{number}", rule, {"name": TASK, "data": data})
        steps = group(*(step(TASK, data, queue=LONG) for _ in range(min(many, 12))))
        flow = await FlowProducer(app).add(chord(steps, step(f"{TASK}.last", data, queue=LONG)))
        await failed.wait_until_finished(timeout=PATIENCE)
        done = await busy.add(TASK, data)
        await done.wait_until_finished(timeout=PATIENCE)
        await idle.pause()
        await busy.set_global_concurrency(40)
        await app.mark(f"release of {LONG[:70]}")
        return [
            *(f"/jobs/{LONG}/{job.id}" for job in (failed, retrying, running, done)),
            f"/flows/{LONG}/{flow.id}",
            f"/flows/{LONG}/{flow.id}?show=all",
            f"/flows/{LONG}/{flow.id}?show=time",
            f"/job-queues/{LONG}?state=failed",
            f"/job-queues/{idle.name}",
            f"/job-metrics?task={TASK}&queue={LONG}",
            "/search?state=failed&state=waiting",
            f"/schedules?open={LONG}/{LONG[:60]}-0",
            f"/limits?name={idle.name[:20]}",
            "/job-metrics?compare=1&from=1&to=9999999999999",
        ]
