"""HTTP to servers at a URL: connection pool, redirects, bounded bodies, errors; the link of the modern era.

In the modern era, each request is one POST on a shared client. Requests share nothing but the connection
pool, so a refused connection, a reset or a timeout fails its own request and no other.

A body that arrives faster than it is processed would keep the event loop busy, as there is always more to
read. So after some work without a pause, reading a body sleeps for longer than that, and the other tasks get
most of the time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from http.cookiejar import Cookie, CookieJar
from typing import Final

import anyio
import httpx2
from msgspec import UNSET

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.downstream import PLAIN, HeaderMap, Notify, Outgoing, in_words, without_credentials
from mcp_context_proxy.downstream.jsonrpc import Peer, members_of_notification, result_of
from mcp_context_proxy.errors import (
    BadAnswerError,
    CallInterruptedError,
    CallTimeoutError,
    DownstreamError,
    ServerUnavailableError,
)
from mcp_context_proxy.oauth.bearer import client_with
from mcp_context_proxy.protocol import envelope, eras, headers
from mcp_context_proxy.protocol.envelope import NO_PARAMS, Members, RequestId
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.framing import EventFramer, Oversized, ServerSentEvent, gate
from mcp_context_proxy.protocol.strangers import LINE_CHARACTERS, one_line
from mcp_context_proxy.system.threads import in_task

logger = logging.getLogger(__name__)

CONNECTIONS = 256
"""Connections to one server that may be open at a time; further requests wait for one of them."""

KEPT_ALIVE = 32
"""Idle connections that are kept for the next request."""

KEPT_ALIVE_SECONDS = 4.0
"""Time for which an idle connection is kept.

Most servers close idle connections after 5 s or more, and a request that is sent at that moment is lost:
nobody knows whether it was read. A shorter time costs agents a new connection for nearly each call."""

STATUS_SECONDS: Final = 5.0
"""Time limit of the request for the HTTP status of a server that failed."""

STREAM_WATCH: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, option), value)
        for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
        if hasattr(socket, option)
    ),
)
"""Options of an event stream's connection: after a minute of silence the system asks whether its other end is
there, and a minute later it is given up. By itself Linux asks after two hours."""

METHOD_KEPT = frozenset({307, 308})
"""Redirects after which a request is repeated with its method and body; after others it would be a GET."""

REDIRECTS = 2
"""Redirects of one request that are followed. A server that redirects has not run the request."""

COOKIES, COOKIE_BYTES = 32, 4096
"""Cookies of one server that are kept, and bytes of one, as browsers take: balancers set one or two."""

PIECE_BYTES = 64 << 10
"""Bytes of a body that are processed at a time: compressed bodies arrive by the megabyte."""

WORK_SECONDS = 0.005
"""Work without a pause; other tasks wait no longer than a few times that."""

REST = 3
"""Length of a pause, as a multiple of the work before it. 16 MiB of an honest body take one or two pauses."""

PIECES = 128
"""Pieces without a pause, however little work they are here: receiving each takes some work, too."""

STATED_BYTES = 16_384
"""Longer bodies are pages, and state no error in a line."""

_STATED_AS: Final = ("error_description", "message", "detail", "title", "error")
"""Members that state an error, the best first."""

PASSING = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses of a condition that passes sooner or later."""

_ADVICE: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "it refuses the credentials that it was given, which may have expired",
    HTTPStatus.FORBIDDEN: "it does not allow this with the credentials it was given",
    HTTPStatus.NOT_FOUND: "nothing is there; check the path of its URL in the configuration",
    HTTPStatus.METHOD_NOT_ALLOWED: "nothing takes calls there; check its URL in the configuration",
}


async def client_of(config: ServerConfig, limits: Limits, auth: httpx2.Auth | None) -> httpx2.AsyncClient:
    """Return a client for a server at a URL. Nothing is sent yet; the caller closes it."""
    return await client_with(
        config.tls,
        auth=auth,
        headers=config.headers,
        cookies=_FewCookies(),
        timeout=httpx2.Timeout(limits.connect_seconds, read=None),
        limits=httpx2.Limits(
            max_connections=CONNECTIONS,
            max_keepalive_connections=KEPT_ALIVE,
            keepalive_expiry=KEPT_ALIVE_SECONDS,
        ),
        follow_redirects=True,
        max_redirects=REDIRECTS,
        event_hooks={
            "response": [_redirects_within_origin(config.name), _packed_once(config.name), _watched]
        },
    )


