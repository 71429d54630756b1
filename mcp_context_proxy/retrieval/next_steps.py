"""Next steps: the tools that fit after the result of a call.

Much the same follows everywhere: ``next_steps.txt`` says it for some 330 names of tools, and the names of a
server's tools are compared with these. A next step takes the thing that the result is about: its name has the
called tool's noun, or the fields of the result fill its required parameters. It does something else with it:
a list is followed by reading one of its things, and hardly by another list, a new thing of the kind or a
deletion. Only tools of the same server compete, because another server's tools want other identifiers; a
server of one or two tools has no next step of its own, so all tools compete there. Blocks.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from mcp_context_proxy.items import Tool, ToolClass
from mcp_context_proxy.retrieval.index import Index
from mcp_context_proxy.retrieval.item_metadata import ACTIONS, VERBS, action_of
from mcp_context_proxy.retrieval.scoring import LEXICAL_FACTOR
from mcp_context_proxy.retrieval.text import chunks, identifier_words, name_key, terms
from mcp_context_proxy.retrieval.vectors import best
from mcp_context_proxy.system.later import NDArray, np, packaged_text, pattern

STEPS: Final = 3
"""Tools that one result leads to."""

FIRST, FURTHER = 0.04, 0.1
"""Share of the likelihood from which the likeliest tool comes, and another one: the rest belongs to the other
tools and to there being no next step."""

RESULT_CHUNKS: Final = 4
"""Pieces of a result that are compared, the first; the text itself is cut before."""

COMPETING: Final = 400
"""Tools of a server that are weighed, those nearest to the called one."""

OWN_TOOLS: Final = 3
"""Tools of a server from which on only they compete."""

TWIN: Final = 0.75
"""Cosine with the called tool from which one that does the same kind of thing is another way to ask it."""

WEIGHTS: Final[Mapping[str, float]] = {
    "likeness of the result": 0.55,
    "likeness of the next thing to do": 3.85,
    "likeness of the called tool": 3.88,
    "same subject": 1.09,
    "another subject as well": -0.92,
    "takes something of the result": 0.87,
    "tells why something failed": 2.21,
    "deletes": -0.78,
    "creates another one": -1.95,
    "asks the same in another way": -1.45,
    "follows by name": 4.94,
    "follows by name, below the best": 5.02,
    "lists again": -4.05,
    "lacks what it needs": -0.73,
}
"""Weights of a likelihood in the columns of `steps`."""

NO_STEP: Final = -5.04
"""Weight of a tool with none of these beside no next step. All were fitted as a choice among the tools of a
server, and tried on each server without its own results (benchmarks/contexts.md)."""

STEPS_BY_NAME: Final = Path(__file__).with_name("next_steps.txt")

NAMES_KEPT: Final = 4096
"""Names of tools whose vectors are kept, 1.5 kB each."""

OF_ALL_NAMES: Final = 0.7
"""Share of a server's names from which on a word in them says nothing of what a tool does."""

FEWEST_NAMES: Final = 4
"""Names of a server from which on words that most have are left out."""

_LISTING = frozenset(
    terms("list get search find read show query fetch retrieve describe detect validate check resolve api")
)
"""Words of names that say nothing of the thing that a tool is about."""

_JOINING = frozenset(terms("by id for from to of"))
_NO_THING = frozenset((*terms(" ".join(VERBS)), *terms("all my current available set"))) | _LISTING | _JOINING
"""Words of names that are not part of the name of a thing."""

_IDENTIFIERS = frozenset(
    terms(
        "id key uuid iid slug identifier number ref hash name path url uri username filepath filename title"
    )
)
"""Words of parameters that point at a thing, whatever the thing is."""

_OF_ONE = frozenset({"contents", "details", "settings", "status", "info", "statistics", "stats"})
"""Words that end in s and are no number of things."""

