"""Fingerprints of definitions, the signs by which one is withheld, and the table of decisions about them.

A definition is canonical JSON, split into two parts. *Seen* is what every model reads or a host decides by;
*rest* is everything else, also what some hosts show to models, such as the output schema: a change of it is
one of what is seen (`visible_part`). Two definitions are the same if both parts are, in whatever order a
server writes members, or a set, which Python orders anew in each process, and whichever dates and times are
in them: some servers tell when they were started, and a date asks a model for nothing.

The signs (`suspicion`) are few and hard: none of them occurs in the definitions of some thousand real tools.
They are a reason to look, not a filter that a careful writer could not pass; the wall is the comparison with
what was approved. Everything here takes time in proportion to the text.

What was approved once stays approved, so a server may go back to it. Everything else is an event, and
`DECISIONS` says what each mode makes of it: the definition is taken, or it is held until a person approves
it. A change under a version in which the server was seen before is never taken: honest programs change with
their version. After a person has rejected a definition of a name, no other one of that name is taken until a
person approves it, also if the server goes back to an approved definition in between.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from mcp_context_proxy.config.settings import ApprovalMode
from mcp_context_proxy.errors import UNREAD
from mcp_context_proxy.items import Encoded
from mcp_context_proxy.protocol.strangers import clean, in_plain_letters
from mcp_context_proxy.store.tables import ApprovalRow
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.trust import NO_HINTS, Hints, verb_of


class Approvable(StrEnum):
    """Kinds of definitions that are approved; also their names in messages."""

    TOOL = "tool"
    PROMPT = "prompt"
    TEMPLATE = "resource template"


SEEN: Final = {
    Approvable.TOOL: frozenset({"name", "title", "description", "inputSchema", "annotations"}),
    Approvable.PROMPT: frozenset({"name", "title", "description", "arguments"}),
    Approvable.TEMPLATE: frozenset({"uriTemplate", "name", "title", "description", "annotations"}),
}
"""Members of a definition that every model reads or a host decides by. They stay as they are, because
stored decisions have the fingerprints of both parts."""

UNSEEN: Final = frozenset({"_meta", "icons"})
"""Members of a definition that no model reads. Any other may be shown to one by some host."""

_DATE = pattern(rb"20\d\d-[01]\d-[0-3]\d(?:[T ][0-2]\d:[0-5]\d(?::\d\d\.?\d{,9})?(?:Z|[+-]\d\d:?\d\d)?)?\b")
_SET = pattern(rb'"default":"([\w.*-]+(?:,[\w.*-]+)+)"')
"""A default that may be made of a set. Single words between commas are no sentence."""

_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode


class Fingerprint(msgspec.Struct, frozen=True, gc=False):
    """SHA-256 of both parts of a definition."""

    seen: bytes
    rest: bytes

    @property
    def key(self) -> bytes:
        return sha256(self.seen + self.rest).digest()

    def of(self, server: str) -> str:
        """Return a digest (hexadecimal) of the definition as that of a server."""
        return sha256(server.encode() + b"\0" + self.seen + self.rest).hexdigest()


def canonical(definition: bytes) -> bytes:
    """Return JSON without spaces and with sorted members; the bytes themselves where one would be lost."""
    return _parts(definition, None)[0]


def visible_part(definition: bytes) -> bytes:
    """Return the members that a model may see, in canonical form; all of a definition that cannot be read."""
    try:
        value = _decode(definition)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return definition
    is_object = isinstance(value, dict)
    return _encode_sorted({key: value[key] for key in value.keys() - UNSEEN}) if is_object else definition


def fingerprint(definition: bytes, kind: Approvable = Approvable.TOOL) -> Fingerprint:
    return fingerprint_if_plain(definition, kind)[0]


def fingerprint_if_plain(definition: bytes, kind: Approvable) -> tuple[Fingerprint, bool]:
    """Return the fingerprint of an encoded definition, and whether every reader finds the same in it.

    It is not plain if a member may be named twice, or a number may be too large to be read.
    """
    seen, rest = _parts(definition, SEEN[kind])
    parts = (_DATE.sub(b"", part) for part in (seen, rest))
    ordered = (_SET.sub(lambda found: b",".join(sorted(found[1].split(b","))), part) for part in parts)
    return Fingerprint(*[sha256(part).digest() for part in ordered]), seen is not definition


def is_plain(definition: bytes) -> bool:
    """Return whether every reader finds the same in a definition; see `fingerprint_if_plain`."""
    return _parts(definition, None)[0] is not definition


def _parts(definition: bytes, seen: frozenset[str] | None) -> tuple[bytes, bytes]:
    """Return both parts in canonical form; all is seen without a split, and of a value that is no object."""
    try:
        value = _decode(definition)
        if seen is None or not isinstance(value, dict) or seen.issuperset(value):
            parts = _encode_sorted(value), b""
        else:
            rest = {key: value.pop(key) for key in value.keys() - seen}
            parts = _encode_sorted(value), _encode_sorted(rest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return definition, b""
    # Each member has a colon, as texts have others unless they escape them: with fewer, one was named twice.
    whole = sum(part.count(b":") for part in parts) == definition.count(b":")
    return parts if whole and not _escapes_colons(definition) else (definition, b"")


def _escapes_colons(definition: bytes) -> bool:
    # Most definitions escape nothing, and one character is looked for much faster than several.
    return b"\\" in definition and (b"\\u003a" in definition or b"\\u003A" in definition)


class Candidate(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A definition that a server lists, to be judged."""

    kind: Approvable
    name: str
    """The server's own name of it; the URI template of a template."""
    definition: Encoded
    """The JSON as received, or as it is shown if that was far too long."""
    fingerprint: Fingerprint
    hints: Hints = NO_HINTS
    hidden: bool = False
    """True if characters that a person does not see were removed from it."""

    @property
    def exact(self) -> Fingerprint:
        """Its fingerprint with dates and the order of sets, as earlier versions have stored it."""
        return Fingerprint(*[sha256(one).digest() for one in _parts(bytes(self.definition), SEEN[self.kind])])

    @classmethod
    def of(
        cls,
        kind: Approvable,
        name: str,
        definition: Encoded,
        shown: Encoded,
        hints: Hints = NO_HINTS,
        known: Fingerprint | None = None,
    ) -> Candidate:
        """Return a definition to be judged, as it came and as it is shown; `known` is its fingerprint."""
        # Nothing was removed from most definitions: they are shown as they came.
        hidden = shown is not definition and hides(json.loads(bytes(definition)))
        kept = definition if len(definition) <= KEPT_BYTES else shown
        return cls(kind, name, kept, known or fingerprint(bytes(definition), kind), hints, hidden)


