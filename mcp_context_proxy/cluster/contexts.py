"""Sessions and handles as rows that all replicas read; requests of others, for calls to attribute.

A request with a ``context_id`` reads the row first, and what it sets is in the row before its answer leaves;
the rest, such as the words of a search, is written a moment later. A call of a server's tool waits for no
row that is known here. A session is in the memory of its home alone; its row is for the replica that adopts
it.

A call waits for none of this: it is attributed a moment later, when the other replica has written its record.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import anyio
import msgspec
from msgspec import Struct, field

from mcp_context_proxy.cluster import (
    ALL,
    NOBODY,
    WRITTEN_THROUGH,
    ContextRow,
    ContextState,
    ContextTable,
    Unknown,
    decoded,
    encoded,
    hash_of,
    merged,
    restore,
    state_of,
    terms_of,
)
from mcp_context_proxy.cluster.replicas import ClusterCounts
from mcp_context_proxy.context import RequestContext, RequestRecords
from mcp_context_proxy.context.session import Handle, Handles, Session, SessionContext
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR, Members, RequestError
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.server import Caller, meta_definitions
from mcp_context_proxy.server.questions import input_required
from mcp_context_proxy.server.tools_call import WINDOW_SECONDS, Unattributed
from mcp_context_proxy.system.threads import in_thread, keep_latest

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.25
"""Time after which a change of a session that nobody waits for is written."""

ANSWER_SECONDS: Final = 0.01
"""The same of a handle, which another replica may need for its next request. Begun at once, the writing would
slow the answer down."""

AGAIN_SECONDS: Final = 1.0
"""Time after which a change that the store has refused is written again."""

ATTEMPTS: Final = 5
"""Attempts to write a handle that other replicas change at the same moment."""

SESSION, HANDLE = "session", "handle"

AT_HOME: Final = ".~"
"""Stands between the name of a replica and the state that a server there has given; no parked call has it."""

LOOK_UP_FAILED: Final = "this context cannot be looked up now, because the store is away; try again"

KEPT_HERE: Final = (
    "The store is away, so this context is kept by one replica only: it may be unknown to the next request."
)


class _Arguments(msgspec.Struct):
    context_id: Any = None


_arguments = msgspec.json.Decoder(_Arguments).decode


class _StoredContext(Struct):
    """Content of the row of a context, as far as this replica knows."""

    id_hash: bytes
    epoch: int = 1
    revision: int = 0
    """0 until there is a row."""
    state: ContextState | None = None
    unknown: Unknown = field(default_factory=dict)
    """The part of the row that a newer version has written, and this one cannot read."""
    writing: anyio.Lock = field(default_factory=anyio.Lock)


def context_id_of(params: Members, caller: Caller) -> str | None:
    """Return the context handle that a request names, in its ``_meta`` or its arguments."""
    named = envelope.text(caller.meta.get(eras.CONTEXT_KEY))
    if named is None and "arguments" in params and b"context_id" in bytes(params["arguments"]):
        try:
            found = _arguments(params["arguments"]).context_id
        except msgspec.DecodeError:
            return None
        named = found if isinstance(found, str) else None
    return named


def is_call(params: Members) -> bool:
    """Return whether a request is the call of a server's tool."""
    name = envelope.text(params.get("name")) if "arguments" in params or "name" in params else None
    return name is not None and name not in meta_definitions.RESERVED


