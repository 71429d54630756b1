"""docs/search.md has the filters, verbs and numbers of the code."""

import re
from pathlib import Path

import pytest
from support.proxies import Host, inside
from support.servers import Workshop

from mcp_context_proxy.cli.search import search_command
from mcp_context_proxy.context.search import ANSWERS
from mcp_context_proxy.embedding.embeddings import REMEMBERED_QUERIES
from mcp_context_proxy.examples import DATA_VARIABLE, servers
from mcp_context_proxy.items import MIN_CALLS, SearchFilters
from mcp_context_proxy.protocol import eras
from mcp_context_proxy.retrieval.item_metadata import VERBS
from mcp_context_proxy.server import meta_definitions, search_answers
from mcp_context_proxy.web.search import SearchWanted

PAGE = Path(__file__).parents[2] / "docs" / "search.md"
NOT_FOR_MODELS = {"max_latency_ms", "min_success_rate", "min_calls", "strict"}


@pytest.fixture
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_every_filter_is_listed_with_its_option(page: str) -> None:
    rows = re.findall(r"^\| `(\w+)`[^|]*\| ([^|]*) \|", page.partition("## Categories")[0], re.MULTILINE)
    options = {option for param in search_command.params for option in (*param.opts, *param.secondary_opts)}

    assert [name for name, _ in rows] == list(SearchFilters.__struct_fields__)
    for _, named in rows:
        assert set(re.findall(r"`(--[\w-]+)`", named)) <= options


def test_every_filter_can_be_asked_for_in_mcp_and_rest() -> None:
    named = set(SearchFilters.__struct_fields__)
    search = meta_definitions.definitions(meta_definitions.Setup((), False))[0]

    assert named <= set(SearchWanted.__struct_fields__)
    assert named - NOT_FOR_MODELS <= set(meta_definitions.SearchArguments.__struct_fields__)
    for name in named - NOT_FOR_MODELS:
        assert re.search(rf"\b{name}\b", bytes(search).decode())


def test_the_verbs_are_those_of_the_code(page: str) -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| ([a-z, ]+) \|$", page.partition("first of these verbs")[2], re.MULTILINE
    )

    assert {verb: tag for tag, verbs in rows for verb in verbs.split(", ")} == VERBS


def test_the_numbers_are_those_of_the_code(page: str) -> None:
    assert f"once there were {MIN_CALLS} " in page
    assert f"({ANSWERS} answers" in page
    assert f"latest {REMEMBERED_QUERIES:,} texts" in page
    assert f"at most {search_answers.ANSWER_TOKENS} tokens, or {search_answers.TOKENS_EACH} for each" in page
    assert f"exceed {search_answers.MOST_TOKENS} tokens" in page
    assert f'"{eras.FORMAT_KEY}": "json"' in page


async def test_the_answer_is_the_one_that_a_model_gets(page: str, workshop: Workshop) -> None:
    (answer,) = re.findall(r"^```text\n(The .*?)\n```$", page, re.MULTILINE | re.DOTALL)
    query, top_n = re.findall(r'answer to "(.*?)", with `top_n` (\d+)', page)[0]
    program, *arguments = servers()["notes"]
    env = {DATA_VARIABLE: str(workshop.folder)}
    workshop.server("notes").settings = {"command": program, "args": arguments, "env": env}
    patient = {"indexing_wait_seconds": 600.0}
    async with inside(workshop.config(expose={"list_all_below": 0}, limits=patient)) as proxy:
        result = await Host(proxy, "modern").call(
            meta_definitions.SEARCH, {"query": query, "top_n": int(top_n)}
        )

    assert result["content"] == [{"type": "text", "text": answer}]
