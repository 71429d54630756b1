"""Values that flow through the proxy: tools, rules, references, snapshots of the catalog, search filters.

They are frozen and know nothing but themselves; every other module may depend on this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Protocol, TypeAlias

from msgspec import DecodeError, Meta, Raw, Struct, field, json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


JSON: TypeAlias = Any
"""Decoded JSON of a shape that another program defines."""

Vector: TypeAlias = "NDArray[np.float32]"
"""Shape [dimensions], L2 norm 1."""

ToolKey: TypeAlias = tuple[str, str]
"""A tool of a server: the server's key in the configuration, and the name the server itself uses."""


class IncludeMode(StrEnum):
    """Condition under which an item is part of a context."""

    ALWAYS = "always"
    """The item is in every context."""
    MANUAL = "manual"
    """The item is added by hand only, and never found by search."""
    AGENT = "agent"
    """A query selects the item."""


class Kind(StrEnum):
    """The three kinds of item."""

    TOOL = "tool"
    RULE = "rule"
    REFERENCE = "reference"


class ToolClass(StrEnum):
    """Harm that a call of a tool may do, from none to loss."""

    READ = "read"
    """The tool changes nothing."""
    WRITE = "write"
    """It may change something, or says nothing about that."""
    DESTRUCTIVE = "destructive"
    """It may delete or overwrite something."""


DOCUMENT_KINDS = frozenset({Kind.RULE, Kind.REFERENCE})
"""Kinds that are read rather than called."""


class Encoded(Protocol):
    """JSON as bytes in memory, or the place of a file that ``bytes()`` reads it from."""

    def __bytes__(self) -> bytes: ...

    def __len__(self) -> int: ...

    def __hash__(self) -> int: ...


class _Described(Struct):
    """A definition, as far as it describes its tool."""

    description: Raw = Raw(b'""')


_described = json.Decoder(_Described).decode
_text = json.Decoder(str).decode

DESCRIPTIONS_KEPT: Final = 512
"""Latest descriptions that are not read again: an answer compares up to eighty, 0.3 ms of reading."""


@lru_cache(DESCRIPTIONS_KEPT)
def _description(written: Encoded) -> str:
    try:
        return _text(_described(bytes(written)).description)
    except (DecodeError, RecursionError):
        return ""


class Tool(Struct, frozen=True):
    """A tool of one downstream server, with its definition as the bytes that the server sent."""

    kind: ClassVar[Kind] = Kind.TOOL

    server: str
    """Key of the server in the configuration."""
    name: str
    """The server's own name for the tool."""
    exposed_name: str
    """The name that fits every host; unique in the catalog, and the one in records and settings."""
    written: Encoded
    """One JSON object as received, except that texts are cleaned, and cut if too long."""
    fingerprint: str
    """SHA-256 (hex) of server and definition, independent of the order of members."""
    include: IncludeMode = IncludeMode.AGENT
    tags: tuple[str, ...] = ()
    """Tags from the configuration."""
    category: str | None = None
    """Category from the configuration."""
    use_cases: tuple[str, ...] = ()
    """Requests that it is for, from the configuration."""
    trusted: bool = False
    """True if the configuration trusts its server's descriptions."""
    tool_class: ToolClass = ToolClass.WRITE
    class_reason: str = ""
    """Why it has this class, as in ``its name says 'delete'``."""
    interactive: bool = False
    """True if the tool demands that the user is asked before each call."""
    asked_by: str = ""
    """Setting that demands it, with file and line, as in ``servers.x.classes.write (config.toml:7)``."""
    result_characters: int = 0
    """Length of a result that the tool wants hosts to keep whole; 0 leaves it to them."""
    task_only: bool = False
    """True if its server runs it as a task only."""
    page: str = ""
    """URI of the page of an MCP App that shows its results; empty if it has none."""
    other_pages: tuple[str, ...] = ()
    """URIs of the pages that other kinds of hosts show instead."""
    wider_names: tuple[str, ...] = ()
    """Forms of its name for hosts with room for more of it than `exposed_name` has, the shortest first."""

    @property
    def definition(self) -> bytes:
        """JSON as it is written, read from a file for a tool of a very long list."""
        return bytes(self.written)

    @property
    def description(self) -> str:
        """Return the description in its definition, empty if there is none.

        It is read in a few microseconds. Kept as texts, those of 100,000 tools take 43 MB.
        """
        return _description(self.written)

    @property
    def key(self) -> ToolKey:
        """Its server and own name, which identify it whatever name hosts see."""
        return self.server, self.name


