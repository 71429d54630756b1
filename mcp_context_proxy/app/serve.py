"""Serves a proxy from start to end: the store, signals, reloads, and the fronts that hosts connect to."""

from __future__ import annotations

import errno
import gc
import logging
import math
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import anyio
from msgspec.structs import replace

from mcp_context_proxy.app.build import build
from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.config import Config
from mcp_context_proxy.config.programs import first_wave
from mcp_context_proxy.config.reload import Load, Reloader
from mcp_context_proxy.config.secrets import all_secrets_of, redact_logs
from mcp_context_proxy.context.presets import no_preset
from mcp_context_proxy.errors import ConfigError, ServeError
from mcp_context_proxy.protocol.strangers import one_line, shown_json
from mcp_context_proxy.server.negotiation import Negotiation, Subscriptions
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.system.later import keep_files
from mcp_context_proxy.system.process import (
    SIGNALS,
    SWITCH_SECONDS,
    collect_garbage_seldom,
    limit_malloc_arenas,
    listen_for_signals,
    raise_file_limit,
    time_of_day,
    trim_periodically,
)
from mcp_context_proxy.system.threads import alongside, in_thread, look_up_apart
from mcp_context_proxy.trust.audit import audit_file, keep_messages, kept_logs
from mcp_context_proxy.trust.tokens import BearerToken, TokenBook, credentials_for, credentials_of, tokens_of

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from mcp_context_proxy.cluster.member import Member
    from mcp_context_proxy.front.http import LocalApi, Readiness
    from mcp_context_proxy.front.issuer import IssuedTokens
    from mcp_context_proxy.web import Operation

logger = logging.getLogger(__name__)

STARTING_SECONDS: Final = 15.0
"""Time for which servers that have not answered yet keep the proxy from being ready, and lists that have just
come: after that, one of them hangs, and clients of the others should not wait for it."""


class Needed(Protocol):
    """A part without which nobody can be served."""

    @property
    def lack(self) -> str | None:
        """The thing that is missing, in words of ours; None if nothing is."""


def readiness(proxy: Proxy, needed: Iterable[Needed] = ()) -> Readiness:
    """Return whether new clients should come now to a proxy with further parts that it needs."""
    from mcp_context_proxy.front.http import Readiness  # noqa: PLC0415 - a stdio front has no probes

    missing = list[str]()
    if proxy.gateway.drain.leaving:
        missing.append("stopping: new clients should go elsewhere")
    # Not for as long as the clock may have been set back.
    if 0 <= time_of_day() - proxy.started < STARTING_SECONDS:
        starting = [client for client in proxy.fleet.awaited() if not client.failures]
        if starting:
            missing.append(f"{len(starting)} of {len(proxy.fleet.clients)} servers have not answered yet")
        elif proxy.refresh.is_behind:
            missing.append("the lists of servers are not all in the catalog yet")
    missing += [part.lack for part in needed if part.lack is not None]
    degraded = []
    if proxy.store.warning is not None:
        degraded.append("the store cannot be used; calls are served without it")
    if proxy.audit.warning is not None:
        degraded.append("the audit cannot be written; calls are served without it")
    return Readiness(missing, degraded)


Front = Callable[[Proxy, Negotiation], Awaitable[None]]
"""Serves hosts until it is cancelled or its host is gone."""


@asynccontextmanager
async def open_proxy(config: Config, *, serves: bool = False) -> AsyncIterator[Proxy]:
    """Open and run a proxy without a front. With `serves`, most servers start only once a front is there."""
    redact_logs(all_secrets_of(config))
    store = await in_thread(open_store, config.store)
    logs = kept_logs(config) if serves else None
    try:
        proxy = build(config, store, logs)
        if logs is not None:
            proxy.fleet.starts.hold_back(first_wave(config.limits.starts_at_once))
            keep_messages(logs, all_secrets_of(config))
        try:
            async with proxy.running():
                yield proxy
        finally:
            if proxy.credentials is not None:
                with anyio.CancelScope(shield=True):
                    await in_thread(proxy.credentials.end)
    finally:
        if logs is not None:
            logging.getLogger().removeHandler(logs)
        with anyio.CancelScope(shield=True):
            await in_thread(store.close)


