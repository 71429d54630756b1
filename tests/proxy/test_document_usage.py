"""Use of rules and references is counted as that of tools is: found, given, read, or never used."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.proxies import Host, inside
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.statistics.report import Reports
from mcp_context_proxy.store.statistics import DAY

SEARCH = "search_available_tools"
DOCUMENTS = {
    "rules/commits.md": "---\ndescription: How commits are worded\n---\n# Commits\n\nSay why, in one line.\n",
    "rules/tone.md": "---\ninclude: always\n---\n# Tone\n\nWrite plain English.\n",
    "references/billing.md": "# Billing\n\nHow an invoice is numbered and when it is due.\n",
    "rules/freeze.md": "---\ninclude: manual\n---\n# Freeze\n\nMerge nothing.\n",
    "references/moon.md": "# Phases of the moon\n\nWhen the moon is full.\n",
}


@pytest.fixture
async def proxy(workshop: Workshop) -> AsyncIterator[Proxy]:
    for name, text in DOCUMENTS.items():
        path = workshop.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    workshop.server("work", tools=[tool("echo", "Repeat a text"), tool("list_notes", "List all notes")])
    folders = [{"kind": "rule", "path": "rules"}, {"kind": "reference", "path": "references"}]
    async with inside(workshop.config(documents=folders, expose={"mode": "search"})) as opened:
        yield opened


async def uses(proxy: Proxy) -> dict[str, tuple[int, int, int]]:
    assert proxy.usage is not None
    await proxy.usage.flush()
    reports = Reports(proxy.store.statistics)
    return {one.name: (one.found, one.delivered, one.reads) for one in reports.documents(0.0)}


async def test_a_document_that_a_search_finds_counts_as_found_and_given(proxy: Proxy, host: Host) -> None:
    answer = await host.data(SEARCH, {"query": "how is an invoice numbered"})
    assert [one["name"] for one in answer["results"] if one["type"] == "reference"] == ["billing"]

    assert (await uses(proxy))["billing"] == (1, 1, 0)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/read", {"uri": "rule://commits"}),
        ("tools/call", {"name": "read_document", "arguments": {"name": "rule://commits"}}),
    ],
)
async def test_a_document_that_is_read_by_name_counts_as_read(
    proxy: Proxy, host: Host, method: str, params: dict[str, Any]
) -> None:
    await host.request(method, params)

    assert (await uses(proxy))["commits"] == (0, 0, 1)


async def test_rules_in_the_instructions_of_a_session_count_as_given(proxy: Proxy) -> None:
    proxy.introduce()

    assert await uses(proxy) == {"tone": (0, 1, 0)}


async def test_documents_that_nobody_used_for_a_month_are_suggested_for_removal(
    proxy: Proxy, host: Host
) -> None:
    assert proxy.usage is not None
    proxy.usage.inventory.count(lambda: None)
    known_since = max(row.first for row in proxy.store.statistics.definitions())
    await host.data(SEARCH, {"query": "how is an invoice numbered"})
    await host.request("resources/read", {"uri": "rule://commits"})
    proxy.introduce()
    await proxy.usage.flush()
    reports = Reports(proxy.store.statistics)

    assert reports.unused_documents(known_since + 29 * DAY) == [], "none is known for long enough"
    (moon,) = reports.unused_documents(known_since + 30 * DAY)
    assert (moon.kind, moon.name) == ("reference", "moon")
    assert moon.tokens > 0
    a_day_later = {one.name for one in reports.unused_documents(known_since + 31 * DAY)}
    assert a_day_later == {"billing", "commits", "moon", "tone"}, "the others were not used since"


async def test_the_cost_of_documents_stays_out_of_the_figures_of_tools(proxy: Proxy) -> None:
    assert proxy.usage is not None
    proxy.usage.inventory.count(lambda: None)
    unused = Reports(proxy.store.statistics).unused(lambda _, tool: tool, time.time() + 31 * DAY)

    assert {one.name for one in unused.tools} == {"echo", "list_notes"}
