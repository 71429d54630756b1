"""A principal with limits sees its part of everything, by every way, and nothing of another principal."""

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import msgspec
import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from support.proxies import Host, inside, requests_of
from support.raw_client import OWN, RpcError
from support.servers import Server, Workshop, tool
from support.tables import each

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.app.serve import web_routes
from mcp_context_proxy.context import ITEMS_IN_MEMORY, size_of
from mcp_context_proxy.front.auth import policy
from mcp_context_proxy.front.http import guarded
from mcp_context_proxy.items import ToolClass
from mcp_context_proxy.store.tables import LATEST_BYTES, RequestRow
from mcp_context_proxy.trust import Principal, Reach, Role
from mcp_context_proxy.trust.tokens import TokenBook, TokenFile
from mcp_context_proxy.web import Api, Given, Operation, routes
from mcp_context_proxy.web.inventory import Done

READS = {"annotations": {"readOnlyHint": True}}
ANNA = Principal("anna", Role.USE, (Reach(frozenset({"open"}), frozenset({ToolClass.READ})),))
OWN_TOKEN = "correct-horse-battery"


def spec(word: str) -> dict[str, Any]:
    return {
        "tools": [
            tool(f"read_{word}", f"Read the {word}", **READS),
            tool(f"write_{word}", f"Write the {word}"),
        ],
        "prompts": [{"name": f"ask_{word}", "description": f"Ask about {word}"}],
        "resources": [{"uri": f"file:///{word}", "name": word}],
        "templates": [{"uriTemplate": f"{word}://{{id}}", "name": word}],
    }


@asynccontextmanager
async def started(workshop: Workshop, mode: str, **tables: Any) -> AsyncIterator[Proxy]:
    workshop.server("open", **spec("maps"))
    workshop.server("closed", instructions="About zinc and ledgers.", **spec("ledgers"))
    workshop.server("down", settings={"enabled": False})
    async with inside(workshop.config(expose={"mode": mode}, **tables)) as opened:
        yield opened