RECENT_SECONDS = 7 * 86_400.0
"""Age of the latest request up to which search is prepared at start."""


async def serve(config: Config, front: Front, load_again: Load) -> None:
    """Serve a front until it ends or a signal stops the process; follow the configuration file meanwhile."""
    for complaint in config.complaints():
        logger.warning("%s", complaint)
    raise_file_limit()
    limit_malloc_arenas()
    collect_garbage_seldom()
    sys.setswitchinterval(SWITCH_SECONDS)
    look_up_apart()
    # Signals are handled before any server starts, so that none outlives a proxy that is stopped at once.
    with anyio.open_signal_receiver(*SIGNALS) as signals:
        async with anyio.create_task_group() as listening:
            stop, reloader = anyio.Event(), Reloader(config, load_again)
            listening.start_soon(listen_for_signals, signals, stop, reloader.ask)
            async with open_proxy(config, serves=True) as proxy:
                if "opentelemetry.trace" in sys.modules or PROVIDER_VARIABLE in os.environ:
                    # This process has a tracer provider, for which it has loaded the packages.
                    from mcp_context_proxy.server.tracing import open_tracing  # noqa: PLC0415 - seldom needed

                    proxy.trace(open_tracing(proxy.redact))
                negotiation = Negotiation(
                    gateway=proxy.gateway,
                    subscriptions=Subscriptions(proxy.changes, proxy.gateway.resources),
                    introduction=proxy.introduce,
                    header_schema=proxy.tool_list.header_schema,
                )
                proxy.reloader, proxy.stop = reloader, stop.set
                if config.embedding.packaged is None:
                    # Somebody's own model may be damaged, and the first session is told so.
                    await in_thread(proxy.search.model.check, abandon_on_cancel=True)
                async with anyio.create_task_group() as group:
                    group.start_soon(_stop_on_signal, stop, proxy, negotiation, group.cancel_scope)
                    group.start_soon(reloader.run, proxy.apply)
                    group.start_soon(reloader.watch, partial(_first_lists_are_out, proxy))
                    group.start_soon(_freeze_gc, proxy)
                    group.start_soon(trim_periodically)
                    group.start_soon(_make_search_ready, proxy)
                    settled = proxy.refresh.settled
                    group.start_soon(proxy.fleet.starts.let_all, HEAD_START_SECONDS, settled)
                    await front(proxy, negotiation)
                    group.cancel_scope.cancel()
            listening.cancel_scope.cancel()


PROVIDER_VARIABLE = "OTEL_PYTHON_TRACER_PROVIDER"
"""Variable that has OpenTelemetry install a provider when it is asked for one."""


async def _freeze_gc(proxy: Proxy) -> None:
    """Exclude modules and the catalog from garbage collection: some hundred thousand objects that stay.

    A full collection would walk through all of them while every request waits. Until here a start makes none.
    """
    gc.freeze()
    gc.enable()
    await proxy.wait_first_connect()
    gc.freeze()


HEAD_START_SECONDS = 0.05
"""Time for the first servers to list their tools before the others start, once the proxy serves: a list that
has these first ones is often the one that a host asks for."""

CONNECTING_SECONDS = 2.0
"""Time for the first connections: one that hangs holds up nothing else that comes later."""

LISTING_SECONDS = 0.5
"""Time after them that is left to the first lists of hosts."""


async def _first_lists_are_out(proxy: Proxy) -> None:
    """Wait with work that no first list needs, until hosts had the time for theirs."""
    with anyio.move_on_after(CONNECTING_SECONDS):
        await proxy.wait_first_connect()
    await anyio.sleep(LISTING_SECONDS)


