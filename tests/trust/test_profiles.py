"""Profiles: each kind of client gets its part of everything, by every way, and nothing of another's."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx2
import msgspec
import pytest
from msgspec.structs import replace
from support.proxies import Host, http_proxy, inside
from support.raw_client import OWN, RpcError
from support.servers import Workshop, tool
from support.shop import environment

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.app.serve import web_routes
from mcp_context_proxy.cli import pins
from mcp_context_proxy.cli.pins import Level
from mcp_context_proxy.config import load
from mcp_context_proxy.config.tables import ClientConfig
from mcp_context_proxy.context.presets import ChosenItem, SavedPreset
from mcp_context_proxy.errors import ConfigError
from mcp_context_proxy.front.http import LocalApi
from mcp_context_proxy.items import Kind
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.server import ConnectedHost, UnknownProfileError
from mcp_context_proxy.system.threads import assigned
from mcp_context_proxy.trust import (
    ACTING,
    THE_USER,
    Principal,
    Profile,
    Reach,
    Role,
    person_in,
    profile_in,
)
from mcp_context_proxy.trust.tokens import FILE_NAME, TokenFile

READS = {"annotations": {"readOnlyHint": True}}
DELETES = {"annotations": {"destructiveHint": True}}

CODING: dict[str, Any] = {
    "client": ["Claude-C*"],
    "agent": ["builder"],
    "servers": ["code"],
    "documents": ["commits"],
    "expose": "all",
    "presets": ["conservative"],
    "classes": {"destructive": "ask"},
}
CHAT: dict[str, Any] = {
    "client": ["chat*"],
    "tokens": ["bound"],
    "servers": ["no*"],
    "tools": ["notes__read_*", "notes__drop_*"],
    "documents": ["to*"],
    "expose": "search",
    "presets": ["aggressive"],
}

SECRETS = {"coding": ("maps", "branch"), "chat": ("ledgers", "polite")}
"""Words that only the other profile's servers and documents have."""


def spec(word: str) -> dict[str, Any]:
    return {
        "tools": [
            tool(f"read_{word}", f"Read the {word}", **READS),
            tool(f"write_{word}", f"Write the {word}"),
            tool(f"drop_{word}", f"Delete the {word}", **DELETES),
        ],
        "prompts": [{"name": f"ask_{word}", "description": f"Ask about {word}"}],
        "resources": [{"uri": f"file:///{word}", "name": word}],
        "templates": [{"uriTemplate": f"{word}://{{id}}", "name": word}],
    }


def document(name: str, text: str) -> str:
    return f"---\nname: {name}\ndescription: {text}\n---\n{text}\n"


@pytest.fixture(scope="module")
async def proxy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    """A proxy for a coding host and a chat host."""
    workshop = Workshop(tmp_path_factory.mktemp("profiles"))
    workshop.server("code", instructions="About ledgers.", **spec("ledgers"))
    workshop.server("notes", instructions="About maps.", **spec("maps"))
    rules = workshop.folder / "rules"
    rules.mkdir()
    (rules / "commits.md").write_text(document("commits", "Read the polite words of each commit."))
    (rules / "tone.md").write_text(document("tone", "Read each branch of the tone."))
    skill = rules / "branching"
    skill.mkdir()
    (skill / "SKILL.md").write_text(document("branching", "How to branch politely."))
    config = workshop.config(
        expose={"list_all_below": 0},
        documents=[{"path": str(rules), "kind": "rule"}],
        interactions={"enabled": True, "recall_tool": True},
        context={"manage_tool": True, "set_context_tool": True},
        clients={"coding": CODING, "chat": CHAT},
    )
    async with inside(config) as opened:
        yield opened
    workshop.close()


def host(proxy: Proxy, era: str, name: str, **more: Any) -> Host:
    made = Host(proxy, era, **more)
    made.client_info = envelope.raw({"name": name, "version": "1"})
    return made


@pytest.fixture
def coding(proxy: Proxy, era: str) -> Host:
    return host(proxy, era, "claude-code")