_NAME = frozenset(terms("name"))
_TELLING_WHY = frozenset(terms("log logs output trace report console message events describe diagnose debug"))
_FAILED = pattern(r"fail|error|crash|exception|\b50\d\b", re.IGNORECASE)
_NOTHING_FAILED = pattern(
    r"""\b\w{0,40}(?:fail|error|exception)\w{0,40}+["']?\s*+[:=]\s*(?:null|none|false|0\b|\[\s*\]|""|'')"""
    r"""|\b(?:no|0|without(?: any)?) (?:fail|error|exception)\w*""",
    re.IGNORECASE,
)
_FIELD = pattern(r"""["']?([A-Za-z][A-Za-z0-9_]{0,63}+(?:[ -][A-Za-z0-9_]{1,64}+){0,3})["']?\s*+[:=]""")
"""A name before its value. Without a bound, a result of letters alone would take the square of its length."""
_BRACES = pattern(r'[{}\[\]"\\]+')

Embed: TypeAlias = "Callable[[Sequence[str]], NDArray[np.float32] | None]"
"""Returns the vectors of texts; None where there is no model."""


class Step(Struct, frozen=True):
    """A tool that fits next."""

    tool: Tool
    likelihood: float
    """Share among the tools that compete and no next step at all."""


class Needs(Struct, frozen=True):
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


def kind_of(name: str) -> str:
    """Return the action of a tool by its name, as in `ACTIONS`, or ``list`` where it gives several things."""
    words, action = identifier_words(name).lower().split(), ACTIONS[action_of(name)]
    if action == "search" or "list" in words or "all" in words:
        return "list"
    things = [word for word in words if word not in VERBS and word not in {"by", "id"}]
    last = things[-1] if things else ""
    several = last.endswith("s") and not last.endswith(("ss", "us")) and last not in _OF_ONE
    return "list" if action == "read" and several else action


def things_of(name: str) -> frozenset[str]:
    """Return the terms of a tool's name that are part of the name of a thing."""
    return frozenset(terms(identifier_words(name))) - _NO_THING


class CallResult(Struct, frozen=True):
    """A called tool with the words of its result."""

    tool: Tool
    kind: str
    nouns: frozenset[str]
    """Terms of its name that tell its subject."""
    things: frozenset[str]
    parameters: frozenset[str]
    """Keys of its own parameters, which its caller could fill before."""
    field_terms: frozenset[str]
    """Terms of the names of the fields in the result."""
    failed: bool
    """Whether something failed, by the words of the result."""

    @classmethod
    def of(cls, tool: Tool, text: str) -> CallResult:
        fields = (identifier_words(match[1]) for match in _FIELD.finditer(text))
        return cls(
            tool=tool,
            kind=kind_of(tool.name),
            nouns=frozenset(terms(identifier_words(tool.name))) - _LISTING,
            things=things_of(tool.name),
            parameters=needs_of(tool.definition).keys,
            field_terms=frozenset(term for field in fields for term in terms(field)),
            failed=_FAILED.search(_NOTHING_FAILED.sub("", text)) is not None,
        )

    def next_thing(self) -> str:
        """Return words for the next step: after a list, to read one of its things."""
        words = identifier_words(self.tool.name).split()
        thing = " ".join(word for word in words if not set(terms(word)) <= _NO_THING) or " ".join(words)
        return f"get one {thing.removesuffix('s')} by its id" if self.kind == "list" else thing

    def gives(self, parameter: str, things: frozenset[str]) -> bool:
        """Return whether the result fills a parameter of a tool for some things, which the call could not."""
        if name_key(parameter) in self.parameters:
            return False
        own = frozenset(terms(identifier_words(parameter)))
        pointing, thing = own & _IDENTIFIERS, own - _IDENTIFIERS
        if thing:
            return thing <= self.field_terms or bool(pointing and thing <= self.nouns | self.field_terms)
        of_these = bool(things) and things <= self.things | self.field_terms
        return of_these and bool(pointing & (self.field_terms | _NAME))

    def lacks(self, parameter: str, things: frozenset[str]) -> bool:
        """Return whether a parameter points at a thing that neither the call nor its result names."""
        own = frozenset(terms(identifier_words(parameter)))
        has = name_key(parameter) in self.parameters or own <= self.field_terms
        return bool(own & _IDENTIFIERS) and not has and not self.gives(parameter, things)


