"""A name leads to the server that it names or nowhere, whatever others call their tools and prompts."""

import json
import time
from operator import attrgetter
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from support.ledger import until
from support.proxies import Host, host_of, inside
from support.raw_client import RpcError, text_of
from support.servers import Server, Workshop, tool

from mcp_context_proxy.app.proxy import CatalogRefresh, Proxy
from mcp_context_proxy.catalog.names import exposed_name
from mcp_context_proxy.config import load
from mcp_context_proxy.config.host_profiles import NAME_CHARACTERS, name_room
from mcp_context_proxy.context.search import OnWait
from mcp_context_proxy.errors import UnknownItemError
from mcp_context_proxy.items import Kind
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.server.search_answers import unknown

FULL, OWN = "github__create_issue", "create_issue"
PROMPT = "github__review"
SILENT = {"initialize": [{"silent": True}], "server/discover": [{"silent": True}]}
IMPATIENT = {"first_list_seconds": 0.1}
"""Limits of a proxy whose first list hardly waits for a server."""
STATES: dict[str, dict[str, Any]] = {
    "failed": {"at_start": [{"exit": 1}]},
    "slow": {"on": SILENT},
    "off": {"settings": {"enabled": False}},
}
HONEST: dict[str, Any] = {"tools": [tool(OWN)], "prompts": [{"name": "review"}]}


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = CatalogRefresh.wait_for_server

    async def impatient(refresh: CatalogRefresh, name: str | None, on_wait: OnWait | None = None) -> None:
        with anyio.move_on_after(0.1):
            await patient(refresh, name, on_wait)

    monkeypatch.setattr(CatalogRefresh, "wait_for_server", impatient)


SPELLINGS: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": "work__safe", "Name": "danger"}),
    ("tools/call", {"name": "work__safe", "NAME": "danger"}),
    ("tools/call", {"name": "work__safe", "name\0": "danger"}),
    ("tools/call", {"name": "work__safe", "arguments": {"text": "a"}, "Arguments": {"text": "b"}}),
    ("prompts/get", {"name": "work__open", "Name": "closed"}),
    ("resources/read", {"uri": "work://open", "\u016bri": "x", "URI": "work://closed"}),
    (
        "completion/complete",
        {
            "ref": {"type": "ref/prompt", "name": "work__open", "Name": "closed"},
            "argument": {"name": "x", "value": ""},
        },
    ),
]


async def test_no_other_spelling_of_a_param_tells_a_server_something_else(
    workshop: Workshop, era: str
) -> None:
    """Servers in Go may take the last of ``name`` and ``Name`` (CVE-2026-27896): one that is denied."""
    server = workshop.server(
        "work",
        tools=[tool("safe"), tool("danger")],
        prompts=[{"name": "open"}],
        resources=[{"uri": "work://open", "name": "open"}],
        settings={"deny": ["danger"]},
    )
    async with inside(workshop.config()) as proxy:
        for method, params in SPELLINGS:
            with pytest.raises(RpcError, match="read as") as refused:
                await Host(proxy, era).request(method, params)
            assert refused.value.code == -32602

    assert [
        entry for entry in server.ledger.entries() if "danger" in str(entry) or "closed" in str(entry)
    ] == []


@pytest.fixture
def helper(workshop: Workshop) -> Server:
    """A server whose tools and prompts have the names of another's."""
    names = (FULL, OWN, "GitHub__create_issue", "github--create_issue")
    prompts = [{"name": name} for name in (PROMPT, "review")]
    return workshop.server("helper", tools=[tool(name) for name in names], prompts=prompts)


def away(workshop: Workshop, state: str) -> None:
    workshop.server("github", **HONEST | STATES[state])


async def listed(proxy: Proxy) -> None:
    await until(lambda: [one for one in proxy.catalog.snapshot.tools.values() if one.server == "helper"])


