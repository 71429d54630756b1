"""Large results: the text that a model gets instead, and the cost of the check for a call; run by hand.

    python benchmarks/results.py [--before FOLDER | --pipes] [--rounds N] [--calls N]

The results are made up after real ones, always the same. Sizes are those of the content that a host passes to
its model, in tokens as the proxy estimates them elsewhere. Beside it, what the check of a result that stays
whole adds: in this process, in turns with the same path without the check. With a checkout of another version
in FOLDER, both proxies run beside each other, and calls whose results stay whole are measured in short turns;
the figures are the differences, in a round, of the p50 and of the processor time of a call. With --pipes, it
is one proxy whose check is turned off and on between the turns by a signal, so that nothing else differs.
POSIX only.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import msgspec
from figures import Figure, machine, table
from msgspec import Raw
from raw_clients import StdioClient, call_params
from subjects import Workbench, answers, proxy_command, tool_name

import mcp_context_proxy
from mcp_context_proxy.config import ResultsConfig, ServerConfig
from mcp_context_proxy.embedding.embeddings import TokenCounter
from mcp_context_proxy.items import Tool
from mcp_context_proxy.results.result_store import KeptResults
from mcp_context_proxy.results.shortening import (
    BYTES_PER_TOKEN,
    SMALL_BYTES,
    Call,
    LargeResults,
    shorten,
    with_note,
)

SWITCH = """

import signal

_checked, _off = LargeResults.fitted, []


async def _switched(self, call, result, mark):
    if not _off:
        return await _checked(self, call, result, mark)
    return result if mark is None else mark(result)


