"""What an item can be filtered by beside its server: category and tags, and what its annotations hint at.

What is configured counts; what follows from the item's own name, server and annotations is added, by rules
that give the same for the same item always. A server may say what it likes: hints are hints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mcp_context_proxy.items import Item, Tool
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.retrieval.terms import STOP_WORDS, identifier_words

_VERBS: Final = {
    "read": "get list read fetch show describe view retrieve inspect check count",
    "search": "search find query lookup browse",
    "create": "create add insert new make generate",
    "update": "update edit set write modify change rename move patch replace append put save",
    "delete": "delete remove drop clear purge destroy wipe",
    "send": "send post publish notify reply forward share",
    "run": "run execute start stop call invoke trigger",
    "compute": "compute calculate evaluate convert transform format translate parse encode decode",
    "transfer": "upload download import export sync",
}
VERBS: Final[Mapping[str, str]] = {verb: tag for tag, verbs in _VERBS.items() for verb in verbs.split()}
"""What a tool does, by a verb of its name. The first verb of a name decides."""

_LANGUAGES: Final = (
    "bash csharp css golang html java javascript julia kotlin lua perl php python ruby rust scala sql swift "
    "typescript"
)
LANGUAGES: Final = frozenset(_LANGUAGES.split())
"""Programming languages that a name can hold; not those that are English words or letters."""

_EXPLICIT_HINTS: Final = {
    "readOnlyHint": "read-only",
    "destructiveHint": "destructive",
    "idempotentHint": "idempotent",
    "openWorldHint": "open-world",
}
"""Tags of annotations that a server gives itself; defaults make no tag."""

_NOT_TELLING: Final = STOP_WORDS | {"mcp", "server"}


@dataclass(frozen=True, slots=True)
class ItemMetadata:
    """Of one item."""

    category: str
    category_configured: bool
    """Otherwise it is derived."""
    tags: tuple[str, ...]
    """Configured."""
    derived_tags: tuple[str, ...]
    """Those that are not configured too."""
    read_only: bool
    destructive: bool
    """Whether a call may undo or overwrite something; False where it is read-only."""
    open_world: bool
    """Whether it has to do with what is beyond its server, such as the web."""

    @property
    def all_tags(self) -> frozenset[str]:
        """Configured or derived."""
        return frozenset((*self.tags, *self.derived_tags))

    def labels(self) -> Iterator[str]:
        """All of it, each as one text."""
        yield category_label(self.category)
        yield from map(tag_label, (*self.tags, *self.derived_tags))
        yield from (READ_ONLY,) if self.read_only else ()
        yield from (DESTRUCTIVE,) if self.destructive else ()
        yield from (OPEN_WORLD,) if self.open_world else ()


READ_ONLY, DESTRUCTIVE, OPEN_WORLD = "hint:read-only", "hint:destructive", "hint:open-world"


def described(item: Item) -> dict[str, Any]:
    """Category and tags of an item, each with where it comes from, for whoever shows them."""
    traits = metadata_of(item)
    return {
        "category": {
            "name": traits.category,
            "origin": "configured" if traits.category_configured else "derived",
        },
        "tags": [
            *({"name": tag, "origin": "configured"} for tag in traits.tags),
            *({"name": tag, "origin": "derived"} for tag in traits.derived_tags),
        ],
    }


def category_label(category: str) -> str:
    """What `Traits.labels` has for a category."""
    return f"category:{category}"


def tag_label(tag: str) -> str:
    """What `Traits.labels` has for a tag."""
    return f"tag:{tag}"


def folded(word: str) -> str:
    """A category or tag as it is compared."""
    return word.strip().casefold()


def metadata_of(item: Item) -> ItemMetadata:
    """What an item can be filtered by."""
    if not isinstance(item, Tool):
        # It is read and never called, and nothing of the world comes in through it.
        return ItemMetadata(item.kind.value, False, _each(item.tags), (), True, False, False)
    hints = _hints(item.definition)
    read_only = hints.get("readOnlyHint") is True
    tags = _each(item.tags)
    derived = (tag for tag in dict.fromkeys(_derived(item, hints)) if tag not in tags)
    return ItemMetadata(
        category=folded(item.category or item.server),
        category_configured=item.category is not None,
        tags=tags,
        derived_tags=tuple(derived),
        read_only=read_only,
        destructive=not read_only and hints.get("destructiveHint") is not False,
        open_world=hints.get("openWorldHint") is not False,
    )


def _each(tags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(folded, tags)))


def _hints(definition: bytes) -> Mapping[str, Any]:
    """The annotations that a server gave; none where they are not what they should be."""
    if b'"annotations"' not in definition:
        return {}
    try:
        hints = envelope.value(envelope.members(definition).get("annotations", b"{}"))
    except (msgspec.DecodeError, RecursionError):
        return {}
    return hints if isinstance(hints, dict) else {}


def _derived(tool: Tool, hints: Mapping[str, Any]) -> Iterator[str]:
    yield folded(tool.server)
    of_server = identifier_words(tool.server).split()
    yield from (word for word in of_server if not word.isdigit() and word not in _NOT_TELLING)
    of_name = identifier_words(tool.name).split()
    yield from [VERBS[word] for word in of_name if word in VERBS][:1]
    yield from (word for word in of_name if word in LANGUAGES)
    for hint, tag in _EXPLICIT_HINTS.items():
        if hints.get(hint) is True and not (tag == "destructive" and hints.get("readOnlyHint") is True):
            yield tag