class _FewCookies(CookieJar):
    """Cookies of a server, bounded: all of them are sent with each request."""

    def set_cookie(self, cookie: Cookie) -> None:
        """Keep a cookie that is not too large; of many, the first and their replacements."""
        known = any(
            (one.domain, one.path, one.name) == (cookie.domain, cookie.path, cookie.name) for one in self
        )
        if len(cookie.name) + len(cookie.value or "") <= COOKIE_BYTES and (known or len(self) < COOKIES):
            super().set_cookie(cookie)


def refusal(error: httpx2.HTTPError, server: str, url: str) -> ServerUnavailableError | None:
    """Return the error of a request that was not sent; None if the server may have read the request."""
    if isinstance(error, httpx2.PoolTimeout):
        return ServerUnavailableError(server, "busy", "all connections to it are in use; try again")
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        cause = f"{without_credentials(url)}: {in_words(str(error)) or 'no answer'}"
        return ServerUnavailableError(server, "unreachable", cause)
    return None


def fail_request(peer: Peer, request_id: RequestId, error: Exception, url: str) -> None:
    """Fail a request by the error of its exchange; after an interruption the server may have run it."""
    if isinstance(error, httpx2.HTTPError) and (refused := refusal(error, peer.server, url)):
        error = refused
    if isinstance(error, DownstreamError):
        peer.fail(request_id, error)
    else:
        peer.interrupt(request_id, f"broke off ({described(error)})")


def described(error: Exception) -> str:
    lost = isinstance(error, httpx2.NetworkError)  # such as by a server that demands another certificate
    return in_words(str(error)) or ("the connection was reset" if lost else type(error).__name__)


def _redirects_within_origin(server: str) -> Callable[[httpx2.Response], Awaitable[None]]:
    """Return a hook that refuses redirects, except to another path of the same server."""

    async def refuse(response: httpx2.Response) -> None:
        if not response.has_redirect_location:
            return
        here, location = response.request.url, response.headers["location"]
        try:
            there = here.join(location)
        except httpx2.InvalidURL:
            there = None
        kept = response.status_code in METHOD_KEPT or response.request.method == "GET"
        if there is not None and _origin(there) == _origin(here) and there != here and kept:
            return
        address = str(location if there is None else there)[:LINE_CHARACTERS]
        text = f"with HTTP status {response.status_code}, a redirect to {address}, which is not followed"
        raise BadAnswerError(server, text, response.status_code)

    return refuse


def _packed_once(server: str) -> Callable[[httpx2.Response], Awaitable[None]]:
    """Return a hook that refuses bodies that were compressed more than once.

    Unpacking one layer gives pieces that are read with pauses. Of several, the inner ones may take minutes
    over a few kilobytes without giving any piece, and nothing else runs meanwhile.
    """

    async def refuse(response: httpx2.Response) -> None:
        codings = response.headers.get_list("content-encoding", split_commas=True)
        if sum(coding.strip().lower() != "identity" for coding in codings) > 1:
            raise BadAnswerError(server, "with content that is compressed more than once")

    return refuse


async def _watched(response: httpx2.Response) -> None:
    """Have the system end an event stream whose other end is gone, as after a machine has slept.

    Nothing is sent on it from here, so it would never be noticed: the server's announcements would end.
    """
    stream = response.extensions.get("network_stream")
    if stream is None or not response.headers.get("content-type", "").startswith("text/event-stream"):
        return
    connected = stream.get_extra_info("socket")
    for level, option, value in STREAM_WATCH if connected is not None else ():
        with contextlib.suppress(OSError):
            connected.setsockopt(level, option, value)


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    default = 443 if url.scheme == "https" else 80
    return url.scheme, url.host, url.port or default


async def read(response: httpx2.Response, server: str, limit: int) -> bytes:
    """Return the whole body.

    Raises `BadAnswerError` if it has more bytes than `limit`, and `httpx2.HTTPError` if it broke off.
    """
    body = bytearray()

    async def take(piece: bytes) -> bool:
        body.extend(piece)
        if len(body) > limit:
            raise BadAnswerError(server, f"with more than {limit:,} bytes, the limit of a message")
        return False

    await _read_pieces(response, take)
    return bytes(body)


async def read_events(
    response: httpx2.Response, limit: int, take: Callable[[ServerSentEvent | Oversized], Awaitable[bool]]
) -> bool:
    """Pass the events of a body to `take` until it returns True; return False if it never does.

    Raises `httpx2.HTTPError` if the stream broke off.
    """
    framer = EventFramer(limit)

    async def take_piece(piece: bytes) -> bool:
        for event in framer.feed(piece):
            if await take(event):
                return True
        return False

    return await _read_pieces(response, take_piece)


