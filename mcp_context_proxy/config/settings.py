"""What can be configured: one frozen model per table of ``config.toml``.

The models check the type and range of each value. What spans several keys, files or the environment
is checked while loading, so that all mistakes are reported together.

What each table of ``config.toml`` is: frozen, strict in its types, and without keys that nobody reads.

What can be configured of one downstream server, and of each of its tools.

Every number that bounds something, with its reason; `[limits]` overrides any of them.

Code elsewhere takes a `Limits` and holds no number of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, model_validator
from pydantic_core import PydanticCustomError

from mcp_context_proxy.items import IncludeMode

Flag = Annotated[bool, Field(strict=True)]
Amount = Annotated[int, Field(strict=True, ge=0)]
Score = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]

TAG_CHARACTERS: Final = 64
"""Of a category or a tag: a word or two."""


def _is_tag(text: str) -> str:
    if not 1 <= len(text) <= TAG_CHARACTERS or text != text.strip() or set(text) & {",", "\n"}:
        message = "must be 1 to {most} characters, without commas, and without spaces at its ends"
        raise PydanticCustomError("tag", message, {"most": TAG_CHARACTERS})
    return text


Tag = Annotated[str, AfterValidator(_is_tag)]
"""A category or tag: no commas, which divide several of them where they are asked for."""


class Table(BaseModel):
    """One table of the file: frozen, and no key but those it declares."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    derived: ClassVar[frozenset[str]] = frozenset()
    """Fields that are computed while loading and cannot be written in a file."""

    @classmethod
    def keys(cls) -> list[str]:
        """The keys a person may write."""
        return [name for name in cls.model_fields if name not in cls.derived]


KIB: Final = 1024
MIB: Final = 1024 * KIB