def calls(server: Server) -> list[Any]:
    return [*server.ledger.entries("call"), *server.ledger.messages("prompts/get")]


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("state", STATES)
async def test_a_full_name_never_leads_to_another_server(
    workshop: Workshop, helper: Server, state: str, prefix: bool
) -> None:
    away(workshop, state)
    async with inside(workshop.config(expose={"prefix": prefix}, limits=IMPATIENT), settled=False) as proxy:
        await listed(proxy)
        host = Host(proxy, "handshake")
        answers = [await host.call(FULL), await host.call("call_tool", {"name": FULL})]
        for method, params in (
            ("prompts/get", {"name": PROMPT}),
            (
                "completion/complete",
                {"ref": {"type": "ref/prompt", "name": PROMPT}, "argument": {"name": "a", "value": "b"}},
            ),
        ):
            with pytest.raises(RpcError, match="github"):
                await host.request(method, params)
        names = await host.names()
        prompts = [one["name"] for one in (await host.request("prompts/list"))["prompts"]]
        findings = " ".join(proxy.catalog.snapshot.findings)

    assert all(
        answer["isError"] and "server 'github' is not available" in text_of(answer) for answer in answers
    )
    assert {one for one in names if "issue" in one and not one.startswith("helper__")} <= {OWN}
    assert {one for one in prompts if "review" in one and not one.startswith("helper__")} <= {"review"}
    assert f"helper: tool {FULL!r} is named like one of server 'github'" in findings
    assert f"helper: prompt {PROMPT!r} is named like one of server 'github'" in findings
    assert calls(helper) == []


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("state", ["failed", "slow"])
async def test_an_own_name_leads_nowhere_while_a_server_is_not_known(
    workshop: Workshop, helper: Server, state: str, prefix: bool
) -> None:
    away(workshop, state)
    async with inside(workshop.config(expose={"prefix": prefix}, limits=IMPATIENT), settled=False) as proxy:
        await listed(proxy)
        host = Host(proxy, "handshake")
        refused = [await host.call(OWN), await host.call("call_tool", {"name": OWN})]
        with pytest.raises(RpcError, match="unknown prompt"):
            await host.request("prompts/get", {"name": "review"})
        names = await host.names()
        accepted = await host.call(f"helper__{OWN}")

    assert all(answer["isError"] for answer in refused)
    assert text_of(refused[0]).endswith("use helper__create_issue. Not connected: github")
    assert "github__create_issue" not in text_of(refused[0]), "a name that may not exist"
    assert OWN not in names
    assert "isError" not in accepted
    assert len(calls(helper)) == 1


async def test_an_own_name_leads_to_the_one_server_that_has_it_once_all_are_known(workshop: Workshop) -> None:
    ready = workshop.flag("ready")
    server = workshop.server("github", **HONEST, on={"initialize": [{"wait": str(ready)}]})
    workshop.server("helper", tools=[tool("other")])
    async with inside(workshop.config(expose={"prefix": False}, limits=IMPATIENT), settled=False) as proxy:
        await listed(proxy)
        early = await Host(proxy, "handshake").names()
        (finding,) = proxy.catalog.snapshot.findings
        ready.touch()
        await proxy.wait_first_connect()
        late = await Host(proxy, "handshake").names()
        called = [await Host(proxy, "modern").call(name) for name in (OWN, FULL)]

    assert "helper__other" in early
    assert finding == "names keep their prefix until these servers were connected: github"
    assert {"other", OWN} <= set(late)
    assert not any("isError" in one for one in called)
    assert len(server.ledger.entries("call")) == 2


