"""The context engine without a server: a catalog of items that a program has, and selection from it.

Everything stays in memory unless a file is given; the packaged model embeds, each text once.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from mcp_context_proxy.catalog.fingerprints import fingerprint
from mcp_context_proxy.catalog.naming import exposed_name
from mcp_context_proxy.closing import Closing
from mcp_context_proxy.config import Config
from mcp_context_proxy.context import engine
from mcp_context_proxy.context.background import OnProgress
from mcp_context_proxy.context.companions import Companions
from mcp_context_proxy.context.cost import Costs
from mcp_context_proxy.context.options import DomainOptions, DomainOverrides, Overrides, configured
from mcp_context_proxy.context.records import RequestRecords
from mcp_context_proxy.context.request import ContextItem, Draft, Mode, RequestContext
from mcp_context_proxy.context.search import Searcher, Snapshots
from mcp_context_proxy.context.selection import Request
from mcp_context_proxy.context.session import SessionContext as Session
from mcp_context_proxy.context.session import Sessions, key_of
from mcp_context_proxy.embedding.cache import CachedEmbedder
from mcp_context_proxy.embedding.lazy import LazyModel
from mcp_context_proxy.embedding.opening import open_model
from mcp_context_proxy.embedding.queries import QueryEmbedder
from mcp_context_proxy.embedding.remembered import RememberedQueries
from mcp_context_proxy.embedding.tokens import TokenCounter
from mcp_context_proxy.interactions.standalone import Interactions
from mcp_context_proxy.items import Document, IncludeMode, Item, Kind, Snapshot, Source, Tool
from mcp_context_proxy.retrieval.background import fitting_for
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander
from mcp_context_proxy.store import IN_MEMORY, open_store

__all__ = [
    "Catalog",
    "ContextEngine",
    "ContextItem",
    "DomainOverrides",
    "IncludeMode",
    "Interactions",
    "Item",
    "Kind",
    "Mode",
    "Overrides",
    "RequestContext",
    "Session",
    "reference",
    "rule",
    "tool",
]

Include = Literal["always", "manual", "agent"]

_GENERATIONS = itertools.count(1)


def tool(
    name: str,
    description: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    server: str = "local",
    include: Include = "agent",
) -> Tool:
    """A tool; ``parameters`` is the JSON schema of its arguments."""
    schema = parameters or {"type": "object"}
    definition = msgspec.json.encode({"name": name, "description": description, "inputSchema": schema})
    return Tool(
        server=server,
        name=name,
        exposed_name=exposed_name(server, name, Config().expose.max_name_length),
        description=description,
        definition=definition,
        fingerprint=fingerprint(server, definition),
        include=IncludeMode(include),
    )


def rule(
    name: str, text: str, *, description: str = "", include: Include = "agent", priority: int = 500
) -> Document:
    """A rule: how to work."""
    return _document(Kind.RULE, name, text, description, include, priority)


def reference(
    name: str, text: str, *, description: str = "", include: Include = "agent", priority: int = 500
) -> Document:
    """A reference: what to look up."""
    return _document(Kind.REFERENCE, name, text, description, include, priority)


def _document(
    kind: Kind, name: str, text: str, description: str, include: Include, priority: int
) -> Document:
    facts = msgspec.json.encode([kind, name, text, description, include, priority])
    digest = hashlib.sha256(facts).hexdigest()
    return Document(kind, name, description, text, digest, IncludeMode(include), priority)


class Catalog:
    """Everything there is to select from."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        """Hold some items; of several with one type and name the last counts."""
        self.snapshot = _snapshot(items)

    def replace(self, items: Iterable[Item]) -> None:
        """Hold other items from now on; what is the same is not embedded again."""
        self.snapshot = _snapshot(items)


def _snapshot(items: Iterable[Item]) -> Snapshot:
    by_key = {key_of(item): item for item in items}
    sources: dict[str, list[Item]] = {}
    for item in by_key.values():
        key = item.server if isinstance(item, Tool) else f"{item.kind}s"
        sources.setdefault(f"{item.kind is Kind.TOOL}:{key}", []).append(item)
    tools = {item.exposed_name: item for item in by_key.values() if isinstance(item, Tool)}
    documents = {item.uri: item for item in by_key.values() if isinstance(item, Document)}
    return Snapshot(
        next(_GENERATIONS),
        tuple(Source(key.partition(":")[2], tuple(held), {}) for key, held in sources.items()),
        dict(sorted(tools.items())),
        dict(sorted(documents.items())),
    )


class _IndexingSearcher(Searcher):
    """Indexes to the end before it searches: a program would rather wait than miss something."""

    async def ready(self, catalog: Snapshots, on_progress: OnProgress | None = None) -> Snapshot:
        """All of the catalog, indexed."""
        snapshot = catalog.snapshot
        await self.index(snapshot, on_progress)
        return snapshot


class ContextEngine(engine.ContextEngine, Closing):
    """Builds contexts from a catalog. Close it, or use it as a context manager."""

    def __init__(
        self, catalog: Catalog | None = None, config: Config | None = None, store: Path | str = IN_MEMORY
    ) -> None:
        """Prepare an engine.

        Args:
            catalog: What `build` selects from.
            config: Of search, contexts and the embedding model; by default what the proxy has.
            store: A file that keeps vectors; by default they go when it is closed, as request contexts
                always do.
        """
        config = config or Config()
        self._store = open_store(IN_MEMORY if store == IN_MEMORY else Path(store))
        model = LazyModel(partial(open_model, config))
        queries = RememberedQueries(QueryEmbedder(model))
        retrieval = Engine(CachedEmbedder(model, self._store.vectors), queries, fitting_for(config.embedding))
        self._local = _IndexingSearcher(retrieval, config, _nothing_starts, model.get)
        super().__init__(
            catalog or Catalog(),
            self._local,
            Sessions(),
            RequestRecords(config.limits, None),
            configured(config),
            Costs(TokenCounter()),
            Companions(Expander(retrieval.index_of, queries), config.context.expansion_rules),
        )
        self._model = model
        self._given: tuple[tuple[Item, ...], Catalog] = ((), Catalog())

    async def search_context_items(
        self,
        query: str,
        items: Sequence[Item],
        *,
        top_k: int = 20,
        top_n: int = 5,
        include_score: float | None = 0.7,
    ) -> list[ContextItem]:
        """Those of some items that belong to a query: the ``always`` ones, then what it selects, best first.

        Args:
            query: In anybody's words.
            items: To select from, whatever the engine's catalog has.
            top_k: Chunk matches considered.
            top_n: Tools, and rules and references, selected.
            include_score: What is as near in meaning is selected even past ``top_n``; None for none.
        """
        given, catalog = self._given
        if given != tuple(items):
            catalog = Catalog(items)
            self._given = (tuple(items), catalog)
        numbers = DomainOptions(top_k, top_n, include_score)
        options = replace(self._options, tools=numbers, documents=numbers)
        snapshot = await self._local.ready(catalog)
        request, draft = Request(query, "context", options), Draft(query, "context", None, options)
        selected = await self._local.off_loop(partial(self._selection.select, request, snapshot, draft))
        return list(selected.context.items)

    def close(self) -> None:
        """Let go of the model and the store."""
        self._model.close()
        self._store.close()


async def _nothing_starts(seconds: float) -> None:
    """There are no servers to wait for."""
    del seconds
