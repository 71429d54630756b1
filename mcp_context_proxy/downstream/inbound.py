"""Everything that a server sends beside responses: notifications, requests of a client, stderr, stray lines.

A handshake-era server does not say which request of ours a message is about, so that is inferred: a change
notice goes to the lists, a log message to the sessions whose calls are pending, and a request of the server
to the one party whose calls are pending. If several parties have pending calls, the request is refused.

`Admission` decides which notifications go on at all, and how many: only those that clients know, that concern
something that a client asked for, and that are neither too large nor too many.

Stderr is always drained; its end is kept for error messages, and a bounded share of it is logged. Nothing is
decoded, cleaned or redacted before it is read, so a flood costs no more than a copy.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec import Raw

from mcp_context_proxy.config import Limits
from mcp_context_proxy.config.limits import KIB
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream.jsonrpc import NOTIFICATION_BYTES, Peer
from mcp_context_proxy.downstream.link import Outgoing, Party
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import (
    METHOD_NOT_FOUND,
    Members,
    RequestError,
)
from mcp_context_proxy.protocol.framing import Bucket
from mcp_context_proxy.protocol.strangers import NAME_CHARACTERS, clean, one_line, said, said_json, unmarked

logger = logging.getLogger(__name__)

LOG_MESSAGE = "notifications/message"
PROGRESS = "notifications/progress"
RESOURCE_UPDATED = "notifications/resources/updated"
ELICITATION_COMPLETE = "notifications/elicitation/complete"

LOGS_PER_SECOND, LOGS_AT_ONCE = 100, 500
"""Log messages of one server that are passed on to clients; nobody reads more than that."""

COMPLETIONS_PER_SECOND, COMPLETIONS_AT_ONCE = 10, 100
"""Completed elicitations of one server that are passed on: each is something that a person has done."""

ELICITATIONS_KEPT = 1000
"""Elicitations of one server whose completion is awaited; beyond it the oldest is forgotten."""

ELICITATION_ID_CHARACTERS = 256
"""Longest id of an elicitation whose completion is passed on."""

DROPPED_SECONDS = 60.0
"""Time between two log lines about notifications that were not passed on."""

LINES_KEPT = 20
"""Lines of stderr that an error message or a command may quote."""

LINE_CHARACTERS = 300
"""Characters shown of the end of each line, where the reason usually stands."""

STRAYS_KEPT = 5
"""Stray lines that are kept. Banners and stray prints are common, and more than a few tell nothing new."""

STRAY_CHARACTERS = 120
"""Characters shown of the beginning of such a line, which identifies a help text or an error."""

STRAY_BYTES = 16 * KIB
"""Bytes that are decoded of a line of megabytes: enough for a secret to be recognized whole."""

KeepLine: TypeAlias = Callable[[str, str], None]
"""Takes the name of a server and a line of its stderr, without secrets."""

Route: TypeAlias = Callable[[str, Members, Sequence[Outgoing], Party | None], None]
"""Takes a notification with the pending requests of its connection, and its owner if it is not shared."""


OnEvent: TypeAlias = Callable[[str, str, Members, frozenset[Party]], None]
"""Takes a notification: server, method, params, and the parties concerned, which may be none."""


def party_of(in_flight: Iterable[Outgoing]) -> Party | None:
    """Return the one party with pending requests; None when there is none, or several."""
    parties = {outgoing.party for outgoing in in_flight if outgoing.party is not None}
    return parties.pop() if len(parties) == 1 else None


async def answer(peer: Peer, method: str, params: Members, owner: Outgoing | None) -> bytes:
    """Answer a request of a server by asking the one party whose call it belongs to.

    `owner` is the latest request on a connection that serves one party alone; None on a shared one.

    Raises:
        RequestError: the client refuses, or it is not known which client to ask.
    """
    if method == "ping":
        return b"{}"
    in_flight = [sent for sent in peer.in_flight if sent.party is not None]
    party = party_of(in_flight)
    latest = in_flight[-1] if in_flight else owner
    if latest is None or (in_flight and party is None):
        if method == "roots/list" and latest is None:
            # On connecting, before there is any client: the proxy itself has none.
            return b'{"roots":[]}'
        clients = len({sent.party for sent in in_flight})
        text = f"{method} cannot be passed on: calls of {clients} clients are under way"
        raise RequestError(METHOD_NOT_FOUND, text)
    if latest.ask is None:
        raise RequestError(METHOD_NOT_FOUND, f"the client does not support {method}")
    with peer.held(party):
        return await latest.ask(method, params)


_EXACT = frozenset({"uri", eras.ELICITATION_ID})
"""Params that a client compares with what it knows already. Only secrets are removed from them."""


def shown_params(server: str, method: str, params: Members, redact: Redactor) -> Members:
    """Return the params of a notification as people and models may read them, names of members included.

    The logger of a message begins with the name of its server, so that no server can speak for another one.
    """
    shown = {
        said(name, redact, NAME_CHARACTERS): Raw(
            redact.json(bytes(value)) if name in _EXACT else said_json(bytes(value), redact.json)
        )
        for name, value in params.items()
    }
    if method == LOG_MESSAGE:
        own = one_line(envelope.text(shown.get("logger")) or "", NAME_CHARACTERS)
        shown["logger"] = envelope.raw(f"{server}/{own}" if own else server)
    return shown


def waiting_facts(seconds: float, standing: str) -> Members:
    """Return the params of progress, without the token, of a request that waits for servers.

    Progress has to grow, and that of the server begins at 0 or 1: a second of waiting counts a thousandth.
    """
    message = f"waiting for servers ({standing})"
    return {"progress": envelope.raw(round(seconds / 1000, 6)), "message": envelope.raw(message)}


class Admission:
    """Bounds on the notifications of one server, over all its connections."""

    def __init__(self, server: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._clock = server, clock
        self._logs = Bucket(LOGS_PER_SECOND, LOGS_AT_ONCE, clock)
        self._completions = Bucket(COMPLETIONS_PER_SECOND, COMPLETIONS_AT_ONCE, clock)
        self._elicitations: OrderedDict[str, Party] = OrderedDict()
        """Parties that were asked to visit a URL, by the id of the elicitation, oldest first."""
        self._dropped, self._told = 0, -DROPPED_SECONDS

    def admits(self, method: str, params: Members) -> bool:
        """Return whether a notification is small enough, and not one too many."""
        if sum(len(raw) for raw in params.values()) > NOTIFICATION_BYTES:
            return self._drop(method, f"over {NOTIFICATION_BYTES:,} bytes")
        if method == LOG_MESSAGE and not self._logs.take():
            return self._drop(method, f"more than {LOGS_PER_SECOND} a second")
        return True

    def expect_completion(self, elicitation_id: str | None, party: Party | None) -> None:
        """Note that a session was asked to visit a URL; the server may tell it when that is done."""
        if elicitation_id is None or len(elicitation_id) > ELICITATION_ID_CHARACTERS:
            return
        # The modern era has no notification for the request that it was asked in.
        if party is not None and party.lasting:
            self._elicitations[elicitation_id] = party
            if len(self._elicitations) > ELICITATIONS_KEPT:
                self._elicitations.popitem(last=False)

    def expect_completions(self, data: object, party: Party | None) -> None:
        """Note the elicitations in the data of an error that sends a person to URLs."""
        if not isinstance(data, Raw) or len(data) > NOTIFICATION_BYTES:
            return
        decoded = envelope.value_or_none(data)
        entries = decoded.get("elicitations") if isinstance(decoded, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            given = entry.get(eras.ELICITATION_ID) if isinstance(entry, dict) else None
            self.expect_completion(given if isinstance(given, str) else None, party)

    def completed(self, params: Members) -> Party | None:
        """Return the session that waits for a completed elicitation, once; None if nobody does."""
        elicitation_id = envelope.text(params.get(eras.ELICITATION_ID))
        if elicitation_id is None or elicitation_id not in self._elicitations:
            return None
        if not self._completions.take():
            self._drop(ELICITATION_COMPLETE, f"more than {COMPLETIONS_PER_SECOND} a second")
            return None
        return self._elicitations.pop(elicitation_id)

    def end(self, party: Party) -> None:
        """Forget the elicitations of a session that has ended."""
        for elicitation_id in [each for each, asked in self._elicitations.items() if asked is party]:
            del self._elicitations[elicitation_id]

    def _drop(self, method: str, why: str) -> bool:
        """Count a notification that is not passed on, and say so once in a while; return False."""
        self._dropped += 1
        now = self._clock()
        if now - self._told >= DROPPED_SECONDS:
            count, self._dropped, self._told = self._dropped, 0, now
            text = "server %s: %d notifications were not passed on; the latest is a %s: %s"
            logger.warning(text, self._server, count, method, why)
        return False


class Output:
    """Stderr and stray lines of one server, without secrets and without terminal control sequences."""

    def __init__(
        self,
        *,
        server: str,
        limits: Limits,
        redact: Callable[[str], str] = str,
        clock: Callable[[], float] = time.monotonic,
        keep_line: KeepLine | None = None,
    ) -> None:
        """Start empty; `redact` removes secrets, and `keep_line` takes each line that may be logged."""
        self._keep_line = keep_line
        self._server, self._limits, self._redact, self._clock = server, limits, redact, clock
        self.strays: list[str] = []
        """The first lines on stdout that are no messages, oldest first; a repeated line is kept once."""
        self._kept = bytearray()
        self._second, self._logged, self._skipped = 0, 0, 0
        self._unlogged = bytearray()

    def feed_stderr(self, data: bytes) -> None:
        """Add stderr that was read."""
        limit = self._limits.stderr_kept_bytes
        self._kept += data
        # Twice the bound before anything is moved: each byte is then moved once at most.
        if len(self._kept) > 2 * limit:
            del self._kept[:-limit]
        if self._keep_line is not None or logger.isEnabledFor(logging.DEBUG):
            self._unlogged += data
            *lines, self._unlogged = self._unlogged.split(b"\n")
            del self._unlogged[:-limit]
            for line in lines:
                if self._may_log() and (text := self._shown(bytes(line))):
                    self._tell(text)

    def _tell(self, text: str) -> None:
        logger.debug("%s: %s", self._server, text)
        if self._keep_line is not None:
            self._keep_line(self._server, text)

    def _may_log(self) -> bool:
        """Return whether one more line may be logged in this second; the rest is counted."""
        second = int(self._clock())
        if second != self._second:
            if self._skipped:
                self._tell(f"{self._skipped} more lines were not logged")
            self._second, self._logged, self._skipped = second, 0, 0
        if self._logged >= self._limits.stderr_lines_per_second:
            self._skipped += 1
            return False
        self._logged += 1
        return True

    def stderr_lines(self) -> tuple[str, ...]:
        """Return the last lines of stderr, oldest first, including one without a line end."""
        limit = self._limits.stderr_kept_bytes
        lines = bytes(self._kept[-limit:]).split(b"\n")
        if len(self._kept) > limit and len(lines) > 1:
            del lines[0]
        shown = (self._shown(line) for line in lines)
        return tuple([line for line in shown if line][-LINES_KEPT:])

    def _shown(self, line: bytes) -> str:
        text = one_line(self._redact(clean(line.decode("utf-8", "replace"))))
        return unmarked(text[-LINE_CHARACTERS:].strip())

    def add_stray(self, line: bytes) -> None:
        """Keep a line that is no message if it is among the first."""
        if len(self.strays) >= STRAYS_KEPT:
            return
        shown = one_line(self._redact(clean(line[:STRAY_BYTES].decode("utf-8", "replace"))))
        shown = unmarked(shown[:STRAY_CHARACTERS])
        if shown and shown not in self.strays:
            self.strays.append(shown)
            logger.warning("%s: skipped a line that is not a message: %r", self._server, shown)
