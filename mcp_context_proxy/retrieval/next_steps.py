"""Next steps: the tools that fit after the result of a call.

A next step takes the thing that the result is about: its name has the called tool's noun, the fields of the
result fill its required parameters, or its description names the called tool. Only tools of the same server
compete, because another server's tools want other identifiers; a server of one or two tools has no next step
of its own, so all tools compete there. Blocks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from mcp_context_proxy.items import Tool
from mcp_context_proxy.retrieval.index import Index
from mcp_context_proxy.retrieval.scoring import LEXICAL_FACTOR
from mcp_context_proxy.retrieval.text import chunks, identifier_words, name_key, terms
from mcp_context_proxy.retrieval.vectors import best
from mcp_context_proxy.system.later import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEPS: Final = 2
"""Tools that one result leads to."""

FIRST, SECOND = 0.08, 0.15
"""Share of the likelihood from which the likeliest tool comes, and another one: the rest belongs to the other
tools and to there being no next step."""

RESULT_CHUNKS: Final = 4
"""Pieces of a result that are compared, the first; the text itself is cut before."""

COMPETING: Final = 400
"""Tools of a server that are weighed, those nearest to the called one."""

OWN_TOOLS: Final = 3
"""Tools of a server from which on only they compete."""

MOST_REQUIRED: Final = 5
"""Required parameters that count: a sixth says nothing more."""

OF_RESULT, OF_TEXT, OF_TOOL, OF_NOUNS, OF_SUBJECT = 2.59, 1.81, 1.27, 0.95, 1.44
OF_REQUIRED, OF_UNFILLED, OF_MENTION, OF_READING, OF_OTHER_NOUNS, NO_STEP = (
    0.49,
    -1.05,
    0.45,
    1.46,
    -1.14,
    -3.99,
)
"""Weights of a likelihood in the columns of `Steps.features`, and that of a tool with none of them beside no
next step. They were fitted as a choice among the tools of a server, server by server without its own results
(benchmarks/contexts.md)."""

_LISTING = frozenset(
    terms("list get search find read show query fetch retrieve describe detect validate check resolve api")
)
"""Words of names that say nothing of the thing that a tool is about."""

_READING = frozenset(terms("get read describe show retrieve open fetch"))
_JOINING = frozenset(terms("by id for from to of"))
_IDENTIFIERS = frozenset(
    terms(
        "id key uuid iid slug identifier number ref hash name path url uri username filepath filename title"
    )
)
"""Words of parameters that point at a thing, whatever the thing is."""

_FIELD = re.compile(r"""["']?([A-Za-z][A-Za-z0-9_]*(?:[ -][A-Za-z0-9_]+){0,3})["']?\s*[:=]""")
_BRACES = re.compile(r'[{}\[\]"\\]+')

Embed: TypeAlias = "Callable[[Sequence[str]], NDArray[np.float32] | None]"
"""Returns the vectors of texts; None where there is no model."""


@dataclass(frozen=True, slots=True)
class Step:
    """A tool that fits next."""

    tool: Tool
    likelihood: float
    """Share among the tools that compete and no next step at all."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The parameters that a tool takes, as keys, and those that it requires."""

    keys: frozenset[str]
    required: tuple[str, ...]


@lru_cache(maxsize=2048)
def needs_of(definition: bytes) -> Needs:
    """Return the parameters in a tool's definition; none for a definition that cannot be read."""
    try:
        schema = msgspec.json.decode(definition).get("inputSchema") or {}
        names, required = schema.get("properties") or {}, schema.get("required") or []
        wanted = tuple(name for name in required[:64] if isinstance(name, str) and name in names)
        return Needs(frozenset(map(name_key, names)), wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, AttributeError, TypeError):
        return Needs(frozenset(), ())


@dataclass(frozen=True, slots=True)
class CallResult:
    """A called tool with the words of its result."""

    tool: Tool
    nouns: frozenset[str]
    """Terms of its name that say what it is about."""
    fields: frozenset[str]
    """Keys of the fields in the result."""
    field_terms: frozenset[str]
    named: re.Pattern[str] | None
    """Its name as others' descriptions have it; None for a plain word."""

    @classmethod
    def of(cls, tool: Tool, text: str) -> CallResult:
        """Read the result of a call."""
        fields = [match[1] for match in _FIELD.finditer(text)]
        said = frozenset(term for field in fields for term in terms(identifier_words(field)))
        nouns = frozenset(terms(identifier_words(tool.name))) - _LISTING
        return cls(tool, nouns, frozenset(map(name_key, fields)), said, _mention(tool.name))

    def fills(self, parameter: str) -> bool:
        """Return whether a parameter can be filled from the result, or from the call before it."""
        key, own = name_key(parameter), frozenset(terms(identifier_words(parameter)))
        if key in needs_of(self.tool.definition).keys or key in self.fields:
            return True
        pointing, thing = own & _IDENTIFIERS, own - _IDENTIFIERS
        if not thing:
            return bool(pointing & self.field_terms)
        return thing <= self.field_terms or bool(pointing and thing <= self.nouns | self.field_terms)

    def names(self, other: Tool) -> bool:
        """Return whether the description of one of the two tools names the other one."""
        theirs = _mention(other.name)
        return bool(
            (self.named and self.named.search(other.description))
            or (theirs and theirs.search(self.tool.description))
        )


def next_steps(index: Index, embed: Embed, called: Tool, text: str) -> list[Step]:
    """Return the tools that fit after a result, the likeliest first."""
    tools, features = steps(index, embed, called, text)
    if not tools:
        return []
    weights = [OF_RESULT, OF_TEXT, OF_TOOL, OF_NOUNS, OF_SUBJECT, OF_REQUIRED, OF_UNFILLED]
    weights += [OF_MENTION, OF_READING, OF_OTHER_NOUNS]
    likely = np.exp(features @ np.array(weights) + NO_STEP)
    shares = likely / (likely.sum() + 1)
    order = sorted(range(len(tools)), key=lambda place: (-shares[place], tools[place].name))[:STEPS]
    return [
        Step(tools[place], float(shares[place]))
        for rank, place in enumerate(order)
        if shares[place] >= (SECOND if rank else FIRST)
    ]


def steps(index: Index, embed: Embed, called: Tool, text: str) -> tuple[list[Tool], NDArray[np.float64]]:
    """Return the tools that compete, and [tools, 10]: how each fits after the result.

    The columns: likeness with the called tool's name and the result, likeness with the result alone, likeness
    with the called tool, the share of its name that is the called tool's noun, the share of that noun that it
    has, its required parameters, those of them that nothing fills, whether one of the two tools names the
    other, whether it reads one thing, and whether it is about another thing as well.
    """
    dense = index.dense
    own = next((at for at in index.named([name_key(called.name)]) if index.items[at] == called), None)
    texts = chunks(_BRACES.sub(" ", text))[:RESULT_CHUNKS]
    head = identifier_words(called.name)
    vectors = None
    if dense is not None and own is not None and texts and texts[0]:
        vectors = embed([*(f"{head}: {piece}" for piece in texts), *texts])
    if dense is None or own is None or vectors is None:
        return [], np.zeros((0, 10))
    every = [at for at, one in enumerate(index.items) if isinstance(one, Tool) and one.name != called.name]
    same = [at for at in every if getattr(index.items[at], "server", None) == called.server]
    places = np.array(same if len(same) >= OWN_TOOLS - 1 else every, np.intp)
    if not places.size:
        return [], np.zeros((0, 10))
    vector = dense.vectors_of(own)[0]
    alike = np.array([float(dense.vectors_of(int(at))[0] @ vector) for at in places], np.float32)
    chosen = np.sort(best(alike, COMPETING))
    places, alike = places[chosen], alike[chosen]
    compared = dense.of(places)
    cosines = compared.by_item(compared.cosines(vectors))
    units = [*(f"{head}: {piece}" for piece in texts), *texts]
    words = [index.lexical.score(dict.fromkeys(terms(unit), 1.0)).scores for unit in units]
    fused = cosines + LEXICAL_FACTOR * np.stack([scores[places] for scores in words])
    tools = [one for at in places if isinstance(one := index.items[int(at)], Tool)]
    answer, rarity = CallResult.of(called, text), _rarities([called, *tools])
    rows = [
        [*likeness, *_fit(answer, tool, rarity)]
        for likeness, tool in zip(
            np.stack(
                [fused[: len(texts)].max(axis=0), fused[len(texts) :].max(axis=0), alike], axis=1
            ).tolist(),
            tools,
            strict=True,
        )
    ]
    return tools, np.array(rows, np.float64)


def _fit(answer: CallResult, tool: Tool, rarity: dict[str, float]) -> list[float]:
    own = frozenset(terms(identifier_words(tool.name)))
    required = needs_of(tool.definition).required
    unfilled = sum(not answer.fills(parameter) for parameter in required)
    return [
        _share(answer.nouns, own, rarity),
        _share(own, answer.nouns, rarity),
        float(min(len(required), MOST_REQUIRED)),
        float(min(unfilled, 3)),
        float(answer.names(tool)),
        float(bool(own & _READING)),
        float(bool(own - answer.nouns - _LISTING - _JOINING)),
    ]


def _share(had: frozenset[str], words: frozenset[str], rarity: dict[str, float]) -> float:
    """Return the share of some words that are among those had, by their rarity."""
    total = sum(rarity.get(word, 1.0) for word in words)
    return sum(rarity.get(word, 1.0) for word in words & had) / total if total else 0.0


def _rarities(tools: Sequence[Tool]) -> dict[str, float]:
    """Return the rarity of words in the names of tools: ``jira`` says little where all have it."""
    counts = Counter(term for tool in tools for term in set(terms(identifier_words(tool.name))))
    return {term: float(np.log1p(len(tools) / count)) for term, count in counts.items()}


@lru_cache(maxsize=4096)
def _mention(name: str) -> re.Pattern[str] | None:
    if len(name) <= 12 and not re.search(r"[_-]", name):
        return None
    return re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])", re.IGNORECASE)