class SharedContexts:
    """The contexts in the memory of this replica, each with the content of its row. See `ContextSharing`."""

    def __init__(self, table: ContextTable, handles: Handles, replica: str, counts: ClusterCounts) -> None:
        self.table, self._handles, self._replica, self._counts = table, handles, replica, counts
        self._kept: WeakKeyDictionary[SessionContext, _StoredContext] = WeakKeyDictionary()
        self._dirty: set[SessionContext] = set()
        self._used: set[bytes] = set()
        self._changed = anyio.Event()
        self._in_use = anyio.Event()
        """Set when a handle has changed, which another replica may need for its next request."""
        self._fresh: list[Handle] = []
        handles.created = self._fresh
        self.on_lost: Callable[[Session], None] = lambda session: None
        """Called with a session that has another home by now."""

    async def run(self) -> None:
        """Write the changes that nobody waits for, until cancelled."""
        while True:
            await self._changed.wait()
            with anyio.move_on_after(FLUSH_SECONDS):
                await self._in_use.wait()
                await anyio.sleep(ANSWER_SECONDS)
            self._changed, self._in_use = anyio.Event(), anyio.Event()
            await self.flush()
            if self._dirty:
                await anyio.sleep(AGAIN_SECONDS)
                self._changed.set()

    async def flush(self) -> None:
        """Write all that is not written yet, as far as the store can be reached."""
        for context in list(self._dirty):
            self._dirty.discard(context)
            if not await self._save_or_note(context):
                return

    async def keep_up(self, idle_seconds: float) -> None:
        """Note in the store which contexts were used, and forget those that nobody has used for a while."""
        used, self._used = self._used, set()
        try:
            if used:
                await in_thread(self.table.seen, used)
            await in_thread(self.table.forget_idle, idle_seconds)
        except StoreError:
            self._used |= used

    # Requests

    async def fetch(self, params: Members, caller: Caller) -> Members:
        """Have the handle that a request names in memory, as other replicas have left it.

        Returns the params as a server gets them. Raises `RequestError` if it is not known here, and the store
        is away.
        """
        if (context_id := context_id_of(params, caller)) is not None:
            await self._fetch(context_id, params, caller)
        return _without_home(params) if "requestState" in params else params

    async def _fetch(self, context_id: str, params: Members, caller: Caller) -> None:
        handle, id_hash = self._handles.get(context_id, caller.principal), hash_of(context_id)
        self._used.add(id_hash)
        if handle is not None and is_call(params):
            return
        try:
            row = await in_thread(self.table.get, id_hash)
        except StoreError:
            if handle is None:
                raise RequestError(INTERNAL_ERROR, LOOK_UP_FAILED) from None
            return
        if row is None or row.kind != HANDLE or row.principal != (caller.principal or NOBODY):
            return
        if handle is None:
            # Another request may have brought it while this one was waiting.
            handle = self._handles.get(context_id, caller.principal)
        if handle is None:
            handle = Handle(principal=caller.principal, secret=context_id)
            handle.rights = caller.rights
            try:
                self._take(handle, _StoredContext(id_hash), row)
            except msgspec.DecodeError:
                logger.warning("a context is unknown, because its row is damaged")
                return
            self._handles.take(handle)
            return
        kept = self._kept.get(handle)
        if kept is not None and kept.revision < row.revision:
            async with kept.writing:
                if kept.revision < row.revision:
                    self._merge(handle, kept, row)

    async def keep(self, params: Members, caller: Caller, result: bytes) -> bytes:
        """Keep the changes of a request; return its result, which says if a new handle is kept here only.

        A result that asks for input says where the call goes on: the server that asks may have kept the call
        in its memory, and this replica that a person has agreed to it.
        """
        unsaved = False
        if caller.era is Era.MODERN and (asking := await input_required(result)) is not None:
            result = _with_home(asking, self._replica) or result
        for handle in list(self._fresh):
            self._kept.setdefault(handle, _StoredContext(hash_of(handle.secret)))
            if not await self._save_or_note(handle):
                unsaved = unsaved or handle.secret.encode() in result
            if handle in self._fresh:
                self._fresh.remove(handle)
        if unsaved:
            result = _with_note(result)
        context: SessionContext | None = None
        if (context_id := context_id_of(params, caller)) is not None:
            context = self._handles.get(context_id, caller.principal)
        context = context or caller.session
        kept = None if context is None else self._kept.get(context)
        if context is None or kept is None:
            return result
        if isinstance(context, Session):
            self._used.add(kept.id_hash)
        if is_call(params) or not _must_wait(context, kept):
            self._note(context, at_once=not isinstance(context, Session))
            return result
        await self._save_or_note(context)
        return result

    def _note(self, context: SessionContext, *, at_once: bool = False) -> None:
        self._dirty.add(context)
        self._changed.set()
        if at_once:
            self._in_use.set()

    # Sessions

    async def opened(self, session_id: str, session: Session) -> None:
        """Write the row of a session that has just begun here, before its client learns its id."""
        kept = self._kept[session] = _StoredContext(hash_of(session_id))
        if not await self._save_or_note(session):
            logger.warning("a session is known to this replica only, because the store is away")
        self._used.add(kept.id_hash)

    def adopted(self, session: Session, row: ContextRow) -> None:
        """Note the row of a session that this replica has adopted, and give the session its state."""
        self._take(session, _StoredContext(row.id_hash, row.epoch + 1), row)

    async def written(self, session: Session) -> bool:
        """Write the state of a session; return whether its row has all of it."""
        self._dirty.discard(session)
        await self._save_or_note(session)
        return session in self._kept and session not in self._dirty

    def forget(self, session: Session) -> None:
        """Leave a session to the replica that adopts it."""
        self._kept.pop(session, None)
        self._dirty.discard(session)

    async def ended(self, session_id: str) -> None:
        """Delete the row of a session that its client has ended."""
        try:
            await in_thread(self.table.delete, hash_of(session_id))
        except StoreError as error:
            logger.debug("the row of an ended session stays for a while: %s", error)

    async def lose_adopted(self) -> None:
        """Give up the sessions that another replica has adopted."""
        sessions = {kept.id_hash: one for one, kept in self._kept.items() if isinstance(one, Session)}
        if not sessions:
            return
        try:
            gone = await in_thread(self.table.elsewhere, self._replica, list(sessions))
        except StoreError:
            return
        for id_hash in gone:
            self._lose(sessions[id_hash])

    def _lose(self, session: SessionContext) -> None:
        if isinstance(session, Session):
            self._counts.sessions_lost += session in self._kept
            self.forget(session)
            self.on_lost(session)

    # Rows

    def _take(self, context: SessionContext, kept: _StoredContext, row: ContextRow) -> None:
        state, kept.unknown = decoded(row.state)
        restore(state, context)
        kept.revision, kept.state = row.revision, state
        self._kept[context] = kept

    def _merge(self, context: SessionContext, kept: _StoredContext, row: ContextRow) -> None:
        """Take over the changes of another replica, and keep those of this one that are not written yet."""
        self._counts.stale += 1
        (theirs, kept.unknown), mine = decoded(row.state), state_of(context)
        if kept.state is not None and encoded(mine) != encoded(kept.state):
            restore(merged(kept.state, mine, theirs), context)
            self._note(context)
        else:
            restore(theirs, context)
        kept.revision, kept.epoch, kept.state = row.revision, row.epoch, theirs

    async def _save_or_note(self, context: SessionContext) -> bool:
        """Write the state of a context as `_save` does; return False if that has to be done later."""
        try:
            await self._save(context)
        except StoreError as error:
            logger.debug("a context is kept by this replica only for now: %s", error)
            self._note(context)
            return False
        return True

    async def _save(self, context: SessionContext) -> None:
        """Write the state of a context, if it has changed.

        Raises `StoreError` if the store cannot be written now.
        """
        kept = self._kept.get(context)
        if kept is None:
            return
        async with kept.writing:
            for _ in range(ATTEMPTS):
                state = state_of(context)
                if kept.revision and kept.state is not None and encoded(state) == encoded(kept.state):
                    return
                data = encoded(state, kept.unknown)
                if not kept.revision:
                    await in_thread(self.table.add, self._row(context, kept, data))
                    kept.revision, kept.state = 1, state
                    return
                update = partial(self.table.update, kept.id_hash, kept.revision, kept.epoch, data)
                if await in_thread(update):
                    kept.revision, kept.state = kept.revision + 1, state
                    return
                row = await in_thread(self.table.get, kept.id_hash)
                if row is None:
                    kept.revision = 0
                elif isinstance(context, Session) and row.epoch != kept.epoch:
                    self._lose(context)
                    return
                else:
                    self._merge(context, kept, row)
            self._note(context)

    def _row(self, context: SessionContext, kept: _StoredContext, state: bytes) -> ContextRow:
        of_session = isinstance(context, Session)
        return ContextRow(
            id_hash=kept.id_hash,
            tenant=ALL,
            kind=SESSION if of_session else HANDLE,
            principal=context.principal or NOBODY,
            home=self._replica if of_session else NOBODY,
            epoch=kept.epoch,
            hello=terms_of(context.hello) if isinstance(context, Session) else b"",
            state=state,
            revision=1,
            seen=0.0,
        )