def list_digest(source: str, candidates: Mapping[str, Candidate]) -> bytes:
    """Return a digest of all definitions of a list, in whatever order, and of where it comes from."""
    # Names are part of what is seen.
    found = [one.fingerprint for one in candidates.values()]
    parts = sorted([one.seen + one.rest for one in found])
    return sha256(source.encode("utf-8", "replace") + b"".join(parts)).digest()


KEPT_BYTES: Final = 64 * 1024
"""Size of a definition up to which it is kept as it came, for a person to compare."""

HIDDEN: Final = "it hides characters"


def hides(value: Any) -> bool:
    """Return whether a text of a definition, but for patterns, has characters that a person does not see."""
    # Texts of Windows end their lines with a return.
    texts = (text.replace("\r", "") for text in _texts_in(value, patterns=False))
    return any(clean(text) != text for text in texts)


def _texts_in(value: Any, *, patterns: bool = True) -> list[str]:
    """Return all texts in a value, names of members too, in the order in which they stand."""
    texts, left = list[str](), [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list):
            left += reversed(value)
        elif isinstance(value, dict):
            for key, item in reversed(value.items()):
                left += [item, key] if patterns or key != "pattern" else [key]
    return texts


GAP: Final = 3
"""Words that may stand between two words of a sign."""

_PHRASES: Final[tuple[tuple[str, tuple[frozenset[str], ...]], ...]] = (
    (
        "it tells a model to disregard its instructions",
        (
            frozenset({"ignore", "disregard", "forget", "override", "bypass"}),
            frozenset({"previous", "prior", "earlier", "above", "preceding", "former", "your", "system"}),
            frozenset({"instruction", "instructions", "prompt", "prompts", "guidelines", "directives"}),
        ),
    ),
    (
        "it tells a model to keep something from the user",
        (
            frozenset({"not", "never", "don't", "dont", "without"}),
            frozenset(
                {
                    *("tell", "mention", "inform", "notify", "reveal", "disclose", "alert"),
                    *("telling", "mentioning", "informing", "notifying", "revealing", "disclosing"),
                }
            ),
            frozenset({"user", "users", "human", "humans", "person", "customer"}),
        ),
    ),
    (
        "it gives a model another role",
        (
            frozenset({"now", "pretend", "hereby"}),
            frozenset({"you", "be"}),
            frozenset({"assistant", "ai", "admin", "administrator", "root", "developer", "unrestricted"}),
        ),
    ),
    (
        "it gives a model another role",
        (frozenset({"you"}), frozenset({"are"}), frozenset({"now"}), frozenset({"a", "an", "in", "the"})),
    ),
)
"""Signs: words that follow each other, at most `GAP` others between two of them."""

