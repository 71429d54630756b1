"""Each way a server can go wrong, through each front and in each era: one answer, in words, and no harm.

One proxy has many of them behind it at once, over stdio, over HTTP and over the bridge to a shared one, and a
healthy server that is called all the while. Most faults never touch the front: all of them together meet each
front and era, and in the full cross each of them meets every front and both eras, but not every pair.
"""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.cases import ANSWERS, FAILS, HTTP, REFUSES, RELAYS, STDIO, Case
from faults.harness import BYSTANDER, PROGRAM, SAFE, Bystander, Ledger, faulty, nonce, twin
from faults.sharing import shared
from support.proxies import http_proxy, real_command
from support.raw_client import PATIENCE, RawClient, RpcError, text_of
from support.servers import Workshop
from support.wires import http, stdio

from mcp_context_proxy.config.programs import INHERITED

pytestmark = pytest.mark.slow

SECRET = "s3cr3t value+123"
CASES = [*(("stdio", case) for case in STDIO), *(("http", case) for case in HTTP)]
SCENES = [(front, era) for front in ("stdio", "http", "shared") for era in ("handshake", "modern")]
EVERYWHERE = {
    "s-hang-call",
    "s-ask-client",
    "s-ping-client",
    "s-environment",
    "s-hang-discover",
    "s-die-on-discover",
}
"""Servers of tests that have no case."""
LIMITS = {
    "message_bytes": 4 << 20,
    "sse_event_bytes": 4 << 20,
    "pages": 30,
    "stop_seconds": 1.0,
    "backoff_max_seconds": 10.0,
    "probe_seconds": 1.0,
}
RATE = 50.0
"""Calls of the bystander in a second: each test waits for two."""


@dataclass
class Scene:
    """A proxy with every faulty server behind it, and its client."""

    client: RawClient
    bystander: Bystander
    ledger: Ledger
    folder: Path
    era: str
    begun: dict[str, tuple[str, asyncio.Future[Any]]] = field(default_factory=dict)
    """Calls that end at their deadline, by server: all wait together, beside whatever else is tested."""

    async def begin(self, server: str) -> None:
        """Call a tool that will not answer."""
        said = nonce()
        params = {"name": f"{server}__tool_000", "arguments": {"nonce": said}}
        self.begun[server] = said, (await self.client.start("tools/call", params))[1]

    async def called(self, server: str) -> tuple[str, Any]:
        """The calls of the faulty tool, each with its result or the error that it raised."""
        if server not in self.begun:
            await self.begin(server)
        said, future = self.begun[server]
        try:
            with anyio.fail_after(PATIENCE):
                return said, await future
        except RpcError as error:
            return said, error


def key(transport: str, case: Case) -> str:
    return f"{transport[0]}-{case.mode}"


def settings(transport: str, case: Case, era: str, ledger: Path, base: str) -> dict[str, Any]:
    spoken = {"era": era} if case.era is None else {"era": case.era}
    if transport == "http":
        return {"url": f"{base}/{case.mode}/mcp"} | spoken | case.settings
    server = faulty(case.mode, ledger, era, name=key(transport, case), **case.options)
    return server | {"env": {"API_TOKEN": SECRET}} | spoken | case.settings