def _must_wait(context: SessionContext, kept: _StoredContext) -> bool:
    """Return whether a context has changed in a part that somebody has set, or of which its list is made."""
    if kept.state is None:
        return True
    state = state_of(context)
    parts = WRITTEN_THROUGH if isinstance(context, Session) else (*WRITTEN_THROUGH, "shown")
    return any(getattr(state, name) != getattr(kept.state, name) for name in parts)


def _with_home(members: Members, replica: str) -> bytes | None:
    """Return a result that asks for input, with the replica at which its call goes on; None if it has one."""
    state = envelope.text(members["requestState"]) if "requestState" in members else None
    if state is not None and state.startswith(f"{replica}."):
        return None  # a parked call
    homed = f"{replica}{AT_HOME}" if state is None else f"{replica}{AT_HOME}={state}"
    return envelope.encode({**members, "requestState": envelope.raw(homed)})


def _without_home(params: Members) -> Members:
    """Return the params of a call that goes on, with the state that its server has given."""
    state = envelope.text(params["requestState"]) or ""
    _, at_home, given = state.partition(AT_HOME)
    if not at_home:
        return params
    others = {name: raw for name, raw in params.items() if name != "requestState"}
    return {**others, "requestState": envelope.raw(given[1:])} if given else others


def _with_note(result: bytes) -> bytes:
    """Return the result of a tool with a sentence about the store in it."""
    try:
        members = envelope.members(result)
        content = msgspec.json.decode(members["content"], type=list[msgspec.Raw])
    except (KeyError, msgspec.DecodeError):
        return result
    note = envelope.raw({"type": "text", "text": KEPT_HERE})
    return envelope.encode({**members, "content": envelope.raw([*content, note])})