class TurnedOffTool(Struct, frozen=True):
    """A tool that a server offers and the configuration turns off: known by name, and nothing else of it."""

    server: str
    """Key of the server in the configuration."""
    name: str
    """The server's own name for the tool."""
    exposed_name: str
    """The name that it would have; unique among those that are turned off."""
    reason: str
    """Setting that turns it off, with file and line, as in ``by servers.x.deny[0] (config.toml:7)``."""


class Withheld(Struct, frozen=True):
    """A tool or prompt that waits for a person's approval: nothing but its name is served."""

    server: str
    """Key of the server in the configuration."""
    name: str
    """The server's own name."""
    exposed_name: str
    """The name that it would have."""
    reason: str
    """End of the sentence "is withheld: ..."."""


NameOf: TypeAlias = Callable[[Tool], str]
"""Returns the name under which one client gets a tool."""


def uri_of(kind: Kind, name: str) -> str:
    """Return ``rule://NAME`` or ``reference://NAME``, with the name percent-encoded."""
    from urllib.parse import quote  # noqa: PLC0415

    return f"{kind}://{quote(name, safe='')}"


class SkillFolder(Struct, frozen=True):
    """The folder of a skill; its files belong to the skill."""

    root: Path
    """The configured folder. It may be a link; nothing below it is reached through one."""
    parts: tuple[str, ...]
    """Names of the folders that lead from there to the skill."""

    @property
    def path(self) -> Path:
        return self.root.joinpath(*self.parts)


SEARCHED_CHARACTERS: Final = 262_144
"""Characters of a document that search looks at; some 500 chunks, a few seconds of embedding."""


class Document(Struct, frozen=True):
    """A rule or a reference: markdown that is served as a resource and found like a tool."""

    kind: Kind
    """`Kind.RULE` or `Kind.REFERENCE`."""
    name: str
    """Unique within its kind; part of its URI."""
    description: str
    text: str
    """The markdown body, without front matter."""
    fingerprint: str
    """SHA-256 (hex) of all the fields above."""
    include: IncludeMode = IncludeMode.AGENT
    priority: int = 500
    """0 to 999; lower ones come first."""
    tags: tuple[str, ...] = ()
    folder: SkillFolder | None = None
    """Folder of a skill; None for any other document."""
    full_name: str = ""
    """Name that begins with that of its configured folder, under which it is known as well."""
    server: str = ""
    """Server whose skill it describes, under the skill's URI as name; empty for the user's own documents."""
    roots: tuple[str, ...] = ()
    """Folders of the projects that it is for; none for all projects."""
    patterns: tuple[str, ...] = ()
    """Patterns of the files that it is for, such as ``src/**/*.ts``; a request that names one means it."""

    @property
    def uri(self) -> str:
        return self.name if self.server else uri_of(self.kind, self.name)


Item: TypeAlias = Tool | Document


class Resource(Struct, frozen=True):
    """A resource, or a template of resources, of one downstream server."""

    server: str
    uri: str
    """Its URI, or its URI template (RFC 6570)."""
    definition: bytes
    """As of a tool."""
    listed: bool = True
    """False while it is withheld, or its server, which is still configured, has not listed it again."""
    withheld: str = ""
    """Reason why it is withheld, so that nothing is read by it; empty where it is served."""


class SkillFile(Struct, frozen=True):
    """A file of a skill, with the digest and the size that its content must have."""

    uri: str
    """URI under which hosts read it."""
    source: str
    """URI that its server uses; that of hosts for the user's own skills."""
    digest: str
    """``sha256:`` and 64 hexadecimal digits."""
    size: int
    """In bytes."""


