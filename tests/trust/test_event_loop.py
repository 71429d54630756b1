"""The largest and worst that servers, clients and documents may send keeps nobody waiting.

The proxy runs in a process that measures the steps of its event loop (`watched_proxy`).
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.harness import faulty
from faults.test_floods import ANSWERS, KINDS
from support.raw_client import Answer, RawClient
from support.servers import Workshop, tool
from support.wires import StdioWire, stdio
from trust.test_adversarial_text import UNITS

from mcp_context_proxy.config import Limits
from mcp_context_proxy.protocol.envelope import LARGE_MESSAGE_BYTES

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("watched_proxy.py")
LIMITS = Limits()
TOKEN = {"progressToken": "mine"}

PATIENCE = 240.0
"""Seconds for ten thousand hostile definitions of each kind to be listed on such a machine."""


@dataclass
class Watched:
    """A proxy whose steps are measured, and a client of it."""

    client: RawClient
    report: Path
    since: float

    @property
    def slow_steps(self) -> str:
        """The steps that took too long since the client was answered first, a line each."""
        lines = self.report.read_text(encoding="utf-8").splitlines() if self.report.exists() else []
        steps = [step for step in map(json.loads, lines) if step["began"] >= self.since]
        return "\n".join(f"{step['seconds']} s: {' > '.join(step['where'])}" for step in steps)

    async def ask(self, method: str, params: str) -> Any:
        """Make a request with params that are written already; return its result, or its error."""
        request_id = f"raw-{time.monotonic_ns()}"
        answer: asyncio.Future[Any] = self.client.expect(request_id)
        wire = self.client.wire
        assert isinstance(wire, StdioWire)
        message = f'{{"jsonrpc":"2.0","id":"{request_id}","method":"{method}","params":{params}}}\n'
        await wire.write(message.encode())
        try:
            with anyio.fail_after(PATIENCE):
                return await answer
        except Exception as error:
            if isinstance(error, TimeoutError):
                raise
            return error

    async def notify(self, method: str, params: str) -> None:
        wire = self.client.wire
        assert isinstance(wire, StdioWire)
        await wire.write(f'{{"jsonrpc":"2.0","method":"{method}","params":{params}}}\n'.encode())


@asynccontextmanager
async def watched(
    workshop: Workshop,
    era: str = "handshake",
    *,
    capabilities: dict[str, Any] | None = None,
    answers: dict[str, Answer] | None = None,
    wait: float = LIMITS.indexing_wait_seconds,
    **tables: Any,
) -> AsyncIterator[Watched]:
    """Start a proxy in front of the servers of a workshop, with the other limits of the default."""
    limits = {"indexing_wait_seconds": wait, "stop_seconds": 0.5}
    config = workshop.config(limits=limits, **tables)
    report = workshop.folder / "steps"
    command = [sys.executable, str(PROGRAM), str(report), "--config", str(config), "serve"]
    async with stdio(command, era, capabilities=capabilities, answers=answers) as client:
        yield Watched(client, report, time.monotonic())


def units() -> Iterator[str]:
    """The parts of hostile texts, over and over."""
    while True:
        yield from (part.replace("\u200d", "") for part in UNITS.values())


def text_of(part: str, size: int) -> str:
    """Repeat a part up to a size in bytes, as JSON writes it."""
    return part * max(1, size // (len(json.dumps(part)) - 2))


def hostile_tools(number: int, size: int) -> list[dict[str, Any]]:
    found = []
    for at, part in zip(range(number), units(), strict=False):
        described = f"I need {text_of(part, size // 2)}"
        properties = {f"p{each}_{at}": {"description": part[:8] or "x"} for each in range(size // 2 // 60)}
        schema = {"type": "object", "properties": properties}
        found.append(tool(f"{'t' * 50}_{at}", described, inputSchema=schema))
    return found


SIZE = LIMITS.message_bytes - 10_000

SHAPES = {
    "empty arrays": lambda size: "[" + "[]," * (size // 3) + "0]",
    "members": lambda size: "{" + ",".join(f'"{at}":0' for at in range(size // 12)) + "}",
    "nested": lambda size: "[" * 180 + "0," * (size // 2 - 200) + "0" + "]" * 180,
    "spaces": lambda size: "[" + " " * size + "]",
    "escapes": lambda size: '"' + r"\u0041" * (size // 6) + '"',
    "halves": lambda size: '"' + r"\ud800" * (size // 6) + '"',
    "commas in a text": lambda size: '"' + "a, " * (size // 3) + '"',
}
"""Values that take long to read, by what they are made of."""

REQUESTS = {
    "arguments": ("tools/call", '{"name":"calm__add","arguments":{"a":%s}}'),
    "arguments as members": ("tools/call", '{"name":"calm__add","arguments":%s}'),
    "_meta": ("tools/call", '{"name":"calm__add","_meta":{"progressToken":1,"a":%s}}'),
    "_meta as members": ("tools/call", '{"name":"calm__add","_meta":%s}'),
    "arguments of a search": (
        "tools/call",
        '{"name":"search_available_tools","arguments":{"query":"x","a":%s}}',
    ),
    "arguments for call_tool": (
        "tools/call",
        '{"name":"call_tool","arguments":{"name":"calm__add","goal":null,"arguments":{"a":%s}}}',
    ),
    "answers": ("tools/call", '{"name":"calm__add","requestState":"x","inputResponses":{"a":%s}}'),
    "arguments of a prompt": ("prompts/get", '{"name":"with_context","arguments":{"a":%s}}'),
    "a reference": (
        "completion/complete",
        '{"ref":{"type":"ref/prompt","name":"x","a":%s},"argument":{"name":"a","value":"b"}}',
    ),
    "a cursor": ("tools/list", '{"cursor":%s}'),
    "members of params": ("ping", '{"a":%s}'),
}


LARGEST = ("arguments", "arguments for call_tool", "_meta as members", "answers")
"""Places that are tried with the largest message; all others with one that needs no worker thread."""


@pytest.fixture(scope="module")
async def calm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    workshop = Workshop(tmp_path_factory.mktemp("calm"))
    workshop.server("calm", tools=[tool("add", "Adds two numbers")])
    async with watched(workshop, expose={"mode": "all"}) as proxy:
        await proxy.client.until_listed("calm__add")
        yield proxy
        proxy.client.null_errors.clear()


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_message_of_a_client_delays_the_others(calm: Watched, shape: str) -> None:
    value = SHAPES[shape](LARGE_MESSAGE_BYTES - 1_000)
    calm.since = time.monotonic()
    for method, params in REQUESTS.values():
        await calm.ask(method, params % value)
    for method in ("cancelled", "progress", "roots/list_changed"):
        await calm.notify(f"notifications/{method}", f'{{"requestId":1,"a":{value}}}')
    result = await calm.client.call("calm__add", {})

    assert result["content"]
    assert not calm.slow_steps, calm.slow_steps


@pytest.mark.each_value
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("place", LARGEST)
async def test_no_message_of_the_largest_size_delays_the_others(
    calm: Watched, shape: str, place: str
) -> None:
    method, params = REQUESTS[place]
    calm.since = time.monotonic()
    await calm.ask(method, params % SHAPES[shape](SIZE))
    result = await calm.client.call("calm__add", {})

    assert result["content"]
    assert not calm.slow_steps, calm.slow_steps


MEMBERS = {
    "_meta": '{"_meta":%s}',
    "data": '{"content":[],"structuredContent":{"a":%s}}',
    "input": '{"resultType":"input_required","inputRequests":%s}',
    "blocks": '{"content":%s}',
    "failure": '{"isError":true,"content":%s}',
}
"""Results by the member that a value is."""

LARGEST_RESULTS = ("data", "input")
"""Members of a result that are tried with the largest message; all others with one of 2 MiB."""


@dataclass
class Evil:
    """A server that answers with whatever is in a file."""

    proxy: Watched
    answer: Path


@pytest.fixture(scope="module", params=["handshake", "modern"])
async def evil(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Evil]:
    """The server in one era, and a client in the other."""
    workshop, era = Workshop(tmp_path_factory.mktemp("evil")), request.param
    answer = workshop.flag("answer")
    workshop.server("evil", era=era, tools=[tool("x")], calls={"x": [{"raw_result_in": str(answer)}]})
    workshop.server("calm", tools=[tool("add", "Adds two numbers")])
    other = "modern" if era == "handshake" else "handshake"
    async with watched(workshop, other, expose={"mode": "all"}) as proxy:
        await proxy.client.until_listed("calm__add", "evil__x")
        yield Evil(proxy, answer)


@pytest.mark.each_value(cross=2)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("member", MEMBERS)
async def test_no_message_of_a_server_delays_the_others(evil: Evil, shape: str, member: str) -> None:
    proxy, size = evil.proxy, SIZE if member in LARGEST_RESULTS else 2 << 20
    evil.answer.write_text(MEMBERS[member] % SHAPES[shape](size), encoding="utf-8")
    proxy.since = time.monotonic()
    await proxy.ask("tools/call", json.dumps(proxy.client._with_meta({"name": "evil__x"}, {})))
    result = await proxy.client.call("calm__add", {})

    assert result["content"]
    assert not proxy.slow_steps, proxy.slow_steps


async def test_no_flood_of_a_server_delays_the_others(workshop: Workshop) -> None:
    workshop.server("odd").settings = faulty("flood", workshop.folder / "flooded", delay=0.15)
    workshop.server("calm", tools=[tool("add", "Adds two numbers")])
    capabilities = {"sampling": {}, "elicitation": {}, "roots": {"listChanged": True}}
    async with watched(workshop, expose={"mode": "all"}, capabilities=capabilities, answers=ANSWERS) as proxy:
        await proxy.client.until_listed("calm__add", "odd__tool_000")
        await proxy.client.request("resources/subscribe", {"uri": "note://1"})
        for kind in KINDS:
            arguments = {"kind": kind, "nonce": kind, "after": False}
            await proxy.ask(
                "tools/call", json.dumps({"name": "odd__tool_000", "arguments": arguments, "_meta": TOKEN})
            )
            result = await proxy.client.call("calm__add", {})

    assert result["content"]
    assert not proxy.slow_steps, proxy.slow_steps


async def test_a_page_of_millions_of_entries_is_not_taken_apart(workshop: Workshop) -> None:
    workshop.server("evil", tools=[0] * 400_000)
    workshop.server("calm", tools=[tool("add", "Adds two numbers")])
    async with watched(workshop, expose={"mode": "all"}) as proxy:
        names = await proxy.client.until_listed("calm__add")

    assert not any(name.startswith("evil__") for name in names)
    assert not proxy.slow_steps, proxy.slow_steps


LARGE_RESULTS = {
    "lines": lambda: "\n".join(f"line {at}: request took {at % 91} ms" for at in range(270_000)),
    "one line": lambda: "ab " * 3_300_000,
    "records": lambda: json.dumps([{"id": at, "name": f"n{at}", "t": ["a", "b"]} for at in range(190_000)]),
}
"""Texts of about 10 MB."""


@pytest.mark.parametrize(
    "kind", ["records", *(pytest.param(kind, marks=pytest.mark.full_cross) for kind in ("lines", "one line"))]
)
async def test_reading_a_large_result_by_pages_patterns_and_paths_delays_nobody(
    tmp_path: Path, kind: str
) -> None:
    content = [{"type": "text", "text": LARGE_RESULTS[kind]()}]
    workshop = Workshop(tmp_path)
    answer = workshop.flag("answer")
    answer.write_text(json.dumps({"content": content}), encoding="utf-8")
    workshop.server("work", tools=[tool("get")], calls={"get": [{"raw_result_in": str(answer)}]})
    async with watched(workshop, expose={"mode": "all"}) as proxy:
        client = proxy.client
        await client.until_listed("work__get")
        proxy.since = time.monotonic()
        got = await client.call("work__get")
        kept = got["content"][-1]["text"].split('id="')[1].split('"')[0]
        wanted: list[dict[str, Any]] = [
            *({"page": page} for page in (1, 2, 300)),
            *({"pattern": pattern} for pattern in ("took", "a*b*c", "no such words", "*", "9")),
            *({"path": path} for path in ("[*].id", "[*][id,name]", "[-1]", "[0:1000].t", "no.such")),
            {"path": "[*].name", "pattern": "n18*"},
        ]
        for each in wanted:
            await client.call("read_result", {"id": kept, **each})

    assert len(json.dumps(got)) < 50_000
    assert not proxy.slow_steps, proxy.slow_steps