@pytest.fixture(scope="module", params=["all", "search"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def place(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp(mode))


@pytest.fixture(scope="module")
async def proxy(place: Workshop, mode: str) -> AsyncIterator[Proxy]:
    """A proxy for all tests that leave nothing behind that another would find."""
    async with started(place, mode) as opened:
        yield opened


@pytest.fixture
def closed(place: Workshop) -> Server:
    return place.servers["closed"]


@pytest.fixture
async def fresh(workshop: Workshop) -> AsyncIterator[Proxy]:
    """A proxy that has served nobody."""
    async with started(workshop, "search") as opened:
        yield opened


async def everything(host: Host) -> str:
    """Everything that a client is shown when it lists and searches all there is, as one text."""
    methods = ["tools/list", "resources/list", "resources/templates/list", "prompts/list", "skills/list"]
    seen = [await host.request(method) for method in methods]
    for query in ("read the ledgers of zinc", "read the maps", "write_ledgers", "file ledgers"):
        arguments = {"query": query, "top_n": 50}
        seen.append(await host.call("search_available_tools", arguments))
        seen.append((await host.data("search_available_tools", arguments))["results"])
        seen.append(await host.request("tools/list", **{OWN + "query": query}))
    shown = json.dumps(seen).replace("read the ledgers of zinc", "").replace('"write_ledgers"', "")
    return shown.replace('"file ledgers"', "")


async def test_lists_and_searches_show_its_servers_and_classes_alone(proxy: Proxy, era: str) -> None:
    seen = await everything(Host(proxy, era, rights=ANNA))
    whole = await everything(Host(proxy, era))

    assert "open__read_maps" in seen
    assert "write_maps" not in seen
    for word in ("ledgers", "closed"):
        assert word in whole
        assert word not in seen


async def test_a_query_for_the_tools_of_a_server_finds_others_if_it_is_closed_off_or_nowhere(
    proxy: Proxy, era: str
) -> None:
    limited, whole = Host(proxy, era, rights=ANNA), Host(proxy, era)
    for host, name in ((limited, "closed"), (limited, "nowhere"), (whole, "down"), (whole, "nowhere")):
        told = await host.call("search_available_tools", {"query": f"all tools of {name}"})
        assert not told.get("isError"), told
        assert "open__read_maps" in str(told)


@each(
    "name",
    [
        *("closed__read_ledgers", "read_ledgers", "closed__write_ledgers", "open__write_maps", "write_maps"),
        *("closed.read_ledgers", "mcp__closed__read_ledgers"),
    ],
)
async def test_a_call_of_anything_else_is_unknown_whatever_way_is_tried(
    proxy: Proxy, closed: Server, era: str, name: str
) -> None:
    host = Host(proxy, era, rights=ANNA)
    results = [await host.call(name, {}), await host.call("call_tool", {"name": name, "arguments": {}})]
    results.append(await host.call("call_read_only_tool", {"name": name, "arguments": {}}))

    for result in results:
        assert result["isError"]
        assert f"unknown tool '{name}'" in result["content"][0]["text"]
    for said in ({"name": name, "arguments": {}}, {"name": name, "server": "closed", "x": 1}):
        written = json.dumps(said).replace("closed", "absent")
        told, other = [await host.call("call_tool", each) for each in (said, json.loads(written))]
        assert told["content"][0]["text"].replace("closed", "absent") == other["content"][0]["text"]
    assert closed.ledger.calls() == []
    assert not (await host.call("open__read_maps", {})).get("isError")


@each(
    ("method", "params"),
    [
        ("resources/read", {"uri": "file:///ledgers"}),
        ("resources/read", {"uri": "ledgers://1"}),
        ("prompts/get", {"name": "closed__ask_ledgers"}),
        ("prompts/get", {"name": "ask_ledgers"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "closed__ask_ledgers"}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "ledgers://{id}"}}),
        ("skills/get", {"uri": "skill://closed/x/SKILL.md"}),
    ],
)
async def test_nothing_of_another_server_is_read(
    proxy: Proxy, era: str, method: str, params: dict[str, Any]
) -> None:
    more = {"argument": {"name": "a", "value": ""}} if method.startswith("completion") else {}
    host = Host(proxy, era, rights=ANNA)
    with pytest.raises(RpcError) as error:
        await host.request(method, params | more)

    assert "not connected" not in str(error.value)
    if "uri" in params:
        by_model = await host.call("call_read_only_tool", {"name": params["uri"]})
        assert by_model["content"][0]["text"] == f"unknown resource {params['uri']!r}"


async def test_a_handshake_client_cannot_subscribe_to_a_resource_of_another_server(proxy: Proxy) -> None:
    host = Host(proxy, "handshake", rights=ANNA)
    with pytest.raises(RpcError):
        await host.request("resources/subscribe", {"uri": "file:///ledgers"})
    await host.request("resources/subscribe", {"uri": "file:///maps"})


async def test_nothing_is_said_about_servers_that_are_off(proxy: Proxy, era: str) -> None:
    limited = await Host(proxy, era, rights=ANNA).call("down__anything", {})
    other = await Host(proxy, era).call("down__anything", {})

    assert "switched off" not in json.dumps(limited)
    assert "switched off" in json.dumps(other)


async def test_no_query_is_read_in_words_that_only_other_servers_have(workshop: Workshop, era: str) -> None:
    workshop.server("open", tools=[tool("read_maps")])
    workshop.server("closed", tools=[tool("scan_zirconium")])
    async with inside(workshop.config(expose={"list_all_below": 0})) as proxy:
        query = {"query": "zirconiun"}
        anna = Principal("anna", Role.USE, (Reach(frozenset({"open"})),))
        corrected = await Host(proxy, era).call("search_available_tools", query)
        limited = await Host(proxy, era, rights=anna).call("search_available_tools", query)
        own = Host(proxy, era, rights=Principal("anna", Role.USE, (Reach(frozenset({"closed"})),)))
        known = await own.call("search_available_tools", query)

    for whole in (corrected, known):
        assert "closed__scan_zirconium" in json.dumps(whole)
    assert "zirconium" not in json.dumps(limited)