Count = Annotated[int, Field(strict=True, ge=1)]
Seconds = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class Limits(BaseModel):
    """Bounds that keep one bad peer, file or answer from harming everything else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    message_bytes: Count = 16 * MIB
    """One message, either direction: larger ones are refused. Large enough for screenshots and file dumps."""
    sse_event_bytes: Count = 16 * MIB
    """One event from an HTTP server. The SDK's own default of 1 MiB would lose larger results."""
    http_body_bytes: Count = 4 * MIB
    """One request body at our HTTP front: arguments are small, results are not requests."""
    nesting_definitions: Count = 64
    """Levels in a tool definition; no honest schema is deeper."""
    nesting_results: Count = 190
    """Levels in a result: common JSON parsers stop at 200."""

    probe_seconds: Seconds = 2.0
    """Wait for `server/discover` before falling back to the handshake: old servers ignore it silently."""
    connect_seconds: Seconds = 30.0
    """From starting a server to its first answer: 5 s breaks `npx` servers that are being downloaded."""
    list_seconds: Seconds = 30.0
    """For a whole listing, all pages together; the last known tools stay meanwhile."""
    call_seconds: Seconds = 60.0
    """For a call without progress: what hosts themselves use."""
    call_max_seconds: Seconds = 600.0
    """For a call that keeps reporting progress."""
    stop_seconds: Seconds = 2.0
    """For each step of stopping a server (end of input, then SIGTERM), before SIGKILL."""
    drain_seconds: Seconds = 10.0
    """For requests under way when the proxy is told to stop, or their server is removed."""

    starts_at_once: Count = 8
    """Servers starting at the same time: more only makes all of them slower."""
    backoff_first_seconds: Seconds = 1.0
    """Before the first restart; doubles with each failure."""
    backoff_max_seconds: Seconds = 60.0
    """The longest wait between restarts."""
    backoff_reset_seconds: Seconds = 60.0
    """Healthy for this long forgets earlier failures."""
    breaker_failures: Count = 5
    """Quick failures in a row, after which a server is left alone for a while. One that was killed or died of
    a call counts only if it had answered nothing."""
    breaker_seconds: Seconds = 60.0
    """How long it is left alone before one more try."""

    ask_seconds: Seconds = 600.0
    """For a person to answer what a server asks during a call; the call itself does not age meanwhile."""
    parked_calls: Count = 256
    """Calls of modern clients that wait for such an answer; further questions are refused."""
    lanes_per_server: Count = 32
    """Connections of their own, for clients that one server asks something: each may be a process."""
    lane_idle_seconds: Seconds = 300.0
    """After which a connection that belongs to no session is closed."""

    in_flight_per_server: Count = 1024
    """Calls one server may be working on; further callers hear "busy" at once. Not fewer with a queue before
    them: a thousand calls of 1 s would take 4 s at 256 a time, and those that wait here age all the same."""
    in_flight: Count = 2048
    """Requests of the stdio host under way: bounds memory, not speed."""

    indexing_wait_seconds: Seconds = 1.5
    """How long a search waits for indexing, before it makes do with words and the vectors that are ready."""

    embedding_seconds: Seconds = 60.0
    """For the vectors of some texts of the catalog from `embedding.endpoint`, all attempts together."""
    embedding_query_seconds: Seconds = 3.0
    """For those of a query: after it, the search goes by words alone."""
    rerank_seconds: Seconds = 5.0
    """For the model of `rerank` to put tools in order: after it, the order stays as the search had it."""

    tools_per_server: Count = 10_000
    """Ten times the largest server known; more is a fault or an attack."""
    tools: Count = 100_000
    """Over all servers: search stays exact and in memory up to here."""
    pages: Count = 1000
    """Pages of one listing: ends a server that pages for ever."""
    listing_bytes: Count = 32 * MIB
    """All pages of one listing together."""
    description_shown_bytes: Count = 16 * KIB
    """Of one description in a list: longer ones are cut, since the model pays for each word."""
    schema_bytes: Count = 256 * KIB
    """One input or output schema; a larger one is withheld with its tool."""
    schema_nodes: Count = 10_000
    """Values in one schema: small text can still be an immense tree."""

    stderr_kept_bytes: Count = 64 * KIB
    """The last output of a server, for the message that says why it died."""
    stderr_lines_per_second: Count = 100
    """Logged from one server; the rest is counted."""

    unread_bytes: Count = 16 * MIB
    """Answers that wait for the stdio host to read: with more, servers are read no further until it does."""
    stalled_seconds: Seconds = 30.0
    """A host that has read nothing for so long, with answers waiting, is gone."""
    http_header_seconds: Seconds = 10.0
    """To receive the headers of a request: a slow sender must not hold a connection."""
    http_body_seconds: Seconds = 30.0
    """To receive the body of a request."""
    http_idle_seconds: Seconds = 60.0
    """A kept-alive connection without a request."""
    http_connections: Count = 512
    """Open at once at our HTTP front."""
    sessions: Count = 1000
    """HTTP sessions of the handshake era; the longest idle one makes room."""
    session_idle_seconds: Seconds = 1800.0
    """After which a session is forgotten: a long lunch at most."""

    document_bytes: Count = 1 * MIB
    """One rule or reference file."""
    documents: Count = 10_000
    """Rules and references together."""

    requests_kept: Count = 1000
    """Request contexts that are remembered: days of one person's work, some 3 MB."""
    requests_age_seconds: Seconds = 7 * 24 * 3600.0
    """After which one is forgotten: what a person asks about happened this week."""

    statistics_hours_seconds: Seconds = 7 * 24 * 3600.0
    """For which usage is kept by the hour, then by the day: this week is what is asked for in detail."""
    statistics_days_seconds: Seconds = 365 * 24 * 3600.0
    """After which a day is forgotten: a year shows seasons."""
    statistics_rows: Count = 200_000
    """Of tools by hour and by day: 100 tools used every day of a year and every hour of a week, 20 MB."""
    searches_kept: Count = 5000
    """Searches that are kept one by one, some 2 MB; how many there were is counted anyway."""
    searches_age_seconds: Seconds = 30 * 24 * 3600.0
    """After which one is forgotten."""

    interaction_characters: Count = 4000
    """Kept of one interaction: a long message, and more than the packaged model embeds of one."""


Transport: TypeAlias = Literal["stdio", "http", "sse"]


