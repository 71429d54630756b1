"""A recorded request can be rendered again as its model read it, and answered again by today's catalog."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.proxies import Host, inside
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.context import Mode, RequestContext
from mcp_context_proxy.context.session import SessionContext
from mcp_context_proxy.items import Kind, SearchFilters
from mcp_context_proxy.protocol.eras import QUERY_KEY, REQUEST_KEY
from mcp_context_proxy.web import Given
from mcp_context_proxy.web.running import PromptsApi, PromptWanted

SEARCH = "search_available_tools"
QUERY = "send a message to a channel"
RULE = "---\ndescription: How messages to a channel are worded\n---\n# Messages\n\nBe brief.\n"
TEXTS = {"post_message": "Send a message to a channel", "post_letter": "Send a letter by post"}


def settings(workshop: Workshop, texts: dict[str, str], **more: Any) -> Path:
    rules = workshop.folder / "rules"
    rules.mkdir(exist_ok=True)
    (rules / "messages.md").write_text(RULE, encoding="utf-8")
    tools = [tool(*one) for one in texts.items()]
    workshop.server("s", tools=[*tools, *(tool(f"report_{n}", f"Report {n} about sales") for n in range(30))])
    return workshop.config(
        expose={"mode": "search"},
        documents=[{"kind": "rule", "path": "rules"}],
        store={"path": str(workshop.folder / "store.sqlite3")},
        **more,
    )


@asynccontextmanager
async def with_texts(workshop: Workshop, texts: dict[str, str]) -> AsyncIterator[Proxy]:
    async with inside(settings(workshop, texts)) as proxy:
        yield proxy


@pytest.fixture
async def proxy(workshop: Workshop) -> AsyncIterator[Proxy]:
    async with with_texts(workshop, TEXTS) as opened:
        yield opened


async def record(proxy: Proxy, request_id: str) -> RequestContext:
    found = await proxy.contexts.request(request_id)
    assert found is not None
    return found


async def latest(proxy: Proxy) -> RequestContext:
    return (await proxy.contexts.requests())[0]


async def test_a_list_that_a_query_filters_names_its_request(proxy: Proxy, host: Host) -> None:
    filtered = await host.request("tools/list", **{QUERY_KEY: QUERY})
    plain = await host.request("tools/list")
    context = await record(proxy, filtered["_meta"][REQUEST_KEY])

    assert (context.query, context.origin) == (QUERY, "list")
    assert REQUEST_KEY not in plain.get("_meta", {})


@pytest.mark.parametrize("query", [QUERY, "post_letter", "paint the fence green", "how are messages worded"])
async def test_an_answer_is_rendered_again_as_the_model_read_it(proxy: Proxy, query: str) -> None:
    """With a rule in it, for a tool's own name, where nothing fits, and for a rule alone."""
    told = (await Host(proxy, "handshake").call(SEARCH, {"query": query}))["content"][0]["text"]
    rendered = await proxy.past_requests.rendered(await latest(proxy))

    assert rendered.text == told
    assert rendered.missing == ()


async def test_copies_of_a_rule_are_rendered_as_the_model_read_them(workshop: Workshop) -> None:
    config = settings(workshop, TEXTS)
    (workshop.folder / "rules" / "copy.md").write_text(RULE, encoding="utf-8")
    async with inside(config) as proxy:
        host = Host(proxy, "handshake")
        for copies in (1, 0):
            told = (await host.call(SEARCH, {"query": "how are messages worded"}))["content"][0]["text"]
            rendered = await proxy.past_requests.rendered(await latest(proxy))

            assert told.count("the same text as rule://") == copies
            assert rendered.text == told


