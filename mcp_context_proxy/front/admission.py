"""Admission of messages over HTTP: no new work while the proxy stops, and no calls beyond a person's rate.

A refusal has an HTTP status of its own, so that a balancer or a client can send the request again: nothing of
it has run. Replies to questions of servers, cancellations and other notifications are admitted always, since
the calls that are under way need them to finish.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from msgspec import UNSET
from starlette.responses import Response
from starlette.types import Scope

from mcp_context_proxy.front.auth import RETRY_SECONDS, rights_of
from mcp_context_proxy.front.http_requests import error_response
from mcp_context_proxy.protocol.envelope import Envelope
from mcp_context_proxy.server.gateway import SHUTTING_DOWN, Gateway

STOPPING: Final = "shutting down: the proxy was told to stop; it did not run"

TOO_MANY_CALLS: Final = -32029
"""Error code of a call over the rate: of the range that servers choose from, with 29 as in status 429."""


class AdmissionRules:
    """Decides for each message whether it may begin."""

    def __init__(self, gateway: Gateway) -> None:
        self._drain, self._quota = gateway.drain, gateway.quota

    def refusal(self, scope: Scope, message: Envelope | None, *, spread: bool = False) -> Response | None:
        """Return the response to a message that may not begin; None if it may.

        It is `spread` if it belongs to no session, so that any replica may have the next one.
        """
        if message is None or message.method is UNSET or not isinstance(message.id, int | str):
            return None
        if self._drain.stopping:
            refused = error_response(HTTPStatus.SERVICE_UNAVAILABLE, message.id, STOPPING, SHUTTING_DOWN)
            refused.headers["Retry-After"] = RETRY_SECONDS
            return refused
        if message.method == "tools/call" and not self._quota.take(rights_of(scope), spread=spread):
            status = HTTPStatus.TOO_MANY_REQUESTS
            refused = error_response(status, message.id, str(self._quota), TOO_MANY_CALLS)
            refused.headers["Retry-After"] = str(self._quota.seconds)
            return refused
        return None
