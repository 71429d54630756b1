"""How long the first searches of unknown servers take, and what they say; run by hand.

    python benchmarks/unknown_tools.py [TREE] [--copies 1] [--seconds 8]

The 33 recorded lists (1,035 tools) under other names of servers, or several copies of them, are behind a
fresh proxy over stdio with an empty store; nothing of them comes with the package. TREE has another version
of the package to start, this one by default. Linux only (it reads /proc).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path

from raw_clients import StdioClient
from subjects import processor_seconds, recorded

QUERIES = (
    "create a new issue in the repository for this bug",
    "take a screenshot of the page",
    "which pods are running in the cluster",
    "send a message to a channel",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--copies", type=int, default=1, help="of each list")
    parser.add_argument("--seconds", type=float, default=8.0, help="after the first list")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = str(recorded(Path(folder), Path(folder) / "store.sqlite3", arguments.copies, prefix="acme-"))
        os.environ |= {"HOME": folder, "PYTHONPATH": str(arguments.tree.resolve())}
        client = StdioClient(
            [sys.executable, "-m", "mcp_context_proxy", "serve", "--own", "--config", config]
        )
        try:
            client.open()
            client.request("tools/list")
            watched(client, arguments.seconds)
        finally:
            client.process.kill()
            client.process.wait()
    print(f"load {os.getloadavg()[0]:.1f}")


def watched(client: StdioClient, seconds: float) -> None:
    """Search again and again, and print what each search took."""
    pid, began = client.process.pid, time.perf_counter()
    for query in cycle(QUERIES):
        asked, used = time.perf_counter(), processor_seconds(pid)
        if asked - began > seconds:
            return
        text = client.call("search_available_tools", query=query)["content"][0]["text"]
        took, spent = time.perf_counter() - asked, processor_seconds(pid) - used
        note = next((line for line in text.splitlines() if "Indexing" in line), "")
        print(f"at {asked - began:5.2f} s: {took:.3f} s, {spent:.2f} s of a processor. {note}")
        time.sleep(max(0.0, 0.3 - took))


if __name__ == "__main__":
    main()
