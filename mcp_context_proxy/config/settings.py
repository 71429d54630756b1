"""Settings of ``config.toml``: one frozen struct per table.

`config/tables.py` has those of limits, tools, profiles and identity. Types and checks of fields are those of
the values in a file. Mistakes that span several keys, files or the environment are found while loading, so
that all are reported together. A marker on a field says whether a running proxy applies a change (`Reload`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.config.source import (
    HIDDEN,
    Amount,
    Count,
    Environment,
    Reload,
    Scopes,
    Score,
    Seconds,
    Table,
    Text,
    Url,
    like,
    within,
)
from mcp_context_proxy.config.tables import (
    AuthConfig,
    ClassesConfig,
    Clients,
    ClusterConfig,
    Limits,
    Synonyms,
    Tag,
    ToolConfig,
)
from mcp_context_proxy.errors import ConfigProblem, ServerOff, first_told
from mcp_context_proxy.items import IncludeMode
from mcp_context_proxy.system.later import pattern

SERVER_NAME_CHARACTERS: Final = 32
"""Longest name of a server: half of the characters that hosts allow for a tool name."""
SERVER_NAME: Final = pattern(rf"(?!.*__)[A-Za-z0-9_-]{{1,{SERVER_NAME_CHARACTERS}}}", re.ASCII)
"""Names that a server may have; they become part of the names of its tools."""

Transport: TypeAlias = Literal["stdio", "http", "sse"]

LAUNCH: Final = Path("launch")
"""Value of ``cwd`` for the folder in which the host starts the proxy."""


class OAuthConfig(Table, frozen=True):
    """OAuth settings of a server at a URL."""

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    """``authorization_code``: a person logs in; ``client_credentials``: the client's secret is enough."""
    client_id: Text | None = None
    """Without one, the proxy registers with the authorization server, if that is allowed."""
    client_secret: Annotated[Text | None, HIDDEN] = None
    client_key: Path | None = None
    """A private key in PEM, which proves who the client is in place of a secret (RFC 7523)."""
    key_id: Text | None = None
    """Name of that key at the issuer."""
    issuer: Url | None = None
    """The authorization server; by default the one that the server names."""
    scope: Scopes | None = None
    """Scopes, separated by spaces; by default those that the server names."""
    resource: str | None = None
    """The server, as requests for tokens name it (RFC 8707); none if it is empty."""
    redirect_port: Annotated[int, within(0, 65535)] = 0
    """Local port that the browser returns to; 0 takes any free one."""
    assume_pkce: bool = False
    """Whether a login goes on at an authorization server that does not say that it supports PKCE."""


class TlsConfig(Table, frozen=True):
    """Certificates of the connections to a server at a URL, in PEM; a file that changes is read again."""

    certificate: Path | None = None
    """That of this proxy, for a server which demands one; with those between it and its authority."""
    key: Path | None = None
    """The key of that certificate; by default it is in the same file."""
    password: Annotated[Text | None, HIDDEN] = None
    """The password of an encrypted key."""
    ca: Path | None = None
    """The only authorities that this server's certificate may be of; by default those of the system."""


ApprovalMode: TypeAlias = Literal["notice", "changed", "all"]


class ServerResultsConfig(Table, frozen=True):
    """Settings of the results of one server."""

    max_tokens: Amount | None = None
    """By default ``results.max_tokens``."""


