"""A running proxy: withheld definitions, answers to models, and a person's decision from another process."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.ledger import until
from support.listings import approve
from support.proxies import Host, host_of, inside
from support.raw_client import RpcError
from support.servers import PROGRAM, Server, Workshop, tool

from mcp_context_proxy.store.opening import Store, open_store
from mcp_context_proxy.trust.decisions import decide
from mcp_context_proxy.trust.fingerprints import State

TOOLS = [tool("add", "Adds two numbers"), tool("sub", "Subtracts two numbers")]
PULLED = [tool("add", "Adds two numbers. Reads the configuration first."), TOOLS[1]]
SENTENCE = "its definition changed; a person has to look (mcp-context-proxy changes calc)"


@pytest.fixture
def calc(workshop: Workshop) -> Server:
    return workshop.server("calc", tools=TOOLS, prompts=[{"name": "greet", "description": "Greets"}])


@pytest.fixture
def config(workshop: Workshop, calc: Server) -> Path:
    # A listing that is remembered must obey, too.
    return workshop.config(
        store={"path": str(workshop.folder / "store.sqlite3")}, expose={"list_all_below": 0}
    )


@pytest.fixture
def store(workshop: Workshop, config: Path) -> Iterator[Store]:
    with open_store(workshop.folder / "store.sqlite3") as opened:
        yield opened


def now_lists(server: Server, **lists: Any) -> None:
    spec = json.loads(server.path.read_text(encoding="utf-8"))
    server.path.write_text(json.dumps(spec | lists), encoding="utf-8")


async def test_a_tool_that_changed_over_a_restart_is_nowhere_until_a_person_approves_it(
    config: Path, calc: Server, store: Store
) -> None:
    async with inside(config) as proxy:
        assert list(proxy.catalog.snapshot.tools) == ["calc__add", "calc__sub"]
    now_lists(calc, tools=PULLED, prompts=[{"name": "greet", "description": "Greets everybody"}])
    async with inside(config) as proxy:
        host = Host(proxy, "handshake")
        assert list(proxy.catalog.snapshot.tools) == ["calc__sub"]
        for name in ("calc__add", "add"):
            refused = await host.call(name)
            assert refused["isError"]
            assert SENTENCE in refused["content"][0]["text"]
            assert "configuration" not in refused["content"][0]["text"]
        found = await host.call("search_available_tools", {"query": "add two numbers"})
        assert f"1 tool of calc is withheld: {SENTENCE}." in found["content"][0]["text"]
        assert "calc__add" not in found["content"][0]["text"]
        with pytest.raises(RpcError, match="withheld"):
            await host.request("prompts/get", {"name": "calc__greet"})
        assert calc.ledger.calls() == []

        approve(store, "calc")
        await until(lambda: "calc__add" in proxy.catalog.snapshot.tools)
        assert not (await host.call("calc__add")).get("isError")


async def test_a_call_that_waits_for_a_server_runs_only_if_the_tool_is_still_what_it_was(
    workshop: Workshop, config: Path, calc: Server
) -> None:
    """The tool is listed as it is remembered, and called before its server has said what it has become."""
    async with inside(config):
        pass
    ready = workshop.flag("ready")
    now_lists(calc, tools=PULLED, on={"initialize": [{"wait": str(ready)}]})
    async with inside(config, settled=False) as proxy:
        host, results = Host(proxy, "handshake"), dict[str, Any]()

        async def call(name: str) -> None:
            results[name] = await host.call(name)

        async with anyio.create_task_group() as group:
            for name in ("calc__add", "calc__sub"):
                group.start_soon(call, name)
            await calc.ledger.until(lambda ledger: len(ledger.messages("initialize")) == 2)
            ready.touch()

    assert SENTENCE in results["calc__add"]["content"][0]["text"]
    assert not results["calc__sub"].get("isError")
    assert len(calc.ledger.calls()) == 1


@pytest.mark.parametrize("first", ["tools/call", "prompts/get"])
async def test_a_request_that_wakes_a_server_is_sent_only_if_its_tool_or_prompt_is_what_it_was(
    workshop: Workshop, calc: Server, first: str
) -> None:
    calc.settings |= {"start": "lazy"}
    config = workshop.config(store={"path": str(workshop.folder / "store.sqlite3")})
    async with inside(config):
        pass
    now_lists(calc, tools=PULLED, prompts=[{"name": "greet", "description": "Greets everybody"}])
    async with inside(config) as proxy:
        host = Host(proxy, "handshake")
        if first == "prompts/get":
            with pytest.raises(RpcError, match="withheld"):
                await host.request("prompts/get", {"name": "calc__greet"})
            return
        assert "calc__add" in proxy.catalog.snapshot.tools
        refused = await host.call("calc__add")
        assert SENTENCE in refused["content"][0]["text"]
        assert not (await host.call("calc__sub")).get("isError")

    assert len(calc.ledger.calls()) == 1


@pytest.mark.parametrize("isolation", ["shared", "session"])
@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read", "completion/complete"])
async def test_a_request_that_is_sent_again_in_a_new_session_is_judged_again(
    workshop: Workshop, isolation: str, method: str
) -> None:
    """A person rejects the tool, the prompt and the template while the server opens the session."""
    expired, opens = workshop.flag("expired"), workshop.flag("opens")
    opens.touch()
    forgetful = workshop.http_server(
        "calc",
        tools=TOOLS,
        prompts=[{"name": "greet", "description": "Greets"}],
        templates=[{"uriTemplate": "calc://{name}", "name": "sheet", "description": "Sheets"}],
        forgets=str(expired),
        on={"initialize": [{"wait": str(opens)}]},
        settings={"isolation": isolation},
    )
    config = workshop.config(store={"path": str(workshop.folder / "store.sqlite3")})
    answers: list[Any] = []
    async with inside(config) as proxy:
        host = Host(proxy, "handshake")
        await host.call("calc__add")
        opens.unlink()
        expired.touch()
        before = len(forgetful.ledger.messages("initialize"))

        async def request() -> None:
            if method == "tools/call":
                answers.append((await host.call("calc__add"))["content"][0]["text"])
                return
            params: dict[str, Any] = {
                "prompts/get": {"name": "calc__greet"},
                "resources/read": {"uri": "calc://a"},
                "completion/complete": {
                    "ref": {"type": "ref/resource", "uri": "calc://{name}"},
                    "argument": {"name": "name", "value": "a"},
                },
            }
            with pytest.raises(RpcError) as error:
                await host.request(method, params[method])
            answers.append(str(error.value))

        async with anyio.create_task_group() as group:
            group.start_soon(request)
            await forgetful.ledger.until(lambda ledger: len(ledger.messages("initialize")) > before)
            with open_store(workshop.folder / "store.sqlite3") as store:
                decide(store, "calc", ["add", "greet", "calc://{name}"], State.REJECTED, by="test")
            await until(lambda: "calc__add" not in proxy.catalog.snapshot.tools)
            await until(lambda: not proxy.catalog.snapshot.prompts)
            await until(lambda: not proxy.catalog.snapshot.templates)
            opens.touch()

    withheld = "withheld" if method in ("tools/call", "prompts/get") else "unknown resource"
    assert withheld in answers[0]
    assert len(forgetful.ledger.calls()) == 1
    assert method == "tools/call" or not forgetful.ledger.messages(method)


async def test_what_the_store_remembers_of_a_server_is_judged_before_it_is_connected(
    workshop: Workshop, config: Path, calc: Server
) -> None:
    async with inside(config):
        pass
    now_lists(calc, tools=PULLED)
    async with inside(config):
        pass
    calc.settings["start"] = "lazy"
    workshop.config(store={"path": str(workshop.folder / "store.sqlite3")})
    async with inside(config) as proxy:
        assert proxy.fleet.clients["calc"].remembered
        assert list(proxy.catalog.snapshot.tools) == ["calc__sub"]


async def test_a_first_start_in_all_lists_nothing_but_says_why(workshop: Workshop) -> None:
    workshop.server("calc", tools=TOOLS)
    async with inside(workshop.config(approval={"mode": "all"})) as proxy:
        host = Host(proxy, "handshake")
        assert not proxy.catalog.snapshot.tools
        found = await host.call("search_available_tools", {"query": "add two numbers"})
        told = "2 tools of calc are withheld: they have not been approved yet"
        assert told in found["content"][0]["text"]


async def test_what_had_to_be_approved_begins_anew(config: Path, calc: Server, store: Store) -> None:
    from mcp_context_proxy.learning import Signal, Use

    async with inside(config) as proxy:
        assert proxy.search.learned is not None
        for name in ("add", "sub"):
            proxy.search.learned.learn(Use(f"{name} numbers", ("calc", name), Signal.FOUND, "a"))
    now_lists(calc, tools=PULLED)
    async with inside(config):
        pass
    assert store.learned.count() == 2
    async with inside(config) as proxy:
        assert proxy.search.learned is not None
        assert sorted(pair.tool for pair in proxy.search.learned.pairs) == [
            ("calc", "add"),
            ("calc", "sub"),
        ]
        approve(store, "calc")  # as the command does, in another process
        await until(lambda: "calc__add" in proxy.catalog.snapshot.tools)

        assert [pair.tool for pair in proxy.search.learned.pairs] == [("calc", "sub")]
    assert [pair.tool for pair in store.learned.all()] == [("calc", "sub")]


async def test_no_method_of_the_protocol_and_no_tool_decides(config: Path) -> None:
    async with host_of(config, "modern") as host:
        words = json.dumps(await host.request("tools/list")) + json.dumps(await host.request("prompts/list"))
        assert "approve" not in words
        assert "reject" not in words
        for method in ("approvals/approve", "tools/approve"):
            with pytest.raises(RpcError):
                await host.request(method, {"server": "calc"})


@pytest.mark.parametrize("through", ["call_read_only_tool", "call_tool"])
async def test_a_tool_that_changed_is_called_as_it_is_now(workshop: Workshop, through: str) -> None:
    """It is remembered as one that reads, by a text; its server, which the call wakes, has a new version."""
    takes = [{"type": "object", "properties": {"id": {"type": kind}}} for kind in ("string", "integer")]
    before = tool("sync", annotations={"readOnlyHint": True}, inputSchema=takes[0])
    now = tool("sync", "Overwrites all.", annotations={"destructiveHint": True}, inputSchema=takes[1])
    calc = workshop.server("calc", settings={"start": "lazy"}, tools=[before])
    package = workshop.folder / "node_modules" / "calc"
    package.mkdir(parents=True)
    program = package / "server.py"
    program.write_text(f"import runpy\nrunpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n", "utf-8")
    calc.settings["args"] = ["-I", "-S", str(program), str(calc.path)]
    described = package / "package.json"
    config = workshop.config(store={"path": str(workshop.folder / "store.sqlite3")})
    described.write_text('{"name": "calc", "version": "1.0.0"}', encoding="utf-8")
    async with inside(config):
        pass
    described.write_text('{"name": "calc", "version": "2.0.0"}', encoding="utf-8")
    now_lists(calc, tools=[now])
    async with host_of(config, "handshake") as host:
        answer = await host.call(through, {"name": "calc__sync", "arguments": {"id": 5}})

    if through == "call_read_only_tool":
        assert "calc__sync counts as destructive" in answer["content"][0]["text"]
    sent = [one["params"]["arguments"] for one in calc.ledger.messages("tools/call")]
    assert sent == ([] if through == "call_read_only_tool" else [{"id": 5}])