def cases_of(request: pytest.FixtureRequest) -> list[tuple[str, Case]]:
    """The cases of this scene that are going to be tested."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    params = [item.callspec.params for item in items if "case" in item.fixturenames]
    tested = {key(each["transport"], each["case"]) for each in params if each.get("scene") == request.param}
    return [row for row in CASES if key(*row) in tested | EVERYWHERE]


@pytest.fixture(scope="module", params=SCENES, ids=["-".join(scene) for scene in SCENES])
async def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    front, era = request.param
    cases = cases_of(request)
    folder = tmp_path_factory.mktemp("modes")
    ledger = Ledger(folder / "ledger")
    workshop = Workshop(folder)
    async with AsyncExitStack() as stack:
        base = stack.enter_context(twin(ledger.path, era, delay=0.4, size=8 << 20))
        for transport, case in cases:
            workshop.server(key(transport, case)).settings = settings(transport, case, era, ledger.path, base)
        workshop.server(BYSTANDER).settings = faulty("normal", ledger.path, era, name=BYSTANDER)
        config = workshop.config(limits=LIMITS, expose={"mode": "all"})
        if front == "shared":
            client = await stack.enter_async_context(shared(config, era))
        elif front == "stdio":
            log = stack.enter_context(folder.joinpath("log").open("w", encoding="utf-8"))
            client = await stack.enter_async_context(stdio(real_command(config), era, stderr=log))
        else:
            proxy = stack.enter_context(http_proxy(config))
            client = await stack.enter_async_context(http(proxy.base, era))
        client.capabilities["elicitation"] = {}  # said with each request of the modern era
        await until_there(client, [f"{BYSTANDER}__{SAFE}"])
        async with Bystander(client, rate=RATE).calling() as bystander:
            wanted = [f"{key(transport, case)}__{SAFE}" for transport, case in cases if case.lists]
            await until_there(client, wanted)
            scene = Scene(client, bystander, ledger, folder, era)
            for transport, case in cases:
                if case.lists and "call_timeout" in case.settings:
                    await scene.begin(key(transport, case))
            yield scene
        assert bystander.errors == []
    assert ledger.repeated() == []
    await ledger.until(lambda ledger: ledger.survivors() == [])
    written = [path for path in folder.iterdir() if path.suffix not in {".toml", ".json"}]
    assert not [path.name for path in written if SECRET in path.read_text(encoding="utf-8")]


async def until_there(client: RawClient, names: list[str]) -> None:
    """Until all are listed; looked at seldom, because the list is long."""
    missing = set(names)
    with anyio.move_on_after(2 * PATIENCE):
        while missing := set(names) - set(await client.names()):  # noqa: ASYNC110 - another process
            await anyio.sleep(0.25)
    assert sorted(missing) == []


@pytest.mark.each_value(cross=2)
@pytest.mark.parametrize(("transport", "case"), CASES, ids=[key(*row) for row in CASES])
async def test_a_fault_costs_its_own_call_and_nothing_else(scene: Scene, transport: str, case: Case) -> None:
    server = key(transport, case)
    said, result = await scene.called(server)

    if case.outcome is REFUSES:
        assert isinstance(result, RpcError), result
        assert re.search(case.says, result.message)
        assert SECRET not in f"{result.message} {result.data}"
    else:
        assert not isinstance(result, RpcError), result
        judge(case, server, said, result)
    executed = scene.ledger.of("call", nonce=said)
    assert len(executed) <= 1
    if not isinstance(result, RpcError):
        assert_told_truly(result, len(executed))
    if case.lives:
        await until_safe(scene, server)
    await scene.bystander.until_more()


def assert_told_truly(result: Any, executed: int) -> None:
    """The answer to a call agrees with the ledger of its server."""
    told = text_of(result) if result.get("isError") else ""
    if "is not available" in told:
        assert executed == 0, told


def judge(case: Case, server: str, said: str, result: Any) -> None:
    failed = result.get("isError") is True
    if case.outcome is ANSWERS:
        assert not failed, result
        assert text_of(result).endswith(said)
    elif case.outcome is FAILS:
        assert failed, result
        assert f"'{server}'" in text_of(result)
        assert re.search(case.says, text_of(result), re.DOTALL), text_of(result)
    elif case.outcome is RELAYS:
        assert re.search(case.says, json.dumps(result), re.DOTALL), json.dumps(result)[:500]


async def until_safe(scene: Scene, server: str) -> None:
    """The server is there: still, or again after a restart."""
    with anyio.fail_after(PATIENCE):
        while True:
            said = nonce()
            result = await scene.client.call(f"{server}__{SAFE}", {"nonce": said})
            if not result.get("isError"):
                return
            assert f"'{server}'" in text_of(result)
            await anyio.sleep(0.05)


async def test_a_call_that_times_out_is_cancelled_at_the_server(scene: Scene) -> None:
    said, _ = await scene.called("s-hang-call")

    await scene.ledger.until(lambda ledger: ledger.of("cancelled", "hang-call", nonce=said))


async def test_a_servers_request_is_refused_if_the_client_cannot_answer_it(scene: Scene) -> None:
    if scene.era == "modern":
        pytest.skip("a modern server does not ask on its own accord")
    await scene.called("s-ask-client")

    asked = scene.ledger.of("asked", "ask-client")[-4:]
    assert [entry["code"] for entry in asked] == [-32601] * 4
    assert scene.client.asked == []
    assert scene.ledger.of("pong", "ping-client")


async def test_a_server_inherits_only_a_few_variables_and_its_configured_ones(scene: Scene) -> None:
    result = (await scene.client.call("s-environment__tool_000", {"nonce": "n"}))["structuredContent"]

    given = {name for name in result["environment"] if not any(fnmatchcase(name, one) for one in INHERITED)}
    assert given == {"API_TOKEN"}
    assert result["environment"]["API_TOKEN"] == SECRET
    assert len(result["descriptors"]) <= 4, "0, 1, 2 and the one it lists with"
    assert result["group"] is True


async def test_an_old_server_is_probed_once_and_then_gets_the_handshake(scene: Scene) -> None:
    starts = scene.ledger.of("start", "die-on-discover")

    assert len(starts) == 2
    assert len(scene.ledger.of("start", "hang-discover")) == 1


def test_every_fault_mode_has_a_case() -> None:
    command = [sys.executable, "-S", str(PROGRAM), '{"modes": true}']
    modes = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    http_only = {name for name, (stage, _) in modes.items() if stage == "http"}

    # test_floods.py has the floods.
    assert {case.mode for case in STDIO} == set(modes) - http_only - {"flood"}
    assert {case.mode for case in HTTP} <= {name for name, (_, http) in modes.items() if http}
    assert http_only <= {case.mode for case in HTTP}
