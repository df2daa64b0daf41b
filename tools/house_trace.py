"""Run one job, and count the functions and files of Windlass that are executed: ``house_trace.py URL``.

Started by ``tools.house`` with the code to measure on ``PYTHONPATH``. Uses only features of every release.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from types import CodeType, FrameType
from typing import Any

import windlass

_OURS = windlass.__file__.removesuffix("__init__.py")


class Trace:
    """The functions that were called since ``clear``, in all threads."""

    def __init__(self) -> None:
        self.seen: set[CodeType] = set()

    def install(self) -> None:
        """Start tracing. Must be called before the first thread is started."""
        threading.setprofile(self._call)
        sys.setprofile(self._call)

    def _call(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self.seen.add(frame.f_code)

    def clear(self) -> None:
        self.seen.clear()

    def figures(self) -> tuple[int, int]:
        """The number of functions and files of Windlass. Comprehensions and lambdas are not counted."""
        code = {each for each in set(self.seen) if each.co_filename.startswith(_OURS)}
        named = {(each.co_filename, each.co_qualname) for each in code if "<" not in each.co_name}
        return len(named), len({file for file, _ in named})


async def main(url: str) -> dict[str, tuple[int, int]]:
    trace = Trace()
    trace.install()
    app = windlass.Windlass(url)

    @app.task(name="noop")
    async def noop() -> None:
        """Nothing to do."""

    async with app:
        await noop.enqueue()  # the first call does additional work, which is not counted
        trace.clear()
        await noop.enqueue()
        enqueue = trace.figures()
        worker = windlass.Worker("default", url_or_app=app, concurrency=1)
        await worker.start()
        job = await noop.enqueue()
        await job.result(timeout=30)  # the worker has warmed up
        trace.clear()
        job = await noop.enqueue()
        await job.result(timeout=30)
        whole = trace.figures()
        await worker.close()
    return {"enqueue": enqueue, "job": whole}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1]))))
