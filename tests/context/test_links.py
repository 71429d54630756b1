"""Documents bring the tools that they name or describe, and only documents that are meant are shown."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tables import each

from mcp_context_proxy.catalog.documents import load_documents
from mcp_context_proxy.config import Config, DocumentsConfig, Limits
from mcp_context_proxy.context import Mode, RequestContext
from mcp_context_proxy.context.selection import RULES_FOR_FILES
from mcp_context_proxy.context.session import ResultReading
from mcp_context_proxy.errors import UnknownItemError
from mcp_context_proxy.items import Kind, Tool
from mcp_context_proxy.library import (
    Catalog,
    ContextEngine,
    DomainOverrides,
    Overrides,
    Session,
    reference,
    rule,
    tool,
)
from mcp_context_proxy.retrieval.links import mentions
from mcp_context_proxy.retrieval.next_steps import CallResult, steps_by_name

FETCH = tool("fetch_website", "Fetch a website and return its content as markdown", server="web")
TWIN = tool("fetch_website", "Fetch a website and return its content as markdown text", server="copy")
JOBS = tool("list_pipeline_jobs", "List the jobs of a pipeline with their status", server="ci")
LOG = tool("get_pipeline_job_output", "Get the output of a pipeline job by its id", server="ci")
READ = tool("read_file", "Read the contents of a file from disk", server="files")
WRITE = tool("write_file", "Write the contents of a file to disk", server="files")
SEARCH = tool("search_code", "Search the source code of a repository", server="code")
CLOCK = tool("get_time", "Tell the time in a city", server="clock")
POST = tool("post_message", "Post a message to a channel of the team chat", server="chat")
TOOLS = (FETCH, JOBS, LOG, READ, WRITE, SEARCH, CLOCK, POST)
AUTH = rule(
    "auth",
    "Authentication Rules: use fetch_website for token exchange with the auth server. Keep tokens in memory.",
)
INCIDENT = rule(
    "incident",
    "Outages. First post a message to the channel of the team chat, then say when the shop works again.",
)
NOT_THIS = rule("migration", "Migrations of data are tried on a copy. Never use write_file for a migration.")
TONE = rule("tone", "Answer customers politely, in short sentences and without blame.")
RULES = (AUTH, INCIDENT, NOT_THIS, TONE)


@pytest.fixture(scope="module")
def engine() -> Iterator[ContextEngine]:
    with ContextEngine(Catalog([*TOOLS, *RULES])) as made:
        yield made


def with_rules(**context: Any) -> ContextEngine:
    return ContextEngine(Catalog([*TOOLS, *RULES]), Config.of({"context": context}))


def brought(context: RequestContext) -> dict[str, str]:
    return {one.name: one.why for one in context.items if one.include_mode is Mode.EXPANSION}


def called(engine: ContextEngine, one: Tool, text: str, reading: ResultReading) -> Session:
    session = Session()
    result = json.dumps({"content": [{"type": "text", "text": text}]}).encode()
    session.called(one, result, reading)
    return session


async def test_a_rule_that_is_found_brings_the_tool_that_it_names(engine: ContextEngine) -> None:
    context = await engine.build("implement the authentication for the partner")

    assert "auth" in {one.name for one in context.of(Kind.RULE)}
    assert brought(context) == {"web__fetch_website": "named in auth"}


async def test_the_tool_that_a_far_better_document_names_comes_before_the_tools_found() -> None:
    disk = reference(
        "disk-full", "# A node has no space left on its disk\n\nFind what grows with `run_shell`."
    )
    shell = tool("run_shell", "Run a command on a host", server="ops")
    free = tool("free_disk_space", "Free space on the disk of a node", server="ops")
    names = []
    for tools in ((shell, *TOOLS), (shell, free, *TOOLS)):
        with ContextEngine(Catalog([*tools, disk])) as engine:
            answer = await engine.select("the node db-3 has no space left on its disk")
        names.append([one.item.name for one in answer.found.results])

    assert names[0][0] == "run_shell"
    assert len(names[0]) > 2
    assert names[1][0] == "free_disk_space"


async def test_a_rule_brings_the_tool_that_it_plainly_describes(engine: ContextEngine) -> None:
    context = await engine.build("what do we do in an outage of the shop")

    assert "chat__post_message" in {one.name for one in context.items}
    assert any(one.name == "incident" for one in context.items)


async def test_a_rule_does_not_bring_a_tool_that_it_forbids(engine: ContextEngine) -> None:
    context = await engine.build("how are migrations of data tried")

    assert any(one.name == "migration" for one in context.items)
    assert "files__write_file" not in brought(context)


@each("forbids", ["Never", "Do not", "- Please don't", "Avoid to"])
async def test_a_rule_that_only_forbids_brings_no_tool_for_what_it_forbids(forbids: str) -> None:
    text = "{} write the contents of a customer's file to disk."
    found = {}
    for begins in (forbids, "Always"):
        made = ContextEngine(Catalog([*TOOLS, rule("privacy", text.format(begins), include="always")]))
        with made:
            found[begins] = brought(await made.build("the privacy of our customers"))

    assert set(found["Always"]) == {"files__write_file"}
    assert found[forbids] == {}


async def test_a_rule_in_the_session_brings_its_tool_for_any_request(engine: ContextEngine) -> None:
    session = Session()
    engine.add(session, Kind.RULE, "auth")

    assert "web__fetch_website" in brought(await engine.build("the time in Lisbon", session))


async def test_a_rule_of_every_session_brings_what_it_describes_only_where_it_applies() -> None:
    describes = rule("outages", INCIDENT.text, include="always")
    names = rule("auth", AUTH.text, include="always")
    with ContextEngine(Catalog([*TOOLS, describes, names])) as engine:
        elsewhere = brought(await engine.build("the time in Lisbon"))
        outage = await engine.build("what do we do in an outage of the shop")

    assert elsewhere == {"web__fetch_website": "named in auth"}
    assert "chat__post_message" in {one.name for one in outage.items}


async def test_of_tools_with_the_named_name_only_one_is_brought() -> None:
    with ContextEngine(Catalog([*TOOLS, TWIN, AUTH])) as engine:
        context = await engine.build("implement the authentication for the partner")

    assert len([name for name in brought(context) if name.endswith("fetch_website")]) == 1


async def test_a_full_name_in_a_rule_is_not_the_own_name_of_a_tool_of_another_server() -> None:
    means = rule("auth", AUTH.text.replace("fetch_website", "web__fetch_website"))
    posing = tool("web__fetch_website", "Fetch a website for token exchange with the auth server", server="x")
    with ContextEngine(Catalog([*TOOLS, posing, means])) as engine:
        context = await engine.build("implement the authentication for the partner")

    assert context.items[0].name != "x__web__fetch_website"
    assert brought(context).get("web__fetch_website") == "named in auth"


async def test_a_called_tool_brings_the_documents_that_name_it(engine: ContextEngine) -> None:
    session = called(engine, FETCH, "ok", ResultReading())

    assert brought(await engine.build("the time in Lisbon", session))["auth"] == "names web__fetch_website"


async def test_without_documents_nothing_is_brought() -> None:
    with ContextEngine(Catalog(TOOLS)) as engine:
        for query in ("read the file", "post a message to the team", "the time in Lisbon"):
            assert not brought(await engine.build(query))


async def test_a_request_for_a_tool_shows_no_rule_about_something_else(engine: ContextEngine) -> None:
    for query in ("the time in Lisbon", "search the source code for TODO", "list the jobs of pipeline 7"):
        assert not (await engine.build(query)).of(Kind.RULE), query


async def test_a_request_that_repeats_a_description_does_not_hide_a_rule_about_the_tool() -> None:
    short = rule("chat", "Post nothing to the team chat after six in the evening.")
    with ContextEngine(Catalog([*TOOLS, *RULES, short])) as engine:
        context = await engine.build("Post a message to a channel of the team chat")

    assert "chat" in {one.name for one in context.of(Kind.RULE)}


async def test_a_topic_is_found_among_others_in_one_file() -> None:
    book = reference("book", "\n\n".join(one.text for one in (TONE, NOT_THIS, INCIDENT)))
    with ContextEngine(Catalog([*TOOLS, book])) as engine:
        for query in ("how should I answer an angry customer", "how are migrations of data tried"):
            assert "book" in {one.name for one in (await engine.build(query)).of(Kind.REFERENCE)}, query


ROOMS = (f"Room {number} has a table and {number % 7} chairs." for number in range(40))
HANDBOOK = reference(
    "handbook",
    "\n\n".join(
        (
            "Open a window when you leave the kitchen.",
            "The shell of the snail on our logo is blue, and its name is never translated.",
            "Run along the river on Thursdays at six, whoever likes to.",
            "Pods of the coffee machine are in the second drawer, and the empty ones belong in the bin.",
            "Web addresses are written without a prefix. We list them at the end of each page.",
            "Error 4107 of the till: a quantity is below the minimum. Error 4110: the customer is blocked.",
            *ROOMS,
        )
    ),
)


async def test_words_from_all_chapters_of_a_handbook_do_not_make_it_meant() -> None:
    shell = tool("exec_in_pod", "Execute a command inside of a container", server="kubernetes")
    with ContextEngine(Catalog([*TOOLS, shell, HANDBOOK])) as engine:
        context = await engine.build("open a shell and run a command in the pod web-1, then list the pages")
        asked = await engine.build("what does error 4107 of the till mean")

    assert [one.name for one in context.of(Kind.REFERENCE)] == []
    assert [one.name for one in asked.of(Kind.REFERENCE)] == ["handbook"]


async def test_without_a_model_a_request_for_a_tool_brings_no_handbook(tmp_path: Path) -> None:
    config = Config.of({"embedding": {"model": str(tmp_path / "none")}})
    with ContextEngine(Catalog([*TOOLS, HANDBOOK]), config) as engine:
        context = await engine.build("write the list of open rooms to a file, and run along")
        asked = await engine.build("what does error 4107 of the till mean")

    assert [one.name for one in context.of(Kind.REFERENCE)] == []
    assert [one.name for one in asked.of(Kind.REFERENCE)] == ["handbook"]


async def test_a_question_that_a_rule_answers_shows_it(engine: ContextEngine) -> None:
    for query, name in (
        ("how should I answer an angry customer", "tone"),
        ("how is authentication done here", "auth"),
    ):
        assert name in {one.name for one in (await engine.build(query)).of(Kind.RULE)}, query


@each("source", ["called", "added", "always"])
async def test_an_expansion_rule_starts_from_every_tool_in_use(source: str) -> None:
    always = tool("read_file", READ.description, server="files", include="always")
    items = [always if one is READ and source == "always" else one for one in TOOLS]
    config = Config.of({"context": {"expansion_rules": {"read_file": ["write_file", "search_code"]}}})
    with ContextEngine(Catalog(items), config) as engine:
        session = called(engine, READ, "x", ResultReading()) if source == "called" else Session()
        if source == "added":
            engine.add(session, Kind.TOOL, "files__read_file")
        context = await engine.build("the time in Lisbon", session)

    assert brought(context).keys() >= {"files__write_file", "code__search_code"}


async def test_items_that_come_with_another_never_displace_it() -> None:
    rules = {"read_file": ["write_file", "search_code"]}
    with with_rules(expansion_rules=rules, max_tokens=100) as engine:
        context = await engine.build("read the contents of a file from disk")

    names = [one.name for one in context.items]
    assert "files__read_file" in names
    assert context.tokens <= 100


async def test_without_room_for_an_item_those_that_it_brings_stay_away() -> None:
    with with_rules(expansion_rules={"read_file": ["write_file"]}, max_tokens=20) as engine:
        context = await engine.build("read the contents of a file from disk")

    assert "files__write_file" not in {one.name for one in context.items}


async def test_what_comes_in_two_steps_stays_away_without_the_step_between() -> None:
    planets = "Draw a picture of the planets"
    far = tool("far", planets, server="files")
    both = f"Read the contents of a file from disk. {planets}" + ", and of their moons" * 20
    long = tool("between", both, server="files")
    config = {"expansion_threshold": 0.1, "expansion_depth": 2, "expansion_top_n": 1, "max_tokens": 130}
    with ContextEngine(Catalog([READ, long, far]), Config.of({"context": config})) as engine:
        context = await engine.build("read_file", None, Overrides(tools=DomainOverrides(top_n=1)))
    names = {one.name for one in context.items}

    assert {one.name for one in context.dropped} >= {"files__between"}
    assert "files__read_file" in names
    assert "files__far" not in names


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "AGENTS",
            "unknown tool 'AGENTS'; did you mean reference://AGENTS%2FStyle or reference://AGENTS%2FTests",
        ),
        ("vacation", "unknown tool or document 'vacation'"),
    ],
)
def test_a_name_that_only_sections_have_is_answered_with_them(name: str, told: str) -> None:
    documents = [reference("AGENTS/Style", "Be brief."), reference("AGENTS/Tests", "Run them.")]
    with (
        ContextEngine(Catalog([*TOOLS, *documents])) as engine,
        pytest.raises(UnknownItemError, match=re.escape(told)),
    ):
        engine.add(Session(), Kind.TOOL, name)


async def test_a_budget_is_filled_with_more_that_fits_and_never_exceeded(engine: ContextEngine) -> None:
    query = "read the contents of a file"
    usual = await engine.build(query)
    filled = await engine.build(query, None, Overrides(max_tokens=2000))
    narrow = await engine.build(query, None, Overrides(max_tokens=90))

    assert len(filled.of(Kind.TOOL)) >= len(usual.of(Kind.TOOL))
    assert len(filled.of(Kind.TOOL)) < len(TOOLS)
    assert narrow.tokens <= 90


RESULT = (
    '[{"id": 88121, "name": "test", "stage": "test", "status": "failed"}, {"id": 88122, "status": "skipped"}]'
)


@pytest.mark.parametrize(
    ("reading", "comes"),
    [
        (ResultReading(), False),
        (ResultReading(enabled=True), True),
        (ResultReading(enabled=True, tools=("ci__*",)), True),
        (ResultReading(enabled=True, tools=("files__*",)), False),
    ],
)
async def test_the_list_of_failing_jobs_brings_the_tool_that_reads_a_log(
    engine: ContextEngine, reading: ResultReading, comes: bool
) -> None:
    session = called(engine, JOBS, RESULT, reading)
    session.overrides = Overrides(expand_results=reading.enabled)
    context = await engine.build("hello", session)

    assert ("ci__get_pipeline_job_output" in brought(context)) is comes


TICKET = {"type": "object", "properties": {"ticket_id": {"type": "string"}}, "required": ["ticket_id"]}
DESK = tuple(
    tool(name, description, parameters, server="desk")
    for name, description, parameters in (
        ("list_tickets", "List the tickets of the help desk", None),
        ("search_tickets", "Search the tickets of the help desk for words", None),
        ("get_ticket", "Get a ticket of the help desk", TICKET),
        ("create_ticket", "Create a ticket at the help desk", None),
        ("delete_ticket", "Delete a ticket of the help desk", TICKET),
    )
)
STAGING = ("stage_changes", "make_commit", "list_tags", "prune_remote", "blame_line", "read_hooks")


@pytest.fixture(scope="module")
def followed() -> Iterator[ContextEngine]:
    """An engine over servers whose tools are called one after the other."""
    vcs = [
        tool(one, f"{one.replace('_', ' ').capitalize()} of a repository", server="vcs") for one in STAGING
    ]
    with ContextEngine(Catalog([*DESK, *vcs])) as made:
        yield made


async def test_a_list_is_followed_by_reading_one_of_its_things(followed: ContextEngine) -> None:
    session = Session(overrides=Overrides(expand_results=True))
    followed.called(session, "list_tickets", '[{"ticket_id": "HD-7", "title": "No sound"}]')
    steps = brought(await followed.build("go on", session))

    assert next(iter(steps)) == "desk__get_ticket"
    assert not {"desk__search_tickets", "desk__create_ticket", "desk__delete_ticket"} & steps.keys()


async def test_what_follows_elsewhere_follows_where_no_word_is_shared(followed: ContextEngine) -> None:
    session = Session(overrides=Overrides(expand_results=True))
    followed.called(session, "stage_changes", "2 files are staged: src/a.py, src/b.py")
    context = await followed.build("go on", session)

    assert next(iter(brought(context))) == "vcs__make_commit"


def test_known_steps_are_pairs_of_names_in_words_each_once() -> None:
    steps = steps_by_name()

    assert len(steps) == len(set(steps)) > 800
    assert all(re.fullmatch(r"[a-z ]+", name) for step in steps for name in step)


async def test_an_error_brings_what_has_to_be_done_first() -> None:
    names = ("edit_document", "protect_document", "unprotect_document", "add_heading", "convert_to_pdf")
    words = [tool(name, f"{name.replace('_', ' ').capitalize()}", server="word") for name in names]
    said = "Cannot change it: the document is protected. Unprotect it first."
    with ContextEngine(Catalog(words)) as engine:
        session = Session(overrides=Overrides(expand_results=True))
        result = json.dumps({"content": [{"type": "text", "text": said}], "isError": True}).encode()
        session.called(words[0], result, ResultReading())
        context = await engine.build("go on", session)

    assert next(iter(brought(context))) == "word__unprotect_document"


@each(
    ("said", "failed"),
    [
        ('{"status": "failed"}', True),
        ("api-1 0/1 CrashLoopBackOff", True),
        ('{"errors": [], "failed_count": 0, "exception": null}', False),
        ("12 passed, no errors", False),
    ],
)
def test_a_result_that_counts_no_failure_is_none(said: str, failed: bool) -> None:
    assert CallResult.of(JOBS, said).failed is failed


async def test_a_program_notes_the_calls_of_its_session_itself(engine: ContextEngine) -> None:
    session = Session(overrides=Overrides(expand_results=True))
    engine.called(session, "list_pipeline_jobs", RESULT)
    context = await engine.build("hello", session)

    assert {one.name: one.include_mode for one in context.items} == {
        "ci__list_pipeline_jobs": Mode.RETAINED,
        "ci__get_pipeline_job_output": Mode.EXPANSION,
    }


@each(
    "text, allowed, forbidden",
    [
        ("Use fetch for pages, `count` first. Never call drop_table.", "fetch count", "drop_table"),
        ("Do not run a_b before c_d; see read. Never merge without e_f.", "a_b c_d e_f", ""),
        ("Stop the service with a_b, and stop calling c_d.", "a_b", "c_d"),
        ("Never use `a_b`, `c_d`, `e_f`, `g_h_with_a_long_name` or `i_j_with_one`. Use k_l.", "k_l",
         "a_b c_d e_f g_h_with_a_long_name i_j_with_one"),
        ("Never use a_b, use c_d. Don't forget to call e_f.", "c_d e_f", "a_b"),
        ("`a_b` and `c_d` are forbidden, `e_f` is not.", "e_f", "a_b c_d"),
        ("a_b must not be used: call c_d", "c_d", "a_b"),
        ("`a_b` must not be empty, and `c_d` is not slow", "a_b c_d", ""),
        ("Tools you must not call:\n- `a_b`: loses history\n- c_d\n\nUse e_f.", "e_f", "a_b c_d"),
        ("# Forbidden tools\n\n* a_b\n* c_d", "", "a_b c_d"),
        ("- never `a_b`\n- `c_d` for all else", "c_d", "a_b"),
        ("Use a_b, not c_d, and then e_f.", "a_b e_f", "c_d"),
        ("a_b is off limits; nobody runs c_d", "", "a_b c_d"),
        ("a_b should not be used unless asked. No `c_d`.", "a_b", "c_d"),
        ("Do not guess: a_b knows", "a_b", ""),
        ("If a page doesn't load, check it with a_b. Do not invent ids, get them from c_d.", "a_b c_d", ""),
        ("Never, under no pressure, call a_b. Do not delete, drop or e_f.", "", "a_b e_f"),
        (f"Never use a_b{' ' * 100_000}. c_d", "c_d", "a_b"),
    ],
)  # fmt: skip
def test_names_are_words_that_are_written_like_names(text: str, allowed: str, forbidden: str) -> None:
    said = {one.word: one.forbidden for one in mentions(text)}

    assert {word for word, never in said.items() if not never} == set(allowed.split())
    assert {word for word, never in said.items() if never} == set(forbidden.split())


async def test_of_very_many_rules_those_nearest_to_the_request_come_and_bring_their_tools(
    tmp_path: Path,
) -> None:
    texts = {f"{number:02}": f"Colors come from palette {number} of the brand." for number in range(40)}
    for name, text in (texts | {"z": "Passwords are hashed before `post_message` is used."}).items():
        (tmp_path / f"{name}.md").write_text(f"---\npaths: src/**/*.ts\n---\n{text}\n", encoding="utf-8")
    documents = load_documents([DocumentsConfig(path=tmp_path)], Limits()).documents
    with ContextEngine(Catalog([*TOOLS, *documents])) as engine:
        for_file = await engine.build("search the source code for passwords in src/a.ts")
    always = [rule(name, text, include="always") for name, text in texts.items()]
    with ContextEngine(Catalog([*TOOLS, *always, rule("z-auth", AUTH.text, include="always")])) as engine:
        elsewhere = await engine.build("the time in Lisbon")
        meant = await engine.build("implement the authentication for the partner")

    assert for_file.of(Kind.RULE)[0].name == "z"
    assert len(for_file.of(Kind.RULE)) == RULES_FOR_FILES
    assert brought(for_file)["chat__post_message"] == "named in z"
    assert brought(elsewhere) == {}
    assert brought(meant)["web__fetch_website"] == "named in z-auth"