class Skill(Struct, frozen=True):
    """A skill of a downstream server or of the user: a folder with a ``SKILL.md`` and other files."""

    owner: str
    """Key of the server, or the name that stands for the user's own folders."""
    uri: str
    """URI of its ``SKILL.md`` as hosts read it; unique in the catalog."""
    source: str
    """URI that its server uses for it."""
    name: str
    """From its front matter; the last folder of both URIs."""
    description: str
    frontmatter: bytes
    """One JSON object as received."""
    files: Mapping[str, SkillFile] | None
    """All files by URI; None if the server calls the content dynamic, so that nothing can be checked."""

    @property
    def root(self) -> str:
        """Return the URI of its folder, without a slash at its end."""
        return self.uri.rpartition("/")[0]


class Prompt(Struct, frozen=True):
    """A prompt of one downstream server."""

    server: str
    name: str
    """The server's own name for the prompt."""
    exposed_name: str
    """The name that hosts see; unique in the catalog."""
    definition: bytes
    """As of a tool."""


class Source(Struct, frozen=True, eq=False, weakref=True):
    """One downstream server or one kind of document, with its items."""

    key: str
    """Key of the server, or ``rules`` or ``references``."""
    items: tuple[Item, ...]
    about: str = ""
    """The instructions that the server gives about itself, as it gave them."""


class Snapshot(Struct, frozen=True, eq=False):
    """The whole catalog at one moment; a request uses one snapshot from start to end."""

    generation: int
    """Number that grows by one with every change."""
    sources: tuple[Source, ...]
    tools: Mapping[str, Tool] = field(default_factory=dict)
    """Sorted by their key, the exposed name."""
    documents: Mapping[str, Document] = field(default_factory=dict)
    """Sorted by their key, the URI."""
    other_uris: Mapping[str, Document] = field(default_factory=dict)
    """Documents by the URI of their full name, where that is not the URI of a document."""
    resources: Mapping[str, Resource] = field(default_factory=dict)
    """Resources of the downstream servers, by URI."""
    templates: Mapping[str, Resource] = field(default_factory=dict)
    """Their templates of resources, by URI template."""
    owner_of: Callable[[str], Resource | None] = lambda _uri: None
    """Returns the resource or template that a URI leads to; None if no server has it."""
    prompts: Mapping[str, Prompt] = field(default_factory=dict)
    """Sorted by their key, the exposed name."""
    wider: Mapping[str, Tool] = field(default_factory=dict)
    """Tools by each of their wider names, none of which any other tool has."""
    turned_off: Mapping[str, TurnedOffTool] = field(default_factory=dict)
    """Tools that the configuration turns off, by exposed name. They are in none of the other members."""
    withheld: Mapping[str, Withheld] = field(default_factory=dict)
    """Tools that wait for a person's approval, by exposed name. They are in none of the other members."""
    withheld_prompts: Mapping[str, Withheld] = field(default_factory=dict)
    """Prompts that do."""
    first_seen: Mapping[ToolKey, float] = field(default_factory=dict)
    """Time at which each tool was first seen, in seconds since 1970; an empty name stands for the server."""
    skills: Mapping[str, Skill] = field(default_factory=dict)
    """Skills of the downstream servers, by URI."""
    findings: tuple[str, ...] = ()
    """Messages for a person about items that were withheld."""
    servers: frozenset[str] = frozenset()
    """Names of all configured servers, also of those that are switched off."""
    unlisted: tuple[str, ...] = ()
    """Names of servers whose tools and prompts are not known yet, because they were never connected."""
    unread: bool = False
    """True while the folders of rules and references are read for the first time."""
    part_of: Snapshot | None = None
    """The whole of which this is the part that one principal may reach; None for the whole itself."""
    hidden: frozenset[tuple[Kind, str]] = frozenset()
    """Items of the whole that are not in this part: by their keys (`key_of`)."""

    def document(self, uri: str) -> Document | None:
        return self.documents.get(uri) or self.other_uris.get(uri)


class Snapshots(Protocol):
    """A catalog: it has a current snapshot."""

    @property
    def snapshot(self) -> Snapshot:
        """All current items that the principal may reach for whom this is done."""
        ...

    @property
    def whole(self) -> Snapshots:
        """The same for those who may reach everything."""
        ...


MIN_CALLS: Final = 5
"""Below this number of calls a success rate means little: one failure in four is still a bad day."""