_TAG: Final = pattern(
    r"<[ /|]{0,3}(?:important|system|secret|hidden|instructions?|admin|assistant|developer)"
    r"(?:[-_ ](?:reminder|message|prompt|instruction|override|command)s?)?"
    r"(?: [^<>\n=]{1,100}=[^<>\n]{1,100})?[ /|]{0,3}>"
    r"|<\|[ /]?[a-z_\u2581]{2,40}[ /]?\|>|<<[ /]?sys[ /]?>>|<[ /]?(?:start|end)_of_turn>"  # chat templates
    r"|\[[ /]{0,2}(?:system|inst)[ /]{0,2}\]",
    re.IGNORECASE,
)
_OF_TAG: Final = (
    frozenset("<["),
    frozenset(
        {
            *("important", "sys", "secret", "hidden", "inst", "admin", "assistant", "developer"),
            *("|>", "_of_turn"),
        }
    ),
)
"""One of each is in all that the expression finds."""

_WORD: Final = pattern(r"[^\W_]+(?:['\u2019][^\W_]+)?")
_NAME: Final = pattern(r"[A-Za-z0-9_-]{8,128}")
_COMPOUND: Final = pattern(r"[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)+|[a-z]+(?:[A-Z][a-z0-9]+)+")
"""A word that is made of several, as names of tools are and words of a sentence are not."""

_SPOKEN: Final = pattern(r"[\w'-]+")
_ORDERS: Final = frozenset(
    {
        *("after", "always", "avoid", "before", "call", "calling", "deprecated", "do", "don't", "first"),
        *("instead", "must", "never", "not", "prefer", "run", "should", "tool", "use", "using", "when"),
    }
)
"""Words near the name of a tool by which a text says what is to be done about it."""

_MENTION: Final = pattern(
    r"(?m)(?<![\w.$-])(?<!\ba )(?<!\bits )(?<!\beach )(?!(?<=\n)\w+$)[A-Za-z0-9_]{8,128}(?![\w-]|\.\w)"
)
"""A name that is no member in code, as ``page.getByRole``, no thing that another has, and no whole text."""

_PART: Final = pattern(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z0-9]+")
_ENDINGS: Final = ("ies", "es", "s", "y", "e")
"""Endings by which a plural differs from its singular, the longest first."""


def is_distinctive(name: str) -> bool:
    """Return whether nobody writes the name of a tool in a sentence without meaning the tool.

    It says what is done, unlike other compounds, such as ``html_url``. It is no constant (``SLA_START``, but
    not ``GMAIL_SEND_EMAIL``), no title that a library gives to arguments, and no words that people join, such
    as ``read-only`` or ``TypeScript-based``: with such names a server would have tools of others withheld.
    """
    if _NAME.fullmatch(name) is None or _COMPOUND.fullmatch(name) is None or verb_of(name) is None:
        return False
    first, *others = words = re.split("[_-]", name)
    is_kebab = all(one in (one.lower(), one.upper()) for one in words)
    is_joined = "-" in name and not (is_kebab and (len(others) > 1 or verb_of(first) is not None))
    is_constant = name.isupper() and (len(others) == 1 or verb_of(others[-1]) is not None)
    return not (is_joined or is_constant or name.endswith(("Arguments", "-only")))


def foreign(owners: Mapping[str, str], own: Iterable[str]) -> dict[str, str]:
    """Return those of the distinctive names of others, with their servers, that a server cannot mean itself.

    By `update_issue`, `jira_update` or `updateIssues` it means its own `jira_update_issue`. So a name is left
    out if its words are the first or the last ones of an `own` name.
    """
    words = {name: _name_words(name) for name in owners}
    wanted = set(words.values())
    lengths = {len(one) for one in wanted}
    meant = set[tuple[str, ...]]()
    for name in own:
        parts = _name_words(name)
        for length in lengths:
            meant |= {parts[:length], parts[-length:]} & wanted
    return {name: server for name, server in owners.items() if words[name] not in meant}


def own_words(definitions: Iterable[Encoded], taken: Iterable[bytes]) -> set[str]:
    """Return the names by which a server means something of its own, as others may name their tools.

    These are the members of its definitions, such as parameters, the values that these may have, and all
    words of those that were `taken` before.
    """
    found = {name for one in taken for name in _NAME.findall(_words_of(one))}
    left = [json.loads(bytes(one)) for one in definitions]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
            found |= value.keys()
            if isinstance(values := value.get("enum"), list):
                found.update(one for one in values if isinstance(one, str))
        elif isinstance(value, list):
            left += value
    return found


