"""Lists of hostile servers: good tools are listed, bad ones are withheld, nothing is fetched or expanded."""

import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.harness import SAFE, Ledger, faulty, nonce
from support.ledger import PATIENCE, until
from support.listings import approve_in
from support.proxies import Host, command, host_of, inside
from support.servers import Workshop
from support.wires import stdio

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.protocol.strangers import clean

GOOD = {"tool_000", "tool_001", "tool_002", SAFE}
VALID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@pytest.fixture
def canary() -> Iterator[socket.socket]:
    """A port that nobody has a reason to connect to."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.0)
        yield listener


def untouched(canary: socket.socket) -> bool:
    try:
        canary.accept()
    except BlockingIOError:
        return True
    return False


class Listing:
    """A proxy's list with one faulty server behind it."""

    def __init__(self, proxy: Proxy, tools: list[dict[str, Any]]) -> None:
        self.tools = {tool["name"]: tool for tool in tools}
        self.findings = proxy.catalog.snapshot.findings
        self.text = json.dumps(tools, ensure_ascii=False)


async def listing(
    folder: Path, mode: str, limits: dict[str, Any] | None = None, *, waits: bool = False, **options: Any
) -> Listing:
    """The list of a proxy; with `waits` of a server whose definitions a person has to approve first."""
    workshop = Workshop(folder)
    workshop.server("odd").settings = faulty(mode, folder / "ledger", **options)
    async with inside(workshop.config(expose={"mode": "all"}, limits=limits or {})) as proxy:
        host = Host(proxy, "modern")
        if waits:
            approve_in(proxy, "odd")
        result = await host.request("tools/list")
        said = nonce()
        assert (await host.call(f"odd__{SAFE}", {"nonce": said}))["content"][0]["text"] == said
        return Listing(proxy, result["tools"])


def shows(found: Listing, *names: str) -> bool:
    return {f"odd__{name}" for name in (*GOOD, *names)} <= set(found.tools)


async def test_invalid_entries_do_not_affect_valid_tools(tmp_path: Path) -> None:
    found = await listing(tmp_path, "bad-tools")

    assert shows(found)
    assert len([finding for finding in found.findings if "withheld" in finding]) == 6


async def test_invalid_names_are_replaced_and_calls_use_the_original_ones(tmp_path: Path) -> None:
    workshop, ledger = Workshop(tmp_path), Ledger(tmp_path / "ledger")
    workshop.server("odd").settings = faulty("bad-names", ledger.path)
    async with inside(workshop.config(expose={"mode": "all"})) as proxy:
        host = Host(proxy, "modern")
        tools = proxy.catalog.snapshot.tools
        assert all(VALID.fullmatch(name) for name in await host.names())
        for name in tools:
            assert "isError" not in await host.call(name, {"nonce": name})

    called = {entry["nonce"]: entry["tool"] for entry in ledger.of("call")}
    assert called == {name: tool.name for name, tool in tools.items()}
    assert {"a b", "naïve", "名前", "a/b", "x" * 300, "a__b"} <= set(called.values())


async def test_a_name_that_comes_twice_is_listed_once(tmp_path: Path) -> None:
    found = await listing(tmp_path, "duplicate-names")

    assert shows(found)
    assert found.tools["odd__tool_000"]["description"] == "Says tool_000"
    assert any("second tool" in finding for finding in found.findings)


async def test_no_listed_text_has_invisible_characters(tmp_path: Path) -> None:
    found = await listing(tmp_path, "hostile-unicode", waits=True)

    assert shows(found, "hostile")
    assert clean(found.text) == found.text
    assert found.tools["odd__hostile"]["description"] == "Plays the flute"