async def test_a_rule_of_every_session_is_rendered_only_where_the_answer_told_it(workshop: Workshop) -> None:
    config = settings(workshop, TEXTS)
    (workshop.folder / "rules" / "house.md").write_text(
        "---\ninclude: always\n---\nBe kind.", encoding="utf-8"
    )
    async with inside(config) as proxy:
        host = Host(proxy, "handshake")
        for query, times in ((QUERY, 1), (QUERY, 0), ("be kind", 0)):
            told = (await host.call(SEARCH, {"query": query}))["content"][0]["text"]
            rendered = await proxy.past_requests.rendered(await latest(proxy))

            assert told.count("Be kind.") == times
            assert rendered.text == told


async def test_an_answer_is_rendered_with_what_it_left_out_for_the_budget(
    workshop: Workshop,
) -> None:
    async with inside(settings(workshop, TEXTS, context={"max_tokens": 30})) as proxy:
        told = (await Host(proxy, "handshake").call(SEARCH, {"query": QUERY}))["content"][0]["text"]
        rendered = await proxy.past_requests.rendered(await latest(proxy))

    assert "Left out, because they do not fit into 30 tokens" in told
    assert rendered.text == told


async def test_an_answer_says_that_what_fits_is_too_large_rather_than_that_nothing_fits(
    workshop: Workshop,
) -> None:
    async with inside(settings(workshop, TEXTS, context={"max_tokens": 10})) as proxy:
        told = (await Host(proxy, "handshake").call(SEARCH, {"query": "Send a letter by post"}))["content"][
            0
        ]["text"]
        rendered = await proxy.past_requests.rendered(await latest(proxy))

    assert told.startswith("Left out, because they do not fit into 10 tokens: s__post_letter (")
    assert "None of" not in told
    assert "Tools among them can be called by their names all the same." in told
    assert rendered.text == told


async def test_an_answer_says_what_the_items_of_the_session_leave_of_the_budget(workshop: Workshop) -> None:
    async with inside(settings(workshop, TEXTS, context={"max_tokens": 30})) as proxy:
        host = Host(proxy, "handshake")
        assert host.session is not None
        proxy.contexts.add(host.session, Kind.TOOL, "s__report_1")
        told = (await host.call(SEARCH, {"query": "Send a letter by post"}))["content"][0]["text"]

    taken = re.search(r"do not fit into 30 tokens, of which the session's own items take (\d+): ", told)
    assert taken is not None, told
    assert int(taken[1]) > 0


async def test_a_replay_does_not_call_gone_what_was_called_before_in_the_session(proxy: Proxy) -> None:
    host = Host(proxy, "handshake")
    await host.call("s__post_letter", {})
    await host.data(SEARCH, {"query": "zyxgh qwvut"})
    context = await latest(proxy)
    replayed = await proxy.past_requests.replayed(context)

    assert [(one.name, one.include_mode) for one in context.items] == [("s__post_letter", Mode.RETAINED)]
    assert replayed.items == ()


async def test_a_replay_does_not_call_new_what_the_session_had_by_hand(proxy: Proxy) -> None:
    session = SessionContext()
    proxy.contexts.add(session, Kind.TOOL, "s__post_message")
    await proxy.contexts.select(QUERY, session)
    replayed = await proxy.past_requests.replayed(await latest(proxy))

    assert "s__post_message" not in {one.name for one in replayed.items}
    assert {one.change for one in replayed.items} == {"same"}


async def test_a_list_is_rendered_as_its_definitions_and_a_hooks_context_as_its_text(
    proxy: Proxy, host: Host
) -> None:
    listed = await host.request("tools/list", **{QUERY_KEY: QUERY})
    rendered = await proxy.past_requests.rendered(await latest(proxy))
    await proxy.contexts.select(QUERY, deliver="whole")
    of_context = await proxy.past_requests.rendered(await latest(proxy))

    assert {one["name"] for one in listed["tools"]} > {"s__post_message"}
    assert '"name":"s__post_message"' in rendered.text
    assert "Rule: messages\n\n# Messages" in of_context.text
    assert "- s__post_message(" in of_context.text


