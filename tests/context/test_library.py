"""The context engine without a server."""

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.embeddings import Asked, embedding_service
from support.tables import each

import mcp_context_proxy.library
from mcp_context_proxy import (
    Catalog,
    Config,
    ContextEngine,
    DomainOverrides,
    Embeddings,
    Interactions,
    Kind,
    Mode,
    Overrides,
    Session,
    reference,
    rule,
    tool,
)

TOOLS = [
    tool("send_mail", "Send an email message to a recipient"),
    tool("read_file", "Read the contents of a file from disk"),
    tool("wipe_disk", "Delete every file on the disk", include="manual"),
    tool("forecast", "Forecast of the weather for a city", server="weather"),
]
DOCUMENTS = [
    rule("tone", "Be polite.", include="always"),
    reference("prices", "What a bicycle costs.", priority=7),
]


async def test_items_given_with_the_query_are_searched() -> None:
    with ContextEngine() as engine:
        found = await engine.search_context_items("the weather in a city", TOOLS, top_n=1, include_score=None)
        other = await engine.search_context_items("read a file", TOOLS[:2], top_n=1)
        again = await engine.search_context_items("the weather in a city", TOOLS, top_n=1, include_score=None)

    assert [item.name for item in found] == ["weather__forecast"]
    assert [item.name for item in other] == ["read_file"]
    assert found == again


async def test_a_catalog_is_indexed_ahead_with_progress_and_no_request_waits_for_it() -> None:
    """A large one takes minutes. Here the first texts are held until a request has been answered."""
    tools = [tool(f"refund_{number}", f"Refund the order of customer {number}") for number in range(200)]
    progress, answered = list[tuple[int, int]](), threading.Event()

    def held(asked: Asked) -> None:
        if len(asked.texts) > 1:
            service.asked.set()
            assert answered.wait(30)
        asked.well()

    with embedding_service() as service:
        service.always = held
        model = {"endpoint": service.url, "model": "any"}
        with ContextEngine(Catalog(tools), Config.of({"embedding": model})) as engine:
            indexing = asyncio.create_task(engine.index(lambda *done: progress.append(done)))
            await asyncio.to_thread(service.asked.wait, 30)
            early = await engine.build("refund an order")
            was_indexing = not indexing.done()
            answered.set()
            await indexing
            late = await engine.build("refund an order")

    assert was_indexing
    assert early.items and early.note is not None
    assert late.items and late.note is None
    assert progress[-1] == (200, 200)


async def test_a_selected_tool_has_its_own_name_and_its_definition_and_a_rule_its_text() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    weather = tool("get_weather", "Current weather in a city", schema)
    with ContextEngine() as engine:
        rules, found = await engine.search_context_items("the weather in a city", [weather, DOCUMENTS[0]])

    assert found.name == "get_weather"
    assert found.definition == {
        "name": "get_weather",
        "description": "Current weather in a city",
        "inputSchema": schema,
    }
    assert (rules.text, rules.definition, found.text) == ("Be polite.", None, None)


async def test_include_score_adds_near_items_beyond_top_n() -> None:
    query = "send an email message to a recipient, or read the contents of a file from disk"
    with ContextEngine() as engine:
        few = await engine.search_context_items(query, TOOLS, top_n=1, include_score=1.0)
        more = await engine.search_context_items(query, TOOLS, top_n=1, include_score=0.3)

    assert len(few) == 1
    assert {"send_mail", "read_file"} <= {item.name for item in more}


async def test_contexts_are_built_with_sessions_and_overrides() -> None:
    one = Overrides(tools=DomainOverrides(top_n=1))
    with ContextEngine(Catalog([*TOOLS, *DOCUMENTS])) as engine:
        session = Session(overrides=one)
        engine.add(session, Kind.TOOL, "wipe_disk")
        context = await engine.build("the weather in a city", session)
        latest = await engine.requests(session.id)

    modes = {item.name: item.include_mode for item in context.items}
    assert modes == {
        "tone": Mode.ALWAYS,
        "wipe_disk": Mode.MANUAL,
        "weather__forecast": Mode.AGENT,
    }
    assert latest == [context]


