"""Everything that a front mounts: the API, the document that describes it, the page."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from mcp_context_proxy.web import page
from mcp_context_proxy.web.openapi import document
from mcp_context_proxy.web.operation import HEADERS, Operation, on_http_error, refused, route

BASE = "/api/v1"


def routes(operations: Sequence[Operation]) -> list[BaseRoute]:
    """The routes."""
    described = document(BASE, operations)

    async def openapi(request: Request) -> Response:
        del request
        return JSONResponse(described, headers=HEADERS)

    by_path: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_path[operation.path].append(operation)
    inner = Starlette(
        routes=[
            *(route(same_path) for same_path in by_path.values()),
            Route("/openapi.json", openapi, methods=["GET"]),
        ],
        exception_handlers={HTTPException: on_http_error, Exception: _on_fault},
    )
    mounted = Mount(BASE, app=inner)
    # A path with a line break in it is ours as well: what is below the base answers as the API does.
    mounted.path_regex = re.compile(mounted.path_regex.pattern, re.DOTALL)
    return [mounted, *page.routes()]


async def _on_fault(request: Request, error: Exception) -> Response:
    """A fault of ours: its details are in the log, where the error goes on to."""
    del request, error
    return refused(HTTPStatus.INTERNAL_SERVER_ERROR, "The proxy failed; its log tells more.")
