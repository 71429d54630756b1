"""Caller of the healthy neighbour, in a process of its own: ``python neighbour.py BASE``.

It calls until its input ends, and then prints errors and times as JSON. A caller that shared its interpreter
with the soak's load would measure that load: its calls would wait for their own client.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio
import anyio.to_thread

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.harness import Bystander
from support.wires import http

RATE = 50


async def call(base: str) -> Bystander:
    """Call until the input ends."""
    async with http(base, "modern") as client, Bystander(client, rate=RATE).calling() as bystander:
        await anyio.to_thread.run_sync(sys.stdin.read)
    return bystander


def main() -> None:
    bystander = anyio.run(call, sys.argv[1])
    print(json.dumps({"errors": bystander.errors, "seconds": bystander.seconds}))


if __name__ == "__main__":
    main()
