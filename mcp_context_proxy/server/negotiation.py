"""The protocol's own methods: initialize, discover, ping, and subscriptions of modern clients.

The stream begins with an acknowledgement of what will be sent, and each notification names the request that
it belongs to. All of them say only that something has changed, so one that waits to be sent is not queued a
second time: a client that does not read costs no more than its own wishes.

A client of the handshake era opens a session by ``initialize``, and both agree on a version. One of the
modern era may ask ``server/discover``, and each of its requests states a version. All fronts share one
`Negotiation`; the requests that it lets pass are the gateway's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
import anyio.lowlevel
import msgspec
from msgspec import Raw

from mcp_context_proxy.config.host_profiles import shows_instructions
from mcp_context_proxy.context.delivery import SessionIntroduction
from mcp_context_proxy.context.session import Given, Session
from mcp_context_proxy.downstream.inbound import ACKNOWLEDGED, RESOURCE_UPDATED
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    Members,
    RequestError,
    RequestId,
)
from mcp_context_proxy.protocol.eras import Era, Hello
from mcp_context_proxy.protocol.strangers import DATA_LEVELS
from mcp_context_proxy.server.gateway import Gateway, params_fault
from mcp_context_proxy.server.notifications import (
    PROMPTS_CHANGED,
    RESOURCES_CHANGED,
    TOOLS_CHANGED,
    ChangeNotifier,
    Send,
)
from mcp_context_proxy.server.resources import TOO_MANY, Resources, too_many
from mcp_context_proxy.system.threads import assigned
from mcp_context_proxy.trust import ACTING, Principal

SUBSCRIPTION_STREAMS: Final = 1024
"""Streams of all clients together: as many as connections over HTTP."""

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
        """Take the events of `changes` once there is a stream; the resources that it names are watched."""
        self._changes, self._resources = changes, resources
        self._streams: set[_Stream] = set()

    async def listen(self, request_id: RequestId, params: Members, rights: Principal, send: Send) -> bytes:
        """Serve one stream by `send`, which waits while the client does not read, until `close`.

        Returns the result that tells the client that the stream has ended on purpose. Raises `RequestError`
        if there is no such stream for this client.
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
        self._changes.publish, self._changes.subscribers = self._publish, self._principals
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
        return eras.fit_own_to_client(LISTEN, own, Era.MODERN)

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


INITIALIZE: Final = "initialize"
PING: Final = "ping"
DISCOVER: Final = "server/discover"
LISTEN: Final = "subscriptions/listen"
"""Its response never ends by itself; over HTTP, a header has to name it."""

SERVED: Final = ("2024-11-05", "2025-03-26", "2025-06-18", eras.HANDSHAKE_VERSION)
"""Versions of the handshake era that can be agreed on; one that asks for another is offered the last."""

TOO_EARLY: Final = f"initialize comes first, or each request names its version in _meta ({eras.VERSION_KEY})"

EXTENSIONS: Final[Mapping[str, Any]] = {
    eras.OWN_PREFIX + "query-lists": {"queryKey": eras.QUERY_KEY, "contextKey": eras.CONTEXT_KEY}
}
"""Tells clients that lists can be asked for by query, and under which ``_meta`` keys."""

SKILLS: Final[Mapping[str, Any]] = {eras.SKILLS_EXTENSION: {"directoryRead": True}}
"""Declares skills, to modern clients only: the extension is one of that era."""

_CHANGING: Final = {"listChanged": True}
_CAPABILITIES: Final[Mapping[str, Any]] = {
    "logging": {},
    "prompts": _CHANGING,
    "resources": {"subscribe": True, **_CHANGING},
    "tools": _CHANGING,
    "completions": {},
}
_DECLARED: Final[Mapping[Era, Mapping[str, Any]]] = {
    # The handshake era knows no extensions but MCP Apps, only experiments.
    Era.HANDSHAKE: {**_CAPABILITIES, "experimental": EXTENSIONS},
    Era.MODERN: {**_CAPABILITIES, "extensions": {**EXTENSIONS, **SKILLS, eras.TASKS_EXTENSION: {}}},
}


def _declared(era: Era, client: Raw | None) -> Raw:
    """Return our capabilities, with MCP Apps for a client that shows them: some hosts show none without."""
    ours = _DECLARED[era]
    if not eras.shows_apps(client):
        return envelope.raw(ours)
    return envelope.raw({**ours, "extensions": {**ours.get("extensions", {}), **eras.APPS}})