async def _read_pieces(response: httpx2.Response, take: Callable[[bytes], Awaitable[bool]]) -> bool:
    worked, pieces = 0.0, 0
    async for chunk in response.aiter_bytes():
        for start in range(0, len(chunk), PIECE_BYTES):
            await gate.wait()
            began = time.perf_counter()
            if await take(chunk[start : start + PIECE_BYTES]):
                return True
            worked, pieces = worked + time.perf_counter() - began, pieces + 1
            if worked > WORK_SECONDS or pieces > PIECES:
                await anyio.sleep(max(REST * worked, WORK_SECONDS))
                worked, pieces = 0.0, 0
    return False


def without_message(server: str, response: httpx2.Response, body: bytes = b"") -> BadAnswerError:
    """Return the error of a response without a message, by its status and its body."""
    status, seconds = response.status_code, response.headers.get("retry-after", "")[:9]
    wait = float(seconds) if status in PASSING and seconds.isdecimal() else 0.0
    if status < HTTPStatus.BAD_REQUEST:
        advice = "the program there does not speak MCP as it should; check its URL in the configuration"
    elif status in PASSING:
        advice = f"try again in {f'{seconds} s' if seconds.isdecimal() else 'a while'}"
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        advice = "it has a fault that only its operator can fix"
    else:
        advice = _ADVICE.get(status, "it refuses the request; check its URL in the configuration")
    kind = content_kind(response)
    if words := _stated(body, kind):
        said = f' and "{words}"'
    else:
        said = f" and no message ({kind or 'no content'})" if status < HTTPStatus.BAD_REQUEST else ""
    return BadAnswerError(server, f"with HTTP status {status}{said}: {advice}", status, wait)