class ServerConfig(Table, frozen=True):
    """Settings of one downstream server: a program to start or a URL to connect to."""

    derived: ClassVar[frozenset[str]] = frozenset(
        {"name", "places", "remarks", "secrets", "first_connect_timeout"}
    )

    name: str = ""
    command: Text | None = None
    args: Annotated[tuple[str, ...], HIDDEN] = ()
    env: Annotated[Environment, HIDDEN] = field(default_factory=dict)
    inherit: tuple[Text, ...] = ()
    """Variables that it inherits beside the usual ones: names, or patterns such as ``AWS_*``."""
    cwd: Path | None = None
    """Working folder, by default the folder of the configuration. The folder in which a host starts the proxy
    is often a repository, whose files would decide what ``npx`` or ``python -m`` run."""
    url: Annotated[Url | None, HIDDEN] = None
    headers: Annotated[dict[str, str], HIDDEN] = field(default_factory=dict)
    transport: Transport = "stdio"
    """By default ``stdio`` with a command, ``http`` with a URL."""
    era: Literal["auto", "handshake", "modern"] = "auto"
    """``auto`` probes the server; naming the era skips the probe."""
    isolation: Literal["auto", "shared", "session"] = "auto"
    """Whether clients share one connection; with ``auto`` until the server asks a client for input."""
    enabled: Annotated[bool, Reload.LIVE] = True
    include: Annotated[IncludeMode, Reload.LIVE] = IncludeMode.AGENT
    allow: Annotated[tuple[Text, ...] | None, Reload.LIVE] = None
    """Globs over the tools' own names, such as ``get_*``; a tool that none of them matches is turned off."""
    deny: Annotated[tuple[Text, ...], Reload.LIVE] = ()
    """Globs of tools that are turned off, even where ``allow`` matches."""
    classes: Annotated[ClassesConfig, Reload.LIVE] = ClassesConfig()
    """Calls that are made, asked about or refused, by the danger class of the tool."""
    approval: Annotated[ApprovalMode | None, Reload.LIVE] = None
    """By default ``approval.mode``."""
    tools: Annotated[dict[str, ToolConfig], Reload.LIVE] = field(default_factory=dict)
    """Settings of its tools, by own name or by glob."""
    tags: Annotated[tuple[Tag, ...], Reload.LIVE] = ()
    """Tags of all its tools, for filtered searches; more tags are derived."""
    category: Annotated[Tag | None, Reload.LIVE] = None
    """Category of its tools that have none of their own; derived by default."""
    trusted: Annotated[bool, Reload.LIVE] = False
    """Whether its descriptions are never suspected of keyword stuffing."""
    connect_timeout: Annotated[Seconds, Reload.LIVE] = 30.0
    """Timeout in seconds; the default is ``limits.connect_seconds``."""
    first_connect_timeout: Annotated[Seconds | None, Reload.LIVE] = None
    """Timeout until a start has succeeded, where it is another: a package runner downloads the server."""
    call_timeout: Annotated[Seconds, Reload.LIVE] = 60.0
    """Timeout in seconds, by default ``limits.call_seconds``; ``limits.call_max_seconds`` with progress."""
    start: Annotated[Literal["eager", "lazy"], Reload.LIVE] = "eager"
    """``lazy`` starts the server at the first call; until then its last listing is searched."""
    idle_timeout: Annotated[Seconds | None, Reload.LIVE] = None
    """Idle seconds after which the server is stopped until the next call; never by default."""
    spotlight: Annotated[bool, Reload.LIVE] = False
    """Whether results of its tools are marked as data from outside."""
    results: Annotated[ServerResultsConfig, Reload.LIVE] = ServerResultsConfig()
    oauth: OAuthConfig | None = None
    """The defaults apply after a login, even without this table."""
    tls: TlsConfig | None = None
    secrets: Annotated[tuple[tuple[str, str], ...], Reload.LIVE, HIDDEN] = ()
    """Name and value of the expanded variables, to be redacted wherever text leaves the proxy."""
    places: Annotated[dict[str, str], Reload.LIVE, HIDDEN] = field(default_factory=dict)
    """Key, file and line of each setting that refuses calls, by dotted key, such as ``deny[0]``."""
    remarks: Annotated[tuple[str, ...], Reload.LIVE, HIDDEN] = ()
    """Sentences about settings of a host that were carried over, or could not be."""


Preset: TypeAlias = Literal["aggressive", "normal", "conservative"]
RerankMode: TypeAlias = Literal["never", "auto", "always"]

SHORTEST_NAME: Final = 16
"""Lowest bound on the length of names: the digest, and a few characters of either end."""


class ExposeConfig(Table, frozen=True):
    """Settings of the lists that hosts see."""

    mode: Literal["auto", "all", "search"] = "auto"
    prefix: bool = True
    """False keeps the tools' own names where they are unique."""
    list_all_below: Amount = 3000
    """Estimated tokens below which a catalog is listed whole, because hiding would save nothing."""
    found_tokens: Amount = 3000
    """Estimated tokens of tools that searches add to the list of a session, at most: hosts that list again
    send it with each request. The other tools found are called through the call tools."""
    page_size: Annotated[Amount, Reload.RESTART] = 0
    """Entries on a page of a list; 0 is one page, since many hosts read no second one."""
    max_name_length: Annotated[int, within(SHORTEST_NAME, 128)] | None = None
    """Longest name of a tool or prompt for all hosts. None gives each client of a known host as many
    characters as that host leaves, and any other client as many as all hosts leave. Hosts add a prefix of
    their own and have a limit of 60 to 64 characters; some refuse the whole list for one longer name."""


