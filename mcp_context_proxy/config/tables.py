"""Tables of the configuration: types of values, limits, and the settings of tools, profiles and identity.

A table under ``tools`` is about one tool, or about all that its glob matches. The setting under the tool's
own name comes before those of globs, and those before the ones of its class. Where several globs match, the
strictest ``allow`` counts, and of most other keys the first in the file. Of ``danger``, all count.

A table ``[clients.NAME]`` is a profile: the part of everything that one kind of client gets, such as a coding
host or a chat host. A client has it by a token that is bound to it, by its address ``/mcp/p/NAME`` or ``serve
--profile NAME``, by the name of its agent, or by the name under which it introduces itself, in this order.

``[auth]`` says how clients over HTTP prove who they are, and the role and reach of each. ``[cluster]`` is
about several replicas of the proxy behind one balancer, over one database.

A marker on a field says whether a running proxy applies a change (`Reload`), as in all settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from msgspec import field

from mcp_context_proxy.config.source import (
    HIDDEN,
    Count,
    Reload,
    Seconds,
    SecondsOrNone,
    Table,
    Text,
    like,
    sized,
    within,
)
from mcp_context_proxy.errors import ConfigError, ConfigProblem
from mcp_context_proxy.items import IncludeMode, ToolClass

TAG_CHARACTERS: Final = 64
"""Longest category or tag: a word or two."""

MEANING_CHARACTERS: Final = 200
"""Longest meaning of a word of queries, or use case of a tool: a short phrase."""

Tag = Annotated[
    str,
    like(
        rf"(?!\s)[^,\n]{{1,{TAG_CHARACTERS}}}(?<!\s)",
        f"must be 1 to {TAG_CHARACTERS} characters, without commas, and without spaces at its ends",
    ),
]
"""A category or tag, without commas, because commas separate several tags in a search."""


def _meaning(text: str) -> str:
    if not text.strip() or len(text) > MEANING_CHARACTERS:
        raise ValueError(f"must be 1 to {MEANING_CHARACTERS} characters")
    return " ".join(text.split())


Meaning = Annotated[str, _meaning]
"""A short phrase: words that a word of queries stands for, or a use case of a tool."""


def _word(text: str) -> str:
    ends = text[:1].isalnum() and text[-1:].isalnum()
    if len(text) > TAG_CHARACTERS or not ends or len(text.split()) > 1:
        bound = f"at most {TAG_CHARACTERS} characters"
        raise ValueError(f"must be one word that begins and ends with a letter or digit, {bound}")
    return text.lower()


Synonyms = dict[Annotated[str, _word], Meaning]
"""Words of queries, in lower case, each with the words that it stands for."""

Allow: TypeAlias = Literal["always", "ask", "never"]
"""``always`` makes a call without asking, ``ask`` has a person confirm it, ``never`` turns the tool off."""

STRICTNESS: Final[Mapping[Allow, int]] = {"always": 0, "ask": 1, "never": 2}

MOST_USE_CASES: Final = 20
"""Use cases of a tool: each is embedded by itself."""

ANY: Final = "*"
"""Stands for any characters, or none. Nothing else is special in a glob, so a host's list of names is one of
globs."""


class ClassesConfig(Table, frozen=True):
    """Calls that are made, asked about or refused, by the danger class of the tool.

    All are made by default: hosts ask by themselves, and a second question for each call would teach people
    to agree unread.
    """

    read: Allow = "always"
    write: Allow = "always"
    destructive: Allow = "always"


class ToolConfig(Table, frozen=True):
    """Settings of one tool of a server, or of all that a glob matches."""

    enabled: bool = True
    """False turns the tool off: it is not listed, not found, and cannot be called."""
    include: IncludeMode | None = None
    allow: Allow | None = None
    """By default that of its class."""
    danger: ToolClass | None = None
    """Lowest danger class; hints and name can only raise it."""
    tags: tuple[Tag, ...] = ()
    """Tags in addition to those of the server."""
    category: Tag | None = None
    description: Text | None = None
    """Description that is shown and searched instead of the server's."""
    use_cases: Annotated[tuple[Meaning, ...], sized(most=MOST_USE_CASES)] = ()
    """Requests or tasks that the tool is for, in a person's words: searched beside its description."""