class Negotiation:
    """Introduces the proxy to clients, and tells the era of each request."""

    def __init__(
        self,
        *,
        gateway: Gateway,
        subscriptions: Subscriptions,
        introduction: Callable[[bool], SessionIntroduction],
        header_schema: Callable[[str, bool], dict[str, Any] | None],
    ) -> None:
        """Stand in front of a gateway.

        `introduction` returns the text about the proxy that hosts give to their models, as it is at the
        moment, and is told whether this one does. `header_schema` returns the input schema of a tool whose
        arguments are repeated in headers, of the listed ones alone if it is told so, and None for any other.
        """
        self.gateway, self.subscriptions = gateway, subscriptions
        self._introduction, self.header_schema = introduction, header_schema

    def initialize(self, params: Members, rights: Principal) -> tuple[bytes, Session]:
        """Return the result of ``initialize``, and the session that it opens, which knows the rules in it.

        Raises `RequestError` if the params are not those of the method.
        """
        hello = _hello(params)
        rights = self.gateway.profiles.of_client(rights, hello.client_info)
        introduction = self._introduction_to(rights, hello.client_info)
        session = Session(
            principal=rights.name,
            rights=rights,
            hello=hello,
            delivered=dict(introduction.given),
            introduced=set(introduction.servers),
        )
        return _introduced(hello, introduction.text), session

    def initialize_again(self, params: Members, rights: Principal) -> bytes:
        """Return the result of a further ``initialize`` in an open session, which stays as it is."""
        hello = _hello(params)
        return _introduced(hello, self._introduction_to(rights, hello.client_info).text)

    def _introduction_to(self, rights: Principal, client_info: Raw | None) -> SessionIntroduction:
        with assigned(ACTING, rights):
            return self._introduction(shows_instructions(eras.name_of(client_info) or ""))

    def _rights_of(self, params: Members, rights: Principal) -> Principal:
        """Return the rights of a modern request, with the limits of its client's profile."""
        return self.gateway.profiles.of_client(rights, eras.meta_of(params).get(eras.CLIENT_INFO_KEY))

    async def listen(self, request_id: RequestId, params: Members, rights: Principal, send: Send) -> bytes:
        """Serve a stream of notifications; see `Subscriptions.listen`."""
        rights = self._rights_of(params, rights)
        return await self.subscriptions.listen(request_id, params, rights, send)

    def era_of(self, method: str, params: Members, meta: Members, session: Session | None) -> Era:
        """Return the era of a request, whose ``_meta`` is decoded, of a client with this session, if any.

        Raises `RequestError` if it is made in none that is served, or too early.
        """
        version = meta.get(eras.VERSION_KEY)
        if version is None:
            if not envelope.starts_with(params.get("_meta", b"null"), b"{n"):
                raise RequestError(INVALID_PARAMS, "_meta must be an object")
            if session is None and method in self.gateway.methods:
                raise RequestError(INVALID_PARAMS, TOO_EARLY)
            return Era.HANDSHAKE
        if eras.CLIENT_CAPABILITIES_KEY not in meta:
            raise RequestError(INVALID_PARAMS, f"_meta must have {eras.CLIENT_CAPABILITIES_KEY}")
        if (said := envelope.text(version)) is None:
            raise RequestError(INVALID_PARAMS, f"{eras.VERSION_KEY} must be a string")
        check_version(said)
        return Era.MODERN

    def discover(self, params: Members, rights: Principal, given: Given | None = None) -> bytes:
        meta = eras.meta_of(params)
        introduction = self._introduction_to(self._rights_of(params, rights), meta.get(eras.CLIENT_INFO_KEY))
        if given is not None:
            given.update(introduction.given)
        members: Members = {
            "supportedVersions": envelope.raw([eras.MODERN_VERSION]),
            "capabilities": _declared(Era.MODERN, meta.get(eras.CLIENT_CAPABILITIES_KEY)),
            "instructions": envelope.raw(introduction.text),
        }
        return eras.fit_own_to_client(DISCOVER, members, Era.MODERN)

    def answer(
        self, method: str, params: Members, era: Era, rights: Principal, given: Given | None = None
    ) -> bytes | None:
        """Return the result of a method that needs no more than this; None if it is not one of those.

        The rules in it are noted in `given`. Raises `RequestError` if the params are not those of the method.
        """
        own = (DISCOVER, LISTEN) if era is Era.MODERN else (PING,)
        if method not in own:
            return None
        fault = params_fault(method, params, modern=era is Era.MODERN)
        if fault is not None:
            raise RequestError(INVALID_PARAMS, fault)
        if method == LISTEN:
            return None
        return self.discover(params, rights, given) if method == DISCOVER else b"{}"


def _introduced(hello: Hello, instructions: str) -> bytes:
    return envelope.encode(
        {
            "protocolVersion": hello.version,
            "capabilities": _declared(Era.HANDSHAKE, hello.capabilities),
            "serverInfo": eras.SERVER_INFO,
            "instructions": instructions,
        }
    )


def check_version(version: str) -> None:
    """Refuse a version that is not one of the modern era; raises `RequestError` if it is none."""
    if version != eras.MODERN_VERSION:
        data = {"supported": [eras.MODERN_VERSION], "requested": version}
        raise RequestError(eras.UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def _hello(params: Members) -> Hello:
    """Read the params of ``initialize``, and choose the version."""
    version = envelope.text(params.get("protocolVersion"))
    if version is None:
        raise RequestError(INVALID_PARAMS, "initialize needs protocolVersion, a string")
    for name in ("capabilities", "clientInfo"):
        if not envelope.starts_with(params.get(name, b""), b"{"):
            raise RequestError(INVALID_PARAMS, f"initialize needs {name}, an object")
        if (size := len(params[name])) > envelope.TAKEN_APART_BYTES:
            allowed = f"{envelope.TAKEN_APART_BYTES:,} are allowed"
            raise RequestError(INVALID_PARAMS, f"{name} of initialize has {size:,} bytes; {allowed}")
        # A modern server, which others use as well, gets them with each request.
        if (fault := envelope.unreadable(bytes(params[name]), DATA_LEVELS)) is not None:
            raise RequestError(INVALID_PARAMS, f"{name} of initialize cannot be passed on: {fault}")
    said = envelope.members(params["clientInfo"])
    if envelope.text(said.get("name")) is None or envelope.text(said.get("version")) is None:
        raise RequestError(INVALID_PARAMS, "clientInfo needs a name and a version, strings")
    agreed = version if version in SERVED else eras.HANDSHAKE_VERSION
    # Copies, because a part of a message keeps all of it in memory.
    return Hello(agreed, *(Raw(bytes(params[name])) for name in ("capabilities", "clientInfo")))