class DomainOptions(Struct, frozen=True):
    """Limits for one domain: tools, or documents (rules and references)."""

    top_k: int
    """Chunk matches considered."""
    top_n: int
    """Items selected; with ``by_fit``, documents only, and at most so many."""
    include_score: float | None
    """Cosine from which items are selected even past ``top_n``; None for no such items."""
    by_fit: bool = False
    """True to select the tools that fit, few or many, instead of ``top_n``."""


PRESETS: Final[Mapping[Preset, DomainOptions]] = {
    "aggressive": DomainOptions(top_k=10, top_n=3, include_score=0.8),
    "normal": DomainOptions(top_k=20, top_n=5, include_score=0.7, by_fit=True),
    "conservative": DomainOptions(top_k=40, top_n=10, include_score=0.6),
}
"""Presets: aggressive shows the fewest items, conservative risks the least."""


class DomainConfig(Table, frozen=True):
    """Settings of ``[search.tools]`` or ``[search.documents]``, which replace the general ones."""

    preset: Preset | None = None
    top_k: Count | None = None
    top_n: Count | None = None
    include_score: Score | None = None


class SearchConfig(Table, frozen=True):
    """Number of candidates and results of a search: a preset, or numbers, which replace it."""

    preset: Preset = "normal"
    top_k: Count | None = None
    """By default that of the preset, as with the next two."""
    top_n: Count | None = None
    include_score: Score | None = None
    tools: DomainConfig = DomainConfig()
    documents: DomainConfig = DomainConfig()
    warm_up: bool = False
    """Embed everything at start instead of at the first search."""
    synonyms: Synonyms = field(default_factory=dict)
    """Words of queries, such as a team's short forms, each with the words that it stands for."""

    def resolved(self, domain: Literal["tools", "documents"], calibrated: bool = True) -> DomainOptions:
        """Return the numbers of one domain: its own, or its preset's, or the general ones.

        Args:
            domain: The domain that is searched.
            calibrated: Whether the presets' ``include_score`` and ``by_fit`` go with the embedding model:
                cosines of another model are larger or smaller altogether, so only a score set in the file
                counts then.
        """
        own = self.tools if domain == "tools" else self.documents
        # A preset of the domain replaces all general numbers.
        levels = [own] if own.preset else [self, own]
        given = {
            key: value
            for level in levels
            for key in ("top_k", "top_n", "include_score")
            if (value := getattr(level, key)) is not None
        }
        numbers = PRESETS[own.preset or self.preset]
        if not calibrated:
            numbers = replace(numbers, include_score=None)
        return replace(numbers, **given, by_fit=numbers.by_fit and calibrated and "top_n" not in given)


class ContextConfig(Table, frozen=True):
    """Settings of request contexts: cost, expansion, history, storage."""

    max_tokens: Count | None = None
    """Largest cost of one request's context; None for no bound."""
    document_tokens: Count = 1500
    """Budget for the text of rules and references in one answer: longer ones come as an outline."""
    keep_requests: Annotated[bool, Reload.RESTART] = True
    """Whether request contexts, with their queries, are kept in the store or only until the proxy stops."""
    expansion_depth: Annotated[int, within(0, 5)] = 1
    """Steps of expansion from the selected items to those that come with them."""
    expansion_threshold: Score | None = None
    """Cosine from which two items are similar; None for the links between documents and tools."""
    expansion_top_n: Count = 6
    """Items that each step adds at most."""
    expansion_rules: dict[Text, tuple[Text, ...]] = field(default_factory=dict)
    """Items that are added with others, by exposed or own name."""
    history: Annotated[int, within(0, 20)] = 0
    """Earlier queries of a session that are added to the next, each with half the weight of the later one."""
    expand_results: bool | tuple[Text, ...] = False
    """Whether the result of a call adds the tools that fit next to the next context of its session; or
    patterns of exposed names, for the results of these tools only."""
    expand_results_characters: Annotated[int, within(100, 20_000)] = 2000
    """Length to which the text of such a result is cut."""
    set_context_tool: bool = False
    """Whether models get ``set_context``, to name the subject of a conversation."""
    manage_tool: bool = False
    """Whether models get ``manage_context``, to add and remove items."""
    retain_requests: Annotated[int, within(0, 100)] = 3
    """Requests of a session for which a used tool stays selected."""
    interactions_top_n: Annotated[int, within(0, 50)] = 0
    """Remembered interactions in a context, if they fit the query; 0 for none."""
    interaction_tokens: Count = 300
    """Budget for the text of them in one context."""


