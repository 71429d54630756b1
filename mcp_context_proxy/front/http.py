"""The HTTP front: streamable HTTP in both eras at ``/mcp``, HTTP+SSE at ``/sse``, and the probes.

They are asked without a token and under any Host, because a balancer asks by address. So they tell numbers
and words of ours alone: no name of a server, path, variable or principal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import anyio
import uvicorn
from msgspec import Struct
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from mcp_context_proxy.config import Limits
from mcp_context_proxy.front.auth import (
    HEALTH_PATH,
    PROVEN_KEY,
    RIGHTS_KEY,
    Guard,
    Policy,
    principal_of,
    rights_of,
)
from mcp_context_proxy.front.http_connections import (
    HEADER_BYTES,
    BoundedConnection,
    WriteBacklog,
    connection_class,
)
from mcp_context_proxy.front.http_requests import PARAMETER, AdmissionRules, InProfile, WholeBodies
from mcp_context_proxy.front.http_sessions import MESSAGES_PATH, EventStreams, UnknownSessions
from mcp_context_proxy.front.streamable_http import StreamableHttp
from mcp_context_proxy.server.negotiation import Negotiation
from mcp_context_proxy.system.process import Bucket, connections_for_hosts
from mcp_context_proxy.system.threads import in_task
from mcp_context_proxy.trust import THE_USER, Role

logger = logging.getLogger(__name__)

PAGES_PATH = "/ui"
"""Path of the pages and their files."""

ROOT_PATH = "/"
"""Path that leads to the first page."""

BACKLOG = 2048
"""Connections that wait to be accepted: behind a crowd that comes at once nobody has to try again."""

DATE_SECONDS = 1.0
"""Time for which responses have the same date."""

STOP_SECONDS = 2
"""Time for open responses to end by themselves when the front stops; event streams never do."""

CLOSE_SECONDS = 5
"""Time for the requests of closed connections to end; then they are cancelled."""

ACCEPT_ERROR_SECONDS = 60.0
"""Time between two log lines about connections that cannot be accepted."""

ACCEPT_ERROR = "socket.accept() out of system resource"
"""Asyncio's message about such a connection: nothing else identifies it."""
ACCEPT_AGAIN = "._start_serving("
"""Part of the name of the callback by which asyncio tries again."""

WARNINGS_PER_SECOND, WARNINGS_AT_ONCE = 0.1, 10
"""Rate and burst of the HTTP server's warnings about requests, also those without a token."""

Health: TypeAlias = Callable[[], dict[str, Any]]
"""Returns the state of the proxy for ``/healthz``; without the token only its ``status`` is shown."""

_PUBLIC: Final = re.compile(r"\w+://[^/]*(.*)/mcp/?")
"""The public URL of ``/mcp``, and the path before that."""


def below(public_url: str | None) -> str:
    """Return the path below which a reverse proxy serves all of ours; empty if it has none of its own."""
    found = _PUBLIC.fullmatch(public_url or "")
    return found[1] if found else ""


NOWHERE: Mapping[str, ASGIApp] = {}
"""No paths."""


def application(
    negotiation: Negotiation,
    limits: Limits,
    policy: Policy,
    health: Health,
    more: Sequence[BaseRoute] = (),
    homes: Callable[[StreamableHttp, EventStreams], tuple[ASGIApp, ASGIApp]] | None = None,
    public_url: str | None = None,
) -> ASGIApp:
    """Return the ASGI application for hosts, guarded on every route, with `more` routes beside theirs.

    Where there are several replicas, `homes` puts that before the two endpoints, of streamable HTTP and of
    messages for event streams, which leads a request to its home. Clients reach the first of the two at
    `public_url`, if a reverse proxy serves both below a path of its own.
    """
    guesses = UnknownSessions()
    admission = AdmissionRules(negotiation.gateway)
    streamable = StreamableHttp(negotiation, limits, guesses, admission)
    events = EventStreams(negotiation, limits, guesses, admission, below=below(public_url))

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with streamable.running():
            yield

    profiles = negotiation.gateway.profiles
    endpoint, messages = (streamable, events.message) if homes is None else homes(streamable, events)
    hosts = InProfile(endpoint, profiles)
    routes = [
        Route(f"/mcp/p/{{{PARAMETER}}}", hosts),
        Route("/sse", InProfile(events, profiles), methods=["GET"]),
        Mount(MESSAGES_PATH, app=InProfile(messages, profiles)),
        *more,
    ]
    within = partial(InProfile, profiles=profiles)
    return guarded(routes, policy, health, limits, lifespan, within, at_once={"/mcp": hosts})


