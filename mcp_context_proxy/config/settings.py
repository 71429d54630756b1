"""What can be configured: one frozen model per table of ``config.toml``.

The models check the type and range of each value. What spans several keys, files or the environment
is checked while loading, so that all mistakes are reported together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from mcp_context_proxy.config.limits import Count, Limits
from mcp_context_proxy.config.servers import ServerConfig
from mcp_context_proxy.config.table import Amount, Flag, Score, Table, Text
from mcp_context_proxy.items import IncludeMode

Preset: TypeAlias = Literal["aggressive", "normal", "conservative"]
RerankMode: TypeAlias = Literal["never", "auto", "always"]


class ExposeConfig(Table):
    """What hosts see in ``tools/list``."""

    mode: Literal["auto", "all", "search"] = "auto"
    prefix: Flag = True
    """False: tools keep their own names where these are unique."""
    list_all_below: Amount = 3000
    """Estimated tokens under which a catalog is listed whole, because hiding would save nothing."""
    page_size: Amount = 0
    """Entries on a page of a list; 0 is one page for all, since many hosts read no second one."""
    max_name_length: Annotated[int, Field(strict=True, ge=16, le=128)] = 50
    """Hosts add their own prefix and refuse names over 64 characters."""


@dataclass(frozen=True, slots=True)
class DomainSearch:
    """How much a search in one domain considers and returns."""

    top_k: int
    """Chunks considered."""
    top_n: int
    """Items returned."""
    include_score: float
    """Items whose cosine is at least this are returned even beyond `top_n`."""


PRESETS: Final[Mapping[str, DomainSearch]] = {
    "aggressive": DomainSearch(top_k=10, top_n=3, include_score=0.8),
    "normal": DomainSearch(top_k=20, top_n=5, include_score=0.7),
    "conservative": DomainSearch(top_k=40, top_n=10, include_score=0.6),
}
"""Named by how hard they cut: aggressive shows the fewest items, conservative risks least."""


class DomainConfig(Table):
    """What ``[search.tools]`` or ``[search.documents]`` changes."""

    preset: Preset | None = None
    top_k: Count | None = None
    top_n: Count | None = None
    include_score: Score | None = None


class SearchConfig(Table):
    """How much a search considers and returns; a preset, or numbers, which beat it."""

    preset: Preset = "normal"
    top_k: Count = 20
    top_n: Count = 5
    include_score: Score = 0.7
    tools: DomainConfig = DomainConfig()
    documents: DomainConfig = DomainConfig()
    warm_up: Flag = False
    """Embed everything at start instead of at the first search."""

    @model_validator(mode="wrap")
    @classmethod
    def _fill_from_preset(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        preset = data.get("preset", "normal") if isinstance(data, dict) else None
        if not isinstance(preset, str) or preset not in PRESETS:
            return validate(data)
        numbers = PRESETS[preset]
        defaults = {key: getattr(numbers, key) for key in ("top_k", "top_n", "include_score")}
        filled = validate(defaults | data)
        filled.model_fields_set.intersection_update(data)
        return filled

    def resolved(self, domain: Literal["tools", "documents"], calibrated: bool = True) -> DomainSearch:
        """The numbers for one domain: its own, else its preset's, else the general ones.

        Args:
            domain: What is searched.
            calibrated: Whether the presets' ``include_score`` means anything: cosines of another model are
                larger or smaller altogether. If not, only one that is given by hand counts.
        """
        own = self.tools if domain == "tools" else self.documents
        given = own.model_dump(include={"top_k", "top_n", "include_score"}, exclude_none=True)
        general = DomainSearch(self.top_k, self.top_n, self.include_score)
        numbers = PRESETS[own.preset] if own.preset else general
        if not calibrated and (own.preset or "include_score" not in self.model_fields_set):
            numbers = replace(numbers, include_score=inf)
        return replace(numbers, **given)


class ContextConfig(Table):
    """What becomes part of a request's context beside what search selects, and what is remembered of it."""

    max_tokens: Count | None = None
    """What one request's context may cost; None for no bound."""
    keep_requests: Flag = True
    """Request contexts, with their queries, are kept in the store; false: only until the proxy stops."""
    expansion_depth: Annotated[int, Field(strict=True, ge=0, le=5)] = 0
    """Steps from what is selected to what is near to it; 0 takes none."""
    expansion_threshold: Score = 0.75
    """Cosine from which an item is near to another."""
    expansion_top_n: Count = 3
    """Items of each step."""
    expansion_rules: dict[Text, tuple[Text, ...]] = Field(default={})
    """Items that come with others: by exposed name, or by their own."""
    history: Annotated[int, Field(strict=True, ge=0, le=20)] = 0
    """Earlier queries of a session that join the next one, each with half the weight of the one after it."""
    expand_results: Flag = False
    """The answer of a call may bring items that are near to it into the next context of its session."""
    manage_tool: Flag = False
    """Whether models get ``manage_context``, to add and remove items by hand."""
    retain_requests: Annotated[int, Field(strict=True, ge=0, le=100)] = 3
    """For how many requests of a session a tool that was used stays selected."""


