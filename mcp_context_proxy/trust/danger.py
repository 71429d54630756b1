"""Danger classes of tools: the harm that a call may do.

Three witnesses are heard, and the strictest counts: the configuration, the tool's own hints, and the verb in
its name. Nothing loosens what another one says, so a server that calls ``delete_everything`` read-only gains
nothing by it. A tool without hints may write.

The class is decided once, where the catalog is made, and is a field of the tool from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from mcp_context_proxy.items import ToolClass
from mcp_context_proxy.protocol.strangers import in_plain_letters
from mcp_context_proxy.system.later import pattern

ORDER: Final = (ToolClass.READ, ToolClass.WRITE, ToolClass.DESTRUCTIVE)
"""The classes, from the least harm to the most."""

_WORDS: Final[Mapping[ToolClass, str]] = {
    ToolClass.READ: """
        analyze browse calculate check compare convert count describe diff discover estimate evaluate explain
        extract fetch filter find forecast geocode get inspect is list load lookup navigate parse peek ping
        plan preview query read recall recommend render report resolve retrieve review scan scrape screenshot
        search select show snapshot status suggest summarize tail test tree validate verify view watch whoami
    """,
    ToolClass.WRITE: """
        add append apply approve archive assign attach cancel close commit copy create deploy disable edit
        enable fill fork grant import insert install invite lock mark merge mkdir modify move patch pay post
        publish push put rename reopen reply restart resume save schedule send set share start stop submit
        subscribe tag transfer transition type unarchive unassign unlock unsubscribe update upload upsert
        write
    """,
    ToolClass.DESTRUCTIVE: """
        clean cleanup clear del delete destroy discard drop erase evict kill overwrite prune purge remove
        reset revoke rm rmdir terminate truncate uninstall unlink wipe
    """,
}

VERBS: Final[Mapping[str, ToolClass]] = {
    verb: tool_class for tool_class, verbs in _WORDS.items() for verb in verbs.split()
}
"""Verbs in names of tools, each with its class. Those that read are there because they end the search for
another: ``get_delete_status`` deletes nothing. Verbs that say nothing, such as ``run``, are left out."""

NAME_CHARACTERS: Final = 256
"""Longest name that is read; no honest one is longer."""

_WORD: Final = pattern(r"[A-Z]++(?![a-z])|[A-Z]?[a-z]++|[^A-Za-z0-9_ -]++")
"""A word, or what stands between two names, such as a dot."""

_JOINS: Final = frozenset({"and", "or", "then"})
"""Words after which another verb counts as well, as in ``find_and_delete``."""


class Danger(Struct, frozen=True):
    """The class of a tool, and why it is that."""

    tool_class: ToolClass
    reason: str
    """End of a sentence that begins with the class, such as ``its name says 'delete'``."""


def danger_of(name: str, hinted: ToolClass | None, configured: ToolClass | None, place: str) -> Danger:
    """Return the strictest class that the witnesses give.

    Args:
        name: The server's own name for the tool.
        hinted: Class that its hints state; None if they state none.
        configured: Class in the configuration; None if it has none.
        place: Key, file and line of that setting.
    """
    if hinted is None:
        strictest = Danger(ToolClass.WRITE, "it does not say that it is read-only")
    else:
        hint = "readOnlyHint" if hinted is ToolClass.READ else "destructiveHint"
        strictest = Danger(hinted, f"it says so itself ({hint})")
    if len(name) > NAME_CHARACTERS:
        return Danger(ToolClass.DESTRUCTIVE, "its name is too long to be read")
    verb = verb_of(name)
    if verb is not None and is_stricter(VERBS[verb], strictest.tool_class):
        strictest = Danger(VERBS[verb], f"its name says {verb!r}")
    if configured is not None and is_stricter(configured, strictest.tool_class):
        strictest = Danger(configured, f"by {place}")
    return strictest


def is_stricter(one: ToolClass, other: ToolClass) -> bool:
    """Return whether a class stands for more harm than another."""
    return ORDER.index(one) > ORDER.index(other)


def verb_of(name: str) -> str | None:
    """Return the verb that a name begins with, or a stricter one that is joined to it; None without one.

    Words before the first verb are those of a product: ``jira_delete_issue``. An "and" or a sign such as a
    dot joins another: ``find_and_delete``, ``list.delete``. Letters count as they are drawn.
    """
    words = [_base(word.lower()) for word in _WORD.findall(in_plain_letters(name[:NAME_CHARACTERS]))]
    first = next((at for at, word in enumerate(words) if word in VERBS), None)
    if first is None:
        return None
    joined = (
        words[at]
        for at in range(first + 2, len(words))
        if words[at - 1] in _JOINS or not words[at - 1].isalpha()
    )
    verbs = [words[first], *(word for word in joined if word in VERBS)]
    strictness: dict[str, int] = {verb: ORDER.index(VERBS[verb]) for verb in verbs}
    return max(strictness, key=strictness.__getitem__)


def _base(word: str) -> str:
    """Return the verb that a word says of a tool, as in ``deletes_file``; other words as they are.

    Only of what destroys: ``lists`` and ``posts`` are things.
    """
    base = word.removesuffix("s")
    return base if VERBS.get(base) is ToolClass.DESTRUCTIVE else word


class Hints(Struct, frozen=True, gc=False):
    """Statements of a definition about its effects, which hosts decide by."""

    tool_class: ToolClass = ToolClass.WRITE
    interactive: bool = False
    """True if the user must be asked before each call."""

    def loosens(self, other: Hints) -> bool:
        """Return whether these promise less harm than the others, or ask less."""
        return is_stricter(other.tool_class, self.tool_class) or (other.interactive and not self.interactive)

    def __str__(self) -> str:
        return f"{self.tool_class} asks" if self.interactive else str(self.tool_class)

    @classmethod
    def read(cls, text: str) -> Hints:
        """Return the hints that a text from `str` stands for; raises `ValueError` if it stands for none."""
        name, _, asks = text.partition(" ")
        return cls(ToolClass(name), bool(asks))


NO_HINTS: Final = Hints()