def guarded(
    routes: Sequence[BaseRoute],
    policy: Policy,
    health: Health,
    limits: Limits,
    lifespan: Lifespan[Starlette] | None = None,
    within: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    at_once: Mapping[str, ASGIApp] = NOWHERE,
) -> ASGIApp:
    """Return an ASGI application of some routes and ``/healthz``, all of them guarded.

    Requests for ``/healthz`` are served `within` the limits of their clients. The applications `at_once` are
    for single paths, and may be called in a flight; all others are called in a task.
    """

    async def healthz(request: Request) -> Response:
        facts = health()
        rights = rights_of(request.scope)
        if not policy.required or principal_of(request.scope) is None or not rights.may(Role.VIEW):
            # Problems name paths, servers and variables: they are for those who have the token.
            facts = {"status": facts["status"]}
        return JSONResponse(facts, headers=HEADERS)

    answered = Route(HEALTH_PATH, healthz, methods=["GET"])
    answered.app = within(answered.app)
    pages = [
        route.path
        for route in routes
        if isinstance(route, Route)
        and (route.path in (ROOT_PATH, PAGES_PATH) or route.path.startswith(PAGES_PATH + "/"))
    ]
    others = Starlette(routes=[*routes, answered], lifespan=lifespan)

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        app = at_once.get(scope.get("path", ""))
        if app is None:
            await in_task()
        await (app or others)(scope, receive, send)

    whole = WholeBodies(routed, limit=limits.http_body_bytes, wait_seconds=limits.http_body_seconds)
    return Guard(whole, policy=policy, pages=pages, most_of_one=max(limits.http_connections // 2, 1))


class LocalApi:
    """The REST API on connections that another front has accepted, from processes of the user alone.

    Such a connection proves by itself whose it is, so no token is asked for.
    """

    def __init__(self, routes: Sequence[BaseRoute], health: Health, limits: Limits) -> None:

        async def healthz(_request: Request) -> Response:
            return JSONResponse(health(), headers={"Cache-Control": "no-store"})

        served = Starlette(routes=[*routes, Route(HEALTH_PATH, healthz, methods=["GET"])])
        whole = WholeBodies(served, limit=limits.http_body_bytes, wait_seconds=limits.http_body_seconds)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await whole({**scope, PROVEN_KEY: True, RIGHTS_KEY: THE_USER}, receive, send)

        self.app: ASGIApp = app
        """The API itself, for callers of this process."""
        self._backlog = WriteBacklog(limits)
        self._config = _configured(app, connection_class(limits, self._backlog), lifespan="off")
        self._config.load()
        self._state = uvicorn.server.ServerState()

    async def serve(self, connection: socket.socket) -> None:
        """Take a connection over; its requests are served in the background."""
        protocol: Any = self._config.http_protocol_class
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: protocol(config=self._config, server_state=self._state, app_state={}), connection
        )

    async def run(self) -> None:
        """Watch the connections until cancelled, and close them then."""
        try:
            await self._backlog.watch()
        finally:
            _abort_all(self._state)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises `OSError` if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's delay, 40 ms a message, off only where it is.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host.strip("[]"), port))
        # Listening from here on: whoever is told the address can connect.
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


class _Server(uvicorn.Server):
    """Uvicorn's server without its signal handling, which closes open connections when it stops.

    Uvicorn itself would cancel the responses, and log a traceback for each.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Set the date of responses each second, until it stops; uvicorn looks ten times a second."""
        while not self.stopping.is_set():
            await self.on_tick(0)
            with anyio.move_on_after(DATE_SECONDS):
                await self.stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = asyncio.get_running_loop().call_later(STOP_SECONDS, _abort_all, self.server_state)
        try:
            await super().shutdown(sockets)
        finally:
            closing.cancel()


def _abort_all(state: uvicorn.server.ServerState) -> None:
    for connection in list(state.connections):
        if isinstance(connection, BoundedConnection):
            connection.transport.abort()


def _configured(app: ASGIApp, connections: type[BoundedConnection], **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        # Nothing here depends on the client's address, and nobody should be able to claim one.
        proxy_headers=False,
        http=connections,
        h11_max_incomplete_event_size=HEADER_BYTES,
        ws="none",
        **more,
    )


async def serve(
    app: ASGIApp, bound: socket.socket, limits: Limits, on_stop: Callable[[], None] = lambda: None
) -> None:
    """Serve on a socket until cancelled; `on_stop` ends open streams, which get a moment for it."""
    limits = replace(limits, http_connections=connections_for_hosts(limits.http_connections))
    backlog = WriteBacklog(limits)
    async with anyio.create_task_group() as group:
        config = _configured(
            app,
            connection_class(limits, backlog, group),
            # Uvicorn refuses the connection that reaches its number.
            limit_concurrency=limits.http_connections + 1,
            timeout_graceful_shutdown=STOP_SECONDS + CLOSE_SECONDS,
        )
        http = _Server(config)

        async def stop_on_cancel() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                on_stop()
                http.stopping.set()

        group.start_soon(stop_on_cancel)
        group.start_soon(backlog.watch)
        throttle_accept_errors()
        with throttle_warnings(), anyio.CancelScope(shield=True):
            await http.serve(sockets=[bound])
        group.cancel_scope.cancel()


def throttle_accept_errors() -> None:
    """Have the event loop log only once in a while that connections cannot be accepted.

    Asyncio would try each second as often as connections may be waiting, and log a traceback for each, even
    after the socket is closed.
    """
    loop, logged_at = asyncio.get_running_loop(), -ACCEPT_ERROR_SECONDS

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal logged_at
        if ACCEPT_AGAIN in repr(context.get("handle")):
            return
        if context.get("message") != ACCEPT_ERROR:
            loop.default_exception_handler(context)
        elif time.monotonic() - logged_at >= ACCEPT_ERROR_SECONDS:
            logged_at = time.monotonic()
            logger.warning("hosts have to wait to be connected: %s", context.get("exception"))

    loop.set_exception_handler(handle)


@contextmanager
def throttle_warnings() -> Iterator[None]:
    """Log a few of the HTTP server's warnings, of which a client can cause any number; errors pass."""
    noted = logging.getLogger("uvicorn.error")
    bucket = Bucket(WARNINGS_PER_SECOND, WARNINGS_AT_ONCE)

    def passes(record: logging.LogRecord) -> bool:
        return record.levelno != logging.WARNING or bucket.take()

    noted.addFilter(passes)
    try:
        yield
    finally:
        noted.removeFilter(passes)


HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Headers of every response of the proxy itself: it is private, and browsers must not guess its type."""


class Readiness(Struct, frozen=True):
    """The answer of the probe ``/readyz``."""

    missing: list[str] = []
    """Reasons why no new client should come yet, or any more; it is ready if there are none."""
    degraded: list[str] = []
    """Parts that do not work and without which requests are served all the same."""


Ready: TypeAlias = Callable[[], Readiness]


def probe_routes(ready: Ready) -> list[BaseRoute]:
    """Return the routes of both probes; `ready` must neither block nor wait.

    ``/livez`` depends on nothing. ``/readyz`` is answered with 503 if new clients should not come here.
    """

    async def live(_request: Request) -> Response:
        return JSONResponse({"live": True}, headers=HEADERS)

    async def readyz(_request: Request) -> Response:
        found = ready()
        status = HTTPStatus.SERVICE_UNAVAILABLE if found.missing else HTTPStatus.OK
        answer = {"ready": not found.missing, "missing": found.missing, "degraded": found.degraded}
        return JSONResponse(answer, status, HEADERS)

    return [Route("/livez", live, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]