WRITTEN_SECONDS: Final = 1.5
"""Time after which the records of another replica are in the store."""

TOGETHER_SECONDS: Final = 0.25
"""Time between two looks at the store: of the calls in between, the requests are read together."""

WAITING_MOST: Final = 4096
"""Calls that wait; of more, the first ones teach nothing."""

REQUESTS_READ, REQUESTS_READ_FOR_CALL, REQUESTS_READ_MOST = 40, 10, 500
"""Requests of one session, or of one owner, that are read: so many, and more for each of the calls that are
attributed together, since all replicas have answered others meanwhile."""

KEPT_MOST: Final = 2_000
"""Requests of other replicas in memory, some megabytes."""

CLOCK_SECONDS: Final = 0.25
"""Difference of the clocks of two replicas, up to which a request may seem later than its call."""


class StoredRequests:
    """Calls that wait for the requests of other replicas."""

    def __init__(self, records: RequestRecords) -> None:
        self._records = records
        self._waiting: deque[tuple[float, Unattributed]] = deque(maxlen=WAITING_MOST)
        self._added = anyio.Event()
        self._read: OrderedDict[str, RequestContext] = OrderedDict()
        """Requests of other replicas that were read lately, by id: each is read and decoded once."""

    def ask(self, call: Unattributed) -> None:
        """Attribute a call soon. Does not block."""
        self._waiting.append((anyio.current_time() + WRITTEN_SECONDS, call))
        self._added.set()

    async def run(self) -> None:
        """Attribute calls until cancelled."""
        while True:
            await self._added.wait()
            self._added = anyio.Event()
            while self._waiting:
                await anyio.sleep_until(self._waiting[0][0] + TOGETHER_SECONDS)
                due = list[Unattributed]()
                while self._waiting and self._waiting[0][0] <= anyio.current_time():
                    due.append(self._waiting.popleft()[1])
                await self._attribute(due)

    async def _attribute(self, calls: list[Unattributed]) -> None:
        """Attribute calls; the requests of each session, and of each owner, are read once for all of them."""
        together: dict[tuple[str | None, str | None], list[Unattributed]] = defaultdict(list)
        for call in calls:
            together[call.session, call.principal].append(call)
        for key, some in together.items():
            since = min(call.began for call in some) - WINDOW_SECONDS
            until = max(call.began for call in some) + CLOCK_SECONDS
            limit = min(REQUESTS_READ + REQUESTS_READ_FOR_CALL * len(some), REQUESTS_READ_MOST)
            mine = {one.id: one for one in self._records.recent(WINDOW_SECONDS)}
            known = mine.keys() | self._read.keys()
            for one in await self._records.stored(since, until, limit, *key, known):
                keep_latest(self._read, one.id, one, KEPT_MOST)
            found = _Requests([*self._read.values(), *mine.values()], *key)
            for call in some:
                call.attribute(found.likely(call.began))


class _Requests:
    """The requests of one session, or of one owner without a session, the earliest first."""

    def __init__(self, found: list[RequestContext], session: str | None, owner: str | None) -> None:
        belong = [one for one in found if (one.session, one.owner) == (session, owner)]
        self._found = sorted(belong, key=lambda one: one.time)
        self._times = [one.time for one in self._found]

    def likely(self, began: float) -> Iterator[RequestContext]:
        """Iterate over the requests for which a call may have been made, the most likely first.

        The latest one before the call comes first. One that seems later may be so by the clocks alone.
        """
        after = bisect_right(self._times, began)
        for at in range(after - 1, bisect_left(self._times, began - WINDOW_SECONDS) - 1, -1):
            yield self._found[at]
        yield from self._found[after : bisect_right(self._times, began + CLOCK_SECONDS)]