@each("before", [ANNA, Principal("anna", Role.USE)])
async def test_log_messages_of_servers_that_it_does_not_reach_now_do_not_reach_its_session(
    fresh: Proxy, before: Principal
) -> None:
    host = Host(fresh, "handshake", rights=before)
    host.rights = ANNA
    await host.request("tools/list")
    await relay_logs(fresh, host)

    assert [params["logger"] for _, params in host.told] == ["open", "last"]


async def relay_logs(proxy: Proxy, host: Host) -> None:
    """Have both servers log during a call of a host, and wait until it has heard of all that it is told."""
    assert host.session is not None
    for server in ("closed", "open"):
        message: Any = {"level": b'"error"', "logger": f'"{server}"'.encode(), "data": b'"zinc"'}
        parties = frozenset({host.session.party})
        proxy.open_sessions.relay(server, "notifications/message", message, parties)
    await hear_the_last(proxy, [host])


async def hear_the_last(proxy: Proxy, hosts: list[Host]) -> None:
    last: Any = {"level": b'"error"', "logger": b'"last"'}
    for host in hosts:
        assert host.session is not None
        proxy.open_sessions.notify(host.session, "notifications/message", last)
    with anyio.fail_after(30):
        while not all("'last'" in repr(host.told) for host in hosts):
            await anyio.lowlevel.checkpoint()


BERT = Principal("bert", Role.USE)
OWNER = Principal("owner", Role.ADMIN)


@each(
    ("server", "calling", "hears"),
    [
        ("open", [], []),
        ("closed", [], []),
        ("open", ["anna"], ["anna"]),
        ("open", ["anna", "bert"], []),
        ("open", ["anna", "owner"], []),
        ("open", ["anna", "anna again"], ["anna", "anna again"]),
    ],
)
async def test_log_messages_reach_those_whose_calls_they_are_about_and_those_who_may_view(
    fresh: Proxy, server: str, calling: list[str], hears: list[str]
) -> None:
    who = {"anna": ANNA, "anna again": ANNA, "bert": BERT, "owner": OWNER}
    hosts = {name: Host(fresh, "handshake", rights=rights) for name, rights in who.items()}
    for host in hosts.values():
        await host.request("tools/list")
    sessions = {name: host.session for name, host in hosts.items()}
    parties = frozenset(one.party for name, one in sessions.items() if name in calling and one is not None)
    message: Any = {"level": b'"error"', "data": b'"zinc"'}
    fresh.open_sessions.relay(server, "notifications/message", message, parties)
    await hear_the_last(fresh, [*hosts.values()])

    heard = [name for name, host in hosts.items() if "zinc" in repr(host.told)]
    assert [name for name in heard if name != "owner"] == hears
    assert ("owner" in heard) == (not calling or "owner" in calling)


class Web:
    """The REST API of a proxy in this process, and principals that ask it."""

    def __init__(self, proxy: Proxy, workshop: Workshop, *only: Operation) -> None:
        file = TokenFile(workshop.folder / "tokens.json")
        self.tokens = {name: file.add(name) for name in ("anna", "ben")} | {"owner": OWN_TOKEN}
        self.tokens["limited"] = file.add("limited", servers=["open"], classes=[ToolClass.READ])
        self.tokens["operator"] = file.add("operator", role="operate", servers=["open"])
        book = TokenBook(file)
        book.load()
        allowed = policy("127.0.0.1", 80, (), OWN_TOKEN)
        allowed = type(allowed)(allowed.hosts, allowed.token, book)
        served = routes(only) if only else web_routes(proxy)
        self.app: Starlette = guarded(served, allowed, proxy.health, proxy.config.limits)

    async def ask(self, who: str, method: str, path: str, **more: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self.tokens[who]}", "host": "localhost:80"}
        transport = httpx2.ASGITransport(app=self.app)
        async with httpx2.AsyncClient(transport=transport, timeout=60) as client:
            return await client.request(method, f"http://localhost{path}", headers=headers, **more)


