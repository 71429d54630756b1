"""The audit, which records calls, refusals, questions and changes; and the kept logs, in files alike.

A call only appends to a queue. Everything else happens in a thread, some moments later: of the arguments it
takes the shape (names that the tool declares, and types) and a hash under a key that never leaves the state
folder, so that two calls can be compared, and the arguments cannot be read or guessed. Queries are not here.
Entries that do not fit into the queue are counted. A disk that is full delays the lines, then costs them, and
never costs a call.

Kept logs, of each server and of the proxy, are written likewise, by any number of proxies, and rotated.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import msgspec
from msgspec import Raw

from mcp_context_proxy.config import Config
from mcp_context_proxy.config.secrets import Secret, redact_logs
from mcp_context_proxy.config.tables import KIB, MIB
from mcp_context_proxy.errors import NOTICE
from mcp_context_proxy.items import JSON, Tool
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import nests_deeper
from mcp_context_proxy.protocol.strangers import NAME_CHARACTERS, clean
from mcp_context_proxy.store.opening import IN_MEMORY, default_path
from mcp_context_proxy.system.threads import in_thread, keep_latest
from mcp_context_proxy.trust import PERSONS_SHARE, person_in
from mcp_context_proxy.trust.approval import ApprovalEvent, Observer
from mcp_context_proxy.trust.audit_file import AuditFile, thinned
from mcp_context_proxy.trust.fingerprints import Event

logger = logging.getLogger(__name__)

GATHERING_SECONDS: Final = 0.5
"""Time for which entries are gathered. A killed process loses those since the last write began: less than the
last second."""

RETRY_SECONDS: Final = 5.0
"""Time between two attempts to write while the file cannot be written."""

LAST_SECONDS: Final = 2.0
"""Time for the entries that are unwritten when the proxy stops."""

WAITING: Final = 10_000
"""Entries that wait to be written; further ones are only counted."""

WAITING_BYTES: Final = 16 * MIB
"""Bytes of the arguments that wait with them: beyond it, a call is recorded without its arguments."""

UNWRITTEN_BYTES: Final = MIB
"""Bytes of the lines that are kept while the file cannot be written, some two thousand."""

READ_BYTES: Final = 64 * KIB
"""Size from which arguments are not read: their hash is that of their bytes, and they have no shape."""

LEVELS_READ: Final = 32
"""Levels of nested arguments that are read."""

SHAPE_VALUES, SHAPE_LEVELS, SHAPE_NAMES = 64, 4, 32
"""Values, levels and names of one object in a shape: enough to tell calls apart."""

DECLARED_NAMES, DECLARED_CHARACTERS = 1_000, 64
"""Names that are taken from the schema of a tool, and the length of one."""

SCHEMAS_KEPT: Final = 256
"""Tools whose declared names are remembered: as many as a busy day uses."""

FACT_CHARACTERS: Final = 500
"""Length to which any text of an entry is cut."""

REFUSED_SECONDS: Final = 60.0
"""Time in which wrong tokens from one address make one entry, with their number."""

ADDRESSES: Final = 64
"""Addresses that have an entry of their own in that time; those of all others make one together."""

KINDS: Final = (
    *("call", "read", "question", "approval", "login", "configuration", "order", "token", "dropped"),
)
"""Kinds of entries."""

Facts: TypeAlias = Mapping[str, JSON]


class AuditedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call for the audit."""

    tool: Tool
    arguments: Raw | None
    """As they came; None if there are none."""
    outcome: str
    """How it ended, such as ``succeeded``."""
    decision: str
    """``allowed`` or ``refused``."""
    rule: str | None
    """The rule that decided that, if it was not the default."""
    principal: str | None
    """Who called; None for the host over standard streams."""
    client_info: Raw | None
    session: str | None
    """Public id of the session; it is not the one that a client sends."""
    subject: str | None = None
    """Who the principal is, in words of the issuer of their token."""
    ms: float | None = None
    """Milliseconds until the result; None if nothing was sent."""
    result_bytes: int | None = None
    at: float = msgspec.field(default_factory=time.time)
    """Seconds since 1970."""