class ResultsConfig(Table, frozen=True):
    """Settings of large results."""

    max_tokens: Amount = 20_000
    """Estimated tokens above which a result is shortened; 0 for never."""
    duplicates: Literal["auto", "drop", "keep"] = "auto"
    """``auto``: a result in two forms is sent once to clients that pass on both; ``drop``: to all clients."""


class ApprovalConfig(Table, frozen=True):
    """Settings of the approval of definitions."""

    mode: ApprovalMode = "notice"
    """Definitions that are held until a person approves them. ``notice``: changes without a new version, and
    signs of an attack; ``changed``: everything new and each change that a model sees; ``all``: any change."""


class LearningConfig(Table, frozen=True):
    """Settings of learning from successful calls."""

    enabled: bool = True
    store_queries: bool = True
    """Whether the text of queries is kept, beside its hash and vector."""
    working_set_tokens: Amount = 0
    """Largest cost of frequently used tools in the default list; 0 lists none."""
    ab_share: Annotated[float, within(0, below=1)] = 0.0
    """Share of sessions whose requests are answered without learned pairs, to compare; 0 for none."""


class StatisticsConfig(Table, frozen=True):
    """Settings of the counts of calls and searches."""

    enabled: bool = True


SMALLEST_AUDIT: Final = 10_000
"""Smallest file of the audit: some tens of entries."""

DecayFactor = Annotated[float, within(most=1, above=0)]
"""Share of a score that is left after a day."""


class InteractionTypeConfig(Table, frozen=True):
    """Settings of a search for interactions of one type."""

    time_decay_factor: DecayFactor | None = None
    """By default that of all types."""
    boost: Annotated[float, within(most=10, above=0)] = 1.0
    """Factor of the scores of this type."""


class InteractionsConfig(Table, frozen=True):
    """Settings of the memory of searches, calls and messages."""

    enabled: bool = False
    keep: Count = 10_000
    """Number of interactions that are kept."""
    keep_days: Annotated[float, within(above=0, most=36_500)] = 90.0
    """Days for which they are kept."""
    recall_tool: bool = False
    """Whether models get ``recall`` to search them."""
    top_k: Annotated[int, within(1, 1000)] = 10
    """Interactions that a search finds, unless it says how many."""
    time_decay_factor: DecayFactor = 0.95
    """Share of a score that is left after a day."""
    time_decay: Literal["exponential", "linear"] = "exponential"
    """``linear`` takes ``1 - time_decay_factor`` of the whole each day, until nothing is left."""
    types: dict[str, InteractionTypeConfig] = field(default_factory=dict)
    """Settings by type, such as ``message``."""


class AuditConfig(Table, frozen=True):
    """Settings of the audit, the record of calls and of the decisions about them."""

    enabled: bool = True
    max_bytes: Annotated[int, within(SMALLEST_AUDIT)] = 10_000_000
    """Size from which a new file is begun."""
    files: Annotated[int, within(1, 100)] = 3
    """Files that are kept, with the current one; two at least."""


SchemaName = Annotated[str, like("[a-z_][a-z0-9_]{0,48}", "must be 1 to 49 of a-z 0-9 _, no digit first")]
PodName = Annotated[str, like("[A-Za-z0-9._-]{1,64}", "must be 1 to 64 of A-Z a-z 0-9 . _ -")]
PostgresUrl = Annotated[str, like(r"(?s)postgres(ql)?://.*", "must begin with postgresql://")]