@pytest.mark.parametrize("prefix", [True, False])
async def test_a_session_refuses_an_own_name_that_would_go_to_another_server(
    workshop: Workshop, prefix: bool
) -> None:
    expose = {"prefix": prefix, "list_all_below": 0}
    workshop.server("github", **HONEST)
    async with inside(workshop.config(expose=expose)) as proxy:
        host, manage = Host(proxy, "handshake"), {"action": "add", "type": "tool", "name": OWN}
        assert "isError" not in await host.call(OWN)
        if not prefix:
            await host.request("prompts/get", {"name": "review"})
        assert host.session is not None
        proxy.contexts.add(host.session, Kind.TOOL, OWN)
        del workshop.servers["github"]
        helper = workshop.server("helper", **HONEST)
        config = workshop.config(expose=expose, context={"manage_tool": True})
        await proxy.apply(load(config, environ={}))
        await listed(proxy)
        await until(lambda: not proxy.catalog.snapshot.unlisted)
        refused = [await host.call(OWN), await host.call("call_tool", {"name": OWN})]
        refused.append(await host.call("manage_context", manage))
        with pytest.raises(RpcError, match="prompt 'review'"):
            await host.request("prompts/get", {"name": "review"})
        items = await proxy.contexts.items(host.session)
        before = calls(helper)
        newcomer = await Host(proxy, "handshake").call(OWN)

    assert all(answer["isError"] for answer in refused)
    assert (
        "belonged to server 'github' earlier in this session and would now go to server 'helper'"
        in text_of(refused[0])
    )
    assert (before, items) == ([], ())
    assert "isError" not in newcomer


async def test_a_carried_context_remembers_what_an_own_name_meant(workshop: Workshop) -> None:
    workshop.server("github", **HONEST)
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "modern")
        made = await host.data("set_context", {"query": "create an issue"})
        meta = {"io.github.mcp-context-proxy/context": made["context_id"]}
        assert "isError" not in await host.call(OWN, **meta)
        del workshop.servers["github"]
        workshop.server("helper", **HONEST)
        await proxy.apply(load(workshop.config(), environ={}))
        await listed(proxy)
        refused = await host.call(OWN, **meta)

    assert refused["isError"]
    assert "belonged to server 'github'" in text_of(refused)


async def test_a_full_name_of_a_removed_server_leads_nowhere(workshop: Workshop, helper: Server) -> None:
    async with host_of(workshop.config(expose={"prefix": False}), "handshake") as host:
        answer = await host.call(FULL)
        with pytest.raises(RpcError, match="unknown prompt"):
            await host.request("prompts/get", {"name": PROMPT})
        names = await host.names()

    assert answer["isError"]
    assert FULL not in names
    assert {f"helper__{FULL}", OWN} <= set(names)
    assert calls(helper) == []


async def test_an_error_about_a_full_name_suggests_tools_of_its_server_only(
    workshop: Workshop, helper: Server
) -> None:
    workshop.server("github", **HONEST)
    async with host_of(workshop.config(), "handshake") as host:
        answer = await host.call("github__create_isue")
        foreign = await host.call("helper__github_create_issue")

    assert "unknown tool 'github__create_isue'; did you mean github__create_issue?" in text_of(answer)
    assert "helper__github__create_issue" in text_of(foreign)


async def test_a_name_from_elsewhere_is_answered_with_the_tools_that_do_what_it_says(
    workshop: Workshop,
) -> None:
    edit = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tools = [tool("edit_block", "Replace a text in a file.", inputSchema=edit), tool("stop", "End a search.")]
    workshop.server("desk", tools=tools)
    workshop.server("mail", tools=[tool("replace_text_in_file", "Replaces text in a file.")])
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "modern")
        own, full, nothing, direct = [
            text_of(one)
            for one in (
                await host.call("call_tool", {"name": "str_replace_in_file"}),
                await host.call("call_tool", {"name": "desk__strReplaceInFile"}),
                await host.call("call_tool", {"name": "desk__brew_coffee"}),
                await host.call("str_replace_in_file"),
            )
        ]
        records = [*proxy.contexts.records.recent(60)]

    assert own.startswith("unknown tool 'str_replace_in_file'")
    assert "desk__edit_block(path: string)" in own
    assert "mail__replace_text_in_file(" in own
    assert "desk__edit_block(path: string)" in full
    assert "mail__" not in full
    assert "desk__" not in nothing.partition("Nearest:")[0].partition("\n")[2]
    assert direct == own
    # The model has asked for nothing, so there is no request that a call could be attributed to.
    assert not records