@pytest.fixture
def chat(proxy: Proxy, era: str) -> Host:
    return host(proxy, era, "Chatty")


async def everything(client: Host) -> str:
    methods = ["tools/list", "resources/list", "resources/templates/list", "prompts/list", "skills/list"]
    seen = [await client.request(method) for method in methods]
    for query in ("read the ledgers", "read the maps", "a polite branch"):
        seen.append(await client.call("search_available_tools", {"query": query, "top_n": 50}))
        seen.append(await client.request("tools/list", **{OWN + "query": query}))
        prompt = {"name": "with_context", "arguments": {"query": query}}
        seen.append((await client.request("prompts/get", prompt))["messages"][:-1])
        seen.append((await client.data("search_available_tools", {"query": query, "top_n": 50}))["results"])
    return json.dumps(seen)


async def test_each_profile_lists_and_finds_its_own_alone(coding: Host, chat: Host) -> None:
    to_code, to_chat = await everything(coding), await everything(chat)

    for word in (
        "code__read_ledgers",
        "code__write_ledgers",
        "code__ask_ledgers",
        "file:///ledgers",
        "commits",
    ):
        assert word in to_code
        assert word not in to_chat
    for word in ("notes__read_maps", "notes__ask_maps", "file:///maps", "tone"):
        assert word in to_chat
        assert word not in to_code
    assert "write_maps" not in to_chat
    assert "branching" not in to_code + to_chat


@pytest.mark.parametrize("name", ["notes__read_maps", "read_maps", "notes__write_maps"])
async def test_no_tool_of_another_profile_is_called_by_any_way(coding: Host, name: str) -> None:
    results = [await coding.call(name), await coding.call("call_tool", {"name": name, "arguments": {}})]
    results.append(await coding.call("call_read_only_tool", {"name": name, "arguments": {}}))

    for result in results:
        assert result["isError"]
        assert f"unknown tool '{name}'" in result["content"][0]["text"]
    assert not (await coding.call("read_ledgers")).get("isError")


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/read", {"uri": "file:///maps"}),
        ("resources/read", {"uri": "maps://1"}),
        ("resources/read", {"uri": "rule://tone"}),
        ("resources/read", {"uri": "skill://user/branching/SKILL.md"}),
        ("skills/get", {"uri": "skill://user/branching/SKILL.md"}),
        ("prompts/get", {"name": "notes__ask_maps"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "notes__ask_maps"}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "maps://{id}"}}),
    ],
)
async def test_nothing_of_another_profile_is_read_or_completed(
    coding: Host, chat: Host, method: str, params: dict[str, Any]
) -> None:
    more = {"argument": {"name": "a", "value": ""}} if method.startswith("completion") else {}
    with pytest.raises(RpcError):
        await coding.request(method, params | more)
    if "branching" not in str(params):
        assert await chat.request(method, params | more)


async def test_a_client_without_a_profile_gets_everything(proxy: Proxy, era: str) -> None:
    seen = await everything(host(proxy, era, "other"))

    assert "notes__write_maps" in seen
    assert "code__write_ledgers" in seen
    assert "branching" in seen


async def test_the_list_has_the_mode_of_the_profile(coding: Host, chat: Host) -> None:
    assert {"code__read_ledgers", "code__write_ledgers"} <= set(await coding.names())
    assert not any("maps" in name for name in await chat.names())


async def test_a_preset_of_the_profile_says_how_much_is_selected(
    coding: Host, chat: Host, proxy: Proxy
) -> None:
    for client, most in ((coding, 10), (chat, 3)):
        await client.call("search_available_tools", {"query": "read something"})
        latest = next(proxy.records.recent())
        assert latest.options.tools.top_n == most


async def test_a_person_is_asked_where_the_profile_demands_it(proxy: Proxy) -> None:
    coding, other = host(proxy, "handshake", "claude-code"), host(proxy, "handshake", "other")
    asked = await coding.call("code__drop_ledgers")

    assert "clients.coding.classes.destructive" in asked["content"][0]["text"]
    assert not (await other.call("code__drop_ledgers")).get("isError")


