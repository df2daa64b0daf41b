"""A dashboard and a live worker on one store, in a process of their own.

Prints the dashboard's address when it is ready, and ends at end of input: a test that dies takes it along.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import uvicorn

from tests.browser.handlers import HANDLERS, LANES, app_at
from windlass import Worker
from windlass.dashboard import create_app


class _Server(uvicorn.Server):
    """Tells where it listens."""

    def __init__(self, config: uvicorn.Config, prefix: str) -> None:
        super().__init__(config)
        self._prefix = prefix

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        print(f"http://127.0.0.1:{port}{self._prefix}", flush=True)  # noqa: T201 - read by the parent


async def serve(url: str, lanes: list[str], **options: Any) -> None:
    """Run both until the parent closes our input."""
    app = app_at(url)
    dashboard = create_app(app, **options)
    config = uvicorn.Config(
        dashboard, host="127.0.0.1", port=0, log_level="warning", lifespan="on", timeout_graceful_shutdown=1
    )
    server = _Server(config, options["prefix"])
    async with app:
        await app.deploy_schedules()
        worker = Worker(lanes, url_or_app=app, concurrency=8, heartbeat=1)
        for name, handler in HANDLERS.items():
            worker.register(name, handler)
        await worker.start()
        serving = asyncio.create_task(server.serve())
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving
        await worker.close(force=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--lanes", default=",".join(LANES))
    parser.add_argument("--prefix", default="")
    parser.add_argument("--operator", dest="operator_tokens")
    parser.add_argument("--reader", dest="reader_tokens")
    parser.add_argument("--trace-url", default="")
    options = vars(parser.parse_args())
    asyncio.run(serve(options.pop("url"), options.pop("lanes").split(","), **options))


if __name__ == "__main__":
    main()