@pytest.fixture
def web(proxy: Proxy, workshop: Workshop) -> Web:
    return Web(proxy, workshop)


@pytest.fixture
def fresh_web(fresh: Proxy, workshop: Workshop) -> Web:
    return Web(fresh, workshop)


async def test_a_session_whose_principal_reaches_less_since_shows_less_over_the_api(
    fresh: Proxy, fresh_web: Web, era: str
) -> None:
    """A token was replaced by one of the same name with limits; its sessions go on."""
    host = Host(fresh, era, rights=Principal("limited", Role.USE))
    await host.call("set_context", {"query": "read the ledgers"})
    *_, session = (one for one in fresh.contexts.sessions if one.principal == "limited")
    told = [
        await fresh_web.ask("limited", "GET", "/api/v1/sessions"),
        await fresh_web.ask("limited", "GET", f"/api/v1/sessions/{session.id}/context"),
        await fresh_web.ask(
            "limited", "POST", "/api/v1/context", json={"query": "scan it", "session": session.id}
        ),
        await fresh_web.ask(
            "limited",
            "PATCH",
            f"/api/v1/sessions/{session.id}/context",
            json={"add": [{"type": "tool", "name": "closed__read_ledgers"}]},
        ),
    ]

    assert [one.status_code for one in told] == [200, 200, 200, 404]
    assert not any("closed__" in one.text for one in told[:3])


async def test_no_operation_of_the_api_gives_one_principal_anything_of_another(
    fresh: Proxy, fresh_web: Web
) -> None:
    """Each operation of the OpenAPI document is asked, so that later ones are covered as well."""
    secret = "the-query-of-ben-alone"
    ben = Principal("ben", Role.USE)
    hosts = [Host(fresh, era, rights=ben) for era in ("handshake", "modern")]
    for host in hosts:
        await host.call("search_available_tools", {"query": secret})
        await host.call("open__read_maps", {"text": secret})
    await fresh_web.ask("ben", "POST", "/api/v1/context", json={"query": secret})
    own = (await fresh_web.ask("ben", "GET", "/api/v1/requests")).json()["requests"]
    session = hosts[0].session
    assert session is not None
    ids = [*(one["id"] for one in own), session.id]
    assert len(own) == 3
    described = (await fresh_web.ask("anna", "GET", "/api/v1/openapi.json")).json()
    made = requests_of(described, ids)

    assert len(made) > 16
    for method, path, body in made:
        answer = await fresh_web.ask("anna", method, path, **({} if body is None else {"json": body}))
        assert secret not in answer.text, path
        told = [one for one in ids if one in answer.text.replace(path, "").replace(f"'{one}'", "")]
        assert not told, path
        assert answer.status_code in (200, 403, 404, 422), (path, answer.text)
        if method == "DELETE":
            assert answer.status_code == 403, path


async def test_a_role_shows_nothing_of_servers_that_are_out_of_reach(workshop: Workshop) -> None:
    """Each operation of the OpenAPI document is asked, and the pages have their data from these."""
    workshop.server("closed-new", settings={"approval": "all"}, tools=[tool("weigh_ledgers")])
    workshop.server("closed-bad", settings={"command": "/nowhere/ledgers"})
    tables = {"store": {"path": str(workshop.folder / "s.sqlite3")}, "interactions": {"enabled": True}}
    async with started(workshop, "search", **tables) as proxy:
        await expect_nothing_of_others(proxy, Web(proxy, workshop))