class StoreConfig(Table, frozen=True):
    """Settings of the store, which holds vectors, learned pairs and statistics."""

    path: Text | None = None
    """A file; by default one in the user's data folder; ``memory`` keeps nothing."""
    url: Annotated[PostgresUrl | None, HIDDEN] = None
    """Address of a PostgreSQL database, ``postgresql://user:password@host/name``, instead of a file."""
    listen_url: Annotated[PostgresUrl | None, HIDDEN] = None
    """Address at which hints of changes are heard, where ``url`` is that of a pooler of transactions."""
    namespace: SchemaName = "mcp_context_proxy"
    """Schema of the database in which the tables are."""
    pool: Annotated[int, within(1, 100)] = 4
    """Connections to the database, beside the one that listens."""
    timeout_seconds: Annotated[float, within(0.1, 60)] = 2.0
    """Time after which an operation of the database is given up."""
    migrate: Literal["auto", "check"] = "auto"
    """``auto`` brings the schema of the database to this version, ``check`` leaves that to a command."""
    replica: PodName | None = None
    """Name of this process in rows of its own, such as that of its pod; by default a random one."""


HostName = Annotated[str, like(r"[^\s/?#@]+", "must be a name, or name:port, as in the header Host")]


class HttpConfig(Table, frozen=True):
    """Settings of the HTTP front: address and authentication."""

    host: Text = "127.0.0.1"
    port: Annotated[int, within(0, 65535)] = 8765
    """Port; 0 takes any free one."""
    auth: bool = True
    """False requires no token; allowed only on a loopback address."""
    api_port: Annotated[int, within(0, 65535)] | None = None
    """Loopback port of the API and the page beside a stdio front; None for none."""
    token_file: Path | None = None
    allowed_hosts: tuple[HostName, ...] = ()
    """Further host names that clients may use for this proxy."""
    resource_url: Url | None = None
    """Public URL of this proxy: an issuer makes tokens for it, and clients post messages below its path."""
    drain_grace_seconds: Annotated[float, within(0, 3600)] | None = None
    """Time after SIGTERM in which everything is still served, while ``/readyz`` sends clients elsewhere. None
    is 5 s in a cluster, more than two probes of most balancers, and 0 elsewhere."""


class SharedConfig(Table, frozen=True):
    """Settings of a proxy that several hosts share (``serve --shared``)."""

    linger_seconds: Seconds = 300.0
    """Time that it goes on for after the last host has gone."""


PACKAGED_MODELS: Final = ("tools-MiniLM-L6", "all-MiniLM-L6-v2")
"""Names of the packaged embedding models: the default, and the published one that it was trained from."""


class EmbeddingConfig(Table, frozen=True):
    """Settings of the embedding model."""

    model: Text | None = None
    """Folder of another model, its name at the endpoint, or one of `PACKAGED_MODELS`; None is the first of
    these."""
    endpoint: Url | None = None
    """Base URL of a service with the OpenAI embeddings API."""
    api_key: Annotated[str | None, HIDDEN] = None
    pooling: Literal["mean", "cls"] | None = None
    """How token vectors are combined; by default as the folder's files say."""
    max_tokens: Annotated[int, within(8)] | None = None
    """Length to which texts are cut; by default as the folder's files say."""
    query_prefix: str | None = None
    """Text before each query; by default as the folder's files say."""
    passage_prefix: str | None = None
    """Text before each text of the catalog."""
    fitting_cosine: Score | None = None
    """Cosine of the best match below which nothing fits. By default, a packaged model compares the query with
    general requests, and with another model everything fits."""

    @property
    def packaged(self) -> str | None:
        """Name of the packaged model in use, which scores are calibrated for; None for another model."""
        if self.endpoint is not None:
            return None
        name = self.model or PACKAGED_MODELS[0]
        return name if name in PACKAGED_MODELS else None


class RerankConfig(Table, frozen=True):
    """Settings of the reranker, a model that orders the best results again."""

    mode: RerankMode = "never"
    """``auto`` asks only where the order is in doubt."""
    model: Text | None = None
    """Name at the endpoint, or else the folder of a cross-encoder; without either, the client's own model is
    asked."""
    endpoint: Url | None = None
    """Base URL of a service with the OpenAI chat API."""
    api_key: Annotated[str | None, HIDDEN] = None


class GuardsConfig(Table, frozen=True):
    """Settings of the guard of known secrets."""

    secrets: bool = True
    """Whether a request is refused that would tell a server a secret which it was not given."""
    results: Literal["off", "redact"] = "off"
    """``redact`` removes known secrets from results, too."""
    public: tuple[Text, ...] = ()
    """Variables, headers and arguments whose values are no secrets."""