async def _make_search_ready(proxy: Proxy) -> None:
    """Open the model and index words ahead of the first search, if there was a request recently.

    Otherwise nothing is opened that may never be needed: a model takes about 100 MB. Only its files are
    looked at, so that the log tells early if it cannot be opened.
    """
    # Hosts list at once, and nobody looks at the log so soon.
    await _first_lists_are_out(proxy)
    await in_thread(keep_files)
    await in_thread(proxy.search.model.check, abandon_on_cancel=True)
    latest = await proxy.records.latest(1)
    if latest and time_of_day() - latest[0].time < RECENT_SECONDS:
        proxy.searcher.indexing.prepare(proxy.catalog.snapshot)


async def _stop_on_signal(
    stop: anyio.Event, proxy: Proxy, negotiation: Negotiation, scope: anyio.CancelScope
) -> None:
    await stop.wait()
    if proxy.grace_seconds:
        logger.info("serving for %g seconds more, while balancers go elsewhere", proxy.grace_seconds)
        proxy.gateway.drain.leaving = True
        await anyio.sleep(proxy.grace_seconds)
    # Closed first, so that subscriptions end with a response and clients see no lost stream.
    negotiation.subscriptions.close()
    await proxy.gateway.drain.finish(proxy.config.limits.drain_seconds)
    # The servers stop while the front closes its connections.
    proxy.fleet.stop()
    scope.cancel()


async def stdio_front(
    proxy: Proxy, negotiation: Negotiation, profile: str | None = None, presets: tuple[str, ...] = ()
) -> None:
    """Serve one host over stdin and stdout, and the REST API beside it if configured."""
    from mcp_context_proxy.front import local  # noqa: PLC0415 - most hosts share a proxy

    rights = proxy.gateway.profiles.started(profile, presets, launch_folder())
    async with anyio.create_task_group() as group:
        group.start_soon(_answer_commands, proxy, Pages(proxy, group))
        await local.serve_streams(negotiation, proxy.config.limits, rights)
        group.cancel_scope.cancel()


LOOPBACK: Final = "127.0.0.1"

PAGES_REQUEST: Final = "/api/v1/page"
"""Path, on the socket alone, at which a command asks for the port of the pages."""

UNUSED_SECONDS: Final = 3600.0
"""Time without a request after which a port that a person has asked for is closed."""