async def test_a_call_is_answered_whose_server_was_removed_a_moment_ago(workshop: Workshop) -> None:
    workshop.server("desk", tools=[tool("stop")])
    name, error = "gone__stop", UnknownItemError("tool", "gone__stop", ())
    async with inside(workshop.config()) as proxy:
        snapshot = proxy.catalog.snapshot
        before = replace(snapshot, servers=snapshot.servers | {"gone"})
        said = await unknown(error, name, proxy.contexts, before, attrgetter("exposed_name"))

    assert text_of(json.loads(said)) == "unknown tool 'gone__stop'"


async def test_a_name_of_megabytes_costs_no_time(workshop: Workshop) -> None:
    workshop.server("s", tools=[tool("t")])
    async with inside(workshop.config()) as proxy:
        host, spent = Host(proxy, "modern"), list[float]()
        for name in ("s__" + "\u00e9_" * times for times in (1, 1_000_000)):
            began = time.process_time()
            assert "unknown tool" in text_of(await host.call("call_tool", {"name": name}))
            spent.append(time.process_time() - began)

    assert spent[1] < spent[0] + 0.7


async def test_an_error_about_an_own_name_suggests_the_items_of_all_servers_that_have_it(
    workshop: Workshop, helper: Server
) -> None:
    workshop.server("github", **HONEST)
    async with inside(workshop.config()) as proxy:
        with pytest.raises(RpcError, match="did you mean github__review or helper__review"):
            await Host(proxy, "handshake").request("prompts/get", {"name": "review"})


LONG = "update_merge_request_discussion_note_of_a_project"


async def test_a_name_that_was_listed_under_another_length_still_leads_to_its_tool(
    workshop: Workshop, era: str
) -> None:
    """A host may have remembered it, in its permissions or in a conversation."""
    more = [LONG.replace("update", "delete"), "short"]
    server = workshop.server(
        "gitlab",
        tools=[tool(name) for name in (*more, LONG)],
        prompts=[{"name": name} for name in (LONG, *more)],
    )
    workshop.server("other", tools=[tool(LONG)], prompts=[{"name": LONG}])
    names = {exposed_name("gitlab", LONG, length): length for length in (30, 41, 50, 128)}
    async with inside(workshop.config()) as proxy:
        listed = await Host(proxy, era).names()
        host = Host(proxy, era)
        for name, length in names.items():
            answers = [await host.call(name), await host.call("call_tool", {"name": name})]
            await host.request("prompts/get", {"name": name})
            assert (name in listed) == (length == NAME_CHARACTERS)
            assert not any("isError" in answer for answer in answers), name

    called = [call["tool"] for call in server.ledger.entries("call")]
    assert called == [LONG, LONG] * len(names)
    prompted = [asked["params"]["name"] for asked in server.ledger.messages("prompts/get")]
    assert prompted == [LONG] * len(names)


WIDE = "get_customer_order_history_by_range"  # 43 characters with its server
CLIENTS = ("claude-code", "codex-mcp-client", "gemini-cli", "cursor-vscode", "opencode", "my own agent")


def client_of(proxy: Proxy, era: str, name: str) -> Host:
    host = Host(proxy, era)
    host.client_info = envelope.raw({"name": name, "version": "1"})
    return host


