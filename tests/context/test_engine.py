"""Three levels of context: items of every session, those that a session adds, those that a query selects."""

from collections.abc import AsyncIterator, Iterable

import pytest
from msgspec import Raw
from support.documents import Documents
from support.proxies import Host, inside
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.context import ContextItem, DomainOverrides, Mode, Overrides, RequestContext
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.errors import UnknownItemError
from mcp_context_proxy.items import Kind
from mcp_context_proxy.protocol.eras import Hello


@pytest.fixture(scope="module")
async def proxy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    """Rules A always, B manual, C agent; references X always, Y agent; tools of all three modes."""
    workshop = Workshop(tmp_path_factory.mktemp("levels"))
    documents = Documents(workshop.folder)
    documents.add("rule", "A", "always", "Be polite and brief in everything that is written.")
    documents.add("rule", "B", "manual", "Never mention prices of competitors.")
    documents.add("rule", "C", "agent", "Commit messages: say why, in the imperative mood.")
    documents.add("reference", "X", "always", "Our company makes bicycles in Utrecht.")
    documents.add("reference", "Y", "agent", "How invoices are numbered: year, month, counter.")
    workshop.server(
        "work",
        tools=[
            tool("commit", "Record staged changes in a git repository"),
            tool("invoice", "Write an invoice to a customer"),
            tool("clock", "Tell the time"),
            tool("wipe", "Delete everything for good"),
        ],
        settings={"tools": {"clock": {"include": "always"}, "wipe": {"include": "manual"}}},
    )
    config = workshop.config(documents=documents.table, expose={"list_all_below": 0})
    async with inside(config, patience=None) as opened:
        yield opened


def names(context: RequestContext, *kinds: Kind) -> set[str]:
    return {item.name for item in context.of(*kinds)}


def modes(context: RequestContext) -> dict[str, Mode]:
    return {item.name: item.include_mode for item in context.items}


DOCUMENTS = (Kind.RULE, Kind.REFERENCE)


async def test_a_request_context_has_the_items_of_the_session_and_of_the_query(proxy: Proxy) -> None:
    """The worked example of the design source."""
    session = Session()
    proxy.contexts.add(session, Kind.RULE, "B")

    first = await proxy.contexts.build("how do I word a commit message", session)
    second = await proxy.contexts.build("what number does the next invoice get", session)

    assert names(first, *DOCUMENTS) == {"A", "X", "B", "C"}
    assert names(second, *DOCUMENTS) == {"A", "X", "B", "Y"}
    assert {name: modes(first)[name] for name in "AXBC"} == {
        "A": Mode.ALWAYS,
        "X": Mode.ALWAYS,
        "B": Mode.MANUAL,
        "C": Mode.AGENT,
    }
    assert modes(second)["Y"] is Mode.AGENT


async def test_items_selected_for_one_request_do_not_stay_in_the_session(proxy: Proxy) -> None:
    session = Session()
    before = await proxy.contexts.items(session)

    context = await proxy.contexts.build("record my changes in git", session)

    def known(items: Iterable[ContextItem]) -> set[tuple[str, Mode]]:
        return {(item.name, item.include_mode) for item in items}

    assert known(before) < known(context.items)
    assert await proxy.contexts.items(session) == before
    assert {item.name for item in before} == {"A", "X", "work__clock"}


async def test_an_item_removed_by_hand_is_removed_in_that_session_only(proxy: Proxy) -> None:
    session, other = Session(), Session()
    proxy.contexts.remove(session, Kind.RULE, "A")
    proxy.contexts.remove(session, Kind.RULE, "C")
    proxy.contexts.remove(session, Kind.TOOL, "work__commit")

    query = "how do I word a commit message in git"
    contexts = [await proxy.contexts.build(query, session) for _ in range(2)]

    for context in contexts:
        assert not {"A", "C", "work__commit"} & names(context, *Kind)
    assert {"A", "C", "work__commit"} <= names(await proxy.contexts.build(query, other), *Kind)


async def test_an_always_item_removed_and_added_again_counts_as_manual(proxy: Proxy) -> None:
    session = Session()
    proxy.contexts.remove(session, Kind.RULE, "A")
    proxy.contexts.add(session, Kind.RULE, "A")

    context = await proxy.contexts.build("anything", session)

    assert modes(context)["A"] is Mode.MANUAL
    assert [item.name for item in context.items].count("A") == 1


async def test_adding_an_always_item_by_hand_does_not_change_its_mode(proxy: Proxy) -> None:
    session = Session()
    proxy.contexts.add(session, Kind.RULE, "A")

    assert modes(await proxy.contexts.build("anything", session))["A"] is Mode.ALWAYS


async def test_any_item_can_be_added_by_hand_whatever_its_mode(proxy: Proxy) -> None:
    session = Session()
    proxy.contexts.add(session, Kind.TOOL, "wipe", "work")
    proxy.contexts.add(session, Kind.REFERENCE, "Y")

    added = modes(await proxy.contexts.build("tell the time", session))

    assert (added["work__wipe"], added["Y"]) == (Mode.MANUAL, Mode.MANUAL)


