"""REST operations on the running proxy: its state, its logs, a call of a tool, and its end.

The pages, the commands and other programs use these. An operation that changes something needs a proven
administrator (`Operation.decides`), also where no other one needs a token, and is in the audit. Over the
local socket, the connection itself proves who asks.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from mcp_context_proxy import __version__
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.fleet import failure
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import RequestError
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.system import process
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust.audit import PROXY
from mcp_context_proxy.trust.tokens import Role
from mcp_context_proxy.web.api import Api, BadRequestError, Given, Name, NoParameters, Operation
from mcp_context_proxy.web.inventory import Done, Served, audit, expect_server, exposed_name

LINES: Final = 2_000
"""Lines of a log in one answer."""


class HostFacts(Struct, frozen=True):
    """A host that is connected to the shared proxy."""

    name: str
    version: str
    since: float
    """Seconds since 1970."""
    pid: int | None
    """Process that the host has started."""
    folder: str | None
    session: str | None
    """Public id of its session; null in the era without sessions."""


class ServerStatus(Struct, frozen=True):
    """The state of a server."""

    name: str
    state: str
    """Such as ``ready``, ``asleep``, ``failed``, ``still starting`` or ``off``."""
    cause: str = ""
    """Reason of a failure."""
    tools: int = 0
    calls: int = 0
    """Answered or failed calls since the proxy started."""
    errors: int = 0
    """Calls among them that failed."""
    failures: int = 0
    """Failed attempts to connect in a row."""
    restarts: int = 0
    next_retry: float | None = None
    """Time of the next attempt to connect, in seconds since 1970."""
    pid: int | None = None
    memory: int | None = None
    """Resident bytes of its processes; null where that is not known."""


class StatusAnswer(Struct, frozen=True):
    """The state of the proxy."""

    version: str
    pid: int
    python: str
    started: float
    """Seconds since 1970."""
    uptime: float
    """Seconds."""
    memory: int | None
    """Resident bytes of the proxy itself; null where that is not known."""
    config: str | None
    shared: bool
    """True if hosts share it over a socket."""
    hosts: list[HostFacts]
    servers: list[ServerStatus]
    problems: list[str]


class LogsWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The lines of a log that are wanted."""

    server: Name | None = None
    """None for the messages of the proxy itself."""
    limit: Annotated[int, Meta(ge=1, le=LINES)] = 200
    after: float = 0.0
    """Only lines that are newer than this time, in seconds since 1970."""


class LogLine(Struct, frozen=True):
    """A line of a log."""

    time: float
    kind: str
    """``stderr`` for a line of a server, and otherwise the level of the message."""
    text: str
    pid: int | None = None
    """The proxy that has written it."""


class LogsAnswer(Struct, frozen=True):
    """Lines of a log, oldest first."""

    lines: list[LogLine]


class CallWanted(Struct, forbid_unknown_fields=True, frozen=True):
    """A call of a tool."""

    tool: Name
    arguments: dict[str, Any] = {}
    server: Name | None = None
    """Server of the tool, if several have one of that name."""


class CallAnswer(Struct, frozen=True):
    """Result of a call."""

    tool: str
    is_error: bool
    result: Raw
    """The result of ``tools/call``."""