async def expect_nothing_of_others(fresh: Proxy, fresh_web: Web) -> None:
    owner = Host(fresh, "handshake")
    await owner.call("search_available_tools", {"query": "read the zinc", "top_n": 50})
    for word in ("closed__read_ledgers", "open__read_maps"):
        await owner.call(word, {})
    await fresh_web.ask("owner", "POST", "/api/v1/servers/closed/restart")
    await fresh_web.ask("owner", "GET", "/api/v1/statistics/tools")
    requests = (await fresh_web.ask("owner", "GET", "/api/v1/requests")).json()["requests"]
    assert owner.session is not None
    chosen = f"/api/v1/sessions/{owner.session.id}/context"
    for word in ("closed__read_ledgers", "open__read_maps"):
        await fresh_web.ask("owner", "PATCH", chosen, json={"add": [{"type": "tool", "name": word}]})
    await fresh_web.ask(
        "owner", "POST", "/api/v1/presets", json={"name": "zinc", "session": owner.session.id}
    )
    ids = [*(one["id"] for one in requests), owner.session.id, "closed", "down", "closed__read_ledgers"]
    described = (await fresh_web.ask("owner", "GET", "/api/v1/openapi.json")).json()
    made = [*requests_of(described, ids), ("GET", "/api/v1/logs?server=closed", None)]
    made += [("GET", path, None) for path in ("/metrics", "/healthz", "/api/v1/audit?server=closed")]
    shown = []
    for method, path, body in made:
        told = await fresh_web.ask("operator", method, path, **({} if body is None else {"json": body}))
        text = told.text
        for asked in ids[-3:]:
            text = text.replace(f"'{asked}'", "")
        if any(word in text for word in ("closed", "ledgers", "'down", '"down')):
            shown.append((path, text))
    listed = await fresh_web.ask("operator", "GET", "/api/v1/servers")

    assert not shown
    assert [one["name"] for one in listed.json()["servers"]] == ["open"]
    for path in ("/audit", "/statistics/tools", "/requests", "/status", "/presets", "/sessions"):
        assert "open" in (await fresh_web.ask("operator", "GET", f"/api/v1{path}")).text, path