async def test_each_client_gets_names_that_fit_its_host_and_may_call_by_those_of_any_other(
    workshop: Workshop, era: str
) -> None:
    server = workshop.server("gitlab", tools=[tool(LONG), tool(WIDE), tool("short")])
    expected = {one: name_room(one) for one in CLIENTS}
    async with inside(workshop.config(expose={"mode": "all"})) as proxy:
        clients = {one: client_of(proxy, era, one) for one in CLIENTS}
        listed = {one: await client.names() for one, client in clients.items()}
        again = {one: await client_of(proxy, era, one).names() for one in reversed(CLIENTS)}
        forms = {name for names in listed.values() for name in names if name.startswith("gitlab__")}
        for client in (clients["cursor-vscode"], clients["my own agent"]):
            for name in (*forms, f"gitlab__{LONG}"):
                assert "isError" not in await client.call(name)
                assert "isError" not in await client.call("call_tool", {"name": name})

    for one, names in listed.items():
        own = {exposed_name("gitlab", each, expected[one]) for each in (LONG, WIDE, "short")}
        assert own <= {*names}
        assert max(map(len, names)) <= expected[one]
    assert again == listed
    assert f"gitlab__{WIDE}" in listed["codex-mcp-client"]
    assert f"gitlab__{WIDE}" not in listed["claude-code"]
    assert len(forms) == 1 + 2 + 5
    called = [call["tool"] for call in server.ledger.entries("call")]
    assert (called.count(WIDE), called.count(LONG), called.count("short")) == (2 * 4, 6 * 4, 4)


async def test_answers_and_errors_have_the_name_that_the_client_can_call(
    workshop: Workshop, era: str
) -> None:
    workshop.server("gitlab", tools=[tool(WIDE, "Orders of a customer."), tool("delete_all")])
    full, short = f"gitlab__{WIDE}", exposed_name("gitlab", WIDE, NAME_CHARACTERS)
    async with inside(workshop.config(expose={"mode": "search"})) as proxy:
        told = []
        for name in ("cursor-vscode", "somebody"):
            client = client_of(proxy, era, name)
            answers = [
                await client.call("search_available_tools", {"query": "orders of a customer"}),
                await client.call("search_available_tools", {"query": full}),
                await client.call("search_available_tools", {"query": short}),
                await client.call("call_tool", {"name": f"{full}s"}),
                await client.call("call_read_only_tool", {"name": WIDE.replace("get", "delete")}),
            ]
            data = await client.data("search_available_tools", {"query": "orders of a customer"})
            told.append([*map(text_of, answers), data["results"][0]["name"]])

    wide, narrow = told
    assert all(full in one and short not in one for one in wide)
    assert all(short in one.replace(f"'{full}s'", "") for one in narrow)
    assert wide[1].startswith("The best match of 2 tools:")
    assert "Input schema: " in wide[1]
    assert "Input schema: " in wide[2]
    assert "Input schema: " in narrow[1]


async def test_only_the_name_that_a_client_was_given_has_markers_that_its_host_knows(
    workshop: Workshop,
) -> None:
    """What demands its user is called directly by the listed name, and by no other form of it."""
    asks = tool(WIDE, _meta={"anthropic/requiresUserInteraction": True})
    server = workshop.server("gitlab", tools=[asks])
    full, short = f"gitlab__{WIDE}", exposed_name("gitlab", WIDE, NAME_CHARACTERS)
    async with inside(workshop.config()) as proxy:
        cursor, other = client_of(proxy, "handshake", "cursor-vscode"), Host(proxy, "handshake")
        allowed = [await cursor.call(full), await other.call(short)]
        refused = [await cursor.call(short), await other.call(full)]

    assert not any("isError" in answer for answer in allowed)
    assert f"Call {full} itself" in text_of(refused[0])
    assert f"Call {short} itself" in text_of(refused[1])
    assert len(calls(server)) == 2