async def test_a_tool_whose_class_the_profile_never_allows_is_neither_found_nor_called(
    workshop: Workshop, era: str
) -> None:
    server = workshop.server("notes", tools=[tool("drop_notes", **DELETES), tool("read_notes", **READS)])
    reader = {"client": ["reader"], "classes": {"destructive": "never"}}
    async with inside(workshop.config(expose={"mode": "all"}, clients={"reader": reader})) as proxy:
        client = host(proxy, era, "reader")
        listed = await client.names()
        found = await client.call("search_available_tools", {"query": "drop notes"})
        refused = await client.call("notes__drop_notes")

    assert "notes__read_notes" in listed
    assert "drop_notes" not in json.dumps([listed, found])
    assert refused["isError"]
    assert not server.ledger.calls("drop_notes")


def test_a_principal_with_a_profile_is_told_apart_from_one_with_such_a_name() -> None:
    anna = Principal("anna", Role.USE)

    assert profile_in(anna.within(Profile("desk")).name) == "desk"
    assert profile_in(THE_USER.within(Profile("desk")).name) == "desk"
    assert profile_in("annaprofile:desk") is None
    assert anna.within(Profile("desk")).person == person_in("anna profile:desk") == "anna"


def test_a_limit_too_small_to_be_divided_leaves_one_for_each() -> None:
    anna = Principal("anna", Role.USE)

    assert [anna.share(whole) for whole in (1, 2, 9)] == [1, 1, 4]
    assert THE_USER.share(9) == 9


async def test_requests_are_recorded_apart(coding: Host, chat: Host) -> None:
    await chat.call("search_available_tools", {"query": "zebra crossings"})
    for client, there in ((chat, True), (coding, False)):
        read = await client.request("resources/read", {"uri": "context://requests"})
        assert ("zebra crossings" in json.dumps(read)) is there


async def test_a_handle_of_another_profile_is_unknown(coding: Host, chat: Host) -> None:
    made = await chat.data("set_context", {"query": "read the maps"})
    used = await coding.call("search_available_tools", {"query": "x", "context_id": made["context_id"]})

    assert "unknown or expired context_id" in used["content"][0]["text"]


async def test_what_one_profile_did_is_not_recalled_by_another(proxy: Proxy, era: str) -> None:
    clients = {name: host(proxy, era, name) for name in ("claude-code", "chat")}
    query = f"purple walrus of the {era} era"
    await clients["chat"].call("search_available_tools", {"query": query})
    assert proxy.interactions is not None
    await proxy.interactions.recorder.drain()
    for name, there in (("chat", True), ("claude-code", False)):
        found = await clients[name].data("recall", {"query": query})
        assert (query in json.dumps(found["results"])) is there


async def test_log_messages_and_changed_lists_reach_the_profile_of_their_server(workshop: Workshop) -> None:
    tools = [tool("read_ledgers"), tool("read_books")]
    workshop.server("code", tools=tools[:1], calls={"read_ledgers": [{"set": {"tools": tools}}]})
    workshop.server("notes", tools=[tool("read_maps")])
    config = workshop.config(clients={"coding": CODING, "chat": CHAT})
    async with inside(config) as proxy:
        clients = {name: host(proxy, "handshake", name) for name in ("claude-code", "chat")}
        for client in clients.values():
            await client.names()
        message: Any = {"level": b'"error"', "data": b'"x"'}
        proxy.open_sessions.relay("code", "notifications/message", message, frozenset())
        await clients["claude-code"].call("code__read_ledgers")
        with anyio.fail_after(30):
            while len(clients["claude-code"].told) < 2:
                await anyio.lowlevel.checkpoint()
        assert {method for method, _ in clients["claude-code"].told} == {
            "notifications/message",
            "notifications/tools/list_changed",
        }
        assert clients["chat"].told == []


def test_an_unknown_profile_serves_nothing(proxy: Proxy) -> None:
    profiles = proxy.gateway.profiles
    nobody = profiles.named(THE_USER, "typo")

    assert not nobody.reaches("code")
    with pytest.raises(UnknownProfileError, match=r"\[clients\.typo\]"):
        profiles.of_request(THE_USER, "typo", None)


