"""The markers of a tool mean the same through the proxy as without it: listed, called, or called for."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.ledger import until
from support.proxies import Host, host_of, inside
from support.raw_client import text_of
from support.servers import Workshop, tool
from support.tables import each

from mcp_context_proxy.app.proxy import Proxy

CALL, CALL_READ_ONLY = "call_tool", "call_read_only_tool"
ASKS_USER, RESULT_SIZE = "anthropic/requiresUserInteraction", "anthropic/maxResultSizeChars"

MARKERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "read_only": {"annotations": {"readOnlyHint": True}},
    "not_read_only": {"annotations": {"readOnlyHint": False}},
    "read_only_as_text": {"annotations": {"readOnlyHint": "true"}},
    "contradictory": {"annotations": {"readOnlyHint": True, "destructiveHint": True}},
    "destructive": {"annotations": {"readOnlyHint": False, "destructiveHint": True}},
    "additive": {"annotations": {"destructiveHint": False}},
    "idempotent": {"annotations": {"idempotentHint": True}},
    "closed_world": {"annotations": {"openWorldHint": False}},
    "unreadable": {"annotations": [True]},
    "asks_user": {"_meta": {ASKS_USER: True}},
    "asks_user_to_read": {"annotations": {"readOnlyHint": True}, "_meta": {ASKS_USER: True}},
    "asks_user_not": {"_meta": {ASKS_USER: False}},
    "large_result": {"_meta": {RESULT_SIZE: 200_000}},
    "large_read": {"annotations": {"readOnlyHint": True}, "_meta": {RESULT_SIZE: 150_000}},
    "unknown_meta": {"_meta": {"com.example/odd": {"deep": [1, None, "x"]}}},
    "title": {"title": "A title", "annotations": {"title": "Another"}},
    "icons": {"icons": [{"src": "https://example.com/icon.png", "sizes": ["48x48"]}]},
    "tasks": {"execution": {"taskSupport": "optional"}},
}
READ_ONLY = {"read_only", "asks_user_to_read", "large_read"}
ASK_USER = {"asks_user", "asks_user_to_read"}

RESULT_META = {"com.example/kept": [1, {"a": None}], RESULT_SIZE: 9, ASKS_USER: True}


@pytest.fixture(scope="module", params=["handshake", "modern"])
async def proxy(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Proxy]:
    """A proxy in front of a server of either era, with one tool for each marker."""
    workshop = Workshop(tmp_path_factory.mktemp("markers"))
    defined = [tool(name, **marker) for name, marker in MARKERS.items()]
    result = {"content": [{"type": "text", "text": "done"}], "_meta": RESULT_META}
    calls = {"meta": [{"result": result}]}
    annotated = tool("meta", annotations={"readOnlyHint": True})
    workshop.server("s", era=request.param, tools=[*defined, annotated], calls=calls)
    async with inside(workshop.config(expose={"mode": "all"}), patience=None) as opened:
        yield opened


@pytest.fixture
def host(proxy: Proxy, era: str) -> Host:
    """A client that can be asked, and does not agree."""
    return Host(proxy, era, {"elicitation": {}}, {"elicitation/create": lambda params: {"action": "decline"}})


async def outcome(host: Host, name: str, arguments: Any = None) -> str:
    """``runs``, ``asks`` or ``refuses``: the effect of a call before anybody has agreed."""
    host.asked.clear()
    result = await host.call(name, arguments)
    if result.get("resultType") == "input_required" or host.asked:
        return "asks"
    return "refuses" if result.get("isError") else "runs"


async def outcomes(host: Host, through: str) -> dict[str, str]:
    """The effect of calling each tool through one of the proxy's own."""
    return {
        marker: await outcome(host, through, {"name": f"s__{marker}", "arguments": {}}) for marker in MARKERS
    }


async def test_a_listed_tool_has_every_marker_as_its_server_sent_it(host: Host) -> None:
    listed = {entry["name"]: entry for entry in (await host.request("tools/list"))["tools"]}

    sent = {f"s__{name}": tool(name, **marker) | {"name": f"s__{name}"} for name, marker in MARKERS.items()}
    assert {name: listed[name] for name in sent} == sent


async def test_call_tool_runs_every_tool_but_asks_where_the_tool_demands_its_user(host: Host) -> None:
    asking = dict.fromkeys(ASK_USER, "asks")

    assert await outcomes(host, CALL) == dict.fromkeys(MARKERS, "runs") | asking


async def test_call_read_only_tool_runs_only_what_says_that_it_is_read_only(host: Host) -> None:
    reading = dict.fromkeys(READ_ONLY, "runs") | dict.fromkeys(READ_ONLY & ASK_USER, "asks")

    assert await outcomes(host, CALL_READ_ONLY) == dict.fromkeys(MARKERS, "refuses") | reading


@pytest.mark.parametrize("through", [None, CALL, CALL_READ_ONLY])
async def test_the_meta_of_a_result_is_unchanged(host: Host, through: str | None) -> None:
    result = await (host.call("s__meta") if through is None else host.call(through, {"name": "s__meta"}))

    assert RESULT_META.items() <= result["_meta"].items()
    assert all(key in RESULT_META or key.startswith("io.modelcontextprotocol/") for key in result["_meta"])