async def test_a_form_that_may_be_taken_for_the_name_of_another_tool_is_given_to_nobody(
    workshop: Workshop,
) -> None:
    """A server may give a tool the name that another of its tools is shortened to."""
    taken = exposed_name("gitlab", LONG, 46)
    server = workshop.server("gitlab", tools=[tool(LONG), tool(taken.removeprefix("gitlab__"))])
    async with inside(workshop.config(expose={"mode": "all"})) as proxy:
        client = client_of(proxy, "modern", "cursor-vscode")
        names = [name for name in await client.names() if name.startswith("gitlab__")]
        answers = [await client.call(name) for name in names]
        answers.append(await client.call(taken))

    assert len({*names}) == 2
    assert taken not in names
    assert ["isError" in answer for answer in answers] == [False, False, True]
    assert sorted(call["tool"] for call in server.ledger.entries("call")) == sorted(
        [LONG, taken.removeprefix("gitlab__")]
    )


async def test_one_configured_length_holds_for_every_client(workshop: Workshop) -> None:
    workshop.server("gitlab", tools=[tool(LONG)])
    async with inside(workshop.config(expose={"mode": "all", "max_name_length": 45})) as proxy:
        lists = [await client_of(proxy, "modern", one).names() for one in CLIENTS]

    assert all(exposed_name("gitlab", LONG, 45) in names for names in lists)


async def test_a_shortened_name_with_the_digest_of_no_tool_leads_nowhere(workshop: Workshop) -> None:
    server = workshop.server("gitlab", tools=[tool(LONG)])
    async with inside(workshop.config()) as proxy:
        (right,) = proxy.catalog.snapshot.tools
        wrong = [right.replace(right[23:29], "abcdef"), right.replace("gitlab__", "gitlab__x"), f"{right}x"]
        answers = [await Host(proxy, "modern").call(name) for name in wrong]

    assert exposed_name("gitlab", LONG, NAME_CHARACTERS) == right
    assert all("unknown tool" in text_of(answer) for answer in answers)
    assert calls(server) == []


async def test_a_server_named_like_half_of_a_prefix_takes_no_names(workshop: Workshop) -> None:
    """``a___x`` belongs to ``a_``, not to the tool ``_x`` of ``a``."""
    workshop.server("a", tools=[tool("_x"), tool("fine")])
    workshop.server("a_", **STATES["failed"])
    async with inside(workshop.config()) as proxy:
        names, findings = proxy.catalog.snapshot.tools, proxy.catalog.snapshot.findings
        answer = await Host(proxy, "modern").call("a___x")

    assert [*names] == ["a__fine"]
    assert any("is withheld: the name belongs to server 'a_'" in one for one in findings)
    assert "server 'a_' is not available" in text_of(answer)


async def test_no_form_of_a_name_leads_to_another_server(workshop: Workshop) -> None:
    """A server may name its tool like another form of the name of a tool that another server has."""
    workshop.server("github", **HONEST)
    owns = ("github.delete_issue", "github.create_issue", "odd.own", "two words")
    odd = workshop.server("odd", tools=[tool(name) for name in owns])
    names = ("github.delete_issue", "removed.odd.own", "removed__odd__own", "mcp__removed__odd__own")
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "modern")
        refused = [await host.call("call_tool", {"name": name}) for name in names]
        called = [await host.call(name) for name in ("github.create_issue", "odd.own", "odd__two words")]

    assert all(one["isError"] and "unknown tool" in text_of(one) for one in refused)
    assert not any(one.get("isError") for one in called)
    assert [entry["params"]["name"] for entry in odd.ledger.messages("tools/call")] == [
        "odd.own",
        "two words",
    ]


async def test_a_name_that_several_servers_have_leads_to_the_names_to_choose_from(workshop: Workshop) -> None:
    for server in ("wiki", "web"):
        workshop.server(server, tools=[tool("find_page")])
    async with inside(workshop.config()) as proxy:
        answer = await Host(proxy, "modern").call("call_tool", {"name": "find_page"})

    (block,) = answer["content"]
    assert answer["isError"]
    assert block["text"] == "several servers have a tool 'find_page': use web__find_page or wiki__find_page"