async def test_a_host_that_names_an_unknown_profile_is_told_so(proxy: Proxy, era: str) -> None:
    nobody = host(proxy, era, "x", rights=proxy.gateway.profiles.named(THE_USER, "typo"))
    with pytest.raises(RpcError, match="there is no profile 'typo'"):
        await nobody.names()


async def test_a_client_without_a_server_is_not_told_to_configure_one(workshop: Workshop, era: str) -> None:
    workshop.server("code", **spec("ledgers"))
    async with inside(workshop.config(clients={"reader": {"servers": []}})) as proxy:
        reader = host(proxy, era, "x", rights=proxy.gateway.profiles.named(THE_USER, "reader"))
        with assigned(ACTING, reader.rights):
            said = proxy.instructions()
        asked = ({"query": "all tools"}, {"query": "the tone"})
        answers = [await reader.call("search_available_tools", arguments) for arguments in asked]

    for text in (said, *(answer["content"][0]["text"] for answer in answers)):
        assert "No server is open to this client" in text
        assert "No server is configured" not in text


def test_a_token_that_is_bound_to_a_profile_has_it_at_every_address(proxy: Proxy) -> None:
    profiles, bound = proxy.gateway.profiles, Principal("bound", False)

    for wanted in (None, "chat"):
        rights = profiles.of_request(bound, wanted, "builder")
        assert not rights.reaches("code")
        # Nor does another name in the introduction change anything.
        assert profiles.of_client(rights, envelope.raw({"name": "claude-code"})) == rights
    with pytest.raises(UnknownProfileError, match="bound to the profile 'chat'"):
        profiles.of_request(bound, "coding", None)


def test_the_limits_of_a_token_stay_in_a_profile(proxy: Proxy) -> None:
    limited = Principal("anna", Role.USE, (Reach(frozenset({"notes"})),))
    rights = proxy.gateway.profiles.of_request(limited, "coding", None)

    assert not rights.reaches("notes")
    assert not rights.reaches("code")


class Web:
    """The REST API over the local socket, as agents and commands ask it."""

    def __init__(self, proxy: Proxy) -> None:
        self.app = LocalApi(web_routes(proxy), proxy.health, proxy.config.limits).app

    async def ask(self, method: str, path: str, agent: str | None = None, **more: Any) -> httpx2.Response:
        transport = httpx2.ASGITransport(app=self.app)
        headers = {} if agent is None else {"X-Agent-Name": agent}
        async with httpx2.AsyncClient(transport=transport, timeout=60) as client:
            return await client.request(method, f"http://localhost/api/v1{path}", headers=headers, **more)


async def test_an_agent_gets_its_profile_over_rest(proxy: Proxy) -> None:
    web = Web(proxy)
    for path in (
        "/tools",
        "/tools/search?query=read+the+maps&top_k=50",
        "/servers",
        "/sessions",
        "/requests",
    ):
        seen = (await web.ask("GET", path, "Builder")).text.replace("read the maps", "")
        assert "maps" not in seen, path
        assert '"notes"' not in seen, path
    assert "read_maps" in (await web.ask("GET", "/tools")).text
    built = await web.ask("POST", "/context", "builder", json={"query": "read maps and ledgers"})
    assert "read_ledgers" in built.text
    assert "read_maps" not in built.text


async def test_an_agent_in_a_profile_recalls_its_own_interactions_alone(proxy: Proxy) -> None:
    web = Web(proxy)
    said = {"content": "The heron likes mangoes."}
    assert (await web.ask("POST", "/interactions", "builder", json=said)).status_code == 200
    own = await web.ask("GET", "/interactions?query=heron+mangoes", "builder")
    others = await web.ask("GET", "/interactions?query=heron+mangoes", "chatter")
    chat = host(proxy, "handshake", "chat")

    assert "heron" in own.text
    assert "heron" in others.text, "whoever has no profile is the user, who sees everybody's"
    assert "heron likes" not in json.dumps(await chat.data("recall", {"query": "heron mangoes"}))
    assert (await web.ask("DELETE", "/interactions?older_than_days=0", "builder")).status_code == 403


