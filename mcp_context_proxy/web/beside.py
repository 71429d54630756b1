"""The API and the page on a port of this machine, beside the stdio front.

Where the port or the token cannot be had, the log says so and nothing else suffers: each host starts a proxy
of its own, and only one of them can have the port.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from starlette.routing import BaseRoute

from mcp_context_proxy.config import HttpConfig, Limits
from mcp_context_proxy.errors import ConfigError
from mcp_context_proxy.front import guard, http
from mcp_context_proxy.front.token import credentials_for

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"


async def serve(
    routes: Sequence[BaseRoute], settings: HttpConfig, port: int, limits: Limits, health: http.Health
) -> None:
    """Serve until cancelled, or not at all."""
    try:
        credentials = credentials_for(settings.model_copy(update={"host": LOOPBACK}))
        bound = http.listen(LOOPBACK, port)
    except (ConfigError, OSError) as error:
        logger.warning("the API is not served on port %d: %s", port, error)
        return
    port = bound.getsockname()[1]
    policy = guard.policy(LOOPBACK, port, (), credentials.token)
    message = "serving http://%s:%d/api/v1 and /ui%s"
    logger.log(credentials.level, message, LOOPBACK, port, credentials.whereabouts)
    await http.serve(http.guarded(routes, policy, health, limits), bound, limits)
