"""Tables of the configuration: the types of their values, and the settings of tools, profiles and identity.

A table under ``tools`` is about one tool, or about all that its glob matches. The setting under the tool's
own name comes before those of globs, and those before the ones of its class. Where several globs match, the
strictest ``allow`` counts, and of most other keys the first in the file. Of ``danger``, all count.

A table ``[clients.NAME]`` is a profile: the part of everything that one kind of client gets, such as a coding
host or a chat host. A client has it by a token that is bound to it, by its address ``/mcp/p/NAME`` or ``serve
--profile NAME``, by the name of its agent, or by the name under which it introduces itself, in this order.

``[auth]`` says how clients over HTTP prove who they are, and the role and reach of each. ``[cluster]`` is
about several replicas of the proxy behind one balancer, over one database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from msgspec import field

from mcp_context_proxy.config.forms import HIDDEN, Table, Text, like, sized, within
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

Key: TypeAlias = tuple[str, ...]
"""Path of a setting below its server, such as ``("classes", "write")``."""


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
"""Older key for what ``classes`` and ``allow`` say."""

ASKED: Final[Mapping[str, tuple[ToolClass, ...]]] = {
    "destructive": (ToolClass.DESTRUCTIVE,),
    "write": (ToolClass.WRITE, ToolClass.DESTRUCTIVE),
    "never": (),
}
"""Values of that key, with the classes that a person is asked about."""


def with_classes(server: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a server with ``confirm`` written as ``classes``, and as ``allow`` of a tool."""
    tools = server.get("tools")
    if isinstance(tools, dict):
        allowed = {name: _without_confirm(tool, "allow") for name, tool in tools.items()}
        server = server | {"tools": allowed}
    understood: dict[str, Any] = _without_confirm(server, "classes")
    return understood


def _without_confirm(table: Any, key: str) -> Any:
    if not isinstance(table, dict) or CONFIRM not in table:
        return table
    asked = ASKED.get(str(table[CONFIRM]), ())
    value = dict.fromkeys(map(str, asked), "ask") if key == "classes" else "ask" if asked else "always"
    return {key: value} | {name: given for name, given in table.items() if name != CONFIRM}


def settings_of(tools: Mapping[str, ToolConfig], name: str) -> Iterable[tuple[str, ToolConfig]]:
    """Return the settings of a tool with their keys: those under its name, then those of globs."""
    # Few servers have any, and each tool of a long list comes by here several times.
    return _settings_of(tools, name) if tools else ()


def _settings_of(tools: Mapping[str, ToolConfig], name: str) -> Iterator[tuple[str, ToolConfig]]:
    own = tools.get(name)
    if own is not None:
        yield name, own
    for glob, settings in tools.items():
        if glob != name and ANY in glob and matches(glob, name):
            yield glob, settings


def permission(
    tools: Mapping[str, ToolConfig], classes: ClassesConfig, name: str, tool_class: ToolClass | None
) -> tuple[Allow, Key]:
    """Return the permission to call a tool, and the setting that gives it.

    Where its class is None, that is not known, and no class counts.
    """
    if tools:
        own = tools.get(name)
        if own is not None and own.allow is not None:
            return own.allow, ("tools", name, "allow")
        found = [
            (settings.allow, ("tools", glob, "allow"))
            for glob, settings in settings_of(tools, name)
            if settings.allow is not None
        ]
        if found:
            return max(found, key=lambda one: STRICTNESS[one[0]])
    if tool_class is None:
        return "always", ()
    allow: Allow = getattr(classes, tool_class)
    return allow, ("classes", tool_class)


def configured_class(tools: Mapping[str, ToolConfig], name: str) -> tuple[ToolClass | None, Key]:
    """Return the strictest class that a tool is given, and the setting; None if it is given none."""
    if not tools:
        return None, ()
    order = list(ToolClass)
    found = [
        (settings.danger, ("tools", key, "danger"))
        for key, settings in settings_of(tools, name)
        if settings.danger is not None
    ]
    return max(found, key=lambda one: order.index(one[0])) if found else (None, ())


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

RoleName: TypeAlias = Literal["use", "view", "operate", "admin"]

LONGEST_LEEWAY = 300.0
"""Clocks that differ by more than five minutes are wrong, and every second of leeway prolongs each token."""

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


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
        """Raise `ValueError` if the settings contradict each other."""
        if self.mode == "jwt" and self.issuer is None:
            raise ValueError("mode = 'jwt' needs an issuer, the URL in the claim iss of its tokens")
        for name in ("issuer", "jwks_url"):
            url = getattr(self, name)
            if url is not None and not is_encrypted(url):
                raise ValueError(f"{name} must begin with https://; http:// is for this machine only")


def is_encrypted(url: str) -> bool:
    """Return whether a URL is one of https, or of this machine."""
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
        """Raise `ValueError` if there is not just one key."""
        if self.enabled and (self.key is None) == (self.key_file is None):
            raise ValueError("a cluster needs a key or a key_file, one of them, the same on all replicas")


def keys_of(config: ClusterConfig) -> tuple[bytes, ...]:
    """Return the key of a cluster, and then those that it accepts as well; none if no key is configured.

    Raises:
        ConfigError: the file of the key cannot be read, or holds no key.
    """
    if config.key is not None:
        key = config.key.encode()
    elif config.key_file is not None:
        key = _key_in(config.key_file)
    else:
        return ()
    return (key, *(other.encode() for other in config.other_keys))


def _key_in(file: Path) -> bytes:
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise ConfigError([ConfigProblem(None, None, "cluster.key_file", reason)]) from error
    if len(key) < KEY_CHARACTERS:
        reason = f"has {len(key)} bytes; a key has {KEY_CHARACTERS} or more (openssl rand -hex 32)"
        raise ConfigError([ConfigProblem(None, None, "cluster.key_file", reason)])
    return key