class LearningConfig(Table):
    """Whether successful calls improve later searches."""

    enabled: Flag = True
    store_queries: Flag = True
    """Keep the text of queries; False keeps its hash and vector."""
    working_set_tokens: Amount = 0
    """What the tools that are used again and again may cost in the default list; 0 lists none for that."""


class StatisticsConfig(Table):
    """Whether calls and searches are counted."""

    enabled: Flag = True


class InteractionsConfig(Table):
    """Whether searches, calls and messages are remembered, and for how long."""

    enabled: Flag = False
    keep: Count = 10_000
    """The latest to be recorded."""
    keep_days: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] = 90.0
    """Since they were recorded."""
    recall_tool: Flag = False
    """Whether models get ``recall``, to search them."""


class StoreConfig(Table):
    """Where vectors, learned pairs and statistics are kept."""

    path: Text | None = None
    """A file; None is the user's data folder, ``memory`` keeps nothing."""


class HttpConfig(Table):
    """Where the HTTP front listens and whom it lets in."""

    host: Text = "127.0.0.1"
    port: Annotated[int, Field(strict=True, ge=0, le=65535)] = 8765
    """0 takes any free port."""
    auth: Flag = True
    """False: no token is asked for; only where this machine alone can connect."""
    api_port: Annotated[int, Field(strict=True, ge=0, le=65535)] | None = None
    """Where the API and the page are beside a stdio front, on the loopback address; None for nowhere."""
    token_file: Path | None = None
    allowed_hosts: tuple[Text, ...] = ()
    """Host names besides our own under which clients may address us."""


class EmbeddingConfig(Table):
    """Which embedding model is used."""

    model: Text | None = None
    """Folder of another model, or with an endpoint its name there; None is the packaged one."""
    endpoint: Text | None = None
    """Base URL of a service with the OpenAI embeddings API."""
    api_key: str | None = Field(default=None, repr=False)
    pooling: Literal["mean", "cls"] | None = None
    """How token vectors become one; None is what the folder's files say."""
    max_tokens: Annotated[int, Field(strict=True, ge=8)] | None = None
    """Longer texts are cut; None is what the folder's files say."""
    query_prefix: str | None = None
    """Put before a query; None is what the folder's files say."""
    passage_prefix: str | None = None
    """Put before a text of the catalog."""
    fitting_cosine: Score | None = None
    """Of the best match, under which nothing fits. None is what was measured for the packaged model; with
    another one, everything fits."""

    @property
    def packaged(self) -> bool:
        """Whether it is the model that scores were calibrated for."""
        return self.model is None


class RerankConfig(Table):
    """Whether another model puts the best tools of a search in order once more, and which."""

    mode: RerankMode = "never"
    """``auto``: only where the order is in doubt."""
    model: Text | None = None
    """With an endpoint its name there, else the folder of a cross-encoder; with neither, the client's own
    model is asked."""
    endpoint: Text | None = None
    """Base URL of a service with the OpenAI chat API."""
    api_key: str | None = Field(default=None, repr=False)


class DocumentsConfig(Table):
    """One folder or file of rules or references."""

    kind: Literal["rule", "reference"] | None = None
    """None: what the format of each file usually is."""
    path: Path
    include: IncludeMode | None = None
    """For documents that do not say it themselves."""


class Config(Table):
    """The whole configuration."""

    derived: ClassVar[frozenset[str]] = frozenset({"path"})

    expose: ExposeConfig = ExposeConfig()
    search: SearchConfig = SearchConfig()
    context: ContextConfig = ContextConfig()
    learning: LearningConfig = LearningConfig()
    statistics: StatisticsConfig = StatisticsConfig()
    interactions: InteractionsConfig = InteractionsConfig()
    store: StoreConfig = StoreConfig()
    http: HttpConfig = HttpConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    rerank: RerankConfig = RerankConfig()
    limits: Limits = Limits()
    servers: dict[str, ServerConfig] = Field(default={})
    """By name, in the order of the file."""
    documents: tuple[DocumentsConfig, ...] = ()
    path: Path | None = None
    """The file all this came from."""
