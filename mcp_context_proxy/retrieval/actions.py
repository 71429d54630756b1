"""Actions: what a tool does and what an order wants done, such as to read, to create or to delete.

A tool is told by the first verb of its name, an order by the word with which it opens: ``actions.txt`` says
for some 400 words how much better or worse a tool of each action serves such an order. The numbers were
learned from 17,000 written requests by comparing the right tool with the others of its server, which have the
same subject and differ in what they do (``scripts/build_actions.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcp_context_proxy.retrieval.text import STOP_WORDS, identifier_words, stem
from mcp_context_proxy.system.later import np, pattern

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
"""Actions by verb; the first verb in a tool's name decides."""

ACTIONS: Final = ("", *_VERBS)
"""Actions of tools, as the columns of ``actions.txt``; the first is that of a tool whose name has no verb."""

DELETE: Final = ACTIONS.index("delete")

CHANGES: Final = [ACTIONS.index(action) for action in ("create", "update", "send")]

MOST_ADDED: Final = 0.04
"""Highest amount that is added to a score for its action, or taken from it but for deleting."""

UNIT: Final = 0.0001
"""Worth in score of one point in ``actions.txt``."""

CERTAIN_NOT_TO_DELETE: Final = -0.004
"""Addition for deleting tools from which down an order is known not to want any, as one with "show" is."""

TAKEN_FROM_DELETING: Final = 0.1
"""Amount that is then taken from a deleting tool, so that one is only first where nothing else is near."""

ASKING_FOR_FACTS: Final = frozenset({"who", "what", "which", "when", "where"})
"""Words with which a question about facts begins: no tool that creates, changes or sends answers it."""

TAKEN_FROM_CHANGING: Final = 0.12
"""Amount that is then taken from such a tool."""

WEIGHTS: Final = Path(__file__).with_name("actions.txt")

QUESTIONS: Final = frozenset(
    {"what", "which", "who", "whom", "whose", "how", "when", "where", "why", "whether"}
)
"""Words with which a question begins."""

ASKED_FOR_ALL: Final = pattern(
    r"^(\W*(?:what|how|where|which|when|why) )(?:do|can|could|should|shall|would|must) (?:i|we)\b",
    re.IGNORECASE,
)
"""Beginnings of questions in which the caller stands for anybody: "what shall I cook"."""

_MORE_ORDERS = """
book schedule cancel tell email message ask remind open close go navigate click take give turn play draw
plot compare merge commit push pull clone checkout review assign label translate summarize summarise explain
answer order buy pay charge refund invite pin unpin mark star track log record note store remember forget
print scan deploy build test restart scale install uninstall upgrade enable disable connect
disconnect subscribe unsubscribe follow unfollow mute block report look tag attach sign approve reject
watch crop resize zip unzip extract sort filter group split join sum file reserve
apply archive arrange bring click correct crawl dump duplicate empty enter erase fill finish fix grab
hand hide highlight hit hold hover jot keep lock unlock make measure migrate pack unpack pause pick
accept adjust alter analyse analyze annotate begin capture carry choose clean collect comment complete confirm
copy cut define display draft halt include kill launch leave link load locate paste recover refresh relocate
respond restore return revoke stage transfer trash undo unlink use visit withdraw
prepare press pull push raise react register reopen rerun reset resolve resume retry revert rewrite roll
rotate say scrape scroll select shut stash submit swap switch throw toggle unstage wait warn wipe
"""

_BEFORE_ORDERS = """
want need like help let lets try just hey hi hello quickly now first wanna gotta pls plz kindly thanks ok okay
so gonna must may might using ahead actually again
"""
_COURTESIES: Final = frozenset(_BEFORE_ORDERS.split())
"""Words before an order that say nothing about it, beside stop words."""

_PHRASES = """
delete = get rid of; throw away; throw out; chuck out; take down
search for = look up
create = put together; come up with; draw up
start = kick off; fire up
cancel = call off
complete = tick off; cross off
assign = hand over
approve = sign off on; sign off
show = pull up; bring up
fill in = fill out
fill in login form = log in; login; sign in
monitor = keep an eye on
monitor and notify when = tell me when; notify me when; alert me when
monitor and notify if = notify me if; alert me if
"""
_WHOLE: Final = {
    phrase.strip(): meant.strip()
    for meant, _, phrases in (line.partition("=") for line in _PHRASES.strip().splitlines())
    for phrase in phrases.split(";")
}
_AROUND = pattern(r"(?P<verb>\w+) (?P<rest>up|off|out|away|down|over)")
PHRASES: Final[Mapping[str, str]] = _WHOLE | {
    f"{divided['verb']} {object_} {divided['rest']}": f"{meant.removesuffix(' for')} {object_}"
    for phrase, meant in _WHOLE.items()
    if (divided := _AROUND.fullmatch(phrase)) is not None
    for object_ in ("it", "them", "this", "that")
}
"""Phrases with which an order opens, each with the words that tools have for it, as "call off" and "call it
off". Those that tools have as well, such as "turn on" or "set up", are not among them."""