class Pages:
    """The API and the pages on a port of this machine, beside hosts over standard streams or a socket.

    The port is that of the configuration. Where it names none, a free one is opened once a person asks over
    the socket; it has a token of its own, which is nowhere but here and in the answer.
    """

    def __init__(self, proxy: Proxy, group: TaskGroup, unused_seconds: float = UNUSED_SECONDS) -> None:
        """Serve the pages of a proxy in a task group, and at once if the configuration names a port.

        A port that a person has asked for is closed after `unused_seconds` without a request.
        """
        self._proxy, self._group, self._opening = proxy, group, anyio.Lock()
        self._unused_seconds = unused_seconds
        self._place: tuple[int, str | None] | None = None
        """Port that is open, and its token if that is its own."""
        if proxy.config.http.api_port is not None:
            group.start_soon(self._open, proxy.config.http.api_port)

    async def ask(self, _request: Request) -> Response:
        """Answer with the port that is open, and open one if there is none."""
        from starlette.responses import JSONResponse  # noqa: PLC0415 - seldom asked for

        async with self._opening:
            if self._place is None:
                await self._open(0, secrets.token_urlsafe(32))
        if self._place is None:
            return JSONResponse({"detail": "No port can be opened; the log says why."}, 503)
        port, token = self._place
        return JSONResponse({"port": port, "token": token})

    async def _open(self, port: int, own: str | None = None) -> None:
        """Open a port, with a token of its `own` or the usual one.

        Only one of several proxies can have the port of the configuration: if it is taken, or there is no
        token, the log says so and nothing else suffers.
        """
        # In a thread, as its modules and its document take a tenth of a second in which hosts are served.
        routes = await in_thread(web_routes, self._proxy)
        from mcp_context_proxy.front import http  # noqa: PLC0415 - a stdio front alone needs none of it

        try:
            credentials = BearerToken(own, "; `mcp-context-proxy ui` prints its token")
            if own is None:
                credentials = credentials_for(replace(self._proxy.config.http, host=LOOPBACK))
            bound = http.listen(LOOPBACK, port)
        except (ConfigError, OSError) as error:
            logger.warning("the API is not served on port %d: %s", port, error)
            return
        self._place = bound.getsockname()[1], own
        unused = self._unused_seconds if own else math.inf
        self._group.start_soon(self._serve, routes, bound, credentials, unused)

    async def _serve(
        self, routes: Sequence[BaseRoute], bound: socket.socket, credentials: BearerToken, unused: float
    ) -> None:
        """Serve a port until it had no request for `unused` seconds."""
        from mcp_context_proxy.front import auth, http  # noqa: PLC0415 - a stdio front alone needs none of it

        proxy, (host, port) = self._proxy, bound.getsockname()
        message = "serving http://%s:%d/api/v1 and /ui%s"
        logger.log(credentials.level, message, host, port, credentials.whereabouts)
        async with _measuring_stalls(proxy), _following_tokens(proxy) as tokens:
            own = auth.policy(host, port, (), credentials.token)
            policy = replace(own, named=tokens, refused=proxy.audit.token_refused)
            within, limits = _within_profiles(proxy), proxy.config.limits
            guarded = http.guarded(routes, policy, proxy.health, limits, within=within)
            with anyio.CancelScope(deadline=anyio.current_time() + unused) as idle:

                async def noting(scope: Scope, receive: Receive, send: Send) -> None:
                    idle.deadline = anyio.current_time() + unused
                    await guarded(scope, receive, send)

                await http.serve(noting, bound, limits)
        if idle.cancelled_caught:
            logger.info("the page on port %d is closed, as nobody has looked at it for a while", port)
        self._place = None


async def _answer_commands(proxy: Proxy, pages: Pages | None = None) -> None:
    """Answer commands such as ``status`` over a socket of this process; without a place for it, none are."""
    path = proxy.config.path
    if path is None:
        return
    await _first_lists_are_out(proxy)

    def opened() -> Callable[[], Awaitable[None]] | None:
        from mcp_context_proxy.bridge import meeting  # noqa: PLC0415 - only after the start
        from mcp_context_proxy.front import local  # noqa: PLC0415 - the same

        if sys.platform == "win32" and not os.environ.get(meeting.PORT_VARIABLE):
            return None
        own = meeting.own_socket(path, os.environ)
        place = meeting.listen(own, os.environ)
        return partial(
            local.serve_commands, proxy.config.limits, own, *place, partial(local_api, proxy, pages)
        )

    try:
        served = await in_thread(opened)
    except Exception as error:
        # boundary: without a place for a socket, or a free descriptor to read the modules, hosts are served
        logger.debug("commands cannot ask this proxy: %s", error)
        return
    if served is not None:
        await served()


def launch_folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:
        return None


async def shared_front(proxy: Proxy, negotiation: Negotiation, listening: str) -> None:
    """Serve the hosts of one user, until none has been connected for a while.

    `listening` is the descriptor of a Unix socket, or else the file that gets the port to listen at.
    """
    from mcp_context_proxy.bridge import meeting  # noqa: PLC0415 - only a shared proxy has hosts that meet
    from mcp_context_proxy.front import local  # noqa: PLC0415 - the same

    if listening.isdecimal():
        bound, key = socket.socket(fileno=int(listening)), None
        path: str = bound.getsockname()
    else:
        path = listening
        bound, key = await in_thread(meeting.listen, path, os.environ)
    async with anyio.create_task_group() as group:
        make_api = partial(local_api, proxy, Pages(proxy, group))
        problems = partial(_problems, proxy)
        hosts = local.Hosts(negotiation, proxy.config.limits, make_api, key, problems=problems)
        proxy.hosts, proxy.shared = hosts, True
        await local.serve(hosts, bound, path, proxy.config.shared.linger_seconds)
        group.cancel_scope.cancel()


