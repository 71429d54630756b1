"""Refuses who guesses sessions: nobody finds one of 128 random bits, and nobody need be let try for ever."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_context_proxy.downstream.rate import Bucket

GUESSES_PER_SECOND, GUESSES = 10.0, 100
"""Unknown sessions that are answered as such: all clients of a proxy that was restarted, and no search."""


class Guesses:
    """ASGI application that answers who guesses sessions with 429, and everybody else as `app` does."""

    def __init__(self, app: ASGIApp, bucket: Bucket) -> None:
        self._app, self._bucket = app, bucket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        refused = False

        async def limited(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] == HTTPStatus.NOT_FOUND:
                refused = not self._bucket.take()
            if not refused:
                await send(message)

        await self._app(scope, receive, limited)
        if refused:
            text = "Too many requests for sessions that do not exist.\n"
            headers = {"Retry-After": "1"}
            await Response(text, HTTPStatus.TOO_MANY_REQUESTS, headers)(scope, receive, send)