LargeResults.fitted = _switched
signal.signal(signal.SIGUSR1, lambda *_: _off.pop() if _off else _off.append(1))
"""
"""Lines that are added to a copy of this version: the signal turns its check off, and on again."""

BAR_MS = 0.02
BAR_LEFT = 0.1
"""Share of the tokens of large results that is left."""

TURN = 5
"""Calls to one proxy before the other has its turn: so few that a load on the machine meets both."""

SWITCH_TURN = 25
"""The same where one proxy is switched: enough that what the signal costs is over."""

LARGE_TOKENS = 10_000
DEFAULT_TOKENS = ResultsConfig().max_tokens

CLASSES = {
    f"up to {LARGE_TOKENS:,} tokens": (0, LARGE_TOKENS),
    f"{LARGE_TOKENS:,} to {DEFAULT_TOKENS:,} tokens": (LARGE_TOKENS, DEFAULT_TOKENS),
    f"over {DEFAULT_TOKENS:,} tokens": (DEFAULT_TOKENS, float("inf")),
}
"""Classes of results by size, each above the first and up to the second number of tokens."""

CHECKED, CHECK_ROUNDS = 7_000, 15
"""Checks of a result in a round, each after the same without the check, and rounds: about 100,000 of each."""

SIZES = {"2 bytes": 2, "10 kB": 10_000, "70 kB": 70_000}
"""Results that stay whole: one that is not looked at, and two whose size is compared."""

WORDS = [
    *(
        "the",
        "build",
        "failed",
        "because",
        "a",
        "cache",
        "entry",
        "was",
        "stale",
        "and",
        "retrying",
        "it",
        "on",
    ),
    *("another", "runner", "worked", "so", "this", "may", "be", "about", "locks", "rather", "than", "disks"),
    *("see", "log", "for", "details", "of", "every", "attempt", "its", "exit", "status", "request", "queue"),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="a checkout of the version to compare with")
    parser.add_argument("--pipes", action="store_true", help="turn the check of one proxy off and on")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=300)
    arguments = parser.parse_args()
    print("\n".join(f"{name}: {value}" for name, value in machine().items()), flush=True)
    for tokens in (DEFAULT_TOKENS, LARGE_TOKENS):
        print("\n" + sizes(tokens), flush=True)
    checks = [Figure(name, anyio.run(check, size), "ms", BAR_MS) for name, size in SIZES.items()]
    print("\n" + table("The check of a result that stays whole, added to the p50", checks), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench(Path(folder))
        if arguments.pipes:
            figures = switched(bench, arguments.rounds, arguments.calls)
        elif arguments.before is not None:
            figures = beside(bench, arguments.before.resolve(), arguments.rounds, arguments.calls)
        else:
            return
    print("\n" + table("Added to calls whose results stay whole", figures))


def sizes(most_tokens: int) -> str:
    """A table of the tokens of each result before and after, shortened above a limit."""
    count = TokenCounter().count
    lines = [
        f"### Shortened above {most_tokens:,} tokens",
        "",
        "| | before | after | left |",
        "|---|--:|--:|--:|",
    ]
    by_class = {name: [0, 0] for name in CLASSES}
    for name, result in recorded():
        encoded = msgspec.json.encode(result)
        shortened = None
        if len(encoded) > most_tokens * BYTES_PER_TOKEN:
            shortened = shorten(encoded, most_tokens * BYTES_PER_TOKEN, None)
        shown = encoded if shortened is None else with_note(shortened.result, shortened.note)
        before, after = count(said(encoded)), count(said(shown))
        for each, (least, most) in CLASSES.items():
            if least < before <= most:
                by_class[each][0] += before
                by_class[each][1] += after
        lines.append(f"| {name} | {before:,} | {after:,} | {after / before:.1%} |")
    for each, (before, after) in by_class.items():
        lines.append(f"| {each} | {before:,} | {after:,} | {after / before:.1%} |")
    before, after = (sum(amounts) for amounts in zip(*list(by_class.values())[1:], strict=True))
    verdict = "holds" if after / before <= BAR_LEFT else "**missed**"
    together = f"all over {LARGE_TOKENS:,} tokens, bar {BAR_LEFT:.0%}: {verdict}"
    lines.append(f"| {together} | {before:,} | {after:,} | {after / before:.1%} |")
    return "\n".join(lines)


def said(result: bytes) -> str:
    """The texts of a result, as a host passes them on."""
    return "\n".join(block.get("text", "") for block in json.loads(result)["content"])


def recorded() -> Iterator[tuple[str, dict[str, Any]]]:
    """Results as servers of these kinds send them."""
    chance = random.Random(7)

    def words(number: int) -> str:
        return " ".join(chance.choices(WORDS, k=number))

    def path() -> str:
        return "/".join(chance.choices(WORDS, k=chance.randint(2, 5))) + ".py"

    def issue(number: int) -> dict[str, Any]:
        labels = [{"id": chance.getrandbits(32), "name": word} for word in chance.choices(WORDS, k=3)]
        user = {"login": chance.choice(WORDS), "id": chance.getrandbits(24), "type": "User"}
        return {
            "id": chance.getrandbits(40),
            "number": number,
            "title": words(7),
            "user": user,
            "labels": labels,
            "state": "open",
            "created_at": f"2026-0{chance.randint(1, 9)}-11T08:{chance.randint(10, 59)}:00Z",
            "body": words(chance.randint(20, 150)),
        }

    def log(number: int) -> str:
        level = chance.choice(("INFO", "INFO", "INFO", "WARN", "ERROR"))
        return f"2026-11-02T10:{number // 60 % 60:02}:{number % 60:02}Z {level} [{path()}] {words(9)}"

    def trace() -> str:
        frames = (
            f'  File "{path()}", line {chance.randint(1, 900)}, in {chance.choice(WORDS)}\n    {words(6)}'
            for _ in range(25)
        )
        return "Traceback (most recent call last):\n" + "\n".join(frames) + f"\nValueError: {words(8)}"

    def row(number: int) -> str:
        return f"{number},{chance.choice(WORDS)},{chance.random():.6f},{chance.getrandbits(20)},{words(3)}"

    def html() -> str:
        cells = (
            f'<div class="{chance.choice(WORDS)}"><a href="/{path()}">{words(4)}</a><p>{words(25)}</p></div>'
            for _ in range(500)
        )
        return f"<!doctype html><html><body>{''.join(cells)}</body></html>"

    def match() -> str:
        return f"{path()}:{chance.randint(1, 900)}:    {words(11)}"

    def record() -> dict[str, Any]:
        return {
            "url": f"https://example.com/{path()}",
            "title": words(6),
            "snippet": words(60),
            "score": chance.random(),
        }

    issues = [issue(number) for number in range(250)]
    tree = {
        "name": "src",
        "type": "directory",
        "children": [{"name": path(), "type": "file", "size": chance.getrandbits(16)} for _ in range(3000)],
    }
    yield "a note (JSON)", _text(json.dumps(issue(1)))
    yield "file listing, 400 lines", _text("\n".join(f"[FILE] {path()}" for _ in range(400)))
    yield "search results, 120 (JSON)", _text(json.dumps([record() for _ in range(120)]))
    yield "stack traces, 30", {**_text("\n\n".join(trace() for _ in range(30))), "isError": True}
    yield "page of a site (HTML)", _text(html())
    yield "directory tree (JSON)", _text(json.dumps(tree, indent=2))
    yield "grep, 4,000 matches", _text("\n".join(match() for _ in range(4000)))
    yield "issues, 250 (JSON)", _text(json.dumps(issues))
    yield (
        "issues, both forms",
        {**_text(json.dumps({"items": issues})), "structuredContent": {"items": issues}},
    )
    yield "query, 8,000 rows (CSV)", _text("\n".join(row(number) for number in range(8000)))
    yield "log of a build, 9,000 lines", _text("\n".join(log(number) for number in range(9000)))
    yield (
        "one record a block, 300",
        {"content": [{"type": "text", "text": json.dumps(record(), indent=2)} for _ in range(300)]},
    )


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


async def check(size: int) -> list[float]:
    """The milliseconds that the check of a result that stays whole adds to the p50, in several rounds."""
    definition = {"name": "tool", "description": "Does it. " * 70, "inputSchema": {"type": "object"}}
    tool = Tool("s", "tool", "s__tool", msgspec.json.encode(definition), "")
    results = LargeResults(ResultsConfig(), KeptResults(None, 60.0))
    server, params = ServerConfig(name="s", command="x"), {"_meta": Raw(b'{"progressToken":1}')}
    client, result = Raw(b'{"name":"claude-code","version":"2"}'), msgspec.json.encode(_text("x" * size))

    async def checked() -> bytes:
        if len(result) > SMALL_BYTES or b'"structuredContent"' in result:
            call = Call(tool=tool, server=server, params=params, client_info=client, owner="one", direct=True)
            return await results.fitted(call, result, None)
        return result

    async def bare() -> bytes:
        return result

    rounds = []
    for _ in range(CHECK_ROUNDS):
        times: dict[Callable[[], Awaitable[bytes]], list[float]] = {bare: [], checked: []}
        for _ in range(CHECKED):
            for path, spent in times.items():
                began = time.perf_counter()
                await path()
                spent.append(time.perf_counter() - began)
        rounds.append((median(times[checked]) - median(times[bare])) * 1e3)
    return rounds


def processor_seconds(client: StdioClient) -> float:
    """Processor time of all threads of a proxy; Linux only, 0 elsewhere."""
    tasks = Path(f"/proc/{client.process.pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.glob("*")) / 1e9


def with_switch(folder: Path) -> Path:
    """Make a copy of this version whose check of results a signal turns off and on."""
    package = Path(mcp_context_proxy.__file__).parent
    shutil.copytree(package, folder / package.name)
    with (folder / package.name / "results" / "shortening.py").open("a", encoding="utf-8") as module:
        module.write(SWITCH)
    return folder


def switched(bench: Workbench, rounds: int, calls: int) -> list[Figure]:
    """Cost of the check for a call over pipes: one proxy with it and without it, in turns."""
    command = proxy_command(bench.config(servers=1))
    folder = with_switch(bench.folder / "switch")
    command = [*("env", f"PYTHONPATH={folder}", "PYTHONSAFEPATH=1"), *command]
    client = StdioClient(command, "handshake", bench.folder / "proxy.log")
    figures = []
    try:
        client.open()
        client.until(partial(answers, tool_name("proxy")))
        for name, size in SIZES.items():
            params = call_params(tool_name("proxy"), size=size)
            middle: list[float] = []
            spent: list[float] = []
            same: list[float] = []
            for number in range(rounds + 1):
                # By twos with the check and without: two of each kind also tell what nothing adds.
                times: list[list[float]] = [[], [], [], []]
                used = [0.0, 0.0, 0.0, 0.0]
                for turn in range(4 * calls // SWITCH_TURN):
                    which = (0, 1, 3, 2, 2, 3, 1, 0)[turn % 8]
                    before = processor_seconds(client)
                    times[which] += client.timed("tools/call", params, SWITCH_TURN)
                    used[which] += processor_seconds(client) - before
                    if which // 2 != (0, 1, 3, 2, 2, 3, 1, 0)[(turn + 1) % 8] // 2:
                        client.process.send_signal(signal.SIGUSR1)
                        client.call(tool_name("proxy"))
                if number:
                    count = len(times[0])
                    on, off = times[0] + times[1], times[2] + times[3]
                    middle.append((median(on) - median(off)) * 1e3)
                    spent.append((used[0] + used[1] - used[2] - used[3]) / (2 * count) * 1e3)
                    same.append((used[0] - used[1]) / count * 1e3)
            figures += [
                Figure(f"{name}: added to the p50", middle, "ms", BAR_MS),
                Figure(f"{name}: added processor time of a call", spent, "ms", BAR_MS),
                Figure(f"{name}: the same of two halves with the check", same, "ms"),
            ]
    finally:
        client.close()
    return figures


def beside(bench: Workbench, before: Path, rounds: int, calls: int) -> list[Figure]:
    """The p50 of calls with this version and with the one before, and the differences of pairs of turns."""
    command = proxy_command(bench.config(servers=1))
    log = bench.folder / "proxy.log"
    # The same interpreter for both, and the folder before what is installed.
    old = [*("env", f"PYTHONPATH={before}", "PYTHONSAFEPATH=1"), *command]
    new = [*("env", f"PYTHONPATH={Path(__file__).parents[1]}", "PYTHONSAFEPATH=1"), *command]
    clients = [StdioClient(each, "handshake", log) for each in (old, new)]
    figures = []
    try:
        for client in clients:
            client.open()
            client.until(partial(answers, tool_name("proxy")))
        for name, size in SIZES.items():
            values: tuple[list[float], list[float]] = ([], [])
            spent: list[float] = []
            params = call_params(tool_name("proxy"), size=size)
            for number in range(rounds + 1):
                times: tuple[list[float], list[float]] = ([], [])
                before_round = [*map(processor_seconds, clients)]
                for turn in range(calls // TURN):
                    for which in (0, 1) if turn % 2 else (1, 0):
                        times[which].extend(clients[which].timed("tools/call", params, TURN))
                old_spent, new_spent = (
                    now - then
                    for now, then in zip(map(processor_seconds, clients), before_round, strict=True)
                )
                if number:
                    for which in (0, 1):
                        values[which].append(median(times[which]) * 1e3)
                    spent.append((new_spent - old_spent) / len(times[0]) * 1e3)
            added = [after - before_ for before_, after in zip(*values, strict=True)]
            figures += [
                Figure(f"{name}, before: p50", values[0], "ms"),
                Figure(f"{name}, this version: p50", values[1], "ms"),
                Figure(f"{name}: added to the p50", added, "ms", BAR_MS),
                Figure(f"{name}: added processor time of a call", spent, "ms", BAR_MS),
            ]
    finally:
        for client in clients:
            client.close()
    return figures


if __name__ == "__main__":
    main()
