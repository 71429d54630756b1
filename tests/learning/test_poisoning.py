"""Nobody carries a tool to the top of everything by calling it, and without the store all is as it was."""

import gzip
import hashlib
import itertools
import json
from pathlib import Path

import pytest

from mcp_context_proxy.embedding.embeddings import LazyModel, QueryEmbedder
from mcp_context_proxy.items import IncludeMode, Snapshot, Source, Tool
from mcp_context_proxy.learning import Signal, Use
from mcp_context_proxy.learning.tier import LearnedTier
from mcp_context_proxy.retrieval import SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.store.opening import open_store

LISTS = Path(__file__).parents[1] / "data" / "tools"
SERVERS = ("filesystem", "git", "google-maps", "memory", "slack", "sqlite", "time", "linear")
POISONED = ("time", "convert_time")
USES = [
    pytest.param(2_000, marks=pytest.mark.smaller),
    pytest.param(10_000, marks=pytest.mark.full_cross),
]
UNRELATED = (
    "create a new branch",
    "send a message to a channel",
    "how far is it from Berlin to Hamburg by car",
    "which restaurants are near the station",
    "rename a file",
    "run a select statement",
    "remember that Alice likes tea",
    "show what was changed in the last commit",
    "list the tables of the database",
    "who is in this channel",
    "open an issue for the bug in the login",
    "read the first lines of a file",
    "add an emoji to a message",
    "delete what I told you about Bob",
    "how high is this mountain",
)
FAR, NEAR = 15, 5
"""A tool that was not among so many is unrelated, and must not come among so few."""


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    found = []
    for path in sorted(LISTS.glob("*.json.gz")):
        if (server := path.name.split(".")[0]) in SERVERS:
            entries = json.loads(gzip.decompress(path.read_bytes()))
            found.append(Source(server, tuple(_tool(server, entry) for entry in _tools(entries))))
    return Snapshot(1, tuple(found))


def _tools(entries):
    return entries["tools"] if isinstance(entries, dict) else entries


def _tool(server, entry):
    raw = json.dumps(entry).encode()
    fingerprint = hashlib.sha256(server.encode() + raw).hexdigest()
    name = entry["name"]
    return Tool(server, name, f"{server}__{name}", raw, fingerprint, IncludeMode.AGENT)


def ranking(engine: Engine, snapshot: Snapshot, query: str) -> list[tuple[str, str]]:
    options = SearchOptions(top_n=FAR, include_score=2.0)
    found = engine.search(query, snapshot, Filters(), options)
    return [(one.item.server, one.item.name) for one in (*found.results, *found.near_misses)]


@pytest.mark.slow
@pytest.mark.parametrize("uses", USES)
def test_thousands_of_uses_for_all_sorts_of_queries_bring_a_tool_into_no_unrelated_top_five(
    snapshot: Snapshot, uses: int
) -> None:
    model = LazyModel()
    queries = QueryEmbedder(model)
    said = [tool.description.split(".")[0] for source in snapshot.sources for tool in source.items]
    with open_store("memory") as store:
        tier = LearnedTier(queries, store.learned)
        engine = Engine(queries, queries, learned=tier)
        before = {query: ranking(engine, snapshot, query) for query in UNRELATED}
        unrelated = [query for query in UNRELATED if POISONED not in before[query]]
        assert len(unrelated) > 10

        for number, query in zip(range(uses), itertools.cycle([*said, *UNRELATED]), strict=False):
            tier.learn(Use(query, POISONED, Signal.FOUND, f"session {number}"))
        after = {query: ranking(engine, snapshot, query) for query in UNRELATED}

        assert len(tier.pairs) > 50
        assert [query for query in unrelated if POISONED in after[query][:NEAR]] == []
        for query in UNRELATED:
            others = [tool for tool in after[query] if tool != POISONED]
            assert others == [tool for tool in before[query] if tool != POISONED][: len(others)]

        tier.forget(lambda _pair: True)
        assert {query: ranking(engine, snapshot, query) for query in UNRELATED} == before