class KnownSteps:
    """The steps of ``next_steps.txt``, compared by the vectors of their names. Threads may share it."""

    def __init__(self, embed: Embed) -> None:
        """Compare by vectors that may be stored, because names are part of the catalog."""
        self._embed = embed
        self._rows: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
        self._names: dict[str, NDArray[np.float32]] = {}

    def cosines(
        self, called: str, names: Sequence[str]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """Return how a called name is like the first of each known step, and some names like the second.

        The shapes are [steps] and [names, steps]. None without a model.
        """
        rows, vectors = self._known(), self._vectors([called, *names])
        if rows is None or vectors is None:
            return None
        before, after = rows
        return before @ vectors[0], vectors[1:] @ after.T

    def _known(self) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        if self._rows is None:
            before, after = zip(*steps_by_name(), strict=True)
            texts = sorted({*before, *after})
            vectors = self._embed(texts)
            if vectors is None:
                return None
            at = {text: place for place, text in enumerate(texts)}
            self._rows = vectors[[at[one] for one in before]], vectors[[at[one] for one in after]]
        return self._rows

    def _vectors(self, names: Sequence[str]) -> NDArray[np.float32] | None:
        known = self._names
        new = [name for name in dict.fromkeys(names) if name not in known]
        if new:
            vectors = self._embed(new)
            if vectors is None or len(vectors) != len(new):
                return None
            # A new mapping, because another thread may read the one before.
            kept = (
                known
                if len(known) + len(new) <= NAMES_KEPT
                else {name: known[name] for name in names if name in known}
            )
            self._names = known = {**kept, **dict(zip(new, vectors, strict=True))}
        return np.stack([known[name] for name in names])


@cache
def steps_by_name() -> tuple[tuple[str, str], ...]:
    """Return the pairs of names that follow each other."""
    lines = packaged_text(STEPS_BY_NAME).splitlines()
    steps = (line.split(" > ") for line in lines if not line.startswith("#"))
    return tuple((before, one) for before, after in steps for one in after.split(", ") if one != "none")


def own_words(tools: Sequence[Tool]) -> list[str]:
    """Return the names of tools in words, without those that most names of their server have."""
    words = [identifier_words(tool.name).lower().split() for tool in tools]
    servers = Counter(tool.server for tool in tools)
    counts = Counter((tool.server, word) for tool, own in zip(tools, words, strict=True) for word in set(own))
    found = []
    for tool, own in zip(tools, words, strict=True):
        most = OF_ALL_NAMES * servers[tool.server] if servers[tool.server] >= FEWEST_NAMES else math.inf
        found.append(" ".join(word for word in own if counts[tool.server, word] < most) or " ".join(own))
    return [name or tool.name for name, tool in zip(found, tools, strict=True)]


def next_steps(index: Index, embed: Embed, known: KnownSteps, called: Tool, text: str) -> list[Step]:
    """Return the tools that fit after a result, the likeliest first."""
    tools, features = steps(index, embed, known, called, text)
    if not tools:
        return []
    likely = np.exp(features @ np.array(list(WEIGHTS.values())) + NO_STEP)
    shares = likely / (likely.sum() + 1)
    order = sorted(range(len(tools)), key=lambda place: (-shares[place], tools[place].name))[:STEPS]
    return [
        Step(tools[place], float(shares[place]))
        for rank, place in enumerate(order)
        if shares[place] >= (FURTHER if rank else FIRST)
    ]


def steps(
    index: Index, embed: Embed, known: KnownSteps, called: Tool, text: str
) -> tuple[list[Tool], NDArray[np.float64]]:
    """Return the tools that compete, and [tools, columns]: how each fits, in the columns of `WEIGHTS`."""
    dense = index.dense
    own = next((at for at in index.named([name_key(called.name)]) if index.items[at] == called), None)
    texts = chunks(_BRACES.sub(" ", text))[:RESULT_CHUNKS]
    answer = CallResult.of(called, text)
    heads = identifier_words(called.name), answer.next_thing()
    units = [f"{head}: {piece}" for head in heads for piece in texts]
    vectors = None
    if dense is not None and own is not None and texts and texts[0]:
        vectors = embed(units)
    if dense is None or own is None or vectors is None:
        return [], np.zeros((0, len(WEIGHTS)))
    every = [at for at, one in enumerate(index.items) if isinstance(one, Tool) and one.name != called.name]
    same = [at for at in every if getattr(index.items[at], "server", None) == called.server]
    places = np.array(same if len(same) >= OWN_TOOLS - 1 else every, np.intp)
    if not places.size:
        return [], np.zeros((0, len(WEIGHTS)))
    vector = dense.vectors_of(own)[0]
    alike = np.array([float(dense.vectors_of(int(at))[0] @ vector) for at in places], np.float32)
    chosen = np.sort(best(alike, COMPETING))
    places, alike = places[chosen], alike[chosen]
    compared = dense.of(places)
    cosines = compared.by_item(compared.cosines(vectors))
    words = [index.lexical.score(dict.fromkeys(terms(unit), 1.0)).scores for unit in units]
    fused = cosines + LEXICAL_FACTOR * np.stack([scores[places] for scores in words])
    tools = [one for at in places if isinstance(one := index.items[int(at)], Tool)]
    rarity = _rarities([called, *tools])
    likeness = np.stack(
        [fused[: len(texts)].max(axis=0), fused[len(texts) :].max(axis=0), alike], axis=1
    ).tolist()
    follows = _follows(known, called, tools)
    rows = [
        [*near, *_fit(answer, tool, near[2], rarity), *by_name, *_against(answer, tool)]
        for near, tool, by_name in zip(likeness, tools, follows, strict=True)
    ]
    return tools, np.array(rows, np.float64)


def _follows(known: KnownSteps, called: Tool, tools: Sequence[Tool]) -> list[list[float]]:
    """Return how well each tool follows the called one by its name, and how far it is below the best."""
    own, *names = own_words([called, *tools])
    cosines = known.cosines(own, names)
    if cosines is None:
        return [[0.0, 0.0]] * len(tools)
    before, after = cosines
    likeness = (before * after).max(axis=1)
    below: list[list[float]] = np.stack([likeness, likeness - likeness.max()], axis=1).tolist()
    return below


def _against(answer: CallResult, tool: Tool) -> list[float]:
    things = things_of(tool.name)
    again = kind_of(tool.name) == "list" and answer.kind != "list" and things and things <= answer.things
    lacks = any(answer.lacks(parameter, things) for parameter in needs_of(tool.definition).required)
    return [float(bool(again)), float(lacks)]


def _fit(answer: CallResult, tool: Tool, alike: float, rarity: dict[str, float]) -> list[float]:
    own, kind = frozenset(terms(identifier_words(tool.name))), kind_of(tool.name)
    things = things_of(tool.name)
    takes = any(answer.gives(parameter, things) for parameter in needs_of(tool.definition).required)
    return [
        _share(own, answer.nouns, rarity),
        float(bool(own - answer.nouns - _LISTING - _JOINING)),
        float(takes),
        float(answer.failed and bool(own & _TELLING_WHY)),
        float(kind == "delete" or tool.tool_class is ToolClass.DESTRUCTIVE),
        float(kind == "create" and things == answer.things),
        float(kind == answer.kind and alike > TWIN),
    ]


def _share(had: frozenset[str], words: frozenset[str], rarity: dict[str, float]) -> float:
    """Return the share of some words that are among those had, by their rarity."""
    total = sum(rarity.get(word, 1.0) for word in words)
    return sum(rarity.get(word, 1.0) for word in words & had) / total if total else 0.0


def _rarities(tools: Sequence[Tool]) -> dict[str, float]:
    """Return the rarity of words in the names of tools: ``jira`` says little where all have it."""
    counts = Counter(term for tool in tools for term in set(terms(identifier_words(tool.name))))
    return {term: float(np.log1p(len(tools) / count)) for term, count in counts.items()}