LATENCY_MOST: Final = 1e9
"""Milliseconds: eleven days."""

Name = Annotated[str, Meta(min_length=1, max_length=1000)]
Latency = Annotated[float, Meta(gt=0, le=LATENCY_MOST)]
Share = Annotated[float, Meta(ge=0, le=1)]


def _meta(description: str, *, model: str | None = None, off: str | None = None) -> Meta:
    """Describe a filter for the command line and the OpenAPI document.

    ``model`` is a shorter description for the meta tool, ``off`` the option of the command line for False.
    """
    return Meta(description=description, extra={"model": model, "off": off})


class SearchFilters(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Filters of one search; the defaults allow everything.

    The schema of the meta tool, the parameters of the REST API and the options of the CLI follow from these
    fields.
    """

    server: Annotated[Name | None, _meta("Only tools of this server.", model="Search only this server")] = (
        None
    )
    category: Annotated[Name | None, _meta("Only items of this category.")] = None
    tags: Annotated[tuple[str, ...], _meta("Only items with all of these tags.", model="All of them")] = ()
    any_tags: Annotated[tuple[str, ...], _meta("Only items with at least one of these tags.")] = ()
    language: Annotated[Name | None, _meta("Only items with this programming language as a tag.")] = None
    read_only: Annotated[bool, _meta("Only tools that say they change nothing.")] = False
    exclude_destructive: Annotated[
        bool, _meta("Only tools that say they neither delete nor overwrite anything.")
    ] = False
    open_world: Annotated[
        bool | None,
        _meta("Only tools that reach beyond their server, or only those that do not.", off="closed-world"),
    ] = None
    max_latency_ms: Annotated[
        Latency | None, _meta("Only tools that end 95 % of their calls within this time.")
    ] = None
    min_success_rate: Annotated[
        Share | None, _meta("Only tools with at least this share of successful calls.")
    ] = None
    min_calls: Annotated[
        int, Meta(ge=1, le=1_000_000_000), _meta("Fewer calls than this say nothing about the success rate.")
    ] = MIN_CALLS
    strict: Annotated[bool, _meta("Also leave out tools with too few calls to tell.")] = False

    def before(self, others: SearchFilters) -> SearchFilters:
        """Return the filters of both; one that is set here counts before the same there."""
        values = {}
        for name in SearchFilters.__struct_fields__:
            ours = getattr(self, name)
            values[name] = getattr(others, name) if ours == getattr(NO_FILTERS, name) else ours
        return SearchFilters(**values)

    def applied(self) -> dict[str, JSON]:
        """Return the filters that are set, by name, without those that mean nothing alone."""
        found = {name: getattr(self, name) for name in SearchFilters.__struct_fields__}
        asked = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in found.items()
            if value != getattr(NO_FILTERS, name)
        }
        if not self.needs_figures:
            asked.pop("strict", None)
        if self.min_success_rate is None:
            asked.pop("min_calls", None)
        return asked

    @property
    def needs_figures(self) -> bool:
        """True where it matters how earlier calls went."""
        return self.max_latency_ms is not None or self.min_success_rate is not None

    def each(self) -> Iterator[tuple[str, SearchFilters]]:
        """Yield each filter that is set alone, with its name."""
        for name in self.applied():
            if name not in ("min_calls", "strict"):
                alone: dict[str, Any] = {name: getattr(self, name)}
                yield name, SearchFilters(min_calls=self.min_calls, strict=self.strict, **alone)


NO_FILTERS: Final = SearchFilters()

ItemKey: TypeAlias = tuple[Kind, str]
"""Type of an item, and the exposed name of a tool or the name of a document."""


def key_of(item: Item) -> ItemKey:
    return item.kind, item.exposed_name if isinstance(item, Tool) else item.name


def item_by(snapshot: Snapshot, key: ItemKey) -> Item | None:
    kind, name = key
    if kind is Kind.TOOL:
        return snapshot.tools.get(name)
    own, skill = snapshot.document(uri_of(kind, name)), snapshot.documents.get(name)
    # The skill of a server has its URI as its name.
    return skill if own is None and skill is not None and skill.server else own
