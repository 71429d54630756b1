"""The context engine as a library, without a server: items of a program, and selection from them.

Everything stays in memory unless a file is given. The packaged model embeds each text once.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from mcp_context_proxy.catalog.definitions import class_of, fingerprint, tool_definition
from mcp_context_proxy.catalog.names import exposed_name
from mcp_context_proxy.config import Config, DomainOptions
from mcp_context_proxy.config.host_profiles import NAME_CHARACTERS
from mcp_context_proxy.config.secrets import Redactor, all_secrets_of
from mcp_context_proxy.context import (
    ContextItem,
    DomainOverrides,
    Mode,
    Overrides,
    RequestContext,
    RequestRecords,
    configured,
    engine,
)
from mcp_context_proxy.context.indexing import OnProgress
from mcp_context_proxy.context.search import Enough, OnWait, Searcher
from mcp_context_proxy.context.selection import ContextExpander, Selection
from mcp_context_proxy.context.session import ResultReading, Sessions, resolve_in
from mcp_context_proxy.context.session import SessionContext as Session
from mcp_context_proxy.embedding import EmbeddingModel, Matrix
from mcp_context_proxy.embedding.embeddings import (
    CachedEmbedder,
    Costs,
    LazyModel,
    QueryEmbedder,
    TokenCounter,
    open_model,
)
from mcp_context_proxy.errors import UnknownItemError, check_bounds, check_type
from mcp_context_proxy.interactions.transfer import Interactions, MessageTable
from mcp_context_proxy.items import (
    Document,
    IncludeMode,
    Item,
    Kind,
    Snapshot,
    Snapshots,
    Source,
    Tool,
    Vector,
    item_by,
    key_of,
)
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander
from mcp_context_proxy.retrieval.scoring import Background, calibration_for
from mcp_context_proxy.retrieval.text import encodable
from mcp_context_proxy.store.memory import Interaction
from mcp_context_proxy.store.opening import IN_MEMORY, open_store
from mcp_context_proxy.system import Closing

__all__ = [
    "Catalog",
    "Config",
    "ContextEngine",
    "ContextItem",
    "DomainOverrides",
    "Embeddings",
    "IncludeMode",
    "Interaction",
    "Interactions",
    "Item",
    "Kind",
    "MessageTable",
    "Mode",
    "Overrides",
    "RequestContext",
    "SelectedItem",
    "Session",
    "reference",
    "rule",
    "tool",
]

Include = Literal["always", "manual", "agent"]

LOCAL = "local"
"""Server of tools that are given without one; their names are used as they are."""

T = TypeVar("T")

_GENERATIONS = itertools.count(1)


class SelectedItem(ContextItem, frozen=True):
    """An item that was selected, with the text that a model has to be given."""

    definition: dict[str, Any] | None = None
    """Definition of a tool, with ``name``, ``description`` and ``inputSchema``; None for documents."""
    text: str | None = None
    """Text of a rule or reference; None for tools."""


def tool(
    name: str,
    description: str | None,
    parameters: Mapping[str, Any] | None = None,
    *,
    server: str = LOCAL,
    include: Include = "agent",
) -> Tool:
    """Create a tool; ``parameters`` is the JSON schema of its arguments. A server may give no description.

    It keeps its name. With a ``server`` of its own, it is named ``server__name``, so that two servers may
    have tools of the same name.

    Raises:
        ValueError: the name is empty.
    """
    description = "" if description is None else description
    _check(name=name, description=description)
    schema = {"type": "object"} if parameters is None else parameters
    check_type("parameters", schema, Mapping)
    shown = name if server == LOCAL else exposed_name(server, name, NAME_CHARACTERS)
    definition = msgspec.json.encode({"name": name, "description": description, "inputSchema": schema})
    return Tool(
        server=server,
        name=name,
        exposed_name=shown,
        written=definition,
        fingerprint=fingerprint(server, definition),
        include=IncludeMode(include),
        tool_class=class_of(name, definition),
    )


def rule(
    name: str, text: str, *, description: str = "", include: Include = "agent", priority: int = 500
) -> Document:
    """Create a rule: markdown that says how to work.

    Raises:
        ValueError: the name is empty, or the priority is not between 0 and 999.
    """
    return _document(Kind.RULE, name, text, description, include, priority)


def reference(
    name: str, text: str, *, description: str = "", include: Include = "agent", priority: int = 500
) -> Document:
    """Create a reference: markdown to look something up in.

    Raises:
        ValueError: the name is empty, or the priority is not between 0 and 999.
    """
    return _document(Kind.REFERENCE, name, text, description, include, priority)


def _document(
    kind: Kind, name: str, text: str, description: str, include: Include, priority: int
) -> Document:
    _check(name=name, text=text, description=description)
    check_bounds("priority", priority, 0, 999)
    text, description = encodable(text), encodable(description)
    facts = msgspec.json.encode([kind, name, text, description, include, priority])
    digest = hashlib.sha256(facts).hexdigest()
    return Document(kind, name, description, text, digest, IncludeMode(include), priority)


def _check(**texts: str) -> None:
    for called, text in texts.items():
        check_type(called, text, str)
    if not texts["name"].strip():
        raise ValueError("the name of an item must not be empty")


class Catalog:
    """The items that an engine selects from."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        """Hold items; of several with the same kind and name, the last counts."""
        self.snapshot = _snapshot(items)

    def replace(self, items: Iterable[Item]) -> None:
        """Replace all items; unchanged ones are not embedded again."""
        self.snapshot = _snapshot(items)

    @property
    def whole(self) -> Catalog:
        """Return the same: a catalog of a library has no parts for principals."""
        return self


def _snapshot(items: Iterable[Item]) -> Snapshot:
    items = tuple(items)
    for item in items:
        check_type("an item", item, Tool, Document)
    by_key = {key_of(item): item for item in items}
    sources: dict[str, list[Item]] = {}
    for item in by_key.values():
        key = item.server if isinstance(item, Tool) else f"{item.kind}s"
        sources.setdefault(f"{item.kind is Kind.TOOL}:{key}", []).append(item)
    tools = {item.exposed_name: item for item in by_key.values() if isinstance(item, Tool)}
    documents = {item.uri: item for item in by_key.values() if isinstance(item, Document)}
    return Snapshot(
        next(_GENERATIONS),
        tuple(Source(key.partition(":")[2], tuple(held)) for key, held in sources.items()),
        dict(sorted(tools.items())),
        dict(sorted(documents.items())),
        servers=frozenset(tool.server for tool in tools.values()),
    )


class _IndexingSearcher(Searcher):
    """Searcher that finishes indexing before it searches: a program would rather wait than miss an item."""

    is_closed = False
    ahead: Snapshot | None = None
    """The catalog that the program has indexed beside its requests, which do not wait then."""

    async def ready(
        self,
        catalog: Snapshots,
        on_progress: OnProgress | None = None,
        on_wait: OnWait | None = None,
        within: float = inf,
        enough: Enough | None = None,
    ) -> Snapshot:
        snapshot = catalog.snapshot
        self._check_open()
        if snapshot is not self.ahead:
            await self.index(snapshot, self._check_open)
        return snapshot

    async def off_loop(self, function: Callable[[], T]) -> T:
        self._check_open()
        return await super().off_loop(function)

    def _check_open(self, *_progress: int) -> None:
        if self.is_closed:
            raise RuntimeError("this engine is closed")


class ContextEngine(engine.ContextEngine, Closing):
    """Builds contexts from a catalog. Close it after use, or use it as a context manager."""

    def __init__(
        self, catalog: Catalog | None = None, config: Config | None = None, store: Path | str = IN_MEMORY
    ) -> None:
        """Create an engine that builds contexts from `catalog`, by default with the settings of the proxy.

        `store` is a file that keeps vectors; by default they are lost on close, as request contexts always
        are.
        """
        catalog, config = Catalog() if catalog is None else catalog, config or Config()
        check_type("catalog", catalog, Catalog)
        check_type("config", config, Config)
        self._store = open_store(IN_MEMORY if store == IN_MEMORY else Path(store))
        model = LazyModel(partial(open_model, config))
        queries = QueryEmbedder(model)
        embedder, calibration = CachedEmbedder(model, self._store.vectors), calibration_for(config.embedding)
        retrieval = Engine(
            embedder,
            queries,
            calibration=calibration,
            stands_for=config.search.synonyms,
            sketch=embedder.sketches,
        )
        background = calibration if isinstance(calibration, Background) else None
        near = Expander(retrieval.index_of, queries, catalog=embedder, background=background)
        self._local = _IndexingSearcher(
            engine=retrieval,
            config=config,
            wait_for_starting_servers=_nothing_starts,
            open_model=model.get,
            expander=near,
        )
        super().__init__(
            catalog=catalog,
            searcher=self._local,
            sessions=Sessions(),
            records=RequestRecords(config.limits, None),
            options=configured(config),
            costs=Costs(TokenCounter(), tool_definition),
            reading=ResultReading.of(config),
            expander=ContextExpander(near, config.context.expansion_rules),
            redact=Redactor(all_secrets_of(config)),
        )
        self._model = model
        self._given: tuple[tuple[Item, ...], Catalog] = ((), Catalog())

    async def index(self, on_progress: OnProgress | None = None) -> None:
        """Embed all items of the catalog that are not embedded yet, ahead of the first request.

        A request that comes meanwhile does not wait. It is answered by words, and by the meaning of the items
        that are embedded by then, or that it is likely to find.

        Args:
            on_progress: Called on the event loop, again and again, with the number of texts that are done and
                the number of all.
        """

        def report(done: int, total: int) -> None:
            self._local._check_open()
            if on_progress is not None:
                on_progress(done, total)

        snapshot = self._local.ahead = self._catalog.snapshot
        try:
            await self._local.index(snapshot, report)
        finally:
            self._local.ahead = None

    async def search_context_items(
        self,
        query: str,
        items: Iterable[Item],
        *,
        top_k: int = 20,
        top_n: int = 5,
        include_score: float | None = 0.7,
    ) -> list[SelectedItem]:
        """Select from the given items: the ``always`` ones, then those that the query finds, best first.

        Each comes with the definition or the text that a model is given.

        Args:
            query: Any words.
            items: The items to select from, instead of the engine's catalog.
            top_k: Number of chunks considered.
            top_n: Number of tools selected, and of rules and references.
            include_score: Cosine from which items are selected even beyond ``top_n``; None for no such items.

        Raises:
            ValueError: a number is outside its bounds.
        """
        check_type("query", query, str)
        DomainOverrides(None, top_k, top_n, include_score)  # checks the numbers, and lets None pass
        check_type("top_k", top_k, Integral)
        check_type("top_n", top_n, Integral)
        wanted, (given, catalog) = tuple(items), self._given
        if given != wanted:
            catalog = Catalog(wanted)
            self._given = wanted, catalog
        numbers = DomainOptions(top_k, top_n, include_score)
        options = replace(self._options, tools=numbers, documents=numbers)
        snapshot = await self._local.ready(catalog)
        selection = Selection(query=query, origin="context", options=options)
        answer = await self._local.off_loop(partial(self._selector.select, selection, snapshot))
        return [_selected(item, snapshot) for item in answer.context.items]

    def called(self, session: Session, name: str, result: str = "", server: str | None = None) -> None:
        """Note that a session has called a tool, with the text of its result.

        In its next contexts the tool stays, documents that name it come, and with the setting
        ``context.expand_results`` or ``Overrides(expand_results=True)`` the tools that fit after the result.
        """
        check_type("result", result, str)
        tool = resolve_in(session, self._catalog.snapshot, Kind.TOOL, name, server)
        if not isinstance(tool, Tool):
            raise UnknownItemError("tool", name)
        answer = msgspec.json.encode({"content": [{"type": "text", "text": encodable(result)}]})
        session.called(tool, answer, self.result_reading)

    def close(self) -> None:
        """Close the model and the store; then every search is a `RuntimeError`."""
        self._local.is_closed = True
        self._model.close()
        self._store.close()


def _selected(item: ContextItem, snapshot: Snapshot) -> SelectedItem:
    found = item_by(snapshot, (item.type, item.name))
    definition = msgspec.json.decode(tool_definition(found)) if isinstance(found, Tool) else None
    text = found.text if isinstance(found, Document) else None
    facts = asdict(item)
    return SelectedItem(**facts, definition=definition, text=text)


async def _nothing_starts(*_: object) -> None:
    """Return at once, because there are no servers to wait for."""


class Embeddings(Closing):
    """Embeds texts with the model of a configuration, by default the packaged one.

    Every vector is a float32 array of `dimension` numbers with norm 1, so the cosine of two is their dot
    product, -1 to 1. Blocking and thread-safe. Close it, or use it as a context manager. Methods raise
    `ModelError` if the model cannot be opened or fails, and `RuntimeError` after `close`.
    """

    _is_closed = False

    def __init__(self, config: Config | None = None) -> None:
        """Open nothing yet; the model is opened at the first use."""
        self._model = LazyModel(partial(open_model, config or Config()))

    @property
    def dimension(self) -> int:
        """Numbers of a vector: 384 with the packaged model."""
        return self._run(lambda model: model.dimensions)

    def embed(self, text: str) -> Vector:
        """Return the vector of one text, of shape ``(dimension,)``."""
        vector: Vector = self.embed_many([text])[0]
        return vector

    def embed_many(self, texts: Sequence[str]) -> Matrix:
        """Return the vectors of texts, one a row, of shape ``(len(texts), dimension)``.

        Raises:
            TypeError: ``texts`` is one text, or one of them is none.
        """
        if isinstance(texts, str):
            raise TypeError("texts is one text; embed_many takes a list of them, and embed takes one")
        given = list(texts)
        for one in given:
            check_type("a text", one, str)
        return self._run(lambda model: model.embed(given))

    def embed_query(self, query: str) -> Vector:
        """Return the vector of a query; some models read queries otherwise than texts."""
        check_type("query", query, str)
        vector: Vector = self._run(lambda model: model.embed_queries([query]))[0]
        return vector

    def cosine(self, one: str, other: str) -> float:
        """Return the cosine of two texts, -1 to 1; 1 is the same direction."""
        first, second = self.embed_many([one, other])
        return float(first @ second)

    def most_similar(self, query: str, texts: Sequence[str], top_k: int = 10) -> list[tuple[int, float]]:
        """Return the texts that are nearest to a query: the position of each, and its cosine, best first.

        Raises:
            ValueError: `top_k` is below 1.
        """
        check_bounds("top_k", top_k, 1)
        if not texts:
            return []
        cosines = self.embed_many(texts) @ self.embed_query(query)
        best = (-cosines).argsort(kind="stable")[:top_k]
        return [(int(at), float(cosines[at])) for at in best]

    def close(self) -> None:
        """Close the model; then every method is a `RuntimeError`."""
        self._is_closed = True
        self._model.close()

    def _run(self, use: Callable[[EmbeddingModel], T]) -> T:
        if self._is_closed:
            raise RuntimeError("these embeddings are closed")
        return self._model.run(use)