async def test_an_item_that_does_not_exist_cannot_be_added(proxy: Proxy) -> None:
    with pytest.raises(UnknownItemError, match="did you mean work__commit"):
        proxy.contexts.add(Session(), Kind.TOOL, "work__comit")


async def test_an_item_of_both_session_and_query_is_listed_once_with_its_score(
    proxy: Proxy,
) -> None:
    context = await proxy.contexts.build("tell me the time", Session())

    (clock,) = [item for item in context.items if item.name == "work__clock"]
    assert clock.include_mode is Mode.ALWAYS
    assert clock.score is not None


async def test_every_item_has_type_server_reason_and_cost(proxy: Proxy) -> None:
    context = await proxy.contexts.build("record my changes in git", Session())

    commit = next(item for item in context.items if item.name == "work__commit")
    assert (commit.type, commit.server, commit.include_mode) == (Kind.TOOL, "work", Mode.AGENT)
    assert commit.why
    assert 20 < commit.tokens < 200
    assert all(item.server is None for item in context.of(*DOCUMENTS))
    assert context.tokens == sum(item.tokens for item in context.items)


async def test_the_request_overrides_the_session_which_overrides_the_agent(proxy: Proxy) -> None:
    session = Session(overrides=Overrides(tools=DomainOverrides(top_n=2), documents=DomainOverrides(top_k=7)))

    of_session = await proxy.contexts.build("work", session)
    of_request = await proxy.contexts.build("work", session, Overrides(tools=DomainOverrides(top_n=1)))

    assert (of_session.options.tools.top_n, of_session.options.documents.top_k) == (2, 7)
    assert (of_request.options.tools.top_n, of_request.options.documents.top_k) == (1, 7)
    assert of_request.options.documents.top_n == 5


async def test_a_preset_sets_all_numbers_of_its_domain_and_a_number_beats_it(proxy: Proxy) -> None:
    overrides = Overrides(tools=DomainOverrides(preset="conservative", include_score=0.9))

    context = await proxy.contexts.build("work", None, overrides)

    tools = context.options.tools
    assert (tools.top_k, tools.top_n, tools.include_score) == (40, 10, 0.9)
    assert context.options.documents.top_n == 5


async def test_requests_are_listed_by_session_newest_first_and_found_by_id(proxy: Proxy) -> None:
    session = Session()
    built = [await proxy.contexts.build(query, session) for query in ("one", "two", "three")]
    await proxy.contexts.build("of nobody")

    assert await proxy.contexts.requests(session.id) == built[::-1]
    assert await proxy.contexts.requests(session.id, limit=1) == [built[2]]
    assert await proxy.contexts.request(built[0].id) == built[0]
    assert await proxy.contexts.request("0123") is None
    assert (await proxy.contexts.requests(limit=1))[0].query == "of nobody"


async def test_sessions_are_listed_for_as_long_as_they_last(proxy: Proxy) -> None:
    session = Session()
    await proxy.contexts.build("tell the time", session)
    listed = {one.id: await proxy.contexts.state(one) for one in proxy.contexts.sessions}

    assert proxy.contexts.sessions.get(session.id) is session
    state = await proxy.contexts.state(session)
    assert listed[session.id] == state
    assert (state.query, state.kind) == ("tell the time", "connection")
    gone = session.id
    del session
    assert proxy.contexts.sessions.get(gone) is None


async def test_a_session_has_the_name_under_which_its_client_introduced_itself(proxy: Proxy) -> None:
    hello = Hello("2025-11-25", Raw(b"{}"), Raw(b'{"name": "claude-code", "version": "1"}'))

    assert (await proxy.contexts.state(Session(hello=hello))).client == "claude-code"
    await proxy.contexts.select("one", Session(hello=hello))
    assert [one.client for one in await proxy.contexts.records.latest(1, None)] == ["claude-code"]
    assert (await proxy.contexts.state(Session())).client is None


async def test_a_search_answers_with_the_id_of_its_request(proxy: Proxy, era: str) -> None:
    host = Host(proxy, era)

    found = await host.data("search_available_tools", {"query": "record my changes"})

    context = await proxy.contexts.request(found["request_id"])
    assert context is not None
    assert (context.query, context.origin) == ("record my changes", "search")
    selected = [item.name for item in context.items if item.include_mode is Mode.AGENT]
    assert selected == [result["name"] for result in found["results"] if result["name"] in selected]
    assert context.session == (None if host.session is None else host.session.id)


async def test_a_rule_that_is_not_chosen_is_explained_by_the_tool_that_is_meant(proxy: Proxy) -> None:
    for query, reason in {
        "record the staged changes in git": "work__commit is nearer to the query",
        "how are invoices numbered": "beside the best document",
    }.items():
        explained = await proxy.contexts.explain(query, Kind.RULE, "C")

        assert explained.selected is None
        assert reason in explained.reason


@pytest.mark.parametrize("named", ["reference://Y", "Y"])
async def test_a_document_is_named_without_its_kind_where_no_tool_has_that_name(
    proxy: Proxy, named: str
) -> None:
    explained = await proxy.contexts.explain("how are invoices numbered", Kind.TOOL, named)

    assert (explained.type, explained.name, explained.selected) == (Kind.REFERENCE, "Y", Mode.AGENT)