async def own_tools(workshop: Workshop, tools: list[dict[str, Any]], era: str) -> dict[str, Any]:
    """The definitions of the proxy's own tools where the catalog is not listed."""
    workshop.server("s", tools=tools)
    async with inside(workshop.config(expose={"mode": "search"})) as proxy:
        return {entry["name"]: entry for entry in (await Host(proxy, era).request("tools/list"))["tools"]}


async def test_the_call_tools_say_what_they_may_do(workshop: Workshop, era: str) -> None:
    listed = await own_tools(workshop, [tool("one")], era)

    assert listed[CALL]["annotations"] == {"readOnlyHint": False, "destructiveHint": True}
    assert listed[CALL_READ_ONLY]["annotations"] == {"readOnlyHint": True}


async def test_the_call_tools_keep_results_as_long_as_the_longest_of_their_tools(
    workshop: Workshop, era: str
) -> None:
    listed = await own_tools(workshop, [tool(name, **marker) for name, marker in MARKERS.items()], era)

    assert listed[CALL]["_meta"][RESULT_SIZE] == 200_000
    assert listed[CALL_READ_ONLY]["_meta"][RESULT_SIZE] == 150_000
    assert RESULT_SIZE not in listed["search_available_tools"].get("_meta", {})


@pytest.mark.parametrize(
    ("size", "kept"), [(10**9, 500_000), (0, None), (-5, None), (True, None), ("9", None), (10**30, 500_000)]
)
async def test_the_length_of_kept_results_is_bounded_and_absent_where_no_tool_wants_it(
    workshop: Workshop, size: Any, kept: int | None
) -> None:
    listed = await own_tools(workshop, [tool("one", _meta={RESULT_SIZE: size})], "modern")

    assert listed[CALL]["_meta"].get(RESULT_SIZE) == kept


async def test_a_changed_length_of_kept_results_is_announced(workshop: Workshop) -> None:
    large = tool("one", _meta={RESULT_SIZE: 90_000})
    step = {"set": {"tools": [tool("grow"), large]}}
    workshop.server("s", tools=[tool("grow"), tool("one")], calls={"grow": [step]})
    async with host_of(workshop.config(expose={"mode": "search"}), "handshake") as host:
        await host.call("s__grow")
        await until(lambda: ("notifications/tools/list_changed", {}) in host.told)
        listed = {entry["name"]: entry for entry in (await host.request("tools/list"))["tools"]}

    assert listed[CALL]["_meta"][RESULT_SIZE] == 90_000


DESTRUCTIVE = {"name": "s__destructive"}


@each(
    ("through", "said"),
    [
        (CALL_READ_ONLY, DESTRUCTIVE),
        (CALL_READ_ONLY, {"name": CALL, "arguments": DESTRUCTIVE}),
        (CALL, {"name": CALL_READ_ONLY, "arguments": DESTRUCTIVE}),
    ],
)
async def test_a_refusal_of_call_read_only_tool_names_the_tool_the_reason_and_the_way_on(
    host: Host, through: str, said: dict[str, Any]
) -> None:
    refused = await host.call(through, said)

    assert refused["isError"]
    assert text_of(refused) == (
        "s__destructive was not run: call_read_only_tool calls only tools that read, and s__destructive "
        "counts as destructive: it says so itself (destructiveHint). Call it through call_tool."
    )


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("search_available_tools", True),
        ("set_context", True),
        ("manage_context", False),
        ("call_tool", False),
    ],
)
async def test_call_read_only_tool_calls_those_of_the_proxys_own_tools_that_only_read(
    host: Host, name: str, runs: bool
) -> None:
    result = await host.call(CALL_READ_ONLY, {"name": name, "arguments": {"query": "anything"}})

    assert bool(result.get("isError")) is not runs


async def test_a_search_marks_read_only_tools_and_says_how_to_call_them(host: Host) -> None:
    wanted = {"query": "tools that only read", "top_n": 20}
    found = await host.call("search_available_tools", wanted)

    signatures = [line for line in text_of(found).splitlines() if line.startswith("s__")]
    marked = {line.partition("(")[0].removeprefix("s__") for line in signatures if line.endswith(" [r]")}
    assert "read_only" in marked
    assert marked <= READ_ONLY | {"meta"}
    assert "through call_read_only_tool if it is marked [r], else through call_tool." in text_of(found)
    for one in (await host.data("search_available_tools", wanted))["results"]:
        read_only = one["name"].removeprefix("s__") in READ_ONLY | {"meta"}
        assert one.get("call_through") == (CALL_READ_ONLY if read_only else None)


async def test_a_call_through_the_read_only_tool_answers_what_the_tool_itself_answers(host: Host) -> None:
    direct = await host.call("s__read_only", {"text": "x"})
    arguments = {"name": "s__read_only", "arguments": {"text": "x"}, "goal": "read it"}
    through = await host.call(CALL_READ_ONLY, arguments)

    assert (
        json.loads(text_of(direct))["arguments"] == json.loads(text_of(through))["arguments"] == {"text": "x"}
    )
