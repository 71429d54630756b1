"""Owners of URIs, and the parts of the catalog that a principal with limits may reach.

A URI leads to the server that lists it, else to the server of the template that matches it with the longest
literal beginning. If two servers list the same URI, or their templates begin alike, the first of the
configuration has it. URIs are compared as they are written and never normalised: two spellings of one
address are two URIs, so no spelling leads to another server than the listed one.

Servers write templates, and clients write URIs, so the work is bounded whatever they write. Templates are
found by their literal beginning, and are matched without regular expressions and without backtracking: the
positions of the URI that can be reached are the bits of one integer. A literal is a few shifts and
conjunctions of such integers, and an expression is one addition, so a template costs at most its length
times the words of an integer, which has one bit for each byte of the URI.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final, TypeVar
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.catalog.definitions import UnfitError
from mcp_context_proxy.catalog.names import folded
from mcp_context_proxy.items import (
    DOCUMENT_KINDS,
    Item,
    Prompt,
    Resource,
    Snapshot,
    Tool,
    ToolKey,
    TurnedOffTool,
    Withheld,
    key_of,
)
from mcp_context_proxy.trust import Principal

OWN_SCHEMES: Final = frozenset({*DOCUMENT_KINDS, "context"})
"""Schemes of the proxy's own resources, in small letters."""

SKILL_SCHEME: Final = "skill://"

OWN_SKILLS: Final = "own.folders"
"""First part of the URIs of the user's own skills. No server has that name: it has a dot."""

URI_BYTES: Final = 8 * 1024
"""Longest URI: as long as web servers take. The time to find an owner grows with it."""

TEMPLATE_BYTES: Final = 1024
"""Longest URI template; templates of real servers have less than 200 bytes."""

EXPRESSIONS: Final = 16
"""Expressions of one template, where adjacent ones count as one. Real templates have up to five."""

TEMPLATES_PER_SERVER, TEMPLATE_BYTES_PER_SERVER = 1000, 64 * 1024
"""Templates of one server, and their bytes. All of them may have to be matched with one URI, while everybody
waits: at these bounds for less than 30 ms, whatever the server and the client write."""

_WITHIN_SEGMENT: Final = ("", ".", ";")
"""Operators of expressions that expand to no separator (RFC 6570); the others may expand to anything."""

_OPERATORS: Final = frozenset("+#./;?&")
_SEPARATORS: Final = b"/?#"
_IN_SCHEME: Final = str.maketrans("", "", "+-.")


def is_own(uri: str) -> bool:
    """Return whether a URI has a scheme of the proxy itself, in whatever case and after whatever spaces."""
    return uri.partition(":")[0].strip().lower() in OWN_SCHEMES


OF_TWO: Final = "two servers offer a page at this address, and one would get what is meant for the other"
"""Reason why a page for people (`is_page`) leads nowhere."""


def skill_claim(uri: str, server: str, servers: Iterable[str]) -> str | None:
    """Return whose skill a person takes the ``skill:`` URI of a server for, if that is another's.

    That is one of the user's own (`OWN_SKILLS`), or one of another server.
    """
    scheme, _, rest = uri.partition(":")
    if scheme.strip().lower() != "skill":
        return None
    first = unquote(rest.lstrip("/").partition("/")[0])
    if first == server:
        return None
    read = folded(first)
    return next((each for each in (OWN_SKILLS, *servers) if each != server and folded(each) == read), None)


def check_uri(uri: str, member: str = "uri") -> None:
    """Check a server's URI, or the literal beginning of its template.

    Raises `UnfitError` if it is no URI, it is too long, or its scheme belongs to the proxy.
    """
    if len(_bytes(uri)) > URI_BYTES:
        raise UnfitError(f"its {member} is over {URI_BYTES:,} bytes")
    if not uri.isprintable():
        raise UnfitError(f"its {member} has control characters")
    scheme, colon, _ = uri.partition(":")
    letters = scheme.translate(_IN_SCHEME)
    if not (colon and scheme.isascii() and scheme[:1].isalpha() and letters.isalnum()):
        raise UnfitError(f"its {member} does not begin with a scheme, such as 'file:'")
    if is_own(uri):
        raise UnfitError(f"its {member} has the scheme {scheme!r}, which only the proxy itself uses")