CONFIRM: Final = "confirm"
"""Older key for the meaning of ``classes`` and ``allow``."""

ASKED: Final[Mapping[str, tuple[ToolClass, ...]]] = {
    "destructive": (ToolClass.DESTRUCTIVE,),
    "write": (ToolClass.WRITE, ToolClass.DESTRUCTIVE),
    "never": (),
}
"""Values of that key, with the classes that a person is asked about."""


def matches(glob: str, name: str) -> bool:
    """Return whether a glob matches a whole name; upper and lower case differ. Takes linear time."""
    first, *others = glob.split(ANY)
    if not others:
        return glob == name
    *inner, last = others
    if not name.startswith(first) or not name.endswith(last):
        return False
    # Taking the first place of each piece leaves most room for the next, so nothing is tried twice.
    at, end = len(first), len(name) - len(last)
    for piece in inner:
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return at <= end


ExposeMode: TypeAlias = Literal["auto", "all", "search"]

PROFILE_CHARACTERS: Final = 32
ProfileName = Annotated[
    str,
    like(
        rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{PROFILE_CHARACTERS - 1}}}",
        f"must be 1 to {PROFILE_CHARACTERS} letters, digits, '_' or '-', and begin with a letter or digit",
    ),
]
"""Name of a profile: it stands in addresses and commands."""


class ClientConfig(Table, frozen=True):
    """Settings of one profile. Lists are globs; None leaves everything in."""

    client: tuple[Text, ...] = ()
    """Names under which clients introduce themselves (``clientInfo``), in upper or lower case."""
    agent: tuple[Text, ...] = ()
    """Names of agents, as they stand in the header ``X-Agent-Name``."""
    tokens: tuple[Text, ...] = ()
    """Names of tokens that are bound to the profile: whoever has one gets it at every address."""
    servers: tuple[Text, ...] | None = None
    """Servers that the clients get."""
    tools: tuple[Text, ...] | None = None
    """Tools of these servers that they get, as ``SERVER__TOOL``."""
    documents: tuple[Text, ...] | None = None
    """The user's own rules and references that they get, by name."""
    presets: tuple[Text, ...] = ()
    """Presets that each of their sessions begins with: saved ones, or one that says how much is selected."""
    expose: ExposeMode | None = None
    """By default ``expose.mode``."""
    classes: ClassesConfig = ClassesConfig()
    """Calls that are asked about or refused, beside those that are so for all clients."""
    learn: bool = False
    """Whether their calls teach the ranking, which all clients share."""


Clients = dict[ProfileName, ClientConfig]
"""Profiles by name, in the order of the file: of several that match a client, the first counts."""

Algorithm: TypeAlias = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Signatures that only the holder of a private key can make. ``none`` and those with a shared secret (HS256
and its kin) are not among them: with a public key as the secret, anyone could make those."""

RoleName: TypeAlias = Literal["metrics", "use", "view", "operate", "admin"]

LONGEST_LEEWAY = 300.0
"""Clocks that differ by more than five minutes are wrong, and every second of leeway prolongs each token."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names that count as one origin: on a given port each is the same front. Other names of this machine may
belong to others."""


class GroupConfig(Table, frozen=True):
    """Servers and classes of tools that the members of a group may reach."""

    servers: tuple[Text, ...] | None = None
    """None for all."""
    classes: tuple[ToolClass, ...] | None = None
    """None for all."""


class AuthConfig(Table, frozen=True):
    """Settings of the identity of clients over HTTP."""

    mode: Literal["token", "jwt"] = "token"
    """``token``: the proxy's own token and named ones; ``jwt``: tokens that an issuer has signed, too."""
    issuer: Text | None = None
    """URL of the issuer, exactly as it is in the claim ``iss``."""
    audience: Text | None = None
    """Value that the claim ``aud`` has; by default ``http.resource_url``."""
    jwks_url: Text | None = None
    """URL of the issuer's public keys; by default found by OIDC discovery."""
    algorithms: Annotated[tuple[Algorithm, ...], sized(1)] = ("RS256", "ES256", "EdDSA")
    """Signatures that are accepted."""
    leeway_seconds: Annotated[float, within(0, LONGEST_LEEWAY)] = 30.0
    """Difference of the clocks of the issuer and this machine."""
    roles_claim: Text = "roles"
    """Claim with the roles: a list, or words; dots lead into objects (``realm_access.roles``)."""
    roles: dict[str, RoleName] = field(default_factory=dict)
    """Role by value of that claim; the highest one counts."""
    default_role: Literal["none", "use", "view"] = "use"
    """Role of everybody else; ``none`` refuses them."""
    groups_claim: Text = "groups"
    """Claim with the groups."""
    groups: dict[str, GroupConfig] = field(default_factory=dict)
    """Reach by value of that claim, ``*`` for everybody; where any is configured, nobody reaches more."""
    scopes: tuple[Text, ...] = ()
    """Scopes that clients are told to ask the issuer for."""

    def __post_init__(self) -> None:
        if self.mode == "jwt" and self.issuer is None:
            raise ValueError("mode = 'jwt' needs an issuer, the URL in the claim iss of its tokens")
        for name in ("issuer", "jwks_url"):
            url = getattr(self, name)
            if url is not None and not is_encrypted(url):
                raise ValueError(f"{name} must begin with https://; http:// is for this machine only")


