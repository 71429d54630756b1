"""Profiles over HTTP: by the token of a request, by its address ``/mcp/p/NAME``, or by its agent."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_context_proxy.server.caller import AGENT_HEADER, PRINCIPAL_KEY, RIGHTS_KEY, rights_of
from mcp_context_proxy.server.profiles import Profiles, UnknownProfileError
from mcp_context_proxy.system.flights import assigned
from mcp_context_proxy.trust.tokens import ACTING

PARAMETER: Final = "profile"
"""Parameter of a route that names a profile."""


class InProfile:
    """ASGI application that serves each request within the limits of its profile."""

    def __init__(self, app: ASGIApp, profiles: Profiles) -> None:
        self._app, self._profiles = app, profiles

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; one for a profile that does not exist is refused."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        wanted = scope.get("path_params", {}).get(PARAMETER)
        known = rights_of(scope)
        try:
            rights = self._profiles.of_request(known, wanted, Headers(scope=scope).get(AGENT_HEADER))
        except UnknownProfileError as error:
            await PlainTextResponse(f"{error}\n", HTTPStatus.NOT_FOUND)(scope, receive, send)
            return
        if rights is known:
            await self._app(scope, receive, send)
            return
        with assigned(ACTING, rights):
            await self._app({**scope, RIGHTS_KEY: rights, PRINCIPAL_KEY: rights.name}, receive, send)