_Note: TypeAlias = tuple[float, str, Facts]
"""Time, kind and facts of anything else."""


def state_folder(config: Config) -> Path | None:
    """Return the folder for state that outlasts the process; None if nothing is kept."""
    path = config.store.path
    if path == IN_MEMORY:
        return None
    return (default_path() if path is None else Path(path)).parent


def audit_file(config: Config) -> AuditFile | None:
    folder, settings = state_folder(config), config.audit
    if not settings.enabled or folder is None:
        return None
    return AuditFile(folder, settings.max_bytes, settings.files, fair=True)


def note_now(config: Config, kind: str, /, **facts: JSON) -> None:
    """Write one entry at once, for a command that runs beside the proxy. Blocks; a failure is logged."""
    file = audit_file(config)
    if file is not None:
        try:
            file.append([_line(time.time(), kind, facts)])
        except OSError as error:
            logger.warning("the audit has no entry of this: %s: %s", file.path, error.strerror or error)


class AuditLog:
    """The audit of a running proxy. Its `run` owns the writing; the other methods only append to memory."""

    def __init__(
        self, file: AuditFile | None, redact: Callable[[str], str] = str, *, waiting: int = WAITING
    ) -> None:
        """Record into a file, or nothing at all; `waiting` entries wait at most.

        `redact` removes secrets from the names that clients give themselves.
        """
        self._file, self._redact, self._most = file, redact, waiting
        self._queue: deque[AuditedCall | _Note] = deque()
        self._queued_of: Counter[str] = Counter()
        self._bytes = 0
        self._dropped = self._lost = 0
        """Entries that did not fit, before and after they were taken from the queue."""
        self._refused: Counter[str] = Counter()
        self._refusals_written = -REFUSED_SECONDS
        self._lines: list[bytes] = []
        self._key: bytes | None = None
        self._declared: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._noted = anyio.Event()
        self._writing = anyio.Lock()
        self.warning: str | None = None
        """Problem of the file, for a person; None while it can be written. Already logged."""

    def called(self, call: AuditedCall) -> None:
        size = 0 if call.arguments is None else len(call.arguments)
        fits = self._bytes + size <= WAITING_BYTES
        if self._wait(call if fits else msgspec.structs.replace(call, arguments=None)) and fits:
            self._bytes += size

    def note(self, kind: str, /, **facts: JSON) -> None:
        """Record anything else; `facts` are names, numbers and words of ours, and no values of a call."""
        self._wait((time.time(), kind, facts))

    def _wait(self, entry: AuditedCall | _Note) -> bool:
        """Have an entry wait, if there is room: half of it is for others, and for other kinds of notes."""
        if self._file is None:
            return False
        known = entry.principal if isinstance(entry, AuditedCall) else entry[2].get("principal") or entry[1]
        person = person_in(known) if isinstance(known, str) else None
        own = 0 if person is None else self._queued_of[person] + 1
        if len(self._queue) >= self._most or own > self._most // PERSONS_SHARE:
            self._dropped += 1
            return False
        if person is not None:
            self._queued_of[person] = own
        self._queue.append(entry)
        self._noted.set()
        return True

    def observer(self) -> Observer:
        """Return a function that records decisions about definitions; it may be called in any thread.

        Decisions of another process are in its own entries.
        """
        loop = asyncio.get_running_loop()

        def decided(events: Sequence[ApprovalEvent]) -> None:
            for event in events:
                if event.event != Event.FIRST and not event.elsewhere:
                    loop.call_soon_threadsafe(partial(self.note, "approval", **event.facts))

        return decided

    def token_refused(self, address: str) -> None:
        """Record a wrong token; many from one address make one entry."""
        if self._file is not None:
            known = address in self._refused or len(self._refused) < ADDRESSES
            self._refused[address if known else "others"] += 1
            self._noted.set()

    async def run(self) -> None:
        """Write until cancelled, and then the rest."""
        try:
            while True:
                await self._noted.wait()
                await anyio.sleep(GATHERING_SECONDS if self.warning is None else RETRY_SECONDS)
                self._noted = anyio.Event()
                await self.flush()
                if self._lines or self._lost or self._refused:
                    self._noted.set()
        finally:
            with anyio.move_on_after(LAST_SECONDS, shield=True):
                self._refusals_written = -REFUSED_SECONDS
                await self.flush()

    async def flush(self) -> None:
        """Write everything that was recorded before, unless the file cannot be written."""
        async with self._writing:
            refused = self._refusals_due()
            waiting = self._queue or refused or self._dropped or self._lines or self._lost
            if self._file is None or not waiting:
                return
            queue, self._queue, self._bytes = self._queue, deque(), 0
            self._queued_of.clear()
            dropped, self._dropped = self._dropped, 0
            # Not abandoned when cancelled: the file must not get the same lines twice.
            with anyio.CancelScope(shield=True):
                await in_thread(self._write, self._file, queue, refused, dropped)

    def _refusals_due(self) -> Counter[str]:
        now = time.monotonic()
        if not self._refused or now - self._refusals_written < REFUSED_SECONDS:
            return Counter()
        self._refusals_written, found, self._refused = now, self._refused, Counter()
        return found

    def _write(
        self, file: AuditFile, queue: deque[AuditedCall | _Note], refused: Counter[str], dropped: int
    ) -> None:
        now, name_of = time.time(), cache(partial(_client_name, self._redact))
        while queue:
            try:
                self._lines.append(self._encoded(file, queue.popleft(), name_of))
            except Exception:
                # boundary: an entry that cannot be encoded must not cost the others
                logger.exception("an entry of the audit could not be written and is lost")
                dropped += 1
        for address, count in refused.items():
            self._lines.append(_line(now, "token", {"event": "refused", "address": address, "count": count}))
        self._lost += dropped
        try:
            while self._lines:
                del self._lines[: file.append(self._lines)]
            if self._lost:
                file.append([_line(now, "dropped", {"count": self._lost})])
                self._lost = 0
            self.warning = None
        except OSError as error:
            if self.warning is None:
                self.warning = f"the audit cannot be written: {file.path}: {error.strerror or error}"
                logger.warning("%s. Calls go on without it", self.warning)
            # Those of whoever has most go first: nobody pushes out the entries of others.
            self._lines = thinned(self._lines, UNWRITTEN_BYTES)

    def _encoded(
        self, file: AuditFile, entry: AuditedCall | _Note, name_of: Callable[[bytes], str | None]
    ) -> bytes:
        if not isinstance(entry, AuditedCall):
            return _line(*entry)
        tool = entry.tool
        arguments: Facts | None = None
        hashed: str | None = None
        if entry.arguments is not None:
            encoded = bytes(entry.arguments)
            shape, canonical = self._shape(tool, encoded)
            arguments = {"bytes": len(encoded), "shape": shape}
            hashed = self._hash(file, canonical)
        return _encode(
            _CallLine(
                time=round(entry.at, 3),
                kind="call",
                principal=_cut_text(entry.principal),
                subject=_cut_text(entry.subject),
                client=None if entry.client_info is None else name_of(bytes(entry.client_info)),
                session=_cut_text(entry.session),
                server=_cut_text(tool.server),
                tool=_cut_text(tool.name),
                tool_class=tool.tool_class.value,
                decision=_cut_text(entry.decision),
                rule=_cut_text(entry.rule),
                fingerprint=_cut_text(tool.fingerprint),
                outcome=_cut_text(entry.outcome),
                ms=None if entry.ms is None else round(entry.ms, 3),
                result_bytes=entry.result_bytes,
                arguments=arguments,
                arguments_hash=hashed,
            )
        )

    def _hash(self, file: AuditFile, data: bytes) -> str | None:
        """Return a hash under the key of the folder; None while there is no key."""
        if self._key is None:
            try:
                self._key = file.key()
            except OSError as error:
                logger.debug("the audit has no key: %s", error)
                return None
        return hashlib.blake2b(data, key=self._key, digest_size=16).hexdigest()

    def _shape(self, tool: Tool, encoded: bytes) -> tuple[JSON, bytes]:
        """Return the shape of arguments, and bytes that are the same for the same arguments."""
        if len(encoded) > READ_BYTES:
            return None, encoded
        try:
            if nests_deeper(encoded, LEVELS_READ):
                return None, encoded
            arguments = json.loads(encoded.decode())  # not msgspec: its numbers end at 64 bits
        except (ValueError, RecursionError):
            return None, encoded
        shape = _shape(arguments, self._names(tool), [SHAPE_VALUES], SHAPE_LEVELS)
        return shape, _canonical(arguments).encode()

    def _names(self, tool: Tool) -> frozenset[str]:
        found = self._declared.get(tool.fingerprint)
        if found is None:
            names = declared_names(tool.definition)
            found = keep_latest(self._declared, tool.fingerprint, names, SCHEMAS_KEPT)
        return found