def _name_words(name: str) -> tuple[str, ...]:
    """Return the words of a name, the same ones for each way to write them together."""
    return tuple(_stem(word.lower()) for word in _PART.findall(name))


def _stem(word: str) -> str:
    return next((word.removesuffix(ending) for ending in _ENDINGS if word.endswith(ending)), word)


def suspicion(candidate: Candidate, owners: Mapping[str, str]) -> str | None:
    """Return the sign for which a definition is withheld, as the end of "because ..."; None without one.

    ``owners`` has distinctive names of other servers' tools, each with its server; see `foreign`.
    """
    if candidate.hidden:
        return HIDDEN
    written = bytes(candidate.definition)
    if written.isascii() and b"\\" not in written and not _may_show_sign(written.decode("ascii"), owners):
        return None
    text = _words_of(written)
    if (sign := sign_in(text)) is not None:
        return sign
    named = frozenset(owners.keys() & set(_NAME.findall(text)) if owners else ())
    words = [one if one in named else one.lower() for one in _SPOKEN.findall(text)] if named else []
    # No list of words has all orders. So these are asked for only where something else may be meant.
    ordered = (_follow(words, phrase) for phrase in ((named, _ORDERS), (_ORDERS, named)))
    counts = not named.isdisjoint(_MENTION.findall(text)) or any(ordered)
    # Not which server: whoever reads this may not reach it.
    return f"it names {min(named)!r}, a tool of another server" if counts else None


def sign_in_definition(definition: bytes) -> str | None:
    """Return the sign of an attack in the words of something that is not approved; None without one."""
    return sign_in(_words_of(definition))