ORDERS: Final = frozenset({*VERBS, *_MORE_ORDERS.split(), *(phrase.split()[0] for phrase in PHRASES)})
"""Verbs with which an order begins."""

_SITES = "wikipedia google youtube gmail facebook twitter reddit amazon ebay instagram linkedin netflix"

_BY_OBJECT = """
navigate = go head surf browse / site website webpage homepage url SITES
navigate to = visit open load / site website webpage homepage url SITES
type = write type enter put key insert / field textbox input blank
write = put enter / cell cells
create event = put add / calendar
show history log of who = who / changed edited modified touched committed broke
show history log of when = when / changed edited modified touched committed broke
assign = give pass hand / ticket issue task card bug case story incident
scale = bump raise increase lower reduce / replicas pods instances
add = drop leave / comment comments
post message to = tell inform notify ping update / channel team everyone everybody
checkout = switch change jump / branch
"""
BY_OBJECT: Final = tuple(
    (meant.strip(), frozenset(verbs.split()), frozenset(objects.split()))
    for meant, _, words in (
        line.replace("SITES", _SITES).partition("=") for line in _BY_OBJECT.strip().splitlines()
    )
    for verbs, _, objects in [words.partition("/")]
)
"""Verbs that mean something else with some objects: people give a ticket to somebody, tools assign it."""

OBJECT_WORDS: Final = 7
"""Words after a verb among which its object is looked for."""

_WORD = pattern(r"[A-Za-z]+")
_PHRASE = pattern(
    f"(?:{'|'.join(sorted(PHRASES, key=lambda one: -len(one)))})\\b",
    re.IGNORECASE,
)
_YES_OR_NO = pattern(
    r"\W*(?:(?:is|are|was|were|does|did|has|am|any|do (?:i|we|they)|have (?:i|we|they))\s)"
    r"(?!(?:you|it)\b|(?:there )?(?:a|any|some) (?:way|chance|possibility)\b)",
    re.IGNORECASE,
)
"""Beginnings of questions that are answered by yes or no; "is it possible to" and "are you able to" order."""


def action_of(name: str) -> int:
    """Return the action of a tool by its name, as a position in `ACTIONS`."""
    verb = next((word for word in identifier_words(name).split() if word in VERBS), None)
    return 0 if verb is None else ACTIONS.index(VERBS[verb])


def opening(order: str) -> str:
    """Return the word with which an order opens, stemmed unless it asks; empty without one."""
    match = opening_match(order)
    word = "" if match is None else match.group().lower()
    return word if word in QUESTIONS else stem(word)


def opening_match(order: str) -> re.Match[str] | None:
    """Return where the word is with which an order opens: after courtesies and words that say nothing."""
    for match in _WORD.finditer(order):
        word = match.group().lower()
        if word in QUESTIONS or (len(word) > 1 and word not in STOP_WORDS and word not in _COURTESIES):
            return match
    return None


def reworded(order: str) -> tuple[int, str] | None:
    """Return how many characters of an order name no tool, and their meaning; None for most orders.

    The order begins with its opening word.
    """
    if (phrase := _PHRASE.match(order)) is not None:
        return phrase.end(), PHRASES[phrase.group().lower()]
    verb, *following = (match.group() for match in islice(_WORD.finditer(order), OBJECT_WORDS + 1))
    objects = frozenset(word.lower() for word in following)
    for meant, verbs, named in BY_OBJECT:
        if verb.lower() in verbs and not named.isdisjoint(objects):
            return len(verb), meant
    return None


def wanted(order: str) -> NDArray[np.float32]:
    """Return what is added to the score of a tool for its action, by position in `ACTIONS`."""
    if _YES_OR_NO.match(order):
        added = np.zeros(len(ACTIONS), np.float32)
        added[CHANGES], added[DELETE] = -TAKEN_FROM_CHANGING, -TAKEN_FROM_DELETING
        return added
    found = _additions().get(opening(order))
    return np.zeros(len(ACTIONS), np.float32) if found is None else found


@cache
def _additions() -> Mapping[str, NDArray[np.float32]]:
    """Return the additions of each opening word."""
    additions = {}
    for line in WEIGHTS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            word, *points = line.split()
            added = np.array([*map(int, points)], np.float32) * np.float32(UNIT)
            additions[word] = np.clip(added, -MOST_ADDED, MOST_ADDED)
            if added[DELETE] <= CERTAIN_NOT_TO_DELETE:
                additions[word][DELETE] = -TAKEN_FROM_DELETING
            if word in ASKING_FOR_FACTS:
                additions[word][CHANGES] = -TAKEN_FROM_CHANGING
    return additions
