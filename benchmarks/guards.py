"""Measures the time that the guard of secrets and the audit add to a call; run by hand.

    python benchmarks/guards.py [--rounds N]

Both are measured as the proxy calls them: the guard looks for the secrets of twenty servers, in all their
forms, in the params of a call; the audit takes the call into its queue, and its thread writes it later.
Rounds of both and of an empty function alternate, so that what else the machine does hits all of them.
Times are those of the processor, in ms for a call, without those of the empty function.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Raw

from mcp_context_proxy.config import Config, ServerConfig
from mcp_context_proxy.items import Tool
from mcp_context_proxy.trust.audit import AuditedCall, AuditLog
from mcp_context_proxy.trust.audit_file import AuditFile
from mcp_context_proxy.trust.guard import KnownSecrets

ROUND_BYTES = 400_000
"""Arguments of a round; that makes fewer calls than the entries that may wait."""

ARGUMENTS = {
    "small": {"id": 7},
    "usual": {
        "owner": "somebody",
        "repo": "mcp-context-proxy",
        "title": "The list of tools is empty after a restart",
        "body": "It happens with two servers, one of which is slow to start. " * 3,
        "labels": ["bug", "startup"],
    },
    "10 kB of text": {"path": "/notes/today.md", "content": "Nothing of this is secret. " * 370},
    "10 kB with long runs": {
        "path": "/notes/a.md",
        "content": f"see {'a1B2c3D4' * 8} and more words. " * 100,
    },
}


def main() -> None:
    """Print a row for each kind of arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    known = KnownSecrets(Config(servers={server.name: server for server in map(configured, range(20))}))
    tool = Tool("server0", "act", "server0__act", b'{"name": "act", "inputSchema": {}}', "print")
    print("| arguments | guard, median (fastest) | audit, median (fastest) |\n|---|---:|---:|")
    gc.disable()
    with tempfile.TemporaryDirectory() as folder:
        for title, arguments in ARGUMENTS.items():
            raw = Raw(msgspec.json.encode(arguments))
            params = {"name": Raw(b'"act"'), "arguments": raw}
            log = AuditLog(AuditFile(Path(folder), 10_000_000, 3))

            def guard(params: dict[str, Raw] = params) -> None:
                known.in_params("server0", params)

            def audit(log: AuditLog = log, raw: Raw = raw) -> None:
                call = AuditedCall(
                    tool=tool,
                    arguments=raw,
                    outcome="succeeded",
                    decision="allowed",
                    rule=None,
                    principal="owner",
                    client_info=None,
                    session="session",
                    ms=1.25,
                    result_bytes=200,
                )
                log.called(call)

            calls = min(ROUND_BYTES // len(raw), 2_000)
            found: dict[str, list[float]] = {"guard": [], "audit": []}
            for _ in range(rounds):
                nothing = timed(lambda: None, calls)
                found["guard"].append(timed(guard, calls) - nothing)
                found["audit"].append(timed(audit, calls) - nothing)
                log._queue.clear()
                log._bytes = 0
            cells = [f"{statistics.median(times):.4f} ({min(times):.4f})" for times in found.values()]
            print(f"| {title}, {len(raw):,} bytes | {' | '.join(cells)} |")


def configured(number: int) -> ServerConfig:
    """Return a server with a secret of its own."""
    token = f"ghp_{number:02}{'x7Yz' * 6}{number:02}"
    return ServerConfig(
        name=f"server{number}", command="server", env={"TOKEN": token}, secrets=(("TOKEN", token),)
    )


def timed(work: Callable[[], object], calls: int) -> float:
    """Return the milliseconds that one call takes."""
    began = time.thread_time()
    for _ in range(calls):
        work()
    return (time.thread_time() - began) * 1000 / calls


if __name__ == "__main__":
    main()