class UriTemplate(Struct, frozen=True):
    """A URI template as literals with gaps between them."""

    prefix: bytes
    """The literal before the first gap; the whole template if it has no expression."""
    gaps: tuple[bool, ...]
    """The expressions, adjacent ones as one; true if one of them may expand to a separator."""
    literals: tuple[bytes, ...]
    """The literal after each gap; only the last may be empty."""

    @classmethod
    def parse(cls, template: str) -> UriTemplate:
        """Parse a URI template (RFC 6570).

        Raises `UnfitError` if it is malformed or over a bound, or has no literal scheme or one of the
        proxy's.
        """
        if len(_bytes(template)) > TEMPLATE_BYTES:
            raise UnfitError(f"its uriTemplate is over {TEMPLATE_BYTES:,} bytes")
        first, *rest = template.split("{")
        literals, gaps = [first], list[bool]()
        for part in rest:
            expression, brace, literal = part.partition("}")
            if not brace:
                raise UnfitError("its uriTemplate has a brace without a partner")
            operator = expression[:1] if expression[:1] in _OPERATORS else ""
            free = operator not in _WITHIN_SEGMENT
            if gaps and not literals[-1]:
                gaps[-1] |= free
                literals[-1] = literal
            else:
                gaps.append(free)
                literals.append(literal)
        if any("}" in literal for literal in literals):
            raise UnfitError("its uriTemplate has a brace without a partner")
        if len(gaps) > EXPRESSIONS:
            raise UnfitError(f"its uriTemplate has more than {EXPRESSIONS} expressions")
        check_uri(first, "uriTemplate")
        if not template.isprintable():
            raise UnfitError("its uriTemplate has control characters")
        prefix, *others = map(_bytes, literals)
        return cls(prefix, tuple(gaps), tuple(others))

    def matches(self, uri: _Uri) -> bool:
        """Return whether the URI may be an expansion of this template. Its prefix has been compared."""
        text, start = uri.text, len(self.prefix)
        if not self.gaps:
            return len(text) == start
        end = len(text) - len(self.literals[-1])
        if start > end or not text.endswith(self.literals[-1]):
            return False
        # With gaps of any content the leftmost place of each literal is as good as any. So this finds all
        # that cannot match, and all that does match if no gap is limited to its path segment.
        position = start
        for literal in self.literals[:-1]:
            position = text.find(literal, position, end)
            if position < 0:
                return False
            position += len(literal)
        return all(self.gaps) or self._reaches(uri, start, end)

    def _reaches(self, uri: _Uri, start: int, end: int) -> bool:
        """Return whether gaps and literals lead from `start` to `end`; see the top of the module."""
        reached = 1 << start
        for free, literal in zip(self.gaps, (*self.literals[:-1], b""), strict=True):
            if free:
                reached = uri.everywhere & -(reached & -reached)
            else:
                # The sum carries each position to the end of its path segment. Removing the bits that were
                # there before leaves the positions on the way.
                within = uri.within_segments
                reached |= ((reached & within) + within) ^ within
            for byte in literal:
                reached = (reached & uri.places(byte)) << 1
            if not reached:
                return False
        return bool(reached >> end & 1)