class _CallLine(msgspec.Struct, omit_defaults=True, kw_only=True, rename={"tool_class": "class"}):
    """The entry of a call as it is written; facts that are not known are left out."""

    time: float
    kind: str
    principal: str | None = None
    subject: str | None = None
    client: str | None = None
    session: str | None = None
    server: str | None = None
    tool: str | None = None
    tool_class: str | None = None
    decision: str | None = None
    rule: str | None = None
    fingerprint: str | None = None
    outcome: str | None = None
    ms: float | None = None
    result_bytes: int | None = None
    arguments: Facts | None = None
    arguments_hash: str | None = None


_encode = msgspec.json.Encoder().encode
_canonical = json.JSONEncoder(sort_keys=True).encode
"""Encodes arguments with their names in order; another encoding would have other hashes than before."""


def _line(at: float, kind: str, facts: Facts) -> bytes:
    """Encode an entry; facts that are not known are left out."""
    known = {name: _cut(fact) for name, fact in facts.items() if fact is not None}
    return _encode({"time": round(at, 3), "kind": kind, **known})


def _cut(fact: JSON) -> JSON:
    if isinstance(fact, str):
        return _cut_text(fact)
    return [_cut(each) for each in fact[:SHAPE_NAMES]] if isinstance(fact, list) else fact