def is_encrypted(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (parts.scheme == "https" and bool(parts.hostname)) or (
            parts.scheme == "http" and parts.hostname in LOOPBACK_NAMES
        )
    except ValueError:
        return False


KEY_CHARACTERS: Final = 32
"""Shortest key: 128 random bits in hexadecimal digits. Whoever has it can speak as a replica."""

ReplicaName = Annotated[str, like("[A-Za-z0-9_-]{1,64}", "must be 1 to 64 of A-Z a-z 0-9 _ -")]
ReplicaUrl = Annotated[str, like("https?://[^/?#@]+", "must be http://HOST:PORT or https://HOST:PORT")]
ClusterKey = Annotated[str, sized(KEY_CHARACTERS, unit="characters")]


class ClusterConfig(Table, frozen=True):
    """Settings of this replica."""

    enabled: bool = False
    replica: ReplicaName | None = None
    """Name of this replica, which no other one has; by default a random one."""
    advertise: ReplicaUrl | None = None
    """Address at which the other replicas reach this one; by default that of the HTTP front."""
    key: Annotated[ClusterKey | None, HIDDEN] = None
    """Secret that all replicas share: they sign relays and seal credentials with it."""
    key_file: Path | None = None
    """File with that secret, instead."""
    other_keys: Annotated[tuple[ClusterKey, ...], HIDDEN] = ()
    """Further secrets that are accepted, while the key is being changed from one of them or to it."""
    heartbeat_seconds: Annotated[float, within(0.2, 60)] = 2.0
    """Time between two signs of life; without one for three times as long, a replica counts as gone."""

    def __post_init__(self) -> None:
        if self.enabled and (self.key is None) == (self.key_file is None):
            raise ValueError("a cluster needs a key or a key_file, one of them, the same on all replicas")


def keys_of(config: ClusterConfig) -> tuple[bytes, ...]:
    """Return the key of a cluster, and then those that it accepts as well; none if no key is configured.

    Raises `ConfigError` if the file of the key cannot be read, or holds no key.
    """
    if config.key is not None:
        key = config.key.encode()
    elif config.key_file is not None:
        try:
            key = config.key_file.read_bytes().strip()
        except OSError as error:
            reason = f"cannot be read: {error.strerror or error}"
            raise ConfigError([ConfigProblem(None, None, "cluster.key_file", reason)]) from error
        if len(key) < KEY_CHARACTERS:
            reason = f"has {len(key)} bytes; a key has {KEY_CHARACTERS} or more (openssl rand -hex 32)"
            raise ConfigError([ConfigProblem(None, None, "cluster.key_file", reason)])
    else:
        return ()
    return (key, *(other.encode() for other in config.other_keys))


KIB: Final = 1024
MIB: Final = 1024 * KIB

MOST_LEVELS = 500
"""Highest limit of nesting: parsers stop at 200 to 1,000 levels, ours among them."""

Levels = Annotated[int, within(1, MOST_LEVELS)]


class Limits(Table, frozen=True):
    """Bounds that keep one bad peer, file or result from harming everything else."""

    message_bytes: Count = 16 * MIB
    """Largest message in either direction; enough for screenshots and file dumps."""
    sse_event_bytes: Count = 16 * MIB
    """Largest event from an HTTP server. The SDK's default of 1 MiB would lose larger results."""
    http_body_bytes: Annotated[Count, Reload.RESTART] = 4 * MIB
    """Largest request body at the HTTP front; arguments are small."""
    nesting_definitions: Levels = 64
    """Deepest tool definition; no honest schema is deeper."""
    nesting_results: Levels = 120
    """Deepest result or params of a call. Programs in Rust read 127 levels, some end at what is deeper."""

    probe_seconds: Seconds = 2.0
    """Wait for `server/discover` before the handshake, because old servers ignore the probe silently."""
    connect_seconds: Seconds = 30.0
    """Time from the start of a server to its first response; see also `first_start_seconds`."""
    first_start_seconds: Seconds = 300.0
    """The same for a server that a package runner such as `npx` downloads, until a start has succeeded."""
    start_wait_seconds: Seconds = 5.0
    """Time that a search waits for servers that were never connected and are starting."""
    first_list_seconds: SecondsOrNone = 4.0
    """Time that a client's lists wait for the same servers, because many hosts list once; 0 for no wait. The
    strictest hosts give a server 5 s for that (`HostProfile.first_list_seconds`)."""
    list_seconds: Seconds = 30.0
    """Timeout of a whole listing with all its pages; the last known tools stay meanwhile."""
    call_seconds: Seconds = 60.0
    """Timeout of a call without progress; the value that hosts use."""
    call_max_seconds: Seconds = 600.0
    """Timeout of a call that keeps reporting progress."""
    stop_seconds: Seconds = 2.0
    """Time for each step of stopping a server (end of input, then SIGTERM), before SIGKILL."""
    drain_seconds: Seconds = 10.0
    """Time for pending requests when the proxy stops, or when their server is removed."""

    starts_at_once: Annotated[Count, Reload.RESTART] = 8
    """Servers that start at the same time; more of them make all slower."""
    backoff_first_seconds: Seconds = 1.0
    """Wait before the first restart; doubles with each failure."""
    backoff_max_seconds: Seconds = 60.0
    """Longest wait between restarts."""
    backoff_reset_seconds: Seconds = 60.0
    """Time of health after which earlier failures are forgotten."""
    breaker_failures: Count = 5
    """Quick failures in a row after which a server is not restarted for a while. A kill, or a crash during a
    call, counts only if the server had not answered anything."""
    breaker_seconds: Seconds = 60.0
    """Wait before one more attempt after that."""

    ask_seconds: Annotated[Seconds, Reload.RESTART] = 600.0
    """Time for a person to answer a server's request; the timeout of the call is paused meanwhile."""
    questions_per_call: Count = 10
    """Requests that a server may make of its client during one call: each costs a person's patience or a
    model's tokens."""
    sampling_tokens: Count = 4096
    """Tokens that one of them may have the client's model write; more is cut down to this."""
    parked_calls: Annotated[Count, Reload.RESTART] = 256
    """Calls of modern clients that wait for such an answer; further requests of servers are refused."""
    lanes_per_server: Count = 32
    """Dedicated connections to one server, for clients that it asks for input; each may be a process."""
    lane_idle_seconds: Seconds = 300.0
    """Idle time after which a dedicated connection without a session is closed."""

    in_flight_per_server: Count = 1024
    """Pending calls of one server; further calls fail with "busy" at once. There is no queue with a smaller
    bound: a thousand calls of 1 s would take 4 s at 256 a time, and queued calls time out all the same."""
    in_flight: Annotated[Count, Reload.RESTART] = 2048
    """Pending requests of the stdio host; bounds memory, not speed."""

    indexing_wait_seconds: Seconds = 1.5
    """Time that a search waits for indexing, if that may be ready by then."""

    embedding_seconds: Annotated[Seconds, Reload.RESTART] = 60.0
    """Timeout for embedding a batch of texts at `embedding.endpoint`, all attempts together."""
    embedding_query_seconds: Annotated[Seconds, Reload.RESTART] = 3.0
    """Timeout for embedding a query; after it, the search uses words alone."""
    rerank_seconds: Annotated[Seconds, Reload.RESTART] = 5.0
    """Timeout of the reranker; after it, the order of the search stays."""

    tools_per_server: Count = 10_000
    """Tools of one server: ten times the largest known; more is a fault or an attack."""
    tools: Count = 100_000
    """Tools of all servers; up to here search stays exact and in memory."""
    pages: Count = 1000
    """Pages of one listing, against servers that page forever."""
    listing_bytes: Count = 32 * MIB
    """Size of all pages of one listing."""
    description_shown_bytes: Count = 16 * KIB
    """Longest description in a list; longer ones are cut, since the model pays for each word."""
    schema_bytes: Count = 256 * KIB
    """Largest input or output schema; a larger one is withheld with its tool."""
    schema_nodes: Count = 10_000
    """Values in one schema, because a small text can hold a huge tree."""

    stderr_kept_bytes: Count = 64 * KIB
    """Stderr kept of a server, for the message that says why it exited."""
    stderr_lines_per_second: Count = 100
    """Lines logged from one server; the rest is counted."""

    unread_bytes: Count = 16 * MIB
    """Unread responses to the stdio host; above it, the proxy stops reading from servers (backpressure)."""
    stalled_seconds: Seconds = 30.0
    """Time without a read, with responses waiting, after which a host counts as gone."""
    http_header_seconds: Annotated[Seconds, Reload.RESTART] = 10.0
    """Time to receive the headers of a request, so that a slow client cannot hold a connection."""
    http_body_seconds: Annotated[Seconds, Reload.RESTART] = 30.0
    """Time to receive the body of a request."""
    http_idle_seconds: Annotated[Seconds, Reload.RESTART] = 60.0
    """Idle time of a kept-alive connection."""
    http_connections: Annotated[Count, Reload.RESTART] = 512
    """Open connections at the HTTP front."""
    calls_per_second: Annotated[SecondsOrNone, Reload.RESTART] = 0.0
    """Tool calls that each principal may make over HTTP in a second, and as many at once; 0 sets no limit."""
    sessions: Annotated[Count, Reload.RESTART] = 1000
    """HTTP sessions of the handshake era; a new one replaces the longest idle one."""
    session_idle_seconds: Annotated[Seconds, Reload.RESTART] = 1800.0
    """Idle time after which a session ends: a long lunch."""

    document_bytes: Count = 1 * MIB
    """Largest rule or reference file."""
    documents: Count = 10_000
    """Rules and references in all."""

    requests_kept: Annotated[Count, Reload.RESTART] = 1000
    """Request contexts that are kept: days of one person's work, about 3 MB."""
    requests_age_seconds: Annotated[Seconds, Reload.RESTART] = 7 * 24 * 3600.0
    """Age after which a request context is deleted; people ask about this week."""

    statistics_hours_seconds: Annotated[Seconds, Reload.RESTART] = 7 * 24 * 3600.0
    """Age up to which usage is kept by the hour; older usage is kept by the day."""
    statistics_days_seconds: Annotated[Seconds, Reload.RESTART] = 365 * 24 * 3600.0
    """Age after which a day is deleted; a year shows seasons."""
    statistics_rows: Annotated[Count, Reload.RESTART] = 200_000
    """Rows of usage: 100 tools used every day of a year and every hour of a week, 20 MB."""
    store_waiting_rows: Annotated[Count, Reload.RESTART] = 50_000
    """Rows of usage that wait in memory while the store cannot be written, 20 MB; of more, the oldest are
    dropped."""
    searches_kept: Annotated[Count, Reload.RESTART] = 5000
    """Searches kept one by one, about 2 MB; their number is counted in any case."""
    searches_age_seconds: Annotated[Seconds, Reload.RESTART] = 30 * 24 * 3600.0
    """Age after which a search is deleted."""

    interaction_characters: Count = 4000
    """Characters kept of one interaction: a long message, and more than the packaged model embeds."""