async def test_a_replaced_catalog_is_searched_at_once() -> None:
    catalog = Catalog(TOOLS)
    with ContextEngine(catalog) as engine:
        await engine.build("the weather")
        catalog.replace([tool("tides", "Times of high and low water")])
        context = await engine.build("high water")

    assert [item.name for item in context.items] == ["tides"]


async def test_of_two_items_with_one_name_the_last_counts() -> None:
    with ContextEngine() as engine:
        (item,) = await engine.search_context_items(
            "tides", [tool("tides", "Old"), tool("tides", "Times of high and low water")]
        )

    assert item.name == "tides"


@each(
    ("make", "said"),
    [
        (lambda: Overrides(max_tokens=0), "max_tokens is 0; it must be at least 1"),
        (lambda: Overrides(expansion_depth=6), "expansion_depth is 6; it must be between 0 and 5"),
        (lambda: Overrides(history=-1), "history is -1; it must be between 0 and 100"),
        (lambda: DomainOverrides(top_n=-1), "top_n is -1; it must be at least 1"),
        (lambda: DomainOverrides(include_score=1.5), "include_score is 1.5; it must be between 0 and 1"),
        (lambda: rule("tone", "Be polite.", priority=1000), "priority is 1000; it must be between 0 and 999"),
        (lambda: reference(" ", "What a bicycle costs."), "the name of an item must not be empty"),
        (lambda: tool("", "Send an email"), "the name of an item must not be empty"),
        (lambda: DomainOverrides(preset="most"), "preset is 'most'; it must be one of aggressive, "),  # type: ignore[arg-type]
        (lambda: Interactions().record("a", "message", " "), "content of an interaction must not be empty"),
        (
            lambda: Interactions().record("a", "", "Hi."),
            "interaction_type of an interaction must not be empty",
        ),
        (lambda: Interactions().record("a", "message", "Hi.", -1.0), "the time of an interaction is -1.0"),
        (
            lambda: Interactions().record("a", "message", "Hi.", float("nan")),
            "the time of an interaction is nan",
        ),
    ],
)
def test_a_number_or_name_that_rest_refuses_is_refused_here_too(
    make: Callable[[], object], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        make()


@each(
    ("make", "said"),
    [
        (lambda: tool("mail", b"Send"), "description is of type bytes; it must be str"),
        (lambda: tool("mail", "Send", ["to"]), "parameters is of type list; it must be Mapping"),
        (lambda: rule("tone", b"Be polite."), "text is of type bytes"),
        (lambda: rule("tone", "Be polite.", priority=1.5), "priority is 1.5; it must be a whole number"),
        (lambda: Overrides(max_tokens="9"), "max_tokens is '9'; it must be a whole number"),
        (lambda: Catalog(["mail"]), "an item is of type str; it must be Tool or Document"),
        (lambda: ContextEngine(TOOLS), "catalog is of type list; it must be Catalog"),
        (lambda: ContextEngine(config={"search": {}}), "config is of type dict; it must be Config"),
        (lambda: Interactions().record("a", "message", None), "content is of type NoneType"),
        (lambda: Interactions().semantic_search_interactions("x", top_k=1.5), "top_k is 1.5"),
        (lambda: Embeddings().most_similar("x", ["y"], top_k=1.5), "top_k is 1.5"),
    ],
)
def test_a_value_of_another_type_is_named_at_once(make: Callable[[], object], said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        make()


async def test_what_a_search_over_given_items_is_given_is_checked() -> None:
    with ContextEngine() as engine:
        for wrong in ({"top_k": 0}, {"top_n": -1}, {"include_score": 7.0}):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                await engine.search_context_items("send an email", TOOLS, **wrong)
        for unusable in ({"top_k": 1.5}, {"top_n": None}, {"query": None}):
            with pytest.raises(TypeError, match=next(iter(unusable))):
                await engine.search_context_items(**{"query": "send an email", "items": TOOLS, **unusable})


async def test_items_may_come_one_by_one_and_kinds_as_words() -> None:
    with ContextEngine(Catalog(iter(TOOLS))) as engine:
        given = iter((*TOOLS, tool("ping", None)))
        found = await engine.search_context_items("send an email message", given, top_n=np.int64(1))
        explained = await engine.explain("send an email message", "tool", "send_mail")
        with pytest.raises(ValueError, match="limit is -1"):
            await engine.requests(limit=-1)
        with pytest.raises(ValueError, match="'mail' is not a valid Kind"):
            engine.add(Session(), "mail", "send_mail")

    assert [one.name for one in found] == ["send_mail"]
    assert explained.selected is Mode.AGENT


async def test_half_a_character_in_a_result_or_a_text_ends_nothing() -> None:
    with ContextEngine(Catalog([*TOOLS, rule("mail", "Every email message ends with \ud83d.")])) as engine:
        session = Session(overrides=Overrides(expand_results=True))
        engine.called(session, "read_file", "cut in the middle: \ud83d")
        context = await engine.build("send an email message to a recipient", session)

    assert {"send_mail", "read_file"} <= {item.name for item in context.items}


def test_shells_and_star_imports_are_offered_the_names_of_the_library() -> None:
    names: dict[str, object] = {}
    exec("from mcp_context_proxy import *", names)  # no function may have such an import

    assert set(mcp_context_proxy.library.__all__) <= set(dir(mcp_context_proxy)) & names.keys()


async def test_a_token_in_a_query_is_in_no_record() -> None:
    token = "ghp_" + "a1B2" * 9
    with ContextEngine(Catalog(TOOLS)) as engine:
        context = await engine.build(f"send an email message with {token}")
        (recorded,) = await engine.requests()

    assert token not in context.query + recorded.query
    assert "send_mail" in {item.name for item in context.items}


async def test_a_closed_engine_answers_nothing() -> None:
    engine = ContextEngine(Catalog(TOOLS))
    engine.close()

    with pytest.raises(RuntimeError, match="this engine is closed"):
        await engine.build("send an email message")
    with pytest.raises(RuntimeError, match="this engine is closed"):
        await engine.search_context_items("send an email message", TOOLS)

    with Embeddings() as embeddings:
        assert embeddings.dimension == 384
    with pytest.raises(RuntimeError, match="these embeddings are closed"):
        embeddings.embed("send an email message")


async def test_closing_an_engine_ends_a_search_that_is_still_indexing() -> None:
    engine = ContextEngine(Catalog([tool(f"count_{n}", f"Count the {n} apples") for n in range(4000)]))
    asyncio.get_running_loop().call_later(0.1, engine.close)

    with pytest.raises(RuntimeError, match="this engine is closed"):
        await asyncio.wait_for(engine.build("count apples"), 5)


FORKING = """
import asyncio, os, signal, sys
from mcp_context_proxy import Catalog, ContextEngine, tool

def found(engine, query):
    return "send_mail" in [item.name for item in asyncio.run(engine.build(query)).items]

tools = [tool("send_mail", "Send an email"), tool("read_file", "Read a file from disk")]
engine = ContextEngine(Catalog(tools), store=sys.argv[1])
child = os.fork() if found(engine, "read a file; send an email") else 1
if child == 0:
    signal.alarm(30)
    new = ContextEngine(Catalog(tools))
    os._exit(0 if found(engine, "send an email; open a file") and found(new, "email this; open it") else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_process_goes_on_with_an_engine(tmp_path: Path) -> None:
    run = [sys.executable, "-W", "ignore", "-c", FORKING]
    for store in ("memory", str(tmp_path / "store")):
        subprocess.run([*run, store], check=True, timeout=60)
