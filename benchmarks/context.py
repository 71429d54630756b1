"""Time of a request context over 3,000 tools and 300 documents, once its query is embedded.

    python benchmarks/context.py [--requests N] [--store FILE]

Each query is new. It is embedded ahead, so that what is left is search, assembly, counting tokens, recording
and the way into a thread and back. With expansion and without it take turns, on queries of their own.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence

import anyio
import anyio.to_thread
import definitions
from figures import Figure, percentile, table

from mcp_context_proxy.catalog.definitions import tool_definition
from mcp_context_proxy.config import Config
from mcp_context_proxy.context import NO_OVERRIDES, Overrides, RequestRecords, configured
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.search import Searcher
from mcp_context_proxy.context.selection import ContextExpander
from mcp_context_proxy.context.session import Session, Sessions
from mcp_context_proxy.embedding.embeddings import (
    CachedEmbedder,
    Costs,
    LazyModel,
    QueryEmbedder,
    TokenCounter,
)
from mcp_context_proxy.items import Item
from mcp_context_proxy.library import Catalog, Include, reference, rule, tool
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander
from mcp_context_proxy.retrieval.queries import read_query
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.retrieval.vectors import query_vectors
from mcp_context_proxy.store.opening import Store, open_store

SERVERS, TOOLS_EACH, DOCUMENTS = 60, 50, 300
EXPANDED = Overrides(expansion_depth=1)
REQUEST_MS, EXPANSION_MS = 15, 5
"""What a request context may take, and what expansion may add."""


def items() -> Iterator[Item]:
    """The tools and documents; some of either are in every session."""
    for server, index in itertools.product(range(SERVERS), range(TOOLS_EACH)):
        one = definitions.tool(server, index)
        mode: Include = "always" if server == 0 and index < 5 else "agent"
        yield tool(one["name"], one["description"], one["inputSchema"], server=f"s{server}", include=mode)
    for number in range(DOCUMENTS):
        verb, _, noun = definitions.name_of(number).partition("_")
        text = f"# How to {verb} a {noun}\n\nAsk the owner of the {noun} first. Case {number}.\n"
        make = rule if number % 2 else reference
        yield make(f"{verb}-{noun}-{number}", text, include="always" if number < 5 else "agent")


class Subject:
    """The parts of a proxy that build contexts."""

    def __init__(self, store: Store) -> None:
        config, self.catalog = Config(), Catalog(items())
        model = LazyModel()
        self.queries = QueryEmbedder(model)
        self.engine = Engine(
            CachedEmbedder(model, store.vectors), self.queries, calibration=packaged_background()
        )
        self.records = RequestRecords(config.limits, store.requests)
        self.contexts = ContextEngine(
            catalog=self.catalog,
            searcher=Searcher(
                engine=self.engine,
                config=config,
                wait_for_starting_servers=self._nothing_starts,
                open_model=model.get,
            ),
            sessions=Sessions(),
            records=self.records,
            options=configured(config),
            costs=Costs(TokenCounter(), tool_definition),
            expander=ContextExpander(Expander(self.engine.index_of, self.queries), {}),
            redact=str,
        )

    async def _nothing_starts(self, *_: object) -> None:
        """Return at once."""

    async def milliseconds(self, query: str, session: Session, overrides: Overrides) -> float:
        """To build one context, once its query is embedded."""
        index = self.engine.index_of(self.catalog.snapshot)
        read = read_query(query, index.lexical.has, index.words, {})
        query_vectors([(read.texts, read.beside)], self.queries.embed)
        began = time.perf_counter()
        context = await self.contexts.build(query, session, overrides)
        elapsed = time.perf_counter() - began
        assert context.failure is None
        return elapsed * 1e3


async def measure(requests: int, store: Store) -> list[Figure]:
    subject, session, words = Subject(store), Session(), definitions.queries()
    await anyio.to_thread.run_sync(subject.engine.index, subject.catalog.snapshot)
    plain, expanded = list[float](), list[float]()
    async with anyio.create_task_group() as group:
        group.start_soon(subject.records.run)
        for _ in range(20):
            await subject.milliseconds(next(words), session, NO_OVERRIDES)
        for _ in range(requests):
            plain.append(await subject.milliseconds(next(words), session, NO_OVERRIDES))
            expanded.append(await subject.milliseconds(next(words), session, EXPANDED))
        group.cancel_scope.cancel()
    return [
        Figure("request context", plain, "ms", REQUEST_MS),
        Figure("the same, p95", [percentile(plain, 0.95)], "ms"),
        Figure("with expansion, depth 1", expanded, "ms"),
        Figure("what expansion adds", [_more(expanded, plain, 0.5)], "ms", EXPANSION_MS),
        # On a machine that does other work, only the quickest tell what the work itself takes.
        Figure("request context, quickest twentieth", [percentile(plain, 0.05)], "ms", REQUEST_MS),
        Figure("what expansion adds, the same", [_more(expanded, plain, 0.05)], "ms", EXPANSION_MS),
    ]


def _more(one: Sequence[float], other: Sequence[float], share: float) -> float:
    return percentile(one, share) - percentile(other, share)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200, help="of each kind")
    parser.add_argument("--store", default="memory", help="keeps vectors between runs; not a proxy's store")
    arguments = parser.parse_args()
    with open_store(arguments.store) as store:
        figures = anyio.run(measure, arguments.requests, store)
    title = f"Request contexts over {SERVERS * TOOLS_EACH:,} tools and {DOCUMENTS} documents"
    sys.stdout.write(table(title, figures))


if __name__ == "__main__":
    main()