def _words_of(definition: bytes) -> str:
    try:
        return "\n".join(_texts_in(_decode(definition)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # What msgspec cannot read, such as half of a surrogate pair, is withheld or shown as it is written.
        return definition.decode("utf-8", "replace")


def sign_in(text: str) -> str | None:
    """Return the sign of an attack in words that a model reads, in whatever letters they are drawn."""
    text = in_plain_letters(text)
    if _TAG.search(text):
        return "it has a mark of a system's own messages"
    lowered, words = text.lower().replace("\u2019", "'"), list[str]()
    for reason, phrase in _PHRASES:
        if _has_each(lowered, phrase):
            words = words or _WORD.findall(lowered)
            if _follow(words, phrase):
                return reason
    return None


def _may_show_sign(written: str, owners: Mapping[str, str]) -> bool:
    """Return whether JSON without escapes has the words of a sign somewhere; nearly none has."""
    lowered = written.lower()
    if any(_has_each(lowered, words) for words in (_OF_TAG, *(phrase for _, phrase in _PHRASES))):
        return True
    return bool(owners) and not owners.keys().isdisjoint(_NAME.findall(written))


def _has_each(lowered: str, sets: tuple[frozenset[str], ...]) -> bool:
    return all(any(map(lowered.__contains__, words)) for words in sets)


def _follow(words: list[str], phrase: tuple[frozenset[str], ...]) -> bool:
    latest = [-GAP - 2] * len(phrase)
    for at, word in enumerate(words):
        # From the end, so that one word never counts as two of the phrase.
        for place in range(len(phrase) - 1, -1, -1):
            if word in phrase[place] and (place == 0 or at - latest[place - 1] <= GAP + 1):
                latest[place] = at
                if place == len(phrase) - 1:
                    return True
    return False


class State(StrEnum):
    """State of a definition."""

    APPROVED = "approved"
    RESTRAINED = "restrained"
    """Taken, but with the hints that were approved before: the new ones promise less harm."""
    HELD = "held"
    REJECTED = "rejected"


TAKEN: Final = frozenset({State.APPROVED, State.RESTRAINED})
UNDECIDED: Final = frozenset({State.HELD, State.RESTRAINED})
"""States in which a person has to look."""


class Event(StrEnum):
    """The way in which a definition that nobody has approved came."""

    FIRST = "first sight"
    """The server was never seen before."""
    SUSPECT = "suspect"
    """It has a sign of an attack, however it came."""
    CHANGED = "changed"
    """It changed while the server runs, or over a restart of the same version."""
    UPDATED = "updated"
    """It changed with a new version."""
    NEW = "new"
    """A known server lists a new one."""
    LOOSENED = "loosened"
    """It changed with a new version, and promises less harm than before."""
    REST = "rest"
    """It changed in parts that no model sees."""


_HELD: Final[Mapping[ApprovalMode, State]] = dict.fromkeys(("notice", "changed", "all"), State.HELD)

DECISIONS: Final[Mapping[Event, Mapping[ApprovalMode, State]]] = {
    Event.FIRST: {**_HELD, "notice": State.APPROVED},
    Event.SUSPECT: _HELD,
    Event.CHANGED: _HELD,
    Event.UPDATED: {**_HELD, "notice": State.APPROVED},
    Event.NEW: {**_HELD, "notice": State.APPROVED},
    Event.LOOSENED: {**_HELD, "notice": State.RESTRAINED},
    Event.REST: {**_HELD, "notice": State.APPROVED, "changed": State.APPROVED},
}
"""State of a definition by the event and the mode."""

TOLD: Final = {Event.UPDATED: "changed with a new version", Event.NEW: "new", Event.LOOSENED: "loosened"}
"""Events of which a person is told once although the definition is taken."""

_WHY: Final = {Event.FIRST: "it has not been approved yet", Event.NEW: "it is new"}
REJECTED: Final = "a person has rejected it"

_WHY_SEVERAL: Final = {
    "it has not been approved yet": "they have not been approved yet",
    "it is new": "they are new",
    "its definition changed": "their definitions changed",
    REJECTED: "a person has rejected them",
    UNREAD: "the database that has the decisions about them cannot be reached; it is tried again",
}


class Ruling(Struct, frozen=True):
    """A decision about one definition of a server."""

    state: State
    why: str = ""
    """Reason why it is withheld, as the end of "is withheld: ..."; empty if it is taken."""
    hints: Hints | None = None
    """Hints that stay until a person approves the definition's own."""
    replaces: bool = False
    """True if a definition of the name was served before."""

    @property
    def taken(self) -> bool:
        # Not by the set, whose hashes cost as much as the rest of a first list.
        return self.state is State.APPROVED or self.state is State.RESTRAINED


APPROVED: Final = Ruling(State.APPROVED)


def event_of(
    candidate: Candidate,
    rows: Sequence[ApprovalRow],
    *,
    first: bool,
    version_seen: bool,
    suspect: bool,
    only_rest: bool,
) -> Event:
    """Return the way in which a definition came that has no row of its own.

    Args:
        candidate: The definition.
        rows: The definitions of its name, the oldest decision first.
        first: True if nothing of the server was seen before.
        version_seen: True if the server was seen in this version before.
        suspect: True if it has a sign of an attack.
        only_rest: True if models see it as they see a taken definition of its name.
    """
    if suspect:
        return Event.SUSPECT
    if not rows:
        return Event.FIRST if first else Event.NEW
    decided = [row for row in rows if row.decided not in get_args(ApprovalMode)]
    if decided and max(decided, key=lambda row: row.time).state == State.REJECTED:
        return Event.CHANGED
    if not any(row.state in TAKEN for row in rows):
        unseen = rows[-1].event in (Event.FIRST, Event.NEW)
        return Event(rows[-1].event) if unseen else Event.CHANGED
    loosened = candidate.hints.loosens(approved_hints(rows))
    if version_seen and not (only_rest and not loosened):
        return Event.CHANGED
    if loosened:
        return Event.LOOSENED
    return Event.REST if only_rest else Event.UPDATED


def approved_hints(rows: Iterable[ApprovalRow]) -> Hints:
    """Return the hints of the definition of a name that was approved last."""
    approved = [row for row in rows if row.state == State.APPROVED]
    try:
        return Hints.read(approved[-1].hints) if approved else NO_HINTS
    except ValueError:
        return NO_HINTS


def ruling_of(row: ApprovalRow, of_name: Sequence[ApprovalRow]) -> Ruling:
    """Return the decision that a row stands for, among the rows of its name."""
    state = State(row.state)
    if state is State.APPROVED:
        return APPROVED
    if state is State.RESTRAINED:
        return Ruling(state, hints=approved_hints(of_name))
    replaces = any(one.state in TAKEN for one in of_name)
    why = row.reason or _WHY.get(Event(row.event), "its definition changed")
    return Ruling(state, REJECTED if state is State.REJECTED else why, replaces=replaces)


def withheld(server: str, kind: str, reasons: Sequence[str]) -> str:
    """Return the sentence about withheld definitions of one server, for a model or a person."""
    count, (why, _) = len(reasons), Counter(reasons).most_common(1)[0]
    look = "" if why == UNREAD else f"; a person has to look (mcp-context-proxy changes {server})"
    subject = f"1 {kind} of {server} is" if count == 1 else f"{count:,} {kind}s of {server} are"
    if count > 1:
        why = _WHY_SEVERAL.get(why, "their definitions look like an attack")
    return f"{subject} withheld: {why}{look}"