def _problems(proxy: Proxy, presets: Iterable[str]) -> list[str]:
    told = [*proxy.health().get("problems", ()), *map(no_preset, proxy.contexts.presets.unknown(presets))]
    return [one_line(proxy.redact(text), PROBLEM_CHARACTERS) for text in told]


PROBLEM_CHARACTERS: Final = 500
"""Characters of a problem that the log of a host gets."""


def local_api(proxy: Proxy, pages: Pages | None = None) -> LocalApi:
    """Return the REST API for processes of the user, who may ask for the `pages` beside hosts as well."""
    from starlette.routing import Route  # noqa: PLC0415 - nobody may ever ask

    from mcp_context_proxy.front.http import LocalApi  # noqa: PLC0415 - the same

    asked = [] if pages is None else [Route(PAGES_REQUEST, pages.ask, methods=["POST"])]
    return LocalApi([*asked, *web_routes(proxy)], proxy.health, proxy.config.limits)


CLUSTER_GRACE_SECONDS = 5.0
"""Time for which a replica serves after SIGTERM by default: balancers have probed it twice by then."""


async def http_front(proxy: Proxy, negotiation: Negotiation) -> None:
    """Serve hosts over HTTP.

    Raises `ConfigError` if the front would be open to other machines without a token, and `ServeError` if the
    address is in use or not available.
    """
    from mcp_context_proxy.front import auth, http  # noqa: PLC0415 - a stdio front needs none of it
    from mcp_context_proxy.front.issuer import IssuedTokens, ResourceMetadata  # noqa: PLC0415

    settings, limits = proxy.config.http, proxy.config.limits
    if (grace := settings.drain_grace_seconds) is None:
        grace = CLUSTER_GRACE_SECONDS if proxy.config.cluster.enabled else 0.0
    proxy.grace_seconds = grace
    credentials = credentials_of(proxy.config)
    issued = IssuedTokens(proxy.config) if proxy.config.auth.mode == "jwt" else None
    resource = None if issued is None else ResourceMetadata(proxy.config)
    if credentials.token is not None:
        proxy.fleet.known.know_own(("the bearer token", credentials.token))
    try:
        bound = http.listen(settings.host, settings.port)
    except OSError as error:
        why = f"{error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            why += "; end what listens there, or take another port with --port or http.port"
        raise ServeError(f"cannot listen on {settings.host}:{settings.port}: {why}") from None
    port = bound.getsockname()[1]
    policy = auth.policy(settings.host, port, settings.allowed_hosts, credentials.token)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    message = "serving http://%s:%d/mcp, /api/v1 and /ui%s"
    logger.log(credentials.level, message, host, port, credentials.whereabouts)
    async with _measuring_stalls(proxy), _following_tokens(proxy, issued) as tokens:
        policy = replace(
            policy,
            named=tokens,
            issued=issued,
            resource=resource,
            refused=proxy.audit.token_refused,
            drain=proxy.gateway.drain,
        )
        member = _member(proxy, port) if proxy.config.cluster.enabled else None
        if member is not None and policy.hosts is not None:
            policy = replace(policy, hosts=policy.hosts | {member.host})
        needed: list[Needed] = [
            proxy.store.database,
            *([] if issued is None else [issued.keys]),
            *([] if member is None else [member.replicas]),
        ]
        routes = [
            *await in_thread(web_routes, proxy, member),
            *http.probe_routes(partial(readiness, proxy, needed)),
            *([] if resource is None else resource.routes()),
        ]
        homes = None if member is None else member.homes
        app = http.application(
            negotiation, limits, policy, proxy.health, routes, homes, settings.resource_url
        )
        joined = nullcontext() if member is None else member.running()
        async with joined, alongside(partial(_answer_commands, proxy)):
            await http.serve(app, bound, limits, on_stop=negotiation.subscriptions.close)


