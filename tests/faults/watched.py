"""The proxy with a watchdog on its event loop: ``python watched.py REPORT CONFIG``; serves over HTTP.

On the way out it writes to REPORT, as JSON, the longest stall of its loop in seconds.
"""

import json
import sys
from functools import partial
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.harness import Watchdog

from mcp_context_proxy.app import serve as app
from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.config import Config, load
from mcp_context_proxy.server.negotiation import Negotiation
from mcp_context_proxy.serving import prepare


def read(path: Path) -> Config:
    return load(path, overrides={"http.port": 0, "http.auth": False})


def main() -> None:
    report, config = Path(sys.argv[1]), Path(sys.argv[2])
    prepare("warning", serving=True)
    watchdog = Watchdog()

    async def front(proxy: Proxy, negotiation: Negotiation) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(watchdog.run)
            try:
                await app.http_front(proxy, negotiation)
            finally:
                group.cancel_scope.cancel()

    anyio.run(app.serve, read(config), front, partial(read, config))
    figures = {"longest": watchdog.longest, "longest_work": watchdog.longest_work}
    report.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
