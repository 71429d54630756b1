"""Subscriptions of modern clients: one ``subscriptions/listen`` is one stream of notifications.

The stream begins with an acknowledgement of what will be sent, and each notification names the request that
it belongs to. All of them say only that something has changed, so one that waits to be sent is not queued a
second time: a client that does not read costs no more than its own wishes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio
import anyio.lowlevel
import msgspec

from mcp_context_proxy.downstream.inbound import RESOURCE_UPDATED
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    Members,
    RequestError,
    RequestId,
)
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.server.notifications import (
    PROMPTS_CHANGED,
    RESOURCES_CHANGED,
    TOOLS_CHANGED,
    ChangeNotifier,
    Send,
)
from mcp_context_proxy.server.resources import TOO_MANY, Resources, too_many
from mcp_context_proxy.system.flights import assigned
from mcp_context_proxy.trust.tokens import ACTING, Principal

SUBSCRIPTION_STREAMS: Final = 1024
"""Streams of all clients together: as many as connections over HTTP."""

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"

_WANTED: Final = {
    "toolsListChanged": TOOLS_CHANGED,
    "promptsListChanged": PROMPTS_CHANGED,
    "resourcesListChanged": RESOURCES_CHANGED,
}


class _Filter(msgspec.Struct):
    """The notifications that a client asks for, in the protocol's words."""

    toolsListChanged: bool | None = None  # noqa: N815
    promptsListChanged: bool | None = None  # noqa: N815
    resourcesListChanged: bool | None = None  # noqa: N815
    resourceSubscriptions: list[str] | None = None  # noqa: N815


class _Stream:
    """One stream: the wishes of its client, and the notifications that wait."""

    def __init__(self, methods: frozenset[str], uris: frozenset[str], rights: Principal) -> None:
        self._methods, self._uris, self.rights = methods, uris, rights
        self.waiting: dict[tuple[str, str | None], Members] = {}
        self.changed = anyio.Event()
        self.ended = False

    def put(self, method: str, params: Members) -> None:
        uri = envelope.text(params.get("uri")) if method == RESOURCE_UPDATED else None
        if method in self._methods or (uri is not None and uri in self._uris):
            self.waiting[method, uri] = params
            self.changed.set()

    def end(self) -> None:
        self.ended = True
        self.changed.set()


class Subscriptions:
    """The open streams of all modern clients."""

    def __init__(self, changes: ChangeNotifier, resources: Resources) -> None:
        """Take the events of `changes`; the resources that a client names are watched meanwhile."""
        self._resources = resources
        self._streams: set[_Stream] = set()
        changes.publish, changes.subscribers = self._publish, self._principals

    async def listen(self, request_id: RequestId, params: Members, rights: Principal, send: Send) -> bytes:
        """Serve one stream by `send`, which waits while the client does not read, until `close`.

        Returns the result that tells the client that the stream has ended on purpose.

        Raises:
            RequestError: there is no such stream for this client.
        """
        wanted = _filter(params)
        uris = tuple(wanted.resourceSubscriptions or ())
        if too_many(uris):
            raise RequestError(INVALID_PARAMS, TOO_MANY)
        if rights.limited:
            with assigned(ACTING, rights):
                hidden = [uri for uri in uris if not self._resources.exists(uri)]
            if hidden:
                raise RequestError(INVALID_PARAMS, f"unknown resource {hidden[0]!r}")
        if len(self._streams) >= SUBSCRIPTION_STREAMS:
            raise RequestError(INTERNAL_ERROR, f"there are {SUBSCRIPTION_STREAMS:,} subscriptions already")
        flags = {name: True for name in _WANTED if getattr(wanted, name)}
        stream = _Stream(frozenset(_WANTED[name] for name in flags), frozenset(uris), rights)
        self._streams.add(stream)
        meta: Members = {eras.SUBSCRIPTION_KEY: envelope.raw(request_id)}
        own: Members = {"_meta": envelope.raw(meta)}
        try:
            async with self._resources.watching(uris):
                honored = {**flags, **({"resourceSubscriptions": uris} if uris else {})}
                await send(ACKNOWLEDGED, {"notifications": envelope.raw(honored), **own})
                while not stream.ended or stream.waiting:
                    if not stream.waiting:
                        await stream.changed.wait()
                        stream.changed = anyio.Event()
                        continue
                    method, uri = next(iter(stream.waiting))
                    told = stream.waiting.pop((method, uri))
                    named = {**eras.meta_of(told), **meta}
                    await send(method, {**told, "_meta": envelope.raw(named)})
        finally:
            self._streams.discard(stream)
        return eras.fit_own_to_client("subscriptions/listen", own, Era.MODERN)

    def close(self) -> None:
        """End every stream, each with its result."""
        for stream in self._streams:
            stream.end()

    def _principals(self) -> set[Principal]:
        return {stream.rights for stream in self._streams}

    async def _publish(self, method: str, params: Members, concerns: Callable[[Principal], bool]) -> None:
        for stream in self._streams:
            if concerns(stream.rights):
                stream.put(method, params)
        await anyio.lowlevel.checkpoint()


def _filter(params: Members) -> _Filter:
    try:
        return msgspec.json.decode(params["notifications"], type=_Filter)
    except (KeyError, msgspec.DecodeError):
        text = "notifications must be an object, with true for each list, and the resourceSubscriptions"
        raise RequestError(INVALID_PARAMS, text) from None