def _member(proxy: Proxy, port: int) -> Member:
    from mcp_context_proxy.cluster.member import Member  # noqa: PLC0415 - most proxies are alone

    return Member(
        config=proxy.config,
        store=proxy.store,
        port=port,
        gateway=proxy.gateway,
        handles=proxy.handles,
        pending_input=proxy.pending_input,
        changes=proxy.changes,
        fleet=proxy.fleet,
        records=proxy.records,
        results=proxy.results.kept,
    )


@asynccontextmanager
async def _following_tokens(proxy: Proxy, issued: IssuedTokens | None = None) -> AsyncIterator[TokenBook]:
    """Provide the named tokens, which follow their file or the store, as the keys follow their issuer."""
    book = TokenBook(tokens_of(proxy.config, proxy.credentials))
    await in_thread(book.load)
    async with alongside(book.run, *(() if issued is None else (issued.keys.run,))):
        yield book


def _measuring_stalls(proxy: Proxy) -> AbstractAsyncContextManager[None]:
    """Return a context manager that measures stalls of the event loop while metrics can be collected."""
    return alongside(*(() if proxy.usage is None else (proxy.usage.counters.stalls.run,)))


def web_routes(proxy: Proxy, member: Member | None = None) -> list[BaseRoute]:
    """Return the routes of the REST API, the pages and the metrics, with those of a member of a cluster."""
    from mcp_context_proxy.web import routes  # noqa: PLC0415 - a stdio front alone needs none
    from mcp_context_proxy.web.usage import metrics_route  # noqa: PLC0415

    within = _within_profiles(proxy)
    metrics: list[BaseRoute] = []
    if proxy.usage is not None:
        replica = None if member is None else member.counts
        metrics.append(metrics_route(proxy, proxy.usage.counters, replica, within))
    shown = partial(shown_json, redact=proxy.redact.json)
    return [*routes(operations(proxy), shown, within, proxy.config.http.resource_url), *metrics]


def _within_profiles(proxy: Proxy) -> Callable[[ASGIApp], ASGIApp]:
    """Return a wrapper that serves the requests of an application within the profiles of their clients."""
    from mcp_context_proxy.front.http_requests import InProfile  # noqa: PLC0415 - a stdio front alone needs none

    return partial(InProfile, profiles=proxy.gateway.profiles)


def operations(proxy: Proxy) -> list[Operation]:
    """Return the operations of the REST API, which pages, commands and hooks use as well."""
    from mcp_context_proxy.web.contexts import ContextsApi  # noqa: PLC0415
    from mcp_context_proxy.web.inventory import ApprovalsApi, InventoryApi  # noqa: PLC0415
    from mcp_context_proxy.web.records import AuditApi, InteractionsApi  # noqa: PLC0415
    from mcp_context_proxy.web.running import PromptsApi, RunningApi  # noqa: PLC0415
    from mcp_context_proxy.web.search import SearchApi  # noqa: PLC0415
    from mcp_context_proxy.web.usage import UsageApi  # noqa: PLC0415

    parts = proxy.interactions
    recorder, log = (None, None) if parts is None else (parts.recorder, parts.log)
    apis = (
        RunningApi(proxy),
        InventoryApi(proxy),
        ContextsApi(proxy, log),
        PromptsApi(proxy, log),
        SearchApi(proxy, log),
        UsageApi(proxy, proxy.statistics.reports),
        InteractionsApi(recorder),
        ApprovalsApi(proxy.store, proxy.approvals, proxy.refresh.mark_stale, proxy.audit),
        AuditApi(proxy.audit, audit_file(proxy.config)),
    )
    return [operation for each in apis for operation in each.operations()]