@lru_cache(maxsize=SCHEMAS_KEPT)
def _cut_text(text: str | None) -> str | None:
    # A lone surrogate has no bytes.
    return None if text is None else text[:FACT_CHARACTERS].encode("utf-8", "replace").decode()


def _client_name(redact: Callable[[str], str], client_info: bytes) -> str | None:
    name = eras.name_of(client_info)
    return None if name is None else _cut_text(redact(clean(name))[:NAME_CHARACTERS])


def declared_names(definition: bytes) -> frozenset[str]:
    """Return the names of properties that the input schema of a tool declares, at any level.

    Other names in arguments may be values: of an object whose keys are addresses, for example.
    """
    waiting = [envelope.schema_of(definition)]
    found = set[str]()
    while waiting and len(found) < DECLARED_NAMES:
        schema = waiting.pop()
        if isinstance(schema, list):
            waiting += schema
        elif isinstance(schema, dict):
            properties = schema.get("properties")
            if isinstance(properties, dict):
                found.update(name for name in properties if len(name) <= DECLARED_CHARACTERS)
                waiting += properties.values()
            waiting += [part for key, part in schema.items() if key not in ("properties", "enum", "examples")]
    return frozenset(found)


def _shape(value: Any, names: frozenset[str], left: list[int], levels: int) -> JSON:
    """Return the names and types of a value; `left` has the number of values that may still be written."""
    left[0] -= 1
    if isinstance(value, dict):
        if levels <= 0 or left[0] <= 0:
            return "object"
        shown: dict[str, JSON] = {}
        for name, each in value.items():
            if name in names and len(shown) < SHAPE_NAMES and left[0] > 0:
                shown[name] = _shape(each, names, left, levels - 1)
        if more := len(value) - len(shown):
            shown["..."] = more
        return shown
    if isinstance(value, list):
        if levels <= 0 or left[0] <= 0 or not value:
            return "array"
        return [_shape(value[0], names, left, levels - 1), len(value)]
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    return "string" if isinstance(value, str) else "number"