async def test_an_answer_is_looked_through_for_somebody_with_limits_in_a_thread(
    proxy: Proxy, workshop: Workshop
) -> None:
    lookers = []

    class Looked(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            lookers.append(threading.current_thread())
            return super().__iter__()

    class Looking(Api):
        @Operation("GET", "/looked", answer=Done)
        async def _look(self, given: Given) -> dict[str, Any]:
            return {"all": Looked([{"server": name} for name in ("open", "closed")])}

    told = await Web(proxy, workshop, *Looking().operations()).ask("operator", "GET", "/api/v1/looked")

    assert told.json() == {"all": [{"server": "open"}]}
    assert threading.main_thread() not in lookers


@each(
    ("method", "path"),
    [
        ("POST", "/api/v1/reindex"),
        ("POST", "/api/v1/interactions"),
        ("GET", "/api/v1/interactions"),
        ("DELETE", "/api/v1/interactions?older_than_days=0"),
        ("DELETE", "/api/v1/interactions/1"),
        ("GET", "/api/v1/audit"),
        ("GET", "/api/v1/metrics/search"),
        ("GET", "/api/v1/statistics/tools"),
        ("GET", "/api/v1/statistics/searches"),
        ("GET", "/api/v1/statistics/timeline"),
        ("GET", "/metrics"),
        ("GET", "/api/v1/presets"),
    ],
)
async def test_what_concerns_everybody_needs_an_administrator(web: Web, method: str, path: str) -> None:
    refused = await web.ask("anna", method, path)
    allowed = await web.ask("owner", method, path)

    assert refused.status_code == 403
    assert "administrator" in refused.text
    assert "administrator" not in allowed.text


async def test_no_method_gives_one_principal_anything_of_another(
    fresh: Proxy, fresh_web: Web, era: str
) -> None:
    secret = "the-query-of-ben-alone"
    ben = Host(fresh, era, rights=Principal("ben", Role.USE))
    await ben.call("search_available_tools", {"query": secret})
    made = await ben.data("set_context", {"query": secret})
    own = (await fresh_web.ask("ben", "GET", "/api/v1/requests")).json()["requests"]
    ids = [made["context_id"], *(one["id"] for one in own)]
    assert len(ids) == 3
    asked: list[tuple[str, dict[str, Any]]] = [
        ("resources/read", {"uri": f"context://{place}"})
        for place in ("requests", "current", *(f"requests/{one}" for one in ids))
    ]
    for one in ids:
        for name, arguments in {
            "read_result": {"id": one},
            "set_context": {"query": "x", "context_id": one},
            "manage_context": {"action": "list", "context_id": one},
            "recall": {"query": secret},
            "search_available_tools": {"query": "x", "context_id": one},
        }.items():
            asked.append(("tools/call", {"name": name, "arguments": arguments}))
    for method in sorted(fresh.gateway.methods - {"resources/read", "tools/call"}):
        for one in ids:
            asked.append((method, {"_meta": {OWN + "context": one}, "uri": one, "name": one, "ref": {}}))
    anna = Host(fresh, era, rights=Principal("anna", Role.USE))
    for method, params in asked:
        try:
            answer = await anna.raw(method, params)
        except RpcError as error:
            answer = f"{error}{error.data}"
        assert secret not in answer.replace(json.dumps(params), ""), (method, params)


async def test_a_former_definition_is_rendered_for_nobody_below_view(workshop: Workshop) -> None:
    """One that has changed waits for a person, and a token that is replaced by another may reach less."""
    store = {"path": str(workshop.folder / "store.sqlite3")}
    query = {"query": "read the maps", "top_n": 20}
    for text, reach in (("Read the old maps of zinc", ("open", "closed")), ("Read the new maps", ("open",))):
        workshop.server("open", tools=[tool("read_maps", text), *(tool(f"do_{n}") for n in range(9))])
        workshop.server("closed", tools=[tool("scan_maps", f"{text} in the vault")])
        async with inside(workshop.config(store=store, expose={"list_all_below": 0})) as proxy:
            web = Web(proxy, workshop)
            anna = Principal("anna", Role.USE, (Reach(frozenset(reach)),))
            await Host(proxy, "handshake", rights=anna).call("search_available_tools", query)
            (*_, first) = (await web.ask("owner", "GET", "/api/v1/requests")).json()["requests"]
            told = [
                await web.ask(who, "GET", f"/api/v1/requests/{first['id']}/text") for who in ("anna", "owner")
            ]
            (workshop.folder / "tokens.json").unlink()

    own, whole = (one.json() for one in told)
    assert "old maps of zinc" in whole["text"]
    assert "zinc" not in own["text"]
    assert "vault" not in own["text"]
    assert "open__read_maps" in own["missing"]


async def test_an_administrator_sees_the_requests_and_sessions_of_all(proxy: Proxy, web: Web) -> None:
    host = Host(proxy, "handshake", rights=Principal("ben", Role.USE))
    await host.call("search_available_tools", {"query": "a query of ben"})

    assert "a query of ben" in (await web.ask("owner", "GET", "/api/v1/requests")).text
    assert host.session is not None
    assert host.session.id in (await web.ask("owner", "GET", "/api/v1/sessions")).text


async def test_the_api_shows_a_limited_principal_its_part_alone(web: Web) -> None:
    found = (await web.ask("limited", "GET", "/api/v1/tools/search?query=read the ledgers&top_k=50")).text
    whole = (await web.ask("owner", "GET", "/api/v1/tools/search?query=read the ledgers&top_k=50")).text
    context = await web.ask("limited", "POST", "/api/v1/context", json={"query": "the ledgers of zinc"})
    server = await web.ask("limited", "GET", "/api/v1/tools/search?query=maps&server=closed")

    assert "closed__read_ledgers" in whole
    for text in (found, context.text.replace("the ledgers of zinc", "")):
        assert "closed" not in text
        assert "write_maps" not in text
    assert server.status_code == 404
    assert "closed" not in server.text.replace("'closed'", "")


async def test_health_tells_problems_to_administrators_alone(web: Web) -> None:
    assert (await web.ask("anna", "GET", "/healthz")).json() == {"status": "ok"}


async def test_calls_with_a_named_token_are_learned_and_counted_for_it_alone(fresh: Proxy, era: str) -> None:
    ben, owner = Host(fresh, era, rights=Principal("ben", Role.USE)), Host(fresh, era)
    for host in (ben, owner):
        await host.call("search_available_tools", {"query": "show me the maps"})
        await host.call("open__read_maps", {})
        assert fresh.search.use_recorder is not None
        await fresh.search.use_recorder.flush()
        if host is ben:
            taught_by_ben = [pair.owner for pair in fresh.store.learned.all()]

    assert taught_by_ben == ["ben"]
    assert fresh.statistics.usage is not None
    await fresh.statistics.usage.flush()
    counted = fresh.store.statistics.tools_by_owner()
    assert {owner: sum(one.calls for one in tools.values()) for owner, tools in counted.items()} == {
        "ben": 1,
        "": 1,
    }
    of_ben, of_all = fresh.statistics.usage.figures_of("ben"), fresh.statistics.usage.figures_of("")
    assert [one.calls for one in of_ben.values()] == [1]
    assert [one.calls for one in of_all.values()] == [2]


async def test_a_search_quotes_no_request_of_another_below_view(
    fresh: Proxy, fresh_web: Web, era: str
) -> None:
    owner = Host(fresh, era)
    await owner.call("search_available_tools", {"query": "show me the maps of zurich"})
    await owner.call("open__read_maps", {})
    assert fresh.search.use_recorder is not None
    await fresh.search.use_recorder.flush()
    query = "query=show me the maps"
    places = [f"/api/v1/search?{query}&explain=true", f"/api/v1/explain?{query}&name=open__read_maps"]
    told = [await fresh_web.ask("anna", "GET", place) for place in places]
    anna = Host(fresh, era, rights=Principal("anna", Role.USE))
    found = json.dumps(await anna.data("search_available_tools", {"query": "show me the maps"}))

    assert "used before" in told[0].text
    assert "zurich" not in told[0].text + told[1].text + found
    assert "zurich" in (await fresh_web.ask("owner", "GET", places[0])).text


async def test_one_answer_about_the_largest_contexts_and_sessions_of_a_principal_is_bounded(
    workshop: Workshop,
) -> None:
    """A program may ask for a thousand items in a context, and add as many to each of its sessions."""
    names = [f"read_map_{number}" for number in range(300)]
    workshop.server("open", tools=[tool(name, f"Read the map {name}. " * 90) for name in names])
    async with inside(workshop.config(expose={"list_all_below": 0})) as proxy:
        web, ben = Web(proxy, workshop), Host(proxy, "modern", rights=Principal("ben", Role.USE))
        every = {"top_k": 1000, "top_n": 1000, "include_score": 0}
        wanted = {"query": "read the map", "options": {"max_tokens": 10**9, "tools": every}}
        one = await web.ask("ben", "POST", "/api/v1/context", json=wanted)
        (large,) = proxy.records.recent()
        copies = [replace(large, id=f"r{number}") for number in range(120)]
        rows = [RequestRow(copy.id, copy.time, None, msgspec.json.encode(copy), "ben") for copy in copies]
        proxy.store.requests.put(rows, 1000, 0.0)
        for copy in copies:
            proxy.records.add(copy)
        requests = await web.ask("ben", "GET", "/api/v1/requests?limit=500")
        added = [{"type": "tool", "name": f"open__{name}"} for name in names]
        for _ in range(12):
            await ben.call("set_context", {"query": "read the map"})
        sessions = [one for one in proxy.contexts.sessions if one.principal == "ben"]
        for session in sessions:
            await web.ask("ben", "PATCH", f"/api/v1/sessions/{session.id}/context", json={"add": added})
        told = await web.ask("ben", "GET", "/api/v1/sessions?describe=true")

    assert size_of(large) == len(names)
    assert sum(map(size_of, proxy.records.recent())) <= ITEMS_IN_MEMORY
    assert len(one.content) < len(requests.content) < 2 * LATEST_BYTES
    newest = [session.id for session in sessions][-len(told.json()["sessions"]) :]
    assert [session["id"] for session in told.json()["sessions"]] == newest
    assert 1 < len(newest) < len(sessions)