def content_kind(response: httpx2.Response) -> str:
    """Return the media type of a response, without parameters."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _stated(body: bytes, kind: str) -> str:
    """Return the error that a body states, as OAuth and web frameworks write it; empty if it states none."""
    if len(body) > STATED_BYTES:
        return ""
    if kind == "text/plain":
        return one_line(body.decode("utf-8", "replace"), LINE_CHARACTERS // 2)
    said = envelope.object_of(body)
    said = error if isinstance(error := said.get("error"), dict) else said
    found = (said.get(key) for key in _STATED_AS)
    return one_line(next((one for one in found if isinstance(one, str)), ""), LINE_CHARACTERS // 2)


class ModernHttp:
    """A modern-era server at a URL. Implements `Link`. Nothing is sent until the first request."""

    in_flight = ()

    def __init__(
        self, config: ServerConfig, limits: Limits, client: httpx2.AsyncClient, on_notification: Notify
    ):
        self.era = Era.MODERN
        self.server, self._url, self._client = config.name, config.url or "", client
        self._limits, self._on_notification = limits, on_notification
        self._call_seconds = config.call_timeout
        self._next_id = 0
        self.header_maps: dict[str, HeaderMap] | None = {}

    def earlier_callers(self, seconds: float) -> Sequence[str | None]:
        """Return nobody: each request has a response of its own; see `Link.earlier_callers`."""
        del seconds
        return ()

    async def request(self, method: str, params: Members = NO_PARAMS, outgoing: Outgoing = PLAIN) -> bytes:
        """Send a request and return its encoded result unchanged; see `Link.request`."""
        await in_task()
        self._next_id += 1
        request_id = self._next_id
        token = request_id if outgoing.wants_progress else None
        down = eras.fit_params_to_server(params, Era.MODERN, outgoing, token)
        subject = outgoing.subject or method
        seconds = outgoing.timeout if outgoing.timeout is not None else self._call_seconds
        give_up_at = anyio.current_time() + max(seconds, self._limits.call_max_seconds)
        with anyio.move_on_after(seconds) as scope:

            def note(name: str, members: Members) -> None:
                if name == "notifications/progress":
                    scope.deadline = min(anyio.current_time() + seconds, give_up_at)
                (outgoing.on_notification or self._on_notification)(name, members)

            try:
                body = envelope.request(request_id, method, down)
                sent = self._headers(method, down)
                async with self._client.stream("POST", self._url, content=body, headers=sent) as response:
                    if content_kind(response) == "text/event-stream" and response.is_success:
                        return await self._read_events(response, request_id, note)
                    body = await read(response, self.server, self._limits.message_bytes)
                    return await self._read_reply(body, response)
            except httpx2.HTTPError as error:
                cause = f"broke off ({described(error)})"
                interrupted = CallInterruptedError(self.server, subject, cause)
                raise refusal(error, self.server, self._url) or interrupted from error
        raise CallTimeoutError(self.server, subject, seconds)

    async def notify(self, method: str, params: Members = NO_PARAMS) -> None:
        """Do nothing: the modern era has no notifications from client to server over HTTP."""
        del params
        logger.debug("%s: %s has no modern form over HTTP", self.server, method)

    def _headers(self, method: str, params: Members) -> dict[str, str]:
        sent = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "mcp-protocol-version": eras.MODERN_VERSION,
            "mcp-method": method,
        }
        name = envelope.text(params.get(headers.NAMED.get(method, "")))
        if name is not None:
            sent["mcp-name"] = headers.encoded(name)
            header_map = self.header_maps.get(name) if self.header_maps and method == "tools/call" else None
            if header_map:
                sent |= headers.argument_headers(header_map, envelope.object_of(params.get("arguments")))
        return sent

    async def _read_events(self, response: httpx2.Response, request_id: int, note: Notify) -> bytes:
        reply, unread = envelope.Envelope(), None

        async def take(event: ServerSentEvent | Oversized) -> bool:
            nonlocal reply, unread
            head = tail = b""
            try:
                if isinstance(event, Oversized):
                    head, tail = event.head, event.tail
                    raise BadAnswerError(self.server, f"with {event}")
                if event.name != b"message" or not event.data:
                    return False
                head = tail = event.data
                message = await self._decode(event.data)
            except BadAnswerError as error:
                unread = error
                if envelope.salvage_id(head, tail) == request_id:
                    raise
                return False
            if message.method is UNSET:
                reply = message
                return message.id == request_id
            if message.id is UNSET:
                note(message.method, members_of_notification(message.params))
            return False

        if not await read_events(response, self._limits.sse_event_bytes, take):
            raise unread or httpx2.RemoteProtocolError("the event stream ended without an answer")
        return result_of(self.server, reply)

    async def _read_reply(self, body: bytes, response: httpx2.Response) -> bytes:
        message, status = envelope.Envelope(), response.status_code
        if status < HTTPStatus.BAD_REQUEST and body.lstrip()[:1] in (b"{", b"["):
            message = await self._decode(body)
        elif status >= HTTPStatus.BAD_REQUEST:
            with contextlib.suppress(envelope.MalformedError):
                message = envelope.decode_from_server(body)
        # An OAuth error is no JSON-RPC error: its "error" is a word.
        is_error = message.error is not UNSET and envelope.starts_with(message.error, b"{")
        if not is_error and (message.result is UNSET or status >= HTTPStatus.BAD_REQUEST):
            raise without_message(self.server, response, body)
        return result_of(self.server, message)

    async def _decode(self, data: bytes) -> envelope.Envelope:
        try:
            return await envelope.decode_any(data, envelope.decode_from_server)
        except envelope.MalformedError as error:
            raise BadAnswerError(self.server, f"with a message that cannot be read ({error})") from None


def header_map(definition: bytes) -> tuple[str, HeaderMap, str | None]:
    """Return a tool's name, its header map, and the reason if that is invalid."""
    if b"x-mcp-header" not in definition and b"\\u00" not in definition:
        return "", {}, None
    try:
        tool = json.loads(definition)
        if not isinstance(tool, dict):
            return "", {}, None
        name, schema = str(tool.get("name")), tool.get("inputSchema")
        problem = headers.fault_in(schema)
        return (name, {}, problem) if problem else (name, headers.header_map_of(schema), None)
    except (ValueError, RecursionError):
        # A number beyond all bounds, or a nesting: nothing else of the definition can be relied on.
        return "", {}, "its x-mcp-header cannot be read"


async def http_status(config: ServerConfig) -> int | None:
    """Return the HTTP status of a URL for a first message; None without a response.

    A connection hides it: after one transport is refused, the next one is tried.
    """
    hello = {
        "protocolVersion": eras.HANDSHAKE_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "mcp-context-proxy", "version": "check"},
    }
    sent = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    sent |= config.headers
    body = None if config.transport == "sse" else envelope.request(1, "initialize", hello)
    method, url = "GET" if body is None else "POST", config.url or ""
    try:
        async with (
            await client_with(config.tls, timeout=STATUS_SECONDS) as client,
            client.stream(method, url, content=body, headers=sent) as response,
        ):
            return response.status_code
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError):
        return None
