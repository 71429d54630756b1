"""Instructions and cache misses of a call over stdio, which other processes change little; run by hand.

    apt install valgrind
    python benchmarks/instructions.py

Calls come 32 at a time, as from a host with many under way. The proxy alone is counted, in user space; its
servers run as they are. On a busy machine their answers come one by one, each with a step of the loop of its
own, so the round with the fewest instructions counts. Linux only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from raw_clients import StdioClient, call_params, frame
from subjects import HERE, TOOLS, Workbench, proxy_command

SERVERS, IN_FLIGHT, WARM, CALLS, ROUNDS = 2, 32, 320, 320, 5
SETTLED_SECONDS = 8.0
"""After which nothing of the start is left to do, at a fiftieth of the usual speed."""
DIRECT = call_params("s0__create_issue", id="x")
THROUGH = {"name": "call_tool", "arguments": DIRECT}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench(Path(folder))
        bare = [sys.executable, str(HERE / "bare_asyncio_proxy.py"), str(SERVERS), str(TOOLS)]
        print("| | instructions | missing in L1: code | data |\n|---|---:|---:|---:|")
        for era in ("handshake", "modern"):
            ours = [*proxy_command(bench.config(servers=SERVERS, modern=era == "modern")), "serve", "--own"]
            print(_row(f"{era} call", _counted(bench, ours, era, DIRECT)))
            print(_row("- through `call_tool`", _counted(bench, ours, era, THROUGH)))
        print(_row("bare asyncio", _counted(bench, bare, "handshake", DIRECT)))


def _row(name: str, found: dict[str, int]) -> str:
    code, data = found["I1mr"], found["D1mr"] + found["D1mw"]
    return f"| {name} | {found['Ir'] / CALLS:,.0f} | {code / CALLS:,.0f} | {data / CALLS:,.0f} |"


def _counted(bench: Workbench, command: list[str], era: str, params: dict[str, Any]) -> dict[str, int]:
    """Run a proxy under callgrind; return what the calls of the best round took together, by its events."""
    out = bench.folder / f"callgrind-{time.monotonic_ns()}"
    options = ["--instr-atstart=no", "--cache-sim=yes", f"--callgrind-out-file={out}.%p"]
    client = StdioClient(["valgrind", "--tool=callgrind", *options, *command], era)
    client.open()
    client.request("tools/list")
    time.sleep(SETTLED_SECONDS)
    _burst(client, params, WARM)
    time.sleep(SETTLED_SECONDS)
    _control(client, "-i", "on")
    for _ in range(ROUNDS):
        _burst(client, params, CALLS)
        _control(client, "-d")
    client.close()
    dumps = [Path(f"{out}.{client.process.pid}.{number + 1}") for number in range(ROUNDS)]
    return min(map(_events, dumps), key=lambda found: found["Ir"])


def _control(client: StdioClient, *order: str) -> None:
    command = ["callgrind_control", *order, str(client.process.pid)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _events(dump: Path) -> dict[str, int]:
    lines = dump.read_text(encoding="utf-8", errors="replace").splitlines()
    events, totals = (next(line for line in lines if line.startswith(key)) for key in ("events:", "totals:"))
    # Totals of nothing at the end of the line are left out.
    return dict(zip(events.split()[1:], map(int, totals.split()[1:]), strict=False))


def _burst(client: StdioClient, params: dict[str, Any], count: int) -> None:
    for begin in range(0, count, IN_FLIGHT):
        numbers = range(begin, begin + IN_FLIGHT)
        client.send(
            b"\n".join(frame(1_000_000 + number, "tools/call", params, client.era) for number in numbers)
        )
        for _ in numbers:
            client.reply()


if __name__ == "__main__":
    main()