LOGS_FOLDER: Final = "logs"
"""Folder of the files, in the state folder."""

PROXY: Final = ""
"""Key of the proxy's own messages, among the names of servers."""

KEPT_LOG_BYTES: Final = MIB
"""Size from which a file is rotated: a day of a server that says a line a second."""

LOG_FILES: Final = 3
"""Files of one server, the older ones among them."""

KEPT_LOG_SECONDS: Final = 0.5
"""Time for which lines are gathered."""

LINES_WAITING: Final = 5_000
"""Lines that wait to be written; of further ones, the oldest are dropped."""

LINE_CHARACTERS: Final = 2_000
"""Length to which a line is cut."""


class KeptLogs(logging.Handler):
    """The kept logs of a configuration; as a handler, it keeps the proxy's own messages.

    Any thread may log. `run` owns the writing.
    """

    def __init__(self, folder: Path | None) -> None:
        """Keep logs in the state folder; without one, nothing is kept."""
        super().__init__(logging.INFO)
        self._folder = None if folder is None else folder / LOGS_FOLDER
        self._waiting: deque[tuple[str, bytes]] = deque(maxlen=LINES_WAITING)
        self._writing = threading.Lock()
        self._noted = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop in which `run` waits for lines."""

    def note(self, name: str, text: str, level: str | None = None) -> None:
        """Keep a line of a server, or of the proxy."""
        said = text[:LINE_CHARACTERS].encode("utf-8", "replace").decode()  # a lone surrogate has no bytes
        at, pid = round(time.time(), 3), os.getpid()
        entry = {"time": at, "kind": level or "stderr", "text": said, "pid": pid}
        self._waiting.append((name, msgspec.json.encode(entry)))
        if self._loop is not None and not self._noted.is_set():
            with suppress(RuntimeError):  # the loop has ended, and with it `run`
                self._loop.call_soon_threadsafe(self._noted.set)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message of the proxy; see `logging.Handler`."""
        level = "notice" if record.levelno == NOTICE else record.levelname.lower()
        self.note(PROXY, self.format(record), level)

    async def run(self) -> None:
        """Write until cancelled, and then the rest."""
        self._loop = asyncio.get_running_loop()
        if self._waiting:
            self._noted.set()
        try:
            while True:
                await self._noted.wait()
                await anyio.sleep(KEPT_LOG_SECONDS)
                self._noted.clear()
                await in_thread(self.flush)
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(self.flush)

    def flush(self) -> None:
        """Write all that waits. Blocks; see `logging.Handler`."""
        if self._folder is None:
            return
        with self._writing:
            lines: dict[str, list[bytes]] = {}
            while self._waiting:
                name, line = self._waiting.popleft()
                lines.setdefault(name, []).append(line)
            for name, batch in lines.items():
                file = self._file(self._folder, name)
                try:
                    while batch:
                        del batch[: file.append(batch)]
                except OSError:
                    continue  # a log about the log would not be written either

    def entries(self, name: str, most: int, after: float = 0.0) -> list[dict[str, Any]]:
        """Return the latest lines of a server, or of the proxy, that are newer than a time. Blocks."""
        if self._folder is None:
            return []
        self.flush()
        try:
            found = (entry for entry in self._file(self._folder, name).entries() if entry["time"] > after)
            return list(deque(found, maxlen=most))
        except OSError:
            return []

    @staticmethod
    def _file(folder: Path, name: str) -> AuditFile:
        return AuditFile(folder, KEPT_LOG_BYTES, LOG_FILES, name=f"server-{name}" if name else "proxy")


def kept_logs(config: Config) -> KeptLogs:
    return KeptLogs(state_folder(config))


def keep_messages(logs: KeptLogs, secrets: Iterable[Secret]) -> None:
    """Have messages of the proxy kept from now on, from level info up; other handlers keep their levels."""
    root = logging.getLogger()
    for handler in root.handlers:
        handler.setLevel(max(handler.level, root.level))
    root.addHandler(logs)
    redact_logs(secrets)
    logger = logging.getLogger("mcp_context_proxy")
    logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