async def test_a_tool_with_hidden_characters_is_found_by_what_can_be_read(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.server("odd").settings = faulty("hostile-unicode", tmp_path / "ledger")
    async with inside(workshop.config()) as proxy:
        assert "odd__hostile" not in proxy.catalog.snapshot.tools
        approve_in(proxy, "odd")
        answer = await Host(proxy, "modern").data("search_available_tools", {"query": "play the flute"})

    assert answer["results"][0]["name"] == "odd__hostile"
    assert clean(json.dumps(answer, ensure_ascii=False)) == json.dumps(answer, ensure_ascii=False)


async def test_a_description_of_a_megabyte_is_cut(tmp_path: Path) -> None:
    found = await listing(tmp_path, "giant-description", size=1 << 20)

    assert shows(found)
    assert len(found.tools["odd__tool_000"]["description"]) < 17_000


async def test_recursive_schemas_are_never_expanded_and_references_never_fetched(
    tmp_path: Path, canary: socket.socket
) -> None:
    url = f"http://127.0.0.1:{canary.getsockname()[1]}/"
    with anyio.fail_after(PATIENCE):
        found = await listing(tmp_path, "schema-bomb", canary_url=url)

    assert shows(found, "doubling", "remote", "cyclic", "redos")
    assert found.tools["odd__remote"]["inputSchema"]["properties"]["nonce"] == {"$ref": url + "schema.json"}
    assert not {"odd__wide", "odd__enum"} & set(found.tools)
    assert untouched(canary)


async def test_a_schema_that_is_too_deep_withholds_its_own_tool_only(tmp_path: Path) -> None:
    found = await listing(tmp_path, "deep-schema", depth=300)

    assert shows(found)
    assert "odd__deep" not in found.tools


@pytest.mark.parametrize("mode", ["endless-pages", "same-cursor"])
async def test_an_endless_list_of_pages_is_cut(tmp_path: Path, mode: str) -> None:
    found = await listing(tmp_path, mode, limits={"pages": 20})

    assert shows(found)
    assert any("stopped" in finding for finding in found.findings)


async def test_slow_pages_share_the_timeout_of_one_listing_and_those_that_came_are_served(
    tmp_path: Path,
) -> None:
    workshop, ledger = Workshop(tmp_path), Ledger(tmp_path / "ledger")
    workshop.server("odd").settings = faulty("slow-list", ledger.path, delay=0.4, tools=40, page_size=2)
    async with inside(workshop.config(limits={"list_seconds": 1.0})) as proxy:
        snapshot = proxy.catalog.snapshot

    # Each came in less than half of that, all would take eight times as long.
    assert any("did not answer" in finding for finding in snapshot.findings)
    assert 0 < len(snapshot.tools) < 40
    assert len(ledger.of("list")) < 20


async def test_tools_over_the_limit_are_withheld_with_a_warning(tmp_path: Path) -> None:
    found = await listing(tmp_path, "normal", limits={"tools": 10}, tools=50, safe_first=True)

    assert len([name for name in found.tools if name.startswith("odd__")]) == 10
    assert any("tools over 10" in finding for finding in found.findings)


async def test_links_in_a_result_are_passed_on_and_never_followed(
    tmp_path: Path, canary: socket.socket
) -> None:
    workshop = Workshop(tmp_path)
    workshop.server("odd").settings = faulty("hostile-result", tmp_path / "ledger")
    async with host_of(workshop.config(), "modern") as host:
        result = await host.call("odd__tool_000", {"nonce": "n"})
        for uri in ("file:///etc/passwd", f"http://127.0.0.1:{canary.getsockname()[1]}/"):
            with pytest.raises(Exception, match=r"-32602: .*unknown resource"):
                await host.request("resources/read", {"uri": uri})

    assert next(part["uri"] for part in result["content"][1:]) == "file:///etc/passwd"
    assert untouched(canary)


async def test_a_flapping_list_is_fetched_once_a_second_and_announced_less_often(
    tmp_path: Path,
) -> None:
    workshop, ledger = Workshop(tmp_path), Ledger(tmp_path / "ledger")
    workshop.server("odd").settings = faulty("flap-list", ledger.path, delay=4.0, rate=200)
    async with stdio(command(workshop.config(expose={"mode": "all"}))) as client:
        await ledger.until(lambda ledger: ledger.of("settled"))
        lists = [entry["at"] for entry in ledger.of("list")]
        told, took = client.notified("notifications/tools/list_changed"), time.time() - lists[0]

    # Two hundred notices came each second, of at least four.
    assert len(lists) <= took + 3
    assert all(after - before >= 0.9 for before, after in pairwise(lists[1:]))
    # Half a second to settle and two to pause.
    assert 1 <= len(told) <= took / 2 + 1


@pytest.mark.parametrize("mode", ["hang-list", "error-list"])
async def test_if_a_list_cannot_be_fetched_again_the_last_one_stays(tmp_path: Path, mode: str) -> None:
    workshop, ledger = Workshop(tmp_path), Ledger(tmp_path / "ledger")
    workshop.server("odd").settings = faulty(mode, ledger.path, after=1)
    limits = {"list_seconds": 0.5}
    async with inside(workshop.config(expose={"mode": "all"}, limits=limits)) as proxy:
        host = Host(proxy, "modern")
        for _ in range(2):
            await host.call("odd__tool_000", {"nonce": "n"})
        await ledger.until(lambda ledger: len(ledger.of("list")) == 2)

        assert {f"odd__{name}" for name in GOOD} <= set(await host.names())
        assert "isError" not in await host.call(f"odd__{SAFE}", {"nonce": "n"})
        # It is marked as what it is, and asked for again although nothing announces another change.
        await until(lambda: any("the old one stays" in told for told in proxy.catalog.snapshot.findings))
        answer = await host.data("search_available_tools", {"query": "says safe"})
        assert "last known" in answer["note"]
        await ledger.until(lambda ledger: len(ledger.of("list")) >= 3)


async def test_tools_of_servers_with_confusable_names_stay_distinct(tmp_path: Path) -> None:
    workshop, ledger = Workshop(tmp_path), Ledger(tmp_path / "ledger")
    for name in ("a", "a_", "b"):
        workshop.server(name).settings = faulty("bad-names", ledger.path, name=name)
    async with inside(workshop.config(expose={"mode": "all"})) as proxy:
        host = Host(proxy, "modern")
        for name in proxy.catalog.snapshot.tools:
            await host.call(name, {"nonce": name})
        pids = {client.name: client.config.name for client in proxy.fleet.clients.values()}
        owners = {name: tool.server for name, tool in proxy.catalog.snapshot.tools.items()}

    by_pid: dict[int, set[str]] = {}
    for entry in ledger.of("call"):
        by_pid.setdefault(entry["pid"], set()).add(owners[entry["nonce"]])
    assert len(by_pid) == len(pids) == 3
    assert all(len(served) == 1 for served in by_pid.values())


async def test_a_server_that_sends_only_garbage_is_given_up(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    program = "import sys\nfor _ in range(3000): print('hello')\nsys.stdout.flush()\nsys.stdin.read()"
    workshop.server("odd").settings = {"command": sys.executable, "args": ["-S", "-c", program]}
    async with inside(workshop.config()) as proxy:
        assert "1,000 lines in a row that are no messages" in proxy.fleet.clients["odd"].cause