class OAuthConfig(Table):
    """How we log in to a server at a URL."""

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    """``authorization_code``: a person logs in; ``client_credentials``: the client's secret is enough."""
    client_id: Text | None = None
    """None registers us with the authorization server, where it allows that."""
    client_secret: Text | None = Field(default=None, repr=False)
    issuer: Text | None = None
    """The authorization server; None takes the one that the server names."""
    scope: Text | None = None
    """Separated by spaces; None asks for what the server names."""
    redirect_port: Annotated[int, Field(strict=True, ge=0, le=65535)] = 0
    """Port of this machine to which the browser comes back; 0 takes any free one."""


class ToolConfig(Table):
    """What is set for one tool of a server."""

    include: IncludeMode | None = None
    tags: tuple[Tag, ...] = ()
    """Beside those of the server."""
    category: Tag | None = None


class ServerConfig(Table):
    """One downstream server: a program to start or a URL to connect to."""

    derived: ClassVar[frozenset[str]] = frozenset({"name", "secrets"})

    name: str
    command: Text | None = None
    args: tuple[str, ...] = Field(default=(), repr=False)
    env: dict[str, str] = Field(default={}, repr=False)
    cwd: Path | None = None
    url: str | None = Field(default=None, repr=False)
    headers: dict[str, str] = Field(default={}, repr=False)
    transport: Transport = "stdio"
    """Derived when not given: ``stdio`` with a command, ``http`` with a URL."""
    era: Literal["auto", "handshake", "modern"] = "auto"
    """``auto`` asks the server; name the era to skip the question."""
    isolation: Literal["auto", "shared", "session"] = "auto"
    """Whether the sessions of clients share one connection; ``auto`` until the server asks one something."""
    enabled: Flag = True
    include: IncludeMode = IncludeMode.AGENT
    tools: dict[str, ToolConfig] = Field(default={})
    tags: tuple[Tag, ...] = ()
    """Of all its tools, for searches that ask for them; others are derived."""
    category: Tag | None = None
    """Of its tools that have none of their own; None derives it."""
    connect_timeout: Seconds = 30.0
    """Seconds; the default is ``limits.connect_seconds``."""
    call_timeout: Seconds = 60.0
    """Seconds; the default is ``limits.call_seconds``. Progress extends it to ``limits.call_max_seconds``."""
    start: Literal["eager", "lazy"] = "eager"
    """``lazy`` starts it at the first call; until then what it listed last time is searched."""
    idle_timeout: Seconds | None = None
    """Seconds without a call after which it is stopped, until the next one; None never stops it."""
    spotlight: Flag = False
    """The texts that its tools answer are marked as data from outside."""
    oauth: OAuthConfig | None = None
    """None: as its defaults, once you have logged in."""
    secrets: tuple[tuple[str, str], ...] = Field(default=(), repr=False)
    """(variable, value) of what was expanded from the environment, to be redacted wherever text leaves."""

    @model_validator(mode="before")
    @classmethod
    def _derive_transport(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "transport" in data:
            return data
        url = data.get("url")
        if not url:
            return data | {"transport": "stdio"}
        # Servers of HTTP+SSE are at this path nearly all; no server of streamable HTTP is known that is.
        of_sse = isinstance(url, str) and url.partition("?")[0].rstrip("/").endswith("/sse")
        return data | {"transport": "sse" if of_sse else "http"}

    def include_of(self, tool_name: str) -> IncludeMode:
        """The mode of a tool: its own setting, else the server's."""
        tool = self.tools.get(tool_name)
        return tool.include if tool is not None and tool.include is not None else self.include

    def tags_of(self, tool_name: str) -> tuple[str, ...]:
        """The tags of a tool: the server's, then its own."""
        tool = self.tools.get(tool_name)
        return self.tags if tool is None else (*self.tags, *tool.tags)

    def category_of(self, tool_name: str) -> str | None:
        """The category of a tool: its own setting, else the server's."""
        tool = self.tools.get(tool_name)
        return tool.category if tool is not None and tool.category is not None else self.category


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