async def test_the_hook_gives_the_facts_of_the_profile_of_its_host(proxy: Proxy) -> None:
    web, session = Web(proxy), host(proxy, "handshake", "chat").session
    assert session is not None
    rights = proxy.gateway.profiles.of_client(THE_USER, envelope.raw({"name": "chat"}))
    proxy.hosts = lambda: [
        ConnectedHost(name="chat", version="1", since=time.time(), host_session="s", rights=rights)
    ]
    body = {"prompt": "read the ledgers and read the maps", "session": "s"}
    connected = (await web.ask("POST", "/prompt", json=body)).json()
    proxy.hosts = list
    by_name = (await web.ask("POST", "/prompt", json=body | {"host": "claude-code"})).json()

    assert "notes__read_maps" in connected["text"]
    assert "ledgers" not in connected["text"].replace(body["prompt"], "")
    assert "maps" not in by_name["text"].replace(body["prompt"], "")


async def test_a_preset_brings_nothing_that_its_profile_does_not_have(workshop: Workshop, era: str) -> None:
    workshop.server("code", **spec("ledgers"))
    workshop.server("notes", **spec("maps"))
    rules = workshop.folder / "rules"
    rules.mkdir()
    (rules / "tone.md").write_text(document("tone", "Read each branch of the tone."))
    config = workshop.config(
        expose={"list_all_below": 0},
        documents=[{"path": str(rules), "kind": "rule"}],
        clients={
            "coding": {"client": ["claude*"], "servers": ["code"], "documents": [], "presets": ["mixed"]}
        },
        context={"manage_tool": True, "set_context_tool": True},
    )
    async with inside(config) as proxy:
        chosen = (
            ChosenItem(Kind.TOOL, "notes__read_maps", "notes"),
            ChosenItem(Kind.TOOL, "code__read_ledgers", "code"),
            ChosenItem(Kind.RULE, "tone"),
        )
        removed = (ChosenItem(Kind.TOOL, "notes__drop_maps", "notes"),)
        proxy.contexts.presets.save("mixed", SavedPreset(added=chosen, removed=removed))
        client = host(proxy, era, "claude-code")
        seen = await everything(client)
        listed = await client.names()
        kept = await client.data("manage_context", {"action": "list"})
        called = await client.call("notes__read_maps")
        states = []
        for session in proxy.contexts.sessions:
            with assigned(ACTING, session.rights):
                states.append(await proxy.contexts.state(session))

    assert "code__read_ledgers" in seen
    for text in (seen, json.dumps(listed), json.dumps(kept), msgspec.json.encode(states).decode()):
        assert "maps" not in text.replace("read the maps", "")
        assert "branch of the tone" not in text
    assert called["isError"]


async def test_a_token_that_is_bound_to_a_profile_reads_no_figures_and_no_problems(
    workshop: Workshop,
) -> None:
    """Although it is an administrator's where it is not bound."""
    workshop.server("code", tools=[tool("read_ledgers")])
    workshop.server("vault", settings={"command": "no-such-program-anywhere"})
    tokens = TokenFile(workshop.folder / "state" / FILE_NAME)
    bound, free = (tokens.add(name, role="admin") for name in ("bound", "free"))
    config = workshop.config(
        clients={"chat": CHAT}, store={"path": str(workshop.folder / "state" / "store.sqlite3")}
    )
    with http_proxy(config, auth=True, env=environment()) as running:
        async with httpx2.AsyncClient(base_url=running.base, timeout=30) as client:

            async def told(token: str, path: str) -> str:
                return (await client.get(path, headers={"authorization": f"Bearer {token}"})).text

            with anyio.fail_after(60):
                while "vault" not in await told(free, "/healthz"):
                    pass
            health, metrics = await told(bound, "/healthz"), await told(bound, "/metrics")
            known = await told(free, "/metrics")

    assert json.loads(health).keys() == {"status"}
    assert "mcp_context_proxy" in known
    assert "mcp_context_proxy_" not in metrics


