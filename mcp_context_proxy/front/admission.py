"""Admission of messages over HTTP: no new work while the proxy stops, and no calls beyond a principal's rate.

A refusal has an HTTP status of its own, so that a balancer or a client can send the request again: nothing of
it has run. Replies to questions of servers, cancellations and other notifications are admitted always, since
the calls that are under way need them to finish.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from msgspec import UNSET
from starlette.responses import Response
from starlette.types import Scope

from mcp_context_proxy.front.auth import RETRY_SECONDS
from mcp_context_proxy.front.http_requests import error_response
from mcp_context_proxy.protocol.envelope import Envelope
from mcp_context_proxy.protocol.framing import Bucket
from mcp_context_proxy.server.caller import principal_of
from mcp_context_proxy.server.gateway import SHUTTING_DOWN, Drain

STOPPING: Final = "shutting down: the proxy was told to stop; it did not run"

TOO_MANY_CALLS: Final = -32029
"""Error code of a call over the rate: of the range that servers choose from, with 29 as in status 429."""

PRINCIPALS_KEPT: Final = 10_000
"""Principals with a rate of their own, some 2 MB; of more, the one that was idle for longest is forgotten,
which has all of its calls again by then."""


class Quota:
    """The rate of calls of each principal."""

    def __init__(self, per_second: float) -> None:
        """Let each principal make so many calls a second, and as many at once; 0 sets no limit."""
        self._rate = per_second
        self.replicas: Callable[[], int] = lambda: 1
        """Returns the number of replicas that share the calls of a client."""
        self._buckets: OrderedDict[str | None, Bucket] = OrderedDict()

    def take(self, principal: str | None, *, spread: bool = False) -> bool:
        """Count a call; return whether it is within the rate.

        Of calls that are `spread` over several replicas, each replica sees a part, and counts it for all.
        """
        if not self._rate:
            return True
        bucket = self._buckets.pop(principal, None) or Bucket(self._rate, max(math.ceil(self._rate), 1))
        self._buckets[principal] = bucket
        if len(self._buckets) > PRINCIPALS_KEPT:
            self._buckets.popitem(last=False)
        return bucket.take(max(self.replicas(), 1) if spread else 1)

    @property
    def seconds(self) -> int:
        """Whole seconds after which a principal has a call again."""
        return max(math.ceil(1 / self._rate), 1) if self._rate else 1

    def __str__(self) -> str:
        return f"too many calls: limits.calls_per_second is {self._rate:g} for each principal; it did not run"


class AdmissionRules:
    """Decides for each message whether it may begin."""

    def __init__(self, drain: Drain, quota: Quota) -> None:
        self._drain, self.quota = drain, quota

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
        if message.method == "tools/call" and not self.quota.take(principal_of(scope), spread=spread):
            status = HTTPStatus.TOO_MANY_REQUESTS
            refused = error_response(status, message.id, str(self.quota), TOO_MANY_CALLS)
            refused.headers["Retry-After"] = str(self.quota.seconds)
            return refused
        return None