class _Uri:
    """A URI whose owner is looked for, with sets of its positions as the bits of integers."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._places: dict[int, int] = {}

    @cached_property
    def everywhere(self) -> int:
        """All positions, with the one behind the last byte."""
        return (1 << len(self.text) + 1) - 1

    @cached_property
    def within_segments(self) -> int:
        """Positions of bytes that separate nothing."""
        separators = 0
        for separator in _SEPARATORS:
            separators |= self.places(separator)
        return self.everywhere >> 1 & ~separators

    def places(self, byte: int) -> int:
        found = self._places.get(byte)
        if found is None:
            digits = bytearray(b"0") * 256
            digits[byte] = ord("1")
            found = self._places[byte] = int(self.text[::-1].translate(digits), 2) if self.text else 0
        return found


class UriOwners:
    """Finds the resource or the template that a URI leads to. It never changes."""

    def __init__(
        self,
        resources: Mapping[str, Resource],
        templates: Mapping[str, Resource],
        servers: frozenset[str] = frozenset(),
    ) -> None:
        """Index resources by URI, and templates by URI template, in the order of the configuration.

        ``servers`` has the names of all servers: a skill under the name of one leads to no other.
        """
        self._resources, self._servers = resources, servers
        self._templates: dict[bytes, list[tuple[UriTemplate, Resource]]] = defaultdict(list)
        for resource in templates.values():
            template = UriTemplate.parse(resource.uri)
            self._templates[template.prefix].append((template, resource))
        self._lengths = sorted({len(prefix) for prefix in self._templates}, reverse=True)
        self.overlaps = tuple(self._find_overlaps())
        """A finding for each two servers that have templates with the same literal beginning."""

    def __call__(self, uri: str) -> Resource | None:
        """Return the resource or template that a URI leads to; None if no server has it."""
        found = self._find(uri)
        if found is not None and skill_claim(uri, found.server, self._servers) is not None:
            return None
        return found

    def _find(self, uri: str) -> Resource | None:
        listed = self._resources.get(uri)
        text = _bytes(uri)
        if listed is not None or len(text) > URI_BYTES:
            return listed
        positions = _Uri(text)
        for length in self._lengths:
            if length > len(text):
                continue
            for template, resource in self._templates.get(text[:length], ()):
                if template.matches(positions):
                    return resource
        return None

    def _find_overlaps(self) -> Iterator[str]:
        told: set[tuple[str, str]] = set()
        for templates in self._templates.values():
            first = templates[0][1]
            for _, other in templates[1:]:
                pair = (first.server, other.server)
                if other.server != first.server and pair not in told:
                    told.add(pair)
                    yield (
                        f"{other.server}: resource template {other.uri!r} begins like {first.uri!r} of "
                        f"{first.server}: where both match, {first.server} answers"
                    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


Owned = TypeVar("Owned", Tool, Prompt, Resource, TurnedOffTool, Withheld)


def part_for(principal: Principal, whole: Snapshot) -> Snapshot:
    """Return the part of a snapshot that a principal may reach.

    Documents of the user's own are for everybody whose profile and project have them. Names of all servers
    stay known, so that a name that states its server never leads to another.
    """

    def of_server(items: Mapping[str, Owned]) -> dict[str, Owned]:
        return {key: item for key, item in items.items() if principal.reaches(item.server)}

    def owner_of(uri: str) -> Resource | None:
        found = whole.owner_of(uri)
        return found if found is not None and principal.reaches(found.server) else None

    def seen(item: Item) -> bool:
        return principal.may_call(item) if isinstance(item, Tool) else principal.sees(item)

    profile, fitted = principal.profile, dict[ToolKey, Tool]()
    if profile is not None:
        # Only the tools about which its clients alone are asked; the others stay the same objects.
        asked = ((tool, profile.asked_by(tool)) for tool in whole.tools.values() if not tool.asked_by)
        fitted = {tool.key: replace(tool, asked_by=by) for tool, by in asked if by}

    def tools(named: Mapping[str, Tool]) -> dict[str, Tool]:
        return {name: fitted.get(one.key, one) for name, one in named.items() if principal.may_call(one)}

    sources = tuple(replace(one, items=tuple(filter(seen, one.items))) for one in whole.sources)
    hidden = [item for source in whole.sources for item in source.items if not seen(item)]
    return replace(
        whole,
        # Unlike that of any whole.
        generation=-next(_parts_made),
        sources=tuple(source for source in sources if source.items),
        tools=tools(whole.tools),
        wider=tools(whole.wider),
        documents={uri: one for uri, one in whole.documents.items() if seen(one)},
        other_uris={uri: one for uri, one in whole.other_uris.items() if seen(one)},
        resources=of_server(whole.resources),
        templates=of_server(whole.templates),
        owner_of=owner_of,
        prompts=of_server(whole.prompts),
        turned_off=of_server(whole.turned_off),
        withheld=of_server(whole.withheld),
        withheld_prompts=of_server(whole.withheld_prompts),
        first_seen={key: seen for key, seen in whole.first_seen.items() if principal.reaches(key[0])},
        skills={uri: skill for uri, skill in whole.skills.items() if principal.reaches(skill.owner)},
        findings=(),
        unlisted=tuple(filter(principal.reaches, whole.unlisted)),
        part_of=whole,
        hidden=frozenset(map(key_of, hidden)),
    )


_parts_made = itertools.count(1)