class RunningApi(Api):
    """Operations on the running proxy."""

    def __init__(self, proxy: Served) -> None:
        """Work on a proxy that serves."""
        self._proxy = proxy

    @Operation(
        "GET",
        "/status",
        "The proxy's process, the hosts that are connected, and the state of each server.",
        query=NoParameters,
        answer=StatusAnswer,
        role=Role.VIEW,
    )
    async def _get_status(self, given: Given) -> StatusAnswer:
        del given
        proxy, now = self._proxy, time_of_day()
        clients = [*proxy.fleet.clients.values()]
        groups = {client.name: group for client in clients if (group := _group(client)) is not None}
        memory = await in_thread(process.resident_of_groups, {*groups.values()})
        usage = proxy.usage
        counts = {} if usage is None else usage.counters.servers
        servers = [
            ServerStatus(
                name=client.name,
                state=client.standing,
                cause=failure(client),
                tools=len(client.listing.tools),
                calls=counts[client.name].calls if client.name in counts else 0,
                errors=counts[client.name].errors if client.name in counts else 0,
                failures=client.failures,
                restarts=client.restarts,
                next_retry=client.retry_at,
                pid=groups.get(client.name),
                memory=memory.get(groups.get(client.name, 0)),
            )
            for client in clients
        ]
        servers += [
            ServerStatus(name=name, state="off", cause=f"turned off by {_place(one)}")
            for name, one in proxy.config.servers.items()
            if not one.enabled
        ]
        servers += [ServerStatus(name=n, state="off", cause=str(w)) for n, w in proxy.config.off.items()]
        return StatusAnswer(
            version=__version__,
            pid=os.getpid(),
            python=sys.version.split()[0],
            started=proxy.started,
            uptime=now - proxy.started,
            memory=process.resident(),
            config=None if proxy.config.path is None else str(proxy.config.path),
            shared=proxy.shared,
            hosts=[
                HostFacts(
                    host.name,
                    host.version,
                    host.since,
                    host.pid,
                    host.folder,
                    None if host.session is None else host.session.id,
                )
                for host in proxy.hosts()
            ],
            servers=servers,
            problems=proxy.health().get("problems", []),
        )

    @Operation(
        "GET",
        "/logs",
        "The latest lines that a server, or the proxy itself, has logged.",
        query=LogsWanted,
        answer=LogsAnswer,
        problems=(HTTPStatus.NOT_FOUND,),
        role=Role.VIEW,
    )
    async def _list_logs(self, given: Given) -> LogsAnswer:
        wanted: LogsWanted = given.query
        if wanted.server is not None:
            expect_server(self._proxy, wanted.server)
        read = partial(self._proxy.logs.entries, wanted.server or PROXY, wanted.limit, wanted.after)
        return LogsAnswer([msgspec.convert(entry, LogLine) for entry in await in_thread(read)])

    @Operation(
        "POST",
        "/call",
        "Call a tool as a host would; the call is in the audit and in the statistics.",
        body=CallWanted,
        answer=CallAnswer,
        problems=(HTTPStatus.NOT_FOUND, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY),
        role=Role.OPERATE,
        decides=True,
    )
    async def _call_tool(self, given: Given) -> CallAnswer:
        wanted: CallWanted = given.body
        name = exposed_name(self._proxy, wanted.tool, wanted.server)
        # A replica sees only its share of requests that belong to no session.
        if not self._proxy.gateway.quota.take(given.principal, spread=True):
            text = str(self._proxy.gateway.quota)
            raise BadRequestError(HTTPStatus.TOO_MANY_REQUESTS, f"{text[0].upper()}{text[1:]}.")
        params = {"name": envelope.raw(name), "arguments": envelope.raw(wanted.arguments)}
        try:
            result = await self._proxy.gateway.handle("tools/call", params, _caller(given))
        except RequestError as error:
            raise BadRequestError(HTTPStatus.BAD_GATEWAY, f"{one_line(error.message)}.") from None
        failed = bytes(envelope.members(result).get("isError", b"false")) == b"true"
        return CallAnswer(name, failed, Raw(result))

    @Operation(
        "POST",
        "/stop",
        "Stop the proxy, after the requests that are under way.",
        answer=Done,
        problems=(HTTPStatus.CONFLICT,),
        role=Role.ADMIN,
        decides=True,
    )
    async def _stop_proxy(self, given: Given) -> Done:
        if self._proxy.stop is None:
            raise BadRequestError(HTTPStatus.CONFLICT, "This proxy is part of another program.")
        audit(self._proxy, given, "stop")
        self._proxy.stop()
        return Done("The proxy stops, after the requests that are under way.")


def _group(client: DownstreamClient) -> int | None:
    return None if client.connected is None else client.connected.process_group


def _place(server: Any) -> str:
    place: str = server.places.get("enabled", f"servers.{server.name}.enabled")
    return place


def _caller(given: Given) -> Caller:
    async def refuse(method: str, params: object) -> bytes:
        del params
        raise RequestError(envelope.METHOD_NOT_FOUND, f"{method}: nobody can be asked here")

    return Caller(
        era=Era.HANDSHAKE,
        session=None,
        capabilities=Raw(b"{}"),
        client_info=envelope.raw({"name": "mcp-context-proxy call", "version": __version__}),
        principal=given.principal.name,
        rights=given.principal,
        notify=lambda _method, _params: None,
        ask=refuse,
        release=lambda: None,
    )