async def test_a_changed_definition_is_rendered_as_it_was_and_the_replay_names_it(workshop: Workshop) -> None:
    async with with_texts(workshop, TEXTS) as before:
        told = (await Host(before, "handshake").call(SEARCH, {"query": QUERY}))["content"][0]["text"]
        request = await latest(before)
    changed = {"post_message": "Send a message to one channel", "post_memo": "Write a memo"}
    async with with_texts(workshop, changed) as after:
        context = await record(after, request.id)
        rendered = await after.past_requests.rendered(context)
        replayed = await after.past_requests.replayed(context)
        known = len(await after.contexts.requests())

    assert "Send a message to a channel" in rendered.text
    assert "one channel" not in rendered.text
    assert rendered.text == told
    message = next(one for one in replayed.items if one.name == "s__post_message")
    assert (message.change, message.definition) == ("gone", "changed"), "it waits for approval"
    assert known == 1, "a replay is recorded"


async def test_a_replay_tells_what_is_new_gone_and_moved(workshop: Workshop) -> None:
    async with with_texts(workshop, TEXTS) as before:
        await before.contexts.build(QUERY)
        request = await latest(before)
        unchanged = await before.past_requests.replayed(request)
    other = {"post_telegram": "Send a message to a channel by telegram", "post_letter": TEXTS["post_letter"]}
    async with with_texts(workshop, other) as after:
        replayed = await after.past_requests.replayed(await record(after, request.id))

    assert {(one.change, one.definition) for one in unchanged.items} == {("same", "same")}
    items = {one.name: (one.change, one.definition) for one in replayed.items}
    assert items["s__post_message"] == ("gone", "removed")
    assert items["s__post_telegram"] == ("new", "same")


async def test_a_replay_has_the_options_and_filters_of_then(proxy: Proxy, host: Host) -> None:
    await host.data(SEARCH, {"query": QUERY, "top_n": 2, "kinds": ["tool"], "filters": {"server": "s"}})
    replayed = await proxy.past_requests.replayed(await latest(proxy))

    assert [item.name for item in replayed.now.items] == [item.name for item in replayed.then.items]
    assert len(replayed.now.items) == 2
    assert replayed.now.filters == {"server": "s"}
    spelt = await proxy.contexts.replay(replayed.then, SearchFilters(server="S"))
    assert (len(spelt.items), spelt.filters) == (2, {"server": "s"})


async def test_a_request_of_a_profile_is_answered_again_from_the_catalog_of_that_profile(
    workshop: Workshop,
) -> None:
    config = settings(workshop, TEXTS, clients={"desk": {"client": ["host"], "tools": ["s__report_*"]}})
    async with inside(config) as proxy:
        host = Host(proxy, "handshake")
        await host.call(SEARCH, {"query": QUERY})
        request = await latest(proxy)
        replayed = await proxy.past_requests.replayed(request)

    assert request.profile == "desk"
    assert "s__post_message" not in {one.name for one in replayed.items}
    assert {one.change for one in replayed.items} <= {"same"}


async def test_an_answer_that_begins_with_a_tool_that_a_document_names_is_rendered_so(
    workshop: Workshop,
) -> None:
    texts = {"run_shell": "Run a command on a host", "list_nodes": "List the nodes of a cluster"}
    config = settings(workshop, texts)
    runbook = "# A node has no space left on its disk\n\nFind what grows with `run_shell`."
    (workshop.folder / "rules" / "disk-full.md").write_text(runbook, encoding="utf-8")
    async with inside(config) as proxy:
        query = {"query": "the node db-3 has no space left on its disk"}
        told = (await Host(proxy, "handshake").call(SEARCH, query))["content"][0]["text"]
        rendered = await proxy.past_requests.rendered(await latest(proxy))
        hook = PromptsApi(proxy, None)
        wanted = PromptWanted(query["query"])
        hooked = await hook._answer_prompt.handler(hook, Given({}), wanted)  # type: ignore[attr-defined]

    for text in (told, hooked.text):
        assert text.index("s__run_shell") < text.index("s__list_nodes")
    assert rendered.text == told
