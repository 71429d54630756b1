"""Items of a request context beside the results of a search, and those that exceed its budget."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray
from support.proxies import Host
from support.raw_client import data_of, text_of

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.catalog.definitions import tool_definition
from mcp_context_proxy.context import (
    ContextItem,
    DomainOverrides,
    Mode,
    Overrides,
    RequestContext,
    RequestRecords,
    configured,
)
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.search import Searcher
from mcp_context_proxy.context.selection import ContextExpander
from mcp_context_proxy.context.session import NotedClients, Session, Sessions
from mcp_context_proxy.embedding.embeddings import CachedEmbedder, Costs, TokenCounter
from mcp_context_proxy.items import Kind
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.results import ResourceLinks
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.server.consent import Consent
from mcp_context_proxy.server.forwarding import Forwarder
from mcp_context_proxy.server.meta_tools import MetaTools
from mcp_context_proxy.server.tools_call import EndedCalls, ToolCalls

ONE_TOOL = Overrides(tools=DomainOverrides(top_n=1))
READ = "read the contents of a file from disk"


def by_mode(context: RequestContext, mode: Mode) -> dict[str, ContextItem]:
    return {item.name: item for item in context.items if item.include_mode is mode}


def tools(context: RequestContext) -> list[str]:
    return [item.name for item in context.of(Kind.TOOL)]


async def call(proxy: Proxy, host: Host, name: str, **meta: Any) -> None:
    assert "isError" not in await host.call(name, {"text": "x"}, **meta)


async def test_every_need_of_a_query_finds_a_tool(opened: Any) -> None:
    overrides = Overrides(tools=DomainOverrides(top_n=2))
    async with opened() as proxy:
        queries = ["Read the file and then mail it to Bob", "Read the file.\n- Mail it to Bob\n"]
        for query in queries:
            found = tools(await proxy.contexts.build(query, None, overrides))
            assert set(found) == {"files__read_file", "mail__send_mail"}, query


async def test_expansion_is_off_unless_it_is_asked_for(opened: Any) -> None:
    async with opened() as proxy:
        context = await proxy.contexts.build(READ, None, ONE_TOOL)

    assert tools(context) == ["files__read_file"]


async def test_expansion_adds_near_items_and_names_the_item_that_they_are_near_to(opened: Any) -> None:
    context_table = {"expansion_depth": 1, "expansion_top_n": 1, "expansion_threshold": 0.5}
    async with opened(context=context_table) as proxy:
        context = await proxy.contexts.build(READ, None, ONE_TOOL)

    (brought,) = by_mode(context, Mode.EXPANSION).values()
    assert brought.name in {"files__write_file", "files__delete_file"}
    assert "files__read_file" in brought.why
    assert brought.score is not None
    assert brought.score >= 0.5


async def test_each_step_of_expansion_starts_from_the_items_of_the_step_before(opened: Any) -> None:
    near = Overrides(tools=ONE_TOOL.tools, expansion_threshold=0.3, expansion_top_n=1, expansion_depth=1)
    far = Overrides(tools=ONE_TOOL.tools, expansion_threshold=0.3, expansion_top_n=1, expansion_depth=2)
    async with opened() as proxy:
        one = by_mode(await proxy.contexts.build(READ, None, near), Mode.EXPANSION)
        two = by_mode(await proxy.contexts.build(READ, None, far), Mode.EXPANSION)

    assert (len(one), len(two)) == (1, 2)
    assert next(iter(two)) == next(iter(one))
    assert not two.keys() & {"files__read_file"}


async def test_expansion_adds_nothing_below_its_threshold(opened: Any) -> None:
    overrides = Overrides(tools=ONE_TOOL.tools, expansion_depth=3, expansion_threshold=0.99)
    async with opened() as proxy:
        context = await proxy.contexts.build(READ, None, overrides)

    assert not by_mode(context, Mode.EXPANSION)


async def test_expansion_never_adds_manual_or_removed_items(opened: Any) -> None:
    everything = Overrides(
        tools=ONE_TOOL.tools, expansion_depth=5, expansion_threshold=0.0, expansion_top_n=50
    )
    async with opened(context={"expansion_rules": {"read_inbox": ["wipe_inbox"]}}) as proxy:
        session = Session()
        proxy.contexts.remove(session, Kind.TOOL, "mail__send_mail")
        context = await proxy.contexts.build("read the email messages in the inbox", session, everything)

    assert {"files__read_file", "mail__read_inbox"} <= set(tools(context))
    assert not {"mail__wipe_inbox", "mail__send_mail"} & set(tools(context))


async def test_an_expansion_rule_adds_the_items_that_it_names(opened: Any) -> None:
    rules = {"read_file": ["write_file", "search_code"], "other__forecast": ["company"]}
    async with opened(context={"expansion_rules": rules}) as proxy:
        context = await proxy.contexts.build(READ, None, ONE_TOOL)
        found = await Host(proxy, "modern").data("search_available_tools", {"query": READ, "top_n": 1})

    brought = by_mode(context, Mode.EXPANSION)
    assert set(brought) == {"files__write_file", "other__search_code"}
    assert brought["other__search_code"].why == "comes with files__read_file"
    names = [result["name"] for result in found["results"]]
    assert set(names) >= {"files__read_file", "files__write_file", "other__search_code"}


async def test_an_expansion_rule_knows_tools_with_a_shortened_name_by_their_full_name(opened: Any) -> None:
    rules = {"files__write_file": ["other__search_code"]}
    async with opened(context={"expansion_rules": rules}, expose={"max_name_length": 16}) as proxy:
        context = await proxy.contexts.build("write the contents of a file to disk", None, ONE_TOOL)
        (found,) = [tool for tool in proxy.catalog.snapshot.tools.values() if tool.name == "write_file"]
        (brought,) = [tool for tool in proxy.catalog.snapshot.tools.values() if tool.name == "search_code"]

    assert found.exposed_name != "files__write_file"
    assert [*by_mode(context, Mode.EXPANSION)] == [brought.exposed_name]


async def test_tools_that_were_used_stay_selected_for_three_requests(opened: Any) -> None:
    async with opened() as proxy:
        host = Host(proxy, "handshake")
        assert host.session is not None
        await proxy.contexts.build(READ, host.session, ONE_TOOL)
        await call(proxy, host, "other__translate")

        retained = [
            "other__translate"
            in by_mode(await proxy.contexts.build(READ, host.session, ONE_TOOL), Mode.RETAINED)
            for _ in range(4)
        ]

    assert retained == [True, True, True, False]


async def test_a_modern_call_belongs_to_the_context_it_names(opened: Any) -> None:
    async with opened() as proxy:
        host = Host(proxy, "modern")
        made = (await host.data("set_context", {"query": READ}))["context_id"]
        await host.call(
            "call_tool", {"name": "other__translate", "arguments": {"text": "x"}, "context_id": made}
        )
        await call(proxy, host, "other__play_song", **{"io.github.mcp-context-proxy/context": made})
        found = await host.data("search_available_tools", {"query": READ, "top_n": 1, "context_id": made})

        context = await proxy.contexts.request(found["request_id"])
        assert context is not None
        assert set(by_mode(context, Mode.RETAINED)) == {"other__translate", "other__play_song"}


async def test_results_of_calls_can_influence_the_next_selection_if_that_is_on(opened: Any) -> None:
    spoken = {"text": "Forecast of the weather for the city of Utrecht: rain"}
    for on in (False, True):
        table = {"expand_results": on, "expansion_threshold": 0.4, "expansion_top_n": 1}
        async with opened(context=table) as proxy:
            host = Host(proxy, "handshake")
            await host.call("other__translate", spoken)
            context = await proxy.contexts.build(READ, host.session, ONE_TOOL)

        assert ("other__forecast" in by_mode(context, Mode.EXPANSION)) is on


async def test_earlier_queries_can_influence_the_next_one_if_that_is_on(opened: Any) -> None:
    async with opened() as proxy:
        session = Session()
        await proxy.contexts.build("the weather forecast for a city", session)
        overrides = [Overrides(tools=ONE_TOOL.tools, history=history) for history in (0, 3)]
        vague = "what about tomorrow?"
        scores = []
        for one in overrides:
            session.requests, session.history = 0, type(session.history)(["the weather forecast for a city"])
            context = await proxy.contexts.build(vague, session, one)
            listed = (*context.items, *context.near_misses)
            scores.append(next(item.score or 0 for item in listed if item.name == "other__forecast"))

    assert scores[1] > scores[0] + 0.1


async def test_items_over_the_token_budget_are_named_with_their_cost(opened: Any) -> None:
    async with opened() as proxy:
        whole = await proxy.contexts.build(READ)
        first = whole.of(Kind.TOOL)[0]
        kept = sum(item.tokens for item in whole.items if item.include_mode is Mode.ALWAYS)
        budget = Overrides(max_tokens=kept + first.tokens)
        context = await proxy.contexts.build(READ, None, budget)
        session = Session(overrides=budget)
        host = Host(proxy, "handshake")
        host.session = session
        answer = await host.call("search_available_tools", {"query": READ})
        data = await host.data("search_available_tools", {"query": READ})

    assert tools(context) == [first.name]
    assert context.tokens <= kept + first.tokens
    dropped = {item.name for item in context.dropped}
    assert dropped == {item.name for item in whole.items} - {item.name for item in context.items}
    assert all(name in answer["content"][0]["text"] for name in dropped)
    assert {one["name"] for one in data["dropped"]} == dropped


async def test_items_of_the_session_are_never_dropped_for_the_budget(opened: Any) -> None:
    async with opened() as proxy:
        context = await proxy.contexts.build(READ, None, Overrides(max_tokens=1))

    assert {item.name for item in context.items} == {"tone", "company"}
    assert context.dropped


FAILURE = "the model is on fire" + ", and so is the house" * 20
"""Longer than a search that finds nothing may be told."""


class Failing:
    """An embedder that fails in a way nobody has foreseen."""

    def embed(self, texts: Sequence[str], on_progress: object = None) -> NDArray[np.float32]:
        raise RuntimeError(FAILURE)


async def test_a_failed_search_serves_the_items_of_the_session_and_is_recorded(opened: Any) -> None:
    async with opened() as proxy:
        engine = Engine(CachedEmbedder(proxy.search.model, proxy.store.vectors), Failing())
        await to_thread.run_sync(engine.index, proxy.catalog.snapshot)
        contexts = ContextEngine(
            catalog=proxy.catalog,
            searcher=Searcher(
                engine=engine,
                config=proxy.config,
                wait_for_starting_servers=proxy.refresh.wait_for_starting_servers,
                open_model=proxy.search.model.get,
            ),
            sessions=Sessions(),
            records=RequestRecords(proxy.config.limits),
            options=configured(proxy.config),
            costs=Costs(TokenCounter(), tool_definition),
            expander=ContextExpander(proxy.search.expander, {}),
            redact=proxy.redact,
        )
        calls = ToolCalls(
            catalog=proxy.catalog,
            fleet=proxy.fleet,
            forwarder=Forwarder(proxy.pending_input, proxy.audit),
            tasks=proxy.gateway.tasks,
            contexts=contexts,
            handles=proxy.handles,
            wait_for_server=proxy.refresh.wait_for_server,
            answered=Counter(),
            ended=EndedCalls(records=RequestRecords(proxy.config.limits), catalog=proxy.catalog),
            consent=Consent(
                pending=proxy.pending_input, changes=proxy.changes, redact=proxy.redact, seconds=1, most=1
            ),
            results=proxy.results,
            links=ResourceLinks(),
            when_kept=lambda _: None,
        )
        own_tools = MetaTools(
            fleet=proxy.fleet,
            contexts=contexts,
            calls=calls,
            handles=proxy.handles,
            tools=proxy.tool_list,
            changes=proxy.changes,
            pending_input=proxy.pending_input,
            resources=proxy.gateway.resources,
            redact=proxy.redact,
            asks_clients=False,
            manage=lambda: False,
            noted=NotedClients(),
            document_bytes=lambda: 1_000_000,
        )
        host = Host(proxy, "handshake")
        assert host.session is not None
        contexts.add(host.session, Kind.TOOL, "mail__wipe_inbox")
        arguments = envelope.raw({"query": READ})

        meta = envelope.raw({"io.github.mcp-context-proxy/format": "json"})
        params = {"arguments": arguments, "_meta": meta}
        result = await own_tools.call("search_available_tools", params, host.caller(params))
        answer = data_of(json.loads(result))

        (context,) = await contexts.requests(host.session.id)
        plain = {"arguments": envelope.raw({"query": READ, "kinds": ["tool"]})}
        caller = Host(proxy, "handshake").caller(plain)
        told = text_of(json.loads(await own_tools.call("search_available_tools", plain, caller)))

    assert "The search failed" in told
    assert "Indexing" not in told
    assert context.failure == f"RuntimeError: {FAILURE}"
    assert {item.name for item in context.items} == {"tone", "company", "mail__wipe_inbox"}
    assert {one["name"] for one in answer["results"]} == {
        "tone",
        "company",
        "mail__wipe_inbox",
    }
    assert "on fire" in answer["note"]
