"""Caller of the healthy neighbour, in a process of its own: ``python neighbour.py BASE CALLS``.

It calls until its input has ended and it has made so many calls, or one has failed; then it prints errors and
times as JSON. A caller that shared its interpreter with the soak's load would measure that load: its calls
would wait for their own client.
"""

import json
import sys
from pathlib import Path

import anyio
import anyio.to_thread

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.harness import Bystander
from faults.sharing import door

RATE = 50


async def call(base: str, least: int) -> Bystander:
    """Call until the input has ended, and so often at least unless a call fails."""
    async with door(base, "modern") as client, Bystander(client, rate=RATE).calling() as bystander:
        await anyio.to_thread.run_sync(sys.stdin.read)
        await client.until(lambda _: bystander.calls >= least or bystander.errors)
    return bystander


def main() -> None:
    bystander = anyio.run(call, sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"errors": bystander.errors, "seconds": bystander.seconds}))


if __name__ == "__main__":
    main()