async def test_a_changed_profile_is_in_force_with_the_next_request(workshop: Workshop) -> None:
    workshop.server("code", tools=[tool("read_ledgers")])
    workshop.server("notes", tools=[tool("read_maps")])
    config = workshop.config(clients={"coding": {"client": ["claude*"], "servers": ["code"]}})
    async with inside(config) as proxy:
        client = host(proxy, "handshake", "claude-code")
        before = await client.names()
        tables = {"coding": ClientConfig(client=("claude*",), servers=("notes",))}
        await proxy.apply(replace(proxy.config, clients=tables))
        with anyio.fail_after(30):
            while ("notifications/tools/list_changed", {}) not in client.told:
                await anyio.lowlevel.checkpoint()
        after = await client.names()

    assert any("ledgers" in name for name in before)
    assert not any("maps" in name for name in before)
    assert any("maps" in name for name in after)
    assert not any("ledgers" in name for name in after)


def test_a_mistake_in_a_profile_keeps_the_proxy_from_starting(workshop: Workshop) -> None:
    for wrong in ({"servers": "code"}, {"nonsense": 1}):
        with pytest.raises(ConfigError, match="clients"):
            load(workshop.config(clients={"coding": wrong}), environ={})
    with pytest.raises(ConfigError, match="letters, digits"):
        load(workshop.config(clients={"a b": {}}), environ={})


async def test_check_says_what_each_profile_sees(proxy: Proxy) -> None:
    told = {(one.subject, one.message) for one in pins.profiles(proxy)}

    assert ("clients.coding", "sees 3 tools of 1 server, 1 document") in told
    assert ("clients.chat", "sees 2 tools of 1 server, 1 document") in told


async def test_check_warns_of_names_in_a_profile_that_lead_to_nothing(workshop: Workshop) -> None:
    workshop.server("notes", **spec("maps"))
    chat = {"tools": ["notes__read_*", "maps__*"], "documents": ["tone"], "tokens": ["anna", "owner", "bret"]}
    config = workshop.config(clients={"chat": chat}, store={"path": str(workshop.folder / "state" / "db")})
    TokenFile(workshop.folder / "state" / FILE_NAME).add("anna")
    async with inside(config) as proxy:
        told = {one.message: one.remedy for one in pins.profiles(proxy) if one.level is Level.WARNING}

    assert [*told] == [
        "no tool is named 'maps__*'",
        "no document is named 'tone'",
        "there is no token 'bret'",
    ]
    assert told["there is no token 'bret'"] == "mcp-context-proxy token add bret"


async def test_check_says_how_a_profile_has_the_documents_of_a_folder(workshop: Workshop) -> None:
    (handbook := workshop.folder / "handbook").mkdir()
    (handbook / "leave.md").write_text("# Leave", encoding="utf-8")
    profiles = {"chat": {"documents": ["handbook"]}, "desk": {"documents": ["handbook/*"]}}
    config = workshop.config(clients=profiles, documents=[{"path": str(handbook)}])
    async with inside(config) as proxy:
        told = [(one.subject, one.message, one.remedy) for one in pins.profiles(proxy)]

    remedy = "write 'handbook/*' for those of the folder"
    assert ("clients.chat", "no document is named 'handbook'", remedy) in told
    assert any(subject == "clients.desk" and "1 document" in said for subject, said, _ in told)


async def test_events_of_modern_subscriptions_stay_within_a_profile(proxy: Proxy) -> None:
    coding = proxy.gateway.profiles.named(THE_USER, "coding")
    tone = next(one for one in proxy.catalog.whole.snapshot.documents.values() if one.name == "tone")

    assert not proxy.changes._may_know(coding, tone.uri)
    assert not proxy.changes._may_know(coding, "file:///maps")
    assert proxy.changes._may_know(coding, "file:///ledgers")
    assert proxy.changes._may_know(THE_USER, tone.uri)
