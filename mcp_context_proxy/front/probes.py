"""Probes of the HTTP front, for balancers and orchestrators: ``/livez`` and ``/readyz``.

They are asked without a token and under any Host, because a balancer asks by address. So they tell numbers
and words of ours alone: no name of a server, path, variable or principal.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final, TypeAlias

from msgspec import Struct, json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

LIVE_PATH: Final = "/livez"
"""Path that is answered with 200 as long as the process answers anything; it depends on nothing else."""

READY_PATH: Final = "/readyz"
"""Path that is answered with 200 if new clients should come here, and with 503 otherwise."""

PROBE_PATHS: Final = frozenset({LIVE_PATH, READY_PATH})

HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Readiness(Struct, frozen=True):
    """The answer of the probe ``/readyz``."""

    missing: list[str] = []
    """Reasons why no new client should come yet, or any more; it is ready if there are none."""
    degraded: list[str] = []
    """Parts that do not work and without which requests are served all the same."""


class _Answer(Struct, frozen=True):
    ready: bool
    missing: list[str]
    degraded: list[str]


Ready: TypeAlias = Callable[[], Readiness]


def routes(ready: Ready) -> list[BaseRoute]:
    """Return the routes of both probes; `ready` must neither block nor wait."""

    async def live(_request: Request) -> Response:
        return _answered(HTTPStatus.OK, b'{"live":true}')

    async def readyz(_request: Request) -> Response:
        found = ready()
        answer = _Answer(not found.missing, found.missing, found.degraded)
        status = HTTPStatus.OK if answer.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return _answered(status, json.encode(answer))

    return [Route(LIVE_PATH, live, methods=["GET"]), Route(READY_PATH, readyz, methods=["GET"])]


def _answered(status: HTTPStatus, body: bytes) -> Response:
    return Response(body, status, HEADERS, "application/json")