class SecretsConfig(Table, frozen=True):
    """Settings of the places that values of the configuration may come from."""

    commands: bool = False
    """Whether ``${cmd:...}`` runs a command."""


class DocumentsConfig(Table, frozen=True):
    """Settings of one folder or file of rules or references."""

    path: Path
    kind: Literal["rule", "reference"] | None = None
    """By default the usual kind of each file's format."""
    include: IncludeMode | None = None
    """Include mode of documents that have none of their own."""
    roots: tuple[Path, ...] = ()
    """Folders of the projects that the documents are for; none for all projects."""
    cwd: Literal["launch"] | None = None
    """``launch`` takes the path from the folder in which the host starts the proxy; there may be none."""


class Config(Table, frozen=True):
    """The whole configuration."""

    derived: ClassVar[frozenset[str]] = frozenset({"path", "files", "off", "mistakes"})

    inherit: Annotated[tuple[Text, ...], Reload.LIVE] = ()
    """Variables that all servers inherit beside the usual ones: names, or patterns such as ``AWS_*``."""
    env: Annotated[Environment, Reload.LIVE, HIDDEN] = field(default_factory=dict)
    """Variables of all servers; those of a server's own ``env`` come before them."""

    expose: Annotated[ExposeConfig, Reload.LIVE] = ExposeConfig()
    search: Annotated[SearchConfig, Reload.LIVE] = SearchConfig()
    context: Annotated[ContextConfig, Reload.LIVE] = ContextConfig()
    results: Annotated[ResultsConfig, Reload.LIVE] = ResultsConfig()
    approval: Annotated[ApprovalConfig, Reload.LIVE] = ApprovalConfig()
    learning: LearningConfig = LearningConfig()
    statistics: StatisticsConfig = StatisticsConfig()
    interactions: InteractionsConfig = InteractionsConfig()
    audit: AuditConfig = AuditConfig()
    store: StoreConfig = StoreConfig()
    cluster: ClusterConfig = ClusterConfig()
    http: HttpConfig = HttpConfig()
    auth: AuthConfig = AuthConfig()
    shared: SharedConfig = SharedConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    rerank: RerankConfig = RerankConfig()
    guards: Annotated[GuardsConfig, Reload.LIVE] = GuardsConfig()
    secrets: Annotated[SecretsConfig, Reload.LIVE] = SecretsConfig()
    limits: Annotated[Limits, Reload.LIVE] = Limits()
    servers: Annotated[dict[str, ServerConfig], Reload.LIVE] = field(default_factory=dict)
    """Servers by name, in the order of the file."""
    documents: Annotated[tuple[DocumentsConfig, ...], Reload.LIVE] = ()
    clients: Annotated[Clients, Reload.LIVE] = field(default_factory=dict)
    """Profiles of clients, by name."""
    path: Annotated[Path | None, Reload.LIVE] = None
    """The file that the configuration was loaded from."""
    files: Annotated[tuple[Path, ...], Reload.LIVE] = ()
    """Further files that values were read from."""
    off: Annotated[dict[str, ServerOff], Reload.LIVE] = field(default_factory=dict)
    """Servers that are off because of mistakes in their settings, by name."""
    mistakes: Annotated[tuple[ConfigProblem, ...], Reload.LIVE] = ()
    """Mistakes outside of the servers. Their keys have the default, or a more cautious value."""

    def complaints(
        self, instead: str = "has a default or more cautious value", *, servers: bool = True
    ) -> Iterator[str]:
        """Yield a line for each server that is off because of a mistake, and for each other mistake.

        `instead` is the end of the sentence about anything else that has a mistake: its replacement. Without
        `servers`, nothing is said of them. Of very many, only the first are told.
        """
        told, others = list[str](), sum(server.enabled for server in self.servers.values())
        rest = "1 other starts" if others == 1 else f"{others} others start" if others else "no other starts"
        for name, off in self.off.items() if servers else ():
            told.append(f"server {name}: off: {off}; {rest}")
            told += [f"server {name}: also {problem}" for problem in off.problems[1:]]
        told += [f"{problem}; until that is corrected, it {instead}" for problem in self.mistakes]
        return first_told(told, len(told))
